"""Programs connected to this daemon: handshake, joins and leaves, events and errors (docs/client-protocol.md).

Messages never pass through here: the data path reads and writes them in C. What arrives here are control frames (``on_frame``)
and, at their place in the total order, group messages and view events (``on_delivered``), and what leaves are routes (which group
goes to which client) and single frames.

A join is a message: the client's membership, at every station, begins at its place in the order, so all members see the same
views at the same place. Groups live on while stations come and go (``proto.groups``). When the cluster is opened anew, or this
station is let in again, its clients' groups are joined again by itself; after being let in only once it knows everybody's groups.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ..proto.errors import UsageError
from ..proto.groups import Change, Groups, ViewEvent, decode_view
from ..proto.wire import GROUP_NAME_MAX, MessageType, Service, group_id
from .clientwire import (
    DONE,
    HANDLES_MAX,
    HANDLES_PER_UID,
    HEADER,
    HELLO,
    JOIN_FLAGS,
    LEVEL_MASK,
    LEVEL_MAX,
    MAGIC,
    PROGRAM_NAME_MAX,
    VERSION,
    VERSION_MIN,
    VERSION_VIEWS,
    ErrorFlag,
    Frame,
    JoinFlag,
)
from .datapath import E_PROTOCOL, E_SLOW, DataPath, GroupMessage, Lost, MaySend, Take
from .listening import peer
from .observe import Journal
from .sparing import Sparing

HELLO_TIMEOUT_NS: Final = 10_000_000_000
"""A connection that has not said HELLO by then is closed."""
LAST_WORDS_NS: Final = 600_000_000_000
"""How long a client that has been cut off may take to read why: one that was cut off for not reading will not do so soon."""
BYE_LINGER_NS: Final = 5_000_000_000
NOTHING_LOST: Final = Lost(0, 0, False)
STATUSES_PER_S: Final = 200
"""And no more than a tenth of the processor (``sparing.SHARE``): a status takes a millisecond of Python or some."""


@dataclass(slots=True)
class _Handle:
    """A client's number for a group."""

    number: int
    group: str
    group_id: int
    level: int
    open: bool
    send_only: bool
    no_self: bool
    service: Service
    asked: bool = False
    """The join is on its way in this instance."""
    member: bool = False
    """The join has come in its place."""
    leaving: bool = False


@dataclass(slots=True)
class _Connection:
    slot: int
    client: int
    uid: int
    since_ns: int
    version: int = VERSION_MIN
    name: str = ""
    greeted: bool = False
    bye: bool = False
    handles: dict[int, _Handle] = field(default_factory=dict)
    joined: dict[str, _Handle] = field(default_factory=dict)
    """Handles by group, those that only send left out."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What WELCOME tells besides the client's own number."""

    cluster: str
    station: int
    stations: int
    message_max: int
    queue_bytes_max: int
    clients_max: int
    medium: str = "switched"


