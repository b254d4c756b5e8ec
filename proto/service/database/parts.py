"""Transactions that are longer than one message may be: they are sent in parts, and stand at the place of the last one.

``Incoming`` is what all who follow have alike of transactions that are not complete; it is no part of the state that a joining
site gets. Where a site asks for the state, all drop it, and the services whose parts are dropped begin again (``Outgoing``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..base import Source
from .messages import BODY_MAX, HASH_BYTES, READS_MAX, Part, Txid

PART_BYTES: Final = 256 * 1024
"""A longer message goes in parts of this size."""
UNDER_WAY_MAX: Final = 4
"""Parts of one service that have not come back in the order, so that shorter transactions need not wait for all of them."""
WHOLE_MAX: Final = BODY_MAX + READS_MAX * HASH_BYTES + 1024
"""Bytes of a transaction with all that belongs to it."""


class _Begun(NamedTuple):
    txid: Txid
    data: bytearray
    parts: int


class Incoming:
    """The parts that have come of each service's one transaction under way."""

    def __init__(self) -> None:
        self._begun: dict[Source, _Begun] = {}

    def take(self, source: Source, part: Part) -> bytes | None:
        """One part at its place. Returns what is whole now; empty: more is to come; None: the part does not go on from what is
        there, or there is too much, and what is there of this service is dropped."""
        begun = self._begun.pop(source, None)
        if part.number == 0:
            begun = _Begun(part.txid, bytearray(), 0)
        if begun is None or begun.txid != part.txid or begun.parts != part.number:
            return None
        if len(begun.data) + len(part.data) > WHOLE_MAX:
            return None
        begun.data.extend(part.data)
        if part.is_last:
            return bytes(begun.data)
        self._begun[source] = begun._replace(parts=begun.parts + 1)
        return b""

    def has(self, source: Source) -> bool:
        """Something of this service is there."""
        return source in self._begun

    def keep(self, members: frozenset[Source]) -> None:
        """What others have begun will not be completed."""
        self._begun = {source: begun for source, begun in self._begun.items() if source in members}

    def clear(self) -> None:
        self._begun.clear()

    def facts(self) -> list[tuple[Source, Txid, int]]:
        """What is there, for comparisons."""
        return sorted((source, begun.txid, len(begun.data)) for source, begun in self._begun.items())


class Outgoing:
    """This service's long transactions, one after another."""

    def __init__(self, part_bytes: int = PART_BYTES) -> None:
        self.part_bytes = part_bytes
        self._waiting: dict[Txid, bytes] = {}
        """The first one is under way."""
        self._next = 0
        """Number of the part that is sent next."""

    def __contains__(self, txid: Txid) -> bool:
        """It is not complete in the order."""
        return txid in self._waiting

    def add(self, txid: Txid, data: bytes) -> list[Part]:
        """One more; what is to be sent now. One that is there already changes nothing."""
        if txid in self._waiting:
            return []
        self._waiting[txid] = data
        return self._begin() if len(self._waiting) == 1 else []

    def came(self, part: Part) -> list[Part]:
        """A part of this service has come back, and belongs to what is whole then; what is to be sent now."""
        data = self._waiting.get(part.txid)
        if data is None:
            return []
        if part.is_last:
            del self._waiting[part.txid]
            return self._begin()
        return self._more(1)

    def again(self) -> list[Part]:
        """What has come back of the one under way is dropped everywhere: from the beginning."""
        return self._begin()

    def clear(self) -> None:
        self._waiting.clear()

    def _begin(self) -> list[Part]:
        self._next = 0
        return self._more(UNDER_WAY_MAX)

    def _more(self, count: int) -> list[Part]:
        """The next parts of the one that is under way."""
        if not self._waiting:
            return []
        txid, data = next(iter(self._waiting.items()))
        size = self.part_bytes
        last = (len(data) - 1) // size
        numbers = range(self._next, min(self._next + count, last + 1))
        self._next += len(numbers)
        return [Part(txid, number, number == last, data[number * size : (number + 1) * size]) for number in numbers]
