"""Groups that overlap in the data path: what is delivered, beside its twin; stations whose machines it drives, on real cores."""

from __future__ import annotations

import itertools
import random
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from zenjun.daemon.clientwire import Frame
from zenjun.daemon.datapath import MULTI_LEVEL, DataPath, now_ns
from zenjun.proto.engineconfig import make_core
from zenjun.proto.multicast.codec import encode
from zenjun.proto.multicast.fast import FastStation
from zenjun.proto.multicast.links import LinkLife, Pair
from zenjun.proto.multicast.main import MainOrder
from zenjun.proto.multicast.records import Broadcast, Closed, Entry, Flush, Joined, Report
from zenjun.proto.multicast.tables import EraNumber
from zenjun.proto.multicast.tables import Program as Member
from zenjun.proto.wire import Ordering

from ..model.multicast.delivering import Delivering
from ..rules import rule
from ..virtual.engines import CONFIG
from .rig import CLUSTER, ETHERTYPE, GROUP_MAC, WAIT_S, Bench, Program, done, errors, frame, messages

SEND, SEND_TO = int(Frame.SEND), int(Frame.SEND_TO)
ORDERED, PREACK, NOTIFY = 0, 1, 4
ORDERINGS = (Ordering.ABCAST, Ordering.TOKEN)
Seen = list[tuple[int, int, int, bytes]]

# ---- delivery, beside its twin


