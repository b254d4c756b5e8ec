"""Named process groups: the members of each, as a function of the delivered order alone.

Fed only by delivery of ``MessageType.GROUP`` messages and of view events, so every station has the same groups at the same place
in the order and its clients see the same views between the same messages. A member is (station, client, program name).

An instance that begins with the OPEN agreement begins with no groups: each daemon joins its clients again. Where a view admits
stations, the others continue with their groups, and each of them broadcasts (SNAPSHOT) which of its own clients are in which
group as of that view. A station that was admitted keeps group messages until it has the SNAPSHOT of every other member. Then it
starts with those and applies the kept messages: from that place on its tables are equal to the others'. If another view comes
first, the exchange starts again with that view, because the SNAPSHOT of a removed station is lost. Every station knows when the
exchange is complete, because all of it is in the order.

On the wire a group is the CRC-32 of its name (``wire.group_id``). A join whose name has the number of another group that has
members is refused, at every station alike, with the reason ``name-collision``; one that asks for another order of delivery than
the group's first member did, with ``order-mismatch``; one that would make a group more than there may be, with
``too-many-groups``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple, TypeAlias

from ..errors import UsageError, invariant
from ..wire import GROUP_NAME_MAX, ORDER_NAMES, STATIONS_MAX, Field, Layout, Ordering, group_id
from .base import Chunk, Effect, Emit, Place, Reply, Source, StateMachine, ViewEvent

NAME_BOUNDS: Final = f"a group's name is 1 to {GROUP_NAME_MAX} bytes of UTF-8"
PROGRAM_NAME_MAX: Final = 64
GROUPS_MAX: Final = 4_096
"""Groups that there may be at a time, unless the cluster has another number."""
LEVEL_MAX: Final = 2
"""Levels of delivery: 0 ordered, 1 preack, 2 ack."""
LEVEL_OF: Final = {Ordering.TOTAL: 2, Ordering.FIFO: 0, Ordering.ABCAST: 1, Ordering.TOKEN: 1}
"""The highest level of each order."""
SNAPSHOT_BYTES_MAX: Final = 1000
"""Size of one SNAPSHOT message; a longer SNAPSHOT is sent in parts. Smaller than the smallest message_max that can be
configured."""


class Operation(IntEnum):
    """What a group message does."""

    JOIN = 1
    LEAVE = 2
    SNAPSHOT = 3
    """Speaks for its station: its clients' memberships as of the view of an instance that has admitted stations."""


class GroupFlag(IntFlag):
    """Flags of a group message, and of an entry of a SNAPSHOT."""

    OPEN = 0x01
    """JOIN, entry: programs that are not in the group may send to it. Counts for who finds the group empty."""
    DEATH = 0x02
    """LEAVE: the program has gone without leaving."""
    OP = 0x04
    """JOIN, entry: the group's order is ``op``. Counts for who finds the group empty; others must ask for the same."""
    LAST = 0x08
    """SNAPSHOT: the last part."""
    ABCAST = 0x10
    """JOIN, entry: as OP, order ``abcast``."""
    TOKEN = 0x20
    """JOIN, entry: as OP, order ``token``."""
    MULTICAST = 0x40
    """SNAPSHOT, last part: its station takes part in the orders ``abcast`` and ``token``, which are in use."""


_ORDERING_FLAG: Final[dict[Ordering, int]] = {
    Ordering.TOTAL: 0,
    Ordering.FIFO: GroupFlag.OP,
    Ordering.ABCAST: GroupFlag.ABCAST,
    Ordering.TOKEN: GroupFlag.TOKEN,
}
_ORDERING_OF: Final = {flag: ordering for ordering, flag in _ORDERING_FLAG.items()}
_ORDERING_FLAGS: Final[int] = sum(_ORDERING_FLAG.values())
"""In a JOIN and in an entry of a SNAPSHOT at most one of these flags is set."""


CONTROL: Final = Layout(
    "group",
    (
        Field("operation", 1, "1 join, 2 leave"),
        Field("gflags", 1, "group flags"),
        Field("level", 1, "JOIN: level of delivery the member asks for; order op: 0"),
        Field("pad", 1, "0"),
        Field("group_length", 2, "bytes of the group's name"),
        Field("program_length", 2, "bytes of the program's name, after the group's; LEAVE: 0"),
    ),
    "A message of type GROUP, followed by the two names (UTF-8). It speaks for the client that the message header names.",
)

