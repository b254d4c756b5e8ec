"""A run of the simulation of the directory, the places of its order, and the programs in it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from zenjun.proto.service.directory.entries import Place, Who

from .directory_load import NAMES


@dataclass(slots=True)
class Plan:
    """One run, drawn from its seed; a test may fix any of it."""

    seed: int
    stations: int = 3
    steps: int = 150
    names: tuple[str, ...] = NAMES
    wrong_clock: int = 0
    """Seconds by which one station's clock is off."""
    wrong_station: int = 0
    """Which one; 0: any."""
    faults: float = 0.06
    """Share of steps that are faults."""
    updates: float = 0.25
    registers: float = 0.1
    kinds: tuple[str, ...] = ("crash", "restart", "expel", "pause", "cut", "bad", "stranger", "save")
    operations: tuple[str, ...] = ()
    """Kinds of operations; (): all."""
    asks: int = 1
    """How often processes ask each other, besides all else."""

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Any run."""
        r = random.Random(seed)
        return cls(
            seed,
            stations=r.randint(1, 5),
            steps=r.choice([60, 150, 250]),
            names=r.choice([NAMES, NAMES[:3], (*NAMES[:2], "web")]),
            wrong_clock=r.choice([0, 0, 3600, -3600, 7]),
            faults=r.choice([0, 0.05, 0.1]),
            updates=r.choice([0.15, 0.3]),
            registers=r.choice([0.05, 0.2]),
        )


@dataclass(slots=True)
class Item:
    """One place of the order."""

    place: Place
    kind: str
    sender: Who = (0, 0)
    data: bytes = b""
    members: frozenset[Who] = frozenset()
    joined: frozenset[Who] = frozenset()


@dataclass(slots=True)
class Lease:
    """A program that holds a registration."""

    who: Who
    number: int
    name: str
    ttl: bool
    alive: bool = True
    gone_at: int = 0
    """When it stopped to renew, or closed."""
    held: Place | None = None
    """Version by which it was told that it has the exclusive name."""
    mailbox: list[int] = field(default_factory=list)
    """Signs of life that the process has not read."""
