"""The data source in Spark: what a query gets is what the decoder gives; by splits, with less columns, filtered, as a stream."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.datasource import EqualTo, In, LessThan
from zenjun.tools.pcap.frames import synthetic
from zenjun.tools.pcap.frames.files import Split
from zenjun.tools.pcap.tables import schema, source
from zenjun.tools.pcap.tables.decode import Columns, Decoder

from .recorded import captures as recorded
from .shapes import NS, enhanced, frames, interface, pcap, pcapng, section

NAME = source.NAME


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captures of three stations of a generated run, one of them compressed."""
    made = tmp_path_factory.mktemp("captures")
    synthetic.captures(made, pdus=4000)
    import gzip

    third = made / "s3.pcapng"
    (made / "s3.pcapng.gz").write_bytes(gzip.compress(third.read_bytes(), 1))
    third.unlink()
    return made


def decoded(path: Path, table: str, station: int, file: int) -> list[tuple[Any, ...]]:
    columns = Columns(table, schema.arrow(table, station=True).names, {"file": file, "station": station})
    return [
        tuple(row.values())
        for _, batch in Decoder(Split(str(path), file, station, 0, 0, None, b""), [columns])
        for row in batch.to_pylist()
    ]


def load(spark: Any, what: Any, wanted: str = "", **options: Any) -> Any:
    reader = spark.read.format(NAME)
    for key, value in options.items():
        reader = reader.option(key, str(value))
    return (reader.schema(wanted) if wanted else reader).load(str(what))


@pytest.mark.parametrize("table", ["frames", "pdus"])
def test_splits_sum_to_the_whole(table: str, spark: Any, folder: Path) -> None:
    """Every row of every file once, each value as the decoder has it, whatever the splits."""
    found = load(spark, folder, table=table, splitBytes=200_000)
    assert found.select(F.spark_partition_id()).distinct().count() > 6
    rows = sorted(tuple(row) for row in found.collect())
    expected = []
    for station, name in ((1, "s1.pcapng"), (2, "s2.pcapng"), (3, "s3.pcapng.gz")):
        expected += decoded(folder / name, table, station, station - 1)
    assert rows == sorted(expected)
    assert found.schema.simpleString() == spark.createDataFrame([], schema.spark(table)).schema.simpleString()


def test_real_captures(spark: Any) -> None:
    paths = recorded()
    found = load(spark, next(iter(paths.values())).parent)
    counts = {row[0]: row[1] for row in found.groupBy("station").count().collect()}
    assert counts == {station: len(decoded(path, "pdus", station, 0)) for station, path in paths.items()}


def test_columns_by_schema(spark: Any, folder: Path) -> None:
    """Only what is asked for is decoded; the payload comes only so."""
    found = load(spark, folder / "s1.pcapng", "length int, payload binary, src tinyint")
    assert found.columns == ["length", "payload", "src"]
    row = found.agg(F.sum("length"), F.sum(F.length("payload")), F.count("*")).first()
    assert row[0] == row[1] and row[2] == 5000
    raw = load(spark, folder / "s1.pcapng", "captured int, data binary", table="frames")
    assert raw.where("captured != length(data)").count() == 0
    for wrong, text in (("nix int", "has no column 'nix'"), ("seq int", "column seq is bigint, not int")):
        with pytest.raises(Exception, match=text):
            load(spark, folder, wrong).count()


def test_filters_are_pushed_down_and_right(spark: Any, folder: Path) -> None:
    everything = load(spark, folder)
    for condition in (
        "station = 2",
        "station in (1, 3) and kind = 2",
        "src = 1 and kind in (1, 2)",
        f"time_ns >= {synthetic.START_NS + 5_000_000} and time_ns < {synthetic.START_NS + 6_000_000}",
        f"time_ns = {synthetic.START_NS}",
        "src = 1 or src = 2",
        "kind = 2 and src = 200",
        "station = 1 and seq > 1000 and src != 2",
    ):
        found = everything.where(condition)
        plain = spark.createDataFrame(everything.toArrow()).where(condition) if condition.startswith("station = 2") else None
        count = found.count()
        if plain is not None:
            assert count == plain.count() == 5000
        key = everything.select("station", "frame", F.expr(condition).alias("yes"))  # evaluated by Spark, not pushed down
        assert count == key.agg(F.sum(F.col("yes").cast("int"))).first()[0], condition
        plan = str(found._jdf.queryExecution().optimizedPlan().toString())
        left = [line for line in plan.splitlines() if line.lstrip("+- :").startswith("Filter")]
        pushed = " or " not in condition and "!=" not in condition
        assert not (pushed and [line for line in left if "=" in line or " IN " in line]), plan


def test_what_is_pushed_reaches_the_splits(folder: Path, spark: Any) -> None:
    options = source._Options({"path": str(folder), "splitBytes": "200000"})
    wanted = spark.createDataFrame([], schema.spark("pdus")).schema
    reader = source.PcapReader(options, wanted)
    everything = len(reader.partitions())
    time = LessThan(("time_ns",), synthetic.START_NS + 1000)
    other = EqualTo(("seq",), 3)
    assert list(reader.pushFilters([EqualTo(("station",), 2), time, other])) == [other]
    parts = reader.partitions()
    assert len(parts) == 0 or {p.split.station for p in parts} == {2}  # type: ignore[attr-defined]
    assert len(parts) < everything / 6
    assert list(reader.pushFilters([In(("src",), (1, 2)), EqualTo(("src",), 2)])) == []
    assert reader.filter.sources == frozenset({2})


