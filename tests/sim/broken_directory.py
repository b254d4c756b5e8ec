"""The directory with rules broken on purpose, each as a subclass of what keeps it.

``test_directory.py`` names the checkers that catch each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from zenjun.proto.service.directory import operations as ops
from zenjun.proto.service.directory.asking import Desk, Terminal
from zenjun.proto.service.directory.draft import Draft, Waiting
from zenjun.proto.service.directory.entries import NOWHERE, Place, Who, lease_text
from zenjun.proto.service.directory.leases import end
from zenjun.proto.service.directory.lookup import Answer, Ask, Copy, Decision, NotHere, decide
from zenjun.proto.service.directory.messages import Id, Message, Next
from zenjun.proto.service.directory.operate import Operating, Refused
from zenjun.proto.service.directory.state import Outcome, Result, State
from zenjun.proto.service.directory.store import Table
from zenjun.proto.service.directory.timers import majority_time
from zenjun.proto.service.directory.ttl import Ttls
from zenjun.proto.service.directory.watch import Event, Gap, Watch

from .directory import Process, World
from .directory_ask import holders
from .directory_plan import Lease as Registration

# ---- the state


class ReadsClock(State):
    """W2: timers take effect by the own wall clock."""

    wall = 0

    def _majority(self) -> int:
        return self.wall


class CountsLeft(State):
    """T1: who has left goes on counting for the majority."""

    def _left(self, here: set[Who], new: set[Who]) -> list[Who]:
        gone = super()._left(here, new)
        self.former = {**getattr(self, "former", {}), **{who: self.members[who] for who in gone}}
        return gone

    def _majority(self) -> int:
        return majority_time({**getattr(self, "former", {}), **self.members})


class AnyClock(State):
    """T1: one clock is enough."""

    def _majority(self) -> int:
        return max((m.due for m in self.members.values() if m.active), default=0)


class NeverBack(State):
    """T1 as printed: directory time never goes back."""

    def _majority(self) -> int:
        self.furthest: int = max(getattr(self, "furthest", 0), super()._majority())
        return self.furthest


class ViewMovesNothing(State):
    """T1: directory time moves at a DUE only."""

    def on_view(self, place: Place, members: Iterable[Who], joined: Iterable[Who] = ()) -> Result:
        self.held = self._time
        try:
            return super().on_view(place, members, joined)
        finally:
            del self.held

    def _majority(self) -> int:
        return min(getattr(self, "held", 1 << 60), super()._majority())


class NextOfAnyVersion(State):
    """T3: a NEXT counts for a later version as well."""

    def _take_next(self, draft: Draft, message: Next) -> None:
        entry = draft.entry(message.name)
        super()._take_next(draft, message._replace(version=entry.version) if entry else message)


class NextAgain(State):
    """T3 as printed: the instant of a NEXT may be one that has been."""

    def _take_next(self, draft: Draft, message: Next) -> None:
        entry = draft.entry(message.name)
        if entry is not None and entry.version == message.version and entry.schedule is not None and not entry.schedule.due:
            schedule = entry.schedule._replace(due=message.due, slot=message.slot % len(entry.schedule.slots))
            draft.put(entry._replace(version=draft.place, schedule=schedule))


class NoOutcomes(State):
    """W5: nothing is known of updates that have been."""

    def outcome(self, update: Id) -> Outcome | None:
        return None


class ByStation(State):
    """M1: leases end by the view without their station."""

    def _left(self, here: set[Who], new: set[Who]) -> list[Who]:
        return [who for who in super()._left(here, new) if who[0] not in {station for station, _ in here}]


class ForgetsWaiting(State):
    """M1: a lease that waits for a name does not end."""

    def _end(self, draft: Draft, leases: dict[str, set[str]]) -> None:
        def waits(name: str, lease: str) -> bool:
            return any(lease_text(w.lease) == lease for _, w in draft.waiting_for(name))

        kept = {lease: {n for n in names if not waits(n, lease)} for lease, names in leases.items()}
        end(draft, {lease: names for lease, names in kept.items() if names})


class ByArrival(Draft):
    """M4: the queue is in the order of the leases, not of the places."""

    def waiting_for(self, name: str) -> Iterator[tuple[str, Waiting]]:
        yield from sorted(super().waiting_for(name), key=lambda item: item[1].lease)


class QueueByArrival(State):
    draft_class = ByArrival


class Halves(Operating):
    """W1: what comes before a refused operation stays."""

    def run(self, operations: tuple[ops.Operation, ...]) -> None:
        try:
            super().run(operations)
        except Refused:
            if not self.draft.new:
                raise


class PartOfAll(State):
    operating_class = Halves


class NoCircleCheck(Operating):
    """E7: the sender's copy decides whether an alias closes a circle (``CheckAtSend``)."""

    def _circle(self, op: ops.Alias) -> None:
        pass


