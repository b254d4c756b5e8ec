"""One run: a cluster made from one seed, first with faults (safety), then healed (it must converge and fall silent)."""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from zenjun.proto import wire

from . import checkers as checking
from . import frames
from .checker import Checker, due
from .checkers import Liveness, Silence
from .collector import once
from .facts import PREACK, VIEW, Delivery, Facts, Message, Stay
from .network import Clockwork, Network, draw_below
from .options import MS, PPM_MAX, Faults, Options, draw
from .station import CLUSTER, GROUP, Clock, Host, Station
from .trace import Trace
from .violation import Violation

SILENT_INTERVALS: Final = 6
"""Heartbeat intervals of the watch for silence."""
SERIAL_BYTES: Final = 8
FRAME_MAX_MIN: Final = 512
START_SPREAD_NS: Final = 30 * MS
"""Stations are switched on within so long."""
LOAD_FROM_NS: Final = 60 * MS
PATIENCE_NS: Final = 300 * MS
"""On top of the time-outs: how long a station may take messages that the others have left behind."""
LOSS_MAX: Final = 0.02
INBOX_MIN: Final = 512
AGREE_NS: Final = 100 * MS
VOTE_SLOTS: Final = 8
"""With less loss, larger rings, more time and more buffers besides the window, stations that can reach each other must agree."""
HOOKS: Final = (
    *("opened", "changed", "closed", "crashed", "taken", "sent", "asked"),
    *("handed", "delivered", "released", "turn", "fenced"),
)


@dataclass(frozen=True)
class Result:
    """How a run ended. ``violation`` is None if it kept every property."""

    seed: int
    options: Options
    trace_hash: str
    violation: Violation | None
    report: str
    frames: int
    messages: int
    instances: int
    virtual_ns: int
    work: Counter[str]

    def __reduce__(self) -> tuple[type[Result], tuple[Any, ...]]:
        """From one process to another: what is frozen and compiled can be made, but not filled in afterwards."""
        return (Result, tuple(getattr(self, f.name) for f in fields(self)))


