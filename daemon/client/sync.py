"""The client for programs without an event loop: the same calls, blocking."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar, cast

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
    why_ended,
)
from .errors import ClientError, ConnectionClosed, InboxFull, Timeout
from .protocol import INBOX_BYTES_MAX, ClientProtocol, Membership
from .ticket import Ticket
from .transfer import Agent, StateFacts
from .types import Event, Item, JoinLevel, Member, Message, Order, SendLevel, Station, Tokens

_T = TypeVar("_T")


class SyncGroup(BaseGroup):
    """A joined group. Iterating gives its messages in the total order; ``items`` gives views and events between them as well.

    All ways of reading take from one inbox: what one has returned, the others do not return again.
    """

    def __init__(self, connection: SyncConnection, membership: Membership) -> None:
        super().__init__(connection._protocol, membership)
        self._connection = connection

    # ---- sending

    def send(self, data: bytes, level: SendLevel = "preack", timeout: Seconds = DEFAULT) -> None:
        """Send one message to the group; return when it has reached ``level`` (``sent`` or None: when the kernel has taken it).

        Arguments and errors are those of ``Group.send``.
        """
        with self._connection._alone:
            ticket = self._protocol.send(self._membership, data, level)
            self._connection._complete(ticket, timeout, "sending")

    def send_nowait(self, data: bytes) -> bool:
        """Send one message (level ``sent``) without waiting. False: the kernel takes no more now (back-pressure), and the message
        is not queued; call ``connection.writable()``, and try again. Other errors are those of ``Group.send``."""
        connection = self._connection
        with connection._alone:
            connection._wire.flush()
            if connection._wire.unwritten:
                return False
            self._protocol.send(self._membership, data, "sent")
            connection._wire.flush()
            return True

    def send_many(
        self,
        messages: Iterable[bytes],
        level: SendLevel = "preack",
        timeout: Seconds = DEFAULT,
        *,
        window: int = PIPELINE_WINDOW,
    ) -> int:
        """Send all messages, with at most ``window`` of them under way; returns how many when all have reached ``level``.
        Arguments and errors are those of ``Group.send_many``."""
        with self.pipeline(level, timeout, window=window) as pipeline:
            for data in messages:
                pipeline.put(data)
        return pipeline.completed

    def pipeline(self, level: SendLevel = "preack", timeout: Seconds = DEFAULT, *, window: int = PIPELINE_WINDOW) -> SyncPipeline:
        """Many sends under way at once: ``with group.pipeline() as p: p.put(data)``; leaving it waits for all of them."""
        return SyncPipeline(self, level, timeout, window)

    # ---- receiving

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def messages(self, timeout: float | None = None) -> Iterator[Message]:
        """Messages until the group is left or the connection closed here.

        timeout: longest wait for the next one, seconds. Raises Timeout, ConnectionClosed, SlowReceiver, Fenced.
        """
        self._connection._wire.check_owner()
        while self._at < len(self._ready) or self._refill(timeout):
            item = self._step()
            if type(item) is Message:
                yield item

    def items(self, timeout: float | None = None) -> Iterator[Item]:
        """Messages, views and events in order; otherwise like ``messages``."""
        self._connection._wire.check_owner()
        while self._at < len(self._ready) or self._refill(timeout):
            yield self._step()

    def recv(self, timeout: Seconds = DEFAULT) -> Message:
        """The next message. Raises Timeout after ``timeout`` seconds, NotMember if the group was left, else like ``messages``."""
        self._connection._wire.check_owner()
        deadline = self._connection._deadline(timeout)
        while self._at < len(self._ready) or self._refill(left(deadline)):
            item = self._step()
            if type(item) is Message:
                return item
        raise self._left_group()

    def recv_batch(self, timeout: Seconds = DEFAULT) -> list[Message]:
        """All messages that are here, at least one: the fast way to read. Same errors as ``recv``."""
        deadline = self._connection._deadline(timeout)
        while True:
            items = self.recv_items(left(deadline))
            if not self._mixed:
                return cast(list[Message], items)
            if messages := [item for item in items if type(item) is Message]:
                return messages

    def recv_items(self, timeout: Seconds = DEFAULT) -> list[Item]:
        """All messages, views and events that are here, at least one. Same errors as ``recv``."""
        self._connection._wire.check_owner()
        if self._at == len(self._ready) and not self._refill(self._connection._seconds(timeout)):
            raise self._left_group()
        return self._take_rest()

    def leave(self) -> None:
        """Leave the group; does nothing the second time. Iteration ends after what has come already."""
        with self._connection._alone:
            self._protocol.leave(self._membership)
            self._connection._wire.flush()

    def __enter__(self) -> SyncGroup:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._connection._wire.foreign:
            self.leave()

    def _refill(self, timeout: float | None) -> bool:
        """Take what the inbox holds, waiting for something. False: the end, on purpose."""
        connection, membership = self._connection, self._membership
        self._check_receives()
        with connection._alone:
            if self._must_wait():
                connection._pump(lambda: membership.readable() or membership.state == "left", timeout, self._what)
            if self._protocol.agents:
                connection._wire.flush()
            return self._take()


class SyncStateGroup(StateFacts, SyncGroup):
    """A group joined with ``state``: its first message is the one after the state. The state is served to others only while the
    program is in a call, so a program that does not read for a long time serves no other member."""


class SyncPipeline(Flight):
    """Sends with a bounded number under way. See ``SyncGroup.pipeline``."""

    def __init__(self, group: SyncGroup, level: SendLevel, timeout: Seconds, window: int) -> None:
        super().__init__(group._protocol, group._membership, level, window)
        self._group = group
        self._timeout = timeout

    def put(self, data: bytes) -> None:
        """Queue one message; waits while the window is full. Errors are those of ``SyncGroup.send``."""
        if self._add(data):
            self.flush()

    def flush(self) -> None:
        """Write what ``put`` has collected."""
        connection = self._group._connection
        run, size = self._take_run()
        if not run:
            return
        with connection._alone:
            try:
                while self._full(len(run), size):
                    self._oldest()
                self._launch(run, size)
                connection._complete(None, self._timeout, "sending")
            except ClientError as error:
                self._count_in(error)
                raise

    def wait(self) -> int:
        """Write what is left and wait until all has reached the level; returns how many messages that were."""
        self.flush()
        with self._group._connection._alone:
            try:
                while self._flight:
                    self._oldest()
            except ClientError as error:
                self._count_in(error)
                raise
        return self.completed

    def _oldest(self) -> None:
        try:
            self._group._connection._complete(self._flight[0][0], self._timeout, "sending")
        except Timeout:
            raise
        except ClientError:
            self._land(reached=False)
            raise
        self._land(reached=True)

    def __enter__(self) -> SyncPipeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self.wait()


class _Alone:
    """Finds out two threads or processes in one connection, instead of letting them take each other's answers."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._wire.check_owner()
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("a sync connection is being used by two threads at once; give each thread its own connection")

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


