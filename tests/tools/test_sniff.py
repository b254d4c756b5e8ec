"""``zenjun sniff`` and the reader of capture files under it (cases 55, 83, 85, 151, 153, 155, 157 and 161)."""

from __future__ import annotations

import gzip
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from zenjun.proto import wire
from zenjun.tools.cli.sniff import sniff
from zenjun.tools.dissect import (
    Ether,
    Zenjun,
    ZenjunConfirm,
    ZenjunData,
    ZenjunMember,
    ZenjunMessage,
    ZenjunNak,
    ZenjunOpen,
    ZenjunRange,
)
from zenjun.tools.pcap.frames.pdu import LINK_ETHERNET, Record
from zenjun.tools.pcap.frames.pdu import LINK_SLL as LINK_LINUX_SLL
from zenjun.tools.pcap.frames.records import Records
from zenjun.tools.pcap.native import CaptureDamage

HEADER: dict[str, Any] = {"cluster": wire.cluster_id("demo"), "incarnation": 2, "instance": 3, "clock": 3 << 32, "ack": [1, 0, 0]}
MACS: dict[str, Any] = {"src": "02:00:00:00:00:01", "dst": wire.GROUP_MAC}
SNIFF = [sys.executable, "-c", "from zenjun.tools.cli.sniff import sniff; sniff()"]


def frames() -> list[bytes]:
    piece = ZenjunMessage(data=b"x" * 10, mflags="FRAGMENT+LAST", total=100, offset=90)
    pdus = [
        Zenjun(src=1, seq=7, **HEADER, flags="PACK+NEED_ACK", pack=[1, 0, 0])
        / ZenjunData(messages=[ZenjunMessage(data=b"hi"), piece]),
        Zenjun(src=2, **HEADER, flags="PACK+POLL", pack=[1, 0, 0]) / ZenjunConfirm(position=7, digest=0xABC),
        Zenjun(src=3, target=1, **HEADER) / ZenjunNak(stream=1, ranges=[ZenjunRange(first=1, span=4), ZenjunRange(first=9)]),
        Zenjun(src=3, **HEADER)
        / ZenjunOpen(proposal=4, proposed=[ZenjunMember(station=k, member_incarnation=k) for k in (1, 2, 3)], host="alpha"),
    ]
    return [bytes(Ether(**MACS) / pdu).ljust(60, b"\0") for pdu in pdus]


def pcap(
    records: list[bytes], order: str = "<", nanoseconds: bool = False, link_type: int = LINK_ETHERNET, snap: int = 65535
) -> bytes:
    """Frame k at k seconds and 123456789 ns (cut to microseconds where the format does)."""
    out = struct.pack(order + "IHHiIII", 0xA1B23C4D if nanoseconds else 0xA1B2C3D4, 2, 4, 0, 0, snap, link_type)
    fraction = 123456789 if nanoseconds else 123456
    for k, data in enumerate(records):
        out += struct.pack(order + "IIII", k, fraction, len(data), len(data)) + data
    return out


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + size + body + size


def option(order: str, code: int, value: bytes) -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def section(order: str) -> bytes:
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))


def interface(order: str, link_type: int = LINK_ETHERNET, resolution: int = 6, name: bytes = b"eth0") -> bytes:
    options = option(order, 2, name) + option(order, 9, bytes([resolution])) + option(order, 0, b"")
    return block(order, 1, struct.pack(order + "HHI", link_type, 0, 0) + options)


