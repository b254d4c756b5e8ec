"""Parquet files of the tables ``frames``, ``pdus`` and ``files``: the half of an ingest that is done for each split, in threads
or in Spark's tasks.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ..frames.files import Capture, Split
from . import schema
from .decode import Columns, Decoder
from .manifest import part_name

_ROWS_OF_A_GROUP: Final = 1 << 18
_RISING: Final = frozenset({"frame", "offset", "time_ns", "seq", "clock", "position"})
"""Columns whose differences are small: kept as such."""
_MANY_VALUES: Final = frozenset({"check", "digest", "captured", "wire", "length", "ack", "pack"})
"""Columns for which a dictionary is built in vain."""
_STATISTICS: Final = ("frame", "time_ns", "direction", "kind", "src", "instance", "problem", "ethertype")


@dataclass(frozen=True, slots=True)
class Written:
    """What one task did; ``error``: why it could not write."""

    file: int
    number: int
    frames: int = 0
    pdus: int = 0
    problem: str | None = None
    error: str | None = None


def write_split(split: Split, out: str, ethertype: int, tables: Sequence[str]) -> Written:
    """Decode one split and write its parts, each appearing under its name only when it is whole. The folders must exist.
    tables: ``frames`` and ``pdus``."""
    columns = [Columns(t, schema.arrow(t).names, {"file": split.file}) for t in tables]
    parts = {t: _Part(Path(out) / t / f"station={split.station}", part_name(split.file, split.number)) for t in tables}
    rows = dict.fromkeys(tables, 0)
    decoder = Decoder(split, columns, ethertype)
    try:
        for table, batch in decoder:
            rows[table] += batch.num_rows
            parts[table].add(table, batch)
        for part in parts.values():
            part.finish()
    except OSError as error:  # Arrow's errors of files are OSErrors too
        return Written(split.file, split.number, error=said(error, out))
    finally:
        for part in parts.values():
            part.drop()
    return Written(split.file, split.number, rows["frames"], rows["pdus"], decoder.problem)


class _Part:
    """One Parquet file that is being written."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path, self._temporary = folder / name, folder / f".{name}.tmp"
        self._writer: Any = None
        self._batches: list[Any] = []
        self._rows = 0

    def add(self, table: str, batch: Any) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._temporary, schema.arrow(table), **_options(batch.schema))
        # The batches' schema is less strict about nulls than the table's.
        self._batches.append(pa.RecordBatch.from_arrays(batch.columns, schema=schema.arrow(table)))
        self._rows += batch.num_rows
        if self._rows >= _ROWS_OF_A_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches), row_group_size=2 * _ROWS_OF_A_GROUP)
        self._batches, self._rows = [], 0

    def finish(self) -> None:
        if self._writer is not None:
            self._flush()
            self._writer.close()
            self._temporary.replace(self._path)

    def drop(self) -> None:
        if self._writer is not None:
            self._temporary.unlink(missing_ok=True)


def _options(made: Any) -> dict[str, Any]:
    names = list(made.names)
    deltas = {name: "DELTA_BINARY_PACKED" for name in names if name in _RISING}
    deltas |= {f"{name}.list.element": "DELTA_BINARY_PACKED" for name in ("ack", "pack") if name in names}
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": [name for name in names if name not in _RISING | _MANY_VALUES],
        "column_encoding": deltas,
        "write_statistics": [name for name in _STATISTICS if name in names],
    }


def said(error: OSError, out: str) -> str:
    """An error of Arrow or of the system, for people."""
    full = error.errno == errno.ENOSPC or "No space left" in str(error)
    if full:
        return f"{out}: no space left on the disk"
    return f"{error.filename or out}: {error.strerror or error}"


def write_files(captures: Iterable[Capture], out: Path) -> None:
    """The table ``files`` under *out*, in place of the one that is there. Raises OSError."""
    made = schema.arrow("files")
    folder = out / "files"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{name: getattr(capture, name) for name in made.names} for capture in captures]
    temporary = folder / ".part-0.tmp"
    pq.write_table(pa.Table.from_pylist(rows, schema=made), temporary)
    temporary.replace(folder / "part-0.parquet")


def read_files(out: Path) -> list[dict[str, Any]]:
    """The rows of the table ``files`` under *out*, whatever columns they have. Raises OSError."""
    return [row for path in sorted((out / "files").glob("*.parquet")) for row in pq.ParquetFile(path).read().to_pylist()]
