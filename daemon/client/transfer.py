"""State transfer on a connection: what ``join(..., state=...)`` adds to a group (docs/state-transfer.md).

The machine is ``proto/service/transfer.py``. This module feeds it from one ``ClientProtocol`` and applies its effects. It does no
I/O on sockets: both connections drive it through ``ClientProtocol`` alone. While the state is transferred, it keeps messages in
memory and in a temporary file.
"""

from __future__ import annotations

import contextlib
import pickle
import secrets
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import IO, Any, Final

from ...proto.errors import UsageError
from ...proto.service.roster import Awaited
from ...proto.service.stateapi import State
from ...proto.service.transfer import Transfer
from ...proto.service.transfertypes import (
    KEPT_BYTES_MAX,
    CloseMailbox,
    Digest,
    Effect,
    Note,
    OpenMailbox,
    Options,
    Release,
    ToGroup,
    ToJoiner,
)
from ...proto.service.transferwire import NOWHERE, Who, companion_of, mailbox_of
from ...proto.timers import NEVER
from .errors import BadLevel, ClientError, StateFailed
from .protocol import ClientProtocol, Membership
from .ticket import Ticket
from .types import Event, Item, JoinLevel, Level, Message, Order, Place, SendLevel, View

MEMORY_BYTES_MAX: Final = 16 * 1024 * 1024
"""Messages kept in memory while the state comes; what is more goes to a temporary file."""
ITEM_OVERHEAD: Final = 64
"""Bytes that a kept item takes besides its data."""
BATCH_MAX: Final = 10_000
"""Items that one read returns."""

CHUNKS_BYTES_MAX: Final = 256 * 1024
"""Bytes of chunks that a donor has given to the daemon and that are not delivered yet. The program's own messages wait for no
more than these."""
LOOK_NS: Final = 5_000_000
"""How often an agent looks whether a digest is there."""

_LENGTH: Final = struct.Struct("<I")
_Pair = tuple[Item, Place]


class SpillQueue:
    """A queue that keeps its first 16 MiB in memory and the rest, up to ``bytes_max`` in all, in an unnamed temporary file."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX, memory_max: int = MEMORY_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        """Bytes of all items."""
        self._memory_max = memory_max
        self._memory: deque[tuple[_Pair, int]] = deque()
        self._memory_bytes = 0
        self._file: IO[bytes] | None = None
        self._filed = 0
        self._read_at = self._write_at = 0

    def __len__(self) -> int:
        return len(self._memory) + self._filed

    def append(self, item: _Pair, size: int, limited: bool) -> bool:
        """Add an item. limited: False if the queue is full. Raises OSError if the file cannot be written."""
        if limited and self.bytes + size > self.bytes_max:
            return False
        self.bytes += size
        if not self._filed and (not limited or self._memory_bytes + size <= self._memory_max):
            self._memory.append((item, size))
            self._memory_bytes += size
            return True
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="zenjun-")  # noqa: SIM115 - lives as long as the queue
        data = pickle.dumps((item, size), pickle.HIGHEST_PROTOCOL)
        self._file.seek(self._write_at)
        self._file.write(_LENGTH.pack(len(data)) + data)
        self._write_at += _LENGTH.size + len(data)
        self._filed += 1
        return True

    def pop(self, count: int) -> list[_Pair]:
        """The first items, at most ``count`` of them."""
        out: list[_Pair] = []
        while len(out) < count and self._memory:
            item, size = self._memory.popleft()
            self._memory_bytes -= size
            self.bytes -= size
            out.append(item)
        while len(out) < count and self._filed and self._file is not None:
            self._file.seek(self._read_at)
            length = _LENGTH.unpack(self._file.read(_LENGTH.size))[0]
            item, size = pickle.loads(self._file.read(length))
            self._read_at += _LENGTH.size + length
            self._filed -= 1
            self.bytes -= size
            out.append(item)
        if not self._filed:
            self._close()
        return out

    def clear(self) -> None:
        """Drop everything."""
        self._memory.clear()
        self.bytes = self._memory_bytes = 0
        self._close()

    def _close(self) -> None:
        self._filed = self._read_at = self._write_at = 0
        if self._file is not None:
            self._file.close()
            self._file = None


class _Side(Membership):
    """A group that belongs to a state transfer: its messages go to the agent."""

    def __init__(self, take: Callable[[], None], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.on_items = take


class StateMembership(Membership):
    """A group with state: its readers get what the agent lets through."""

    def __init__(self, agent: Agent, *arguments: Any, **options: Any) -> None:
        self.agent = agent
        self.wake: Callable[[], None] | None = None
        super().__init__(*arguments, **options)

    @property
    def on_items(self) -> Callable[[], None] | None:
        """The protocol calls the agent; the agent calls the reader."""
        return self.agent.sort

    @on_items.setter
    def on_items(self, wake: Callable[[], None] | None) -> None:
        self.wake = wake

    def readable(self) -> bool:
        """The program wants more, so it has finished with what it has."""
        return self.state != "left" and self.agent.poll() > 0

    def take(self) -> tuple[list[Item], int, bool]:
        return self.agent.read(), 0, True

    def end(self, error: ClientError | None) -> None:
        was = self.state
        super().end(error)
        if was != "left":
            self.agent.close(error)
            if self.wake is not None:
                self.wake()


class _Outbox:
    """What one joiner is to get. The same chunk, asked for again before it has gone out, goes once."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.waiting: dict[bytes, None] = {}


