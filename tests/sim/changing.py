"""Clusters that change their configuration while they run, crash, and fall apart: real engines, each with a ``Changing``.

Virtual time. What decides is the product's (``proto/changing.py``, ``proto/reconfiguring.py``, the engine); the driver around it
is this file's, as ``daemon/confighost.py`` is the daemon's. Changes of roster and quorum are asked for anywhere, stations lose
power at and between durable writes, the segment loses frames and falls apart. The checks are ``Checks``; broken variants in
``broken_changing.py``.
"""

from __future__ import annotations

import json
import random
import sys
import zlib
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from zenjun.proto.changing import Changing, Hold, Keep, Said, Stand, Tell
from zenjun.proto.configmessages import ConfigMessage, Say
from zenjun.proto.core import Message
from zenjun.proto.effects import Changed, Closed, Opened, Persist, Send
from zenjun.proto.engine import Engine
from zenjun.proto.engineconfig import EngineConfig, make_quorum
from zenjun.proto.errors import UsageError
from zenjun.proto.gathering import Gathering
from zenjun.proto.reconfiguring import Outcome, Reconfiguring, members_of
from zenjun.proto.service.base import decode_view
from zenjun.proto.wire import MessageType

from ..virtual.engines import CONFIG
from ..virtual.segment import MS, NEVER, Segment
from .histories import run_seeds
from .violation import Violation

LATENCY_NS: Final = 100_000
N: Final = 5
"""Machines. Station k is on machine k."""
SEND_GAP_NS: Final = 15 * MS
STORM_NS: Final = 12_000 * MS
QUIET_NS: Final = 15_000 * MS
JOIN: Final = b"\0 into the group"
"""Said by a daemon in each instance: its program is a member of the one group that there is."""


Line: TypeAlias = tuple[int, tuple[int, ...]]
"""An instance that was opened, and those that have followed it by votes: its number and members."""


class PowerFails(Exception):
    """In the middle of what the station does."""


@dataclass(frozen=True)
class Options:
    """Of a configuration, as bytes: what is not at its default."""

    stations: int
    vacant: tuple[int, ...] = ()
    quorum: int = 0
    required: tuple[int, ...] = ()
    heartbeat: int = 0

    def packed(self) -> bytes:
        return json.dumps({k: v for k, v in vars(self).items() if v}, sort_keys=True).encode()

    @classmethod
    def read(cls, data: bytes) -> Options:
        found: dict[str, Any] = json.loads(data)
        named: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
        return cls(**named)

    @property
    def roster(self) -> frozenset[int]:
        return frozenset(range(1, self.stations + 1)) - set(self.vacant)


def engine_config(station: int, number: int, data: bytes, former: bytes | None, **more: Any) -> EngineConfig:
    """As the daemon makes it. With a former configuration, the stations of both are listed."""
    options = Options.read(data)
    roster = options.roster | (Options.read(former).roster if former is not None else frozenset())
    stations = max(roster)
    about = (number, data.decode(), sorted(roster), station in roster or station)
    own = plain(station, options)
    return replace(
        own,
        stations=max(stations, station),
        vacant=tuple(sorted(set(range(1, max(stations, station) + 1)) - roster)),
        quorum=options.quorum or len(options.roster) // 2 + 1,
        required=options.required,
        outside=station not in roster,
        number=number,
        options=data,
        both=tuple(make_quorum(plain(1, each)) for each in (options, Options.read(former))) if former is not None else (),
        fingerprint=zlib.crc32(repr(about).encode()) if number or station not in roster else zlib.crc32(data),
        **more,
    )


def plain(station: int, options: Options) -> EngineConfig:
    """The engine's settings by these options alone."""
    return replace(
        CONFIG,
        stations=options.stations,
        station=station,
        vacant=options.vacant,
        quorum=options.quorum,
        required=options.required,
        window_frames=16,
        host_name=f"host{station}",
    )


