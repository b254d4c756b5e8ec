"""What the engine asks its driver to do: frozen, printable, applied by the driver in the order given.

Frames of the data path do not appear here: they wait in the core's transmit queue, which the driver drains after the effects.
``Persist`` is a barrier: nothing after it, and nothing in the transmit queue, may leave before it is durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from .openpdu import Claim

NOTICE_GAP_NS: Final = 10_000_000_000
"""The same notice is not repeated within this time."""


@dataclass(frozen=True, slots=True)
class Persist:
    """Make incarnation and highest instance number durable (write, fsync, rename, fsync of the folder)."""

    incarnation: int
    instance: int


@dataclass(frozen=True, slots=True)
class Send:
    """Broadcast one PDU that the core does not send by itself: OPEN, RCV, or a vote repeated to a joiner."""

    pdu: bytes


@dataclass(frozen=True, slots=True)
class Opened:
    """This station has started in an instance, after the OPEN agreement (``joined`` False) or because the members of a running
    one have admitted it (True). The core delivers from now on. ``incarnations[i]`` is station i + 1's, 0: no member.

    Messages of the former instance that were delivered at level *ordered* and that the core's positions have not released by
    now will never reach a higher level: the driver drops them there.
    """

    instance: int
    incarnations: tuple[int, ...]
    frame_max: int
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Changed:
    """The members have agreed on the next instance: stations have been removed (``left``) or admitted (``joined``), numbers 1..n.

    Comes when it is agreed. Data continues meanwhile. The view event comes as a message of type VIEW at its place in the order,
    which may be later.
    """

    instance: int
    incarnations: tuple[int, ...]
    joined: tuple[int, ...]
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """The instance has ended for this station (``reason``), which takes a new incarnation and tries to join again.

    ``expelled``: the others continue without it. What was delivered at level *ordered* and not released at *preack* may be lost
    at the others. Otherwise (no quorum for too long, or the instance could not continue) nothing is released for now, but the
    driver keeps the groups and what waits for a level: before ``Opened`` the core may deliver, and its positions release, what
    any station of the next instance had released at preack.
    """

    instance: int
    reason: str
    station: int
    expelled: bool = False


@dataclass(frozen=True, slots=True)
class Blocked:
    """The stations that delivery waits for: (station, reason) pairs. In an instance that has no quorum without them nothing is
    sent or delivered until they are heard again (``quorum`` False). With quorum they are about to be removed or admitted, and
    only what follows their position in the order waits. Reason: ``silent``, ``deaf`` (not receiving), ``left``, ``restarted``,
    ``expelled`` (by an operator), ``told`` (reported by another station), ``joining`` (being admitted) or ``never seen``.

    Comes when the set or ``quorum`` changes; the empty set means unblocked. In no instance: the stations that are missing.
    """

    stations: tuple[tuple[int, str], ...]
    quorum: bool = True


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


@dataclass(frozen=True, slots=True)
class Promise:
    """This station is about to say a proposal of this number under a configuration that is not decided: that is to be durable
    before (``changing.Changing.promise``). A barrier, as ``Persist`` is."""

    instance: int


@dataclass(frozen=True, slots=True)
class Accept:
    """All members of the proposal of this number have said it, under a configuration that is not decided: the mark is to be
    durable before the instance is opened (``changing.Changing.accept``). A barrier, as ``Persist`` is."""

    instance: int


@dataclass(frozen=True, slots=True)
class Told:
    """An OPEN of another station has come with a claim (``changing.Changing.hear``)."""

    station: int
    claim: Claim
    fingerprint: int = 0
    """Of its options, also of those that never change while a cluster runs."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """``Engine.core`` is another one from here on: the first instance of another configuration begins. The driver turns that one,
    and sets anew what it has set at the core itself."""


Effect: TypeAlias = (
    Persist | Send | Opened | Changed | Closed | Blocked | Fenced | Refused | Notice | Promise | Accept | Told | Replaced
)
