"""What stations have in common, compared without comparing rows: digests of blocks of their orders, and of the streams in them.

A task reads some row groups of one station's ``order`` table and gives cells, a few numbers for thousands of rows; cells of all
stations are brought together by their keys. A cell that is the same at all stations that cover its places needs no second look.
PDUs that some captures are known to lack have cells of their own, which are compared among the other stations, so that a capture
with holes changes no verdict. Tasks run as threads of this process, or as tasks of Spark; the result is the cells that differ,
never rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow.parquet as pq

from ..native import ffi, lib

BLOCK_BITS: Final = 12
GROUPS_OF_A_TASK: Final = 16
"""Row groups: about a million rows."""
BAD_MAX: Final = 2000
"""Cells that differ and are examined, at most; the rest are counted."""
COLUMNS: Final = ("view", "clock", "src", "incarnation", "seq", "payload_crc", "head_crc")
_NUMBERS: Final = 1 << 32
_STREAM_CELLS: Final = 1 << 16
_BLOCK_CELLS: Final = 1 << 14


class Span(NamedTuple):
    """Which places of a view a station's order has: low < clock <= high."""

    station: int
    view: int
    low: int
    high: int


class Task(NamedTuple):
    """Row groups first..end of one file of a station's ``order``."""

    station: int
    path: str
    first: int
    end: int


@dataclass(frozen=True, order=True, slots=True)
class Place:
    """A cell of the order: low < clock <= high in a view; lacking: bits of the stations whose captures lack its PDUs."""

    view: int
    low: int
    high: int
    lacking: int = 0


@dataclass(frozen=True, order=True, slots=True)
class Stream:
    """A cell of a stream: the numbers block << 12 and so on; lacking as in Place."""

    src: int
    incarnation: int
    block: int
    lacking: int = 0


Key: TypeAlias = Place | Stream


class Sum(NamedTuple):
    """What a station has in a cell. For streams, where no capture lacks its PDUs: least and greatest number, and the rows of the
    whole block."""

    digest: int
    rows: int
    low: int = 0
    high: int = 0
    whole: int = 0

    def plus(self, other: Sum) -> Sum:
        """Both together."""
        return Sum(
            self.digest ^ other.digest,
            self.rows + other.rows,
            min(self.low, other.low),
            max(self.high, other.high),
            self.whole + other.whole,
        )


@dataclass(frozen=True)
class Holes:
    """PDUs that captures are known to lack: arrays of (src, incarnation, low, high, stations), low <= number of 32 bits < high
    and bit k - 1 for the capture of station k; sorted, and apart from each other."""

    src: Any
    incarnation: Any
    low: Any
    high: Any
    stations: Any

    @staticmethod
    def of(known: Mapping[tuple[int, int, int], Sequence[tuple[int, int]]]) -> Holes | None:
        """known: station, source, incarnation → (number of 32 bits, how many). None: there are none."""
        ends: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for (station, src, incarnation), found in known.items():
            mine = ends.setdefault((src, incarnation), [])
            for low, high in _apart(found):
                mine += [(low, station, 1), (high, station, -1)]
        rows: list[tuple[int, int, int, int, int]] = []
        for (src, incarnation), mine in sorted(ends.items()):
            mine.sort()
            stations, since = 0, 0
            for at, station, step in mine:
                if stations and at > since:
                    rows.append((src, incarnation, since, at, stations))
                since, stations = at, stations + (step << station - 1)
        if not rows:
            return None
        numbers = np.array([row[:4] for row in rows], np.int64).T.copy()
        return Holes(numbers[0], numbers[1], numbers[2], numbers[3], np.array([row[4] for row in rows], np.uint64))