def packet(order: str, data: bytes, ticks: int, number: int = 0) -> bytes:
    head = struct.pack(order + "IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data))
    return block(order, 6, head + data)


def read(data: bytes) -> tuple[list[Record], bool]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        capture = Records(file.name)
        return list(capture), bool(capture.cut)


def run(*arguments: str, data: bytes | None = None) -> Result:
    return CliRunner().invoke(sniff, list(arguments), input=data)


@pytest.fixture
def capture(tmp_path: Path) -> str:
    path = tmp_path / "all.pcap"
    path.write_bytes(pcap(frames()))
    return str(path)


# ---- the reader ----


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("nanoseconds", [False, True])
@pytest.mark.parametrize("next_generation", [False, True])
def test_the_same_frames_in_every_format(order: str, nanoseconds: bool, next_generation: bool) -> None:
    """Case 151."""
    if next_generation:
        unit = 1 if nanoseconds else 1000
        data = section(order) + interface(order, resolution=9 if nanoseconds else 6)
        data += b"".join(packet(order, frame, (k * 10**9 + 123456789) // unit) for k, frame in enumerate(frames()))
    else:
        data = pcap(frames(), order, nanoseconds)
    records, truncated = read(data)
    assert [record.data for record in records] == frames() and not truncated
    fraction = 123456789 if nanoseconds else 123456000
    assert [record.time_ns for record in records] == [k * 10**9 + fraction for k in range(4)]


@pytest.mark.parametrize("next_generation", [False, True])
def test_a_file_cut_at_every_byte(next_generation: bool) -> None:
    """Case 153: all whole records, and that something is missing."""
    few = [frame[:60] for frame in frames()[:3]]
    if next_generation:
        parts = [section("<") + interface("<"), *(packet("<", frame, 0) for frame in few)]
    else:
        parts = [pcap([]), *(struct.pack("<IIII", 0, 0, 60, 60) + frame for frame in few)]
    data = b"".join(parts)
    ends = [sum(map(len, parts[: k + 1])) for k in range(4)]
    borders = {*ends, len(section("<"))} if next_generation else set(ends)
    for size in range(4, len(data) + 1):
        if not next_generation and size < 24:  # not even the file's header is there: nothing says what the file is
            with pytest.raises(CaptureDamage, match="too short for a capture"):
                read(data[:size])
            continue
        records, truncated = read(data[:size])
        assert len(records) == max(0, sum(end <= size for end in ends) - 1)
        assert truncated == (size not in borders), size


def test_interfaces_of_a_pcapng_keep_their_own_types() -> None:
    """Case 155: link type, resolution and name by interface; a second section starts its own list, in its own byte order."""
    data = section("<") + interface("<", LINK_ETHERNET, 6, b"eth0") + interface("<", LINK_LINUX_SLL, 9, b"any")
    data += packet("<", b"a", 5, 0) + packet("<", b"b", 5, 1) + block("<", 77, b"unknown")
    data += section(">") + interface(">", LINK_LINUX_SLL, 0x80 | 10, b"two") + packet(">", b"c", 512, 0)
    records, truncated = read(data)
    assert [(r.data, r.link_type, r.time_ns, r.interface) for r in records] == [
        (b"a", LINK_ETHERNET, 5000, "eth0"),
        (b"b", LINK_LINUX_SLL, 5, "any"),
        (b"c", LINK_LINUX_SLL, 500_000_000, "two"),
    ]
    assert not truncated


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"\x1f\x8b\x08\0", "the gzip stream ends too early"),
        (b"XCP\0....", "a NetXRay capture"),
        (b"hello", "neither pcap nor pcapng"),
        (pcap([])[:24] + struct.pack("<IIII", 0, 0, 2**31, 0), "damaged"),
        (section("<") + packet("<", b"x", 0), "interface 0, which is not described"),
        (section("<") + struct.pack("<II", 6, 4), "damaged"),
        (section("<") + interface("<") + block("<", 6, struct.pack("<IIIII", 0, 0, 0, 999, 999)), "damaged"),
        (b"\x0a\x0d\x0d\x0a" + bytes(24), "byte-order"),
    ],
)
def test_what_is_no_capture_says_so(data: bytes, says: str) -> None:
    """Case 161."""
    with pytest.raises(CaptureDamage, match=says):
        read(data)


# ---- the command on files ----


def test_one_line_per_pdu(capture: str) -> None:
    result = run(capture)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[1:4] for line in lines] == [
        ["station", "1.2", "DATA"],
        ["station", "2.2", "CONFIRM"],
        ["station", "3.2", "NAK"],
        ["station", "3.2", "OPEN"],
    ]
    assert "seq 7" in lines[0] and "NEED_ACK" in lines[0] and "2 messages 12 B" in lines[0] and "90+10/100" in lines[0]
    assert "ack 1,0,0  pack 1,0,0" in lines[1] and "POLL" in lines[1] and "position 7" in lines[1]
    assert "asks station 1 for stream 1: 1..4 9" in lines[2]
    assert "instance 4 of 1,2,3  host 'alpha'" in lines[3]
    assert not any(word in result.stdout for word in ("BAD", "CUT", "MALFORMED"))


def test_json_lines_have_every_field(capture: str) -> None:
    result = run(capture, "--json")
    objects = [json.loads(line) for line in result.stdout.splitlines()]
    assert [o["kind"] for o in objects] == ["DATA", "CONFIRM", "NAK", "OPEN"]
    for o in objects:
        assert {f.name for f in wire.HEADER.fields} <= o.keys()
        assert o["check_ok"] is True and o["complete"] is True
    assert objects[0]["messages"][1] == {
        "size": 10, "group": "00000000", "client": 0, "type": "USER", "mflags": ["FRAGMENT", "LAST"],
        "total": 100, "offset": 90, "data": "78" * 10,
    }  # fmt: skip
    assert objects[2]["ranges"] == [{"first": 1, "span": 4}, {"first": 9, "span": 1}]


