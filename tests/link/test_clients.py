"""Clients of the data path: parsing, back-pressure, queues, embargo, counts, bad input. No network."""

from __future__ import annotations

import errno
import os
import random
import select
import socket
import struct
from collections.abc import Callable

import pytest
from zenjun.daemon.clientwire import HANDLES_MAX
from zenjun.daemon.datapath import CLIENTS_MAX, E_PROTOCOL, E_SLOW, TIME_MAX, Take, Want, now_ns

from ..timing import in_time
from .rig import DONE, ERROR, MESSAGE, Bench, Program, done, errors, frame, grown, messages, takes

HELLO, JOIN, LEAVE, SEND, STATUS, BYE = 1, 2, 3, 4, 5, 6
VIEW, EVENT = 67, 68
ORDERED, PREACK, ACK = 0, 1, 2
NOTIFY = 4
GROUP = 7


def writable(sock: socket.socket) -> bool:
    return bool(select.select([], [sock], [], 0.0)[1])


# ---- sending


def test_bulk_send_cut_anywhere(bench: Bench) -> None:
    """Many frames in one write, cut at every kind of place, reach the core whole and in order."""
    a = bench.member(11)
    bodies = [os.urandom(n * 7 % 300) for n in range(400)]
    stream = b"".join(frame(SEND, body, handle=1) for body in bodies)
    at = 0
    for size in (1, 3, 4, 1, 8, 100, 1, 5000, 7, len(stream)):
        a.send(stream[at : at + size])
        at += size
        bench.turn()
    bench.until(lambda: bench.core.c.offered == len(bodies))
    assert [(c, g, d) for c, g, d, _ in bench.core.taken()] == [(11, GROUP, body) for body in bodies]
    assert bench.dp.client_info(a.slot).sent == len(bodies)


def test_one_read_serves_many_messages(bench: Bench) -> None:
    a = bench.member(11)
    a.send(frame(SEND, b"x" * 64, handle=1) * 1000)
    bench.until(lambda: bench.core.c.offered == 1000)
    assert bench.dp.counters()["client_reads"] <= 4


def test_need_ack(bench: Bench) -> None:
    """Level ack of the sender, or of a receiver of the group."""
    a = bench.member(11)
    a.send(frame(SEND, b"0", handle=1) + frame(SEND, b"2", handle=1, flags=ACK))
    bench.until(lambda: bench.core.c.offered == 2)
    bench.dp.need_ack(GROUP, True)
    a.send(frame(SEND, b"g", handle=1, flags=PREACK))
    bench.until(lambda: bench.core.c.offered == 3)
    bench.dp.need_ack(GROUP, False)
    a.send(frame(SEND, b"n", handle=1, flags=PREACK))
    bench.until(lambda: bench.core.c.offered == 4)
    assert [(d, need) for _, _, d, need in bench.core.taken()] == [(b"0", False), (b"2", True), (b"g", True), (b"n", False)]