def _apart(found: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The same numbers as low <= number < high, none twice, none beyond 32 bits."""
    parts = sorted(
        part
        for first, count in found
        for part in ((first, min(first + count, _NUMBERS)), (0, first + count - _NUMBERS))
        if part[1] > part[0]
    )
    last = 0
    for low, high in parts:
        if high > last:
            yield max(low, last), high
            last = high


@dataclass
class Part:
    """What one task found. mixed: rows that do not follow the one before; mixed_at: (view, clock) of the first."""

    rows: int = 0
    mixed: int = 0
    mixed_at: tuple[int, int, int] | None = None
    cells: dict[Key, Sum] = field(default_factory=dict)


@dataclass
class Compared:
    """What all cells came to."""

    rows: int = 0
    """Rows in all."""
    pairs: int = 0
    """Rows in cells that at least two stations cover, counted once for each of them."""
    places: int = 0
    """Cells of the order that at least two stations cover."""
    streams: int = 0
    """Rows in cells of streams that the source's own order has as well."""
    mixed: dict[int, tuple[int, tuple[int, int, int]]] = field(default_factory=dict)
    """Station → how many rows stand in the wrong place, and the first (view, clock, src)."""
    bad: list[tuple[Key, set[int]]] = field(default_factory=list)
    """Places and blocks of streams that differ, sorted, without who lacks what; and the stations at which they do."""
    unseen: int = 0
    """More of them, not kept."""


def tasks(folder: Path) -> list[Task]:
    """For all stations' ``order`` tables. Raises OSError."""
    out = []
    for path in sorted((folder / "order").glob("station=*/*.parquet")):
        station = int(path.parent.name.partition("=")[2])
        groups = pq.read_metadata(path).num_row_groups
        out += [Task(station, str(path), k, min(k + GROUPS_OF_A_TASK, groups)) for k in range(0, groups, GROUPS_OF_A_TASK)]
    return out


def cuts_of(spans: Iterable[Span]) -> dict[int, list[int]]:
    """View → clocks at which some station begins or ends to cover it, sorted."""
    out: dict[int, set[int]] = {}
    for span in spans:
        out.setdefault(span.view, set()).update((span.low, span.high))
    return {view: sorted(clocks) for view, clocks in out.items()}


def place_of(view: int, block: int, segment: int, cuts: dict[int, list[int]], lacking: int = 0) -> Place:
    """The places of a cell."""
    clocks = cuts.get(view, [])
    low, high = (block << BLOCK_BITS) - 1, (block << BLOCK_BITS) + (1 << BLOCK_BITS) - 1
    if segment:
        low = max(low, clocks[segment - 1])
    if segment < len(clocks):
        high = min(high, clocks[segment])
    return Place(view, low, high, lacking)


def run(task: Task, cuts: dict[int, list[int]], holes: Holes | None = None) -> Part:
    """The cells of one task. Raises OSError."""
    out = Part()
    with pq.ParquetFile(task.path) as file:
        last: tuple[int, int, int] | None = None
        if task.first:
            last = _last(file, task.first - 1)
        for group in range(task.first, task.end):
            last = _group(file.read_row_group(group, columns=list(COLUMNS), use_threads=False), cuts, holes, out, last)
    return out


def _last(file: Any, group: int) -> tuple[int, int, int]:
    """(view, clock, src) of the last row of a row group."""
    table = file.read_row_group(group, columns=list(COLUMNS[:3]), use_threads=False)
    row = table.slice(table.num_rows - 1).to_pylist()[0]
    return row["view"], row["clock"], row["src"]


def _group(
    table: Any, cuts: dict[int, list[int]], holes: Holes | None, out: Part, last: tuple[int, int, int] | None
) -> tuple[int, int, int]:
    """Add the rows of a row group; gives its last (view, clock, src)."""
    rows = table.num_rows
    columns = [_flat(table.column(name)) for name in COLUMNS]
    flat = [(view, clock) for view, clocks in cuts.items() for clock in clocks]
    given = ffi.new("struct zo_rows *", {"rows": rows})
    for name, array in zip(COLUMNS, columns, strict=True):
        size = 1 if name == "src" else 8
        address = array.buffers()[1].address + array.offset * size
        setattr(given, name, ffi.cast("int8_t *" if size == 1 else "int64_t *", address))
    if holes is not None:
        known = ffi.new("struct zo_holes *", {"count": len(holes.src)})
        for name in ("src", "incarnation", "low", "high"):
            setattr(known, name, ffi.from_buffer("int64_t[]", getattr(holes, name)))
        known.stations = ffi.from_buffer("uint64_t[]", holes.stations)
        lacking = ffi.new("uint64_t[]", rows)
        lib.zo_lacking(given, known, lacking)
        given.lacking = lacking
    cut_view = ffi.new("int64_t[]", [view for view, _ in flat] or 1)
    cut_clock = ffi.new("int64_t[]", [clock for _, clock in flat] or 1)
    blocks = ffi.new("struct zo_block[]", _BLOCK_CELLS)
    done, mixed, mixed_at = ffi.new("uint64_t *"), ffi.new("uint64_t *"), ffi.new("uint64_t *")
    while done[0] < rows:
        count = lib.zo_blocks(given, done[0], len(flat), cut_view, cut_clock, _BLOCK_CELLS, blocks, done, mixed, mixed_at)
        for k in range(count):
            b = blocks[k]
            _add(out, place_of(b.view, b.block, b.segment, cuts, b.lacking), Sum(b.digest, b.count))
    cells = ffi.new("struct zo_cell[]", _STREAM_CELLS)
    used = lib.zo_streams(given, _STREAM_CELLS, 0, cells)
    if used > _STREAM_CELLS:
        raise RuntimeError("a row group with more streams than can be")
    for k in range(used):
        c = cells[k]
        _add(out, Stream(c.src, c.incarnation, c.block, c.lacking), Sum(c.digest, c.count, c.low, c.high, c.all))
    out.rows += rows
    view, clock, src = columns[:3]

    def at(row: int) -> tuple[int, int, int]:
        return view[row].as_py(), clock[row].as_py(), src[row].as_py()

    wrong, where = int(mixed[0]), int(mixed_at[0])
    first = at(0)
    if last is not None and last[0] == first[0] and last[1:] >= first[1:]:
        wrong, where = wrong + 1, 0
    if wrong and out.mixed_at is None:
        out.mixed_at = at(where)
    out.mixed += wrong
    return at(rows - 1)


def _flat(column: Any) -> Any:
    array = column.combine_chunks()
    return array.chunk(0) if hasattr(array, "chunk") else array


def _add(out: Part, key: Key, value: Sum) -> None:
    old = out.cells.get(key)
    out.cells[key] = value if old is None else old.plus(value)


def _tagged(task: Task, cuts: dict[int, list[int]], holes: Holes | None) -> Iterator[tuple[Any, Any]]:
    """For Spark: (key, {station: sum}), and one entry with what the task counted."""
    part = run(task, cuts, holes)
    yield ("rows", task.station, task.path, task.first), (part.rows, part.mixed, part.mixed_at)
    for key, value in part.cells.items():
        yield (isinstance(key, Place), *astuple(key)), {task.station: value}


def _merge(a: dict[int, Sum], b: dict[int, Sum]) -> dict[int, Sum]:
    out = dict(a)
    for station, value in b.items():
        out[station] = out[station].plus(value) if station in out else value
    return out


class Judge:
    """Says of one cell whether it is worth a second look."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans: dict[int, list[Span]] = {}
        for span in spans:
            self._spans.setdefault(span.view, []).append(span)
        self._stations = {span.station for span in spans}

    def covering(self, place: Place) -> list[int]:
        """The stations whose order has all of these places."""
        spans = self._spans.get(place.view, ())
        return sorted({s.station for s in spans if s.low <= place.low and s.high >= place.high})

    def look(self, key: Key, sums: dict[int, Sum]) -> tuple[int, int, set[int]]:
        """(cells compared, rows compared, stations at which it is worth a second look)."""
        if isinstance(key, Stream):
            return self._stream(key, sums)
        stations = [s for s in self.covering(key) if not _lacks(key, s)]
        if len(stations) < 2:
            return 0, 0, set()
        found = [_content(sums.get(station)) for station in stations]
        return int(not key.lacking), sum(rows for _, rows in found), set(stations) if len(set(found)) > 1 else set()

    def _stream(self, key: Stream, sums: dict[int, Sum]) -> tuple[int, int, set[int]]:
        bad = {station for station, s in sums.items() if s.whole > s.high - s.low + 1}
        if key.src not in self._stations or _lacks(key, key.src):
            return 0, 0, bad
        own = _content(sums.get(key.src))
        others = {station: _content(s) for station, s in sums.items() if station != key.src and not _lacks(key, station)}
        return 0, sum(rows for _, rows in others.values()), bad | {s for s, found in others.items() if found[1] and found != own}


def _lacks(key: Key, station: int) -> bool:
    return bool(key.lacking >> (station - 1) & 1)


def _content(found: Sum | None) -> tuple[int, int]:
    """What is compared; a cell without rows is none."""
    return (0, 0) if found is None else (found.digest, found.rows)


def compare(
    todo: Sequence[Task],
    spans: Sequence[Span],
    spark: Any = None,
    on_done: Callable[[int, int], None] | None = None,
    holes: Holes | None = None,
) -> Compared:
    """Bring the cells of all tasks together. spark: a SparkSession whose tasks do it; None: threads of this process. on_done:
    (done, all) tasks. Raises OSError, or what Spark raises."""
    cuts, judge, out = cuts_of(spans), Judge(spans), Compared()
    if not todo:
        return out
    if spark is None:
        _compare_here(todo, partial(run, cuts=cuts, holes=holes), judge, out, on_done)
    else:
        _compare_spark(spark.sparkContext, todo, partial(_tagged, cuts=cuts, holes=holes), judge, out)
    whole: dict[Key, set[int]] = {}
    for key, stations in out.bad:
        whole.setdefault(replace(key, lacking=0), set()).update(stations)
    out.bad = sorted(whole.items(), key=lambda cell: (isinstance(cell[0], Stream), astuple(cell[0])))
    out.unseen += max(0, len(out.bad) - BAD_MAX)
    del out.bad[BAD_MAX:]
    return out


def _count(out: Compared, task_station: int, part: tuple[int, int, tuple[int, int, int] | None]) -> None:
    rows, mixed, at = part
    out.rows += rows
    if mixed and at is not None:
        before = out.mixed.get(task_station, (0, at))
        out.mixed[task_station] = (before[0] + mixed, min(before[1], at))


def _weigh(out: Compared, key: Key, cells: int, rows: int) -> None:
    out.places += cells
    if isinstance(key, Stream):
        out.streams += rows
    else:
        out.pairs += rows


def _compare_here(
    todo: Sequence[Task],
    work: Callable[[Task], Part],
    judge: Judge,
    out: Compared,
    on_done: Callable[[int, int], None] | None,
) -> None:
    merged: dict[Key, dict[int, Sum]] = {}
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for done, (task, part) in enumerate(zip(todo, pool.map(work, todo), strict=True), 1):
            _count(out, task.station, (part.rows, part.mixed, part.mixed_at))
            for key, value in part.cells.items():
                merged[key] = _merge(merged.get(key, {}), {task.station: value})
            if on_done is not None:
                on_done(done, len(todo))
    for key, sums in merged.items():
        cells, rows, bad = judge.look(key, sums)
        _weigh(out, key, cells, rows)
        if bad:
            out.bad.append((key, bad))


def _compare_spark(
    context: Any, todo: Sequence[Task], work: Callable[[Task], Iterator[tuple[Any, Any]]], judge: Judge, out: Compared
) -> None:
    """Cells meet in a shuffle; to the driver come sums over them and those that differ."""
    cells = context.parallelize(list(todo), len(todo)).flatMap(work)
    merged = cells.reduceByKey(_join, numPartitions=max(1, min(8, len(todo)))).mapPartitions(partial(_reduce, judge=judge))
    for part in merged.collect():
        for station, counted in part[0]:
            _count(out, station, counted)
        out.places += part[1]
        out.pairs += part[2]
        out.streams += part[3]
        out.bad += part[4]
        out.unseen += part[5]


def _join(a: Any, b: Any) -> Any:
    return _merge(a, b)


def _reduce(entries: Iterator[tuple[Any, Any]], judge: Judge) -> Iterator[Any]:
    counts: list[Any] = []
    totals = Compared()
    for key, value in entries:
        if key[0] == "rows":
            counts.append((key[1], value))
            continue
        cell: Key = Place(*key[1:]) if key[0] else Stream(*key[1:])
        cells, rows, bad = judge.look(cell, value)
        _weigh(totals, cell, cells, rows)
        if bad and len(totals.bad) < BAD_MAX:
            totals.bad.append((cell, bad))
        elif bad:
            totals.unseen += 1
    yield counts, totals.places, totals.pairs, totals.streams, totals.bad, totals.unseen
