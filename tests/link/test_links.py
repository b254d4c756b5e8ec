"""Several links, one or none: what is sent goes out on all, what comes in on any is received, and none holds up another."""

from __future__ import annotations

import errno
import select
import struct
import time
from collections.abc import Callable

import pytest
from zenjun.daemon.datapath import KEY_BYTES, LINKS_MAX, Want, guard_overhead

from ..timing import in_time
from .net import MAC_A, Peer, Wire, ethernet, isolated, marks, pdu, received
from .rig import CLUSTER, ETHERTYPE, GROUP_MAC, Bench

Make = Callable[..., Bench]
KEY = bytes(range(KEY_BYTES))
MACS = (MAC_A, bytes.fromhex("025a4a00001a"))


def opened(make_bench: Make, count: int, **options: object) -> tuple[Bench, list[Wire], list[Peer]]:
    """A data path with an open link on each of so many wires, and what listens at their other ends."""
    wires = [Wire(f"za{i}", f"zb{i}", mac=MACS[i]) for i in range(count)]
    bench = make_bench(links=count, **options)
    bench.core.c.tx_cluster = CLUSTER
    for i, wire in enumerate(wires):
        assert bench.dp.link_open(wire.a, i).mac == MACS[i]
    return bench, wires, [Peer(wire.b, receive=True) for wire in wires]


def numbers(frames: list[bytes]) -> list[int]:
    return [struct.unpack_from("=Q", frame, 18)[0] for frame in frames]


def test_no_link_at_all(make_bench: Make) -> None:
    """The loop turns, clients are served, frames of the core stay with it, and nothing keeps it awake."""
    bench = make_bench(links=0)
    program = bench.member(5)
    bench.core.deliver(7, b"x")
    bench.core.c.tx_left, bench.core.c.tx_size = 3, 100
    bench.until(lambda: program.read(), what="a message for the client")
    bench.dp.flush()
    assert bench.core.c.tx_sent == 0 and not bench.dp.links_send(pdu(1))
    assert select.select([bench.dp.fileno()], [], [], 0.0)[0] == []
    with pytest.raises(OSError) as caught:
        bench.dp.link_open("lo")
    assert caught.value.errno == errno.EINVAL
    bench.dp.link_close()
    counters = bench.dp.counters()
    assert not any(count for name, count in counters.items() if name.startswith(("rx_", "tx_"))) and counters["turns"] > 0


def test_more_links_than_there_may_be(make_bench: Make) -> None:
    with pytest.raises(OSError) as caught:
        make_bench(links=LINKS_MAX + 1)
    assert caught.value.errno == errno.EINVAL
    bench = make_bench(links=LINKS_MAX)
    for refused in (lambda: bench.dp.link_open("lo", LINKS_MAX), lambda: bench.dp.link_counters(LINKS_MAX)):
        with pytest.raises(OSError) as caught:
            refused()
        assert caught.value.errno == errno.EINVAL


def goes_out_on_all(make_bench: Make, count: int, key: bytes) -> None:
    bench, _, listeners = opened(make_bench, count, key=key)
    bench.core.c.tx_left, bench.core.c.tx_size = 130, 100
    bench.until(lambda: bench.core.c.tx_sent == 130)
    assert bench.dp.links_send(pdu(1000))
    got = [received(bench, listener, 131) for listener in listeners]
    for i, frames in enumerate(got):
        assert numbers(frames) == [*range(130), 1000]
        assert {frame[:14] for frame in frames} == {GROUP_MAC + MACS[i] + struct.pack(">H", ETHERTYPE)}
        assert {len(frame) for frame in frames[:130]} == {114 + guard_overhead(key)}
        counters = bench.dp.link_counters(i)
        assert (counters["tx_frames"], counters["tx_batches"], counters["tx_missed"]) == (131, 3, 0)
        assert counters["tx_bytes"] == sum(map(len, frames)) - (0 if key else 60 - 14 - len(pdu(1)))
    assert all([frame[14:] for frame in frames] == [frame[14:] for frame in got[0]] for frames in got), "the same bytes on each"
    assert bench.dp.counters()["tx_frames"] == 131 * count, "together"


@pytest.mark.parametrize("key", [b"", KEY], ids=["none", "siphash"])
@pytest.mark.parametrize("count", [1, 2])
@isolated
def test_what_is_sent_goes_out_on_every_link(make_bench: Make, count: int, key: bytes) -> None:
    goes_out_on_all(make_bench, count, key)


