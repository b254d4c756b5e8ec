"""What sch_netem does to frames is what was set, by captures at both ends and by the queue's own counters."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from zenjun.tools.lab import Lab, distributions
from zenjun.tools.lab.impair import burst_loss

from . import bounds
from .measure import Flow, flow

MS = 1_000_000
HEIGHTS = (0.02, 0.1, 0.25, 0.5, 0.75, 0.95)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]


@pytest.mark.parametrize("loss", [0.01, 0.05, 0.2])
def test_loss_by_counters_and_captures(lab: Lab, tmp_path: Path, loss: float) -> None:
    """The queue says it dropped exactly what is missing at the receiver, and that is what chance makes of the share set: once
    in a million tests it would be more or less than allowed. Each receiver has its own luck."""
    count = 2500
    lab.impair([2, 3], loss=loss)
    flows = flow(lab, tmp_path, count, (2, 3))
    for station, seen in flows.items():
        missing = sum(seen.missing)
        assert seen.lost == missing == count - len(seen.got)
        assert seen.overflowed == 0
        bounds.check_hits(f"lost by the queue of station {station}", seen.lost, count, loss)
        bounds.check_hits(f"missing at station {station}", missing, count, loss)
        assert seen.numbers == sorted(seen.numbers)
        with pytest.raises(AssertionError, match="which is not between"):  # the check can fail
            bounds.check_hits("another share than was set", missing, count, 2 * loss + 0.04)
    both = sum(a and b for a, b in zip(flows[2].missing, flows[3].missing, strict=True))
    bounds.check_hits("missing at both", both, count, loss**2)


def test_burst_loss_has_the_models_mean_and_length(lab: Lab, tmp_path: Path) -> None:
    p, r, count, bursts = 0.1, 0.25, 4000, 200
    lab.impair([2], burst=(p, r))
    seen = flow(lab, tmp_path, count)[2]
    assert seen.lost == sum(seen.missing) == count - len(seen.got)
    length, loss = bounds.check_bursts(seen.missing, p, r, bursts)
    assert length == pytest.approx(1 / r, rel=0.4)
    assert loss == pytest.approx(burst_loss((p, r, 1, 0)), rel=0.5)
    for other in ((p, 2 * r), (2 * p, r)):  # the check can fail
        with pytest.raises(AssertionError, match="on average, not of"):
            bounds.check_bursts(seen.missing, *other, bursts)
    # As many losses, each by itself, come in bursts of 1.4 frames.
    lab.impair([2], burst=(), loss=burst_loss((p, r, 1, 0)))
    with pytest.raises(AssertionError, match="on average, not of"):
        bounds.check_bursts(flow(lab, tmp_path, count // 4)[2].missing, p, r, bursts // 4)


def test_burst_with_all_four_shares_and_loss_on_top(lab: Lab, tmp_path: Path) -> None:
    """A state that never changes back is a plain share, so each of the four can be told from the others."""
    count = 1000
    lab.impair([2], burst=(0.0, 0.5, 1.0, 0.1), loss=0.2)  # always good: 1-k, and of what is left the loss
    bounds.check_hits("lost in the good state", flow(lab, tmp_path, count)[2].lost, count, 1 - 0.9 * 0.8)
    lab.impair([2], burst=(1.0, 1e-9, 0.6, 0.0), loss=0.0)  # bad from the second frame on: 1-h
    bounds.check_hits("lost in the bad state", flow(lab, tmp_path, count)[2].lost, count, 0.6)


def test_delay_and_jitter(lab: Lab, tmp_path: Path) -> None:
    """25 ms ± 10 ms: nothing comes before 15 ms, half of all by 25 ms and a quarter by 20 ms as far as chance and the machine's
    own delay let it; and frames overtake each other."""
    count = 600
    lab.impair([2], delay_ns=25 * MS)
    assert min(t for times in flow(lab, tmp_path, 200)[2].transit_ns.values() for t in times) >= 25 * MS
    lab.impair([2], jitter_ns=10 * MS)
    seen = flow(lab, tmp_path, count)[2]
    assert len(seen.got) == count and seen.lost == 0
    times = [t for each in seen.transit_ns.values() for t in each]
    assert min(times) >= 15 * MS
    for limit, share in ((20 * MS, 0.25), (25 * MS, 0.5)):
        _, most = bounds.hits(count, share)
        assert sum(t <= limit for t in times) <= most
    assert overtaken(seen) > count // 4


def overtaken(seen: Flow) -> int:
    """How many frames came after one that was sent later."""
    latest = itertools.accumulate(seen.numbers, max)
    return sum(number < before for number, before in zip(seen.numbers, latest, strict=True))


@pytest.mark.parametrize("name", ["uniform", "normal", "pareto", "paretonormal"])
def test_distribution_of_the_jitter(lab: Lab, tmp_path: Path, name: str) -> None:
    """The kernel's delays follow the table: at some heights of the distribution the share of earlier frames is in its bounds.

    A frame may come later than its delay, by what the machine needs, but never earlier: a fifth of the jitter is allowed.
    """
    count, delay, jitter = 1000, 400 * MS, 100 * MS
    lab.impair([2], delay_ns=delay, jitter_ns=jitter, jitter_distribution=name)
    for tries in range(4):
        times = [t for each in flow(lab, tmp_path, count)[2].transit_ns.values() for t in each]
        assert len(times) == count
        try:
            check_distribution(times, name, delay, jitter)
            break
        except TooLate:  # the machine stood still meanwhile? Delays of another distribution are too late every time.
            if tries == 3:
                raise
    for other in {"uniform", "normal", "pareto", "paretonormal"} - {name}:
        with pytest.raises(AssertionError, match="earlier than"):  # the check can fail
            check_distribution(times, other, delay, jitter)


class TooLate(AssertionError):
    """Fewer frames came early than the distribution says: that can also be the machine's doing; the opposite can not."""