def test_back_pressure_reads_no_further(bench: Bench) -> None:
    """With the window full the socket fills up: the program blocks, nothing grows, nothing spins."""
    a = bench.member(11)
    bench.core.c.room = 5
    message = frame(SEND, b"y" * 1000, handle=1)
    stream = memoryview(message * 5000)
    at = 0
    while True:
        try:
            at += a.sock.send(stream[at : at + 100_000])
        except BlockingIOError:
            if not bench.turn().want and bench.core.c.offered and not writable(a.sock):
                break
    sent = at
    assert bench.core.c.offered == 5
    turn = bench.turn()
    assert not turn.want
    before = bench.dp.counters()["client_reads"]
    for _ in range(10):
        assert not bench.turn().want
    assert bench.dp.counters()["client_reads"] == before
    assert bench.dp.client_info(a.slot).unsent_bytes <= 256 * 1024
    assert bench.dp.unsent() > 0
    bench.core.c.room = 1 << 40
    bench.until(lambda: bench.core.c.offered == sent // len(message))


def test_clients_take_turns(bench: Bench) -> None:
    """Room for a few messages per step is shared by all, not taken by the first (two whole quanta apart at most)."""
    programs = [bench.member(20 + i, 100 + i) for i in range(4)]
    for p in programs:
        p.send(frame(SEND, b"z" * 500, handle=1) * 400)
    for _ in range(120):
        bench.core.c.room = 10
        bench.turn()
    counts = {20 + i: 0 for i in range(4)}
    for client, _, _, _ in bench.core.taken():
        counts[client] += 1
    assert sum(counts.values()) >= 1000
    assert max(counts.values()) - min(counts.values()) <= 2 * 64 * 1024 // 500


def test_hold_stops_sends_but_not_control(bench: Bench) -> None:
    a, b = bench.member(11), bench.member(12)
    bench.dp.hold(True)
    a.send(frame(SEND, b"later", handle=1))
    b.send(frame(STATUS))
    bench.until(lambda: False, want=Want.CLIENT)
    assert [(t.slot, t.type) for t in takes(bench)] == [(b.slot, STATUS)]
    assert bench.core.c.offered == 0 and bench.dp.unsent() == 1
    assert bench.dp.send(0, GROUP, 1, b"leave")
    bench.until(lambda: bench.core.c.offered == 1)
    bench.dp.hold(False)
    bench.until(lambda: bench.core.c.offered == 2)
    assert bench.dp.unsent() == 0


def test_control_waits_for_the_sends_before_it(bench: Bench) -> None:
    """LEAVE after messages: Python sees it when the core has them all; what follows it waits for Python."""
    a = bench.member(11)
    bench.core.c.room = 2
    a.send(frame(SEND, b"1", handle=1) * 3 + frame(LEAVE, handle=1) + frame(SEND, b"4", handle=1) + frame(BYE))
    bench.turn()
    bench.turn()
    assert not takes(bench)
    bench.core.c.room = 100
    bench.until(lambda: False, want=Want.CLIENT)
    assert bench.core.c.offered == 3
    bench.turn()
    assert bench.core.c.offered == 3
    (t,) = takes(bench)
    assert (t.type, t.handle, t.size) == (LEAVE, 1, 0)
    assert bench.dp.send(11, GROUP, 1, b"left")
    bench.until(lambda: False, want=Want.CLIENT)
    assert [d for _, _, d, _ in bench.core.taken()] == [b"1", b"1", b"1", b"left", b"4"]
    assert [t.type for t in takes(bench)] == [BYE]


def test_pending_send_is_bounded(bench: Bench) -> None:
    """Case 125: control messages go ahead of data; without room they wait, up to 1 MiB."""
    bench.core.c.room = 0
    count = 0
    while bench.dp.send(0, GROUP, 1, bytes(10_000)):
        count += 1
    assert 90 <= count <= 104
    with pytest.raises(OSError) as caught:
        bench.dp.send(0, GROUP, 1, bytes((1 << 20) + 1))
    assert caught.value.errno == errno.EMSGSIZE
    bench.core.c.room = 1 << 40
    bench.until(lambda: bench.core.c.offered == count)
    assert bench.dp.send(0, GROUP, 1, b"again")


def test_large_message_in_pieces(make_bench: Callable[..., Bench]) -> None:
    """16 MiB go through a socket, in pieces that the core takes as it has room; others' small ones go between; then the memory
    is given back."""
    bench = make_bench(message_max=16 << 20, queue_bytes_max=1 << 20)
    a, b = bench.member(11), bench.member(12, 8)
    idle = bench.dp.memory()
    body = os.urandom(1 << 20) * 16
    stream = memoryview(frame(SEND, body, handle=1, flags=PREACK | NOTIFY))
    bench.core.c.piece = 1 << 20
    bench.core.c.room = 0
    at = 0

    def feed() -> bool:
        nonlocal at
        while at < len(stream):
            try:
                at += a.sock.send(stream[at : at + (1 << 18)])
            except BlockingIOError:
                return False
        return True

    bench.until(feed)
    b.send(frame(SEND, b"small", handle=1))
    bench.turn()
    for _ in range(20):
        bench.core.c.room += 1
        bench.turn()
    bench.core.c.room = 100
    bench.until(lambda: bench.core.c.offered == 2)
    assert {(c, d) for c, _, d, _ in bench.core.taken()} == {(11, body), (12, b"small")}
    a.send(frame(SEND, b"after", handle=1))
    bench.until(lambda: bench.core.c.offered == 3)
    assert bench.dp.memory() <= idle + 4096


def test_two_large_messages_do_not_deadlock(make_bench: Callable[..., Bench]) -> None:
    """One fragmented message at a time: the other client's waits for the first one's last piece, not for ever."""
    bench = make_bench()
    a, b = bench.member(11), bench.member(12, 8)
    bench.core.c.piece = 1000
    bench.core.c.room = 3
    for p in (a, b):
        p.send(frame(SEND, bytes(50_000), handle=1))
    for _ in range(100):
        bench.turn()
        bench.core.c.room += 3
        if bench.core.c.offered == 2:
            break
    assert bench.core.c.offered == 2


@pytest.mark.parametrize("hard", [True, False])
def test_a_message_half_taken_is_finished_without_its_client(bench: Bench, hard: bool) -> None:
    """Otherwise nobody else's large message could ever go."""
    a, b = bench.member(11), bench.member(12, 8)
    bench.core.c.piece, bench.core.c.room = 1000, 3
    body = os.urandom(20_000)
    a.send(frame(SEND, body, handle=1))
    b.send(frame(SEND, bytes(5000), handle=1))
    bench.turn()
    bench.dp.client_remove(a.slot, hard=hard)
    bench.turn()
    assert bench.dp.clients_left() == 1 and bench.dp.unsent() == 2
    memory = bench.dp.memory()
    bench.core.c.room = 100
    bench.until(lambda: bench.core.c.offered == 2)
    assert [(c, len(d)) for c, _, d, _ in bench.core.taken()] == [(11, 20_000), (12, 5000)]
    assert bench.core.taken()[0][2] == body and bench.dp.memory() <= memory


# ---- refused input


def test_too_large_is_skipped_without_being_kept(make_bench: Callable[..., Bench]) -> None:
    """Case 123: limit, limit + 1; the connection stays and the next message goes. ``send`` names the SEND frame."""
    bench = make_bench(message_max=10_000)
    a = bench.member(11)
    stream = frame(SEND, bytes(10_000), handle=1) + frame(SEND, bytes(10_001), handle=1) + frame(SEND, b"next", handle=1)
    a.send(stream)
    bench.until(lambda: bench.core.c.offered == 2)
    assert [len(d) for _, _, d, _ in bench.core.taken()] == [10_000, 4]
    (error,) = errors(a.receive())
    assert (error["code"], error["handle"], error["send"]) == ("too-large", 1, 2)
    memory = bench.dp.memory()
    big = memoryview(frame(SEND, bytes(16 << 20), handle=1))
    at = 0
    while at < len(big):
        at += a.sock.send(big[at : at + 100_000])
        bench.turn()
    a.send(frame(SEND, b"last", handle=1))
    bench.until(lambda: bench.core.c.offered == 3)
    assert [e["send"] for e in errors(a.receive())] == [4]
    assert bench.dp.memory() == memory


def test_core_can_refuse_for_good(bench: Bench) -> None:
    a = bench.member(11)
    bench.core.c.refuse_size = 5
    a.send(frame(SEND, b"12345", handle=1) + frame(SEND, b"1234", handle=1))
    bench.until(lambda: bench.core.c.offered == 1)
    assert [e["code"] for e in errors(a.receive())] == ["too-large"]
    assert bench.dp.client_info(a.slot).sent == 1


@pytest.mark.parametrize("handle", [0, 2, HANDLES_MAX - 1, HANDLES_MAX, 65535])
def test_bad_handle_is_not_fatal(bench: Bench, handle: int) -> None:
    a = bench.member(11)
    a.send(frame(SEND, b"x", handle=handle) + frame(SEND, b"y", handle=1))
    bench.until(lambda: bench.core.c.offered == 1)
    (error,) = errors(a.receive())
    assert error["code"] == "bad-handle" and error["handle"] == handle and error["send"] == 1


def test_every_refusal_is_told(bench: Bench) -> None:
    """Numbers of later messages depend on it: a flood of refused frames pauses the client, no error is dropped."""
    a = bench.member(11)
    stream = memoryview(frame(SEND, handle=2) * 30_000 + frame(SEND, b"good", handle=1))
    at = 0
    numbers: list[object] = []

    def told() -> bool:
        nonlocal at
        while at < len(stream):
            try:
                at += a.sock.send(stream[at : at + 65536])
            except BlockingIOError:
                break
        a.read(20_000)
        numbers.extend(e["send"] for e in errors(a.frames()))
        return bench.core.c.offered == 1 and len(numbers) == 30_000

    bench.turn()
    assert bench.dp.memory() < 2 << 20
    bench.until(told)
    assert numbers == list(range(1, 30_001))


def test_handle_that_may_not_send(bench: Bench) -> None:
    a = bench.member(11)
    bench.dp.handle(a.slot, 1, GROUP, may_send=False)
    a.send(frame(SEND, b"x", handle=1))
    bench.until(lambda: a.read())
    assert [e["code"] for e in errors(a.frames())] == ["not-member"]


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack("<IBBH", (16 << 20) + (64 << 10) + 1, SEND, 0, 1),
        struct.pack("<IBBH", 0xFFFFFFFF, SEND, 0, 1),
        struct.pack("<IBBH", (64 << 10) + 1, JOIN, 0, 1),
        struct.pack("<IBBH", 1, SEND, 3, 1) + b"x",
    ],
    ids=["size", "size-max", "control-size", "level"],
)
def test_malformed_frame_ends_the_connection(bench: Bench, bad: bytes) -> None:
    """ERROR protocol with flag 1, then the end; Python is told; the message before counts, the one after does not."""
    a, b = bench.member(11), bench.member(12, 8)
    a.send(frame(SEND, b"good", handle=1) + bad + frame(SEND, b"never", handle=1))
    bench.until(lambda: (a.read(), a.closed)[1])
    frames = a.frames()
    assert [f.flags for f in frames if f.type == ERROR] == [1]
    assert errors(frames)[0]["code"] == "protocol"
    assert [(t.slot, t.type, t.error) for t in takes(bench)] == [(a.slot, 0, E_PROTOCOL)]
    bench.dp.client_remove(a.slot, hard=False, linger_ns=10**9)
    assert [d for _, _, d, _ in bench.core.taken()] == [b"good"]
    b.send(frame(SEND, b"alive", handle=1))
    bench.until(lambda: bench.core.c.offered == 2)
    assert bench.dp.clients_left() == 1