class Beside:
    """Programs of a data path and of its twin."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.random = bench, random.Random(14)
        self.expected: dict[int, Seen] = {}
        self.got: dict[int, Seen] = {}
        self.twin = Delivering(1, self._give)
        self.programs: dict[int, Program] = {}
        self.numbers: dict[int, int] = {}
        self.clients = itertools.count(11)
        self.joined: set[tuple[int, int]] = set()
        self.era = 0
        self.delivered, self.released = [0, 0], [0, 0]

    def _give(self, slot: int, kind: int, flags: int, handle: int, body: bytes) -> None:
        self.expected[slot].append((kind, flags, handle, body))

    def slot(self) -> int:
        return self.random.choice(sorted(self.programs))

    def connect(self) -> None:
        client = next(self.clients)
        p = self.bench.client(client)
        self.programs[p.slot], self.numbers[p.slot] = p, client
        self.expected[p.slot], self.got[p.slot] = [], []

    def join(self) -> None:
        r, slot, group = self.random, self.slot(), self.random.randrange(6)
        if (slot, group) not in self.joined:
            self.joined.add((slot, group))
            handle, level, no_self = r.randint(1, 1000), r.randint(0, 1), r.random() < 0.2
            self.bench.dp.join(slot, handle, group, level, no_self, ORDERINGS[group % 2])
            self.twin.join(slot, handle, group, level, no_self)

    def leave(self) -> None:
        if self.joined:
            slot, group = self.random.choice(sorted(self.joined))
            self.joined.discard((slot, group))
            self.bench.dp.leave(slot, group)
            self.twin.leave(slot, group)

    def deliver(self) -> None:
        r, order, number = self.random, self.random.randrange(2), sum(self.delivered) + 1
        origin, slot, content = r.randint(1, 2), self.slot(), r.randbytes(r.choice((0, 10, 3000)))
        groups = sorted(r.sample([g for g in range(6) if g % 2 == order], r.randint(1, 3)))
        client = self.numbers[slot]
        self.bench.dp.multi_deliver(order, origin, client, number, 7 * number, groups, content)
        self.twin.deliver(order, origin, client, number, 7 * number, groups, content, slot if origin == 1 else None)
        self.delivered[order] += 1

    def release(self) -> None:
        order = self.random.randrange(2)
        if self.released[order] < self.delivered[order]:
            self.released[order] += 1
            self.bench.dp.multi_release(order)
            self.twin.release(order)

    def view(self) -> None:
        self.era += 1
        order, slot, body = self.random.randrange(2), self.slot(), b"view %d" % self.era
        place = self.bench.dp.multi_view(order, self.era)
        assert place == self.twin.view(order, self.era)
        self.bench.dp.client_put(slot, Frame.VIEW, handle=3, body=body, position=place, level=MULTI_LEVEL + order)
        self.twin.put(slot, MULTI_LEVEL + order, place, (int(Frame.VIEW), 0, 3, body))

    def settle(self) -> None:
        era = self.random.randint(self.twin.settled, self.era)
        self.bench.dp.multi_settled(era)
        self.twin.settle(era)

    def end(self) -> None:
        slot = self.slot()
        self.bench.dp.client_remove(slot, hard=True)
        self.twin.forget(slot)
        self.joined = {key for key in self.joined if key[0] != slot}
        self.programs.pop(slot).close()
        self.connect()

    def compare(self) -> None:
        self.bench.turn()
        for slot, p in self.programs.items():
            self.got[slot] += [(f.type, f.flags, f.handle, f.body) for f in p.receive()]
            assert self.got[slot] == self.expected[slot]


def test_programs_get_what_the_twin_says(bench: Bench) -> None:
    """Random deliveries, levels reached, views, joins, leaves, ends of programs: each program has the same frames after each."""
    both = Beside(bench)
    for _ in range(3):
        both.connect()
    actions = (both.join, both.leave, both.deliver, both.release, both.view, both.settle, both.end)
    for k in range(600):
        both.random.choices(actions, (3, 1, 8, 7, 1, 1, 0.2))[0]()
        if k % 4 == 3:
            both.compare()
    assert sum(map(len, both.got.values())) > 100


def test_what_the_end_of_an_instance_costs(bench: Bench) -> None:
    """Messages that wait for level preack are forgotten; who has got one at level ordered that is not there is told."""
    early, late = bench.client(11), bench.client(12)
    bench.dp.join(early.slot, 1, 70, ORDERED, False, Ordering.TOKEN)
    bench.dp.join(late.slot, 1, 70, PREACK, False, Ordering.TOKEN)
    for number in (1, 2):
        bench.dp.multi_deliver(1, 2, 9, number, number, [70], b"%d" % number)
    bench.dp.multi_release(1)
    bench.turn()
    assert (messages(early.receive()), messages(late.receive())) == ([b"1", b"2"], [b"1"])
    lost = bench.dp.reset()
    assert (lost[early.slot].unsafe, lost[early.slot].forgotten) == (True, 0)
    assert (lost[late.slot].unsafe, lost[late.slot].forgotten) == (False, 1)
    bench.dp.multi_deliver(1, 2, 9, 1, 1, [70], b"nobody is in it any more")
    bench.dp.multi_release(1)
    bench.turn()
    assert not early.receive() and not late.receive()
    with pytest.raises(OSError):
        bench.dp.multi_release(1)


# ---- stations whose machines the data path drives


class Node:
    """One station: a data path without interfaces, a machine in its open era, and links whose frames the test carries."""

    def __init__(self, station: int, stations: int, config: Any) -> None:
        self.station = station
        self.config = replace(config, stations=stations, station=station)
        self.core = make_core(self.config)
        self.dp = DataPath(
            self.core, station_index=station - 1, ethertype=ETHERTYPE, cluster=CLUSTER, group_mac=GROUP_MAC, links=0, rest_ns=0,
            linger_ns=0, stations=stations, message_max=1 << 20, queue_bytes_max=1 << 22,
        )  # fmt: skip
        self.machine = FastStation(station, MainOrder.begin(1, dict.fromkeys(range(1, stations + 1), 1)), 16, direct=True)
        self.machine.begin()
        self.pairs: dict[int, Pair] = {}
        for other in range(1, stations + 1):
            if other != station:
                low, high = sorted((station, other))
                pair = self.pairs[other] = Pair(LinkLife(1, (low, 1), (high, 1)), station, self.config, 1500, now_ns())
                self.dp.pair(other, pair.core.handle_pointer)
                self.dp.pair_records(other, pair.queue_pointer, pair.index, pair.incarnation)
        self.programs: dict[int, Program] = {}
        self.got: dict[int, list[bytes]] = {}
        self.frames: dict[int, list[Any]] = {}

    def connect(self, client: int) -> Program:
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        p = self.programs[client] = Program(theirs, self.dp.client_add(ours.detach(), client))
        self.got[client], self.frames[client] = [], []
        return p

    def bind(self, client: int, handle: int, group: int, level: int, order: Ordering = Ordering.TOKEN) -> None:
        p = self.programs[client]
        self.dp.join(p.slot, handle, group, level, False, order)
        self.dp.handle(p.slot, handle, group, may_send=True, ordering=order, direct=True)

    def drive(self, *, sends: bool = True, bytes_max: int = 1 << 20) -> None:
        assert self.machine.is_fast
        assert self.dp.multi_drive(self.machine.pointer, sends=sends, bytes_max=bytes_max)

    def turn(self) -> int:
        want = self.dp.turn(now_ns() + 60_000_000_000).want
        for client, p in self.programs.items():
            frames = p.receive()
            self.got[client] += messages(frames)
            self.frames[client] += frames
        return want

    def close(self) -> None:
        for p in self.programs.values():
            p.close()
        self.dp.close()


class Net:
    """Stations, and what is on its way between them."""

    def __init__(self, stations: int, loss: float = 0.0) -> None:
        self.random = random.Random(stations)
        self.loss = loss
        self.nodes = {z: Node(z, stations, CONFIG) for z in range(1, stations + 1)}

    def enter(self, *entries: Entry) -> None:
        """Entries of the main order, and what follows from them there."""
        order = deque(entries)
        while order:
            entry = order.popleft()
            for node in self.nodes.values():
                for effect in node.machine.on_entry(now_ns(), entry):
                    if isinstance(effect, Broadcast):
                        assert isinstance(effect.entry, Flush | Closed)
                        order.append(effect.entry)

    def join(self, group: int, station: int, client: int, order: str = "token") -> None:
        self.enter(Joined(Member(station, 1, client), group, order))

    def drive(self, **options: Any) -> None:
        for node in self.nodes.values():
            node.drive(**options)

    def carry(self) -> None:
        for node in self.nodes.values():
            for other, pair in node.pairs.items():
                for pdu in pair.core.tx(now_ns()):
                    if self.random.random() >= self.loss:
                        target = self.nodes[other].pairs[node.station].core
                        target.pair_rx(now_ns(), pdu, bytes(6), pair.core.pair_to_group(pdu))

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, f"not within {WAIT_S} s: {[n.got for n in self.nodes.values()]}"
            for node in self.nodes.values():
                node.turn()
            self.carry()

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()


@pytest.fixture
def make_net() -> Iterator[Callable[..., Net]]:
    nets: list[Net] = []

    def make(*args: Any) -> Net:
        nets.append(Net(*args))
        return nets[-1]

    yield make
    for net in nets:
        net.close()


def send_to(handles: list[int], content: bytes, level: int = PREACK | NOTIFY) -> bytes:
    return frame(SEND_TO, struct.pack(f"<H{len(handles)}H", len(handles), *handles) + content, flags=level)


@pytest.mark.parametrize("order", ["token", "abcast"])
def test_messages_of_programs_go_from_station_to_station_without_python(make_net: Callable[..., Net], order: str) -> None:
    """Three stations, two groups that share one, lost frames, senders in all: every member gets every message once, all in one
    order, each program's in its order; all are done; Python is wanted for nothing."""
    net = make_net(3, 0.1)
    ordering = ORDERINGS[order == "token"]
    for station in (1, 2, 3):
        net.nodes[station].connect(11)
    for group, station in ((70, 1), (70, 2), (71, 2), (71, 3)):
        net.join(group, station, 11, order)
        net.nodes[station].bind(11, group - 69, group, PREACK if station == 2 else ORDERED, ordering)
    net.drive()
    count = 40
    for station, handles in ((1, [1]), (2, [1, 2]), (3, [2])):
        p = net.nodes[station].programs[11]
        for k in range(count):
            content = b"%d %d" % (station, k)
            p.send(send_to(handles, content) if k % 2 else frame(SEND, content, handle=handles[0], flags=PREACK | NOTIFY))
    two = [b"2 %d" % k for k in range(count)]
    sets = {
        1: {b"1 %d" % k for k in range(count)} | set(two),
        2: {b"%d %d" % (z, k) for z in (1, 2, 3) for k in range(count)},
        3: {b"3 %d" % k for k in range(count)} | set(two[1::2]),
    }
    nodes = net.nodes
    net.until(lambda: all(len(nodes[z].got[11]) >= len(sets[z]) for z in nodes))

    def all_done() -> bool:
        return all(
            done(n.frames[11])[-1:] == [(count, count, 0)] or done(n.frames[11])[-1:] == [(count,) * 3] for n in nodes.values()
        )

    net.until(all_done)
    for z, node in nodes.items():
        assert len(node.got[11]) == len(sets[z]) and set(node.got[11]) == sets[z]
        assert node.dp.multi_unfinished() == (0, 0) and node.dp.take() is None
        assert not node.dp.pair_malformed(1 + z % 3)
    order_of = {content: k for k, content in enumerate(nodes[2].got[11])}
    for z in (1, 3):
        places = [order_of[content] for content in nodes[z].got[11]]
        assert places == sorted(places)
    for z in (1, 2, 3):
        mine = [int(c.split()[1]) for c in nodes[2].got[11] if c.startswith(b"%d " % z)]
        assert mine == sorted(mine)


