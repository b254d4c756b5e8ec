"""What the engine wants done: frozen, printable, carried out by the driver in the order given.

Frames of the data path do not appear here: they wait in the core's transmit queue, which the driver drains after the effects.
``Persist`` is a barrier: nothing after it, and nothing in the transmit queue, may leave before it is durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Persist:
    """Make incarnation and highest instance number durable (write, fsync, rename, fsync of the folder)."""

    incarnation: int
    instance: int


@dataclass(frozen=True, slots=True)
class Send:
    """Broadcast one PDU that the engine built itself (OPEN)."""

    pdu: bytes


@dataclass(frozen=True, slots=True)
class Opened:
    """An instance has started; the core delivers from now on. ``incarnations[i]`` is station i + 1's.

    ``flushed``: so many PDUs of the order of the instance this process was in before, 0 if in none, have been delivered here and
    count as reached at every level, as at all others who come from that instance. The rest of it will never be delivered: what
    was handed out of it at level *ordered* is to be forgotten by the levels above.
    """

    instance: int
    incarnations: tuple[int, ...]
    frame_max: int
    flushed: int = 0


@dataclass(frozen=True, slots=True)
class Closed:
    """The instance has ended for this station (``reason``), which goes on with a new incarnation and takes part in opening.

    Nothing is released for now, but keep what waits for a level and the groups: before ``Opened`` the core delivers, and its
    positions release, what anybody who goes on had released at preack.
    """

    instance: int
    reason: str
    station: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """Delivery waits for these (station, reason) pairs; reason is ``silent``, ``deaf``, ``left`` or ``never seen``.

    Sent when the set changes; the empty set means unblocked. Before the first instance it says who is missing.
    """

    stations: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Fenced:
    """The order digest differs from ``station``'s at ``position``: nothing is delivered any more."""

    station: int
    position: int
    own: int
    theirs: int


@dataclass(frozen=True, slots=True)
class Refused:
    """This daemon must not run (its station number is in use, or its cluster options differ); ``message`` is for people."""

    message: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Worth a log line and a counter: ``kind`` is one word, ``message`` for people. The engine limits the rate of repeats."""

    kind: str
    message: str


Effect: TypeAlias = Persist | Send | Opened | Closed | Blocked | Fenced | Refused | Notice
