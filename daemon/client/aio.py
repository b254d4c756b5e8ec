"""The client for asyncio (any loop, uvloop included)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from ...proto.service.roster import Awaited
from ...proto.service.stateapi import State
from ...proto.service.transferwire import companion_of
from ...proto.timers import NEVER
from .base import TRY_AGAIN, BaseConnection, BaseGroup, Flight, Patience, left
from .common import (
    DEFAULT,
    PIPELINE_WINDOW,
    TIMEOUT_S,
    Seconds,
    Wire,
    members_of,
    open_socket,
    program_name,
    socket_path,
    stations_of,
    timed_out,
    tokens_of,
)
from .errors import ClientError, Timeout
from .protocol import INBOX_BYTES_MAX, ClientProtocol, Membership
from .ticket import Ticket
from .transfer import Agent, StateFacts
from .types import Event, Item, JoinLevel, Member, Message, Order, SendLevel, Station, Tokens

_T = TypeVar("_T")
AHEAD_BYTES_MAX: Final = 1 << 20
"""Bytes that ``send_nowait`` queues in one turn of the loop."""


class _Link:
    """Drives one ``Wire`` from the running loop by readiness, which every Unix loop has (uvloop too)."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.loop = asyncio.get_running_loop()
        self.reading = False
        self.writing = False
        self.open = True
        self._drained: deque[asyncio.Future[None]] = deque()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ns = 0
        self._flushing = False
        self.steer()

    @property
    def full(self) -> bool:
        """True while the daemon does not take what we write: back-pressure."""
        return self.writing

    def flush(self) -> None:
        """Write what is queued; what the socket does not take now goes out when it does."""
        self.wire.check_owner()
        if not self.writing and self.wire.protocol.out_bytes:
            self._write()
        if self.wire.protocol.agents or self._alarm is not None:
            self._set_alarm()

    def flush_soon(self) -> None:
        """``flush`` when the loop has done what is ready now."""
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = False
        if self.open:
            self.flush()

    def steer(self) -> None:
        """Stop or start reading, as the unread bytes and the waiting calls want it; close at the end of the connection."""
        protocol = self.wire.protocol
        if protocol.ended.settled:
            self.close()
        elif self.open and self.reading != protocol.may_read:
            self.reading = not self.reading
            if self.reading:
                self.loop.add_reader(self.wire.socket, self._on_readable)
            else:
                self.loop.remove_reader(self.wire.socket)

    def drained(self) -> asyncio.Future[None]:
        """A future that is set when everything has been written."""
        future: asyncio.Future[None] = self.loop.create_future()
        self._drained.append(future)
        return future

    def close(self) -> None:
        """Take the socket from the loop and close it, once."""
        if not self.open:
            return
        self.open = False
        if self._alarm is not None:
            self._alarm.cancel()
        if self.reading:
            self.loop.remove_reader(self.wire.socket)
        self._stop_writing()
        self.wire.socket.close()

    def _on_readable(self) -> None:
        self.wire.read()
        if self.wire.protocol.agents:
            self.flush()
        self.steer()

    def _set_alarm(self) -> None:
        """Wake the agents when the first of them wants it."""
        due = self.wire.protocol.next_deadline_ns()
        if self._alarm is not None:
            if due == self._alarm_ns:
                return
            self._alarm.cancel()
            self._alarm = None
        if due is not None and due < NEVER and self.open:
            self._alarm_ns = due
            self._alarm = self.loop.call_later(max(0.0, (due - time.monotonic_ns()) / 1e9), self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        self.wire.protocol.on_time(time.monotonic_ns())
        self.flush()
        self.steer()

    def _write(self) -> None:
        self.wire.flush()
        if not self.wire.unwritten or self.wire.protocol.ended.settled:
            self._stop_writing()
            self.steer()
        elif not self.writing:
            self.writing = True
            self.loop.add_writer(self.wire.socket, self._write)

    def _stop_writing(self) -> None:
        if self.writing:
            self.writing = False
            self.loop.remove_writer(self.wire.socket)
        while self._drained:
            future = self._drained.popleft()
            if not future.done():
                future.set_result(None)


class Group(BaseGroup):
    """A joined group. Iterating gives its messages in the total order; ``items`` gives views and events between them as well.

    All ways of reading take from one inbox: what one has returned, the others do not return again. Only one task may read at a
    time.
    """

    def __init__(self, connection: Connection, membership: Membership) -> None:
        super().__init__(connection._protocol, membership)
        self._connection = connection
        self._waiter: asyncio.Future[None] | None = None
        membership.on_items = self._wake

    # ---- sending

    async def send(self, data: bytes, level: SendLevel = "preack", timeout: Seconds = DEFAULT) -> None:
        """Send one message to the group and return when it has reached ``level``.

        data:    0 bytes to ``message_max`` (16 MiB unless configured lower).
        level:   ``ordered``, ``preack`` (every station has it: safe), ``ack``; ``sent`` or None: only until it is queued.
        timeout: seconds; None waits forever. Default: the connection's. Raises TooLarge before anything is sent, Timeout,
        Undecided (this station's instance ended meanwhile), ClosedGroup, NotMember, Fenced, ConnectionClosed.
        """
        connection = self._connection
        ticket = self._protocol.send(self._membership, data, level)
        connection._link.flush()
        if connection._link.full:
            await connection._drain(timeout)
        if ticket is not None:
            await connection._wait(ticket, timeout, "sending")

    def send_nowait(self, data: bytes) -> bool:
        """Queue one message (level ``sent``) without waiting: for callbacks. What is queued in one turn of the loop goes out
        together after it.

        False: the daemon does not take so much now (back-pressure), and the message is not queued; ``await
        connection.writable()``, and try again. Other errors are those of ``send``.
        """
        connection = self._connection
        if connection._link.full or self._protocol.out_bytes >= AHEAD_BYTES_MAX:
            return False
        self._protocol.send(self._membership, data, "sent")
        connection._link.flush_soon()
        return True

    async def send_many(
        self,
        messages: Iterable[bytes],
        level: SendLevel = "preack",
        timeout: Seconds = DEFAULT,
        *,
        window: int = PIPELINE_WINDOW,
    ) -> int:
        """Send all messages, at most ``window`` of them (and 4 MiB) under way at a time; returns how many when all have reached
        ``level``.

        timeout: seconds without any progress. Messages are collected to runs of 64 KiB before they are written: for a slow source
        use ``pipeline`` and ``flush``. Errors are those of ``send``; ``error.completed`` is the number that had reached the
        level.
        """
        async with self.pipeline(level, timeout, window=window) as pipeline:
            for data in messages:
                if pipeline._add(data):
                    await pipeline.flush()
        return pipeline.completed

    def pipeline(self, level: SendLevel = "preack", timeout: Seconds = DEFAULT, *, window: int = PIPELINE_WINDOW) -> Pipeline:
        """Many sends under way at once: ``async with group.pipeline() as p: await p.put(data)``; leaving it waits for all of
        them."""
        return Pipeline(self, level, timeout, window)

    # ---- receiving

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.messages()

    async def messages(self, timeout: float | None = None) -> AsyncIterator[Message]:
        """Messages until the group is left or the connection closed here.

        timeout: longest wait for the next one, seconds. Raises Timeout, ConnectionClosed, SlowReceiver, Fenced.
        """
        self._connection._link.wire.check_owner()
        while self._at < len(self._ready) or await self._refill(timeout):
            item = self._step()
            if type(item) is Message:
                yield item

    async def items(self, timeout: float | None = None) -> AsyncIterator[Item]:
        """Messages, views and events in order; otherwise like ``messages``."""
        while (item := await self._next(timeout)) is not None:
            yield item

    async def recv(self, timeout: Seconds = DEFAULT) -> Message:
        """The next message. Raises Timeout after ``timeout`` seconds, NotMember if the group was left, else like ``messages``."""
        deadline = self._connection._deadline(timeout)
        while True:
            item = await self._next(left(deadline))
            if item is None:
                raise self._left_group()
            if type(item) is Message:
                return item

    async def recv_batch(self, timeout: Seconds = DEFAULT) -> list[Message]:
        """All messages that are here, at least one: the fast way to read. Same errors as ``recv``."""
        deadline = self._connection._deadline(timeout)
        while True:
            items = await self.recv_items(left(deadline))
            if not self._mixed:
                return cast(list[Message], items)
            if messages := [item for item in items if type(item) is Message]:
                return messages

    async def recv_items(self, timeout: Seconds = DEFAULT) -> list[Item]:
        """All messages, views and events that are here, at least one. Same errors as ``recv``."""
        self._connection._link.wire.check_owner()
        if self._at == len(self._ready) and not await self._refill(self._connection._seconds(timeout)):
            raise self._left_group()
        return self._take_rest()

    async def leave(self) -> None:
        """Leave the group; does nothing the second time. Iteration ends after what has come already."""
        self._protocol.leave(self._membership)
        self._connection._link.flush()

    async def __aenter__(self) -> Group:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if not self._connection._link.wire.foreign:
            await self.leave()

    async def _next(self, timeout: float | None) -> Item | None:
        self._connection._link.wire.check_owner()
        if self._at == len(self._ready) and not await self._refill(timeout):
            return None
        return self._step()

    async def _refill(self, timeout: float | None) -> bool:
        """Take what the inbox holds, waiting for something. False: the end, on purpose."""
        connection = self._connection
        self._check_receives()
        connection._link.wire.check_owner()
        waiting = self._must_wait()
        connection._link.flush()
        if waiting:
            if self._waiter is not None:
                raise RuntimeError("two tasks read one group at the same time")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await connection._expiring(self._waiter, timeout, self._what)
            finally:
                self._waiter = None
        return self._take()

    def _give_back(self) -> None:
        super()._give_back()
        if not self._connection._link.reading:
            self._connection._link.steer()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class StateGroup(StateFacts, Group):
    """A group joined with ``state``: its first message is the one after the state."""

    def state_wrong(self, reason: str) -> None:
        super().state_wrong(reason)
        # The program reads nothing meanwhile, and in a silent group nothing else would write what is queued.
        self._connection._link.flush_soon()

    def force_start(self) -> None:
        super().force_start()
        self._connection._link.flush_soon()


class Pipeline(Flight):
    """Sends of one task with a bounded number under way. See ``Group.pipeline``."""

    def __init__(self, group: Group, level: SendLevel, timeout: Seconds, window: int) -> None:
        super().__init__(group._protocol, group._membership, level, window)
        self._group = group
        self._timeout = timeout

    async def put(self, data: bytes) -> None:
        """Queue one message; waits while the window is full. Errors are those of ``Group.send``."""
        if self._add(data):
            await self.flush()

    async def flush(self) -> None:
        """Write what ``put`` has collected."""
        connection = self._group._connection
        run, size = self._take_run()
        if not run:
            return
        try:
            while self._full(len(run), size):
                await self._oldest()
            self._launch(run, size)
            connection._link.flush()
            if connection._link.full:
                await connection._drain(self._timeout)
        except ClientError as error:
            self._count_in(error)
            raise

    async def wait(self) -> int:
        """Write what is left and wait until all has reached the level; returns how many messages that were."""
        await self.flush()
        try:
            while self._flight:
                await self._oldest()
        except ClientError as error:
            self._count_in(error)
            raise
        return self.completed

    async def _oldest(self) -> None:
        ticket = self._flight[0][0]
        if ticket is not None:
            try:
                await self._group._connection._wait(ticket, self._timeout, "sending")
            except Timeout:
                raise
            except ClientError:
                self._land(reached=False)
                raise
        self._land(reached=True)

    async def __aenter__(self) -> Pipeline:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            await self.wait()


class Connection(BaseConnection):
    """A connection to the local daemon; made by ``connect``. Its tasks belong to one event loop, and to the process that made it:
    in a forked child its calls raise RuntimeError, and ``close`` only closes the child's descriptor; connect again there."""

    def __init__(self, protocol: ClientProtocol, link: _Link, timeout: float | None) -> None:
        super().__init__(protocol, timeout)
        self._link = link

    # ---- calls

    async def join(
        self,
        name: str,
        level: JoinLevel | None = None,
        *,
        order: Order = "total",
        open_group: bool = False,
        send_only: bool = False,
        no_self: bool = False,
        receive: bool = True,
        state: State | None = None,
        persistent: bool = False,
        holders: int = 0,
        timeout: Seconds = DEFAULT,
    ) -> Group:
        """Become a member of a group (made by its first member) and get its messages from here on.

        name:       1..128 bytes of UTF-8.
        level:      level of delivery; the default, ``preack``, is safe.
        order:      ``op``: messages are delivered as soon as they arrive, in each sender's order only, and may be lost to the
                    others if this station is expelled. The first member decides. There is one level: ``accepted``.
        open_group: programs that are not members may send to it. The first member decides.
        send_only:  no membership, only a handle to send to an open group.
        no_self:    own messages are not delivered to this program.
        receive:    False: be a member (and be able to send) but drop received messages.
        state:      an object with ``have``, ``snapshot`` and ``restore`` (docs/state-transfer.md). The call returns when the
                    state is complete; the first message read is the one after it. A large state takes longer than the default
                    ``timeout``. Level preack or ack. Raises StateFailed.
        persistent: with ``state``: the group starts only with what a quorum of the stations has, or all of them.
        holders:    with ``persistent``: number of stations that keep the state; 0: all of the cluster.
        Returns after the first view, which waits until the cluster is open. Raises Timeout, BadName, NameCollision,
        OrderMismatch, BadLevel, ClosedGroup.
        """
        deadline = self._deadline(timeout)
        for part in (name, companion_of(name)) if state is not None else (name,):
            while (gone := self._protocol.leaving(part)) is not None:
                await self._told(gone, left(deadline), f"leaving group {name!r} before joining it again")
        if state is not None:
            agent = Agent(
                self._protocol, name, state, level,
                persistent=persistent, holders=holders, open_group=open_group, no_self=no_self,
            )  # fmt: skip
            try:
                await self._told(agent.ready, left(deadline), f"getting the state of group {name!r}")
            except (Timeout, asyncio.CancelledError):
                agent.leave()
                self._link.flush()
                raise
            return StateGroup(self, agent.membership)
        membership = self._protocol.join(
            name, level, order=order, open_group=open_group, send_only=send_only, no_self=no_self, receive=receive
        )
        try:
            await self._told(membership.joined, left(deadline), f"joining group {name!r}")
        except (Timeout, asyncio.CancelledError):
            self._protocol.leave(membership)
            self._link.flush()
            raise
        return Group(self, membership)

    async def status(self, timeout: Seconds = DEFAULT) -> dict[str, Any]:
        """The daemon's status, the object of docs/status.md."""
        return await self._told(self._protocol.status(), timeout, "asking for the status")

    async def send(self, data: bytes, groups: Sequence[Group], level: SendLevel = "preack", timeout: Seconds = DEFAULT) -> None:
        """Send one message to several groups, all of order ``abcast`` or all of order ``token`` (docs/groups.md). A program that
        is in several of them gets it once. Otherwise like ``Group.send``; also ValueError for no group."""
        ticket = self._protocol.send_to([group._membership for group in groups], data, level)
        self._link.flush()
        if self._link.full:
            await self._drain(timeout)
        if ticket is not None:
            await self._wait(ticket, timeout, "sending")

    async def members(self, group: str = "", timeout: Seconds = DEFAULT) -> tuple[Member, ...]:
        """Members of a group as this daemon knows them; for the empty name, the stations of the instance (client 0, name of the
        host)."""
        return members_of(await self._told(self._protocol.members(group), timeout, "asking for the members"))

    async def tokens(self, group: str, timeout: Seconds = DEFAULT) -> Tokens | None:
        """Who orders the messages of a group of order ``token``; None: it has no members, or another order."""
        return tokens_of(await self._told(self._protocol.members(group), timeout, "asking for the tokens"))

    async def stations(self, timeout: Seconds = DEFAULT) -> tuple[Station, ...]:
        """All stations of the cluster, members of the instance or not, as this daemon knows them."""
        return stations_of(await self._told(self._protocol.members(""), timeout, "asking for the stations"))

    async def expel(self, station: int, timeout: Seconds = DEFAULT) -> str:
        """As an operator, have the others continue without ``station`` (1..n). Returns a human-readable line once that is
        proposed; ``ClusterView`` reports when it has happened. Raises NotPermitted, Refused (no member, the own station, no
        quorum)."""
        return await self._admin("expelling a station", timeout, "expel", station=station)

    async def leave_cluster(self, timeout: Seconds = DEFAULT) -> str:
        """As an operator, have this station leave: its daemon announces that and ends. Returns a human-readable line. Raises
        NotPermitted."""
        return await self._admin("leaving the cluster", timeout, "leave")

    async def _admin(self, what: str, timeout: Seconds, command: str, **arguments: int) -> str:
        ticket = self._protocol.admin(command, **arguments)
        return str((await self._told(ticket, timeout, what)).get("message", ""))

    async def close(self, timeout: float | None = 5.0) -> bool:
        """Send BYE and close. True if the daemon confirmed within ``timeout`` seconds that everything sent has been broadcast.

        Never raises for what the daemon does; closing twice is harmless. Unread messages are dropped. In a forked child: closes
        its descriptor, and the parent's connection continues; False.
        """
        if self._link.wire.foreign:  # the loop is the parent's, and so is its epoll: leave both alone
            self._link.open = False
            self._link.wire.abandon()
            return False
        self._protocol.bye()
        self._link.flush()
        self._link.steer()
        clean = True
        try:
            await self._wait(self._protocol.ended, timeout, "closing")
        except ClientError:
            clean = False
        finally:
            self._protocol.lost(None)
            self._link.close()
        return clean

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # After an error do not wait for a daemon that may be the cause of it.
        await self.close() if kind is None else await self.close(timeout=0.0)

    async def writable(self, timeout: Seconds = DEFAULT) -> None:
        """Return when the daemon has taken what is queued: ``send_nowait`` queues again. Raises Timeout."""
        self._link.flush()
        await self._drain(timeout)

    def state_allowed(self, group: str) -> None:
        """The state of a group may be asked for now, which its ``may_ask`` has not allowed before (``stateapi.Gated``)."""
        for agent in self._agents_of(group):
            agent.allow()
        self._link.flush()

    def force_start(self, group: str) -> None:
        """As an operator: a persistent group that is being joined, or waits, starts with what the members here have, without the
        rest of the holders. Does nothing for another group."""
        for agent in self._agents_of(group):
            agent.force_start()
        self._link.flush()

    def start_awaited(self, group: str) -> Awaited | None:
        """What the START of a persistent group waits for; None: it has started, or that is not known here."""
        return next((agent.awaited() for agent in self._agents_of(group)), None)

    def _agents_of(self, group: str) -> list[Agent]:
        return [agent for agent in self._protocol.agents if isinstance(agent, Agent) and agent.membership.name == group]

    # ---- waiting

    async def _told(self, ticket: Ticket[_T], timeout: Seconds, what: str) -> _T:
        self._link.flush()  # what asks for it
        return await self._wait(ticket, timeout, what)

    async def _wait(self, ticket: Ticket[_T], timeout: Seconds, what: str) -> _T:
        self._link.wire.check_owner()
        if not ticket.settled:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def settled() -> None:
                if not future.done():
                    future.set_result(None)

            before = ticket.on_settled
            if before is None:
                ticket.on_settled = settled
            else:
                first = before

                def both() -> None:
                    first()
                    settled()

                ticket.on_settled = both
            if not self._link.reading:
                self._link.steer()
            await self._expiring(future, self._seconds(timeout), what)
        return ticket.result()

    async def _drain(self, timeout: Seconds) -> None:
        """Wait until the transport has room again: the daemon's back-pressure."""
        if self._link.full:
            await self._expiring(self._link.drained(), self._seconds(timeout), "writing to the daemon")

    async def _expiring(self, future: asyncio.Future[None], timeout: float | None, what: str) -> None:
        if timeout is None:
            await future
            return
        # A bare timer, for wait_for and asyncio.timeout cost more than the rest of a send.
        handle = asyncio.get_running_loop().call_later(timeout, self._expire, future, what, timeout)
        try:
            await future
        finally:
            handle.cancel()

    def _expire(self, future: asyncio.Future[None], what: str, timeout: float) -> None:
        if not future.done():
            future.set_exception(timed_out(self._protocol, what, timeout))


class connect:
    """Connect to the local daemon: ``async with connect() as c:`` or ``c = await connect()``.

    path:            the daemon's socket; default $ZENJUN_SOCKET, else /run/zenjun/zenjund.sock.
    name:            what the daemon shows this program as; default the script's name.
    wait:            seconds to keep trying while no daemon answers (None: forever); 0: try once.
    timeout:         default for each call on the connection, seconds; None: forever.
    inbox_bytes_max: bytes unread in all groups above which the library stops reading, so that the daemon holds messages back.
    on_event:        called with each Event, within the loop; must not block.
    Raises NotReachable, VersionMismatch, Busy, Timeout.

    A whole program::

        import asyncio
        from zenjun.client import connect

        async def main():
            async with connect() as c:
                chat = await c.join("chat")
                await chat.send(b"hello")
                async for m in chat:
                    print(m.station, m.data)

        asyncio.run(main())
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        name: str | None = None,
        wait: float | None = 0.0,
        timeout: float | None = TIMEOUT_S,
        inbox_bytes_max: int = INBOX_BYTES_MAX,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self._path = socket_path(path)
        self._name = program_name() if name is None else name
        self._wait = wait
        self._timeout = timeout
        self._inbox_bytes_max = inbox_bytes_max
        self._on_event = on_event
        self._connection: Connection | None = None

    def __await__(self) -> Generator[Any, None, Connection]:
        return self._open().__await__()

    async def __aenter__(self) -> Connection:
        self._connection = await self._open()
        return self._connection

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._connection is not None:
            await self._connection.__aexit__(kind, error, tb)

    async def _open(self) -> Connection:
        patience = Patience(self._wait)
        while True:
            try:
                return await self._once()
            except TRY_AGAIN as error:
                await asyncio.sleep(patience.after(error))

    async def _once(self) -> Connection:
        protocol = ClientProtocol(self._name, self._inbox_bytes_max)
        protocol.on_event = self._on_event
        link = _Link(Wire(open_socket(self._path), protocol))
        connection = Connection(protocol, link, self._timeout)
        try:
            link.flush()
            await connection._wait(protocol.welcomed, self._timeout, "waiting for the daemon's first answer")
        except BaseException:
            link.close()
            raise
        return connection


async def sessions(path: str | None = None, *, wait: float | None = None, **options: Any) -> AsyncIterator[Connection]:
    """A connection again and again: ``async for c in sessions(): ...``; take ``ConnectionClosed`` in the body and ``continue``.

    Waits for the daemon each time (``wait`` seconds; None: forever). The program decides about messages that were not confirmed
    before the connection was lost; groups must be joined again. Other options are those of ``connect``.
    """
    while True:
        connection = await connect(path, wait=wait, **options)
        try:
            yield connection
        finally:
            await connection.close()
