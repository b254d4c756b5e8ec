"""What really happened, as the simulator saw it: kept apart from the engines, and the only thing checkers look at.

Instances follow one another (a member is removed, a station let in) or begin anew (the OPEN agreement): a *lineage* is one
opening and all that follows from it. The streams and the order run through a lineage. One station's part in it, from its start to
its end, is a *stay*. What is delivered has a *place*, (clock, src, index), which means the same at every station; clocks start at
instance << 32, so that no two lineages share a place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from zenjun.proto import wire
from zenjun.proto.wire import Kind

from . import frames

ORDERED, PREACK, ACK = 0, 1, 2
LEVEL_NAMES = ("ordered", "preack", "ack")
VIEW: Final = int(wire.MessageType.VIEW)
AT_ONCE: Final = 2**64 - 1
"""Position of a view event with nothing before it: reached at every level."""
LAST: Final = 1 << 62
"""Above every sequence number."""

Place: TypeAlias = tuple[int, int, int]
"""(clock, src, index)."""
Life: TypeAlias = tuple[int, int]
"""(station, incarnation)."""
Number: TypeAlias = tuple[int, int, bool, int]
"""(incarnation, client, order-preserving?, k): the k-th message of that sort that a daemon has taken of a program in a life."""


@dataclass(slots=True, eq=False)
class Message:
    """What one program handed to its station, and when the core took it."""

    station: int
    client: int
    serial: int
    """Per (station, client), from 0."""
    group: int
    type: int
    need_ack: bool
    data: bytes
    op: bool = False
    """FIFO order: delivered on acceptance."""
    life: int = 0
    """Incarnation of the station when its core took it whole; 0: not yet."""
    number: int = -1
    """Which of its sort (life, client, op) it is, from 0."""
    after_ordered: Place = (0, 0, 0)
    """The last that its station had delivered when the core took it."""
    after_preack: Place = (0, 0, 0)
    """The same at level preack."""

    def name(self) -> str:
        sort = "op" if self.op else ""
        return f"s{self.station + 1}.{self.life}/c{self.client}{sort}#{self.number}({len(self.data)} B)"


@dataclass(slots=True, init=False)  # with its own __init__, and not frozen: the generated ones take several times as long
class Delivery:
    """One message, or view event, as a station handed it out; ``data`` is its content, empty for ``op`` 2: it came with 1. Not to
    be changed."""

    src: int
    clock: int
    position: int
    index: int
    group: int
    client: int
    type: int
    data: bytes
    op: int
    place: Place = field(init=False)

    def __init__(
        self, src: int, clock: int, position: int, index: int, group: int, client: int, type: int, data: bytes, op: int = 0
    ) -> None:
        self.src = src
        self.clock = clock
        self.position = position
        self.index = index
        self.group = group
        self.client = client
        self.type = type
        self.data = data
        self.op = op
        self.place = (clock, src, index)

    def same(self, other: Delivery) -> bool:
        """Positions are each station's own."""
        return (
            self.data == other.data
            and self.clock == other.clock
            and (self.src, self.index, self.group, self.client, self.type, self.op)
            == (other.src, other.index, other.group, other.client, other.type, other.op)
        )

    def name(self) -> str:
        at = f"{self.clock >> 32}:{self.clock & 0xFFFFFFFF}.{self.src + 1}.{self.index}"
        if self.type == VIEW:
            return f"[{at}] view of instance {frames.view(self.data).instance}"
        op = f" op={self.op}" if self.op else ""
        return (
            f"[{at}] position={self.position} client={self.client} group={self.group:#x}{op} {len(self.data)} B"
            f" {self.data[:16].hex()}"
        )


@dataclass(slots=True, init=False)  # as Delivery
class PeerView:
    """What a core says about one stream: numbers with 64 bits, which are its own."""

    req: int
    base: int
    top: int
    min_al: int
    acked: int
    ordered: int
    incarnation: int
    member: bool
    closing: bool

    def __init__(
        self,
        req: int,
        base: int,
        top: int,
        min_al: int,
        acked: int,
        ordered: int,
        incarnation: int = 1,
        member: bool = True,
        closing: bool = False,
    ) -> None:
        self.req = req
        self.base = base
        self.top = top
        self.min_al = min_al
        self.acked = acked
        self.ordered = ordered
        self.incarnation = incarnation
        self.member = member
        self.closing = closing


