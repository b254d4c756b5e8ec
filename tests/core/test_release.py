"""What a station releases, and says to have released when its instance ends: all members of the view it names must hold it.
Rules 4 and 5 of docs/membership.md; each with the fault of the core that breaks it."""

from __future__ import annotations

import pytest
from zenjun.proto.core import Fault, Stage
from zenjun.proto.wire import Kind, Ordering, view_hash

from ..rules import rule
from ..virtual.pdus import peek
from .membership_rig import Change, Filter, Own, Rig


def vote_apart(rig: Rig, kind: Kind, members: tuple[int, ...], changes: list[tuple[int, int]]) -> tuple[dict[int, Own], Filter]:
    """Stations 0, 1 and 2 vote; station 2's clock is ahead, and 0 sends "late" between its own vote and the last one. All get
    all, but station 2 lacks that PDU as long as the filter is used."""
    for number in range(4):
        rig.offer(2, b"high%d" % number)
        rig.cores[2].step(rig.now, True)
    votes = rig.cast((0,), kind, members, changes)
    rig.offer(0, b"late")
    late = [pdu for pdu in rig.step(0) if peek(pdu, "kind") in (Kind.DATA, kind)]
    votes |= rig.cast((1,), kind, members, changes) | rig.cast((2,), kind, members, changes)
    for to in (1, 2):
        for pdu in late:
            if to == 1 or peek(pdu, "kind") == kind:
                rig.give(0, to, pdu)
    data = next(pdu for pdu in late if peek(pdu, "kind") == Kind.DATA)
    assert peek(data, "clock") < votes[2].clock
    return votes, lambda source, to, pdu: to != 2 or pdu != data


def agree(rig: Rig, votes: dict[int, Own], passes: Filter) -> None:
    for _ in range(20):
        if rig.decided(votes):
            return
        rig.turn(passes)
    raise AssertionError("not decided")


def removal(faults: int = 0) -> tuple[Rig, Change, Filter]:
    """Station 3 is removed and lacks "m", which the others have; station 2 lacks "late" as long as the filter is used: it stands
    before the view event."""
    rig = Rig(4, (0, 1, 2, 3), {"faults": faults})
    rig.alive.discard(3)
    rig.offer(0, b"m")
    for _ in range(3):
        rig.turn()
    assert rig.cores[3].peer(0).req == 0
    for k in (0, 1, 2):
        rig.cores[k].limit(rig.now, 3, 0)
    votes, passes = vote_apart(rig, Kind.STOP, (0, 1, 2), [(3, 0)])
    agree(rig, votes, passes)
    change = Change(2, (10, 11, 12, 0), (), votes)
    rig.carry_out(change)
    return rig, change, passes


FIRST = view_hash(1, (10, 11, 12, 13))


@rule("M4")
@pytest.mark.parametrize("fault", [0, Fault.EARLY_REMOVAL])
def test_what_a_removed_station_lacks_is_released_with_the_view_event_at_the_earliest(fault: int) -> None:
    """Else the station says at its end that every member of the former view holds it, and who was removed, and comes back,
    flushes to a place before which it has a hole (seeds 5005014, 5006189)."""
    rig, _, passes = removal(fault)
    for _ in range(6):
        rig.turn(passes)
    for k in (0, 1):
        assert b"m" in rig.shown(k) and rig.shown(k)[-1] == 2, "the event is out, but one lacks what stands before it"
        assert rig.cores[k].peer(0).min_al > 0, "all who are in the new view have m"
        kept = rig.levels(k)[1:] == (0, 0) and rig.cores[k].reached() == (FIRST, 0)
        assert kept == (not fault)


@pytest.mark.parametrize("fault", [0, Fault.LATE_LEVELS])
def test_the_end_of_an_instance_is_the_last_word(fault: int) -> None:
    """What was not released then, though acknowledgements for it are there, is not claimed afterwards; only a flush goes on."""
    rig, _, passes = removal(fault)
    for _ in range(6):
        rig.turn(passes)
    closed = rig.cores[1]
    closed.close()
    kept = closed.reached() == (FIRST, 0) and closed.positions()[1:] == (0, 0)
    assert kept == (not fault)
    if not fault:
        closed.flush(FIRST, 0)
        assert closed.deliver() == [] and closed.positions()[1:] == (0, 0) and closed.flushed


