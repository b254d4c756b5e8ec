"""What a scenario does and when, worked out from its seed: the same seed gives the same plan, on any machine."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..lab.impair import Impairment
from .model import KINDS, RANDOM_KINDS, Entry, Pick, Scenario, listing

START_MS: Final = 1000
"""Peace at the start of a random phase, so that something is under way when the first fault comes."""
SHORT_MS: Final = (40, 350)
"""Below the time after which a stop is proposed."""
MIDDLE_MS: Final = (450, 1500)
LONG_MS: Final = (2300, 4500)
"""Beyond the time after which a blocked station gives its incarnation up."""
WEIGHTS: Final = dict(zip(RANDOM_KINDS, (5, 1, 1, 4, 4, 3, 2, 2, 1), strict=True))
MTUS: Final = (600, 900, 1280, 1492)
"""Bytes; the least is enough for every PDU of 16 stations."""
NETWORK_MAX: Final = 2
"""Network faults at the same time: with more of them hardly anything is ever sent."""


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that is done, and undone if it has an end; times from the beginning of the time line."""

    number: int
    do: str
    begin_ms: int
    end_ms: int | None = None
    stations: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    """``cut``: who does not hear; ``expel``: who says so, if anybody is named."""
    groups: tuple[tuple[int, ...], ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    link: int = 0
    """As in ``Entry``."""

    def __str__(self) -> str:
        words = [] if self.do in ("loss", "impair", "mtu", "mac") else [self.do]
        if self.do in ("loss", "impair"):
            told = Impairment().changed(dict(self.values)).describe() if _stands_alone(self.values) else str(dict(self.values))
            words += [told or "no impairment", f"at {listing(self.stations)}"]
        elif self.do in ("mtu", "mac"):
            words += [*(f"{key} {value}" for key, value in self.values.items()), f"at {listing(self.stations)}"]
        elif self.groups:
            words.append(" | ".join(map(listing, self.groups)) + (" | the rest" if len(self.groups) == 1 else ""))
        elif self.stations:
            words.append(listing(self.stations))
        if self.do == "cut":
            words.append(("and " if self.values.get("both") else "unheard by ") + listing(self.others))
        elif self.others:
            words.append(f"by {listing(self.others)}")
        if self.do == "load":
            words += [f"{key} {_plain(value)}" for key, value in self.values.items()]
        elif self.do == "rename":
            words.append(f"to {self.values['to']}")
        if self.link:
            words.append(f"on link {self.link}")
        if self.end_ms is not None:
            words.append(f"for {self.end_ms - self.begin_ms} ms")
        return " ".join(words)


def _plain(value: Any) -> str:
    """A value of a load in words: bounds with a dash."""
    if not isinstance(value, tuple):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if len(value) == 2 and all(isinstance(each, int) for each in value):
        return str(value[0]) if value[0] == value[1] else f"{value[0]}-{value[1]}"
    return ",".join(_plain(each) for each in value)


def _stands_alone(changes: Mapping[str, Any]) -> bool:
    try:
        Impairment().changed(dict(changes))
    except ValueError:
        return False
    return True


def plan(scenario: Scenario, seed: int) -> list[Act]:
    """Everything on the time line in the order of its beginning, random phases drawn out."""
    rng = random.Random(seed)
    acts: list[Act] = []
    for entry in scenario.timeline:
        begin = rng.randint(*entry.t)
        end = None if entry.lasts is None else begin + rng.randint(*entry.lasts)
        acts += _expanded(entry, rng, begin, end, scenario.stations)
    acts.sort(key=lambda act: act.begin_ms)
    return [replace(act, number=number) for number, act in enumerate(acts, 1)]


def _expanded(entry: Entry, rng: random.Random, begin: int, end: int | None, stations: int) -> Iterator[Act]:
    if entry.do == "random":
        assert end is not None
        drawn = draw(rng.getrandbits(63), (end - begin) / 1000, stations, entry.values["faults"])
        yield from (replace(act, begin_ms=begin + act.begin_ms, end_ms=begin + (act.end_ms or 0)) for act in drawn)
        return
    of_all = KINDS[entry.do].required == ("groups",) or entry.do in ("heal", "load", "join")
    picked = () if of_all else _picked(entry.stations, rng, stations)
    yield Act(0, entry.do, begin, end, picked, _picked(entry.others, rng, stations), entry.groups, entry.values, entry.link)


def _picked(pick: Pick, rng: random.Random, stations: int) -> tuple[int, ...]:
    return tuple(sorted(rng.sample(range(1, stations + 1), pick.draw))) if pick.draw else pick.numbers


# ---- random phases


def draw(seed: int, seconds: float, stations: int, kinds: Collection[str] = RANDOM_KINDS) -> list[Act]:
    """Faults in the order of their beginning; all have ended after ``seconds``.

    Process faults of one station do not overlap, of different stations they may, and network faults overlap with everything.
    """
    rng = random.Random(seed)
    end = int(seconds * 1000)
    acts: list[Act] = []
    at = min(START_MS, end // 10)
    while at < end - SHORT_MS[1]:
        act = _one(rng, len(acts) + 1, at, end, stations, acts, kinds)
        if act is not None:
            acts.append(act)
        # Often one on top of the other, sometimes with time for all stations to come back.
        at += rng.choice((rng.randrange(1, 60), rng.randrange(100, 900), rng.randrange(1000, 2500), rng.randrange(3000, 5000)))
    return acts


def _one(
    rng: random.Random, number: int, at: int, end: int, stations: int, before: list[Act], kinds: Collection[str]
) -> Act | None:
    """A fault that begins now, or None if what was drawn does not fit."""
    drawn = rng.choices(list(kinds), [WEIGHTS[kind] for kind in kinds])[0]
    low, high = rng.choices((SHORT_MS, MIDDLE_MS, LONG_MS), (2, 4, 3))[0]
    if drawn in ("kill", "stop", "massacre"):
        low, high = rng.choice(((1, 50), MIDDLE_MS, LONG_MS))
    until = min(end, at + rng.randrange(low, high))
    everybody = list(range(1, stations + 1))
    active = [act for act in before if act.end_ms is not None and act.end_ms > at]
    if drawn == "massacre" or KINDS[drawn].process:
        busy = {s for act in active if KINDS[act.do].process for s in act.stations}
        free = [s for s in everybody if s not in busy]
        count = rng.randrange(min(2, stations), stations + 1) if drawn == "massacre" else 1
        if len(free) < count:
            return None
        return Act(number, "kill" if drawn == "massacre" else drawn, at, until, tuple(sorted(rng.sample(free, count))))
    if sum(not KINDS[act.do].process for act in active) >= NETWORK_MAX:
        return None
    if drawn == "loss":
        hit = everybody if rng.random() < 0.5 or stations == 1 else rng.sample(everybody, rng.randrange(1, stations))
        return Act(number, drawn, at, until, tuple(sorted(hit)), values={"loss": rng.choice((0.02, 0.05, 0.1, 0.25))})
    if drawn == "mtu":
        busy = {s for act in active if act.do == "mtu" for s in act.stations}  # one MTU at a time for an interface
        free = [s for s in everybody if s not in busy]
        return Act(number, drawn, at, until, (rng.choice(free),), values={"mtu": rng.choice(MTUS)}) if free else None
    if drawn == "cable-out":
        return Act(number, drawn, at, until, (rng.choice(everybody),))
    part = tuple(sorted(rng.sample(everybody, rng.randrange(1, stations // 2 + 1) if stations > 1 else 1)))
    rest = tuple(s for s in everybody if s not in part)
    if drawn == "partition":
        return Act(number, drawn, at, until, groups=(part,))
    mute, deaf = (part, rest) if rng.random() < 0.5 else (rest, part)
    if rng.random() < 0.5 and mute and deaf:  # one link, one way
        mute, deaf = (rng.choice(mute),), (rng.choice(deaf),)
    return Act(number, drawn, at, until, mute, deaf)
