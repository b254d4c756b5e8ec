"""A directory as a state to be transferred: chunks, deltas, and what a joiner makes of them (rule S3; docs/state-transfer.md).

The joiner of a full state fills an empty store and calls ``State.rebuild``; that of a delta calls ``State.merge``, in a
transaction or on a copy. Both compare ``digest`` with the offer's before they give up what they had.

Rows go in their order, in chunks that begin where a hash of the row's key says so. So two stations at one place list the same
chunks, one change makes one or two chunks other ones, and both sides read and write their files from front to end.

A delta is the rows written since the joiner's place and the keys removed since. Its digest is that of the whole state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final, NamedTuple
from zlib import crc32

from . import canon
from .draft import place_key
from .entries import Place, parse_place, place_text
from .state import State
from .store import SUMMED, Table

HEAD: Final = b"head"
"""Key of the chunk with the place."""
REMOVED: Final = b"gone"
"""Key of the chunk with what was removed, in a delta."""
ROWS_OF_CHUNK: Final = 128
"""Rows of a chunk of a full state, in the mean."""
ROWS_MAX: Final = 1024
"""Rows in one chunk of a delta."""
CHUNK_BYTES: Final = 1 << 20
"""A chunk ends with the row that exceeds this. A row has at most 48 KiB and little more, so a chunk has at most 4
MiB."""


_TABLES: Final = {b"%d" % table: table for table in SUMMED}


class KeyedRow(NamedTuple):
    """A row with its place in the store."""

    table: Table
    key: str
    row: bytes


def digest(state: State) -> bytes:
    """Both sums: equal ones at equal places mean the same directory."""
    return state.main.to_bytes(16, "big") + state.rest.to_bytes(16, "big")


def begins_chunk(table: Table, key: str) -> bool:
    """Whether a chunk of a full state begins with this row: with one of ``ROWS_OF_CHUNK``, by a hash of table and key."""
    return crc32(b"%d:%s" % (table, key.encode("ascii"))) % ROWS_OF_CHUNK == 0


def chunk_key(start: tuple[Table, str], part: int) -> bytes:
    """The key of a chunk. part: of the rows from ``start`` to the next one that begins a chunk, 0 unless they are many bytes."""
    text = b"%d:%s" % (start[0], start[1].encode("ascii"))
    return b"%s.%x" % (blake2b(text, digest_size=16).hexdigest().encode("ascii"), part)


def encode_rows(rows: Iterable[KeyedRow]) -> bytes:
    """The data of a chunk: a line for each row, in their order. Neither keys nor rows have tabs or ends of lines."""
    return b"\n".join([b"%d\t%s\t%s" % (table, key.encode("ascii"), row) for table, key, row in sorted(rows)])


def decode_rows(data: bytes) -> list[KeyedRow]:
    """The rows of a chunk. Raises ValueError."""
    if not data:
        return []
    try:
        lines = [line.split(b"\t") for line in data.split(b"\n")]
        return [KeyedRow(_TABLES[table], key.decode("ascii"), row) for table, key, row in lines]
    except KeyError:
        raise ValueError("a row of a table that is not transferred") from None


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
