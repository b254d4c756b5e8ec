"""Hosts of groups (``daemon/grouphost.py``, ``daemon/multicast.py``) on real data paths and links, without interfaces.

The main order and the wire are the test's. Programs join, leave, send and go, stations are without a quorum for a while, and one
stops: the data path and Python take turns at driving the machines, with messages under way.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from zenjun.daemon.access import Access
from zenjun.daemon.audit import Audit
from zenjun.daemon.clientwire import VERSION, Frame, JoinFlag
from zenjun.daemon.connections import Connection, Connections, Facts, Standing
from zenjun.daemon.datapath import DataPath, Want, now_ns
from zenjun.daemon.grouphost import GroupHost
from zenjun.daemon.observe import Journal
from zenjun.daemon.services import Services
from zenjun.proto.engineconfig import make_core
from zenjun.proto.service.base import ViewEvent
from zenjun.proto.service.groups import Groups
from zenjun.proto.wire import MessageType, Ordering

from ..virtual.engines import CONFIG
from .rig import CLUSTER, ETHERTYPE, GROUP_MAC, WAIT_S, frame, messages
from .rig import Program as Socket

ORDERED, PREACK = 0, 1
ACTIONS = 60


def _fenced(text: str) -> None:
    raise AssertionError(text)


class Path(DataPath):
    """What goes to the main order is the test's."""

    emit: Callable[[int, bytes], None]

    def send(self, client: int, group: int, type: int, data: Any, *, need_ack: bool = True) -> bool:
        self.emit(client, bytes(data))
        return True


class Program(Socket):
    """A program of a station, and what it got."""

    def __init__(self, sock: socket.socket, slot: int, client: int) -> None:
        super().__init__(sock, slot)
        self.client = client
        self.got: list[bytes] = []
        self.handles = 0
        self.out = bytearray()

    def send(self, data: bytes) -> None:
        """What its socket has no room for waits."""
        self.out += data
        with contextlib.suppress(BlockingIOError):
            del self.out[: self.sock.send(self.out)]

    def close(self) -> None:
        self.closed = True
        super().close()

    def join(self, group: str, level: int, order: Ordering = Ordering.TOKEN) -> int:
        self.handles += 1
        self.send(frame(Frame.JOIN, bytes([order, 0, 0, 0]) + group.encode(), handle=self.handles, flags=level | JoinFlag.OPEN))
        return self.handles


class Station:
    """A daemon without its engine."""

    def __init__(self, net: Net, station: int) -> None:
        self.net, self.station = net, station
        config = replace(CONFIG, stations=net.stations, station=station)
        self.core = make_core(config)
        self.dp = Path(
            self.core, station_index=station - 1, ethertype=ETHERTYPE, cluster=CLUSTER, group_mac=GROUP_MAC, links=0, rest_ns=0,
            linger_ns=0, stations=net.stations, message_max=1 << 20, queue_bytes_max=1 << 22,
        )  # fmt: skip
        self.dp.emit = lambda client, data: net.append(station, client, data)
        self.standing = Standing()
        self.connections = Connections(self.dp)
        self.services = Services()
        facts = Facts("c", station, net.stations, 65536, 1 << 22, 100)
        self.host = GroupHost(
            self.services, self.dp, Groups(station), self.connections, self.standing, facts, lambda reply: None, config,
            access=Access(), audit=Audit(Journal(logging.getLogger("test"))),
        )  # fmt: skip
        self.multicast = self.host.multicast
        self.multicast.fenced = _fenced
        self.programs: dict[int, Program] = {}
        self.at = 0
        """Place in the main order."""
        self.was_driven = 0

    def open(self, incarnations: tuple[int, ...]) -> None:
        self.dp.reset()
        self.services.end()
        s = self.standing
        s.instance = s.view_instance = 1
        s.incarnations, s.frame_max = incarnations, 1500
        s.open = s.ever_open = s.quorum = True
        self.services.open(1, joined=False)
        self.services.begin()

    def connect(self) -> Program:
        client = self.connections.new_number()
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        p = Program(theirs, self.dp.client_add(ours.detach(), client), client)
        self.connections.add(Connection(p.slot, client, 0, 0, VERSION, "p", greeted=True))
        self.programs[p.slot] = p
        return p

    def turn(self) -> None:
        turn = self.dp.turn(now_ns() + 60_000_000_000)
        if turn.want & Want.PAIR:
            self.multicast.on_pairs()
        while self.at < len(self.net.order) and self.net.random.random() < 0.9:
            self._deliver()
        self.multicast.on_time(now_ns())
        while (take := self.dp.take()) is not None:
            connection = self.connections.by_slot[take.slot]
            if take.type == Frame.JOIN:
                assert not self.host.on_join(connection, take), take
            elif take.type == Frame.LEAVE:
                self.host.on_leave(connection, take.handle)
            elif take.type in (Frame.SEND, Frame.SEND_TO):
                assert not self.host.on_send(connection, take), take
            else:
                assert take.type == 0, take
                self.dp.client_remove(take.slot, hard=True)
                self.connections.remove(connection)
                self.services.forget(connection, death=True)
                del self.programs[take.slot]
        self.multicast.go_on()
        self.services.flush()
        self.was_driven += self.multicast._driven is not None
        for p in self.programs.values():
            p.got += messages(p.receive())
            if p.out:
                p.send(b"")

    def _deliver(self) -> None:
        station, client, data = self.net.order[self.at]
        self.at += 1
        if isinstance(data, ViewEvent):
            self.services.on_view((self.at, station, 0), data, self.at)
        else:
            self.services.on_message(MessageType.GROUP, (self.at, station, 0), client, data, self.at)

    def close(self) -> None:
        for p in self.programs.values():
            p.close()
        self.dp.close()


