"""A comparison of all rows: each active site sums those at one place, and who differs from most has a damaged copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ..base import Effect, Source

_T = TypeVar("_T")


@dataclass(slots=True)
class Scrubbing:
    """One that is under way, or was last."""

    number: int = 0
    """Drawn by who began it."""
    sums: dict[Source, bytes | None] = field(default_factory=dict)
    """Of the sites that were active at its place; None: not said yet. Empty: none is under way."""

    def copy(self) -> Scrubbing:
        return Scrubbing(self.number, dict(self.sums))


@dataclass(frozen=True, slots=True)
class Sum(Effect):
    """Sum the rows as they are at this place, and give the result to ``on_sum``."""

    number: int


@dataclass(frozen=True, slots=True)
class Compared(Effect):
    """All have said what they have. outside: the sites whose copies are damaged. tied: there are two or more kinds of copies, and
    no kind is that of most sites: nobody knows which one is right."""

    number: int
    outside: frozenset[Source]
    tied: bool


def minority(said: Mapping[Source, _T]) -> tuple[frozenset[Source], bool]:
    """Who says something else than most; and whether there is no most."""
    ranks = Counter(said.values()).most_common(2)
    if len(ranks) > 1 and ranks[0][1] == ranks[1][1]:
        return frozenset(), True
    return frozenset(source for source, value in said.items() if value != ranks[0][0]), False
