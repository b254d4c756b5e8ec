"""One station's captures → the tables that the observer derives, as Parquet. No Spark, no Python object per frame.

A task of its own for each station, in whatever process: it needs the files and a folder to write to. Memory: the observer's
windows and one batch of columns, whatever the size of the captures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ....proto import wire
from ..native import CaptureDamage, Reader, ffi, lib
from . import schema

TABLES: Final = ("order", "messages", "transmissions", "views", "instances", "announced", "control", "control_rates", "findings")
"""In the order of enum zo_table."""
CAPACITY: Final = int(lib.ZO_CAPACITY)
_LIST: Final = 64
_CENSUS_STEP: Final = 100
_CENSUS_BYTES: Final = 64 << 20
"""How much of a capture is looked through for the station's first own PDU."""
_DELTA: Final = frozenset(
    {"clock", "seq", "frame", "position", "sent_ns", "seen_ns", "accepted_ns", "ordered_ns", "preack_ns", "acked_ns", "time_ns"}
    | {"first_ns", "last_ns", "first_seq"}
)
"""Columns that grow from row to row: their differences are small."""
_PLAIN: Final = frozenset({"payload_crc", "head_crc", "check", "digest", "derived", "seed"})
"""Columns of nothing but different values."""


def options(made: pa.Schema) -> dict[str, Any]:
    """How Parquet files with these columns are written."""
    numbers = {c.name for c in made if c.type == pa.int64()}
    return {
        "compression": "zstd",
        "use_dictionary": [c.name for c in made if c.name not in _DELTA | _PLAIN and not pa.types.is_boolean(c.type)],
        "column_encoding": dict.fromkeys(sorted(numbers & _DELTA), "DELTA_BINARY_PACKED"),
    }


