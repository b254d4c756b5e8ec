"""Captures as a Spark data source: ``spark.read.format("zenjun-pcap").load("frames")``, also as a stream (docs/captures.md).

    from zenjun.tools.pcap import source
    source.register(spark)

Workers import this module: zenjun must be installed where they run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.datasource import (
    Filter as Condition,
)

from ....proto import wire
from ..frames import files
from ..frames.files import Capture, Split
from . import schema
from .decode import EVERYTHING, Columns, Decoder, Filter

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # Spark before 4.2

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Not known there."""


if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME: Final = "zenjun-pcap"
_TABLES: Final = ("pdus", "frames", "files")
_ON_DEMAND: Final = {"frames": "`data` binary", "pdus": "`payload` binary"}
"""Columns that one gets only by asking for them."""
_OPTIONS: Final = frozenset({"path", "paths", "table", "ethertype", "stations", "bad", "splitbytes"})
_HEAD_BYTES: Final = 256


class OptionError(ValueError):
    """An option of the data source that is not understood."""


class _Options:
    """The options, checked. Raises OptionError."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {str(key).lower(): str(value) for key, value in options.items()}
        if unknown := sorted(set(given) - _OPTIONS):
            raise OptionError(f"{NAME}: no option {', '.join(unknown)}; there are {', '.join(sorted(_OPTIONS - {'paths'}))}")
        self.paths = [given["path"]] if "path" in given else list(json.loads(given.get("paths", "[]")))
        self.table = given.get("table", "pdus")
        if self.table not in _TABLES:
            raise OptionError(f"{NAME}: table {self.table!r} is none of {', '.join(_TABLES)}")
        try:
            self.ethertype = int(given.get("ethertype", str(wire.ETHERTYPE)), 0)
            self.split_bytes = int(given.get("splitbytes", str(files.SPLIT_BYTES)))
        except ValueError as error:
            raise OptionError(f"{NAME}: {error}") from None
        if self.split_bytes < 1 << 16:
            raise OptionError(f"{NAME}: splitBytes {self.split_bytes} is less than {1 << 16}")
        self.bad = given.get("bad", "fail")
        if self.bad not in ("fail", "keep"):
            raise OptionError(f"{NAME}: bad={self.bad!r} is neither fail nor keep")
        self.stations: dict[str, int] = {}
        for item in filter(None, given.get("stations", "").split(",")):
            number, mark, path = item.strip().partition("=")
            if not mark or not number.isdigit():
                raise OptionError(f"{NAME}: stations={item!r} is not N=FILE")
            self.stations[path] = int(number)


def _wanted(conditions: Sequence[Condition], table: str) -> tuple[Filter, frozenset[int] | None, list[Condition]]:
    """(what C filters, stations, what is left for Spark)."""
    low, high = EVERYTHING.from_ns, EVERYTHING.to_ns
    sets: dict[str, frozenset[int]] = {}
    left: list[Condition] = []
    allowed = {"pdus": ("station", "kind", "src"), "frames": ("station", "kind"), "files": ("station",)}[table]
    for condition in conditions:
        column = ".".join(getattr(condition, "attribute", ()))
        value: Any = getattr(condition, "value", None)
        if column in allowed and isinstance(condition, (EqualTo, In)):
            values: frozenset[int] = frozenset(value if isinstance(condition, In) else (value,))
            sets[column] = sets[column] & values if column in sets else values
        elif column == "time_ns" and table != "files" and isinstance(value, int):
            if isinstance(condition, (GreaterThan, GreaterThanOrEqual, EqualTo)):
                low = max(low, value + isinstance(condition, GreaterThan))
            if isinstance(condition, (LessThan, LessThanOrEqual, EqualTo)):
                high = min(high, value - isinstance(condition, LessThan))
            if not isinstance(condition, (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, EqualTo)):
                left.append(condition)
        else:
            left.append(condition)
    return Filter(low, high, sets.get("kind"), sets.get("src")), sets.get("station"), left


class _Part(InputPartition):
    """One split, or, of the table ``files``, one capture."""

    def __init__(self, split: Split | None, capture: Capture | None = None) -> None:
        super().__init__((split.path, split.start) if split else None)
        self.split, self.capture = split, capture


class _Decoding:
    """What batch and stream have in common: rows of a split in the schema asked for."""

    def __init__(self, options: _Options, wanted_schema: StructType) -> None:
        self.options = options
        self.schema = wanted_schema
        self.filter = EVERYTHING
        _check_schema(options.table, wanted_schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        assert isinstance(partition, _Part)
        made = to_arrow_schema(self.schema, timezone="UTC")
        if partition.split is None:
            yield _file_row(partition.capture, made)
            return
        split = partition.split
        constants = {"file": split.file, "station": split.station}
        if not made.names:  # count(): Spark still wants rows
            raise OptionError(f"{NAME}: a schema without columns")
        decoder = Decoder(split, [Columns(self.options.table, made.names, constants, made)], self.options.ethertype, self.filter)
        for _, batch in decoder:
            yield batch
        if decoder.problem is not None:  # it was good when it was looked into
            raise files.FilesError(f"{decoder.problem}; the file has been changed meanwhile")


def _check_schema(table: str, wanted: StructType) -> None:
    """The caller chooses columns by ``.schema()``. Raises OptionError for one that the table has not, or of another type."""
    known = dict(item.strip("`").split("` ") for item in _ddl(table, everything=True).split(", "))
    for column in wanted.fields:
        kind = known.get(column.name)
        if kind is None:
            raise OptionError(f"{NAME}: table {table} has no column {column.name!r}; it has {', '.join(known)}")
        if column.dataType.simpleString() != kind:
            raise OptionError(f"{NAME}: column {column.name} is {kind}, not {column.dataType.simpleString()}")


def _ddl(table: str, *, everything: bool = False) -> str:
    return ", ".join(filter(None, (schema.spark(table), _ON_DEMAND.get(table) if everything else None)))


def _file_row(capture: Capture | None, made: Any) -> pa.RecordBatch:
    assert capture is not None
    return pa.RecordBatch.from_pylist([{name: getattr(capture, name) for name in made.names}], schema=made)


class PcapReader(_Decoding, DataSourceReader):
    """Batch: all captures, cut into ranges at record borders."""

    def __init__(self, options: _Options, wanted_schema: StructType) -> None:
        super().__init__(options, wanted_schema)
        self._stations: frozenset[int] | None = None

    def pushFilters(self, filters: list[Condition]) -> Iterable[Condition]:
        self.filter, self._stations, left = _wanted(filters, self.options.table)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        options = self.options
        captures = files.gather(
            options.paths, stations_given=options.stations, ethertype=options.ethertype, split_bytes=options.split_bytes
        )
        problems = [capture.problem for capture in captures if capture.problem is not None]
        if problems and options.bad == "fail" and options.table != "files":
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise files.FilesError(f"{problems[0]}{more}; option bad=keep goes on with what is good")
        if self._stations is not None:
            captures = [capture for capture in captures if capture.station in self._stations]
        if options.table == "files":
            return [_Part(None, capture) for capture in captures]
        return [_Part(split) for capture in captures for split in capture.splits if _meets(split, self.filter)]


def _meets(split: Split, wanted: Filter) -> bool:
    """Whether the split can contain a frame at a requested time."""
    if wanted.from_ns == EVERYTHING.from_ns and wanted.to_ns == EVERYTHING.to_ns:
        return True
    if split.first_ns is None or split.last_ns is None:
        return False
    return split.first_ns <= wanted.to_ns and split.last_ns >= wanted.from_ns


class PcapStream(_Decoding, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream over a folder that captures rotate into: each whole record once, those of a file that is still written as they come.

    The offset holds, for each file, how far it has been read and what its reader must know there, about 300 bytes a file. A
    file whose beginning has changed is a new one. A compressed file is read once it is whole."""

    def __init__(self, options: _Options, wanted_schema: StructType) -> None:
        super().__init__(options, wanted_schema)
        if options.table == "files":
            raise OptionError(f"{NAME}: the table files is no stream")
        self._last: dict[str, Any] = {"files": {}}
        self._once = False
        self._fixed: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        return {"files": {}}

    def prepareForTriggerAvailableNow(self) -> None:
        # What is there now can only be told from where the query stands, which the first call of latestOffset says.
        self._once = True

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        if self._fixed is not None:
            return self._fixed
        self._last = self._look(start or self._last)
        if self._once:
            self._fixed = self._last
        return self._last

    def _look(self, before: dict[str, Any]) -> dict[str, Any]:
        """How far each file is good by now."""
        options = self.options
        known: dict[str, Any] = dict(before["files"])
        try:
            captures = files.named(options.paths, options.stations)
        except files.FilesError:
            captures = []  # nothing there yet
        wanted: list[tuple[Capture, Capture | None]] = []
        for capture in captures:
            entry = known.get(capture.path)
            same = entry is not None and _head(capture.path, entry["head_bytes"]) == entry["head"]
            if entry is not None and same:
                if Path(capture.path).stat().st_size > entry["size"]:
                    wanted.append((capture, _resumed(capture.path, entry)))
            else:
                wanted.append((capture, None))
        number = 1 + max((entry["file"] for entry in known.values()), default=-1)
        scanned = files.scan_all(wanted, ethertype=options.ethertype, split_bytes=options.split_bytes)
        for capture, (_, start) in sorted(zip(scanned, wanted, strict=True), key=lambda pair: pair[0].first_ns or 0):
            compressed = " " in capture.format
            if not capture.end or not capture.station or (compressed and capture.truncated):
                continue  # not so far yet, or nothing of it is of use
            if start is None:
                capture.file, number = number, number + 1
            known[capture.path] = _entry(capture)
        return {"files": known}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        parts: list[InputPartition] = []
        for path, entry in end["files"].items():
            before = start["files"].get(path)
            if before is not None and before["file"] != entry["file"]:
                before = None
            at, state = (before["end"], bytes.fromhex(before["state"])) if before else (0, b"")
            if entry["end"] <= at:
                continue
            for split in files.between(path, at, entry["end"], state, self.options.split_bytes, own_mac=entry["own_mac"]):
                parts.append(_Part(_of(split, entry)))
        return parts


