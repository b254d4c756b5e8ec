"""A comparison of all rows: each active site sums those at one place, and who differs from most has a damaged copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from ..base import Effect, Source
from .messages import DIGEST_BYTES

UNREADABLE: Final = bytes(DIGEST_BYTES)
"""The sum of a copy whose rows cannot be read."""


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


def complained(sums: bytes) -> bytes:
    """What a site sends in the place of the sum of its rows if SQLite finds something wrong with its copy."""
    return blake2b(sums, digest_size=DIGEST_BYTES, person=b"zenjun damaged").digest()


def damaged(said: Mapping[Source, bytes]) -> tuple[frozenset[Source], bool]:
    """The sites whose copies are damaged: they cannot be read, have other rows than most, or SQLite finds something wrong with
    them that it does not find with another copy of the same rows. What it finds wrong with all of them is in the rows. Second:
    no rows are those of most sites, so nobody knows which are right."""
    plain = {complained(sums): sums for sums in said.values()}
    rows = {source: plain.get(sums, sums) for source, sums in said.items() if sums != UNREADABLE}
    if not rows:
        return frozenset(), True
    whole = {sums for source, sums in rows.items() if said[source] == sums}
    outside = {source for source in said if source not in rows or (rows[source] in whole and said[source] != rows[source])}
    ranks = Counter(rows.values()).most_common(2)
    is_tied = len(ranks) > 1 and ranks[0][1] == ranks[1][1]
    if not is_tied:
        outside |= {source for source in rows if rows[source] != ranks[0][0]}
    return frozenset(outside), is_tied