class Machine:
    """A machine with a disk, and with a daemon while it has power."""

    def __init__(self, world: World, station: int, file: Options) -> None:
        self.world = world
        self.station = station
        self.file = file.packed()
        self.disk: dict[str, Any] = {"numbers": (0, 0), "stand": None, "ran": False}
        self.mac = bytes((2, 0, 0, 0, 0, station))
        self.on = False
        self.boots = 0
        self.sent: list[bytes] = []
        self.outbox: deque[bytes] = deque()
        self.is_mute = False
        """It puts no program into a group, and does not say READY: what its data path takes of daemons it does not send."""
        self.is_full = False
        """Its disk has no room for a mark."""
        self.held = False
        self.instance = 0
        self.line: Line = (0, ())
        self.waits: deque[Message] = deque()
        self.said: list[str] = []
        self.gathering = Gathering()
        self.whole = False
        """V7 was kept in this instance: what its program sends must reach the programs of all members."""
        self.group: set[int] = set()
        """Stations whose programs are in the group, at the place that was delivered last."""
        self.members: frozenset[int] = frozenset()
        """Those that have been in this instance from its beginning, at that place."""

    # ---- power
    def boot(self) -> None:
        world, parts = self.world, self.world.parts
        self.boots += 1
        self.on = True
        stand = parts.stand(self.disk["stand"], Stand(0, self.file)) if self.disk["stand"] else Stand(0, self.file)
        self.changing = parts.changing(
            self.station, stand, newcomer=not self.disk["ran"] and not stand.number, unfit=lambda data: ""
        )
        incarnation, instance = self.disk["numbers"]
        c = self.changing
        config = self.settings(c.number, c.options, c.joint)
        self.boot_number = world.rng.getrandbits(60)
        engine = parts.engine(replace(config, boot=self.boot_number), incarnation=incarnation + 1, instance=instance)
        engine.set_mac(self.mac)
        self.both = parts.reconfiguring(engine, c, self.settings)
        self.sent.clear()
        self.outbox.clear()
        self.waits.clear()
        self.held, self.instance = False, 0
        self.gathering = parts.gathering()
        world.log(f"s{self.station} boots: configuration {c.number} {c.options.decode()}{' joint' if c.joint else ''}")
        self.act(lambda now: self.both.follow(now, engine.start(now)))

    def settings(self, number: int, options: bytes, former: bytes | None) -> EngineConfig:
        former = self.world.parts.former(former)
        return replace(engine_config(self.station, number, options, former), boot=getattr(self, "boot_number", 0))

    def fail(self) -> None:
        self.world.log(f"s{self.station} loses power")
        self.on = False
        self.sent.clear()

    # ---- the driver
    @property
    def engine(self) -> Engine:
        return self.both.engine

    def act(self, step: Any) -> None:
        """Do something, and what follows from it; unless the power fails in between."""
        try:
            self.apply(step(self.world.now))
            for _ in range(100):
                if not self.drain():
                    break
        except PowerFails:
            self.fail()

    def drain(self) -> bool:
        now, core = self.world.now, self.engine.core
        for message in core.deliver():
            if message.type == MessageType.USER:
                self.world.checks.reaches(self, message)
                self.waits.append(message)
            elif message.type == MessageType.VIEW:
                view = decode_view(message.data)
                self.members &= set(view.members)
                self.group &= set(view.members)
                self.gathering.members(view.members)
                self.both.on_view(message.position, view.instance, view.members)
            elif message.data == JOIN:
                self.group.add(message.src + 1)
            elif (said := ConfigMessage.read(message.data)) is not None and said.say is Say.READY:
                self.gathering.ready(message.src + 1)
            else:
                self.both.on_message(message.position, message.clock, message.src + 1, message.data)
        preack = core.positions().preack
        while self.waits and self.waits[0].position < preack:
            self.world.checks.released(self, self.waits.popleft())
        before = len(self.sent)
        if self.gathering.look(now):
            self.whole = False
        self.apply(self.both.look(now))
        while self.outbox and self.engine.offer(now, 0, 0, MessageType.SERVICE, self.outbox[0]):
            self.outbox.popleft()
        self.sent += self.engine.core.tx(now)
        return len(self.sent) != before

    def apply(self, outcomes: list[Outcome]) -> None:
        world, parts = self.world, self.world.parts
        instead: Tell | None = None
        for outcome in outcomes:
            match outcome:
                case Persist(incarnation, instance):
                    self.durable("numbers", (incarnation, instance))
                case Keep(stand, is_mark):
                    if is_mark and self.is_full:
                        instead = parts.unmarked(self.changing)
                        continue
                    if parts.durable(stand):
                        self.durable("stand", stand)
                    world.checks.stands(self, stand)
                case Send(pdu):
                    self.sent.append(pdu)
                case Opened():
                    self.waits.clear()
                    self.outbox.clear()
                    self.held, self.instance = False, outcome.instance
                    self._gathers(outcome)
                    key = outcome.instance, outcome.incarnations
                    self.line = world.checks.lines.setdefault(key, key)
                    self.durable("ran", True)
                    world.log(f"s{self.station} opened {outcome.instance} of {outcome.incarnations} joined={outcome.joined}")
                case Changed():
                    world.checks.lines[outcome.instance, outcome.incarnations] = self.line
                case Closed():
                    self.gathering.end()
                    self.outbox.clear()
                    self.instance = 0
                    world.log(f"s{self.station} closed {outcome.instance}: {outcome.reason}")
                case Tell(data):
                    self.outbox.append(data if instead is None else instead.data)
                    instead = None
                case Hold(yes):
                    self.held = yes
                case Said(text):
                    self.said.append(text)
                    world.log(f"s{self.station}: {text}")
                case _:
                    pass

    def _gathers(self, opened: Opened) -> None:
        """As the daemon does."""
        members = members_of(opened.incarnations)
        self.group, self.members = set(), frozenset() if opened.joined else frozenset(members)
        self.whole = bool(self.changing.number) and not opened.joined
        self.gathering.end()
        if self.whole:
            self.gathering.begin(self.world.now, members)
        if self.is_mute:
            return
        self.outbox.append(JOIN)
        if self.whole:
            self.outbox.append(ConfigMessage(Say.READY, self.changing.number).packed())

    def durable(self, what: str, value: Any) -> None:
        """Power may fail before the write, and after it. What the programs do goes on in between nowhere."""
        decided = what == "stand" and value.number > 0
        if self.world.power_fails() or (decided and self.station in self.world.doomed):
            raise PowerFails
        if what == "numbers" and value[0] < self.disk[what][0]:
            raise Violation("numbers", f"s{self.station} goes back from life {self.disk[what][0]} to {value[0]}")
        self.disk[what] = value
        if self.world.power_fails():
            raise PowerFails

    def offer(self) -> None:
        """A program sends, if the daemon takes it."""
        if self.on and self.instance and not self.held and not self.gathering.holds:
            data = self.world.checks.new(self)
            if self.engine.offer(self.world.now, 1, 1, MessageType.USER, data):
                self.world.checks.taken(self, data)
                self.act(lambda now: self.both.follow(now, self.engine.on_frames(now, [])))

    def propose(self, options: Options) -> bool:
        if not self.on:
            return False
        try:
            outcomes = self.both.propose(options.packed())
        except UsageError as error:
            self.world.log(f"s{self.station} refuses: {error}")
            return False
        self.world.log(f"s{self.station} proposes {options.packed().decode()}")
        self.act(lambda now: [*outcomes, *self.both.follow(now, self.engine.on_frames(now, []))])
        return True

    # ---- as the segment sees it
    def collect(self) -> list[bytes]:
        sent, self.sent = self.sent, []
        return sent if self.on else []

    def on_frames(self, now: int, batch: list[tuple[bytes, bytes]]) -> None:
        if self.on and batch:
            self.act(lambda now: self.both.follow(now, self.engine.on_frames(now, batch)))

    def next_deadline_ns(self) -> int:
        return self.engine.next_deadline_ns() if self.on else NEVER

    def on_timeout(self, now: int) -> None:
        if self.on:
            self.act(lambda now: self.both.follow(now, self.engine.on_timeout(now)))


