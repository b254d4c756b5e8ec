"""Several links, one or none: what is sent goes out on all, what comes in on any is received, and none holds up another."""

from __future__ import annotations

import errno
import select
import struct
import time
from collections.abc import Callable

import pytest
from zenjun.daemon.datapath import KEY_BYTES, LINKS_MAX, Spreading, Want, guard_overhead, now_ns
from zenjun.daemon.sizing import take_unread
from zenjun.proto.envelope import ENCRYPTED, Envelope, Suite, What
from zenjun.proto.links import Said
from zenjun.proto.wire import HEADER, Kind

from ..rules import rule
from ..timing import in_time
from . import gcm
from .net import MAC_A, Peer, Wire, ethernet, isolated, marks, pdu, received
from .rig import CLUSTER, ETHERTYPE, GROUP_MAC, Bench
from .test_sealed import SESSION, THEIRS, key_of, sealing

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


# ---- what is spread, and what comes twice


def stream(bench: Bench, listeners: list[Peer], first: int, count: int, each: list[int]) -> list[list[int]]:
    """Have the core send so many DATA frames of its own stream; their numbers as they come out on each link, ``each`` so many."""
    core = bench.core.c
    core.tx_src, core.tx_seq, core.tx_size, core.tx_left = bench.core.c.self + 1, first, 100, count
    sent = core.tx_sent + count
    bench.until(lambda: core.tx_sent == sent)
    got = [received(bench, listener, n) if n else [] for listener, n in zip(listeners, each, strict=True)]
    return [[int.from_bytes(frame[34:38], "big") for frame in frames] for frames in got]


@rule("J5")
@isolated
def test_data_is_spread_once_and_what_is_sent_again_takes_all(make_bench: Make) -> None:
    bench, _, listeners = opened(make_bench, 2)
    bench.dp.links_use(Spreading.STRIPE, [0, 1])
    one, other = stream(bench, listeners, 0, 128, [64, 64])
    assert sorted(one + other) == list(range(128)) and not set(one) & set(other)
    assert stream(bench, listeners, 3, 4, [4, 4]) == [[3, 4, 5, 6]] * 2, "asked for: all links"
    bench.dp.links_use(Spreading.SET, [1])
    assert stream(bench, listeners, 128, 20, [0, 20]) == [[], list(range(128, 148))]
    bench.dp.links_use(Spreading.ALL, [0, 1])
    assert stream(bench, listeners, 148, 20, [20, 20]) == [list(range(148, 168))] * 2


@rule("J5")
@isolated
def test_a_quiet_station_doubles_and_a_busy_one_spreads(make_bench: Make) -> None:
    bench, _, listeners = opened(make_bench, 2)
    bench.dp.links_use(Spreading.AUTO, [0, 1])
    assert stream(bench, listeners, 0, 5, [5, 5]) == [list(range(5))] * 2
    one, other = stream(bench, listeners, 5, 64, [32, 32])
    assert sorted(one + other) == list(range(5, 69))
    time.sleep(0.01)
    assert stream(bench, listeners, 69, 8, [8, 8]) == [list(range(69, 77))] * 2, "quiet again"
    time.sleep(0.01)
    bench.core.c.pressed = 1
    one, other = stream(bench, listeners, 77, 8, [8, 0])
    assert one == list(range(77, 85)), "few frames, because few are confirmed: that is no quiet station"


@rule("J4")
@isolated
def test_what_is_no_own_data_takes_all_links(make_bench: Make) -> None:
    """Votes, confirmations and frames of other stations."""
    bench, _, listeners = opened(make_bench, 2)
    bench.dp.links_use(Spreading.STRIPE, [0, 1])
    bench.core.c.tx_left, bench.core.c.tx_size = 40, 100  # of no station
    bench.until(lambda: bench.core.c.tx_sent == 40)
    assert [numbers(received(bench, listener, 40)) for listener in listeners] == [list(range(40))] * 2


@rule("J9")
@isolated
def test_a_link_of_which_many_in_a_row_are_asked_for_is_doubtful(make_bench: Make) -> None:
    bench, _, listeners = opened(make_bench, 2)
    bench.dp.links_use(Spreading.STRIPE, [0, 1])
    one, _ = stream(bench, listeners, 0, 32, [16, 16])
    assert one == [*range(8), *range(16, 24)]
    stream(bench, listeners, 0, 8, [8, 8])
    assert bench.dp.links_doubtful() == [], "they were sent at once: a queue was full"
    time.sleep(0.006)
    other, _ = stream(bench, listeners, 32, 32, [16, 16])
    assert other == [*range(32, 40), *range(48, 56)]
    stream(bench, listeners, 17, 7, [7, 7])  # not the next one: the row is broken
    assert bench.dp.links_doubtful() == []
    stream(bench, listeners, 32, 1, [1, 1])
    assert bench.dp.links_doubtful() == [0], "eight in a row, over 6 ms"
    assert stream(bench, listeners, 64, 20, [20, 20]) == [list(range(64, 84))] * 2, "doubled again"
    bench.dp.links_use(Spreading.STRIPE, [0, 1])
    assert bench.dp.links_doubtful() == []
    one, other = stream(bench, listeners, 84, 32, [16, 16])
    assert sorted(one + other) == list(range(84, 116))


