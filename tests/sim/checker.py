"""What every checker is made of: its hooks, the violation it raises, and orders put together from what stations delivered."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import ClassVar

from .facts import AT_ONCE, Delivery, Facts, Instance, Life, Message, Number, PeerView, Place, Stay
from .frames import Frame
from .violation import Violation


class Checker:
    """Hooks, all optional. Stations are 0..n-1."""

    name: ClassVar[str]

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def fail(self, text: str, *stations: int) -> None:
        raise Violation(self.name, text, stations)

    def opened(self, stay: Stay) -> None:
        """``stay.station`` has started in ``stay.instance``; ``facts.stays`` still shows what it was in before."""

    def changed(self, stay: Stay, before: Instance) -> None:
        """The station has gone on from one instance to the next, which ``stay.instance`` is already."""

    def closed(self, stay: Stay) -> None: ...

    def crashed(self, station: int) -> None:
        """Its process is gone; ``closed`` came before if it was in an instance."""

    def taken(self, stay: Stay, message: Message, now: int) -> None:
        """The station's core has taken a message whole."""

    def sent(self, station: int, frame: Frame, fresh: bool, now: int) -> None:
        """The station has broadcast this; ``facts`` already hold it. ``frame.src`` may be another's: a relayed retransmission.
        ``fresh``: a sequenced PDU never sent before."""

    def handed(self, stay: Stay, record: Delivery, number: Number | None) -> None:
        """An order-preserving message on acceptance; not yet in ``stay.handed``."""

    def delivered(self, stay: Stay, record: Delivery, number: Number | None) -> None:
        """A message or view event at level ordered; not yet in ``stay.records``. ``number``: which message stands at its
        place, as far as has been seen on the wire."""

    def released(self, stay: Stay, level: int, old: int, new: int) -> None:
        """The station's position of that level has moved from old to new; ``stay.positions`` already has the new ones,
        ``stay.released`` not yet."""

    def asked(self, station: int, src: int, incarnation: int, rcv: bool, now: int) -> None:
        """The station has read an RCV of that life of ``src``, or an OPEN that says that it is in no instance."""

    def turn(self, stay: Stay, peers: Sequence[PeerView], frames_sent: int) -> None:
        """A station has finished a turn. ``peers``: what its core says about each station now."""

    def fenced(self, station: int, position: int) -> None: ...

    def converged(self) -> None:
        """The healed network has delivered everything (``liveness`` judges whether it has)."""


def due(stay: Stay, level: int, new: int) -> list[int]:
    """Indices of the records that a level's new position releases."""
    out: list[int] = []
    records = stay.records
    for at in range(stay.released[level], len(records)):
        position = records[at].position
        if position >= new and position != AT_ONCE:
            break
        out.append(at)
    return out


class Merged:
    """One order out of the parts that stays have of it: any two must agree wherever both have something."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._records: dict[Place, tuple[Delivery, Stay]] = {}
        self._reach: dict[Stay, tuple[Place, Place]] = {}

    def add(self, stay: Stay, record: Delivery) -> str:
        """The next of a stay; what is wrong with it, or nothing."""
        place = record.place
        start, last = self._reach.get(stay, (begin := start_of(stay), begin))
        if place <= last:
            return f"station {stay.station + 1} has {record.name()} after {last}"
        between = bisect_right(self._places, last)
        if between < bisect_left(self._places, place):
            missing, other = self._records[self._places[between]]
            text = f"station {stay.station + 1} goes on to {record.name()} without {missing.name()}"
            return f"{text}, which s{other.station + 1} has"
        known = self._records.get(place)
        if known is None:
            for other, (low, high) in self._reach.items():
                if low < place < high:
                    return f"station {stay.station + 1} has {record.name()}, s{other.station + 1} went past without it"
            insort(self._places, place)
            self._records[place] = (record, stay)
        elif not known[0].same(record):
            return f"station {stay.station + 1} has {record.name()}, s{known[1].station + 1} has {known[0].name()}"
        self._reach[stay] = (start, place)
        return ""

    def missing_at(self, stay: Stay) -> Delivery | None:
        """The first that somebody has and this stay, which is complete, has not."""
        have = {r.place for r in stay.records}
        for place in self._places[bisect_right(self._places, start_of(stay)) :]:
            if place not in have:
                return self._records[place][0]
        return None


def start_of(stay: Stay) -> Place:
    """Below everything it delivers, its own first view event included."""
    clock, src = stay.start
    return (clock, src, 0xFFFE)


def last_of_streams(facts: Facts, stay: Stay, old: int, new: int) -> list[tuple[tuple[int, int, int], Life]]:
    """Of the PDUs at these positions the last of each stream: streams are accepted in order."""
    last: dict[Life, tuple[int, int, int]] = {}
    first = facts.offset(stay, stay.start)
    for pdu in facts.order(stay)[first + old : first + new]:
        last[pdu[1], facts.sent[pdu[:2]][0]] = pdu
    return [(pdu, life) for life, pdu in last.items()]
