"""A zone with holders of its own over an abstract total order: some stations keep it, others do not, and all use it.

Holders have the product's state and answer by ``keeping``; the others have ``remote`` (rules Z2, Z3, L2, L5, W5, M1, M3). Beside
the order there are the messages of ``zenjun.dir.ask``: each pair of stations has a way, which is lost with either of them.
Processes crash and come again, are expelled, fail and copy the state. All leave the order at once and come again, with what was
under way lost, and a START takes the furthest state that is there. A reference state goes along where the order is made. In the
end everything is repaired and comes to rest.

``python -m tests.sim.directory_zone FIRST COUNT`` runs many seeds and prints those that fail.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from zenjun.proto.service.directory.entries import NOWHERE, Lease, Place, Target, Who
from zenjun.proto.service.directory.keeping import Keeper, answer_of, lease_names
from zenjun.proto.service.directory.lookup import Answer
from zenjun.proto.service.directory.messages import Holding, Id, Update, encode
from zenjun.proto.service.directory.operations import Register, Remove, Set
from zenjun.proto.service.directory.questions import Question, Reply
from zenjun.proto.service.directory.questions import decode as decode_question
from zenjun.proto.service.directory.questions import encode as encode_question
from zenjun.proto.service.directory.remote import Remote, at
from zenjun.proto.service.directory.state import State
from zenjun.proto.service.directory.store import MemoryStore, Table

from .histories import run_seeds, violation_of
from .violation import Violation

S: Final = 1_000_000_000
ZONE: Final = "north"
NAMES: Final = ("a.north", "b.north", "c.north")


class Item(NamedTuple):
    """One place of the order. members: of a view; (): it is a message."""

    place: Place
    sender: Who
    data: bytes
    members: tuple[Who, ...] = ()
    joined: tuple[Who, ...] = ()


class Station:
    """A directory process, of either kind."""

    def __init__(self, world: World, station: int) -> None:
        self.world = world
        self.station = station
        self.client = 0
        self.alive = True
        self.cursor = 0
        """Number of the next item."""
        self.out: deque[bytes] = deque()
        """Messages that have no place yet."""

    @property
    def who(self) -> Who:
        return (self.station, self.client)

    @property
    def inside(self) -> bool:
        return self.alive and self.who in self.world.members

    def enter(self) -> None:
        """It comes into the order, and reads from its view on."""
        self.cursor = len(self.world.log)
        self.out.clear()

    def read(self, item: Item) -> None:
        raise NotImplementedError

    def hear(self, sender: int, message: Any) -> None:
        raise NotImplementedError


class Holder(Station):
    """One that keeps the zone."""

    def __init__(self, world: World, station: int) -> None:
        super().__init__(world, station)
        self.state: State = world.parts.get("state", State)(MemoryStore(), home=ZONE)
        self.active = False
        self.made: list[Question] = []
        self.keeper: Keeper = world.parts.get("keeper", Keeper)(lambda: self.state.place, lambda: self.active, self.answer)

    def enter(self) -> None:
        super().enter()
        self.active = False
        self.keeper.on_place()

    def answer(self, station: int, question: Question) -> None:
        self.world.send(self.station, station, answer_of(self.state, question))

    def begin(self) -> None:
        """Its state is the group's."""
        self.active = True
        self.out.append(encode(Holding(True)))

    def read(self, item: Item) -> None:
        if not self.active:
            return
        if item.members:
            self.state.on_view(item.place, item.members, item.joined)
            if set(item.joined) - {self.who} and not self.world.parts.get("silent"):
                self.out.append(encode(Holding(True)))
            for who in item.joined:
                self.keeper.forget(who[0])
        else:
            self.state.apply(item.place, item.sender, item.data)
        self.keeper.on_place()

    def hear(self, sender: int, message: Any) -> None:
        self.keeper.on_question(sender, message)

    def copy(self, donor: Holder) -> None:
        store = donor.state.store
        assert isinstance(store, MemoryStore)
        donor.state.save()
        self.state = type(self.state)(store.copy(), home=ZONE)
        self.cursor = donor.cursor


