"""The host of groups that overlap (``proto/multicast``): orders ``abcast`` and ``token`` of this daemon's programs.

It joins three things. The main order, in which changes of groups, view events and group messages of the daemons have their
places, comes from ``grouphost.py``. Records come from and go to links, whose frames are the data path's. Programs send to groups
(SEND on a handle of such a group, SEND_TO), and get messages and views in the machine's order: at level ordered as they come, at
level preack when all destinations have them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from ..proto.engineconfig import EngineConfig
from ..proto.multicast.codec import Encoded, encode
from ..proto.multicast.links import MESSAGE_MAX, Links, Pair
from ..proto.multicast.member import MULTICAST, Member, group_messages
from ..proto.multicast.records import (
    Broadcast,
    Deliver,
    DeliverView,
    Effect,
    Fenced,
    Finished,
    Id,
    Record,
    Release,
    Send,
    Settled,
)
from ..proto.multicast.tables import EraNumber, TokenTable
from ..proto.service.base import ViewEvent
from ..proto.service.groups import Change, Groups
from ..proto.wire import ORDER_NAMES, Ordering, group_id
from .clientwire import MESSAGE, Frame, MessageFlag
from .connections import Connection, Connections, Facts, Handle, Standing, as_json
from .datapath import TIME_MAX, DataPath, now_ns

PREACK: Final = 1
PATIENCE: Final = 8
"""Times ``poll_delay`` after which a link polls, and ``confirm_delay`` for which a confirmation waits for an answer."""


@dataclass(slots=True)
class Outgoing:
    """A message of a program that has not been sent yet."""

    connection: Connection
    handles: tuple[int, ...]
    groups: tuple[int, ...]
    """Numbers of the handles' groups, ascending."""
    data: bytes
    level: int
    notify: bool


WAIT: Final = object()
"""Not now: a handle's join has no place yet, or the groups are not known."""
Verdict: TypeAlias = tuple[str, str] | object | None
"""Of a message that is to be sent: code and text of an ERROR, ``WAIT``, or None: nothing is in the way."""


@dataclass(slots=True)
class Own:
    """A message of a program here that is not finished."""

    connection: Connection
    number: int
    size: int


@dataclass(slots=True)
class Put:
    """A frame for a program."""

    connection: Connection
    handle: Handle
    kind: Frame
    flags: int
    body: bytes
    ends: bool = False
    """The program has left the group with it."""


@dataclass(slots=True)
class Held:
    """Frames for programs of level preack: of a message, or of the views of an era."""

    what: Id | EraNumber
    puts: list[Put] = field(default_factory=list)
    is_free: bool = False


