"""The host of groups that overlap (``proto/multicast``): orders ``abcast`` and ``token`` of this daemon's programs.

It joins three things. The main order, in which changes of groups, view events and group messages of the daemons have their
places, comes from ``grouphost.py``. Records come from and go to links, whose frames are the data path's. Programs send to groups
(SEND on a handle of such a group, SEND_TO), and get messages and views in the machine's order: at level ordered as they come, at
level preack when all destinations have them.

While an era is open the data path drives the machine (``multi_drive``): records, messages of programs and what follows from them
do not come here. What does: changes of eras, links to be opened, messages that are refused or wait for a join, and everything
while there is no quorum. What programs get goes through the data path in either case.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from ..proto.engineconfig import EngineConfig
from ..proto.multicast.codec import Encoded, encode, era_bytes
from ..proto.multicast.links import MESSAGE_MAX, Links, Pair
from ..proto.multicast.member import MULTICAST, Member, group_messages
from ..proto.multicast.records import (
    Broadcast,
    Deliver,
    DeliverView,
    Effect,
    Fenced,
    Finished,
    Record,
    Release,
    Send,
    Settled,
)
from ..proto.multicast.tables import ORDERS, EraNumber, TokenTable
from ..proto.service.base import ViewEvent
from ..proto.service.groups import Change, Groups
from ..proto.wire import ORDER_NAMES, Ordering, group_id
from .clientwire import Frame
from .connections import Connection, Connections, Facts, Handle, Standing, as_json
from .datapath import MULTI_LEVEL, TIME_MAX, DataPath, now_ns

PREACK: Final = 1
PATIENCE: Final = 8
"""Times ``poll_delay`` after which a link polls, and ``confirm_delay`` for which a confirmation waits for an answer."""
MORE: Final = 4
KEPT_ERAS: Final = 2
"""Eras kept, the open one among them, with which a join is sent that begins another."""
AT_ONCE: Final = 512
"""PDUs under way on a link: so many times ``window_frames``, and so many on all links of one station together."""


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
    awaits: set[str] = field(default_factory=set)
    """Its program has gone: groups that it was to join, for which the message waits."""
    is_void: bool = False
    """Its program has gone, and is in one of the groups no more, or never was."""


WAIT: Final = object()
"""Not now: a handle's join has no place yet, or the groups are not known."""
Verdict: TypeAlias = tuple[str, str] | object | None
"""Of a message that is to be sent: code and text of an ERROR, ``WAIT``, or None: nothing is in the way."""


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
        self.links = Links(for_links(config)) if config is not None else None
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
        self.on_open: Callable[[], None] = _nothing
        """What begins the next era can be sent."""
        self.on_ready: Callable[[], None] = _nothing
        """From now on this station takes part."""
        self._receivers: defaultdict[int, dict[tuple[int, int], tuple[Connection, Handle]]] = defaultdict(dict)
        """Programs here that get the messages of a group, by client and handle."""
        self._changes: dict[EraNumber, list[Change]] = {}
        """Views of groups, until the era that they begin has its place."""
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
        self._driven: tuple[int, bool] | None = None
        """The machine that the data path drives, and whether it sends programs' messages as well."""
        self._was_ready = False

    @property
    def orderings(self) -> tuple[Ordering, ...]:
        """Orders that groups here can have."""
        return tuple(o for o in Ordering if self.links is not None or o not in MULTICAST)

    # ---- instances

    @property
    def has_links(self) -> bool:
        """There are links, which ``tick`` looks at."""
        return self.links is not None and bool(self.links.pairs)

    @property
    def is_ready(self) -> bool:
        """Programs here may join groups of these orders, and send to them."""
        return self._standing.open and self.member.machine is not None

    @property
    def may_change(self) -> bool:
        """An era is open, and no more than one before it is still kept."""
        machine = self.member.machine
        return machine is not None and machine.is_open and len(machine.main.eras) <= KEPT_ERAS

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
        self._stop_driving()
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
        self._dp.multi_clear()
        self._next = None
        for queue in self._outgoing.values():
            for m in queue:
                m.is_void |= bool(m.awaits)

    # ---- who drives the machine

    def _drive(self) -> None:
        """The data path does, while there is a quorum and an era is open."""
        machine = self.member.machine
        may = self._standing.open and self._standing.quorum and not self._accepted
        if machine is None or not machine.is_fast or not may:
            self._stop_driving()
            return
        wanted = (machine.pointer, not self._outgoing)
        if wanted != self._driven and self._dp.multi_drive(machine.pointer, sends=wanted[1], bytes_max=MESSAGE_MAX):
            self._driven = wanted

    def _stop_driving(self) -> None:
        if self._driven is not None:
            self._take_foreign()
            self._driven = None
            self._dp.multi_drive(None, sends=False, bytes_max=0)

    def _go(self) -> None:
        """Have the data path take and carry out what there is."""
        unlinked = self._dp.multi_go()
        self._take_foreign()
        if unlinked:
            self._take_records()
            self._pump()

    def _take_foreign(self) -> None:
        """Records that are not of the open era, which the data path has kept."""
        machine = self.member.machine
        while machine is not None and (r := self._dp.multi_foreign()) is not None:
            pair = self.links.pairs.get(r.source) if self.links is not None else None
            if not machine.take_foreign(r.source, r.incarnation, Encoded(r.type, r.group, r.client, r.data)) and pair is not None:
                pair.malformed += 1

    # ---- the main order

    def on_view(self, view: ViewEvent, changes: Sequence[Change], syncing: bool) -> None:
        """A view event is at this place, and these programs have gone with it."""
        if self.links is None:
            return
        self._take_all()
        effects = self.member.on_view(now_ns(), view, syncing)
        for station in self.links.change(view.instance, view.incarnations):
            self._dp.pair(station, None)
        self._enter(effects, changes)

    def on_change(self, change: Change) -> None:
        """A program has joined a group of these orders, or left it."""
        self._take_all()
        self._enter(self.member.on_change(now_ns(), change), [change])

    def on_kept(self) -> None:
        """A group message is kept until the groups are known."""
        self.member.on_kept()

    def on_groups(self) -> None:
        """The groups have taken a message: perhaps all SNAPSHOTs have come."""
        self._stop_driving()
        self.member.on_users(self._groups.multicast_stations)
        caught_up, self._groups.caught_up = self._groups.caught_up, []
        self._enter(self.member.on_groups_known(now_ns(), caught_up))

    def on_group_message(self, station: int, data: bytes) -> None:
        """FLUSH, CLOSED or STATE of a station."""
        self._take_all()
        self._enter(self.member.on_group_message(now_ns(), station, data))

    def _enter(self, effects: list[Effect], changes: Sequence[Change] = ()) -> None:
        """Apply what an input at a place of the main order has caused. changes: of groups, at that place."""
        machine = self.member.machine
        if machine is not None and changes:
            era = machine.era.number
            # A machine that has begun with this era, as a station that is left alone does, has no views of it.
            if machine.viewed < era or any(isinstance(e, DeliverView) and e.era == era for e in effects):
                self._changes.setdefault(era, []).extend(changes)
        self._apply(effects)
        if self.is_ready and not self._was_ready:
            self._was_ready = True
            self.on_ready()
        self._let_go()

    def _let_go(self) -> None:
        """What waited for a change to be over, or for room, goes on."""
        if self.may_change:
            self.on_open()
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
        if self._driven is not None:
            self._go()
        elif news:
            self._take()
            self._touched.update(z for z in _numbers(news) if z in self.links.pairs)
        self._pump()
        self._let_go()

    def _pair(self, station: int) -> Pair:
        assert self.links is not None
        is_new = station not in self.links.pairs
        pair = self.links.pair(station, now_ns())
        if is_new:
            self._dp.pair(station, pair.core.handle_pointer)
            self._dp.pair_records(station, pair.queue_pointer, pair.index, pair.incarnation)
        return pair

    def _take_all(self) -> None:
        """Before anything at a place of the main order (rule E2): take what the links have accepted. What follows is Python's."""
        self._take()
        self._stop_driving()

    def _take(self) -> None:
        """Take what the links have accepted. Without a quorum it is kept: left in the links it would be news in every turn."""
        if self._driven is not None:
            self._go()
            return
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

    def on_configuration(self, config: EngineConfig) -> None:
        """Of links that are opened from now on: with the next instance, all."""
        if self.links is not None:
            self.links.config = for_links(config)

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
        if not self._standing.quorum:
            self._stop_driving()
        elif self.links is not None and self._standing.quorum:
            for pair in self.links.pairs.values():
                pair.restart(now_ns())
            self._stuck.clear()
            self._take()
            self._pump()
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
        if machine is None or self._driven is not None or not self._standing.quorum:
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
                self._dp.multi_release(ORDERS.index(effect.order))
            elif isinstance(effect, Finished):
                self._dp.multi_finished(effect.id.number)
            elif isinstance(effect, Broadcast):
                for message in group_messages(effect.entry):
                    self.emit(message)
            elif isinstance(effect, DeliverView):
                self._deliver_views(effect)
            elif isinstance(effect, Settled):
                self._dp.multi_settled(era_bytes(effect.era))
            elif isinstance(effect, Fenced):
                self.fenced(effect.text)
        self._take_records()
        self._pump()
        self._drive()

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
        order = ORDERS.index(m.order)
        self._dp.multi_deliver(order, m.id.origin, m.program.client, m.id.number, m.time, m.groups, m.content)

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
        order = ORDERS.index(ORDER_NAMES[change.ordering])
        place: int | None = None
        """Of the view at level preack, if somebody wants it there."""
        for (client, number), (connection, handle) in sorted(self._receivers.get(identity, {}).items()):
            ends = client in leavers
            if ends:
                del self._receivers[identity][client, number]
                if not self._receivers[identity]:
                    del self._receivers[identity]
            if connection.handles.get(handle.number) is not handle:
                continue
            position, level = TIME_MAX, 0
            if handle.level >= PREACK:
                place = self._dp.multi_view(order, era_bytes(at.era)) if place is None else place
                position, level = place, MULTI_LEVEL + order
            self._dp.client_put(connection.slot, Frame.VIEW, handle=handle.number, body=body, position=position, level=level)
            if ends:
                self._dp.leave(connection.slot, identity)
                self.unbind(connection, handle)

    def _add_receiver(self, group: str, client: int) -> None:
        connection = self._connections.by_number.get(client)
        handle = connection.joined.get(group) if connection is not None else None
        if connection is not None and handle is not None:
            self._receivers[handle.group_id][client, handle.number] = (connection, handle)
            self._dp.join(connection.slot, handle.number, handle.group_id, handle.level, handle.no_self, handle.ordering)

    # ---- what programs send

    def send(self, m: Outgoing) -> None:
        """A message to groups; ``go_on`` follows. It is refused, or it waits, for its window or for its program's joins; nothing
        more is read from the program then."""
        queue = self._outgoing.setdefault(m.connection.client, deque())
        queue.append(m)
        if len(queue) == 1:
            self._send_from(m.connection.client)
        self._drive()

    def send_waiting(self) -> None:
        """What messages wait for may have changed."""
        self._send_outgoing()
        self.go_on()
        self._drive()

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
            if self._driven is not None:
                self._go()
            else:
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
        if not is_here and (m.is_void or len(m.data) > MESSAGE_MAX):
            return True  # it would have been refused, but its program went while it waited
        verdict = self.judge(m) if is_here else None
        if isinstance(verdict, tuple):
            self._dp.refuse(m.connection.slot, *verdict, handle=m.handles[0] if m.handles else 0)
            return True
        if verdict is WAIT or m.awaits or not self.is_ready or not self._standing.quorum:
            return False
        unfinished, size = self._dp.multi_unfinished()
        if unfinished and size + len(m.data) > MESSAGE_MAX:
            self._next = self._next or m
            return False
        if self._next is not None and not set(self._next.groups).isdisjoint(m.groups):
            return False
        if self._next is None and self._dp.multi_goes_first(m.groups):
            return False  # from now on the data path leaves messages to Python, that one first
        groups = self.member.groups_of_one_order(m.groups)
        slot = m.connection.slot if is_here else None
        if not groups:
            if slot is not None:
                self._dp.own_done(slot, self._dp.own_sent(slot, m.level, m.notify), PREACK)
            return True
        _, under_way = self._dp.multi_unfinished()
        safe = (
            m.level >= PREACK or under_way + len(m.data) > MESSAGE_MAX // 2 or any(self._groups.wants_preack(g) for g in groups)
        )
        name = self.member.send(now_ns(), m.connection.client, groups, m.data, safe)
        if name is None:
            return False
        self._dp.multi_own(slot, name.number, len(m.data), m.level, m.notify)
        self._has_sent = True
        return True

    def on_gone(self, connection: Connection) -> None:
        """A program goes; its handles are still there. What it has sent goes on, if it was or comes to be in its groups."""
        for m in self._outgoing.get(connection.client, ()):
            for number in m.handles:
                handle = connection.handles.get(number)
                if handle is None or handle.leaving:
                    m.is_void = True
                elif not handle.member and not handle.send_only:
                    m.awaits.add(handle.group)
                    m.is_void |= not handle.asked

    def on_joined(self, client: int, group: str, *, refused: bool) -> None:
        """The join of a program that has gone has come to its place."""
        for m in self._outgoing.get(client, ()):
            if group in m.awaits:
                m.awaits.discard(group)
                m.is_void |= refused
        self.send_waiting()

    @property
    def is_stable(self) -> bool:
        """No message of a program here is unfinished or waits."""
        return not self._dp.multi_unfinished()[0] and not self._outgoing

    # ---- status

    def tokens_of(self, group: str) -> dict[str, object] | None:
        """Who orders the messages of a group; None: it has no members here, or is not of order ``token``."""
        table = self.member.machine.era.tables["token"] if self.member.machine is not None else None
        stations = table.groups.get(group_id(group)) if table is not None else None
        if not isinstance(table, TokenTable) or not stations or self._groups.ordering(group) is not Ordering.TOKEN:
            return None
        hosts, follows = table.hosts_in(group_id(group)), [[z, table.followed(z)] for z in sorted(stations)]
        return {"hosts": sorted(hosts), "super": min(hosts), "follows": follows}

    def status(self) -> dict[str, object]:
        """``multicast`` of docs/status.md."""
        machine = self.member.machine
        table = machine.era.tables["token"] if machine is not None else None
        return {
            "takes_part": machine is not None,
            "era": list(machine.era.number) if machine is not None else None,
            "eras": len(machine.main.eras) if machine is not None else 0,
            "tokens": sorted(table.hosts) if isinstance(table, TokenTable) else [],
            "unfinished": self._dp.multi_unfinished()[0],
            "dropped": machine.n_dropped if machine is not None else 0,
            "links": [
                {
                    "station": station,
                    "memory_bytes": pair.core.memory_bytes,
                    "waits": pair.waits,
                    "malformed": pair.malformed + self._dp.pair_malformed(station),
                }
                for station, pair in sorted(self.links.pairs.items())
            ]
            if self.links is not None
            else [],
        }


def for_links(config: EngineConfig) -> EngineConfig:
    """The engine's, as links have it. A busy station may be late, and two POLLs without an answer would send frames to all
    stations (rule L2). A confirmation waits longer only while what has come is not taken yet. More PDUs may be under way than the
    station itself may have to all, as far as the links of all others do not flood one station."""
    delay = PATIENCE * config.poll_delay_ns
    confirm = min(PATIENCE * config.confirm_delay_ns, delay // 4)
    window = min(MORE * config.window_frames, AT_ONCE // max(config.stations - 1, 1))
    return replace(
        config,
        window_frames=max(config.window_frames, window),
        confirm_delay_ns=max(confirm, config.confirm_delay_ns),
        poll_delay_ns=delay,
        poll_delay_max_ns=max(config.poll_delay_max_ns, 2 * delay),
    )


def _nothing(*_: object) -> None:
    pass


def _numbers(bitmap: int) -> list[int]:
    return [k + 1 for k in range(bitmap.bit_length()) if bitmap >> k & 1]
