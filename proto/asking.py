"""When a station that is in no instance asks a running one to admit it, and when it gives up and proposes a new one.

A CONFIRM of an instance that has quorum is reason to ask (RCV) instead of proposing. But such a CONFIRM may be an old one that
somebody repeats: then nobody ever answers. So who has asked for ``UNANSWERED_WINDOWS`` without a vote for its present life
proposes again, until there is one. (An OPEN that says STARTED is no answer: it may be as old.)

That makes no second quorum. A proposal is started only when every member of it has issued it, and its members are a quorum. If
there really is an instance with quorum, its members share a station with any other quorum; that one is in the instance, and
issues nothing. Not to propose while one is heard only saves frames. And members take an OPEN like an RCV: as the wish to be let
in.

Sans-I/O.
"""

from __future__ import annotations

from typing import Final

from .timers import NEVER

UNANSWERED_WINDOWS: Final = 10
HEARD_WINDOWS: Final = 2
"""An instance counts as living for so long after it was heard."""


class Asking:
    """Whether an instance that has quorum is heard, and answers."""

    def __init__(self) -> None:
        self._heard_ns = -NEVER
        self._since_ns = 0  # heard without a longer break, and without an answer, since then

    def hear(self, now: int, window_ns: int) -> bool:
        """A member of one was heard. True: it was not before."""
        new = now - self._heard_ns >= HEARD_WINDOWS * window_ns
        if new:
            self._since_ns = now
        self._heard_ns = now
        return new

    def answered(self, now: int) -> None:
        """A member has voted for letting this life in."""
        self._since_ns = now

    def worth_it(self, now: int, window_ns: int) -> bool:
        """Is one heard that may answer?"""
        return now - self._heard_ns < HEARD_WINDOWS * window_ns and now - self._since_ns < UNANSWERED_WINDOWS * window_ns
