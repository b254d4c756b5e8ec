"""One run from a seed: stations that find out how large their frames may be, on links whose sizes change, and send meanwhile.

Each direction of each link to each station has a size of its own, which may fall and rise (a switch, a tunnel, one way only);
interfaces change; links fail; frames are lost. Each station sends PDUs, cut in pieces where they have become too large, and sends
again what is missing. The machine is ``proto/sizes.py``, the pieces are ``proto/pieces.py``, as the daemon has them.

Checks, each of which a broken machine fails (``broken.py``):

proven    no PDU is built larger than the base, and than what was shown to pass to each member since it is one
found     a hole is found while PDUs above the base are sent: no PDU takes longer than STUCK_NS to arrive
steady    the limit does not change because a link fails or comes back
hold      after a fall the limit does not rise for HOLD_FIRST_NS
back      when all is well again, the limit is all that passes, to 8 bytes
bounded   no station holds more pieces than it may, whatever comes
quiet     PROBEs leave seldom: at most BURSTS bursts a second on a link; fewer and fewer while nobody answers
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from zenjun.proto.envelope import PIECE_EXTRA
from zenjun.proto.pieces import SETS, Joiner, cut
from zenjun.proto.sizes import (
    HOLD_FIRST_NS,
    SIZES,
    STEP,
    Answer,
    Config,
    Limit,
    Probe,
    Sizes,
    Why,
)
from zenjun.proto.wire import HEADER, Kind

MS = 1_000_000
TICK_NS = 2 * MS
NEEDED = 576
MOST = 9216
RETRY_NS = (3 * MS, 5 * MS, 10 * MS, 20 * MS, 40 * MS, 50 * MS)
"""Waits before a missing PDU is asked for, as the core's."""
STUCK_NS = 400 * MS
"""Of a PDU under way when frames become smaller: asked for twice, checked twice, asked for again. The lab's bound is 100 ms; here
answers and PDUs are lost as well."""
FAULTS_NS = 6_000 * MS
CALM_NS = 45_000 * MS
BURSTS = 25
KINDS = ("hole", "hole one way", "wide", "interface", "link", "loss")


class Violation(AssertionError):
    """A check has failed; its first word is the name of the check."""


@dataclass
class Pdu:
    """One on its way to one station."""

    size: int
    since: int
    asks: int = 0
    ask_at: int = 0


@dataclass
class Station:
    """A daemon."""

    number: int
    machine: Sizes
    joiner: Joiner
    limit: Limit | None = None
    mtu: dict[int, int] = field(default_factory=dict)
    heard: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """By (link, station): the round of its last PROBE, and the largest size of that."""
    had: dict[tuple[int, int], int] = field(default_factory=dict)
    """In truth, by (link, station): the largest PROBE of this station that came there since it was last known to lose one."""
    fell_at: int = -(1 << 62)
    numbers: int = 0
    waiting: dict[tuple[int, int], Pdu] = field(default_factory=dict)
    """By (to, number): PDUs that have not arrived."""
    bursts: list[int] = field(default_factory=list)