class ChecksNoCircle(State):
    operating_class = NoCircleCheck


class KeepsLeased(Operating):
    """M3: an entry stays without targets though nobody has set it."""

    def _register(self, op: ops.Register) -> None:
        super()._register(op)
        entry = self.draft.entry(op.name)
        if entry is not None:
            self.draft.put(entry._replace(kept=True))


class DeadStay(State):
    operating_class = KeepsLeased


class LeasesOfStrangers(Operating):
    """M1: a process outside the view can register; no view will end its leases."""

    def _register(self, op: ops.Register) -> None:
        self.present = True
        super()._register(op)


class TakesStrangers(State):
    operating_class = LeasesOfStrangers


class ForgetsRemovals(State):
    """S3: a delta without what was removed."""

    def merge(self, place: Place, removed: Iterable[tuple[Table, str]], rows: Iterable[tuple[Table, str, bytes]]) -> None:
        super().merge(place, (), rows)


class LeasesSurvive(State):
    """C1: leases stay over a START."""

    def on_start(self, place: Place, members: Iterable[Who], views: bool = True) -> Result:
        return self.on_view(place, members)


class Forgives(State):
    """W1: a message that is not in its one form counts all the same."""

    def apply(self, place: Place, sender: Who, data: bytes, message: Message | None = None) -> Result:
        return super().apply(place, sender, data.strip())


# ---- the process


class NoFullTtl(Ttls):
    """M2: no full ttl after a pause, and what has come meanwhile is not read first."""

    def on_turn(self, now_ns: int) -> list[int]:
        self._turn_ns = now_ns
        return super().on_turn(now_ns)

    def renew(self, now_ns: int, number: int) -> bool:
        ttl, ends = self._leases.get(number, (0, 0))
        return super().renew(now_ns, number) if now_ns <= ends else bool(ttl)


class Unmarked(Watch):
    """P11: a reader is not told that states were left out."""

    def read(self, count: int) -> list[Event]:
        return [event for event in super().read(count) if not isinstance(event, Gap)]


class DropsLatest(Watch):
    """P11: what does not fit is lost."""

    def on_changes(self, place: Place, changes: Iterable[Any]) -> bool:
        return super().on_changes(place, changes) if len(self._events) < self.events_max else False


def _blindly(copy: Any, ask: Ask) -> Decision:
    return decide(copy, ask._replace(version=NOWHERE, after=NOWHERE))


def _blindly_again(copy: Any, ask: Ask, reply: NotHere) -> Decision:
    return _blindly(copy, ask)


class AskBlind(Desk):
    """L3: nobody waits for the newer version."""

    decide = staticmethod(_blindly)
    after_not_here = staticmethod(_blindly_again)


def _by_a_fixed_manager(copy: Any, ask: Ask) -> Decision:
    class Fixed:
        place, common, keeps = copy.place, copy.common, copy.keeps

        @staticmethod
        def manager(zone: str) -> Who | None:
            first = min(holders(copy.world, zone))
            return next((who for who in copy.p.state.active() if who[0] == first), None)

    return decide(cast(Copy, Fixed), ask)


