"""The scapy layers: every kind there and back, padding apart, cut frames, the same judgement as the C codec."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.l2 import CookedLinux
from scapy.packet import Packet
from zenjun.proto import wire
from zenjun.proto.core import Core, Drop, check
from zenjun.tools import dissect
from zenjun.tools.dissect import (
    Dot1Q,
    Ether,
    Padding,
    Raw,
    Zenjun,
    ZenjunChange,
    ZenjunConfiguration,
    ZenjunConfirm,
    ZenjunData,
    ZenjunMember,
    ZenjunMessage,
    ZenjunNak,
    ZenjunOpen,
    ZenjunRange,
    ZenjunReset,
    ZenjunVote,
    as_dict,
    complete,
    find,
)

CLUSTER = wire.cluster_id("dissect")
MACS: dict[str, Any] = {"src": "02:00:00:00:00:01", "dst": wire.GROUP_MAC}
HEADER: dict[str, Any] = {
    "cluster": CLUSTER,
    "src": 2,
    "incarnation": 7,
    "instance": 3,
    "seq": 0xFFFFFFFF,
    "clock": (3 << 32) + 5,
}
VECTORS: dict[str, Any] = {"ack": [1, 0xFFFFFFFF, 3], "pack": [1, 2, 2], "flags": "PACK"}


def message(data: bytes, **fields: Any) -> ZenjunMessage:
    return ZenjunMessage(data=data, group=wire.group_id("g"), client=5, **fields)


PDUS: dict[str, Packet] = {
    "empty": Zenjun(**HEADER, **VECTORS),
    "one": Zenjun(**HEADER, ack=[1, 2, 3]) / ZenjunData(messages=[message(b"hello")]),
    "empty message": Zenjun(**HEADER, ack=[1, 2, 3]) / ZenjunData(messages=[message(b"")]),
    "packed": Zenjun(**HEADER, **VECTORS) / ZenjunData(messages=[message(bytes([k]) * k, type="GROUP") for k in range(40)]),
    "very many": Zenjun(**HEADER, **VECTORS) / ZenjunData(messages=[message(b"") for _ in range(600)]),
    "fragment": Zenjun(**HEADER, ack=[1, 2, 3])
    / ZenjunData(messages=[message(b"a"), message(b"bcd", mflags="FRAGMENT", total=10, offset=4), message(b"e")]),
    "last fragment": Zenjun(**HEADER, ack=[1, 2, 3])
    / ZenjunData(messages=[message(b"bcd", mflags="FRAGMENT+LAST", total=10, offset=7)]),
    "confirm": Zenjun(**{**HEADER, "flags": "PACK+POLL"}, ack=[1, 2, 3], pack=[1, 2, 2])
    / ZenjunConfirm(position=2**63, digest=0xFEDCBA9876543210),
    "nak": Zenjun(**HEADER, **VECTORS, target=1)
    / ZenjunNak(stream=1, stream_incarnation=4, ranges=[ZenjunRange(first=5), ZenjunRange(first=0xFFFFFFFE, span=4)]),
    "open": Zenjun(**HEADER, ack=[0, 0, 0])
    / ZenjunOpen(
        proposal=4,
        highest=4,
        boot=2**64 - 1,
        oflags="STARTED",
        proposed=[ZenjunMember(station=k, member_incarnation=k * 11, past=2, reached=2**40) for k in (1, 2, 3)],
        host="büro",
    ),
    "open, another configuration": Zenjun(**HEADER, ack=[0, 0, 0])
    / ZenjunOpen(
        oflags="CONFIGURED",
        host="alpha",
        configuration=[ZenjunConfiguration(number=2, ballot=2**40, options=b'{"stations": 3}', proposed_options=b"{}")],
    ),
    "open, nothing proposed": Zenjun(**HEADER, ack=[0, 0, 0]) / ZenjunOpen(),
}


@pytest.fixture(params=PDUS, ids=list(PDUS))
def pdu(request: pytest.FixtureRequest) -> Zenjun:
    built = PDUS[request.param]
    assert isinstance(built, Zenjun)
    return built


@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("trailer", [b"", b"\0" * 50, b"\xaa" * 4])
def test_build_dissect_build(pdu: Zenjun, tagged: bool, trailer: bytes) -> None:
    """Case 163: padded, packed and fragmented frames come back as the identical bytes, from the fields. Case 61: trailers."""
    lower = Ether(**MACS) / Dot1Q(vlan=9) if tagged else Ether(**MACS)
    frame = bytes(lower / pdu) + trailer
    dissected = Ether(frame)
    dissected.clear_cache()  # else scapy would give back what it read
    assert bytes(dissected) == frame
    found = find(dissected)
    assert found is not None and found.check_ok and complete(found)
    assert (bytes(dissected[Padding].load) if trailer else b"") == trailer
    assert Raw not in dissected


def test_the_core_passes_what_scapy_builds(pdu: Zenjun) -> None:
    assert check(bytes(pdu), CLUSTER, 3) == Drop.NONE


def test_scapy_reads_what_the_core_sends() -> None:
    """The other way: DATA packed and fragmented, CONFIRM, NAK of a real core."""
    options: dict[str, Any] = {
        "stations": 2,
        "cluster": CLUSTER,
        "window": 8,
        "slots": 16,
        "frame_max": 600,
        "message_max": 4096,
        "confirm_delay_ns": 200_000,
        "nak_delay_ns": 100_000,
        "nak_retry_ns": 500_000,
        "nak_retry_max_ns": 8_000_000,
        "poll_delay_ns": 2_000_000,
        "poll_delay_max_ns": 64_000_000,
        "retransmit_gap_ns": 300_000,
    }
    one, two = Core(self_index=0, **options), Core(self_index=1, **options)
    for core in (one, two):
        core.open(1, 3, wire.view_hash(3, (7, 8)), (7, 8), 600)
    assert one.offer(b"small", group=1, client=2, need_ack=True)
    assert one.offer(b"smaller", group=1, client=2)
    assert one.offer(bytes(range(256)) * 6, group=2, client=3)
    one.step(2, True)
    data = one.tx(2)
    for frame in data[:1] + data[2:]:  # the second is lost
        assert two.rx(3, frame, b"\2\0\0\0\0\1") == Drop.NONE
    two.step(3, True)
    two.nak(10_000_000)
    two.step(10_000_000, True)
    answers = [Zenjun(frame) for frame in two.tx(10_000_000)]
    seen = [Zenjun(frame) for frame in data] + answers
    for layer in seen:
        assert layer.check_ok and complete(layer), layer.summary()
        again = bytes(layer)
        layer.clear_cache()
        assert bytes(layer) == again
    messages = [m for layer in seen if ZenjunData in layer for m in layer.payload.messages]
    assert [m.data for m in messages[:2]] == [b"small", b"smaller"]
    assert b"".join(m.data for m in messages[2:]) == bytes(range(256)) * 6
    assert messages[2].offset == 0 and str(messages[-1].mflags) == "FRAGMENT+LAST"
    naks = [layer for layer in answers if ZenjunNak in layer]
    assert [(r.first, r.span) for r in naks[0].payload.ranges] == [(1, 1)]
    assert any(ZenjunConfirm in layer for layer in answers)


def test_cut_anywhere_never_raises(pdu: Zenjun) -> None:
    """Cases 59 and 153: a frame cut at any byte is read as far as it goes, the rest is Raw, and it is told from a whole one."""
    frame = bytes(Ether(**MACS) / pdu)
    for size in range(14, len(frame), 1 if len(frame) < 3000 else 499):
        dissected = Ether(frame[:size])
        assert bytes(dissected) == frame[:size]
        dissected.clear_cache()
        assert bytes(dissected) == frame[:size]
        layer = find(dissected)
        if size < 14 + wire.HEADER.size:
            assert layer is None
        else:
            assert layer is not None and layer.cut and layer.check_ok is None and not complete(layer)
            json.dumps(as_dict(layer))


def test_a_wrong_checksum_is_seen() -> None:
    frame = bytearray(bytes(PDUS["packed"]))
    assert Zenjun(bytes(frame)).check_ok is True
    for at in (0, 39, 40, 44, 50, len(frame) - 1):
        damaged = bytes(frame[:at]) + bytes([frame[at] ^ 1]) + bytes(frame[at + 1 :])
        assert Zenjun(damaged).check_ok is False, at
    assert Zenjun(bytes(frame) + b"\xff").check_ok is True  # padding is not covered


def test_a_changed_field_needs_a_new_checksum() -> None:
    layer = Zenjun(bytes(PDUS["one"]))
    layer.seq = 9
    assert layer.check_ok is False
    del layer.check
    assert layer.check_ok is True


def test_lengths_and_counts_can_be_forged() -> None:
    """For tests of the receiver: what is given stands."""
    forged = Zenjun(**HEADER, ack=[1, 2, 3], target=1) / ZenjunNak(count=200, ranges=[ZenjunRange()])
    assert check(bytes(forged), CLUSTER, 3) == Drop.PAYLOAD
    assert not complete(Zenjun(bytes(forged)))
    long = Zenjun(**HEADER, ack=[1, 2, 3], length=500) / ZenjunData(messages=[message(b"x")])
    assert check(bytes(long), CLUSTER, 3) == Drop.LENGTH


def test_layers_have_the_fields_of_the_table_and_their_widths() -> None:
    layers = {
        "header": Zenjun,
        "message": ZenjunMessage,
        "confirm": ZenjunConfirm,
        "nak": ZenjunNak,
        "range": ZenjunRange,
        "open": ZenjunOpen,
        "member": ZenjunMember,
        "proposal": ZenjunVote,
        "change": ZenjunChange,
        "reset": ZenjunReset,
        "configuration": ZenjunConfiguration,
    }
    for layout in wire.LAYOUTS:
        if layout in (wire.FRAGMENT, wire.VIEW):  # part of a message, and never on the wire
            continue
        fields = layers[layout.name].fields_desc[: len(layout.fields)]
        assert [(f.name, int(f.i2len(Zenjun(), 0) if f.sz < 1 else f.sz)) for f in fields] == [
            (f.name, f.width) for f in layout.fields
        ]


def test_reserved_and_unknown_kinds_are_raw() -> None:
    for kind in (0, 9, 99):
        layer = Zenjun(bytes(Zenjun(**HEADER, kind=kind, ack=[1, 2, 3]) / Raw(b"abc")))
        assert bytes(layer.payload) == b"abc" and isinstance(layer.payload, Raw)
        assert layer.check_ok and not complete(layer)


def test_another_ethertype_and_cooked_captures() -> None:
    """Case 157: in cooked captures the protocol field takes the EtherType's place."""
    dissect.bind(0x9999)
    pdu_bytes = bytes(PDUS["one"])
    assert find(Ether(bytes(12) + b"\x99\x99" + pdu_bytes)) is not None
    assert find(Ether(bytes(12) + b"\x88\xb5" + pdu_bytes)) is not None
    assert find(Ether(bytes(12) + b"\x12\x34" + pdu_bytes)) is None
    assert find(CookedLinux(bytes(14) + b"\x88\xb5" + pdu_bytes)) is not None
    for wrong in (0, 1500, 0x10000):
        with pytest.raises(ValueError, match="0x0600"):
            dissect.bind(wrong)
    dissect.bind()


