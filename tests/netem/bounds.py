"""Exact bounds of what chance may do: a check that is right fails less often than once in a million times.

Everything is brought back to binomial numbers, whose distribution is summed up term by term.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

RISK = 1e-6
"""How often one check may fail although all is well, both sides together."""


def below(n: int, p: float, k: int) -> float:
    """The probability of fewer than k hits in n throws of probability p each."""
    if p <= 0 or p >= 1:
        return float(k > (n if p >= 1 else 0))
    hit, miss = math.log(p), math.log1p(-p)
    whole = math.lgamma(n + 1)
    return math.fsum(
        math.exp(whole - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * hit + (n - i) * miss) for i in range(min(k, n + 1))
    )


def hits(n: int, p: float, risk: float = RISK) -> tuple[int, int]:
    """Fewest and most hits in n throws: fewer, or more, come with probability risk / 2 each."""
    low, high = 0, n
    if 0 < p < 1:
        expected = round(n * p)
        low = _last(lambda k: below(n, p, k) <= risk / 2, 0, expected)
        high = n - _last(lambda k: below(n, 1 - p, k) <= risk / 2, 0, n - expected)
    elif p <= 0:
        high = 0
    else:
        low = n
    return low, high


def total(runs: int, p: float, risk: float = RISK) -> tuple[int, int]:
    """Shortest and longest sum of so many runs, each as long as it takes until a throw of probability p hits."""
    middle = round(runs / p)
    # The sum is above s when the first s throws had fewer hits than there are runs.
    low = _last(lambda s: 1 - below(s, p, runs) <= risk / 2, runs, middle)
    high = middle
    while below(high, p, runs) > risk / 2:
        high += max(1, middle // 50)
    return low, high


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last number for which a falling condition holds, by halving; low when it never does."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def check_hits(what: str, found: int, n: int, p: float) -> None:
    """The number found is one that n throws of probability p give."""
    low, high = hits(n, p)
    assert low <= found <= high, f"{what}: {found} of {n}, which is not between {low} and {high} ({p:.4%})"


def runs_of(lost: Sequence[bool]) -> tuple[list[int], list[int]]:
    """Lengths of the runs of frames that came, and of those that were lost, each complete; what comes first counts as such."""
    came: list[int] = []
    gone: list[int] = []
    for gap, group in itertools.groupby(lost):
        (gone if gap else came).append(len(list(group)))
    # The last run may have been cut short.
    (gone if lost[-1] else came).pop()
    return came, gone


def check_bursts(lost: Sequence[bool], p: float, r: float, bursts: int) -> tuple[float, float]:
    """The first so many bursts are what the Gilbert-Elliott model with 1-h = 100 % and 1-k = 0 gives: mean length of a burst,
    and mean loss. Returns both. The model starts in the good state.

    Each state is left by throws of its own, so the sums of the runs in it are bounded exactly. With p = 0.1, r = 0.25 and 200
    bursts, a model with either doubled is taken for the right one less often than once in ten million times.
    """
    came, gone = runs_of(lost)
    assert len(gone) >= bursts, f"only {len(gone)} bursts of {bursts} wanted"
    good, bad = sum(came[:bursts]), sum(gone[:bursts])
    for what, found, share in (("bursts", bad, r), ("frames between bursts", good, p)):
        low, high = (limit / bursts for limit in total(bursts, share))
        assert low <= found / bursts <= high, f"{what}: {found / bursts:.3f} on average, not of {low:.3f} to {high:.3f}"
    return bad / bursts, bad / (bad + good)