class CoreView(ABC):
    """What checkers may ask a station's core; hand-made histories bring their own."""

    @abstractmethod
    def peer(self, station: int) -> PeerView: ...

    @abstractmethod
    def window_drops(self) -> int: ...

    @abstractmethod
    def memory_bytes(self) -> int: ...

    @abstractmethod
    def assembling_bytes(self) -> int: ...

    @abstractmethod
    def starves(self) -> int:
        """It waits for memory to deliver a message: for which time, from 1; 0: it does not."""
        ...

    @abstractmethod
    def core_clock(self) -> int: ...

    @abstractmethod
    def claim(self) -> tuple[int, int]:
        """How far its order has got at preack, for ever if its instance has ended: (hash of a view, PDUs after that one's event);
        (0, 0): it says nothing."""
        ...


@dataclass(slots=True, frozen=True)
class Vote:
    """A proposal as one station has broadcast it, and where that stands."""

    proposal: frames.Proposal
    instance: int
    clock: int
    seq: int


@dataclass(slots=True, eq=False)
class Stream:
    """What one life of a station has broadcast. Sequence numbers have 64 bits and count from ``first_seq``."""

    src: int
    incarnation: int
    first_seq: int
    since: tuple[int, int]
    """Place (clock, src) of the event that made it a member."""
    root: int = 0
    """The lineage."""
    seen: set[int] = field(default_factory=set)
    """Numbers sent so far. A vote that is repeated to a joiner may overtake what was queued before it."""
    cut: int | None = None
    """It was removed: what stands below belongs to the order."""
    cut_in: int = 0
    """The instance that began with that."""
    cut_at: tuple[int, int] = (0, 0)
    taken: dict[tuple[int, bool], list[Message]] = field(default_factory=dict)
    """(client, order-preserving?) → messages its core has taken, in order."""
    sent_ops: dict[int, list[tuple[int, Place]]] = field(default_factory=dict)
    """client → (seq, place) of each order-preserving message sent, in order."""
    counted: dict[tuple[int, bool], int] = field(default_factory=dict)
    """Messages of each sort that have been seen on the wire."""
    ack_sent: dict[Life, int] = field(default_factory=dict)
    """Largest A entry for each stream that this one has broadcast."""
    pack_sent: dict[Life, int] = field(default_factory=dict)
    votes: list[Vote] = field(default_factory=list)
    spoke: int = 0
    """Highest instance it has broadcast anything in."""

    def unwrap(self, seq: int) -> int:
        """64-bit number of a 32-bit (or another core's 64-bit) one; a life sends far fewer than 2**32 PDUs."""
        return self.first_seq + ((seq - self.first_seq) & 0xFFFFFFFF)

    def votes_for(self, instance: int) -> Iterable[Vote]:
        return (v for v in self.votes if v.instance == instance)


@dataclass(slots=True, eq=False)
class Instance:
    """One instance: its members, and what came before it."""

    number: int
    incarnations: tuple[int, ...]
    parent: Instance | None = None
    """None: begun by the OPEN agreement."""
    root: int = 0
    """Number of the instance that its lineage began with."""
    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    began_ns: int = 0
    place: tuple[int, int] | None = None
    """(clock, src) of the last PDU before its view event; None: not known yet."""
    hints: list[dict[int, int]] = field(default_factory=list)
    """How far the stations that carried the removal out had each removed stream (low 32 bits)."""
    hash: int = field(init=False)

    def __post_init__(self) -> None:
        self.root = self.parent.root if self.parent else self.number
        self.hash = wire.view_hash(self.number, self.incarnations)
        if self.parent is None:
            self.place = (self.number << 32, -1)

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(s for s, incarnation in enumerate(self.incarnations) if incarnation)

    def has(self, station: int, incarnation: int) -> bool:
        return bool(incarnation) and self.incarnations[station] == incarnation


