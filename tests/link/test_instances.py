"""What the end of an instance costs a client, FIFO order, and messages that begin anew. No network."""

from __future__ import annotations

import os

import pytest
from zenjun.daemon.datapath import Lost, MaySend, Want
from zenjun.proto.core import Stage
from zenjun.proto.wire import Ordering

from .rig import DONE, MESSAGE, Bench, done, errors, frame, messages, takes

SEND, STATUS, EVENT = 4, 5, 68
ORDERED, PREACK = 0, 1
NOTIFY = 4
GROUP = 7


# ---- an instance ends


def test_reset(bench: Bench) -> None:
    """An instance ends: what was under embargo is forgotten, the rest stays, the undecided are counted, counts go on behind."""
    bench.core.c.echo = 1
    a = bench.member(11, 1, handle=1, level=PREACK)
    bench.dp.join(a.slot, 2, 2, ORDERED)
    a.send(frame(SEND, b"one", handle=1, flags=PREACK | NOTIFY))
    bench.until(lambda: bench.core.c.offered == 1)
    bench.core.positions(1, 1, 0)
    bench.turn()
    assert [f.type for f in a.receive()] == [MESSAGE, DONE]
    bench.core.c.position = 1
    a.send(frame(SEND, b"two", handle=1, flags=PREACK | NOTIFY) * 2)
    bench.until(lambda: bench.core.c.offered == 3)
    bench.core.deliver(2, b"stays")
    bench.core.deliver(1, b"goes")
    bench.core.positions(2, 1, 0)
    bench.turn()
    assert a.receive() == []
    assert bench.dp.lost() == {a.slot: Lost(2, 3, True)}
    assert bench.dp.reset() == {a.slot: Lost(2, 3, True)}
    assert bench.dp.client_put(a.slot, EVENT, body=b"reopened")
    bench.core.positions(0, 0, 0)
    bench.core.c.position = 0
    bench.turn()
    frames = a.receive()
    assert [f.type for f in frames] == [MESSAGE, EVENT, DONE]
    assert messages(frames) == [b"stays"] and done(frames) == [(3, 3, 3)]
    a.send(frame(SEND, b"new", handle=1, flags=PREACK | NOTIFY))
    bench.until(lambda: bench.core.c.offered == 4)
    bench.core.positions(1, 1, 0)
    bench.turn()
    frames = a.receive()
    assert messages(frames) == [b"new"] and done(frames) == [(4, 4, 3)]


def test_reset_offers_a_partial_message_anew(bench: Bench) -> None:
    a = bench.member(11)
    bench.core.c.piece, bench.core.c.room = 1000, 3
    a.send(frame(SEND, bytes(range(200)) * 50, handle=1))
    bench.turn()
    bench.core.c.partial = bench.core.ffi.NULL
    bench.dp.reset()
    bench.core.c.room = 100
    bench.until(lambda: bench.core.c.offered == 1)
    assert bench.core.taken()[0][2] == bytes(range(200)) * 50
    assert bench.core.c.room == 90


def test_reset_forgets_what_python_sent_and_the_core_has_not_taken(bench: Bench) -> None:
    """It spoke of the groups of the instance that has ended."""
    bench.core.c.room = 0
    assert bench.dp.send(0, GROUP, 1, b"join") and bench.dp.send(0, GROUP, 1, b"leave")
    bench.turn()
    bench.dp.reset()
    bench.core.c.room = 10
    assert bench.dp.send(0, GROUP, 1, b"new") and bench.dp.unsent() == 1
    bench.until(lambda: bench.core.c.offered)
    assert [d for _, _, d, _ in bench.core.taken()] == [b"new"]


def test_lost_releases_what_is_reached_and_changes_nothing_else(bench: Bench) -> None:
    a = bench.member(11, level=PREACK)
    for position in range(4):
        bench.core.c.position = position
        bench.core.deliver(GROUP, b"%d" % position)
    bench.turn()
    assert bench.dp.lost() == {a.slot: Lost(0, 4, False)}
    bench.core.positions(4, 3, 0)
    assert bench.dp.lost() == {a.slot: Lost(0, 1, False)}
    bench.core.positions(4, 4, 0)
    bench.turn()
    assert messages(a.receive()) == [b"0", b"1", b"2", b"3"] and bench.dp.lost() == {}


