"""A directory as a state to be transferred: chunks, deltas, and what a joiner makes of them (rule S3; docs/state-transfer.md).

The joiner of a full state fills an empty store and calls ``State.rebuild``; that of a delta calls ``State.merge``, in a
transaction or on a copy. Both compare ``digest`` with the offer's before they give up what they had.

A chunk is the rows of a bucket, so two stations at one place list the same chunks, and one change makes one chunk another one. A
delta is the rows written since the joiner's place and the keys removed since. Its digest is that of the whole state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from . import canon
from .draft import place_key
from .entries import Place, parse_place, place_text
from .state import State
from .store import SUMMED, Table

HEAD: Final = b"head"
"""Key of the chunk with the place."""
REMOVED: Final = b"gone"
"""Key of the chunk with what was removed, in a delta."""
ROWS_MAX: Final = 1024
"""Rows in one chunk of a delta."""
CHUNK_BYTES: Final = 1 << 20
"""A chunk of a delta ends with the row that exceeds this. A row has at most 48 KiB and little more, so a chunk has at most 4
MiB."""


class KeyedRow(NamedTuple):
    """A row with its place in the store."""

    table: Table
    key: str
    row: bytes


def digest(state: State) -> bytes:
    """Both sums: equal ones at equal places mean the same directory."""
    return state.main.to_bytes(16, "big") + state.rest.to_bytes(16, "big")


def bucket_key(number: int) -> bytes:
    return b"%04x" % number


def encode_rows(rows: Iterable[KeyedRow]) -> bytes:
    """The data of a chunk; the rows are sorted."""
    return canon.encode({"r": [[int(r.table), r.key, r.row.decode("ascii")] for r in sorted(rows)]})


def decode_rows(data: bytes) -> list[KeyedRow]:
    """The rows of a chunk. Raises ValueError."""
    out = []
    for item in canon.load(data).get("r", ()):
        table, key, row = item
        if table not in SUMMED:
            raise ValueError("a row of a table that is not transferred")
        out.append(KeyedRow(Table(table), str(key), str(row).encode("ascii")))
    return out


def encode_head(state: State) -> bytes:
    return canon.encode({"p": place_text(state.place)})


def decode_head(data: bytes) -> Place:
    """Raises ValueError."""
    return parse_place(str(canon.load(data).get("p")))


def encode_removed(keys: Iterable[tuple[Table, str]]) -> bytes:
    return canon.encode({"g": sorted([int(table), key] for table, key in keys)})


def decode_removed(data: bytes) -> list[tuple[Table, str]]:
    return [(Table(table), str(key)) for table, key in canon.load(data).get("g", ())]


def delta_possible(state: State, since: Place) -> bool:
    """Whether all removals after ``since`` are still known, and the joiner is not ahead."""
    return state.floor <= since <= state.place


def removed_since(state: State, since: Place) -> list[tuple[Table, str]]:
    """Keys that were removed after a place and have not been added again."""
    found: dict[tuple[Table, str], None] = {}
    for key, _ in state.store.scan(Table.GONE, f"{place_key(since)}!", "~"):
        _, table, gone = key.split(" ", 2)
        found[(Table(int(table)), gone)] = None
    return [(table, key) for table, key in found if state.store.get(table, key) is None]


def delta_chunks(state: State, since: Place, changed: Iterable[KeyedRow]) -> Iterator[tuple[bytes, bytes]]:
    """The chunks of a delta. changed: rows of summed tables written after ``since``."""
    yield HEAD, encode_head(state)
    yield REMOVED, encode_removed(removed_since(state, since))
    batch: list[KeyedRow] = []
    size = number = 0
    for row in changed:
        batch.append(row)
        size += len(row.row)
        if size > CHUNK_BYTES or len(batch) >= ROWS_MAX:
            yield b"d%d" % number, encode_rows(batch)
            batch, size, number = [], 0, number + 1
    if batch:
        yield b"d%d" % number, encode_rows(batch)