@pytest.mark.parametrize("count", [1, 2])
@isolated
def test_what_comes_in_on_any_link_is_received(make_bench: Make, count: int) -> None:
    bench, _, peers = opened(make_bench, count)
    for number in range(600):
        peers[number % count].send(ethernet(pdu(number)))
    bench.until(lambda: bench.core.c.rx_frames == 600)
    got = marks(bench)
    for i in range(count):
        assert [n for n in got if n % count == i] == list(range(i, 600, count)), "each link's in their order"
        assert bench.dp.link_counters(i)["rx_frames"] == 600 // count
    assert bench.dp.counters()["rx_frames"] == 600


@isolated
def test_a_link_that_fails_holds_up_no_other(make_bench: Make) -> None:
    bench, wires, listeners = opened(make_bench, 2)
    bench.core.c.tx_size = 100
    wires[0].down(wires[0].a)
    bench.until(lambda: False, want=Want.LINK)
    assert (bench.dp.link_error(0), bench.dp.link_error(1)) == (-errno.ENETDOWN, 0)
    bench.core.c.tx_left = 200
    bench.until(lambda: bench.core.c.tx_sent == 200)
    assert bench.dp.links_send(pdu(200)), "one link has taken it"
    listeners[1].send(ethernet(pdu(7)))
    bench.until(lambda: 7 in marks(bench))
    assert numbers(received(bench, listeners[1], 201)) == list(range(201))
    assert not bench.turn().want and select.select([bench.dp.fileno()], [], [], 0.0)[0] == []
    assert (bench.dp.link_counters(0)["tx_missed"], bench.dp.link_counters(1)["tx_missed"]) == (200, 0)
    wires[0].up(wires[0].a)
    bench.dp.link_open(wires[0].a, 0)
    listeners[0].receive()
    bench.core.c.tx_left = 5
    bench.until(lambda: bench.core.c.tx_sent == 205)
    for listener in listeners:
        assert numbers(received(bench, listener, 5)) == list(range(200, 205))
    assert bench.dp.link_counters(0)["tx_missed"] == 200, "counts go on where they were"


@isolated
def test_both_links_fail(make_bench: Make) -> None:
    """Frames of the core stay with it until one of them is open again."""
    bench, wires, listeners = opened(make_bench, 2)
    bench.core.c.tx_size = 100
    for i, wire in enumerate(wires):
        wire.down(wire.a)
        bench.until(lambda: False, want=Want.LINK)
        assert bench.dp.link_error(i) == -errno.ENETDOWN
    bench.core.c.tx_left = 5
    assert not bench.turn().want and bench.core.c.tx_sent == 0 and not bench.dp.links_send(pdu(1))
    wires[1].up(wires[1].a)
    bench.dp.link_open(wires[1].a, 1)
    bench.until(lambda: bench.core.c.tx_sent == 5)
    assert numbers(received(bench, listeners[1], 5)) == list(range(5))


@isolated
def test_a_full_queue_holds_up_no_other_link(make_bench: Make) -> None:
    """The slow link misses frames, which the other one has taken; when all are sent nobody waits for it any more."""
    bench, wires, listeners = opened(make_bench, 2)
    index = wires[0].index(wires[0].a)
    wires[0].ip.tc("add", "tbf", index=index, handle=0x10000, rate="100kbit", burst=2100, limit=2100)
    bench.core.c.tx_left, bench.core.c.tx_size = 300, 1000
    start = time.monotonic()
    bench.until(lambda: bench.core.c.tx_sent == 300)
    in_time(time.monotonic() - start < 300 * 8000 / 100_000 / 2, "not at the slow link's rate")
    assert numbers(received(bench, listeners[1], 300)) == list(range(300))
    slow, fast = bench.dp.link_counters(0), bench.dp.link_counters(1)
    assert slow["tx_busy"] > 0 and slow["tx_missed"] > 200 and slow["tx_frames"] + slow["tx_missed"] + slow["tx_errors"] == 300
    assert (fast["tx_busy"], fast["tx_missed"], fast["tx_frames"]) == (0, 0, 300)
    bench.until(lambda: not select.select([bench.dp.fileno()], [], [], 0.02)[0], what="it falls asleep")


@isolated
def test_each_link_has_its_own_mtu(make_bench: Make) -> None:
    """What is too long for one link is dropped there, and what stands behind it is not."""
    bench, wires, listeners = opened(make_bench, 2)
    wires[0].set_mtu(1000)
    bench.core.c.tx_left, bench.core.c.tx_size = 70, 1001
    bench.until(lambda: bench.core.c.tx_sent == 70)
    bench.core.c.tx_left, bench.core.c.tx_size = 70, 1000
    bench.until(lambda: bench.core.c.tx_sent == 140)
    assert numbers(received(bench, listeners[1], 140)) == list(range(140))
    assert numbers(received(bench, listeners[0], 70)) == list(range(70, 140))
    counters = bench.dp.link_counters(0)
    assert (counters["tx_too_long"], counters["tx_missed"]) == (70, 0)
    assert bench.dp.link_error(0) == 0
