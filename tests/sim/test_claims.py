"""What is judged of an instance's end, on hand-made histories: the checkers ``claims`` and ``continuity``, and ``views`` in a
late commit; ``test_checkers.py`` has the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from zenjun.proto.wire import Kind

from .checkers import Views
from .checkers_membership import Claims, Continuity, GoingOn
from .facts import Instance
from .test_checkers import FIRST, History, ballot, fails, goes_on, removal


def holds(h: History, station: int, *reqs: int) -> None:
    """The station's core expects these numbers next, counted from the first."""
    h.cores[station].peers = [replace(p, req=FIRST + req) for p, req in zip(h.cores[station].peers, reqs, strict=True)]


def ends(h: History, station: int, inst: Instance, count: int) -> None:
    h.cores[station].said = (inst.hash, count)
    h.checker.closed(h.stays[station])


@pytest.mark.parametrize("count", [1, 2])
def test_all_members_hold_what_is_claimed(count: int) -> None:
    h = History(Claims)
    h.send(0, b"a", 1, FIRST)
    h.send(0, b"b", 2, FIRST + 1)
    holds(h, 0, 2, 0)
    holds(h, 1, 1, 0)
    if count == 1:
        ends(h, 0, h.instance, 1)
    else:
        with fails("claims"):
            ends(h, 0, h.instance, 2)


@pytest.mark.parametrize("ended", [False, True])
def test_a_member_that_is_not_in_the_next_view_counts_for_its_own(ended: bool) -> None:
    """It lacks what stands before the event of the next view: that may be claimed as of that one, not of its own."""
    h, inst = removal(Claims)
    for s in range(2):
        holds(h, s, 1, 1, 0)
    if ended:
        h.checker.closed(h.stays[2])
        h.facts.stays[2] = None
    ends(h, 0, inst, 0)
    with fails("claims"):
        ends(h, 1, h.instance, 1)


def test_who_is_let_in_need_not_hold_what_stands_before() -> None:
    h, inst = removal(Claims)
    for s in range(2):
        vote = h.frame(s, Kind.RCV_ACK, FIRST + 1, (2 << 32) + s + 1, ballot((0, 1, 2), (2, 2)), instance=2)
        h.facts.note_frame(vote)
    h.stays[0].instance = inst
    let_in = h.change(0, (1, 1, 2))
    h.stays[2].life, h.stays[2].first, h.stays[2].instance = 2, let_in, let_in
    h.cores[2].peers = [replace(p, incarnation=life) for p, life in zip(h.cores[2].peers, (1, 1, 2), strict=True)]
    holds(h, 0, 2, 2, 0)
    holds(h, 2, 2, 2, 0)
    with fails("claims"):  # station 2 has not the first one's vote, which stands before the event
        ends(h, 2, let_in, 0)
    holds(h, 1, 2, 2, 0)
    ends(h, 2, let_in, 0)


def test_who_crashed_or_said_nothing_is_not_judged() -> None:
    h = History(Claims)
    h.send(0, b"a", 1, FIRST)
    holds(h, 0, 1, 0)
    h.checker.closed(h.stays[0])
    h.stays[0].crashed = True
    ends(h, 0, h.instance, 1)
    h.checker.crashed(1)
    h.stays[0].crashed, h.facts.stays[1] = False, None
    ends(h, 0, h.instance, 1)


@pytest.mark.parametrize(("ended", "votes", "right"), [(True, 2, True), (True, 1, False), (False, 2, False)])
def test_what_was_sent_in_an_instance_that_is_carried_out_late(ended: bool, votes: int, right: bool) -> None:
    """Station 2 ends instance 1 with all votes for the next one, and flushes to a place there (seed 5020663)."""
    h, _ = removal(Views)
    op = h.send(0, b"a", 1, FIRST + 1, instance=2, op=True)
    h.stays[1].ended = ended
    holds(h, 1, votes - 1, 1, 0)
    if right:
        h.hand(1, op, b"a")
    else:
        with fails("views"):
            h.hand(1, op, b"a")


@pytest.mark.parametrize("released", [False, True])
def test_who_was_let_in_and_has_released_nothing_is_not_compared_with_those_who_go_on(released: bool) -> None:
    """It claims nothing (rule 5); as soon as it has released a PDU it does."""
    h = History(GoingOn)
    a = h.send(0, b"a", 1, FIRST)
    h.stays[1].joined = True
    for s in range(2):
        h.deliver(s, a)
    h.release(0, 1, 1, 1)
    goes_on(h, 0)
    if not released:
        goes_on(h, 1)
        return
    h.release(1, 1, 1, 0)
    with fails("going_on"):
        goes_on(h, 1)


@pytest.mark.parametrize("lately", [False, True])
def test_an_instance_that_could_go_on_is_given_up(lately: bool) -> None:
    """Stations 1 and 2 are a quorum and in touch all the while; 3 was cut off long ago, or comes and goes until the end
    (seed 1795958678)."""
    h = History(Continuity, 3)
    assert isinstance(h.checker, Continuity)
    h.checker.patience_ns, h.checker.notice_ns = 100, 50
    h.facts.needed = 2
    h.facts.now_ns = 1000
    for k in range(2):
        for link in ((k, 2), (2, k)):
            h.facts.linked_since[link] = 2000
            h.facts.hurt_ns[link] = 960 if lately else 200
    if lately:
        h.checker.closed(h.stays[0])
        h.facts.now_ns = 1010
    with fails("continuity"):
        h.checker.closed(h.stays[0])


@pytest.mark.parametrize(("asked_ns", "excused"), [((301, 700), True), ((300, 700), False), ((700,), False)])
def test_operators_who_contradict_each_other_are_an_excuse_for_as_long_as_a_station_waits(
    asked_ns: tuple[int, ...], excused: bool
) -> None:
    """It gives up at 1000, 600 after there was no agreement; what stands in its way came within 100 before."""
    h = History(Continuity, 3)
    assert isinstance(h.checker, Continuity)
    h.checker.patience_ns, h.checker.give_up_ns = 100, 600
    h.facts.now_ns = 1000
    h.facts.expels += asked_ns
    if excused:
        h.checker.closed(h.stays[0])
        return
    with fails("continuity"):
        h.checker.closed(h.stays[0])
