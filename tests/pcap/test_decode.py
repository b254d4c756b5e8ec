"""The decoder against the scapy layers, on PDUs of every kind, real lab captures, and frames with a fault (case 163)."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from scapy.packet import Raw
from zenjun.proto import wire
from zenjun.tools.dissect import Ether, Zenjun, complete, crc32c, find
from zenjun.tools.pcap.frames import synthetic
from zenjun.tools.pcap.frames.files import Split, gather
from zenjun.tools.pcap.frames.problem import Problem
from zenjun.tools.pcap.native import ffi, lib
from zenjun.tools.pcap.tables import decode, schema
from zenjun.tools.pcap.tables.decode import Columns, Decoder, Filter

from ..capturefile import CaptureFile
from .built import PDUS
from .recorded import captures
from .shapes import NS, enhanced, interface, pcap, section

KINDS = {kind.name: int(kind) for kind in wire.Kind}


def rows(
    path: Path | str, table: str, *, extra: tuple[str, ...] = (), wanted: Filter = decode.EVERYTHING, **changes: Any
) -> list[dict[str, Any]]:
    split = Split(str(path), 7, 2, 0, 0, None, b"")
    columns = Columns(table, (*schema.arrow(table, station=True).names, *extra), {"file": 7, "station": 2})
    decoder = Decoder(split, [columns], wanted=wanted, **changes)
    found = []
    for name, batch in decoder:
        assert name == table
        batch.validate(full=True)
        found += batch.to_pylist()
    assert decoder.problem is None
    return found


def one(data: bytes, tmp_path: Path, **changes: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(row of frames, row of pdus if there is one) of a capture of this frame alone."""
    path = tmp_path / "one.pcap"
    path.write_bytes(pcap([(NS, data)], **changes))
    pdus = rows(path, "pdus", extra=("payload",))
    return rows(path, "frames", extra=("data",))[0], pdus[0] if pdus else None


def signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def expected(pdu: Zenjun) -> dict[str, Any]:
    """The columns that come from the PDU's bytes, by the scapy layers."""
    packed = "PACK" in str(pdu.flags)
    row = {
        "cluster": pdu.cluster,
        "kind": int(pdu.kind),
        "flags": int(pdu.flags),
        "n": pdu.stations,
        **{name: getattr(pdu, name) for name in ("src", "target", "length", "incarnation", "instance", "seq", "frame_max")},
        "free_buffers": pdu.free_buffers,
        "clock": signed(pdu.clock),
        "check": signed(pdu.check),
        "ack": list(pdu.ack),
        "pack": list(pdu.pack) if packed else None,
    }
    confirm = ("state", "trans", "position", "digest", "counted", "view")
    body = pdu.payload
    return row | {name: signed(getattr(body, name)) if pdu.kind == wire.Kind.CONFIRM else None for name in confirm}


def test_the_numbers_of_problems_are_the_tables() -> None:
    theirs = {name.removeprefix("ZP_P_"): number for number, name in ffi.typeof("enum zp_problem").elements.items()}
    assert theirs == {problem.name: int(problem) for problem in Problem}


def test_the_columns_of_c_are_the_tables() -> None:
    for table in ("frames", "pdus"):
        names = {name for name, _ in ffi.typeof(f"struct zp_{table}").fields}
        assert set(schema.arrow(table).names) - {"file"} <= names


IMPLEMENTED = [name for name, pdu in PDUS.items() if pdu.kind in wire.IMPLEMENTED]


@pytest.mark.parametrize("name", IMPLEMENTED)
def test_every_kind_as_scapy_says(name: str, tmp_path: Path) -> None:
    data = bytes(Ether(src="02:00:00:00:00:07") / PDUS[name])
    pdu = find(Ether(data))
    assert pdu is not None and pdu.check_ok
    for padded in (data, data.ljust(60, b"\0"), data + b"trailer"):
        frame, row = one(padded, tmp_path)
        assert (frame["problem"], frame["kind"], frame["data"]) == (0, int(pdu.kind), padded)
        assert row is not None
        assert {key: row[key] for key in expected(pdu)} == expected(pdu)
        assert row["payload"] == bytes(pdu.payload)[: pdu.length]
        assert (row["time_ns"], row["wire"], row["file"], row["station"], row["frame"]) == (NS, len(padded), 7, 2, 0)