class SyncConnection(BaseConnection):
    """A connection to the local daemon; made by ``connect_sync``.

    Threads: the connection and its groups may move from thread to thread, but only one may be in a call at a time (a second one
    gets RuntimeError). Programs with several threads open one connection each. Nothing happens between calls: a program that does
    not call for long is a slow receiver in the daemon's eyes once its queue there is full.

    Processes: a connection belongs to the process that made it. In a forked child its calls raise RuntimeError, and ``close``
    only closes the child's descriptor; connect again there.
    """

    def __init__(self, protocol: ClientProtocol, sock: socket.socket, timeout: float | None) -> None:
        super().__init__(protocol, timeout)
        self._wire = Wire(sock, protocol)
        self._alone = _Alone(self._wire)
        self._poll = select.poll()
        self._events = 0

    # ---- calls

    def join(
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
    ) -> SyncGroup:
        """Become a member of a group and get its messages from here on. Arguments and errors are those of ``Connection.join``.

        Returns after the first view, which waits until the cluster is open.
        """
        with self._alone:
            deadline = self._deadline(timeout)
            for part in (name, companion_of(name)) if state is not None else (name,):
                while (gone := self._protocol.leaving(part)) is not None:
                    self._complete(gone, left(deadline), f"leaving group {name!r} before joining it again")
            if state is not None:
                agent = Agent(
                    self._protocol, name, state, level,
                    persistent=persistent, holders=holders, open_group=open_group, no_self=no_self,
                )  # fmt: skip
                try:
                    self._complete(agent.ready, left(deadline), f"getting the state of group {name!r}")
                except (Timeout, KeyboardInterrupt):
                    agent.leave()
                    self._wire.flush()
                    raise
                return SyncStateGroup(self, agent.membership)
            membership = self._protocol.join(
                name, level, order=order, open_group=open_group, send_only=send_only, no_self=no_self, receive=receive
            )
            try:
                self._complete(membership.joined, left(deadline), f"joining group {name!r}")
            except (Timeout, KeyboardInterrupt):
                self._protocol.leave(membership)
                self._wire.flush()
                raise
            return SyncGroup(self, membership)

    def status(self, timeout: Seconds = DEFAULT) -> dict[str, Any]:
        """The daemon's status, the object of docs/status.md."""
        with self._alone:
            return self._answer(self._protocol.status(), timeout, "asking for the status")

    def send(self, data: bytes, groups: Sequence[SyncGroup], level: SendLevel = "preack", timeout: Seconds = DEFAULT) -> None:
        """Send one message to several groups. Arguments and errors are those of ``Connection.send``."""
        with self._alone:
            ticket = self._protocol.send_to([group._membership for group in groups], data, level)
            self._complete(ticket, timeout, "sending")

    def members(self, group: str = "", timeout: Seconds = DEFAULT) -> tuple[Member, ...]:
        """Members of a group as this daemon knows them; for the empty name, the stations of the instance (client 0, name of the
        host)."""
        with self._alone:
            return members_of(self._answer(self._protocol.members(group), timeout, "asking for the members"))

    def tokens(self, group: str, timeout: Seconds = DEFAULT) -> Tokens | None:
        """Who orders the messages of a group of order ``token``; None: it has no members, or another order."""
        with self._alone:
            return tokens_of(self._answer(self._protocol.members(group), timeout, "asking for the tokens"))

    def stations(self, timeout: Seconds = DEFAULT) -> tuple[Station, ...]:
        """All stations of the cluster, members of the instance or not, as this daemon knows them."""
        with self._alone:
            return stations_of(self._answer(self._protocol.members(""), timeout, "asking for the stations"))

    def expel(self, station: int, timeout: Seconds = DEFAULT) -> str:
        """As an operator, have the others continue without ``station`` (1..n). Returns a human-readable line once that is
        proposed; ``ClusterView`` reports when it has happened. Raises NotPermitted, Refused (no member, the own station, no
        quorum)."""
        return self._admin("expelling a station", timeout, "expel", station=station)

    def key(self, step: str, key: str = "", *, without_absent: bool = False, timeout: Seconds = DEFAULT) -> str:
        """As an operator, ``add`` a key to those that this station has (64 hexadecimal digits), or let the cluster ``rotate`` to
        one or ``retire`` one (its id, eight digits; empty: the newest). without_absent: although stations are away. Returns a
        human-readable line: a change has been proposed, not made. Raises NotPermitted, Refused."""
        arguments: dict[str, str | bool] = {"key": key} if step == "add" else {"id": key, "without_absent": without_absent}
        return self._admin("changing keys", timeout, "key", step=step, **arguments)

    def cluster(self, step: str, *, timeout: Seconds = DEFAULT, **arguments: int | str) -> dict[str, Any]:
        """As an operator, ``show`` the configuration of the cluster, or propose to ``set`` an ``option`` to a ``value`` (text),
        to ``add`` or ``remove`` a ``station`` (``absent``: although it is not heard). Returns the answer; its ``message`` is a
        human-readable line. A change has been proposed, not made: ``number`` is that of the configuration that it would make.
        Raises NotPermitted, Refused."""
        with self._alone:
            answer: dict[str, Any] = self._answer(
                self._protocol.admin("cluster", step=step, **arguments), timeout, "changing the cluster"
            )
            return answer

    def leave_cluster(self, timeout: Seconds = DEFAULT) -> str:
        """As an operator, have this station leave: its daemon announces that and ends. Returns a human-readable line. Raises
        NotPermitted."""
        return self._admin("leaving the cluster", timeout, "leave")

    def _admin(self, what: str, timeout: Seconds, command: str, **arguments: int | str) -> str:
        with self._alone:
            return str(self._answer(self._protocol.admin(command, **arguments), timeout, what).get("message", ""))

    def serve(self, seconds: float = 0.0) -> None:
        """Receive from the daemon for this time, in place of ``time.sleep``: a program that rarely sends stays a good receiver.

        Raises what ended the connection, InboxFull if the groups are not read.
        """
        with self._alone:
            with contextlib.suppress(Timeout):
                self._pump(lambda: False, seconds, "serving the connection")
            if self.closed:
                raise why_ended(self._protocol)

    def writable(self, timeout: Seconds = DEFAULT) -> None:
        """Return when the kernel has taken what is queued: ``send_nowait`` sends again. Raises Timeout."""
        with self._alone:
            self._complete(None, timeout, "writing to the daemon")

    def close(self, timeout: float | None = 5.0) -> bool:
        """Send BYE and close. True if the daemon confirmed within ``timeout`` seconds that everything sent has been broadcast.

        Never raises for what the daemon does; closing twice is harmless. Unread messages are dropped. In a forked child: closes
        its descriptor, and the parent's connection continues; False.
        """
        if self._wire.foreign:
            self._wire.abandon()
            return False
        with self._alone:
            self._protocol.bye()
            clean = True
            try:
                self._complete(self._protocol.ended, timeout, "closing")
            except ClientError:
                clean = False
            finally:
                self._protocol.lost(None)
                self._wire.socket.close()
            return clean

    def __enter__(self) -> SyncConnection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # After an error do not wait for a daemon that may be the cause of it.
        self.close() if kind is None else self.close(timeout=0.0)

    def fileno(self) -> int:
        """The socket, for ``select`` and the like: readable when a call may have something new."""
        return self._wire.socket.fileno()

    # ---- the pump

    def _answer(self, ticket: Ticket[_T], timeout: Seconds, what: str) -> _T:
        self._complete(ticket, timeout, what)
        return ticket.result()

    def _complete(self, ticket: Ticket[Any] | None, timeout: Seconds, what: str) -> None:
        """Write everything out; with a ticket, wait for it as well and raise its error."""
        protocol = self._protocol
        self._wire.flush()
        seconds = self._seconds(timeout)
        if ticket is not None:
            if not ticket.settled:
                self._pump(lambda: ticket.settled, seconds, what)
            ticket.result()
            return
        if self._wire.unwritten:
            self._pump(lambda: not self._wire.unwritten, seconds, what)
        if protocol.ended.settled:
            raise why_ended(protocol)

    def _pump(self, until: Callable[[], bool], timeout: float | None, what: str) -> None:
        """Read and write until the condition holds or the connection ends. Raises Timeout, InboxFull."""
        protocol = self._protocol
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._wire.flush()  # what it takes may be all that was waited for
            if until() or protocol.ended.settled:
                return
            reading = protocol.may_read
            events = (select.POLLIN if reading else 0) | (select.POLLOUT if self._wire.unwritten else 0)
            if not events:
                raise InboxFull(
                    f"{what}: {protocol.inbox_bytes} bytes are unread in the groups, and nothing can be answered before"
                )
            if events != self._events:
                self._poll.register(self._wire.socket, events)
                self._events = events
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = self._poll.poll(_milliseconds(left, protocol.next_deadline_ns()))
            if protocol.agents:
                protocol.on_time(time.monotonic_ns())
            if not ready:
                if deadline is not None and time.monotonic() >= deadline:
                    raise timed_out(protocol, what, timeout or 0.0)
                continue
            if reading:
                self._wire.read()
            elif ready[0][1] & (select.POLLHUP | select.POLLERR):
                protocol.lost(ConnectionClosed("the daemon closed the connection"))


