"""What the machine of a database asks of its host, besides the effects of ``base``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..base import Effect, Source
from .messages import Txid
from .rows import Verdict


class Durability(Enum):
    """When a transaction's program gets the answer that it is committed."""

    MEMORY = "memory"
    MAJORITY = "majority-disk"
    ALL = "all-disk"


@dataclass(frozen=True, slots=True)
class Answer(Effect):
    """Report to the program what became of its transaction."""

    txid: Txid
    verdict: Verdict
    version: int


@dataclass(frozen=True, slots=True)
class Granted(Effect):
    """The lock is this program's; nothing is committed but by it until it ends. ``version``: the last one."""

    txid: Txid
    version: int


@dataclass(frozen=True, slots=True)
class Reached(Effect):
    """A barrier: a read may begin on this version, once it is as durable as is asked."""

    number: int
    version: int


@dataclass(frozen=True, slots=True)
class Give(Effect):
    """Send the state as it is now, rows and ``give()``, to this site."""

    to: Source


@dataclass(frozen=True, slots=True)
class Failed(Effect):
    """The copy here is given up; the site has to get another one."""

    reason: str
    is_damaged: bool = False
    """What it has is not right: nothing of it may be used for another one."""