def test_what_was_given_at_ordered_and_is_not_at_preack_is_unsafe(bench: Bench) -> None:
    a, b = bench.member(11, level=ORDERED), bench.member(12, level=PREACK)
    bench.core.c.position = 0
    bench.core.deliver(GROUP, b"0")
    bench.core.positions(1, 1, 0)
    bench.turn()
    assert bench.dp.lost() == {}
    bench.core.c.position = 1
    bench.core.deliver(GROUP, b"1")
    bench.core.positions(2, 1, 0)
    bench.turn()
    assert bench.dp.reset() == {a.slot: Lost(0, 0, True), b.slot: Lost(0, 1, False)}
    assert messages(a.receive()) == [b"0", b"1"] and messages(b.receive()) == [b"0"]
    bench.core.positions(0, 0, 0)
    bench.turn()
    assert bench.dp.lost() == {}


# ---- FIFO order


def test_op_is_delivered_on_acceptance_and_counted_at_its_place(bench: Bench) -> None:
    """SENDs on a FIFO handle carry the flag; members get them at once, DONE waits for the place and each level's position."""
    bench.core.c.echo = 1
    a = bench.client(11)
    bench.dp.handle(a.slot, 1, GROUP, may_send=True, ordering=Ordering.FIFO)
    bench.dp.join(a.slot, 1, GROUP, ORDERED, ordering=Ordering.FIFO)
    b = bench.client(12)
    bench.dp.join(b.slot, 9, GROUP, ORDERED, ordering=Ordering.FIFO)
    a.send(frame(SEND, b"fast", handle=1, flags=PREACK | NOTIFY))
    bench.until(lambda: bench.core.c.offered == 1)
    assert bench.core.c.log[0].ordering == Ordering.FIFO
    bench.until(lambda: (b.read(), b.buffer)[1])
    (got,) = b.frames()
    assert (got.type, got.handle, got.flags, got.body[16:]) == (MESSAGE, 9, 0, b"fast")
    frames = a.receive()
    assert [f.type for f in frames] == [MESSAGE] and bench.dp.client_info(a.slot).done == (1, 0, 0)
    assert bench.dp.client_info(b.slot).delivered == 1
    bench.core.positions(1, 1, 0)
    bench.turn()
    assert done(a.receive()) == [(1, 1, 0)]


def test_op_before_its_place_is_not_counted(bench: Bench) -> None:
    a = bench.member(11)
    a.send(frame(SEND, b"x", handle=1, flags=ORDERED | NOTIFY))
    bench.until(lambda: bench.core.c.offered == 1)
    bench.core.deliver(GROUP, b"x", client=11, src=0, stage=Stage.ACCEPTED)
    bench.turn()
    assert bench.dp.client_info(a.slot).done == (0, 0, 0)
    bench.core.deliver(GROUP, b"x", client=11, src=0, stage=Stage.PLACED)
    bench.turn()
    assert done(a.receive()) == [(1, 0, 0)]


def test_members_of_a_group_in_total_order_get_no_op_messages(bench: Bench) -> None:
    """For them it would stand anywhere; and Python never sees one, whatever its type says."""
    a = bench.member(11)
    for stage in (Stage.ACCEPTED, Stage.PLACED):
        bench.core.deliver(GROUP, b"op", stage=stage)
        bench.core.deliver(GROUP, b"not a group message", type=1, stage=stage)
    bench.core.deliver(GROUP, b"total")
    bench.until(lambda: a.read())
    assert messages(a.frames()) == [b"total"]
    with pytest.raises(OSError):
        bench.dp.join(a.slot, 2, 8, PREACK, ordering=Ordering.FIFO)


def test_op_goes_behind_what_the_same_client_waits_for(bench: Bench) -> None:
    """One client, one sequence: a FIFO message overtakes nothing that was put for its receiver before."""
    a = bench.member(11, level=PREACK)
    bench.dp.join(a.slot, 2, 8, ORDERED, ordering=Ordering.FIFO)
    bench.core.c.position = 0
    bench.core.deliver(GROUP, b"embargoed")
    bench.core.deliver(8, b"op", stage=Stage.ACCEPTED)
    bench.turn()
    assert a.receive() == []
    bench.core.positions(1, 1, 0)
    bench.turn()
    assert messages(a.receive()) == [b"embargoed", b"op"]