@rule("J3")
@isolated
def test_a_link_that_fails_holds_up_nothing_that_is_spread(make_bench: Make) -> None:
    bench, wires, listeners = opened(make_bench, 2)
    bench.dp.links_use(Spreading.STRIPE, [0, 1])
    wires[0].down(wires[0].a)
    bench.until(lambda: False, want=Want.LINK)
    assert stream(bench, listeners, 0, 100, [0, 100]) == [[], list(range(100))]


@rule("J3")
@isolated
def test_a_full_queue_of_the_only_link_that_is_meant_holds_up_nothing(make_bench: Make) -> None:
    """Data is to take one link, which can take nothing now. The turn ends, and what has waited long enough takes the other."""
    bench, wires, listeners = opened(make_bench, 2)
    wires[0].ip.tc("add", "tbf", index=wires[0].index(wires[0].a), handle=0x10000, rate="100kbit", burst=2100, limit=2100)
    bench.dp.links_use(Spreading.SET, [0])
    core = bench.core.c
    core.tx_src, core.tx_size, core.tx_left = core.self + 1, 1000, 100
    start = time.monotonic()
    bench.until(lambda: core.tx_sent == 100)
    in_time(time.monotonic() - start < 100 * 8000 / 100_000 / 2, "not at the slow link's rate")
    meant, other = bench.dp.link_counters(0), bench.dp.link_counters(1)
    assert meant["tx_frames"] >= 2 and meant["tx_busy"] >= 4 and 0 < other["tx_frames"] <= 100 - meant["tx_frames"] + 1
    bench.until(lambda: not select.select([bench.dp.fileno()], [], [], 0.02)[0], what="it falls asleep")
    wires[0].ip.tc("del", index=wires[0].index(wires[0].a), handle=0x10000, parent=0xFFFFFFFF)
    wires[0].down(wires[0].b)
    listeners[1].receive()
    core.tx_seq, core.tx_left = 100, 100
    bench.until(lambda: core.tx_sent == 200, what="nor does a link without a carrier")


@rule("J3")
@isolated
def test_a_full_queue_of_one_link_that_is_spread_over_leaves_all_to_the_other(make_bench: Make) -> None:
    """Whenever the full one was tried again the other one waited as well, though it was idle."""
    bench, wires, _ = opened(make_bench, 2)
    wires[0].ip.tc("add", "tbf", index=wires[0].index(wires[0].a), handle=0x10000, rate="100kbit", burst=2100, limit=2100)
    core, count, took = bench.core.c, 5000, []
    for how, links in ((Spreading.SET, [1]), (Spreading.STRIPE, [0, 1])):
        bench.dp.links_use(how, links)
        core.tx_src, core.tx_size, core.tx_left, core.tx_sent = core.self + 1, 1000, count, 0
        start = time.monotonic()
        bench.until(lambda: core.tx_sent == count)
        took.append(time.monotonic() - start)
    in_time(took[1] < 10 * took[0] + 0.3, f"alone {took[0]:.2f} s, beside one that takes nothing {took[1]:.2f} s")


def plain_links(said: Said, tx: int, session: bytes = bytes(4), number: int = 0) -> bytes:
    body = said.packed()
    head = Envelope(CLUSTER, What.LINKS, tx, 0, len(body), session, number).packed()
    return head + body + crc32c(head + body).to_bytes(4, "big")


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@rule("J6")
@isolated
def test_links_is_sent_on_one_link_and_taken_if_it_is_whole(make_bench: Make) -> None:
    bench, _, peers = opened(make_bench, 2)
    said = Said(2, 2, 0b101, 77, (1, 2, 3), (60, 0, 1500), (7, 0, 65535))
    assert bench.dp.links_say(1, said.packed())
    (frame,) = received(bench, peers[1], 1)
    sent = Envelope.read(frame[14:])
    assert sent is not None and frame[14:] == plain_links(said, bench.core.c.self + 1, sent.session, 1)
    assert any(sent.session) and not peers[0].receive()
    good = plain_links(said, 3)
    for bad in (good[:-1] + bytes([good[-1] ^ 1]), good[:-5], good[:30] + bytes([good[30] ^ 4]) + good[31:]):
        peers[1].send(ethernet(bad))
    peers[1].send(ethernet(good))
    bench.until(lambda: bench.dp.link_counters(1)["rx_links"] == 1, want=Want.SAID)
    assert bench.dp.links_said() == (3, 1, said.packed()) and bench.dp.links_said() is None
    assert bench.dp.links_heard(1)[2].heard_ns and not bench.dp.links_heard(0)[2].heard_ns
    counters = bench.dp.link_counters(1)
    assert counters["rx_tag"] + counters["rx_size"] == 3 and bench.core.c.rx_frames == 0


