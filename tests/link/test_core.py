"""The data path on the real core: three stations on a bridge in one process, clients on socket pairs, one order everywhere."""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import time
from collections.abc import Callable

from pyroute2 import IPRoute
from zenjun.daemon.datapath import DataPath, Want, now_ns
from zenjun.proto.core import Core, Stage
from zenjun.proto.wire import Ordering, view_hash

from ..rules import rule
from ..timing import in_time
from .net import isolated
from .rig import CLUSTER, ETHERTYPE, GROUP_MAC, Frame, Program, frame

N = 3
MS = 1_000_000
SEND, MESSAGE, DONE = 4, 66, 69
GROUP = 7


class Station:
    def __init__(self, index: int, interface: str, *, message_max: int = 1 << 20) -> None:
        self.core = Core(
            stations=N, self_index=index, cluster=CLUSTER, window=64, slots=1024, frame_max=1500, message_max=message_max,
            confirm_delay_ns=MS, nak_delay_ns=MS, nak_retry_ns=5 * MS, nak_retry_max_ns=50 * MS, poll_delay_ns=10 * MS,
            poll_delay_max_ns=100 * MS, retransmit_gap_ns=MS, seed=index,
        )  # fmt: skip
        self.dp = DataPath(
            self.core, station_index=index, ethertype=ETHERTYPE, cluster=CLUSTER, group_mac=GROUP_MAC, rest_ns=0, linger_ns=0,
            message_max=message_max, queue_bytes_max=16 << 20,
        )  # fmt: skip
        self.mtu = self.dp.link_open(interface).mtu
        theirs, ours = socket.socketpair()
        self.program = Program(theirs, self.dp.client_add(ours.detach(), index + 1))
        self.dp.handle(self.program.slot, 1, GROUP, may_send=True)
        self.dp.join(self.program.slot, 1, GROUP, level=1)
        self.backlog = b""
        self.got: list[Frame] = []

    def open(self, instance: int) -> None:
        incarnations = tuple(range(1, N + 1))
        self.core.open(now_ns(), instance, view_hash(instance, incarnations), incarnations, 1500)

    def turn(self) -> None:
        turn = self.dp.turn(now_ns() + 1000 * MS)
        if turn.want & Want.DEADLINE:
            self.core.nak(turn.now)
            self.core.poll(turn.now)
            self.dp.flush()
        if self.backlog:
            with contextlib.suppress(BlockingIOError):
                self.backlog = self.backlog[self.program.sock.send(self.backlog[: 1 << 20]) :]
        self.got += self.program.receive()

    def messages(self) -> list[bytes]:
        return [f.body for f in self.got if f.type == MESSAGE]


def segment() -> list[str]:
    ip = IPRoute()
    ip.link("add", ifname="zbr", kind="bridge")
    bridge = ip.link_lookup(ifname="zbr")[0]
    ip.link("set", index=bridge, state="up")
    for i in range(N):
        ip.link("add", ifname=f"zs{i}", kind="veth", peer={"ifname": f"zp{i}"})
        ip.link("set", index=ip.link_lookup(ifname=f"zp{i}")[0], master=bridge, state="up")
        ip.link("set", index=ip.link_lookup(ifname=f"zs{i}")[0], state="up")
    return [f"zs{i}" for i in range(N)]


def run(stations: list[Station], count: int) -> None:
    """Turn all until every client has ``count`` messages."""
    end = time.monotonic() + 90
    while any(len(s.messages()) < count for s in stations):
        in_time(time.monotonic() < end, f"{[(len(s.messages()), s.core.counters(), s.dp.counters()) for s in stations]}")
        for s in stations:
            s.turn()
        select.select([s.dp.fileno() for s in stations], [], [], 0.001)


@isolated
def test_three_stations_all_sending() -> None:
    """Small, frame-sized and fragmented messages from all at once; then the next instance. Equal sequences, byte by byte, and
    every client's counts reach its number of messages."""
    rng = random.Random(3)
    stations = [Station(i, name) for i, name in enumerate(segment())]
    total = 0
    for instance in (1, 2):
        for s in stations:
            s.open(instance)
            bodies = [rng.randbytes(rng.choice((0, 1, 64, 64, 64, 1300, 5000))) for _ in range(300)]
            bodies += [os.urandom(200_000), b"last"]
            s.backlog = b"".join(frame(SEND, body, handle=1, flags=1 | 4) for body in bodies)
            total += len(bodies)
        run(stations, total)
        first = stations[0].messages()
        assert len(first) == total
        for s in stations[1:]:
            assert s.messages() == first
        own = total // N
        end = time.monotonic() + 60
        while any(s.dp.client_info(s.program.slot).done[1] < own for s in stations):
            in_time(time.monotonic() < end, "all are counted")
            for s in stations:
                s.turn()
        for s in stations:
            assert sum(f.flags & 1 for f in s.got if f.type == MESSAGE) == own
            assert s.dp.reset() == {}
            s.core.close()
    for s in stations:
        s.dp.close()


