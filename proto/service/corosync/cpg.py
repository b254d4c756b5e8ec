"""The handles of local programs in process groups: what libcpg's functions do, and what its callbacks are called with.

Rules Y7 to Y10 and Y19 of docs/corosync.md. A handle is a connection of a program, named by the host's number; it is in one group
at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from ..base import Effect, Source
from .messages import NAME_MAX, Mcast, Part, Process, ProcJoin, ProcLeave, Reason, mcast_head
from .results import Address, Answer, Changed, Code, Confchg, Deliver, Members, RingId, Totem
from .ring import Phase, Ring

WAITING_BYTES_MAX: Final = 4 << 20
"""Of a handle's messages that have no place yet; a message may begin while they are fewer."""
MESSAGE_BYTES: Final = 256
"""What a message counts besides its data, so that empty ones are bounded as well."""
MCAST_BYTES: Final = 5
"""Of an MCAST, between its process and its data."""
DATA_MAX: Final = 1 << 20
"""Of one message or part; above 1 MiB - 1 KiB libcpg sends parts."""


class State(Enum):
    """A handle's."""

    OUTSIDE = "outside"
    JOINING = "joining"
    """PROCJOIN has no place yet, and the request no answer."""
    INSIDE = "inside"
    LEAVING = "leaving"
    """PROCLEAVE has no place yet; messages come until then."""


@dataclass(slots=True)
class Handle:
    number: int
    initial: bool = False
    """The program wants to hear of the ring when it has joined."""
    state: State = State.OUTSIDE
    process: Process | None = None
    head: bytes = b""
    """What its messages begin with."""
    changes: int = 0
    """How often the group has changed under this handle."""
    began_at: int | None = None
    """``changes`` when a message in parts began; None: none is under way."""
    length: int = 0
    """Of that message as its first part has announced it."""
    missing: int = 0
    """Bytes of it that have not come yet."""
    begun: set[tuple[int, int]] = field(default_factory=set)
    """(node, pid) of senders of whose message the program has the first part."""


class Room:
    """Bytes of each handle's messages that have no place yet. A host that sends some by itself counts them with the others."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}

    def of(self, number: int) -> int:
        return self._bytes.get(number, 0)

    def add(self, number: int, size: int) -> None:
        self._bytes[number] = self.of(number) + size

    def end(self, number: int) -> None:
        """There is no such handle any more."""
        self._bytes.pop(number, None)


class Lane(NamedTuple):
    """Who hears the whole messages of a process, until anything else happens than such messages."""

    node: int
    handles: tuple[int, ...]
    sender: Handle | None
    """The process's own handle, if it is here."""


