"""The wire table: what is generated from it is up to date, its sizes are what the docs say, and two codecs made from it agree."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zenjun.proto import wire
from zenjun.proto.core import DROP_NAMES, Drop, add_checksum, check, crc32c
from zenjun.tools import dissect, frametables

CLUSTER = wire.cluster_id("wire")


# ---- the table itself ----


@pytest.mark.parametrize("layout", wire.LAYOUTS, ids=lambda layout: layout.name)
def test_layouts_are_packed_and_named_once(layout: wire.Layout) -> None:
    names = [field.name for field in layout.fields]
    assert len(set(names)) == len(names)
    at = 0
    for field in layout.fields:
        assert layout.offset(field.name) == at  # neither gap nor overlap
        at += field.width
    assert layout.size == layout.struct.size == at
    with pytest.raises(KeyError):
        layout.offset("no such field")


def test_fields_stand_on_their_own_alignment_in_the_header() -> None:
    """So that a reader may load them at once where the frame itself is aligned."""
    for field in wire.HEADER.fields:
        assert wire.HEADER.offset(field.name) % field.width == 0, field.name


def test_sizes_that_people_and_filters_rely_on() -> None:
    assert [layout.size for layout in wire.LAYOUTS] == [48, 12, 8, 40, 8, 8, 28, 17, 25, 5, 8, 32, 20]
    assert wire.HEADER.offset("cluster") == 0  # the kernel filter looks there
    assert wire.HEADER.offset("check") + 8 == wire.HEADER.size


def test_numbers_are_unique_and_fit_their_fields() -> None:
    assert len({int(kind) for kind in wire.Kind}) == len(wire.Kind)
    assert max(wire.Kind) < 256
    for flags in (wire.Flag, wire.MessageFlag, wire.OpenFlag):
        bits = [int(flag) for flag in flags]
        assert all(bit.bit_count() == 1 and bit < 256 for bit in bits) and len(set(bits)) == len(bits)
    assert wire.SEQUENCED & {wire.Kind.CONFIRM, wire.Kind.NAK, wire.Kind.OPEN} == set()
    assert set(wire.PAYLOAD) == wire.IMPLEMENTED


def test_group_address_is_local_multicast_and_forwarded_by_bridges() -> None:
    """Case 107."""
    mac = bytes.fromhex(wire.GROUP_MAC.replace(":", ""))
    assert mac[0] & 3 == 3
    assert mac[:5] != b"\x01\x80\xc2\x00\x00"


# ---- what fits the smallest MTU ----


def test_what_fits_the_smallest_mtu() -> None:
    """At n = 64 both vectors take 512 bytes: a CONFIRM needs 600, more than 576. The docs' table gives the MTU for every n."""
    assert wire.confirm_bytes(64) == 600
    assert frametables.stations_fitting(wire.confirm_bytes) == 61
    assert frametables.stations_fitting(wire.proposal_bytes) == 56
    assert frametables.stations_fitting(wire.nak_bytes) == 64
    assert frametables.stations_fitting(lambda n: wire.data_bytes(n, fragment=True)) == 63
    assert frametables.stations_fitting(wire.open_bytes) == 20
    assert frametables.stations_fitting(lambda n: wire.open_bytes(n, name_bytes=0)) == 23
    assert wire.mtu_needed(20) == wire.MTU_MIN
    assert wire.mtu_needed(wire.STATIONS_MAX) <= 1500


# ---- two codecs, both ways ----


def python_checksum(pdu: bytes, vectors: int) -> bytes:
    """The same as the core's ``add_checksum`` from the table and an independent CRC."""
    head = wire.HEADER.size + 4 * vectors
    at = wire.HEADER.offset("length")
    pdu = pdu[:at] + struct.pack(">H", len(pdu) - head) + pdu[at + 2 :]
    at = wire.HEADER.offset("check")
    return pdu[:at] + struct.pack(">Q", dissect.pdu_check(pdu[:head], pdu[head:])) + pdu[at + 8 :]


def confirm(stations: int = 3, payload: bytes = bytes(wire.CONFIRM.size), **fields: int) -> bytes:
    """A CONFIRM of station 1, without its checksum."""
    values = {
        "cluster": CLUSTER,
        "version": wire.VERSION,
        "kind": wire.Kind.CONFIRM,
        "flags": wire.Flag.PACK,
        "stations": stations,
        "src": 1,
        "length": len(payload),
        **fields,
    }
    header = wire.HEADER.struct.pack(*(values.get(field.name, 0) for field in wire.HEADER.fields))
    return header + bytes(8 * stations) + payload


def test_crc32c_known_answers() -> None:
    """RFC 3720, appendix B.4."""
    for data, value in (
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
    ):
        assert crc32c(data) == dissect.crc32c(data) == value


@given(st.binary(max_size=300), st.integers(0, 300))
def test_crc32c_in_pieces(data: bytes, cut: int) -> None:
    whole = crc32c(data)
    assert dissect.crc32c(data) == whole
    assert crc32c(data[cut:], crc32c(data[:cut])) == whole
    assert dissect.crc32c(data[cut:], dissect.crc32c(data[:cut])) == whole


