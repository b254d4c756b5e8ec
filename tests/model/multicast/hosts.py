"""The host of the groups in the daemon (``daemon/grouphost.py``, ``daemon/multicast.py``) on an abstract data path.

``world.py`` drives the machine of the orders alone. Here the whole of the daemon's part runs: joins and leaves as group messages,
SNAPSHOTs and STATE for stations that were admitted, handles, what programs send and get, instances that end. The data path, the
main order and the links are abstract; links bring records in order, as long as both incarnations are members.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from zenjun.daemon.access import Access
from zenjun.daemon.audit import Audit
from zenjun.daemon.clientwire import MESSAGE, VERSION, Frame
from zenjun.daemon.connections import Connection, Connections, Facts, Standing
from zenjun.daemon.datapath import DataPath, MaySend, Take
from zenjun.daemon.grouphost import GroupHost
from zenjun.daemon.observe import Journal
from zenjun.daemon.services import Services
from zenjun.proto.engineconfig import EngineConfig
from zenjun.proto.multicast.codec import Encoded
from zenjun.proto.multicast.fast import FastStation
from zenjun.proto.multicast.links import LinkLife, Links, Pair
from zenjun.proto.multicast.member import MULTICAST
from zenjun.proto.multicast.records import Record
from zenjun.proto.multicast.sendqueue import SendQueue
from zenjun.proto.service.base import ViewEvent
from zenjun.proto.service.groups import Groups
from zenjun.proto.wire import MessageType, Ordering

from .delivering import Delivering

if TYPE_CHECKING:
    from .hostworld import HostWorld

MS: Final = 1_000_000
PREACK: Final = 1


class FakePair:
    """An end of a link, as ``links.Pair``, on a wire of this module."""

    def __init__(self, life: LinkLife, station: int) -> None:
        self.life = life
        low = life.lower[0]
        self.other, self.incarnation = life.higher if station == low else life.lower
        self.core = SimpleNamespace(handle_pointer=self, memory_bytes=0, pdu_max=1500, is_too_long=lambda size: False)
        self.malformed = 0
        self.queue_pointer = self.index = 0
        self.queue: deque[Encoded] = deque()
        self.accepted: deque[list[Record]] = deque()

    waits = False

    def send(self, record: Encoded) -> None:
        self.queue.append(record)

    def pump(self, now: int) -> bool:
        return bool(self.queue)

    def take(self) -> list[list[Record]]:
        out = list(self.accepted)
        self.accepted.clear()
        return out

    def take_from(self, machine: FastStation) -> None:
        queue = SendQueue()
        machine.flush(self.other, queue)
        self.queue.extend(queue.take())

    def give_to(self, machine: FastStation) -> None:
        machine.take_records(self.other, [r for records in self.take() for r in records])

    def restart(self, now: int) -> None:
        pass

    def is_stuck(self, now: int, timeout_ns: int) -> bool:
        return False


class FakeLinks(Links):
    def pair(self, station: int, now: int) -> Pair:
        if station not in self.pairs:
            (life, since), (own, own_since) = self._since[station], self._since[self.station]
            lower, higher = sorted(((station, life), (self.station, own)))
            fake = FakePair(LinkLife(max(since, own_since), lower, higher), self.station)
            self.pairs[station] = cast("Pair", fake)
        return self.pairs[station]


@dataclass
class Sent:
    """A message that a daemon has taken."""

    content: bytes
    groups: tuple[int, ...]
    origin: tuple[int, int]
    """Station and incarnation."""
    to: set[tuple[int, int]]


@dataclass
class Program:
    """A program, and what the data path has for it."""

    connection: Connection
    may: dict[int, MaySend] = field(default_factory=dict)
    order: dict[int, Ordering] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    """Groups by handle."""
    input: deque[Take] = field(default_factory=deque)
    held: bool = False
    sent: int = 0
    done: dict[int, int] = field(default_factory=dict)
    """Level reached by own messages, by number; -1: none."""
    got: list[tuple[str, tuple[int, int, int], bytes]] = field(default_factory=list)
    """(group, place, content)."""
    views: defaultdict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)
    gone: bool = False


class FakePath:
    """What GroupHost and MulticastHost ask of the data path. It drives no machine: what ``overlap.c`` does with one is in
    tests/link."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.delivering = Delivering(daemon.station, self._give)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name in ("need_ack", "need_preack", "pair_records"):
            return lambda *args, **kwargs: None
        raise AttributeError(name)

    def _give(self, slot: int, kind: int, flags: int, handle: int, body: bytes) -> None:
        self.daemon.on_frame(self._program(slot), Frame(kind), handle, body)

    def join(self, slot: int, handle: int, group: int, level: int, no_self: bool, ordering: Ordering) -> None:
        if ordering in MULTICAST:
            self.delivering.join(slot, handle, group, level, no_self)

    def leave(self, slot: int, group: int) -> None:
        if slot in self.delivering.receivers[group]:
            self.delivering.leave(slot, group)

    def multi_drive(self, machine_pointer: int | None, *, sends: bool, bytes_max: int) -> bool:
        return False

    def multi_goes_first(self, groups: Sequence[int]) -> bool:
        return False

    def multi_deliver(
        self, order: int, origin: int, client: int, number: int, time: int, groups: Sequence[int], content: bytes
    ) -> None:
        own = self.daemon.connections.by_number.get(client) if origin == self.daemon.station else None
        self.delivering.deliver(order, origin, client, number, time, groups, content, own.slot if own is not None else None)
        if origin == self.daemon.station:
            self._done(number, 0)

    def multi_release(self, order: int) -> None:
        self.delivering.release(order)

    def multi_view(self, order: int, era: int) -> int:
        return self.delivering.view(order, era)

    def multi_settled(self, era: int) -> None:
        self.delivering.settle(era)

    def multi_own(self, slot: int | None, number: int, size: int, level: int, notify: bool) -> None:
        own = self.own_sent(slot, level, notify) if slot is not None else 0
        self.delivering.unfinished[number] = (slot, own, size)

    def _done(self, number: int, level: int) -> None:
        slot, own, _ = self.delivering.unfinished.get(number, (None, 0, 0))
        if slot is not None:
            self.own_done(slot, own, level)

    def multi_finished(self, number: int) -> None:
        self._done(number, PREACK)
        self.delivering.unfinished.pop(number, None)

    def multi_unfinished(self) -> tuple[int, int]:
        unfinished = self.delivering.unfinished.values()
        return len(unfinished), sum(size for _, _, size in unfinished)

    def multi_clear(self) -> None:
        self.delivering.clear()

    def _program(self, slot: int) -> Program:
        return self.daemon.programs[slot]

    def send(self, client: int, group: int, kind: int, data: bytes) -> bool:
        if self.daemon.world.chance(0.1):
            self.daemon.world.at(self.daemon.world.soon(MS), self.daemon.flush)
            return False
        self.daemon.world.broadcast(self.daemon, client, data)
        return True

    def handle(self, slot: int, number: int, group: int, *, may_send: MaySend, ordering: Ordering, direct: bool = False) -> None:
        p = self._program(slot)
        p.may[number], p.order[number] = MaySend(may_send), ordering
        self.daemon.world.at(self.daemon.world.now, lambda: self.daemon.serve(p))

    def handle_drop(self, slot: int, number: int) -> None:
        p = self._program(slot)
        if number not in p.may:
            raise OSError(2, "not bound")
        del p.may[number]

    def client_put(
        self,
        slot: int,
        kind: Frame,
        *,
        flags: int = 0,
        handle: int = 0,
        body: bytes = b"",
        position: int = 0,
        level: int = 0,
        urgent: bool = False,
    ) -> bool:
        self._program(slot)  # it must be there
        if urgent:
            self.daemon.on_frame(self._program(slot), kind, handle, body)
        else:
            self.delivering.put(slot, level, position, (int(kind), flags, handle, body))
        return True

    def refuse(self, slot: int, code: str, text: str, *, handle: int) -> None:
        self._program(slot).errors.append(code)

    def client_hold(self, slot: int, yes: bool) -> None:
        p = self._program(slot)
        p.held = yes
        if not yes:
            self.daemon.world.at(self.daemon.world.now, lambda: self.daemon.serve(p))

    def own_sent(self, slot: int, level: int, notify: bool) -> int:
        p = self._program(slot)
        p.sent += 1
        p.done[p.sent] = -1
        return p.sent

    def own_done(self, slot: int, number: int, level: int) -> None:
        p = self._program(slot)
        if number not in p.done:
            raise OSError(2, "no such message")
        p.done[number] = max(p.done[number], level)

    def pair(self, station: int, pair: object) -> None:
        self.daemon.open_pairs.discard(station)
        if pair is not None:
            self.daemon.open_pairs.add(station)
            self.daemon.world.at(self.daemon.world.now, lambda: self.daemon.world.retry(self.daemon, station))

    def pair_waits(self, station: int, yes: bool) -> None:
        if station not in self.daemon.open_pairs:
            raise OSError(2, "no such pair")
        self.daemon.world.at(self.daemon.world.now, lambda: self.daemon.world.transmit(self.daemon, station))

    def pairs(self) -> tuple[int, int]:
        news, asked = self.daemon.news, self.daemon.asked
        self.daemon.news = self.daemon.asked = 0
        return news, asked


