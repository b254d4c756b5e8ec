"""A broadcast segment in virtual time: brings what one station sends to the others, unless the test loses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from zenjun.proto.wire import addressee

US: Final = 1_000
MS: Final = 1_000_000
NEVER: Final = 2**64 - 1
"""A deadline that is not set."""
EVENTS_MAX: Final = 1_000_000
"""Events in one ``run``: more are a loop without end."""


class Port(Protocol):
    """A station as the segment sees it."""

    @property
    def mac(self) -> bytes:
        """The last byte is the station's number."""

    def collect(self) -> list[bytes]:
        """Take the PDUs that the station broadcasts now."""

    def on_frames(self, now: int, batch: list[tuple[bytes, bytes]]) -> None:
        """Receive (PDU, source MAC), which may be none. A station that is off ignores them."""

    def next_deadline_ns(self) -> int:
        """``NEVER`` if nothing is due, or if the station is off."""

    def on_timeout(self, now: int) -> None: ...


P = TypeVar("P", bound=Port)


def lose_nothing(source: object, to: object, pdu: bytes) -> bool:
    return False


class Segment(Generic[P]):
    """Stations on one medium. ``lost`` decides about each frame and receiver; the default loses nothing.

    latency_ns: between sending and reception, in ``run``. echo: a frame reaches its source, too, as on a bus.
    """

    def __init__(self, stations: Iterable[P], *, now: int = MS, latency_ns: int = 0, echo: bool = False) -> None:
        self.stations = list(stations)
        self.now = now
        self.latency_ns = latency_ns
        self.echo = echo
        self.lost: Callable[[P, P, bytes], bool] = lose_nothing
        self.frames: list[bytes] = []
        """All that were sent."""

    def carry(self, sent: Sequence[tuple[P, bytes]]) -> None:
        """Bring (source, PDU) to the stations now: one batch for each of them."""
        self.frames += [pdu for _, pdu in sent]
        for to in self.stations:
            reached = [
                (s, p)
                for s, p in sent
                if (self.echo or s is not to) and addressee(p) in (0, to.mac[-1]) and not self.lost(s, to, p)
            ]
            to.on_frames(self.now, [(pdu, source.mac) for source, pdu in reached])

    def collect(self) -> list[tuple[P, bytes]]:
        """Take what all stations broadcast now."""
        return [(station, pdu) for station in self.stations for pdu in station.collect()]

    def run(self, duration_ns: int) -> None:
        """Let time pass from event to event. Raises AssertionError after ``EVENTS_MAX`` events."""
        end = self.now + duration_ns
        for _ in range(EVENTS_MAX):
            if sent := self.collect():
                self.now += self.latency_ns
                self.carry(sent)
                continue
            due = min((station.next_deadline_ns() for station in self.stations), default=NEVER)
            if due > end:
                self.now = max(self.now, end)
                return
            self.now = max(self.now, due)
            for station in self.stations:
                if station.next_deadline_ns() <= self.now:
                    station.on_timeout(self.now)
        raise AssertionError("a loop without end")

    def until(self, condition: Callable[[], bool], limit_ns: int = 20_000 * MS, step_ns: int = 10 * MS) -> None:
        """Run until the condition holds, looking every ``step_ns``. Raises AssertionError after ``limit_ns``."""
        deadline = self.now + limit_ns
        while not condition():
            assert self.now < deadline, "condition not reached"
            self.run(step_ns)
