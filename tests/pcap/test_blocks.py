"""Cells against a comparison of every row with every other, with captures that lack this and that."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zenjun.tools.bench.judge_cost import generate as verdict_tables
from zenjun.tools.pcap.judge import blocks, court, reader
from zenjun.tools.pcap.judge.blocks import Holes, Place, Span, Stream
from zenjun.tools.pcap.native import ffi, lib
from zenjun.tools.pcap.tables import schema

WRAP = 1 << 32
VIEW, BASE = 1, 1 << 32
Row = dict[str, int]


def ranges(holes: Holes | None) -> list[tuple[int, ...]]:
    if holes is None:
        return []
    columns = (holes.src, holes.incarnation, holes.low, holes.high, holes.stations)
    return [tuple(int(c[k]) for c in columns) for k in range(len(holes.src))]


numbers = st.one_of(st.integers(0, 40), st.integers(WRAP - 20, WRAP - 1))
known = st.dictionaries(
    st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(7, 8)), st.lists(st.tuples(numbers, st.integers(0, 12)))
)


@given(known)
def test_holes_of_all_stations_at_once(found: dict[tuple[int, int, int], list[tuple[int, int]]]) -> None:
    """For each number: exactly the stations that lack it; the ranges are sorted, none is empty, none overlaps another."""
    lack: dict[tuple[int, int, int], int] = {}
    for (station, src, incarnation), holes in found.items():
        for first, count in holes:
            for number in range(first, first + count):
                key = (src, incarnation, number % WRAP)
                lack[key] = lack.get(key, 0) | 1 << station - 1
    made = ranges(Holes.of(found))
    assert made == sorted(made)
    assert all(low < high <= WRAP for _, _, low, high, _ in made)
    assert all(a[:2] != b[:2] or a[3] <= b[2] for a, b in itertools.pairwise(made))
    assert lack == {(s, i, n): mask for s, i, low, high, mask in made for n in range(low, high)}


def random_order(rng: random.Random, rows: int) -> list[Row]:
    """What every station should have: three sources, one of which has two lives, and whose numbers wrap."""
    next_seq = {(1, 7): 0, (2, 7): 5000, (3, 7): WRAP - rows // 6, (3, 8): 0}
    out, clock = [], BASE
    for _ in range(rows):
        stream = rng.choice(list(next_seq))
        clock += rng.choice((0, 1, 1, 2, 900))
        out.append(
            {
                "view": VIEW, "clock": clock, "src": stream[0], "incarnation": stream[1], "seq": next_seq[stream],
                "payload_crc": rng.getrandbits(32), "head_crc": rng.getrandbits(32),
            }
        )  # fmt: skip
        next_seq[stream] += 1
    out.sort(key=lambda row: (row["clock"], row["src"], row["incarnation"], row["seq"]))
    return out


def damage(rng: random.Random, rows: list[Row]) -> list[Row]:
    """One of: nothing, a row gone, another content, another place, twice."""
    k = rng.randrange(len(rows))
    kind = rng.randrange(5)
    if kind == 1:
        return rows[:k] + rows[k + 1 :]
    changed = dict(rows[k])
    if kind == 2:
        changed[rng.choice(("payload_crc", "head_crc"))] ^= 1 << rng.randrange(32)
    elif kind == 3:
        changed["clock"] += 1
    elif kind == 4:
        return [*rows[: k + 1], changed | {"clock": changed["clock"] + 1}, *rows[k + 1 :]]
    return [*rows[:k], changed, *rows[k + 1 :]]


def empty(column: pa.Field, rows: int) -> pa.Array:
    return pa.nulls(rows, column.type) if column.nullable else pa.array([0] * rows, column.type)


def write(folder: Path, station: int, rows: list[Row], group: int) -> None:
    made = schema.arrow("order")
    path = folder / "order" / f"station={station}" / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {n: [row[n] for row in rows] for n in blocks.COLUMNS}
    arrays = [pa.array(columns[f.name], f.type) if f.name in columns else empty(f, len(rows)) for f in made]
    pq.write_table(pa.Table.from_arrays(arrays, schema=made), path, row_group_size=group)


def key_of(row: Row) -> tuple[int, int, int]:
    return row["src"], row["incarnation"], row["seq"] % WRAP


def row_by_row(orders: dict[int, list[Row]], lacking: dict[int, set[tuple[int, int, int]]], high: int) -> Iterator[Place]:
    """Blocks in which some PDU stands otherwise at two stations whose captures do not lack it."""
    for block in range(BASE >> 12, (high >> 12) + 1):
        low, end = max((block << 12) - 1, BASE - 1), min((block << 12) + 4095, high)
        here = {
            station: sorted((key_of(r), r["clock"], r["payload_crc"], r["head_crc"]) for r in rows if low < r["clock"] <= end)
            for station, rows in orders.items()
        }
        for a in orders:
            for b in orders:
                either = lacking[a] | lacking[b]  # rows of it that were captured late count for nothing
                if [x for x in here[a] if x[0] not in either] != [x for x in here[b] if x[0] not in either]:
                    yield Place(VIEW, low, end)


def streams_row_by_row(orders: dict[int, list[Row]], lacking: dict[int, set[tuple[int, int, int]]]) -> dict[Stream, set[int]]:
    """Blocks of streams in which a station has a number twice; or other PDUs than the source, of those that neither capture
    lacks, taken apart by who else lacks them."""
    out: dict[Stream, set[int]] = {}
    content: dict[Stream, dict[int, list[tuple[int, ...]]]] = {}
    for station, rows in orders.items():
        seen: dict[Stream, list[int]] = {}
        for row in rows:
            mask = sum(1 << s - 1 for s in orders if key_of(row) in lacking[s])
            key = Stream(row["src"], row["incarnation"], row["seq"] >> 12, mask)
            content.setdefault(key, {}).setdefault(station, []).append((row["seq"], row["payload_crc"], row["head_crc"]))
            seen.setdefault(replace(key, lacking=0), []).append(row["seq"])
        for key, mine in seen.items():
            if len(mine) > max(mine) - min(mine) + 1:
                out.setdefault(key, set()).add(station)
    for key, found in content.items():
        for station, had in found.items():
            others = not key.lacking & (1 << station - 1 | 1 << key.src - 1)
            if others and sorted(had) != sorted(found.get(key.src, [])):
                out.setdefault(replace(key, lacking=0), set()).add(station)
    return out


@given(known, st.lists(st.tuples(st.integers(1, 3), st.integers(6, 9), numbers, st.integers(0, 2)), min_size=1, max_size=60))
def test_who_lacks_a_row(found: dict[tuple[int, int, int], list[tuple[int, int]]], rows: list[tuple[int, int, int, int]]) -> None:
    """By binary search and what was found for the row before, the same as by looking through all holes."""
    holes = Holes.of(found)
    if holes is None:
        return
    made = ranges(holes)
    src, incarnation, seq = ([r[k] for r in rows] for k in range(3))
    seq = [n + r[3] * WRAP for n, r in zip(seq, rows, strict=True)]
    columns = [ffi.new("int8_t[]", src), ffi.new("int64_t[]", incarnation), ffi.new("int64_t[]", seq)]
    given_rows = {"rows": len(rows), "src": columns[0], "incarnation": columns[1], "seq": columns[2]}
    masks = ffi.new("uint64_t[]", len(rows))
    arrays = [ffi.from_buffer("int64_t[]", a) for a in (holes.src, holes.incarnation, holes.low, holes.high)]
    names = ("src", "incarnation", "low", "high")
    stations = ffi.from_buffer("uint64_t[]", holes.stations)
    all_holes = {"count": len(made), "stations": stations} | dict(zip(names, arrays, strict=True))
    lib.zo_lacking(ffi.new("struct zo_rows *", given_rows), ffi.new("struct zo_holes *", all_holes), masks)
    for mask, (s, i, n, _) in zip(masks, rows, strict=True):
        assert mask == next((m for a, b, low, high, m in made if (a, b) == (s, i) and low <= n < high), 0)


@pytest.mark.parametrize("seed", range(120))
def test_cells_find_what_a_comparison_of_rows_finds(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    right = random_order(rng, 600)
    high = right[-1]["clock"] + 1
    holes: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    lacking: dict[int, set[tuple[int, int, int]]] = {}
    orders = {}
    for station in (1, 2, 3):
        rows, lacking[station] = list(right), set()
        for _ in range(rng.choice((0, 1, 20))):
            row, count = rng.choice(right), rng.choice((1, 1, 3, 30))
            holes.setdefault((station, row["src"], row["incarnation"]), []).append((row["seq"] % WRAP, count))
            lacking[station] |= {(row["src"], row["incarnation"], (row["seq"] + k) % WRAP) for k in range(count)}
        late = rng.choice((0.0, 0.0, 0.5))  # some of it was captured after all
        rows = [row for row in rows if key_of(row) not in lacking[station] or rng.random() < late]
        for _ in range(rng.choice((0, 1, 2))):
            rows = damage(rng, rows)
        orders[station] = sorted(rows, key=lambda row: (row["clock"], row["src"]))
        write(tmp_path, station, orders[station], rng.choice((50, 4096)))
    spans = [Span(station, VIEW, BASE - 1, high) for station in orders]
    found = blocks.compare(blocks.tasks(tmp_path), spans, holes=Holes.of(holes))
    places = {key for key, _ in found.bad if isinstance(key, Place)}
    assert places == set(row_by_row(orders, lacking, high))
    assert found.rows == sum(len(rows) for rows in orders.values())
    assert {k: v for k, v in found.bad if isinstance(k, Stream)} == streams_row_by_row(orders, lacking)


def test_what_is_wrong_with_a_pdu_that_one_capture_lacks(tmp_path: Path) -> None:
    """The other two are compared all the same, and the third is accused of nothing."""
    verdict_tables(tmp_path, 3, 20_000)
    names = schema.arrow("findings")

    def change(station: int, keep: Iterable[int], crc: int | None = None) -> Row:
        path = tmp_path / "order" / f"station={station}" / "part-0.parquet"
        table = pq.read_table(path, partitioning=None)
        row: Row = table.slice(10_000, 1).to_pylist()[0]
        column = table.schema.get_field_index("payload_crc")
        values = table["payload_crc"].to_pylist()
        values[10_000] ^= crc or 0
        table = table.set_column(column, table.schema.field(column), pa.array(values, pa.int64()))
        pq.write_table(table.take(list(keep)), path, row_group_size=4096)
        return row

    row = change(3, [k for k in range(20_000) if k != 10_000])
    hole = dict.fromkeys(names.names, 0) | {"what": 1, "count": 1} | {n: row[n] for n in ("src", "incarnation", "seq")}
    path = tmp_path / "findings" / "station=3" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([hole], schema=names), path)
    right = court.judge(tmp_path, {})
    assert right.kept is True
    change(2, range(20_000), crc=1)
    judgement = court.judge(tmp_path, {})
    assert [n for n, v in judgement.verdicts.items() if v.kept is False] in (["duplicates"], ["duplicates", "invention"])
    assert "station 2" in judgement.verdicts["duplicates"].violations[0].text


def test_captures_full_of_holes_are_compared_without_a_second_look(tmp_path: Path) -> None:
    """Every block of every station has holes: all the same none is read again, and all the rest is judged."""
    rows, stations = 100_000, (1, 2, 3)
    verdict_tables(tmp_path, 3, rows)
    holes: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    rng = random.Random(3)
    for station in stations:
        path = tmp_path / "order" / f"station={station}" / "part-0.parquet"
        table = pq.read_table(path, partitioning=None)
        gone = sorted(rng.sample(range(rows), rows // 50))
        for row in table.select(["src", "incarnation", "seq"]).take(gone).to_pylist():
            holes.setdefault((station, row["src"], row["incarnation"]), []).append((row["seq"], 1))
        left = sorted(set(range(rows)) - set(gone))
        pq.write_table(table.take(left), path, row_group_size=1 << 16)
    spans = reader.spans(reader.TableReader(tmp_path).views)
    found = blocks.compare(blocks.tasks(tmp_path), spans, holes=Holes.of(holes))
    assert found.bad == [] and found.unseen == 0
    assert found.pairs > 2.9 * rows * 0.98 and found.streams > 1.9 * rows * 0.96
    assert len(blocks.compare(blocks.tasks(tmp_path), spans).bad) > 20, "without knowing the holes all blocks differ"
