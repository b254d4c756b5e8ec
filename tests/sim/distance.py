"""Programs that use a database at a distance, over an abstract group and an abstract order.

Stations in zones, of which some have the database. The group ``zenjun.db`` gives each member views and, of each sender, messages
in their order; of a process that crashes each receiver gets some of the last ones. The database is a list of transactions in one
order, which each site reads at its own pace. Programs run statements and commit, lose the stations where these run, and must
learn what became of each transaction. A station that is cut off comes back as another service, and goes on with what it was to
commit. Then everything works again, and it must come to rest.

``python -m tests.sim.distance FIRST COUNT`` runs many seeds and prints those that fail.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Final

from zenjun.proto.service.base import Effect, Emit, Source
from zenjun.proto.service.database.distance import Asked, Distance, Dropped, Lost, Told
from zenjun.proto.service.database.errand import Begin, Call, Errand, Outcome, Session, SessionLost, TransactionLost
from zenjun.proto.service.database.fate import fate, may_send
from zenjun.proto.service.database.messages import Txid
from zenjun.proto.service.database.zones import Zones

from .histories import run_seeds, violation_of
from .violation import Violation

CHECKERS: Final = frozenset({"once", "acknowledged", "not-committed", "nearest", "older", "served", "rest"})
UUID: Final = "db"
STEPS: Final = 400
REST_STEPS: Final = 4000


@dataclass(frozen=True)
class Plan:
    """What a seed makes."""

    seed: int
    stations: int
    zones: dict[str, tuple[int, ...]]
    copies: int
    faults: float
    """Chance of a crash at each step."""
    ordering: float
    """Chance at each step that something gets its place."""
    odd: int
    """A station whose zones are configured otherwise; 0: none."""

    @classmethod
    def draw(cls, seed: int) -> Plan:
        r = random.Random(seed)
        stations = r.randint(3, 6)
        numbers = [*range(1, stations + 1)]
        r.shuffle(numbers)
        cut = r.randint(1, stations - 1)
        zones = {"a": tuple(numbers[:cut]), "b": tuple(numbers[cut : r.randint(cut + 1, stations)])}
        odd = r.choice([0, 0, 0, r.randint(1, stations)])
        return cls(seed, stations, zones, r.choice([1, 1, 2]), r.choice([0.0, 0.01, 0.05]), r.choice([0.5, 0.15, 0.04]), odd)


@dataclass
class Entry:
    """A transaction in the order, or the members of the database's group from there on."""

    members: frozenset[Source]
    source: Source = (0, 0)
    txid: Txid | None = None
    ops: tuple[Any, ...] = ()
    barrier: int = 0


@dataclass
class Worker:
    """A session that is served."""

    ops: list[Any] = field(default_factory=list)
    snapshot: int = 0
    txid: Txid | None = None
    committing: Asked | None = None
    entry: Entry | None = None
    """What it commits."""


class Site:
    """The process of a station."""

    def __init__(self, world: World, station: int, client: int) -> None:
        self.world, self.station = world, station
        self.me: Source = (station, client)
        text_of = world.odd_zones if station == world.plan.odd else world.zones
        self.machine: Distance = world.distance_class(self.me, text_of, part_bytes=world.r.choice([7, 40, 1000]))
        self.inbox: deque[tuple[Source, Any]] = deque()
        """(sender, data); (itself, (members, joined)) of a view."""
        self.workers: dict[tuple[Source, int], Worker] = {}
        self.results: dict[int, Any] = {}
        """Of calls of programs here, by session."""
        self.pace = world.r.choice([1.0, 0.3, 0.05])
        """How likely it reads when it may."""
        self.cursor = len(world.order)
        """What it has read of the order; of a site, with the state up to there."""
        self.members: frozenset[Source] = frozenset()
        self.questions: list[tuple[Asked, dict[str, Any], int]] = []
        """What became of transactions, with the barriers that are waited for."""
        self.opens: list[tuple[Asked, int]] = []
        self.left: list[Entry] = world.left.pop(station, [])
        """Commits of its former service, which end with their time-outs."""

    @property
    def version(self) -> int:
        return sum(entry.txid is not None for entry in self.world.order[: self.cursor])


