"""When a station that is in no instance asks a running one to admit it, and when it gives up and proposes a new one.

A CONFIRM of an instance that has quorum is a reason to ask (RCV) instead of proposing. But it may be a recorded one that is
repeated, and then no station ever answers. So a station that has asked for ``UNANSWERED_WINDOWS`` without a vote for its present
incarnation proposes again, until there is one. (An OPEN with STARTED is no answer: it may be as old.)

That cannot make a second quorum. A proposal is started only when every member of it has issued it, and its members are a quorum.
If an instance with quorum exists, its members share a station with any other quorum; that station is in the instance, and issues
nothing. To propose nothing while an instance is heard only saves frames. And members treat an OPEN like an RCV: as a request to
be admitted.

Sans-I/O.
"""

from __future__ import annotations

from typing import Final

from .timers import NEVER

UNANSWERED_WINDOWS: Final = 10
HEARD_WINDOWS: Final = 2
"""Time for which an instance counts as running after it was heard."""


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
        """A member has voted to admit this incarnation."""
        self._since_ns = now

    def worth_it(self, now: int, window_ns: int) -> bool:
        """Is one heard that may answer?"""
        return now - self._heard_ns < HEARD_WINDOWS * window_ns and now - self._since_ns < UNANSWERED_WINDOWS * window_ns
