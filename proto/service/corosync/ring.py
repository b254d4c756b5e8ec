"""Which nodes belong together, as programs of corosync see it, and which processes each has.

A node is *alone*, a ring of one, or in the *ring of the order*: the members of the stand-ins' group who have let each other in.
An instance of zenjund is nothing to the ring but the life of a connection: where it ends, this node goes alone, and comes back by
a round. Rules Y1 to Y10 of docs/corosync.md.

Every input returns effects, in the order in which they must happen.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from ...errors import invariant
from ..base import Effect, Emit, Place, Source, Store
from .messages import (
    Kill,
    List,
    Mcast,
    Message,
    Process,
    ProcJoin,
    ProcLeave,
    Reason,
    Reload,
    Votes,
    decode,
    encode,
)
from .results import (
    Address,
    Apart,
    Changed,
    Connect,
    Disconnect,
    Hearer,
    Kept,
    Meeting,
    Members,
    Reread,
    RingId,
    Stop,
)

PAST_KEY: Final = b"ring"
"""Of what ``Store`` keeps: count and life, as far as they may have been used."""
COUNTS_AHEAD: Final = 64
LIVES_AHEAD: Final = 8
"""Numbers that are made durable before they are needed: who loses quorum does not wait for a disk."""
LIVES: Final = 1 << 16
_PAST: Final = struct.Struct("!QQ")
RETRY_NS: Final = 100_000_000
GREET_NS: Final = 2_000_000_000
"""A connection that has no welcome by then is begun anew: a busy zenjund needs more time than the next try comes after."""
Table: TypeAlias = dict[int, set[Process]]
"""Processes by node."""


class Phase(Enum):
    """What this node is to the group."""

    OUT = "out"
    """Not connected. Alone."""
    WAITING = "waiting"
    """Connected; its join has no place yet. Alone."""
    SYNCING = "syncing"
    """A member, in a round that may let it in. Alone, and its programs' requests wait."""
    APART = "apart"
    """A member that was not let in. Alone."""
    IN = "in"
    """In the ring of the order."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodelist: who this node is, and the node at each station."""

    node: int
    stations: dict[int, int]
    """Station 1..n to node id."""
    fingerprint: bytes
    """Equal at all nodes that have the same nodelist, ``messages.FINGERPRINT_BYTES`` long."""


@dataclass(slots=True)
class Round:
    """A meeting of all members, begun by a view."""

    place: Place
    members: frozenset[Source]
    lists: dict[Source, List] = field(default_factory=dict)
    since: list[tuple[Source, Message]] = field(default_factory=list)
    """What has had its place since, as far as it changes what the lists say."""

    @property
    def complete(self) -> bool:
        return self.lists.keys() == self.members


