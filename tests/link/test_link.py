"""The packet socket on real interfaces: filter, ring, sends, back-pressure, interface life cycle."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import uvloop
from zenjun.daemon.datapath import Want, link_filter
from zenjun.proto.wire import HEADER, Kind

from ..timing import in_time
from .net import MAC_A, MAC_B, Peer, Tap, Wire, ethernet, isolated, marks, pdu, received, sizes
from .rig import CLUSTER, ETHERTYPE, GROUP_MAC, Bench

Make = Callable[..., Bench]
SMALL_RING = 256 * 1024


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def opened(make_bench: Make, *, mtu: int = 1500, **options: object) -> tuple[Bench, Wire, Peer]:
    wire = Wire(mtu=mtu)
    bench = make_bench(**options)
    bench.core.c.tx_cluster = CLUSTER
    info = bench.dp.link_open(wire.a)
    assert (info.ifindex, info.mac, info.mtu) == (wire.index(wire.a), MAC_A, mtu)
    return bench, wire, Peer(wire.b)


@isolated
def test_filter(make_bench: Make) -> None:
    """Cases 37, 57, 61, and VLAN tags: which frames get through."""
    bench, _, peer = opened(make_bench)
    good = {
        1: ethernet(pdu(1)),
        2: ethernet(pdu(2), to=MAC_A),
        3: ethernet(pdu(3), to=b"\xff" * 6),
        4: ethernet(pdu(4), tag=0),
        5: ethernet(pdu(5), tag=5 << 13),
        6: ethernet(pdu(6, 12)),
        7: ethernet(pdu(7, 1500)),
    }
    bad = [
        ethernet(pdu(101), ethertype=0x88B6),
        ethernet(pdu(102), ethertype=0x0800),
        ethernet(pdu(103, cluster=CLUSTER ^ 1)),
        ethernet(pdu(104, cluster=CLUSTER ^ 1 << 31)),
        ethernet(pdu(105), to=bytes.fromhex("025a4a0000ff")),
        ethernet(pdu(106), tag=10),
        ethernet(pdu(107), tag=5 << 13 | 10),
        ethernet(pdu(108), tag=0xFFF),
        ethernet(b""),
        ethernet(struct.pack(">I", CLUSTER)[:3]),
        ethernet(pdu(109), tag=10, to=MAC_A),
    ]
    for frame in (*bad, *good.values(), *bad, ethernet(pdu(8))):
        peer.send(frame)
    bench.until(lambda: 8 in marks(bench))
    assert marks(bench) == [*good, 8]
    assert sizes(bench) == [46, 46, 46, 46, 46, 12, 1500, 46]
    assert bytes(bench.core.c.rx_mac) == MAC_B


@isolated
@pytest.mark.parametrize("kind", [Kind.DATA, Kind.STOP_ACK, Kind.CONFIRM, Kind.NAK])
def test_many_confirmations_at_once_are_no_load(make_bench: Make, kind: Kind) -> None:
    """A lone message, or a heartbeat, brings one of each other station: who rested then would be late for the next message."""
    bench, _, peer = opened(make_bench, rest_ns=50_000)
    for mark in range(40):
        bytes_ = bytearray(pdu(mark, HEADER.size + 12))
        bytes_[HEADER.offset("kind")] = kind
        peer.send(ethernet(bytes(bytes_)))
    bench.until(lambda: bench.core.c.rx_frames == 40)
    bench.turn()
    assert (bench.dp.counters()["rests"] > 0) == (kind in (Kind.DATA, Kind.STOP_ACK))


@isolated
def test_own_frames_do_not_come_back(make_bench: Make) -> None:
    """Case 37: what we send is not received, also while somebody listens to everything on our interface."""
    bench, wire, peer = opened(make_bench)
    tap = Peer(wire.a)
    tap.sock.bind((wire.a, 3))
    listener = Peer(wire.b, receive=True)
    bench.core.c.tx_left, bench.core.c.tx_size = 130, 100
    bench.until(lambda: bench.core.c.tx_sent == 130)
    peer.send(ethernet(pdu(7)))
    bench.until(lambda: bench.core.c.rx_frames)
    assert marks(bench) == [7]
    frames = received(bench, listener, 130)
    assert [struct.unpack_from("=Q", f, 18)[0] for f in frames] == list(range(130))
    assert {f[:14] for f in frames} == {GROUP_MAC + MAC_A + struct.pack(">H", ETHERTYPE)}
    assert {len(f) for f in frames} == {114}
    counters = bench.dp.counters()
    assert counters["tx_frames"] == 130 and counters["tx_batches"] == 3 and counters["tx_bytes"] == 130 * 114


@isolated
def test_group_address_is_joined_and_left(make_bench: Make) -> None:
    bench, wire, _ = opened(make_bench)

    def joined() -> bool:
        rows = [line.split() for line in Path("/proc/self/net/dev_mcast").read_text().splitlines()]
        return any(row[1] == wire.a and row[4] == GROUP_MAC.hex() for row in rows)

    assert joined()
    bench.dp.link_close()
    assert not joined()


@isolated
def test_ring_wraps(make_bench: Make) -> None:
    """Many times as many frames as the ring holds, of all sizes: all there, in order."""
    bench, _, peer = opened(make_bench, ring_bytes=SMALL_RING)
    expected = []
    for burst in range(60):
        for i in range(100):
            number = burst * 100 + i
            size = 12 + number * 37 % 1489
            expected.append((number, size))
            peer.send(ethernet(pdu(number, size)))
        bench.until(lambda: bench.core.c.rx_frames == len(expected))
    assert list(zip(marks(bench), sizes(bench), strict=True)) == expected
    counters = bench.dp.counters()
    assert counters["rx_frames"] == 6000 and counters["rx_kernel_drops"] == 0 and counters["rx_truncated"] == 0
    assert bench.core.c.steps_drained > 0


@isolated
def test_ring_overflow_is_counted(make_bench: Make) -> None:
    """Case 41: frames that find the ring full are lost, counted, and nothing else happens."""
    bench, wire, peer = opened(make_bench, ring_bytes=SMALL_RING)
    tap = Tap(wire, peer)
    for number in range(1000):
        peer.send(ethernet(pdu(number, 1000)))
    tap.wait()
    bench.turn()
    got = bench.core.c.rx_frames
    assert 100 <= got <= 300
    assert marks(bench) == list(range(got))
    assert bench.dp.counters()["rx_kernel_drops"] == 1000 - got
    peer.send(ethernet(pdu(5000)))
    bench.until(lambda: 5000 in marks(bench))


@isolated
def test_batches_are_bounded_and_steps_say_when_drained(make_bench: Make) -> None:
    bench, wire, peer = opened(make_bench)
    tap = Tap(wire, peer)
    for number in range(1000):
        peer.send(ethernet(pdu(number)))
    tap.wait()
    turn = bench.turn()
    assert bench.core.c.rx_frames == 1000 and not turn.want
    assert bench.core.c.steps >= 4 and bench.core.c.steps_drained <= bench.core.c.steps - 3


@isolated
def test_deadline_is_judged_after_the_ring(make_bench: Make) -> None:
    """Case 9: a deadline long over is reported only once the frames that lay in the ring have been given to the core."""
    bench, wire, peer = opened(make_bench)
    tap = Tap(wire, peer)
    for number in range(600):
        peer.send(ethernet(pdu(number)))
    tap.wait()
    turn = bench.dp.turn(1)
    assert turn.want & Want.DEADLINE and bench.core.c.rx_frames == 600


@isolated
def test_jumbo_frames(make_bench: Make) -> None:
    bench, wire, peer = opened(make_bench, mtu=9000)
    for number in range(200):
        peer.send(ethernet(pdu(number, 9000 - number)))
    bench.until(lambda: bench.core.c.rx_frames == 200)
    assert sizes(bench) == [9000 - n for n in range(200)]
    listener = Peer(wire.b, receive=True)
    bench.core.c.tx_left, bench.core.c.tx_size = 20, 9000
    bench.until(lambda: bench.core.c.tx_sent == 20)
    assert [len(f) for f in received(bench, listener, 20)] == [9014] * 20


@isolated
def test_frames_larger_than_the_slot(make_bench: Make) -> None:
    """The MTU grew behind our back: frames that do not fit are dropped whole and counted, never given on cut."""
    bench, wire, peer = opened(make_bench)
    wire.set_mtu(9000)
    peer.send(ethernet(pdu(1, 9000)))
    peer.send(ethernet(pdu(2, 1500)))
    bench.until(lambda: 2 in marks(bench))
    assert marks(bench) == [2]
    assert bench.dp.counters()["rx_truncated"] == 1


@isolated
def test_too_long_to_send(make_bench: Make) -> None:
    """Case 53: EMSGSIZE is counted, the frame dropped, the next ones go."""
    bench, wire, _ = opened(make_bench)
    listener = Peer(wire.b, receive=True)
    bench.core.c.tx_left, bench.core.c.tx_size = 3, 1501
    bench.until(lambda: bench.core.c.tx_sent == 3)
    assert bench.dp.counters()["tx_too_long"] == 3 and bench.dp.link_error() == 0
    assert not bench.dp.links_send(pdu(1, 2000))
    bench.core.c.tx_left, bench.core.c.tx_size = 3, 1500
    bench.until(lambda: bench.core.c.tx_sent == 6)
    assert bench.dp.links_send(pdu(9))
    assert [len(f) for f in received(bench, listener, 4)] == [1514] * 3 + [60]


@isolated
def test_full_transmit_queue_is_back_pressure(make_bench: Make) -> None:
    """Case 45: tbf at 1 Mbit/s with a queue of two frames; every frame arrives once and in order, and the wait costs no CPU."""
    bench, wire, _ = opened(make_bench)
    index = wire.index(wire.a)
    wire.ip.tc("add", "tbf", index=index, handle=0x10000, rate="1mbit", burst=2100, limit=2100)
    listener = Peer(wire.b, receive=True)
    bench.core.c.tx_left, bench.core.c.tx_size = 100, 1000
    cpu, start, turns = time.process_time(), time.monotonic(), bench.dp.counters()["turns"]
    bench.until(lambda: bench.core.c.tx_sent == 100)
    wall = time.monotonic() - start
    got = received(bench, listener, 100)
    assert [struct.unpack_from("=Q", f, 18)[0] for f in got] == list(range(100))
    counters = bench.dp.counters()
    assert counters["tx_busy"] > 10 and counters["tx_errors"] == 0
    assert wall > 0.5, "the queue was not full"
    in_time(time.process_time() - cpu < wall / 2, "no busy loop")
    in_time(counters["turns"] - turns < 20 * 1000 * wall, "no busy loop")


@isolated
def test_links_send_reports_a_full_queue(make_bench: Make) -> None:
    bench, wire, _ = opened(make_bench)
    wire.ip.tc("add", "tbf", index=wire.index(wire.a), handle=0x10000, rate="100kbit", burst=2100, limit=2100)
    assert not all([bench.dp.links_send(pdu(n, 1000)) for n in range(40)])  # noqa: C419
    assert bench.dp.counters()["tx_busy"] > 0 and bench.dp.link_error() == 0


@isolated
def test_interface_down(make_bench: Make) -> None:
    """Case 71: told once, no busy loop, nothing sent, frames of the core kept; open again when it is up."""
    bench, wire, peer = opened(make_bench)
    bench.core.c.tx_size = 100
    wire.down(wire.a)
    bench.until(lambda: False, want=Want.LINK)
    assert bench.dp.link_error() == -errno.ENETDOWN
    bench.core.c.tx_left = 5
    turn = bench.turn()
    assert not turn.want and select.select([bench.dp.fileno()], [], [], 0.0)[0] == []
    assert bench.core.c.tx_sent == 0 and not bench.dp.links_send(pdu(1))
    with pytest.raises(OSError) as caught:
        bench.dp.link_open(wire.a)
    assert caught.value.errno == errno.ENETDOWN
    assert not bench.turn().want
    wire.up(wire.a)
    bench.dp.link_open(wire.a)
    assert bench.dp.link_error() == 0
    bench.until(lambda: bench.core.c.tx_sent == 5)
    peer.send(ethernet(pdu(3)))
    bench.until(lambda: 3 in marks(bench))


@isolated
def test_down_while_sending(make_bench: Make) -> None:
    """ENETDOWN comes from the send itself, before the event."""
    bench, wire, _ = opened(make_bench)
    wire.down(wire.a)
    assert not bench.dp.links_send(pdu(1))
    assert bench.dp.link_error() == -errno.ENETDOWN
    assert bench.turn().want & Want.LINK
    assert not bench.turn().want


@isolated
def test_deleted_and_made_anew(make_bench: Make) -> None:
    """Case 69: the interface goes away and comes back under another index."""
    bench, wire, _ = opened(make_bench)
    for _ in range(5):
        wire.delete()
        bench.until(lambda: False, want=Want.LINK)
        assert bench.dp.link_error() in (-errno.ENETDOWN, -errno.ENODEV, -errno.ENXIO)
        with pytest.raises(OSError) as caught:
            bench.dp.link_open(wire.a)
        assert caught.value.errno == errno.ENODEV
        wire.add()
        assert bench.dp.link_open(wire.a).ifindex == wire.index(wire.a)
        mark = 10 + wire.index(wire.a)
        Peer(wire.b).send(ethernet(pdu(mark)))
        bench.until(partial(lambda wanted: wanted in marks(bench), mark))


@isolated
def test_interfaces_that_do_not_fit(make_bench: Make) -> None:
    """Case 73: each has its own error, and leaves nothing behind."""
    wire = Wire()
    bench = make_bench()
    wire.up("lo")
    before = descriptors()
    for name, expected in (
        ("absent", errno.ENODEV),
        ("x" * 40, errno.ENODEV),
        ("lo", errno.EAFNOSUPPORT),
    ):
        with pytest.raises(OSError) as caught:
            bench.dp.link_open(name)
        assert caught.value.errno == expected, name
    assert descriptors() == before


@isolated
def test_nothing_foreign_before_the_filter(make_bench: Make) -> None:
    """Case 83: opened again and again under a flood of frames of other interfaces and clusters, the core sees none of them."""
    wire, other = Wire(), Wire("zc", "zd")
    bench = make_bench(ring_bytes=SMALL_RING)
    stop = threading.Event()

    def flood() -> None:
        here, there = Peer(wire.b), Peer(other.b)
        while not stop.is_set():
            here.send(ethernet(pdu(1, cluster=CLUSTER + 1)))
            there.send(ethernet(pdu(2)))

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        for _ in range(50):
            bench.dp.link_open(wire.a)
            bench.turn()
    finally:
        stop.set()
        thread.join(5)
    assert bench.core.c.rx_frames == 0


def reopen_in_callback(make_bench: Make, times: int) -> None:
    """Case 143: closing and opening the packet socket inside the loop's own reader callback. uvloop watches the inner descriptor,
    which never changes, so that no registered descriptor is ever closed under it."""
    bench, wire, peer = opened(make_bench, ring_bytes=SMALL_RING)
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    done = loop.create_future()
    count = 0
    before = descriptors()

    def on_readable() -> None:
        nonlocal count
        bench.turn()
        if count < bench.core.c.rx_frames:
            count += 1
            bench.dp.link_open(wire.a)
            if count == times:
                done.set_result(None)
            else:
                peer.send(ethernet(pdu(count)))

    loop.add_reader(bench.dp.fileno(), on_readable)
    peer.send(ethernet(pdu(0)))
    loop.run_until_complete(asyncio.wait_for(done, 200))
    loop.remove_reader(bench.dp.fileno())
    loop.close()
    assert count == times
    assert descriptors() <= before


@isolated
def test_reopen_in_callback_case_143(make_bench: Make) -> None:
    reopen_in_callback(make_bench, 50)


@pytest.mark.slow
@isolated
def test_reopen_ten_thousand_times_case_143(make_bench: Make) -> None:
    """Ten thousand openings leave descriptors and memory as they were. An opening waits some 40 ms for the kernel (grace periods
    of the ring and of the socket before), so that many data paths do it side by side."""
    wire = Wire()
    benches = [make_bench(ring_bytes=SMALL_RING) for _ in range(25)]
    for bench in benches:
        bench.dp.link_open(wire.a)
    before, memory = descriptors(), [bench.dp.memory() for bench in benches]
    end = time.monotonic() + 200
    opened_times = [0] * len(benches)

    def reopen(at: int) -> None:
        while opened_times[at] < 400 and time.monotonic() < end:
            benches[at].dp.link_open(wire.a)
            benches[at].turn()
            opened_times[at] += 1

    threads = [threading.Thread(target=reopen, args=(at,)) for at in range(len(benches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(220)
    in_time(sum(opened_times) == 10_000, f"{opened_times}")
    assert descriptors() == before and [bench.dp.memory() for bench in benches] == memory


@isolated
def test_smaller_ring_when_memory_is_short(make_bench: Make) -> None:
    """Case 127: the ring that there is, is told; never smaller than asked without a word."""
    bench, wire, _ = opened(make_bench, ring_bytes=4 << 20)
    assert bench.dp.link_open(wire.a).ring_bytes == 4 << 20
    wire.set_mtu(9000)
    info = bench.dp.link_open(wire.a)
    assert info.mtu == 9000 and info.ring_bytes == 4 << 20


def test_filter_program() -> None:
    """The program as documented: packet type, tag, EtherType, cluster; everything else returns 0."""
    program = link_filter(ETHERTYPE, CLUSTER)
    constants = [k for _, _, _, k in program]
    assert ETHERTYPE in constants and CLUSTER in constants and constants[-2:] == [0xFFFFFFFF, 0]
    for at, (code, jt, jf, _) in enumerate(program):
        if code & 7 == 5:
            assert at + 1 + jt < len(program) and at + 1 + jf < len(program)
    assert os.sysconf("SC_PAGESIZE") > len(program) * 8
