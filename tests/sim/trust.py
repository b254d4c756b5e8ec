"""A world in which stations prove who they are to each other, and somebody on the segment records everything and sends it again.

Virtual time; what decides is the product's (``proto/trust.py``, the checks of ``proto/envelope.py``), the tags are toys. Each
station sends frames, restarts, sleeps, and changes its session; the network loses, delays and re-orders; the
attacker sends recorded frames again (at once, after restarts, a HELLO with what followed it, to whom they were meant for and to
whoever sent them), holds frames back for a while, and makes what can be made without the key. The clock of
a station is set anew at each start. The checks are in ``trust_checks.py``.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from zenjun.proto.envelope import ENVELOPE, HELLO, TAG_BYTES, Drop, Envelope, Hello, Opener, Reader, Suite, What
from zenjun.proto.service.base import ViewEvent
from zenjun.proto.service.keys import Holder, KeyChange, KeyOrder, Step, why_not
from zenjun.proto.trust import (
    MS,
    SILENT_NS,
    Config,
    Effect,
    Facts,
    ForgetSession,
    ReadSession,
    SealUnder,
    SendHello,
    Trust,
    Twin,
)
from zenjun.proto.wire import HEADER, Flag, Kind

from .histories import run_seeds
from .trust_checks import Checks, Sealed, Who
from .trust_checks import Violation as Broken
from .violation import Violation

CLUSTER: Final = 7
STORM_NS: Final = 5_000 * MS
"""Faults and attacks go on for so long; then the world is quiet for QUIET_NS."""
QUIET_NS: Final = 3_000 * MS
HELD_MAX_NS: Final = 2_500 * MS
"""The longest that the attacker holds a frame back."""
CLOCK_NS: Final = 10**12
"""Clocks of stations are apart by up to so much."""
OLD_KEY: Final = 5
NEW_KEY: Final = 6
MEMBER_NS: Final = 1_000 * MS
"""A station that has run for so long comes into the instance."""
RESTART_GAP_NS: Final = 1_500 * MS
"""Between two changes of one station's session: two are read at a time."""


def tag(purpose: str, key: int, *parts: bytes) -> bytes:
    """Of a key, which is its id here."""
    made = hashlib.blake2s(key=b"key %d" % key, digest_size=TAG_BYTES, person=purpose.encode())
    for part in parts:
        made.update(part)
    return made.digest()


def opener(keys: dict[bytes, int]) -> Opener:
    """keys: by session, of those that a reader has proven."""

    def open_toy(session: bytes, number: int, head: bytes, body: bytes, given: bytes) -> bytes | None:
        return body if tag("frame", keys[session], session, number.to_bytes(8, "big"), head, body) == given else None

    return open_toy


def pdu(kind: Kind, src: int, mark: int, flags: int = 0) -> bytes:
    """A PDU as far as the checks of a receiver look at it; the mark tells one from another."""
    return HEADER.struct.pack(CLUSTER, 1, kind, flags, 3, src, 0, 0, 1, 1, 0, mark, 0, 0, 0, 0)


@dataclass(frozen=True)
class Parts:
    """What the stations of a world are made of; a broken variant has another part in one place (``broken_trust.py``)."""

    trust: type[Trust] = Trust
    reader: type[Reader] = Reader
    stored_session: bool = False
    """Sessions are made from what is on the disk."""
    seal_per_link: bool = False
    """Each link's copy of a frame is sealed for itself."""
    switch_unordered: bool = False
    """The key is changed without a look at whether all members have it."""
    retire_early: bool = False
    """A key is retired while members seal with it."""
    nobody_tells: bool = False
    """Who comes into the instance is not told which key is sealed with there."""
    retired_untold: bool = False
    """Nor which ones are read no more."""