def test_a_large_message_goes_before_those_that_share_a_group_with_it(make_net: Callable[..., Net]) -> None:
    """Of three programs of one station: one's large message waits for room, so that those of the second wait behind it, and
    those of the third, to another group, do not. It holds up nobody when its handle is dropped."""
    net = make_net(2)
    one = net.nodes[1]
    for client, group in ((11, 70), (12, 70), (13, 71)):
        one.connect(client)
        net.join(group, 1, client)
        one.bind(client, 1, group, ORDERED)
    net.nodes[2].connect(11)
    net.join(70, 2, 11)
    net.nodes[2].bind(11, 1, 70, ORDERED)
    net.drive(bytes_max=100)
    one.programs[11].send(frame(SEND, b"before" + bytes(30), handle=1))
    one.turn()  # nothing is carried: it stays unfinished
    one.programs[12].send(frame(SEND, b"large" + bytes(90), handle=1))
    one.turn()
    one.programs[11].send(frame(SEND, b"after", handle=1))
    one.programs[13].send(frame(SEND, b"other", handle=1))
    one.turn()
    assert one.got[13] == [b"other"] and one.dp.multi_goes_first([70]) and not one.dp.multi_goes_first([71])
    net.until(lambda: len(net.nodes[2].got[11]) == 3)
    assert [m[:5] for m in net.nodes[2].got[11]] == [b"befor", b"large", b"after"]
    net.until(lambda: one.dp.multi_unfinished() == (0, 0))
    one.programs[11].send(frame(SEND, b"small" + bytes(30), handle=1))
    one.turn()
    one.programs[12].send(frame(SEND, b"large" + bytes(90), handle=1))
    one.turn()
    one.programs[11].send(frame(SEND, b"later", handle=1))
    one.turn()
    assert one.dp.multi_goes_first([70])
    one.dp.handle_drop(one.programs[12].slot, 1)
    net.until(lambda: len(net.nodes[2].got[11]) == 5)
    assert net.nodes[2].got[11][-1] == b"later" and errors(one.frames[12])[0]["code"] == "bad-handle"


