"""Links with a rate and queues, in virtual time: two carry twice what one does, a full queue is no failed link, and what a dead
link costs, to the tenth of a millisecond. The rules of before are caught.

``python -m tests.model.queues 20 200`` prints more figures.
"""

from __future__ import annotations

import pytest

from ...rules import rule
from .runs import MS, Rules, Run, Violation

FAST = 200.0
FIXED_WAIT = Rules(fixed_wait=True)
COUNT_ONLY = Rules(count_only=True)
OWN_PROGRESS = Rules(own_progress=True)


@rule("J10")
def test_two_links_carry_twice_what_one_does() -> None:
    """The queues of two links are never equally long: what is late is not lost, and is not asked for."""
    one, two, before = (
        Run(1, links, (50.0,) * links, rules=rules) for links, rules in ((1, Rules()), (2, Rules()), (2, FIXED_WAIT))
    )
    for run in (one, two, before):
        run.run(150.0)
    assert two.delivered > 1.9 * one.delivered and not two.again and not two.doubts, two.summary()
    assert before.delivered < 0.95 * two.delivered and before.again > 0.02, before.summary()


@rule("J9")
def test_a_full_queue_is_no_failed_link() -> None:
    """One that holds 3 ms, a third of what may be in flight, drops many frames in a row."""
    now, before = (Run(1, 2, (FAST, FAST), room_ms=3.0, rules=rules) for rules in (Rules(), COUNT_ONLY))
    for run in (now, before):
        run.run(100.0)
    assert not now.doubts and now.again > 0.1, now.summary()
    assert len(before.doubts) == 3 and before.delivered < 0.9 * now.delivered, before.summary()


def cut(run: Run, *, before_ms: float = 100.0, after_ms: float = 150.0) -> float:
    """All frames of the first link are lost from a moment on; the longest time without a delivery from then on, ms."""
    run.run(before_ms)
    for station in run.stations:
        station.gap_ns, station.last = 0, run.now
    run.dead.add(0)
    run.run(after_ms)
    return max(station.gap_ns for station in run.stations) / MS


@rule("J9", "J10")
def test_a_link_that_dies_flat_out_costs_round_trips() -> None:
    run = Run(3, 2, (FAST, FAST))
    cut_at = run.now + 100 * MS
    assert cut(run) < 50
    assert {links for _, links in run.doubts} == {1} and len(run.doubts) == 3, "all stations doubt it, and no other"
    assert max(at for at, _ in run.doubts) - cut_at < 60 * MS


@rule("J5")
def test_a_link_that_dies_at_a_light_load_costs_nothing() -> None:
    """1,000 messages a second: every frame has gone over both."""
    assert cut(Run(4, 2, (FAST, FAST), each_s=333.0)) < 5


def beside_a_slow_one(variant: str | None, links: int = 2) -> Run:
    """Duplicated frames; the queue of the first link of two, of 1 Mbit/s, is always full."""
    run = Run(6, links, (1.0, 1000.0)[-links:], variant=variant, duplicate=True, own_ms=0.1)
    run.run(30.0)
    return run


@rule("J3")
def test_a_full_queue_holds_up_no_other_link() -> None:
    alone, beside, broken = (beside_a_slow_one(*how) for how in (("", 1), ("",), ("shared_backoff",)))
    assert beside.delivered > 0.9 * alone.delivered, f"{beside.summary()}; alone: {alone.summary()}"
    assert broken.delivered < 0.5 * alone.delivered, f"{broken.summary()}; alone: {alone.summary()}"


@rule("J4")
def test_what_is_no_own_data_takes_all_links() -> None:
    """Confirmations, requests and what is sent again; otherwise a link that dies takes every other vote with it."""
    run = Run(7, 2, (FAST, FAST), loss=(0.01, 0.01), variant="")
    run.run(60.0)
    assert run.delivered > 100 and run.again > 0, run.summary()
    with pytest.raises(Violation, match=r"on links (1|10) only"):
        Run(7, 2, (FAST, FAST), loss=(0.01, 0.01), variant="stripe_votes").run(60.0)


@rule("C4")
def test_whose_frames_nobody_receives_asks_before_its_window_is_full() -> None:
    """Mode passive: what data takes is dead, the other link carries requests and answers. The window is full after 0.3 s."""
    assert cut(Run(5, 2, (FAST, FAST), passive=True, each_s=333.0)) < 60
    assert cut(Run(5, 2, (FAST, FAST), passive=True, each_s=333.0, rules=OWN_PROGRESS), after_ms=400.0) > 150