@dataclass(slots=True, eq=False)
class Stay:
    """One station in one lineage."""

    station: int
    life: int
    instance: Instance
    """The one it is in now, or was in last."""
    core: CoreView
    joined: bool = False
    """Let in by the members of a living instance."""
    first: Instance = field(init=False)
    """The instance it came into."""
    records: list[Delivery] = field(default_factory=list)
    """Delivered at level ordered, view events among them."""
    numbers: list[Number | None] = field(default_factory=list)
    """Of each record; None: a view event."""
    handed: dict[tuple[Life, int], list[int]] = field(default_factory=dict)
    """(stream, client) → numbers of the order-preserving messages handed out on acceptance."""
    positions: list[int] = field(default_factory=lambda: [0, 0, 0])
    """PDUs of the order that have reached each level, counted from the start of the stay."""
    released: list[int] = field(default_factory=lambda: [0, 0, 0])
    """Records a client of each level has been given: those whose position has been passed."""
    changes: int = 0
    """Instances agreed since its start."""
    fenced: bool = False
    ended: bool = False
    """The station has left, though it may still deliver and release what all who go on have."""
    expelled: bool = False
    crashed: bool = False
    began_ns: int = 0

    def __post_init__(self) -> None:
        self.first = self.instance

    @property
    def lives(self) -> Life:
        return (self.station, self.life)

    @property
    def start(self) -> tuple[int, int]:
        """(clock, src): what it delivers stands behind this."""
        return self.first.place or (self.first.number << 32, -1)

    def end(self, level: int) -> Place:
        """Place of the last record at this level, or of the start."""
        at = self.released[level]
        return self.records[at - 1].place if at else (*self.start, 0)

    def viewed(self, level: int) -> int:
        """Number of the last instance whose view event it has given out at this level."""
        return self._last_view(self.released[level])

    def viewed_now(self) -> int:
        """The same of what it has delivered."""
        return self._last_view(len(self.records))

    def _last_view(self, upto: int) -> int:
        for k in range(upto - 1, -1, -1):
            if self.records[k].type == VIEW:
                return frames.view(self.records[k].data).instance
        return self.first.number - self.joined