class Terminal(Station):
    """One that does not, and its programs."""

    def __init__(self, world: World, station: int) -> None:
        super().__init__(world, station)
        self.remote = self._remote()
        self.since = 0
        """Item from which on it is in the order."""
        self.seen: dict[int, Place] = {}
        self.asked: dict[int, tuple[str, int, Place]] = {}
        self.updates: dict[Id, Update] = {}
        self.registering: dict[Id, Register] = {}
        self.leases: dict[int, Register] = {}
        self.numbers = 0

    def _remote(self) -> Remote:
        kind = self.world.parts.get("remote", Remote)
        remote: Remote = kind(ZONE, self.world.holder_ids, self.who, self.world.r.randrange(1 << 40))
        return remote

    def enter(self) -> None:
        super().enter()
        self.since = self.cursor

    def begin_anew(self) -> None:
        """A new process: its programs are gone."""
        self.remote = self._remote()
        for programs in (self.seen, self.asked, self.updates, self.registering, self.leases):
            programs.clear()

    def read(self, item: Item) -> None:
        now = self.world.now
        if item.members:
            self.remote.on_view(now, item.place, item.members, item.joined)
            if self.who in item.joined:
                for update in self.updates.values():
                    self.out.append(encode(update))
        else:
            self.remote.on_message(now, item.place, item.sender, item.data)
        self.carry_out()
        self.world.check_active(self)

    def hear(self, sender: int, message: Any) -> None:
        self.remote.on_answer(self.world.now, sender, message)
        self.carry_out()

    def tick(self) -> None:
        self.remote.on_time(self.world.now)
        self.carry_out()

    def carry_out(self) -> None:
        r = self.remote
        self.out.extend(r.to_group)
        for station, question in r.to_holder:
            self.world.send(self.station, station, question)
        r.to_group.clear()
        r.to_holder.clear()
        for number, answer in r.answered.items():
            name, client, after = self.asked.pop(number)
            self.world.check_answer(self, name, client, after, answer)
        r.answered.clear()
        self.out.extend(encode(self.updates[lost]) for lost in r.again if lost in self.updates)
        r.again.clear()
        for update, outcome in r.outcomes:
            self.world.check_outcome(update, outcome.place)
            del self.updates[update]
            if (operation := self.registering.pop(update, None)) is not None and not outcome.code:
                self.leases[operation.number] = operation
                r.hold(operation.number, outcome.text != "waiting")
            elif operation is not None:
                self.leases.pop(operation.number, None)
        r.outcomes.clear()
        for number in r.register:
            if number in self.leases:
                r.registers(self._update(self.leases[number]).id, number)
        r.register.clear()
        r.news.clear()

    # ---- programs

    def _update(self, operation: Any) -> Update:
        self.world.counter += 1
        update = Update(Id(f"{self.station:016x}", self.world.counter), ("operator", "user:x"), (operation,))
        self.updates[update.id] = update
        self.remote.track(update.id)
        self.out.append(encode(update))
        return update

    def change(self) -> None:
        name = self.world.r.choice(NAMES)
        target = Target(f"tcp://10.0.0.{self.world.r.randrange(250)}:1")
        self._update(Remove(name) if self.world.r.random() < 0.2 else Set(name, (target,)))

    def register(self) -> None:
        self.numbers += 1
        exclusive = self.world.r.random() < 0.5
        name = f"{'x' if exclusive else 'y'}.north"
        operation = Register(name, f"tcp://10.1.0.{self.station}:{self.numbers}", self.numbers, exclusive=exclusive)
        self.registering[self._update(operation).id] = operation

    def release(self) -> None:
        if self.leases:
            number = self.world.r.choice(sorted(self.leases))
            del self.leases[number]
            for update in self.remote.end([number]):
                del self.updates[update]
            self.carry_out()

    def look_up(self, name: str) -> None:
        client = self.world.r.randrange(3)
        if any(c == client for _, c, _ in self.asked.values()):
            return
        after = self.seen.get(client, NOWHERE)
        kept = self.remote.kept(name, after, self.world.now)
        if kept is not None:
            self.world.check_answer(self, name, client, after, kept)
            return
        number = self.remote.look_up(name, after, self.world.now)
        self.asked[number] = (name, client, after)
        self.carry_out()

    def give_up(self) -> None:
        for update in list(self.updates)[:1]:
            if update not in self.registering:
                del self.updates[update]
                self.remote.untrack(update)


