"""Reads changesets, the body of a transaction.

The format is SQLite's (https://www.sqlite.org/session/c_changeset_intro.html, and the comment "CHANGESET FORMAT" in its source
ext/session/sqlite3session.c). It comes from other stations, so nothing is believed: ``parse`` raises ValueError for anything that
is not one whole changeset, and its work is bounded by the number of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

COLUMNS_MAX: Final = 32767
"""SQLite's own limit of columns, at most."""
KEY_BYTES: Final = 8
"""Size of a row's hash."""
KEPT_BYTES_MAX: Final = 64 * 1024
"""Of a changeset whose summary is kept for a while."""
FEW_MAX: Final = 8
"""Changes of a changeset whose summary has them."""
_TABLE: Final = 0x54
_FIXED: Final = {0: 0, 1: 8, 2: 8, 5: 0}
"""Type of a value to its bytes: not recorded, integer, float, NULL."""
_COUNTED: Final = (3, 4)
"""Text, BLOB."""
_INTEGER: Final = 1


class Op(IntEnum):
    """What happened to a row; SQLite's codes."""

    DELETE = 9
    INSERT = 18
    UPDATE = 23


_OPS: Final = {int(op): op for op in Op}
_SHORT_MAX: Final = 0x7F
"""The largest number of one byte."""


class Table(NamedTuple):
    """The head of a table in a changeset."""

    name: str
    key: tuple[int, ...]
    """Place of each column in the key, counted from 1; 0: not in it. A table without a key has its rowid as the first column."""


class Change(NamedTuple):
    """One row."""

    table: Table
    op: Op
    old: tuple[bytes, ...]
    """Encoded values before, by column; empty for INSERT. A value that is not recorded is the byte 0."""
    new: tuple[bytes, ...]
    """Encoded values afterwards; empty for DELETE."""

    @property
    def key(self) -> tuple[bytes, ...]:
        """Encoded values of the key's columns, in the order of the columns."""
        values = self.new if self.op is Op.INSERT else self.old
        return tuple(value for value, place in zip(values, self.table.key, strict=True) if place)


class _Reader:
    """A cursor in the bytes; every read is checked."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        if self.at >= len(self.data):
            raise ValueError("changeset is cut")
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        """SQLite's: seven bits a byte, the highest first, at most nine bytes. Sizes here fit into five."""
        value = 0
        for _ in range(5):
            byte = self.byte()
            value = value << 7 | byte & 0x7F
            if not byte & 0x80:
                return value
        raise ValueError("changeset: size too large")

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise ValueError("changeset is cut")
        self.at += size
        return self.data[self.at - size : self.at]

    def table(self) -> Table:
        count = self.varint()
        if not 0 < count <= COLUMNS_MAX:
            raise ValueError(f"changeset: {count} columns")
        key = tuple(self.take(count))
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise ValueError("changeset is cut")
        name = self.take(end + 1 - self.at)[:-1].decode()
        if not any(key):
            raise ValueError(f"changeset: {name} has no key")
        return Table(name, key)

    def record(self, columns: int) -> tuple[bytes, ...]:
        data, at, values = self.data, self.at, []
        for _ in range(columns):
            start = at
            kind = data[at] if at < len(data) else -1
            if (size := _FIXED.get(kind)) is not None:
                at += 1 + size
            elif kind in _COUNTED:
                self.at = at + 1
                size = self.varint()
                at = self.at + size
            elif kind < 0:
                raise ValueError("changeset is cut")
            else:
                raise ValueError(f"changeset: no such type of value: {kind}")
            values.append(data[start:at])
        if at > len(data):
            raise ValueError("changeset is cut")
        self.at = at
        return tuple(values)


def parse(data: bytes) -> Iterator[Change]:
    """The changes of a changeset, in its order. Raises ValueError when it comes to what is malformed."""
    reader = _Reader(data)
    table: Table | None = None
    while reader.at < len(data):
        kind = reader.byte()
        if kind == _TABLE:
            table = reader.table()
            continue
        if table is None:
            raise ValueError("changeset does not begin with a table")
        op = Op(kind)
        reader.byte()  # whether a trigger did it
        columns = len(table.key)
        old = reader.record(columns) if op is not Op.INSERT else ()
        new = reader.record(columns) if op is not Op.DELETE else ()
        change = Change(table, op, old, new)
        if any(value[0] in (0, 5) for value in change.key):
            raise ValueError(f"changeset: {table.name}: a key without a value")
        if op is not Op.UPDATE and b"\0" in (old or new):  # SQLite would say that the database is damaged
            raise ValueError(f"changeset: {table.name}: a row without all of its values")
        yield change


@lru_cache(256)
def _head(data: bytes) -> tuple[Table, tuple[int, ...]] | None:
    """The table whose head this is, and the places of its key, from 0; None: it is no head."""
    reader = _Reader(data)
    try:
        if reader.byte() != _TABLE:
            return None
        table = reader.table()
    except ValueError:
        return None
    return (table, tuple(i for i, place in enumerate(table.key) if place)) if reader.at == len(data) else None