def test_op_is_unsafe_until_its_place_is_at_preack(bench: Bench) -> None:
    """The last in the order counts, whichever was accepted last."""
    a = bench.client(11)
    bench.dp.join(a.slot, 1, GROUP, ORDERED, ordering=Ordering.FIFO)
    unsafe = {a.slot: Lost(0, 0, True)}
    for clock in (20, 10):
        bench.core.deliver(GROUP, b"op", stage=Stage.ACCEPTED, clock=clock)
    bench.turn()
    assert bench.dp.lost() == unsafe
    bench.core.c.position = 0
    bench.core.deliver(GROUP, b"op", stage=Stage.PLACED, clock=10)
    bench.core.positions(1, 1, 0)
    bench.turn()
    assert bench.dp.lost() == unsafe
    bench.core.c.position = 1
    bench.core.deliver(GROUP, b"op", stage=Stage.PLACED, clock=20)
    bench.core.positions(2, 1, 0)
    bench.turn()
    assert bench.dp.lost() == unsafe
    bench.core.positions(2, 2, 0)
    assert bench.dp.lost() == {}
    bench.core.deliver(GROUP, b"op", stage=Stage.ACCEPTED, clock=30)
    bench.turn()
    assert bench.dp.lost() == unsafe == bench.dp.reset()
    assert bench.dp.lost() == {}


def test_sends_on_a_handle_that_waits(bench: Bench) -> None:
    """They, and what is behind them, wait in the client's input until the handle is bound anew or dropped; others go on."""
    a, b = bench.client(11), bench.member(12)
    bench.dp.handle(a.slot, 1, GROUP, may_send=MaySend.WAIT, ordering=Ordering.FIFO)
    a.send(frame(SEND, b"1", handle=1) + frame(STATUS))
    b.send(frame(SEND, b"other", handle=1))
    bench.until(lambda: bench.core.c.offered == 1)
    assert not takes(bench) and not bench.turn().want
    bench.dp.handle(a.slot, 1, GROUP, may_send=MaySend.YES, ordering=Ordering.FIFO)
    bench.until(lambda: False, want=Want.CLIENT)
    assert [(c, d) for c, _, d, _ in bench.core.taken()] == [(12, b"other"), (11, b"1")] and bench.core.c.log[
        1
    ].ordering == Ordering.FIFO
    assert [t.type for t in takes(bench)] == [STATUS]
    bench.dp.handle(a.slot, 1, GROUP, may_send=MaySend.WAIT)
    a.send(frame(SEND, b"2", handle=1) + frame(SEND, b"3", handle=1))
    bench.turn()
    bench.dp.handle_drop(a.slot, 1)
    bench.until(lambda: (a.read(), len(a.buffer) > 100)[1])
    assert [(e["code"], e["send"]) for e in errors(a.frames())] == [("bad-handle", 2), ("bad-handle", 3)]


@pytest.mark.parametrize("gone", [False, True])
def test_a_join_makes_a_message_in_pieces_start_anew(bench: Bench, gone: bool) -> None:
    """The core forgets the part it has taken: the data path still has all of it, also if the client has gone meanwhile, and
    although its handle has been given up."""
    a = bench.member(11)
    body = os.urandom(20_000)
    bench.core.c.piece, bench.core.c.room = 1000, 3
    a.send(frame(SEND, body, handle=1))
    bench.turn()
    bench.dp.handle_drop(a.slot, 1)
    if gone:
        bench.dp.client_remove(a.slot, hard=True)
    bench.core.c.anew, bench.core.c.room = 1, 4
    bench.turn()
    bench.turn()
    assert bench.core.c.offered == 0
    bench.core.c.room = 100
    bench.until(lambda: bench.core.c.offered == 1)
    assert [(c, g, d) for c, g, d, _ in bench.core.taken()] == [(11, GROUP, body)]
    assert bench.core.c.anew == 0