def test_the_table_of_files(spark: Any, folder: Path) -> None:
    rows = load(spark, folder, table="files").orderBy("file").collect()
    assert [(r.file, r.station, r.format, r.frames, r.truncated, r.problem) for r in rows] == [
        (0, 1, "pcapng", 5000, False, None),
        (1, 2, "pcapng", 5000, False, None),
        (2, 3, "pcapng gzip", 5000, False, None),
    ]


def test_bad_files(spark: Any, tmp_path: Path) -> None:
    good, bad = tmp_path / "s1.pcapng", tmp_path / "s2.pcapng"
    synthetic.captures(tmp_path, pdus=20, seen_by=[1], confirm_every=0)
    bad.write_bytes(b"this is no capture")
    with pytest.raises(Exception, match=r"neither pcap nor pcapng.*bad=keep"):
        load(spark, tmp_path).count()
    assert load(spark, tmp_path, bad="keep").count() == 20
    problem = load(spark, tmp_path, table="files").where("station = 2").first().problem
    assert problem.startswith(f"{bad}: offset 0: ")
    assert load(spark, good).count() == 20


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"table": "order"}, "table 'order' is none of"),
        ({"speed": "high"}, "no option speed"),
        ({"splitBytes": "1"}, "less than"),
        ({"stations": "one=x"}, "is not N=FILE"),
        ({"bad": "maybe"}, "neither fail nor keep"),
        ({"ethertype": "zjn"}, "invalid literal"),
    ],
)
def test_options_are_checked(options: dict[str, str], text: str) -> None:
    with pytest.raises(source.OptionError, match=text):
        source._Options(options)


def test_stations_and_ethertype_as_options(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "dump.pcap"
    path.write_bytes(pcap([(NS, bytes(12) + b"\x12\x34" + bytes(60))]))
    rows = load(spark, path, table="frames", ethertype="0x1234", stations=f"4={path}").collect()
    assert [(r.station, r.kind, r.problem) for r in rows] == [(4, 0, 3)]


# ---- stream ----


@pytest.fixture
def streamed(spark: Any, tmp_path: Path) -> Iterator[Any]:
    """``again()`` runs the stream over ``tmp_path/in`` to where it is now, from its checkpoint; gives all rows so far."""
    (tmp_path / "in").mkdir()

    def again() -> list[tuple[int, str, int, bytes]]:
        stream = spark.readStream.format(NAME).option("table", "frames")
        rows = stream.schema("station int, file int, frame bigint, data binary").load(str(tmp_path / "in"))
        sink = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = sink.trigger(availableNow=True).start(str(tmp_path / "out"))
        query.awaitTermination(60)
        if not list((tmp_path / "out").glob("*.parquet")):
            return []
        return sorted(tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).collect())

    yield again
    shutil.rmtree(tmp_path / "checkpoint", ignore_errors=True)


def test_each_frame_once_from_a_file_that_grows_and_is_rotated(streamed: Any, tmp_path: Path) -> None:
    """Cut within a record, within a section whose interfaces stand at its beginning, then whole, then a second file, then a new
    file under the name of the first; the query is started anew each time and goes on from its checkpoint."""
    source_folder = tmp_path / "in"
    assert streamed() == []
    records = frames(12)
    first = section(">") + interface(">") + b"".join(enhanced(t, d, ">") for t, d in records[:8])
    cut = len(section(">") + interface(">") + b"".join(enhanced(t, d, ">") for t, d in records[:3])) + 30
    a = source_folder / "s2-00001.pcapng"
    a.write_bytes(first[:cut])
    expected = [(2, 0, k, d) for k, (_, d) in enumerate(records[:3])]
    assert streamed() == expected
    with a.open("ab") as file:
        file.write(first[cut:])
    (source_folder / "s2-00002.pcapng").write_bytes(pcapng(records[8:]))
    expected += [(2, 0, k, d) for k, (_, d) in enumerate(records[:8]) if k >= 3] + [
        (2, 1, k, d) for k, (_, d) in enumerate(records[8:])
    ]
    assert streamed() == expected
    a.write_bytes(pcapng([(NS, b"n" * 60)]))
    expected += [(2, 2, 0, b"n" * 60)]
    assert streamed() == expected
    assert streamed() == expected


def test_the_stream_goes_by_splits(tmp_path: Path, spark: Any) -> None:
    synthetic.captures(tmp_path, pdus=4000, seen_by=[1])
    stream = source.PcapStream(
        source._Options({"path": str(tmp_path), "splitbytes": "100000"}), spark.createDataFrame([], schema.spark("pdus")).schema
    )
    start = stream.initialOffset()
    end = stream.latestOffset(start)
    parts = stream.partitions(start, end)
    assert len(parts) > 8
    assert sum(batch.num_rows for part in parts for batch in stream.read(part)) == 5000
    assert stream.partitions(end, stream.latestOffset(end)) == []
