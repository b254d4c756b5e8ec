"""One end of a link: a reliable sequence of records between two stations, over frames that may be lost (rules L1, L2, L4).

It does what a core of two stations does, without its fields: PDUs have numbers, gaps are asked for (NAK), a sender that hears
nothing asks (POLL), what has come is confirmed. The caller sends ``out`` and calls ``on_time`` at ``deadline``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from zenjun.proto.multicast.records import Record

MS: Final = 1_000_000
PDU_RECORDS: Final = 8
CONFIRM_NS: Final = 1 * MS
NAK_NS: Final = 2 * MS
POLL_NS: Final = 4 * MS
POLL_NS_MAX: Final = 32 * MS
STUCK_NS: Final = 150 * MS
"""progress_timeout: no record was confirmed for this time, although some are pending."""
FALLBACK_POLLS: Final = 2
FALLBACK_NS: Final = 32 * POLL_NS_MAX


class LinkId(NamedTuple):
    """Rule L3: the first instance that has both incarnations, and the two, the lower station first."""

    instance: int
    lower: tuple[int, int]
    higher: tuple[int, int]


@dataclass(frozen=True)
class Frame:
    """What goes over the wire. ``number`` is that of a DATA PDU, else the sender's next; ``ack`` is what it expects next."""

    link: LinkId
    source: int
    kind: str
    number: int
    ack: int
    records: tuple[Record, ...] = ()
    to_group: bool = False

    @property
    def asks(self) -> bool:
        """It is a POLL."""
        return self.kind == "POLL"

    @property
    def is_nak(self) -> bool:
        return self.kind == "NAK"


@dataclass
class LinkEnd:
    """``window`` counts PDUs."""

    link: LinkId
    me: int
    window: int = 8
    out: list[Frame] = field(default_factory=list)
    number: int = 0
    """Number of the next own PDU."""
    expected: int = 0
    waiting: deque[Record] = field(default_factory=deque)
    pending: dict[int, tuple[Record, ...]] = field(default_factory=dict)
    """Own PDUs that are not confirmed."""
    ahead: dict[int, tuple[Record, ...]] = field(default_factory=dict)
    """PDUs after a gap."""
    is_heard: bool = False
    """An address of the other one is known."""
    polls: int = 0
    """POLLs in a row that nothing has answered."""
    falls_back: int = 0
    """Until when frames go to the group address, since POLLs went unanswered."""
    called: int = 0
    """Until when answers go to the group address, since the other one asked there."""
    now: int = 0
    progress: int = 0
    confirm_at: int | None = None
    nak_at: int | None = None
    poll_at: int | None = None

    @property
    def deadline(self) -> int | None:
        times = [t for t in (self.confirm_at, self.nak_at, self.poll_at) if t is not None]
        return min(times, default=None)

    def is_stuck(self, now: int) -> bool:
        """Rule L4."""
        return bool(self.pending) and now - self.progress >= STUCK_NS

    def send(self, now: int, records: Iterable[Record]) -> None:
        """Give the link records, in order."""
        self.now = now
        self.waiting.extend(records)
        self._fill(now)

    def on_frame(self, now: int, frame: Frame) -> list[tuple[Record, ...]]:
        """A frame has come. Returns the PDUs that are accepted now. One of another link is dropped (rule L3)."""
        if not self._is_mine(frame):
            return []
        self.now = now
        if not frame.to_group:
            self.called = 0
        elif frame.kind == "POLL" and self.is_heard:
            self.called = now + FALLBACK_NS
        self.is_heard = True
        if self._answers(frame):
            self.polls = 0
        self._on_ack(now, frame.ack)
        if frame.kind == "NAK":
            for number in range(frame.ack, frame.number):
                if number in self.pending:
                    self._put("DATA", number, self.pending[number])
            return []
        if frame.kind == "DATA":
            return self._on_data(now, frame)
        if frame.number > self.expected:
            self._ask(now, frame.number)
        elif frame.kind == "POLL":
            self._put("CONFIRM")
        return []

    def on_time(self, now: int) -> None:
        """The deadline has come. Harmless if it has not."""
        self.now = now
        if self.confirm_at is not None and now >= self.confirm_at:
            self._put("CONFIRM")
        if self.nak_at is not None and now >= self.nak_at:
            self.nak_at = None
            if self.ahead:
                self._ask(now, min(self.ahead))
        if self.poll_at is not None and now >= self.poll_at:
            self._poll(now)

    # ---- parts

    def _is_mine(self, frame: Frame) -> bool:
        return frame.link == self.link

    def _answers(self, frame: Frame) -> bool:
        """Rule L2: who asks for what it lacks has perhaps received none of what was sent to its address."""
        return frame.kind != "NAK"

    def _fill(self, now: int) -> None:
        """Rule L1: as many PDUs as the window allows."""
        if not self.pending:
            self.progress = now
        while self.waiting and len(self.pending) < self.window:
            records = tuple(self.waiting.popleft() for _ in range(min(PDU_RECORDS, len(self.waiting))))
            self.pending[self.number] = records
            self.number += 1
            self._put("DATA", self.number - 1, records)
        if self.pending and self.poll_at is None:
            self.poll_at = now + POLL_NS

    def _on_ack(self, now: int, ack: int) -> None:
        confirmed = [number for number in self.pending if number < ack]
        for number in confirmed:
            del self.pending[number]
        if confirmed:
            self.progress = now
        if not self.pending:
            self.poll_at = None
        elif confirmed:
            self.poll_at = now + POLL_NS
        self._fill(now)

    def _on_data(self, now: int, frame: Frame) -> list[tuple[Record, ...]]:
        if frame.number >= self.expected:
            self.ahead[frame.number] = frame.records
        accepted: list[tuple[Record, ...]] = []
        while self.expected in self.ahead:
            accepted.append(self.ahead.pop(self.expected))
            self.expected += 1
        if self.ahead and self.nak_at is None:
            self._ask(now, min(self.ahead))
        if self.confirm_at is None:
            self.confirm_at = now + CONFIRM_NS
        return accepted

    def _ask(self, now: int, until: int) -> None:
        """NAK: all from what is expected up to ``until`` is missing."""
        if self.nak_at is None:
            self.nak_at = now + NAK_NS
            self._put("NAK", until)

    def _poll(self, now: int) -> None:
        self._put("POLL")
        self.polls += 1
        if self.is_heard and self.polls >= FALLBACK_POLLS:
            self.falls_back = now + FALLBACK_NS
        self.poll_at = now + min(POLL_NS << self.polls, POLL_NS_MAX)

    def _to_group(self, kind: str) -> bool:
        """Rule L2. A POLL of an end that is only called goes to the address: else each would call the other, for ever."""
        return not self.is_heard or self.now < self.falls_back or (self.now < self.called and kind != "POLL")

    def _put(self, kind: str, number: int | None = None, records: tuple[Record, ...] = ()) -> None:
        self.confirm_at = None
        number = self.number if number is None else number
        self.out.append(Frame(self.link, self.me, kind, number, self.expected, records, self._to_group(kind)))
