"""Mode unanimous: how far the transaction is that has the lock. Equal at all who follow (``unanimous.py``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..base import Source
from .messages import Position, Txid


@dataclass(slots=True)
class Agreement:
    """Of the database's lock, whose queue is ``Shared.locks``."""

    written: int = 0
    """The version that the first transaction has made; 0: its data have not come."""
    closing: set[Txid] = field(default_factory=set)
    """Those in the queue whose services have something to commit."""
    grants: dict[Source, Position | None] = field(default_factory=dict)
    """For the first transaction: the sites whose GRANT is needed; None: it has not come."""
    leaving: set[Source] = field(default_factory=set)
    """Sites that the others have put out, and that have not said that they know it: they may still serve reads."""

    @property
    def is_granted(self) -> bool:
        return bool(self.grants) and None not in self.grants.values()

    def copy(self) -> Agreement:
        return Agreement(self.written, set(self.closing), dict(self.grants), set(self.leaving))