class Facts:
    """Everything about one run."""

    def __init__(
        self,
        stations: int,
        window: int,
        slots: int,
        first_seq: int,
        want_ack: bool = True,
        needed: int = 0,
        required: tuple[int, ...] = (),
        divided: tuple[int, ...] = (),
    ) -> None:
        """needed: stations a quorum takes (0: more than half); required: those (0..n-1) it must hold; divided: stations (0..n-1)
        that are configured otherwise, so that they may be in an instance by themselves, and in none with others."""
        self.stations = stations
        self.window = window
        self.slots = slots
        self.first_seq = first_seq
        self.want_ack = want_ack
        """Somebody waits for level ack; without, cores may let that position jump ahead to keep their log short."""
        self.needed = needed or stations // 2 + 1
        self.required = frozenset(required)
        self.divided = frozenset(divided)
        self.instances: dict[int, Instance] = {}
        self.streams: dict[Life, Stream] = {}
        self.twice: set[Life] = set()
        """Lives that have sent something in one lineage and are in another."""
        self.orders: dict[int, list[tuple[int, int, int]]] = {}
        """By lineage: (clock, src, seq) of every PDU that belongs to its order, in that order."""
        self.sent: dict[tuple[int, int], tuple[int, int, int]] = {}
        """(clock, src) of every sequenced PDU sent → (incarnation, seq, instance it was sent in)."""
        self.contents: dict[Place, Number] = {}
        """Which message stands at a place."""
        self.wanted: set[tuple[int, Number]] = set()
        """(src, number) of the messages somebody wants level ack of."""
        self.stays: list[Stay | None] = [None] * stations
        """The stay each station is in now."""
        self.past: list[Stay] = []
        """Those that have ended."""
        self.disk: list[tuple[int, int]] = [(0, 0)] * stations
        """(incarnation, instance) each station has made durable."""
        self.life: list[int] = [0] * stations
        """Incarnation of each station's present daemon; 0: down."""
        self.running_since: list[int] = [0] * stations
        """When each station was switched on, or went on after a pause."""
        self.blocked_since: list[int | None] = [None] * stations
        """Since when each station says that it has no quorum."""
        self.now_ns = 0
        """Virtual time, of the last event that checkers are told of."""
        self.linked_since: dict[tuple[int, int], int] = {}
        """(from, to): since when nothing but bad luck has kept frames from getting through; in the future while a fault lasts."""
        self.hurt_ns: dict[tuple[int, int], int] = {}
        """(from, to): when the last fault of that link began, or ended at once."""
        self.expels: list[int] = []
        """When an operator has asked for some station's removal, and was not refused."""
        self.lives: list[set[int]] = [set() for _ in range(stations)]
        """Incarnations that each station has made durable."""
        self.absent: set[int] = set()
        """Stations that stay down for the rest of the run."""
        self.starved = -1
        """The one station that is not well, in a run where nothing else is wrong."""
        self.starving_ns = 0
        """A station may wait for memory for so long; 0: it is not looked at."""
        self.fences: list[tuple[int, int]] = []
        """(station, position) of each digest alarm."""

    # ---- reads
    def changed_ns(self, link: tuple[int, int]) -> int:
        """When a fault of that link began or ended last."""
        since = self.linked_since.get(link, 0)
        return since if since <= self.now_ns else self.hurt_ns.get(link, 0)

    def quorum(self, stations: Iterable[int]) -> bool:
        there = set(stations)
        if there & self.divided:
            return there <= self.divided
        return len(there) >= self.needed and there >= self.required

    def all_stays(self) -> Iterable[Stay]:
        yield from self.past
        yield from (s for s in self.stays if s is not None)

    def doomed(self, stay: Stay) -> bool:
        """The others have gone on without it, whether it knows or not."""
        stream = self.streams.get(stay.lives)
        return stream is not None and stream.cut is not None

    def order(self, stay: Stay) -> list[tuple[int, int, int]]:
        """That of the stay's lineage."""
        return self.orders.setdefault(stay.first.root, [])

    def offset(self, stay: Stay, place: tuple[int, int]) -> int:
        """PDUs of the stay's lineage up to this place."""
        return bisect_right(self.order(stay), (*place, LAST))

    def pdu_at(self, stay: Stay, position: int) -> tuple[int, int, int] | None:
        """The PDU that a position of this stay means."""
        order, at = self.order(stay), self.offset(stay, stay.start) + position
        return order[at] if at < len(order) else None

    def after(self, stay: Stay) -> int:
        """PDUs that belong behind the start of the stay."""
        return len(self.order(stay)) - self.offset(stay, stay.start)

    # ---- notes
    def note_opened(self, number: int, incarnations: tuple[int, ...], now: int) -> Instance:
        """A station has started in an instance; if nobody was in it before, it begins by that."""
        instance = self.instances.get(number)
        if instance is None:
            instance = self.instances[number] = Instance(number, incarnations, began_ns=now)
            self._members(instance)
        return instance

    def note_changed(self, parent: Instance, number: int, incarnations: tuple[int, ...], now: int) -> Instance:
        """A station has gone from ``parent`` to the next."""
        instance = self.instances.get(number)
        if instance is None:
            pairs = list(enumerate(zip(parent.incarnations, incarnations, strict=True)))
            joined = tuple(s for s, (old, new) in pairs if new and new != old)
            left = tuple(s for s, (old, new) in pairs if old and new != old)
            instance = self.instances[number] = Instance(number, incarnations, parent, joined=joined, left=left, began_ns=now)
            self._members(instance)
        return instance

    def _members(self, instance: Instance) -> None:
        for s in instance.members:
            old = self.streams.get((s, instance.incarnations[s]))
            # Who was to be in an instance and has never started it may be in a later one with the same life.
            if old is None or (old.root < instance.root and not old.spoke and not old.taken):
                self._begin_stream(s, instance)

    def _begin_stream(self, station: int, instance: Instance) -> None:
        since = instance.place or (instance.number << 32, -1)
        key = (station, instance.incarnations[station])
        self.streams[key] = Stream(*key, self.first_seq, since, instance.root)

    def note_entered(self, station: int, instance: Instance) -> None:
        """The station itself has started there."""
        key = (station, instance.incarnations[station])
        stream = self.streams.get(key)
        if stream is not None and stream.root != instance.root:
            if stream.spoke or stream.taken:
                self.twice.add(key)
            self._begin_stream(station, instance)

    def voters(self, instance: Instance) -> list[Life]:
        """Who had to vote for it."""
        assert instance.parent is not None
        return [
            (s, incarnation)
            for s, incarnation in enumerate(instance.parent.incarnations)
            if incarnation and instance.incarnations[s] == incarnation
        ]

    def decided(self, instance: Instance) -> list[tuple[frames.Proposal, tuple[int, int]]]:
        """(proposal, place of its last vote) of every proposal for the instance for which all voters have voted on the wire."""
        parent = instance.parent
        if parent is None:
            return []
        cast: dict[frames.Proposal, dict[Life, Vote]] = {}
        voters = self.voters(instance)
        for voter in voters:
            for vote in self.streams[voter].votes_for(parent.number):
                if vote.proposal.leads_to(parent.incarnations) == instance.incarnations:
                    cast.setdefault(vote.proposal, {}).setdefault(voter, vote)
        return [
            (proposal, max((vote.clock, src) for (src, _), vote in votes.items()))
            for proposal, votes in cast.items()
            if len(votes) == len(voters)
        ]

    def resolve(self, instance: Instance) -> bool:
        """Find where an instance begins, and where the streams of those who have left end, from the votes seen on the wire.
        False: not all of them have been seen yet (a station that is alone decides before its vote has left)."""
        if instance.place is not None:
            return True
        for proposal, place in self.decided(instance):
            hint = instance.hints[0] if instance.hints else {}
            if proposal.stop and any(hint.get(s, value) != value for s, value in proposal.changes):
                continue
            instance.place = place
            for s in instance.joined:
                self.streams[s, instance.incarnations[s]].since = place
            if proposal.stop and instance.parent is not None:
                for s, value in proposal.changes:
                    self._cut(self.streams[s, instance.parent.incarnations[s]], value, instance)
            return True
        return False

    def _cut(self, stream: Stream, value: int, instance: Instance) -> None:
        stream.cut = stream.unwrap(value)
        stream.cut_in = instance.number
        stream.cut_at = instance.place or (0, 0)
        order = self.orders.setdefault(stream.root, [])
        first = bisect_left(order, (stream.since[0], -2, 0))
        order[first:] = [
            p
            for p in order[first:]
            if not (p[1] == stream.src and p[2] >= stream.cut and self.sent[p[:2]][0] == stream.incarnation)
        ]

    def note_frame(self, f: frames.Frame) -> bool:
        """A frame has been broadcast, by its source or relayed. True: a sequenced PDU that is new."""
        stream = self.streams.get((f.src - 1, f.incarnation))
        instance = self.instances.get(f.instance)
        if stream is None or instance is None or not instance.has(stream.src, f.incarnation):
            return False
        if f.kind in (Kind.OPEN, Kind.RCV):  # names an instance, without being of a stream: its vector says nothing
            return False
        if f.instance > stream.spoke:
            stream.spoke = f.instance
        fresh = False
        if f.kind in wire.SEQUENCED:
            seq = stream.unwrap(f.seq)
            fresh = seq not in stream.seen
            if fresh:
                stream.seen.add(seq)
                self._note_pdu(stream, f, seq)
        self._note_acks(stream.ack_sent, f.ack, instance)
        if f.pack:
            self._note_acks(stream.pack_sent, f.pack, instance)
        return fresh

    def _note_acks(self, said: dict[Life, int], vector: tuple[int, ...], instance: Instance) -> None:
        streams, first = self.streams, self.first_seq
        for key, value in zip(enumerate(instance.incarnations), vector):  # noqa: B905  # a vector may be shorter: it has none
            if key in streams:
                wide = first + ((value - first) & 0xFFFFFFFF)
                if wide > said.get(key, first):
                    said[key] = wide

    def _note_pdu(self, stream: Stream, f: frames.Frame, seq: int) -> None:
        self.sent[f.clock, stream.src] = (stream.incarnation, seq, f.instance)
        if stream.cut is None or seq < stream.cut:
            insort(self.orders.setdefault(stream.root, []), (f.clock, stream.src, seq))
        if f.kind == Kind.DATA:
            for m in frames.messages(f):
                if not m.whole:
                    continue
                sort = (m.client, m.op)
                k = stream.counted.get(sort, 0)
                stream.counted[sort] = k + 1
                place = (f.clock, stream.src, m.index)
                self.contents[place] = (stream.incarnation, m.client, m.op, k)
                if m.op:
                    stream.sent_ops.setdefault(m.client, []).append((seq, place))
        elif f.kind in wire.PROPOSALS:
            proposal = frames.proposal(f)
            stream.votes.append(Vote(proposal, f.instance, f.clock, seq))
            if proposal.stop:  # who votes for an end of a stream has all of it up to there, and says so
                before = self.instances[f.instance].incarnations
                for s, value in proposal.changes:
                    gone = self.streams.get((s, before[s]))
                    if gone is not None:
                        key = (s, before[s])
                        stream.ack_sent[key] = max(stream.ack_sent.get(key, 0), gone.unwrap(value))

    def note_taken(self, message: Message) -> None:
        """A core has taken a message whole, in the life its station is in."""
        stay = self.stays[message.station]
        assert stay is not None
        message.life = stay.life
        message.after_ordered = stay.records[-1].place if stay.records else (*stay.start, 0)
        message.after_preack = stay.end(PREACK)
        mine = self.streams[stay.lives].taken.setdefault((message.client, message.op), [])
        message.number = len(mine)
        mine.append(message)
        if message.need_ack:
            self.wanted.add((message.station, (message.life, message.client, message.op, message.number)))

    def message_at(self, src: int, number: Number | None) -> Message | None:
        """What the source's daemon took under this number."""
        if number is None:
            return None
        incarnation, client, op, k = number
        stream = self.streams.get((src, incarnation))
        taken = stream.taken.get((client, op), []) if stream else []
        return taken[k] if k < len(taken) else None
