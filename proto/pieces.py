"""PDUs that go in several frames (PIECE) because the frames on some way have become smaller. Sans-I/O.

``daemon/datapath/pieces.c`` and ``links.c`` do the same in C; simulation and tests use this, and compare both. Rules J17 and J18
of docs/links.md. The pieces of a PDU have consecutive numbers, in their order, and all but the last one have the same size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from .envelope import PIECES_MAX
from .wire import HEADER, SEQUENCED

SETS: Final = 4
"""PDUs of a station that are put together at a time. One more takes the place of the oldest."""
AGE_NS: Final = 500_000_000
"""What is not whole by then never will be."""


def cut(pdu: bytes, room: int) -> list[bytes]:
    """The bodies of its pieces. room: bytes that each may have. Empty: it takes more than PIECES_MAX."""
    count = -(-len(pdu) // room) if room > 0 else PIECES_MAX + 1
    if count > PIECES_MAX:
        return []
    each = -(-len(pdu) // count)
    return [pdu[at : at + each] for at in range(0, len(pdu), each)]


@dataclass
class _Set:
    session: bytes
    first: int
    count: int
    since: int
    bodies: dict[int, bytes] = field(default_factory=dict)

    def each(self) -> int | None:
        """Bytes of all pieces but the last one; None: none of them has come."""
        return next((len(body) for place, body in self.bodies.items() if place != self.count - 1), None)


class Joiner:
    """Puts PDUs together at one station. What it holds is bounded: SETS of each station, each at most ``frame_max`` long."""

    def __init__(self, stations: int, frame_max: int) -> None:
        """frame_max: bytes of the largest PDU that this station takes."""
        self._stations = stations
        self._frame_max = frame_max
        self._sets: dict[int, list[_Set]] = {}
        self.bad = 0
        """Pieces that were out of place, or made up no PDU of a stream."""

    def take(self, now: int, tx: int, session: bytes, number: int, piece: int, body: bytes) -> bytes | None:
        """A piece that is to be believed. Returns its PDU when it is whole. tx: 1..n; session: its first four bytes; piece: as in
        the envelope."""
        place, count = piece >> 8, piece & 0xFF
        if not 1 <= tx <= self._stations or not 2 <= count <= PIECES_MAX or place >= count or number <= place:
            self.bad += 1
            return None
        sets = self._sets.setdefault(tx, [])
        found = next((s for s in sets if (s.session, s.first) == (session, number - place) and now - s.since <= AGE_NS), None)
        if found is None:
            found = self._begin(sets, _Set(session, number - place, count, now))
        if found.count != count:
            self.bad += 1
            return None
        if place in found.bodies:
            return None
        if not self._fits(found, place, body):
            self.bad += 1
            sets.remove(found)
            return None
        found.bodies[place] = body
        if len(found.bodies) < count:
            return None
        sets.remove(found)
        pdu = b"".join(found.bodies[k] for k in range(count))
        if len(pdu) < HEADER.size or pdu[HEADER.offset("kind")] not in SEQUENCED:
            self.bad += 1  # all others are small, and only these may have another source than their sender
            return None
        return pdu

    def _begin(self, sets: list[_Set], new: _Set) -> _Set:
        if len(sets) >= SETS:
            sets.remove(min(sets, key=lambda s: s.since))
        sets.append(new)
        return new

    def _fits(self, s: _Set, place: int, body: bytes) -> bool:
        is_last = place == s.count - 1
        each = s.each() if is_last else len(body)
        last = len(body) if is_last else len(s.bodies.get(s.count - 1, b""))
        if not body or (not is_last and s.each() not in (None, each)) or (each is not None and last > each):
            return False
        return (s.count - 1) * (each or 0) + last <= self._frame_max

    @property
    def held(self) -> int:
        """Bytes of pieces that wait for others."""
        return sum(len(body) for sets in self._sets.values() for s in sets for body in s.bodies.values())
