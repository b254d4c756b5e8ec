"""The directory over an abstract total order: thousands of short histories a minute.

One sequence of messages and views in place of the core. At each station a process takes it at its own pace, with a store that a
power cut sets back to what was saved last. Processes crash, are expelled and come again, are paused; clocks are wrong; programs
set, register, renew, watch and look up; careless stations send what is no message. A reference (``directory_oracle.py``) goes
along at the place where the order is made, and every copy is compared with it at each place. Then everything is repaired and
must come to rest.

``python -m tests.sim.directory FIRST COUNT`` runs many seeds and prints those that fail.
"""

from __future__ import annotations

import random
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from zenjun.proto.service.directory import operations as ops
from zenjun.proto.service.directory.copying import (
    KeyedRow,
    begins_chunk,
    decode_removed,
    decode_rows,
    delta_chunks,
    delta_possible,
    digest,
    encode_rows,
)
from zenjun.proto.service.directory.entries import Place, Who, lease_of
from zenjun.proto.service.directory.lookup import follow
from zenjun.proto.service.directory.messages import Due, End, Holding, Next, Update, encode
from zenjun.proto.service.directory.selection import effective
from zenjun.proto.service.directory.state import Result, State
from zenjun.proto.service.directory.store import MemoryStore
from zenjun.proto.service.directory.tally import Tally
from zenjun.proto.service.directory.ttl import Ttls
from zenjun.proto.service.directory.watch import Watch

from .directory_ask import Asking
from .directory_checks import Checks, Known
from .directory_load import Load
from .directory_oracle import Oracle
from .directory_plan import Item, Lease, Plan
from .histories import run_seeds, violation_of
from .violation import Violation

S: Final = 1_000_000_000
TTL_NS: Final = 3 * S
START: Final = 1_000_000
"""Wall clock at the beginning, seconds since 1970."""

NEVER_S: Final = 1 << 62


class Process:
    """A directory process."""

    def __init__(self, world: World, who: Who, state: State, cursor: int) -> None:
        self.world = world
        self.who = who
        self.state = state
        self.cursor = cursor
        """Number of the next item."""
        self.active = False
        self.alive = True
        self.connected = True
        self.paused_until = 0
        self.ttls = world.ttls_class()
        self.leases: dict[int, Lease] = {}
        self.numbers = 0
        self.watches: list[Known] = []
        self.said: dict[str, int] = {}
        """When a message that may be lost was said last."""
        self.saved: tuple[MemoryStore, int] = (MemoryStore(), 0)
        self.epoch = 0
        self.quiet: tuple[State | None, int, int, bool] = (None, 0, 0, False)
        """In this state at this item it has nothing to say before its clock shows so much; it is the lowest active one."""

    @property
    def usable(self) -> bool:
        return self.alive and self.connected and self.active and self.world.now >= self.paused_until

    def wall(self) -> int:
        return self.world.wall(self.who[0])

    def save(self) -> None:
        self.state.save()
        store = self.state.store
        assert isinstance(store, MemoryStore)
        self.saved = (store.copy(), self.cursor)

    def entry_version(self, name: str) -> Place:
        entry = self.state.entry(name)
        return entry.version if entry else (0, 0, 0)


