"""The seven steps over an abstract FIFO broadcast: thousands of short histories a minute.

In place of the core there is one stream of messages for each life of a member, which every other member reads at its own pace,
and one log of what the total order carries: views of the group, STARTs, ACTIVEs. Streams are not ordered against each other, nor
against the log. Only the view without a member comes behind all of its messages that any survivor has. In place of the rows there
is a list of the updates so far.

Processes crash, with and without the operating system, are expelled and serve on until they notice, come back; the instance ends
with messages lost at some and not at others, and opens again; everything is switched off. Then all is repaired and must come to
rest.

``python -m tests.sim.seven FIRST COUNT`` runs many seeds and prints those that fail.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from zenjun.proto.service.directory.entries import NOWHERE, Place, Who
from zenjun.proto.service.directory.seven import Seven
from zenjun.proto.service.directory.seventypes import (
    Age,
    Commit,
    Effect,
    Finished,
    Keep,
    Locked,
    Lost,
    Send,
    Standing,
    Wrong,
)

from .histories import run_seeds, violation_of
from .seven_checks import Checks
from .violation import Violation

REST_STEPS: Final = 60_000
"""After the repair it comes to rest within so many steps."""
TIMER: Final = 0.05
History = tuple[str, ...]


@dataclass(slots=True)
class Plan:
    """One run, drawn from its seed; a test may fix any of it."""

    seed: int
    stations: int = 3
    steps: int = 600
    updates: float = 0.05
    faults: float = 0.015
    kinds: tuple[str, ...] = ("crash", "power", "expel", "restart", "end", "dark", "abandon")
    durable: float = 0.5
    """Share of updates that have to be on disk."""
    unicast: bool = False
    slow: float = 0.003
    """How often a process is slow with one thing for a while."""

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Any run."""
        r = random.Random(seed)
        return cls(
            seed,
            stations=r.choice([2, 3, 3, 3, 4, 5]),
            steps=r.choice([200, 600, 1200]),
            updates=r.choice([0.02, 0.05, 0.2]),
            faults=r.choice([0, 0.005, 0.02, 0.04]),
            durable=r.choice([0, 0.5, 1]),
            unicast=r.random() < 0.2,
            slow=r.choice([0, 0.003, 0.01]),
        )


@dataclass(eq=False, slots=True)
class Stream:
    """What one life of a member has sent. cut: no survivor has more; None: it lives."""

    owner: Who
    messages: list[bytes] = field(default_factory=list)
    cut: int | None = None


class Item(NamedTuple):
    """Of the total order. ``join`` and ``leave``: who; stream: of its life. ``start``: the states of ``who`` are the group's.
    ``active``: who has got the state."""

    kind: str
    place: Place
    who: frozenset[Who]
    members: frozenset[Who]
    roster: frozenset[Who]
    stream: Stream | None
    limits: dict[Stream, int]
    """join: how much each member had sent then."""


class Update(NamedTuple):
    """What a caller wants. number 0: nothing is to be committed in the end."""

    name: str
    durable: bool


class Process:
    """A directory process."""

    def __init__(self, world: World, who: Who, history: History, place: Place, kept: Keep | None) -> None:
        self.world = world
        self.who = who
        self.machine = world.machine_class(who, unicast=world.plan.unicast)
        self.history = history
        self.place = place
        self.version: Place = place
        """Place of the last change that look-ups can see."""
        self.kept = kept
        self.disk: tuple[History, Place, Keep | None] = (history, place, kept)
        self.alive = True
        self.connected = True
        self.out = True
        """It knows that it is in no instance."""
        self.cursor = 0
        """Number of the next item of the log."""
        self.limit: int | None = None
        """Expelled: it gets no item from this one on."""
        self.stream: Stream | None = None
        self.reading: dict[Stream, int] = {}
        self.ends: dict[Stream, int] = {}
        """Expelled: it gets no message from this one on."""
        self.effects: deque[Effect] = deque()
        self.queue: deque[Update] = deque()
        self.current: Update | None = None
        self.age = Age(0, who)
        """Of its attempt, by the counters alone."""
        self.roster: frozenset[Who] = frozenset()
        self.asked: int | None = None
        """COPY: the log's length when the state was asked for."""
        self.donor: Process | None = None

    @property
    def serves(self) -> bool:
        """It answers look-ups."""
        m = self.machine
        busy = any(isinstance(e, Commit) for e in self.effects)
        return self.alive and not self.out and m.active and not m.closed and not busy

    @property
    def here(self) -> bool:
        """Alive, and not cut off."""
        return self.alive and self.connected

    def sync(self) -> None:
        """Everything written so far is on disk."""
        self.disk = (self.history, self.place, self.kept)


