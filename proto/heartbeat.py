"""Heartbeats and BYE: the CONFIRMs that a station sends when it has nothing else to send.

A heartbeat is due when no PDU was sent for the interval. If another station's heartbeat has woken this one anyway, it sends its
own at once: all stations then send together, which saves one wake-up per heartbeat and station. Both are decided in C (beat.c),
so that nothing of Python runs for them. A station that leaves sends BYE several times, because no station repeats it if it is
lost. Sans-I/O.
"""

from __future__ import annotations

from typing import Final, Protocol

from .errors import invariant
from .timers import Deadline, Timers
from .wire import Flag

BYES: Final = 3
BYE_GAP_NS: Final = 5_000_000


class Confirms(Protocol):
    """What is asked of the core."""

    @property
    def is_open(self) -> bool: ...

    def begin_beats(self, now: int) -> None: ...

    def end_beats(self) -> None: ...

    def heartbeat(self, now: int, flags: int = 0) -> None: ...


class Heartbeat:
    """One per engine. It owns the deadline BYE; that of the next heartbeat is the core's."""

    def __init__(self, core: Confirms, timers: Timers[Deadline]) -> None:
        self._core = core
        self._timers = timers
        self._byes_left: int | None = None  # None: not leaving

    def begin(self, now: int) -> None:
        """An instance begins."""
        self._core.begin_beats(now)

    def end(self) -> None:
        """It is over."""
        self._core.end_beats()

    # ---- leaving
    @property
    def is_leaving(self) -> bool:
        return self._byes_left is not None

    @property
    def has_left(self) -> bool:
        """The last BYE is in the transmit queue, or there was no instance to leave."""
        return self._byes_left == 0

    def leave(self, now: int) -> None:
        """Send BYEs instead of heartbeats from now on."""
        self._byes_left = BYES
        self.end()
        self._timers.set(Deadline.BYE, now)

    def bye(self, now: int) -> None:
        """The deadline BYE is due."""
        invariant(bool(self._byes_left), "a BYE is due that nobody wants")
        if self._core.is_open:
            self._core.heartbeat(now, Flag.BYE)
        self._byes_left = (self._byes_left or 1) - 1
        if self._byes_left and self._core.is_open:
            self._timers.set(Deadline.BYE, now + BYE_GAP_NS)
        else:
            self._byes_left = 0
            self._timers.stop(Deadline.BYE)