class Clients:
    """All connections of this daemon. One thread; called by the driver, calls the data path."""

    def __init__(
        self,
        dp: DataPath,
        groups: Groups,
        facts: Facts,
        journal: Journal,
        status: Callable[[int], dict[str, Any]],
        want_ack: Callable[[bool], None],
        admin: Callable[[str, dict[str, Any]], str] | None = None,
        host_of: Callable[[int], str | None] = lambda station: None,
    ) -> None:
        """``status(now)`` gives the object of docs/status.md, and is asked at most ``STATUSES_PER_S`` times a second;
        ``want_ack(yes)``: somebody here waits for level ack. ``host_of``: the host name of a station, None if it is not known.

        admin: carries out an operator's command, ``("expel", {"station": k})`` or ``("leave", {})``, and returns a line for
        people; raises UsageError for what cannot be. It may be set later (``admin``); without it operators are refused.
        """
        self._dp = dp
        self._groups = groups
        self._facts = facts
        self.clients_max = facts.clients_max
        """May change; those above it stay."""
        self._journal = journal
        self._make_status = status
        self._status = Sparing(self._status_and_reply, STATUSES_PER_S)
        self._host_of = host_of
        self._handles_of: Counter[int] = Counter()  # by uid
        self._want_ack = want_ack
        self.admin = admin
        self._by_slot: dict[int, _Connection] = {}
        self._by_number: dict[int, _Connection] = {}
        self._by_group: dict[str, dict[tuple[int, int], tuple[_Connection, _Handle]]] = {}
        """Handles of each group by (client, handle): what a view costs must not grow with the other groups."""
        self._names: dict[int, str] = {}
        self._last_number = 0
        self._outbox: deque[tuple[int, int, bytes]] = deque()
        self._instance = 0
        self._incarnations: tuple[int, ...] = ()
        """Of the stations of the instance as agreed, 0: no member."""
        self._view_instance = 0
        """Instance at the place up to which messages have been delivered."""
        self._open = False
        self._ever_open = False
        self._closing = False
        self._blocked: tuple[tuple[int, str], ...] = ()
        self._quorum = True
        self._fence: dict[str, object] | None = None
        self.refused = 0
        """Connections turned away (full, closing)."""
        self.mtu = 0
        self.payload_max = 0

    def __len__(self) -> int:
        return len(self._by_slot)

    # ---- connections

    def accept(self, sock: socket.socket, now: int) -> None:
        """Take a new connection over; ``sock`` is detached or closed."""
        code = "closing" if self._closing else "busy" if len(self._by_slot) >= self.clients_max else ""
        if not code:
            number = self._new_number()
            _, uid, _ = peer(sock)
            fd = sock.detach()
            try:
                slot = self._dp.client_add(fd, number)
            except OSError as exc:
                sock = socket.socket(fileno=fd)
                code = "busy"
                self._journal.event(logging.WARNING, "client", f"cannot take a client: {exc.strerror}", now=now)
            else:
                connection = _Connection(slot, number, uid, now)
                self._by_slot[slot] = connection
                self._by_number[number] = connection
                return
        self.refused += 1
        text = {"closing": "the daemon is stopping", "busy": f"the daemon serves {len(self._by_slot)} clients already"}[code]
        body = _json({"code": code, "message": text})
        with sock, contextlib.suppress(OSError):
            sock.setblocking(False)
            sock.send(HEADER.struct.pack(len(body), Frame.ERROR, ErrorFlag.CLOSES, 0) + body)
        self._journal.event(logging.WARNING, "client", f"turned a client away: {text}", now=now)

    def on_frame(self, take: Take, now: int) -> None:
        """One control frame of a client, or (type 0) its end."""
        connection = self._by_slot.get(take.slot)
        if connection is None:  # already being closed
            return
        if take.type == 0:
            self._on_end(connection, take.error, now)
            return
        if not connection.greeted:
            self._on_hello(connection, take, now)
            return
        if connection.bye:
            self._cut_off(connection, "protocol", "a frame after BYE", now)
            return
        if take.type == Frame.JOIN:
            self._on_join(connection, take, now)
        elif take.type == Frame.LEAVE:
            self._on_leave(connection, take.handle)
        elif take.type == Frame.STATUS:
            self._dp.client_put(connection.slot, Frame.STATUS_REPLY, body=self._status(now)[1], urgent=True)
        elif take.type == Frame.MEMBERS:
            self._on_members(connection, take, now)
        elif take.type == Frame.ADMIN and connection.version >= VERSION_VIEWS:
            self._on_admin(connection, take, now)
        elif take.type == Frame.BYE:
            self._on_bye(connection)
        elif take.type == Frame.HELLO:
            self._cut_off(connection, "protocol", "a second HELLO", now)
        else:
            self._cut_off(connection, "protocol", f"a frame of unknown type {take.type}", now)

    def after_turn(self, now: int) -> None:
        """Serve what waited for room or for a position: group messages not yet queued, clients that said BYE."""
        self._send_outbox()
        for connection in [c for c in self._by_slot.values() if c.bye]:
            info = self._dp.client_info(connection.slot)
            # While delivery is blocked, its leaves and what others sent cannot come; its own messages are all that matters.
            ready = bool(self._blocked) or not self._open or (not connection.handles and not info.queued_bytes)
            if ready and info.done[LEVEL_MAX] >= info.sent and not info.unsent_bytes:
                urgent = bool(info.queued_bytes)
                self._dp.client_put(connection.slot, Frame.DONE, body=DONE.struct.pack(*info.done), urgent=urgent)
                self._dp.client_remove(connection.slot, hard=False, linger_ns=BYE_LINGER_NS)
                self._forget(connection, "bye")
        if not any(c.bye for c in self._by_slot.values()):
            self._want_ack(False)

    @property
    def waiting(self) -> bool:
        """Whether ``after_turn`` has something to come back for."""
        return bool(self._outbox) or any(c.bye for c in self._by_slot.values())

    def tick(self, now: int) -> None:
        """Now and then: close connections that never said HELLO."""
        for connection in [c for c in self._by_slot.values() if not c.greeted and now - c.since_ns > HELLO_TIMEOUT_NS]:
            self._cut_off(connection, "protocol", "no HELLO", now)

    def close_all(self, linger_ns: int) -> None:
        """Write out what is queued and released and close every connection, within ``linger_ns``."""
        for connection in list(self._by_slot.values()):
            self._dp.client_remove(connection.slot, hard=False, linger_ns=linger_ns)
            del self._by_slot[connection.slot], self._by_number[connection.client]
            for handle in list(connection.handles.values()):  # views may still come
                self._unbind(connection, handle)

    # ---- the cluster's news

    def on_opened(self, instance: int, incarnations: Iterable[int], lost: dict[int, Lost], *, joined: bool = False) -> None:
        """This station has started in an instance, and all of the last one that will ever come has come: tell everybody, join
        everybody's groups (again), now or (joined: it has been let in) as soon as the others' groups are known.

        incarnations: of stations 1..n, 0: no member. lost: what ``DataPath.reset`` has returned. The data path counts undecided
        messages as done from its next turn on, so this must come before it.
        """
        again = self._ever_open
        self._end_groups()
        self._instance = self._view_instance = instance
        self._incarnations = tuple(incarnations)
        self._open, self._ever_open, self._blocked, self._quorum = True, True, (), True
        self._groups.open(instance, joined=joined)
        members = [station for station, incarnation in enumerate(self._incarnations, 1) if incarnation]
        for connection in self._in_order():
            event: dict[str, object] = {
                "event": "reopened" if again else "open",
                "instance": instance,
                "members": members,
                "joined": joined,
            }
            if again:
                event.update(self._loss(connection, lost))
            self._event(connection, event)
        self._begin_groups()

    def _loss(self, connection: _Connection, lost: dict[int, Lost]) -> dict[str, object]:
        """What the end of an instance costs a client, as its events say it."""
        undecided, forgotten, unsafe = lost.get(connection.slot, NOTHING_LOST)
        first = self._dp.client_info(connection.slot).sent - undecided + 1
        return {"undecided": undecided, "first": first, "forgotten": forgotten, "unsafe": unsafe}

    def on_changed(self, instance: int, incarnations: Iterable[int]) -> None:
        """The members have agreed on the next instance. The view event comes at its place, which may be later."""
        self._instance, self._incarnations = instance, tuple(incarnations)

    def on_closed(self, reason: str = "", station: int = 0, *, expelled: bool = False) -> None:
        """The instance has ended for this station. Its groups stay as they are until the next one begins: unless the others go on
        without this station (expelled), the rest of it, messages and views, may still be delivered before."""
        self._open = False
        self._outbox.clear()
        lost = self._dp.lost() if expelled else {}
        for connection in self._in_order():
            if connection.version < VERSION_VIEWS:
                continue
            event: dict[str, object] = {"event": "closed", "instance": self._instance, "reason": reason, "station": station}
            if expelled:
                event["event"] = "expelled"
                event.update(self._loss(connection, lost))
            self._event(connection, event, urgent=True)

    def _end_groups(self) -> None:
        """Nobody is in any group any more. What was on its way there has gone with the instance (``DataPath.reset``)."""
        for name in self._groups.names():
            self._dp.need_ack(group_id(name), False)
        self._groups.close()
        for connection in list(self._by_slot.values()):
            for handle in list(connection.handles.values()):
                if handle.member:
                    self._dp.leave(connection.slot, handle.group_id)
                if handle.leaving or connection.bye:
                    self._unbind(connection, handle)
                handle.asked = handle.member = False

    def _begin_groups(self) -> None:
        """The groups are known, or not yet: let our clients join, or wait."""
        for name in self._groups.names():
            self._dp.need_ack(group_id(name), self._groups.needs_ack(name))
        for connection in self._in_order():
            for handle in connection.handles.values():
                self._ask(connection, handle)
                self._allow(connection, handle)
        self._send_outbox()

    def on_blocked(self, stations: tuple[tuple[int, str], ...], quorum: bool = True) -> None:
        """These stations are waited for; empty: no more. With quorum they are about to be removed; without, delivery stops."""
        self._blocked, self._quorum = stations, quorum
        for connection in self._in_order():
            self._event(connection, self._blocked_event(), urgent=True)

    def on_fenced(self, station: int, position: int) -> None:
        """The order differs from ``station``'s: nothing more is delivered."""
        self._fence = {"event": "fenced", "at": position, "with": station}
        for connection in self._in_order():
            self._event(connection, self._fence, urgent=True)

    def on_closing(self, now: int) -> None:
        """The daemon stops: no new clients from now on."""
        self._closing = True
        for connection in self._in_order():
            self._event(connection, {"event": "closing"}, urgent=True)
        for connection in [c for c in self._by_slot.values() if not c.greeted]:
            self._cut_off(connection, "closing", "the daemon is stopping", now)

    # ---- what comes in the order

    def on_delivered(self, message: GroupMessage, now: int) -> None:
        """What delivery stands at (``DataPath.group``): a group message or a view event, perhaps of an instance that has ended,
        for its groups live until the next one begins."""
        if message.type == MessageType.VIEW:
            self._on_view(message, now)
        elif message.type == MessageType.GROUP:
            place = (message.clock, message.src, message.index)
            self.on_group(message.src, message.client, message.data, place, message.position, now)

    def on_group(self, src: int, client: int, data: bytes, place: tuple[int, int, int], position: int, now: int) -> None:
        """A group message at its ``place`` (clock, station index, index) in the total order; ``position`` is its PDU's."""
        own = src == self._facts.station - 1
        known = self._groups.known
        for change in self._groups.apply(src + 1, client, data):
            if own:
                self._own_change(change, client)
            if not change.refused:
                self._show(change, (place[0], src + 1, place[2]), position)
        self._if_known(known)

    def _on_view(self, message: GroupMessage, now: int) -> None:
        """Stations have come or gone at this place of the order."""
        event, own = decode_view(message.data), self._facts.station
        if own not in event.members:
            return  # the last thing of an instance that has ended for us: nobody's view any more
        self._view_instance = event.instance
        place = (message.clock, message.view_src + 1, message.index)
        self._tell_view(event, place, message.position)
        known = self._groups.known
        for change in self._groups.view(event):
            self._show(change, place, message.position)
        if self._open and self._groups.syncing and own not in event.joined:
            self._outbox.extend((0, 0, part) for part in self._groups.state_of(own))
            self._send_outbox()
        self._if_known(known)

    def _tell_view(self, event: ViewEvent, place: tuple[int, int, int], position: int) -> None:
        """The view event for every client, held back like the views of its groups: at the highest level that it asked for."""
        body = _json(
            {
                "event": "view", "instance": event.instance, "clock": place[0], "station": place[1], "index": place[2],
                "members": [[s, i, self._host_of(s) or ""] for s, i in enumerate(event.incarnations, 1) if i],
                "joined": list(event.joined), "left": list(event.left),
            }
        )  # fmt: skip
        for connection in self._in_order():
            if connection.version >= VERSION_VIEWS:
                level = max((handle.level for handle in connection.handles.values() if handle.member), default=0)
                self._dp.client_put(connection.slot, Frame.EVENT, body=body, position=position, level=level)

    def _if_known(self, before: bool) -> None:
        """This station has just learnt the groups of the instance that let it in: our clients can join now."""
        if self._open and self._groups.known and not before:
            self._begin_groups()

    # ---- control frames

    def _on_hello(self, connection: _Connection, take: Take, now: int) -> None:
        if take.type != Frame.HELLO or take.size < HELLO.size or not take.data.startswith(MAGIC):
            self._cut_off(connection, "protocol", "the first frame is not a HELLO", now)
            return
        _, lowest, highest = HELLO.struct.unpack_from(take.data)
        version = min(highest, VERSION)
        if version < max(lowest, VERSION_MIN):
            text = f"this daemon speaks versions {VERSION_MIN} to {VERSION}, the client {lowest} to {highest}"
            self._cut_off(connection, "version", text, now)
            return
        name = take.data[HELLO.size :]
        try:
            text = name.decode()
        except UnicodeDecodeError:
            self._cut_off(connection, "protocol", "the program's name is not UTF-8", now)
            return
        if len(name) > PROGRAM_NAME_MAX or not text.isprintable():
            self._cut_off(
                connection, "protocol", f"the program's name is longer than {PROGRAM_NAME_MAX} bytes or not printable", now
            )
            return
        connection.name = text  # not before: a name with control characters must not reach the log
        connection.greeted = True
        connection.version = version
        facts = self._facts
        welcome = {
            "version": version,
            "station": facts.station,
            "stations": facts.stations,
            "cluster": facts.cluster,
            "client": connection.client,
            "message_max": facts.message_max,
            "queue_bytes_max": facts.queue_bytes_max,
            "instance": self._instance if self._open else 0,
            "mtu": self.mtu,
            "payload_max": self.payload_max,
            "medium": facts.medium,
        }
        self._put(connection, Frame.WELCOME, welcome, urgent=True)
        if self._blocked:
            self._event(connection, self._blocked_event(), urgent=True)
        if self._fence is not None:
            self._event(connection, self._fence, urgent=True)

    def _on_join(self, connection: _Connection, take: Take, now: int) -> None:
        number, flags = take.handle, take.flags
        level = flags & LEVEL_MASK
        if level > LEVEL_MAX or flags & ~JOIN_FLAGS:
            self._cut_off(connection, "protocol", f"JOIN with unknown flags {flags:#x}", now)
            return
        if not 1 <= number < HANDLES_MAX or number in connection.handles:
            why = "in use" if number in connection.handles else f"not within 1..{HANDLES_MAX - 1}"
            self._error(connection, "bad-handle", f"handle {number} is {why}", number)
            return
        if self._handles_of[connection.uid] >= HANDLES_PER_UID:
            text = f"the programs of this user hold {HANDLES_PER_UID} groups at this station already: leave some first"
            self._error(connection, "too-many-groups", text, number)
            return
        name = _group_name(take.data)
        if name is None:
            self._error(connection, "name", f"a group's name is 1 to {GROUP_NAME_MAX} bytes of UTF-8", number)
            return
        identity = group_id(name)
        other = self._name_of(identity)
        if other is not None and other != name:
            self._error(
                connection, "name-collision", f"group {name!r} has the same number as group {other!r}: use another name", number
            )
            return
        send_only, service = bool(flags & JoinFlag.SEND_ONLY), Service.FIFO if flags & JoinFlag.OP else Service.TOTAL
        if self._facts.medium == "bus" and not send_only and (service is Service.FIFO or level != LEVEL_MAX):
            what = "order op delivers on acceptance" if service is Service.FIFO else f"level {('ordered', 'preack')[level]}"
            why = 'medium = "bus" delivers only at level ack: what is accepted, or what everybody has, may still be taken back'
            self._error(connection, "bus-level", f"{what} cannot be had: {why}", number)
            return
        if service is Service.FIFO and level and not send_only:
            self._error(connection, "level", "a group of order op delivers on acceptance: it has no level above ordered", number)
            return
        if self._fence is not None:
            self._error(connection, "fenced", "the order here differs from another station's", number)
            return
        if not send_only and name in connection.joined:
            self._error(connection, "name", f"group {name!r} is joined already", number)
            return
        if send_only and not self._groups.may_send(name):
            self._error(connection, "closed-group", f"group {name!r} is not open to programs that are not in it", number)
            return
        opens, no_self = bool(flags & JoinFlag.OPEN), bool(flags & JoinFlag.NO_SELF)
        handle = _Handle(number, name, identity, level, opens, send_only, no_self, service)
        self._bind(connection, handle)
        self._ask(connection, handle)
        self._allow(connection, handle)
        self._send_outbox()

    def _on_leave(self, connection: _Connection, number: int) -> None:
        handle = connection.handles.get(number)
        if handle is None or handle.leaving:
            self._error(connection, "bad-handle", f"handle {number} is not joined", number)
            return
        self._dp.handle_drop(connection.slot, number)
        self._part(connection, handle)
        self._send_outbox()

    def _status_and_reply(self, now: int) -> tuple[dict[str, Any], bytes]:
        status = self._make_status(now)
        return status, _json(status)

    def _on_members(self, connection: _Connection, take: Take, now: int) -> None:
        if take.size == 0:
            reply: dict[str, object] = dict(self._stations(now))
        else:
            name = _group_name(take.data)
            if name is None:
                self._error(connection, "name", f"a group's name is 1 to {GROUP_NAME_MAX} bytes of UTF-8", 0)
                return
            reply = {"group": name, "members": [list(m) for m in self._groups.members(name) if self._open]}
        self._put(connection, Frame.MEMBERS_REPLY, reply, urgent=True)

    def _on_admin(self, connection: _Connection, take: Take, now: int) -> None:
        """A command of an operator: of root, or of the user the daemon runs as."""
        try:
            if connection.uid not in (0, os.geteuid()):
                raise PermissionError
            command, arguments = self._admin_command(take.data)
            if self.admin is None:
                raise UsageError("this daemon takes no commands")
            text = f"client {connection.client} ({connection.name}, uid {connection.uid}) asks: {command} {arguments or ''}"
            self._journal.event(logging.WARNING, "admin", text.rstrip(), now=now, key=command)
            reply: dict[str, object] = {"ok": True, "message": self.admin(command, arguments)}
            self._put(connection, Frame.ADMIN_REPLY, reply, urgent=True)
        except UsageError as exc:
            self._error(connection, "refused", str(exc), 0, admin=True)
        except PermissionError:
            self._error(connection, "not-permitted", "only root and the daemon's own user may do that", 0, admin=True)

    def _admin_command(self, data: bytes) -> tuple[str, dict[str, Any]]:
        """UsageError for what is no command."""
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise UsageError("a command is a JSON object")
        match body:
            case {"command": "leave"}:
                return "leave", {}
            case {"command": "expel", "station": int(station)} if not isinstance(station, bool):
                if not 1 <= station <= self._facts.stations:
                    raise UsageError(f"there is no station {station}; stations are 1 to {self._facts.stations}")
                return "expel", {"station": station}
        raise UsageError("the commands are leave, and expel with a station")

    def _on_bye(self, connection: _Connection) -> None:
        connection.bye = True
        self._want_ack(True)
        for handle in list(connection.handles.values()):
            if not handle.leaving:
                self._part(connection, handle)
        self._send_outbox()

    def _on_end(self, connection: _Connection, error: int, now: int) -> None:
        if error == E_PROTOCOL:
            self._cut_off(connection, "protocol", "a malformed frame", now, told=True)
        elif error == E_SLOW:
            limit = self._facts.queue_bytes_max
            text = f"more than {limit} bytes (clients.queue_bytes_max) were waiting for this client: it reads too slowly"
            self._cut_off(connection, "slow-receiver", text, now, told=True)
        else:
            self._dp.client_remove(connection.slot, hard=True)
            self._forget(connection, "closed")

    # ---- helpers

    def _cut_off(self, connection: _Connection, code: str, text: str, now: int, *, told: bool = False) -> None:
        """Disconnect a client for a reason. ``told``: the data path has told the client already."""
        line = f"disconnected client {connection.client} ({connection.name or 'no name'}): {code}: {text}"
        self._journal.event(logging.WARNING, "client", line, now=now, key=code, client=connection.client)
        if not told:
            self._error(connection, code, text, 0, close=True)
        self._dp.client_cut_off(connection.slot, LAST_WORDS_NS)
        self._forget(connection, code)

    def _forget(self, connection: _Connection, why: str) -> None:
        """The connection is gone: its memberships end at a place in the order like everything else."""
        del self._by_slot[connection.slot]
        del self._by_number[connection.client]
        for handle in connection.handles.values():
            if self._open and handle.asked and not handle.leaving:
                self._queue(connection.client, handle, self._groups.encode_leave(handle.group, death=why != "bye"))
        for handle in list(connection.handles.values()):
            self._unbind(connection, handle)
        self._send_outbox()

    def _bind(self, connection: _Connection, handle: _Handle) -> None:
        connection.handles[handle.number] = handle
        self._handles_of[connection.uid] += 1
        if not handle.send_only:
            connection.joined[handle.group] = handle
        self._by_group.setdefault(handle.group, {})[connection.client, handle.number] = (connection, handle)
        self._names[handle.group_id] = handle.group

    def _unbind(self, connection: _Connection, handle: _Handle) -> None:
        del connection.handles[handle.number]
        self._handles_of[connection.uid] -= 1
        if not self._handles_of[connection.uid]:
            del self._handles_of[connection.uid]
        if not handle.send_only:
            del connection.joined[handle.group]
        bound = self._by_group[handle.group]
        del bound[connection.client, handle.number]
        if not bound:
            del self._by_group[handle.group], self._names[handle.group_id]

    def _part(self, connection: _Connection, handle: _Handle) -> None:
        """Begin to leave. The handle stays until the leave has come in its place."""
        if handle.asked:
            handle.leaving = True
            if self._open:  # else the instance has ended, and with the next one the membership
                self._queue(connection.client, handle, self._groups.encode_leave(handle.group, death=False))
        else:
            self._unbind(connection, handle)

    def _ask(self, connection: _Connection, handle: _Handle) -> None:
        """Send the join of a handle in the present instance, if it can be sent yet."""
        if handle.send_only or handle.asked or connection.bye or not self._open or not self._groups.known:
            return
        handle.asked = True
        data = self._groups.encode_join(
            handle.group, connection.name, level=handle.level, open=handle.open, service=handle.service
        )
        self._queue(connection.client, handle, data)

    def _allow(self, connection: _Connection, handle: _Handle) -> None:
        """Say what becomes of SENDs on a handle now. They wait for the join: until it is ahead of them in the queue, or, where
        messages overtake the order, until it has its place there."""
        if handle.leaving:
            return
        service = handle.service
        if not handle.send_only:
            may = MaySend.YES if handle.asked and (handle.member or service is Service.TOTAL) else MaySend.WAIT
        elif self._open and self._groups.known:
            may = MaySend.YES if self._groups.may_send(handle.group) else MaySend.NO
            service = self._groups.service(handle.group)
        else:
            may = MaySend.WAIT
        self._dp.handle(connection.slot, handle.number, handle.group_id, may_send=may, service=service)

    def _queue(self, client: int, handle: _Handle, data: bytes) -> None:
        self._outbox.append((client, handle.group_id, data))

    def _send_outbox(self) -> None:
        while self._outbox:
            client, group, data = self._outbox[0]
            if not self._dp.send(client, group, MessageType.GROUP, data):
                return
            self._outbox.popleft()

    def _own_change(self, change: Change, client: int) -> None:
        """Carry a change of one of our own clients into the data path."""
        connection = self._by_number.get(client)
        if connection is None:
            return
        handle = connection.joined.get(change.group)
        if handle is None:
            return
        if change.refused:
            text = {
                "name-collision": f"group {change.group!r} has the same number as another group with members: use another name",
                "order-mismatch": f"group {change.group!r} has another order: its first member has said which",
            }[change.reason]
            self._error(connection, change.reason, text, handle.number)
            if not handle.leaving:
                self._dp.handle_drop(connection.slot, handle.number)
            self._unbind(connection, handle)
        elif change.reason == "join":
            handle.member = True
            self._dp.join(connection.slot, handle.number, handle.group_id, handle.level, handle.no_self, handle.service)
            self._allow(connection, handle)

    def _show(self, change: Change, place: tuple[int, int, int], position: int) -> None:
        """Give the view to all local members, and to those who have just left it."""
        body = _json(
            {
                "group": change.group, "clock": place[0], "station": place[1], "index": place[2], "instance": self._view_instance,
                "members": [list(m) for m in change.members], "joined": [list(m) for m in change.joined],
                "left": [list(m) for m in change.left], "reason": change.reason,
            }
        )  # fmt: skip
        own = self._facts.station
        leavers = {m[1] for m in change.left if m[0] == own}
        identity = group_id(change.group)
        bound = sorted(self._by_group.get(change.group, {}).items())
        for _, (connection, handle) in bound:
            if not handle.member:
                continue
            self._dp.client_put(
                connection.slot, Frame.VIEW, handle=handle.number, body=body, position=position, level=handle.level
            )
            if connection.client in leavers:
                self._dp.leave(connection.slot, identity)
                self._unbind(connection, handle)
        self._dp.need_ack(identity, self._groups.needs_ack(change.group))
        for _, (connection, handle) in bound:
            if handle.send_only:
                self._allow(connection, handle)

    def _name_of(self, identity: int) -> str | None:
        """The group that has this number, as far as this station knows."""
        return self._groups.name_of(identity) or self._names.get(identity)

    def _stations(self, now: int) -> dict[str, object]:
        """The answer to MEMBERS without a name: the members of the instance, and of all stations what is known."""
        status = self._status(now)[0]
        hosts = self._hosts(status)
        peers = {p["station"]: p for p in status.get("peers", ())}
        letters = status.get("membership", {}).get("letters", {}).get(str(self._facts.station)) or {}
        lives = dict(enumerate(self._incarnations, 1)) if self._open else {}
        detail = [
            {
                "station": s,
                "incarnation": lives.get(s) or peers.get(s, {}).get("incarnation") or 0,
                "host": hosts.get(s, ""),
                "letter": letters.get(str(s)),
                "state": peers.get(s, {}).get("state"),
                "member": bool(lives.get(s)),
            }
            for s in range(1, self._facts.stations + 1)
        ]
        return {
            "group": "",
            "members": [[s, 0, hosts.get(s, "")] for s, life in lives.items() if life],
            "detail": detail,
            "stations": self._facts.stations,
            "instance": self._instance if self._open else 0,
        }

    @staticmethod
    def _hosts(status: dict[str, Any]) -> dict[int, str]:
        return {p["station"]: p.get("host") or "" for p in status.get("peers", ())}

    def _new_number(self) -> int:
        """The next number that no connection has; a number comes back only after all others have been used."""
        while True:
            self._last_number = self._last_number % 65535 + 1
            if self._last_number not in self._by_number:
                return self._last_number

    def _in_order(self) -> list[_Connection]:
        return [c for _, c in sorted(self._by_number.items()) if c.greeted]

    def _blocked_event(self) -> dict[str, object]:
        if not self._blocked:
            return {"event": "unblocked"}
        stations = [{"station": s, "reason": r} for s, r in self._blocked]
        return {"event": "blocked", "stations": stations, "quorum": self._quorum}

    def _event(self, connection: _Connection, event: dict[str, object], *, urgent: bool = False) -> None:
        self._put(connection, Frame.EVENT, event, urgent=urgent)

    def _error(
        self, connection: _Connection, code: str, text: str, number: int, *, close: bool = False, admin: bool = False
    ) -> None:
        body: dict[str, object] = {"code": code, "message": text}
        if number:
            body["handle"] = number
        if admin:
            body["admin"] = True
        self._put(connection, Frame.ERROR, body, urgent=True, flags=ErrorFlag.CLOSES if close else 0, handle=number)

    def _put(
        self, connection: _Connection, kind: Frame, body: dict[str, Any], *, urgent: bool, flags: int = 0, handle: int = 0
    ) -> None:
        self._dp.client_put(connection.slot, kind, flags=flags, handle=handle, body=_json(body), urgent=urgent)

    def status(self) -> list[dict[str, object]]:
        """``clients`` of docs/status.md."""
        out: list[dict[str, object]] = []
        for connection in self._in_order():
            info = self._dp.client_info(connection.slot)
            out.append(
                {
                    "client": connection.client,
                    "name": connection.name,
                    "groups": sorted(h.group for h in connection.handles.values() if h.member),
                    "queued_bytes": info.queued_bytes,
                    "unsent_bytes": info.unsent_bytes,
                    "sent": info.sent,
                    "delivered": info.delivered,
                    "done": list(info.done),
                    "paused": info.paused,
                }
            )
        return out


def _group_name(data: bytes) -> str | None:
    """A group's name, None if it is none."""
    if not 1 <= len(data) <= GROUP_NAME_MAX:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