class World:
    """A run. ``run`` raises Violation."""

    def __init__(self, plan: Plan, **parts: Any) -> None:
        """parts: classes and rules to be used in place of the honest ones."""
        self.plan = plan
        self.r = random.Random(plan.seed ^ 0x5E7E)
        self.machine_class: type[Seven] = parts.get("machine", Seven)
        self.copies_early: bool = parts.get("copies_early", False)
        """F5: the state is copied before the locks are asked for."""
        self.forgets_kept: bool = parts.get("forgets_kept", False)
        """U6: a cold start does not count what is kept."""
        self.keeps_locks: bool = parts.get("keeps_locks", False)
        """U9: a COPY keeps its locks over a START, although it lacks those of members that have come since."""
        self.views_overtake: bool = parts.get("views_overtake", False)
        """U1: the view without a member may come before its last messages."""
        self.timers = hasattr(self.machine_class, "on_timer")
        self.log: list[Item] = []
        self.instance = 1
        self.clock = 1 << 32
        self.group: dict[Who, Stream] = {}
        """The group's members at the end of the log."""
        self.roster: set[Who] = set()
        """Whose state is the group's, at the end of the log."""
        self.processes: dict[int, Process] = {}
        self.clients = dict.fromkeys(range(1, plan.stations + 1), 0)
        self.names = 0
        self.steps = 0
        self._slow: dict[tuple[Process, Stream | str], int] = {}
        self.healed = False
        self.trace: list[str] = []
        self.met: Counter[str] = Counter()
        self.checks = Checks(self)

    # ---- facts

    @property
    def quorum(self) -> int:
        return self.plan.stations // 2 + 1

    def live(self) -> list[Process]:
        return [p for _, p in sorted(self.processes.items()) if p.alive]

    def here(self) -> list[Process]:
        return [p for p in self.live() if p.connected]

    def note(self, text: str) -> None:
        self.trace.append(text)

    # ---- the total order

    def _append(self, kind: str, who: set[Who], stream: Stream | None = None) -> Item:
        self.clock += self.r.randint(1, 3)
        place = (self.clock, min(who)[0], 65535)
        limits = {s: len(s.messages) for s in self.group.values()}
        item = Item(kind, place, frozenset(who), frozenset(self.group), frozenset(self.roster), stream, limits)
        self.log.append(item)
        self.note(f"{kind} {sorted(who)} at {place}, members {sorted(self.group)}, active {sorted(self.roster)}")
        return item

    def join(self, p: Process) -> None:
        """A process comes into the group, with a new life."""
        p.stream = Stream(p.who)
        self.group[p.who] = p.stream
        p.connected, p.limit = True, None
        p.reading, p.ends = {}, {}
        p.asked = p.donor = None
        item = self._append("join", {p.who}, p.stream)
        p.cursor = self.log.index(item)
        for other in self.here():
            if other is not p and other.who in self.group:
                other.reading[p.stream] = 0

    def remove(self, who: Who) -> None:
        """The view without a member: all survivors have the same of what it has sent."""
        stream = self.group.pop(who)
        self.roster.discard(who)
        readers = [p for p in self.here() if p.who in self.group and stream in p.reading]
        low = max((p.reading[stream] for p in readers), default=0)
        high = len(stream.messages) if stream.cut is None else stream.cut
        stream.cut = self.r.randint(low, max(low, high))
        for p in readers:
            p.ends[stream] = stream.cut
        self._append("leave", {who}, stream)

    def start_group(self) -> bool:
        """START: the furthest states of a quorum become the group's. False: not now."""
        present = [p for p in self.here() if p.who in self.group and not p.out]
        if self.roster or len(present) < self.quorum:
            return False
        states = {p.who: self.stored(p) for p in present}
        best = max(place for _, place in states.values())
        furthest = [p for p in present if states[p.who][1] == best]
        self.checks.on_start(present, [states[p.who][0] for p in furthest], best)
        self.roster = {p.who for p in furthest}
        self._append("start", set(self.roster))
        self.met["start"] += 1
        return True

    def stored(self, p: Process) -> tuple[History, Place]:
        """What a cold start counts: what is kept, too (rule U6)."""
        kept = p.kept
        if kept is None or kept.base != p.place or self.forgets_kept:
            return p.history, p.place
        self.met["kept counts"] += 1
        return _changed(p.history, kept.copying, kept.data), kept.place

    # ---- reading

    def readable(self, p: Process) -> list[Stream]:
        out = []
        for stream, at in p.reading.items():
            end = p.ends.get(stream)
            if at < (len(stream.messages) if end is None else min(end, len(stream.messages))):
                out.append(stream)
        return out

    def can_advance(self, p: Process) -> bool:
        """Whether a process can read the next item of the log."""
        if not p.alive or p.cursor >= (len(self.log) if p.limit is None else p.limit):
            return False
        item = self.log[p.cursor]
        if item.kind != "leave" or item.stream is None or item.stream not in p.reading or self.views_overtake:
            return True
        return p.reading[item.stream] >= (item.stream.cut or 0)

    def advance(self, p: Process) -> None:
        """A process reads the next item of the log."""
        item = self.log[p.cursor]
        p.cursor += 1
        p.roster = item.roster
        self.note(f"{p.who} reads {item.kind} {sorted(item.who)}")
        if item.kind == "join":
            if item.stream is p.stream:
                self._begin(p, item)
            elif p.machine.life != NOWHERE:
                p.machine.on_view(item.place, item.members, item.who)
        elif item.kind == "leave" and p.machine.life != NOWHERE:
            p.machine.on_view(item.place, item.members, (), item.who)
            if item.stream is not None:
                p.reading.pop(item.stream, None)
                p.ends.pop(item.stream, None)
        elif item.kind == "start":
            self._on_start(p, item)
        self.checks.on_member(p)
        self._take(p)

    def _begin(self, p: Process, item: Item) -> None:
        """Its own view: it reads what its station accepts from here on."""
        for who, stream in self.group.items():
            if who != p.who and who in item.members:
                at = self.r.randint(item.limits.get(stream, 0), len(stream.messages))
                p.reading[stream] = max(p.reading.get(stream, 0), at)
        for other in self.log[p.cursor :]:
            if other.kind == "leave" and other.stream is not None and other.stream.owner in item.members:
                # It leaves before it was heard; only its view comes.
                p.reading.pop(other.stream, None)
        while p.effects:
            # What it tells of its state from here on stays so: all that was under way is done first.
            if isinstance(p.effects[0], Keep | Commit | Finished):
                self.work(p)
            else:
                p.effects.popleft()
        p.out = False
        p.machine.on_view(item.place, item.members, {p.who})

    def _on_start(self, p: Process, item: Item) -> None:
        p.donor = None
        if p.who not in item.who:
            if p.asked is not None and p.machine.standing is Standing.LOCKED and not (self.keeps_locks or p.machine.covered):
                p.machine.abandon()
                p.asked = None
            p.asked = len(self.log) if p.asked is not None else None  # its transfer begins anew
            return
        p.history, p.place = self.stored(p)[0], item.place
        p.version = item.place
        p.kept = None
        p.sync()
        p.machine.activate(item.place)
        if p.asked is not None and p.machine.standing is Standing.LOCKED:
            p.machine.abandon()
        p.asked = None
        self.checks.on_state(p)

    def read(self, p: Process, stream: Stream) -> None:
        at = p.reading[stream]
        p.reading[stream] = at + 1
        p.machine.receive(stream.owner, stream.messages[at])
        self._take(p)

    # ---- effects

    def _take(self, p: Process) -> None:
        p.effects.extend(p.machine.take())

    def work(self, p: Process) -> None:
        """Carry out the next effect."""
        effect = p.effects.popleft()
        match effect:
            case Send(data):
                if p.stream is not None and p.connected and p.machine.life != NOWHERE:
                    p.stream.messages.append(data)
            case Keep():
                p.kept = effect
                if effect.durable:
                    p.sync()
                p.machine.kept(effect.asking)
                self.checks.on_kept(p, effect)
            case Commit(place, owner, copying, data) if place > p.place:
                p.history, p.place = _changed(p.history, copying, data), place
                p.version = p.version if copying else place
                p.kept = None
                self.checks.on_commit(p, owner)
            case Commit():
                pass  # of a former life; a START has counted what was kept of it
            case Locked(copying, place):
                self._on_locked(p, copying, place)
            case Finished(place, durable):
                if p.current is not None:
                    self.checks.on_answer(p, p.current.name, p.current.durable and len(durable) >= self.quorum)
                p.current = None
                self.met["finished"] += 1
            case Lost():
                p.current = None
                self.met["lost"] += 1
            case Wrong(text):
                raise Violation("wrong", f"{p.who}: {text}")
        self._take(p)

    def _on_locked(self, p: Process, copying: bool, place: Place) -> None:
        m = p.machine
        if m.standing is not Standing.LOCKED:
            return  # of a former life
        self.checks.on_locked(p)
        if copying and m.active:
            m.abandon()
        elif copying:
            p.kept = None
            p.asked = len(self.log)
            if self.copies_early and p.place != NOWHERE:
                self._enter(p)
        elif p.current is None or (p.current.name == "nothing"):
            p.current = None
            m.abandon()
        else:
            m.data(p.current.name.encode(), durable=p.current.durable)
            self.checks.on_sent(p)

    # ---- COPY

    def can_copy(self, p: Process) -> bool:
        """Whether the state that a process has asked for can come now, or cannot come at all."""
        if not p.here or p.asked is None or p.machine.standing is not Standing.LOCKED:
            return False
        if p.donor is None or p.donor.who not in self.roster or not p.donor.here:
            donors = [d for d in self.here() if d.who in self.roster]
            known = [d for d in donors if d.who in p.roster]
            if donors and not known:
                return False  # it has yet to read of the START that made them active
            p.donor = self.r.choice(known) if known else None
            p.asked = len(self.log)
        return p.donor is None or p.donor.cursor >= p.asked

    def copy(self, p: Process) -> None:
        """The state of the donor, when that has come to the place of the ASK (state transfer)."""
        donor = p.donor
        if donor is None:
            p.asked = None
            p.machine.abandon()
            self._take(p)
            return
        p.history, p.place, p.version = donor.history, donor.place, donor.version
        self.met["copy"] += 1
        self.checks.on_copy(p, donor)
        self._enter(p)

    def _enter(self, p: Process) -> None:
        p.asked = p.donor = None
        p.kept = None
        p.sync()
        self.roster.add(p.who)
        self._append("active", {p.who})
        p.machine.copied(p.place)
        p.machine.data(b"enter", durable=True)
        self.checks.on_sent(p)
        self._take(p)

    # ---- faults

    def start(self, station: int) -> None:
        """A process starts, with what its station's disk has."""
        self.clients[station] += 1
        before = self.processes.get(station)
        history, place, kept = before.disk if before is not None else ((), NOWHERE, None)
        p = Process(self, (station, self.clients[station]), history, place, kept)
        self.processes[station] = p
        self.join(p)

    def crash(self, p: Process, *, power: bool) -> None:
        """A process ends without a word. power: what its operating system had not written is lost."""
        self.note(f"{p.who} crashes")
        p.alive = False
        p.effects.clear()
        if not power:
            p.sync()
        self.checks.on_crash(p, power)
        if p.who in self.group:
            self.remove(p.who)

    def expel(self, p: Process) -> None:
        """A station is cut off, and removed. It does not know yet, and reads what had come."""
        self.note(f"{p.who} is cut off")
        p.connected = False
        p.limit = self.r.randint(p.cursor, len(self.log))
        for stream, at in p.reading.items():
            high = len(stream.messages) if stream not in p.ends else min(p.ends[stream], len(stream.messages))
            p.ends[stream] = self.r.randint(at, max(at, high))
        self.remove(p.who)

    def end(self, *, dark: bool = False) -> None:
        """The instance ends: what is under way comes to some and not to others. dark: everything is switched off."""
        self.met["end"] += 1
        self.roster.clear()
        self.group.clear()
        for p in self.live():
            p.connected = False
            p.limit = p.cursor
            for stream, at in p.reading.items():
                p.ends[stream] = self.r.randint(at, max(at, min(p.ends.get(stream, 1 << 60), len(stream.messages))))
            if dark:
                p.alive = False
                p.effects.clear()
                self.checks.on_crash(p, True)
        self.instance += 1
        self.clock = self.instance << 32

    def back(self, p: Process) -> None:
        """It has noticed, and is admitted again."""
        p.out = True
        self.join(p)

    def fault(self) -> None:
        kind = self.r.choice(self.plan.kinds)
        here = [p for p in self.here() if p.who in self.group]
        if kind in ("crash", "power", "expel") and len(here) > self.quorum:
            busy = [p for p in here if p.machine.standing in (Standing.LOCKED, Standing.SENT)]
            p = self.r.choice(busy if busy and self.r.random() < 0.7 else here)
            if kind == "expel":
                self.expel(p)
            else:
                self.crash(p, power=kind == "power")
            self.met[kind] += 1
        elif kind == "restart":
            self._restart_one()
        elif kind in ("end", "dark") and self.r.random() < 0.3:
            self.end(dark=kind == "dark")
        elif kind == "abandon" and here:
            self.r.choice(here).queue.append(Update("nothing", False))

    def _restart_one(self) -> None:
        for station in sorted(self.clients):
            p = self.processes.get(station)
            if p is None or not p.alive:
                self.start(station)
                return
            if not p.connected:
                self.back(p)
                return

    # ---- the run

    def step(self) -> bool:
        """One thing happens. False: nothing can."""
        r = self.r
        if not self.healed and r.random() < self.plan.faults:
            self.fault()
        if not self.healed and r.random() < self.plan.updates:
            self.want()
        if not self.roster and r.random() < 0.2:
            self.start_group()
        choices: list[tuple[Any, ...]] = []
        self.steps += 1
        for p in self.live():
            if p.effects and self._awake(p, "work"):
                choices.append((self.work, p))
            choices.extend((self.read, p, stream) for stream in self.readable(p) if self._awake(p, stream))
            if self.can_advance(p) and self._awake(p, "log"):
                choices.append((self.advance, p))
            if self.can_copy(p):
                choices.append((self.copy, p))
            if self._can_begin(p):
                choices.append((self.begin, p))
            if self.timers and not self.healed and r.random() < TIMER:
                choices.append((self.timer, p))
        if not choices:
            return (not self.roster and self.start_group()) or not self.healed
        action, *arguments = r.choice(choices)
        action(*arguments)
        self.checks.on_step()
        return True

    def _awake(self, p: Process, what: Stream | str) -> bool:
        """Whether a process goes on with something; now and then it is slow with one thing for a while."""
        if self.healed:
            return True
        until = self._slow.get((p, what), 0)
        if self.steps < until:
            return False
        if self.r.random() < self.plan.slow:
            self._slow[p, what] = self.steps + self.r.randint(20, 200)
            return False
        return True

    def timer(self, p: Process) -> None:
        """Time passes for a machine that takes it for a sign, as no honest one does (rule U7)."""
        p.machine.on_timer()  # type: ignore[attr-defined]
        self._take(p)

    def want(self) -> None:
        """A caller wants an update at some process."""
        here = [p for p in self.live() if not p.out and len(p.queue) < 3]
        if here:
            self.names += 1
            self.r.choice(here).queue.append(Update(f"u{self.names}", self.r.random() < self.plan.durable))

    def _can_begin(self, p: Process) -> bool:
        m = p.machine
        if m.standing is not Standing.IDLE or m.life == NOWHERE or not p.here or p.effects:
            return False
        if m.active:
            return bool(p.queue)
        return bool(p.roster) and p.who not in p.roster

    def begin(self, p: Process) -> None:
        """Begin an attempt: COPY, or the next update."""
        if p.machine.active:
            p.current = p.queue.popleft()
            p.machine.request()
        else:
            p.machine.request(copying=True)
        p.age = Age(p.machine._seen, p.who)
        self._take(p)

    def run(self) -> None:
        for station in sorted(self.clients):
            self.start(station)
        for _ in range(self.plan.steps):
            self.step()
        self.heal()

    def heal(self) -> None:
        """Everything works again: it comes to rest, with all copies equal."""
        self.healed = True
        while any(not (p.alive and p.connected) for p in self.processes.values()):
            self._restart_one()
        for _ in range(REST_STEPS):
            if not self.step():
                self.checks.on_rest()
                return
        raise Violation("rest", f"after {REST_STEPS} steps there is something to do still")


def _changed(history: History, copying: bool, data: bytes) -> History:
    return history if copying else (*history, data.decode())


def simulate(seed: int, plan: Plan | None = None, **parts: Any) -> Violation | None:
    """Run one seed. The violation has the plan and the end of the trace as notes."""
    return violation_of(World(plan or Plan.draw(seed), **parts), 25)


if __name__ == "__main__":
    sys.exit(run_seeds(simulate, sys.argv[1:]))