class Simulation(Host):
    """Stations, network, load, faults and checkers of one run; also the ``Host`` of its stations."""

    def __init__(
        self,
        seed: int,
        options: Options | None = None,
        only: Iterable[str] = (),
        change: Callable[[Options], Options] | None = None,
    ) -> None:
        """seed: of everything. options: instead of those drawn from the seed; change: applied to the drawn ones.
        only: names of the checkers to use; default all."""
        self.seed = seed
        self.rng = random.Random(seed)
        if options is None:  # else nothing is drawn, so that scenarios do not change with what the swarm draws
            options = draw(self.rng)
            options = change(options) if change is not None else options
        self.options = options
        o = self.options
        self.trace = Trace()
        self.clockwork = Clockwork()
        self.network = Network(o, self.rng, self.clockwork, self.trace, self._arrive)
        required = tuple(s - 1 for s in o.required)
        self.facts = Facts(o.stations, o.window, o.slots, o.first_seq, bool(o.need_ack), o.quorum, required, o.divided)
        if o.faults.starved >= 0 and replace(o.faults, starved=-1, starved_loss=0.0) == Faults():
            self.facts.starved = o.faults.starved
        if o.faults.memory_gap_ns:  # a look finds it, a later one ends it; a pause makes all waits begin anew
            self.facts.starving_ns = 2 * o.progress_timeout_ns + o.fail_timeout_ns
        names = tuple(only) or tuple(checking.CHECKERS)
        self.checkers: dict[str, Checker] = {n: make(self.facts) for n, make in checking.CHECKERS.items() if n in names}
        self.stations = [
            Station(self, s, Clock(self.rng.randrange(-PPM_MAX // 2, PPM_MAX // 2 + 1), self.rng.randrange(10**12)))
            for s in range(o.stations)
        ]
        self._hooks: dict[str, list[Checker]] = {
            hook: [c for c in self.checkers.values() if getattr(type(c), hook) is not getattr(Checker, hook)] for hook in HOOKS
        }
        continuity = self.checkers.get("continuity")
        f = o.faults
        if (
            isinstance(continuity, checking.Continuity)
            and max(f.loss, f.corrupt, f.truncate) <= LOSS_MAX
            and not f.burst_enter
            and f.bad_receiver < 0
            and o.inbox_frames_max >= INBOX_MIN
            and o.give_up_timeout_ns >= o.adopt_timeout_ns + AGREE_NS
            and o.slots >= o.window + VOTE_SLOTS
        ):
            # Where nobody is taken for stopped who is not, only operators can contradict each other: no agreement takes longer
            # than it takes others to adopt it.
            brief = f.only_brief_pauses(o.fail_timeout_ns // 2)
            longest = AGREE_NS if brief else o.give_up_timeout_ns
            continuity.give_up_ns = o.give_up_timeout_ns
            continuity.patience_ns = o.fail_timeout_ns + o.adopt_timeout_ns + longest
            continuity.notice_ns = 0 if brief else o.fail_timeout_ns + o.adopt_timeout_ns
        quorum = self.checkers.get("quorum")
        if isinstance(quorum, checking.Quorum):
            quorum.patience_ns = 2 * o.fail_timeout_ns + o.adopt_timeout_ns + o.give_up_timeout_ns + PATIENCE_NS
        self._serial = [[0] * o.clients for _ in range(o.stations)]
        self._budget = [[0] * o.clients for _ in range(o.stations)]
        self._awaited: list[Message | None] = [None] * (o.stations * o.clients)
        self._last_stay: list[Stay | None] = [None] * o.stations
        self._faulty_phase = True
        self._progress = 0
        self._turns = 0
        self.on_frame: Callable[[int, frames.Frame], None] | None = None
        """For scenarios: sees each frame broadcast."""
        self.on_delivery: Callable[[int, Delivery], None] | None = None
        """The same for each record delivered."""

    # ---- Host: what stations use
    def virtual_now(self) -> int:
        return self.clockwork.now

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def uniform(self, below: int) -> int:
        return draw_below(self.rng, below)

    def bits(self, count: int) -> int:
        return self.rng.getrandbits(count)

    def schedule(self, when: int, action: Callable[[], None]) -> None:
        self.clockwork.at(when, action)

    def log(self, station: int, text: str) -> None:
        self.trace.add(self.clockwork.now, station, text)

    def power_fails(self, station: int) -> bool:
        probability = self.options.faults.crash_at_persist if self._faulty_phase else 0.0
        return bool(probability) and self.chance(probability)

    def on_crash(self, station: int) -> None:
        self._touch(station)
        if (stay := self.facts.stays[station]) is not None:
            stay.crashed = True
        self._end_stay(station, False)
        self._last_stay[station] = None
        for checker in self._hooks["crashed"]:
            checker.crashed(station)
        self.facts.life[station] = 0
        self.facts.blocked_since[station] = None
        if station in self.facts.absent:
            return
        down = self.options.faults.down_ns if self._faulty_phase else 0
        self.clockwork.at(self.clockwork.now + 1 + self.rng.randrange(down + 1), lambda: self._boot(station))

    def on_running(self, station: int) -> None:
        self.facts.running_since[station] = self.clockwork.now
        self._touch(station)

    def on_read(self, station: int, pdu: bytes) -> None:
        f = frames.checked(pdu) if frames.is_of(pdu, CLUSTER, self.options.stations) else None
        if f is None or not 1 <= f.src <= self.options.stations or f.incarnation not in self.facts.lives[f.src - 1]:
            return
        if not frames.has_started(f):
            listened = frames.age_ms(f) * MS >= self.options.open_window_ns  # before, it only wants to know who has its number
            for checker in self._hooks["asked"]:
                checker.asked(station, f.src - 1, f.incarnation, f.kind == wire.Kind.RCV and listened, self.clockwork.now)

    def _touch(self, *stations: int) -> None:
        """Something has happened to these stations, or their ports: a fault begins or ends."""
        now = self.clockwork.now
        for s in stations:
            for other in range(self.options.stations):
                self._touch_link(s, other, now)
                self._touch_link(other, s, now)

    def _touch_link(self, src: int, dst: int, when: int) -> None:
        self.facts.linked_since[src, dst] = max(when, self.facts.linked_since.get((src, dst), 0))
        self.facts.hurt_ns[src, dst] = self.clockwork.now

    def on_persist(self, station: int, incarnation: int, instance: int) -> None:
        disk, facts = self.stations[station].disk, self.facts
        new_life = facts.life[station] != incarnation
        facts.life[station] = incarnation
        facts.lives[station].add(incarnation)
        facts.disk[station] = disk
        judge = self.checkers.get("instances")
        if new_life and isinstance(judge, checking.Instances):
            judge.started(station, incarnation)
        self._progress += 1

    def on_opened(self, station: int, instance: int, incarnations: tuple[int, ...], joined: bool) -> None:
        facts = self.facts
        inst = facts.instances.get(instance)
        if inst is None and joined:
            raise Violation("instances", f"station {station + 1} joins instance {instance}, which nobody has agreed", (station,))
        if inst is None:
            inst = facts.note_opened(instance, incarnations, self.clockwork.now)
        judge = self.checkers.get("instances")
        if isinstance(judge, checking.Instances):
            judge.members(inst, station, incarnations)
        facts.resolve(inst)
        facts.note_entered(station, inst)
        stay = Stay(station, facts.life[station], inst, self.stations[station], joined, began_ns=self.clockwork.now)
        for checker in self._hooks["opened"]:
            checker.opened(stay)
        self._end_stay(station, False)
        facts.stays[station] = stay
        facts.blocked_since[station] = None
        self._progress += 1

    def on_changed(self, station: int, instance: int, incarnations: tuple[int, ...]) -> None:
        facts = self.facts
        stay = facts.stays[station]
        if stay is None:
            raise Violation("instances", f"station {station + 1} changes to instance {instance} and is in none", (station,))
        before = stay.instance
        inst = facts.note_changed(before, instance, incarnations, self.clockwork.now)
        judge = self.checkers.get("instances")
        if isinstance(judge, checking.Instances):
            judge.members(inst, station, incarnations)
        reqs = {s: stay.core.peer(s) for s in inst.left}
        lives = before.incarnations  # a station may be let in again in the same breath: then this one no longer knows
        inst.hints.append({s: p.req & 0xFFFFFFFF for s, p in reqs.items() if p.incarnation == lives[s]})
        if isinstance(judge, checking.Instances):
            judge.ends(inst, station, inst.hints[-1])
        facts.resolve(inst)
        stay.instance = inst
        stay.changes += 1
        if facts.blocked_since[station] is not None:
            facts.blocked_since[station] = self.clockwork.now  # there may be quorum again; it says so when it looks next
        for checker in self._hooks["changed"]:
            checker.changed(stay, before)
        self._progress += 1

    def on_closed(self, station: int, expelled: bool) -> None:
        self._end_stay(station, expelled)
        self._progress += 1

    def on_blocked(self, station: int, quorum: bool) -> None:
        since = self.facts.blocked_since[station]
        self.facts.blocked_since[station] = None if quorum else self.clockwork.now if since is None else since

    def _end_stay(self, station: int, expelled: bool) -> None:
        stay = self.facts.stays[station]
        if stay is None:
            last = self._last_stay[station]
            if expelled and last is not None:  # while it delivers the rest: it goes without what is left of that
                last.expelled = True
            return
        self.facts.now_ns = self.clockwork.now
        stay.ended = True
        stay.expelled = expelled
        for checker in self._hooks["closed"]:
            checker.closed(stay)
        self._last_stay[station] = stay
        self.facts.past.append(stay)
        self.facts.stays[station] = None
        for client in range(self.options.clients):  # the closed loop goes on: the fate of what the core had taken is open
            message = self._awaited[station * self.options.clients + client]
            if message is not None and message.life:
                self._awaited[station * self.options.clients + client] = None
                self._next_in_loop(station, client)

    def on_broadcast(self, station: int, pdu: bytes) -> None:
        try:
            f = frames.parse(pdu)
        except ValueError as error:
            raise Violation(
                "well_formed", f"station {station + 1} sends a PDU that cannot be read: {error}", (station,)
            ) from None
        if len(pdu) > self.options.frame_max[station]:
            raise Violation(
                "well_formed",
                f"station {station + 1} sends {len(pdu)} bytes, its frame_max is {self.options.frame_max[station]}",
                (station,),
            )
        fresh = self._note_frame(station, f)
        number = self.network.sent + 1
        relayed = "" if f.src == station + 1 else f" of s{f.src}"
        too_long = len(pdu) > self.stations[station].mtu
        self.log(station, f"send #{number} {frames.text(f)}{relayed}{' (longer than the MTU)' if too_long else ''}")
        for checker in self._hooks["sent"]:
            checker.sent(station, f, fresh, self.clockwork.now)
        if self.on_frame is not None:
            self.on_frame(station, f)
        if not too_long:
            self.network.send(station, pdu, self.stations[station].mac)

    def work(self) -> Counter[str]:
        """Counters of all cores of all lives; once, at the end."""
        total: Counter[str] = Counter()
        for station in self.stations:
            station.count_work()
            total.update(station.work)
        for stay in self.facts.all_stays():
            total["stays joined" if stay.joined else "stays opened"] += 1
            total["stays changed"] += stay.changes
            if stay.ended and not stay.crashed:
                total["stays expelled" if stay.expelled else "stays given up"] += 1
        return total

    def _note_frame(self, station: int, f: frames.Frame) -> bool:
        try:
            fresh = self.facts.note_frame(f)
        except ValueError as error:
            raise Violation("well_formed", f"station {station + 1} sends {frames.text(f)}: {error}", (station,)) from None
        stay = self.facts.stays[station]
        if fresh and f.kind in wire.PROPOSALS and stay is not None:
            self.facts.resolve(stay.instance)
        return fresh

    def on_taken(self, message: Message) -> None:
        stay = self.facts.stays[message.station]
        if stay is None:
            text = f"station {message.station + 1} takes a message in no instance"
            raise Violation("instances", text, (message.station,))
        self.facts.note_taken(message)
        self.log(message.station, f"taken {message.name()}")
        for checker in self._hooks["taken"]:
            checker.taken(stay, message, self.clockwork.now)
        self._progress += 1

    def on_deliveries(self, station: int, records: list[Delivery]) -> None:
        for record in records:
            stay = self._stay_of(station, record)
            number = None if record.type == VIEW else self.facts.contents.get(record.place)
            early = record.op == 1
            if early and number is None and record.src == station and stay.ended:
                # Accepted at home, but the end of the instance came before its PDU had left: by its turn it is the next one.
                handed = stay.handed.get((stay.lives, record.client), [])
                number = (stay.life, record.client, True, handed[-1] + 1 if handed else 0)
            if early:
                for checker in self._hooks["handed"]:
                    checker.handed(stay, record, number)
            else:
                for checker in self._hooks["delivered"]:
                    checker.delivered(stay, record, number)
            if not early:
                stay.records.append(record)
                stay.numbers.append(number)
            elif number is not None:
                stay.handed.setdefault(((record.src, number[0]), record.client), []).append(number[3])
            self.log(station, f"deliver {record.name()}")
            if self.on_delivery is not None:
                self.on_delivery(station, record)
            if record.type == VIEW:  # what it stands behind may have been released before it came
                self._release(stay, tuple(stay.positions))
        self._progress += 1

    def _stay_of(self, station: int, record: Delivery) -> Stay:
        """The stay a record belongs to: what was in order when an instance ended may come after the next has begun."""
        stay, last = self.facts.stays[station], self._last_stay[station]
        if stay is not None and (last is None or stay.records):
            return stay
        if stay is None:
            if last is None:
                raise Violation("instances", f"station {station + 1} delivers {record.name()} and is in no instance", (station,))
            return last
        assert last is not None
        if record.type == VIEW:
            return stay if frames.view(record.data).instance + stay.joined > stay.first.number else last
        if record.op == 1:  # on acceptance, which tells the life that accepted it
            source = self.facts.sent.get((record.clock, record.src))
            if source is None:
                return last
            incarnation, _, instance = source  # its source may have been removed before there was memory for it
            return stay if stay.instance.has(record.src, incarnation) or instance >= stay.first.number else last
        return last if stay.joined or record.clock >> 32 < stay.first.number else stay

    def on_positions(self, station: int, positions: tuple[int, int, int]) -> None:
        stay = self.facts.stays[station] or self._last_stay[station]
        if stay is None:
            return
        old = tuple(stay.positions)
        stay.positions = list(positions)
        self.log(station, f"positions {positions}")
        self._release(stay, old)
        self._progress += 1

    def _release(self, stay: Stay, old: tuple[int, ...]) -> None:
        """Records whose position has been passed, at each level, and who is to judge them."""
        new = stay.positions
        passed = [due(stay, level, new[level]) for level in range(3)]
        for level in range(3):
            if new[level] != old[level] or passed[level]:
                for checker in self._hooks["released"]:
                    checker.released(stay, level, old[level], new[level])
        for level, released in enumerate(passed):
            if released:
                stay.released[level] = released[-1] + 1
            if level == PREACK:
                self._loop_released(stay, released)

    def on_fenced(self, station: int, position: int) -> None:
        self.facts.fences.append((station, position))
        stay = self.facts.stays[station]
        if stay is not None:
            stay.fenced = True
        for checker in self._hooks["fenced"]:
            checker.fenced(station, position)

    def on_refused(self, station: int, text: str) -> None:
        raise Violation("liveness", f"station {station + 1} refuses to run: {text}", (station,))

    def on_turn(self, station: int, frames_sent: int) -> None:
        self._turns += 1
        stay = self.facts.stays[station]
        if stay is not None and (self._turns % 8 == 0 or frames_sent > 64):
            if self.facts.starving_ns:
                self.facts.now_ns = self.clockwork.now
            core, judges = self.stations[station], self._hooks["turn"]
            peers = [core.peer(h) for h in range(self.options.stations)] if judges else []
            for checker in judges:
                checker.turn(stay, peers, frames_sent)

    def _arrive(self, station: int, pdu: bytes, mac: bytes) -> None:
        self.stations[station].arrive(pdu, mac)

    # ---- load
    def submit(
        self, station: int, client: int, size: int, need_ack: bool = False, group: int = GROUP, op: bool = False
    ) -> Message:
        """A program (client 0.. of the station) hands over a message of ``size`` bytes; its content names it if there is room."""
        serial = self._serial[station][client]
        self._serial[station][client] += 1
        head = bytes((station, client)) + serial.to_bytes(SERIAL_BYTES - 2, "big")
        data = (head + self.rng.randbytes(max(0, size - SERIAL_BYTES)))[:size]
        message = Message(station, client + 1, serial, group, int(wire.MessageType.USER), need_ack, data, op)
        self.stations[station].submit(message)
        return message

    def _submit_random(self, station: int, client: int) -> Message:
        o = self.options
        need_ack = self.chance(o.need_ack) if o.need_ack else False
        op = self.chance(o.op) if o.op else False
        return self.submit(station, client, self.rng.choice(o.sizes), need_ack, op=op)

    def _next_in_loop(self, station: int, client: int) -> None:
        """Closed loop: the next message once the last has been released at preack."""
        at = station * self.options.clients + client
        if self._budget[station][client] > 0 and self._awaited[at] is None:
            self._budget[station][client] -= 1
            self._awaited[at] = self._submit_random(station, client)

    def _loop_released(self, stay: Stay, released: list[int]) -> None:
        """The closed loop goes on with what was released at level preack."""
        if self.options.load != "closed":
            return
        s = stay.station
        for at in released:
            number = stay.numbers[at]
            if number is None or stay.records[at].src != s:
                continue
            slot = s * self.options.clients + number[1] - 1
            message = self._awaited[slot]
            if message is not None and (message.life, message.client, message.op, message.number) == number:
                self._awaited[slot] = None
                self._next_in_loop(s, message.client - 1)

    def _plan_load(self) -> None:
        o, rng = self.options, self.rng
        last = max(LOAD_FROM_NS + 1, o.safety_ns - 20 * MS)

        def later(when: int, station: int, client: int) -> None:
            self.clockwork.at(when, lambda: void(self._submit_random(station, client)))

        def anyone() -> tuple[int, int]:
            return rng.randrange(o.stations), rng.randrange(o.clients)

        if o.load == "all_at_once":
            for _ in range(o.messages):
                later(LOAD_FROM_NS, *anyone())
        elif o.load == "single":
            s = rng.randrange(o.stations)
            for _ in range(o.messages):
                later(rng.randrange(LOAD_FROM_NS, last), s, rng.randrange(o.clients))
        elif o.load == "bursts":
            left = o.messages
            while left > 0:
                size = min(left, rng.choice((1, 5, 20)))
                left -= size
                when, who = rng.randrange(LOAD_FROM_NS, last), anyone()
                for _ in range(size):
                    later(when, *who)
        elif o.load == "steady":
            for k in range(o.messages):
                later(LOAD_FROM_NS + (last - LOAD_FROM_NS) * k // o.messages, *anyone())
        elif o.load == "closed":
            for s in range(o.stations):
                for c in range(o.clients):
                    self._budget[s][c] = max(1, o.messages // (o.stations * o.clients))
                    self.clockwork.at(LOAD_FROM_NS, lambda s=s, c=c: self._next_in_loop(s, c))  # type: ignore[misc]

    # ---- faults
    def _boot(self, station: int) -> None:
        if self.stations[station].engine is None and station not in self.facts.absent:
            self.stations[station].boot()

    def _plan_faults(self) -> None:
        f = self.options.faults
        for gap, act in (
            (f.garbage_gap_ns, self.network.garbage),
            (f.pause_gap_ns, self._pause),
            (f.cut_gap_ns, self._cut),
            (f.partition_gap_ns, self._partition),
            (f.flap_gap_ns, self._flap),
            (f.restart_gap_ns, self._restart),
            (f.expel_gap_ns, self._expel),
            (f.mtu_gap_ns, self._mtu),
            (f.memory_gap_ns, self._without_memory),
        ):
            if gap:
                self._repeat(gap, act)
        if f.starved >= 0:
            self._starve(f.starved)

    def _repeat(self, gap: int, act: Callable[[], None]) -> None:
        def again() -> None:
            if self._faulty_phase:
                act()
                self._repeat(gap, act)

        self.clockwork.at(self.clockwork.now + 1 + int(self.rng.expovariate(1 / gap)), again)

    def _starve(self, station: int) -> None:
        """The station runs for a while of each period, until the network heals."""
        f = self.options.faults
        if not self._faulty_phase:
            return
        starving = self.stations[station]
        if starving.engine is not None:
            starving.pause()
            self._touch(station)
        self.clockwork.at(self.clockwork.now + f.starved_every_ns - f.starved_run_ns, starving.resume)
        self.clockwork.at(self.clockwork.now + f.starved_every_ns, lambda: self._starve(station))

    def _pause(self) -> None:
        station = self.stations[self.rng.randrange(self.options.stations)]
        if station.engine is not None and not station.paused:
            station.pause()
            self._touch(station.index)
            self.clockwork.at(self.clockwork.now + 1 + self.rng.randrange(self.options.faults.pause_ns), station.resume)

    def _cut(self) -> None:
        n = self.options.stations
        if n < 2:
            return
        src = self.rng.randrange(n)
        dst = (src + 1 + self.rng.randrange(n - 1)) % n
        cut = (src, dst)
        self.network.cuts.add(cut)
        self.log(-1, f"cut s{src + 1} -> s{dst + 1}")
        until = self.clockwork.now + 1 + self.rng.randrange(self.options.faults.cut_ns)
        self._touch_link(src, dst, until)
        self.clockwork.at(until, lambda: self.network.cuts.discard(cut))

    def _partition(self) -> None:
        island = frozenset(s for s in range(self.options.stations) if self.rng.random() < 0.5)
        if self.network.island:
            self._touch(*self.network.island)
        self.network.island = island
        self.log(-1, f"partition {sorted(s + 1 for s in island)}")
        until = self.clockwork.now + 1 + self.rng.randrange(self.options.faults.partition_ns)
        for s in range(self.options.stations):
            for other in range(self.options.stations):
                if (s in island) != (other in island):
                    self._touch_link(s, other, until)

        def join() -> None:
            if self.network.island is island:
                self.network.island = frozenset()

        self.clockwork.at(until, join)

    def _flap(self) -> None:
        station = self.rng.randrange(self.options.stations)
        self.network.ports_down.add(station)
        self.log(-1, f"port of s{station + 1} down")

        def up() -> None:
            self.network.ports_down.discard(station)
            self.log(-1, f"port of s{station + 1} up")

        until = self.clockwork.now + 1 + self.rng.randrange(self.options.faults.flap_ns)
        for other in range(self.options.stations):
            self._touch_link(station, other, until)
            self._touch_link(other, station, until)
        self.clockwork.at(until, up)

    def _expel(self) -> None:
        """An operator somewhere wants some station out."""
        n = self.options.stations
        if n > 1:
            asked = self.rng.randrange(n)
            if self.stations[asked].expel((asked + 1 + self.rng.randrange(n - 1)) % n):
                self.facts.expels.append(self.clockwork.now)

    def _restart(self) -> None:
        station = self.stations[self.rng.randrange(self.options.stations)]
        if station.engine is not None:
            if not station.paused and self.chance(0.4):
                station.leave()
            else:
                station.crash()

    def _without_memory(self) -> None:
        """A system has no memory for large messages for a while."""
        station = self.stations[self.rng.randrange(self.options.stations)]
        if station.without_memory:
            return
        station.refuse_memory(True)
        until = self.clockwork.now + 1 + self.rng.randrange(self.options.faults.memory_ns)
        self.clockwork.at(until, lambda: station.refuse_memory(False))

    def _mtu(self) -> None:
        """An interface carries less for a while: its daemon is told, frames already under way are not."""
        station = self.stations[self.rng.randrange(self.options.stations)]
        station.set_mtu(self.rng.choice((FRAME_MAX_MIN, 600, 1000)))
        before = self.options.frame_max[station.index]
        until = self.clockwork.now + 1 + self.rng.randrange(self.options.faults.mtu_ns)
        for other in range(self.options.stations):
            self._touch_link(station.index, other, until)
            self._touch_link(other, station.index, until)
        self.clockwork.at(until, lambda: station.set_mtu(before))

    # ---- phases
    def start(self) -> None:
        """Switch the stations on."""
        for s in range(self.options.stations):
            self.clockwork.at(self.rng.randrange(START_SPREAD_NS), lambda s=s: self._boot(s))  # type: ignore[misc]

    def run(self) -> None:
        """The whole run. Raises ``Violation``, or whatever else an engine raises: both are failures."""
        o = self.options
        self.start()
        self._plan_load()
        self._plan_faults()
        self.clockwork.run(o.safety_ns)
        self._heal()
        healed = self.clockwork.now
        self._come_to_rest(healed + o.heal_ns)
        self._outlast_copies(healed)
        self._fall_silent()

    def _heal(self) -> None:
        self._faulty_phase = False
        self.network.heal()
        self._touch(*range(self.options.stations))
        self._choose_absent()
        self.log(-1, f"healed, absent: {sorted(s + 1 for s in self.facts.absent)}")
        for s in self.facts.divided:  # their files are made equal, and they start again
            self.stations[s].mended = True
            if self.stations[s].engine is not None:
                self.stations[s].crash()
        self.facts.divided = frozenset()
        for station in self.stations:
            if station.index in self.facts.absent:
                if station.engine is not None:
                    station.crash()
                continue
            station.resume()
            if station.without_memory:
                station.refuse_memory(False)
            station.set_mtu(self.options.frame_max[station.index])
            if station.engine is None:
                self._boot(station.index)
        for s in self._up():
            for _ in range(self.options.final_messages):
                self._submit_random(s, 0)

    def _choose_absent(self) -> None:
        """As many as wanted, as long as those who are left have a quorum."""
        facts = self.facts
        for s in self.rng.sample(range(self.options.stations), self.options.stations):
            left = set(range(self.options.stations)) - facts.absent - {s}
            if len(facts.absent) < self.options.absent and left and facts.quorum(left):
                facts.absent.add(s)

    def _up(self) -> list[int]:
        return [s for s in range(self.options.stations) if s not in self.facts.absent]

    def _busy(self) -> bool:
        return any(any(self.stations[s].queues) or any(b > 0 for b in self._budget[s]) for s in self._up())

    def _missing(self) -> str:
        if self._busy():
            waiting = [f"s{s + 1}: {sum(len(q) for q in self.stations[s].queues)}" for s in self._up()]
            return Liveness(self.facts).missing() or "messages not taken by their daemons: " + ", ".join(waiting)
        return Liveness(self.facts).missing()

    def _converge(self, until: int) -> bool:
        """Let time pass until everything is delivered everywhere; False if it never is."""
        seen = -1

        def done() -> bool:
            nonlocal seen
            if self._progress == seen:
                return False
            seen = self._progress
            return not self._missing()

        return done() or self.clockwork.run(until, done)

    def _come_to_rest(self, until: int) -> None:
        """Converged, and still so once every time-out that was running then has had its time: a station may have all, and be as
        good as removed for what happened before."""
        o = self.options
        settle = 2 * (o.poll_delay_max_ns + o.nak_retry_max_ns + o.heartbeat_ns) + o.fail_timeout_ns + o.give_up_timeout_ns
        while self._converge(until):
            instances = len(self.facts.instances)
            self.clockwork.run(self.clockwork.now + settle)
            if not self._missing() and len(self.facts.instances) == instances:
                break
            if self.clockwork.now > until:
                break
        judge = self.checkers.get("liveness")
        if isinstance(judge, Liveness):
            judge.judge(self._missing(), o.heal_ns)
        for checker in self.checkers.values():
            checker.converged()

    def _outlast_copies(self, healed: int) -> None:
        """Let the last copies of old frames arrive. One of them may be the request of a station that is gone: it is let in and
        removed again, and who is left comes to rest once more, in the time that healing has."""
        o = self.options
        instances = len(self.facts.instances)
        latest = o.faults.replay_ns if o.faults.replay else o.faults.reorder_ns + 2 * o.port_queue_ns
        self.clockwork.run(max(self.clockwork.now, healed + latest))
        if self._missing() or len(self.facts.instances) != instances:
            self._come_to_rest(self.clockwork.now + o.heal_ns)

    def _fall_silent(self) -> None:
        """Nothing but heartbeats, for some intervals."""
        o = self.options
        judge = self.checkers.get("silence")
        if not isinstance(judge, Silence):
            return
        judge.watching = True
        self.clockwork.run(self.clockwork.now + SILENT_INTERVALS * o.heartbeat_ns)
        judge.judge(SILENT_INTERVALS)


def void(_: object) -> None:
    """For lambdas that must return nothing."""


def simulate(
    seed: int, options: Options | None = None, only: Iterable[str] = (), change: Callable[[Options], Options] | None = None
) -> Result:
    """Run one seed to its end and say how it went."""
    return once(lambda: finish(Simulation(seed, options, only, change)))


def finish(sim: Simulation) -> Result:
    """Run a simulation that has been made to its end and say how it went."""
    violation: Violation | None = None
    where = ""
    try:
        sim.run()
    except Violation as error:
        violation = error
    except Exception as error:  # an engine must not raise for anything the network or its programs do
        violation = Violation("exception", f"{type(error).__name__}: {error}")
        where = traceback.format_exc()
    return Result(
        sim.seed,
        sim.options,
        sim.trace.digest(),
        violation,
        _report(sim, violation, where) if violation else "",
        sim.network.sent,
        sum(len(taken) for stream in sim.facts.streams.values() for taken in stream.taken.values()),
        len(sim.facts.instances),
        sim.clockwork.now,
        sim.work(),
    )


def _report(sim: Simulation, violation: Violation, where: str, lines_max: int = 60) -> str:
    out = [
        f"seed {sim.seed} fails: {violation}",
        f"at {sim.clockwork.now / 1e6:.6f} ms of virtual time, {sim.network.sent} frames sent, trace {sim.trace.digest()}",
        f"options: {sim.options.text()}",
    ]
    for s, stay in enumerate(sim.facts.stays):
        what = "down" if sim.stations[s].engine is None else "opening" if stay is None else f"in instance {stay.instance.number}"
        if stay is not None:
            what += f" of {[m + 1 for m in stay.instance.members]}, positions {stay.positions}, {len(stay.records)} records"
            what += f", req {[stay.core.peer(h).req for h in range(sim.options.stations)]}"
        out.append(f"  s{s + 1} (incarnation {sim.facts.life[s]}) {what}")
    out.append(f"last lines of {sorted(s + 1 for s in violation.stations) or 'all'}:")
    out += sim.trace.last(frozenset(violation.stations), lines_max)
    if where:
        out.append(where)
    out.append(f"replay: python -m tests.sim --seed {sim.seed}")
    return "\n".join(out)
