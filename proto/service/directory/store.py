"""Where the rows of a directory are: the interface of the store, and one in memory.

The process has its rows in SQLite, simulation and tests in memory; the state machine sees neither. It reads and writes the rows
that an input needs, by their keys, so a million names cost no memory here.

Tables whose rows belong to the directory's content are summed up (``sums.py``). The others can be made from these, or are the
station's own.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, Protocol

from .entries import NOWHERE, Place


class Table(IntEnum):
    """The tables, and their keys."""

    __hash__ = int.__hash__  # an enumeration's is a function in Python, and tables are keys everywhere

    ENTRY = 1
    """name: ``entries.entry_row``"""
    ZONE = 2
    """zone: ``entries.zone_row``"""
    OUT = 3
    """address or ``station:k`` that is out of use: its end in seconds, 0: none"""
    WAITING = 4
    """name, place and number in the message: a lease that waits for an exclusive name"""
    CURSOR = 5
    """name: how many targets ``take`` has given out"""
    OUTCOME = 6
    """client and counter of an update: its outcome"""
    SCALAR = 7
    """``view``: the processes in the group, and their last DUEs"""
    # From here on: made from the others. A snapshot has them not; ``State.load_rows`` makes them.
    LEASE = 16
    """lease and name: what goes with it"""
    TIMER = 17
    """due instant, kind, name: what ends or begins then"""
    # The station's own.
    META = 32
    """``state``: place, sums, counts"""
    GONE = 33
    """place and number: table and key of a row that was removed then, for deltas"""


SUMMED: Final = frozenset({Table.ENTRY, Table.ZONE, Table.OUT, Table.WAITING, Table.CURSOR, Table.OUTCOME, Table.SCALAR})
"""What a snapshot consists of."""


class Store(Protocol):
    """Rows by table and key. Keys are ASCII and compare as bytes."""

    def get(self, table: Table, key: str) -> bytes | None:
        """A row, None: there is none."""

    def put(self, table: Table, key: str, row: bytes, place: Place) -> None:
        """Write a row; ``place`` is that of the input which did it, for deltas."""

    def delete(self, table: Table, key: str) -> None:
        """Remove a row, which is there."""

    def scan(self, table: Table, start: str, end: str) -> Iterator[tuple[str, bytes]]:
        """The rows with start <= key < end in the order of their keys. Rows may be written and removed meanwhile; a row that is
        there all the time comes once."""

    def count(self, table: Table) -> int:
        """Number of rows of a table. May take long: it is called when a state is loaded."""


class MemoryStore:
    """A store in memory."""

    def __init__(self) -> None:
        self.rows: dict[Table, dict[str, tuple[bytes, Place]]] = {table: {} for table in Table}
        self._keys: dict[Table, list[str]] = {table: [] for table in Table}

    def get(self, table: Table, key: str) -> bytes | None:
        found = self.rows[table].get(key)
        return found[0] if found else None

    def put(self, table: Table, key: str, row: bytes, place: Place) -> None:
        rows = self.rows[table]
        if key not in rows:
            insort(self._keys[table], key)
        rows[key] = (row, place)

    def delete(self, table: Table, key: str) -> None:
        del self.rows[table][key]
        keys = self._keys[table]
        del keys[bisect_left(keys, key)]

    def scan(self, table: Table, start: str, end: str) -> Iterator[tuple[str, bytes]]:
        keys, rows = self._keys[table], self.rows[table]
        while True:
            i = bisect_left(keys, start)
            if i == len(keys) or keys[i] >= end:
                return
            key = keys[i]
            yield key, rows[key][0]
            start = key + "\0"

    def count(self, table: Table) -> int:
        return len(self.rows[table])

    def changed_since(self, place: Place) -> list[tuple[Table, str, bytes]]:
        """The summed rows that were written after ``place``, for a delta."""
        return [
            (table, key, row)
            for table in sorted(SUMMED)
            for key, (row, written) in sorted(self.rows[table].items())
            if written > place or place == NOWHERE
        ]

    def copy(self) -> MemoryStore:
        """Another store with these rows."""
        other = MemoryStore()
        other.rows = {table: dict(rows) for table, rows in self.rows.items()}
        other._keys = {table: list(keys) for table, keys in self._keys.items()}
        return other
