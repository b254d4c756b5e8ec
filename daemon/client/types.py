"""What programs get from a group: messages, views and events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

Level: TypeAlias = Literal["ordered", "preack", "ack"]
"""Level of receipt: the order is fixed · every station has it and its place is final · every station knows that."""

SendLevel: TypeAlias = Literal["sent", "ordered", "preack", "ack"] | None
"""What ``send`` waits for; ``None`` and ``"sent"``: only until it is queued for the daemon."""

LEVELS: Final[tuple[Level, ...]] = ("ordered", "preack", "ack")

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


@dataclass(frozen=True, slots=True)
class Event:
    """Something that concerns the whole cluster.

    name: ``open`` · ``blocked`` (delivery waits for ``stations``) · ``unblocked`` · ``reopened`` (a new instance; messages under
    way are undecided) · ``fenced`` (the order diverged; nothing more comes) · ``closing`` (the daemon stops).
    """

    name: str
    instance: int = 0
    stations: tuple[tuple[int, str], ...] = ()
    """``blocked``: (station, reason) pairs; reason is ``silent``, ``deaf``, ``left`` or ``never seen``."""
    members: tuple[int, ...] = ()
    """``open``, ``reopened``: stations of the instance."""
    undecided: int = 0
    """``reopened``: how many of this connection's messages had not reached preack."""
    detail: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The event as the daemon sent it."""


Item: TypeAlias = Message | View | Event


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the daemon says about itself at the start of a connection."""

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