@dataclass
class Checks:
    """What must hold. Raises ``Violation``."""

    world: World
    orders: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    begun: dict[bytes, tuple[Line, int]] = field(default_factory=dict)
    """Message: the line that its sender was in, and time at which it was taken."""
    whole: dict[bytes, bool] = field(default_factory=dict)
    """Message: whether it must reach the programs at all members (V7)."""
    lines: dict[Line, Line] = field(default_factory=dict)
    """Instance and its members: the number of the one that was opened, and has led to it by votes."""
    first: dict[Line, int] = field(default_factory=dict)
    """Line: when something taken in it was released first."""
    last: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    options: dict[int, bytes] = field(default_factory=dict)
    count: int = 0
    confirmed: int = 0

    def new(self, machine: Machine) -> bytes:
        self.count += 1
        return f"{machine.station} {machine.boots} {self.count}".encode()

    def taken(self, machine: Machine, data: bytes) -> None:
        self.begun[data] = machine.line, self.world.now
        self.whole[data] = machine.whole

    def released(self, machine: Machine, message: Message) -> None:
        """At level preack, to a program of the machine."""
        place = message.clock, message.src, message.index
        if self.orders.setdefault(place, message.data) != message.data:
            raise Violation("agreement", f"place {place} has {message.data!r} and {self.orders[place]!r}")
        life = machine.station, machine.boots
        if self.last.get(life, (-1, 0, 0)) >= place:
            raise Violation("order", f"s{machine.station} releases {place} after {self.last[life]}")
        self.last[life] = place
        line, at = self.begun[message.data]
        later = [k for k, when in self.first.items() if k != line and k[0] >= line[0] and when < at]
        if later:
            raise Violation(
                "two parts", f"{message.data!r} was sent in the line of {line}, and that of {later[0]} had begun to release"
            )
        self.first.setdefault(line, self.world.now)
        self.confirmed += message.src + 1 == machine.station

    def reaches(self, machine: Machine, message: Message) -> None:
        """Delivered: to the programs that are in the group at this place."""
        if missing := machine.members - machine.group if self.whole.get(message.data) else ():
            raise Violation("group", f"{message.data!r} does not reach the programs at {sorted(missing)}")

    def stands(self, machine: Machine, stand: Stand) -> None:
        """One configuration has a number."""
        if stand.number and self.options.setdefault(stand.number, stand.options) != stand.options:
            raise Violation("configuration", f"number {stand.number} is {stand.options!r} and {self.options[stand.number]!r}")


