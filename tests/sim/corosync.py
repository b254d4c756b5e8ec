"""Corosync's stand-ins over an abstract total order: rings, process groups and quorum (docs/corosync.md).

One sequence of messages and views in place of zenjund. At each node a stand-in takes it at its own pace, with programs that join
groups, send, leave, die, and track rings and quorum. Stand-ins die at any step, their daemons die, stations are cut off and come
back, the instance ends, too few stations are left. Checkers (``corosync_checks.py``) look only at what programs are told and at
what has really happened. Then everything works again, and it must come to rest.

``python -m tests.sim.corosync FIRST COUNT`` runs many seeds and prints those that fail.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, deque
from typing import Any, Final

from zenjun.proto.service.base import Effect, Emit, Source, Store
from zenjun.proto.service.corosync import ring as ring_module
from zenjun.proto.service.corosync.results import Apart, Changed, Connect, Disconnect, Kept, Reread, Stop
from zenjun.proto.service.corosync.ring import Nodes, Phase
from zenjun.proto.service.corosync.standin import StandIn

from .corosync_checks import Checks, Verdict
from .corosync_load import Load, Program
from .corosync_plan import Item, Plan
from .histories import run_seeds, violation_of
from .violation import Violation

S: Final = 1_000_000_000
COMMON: Final = b"nodelist of most"
OTHER: Final = b"another nodelist"


class Died(Exception):
    """The stand-in has been killed between two effects."""


class Node:
    """A node: its disk, its zenjund, its stand-in and the programs there."""

    def __init__(self, station: int) -> None:
        self.station = station
        self.past = b""
        """On disk."""
        self.standin: StandIn | None = None
        self.source: Source | None = None
        """Of the connection to zenjund."""
        self.cursor: int | None = None
        """Number of the next item; None: the join has no place yet."""
        self.limit: int | None = None
        """Its order has ended here: the stand-in is told when it has read so far."""
        self.alone_at: int | None = None
        """When it has gone alone without quorum, until it is no longer connected."""
        self.fingerprint = COMMON
        self.paused_until = 0
        self.made: deque[tuple[Changed, bool, Verdict]] = deque()
        """Rings that nobody has heard of, whether there was quorum before, and what quorum is then."""
        self.programs: dict[int, Program] = {}

    @property
    def id(self) -> int:
        return self.station


class World:
    """A run. ``run`` raises Violation."""

    def __init__(self, plan: Plan, **parts: Any) -> None:
        """parts: classes to be used in place of the honest ones: standin, ring, cpg, votequorum."""
        self.plan = plan
        self.r = random.Random(plan.seed ^ 0xC0505)
        self.parts = parts
        self.config = plan.config()
        self.now = 0
        self.clock = 1 << 32
        self.log: list[Item] = []
        self.members: frozenset[Source] = frozenset()
        self.pending: dict[Source, deque[bytes | str]] = {}
        """Of each connection, in its order: messages, "join", "leave"."""
        self.nodes = {k: Node(k) for k in range(1, plan.stations + 1)}
        self.connected = set(self.nodes)
        """Stations that hear each other."""
        self.clients = dict.fromkeys(self.nodes, 0)
        self.checks = Checks(self)
        self.load = Load(self)
        self.trace: list[str] = []
        self.met: Counter[str] = Counter()

    # ---- the order

    @property
    def stalled(self) -> bool:
        """Too few stations: nothing gets a place."""
        return len(self.connected) * 2 <= self.plan.stations

    def append(self, source: Source, data: bytes | None) -> None:
        self.clock += self.r.randint(1, 3)
        place = (self.clock, source[0], 0 if data is not None else 65535)
        self.log.append(Item(place, source, data, self.members))
        self.note(f"{place} {source} {'view ' + str(sorted(self.members)) if data is None else data[:24].hex()}")

    def order_one(self) -> bool:
        """Give one waiting message, join or leave its place; each connection's in their order."""
        leaving = {source[0] for source, queue in self.pending.items() if queue and queue[-1] == "leave"}
        ready = [
            source
            for source, queue in self.pending.items()
            if queue and source[0] in self.connected and not (queue[0] == "join" and source[0] in leaving)
        ]
        if self.stalled or not ready:
            return False
        source = self.r.choice(ready)
        said = self.pending[source].popleft()
        if isinstance(said, bytes):
            self.append(source, said)
            return True
        self.members = self.members | {source} if said == "join" else self.members - {source}
        self.append(source, None)
        if said == "leave":
            del self.pending[source]
        for node in self.nodes.values():
            if said == "join" and node.source == source:
                node.cursor = len(self.log) - 1
        return True

    def lose(self, stations: list[int]) -> None:
        """The others go on without these stations: what was under way there is lost, and their view says so."""
        gone = {source for source in self.members if source[0] in stations}
        for source in [s for s in self.pending if s[0] in stations]:
            del self.pending[source]
        for station in stations:
            self.end_of_order(self.nodes[station])
        if gone:
            self.members -= gone
            self.append(min(self.members, default=(1, 0)), None)

    def end_of_order(self, node: Node) -> None:
        """It will hear no more than its zenjund has already."""
        if node.source is not None and node.limit is None:
            node.limit = self.r.randint(node.cursor, len(self.log)) if node.cursor is not None else -1

    # ---- stand-ins

    def start(self, node: Node) -> None:
        """A stand-in starts, with what is on its disk."""
        self.note(f"node {node.id} starts")
        made = self.make(node)
        node.standin, node.source, node.cursor, node.limit = made, None, None, None
        node.made.clear()
        self.checks.on_start(node)
        self.carry_out(node, made.ring.start(self.now))

    def make(self, node: Node) -> StandIn:
        class Watched(self.parts.get("standin", StandIn)):  # type: ignore[misc]
            """Tells the world of each ring."""

            ring_class = type("Ring", (self.parts.get("ring", ring_module.Ring),), {"processes_max": self.plan.room})
            cpg_class = self.parts.get("cpg", StandIn.cpg_class)
            votequorum_class = self.parts.get("votequorum", StandIn.votequorum_class)
            trackers_class = self.parts.get("trackers", StandIn.trackers_class)

            def on_changed(self, changed: Changed, changes: list[Effect]) -> list[Effect]:
                before = self.votequorum.quorate
                effects: list[Effect] = super().on_changed(changed, changes)
                node.made.append((changed, before, Verdict.of(self.votequorum)))
                return effects

        stations = {k: k for k in self.nodes}
        nodes = Nodes(node.id, stations, node.fingerprint)
        times = {"alone_after_ns": self.plan.alone_after * S, "linger_ns": self.plan.linger * S}
        made: StandIn = Watched(nodes, self.config, node.past, **times)
        return made

    def carry_out(self, node: Node, effects: list[Effect]) -> None:
        """What an input has brought. The stand-in may die at each of them."""
        if not effects:  # and programs know what they knew before
            return
        self.checks.on_effects(node, effects)
        for effect in effects:
            if self.r.random() < self.plan.dies:
                self.met["died"] += 1
                self.kill(node)
                return
            if isinstance(effect, Emit):
                if node.source in self.pending:
                    self.pending[node.source].append(effect.data)
            elif isinstance(effect, Store | Kept):
                if isinstance(effect, Store):
                    node.past = effect.data or b""
                if node.made:
                    self.checks.on_ring(node, *node.made.popleft())
            elif isinstance(effect, Connect):
                self.connect(node)
            elif isinstance(effect, Disconnect):
                self.disconnect(node)
            elif isinstance(effect, Stop):
                self.met["stop"] += 1
                self.kill(node)
                return
            elif isinstance(effect, Apart):
                self.met["apart"] += 1
            elif not isinstance(effect, Reread):
                self.checks.on_told(node, effect)
        self.checks.on_input(node)

    def connect(self, node: Node) -> None:
        assert node.standin is not None
        if node.source is not None:
            self.disconnect(node)
        self.clients[node.station] += 1
        node.source = (node.station, self.clients[node.station])
        node.cursor = node.limit = None
        self.pending[node.source] = deque(["join"])
        self.carry_out(node, node.standin.ring.on_connected(node.source))

    def disconnect(self, node: Node) -> None:
        """zenjund sees the socket close. What it has taken before still goes out, unless its order has ended."""
        source, node.source, node.cursor, node.limit, node.alone_at = node.source, None, None, None, None
        queue = self.pending.get(source) if source is not None else None
        if source is None or queue is None:
            return
        if source in self.members:
            queue.append("leave")
        else:
            del self.pending[source]

    def kill(self, node: Node) -> None:
        """SIGKILL: programs lose their connections, and some of what was written is not read any more."""
        self.note(f"node {node.id} is killed")
        queue = self.pending.get(node.source) if node.source is not None else None
        while queue and self.r.random() < 0.5 and queue[-1] != "join":
            queue.pop()
        self.disconnect(node)
        node.standin = None
        self.load.lose(node)

    def advance(self, node: Node, count: int) -> None:
        """A stand-in takes its next items; behind the last one it is told that its order has ended."""
        while count and node.standin is not None and self.now >= node.paused_until:
            if node.cursor is None and node.limit is None:
                return
            if node.limit is not None and (node.cursor is None or node.cursor >= node.limit):
                self.tell_end(node)
                return
            if node.cursor is None or node.cursor >= len(self.log):
                return
            item = self.log[node.cursor]
            node.cursor += 1
            count -= 1
            ring = node.standin.ring
            if item.data is None:
                self.carry_out(node, ring.on_view(item.place, item.members))
            else:
                self.carry_out(node, ring.on_message(item.source, item.data))

    def tell_end(self, node: Node) -> None:
        """closed, expelled, or the connection is gone."""
        assert node.standin is not None
        self.carry_out(node, node.standin.ring.on_lost(self.now))
        self.checks.on_end(node)

    def tell_blocked(self, node: Node) -> None:
        """zenjund has no quorum."""
        if node.standin is None or node.source is None or self.now < node.paused_until:
            return
        self.note(f"node {node.id} is told that there is no quorum")
        was_in = self.in_ring(node)
        effects = node.standin.ring.on_blocked(self.now, quorum=False)
        self.note_alone(node, was_in)
        self.carry_out(node, effects)
        if not self.plan.alone_after:
            self.checks.on_end(node)

    # ---- time

    def pass_time(self, ns: int) -> None:
        self.now += ns
        for node in self.nodes.values():
            standin = node.standin
            if standin is None or self.now < node.paused_until:
                continue
            self.carry_out(node, standin.ring.reserve())
            deadline = standin.ring.next_deadline_ns()
            if node.standin is standin and deadline is not None and self.now >= deadline:
                was_in = self.in_ring(node)
                effects = standin.ring.on_timer(self.now)
                self.note_alone(node, was_in)
                self.carry_out(node, effects)

    def note_alone(self, node: Node, was_in: bool) -> None:
        """It has gone alone now, without quorum."""
        if was_in and not self.in_ring(node):
            node.alone_at = self.now

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now / S:.1f} {text}")

    # ---- faults

    def fault(self) -> None:
        kind = self.r.choice(self.plan.kinds)
        node = self.nodes[self.r.choice(sorted(self.nodes))]
        self.met[kind] += 1
        if kind == "cut" and node.station in self.connected:
            self.cut([node.station])
        elif kind == "daemon" and node.station in self.connected:
            self.cut([node.station])
            node.limit = node.cursor if node.limit is not None and node.cursor is not None else node.limit
            self.advance(node, 1)
        elif kind == "reopen" and not self.stalled:
            self.reopen()
        elif kind == "pause":
            node.paused_until = self.now + self.r.randint(1, 8) * S
        elif kind == "kill" and node.standin is not None:
            self.kill(node)
        elif kind == "odd" and node.standin is not None:
            self.kill(node)
            node.fingerprint = OTHER if node.fingerprint == COMMON else COMMON
        elif kind == "stop" and node.standin is not None and self.now >= node.paused_until:
            self.load.kill_node(node)

    def cut(self, stations: list[int]) -> None:
        """They hear nobody. With too few left nothing gets a place, and nobody is removed; else the others remove them."""
        self.note(f"cut off: {stations}")
        self.connected -= set(stations)
        if not self.stalled:
            self.lose(stations)

    def mend(self) -> None:
        """All hear each other again. If there were too few, the instance goes on, or another one begins."""
        was_stalled = self.stalled
        if self.connected == set(self.nodes):
            return
        self.note("mended")
        back = set(self.nodes) - self.connected
        self.connected |= back
        if was_stalled and self.r.random() < 0.4:
            self.reopen()
        elif was_stalled:
            for node in self.nodes.values():
                if node.standin is not None and node.limit is None:
                    self.carry_out(node, node.standin.ring.on_unblocked())

    def reopen(self) -> None:
        """The instance ends at all stations, and another one begins."""
        self.note("the instance ends")
        self.met["instance"] += 1
        for node in self.nodes.values():
            self.end_of_order(node)
        self.pending.clear()
        self.members = frozenset()
        self.clock = ((self.clock >> 32) + 1) << 32

    # ---- a run

    def live(self) -> list[Node]:
        """Nodes whose stand-in runs and does something."""
        return [n for n in self.nodes.values() if n.standin is not None and self.now >= n.paused_until]

    def step(self) -> None:
        r, plan = self.r, self.plan
        if r.random() < plan.faults:
            self.fault()
        if r.random() < plan.back:
            self.come_back()
        if self.stalled and r.random() < 0.5:
            self.tell_blocked(self.nodes[r.choice(sorted(self.nodes))])
        for _ in range(r.randint(0, 4)):
            self.order_one()
        for node in self.live():
            if node.limit is not None and r.random() < 0.3:
                self.advance(node, -1)
            elif r.random() > plan.lag:
                self.advance(node, r.randint(1, 5))
            if node.standin is not None and r.random() < 0.6:
                self.load.act(node)
        self.pass_time(r.choice([S // 20, S // 10, S]))

    def come_back(self) -> None:
        gone = [node for node in self.nodes.values() if node.standin is None]
        if gone and self.r.random() < 0.7:
            self.start(self.r.choice(gone))
        elif self.r.random() < 0.5:
            self.mend()

    def run(self) -> None:
        for node in self.nodes.values():
            self.start(node)
        for _ in range(self.plan.steps):
            self.step()
        self.heal()

    def heal(self) -> None:
        """Everything works again: one ring of all."""
        self.note("healed")
        self.plan.dies = 0
        self.mend()
        for node in self.nodes.values():
            node.paused_until = 0
            if node.fingerprint != COMMON:
                node.fingerprint = COMMON
                if node.standin is not None:
                    self.kill(node)
        for _ in range(12):
            for node in self.nodes.values():
                if node.standin is None:
                    self.start(node)
            self.pass_time(S)
            self.settle()
        self.load.last_words()
        self.settle()
        self.checks.on_rest()

    def settle(self) -> None:
        """Everything that is under way arrives."""
        moved = True
        while moved:
            moved = self.order_one()
            for node in self.nodes.values():
                self.advance(node, -1)

    def in_ring(self, node: Node) -> bool:
        return node.standin is not None and node.standin.ring.phase is Phase.IN


def simulate(seed: int, plan: Plan | None = None, **parts: Any) -> Violation | None:
    """Run one seed. The violation has the plan and the end of the trace as notes."""
    world_class = parts.pop("world", World)
    return violation_of(world_class(plan or Plan.draw(seed), **parts), 14)


if __name__ == "__main__":
    sys.exit(run_seeds(simulate, sys.argv[1:]))