class Net:
    """Stations, their main order, and the wire between them."""

    def __init__(self, stations: int, seed: int, loss: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.stations = stations
        self.order: list[tuple[int, int, bytes | ViewEvent]] = []
        self.all = {z: Station(self, z) for z in range(1, stations + 1)}
        self.loss = loss
        for s in self.all.values():
            s.open((1,) * stations)

    def append(self, station: int, client: int, data: bytes | ViewEvent) -> None:
        self.order.append((station, client, data))

    def crash(self, station: int) -> None:
        self.all.pop(station).close()
        incarnations = tuple(int(z in self.all) for z in range(1, self.stations + 1))
        for s in self.all.values():
            s.standing.instance, s.standing.incarnations = 2, incarnations
        self.append(min(self.all), 0, ViewEvent(2, 0, incarnations, (), (station,)))

    def turn(self) -> None:
        for s in self.all.values():
            s.turn()
        for s in self.all.values():
            for other, pair in list(s.multicast.links.pairs.items()) if s.multicast.links is not None else []:
                for pdu in pair.core.tx(now_ns()):
                    if other in self.all and self.random.random() >= self.loss:
                        self._bring(self.all[other], s.station, pdu, pair.core.pair_to_group(pdu))

    @staticmethod
    def _bring(target: Station, source: int, pdu: bytes, to_group: bool) -> None:
        host = target.multicast
        if host.member.machine is not None and host.links is not None and host.links.is_member(source):
            host._pair(source).core.pair_rx(now_ns(), pdu, bytes(6), to_group)

    def is_quiet(self) -> bool:
        """Everything has its place and is finished everywhere."""
        for s in self.all.values():
            machine = s.multicast.member.machine
            if machine is None or len(machine.main.eras) > 1 or s.at < len(self.order) or not s.multicast.is_stable:
                return False
            if any(p.out for p in s.programs.values()):
                return False
        return True

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, f"not within {WAIT_S} s: {[s.multicast.status() for s in self.all.values()]}"
            self.turn()

    def settle(self) -> None:
        """What is done at its sender may not have come to all programs: that of level preack waits for STABLE."""
        quiet = 0

        def is_quiet() -> bool:
            nonlocal quiet
            quiet = quiet + 1 if self.is_quiet() else 0
            return quiet > 30

        self.until(is_quiet)

    def close(self) -> None:
        for s in self.all.values():
            s.close()


class Run:
    """Random actions. Programs that stay are in both groups; others come and go."""

    def __init__(self, net: Net) -> None:
        self.net, self.random = net, net.random
        self.staying = {z: s.connect() for z, s in net.all.items()}
        for p in self.staying.values():
            for group in ("g", "h"):
                p.join(group, p.client % 2 if group == "g" else PREACK)
        net.settle()
        self.count = 0
        self.sent: dict[int, list[bytes]] = {z: [] for z in net.all}
        """By programs that stay, in order."""

    def say(self) -> None:
        z = self.random.choice(sorted(self.net.all))
        for _ in range(self.random.choice((1, 5, 15))):
            self.count += 1
            content = b"%d " % self.count + bytes(self.random.choice((0, 100, 4000)))
            handles = self.random.choice(([1], [2], [1, 2]))
            body = struct.pack(f"<H{len(handles)}H", len(handles), *handles) + content
            one = frame(Frame.SEND, content, handle=handles[0], flags=self.random.randint(0, 1))
            self.staying[z].send(one if len(handles) == 1 else frame(Frame.SEND_TO, body, flags=self.random.randint(0, 1)))
            self.sent[z].append(content)

    def visit(self) -> None:
        """A program comes, sends before it is in its groups, and perhaps goes before, too."""
        p = self.random.choice(list(self.net.all.values())).connect()
        handle = p.join(self.random.choice("gh"), self.random.randint(0, 1))
        if self.random.random() < 0.5:
            self.count += 1
            p.send(frame(Frame.SEND, b"%d visitor" % self.count, handle=handle, flags=PREACK))
        if self.random.random() < 0.5:
            p.send(frame(Frame.LEAVE, handle=handle))
        if self.random.random() < 0.5:
            p.close()

    def lose_quorum(self) -> None:
        s = self.random.choice(list(self.net.all.values()))
        s.standing.quorum = False
        s.multicast.on_quorum()
        for _ in range(5):
            self.net.turn()
        s.standing.quorum = True
        s.multicast.on_quorum()


def simulate(seed: int) -> None:
    """One run of three stations. Raises AssertionError if something does not hold."""
    net = Net(3, seed)
    try:
        _changes_with_messages_under_way(net, seed)
    finally:
        net.close()


def _changes_with_messages_under_way(net: Net, seed: int) -> None:
    run = Run(net)
    crash = run.random.randint(20, 40) if seed % 3 else 0
    for k in range(1, ACTIONS + 1):
        run.random.choices((run.say, run.visit, run.lose_quorum), (8, 1.5, 0.3))[0]()
        for _ in range(run.random.randint(0, 4)):
            net.turn()
        if k == crash:
            net.crash(3)
    net.settle()
    net.until(lambda: len({len(run.staying[z].got) for z in net.all}) == 1)
    got = {z: run.staying[z].got for z in net.all}
    order_of = {content: k for k, content in enumerate(got[1])}
    for z in net.all:
        assert len(set(got[z])) == len(got[z]), "a message twice"
        assert [order_of[c] for c in got[z]] == list(range(len(got[1]))), f"station {z} has another order, or other messages"
        assert [c for c in got[z] if c in set(run.sent[z])] == run.sent[z], "what a program sends comes, in its order"
    assert all(s.was_driven for s in net.all.values()), "Python has done all of it"