def test_a_large_message_that_goes_to_python_waits_for_itself_no_more(make_net: Callable[..., Net]) -> None:
    net = make_net(2)
    one = net.nodes[1]
    for client in (11, 12):
        one.connect(client)
        net.join(70, 1, client)
        one.bind(client, 1, 70, ORDERED)
    net.nodes[2].connect(11)
    net.join(70, 2, 11)
    net.drive(bytes_max=100)
    one.programs[11].send(frame(SEND, b"before" + bytes(30), handle=1))
    one.turn()
    one.programs[12].send(frame(SEND, b"large" + bytes(90), handle=1))
    one.turn()
    assert one.dp.multi_goes_first([70])
    one.drive(sends=False, bytes_max=100)
    one.dp.turn(now_ns())
    taken = one.dp.take()
    assert taken is not None and taken.slot == one.programs[12].slot and bytes(taken.data).startswith(b"large")
    assert not one.dp.multi_goes_first([70])


@rule("S3")
@pytest.mark.parametrize(("size", "safe"), [(30, [False, True, True]), (60, [True]), (10, [False] * 5 + [True] * 3)])
def test_a_message_with_which_half_of_the_bytes_are_unfinished_does_not_wait_to_settle(
    make_net: Callable[..., Net], size: int, safe: list[bool]
) -> None:
    """At level ordered: else what waits for room waited twice 20 ms for each MiB."""
    net = make_net(2)
    one = net.nodes[1]
    one.connect(11)
    net.nodes[2].connect(11)
    for station in (1, 2):
        net.join(70, station, 11)
        net.nodes[station].bind(11, 1, 70, ORDERED)
    net.drive(bytes_max=100)
    for k in range(12):
        one.programs[11].send(frame(SEND, b"%d" % k + bytes(size - len(b"%d" % k)), handle=1))
        one.turn()  # nothing is carried: it stays unfinished
    found = [m.safe for m in one.machine.known().values()]
    assert found[: len(safe)] == safe and all(found[len(safe) :])
    net.until(lambda: len(net.nodes[2].got[11]) == 12)