def test_unknown_types_go_to_python(bench: Bench) -> None:
    a = bench.client(11)
    a.send(frame(HELLO, b"ZENJ\x01\x00\x01\x00name") + frame(200, b"?", flags=9, handle=77))
    bench.until(lambda: False, want=Want.CLIENT)
    (first,) = takes(bench)
    assert (first.type, first.data) == (HELLO, b"ZENJ\x01\x00\x01\x00name")
    bench.until(lambda: False, want=Want.CLIENT)
    assert takes(bench) == [Take(a.slot, 200, 9, 77, 0, b"?")]


def test_random_bytes(make_bench: Callable[..., Bench]) -> None:
    """Whatever comes: an answer or an end, never a crash, never an endless loop."""
    rng = random.Random(20)
    bench = make_bench(message_max=5000)
    for number in range(1, 60):
        a = bench.member(number, number)
        data = bytearray(rng.randbytes(rng.randrange(1, 3000)))
        if number % 2:
            data = bytearray(frame(SEND, bytes(100), handle=1) * 20)
            for _ in range(4):
                data[rng.randrange(len(data))] = rng.randrange(256)
        a.send(bytes(data))
        a.sock.shutdown(socket.SHUT_WR)
        ended = False
        for _ in range(2000):
            bench.turn()
            ended = ended or any(t.type == 0 for t in takes(bench))
            if ended:
                break
        assert ended, f"client {number} has no end"
        bench.dp.client_remove(a.slot, hard=True)


