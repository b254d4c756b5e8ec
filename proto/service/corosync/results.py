"""Results of corosync's libraries, what the ring tells the other parts, and the effects that all of them return."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from ..base import Effect
from .messages import Mcast, Process, Reason, Votes, Word


class Code(IntEnum):
    """``cs_error_t``, as far as these machines and their host answer with it."""

    OK = 1
    TRY_AGAIN = 6
    INVALID_PARAM = 7
    NO_MEMORY = 8
    BAD_HANDLE = 9
    BUSY = 10
    ACCESS = 11
    NOT_EXIST = 12
    NAME_TOO_LONG = 13
    EXIST = 14
    INTERRUPT = 16
    NAME_NOT_FOUND = 17
    NO_RESOURCES = 18
    NOT_SUPPORTED = 19
    NO_SECTIONS = 27


class RingId(NamedTuple):
    """Of a ring: its lowest node id, and a number that only rises at each of its nodes. No other ring has it."""

    node: int
    seq: int
    """How many rings there were, times ``ring.LIVES``, plus the life of the lowest node."""


class Address(NamedTuple):
    """A process in a list of a change. Sorts by node, then by pid."""

    node: int
    pid: int
    reason: Reason = Reason.NONE


# ---- what the ring tells the other parts


class Members(NamedTuple):
    """The processes of a group are others from here on: ``members`` is the list with the change."""

    group: bytes
    members: tuple[Address, ...]
    left: tuple[Address, ...]
    joined: tuple[Address, ...]


class Meeting(NamedTuple):
    """What nodes have said of quorum in the round that makes a ring."""

    before: dict[int, Word]
    """The nodes of the ring of this order, as of the round's place; empty: there is none."""
    since: tuple[Votes, ...]
    """What had its place in that ring since the round's."""
    alone: dict[int, Word]
    """Those who are let in."""


class Changed(NamedTuple):
    """A ring begins here. Its groups' changes have been told before."""

    ring: RingId
    members: tuple[int, ...]
    """Node ids, sorted, as the two lists behind it."""
    joined: tuple[int, ...]
    left: tuple[int, ...]
    meeting: Meeting | None = None
    """None: nodes have only left."""


class Hearer(Protocol):
    """Who hears at once what happens in the ring. What it returns is carried out at that point."""

    def on_members(self, change: Members) -> list[Effect]: ...

    def on_delivered(self, node: int, message: Mcast) -> list[Effect]:
        """A program's message has its place here."""
        ...

    def on_no_room(self, process: Process) -> list[Effect]:
        """The join of a local process is refused: its group is full."""
        ...

    def on_votes(self, votes: Votes) -> list[Effect]:
        """A change of votes has its place here."""
        ...

    def on_changed(self, changed: Changed, changes: list[Effect]) -> list[Effect]:
        """A ring begins. changes: what ``on_members`` has returned for it; it is carried out with what this returns only."""
        ...

    def word(self) -> Word:
        """What this node says of quorum, as of all that it has heard."""
        ...


# ---- what the host does


@dataclass(frozen=True, slots=True)
class Kept(Effect):
    """In the place of a ``Store``: the numbers of the ring that begins are durable already."""


@dataclass(frozen=True, slots=True)
class Connect(Effect):
    """Connect to zenjund and join the group, level *preack*; ``on_connected`` says that the connection stands, ``on_lost`` that
    there is none."""


@dataclass(frozen=True, slots=True)
class Disconnect(Effect):
    """Close the connection to zenjund, if there is one; what it has still brought is not passed in."""


@dataclass(frozen=True, slots=True)
class Apart(Effect):
    """Another nodelist: these stations are not in the ring. For the journal, at both sides."""

    stations: tuple[int, ...]
    here: bool
    """This node is one of them, and stays alone."""


@dataclass(frozen=True, slots=True)
class Reread(Effect):
    """RELOAD: read the configuration again."""


@dataclass(frozen=True, slots=True)
class Stop(Effect):
    """End the process, not to be started again."""

    reason: str


# ---- what programs hear; ``handle`` is the number that the host has given to a connection


@dataclass(frozen=True, slots=True)
class Answer(Effect):
    """Result of the handle's request."""

    handle: int
    code: Code


@dataclass(frozen=True, slots=True)
class Confchg(Effect):
    """libcpg: the members of the handle's group."""

    handle: int
    group: bytes
    members: tuple[Address, ...]
    left: tuple[Address, ...]
    joined: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Totem(Effect):
    """libcpg: the ring."""

    handle: int
    ring: RingId
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Deliver(Effect):
    """libcpg: a message, or a part of one."""

    handle: int
    node: int
    message: Mcast


@dataclass(frozen=True, slots=True)
class Nodelist(Effect):
    """libquorum with model V1: the ring."""

    handle: int
    ring: RingId
    members: tuple[int, ...]
    joined: tuple[int, ...]
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Quorum(Effect):
    """libquorum: whether the ring has quorum. Model V0 has the ring's number only."""

    handle: int
    quorate: bool
    ring: RingId
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VotesNodelist(Effect):
    """libvotequorum: the ring."""

    handle: int
    ring: RingId
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VotesQuorum(Effect):
    """libvotequorum: whether the ring has quorum, and which known nodes are in it."""

    handle: int
    quorate: bool
    nodes: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True)
class VotesExpected(Effect):
    """libvotequorum: expected votes have been set."""

    handle: int
    expected: int