class Program:
    """One connection of a program at a station."""

    def __init__(self, world: World, station: int, number: int) -> None:
        self.world, self.station, self.number = world, station, number
        self.r = random.Random(world.plan.seed * 1000 + number)
        self.txids = 0
        self.errand: Errand = world.errand_class(self.txid, lambda: {"do": "open"})
        self.steps: Generator[Any, Any, Any] | None = None
        self.waits: tuple[Site, int] | None = None
        """For the result of this session's call."""
        self.wanted: Any = None
        self.ops: list[Any] = []
        self.left = 0
        """Statements until the commit."""
        self.home: Site | None = None
        """The process of the session's number."""
        self.last: Any = None
        """The transaction that is open, or was last."""
        self.done = 0
        self.seen = 0

    def txid(self) -> Txid:
        self.txids += 1
        return Txid(self.station, 1, self.number, self.txids)

    def turn(self) -> None:
        """Go on, if there is anything to go on with."""
        site = self.world.live.get(self.station)
        if self.steps is None:
            if self.world.is_resting and self.errand.txid is None:
                return
            self.begin()
        if self.waits is not None:
            asked, session = self.waits
            if asked is not site:
                result: Any = SessionLost("the process has gone")
            elif session in asked.results:
                result = asked.results.pop(session)
            else:
                return
            self.waits = None
            if isinstance(self.wanted, Outcome):
                asked.world.carry_out(asked, asked.machine.end(session))
                if isinstance(result, SessionLost) or result.get("version") is None:
                    return  # it asks again
                result = result["version"]
            self.resume(result)
        elif self.wanted is not None and site is not None:
            self.carry_out(site)

    def begin(self) -> None:
        if self.errand.txid is None:
            self.ops, self.left = [], self.r.randint(1, 3)
        if self.left:
            self.left -= 1
            op = (self.number, self.txids, self.r.randint(1, 1 << 30), self.r.randint(1, 12))
            self.ops.append(op)
            self.steps = self.errand.run({"do": "run", "op": list(op)})
        else:
            self.steps = self.errand.commit()
        self.resume(None)

    def resume(self, result: Any) -> None:
        assert self.steps is not None
        try:
            thrown = isinstance(result, Exception)
            self.wanted = self.steps.throw(result) if thrown else self.steps.send(result)
            return
        except StopIteration as end:
            reply = end.value
            if reply.get("conflict"):
                self.errand.end()
                self.world.met["conflict"] += 1
            elif "version" in reply and self.errand.txid is not None:
                if reply["version"] < self.seen:
                    raise Violation("older", f"program {self.number} saw {self.seen}, and then {reply['version']}") from None
                self.seen = reply["version"]
            elif self.errand.txid is None:
                self.world.acknowledged[self.last] = (reply["seen"][1], tuple(self.ops))
                self.seen = max(self.seen, reply["seen"][1])
                self.done += 1
        except TransactionLost:
            self.world.met["lost"] += 1
            self.world.denied.add(self.last)
        self.steps = self.wanted = None

    def carry_out(self, site: Site) -> None:
        wanted, machine = self.wanted, site.machine
        if self.errand.txid is not None:
            self.last = self.errand.txid
        if isinstance(wanted, Begin):
            to = None if machine.refused() else machine.nearest(UUID, self.world.sites)
            self.world.check_nearest(site, to)
            if to is not None:
                self.home = site
                self.resume(Session(machine.begin(to), to))
        elif isinstance(wanted, Call):
            if self.home is not site or wanted.session.number not in machine.used:
                self.resume(SessionLost("over"))
                return
            self.waits = (site, wanted.session.number)
            self.world.carry_out(site, machine.call(wanted.session.number, json.dumps(wanted.body).encode()))
        else:
            to = wanted.at if wanted.at in machine.members else machine.nearest(UUID, self.world.sites)
            self.world.met["outcome"] += 1
            if to is not None:
                session = machine.begin(to)
                body = {"do": "outcome", "txid": wanted.txid.encode().hex(), "at": wanted.at}
                self.waits = (site, session)
                self.world.carry_out(site, machine.call(session, json.dumps(body).encode()))