@rule("M4")
def test_it_is_released_all_at_once_when_everybody_has_it() -> None:
    rig, change, passes = removal()
    for _ in range(3):
        rig.turn(passes)
    assert rig.cores[0].unstable, "its own message has not been released, whoever holds it"
    seen = set()
    for _ in range(10):
        rig.turn()
        seen.add((rig.levels(0)[1], rig.cores[0].reached()[0]))
    assert {view for position, view in seen if position} == {change.view}
    rig.settle()
    assert not rig.cores[0].unstable
    assert len({rig.levels(k)[:2] for k in (0, 1, 2)}) == 1 and len(set(rig.levels(0)[:2])) == 1
    rig.no_fence()


@rule("M5")
@pytest.mark.parametrize("fault", [0, Fault.EAGER_JOINER])
def test_a_joiner_releases_nothing_until_all_members_hold_what_stands_before_its_view(fault: int) -> None:
    """It says by that that they do, and others flush up to there."""
    rig = Rig(4, (0, 1, 2), {"faults": fault})
    votes, passes = vote_apart(rig, Kind.RCV_ACK, (0, 1, 2, 3), [(3, 50)])
    for k in (0, 1, 2):
        rig.cores[k].wait_for(3, votes[k].clock - 1)
    agree(rig, votes, passes)
    change = Change(2, (10, 11, 12, 50), (3,), votes)
    rig.carry_out(change)
    rig.offer(1, b"next")
    for _ in range(10):
        rig.turn(passes)
    assert rig.shown(0)[-2:] == [2, b"next"] and rig.shown(2) == [b"high0"], "station 2 lacks what comes next"
    assert rig.shown(3) == [2, b"next"]
    kept = rig.cores[3].reached() == (0, 0) and rig.levels(3)[1:] == (0, 0)
    assert kept == (not fault)
    rig.settle()
    assert rig.cores[3].reached()[0] == change.view and rig.levels(3)[1] == rig.levels(3)[0]
    assert rig.shown(2) == rig.shown(1) == rig.shown(0)
    rig.no_fence()


@rule("M5")
@pytest.mark.parametrize("fault", [0, Fault.EAGER_JOINER])
def test_a_joiner_releases_nothing_until_all_members_know_its_view(fault: int) -> None:
    """The earliest complete proposal is carried out as soon as a later one is decided: a voter may lack the others' votes then.
    It knows nothing of that view, and would flush to a place of the one before, the others to one of the joiner's."""
    rig = Rig(4, (0, 1, 2), {"faults": fault})
    rig.settle()
    change = rig.let_in({3: 50})
    for k in (0, 1):
        assert rig.commit(k, change)
    rig.enter(3, change)
    for _ in range(5):
        rig.turn(lambda source, to, pdu: to != 2)
    assert rig.shown(3) == [2] and (rig.cores[3].reached() == (0, 0)) == (not fault)
    assert rig.commit(2, change)
    rig.settle()
    assert rig.shown(3) == [2] and rig.cores[3].reached() == (change.view, 0)


@rule("M4a")
def test_what_may_be_confirmed_in_an_instance_that_is_carried_out_late_is_delivered() -> None:
    """Rule 4a, in FIFO order: station 0 has accepted a message of the next instance, and said so, but its own has ended
    before it got there. It holds all votes, and carries the change out for the flush: then it is there."""
    rig = Rig(3, (0, 1, 2))
    rig.settle()
    rig.alive.discard(2)
    change = rig.stop([2])
    assert rig.commit(1, change)
    rig.offer(1, b"op", ordering=Ordering.FIFO)
    for pdu in rig.step(1):
        rig.give(1, 0, pdu)
    rig.take(0)
    rig.cores[0].close()
    assert not [m for m in rig.got[0] if m.stage != Stage.DELIVERED]
    assert rig.commit(0, change)
    rig.cores[0].flush(change.view, 0)
    assert [m.data for m in rig.take(0) if m.stage == Stage.ACCEPTED] == [b"op"]