class Run:
    """Stations, links and time."""

    def __init__(
        self,
        seed: int,
        machine_class: type[Sizes] = Sizes,
        joiner_class: type[Joiner] = Joiner,
        *,
        kinds: tuple[str, ...] = KINDS,
    ) -> None:
        self.random = random.Random(seed)
        self._kinds = kinds
        self.n, self.count = self.random.randint(2, 4), self.random.choice((1, 1, 2))
        self.links = tuple(range(1, self.count + 1))
        self.now = 1_000 * MS
        self.loss = 0.0
        stations = range(1, self.n + 1)
        mtu = self.random.choice((1500, 9000, 9000, 4000, 1450))
        self.path = {(k, a, b): mtu for k in self.links for a in stations for b in stations if a != b}
        self.is_up = dict.fromkeys(self.links, True)
        self.stations = {
            s: Station(
                s,
                machine_class(Config(s, self.n, self.links, NEEDED, MOST, self.count == 1), self.random.randrange),
                joiner_class(self.n, MOST),
            )
            for s in stations
        }
        for station in self.stations.values():
            for link in self.links:
                self._set_mtu(station, link, mtu)
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._sends = True
        self._failed_at = -(1 << 62)
        self._opened = False

    # ---- the run

    def run(self) -> None:
        """Raises Violation."""
        self._until(self.now + self.random.choice((0, 30, 500)) * MS)
        self._opened = True
        self._until(self.now + 1_500 * MS)
        end = self.now + FAULTS_NS
        while self.now < end:
            self._fault()
            self._until(self.now + self.random.choice((5, 60, 400, 1_500, 2_500)) * MS)
        self.loss = 0.0
        for link in self.links:
            self.is_up[link] = True
        self._until(self.now + 2_000 * MS)
        self._until(self.now + CALM_NS, tick=20 * MS, sends=False)
        self._all_is_back()

    def _until(self, end: int, *, tick: int = TICK_NS, sends: bool = True) -> None:
        self._sends = sends
        while self.now < end:
            self.now += tick
            while self._queue and self._queue[0][0] <= self.now:
                heapq.heappop(self._queue)[2]()
            for station in self.stations.values():
                self._turn(station)

    def _later(self, wait: int, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._queue, (self.now + wait, self._order, action))

    # ---- faults

    def _set_mtu(self, station: Station, link: int, mtu: int) -> None:
        station.mtu[link] = mtu
        station.machine.on_interface(self.now, link, mtu)

    def _fault(self) -> None:
        kind = self.random.choice(self._kinds)
        link = self.random.choice(self.links)
        size = self.random.choice((9000, 4000, 1600, 1500, 1492, 1450, 1300, 1280))
        a, b = self.random.sample(range(1, self.n + 1), 2)
        match kind:
            case "hole":
                for way in self.path:
                    if way[0] == link and b in way[1:]:
                        self.path[way] = size
            case "hole one way":
                self.path[link, a, b] = size
            case "wide":
                for way in self.path:
                    self.path[way] = 9000
            case "interface":
                self._set_mtu(self.stations[a], link, size)
            case "link":
                self.is_up[link] = not self.is_up[link] or not any(up for k, up in self.is_up.items() if k != link)
                self._failed_at = self.now
            case "loss":
                self.loss = self.random.choice((0.0, 0.01, 0.05))

    # ---- the network

    def _carry(self, link: int, a: int, b: int, size: int, action: Callable[[], None]) -> bool:
        """One frame to one station; whether it fits. It may be lost all the same."""
        fits = size <= min(self.path[link, a, b], self.stations[a].mtu[link], self.stations[b].mtu[link])
        if fits and self.is_up[link] and self.random.random() >= self.loss:
            self._later(self.random.randint(20_000, 900_000), action)
        return fits

    def _probe(self, station: Station, probe: Probe) -> None:
        for other in self.stations.values():
            if other is not station:
                arrive = partial(self._probed, other, station, probe)
                self._carry(probe.link, station.number, other.number, probe.size, arrive)

    def _probed(self, at: Station, station: Station, probe: Probe) -> None:
        key = probe.link, station.number
        before = at.heard.get(key, (0, 0))
        at.heard[key] = (probe.round, max(probe.size, before[1] if before[0] == probe.round else 0))
        mine = probe.link, at.number
        station.had[mine] = max(station.had.get(mine, 0), probe.size)
        if probe.answer:
            at.machine.on_probe(self.now, probe.link, station.number)

    def _answer(self, station: Station, link: int) -> None:
        for other in self.stations.values():
            if other is not station:
                heard = station.heard.get((link, other.number), (0, 0))
                self._carry(link, station.number, other.number, 100, partial(self._said, other, link, station.number, heard))

    def _said(self, at: Station, link: int, number: int, heard: tuple[int, int]) -> None:
        at.machine.on_said(self.now, link, number, *heard)

    # ---- a station

    def _turn(self, station: Station) -> None:
        members = tuple(self.stations) if self._opened else ()
        ceiling = min([MOST, *(min(o.mtu.values()) for o in self.stations.values())])
        before = station.limit
        bursts = 0
        for effect in station.machine.step(self.now, members, ceiling):
            match effect:
                case Probe():
                    bursts += effect.size in SIZES[-1:]
                    self._probe(station, effect)
                case Answer(link):
                    self._answer(station, link)
                case Limit():
                    station.limit = effect
                case _:
                    station.fell_at = self.now
        if self.count != 1 and self.random.random() < TICK_NS / (100 * MS):  # the heartbeat's
            for link in self.links:
                self._answer(station, link)
        self._watch(station, before, bursts)
        if self._opened and self._sends and station.limit is not None:
            self._send(station)

    def _send(self, station: Station) -> None:
        size = min(self._limit(station), self.random.choice((200, 1200, 9216)))
        station.numbers += 1
        for other in self.stations.values():
            if other is not station and self.random.random() < 0.2:
                pdu = Pdu(size, self.now)
                station.waiting[other.number, station.numbers] = pdu
                self._transmit(station, other.number, station.numbers, pdu)
        for (to, number), pdu in list(station.waiting.items()):
            if self.now - pdu.since > STUCK_NS + 2_000 * MS * (self.loss > 0) and self.now - self._failed_at > STUCK_NS:
                raise Violation(f"found: a PDU of {pdu.size} bytes of {station.number} does not get to {to}; {station.limit}")
            if pdu.ask_at <= self.now:
                if pdu.asks > 1 and pdu.size > station.machine.base:
                    station.machine.on_again()
                self._transmit(station, to, number, pdu)

    def _limit(self, station: Station) -> int:
        """Bytes of the largest frame: as the core has it, what the others say that they can receive counts as well."""
        assert station.limit is not None
        least = min(min(o.mtu.values()) for o in self.stations.values())
        return min(station.limit.size, least)

    def _transmit(self, station: Station, to: int, number: int, pdu: Pdu) -> None:
        pdu.ask_at = self.now + RETRY_NS[min(pdu.asks, len(RETRY_NS) - 1)]
        pdu.asks += 1
        limit = self._limit(station)
        link = self.random.choice(self.links) if pdu.asks == 1 and all(self.is_up.values()) else 0
        for way in (link,) if link else self.links:
            if pdu.size <= limit:
                self._carry(way, station.number, to, pdu.size, lambda: self._arrived(station, to, number))
                if pdu.size > station.mtu[way]:
                    station.machine.on_large(self.now, [way])
                continue
            body = HEADER.struct.pack(1, 1, Kind.DATA, 0, station.number, self.n, 0, 0, 1, 1, number, 0, 0, 0, 0, 0)
            bodies = cut(body.ljust(pdu.size, b"\0"), limit - PIECE_EXTRA)
            first = 1 + 16 * (number * 64 + pdu.asks)
            for place, part in enumerate(bodies):
                arrive = partial(self._piece, self.stations[to], station, number, first + place, place << 8 | len(bodies), part)
                self._carry(way, station.number, to, len(part) + PIECE_EXTRA, arrive)

    def _piece(self, at: Station, station: Station, number: int, frame: int, piece: int, body: bytes) -> None:
        if at.joiner.take(self.now, station.number, bytes(4), frame, piece, body) is not None:
            self._arrived(station, at.number, number)

    def _arrived(self, station: Station, to: int, number: int) -> None:
        station.waiting.pop((to, number), None)

    # ---- checks

    def _watch(self, station: Station, before: Limit | None, bursts: int) -> None:
        limit = station.limit
        station.bursts = [at for at in [*station.bursts, *[self.now] * bursts] if self.now - at < 1_000 * MS]
        if len(station.bursts) > BURSTS * self.count:
            raise Violation(f"quiet: {len(station.bursts)} bursts of {station.number} in a second")
        if not self._opened or limit is None or before is None:
            return
        ways = {(k, s): station.had.get((k, s), 0) for k in self.links for s in self.stations if s != station.number}
        each = {s: max(size for (_, other), size in ways.items() if other == s) for s in self.stations if s != station.number}
        if limit.size > limit.base and limit.size > min(each.values()):
            raise Violation(f"proven: {station.number} sends {limit.size} bytes, of which nothing has come everywhere")
        if limit.size > before.size and self.now - station.fell_at < HOLD_FIRST_NS - TICK_NS and before.why is not Why.ALONE:
            raise Violation(f"hold: {station.number} sends more {(self.now - station.fell_at) // MS} ms after a fall")

    def _all_is_back(self) -> None:
        for station in self.stations.values():
            others = [s for s in self.stations if s != station.number]
            passes = min(
                min(self.path[k, station.number, s], self.stations[s].mtu[k], station.mtu[k]) for k in self.links for s in others
            )
            limit = self._limit(station)
            if not passes - STEP <= limit <= passes:
                raise Violation(f"back: {station.number} sends up to {limit} bytes, {passes} pass: {station.limit}")