class World:
    """A run. ``run`` raises Violation."""

    def __init__(self, plan: Plan, **parts: Any) -> None:
        """parts: classes and functions to be used in place of the honest ones."""
        self.plan = plan
        self.r = random.Random(plan.seed ^ 0xD157)
        self.distance_class: type[Distance] = parts.get("distance", Distance)
        self.errand_class: type[Errand] = parts.get("errand", Errand)
        self.may_send: Callable[[Any, Source], bool] = parts.get("may_send", may_send)
        self.zones = Zones(plan.stations, plan.zones)
        self.odd_zones = Zones(plan.stations, {})
        self.sites = self.zones.sites(plan.copies)
        self.order: list[Entry] = []
        self.pending: list[Entry] = []
        """On the way into the order."""
        self.live: dict[int, Site] = {}
        self.clients: Counter[int] = Counter()
        self.left: dict[int, list[Entry]] = {}
        """What stations that were cut off still have to commit."""
        self.barriers = 0
        self.acknowledged: dict[Txid, tuple[int, tuple[Any, ...]]] = {}
        self.denied: set[Txid] = set()
        self.is_resting = False
        self.met: Counter[str] = Counter()
        self.trace: list[str] = []
        self.programs = [Program(self, station, station * 10 + k) for station in range(1, plan.stations + 1) for k in range(2)]

    # ---- processes and groups

    def members(self) -> frozenset[Source]:
        return frozenset(site.me for site in self.live.values())

    def view(self, joined: set[Source]) -> None:
        for site in self.live.values():
            site.inbox.append((site.me, (self.members(), joined)))
        here = frozenset(site.me for site in self.live.values() if site.station in self.sites)
        self.pending.append(Entry(here))

    def start(self, station: int) -> None:
        self.clients[station] += 1
        site = self.live[station] = Site(self, station, self.clients[station])
        self.trace.append(f"start {site.me}")
        self.view({site.me})

    def crash(self, station: int) -> None:
        """The process dies, or the station is cut off, which is the same for the others; but then its commits may go on."""
        gone = self.live.pop(station)
        self.trace.append(f"crash {gone.me}")
        self.met["crash"] += 1
        commits = [worker.entry for worker in gone.workers.values() if worker.committing and worker.entry is not None]
        self.left[station] = gone.left + commits
        self.met["cut"] += len(commits)
        for site in self.live.values():
            mine = [i for i, (source, data) in enumerate(site.inbox) if source == gone.me and isinstance(data, bytes)]
            for i in reversed(mine[self.r.randint(0, len(mine)) :]):  # each receiver gets the first ones
                del site.inbox[i]
        own = [i for i, entry in enumerate(self.pending) if entry.source == gone.me]
        for i in reversed(own[self.r.randint(0, len(own)) :]):
            del self.pending[i]
        self.view(set())

    def deliver(self, site: Site) -> None:
        if not site.inbox:
            return
        source, data = site.inbox.popleft()
        if isinstance(data, bytes):
            self.carry_out(site, site.machine.on_message(source, data))
        else:
            self.carry_out(site, site.machine.on_view(*data))

    def carry_out(self, site: Site, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Emit):
                for other in self.live.values():
                    other.inbox.append((site.me, effect.data))
            elif isinstance(effect, Told):
                site.results[effect.session] = json.loads(effect.data)
            elif isinstance(effect, Lost):
                site.results[effect.session] = SessionLost(effect.reason)
            elif isinstance(effect, Asked):
                self.serve(site, effect)
            elif isinstance(effect, Dropped):
                site.workers.pop((effect.source, effect.session), None)

    def check_nearest(self, site: Site, to: Source | None) -> None:
        """By what the processes have told this one: the first of the own zone that is active, else one of another zone."""
        text = site.machine.text
        active = {k[0] for k, said in site.machine.said.items() if said.zones == text and UUID in said.databases}
        own = [k for k in site.machine.zones.zones[site.machine.zones.of(site.station)] if k in active and k in self.sites]
        counts = Counter(said.zones for said in site.machine.said.values())
        if text != max(counts, key=counts.__getitem__, default=text) and counts[text] < max(counts.values()) and to is not None:
            raise Violation("served", f"station {site.station} uses others, whose zones are not its own")
        if own and to is not None and to[0] != own[0]:
            raise Violation("nearest", f"station {site.station} uses {to[0]}, and {own[0]} is the first of its zone")

    # ---- the database

    def serve(self, site: Site, asked: Asked) -> None:
        call = json.loads(asked.data)
        key = (asked.source, asked.session)
        if self.live.get(asked.source[0]) is not None and site.machine.text != self.live[asked.source[0]].machine.text:
            raise Violation("served", f"station {site.station} serves {asked.source[0]}, whose zones are others")
        if call["do"] == "outcome":
            self.barriers += 1
            site.questions.append((asked, call, self.barriers))
            self.pending.append(Entry(frozenset(), site.me, barrier=self.barriers))
            return
        worker = site.workers.setdefault(key, Worker())
        if call["do"] == "open":
            site.opens.append((asked, int(call["seen"][1])))
        elif call["do"] == "run":
            if not worker.ops:
                worker.snapshot = site.version
            worker.ops.append(tuple(call["op"]))
            self.reply(site, asked, {"version": worker.snapshot, "seen": [0, worker.snapshot]})
        else:
            worker.committing, worker.txid = asked, Txid.decode(bytes.fromhex(call["txid"]))
            ops = tuple(worker.ops)
            worker.entry = Entry(frozenset(), site.me, worker.txid, (worker.snapshot, *ops))
            self.pending.append(replace(worker.entry))

    def reply(self, site: Site, asked: Asked, body: dict[str, Any]) -> None:
        self.carry_out(site, site.machine.answer(asked.source, asked.session, asked.number, json.dumps(body).encode()))

    def order_one(self) -> None:
        """The next entry gets its place; a sender's in their order. A transaction in conflict has none."""
        if not self.pending:
            return
        here = next((e.members for e in reversed(self.order) if e.members), frozenset())
        senders = list(dict.fromkeys(entry.source for entry in self.pending))
        chosen = self.r.choice(senders)
        if chosen != (0, 0) and chosen not in here:
            chosen = (0, 0)  # its view comes first
        i = next((i for i, entry in enumerate(self.pending) if entry.source == chosen), 0)
        if chosen == (0, 0):  # a view comes behind all of those who have gone
            gone = [k for k, entry in enumerate(self.pending[:i]) if entry.source not in self.pending[i].members]
            i = gone[0] if gone else i
        entry = self.pending.pop(i)
        if entry.txid is not None:
            if any(entry.txid == e.txid for e in self.order):
                return  # rule K4
            snapshot, *ops = entry.ops
            keys = {op[3] for op in ops}
            later = [e for e in self.order if e.txid is not None][snapshot:]
            if any(op[3] in keys for e in later for op in e.ops):
                for site in self.live.values():
                    self.verdict(site, entry, {"conflict": True})
                return
            entry.ops = tuple(ops)
        self.order.append(entry)

    def verdict(self, site: Site, entry: Entry, body: dict[str, Any]) -> None:
        if site.me != entry.source:
            return
        for worker in site.workers.values():
            if worker.txid == entry.txid and worker.committing is not None:
                asked, worker.committing = worker.committing, None
                worker.ops = []
                self.reply(site, asked, body)
                return

    def read(self, site: Site) -> None:
        """A site reads its next entry."""
        if site.cursor < len(self.order) and site.station in self.sites:
            entry = self.order[site.cursor]
            site.cursor += 1
            if entry.txid is not None:
                self.verdict(site, entry, {"seen": [0, site.version]})
            elif entry.barrier:
                self.answer(site, entry.barrier)
            else:
                site.members = entry.members
                if site.me in site.members:  # it is active from here on
                    self.carry_out(site, site.machine.announce({UUID: True}))
                    left, site.left = site.left, []
                    for entry in left:
                        if self.may_send(SimpleNamespace(me=site.me), entry.source):
                            self.pending.append(replace(entry, source=site.me))
        for each in list(site.opens):
            if site.version >= each[1]:
                site.opens.remove(each)
                self.reply(site, each[0], {})

    def answer(self, site: Site, barrier: int) -> None:
        for question in [q for q in site.questions if q[2] == barrier]:
            site.questions.remove(question)
            asked, call, _ = question
            txid, at = Txid.decode(bytes.fromhex(call["txid"])), tuple(call["at"])
            found = {e.txid: i for i, e in enumerate((e for e in self.order[: site.cursor] if e.txid), 1)}
            shared = SimpleNamespace(waiting=[], locks=[])
            machine: Any = SimpleNamespace(
                shared=shared, members=site.members, me=site.me, long=set(), rows=SimpleNamespace(version_of=found.get)
            )
            self.reply(site, asked, {"version": fate(machine, txid, at)})

    # ---- the run

    def step(self) -> None:
        r = self.r
        stations = sorted(self.live)
        for _ in range(3):
            if stations:
                self.deliver(self.live[r.choice(stations)])
                site = self.live[r.choice(stations)]
                if self.is_resting or r.random() < site.pace:
                    self.read(site)
        if self.is_resting or r.random() < self.plan.ordering:
            self.order_one()
        r.choice(self.programs).turn()

    def run(self) -> None:
        for station in range(1, self.plan.stations + 1):
            self.start(station)
        for _ in range(STEPS):
            self.step()
            if self.live and self.r.random() < self.plan.faults:
                busy = [k for k, site in sorted(self.live.items()) if any(w.committing for w in site.workers.values())]
                self.crash(self.r.choice(busy if busy and self.r.random() < 0.7 else sorted(self.live)))
            if self.r.random() < 0.05 and (down := [k for k in range(1, self.plan.stations + 1) if k not in self.live]):
                self.start(self.r.choice(down))
        self.rest()
        self.judge()

    def rest(self) -> None:
        """Everything works again: every program comes to the end of its transaction."""
        self.is_resting = True
        for station in range(1, self.plan.stations + 1):
            if station not in self.live:
                self.start(station)
        for _ in range(REST_STEPS):
            self.step()
            waiting = any(
                site.inbox or site.cursor < len(self.order) for site in self.live.values() if site.station in self.sites
            )
            busy = [p for p in self.programs if p.steps is not None or p.errand.txid is not None]
            if not waiting and not self.pending and not [p for p in busy if not self.is_out(p)]:
                break
        else:
            raise Violation("rest", f"programs {[p.number for p in busy]} wait for ever")
        for site in self.live.values():
            for source, session in site.machine.served:
                other = self.live.get(source[0])
                if other is None or other.me != source or session not in other.machine.used:
                    raise Violation("rest", f"{site.me} still serves session {session} of {source}")
            if set(site.workers) - set(site.machine.served):
                raise Violation("rest", f"{site.me} has transactions of sessions that are over")

    def is_out(self, program: Program) -> bool:
        """Its station is refused, or nobody's zones are its own."""
        machine = self.live[program.station].machine
        return bool(machine.refused()) or machine.nearest(UUID, self.sites) is None

    def judge(self) -> None:
        committed = {entry.txid: entry.ops for entry in self.order if entry.txid is not None}
        self.met["committed"] += len(committed)
        if twice := [t for t, n in Counter(e.txid for e in self.order if e.txid).items() if n > 1]:
            raise Violation("once", f"{twice} are committed twice")
        for txid, (_, ops) in self.acknowledged.items():
            if txid not in committed:
                raise Violation("acknowledged", f"{txid} was acknowledged, and is not there")
            if committed[txid] != ops:
                raise Violation("once", f"{txid}: {committed[txid]} was committed, and its program had run {ops}")
        if found := self.denied & set(committed):
            raise Violation("not-committed", f"{found} were said not to be committed, and are")


def simulate(seed: int, plan: Plan | None = None, **parts: Any) -> Violation | None:
    """One seed."""
    return violation_of(World(plan or Plan.draw(seed), **parts), 40)


if __name__ == "__main__":
    sys.exit(run_seeds(simulate, sys.argv[1:]))
