"""Random runs of the daemon's part of the orders (hosts.py): what happens to stations and programs, and what must hold.

One seed determines everything. First the faults happen, then everything is repaired and must come to rest.
"""

from __future__ import annotations

import heapq
import random
import traceback
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, cast

import zenjun.daemon.multicast as multicast_module
from zenjun.daemon.clientwire import SEND_TO, Frame, JoinFlag
from zenjun.proto.engineconfig import EngineConfig
from zenjun.proto.multicast.codec import Encoded, decode
from zenjun.proto.multicast.links import LinkLife
from zenjun.proto.multicast.member import MULTICAST
from zenjun.proto.service.base import ViewEvent
from zenjun.proto.wire import Ordering, group_id

from ...sim.violation import Violation
from ...virtual.engines import CONFIG
from .hosts import PREACK, Daemon, Entry, FakePair, Program, Sent

US: Final = 1_000
MS: Final = 1_000_000
ORDERS: Final = {"token": Ordering.TOKEN, "abcast": Ordering.ABCAST, "total": Ordering.TOTAL}


@dataclass(frozen=True)
class Plan:
    seed: int
    stations: int = 4
    groups: tuple[str, ...] = ("token", "token")
    messages: int = 20
    faults: int = 4
    kinds: tuple[str, ...] = ("crash", "join", "leave", "end", "connect", "reopen", "quorum")
    span: int = 60 * MS
    slow: int = 2 * MS

    @classmethod
    def draw(cls, seed: int) -> Plan:
        r = random.Random(seed)
        return cls(
            seed,
            stations=r.randint(2, 5),
            groups=tuple(r.choice(("token", "token", "abcast", "total")) for _ in range(r.randint(1, 4))),
            messages=r.choice((5, 20, 60)),
            faults=r.choice((0, 2, 5, 12)),
            span=r.choice((5, 30, 100)) * MS,
            slow=r.choice((200 * US, 2 * MS, 6 * MS)),
        )


