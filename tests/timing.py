"""Assertions on measured times, and amounts of work that a busy machine needs longer for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")
PAUSE_S: Final = 0.01
PAUSE_MAX_S: Final = 0.05
ASKED_MAX_S: Final = 0.25


def rest(begun: float, asked: float) -> None:
    """Between two looks at what a test waits for, since the time *begun* (monotonic); the last look began at *asked*. Looking
    takes processor time that those need who are waited for: the longer it lasts the less often, and half of the time at most."""
    now = time.monotonic()
    time.sleep(max(PAUSE_S, min(PAUSE_MAX_S, (now - begun) / 10), min(ASKED_MAX_S, now - asked)))


def lengthening(first_s: float, attempts: int = 4) -> Iterator[float]:
    """Seconds of each attempt: twice as long as the one before."""
    return (first_s * 2**k for k in range(attempts))


def until_enough(run: Callable[[float], T], enough: Callable[[T], bool], first_s: float) -> T:
    """What a run of some seconds has found in which enough has happened to mean something. A slow machine gets longer ones; what
    a run asserts itself holds in each of them."""
    for seconds in lengthening(first_s):
        found = run(seconds)
        if enough(found):
            return found
    raise AssertionError(f"not within {seconds:g} s: enough to mean something; hardly anything has happened: {found}")


def in_time(ok: bool, what: str) -> None:
    """A measured time has kept its bound. What a machine that others use as well has measured once proves nothing: the failure
    begins with the words by which tools/test knows what it runs once more."""
    assert ok, f"not within its time: {what}"
