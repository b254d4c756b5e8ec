"""The proposals that one incarnation has issued in an opening (``opening.py``): which of them is the latest, complete, or
started.

Why two stations cannot start different instances: issued numbers only grow, and a station judges only the proposal that it issued
last, or one of its own that a member reports as STARTED. A station that has started P issues nothing later, so a later P' of
which it is a member never completes. An earlier one cannot have been started by a member either, since that member later issued
P. Any two sets with quorum share a member. Only a station that starts P late may have issued a later P' without the member that
reported the start. Others may start P', but it cannot deliver anything without this station, which therefore votes for no number
up to that of P' (``highest``; rule 8 of ``membership.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .errors import invariant
from .openpdu import BY_VOTES, OpenPdu, OpenProposal, Past
from .settling import Heard
from .wire import view_hash

ISSUED_MAX: Final = 256
"""Own proposals remembered. A member that has STARTED an older one sends this station into a new incarnation."""


class Issued:
    """Of one station. The caller keeps ``heard``, the last OPEN of each station, up to date."""

    def __init__(self, station: int, stations: int, heard: Mapping[int, Heard]) -> None:
        self._station = station
        self._n = stations
        self._heard = heard
        self._proposals: dict[OpenProposal, None] = {}  # in order

    def __contains__(self, proposal: OpenProposal | None) -> bool:
        return proposal in self._proposals

    @property
    def latest(self) -> OpenProposal | None:
        return next(reversed(self._proposals), None)

    @property
    def highest(self) -> int:
        """The highest instance number among them, 0: none."""
        return max((proposal.instance for proposal in self._proposals), default=0)

    def add(self, proposal: OpenProposal) -> None:
        latest = self.latest
        invariant(latest is None or proposal.instance > latest.instance, "issued instance numbers grow")
        self._proposals[proposal] = None
        if len(self._proposals) > ISSUED_MAX:
            del self._proposals[next(iter(self._proposals))]

    def clear(self) -> None:
        self._proposals.clear()

    def is_complete(self, proposal: OpenProposal) -> bool:
        """Whether every member has issued it, by its last OPEN."""
        return all(
            station == self._station
            or (
                (heard := self._heard.get(station)) is not None
                and heard.pdu.proposal == proposal
                and heard.pdu.incarnation == life
            )
            for station, life in proposal.members
        )

    def begun(self, pdu: OpenPdu) -> OpenProposal | None:
        """A proposal that another station has started and left again: its view is the past of the sender, or of any member of the
        sender's proposal, which need not be heard itself. It is started first. Otherwise this station would skip it, and lack
        what was delivered of the former instance when it was started."""
        pasts = [pdu.past, *(Past(view, reached) for _, view, reached in (pdu.proposal.pasts if pdu.proposal else ()))]
        brought = {past.view for past in pasts if past.view and not past.reached & BY_VOTES}
        return next((p for p in self._proposals if self._view_of(p) in brought), None)

    def with_view(self, src: int, instance: int, view: int) -> OpenProposal | None:
        """The one of this number and view hash, of which ``src`` is a member."""
        of_number = (p for p in self._proposals if p.instance == instance and p.incarnation_of(src))
        return next((p for p in of_number if self._view_of(p) == view), None)

    def incarnations_of(self, proposal: OpenProposal) -> tuple[int, ...]:
        """Of its members, by index; 0: no member."""
        lives = dict(proposal.members)
        return tuple(lives.get(station, 0) for station in range(1, self._n + 1))

    def _view_of(self, proposal: OpenProposal) -> int:
        return view_hash(proposal.instance, self.incarnations_of(proposal))