class World:
    """A run. ``run`` raises Violation."""

    def __init__(self, seed: int, **parts: Any) -> None:
        """parts: classes in place of the honest ones: ``remote``, ``keeper``, ``state``. ``silent``: holders do not repeat
        HOLDING. ``faults``: share of steps that are faults."""
        self.r = r = random.Random(seed ^ 0x20AED)
        self.parts = parts
        self.now = S
        self.log: list[Item] = []
        self.clock = 1 << 32
        self.members: tuple[Who, ...] = ()
        self.counter = 0
        holders = r.randint(1, 3)
        self.holder_ids = tuple(range(1, holders + 1))
        self.holders = [Holder(self, k) for k in self.holder_ids]
        self.terminals = [Terminal(self, k) for k in range(holders + 1, holders + 1 + r.randint(1, 2))]
        self.stations: list[Station] = [*self.holders, *self.terminals]
        self.ways: dict[tuple[int, int], deque[bytes]] = {}
        self.truth: State = parts.get("state", State)(MemoryStore(), home=ZONE)
        self.pasts: dict[Place, dict[str, Place]] = {}
        self.outcomes: dict[Id, set[Place]] = {}
        self.faults = parts.get("faults", r.choice([0.0, 0.03, 0.08]))
        self.slow = r.choice([0, *self.holder_ids])
        """A station that seldom reads; 0: none."""
        self.healed = False
        self.starts = self.answers = self.downs = self.decided = 0
        self.plan = f"seed {seed}: {holders} holders, {len(self.terminals)} without the zone, faults {self.faults}"
        self.trace: list[str] = []

    # ---- the order

    def _place(self) -> Place:
        self.clock += self.r.randint(1, 3)
        return (self.clock, 1, 0)

    def _append(self, item: Item) -> None:
        self.log.append(item)
        if item.members:
            self.members = item.members
            self.truth.on_view(item.place, item.members, item.joined)
        else:
            result = self.truth.apply(item.place, item.sender, item.data)
            if result.outcome is not None and result.outcome.code == "not-member":
                raise Violation("member", f"{item.sender} has sent to the group, and is told that it is no member")
            if isinstance(result.message, Update) and not result.repeated:
                self.outcomes.setdefault(result.message.id, set()).add(item.place)
        self._remember(item.place)
        what = f"view {item.members} joined {item.joined}" if item.members else f"{item.sender} {item.data[3:].decode()}"
        self.trace.append(f"{item.place[0]} {what}")

    def _remember(self, place: Place) -> None:
        self.pasts[place] = {name: entry.version for name in NAMES if (entry := self.truth.entry(name)) is not None}

    def view(self, joined: Iterable[Station] = (), left: Iterable[Station] = ()) -> None:
        """left: leave the order, with what they have under way."""
        new, gone = list(joined), {station.who for station in left}
        for station in left:
            station.out.clear()
        members = sorted({who for who in self.members if who not in gone} | {station.who for station in new})
        for station in new:
            station.enter()
        for station in [*new, *left]:
            for way in self.ways:
                if station.station in way:
                    self.ways[way].clear()
        if members:
            self._append(Item(self._place(), (0, 0), b"", tuple(members), tuple(sorted(s.who for s in new))))
        else:
            self.members = ()

    def start_or_copy(self) -> None:
        """State transfer, with its result only."""
        inside = [h for h in self.holders if h.inside]
        active = [h for h in inside if h.active]
        if active:
            for h in inside:
                donors = [d for d in active if d.cursor >= h.cursor or not h.cursor]
                if not h.active and donors:
                    h.copy(self.r.choice(donors))
                    h.begin()
            return
        whole = [h for h in inside if h.state.place != NOWHERE]
        if not inside or not (2 * len(whole) > len(self.holders) or len(inside) == len(self.holders)):
            return
        best = max(inside, key=lambda h: h.state.place)
        self.starts += 1
        best.cursor = len(self.log)
        place = self._place()
        best.state.on_start(place, [h.who for h in inside])
        store = best.state.store
        assert isinstance(store, MemoryStore)
        best.state.save()
        self.truth = type(self.truth)(store.copy(), home=ZONE)
        self._remember(place)
        self.trace.append(f"{place[0]} START {best.who}")
        best.begin()

    # ---- messages between processes

    def send(self, sender: int, to: int, message: Any) -> None:
        self.ways.setdefault((sender, to), deque()).append(encode_question(at(to), message))

    def carry(self) -> bool:
        ways = [way for way in self.ways if self.ways[way]]
        if not ways:
            return False
        way = self.r.choice(ways)
        data = self.ways[way].popleft()
        station = self.stations[way[1] - 1]
        if station.inside:
            found = decode_question(data)
            if found is None or found[0] != at(way[1]):
                raise Violation("wire", f"{data!r} is not what was encoded for {way[1]}")
            station.hear(way[0], found[1])
        return True

    def write(self) -> bool:
        able = [s for s in self.stations if s.inside and s.out]
        if able:
            s = self.r.choice(able)
            self._append(Item(self._place(), s.who, s.out.popleft()))
        return bool(able)

    def read(self) -> bool:
        able = [s for s in self.stations if s.inside and s.cursor < len(self.log)]
        if not self.healed and self.r.random() < 0.9:
            able = [s for s in able if s.station != self.slow]
        if able:
            s = self.r.choice(able)
            for _ in range(self.r.randint(1, 4)):
                if s.cursor < len(self.log):
                    s.cursor += 1
                    s.read(self.log[s.cursor - 1])
        return bool(able)

    # ---- what must hold

    def check_active(self, t: Terminal) -> None:
        """Z3: the holders that count as active are those that have said so, and are in the view since."""
        active: set[Who] = set()
        for item in self.log[t.since : t.cursor]:
            if item.members:
                active = {who for who in active if who in item.members and who not in item.joined}
            elif item.data == encode(Holding(True)):
                active.add(item.sender)
            elif item.data == encode(Holding(False)):
                active.discard(item.sender)
        if t.remote.joined and t.remote.active != active:
            raise Violation("active", f"{t.who} takes {sorted(t.remote.active)} for active, not {sorted(active)}")

    def check_answer(self, t: Terminal, name: str, client: int, after: Place, answer: Answer | Reply | None) -> None:
        """P3: an answer was right at its place, and is no earlier one than the program has seen."""
        if answer is None:
            self.downs += 1
            if t.remote.active:
                raise Violation("zone-down", f"{t.who} says that the zone is down; {sorted(t.remote.active)} are active")
            return
        assert isinstance(answer, Answer)
        self.answers += 1
        if answer.place < self.seen_by(t, client):
            raise Violation("back", f"{t.who}: {name} as of {answer.place}, after an answer of {self.seen_by(t, client)}")
        t.seen[client] = answer.place
        names = self.pasts.get(answer.place)
        if names is not None and names.get(name, NOWHERE) != (answer.version if answer.code != "no-name" else NOWHERE):
            raise Violation("answer", f"{t.who}: {name} at {answer.place} is {answer}, not of {names.get(name)}")

    @staticmethod
    def seen_by(t: Terminal, client: int) -> Place:
        return t.seen.get(client, NOWHERE)

    def check_outcome(self, update: Id, place: Place) -> None:
        """W5: what a program is told has happened, at that place."""
        self.decided += 1
        if place not in self.outcomes.get(update, ()):
            raise Violation("outcome", f"{update} is said to be decided at {place}, not {self.outcomes.get(update)}")

    def check_rest(self) -> None:
        """P12: all holders are active and equal, all that was asked is answered, and the leases are those of the programs."""
        sums = {(h.state.main, h.state.rest) for h in self.holders}
        if not all(h.active for h in self.holders) or len(sums) != 1:
            raise Violation("rest", f"{[(h.who, h.active, h.state.place) for h in self.holders]} are not equal and active")
        up = {station for station, _ in self.members}
        if any(set(h.state.stations_up()) != up for h in self.holders):
            raise Violation("rest", f"stations {sorted(up)} are in the group, {self.holders[0].state.stations_up()} count as up")
        for t in self.terminals:
            if t.remote.active != {h.who for h in self.holders}:
                raise Violation("rest", f"{t.who} takes {sorted(t.remote.active)} for active")
            if t.updates or t.asked or len(t.remote):
                raise Violation("rest", f"{t.who} still waits: {list(t.updates)} {t.asked} {len(t.remote)}")
            for number in sorted(t.leases):
                known, entries = lease_names(self.truth, Lease(*t.who, number))
                if not known:
                    raise Violation("lease-lost", f"lease {number} of {t.who} is not in the directory")
                text = ".".join(map(str, (*t.who, number)))
                held = any(target.until == text for entry in entries for target in entry.targets)
                if t.remote.holds(number) != held:
                    raise Violation("lease-news", f"lease {number} of {t.who}: held {held}, and the program was told otherwise")
        live = {(*t.who, number) for t in self.terminals for number in t.leases}
        for key, _ in self.truth.store.scan(Table.LEASE, "", "~"):
            station, client, number = map(int, key.split(" ")[0].split("."))
            if (station, client, number) not in live:
                raise Violation("lease-gone", f"lease {(station, client, number)} has no program any more")

    # ---- a run

    def fault(self) -> None:
        r, s = self.r, self.r.choice(self.stations)
        kind = r.choice(["crash", "crash", "restart", "restart", "expel", "reopen", "fail"])
        if kind == "crash" and s.alive:
            s.alive = False
            self.view(left=[s])
        elif kind == "restart" and not s.alive:
            self.restart(s)
        elif kind == "expel" and s.inside:
            self.view(left=[s])
            self.view(joined=[s])
        elif kind == "reopen" and r.random() < 0.3:
            self.reopen()
        elif kind == "fail" and isinstance(s, Holder) and s.inside and s.active:
            s.active = False
            s.keeper.on_place()
            s.out.append(encode(Holding(False)))

    def restart(self, s: Station) -> None:
        s.alive = True
        s.client += 1
        if isinstance(s, Terminal):
            s.begin_anew()
        self.view(joined=[s])

    def reopen(self) -> None:
        """The instance ends, and with it what has no place; the next one has those that are up."""
        for s in self.stations:
            s.out.clear()
        for way in self.ways:
            self.ways[way].clear()
        self.members = ()
        self.view(joined=[s for s in self.stations if s.alive])

    def step(self) -> None:
        r = self.r
        for _ in range(r.randint(0, 3)):
            self.write()
        for _ in range(r.randint(0, 5)):
            self.read()
        for _ in range(r.randint(0, 4)):
            self.carry()
        if r.random() < 0.3:
            self.start_or_copy()
        if r.random() < 0.4:
            self.now += r.choice([1, 100, 700]) * 1_000_000
            for t in self.terminals:
                if t.inside:
                    t.tick()
        able = [t for t in self.terminals if t.inside and t.remote.joined]
        if able:
            t = r.choice(able)
            what = r.choice(["look", "look", "look", "change", "change", "register", "release", "give"])
            if what == "look":
                t.look_up(r.choice(NAMES))
            elif what == "give" and r.random() < 0.3:
                t.give_up()
            elif what in ("change", "register", "release") and r.random() < 0.4:
                getattr(t, what)()
        if r.random() < self.faults:
            self.fault()

    def rest(self) -> None:
        self.healed = True
        for s in self.stations:
            if not s.alive:
                self.restart(s)
        for _ in range(2000):
            self.start_or_copy()
            busy = self.write()
            busy |= self.read()
            busy |= self.carry()
            if not busy:
                self.now += S // 4
                for t in self.terminals:
                    t.tick()
                busy = any(s.out for s in self.stations) or any(self.ways.values()) or any(len(t.remote) for t in self.terminals)
                if not busy and all(h.active for h in self.holders) and not any(t.updates for t in self.terminals):
                    return

    def run(self) -> None:
        self.view(joined=self.stations)
        for _ in range(self.r.choice([60, 150, 300])):
            self.step()
        self.rest()
        self.check_rest()


def simulate(seed: int, **parts: Any) -> Violation | None:
    """Run one seed. The violation has the world and the end of the trace as notes."""
    return violation_of(World(seed, **parts), 25)


if __name__ == "__main__":
    sys.exit(run_seeds(simulate, sys.argv[1:]))