@isolated
def test_what_nobody_judges_by_is_news_once(make_bench: Make) -> None:
    """LINKS of a station of another medium, on a bus: every turn ended at once because of it."""
    bench, _, peers = opened(make_bench, 1)
    peers[0].send(ethernet(plain_links(Said(1, 1, 1, 5, (0, 0, 0), (0, 0, 0), (0, 0, 0)), 2)))
    bench.until(lambda: bench.dp.link_counters(0)["rx_links"] == 1, want=Want.SAID)
    take_unread(bench.dp)
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        assert not bench.dp.turn(now_ns() + 5_000_000).want & Want.SAID


def numbered(seq: int, kind: Kind = Kind.DATA, instance: int = 1) -> bytes:
    """A frame of station 2; its checksums, by which a copy is known, follow from its number."""
    check = (seq << 8 | kind) % 2**32
    return ethernet(HEADER.struct.pack(CLUSTER, 1, kind, 0, 3, 2, 0, 0, 1, instance, seq % 2**32, 0, 0, 0, 0, check))


@rule("J10")
@isolated
def test_what_has_gone_by_on_every_link_is_told_to_the_core(make_bench: Make) -> None:
    """Below that number what is missing is lost; above, it may come for as long as frames have been late."""
    bench, _, peers = opened(make_bench, 2)
    core, first, began = bench.core.c, 2**32 - 3, time.monotonic()

    def come(link: int, seq: int, expected: int, kind: Kind = Kind.DATA, instance: int = 1, *, late: bool = False) -> None:
        """A frame comes, and the core is told this number; of a process that stands still for 30 ms a link may seem silent."""
        nonlocal began
        before, last = bench.dp.link_counters(link)["rx_frames"], began
        began = time.monotonic()
        peers[link].send(numbered(seq, kind, instance))
        bench.until(lambda: bench.dp.link_counters(link)["rx_frames"] > before)
        if late or time.monotonic() - last < 0.03:
            assert core.passed_below == expected % 2**32, (link, seq)

    assert core.passed_below == 0
    come(0, first, first + 1)
    come(0, first + 1, first + 2)  # one link carries all that has been heard of it
    come(1, first + 3, first + 2)
    come(0, first + 4, first + 4)
    come(1, first + 9, first + 5, Kind.CONFIRM)  # it names the next one
    come(0, first + 9, first + 9, Kind.NAK)
    assert core.passed_wait_ns == 2_000_000
    come(0, first + 11, first + 9)
    time.sleep(0.03)
    come(1, first + 10, first + 11, late=True)
    assert core.passed_wait_ns == 40_000_000, "it was late by 30 ms"
    come(0, first + 3, first + 11, late=True)  # what is sent again says nothing
    come(1, 5, 6, instance=2, late=True)
    come(0, first + 12, 6, late=True)  # nor does a frame of an older instance
    time.sleep(0.05)
    come(1, 8, 9, instance=2, late=True)  # a link on which nothing comes carries nothing


@rule("J6")
@isolated
def test_the_second_copy_goes_no_further(make_bench: Make) -> None:
    bench, _, peers = opened(make_bench, 2)

    def whole(number: int) -> bytes:
        """Its checksums, by which a copy is known, are the number."""
        return ethernet(pdu(number, 40) + struct.pack("=Q", number + 1) + bytes(20))

    for number in range(50):
        for peer in peers:
            peer.send(whole(number))
    bench.until(lambda: sum(bench.dp.link_counters(i)["rx_frames"] for i in (0, 1)) == 100)
    doubles = bench.dp.counters()["rx_double"]
    assert bench.core.c.rx_frames + doubles == 100 and set(marks(bench)) == set(range(50)) and doubles > 0
    time.sleep(0.02)
    before = bench.core.c.rx_frames
    peers[0].send(whole(49))
    bench.until(lambda: bench.core.c.rx_frames == before + 1, what="the same bytes later: no double")


