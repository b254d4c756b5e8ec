"""Programs connected to this daemon: listening socket, handshake, joins and leaves, events and errors (docs/client-protocol.md).

Messages never pass through here: the data path reads and writes them in C. What arrives here are control frames (``on_frame``)
and group messages at their place in the total order (``on_group``), and what leaves are routes (which group goes to which client)
and single frames.

A join is a message: the client's membership, at every station, begins at its place in the order, so all members see the same
views at the same place. When the cluster is opened anew, everybody's groups are joined again by their own daemon.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import json
import logging
import os
import socket
import stat
import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..proto.groups import Change, Groups
from ..proto.wire import GROUP_NAME_MAX, MessageType, group_id
from .client.protocol import JOIN_NO_SELF, JOIN_OPEN, JOIN_SEND_ONLY, MAGIC, NAME_MAX, VERSION, Frame
from .datapath import E_PROTOCOL, E_SLOW, HANDLES_MAX, DataPath, Take
from .observe import Journal

BACKLOG: Final = 128
ACCEPTS_MAX: Final = 64
"""Connections accepted in one call; the rest waits for the next."""
PROBE_TIMEOUT_S: Final = 1.0
HELLO_TIMEOUT_NS: Final = 10_000_000_000
"""A connection that has not said HELLO by then is closed."""
ERROR_LINGER_NS: Final = 2_000_000_000
"""How long a client that is being cut off has to read its last frames."""
BYE_LINGER_NS: Final = 5_000_000_000
DONE: Final = struct.Struct("<QQQ")
HELLO: Final = struct.Struct("<4sHH")
CLOSE: Final = 1
"""Flag of an ERROR after which the connection is closed."""
LEVEL_MASK: Final = 3
ACK: Final = 2


class SocketError(Exception):
    """The client socket cannot be made; the text is one line for the operator."""


def listen(path: Path, mode: int, group: str, what: str = "client socket") -> socket.socket:
    """A listening, non-blocking Unix stream socket at ``path`` with these permissions; ``group`` empty: the process's own.

    A leftover socket is replaced only if nobody answers on it. Raises SocketError: in use (with the owner's pid), folder missing
    and not to be made, not a socket, unknown group, path too long.
    """
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as exc:
        raise SocketError(f"cannot create the folder of the {what} {path.parent}: {exc.strerror}") from exc
    _make_way(path, what)
    gid = -1
    if group:
        try:
            gid = grp.getgrnam(group).gr_gid
        except KeyError:
            raise SocketError(f"the group {group!r} for the {what} does not exist") from None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        before = os.umask(0o777)  # nobody may connect before the permissions are right
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        if gid >= 0:
            os.chown(path, -1, gid)
        path.chmod(mode)
        sock.listen(BACKLOG)
    except OSError as exc:
        sock.close()
        raise SocketError(f"cannot open the {what} {path}: {exc.strerror or exc}") from exc
    return sock


def _make_way(path: Path, what: str) -> None:
    """Remove a stale socket. Raises SocketError if somebody answers on it or if it is no socket."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise SocketError(f"cannot open the {what} {path}: something else is there already")
    except FileNotFoundError:
        return
    except OSError as exc:
        raise SocketError(f"cannot open the {what} {path}: {exc.strerror}") from exc
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            return
        except (TimeoutError, BlockingIOError):
            raise SocketError(f"the {what} {path} is in use by a process that does not answer") from None
        except OSError as exc:
            raise SocketError(f"cannot open the {what} {path}: {exc.strerror or exc}") from exc
        pid = struct.unpack("=iII", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    raise SocketError(f"the {what} {path} is in use by pid {pid}")


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
    asked: bool = False
    """The join is on its way in this instance."""
    member: bool = False
    """The join has come in its place."""
    leaving: bool = False


@dataclass(slots=True)
class _Connection:
    slot: int
    client: int
    since_ns: int
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
    ) -> None:
        """``status(now)`` gives the object of docs/status.md; ``want_ack(yes)``: somebody here waits for level ack."""
        self._dp = dp
        self._groups = groups
        self._facts = facts
        self.clients_max = facts.clients_max
        """May change; those above it stay."""
        self._journal = journal
        self._status = status
        self._want_ack = want_ack
        self._by_slot: dict[int, _Connection] = {}
        self._by_number: dict[int, _Connection] = {}
        self._by_group: dict[str, dict[tuple[int, int], tuple[_Connection, _Handle]]] = {}
        """Handles of each group by (client, handle): what a view costs must not grow with the other groups."""
        self._names: dict[int, str] = {}
        self._last_number = 0
        self._outbox: deque[tuple[int, int, bytes]] = deque()
        self._astray: set[tuple[int, str]] = set()
        """Joins that may still lie in the data path's queue when an instance ends and so come out in the next one."""
        self._instance = 0
        self._open = False
        self._ever_open = False
        self._closing = False
        self._blocked: tuple[tuple[int, str], ...] = ()
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
            fd = sock.detach()
            try:
                slot = self._dp.client_add(fd, number)
            except OSError as exc:
                sock = socket.socket(fileno=fd)
                code = "busy"
                self._journal.event(logging.WARNING, "client", f"cannot take a client: {exc.strerror}", now=now)
            else:
                connection = _Connection(slot, number, now)
                self._by_slot[slot] = connection
                self._by_number[number] = connection
                return
        self.refused += 1
        text = {"closing": "the daemon is stopping", "busy": f"the daemon serves {len(self._by_slot)} clients already"}[code]
        body = _json({"code": code, "message": text})
        with sock, contextlib.suppress(OSError):
            sock.setblocking(False)
            sock.send(struct.pack("<IBBH", len(body), Frame.ERROR, CLOSE, 0) + body)
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
            self._put(connection, Frame.STATUS_REPLY, self._status(now), urgent=True)
        elif take.type == Frame.MEMBERS:
            self._on_members(connection, take, now)
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
            if ready and info.done[ACK] >= info.sent and not info.unsent_bytes:
                urgent = bool(info.queued_bytes)
                self._dp.client_put(connection.slot, Frame.DONE, body=DONE.pack(*info.done), urgent=urgent)
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

    def on_opened(self, instance: int, stations: Iterable[int], undecided: dict[int, int]) -> None:
        """An instance has started, and all of the last one that will ever come has come: tell everybody, join everybody's groups
        (again).

        undecided: by slot, own messages that had not reached preack when the last one ended. The data path counts them as done
        from its next turn on, so this must come before it.
        """
        again = self._ever_open
        self._end_groups()
        self._instance, self._open, self._ever_open, self._blocked = instance, True, True, ()
        self._groups.open(instance)
        members = list(stations)
        for connection in self._in_order():
            event: dict[str, object] = {"event": "reopened" if again else "open", "instance": instance, "members": members}
            if again:
                event["undecided"] = count = undecided.get(connection.slot, 0)
                event["first"] = self._dp.client_info(connection.slot).sent - count + 1
            self._event(connection, event)
            for handle in connection.handles.values():
                self._ask(connection, handle)
        for client, group in self._astray:
            connection_now = self._by_number.get(client)
            if connection_now is None or group not in connection_now.joined:
                self._outbox.append((client, group_id(group), self._groups.encode_leave(group, death=True)))
        self._astray.clear()
        self._send_outbox()

    def on_closed(self) -> None:
        """The instance has ended. Its groups stay as they are until the next one begins: the rest of it, messages and views, may
        still be delivered before."""
        self._open = False
        self._outbox.clear()

    def _end_groups(self) -> None:
        """Nobody is in any group any more."""
        for name in self._groups.names():
            self._dp.need_ack(group_id(name), False)
        self._groups.close()
        for connection in list(self._by_slot.values()):
            for handle in list(connection.handles.values()):
                if handle.member:
                    self._dp.leave(connection.slot, handle.group_id)
                elif handle.asked:
                    self._astray.add((connection.client, handle.group))
                if handle.leaving or connection.bye:
                    self._unbind(connection, handle)
                handle.asked = handle.member = False

    def on_blocked(self, stations: tuple[tuple[int, str], ...]) -> None:
        """Delivery waits for these stations; empty: no more."""
        self._blocked = stations
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

    # ---- group messages

    def on_group(self, src: int, client: int, data: bytes, place: tuple[int, int, int], position: int, now: int) -> None:
        """A group message at its ``place`` (clock, station index, index) in the total order; ``position`` is its PDU's."""
        own = src == self._facts.station - 1
        for change in self._groups.apply(src + 1, client, data):
            if own:
                self._own_change(change, client)
            if change.reason != "name-collision":
                self._show(change, (place[0], src + 1, place[2]), position)

    # ---- control frames

    def _on_hello(self, connection: _Connection, take: Take, now: int) -> None:
        if take.type != Frame.HELLO or take.size < HELLO.size or take.data[:4] != MAGIC:
            self._cut_off(connection, "protocol", "the first frame is not a HELLO", now)
            return
        _, lowest, highest = HELLO.unpack_from(take.data)
        if not lowest <= VERSION <= highest:
            text = f"this daemon speaks version {VERSION}, the client {lowest} to {highest}"
            self._cut_off(connection, "version", text, now)
            return
        name = take.data[HELLO.size :]
        try:
            text = name.decode()
        except UnicodeDecodeError:
            self._cut_off(connection, "protocol", "the program's name is not UTF-8", now)
            return
        if len(name) > NAME_MAX or not text.isprintable():
            self._cut_off(connection, "protocol", f"the program's name is longer than {NAME_MAX} bytes or not printable", now)
            return
        connection.name = text  # not before: a name with control characters must not reach the log
        connection.greeted = True
        facts = self._facts
        welcome = {
            "version": VERSION,
            "station": facts.station,
            "stations": facts.stations,
            "cluster": facts.cluster,
            "client": connection.client,
            "message_max": facts.message_max,
            "queue_bytes_max": facts.queue_bytes_max,
            "instance": self._instance if self._open else 0,
            "mtu": self.mtu,
            "payload_max": self.payload_max,
        }
        self._put(connection, Frame.WELCOME, welcome, urgent=True)
        if self._blocked:
            self._event(connection, self._blocked_event(), urgent=True)
        if self._fence is not None:
            self._event(connection, self._fence, urgent=True)

    def _on_join(self, connection: _Connection, take: Take, now: int) -> None:
        number, flags = take.handle, take.flags
        level = flags & LEVEL_MASK
        if level > ACK or flags & ~(LEVEL_MASK | JOIN_OPEN | JOIN_SEND_ONLY | JOIN_NO_SELF):
            self._cut_off(connection, "protocol", f"JOIN with unknown flags {flags:#x}", now)
            return
        if not 1 <= number < HANDLES_MAX or number in connection.handles:
            why = "in use" if number in connection.handles else f"not within 1..{HANDLES_MAX - 1}"
            self._error(connection, "bad-handle", f"handle {number} is {why}", number)
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
        send_only = bool(flags & JOIN_SEND_ONLY)
        if self._fence is not None:
            self._error(connection, "fenced", "the order here differs from another station's", number)
            return
        if not send_only and name in connection.joined:
            self._error(connection, "name", f"group {name!r} is joined already", number)
            return
        if send_only and not self._groups.may_send(name):
            self._error(connection, "closed-group", f"group {name!r} is not open to programs that are not in it", number)
            return
        handle = _Handle(number, name, identity, level, bool(flags & JOIN_OPEN), send_only, bool(flags & JOIN_NO_SELF))
        self._bind(connection, handle)
        self._dp.handle(connection.slot, number, identity, may_send=True)
        if self._open:
            self._ask(connection, handle)
            self._send_outbox()

    def _on_leave(self, connection: _Connection, number: int) -> None:
        handle = connection.handles.get(number)
        if handle is None or handle.leaving:
            self._error(connection, "bad-handle", f"handle {number} is not joined", number)
            return
        self._dp.handle_drop(connection.slot, number)
        self._part(connection, handle)
        self._send_outbox()

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
        self._dp.client_remove(connection.slot, hard=False, linger_ns=ERROR_LINGER_NS)
        self._forget(connection, code)

    def _forget(self, connection: _Connection, why: str) -> None:
        """The connection is gone: its memberships end at a place in the order like everything else."""
        del self._by_slot[connection.slot]
        del self._by_number[connection.client]
        for handle in connection.handles.values():
            if self._open and handle.asked and not handle.leaving:
                self._queue(connection.client, handle, self._groups.encode_leave(handle.group, death=why != "bye"))
            elif not self._open and handle.asked and not handle.member:
                self._astray.add((connection.client, handle.group))
        for handle in list(connection.handles.values()):
            self._unbind(connection, handle)
        self._send_outbox()

    def _bind(self, connection: _Connection, handle: _Handle) -> None:
        connection.handles[handle.number] = handle
        if not handle.send_only:
            connection.joined[handle.group] = handle
        self._by_group.setdefault(handle.group, {})[connection.client, handle.number] = (connection, handle)
        self._names[handle.group_id] = handle.group

    def _unbind(self, connection: _Connection, handle: _Handle) -> None:
        del connection.handles[handle.number]
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
        """Send the join of a handle in the present instance."""
        if handle.send_only or handle.asked or connection.bye:
            return
        handle.asked = True
        data = self._groups.encode_join(handle.group, connection.name, level=handle.level, open=handle.open)
        self._queue(connection.client, handle, data)

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
        if change.reason == "name-collision":
            text = f"group {change.group!r} has the same number as another group with members: use another name"
            self._error(connection, "name-collision", text, handle.number)
            if not handle.leaving:
                self._dp.handle_drop(connection.slot, handle.number)
            self._unbind(connection, handle)
        elif change.reason == "join":
            handle.member = True
            self._dp.join(connection.slot, handle.number, handle.group_id, handle.level, handle.no_self)

    def _show(self, change: Change, place: tuple[int, int, int], position: int) -> None:
        """Give the view to all local members, and to those who have just left it."""
        body = _json(
            {
                "group": change.group, "clock": place[0], "station": place[1], "index": place[2], "instance": self._instance,
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
        may_send = self._groups.may_send(change.group)
        for _, (connection, handle) in bound:
            if handle.send_only:
                self._dp.handle(connection.slot, handle.number, identity, may_send=may_send)

    def _name_of(self, identity: int) -> str | None:
        """The group that has this number, as far as this station knows."""
        return self._groups.name_of(identity) or self._names.get(identity)

    def _stations(self, now: int) -> dict[str, object]:
        status = self._status(now)
        waiting = {station for station, _ in self._blocked}
        hosts = {p["station"]: p.get("host") or "" for p in status.get("peers", ())}
        members = [[s, 0, hosts.get(s, "")] for s in range(1, self._facts.stations + 1) if self._open and s not in waiting]
        return {
            "group": "",
            "members": members,
            "stations": self._facts.stations,
            "instance": self._instance if self._open else 0,
        }

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
        return {"event": "blocked", "stations": [{"station": s, "reason": r} for s, r in self._blocked]}

    def _event(self, connection: _Connection, event: dict[str, object], *, urgent: bool = False) -> None:
        self._put(connection, Frame.EVENT, event, urgent=urgent)

    def _error(self, connection: _Connection, code: str, text: str, number: int, *, close: bool = False) -> None:
        body: dict[str, object] = {"code": code, "message": text}
        if number:
            body["handle"] = number
        self._put(connection, Frame.ERROR, body, urgent=True, flags=CLOSE if close else 0, handle=number)

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


class Listener:
    """The listening socket in the loop: accepts in bounded bursts and rests when descriptors run out instead of spinning."""

    def __init__(self, path: Path, mode: int, group: str, given: socket.socket | None = None) -> None:
        """given: listens already, and belongs with its file to the service manager. Raises SocketError."""
        self._path = path
        self._identity: tuple[int, int] | None = None
        if given is not None:
            self._socket = given
            return
        self._socket = listen(path, mode, group)
        status = path.lstat()
        self._identity = (status.st_dev, status.st_ino)

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> tuple[list[socket.socket], OSError | None]:
        """New connections (at most ACCEPTS_MAX), and the error that ended it early (out of descriptors or memory)."""
        taken: list[socket.socket] = []
        for _ in range(ACCEPTS_MAX):
            try:
                sock, _ = self._socket.accept()
            except BlockingIOError:
                break
            except (ConnectionAbortedError, InterruptedError):
                continue
            except OSError as exc:
                if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    return taken, exc
                raise
            taken.append(sock)
        return taken, None

    def close(self) -> None:
        """Close, and remove the socket from the file system if it is still ours. Harmless when repeated."""
        if self._socket.fileno() < 0:
            return
        self._socket.close()
        if self._identity is None:
            return
        with contextlib.suppress(OSError):
            status = self._path.lstat()
            if (status.st_dev, status.st_ino) == self._identity:
                self._path.unlink()


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
