"""``zenjun pcap show``: filters, times, several files, pipes, damage, terminals; and the walk in C against the plain decoder."""

from __future__ import annotations

import gzip
import json
import os
import pty
import random
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from zenjun.proto import wire
from zenjun.tools.cli.pcap.show import show as command
from zenjun.tools.pcap.frames.lookup import Capture, Frame, Notes, Selection, frames, merged
from zenjun.tools.pcap.frames.problem import Problem
from zenjun.tools.pcap.frames.text import Style, fold, span, vector
from zenjun.tools.pcap.look.show import moment, numbers

from . import shapes
from .built import PDUS, Rec, frame, pcap, pcapng, write
from .recorded import captures
from .traffic import START_NS, Clock, Traffic, data, pdu

MS = 1_000_000
S = 1_000_000_000
Kind = wire.Kind


def run(*arguments: str, data: bytes | None = None) -> Result:
    return CliRunner().invoke(command, list(arguments), input=data)


def objects(*arguments: str) -> list[dict[str, object]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two stations' captures of a little traffic, half a second apart in the middle."""
    for station in (1, 2):
        records = []
        for k in range(20):
            ack = [k, k, 0]
            src = 1 + k % 2
            kind = Kind.CONFIRM if k % 5 == 4 else Kind.DATA
            payload = (
                wire.CONFIRM.struct.pack(0, 0, k, k, 1, 7)
                if kind == Kind.CONFIRM
                else data(b"text %d" % k, "even" if src == 2 else "odd")
            )
            raw = pdu(kind, src, k, ack, payload, pack=ack if kind == Kind.CONFIRM else None, incarnation=7, instance=1 + k // 10)
            at = START_NS + k * 100 * MS + (0 if src == station else 50_000)
            records.append(Rec(at, frame(raw, src), 2 if src == station else 1))
        write(tmp_path / f"s{station}.pcapng", records)
    return tmp_path


def seqs(*arguments: str) -> list[object]:
    return [o["seq"] for o in objects(*arguments)]


# ---- filters ----


def test_filters(folder: Path) -> None:
    one = str(folder / "s1.pcapng")
    assert seqs(one) == list(range(20))
    assert seqs(one, "--kind", "confirm") == [4, 9, 14, 19]
    assert seqs(one, "--src", "2", "--kind", "DATA") == [1, 3, 5, 7, 11, 13, 15, 17]
    assert seqs(one, "--seq", "3-5") == [3, 4, 5] and seqs(one, "--seq", "7") == [7]
    assert seqs(one, "--instance", "2") == list(range(10, 20))
    assert seqs(one, "--incarnation", "7") == list(range(20)) and seqs(one, "--incarnation", "8") == []
    assert seqs(one, "--group", "even") == [k for k in range(20) if k % 2 and k % 5 != 4]
    assert seqs(one, "--group", "none") == []
    assert seqs(one, "--text", "text 1") == [1, 10, 11, 12, 13, 15, 16, 17, 18]
    assert seqs(one, "--direction", "out") == list(range(0, 20, 2)) and seqs(one, "--direction", "in") == list(range(1, 20, 2))
    assert seqs(one, "--cluster", "traffic") == list(range(20)) and seqs(one, "--cluster", "x") == []
    assert seqs(one, "--count", "3") == [0, 1, 2]
    assert seqs(one, "--ethertype", "0x9999") == []
    assert seqs(one, "--bad") == []


def test_times(folder: Path) -> None:
    one = str(folder / "s1.pcapng")
    assert seqs(one, "--since", "1.8") == [18, 19]  # 18 is its own: exactly then
    assert seqs(one, "--since", "+1850ms") == [19]
    assert seqs(one, "--until", "0.2") == [0, 1, 2] and seqs(one, "--since", "300ms", "--until", "501ms") == [3, 4, 5]
    clock = time.strftime("%H:%M:%S", time.localtime(START_NS // S + 1))
    assert seqs(one, "--since", clock) == list(range(10, 20))
    assert seqs(one, "--until", f"{clock}.100050") == list(range(12))
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(START_NS // S + 1)) + ".300Z"
    assert seqs(one, "--since", whole) == list(range(13, 20))
    assert seqs(one, "--since", f"@{START_NS // S}.9") == list(range(9, 20))
    both = objects(str(folder), "--since", "1.8")
    assert [(o["seq"], o["station"]) for o in both] == [(18, 1), (18, 2), (19, 2), (19, 1)]


def test_moments() -> None:
    assert moment("1.5").ns == 1_500_000_000 and moment("+2m").ns == 120 * S and moment(".5us").ns == 500
    assert moment("@5.000000001").ns == 5 * S + 1
    assert moment("2026-01-31T12:00:00.123456789Z").ns == 1_769_860_800_123_456_789
    assert moment("2026-01-31T13:00:00+01:00").ns == 1_769_860_800 * S
    for wrong in ("", "x", "25:00", "1:2", "-1", "1.5 h", "2026-13-01T00:00:00", "12:60"):
        with pytest.raises(ValueError):
            moment(wrong)
    assert numbers("7") == (7, 7) and numbers("4294967295-2") == (2**32 - 1, 2)
    for wrong in ("", "a", "1-b", "4294967296", "-1"):
        with pytest.raises(ValueError):
            numbers(wrong)


def test_a_range_of_numbers_wraps(tmp_path: Path) -> None:
    records = [
        Rec(k, frame(pdu(Kind.DATA, 1, k % 2**32, [0, 0], data(b"x")), 1)) for k in (5, 2**32 - 2, 2**32 - 1, 2**32, 2**32 + 1)
    ]
    path = str(write(tmp_path / "s1.pcapng", records))
    assert seqs(path, "--seq", "4294967295-0") == [2**32 - 1, 0]


def test_the_walk_in_c_finds_what_the_decoder_says(tmp_path: Path) -> None:
    """Random filters over random frames, damaged and foreign ones among them."""
    source = random.Random(5)
    records = []
    for k in range(600):
        raw = bytearray(bytes(PDUS[source.choice(sorted(PDUS))]))
        if source.random() < 0.3:
            raw[source.randrange(len(raw))] = source.randrange(256)
        if source.random() < 0.1:
            del raw[source.randrange(4, len(raw)) :]
        records.append(Rec(START_NS + k, frame(bytes(raw)), source.randrange(3)))
    capture = Capture(str(write(tmp_path / "s1.pcapng", records)), 1)
    everything = list(frames(capture, Selection(), Notes()))
    assert len(everything) == 600
    plain = {f.index: f.decoded() for f in everything}
    for _ in range(300):
        wanted = Selection(
            kinds=frozenset(source.sample(range(1, 12), 3)) if source.random() < 0.5 else frozenset(),
            sources=frozenset(source.sample(range(1, 65), 40)) if source.random() < 0.3 else frozenset(),
            since_ns=START_NS + source.randrange(600) if source.random() < 0.3 else None,
            until_ns=START_NS + source.randrange(600) if source.random() < 0.3 else None,
            seqs=(0xFFFFFFFF, 5) if source.random() < 0.2 else None,
            instance=source.choice((3, 4, None, None)),
            incarnation=source.choice((7, 8, None, None, None)),
            group=wire.group_id("g") if source.random() < 0.2 else None,
            text=b"hello" if source.random() < 0.1 else None,
            bad=source.random() < 0.2,
            direction=source.choice((None, None, 1, 2)),
        )
        found = [f.index for f in frames(capture, wanted, Notes())]
        assert found == [f.index for f in everything if _matches(f, plain[f.index], wanted)], wanted
    problems = {f.problem for f in everything}
    assert {Problem.NONE, Problem.CHECK, Problem.KIND} <= problems


def _matches(f: Frame, plain: dict[str, Any] | None, wanted: Selection) -> bool:
    raw = f.pdu
    assert f.time_ns is not None
    names = [field.name for field in wire.HEADER.fields]
    header = dict(zip(names, wire.HEADER.struct.unpack_from(raw), strict=True)) if len(raw) >= wire.HEADER.size else None
    checks = [
        (wanted.kinds, header and header["kind"] in wanted.kinds),
        (wanted.sources, header and header["src"] in wanted.sources),
        (
            wanted.seqs,
            header and wanted.seqs and (header["seq"] - wanted.seqs[0]) % 2**32 <= (wanted.seqs[1] - wanted.seqs[0]) % 2**32,
        ),
        (wanted.instance is not None, header and header["instance"] == wanted.instance),
        (wanted.incarnation is not None, header and header["incarnation"] == wanted.incarnation),
        (wanted.since_ns is not None, f.time_ns >= (wanted.since_ns or 0)),
        (wanted.until_ns is not None, f.time_ns <= (wanted.until_ns or 0)),
        (wanted.bad, f.problem != Problem.NONE),
        (wanted.direction is not None, f.direction == wanted.direction),
    ]
    good = f.problem == Problem.NONE
    messages = plain.get("messages", []) if good and plain is not None else []
    ours = [m for m in messages if m["group"] == f"{wanted.group or 0:08x}"]
    checks.append((wanted.group is not None, bool(ours)))
    checks.append((wanted.text is not None, good and (wanted.text or b"") in raw[wire.HEADER.size + 4 * raw[7] :]))
    return all(ok for asked, ok in checks if asked)


# ---- what is printed ----


def test_a_line(folder: Path) -> None:
    lines = run(str(folder / "s1.pcapng")).stdout.splitlines()
    assert len(lines) == 20
    words = lines[1].split()
    assert words[1:7] == ["s1", "in", "station", "2.7", "DATA", "seq"] and "1 message 6 B" in lines[1] and "ack 1,1,0" in lines[1]
    assert "s1 out" in lines[0] and "next 4" in lines[4] and "pack 4,4,0" in lines[4] and "position 4" in lines[4]
    first = run(str(folder / "s1.pcapng"), "--relative").stdout.splitlines()[3].split()[0]
    assert first == "0.300050000"


def test_every_kind_has_a_line(tmp_path: Path) -> None:
    path = str(write(tmp_path / "s2.pcapng", [Rec(k, frame(p), 2) for k, p in enumerate(PDUS.values())]))
    lines = dict(zip(PDUS, run(path).stdout.splitlines(), strict=True))
    assert "40 messages 780 B" in lines["packed"] and "3 messages 5 B (1,3,1)  fragment 4+3/10" in lines["fragment"]
    assert "removes 1 at 9, 3 at 4294967295  members 1,3" in lines["stop"] and "admits" in lines["rcv_ack"]
    assert "epoch 3" in lines["rst"] and "host 'büro'" in lines["open"] and "stopped 3" in lines["confirm"]
    assert "ack 0,1,2" in lines["64 stations"] and lines["service"].endswith("UNKNOWN KIND")
    assert not [
        k for k, text in lines.items() if k != "service" and any(w in text for w in ("BAD", "CUT", "MALFORMED", "UNKNOWN"))
    ]


def test_bad_ones(tmp_path: Path) -> None:
    good = frame(PDUS["one"])
    wrong = bytes(b ^ (at == len(good) - 1) for at, b in enumerate(good))
    other = bytearray(good)
    other[14 + wire.HEADER.offset("version")] = 9
    records = [Rec(1, good), Rec(2, wrong), Rec(3, good[:70], 0, len(good)), Rec(4, bytes(other)), Rec(5, good[:30], 0, 30)]
    result = run(str(write(tmp_path / "s1.pcapng", records)), "--bad")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [text.rsplit("  ", 1)[1] for text in lines[:3]] == ["BAD CHECKSUM", "CUT", "UNKNOWN VERSION"]
    assert "TOO SHORT for a header: 30 of 30" in lines[3] and len(lines) == 4
    assert [o["problem"] for o in objects(str(tmp_path / "s1.pcapng"))] == [None, "check", "cut", "version", "short"]


def test_details_and_bytes(folder: Path) -> None:
    text = run(str(folder / "s1.pcapng"), "-v", "-x", "--count", "1").stdout
    for field in wire.HEADER.fields:
        assert f"\n    {field.name} " in text
    assert "\n    0000  03 5a 4a 00 00 01" in text and "text 0" in text.splitlines()[-1] + text.splitlines()[-2]
    assert f"\n    file                 {folder}/s1.pcapng" in text and "\n    offset " in text


def test_narrow_terminals_and_colours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost and no line is too long; colours only there."""
    path = str(write(folder / "s3.pcapng", [Rec(START_NS, frame(PDUS["64 stations"]), 2), Rec(START_NS, frame(PDUS["open"]), 1)]))
    plain = run(path).stdout
    for columns in (40, 60, 100):
        text = terminal("show", path, columns=columns)
        assert "\x1b[" in text
        bare = "".join(piece if k == 0 else piece.partition("m")[2] for k, piece in enumerate(text.split("\x1b[")))
        assert all(len(line) <= columns for line in bare.splitlines()), bare
        assert "".join(bare.split()) == "".join(plain.split())
    assert "\x1b" not in plain and "\x1b" not in terminal("show", path, columns=80, NO_COLOR="1")


def terminal(*arguments: str, columns: int, **environment: str) -> str:
    """What the command writes to a terminal of so many columns."""
    main, other = pty.openpty()
    import fcntl
    import termios

    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))
    env = {**os.environ, "TERM": "xterm", **environment}
    env.pop("COLUMNS", None)
    if "NO_COLOR" not in environment:
        env.pop("NO_COLOR", None)
    process = subprocess.Popen([*ZENJUN, *arguments], stdout=other, stderr=subprocess.PIPE, env=env)
    os.close(other)
    out = b""
    while True:
        try:
            piece = os.read(main, 65536)
        except OSError:
            break
        if not piece:
            break
        out += piece
    assert process.wait(120) == 0
    assert process.stderr is not None
    process.stderr.close()
    os.close(main)
    return out.decode().replace("\r\n", "\n")


ZENJUN = [sys.executable, "-c", "from zenjun.tools.command import main; main()", "pcap"]


def test_small_helpers() -> None:
    assert vector([1, 2]) == "1,2" and vector([5] * 10 + [6]) == "5×10,6"
    assert span(1) == "1 ns" and span(-1500) == "-1.500 µs" and span(2 * S) == "2.000 s"
    assert fold(["a" * 30, "b"], 10) == "\n".join(["    aaaaaa"] * 5 + ["    b"]) or all(
        len(x) <= 10 for x in fold(["a" * 30, "b"], 10).splitlines()
    )
    assert not Style.of(open(os.devnull, "w")).colour  # noqa: SIM115, PTH123


# ---- files ----


def test_several_files_by_time_and_whose_they_are(folder: Path) -> None:
    assert [o["station"] for o in objects(str(folder), "--count", "4")] == [1, 2, 2, 1]
    assert {o["station"] for o in objects(str(folder), "--station", "2")} == {2}
    other = folder / "other.pcapng"
    (folder / "s2.pcapng").rename(other)
    assert {o["station"] for o in objects(str(folder), "--station", f"9={other}")} == {1, 9}
    result = run(str(folder), "--station", "5")
    assert result.exit_code == 1 and "no capture is of station 5" in result.output
    result = run(str(folder), "--station", "9=/no/such")
    assert result.exit_code == 1 and "not among the captures" in result.output
    assert run(str(folder), "--station", "x").exit_code == 2 and run(str(folder), "--station", "3=").exit_code == 2


def test_more_files_than_are_open_at_a_time(tmp_path: Path) -> None:
    """Rotated captures: those of one station follow each other, however they are called."""
    source = random.Random(2)
    names = source.sample(range(1000), 130)
    for k, number in enumerate(names):
        for station in (1, 2):
            raw = frame(pdu(Kind.DATA, station, k, [0, 0], data(b"x")), station)
            write(tmp_path / f"s{station}" / f"{number}.pcapng", [Rec(START_NS + 2 * k + station, raw, 2)])
    assert [(o["station"], o["seq"]) for o in objects(str(tmp_path))] == [(s, k) for k in range(130) for s in (1, 2)]


def test_packed_files_and_pipes(folder: Path) -> None:
    raw = (folder / "s1.pcapng").read_bytes()
    (folder / "p").mkdir()
    (folder / "p" / "s1.pcapng.gz").write_bytes(gzip.compress(raw))
    (folder / "p" / "s1.pcapng.zst").write_bytes(pa.Codec("zstd").compress(raw, asbytes=True))
    for name in ("s1.pcapng.gz", "s1.pcapng.zst"):
        assert seqs(str(folder / "p" / name)) == list(range(20))
    for data_in in (raw, gzip.compress(raw), (folder / "p" / "s1.pcapng.zst").read_bytes()):
        done = subprocess.run(
            [*ZENJUN, "show", "-", "--since", "1.5"], input=data_in, capture_output=True, timeout=240, check=True
        )
        assert len(done.stdout.splitlines()) == 5, done.stderr
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen([*ZENJUN, "show", str(fifo)], stdout=subprocess.PIPE) as process:
        fifo.write_bytes(raw)
        assert process.stdout is not None and len(process.stdout.read().splitlines()) == 20
    fifo.unlink()
    done = subprocess.run([*ZENJUN, "show", "-", "--since", "12:00:00"], input=raw, capture_output=True, timeout=240, check=False)
    assert done.returncode == 2 and b"give the date as well" in done.stderr


def test_lines_come_while_the_pipe_is_open(folder: Path) -> None:
    """tcpdump -U | zenjun pcap show -"""
    raw = (folder / "s1.pcapng").read_bytes()
    with subprocess.Popen(
        [*ZENJUN, "show", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(raw)
        process.stdin.flush()
        for _ in range(20):
            assert b"station" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert process.stderr.read() == b""


def test_a_closed_pipe_ends_it(tmp_path: Path) -> None:
    one = frame(PDUS["one"])
    path = write(tmp_path / "s1.pcapng", [Rec(k, one) for k in range(20000)])
    with subprocess.Popen([*ZENJUN, "show", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=240) == 141
        assert process.stderr.read() == b""


def test_damaged_files(folder: Path, tmp_path: Path) -> None:
    """Case 161 and its like: a line with file and offset, the good ones are shown, exit code 1."""
    (folder / "bad").mkdir()
    bad = folder / "bad"
    raw = (folder / "s1.pcapng").read_bytes()
    for name, content, says in (
        ("empty.pcap", b"", "offset 0: the file is empty"),
        ("text.pcap", b"hello, world, this is text", "offset 0: neither pcap nor pcapng"),
        ("short.pcap", raw[:3], "offset 0: too short for a capture"),
        ("block.pcapng", raw + b"\x06\0\0\0\x03\0\0\0" + raw, "damaged: a block of 3 bytes"),
    ):
        (bad / name).write_bytes(content)
        result = run(str(bad / name), str(folder / "s2.pcapng"))
        assert result.exit_code == 1 and says in result.stderr and f"{bad / name}: offset" in result.stderr, result.stderr
        assert len(result.stdout.splitlines()) >= 20
        (bad / name).unlink()
    (bad / "cut.pcapng").write_bytes(raw[:-10])
    result = run(str(bad / "cut.pcapng"))
    assert result.exit_code == 0 and "the last record is cut" in result.stderr and len(result.stdout.splitlines()) == 19
    for wrong in ("none.pcap", str(tmp_path / "no" / "such")):
        assert run(wrong).exit_code == 1 and "no such file" in run(wrong).stderr
    (bad / "cut.pcapng").unlink()
    assert run(str(bad)).exit_code == 1 and "no capture in this folder" in run(str(bad)).stderr


def test_files_without_a_pdu_of_ours_say_so(tmp_path: Path) -> None:
    path = tmp_path / "other.pcap"
    path.write_bytes(shapes.pcap([(shapes.NS, bytes(60))] * 12))
    result = run(str(path))
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"{path}: 0 PDUs of EtherType 0x88b5 in 12 frames" in result.stderr
    path.write_bytes(shapes.pcap([(shapes.NS, bytes(60))] * 12, link=105))
    result = run(str(path))
    assert result.exit_code == 1 and "all 12 frames of link type 105" in result.stderr


def test_a_packed_file_that_is_cut_is_not_called_empty(tmp_path: Path) -> None:
    path = tmp_path / "s1.pcap.gz"
    path.write_bytes(gzip.compress(shapes.pcap(shapes.frames()))[:12])
    result = run(str(path))
    assert result.exit_code == 1 and "the gzip stream ends too early" in result.stderr and "empty" not in result.stderr


def test_wrong_usage(folder: Path) -> None:
    one = str(folder / "s1.pcapng")
    for wrong in ([], [one, "--kind", "x"], [one, "--src", "0"], [one, "--src", "65"], [one, "--seq", "x"], [one, "--since", "x"],
                  [one, "--count", "0"], [one, "--ethertype", "7"], [one, "--text", ""], [one, "--direction", "up"]):  # fmt: skip
        assert run(*wrong).exit_code == 2, wrong
    text = run("--help").output
    assert "Exit status" in text and "Examples" in text


def test_frames_without_a_time_stay_in_their_place(tmp_path: Path) -> None:
    """Simple packet blocks have none."""
    simple = struct.pack("<II", 3, 16 + ((len(f := frame(PDUS["one"])) + 3) & ~3))
    body = struct.pack("<I", len(f)) + f + bytes(-len(f) % 4)
    raw = pcapng([Rec(START_NS, frame(PDUS["confirm"]))]) + simple + body + struct.pack("<I", len(body) + 12)
    (tmp_path / "s1.pcapng").write_bytes(raw)
    write(tmp_path / "s2.pcapng", [Rec(START_NS + 5, frame(PDUS["nak"]))])
    assert [(o["kind"], o["time_ns"]) for o in objects(str(tmp_path))] == [
        ("CONFIRM", START_NS),
        ("DATA", None),
        ("NAK", START_NS + 5),
    ]
    assert "no time" in run(str(tmp_path)).stdout
    assert len(objects(str(tmp_path), "--since", "0")) == 2


def test_clocks_are_aligned_on_demand(tmp_path: Path) -> None:
    traffic = Traffic({1: Clock(), 2: Clock(3 * S)}, lambda *_: 50_000, every_ns=5 * MS).run()
    for station, records in traffic.records.items():
        write(tmp_path / f"s{station}.pcapng", records)
    plain = objects(str(tmp_path))
    assert [o["station"] for o in plain[:50]] == [1] * 50
    result = run(str(tmp_path), "--align", "--json")
    aligned = [json.loads(line) for line in result.stdout.splitlines()]
    assert "station" in result.stderr and "± " in result.stderr
    for o in aligned[:50:2]:
        assert {p["station"] for p in aligned[:60] if p["check"] == o["check"]} == {1, 2}
    raw = (tmp_path / "s1.pcapng").read_bytes()
    assert run("-", "--align", data=raw).exit_code == 2
    assert run(str(tmp_path / "s1.pcapng"), "--align").exit_code == 1


def test_memory_is_bounded(tmp_path: Path) -> None:
    """A capture of 200 MB, searched in 64 MB more than the interpreter itself takes."""
    path = tmp_path / "s1.pcap"
    one = struct.pack("<IIII", 5, 0, 1514, 1514) + frame(PDUS["one"]).ljust(1514, b"\0")
    with path.open("wb") as file:
        file.write(pcap([]))
        for _ in range(135):
            file.write(one * 1000)
    program = (
        "import resource, sys\nfrom zenjun.tools.pcap.frames.lookup import *\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "n = sum(1 for _ in merged([Capture(sys.argv[1], 1)], Selection(bad=True), Notes()))\n"
        "print(n, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=400, check=True)
    found, grown = map(int, done.stdout.split())
    assert found == 0 and grown < 64 * 1024


@pytest.mark.lab
def test_a_real_capture() -> None:
    files = [Capture(str(p), k) for k, p in captures().items()]
    notes = Notes()
    found = list(merged(files, Selection(), notes))
    assert not notes.lines and len(found) > 1000 and {f.problem for f in found} == {Problem.NONE, Problem.ASIDE}
    assert {f.capture.station for f in found} == {1, 2, 3}
    # A kernel stamps frames before it queues them: two processors can swap neighbours of one file, which keep its order.
    latest = 0
    indexes: dict[int | None, list[int]] = {}
    for one in found:
        indexes.setdefault(one.capture.station, []).append(one.index)
        assert (one.time_ns or 0) > latest - MS
        latest = max(latest, one.time_ns or 0)
    assert all(numbers_of == sorted(numbers_of) for numbers_of in indexes.values())