class FixedManager(Desk):
    """Z3: a zone has one manager for ever, and goes with it."""

    decide = staticmethod(_by_a_fixed_manager)


class KeepsForAll(Terminal):
    """L5: what is kept is given to programs that have seen a later place."""

    def kept(self, name: str, after: Place, now_ns: int) -> Answer | None:
        return super().kept(name, NOWHERE, now_ns)


class ClockWorld(World):
    """The processes of ``ReadsClock`` with their clocks."""

    def advance(self, p: Process, count: int) -> None:
        if isinstance(p.state, ReadsClock):
            p.state.wall = p.wall()
        super().advance(p, count)


class OwnSuspicion(World):
    """M1: who suspects a process ends its leases at once."""

    def crash(self, p: Process) -> None:
        for other in self.usable():
            if other is not p and self.r.random() < 0.5:
                place = (other.state.place[0], other.state.place[1], other.state.place[2] + 1)
                other.state.on_view(place, set(other.state.members) - {p.who})
        super().crash(p)


class AnswersEarly(World):
    """M4: a program is told that it has a name when its process sees it free, before the register's place."""

    def registering(self, p: Process, lease: Registration, op: ops.Register) -> None:
        if op.exclusive and p.state.entry(op.name) is None:
            self.told(lease, p.state.place)


class PlaceIgnored(World):
    """L5: a daemon does not wait until it has the place that a client names."""

    def may_answer(self, p: Process, client: int) -> bool:
        return True


class AtOrdered(World):
    """W3: a process applies what the others will never get, and answers from it, before it hears that it was expelled."""

    def expel(self, p: Process) -> None:
        self.advance(p, -1)
        own = [data for q, epoch, data, _ in self.pending if q is p and epoch == p.epoch]
        for data in own:
            p.state.apply((self.clock + 1, p.who[0], 1), p.who, data)
            self.read_at(p)
        super().expel(p)


class SendsFirst(World):
    """E7: see ``ChecksNoCircle``; an alias is checked against the sender's copy."""

    def send(self, p: Process, data: bytes, intent: Any) -> None:
        for op in getattr(intent, "operations", ()):
            if isinstance(op, ops.Alias) and self._leads_to(p, op.target, op.name):
                return
        super().send(p, data, intent)

    @staticmethod
    def _leads_to(p: Process, start: str, name: str) -> bool:
        for _ in range(20):
            if start == name:
                return True
            entry = p.state.entry(start)
            if entry is None or not entry.alias:
                return False
            start = entry.alias
        return True


PARTS: dict[str, dict[str, Any]] = {
    "ReadsClock": {"state": ReadsClock, "world": ClockWorld},
    **{c.__name__: {"state": c} for c in (CountsLeft, AnyClock, NeverBack, ViewMovesNothing, NextOfAnyVersion, NextAgain)},
    **{c.__name__: {"state": c} for c in (NoOutcomes, ByStation, ForgetsWaiting, QueueByArrival, PartOfAll)},
    **{c.__name__: {"state": c} for c in (DeadStay, TakesStrangers, ForgetsRemovals, LeasesSurvive, Forgives)},
    "CheckAtSend": {"state": ChecksNoCircle, "world": SendsFirst},
    "NoFullTtl": {"ttls": NoFullTtl},
    "Unmarked": {"watch": Unmarked},
    "DropsLatest": {"watch": DropsLatest},
    **{c.__name__: {"desk": c} for c in (AskBlind, FixedManager)},
    "KeepsForAll": {"terminal": KeepsForAll},
    **{c.__name__: {"world": c} for c in (OwnSuspicion, AnswersEarly, PlaceIgnored, AtOrdered)},
}
"""Broken rule to what a world is made of in place of the honest parts."""