# ---- delivery


def test_message_frame(bench: Bench) -> None:
    """Layout of MESSAGE: place in the order, sender, own flag, handle."""
    bench.core.c.echo = 1
    a, b = bench.member(11, handle=3), bench.member(12, handle=9)
    bench.core.c.position = 5
    bench.core.positions(6, 0, 0)
    a.send(frame(SEND, b"hello", handle=3))
    bench.until(lambda: (a.read(), b.read())[1])
    (own,), (other,) = a.frames(), b.frames()
    assert own.flags == 1 and other.flags == 0
    assert own.handle == 3 and other.handle == 9
    assert own.body == other.body
    assert struct.unpack("<QHHBBH", own.body[:16]) == (1000, 0, 11, 1, 0, 0)
    assert own.body[16:] == b"hello"


def test_same_client_number_elsewhere_is_not_own(bench: Bench) -> None:
    a = bench.member(11, no_self=True)
    bench.core.deliver(GROUP, b"other", client=11, src=2)
    bench.core.deliver(GROUP, b"mine", client=11, src=0)
    bench.until(lambda: a.read())
    frames = a.frames()
    assert messages(frames) == [b"other"] and frames[0].flags == 0


def test_groups_route(bench: Bench) -> None:
    """Many groups, some members in several; joins and leaves between messages take effect there."""
    programs = [bench.client(10 + i) for i in range(6)]
    for g in range(300):
        bench.dp.join(programs[g % 6].slot, g % 1000 + 1, 1000 + g, ORDERED)
        bench.dp.join(programs[(g + 1) % 6].slot, g % 1000 + 1, 1000 + g, ORDERED)
    for g in range(0, 300, 3):
        bench.dp.leave(programs[g % 6].slot, 1000 + g)
    with pytest.raises(OSError):
        bench.dp.leave(programs[0].slot, 1000)
    for g in range(310):
        bench.core.deliver(1000 + g, b"%d" % g)
    expected: list[list[bytes]] = [[] for _ in programs]
    for g in range(300):
        if g % 3:
            expected[g % 6].append(b"%d" % g)
        expected[(g + 1) % 6].append(b"%d" % g)
    got: list[list[bytes]] = [[] for _ in programs]

    def all_there() -> bool:
        for p, mine in zip(programs, got, strict=True):
            mine.extend(messages(p.receive()))
        return [len(m) for m in got] == [len(m) for m in expected]

    bench.until(all_there)
    assert [sorted(m) for m in got] == [sorted(m) for m in expected]
    bench.dp.client_remove(programs[0].slot, hard=True)
    bench.core.deliver(1001, b"still")
    bench.until(lambda: programs[1].read())


