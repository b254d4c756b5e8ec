"""How long something takes, counted in classes: what a process measures of itself."""

from __future__ import annotations

import bisect
import contextlib
import time
from collections.abc import Iterator
from typing import Final

BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the classes, seconds; above the last one is another class."""


class Timing:
    """Number of times by class, and their sum. One thread adds; others may read, and may see one time too few."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    @contextlib.contextmanager
    def took(self) -> Iterator[None]:
        """The time of a block that ends without an error."""
        began = time.perf_counter()
        yield
        self.add(time.perf_counter() - began)

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, number up to it), as Prometheus's histograms have them."""
        out, number = [], 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.counts, strict=True):
            number += count
            out.append((bound, float(number)))
        return out