@dataclass(frozen=True)
class Parts:
    """What machines are made of; a broken variant has another part in one place."""

    changing: type[Changing] = Changing
    engine: type[Engine] = Engine
    reconfiguring: type[Reconfiguring] = Reconfiguring
    gathering: type[Gathering] = Gathering

    def stand(self, disk: Stand, file: Stand) -> Stand:
        """What a station starts with that has both."""
        return disk

    def durable(self, stand: Stand) -> bool:
        """Whether it reaches the disk."""
        return True

    def unmarked(self, changing: Changing) -> Tell | None:
        """What a station says in place of PREPARED whose disk is full."""
        return changing.unmarked("no space left on its disk")

    def former(self, options: bytes | None) -> bytes | None:
        """The configuration of which a quorum is needed as well."""
        return options


class World(Segment[Machine]):
    """A cluster from a seed."""

    def __init__(self, seed: int, parts: Parts | None = None, first: Options | None = None) -> None:
        self.rng = random.Random(seed)
        self.parts = parts or Parts()
        self.lines: deque[str] = deque(maxlen=400)
        self.first = first or self.rng.choice(
            (Options(3), Options(3), Options(5), Options(2), Options(2, quorum=1, required=(1,)))
        )
        self.checks = Checks(self)
        self.failing = 0.0
        self.doomed: frozenset[int] = frozenset()
        """They lose power before what is decided is durable."""
        self.loss = 0.0
        self.island: frozenset[int] = frozenset()
        machines = [Machine(self, k, self.first) for k in range(1, N + 1)]
        super().__init__(machines, now=1_000_000 * MS, latency_ns=LATENCY_NS)
        self.lost = self._is_lost
        self.at: list[tuple[int, Any]] = []

    def log(self, text: str) -> None:
        self.lines.append(f"{(self.now - 1_000_000 * MS) / 1e6:9.1f} {text}")

    def power_fails(self) -> bool:
        return self.failing > 0 and self.rng.random() < self.failing

    def _is_lost(self, source: Machine, to: Machine, pdu: bytes) -> bool:
        apart = (source.station in self.island) != (to.station in self.island)
        return apart or (self.loss > 0 and self.rng.random() < self.loss)

    # ---- what happens
    def machine(self, station: int) -> Machine:
        return self.stations[station - 1]

    def up(self) -> list[Machine]:
        return [m for m in self.stations if m.on]

    def next_options(self, options: Options) -> Options:
        """Some other configuration near this one."""
        rng = self.rng
        roster, n = options.roster, options.stations
        kind = rng.choice(("add", "add", "remove", "quorum", "time", "any", "any"))
        if kind == "any":
            return trim(replace(options, quorum=0, required=()), frozenset(rng.sample(range(1, N + 1), rng.randrange(1, N + 1))))
        if kind == "add" and len(roster) < N:
            k = rng.choice(sorted(set(range(1, N + 1)) - roster))
            return trim(replace(options, quorum=0, required=()), roster | {k})
        if kind == "remove" and len(roster) > 1:
            return trim(replace(options, quorum=0, required=()), roster - {rng.choice(sorted(roster))})
        if kind == "quorum":
            required = (rng.choice(sorted(roster)),)
            return replace(options, quorum=rng.randrange(1, len(roster) + 1), required=required)
        return replace(options, heartbeat=rng.randrange(1, 1000), stations=n)

    def someone_proposes(self) -> None:
        m = self.rng.choice(self.stations)
        if m.on:
            m.propose(self.next_options(Options.read(m.changing.stand.options)))

    def storm(self) -> None:
        """Everything that can go wrong, mostly around a change."""
        rng, end = self.rng, self.now + STORM_NS
        for m in self.stations:
            m.boot()
        self.run(rng.randrange(1500 * MS))
        while self.now < end:
            self.loss = rng.choice((0.0, 0.0, 0.02, 0.2))
            for m in rng.sample(self.stations, N):
                m.offer()
            if rng.random() < 0.5:
                self.someone_proposes()
                if rng.random() < 0.3:
                    self.someone_proposes()
                self.failing = rng.choice((0.0, 0.0, 0.1, 0.4))
                self.run(rng.choice((1, 1, 1, 3, 10)) * rng.randrange(2 * MS))
                self.harm()
                self.run(rng.choice((1, 1, 5, 20)) * rng.randrange(2 * MS))
            else:
                self.harm()
            self.failing = rng.choice((0.0, 0.0, 0.02))
            for _ in range(rng.randrange(60)):
                self.run(SEND_GAP_NS)
                for m in self.stations:
                    m.offer()
            for m in self.stations:
                if not m.on and rng.random() < 0.6:
                    m.boot()
            if rng.random() < 0.5:
                self.island = frozenset()

    def surgery(self) -> None:
        """A change is cut off at some moment: by power at durable writes, or by the segment, or both. The parts then stand by
        themselves for some seconds, and each of them may get its power again."""
        rng, end = self.rng, self.now + STORM_NS
        for m in self.stations:
            m.boot()
        self.run(rng.randrange(1000 * MS, 1500 * MS))
        while self.now < end:
            members = [m for m in self.stations if m.instance]
            if members:
                m = rng.choice(members)
                m.propose(self.next_options(Options.read(m.changing.stand.options)))
                self.failing = rng.choice((0.0, 0.0, 0.1, 0.3))
                self.run(rng.randrange(1_000_000))
            self.island = frozenset(k for k in range(1, N + 1) if rng.random() < 0.5)
            self.log(f"apart: {sorted(self.island)}")
            self.run(rng.choice((0, 0, 0, 300_000, 3 * MS, 700 * MS)))
            self.failing = 0.0
            share = rng.choice((0.0, 0.3, 0.6))
            for m in self.stations:
                if m.on and rng.random() < share:
                    m.fail()
            for m in self.stations:
                if not m.on and rng.random() < 0.9:
                    m.boot()
            self.traffic(rng.randrange(700 * MS, 3000 * MS))
            if rng.random() < 0.5:
                self.island = frozenset()
                self.traffic(rng.randrange(2000 * MS))

    def traffic(self, duration_ns: int) -> None:
        end = self.now + duration_ns
        while self.now < end:
            for m in self.stations:
                m.offer()
            self.run(4 * SEND_GAP_NS)

    def harm(self) -> None:
        rng = self.rng
        if rng.random() < 0.4:
            self.island = frozenset(k for k in range(1, N + 1) if rng.random() < 0.5)
            self.log(f"apart: {sorted(self.island)}")
        for m in self.stations:
            if m.on and rng.random() < rng.choice((0.0, 0.2, 0.6)):
                m.fail()

    def heal(self) -> None:
        """All run and hear each other: one configuration, one instance of its roster, and a change goes through."""
        self.failing = self.loss = 0.0
        self.island = frozenset()
        self.log("healed")
        for m in self.stations:
            if not m.on:
                m.boot()
        self._until(self.is_one, "one instance of one configuration")
        one = max(m.changing.stand.number for m in self.stations)
        member = next(m for m in self.stations if m.instance)
        for _ in range(100):  # what a KEEP or COMMIT has to settle first
            if member.propose(replace(Options.read(member.changing.stand.options), heartbeat=1_001)):
                break
            self.run(20 * MS)
        self._until(lambda: self.is_one() and max(m.changing.stand.number for m in self.stations) > one, "one more change")
        before = self.checks.confirmed

        def released() -> bool:
            for m in self.stations:  # taken once the programs of all are in their groups
                m.offer()
            return self.checks.confirmed > before

        self._until(released, "messages are released")

    def is_one(self) -> bool:
        numbers = {m.changing.stand.number for m in self.stations}
        roster = Options.read(self.stations[0].changing.stand.options).roster
        if len(numbers) != 1 or any(m.changing.joint or m.changing.stand.ballot for m in self.stations):
            return False
        views = {tuple(m.engine.membership.members) for m in self.stations if m.instance}
        return views == {tuple(sorted(roster))} and {m.station for m in self.stations if m.instance} == set(roster)

    def _until(self, condition: Any, what: str) -> None:
        end = self.now + QUIET_NS
        while not condition():
            if self.now > end:
                state = "; ".join(
                    f"s{m.station} {m.changing.stand} best {m.changing._best and m.changing._best[:2]} in {m.instance} of"
                    f" {m.engine.membership.members if m.instance else ()} {m.engine.opening.state.name}"
                    for m in self.stations
                )
                raise Violation("liveness", f"not within {QUIET_NS / 1e9:g} s: {what}: {state}")
            self.run(50 * MS)


def trim(options: Options, roster: frozenset[int] | set[int]) -> Options:
    """These stations, whatever numbers are between them."""
    n = max(roster)
    return replace(options, stations=n, vacant=tuple(sorted(set(range(1, n + 1)) - set(roster))))


def simulate(seed: int, parts: Parts | None = None) -> World:
    """Raises Violation, with the last lines."""
    world = World(seed, parts)
    try:
        (world.storm if seed % 2 else world.surgery)()
        world.heal()
    except Violation as found:
        raise Violation(found.checker, f"seed {seed}: {found.text}\n" + "\n".join(list(world.lines)[-60:])) from None
    return world


def storm(seed: int) -> Violation | None:
    """``simulate``, for many seeds."""
    try:
        simulate(seed)
    except Violation as violation:
        violation.add_note(f"python -m tests.sim.changing {seed} 1 runs it again")
        return violation
    return None


if __name__ == "__main__":
    sys.exit(run_seeds(storm, sys.argv[1:]))
