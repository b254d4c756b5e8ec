"""Client side of docs/client-protocol.md without I/O: bytes in by ``receive``, bytes out by ``take_output``.

It knows no socket, clock or loop. The async and the sync connection both drive one ``ClientProtocol`` and nothing else, so that
they cannot differ in what they mean. Calls that wait for an answer return a ``Ticket``, settled by a later ``receive`` (or by
``lost``).

Costs: ``receive`` looks at each message once (one ``unpack_from``, one slice, one tuple); what it makes of a read goes to the
groups' inboxes, which are handed over as whole lists.
"""

from __future__ import annotations

import copy
import json
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from ...proto.wire import ORDER_NAMES
from ..clientwire import (
    BODY_MAX,
    DONE,
    HANDLES_MAX,
    HEADER,
    HELLO,
    JOIN,
    LEVELS,
    MAGIC,
    MESSAGE,
    MESSAGE_FRAME,
    PROGRAM_NAME_MAX,
    SEND_TO,
    VERSION,
    ErrorFlag,
    Frame,
    JoinFlag,
    Kind,
    MessageFlag,
    SendFlag,
)
from .asking import Requests
from .convert import cut_name, group_name, join_level, json_object, level_number, to_event, to_members
from .errors import (
    ClientError,
    ConnectionClosed,
    Fenced,
    NotMember,
    ProtocolError,
    TooLarge,
    Undecided,
    from_code,
)
from .ticket import Ticket
from .types import (
    Blocked,
    Closed,
    ClusterView,
    Event,
    Expelled,
    Item,
    JoinLevel,
    Level,
    Message,
    Order,
    Place,
    SendLevel,
    View,
    Welcome,
)

INBOX_BYTES_MAX: Final = 8 * 1024 * 1024
INBOX_HARD_FACTOR: Final = 8
"""While a call waits for an answer, the library reads up to this multiple of the inbox's limit."""


_MESSAGE_TYPE: Final = int(Frame.MESSAGE)
_OWN: Final = int(MessageFlag.OWN)
_NOTIFY: Final = int(SendFlag.NOTIFY)
_HEADER: Final = HEADER.struct
ORDERINGS: Final = {name: int(ordering) for ordering, name in ORDER_NAMES.items()}


class _Sending:
    """A message under way that a call waits for (or the last of a run of them)."""

    __slots__ = ("number", "ordinal", "ticket")

    def __init__(self, number: int, ordinal: int, ticket: Ticket[None]) -> None:
        self.number = number
        self.ordinal = ordinal
        self.ticket = ticket


class Membership:
    """One joined group (or handle to send to an open one): its inbox and its current view."""

    def __init__(self, handle: int, name: str, level: Level, order: Order, *, send_only: bool, receive: bool) -> None:
        self.handle = handle
        self.name = name
        self.level: Level = level
        self.order: Order = order
        self.send_only = send_only
        self.discard = send_only or not receive
        self.state = "joining"
        """``joining``, ``joined``, ``left`` (LEAVE sent, or the end): nothing more is kept."""
        self.view: View | None = None
        self.joined: Ticket[View | None] = Ticket()
        self.gone: Ticket[None] = Ticket()
        """Settled when the daemon is done with the handle: from then on the group can be joined again."""
        self.error: ClientError | None = None
        """Why nothing more will come; None with state ``left``: it was left on purpose."""
        self.items: list[Item] = []
        self.bytes = 0
        self.mixed = False
        """True if there is anything but messages in ``items``."""
        self.on_items: Callable[[], None] | None = None

    def readable(self) -> bool:
        """Is there anything to read? The reader has finished with what it took before."""
        return bool(self.items)

    def take(self) -> tuple[list[Item], int, bool]:
        """The whole inbox, its weight in bytes, and whether there is anything but messages in it."""
        items, weight, mixed = self.items, self.bytes, self.mixed
        self.items = []
        self.bytes = 0
        self.mixed = False
        return items, weight, mixed

    def end(self, error: ClientError | None) -> None:
        if self.state != "left":
            self.state = "left"
            self.error = error
            if error is not None:
                self.joined.fail(error)
            if self.on_items is not None:
                self.on_items()


class Agent(Protocol):
    """Works on a connection by itself, between the program's calls."""

    def next_deadline_ns(self) -> int:
        """When ``on_time`` is due, monotonic nanoseconds."""

    def on_time(self, now_ns: int) -> None:
        """Do what is due; early calls are harmless."""


