"""What the rows of a snapshot come to: sums, counts, and the rows from which others are made; counted part by part, as they
come."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from .store import Table
from .sums import MAIN, row_sum

_TARGET: Final = rb'\["[!#-\[\]-~]+",[0-9]+,[0-9]+,"(?:station:[0-9]+)?"\]'
_PLAIN: Final = re.compile(
    rb'\{"a":\[(?:' + _TARGET + rb"(?:," + _TARGET + rb')*)?\],"k":"addr",(?:"m":\{[^{}\\]*\},)?"n":"([a-z0-9._-]+)",'
    rb'"o":"[!#-\[\]-~]+","s":"[a-z]+",(?:"t":[0-9]+,)?"v":"[0-9.]+","z":"([a-z0-9_-]+)"\}'
)
"""The row of an entry without leases, and with nothing that ends or begins: nothing but the count of its zone depends on it."""


class Tally:
    """Of some rows. The sums are not reduced yet."""

    __slots__ = ("main", "names", "outcomes", "rest", "special")

    def __init__(self) -> None:
        self.main = self.rest = self.outcomes = 0
        self.names: Counter[str] = Counter()
        """By zone, without those in ``special``."""
        self.special: list[tuple[Table, str, bytes]] = []
        """Rows that have to be looked at one by one."""

    def take(self, rows: Iterable[tuple[Table, str, bytes]]) -> None:
        """Count summed rows."""
        zones = []
        for table, key, row in rows:
            if table is Table.ENTRY:
                self.main += int.from_bytes(blake2b(row, digest_size=16).digest(), "big")  # as ``row_sum``
                plain = _PLAIN.fullmatch(row)
                if plain is not None and plain[1] == key.encode("ascii"):
                    zones.append(plain[2])
                else:
                    self.special.append((table, key, row))
            elif table in MAIN:
                self.main += row_sum(table, key, row)
                self.special.append((table, key, row))
            else:
                self.rest += row_sum(table, key, row)
                if table is Table.OUTCOME:
                    self.outcomes += 1
                else:
                    self.special.append((table, key, row))
        for zone, number in Counter(zones).items():
            self.names[zone.decode("ascii")] += number

    def add(self, other: Tally) -> None:
        """Count what another one has counted."""
        self.main += other.main
        self.rest += other.rest
        self.outcomes += other.outcomes
        self.names.update(other.names)
        self.special += other.special