def _of(split: Split, entry: Mapping[str, Any]) -> Split:
    from dataclasses import replace

    return replace(split, file=entry["file"], station=entry["station"])


def _entry(capture: Capture) -> dict[str, Any]:
    size = min(_HEAD_BYTES, capture.bytes)
    return {
        "file": capture.file,
        "station": capture.station,
        "own_mac": capture.own_mac,
        "size": capture.bytes,
        "end": capture.end,
        "state": capture.end_state.hex(),
        "head": _head(capture.path, size),
        "head_bytes": size,
    }


def _resumed(path: str, entry: Mapping[str, Any]) -> Capture:
    made = Capture(path, entry["file"], entry["station"], entry["own_mac"], end=entry["end"])
    made.end_state = bytes.fromhex(entry["state"])
    return made


def _head(path: str, size: int) -> str:
    """Of the first bytes of a file, enough to tell another one under its name."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.sha256(file.read(size)).hexdigest()[:16]
    except OSError:
        return ""


class PcapSource(DataSource):
    """The data source; see docs/captures.md for its options."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._checked: _Options | None = None

    @classmethod
    def name(cls) -> str:
        return NAME

    def _opt(self) -> _Options:
        if self._checked is None:
            self._checked = _Options(dict(self.options.items()))
        return self._checked

    def schema(self) -> str:
        return _ddl(self._opt().table)

    def reader(self, schema: StructType) -> DataSourceReader:
        if not self._opt().paths:
            raise OptionError(f"{NAME}: load() of what? Give a file or a folder")
        return PcapReader(self._opt(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PcapStream(self._opt(), schema)


def register(spark: SparkSession) -> None:
    """Make ``format("zenjun-pcap")`` known to the session, and let its filters reach the decoder."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(PcapSource)
