"""What goes into the core and what comes out of it: the enumerations of ``zj.h``, and records.

Stations are indices 0..n-1, as in C. Times are monotonic nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, IntFlag
from typing import NamedTuple, Protocol

from ._core import lib


class Status(IntFlag):
    """What ``step`` reports (``enum zj_status``)."""

    TX = lib.ZJ_S_TX
    DELIVER = lib.ZJ_S_DELIVER
    RELEASE = lib.ZJ_S_RELEASE
    CONTROL = lib.ZJ_S_CONTROL
    PENDING = lib.ZJ_S_PENDING
    ROOM = lib.ZJ_S_ROOM
    FENCED = lib.ZJ_S_FENCED


class Fault(IntFlag):
    """Deliberate defects for tests of the checkers (``enum zj_fault``)."""

    ARRIVAL_ORDER = lib.ZJ_FAULT_ARRIVAL_ORDER
    SKIP_GAP = lib.ZJ_FAULT_SKIP_GAP
    DUPLICATE = lib.ZJ_FAULT_DUPLICATE
    EARLY_PREACK = lib.ZJ_FAULT_EARLY_PREACK
    EARLY_ACK = lib.ZJ_FAULT_EARLY_ACK
    NO_CHECK = lib.ZJ_FAULT_NO_CHECK
    NO_WAIT = lib.ZJ_FAULT_NO_WAIT
    DEAF_NAK = lib.ZJ_FAULT_DEAF_NAK
    CHATTER = lib.ZJ_FAULT_CHATTER
    FREE_EARLY = lib.ZJ_FAULT_FREE_EARLY
    FLOOD = lib.ZJ_FAULT_FLOOD
    EARLY_PROMISE = lib.ZJ_FAULT_EARLY_PROMISE
    SWAP = lib.ZJ_FAULT_SWAP
    NO_FLUSH = lib.ZJ_FAULT_NO_FLUSH
    NO_CLOSE = lib.ZJ_FAULT_NO_CLOSE
    FUTURE = lib.ZJ_FAULT_FUTURE
    EAGER_VIEW = lib.ZJ_FAULT_EAGER_VIEW
    OLD_ACKS = lib.ZJ_FAULT_OLD_ACKS
    NO_WAIT_JOINER = lib.ZJ_FAULT_NO_WAIT_JOINER
    NO_PIN = lib.ZJ_FAULT_NO_PIN
    STRICT_ACCEPT = lib.ZJ_FAULT_STRICT_ACCEPT
    AL_LAST = lib.ZJ_FAULT_AL_LAST
    KEEP_LATER = lib.ZJ_FAULT_KEEP_LATER
    KEEP_LOST = lib.ZJ_FAULT_KEEP_LOST
    RESET_ONCE = lib.ZJ_FAULT_RESET_ONCE
    DELIVER_PREACK = lib.ZJ_FAULT_DELIVER_PREACK
    BLIND_REPEAT = lib.ZJ_FAULT_BLIND_REPEAT
    EARLY_REMOVAL = lib.ZJ_FAULT_EARLY_REMOVAL
    EAGER_JOINER = lib.ZJ_FAULT_EAGER_JOINER
    LATE_LEVELS = lib.ZJ_FAULT_LATE_LEVELS
    EARLY_BOUND = lib.ZJ_FAULT_EARLY_BOUND
    OLD_WORD = lib.ZJ_FAULT_OLD_WORD
    OLD_CLOCK = lib.ZJ_FAULT_OLD_CLOCK
    CROWDED = lib.ZJ_FAULT_CROWDED


class Medium(IntEnum):
    """How the segment orders frames (``enum zj_medium``)."""

    SWITCHED = lib.ZJ_SWITCHED
    BUS = lib.ZJ_BUS


class Phase(IntEnum):
    """The phase of a bus (``enum zj_phase``)."""

    RUN = lib.ZJ_P_RUN
    LOST = lib.ZJ_P_LOST
    RESET = lib.ZJ_P_RESET
    AGREED = lib.ZJ_P_AGREED


class Drop(IntEnum):
    """Why a frame was dropped (``enum zj_drop``)."""

    NONE = lib.ZJ_DROP_NONE
    SHORT = lib.ZJ_DROP_SHORT
    CLUSTER = lib.ZJ_DROP_CLUSTER
    VERSION = lib.ZJ_DROP_VERSION
    KIND = lib.ZJ_DROP_KIND
    STATIONS = lib.ZJ_DROP_STATIONS
    SOURCE = lib.ZJ_DROP_SOURCE
    OWN = lib.ZJ_DROP_OWN
    LENGTH = lib.ZJ_DROP_LENGTH
    CHECK = lib.ZJ_DROP_CHECK
    PAYLOAD = lib.ZJ_DROP_PAYLOAD
    CLOSED = lib.ZJ_DROP_CLOSED
    INSTANCE = lib.ZJ_DROP_INSTANCE
    INCARNATION = lib.ZJ_DROP_INCARNATION
    ACK = lib.ZJ_DROP_ACK
    WINDOW = lib.ZJ_DROP_WINDOW
    CLOCK = lib.ZJ_DROP_CLOCK
    CONTROL_FULL = lib.ZJ_DROP_CONTROL_FULL
    MEMBER = lib.ZJ_DROP_MEMBER
    REMOVED = lib.ZJ_DROP_REMOVED
    EPOCH = lib.ZJ_DROP_EPOCH
    RESET = lib.ZJ_DROP_RESET
    REPEATED = lib.ZJ_DROP_REPEATED


class Stage(IntEnum):
    """The stage at which a message is delivered (``enum zj_stage``)."""

    DELIVERED = lib.ZJ_DELIVERED
    """At its place in the total order."""
    ACCEPTED = lib.ZJ_ACCEPTED
    """On acceptance (ordering FIFO): its delivery. ``position`` has no meaning yet."""
    PLACED = lib.ZJ_PLACED
    """Again at its place in the total order, without data, so that its levels can be counted."""


class Message(NamedTuple):
    """A message at its place in the total order, which is (clock, src, index); or a view event (type VIEW, layout VIEW and n
    incarnations) at its own, right after the PDU at (clock, view_src)."""

    data: bytes
    clock: int
    position: int
    """Of its PDU since ``open`` or ``join``, from 0; it has reached a level once ``positions()`` of the level is larger. View
    event: of the last PDU before it, 2**64 - 1 if there is none."""
    group: int
    client: int
    index: int  # type: ignore[assignment]  # the place in the order is worth more than tuple.index
    src: int
    """Station index."""
    type: int
    """``wire.MessageType``."""
    stage: int = Stage.DELIVERED
    """A ``Stage`` number."""
    view_src: int = 0
    """Of a view event: station index."""


class Positions(NamedTuple):
    """How many PDUs of the order have reached each level."""

    ordered: int
    preack: int
    ack: int


class Control(NamedTuple):
    """A PDU for the engine: OPEN, RCV, a CONFIRM of a later instance, or one that does not belong to the instance."""

    pdu: bytes
    drop: int
    mac: bytes


class Peer(NamedTuple):
    """One station as seen here: ``struct zj_peer``."""

    heard_ns: int
    req: int
    top: int
    base: int
    min_al: int
    acked: int
    ordered: int
    clock: int
    ack_moved_ns: int
    incarnation: int
    free_buffers: int
    frame_max: int
    gaps: int
    mac: bytes
    left: bool
    fenced: bool
    member: bool
    closing: bool
    limit: int
    """closing: only PDUs below this number are accepted from it; otherwise 2**64 - 1."""
    state: int
    trans: int
    instance: int
    view: int


class Vote(NamedTuple):
    """A vote accepted from another station: ``struct zj_vote``."""

    src: int
    """Station index."""
    kind: int
    """``wire.Kind``: STOP, STOP_ACK or RCV_ACK."""
    instance: int
    """In which it was sent."""
    seq: int
    """64 bits, as ``Peer.req``."""
    clock: int
    pdu: bytes


class Start(Protocol):
    """Where a joiner starts in one stream: ``struct zj_start``."""

    @property
    def role(self) -> int:
        """0 no member, 1 voter, 2 joiner."""

    @property
    def incarnation(self) -> int: ...

    @property
    def seq(self) -> int:
        """role 1: of its vote, 32 bits as on the wire."""

    @property
    def clock(self) -> int:
        """role 1: of its vote."""


class Commit(NamedTuple):
    """A decided proposal: ``struct zj_commit``. Stations are indices, bit h of a bitmap is station index h."""

    instance: int
    view: int
    members: int
    joined: int
    place_clock: int
    place_src: int
    incarnations: tuple[int, ...]
    """Of all members, by index; 0: no member."""
    vote_seq: Mapping[int, int]
    """Of each voter, by index: ``Vote.seq`` of its vote."""
    frame_max: int = 0
    """Size of PDUs, bytes, that a joiner is assumed to take until it is heard; 0: what all members take now."""


class Fence(NamedTuple):
    """Which station (index) has another digest at which position."""

    station: int
    position: int
    own: int
    theirs: int