SNAPSHOT: Final = Layout(
    "group_snapshot",
    (
        Field("operation", 1, "3 snapshot"),
        Field("gflags", 1, "LAST or 0"),
        Field("entries", 2, "number of entries"),
        Field("instance", 4, "of the view that admitted stations"),
    ),
    "A message of type GROUP of a daemon (client 0), followed by `entries` entries.",
)

SNAPSHOT_ENTRY: Final = Layout(
    "group_snapshot_entry",
    (
        Field("client", 2, "of the station that sends this"),
        Field("level", 1, "of delivery"),
        Field("gflags", 1, "OPEN, OP: of the group"),
        Field("group_length", 1, "bytes of the group's name"),
        Field("program_length", 1, "bytes of the program's name, after the group's"),
    ),
    "One membership, followed by the two names (UTF-8).",
    repeat="entries",
)

SNAPSHOT_HEAD: Final = Layout(
    "group_snapshot_head",
    (
        Field("instance", 4, "at the place of the snapshot"),
        Field("sync_instance", 4, "of the last view that admitted stations, 0: none"),
        Field("awaited", 8, "bitmap: stations whose SNAPSHOT as of that view has not come"),
    ),
    "First chunk of a snapshot of all groups. It is handed from copy to copy and is no message of the daemons.",
)

SNAPSHOT_KEY: Final = Layout(
    "group_snapshot_key",
    (Field("station", 1, "1..n"), Field("part", 2, "from 0")),
    "Key of a chunk with memberships of a station's clients; the chunk is laid out as a SNAPSHOT.",
)

REFUSALS: Final = frozenset({"name-collision", "order-mismatch", "too-many-groups"})
"""Reasons why a join is refused at its place."""
Member: TypeAlias = tuple[int, int, str]
"""(station 1..n, client, program name)."""


class Request(NamedTuple):
    """A decoded JOIN or LEAVE."""

    operation: Operation
    group: str
    program: str
    level: int
    open: bool
    death: bool
    ordering: Ordering = Ordering.TOTAL


class SnapshotEntry(NamedTuple):
    """One membership in a SNAPSHOT; ``open`` and ``ordering`` are the group's."""

    client: int
    group: str
    program: str
    level: int
    open: bool
    ordering: Ordering


class SnapshotPart(NamedTuple):
    """A decoded part of a SNAPSHOT. ``last``: no further part comes."""

    instance: int
    last: bool
    entries: tuple[SnapshotEntry, ...]
    multicast: bool = False


@dataclass(frozen=True, slots=True)
class Change(Effect):
    """A view: ``members`` from this place in the order on, sorted. ``reason`` is ``join``, ``leave`` or ``death`` (of a program
    or of its station); or one of ``REFUSALS``: the join of the client that sent it is refused, nothing has changed, and
    ``members`` is empty."""

    group: str
    joined: tuple[Member, ...]
    left: tuple[Member, ...]
    members: tuple[Member, ...]
    reason: str
    ordering: Ordering = Ordering.TOTAL
    """The group's."""

    @property
    def refused(self) -> bool:
        return self.reason in REFUSALS


# ---- codec


def group_name(data: bytes) -> str | None:
    """The group's name that these bytes are, None if they are none."""
    if not 1 <= len(data) <= GROUP_NAME_MAX:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def encode(request: Request) -> bytes:
    """Bytes of a JOIN or LEAVE. UsageError if a name or the level is out of bounds, or for order op above level 0."""
    group, program = request.group.encode(), request.program.encode()
    if not 1 <= len(group) <= GROUP_NAME_MAX:
        raise UsageError(f"{NAME_BOUNDS}, not {len(group)}")
    if len(program) > PROGRAM_NAME_MAX:
        raise UsageError(f"a program's name is at most {PROGRAM_NAME_MAX} bytes of UTF-8, not {len(program)}")
    if not 0 <= request.level <= LEVEL_MAX:
        raise UsageError(f"level is {request.level}; allowed: 0..{LEVEL_MAX}")
    if request.ordering is Ordering.FIFO and request.level:
        raise UsageError("a group of order op delivers on acceptance: no level above that can be asked for")
    if request.level > LEVEL_OF[request.ordering]:
        raise UsageError(f"a group of order {ORDER_NAMES[request.ordering]} has no level {request.level}")
    flags = _flags(request.open, request.ordering) | (GroupFlag.DEATH if request.death else 0)
    return CONTROL.struct.pack(request.operation, flags, request.level, 0, len(group), len(program)) + group + program