def test_verbose_shows_every_field(capture: str) -> None:
    result = run(capture, "-v", "--kind", "open")
    for field in (*wire.HEADER.fields, *wire.OPEN.fields):
        assert f"\n    {field.name} " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "kinds"),
    [
        (["--kind", "NAK"], ["NAK"]),
        (["--kind", "nak", "--kind", "data"], ["DATA", "NAK"]),
        (["--station", "3"], ["NAK", "OPEN"]),
        (["--cluster", "demo"], ["DATA", "CONFIRM", "NAK", "OPEN"]),
        (["--cluster", "other"], []),
        (["--count", "2"], ["DATA", "CONFIRM"]),
        (["--ethertype", "0x88b6"], ["DATA", "CONFIRM", "NAK", "OPEN"]),
    ],
)
def test_filters(capture: str, arguments: list[str], kinds: list[str]) -> None:
    result = run(capture, "--json", *arguments)
    assert result.exit_code == 0
    assert [json.loads(line)["kind"] for line in result.stdout.splitlines()] == kinds


def test_several_files_and_standard_input(capture: str) -> None:
    assert len(run(capture, capture).stdout.splitlines()) == 8
    piped = subprocess.run([*SNIFF, "-"], input=pcap(frames()), capture_output=True, timeout=240)
    assert len(piped.stdout.splitlines()) == 4 and not piped.stderr


def test_damage_is_shown_not_hidden(tmp_path: Path) -> None:
    """Wrong checksum, cut by the snap length, too short for a header, another protocol, another link type: told apart."""
    good = frames()[1]
    bad = bytes(byte ^ (at == 50) for at, byte in enumerate(good))
    path = tmp_path / "bad.pcap"
    path.write_bytes(pcap([bad, good[:100], good[:40], bytes(60)]))
    result = run(str(path))
    lines = result.stdout.splitlines()
    assert len(lines) == 2 and "BAD CHECKSUM" in lines[0] and "CUT" in lines[1]
    assert "1 frame of this EtherType was too short" in result.stderr
    assert [json.loads(line)["check_ok"] for line in run(str(path), "--json").stdout.splitlines()] == [False, None]
    path.write_bytes(pcap([good], link_type=105))
    skipped = run(str(path))
    assert "1 frame of link type 105 was skipped" in skipped.stderr and skipped.exit_code == 1


def test_whatever_the_analysis_reads(tmp_path: Path) -> None:
    """One reader: link types with a frame check sequence, packed files, folders, formats by name, and what is no PDU of ours."""
    checked = pcap(frames(), link_type=0x24000001)  # four bytes of FCS
    (tmp_path / "a.pcap").write_bytes(checked)
    (tmp_path / "b.pcap.gz").write_bytes(gzip.compress(checked))
    assert [len(run(str(tmp_path / name)).stdout.splitlines()) for name in ("a.pcap", "b.pcap.gz", ".")] == [4, 4, 8]
    (tmp_path / "none").mkdir()
    result = run(str(tmp_path / "none"))
    assert "no capture in this folder" in str(result.exception) + result.output and result.exit_code == 1
    path = tmp_path / "x"
    path.write_bytes(b"snoop\0\0\0" + bytes(20))
    assert "a snoop capture" in run(str(path)).stderr
    path.write_bytes(pcap(frames())[:4] + b"\7" + pcap(frames())[5:])
    result = run(str(path))
    assert result.exit_code == 1 and "version 7" in result.stderr
    path.write_bytes(pcap([bytes(60)] * 12))
    result = run(str(path))
    assert result.exit_code == 0 and f"{path}: 0 PDUs of EtherType 0x88b5 in 12 frames" in result.stderr
    assert "0 PDUs" not in run(str(tmp_path / "a.pcap"), "--kind", "rst").stderr  # it has some, of other kinds


def test_a_cut_file_gives_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(pcap(frames())[:-3])
    result = run(str(path))
    assert result.exit_code == 0 and len(result.stdout.splitlines()) == 3
    assert "the last record is cut" in result.stderr


def test_exit_codes(capture: str, tmp_path: Path) -> None:
    assert run(capture, "--count", "5").exit_code == 4
    assert run(str(tmp_path / "none")).exit_code == 1
    assert "No such file" in run(str(tmp_path / "none")).stderr
    (tmp_path / "text").write_text("hello, world")
    assert run(str(tmp_path / "text")).exit_code == 1
    for wrong in (
        [],
        [capture, "-i", "lo"],
        [capture, "--timeout", "1"],
        ["-i", "lo", "--ethertype", "0x100"],
        ["-i", "lo", "--ethertype", "x"],
    ):
        result = run(*wrong)
        assert result.exit_code == 2, wrong
    result = run("-i", "no-such-if0")
    assert result.exit_code == 1 and "no-such-if0" in result.stderr
    assert "Exit status" in run("--help").output and "Examples" in run("--help").output


