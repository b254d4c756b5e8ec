"""What other members of an instance report of a station by their votes, and which of these reports this station believes.

A report that a station has stopped puts it in AAS, one that it recovers puts it in SSA (DOP protocol, sections 3.2 and 3.3).
Reports that have stood for ``adopt_timeout`` are due: ``Membership.adopt`` makes them this station's own view then, as far as
``verdict`` agrees.

One witness is not enough against what this station receives itself: a single accuser that only does not hear the accused station
is removed itself if it insists (docs/membership.md, "One witness").

Sans-I/O. Stations are numbers 1..n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from .ballots import Ballots
from .peer import Peer
from .peerstate import Cause, PeerState
from .votes import Cast, ChangeProposal, Quorum


class Present(Protocol):
    """The instance that this station is in."""

    instance: int
    incarnations: tuple[int, ...]

    @property
    def members(self) -> tuple[int, ...]: ...

    @property
    def target(self) -> tuple[int, ...]:
        """Members that are to stay."""

    def cancel_joins(self) -> None:
        """Some stop is being agreed: joiners must ask again."""


class Reports:
    """The reports at one member. It moves peers to and from AAS and SSA, and decides nothing else."""

    def __init__(
        self, station: int, peers: Mapping[int, Peer], ballots: Ballots, quorum: Quorum, adopt_timeout_ns: int, present: Present
    ) -> None:
        """peers: all stations, this one included. ballots: the votes that have come."""
        self._station = station
        self._peers = peers
        self._ballots = ballots
        self._quorum = quorum
        self._adopt_ns = adopt_timeout_ns
        self._present = present
        self.unresponsive: frozenset[int] = frozenset()
        """Members not heard for a while, and asked whether they are there: their reports do not count until they are heard."""

    # ---- what others report
    def apply(self, now: int, station: int, proposal: ChangeProposal) -> None:
        """A vote of a member in the present instance reports something, beyond its counting."""
        if station == self._station or self._peers[station].suspicion:
            return
        for k, value in proposal.changes:
            peer = self._peers[k]
            if k == self._station:
                continue
            if proposal.stop and station in self.unresponsive:
                continue
            if proposal.stop and peer.state is PeerState.A and self._present.incarnations[k - 1]:
                peer.reported_ns = now
                peer.move(Cause.STOP_REPORTED)
                self._present.cancel_joins()
            elif proposal.stop or value <= peer.last_incarnation:
                continue  # a newcomer does not know which incarnations are used up
            elif peer.state is PeerState.S and not self._is_stopping:
                peer.reported_ns = now
                peer.move(Cause.RECOVERY_REPORTED)

    def reapply(self, now: int) -> None:
        """Apply the votes of this instance that have come already."""
        for proposal, casts in self.open_votes():
            for station in casts:
                self.apply(now, station, proposal)

    def set_unresponsive(self, now: int, stations: Iterable[int]) -> bool:
        """These have not been heard for a while. Returns whether they are others than before."""
        unresponsive = frozenset(stations)
        if unresponsive == self.unresponsive:
            return False
        back, self.unresponsive = self.unresponsive - unresponsive, unresponsive
        if back:
            self.reapply(now)
        return True

    def review(self, now: int, heard: Callable[[int], bool]) -> None:
        """AAS ends when the station is heard and every accuser has stopped, SSA when no voter for it stays."""
        refuted = [k for k in self.reported if heard(k) and not self.accusers(k)]
        for k in refuted:
            self._peers[k].move(Cause.WITHDRAWN)
        if refuted:
            self.reapply(now)  # votes for joins, which were passed over meanwhile
        for peer in self._peers.values():
            if peer.state is PeerState.SSA and not self._sponsors(peer.station):
                peer.move(Cause.STOP_WINS)

    # ---- what is known
    @property
    def reported(self) -> tuple[int, ...]:
        """Stations in AAS."""
        return tuple(p.station for p in self._peers.values() if p.state is PeerState.AAS)

    @property
    def _is_stopping(self) -> bool:
        """Some stop has been seen here or is reported."""
        return any(p.suspicion or p.state is PeerState.AAS for p in self._peers.values())

    def open_votes(self) -> Iterator[tuple[ChangeProposal, dict[int, Cast]]]:
        """What has been proposed in the present instance, and which stations have voted for it."""
        return self._ballots.of_instance(self._present.instance)

    def staying(self, casts: Iterable[int]) -> list[int]:
        """Those of these voters that this station does not want removed itself."""
        return [k for k in casts if k in self._present.members and not self._peers[k].suspicion]

    def accusers(self, station: int) -> list[int]:
        """The other members that want this one removed, and can be relied on."""
        votes = (casts for p, casts in self.open_votes() if p.stop and station in p.changed)
        return [k for casts in votes for k in self.staying(casts) if k not in self.unresponsive and k != self._station]

    def lone_accuser(self, station: int) -> int | None:
        """The one station that wants this one (or the own station) removed, and only because it does not hear it; None: there is
        none, more than one, or it is sure."""
        accusers = set(self.accusers(station))
        votes = [cast for p, casts in self.open_votes() if p.stop for k, cast in casts.items() if k in accusers]
        sure = any(cast.sure >> station - 1 & 1 for cast in votes)
        return accusers.pop() if len(accusers) == 1 and not sure else None

    def _sponsors(self, station: int) -> list[int]:
        """The members that have voted for this one to join."""
        votes = (casts for p, casts in self.open_votes() if not p.stop and station in p.changed)
        return [k for casts in votes for k in self.staying(casts)]

    # ---- what follows
    def due(self, now: int) -> list[int]:
        """Stations of which others have reported a stop or a recovery for ``adopt_timeout``."""
        return [k for k, p in self._peers.items() if p.reported_ns is not None and now - p.reported_ns >= self._adopt_ns]

    def verdict(self, station: int, unheard: bool) -> tuple[int, str] | None:
        """Which station to suspect now that others accuse ``station``, and why; None: neither. unheard: this station does not
        hear it either."""
        accusers = self.accusers(station)
        lone = None if unheard else self.lone_accuser(station)
        if lone is not None and station in self.accusers(lone):  # each other
            lone = None if station > lone else lone
        if lone is not None and self._is_quorum_without(lone):
            return lone, "accuses"
        if accusers and self._is_quorum_without(station):
            return station, "told"
        return None

    def own_accuser(self) -> int | None:
        """The only station that votes to remove this one, if it can be removed itself: a third one reports that."""
        lone = self.lone_accuser(self._station)
        return lone if lone is not None and self.accusers(lone) and self._is_quorum_without(lone) else None

    def _is_quorum_without(self, station: int) -> bool:
        return self._quorum(set(self._present.target) - {station})
