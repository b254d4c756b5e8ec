"""The walker against every shape of capture file, cut and damaged ones among them (cases 151, 153, 155, 157, 161)."""

from __future__ import annotations

import gzip
import random
import struct
import subprocess
from pathlib import Path

import pytest
from zenjun.tools.lab.capture import PcapngWriter
from zenjun.tools.pcap import native
from zenjun.tools.pcap.frames import files
from zenjun.tools.pcap.native import Reader, ffi, lib

from ..capturefile import CaptureError, CaptureFile
from . import shapes
from .shapes import NS, RAW_IP, SLL, SLL2, Frame, enhanced, interface, obsolete, pcap, pcapng, section, simple, walk

THREE = shapes.frames()


def write(folder: Path, data: bytes, name: str = "x.pcap") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.fixture(params=[None, 1, 64], ids=["one piece", "bytes", "pieces"])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file comes in one piece, or in pieces that end anywhere."""
    if request.param:
        monkeypatch.setattr(native, "CHUNK_BYTES", request.param)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nano", [True, False])
def test_pcap_of_both_orders_and_units(order: str, nano: bool, tmp_path: Path, chunk: None) -> None:
    """Case 151: equal tables, and nanoseconds stay."""
    found, _, damage = walk(write(tmp_path, pcap(THREE, order, nano)))
    assert damage is None
    assert found == [Frame(t if nano else t // 1000 * 1000, d, len(d)) for t, d in THREE]


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_of_both_orders(order: str, tmp_path: Path, chunk: None) -> None:
    found, _, damage = walk(write(tmp_path, pcapng(THREE, order)))
    assert damage is None
    assert found == [Frame(t, d, len(d)) for t, d in THREE]


def test_sections_of_different_orders_and_interfaces(tmp_path: Path, chunk: None) -> None:
    """Case 155: link type and resolution are the interface's, and a section has its own interfaces."""
    cooked = b"\0" * 10 + b"\4" + b"c" * 9
    first = (
        section()
        + interface()
        + interface(link=RAW_IP, resolution=6)
        + enhanced(NS, b"a" * 20)
        + enhanced(NS // 1000, b"b" * 21, number=1)
    )
    second = section(">") + interface(">", link=SLL2, resolution=3, offset=-5) + enhanced(NS // 10**6, cooked, ">")
    found, _, damage = walk(write(tmp_path, first + second))
    assert damage is None
    assert found == [
        Frame(NS, b"a" * 20, 20),
        Frame(NS // 1000 * 1000, b"b" * 21, 21, RAW_IP, 0, 1),
        Frame(NS // 10**6 * 10**6 - 5 * 10**9, cooked, 20, SLL2, 2),
    ]


@pytest.mark.parametrize(
    ("resolution", "ticks", "expected"),
    [
        (None, 1_700_000_000_123_456, 1_700_000_000_123_456_000),
        (0, 17, 17 * 10**9),
        (9, NS, NS),
        (12, 1_700_000_123_456_789_012, 1_700_000_123_456_789),
        (0x80 | 20, 3 << 20 | 1 << 19, 3_500_000_000),
        (0x80 | 0, 5, 5 * 10**9),
        (0x80 | 64, 1 << 63, 500_000_000),
        (0x80 | 127, 1 << 63, 0),
        (127, 1 << 63, 0),
        (28, 5 * 10**19 >> 2, 1),
        (0, 1 << 63, "too large"),
    ],
)
def test_resolutions(resolution: int | None, ticks: int, expected: int | str, tmp_path: Path) -> None:
    path = write(tmp_path, section() + interface(resolution=resolution) + enhanced(ticks, b"x" * 14))
    found, _, damage = walk(path)
    assert damage is None
    if expected == "too large":
        assert found[0].time_ns is None
    else:
        assert found[0].time_ns == expected


def test_blocks_without_time_obsolete_and_unknown_ones(tmp_path: Path, chunk: None) -> None:
    unknown = shapes.block("<", 0x0BAD, b"whatever it says" * 3) + shapes.block("<", 5, bytes(12)) + shapes.block("<", 4, b"")
    body = section() + unknown + interface(snaplen=30) + simple(b"s" * 25) + unknown + obsolete(NS, b"old" * 7)
    body += simple(b"t" * 30, wire=99) + unknown
    found, reader, damage = walk(write(tmp_path, body))
    assert damage is None and reader.tail_bytes == 0
    assert found == [Frame(None, b"s" * 25, 25), Frame(NS, b"old" * 7, 21), Frame(None, b"t" * 30, 99)]


@pytest.mark.parametrize(("flags", "direction"), [(None, 0), (0b00101, 1), (0b00010, 2), (0b00011, 0), (0b01100, 0)])
def test_direction_from_the_flags(flags: int | None, direction: int, tmp_path: Path) -> None:
    for order in "<>":
        found, _, _ = walk(write(tmp_path, section(order) + interface(order) + enhanced(NS, b"x" * 15, order, flags=flags)))
        assert found[0].direction == direction


def test_direction_from_the_own_address_where_the_file_says_none(tmp_path: Path) -> None:
    path = write(tmp_path, pcap([(NS, bytes(6) + bytes([k]) * 6 + b"\x88\xb5") for k in (1, 2, 1)]))
    assert [f.direction for f in walk(path)[0]] == [0, 0, 0]
    assert [f.direction for f in walk(path, own_mac=0x010101010101)[0]] == [2, 1, 2]


def link_of(path: Path, number: int = 0) -> dict[str, object]:
    frame, link = ffi.new("struct zp_frame *"), ffi.new("struct zp_link *")
    with Reader(path) as reader:
        at = -1
        while at < number:
            result = lib.zp_next(reader.walk, frame)
            at += result == lib.ZP_FRAME
            assert result == lib.ZP_FRAME or reader.fill()
        lib.zp_link(frame, link)
        names = ("ethertype", "vlan", "src_mac", "dst_mac", "captured", "wire", "frame", "direction", "known")
        return {name: int(getattr(link, name)) for name in names} | {"pdu": bytes(ffi.buffer(link.pdu, link.captured))}


MACS = bytes.fromhex("035a4a000001020000000007")


@pytest.mark.parametrize(
    ("tags", "vlan"),
    [
        (b"", -1),
        (b"\x81\x00\x20\x05", 5),
        (b"\x81\x00\xe0\x00", 0),
        (b"\x88\xa8\x00\x64\x81\x00\x00\xc8", 100),
        (b"\x91\x00\x00\x64\x81\x00\x00\xc8", 100),
        (b"\x81\x00\x00\x01" * 5, 1),
    ],
    ids=["none", "802.1Q", "priority", "QinQ", "old QinQ", "many"],
)
def test_tags(tags: bytes, vlan: int, tmp_path: Path) -> None:
    got = link_of(write(tmp_path, pcap([(NS, MACS + tags + b"\x88\xb5payload")])))
    assert (got["ethertype"], got["vlan"], got["pdu"]) == (0x88B5, vlan, b"payload")
    assert (got["dst_mac"], got["src_mac"]) == (0x035A4A000001, 7 | 2 << 40)


@pytest.mark.parametrize("kept", range(23))
def test_frames_cut_anywhere_in_the_link_layer(kept: int, tmp_path: Path) -> None:
    got = link_of(write(tmp_path, pcap([(NS, MACS + b"\x81\x00\x00\x05\x88\xb5rest")], cut=kept)))
    assert got["ethertype"] == (0 if kept < 14 else 0x8100 if kept < 18 else 0x88B5)
    if kept >= 18:
        assert (got["wire"], got["captured"]) == (4, kept - 18)


@pytest.mark.parametrize(
    ("hardware", "protocol", "expected"),
    [(1, 0x88B5, 0x88B5), (772, 0x88B5, 0x88B5), (824, 0x88B5, 0), (778, 0x88B5, 0), (1, 0x0004, 4)],
)
def test_cooked_captures(hardware: int, protocol: int, expected: int, tmp_path: Path) -> None:
    """Case 157: the protocol field of a cooked capture is an EtherType only for some hardware types."""
    address = bytes.fromhex("0200000000070000")
    for kind, direction in ((0, 1), (1, 1), (3, 1), (4, 2), (6, 0)):
        old = struct.pack(">HHH8sH", kind, hardware, 6, address, protocol) + b"pdu"
        new = struct.pack(">HHIHBB8s", protocol, 0, 3, hardware, kind, 6, address) + b"pdu"
        for link, data in ((SLL, old), (SLL2, new)):
            got = link_of(write(tmp_path, pcap([(NS, data)], link=link)))
            assert (got["ethertype"], got["pdu"], got["direction"], got["frame"]) == (expected, b"pdu", direction, 17)
            assert got["src_mac"] == 7 | 2 << 40 and got["dst_mac"] == (1 << 64) - 1


def test_a_tagged_cooked_frame(tmp_path: Path) -> None:
    data = struct.pack(">HHIHBB8s", 0x8100, 0, 3, 1, 0, 6, bytes(8)) + b"\x00\x05\x88\xb5pdu"
    got = link_of(write(tmp_path, pcap([(NS, data)], link=SLL2)))
    assert (got["ethertype"], got["vlan"], got["pdu"]) == (0x88B5, 5, b"pdu")


def test_a_link_type_that_is_not_known(tmp_path: Path) -> None:
    got = link_of(write(tmp_path, pcap([(NS, b"E" * 40)], link=RAW_IP)))
    assert (got["known"], got["ethertype"]) == (0, 0)


@pytest.mark.parametrize("make", [pcap, pcapng])
@pytest.mark.parametrize("order", ["<", ">"])
def test_cut_at_every_byte(make: object, order: str, tmp_path: Path) -> None:
    """Case 153: all whole records are kept, and the rest is told."""
    whole = make(THREE, order)  # type: ignore[operator]
    ends = [len(make(THREE[:k], order)) for k in range(4)]  # type: ignore[operator]
    for size in range(len(whole) + 1):
        path = write(tmp_path, whole[:size])
        found, _, damage = walk(path)
        complete = max((k for k in range(4) if ends[k] <= size), default=0)
        assert damage is None and found == [Frame(t, d, len(d)) for t, d in THREE[:complete]], size
        capture = files.scan(path, station=1)
        assert (capture.frames, capture.end + capture.tail_bytes) == (complete, size)
        # A pcapng file is whole at the end of any block, of which the first two are no frames.
        assert capture.truncated == (capture.tail_bytes > 0)
        if size < 24:
            assert capture.problem == f"{path}: offset 0: " + (
                "the file is empty" if not size else f"cut in the file's header, after {size} bytes"
            )
        else:
            assert capture.problem is None or make is pcapng


def test_what_snaplen_has_cut(tmp_path: Path) -> None:
    found, _, _ = walk(write(tmp_path, pcap(THREE, cut=20, snaplen=20)))
    assert found == [Frame(t, d[:20], len(d)) for t, d in THREE]
    found, _, _ = walk(write(tmp_path, section() + interface() + enhanced(NS, b"x" * 10, wire=1000)))
    assert found == [Frame(NS, b"x" * 10, 1000)]


def _damaged(at: int, value: int, of: bytes) -> bytes:
    return of[:at] + struct.pack("<I", value) + of[at + 4 :]


NG = pcapng(THREE)
EPB1 = len(section() + interface())
EPB2 = len(pcapng(THREE[:1]))
DAMAGES = {
    "zero length": (b"", 0, "the file is empty"),
    "text": (b"Hello, world, how are you", 0, "neither pcap nor pcapng (begins with 48656c6c)"),
    "xz": (b"\xfd7zXZ\0" + bytes(30), 0, "compressed by xz"),
    "bzip2": (b"BZh91AY" + bytes(30), 0, "compressed by bzip2"),
    "zip": (b"PK\x03\x04" + bytes(30), 0, "a zip archive"),
    "snoop": (b"snoop\0\0\0" + bytes(30), 0, "a snoop capture"),
    "Kuznetsov's": (b"\x34\xcd\xb2\xa1" + bytes(30), 0, "Kuznetsov"),
    "netmon": (b"GMBU" + bytes(30), 0, "Network Monitor"),
    "html": (b"<!DOCTYPE html><html>" + bytes(30), 0, "markup"),
    "pcap 1.0": (struct.pack("<IHHiIII", 0xA1B2C3D4, 1, 0, 0, 0, 0, 1), 0, "version 1"),
    "pcap record": (_damaged(24 + 16 + 60 + 8, 0x7FFFFFFF, pcap(THREE)), 100, "a record of 2147483647 bytes"),
    "pcapng version": (section()[:12] + struct.pack("<HH", 2, 0) + section()[16:], 0, "version 2"),
    "byte order": (_damaged(8, 0x11111111, NG), 0, "byte-order magic 11111111"),
    "byte order, and cut": (section()[:8] + b"\x11" * 4 + bytes(4), 0, "byte-order magic 11111111"),
    "section length": (_damaged(4, 12, NG), 0, "a block of 12 bytes"),
    "block length 0": (_damaged(EPB2 + 4, 0, NG), EPB2, "a block of 0 bytes"),
    "block length odd": (_damaged(EPB2 + 4, 93, NG), EPB2, "a block of 93 bytes"),
    "block length huge": (_damaged(EPB2 + 4, 0xFFFFFFFC, NG), EPB2, "a block of 4294967292 bytes"),
    "trailer": (_damaged(EPB2 - 4, 4, NG), EPB1, "another length, 4"),
    "interface": (_damaged(EPB2 + 8, 7, NG), EPB2, "interface 7"),
    "captured": (_damaged(EPB2 + 20, 5000, NG), EPB2, "5000 bytes of a frame in a smaller block"),
    "short block": (NG[:EPB2] + shapes.block("<", 6, b"1234"), EPB2, "a block of 16 bytes"),
    "short interface": (section() + shapes.block("<", 1, b"1234"), len(section()), "a block of 16 bytes"),
    "no interface": (section() + simple(b"x" * 20), len(section()), "interface 0"),
    "zeros behind": (NG + bytes(64), len(NG), "a block of 0 bytes"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_told_with_file_and_offset(name: str, tmp_path: Path, chunk: None) -> None:
    """Case 161, and the bad files of the issue: one line with file and offset; what stands before is kept."""
    data, offset, text = DAMAGES[name]
    path = write(tmp_path, data)
    capture = files.scan(path, station=1)
    assert capture.problem is not None and capture.problem.startswith(f"{path}: offset {offset}: ") and text in capture.problem
    assert "\n" not in capture.problem
    before = NG if offset in (EPB1, EPB2, len(NG)) and name not in ("short interface", "no interface") else b""
    expected = {EPB1: 0, EPB2: 1, len(NG): 3}.get(offset, 0) if before else 1 if name == "pcap record" else 0
    assert capture.frames == expected
    if data:
        with pytest.raises(CaptureError), path.open("rb") as file:
            if name in ("trailer", "captured", "pcap 1.0", "pcapng version", "Kuznetsov's"):
                raise CaptureError("the Python reader does not look at that, or says it otherwise")
            list(CaptureFile(file))


def test_random_bytes_and_random_damage_end(tmp_path: Path) -> None:
    """Never a hang, never an exception of another kind; the whole records before the damage are as they were."""
    random_ = random.Random(1)
    whole = {"pcap": pcap(shapes.frames(6)), "pcapng": NG + section(">") + interface(">") + enhanced(NS, b"y" * 33, ">")}
    for round_ in range(300):
        data = bytearray(random_.choice(list(whole.values())) if round_ % 3 else random_.randbytes(random_.randrange(200)))
        for _ in range(random_.randrange(1, 4)):
            if data:
                data[random_.randrange(len(data))] = random_.randrange(256)
        path = write(tmp_path, bytes(data))
        found, reader, damage = walk(path)
        assert reader.offset + reader.tail_bytes <= len(data) or damage
        assert files.scan(path).frames == len(found)


def test_too_many_interfaces(tmp_path: Path) -> None:
    count = lib.ZP_INTERFACES_MAX
    path = write(tmp_path, section() + interface() * count + enhanced(NS, b"x" * 14, number=count - 1))
    assert walk(path)[0][0].interface == count - 1
    path = write(tmp_path, section() + interface() * (count + 1))
    assert f"more than {count} interfaces" in str(walk(path)[2])


def test_a_long_block_is_passed_over(tmp_path: Path, chunk: None) -> None:
    long = shapes.block("<", 10, b"k" * 300_000)
    found, _, damage = walk(write(tmp_path, section() + long + interface() + long + enhanced(NS, b"x" * 14)))
    assert damage is None and len(found) == 1


# ---- compressed ----


def compressed(path: Path, kind: str) -> Path:
    import pyarrow as pa

    target = path.with_name(path.name + (".gz" if kind == "gzip" else ".zst"))
    if kind == "gzip":
        half = path.read_bytes()
        target.write_bytes(gzip.compress(half[:100]) + gzip.compress(half[100:]))  # two members
    else:
        with pa.CompressedOutputStream(str(target), "zstd") as stream:
            stream.write(path.read_bytes())
    return target


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_compressed(kind: str, tmp_path: Path, chunk: None) -> None:
    path = compressed(write(tmp_path, NG), kind)
    found, _, damage = walk(path)
    assert damage is None and found == [Frame(t, d, len(d)) for t, d in THREE]
    capture = files.scan(path, station=2)
    assert (capture.format, capture.truncated, len(capture.splits)) == (f"pcapng {kind}", False, 1)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_compressed_and_cut(kind: str, tmp_path: Path) -> None:
    plain = write(tmp_path, pcap([(NS + k, random.Random(k).randbytes(1000)) for k in range(1000)]))
    path = compressed(plain, kind)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
    capture = files.scan(path, station=2)
    assert capture.truncated and capture.problem is None
    assert 500 < capture.frames < 760
    assert walk(path)[0] == walk(plain)[0][: capture.frames]


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_compressed_and_damaged(kind: str, tmp_path: Path) -> None:
    path = compressed(write(tmp_path, NG), kind)
    head = path.read_bytes()[:4]
    path.write_bytes(head + bytes(50))
    capture = files.scan(path)
    assert capture.problem is not None and kind in capture.problem and capture.problem.startswith(f"{path}: offset 0: ")


@pytest.mark.parametrize("nibble", [0x50, 0x5F])
def test_zstd_with_a_skippable_frame_first(nibble: int, tmp_path: Path) -> None:
    """As pzstd writes it."""
    path = compressed(write(tmp_path, NG), "zstd")
    path.write_bytes(bytes([nibble]) + b"\x2a\x4d\x18" + struct.pack("<I", 4) + b"size" + path.read_bytes())
    found, _, damage = walk(path)
    assert damage is None and found == [Frame(t, d, len(d)) for t, d in THREE]
    capture = files.scan(path, station=2)
    assert (capture.format, capture.truncated, capture.problem) == ("pcapng zstd", False, None)


@pytest.mark.parametrize(
    ("size", "why"), [(167, "which is no multiple of 4"), (8, "too few for its type"), (1 << 25, "more than any has")]
)
def test_why_a_block_cannot_be_so_long(size: int, why: str, tmp_path: Path) -> None:
    damage = walk(write(tmp_path, section() + struct.pack("<II", 6, size) + bytes(200)))[2]
    assert damage is not None and f"a block of {size} bytes, {why}" in damage


# ---- against others ----


def lab_like(path: Path) -> Path:
    with path.open("wb") as file:
        writer = PcapngWriter(file, "test")
        one, two = writer.interface("eth0", "x"), writer.interface("eth1", "y")
        for k, (time, data) in enumerate(shapes.frames(50)):
            writer.frame(one if k % 3 else two, time, data, len(data) + k % 2, 0b00010 if k % 2 else 0b00101)
        writer.statistics(one, NS, 50, 0)
    return path


def variety(folder: Path) -> list[Path]:
    made = [lab_like(folder / "lab.pcapng")]
    for order in "<>":
        for nano in (True, False):
            made.append(write(folder, pcap(THREE, order, nano), f"{order == '<'}-{nano}.pcap"))
        made.append(write(folder, pcapng(THREE, order), f"{order == '<'}.pcapng"))
    mixed = section() + interface(resolution=6) + enhanced(NS // 1000, THREE[0][1]) + obsolete(NS // 1000, THREE[1][1])
    mixed += section(">") + interface(">", resolution=0x80 | 20, offset=3) + enhanced((NS << 20) // 10**9, THREE[2][1], ">")
    made.append(write(folder, mixed, "mixed.pcapng"))
    made.append(write(folder, pcap(THREE, cut=33), "cut.pcap"))
    return made


def test_as_the_python_reader(tmp_path: Path) -> None:
    for path in variety(tmp_path):
        with path.open("rb") as file:
            theirs = [(r.time_ns, r.data, r.wire_length, r.link_type) for r in CaptureFile(file)]
        assert [(f.time_ns, f.data, f.wire, f.link) for f in walk(path)[0]] == theirs, path.name


def test_as_tshark(tmp_path: Path) -> None:
    for path in variety(tmp_path):
        said = subprocess.run(
            ["tshark", "-r", str(path), "-T", "fields", "-e", "frame.time_epoch", "-e", "frame.cap_len", "-e", "frame.len"],
            capture_output=True,
            text=True,
            check=True,
            timeout=240,
        ).stdout
        theirs = [line.split("\t") for line in said.splitlines()]
        kept = [(f.time_ns, len(f.data), f.wire) for f in walk(path)[0] if f.time_ns]
        ours = [(f"{time // 10**9}.{time % 10**9:09}", str(captured), str(length)) for time, captured, length in kept]
        assert [tuple(row) for row in theirs] == ours, path.name