def encode_snapshot(
    instance: int, entries: Iterable[SnapshotEntry], bytes_max: int = SNAPSHOT_BYTES_MAX, *, multicast: bool = False
) -> list[bytes]:
    """A SNAPSHOT in parts of at most ``bytes_max`` bytes (each has at least one entry, so a part may be larger than a very small
    limit); one part without entries if there are none. The names of the entries are within their bounds."""
    parts: list[list[bytes]] = [[]]
    size = SNAPSHOT.size
    for entry in entries:
        group, program = entry.group.encode(), entry.program.encode()
        head = SNAPSHOT_ENTRY.struct.pack(entry.client, entry.level, _flags(entry.open, entry.ordering), len(group), len(program))
        data = head + group + program
        if parts[-1] and size + len(data) > bytes_max:
            parts.append([])
            size = SNAPSHOT.size
        parts[-1].append(data)
        size += len(data)
    out = []
    for number, part in enumerate(parts, 1):
        last = GroupFlag.LAST | (GroupFlag.MULTICAST if multicast else 0) if number == len(parts) else 0
        out.append(SNAPSHOT.struct.pack(Operation.SNAPSHOT, last, len(part), instance) + b"".join(part))
    return out


def _flags(open: bool, ordering: Ordering) -> int:
    return (GroupFlag.OPEN if open else 0) | _ORDERING_FLAG[ordering]


def _ordering(flags: int, level: int) -> Ordering | None:
    """The ordering that the flags of a JOIN or of an entry name. None: two of them, or one that does not have the level."""
    ordering = _ORDERING_OF.get(flags & _ORDERING_FLAGS)
    return None if ordering is not None and level > LEVEL_OF[ordering] else ordering


def decode(data: bytes) -> Request | SnapshotPart | None:
    """The inverse of ``encode`` and of each part of ``encode_snapshot``, total: None for anything else."""
    try:
        if data[:1] == bytes([Operation.SNAPSHOT]):
            return _decode_snapshot(data)
        return _decode_request(data)
    except UnicodeDecodeError:
        return None


def _decode_request(data: bytes) -> Request | None:
    if len(data) < CONTROL.size:
        return None
    operation, flags, level, pad, group_length, program_length = CONTROL.struct.unpack_from(data)
    end = CONTROL.size + group_length
    if not 1 <= group_length <= GROUP_NAME_MAX or program_length > PROGRAM_NAME_MAX or len(data) != end + program_length:
        return None
    if operation not in (Operation.JOIN, Operation.LEAVE) or level > LEVEL_MAX or pad:
        return None
    allowed = int(GroupFlag.OPEN | _ORDERING_FLAGS if operation == Operation.JOIN else GroupFlag.DEATH)
    ordering = _ordering(flags, level)
    if flags & ~allowed or ordering is None:  # ~ of a plain number: of a flag it knows only the declared bits
        return None
    if operation == Operation.LEAVE and (level or program_length):
        return None
    group, program = data[CONTROL.size : end].decode(), data[end:].decode()
    death = bool(flags & GroupFlag.DEATH)
    return Request(Operation(operation), group, program, level, bool(flags & GroupFlag.OPEN), death, ordering)


def _decode_snapshot(data: bytes) -> SnapshotPart | None:
    if len(data) < SNAPSHOT.size:
        return None
    _, flags, count, instance = SNAPSHOT.struct.unpack_from(data)
    if flags & ~int(GroupFlag.LAST | GroupFlag.MULTICAST):
        return None
    at = SNAPSHOT.size
    entries: list[SnapshotEntry] = []
    for _ in range(count):
        if len(data) - at < SNAPSHOT_ENTRY.size:
            return None
        client, level, eflags, group_length, program_length = SNAPSHOT_ENTRY.struct.unpack_from(data, at)
        at += SNAPSHOT_ENTRY.size
        end = at + group_length
        if not 1 <= group_length <= GROUP_NAME_MAX or program_length > PROGRAM_NAME_MAX or end + program_length > len(data):
            return None
        ordering = _ordering(eflags, level)
        if level > LEVEL_MAX or eflags & ~int(GroupFlag.OPEN | _ORDERING_FLAGS) or ordering is None:
            return None
        group, program = data[at:end].decode(), data[end : end + program_length].decode()
        entries.append(SnapshotEntry(client, group, program, level, bool(eflags & GroupFlag.OPEN), ordering))
        at = end + program_length
    if at != len(data):
        return None
    return SnapshotPart(instance, bool(flags & GroupFlag.LAST), tuple(entries), bool(flags & GroupFlag.MULTICAST))