class _Digesting:
    """A digest that a thread computes."""

    def __init__(self, effect: Digest) -> None:
        self.effect = effect
        self.result: bytes | Exception | None = None
        self.thread = threading.Thread(target=self._run, name="zenjun-digest", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self.effect.compute()
        except Exception as error:
            self.result = error


class Agent:
    """State transfer of one group on one connection."""

    def __init__(
        self,
        protocol: ClientProtocol,
        name: str,
        state: State,
        level: JoinLevel | None,
        *,
        persistent: bool,
        holders: int = 0,
        open_group: bool,
        no_self: bool,
    ) -> None:
        """Join the companion group and the group. Raises BadLevel for a level below preack, StateFailed if the cluster's
        ``message_max`` is too small, and what ``ClientProtocol.join`` raises."""
        welcome = protocol.welcome
        if welcome is None:
            raise ClientError("the daemon has not answered yet")
        if level in ("ordered", "accepted"):
            raise BadLevel("a group with state needs level preack or ack: at ordered a donor may know what no other member will")
        self.ready: Ticket[None] = Ticket()
        """Settled when the program has a state and may read."""
        self.me: Who = (welcome.station, welcome.client)
        self._protocol = protocol
        self._bus = welcome.medium == "bus"
        self._name = name
        self._queue = SpillQueue()
        options = Options(welcome.message_max, secrets.randbits(64), (holders or welcome.stations) if persistent else 0)
        try:
            self.transfer: Transfer[Item] = Transfer(self.me, state, options, self._queue)
        except UsageError as error:
            raise StateFailed(str(error)) from None
        self._mailbox: Membership | None = None
        self._outboxes: dict[Who, _Outbox] = {}
        self._chunks_under_way = 0
        self._digesting: list[_Digesting] = []
        self._charged = 0
        self._closed = False
        self._busy = False
        side = partial(_Side, self.sort)
        # The companion first (rule X1): a member of the group is one of the companion.
        self._companion = protocol.join(companion_of(name), level, kind=side)
        try:
            joined = protocol.join(name, level, open_group=open_group, no_self=no_self, kind=partial(StateMembership, self))
        except BaseException:
            protocol.leave(self._companion)
            raise
        assert isinstance(joined, StateMembership)
        self.membership: StateMembership = joined
        # One list for both: their messages and views in the one order in which the daemon sends them.
        self._raw: list[Item] = self._companion.items
        self.membership.items = self._raw
        for membership in (self._companion, self.membership):
            membership.joined.on_settled = self._joined
        protocol.agents.append(self)

    # ---- the program

    def poll(self) -> int:
        """The program has finished with what it has read; returns how many items it can read now."""
        count = self.transfer.poll(time.monotonic_ns())
        self._carry_out()
        return self.transfer.readable if not self._closed else count

    def read(self) -> list[Item]:
        """The next items, up to the next place at which the program's state is needed."""
        items = self.transfer.read(BATCH_MAX)
        self._charge()
        return items

    def fail(self, reason: str) -> None:
        """The program's state is wrong: get it again."""
        self.transfer.fail(time.monotonic_ns(), reason)
        self._carry_out()

    def allow(self) -> None:
        """The state may be asked for now (``stateapi.Gated``)."""
        self.transfer.allow(time.monotonic_ns())
        self._carry_out()

    def awaited(self) -> Awaited | None:
        """What a START waits for; None: the group has active members, or that is not known."""
        return self.transfer.roster.awaited()

    def force_start(self) -> None:
        """Start with what the members here have, without a quorum of a persistent group's holders."""
        self.transfer.roster.force = True

    def leave(self) -> None:
        """Leave the group and all that belongs to it."""
        self._protocol.leave(self.membership)

    # ---- time

    def next_deadline_ns(self) -> int:
        """When ``on_time`` is due, monotonic nanoseconds."""
        if self._closed:
            return NEVER
        at = self.transfer.next_deadline()
        return min(at, time.monotonic_ns() + LOOK_NS) if self._digesting else at

    def on_time(self, now_ns: int) -> None:
        """Do what is due."""
        if self._closed:
            return
        for digesting in [d for d in self._digesting if not d.thread.is_alive()]:
            self._digesting.remove(digesting)
            self.transfer.on_digest(now_ns, digesting.effect.joiner, digesting.effect.number, digesting.result)
            self._carry_out()
        if now_ns >= self.transfer.next_deadline():
            self.transfer.on_timeout(now_ns)
            self._carry_out()

    # ---- the daemon's side

    def sort(self) -> None:
        """Take what the daemon has sent for the group and its companion."""
        if self._closed:
            return
        items = self._raw[:]
        self._raw.clear()
        for membership in (self._companion, self.membership):
            self._protocol.consumed(membership.bytes)
            membership.bytes = 0
        now = time.monotonic_ns()
        last: Item | None = None
        for item in items:
            if item is not last:  # an event is in both groups
                try:
                    self._sort(now, item)
                except OSError as error:
                    self._fail(StateFailed(f"messages cannot be kept: {error}"))
                    return
            last = item
        self._carry_out()

    def _sort(self, now: int, item: Item) -> None:
        transfer = self.transfer
        if isinstance(item, Message):
            if item.group == self._name:
                transfer.on_item(now, item, item.place, len(item.data) + ITEM_OVERHEAD)
            else:
                transfer.on_control(now, item.place, (item.station, item.client), item.data)
        elif isinstance(item, View):
            joined = [m[:2] for m in item.joined]
            if item.group == self._name:
                transfer.on_item(now, item, item.place, ITEM_OVERHEAD)
                if self.me in joined:
                    transfer.on_group(now)
            else:
                transfer.on_view(now, item.place, [m[:2] for m in item.members], joined, [m[:2] for m in item.left])
        else:
            transfer.on_item(now, item, NOWHERE, ITEM_OVERHEAD)

    def _take_data(self) -> None:
        mailbox = self._mailbox
        if mailbox is None or self._closed:
            return
        items, weight, _ = mailbox.take()
        self._protocol.consumed(weight)
        now = time.monotonic_ns()
        for item in items:
            if isinstance(item, Message):
                self.transfer.on_data(now, (item.station, item.client), item.data)
        self._carry_out()

    def _joined(self) -> None:
        for membership in (self._companion, self.membership):
            if membership.joined.settled:
                try:
                    membership.joined.result()
                except ClientError as error:
                    self._fail(error)

    # ---- effects

    def _carry_out(self) -> None:
        if self._busy:
            return  # a call below has come back here: the loop above continues
        self._busy = True
        try:
            while not self._closed and (effects := self.transfer.take()):
                for effect in effects:
                    # The end of the connection or station is reported elsewhere; the machine learns of it by its views.
                    with contextlib.suppress(ClientError):
                        self._do(effect)
        finally:
            self._busy = False
        if self._closed:
            return
        if self.transfer.failed is not None:
            self._fail(StateFailed(f"group {self._name!r}: {self.transfer.failed}"))
            return
        self._charge()
        if self.transfer.stands:
            self.ready.settle(None)
        if self.transfer.readable and self.membership.wake is not None:
            self.membership.wake()

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, ToGroup):
            self._protocol.send(self._companion, effect.data, "sent")
        elif isinstance(effect, ToJoiner):
            self._to_joiner(effect)
        elif isinstance(effect, OpenMailbox):
            self._open_mailbox()
        elif isinstance(effect, CloseMailbox):
            if self._mailbox is not None:
                self._protocol.leave(self._mailbox)
                self._mailbox = None
        elif isinstance(effect, Release):
            if outbox := self._outboxes.pop(effect.joiner, None):
                self._protocol.leave(outbox.membership)
        elif isinstance(effect, Digest):
            self._digesting.append(_Digesting(effect))
        else:
            self._tell(effect)

    def _open_mailbox(self) -> None:
        mailbox = self._join_side(mailbox_of(self._name, self.me), send_only=False, take=self._take_data)
        self._mailbox = mailbox

        def joined() -> None:
            if self._mailbox is mailbox and mailbox.state == "joined":
                self.transfer.on_mailbox(time.monotonic_ns())
                self._carry_out()

        mailbox.joined.on_settled = joined

    def _to_joiner(self, effect: ToJoiner) -> None:
        outbox = self._outboxes.get(effect.joiner)
        if outbox is None:
            membership = self._join_side(mailbox_of(self._name, effect.joiner), send_only=True, take=lambda: None)
            outbox = self._outboxes[effect.joiner] = _Outbox(membership)
            membership.joined.on_settled = partial(self._outbox_joined, effect.joiner)
        outbox.waiting[effect.data] = None
        self._send_chunks()

    def _outbox_joined(self, joiner: Who) -> None:
        outbox = self._outboxes.get(joiner)
        if outbox is not None and outbox.membership.state != "joined":
            del self._outboxes[joiner]
        self._send_chunks()

    def _send_chunks(self) -> None:
        """Give the daemon of each joiner's chunks in turn, as many as may be under way."""
        level: SendLevel = "ack" if self._bus else "ordered"
        ready = [outbox for outbox in self._outboxes.values() if outbox.waiting and outbox.membership.state == "joined"]
        while ready and self._chunks_under_way < CHUNKS_BYTES_MAX and not self._closed:
            for outbox in list(ready):
                data = next(iter(outbox.waiting))
                del outbox.waiting[data]
                if not outbox.waiting:
                    ready.remove(outbox)
                try:
                    ticket = self._protocol.send(outbox.membership, data, level)
                except ClientError:  # the end of the connection or station is reported elsewhere
                    outbox.waiting.clear()
                    return
                if ticket is not None:
                    self._chunks_under_way += len(data)
                    ticket.on_settled = partial(self._chunk_delivered, len(data))

    def _chunk_delivered(self, size: int) -> None:
        self._chunks_under_way -= size
        self._send_chunks()

    def _join_side(self, name: str, *, send_only: bool, take: Callable[[], None]) -> Membership:
        # Medium bus has no order op. There the total order carries the bytes.
        order: Order = "total" if self._bus else "op"
        level: Level = "ack" if self._bus else "ordered"
        return self._protocol.join(name, level, order=order, open_group=True, send_only=send_only, kind=partial(_Side, take))

    def _tell(self, note: Note) -> None:
        if self._protocol.on_event is None:
            return
        name = note.kind if note.kind in ("state-lost", "diverged") else "state"
        detail = {"group": self._name, "step": note.kind, "text": note.text, "bytes": note.size, "total": note.total}
        self._protocol.on_event(Event(name, self._protocol.instance, detail={**detail, "place": note.place}))

    def _charge(self) -> None:
        """What an active member has not read counts as unread, so that the daemon feels it. A joiner's messages are bounded by
        the queue."""
        charge = self._queue.bytes if self.transfer.active else 0
        self._protocol.consumed(self._charged - charge)
        self._charged = charge

    def _fail(self, error: ClientError) -> None:
        if not self._closed:
            self.ready.fail(error)
            self._protocol.leave(self.membership, error)

    def close(self, error: ClientError | None) -> None:
        """The group has been left, or the connection has ended."""
        if self._closed:
            return
        self._closed = True
        self.ready.fail(error or StateFailed(f"group {self._name!r} has been left"))
        self._protocol.consumed(self._charged)
        self._charged = 0
        self._queue.clear()
        self.transfer.close()
        if self in self._protocol.agents:
            self._protocol.agents.remove(self)
        sides = [self._companion, self._mailbox, *(outbox.membership for outbox in self._outboxes.values())]
        for side in sides:
            if side is not None:
                self._protocol.leave(side)


class StateFacts:
    """What a group with state reports about it; mixed into both clients' groups."""

    _membership: Membership

    @property
    def _agent(self) -> Agent:
        assert isinstance(self._membership, StateMembership)
        return self._membership.agent

    @property
    def active(self) -> bool:
        """This program's state is the group's, and it may be asked for it. False while it catches up."""
        return self._agent.transfer.active

    @property
    def place(self) -> Place:
        """Position up to which the state contains the group's messages, those of the last read included."""
        return self._agent.transfer.place

    @property
    def progress(self) -> tuple[int, int]:
        """(bytes of the state that have come, bytes in all) of a transfer to this program; -1: not known."""
        return self._agent.transfer.progress

    @property
    def serving(self) -> int:
        """Number of programs that read the state from this one now."""
        return len(self._agent.transfer.donations)

    def state_wrong(self, reason: str) -> None:
        """The program has found its state to be wrong: get the whole state from the others. Reading stops until it is here."""
        self._agent.fail(reason)

    def force_start(self) -> None:
        """For an operator: of a persistent group, start with what the members here have, without the rest of the holders."""
        self._agent.force_start()