@dataclass
class Entry:
    """What has a place in the main order: a group message, or a view event."""

    place: int
    station: int
    client: int = 0
    data: bytes = b""
    view: ViewEvent | None = None


class Daemon:
    """One incarnation of a station."""

    def __init__(self, world: HostWorld, station: int, incarnation: int) -> None:
        self.world = world
        self.station, self.incarnation = station, incarnation
        self.alive = True
        self.programs: dict[int, Program] = {}
        self.open_pairs: set[int] = set()
        self.news = self.asked = 0
        self.at = 0
        """Place in the main order up to which it has everything."""
        self.ready = 0
        self.standing = Standing()
        self.fake = FakePath(self)
        self.path = cast("DataPath", self.fake)
        self.connections = Connections(self.path)
        facts = Facts("c", station, world.stations, 65536, 1 << 20, 100)
        self.groups = Groups(station)
        self.services = Services()
        config: EngineConfig = world.config(station)
        self.host = GroupHost(
            self.services, self.path, self.groups, self.connections, self.standing, facts, lambda reply: None, config,
            access=Access(), audit=Audit(Journal(logging.getLogger("test"))),
        )  # fmt: skip
        self.multicast = self.host.multicast
        self.multicast.links = FakeLinks(config)
        self.multicast.fenced = lambda text: world.fail("digest", text)
        self._watch()
        self._slots = 0
        self._woken = 0
        self.delivered: list[bytes] = []
        """In this instance."""

    def _watch(self) -> None:
        """What the machine takes and delivers, for the checkers."""
        member, deliver = self.multicast.member, self.multicast._deliver
        send = member.send

        def sends(now: int, client: int, groups: Any, data: bytes, safe: bool) -> Any:
            name = send(now, client, groups, data, safe)
            if name is not None:
                assert member.machine is not None
                to = {(z, member.machine.main.members[z]) for z in member.destinations(groups)}
                self.world.taken[data] = Sent(data, tuple(groups), (self.station, self.incarnation), to)
            return name

        def delivers(m: Any) -> None:
            self.delivered.append(m.content)
            deliver(m)

        member.send = sends  # type: ignore[method-assign]
        self.multicast._deliver = delivers  # type: ignore[method-assign]

    # ---- instances

    def open(self, instance: int, incarnations: tuple[int, ...], joined: bool) -> None:
        self.delivered.clear()
        for p in self.programs.values():
            p.views.clear()
        s = self.standing
        self.services.end()
        s.instance = s.view_instance = instance
        s.incarnations = incarnations
        s.open = s.ever_open = s.quorum = True
        for p in self.programs.values():
            p.done = dict.fromkeys(p.done, PREACK)  # undecided: the data path counts them as done
        self.services.open(instance, joined=joined)
        self.services.begin()
        self.after()

    def close(self) -> None:
        self.standing.open = False
        self.services.suspend()

    # ---- inputs

    def deliver(self, entry: Entry) -> None:
        place = (entry.place, entry.station, 0)
        if entry.view is not None:
            if self.station in entry.view.members:
                self.standing.view_instance = entry.view.instance
                self.services.on_view(place, entry.view, entry.place)
        else:
            self.services.on_message(MessageType.GROUP, place, entry.client, entry.data, entry.place)
        self.after()

    def flush(self) -> None:
        if self.alive:
            self.services.flush()

    def after(self) -> None:
        if self.news or self.asked:
            self.multicast.on_pairs()
        deadline = self.multicast.deadline
        if deadline < 1 << 62 and deadline != self._woken:
            self._woken = deadline
            self.world.at(deadline, self._wake)
        for p in list(self.programs.values()):
            self.serve(p)

    def _wake(self) -> None:
        self._woken = 0
        if self.alive:
            self.multicast.on_time(self.world.now)
            self.after()

    def on_pairs(self) -> None:
        if self.alive:
            self.multicast.on_pairs()
            self.after()

    # ---- programs

    def connect(self) -> Program:
        self._slots += 1
        connection = Connection(self._slots, self.connections.new_number(), 0, 0, VERSION, "p", greeted=True)
        self.connections.add(connection)
        p = self.programs[connection.slot] = Program(connection)
        return p

    def end(self, p: Program) -> None:
        """The program is killed."""
        if not p.gone:
            p.gone = True
            del self.programs[p.connection.slot]
            self.fake.delivering.forget(p.connection.slot)
            self.connections.remove(p.connection)
            self.services.forget(p.connection, death=True)
            self.after()

    def put(self, p: Program, kind: Frame, flags: int, handle: int, data: bytes) -> None:
        p.input.append(Take(p.connection.slot, kind, flags, handle, 0, data))
        self.world.at(self.world.now, lambda: self.serve(p))

    def serve(self, p: Program) -> None:
        """Read what the program has sent, as the data path does."""
        while self.alive and not p.gone and not p.held and p.input:
            take = p.input[0]
            if take.type == Frame.SEND:
                may = p.may.get(take.handle, MaySend.NO)
                if may == MaySend.WAIT:
                    return
                if may == MaySend.NO or p.order[take.handle] not in (Ordering.TOKEN, Ordering.ABCAST):
                    p.input.popleft()
                    continue
            if take.type in (Frame.SEND, Frame.SEND_TO) and not self.standing.open:
                return
            p.input.popleft()
            if take.type == Frame.JOIN:
                p.names[take.handle] = take.data[4:].decode()
                problem = self.host.on_join(p.connection, take)
            elif take.type == Frame.LEAVE:
                self.host.on_leave(p.connection, take.handle)
                problem = ""
            else:
                problem = self.host.on_send(p.connection, take)
            if problem:
                self.world.fail("protocol", problem)
        if self.alive:
            self.multicast.go_on()

    def on_frame(self, p: Program, kind: Frame, handle: int, body: bytes) -> None:
        if kind == Frame.MESSAGE:
            clock, index, _, station = MESSAGE.struct.unpack_from(body)
            p.got.append((p.names[handle], (clock, station, index), body[MESSAGE.size :]))
        elif kind == Frame.VIEW:
            p.views[p.names[handle]].append(json.loads(body))
        elif kind == Frame.ERROR:
            p.errors.append(json.loads(body)["code"])