class Cpg:
    """The process groups at one node."""

    def __init__(self, ring: Ring, room: Room | None = None) -> None:
        self.ring = ring
        self.room = Room() if room is None else room
        self.told: tuple[RingId, tuple[int, ...]] = (ring.id, ring.members)
        """The ring that programs know of."""
        self.handles: dict[int, Handle] = {}
        self.going: set[Process] = set()
        """Local processes whose connection is lost, and whose PROCLEAVE has no place yet."""
        self._everybody: tuple[tuple[bytes, Address], ...] | None = None
        """What ``everybody`` gives, until a group changes."""
        self.unsent = 0
        """Messages of handles that were in no group: not sent, as corosync does."""

    # ---- what programs ask

    def open(self, number: int) -> None:
        """A program connects."""
        self.handles[number] = Handle(number)

    def close(self, number: int) -> list[Effect]:
        """A program's connection is gone, whether it wanted that or not."""
        handle = self.handles.pop(number)
        self.room.end(number)
        if handle.process is None or handle.state not in (State.JOINING, State.INSIDE):
            return []
        self.going.add(handle.process)
        return self.ring.submit(ProcLeave(handle.process, Reason.PROCDOWN))

    def join(self, number: int, group: bytes, pid: int, *, initial: bool = False) -> list[Effect]:
        """cpg_join. The answer may come with a later input: at the join's place. initial: flag DELIVER_INITIAL_TOTEM_CONF."""
        handle, process = self.handles[number], Process(group, pid)
        code = self._may_join(handle, process)
        if code is not Code.OK:
            return [Answer(number, code)]
        handle.state, handle.process, handle.initial = State.JOINING, process, initial
        handle.head = mcast_head(process)
        self.room.add(number, -self.room.of(number))
        handle.began_at = None
        handle.begun.clear()
        return self.ring.submit(ProcJoin(process))

    def _may_join(self, handle: Handle, process: Process) -> Code:
        if handle.state is not State.OUTSIDE:
            return Code.BUSY if handle.state is State.LEAVING else Code.EXIST
        if not 1 <= len(process.group) <= NAME_MAX:
            return Code.NAME_TOO_LONG if process.group else Code.INVALID_PARAM
        same = [h for h in self.handles.values() if h.process == process]
        if any(h.state in (State.JOINING, State.INSIDE) for h in same):
            return Code.EXIST
        if same or process in self.going:
            return Code.TRY_AGAIN
        return Code.OK

    def leave(self, number: int) -> list[Effect]:
        """cpg_leave."""
        handle = self.handles[number]
        if handle.state is State.JOINING:
            return [Answer(number, Code.BUSY)]
        if handle.state is not State.INSIDE or handle.process is None:
            return [Answer(number, Code.NOT_EXIST)]
        handle.state = State.LEAVING
        return [Answer(number, Code.OK), *self.ring.submit(ProcLeave(handle.process, Reason.LEAVE))]

    def accepts(self, number: int) -> bool:
        """May the host read more messages of this handle?"""
        return self.room.of(number) < WAITING_BYTES_MAX

    def mcast(self, number: int, data: bytes) -> list[Effect]:
        """cpg_mcast_joined. OK: it will be delivered here, unless the handle breaks."""
        handle = self.handles[number]
        if handle.process is None or handle.state not in (State.JOINING, State.INSIDE):
            self.unsent += 1
            return [Answer(number, Code.OK)]
        code = self._may_send(handle, data)
        return (
            self._send(handle, Mcast(handle.process, Part.WHOLE, len(data), data)) if code is Code.OK else [Answer(number, code)]
        )

    def said(self, number: int, message: bytes) -> bool:
        """``mcast`` of a message that is written already, as ``encode`` writes a WHOLE one of this handle's process: the host
        emits it. False, and nothing has happened: use ``mcast``."""
        handle = self.handles[number]
        if self.ring.phase is not Phase.IN or handle.state is not State.INSIDE or not message.startswith(handle.head):
            return False
        self.room.add(number, MESSAGE_BYTES + len(message) - len(handle.head) - MCAST_BYTES)
        self.ring.went(message)
        return True

    def lane(self, source: Source, head: bytes) -> Lane | None:
        """Who hears the messages of this source that begin so. None: something else is to be done with them."""
        node = self.ring.node_of(source)
        process = next((p for p in self.ring.table.get(node, ()) if mcast_head(p) == head), None) if node is not None else None
        if node is None or process is None:
            return None
        group = [h for h in self.handles.values() if h.process is not None and h.process.group == process.group]
        hear = tuple(h.number for h in group if h.state in (State.INSIDE, State.LEAVING))
        here = node == self.ring.node
        return Lane(node, hear, next((h for h in group if here and h.process == process and h.number in hear), None))

    def came_back(self, lane: Lane, message: bytes) -> None:
        """A message of this node, in a lane, has its place."""
        self.ring.came_back(message)
        if lane.sender is not None:
            self.room.add(lane.sender.number, len(lane.sender.head) + MCAST_BYTES - MESSAGE_BYTES - len(message))

    def mcast_part(self, number: int, part: Part, length: int, data: bytes) -> list[Effect]:
        """A fragment of libcpg. INTERRUPT: the group has changed since the first one, and this message will not be whole."""
        handle = self.handles[number]
        if handle.process is None or handle.state not in (State.JOINING, State.INSIDE):
            return [Answer(number, Code.NOT_EXIST)]
        code = self._may_send(handle, data)
        if code is Code.OK:
            code = self._continue(handle, part, length, data)
        if code is not Code.OK:
            return [Answer(number, code)]
        return self._send(handle, Mcast(handle.process, part, length, data))

    def _continue(self, handle: Handle, part: Part, length: int, data: bytes) -> Code:
        """Begin a message in parts, or go on with it. All parts together are as long as the first one says: libcpg copies them
        into a buffer of that length without looking, in the memory of every member."""
        if part is Part.FIRST:
            handle.began_at, handle.length, handle.missing = handle.changes, length, length
        elif part is Part.WHOLE or handle.began_at is None:
            return Code.INVALID_PARAM
        elif handle.began_at != handle.changes:
            handle.began_at = None
            return Code.INTERRUPT
        handle.missing -= len(data)
        if length != handle.length or handle.missing < 0 or (part is Part.LAST and handle.missing):
            handle.began_at = None
            return Code.INVALID_PARAM
        if part is Part.LAST:
            handle.began_at = None
        return Code.OK

    def _may_send(self, handle: Handle, data: bytes) -> Code:
        if len(data) > DATA_MAX:
            return Code.INVALID_PARAM
        return Code.OK if self.accepts(handle.number) else Code.TRY_AGAIN

    def _send(self, handle: Handle, message: Mcast) -> list[Effect]:
        self.room.add(handle.number, MESSAGE_BYTES + len(message.data))
        return [Answer(handle.number, Code.OK), *self.ring.submit(message)]

    def everybody(self) -> tuple[tuple[bytes, Address], ...]:
        """cpg_iteration: all groups and their members as of this call, sorted."""
        if self._everybody is None:
            table = self.ring.table.items()
            self._everybody = tuple(sorted((p.group, Address(node, p.pid)) for node, processes in table for p in processes))
        return self._everybody

    # ---- what the ring tells

    def on_members(self, change: Members) -> Iterator[Effect]:
        """A group has changed: those in it hear of it, and who has just come or gone."""
        self._everybody = None
        ended = (a for a in change.left if a.node == self.ring.node and a.reason is Reason.PROCDOWN)  # not LEAVE: an older one's
        self.going -= {Process(change.group, a.pid) for a in ended}
        for handle in list(self.handles.values()):
            if handle.process is None or handle.process.group != change.group:
                continue
            own = (self.ring.node, handle.process.pid)
            if handle.state is State.JOINING and any(a[:2] == own for a in change.joined):
                handle.state = State.INSIDE
                yield Answer(handle.number, Code.OK)
                yield self._confchg(handle, change)
                if handle.initial:
                    yield Totem(handle.number, *self.told)
            elif handle.state in (State.INSIDE, State.LEAVING):
                yield self._confchg(handle, change)
                if any(a[:2] == own for a in change.left):
                    handle.state, handle.process = State.OUTSIDE, None

    def _confchg(self, handle: Handle, change: Members) -> Confchg:
        handle.changes += 1
        handle.begun -= {a[:2] for a in change.left}
        return Confchg(handle.number, change.group, change.members, change.left, change.joined)

    def on_no_room(self, process: Process) -> Iterator[Effect]:
        self.going.discard(process)
        for handle in self.handles.values():
            if handle.process == process and handle.state is State.JOINING:
                handle.state, handle.process = State.OUTSIDE, None
                yield Answer(handle.number, Code.NO_RESOURCES)

    def on_delivered(self, node: int, message: Mcast) -> Iterator[Effect]:
        process = message.process
        for handle in self.handles.values():
            if handle.process is None or handle.process.group != process.group:
                continue
            if handle.state not in (State.INSIDE, State.LEAVING):
                continue
            if node == self.ring.node and handle.process == process:
                self.room.add(handle.number, -MESSAGE_BYTES - len(message.data))
            if self._has_beginning(handle, node, message):
                yield Deliver(handle.number, node, message)

    def _has_beginning(self, handle: Handle, node: int, message: Mcast) -> bool:
        """libcpg would put later parts behind those of a message that it never got whole, beyond its buffer."""
        sender = (node, message.process.pid)
        if message.part is Part.FIRST:
            handle.begun.add(sender)
        has = message.part is Part.WHOLE or sender in handle.begun
        if message.part is Part.LAST:
            handle.begun.discard(sender)
        return has

    def on_changed(self, changed: Changed) -> Iterator[Effect]:
        """A ring begins: every handle hears of it, whether its group has changed or not."""
        self.told = (changed.ring, changed.members)
        for number in self.handles:
            yield Totem(number, *self.told)