def steady(machine_class: type[Sizes]) -> None:
    """Two links, the second of which carries less: its loss changes no size, and nor does its coming back. Raises Violation."""
    run = Run(1, machine_class, kinds=())
    run.count, run.links = 2, (1, 2)
    run = _made_of(run, machine_class)
    run._opened = True
    run._until(run.now + 4_000 * MS)
    before = [station.limit for station in run.stations.values()]
    for up in (False, True):
        for station in run.stations.values():
            station.machine.on_interface(run.now, 2, 9000 if up else 0)
        run.is_up[2] = up
        for _ in range(30):
            run._until(run.now + 1_000 * MS, tick=20 * MS)
            if any(station.limit != old for station, old in zip(run.stations.values(), before, strict=True)):
                raise Violation(f"steady: link 2 is {'back' if up else 'gone'}, and frames are of another size")


def _made_of(run: Run, machine_class: type[Sizes]) -> Run:
    run.path = {(k, a, b): 1400 if k == 2 else 9000 for k in (1, 2) for a in run.stations for b in run.stations if a != b}
    run.is_up = {1: True, 2: True}
    for s, station in run.stations.items():
        station.machine = machine_class(Config(s, run.n, (1, 2), NEEDED, MOST, False), run.random.randrange)
        for link in (1, 2):
            run._set_mtu(station, link, 9000)
    return run


def unfinished(joiner_class: type[Joiner]) -> None:
    """Pieces whose PDUs are never whole. Raises Violation."""
    rng = random.Random(1)
    joiner = joiner_class(3, MOST)
    for number in range(1, 40_000, 16):
        body = bytes(rng.randrange(1, 1400))
        joiner.take(number * MS // 100, rng.randint(1, 3), rng.randbytes(4), number + 15, rng.randrange(16) << 8 | 16, body)
        if joiner.held > 3 * SETS * MOST:
            raise Violation(f"bounded: {joiner.held} bytes of pieces are held")


def alone(machine_class: type[Sizes]) -> None:
    """A station whom nobody answers does not fill the network. Raises Violation."""
    rng = random.Random(1)
    machine = machine_class(Config(1, 2, (1,), NEEDED, MOST), rng.randrange)
    machine.on_interface(0, 1, 9000)
    probes, now = 0, 0
    while now < 10_000 * MS:
        now = max(now + MS, machine.deadline_ns())
        probes += sum(isinstance(effect, Probe) for effect in machine.step(now, (), MOST))
    if probes > 10 * len(SIZES):
        raise Violation(f"quiet: {probes} PROBEs in 10 s that nobody answers")
