"""What programs get from a group: messages, views and events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from ...proto.wire import Order as Order
from ..clientwire import LEVELS as LEVELS
from ..clientwire import Level as Level

JoinLevel: TypeAlias = Level | Literal["accepted"]
"""Level of delivery to ask for; ``accepted`` is another word for ``ordered`` in a group of order ``op``."""

SendLevel: TypeAlias = Literal["sent", "ordered", "preack", "ack"] | None
"""What ``send`` waits for; ``None`` and ``"sent"``: only until it is queued for the daemon."""

Place: TypeAlias = tuple[int, int, int]
"""(clock, station, index): place in the total order, equal at all stations; places compare like the order itself."""


class Message(NamedTuple):
    """One message of a group. A named tuple, for it is made a million times a second; otherwise it would be a dataclass."""

    data: bytes
    group: str
    station: int
    """Station of the sender, 1..n."""
    client: int
    """Number its daemon gave to the sender."""
    place: Place
    own: bool
    """True if this connection sent it."""


class Member(NamedTuple):
    """One program in a group. (station, client) is unique."""

    station: int
    client: int
    name: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """Who orders the messages of a group of order ``token`` (docs/groups.md)."""

    hosts: tuple[int, ...]
    """Stations of the group that have a token, ascending; two or more are its meta-group."""
    super_host: int
    """The one of them that decides."""
    follows: Mapping[int, int]
    """Of each station of the group the token host whose order it follows; of a token host itself."""


@dataclass(frozen=True, slots=True)
class View:
    """Members of a group from its place in the order on: messages before it went to the former view, those after it to this
    one."""

    group: str
    members: tuple[Member, ...]
    joined: tuple[Member, ...]
    left: tuple[Member, ...]
    reason: str
    """``join``, ``leave``, ``death`` (of a program or station) or ``open`` (the cluster opened)."""
    place: Place
    instance: int


class Station(NamedTuple):
    """One station, as a view of the cluster or ``stations()`` shows it."""

    station: int
    """1..n."""
    incarnation: int
    """Its incarnation; 0: not known."""
    host: str
    """Name of its host, empty if not known."""
    member: bool = True
    peer_state: str | None = None
    """``stations()``: the state that our daemon keeps for it: ``A`` operational, ``AAS``, ``AS``, ``S`` stopped, ``SSA``, ``SA``
    (docs/status.md); None: not known."""
    state: str | None = None
    """``stations()``: ``self``, ``up``, ``silent``, ``deaf``, ``left``, ``fenced`` or ``never seen``; None: not known."""

    @property
    def letter(self) -> str | None:
        """``peer_state`` under its former name."""
        return self.peer_state


@dataclass(frozen=True, slots=True)
class Event:
    """An event that concerns the whole cluster. Events with more data have a class of their own; ``fenced`` (the order diverged;
    nothing more comes), ``closing`` (the daemon stops) and what a later daemon may send are plain.

    Events are among the messages where they arrived; ``view`` has its place in the order like a message.
    """

    name: str
    instance: int = 0
    stations: tuple[tuple[int, str], ...] = ()
    """``blocked``: (station, reason) pairs."""
    members: tuple[int, ...] = ()
    """``open``, ``reopened``, ``view``: stations of the instance."""
    undecided: int = 0
    """``reopened``, ``expelled``: how many of this connection's messages had not reached preack."""
    detail: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The event as the daemon sent it."""


@dataclass(frozen=True, slots=True)
class Opened(Event):
    """``open``: this station is in an instance for the first time since its daemon started."""

    joined: bool = False
    """True if the members of a running instance have admitted it."""


@dataclass(frozen=True, slots=True)
class Reopened(Event):
    """``reopened``: this station is in an instance again, after ``closed`` or ``expelled``. The daemon joins the groups again by
    itself; what was under way is undecided."""

    joined: bool = False
    """True if the members of a running instance have admitted it; False: the cluster was re-opened."""
    forgotten: int = 0
    """Messages that our level of delivery had held back and that will not come."""
    unsafe: bool = False
    """True if something was delivered at level ordered (or on acceptance) that may be unknown to the stations that have
    continued."""


@dataclass(frozen=True, slots=True)
class Closed(Event):
    """``closed``: the instance has ended for this station, which tries to get into the next one. Nothing is lost yet."""

    reason: str = ""
    station: int = 0
    """Whose doing it was, 0: nobody's."""


@dataclass(frozen=True, slots=True)
class Expelled(Event):
    """``expelled``: the others continue without this station, which tries to join again. Messages that were delivered here at
    level ordered only may be unknown to them, and own ones that had not reached preack are undecided."""

    reason: str = ""
    station: int = 0
    """Whose doing it was, 0: nobody's."""
    forgotten: int = 0
    unsafe: bool = False
    """As in ``Reopened``; what has happened so far."""


@dataclass(frozen=True, slots=True)
class Blocked(Event):
    """``blocked``: delivery waits for ``stations``. Reason: ``silent``, ``deaf`` (not receiving), ``left``, ``restarted``,
    ``expelled`` (by an operator), ``told`` (reported by another station), ``joining`` (being admitted) or ``never seen``."""

    quorum: bool = True
    """True: they are about to be removed, and only what has a later place waits. False: without them there is no quorum; nothing
    is sent or delivered until they are heard again."""


@dataclass(frozen=True, slots=True)
class Unblocked(Event):
    """``unblocked``: delivery waits for no station any more."""


@dataclass(frozen=True, slots=True)
class ClusterView(Event):
    """``view``: ``members`` are the stations of the cluster from its place in the order on, equal at all stations. Members of
    groups at stations that have left are gone from the same place on: the groups' views follow it."""

    present: tuple[Station, ...] = ()
    """The members, with incarnation and host."""
    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    """A station that has restarted may be in both."""
    place: Place = (0, 0, 0)
    """Compares with messages' places; its index is above theirs."""


Item: TypeAlias = Message | View | Event


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the daemon reports of itself at the start of a connection."""

    version: int
    station: int
    stations: int
    cluster: str
    client: int
    message_max: int
    """Bytes of the largest message."""
    queue_bytes_max: int
    """Bytes the daemon queues for this connection before it cuts it off."""
    instance: int
    """0: the cluster was not open when we connected."""
    mtu: int
    payload_max: int
    """Bytes of the largest message that travels in one frame."""
    medium: str = "switched"
    """``switched``, or ``bus``: then there is only level ack."""
    orders: tuple[str, ...] = ("total", "op")
    """Orders of groups that the daemon has."""