@dataclass
class Station:
    """One station, of which one life at a time runs (or two, where its number is used twice)."""

    number: int
    mac: bytes
    life: int = 0
    began_ns: int = 0
    clock_ns: int = 0
    """What its clock showed at the beginning of time."""
    trust: Trust | None = None
    reader: Reader | None = None
    session: bytes = b""
    key: int = OLD_KEY
    """That the session's is made of."""
    file: tuple[int, ...] = (OLD_KEY,)
    """The keys that it has on disk."""
    known: dict[bytes, int] = field(default_factory=dict)
    """The keys of sessions that are read."""
    next: int = 1
    changed_ns: int = -RESTART_GAP_NS
    order: KeyOrder | None = None
    """Of a member of the instance that there is in a world whose key changes."""
    ordered_ns: int = 0
    """When it has had the last message or view of the order."""

    @property
    def who(self) -> Who:
        return Who(self.number, self.mac, self.life)


@dataclass
class World:
    """One run. ``seed`` decides everything."""

    seed: int
    parts: Parts = field(default_factory=Parts)
    twin: bool = False
    """A second daemon uses station 1's number from the beginning of the quiet time on."""
    shadow: bool = False
    """Behind each HELLO of a station the attacker sends a recorded one of it, to the end of the world, and only that."""
    rotates: bool = False
    """The key changes meanwhile: it is added at each station, then all go over to it, then the former one is retired. No frame is
    lost or held back on its way, so that every member can be asked for every frame."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.count = 18 if self.rng.random() < 0.05 else self.rng.choice((2, 3, 3, 4))
        self.links = self.rng.choice((1, 2))
        self.loss = self.rng.choice((0.0, 0.02, 0.2))
        self.held = self.rng.choice((0.0, 0.0, 0.01, 0.1))
        if self.rotates:
            self.loss = self.held = 0.0
        self.order_key = OLD_KEY
        """That the order says is sealed with."""
        self._instance = 0
        self._inside: set[int] = set()
        """Stations that are members at this place of the order; they may not know it yet."""
        self.now = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self.checks = Checks()
        self.recorded: list[tuple[int, bytes]] = []
        self.marks = 0
        self.stations = [Station(i + 1, bytes([2, 0, 0, 0, 0, i + 1])) for i in range(self.count)]

    # ---- time

    def at(self, when: int, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, action))

    def run(self) -> Checks:
        """All of it; raises ``trust_checks.Violation``."""
        for station in self.stations:
            self.at(self.rng.randrange(300 * MS), lambda s=station: self.start(s))  # type: ignore[misc]
        for _ in range(self.rng.randrange(4, 16)):
            self.at(self.rng.randrange(200 * MS, STORM_NS), self.fault)
        for _ in range(0 if self.shadow else self.rng.randrange(10, 40)):
            self.at(self.rng.randrange(100 * MS, STORM_NS), self.attack)
        if self.rotates:
            for station in self.stations:
                self.at(self.rng.randrange(500 * MS, 2_500 * MS), lambda s=station: self.add_key(s))  # type: ignore[misc]
            self.at(1_500 * MS, self.rotate)
        self.at(STORM_NS, self.calm)
        end = STORM_NS + QUIET_NS + (MEMBER_NS if self.rotates else 0)  # who starts last comes in so much later
        while self._heap and self._heap[0][0] <= end:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.checks.at_the_end(self.now, [(s.number, s.trust) for s in self.stations if s.trust is not None], self.twin)
        if self.rotates:
            self.checks.all_have(NEW_KEY, [(s.number, s.trust) for s in self.stations])
        return self.checks

    def calm(self) -> None:
        """The last part: everybody runs, nothing is lost, and nobody attacks."""
        self.loss = self.held = 0.0
        for station in self.stations:
            if station.trust is None:
                self.start(station)
        if self.twin:
            other = Station(1, b"\x02twins")
            self.stations.append(other)
            self.start(other)

    # ---- stations

    def start(self, station: Station) -> None:
        if station.trust is not None:
            return
        station.life += 1
        station.began_ns = station.changed_ns = self.now
        station.clock_ns = self.rng.randrange(CLOCK_NS)
        config = Config(station.number, self.count, Suite.AES_256_GCM, self.rng.getrandbits(64), 1, station.file)
        stored = random.Random(station.number) if self.parts.stored_session else None
        station.trust = self.parts.trust(config, entropy=stored.randbytes if stored else self.rng.randbytes)
        station.trust.members = frozenset(range(1, self.count + 1))
        station.reader = self.parts.reader(station.number, self.count, Suite.AES_256_GCM, opener(station.known))
        self.apply(station, station.trust.start(self.now, self.facts(station)))
        self.at(self.now, lambda life=station.life: self.talk(station, life))  # type: ignore[misc]
        if self.rotates:
            self.at(self.now + MEMBER_NS, lambda life=station.life: self.come(station, life))  # type: ignore[misc]

    def stop(self, station: Station) -> None:
        station.trust = station.reader = station.order = None
        self._inside.discard(station.number)

    def facts(self, station: Station) -> Facts:
        clock = station.clock_ns + self.now
        return Facts(
            clock=clock,
            next=station.next,
            incarnation=station.life,
            instance=int(self.is_member(station)),
            age_ms=(self.now - station.began_ns) // MS,
        )

    def is_member(self, station: Station) -> bool:
        """Of the instance that there is in a world whose key changes, as far as it knows."""
        return station.trust is not None and station.order is not None

    # ---- the order

    def in_order(self, deliver: Callable[[Station], None]) -> None:
        """Every member has this at the same place of the order, some milliseconds from now."""

        def at(station: Station, life: int) -> None:
            if station.trust is not None and station.life == life:
                deliver(station)
                self.tell(station)

        for station in self.stations:
            if station.number in self._inside:
                station.ordered_ns = max(station.ordered_ns + 1, self.now + self.rng.randrange(5 * MS))
                self.at(station.ordered_ns, partial(at, station, station.life))

    def come(self, station: Station, life: int) -> None:
        """A station comes into the instance, or begins it."""
        if station.trust is None or station.life != life:
            return
        self._instance += 1
        instance, joined = self._instance, bool(self._inside)
        self._inside.add(station.number)
        members = frozenset(self._inside)

        def deliver(member: Station) -> None:
            if member is station:
                member.order = KeyOrder(member.number)
                member.order.open(instance, members, joined=joined)
            elif member.order is not None:
                incarnations = tuple(int(n in members) for n in range(1, self.count + 1))
                member.order.on_view(ViewEvent(instance, 0, incarnations, (station.number,), ()))

        self.in_order(deliver)

    def tell(self, station: Station) -> None:
        if station.order is None or station.trust is None:
            return
        word = station.order.word(station.trust.wanted)
        if word is not None and not self.parts.nobody_tells:
            self.in_order(lambda s: self.change(s, word))
        if word is not None and station.file == (NEW_KEY,) and not self.parts.retired_untold:
            self.in_order(lambda s: self.change(s, KeyChange(Step.RETIRE, OLD_KEY)))

    # ---- keys

    def add_key(self, station: Station) -> None:
        """An operator puts the new key into the file, and hands it to the daemon."""
        station.file = (*station.file, NEW_KEY)
        if station.trust is not None:
            self.apply(station, station.trust.set_keys(self.now, (*station.trust.keys, NEW_KEY)))

    def rotate(self) -> None:
        """At one station, as often as it is refused; its message reaches all members within some milliseconds."""
        proposer = next((s for s in self.stations if self.is_member(s)), None)
        members = [s for s in self.stations if self.is_member(s)]
        if proposer is None or proposer.trust is None or proposer.reader is None:
            self.at(self.now + 50 * MS, self.rotate)
            return
        self.apply(proposer, self.silent(proposer.reader, proposer.trust))
        step, key = (Step.ROTATE, NEW_KEY) if self.order_key == OLD_KEY else (Step.RETIRE, OLD_KEY)
        own = proposer.trust
        holders = [Holder(s.number, own.keys if s is proposer else own.reads(s.number), own.uses(s.number)) for s in members]
        careless = self.parts.switch_unordered if step is Step.ROTATE else self.parts.retire_early
        absent = [s.number for s in self.stations if s not in members]
        if not careless and why_not(KeyChange(step, key), holders, absent, without_absent=False):
            self.at(self.now + 50 * MS, self.rotate)
            return
        if len(members) > 2 and self.rng.random() < 0.5:  # after it was asked whether it can follow
            self.expel(self.rng.choice([s for s in members if s is not proposer]))
        wait = self.rng.randrange(10 * MS) if step is Step.ROTATE else 0
        self.at(self.now + wait, lambda: self.rotated(KeyChange(step, key)))

    def rotated(self, change: KeyChange) -> None:
        """The message has its place in the order."""
        self.order_key = NEW_KEY
        self.in_order(lambda s: self.change(s, change))
        if change.step is Step.ROTATE:
            self.at(self.now + (0 if self.parts.retire_early else 300 * MS), self.rotate)

    def expel(self, station: Station) -> None:
        """It goes on running, learns soon that it is outside, and is let in again."""
        self._inside.discard(station.number)
        life = station.life

        def learns() -> None:
            if station.life == life:
                station.order = None

        learned = self.now + self.rng.randrange(300 * MS)
        self.at(learned, learns)
        self.at(learned + self.rng.randrange(1, 50 * MS), lambda: self.come(station, life))

    def change(self, station: Station, change: KeyChange) -> None:
        """The message is at its place in the order."""
        trust, step = station.trust, change.step
        if trust is None or station.order is None or not station.order.on_change(change):
            return
        if step is not Step.RETIRE and change.key in trust.keys:
            self.apply(station, trust.seal_with(self.now, change.key))
        elif step is Step.RETIRE and (trust.wanted != OLD_KEY or self.parts.retire_early):
            if self.parts.retire_early:
                trust.key = trust.wanted = NEW_KEY
            station.file = (NEW_KEY,)  # the state folder remembers it
            self.apply(station, trust.set_keys(self.now, (NEW_KEY,)))

    def talk(self, station: Station, life: int) -> None:
        """Send a few frames, one kind after the other, now and then many at once."""
        if station.trust is None or station.life != life:
            return
        for _ in range(200 if self.rng.random() < 0.02 and self.count < 5 else 1):
            self.marks += 1
            kind = self.rng.choice((Kind.DATA, Kind.CONFIRM))
            self.send(station, pdu(kind, station.number, self.marks))
        if self.rng.random() < 0.02:  # a station with a defect speaks as another one; passing on what another one said is right
            self.marks += 1
            other = station.number % self.count + 1
            self.send(station, pdu(Kind.CONFIRM, other, self.marks, self.rng.choice((0, Flag.RELAYED))))
        self.at(self.now + self.rng.randrange(3 * MS, 20 * MS * self.count), lambda: self.talk(station, life))

    def send(self, station: Station, body: bytes) -> None:
        number, station.next = station.next, station.next + 1
        for link in range(self.links):
            piece = link if self.parts.seal_per_link else 0
            envelope = Envelope(
                CLUSTER, What.PDU, station.number, Suite.AES_256_GCM, len(body), station.session[:4], number, piece=piece
            )
            head = envelope.packed()
            frame = head + body + tag("frame", station.key, station.session, number.to_bytes(8, "big"), head, body)
            sealed = Sealed(station.session, number, body, self.now, station.mac)
            self.checks.on_sealed(sealed, frame)
            self.broadcast(station, frame, sealed)

    def broadcast(self, station: Station, frame: bytes, sealed: Sealed | None) -> None:
        self.recorded.append((station.number, frame))
        for other in self.stations:
            if other is station or self.rng.random() < self.loss:
                continue
            delay = self.rng.randrange(50_000, 1 * MS) + (self.rng.randrange(5 * MS) if self.rng.random() < 0.1 else 0)
            if self.rng.random() < self.held:
                later = self.now + self.rng.randrange(HELD_MAX_NS)
                self.at(later, lambda o=other: self.receive(o, frame, station.mac))  # type: ignore[misc]
                continue
            if self.shadow and sealed is None:
                self.at(self.now + delay + 1_000, lambda o=other: self.receive(o, self._shadow(station), b"\x02evil!"))  # type: ignore[misc]
            self.checks.on_sent_to(other.who, other.reader, sealed)
            self.at(self.now + delay, lambda o=other: self.receive(o, frame, station.mac, sealed))  # type: ignore[misc]

    def receive(self, station: Station, frame: bytes, mac: bytes, sealed: Sealed | None = None) -> None:
        """sealed: of a frame that comes from its sender; None: from the attacker, or HELLO."""
        if station.trust is None or station.reader is None:
            return
        envelope = Envelope.read(frame)
        if envelope is not None and envelope.version == 2 and envelope.what == What.HELLO:
            self.on_hello(station, envelope, frame, mac)
            return
        before = {key: read.unsequenced for key, read in station.reader.sessions.items()}
        taken = station.reader.take(frame, self.now)
        self.checks.on_taken(station.who, station.began_ns, envelope, frame, taken, before)
        if sealed is not None and isinstance(taken, Drop):
            self.checks.on_good_dropped(station.who, sealed, taken)
        if taken is Drop.UNPROVEN and envelope is not None:
            due = station.trust.deadline_ns()
            station.trust.on_unread(self.now, envelope.tx)
            if station.trust.deadline_ns() < due:
                self.apply(station, [])

    def on_hello(self, station: Station, envelope: Envelope, frame: bytes, mac: bytes) -> None:
        end = ENVELOPE.size + envelope.length
        own = station.trust.keys if station.trust is not None else ()
        named = envelope.number
        under = named if named in own and tag("hello", named, frame[:end]) == frame[end : end + TAG_BYTES] else None
        hello = Hello.read(envelope, frame[ENVELOPE.size : end])
        if len(frame) < end + TAG_BYTES or under is None or hello is None or station.trust is None:
            return
        if hello.key in own and hello.key != under:
            return  # its copy under the right key counts
        seen = getattr(station.trust, "see_mac", None)  # a broken variant's
        effects = seen(hello, mac, station.mac) if seen is not None else []
        self.apply(station, effects + station.trust.on_hello(self.now, self.facts(station), hello))

    def apply(self, station: Station, effects: Iterable[Effect], *, is_anew: bool = False) -> None:
        """is_anew: after a pause (S8): nobody reads the session yet, whatever its key is."""
        trust, reader = station.trust, station.reader
        if trust is None or reader is None:
            return
        for effect in effects:
            match effect:
                case SendHello(hello):
                    self.checks.on_hello_sent(station.who, self.now)
                    for body in hello.bodies():
                        for key in hello.keys:
                            named = Envelope(CLUSTER, What.HELLO, station.number, hello.suite, len(body), hello.session[:4], key)
                            head = named.packed()
                            self.broadcast(station, head + body + tag("hello", key, head, body), None)
                case SealUnder(session, key):
                    if not is_anew and self.is_member(station) and key != station.key and self.order_key == NEW_KEY:
                        others = [s for s in self.stations if s is not station and self.is_member(s)]
                        self.checks.on_key_used(station.who, session, [(s.number, s.reader) for s in others])
                    station.session, station.key, station.next = session, key, 1
                case ReadSession(tx, session, first, key):
                    station.known[session] = key
                    reader.add(tx, session, first, self.now)
                case ForgetSession(tx, session):
                    reader.forget(tx, session)
                case Twin():
                    self.checks.on_twin(self.now, self.twin and self.now >= STORM_NS)
        self.at(max(self.now + 1, trust.deadline_ns()), lambda: self.wake(station, trust))

    def wake(self, station: Station, trust: Trust) -> None:
        """A timer, also of the sessions that have fallen silent."""
        if station.trust is not trust or station.reader is None:
            return
        effects = self.silent(station.reader, trust)
        if self.now >= trust.deadline_ns():
            effects += trust.on_timeout(self.now, self.facts(station))
        if effects:
            self.apply(station, effects)

    def silent(self, reader: Reader, trust: Trust) -> list[Effect]:
        """What a daemon looks for once a second."""
        effects: list[Effect] = []
        for tx, session in trust.former():
            read: Any = reader.sessions.get((tx, session[:4]))
            if read is not None and self.now - read.heard_ns > SILENT_NS:
                effects += trust.on_silent(self.now, tx, session)
        return effects

    def fault(self) -> None:
        station = self.rng.choice(self.stations)
        if station.trust is None or self.now - station.changed_ns < RESTART_GAP_NS:
            return
        station.changed_ns = self.now
        match self.rng.randrange(4):
            case 0 | 1:
                self.stop(station)
                self.at(self.now + self.rng.randrange(1 * MS, 1_500 * MS), lambda: self.start(station))
            case 2:
                station.trust.renew(self.now)
                self.apply(station, [])
            case _:
                self.apply(station, station.trust.restart(self.now, self.facts(station)), is_anew=True)

    # ---- the attacker

    def attack(self) -> None:
        """One of the things that can be done without the key, against one station."""
        if not self.recorded:
            return
        victim = self.rng.choice(self.stations)
        mac = self.rng.choice((b"\x02evil!", *(s.mac for s in self.stations)))
        at = self.rng.randrange(len(self.recorded))
        match self.rng.randrange(7):
            case 0 | 1:  # what was recorded from some moment on, in its order, fast
                frames = [frame for _, frame in self.recorded[at : at + 200]]
            case 2 | 3:  # a HELLO with what followed it, after all the other HELLOs of that station
                frames = self._story(at)
            case 4:  # without its envelope, without a suite, from another station, with a number far ahead
                frames = [self._changed(frame) for _, frame in self.recorded[-100:]]
            case 5:  # damaged
                frames = [self._flipped(frame) for _, frame in self.recorded[at : at + 100]]
            case _:  # to their own sender
                frames = [frame for number, frame in self.recorded if number == victim.number][-150:]
        when = self.now
        for frame in frames:
            when += self.rng.randrange(1_000, 20_000)
            self.at(when, lambda f=frame: self.receive(victim, f, mac))  # type: ignore[misc]

    def _shadow(self, station: Station) -> bytes:
        """The HELLO of this station with the latest clock of those of earlier lives."""
        begun = [frame for number, frame in self.recorded if number == station.number and frame[5] == What.HELLO]
        earlier = [f for f in begun if f[24 : 24 + 4] != station.session[:4]] or begun
        return max(earlier, key=lambda f: f[24 + HELLO.offset("clock") :][:8])

    def _story(self, at: int) -> list[bytes]:
        sender, _ = self.recorded[at]
        own = [frame for number, frame in self.recorded if number == sender]
        hellos = [i for i, frame in enumerate(own) if frame[5] == What.HELLO]
        first = self.rng.choice(hellos)
        return [own[i] for i in hellos[-100:]] + own[first : first + 150]

    def _changed(self, frame: bytes) -> bytes:
        """Valid in form, as far as that can be without the key."""
        body, out = frame[ENVELOPE.size : -TAG_BYTES], bytearray(frame)
        match self.rng.randrange(4):
            case 0:
                return body if frame[5] == What.PDU else frame
            case 1:
                out[7] = Suite.NONE
            case 2:
                out[6] = self.rng.randrange(1, self.count + 1)
            case _:
                out[16:24] = (2**40 + self.rng.randrange(2**20)).to_bytes(8, "big")
        return bytes(out)

    def _flipped(self, frame: bytes) -> bytes:
        out = bytearray(frame)
        bit = self.rng.randrange(8 * len(out))
        out[bit // 8] ^= 1 << bit % 8
        return bytes(out)


KINDS: Final[dict[str, Callable[[int], World]]] = {
    "plain": World,
    "rotates": partial(World, rotates=True),
    "twin": partial(World, twin=True),
    "shadow": partial(World, shadow=True),
}
"""Of worlds that a seed is run in."""


def storm(seed: int) -> Violation | None:
    """All kinds of one seed, for many seeds."""
    for name, kind in KINDS.items():
        try:
            kind(seed).run()
        except Broken as broken:
            violation = Violation(broken.rule, f"{name}: {broken}")
            violation.add_note(f"python -m tests.sim.trust {seed} 1 runs it again")
            return violation
    return None


if __name__ == "__main__":
    sys.exit(run_seeds(storm, sys.argv[1:]))