def check_distribution(times: list[int], name: str, delay: int, jitter: int) -> None:
    late = jitter // 5
    table = distributions.table(name) or tuple(range(-distributions.SCALE, distributions.SCALE, 4))
    ordered = sorted(table)
    for height in HEIGHTS:
        limit = delay + jitter * ordered[int(height * len(ordered))] / distributions.SCALE
        least, most = bounds.hits(len(times), int(height * len(ordered)) / len(ordered))
        early = sum(t < limit for t in times)
        assert early <= most, f"{early} of {len(times)} frames earlier than {limit / MS:.1f} ms, at most {most} for {name}"
        early = sum(t < limit + late for t in times)
        if early < least:
            raise TooLate(f"{early} of {len(times)} frames earlier than {(limit + late) / MS:.1f} ms, {least} for {name}")


def test_reorder_sends_a_share_at_once(lab: Lab, tmp_path: Path) -> None:
    count, delay = 1000, 500 * MS
    lab.impair([2], delay_ns=delay, reorder=0.25)
    seen = flow(lab, tmp_path, count)[2]
    times = {number: each[0] for number, each in seen.transit_ns.items()}
    early = sum(t < delay for t in times.values())
    bounds.check_hits("sent at once", early, count, 0.25)
    assert overtaken(seen) > count // 2
    with pytest.raises(AssertionError, match="not between"):  # the check can fail
        bounds.check_hits("sent at once", early, count, 0.45)
    # With a gap, every fifth frame exactly.
    lab.impair([2], reorder=1.0, reorder_gap=5)
    seen = flow(lab, tmp_path, 250)[2]
    early_ones = [number for number, each in seen.transit_ns.items() if each[0] < delay]
    assert len(early_ones) == 50
    assert len({number % 5 for number in early_ones}) == 1
    # Throws that follow the one before come out alike: far fewer changes between early and late.
    lab.impair([2], reorder=0.5, reorder_gap=0, reorder_correlation=0.0)
    loose = changes(flow(lab, tmp_path, 300)[2], delay)
    lab.impair([2], reorder_correlation=0.95)
    assert changes(flow(lab, tmp_path, 300)[2], delay) < loose / 2


def changes(seen: Flow, delay: int) -> int:
    times = seen.transit_ns
    early = [times[number][0] < delay for number in sorted(times)]
    return sum(a != b for a, b in itertools.pairwise(early))


def test_duplicates(lab: Lab, tmp_path: Path) -> None:
    count = 1500
    lab.impair([2], duplicate=0.1)
    seen = flow(lab, tmp_path, count)[2]
    numbers = seen.numbers
    assert set(numbers) == set(range(count))
    doubled = len(numbers) - count
    assert max(numbers.count(n) for n in set(numbers[:50])) <= 2
    bounds.check_hits("doubled", doubled, count, 0.1)
    with pytest.raises(AssertionError, match="not between"):  # the check can fail
        bounds.check_hits("doubled", doubled, count, 0.25)
    lab.impair([2], duplicate=1.0)
    assert sorted(flow(lab, tmp_path, 200)[2].numbers) == sorted([*range(200), *range(200)])


def test_corruption_is_one_bit(lab: Lab, tmp_path: Path) -> None:
    count = 1500
    lab.impair([2], corrupt=0.05)
    seen = flow(lab, tmp_path, count)[2]
    assert len(seen.got) == count
    wrong = [
        (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).bit_count()
        for (a, _), (b, _) in zip(seen.sent, seen.got, strict=True)
    ]
    assert set(wrong) == {0, 1}
    bounds.check_hits("corrupted", sum(wrong), count, 0.05)
    # A change that does not name it leaves it; and zero ends it.
    lab.impair([2], corrupt=0.0, duplicate=1.0)
    assert {data for data, _ in flow(lab, tmp_path, 200)[2].got} == {data for data, _ in seen.sent[:200]}


def test_limit_is_what_waits_at_most(lab: Lab, tmp_path: Path) -> None:
    lab.impair([2], delay_ns=3000 * MS, limit=50)  # all must have been sent before the first one goes on
    seen = flow(lab, tmp_path, 200)[2]
    assert seen.numbers == list(range(50))
    assert seen.lost == 150
    lab.impair([2], delay_ns=0, limit=20, rate_bit=64_000)
    seen = flow(lab, tmp_path, 1000)[2]
    assert seen.overflowed + seen.lost + len(seen.got) == 1000
    assert seen.overflowed + seen.lost > 200


def test_everything_at_once_and_then_nothing(lab: Lab, tmp_path: Path) -> None:
    lab.impair(
        [2],
        delay_ns=5 * MS,
        jitter_ns=2 * MS,
        jitter_distribution="normal",
        reorder=0.1,
        duplicate=0.1,
        corrupt=0.1,
        burst=(0.05, 0.25),
        rate_bit=10**9,
        limit=5000,
    )
    seen = flow(lab, tmp_path, 500)[2]
    assert seen.lost > 0
    shown = lab.describe()["stations"][1]["impairment"]
    assert shown["jitter_distribution"] == "normal" and shown["burst"] == [0.05, 0.25, 1.0, 0.0]
    lab.impair([2], delay_ns=0, duplicate=0.0, corrupt=0.0, burst=[], rate_bit=0, limit=0)
    seen = flow(lab, tmp_path, 200)[2]
    assert [data for data, _ in seen.got] == [data for data, _ in seen.sent]