class ClientProtocol:
    """State of one connection.

    name:            the program's name, cut to 64 bytes of UTF-8.
    inbox_bytes_max: bytes unread in all groups together above which ``may_read`` is false.

    No method blocks. Methods that send raise ``ConnectionClosed`` (or what ended the connection) once it has ended.
    """

    def __init__(self, name: str = "", inbox_bytes_max: int = INBOX_BYTES_MAX) -> None:
        self.inbox_bytes_max = inbox_bytes_max
        self.inbox_bytes = 0
        self.welcome: Welcome | None = None
        self.welcomed: Ticket[Welcome] = Ticket()
        self.ended: Ticket[None] = Ticket()
        """Settled when the connection has ended; holds the reason, or None after BYE."""
        self.closing = False
        self.blocked: tuple[tuple[int, str], ...] = ()
        self.quorum = True
        self.outside = ""
        """Why this station is in no instance, after it has been in one; empty: it is, or never was."""
        self.instance = 0
        self.fenced: Fenced | None = None
        self.on_event: Callable[[Event], None] | None = None
        self.agents: list[Agent] = []
        """Users of the connection that need the time as well as frames: state transfers."""
        self.memberships: dict[int, Membership] = {}
        self.done: tuple[int, int, int] = (0, 0, 0)
        self.sent = 0
        """Messages sent and not refused: the number of the last one, in the counts of DONE."""
        self._ordinal = 0
        self._sending: tuple[deque[_Sending], deque[_Sending], deque[_Sending]] = (deque(), deque(), deque())
        self._requests = Requests(lambda body: self._put(Frame.REQUEST, 0, 0, body))
        self._next_handle = 0
        self._fatal: ClientError | None = None
        self.received_bytes = 0
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._need = _HEADER.size
        self._out: list[bytes] = []
        self.out_bytes = 0
        hello = HELLO.struct.pack(MAGIC, VERSION, VERSION) + cut_name(name, PROGRAM_NAME_MAX)
        self._put(Frame.HELLO, 0, 0, hello)

    # ---- output

    def take_output(self) -> bytes:
        """Everything to be written now, in one piece; empty if nothing is."""
        out = self._out
        if not out:
            return b""
        data = out[0] if len(out) == 1 else b"".join(out)
        self._out = []
        self.out_bytes = 0
        return data

    def _put(self, kind: int, flags: int, handle: int, body: bytes = b"") -> None:
        self._out.append(_HEADER.pack(len(body), kind, flags, handle) + body)
        self.out_bytes += _HEADER.size + len(body)

    def _check(self) -> None:
        if self.ended.settled:
            self.ended.result()
            raise ConnectionClosed
        if self.closing:
            raise ConnectionClosed("the connection is being closed")

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
        kind: Callable[..., Membership] = Membership,
    ) -> Membership:
        """Queue a JOIN. Its ``joined`` ticket settles with the first view, or fails. level None: preack (medium bus: ack), or
        what order op has.

        A ``send_only`` handle gets no view; it settles by the answer to a request queued after it, unless an ERROR comes first.
        Raises BadName for a name of the wrong length, ValueError for an unknown level or order, BadLevel for a level that the
        order does not have, ClientError if all handles are in use.
        """
        self._check()
        body = group_name(name)
        bus = self.welcome is not None and self.welcome.medium == "bus"
        wanted = join_level("ack" if level is None and bus and order == "total" else level, order)
        membership = kind(self._new_handle(), name, wanted, order, send_only=send_only, receive=receive)
        self.memberships[membership.handle] = membership
        flags = LEVELS.index(wanted)
        flags |= JoinFlag.OPEN if open_group else 0
        flags |= (JoinFlag.SEND_ONLY if send_only else 0) | (JoinFlag.NO_SELF if no_self else 0)
        self._put(Frame.JOIN, flags, membership.handle, JOIN.struct.pack(ORDERINGS[order]) + body)
        if send_only:
            barrier = self.members(name)

            def passed() -> None:
                if membership.state == "joining":
                    membership.state = "joined"
                    membership.joined.settle(None)

            barrier.on_settled = passed
        return membership

    def _new_handle(self) -> int:
        # Rising, so that frames still under way for a group just left do not meet a new one of the same handle.
        for _ in range(HANDLES_MAX - 1):
            self._next_handle = self._next_handle % (HANDLES_MAX - 1) + 1
            if self._next_handle not in self.memberships:
                return self._next_handle
        raise ClientError(f"all {HANDLES_MAX - 1} group handles of this connection are in use")

    def leave(self, membership: Membership, error: ClientError | None = None) -> None:
        """Queue a LEAVE; what is in the inbox stays readable. Leaving twice, or after the end, does nothing. error: why it has to
        be left, for its readers."""
        if membership.state == "left":
            return
        never_in = membership.send_only or self.instance == 0
        if not self.ended.settled and not self.closing:
            self._put(Frame.LEAVE, 0, membership.handle)
        membership.end(error)
        if never_in:
            self._gone(membership)

    def leaving(self, name: str) -> Ticket[None] | None:
        """The ticket to wait for before ``name`` can be joined (again), if there is one."""
        for membership in self.memberships.values():
            if membership.name == name and membership.state == "left":
                return membership.gone
        return None

    def _gone(self, membership: Membership) -> None:
        self.memberships.pop(membership.handle, None)
        membership.gone.settle(None)

    def send(self, membership: Membership, data: bytes, level: SendLevel) -> Ticket[None] | None:
        """Queue one message. Returns the ticket of its level, or None for level ``sent``.

        Raises TooLarge (nothing is queued), NotMember, Fenced, ValueError for an unknown level.
        """
        number = level_number(level)
        self._check_send(membership, len(data))
        self.sent += 1
        self._ordinal += 1
        if number is None:
            self._put(Frame.SEND, 0, membership.handle, data)
            return None
        self._put(Frame.SEND, number | _NOTIFY, membership.handle, data)
        return self._wait_done(number)

    def send_to(self, memberships: Sequence[Membership], data: bytes, level: SendLevel) -> Ticket[None] | None:
        """Queue one message to several groups, of order ``abcast`` or of order ``token``. As ``send``; also ValueError without
        groups, ClientError if the daemon has no such orders."""
        number = level_number(level)
        if not memberships:
            raise ValueError("a message to no group")
        for membership in memberships:
            self._check_send(membership, len(data))
        if self.welcome is not None and "token" not in self.welcome.orders:
            raise ClientError("this daemon has no orders abcast and token: a message cannot go to several groups")
        self.sent += 1
        self._ordinal += 1
        handles = [membership.handle for membership in memberships]
        body = SEND_TO.struct.pack(len(handles)) + struct.pack(f"<{len(handles)}H", *handles) + data
        self._put(Frame.SEND_TO, 0 if number is None else number | _NOTIFY, 0, body)
        return None if number is None else self._wait_done(number)

    def send_run(self, membership: Membership, run: Sequence[bytes], level: SendLevel) -> Ticket[None] | None:
        """Queue several messages; the ticket is the last one's, which implies all others. Only that one asks for DONE.

        The sizes of all are checked before any is queued. An empty run gives None.
        """
        number = level_number(level)
        if not run:
            return None
        self._check_send(membership, max(map(len, run)))
        handle, kind, pack = membership.handle, int(Frame.SEND), _HEADER.pack
        quiet = 0 if number is None else number
        # One piece per run: bytes of a small message are copied twice at most, and never per system call.
        pieces: list[bytes] = []
        size = 0
        for data in run:
            pieces.append(pack(len(data), kind, quiet, handle))
            pieces.append(data)
            size += len(data)
        self.sent += len(run)
        self._ordinal += len(run)
        self.out_bytes += size + _HEADER.size * len(run)
        if number is not None:
            pieces[-2] = pack(len(run[-1]), kind, quiet | _NOTIFY, handle)
        self._out.append(b"".join(pieces))
        return None if number is None else self._wait_done(number)

    def _check_send(self, membership: Membership, size: int) -> None:
        self._check()
        if self.fenced is not None:
            raise copy.copy(self.fenced)
        if membership.state != "joined":
            raise NotMember(f"group {membership.name!r} has been left")
        limit = self.welcome.message_max if self.welcome else 0
        if size > limit:
            raise TooLarge(f"a message of {size} bytes is larger than the limit of {limit} bytes (message_max)")

    def _wait_done(self, level: int) -> Ticket[None]:
        ticket: Ticket[None] = Ticket()
        self._sending[level].append(_Sending(self.sent, self._ordinal, ticket))
        return ticket

    def status(self) -> Ticket[dict[str, Any]]:
        """Ask for the status; its answer is the object of docs/status.md."""
        self._check()
        return self._requests.ask(Kind.STATUS)

    def members(self, group: str) -> Ticket[dict[str, Any]]:
        """Ask for the members of the group; for the empty name, for the stations."""
        self._check()
        return self._requests.ask(Kind.MEMBERS, group_name(group) if group else b"")

    def admin(self, command: str, **arguments: Any) -> Ticket[dict[str, Any]]:
        """Give a command of an operator; the answer's ``message`` is a line for people. Fails with NotPermitted, or with Refused
        for what cannot be."""
        self._check()
        return self._requests.ask(Kind.ADMIN, json.dumps({"command": command, **arguments}).encode())

    def bye(self) -> None:
        """Queue a BYE; from now on messages that come are dropped and ``ended`` settles without an error when the daemon
        closes."""
        if not self.ended.settled and not self.closing:
            self._put(Frame.BYE, 0, 0)
            self.closing = True

    # ---- what a connection needs to know

    @property
    def waiting(self) -> bool:
        """True while a call waits for an answer of the daemon."""
        if any(self._sending) or self._requests or self.welcome is None:
            return True
        return any(m.state == "joining" for m in self.memberships.values())

    @property
    def may_read(self) -> bool:
        """False when so much is unread that the socket should be left alone, for the daemon to feel it."""
        if self.closing or self.inbox_bytes < self.inbox_bytes_max:
            return True
        return self.inbox_bytes < INBOX_HARD_FACTOR * self.inbox_bytes_max and self.waiting

    def take_items(self, membership: Membership) -> tuple[list[Item], int]:
        """The whole inbox of a group and its weight in bytes, to be given back by ``consumed`` when it has been used up."""
        items, weight, _ = membership.take()
        return items, weight

    def consumed(self, weight: int) -> None:
        self.inbox_bytes -= weight

    def next_deadline_ns(self) -> int | None:
        """When ``on_time`` is due, monotonic nanoseconds; None: never."""
        return min((agent.next_deadline_ns() for agent in self.agents), default=None)

    def on_time(self, now_ns: int) -> None:
        """Let the agents do what is due."""
        for agent in list(self.agents):
            agent.on_time(now_ns)

    # ---- input

    def receive(self, data: bytes) -> None:
        """Take bytes from the daemon, cut anywhere. Never raises for what they are: a violation ends the connection."""
        if self.ended.settled:
            return
        self.received_bytes += len(data)
        if self._rest:
            # A frame that spans many reads is put together once, when it is whole.
            self._rest.append(data)
            self._rest_bytes += len(data)
            if self._rest_bytes < self._need:
                return
            data = b"".join(self._rest)
            self._rest.clear()
        try:
            self._parse(data)
        except ClientError as error:
            self.lost(error)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
            self.lost(ProtocolError(f"the daemon sent a frame that cannot be read ({type(error).__name__}: {error})"))

    def _parse(self, data: bytes) -> None:
        n = len(data)
        at = 0
        unpack, full, head, new = MESSAGE_FRAME.unpack_from, MESSAGE_FRAME.size, _HEADER.size, tuple.__new__
        last_message = n - full
        handle_now = -1
        membership: Membership | None = None
        group, run_start, keep = "", 0, False
        touched: list[Membership] = []
        items: list[Item] = []
        while at <= last_message:
            size, kind, flags, handle, clock, index, client, station = unpack(data, at)
            end = at + head + size
            if end > n or kind != _MESSAGE_TYPE:
                if size > BODY_MAX:
                    raise ProtocolError(f"the daemon announced a frame of {size} bytes")
                if end > n:
                    break
                if handle_now >= 0:
                    self._weigh(membership, at - run_start)
                    handle_now = -1
                self._control(kind, flags, handle, data[at + head : end], touched)
                at = end
                continue
            if size < MESSAGE.size:
                raise ProtocolError("the daemon sent a message without its place")
            if handle != handle_now:
                if handle_now >= 0:
                    self._weigh(membership, at - run_start)
                handle_now, run_start = handle, at
                membership = self.memberships.get(handle)
                # Unknown, left, or not joined yet: no reader.
                keep = membership is not None and membership.state == "joined" and not membership.discard and not self.closing
                if membership is not None and keep:
                    group, items = membership.name, membership.items
                    touched.append(membership)
            if keep:
                items.append(
                    new(Message, (data[at + full : end], group, station, client, (clock, station, index), flags & _OWN != 0))
                )
            at = end
        if handle_now >= 0:
            self._weigh(membership, at - run_start)
        at = self._parse_tail(data, at, touched)
        if at < n:
            self._rest = [data[at:]]
            self._rest_bytes = n - at
        for m in touched:
            if m.on_items is not None:
                m.on_items()

    def _parse_tail(self, data: bytes, at: int, touched: list[Membership]) -> int:
        """Frames too short to be messages at the end of a read; sets how much the next frame needs. Returns where it starts."""
        n = len(data)
        self._need = _HEADER.size
        while n - at >= _HEADER.size:
            size, kind, flags, handle = _HEADER.unpack_from(data, at)
            if size > BODY_MAX:
                raise ProtocolError(f"the daemon announced a frame of {size} bytes")
            end = at + _HEADER.size + size
            if end > n:
                self._need = end - at
                break
            if kind == Frame.MESSAGE:
                raise ProtocolError("the daemon sent a message without its place")
            self._control(kind, flags, handle, data[at + _HEADER.size : end], touched)
            at = end
        return at

    def _weigh(self, membership: Membership | None, weight: int) -> None:
        if membership is not None and membership.state == "joined" and not membership.discard and not self.closing:
            membership.bytes += weight
            self.inbox_bytes += weight

    def _control(self, kind: int, flags: int, handle: int, body: bytes, touched: list[Membership]) -> None:
        if kind == Frame.DONE:
            self._on_done(body)
        elif kind == Frame.VIEW:
            self._on_view(handle, body, touched)
        elif kind == Frame.EVENT:
            self._on_event(json_object(body), touched)
        elif kind == Frame.ERROR:
            self._on_error(flags, handle, json_object(body))
        elif kind == Frame.WELCOME:
            self._on_welcome(json_object(body))
        elif kind == Frame.REPLY:
            self._requests.on_reply(body)
        else:
            raise ProtocolError(f"the daemon sent a frame of unknown type {kind}")

    def _on_welcome(self, w: dict[str, Any]) -> None:
        self.welcome = Welcome(
            version=int(w["version"]),
            station=int(w["station"]),
            stations=int(w["stations"]),
            cluster=str(w["cluster"]),
            client=int(w["client"]),
            message_max=int(w["message_max"]),
            queue_bytes_max=int(w["queue_bytes_max"]),
            instance=int(w["instance"]),
            mtu=int(w.get("mtu", 0)),
            payload_max=int(w.get("payload_max", 0)),
            medium=str(w.get("medium", "switched")),
            orders=tuple(map(str, w.get("orders", ("total", "op")))),
        )
        if self.welcome.version != VERSION:
            raise ProtocolError(f"the daemon chose protocol version {self.welcome.version}; {VERSION} was offered")
        self.instance = self.welcome.instance
        self.welcomed.settle(self.welcome)

    def _on_done(self, body: bytes) -> None:
        self.done = (ordered, preack, ack) = DONE.struct.unpack_from(body)
        for sending, count in zip(self._sending, (ordered, preack, ack), strict=True):
            while sending and sending[0].number <= count:
                sending.popleft().ticket.settle(None)

    def _on_view(self, handle: int, body: bytes, touched: list[Membership]) -> None:
        membership = self.memberships.get(handle)
        if membership is None or self.closing or self.welcome is None:
            return
        v = json_object(body)
        members, joined, left = to_members(v["members"]), to_members(v["joined"]), to_members(v["left"])
        place: Place = (int(v["clock"]), int(v["station"]), int(v["index"]))
        view = View(str(v["group"]), members, joined, left, str(v["reason"]), place, int(v["instance"]))
        me = (self.welcome.station, self.welcome.client)
        if any(m[:2] == me for m in left):
            membership.end(None)
            self._gone(membership)
            return
        if membership.state == "left":
            return
        if membership.state == "joining":
            if not any(m[:2] == me for m in members):
                return
            membership.state = "joined"
            membership.view = view
            membership.joined.settle(view)
        if not membership.discard:
            membership.items.append(view)
            membership.mixed = True
            touched.append(membership)

    def _on_event(self, e: dict[str, Any], touched: list[Membership]) -> None:
        event = to_event(e)
        if isinstance(event, Blocked):
            self.blocked, self.quorum = event.stations, event.quorum
        elif isinstance(event, ClusterView):
            self.instance = event.instance
        elif isinstance(event, Closed | Expelled):
            self.outside = event.reason or event.name
        elif event.name in ("open", "reopened"):
            self.blocked, self.quorum, self.outside = (), True, ""
            self.instance = event.instance
            # The daemon joins groups again by itself; what was being left is forgotten with the instance.
            for membership in [m for m in self.memberships.values() if m.state == "left"]:
                self._gone(membership)
            if event.name == "reopened":
                self._on_reopened(int(e.get("first", self.done[1] + 1)), event.undecided)
        elif event.name == "unblocked":
            self.blocked, self.quorum = (), True
        elif event.name == "fenced":
            self.fenced = Fenced(f"the order here differs from another station's: {json.dumps(e)}")
            self._fail_sending(self.fenced)
        elif event.name == "closing":
            self._fatal = self._fatal or DAEMON_STOPS
        for membership in self.memberships.values():
            if membership.state == "joined" and not membership.discard and not self.closing:
                membership.items.append(event)
                membership.mixed = True
                touched.append(membership)
        if self.on_event is not None:
            self.on_event(event)

    def _on_reopened(self, first: int, count: int) -> None:
        """Messages up to number first + count - 1 belong to the instance that ended; those that a call still waits for are
        undecided."""
        for sending in self._sending:
            while sending and sending[0].number < first + count:
                s = sending.popleft()
                decided = s.number < first
                error = Undecided(
                    "this station's instance has ended: the message "
                    + ("was delivered but not acknowledged by all" if decided else "may or may not have been delivered")
                )
                error.reached = "preack" if decided else "ordered" if s.number <= self.done[0] else None
                s.ticket.fail(error)

    def _on_error(self, flags: int, handle: int, e: dict[str, Any]) -> None:
        code, text = str(e.get("code", "")), str(e.get("message", ""))
        error = from_code(code, text or f"the daemon answered with error {code!r}")
        if flags & ErrorFlag.CLOSES:
            self._fatal = error
            if self.welcome is None:
                self.lost(error)
            return
        membership = self.memberships.get(int(e.get("handle") or handle))
        if membership is not None and membership.state == "joining":
            membership.end(error)
            self._gone(membership)
        elif membership is not None and code == "not-permitted" and "send" not in e:
            membership.end(error)  # a right was taken away; the VIEW that frees the handle follows
        elif "send" in e:
            self._on_refused(int(e["send"]), error)

    def _on_refused(self, ordinal: int, error: ClientError) -> None:
        """A SEND was refused. It has no number in the counts of DONE, so all later ones move down by one."""
        self.sent -= 1
        for sending in self._sending:
            for s in list(sending):
                if s.ordinal == ordinal:
                    sending.remove(s)
                    s.ticket.fail(error)
                elif s.ordinal > ordinal:
                    s.number -= 1

    def _fail_sending(self, error: ClientError) -> None:
        for sending in self._sending:
            while sending:
                sending.popleft().ticket.fail(error)

    # ---- end

    def eof(self) -> None:
        """The daemon closed the connection."""
        if self.closing:
            self.lost(None)
        elif self._rest:
            self.lost(self._fatal or ConnectionClosed(CUT_SHORT))
        else:
            self.lost(self._fatal or ConnectionClosed("the daemon closed the connection"))

    def lost(self, error: ClientError | None) -> None:
        """The connection is over; everything that waits fails with ``error`` (None: closed on purpose). Later calls do
        nothing."""
        if self.ended.settled:
            return
        if error is not None and self._fatal is not None and not isinstance(error, ProtocolError):
            error = self._fatal
        why = error or ConnectionClosed("the connection was closed")
        if error is None:
            self.ended.settle(None)
        else:
            self.ended.fail(error)
        self.welcomed.fail(why)
        self._fail_sending(why)
        self._requests.fail(why)
        for membership in list(self.memberships.values()):
            membership.end(error)
            membership.gone.settle(None)
        self.memberships.clear()
        self._out.clear()
        self.out_bytes = 0


CUT_SHORT: Final = (
    "the daemon closed the connection in the middle of a frame: it has ended, or it disconnected this program for not reading "
    "and no longer keeps the reason"
)
DAEMON_STOPS: Final = from_code("closing", "the daemon is stopping")
