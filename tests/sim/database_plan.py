"""A run of the simulation of the database."""

from __future__ import annotations

import random
from dataclasses import dataclass

from zenjun.proto.service.base import Source
from zenjun.proto.service.database.keeping import ALL

from .database_load import KINDS

Place = tuple[int, int, int]


@dataclass(slots=True)
class Plan:
    """One run, drawn from its seed; a test may fix any of it."""

    seed: int
    stations: int = 3
    steps: int = 150
    faults: float = 0.05
    kinds: tuple[str, ...] = KINDS
    faulty: tuple[str, ...] = ("crash", "power", "power-all", "expel", "reopen", "disk", "blank")
    versions_max: int = 65536
    """Of the window."""
    locks: float = 0.02
    required: bool = False
    """Station 1 is required, and one more."""
    lag: float = 0.5
    """How far sites are behind the order."""
    syncs: float = 0.3
    back: float = 0.1
    """How soon those come again that have gone."""
    open_wait_ns: int = 2_000_000_000
    from_file: bool = False
    """The database begins with what one station has in a file."""
    rots: bool = False
    """In the end a row of one copy changes by itself, and a comparison finds it."""
    releases: tuple[int, ...] = (3054000,)
    """Of SQLite: a service that starts has one of them; in the end all have the first one."""
    part_bytes: int = 256 * 1024
    """Longer transactions are sent in parts."""
    catch_up_max: int = ALL
    """Of the messages that a site has kept, followed at once."""

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Any run."""
        r = random.Random(seed)
        return cls(
            seed,
            stations=r.choice([1, 2, 3, 3, 3, 4, 5]),
            steps=r.choice([80, 150, 250]),
            faults=r.choice([0, 0.03, 0.08]),
            versions_max=r.choice([65536, 5, 12]),
            locks=r.choice([0, 0.03]),
            required=r.random() < 0.15,
            lag=r.choice([0.2, 0.5, 0.8]),
            syncs=r.choice([0.1, 0.4]),
            back=r.choice([0.1, 0.04]),
            open_wait_ns=r.choice([2_000_000_000, 50_000_000]),
            releases=r.choice([(3054000,), (3054000,), (3054000, 3054000, 3055000)]),
            rots=r.random() < 0.3,
            from_file=r.random() < 0.2,
            part_bytes=r.choice([256 * 1024, 100, 40]),
            catch_up_max=r.choice([ALL, 1, 3]),
        )


@dataclass(slots=True)
class Item:
    """One place of the order; a view has no data."""

    place: Place
    source: Source
    data: bytes | None
    members: frozenset[Source]
