"""Frames with an envelope in captures: the PDU behind it is read as ever, what is hidden and HELLO are named."""

from __future__ import annotations

import hmac
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from zenjun.daemon.key import hello_key, identity, sending_key
from zenjun.proto import wire
from zenjun.proto.envelope import ECHOES_PER_PART, ENCRYPTED, ENVELOPE, PROBE, TAG_BYTES, Echo, Envelope, Hello, Suite, What
from zenjun.proto.links import Said
from zenjun.proto.wire import Kind
from zenjun.tools.cli.pcap.compare import compare
from zenjun.tools.cli.pcap.show import show
from zenjun.tools.cli.pcap.unseal import unseal
from zenjun.tools.cli.sniff import sniff
from zenjun.tools.pcap.frames.pdu import decode
from zenjun.tools.pcap.frames.problem import Problem
from zenjun.tools.pcap.frames.sealed import pieces, sealed
from zenjun.tools.pcap.frames.unsealing import Unsealing
from zenjun.tools.pcap.native._pcap import ffi, lib

from ..link import gcm
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
    body = Said(2, 2, 0b101, 9, (1, 2, 3), (60, 0, 1500), (4, 0, 7)).packed()
    for suite, tag in ((0, 4), (1, 16), (17, 16)):
        head = Envelope(1, What.LINKS, 3, suite, len(body), bytes(4), 0).packed()
        found = sealed(head + body + bytes(tag))
        assert found is not None and found.pdu is None and found.hello is None
        if suite == 17:
            assert found.links == {} and pieces(found)[-1] == "not readable"
        else:
            assert found.links == {
                "link": 2,
                "hears": [1, 3],
                "sent": 9,
                "frames": [1, 2, 3],
                "largest": [60, 0, 1500],
                "rounds": [4, 0, 7],
            }
            assert pieces(found)[1:] == ["LINKS   ", "link 2", "hears 1, 3", "sent 9"]
        assert sealed((head + body + bytes(tag))[:-1]) is None
    head = Envelope(1, What.PDU, 3, 0, len(body), bytes(4), 0).packed()
    assert sealed(head + body + bytes(16)) is None, "a PDU without a seal has no envelope"


def asides() -> list[bytes]:
    """One of each kind of frame without a PDU that can be read, as clusters with and without a key send them."""
    said = Said(2, 2, 0b101, 9, (1, 2, 3), (60, 0, 1500), (4, 0, 7)).packed()
    bodies = {What.LINKS: said, What.PROBE: PROBE.struct.pack(1, 0, 7, 1400, 0)[: PROBE.size] + bytes(60), What.PIECE: bytes(40)}
    out = [hello(), wrapped(bytes(PDUS["one"]), suite=Suite.AES_256_GCM + ENCRYPTED)]
    for what, body in bodies.items():
        for suite in (Suite.NONE, Suite.AES_256_GCM, Suite.AES_256_GCM + ENCRYPTED):
            piece = 0x0102 if what == What.PIECE else 0
            out.append(Envelope(5, what, 2, suite, len(body), SESSION[:4], 7, piece=piece).packed() + body + b"\xa5" * TAG_BYTES)
    return out


@given(st.sampled_from(asides()), st.integers(0, 23), st.integers(0, 255), st.integers(0, 90))
def test_what_has_no_pdu_is_told_alike_in_c(frame: bytes, at: int, value: int, less: int) -> None:
    changed = bytearray(frame)
    changed[at] = value
    for one in (frame, bytes(changed), frame[: len(frame) - less], bytes(changed)[: len(frame) - less]):
        found = sealed(one)
        assert (native(one)[0] == Problem.ASIDE) == (found is not None and found.pdu is None)


