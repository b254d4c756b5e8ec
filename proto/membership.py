"""The stop and recovery agreement at one member of an instance (DOP protocol, sections 3 and 4; dynamic instance groups).

As this station sees another one, j, it is

- ``A`` operational; ``AAS``: told of its stop, not seen it here; ``AS``: stop seen, being agreed; ``S``: stopped;
- ``SSA``: told of its recovery, no RCV from it yet; ``SA``: recovery seen, being agreed.

Moves are the table in ``letters.py``; votes and quorum are ``votes.py``.

STOP, STOP_ACK and RCV_ACK are votes for a *proposal*: the instance after this one, its members, and what changes. They stand in
their station's stream, so that nobody misses one and everybody sees them in the same order. The rules, by the numbers the docs
use:

1. *Closing.* Whoever proposes to remove j says how far it has accepted j's stream, accepts nothing beyond, and believes no
   promise of j. If another voter has accepted more, it fetches that much and votes again (*equalisation*), so that in the end
   all say the same.
2. *Deciding.* A proposal is complete when every voter (member now and then) has voted for it and the removed streams are held
   as far as the votes say. It is decided when also every voter is known to have every vote; or when a voter says that it is in
   that very instance. When anything of the own votes is decided, the earliest complete one is carried out first, and what is
   still open is proposed anew for the instance after it. The earliest is the same one at every voter, since the votes of a
   station in one instance grow: a later one takes in the earlier ones (``votes.takes_in``).
3. *Quorum.* No removal is proposed that would leave too few; then the station is blocked, and may take its suspicion back when
   the other is heard again.
4. *Place.* The view event stands right after the last vote in the total order (the core sees to that, and to 4a and 5a).
5. *Joining.* Several joiners are let in by one proposal; a joiner is waited for from the vote on.
6. *Expelled* is who sees a complete proposal without itself, or a later instance without itself, or cannot finish in time.
7. *Restart.* An RCV of a newer incarnation proves that the former one has stopped.
8. *Numbers* are made durable before a vote with them leaves. No life votes for a number up to the highest that it has issued
   for an opening: others may start that proposal yet.

Sans-I/O; calls the core for what it carries out. Written for tens of stations: every method is at most O(n * n) and runs per
vote, timer or change of membership, never per frame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from .core import Commit, Peer, Vote
from .effects import Changed, Effect, Send
from .errors import invariant
from .letters import TRANSITIONS, Cause, Letter
from .openpdu import INSTANCE_MAX
from .votes import Cast, Proposal, Quorum, bits, decode_proposal, encode_proposal, stations_of, sure_of, takes_in
from .wire import Kind, view_hash

CALM_UNIT_NS: Final = 500_000_000
CALM_UNITS: Final = 10
"""A station that stays for so many units (the fail time-out, at most half a second) is no longer one that comes and goes."""
RESEND_GAP_NS: Final = 20_000_000
HELPERS: Final = 4
"""Members that repeat the votes of all for a joiner, each time it asks again."""
"""Votes are repeated to a joiner at most so often."""
SEQ_MASK: Final = 2**32 - 1
FINAL: Final = frozenset({"left", "restarted", "expelled"})
"""Reasons that a sign of life does not refute."""
DOUBTABLE: Final = frozenset({"silent", "told"})
"""Reasons that hold for one station alone, perhaps: what others hear speaks against them."""

FAULTS: Final = frozenset(
    {
        "commit_on_complete",
        "later_hides_earlier",
        "no_quorum",
        "never_expelled",
        "ignore_restart",
        "forget_promise",
        "no_equalise",
        "adopt_never",
        "keep_join_on_stop",
        "no_reopen",
        "forget_doubted",
        "deaf_to_closed",
        "reuse_issued",
        "shrinking_votes",
        "one_vote_at_a_time",
        "beside_rivals",
        "judge_late",
        "believe_one",
        "resend_own",
        "forget_heard",
    }
)
"""Rules that can be broken on purpose, one by one, to see that the checkers notice. ``no_reopen``, ``beside_rivals`` and
``forget_heard`` are the opening's."""


class Streams(Protocol):
    """What the agreement asks of the core; stations are indices 0..n-1."""

    def peer(self, index: int) -> Peer: ...

    def propose(self, now: int, kind: int, payload: bytes) -> tuple[int, int, bytes] | None: ...

    def limit(self, now: int, index: int, limit: int | None) -> None: ...

    def wait_for(self, index: int, clock: int | None, frame_max: int = 0) -> None: ...

    def all_have(self, stations: int, seqs: Mapping[int, int]) -> bool: ...

    def watch(self, yes: bool) -> None: ...

    def commit(self, now: int, change: Commit) -> bool: ...

    def set_state(self, state: int, trans: int) -> None: ...

    def block(self, yes: bool) -> None: ...

    def heartbeat(self, now: int, flags: int = 0) -> None: ...


