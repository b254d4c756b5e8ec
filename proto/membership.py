"""The stop and recovery agreement at one member of an instance (DOP protocol, sections 3 and 4; dynamic instance groups).

As this station sees another one, j, it is

- ``A`` operational; ``AAS``: its stop is reported, not seen here; ``AS``: stop seen, being agreed; ``S``: stopped;
- ``SSA``: its recovery is reported, no RCV from it yet; ``SA``: recovery seen, being agreed.

Moves are the table in ``peerstate.py``, one station's record is ``peer.py``, votes and quorum are ``votes.py``. What others
report of a station, and when it is believed, is ``reports.py``; what is repeated to joiners is ``repeats.py``.

STOP, STOP_ACK and RCV_ACK are votes for a *proposal*: the instance after this one, its members, and what changes. They are PDUs
of their station's stream, so no station misses one, and all receive them in the same order. The rules, by their numbers in
docs/membership.md (rule 2 is M2 there; each names the methods that apply it; rule 9 is ``rivals.py``):

1. *Closing* (``_suspect``, ``_equalise``). A station that proposes to remove j reports how far it has accepted j's stream,
   accepts nothing beyond, and relies on no clock bound of j. If another voter has accepted more, it fetches that much and votes
   again (*equalisation*), so that in the end all report the same.
2. *Deciding* (``_advance``, ``_is_complete``, ``_is_decided``, ``_may_vote``). A proposal is complete when every voter (member
   now and then) has voted for it and the removed streams are held as far as the votes report. It is decided when also every voter
   is known to have every vote, or when a voter reports to be in that very instance. When any of the own votes is decided, the
   earliest complete one is applied first, and what is still open is proposed again for the instance after it. The earliest is the
   same at every voter, since the votes of a station in one instance grow: a later one includes the earlier ones
   (``votes.takes_in``).
3. *Quorum* (``_may_remove``, ``on_heard``). No removal is proposed that would leave fewer members than the quorum. The station is
   then blocked, and may withdraw its suspicion when the other is heard again.
4. *Place* (``_change_of``). The view event follows immediately after the last vote in the total order (the core sees to that, and
   to 4a and 5a).
5. *Joining* (``_admit``, ``_resend``). Several joiners join by one proposal; delivery waits for a joiner from the vote on.
6. *InstanceOver* (``_removed_by``, ``_leaves_out``): a complete proposal without this station, a later instance without it, or a
   removal that cannot finish in time end its incarnation in the instance.
7. *Restart* (``_is_restart``, ``_restarted_while_joining``). An RCV of a newer incarnation proves that the former one has
   stopped.
8. *Numbers* (``_reuses_issued``) are made durable before a vote with them leaves. No incarnation votes for a number up to the
   highest that it has issued for an opening: others may start that proposal yet.

Sans-I/O; calls the core to apply changes. Written for tens of stations: every method is at most O(n * n) and runs per vote, timer
or change of membership, never per frame. Tests break single rules by overriding the methods named here, or a part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from .ballots import Ballots
from .core import Commit, Vote
from .effects import Changed, Effect
from .openpdu import INSTANCE_MAX
from .outcomes import InstanceOver, Outcome
from .peer import Admission, Peer, Suspicion
from .peerstate import Cause, PeerState
from .repeats import Repeats
from .reports import Reports
from .streams import Streams
from .votes import Cast, ChangeProposal, Quorum, bits, encode_proposal, stations_of, takes_in
from .wire import Kind, view_hash

SEQ_MASK: Final = 2**32 - 1
FINAL: Final = frozenset({"left", "restarted", "expelled"})
"""Reasons that a received frame does not refute."""
DOUBTABLE: Final = frozenset({"silent", "told"})
"""Reasons that may hold for one station alone: what others receive speaks against them."""


class Membership:
    """The agreement at station ``station``, from ``begin`` to ``end``. Every method returns effects in order; among them may be
    one ``InstanceOver``, after which ``end`` is to be called."""

    reports_class: type[Reports] = Reports
    repeats_class: type[Repeats] = Repeats
    """For tests that break a rule: a subclass has others."""

    def __init__(
        self,
        *,
        stations: int,
        station: int,
        quorum: Quorum,
        fail_timeout_ns: int,
        adopt_timeout_ns: int,
        give_up_timeout_ns: int,
        frame_max_least: int,
        streams: Streams,
        promise: Callable[[int], Sequence[Effect]],
    ) -> None:
        """promise: makes an instance number durable before anything that comes after it leaves. frame_max_least: bytes of a PDU
        that every station can take, whatever its interface."""
        self._n = stations
        self._station = station
        self.quorum = quorum
        self._fail_ns = fail_timeout_ns
        self._adopt_ns = adopt_timeout_ns
        self._give_up_ns = give_up_timeout_ns
        self._frame_max_least = frame_max_least
        self._streams = streams
        self._promise = promise
        self.instance = 0
        """Number of the instance this station is in, 0: none."""
        self._base = 0  # the same, but kept after the end
        self._issued = 0
        self.incarnations: tuple[int, ...] = (0,) * stations
        """Of its members, by index; 0: no member."""
        self.moves: Counter[str] = Counter()
        """How often each state of a peer was left by which cause."""
        self._peers = {k: Peer(k, self.moves) for k in range(1, stations + 1)}
        self.changes = 0
        """Instances agreed on since start."""
        self.last_change_ns = 0
        self.withdrawals = 0
        """How often suspicions were taken back for want of quorum."""
        self._own_votes: list[ChangeProposal] = []
        self._ballots = Ballots(stations)
        self._reports = self.reports_class(station, self._peers, self._ballots, quorum, adopt_timeout_ns, self)
        self._repeats = self.repeats_class(station, self._ballots)
        self._newcomer = False  # has joined itself, so that it does not know what was before
        self._stuck_since_ns: int | None = None

    # ---- life
    def begin(self, now: int, instance: int, incarnations: tuple[int, ...], joined: bool = False, issued: int = 0) -> None:
        """This station has started in an instance, or has joined it (``joined``); the core is in it already. issued: the highest
        number that this incarnation has agreed to open an instance with."""
        self.instance = self._base = instance
        self._issued = issued
        self.incarnations = incarnations
        self._newcomer = joined
        self._note_incarnations()
        for k, peer in self._peers.items():
            peer.reset(PeerState.A if incarnations[k - 1] else PeerState.S)
        self._reports.unresponsive = frozenset()
        self._own_votes.clear()
        self._ballots.clear()
        self._stuck_since_ns = None
        self._streams.report_progress(False)
        self._streams.block(False)
        self.last_change_ns = now
        self._sync_core()

    def end(self, votes: Sequence[Vote] = ()) -> None:
        """It is in none any more. What it had voted for stays known, for ``late_change``. votes: those that the core has accepted
        and that were not looked at: it has acknowledged them, so that others may have gone on by them."""
        for vote in votes:
            self._ballots.receive(vote)
        self.instance = 0

    # ---- reads
    @property
    def peer_states(self) -> dict[int, PeerState]:
        """By station."""
        return {k: peer.state for k, peer in self._peers.items()}

    @property
    def members(self) -> tuple[int, ...]:
        """Of the present instance."""
        return tuple(k + 1 for k, incarnation in enumerate(self.incarnations) if incarnation)

    @property
    def view(self) -> int:
        """View hash of the present instance."""
        return view_hash(self.instance, self.incarnations)

    @property
    def target(self) -> tuple[int, ...]:
        """Members that are to stay."""
        return tuple(k for k in self.members if self._peers[k].suspicion is None)

    @property
    def target_indices(self) -> list[int]:
        """The same as indices, which the core counts by."""
        return [k - 1 for k in self.target]

    @property
    def has_quorum(self) -> bool:
        """Without those it suspects."""
        return self._may_remove(self.target)

    @property
    def proposed(self) -> int:
        """The instance number being agreed, 0: none."""
        return self.instance + 1 if self._own_votes else 0

    @property
    def busy(self) -> bool:
        """Something is being agreed, or would be if there were quorum."""
        return bool(self._own_votes) or any(p.suspicion or p.joining or p.reported_ns is not None for p in self._peers.values())

    @property
    def reported(self) -> tuple[int, ...]:
        """Stations in AAS, by station."""
        return self._reports.reported

    def last_incarnation(self, station: int) -> int:
        """The highest incarnation of it that was ever a member here: only later ones may join."""
        return self._peers[station].last_incarnation

    def held_incarnation(self, station: int) -> int:
        """Its incarnation as a member of the present instance, 0: it is none."""
        return self.incarnations[station - 1] if self.instance else 0

    def closed_by(self, index: int) -> frozenset[int]:
        """The members of whose streams this one takes nothing any more, because it has voted for their removal (rule 1);
        indices."""
        return frozenset(k - 1 for p, casts in self._reports.open_votes() if p.stop and index + 1 in casts for k in p.changed)

    def waiting(self) -> list[tuple[int, str, int]]:
        """(station, reason, since) of those that delivery waits for, by station."""
        out: list[tuple[int, str, int]] = []
        for k, p in self._peers.items():
            if p.suspicion:
                out.append((k, p.suspicion.reason, p.suspicion.since_ns))
            if p.state is PeerState.AAS and p.reported_ns is not None:
                out.append((k, "told", p.reported_ns))
            if p.waited_ns is not None and p.suspicion is None:
                out.append((k, "joining", p.waited_ns))
        return sorted(out)

    def bitmaps(self) -> tuple[int, int]:
        """(STATE, TRANS) as this station's CONFIRMs say them."""
        states = self.peer_states.items()
        return bits(k for k, state in states if state.state), bits(k for k, state in states if state.trans)

    def next_deadline_ns(self) -> int | None:
        """When ``on_time`` may have something to do, at the latest."""
        due = [p.reported_ns + self._adopt_ns for p in self._peers.values() if p.reported_ns is not None]
        if self._stuck_since_ns is not None:
            due.append(self._stuck_since_ns + self._give_up_ns)
        return min(due, default=None)

    # ---- inputs
    def suspect(self, now: int, *stops: tuple[int, str]) -> list[Outcome]:
        """The stops of these (station, reason) have been seen here, together. Harmless for a station that is suspected already,
        or no member."""
        suspected = [self._suspect(now, station, reason) for station, reason in stops]
        return self._advance(now) if any(suspected) else []

    def set_unresponsive(self, now: int, stations: Iterable[int]) -> list[Outcome]:
        """These have not been heard for a while, and are being asked whether they are there. Without them there must be quorum
        for a removal to be proposed: it could not be agreed, and could not be taken back. Nor do their votes count as reports
        until they are heard again."""
        return self._advance(now) if self._reports.set_unresponsive(now, stations) else []

    def on_heard(self, now: int, heard: Callable[[int], bool]) -> list[Outcome]:
        """``heard`` tells of a station whether it has been heard. Withdraws suspicions that could not be agreed on (rule 3): as
        soon as one of these stations is heard again, those of all, which then have another full time-out (``withdrawals`` has
        grown). Otherwise the first one to be heard would complete the quorum that removes the next."""
        if self._suspicions and not self.has_quorum:
            named = {k for proposal in self._own_votes if proposal.stop for k in proposal.changed}
            back = [k for k, s in self._suspicions.items() if k not in named and s.reason not in FINAL]
            if any(map(heard, back)):
                self.withdrawals += 1
                for k in back:
                    self._streams.limit(now, k - 1, None)
                    self._peers[k].move(Cause.WITHDRAWN)
                self._reports.reapply(now)
                self._reports.review(now, heard)
                return self._advance(now)
        self._reports.review(now, heard)
        return []

    def on_votes(self, now: int, votes: Sequence[Vote]) -> list[Outcome]:
        """Votes have been accepted, each in its stream's order: all that the core has acknowledged. All are recorded before any
        consequence: others may have applied the earliest proposal because of those acknowledgements, and here as well it must be
        complete before a later one is applied."""
        proposals = [self._ballots.receive(vote) for vote in votes] if self.instance else []
        for vote, proposal in zip(votes, proposals, strict=False):
            if proposal is not None and vote.instance == self.instance:
                self._reports.apply(now, vote.src + 1, proposal)
        return self._advance(now) if any(proposals) else []

    def note_incarnation(self, station: int, incarnation: int) -> None:
        """A member reports that this incarnation of a station has been a member."""
        peer = self._peers[station]
        if not self.incarnations[station - 1]:
            peer.last_incarnation = max(peer.last_incarnation, incarnation)
            if 0 < peer.joining <= peer.last_incarnation:
                peer.joining = 0
                peer.move(Cause.STOP_WINS)

    def on_recovering(self, now: int, station: int, incarnation: int, frame_max: int = 0) -> list[Outcome]:
        """An RCV (or OPEN) of a station that is in no instance; ``frame_max``: largest PDU it can take, bytes, 0: unknown."""
        if not self.instance:
            return []
        peer, present = self._peers[station], self.incarnations[station - 1]
        peer.latest_asked = max(peer.latest_asked, incarnation)
        if present:
            if self._is_restart(station, incarnation):
                if peer.suspicion:  # for whatever reason: now it is proved
                    peer.suspicion.reason = "restarted"
                return self.suspect(now, (station, "restarted"))
            asks = incarnation == present and not self._has_spoken(station)
            return self._resend(now, peer, incarnation) if asks else []
        if self._suspicions or self.reported or incarnation <= peer.last_incarnation or incarnation < peer.joining:
            return []  # a stop is agreed first, it will ask again; or an old frame
        if peer.joining == incarnation:
            return self._resend(now, peer, incarnation)
        if now < peer.not_before_ns:
            return []  # it comes and goes
        if not peer.last_incarnation and self._newcomer and incarnation != peer.asked:
            peer.asked = incarnation
            return []  # a newcomer does not know which incarnations are used up: the others report it if this one is
        peer.frame_max = frame_max
        self._admit(station, incarnation)
        return self._advance(now)

    def on_confirm(self, now: int, station: int, instance: int, view: int, state: int, trans: int) -> list[Outcome]:
        """A CONFIRM of a later instance than the own: it proves a decision, or that this station is out."""
        if not self.instance or instance <= self.instance:
            return []
        if instance == self.instance + 1:
            for proposal in self._own_votes:
                if self._is_complete(proposal) and self._hash_of(proposal) == view:
                    return self._commit(now, proposal) + self._advance(now)
        if not self._leaves_out(state, trans):
            return []
        return [InstanceOver(f"station {station} is in instance {instance}, which goes on without this one", station)]

    def on_progress(self, now: int) -> list[Outcome]:
        """Something has been accepted or acknowledged."""
        return self._advance(now) if self.instance else []

    def on_time(self, now: int) -> list[Outcome]:
        """Adopt what others have reported for long enough; give up what does not get agreed."""
        if not self.instance:
            return []
        if self._stuck_since_ns is not None and now - self._stuck_since_ns >= self._give_up_ns:
            words = ", ".join(f"station {k} ({reason})" for k, reason, _ in self.waiting())
            what = "no agreement" if self.has_quorum else "no quorum"
            return [InstanceOver(f"{what} without {words} for {self._give_up_ns // 1_000_000} ms", self._station, False)]
        accuser = self._reports.own_accuser()
        effects = self.suspect(now, (accuser, "accuses")) if accuser is not None else []
        due = self._reports.due(now) if self.instance else []
        return effects + (self.adopt(now, due) if due else [])

    def restart_timeouts(self, now: int) -> None:
        """This station did not run for a while: no peer had a chance meanwhile, and every wait begins again."""
        for peer in self._peers.values():
            peer.reported_ns = None if peer.reported_ns is None else now
        self._stuck_since_ns = None if self._stuck_since_ns is None else now

    def adopt(self, now: int, stations: Iterable[int], unheard: bool = False) -> list[Outcome]:
        """Accept the reports of other members about stations in AAS or SSA. ``unheard``: they have been silent here as well. A
        single accuser is not believed against what is heard: it is the one to be removed, if it insists. Of two that accuse each
        other all believe the one with the lower number; and no station is believed at the price of the quorum."""
        moved = False
        for k in sorted(stations, reverse=True):
            peer = self._peers[k]
            if peer.state is PeerState.AAS:
                verdict = self._reports.verdict(k, unheard)
                moved |= verdict is not None and self._suspect(now, *verdict)
            elif peer.state is PeerState.SSA and not self._suspicions:
                voted = [dict(p.changes)[k] for p, _ in self._reports.open_votes() if not p.stop and k in p.changed]
                if max(voted, default=0) > peer.last_incarnation:
                    self._admit(k, max(voted))
                    moved = True
                else:
                    peer.move(Cause.STOP_WINS)
            elif peer.state is PeerState.SSA:
                peer.reported_ns = now
        return self._advance(now) if moved else []

    def late_change(self, view: int) -> ChangeProposal | None:
        """After ``end``: the complete own proposal that leads to this view, if there is one. Some member has carried it out."""
        return next((p for p in self._own_votes if self._is_complete(p) and self._hash_of(p) == view), None)

    def late_commit(self, now: int, proposal: ChangeProposal) -> bool:
        """After ``end``: pass that view to the core, which then flushes it. False: it has no room for one more view event."""
        change = self._change_of(proposal)
        if not self._streams.commit(now, change):
            return False
        self.incarnations = change.incarnations
        self._own_votes.clear()
        return True

    # ---- rule 1: closing
    def _suspect(self, now: int, station: int, reason: str) -> bool:
        """Close its stream and want it removed. False: it is this station, no member, or suspected already."""
        peer = self._peers[station]
        if station == self._station or not self.incarnations[station - 1] or peer.suspicion:
            return False
        req = self._streams.peer(station - 1).req
        peer.suspicion = Suspicion(reason, now, req)
        peer.move(Cause.STOP_SEEN)
        self._streams.limit(now, station - 1, req)
        self.cancel_joins()
        return True

    def _equalise(self, now: int) -> None:
        """Limits are what any voter that stays has accepted; one that is being removed itself proves nothing."""
        reported: dict[int, int] = {}
        for proposal, casts in self._reports.open_votes():
            if not proposal.stop or not self._reports.staying(casts):
                continue
            for k, value in proposal.changes:
                if self._peers[k].suspicion:
                    req = self._streams.peer(k - 1).req
                    wide = req + ((value - req + 2**31) & SEQ_MASK) - 2**31
                    reported[k] = max(reported.get(k, 0), wide)
        for k, suspicion in self._suspicions.items():
            limit = max(self._streams.peer(k - 1).req, reported.get(k, 0))
            if limit != suspicion.limit:
                suspicion.limit = limit
                self._streams.limit(now, k - 1, limit)

    def _holds_streams(self, ends: Iterable[tuple[int, int]]) -> bool:
        """Are the streams of these (station, sequence number mod 2**32) accepted right up to there?"""
        return all(self._streams.peer(k - 1).req & SEQ_MASK == end & SEQ_MASK for k, end in ends)

    # ---- rule 2: deciding
    def _advance(self, now: int) -> list[Outcome]:
        """All that follows from what is known now: votes, decisions, expulsion."""
        effects: list[Outcome] = []
        while self.instance:  # bound: every round but the last applies a proposal
            self._equalise(now)
            if self._reuses_issued():
                words = f"instance {self.instance + 1} may be another one, which this life has agreed to open (rule 8)"
                return [*effects, InstanceOver(words, self._station, False)]
            effects += self._propose(now)
            done = [p for p in self._own_votes if self._is_complete(p)]
            if not any(self._is_decided(p) for p in done):
                break
            carried = self._commit(now, done[0])
            if not carried:
                break
            effects += carried
        if self.instance and (by := self._removed_by()):
            names = ", ".join(map(str, by))
            return [*effects, InstanceOver(f"stations {names} have agreed to go on without this one", by[0])]
        self._sync_core()
        gone = [k for k, s in self._suspicions.items() if s.reason == "restarted"]
        if gone and not self.quorum(set(self.members) - set(gone)):
            names = ", ".join(f"station {k} (restarted)" for k in gone)
            return [*effects, InstanceOver(f"no quorum without {names}", self._station, False)]  # it will never come back
        if self._suspicions or self._awaited:  # what waits for a joiner waits as much as what waits for a stop
            self._stuck_since_ns = self._stuck_since_ns if self._stuck_since_ns is not None else now
        else:
            self._stuck_since_ns = None
        return effects

    def _wanted(self) -> ChangeProposal | None:
        """What to propose now: removals before joins, and only what could be agreed."""
        if suspicions := self._suspicions:
            if not self.has_quorum or not self._may_remove(set(self.target) - self._reports.unresponsive):
                return None
            if not self._holds_streams((k, s.limit) for k, s in suspicions.items()):
                return None  # once they are in, not per PDU
            reqs = ((k, self._streams.peer(k - 1).req & SEQ_MASK) for k in suspicions)
            return ChangeProposal(True, self.target, tuple(reqs))
        joining = {k: p.joining for k, p in self._peers.items() if p.joining}
        if joining:
            return ChangeProposal(False, tuple(sorted({*self.members, *joining})), tuple(joining.items()))
        return None

    def _propose(self, now: int) -> list[Outcome]:
        """Vote for the changes that are due, unless that has been done: a vote counts once, and its place is that of the first
        one."""
        proposal = self._wanted()
        if proposal is None or proposal in self._own_votes or self.instance >= INSTANCE_MAX or not self._may_vote(proposal):
            return []
        suspicions = self._suspicions
        seen = any(s.reason != "told" for s in suspicions.values())
        kind = (Kind.STOP if seen else Kind.STOP_ACK) if proposal.stop else Kind.RCV_ACK
        effects: list[Outcome] = [*self._promise(self.instance + 1)]
        state, trans = self.bitmaps()
        trans &= ~bits(k for k, s in suspicions.items() if s.reason not in DOUBTABLE)
        cast = self._streams.propose(now, kind, encode_proposal(proposal, state=state, trans=trans))
        if cast is None:
            return effects
        seq, clock, pdu = cast
        self._remember_vote(proposal)
        self._ballots.note((self.instance, proposal), Cast(clock, self._station, seq), pdu)
        for k in proposal.changed if not proposal.stop else ():
            if self._peers[k].waited_ns is None:
                self._peers[k].waited_ns = now
                self._streams.wait_for(k - 1, clock - 1, self._frame_max_of(k))
        return effects

    def _may_vote(self, proposal: ChangeProposal) -> bool:
        """Votes grow: one that does not take in the last one waits until it does, or this station gives up."""
        return not self._own_votes or takes_in(proposal, self._own_votes[-1])

    def _remember_vote(self, proposal: ChangeProposal) -> None:
        """A later vote never hides an earlier one, which others may have applied."""
        self._own_votes.append(proposal)

    def _voters(self, proposal: ChangeProposal) -> set[int]:
        return set(proposal.members) & set(self.members)

    def _is_complete(self, proposal: ChangeProposal) -> bool:
        if not self._voters(proposal) <= self._ballots.casts((self._base, proposal)).keys():
            return False
        return not proposal.stop or self._holds_streams(proposal.changes)

    def _is_decided(self, proposal: ChangeProposal) -> bool:
        """Is every voter known to have every vote?"""
        casts = self._ballots.casts((self.instance, proposal))
        voters = self._voters(proposal)
        return self._streams.all_have(bits(voters), {k - 1: casts[k].seq for k in voters})

    def _commit(self, now: int, proposal: ChangeProposal) -> list[Outcome]:
        """Carry it out; nothing if the core cannot yet."""
        change = self._change_of(proposal)
        if not self._streams.commit(now, change):
            return []
        before, voted_in = self.members, self.instance
        # The commit ends what the core kept for the instance before; what is still open is proposed again afterwards.
        effects: list[Outcome] = [*self._promise(change.instance)]
        self.instance = self._base = change.instance
        self.incarnations = change.incarnations
        self._note_incarnations()
        joined = () if proposal.stop else proposal.changed
        left = tuple(k for k in before if k not in proposal.members)
        self._own_votes.clear()
        self.changes += 1
        self.last_change_ns = now
        for peer in self._peers.values():
            if peer.reported_ns is not None:
                peer.reported_ns = None
                if peer.station not in proposal.changed:
                    peer.move(Cause.WITHDRAWN if peer.state is PeerState.AAS else Cause.STOP_WINS)
        for k in left:
            self._peers[k].admission = None
            self._peers[k].move(Cause.REMOVED)
            self._peers[k].back_off(now, self._fail_ns)
        if proposal.stop:
            self._cancel_joins_after_stop()
        else:
            for k, incarnation in proposal.changes:
                self._joined(now, self._peers[k], Admission(incarnation, voted_in, proposal))
            self._end_waits()  # a promise for a later union of joiners: votes for it come again
        for peer in self._peers.values():
            if 0 < peer.joining <= self.incarnations[peer.station - 1]:
                peer.joining = 0
        admissions = [p.admission for p in self._peers.values() if p.admission]
        self._ballots.forget_before(change.instance, ((a.instance, a.proposal) for a in admissions))
        self._reports.reapply(now)
        for k in self._restarted_while_joining():
            self._suspect(now, k, "restarted")
        self._sync_core()
        self._streams.heartbeat(now)
        self._stuck_since_ns = None  # another round, another time-out
        return [*effects, Changed(change.instance, change.incarnations, joined, left)]

    # ---- rule 3: quorum
    def _may_remove(self, staying: Iterable[int]) -> bool:
        """Are those that would stay enough?"""
        return self.quorum(staying)

    # ---- rule 4: place
    def _after(self, proposal: ChangeProposal) -> tuple[int, tuple[int, ...]]:
        """The instance a proposal leads to: number, incarnations by index."""
        members = {k: self.incarnations[k - 1] for k in proposal.members}
        if not proposal.stop:
            members.update(proposal.changes)
        return self._base + 1, tuple(members.get(k, 0) for k in range(1, self._n + 1))

    def _hash_of(self, proposal: ChangeProposal) -> int:
        return view_hash(*self._after(proposal))

    def _change_of(self, proposal: ChangeProposal) -> Commit:
        """What the core needs to apply a complete proposal: the view event follows the last vote."""
        instance, incarnations = self._after(proposal)
        casts = self._ballots.casts((instance - 1, proposal))
        voters = self._voters(proposal)
        place = max(casts[k] for k in voters)
        joined = () if proposal.stop else proposal.changed
        return Commit(
            instance=instance,
            view=view_hash(instance, incarnations),
            members=bits(proposal.members),
            joined=bits(joined),
            place_clock=place.clock,
            place_src=place.station - 1,
            frame_max=min(map(self._frame_max_of, joined), default=0),
            incarnations=incarnations,
            vote_seq={k - 1: casts[k].seq for k in voters},
        )

    # ---- rule 5: joining
    def _admit(self, station: int, incarnation: int) -> None:
        """Want it to join; and again all that an own vote in this instance admits, though a stop that was seen since, and taken
        back, has made this station forget that they asked: votes grow (rule 2)."""
        for k, number in {**self._voted_joins(), station: incarnation}.items():
            peer = self._peers[k]
            if peer.joining < number and peer.last_incarnation < number:
                peer.joining = number
                peer.move(Cause.RECOVERY_SEEN)

    def _voted_joins(self) -> dict[int, int]:
        """The joiners of the last own vote for a join: station to incarnation."""
        return next((dict(p.changes) for p in reversed(self._own_votes) if not p.stop), {})

    def cancel_joins(self) -> None:
        """Some stop is being agreed: joiners must ask again. Votes given stand."""
        for peer in self._peers.values():
            if peer.joining or peer.state is PeerState.SSA:
                peer.joining = 0
                peer.move(Cause.STOP_WINS)

    def _cancel_joins_after_stop(self) -> None:
        """A stop has been decided: joiners are voted for again in the next instance."""
        self.cancel_joins()
        self._end_waits()

    def _joined(self, now: int, peer: Peer, admission: Admission) -> None:
        if peer.joining == admission.incarnation:
            peer.joining = 0
        peer.waited_ns = None
        peer.admission = admission
        peer.admitted_ns = now
        peer.move(Cause.ADMITTED)

    @property
    def awaited(self) -> tuple[int, ...]:
        """Stations about to join: what is sent from now on they must be able to take."""
        return tuple(peer.station for peer in self._awaited)

    def _end_waits(self) -> None:
        """Delivery waits for no joiner any more."""
        for peer in self._awaited:
            self._streams.wait_for(peer.station - 1, None)
            peer.waited_ns = None

    def _resend(self, now: int, peer: Peer, incarnation: int) -> list[Outcome]:
        """A joiner has not got all votes, or not heard that they were enough."""
        if not self._repeats.is_due(now, peer):
            return []
        if peer.admission:
            self._streams.heartbeat(now)
        return [*self._repeats.votes_for(now, peer, incarnation, self.instance, self.members)]

    def _has_spoken(self, station: int) -> bool:
        """Has this member said anything in an instance with its present incarnation? Then it asks no more: what comes is an old
        copy of its RCV, or a recording."""
        return self._streams.peer(station - 1).instance > 0

    def _frame_max_of(self, joiner: int) -> int:
        """Largest PDU that it can take, bytes; the smallest allowed if it has not reported one."""
        return self._peers[joiner].frame_max or self._frame_max_least

    # ---- rule 6: expelled
    def _removed_by(self) -> list[int]:
        """The voters of a complete proposal without this station."""
        for p, casts in self._reports.open_votes():
            if not p.stop or self._station in p.members or not self.quorum(p.members):
                continue
            if self._voters(p) <= casts.keys():
                return sorted(self._voters(p))
        return []

    def _leaves_out(self, state: int, trans: int) -> bool:
        """Whether these bitmaps, of a member of a later instance that has quorum, show that this station is removed. If not, the
        votes will arrive."""
        bit = 1 << (self._station - 1)
        everybody = (1 << self._n) - 1
        return bool(state & bit) and not trans & bit and self.quorum(stations_of(everybody & ~state))

    # ---- rule 7: restart
    def _is_restart(self, station: int, incarnation: int) -> bool:
        return incarnation > self.incarnations[station - 1]

    def _restarted_while_joining(self) -> list[int]:
        """Members that asked with a later incarnation than the one that has joined now, even if the request was not heeded then:
        the core does not show the same RCV again for a while."""
        return [k for k, peer in self._peers.items() if 0 < self.incarnations[k - 1] < max(peer.joining, peer.latest_asked)]

    # ---- rule 8: numbers
    def _reuses_issued(self) -> bool:
        """Would the next vote be for a number that this incarnation has issued for an opening?"""
        return self.instance < self._issued and self._wanted() is not None

    # ---- small
    @property
    def _suspicions(self) -> dict[int, Suspicion]:
        """By station, in their order."""
        return {k: peer.suspicion for k, peer in self._peers.items() if peer.suspicion}

    @property
    def _awaited(self) -> list[Peer]:
        """Joiners that delivery waits for, by station."""
        return [peer for peer in self._peers.values() if peer.waited_ns is not None]

    def _note_incarnations(self) -> None:
        for k, peer in self._peers.items():
            peer.last_incarnation = max(peer.last_incarnation, self.incarnations[k - 1])

    def _sync_core(self) -> None:
        self._streams.set_state(*self.bitmaps())
        self._streams.block(bool(self._suspicions) and not self.has_quorum)
        self._streams.report_progress(self.busy or bool(self._ballots))