def _single(data: bytes) -> tuple[Change, tuple[bytes, ...]] | None:
    """The change of a changeset that has one, as most have, and its key; None: ``parse`` has to look, and finds what is wrong."""
    if len(data) < 2 or data[1] > _SHORT_MAX:
        return None
    end = data.find(0, 2 + data[1]) + 1
    found = _head(data[:end])
    if found is None or end >= len(data) or (op := _OPS.get(data[end])) is None:
        return None
    table, places = found
    columns, at, size = len(table.key), end + 2, len(data)
    values = []
    for _ in range(2 * columns if op is Op.UPDATE else columns):
        if at >= size:
            return None
        start, kind = at, data[at]
        if (fixed := _FIXED.get(kind)) is not None:
            at += 1 + fixed
        elif kind in _COUNTED and at + 1 < size and data[at + 1] <= _SHORT_MAX:
            at += 2 + data[at + 1]
        else:
            return None
        values.append(data[start:at])
    key = tuple([values[place] for place in places])
    if at != size or any(value[0] in (0, 5) for value in key) or (op is not Op.UPDATE and b"\0" in values):
        return None
    first = tuple(values[:columns])
    old, new = ((), first) if op is Op.INSERT else (first, tuple(values[columns:]))
    return Change(table, op, old, new), key


def varint(number: int) -> bytes:
    """SQLite's, of a number that is not negative."""
    out = [number & 0x7F]
    while number := number >> 7:
        out.append(number & 0x7F | 0x80)
    return bytes(reversed(out))


class Numbered:
    """A changeset that does nothing but insert rows of one table whose key is a number, one after another. Raises ValueError."""

    def __init__(self, data: bytes) -> None:
        self.changes = summary(data).few or tuple(parse(data))
        tables = {change.table for change in self.changes}
        if len(tables) != 1:
            raise ValueError("changeset: rows of one table are numbered")
        (self.table,) = tables
        places = [i for i, place in enumerate(self.table.key) if place]
        if len(places) != 1 or any(c.op is not Op.INSERT or c.new[places[0]][0] != _INTEGER for c in self.changes):
            raise ValueError(f"changeset: {self.table.name}: inserted rows are numbered")
        self._place = places[0]
        self.numbers = sorted(int.from_bytes(change.new[self._place][1:], "big", signed=True) for change in self.changes)
        """Of its rows."""

    def begin_at(self, first: int) -> bytes:
        """The same with these numbers: *first* for the lowest, and the others as far from it as they were."""
        by, at = first - self.numbers[0], self._place
        head = [bytes([_TABLE]), varint(len(self.table.key)), bytes(self.table.key), self.table.name.encode(), b"\0"]
        for change in self.changes:
            number = int.from_bytes(change.new[at][1:], "big", signed=True) + by
            head += [bytes([Op.INSERT, 0]), *change.new[:at], encoded_integer(number), *change.new[at + 1 :]]
        return b"".join(head)


def encoded_integer(number: int) -> bytes:
    """As a changeset has it. Raises OverflowError."""
    return bytes([_INTEGER]) + number.to_bytes(8, "big", signed=True)


def row_hash(table: str, key: tuple[bytes, ...]) -> bytes:
    """What a row is called in certification: of table and key, equal at all sites."""
    parts = [_named(table)]
    for part in key:
        parts += (len(part).to_bytes(4, "big"), part)
    return blake2b(b"".join(parts), digest_size=KEY_BYTES).digest()


@lru_cache(256)
def _named(table: str) -> bytes:
    name = table.encode()
    return len(name).to_bytes(4, "big") + name


class Summary(NamedTuple):
    """What a changeset is about."""

    tables: frozenset[Table]
    rows: frozenset[bytes]
    """Hashes of the rows that it changes."""
    few: tuple[Change, ...]
    """The changes, if they are ``FEW_MAX`` at most; otherwise empty."""


def summary(data: bytes) -> Summary:
    """What a changeset is about: certification and the copy ask, one after the other. Raises ValueError."""
    return _kept(data) if len(data) <= KEPT_BYTES_MAX else _summary(data)


def _summary(data: bytes) -> Summary:
    if (one := _single(data)) is not None:
        change, key = one
        return Summary(frozenset((change.table,)), frozenset((row_hash(change.table.name, key),)), (change,))
    tables: set[Table] = set()
    rows: set[bytes] = set()
    few: list[Change] = []
    for change in parse(data):
        tables.add(change.table)
        rows.add(row_hash(change.table.name, change.key))
        if len(few) <= FEW_MAX:
            few.append(change)
    return Summary(frozenset(tables), frozenset(rows), tuple(few) if len(few) <= FEW_MAX else ())


_kept: Final = lru_cache(8)(_summary)
