"""Named process groups: who is in which, as a function of the delivered order alone.

Fed only by delivery of ``MessageType.GROUP`` messages, so every station has the same groups at the same place in the order and
its clients see the same views between the same messages. A member is (station, client, program name). Starts empty with every
instance: each daemon joins its clients again.

On the wire a group is the CRC-32 of its name (``wire.group_id``). A join whose name has the number of another group that has
members is refused, at every station alike, with the reason ``name-collision``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple, TypeAlias

from .errors import UsageError, invariant
from .wire import GROUP_NAME_MAX, Field, Layout, group_id

PROGRAM_NAME_MAX: Final = 64
LEVEL_MAX: Final = 2
"""Levels of delivery: 0 ordered, 1 preack, 2 ack."""


class Operation(IntEnum):
    """What a group message does."""

    JOIN = 1
    LEAVE = 2


class GroupFlag(IntFlag):
    """Flags of a group message."""

    OPEN = 0x01
    """JOIN: programs that are not in the group may send to it. Counts for who finds the group empty."""
    DEATH = 0x02
    """LEAVE: the program has gone without leaving."""


CONTROL: Final = Layout(
    "group",
    (
        Field("operation", 1, "1 join, 2 leave"),
        Field("gflags", 1, "group flags"),
        Field("level", 1, "JOIN: level of delivery the member asks for"),
        Field("pad", 1, "0"),
        Field("group_length", 2, "bytes of the group's name"),
        Field("program_length", 2, "bytes of the program's name, after the group's; LEAVE: 0"),
    ),
    "A message of type GROUP, followed by the two names (UTF-8). It speaks for the client that the message header names.",
)

Member: TypeAlias = tuple[int, int, str]
"""(station 1..n, client, program name)."""


class Request(NamedTuple):
    """A decoded group message."""

    operation: Operation
    group: str
    program: str
    level: int
    open: bool
    death: bool


@dataclass(frozen=True, slots=True)
class Change:
    """A view: ``members`` from this place in the order on, sorted. ``reason`` is ``join``, ``leave`` or ``death``; or
    ``name-collision``: the join of the client that sent it is refused, nothing has changed, and ``members`` is empty."""

    group: str
    joined: tuple[Member, ...]
    left: tuple[Member, ...]
    members: tuple[Member, ...]
    reason: str

    def clients_at(self, station: int) -> tuple[int, ...]:
        """Clients of a station that are to be told: its members, and who has just left."""
        return tuple(sorted({client for at, client, _ in (*self.members, *self.left) if at == station}))


def encode(request: Request) -> bytes:
    """Bytes of a group message. UsageError if a name or the level is out of bounds."""
    group, program = request.group.encode(), request.program.encode()
    if not 1 <= len(group) <= GROUP_NAME_MAX:
        raise UsageError(f"a group's name is 1 to {GROUP_NAME_MAX} bytes of UTF-8, not {len(group)}")
    if len(program) > PROGRAM_NAME_MAX:
        raise UsageError(f"a program's name is at most {PROGRAM_NAME_MAX} bytes of UTF-8, not {len(program)}")
    if not 0 <= request.level <= LEVEL_MAX:
        raise UsageError(f"level is {request.level}; allowed: 0..{LEVEL_MAX}")
    flags = (GroupFlag.OPEN if request.open else 0) | (GroupFlag.DEATH if request.death else 0)
    return CONTROL.struct.pack(request.operation, flags, request.level, 0, len(group), len(program)) + group + program


def decode(data: bytes) -> Request | None:
    """The inverse, total: None for anything else."""
    if len(data) < CONTROL.size:
        return None
    operation, flags, level, pad, group_length, program_length = CONTROL.struct.unpack_from(data)
    end = CONTROL.size + group_length
    if not 1 <= group_length <= GROUP_NAME_MAX or program_length > PROGRAM_NAME_MAX or len(data) != end + program_length:
        return None
    if operation not in (Operation.JOIN, Operation.LEAVE) or level > LEVEL_MAX or pad:
        return None
    allowed = int(GroupFlag.OPEN if operation == Operation.JOIN else GroupFlag.DEATH)
    if flags & ~allowed:  # of plain numbers: ~ of a flag knows only the declared bits
        return None
    if operation == Operation.LEAVE and (level or program_length):
        return None
    try:
        group, program = data[CONTROL.size : end].decode(), data[end:].decode()
    except UnicodeDecodeError:
        return None
    return Request(Operation(operation), group, program, level, bool(flags & GroupFlag.OPEN), bool(flags & GroupFlag.DEATH))


@dataclass(slots=True)
class _Group:
    """A group that has members."""

    name: str
    open: bool
    programs: dict[tuple[int, int], str] = field(default_factory=dict)  # (station, client): program
    levels: dict[tuple[int, int], int] = field(default_factory=dict)

    def members(self) -> tuple[Member, ...]:
        return tuple((station, client, program) for (station, client), program in sorted(self.programs.items()))


class Groups:
    """All groups of one cluster at one station. Bounded by what the daemons let their clients join."""

    def __init__(self) -> None:
        self.instance = 0
        self.malformed = 0
        """Group messages ignored, by every station alike, because they make no sense."""
        self._by_id: dict[int, _Group] = {}

    # ---- life
    def open(self, instance: int) -> None:
        """An instance has started: all groups are empty."""
        self.instance = instance
        self._by_id.clear()

    def close(self) -> None:
        """The instance has ended."""
        self.open(0)

    # ---- messages to broadcast
    @staticmethod
    def encode_join(group: str, program: str, *, level: int, open: bool) -> bytes:
        """A join. UsageError as ``encode``."""
        return encode(Request(Operation.JOIN, group, program, level, open, False))

    @staticmethod
    def encode_leave(group: str, *, death: bool) -> bytes:
        """A leave. UsageError as ``encode``."""
        return encode(Request(Operation.LEAVE, group, "", 0, False, death))

    # ---- delivery
    def apply(self, station: int, client: int, data: bytes) -> list[Change]:
        """A group message of a client of ``station`` (1..n) has its place in the order here. Returns the views that begin
        here: none for a join of a member, a leave of a stranger, or what makes no sense. Never raises for what came."""
        request = decode(data)
        if request is None:
            self.malformed += 1
            return []
        if request.operation is Operation.JOIN:
            return self._join(station, client, request)
        return self._leave(station, client, request)

    def _join(self, station: int, client: int, request: Request) -> list[Change]:
        identity = group_id(request.group)
        group = self._by_id.get(identity)
        if group is None:
            group = self._by_id[identity] = _Group(request.group, request.open)
        elif group.name != request.group:
            return [Change(request.group, (), (), (), "name-collision")]
        elif (station, client) in group.programs:
            return []
        group.programs[station, client] = request.program
        group.levels[station, client] = request.level
        return [Change(group.name, ((station, client, request.program),), (), group.members(), "join")]

    def _leave(self, station: int, client: int, request: Request) -> list[Change]:
        identity = group_id(request.group)
        group = self._by_id.get(identity)
        if group is None or group.name != request.group or (station, client) not in group.programs:
            return []
        program = group.programs.pop((station, client))
        del group.levels[station, client]
        if not group.programs:
            del self._by_id[identity]
        invariant(group.programs.keys() == group.levels.keys(), "every member has a level")
        reason = "death" if request.death else "leave"
        return [Change(group.name, (), ((station, client, program),), group.members(), reason)]

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
        """Its first member has declared it open."""
        group = self._named(name)
        return group is not None and group.open

    def may_send(self, name: str) -> bool:
        """May a program that is not in it send to it? Yes if it is open, or empty: then there is nobody whom it could disturb."""
        group = self._by_id.get(group_id(name))
        return group is None or (group.name == name and group.open)

    def needs_ack(self, name: str) -> bool:
        """Does some member, at any station, want delivery at level ack? Then messages to the group must ask for it (rule C2).
        Goes by the group's number, as messages do."""
        group = self._by_id.get(group_id(name))
        return group is not None and LEVEL_MAX in group.levels.values()

    def as_list(self) -> list[dict[str, object]]:
        """``groups`` of docs/status.md."""
        return [
            {"name": group.name, "open": group.open, "members": [list(member) for member in group.members()]}
            for group in sorted(self._by_id.values(), key=lambda group: group.name)
        ]

    def _named(self, name: str) -> _Group | None:
        group = self._by_id.get(group_id(name))
        return group if group is not None and group.name == name else None
