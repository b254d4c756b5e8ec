"""Asks members that have not been heard for a while whether they are there, so that loss alone does not remove them.

One CONFIRM carries one question (POLL), so several quiet members are asked in turn. Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .core import Core
from .silence import Silence


class Probing:
    """One per engine. Members are indices."""

    def __init__(self, core: Core, silence: Silence, *, after_ns: int, interval_ns: int) -> None:
        """after_ns: a member that was not heard for this long is quiet. interval_ns: time between two questions."""
        self._core = core
        self._silence = silence
        self.after_ns = after_ns
        self._interval_ns = interval_ns
        self._asked_ns = 0
        self._asked = 0  # questions so far

    def silent_ns(self, now: int, index: int) -> int:
        """Time for which it has not been heard."""
        return now - self._silence.heard_ns(self._core.peer(index))

    def quiet(self, now: int, members: Iterable[int]) -> list[int]:
        """Those of these members that are quiet; never this station."""
        return [i for i in members if i != self._core.index and self.silent_ns(now, i) >= self.after_ns]

    def ask(self, now: int, quiet: Sequence[int]) -> None:
        """Ask the next of these, if it is time."""
        if quiet and self._core.is_open and now - self._asked_ns >= self._interval_ns:
            self._asked += 1
            self._asked_ns = now
            self._core.probe(now, quiet[self._asked % len(quiet)])
            self._core.step(now, False)
