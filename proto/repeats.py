"""Repeats votes to a joiner that asks again (rule 5 of docs/membership.md, second part).

It has not got all votes, or not heard that they were enough. Each member repeats its own vote, and those of members that have
gone. A joiner that asks once more may not hear some voter. Then some members after the others repeat the votes of all, so that
one that it hears has its turn: else it would join, be removed for its silence, and so on forever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .ballots import Ballots
from .effects import Send
from .peer import Peer, Resent

GAP_NS: Final = 20_000_000
"""Votes are repeated to a joiner at most once in this time."""
HELPERS: Final = 4
"""Members that repeat the votes of all for a joiner, each time it asks again."""


class Repeats:
    """What one member repeats."""

    def __init__(self, station: int, ballots: Ballots) -> None:
        self._station = station
        self._ballots = ballots

    def is_due(self, now: int, peer: Peer) -> bool:
        """Has enough time passed since the last repetition to this joiner?"""
        return now - peer.resent.at_ns >= GAP_NS

    def votes_for(self, now: int, peer: Peer, incarnation: int, instance: int, members: Sequence[int]) -> list[Send]:
        """What to repeat to this incarnation, which asks again. instance, members: those of the present instance."""
        resent = peer.resent
        times = resent.times + 1 if resent.incarnation == incarnation else 1
        peer.resent = Resent(incarnation, times, now)
        entered = peer.admission is not None
        if peer.admission is not None:
            votes = [self._ballots.pdus((peer.admission.instance, peer.admission.proposal))]
        else:
            votes = self._ballots.pdus_for(instance, peer.station, incarnation)
        every = (entered or times > 1) and self.helps(peer.station, times, members)

        def repeats(voter: int) -> bool:
            return every or voter == self._station or (entered and voter not in members)

        return [Send(pdu) for pdus in votes for voter, pdu in pdus.items() if repeats(voter)]

    def helps(self, joiner: int, times: int, members: Sequence[int]) -> bool:
        """Is it this station's turn to repeat the votes of all, now that the joiner asks for this time?"""
        others = [k for k in members if k != joiner]
        return (others.index(self._station) - times * HELPERS) % len(others) < HELPERS
