"""Finding captures, whose they are, splits, and what has been read already."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from scapy.layers.l2 import Ether
from zenjun.tools.pcap.frames import files, synthetic
from zenjun.tools.pcap.frames.files import FilesError, between, find, gather, station_of_path
from zenjun.tools.pcap.frames.lookup import captures as lookup_captures
from zenjun.tools.pcap.tables.manifest import Manifest, part_name

from .built import PDUS
from .shapes import NS, SLL2, enhanced, frames, interface, pcap, pcapng, section, walk


@pytest.mark.parametrize(
    ("path", "station"),
    [
        ("s1.pcapng", 1),
        ("station-12.pcap", 12),
        ("station_03.pcap.gz", 3),
        ("lab/s2/eth0.pcap", 2),
        ("run-s3-late.pcap", 3),
        ("s1_00017_20261128120000.pcapng", 1),
        ("s2/00017.pcapng", 2),
        ("node7.pcap3", 7),
        ("3.pcapng", 3),
        ("03.pcapng", 3),
        ("S4.PCAP", 4),
        ("s3/s1.pcap", 1),
        ("2026.pcapng", 0),
        ("eth0.pcap", 0),
        ("hosts1.pcap", 0),
        ("s99.pcap", 0),
        ("s0.pcap", 0),
        ("s123.pcap", 0),
        ("tests5x.pcap", 0),
    ],
)
def test_station_of_a_path(path: str, station: int) -> None:
    assert station_of_path(f"/captures/{path}") == station


def test_find(tmp_path: Path) -> None:
    rotated = ["s3/d.pcapng", "s3/d.pcapng-20261128", "s3/d.pcapng.1", "s3/d.pcapng.2.gz"]
    for name in ("s1/a.pcap", "s1/a.pcap1", "s2/b.pcapng.gz", "s2/c.CAP.zst", "s2/notes.txt", *rotated, "odd"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    names = [str(p.relative_to(tmp_path)) for p in find([tmp_path, tmp_path / "odd", tmp_path / "odd"])]
    assert names == ["s1/a.pcap", "s1/a.pcap1", "s2/b.pcapng.gz", "s2/c.CAP.zst", *rotated, "odd"]
    os.mkfifo(tmp_path / "pipe")
    for wrong in ([], [tmp_path / "nix"], [tmp_path / "pipe"], ["/dev/null"]):
        with pytest.raises(FilesError):
            find(wrong)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FilesError, match="no capture in this folder"):
        find([tmp_path / "empty"])


def test_the_station_is_seen_from_the_frames(tmp_path: Path) -> None:
    made = synthetic.captures(tmp_path, pdus=50, seen_by=[3])
    path = made.files[0].rename(tmp_path / "dump.pcapng")
    assert gather([path])[0].station == 3
    assert gather([path], stations_given={str(path): 2})[0].station == 2
    assert gather([path], stations_given={str(tmp_path): 1})[0].station == 1


def test_a_station_that_cannot_be_told(tmp_path: Path) -> None:
    path = tmp_path / "dump.pcap"
    path.write_bytes(pcap([(NS, bytes(Ether(src="02:00:00:00:00:02") / PDUS["one"]))]))
    (capture,) = gather([path])
    assert capture.problem == f"{path}: cannot tell which station's capture this is: name it --station N={path}"
    assert capture.splits == []
    (capture,) = gather([path], stations_given={str(path): 2})
    assert (capture.problem, capture.station, capture.own_mac, len(capture.splits)) == (None, 2, 0x020000000002, 1)
    path.write_bytes(pcap(frames()))
    path.write_bytes(pcap([(NS, bytes(60))]))
    assert "none of its 1 frames is of this protocol" in str(gather([path])[0].problem)
    with pytest.raises(FilesError, match="station 65"):
        gather([path], stations_given={str(path): 65})
    with pytest.raises(FilesError, match="no such file"):
        gather([path], stations_given={"nix": 1})


def test_order_and_numbers(tmp_path: Path) -> None:
    for name, start in (("s2.pcap", 0), ("s1-b.pcap", 50), ("s1-a.pcap", 100), ("s1-c.pcap", 20)):
        (tmp_path / name).write_bytes(pcap([(NS + start * 10**9, d) for _, d in frames()]))
    assert [(c.file, Path(c.path).name) for c in gather([tmp_path])] == [
        (0, "s1-c.pcap"),
        (1, "s1-b.pcap"),
        (2, "s1-a.pcap"),
        (3, "s2.pcap"),
    ]


def test_splits_are_exact_and_carry_the_section(tmp_path: Path) -> None:
    """Every split alone gives its frames, though the interfaces are described in the first and change in the middle."""
    data = section() + interface() + interface(resolution=6)
    many = frames(200)
    for k, (time, frame) in enumerate(many):
        if k == 100:
            data += section(">") + interface(">", resolution=6) + interface(">", resolution=9)
        order, fine = "<>"[k >= 100], k % 2 == (k >= 100)
        data += enhanced(time if fine else time // 1000, frame, order, number=k % 2)
    path = tmp_path / "s1.pcapng"
    path.write_bytes(data)
    whole = walk(path)[0]
    assert [f.data for f in whole] == [d for _, d in many]
    for size in (1, 500, 3000, 1 << 20):
        capture = files.scan(path, station=1, split_bytes=size)
        assert (capture.splits[0].start, capture.splits[-1].end) == (0, len(data))
        parts = [walk(path, start=s.start, end=s.end, state=s.state)[0] for s in capture.splits]
        assert [frame for part in parts for frame in part] == whole
        assert len(parts) > 1 or size == 1 << 20
        for split, part in zip(capture.splits, parts, strict=True):
            assert (split.first_ns, split.last_ns) == (min(f.time_ns for f in part), max(f.time_ns for f in part))  # type: ignore[type-var]


def test_a_record_longer_than_the_split(tmp_path: Path) -> None:
    path = tmp_path / "s1.pcap"
    path.write_bytes(pcap([(NS, bytes(100_000))] * 3))
    assert len(files.scan(path, split_bytes=1000).splits) == 3


def test_between(tmp_path: Path) -> None:
    path = tmp_path / "s1.pcapng"
    path.write_bytes(pcapng(frames(50)))
    capture = files.scan(path, split_bytes=1000)
    first, last = capture.splits[1], capture.splits[3]
    again = between(str(path), first.start, last.end or 0, first.state, 1000)
    assert [(s.start, s.end, s.state) for s in again] == [(s.start, s.end, s.state) for s in capture.splits[1:4]]


def test_unreadable(tmp_path: Path) -> None:
    capture = files.scan(tmp_path / "s1.pcap")
    assert capture.problem == f"{tmp_path / 's1.pcap'}: No such file or directory"


# ---- what has been read already ----


def saved(folder: Path, names: list[Path]) -> list[tuple[str, int, int, int]]:
    """Pretend to have ingested what is pending; (file, its number, splits, first split's number) of each."""
    folder.mkdir(exist_ok=True)
    manifest = Manifest.load(folder, 0x88B5)
    pending = manifest.pending(names)
    manifest.add(pending)
    manifest.save()
    return [(Path(c.path).name, c.file, len(c.splits), c.splits[0].number if c.splits else -1) for c in pending]


def test_a_folder_that_captures_rotate_into(tmp_path: Path) -> None:
    out, source = tmp_path / "out", tmp_path / "in"
    source.mkdir()
    a, b = source / "s1-1.pcapng", source / "s1-2.pcapng"
    a.write_bytes(pcapng(frames(3)))
    assert saved(out, [source]) == [("s1-1.pcapng", 0, 1, 0)]
    assert saved(out, [source]) == []
    whole = pcapng(frames(6))
    a.write_bytes(whole[: len(pcapng(frames(4))) + 17])  # cut within the fifth
    b.write_bytes(pcapng(frames(2)))
    assert saved(out, [source]) == [("s1-1.pcapng", 0, 1, 1), ("s1-2.pcapng", 1, 1, 0)]
    a.write_bytes(whole)
    assert saved(out, [source]) == [("s1-1.pcapng", 0, 1, 2)]
    assert [c.frames for c in Manifest.load(out, 0x88B5).captures] == [6, 2]
    b.write_bytes(pcapng([(NS, b"x" * 60)] * 5))  # the ring has come round
    assert saved(out, [source]) == [("s1-2.pcapng", 2, 1, 0)]
    assert [c.frames for c in Manifest.load(out, 0x88B5).captures] == [6, 2, 5]
    b.touch()
    assert saved(out, [source])[0][2] == 0  # nothing new in it


def test_a_file_that_was_no_capture_yet(tmp_path: Path) -> None:
    path = tmp_path / "s1.pcapng"
    path.write_bytes(b"")
    assert saved(tmp_path / "out", [path]) == [("s1.pcapng", 0, 0, -1)]
    path.write_bytes(pcapng(frames()))
    assert saved(tmp_path / "out", [path]) == [("s1.pcapng", 1, 1, 0)]


def test_left_overs_are_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = tmp_path / "s1.pcapng"
    path.write_bytes(pcapng(frames()))
    saved(out, [path])
    folder = out / "pdus" / "station=1"
    folder.mkdir(parents=True)
    keep, two, three = folder / part_name(0, 0), folder / part_name(0, 1), folder / ".part-00001-00000.parquet.tmp"
    for name in (keep, two, three):
        name.write_bytes(b"x")
    Manifest.load(out, 0x88B5).tidy(["pdus"])
    assert list(folder.iterdir()) == [keep]


def test_folders_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a").write_bytes(b"")
    with pytest.raises(FilesError, match="holds no tables"):
        Manifest.load(tmp_path / "letters", 0x88B5)
    with pytest.raises(FilesError, match=r"Not a directory|holds no tables"):
        Manifest.load(tmp_path / "letters" / "a", 0x88B5)
    (tmp_path / "letters" / "manifest.json").write_text("{")
    with pytest.raises(FilesError, match="damaged"):
        Manifest.load(tmp_path / "letters", 0x88B5)
    path = tmp_path / "s1.pcapng"
    path.write_bytes(pcapng(frames()))
    saved(tmp_path / "out", [path])
    with pytest.raises(FilesError, match="0x88b5"):
        Manifest.load(tmp_path / "out", 0x1234)


def test_a_scan_goes_on_from_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "s1.pcapng"
    whole = pcapng(frames(20))
    path.write_bytes(whole[:1000])
    first = files.scan(path, split_bytes=300)
    path.write_bytes(whole)
    second = files.scan(path, split_bytes=300, start=first)
    assert [s.number for s in first.splits + second.splits] == list(range(len(first.splits) + len(second.splits)))
    assert second.splits[0].start == first.end and second.frames == 20 and first.frames < 20
    assert (second.first_ns, second.last_ns) == (NS, NS + 19 * 1_000_001)


def test_the_frames_decide_whose_capture_it_is(tmp_path: Path) -> None:
    """Words of a path are only believed where the frames that go out do not say otherwise, or there are none."""
    made = synthetic.captures(tmp_path, pdus=50)
    (tmp_path / "ip").mkdir()
    for k, file in enumerate(made.files, 1):
        file.rename(tmp_path / "ip" / f"10.0.0.{k}.pcapng")
    found = gather([tmp_path / "ip"])
    assert [(c.station, Path(c.path).name, c.told) for c in found] == [(k, f"10.0.0.{k}.pcapng", "frames") for k in (1, 2, 3)]
    assert "the path seems to say station 10" in str(found[0].remark) and files.remarks(found) == [c.remark for c in found]
    run = tmp_path / "s3" / "run"
    run.mkdir(parents=True)
    for k, c in enumerate(found):
        Path(c.path).rename(run / f"host-{'abc'[k]}.pcapng")
    assert [(c.station, bool(c.remark)) for c in gather([run])] == [(1, True), (2, True), (3, False)]
    assert [c.station for c in lookup_captures([str(run)])] == [1, 2, 3]
    (given,) = gather([run / "host-a.pcapng"], stations_given={str(run): 2})
    assert (given.station, given.told) == (2, "given") and "station 1's" in str(given.remark)


def test_a_path_that_names_a_station_beyond_the_cluster(tmp_path: Path) -> None:
    """No directions here: only the path speaks, and it cannot be right."""
    path = tmp_path / "10.0.0.7.pcap"
    path.write_bytes(pcap([(NS, bytes(Ether(src="02:00:00:00:00:02") / PDUS["one"]))]))
    (capture,) = gather([path])
    assert capture.station == 0 and capture.problem == (
        f"{path}: the path seems to say station 10, but the cluster has 3 stations: name it --station N={path}"
    )
    told: list[str] = []
    assert lookup_captures([str(path)], remarks=told)[0].station == 0 and "station 10" in told[0]


def test_two_captures_as_one_are_announced_if_they_overlap(tmp_path: Path) -> None:
    for name, start in (("s1-a.pcap", 0), ("s1-b.pcap", 0), ("s2-a.pcap", 0), ("s2-b.pcap", 3600)):
        (tmp_path / name).write_bytes(pcap([(NS + (start + k) * 10**9, d) for k, (_, d) in enumerate(frames())]))
    (remark,) = files.remarks(gather([tmp_path]))
    assert "s1-a.pcap and" in remark and "s1-b.pcap are taken for one capture of station 1, but they overlap in time" in remark


@pytest.mark.parametrize("cooked", [True, False])
def test_frames_on_several_interfaces_are_announced(cooked: bool, tmp_path: Path) -> None:
    """``tcpdump -i any`` at a station whose interface is a bridge: each frame at the bridge and at its port."""

    def recorded(interfaces: tuple[int, ...], direction: int = 4) -> str:
        path = tmp_path / "s2.pcapng"
        body = bytes(PDUS["one"])
        data = section() + interface(link=SLL2 if cooked else 1) + interface(link=SLL2 if cooked else 1)
        for k, index in enumerate(interfaces):
            kind = direction if k else 4
            head = struct.pack(">HHIHBB8s", 0x88B5, 0, index, 1, kind, 6, bytes(8))
            frame = head + body if cooked else bytes(Ether(src="02:00:00:00:00:02") / PDUS["one"])
            data += enhanced(NS + k, frame, number=0 if cooked else index % 2, flags=None if cooked else (2 if kind == 4 else 1))
        path.write_bytes(data)
        for split in (files.SPLIT_BYTES, 1):
            (capture,) = gather([path], stations_given={str(path): 2}, split_bytes=split)
            assert capture.several == bool(files.remarks([capture])), split
        return " ".join(files.remarks([capture]))

    assert "on several interfaces" in recorded((2, 3)) and not recorded((2, 2))
    assert not recorded((2, 3), direction=0)  # in on one and out on the other: none of it twice