class UnderWay:
    """Own messages that have no place yet, in their order. A host that sends some by itself keeps them with its own."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()

    def append(self, message: bytes) -> None:
        self._messages.append(message)

    def came_back(self, message: bytes) -> bool:
        """The oldest one has its place. False, and nothing has happened: it is another."""
        if not self._messages or self._messages[0] != message:
            return False
        self._messages.popleft()
        return True

    def clear(self) -> None:
        self._messages.clear()

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._messages)


class Ring:
    """The ring at one node."""

    processes_max: int = 128
    """Of a process group, as in libcpg's lists. Where rings meet it may become more."""

    def __init__(
        self,
        nodes: Nodes,
        past: bytes,
        hearer: Hearer,
        *,
        alone_after_ns: int = 0,
        linger_ns: int = 0,
        under_way: UnderWay | None = None,
    ) -> None:
        """past: what ``Store`` kept last, empty: nothing. ValueError for anything else. linger_ns: for so long this node stays
        connected after it has gone alone without quorum: by then its programs have heard of it, and the others have not."""
        self.nodes, self.node = nodes, nodes.node
        self.alone_after_ns, self.linger_ns = alone_after_ns, linger_ns
        self.count, self.life = _unpack(past)
        """Of rings here so far, at least; and how often this node has been alone. A life ends where others may make rings with
        this node that it does not hear of: no two rings have the same count and the same life of the same node."""
        self._reserved = (self.count, self.life)
        """Durable: after a start nothing up to here is used again."""
        self.id = RingId(self.node, self._seq({self.node: self.life}))
        """Of a ring that is used only from ``start`` on."""
        self.table: Table = {self.node: set()}
        self.phase = Phase.OUT
        self.dropped: Counter[str] = Counter()
        self._hearer = hearer
        self._me: Source = (0, 0)
        self._lives: dict[int, int] = {}
        """Of the ring's nodes."""
        self._sources: dict[Source, int] = {}
        """The ring of the order: its members' nodes. Empty: alone."""
        self._round: Round | None = None
        self._pending = UnderWay() if under_way is None else under_way
        self._requests: deque[Message] = deque()
        """What local programs want, while it has to wait."""
        self._alone_at_ns: int | None = None
        self._retry_at_ns: int | None = None
        self._part_at_ns: int | None = None
        """Alone, and still connected."""

    # ---- what others may ask

    @property
    def members(self) -> tuple[int, ...]:
        """Node ids, sorted."""
        return tuple(sorted(self.table))

    def addresses(self, group: bytes) -> tuple[Address, ...]:
        """The members of a process group, sorted."""
        found = [Address(node, p.pid) for node, processes in self.table.items() for p in processes if p.group == group]
        return tuple(sorted(found))

    # ---- inputs

    def start(self, now_ns: int) -> list[Effect]:
        """The first input: a ring of one begins."""
        self._retry_at_ns = now_ns
        return self._make_alone(left=())

    def on_connected(self, source: Source) -> list[Effect]:
        """A connection to zenjund stands, and the join of the group has been sent. source: this node's member."""
        self.phase, self._me = Phase.WAITING, source
        self._retry_at_ns = None
        return []

    def on_lost(self, now_ns: int) -> list[Effect]:
        """There is no connection to zenjund, or its order has ended for this node: ``closed``, ``expelled``."""
        if self.phase is Phase.OUT and self._part_at_ns is None:
            self._retry_at_ns = now_ns + RETRY_NS
        return self._alone(now_ns)

    def on_blocked(self, now_ns: int, quorum: bool) -> list[Effect]:
        """zenjund says ``blocked``. A join that has no place yet waits there until there is quorum."""
        if quorum or self.phase in (Phase.OUT, Phase.WAITING):
            return []
        if self.alone_after_ns:
            if self._alone_at_ns is None:
                self._alone_at_ns = now_ns + self.alone_after_ns
            return []
        return self._alone(now_ns, self.linger_ns)

    def on_unblocked(self) -> list[Effect]:
        """zenjund says ``unblocked``."""
        self._alone_at_ns = None
        return []

    def on_fenced(self) -> list[Effect]:
        """The order here differs from another station's: nothing that was delivered can be trusted."""
        return [Disconnect(), Stop("fenced: the order at this station differs from another station's")]

    def next_deadline_ns(self) -> int | None:
        deadlines = [at for at in (self._alone_at_ns, self._retry_at_ns, self._part_at_ns) if at is not None]
        return min(deadlines, default=None)

    def on_timer(self, now_ns: int) -> list[Effect]:
        """Early or repeated calls are harmless."""
        if self._alone_at_ns is not None and now_ns >= self._alone_at_ns:
            return self._alone(now_ns, self.linger_ns)
        if self._part_at_ns is not None:
            return self._part(now_ns) if now_ns >= self._part_at_ns else []
        if self._retry_at_ns is not None and now_ns >= self._retry_at_ns:
            self._retry_at_ns = now_ns + GREET_NS
            return [Connect()]
        return []

    @property
    def wants_reserve(self) -> bool:
        """Half of what was reserved has been used: ``reserve`` at a time when nobody waits."""
        return not self._has_reserve(COUNTS_AHEAD // 2, LIVES_AHEAD // 2)

    def reserve(self, _now_ns: int = 0) -> list[Effect]:
        """Numbers for the next rings. A host that never does this waits for its disk when there are none left."""
        return [self._reserve(self.count + COUNTS_AHEAD, self.life + LIVES_AHEAD)] if self.wants_reserve else []

    def submit(self, message: Message) -> list[Effect]:
        """A local program, or this stand-in, says something to all nodes of the ring."""
        if self.phase is Phase.IN:
            return self._emit(message)
        if self.phase is Phase.SYNCING:
            self._requests.append(message)
            return []
        return self._apply(self.node, message)

    def on_view(self, place: Place, members: frozenset[Source]) -> list[Effect]:
        """The members of the group are others from here on."""
        if self.phase is Phase.OUT or self._me not in members:
            return []
        effects: list[Effect] = []
        gone = {source: node for source, node in self._sources.items() if source not in members}
        if gone:
            for source in gone:
                del self._sources[source]
            effects += self._make(self.count + 1, left=gone.values(), joined={})
        self._round = None
        if members != self._sources.keys():
            effects += self._begin_round(place, members)
        return effects

    def on_message(self, source: Source, data: bytes) -> list[Effect]:
        """A message of the group at its place. Never raises for what others sent."""
        if self.phase in (Phase.OUT, Phase.WAITING):
            return []
        message = decode(data)
        if source == self._me:
            self.came_back(data)
        if message is None:
            self.dropped["malformed"] += 1
            return []
        if isinstance(message, List):
            return self._listed(source, message)
        if self._round is not None and isinstance(message, ProcJoin | ProcLeave | Votes | Reload):
            self._round.since.append((source, message))
        if self.phase is not Phase.IN:
            return []
        if source not in self._sources:
            self.dropped["stranger"] += 1
            return []
        return self._apply(self._sources[source], message)

    # ---- messages

    def node_of(self, source: Source) -> int | None:
        """The node of a member of the ring of the order, as far as its messages take effect here."""
        return self._sources.get(source) if self.phase is Phase.IN else None

    def went(self, data: bytes) -> None:
        """The host emits a message by itself. Only in phase IN."""
        self._pending.append(data)

    def came_back(self, data: bytes) -> None:
        """The next message of this node has its place."""
        invariant(self._pending.came_back(data), "own messages come back in their order")

    @property
    def under_way(self) -> int:
        """Messages of this node without a place."""
        return len(self._pending)

    def is_own(self, source: Source) -> bool:
        return source == self._me

    def _emit(self, message: Message) -> list[Effect]:
        data = encode(message)
        self._pending.append(data)
        return [Emit(data)]

    def _apply(self, node: int, message: Message) -> list[Effect]:
        """What a node of the ring says takes effect."""
        if isinstance(message, ProcJoin):
            return self._join(node, message.process)
        if isinstance(message, ProcLeave):
            return self._leave(node, message.process, message.reason)
        if isinstance(message, Mcast):
            if message.process in self.table[node]:
                return self._hearer.on_delivered(node, message)
            self.dropped["not a member"] += 1
        elif isinstance(message, Votes):
            return self._hearer.on_votes(message)
        elif isinstance(message, Reload):
            return [Reread()]
        elif isinstance(message, Kill) and message.node == self.node:
            return [Disconnect(), Stop(f"killed by node {node}: " + message.reason.decode(errors="replace"))]
        return []

    def _join(self, node: int, process: Process) -> list[Effect]:
        if not self._enter(self.table, node, process):
            own = node == self.node and process not in self.table[node]
            return self._hearer.on_no_room(process) if own else []
        joined = (Address(node, process.pid, Reason.JOIN),)
        return self._hearer.on_members(Members(process.group, self.addresses(process.group), (), joined))

    def _enter(self, table: Table, node: int, process: Process) -> bool:
        """A process joins its group, if it is not there and there is room."""
        group = process.group
        if process in table[node] or sum(p.group == group for found in table.values() for p in found) >= self.processes_max:
            return False
        table[node].add(process)
        return True

    def _leave(self, node: int, process: Process, reason: Reason) -> list[Effect]:
        if process not in self.table[node]:
            return []
        self.table[node].discard(process)
        left = (Address(node, process.pid, reason),)
        return self._hearer.on_members(Members(process.group, self.addresses(process.group), left, ()))

    # ---- rounds

    def _begin_round(self, place: Place, members: frozenset[Source]) -> list[Effect]:
        """Members who are not in the ring want to be let in: everybody says what it has."""
        self._round = Round(place, members)
        if self.phase is not Phase.IN:
            self.phase = Phase.SYNCING
        return self._emit(self._list(place))

    def _list(self, place: Place) -> List:
        processes = tuple(sorted(self.table[self.node]))
        in_ring = self.phase is Phase.IN
        numbers = (self.count, self.life)
        return List(place, self.node, self.nodes.fingerprint, *numbers, in_ring, self._hearer.word(), processes)

    def _listed(self, source: Source, said: List) -> list[Effect]:
        current = self._round
        if current is None or said.round != current.place or source not in current.members:
            self.dropped["list"] += 1
            return []
        current.lists[source] = said
        return self._meet(current) if current.complete else []

    def _meet(self, current: Round) -> list[Effect]:
        """The round is over: a ring of all who have the same nodelist."""
        self._round = None
        accepted = self._accepted(current.lists)
        strangers = tuple(sorted({station for station, _ in current.members - accepted.keys()}))
        effects: list[Effect] = []
        if self._me not in accepted:
            self.phase = Phase.APART
            effects.append(Apart(strangers, here=True))
        else:
            if strangers:
                effects.append(Apart(strangers, here=False))
            effects += self._enter_ring(current, accepted)
        while self._requests:
            effects += self.submit(self._requests.popleft())
        return effects

    def _accepted(self, lists: dict[Source, List]) -> dict[Source, int]:
        """Who belongs together: those who have the ring's nodelist; if there is no ring yet, the most who have the same one."""
        count = Counter(said.fingerprint for said in lists.values())
        first = {lists[source].fingerprint: -source[0] for source in sorted(lists, reverse=True)}
        ring = [lists[source].fingerprint for source in sorted(lists) if lists[source].in_ring]
        chosen = ring[0] if ring else max(count, key=lambda mark: (count[mark], first[mark]))
        accepted: dict[Source, int] = {}
        for source in sorted(lists):
            said = lists[source]
            if said.fingerprint == chosen and said.node not in accepted.values() and self._is_node(chosen, source, said):
                accepted[source] = said.node
        return accepted

    def _is_node(self, mark: bytes, source: Source, said: List) -> bool:
        """A nodelist that this node has as well tells who is at the station."""
        return mark != self.nodes.fingerprint or self.nodes.stations.get(source[0]) == said.node

    def _enter_ring(self, current: Round, accepted: dict[Source, int]) -> list[Effect]:
        lists = current.lists
        before = {source: node for source, node in accepted.items() if lists[source].in_ring}
        table = self._agreed(current, before)
        table |= {node: set(lists[source].processes) for source, node in accepted.items() if source not in before}
        joined = {node: processes for node, processes in table.items() if node not in self.table}
        meeting = Meeting(
            before={node: lists[source].word for source, node in before.items()},
            since=tuple(m for source, m in current.since if source in before and isinstance(m, Votes)),
            alone={node: lists[source].word for source, node in accepted.items() if source not in before},
        )
        missed = self.phase is not Phase.IN and any(s in before and isinstance(m, Reload) for s, m in current.since)
        effects: list[Effect] = [Reread()] if missed else []
        self.phase, self._sources = Phase.IN, self._sources | accepted
        if not joined:
            return effects
        self._lives |= {node: lists[source].life for source, node in accepted.items()}
        count = max(lists[source].rings for source in accepted) + 1
        return effects + self._make(count, left=(), joined=joined, meeting=meeting)

    def _agreed(self, current: Round, before: dict[Source, int]) -> Table:
        """The processes of the ring that there was, here and now: as of the round's place, and what has happened since."""
        table: Table = {node: set(current.lists[source].processes) for source, node in before.items()}
        for source, message in current.since:
            if source in before and isinstance(message, ProcJoin):
                self._enter(table, before[source], message.process)
            elif source in before and isinstance(message, ProcLeave):
                table[before[source]].discard(message.process)
        return table

    # ---- rings

    def _seq(self, lives: dict[int, int]) -> int:
        return self.count * LIVES + lives[min(lives)] % LIVES

    def _keep(self) -> Effect:
        """Before anybody hears of the present numbers: they are reserved, or they and more become so now."""
        if self._has_reserve(0, 0):
            return Kept()
        return self._reserve(self.count + COUNTS_AHEAD, self.life + LIVES_AHEAD)

    def _has_reserve(self, counts: int, lives: int) -> bool:
        return self.count + counts <= self._reserved[0] and self.life + lives <= self._reserved[1]

    def _reserve(self, count: int, life: int) -> Effect:
        self._reserved = (count, life)
        return Store(PAST_KEY, _PAST.pack(count, life))

    def _make_alone(self, left: Collection[int]) -> list[Effect]:
        """The ring of one, in a new life."""
        self.life += 1
        self._lives = {self.node: self.life}
        return self._make(self.count + 1, left=left, joined={})

    def _make(self, count: int, *, left: Collection[int], joined: Table, meeting: Meeting | None = None) -> list[Effect]:
        """A ring begins. Its number is reserved before anybody hears of it; each group changes at most twice. The hearer says in
        which order programs are told."""
        gone = _by_group({node: self.table.pop(node) for node in left}, Reason.NODEDOWN)
        members = self.table.keys() | joined
        self.count, self._lives = count, {node: self._lives[node] for node in members}
        self.id = RingId(min(members), self._seq(self._lives))
        changes: list[Effect] = []
        for group in sorted(gone):
            changes += self._hearer.on_members(Members(group, self.addresses(group), gone[group], ()))
        self.table |= joined
        come = _by_group(joined, Reason.NODEUP)
        for group in sorted(come):
            changes += self._hearer.on_members(Members(group, self.addresses(group), (), come[group]))
        changed = Changed(self.id, self.members, tuple(sorted(joined)), tuple(sorted(left)), meeting)
        return [self._keep(), *self._hearer.on_changed(changed, changes)]

    def _part(self, now_ns: int) -> list[Effect]:
        """What is left of the connection of before it went alone ends, and it may come back."""
        self._part_at_ns, self._retry_at_ns = None, now_ns + RETRY_NS
        return [Disconnect()]

    def _alone(self, now_ns: int, linger_ns: int = 0) -> list[Effect]:
        """Go alone: the others see this node leave, at once or after a while, whatever follows; own messages under way reach
        local programs; the ring of one begins."""
        self._alone_at_ns = None
        if self.phase is Phase.OUT:
            return []
        phase, self.phase = self.phase, Phase.OUT
        effects: list[Effect] = []
        if linger_ns and phase is Phase.IN:
            self._part_at_ns, self._retry_at_ns = now_ns + linger_ns, None
        else:
            effects += self._part(now_ns)
        others = [node for node in self.members if node != self.node]
        if phase is Phase.IN:
            effects += self._deliver_own()
        if others:
            effects += self._make_alone(left=others)
        elif phase is not Phase.WAITING:  # a ring may begin elsewhere with this node's LIST
            self.life += 1
            effects.append(self._keep())
        self._pending.clear()
        self._sources.clear()
        self._round = None
        while self._requests:
            effects += self._apply(self.node, self._requests.popleft())
        return effects

    def _deliver_own(self) -> list[Effect]:
        found = [message for data in self._pending if (message := decode(data)) is not None]
        return [effect for message in found for effect in self._apply(self.node, message)]


def _unpack(past: bytes) -> tuple[int, int]:
    if past and len(past) != _PAST.size:
        raise ValueError(f"{len(past)} bytes are no past of a ring")
    count, life = _PAST.unpack(past) if past else (0, 0)
    return count, life


def _by_group(table: Table, reason: Reason) -> dict[bytes, tuple[Address, ...]]:
    found: dict[bytes, list[Address]] = {}
    for node in sorted(table):
        for process in sorted(table[node]):
            found.setdefault(process.group, []).append(Address(node, process.pid, reason))
    return {group: tuple(sorted(addresses)) for group, addresses in found.items()}