def test_one_write_serves_many_messages(bench: Bench) -> None:
    a = bench.member(11)
    for i in range(1000):
        bench.core.deliver(GROUP, b"%d" % i)
    bench.until(lambda: (a.read(), len(a.buffer) > 24_000)[1])
    assert messages(a.frames()) == [b"%d" % i for i in range(1000)]
    assert bench.dp.counters()["client_writes"] <= 4


def test_group_message_stops_delivery(bench: Bench) -> None:
    """What Python must see is at its place: messages before it are queued, those after wait for group_done."""
    a = bench.member(11)
    bench.core.deliver(GROUP, b"before")
    bench.core.c.position = 4
    bench.core.deliver(99, b"join!", client=3, src=2, type=1)
    bench.core.deliver(GROUP, b"after")
    bench.until(lambda: False, want=Want.GROUP)
    m = bench.dp.group()
    assert m is not None
    assert (m.data, m.group, m.client, m.src, m.type, m.position, m.clock) == (b"join!", 99, 3, 2, 1, 4, 1001)
    assert bench.turn().want & Want.GROUP
    assert bench.dp.client_put(a.slot, VIEW, body=b"{}", handle=1)
    bench.dp.group_done()
    assert bench.dp.group() is None
    bench.until(lambda: (a.read(), len(a.buffer) == 69)[1])
    assert [f.type for f in a.frames()] == [MESSAGE, VIEW, MESSAGE]


def test_view_event_stops_delivery_and_is_released_with_what_stands_before_it(bench: Bench) -> None:
    """A view event is Python's like a group message; with nothing before it, nothing put at its position is held back."""
    a, b = bench.member(11, level=PREACK), bench.member(12, level=ORDERED)
    bench.core.c.position = TIME_MAX
    bench.core.deliver(0, b"view", src=0, type=255, clock=77)
    bench.core.c.position = 0
    bench.core.deliver(GROUP, b"after")
    bench.until(lambda: False, want=Want.GROUP)
    m = bench.dp.group()
    assert m is not None
    assert (m.data, m.type, m.position, m.clock, m.src, m.view_src) == (b"view", 255, TIME_MAX, 77, 0, 2)
    for p, level in ((a, PREACK), (b, ORDERED), (a, ACK)):
        assert bench.dp.client_put(p.slot, EVENT, body=b"e", position=m.position, level=level)
    bench.dp.group_done()
    bench.core.positions(1, 0, 0)
    bench.until(lambda: (b.read(), len(b.buffer) > 20)[1])
    assert [f.type for f in b.frames()] == [EVENT, MESSAGE]
    assert [f.type for f in a.receive()] == [EVENT, EVENT]
    bench.core.positions(1, 1, 0)
    bench.turn()
    assert [f.type for f in a.receive()] == [MESSAGE]


def test_embargo_by_level(bench: Bench) -> None:
    """One cursor, three levels: each client's frames appear when its level's position has passed theirs."""
    clients = [bench.member(11 + level, level=level) for level in (ORDERED, PREACK, ACK)]

    def step(position: int, preack: int, ack: int) -> list[list[bytes]]:
        bench.core.c.position = position
        bench.core.deliver(GROUP, b"%d" % position)
        bench.core.positions(position + 1, preack, ack)
        bench.turn()
        return [messages(c.receive()) for c in clients]

    assert step(0, 0, 0) == [[b"0"], [], []]
    assert step(1, 0, 0) == [[b"1"], [], []]
    assert step(2, 2, 0) == [[b"2"], [b"0", b"1"], []]
    assert step(3, 4, 3) == [[b"3"], [b"2", b"3"], [b"0", b"1", b"2"]]
    bench.core.positions(4, 4, 4)
    bench.turn()
    assert messages(clients[2].receive()) == [b"3"]


def test_mixed_levels_keep_order(bench: Bench) -> None:
    """Within one client a frame waits for those before it, whatever their levels."""
    a = bench.member(11, 1, handle=1, level=ACK)
    bench.dp.join(a.slot, 2, 2, ORDERED)
    bench.core.c.position = 0
    bench.core.deliver(1, b"ack")
    bench.core.deliver(2, b"ordered")
    bench.core.positions(1, 1, 0)
    bench.turn()
    assert a.receive() == []
    bench.core.positions(1, 1, 1)
    bench.turn()
    assert messages(a.receive()) == [b"ack", b"ordered"]