# ---- the tables


@dataclass(slots=True)
class _Group:
    """A group that has members."""

    name: str
    open: bool
    ordering: Ordering
    programs: dict[tuple[int, int], str] = field(default_factory=dict)  # (station, client): program
    levels: dict[tuple[int, int], int] = field(default_factory=dict)

    def members(self) -> tuple[Member, ...]:
        return tuple((station, client, program) for (station, client), program in sorted(self.programs.items()))

    def add(self, station: int, client: int, program: str, level: int) -> None:
        self.programs[station, client] = program
        self.levels[station, client] = level

    def remove(self, station: int, client: int) -> Member:
        del self.levels[station, client]
        return (station, client, self.programs.pop((station, client)))


class Groups(StateMachine[ViewEvent]):
    """All groups of one cluster at one station. Bounded by ``groups_max``, and by what the daemons let their clients join.

    station: the own one, 1..n. Besides ``Emit`` and ``Reply`` its effects are ``Change``: the views of groups.
    """

    def __init__(self, station: int, groups_max: int = GROUPS_MAX) -> None:
        self.station = station
        self.groups_max = groups_max
        """Groups that there may be at a time; equal at all stations, and changed between two instances only."""
        self.instance = 0
        self.active = False
        """This station is in an instance: it sends for its clients, and the answers of ``on_request`` are up to date."""
        self.malformed = 0
        """Malformed group messages, which every station ignores alike."""
        self.known = True
        """False from the start of an instance that has admitted this station until it has the SNAPSHOT of every other member: the
        tables are empty, and no client of this station may join yet."""
        self._by_id: dict[int, _Group] = {}
        self._sync_instance = 0
        self._awaited: set[int] = set()
        """Stations whose SNAPSHOT as of the view of ``_sync_instance`` has not come, at this place of the order."""
        self._told: dict[int, list[SnapshotEntry]] = {}
        self._kept: list[tuple[int, int, Request]] = []
        self.uses_multicast = False
        """Set by the host before each view event: this station's SNAPSHOT has flag MULTICAST."""
        self.multicast_stations: set[int] = set()
        """Stations whose SNAPSHOT as of the last view that has asked for them had flag MULTICAST."""
        self.caught_up: list[list[Change]] = []
        """What each message that was kept has changed, where the groups have become known; the host takes it."""

    # ---- start and end of an instance
    def open(self, instance: int, *, joined: bool = False) -> None:
        """An instance has started: all groups are empty. joined: the others continue with theirs; the view event that admits this
        station comes first (``on_view``)."""
        self.instance = instance
        self.active = instance != 0
        self.known = not joined
        self._by_id.clear()
        self._end_sync()

    def suspend(self) -> None:
        """This station is in no instance any more. The tables stay: the rest of the instance, messages and views, may still be
        delivered before the next one."""
        self.active = False

    def close(self) -> None:
        """All of the instance has been delivered: no groups."""
        self.open(0)

    def _end_sync(self) -> None:
        self._awaited.clear()
        self._told.clear()
        self._kept.clear()

    # ---- messages to broadcast
    @staticmethod
    def encode_join(group: str, program: str, *, level: int, open: bool, ordering: Ordering = Ordering.TOTAL) -> bytes:
        """A join. UsageError as ``encode``."""
        return encode(Request(Operation.JOIN, group, program, level, open, False, ordering))

    @staticmethod
    def encode_leave(group: str, *, death: bool) -> bytes:
        """A leave. UsageError as ``encode``."""
        return encode(Request(Operation.LEAVE, group, "", 0, False, death))

    def _entries(self, station: int) -> list[SnapshotEntry]:
        """The memberships of a station's clients at this place of the order."""
        return [
            SnapshotEntry(client, group.name, program, group.levels[at, client], group.open, group.ordering)
            for _, group in sorted(self._by_id.items())
            for (at, client), program in sorted(group.programs.items())
            if at == station
        ]

    # ---- delivery
    @property
    def kept(self) -> int:
        """Messages that wait until the groups are known."""
        return len(self._kept)

    @property
    def syncing(self) -> bool:
        """Whether SNAPSHOTs are awaited at this place of the order; equal at all stations."""
        return bool(self._awaited)

    def on_view(self, place: Place, view: ViewEvent) -> list[Effect]:
        """A view event is at this place of the order. Returns the views of groups that begin here, by name: members of stations
        removed have left. Where it admits stations, every member that was one before broadcasts its SNAPSHOT."""
        self.instance = view.instance
        if view.joined or self._awaited:
            self._end_sync()
            self.multicast_stations.clear()
            self._sync_instance = view.instance
            self._awaited = set(view.members) - set(view.joined)
            self._finish_sync()
        gone = set(view.left) | {station for station, incarnation in enumerate(view.incarnations, 1) if not incarnation}
        effects: list[Effect] = []
        for identity, group in sorted(self._by_id.items(), key=lambda item: item[1].name):
            left = tuple(group.remove(*at) for at in sorted(group.programs) if at[0] in gone)
            if left:
                effects.append(Change(group.name, (), left, group.members(), "death", group.ordering))
            if not group.programs:
                del self._by_id[identity]
        if self.active and self._awaited and self.station not in view.joined:
            entries = self._entries(self.station)
            parts = encode_snapshot(self._sync_instance, entries, multicast=self.uses_multicast)
            effects += [Emit(part) for part in parts]
        return effects

    def on_message(self, place: Place, source: Source, data: bytes) -> list[Effect]:
        """A group message is at this place of the order. Returns the views that begin here: none for a join of a member, a leave
        of a non-member, or a malformed message; and none while ``known`` is false."""
        station, client = source
        request = decode(data)
        if request is None or (isinstance(request, SnapshotPart) and client):
            self.malformed += 1
            return []
        if isinstance(request, SnapshotPart):
            self._on_snapshot(station, request)
            return []
        if not self.known:
            self._kept.append((station, client, request))
            return []
        return list(self._do(station, client, request))

    def on_request(self, request: Hashable, body: bytes) -> list[Effect]:
        """The members of the group that ``body`` names; none while this station is in no instance."""
        name = group_name(body)
        if name is None:
            return [Reply(request, {"message": NAME_BOUNDS}, "name")]
        members = [list(member) for member in self.members(name)] if self.active else []
        return [Reply(request, {"group": name, "members": members})]

    def _do(self, station: int, client: int, request: Request) -> list[Change]:
        if request.operation is Operation.JOIN:
            return self._join(station, client, request)
        return self._leave(station, client, request)

    def _join(self, station: int, client: int, request: Request) -> list[Change]:
        identity = group_id(request.group)
        group = self._by_id.get(identity)
        if group is None and len(self._by_id) >= self.groups_max:
            return [Change(request.group, (), (), (), "too-many-groups")]
        if group is None:
            group = self._by_id[identity] = _Group(request.group, request.open, request.ordering)
        elif group.name != request.group:
            return [Change(request.group, (), (), (), "name-collision")]
        elif (station, client) in group.programs:
            return []
        elif group.ordering != request.ordering:
            return [Change(request.group, (), (), (), "order-mismatch", group.ordering)]
        group.add(station, client, request.program, request.level)
        return [Change(group.name, ((station, client, request.program),), (), group.members(), "join", group.ordering)]

    def _leave(self, station: int, client: int, request: Request) -> list[Change]:
        identity = group_id(request.group)
        group = self._by_id.get(identity)
        if group is None or group.name != request.group or (station, client) not in group.programs:
            return []
        left = group.remove(station, client)
        if not group.programs:
            del self._by_id[identity]
        invariant(group.programs.keys() == group.levels.keys(), "every member has a level")
        reason = "death" if request.death else "leave"
        return [Change(group.name, (), (left,), group.members(), reason, group.ordering)]

    # ---- what a station that was admitted learns
    def _on_snapshot(self, station: int, state: SnapshotPart) -> None:
        if state.instance != self._sync_instance or station not in self._awaited:
            return  # of an earlier view
        if not self.known:
            self._told.setdefault(station, []).extend(state.entries)
        if state.multicast:
            self.multicast_stations.add(station)
        if state.last:
            self._awaited.discard(station)
            self._finish_sync()

    def _finish_sync(self) -> None:
        """If all SNAPSHOTs have arrived: make the tables as of the view, then apply the messages since."""
        if self._awaited or self.known:
            return
        self.known = True
        for station, entries in sorted(self._told.items()):
            for entry in entries:
                self._add(station, entry)
        self.caught_up = [self._do(station, client, request) for station, client, request in self._kept]
        self._end_sync()

    def _add(self, station: int, entry: SnapshotEntry) -> None:
        group = self._by_id.setdefault(group_id(entry.group), _Group(entry.group, entry.open, entry.ordering))
        if group.name == entry.group:  # always, for the others had both at once
            group.add(station, entry.client, entry.program, entry.level)

    # ---- the whole of it, for another copy
    def snapshot(self) -> list[Chunk]:
        """What it is waiting for, then each station's memberships in parts. UsageError while ``known`` is false."""
        if not self.known:
            raise UsageError("this station does not know the groups yet")
        awaited = sum(1 << (station - 1) for station in self._awaited)
        chunks = [(b"", SNAPSHOT_HEAD.struct.pack(self.instance, self._sync_instance, awaited))]
        for station in sorted({at for group in self._by_id.values() for at, _ in group.programs}):
            parts = encode_snapshot(self.instance, self._entries(station))
            chunks += [(SNAPSHOT_KEY.struct.pack(station, number), part) for number, part in enumerate(parts)]
        return chunks

    def restore(self, chunks: Iterable[Chunk]) -> None:
        """Adopt another station's tables. ``active`` stays: it is this station's own."""
        (key, head), *rest = chunks
        if key or len(head) != SNAPSHOT_HEAD.size:
            raise ValueError("a snapshot of groups begins with its head")
        entries: list[tuple[int, SnapshotEntry]] = []
        for key, data in rest:
            part = decode(data)
            if len(key) != SNAPSHOT_KEY.size or not isinstance(part, SnapshotPart):
                raise ValueError("a chunk that is no part of a snapshot of groups")
            entries += [(key[0], entry) for entry in part.entries]
        self.instance, self._sync_instance, awaited = SNAPSHOT_HEAD.struct.unpack(head)
        self.known = True
        self._by_id.clear()
        self._end_sync()
        self._awaited = {station for station in range(1, STATIONS_MAX + 1) if awaited >> (station - 1) & 1}
        for station, entry in entries:
            self._add(station, entry)

    # ---- reads
    def names(self) -> list[str]:
        """Groups that have members, sorted."""
        return sorted(group.name for group in self._by_id.values())

    def name_of(self, identity: int) -> str | None:
        """Name of the group with members that has this number."""
        group = self._by_id.get(identity)
        return group.name if group else None

    def members(self, name: str) -> tuple[Member, ...]:
        """Sorted; none for an unknown group."""
        group = self._named(name)
        return group.members() if group else ()

    def is_open(self, name: str) -> bool:
        """Whether its first member has declared it open."""
        group = self._named(name)
        return group is not None and group.open

    def ordering(self, name: str) -> Ordering:
        """The order that the first member of the group has chosen; TOTAL for an unknown group."""
        group = self._named(name)
        return group.ordering if group is not None else Ordering.TOTAL

    def may_send(self, name: str) -> bool:
        """Whether a program that is not a member may send to it: yes if it is open, or empty, because then it disturbs no
        member."""
        group = self._by_id.get(group_id(name))
        return group is None or (group.name == name and group.open)

    def needs_ack(self, name: str) -> bool:
        """Does some member, at any station, want delivery at level ack? Then messages to the group must ask for it (rule C2).
        Goes by the group's number, as messages do."""
        group = self._by_id.get(group_id(name))
        return group is not None and LEVEL_MAX in group.levels.values()

    def wants_preack(self, identity: int) -> bool:
        """Does some member of the group with this number, at any station, want delivery above level ordered?"""
        group = self._by_id.get(identity)
        return group is not None and any(group.levels.values())

    def as_list(self) -> list[dict[str, object]]:
        """``groups`` of docs/status.md."""
        return [
            {
                "name": group.name,
                "open": group.open,
                "order": ORDER_NAMES[group.ordering],
                "members": [list(member) for member in group.members()],
            }
            for group in sorted(self._by_id.values(), key=lambda group: group.name)
        ]

    def _named(self, name: str) -> _Group | None:
        group = self._by_id.get(group_id(name))
        return group if group is not None and group.name == name else None