@rule("S3")
@pytest.mark.parametrize("level", [ORDERED, PREACK])
def test_a_message_for_which_somebody_waits_does_not_wait_to_settle(make_net: Callable[..., Net], level: int) -> None:
    net = make_net(2)
    one = net.nodes[1]
    for station in (1, 2):
        net.nodes[station].connect(11)
        net.join(70, station, 11)
        net.nodes[station].bind(11, 1, 70, level)
    one.dp.need_preack(70, level == PREACK)
    net.drive()
    one.programs[11].send(frame(SEND, b"x", handle=1))
    one.turn()
    assert [m.safe for m in one.machine.known().values()] == [level == PREACK]


def test_groups_are_addressed_in_any_order_of_their_handles(make_net: Callable[..., Net]) -> None:
    """The record has them ascending: else the other stations would make nothing of it."""
    net = make_net(2)
    for station in (1, 2):
        net.nodes[station].connect(11)
        for group in (72, 71, 70):
            net.join(group, station, 11)
            net.nodes[station].bind(11, 73 - group, group, ORDERED)
    net.drive()
    for handles in ([1, 2, 3], [3, 2, 1], [2, 1, 2, 3, 1], [3, 3]):
        net.nodes[1].programs[11].send(send_to(handles, b"%d" % handles[0]))
    net.until(lambda: len(net.nodes[2].got[11]) == 4 and len(net.nodes[1].got[11]) == 4)
    assert net.nodes[1].got[11] == net.nodes[2].got[11] == [b"1", b"3", b"2", b"3"]


def test_what_needs_judging_is_pythons(make_net: Callable[..., Net]) -> None:
    """Groups of two orders, a level that there is not, no handles, one that is not bound, a message above the limit, and all
    while Python has said so: nothing of it is sent."""
    net = make_net(1)
    one = net.nodes[1]
    p = one.connect(11)
    for group, order in ((70, "token"), (71, "abcast")):
        net.join(group, 1, 11, order)
        one.bind(11, group - 69, group, ORDERED, ORDERINGS[order == "token"])
    one.dp.handle(p.slot, 3, 70, may_send=True, ordering=Ordering.TOKEN)
    net.drive(bytes_max=100)
    bad = [
        send_to([1, 2], b"x"), send_to([1], b"x", 2), send_to([], b"x"), send_to([1, 9], b"x"), send_to([1], bytes(101)),
        frame(SEND_TO, b"\1"), frame(SEND_TO, b"\2\0\1\0"), frame(SEND, b"x", handle=3), send_to([1] * 17, b"x"),
    ]  # fmt: skip
    for data in bad:
        p.send(data)
        one.turn()
        taken = one.dp.take()
        assert taken is not None and taken.type in (SEND, SEND_TO), data
    p.send(send_to([1], b"good"))
    one.turn()
    assert one.dp.take() is None and one.got[11] == [b"good"]
    one.drive(sends=False)
    p.send(send_to([1], b"judged"))
    one.turn()
    assert one.dp.take() is not None and one.got[11] == [b"good"]
    one.dp.multi_drive(None, sends=False, bytes_max=0)
    p.send(send_to([1], b"x"))
    one.turn()
    assert one.dp.take() is not None


def test_a_group_that_is_empty_and_records_of_another_era(make_net: Callable[..., Net]) -> None:
    """A message to nobody is done at once; a record of an era that the machine does not have is given to Python."""
    net = make_net(2)
    one = net.nodes[1]
    p = one.connect(11)
    net.join(70, 2, 11)
    one.dp.handle(p.slot, 1, 77, may_send=True, ordering=Ordering.TOKEN, direct=True)
    net.drive()
    p.send(frame(SEND, b"nobody", handle=1, flags=PREACK | NOTIFY))
    net.until(lambda: done(one.frames[11]))
    assert done(one.frames[11])[-1][:2] == (1, 1) and one.dp.take() is None
    later = Report(EraNumber(9, 0), "token", 1, 1, 1, 5)
    net.nodes[2].pairs[1].send(encode(later))
    net.nodes[2].pairs[1].pump(now_ns())
    foreign: list[Any] = []

    def came() -> bool:
        r = one.dp.multi_foreign()
        foreign.extend([] if r is None else [r])
        return bool(foreign)

    net.until(came)
    assert (foreign[0].source, foreign[0].type, foreign[0].data) == (2, encode(later).type, encode(later).data)
    assert one.dp.multi_foreign() is None and one.dp.take() is None