def test_put_under_embargo_and_urgent(bench: Bench) -> None:
    a = bench.member(11, level=PREACK)
    bench.core.deliver(GROUP, b"m")
    bench.core.positions(1, 0, 0)
    bench.turn()
    assert bench.dp.client_put(a.slot, VIEW, body=b"view", position=0, level=PREACK)
    assert bench.dp.client_put(a.slot, EVENT, body=b"behind")
    assert bench.dp.client_put(a.slot, EVENT, body=b"urgent", urgent=True)
    bench.turn()
    assert [f.body for f in a.receive()] == [b"urgent"]
    bench.core.positions(1, 1, 0)
    bench.turn()
    assert [f.type for f in a.receive()] == [MESSAGE, VIEW, EVENT]


# ---- counts


def test_done_counts(bench: Bench) -> None:
    """DONE when a count rose that somebody asked for, behind the messages it counts."""
    bench.core.c.echo = 1
    a = bench.member(11, level=PREACK)
    bench.core.c.position = 0
    a.send(frame(SEND, b"1", handle=1, flags=PREACK | NOTIFY) + frame(SEND, b"2", handle=1, flags=PREACK))
    bench.until(lambda: bench.core.c.offered == 2)
    bench.core.positions(1, 0, 0)
    bench.turn()
    assert a.receive() == []
    bench.core.positions(1, 1, 0)
    bench.turn()
    frames = a.receive()
    assert [f.type for f in frames] == [MESSAGE, MESSAGE, DONE]
    assert done(frames) == [(2, 2, 0)]
    bench.core.positions(1, 1, 1)
    bench.turn()
    assert a.receive() == []
    assert bench.dp.client_info(a.slot).done == (2, 2, 2)


def test_done_without_membership(bench: Bench) -> None:
    bench.core.c.echo = 1
    a = bench.client(11)
    bench.dp.handle(a.slot, 5, 77, may_send=True)
    a.send(frame(SEND, b"x", handle=5, flags=ORDERED | NOTIFY))
    bench.until(lambda: a.read())
    assert done(a.frames()) == [(1, 0, 0)]


def test_done_never_overtakes_messages(make_bench: Callable[..., Bench]) -> None:
    """Under load, with a reader that takes a little at a time, every DONE stands behind as many own messages as it counts, and
    they keep coming although the queue never runs empty."""
    bench = make_bench(queue_bytes_max=32 << 20)
    bench.core.c.echo = 1
    a = bench.member(11, level=PREACK)
    total, sent, own, seen = 1500, 0, 0, []
    position = 0
    while own < total:
        for _ in range(10):
            if sent < total:
                a.send(frame(SEND, bytes(2000), handle=1, flags=PREACK | NOTIFY))
                sent += 1
        bench.core.c.position = position
        bench.turn()
        position += 1
        bench.core.positions(position, position, 0)
        bench.turn()
        a.read(15_000)
        for f in a.frames():
            if f.type == MESSAGE:
                own += 1
            else:
                counts = struct.unpack("<QQQ", f.body)
                assert counts[PREACK] <= own
                seen.append(counts[PREACK])
    bench.until(lambda: (a.read(), done(a.frames()), seen)[2])
    assert seen == sorted(set(seen)) and len(seen) > 20


# ---- slow and dying clients


def overflow(bench: Bench, group: int = GROUP) -> None:
    for _ in range(64):
        bench.core.deliver(group, bytes(64 * 1024))


def test_slow_receiver_gets_its_reason(bench: Bench) -> None:
    """Cases 118, 119: over the limit, the one client is cut off at a frame boundary with a reason; nobody else notices."""
    slow, well = bench.member(11), bench.member(12)
    got = 0
    for _ in range(64):
        bench.core.deliver(GROUP, bytes(64 * 1024))
        bench.turn()
        got += len(messages(well.receive()))
    assert got == 64
    assert [(t.slot, t.type, t.error) for t in takes(bench)] == [(slow.slot, 0, E_SLOW)]
    assert bench.dp.client_info(slow.slot).closing
    assert not bench.dp.client_put(slow.slot, EVENT, body=b"x")
    bench.dp.client_remove(slow.slot, hard=False, linger_ns=5 * 10**9)
    bench.until(lambda: (slow.read(), slow.closed)[1])
    frames = slow.frames()
    assert not slow.buffer, "cut within a frame"
    assert {f.type for f in frames[:-1]} == {MESSAGE}
    assert frames[-1].flags == 1 and errors(frames)[0]["code"] == "slow-receiver"
    assert bench.dp.counters()["slow_disconnects"] == 1
    assert bench.dp.clients_left() == 1