@dataclass(frozen=True, slots=True)
class Expelled:
    """This station's life in the instance is over: the engine leaves the instance and recovers."""

    reason: str
    station: int
    """Whose word it is; this one's, if it gives up."""
    expelled: bool = True
    """The others go on without it; False: it gives up, and perhaps nobody goes on."""


Outcome: TypeAlias = Effect | Expelled


@dataclass(slots=True)
class _Suspect:
    """A station whose removal this one proposes, or would."""

    reason: str
    since_ns: int
    limit: int


class Membership:
    """The agreement at station ``station``, from ``begin`` to ``end``. Every method returns effects in order; among them may be
    one ``Expelled``, after which ``end`` is to be called."""

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
        faults: frozenset[str] = frozenset(),
    ) -> None:
        """promise: makes an instance number durable before anything that comes after it leaves. frame_max_least: bytes of a PDU
        that every station can take, whatever its interface."""
        invariant(faults <= FAULTS, f"unknown faults: {faults - FAULTS}")
        self._n = stations
        self._station = station
        self.quorum = quorum
        self._adopt_ns = adopt_timeout_ns
        self._give_up_ns = give_up_timeout_ns
        self._streams = streams
        self._promise = promise
        self._faults = faults
        self.instance = 0
        """Number of the instance this station is in, 0: none."""
        self._base = 0  # the same, but kept after the end
        self._issued = 0
        self.incarnations: tuple[int, ...] = (0,) * stations
        """Of its members, by index; 0: no member."""
        self.letters: dict[int, Letter] = dict.fromkeys(range(1, stations + 1), Letter.S)
        self.moves: Counter[str] = Counter()
        """How often each letter was left by which cause."""
        self.changes = 0
        """Instances agreed on since start."""
        self.last_change_ns = 0
        self.withdrawals = 0
        """How often suspicions were taken back for want of quorum."""
        self._suspects: dict[int, _Suspect] = {}
        self._doubtful: frozenset[int] = frozenset()
        self._told: dict[int, int] = {}  # AAS, SSA: since when
        self._joins: dict[int, int] = {}  # SA: incarnation
        self._waits: dict[int, int] = {}  # joiners in the wait set: since when
        self._mine: list[Proposal] = []
        self._votes: dict[tuple[int, Proposal], dict[int, Cast]] = {}
        self._pdus: dict[tuple[int, Proposal], dict[int, bytes]] = {}  # votes for joins, as they stood on the wire
        self._entry: dict[int, tuple[int, tuple[int, Proposal]]] = {}  # joined: incarnation, and the proposal that let it in
        self._resent: dict[int, tuple[int, int]] = {}  # when last, and how often to this incarnation
        self._resent_to: dict[int, int] = {}  # that incarnation
        self._fail_ns = fail_timeout_ns
        self._frame_max_least = frame_max_least
        self._newcomer = False  # let in itself, so that it does not know what was before
        self._asked: dict[int, int] = {}  # incarnations of unknown stations that have asked once
        self._frame_max: dict[int, int] = {}  # of joiners
        self._since_ns: dict[int, int] = {}  # when a station was let in last
        self._wait_ns: dict[int, int] = {}
        self._not_before_ns: dict[int, int] = {}
        self._lives = [0] * stations  # highest incarnation that was ever a member, by index
        self._stuck_since_ns: int | None = None

    # ---- life
    def begin(self, now: int, instance: int, incarnations: tuple[int, ...], joined: bool = False, issued: int = 0) -> None:
        """This station has started in an instance, or was let into it (``joined``); the core is in it already. issued: the
        highest number that this life has agreed to open an instance with."""
        self.instance = self._base = instance
        self._issued = issued
        self.incarnations = incarnations
        self._newcomer = joined
        self._asked.clear()
        self._note_lives()
        for station in self.letters:
            self.letters[station] = Letter.A if incarnations[station - 1] else Letter.S
        self._forget()
        self.last_change_ns = now
        self._tell_core()

    def end(self, votes: Sequence[Vote] = ()) -> None:
        """It is in none any more. What it had voted for stays known, for ``late_change``. votes: those that the core has accepted
        and that were not looked at: it has acknowledged them, so that others may have gone on by them."""
        for vote in votes:
            self._note_vote(vote)
        self.instance = 0

    def _forget(self) -> None:
        self._suspects.clear()
        self._doubtful = frozenset()
        self._told.clear()
        self._joins.clear()
        self._waits.clear()
        self._mine.clear()
        self._votes.clear()
        self._pdus.clear()
        self._entry.clear()
        self._stuck_since_ns = None
        self._streams.watch(False)
        self._streams.block(False)

    # ---- reads
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
        return tuple(k for k in self.members if k not in self._suspects)

    @property
    def has_quorum(self) -> bool:
        """Without those it suspects."""
        return "no_quorum" in self._faults or self.quorum(self.target)

    @property
    def proposed(self) -> int:
        """The instance number being agreed, 0: none."""
        return self.instance + 1 if self._mine else 0

    @property
    def busy(self) -> bool:
        """Something is being agreed, or would be if there were quorum."""
        return bool(self._suspects or self._mine or self._told or self._joins)

    def life_of(self, station: int) -> int:
        """The highest incarnation of it that was ever a member here: only later ones are let in."""
        return self._lives[station - 1]

    def closed_by(self, index: int) -> frozenset[int]:
        """The members of whose streams this one takes nothing any more, because it has voted for their removal (rule 1);
        indices."""
        if "deaf_to_closed" in self._faults:
            return frozenset()
        return frozenset(k - 1 for p, cast in self._open_votes() if p.stop and index + 1 in cast for k in p.changed)

    def waiting(self) -> list[tuple[int, str, int]]:
        """(station, reason, since) of those that delivery waits for, by station."""
        out = [(k, s.reason, s.since_ns) for k, s in self._suspects.items()]
        out += [(k, "told", since) for k, since in self._told.items() if self.letters[k] is Letter.AAS]
        out += [(k, "joining", since) for k, since in self._waits.items() if k not in self._suspects]
        return sorted(out)

    def bitmaps(self) -> tuple[int, int]:
        """(STATE, TRANS) as this station's CONFIRMs say them."""
        state = bits(k for k, letter in self.letters.items() if letter.state)
        return state, bits(k for k, letter in self.letters.items() if letter.trans)

    def next_deadline_ns(self) -> int | None:
        """When ``on_time`` may have something to do, at the latest."""
        due = [since + self._adopt_ns for since in self._told.values()]
        if self._stuck_since_ns is not None:
            due.append(self._stuck_since_ns + self._give_up_ns)
        return min(due, default=None)

    # ---- inputs
    def suspect(self, now: int, *stops: tuple[int, str]) -> list[Outcome]:
        """The stops of these (station, reason) have been seen here, together. Harmless for who is suspected already, or no
        member."""
        marked = [self._mark(now, station, reason) for station, reason in stops]
        return self._go_on(now) if any(marked) else []

    def doubt(self, now: int, stations: Iterable[int]) -> list[Outcome]:
        """These have not been heard for a while, and are being asked whether they are there. Without them there must be quorum
        for a removal to be proposed: it could not be agreed, and could not be taken back. Nor are their votes heeded until they
        are heard again."""
        doubtful = frozenset(stations)
        if doubtful == self._doubtful:
            return []
        back, self._doubtful = self._doubtful - doubtful, doubtful
        if back and "forget_doubted" not in self._faults:
            self._look_again(now)
        return self._go_on(now)

    def on_heard(self, now: int, heard: Callable[[int], bool]) -> list[Outcome]:
        """``heard`` says of a station whether it shows signs of life. Takes back what could not be agreed (rule 3): as soon as
        one of them is heard again, of all, who then have another full time-out (``withdrawals`` has grown). Else the first to be
        heard would make the quorum that removes the next."""
        if self._suspects and not self.has_quorum:
            named = {k for proposal in self._mine if proposal.stop for k in proposal.changed}
            back = [k for k, s in self._suspects.items() if k not in named and s.reason not in FINAL]
            if any(heard(k) for k in back):
                self.withdrawals += 1
                for k in back:
                    del self._suspects[k]
                    self._streams.limit(now, k - 1, None)
                    self._move(k, Cause.WITHDRAWN)
                self._look_again(now)
                self._review_told(now, heard)
                return self._go_on(now)
        self._review_told(now, heard)
        return []

    def on_votes(self, now: int, votes: Sequence[Vote]) -> list[Outcome]:
        """Votes have been accepted, each in its stream's order: all that the core has acknowledged. All are noted before
        anything follows from them: others may have carried out the earliest proposal on the strength of those acknowledgements,
        and here as well it must be complete before a later one is carried out."""
        if "one_vote_at_a_time" in self._faults and len(votes) > 1:
            return [outcome for vote in votes for outcome in self.on_votes(now, [vote])]
        heeded = [self._note_vote(vote) for vote in votes] if self.instance else []
        for vote, proposal in zip(votes, heeded, strict=False):
            if proposal is not None and vote.instance == self.instance:
                self._heed(now, vote.src + 1, proposal)
        return self._go_on(now) if any(heeded) else []

    def _note_vote(self, vote: Vote) -> Proposal | None:
        """What it is for; None if it makes no sense."""
        proposal = decode_proposal(vote.pdu, vote.kind, self._n)
        if proposal is None:
            return None
        station, key = vote.src + 1, (vote.instance, proposal)
        sure = sure_of(vote.pdu, self._n)
        self._votes.setdefault(key, {}).setdefault(station, Cast(vote.clock, station, vote.seq, sure))
        if not proposal.stop:
            self._pdus.setdefault(key, {})[station] = vote.pdu
        return proposal

    def note_life(self, station: int, incarnation: int) -> None:
        """A member says that this incarnation of a station has been one."""
        if not self.incarnations[station - 1]:
            self._lives[station - 1] = max(self._lives[station - 1], incarnation)
            if 0 < self._joins.get(station, 0) <= self._lives[station - 1]:
                del self._joins[station]
                self._move(station, Cause.STOP_WINS)

    def on_recovering(self, now: int, station: int, incarnation: int, frame_max: int = 0) -> list[Outcome]:
        """An RCV (or OPEN) of a station that is in no instance; ``frame_max``: largest PDU it can take, bytes, 0: unknown."""
        held = self.incarnations[station - 1]
        if not self.instance:
            return []
        if held:
            if incarnation > held and "ignore_restart" not in self._faults:
                if station in self._suspects:  # whatever it was suspected for: now it is proved
                    self._suspects[station].reason = "restarted"
                return self.suspect(now, (station, "restarted"))
            return self._resend(now, station, incarnation) if incarnation == held else []
        if self._suspects or self.told or incarnation <= self._lives[station - 1] or incarnation < self._joins.get(station, 0):
            return []  # a stop is agreed first, it will ask again; or an old frame
        if self._joins.get(station) == incarnation:
            return self._resend(now, station, incarnation)
        if now < self._not_before_ns.get(station, 0):
            return []  # it comes and goes
        if not self._lives[station - 1] and self._newcomer and incarnation != self._asked.get(station):
            self._asked[station] = incarnation
            return []  # who was let in itself does not know which lives are used up: the others will say if this one is
        self._frame_max[station] = frame_max
        self._see_recovery(station, incarnation)
        return self._go_on(now)

    def on_confirm(self, now: int, station: int, instance: int, view: int, state: int, trans: int) -> list[Outcome]:
        """A CONFIRM of a later instance than the own: it proves a decision, or that this station is out."""
        if not self.instance or instance <= self.instance:
            return []
        if instance == self.instance + 1:
            for proposal in self._mine:
                if self._complete(proposal) and self._hash_of(proposal) == view:
                    return self._commit(now, proposal) + self._go_on(now)
        bit = 1 << (self._station - 1)
        if not state & bit or trans & bit:
            return []  # a member of it, as far as that station says: the votes will come
        everybody = (1 << self._n) - 1
        if "never_expelled" in self._faults or not self.quorum(stations_of(everybody & ~state)):
            return []
        return [Expelled(f"station {station} is in instance {instance}, which goes on without this one", station)]

    def on_progress(self, now: int) -> list[Outcome]:
        """Something has been accepted or acknowledged."""
        return self._go_on(now) if self.instance else []

    def on_time(self, now: int) -> list[Outcome]:
        """Adopt what others have been saying for long enough; give up what does not get agreed."""
        if not self.instance:
            return []
        if self._stuck_since_ns is not None and now - self._stuck_since_ns >= self._give_up_ns:
            words = ", ".join(f"station {k} ({reason})" for k, reason, _ in self.waiting())
            what = "no agreement" if self.has_quorum else "no quorum"
            return [Expelled(f"{what} without {words} for {self._give_up_ns // 1_000_000} ms", self._station, False)]
        effects = self._answer_accusers(now)
        due = [k for k, since in self._told.items() if now - since >= self._adopt_ns] if self.instance else []
        return effects + (self.adopt(now, due) if due and "adopt_never" not in self._faults else [])

    def forgive(self, now: int) -> None:
        """This station did not run for a while: nobody has had a chance meanwhile, and every wait begins anew."""
        self._told = dict.fromkeys(self._told, now)
        self._stuck_since_ns = None if self._stuck_since_ns is None else now

    def adopt(self, now: int, stations: Iterable[int], unheard: bool = False) -> list[Outcome]:
        """See with others' eyes: for stations in AAS or SSA. ``unheard``: they have been silent here as well. A single accuser is
        not believed against what is heard: it is the one to be removed, if it insists. Of two that accuse each other all believe
        the one with the lower number; and nobody is believed at the price of the quorum."""
        moved = False
        for k in sorted(stations, reverse=True):
            if self.letters[k] is Letter.AAS:
                accusers = set(self._accusers(k))
                lone = None if unheard else self._lone_accuser(k)
                if lone is not None and k in self._accusers(lone):  # each other
                    lone = None if k > lone else lone
                if lone is not None and self.quorum(set(self.target) - {lone}):
                    moved |= self._mark(now, lone, "accuses")
                elif accusers and self.quorum(set(self.target) - {k}):
                    moved |= self._mark(now, k, "told")
            elif self.letters[k] is Letter.SSA and not self._suspects:
                lives = [dict(p.changes)[k] for p, _ in self._open_votes() if not p.stop and k in p.changed]
                self._told.pop(k, None)
                if max(lives, default=0) > self._lives[k - 1]:
                    self._see_recovery(k, max(lives))
                    moved = True
                else:
                    self._move(k, Cause.STOP_WINS)
            elif self.letters[k] is Letter.SSA:
                self._told[k] = now
        return self._go_on(now) if moved else []

    def _lone_accuser(self, station: int) -> int | None:
        """Who alone wants this one (or the own station) removed, and only because it does not hear it; None: nobody, or more than
        one, or it is sure."""
        accusers = set(self._accusers(station))
        sure = any(
            c.sure >> station - 1 & 1 for p, cast in self._open_votes() if p.stop for k, c in cast.items() if k in accusers
        )
        return accusers.pop() if len(accusers) == 1 and not sure and "believe_one" not in self._faults else None

    def _answer_accusers(self, now: int) -> list[Outcome]:
        """Who alone wants this station removed is removed itself, once a third one says so."""
        lone = self._lone_accuser(self._station)
        if lone is None or not self._accusers(lone) or not self.quorum(set(self.target) - {lone}):
            return []
        return self._go_on(now) if self._mark(now, lone, "accuses") else []

    @property
    def told(self) -> tuple[int, ...]:
        """Stations in AAS."""
        return tuple(k for k in self._told if self.letters[k] is Letter.AAS)

    def late_change(self, view: int) -> Proposal | None:
        """After ``end``: the complete own proposal that leads to this view, if there is one. Somebody has carried it out."""
        return next((p for p in self._mine if self._complete(p) and self._hash_of(p) == view), None)

    def late_commit(self, now: int, proposal: Proposal) -> bool:
        """After ``end``: tell the core of that view, which is then flushed. False: it has no room for one more view event."""
        change = self._change_of(proposal)
        if not self._streams.commit(now, change):
            return False
        self.incarnations = change.incarnations
        self._mine.clear()
        invariant(change.instance > 0, "an instance has a number")
        return True

    # ---- votes
    def _mark(self, now: int, station: int, reason: str) -> bool:
        """Close it (rule 1)."""
        if station == self._station or not self.incarnations[station - 1] or station in self._suspects:
            return False
        req = self._streams.peer(station - 1).req
        self._suspects[station] = _Suspect(reason, now, req)
        self._told.pop(station, None)
        self._move(station, Cause.STOP_SEEN)
        self._streams.limit(now, station - 1, req)
        self._stop_wins()
        if "forget_promise" in self._faults:
            self._mine = [p for p in self._mine if p.stop]
        return True

    def _see_recovery(self, station: int, incarnation: int) -> None:
        """It is to be let in; and again whomever an own vote in this instance lets in, though a stop that was seen since, and
        taken back, has made this station forget that they asked: votes grow (rule 2)."""
        voted: dict[int, int] = {}
        if "shrinking_votes" not in self._faults:
            voted = next((dict(p.changes) for p in reversed(self._mine) if not p.stop), {})
        for k, life in {**voted, station: incarnation}.items():
            if self._joins.get(k, 0) < life and self._lives[k - 1] < life:
                self._joins[k] = life
                self._told.pop(k, None)
                self._move(k, Cause.RECOVERY_SEEN)

    def _stop_wins(self) -> None:
        """Some stop is being agreed: who recovers must ask again. Votes given stand."""
        for k in self._joins:
            self._move(k, Cause.STOP_WINS)
        self._joins.clear()
        for k in [k for k in self._told if self.letters[k] is Letter.SSA]:
            del self._told[k]
            self._move(k, Cause.STOP_WINS)

    def _look_again(self, now: int) -> None:
        """At the votes of this instance that have come already."""
        for proposal, cast in self._open_votes():
            for station in cast:
                self._heed(now, station, proposal)

    def _heed(self, now: int, station: int, proposal: Proposal) -> None:
        """What a vote of the present instance tells, beyond its counting."""
        if station == self._station or station in self._suspects:
            return
        for k, value in proposal.changes:
            if k == self._station:
                continue
            if proposal.stop and station in self._doubtful:
                continue
            if proposal.stop and self.letters[k] is Letter.A and self.incarnations[k - 1]:
                self._told[k] = now
                self._move(k, Cause.STOP_TOLD)
                self._stop_wins()
            elif proposal.stop or value <= self._lives[k - 1]:
                continue  # who has joined since does not know which lives are used up
            elif self.letters[k] is Letter.S and not self._suspects and not self.told:
                self._told[k] = now
                self._move(k, Cause.RECOVERY_TOLD)

    def _review_told(self, now: int, heard: Callable[[int], bool]) -> None:
        """AAS ends when the station is heard and every accuser has stopped."""
        refuted = [k for k in self.told if heard(k) and not self._accusers(k)]
        for k in refuted:
            del self._told[k]
            self._move(k, Cause.WITHDRAWN)
        if refuted:
            self._look_again(now)  # at votes for joins, which were passed over meanwhile
        for k in [k for k in self._told if self.letters[k] is Letter.SSA]:
            if not self._sponsors(k):
                del self._told[k]
                self._move(k, Cause.STOP_WINS)

    def _open_votes(self) -> Iterator[tuple[Proposal, dict[int, Cast]]]:
        """What has been proposed in the present instance, and who has voted for it."""
        return ((proposal, cast) for (instance, proposal), cast in self._votes.items() if instance == self.instance)

    def _staying(self, cast: Iterable[int]) -> list[int]:
        """Those of these voters that this station does not want removed itself."""
        return [k for k in cast if k in self.members and k not in self._suspects]

    def _accusers(self, station: int) -> list[int]:
        """Who else wants this one removed, and can be relied on."""
        votes = (cast for p, cast in self._open_votes() if p.stop and station in p.changed)
        return [k for cast in votes for k in self._staying(cast) if k not in self._doubtful and k != self._station]

    def _sponsors(self, station: int) -> list[int]:
        """Who wants this one let in."""
        votes = (cast for p, cast in self._open_votes() if not p.stop and station in p.changed)
        return [k for cast in votes for k in self._staying(cast)]

    def _equalise(self, now: int) -> None:
        """Limits are what any voter who stays has accepted; one who is being removed itself proves nothing."""
        if "no_equalise" in self._faults:
            return
        said: dict[int, int] = {}
        for proposal, cast in self._open_votes():
            if not proposal.stop or not self._staying(cast):
                continue
            for k, value in proposal.changes:
                if k in self._suspects:
                    req = self._streams.peer(k - 1).req
                    wide = req + ((value - req + 2**31) & SEQ_MASK) - 2**31
                    said[k] = max(said.get(k, 0), wide)
        for k, s in self._suspects.items():
            limit = max(self._streams.peer(k - 1).req, said.get(k, 0))
            if limit != s.limit:
                s.limit = limit
                self._streams.limit(now, k - 1, limit)

    def _wanted(self) -> Proposal | None:
        """What to propose now: removals before joins, and only what could be agreed."""
        if self._suspects:
            reqs = {k: self._streams.peer(k - 1).req for k in self._suspects}
            if not self.has_quorum or ("no_quorum" not in self._faults and not self.quorum(set(self.target) - self._doubtful)):
                return None
            if "no_equalise" not in self._faults and any(reqs[k] != s.limit for k, s in self._suspects.items()):
                return None  # once they are in, not per PDU
            return Proposal(True, self.target, tuple((k, reqs[k] & SEQ_MASK) for k in sorted(self._suspects)))
        if self._joins:
            return Proposal(False, tuple(sorted({*self.members, *self._joins})), tuple(sorted(self._joins.items())))
        return None

    def _propose(self, now: int) -> list[Outcome]:
        """Vote for what is wanted, unless that has been done: a vote stands, and its place is that of the first one."""
        proposal = self._wanted()
        if proposal is None or proposal in self._mine or self.instance >= INSTANCE_MAX:
            return []
        if "shrinking_votes" not in self._faults and self._mine and not takes_in(proposal, self._mine[-1]):
            return []  # it waits until it does, or this station gives up
        seen = any(s.reason != "told" for s in self._suspects.values())
        kind = (Kind.STOP if seen else Kind.STOP_ACK) if proposal.stop else Kind.RCV_ACK
        effects: list[Outcome] = [*self._promise(self.instance + 1)]
        state, trans = self.bitmaps()
        trans &= ~bits(k for k, s in self._suspects.items() if s.reason not in DOUBTABLE)
        cast = self._streams.propose(now, kind, encode_proposal(proposal, state=state, trans=trans))
        if cast is None:
            return effects
        seq, clock, pdu = cast
        self._mine.append(proposal)
        if "later_hides_earlier" in self._faults:
            self._mine = [proposal]
        self._votes.setdefault((self.instance, proposal), {}).setdefault(self._station, Cast(clock, self._station, seq))
        if not proposal.stop:
            self._pdus.setdefault((self.instance, proposal), {})[self._station] = pdu
            for k in proposal.changed:
                if k not in self._waits:
                    self._waits[k] = now
                    self._streams.wait_for(k - 1, clock - 1, self._frame_max_of(k))
        return effects

    # ---- decisions
    def _voters(self, proposal: Proposal) -> set[int]:
        return set(proposal.members) & set(self.members)

    def _complete(self, proposal: Proposal) -> bool:
        cast = self._votes.get((self._base, proposal), {})
        if not self._voters(proposal) <= cast.keys():
            return False
        if not proposal.stop or "no_equalise" in self._faults:
            return True
        return all(self._streams.peer(k - 1).req & SEQ_MASK == value for k, value in proposal.changes)

    def _decided(self, proposal: Proposal) -> bool:
        """Every voter is known to have every vote."""
        if "commit_on_complete" in self._faults:
            return True
        cast = self._votes[self.instance, proposal]
        voters = self._voters(proposal)
        return self._streams.all_have(bits(voters), {k - 1: cast[k].seq for k in voters})

    def _go_on(self, now: int) -> list[Outcome]:
        """Whatever follows from what is known now: votes, decisions, expulsion."""
        effects: list[Outcome] = []
        while self.instance:  # bound: every round but the last carries out a proposal
            self._equalise(now)
            if self.instance < self._issued and "reuse_issued" not in self._faults and self._wanted() is not None:
                words = f"instance {self.instance + 1} may be another one, which this life has agreed to open (rule 8)"
                return [*effects, Expelled(words, self._station, False)]
            effects += self._propose(now)
            done = [p for p in self._mine if self._complete(p)]
            if not any(self._decided(p) for p in done):
                break
            carried = self._commit(now, done[0])
            if not carried:
                break
            effects += carried
        if self.instance and "never_expelled" not in self._faults and (by := self._removed_by()):
            names = ", ".join(map(str, by))
            return [*effects, Expelled(f"stations {names} have agreed to go on without this one", by[0])]
        self._tell_core()
        gone = [k for k, s in self._suspects.items() if s.reason == "restarted"]
        if gone and not self.quorum(set(self.members) - set(gone)):
            names = ", ".join(f"station {k} (restarted)" for k in gone)
            return [*effects, Expelled(f"no quorum without {names}", self._station, False)]  # it will never come back
        if self._suspects or self._waits:  # what waits for a joiner waits as much as what waits for a stop
            self._stuck_since_ns = self._stuck_since_ns if self._stuck_since_ns is not None else now
        else:
            self._stuck_since_ns = None
        return effects

    def _removed_by(self) -> list[int]:
        """The voters of a complete proposal without this station."""
        for p, cast in self._open_votes():
            if not p.stop or self._station in p.members or not self.quorum(p.members):
                continue
            if self._voters(p) <= cast.keys():
                return sorted(self._voters(p))
        return []

    def _hash_of(self, proposal: Proposal) -> int:
        instance, incarnations = self._after(proposal)
        return view_hash(instance, incarnations)

    def _after(self, proposal: Proposal) -> tuple[int, tuple[int, ...]]:
        """The instance a proposal leads to."""
        lives = {k: self.incarnations[k - 1] for k in proposal.members}
        if not proposal.stop:
            lives.update(proposal.changes)
        return self._base + 1, tuple(lives.get(k, 0) for k in range(1, self._n + 1))

    def _change_of(self, proposal: Proposal) -> Commit:
        """What the core is told of a complete proposal."""
        instance, incarnations = self._after(proposal)
        cast = self._votes[instance - 1, proposal]
        voters = self._voters(proposal)
        place = max(cast[k] for k in voters)
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
            vote_seq={k - 1: cast[k].seq for k in voters},
        )

    def _commit(self, now: int, proposal: Proposal) -> list[Outcome]:
        """Carry it out; nothing if the core cannot yet."""
        change = self._change_of(proposal)
        if not self._streams.commit(now, change):
            return []
        instance = change.instance
        before, key = self.members, (self.instance, proposal)
        # The commit ends what the core kept for the instance before; what is still open starts anew below.
        effects: list[Outcome] = [*self._promise(instance)]
        self.instance = self._base = instance
        self.incarnations = change.incarnations
        self._note_lives()
        joined = () if proposal.stop else proposal.changed
        left = tuple(k for k in before if k not in proposal.members)
        self._mine.clear()
        self.changes += 1
        self.last_change_ns = now
        for k in list(self._told):
            del self._told[k]
            if k not in proposal.changed:
                self._move(k, Cause.WITHDRAWN if self.letters[k] is Letter.AAS else Cause.STOP_WINS)
        for k in left:
            self._suspects.pop(k, None)
            self._entry.pop(k, None)
            self._move(k, Cause.REMOVED)
            self._hold_off(now, k)
        if proposal.stop:
            if "keep_join_on_stop" not in self._faults:
                self._stop_wins()
                self._end_waits()
        else:
            for k, incarnation in proposal.changes:
                if self._joins.get(k) == incarnation:
                    del self._joins[k]
                self._waits.pop(k, None)
                self._entry[k] = (incarnation, key)
                self._since_ns[k] = now
                self._move(k, Cause.LET_IN)
            self._end_waits()  # a promise for a later union of joiners: votes for it come anew
        for k in [k for k in self._joins if self.incarnations[k - 1] >= self._joins[k]]:
            del self._joins[k]
        self._votes = {k: v for k, v in self._votes.items() if k[0] >= instance}
        kept = {entry for _, entry in self._entry.values()}
        self._pdus = {k: v for k, v in self._pdus.items() if k[0] >= instance or k in kept}
        self._look_again(now)
        self._tell_core()
        self._streams.heartbeat(now)
        self._stuck_since_ns = None  # another round, another time-out
        return [*effects, Changed(instance, change.incarnations, joined, left)]

    def _end_waits(self) -> None:
        """Delivery waits for no joiner any more."""
        for k in self._waits:
            self._streams.wait_for(k - 1, None)
        self._waits.clear()

    def _hold_off(self, now: int, station: int) -> None:
        """A station that is removed again soon after it was let in is let in later each time: every change costs everybody."""
        unit = min(self._fail_ns, CALM_UNIT_NS)
        stayed = now - self._since_ns.get(station, now - CALM_UNITS * unit)
        wait = 0 if stayed >= CALM_UNITS * unit else min(max(2 * self._wait_ns.get(station, 0), unit // 4), 4 * unit)
        self._wait_ns[station] = wait
        self._not_before_ns[station] = now + wait

    # ---- helping a joiner
    def _resend(self, now: int, station: int, incarnation: int) -> list[Outcome]:
        """A joiner has not got all votes, or not heard that they were enough: repeat the own one, and those of who has gone. If
        it asks again it may not hear some voter: some members after the others repeat the votes of all, so that one that it
        hears has its turn (else it would be let in, removed for its silence, and so on for ever)."""
        last_ns, times = self._resent.get(station, (-RESEND_GAP_NS, 0))
        if now - last_ns < RESEND_GAP_NS:
            return []
        times = times + 1 if self._resent_to.get(station) == incarnation else 1
        self._resent[station], self._resent_to[station] = (now, times), incarnation
        entered = station in self._entry
        if entered:
            kept = [self._pdus.get(self._entry[station][1], {})]
            self._streams.heartbeat(now)
        else:
            change = (station, incarnation)
            kept = [pdus for (v, p), pdus in self._pdus.items() if v == self.instance and change in p.changes]
        others = [k for k in self.members if k != station]
        turn = (others.index(self._station) - times * HELPERS) % len(others) < HELPERS
        every = (entered or times > 1) and turn and "resend_own" not in self._faults

        def repeats(voter: int) -> bool:
            return every or voter == self._station or (entered and voter not in self.members)

        return [Send(pdu) for pdus in kept for voter, pdu in pdus.items() if repeats(voter)]

    # ---- small
    def _frame_max_of(self, joiner: int) -> int:
        """Largest PDU it can take, bytes; the least allowed if it has not said."""
        return self._frame_max.get(joiner, 0) or self._frame_max_least

    def _note_lives(self) -> None:
        self._lives = [max(pair) for pair in zip(self._lives, self.incarnations, strict=True)]

    def _move(self, station: int, cause: Cause) -> None:
        letter = self.letters[station]
        self.letters[station] = TRANSITIONS[letter, cause]
        if self.letters[station] is not letter:
            self.moves[f"{letter.name} {cause.name}".lower()] += 1

    def _tell_core(self) -> None:
        self._streams.set_state(*self.bitmaps())
        self._streams.block(bool(self._suspects) and not self.has_quorum)
        self._streams.watch(self.busy or bool(self._votes))
