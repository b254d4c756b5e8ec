"""The active members of a group with state: rules X2 and X10 of state transfer, as a function of the order.

A member is *unknown* (it has joined and has no ROSTER yet), *syncing* or *active* (its state is the group's). Every known member
has the same ``active`` and ``transfers`` at the same position, because both change only at messages and views of the companion
group. An unknown member keeps the messages since the present view. It applies them after the ROSTER of that view: a ROSTER of an
earlier view does not know which members have left since.

Timers decide only when a message is sent, never what it means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from ..timers import NEVER
from .transferwire import (
    Active,
    Ask,
    Control,
    End,
    Failed,
    Gone,
    Have,
    Holding,
    Open,
    Place,
    Roster,
    Start,
    Who,
)

S: Final = 1_000_000_000
STEP_NS: Final = S
"""What the lowest member has to send, the next one sends so much later if it has not come."""
SETTLE_NS: Final = 250_000_000
"""From the last view to the HAVEs, while no member is active: those who join one after the other are asked together."""
PATIENCE_NS: Final = 10 * S
"""From then on the HAVEs of most members are enough for a START."""
QUORUM_WAIT_NS: Final = 2 * S
"""Persistent groups: from the HAVEs of a quorum to the START."""
TRANSFERS_MAX: Final = 4
"""Transfers that one donor serves at a time."""


class Awaited(NamedTuple):
    """A START that has not come. present: stations with a member. holders: stations in all. known: a member has an earlier state:
    then the reports of a quorum are enough, else all have to report."""

    present: frozenset[int]
    holders: int
    known: bool


class RosterState:
    """The roster at one member.

    me:         this member.
    holders:    number of stations that keep the state durably, for a persistent group (rule C1); 0: the group is not persistent.
    counters:   drops by reason.
    """

    def __init__(self, me: Who, holders: int, counters: Counter[str]) -> None:
        self.me = me
        self.holders = holders
        self.counters = counters
        self.out: list[Control] = []
        """Messages to be sent."""
        self.notes: list[tuple[str, str]] = []
        """(kind, text) of events for the program."""
        self.force = False
        """An operator wants a START by what is here, without a quorum."""
        self.leave()

    def leave(self) -> None:
        """This member is in no view now."""
        self.members: tuple[Who, ...] = ()
        self.view: Place = (0, 0, 0)
        self.known = False
        self.active: set[Who] = set()
        self.transfers: dict[Who, Open] = {}
        self.started = 0
        """Number of STARTs that took effect in this membership."""
        self.had_active = False
        self.haves: dict[Who, Holding] = {}
        self._elders: set[Who] = set()
        self._newcomers: set[Who] = set()
        self._since: list[tuple[Who, Control]] = []
        self._base: tuple[tuple[Who, ...], tuple[Open, ...]] = ((), ())
        self._roster_at = self._have_at = self._start_at = self._patience_at = NEVER
        self._asked_have = self._hopeless = False

    # ---- facts

    @property
    def vacant(self) -> bool:
        """No member is active, and this is known."""
        return self.known and not self.active

    def load(self, donor: Who, without: Who | None = None) -> int:
        """Number of transfers that a donor serves, that of the joiner ``without`` not counted."""
        return sum(donor in t.donors for t in self.transfers.values() if t.joiner != without)

    def free(self, joiner: Who) -> list[Who]:
        """Active members that would accept an ASK of ``joiner`` now: those with the fewest transfers first, then in a ring from
        the joiner on."""
        able = [w for w in self.active if w != joiner and self.load(w, joiner) < TRANSFERS_MAX]
        return sorted(able, key=lambda w: (self.load(w, joiner), w < joiner, w))

    # ---- the order

    def on_view(self, now: int, place: Place, members: Iterable[Who], joined: Iterable[Who], left: Iterable[Who]) -> None:
        """A view of the companion group."""
        came, gone = set(joined), set(left)
        self.members, self.view = tuple(sorted(members)), place
        if self.me in came:
            self.leave()
            self.members, self.view = tuple(sorted(members)), place
            self._elders = set(self.members) - {self.me}
            self._newcomers = set(self.members)
        here = set(self.members)
        self._newcomers = (self._newcomers | came) & here
        self._elders &= here - came
        self._since.clear()
        self.active -= gone | came
        for who in [*gone, *came]:
            self.transfers.pop(who, None)
        self._strike(gone | came)
        if not self.known and not self._elders:
            # All who can have known anything have left, and a newcomer is not active: no member is.
            self.known = True
            self._newcomers -= {self.me}
        self._rebase(now)

    def _rebase(self, now: int) -> None:
        """A view, or this member has become known: whatever is due is due for this view."""
        self._base = (tuple(sorted(self.active)), tuple(t for _, t in sorted(self.transfers.items())))
        self.haves.clear()
        self._roster_at = NEVER
        if self.known and self._newcomers:
            able = [w for w in self.members if w not in self._newcomers]
            order = sorted(self.active) + [w for w in able if w not in self.active]
            rank = order.index(self.me) if self.me in order else len(order)
            self._roster_at = now + rank * STEP_NS
        self._look_vacant(now, anew=True)

    def _look_vacant(self, now: int, anew: bool = False) -> None:
        if not self.vacant:
            self._have_at = self._start_at = self._patience_at = NEVER
            self._asked_have = self._hopeless = False
            return
        if anew or self._patience_at == NEVER:
            self._have_at, self._start_at, self._asked_have = now + SETTLE_NS, NEVER, False
            self.haves.clear()
        if self._patience_at == NEVER:
            self._patience_at = now + PATIENCE_NS

    def on_control(self, now: int, sender: Who, m: Control) -> None:
        """A message of the companion group at its position."""
        if sender not in self.members:
            self.counters["stranger"] += 1
        elif isinstance(m, Roster):
            self._on_roster(now, sender, m)
        elif not self.known:
            self._since.append((sender, m))
        elif isinstance(m, Holding):
            self._on_have(now, sender, m)
        else:
            self._apply(sender, m)
            self._look_vacant(now)

    def _on_roster(self, now: int, sender: Who, m: Roster) -> None:
        if m.view != self.view:
            self.counters["roster-old"] += 1
            return
        if self.known:
            if (m.active, m.transfers) != self._base:
                self.counters["roster-differs"] += 1
                return
        else:
            self.known = True
            self.active, self.transfers = set(m.active) & set(self.members), {t.joiner: t for t in m.transfers}
            self.had_active = bool(self.active)
            self._newcomers.clear()
            since, self._since = self._since, []
            self._rebase(now)
            self._base = (m.active, m.transfers)
            for who, message in since:
                self.on_control(now, who, message)
        self._newcomers.clear()
        self._roster_at = NEVER

    def _apply(self, sender: Who, m: Control) -> None:
        """What changes ``active`` and ``transfers``; the same at every known member."""
        mine = self.transfers.get(sender)
        if isinstance(m, Ask):
            self.transfers.pop(sender, None)
            if sender not in self.active:
                donors = tuple(d for d in m.donors if d in self.active and self.load(d) < TRANSFERS_MAX)
                self.transfers[sender] = Open(sender, m.number, donors)
        elif isinstance(m, End):
            if mine is not None and mine.number == m.number:
                self.transfers[sender] = mine._replace(donors=tuple(d for d in mine.donors if d not in m.donors))
        elif isinstance(m, Gone):
            theirs = self.transfers.get(m.joiner)
            if theirs is not None and theirs.number == m.number:
                self.transfers[m.joiner] = theirs._replace(donors=tuple(d for d in theirs.donors if d != sender))
        elif isinstance(m, Active):
            self._on_active(sender, mine, m)
        elif isinstance(m, Failed):
            self.active.discard(sender)
            self.transfers.pop(sender, None)
            self._strike({sender})
        elif isinstance(m, Start):
            self._on_start(m)

    def _strike(self, donors: set[Who]) -> None:
        """These members serve no transfer any more."""
        for t in list(self.transfers.values()):
            self.transfers[t.joiner] = t._replace(donors=tuple(d for d in t.donors if d not in donors))

    def _on_active(self, sender: Who, mine: Open | None, m: Active) -> None:
        # A START since the ASK has made another state the group's: then the ASK is not in the table any more.
        if mine is None or mine.number != m.number:
            self.counters["active-stale"] += 1
            return
        del self.transfers[sender]
        self.active.add(sender)
        self.had_active = True

    def _on_start(self, m: Start) -> None:
        if self.active or m.view != self.view or not m.who or not set(m.who) <= set(self.members):
            self.counters["start-late"] += 1
            return
        if self.had_active:
            self.notes.append(("state-lost", f"no active member was left; the state is now that of {len(m.who)} members"))
        self.active = set(m.who)
        self.transfers.clear()
        self.had_active = True
        self.started += 1

    # ---- who starts

    def _on_have(self, now: int, sender: Who, m: Holding) -> None:
        if m.view != self.view or self.active:
            self.counters["have-old"] += 1
            return
        self.haves[sender] = m
        if set(self.haves) == set(self.members) and self._enough():
            self._start_at = min(self._start_at, now + self._rank() * STEP_NS)
        elif self.holders and self._enough():
            self._start_at = min(self._start_at, now + QUORUM_WAIT_NS + self._rank() * STEP_NS)

    def _rank(self) -> int:
        return self.members.index(self.me)

    def _enough(self) -> bool:
        """Rule C1 for persistent groups: a quorum of the holders has reported what it has, or all have."""
        if not self.holders or self.force:
            return True
        whole = {w[0] for w, h in self.haves.items() if h.have is not None and not h.damaged}
        return 2 * len(whole) > self.holders or len({w[0] for w in self.haves}) >= self.holders

    def awaited(self) -> Awaited | None:
        """What a START waits for; None: there are active members, or it is not known yet whether there are."""
        if not self.vacant:
            return None
        whole = {w[0] for w, h in self.haves.items() if h.have is not None and not h.damaged}
        return Awaited(frozenset(w[0] for w in self.members), self.holders, bool(whole))

    def _most(self) -> bool:
        return 2 * len(self.haves) > len(self.members)

    def choose(self) -> tuple[Who, ...]:
        """The members to START with: those with the greatest place, by the HAVEs of this view; empty: no such choice."""
        able = {w: h.have for w, h in sorted(self.haves.items()) if not h.damaged}
        if not able or not self._enough():
            return ()
        blank = [w for w, have in able.items() if have is None]
        if len(blank) == len(able):
            return tuple(blank)
        known = {w: have for w, have in able.items() if have is not None}
        place = max(have.place for have in known.values())
        best = {w: have for w, have in known.items() if have.place == place}
        digests = {have.digest for have in best.values()}
        if len(digests) == 1:
            return tuple(best)
        if self.holders and not self.force:
            self.notes.append(("diverged", f"unequal states at {place}: " + ", ".join(f"{s}.{c}" for s, c in best)))
            return ()
        first = next(iter(best.values())).digest
        return tuple(w for w, have in best.items() if have.digest == first)

    # ---- time

    def have_due(self, now: int) -> bool:
        """This member has to report what it has, at the present view."""
        if not self.vacant or self._asked_have or now < self._have_at:
            return False
        self._asked_have, self._have_at = True, NEVER
        return True

    @property
    def hopeless(self) -> bool:
        """All members have had time to report, and each one has reported only that its state is damaged."""
        return self._hopeless and self.vacant

    def tell(self, have: Have | None, damaged: bool) -> None:
        """Send this member's HAVE for the present view."""
        if self.vacant:
            self.out.append(Holding(self.view, have, damaged))

    def on_timeout(self, now: int) -> None:
        """Send what is due."""
        if now >= self._roster_at:
            self._roster_at = NEVER
            if self.known and self._newcomers:
                self.out.append(Roster(self.view, *self._base))
        if not self.vacant:
            return
        patient = now >= self._patience_at + self._rank() * STEP_NS
        if patient:
            self._patience_at = now + PATIENCE_NS
            self._hopeless = len(self.haves) == len(self.members) and all(h.damaged for h in self.haves.values())
        if (now >= self._start_at or (patient and self._most())) and (who := self.choose()):
            self.out.append(Start(self.view, who))
        if now >= self._start_at:
            self._start_at = NEVER

    def next_deadline(self) -> int:
        """When ``on_timeout`` or ``have_due`` has something to do; monotonic nanoseconds."""
        at = min(self._roster_at, self._start_at)
        if self.vacant:
            at = min(at, self._have_at)
            if self._patience_at != NEVER:
                at = min(at, self._patience_at + self._rank() * STEP_NS)
        return at
