"""One run from a seed: what is done to the links, what each station's judge does, and what must not happen.

Checks, each of which a broken judge fails (``broken.py``):

truth     data is spread over no link that has carried nothing to some member for longer than it takes to be found
held      data is spread over a link only when it has been good for the hold since it was last dead for so long that it was found
stopped   a station that stops is no fall of a link
quiet     LINKS leave at most once in 10 ms on a link
back      when all is well again, every link is up at all stations, and used after its hold
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from zenjun.proto.links import HEARD_HEARTBEATS, HOLD_FIRST_NS, REST_NS, Config, Judge, Mode, Said, Say, State, Use

MS = 1_000_000
TICK_NS = 5 * MS
HEARTBEAT_NS = 100 * MS
FOUND_NS = int(2 * HEARD_HEARTBEATS * HEARTBEAT_NS) + 100 * MS
"""A direction that carries nothing is found in so long: the receiver misses it, then says so, or its silence is missed."""
FAULTS_NS = 6_000 * MS
KINDS: Final = ("one way", "switch", "cable", "lossy", "heal", "heal")
CALM_NS = 20_000 * MS


class Violation(AssertionError):
    """A check has failed; its first word is the name of the check."""


@dataclass
class Path:
    """One direction of a link between two stations."""

    loss: float = 0.0
    dead_since: int | None = None

    def set(self, now: int, loss: float) -> None:
        if (loss >= 1) != (self.loss >= 1):
            self.dead_since = now if loss >= 1 else None
        self.loss = loss


class Run:
    """Stations, links and time."""

    def __init__(
        self, seed: int, judge_class: type[Judge] = Judge, *, stops: bool | None = None, kinds: Sequence[str] = KINDS
    ) -> None:
        """stops: a station stops and starts again, in place of faults of links; None: by the seed. kinds: of faults."""
        self._kinds = kinds
        self.random = random.Random(seed)
        self.n, self.count = self.random.randint(2, 5), self.random.randint(2, 3)
        self.links = tuple(range(1, self.count + 1))
        self.delay = {link: self.random.choice((0, 1, 5, 20)) * MS for link in self.links}
        self.now = 1_000 * MS
        stations = range(1, self.n + 1)
        self.paths = {(k, a, b): Path() for k in self.links for a in stations for b in stations if a != b}
        self.judges = {s: judge_class(self._config(s)) for s in stations}
        self.heard = {s: {k: [0] * self.n for k in self.links} for s in stations}
        self.frames = {s: {k: [0] * self.n for k in self.links} for s in stations}
        self.alive = set(stations)
        self.members = list(stations)
        self.use: dict[int, Use] = {}
        self.fell: dict[tuple[int, int], int] = {}
        """(station, link): when a path of it was last found dead in truth."""
        self._under_way: list[tuple[int, int, int, int, int, Said]] = []
        self._order = 0
        self._spoke: dict[tuple[int, int], int] = {}
        self._stops = self.random.random() < 0.3 if stops is None else stops
        self._has_faults = True

    def _config(self, station: int) -> Config:
        mode = Mode.STRIPE
        return Config(station, self.n, self.links, self.count, HEARTBEAT_NS, mode)

    # ---- the run

    def run(self) -> None:
        """Raises Violation."""
        self._until(self.now + 1_500 * MS)
        if self._stops:
            self._stop_one()
        else:
            end = self.now + FAULTS_NS
            while self.now < end:
                self._fault()
                self._until(self.now + self.random.choice((20, 100, 400, 900, 1_500)) * MS)
        for path in self.paths.values():
            path.set(self.now, 0.0)
        self._has_faults = False
        self._until(self.now + CALM_NS, coarse=True)
        self._all_is_back()

    def _until(self, end: int, *, coarse: bool = False) -> None:
        while self.now < end:
            self.now += 4 * TICK_NS if coarse else TICK_NS
            self._deliver()
            for station in sorted(self.alive):
                if self.judges[station].deadline_ns() <= self.now or self.random.random() < 0.2:
                    self._step(station)
            self._check()

    def _fault(self) -> None:
        kind = self.random.choice(self._kinds)
        link = self.random.choice(self.links)
        a, b = self.random.sample(range(1, self.n + 1), 2)
        loss = 1.0 if kind != "lossy" else self.random.choice((0.01, 0.1, 0.3))
        if kind == "heal":
            for (k, _, _), path in self.paths.items():
                if k == link:
                    path.set(self.now, 0.0)
            return
        for (k, x, y), path in self.paths.items():
            hit = {"one way": (x, y) == (a, b), "cable": a in (x, y), "lossy": (x, y) == (a, b)}.get(kind, True)
            if k == link and hit:
                path.set(self.now, loss)

    def _stop_one(self) -> None:
        stopped = self.random.randint(1, self.n)
        self.alive.discard(stopped)
        self._until(self.now + 600 * MS)  # it is a member until the others have found out
        self.members = sorted(self.alive)
        self._until(self.now + 600 * MS)
        for station in self.alive:
            for link in self.links:
                if self.judges[station].hold_until_ns(link):
                    raise Violation(f"stopped: station {stopped} has, and station {station} calls link {link} fallen")
        self.alive.add(stopped)
        self.members = sorted(self.alive)
        self.judges[stopped] = type(self.judges[stopped])(self._config(stopped))
        self.heard[stopped] = {k: [0] * self.n for k in self.links}

    # ---- frames

    def _step(self, station: int) -> None:
        for effect in self.judges[station].step(self.now, self.heard[station], self.links, self.members):
            if isinstance(effect, Use):
                self.use[station] = effect
            elif isinstance(effect, Say):
                self._say(station, effect)

    def _say(self, station: int, say: Say) -> None:
        last = self._spoke.get((station, say.link))
        if last is not None and self.now - last < REST_NS:
            raise Violation(f"quiet: station {station} speaks on link {say.link} again after {self.now - last} ns")
        self._spoke[station, say.link] = self.now
        said = Said(say.link, self.count, say.hears, 0, tuple(self.frames[station][say.link]), (0,) * self.n, (0,) * self.n)
        for other in range(1, self.n + 1):
            path = self.paths.get((say.link, station, other))
            if path is not None and self.random.random() >= path.loss:
                self._order += 1
                arrives = self.now + self.delay[say.link]
                heapq.heappush(self._under_way, (arrives, self._order, station, other, say.link, said))

    def _deliver(self) -> None:
        while self._under_way and self._under_way[0][0] <= self.now:
            _, _, station, other, link, said = heapq.heappop(self._under_way)
            if other in self.alive:
                self.heard[other][link][station - 1] = self.now
                self.frames[other][link][station - 1] += 1
                read = Said.read(said.packed())
                assert read == said
                self.judges[other].on_links(self.now, station, link, said)

    # ---- checks

    def _spread(self, station: int) -> tuple[int, ...]:
        use = self.use.get(station)
        return use.links if use is not None and use.mode is Mode.STRIPE else ()

    def _both_ways(self, link: int, station: int) -> Iterator[Path]:
        for other in self.alive:
            if other != station:
                yield self.paths[link, station, other]
                yield self.paths[link, other, station]

    def _check(self) -> None:
        for station in self.alive:
            for link in self.links:
                dead = any(
                    p.dead_since is not None and self.now - p.dead_since > FOUND_NS for p in self._both_ways(link, station)
                )
                if dead:
                    self.fell[station, link] = self.now
            for link in self._spread(station):
                if self.fell.get((station, link)) == self.now:
                    raise Violation(f"truth: station {station} spreads data over link {link}, which is dead")
                fell = self.fell.get((station, link))
                if fell is not None and self.now - fell < HOLD_FIRST_NS * 9 // 10:
                    raise Violation(f"held: station {station} uses link {link} {(self.now - fell) // MS} ms after its fall")

    def _all_is_back(self) -> None:
        for station, judge in self.judges.items():
            down = [key for key, state in judge.states.items() if state is not State.UP]
            due = {link for link in self.links if judge.hold_until_ns(link) <= self.now}  # six falls are held for 32 s
            if down or (len(due) > 1 and not due <= set(self._spread(station))):
                raise Violation(f"back: station {station} uses {self._spread(station)} of {self.links}, and {down} are not up")
