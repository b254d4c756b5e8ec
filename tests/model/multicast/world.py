"""A random run: stations that stop, are cut off, pause and come back; programs that join and leave; slow links.

One seed determines everything. First the faults happen, then everything is repaired and must come to rest with all messages
delivered. Data are lost only when an incarnation ends: links repair what the wire loses (rule L1).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from zenjun.proto.multicast.main import MainOrder
from zenjun.proto.multicast.records import Deliver, Effect, Entry, Joined, Left, Synced, ViewEvent
from zenjun.proto.multicast.station import Station
from zenjun.proto.multicast.tables import Program

from ...sim.violation import Violation
from .checks import CHECKERS
from .link import LinkEnd
from .net import MS, US, Host, Life, Net

REST_NS: Final = 5_000 * MS
"""After the repair everything is finished within this time."""
FAULTS: Final = ("crash", "cut", "stall", "pause", "join", "leave")


@dataclass(frozen=True)
class Plan:
    """What a seed decides before the run; a test may fix any of it."""

    seed: int
    stations: int = 4
    groups: tuple[str, ...] = ("token", "token")
    """The order of each group, from number 1 on."""
    joins: float = 0.6
    """Share of all (program, group) pairs that are joined at the start."""
    messages: int = 20
    faults: int = 3
    kinds: tuple[str, ...] = FAULTS
    window: int = 4
    settle: int = 20 * MS
    span: int = 40 * MS
    """The faults and messages happen within this time."""
    slow: int = 2 * MS
    """The longest delay of a link, a place in the main order, or a station."""
    detect: int = 8 * MS
    """The longest time until a station that is gone is removed."""
    safe: float = 0.5
    replies: float = 0.0
    """How often a program sends when it has got a message."""

    @classmethod
    def draw(cls, seed: int) -> Plan:
        r = random.Random(seed)
        return cls(
            seed,
            stations=r.randint(2, 6),
            groups=tuple(r.choice(("token", "token", "abcast")) for _ in range(r.randint(1, 4))),
            joins=r.choice((0.3, 0.5, 0.8)),
            messages=r.choice((5, 15, 30)),
            faults=r.choice((0, 1, 2, 4, 7)),
            window=r.choice((1, 2, 4, 16)),
            settle=r.choice((0, 1, 20)) * MS,
            span=r.choice((3, 10, 40)) * MS,
            slow=r.choice((200 * US, 2 * MS, 6 * MS)),
            detect=r.choice((1, 4, 10)) * MS,
            safe=r.choice((0.0, 0.5, 1.0)),
            replies=r.choice((0.0, 0.0, 0.1, 0.3)),
        )


@dataclass
class Leaving:
    """What an incarnation has broadcast in the main order and has no place yet."""

    entries: list[Entry] = field(default_factory=list)


class World(Net):
    """A run of one plan. ``run`` raises Violation."""

    end_class: type[LinkEnd] = LinkEnd
    """The link ends on a wire that loses frames (lossy.py)."""

    def __init__(self, plan: Plan, station_class: type[Station] = Station) -> None:
        super().__init__(station_class, plan.window, plan.settle)
        self.plan = plan
        self.random = random.Random(plan.seed ^ 0x70CE)
        self.is_healed = False
        self._leaving: dict[Life, Leaving] = {}
        self._gone: set[Life] = set()
        """Lives that are removed, or about to be."""
        self._pairs = {(a, b): self.random.choice((50 * US, 200 * US, plan.slow)) for a in range(1, 7) for b in range(1, 7)}

    # ---- chance

    def _chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def _soon(self, longest: int) -> int:
        return self.now + self.random.randint(1, max(longest, 2))

    def link_delay(self, source: int, target: int) -> int:
        longest = self._pairs[source, target]
        return self.random.randint(20 * US, longest + 20 * US)

    def order_delay(self, station: int) -> int:
        return self.random.randint(10 * US, self.plan.slow)

    def pdu_records(self, waiting: int) -> int:
        return self.random.randint(1, waiting)

    def take_delay(self, host: Host) -> int:
        return self.random.choice((0, 0, self.random.randint(0, self.plan.slow)))

    # ---- the main order

    def broadcast(self, host: Host, entry: Entry) -> None:
        """Give the entry its place after a delay, in order. What an incarnation that is cut off has broadcast, only that one
        delivers."""
        leaving = self._leaving.setdefault(host.life, Leaving())
        leaving.entries.append(entry)
        self.at(self._soon(self.plan.slow), lambda: self._leave_one(host))

    def _leave_one(self, host: Host) -> None:
        entries = self._leaving[host.life].entries
        if not entries or (host.life in self._gone and not host.cut):
            return
        entry = entries.pop(0)
        if host.cut:
            if host.alive and not host.deaf:
                host.has_own = True
                self.note(f"only {host.station} has", entry)
                self._bring(host, entry)
        elif self.members.get(host.station) == host.life[1]:
            self.append(entry)

    def append(self, entry: Entry, at_once: bool = False) -> None:
        super().append(entry, at_once)
        if isinstance(entry, ViewEvent):
            for host in self.hosts.values():
                removes = (host.station, host.life[1]) not in entry.members
                if host.alive and host.life in self._gone and (removes or host.has_own):
                    host.deaf = True  # it gets neither what removes it, nor a view behind what nobody else has

    def _view(self, members: dict[int, int]) -> None:
        self.instance += 1
        self.members = dict(members)
        self.append(ViewEvent(self.instance, tuple(sorted(members.items()))))

    # ---- faults

    def _living(self) -> list[Host]:
        return [h for h in self.hosts.values() if h.alive and not h.cut and h.life not in self._gone]

    def _working(self) -> list[Host]:
        return [h for h in self._living() if h.machine is not None]

    def _may_go(self, host: Host) -> bool:
        """At least one participating station stays."""
        return any(h is not host for h in self._working())

    def fault(self) -> None:
        kind = self.random.choice(self.plan.kinds)
        living = self._living()
        if not living:
            return
        host = self.random.choice(living)
        if kind == "crash" and self._may_go(host):
            self._crash(host)
        elif kind == "cut" and self._may_go(host):
            self._cut(host)
        elif kind == "stall":
            pair = (host, self.random.choice(living))
            link = self.links.get((pair[0].life, pair[1].life))
            if link is not None:
                link.blocked_until = self._soon(self.plan.span)
                self.note(f"link {pair[0].station} -> {pair[1].station} stalls")
        elif kind == "pause":
            host.paused_until = self._soon(self.plan.span // 2)
            self.note(f"{host.station} pauses")
        elif kind == "join":
            self._join(host)
        elif kind == "leave":
            self._leave_group(host)

    def _crash(self, host: Host) -> None:
        self.note(f"{host.station} crashes")
        host.alive = False
        self._gone.add(host.life)
        self._lose(host)
        for entry in self._leaving.setdefault(host.life, Leaving()).entries:
            if self._chance(0.5):
                break
            self.append(entry)  # it was on its way
        self._leaving[host.life].entries.clear()
        self._remove(host)

    def _cut(self, host: Host) -> None:
        """Cut it off: its broadcasts reach no station, so it will be removed. It continues until it learns of that."""
        self.note(f"{host.station} is cut off")
        host.cut = True
        host.deaf = self._chance(0.5)
        self._gone.add(host.life)
        for pair, link in self.links.items():
            if host.life in pair and self._chance(0.5):
                link.blocked_until = self.now + self.plan.span
        self._remove(host)
        for _ in range(self.random.choice((0, 0, 1, 2))):  # joins and leaves that only it will see
            self._leave_group(host) if self._chance(0.5) else self._join(host)

        def ends() -> None:
            host.alive = False
            self._lose(host)

        self.at(self._soon(2 * self.plan.detect + self.plan.slow), ends)

    def _lose(self, host: Host) -> None:
        """Lose records on their way from an incarnation that ends: on each link those after a random one."""
        for (source, _), link in self.links.items():
            if source == host.life:
                link.queue.clear()
                kept = self.random.randint(0, len(link.flying))
                while len(link.flying) > kept:
                    link.flying.pop()

    def _remove(self, host: Host) -> None:
        def removed() -> None:
            if self.members.get(host.station) == host.life[1]:
                gone = [z for z, life in self.members.items() if (z, life) in self._gone]
                gone = [z for z in gone if z == host.station or self._chance(0.7)]
                self.checks.removed = True
                self._view({z: life for z, life in self.members.items() if z not in gone})
            if not self.is_healed:
                self.at(self._soon(self.plan.span), lambda: self._restart(host.station))

        self.at(self._soon(self.plan.detect), removed)

    def _restart(self, station: int) -> None:
        """A new incarnation of a station joins; somewhat later it knows the tables."""
        if station in self.members:
            return
        for old in [h for h in self.hosts.values() if h.station == station]:
            old.alive = False
            self._lose(old)
        life = (station, 1 + max(incarnation for z, incarnation in self.hosts if z == station))
        self.note(f"{station} comes back")
        self.hosts[life] = host = Host(life, len(self.order))
        host.known = {*self.members.items(), life}
        self._view({**self.members, station: life[1]})

        def synced() -> None:
            if self.members.get(station) == life[1] and host.alive and life not in self._gone:
                self.append(Synced((life,)))

        self.at(self._soon(2 * self.plan.slow), synced)

    # ---- programs

    def _join(self, host: Host) -> None:
        if host.machine is None:
            return
        group = self.random.randint(1, len(self.plan.groups))
        program = Program(*host.life, self.random.randint(1, 2))
        self.broadcast(host, Joined(program, group, self.plan.groups[group - 1]))

    def _leave_group(self, host: Host) -> None:
        own = [(p, g) for g, programs in self.reference.main.programs.items() for p in programs if p[:2] == host.life]
        if own and host.machine is not None:
            program, group = self.random.choice(sorted(own))
            self.broadcast(host, Left(program, group))

    def say(self) -> None:
        """Some program sends to some groups; a station that is cut off sends, too."""
        able = [h for h in self.hosts.values() if h.alive and h.machine is not None]
        if not able:
            return
        self._say_from(self.random.choice(able))

    def _say_from(self, host: Host) -> None:
        if host.machine is None or not host.alive or len(self.checks.sent) > 4 * self.plan.messages:
            return
        order = self.random.choice(("abcast", "token"))
        groups = sorted(host.machine.era.tables[order].groups)
        if groups:
            changing, client = self._chance(0.5), self.random.randint(1, 2)
            chosen: list[int] = []
            together = self._chance(0.5)
            for left in reversed(range(self.random.choice((1, 2, 4)))):
                if changing or not chosen:
                    chosen = self.random.sample(groups, self.random.randint(1, min(3, len(groups))))
                self.send_from(host, chosen, self._chance(self.plan.safe), client, together=together and left > 0)

    def apply(self, host: Host, effects: list[Effect]) -> None:
        super().apply(host, effects)
        if not self.is_healed and any(isinstance(e, Deliver) for e in effects) and self._chance(self.plan.replies):
            self.at(self.now, lambda: self._say_from(host))

    # ---- the run

    def run(self) -> None:
        plan, r = self.plan, self.random
        members = dict.fromkeys(range(1, plan.stations + 1), 1)
        joins = [
            Joined(Program(z, 1, client), g + 1, order)
            for z in members
            for g, order in enumerate(plan.groups)
            for client in (1, 2)
            if r.random() < plan.joins * (1 if client == 1 else 0.2)
        ]
        r.shuffle(joins)
        self.start(members, joins)
        self.run_until(20 * MS)
        begin = self.now
        for _ in range(plan.messages):
            self.at(begin + r.randint(0, plan.span), self.say)
        for _ in range(plan.faults):
            self.at(begin + r.randint(0, plan.span), self.fault)
        self.run_until(begin + plan.span)
        self._heal()
        self._settle_down()
        self.say_to_all()
        self._settle_down()
        self.checks.at_end()

    def say_to_all(self) -> None:
        """Each station sends to all groups of each order."""
        for host in sorted(self._working(), key=lambda h: h.life):
            for order in ("abcast", "token"):
                groups = sorted(self.reference.era.tables[order].groups)
                if groups:
                    self.send_from(host, groups, safe=False, client=1)

    def _heal(self) -> None:
        """Everything that is gone is removed and comes back, and no link stalls any more."""
        self.note("everything is repaired")
        self.is_healed = True
        for link in self.links.values():
            link.blocked_until = min(link.blocked_until, self.now)
        self.run_until(self.now + 3 * self.plan.detect + 2 * self.plan.slow)
        for station in range(1, self.plan.stations + 1):
            self._restart(station)

    def _settle_down(self) -> None:
        end = self.now + REST_NS
        while self._events and self.now <= end:
            self.run_until(min(self._events[0][0], end + 1))
        if self._events:
            self.checks.fail("rest", "no rest")


Runs = Callable[[Plan, type[Station]], World]


def world(plan: Plan, defect: type[object] | None = None, kind: Runs = World) -> World:
    """A world, in which a class of broken.py takes the place of what it breaks."""
    if defect is not None and issubclass(defect, World):
        kind = defect
    made = kind(plan, defect if defect is not None and issubclass(defect, Station) else Station)
    if defect is not None and issubclass(defect, MainOrder):
        made.main_class = defect
    if defect is not None and issubclass(defect, LinkEnd):
        made.end_class = defect
    return made


def simulate(
    seed: int,
    defect: type[object] | None = None,
    plan: Plan | None = None,
    only: frozenset[str] = CHECKERS,
    kind: Runs = World,
) -> Violation | None:
    """Run one seed. Returns what is broken, with the last events as its notes."""
    run = world(plan or Plan.draw(seed), defect, kind)
    run.checks.only = only
    try:
        run.run()
    except Violation as violation:
        violation.add_note(f"seed {seed}: {run.plan}\n{run.report()}")
        return violation
    return None