def test_a_new_frame_goes_to_the_group() -> None:
    frame = Ether(src=MACS["src"]) / PDUS["one"]
    assert frame.dst == wire.GROUP_MAC and frame.type == wire.ETHERTYPE


def test_as_dict_holds_every_field_and_is_json() -> None:
    plain = json.loads(json.dumps(as_dict(Zenjun(bytes(PDUS["open"])))))
    assert plain["kind"] == "OPEN" and plain["host"] == "büro" and plain["boot"] == "ffffffffffffffff"
    assert plain["oflags"] == ["STARTED"] and plain["proposed"][2] == {
        "station": 3,
        "member_incarnation": 33,
        "past": 2,
        "reached": 2**40,
    }
    assert {f.name for layout in (wire.HEADER, wire.OPEN) for f in layout.fields} <= plain.keys()
    plain = as_dict(Zenjun(bytes(PDUS["fragment"])))
    assert [m.get("offset") for m in plain["messages"]] == [None, 4, None]
    assert "pack" not in plain


def test_without_scapy_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "scapy").mkdir()
    (tmp_path / "scapy" / "__init__.py").write_text("raise ImportError('no scapy here')")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "try:\n    import zenjun.tools.dissect\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.strip() == "the dissector needs scapy: pip install 'scapy>=2.5,<3' (no scapy here)"
