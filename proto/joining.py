"""How a station that is in no instance joins a running one (DOP protocol, section 4; dynamic instance groups, rule 5).

It sends RCV (``opening.py`` does) and collects the votes of the members that admit it. A vote alone means nothing: the station
starts only when it has every voter's vote, and a member's CONFIRM shows by the view hash that the member is in the instance to
which the votes lead, with this station's present incarnation in it. From voter k it accepts from just after k's vote; what it
delivers begins with the view event, right after the last vote in the total order.

Sans-I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from .openpdu import FRAME_MAX_MIN, INCARNATION_MAX, INSTANCE_MAX, decode_header, unpack
from .votes import ChangeProposal, decode_proposal
from .wire import CONFIRM, Kind, payload_offset, view_hash

PROPOSALS_MAX: Final = 64
"""Proposals remembered; the oldest is forgotten: it can be asked for again."""


class Start(NamedTuple):
    """Where this station starts in one stream: ``struct zj_start``."""

    role: int
    """0 no member, 1 voter, 2 joiner."""
    incarnation: int
    seq: int
    """role 1: number of its vote on the wire."""
    clock: int
    """role 1: of its vote."""


NOBODY: Final = Start(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """All that is needed to start."""

    instance: int
    incarnations: tuple[int, ...]
    starts: tuple[Start, ...]
    place_clock: int
    place_station: int
    """1..n"""
    frame_max: int


class _VoteSeen(NamedTuple):
    incarnation: int
    seq: int
    clock: int
    frame_max: int


class Joining:
    """Of one incarnation. Nothing that comes raises."""

    def __init__(self, *, stations: int, station: int) -> None:
        self._n = stations
        self._station = station
        self._incarnation = 0
        self._seen: dict[tuple[int, ChangeProposal], dict[int, _VoteSeen]] = {}
        self._oldest: int | None = None  # instance of the first vote for this incarnation
        self.votes = 0
        """Votes for this station seen in this incarnation."""

    def begin(self, incarnation: int) -> None:
        """A new incarnation: what was collected for the last one is worthless."""
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._seen.clear()
            self._oldest = None
            self.votes = 0

    def on_vote(self, pdu: bytes) -> bool:
        """A RCV_ACK; its checksum and lengths are right. True: it is a new vote for this incarnation of this station; a known one
        may be a recording, and is no answer."""
        header = decode_header(pdu)
        if header is None or header["kind"] != Kind.RCV_ACK:
            return False
        proposal = decode_proposal(pdu, Kind.RCV_ACK, self._n)
        if proposal is None or (self._station, self._incarnation) not in proposal.changes:
            return False
        if not 1 <= header["incarnation"] <= INCARNATION_MAX or not 1 <= header["instance"] < INSTANCE_MAX:
            return False
        if header["frame_max"] < FRAME_MAX_MIN or header["clock"] >> 62:
            return False
        key = (header["instance"], proposal)
        if key not in self._seen and len(self._seen) >= PROPOSALS_MAX:
            del self._seen[next(iter(self._seen))]
        self.votes += 1
        new = header["src"] not in self._seen.get(key, {})
        self._oldest = header["instance"] if self._oldest is None else min(self._oldest, header["instance"])
        self._seen.setdefault(key, {})[header["src"]] = _VoteSeen(
            header["incarnation"], header["seq"], header["clock"], header["frame_max"]
        )
        return new

    def missed(self, instance: int) -> bool:
        """A member is in this instance. Did it come from one that this incarnation may have been admitted to? No incarnation is
        admitted twice, so a new one is needed."""
        return self._oldest is not None and instance > self._oldest + 1

    def on_confirm(self, pdu: bytes) -> Entry | None:
        """A CONFIRM of a member of some instance. Returns whether it shows that the collected votes were enough."""
        header = decode_header(pdu)
        at = payload_offset(self._n, packed=True)
        if header is None or header["kind"] != Kind.CONFIRM or len(pdu) < at + CONFIRM.size:
            return None
        view = unpack(CONFIRM, pdu, at)["view"]
        for (instance, proposal), seen in self._seen.items():
            if instance + 1 != header["instance"] or header["src"] not in proposal.members:
                continue
            voters = set(proposal.members) - set(proposal.changed)
            if not voters <= seen.keys():
                continue
            lives = {k: seen[k].incarnation for k in voters} | dict(proposal.changes)
            incarnations = tuple(lives.get(k, 0) for k in range(1, self._n + 1))
            if view_hash(instance + 1, incarnations) == view:
                return self._entry(instance + 1, proposal, voters, seen, incarnations)
        return None

    def _entry(
        self, instance: int, proposal: ChangeProposal, voters: set[int], seen: dict[int, _VoteSeen], incarnations: tuple[int, ...]
    ) -> Entry:
        clock, station = max((seen[k].clock, k) for k in voters)

        def start(k: int) -> Start:
            if k in voters:
                return Start(1, seen[k].incarnation, seen[k].seq, seen[k].clock)
            return Start(2, incarnations[k - 1], 0, 0) if k in proposal.changed else NOBODY

        return Entry(
            instance=instance,
            incarnations=incarnations,
            starts=tuple(start(k) for k in range(1, self._n + 1)),
            place_clock=clock,
            place_station=station,
            frame_max=min(seen[k].frame_max for k in voters),
        )