@isolated
def test_order_preserving_messages_of_all_to_all() -> None:
    """In a group of order op every member gets every message once, each sender's in its order, fragmented ones too; they are
    counted at their places, at every level."""
    rng = random.Random(4)
    stations = [Station(i, name) for i, name in enumerate(segment())]
    count = 400
    for i, s in enumerate(stations):
        s.dp.leave(s.program.slot, GROUP)
        s.dp.handle(s.program.slot, 1, GROUP, may_send=True, ordering=Ordering.FIFO)
        s.dp.join(s.program.slot, 1, GROUP, level=0, ordering=Ordering.FIFO)
        s.open(1)
        bodies = [b"%d-%d-" % (i, k) + bytes(rng.choice((0, 50, 1300, 4000))) for k in range(count)]
        s.backlog = b"".join(frame(SEND, body, handle=1, flags=2 | 4) for body in bodies)
    run(stations, N * count)
    for s in stations:
        got = [tuple(map(int, m[16:].split(b"-")[:2])) for m in s.messages()]
        assert len(got) == N * count
        for i in range(N):
            assert [k for sender, k in got if sender == i] == list(range(count))
    end = time.monotonic() + 60
    while any(s.dp.client_info(s.program.slot).done != (count, count, count) for s in stations):
        in_time(time.monotonic() < end, f"{[s.dp.client_info(s.program.slot) for s in stations]}")
        for s in stations:
            s.turn()
    for s in stations:
        assert s.dp.lost() == {}
        s.core.close()
        s.dp.close()


def link_end(number: int, other: int, delay_ns: int) -> Core:
    """The core of one end of the link between two stations; confirmations that may wait, and POLLs, come after this time."""
    low, high = sorted((number, other))
    core = Core(
        stations=2, self_index=int(number == high), cluster=CLUSTER, window=32, slots=128, frame_max=1500, message_max=1 << 20,
        confirm_delay_ns=delay_ns, nak_delay_ns=MS, nak_retry_ns=5 * MS, nak_retry_max_ns=50 * MS, poll_delay_ns=delay_ns,
        poll_delay_max_ns=delay_ns, retransmit_gap_ns=MS, pair=(low, high),
    )  # fmt: skip
    core.open(now_ns(), 1, view_hash(1, (1, 1)), (1, 1), 1500)
    return core


@isolated
def test_a_link_begins_with_the_frame_that_opens_it_and_answers_confirm() -> None:
    """No POLL and no bare confirmation comes within the test. Station 1 sends to 2, which opens its end for that frame; what it
    answers confirms it. Station 3 lets its turn go by: the frame is not kept for it."""
    stations = [Station(i, name) for i, name in enumerate(segment())]
    for s in stations:
        s.open(1)
    one, two, three = stations
    minutes = 600_000 * MS

    def until(condition: Callable[[], object]) -> None:
        end = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end, "not within 30 s"
            for s in stations:
                s.turn()
            select.select([s.dp.fileno() for s in stations], [], [], 0.001)

    def offer(s: Station, core: Core, text: bytes) -> None:
        assert core.offer(text, group=0, client=0, type=4, ordering=Ordering.FIFO)

    ends: dict[tuple[int, int], Core] = {}

    def opens(number: int, other: int) -> Core:
        ends[number, other] = core = link_end(number, other, minutes)
        stations[number - 1].dp.pair(other, core.handle_pointer)
        return core

    for other in (2, 3):
        offer(one, opens(1, other), b"first")
    asked = {two: 0, three: 0}

    def is_asked() -> bool:
        for s in (two, three):
            news = s.dp.pairs()[1]
            asked[s] |= news
            if s is two and news:
                opens(2, 1)
        return all(asked.values())

    until(is_asked)
    assert asked == {two: 1, three: 1}
    until(lambda: two.dp.pairs()[0] & 1)
    assert [m.data for m in ends[2, 1].deliver() if m.stage == Stage.ACCEPTED] == [b"first"]
    assert ends[2, 1].counters()["tx_confirm"] == 0
    assert ends[1, 2].unstable
    offer(two, ends[2, 1], b"answer")
    until(lambda: not ends[1, 2].unstable)
    assert ends[2, 1].counters()["tx_confirm"] == 0
    three.turn()
    late = opens(3, 1)
    for _ in range(3):
        three.turn()
    assert not late.deliver() and three.dp.pairs()[0] == 0
    for s in stations:
        s.dp.close()
        s.core.close()
    for core in ends.values():
        core.close()


@rule("J15")
@isolated
def test_what_a_link_of_two_stations_cannot_bring_out_whole_goes_in_pieces() -> None:
    """The other end of its cable takes less, and the kernel says that a queue is full; nothing else would show it."""
    name = segment()[0]
    ip = IPRoute()
    ip.link("set", index=ip.link_lookup(ifname="zp0")[0], mtu=1000)
    one = Station(0, name)
    one.open(1)
    one.dp.limit_size(1500, 900)
    core = link_end(1, 2, 600_000 * MS)
    one.dp.pair(2, core.handle_pointer)
    assert core.offer(bytes(1200), group=0, client=0, type=4, ordering=Ordering.FIFO)
    end = time.monotonic() + 30
    while not one.dp.counters()["tx_pieced"]:
        assert time.monotonic() < end, f"not within 30 s: {one.dp.counters()}"
        one.turn()
        select.select([one.dp.fileno()], [], [], 0.001)
    assert core.counters()["tx_data"] == 1 and one.dp.links_large()[0] == [0]
    for c in (core, one.core):
        c.close()
    one.dp.close()