@pytest.mark.parametrize("medium", ["switched", "bus"])
def test_real_captures_as_scapy_says(medium: str) -> None:
    """Every frame of a lab: what C made of it is what the scapy layers say."""
    for path in captures(medium).values():
        with path.open("rb") as file:
            records = list(CaptureFile(file))
        theirs = {}
        for index, record in enumerate(records):
            pdu = find(Ether(record.data))
            if pdu is not None and pdu.check_ok and complete(pdu):
                theirs[index] = expected(pdu) | {"time_ns": record.time_ns, "wire": record.wire_length}
        ours = {row["frame"]: row for row in rows(path, "pdus")}
        assert len(theirs) > 50 and ours.keys() == theirs.keys()
        for index, row in theirs.items():
            assert {key: ours[index][key] for key in row} == row
        frames = rows(path, "frames")
        assert [f["time_ns"] for f in frames] == [r.time_ns for r in records]
        assert {f["direction"] for f in frames} == {1, 2}


def sealed(pdu: Zenjun, **fields: Any) -> bytes:
    """The frame with fields set wrongly, and checksums that fit."""
    for key, value in fields.items():
        setattr(pdu, key, value)
    pdu.check = None
    return bytes(Ether(src="02:00:00:00:00:07") / pdu)


def fresh(name: str = "packed") -> Zenjun:
    made = find(Ether(bytes(Ether() / PDUS[name])))
    assert made is not None
    return made


def resealed(data: bytes) -> bytes:
    """Checksums anew, over what the header says is there."""
    b = bytearray(data[14:])
    vectors = 2 if b[6] & wire.Flag.PACK else 1
    head = 48 + 4 * vectors * b[7]
    length = struct.unpack_from(">H", b, 10)[0]
    struct.pack_into(">II", b, 40, crc32c(bytes(b[:40] + b[48:head])), crc32c(bytes(b[head : head + length])))
    return data[:14] + bytes(b)


FAULTS: dict[str, tuple[Any, Problem]] = {
    "version": (lambda: sealed(fresh(), version=2), Problem.VERSION),
    "kind 0": (lambda: sealed(fresh(), kind=0), Problem.KIND),
    "kind 11": (lambda: bytes(Ether() / PDUS["service"]), Problem.KIND),
    "no stations": (lambda: sealed(fresh(), stations=0), Problem.STATIONS),
    "65 stations": (lambda: sealed(fresh(), stations=65), Problem.STATIONS),
    "source 0": (lambda: sealed(fresh(), src=0), Problem.SOURCE),
    "source 4 of 3": (lambda: sealed(fresh(), src=4), Problem.SOURCE),
    "target 4 of 3": (lambda: sealed(fresh(), target=4), Problem.SOURCE),
    "length": (lambda: sealed(fresh(), length=60000), Problem.LENGTH),
    "header only": (lambda: bytes(Ether(type=0x88B5) / Raw(b"\1" * 47)), Problem.SHORT),
    "vectors missing": (lambda: bytes(Ether() / PDUS["packed"])[: 14 + 48 + 4], Problem.SHORT),
    "checksum of the head": (lambda: sealed(fresh())[:30] + b"\xff" + sealed(fresh())[31:], Problem.CHECK),
    "checksum of the payload": (lambda: sealed(fresh())[:-1] + b"\xff", Problem.CHECK),
    "message too long": (lambda: resealed(_set(bytes(Ether() / PDUS["one"]), 14 + 48 + 12 + 3, 6)), Problem.PAYLOAD),
    "message type": (lambda: resealed(_set(bytes(Ether() / PDUS["one"]), 14 + 48 + 12 + 10, 255)), Problem.PAYLOAD),
    "message flags": (lambda: resealed(_set(bytes(Ether() / PDUS["one"]), 14 + 48 + 12 + 11, 2)), Problem.PAYLOAD),
    "rest of a message": (lambda: resealed(_set(bytes(Ether() / PDUS["one"]), 14 + 48 + 12 + 3, 1)), Problem.PAYLOAD),
}