@settings(max_examples=200)
@given(st.integers(1, 64), st.data())
def test_sealing_in_c_and_in_python_is_the_same(stations: int, data: st.DataObject) -> None:
    numbers = {
        field.name: data.draw(st.integers(0, 256**field.width - 1), field.name)
        for field in wire.HEADER.fields
        if field.name in ("incarnation", "instance", "seq", "clock", "free_buffers", "frame_max", "reserved", "check", "length")
    }
    pdu = confirm(stations, data.draw(st.binary(min_size=wire.CONFIRM.size, max_size=wire.CONFIRM.size)), **numbers)
    summed = add_checksum(pdu)
    assert summed == python_checksum(pdu, 2 * stations)
    assert check(summed, CLUSTER, stations) == Drop.NONE
    assert check(summed + bytes(30), CLUSTER, stations) == Drop.NONE  # Ethernet padding (case 61)
    fields = dict(zip((f.name for f in wire.HEADER.fields), wire.HEADER.struct.unpack_from(summed), strict=True))
    for name in numbers.keys() - {"check", "length"}:
        assert fields[name] == numbers[name]


@given(st.integers(0, 8 * (48 + 24 + wire.CONFIRM.size) - 1))
def test_every_flipped_bit_is_noticed(bit: int) -> None:
    pdu = bytearray(add_checksum(confirm()))
    pdu[bit // 8] ^= 1 << bit % 8
    assert check(bytes(pdu), CLUSTER, 3) != Drop.NONE


def _ranges(count: int) -> bytes:
    return wire.NAK.struct.pack(1, count % 256, 0, 0) + wire.RANGE.struct.pack(0, 1) * min(count, 64)


@pytest.mark.parametrize(
    ("why", "pdu"),
    [
        ("short", add_checksum(confirm())[:47]),
        ("short", b""),
        ("short", add_checksum(confirm())[:60]),
        ("cluster", add_checksum(confirm(cluster=1))),
        ("version", add_checksum(confirm(version=2))),
        ("kind", add_checksum(confirm(kind=0))),
        ("kind", add_checksum(confirm(kind=wire.Kind.SERVICE))),
        ("payload", add_checksum(confirm(kind=wire.Kind.RST))),
        ("kind", add_checksum(confirm(kind=255))),
        ("stations", add_checksum(confirm(4))),
        ("source", add_checksum(confirm(src=0))),
        ("source", add_checksum(confirm(src=4))),
        ("source", add_checksum(confirm(target=4))),
        ("length", add_checksum(confirm())[:-1]),
        ("check", confirm()),
        ("payload", add_checksum(confirm(payload=bytes(31)))),
        ("payload", add_checksum(confirm(payload=bytes(33)))),
        ("payload", add_checksum(confirm(kind=wire.Kind.NAK, target=1, payload=_ranges(0)))),
        ("payload", add_checksum(confirm(kind=wire.Kind.NAK, target=1, payload=_ranges(2)[:-1]))),
        ("payload", add_checksum(confirm(kind=wire.Kind.NAK, target=1, payload=_ranges(65)))),
        ("payload", add_checksum(confirm(kind=wire.Kind.NAK, target=1, payload=_ranges(255)))),
        ("payload", add_checksum(confirm(kind=wire.Kind.OPEN, payload=bytes(27)))),
        ("payload", add_checksum(confirm(kind=wire.Kind.OPEN, payload=wire.OPEN.struct.pack(1, 1, 0, 0, 0, 255, 0, 0)))),
        ("payload", add_checksum(confirm(kind=wire.Kind.OPEN, payload=wire.OPEN.struct.pack(1, 1, 0, 0, 0, 0, 0, 65535)))),
        ("payload", add_checksum(confirm(kind=wire.Kind.DATA, payload=b"x"))),
        ("payload", add_checksum(confirm(kind=wire.Kind.DATA, payload=wire.MESSAGE.struct.pack(1, 0, 0, 0, 0)))),
        ("payload", add_checksum(confirm(kind=wire.Kind.DATA, payload=wire.MESSAGE.struct.pack(2**32 - 1, 0, 0, 0, 0) + b"x"))),
        ("payload", add_checksum(confirm(kind=wire.Kind.DATA, payload=wire.MESSAGE.struct.pack(0, 0, 0, 3, 0)))),
        ("payload", add_checksum(confirm(kind=wire.Kind.DATA, payload=wire.MESSAGE.struct.pack(1, 0, 0, 0, 2) + b"x"))),
    ],
)
def test_what_is_wrong_is_dropped_by_its_reason(why: str, pdu: bytes) -> None:
    """Cases 61, 133 and 139: counts, lengths and offsets that do not fit, with a right checksum where one can be had."""
    assert DROP_NAMES[check(pdu, CLUSTER, 3)] == why


@pytest.mark.parametrize(
    ("total", "offset", "flags"), [(2**32 - 1, 2**32 - 1, 1), (10, 10, 3), (10, 2**32 - 1, 1), (10, 9, 1), (10, 5, 3)]
)
def test_fragments_that_cannot_be_are_dropped(total: int, offset: int, flags: int) -> None:
    """Case 133: sums that wrap 32 bits; and LAST must tell the truth."""
    payload = wire.MESSAGE.struct.pack(1, 0, 0, 0, flags) + wire.FRAGMENT.struct.pack(total, offset) + b"x"
    assert DROP_NAMES[check(add_checksum(confirm(kind=wire.Kind.DATA, payload=payload)), CLUSTER, 3)] == "payload"
