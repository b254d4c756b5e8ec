"""The checker ``recovery`` on hand-made histories: who lets whom in, and who is held to be stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from zenjun.proto import wire
from zenjun.proto.wire import Kind

from . import frames
from .checkers_membership import RESTART_NS, Recovery
from .test_checkers import BASE, FIRST, History, ballot, fails


@pytest.mark.parametrize("stopped", [0, 1, 2], ids=["no stop", "stop before the change", "stop after it"])
@pytest.mark.parametrize("asked", [False, True])
def test_who_has_voted_for_a_stop_wants_to_be_asked_again(stopped: int, asked: bool) -> None:
    """Station 1 has voted in instance 1 to let station 4 in, station 2 does so in instance 2, which another join led to."""
    h = History(Recovery, 4)
    everybody = (0, 1, 2, 3)
    for s in (0, 1):
        h.checker.opened(h.stays[s])
    h.vote(0, 1, FIRST, everybody, (3, 2), stop=False)
    stop = h.frame(1, Kind.STOP, FIRST, BASE + 2, ballot((0, 1), (2, FIRST)))
    if stopped == 1:
        h.checker.sent(1, stop, True, 10)
    h.change(1, (1, 1, 1, 1))
    if stopped == 2:
        h.checker.sent(1, replace(stop, instance=2), True, 10)
    if asked:
        h.checker.asked(1, 3, 2, True, 20)
    vote = h.frame(1, Kind.RCV_ACK, FIRST + 1, BASE + 3, ballot(everybody, (3, 2)), instance=2)
    if stopped and not asked:
        with fails("recovery"):
            h.checker.sent(1, vote, True, 30)
    else:
        h.checker.sent(1, vote, True, 30)


@pytest.mark.parametrize("superseded", [False, True])
def test_who_has_read_that_a_station_has_restarted_says_so(superseded: bool) -> None:
    """Station 1 reads the RCV of a second life of station 2. If a third one has begun meanwhile, which only listens yet, its word
    has taken the place of the RCV where both came in one batch."""
    h = History(Recovery)
    h.checker.asked(0, 1, 2, True, 10)
    if superseded:
        h.checker.asked(0, 1, 3, False, 11)
    confirm = h.frame(0, Kind.CONFIRM, FIRST, BASE + 1, wire.CONFIRM.struct.pack(0, 0, 0, 0, 1, h.instance.hash))
    h.checker.sent(0, confirm, False, 10 + RESTART_NS)
    if superseded:
        h.checker.sent(0, confirm, False, 11 + RESTART_NS)
    else:
        with fails("recovery"):
            h.checker.sent(0, confirm, False, 11 + RESTART_NS)


@pytest.mark.parametrize("at_once", [False, True])
def test_an_old_copy_may_hide_an_rcv_that_came_with_it(at_once: bool) -> None:
    """Of what a station says in one batch the last word counts, be it an OPEN that was sent before the RCV (seed 1795958817)."""
    h = History(Recovery)
    h.checker.asked(0, 1, 2, True, 10)
    h.checker.asked(0, 1, 2, False, 10 if at_once else 11)
    confirm = h.frame(0, Kind.CONFIRM, FIRST, BASE + 1, wire.CONFIRM.struct.pack(0, 0, 0, 0, 1, h.instance.hash))
    if at_once:
        h.checker.sent(0, confirm, False, 12 + RESTART_NS)
    else:
        with fails("recovery"):
            h.checker.sent(0, confirm, False, 12 + RESTART_NS)


def test_what_the_core_drops_unread_asks_for_nothing() -> None:
    """Frames that nobody sent, with right checksums: of another cluster, or of another number of stations (seed 9500382)."""
    rcv = wire.HEADER.struct.pack(*(0 for _ in wire.HEADER.fields))
    for name, value in (("cluster", wire.cluster_id("sim")), ("version", wire.VERSION), ("stations", 3)):
        rcv = frames.patch(rcv, name, value)
    assert frames.is_of(rcv, "sim", 3)
    assert not frames.is_of(rcv, "sin", 3) and not frames.is_of(rcv, "sim", 4) and not frames.is_of(rcv[:-1], "sim", 3)
    assert not frames.is_of(frames.patch(rcv, "version", wire.VERSION + 1), "sim", 3)
