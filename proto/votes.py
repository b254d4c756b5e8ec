"""Votes of the membership agreement: what they propose, on the wire and in memory, and which sets of stations have quorum."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .openpdu import INCARNATION_MAX, pack, unpack
from .wire import CHANGE, PROPOSAL, Kind, payload_offset


class ChangeProposal(NamedTuple):
    """What one vote is for: the next instance's members, and what changes. Stations are numbers 1..n, sorted."""

    stop: bool
    members: tuple[int, ...]
    changes: tuple[tuple[int, int], ...]
    """stop: (station, low 32 bits of the next seq accepted from it: REQ); else (station, its incarnation)."""

    @property
    def changed(self) -> tuple[int, ...]:
        return tuple(station for station, _ in self.changes)


def takes_in(later: ChangeProposal, earlier: ChangeProposal) -> bool:
    """Whether a station that has voted for ``earlier`` may vote for ``later`` in the same instance. Votes of a station grow.
    Joins admit all stations that an earlier vote did, in that incarnation or a later one. Removals follow joins, and remove all
    stations that an earlier vote did; they end these streams where it did, or later. So two stations that have voted for the same
    two proposals have done so in the same order."""
    if later.stop != earlier.stop:
        return later.stop
    new = dict(later.changes)
    if later.stop:
        return set(later.members) <= set(earlier.members) and all(
            k in new and (new[k] - value) % 2**32 < 2**31 for k, value in earlier.changes
        )
    return all(new.get(k, 0) >= life for k, life in earlier.changes)


class Cast(NamedTuple):
    """Position of a vote: (clock, station) is its place in the total order, seq its number in the stream."""

    clock: int
    station: int
    seq: int
    sure: int = 0
    """Bitmap: the removals that its station proposes for another reason than silence."""


@dataclass(slots=True)
class Quorum:
    """Which sets of stations may form an instance. Any two that may share a station."""

    stations: int
    needed: int
    """So many at least."""
    required: tuple[int, ...] = ()
    """All of these."""
    vacant: frozenset[int] = frozenset()
    """Numbers that no station has: they do not count."""
    both: tuple[Quorum, ...] = ()
    """A quorum of each of these is needed instead: the configuration is not decided (rule V3 of ``changing.py``)."""
    outside: bool = False
    """This station is not of the roster: no set will do (V6)."""

    def __call__(self, stations: Iterable[int]) -> bool:
        if self.outside:
            return False
        found = {k for k in stations if k <= self.stations and k not in self.vacant}
        if self.both:
            return all(quorum(found) for quorum in self.both)
        return len(found) >= self.needed and found.issuperset(self.required)


def bits(stations: Iterable[int]) -> int:
    """Bitmap of station numbers: bit j - 1."""
    out = 0
    for station in stations:
        out |= 1 << (station - 1)
    return out


def stations_of(bitmap: int) -> tuple[int, ...]:
    """The inverse."""
    return tuple(k + 1 for k in range(bitmap.bit_length()) if bitmap >> k & 1)


def encode_proposal(proposal: ChangeProposal, *, state: int, trans: int) -> bytes:
    """Payload of a vote."""
    out = pack(PROPOSAL, state=state, trans=trans, members=bits(proposal.members), changes=len(proposal.changes))
    return out + b"".join(pack(CHANGE, changed=station, value=value) for station, value in proposal.changes)


def sure_of(pdu: bytes, stations: int) -> int:
    """Of a vote that ``decode_proposal`` takes: STATE without TRANS, bitmap of the stations of whose stop its sender is sure."""
    head = unpack(PROPOSAL, pdu, payload_offset(stations, packed=False))
    return head["state"] & ~head["trans"]


def decode_proposal(pdu: bytes, kind: int, stations: int) -> ChangeProposal | None:
    """The inverse, of a whole vote PDU whose lengths the core has checked; None if it makes no sense."""
    at = payload_offset(stations, packed=False)
    if len(pdu) < at + PROPOSAL.size:
        return None
    head = unpack(PROPOSAL, pdu, at)
    at += PROPOSAL.size
    if len(pdu) < at + head["changes"] * CHANGE.size:
        return None
    changes = []
    for _ in range(head["changes"]):  # at most 255, by the field's width
        change = unpack(CHANGE, pdu, at)
        changes.append((change["changed"], change["value"]))
        at += CHANGE.size
    members, changed = stations_of(head["members"]), [station for station, _ in changes]
    if not changes or changed != sorted(set(changed)) or not 1 <= changed[0] <= changed[-1] <= stations:
        return None
    if not members or members[-1] > stations:
        return None
    stop = kind != Kind.RCV_ACK
    if stop == bool(set(changed) & set(members)) or (not stop and not set(changed) < set(members)):
        return None
    if not stop and not all(1 <= life <= INCARNATION_MAX for _, life in changes):
        return None
    return ChangeProposal(stop, members, tuple(changes))