class HostWorld:
    """A random run: ``run`` raises Violation."""

    window = 4

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stations = plan.stations
        self.random = random.Random(plan.seed ^ 0x4057)
        self.now = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.order: list[Entry] = []
        self.daemons: dict[int, Daemon] = {}
        self.members: dict[int, int] = {}
        self.lives: defaultdict[int, int] = defaultdict(int)
        self.instance = 0
        self.generation = 0
        """Counts instances that no votes connect."""
        self.flying: defaultdict[tuple[int, int, int, int], deque[tuple[int, LinkLife, list[Encoded]]]] = defaultdict(deque)
        self.sent: set[bytes] = set()
        self.taken: dict[bytes, Sent] = {}
        """In this instance."""
        self.trace: list[str] = []
        self.healed = False
        self._began: dict[int, int] = {}
        self.names = [f"g{k}" for k in range(len(plan.groups))]

    def config(self, station: int) -> EngineConfig:

        return replace(CONFIG, stations=self.stations, station=station)

    # ---- time and chance

    def at(self, when: int, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, action))

    def run_until(self, until: int) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def soon(self, longest: int) -> int:
        return self.now + self.random.randint(1, max(2, longest))

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now / MS:9.3f} {text}")

    def fail(self, checker: str, text: str) -> None:
        raise Violation(checker, f"{self.now / MS:.3f} ms: {text}")

    # ---- main order

    def broadcast(self, daemon: Daemon, client: int, data: bytes) -> None:
        generation = self.generation
        when = max(self.soon(self.plan.slow), self._began.get(daemon.station, 0))
        self._began[daemon.station] = when

        def place() -> None:
            is_member = self.members.get(daemon.station) == daemon.incarnation
            if is_member and generation == self.generation and (daemon.alive or self.chance(0.5)):
                self.append(Entry(len(self.order) + 1, daemon.station, client, data))

        self.at(when, place)

    def append(self, entry: Entry) -> None:
        self.order.append(entry)
        self.note(f"place {entry.place}: {entry.station}/{entry.client} {entry.data[:12].hex()} {entry.view or ''}")
        for daemon in self.daemons.values():
            self._bring(daemon, entry)

    def _bring(self, daemon: Daemon, entry: Entry) -> None:
        daemon.ready = max(daemon.ready, self.soon(self.plan.slow))
        generation = self.generation

        def arrive() -> None:
            if daemon.alive and generation == self.generation and daemon.at < entry.place:
                daemon.at = entry.place
                daemon.deliver(entry)

        self.at(daemon.ready, arrive)

    def vector(self) -> tuple[int, ...]:
        return tuple(self.members.get(z, 0) for z in range(1, self.stations + 1))

    def view(self, joined: tuple[int, ...], left: tuple[int, ...]) -> None:
        self.instance += 1
        view = ViewEvent(self.instance, 0, self.vector(), joined, left)
        for z in joined:
            d = self.daemons[z]
            d.at = len(self.order)
            d.ready = self.now
            d.open(self.instance, self.vector(), joined=True)
        for d in self.daemons.values():
            if d.alive and d.station in self.members:
                d.standing.instance, d.standing.incarnations = self.instance, self.vector()
        self.append(Entry(len(self.order) + 1, min(self.members), view=view))

    # ---- links

    def transmit(self, daemon: Daemon, station: int) -> None:
        links = daemon.multicast.links
        pair = links.pairs.get(station) if links is not None else None
        if pair is None or not daemon.alive:
            return
        fake = cast("FakePair", pair)
        while fake.queue:
            records = [fake.queue.popleft() for _ in range(self.random.randint(1, len(fake.queue)))]
            key = (daemon.station, daemon.incarnation, station, fake.incarnation)
            when = self.soon(self.plan.slow)
            if self.flying[key]:
                when = max(when, self.flying[key][-1][0])
            self.flying[key].append((when, fake.life, records))
            self.at(when, lambda key=key: self._arrive(key))  # type: ignore[misc]

    def retry(self, daemon: Daemon, station: int) -> None:
        for key in list(self.flying):
            if key[2] == daemon.station and key[0] == station:
                self._arrive(key)

    def _arrive(self, key: tuple[int, int, int, int]) -> None:
        source, life, target, target_life = key
        daemon = self.daemons.get(target)
        queue = self.flying[key]
        if daemon is None or not daemon.alive or daemon.incarnation != target_life:
            queue.clear()
            return
        while queue and queue[0][0] <= self.now:
            links = daemon.multicast.links
            pair = links.pairs.get(source) if links is not None else None
            if pair is None:
                daemon.asked |= 1 << source - 1
                self.at(self.now, daemon.on_pairs)
                self.at(self.now + MS, lambda: self._arrive(key))  # what is not confirmed is sent again
                return
            _, link, records = queue[0]
            fake = cast("FakePair", pair)
            if link != fake.life:
                old = link.instance < fake.life.instance or (source, life) not in (fake.life.lower, fake.life.higher)
                if old and life <= fake.incarnation:
                    queue.popleft()
                    continue
                self.at(self.now + MS, lambda: self._arrive(key))
                return
            queue.popleft()
            decoded = [decode(r, source, life) for r in records]
            if None in decoded:
                self.fail("codec", f"{records}")
            fake.accepted.append([r for r in decoded if r is not None])
            daemon.news |= 1 << source - 1
            self.at(self.soon(self.plan.slow) if self.chance(0.3) else self.now, daemon.on_pairs)

    # ---- what happens

    def living(self) -> list[Daemon]:
        return [d for d in self.daemons.values() if d.alive and self.members.get(d.station) == d.incarnation]

    def boot(self, station: int) -> Daemon:
        self.lives[station] += 1
        d = self.daemons[station] = Daemon(self, station, self.lives[station])
        return d

    def crash(self, d: Daemon) -> None:
        self.note(f"{d.station} crashes")
        d.alive = False

        def removed() -> None:
            if self.members.get(d.station) == d.incarnation:
                dead = tuple(x.station for x in self.daemons.values() if not x.alive and x.station in self.members)
                back = self.chance(0.2)
                for z in dead:
                    del self.members[z]
                joined: tuple[int, ...] = ()
                if back:
                    self.boot(d.station)
                    self.members[d.station] = self.lives[d.station]
                    joined = (d.station,)
                self.view(joined, dead)
            if not self.healed:
                self.at(self.soon(self.plan.span), lambda: self.restart(d.station))

        self.at(self.soon(4 * self.plan.slow), removed)

    def restart(self, station: int) -> None:
        if station in self.members or self.members_none():
            return
        self.note(f"{station} comes back")
        self.boot(station)
        self.members[station] = self.lives[station]
        self.view((station,), ())
        if self.chance(0.8):
            self.populate(self.daemons[station])

    def members_none(self) -> bool:
        return not any(d.alive for d in self.living())

    def reopen(self) -> None:
        """The instance ends without a successor by votes; all that live open a new one, each after another part of the order."""
        self.note("the instance ends")
        self.generation += 1
        self.instance += 1
        self.members = {d.station: d.incarnation for d in self.daemons.values() if d.alive}
        self.flying.clear()
        self.taken.clear()
        for d in self.living():
            d.close()
            for entry in self.order[d.at : d.at + self.random.randint(0, 3)]:
                d.at = entry.place
                d.deliver(entry)
            d.at = len(self.order)
            d.ready = self.now
        for d in self.living():
            d.open(self.instance, self.vector(), joined=False)

    def fault(self) -> None:
        living = self.living()
        kind = self.random.choice(self.plan.kinds)
        if not living:
            return
        d = self.random.choice(living)
        programs = list(d.programs.values())
        if kind == "crash" and len(living) > 1:
            self.crash(d)
        elif kind == "connect":
            self.populate(d)
        elif kind == "end" and programs:
            self.note(f"a program of {d.station} ends")
            d.end(self.random.choice(programs))
        elif kind == "reopen" and self.chance(0.4):
            self.reopen()
        elif kind == "join" and programs:
            self.join(d, self.random.choice(programs))
        elif kind == "leave" and programs:
            p = self.random.choice(programs)
            if p.names:
                handle = self.random.choice(sorted(p.names))
                if handle in p.connection.handles:
                    d.put(p, Frame.LEAVE, 0, handle, b"")
        elif kind == "quorum":
            d.standing.quorum = False

            def again() -> None:
                d.standing.quorum = True
                d.multicast.on_quorum()
                d.after()

            self.at(self.soon(self.plan.span // 3), again)

    def populate(self, d: Daemon) -> None:
        p = d.connect()
        for _ in range(self.random.randint(0, 3)):
            self.join(d, p)

    def join(self, d: Daemon, p: Program) -> None:
        k = self.random.randrange(len(self.names))
        order = self.plan.groups[k] if self.chance(0.9) else self.random.choice(("token", "abcast", "total"))
        handle = max(p.names, default=0) + 1
        flags = JoinFlag.OPEN | (JoinFlag.SEND_ONLY if self.chance(0.3) else 0) | self.random.randint(0, 1)
        p.names[handle] = self.names[k]
        d.put(p, Frame.JOIN, int(flags), handle, bytes([int(ORDERS[order]), 0, 0, 0]) + self.names[k].encode())

    def say(self) -> None:
        living = [d for d in self.living() if d.programs]
        if not living:
            return
        d = self.random.choice(living)
        p = self.random.choice(list(d.programs.values()))
        for _ in range(self.random.choice((1, 2, 6))):
            if not p.names:
                return
            content = b"%d" % (len(self.sent) + 1)
            self.sent.add(content)
            level = self.random.randint(0, 1)
            if self.chance(0.5):
                d.put(p, Frame.SEND, level, self.random.choice(sorted(p.names)), content)
            else:
                handles = self.random.sample(sorted(p.names), self.random.randint(1, len(p.names)))
                body = SEND_TO.struct.pack(len(handles)) + b"".join(h.to_bytes(2, "little") for h in handles) + content
                d.put(p, Frame.SEND_TO, level, handles[0], body)

    # ---- the run

    def run(self) -> None:
        plan, r = self.plan, self.random
        real_now = vars(multicast_module)["now_ns"]
        vars(multicast_module)["now_ns"] = lambda: self.now
        try:
            for station in range(1, plan.stations + 1):
                self.boot(station)
                self.members[station] = 1
            self.instance = 1
            for d in self.living():
                d.open(1, self.vector(), joined=False)
            for d in self.living():
                self.populate(d)
            self.run_until(20 * MS)
            for _ in range(plan.messages):
                self.at(self.now + r.randint(0, plan.span), self.say)
            for _ in range(plan.faults):
                self.at(self.now + r.randint(0, plan.span), self.fault)
            self.run_until(self.now + plan.span)
            self.healed = True
            self.note("healed")
            self.run_until(self.now + 20 * plan.slow)
            for station in range(1, plan.stations + 1):
                self.restart(station)
            self.settle()
            self.at_end()
        finally:
            vars(multicast_module)["now_ns"] = real_now

    def settle(self) -> None:
        end = self.now + 3_000 * MS
        while self._events and self.now <= end:
            self.run_until(min(self._events[0][0], end + 1))
        if self._events:
            self.fail("rest", "no rest")

    def at_end(self) -> None:
        living = self.living()
        for d in living:
            m = d.multicast
            machine = m.member.machine
            if machine is None or not machine.is_open or len(machine.main.eras) > 1:
                self.fail("rest", f"{d.station} takes no part: {machine and machine.main.eras}")
            left = {
                "own": d.fake.delivering.unfinished, "outgoing": m._outgoing, "changes": m._changes, "parts": m.member._parts,
                "lines": [line.items for line in d.fake.delivering.lines if line.items], "log": m.member._log,
                "held": {slot: queue for slot, queue in d.fake.delivering.queues.items() if queue},
            }  # fmt: skip
            if any(left.values()):
                self.fail("rest", f"{d.station} keeps {left}")
            for p in d.programs.values():
                if any(level < PREACK for level in p.done.values()):
                    self.fail("done", f"a program of {d.station} waits for {p.done}")
                if any(t.type != Frame.SEND for t in p.input) or p.held:
                    self.fail("rest", f"frames of a program of {d.station} wait: {p.input}")
        eras = {d.multicast.member.machine.era.number for d in living}  # type: ignore[union-attr]
        if len(eras) > 1:
            self.fail("rest", f"eras {eras}")
        for d in living:
            self._same_groups(d, living[0])
        self._orders()

    def _same_groups(self, d: Daemon, other: Daemon) -> None:
        if d.groups.as_list() != other.groups.as_list():
            self.fail("groups", f"{d.station} {d.groups.as_list()}, {other.station} {other.groups.as_list()}")
        machine = d.multicast.member.machine
        assert machine is not None
        for name in d.groups.names():
            if d.groups.ordering(name) in (Ordering.TOKEN, Ordering.ABCAST):
                here = {(p.station, p.client) for p in machine.main.programs.get(group_id(name), ())}
                if here != {(z, c) for z, c, _ in d.groups.members(name)}:
                    self.fail("groups", f"{d.station}: members of {name} {here}")
                own = {c for z, c, _ in d.groups.members(name) if z == d.station}
                got = {c for c, _ in d.multicast._receivers.get(group_id(name), {})}
                if own != got:
                    self.fail("groups", f"{d.station}: receivers of {name} {got}, members {own}")

    def _orders(self) -> None:
        """Any two programs have what both got in one order, each message once; places grow."""
        everybody = [p for d in self.daemons.values() for p in d.programs.values()]
        for p in everybody:
            seen = [content for _, _, content in p.got]
            if len(seen) != len(set(seen)):
                self.fail("once", f"{p.connection} got {seen}")
            if not set(seen) <= self.sent:
                self.fail("once", "something that was not sent")
        places: dict[bytes, tuple[int, int, int]] = {}
        for p in everybody:
            last: dict[str, tuple[int, int, int]] = {}
            for group, place, content in p.got:
                if places.setdefault(content, place) != place:
                    self.fail("order", f"{content!r} has places {place} and {places[content]}")
                if last.get(group, (0, 0, 0)) >= place:
                    self.fail("order", f"{p.connection} got {place} of {group} after {last[group]}")
                last[group] = place
        self._complete(places)

    def _complete(self, places: dict[bytes, tuple[int, int, int]]) -> None:
        """What a station that stays has taken, all destinations that stay have delivered, and their programs have got."""
        living = {(d.station, d.incarnation): d for d in self.living()}
        for content, sent in self.taken.items():
            if sent.origin in living:
                for life in sent.to & living.keys():
                    if content not in living[life].delivered:
                        self.fail("complete", f"{life} has not delivered {content!r}, {sent}")
        for d in living.values():
            for content in d.delivered:
                groups = self.taken[content].groups
                for p in d.programs.values():
                    got = {c for _, _, c in p.got}
                    for handle in p.connection.handles.values():
                        concerned = handle.group_id in groups and handle.member and not handle.no_self
                        concerned = concerned and handle.ordering in MULTICAST  # else somebody has made the group anew
                        if concerned and content not in got and self._since(p, handle.group) < places.get(content, (0, 0, 0)):
                            self.fail("complete", f"{p.connection} has not got {content!r} at {places[content]}")

    @staticmethod
    def _since(p: Program, group: str) -> tuple[int, int, int]:
        for view in p.views[group]:
            if any(c == p.connection.client for _, c, _ in view["joined"]):
                return (view["clock"], view["station"], view["index"])
        return (1 << 63, 0, 0)


def simulate(seed: int, plan: Plan | None = None) -> Violation | None:
    run = HostWorld(plan or Plan.draw(seed))
    try:
        run.run()
    except Violation as violation:
        violation.add_note("\n".join([f"seed {seed}: {run.plan}", *run.trace[-80:]]))
        return violation
    except Exception as error:
        crash = Violation("crash", f"{type(error).__name__}: {error}")
        crash.add_note("\n".join([f"seed {seed}: {run.plan}", *run.trace[-40:], traceback.format_exc()]))
        return crash
    return None
