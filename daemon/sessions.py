"""Sessions of the programs connected to this daemon: handshake, control frames, events, BYE (docs/client-protocol.md).

Messages never pass through here: the data path reads and writes them in C. What arrives here are control frames (``on_frame``)
and, at their place in the total order, messages of services and view events (``on_delivered``). ``services`` handles those,
``requests`` handles questions and commands. This class sorts what arrives, and reports changes of the cluster to programs.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Any, Final

from ..proto.core import Message
from ..proto.engineconfig import EngineConfig
from ..proto.service.base import Place, ViewEvent, decode_view
from ..proto.service.groups import Groups
from ..proto.wire import ORDER_NAMES, MessageType
from .access import Access, Identity, identity, privileged
from .audit import Audit
from .clientwire import (
    DONE,
    HEADER,
    HELLO,
    LEVEL_MAX,
    MAGIC,
    PROGRAM_NAME_MAX,
    VERSION,
    VERSION_MIN,
    VERSION_REQUESTS,
    VERSION_VIEWS,
    ErrorFlag,
    Frame,
    Kind,
)
from .connections import Connection, Connections, Facts, Standing, as_json
from .datapath import CLIENTS_MAX, E_MANY, E_PROTOCOL, E_SLOW, DataPath, Lost, Take
from .grouphost import GroupHost
from .observe import Journal
from .requests import KIND_OF, Question, Requests
from .services import ServiceHost, Services

HELLO_TIMEOUT_NS: Final = 10_000_000_000
"""A connection that has not sent HELLO by then is closed."""
LAST_WORDS_NS: Final = 600_000_000_000
"""How long a client that has been cut off may take to read why: one that was cut off for not reading will not do so soon."""
BYE_LINGER_NS: Final = 5_000_000_000
RESERVED: Final = 2
"""Connections that operators have beyond ``clients.max``, so that they can look when programs have taken all."""
NOTHING_LOST: Final = Lost(0, 0, False)


class Sessions:
    """All sessions of this daemon. One thread; called by the driver, calls the data path."""

    def __init__(
        self,
        dp: DataPath,
        groups: Groups,
        facts: Facts,
        journal: Journal,
        status: Callable[[int], dict[str, Any]],
        want_ack: Callable[[bool], None],
        admin: Callable[[str, dict[str, Any]], str | dict[str, Any]] | None = None,
        host_of: Callable[[int], str | None] = lambda station: None,
        config: EngineConfig | None = None,
        access: Access | None = None,
    ) -> None:
        """``want_ack(yes)``: a program here waits for level ack. ``host_of``: the host name of a station, None if it is not
        known.
        ``status`` and ``admin``: as in ``Requests``. ``config``: the engine's, for groups of orders abcast and token; None: there
        are none. ``access``: rights and limits of programs; None: whoever may connect may do everything but give commands."""
        self._dp = dp
        self._facts = facts
        self.clients_max = facts.clients_max
        """May change; those above it stay."""
        self._journal = journal
        self._host_of = host_of
        self._want_ack = want_ack
        self.connections = Connections(dp)
        self._standing = Standing()
        self._services = Services()
        self.access = access or Access()
        self.audit = Audit(journal)
        self._bound_users()
        self.requests = Requests(
            dp, self.connections, self._standing, facts, journal, status, self._services, admin, access=self.access,
            audit=self.audit,
        )  # fmt: skip
        # The services, each of which registers itself.
        self._groups = GroupHost(
            self._services, dp, groups, self.connections, self._standing, facts, self.requests.reply, config, access=self.access,
            audit=self.audit,
        )  # fmt: skip
        self.requests.sees = self._groups.sees
        self.multicast = self._groups.multicast
        self.multicast.fenced = self._on_multicast_fenced
        self.refused = 0
        """Connections turned away (full, closing)."""
        self.mtu = 0
        self.payload_max = 0

    def register(self, host: ServiceHost) -> None:
        """One more service, before the first instance."""
        self._services.register(host)

    def on_configuration(self, stations: int, groups_max: int | None = None) -> None:
        """Numbers of stations are up to this now; so many groups there may be (None: as many as before)."""
        self._facts.stations = stations
        if groups_max is not None:
            self._groups.on_configuration(groups_max)

    def __len__(self) -> int:
        return len(self.connections.by_slot)

    # ---- connections

    def accept(self, sock: socket.socket, now: int) -> None:
        """Take a new connection over; ``sock`` is detached or closed."""
        try:
            who = identity(sock)
        except OSError as exc:
            sock.close()
            self.refused += 1
            self._journal.event(logging.WARNING, "client", f"cannot tell who a client is: {exc.strerror}", now=now)
            return
        code, text = self._turned_away(who)
        if not code:
            number = self.connections.new_number()
            fd = sock.detach()
            try:
                slot = self._dp.client_add(fd, number)
            except OSError as exc:
                sock = socket.socket(fileno=fd)
                code, text = "busy", f"the daemon serves {len(self)} clients already"
                self._journal.event(logging.WARNING, "client", f"cannot take a client: {exc.strerror}", now=now)
            else:
                if not privileged(who.uid):
                    self._dp.client_bound(slot, who.uid)
                self.connections.add(Connection(slot, number, who.uid, now, pid=who.pid, groups=who.groups))
                return
        self.refused += 1
        body = as_json({"code": code, "message": text})
        with sock, contextlib.suppress(OSError):
            sock.setblocking(False)
            sock.send(HEADER.struct.pack(len(body), Frame.ERROR, ErrorFlag.CLOSES, 0) + body)
        self.audit.refused(code, who, "", f"turned a client away: {text}", now)

    def _turned_away(self, who: Identity) -> tuple[str, str]:
        """Code and text of the ERROR for a program that cannot have a connection; empty: it can."""
        if self._standing.closing:
            return "closing", "the daemon is stopping"
        most = min(self.clients_max, CLIENTS_MAX - RESERVED) + (RESERVED if self.access.is_operator(who) else 0)
        if len(self) >= most:
            return "busy", f"the daemon serves {len(self)} clients already"
        text = self.access.may_connect(who, self.connections.count_of[who.uid])
        return ("too-many-connections" if text else ""), text

    def review(self) -> None:
        """Rights and limits have changed: programs lose what they may not have any more."""
        self._bound_users()
        self._groups.review()

    def _bound_users(self) -> None:
        quota = self.access.quota
        self._dp.user_limits(quota.queue_bytes, quota.input_bytes, quota.queue_bytes_users)
        self._dp.user_rates(quota.rate, quota.rate_bytes)

    def on_frame(self, take: Take, now: int) -> None:
        """One control frame of a client, or (type 0) its end."""
        connection = self.connections.by_slot.get(take.slot)
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
            if violation := self._groups.on_join(connection, take):
                self._cut_off(connection, "protocol", violation, now)
        elif take.type in (Frame.SEND, Frame.SEND_TO):
            if violation := self._groups.on_send(connection, take):
                self._cut_off(connection, "protocol", violation, now)
        elif take.type == Frame.LEAVE:
            self._groups.on_leave(connection, take.handle)
        elif take.type == Frame.REQUEST and connection.version >= VERSION_REQUESTS:
            if violation := self.requests.on_request(connection, take.data, now):
                self._cut_off(connection, "protocol", violation, now)
        elif (kind := _asked_by(take.type, connection.version)) is not None:
            self.requests.ask(Question(connection, kind), take.data, now)
        elif take.type == Frame.BYE:
            self._on_bye(connection)
        elif take.type == Frame.HELLO:
            self._cut_off(connection, "protocol", "a second HELLO", now)
        else:
            self._cut_off(connection, "protocol", f"a frame of unknown type {take.type}", now)

    def after_turn(self, now: int) -> None:
        """Serve what waited for room or for a position: group messages not yet queued, clients that sent BYE."""
        self._services.flush()
        standing = self._standing
        for connection in [c for c in self.connections.by_slot.values() if c.bye]:
            info = self._dp.client_info(connection.slot)
            # While delivery is blocked, its leaves and what others sent cannot come; its own messages are all that matters.
            ready = bool(standing.blocked) or not standing.open or (not connection.handles and not info.queued_bytes)
            if ready and info.done[LEVEL_MAX] >= info.sent and not info.unsent_bytes:
                urgent = bool(info.queued_bytes)
                self._dp.client_put(connection.slot, Frame.DONE, body=DONE.struct.pack(*info.done), urgent=urgent)
                self._dp.client_remove(connection.slot, hard=False, linger_ns=BYE_LINGER_NS)
                self._forget(connection, "bye")

    @property
    def joins_wait(self) -> bool:
        """Joins or leaves of programs have not gone yet."""
        return self._groups.joins_wait

    @property
    def waiting(self) -> bool:
        """Whether ``after_turn`` has something to come back for."""
        return self._services.waiting or self._says_goodbye()

    @property
    def awaits_hello(self) -> bool:
        """Whether ``tick`` has something to wait for."""
        return not all(c.greeted for c in self.connections.by_slot.values())

    def tick(self, now: int) -> None:
        """From time to time: close connections that never sent HELLO."""
        for connection in [c for c in self.connections.by_slot.values() if not c.greeted]:
            if now - connection.since_ns > HELLO_TIMEOUT_NS:
                self._cut_off(connection, "protocol", "no HELLO", now)

    def close_all(self, linger_ns: int) -> None:
        """Write out what is queued and released and close every connection, within ``linger_ns``."""
        for connection in list(self.connections.by_slot.values()):
            self._dp.client_remove(connection.slot, hard=False, linger_ns=linger_ns)
            self.connections.remove(connection)
            self._groups.unbind_all(connection)

    # ---- the cluster's news

    def on_opened(
        self, instance: int, incarnations: Iterable[int], lost: dict[int, Lost], *, joined: bool = False, frame_max: int = 0
    ) -> None:
        """This station has started in an instance, and everything of the last one is delivered: report it to all programs, and
        join their groups (again), now or (joined: it has been admitted) as soon as the others' groups are known.

        incarnations: of stations 1..n, 0: no member. frame_max: largest PDU that all members take, bytes. lost: what
        ``DataPath.reset`` has returned. The data path counts undecided messages as done from its next turn on, so this must come
        before it.
        """
        standing = self._standing
        again = standing.ever_open
        losses = {c: self._loss(c, lost) for c in self.connections.in_order()} if again else {}
        standing.frame_max = frame_max
        self._services.end()
        standing.instance = standing.view_instance = instance
        standing.incarnations = tuple(incarnations)
        standing.open, standing.ever_open, standing.blocked, standing.quorum = True, True, (), True
        self._services.open(instance, joined=joined)
        members = [station for station, incarnation in enumerate(standing.incarnations, 1) if incarnation]
        for connection in self.connections.in_order():
            event: dict[str, object] = {
                "event": "reopened" if again else "open",
                "instance": instance,
                "members": members,
                "joined": joined,
            }
            if again:
                event.update(losses[connection])
            self.connections.event(connection, event)
        self._services.begin()

    def _loss(self, connection: Connection, lost: dict[int, Lost]) -> dict[str, object]:
        """What the end of an instance costs a client, as its events report it."""
        undecided, forgotten, unsafe = lost.get(connection.slot, NOTHING_LOST)
        first = self._dp.client_info(connection.slot).sent - undecided + 1
        return {"undecided": undecided, "first": first, "forgotten": forgotten, "unsafe": unsafe}

    def on_changed(self, instance: int, incarnations: Iterable[int]) -> None:
        """The members have agreed on the next instance. The view event comes at its place, which may be later."""
        self._standing.instance, self._standing.incarnations = instance, tuple(incarnations)

    def on_closed(self, reason: str = "", station: int = 0, *, expelled: bool = False) -> None:
        """The instance has ended for this station. Its groups stay as they are until the next one begins: unless the others
        continue without this station (expelled), the rest of it, messages and views, may still be delivered before."""
        standing = self._standing
        standing.open = False
        self._services.suspend()
        lost = self._dp.lost() if expelled else {}
        for connection in self.connections.in_order():
            if connection.version < VERSION_VIEWS:
                continue
            event: dict[str, object] = {
                "event": "closed",
                "instance": standing.instance,
                "reason": reason,
                "station": station,
            }
            if expelled:
                event["event"] = "expelled"
                event.update(self._loss(connection, lost))
            self.connections.event(connection, event, urgent=True)

    def on_blocked(self, stations: tuple[tuple[int, str], ...], quorum: bool = True) -> None:
        """These stations are waited for; empty: no more. With quorum they are about to be removed; without, delivery stops."""
        self._standing.blocked, self._standing.quorum = stations, quorum
        for connection in self.connections.in_order():
            self.connections.event(connection, self._blocked_event(), urgent=True)

    def _blocked_event(self) -> dict[str, object]:
        if not self._standing.blocked:
            return {"event": "unblocked"}
        stations = [{"station": s, "reason": r} for s, r in self._standing.blocked]
        return {"event": "blocked", "stations": stations, "quorum": self._standing.quorum}

    def _on_multicast_fenced(self, text: str) -> None:
        """A station has delivered other messages of groups of order abcast or token than another one."""
        self._journal.error("bug", f"messages of groups differ between stations: {text}")

    def on_fenced(self, station: int, position: int) -> None:
        """The order differs from ``station``'s: nothing more is delivered."""
        self._standing.fence = {"event": "fenced", "at": position, "with": station}
        for connection in self.connections.in_order():
            self.connections.event(connection, self._standing.fence, urgent=True)

    def on_closing(self, now: int) -> None:
        """The daemon stops: no new clients from now on."""
        self._standing.closing = True
        for connection in self.connections.in_order():
            self.connections.event(connection, {"event": "closing"}, urgent=True)
        for connection in [c for c in self.connections.by_slot.values() if not c.greeted]:
            self._cut_off(connection, "closing", "the daemon is stopping", now)

    # ---- messages in the order

    def on_delivered(self, message: Message) -> None:
        """The message at which delivery has stopped (``DataPath.group``): one of a service or a view event, perhaps of an
        instance that has ended, because its groups stay until the next one begins."""
        if message.type == MessageType.VIEW:
            self._on_view(message)
        else:
            place = (message.clock, message.src + 1, message.index)
            self._services.on_message(message.type, place, message.client, message.data, message.position)

    def _on_view(self, message: Message) -> None:
        """Stations have come or gone at this place of the order."""
        view = decode_view(message.data)
        if self._facts.station not in view.members:
            return  # the last event of an instance that has ended here: no program gets this view
        self._standing.view_instance = view.instance
        place = (message.clock, message.view_src + 1, message.index)
        self._tell_view(view, place, message.position)
        self._services.on_view(place, view, message.position)

    def _tell_view(self, view: ViewEvent, place: Place, position: int) -> None:
        """The view event for every client, held back like the views of its groups: at the highest level that it asked for."""
        body = as_json(
            {
                "event": "view", "instance": view.instance, "clock": place[0], "station": place[1], "index": place[2],
                "members": [[s, i, self._host_of(s) or ""] for s, i in enumerate(view.incarnations, 1) if i],
                "joined": list(view.joined), "left": list(view.left),
            }
        )  # fmt: skip
        for connection in self.connections.in_order():
            if connection.version >= VERSION_VIEWS:
                level = max((handle.level for handle in connection.handles.values() if handle.member), default=0)
                self._dp.client_put(connection.slot, Frame.EVENT, body=body, position=position, level=level)

    # ---- control frames

    def _on_hello(self, connection: Connection, take: Take, now: int) -> None:
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
            why = f"the program's name is longer than {PROGRAM_NAME_MAX} bytes or not printable"
            self._cut_off(connection, "protocol", why, now)
            return
        connection.name = text  # not before: a name with control characters must not reach the log
        connection.greeted = True
        connection.version = version
        facts, standing = self._facts, self._standing
        welcome = {
            "version": version,
            "station": facts.station,
            "stations": facts.stations,
            "cluster": facts.cluster,
            "client": connection.client,
            "message_max": facts.message_max,
            "queue_bytes_max": facts.queue_bytes_max,
            "instance": standing.shown_instance,
            "mtu": self.mtu,
            "payload_max": self.payload_max,
            "medium": facts.medium,
            "orders": [ORDER_NAMES[o] for o in self.multicast.orderings],
        }
        self.connections.put(connection, Frame.WELCOME, welcome, urgent=True)
        self.audit.done("connected", connection.who, connection.name, now)
        if standing.blocked:
            self.connections.event(connection, self._blocked_event(), urgent=True)
        if standing.fence is not None:
            self.connections.event(connection, standing.fence, urgent=True)

    def _on_bye(self, connection: Connection) -> None:
        connection.bye = True
        self._ask_acks()
        self._groups.leave_all(connection)

    def _on_end(self, connection: Connection, error: int, now: int) -> None:
        if error == E_PROTOCOL:
            self._cut_off(connection, "protocol", "a malformed frame", now, told=True)
        elif error == E_SLOW:
            limit = self._facts.queue_bytes_max
            text = f"more than {limit} bytes (clients.queue_bytes_max) were waiting for this client: it reads too slowly"
            self._cut_off(connection, "slow-receiver", text, now, told=True)
        elif error == E_MANY:
            text = "disconnected: the programs of this user, or of all users, take more memory than "
            text += "clients.queue_bytes_per_user, queue_bytes_users or input_bytes_per_user allows"
            self.audit.refused("too-many-bytes", connection.who, connection.name, text, now)
            self._cut_off(connection, "too-many-bytes", text, now, told=True)
        else:
            self._dp.client_remove(connection.slot, hard=True)
            self._forget(connection, "closed")

    # ---- helpers

    def _cut_off(self, connection: Connection, code: str, text: str, now: int, *, told: bool = False) -> None:
        """Disconnect a client for a reason. ``told``: the data path has sent the ERROR already."""
        line = f"disconnected client {connection.client} ({connection.name or 'no name'}): {code}: {text}"
        self._journal.event(logging.WARNING, "client", line, now=now, key=code, client=connection.client)
        if not told:
            self.connections.error(connection, code, text, 0, close=True)
        self._dp.client_cut_off(connection.slot, LAST_WORDS_NS)
        self._forget(connection, code)

    def _says_goodbye(self) -> bool:
        return any(c.bye for c in self.connections.by_slot.values())

    def _ask_acks(self) -> None:
        """DONE waits for level ack of what the program sent; when the last such program has gone, however it went, nobody here
        waits any more: asked for on, each message would cost the cluster two further confirmations."""
        self._want_ack(self._says_goodbye())

    def _forget(self, connection: Connection, why: str) -> None:
        self.connections.remove(connection)
        self._ask_acks()
        self._services.forget(connection, death=why != "bye")

    def status(self) -> list[dict[str, object]]:
        """``clients`` of docs/status.md."""
        out: list[dict[str, object]] = []
        for connection in self.connections.in_order():
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
                    "throttled": info.throttled,
                }
            )
        return out


def _asked_by(frame: int, version: int) -> Kind | None:
    """What a frame of version 1 or 2 asks for; None: it is no question in this version."""
    if version >= VERSION_REQUESTS or (frame == Frame.ADMIN and version < VERSION_VIEWS):
        return None
    return KIND_OF.get(frame)