def under_session(what: What, tx: int, session: bytes, suite: int, number: int, body: bytes, piece: int = 0) -> bytes:
    """A frame made by the slow cipher."""
    head = Envelope(CLUSTER, what, tx, suite, len(body), session[:4], number, piece=piece).packed()
    nonce = bytes(4) + number.to_bytes(8, "big")
    if suite & ENCRYPTED:
        hidden, tag = gcm.seal(key_of(session), nonce, head, body)
        return head + hidden + tag
    return head + body + gcm.seal(key_of(session), nonce, head + body, b"")[1]


@pytest.mark.parametrize("suite", [Suite.AES_256_GCM, Suite.AES_256_GCM + ENCRYPTED])
@isolated
def test_with_a_key_copies_and_links_are_told_from_replays(make_bench: Make, suite: int) -> None:
    bench, _, peers = opened(make_bench, 2, sealing=sealing(suite))
    bench.dp.session_read(2, THEIRS, key_of(THEIRS), 1)
    bench.dp.seal_under(SESSION, key_of(SESSION))
    data = HEADER.struct.pack(CLUSTER, 1, Kind.DATA, 0, 3, 2, 0, 0, 1, 1, 0, 0, 0, 0, 0, 12345)
    said = Said(1, 2, 0b11, 5, (1, 2, 3), (4, 5, 6), (7, 8, 9))

    def counted(name: str) -> int:
        return sum(bench.dp.link_counters(i)[name] for i in (0, 1))

    frame = ethernet(under_session(What.PDU, 2, THEIRS, suite, 1, data))
    for peer in peers:
        peer.send(frame)
    bench.until(lambda: counted("rx_frames") == 2)
    assert bench.core.c.rx_frames == 1 and counted("rx_double") + counted("rx_replayed") == 1
    before = counted("rx_double")
    bench.core.c.rx_drop = 1  # as in no instance
    unused = ethernet(under_session(What.PDU, 2, THEIRS, suite, 3, data))
    for peer in peers:
        peer.send(unused)
    bench.until(lambda: counted("rx_frames") == 4)
    in_time(counted("rx_double") == before + 1, "nor is it a replay when the core has no use for it")
    bench.core.c.rx_drop = 0
    for peer in peers:
        peer.send(frame)
    bench.until(lambda: counted("rx_frames") == 6)
    assert counted("rx_replayed") >= 1 and bench.core.c.rx_frames == 2
    links = ethernet(under_session(What.LINKS, 2, THEIRS, suite, 4, said.packed()))
    peers[0].send(links)
    peers[0].send(links)
    bench.until(lambda: counted("rx_frames") == 8)
    assert counted("rx_links") == 1 and bench.dp.links_said() == (2, 0, said.packed())
    peers[1].receive()
    assert bench.dp.links_say(1, said.packed())
    (frame,) = received(bench, peers[1], 1)
    assert frame[14:] == under_session(What.LINKS, 1, SESSION, suite, 1, said.packed())


@rule("E4")
@isolated
def test_nothing_is_believed_of_a_link_before_the_tag_is_right(make_bench: Make) -> None:
    """A frame with the own number said that links are joined, and a copy with another tag that a station is heard there."""
    bench, _, peers = opened(make_bench, 2, sealing=sealing())
    bench.dp.seal_under(SESSION, key_of(SESSION))
    bench.dp.session_read(2, THEIRS, key_of(THEIRS), 1)
    core = bench.core.c
    core.tx_left, core.tx_size = 2, 100  # own numbers 1 and 2
    bench.until(lambda: core.tx_sent == 2, what="own frames")
    body = HEADER.struct.pack(CLUSTER, 1, Kind.CONFIRM, 0, 3, 2, 0, 0, 1, 1, 0, 0, 0, 0, 0, 7)
    own = under_session(What.PDU, 1, SESSION, Suite.AES_256_GCM, 2, body)
    good = under_session(What.PDU, 2, THEIRS, Suite.AES_256_GCM, 5, body)

    def sent(link: int, frame: bytes) -> None:
        before = bench.dp.link_counters(link)["rx_frames"]
        peers[link].send(ethernet(frame))
        bench.until(lambda: bench.dp.link_counters(link)["rx_frames"] > before, what="a frame")

    sent(0, good)
    for forged in (own[:-16] + bytes(16), own[:30] + bytes([own[30] ^ 1]) + own[31:], good[:24] + bytes(len(good) - 24)):
        sent(1, forged)
    assert not any(row.heard_ns for row in bench.dp.links_heard(1)), "forged frames"
    assert bench.dp.link_counters(1)["rx_own"] == 2
    sent(1, own)
    assert bench.dp.links_heard(1)[0].heard_ns, "an own frame that came back by the other link"
