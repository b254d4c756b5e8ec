"""Captures to Arrow record batches of the tables ``frames`` and ``pdus`` (schema.py), decoded in C straight into Arrow's memory.

Besides the tables' columns there are, when asked for by name, ``frames.data`` (the captured bytes) and ``pdus.payload``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ....proto import wire
from ..native import Reader, ffi, lib
from . import schema

if TYPE_CHECKING:
    from ..frames.files import Split

ROWS_MAX: Final = 1 << 16
"""Rows of a batch."""
_VECTOR_ENTRIES: Final = ROWS_MAX * 16
_BYTES_MAX: Final = 8 << 20
"""Bytes of a batch's binary column; a batch ends when they are used up."""
_BINARY: Final = {"frames": "data", "pdus": "payload"}
"""The columns that are not in the tables and cost the most."""
_CONFIRM: Final = frozenset({"state", "trans", "position", "digest", "counted", "view"})
_C_TYPES: Final = {"byte": ("int8_t *", 1), "int": ("int32_t *", 4), "long": ("int64_t *", 8)}
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_ANY: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Filter:
    """The conditions for frames, which all must hold. A condition on time excludes frames without a time stamp, one on kind or
    source excludes frames of other protocols."""

    from_ns: int = _INT64_MIN
    to_ns: int = _INT64_MAX
    kinds: frozenset[int] | None = None
    sources: frozenset[int] | None = None

    def c_struct(self) -> Any:
        kinds = _ANY if self.kinds is None else sum(1 << k for k in self.kinds if 0 <= k < 63)
        sources = _ANY if self.sources is None else sum(1 << (s - 1) for s in self.sources if 1 <= s <= 63)
        if self.sources is not None and 64 in self.sources:
            sources |= 1 << 63
        low, high = max(self.from_ns, _INT64_MIN), min(self.to_ns, _INT64_MAX)
        if low > _INT64_MAX or high < _INT64_MIN:
            low, high = _INT64_MAX, _INT64_MIN
        return ffi.new("struct zp_filter *", {"from_ns": low, "to_ns": high, "kinds": kinds, "sources": sources})


EVERYTHING: Final = Filter()


class Columns:
    """Columns of one table that C fills, and the batches made of them."""

    def __init__(self, table: str, names: Sequence[str], constants: dict[str, int], made: pa.Schema | None = None) -> None:
        """names: the columns to decode, in this order; constants: values of those that are the same in all rows; made: schema of
        the batches if it is to differ from the table's in what Arrow takes for the same (names in lists, nullability)."""
        self.table, self.names = table, tuple(names)
        self._constants = constants
        kinds = {column.name: column for column in schema.TABLES[table].columns}
        self._kinds = {name: kinds.get(name) for name in names}
        full = schema.arrow(table, station=True)
        fields = [full.field(name) if name in full.names else pa.field(name, pa.binary()) for name in names]
        self.schema = made if made is not None else pa.schema(fields)
        self._same = {
            name: pa.repeat(pa.scalar(value, self.schema.field(name).type), ROWS_MAX)
            for name, value in constants.items()
            if name in self.names
        }
        self.struct: Any = ffi.new(f"struct zp_{table} *")
        self._struct_names = {name for name, _ in ffi.typeof(f"struct zp_{table}").fields}
        self.struct.capacity = ROWS_MAX
        self._buffers: dict[str, Any] = {}
        self._fresh()

    @property
    def rows(self) -> int:
        return int(self.struct.rows)

    def _give(self, name: str, size: int, kind: str) -> None:
        buffer = pa.allocate_buffer(size)
        self._buffers[name] = buffer
        setattr(self.struct, name, ffi.cast(kind, buffer.address))

    def _fresh(self) -> None:
        """New memory: what the last batch was made of belongs to it."""
        for name in self.names:
            column = self._kinds[name]
            if name in self._same:
                continue
            if column is None:
                self._give(name, _BYTES_MAX, "uint8_t *")
                self._give(f"{name}_offsets", 4 * (ROWS_MAX + 1), "int32_t *")
                setattr(self.struct, f"{name}_capacity", _BYTES_MAX)
            elif column.type == "longs":
                self._give(name, 8 * _VECTOR_ENTRIES, "int64_t *")
                self._give(f"{name}_offsets", 4 * (ROWS_MAX + 1), "int32_t *")
                self.struct.vector_capacity = _VECTOR_ENTRIES
            else:
                kind, width = _C_TYPES[column.type]
                self._give(name, width * ROWS_MAX, kind)
            if f"has_{name}" in self._struct_names:
                self._give(f"has_{name}", ROWS_MAX // 8, "uint8_t *")
        if self.table == "pdus" and _CONFIRM & set(self.names):
            self._give("has_confirm", ROWS_MAX // 8, "uint8_t *")
        self.struct.rows = 0

    def take(self) -> pa.RecordBatch:
        """The rows so far as a batch; the columns are empty afterwards."""
        rows = self.rows
        arrays = []
        for name in self.names:
            kind = self.schema.field(name).type
            if name in self._same:
                arrays.append(self._same[name].slice(0, rows))
                continue
            valid = self._buffers.get("has_confirm" if name in _CONFIRM else f"has_{name}")
            offsets = self._buffers.get(f"{name}_offsets")
            data = self._buffers[name]
            if not rows:
                arrays.append(pa.array([], kind))
            elif offsets is None:
                arrays.append(pa.Array.from_buffers(kind, rows, [valid, data]))
            elif pa.types.is_list(kind):
                entries = int(getattr(self.struct, f"{name}_offsets")[rows])
                child = pa.Array.from_buffers(pa.int64(), entries, [None, data])
                arrays.append(pa.Array.from_buffers(kind, rows, [valid, offsets], children=[child]))
            else:
                arrays.append(pa.Array.from_buffers(kind, rows, [valid, offsets, data]))
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        self._fresh()
        return batch


@dataclass
class Decoder:
    """One range of a capture through the decoder. Iterate once: (table, batch) in file order; afterwards ``problem``."""

    split: Split
    columns: Sequence[Columns]
    """One for each table."""
    ethertype: int = wire.ETHERTYPE
    wanted: Filter = EVERYTHING
    problem: str | None = field(default=None, init=False)
    """Where and why the file could not be read on; the rows before that are good."""

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        by_table = {columns.table: columns for columns in self.columns}
        frames = by_table["frames"].struct if "frames" in by_table else ffi.NULL
        pdus = by_table["pdus"].struct if "pdus" in by_table else ffi.NULL
        wanted = self.wanted.c_struct()
        pieces = ffi.gc(lib.zp_pieces_new(), lib.zp_pieces_free)
        with Reader(self.split.path, self.split.start, self.split.end, self.split.state) as reader:
            while True:
                result = lib.zp_decode(reader.walk, self.ethertype, wanted, frames, pdus, pieces)
                if result == lib.ZP_FULL:
                    yield from self._flush()
                elif result < 0:
                    self.problem = str(reader.fail(result))
                    break
                elif not reader.fill():
                    break
            yield from self._flush()

    def _flush(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        for columns in self.columns:
            if columns.rows:
                yield columns.table, columns.take()
