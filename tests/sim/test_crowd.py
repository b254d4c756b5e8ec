"""Many stations that all start at once on two processors, which are too slow for what they have to say to each other.

Figures in the comments are those of the rules before ``proto/pace.py`` on the same schedule.
"""

from __future__ import annotations

import time

import pytest
from zenjun.proto.pace import SMALL, Arrivals, Pace

from .crowd import MS, US, Costs, Crowd, S

SLOW = Costs(start_ns=1200 * MS, turn_ns=600 * US, open_ns=600 * US, frame_ns=20 * US, send_ns=60 * US, copy_ns=10 * US)
"""A machine that seven others share."""


@pytest.mark.parametrize(
    ("n", "within_s", "opens"),
    [
        (16, 8, 10),  # 1 instance, 172 OPENs
        (32, 14, 10),  # number 12, 714 OPENs
        (64, 30, 10),  # none after 28 s, 2,497 OPENs
    ],
)
def test_all_are_in_one_instance_soon_after_the_last_has_started(n: int, within_s: int, opens: int) -> None:
    crowd = Crowd(n)
    began = time.process_time()
    assert crowd.run(within_s * S, crowd.together), crowd.views()
    assert len(crowd.instances) <= 3
    assert crowd.opens <= opens * n
    assert not crowd.closed
    crowd.run(crowd.now + 2 * S)
    assert crowd.together(), "and they stay together"
    assert time.process_time() - began < 60


@pytest.mark.parametrize("n", [16, 32, 64])
def test_a_machine_that_is_slower_still(n: int) -> None:
    crowd = Crowd(n, costs=SLOW)
    assert crowd.run(60 * S, crowd.together), crowd.views()
    assert len(crowd.instances) <= 3
    assert not crowd.closed


def test_who_comes_late_is_let_in_together_with_others() -> None:
    """Half the stations start when the rest are open: a vote for each would be a view for each."""
    crowd = Crowd(24, start_at=dict.fromkeys(range(15, 25), 30 * S))
    assert crowd.run(29 * S, lambda: crowd.views()[1, 14] == 14), crowd.views()
    assert crowd.run(60 * S, crowd.together), crowd.views()
    assert len(crowd.instances) <= 5
    assert not crowd.closed


def test_the_others_open_without_a_lowest_station_that_hears_nothing() -> None:
    crowd = Crowd(12, deaf={1})
    others = range(2, 13)

    def opened() -> bool:
        return len({crowd.view(k) for k in others}) == 1 and len(crowd.view(2)[1]) == 11

    assert crowd.run(40 * S, opened), crowd.views()


# ---- the rules one by one, and each of them broken


def flaws(crowd: Crowd, within_s: int) -> set[str]:
    """What is wrong with an opening of stations that are switched on at a time."""
    found = set() if crowd.run(within_s * S, crowd.together) else {"late"}
    return (
        found
        | ({"steps"} if crowd.instances != {1} else set())  # not all of them at the first attempt
        | ({"words"} if crowd.opens > 10 * crowd.n else set())
        | ({"ended"} if crowd.closed else set())
    )


@pytest.mark.parametrize(
    ("broken", "n", "seen"),
    [
        ("", 32, set()),
        ("", 48, set()),
        ("often", 32, {"words"}),
        ("forgetful", 48, {"words"}),
        ("careless", 32, {"steps"}),
        ("everyone", 32, {"steps"}),
    ],
)
def test_all_in_one_step_and_in_few_words(broken: str, n: int, seen: set[str]) -> None:
    """Intervals, presence, arrivals, who proposes."""
    found = flaws(Crowd(n, broken=broken), 20)
    assert seen <= found and bool(seen) == bool(found), found


@pytest.mark.parametrize("broken", ["", "impatient"])
def test_a_proposal_stays_while_answers_come_whoever_comes_as_well(broken: str) -> None:
    """One station a second, for longer than arrivals are waited for."""
    crowd = Crowd(24, fork_ns=S, broken=broken)
    assert crowd.run(40 * S, crowd.together), crowd.views()
    assert (1 in crowd.instances) == (not broken), "the first proposal has been overtaken by the next"


@pytest.mark.parametrize("broken", ["", "graceless"])
def test_who_is_slow_to_start_is_not_removed_at_once(broken: str) -> None:
    """Three fail time-outs are less than one and the grace of 32 stations."""
    crowd = Crowd(32, broken=broken)
    assert crowd.run(20 * S, lambda: bool(crowd.instances))
    for station in range(20, 33):
        crowd.stall(station, 1200 * MS)
    crowd.run(crowd.now + 3 * S)
    assert (crowd.instances == {1} and crowd.together()) == (not broken), (crowd.instances, crowd.views())


def test_small_clusters_are_as_they_were() -> None:
    for n in range(1, SMALL + 1):
        pace = Pace.of(n, 100 * MS, 400 * MS, 100 * MS)
        assert pace == Pace(False, 100 * MS, 400 * MS, 100 * MS, 0)
    crowd = Crowd(5)
    assert crowd.run(3 * S, crowd.together)
    assert crowd.now < 1800 * MS  # 1755 ms


def test_arrivals_are_waited_for_in_proportion_and_not_for_ever() -> None:
    pace = Pace.of(64, 100 * MS, 400 * MS, 100 * MS)
    arrivals = Arrivals()
    for k, at in enumerate((0, 10, 25, 500), 1):
        arrivals.note(at * MS, k)
    arrivals.note(900 * MS, 2)  # again: nothing new
    assert arrivals.calm_ns(pace, 0) == (500 + 4 * 475) * MS
    arrivals.note(10_000 * MS, 5)
    assert arrivals.calm_ns(pace, 8_000 * MS) == 10_000 * MS + pace.window_ns, "a long gap counts as one window"
    for k in range(6, 65):
        arrivals.note((10_000 + 1_000 * k) * MS, k)
    assert arrivals.calm_ns(pace, 8_000 * MS) == 8_000 * MS + 8 * pace.window_ns