def _set(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


@pytest.mark.parametrize("name", FAULTS)
def test_faults_have_their_number(name: str, tmp_path: Path) -> None:
    make, problem = FAULTS[name]
    frame, row = one(make(), tmp_path)
    assert (Problem(frame["problem"]), row) == (problem, None)
    assert frame["kind"] is not None


def test_each_kind_is_judged_by_its_payload(tmp_path: Path) -> None:
    """One byte more or less of payload than the counts in it say, checksums and all."""
    for name in IMPLEMENTED:
        made, kind = PDUS[name], fresh(name).kind
        for extra in (b"", b"\0"):
            data = bytes(Ether() / made) + extra
            size = struct.unpack_from(">H", data, 24)[0] + len(extra) - (not extra)
            if size < 0:
                continue
            wrong = resealed(data[:24] + struct.pack(">H", size) + data[26:])
            frame, row = one(wrong, tmp_path)
            assert (frame["problem"], row) == (Problem.PAYLOAD, None), (name, kind, len(extra))


def test_cut_by_the_snap_length(tmp_path: Path) -> None:
    data = bytes(Ether() / PDUS["packed"])
    end, whole = len(data), data + b"padding"
    path = tmp_path / "cut.pcapng"
    path.write_bytes(section() + interface() + b"".join(enhanced(NS, whole[:k], wire=len(whole)) for k in range(end + 1)))
    for kept, row in enumerate(rows(path, "frames")):
        problem = Problem.CUT if 14 <= kept < end else Problem.NONE
        assert (row["problem"], row["captured"], row["wire"]) == (problem, kept, end + 7)
        assert (row["kind"] is None) == (row["ethertype"] is None) == (row["src_mac"] is None) == (kept < 14)
    assert [row["frame"] for row in rows(path, "pdus")] == [end]


def test_other_peoples_traffic_and_tags(tmp_path: Path) -> None:
    pdu = bytes(Ether(src="02:00:00:00:00:07") / PDUS["one"])
    tagged = pdu[:12] + b"\x81\x00\x20\x05" + pdu[12:]
    arp = bytes(Ether(type=0x0806)) + bytes(46)
    path = tmp_path / "mixed.pcap"
    path.write_bytes(pcap([(NS, arp), (NS + 1, tagged), (NS + 2, pdu)]))
    frames = rows(path, "frames")
    assert [(f["ethertype"], f["vlan"], f["kind"], f["problem"]) for f in frames] == [
        (0x0806, None, None, 0),
        (0x88B5, 5, 1, 0),
        (0x88B5, None, 1, 0),
    ]
    assert [f["offset"] for f in frames] == [24, 24 + 16 + 60, 24 + 16 + 60 + 16 + len(tagged)]
    assert [p["frame"] for p in rows(path, "pdus")] == [1, 2]
    assert rows(path, "pdus", ethertype=0x0806) == []


def test_frames_without_a_time(tmp_path: Path) -> None:
    from .shapes import simple

    pdu = bytes(Ether() / PDUS["one"])
    path = tmp_path / "spb.pcapng"
    path.write_bytes(section() + interface() + simple(pdu) + enhanced(NS, pdu))
    assert [p["time_ns"] for p in rows(path, "pdus")] == [None, NS]
    assert [f["time_ns"] for f in rows(path, "frames", wanted=Filter(from_ns=0))] == [NS]


def test_filters(tmp_path: Path) -> None:
    made = synthetic.captures(tmp_path, pdus=300, confirm_every=3, seen_by=[2])
    everything = rows(made.files[0], "pdus")
    assert len(everything) == made.frames == 400
    times = [row["time_ns"] for row in everything]
    low, high = sorted(times)[50], sorted(times)[300]
    for wanted, keeps in (
        (Filter(from_ns=low, to_ns=high), lambda r: low <= r["time_ns"] <= high),
        (Filter(kinds=frozenset({2})), lambda r: r["kind"] == 2),
        (Filter(kinds=frozenset({1, 2})), lambda r: True),
        (Filter(sources=frozenset({3})), lambda r: r["src"] == 3),
        (Filter(sources=frozenset({1, 64})), lambda r: r["src"] == 1),
        (Filter(sources=frozenset({65, 0, -1})), lambda r: False),
        (Filter(kinds=frozenset({200, -1})), lambda r: False),
        (Filter(low, 1 << 62, frozenset({1}), frozenset({2})), lambda r: r["time_ns"] >= low and r["kind"] == 1 < r["src"] < 3),
        (Filter(from_ns=1 << 70), lambda r: False),
    ):  # fmt: skip
        assert rows(made.files[0], "pdus", wanted=wanted) == [row for row in everything if keeps(row)], wanted


def test_batches_end_where_the_columns_are_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, vectors and bytes each end a batch; nothing is lost or twice at the seam."""
    made = synthetic.captures(tmp_path, pdus=1500, seen_by=[1], stations=5)
    assert made.bytes > 2 * lib.ZP_FRAME_MAX
    path = made.files[0]
    pdus, frames = rows(path, "pdus", extra=("payload",)), rows(path, "frames", extra=("data",))
    assert [row["frame"] for row in pdus] == list(range(made.frames))
    for name, value in (("ROWS_MAX", 8), ("_VECTOR_ENTRIES", 64), ("_BYTES_MAX", max(65536, lib.ZP_FRAME_MAX))):
        with monkeypatch.context() as m:
            m.setattr(decode, name, value)
            assert rows(path, "pdus", extra=("payload",)) == pdus, name
            assert rows(path, "frames", extra=("data",)) == frames, name


def test_both_tables_in_one_pass_and_fewer_columns(tmp_path: Path) -> None:
    made = synthetic.captures(tmp_path, pdus=100, seen_by=[1])
    split = Split(str(made.files[0]), 0, 1, 0, 0, None, b"")
    found = dict(Decoder(split, [Columns("frames", ["kind", "frame"], {}), Columns("pdus", ["seq", "ack"], {})]))
    assert found["frames"].schema.names == ["kind", "frame"] and found["frames"].num_rows == made.frames
    assert found["pdus"].schema.types == [pa.int64(), pa.list_(pa.int64())]


def test_splits_give_what_the_whole_gives(tmp_path: Path) -> None:
    made = synthetic.captures(tmp_path, pdus=3000, seen_by=[1])
    whole = rows(made.files[0], "pdus")
    (capture,) = gather(made.files, split_bytes=70_000)
    assert len(capture.splits) > 5
    parts = []
    for split in capture.splits:
        for _, batch in Decoder(split, [Columns("pdus", schema.arrow("pdus", station=True).names, {"file": 7, "station": 2})]):
            parts += batch.to_pylist()
    assert parts == whole


def test_random_frames_as_scapy_says(tmp_path: Path) -> None:
    """PDUs with bytes changed at random, half of them sealed again: C finds fault with what scapy finds fault with."""
    chance = random.Random(3)
    sources = [bytes(Ether(src="02:00:00:00:00:07") / pdu) for pdu in PDUS.values()]
    frames = []
    for _ in range(800):
        data = bytearray(chance.choice(sources))
        for _ in range(chance.randrange(0, 3)):
            data[chance.randrange(14, len(data))] = chance.randrange(256)
        frames.append(resealed(bytes(data)) if chance.random() < 0.5 and data[21] <= 64 else bytes(data))
    path = tmp_path / "random.pcap"
    path.write_bytes(pcap([(NS, data) for data in frames]))
    good = 0
    for sent, row in zip(frames, rows(path, "frames"), strict=True):
        pdu = find(Ether(sent))
        sound = pdu is not None and pdu.check_ok is True and pdu.version == 1 and 1 <= pdu.src <= pdu.stations <= 64
        if row["problem"] == Problem.NONE:
            assert sound and pdu is not None and complete(pdu)
            good += 1
        elif row["problem"] == Problem.CHECK:
            assert pdu is not None and pdu.check_ok is False
        elif row["problem"] == Problem.LENGTH:
            assert pdu is not None and pdu.check_ok is None
    assert 200 < good < 700
