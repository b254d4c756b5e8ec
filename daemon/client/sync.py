"""The client for programs without an event loop: the same calls, blocking."""

from __future__ import annotations

import contextlib
import copy
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar, cast

from .common import (
    DEFAULT,
    PIPELINE_BYTES,
    PIPELINE_WINDOW,
    RETRY_FIRST_S,
    RETRY_MAX_S,
    RUN_BYTES,
    TIMEOUT_S,
    Default,
    Seconds,
    Wire,
    members_of,
    open_socket,
    program_name,
    socket_path,
    stations_of,
    timed_out,
    why_ended,
)
from .errors import Busy, ClientError, ConnectionClosed, DaemonClosing, Fenced, InboxFull, NotMember, NotReachable, Timeout
from .protocol import INBOX_BYTES_MAX, ClientProtocol, Membership
from .ticket import Ticket
from .types import Event, Item, JoinLevel, Level, Member, Message, Order, SendLevel, Station, View, Welcome

_T = TypeVar("_T")


class SyncGroup:
    """A joined group. Iterating gives its messages in the total order; ``items`` gives views and events between them as well.

    All ways of reading take from one inbox: what one has returned, the others do not return again.
    """

    def __init__(self, connection: SyncConnection, membership: Membership) -> None:
        self._connection = connection
        self._membership = membership
        self._ready: list[Item] = []
        self._at = 0
        self._weight = 0
        self._mixed = False
        self._view = membership.view

    @property
    def name(self) -> str:
        return self._membership.name

    @property
    def level(self) -> Level:
        """Level of delivery; in a group of order ``op`` it is ``ordered``, and means on acceptance."""
        return self._membership.level

    @property
    def order(self) -> Order:
        """Order of delivery."""
        return self._membership.order

    @property
    def view(self) -> View | None:
        """The view at the place up to which messages have been read; None for a handle that only sends."""
        return self._view

    @property
    def members(self) -> tuple[Member, ...]:
        """Members in ``view``."""
        return self._view.members if self._view else ()

    # ---- sending

    def send(self, data: bytes, level: SendLevel = "preack", timeout: Seconds = DEFAULT) -> None:
        """Send one message to the group and return when it has reached ``level``.

        data:    0 bytes to ``message_max`` (16 MiB unless configured lower).
        level:   ``ordered``, ``preack`` (every station has it: safe), ``ack``; ``sent`` or None: only until the kernel has taken
        it.
        timeout: seconds; None waits for ever. Default: the connection's.
        Raises TooLarge before anything is sent, Timeout, Undecided (this station's instance ended meanwhile), ClosedGroup,
        NotMember, Fenced, ConnectionClosed.
        """
        with self._connection._alone:
            ticket = self._connection._protocol.send(self._membership, data, level)
            self._connection._complete(ticket, timeout, "sending")

    def send_many(
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
        use ``pipeline`` and ``flush``. Errors are those of ``send``; ``error.completed`` says how many had reached the level.
        """
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
            item = self._ready[self._at]
            self._at += 1
            if type(item) is Message:
                yield item
            else:
                self._passed(item)

    def items(self, timeout: float | None = None) -> Iterator[Item]:
        """Messages, views and events in order; otherwise like ``messages``."""
        self._connection._wire.check_owner()
        while self._at < len(self._ready) or self._refill(timeout):
            item = self._ready[self._at]
            self._at += 1
            self._passed(item)
            yield item

    def recv(self, timeout: Seconds = DEFAULT) -> Message:
        """The next message. Raises Timeout after ``timeout`` seconds, NotMember if the group was left, else like ``messages``."""
        self._connection._wire.check_owner()
        deadline = self._connection._deadline(timeout)
        while self._at < len(self._ready) or self._refill(_left(deadline)):
            item = self._ready[self._at]
            self._at += 1
            if type(item) is Message:
                return item
            self._passed(item)
        raise NotMember(f"group {self.name!r} has been left")

    def recv_batch(self, timeout: Seconds = DEFAULT) -> list[Message]:
        """All messages that are here, at least one: the fast way to read. Same errors as ``recv``."""
        deadline = self._connection._deadline(timeout)
        while True:
            items = self.recv_items(_left(deadline))
            if not self._mixed:
                return cast(list[Message], items)
            if messages := [item for item in items if type(item) is Message]:
                return messages

    def recv_items(self, timeout: Seconds = DEFAULT) -> list[Item]:
        """All messages, views and events that are here, at least one. Same errors as ``recv``."""
        self._connection._wire.check_owner()
        if self._at == len(self._ready) and not self._refill(self._connection._seconds(timeout)):
            raise NotMember(f"group {self.name!r} has been left")
        items = self._ready[self._at :] if self._at else self._ready
        self._ready, self._at = [], 0
        self._give_back()
        if self._mixed:
            for item in items:
                self._passed(item)
        return items

    def leave(self) -> None:
        """Leave the group; does nothing the second time. Iteration ends after what has come already."""
        with self._connection._alone:
            self._connection._protocol.leave(self._membership)
            self._connection._wire.flush()

    def __enter__(self) -> SyncGroup:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._connection._wire.foreign:
            self.leave()

    def _passed(self, item: Item) -> None:
        if type(item) is View:
            self._view = item

    def _refill(self, timeout: float | None) -> bool:
        """Take what the inbox holds, waiting for something. False: the end, on purpose."""
        connection, membership = self._connection, self._membership
        if membership.discard:
            raise NotMember(f"group {self.name!r} was joined for sending only")
        with connection._alone:
            self._give_back()
            if not membership.items and membership.state != "left":
                if connection._protocol.fenced is not None:
                    raise Fenced(str(connection._protocol.fenced))
                connection._pump(
                    lambda: bool(membership.items) or membership.state == "left",
                    timeout,
                    f"waiting for a message of group {self.name!r}",
                )
            if not membership.items:
                if membership.error is not None:
                    raise why_ended(connection._protocol) if connection.closed else copy.copy(membership.error)
                return False
            self._mixed = membership.mixed
            self._ready, self._weight = connection._protocol.take_items(membership)
            self._at = 0
            return True

    def _give_back(self) -> None:
        self._connection._protocol.consumed(self._weight)
        self._weight = 0


class SyncPipeline:
    """Sends with a bounded number under way. See ``SyncGroup.pipeline``."""

    def __init__(self, group: SyncGroup, level: SendLevel, timeout: Seconds, window: int) -> None:
        if window < 1:
            raise ValueError("window must be at least 1")
        self._group = group
        self._level: SendLevel = level
        self._timeout = timeout
        self._window = window
        self._run_max = max(1, window // 4)
        self._run: list[bytes] = []
        self._run_bytes = 0
        self._flight: deque[tuple[Ticket[None] | None, int, int]] = deque()
        self._flight_messages = 0
        self._flight_bytes = 0
        self.completed = 0
        """Messages known to have reached the level (for ``sent``: handed to the kernel)."""

    def put(self, data: bytes) -> None:
        """Queue one message; waits while the window is full. Errors are those of ``SyncGroup.send``."""
        self._run.append(data)
        self._run_bytes += len(data)
        if self._run_bytes >= RUN_BYTES or len(self._run) >= self._run_max:
            self.flush()

    def flush(self) -> None:
        """Write what ``put`` has collected."""
        connection = self._group._connection
        run, size = self._run, self._run_bytes
        self._run, self._run_bytes = [], 0
        if not run:
            return
        with connection._alone:
            try:
                while self._flight and (
                    self._flight_messages + len(run) > self._window or self._flight_bytes + size > PIPELINE_BYTES
                ):
                    self._oldest()
                ticket = connection._protocol.send_run(self._group._membership, run, self._level)
                self._flight.append((ticket, len(run), size))
                self._flight_messages += len(run)
                self._flight_bytes += size
                connection._complete(None, self._timeout, "sending")
            except ClientError as error:
                error.completed = self.completed
                raise

    def wait(self) -> int:
        """Write what is left and wait until all has reached the level; returns how many messages that were."""
        self.flush()
        with self._group._connection._alone:
            try:
                while self._flight:
                    self._oldest()
            except ClientError as error:
                error.completed = self.completed
                raise
        return self.completed

    def _oldest(self) -> None:
        ticket, messages, size = self._flight[0]
        try:
            self._group._connection._complete(ticket, self._timeout, "sending")
        except Timeout:
            raise
        except ClientError:
            # Told once; what follows has a fate of its own.
            self._flight.popleft()
            self._flight_messages -= messages
            self._flight_bytes -= size
            raise
        self._flight.popleft()
        self._flight_messages -= messages
        self._flight_bytes -= size
        self.completed += messages

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


class SyncConnection:
    """A connection to the local daemon; made by ``connect_sync``.

    Threads: the connection and its groups may move from thread to thread, but only one may be in a call at a time (a second one
    gets RuntimeError). Programs with several threads open one connection each. Nothing happens between calls: a program that does
    not call for long is a slow receiver in the daemon's eyes once its queue there is full.

    Processes: a connection belongs to the process that made it. In a forked child its calls raise RuntimeError, and ``close``
    only closes the child's descriptor; connect again there.
    """

    def __init__(self, protocol: ClientProtocol, sock: socket.socket, timeout: float | None) -> None:
        self._protocol = protocol
        self._wire = Wire(sock, protocol)
        self._timeout = timeout
        self._alone = _Alone(self._wire)
        self._poll = select.poll()
        self._events = 0

    # ---- facts

    @property
    def welcome(self) -> Welcome:
        """What the daemon said about itself: own station, limits and so on."""
        welcome = self._protocol.welcome
        if welcome is None:
            raise ConnectionClosed
        return welcome

    @property
    def closed(self) -> bool:
        return self._protocol.ended.settled

    @property
    def instance(self) -> int:
        """Instance number of the cluster as last heard, 0 while it has never been open."""
        return self._protocol.instance

    @property
    def blocked(self) -> tuple[tuple[int, str], ...]:
        """(station, reason) pairs that delivery waits for, as last heard."""
        return self._protocol.blocked

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
        timeout: Seconds = DEFAULT,
    ) -> SyncGroup:
        """Become a member of a group (made by its first member) and get its messages from here on.

        name:       1..128 bytes of UTF-8.
        level:      level of delivery; the default, ``preack``, is safe.
        order:      ``op``: messages come as soon as they are here, in each sender's order only, and may be lost to the others if
                    this station is expelled. What the first member says counts. There is one level: ``accepted``.
        open_group: programs that are not members may send to it. What the first member says counts.
        send_only:  no membership, only a handle to send to an open group.
        no_self:    own messages are not delivered to us.
        receive:    False: be a member (and be able to send) but drop what comes.
        Returns after the first view, which waits until the cluster is open. Raises Timeout, BadName, NameCollision,
        OrderMismatch, BadLevel, ClosedGroup.
        """
        with self._alone:
            deadline = self._deadline(timeout)
            while (gone := self._protocol.leaving(name)) is not None:
                self._complete(gone, _left(deadline), f"leaving group {name!r} before joining it again")
            membership = self._protocol.join(
                name, level, order=order, open_group=open_group, send_only=send_only, no_self=no_self, receive=receive
            )
            try:
                self._complete(membership.joined, _left(deadline), f"joining group {name!r}")
            except (Timeout, KeyboardInterrupt):
                self._protocol.leave(membership)
                self._wire.flush()
                raise
            return SyncGroup(self, membership)

    def status(self, timeout: Seconds = DEFAULT) -> dict[str, Any]:
        """The daemon's status, the object of docs/status.md."""
        with self._alone:
            return self._answer(self._protocol.status(), timeout, "asking for the status")

    def members(self, group: str = "", timeout: Seconds = DEFAULT) -> tuple[Member, ...]:
        """Members of a group as this daemon knows them; for the empty name, the stations of the instance (client 0, name of the
        host)."""
        with self._alone:
            return members_of(self._answer(self._protocol.members(group), timeout, "asking for the members"))

    def stations(self, timeout: Seconds = DEFAULT) -> tuple[Station, ...]:
        """All stations of the cluster, members of the instance or not, as this daemon knows them."""
        with self._alone:
            return stations_of(self._answer(self._protocol.members(""), timeout, "asking for the stations"))

    def expel(self, station: int, timeout: Seconds = DEFAULT) -> str:
        """As an operator, have the others go on without ``station`` (1..n). Returns a line for people once that is proposed;
        ``ClusterView`` tells when it has happened. Raises NotPermitted, Refused (no member, the own station, no quorum)."""
        return self._admin("expelling a station", timeout, "expel", station=station)

    def leave_cluster(self, timeout: Seconds = DEFAULT) -> str:
        """As an operator, have this station leave: its daemon says goodbye and ends. Returns a line for people. Raises
        NotPermitted."""
        return self._admin("leaving the cluster", timeout, "leave")

    def _admin(self, what: str, timeout: Seconds, command: str, **arguments: int) -> str:
        with self._alone:
            return str(self._answer(self._protocol.admin(command, **arguments), timeout, what).get("message", ""))

    def serve(self, seconds: float = 0.0) -> None:
        """Take what the daemon sends for so long, instead of ``time.sleep``: who sends rarely stays a good receiver.

        Raises what ended the connection, InboxFull if the groups are not read.
        """
        with self._alone:
            with contextlib.suppress(Timeout):
                self._pump(lambda: False, seconds, "serving the connection")
            if self.closed:
                raise why_ended(self._protocol)

    def close(self, timeout: float | None = 5.0) -> bool:
        """Say goodbye and close. True if the daemon confirmed within ``timeout`` seconds that everything sent has gone out.

        Never raises for what the daemon does; closing twice is harmless. Unread messages are dropped. In a forked child: closes
        its descriptor, and the parent's connection goes on; False.
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
        # After an error nobody wants to wait for a daemon that may be the cause of it.
        self.close() if kind is None else self.close(timeout=0.0)

    def fileno(self) -> int:
        """The socket, for ``select`` and the like: readable when a call may have something new."""
        return self._wire.socket.fileno()

    # ---- the pump

    def _seconds(self, timeout: Seconds) -> float | None:
        return self._timeout if isinstance(timeout, Default) else timeout

    def _deadline(self, timeout: Seconds) -> float | None:
        seconds = self._seconds(timeout)
        return None if seconds is None else time.monotonic() + seconds

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
        while not until() and not protocol.ended.settled:
            self._wire.flush()
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
            ready = self._poll.poll(None if left is None else left * 1000)
            if not ready:
                if deadline is not None and time.monotonic() >= deadline:
                    raise timed_out(protocol, what, timeout or 0.0)
                continue
            if reading:
                self._wire.read()
            elif ready[0][1] & (select.POLLHUP | select.POLLERR):
                protocol.lost(ConnectionClosed("the daemon closed the connection"))


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


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

        from zenjun.daemon.client import connect_sync

        with connect_sync() as c:
            chat = c.join("chat")
            chat.send(b"hello")
            for m in chat.messages(timeout=60):
                print(m.station, m.data)
    """
    where = socket_path(path)
    give_up = None if wait is None else time.monotonic() + wait
    pause = RETRY_FIRST_S
    while True:
        try:
            return _connect_once(where, program_name() if name is None else name, timeout, inbox_bytes_max, on_event)
        except (NotReachable, DaemonClosing, Busy) as error:
            now = time.monotonic()
            if getattr(error, "final", False) or (give_up is not None and now >= give_up):
                raise
            time.sleep(pause if give_up is None else min(pause, give_up - now))
            pause = min(2 * pause, RETRY_MAX_S)


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

    Waits for the daemon each time (``wait`` seconds; None: for ever). What was not confirmed before the connection was lost is
    for the program to judge; groups must be joined again. Other options are those of ``connect_sync``.
    """
    while True:
        connection = connect_sync(path, wait=wait, **options)
        try:
            yield connection
        finally:
            connection.close()
