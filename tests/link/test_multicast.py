"""What the data path does for groups of orders abcast and token: their sends go to Python, and count among the others."""

from __future__ import annotations

import contextlib
import errno
import struct

import pytest
from zenjun.daemon.clientwire import Frame
from zenjun.daemon.datapath import Take, Want
from zenjun.proto.wire import Ordering

from .rig import DONE, Bench, done, errors, frame, takes

SEND, SEND_TO = int(Frame.SEND), int(Frame.SEND_TO)
ORDERED, PREACK, NOTIFY = 0, 1, 4
TOKEN_HANDLE = 9


def token_client(bench: Bench) -> int:
    """A program in group 7 (total order, handle 1) and with a handle of a token group. Returns its index."""
    a = bench.member(11)
    bench.dp.handle(a.slot, TOKEN_HANDLE, 70, may_send=True, ordering=Ordering.TOKEN)
    return len(bench.programs) - 1


def taken(bench: Bench) -> list[Take]:
    bench.until(lambda: False, want=Want.CLIENT)
    return takes(bench)


def test_sends_of_these_orders_are_pythons_until_it_wants_no_more(bench: Bench) -> None:
    """As many in one turn as are there whole, in their order; what is not such a message waits for the next turn."""
    a = bench.programs[token_client(bench)]
    body = struct.pack("<HHH", 2, 9, 1) + b"x" * 100_000
    one, last = frame(SEND, b"one", handle=TOKEN_HANDLE, flags=PREACK), frame(int(Frame.LEAVE), b"", handle=TOKEN_HANDLE)
    a.send(one + frame(SEND, b"two", handle=TOKEN_HANDLE) + frame(SEND_TO, body) + last)
    bench.until(lambda: False, want=Want.CLIENT)
    got = [bench.dp.take(), bench.dp.take()]
    assert [(t.type, t.handle, t.flags, t.data) for t in got if t] == [
        (SEND, TOKEN_HANDLE, PREACK, b"one"),
        (SEND, TOKEN_HANDLE, 0, b"two"),
    ]
    bench.dp.client_hold(a.slot, True)
    for _ in range(3):
        assert bench.dp.take() is None, "nothing more is read from it"
        bench.turn()
    bench.dp.client_hold(a.slot, False)
    (third,) = taken(bench)
    assert (third.type, third.data) == (SEND_TO, body)
    assert [t.type for t in taken(bench)] == [Frame.LEAVE] and not bench.core.taken()


def test_programs_give_their_messages_by_turns(bench: Bench) -> None:
    """One that sends without end keeps no other back; one that goes meanwhile is told of once."""
    slots = []
    for client in (11, 12):
        a = bench.member(client)
        bench.dp.handle(a.slot, TOKEN_HANDLE, 70, may_send=True, ordering=Ordering.TOKEN)
        a.send(b"".join(frame(SEND, b"%d" % k, handle=TOKEN_HANDLE) for k in range(3)))
        slots.append(a.slot)
    bench.until(lambda: False, want=Want.CLIENT)
    first, second = bench.dp.take(), bench.dp.take()
    assert first is not None and second is not None and {first.slot, second.slot} == set(slots)
    bench.dp.client_remove(first.slot, hard=True)
    assert [(t.slot, t.data) for t in takes(bench)] == [(second.slot, b"1"), (second.slot, b"2")]


def test_while_there_is_no_instance_they_wait(bench: Bench) -> None:
    a = bench.programs[token_client(bench)]
    bench.dp.hold(True)
    a.send(frame(SEND, b"one", handle=TOKEN_HANDLE))
    for _ in range(3):
        bench.turn()
        assert bench.dp.take() is None
    bench.dp.hold(False)
    assert taken(bench)[0].data == b"one"


def test_counts_of_all_orders_are_in_order_of_sending(bench: Bench) -> None:
    """Messages 1 and 4 are of the total order, 2 and 3 are not: DONE counts those before the first that is missing."""
    bench.core.c.echo = 1
    a = bench.programs[token_client(bench)]
    bench.core.c.position = 0

    def total(data: bytes, offered: int) -> None:
        a.send(frame(SEND, data, handle=1, flags=PREACK | NOTIFY))
        bench.until(lambda: bench.core.c.offered == offered)

    def counts() -> tuple[int, ...]:
        bench.turn()
        return bench.dp.client_info(a.slot).done

    total(b"1", 1)
    numbers = [bench.dp.own_sent(a.slot, PREACK, True) for _ in range(2)]
    assert numbers == [2, 3]
    total(b"4", 2)
    bench.dp.own_done(a.slot, 2, PREACK)
    bench.dp.own_done(a.slot, 3, ORDERED)
    assert counts() == (4, 0, 0), "ordered: all; preack: message 1 is missing"
    bench.core.positions(2, 1, 0)
    assert counts() == (4, 2, 0), "message 3 is missing, and 4 does not count before it"
    bench.dp.own_done(a.slot, 3, PREACK)
    assert counts() == (4, 4, 0)
    bench.core.positions(2, 1, 1)
    assert counts() == (4, 4, 4)
    a.read()
    assert done([f for f in a.frames() if f.type == DONE])[-1] == (4, 4, 0), "nobody has asked for ack"
    with pytest.raises(OSError) as caught:
        bench.dp.own_done(a.slot, 3, PREACK)
    assert caught.value.errno == errno.ENOENT


def test_a_refused_message_has_its_number_among_all_sends(bench: Bench) -> None:
    a = bench.programs[token_client(bench)]
    bench.dp.own_sent(a.slot, PREACK, False)
    bench.dp.refuse(a.slot, "closed-group", "no", handle=TOKEN_HANDLE)
    bench.turn()
    (error,) = errors(a.receive())
    assert (error["code"], error["handle"], error["send"]) == ("closed-group", TOKEN_HANDLE, 2)


def test_a_body_above_the_limit_is_never_collected(bench: Bench) -> None:
    """As that of a SEND: refused by its header, and what follows it is read."""
    a = bench.programs[token_client(bench)]
    limit = 1 << 20
    whole = struct.pack("<HH", 1, 9) + bytes(limit)
    a.send(struct.pack("<IBBH", limit + 35, SEND_TO, PREACK, 0) + bytes(1000))
    told: list[dict[str, object]] = []

    def is_told() -> bool:
        told.extend(errors(a.receive()))
        return bool(told)

    bench.until(is_told)
    assert (told[0]["code"], told[0]["send"]) == ("too-large", 1) and not takes(bench)
    rest = memoryview(bytes(limit + 35 - 1000) + frame(SEND_TO, whole))
    for _ in range(1000):
        with contextlib.suppress(BlockingIOError):
            rest = rest[a.sock.send(rest) :] if rest else rest
        bench.turn()
        if not rest and (got := takes(bench)):
            break
    assert [take.data for take in got] == [whole]


def test_the_end_of_an_instance_leaves_them_undecided(bench: Bench) -> None:
    a = bench.programs[token_client(bench)]
    first, second = (bench.dp.own_sent(a.slot, PREACK, False) for _ in range(2))
    bench.dp.own_done(a.slot, first, PREACK)
    bench.turn()
    assert bench.dp.reset()[a.slot].undecided == second - first
    bench.turn()
    assert bench.dp.client_info(a.slot).done == (2, 2, 2)
    assert bench.dp.own_sent(a.slot, PREACK, False) == 3