def test_slow_receiver_that_never_reads_is_closed(bench: Bench) -> None:
    slow = bench.member(11)
    overflow(bench)
    bench.until(lambda: False, want=Want.CLIENT)
    takes(bench)
    bench.dp.client_remove(slow.slot, hard=False, linger_ns=50_000_000)
    bench.until(lambda: bench.dp.clients_left() == 0)


def test_sends_are_not_read_while_the_queue_is_over_half(bench: Bench) -> None:
    a = bench.member(11)
    while bench.dp.client_info(a.slot).queued_bytes <= 512 * 1024:
        bench.core.deliver(GROUP, bytes(64 * 1024))
        bench.turn()
    a.send(frame(SEND, b"x", handle=1))
    bench.turn()
    bench.turn()
    assert bench.core.c.offered == 0 and bench.dp.client_info(a.slot).paused
    bench.until(lambda: (a.read(), bench.core.c.offered == 1)[1])
    assert not bench.dp.client_info(a.slot).paused


def test_queue_wraps_and_grows(make_bench: Callable[..., Bench]) -> None:
    """Frames of every size through a queue that never runs empty, so that it wraps and grows in the middle."""
    rng = random.Random(5)
    bench = make_bench(queue_bytes_max=8 << 20)
    a = bench.member(11, level=PREACK)
    bodies: list[bytes] = []
    got: list[bytes] = []
    position = 0
    for _ in range(300):
        for _ in range(rng.randrange(1, 30)):
            body = rng.randbytes(rng.choice((0, 1, 50, 1500, 20_000)))
            bodies.append(body)
            bench.core.c.position = position
            bench.core.deliver(GROUP, body)
            position += 1
        bench.core.positions(position, max(0, position - rng.randrange(20)), 0)
        bench.turn()
        a.read(rng.choice((1000, 100_000, 400_000)))
        got += messages(a.frames())
        if rng.random() < 0.1:
            assert bench.dp.client_put(a.slot, EVENT, body=b"!", urgent=True)
    bench.core.positions(position, position, 0)
    bench.until(lambda: grown(got, messages(a.receive())) == len(bodies))
    assert got == bodies


def test_end_of_a_client(bench: Bench) -> None:
    """Everything sent before the end goes out; then Python hears of the end, once."""
    a = bench.member(11)
    bench.core.c.room = 1
    a.send(frame(SEND, b"x", handle=1) * 3 + b"\x05\x00")
    a.close()
    bench.turn()
    bench.turn()
    assert takes(bench) == []
    bench.core.c.room = 10
    bench.until(lambda: False, want=Want.CLIENT)
    assert bench.core.c.offered == 3
    assert takes(bench) == [Take(a.slot, 0, 0, 0, 0, b"")]
    assert not bench.turn().want
    bench.dp.client_remove(a.slot, hard=True)
    assert bench.dp.clients_left() == 0


def test_client_that_dies_with_frames_unread(bench: Bench) -> None:
    """The reset by a peer with unread frames must not hide what it sent before."""
    a = bench.member(11)
    bench.core.deliver(GROUP, b"never read")
    bench.turn()
    a.send(frame(SEND, b"last words", handle=1))
    a.close()
    bench.until(lambda: False, want=Want.CLIENT)
    assert [d for _, _, d, _ in bench.core.taken()][1:] == [b"last words"]
    assert [(t.type, t.error) for t in takes(bench)] == [(0, 0)]
    bench.core.deliver(GROUP, b"to nobody")
    bench.turn()
    bench.dp.client_remove(a.slot, hard=True)


def test_remove_writes_what_is_released(bench: Bench) -> None:
    a = bench.member(11, level=PREACK)
    bench.core.deliver(GROUP, b"released")
    bench.core.positions(1, 1, 0)
    bench.core.c.position = 1
    bench.core.deliver(GROUP, b"embargoed")
    bench.turn()
    assert bench.dp.client_put(a.slot, VIEW, body=b"v", position=1, level=PREACK)
    bench.dp.client_remove(a.slot, hard=False, linger_ns=10**9)
    with pytest.raises(OSError):
        bench.dp.client_put(a.slot, EVENT)
    bench.until(lambda: (a.read(), a.closed)[1])
    assert messages(a.frames()) == [b"released"]


