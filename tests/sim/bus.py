"""The bus medium under simulation: one serial channel that brings every frame to every station, its sender included, in one
order; each station loses each frame by chance, independently of the others.

Machines, load and faults are those of the switched medium (``cluster.Simulation``); network, oracle and checkers are the bus's
own, since places in the order are not on the wire there. Checkers, by the names that a ``Violation`` bears:

- ``total_order``: what any two stations have of an instance is one sequence as far as both have it;
- ``place``: places increase, are of the instance, and agree with the position;
- ``fifo``: each program's messages come as it handed them over, whole, once, without a gap: no duplicate, no invention;
- ``causality``: a message stands behind all that its station had been handed before it was taken;
- ``ack_honest``: at the moment something is handed out every member has it in its receipt log, at the same place;
- ``levels``: all levels agree for programs, inside they are ordered, nothing that is acknowledged is ever taken back;
- ``epoch``: epochs only grow, and whoever completes one has the same vector and the same log;
- ``survivors``: whoever goes on to the next instance has delivered all that anybody delivered of the last;
- ``instances``: one number, one set of members, with quorum; lives are used once;
- ``flow``: in flight at most the window, no PDU dropped for want of a buffer;
- ``digest``: nobody is fenced;
- ``bounded``: memory as reserved, frames per turn limited, no storm;
- ``liveness`` and ``silence``: the healed bus converges, and then there are only heartbeats.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from zenjun.proto.bus import BusRules
from zenjun.proto.core import Core, Drop, Medium, Phase
from zenjun.proto.reset import State
from zenjun.proto.wire import Flag, Kind

from . import frames
from .checkers import Violation
from .cluster import SILENT_INTERVALS, Simulation
from .collector import once
from .facts import Delivery, Message
from .network import FRAME_MIN, Network
from .options import MS, US, Options, draw

STORM_FRAMES: Final = 60_000
UPLINK_JITTER_NS: Final = 30 * US
LOSS_MAX: Final = 0.2


class Bus(Network):
    """Frames wait at their stations, in turn, for the channel, which carries one at a time and brings it to everybody at once.
    ``one_channel`` False: to each after a time of its own, so that two may meet two frames in different orders."""

    one_channel = True

    def send(self, src: int, pdu: bytes, mac: bytes) -> None:
        self.sent += 1
        number = self.sent
        if len(self._kept) < 64:
            self._kept.append(pdu)
        ready = max(self._clock.now + self._rng.randrange(UPLINK_JITTER_NS), self._uplink_free[src])
        self._uplink_free[src] = ready
        self._clock.at(ready, lambda: self._carry(src, pdu, mac, number))

    def _carry(self, src: int, pdu: bytes, mac: bytes, number: int) -> None:
        faults = self.faults
        wire_ns = max(len(pdu), FRAME_MIN) * 8_000_000_000 // self._o.rate_bps
        self._port_free[0] = leaves = max(self._clock.now, self._port_free[0]) + wire_ns
        for dst in range(self._o.stations):
            lost = (src, dst) in self.cuts or (src in self.island) != (dst in self.island) or self._lost(src, dst)
            lost = lost or src in self.ports_down or dst in self.ports_down
            if self.drop_next is not None and self.drop_next(src, dst, pdu):
                lost = True
            if lost:
                self._trace.add(self._clock.now, dst, f"lost #{number}")
                continue
            arrives = leaves + self._o.delay_ns
            if not self.one_channel:
                arrives += self._rng.randrange(faults.reorder_ns)
            self._put(arrives, dst, self._damage(pdu), mac)


@dataclass(eq=False)
class Stay:
    """One station in one instance."""

    station: int
    boot: int
    life: int
    instance: int
    members: tuple[int, ...]
    records: list[Delivery] = field(default_factory=list)
    counted: dict[tuple[int, int], int] = field(default_factory=dict)
    """(source, program): messages delivered."""
    epoch: int = 0
    vectors: dict[int, tuple[int, ...]] = field(default_factory=dict)
    ended: bool = False
    fenced: bool = False


def draw_bus(rng: random.Random) -> Options:
    """As for the switched medium, without what a bus cannot do: re-order, repeat, replay; loss up to 20 %."""
    o = draw(rng)
    loss = rng.choice((0.0, 0.0, 0.005, 0.02, 0.05, 0.1, 0.2))
    faults = replace(o.faults, loss=loss, reorder=0.0, duplicate=0.0, replay=0.0, expel_gap_ns=0, mtu_gap_ns=0, burst_enter=0.0)
    if rng.random() < 0.25:
        faults = replace(faults, burst_enter=rng.choice((0.005, 0.02)))
    return replace(
        o,
        medium=int(Medium.BUS),
        own_timeout_ns=rng.choice((3 * MS, 10 * MS, 40 * MS)),
        op=0.0,
        jitter_ns=0,
        inbox_frames_max=rng.choice((64, 512, 4096)),
        faults=faults,
    )


def possible(o: Options) -> Options:
    """Without what a bus cannot do: for options that were changed after they had been drawn for one."""
    f = o.faults
    faults = replace(
        f, loss=min(f.loss, LOSS_MAX), reorder=0.0, duplicate=0.0, replay=0.0, expel_gap_ns=0, mtu_gap_ns=0, starved=-1
    )
    return replace(
        o,
        medium=int(Medium.BUS),
        op=0.0,
        jitter_ns=0,
        inbox_frames_max=max(o.inbox_frames_max, 64),
        faults=faults,
        divided=(),
    )


class BusSimulation(Simulation):
    """One run on a bus. ``one_channel`` False: on something that says it is one, and is not."""

    def __init__(
        self,
        seed: int,
        options: Options | None = None,
        change: Callable[[Options], Options] | None = None,
        one_channel: bool = True,
    ) -> None:
        if options is None:
            options = draw_bus(random.Random(seed))
            options = change(options) if change is not None else options
        super().__init__(seed, options, only=("none of those of the switched medium",))
        self.bus = self.network = Bus(self.options, self.rng, self.clockwork, self.trace, self._arrive)
        self.bus.one_channel = one_channel
        n = self.options.stations
        self.now_in: list[Stay | None] = [None] * n
        self.stays: dict[tuple[int, int], dict[int, Stay]] = {}
        """By (station, boot): by instance."""
        self.boots = [0] * n
        self.members: dict[int, tuple[int, ...]] = {}
        """Incarnations, by instance."""
        self.orders: dict[int, list[Delivery]] = {}
        self.taken: dict[tuple[int, int], dict[int, list[Message]]] = {}
        """By (station, incarnation): by program, as the daemon took them."""
        self.after: dict[int, int] = {}
        """By id of a message: how many records its station had before it."""
        self.commons: dict[tuple[int, int], tuple[int, ...]] = {}
        self.left_behind: dict[int, list[tuple[int, int, int, int]]] = {}
        """By instance: (records with which somebody has gone on from it, to which one, station, boot)."""
        self.fences: list[tuple[int, int]] = []
        """(virtual time, station)."""
        self.diverged_at: int | None = None
        """No bus: when a station was first handed another thing than somebody else at that place."""
        self.watching = False
        self.beats = [0] * n
        self.data = 0
        self.all_messages = 0
        self._memory: dict[tuple[int, int], int] = {}
        self._waits: dict[tuple[int, int], Message | None] = {}

    def fail(self, checker: str, text: str, *stations: int) -> None:
        raise Violation(checker, text, stations)

    # ---- Host
    def on_crash(self, station: int) -> None:
        self._end(station)
        self.boots[station] += 1
        self.facts.life[station] = 0
        if station in self.facts.absent:
            return
        down = self.options.faults.down_ns if self._faulty_phase else 0
        self.clockwork.at(self.clockwork.now + 1 + self.rng.randrange(down + 1), lambda: self._boot(station))

    def on_running(self, station: int) -> None: ...

    def on_persist(self, station: int, incarnation: int, instance: int) -> None:
        old = self.facts.life[station]
        if incarnation < old:
            self.fail("instances", f"station {station + 1} goes back from incarnation {old} to {incarnation}", station)
        self.facts.life[station] = incarnation
        self._progress += 1

    def on_opened(self, station: int, instance: int, incarnations: tuple[int, ...], joined: bool) -> None:
        who = f"station {station + 1}"
        known = self.members.setdefault(instance, incarnations)
        if known != incarnations or joined:
            self.fail("instances", f"{who} opens instance {instance} of {incarnations}, others of {known}", station)
        members = tuple(s for s, life in enumerate(incarnations) if life)
        if not self.facts.quorum(members):
            self.fail("instances", f"{who} opens instance {instance} of {members}, which have no quorum", station)
        if incarnations[station] != self.facts.life[station]:
            self.fail("instances", f"{who} opens instance {instance} as {incarnations[station]}", station)
        mine = self.stays.setdefault((station, self.boots[station]), {})
        if mine and instance <= max(mine):
            self.fail("instances", f"{who} goes from instance {max(mine)} to {instance}", station)
        before = mine[max(mine)] if mine else None
        if before is not None and not before.fenced and self.bus.one_channel:
            self._goes_on(before, instance)
        self._end(station)
        mine[instance] = self.now_in[station] = Stay(station, self.boots[station], incarnations[station], instance, members)
        self._progress += 1

    def _goes_on(self, before: Stay, instance: int) -> None:
        """To the next instance, from one in which others may have been as well."""
        order = self.orders.get(before.instance, [])
        others = [
            stays[before.instance]
            for key, stays in self.stays.items()
            if key[0] != before.station
            and instance in stays
            and max((k for k in stays if k < instance), default=0) == before.instance
        ]
        for other in others:
            if not other.fenced and len(other.records) != len(before.records):
                self.fail(
                    "survivors",
                    f"station {before.station + 1} goes on to instance {instance} with {len(before.records)} records of"
                    f" {before.instance}, s{other.station + 1} with {len(other.records)}",
                    before.station,
                    other.station,
                )
        if not any(self.members[instance][s] and s in before.members for s in range(len(self.boots)) if s != before.station):
            return
        if len(before.members) > 2 and not self._late(before, instance):
            if len(before.records) < len(order):
                self.fail(
                    "survivors",
                    f"station {before.station + 1} goes on to instance {instance} with {len(before.records)} records of"
                    f" {before.instance}, of which somebody has delivered {len(order)}",
                    before.station,
                )
            self.left_behind.setdefault(before.instance, []).append((len(before.records), instance, before.station, before.boot))

    def _late(self, before: Stay, instance: int) -> bool:
        """Others of that instance have been in one in between, without this station."""
        return any(
            before.instance < k < instance and set(before.members) & {s for s, life in enumerate(lives) if life}
            for k, lives in self.members.items()
        )

    def on_closed(self, station: int, expelled: bool) -> None:
        self._end(station)
        self._progress += 1

    def on_blocked(self, station: int, quorum: bool) -> None: ...

    def _end(self, station: int) -> None:
        stay = self.now_in[station]
        if stay is None:
            return
        stay.ended = True
        self.now_in[station] = None
        for client in range(1, self.options.clients + 1):
            if self._waits.pop((station, client), None) is not None:
                self._next_in_loop(station, client - 1)

    def on_broadcast(self, station: int, pdu: bytes) -> None:
        try:
            f = frames.parse(pdu)
        except ValueError as error:
            raise Violation("fifo", f"station {station + 1} sends a PDU that cannot be read: {error}", (station,)) from None
        if f.src != station + 1:
            self.fail("fifo", f"station {station + 1} sends a PDU of s{f.src}: nobody repeats others' on a bus", station)
        if self.trace is not None:
            self.log(station, f"send #{self.network.sent + 1} {frames.text(f)}")
        self.data += f.kind == Kind.DATA
        if self.network.sent > STORM_FRAMES + 40 * self.options.stations * self.data:
            self.fail("bounded", f"{self.network.sent} frames in one run, {self.data} of them DATA", station)
        if self.watching:
            self.beats[station] += 1
            if f.kind != Kind.CONFIRM or f.flags & Flag.POLL:
                self.fail("silence", f"station {station + 1} sends {frames.text(f)} when everything is delivered", station)
        stay = self.now_in[station]
        if stay is not None and f.instance == stay.instance and f.kind not in (Kind.OPEN,):
            self._note_epoch(stay, f)
        if self.on_frame is not None:
            self.on_frame(station, f)
        self.network.send(station, pdu, self.stations[station].mac)

    def _note_epoch(self, stay: Stay, f: frames.Frame) -> None:
        epoch = f.clock & 0xFFFFFFFF
        if f.kind == Kind.RSTC:
            known = self.commons.setdefault((stay.instance, epoch), f.ack)
            if known != f.ack and self.bus.one_channel:
                self.fail(
                    "epoch", f"station {stay.station + 1} agrees on {f.ack} in epoch {epoch}, others on {known}", stay.station
                )
        elif f.kind != Kind.RST and epoch < stay.epoch:
            self.fail("epoch", f"station {stay.station + 1} sends in epoch {epoch} after {stay.epoch}", stay.station)
        stay.epoch = max(stay.epoch, epoch)

    def on_taken(self, message: Message) -> None:
        stay = self.now_in[message.station]
        if stay is None:
            self.fail("instances", f"station {message.station + 1} takes a message in no instance", message.station)
            return
        self.taken.setdefault((message.station, stay.life), {}).setdefault(message.client, []).append(message)
        self.after[id(message)] = len(stay.records)
        self.all_messages += 1
        self._progress += 1

    def on_deliveries(self, station: int, records: list[Delivery]) -> None:
        for record in records:
            self._deliver(station, record)
        self._progress += 1

    def _deliver(self, station: int, r: Delivery) -> None:
        who = f"station {station + 1}"
        stay = self.stays.get((station, self.boots[station]), {}).get(r.clock >> 32)
        if stay is None:
            self.fail("place", f"{who} delivers {r.name()}, of no instance it has been in", station)
            return
        if r.clock & 0xFFFFFFFF != r.position + 1:
            self.fail("place", f"{who} delivers {r.name()} at position {r.position}", station)
        if stay.records and (r.position, r.index) <= (stay.records[-1].position, stay.records[-1].index):
            self.fail("place", f"{who} delivers {r.name()} after {stay.records[-1].name()}", station)
        order = self.orders.setdefault(stay.instance, [])
        at = len(stay.records)
        if not self.bus.one_channel:
            self._compare(stay, r, order)
            return
        if at == len(order):
            order.append(r)
            for records, to, other, boot in self.left_behind.get(stay.instance, ()):
                # Nobody can know what those did who have gone on and died: whoever comes from there alone keeps what it has.
                gone = stay.ended and self.boots[other] != boot
                if at >= records and not gone:
                    text = f"{who} delivers {r.name()}; s{other + 1} has gone on to instance {to} with {records} records"
                    self.fail("survivors", text, station)
        elif not order[at].same(r) or order[at].place != r.place:
            self.fail("total_order", f"{who} delivers {r.name()} where others have {order[at].name()}", station)
        self._judge_content(stay, r, at)
        if stay is self.now_in[station]:
            self._judge_everywhere(stay, r)
        stay.records.append(r)
        self.log(station, f"deliver {r.name()}")
        if self._waits.get((station, r.client)) is not None and r.src == station:
            mine = self.taken[station, stay.life][r.client]
            if mine[stay.counted[r.src, r.client] - 1] is self._waits[station, r.client]:
                self._waits[station, r.client] = None
                self._next_in_loop(station, r.client - 1)

    def _compare(self, stay: Stay, r: Delivery, order: list[Delivery]) -> None:
        """On what is no bus everything may go wrong, but not unnoticed."""
        at = len(stay.records)
        stay.records.append(r)
        if at == len(order):
            order.append(r)
        elif self.diverged_at is None and (order[at].place != r.place or not order[at].same(r)):
            self.diverged_at = self.clockwork.now
            self.log(stay.station, f"diverges: {r.name()}, others have {order[at].name()}")

    def run_no_bus(self, span_ns: int) -> None:
        """As ``run``, without what only a bus can promise."""
        self.start()
        self._plan_load()
        self.clockwork.run(span_ns)

    def _judge_content(self, stay: Stay, r: Delivery, at: int) -> None:
        who = f"station {stay.station + 1}"
        life = self.members[stay.instance][r.src]
        sent = self.taken.get((r.src, life), {}).get(r.client, [])
        k = stay.counted.get((r.src, r.client), 0)
        if k >= len(sent) or sent[k].data != r.data or (sent[k].group, sent[k].type) != (r.group, r.type):
            self.fail("fifo", f"{who} delivers {r.name()} where number {k} of its program is due", stay.station, r.src)
        stay.counted[r.src, r.client] = k + 1
        if self.after[id(sent[k])] > at:
            text = f"{who} delivers {r.name()} as record {at}; its station had {self.after[id(sent[k])]} before it"
            self.fail("causality", text, stay.station, r.src)

    def _judge_everywhere(self, stay: Stay, r: Delivery) -> None:
        mine = self._core(stay.station).entry(r.position)
        for other in stay.members:
            there = self.now_in[other]
            if there is None or there.instance != stay.instance or there.fenced:
                continue
            core = self._core(other)
            have = core.entry(r.position)
            if core.is_open and (core.receipts()[3] <= r.position or (mine and have and mine != have)):
                text = f"station {stay.station + 1} delivers {r.name()}, {mine} in its log; s{other + 1} has {have} there"
                self.fail("ack_honest", text, stay.station, other)

    def _core(self, station: int) -> Core:
        engine = self.stations[station].engine
        assert engine is not None
        return engine.core

    def on_positions(self, station: int, positions: tuple[int, int, int]) -> None:
        if len(set(positions)) != 1:
            self.fail("levels", f"station {station + 1} tells positions {positions}: there is one level on a bus", station)
        self._progress += 1

    def on_fenced(self, station: int, position: int) -> None:
        self.fences.append((self.clockwork.now, station))
        stay = self.now_in[station]
        if stay is not None:
            stay.fenced = True
        if self.bus.one_channel:
            self.fail("digest", f"station {station + 1} is fenced at position {position}", station)

    def on_turn(self, station: int, frames_sent: int) -> None:
        stay, o = self.now_in[station], self.options
        if stay is None:
            return
        core = self._core(station)
        handed, acked, preack, accepted = core.receipts()
        if not handed <= acked <= preack <= accepted:
            self.fail("levels", f"station {station + 1}: receipts {core.receipts()}", station)
        own = core.peer(station)
        if own.top - own.min_al > o.window:
            self.fail("flow", f"station {station + 1} has {own.top - own.min_al} in flight, window {o.window}", station)
        if core.dropped(Drop.WINDOW):
            self.fail("flow", f"station {station + 1} has dropped PDUs for want of a buffer", station)
        for h in range(o.stations):
            peer = core.peer(h)
            if peer.req - peer.base > o.slots:
                self.fail("flow", f"station {station + 1} keeps {peer.req - peer.base} PDUs of s{h + 1}", station)
        memory = self.stations[station].memory_bytes()
        if memory != self._memory.setdefault((station, self.boots[station]), memory):
            self.fail("bounded", f"station {station + 1} has {memory} bytes", station)
        if frames_sent > (o.slots + 16) * (o.stations + 1) and len(stay.members) > 1:
            self.fail("bounded", f"station {station + 1} has sent {frames_sent} frames in one turn", station)
        self._judge_completion(stay)

    def _judge_completion(self, stay: Stay) -> None:
        """Running in an epoch means that all had the vector on which it was agreed."""
        engine = self.stations[stay.station].engine
        assert engine is not None
        phase, epoch = engine.core.phase()
        assert isinstance(engine.medium, BusRules)
        if phase == Phase.RUN and epoch and engine.medium.reset.state is State.RUNNING:
            common = self.commons.get((stay.instance, epoch))
            if common is None:
                self.fail("epoch", f"station {stay.station + 1} runs in epoch {epoch}, on which nobody has agreed", stay.station)

    # ---- load
    def _next_in_loop(self, station: int, client: int) -> None:
        if self._budget[station][client] > 0:
            self._budget[station][client] -= 1
            self._waits[station, client + 1] = self._submit_random(station, client)

    # ---- convergence
    def _missing(self) -> str:
        up = self._up()
        if self._busy():
            return "messages not taken: " + ", ".join(f"s{s + 1}: {sum(len(q) for q in self.stations[s].queues)}" for s in up)
        stays = [self.now_in[s] for s in up]
        present = [stay for stay in stays if stay is not None]
        if len(present) < len(up):
            return "in no instance: " + ", ".join(f"s{s + 1}" for s in up if self.now_in[s] is None)
        if len({stay.instance for stay in present}) > 1 or set(present[0].members) != set(up):
            return "several instances: " + ", ".join(f"s{stay.station + 1} in {stay.instance}" for stay in present)
        for stay in present:
            for src in stay.members:
                for client, sent in self.taken.get((src, self.members[stay.instance][src]), {}).items():
                    if stay.counted.get((src, client), 0) < len(sent):
                        return f"s{stay.station + 1} has not all of s{src + 1}, program {client}"
            handed, _, _, accepted = self._core(stay.station).receipts()
            if handed < accepted or self._core(stay.station).phase()[0] != Phase.RUN:
                return f"s{stay.station + 1} is at {handed} of {accepted}"
        return ""

    def _come_to_rest(self, until: int) -> None:
        o = self.options
        settle = 2 * (o.poll_delay_max_ns + o.heartbeat_ns) + o.fail_timeout_ns
        while self._converge(until):
            instances = len(self.members)
            self.clockwork.run(self.clockwork.now + settle)
            if (not self._missing() and len(self.members) == instances) or self.clockwork.now > until:
                break
        if missing := self._missing():
            self.fail("liveness", f"{o.heal_ns / 1e9:g} s after the last fault: {missing}", *range(o.stations))

    def _outlast_copies(self, healed: int) -> None:
        """A bus brings no copies."""

    def _fall_silent(self) -> None:
        self.watching = True
        self.clockwork.run(self.clockwork.now + SILENT_INTERVALS * self.options.heartbeat_ns)
        for s in self._up():
            if not 2 * self.beats[s] >= SILENT_INTERVALS - 1 or self.beats[s] > SILENT_INTERVALS + 1:
                self.fail("silence", f"station {s + 1} sends {self.beats[s]} frames in {SILENT_INTERVALS} heartbeat intervals", s)


@dataclass(frozen=True)
class Result:
    """How a run ended; ``violation`` None: it kept every property."""

    seed: int
    options: Options
    trace_hash: str
    violation: Violation | None
    report: str
    resets: int
    cut: int
    messages: int
    instances: int

    def __reduce__(self) -> tuple[type[Result], tuple[Any, ...]]:
        """From one process to another: what is frozen and compiled can be made, but not filled in afterwards."""
        return (Result, tuple(getattr(self, f.name) for f in fields(self)))


def simulate_bus(
    seed: int,
    options: Options | None = None,
    change: Callable[[Options], Options] | None = None,
) -> Result:
    """Run one seed on a bus to its end and say how it went."""
    return once(lambda: finish_bus(BusSimulation(seed, options, change)))


def finish_bus(sim: BusSimulation) -> Result:
    """Run a simulation that has been made to its end and say how it went."""
    violation: Violation | None = None
    where = ""
    try:
        sim.run()
    except Violation as error:
        violation = error
    except Exception as error:
        violation = Violation("exception", f"{type(error).__name__}: {error}")
        where = traceback.format_exc()
    work = sim.work()
    report = ""
    if violation:
        report = "\n".join(
            [
                f"seed {sim.seed} fails: {violation}",
                f"options: {sim.options.text()}",
                *sim.trace.last(frozenset(violation.stations), 80),
                where,
            ]
        )
    return Result(
        sim.seed,
        sim.options,
        sim.trace.digest(),
        violation,
        report,
        work["resets"],
        work["pdus_cut"],
        sim.all_messages,
        len(sim.members),
    )
