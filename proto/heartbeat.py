"""Heartbeats and BYE: the CONFIRMs that a station sends when it has nothing else to send.

A heartbeat is due when no PDU was sent for the interval. If another station's heartbeat has woken this one anyway, it sends its
own at once: all stations then send together, which saves one wake-up per heartbeat and station. A station that leaves sends BYE
several times, because no station repeats it if it is lost. Sans-I/O.
"""

from __future__ import annotations

from typing import Final, Protocol

from .errors import invariant
from .timers import NEVER, Deadline, Timers
from .wire import Flag

BYES: Final = 3
BYE_GAP_NS: Final = 5_000_000


class Confirms(Protocol):
    """What the heartbeat asks of the core."""

    @property
    def is_open(self) -> bool: ...

    def confirms_heard(self) -> int: ...

    def last_tx_ns(self) -> int: ...

    def last_word_ns(self) -> int: ...

    def heartbeat(self, now: int, flags: int = 0) -> None: ...


class Heartbeat:
    """One per engine. It owns the deadlines HEARTBEAT and BYE."""

    def __init__(self, core: Confirms, timers: Timers[Deadline], interval_ns: int) -> None:
        self._core = core
        self._timers = timers
        self._interval_ns = interval_ns
        self._confirms_heard = 0
        self._byes_left: int | None = None  # None: not leaving
        self.is_joined = False
        """The next heartbeat goes out now, along with another station's."""

    def begin(self, now: int) -> None:
        """An instance begins."""
        self._confirms_heard = self._core.confirms_heard()
        self.is_joined = False
        self._timers.set(Deadline.HEARTBEAT, now + self._interval_ns)

    def end(self) -> None:
        """It is over."""
        self._timers.stop(Deadline.HEARTBEAT)

    def join(self, now: int) -> None:
        """Beat along if another station's CONFIRM has come. Cheap: called after every wake-up."""
        heard = self._core.confirms_heard()
        if heard != self._confirms_heard:
            self._confirms_heard = heard
            if now - self._core.last_word_ns() > self._interval_ns // 2 and self._timers.at_ns(Deadline.HEARTBEAT) != NEVER:
                self._timers.set(Deadline.HEARTBEAT, now)
                self.is_joined = True

    def beat(self, now: int) -> bool:
        """The deadline HEARTBEAT is due. Any PDU is as good as a heartbeat: what was sent meanwhile is looked at only now, not at
        every turn. True if one was sent."""
        next_ns = self._core.last_tx_ns() + self._interval_ns
        sent = self.is_joined or next_ns <= now
        if sent:
            self._core.heartbeat(now)
            next_ns = now + self._interval_ns
        self.is_joined = False
        self._timers.set(Deadline.HEARTBEAT, next_ns)
        return sent

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