class MulticastHost:
    """One thread; called by the host of the groups and by the driver, calls the data path."""

    def __init__(
        self,
        dp: DataPath,
        groups: Groups,
        connections: Connections,
        standing: Standing,
        facts: Facts,
        config: EngineConfig | None,
    ) -> None:
        """config: the engine's; None: there are no such groups here (a bus)."""
        self._dp = dp
        self._connections = connections
        self._groups = groups
        self._standing = standing
        self._facts = facts
        self.member = Member(facts.station, groups)
        self.links = Links(_patient(config)) if config is not None else None
        self.emit: Callable[[bytes], None] = _nothing
        """Give a group message of this station to the main order."""
        self.accuse: Callable[[int], None] = _nothing
        """Propose the removal of a station, to which a link is blocked."""
        self.fenced: Callable[[str], None] = _nothing
        """This station and another one have delivered different messages."""
        self.unbind: Callable[[Connection, Handle], None] = _nothing
        """A program has left a group, and has got its last view."""
        self.judge: Callable[[Outgoing], Verdict] = _nothing
        """Whether a message of a program that is still there can be sent now, to the groups of its handles as they are now."""
        self.on_ready: Callable[[], None] = _nothing
        """From now on this station takes part."""
        self._receivers: defaultdict[int, dict[tuple[int, int], tuple[Connection, Handle]]] = defaultdict(dict)
        """Programs here that get the messages of a group, by client and handle."""
        self._changes: dict[EraNumber, list[Change]] = {}
        """Views of groups, until the era that they begin has its place."""
        self._held: defaultdict[str, deque[Held]] = defaultdict(deque)
        self._order_of: dict[Id, str] = {}
        self._own: dict[Id, Own] = {}
        self._own_bytes = 0
        self._outgoing: dict[int, deque[Outgoing]] = {}
        """By client number."""
        self._next: Outgoing | None = None
        """It waits until there is room for it among the unfinished ones: none that shares a group with it goes before it."""
        self._last: tuple[Record, Encoded] | None = None
        self._touched: set[int] = set()
        self._accepted: list[tuple[int, list[Record]]] = []
        """Records of links, by PDU, and the station that they come from."""
        self._has_sent = False
        """Messages of programs have begun that ``go_on`` carries on."""
        self._stuck: set[int] = set()
        """Stations whose links were blocked at the last look."""
        self._settled = EraNumber(0, 0)
        self._was_ready = False

    @property
    def orderings(self) -> tuple[Ordering, ...]:
        """Orders that groups here can have."""
        return tuple(o for o in Ordering if self.links is not None or o not in MULTICAST)

    # ---- instances

    @property
    def is_ready(self) -> bool:
        """Programs here may join groups of these orders, and send to them."""
        return self._standing.open and self.member.machine is not None

    def open(self, instance: int, *, joined: bool) -> None:
        """An instance has started."""
        if self.links is None:
            return
        self._forget_all()
        incarnations = self._standing.incarnations
        self.links.begin(instance, incarnations, self._standing.frame_max or self.links.config.frame_max)
        members = {z: life for z, life in enumerate(incarnations, 1) if life}
        self._apply(self.member.open(instance, members, joined=joined))

    def suspend(self) -> None:
        """The instance has ended for this station: nothing of it is sent or delivered any more."""
        if self.links is not None:
            for station in list(self.links.pairs):
                self._dp.pair(station, None)
            self.links.end()
        self._accepted.clear()
        self._stuck.clear()
        self.member.close()
        self._was_ready = False

    def _forget_all(self) -> None:
        self.suspend()
        self._receivers.clear()
        self._changes.clear()
        self._held.clear()
        self._order_of.clear()
        self._own.clear()
        self._own_bytes = 0
        self._next = None
        self._settled = EraNumber(0, 0)

    def lost(self, connection: Connection) -> tuple[int, bool]:
        """What the end of the instance costs a program: messages held for level preack, which it will not get, and whether it has
        got some at level ordered that others may not have."""
        puts = [p for held in self._held.values() for h in held for p in h.puts]
        forgotten = sum(p.connection is connection and p.kind == Frame.MESSAGE for p in puts)
        is_early = any(h.level < PREACK and h.ordering in MULTICAST for h in connection.handles.values())
        return forgotten, bool(self._order_of) and is_early

    # ---- the main order

    def on_view(self, view: ViewEvent, changes: Sequence[Change], syncing: bool) -> None:
        """A view event is at this place, and these programs have gone with it."""
        if self.links is None:
            return
        self._take()
        effects = self.member.on_view(now_ns(), view, syncing)
        for station in self.links.change(view.instance, view.incarnations):
            self._dp.pair(station, None)
        self._enter(effects, changes)

    def on_change(self, change: Change) -> None:
        """A program has joined a group of these orders, or left it."""
        self._take()
        self._enter(self.member.on_change(now_ns(), change), [change])

    def on_kept(self) -> None:
        """A group message is kept until the groups are known."""
        self.member.on_kept()

    def on_groups(self) -> None:
        """The groups have taken a message: perhaps all SNAPSHOTs have come."""
        self.member.on_users(self._groups.multicast_stations)
        caught_up, self._groups.caught_up = self._groups.caught_up, []
        self._enter(self.member.on_groups_known(now_ns(), caught_up))

    def on_group_message(self, station: int, data: bytes) -> None:
        """FLUSH, CLOSED or STATE of a station."""
        self._take()
        self._enter(self.member.on_group_message(now_ns(), station, data))

    def _enter(self, effects: list[Effect], changes: Sequence[Change] = ()) -> None:
        """Apply what an input at a place of the main order has caused. changes: of groups, at that place."""
        machine = self.member.machine
        if machine is not None and changes:
            self._changes.setdefault(machine.era.number, []).extend(changes)
        self._apply(effects)
        if self.is_ready and not self._was_ready:
            self._was_ready = True
            self.on_ready()
        self.send_waiting()

    # ---- links

    def on_pairs(self) -> None:
        """The data path has news of links."""
        news, asked = self._dp.pairs()  # taken in any case: left there it would be news in every turn
        if self.links is None:
            return
        if self.member.machine is not None:
            for station in _numbers(asked):
                if self.links.is_member(station) and station != self._facts.station:
                    self._pair(station)
        if news:
            self._take()
            self._touched.update(z for z in _numbers(news) if z in self.links.pairs)
        self._pump()
        self.send_waiting()

    def _pair(self, station: int) -> Pair:
        assert self.links is not None
        is_new = station not in self.links.pairs
        pair = self.links.pair(station, now_ns())
        if is_new:
            self._dp.pair(station, pair.core.handle_pointer)
        return pair

    def _take(self) -> None:
        """Take what the links have accepted (rule E2: before anything at a place of the main order). Without a quorum it is kept:
        left in the links it would be news in every turn."""
        machine = self.member.machine
        if self.links is None or machine is None:
            return
        if machine.is_fast and not self._accepted and self._standing.quorum:
            if self.links.pairs:
                self._apply(self.member.on_links(now_ns(), list(self.links.pairs.values())))
            return
        for station, pair in list(self.links.pairs.items()):
            self._accepted.extend((station, records) for records in pair.take())
        if self._accepted and self._standing.quorum:
            accepted, self._accepted = self._accepted, []
            self._apply(self.member.on_records(now_ns(), accepted))

    def _pump(self) -> None:
        """Give the links' cores what they have room for."""
        if self.links is None:
            return
        now = now_ns()
        for station in self._touched:
            pair = self.links.pairs.get(station)
            if pair is not None:
                pair.pump(now)
                self._dp.pair_waits(station, pair.waits)
        self._touched.clear()

    def set_frame_max(self, frame_max: int) -> None:
        """The interface carries PDUs of this size in bytes from now on."""
        if self.links is not None:
            self.links.set_frame_max(frame_max)

    @property
    def too_long(self) -> bool:
        """PDUs of a link are larger than the interface carries now."""
        return self.links is not None and self.links.too_long

    def on_quorum(self) -> None:
        """Without a quorum nothing is sent or delivered; there may be one again."""
        if self.links is not None and self._standing.quorum:
            for pair in self.links.pairs.values():
                pair.restart(now_ns())
            self._stuck.clear()
            self._take()
            self.send_waiting()

    def tick(self, now: int) -> None:
        """From time to time: rule L4. A link is judged twice, because a daemon that did not run for a while has confirmations to
        read. Who has no quorum judges nobody."""
        if self.links is None or not self._standing.quorum:
            return
        limit = self.links.config.progress_timeout_ns
        if self.links.too_long:
            return  # that is not the other one's fault: ``OwnStream`` of proto/watch.py
        stuck = {station for station, pair in self.links.pairs.items() if pair.is_stuck(now, limit)}
        accused, self._stuck = stuck & self._stuck, stuck
        for station in sorted(accused):
            self.accuse(station)

    @property
    def deadline(self) -> int:
        """When ``on_time`` has something to do. Asked twice in a turn of the daemon, mostly where no group has one of these
        orders."""
        machine = self.member.machine
        if machine is None or not self._standing.quorum:
            return TIME_MAX
        deadline = machine.deadline
        return TIME_MAX if deadline is None else deadline

    def on_time(self, now: int) -> None:
        if now >= self.deadline:
            self._apply(self.member.on_time(now))

    # ---- effects

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._transmit(effect.to, effect.record)
            elif isinstance(effect, Deliver):
                self._deliver(effect)
            elif isinstance(effect, Release):
                self._release(effect.id)
            elif isinstance(effect, Finished):
                self._finish(effect.id)
            elif isinstance(effect, Broadcast):
                for message in group_messages(effect.entry):
                    self.emit(message)
            elif isinstance(effect, DeliverView):
                self._deliver_views(effect)
            elif isinstance(effect, Settled):
                self._settled = effect.era
                for order in list(self._held):
                    self._let_go(order)
            elif isinstance(effect, Fenced):
                self.fenced(effect.text)
        self._take_records()
        self._pump()

    def _take_records(self) -> None:
        """Give the links what the machine has for them, after what its effects have."""
        machine = self.member.machine
        if machine is None or self.links is None:
            return
        for station in machine.ready:
            if self.links.is_member(station):
                self._pair(station).take_from(machine)
                self._touched.add(station)
            else:
                machine.flush(station, None)

    def _transmit(self, station: int, record: Record) -> None:
        """A message to many stations is made once, and lies once for all of them (rule L5)."""
        if self.links is None or not self.links.is_member(station):
            return
        if self._last is None or self._last[0] is not record:
            self._last = (record, encode(record))
        self._pair(station).send(self._last[1])
        self._touched.add(station)

    def _deliver(self, m: Deliver) -> None:
        """Each program gets a message once, on its lowest handle of the addressed groups."""
        to: dict[int, tuple[Connection, Handle]] = {}
        for group in m.groups:
            for (client, number), bound in self._receivers.get(group, {}).items():
                if client not in to or number < to[client][1].number:
                    to[client] = bound
        index = m.id.number & 0xFFFF
        body = MESSAGE.struct.pack(m.time, index, m.program.client, m.id.origin) + m.content
        own = self._own.get(m.id)
        held = Held(m.id)
        for client, (connection, handle) in sorted(to.items()):
            is_own = m.id.origin == self._facts.station and client == m.program.client
            if is_own and handle.no_self:
                continue
            put = Put(connection, handle, Frame.MESSAGE, MessageFlag.OWN if is_own else 0, body)
            if handle.level < PREACK:
                self._put(put)
            else:
                held.puts.append(put)
        self._order_of[m.id] = m.order
        self._held[m.order].append(held)
        if own is not None:
            self._count(own, 0)

    def _put(self, put: Put) -> None:
        handle = put.handle
        if put.connection.handles.get(handle.number) is handle:
            self._dp.client_put(
                put.connection.slot, put.kind, flags=put.flags, handle=handle.number, body=put.body, position=TIME_MAX
            )
            if put.ends:
                self.unbind(put.connection, handle)

    def _release(self, name: Id) -> None:
        order = self._order_of.pop(name, None)
        if order is None:
            return
        for held in self._held[order]:
            if held.what == name:
                held.is_free = True
                break
        self._let_go(order)

    def _let_go(self, order: str) -> None:
        queue = self._held[order]
        while queue and (queue[0].is_free or (isinstance(queue[0].what, EraNumber) and queue[0].what <= self._settled)):
            for put in queue.popleft().puts:
                self._put(put)

    def _finish(self, name: Id) -> None:
        """An own message is done at both levels."""
        own = self._own.pop(name, None)
        if own is not None:
            self._own_bytes -= own.size
            self._count(own, PREACK)

    def _count(self, own: Own, level: int) -> None:
        if own.number and own.connection in self._connections:
            self._dp.own_done(own.connection.slot, own.number, level)

    def _deliver_views(self, effect: DeliverView) -> None:
        """The views of groups that begin with an era, at one place of each order."""
        for change in self._changes.pop(effect.era, []):
            self._view(change, effect)

    def _view(self, change: Change, at: DeliverView) -> None:
        body = as_json(
            {
                "group": change.group, "clock": at.time, "station": 0, "index": 0,
                "instance": at.era.instance, "members": [list(m) for m in change.members],
                "joined": [list(m) for m in change.joined], "left": [list(m) for m in change.left], "reason": change.reason,
            }
        )  # fmt: skip
        identity = group_id(change.group)
        own = self._facts.station
        for _, client, _ in [m for m in change.joined if m[0] == own]:
            self._add_receiver(change.group, client)
        leavers = {m[1] for m in change.left if m[0] == own}
        held = Held(at.era)
        for (client, number), (connection, handle) in sorted(self._receivers.get(identity, {}).items()):
            put = Put(connection, handle, Frame.VIEW, 0, body, client in leavers)
            if put.ends:
                del self._receivers[identity][client, number]
                if not self._receivers[identity]:
                    del self._receivers[identity]
            if handle.level < PREACK:
                self._put(put)
            else:
                held.puts.append(put)
        if held.puts:
            order = ORDER_NAMES[change.ordering]
            self._held[order].append(held)
            self._let_go(order)

    def _add_receiver(self, group: str, client: int) -> None:
        connection = self._connections.by_number.get(client)
        handle = connection.joined.get(group) if connection is not None else None
        if connection is not None and handle is not None:
            self._receivers[handle.group_id][client, handle.number] = (connection, handle)

    # ---- what programs send

    def send(self, m: Outgoing) -> None:
        """A message to groups; ``go_on`` follows. It is refused, or it waits, for its window or for its program's joins; nothing
        more is read from the program then."""
        queue = self._outgoing.setdefault(m.connection.client, deque())
        queue.append(m)
        if len(queue) == 1:
            self._send_from(m.connection.client)

    def send_waiting(self) -> None:
        """What messages wait for may have changed."""
        self._send_outgoing()
        self.go_on()

    def _send_outgoing(self) -> None:
        while True:
            waited = self._next
            for client in list(self._outgoing):
                self._send_from(client)
            if waited is None or self._next is not None:
                break
            # Who was to go first has gone, or was refused: those before it in this pass have waited for it.

    def go_on(self) -> None:
        """Send what programs have given since the last input: all of a turn together, so that their messages share records and
        PDUs (rule O8)."""
        while self._has_sent:  # bound: each time a message has left its queue
            self._has_sent = False
            self._apply(self.member.on_sent(now_ns()))
            self._send_outgoing()

    def _send_from(self, client: int) -> None:
        queue = self._outgoing[client]
        connection = queue[0].connection
        while queue and self._send(queue[0]):
            queue.popleft()
        if not queue:
            del self._outgoing[client]
        if connection in self._connections:
            self._dp.client_hold(connection.slot, bool(queue))

    def _send(self, m: Outgoing) -> bool:
        """False: not now."""
        if self._next is m:
            self._next = None  # it is asked anew whether it can go, and must wait
        is_here = m.connection in self._connections
        if not is_here and len(m.data) > MESSAGE_MAX:
            return True  # it would have been refused, but its program went while it waited
        verdict = self.judge(m) if is_here else None
        if isinstance(verdict, tuple):
            self._dp.refuse(m.connection.slot, *verdict, handle=m.handles[0] if m.handles else 0)
            return True
        if verdict is WAIT or not self.is_ready or not self._standing.quorum:
            return False
        if self._own_bytes + len(m.data) > MESSAGE_MAX and self._own:
            self._next = self._next or m
            return False
        if self._next is not None and not set(self._next.groups).isdisjoint(m.groups):
            return False
        groups = self.member.groups_of_one_order(m.groups)
        if not groups:
            self._count(Own(m.connection, self._number(m), 0), PREACK)
            return True
        safe = m.level >= PREACK or any(self._groups.wants_preack(g) for g in groups)
        name = self.member.send(now_ns(), m.connection.client, groups, m.data, safe)
        if name is None:
            return False
        self._own[name] = Own(m.connection, self._number(m), len(m.data))
        self._own_bytes += len(m.data)
        self._has_sent = True
        return True

    def _number(self, m: Outgoing) -> int:
        """The message's number among those of its program; 0: the program has gone."""
        if m.connection not in self._connections:
            return 0
        return self._dp.own_sent(m.connection.slot, m.level, m.notify)

    @property
    def is_stable(self) -> bool:
        """No message of a program here is unfinished or waits."""
        return not self._own and not self._outgoing

    # ---- status

    def status(self) -> dict[str, object]:
        """``multicast`` of docs/status.md."""
        machine = self.member.machine
        table = machine.era.tables["token"] if machine is not None else None
        return {
            "takes_part": machine is not None,
            "era": list(machine.era.number) if machine is not None else None,
            "eras": len(machine.main.eras) if machine is not None else 0,
            "tokens": sorted(table.hosts) if isinstance(table, TokenTable) else [],
            "unfinished": len(self._own),
            "links": [
                {"station": station, "memory_bytes": pair.core.memory_bytes, "waits": pair.waits, "malformed": pair.malformed}
                for station, pair in sorted(self.links.pairs.items())
            ]
            if self.links is not None
            else [],
        }


def _patient(config: EngineConfig) -> EngineConfig:
    """For links: records are handled in Python, so a busy station may be late, and two POLLs without an answer would send frames
    to all stations (rule L2). A confirmation waits longer only while what has come is not taken yet."""
    delay = PATIENCE * config.poll_delay_ns
    confirm = min(PATIENCE * config.confirm_delay_ns, delay // 4)
    return replace(
        config,
        confirm_delay_ns=max(confirm, config.confirm_delay_ns),
        poll_delay_ns=delay,
        poll_delay_max_ns=max(config.poll_delay_max_ns, 2 * delay),
    )


def _nothing(*_: object) -> None:
    pass


def _numbers(bitmap: int) -> list[int]:
    return [k + 1 for k in range(bitmap.bit_length()) if bitmap >> k & 1]