def test_slots(bench: Bench) -> None:
    """CLIENTS_MAX clients, none more, numbers unique; slots come back; descriptors do not leak (case 145)."""

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    before = descriptors()
    programs = [bench.client(i + 1) for i in range(CLIENTS_MAX)]
    spare, other = socket.socketpair()
    with pytest.raises(OSError) as caught:
        bench.dp.client_add(spare.fileno(), 1)
    assert caught.value.errno == errno.EEXIST
    with pytest.raises(OSError) as caught:
        bench.dp.client_add(spare.fileno(), 1000)
    assert caught.value.errno == errno.EUSERS
    spare.close()
    other.close()
    for p in programs:
        bench.dp.client_remove(p.slot, hard=True)
        p.close()
    assert bench.dp.clients_left() == 0 and descriptors() == before
    for i in range(2000):
        p = Program(*_pair(bench, i + 1))
        p.close()
        if i % 3:
            bench.turn()
        bench.dp.client_remove(p.slot, hard=bool(i % 2), linger_ns=10**9)
        if i % 5 == 0:
            bench.turn()
    bench.turn()
    takes(bench)
    assert bench.dp.clients_left() == 0 and descriptors() == before


def _pair(bench: Bench, number: int) -> tuple[socket.socket, int]:
    theirs, ours = socket.socketpair()
    return theirs, bench.dp.client_add(ours.detach(), number)


# ---- the turn


def test_deadlines(bench: Bench) -> None:
    """The engine's deadline and POLL come back as DEADLINE; NAKs are sent, a confirmation calls step again; nothing spins."""
    assert not bench.turn().want & Want.DEADLINE
    assert bench.dp.turn(now_ns() - 1).want & Want.DEADLINE
    bench.core.c.nak_due = now_ns() - 1
    assert not bench.turn().want & Want.DEADLINE
    assert bench.core.c.nak_due == 2**64 - 1, "the data path had the NAK made"
    bench.core.c.poll_due = now_ns() + 30_000_000_000
    turn = bench.turn()
    assert not turn.want and turn.next_due == bench.core.c.poll_due
    bench.core.c.poll_due = now_ns() + 20_000_000
    bench.until(lambda: False, want=Want.DEADLINE)
    bench.core.c.poll_due = 2**64 - 1
    bench.core.c.beat_due = now_ns() + 20_000_000
    bench.until(lambda: bench.core.c.beats == 1)
    assert not bench.turn().want, "a heartbeat is no matter for Python"
    bench.core.c.silence_due = now_ns() + 20_000_000
    assert bench.turn().next_due <= bench.core.c.silence_due
    bench.until(lambda: False, want=Want.DEADLINE)
    bench.core.c.silence_due = 2**64 - 1
    bench.core.c.confirm_due = now_ns() + 1_000_000
    before = bench.core.c.steps
    assert not bench.turn().want
    bench.until(lambda: bench.core.c.steps > before + 3)
    bench.core.c.confirm_due = 2**64 - 1


def test_descriptor_is_quiet_when_idle(bench: Bench) -> None:
    bench.member(11)
    bench.until(lambda: not bench.turn().want)
    assert select.select([bench.dp.fileno()], [], [], 0.0)[0] == []


def test_descriptor_stays_readable_while_something_is_wanted(bench: Bench) -> None:
    a = bench.member(11)
    a.send(frame(STATUS))
    bench.until(lambda: False, want=Want.CLIENT)
    assert select.select([bench.dp.fileno()], [], [], 1.0)[0]
    takes(bench)
    assert not bench.turn().want
    assert select.select([bench.dp.fileno()], [], [], 0.0)[0] == []


def test_fenced_is_told_once(bench: Bench) -> None:
    bench.core.c.status = 64
    assert bench.turn().want == Want.FENCED
    assert bench.turn().want == 0
    bench.core.c.status = 0
    bench.turn()
    bench.core.c.status = 64
    assert bench.turn().want == Want.FENCED


def test_linger_and_rest_are_bounded(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(linger_ns=3_000_000, rest_ns=50_000)
    bench.core.c.status = 16
    took = []
    for _ in range(5):
        start = now_ns()
        assert not bench.turn().want
        took.append(now_ns() - start)
    assert bench.dp.counters()["lingers"] == 5
    assert min(took) > 2_500_000
    in_time(min(took) < 500_000_000, "the rest may have met with a machine that did something else")


def test_wrong_arguments(bench: Bench) -> None:
    slot = bench.client(11).slot
    for call in (
        lambda: bench.dp.join(slot, 1, 1, 3),
        lambda: bench.dp.join(200, 1, 1, 0),
        lambda: bench.dp.handle(slot, 0, 1, may_send=True),
        lambda: bench.dp.handle(slot, HANDLES_MAX, 1, may_send=True),
        lambda: bench.dp.handle_drop(slot, 9),
        lambda: bench.dp.client_put(slot, 66, level=5),
        lambda: bench.dp.client_remove(99, hard=True),
        lambda: bench.dp.client_info(CLIENTS_MAX),
    ):
        with pytest.raises(OSError):
            call()
    bench.dp.join(slot, 1, 1, 0)
    with pytest.raises(OSError):
        bench.dp.join(slot, 2, 1, 0)
