"""Work that programs can request without limit, done only as often as the daemon can afford."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time_ns
from typing import Final, Generic, TypeVar

T = TypeVar("T")
S_NS: Final = 1_000_000_000
SHARE: Final = 10
"""At most one part of the time in this number is spent on it."""


class Sparing(Generic[T]):
    """A value that is computed when it is requested, but at most ``per_s`` times a second on average, with at most that number at
    once, and less often if it takes long (``SHARE``); in between the last one is returned again. So it is fresh for occasional
    requests, and somewhat old for all while one program requests it without limit."""

    def __init__(self, make: Callable[[int], T], per_s: int, clock: Callable[[], int] = thread_time_ns) -> None:
        """``make(now)``, now in monotonic nanoseconds. clock: by which it is judged how long that takes; by default processor
        time, so that a machine that is busy with something else makes nothing older."""
        self._make = make
        self._clock = clock
        self._each_ns = S_NS // per_s
        self._full_ns = 0  # when as many may be made in one go as ever
        self._last: T | None = None

    def __call__(self, now: int) -> T:
        if self._last is None or self._full_ns - now <= S_NS - self._each_ns:
            begun = self._clock()
            self._last = self._make(now)
            took = self._clock() - begun
            self._full_ns = max(self._full_ns, now) + max(self._each_ns, SHARE * took)
        return self._last
