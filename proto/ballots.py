"""The votes that one station has received or cast, by instance and proposal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .core import Vote
from .votes import Cast, ChangeProposal, decode_proposal, sure_of

Key = tuple[int, ChangeProposal]
"""Number of the instance in which the vote was cast, and what it proposes."""


class Ballots:
    """The votes of all stations. Votes for joins are kept as PDUs as well: joiners may need them again."""

    def __init__(self, stations: int) -> None:
        self._n = stations
        self._casts: dict[Key, dict[int, Cast]] = {}
        self._pdus: dict[Key, dict[int, bytes]] = {}

    def __bool__(self) -> bool:
        return bool(self._casts)

    def clear(self) -> None:
        self._casts.clear()
        self._pdus.clear()

    def receive(self, vote: Vote) -> ChangeProposal | None:
        """Record a vote that the core has accepted. The first one of a station for a proposal counts, because its place is that
        of the view event. Returns its proposal, None if it is malformed."""
        proposal = decode_proposal(vote.pdu, vote.kind, self._n)
        if proposal is None:
            return None
        cast = Cast(vote.clock, vote.src + 1, vote.seq, sure_of(vote.pdu, self._n))
        self.note((vote.instance, proposal), cast, vote.pdu)
        return proposal

    def note(self, key: Key, cast: Cast, pdu: bytes) -> None:
        """Record a vote, received or own; the first one of a station for a proposal counts."""
        self._casts.setdefault(key, {}).setdefault(cast.station, cast)
        if not key[1].stop:
            self._pdus.setdefault(key, {}).setdefault(cast.station, pdu)

    def casts(self, key: Key) -> dict[int, Cast]:
        """By station; empty if no station has voted for it."""
        return self._casts.get(key, {})

    def of_instance(self, instance: int) -> Iterator[tuple[ChangeProposal, dict[int, Cast]]]:
        """The proposals of that instance, in the order in which they were first seen."""
        return ((proposal, casts) for (number, proposal), casts in self._casts.items() if number == instance)

    def pdus(self, key: Key) -> dict[int, bytes]:
        """The votes for a join, by station, as they stood on the wire."""
        return self._pdus.get(key, {})

    def pdus_for(self, instance: int, station: int, incarnation: int) -> list[dict[int, bytes]]:
        """The votes of that instance by which this incarnation joins, proposal by proposal."""
        change = (station, incarnation)
        return [pdus for (number, p), pdus in self._pdus.items() if number == instance and change in p.changes]

    def forget_before(self, instance: int, kept: Iterable[Key]) -> None:
        """Votes of earlier instances are history, but for the PDUs of ``kept``."""
        keep = set(kept)
        self._casts = {key: casts for key, casts in self._casts.items() if key[0] >= instance}
        self._pdus = {key: pdus for key, pdus in self._pdus.items() if key[0] >= instance or key in keep}
