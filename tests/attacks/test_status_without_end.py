"""Attack in virtual time: a program asks for the status as fast as it is answered. What the daemon spends on it is bounded, and
everybody else's work goes on; in a daemon that answers each question anew (``answer_status_always``) it does not.

The same with real daemons: ``test_hostile_program.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from zenjun.daemon.requests import STATUSES_PER_S
from zenjun.daemon.runtime import CONTROL_FRAMES_MAX, CONTROL_SLICE_NS
from zenjun.daemon.sparing import SHARE, Sparing

US, MS, S = 1_000, 1_000_000, 1_000_000_000
FRAME_NS = 20 * US
"""What a control frame costs, whatever its answer."""
WORK_NS = 50 * US
"""What the data path and the engine have to do in each turn for others, who always want more."""


class AnswerStatusAlways(Sparing[int]):
    """G5: a status is made for each question."""

    def __call__(self, now: int) -> int:
        return self._make(now)


@dataclass
class Daemon:
    """Its turns, as ``runtime.py`` has them: some control frames, then what others want."""

    status_ns: int
    sparing: type[Sparing[int]]
    now: int = S
    statuses: int = 0
    work: int = 0
    late_ns: int = 0
    """The longest time from one turn of others to the next."""

    def __post_init__(self) -> None:
        self.status = self.sparing(self.make, STATUSES_PER_S, clock=lambda: self.now)

    def make(self, now: int) -> int:
        self.now += self.status_ns
        self.statuses += 1
        return self.statuses

    def run(self, seconds: int) -> float:
        """The share of the time that others have had."""
        began = self.now
        while self.now - began < seconds * S:
            turn, until = self.now, self.now + CONTROL_SLICE_NS
            for _ in range(CONTROL_FRAMES_MAX):
                self.now += FRAME_NS
                self.status(self.now)
                if self.now >= until:
                    break
            self.late_ns = max(self.late_ns, self.now - turn)
            self.now += WORK_NS
            self.work += 1
        return self.work * WORK_NS / (self.now - began)


@pytest.mark.parametrize("status_ns", [100 * US, 1 * MS, 20 * MS])
def test_status_without_end_takes_little_from_others(status_ns: int) -> None:
    """Of what the asking itself leaves them: a frame costs that much, whatever it asks."""
    asked_for_nothing = WORK_NS / (WORK_NS + CONTROL_FRAMES_MAX * FRAME_NS)
    daemon = Daemon(status_ns, Sparing)
    share = daemon.run(20)
    assert share > asked_for_nothing * (1 - 1.2 / SHARE), f"others have {share:.0%} of the time"
    assert daemon.statuses <= 20 * STATUSES_PER_S + STATUSES_PER_S and daemon.statuses > 10
    assert daemon.late_ns <= CONTROL_SLICE_NS + status_ns + FRAME_NS
    broken = Daemon(status_ns, AnswerStatusAlways)
    assert broken.run(2) < 0.6 * share and broken.statuses / 2 > 3 * daemon.statuses / 20
