"""Sums over the rows, by which stations compare their directories (rule E8).

A sum is that of the BLAKE2b-128 of all rows, modulo 2^128. It does not depend on their order, and a row can be taken out of it
again. With exclusive or in place of the addition two equal rows would cancel.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from .store import Table

MODULUS: Final = 1 << 128
MAIN: Final = frozenset({Table.ENTRY, Table.ZONE})
"""Their rows make the main sum; those of the other summed tables the rest."""


def row_sum(table: Table, key: str, row: bytes) -> int:
    """What a row adds to its sum. Entries and zones name themselves; the other rows count with table and key."""
    if table in MAIN:
        return int.from_bytes(blake2b(row, digest_size=16).digest(), "big")
    return int.from_bytes(blake2b(b"%d:%s:%s" % (table, key.encode("ascii"), row), digest_size=16).digest(), "big")


def sums_of(rows: Iterable[tuple[Table, str, bytes]]) -> tuple[int, int]:
    """The main sum and the rest of a store's summed rows. Raises ValueError for an entry under another name than its own, which
    the sum does not see."""
    main = rest = 0
    for table, key, row in rows:
        if table is Table.ENTRY:
            if f'"n":"{key}"'.encode("ascii") not in row:
                raise ValueError(f"the row of {key} is none of this entry")
            main += int.from_bytes(
                blake2b(row, digest_size=16).digest(), "big"
            )  # as ``row_sum``, which is called a million times
        elif table in MAIN:
            main += row_sum(table, key, row)
        else:
            rest += row_sum(table, key, row)
    return main % MODULUS, rest % MODULUS
