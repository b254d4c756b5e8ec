"""Frames with an envelope in captures: the PDU behind it is read as ever, what is hidden and HELLO are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from zenjun.proto.envelope import ECHOES_PER_PART, ENCRYPTED, TAG_BYTES, Echo, Envelope, Hello, Suite, What
from zenjun.proto.links import Said
from zenjun.tools.cli.sniff import sniff
from zenjun.tools.pcap.frames.pdu import decode
from zenjun.tools.pcap.frames.sealed import pieces, sealed
from zenjun.tools.pcap.native._pcap import ffi, lib

from ..tools.test_sniff import MACS, pcap
from .built import PDUS

SESSION = bytes(range(1, 33))
MAC = bytes.fromhex("035a4a000001" + MACS["src"].replace(":", "") + "88b5")


def wrapped(body: bytes, *, what: int = What.PDU, suite: int = Suite.AES_256_GCM, tx: int = 2, number: int = 7) -> bytes:
    return Envelope(5, what, tx, suite, len(body), SESSION[:4], number).packed() + body + b"\xa5" * TAG_BYTES


def hello(stations: int = 3) -> bytes:
    bodies = Hello(
        tx=2, suite=1, session=SESSION, challenge=3, clock=4, next=9, boot=5, incarnation=6, instance=7, fingerprint=8, age_ms=9,
        keys=(0x1A2B3C4D,), echoes=tuple(Echo(0xAABBCCDD * (i == 2)) for i in range(stations)), stations=stations,
    ).bodies()  # fmt: skip
    return wrapped(bodies[0], what=What.HELLO, number=0)


def native(frame: bytes) -> tuple[int, int]:
    """(problem, kind) by the C decoder."""
    pdu = ffi.new("struct zp_pdu *")
    problem = lib.zp_pdu(frame, len(frame), len(frame), pdu)
    return problem, pdu.kind


@pytest.mark.parametrize("name", PDUS)
def test_behind_an_envelope_every_kind_is_what_it_was(name: str) -> None:
    body = bytes(PDUS[name])
    found = sealed(wrapped(body))
    assert found is not None and found.pdu is not None
    assert decode(found.pdu) == decode(body + bytes(TAG_BYTES))
    assert native(wrapped(body)) == native(body)
    assert (found.envelope["tx"], found.envelope["session"], found.envelope["number"]) == (2, "01020304", 7)


def test_what_is_cut_changed_or_hidden_has_no_pdu() -> None:
    body = bytes(PDUS["one"])
    frame = wrapped(body)
    for size in range(len(frame)):
        assert sealed(frame[:size]) is None
        assert native(frame[:size])[0] != 0
    for at, value in ((4, 1), (5, 9), (6, 0), (6, 65), (7, 0), (7, 2), (10, 1)):
        changed = bytearray(frame)
        changed[at] = value
        assert sealed(bytes(changed)) is None
    found = sealed(wrapped(body, suite=Suite.AES_256_GCM + ENCRYPTED))
    assert found is not None and found.pdu is None and found.hello is None


def test_sniff_says_what_each_frame_is(tmp_path: Path) -> None:
    body = bytes(PDUS["one"])
    frames = [wrapped(body), wrapped(body, suite=Suite.AES_256_GCM + ENCRYPTED), hello(), hello()[:90]]
    file = tmp_path / "sealed.pcap"
    file.write_bytes(pcap([MAC + frame for frame in frames]))
    shown = CliRunner().invoke(sniff, [str(file)])
    lines = shown.stdout.splitlines()
    assert "DATA" in lines[0]
    assert f"station 2  ENCRYPTED  session 01020304  number 7  {len(body)} B" in lines[1]
    assert "station 2  HELLO     session 01020304  next 9  instance 7  key 1a2b3c4d  reads station 3: aabbccdd" in lines[2]
    told = [json.loads(text) for text in CliRunner().invoke(sniff, ["--json", str(file)]).stdout.splitlines()]
    assert told[0]["envelope"]["suite"] == "authenticated" and told[0]["kind"] == "DATA"
    assert told[1]["envelope"]["suite"] == "encrypted"
    assert told[2]["hello"]["proven"] == {"3": "aabbccdd"}
    assert SESSION.hex() not in shown.stdout + str(told)


def test_a_hello_of_many_stations_says_whom_each_part_is_about() -> None:
    found = sealed(hello(stations=40))
    assert found is not None and found.hello is not None
    assert found.hello["complete"] and found.hello["part"] == 0 and ECHOES_PER_PART == 16
    broken = sealed(wrapped(b"x" * 20, what=What.HELLO))
    assert broken is not None and broken.hello == {"complete": False}


def test_links_is_read_unless_it_is_hidden_or_malformed() -> None:
    body = Said(2, 2, 0b101, 9, (1, 2, 3), (60, 0, 1500)).packed()
    for suite, tag in ((0, 4), (1, 16), (17, 16)):
        head = Envelope(1, What.LINKS, 3, suite, len(body), bytes(4), 0).packed()
        found = sealed(head + body + bytes(tag))
        assert found is not None and found.pdu is None and found.hello is None
        if suite == 17:
            assert found.links == {} and pieces(found)[-1] == "not readable"
        else:
            assert found.links == {"link": 2, "hears": [1, 3], "sent": 9, "frames": [1, 2, 3], "largest": [60, 0, 1500]}
            assert pieces(found)[1:] == ["LINKS   ", "link 2", "hears 1, 3", "sent 9"]
        assert sealed((head + body + bytes(tag))[:-1]) is None
    head = Envelope(1, What.PDU, 3, 0, len(body), bytes(4), 0).packed()
    assert sealed(head + body + bytes(16)) is None, "a PDU without a seal has no envelope"