class World:
    """A run. ``run`` raises Violation."""

    def __init__(self, plan: Plan, **parts: Any) -> None:
        """parts: classes to be used in place of the honest ones."""
        self.plan = plan
        self.r = random.Random(plan.seed ^ 0xD1EC7)
        self.state_class: type[State] = parts.get("state", State)
        self.ttls_class: type[Ttls] = parts.get("ttls", Ttls)
        self.watch_class: type[Watch] = parts.get("watch", Watch)
        self.now = 0
        self.log: list[Item] = []
        self.oracle = Oracle()
        self.pasts: dict[int, Oracle] = {}
        """The reference behind each item."""
        self.members: frozenset[Who] = frozenset()
        self.processes: dict[int, Process] = {}
        self.clock = 1 << 32
        self.pending: list[tuple[Process, int, bytes, Any]] = []
        self.sent: list[Update] = []
        self.leases: list[Lease] = []
        self.clients = dict.fromkeys(range(1, plan.stations + 1), 0)
        self.offsets = {k: self.r.choice([0, 0, 1]) for k in self.clients}
        self.healed = False
        if plan.wrong_clock and plan.stations >= 3:
            self.offsets[plan.wrong_station or self.r.randint(1, plan.stations)] = plan.wrong_clock
        self.load = Load(self.r, self._any_version, plan.names)
        self.checks = Checks(self)
        self.asking = Asking(self, parts.get("desk"), parts.get("terminal"))
        self.reads: dict[int, Place] = {}
        """Place of the last answer, by reading client."""
        self.trace: list[str] = []
        self.met: Counter[str] = Counter()
        """Situations."""
        self._lost: list[tuple[int, int]] = []
        """Items that a START has taken out of the directory's past: from, to."""

    # ---- facts

    def wall(self, station: int) -> int:
        return START + self.now // S + self.offsets[station]

    def _any_version(self, name: str) -> Place:
        found = [p.entry_version(name) for p in self.processes.values() if p.alive]
        return self.r.choice(found) if found else (0, 0, 0)

    def live(self) -> list[Process]:
        return [p for _, p in sorted(self.processes.items()) if p.alive]

    def usable(self) -> list[Process]:
        return [p for p in self.live() if p.usable]

    def _pick(self, among: list[Process]) -> Process | None:
        return self.r.choice(among) if among else None

    def index_of(self, place: Place) -> int:
        """The last item up to a place."""
        return bisect_right(self.log, place, key=lambda item: item.place) - 1

    def place_known(self, place: Place) -> bool:
        return self.log[self.index_of(place)].place == place

    # ---- the order

    def send(self, p: Process, data: bytes, intent: Any) -> None:
        self.pending.append((p, p.epoch, data, intent))

    def order_one(self) -> None:
        """Give one waiting message its place; each sender's in their order."""
        if not self.pending:
            return
        senders = list(dict.fromkeys(id(p) for p, *_ in self.pending))
        chosen = self.r.choice(senders)
        i = next(i for i, (p, *_) in enumerate(self.pending) if id(p) == chosen)
        p, epoch, data, intent = self.pending.pop(i)
        if p.epoch != epoch or p.who not in self.members:
            return
        self._append("message", p.who, data, intent)

    def _append(
        self, kind: str, sender: Who, data: bytes = b"", intent: Any = None, joined: frozenset[Who] = frozenset()
    ) -> None:
        self.clock += self.r.randint(1, 3)
        place = (self.clock, sender[0], 0 if kind == "message" else 65535)
        item = Item(place, kind, sender, data, self.members, joined)
        self.log.append(item)
        code = self._reference(item, intent)
        self.checks.on_item(item, intent, code)
        self.pasts[len(self.log) - 1] = self.oracle.copy()
        self.trace.append(f"{self.now / S:.1f} {place} {kind} {sender} {intent!r} {code or ''}")

    def _reference(self, item: Item, intent: Any) -> str | None:
        o, place = self.oracle, item.place
        if item.kind == "view":
            o.view(place, set(item.members), set(item.joined))
        elif item.kind == "start":
            o.start(place, set(item.members))
        elif isinstance(intent, Update):
            return o.update(place, item.sender, (intent.id.client, intent.id.counter), list(intent.roles), intent.operations)
        elif isinstance(intent, End):
            o.end(place, {(*item.sender, n) for n in intent.numbers})
            o.fire(place)
        elif isinstance(intent, Due):
            o.due(place, item.sender, intent.time)
        elif isinstance(intent, Holding):
            o.holding(place, item.sender, intent.active)
        elif isinstance(intent, Next):
            o.next(place, item.sender, intent.name, intent.version, intent.due, intent.slot)
        return None

    def view(self, members: set[Who], joined: set[Who] | None = None) -> None:
        self.members = frozenset(members)
        lowest = min(members, default=(1, 0))
        self._append("view", lowest, joined=frozenset(joined or ()))

    # ---- processes

    def advance(self, p: Process, count: int) -> None:
        """A process reads its next items."""
        while count and p.alive and p.active and p.cursor < len(self.log):
            item = self.log[p.cursor]
            p.cursor += 1
            count -= 1
            if item.kind == "view":
                if not p.connected:
                    p.cursor -= 1
                    return
                result = p.state.on_view(item.place, item.members, item.joined)
            elif item.kind == "start":
                result = p.state.on_start(item.place, item.members)
            else:
                result = p.state.apply(item.place, item.sender, item.data)
            self.applied(p, item, p.cursor - 1, result)

    def applied(self, p: Process, item: Item, index: int, result: Result) -> None:
        self.checks.on_applied(p, item, index, result)
        for known in p.watches:
            known.watch.on_changes(item.place, result.changes)
        for change in result.changes:
            new = change.new
            if new is not None and new.exclusive and new.targets:
                lease = lease_of(new.targets[0])
                if lease is not None and lease.who == p.who and lease.number in p.leases:
                    self.told(p.leases[lease.number], new.version)

    def told(self, lease: Lease, version: Place) -> None:
        """A program hears that it has its exclusive name, under this number."""
        if lease.alive and lease.held is None:
            lease.held = version
            self.checks.on_held(lease, version)

    def start(self, station: int) -> None:
        """A process starts: it joins, and gets the state of an active one."""
        self.clients[station] += 1
        who = (station, self.clients[station])
        before = self.processes.get(station)
        p = Process(self, who, self.make_state(MemoryStore()), 0)
        if before is not None:
            p.saved = before.saved
        self.processes[station] = p
        self.view(set(self.members) | {who}, {who})
        self.synchronise(p)

    def make_state(self, store: MemoryStore) -> State:
        return self.state_class(store)

    def synchronise(self, p: Process) -> None:
        """State transfer from an active process, a delta if it can give one; or a START, if none is active."""
        donors = [d for d in self.live() if d is not p and d.active and d.connected]
        if not donors:
            self.begin()
            return
        donor = self.r.choice(donors)
        self.advance(donor, -1)
        old = self.make_state(p.saved[0].copy())
        store = donor.state.store
        assert isinstance(store, MemoryStore)
        since = old.place
        if since > (0, 0, 0) and delta_possible(donor.state, since) and self.r.random() < 0.7:
            rows = [KeyedRow(*row) for row in store.changed_since(since)]
            chunks = dict(delta_chunks(donor.state, since, rows))
            found = [row for key, data in sorted(chunks.items()) if key[:1] == b"d" for row in decode_rows(data)]
            old.merge(donor.state.place, decode_removed(chunks[b"gone"]), found)
            p.state = old
            self.met["delta"] += 1
            at = self.index_of(since)
            if digest(old) != digest(donor.state) and not any(low <= at <= high for low, high in self._lost):
                raise Violation("copy", f"{p.who} has another state than its donor at {old.place} after a delta from {since}")
        if p.state.place != donor.state.place or digest(p.state) != digest(donor.state):
            # Nothing to build on, or its past is not the group's: it has gone further than those who have started without it.
            self.met["full"] += 1
            full: list[list[KeyedRow]] = [[]]
            for table, key, row in store.changed_since((0, 0, 0)):
                if begins_chunk(table, key):
                    full.append([])
                full[-1].append(KeyedRow(table, key, row))
            self.r.shuffle(full)
            new, tally = MemoryStore(), Tally()
            for chunk in full:
                rows = decode_rows(encode_rows(chunk))
                tally.take(rows)
                for keyed in rows:
                    new.put(*keyed, donor.state.place)
            p.state = self.state_class.rebuild(new, donor.state.place, tally=tally)
        if digest(p.state) != digest(donor.state):
            raise Violation("copy", f"{p.who} has another state than its donor at {donor.state.place}")
        p.cursor = donor.cursor
        self._activate(p)

    def _activate(self, p: Process) -> None:
        p.active = True
        p.epoch += 1
        p.save()
        self.send(p, encode(Holding(True)), Holding(True))

    def begin(self) -> None:
        """START: the furthest states of those that are here become the group's; all others copy them."""
        here = [p for p in self.live() if p.connected]
        if any(p.active for p in here) or not here:
            return
        furthest = max(self.make_state(p.saved[0]).place for p in here)
        who = [p for p in here if self.make_state(p.saved[0]).place == furthest]
        index = who[0].saved[1]
        self.oracle = self.pasts[index - 1].copy() if index else Oracle()
        self._lost.append((index, len(self.log) - 1))
        self.met["start"] += 1
        self.checks.on_start(index)
        self._append("start", min(self.members))
        for p in who:
            p.state = self.make_state(p.saved[0].copy())
            p.active = True
            p.cursor = len(self.log) - 1
            self.advance(p, 1)
            self._activate(p)
        for p in here:
            if p not in who:
                self.synchronise(p)

    def crash(self, p: Process) -> None:
        """A process ends without a word, and its view comes."""
        p.alive = p.active = False
        self.lose(p)
        self.view(set(self.members) - {p.who})

    def restart(self, p: Process) -> None:
        """A process ends and is there again before the others notice: one view in place of two."""
        p.alive = p.active = False
        self.lose(p)
        self.members -= {p.who}
        self.start(p.who[0])

    def stranger(self) -> None:
        """A message of a process that is not in the view. From a START to the next view, who sends is a member."""
        if self.oracle.begun:
            return
        who = (self.r.choice(sorted(self.clients)), 99)
        op = ops.Register("web", "tcp://10.9.9.9:80", 1, exclusive=self.r.random() < 0.5)
        for message in (self.load.update(0, op), Holding(True), Due(START + 10**6), End((1,))):
            self._append("message", who, encode(message), message)

    def lose(self, p: Process) -> None:
        """Its programs lose their connections."""
        p.epoch += 1
        for lease in p.leases.values():
            self.close(lease)

    def close(self, lease: Lease) -> None:
        if lease.alive:
            lease.alive, lease.gone_at = False, self.now

    def expel(self, p: Process) -> None:
        """The others remove its station; it has applied no more than the order has."""
        self.advance(p, -1)
        p.save()
        p.connected = p.active = False
        self.lose(p)
        self.view(set(self.members) - {p.who})

    def readmit(self, p: Process) -> None:
        p.connected = True
        p.leases.clear()
        p.ttls = self.ttls_class()
        p.watches.clear()
        self.view(set(self.members) | {p.who}, {p.who})
        self.synchronise(p)

    def power_cut(self) -> None:
        """All stop at once; what was not saved is lost."""
        for p in self.live():
            p.alive = p.active = False
            self.lose(p)
        self.members = frozenset()
        self.pending.clear()
        self.clock = ((self.clock >> 32) + 1) << 32
        self.reads.clear()
        self.asking.forget()
        if self.r.random() < 0.7:
            self.clients = dict.fromkeys(self.clients, 0)  # the daemons count from 1 again
        for station in sorted(self.clients):
            if self.r.random() < 0.8 or station == 1:
                self.start(station)

    # ---- time

    def turn(self, p: Process) -> None:
        """What a process does by its clocks."""
        if not p.usable:
            return
        for lease in p.leases.values():
            if lease.mailbox:
                for _ in lease.mailbox:
                    p.ttls.renew(self.now, lease.number)
                lease.mailbox.clear()
        ended = p.ttls.on_turn(self.now)
        if ended:
            self.end(p, ended)
        state, cursor, until, is_lowest = p.quiet
        if state is p.state and cursor == p.cursor and p.wall() < until:
            if is_lowest:
                self._again(p, "next")
            return
        due = p.state.due_message(p.who, p.wall())
        if due is not None and self._again(p, "due"):
            self.send(p, encode(due), due)
        is_lowest, waiting = p.state.active()[:1] == [p.who], list(p.state.without_next())
        if is_lowest and self._again(p, "next"):
            for entry in waiting:
                s = entry.schedule
                assert s is not None
                following = self.next_instant(p, s.last)
                if following:
                    message = Next(entry.name, entry.version, following, self.r.randrange(len(s.slots)))
                    self.send(p, encode(message), message)
        if due is None and not (is_lowest and waiting):
            p.quiet = (p.state, p.cursor, p.state.next_due() or NEVER_S, is_lowest)

    def next_instant(self, p: Process, last: int) -> int:
        """Every slot of the simulation begins 20 s behind the former one, and never behind 200 s."""
        if p.state.time > START + 200:
            return 0
        if self.r.random() < 0.3:
            return (p.wall() // 20 + 1) * 20  # a careless one goes by its own clock
        missed = last + (max(p.state.time - last, 0) // 20) * 20
        return missed if missed > last else max(last, p.state.time) + 20

    def _again(self, p: Process, what: str) -> bool:
        """At most once a second."""
        if self.now - p.said.get(what, -S) < S:
            return False
        p.said[what] = self.now
        return True

    def end(self, p: Process, numbers: list[int]) -> None:
        for number in numbers:
            self.checks.on_ended(p, p.leases[number])
            self.close(p.leases[number])
        message = End(tuple(sorted(numbers)))
        self.send(p, encode(message), message)

    def pass_time(self, ns: int) -> None:
        """Programs renew their leases each second, processes have a turn each 100 ms."""
        until = self.now + ns
        while self.now < until:
            self.now += S // 10
            if self.now % S == 0:
                for lease in self.leases:
                    if lease.alive and lease.ttl:
                        lease.mailbox.append(self.now)
            for p in self.live():
                self.turn(p)
        self.leases = [lease for lease in self.leases if lease.alive or self.now - lease.gone_at < 100 * S]

    # ---- programs

    def update(self, p: Process) -> None:
        update = self.load.update(p.wall())
        if self.plan.operations:
            while not all(type(op).__name__ in self.plan.operations for op in update.operations):
                update = self.load.update(p.wall())
        if self.sent and self.r.random() < 0.15:
            update = self.r.choice(self.sent[-10:])  # undecided for its client: sent again under the same id
        self.submit(p, update)

    def submit(self, p: Process, update: Update) -> None:
        self.sent.append(update)
        self.send(p, encode(update), update)

    def register(self, p: Process) -> None:
        name = self.r.choice(("web", "web", *self.plan.names[:2]))
        if p.leases and self.r.random() < 0.2:
            number = self.r.choice(sorted(p.leases))  # one lease for several names
            if not p.leases[number].alive:
                return
        else:
            p.numbers += 1
            number = p.numbers
        exclusive = self.r.random() < 0.5
        address = f"tcp://10.0.{p.who[0]}.{number}:80"
        op = ops.Register(name, address, number, self.r.choice([0, 0, 1]), 1, exclusive, "all", "", self.load.condition(name))
        if number not in p.leases:
            lease = p.leases[number] = Lease(p.who, number, name, self.r.random() < 0.6)
            self.leases.append(lease)
            p.ttls.add(self.now, number, TTL_NS if lease.ttl else 0)
        self.registering(p, p.leases[number], op)
        update = self.load.update(p.wall(), op)
        self.send(p, encode(update), update)

    def registering(self, p: Process, lease: Lease, op: ops.Register) -> None:
        """For a broken variant."""

    def give_up(self, p: Process) -> None:
        """A program closes its connection, or hangs."""
        leases = [lease for lease in p.leases.values() if lease.alive]
        if not leases:
            return
        lease = self.r.choice(leases)
        self.close(lease)
        if not lease.ttl or self.r.random() < 0.5:
            p.ttls.remove(lease.number)
            self.end(p, [lease.number])

    def read(self) -> None:
        """A program looks a name up, here and there: it names the place of its last answer."""
        client = self.r.randrange(3)
        p = self._pick(self.usable())
        if p is not None and self.may_answer(p, client):
            self.read_at(p, client)

    def read_at(self, p: Process, client: int = 0) -> None:
        """Answer from a process's copy."""
        name = self.r.choice((*self.plan.names, "missing"))
        state = p.state
        found = follow(state.entry, name)
        targets = effective(found.entry, state.stations_up(), state.is_out) if found.entry else []
        code = found.code or ("" if targets else "no-address")
        version = found.entry.version if found.entry else (0, 0, 0)
        self.checks.on_answer(p, client, name, version, code, [t.address for t in targets])
        self.reads[client] = state.place

    def may_answer(self, p: Process, client: int) -> bool:
        return p.state.place >= self.reads.get(client, (0, 0, 0))

    def watch(self, p: Process) -> None:
        """A program watches names, and reads what it hears of them slowly."""
        if len(p.watches) < 2 and self.r.random() < 0.3:
            watch = self.watch_class(self.r.choice(["", "web", "a"]), self.r.choice([1, 3, 50]))
            entries = [e for e in (p.state.entry(n) for n in sorted({*self.plan.names, "web"})) if e is not None]
            watch.start(p.state.place, entries)
            p.watches.append(Known(watch))
        for known in p.watches:
            self.checks.on_events(p, known, known.watch.read(self.r.choice([1, 5, 100])))

    # ---- a run

    def fault(self) -> None:
        kind, r = self.r.choice(self.plan.kinds), self.r
        live = [p for p in self.live() if p.connected]
        p = r.choice(live) if live else None
        if kind == "cut" and r.random() < 0.3:
            self.power_cut()
        elif p is None:
            return
        elif kind == "crash" and len(live) > 1:
            self.crash(p)
        elif kind == "restart" and len(live) > 1:
            self.restart(p)
        elif kind == "stranger":
            self.stranger()
        elif kind == "expel" and len(live) > 1:
            self.expel(p)
        elif kind == "pause":
            p.paused_until = self.now + r.randint(1, 8) * S
        elif kind == "bad":
            self.send(p, self.load.bad(p.wall()), "bad")
        elif kind == "save" and p.active:
            p.save()

    def repair(self) -> None:
        for station in sorted(self.clients):
            p = self.processes.get(station)
            if p is None or not p.alive:
                self.start(station)
            elif not p.connected:
                self.readmit(p)

    def step(self) -> None:
        r, x = self.r, self.r.random()
        plan = self.plan
        p = self._pick(self.usable())
        if x < plan.faults:
            self.fault()
        elif x < plan.faults + plan.updates and p:
            self.update(p)
        elif x < plan.faults + plan.updates + plan.registers and p:
            self.register(p)
        else:
            choices: list[Callable[[], None]] = [self.order_one, self.order_one, self.order_one, self.read, self.asking.step]
            choices.append(lambda: self.pass_time(r.choice([1, 2, 10, 30, 70]) * S // 10))
            if p:
                choices += [lambda: self.advance(p, r.randint(1, 4)), lambda: self.watch(p), lambda: self.give_up(p)]
                choices += [lambda: self.asking.ask(p, r.choice(plan.names))] * plan.asks
            choices += [self.asking.step] * (plan.asks - 1)
            r.choice(choices)()
        if r.random() < 0.05:
            back = [s for s in sorted(self.clients) if s not in self.processes or not self.processes[s].alive]
            out = [q for q in self.live() if not q.connected]
            if out and r.random() < 0.5:
                self.readmit(r.choice(out))
            elif back:
                self.start(r.choice(back))
        for q in self.usable():
            if r.random() < 0.3:
                self.advance(q, r.randint(1, 3))

    def run(self) -> None:
        for station in sorted(self.clients):
            self.start(station)
        for _ in range(self.plan.steps):
            self.step()
        self.heal()

    def heal(self) -> None:
        """Everything works again: it comes to rest, with all copies equal."""
        self.healed = True
        self.offsets = dict.fromkeys(self.offsets, 0)
        self.repair()
        for p in self.live():
            p.paused_until = 0
        for _ in range(30):
            self.pass_time(4 * S)
            while self.pending:
                self.order_one()
            for p in self.live():
                self.advance(p, -1)
            self.asking.step()
        self.checks.on_rest()


def simulate(seed: int, plan: Plan | None = None, **parts: Any) -> Violation | None:
    """Run one seed. The violation has the plan and the end of the trace as notes."""
    world_class = parts.pop("world", World)
    return violation_of(world_class(plan or Plan.draw(seed), **parts), 12)


if __name__ == "__main__":
    sys.exit(run_seeds(simulate, sys.argv[1:]))
