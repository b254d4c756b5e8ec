"""Captures to Parquet: all rows, bad files beside good ones, growing folders, a full disk, Ctrl-C, and the command."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from zenjun.daemon.key import LONG_KEY_BYTES
from zenjun.proto.wire import Kind
from zenjun.tools.cli import cli
from zenjun.tools.cli import run as run_command
from zenjun.tools.lab import Lab
from zenjun.tools.pcap.frames import files, synthetic
from zenjun.tools.pcap.frames.problem import Problem
from zenjun.tools.pcap.spark.session import Session
from zenjun.tools.pcap.tables import schema
from zenjun.tools.pcap.tables.decode import Columns, Decoder
from zenjun.tools.pcap.tables.ingest import IngestError, ingest

from ..e2e.cluster import Burst, datapath, exchange, in_parallel, programs, reported, wait_for
from ..e2e.daemon_common import write_key
from . import planted, recorded

ROOT = Path(__file__).resolve().parent.parent.parent
MAIN = "from zenjun.tools.command import main; main()"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("captures")
    synthetic.captures(made, pdus=2000)
    return made


def rows(out: Path, table: str) -> list[dict[str, Any]]:
    return list(pq.read_table(out / table).to_pylist())


def decoded(captures: list[files.Capture], table: str) -> list[dict[str, Any]]:
    found = []
    for capture in captures:
        for split in capture.splits:
            columns = Columns(table, schema.arrow(table).names, {"file": split.file})
            for _, batch in Decoder(split, [columns]):
                found += [row | {"station": split.station} for row in batch.to_pylist()]
    return found


def by_place(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: (row["file"], row["frame"]))


def test_what_went_in_pieces_is_in_the_tables(tmp_path: Path) -> None:
    """A PDU whose PIECEs are in the capture is a row as if it had gone whole; one that lacks a piece is none. A border between
    two ranges of a file parts no PDU."""
    whole, pieced = tmp_path / "s2.pcapng", tmp_path / "pieces" / "s2.pcapng"
    pieced.parent.mkdir()
    shutil.copy(recorded.captures()[2], whole)
    count = planted.in_pieces(whole, pieced, 60, random.Random(5))
    own = {"file", "frame", "wire", "time_ns", "station"}
    found, ranges = [], []
    for number, (path, split_bytes) in enumerate(((whole, 1 << 30), (pieced, 1 << 30), (pieced, 3_000))):
        captures = files.gather([path], stations_given={str(path): 2}, split_bytes=split_bytes)
        ranges.append(len(captures[0].splits))
        assert not ingest(captures, tmp_path / f"out{number}").problems
        got = rows(tmp_path / f"out{number}", "pdus")
        found.append(sorted(str({k: v for k, v in row.items() if k not in own}) for row in got))
    assert found[0] == found[1] == found[2] and count > 50
    assert ranges[:2] == [1, 1] and ranges[2] > 1, "some time without pieces: there it is cut"
    frames = rows(tmp_path / "out1", "frames")
    assert sum(row["problem"] == Problem.ASIDE for row in frames) > 2 * count - 1, "frames are what was on the wire"


@pytest.mark.lab
def test_pieces_of_a_cluster_that_encrypts_are_in_the_tables(tmp_path: Path) -> None:
    """A real capture: the MTU becomes smaller under load. After ``unseal`` every PDU that stations accepted is in ``pdus``, also
    those that went in pieces; before it none of those is."""
    key = write_key(tmp_path / "zenjun.key", LONG_KEY_BYTES)
    options = {"cluster": {"security": "encrypt"}, "station": {"key_file": str(key)}}
    rng = random.Random(59)
    with Lab(3, options=options) as lab, reported(lab), lab.capture(tmp_path, [2]) as captured:
        lab.start_daemons()  # their first HELLOs are in the capture
        lab.wait_open(60)
        name = f"lab-{lab.name}"
        with programs(lab, {"g": "preack"}) as members:
            burst: list[list[Burst]] = [[("g", "preack", [rng.randbytes(1400) for _ in range(4000)])] for _ in members]

            def shrink() -> None:
                wait_for(lambda: datapath(lab.station(1))["tx_frames"] > 400, "traffic")
                lab.station(3).set_mtu(700)
                wait_for(lambda: sum(datapath(s)["tx_pieced"] for s in lab.stations.values()) > 0, "some go in pieces", 20)

            in_parallel([shrink, lambda: exchange(members, burst, 60)])
            pieced = sum(datapath(s)["tx_pieced"] for s in lab.stations.values())
    plain = tmp_path / "plain" / "s2.pcap"
    plain.parent.mkdir()
    done = CliRunner().invoke(cli, ["pcap", "unseal", "--key-file", str(key), "--cluster", name, str(captured[2]), str(plain)])
    assert plain.exists(), done.output
    sent = {}
    for number, path in enumerate((captured[2], plain)):
        ingest(files.gather([path], stations_given={str(path): 2}), tmp_path / f"out{number}")
        data = [row for row in rows(tmp_path / f"out{number}", "pdus") if row["kind"] == Kind.DATA]
        sent[number] = {(row["src"], row["seq"]): row for row in data}
    aside = {row["frame"] for row in rows(tmp_path / "out1", "frames") if row["problem"] == Problem.ASIDE}
    assert pieced and any(row["frame"] in aside for row in sent[1].values()), f"{pieced} PDUs went in pieces"
    for src in (1, 2, 3):
        numbers = sorted(seq for source, seq in sent[1] if source == src)
        assert numbers == list(range(numbers[0], numbers[-1] + 1)), f"all of station {src}'s are there"
    assert not sent[0], "without the key nothing of it can be read"


def test_everything_is_in_the_tables(folder: Path, tmp_path: Path) -> None:
    captures = files.gather([folder], split_bytes=100_000)
    result = ingest(captures, tmp_path / "out")
    assert (result.frames, result.pdus, result.stations, result.problems) == (7500, 7500, [1, 2, 3], [])
    for table in ("frames", "pdus"):
        assert by_place(rows(tmp_path / "out", table)) == by_place(decoded(captures, table))
        part = next((tmp_path / "out" / table).rglob("*.parquet"))
        assert pq.read_schema(part).equals(schema.arrow(table))
    assert [row["frames"] for row in rows(tmp_path / "out", "files")] == [2500, 2500, 2500]
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_spark_writes_and_reads_the_same(folder: Path, tmp_path: Path, session: Session) -> None:
    captures = files.gather([folder], split_bytes=100_000)
    assert ingest(captures, tmp_path / "spark", session).pdus == 7500
    ingest(captures, tmp_path / "threads")
    for table in ("frames", "pdus"):
        assert by_place(rows(tmp_path / "spark", table)) == by_place(rows(tmp_path / "threads", table))
        read = schema.read(session.spark, tmp_path / "spark", table)
        assert sorted(tuple(r) for r in read.select("file", "frame").collect()) == sorted(
            (row["file"], row["frame"]) for row in rows(tmp_path / "threads", table)
        )
    vectors = schema.read(session.spark, tmp_path / "spark", "pdus").selectExpr("sum(ack[0])", "sum(pack[2])", "sum(seq)").first()
    plain = rows(tmp_path / "threads", "pdus")
    assert tuple(vectors) == (sum(r["ack"][0] for r in plain), sum(r["pack"][2] for r in plain), sum(r["seq"] for r in plain))


def test_bad_files_beside_good_ones(folder: Path, tmp_path: Path) -> None:
    """The good ones are in the tables, of a damaged one what stands before the damage; each is told with file and offset."""
    source = tmp_path / "in"
    source.mkdir()
    whole = (folder / "s1.pcapng").read_bytes()
    (source / "s1.pcapng").write_bytes(whole)
    (source / "s2.pcapng").write_bytes(b"")
    (source / "s3.pcapng").write_bytes(os.urandom(4) + b"\0" * 100)
    (source / "s4.pcapng").write_bytes(whole[:10])
    (source / "s5.pcapng").write_bytes(whole[:100_000])
    (source / "s6.pcapng").write_bytes(whole + b"\6\0\0\0\7\0\0\0" + bytes(20))
    (source / "s7.pcapng").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(40))
    # The frames of all are station 1's: only who gives them another station is believed.
    captures = files.gather([source], stations_given={str(source / f"s{k}.pcapng"): k for k in range(1, 8)})
    result = ingest(captures, tmp_path / "out")
    assert [line.split(": offset ")[0] for line in result.problems] == [str(source / f"s{k}.pcapng") for k in (2, 3, 4, 6, 7)]
    assert f"offset {len(whole)}: damaged: a block of 7 bytes" in result.problems[3]
    counts = {row["station"]: row["frames"] for row in rows(tmp_path / "out", "files")}
    assert (counts[1], counts[6]) == (2500, 2500) and 0 < counts[5] < 2500
    assert result.frames == 5000 + counts[5]
    assert {row["station"] for row in rows(tmp_path / "out", "files") if row["truncated"]} >= {5}


def test_nothing_at_all_to_decode(tmp_path: Path) -> None:
    (tmp_path / "s1.pcapng").write_bytes(b"nothing")
    result = ingest(files.gather([tmp_path / "s1.pcapng"]), tmp_path / "out")
    assert (result.frames, len(result.problems)) == (0, 1)


def test_a_full_disk_is_one_line_and_leaves_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captures = files.gather([folder], split_bytes=100_000)

    def full(self: Any, *args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(pq.ParquetWriter, "write_table", full)
        with pytest.raises(IngestError, match=r"out: no space left on the disk$"):
            ingest(captures, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    ingest(captures[:1], tmp_path / "out")
    before = sorted((tmp_path / "out").rglob("*"))
    with monkeypatch.context() as m:
        m.setattr(pq.ParquetWriter, "write_table", full)
        with pytest.raises(IngestError):
            ingest(captures[1:], tmp_path / "out")
    assert [p for p in sorted((tmp_path / "out").rglob("*")) if p.is_file()] == [p for p in before if p.is_file()]


def test_a_really_full_disk(folder: Path, tmp_path: Path) -> None:
    """A file system of its own with no room."""
    mounted = tmp_path / "small"
    mounted.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(mounted)], capture_output=True, check=False
    ).returncode:
        mounted.rmdir()
        (tmp_path / "small").symlink_to("/dev/full")  # not as good, but every user's
        with pytest.raises((IngestError, files.FilesError)):
            ingest(files.gather([folder]), tmp_path / "small" / "out")
        return
    try:
        with pytest.raises(IngestError, match="no space left on the disk"):
            ingest(files.gather([folder]), mounted / "out")
        assert not (mounted / "out").exists()
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_a_folder_that_grows(folder: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    whole = (folder / "s1.pcapng").read_bytes()
    (source / "s1.pcapng").write_bytes(whole[:300_000])
    command = ["pcap", "ingest", "--master", "none", str(source), "--out", str(out)]
    assert CliRunner().invoke(cli, command).exit_code == 0
    first = len(rows(out, "frames"))
    assert 0 < first < 2500
    (source / "s1.pcapng").write_bytes(whole)
    (source / "s2.pcapng").write_bytes((folder / "s2.pcapng").read_bytes())
    assert CliRunner().invoke(cli, command).exit_code == 0
    found = by_place(rows(out, "frames"))
    assert [(row["file"], row["frame"]) for row in found] == [(f, k) for f in (0, 1) for k in range(2500)]
    assert [row["offset"] for row in found[:2500]] == [
        row["offset"] for row in by_place(decoded(files.gather([folder]), "frames"))[:2500]
    ]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0 and "nothing new" in done.output


# ---- the command ----


def command(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["pcap", "ingest", "--master", "none", *map(str, arguments)])
    return done.exit_code, done.output


def test_the_command(folder: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "pcap", "ingest", str(folder), "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "7,500 frames, 7,500 PDUs of stations 1 2 3" in done.stdout
    assert done.stderr.startswith("looking into the captures …\n")


def test_the_command_says_what_is_wrong(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cases = [
        (["nix", "--out", str(tmp_path / "o")], 2, "nix: no such file or folder"),
        ([str(folder), "--out", str(folder)], 2, "holds no tables of captures"),
        ([str(folder), "--out", str(tmp_path / "o"), "--station", "99=x"], 2, "is neither a station, 1..64, nor like 2=FILE"),
        ([str(folder), "--out", str(tmp_path / "o"), "--ethertype", "7"], 2, "7 is not in 0x0600..0xffff"),
        ([str(folder), "--out", "/proc/nope"], 1, "/proc/nope"),
        ([str(folder), "--out", str(tmp_path / "o"), "--master", "sparky"], 2, "'sparky' is not like local[*]"),
    ]
    for arguments, code, text in cases:
        assert run_command(["pcap", "ingest", "--master", "none", *arguments]) == code, arguments
        said = capfd.readouterr().err
        assert text in said and "Traceback" not in said
    bad = tmp_path / "s1.pcapng"
    bad.write_bytes(b"pcap?")
    assert run_command(["pcap", "ingest", "--master", "none", str(bad), str(folder), "--out", str(tmp_path / "o")]) == 1
    streams = capfd.readouterr()
    assert f"{bad}: offset 0: neither pcap nor pcapng" in streams.err and "1 file with problems" in streams.err
    assert "7,500 frames" in streams.out


def test_ctrl_c_removes_what_was_begun(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    synthetic.captures(source, bytes_each=150 << 20)
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "pcap", "ingest", str(source), "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    deadline = time.monotonic() + 240  # it runs behind the tests of real daemons
    while not list(out.rglob("*.parquet")):
        assert process.poll() is None, "ended without being told to"
        assert time.monotonic() < deadline, "not within 240 s"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    shutil.rmtree(source)  # much, and pytest would keep it
    assert process.returncode == 130 and "Traceback" not in said
    assert not out.exists()
