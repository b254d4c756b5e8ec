"""An opening in which proposals find no agreement, because not all stations hear each other: what to propose instead.

A member that proposes nothing, or ``WITHOUT_MAX`` times a set without this station's incarnation or the same lower number again,
does not hear this station and is left out for a while. Otherwise the largest set will do that any of them proposes with quorum
and this station in it. One station that hears all of it is enough, the others start late by its word. If it is the own set, it
is proposed again under a number that all can take. If it is not, it is kept ``KEPT_MAX`` times, and not taken again for a while:
a station in it may be gone, and all that take it from each other would never notice.

Sans-I/O. Times are monotonic nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from .openpdu import INSTANCE_MAX, Members, OpenPdu, OpenProposal
from .pace import Pace

WITHOUT_MAX: Final = 3
"""A member that has not followed at this many looks in a row does not hear this station."""
KEPT_MAX: Final = 1
"""Looks at which a set that is not the own one is kept; then it has failed."""
EXCLUDED_WINDOWS: Final = 8
"""A station that is left out is left out for this long, and up to as long again."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The last OPEN of a station."""

    pdu: OpenPdu
    at_ns: int
    mac: bytes


class Settling:
    """One per ``Opening``, which calls ``settle`` each time its latest proposal counts as failed."""

    def __init__(
        self,
        station: int,
        pace: Pace,
        heard: Mapping[int, Heard],
        agreeable: Callable[[OpenProposal], bool],
        jitter: Callable[[int], int],
    ) -> None:
        """heard: by station, kept up to date by the caller. agreeable: could this station agree to that proposal? jitter: a
        number of at least 0 and below the argument, different at each station."""
        self._station = station
        self._pace = pace
        self._heard = heard
        self._agreeable = agreeable
        self._jitter = jitter
        self._excluded: dict[int, int] = {}  # stations that were heard and did not agree: left out until then
        self.taken: OpenProposal | None = None
        """The last result of ``settle``, another station's set or the own one; None: the own set again."""
        self.agreed()

    def agreed(self) -> None:
        """An instance has begun: what found no agreement before it counts no longer."""
        self._kept = 0  # looks at which a set that is not the own one has been kept
        self._failed: dict[Members, int] = {}  # sets that were kept in vain: not taken again until then
        self._without: dict[int, int] = {}  # how often in a row members have not followed
        self._proposals: dict[int, OpenProposal] = {}  # what they proposed at the last look

    def leaves_out(self, now: int, station: int) -> bool:
        return now < self._excluded.get(station, 0)

    def settle(self, now: int, latest: OpenProposal, own: OpenProposal, incarnation: int, highest: int) -> OpenProposal | None:
        """What to issue instead of ``latest``, ``latest`` itself to keep it, None for a new one with the own set. own: that set;
        its number does not count. incarnation: of this station. highest: instance number known so far."""
        foreign = latest == self.taken and latest[1:] != own[1:]
        self._kept = self._kept + 1 if foreign else 0
        if self._kept > KEPT_MAX:
            self._failed[latest.members] = now + 2 * EXCLUDED_WINDOWS * self._pace.window_ns
        offered, without, deaf = self._answers(now, latest, incarnation)
        if self._agreeable(own):
            offered.append(own)
        for station in deaf:
            # Not for the same time everywhere: two that leave each other out would be back together, and do it again.
            wait = EXCLUDED_WINDOWS * self._pace.window_ns
            self._excluded[station] = now + wait + self._jitter(wait)
        self.taken = self._choose(latest, own, offered, without, bool(deaf), highest)
        if self.taken not in (latest, None):
            self._kept = 0
        return self.taken

    def _choose(
        self, latest: OpenProposal, own: OpenProposal, offered: list[OpenProposal], without: int, deaf: bool, highest: int
    ) -> OpenProposal | None:
        best = max(offered, key=lambda p: (len(p.members), p.instance), default=latest)
        mine = best[1:] == own[1:]
        if deaf or (mine and latest[1:] != own[1:]):
            return None
        if latest.instance < best.instance <= highest:
            return best
        largest = mine and len(own.members) > without
        return latest._replace(instance=highest + 1) if largest and latest.instance < highest < INSTANCE_MAX else latest

    def _answers(self, now: int, latest: OpenProposal, incarnation: int) -> tuple[list[OpenProposal], int, list[int]]:
        """What the other members of it propose instead: the sets that this station could take; the size of the largest one of a
        member that does not follow it; the members to leave out."""
        offered: list[OpenProposal] = []
        largest, deaf = 0, list[int]()
        counts, before = self._without, self._proposals
        self._without, self._proposals = {}, {}
        for station, _ in latest.members:
            heard = self._heard.get(station)
            if station == self._station or heard is None or now - heard.at_ns >= self._pace.window_ns:
                continue
            proposal = heard.pdu.proposal
            if proposal is None:
                deaf.append(station)
                continue
            self._proposals[station] = proposal
            behind = proposal.instance < latest.instance and before.get(station) == proposal
            if behind or proposal.incarnation_of(self._station) != incarnation:
                largest = max(largest, len(proposal.members))
                self._without[station] = counts.get(station, 0) + 1
                if self._without[station] >= WITHOUT_MAX:
                    deaf.append(station)
            elif now >= self._failed.get(proposal.members, 0) and self._agreeable(proposal):
                offered.append(proposal)
        return offered, largest, deaf
