"""What must hold in every history of the directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from zenjun.proto.service.directory.entries import NOWHERE, Place, Who
from zenjun.proto.service.directory.messages import Update
from zenjun.proto.service.directory.state import Result
from zenjun.proto.service.directory.watch import Changed, Event, Gap, Watch

from .violation import Violation

if TYPE_CHECKING:
    from .directory import Process, World
    from .directory_plan import Item, Lease

CHECKERS: Final = frozenset(
    {
        "equal",
        "reference",
        "outcome",
        "malformed",
        "once",
        "copy",
        "answer",
        "back",
        "zone-down",
        "exclusive",
        "lease-kept",
        "lease-gone",
        "early",
        "slot",
        "circle",
        "hops",
        "watch",
        "rest",
    }
)
S: Final = 1_000_000_000


@dataclass(slots=True)
class Known:
    """What the reader of a watch knows."""

    watch: Watch
    versions: dict[str, Place] = field(default_factory=dict)
    gap: Place | None = None
    """States up to here were left out."""
    listed: bool = False


class Checks:
    """Checkers of one run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._sums: dict[int, tuple[int, int, object]] = {}
        """Sums and members of the first copy that was there, by item."""
        self._codes: dict[int, str | None] = {}
        self._done: dict[tuple[str, int], int] = {}
        self._held: dict[tuple[Who, str], tuple[str, Place]] = {}
        """(lease, version) of the last one that had a name, by copy and name."""
        self._fired = 0

    def _fail(self, checker: str, text: str) -> None:
        raise Violation(checker, f"{self.world.now / S:.1f}: {text}")

    # ---- where the order is made

    def on_start(self, index: int) -> None:
        """What came behind this item is not part of the directory any more."""
        self._done = {k: i for k, i in self._done.items() if i < index}
        self._fired = len(self.world.oracle.fired)
        self._held.clear()

    def on_item(self, item: Item, intent: Any, code: str | None) -> None:
        oracle = self.world.oracle
        self._codes[len(self.world.log) - 1] = "malformed" if intent == "bad" else code
        if oracle.has_circle():
            self._fail("circle", f"the reference has one at {item.place}")
        for name, instant in oracle.fired[self._fired :]:
            self._not_early(name, instant)
        self._fired = len(oracle.fired)

    def _not_early(self, name: str, instant: int) -> None:
        """P7: the clocks of most active holders have passed what takes effect."""
        active = [who for who, (is_active, _) in self.world.oracle.members.items() if is_active]
        passed = [who for who in active if self.world.wall(who[0]) >= instant]
        if 2 * len(passed) <= len(active):
            self._fail("early", f"{name}: the slot of {instant} by the clocks of {passed} of {active}")

    # ---- copies

    def on_applied(self, p: Process, item: Item, index: int, result: Result) -> None:
        world = self.world
        oracle = world.pasts[index]
        s = p.state
        seen = (s.main, s.rest, sorted(s.members.items()))
        first = self._sums.setdefault(index, seen)
        if first != seen:
            self._fail("equal", f"{p.who} at {item.place}: {seen}, another copy {first}")
        self._check_once(p, index, result)
        self._check_circles(p, item, result)
        self._check_outcome(p, item, index, result)
        self._check_timers(p, item, result)
        if s.main != oracle.kept_sum():
            self._fail("reference", f"{p.who} at {item.place}: {self._difference(p, index)}")
        if s.time != oracle.time:
            self._fail("reference", f"{p.who} at {item.place}: directory time {s.time}, not {oracle.time}")
        self._check_exclusive(p, item, index, result)

    def _difference(self, p: Process, index: int) -> str:
        oracle = self.world.pasts[index]
        for name in sorted({*oracle.entries, *self.world.plan.names, "web"}):
            entry = p.state.store.get(1, name)  # type: ignore[arg-type]
            wanted = oracle.row(name) if name in oracle.entries else None
            if (entry.decode() if entry else None) != wanted:
                return f"{name} is {entry!r}, not {wanted}"
        return "zones"

    def _check_once(self, p: Process, index: int, result: Result) -> None:
        if isinstance(result.message, Update) and result.outcome and not result.outcome.code and not result.repeated:
            update = result.message.id
            if self._done.setdefault((update.client, update.counter), index) != index:
                self._fail("once", f"{p.who}: {result.message} is done twice")

    def _check_outcome(self, p: Process, item: Item, index: int, result: Result) -> None:
        wanted, outcome = self._codes[index], result.outcome
        if (outcome.code if outcome else None) != wanted:
            checker = "malformed" if "malformed" in (wanted, outcome and outcome.code) else "outcome"
            self._fail(checker, f"{p.who} at {item.place}: {outcome}, not {wanted!r}")

    def _check_timers(self, p: Process, item: Item, result: Result) -> None:
        """P7: a slot takes effect once an instant, and each instant is behind the last one."""
        for change in result.changes:
            old = change.old.schedule if change.old else None
            new = change.new.schedule if change.new else None
            if old is None or new is None or isinstance(result.message, Update):
                continue
            if new.last != old.last and new.last <= old.last:
                self._fail("slot", f"{p.who} at {item.place}: {change.name} began at {old.last}, and then at {new.last}")

    def _check_exclusive(self, p: Process, item: Item, index: int, result: Result) -> None:
        """P5: at most one lease has the name, and the number of each next one is larger."""
        for change in result.changes:
            new = change.new
            if new is None or not new.exclusive:
                continue
            if len(new.targets) != 1:
                self._fail("exclusive", f"{p.who} at {item.place}: {new}")
            holder = new.targets[0].until
            before = self._held.get((p.who, change.name))
            if before is not None and before[0] != holder and new.version < before[1]:
                self._fail("exclusive", f"{p.who}: {new} follows {before}")
            if before is None or new.version > before[1]:
                self._held[(p.who, change.name)] = (holder, new.version)

    def _check_circles(self, p: Process, item: Item, result: Result) -> None:
        for change in result.changes:
            seen = set()
            entry = change.new
            while entry is not None and entry.alias:
                if entry.name in seen:
                    self._fail("circle", f"{p.who} at {item.place}: {change.name}")
                seen.add(entry.name)
                entry = p.state.entry(entry.alias)

    def on_held(self, lease: Lease, version: Place) -> None:
        """A program was told that it has its name: this was so at a place, under the number that the place gives."""
        text = f"{lease.who[0]}.{lease.who[1]}.{lease.number}"
        if self.world.place_known(version):
            for e in self.world.pasts[self.world.index_of(version)].entries.values():
                if e["exclusive"] and any(t["lease"] and ".".join(map(str, t["lease"])) == text for t in e["targets"]):
                    return
        self._fail("exclusive", f"{text} was told that it has {lease.name} by {version}, and had it nowhere")

    # ---- leases

    def on_ended(self, p: Process, lease: Lease) -> None:
        """P6: a process ends no lease of a program that renews it."""
        if lease.alive:
            self._fail("lease-kept", f"{p.who} ends lease {lease.number} of {lease.name}, which was renewed all the time")

    # ---- programs

    def on_answer(self, p: Process, client: int, name: str, version: Place, code: str, addresses: list[str]) -> None:
        """P3: the answer was right at the copy's place, and no earlier one than the client has seen."""
        place = p.state.place
        if place < self.world.reads.get(client, NOWHERE):
            self._fail("back", f"{p.who} answers client {client} at {place}, behind {self.world.reads[client]}")
        index = self.world.index_of(place)
        if index < 0 or self.world.log[index].place != place:
            self._fail("answer", f"{p.who} answers at {place}, which is no place of the order")
        wanted = self.world.pasts[index].look_up(name)
        if (version, code, addresses) != wanted:
            self._fail("answer", f"{p.who} at {place}: {name} is {version, code, addresses}, not {wanted}")

    def on_events(self, p: Process, known: Known, events: list[Event]) -> None:
        """P11: without a gap a reader knows the list at each place that it hears of, and at the end of all events always."""
        for i, event in enumerate(events):
            if isinstance(event, Gap):
                known.gap = event.place
                self.world.met["gap"] += 1
            elif isinstance(event, Changed):
                if known.gap is not None and event.place > known.gap:
                    known.gap = None
                if event.entry is None:
                    known.versions.pop(event.name, None)
                else:
                    known.versions[event.name] = event.entry.version
                following = events[i + 1] if i + 1 < len(events) else None
                if known.gap is None and following is not None and following.place > event.place and known.listed:
                    self._same_list(p, known, event.place)
            else:
                known.listed = True
        if not len(known.watch):
            known.gap = None
            self._same_list(p, known, p.state.place)

    def _same_list(self, p: Process, known: Known, place: Place) -> None:
        oracle = self.world.pasts[self.world.index_of(place)]
        wanted = {name: e["version"] for name, e in oracle.entries.items() if known.watch.concerns(name)}
        if known.versions != wanted:
            self._fail("watch", f"{p.who} at {place}: a watch knows {known.versions}, not {wanted}")

    # ---- the end

    def on_rest(self) -> None:
        world = self.world
        processes = world.live()
        if len({(p.state.place, p.state.main, p.state.rest) for p in processes}) > 1:
            self._fail("rest", "copies differ")
        if len(processes[0].state.active()) != len(processes):
            self._fail("rest", f"active: {processes[0].state.active()}")
        alive = {(*lease.who, lease.number) for lease in world.leases if lease.alive}
        gone = {lease for lease in world.oracle.leases() if lease not in alive}
        if gone:
            self._fail("lease-gone", f"{gone} have targets still")
        due = processes[0].state.next_due()
        if due and due < world.wall(1) - 5:
            self._fail("rest", f"{due} has not taken effect at {world.wall(1)}")
        world.asking.on_rest()