def test_a_closed_pipe_is_a_quiet_end(tmp_path: Path) -> None:
    path = tmp_path / "long.pcap"
    path.write_bytes(pcap(frames() * 500))
    command = [sys.executable, "-c", "from zenjun.tools.cli import main; main()", "sniff", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == b""


# ---- live, in a network namespace of the test ----

LIVE = """
import json, signal, socket, subprocess, sys, time
sniff, frames, action = sys.argv[1:4], [bytes.fromhex(f) for f in sys.argv[5].split()], sys.argv[4]
def ip(*words): subprocess.run(["ip", *words], check=True, timeout=20)
ip("link", "add", "va", "type", "veth", "peer", "name", "vb")
for name in ("va", "vb"): ip("link", "set", name, "up")
extra = [] if action in ("interrupt", "gone") else ["--count", str(len(frames)), "--timeout", "20"]
child = subprocess.Popen([*sniff, "-i", "va", "--json", *extra], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
deadline = time.monotonic() + 30
def listening():
    with open("/proc/net/packet") as table: return any(line.split()[3] == "0003" for line in table.readlines()[1:])
while not listening():
    assert child.poll() is None and time.monotonic() < deadline, child.communicate()
    time.sleep(0.02)
if action == "down":
    ip("link", "set", "va", "down"); ip("link", "set", "va", "up")
for name in ("va", "vb"):  # before, the kernel throws away what is sent
    while "state UP" not in subprocess.run(["ip", "link", "show", name], capture_output=True, text=True, timeout=20).stdout:
        assert time.monotonic() < deadline, "not within its time: the interfaces are up"
if action == "gone": ip("link", "del", "va")
else:
    out = {name: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) for name in ("va", "vb")}
    for name, s in out.items(): s.bind((name, 0))
    out["vb"].send(bytes(12) + b"\\x08\\x06" + bytes(46))  # not ours
    for k, frame in enumerate(frames): out["vb" if k else "va"].send(frame)
if action == "interrupt":
    first = child.stdout.readline()
    child.send_signal(signal.SIGINT)
    print(first, end="")
text, errors = child.communicate(timeout=240)
print(text, end=""); print(errors, end="", file=sys.stderr)
sys.exit(child.returncode)
"""


def live(action: str, what: list[bytes]) -> subprocess.CompletedProcess[str]:
    unshare = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-Urn"]
    return subprocess.run(
        [*unshare, sys.executable, "-c", LIVE, *SNIFF, action, " ".join(frame.hex() for frame in what)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.mark.lab
@pytest.mark.parametrize("action", ["run", "down"])
def test_live_shows_own_and_others_frames_tags_and_jumbo_payloads(action: str) -> None:
    """Own frames once, others' once, a stripped VLAN tag put back (case 57), nothing foreign (case 83); a link that was down
    meanwhile does not end it (case 71)."""
    plain = frames()
    tagged = plain[1][:12] + b"\x81\x00\x00\x07" + plain[1][12:]
    done = live(action, [plain[0], tagged, plain[2], plain[3]])
    assert done.returncode == 0, done.stderr
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    assert [o["kind"] for o in objects] == ["DATA", "CONFIRM", "NAK", "OPEN"]
    assert all(o["check_ok"] and o["interface"] == "va" for o in objects)
    assert [o["bytes"] for o in objects] == [len(plain[0]), len(tagged), len(plain[2]), len(plain[3])]


@pytest.mark.lab
def test_live_ends_on_interrupt_and_when_the_interface_goes() -> None:
    done = live("interrupt", frames()[:1])
    assert done.returncode == 0 and json.loads(done.stdout)["kind"] == "DATA" and "Traceback" not in done.stderr, done.stderr
    done = live("gone", [])
    assert done.returncode == 1 and "interface va has gone" in done.stderr


def test_without_the_right_one_line_says_how_to_get_it() -> None:
    give_up = "from zenjun.daemon import rights; rights._set(rights.Capabilities(0, 0, 0))\n"
    code = give_up + "from zenjun.tools.cli import main; main(['sniff', '-i', 'lo'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 6, done.stderr
    assert done.stderr.count("\n") == 1 and "sudo" in done.stderr and "setcap cap_net_raw+ep" in done.stderr


def test_where_nothing_can_grant_the_right_it_does_not_speak_of_sudo() -> None:
    """As in a container made without it: the bounding set lacks the right."""
    if os.geteuid():
        pytest.skip("takes root to cut the bounding set")
    without = ["setpriv", "--bounding-set", "-net_raw"]
    done = subprocess.run([*without, *SNIFF, "-i", "lo"], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 6, done.stderr
    assert done.stderr.count("\n") == 1 and "--cap-add NET_RAW" in done.stderr and "sudo" not in done.stderr
