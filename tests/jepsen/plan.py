"""What is done to a cluster and when, drawn from a seed: the same seed gives the same plan, on any machine."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

START_MS: Final = 1000
"""Peace at the start, so that something is under way when the first fault comes."""
SHORT_MS: Final = (40, 350)
"""Below the time after which a stop is proposed."""
MIDDLE_MS: Final = (450, 1500)
LONG_MS: Final = (2300, 4500)
"""Beyond the time after which a blocked station gives its incarnation up."""
WEIGHTS: Final = {"kill": 5, "pause": 4, "partition": 4, "oneway": 3, "loss": 2, "cable": 2, "leave": 1, "massacre": 1}
PROCESS: Final = frozenset({"kill", "pause", "leave", "massacre"})
"""These need the daemon to be there: one of them at a time for a station."""
NETWORK_MAX: Final = 2
"""Network faults at the same time: with more of them hardly anything is ever sent."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing done to the cluster, and undone.

    kind: ``kill`` SIGKILL, started again at the end · ``pause`` SIGSTOP, SIGCONT · ``leave`` SIGTERM, started again ·
    ``massacre`` SIGKILL of several at once · ``partition`` ``stations`` and the rest do not hear each other · ``oneway``
    ``stations`` are not heard by ``others`` · ``loss`` of ``fraction`` of the frames towards ``stations`` · ``cable`` the
    bridge's ports of ``stations`` are down.
    """

    number: int
    kind: str
    begin_ms: int
    end_ms: int
    stations: tuple[int, ...]
    others: tuple[int, ...] = ()
    fraction: float = 0.0

    def __str__(self) -> str:
        words = [f"{self.begin_ms:7d} ms  {self.kind} {','.join(map(str, self.stations))}"]
        if self.others:
            words.append(f"unheard by {','.join(map(str, self.others))}")
        if self.fraction:
            words.append(f"{self.fraction:.0%}")
        return " ".join(words) + f" for {self.end_ms - self.begin_ms} ms"


def draw(seed: int, seconds: float, stations: int) -> list[Fault]:
    """Faults in the order of their beginning; all have ended after ``seconds``.

    Process faults of one station do not overlap, of different stations they may, and network faults overlap with everything.
    """
    rng = random.Random(seed)
    end = int(seconds * 1000)
    faults: list[Fault] = []
    at = START_MS
    while at < end - SHORT_MS[1]:
        fault = _one(rng, len(faults) + 1, at, end, stations, faults)
        if fault is not None:
            faults.append(fault)
        # Often one on top of the other, sometimes time enough for everybody to come back.
        at += rng.choice((rng.randrange(1, 60), rng.randrange(100, 900), rng.randrange(1000, 2500), rng.randrange(3000, 5000)))
    return faults


def _one(rng: random.Random, number: int, at: int, end: int, stations: int, before: list[Fault]) -> Fault | None:
    """A fault that begins now, or None if what was drawn does not fit."""
    kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    low, high = rng.choices((SHORT_MS, MIDDLE_MS, LONG_MS), (2, 4, 3))[0]
    if kind in ("kill", "leave", "massacre"):
        low, high = rng.choice(((1, 50), MIDDLE_MS, LONG_MS))
    until = min(end, at + rng.randrange(low, high))
    everybody = list(range(1, stations + 1))
    active = [f for f in before if f.end_ms > at]
    if kind in PROCESS:
        busy = {s for f in active if f.kind in PROCESS for s in f.stations}
        free = [s for s in everybody if s not in busy]
        count = rng.randrange(2, stations + 1) if kind == "massacre" else 1
        return Fault(number, kind, at, until, tuple(sorted(rng.sample(free, count)))) if len(free) >= count else None
    if sum(f.kind not in PROCESS for f in active) >= NETWORK_MAX:
        return None
    if kind == "loss":
        hit = everybody if rng.random() < 0.5 else rng.sample(everybody, rng.randrange(1, stations))
        return Fault(number, kind, at, until, tuple(sorted(hit)), (), rng.choice((0.02, 0.05, 0.1, 0.25)))
    if kind == "cable":
        return Fault(number, kind, at, until, (rng.choice(everybody),))
    part = tuple(sorted(rng.sample(everybody, rng.randrange(1, stations // 2 + 1) if stations > 1 else 1)))
    rest = tuple(s for s in everybody if s not in part)
    if kind == "partition":
        return Fault(number, kind, at, until, part)
    mute, deaf = (part, rest) if rng.random() < 0.5 else (rest, part)
    if rng.random() < 0.5:  # one link, one way
        mute, deaf = (rng.choice(mute),), (rng.choice(deaf),)
    return Fault(number, kind, at, until, mute, deaf)