def test_what_has_no_pdu_is_neither_damaged_nor_of_a_kind(tmp_path: Path) -> None:
    """A PROBE has the number of NAK where a PDU has its kind. Clusters without a key send LINKS and PROBE as well."""
    file = tmp_path / "s1.pcap"
    plain = [frame for frame in asides() if frame[ENVELOPE.offset("suite")] == Suite.NONE]
    file.write_bytes(pcap([MAC + frame for frame in [*plain, wrapped(bytes(PDUS["one"]))]]))
    run = CliRunner().invoke
    lines = run(show, [str(file)]).stdout.splitlines()
    assert [next(word for word in ("LINKS", "PROBE", "PIECE", "DATA") if word in line) for line in lines] == [
        "LINKS", "PROBE", "PIECE", "DATA",
    ]  # fmt: skip
    assert "UNKNOWN" not in "".join(lines)
    told = [json.loads(text) for text in run(show, ["--json", str(file)]).stdout.splitlines()]
    assert [row["problem"] for row in told] == [None] * 4 and told[0]["links"]["hears"] == [1, 3] and "kind" not in told[1]
    for kind in Kind:
        assert len(run(show, ["--kind", kind.name.lower(), str(file)]).stdout.splitlines()) == (kind is Kind.DATA), kind
    assert run(show, ["--bad", str(file)]).stdout == ""
    same = json.loads(run(compare, ["--json", str(file), str(file)]).stdout)
    assert same["a"]["damaged"] == 1 and same["both"] == 1, "only the PIECE: what PDU it is of is not known"


NAME, KEY = "mill", bytes(range(32))


def truly(body: bytes, number: int, *, hidden: bool, session: bytes = SESSION) -> bytes:
    """A frame as station 2 of the cluster sends it, by the slow cipher of the tests."""
    suite = Suite.AES_256_GCM + ENCRYPTED * hidden
    head = Envelope(wire.cluster_id(NAME), What.PDU, 2, suite, len(body), session[:4], number).packed()
    key, nonce = sending_key(KEY, NAME, session, suite), bytes(4) + number.to_bytes(8, "big")
    if hidden:
        return head + b"".join(gcm.seal(key, nonce, head, body))
    return head + body + gcm.seal(key, nonce, head + body, b"")[1]


def true_hello(suite: int) -> bytes:
    body = Hello(2, suite, SESSION, 3, 4, 9, 5, 6, 7, 8, 9, (identity(KEY),), (Echo(),) * 3, stations=3).bodies()[0]
    frame = Envelope(wire.cluster_id(NAME), What.HELLO, 2, suite, len(body), SESSION[:4], 0).packed() + body
    return frame + hmac.digest(hello_key(KEY, NAME), frame, "sha256")[:TAG_BYTES]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(KEY.hex() + "\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("hidden", [False, True])
def test_with_the_key_a_frame_is_read_and_its_tag_checked(key_file: Path, hidden: bool) -> None:
    unsealing = Unsealing(key_file, NAME)
    body = bytes(PDUS["one"])
    frame = truly(body, 7, hidden=hidden)
    assert unsealing.open(frame) is None and unsealing.unknown == 1, "no HELLO yet"
    hello_frame = true_hello(frame[7])
    assert not unsealing.see(hello_frame[:-1] + b"x") and unsealing.see(hello_frame)
    opened = unsealing.open(frame + bytes(20))
    found = sealed(opened or b"")
    assert found is not None and found.pdu is not None and found.pdu[: len(body)] == body
    for at in (24, len(frame) - 1, 16):
        changed = bytearray(frame)
        changed[at] ^= 1
        assert unsealing.open(bytes(changed)) is None
    assert unsealing.wrong == 3
    other = Unsealing(key_file, "another")
    assert not other.see(hello_frame), "the cluster's name is part of the keys"


def test_sniff_and_unseal_with_the_key(tmp_path: Path, key_file: Path) -> None:
    """sniff reads on from the HELLO; unseal finds it wherever it is, and what it writes needs no key."""
    body = wire.cluster_id(NAME).to_bytes(4, "big") + bytes(PDUS["one"])[4:]
    early, late = truly(body, 1, hidden=True), truly(body, 2, hidden=True)
    file, plain = tmp_path / "sealed.pcap", tmp_path / "plain.pcap"
    file.write_bytes(pcap([MAC + frame for frame in (early, true_hello(early[7]), late)]))
    with_key = ["--key-file", str(key_file), "--cluster", NAME]
    shown = CliRunner().invoke(sniff, [*with_key, str(file)])
    assert ["ENCRYPTED" in text for text in shown.stdout.splitlines()] == [True, False, False], shown.output
    assert "1 frame before a HELLO of the session" in shown.stderr
    done = CliRunner().invoke(unseal, [*with_key, str(file), str(plain)])
    assert "3 frames; 0 without a HELLO" in done.output, done.output
    assert plain.stat().st_mode & 0o777 == 0o600
    lines = CliRunner().invoke(sniff, [str(plain)]).stdout.splitlines()
    assert ["DATA" in line for line in lines] == [True, False, True]
    assert CliRunner().invoke(sniff, ["--key-file", str(key_file), str(file)]).exit_code == 2