@dataclass(frozen=True, slots=True)
class Totals:
    """What one replay has come to; the observer's own counts (observer.h)."""

    station: int
    frames: int
    pdus: int
    own: int
    strange: int
    damaged: int
    ordered: int
    positions: int
    views: int
    gaps: int
    resumed: int
    own_compared: int
    own_equal: int
    others_compared: int
    others_equal: int
    cluster: int
    stations: int
    bus: int
    problems: tuple[str, ...] = ()
    """Damaged files, one line each; what precedes the damage has been used."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class _Table:
    """Columns of one table in Arrow's memory, filled by C, and the file that they are written to."""

    def __init__(self, name: str, columns: Any, path: Path) -> None:
        self.name, self.columns, self.path = name, columns, path
        self.schema = schema.arrow(name)
        self._writer: pq.ParquetWriter | None = None
        self._data: list[pa.Buffer] = []
        self._valid: list[pa.Buffer | None] = []
        columns.capacity = CAPACITY
        columns.columns = len(self.schema)
        self._offsets = pa.allocate_buffer(4 * (CAPACITY + 1))
        for k, column in enumerate(self.schema):
            width = self._width(column.type)
            columns.width[k] = 255 if pa.types.is_list(column.type) else width
            size = CAPACITY * 8 * _LIST if pa.types.is_list(column.type) else CAPACITY * width if width else CAPACITY // 8
            self._data.append(pa.allocate_buffer(size))
            self._valid.append(pa.allocate_buffer(CAPACITY // 8) if column.nullable else None)
            columns.data[k] = self._address(self._data[k])
            columns.valid[k] = self._address(self._valid[k])
            if pa.types.is_list(column.type):
                columns.offsets = ffi.cast("int32_t *", self._offsets.address)
        self._clear()

    @staticmethod
    def _width(kind: pa.DataType) -> int:
        return 0 if pa.types.is_boolean(kind) else 8 if pa.types.is_list(kind) else int(kind.bit_width) // 8

    @staticmethod
    def _address(buffer: pa.Buffer | None) -> Any:
        return ffi.NULL if buffer is None else ffi.cast("void *", buffer.address)

    def _clear(self) -> None:
        self.columns.rows = 0
        for k, column in enumerate(self.schema):
            for buffer in (self._valid[k], self._data[k] if pa.types.is_boolean(column.type) else None):
                if buffer is not None:
                    ffi.memmove(ffi.cast("void *", buffer.address), bytes(buffer.size), buffer.size)
        ffi.cast("int32_t *", self._offsets.address)[0] = 0

    def _array(self, k: int, kind: pa.DataType, rows: int) -> pa.Array:
        if pa.types.is_list(kind):
            total = ffi.cast("int32_t *", self._offsets.address)[rows]
            values = pa.Array.from_buffers(pa.int64(), total, [None, self._data[k]])
            return pa.Array.from_buffers(kind, rows, [self._valid[k], self._offsets], children=[values])
        return pa.Array.from_buffers(kind, rows, [self._valid[k], self._data[k]])

    def flush(self, *, least: int = 1) -> None:
        """Write the rows that are there, if they are at least this number. Raises OSError."""
        rows = int(self.columns.rows)
        if rows < least:
            return
        if int(self.columns.next) != len(self.schema):
            raise RuntimeError(f"{self.name}: the observer writes {self.columns.next} columns, the schema has {len(self.schema)}")
        batch = pa.RecordBatch.from_arrays([self._array(k, c.type, rows) for k, c in enumerate(self.schema)], schema=self.schema)
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._temporary, self.schema, **options(self.schema))
        self._writer.write_batch(batch, row_group_size=CAPACITY)
        self._clear()

    @property
    def _temporary(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")

    def close(self, keep: bool) -> None:
        """Put the file in its place, or remove it."""
        if self._writer is None:
            return
        self._writer.close()
        if keep:
            self._temporary.replace(self.path)
        else:
            self._temporary.unlink(missing_ok=True)


class _Replay:
    def __init__(self, station: int, out: Path, ethertype: int) -> None:
        self._c = ffi.new("struct zo_columns[]", len(TABLES))
        self.tables = [
            _Table(name, ffi.addressof(self._c, k), out / name / f"station={station}" / "part-0.parquet")
            for k, name in enumerate(TABLES)
        ]
        made = lib.zo_new(station, ethertype, self._c)
        if made == ffi.NULL:
            raise MemoryError("no memory for the observer")
        self.observer = ffi.gc(made, lib.zo_free)

    def of(self, cluster: int, stations: int) -> None:
        """Whose PDUs count; else the first one decides."""
        lib.zo_cluster(self.observer, cluster, stations)

    def flush(self) -> None:
        for table in self.tables:
            table.flush(least=CAPACITY // 4)

    def feed(self, reader: Reader, file: int, on_bytes: Callable[[int], None] | None) -> None:
        last = 0
        while True:
            result = lib.zo_feed(self.observer, reader.walk, file)
            if result == lib.ZP_FULL:
                self.flush()
            elif result == lib.ZP_MORE:
                if on_bytes is not None:
                    on_bytes(reader.offset - last)
                    last = reader.offset
                if not reader.fill():
                    return
            else:
                raise reader.fail(result)

    def end(self) -> None:
        while (result := lib.zo_end(self.observer)) == lib.ZP_FULL:
            self.flush()
        if result != lib.ZP_MORE:
            raise MemoryError("no memory for the observer")
        for table in self.tables:
            table.flush()


def _cluster(captures: Sequence[tuple[int, str]], station: int, ethertype: int, own_mac: int) -> tuple[int, int] | None:
    """(cluster, stations of its schema) of the first PDU that the station sends; None: its captures do not begin with any.
    Another cluster may be on the same segment. Raises OSError."""
    own = station - 1
    for _, path in captures:
        census = ffi.new("struct zp_census *")
        with Reader(path, own_mac=own_mac) as reader:
            while reader.offset < _CENSUS_BYTES and not census.out[own]:
                result = lib.zp_census(reader.walk, ethertype, census.pdus + _CENSUS_STEP, census)
                if result < 0 or (result == lib.ZP_MORE and not reader.fill()):
                    break
        if census.n[own]:
            return int(census.cluster[own]), int(census.n[own])
    return None


def replay(
    captures: Sequence[tuple[int, str]],
    station: int,
    out: Path | str,
    *,
    ethertype: int = wire.ETHERTYPE,
    own_mac: int = 0,
    on_bytes: Callable[[int], None] | None = None,
) -> Totals:
    """Derive the tables of ``TABLES`` from one station's captures, (number in ``files``, path) in order of time, and write
    ``out/<table>/station=N/part-0.parquet`` for those that have rows. own_mac: address the station sends from, for captures
    without directions. A damaged file is used up to the damage, and named in the result. Raises OSError."""
    run = _Replay(station, Path(out), ethertype)
    if (cluster := _cluster(captures, station, ethertype, own_mac)) is not None:
        run.of(*cluster)
    problems: list[str] = []
    done = False
    try:
        for number, path in captures:
            with Reader(path, own_mac=own_mac) as reader:
                try:
                    run.feed(reader, number, on_bytes)
                except CaptureDamage as damage:
                    problems.append(str(damage))
        run.end()
        done = True
    finally:
        for table in run.tables:
            table.close(done)
    totals = lib.zo_totals(run.observer)
    if totals.overflow:
        raise RuntimeError(f"station {station}: {totals.overflow} rows had no room")
    names = [field.name for field in fields(Totals) if field.name not in ("station", "problems")]
    counts = {name: int(getattr(totals, name)) for name in names}
    return Totals(station=station, problems=tuple(problems), **counts)
