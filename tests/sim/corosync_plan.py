"""A run of the simulation of corosync's stand-in."""

from __future__ import annotations

import random
from dataclasses import dataclass

from zenjun.proto.service.base import Place, Source
from zenjun.proto.service.corosync.votequorum import Config

FAULTS = ("kill", "daemon", "cut", "cut", "reopen", "pause", "stop", "odd")
"""kill: a stand-in is killed. daemon: its zenjund. cut: a station is cut off. reopen: the instance ends at all. pause: a stand-in
stops for a while. stop: cfg's kill_node. odd: a stand-in starts with another nodelist."""


@dataclass(slots=True)
class Plan:
    """One run, drawn from its seed; a test may fix any of it."""

    seed: int
    stations: int = 3
    steps: int = 200
    faults: float = 0.05
    kinds: tuple[str, ...] = FAULTS
    lag: float = 0.4
    """How far stand-ins are behind the order."""
    dies: float = 0.001
    """A stand-in dies between two of its effects."""
    back: float = 0.15
    """How soon those come again that have gone."""
    votes: float = 0.0
    """Votes are set."""
    alone_after: int = 0
    """Seconds."""
    linger: int = 0
    """Seconds."""
    room: int = 128
    two_node: bool = False
    waits: bool = False
    tie: bool = False
    parts: float = 0.1
    """Of messages that come in parts."""
    weight: int = 1
    """Votes of node 1."""
    pids: int = 4
    """Of a node's programs: the fewer, the more often one comes back as a process that has just ended."""

    @classmethod
    def draw(cls, seed: int) -> Plan:
        r = random.Random(seed)
        stations = r.choice([1, 2, 2, 3, 3, 3, 4, 5])
        return cls(
            seed,
            stations=stations,
            steps=r.choice([100, 200, 300]),
            faults=r.choice([0, 0.03, 0.08]),
            lag=r.choice([0.2, 0.5, 0.8]),
            dies=r.choice([0, 0, 0.003]),
            back=r.choice([0.3, 0.1]),
            votes=r.choice([0, 0, 0.03]),
            alone_after=r.choice([0, 0, 0, 2]),
            room=r.choice([128, 3, 5]),
            two_node=stations == 2 and r.random() < 0.6,
            waits=r.random() < 0.3,
            tie=stations == 2 and r.random() < 0.4,
            parts=r.choice([0.1, 0.4]),
            weight=r.choice([1, 1, 1, 2]),
            linger=r.choice([0, 0, 1]),
            pids=r.choice([4, 4, 2, 1]),
        )

    @property
    def is_two_node(self) -> bool:
        return self.two_node and not self.tie and self.stations == 2

    def config(self) -> Config:
        tie = self.tie and self.stations == 2
        votes = dict.fromkeys(range(1, self.stations + 1), 1)
        votes[1] = 1 if self.is_two_node or tie else self.weight
        waits = True if self.waits else None
        return Config(votes, two_node=self.is_two_node, wait_for_all=waits, auto_tie_breaker=tie)


@dataclass(slots=True)
class Item:
    """One place of the order; a view has no data."""

    place: Place
    source: Source
    data: bytes | None
    members: frozenset[Source]
