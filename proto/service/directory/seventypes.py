"""What the machine of the seven steps works with: states of the own attempt, locks, and what it asks of its host."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from .entries import Place, Who
from .sevenwire import Asking, Message


class Age(NamedTuple):
    """Age of an attempt. Of two attempts the one with the lower age goes first (rule U3)."""

    counter: int
    owner: Who


class Standing(Enum):
    """States of the own attempt; figure 4.2 of the paper has numbers for some of them."""

    IDLE = "idle"
    """1: there is none."""
    WAITING = "waiting"
    """The own lock is another's; it asks when that one is free."""
    ASKING = "asking"
    """2: REQ is sent, some GRANT is missing."""
    LOCKED = "locked"
    """All locks are held; the host has been asked for the data."""
    SENT = "sent"
    """4: DATA is sent, some DONE is missing."""


@dataclass(slots=True)
class Lock:
    """The owner of this manager's lock.

    data: the owner's DATA, None: it has not arrived. DONE is sent when it is stored.
    """

    asking: Asking
    age: Age
    copying: bool
    data: Message | None = None


class Asked(NamedTuple):
    """A REQ that came while the lock was another's."""

    asking: Asking
    age: Age
    copying: bool


class Granted(NamedTuple):
    """A GRANT. active: the sender's copy is the group's. place: of its state."""

    active: bool
    place: Place


# ---- effects


class Send(NamedTuple):
    """Broadcast in ``zenjun.dir.seven``."""

    data: bytes


class Locked(NamedTuple):
    """The own attempt has all locks: call ``data``, or ``abandon``. For COPY first get the state of an active manager, if there
    is one, and call ``copied``.

    place: of the active managers' state; NOWHERE: none of them is active.
    """

    copying: bool
    place: Place


class Keep(NamedTuple):
    """Keep this beside the rows, on disk if ``durable``; then call ``kept``. After the end of all stations it counts as committed
    (rule U6)."""

    asking: Asking
    owner: Who
    base: Place
    place: Place
    copying: bool
    durable: bool
    data: bytes


class Commit(NamedTuple):
    """Carry this out: it is the next change of all managers' states. What ``Keep`` kept is over.

    copying: the owner is an active holder from here on.
    """

    place: Place
    owner: Who
    copying: bool
    data: bytes


class Finished(NamedTuple):
    """The own attempt is committed: answer its caller. durable: managers on whose disks it is, as far as it was asked for."""

    place: Place
    durable: frozenset[Who]


class Lost(NamedTuple):
    """The own attempt has ended with this membership. If its DATA was sent, it may be committed all the same."""

    sent: bool


class Wrong(NamedTuple):
    """This copy differs from the one that the others change: leave the group, and join it again."""

    text: str


Effect: TypeAlias = Send | Locked | Keep | Commit | Finished | Lost | Wrong


class Logged(NamedTuple):
    """What was committed while this copy was not the group's."""

    base: Place
    commit: Commit