def _milliseconds(left: float | None, due_ns: int | None) -> float | None:
    """How long to wait at most: the call's time, or until an agent wants to be woken."""
    if due_ns is None or due_ns >= NEVER:
        return None if left is None else left * 1000
    wake = max(0.0, (due_ns - time.monotonic_ns()) / 1e6)
    return wake if left is None else min(wake, left * 1000)


def connect_sync(
    path: str | None = None,
    *,
    name: str | None = None,
    wait: float | None = 0.0,
    timeout: float | None = TIMEOUT_S,
    inbox_bytes_max: int = INBOX_BYTES_MAX,
    on_event: Callable[[Event], None] | None = None,
) -> SyncConnection:
    """Connect to the local daemon; the arguments are those of ``connect``. ``on_event`` is called within other calls.

    A whole program::

        from zenjun.client import connect_sync

        with connect_sync() as c:
            chat = c.join("chat")
            chat.send(b"hello")
            for m in chat.messages(timeout=60):
                print(m.station, m.data)
    """
    where = socket_path(path)
    patience = Patience(wait)
    while True:
        try:
            return _connect_once(where, program_name() if name is None else name, timeout, inbox_bytes_max, on_event)
        except TRY_AGAIN as error:
            time.sleep(patience.after(error))


def _connect_once(
    path: str, name: str, timeout: float | None, inbox_bytes_max: int, on_event: Callable[[Event], None] | None
) -> SyncConnection:
    protocol = ClientProtocol(name, inbox_bytes_max)
    protocol.on_event = on_event
    sock = open_socket(path)
    try:
        connection = SyncConnection(protocol, sock, timeout)
        connection._answer(protocol.welcomed, timeout, "waiting for the daemon's first answer")
    except BaseException:
        sock.close()
        raise
    return connection


def sessions_sync(path: str | None = None, *, wait: float | None = None, **options: Any) -> Iterator[SyncConnection]:
    """A connection again and again: ``for c in sessions_sync(): ...``; take ``ConnectionClosed`` in the body and ``continue``.

    Waits for the daemon each time (``wait`` seconds; None: forever). The program decides about messages that were not confirmed
    before the connection was lost; groups must be joined again. Other options are those of ``connect_sync``.
    """
    while True:
        connection = connect_sync(path, wait=wait, **options)
        try:
            yield connection
        finally:
            connection.close()
