"""``zenjun pcap follow``: transmissions, losses, NAKs, acknowledgements of one message, checked on built and on real captures."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from zenjun.proto import wire
from zenjun.tools.cli.pcap.follow import follow as command
from zenjun.tools.pcap.frames.lookup import Capture, Notes, Selection, frames
from zenjun.tools.pcap.frames.text import Style
from zenjun.tools.pcap.look.follow import Name, name
from zenjun.tools.pcap.look.sequence import brief

from .built import Rec, frame, write
from .recorded import LONG, captures
from .test_show import ZENJUN, terminal
from .traffic import START_NS, confirm, data, pdu

Kind = wire.Kind
US = 1000


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


def known(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def nak(src: int, target: int, stream: int, first: int, span: int = 1) -> bytes:
    body = wire.NAK.struct.pack(stream, 1, 0, 1) + wire.RANGE.struct.pack(first, span)
    return pdu(Kind.NAK, src, 0, [0, 0, 0], body, pack=[0, 0, 0], target=target)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """PDU 5 of station 1 is lost on the way to 3, which asks 1 and is answered by 2; then all confirm."""
    told = data(b"first") + data(b"second")
    script: list[tuple[int, int, bytes, tuple[int, ...]]] = [
        (0, 1, pdu(Kind.DATA, 1, 4, [4, 0, 0], data(b"before")), (2, 3)),
        (10, 1, pdu(Kind.DATA, 1, 5, [5, 0, 0], told), (2,)),
        (20, 2, pdu(Kind.CONFIRM, 2, 0, [6, 0, 0], confirm(1), pack=[5, 0, 0]), (1, 3)),
        (30, 3, nak(3, 1, 1, 5), (1, 2)),
        (40, 2, pdu(Kind.DATA, 1, 5, [5, 0, 0], told), (1, 3)),
        (50, 3, pdu(Kind.CONFIRM, 3, 0, [6, 0, 0], confirm(2), pack=[6, 0, 0]), (1,)),
        (60, 1, pdu(Kind.CONFIRM, 1, 6, [6, 0, 0], confirm(3), pack=[6, 0, 0]), (2, 3)),
        (70, 2, pdu(Kind.CONFIRM, 2, 0, [6, 0, 0], confirm(4), pack=[6, 0, 0]), (1, 3)),
        (80, 1, pdu(Kind.DATA, 1, 6, [6, 0, 0], data(b"after")), (2, 3)),
    ]
    records: dict[int, list[Rec]] = {1: [], 2: [], 3: []}
    for at, by, raw, to in script:
        records[by].append(Rec(START_NS + at * US, frame(raw, by), 2))
        for station in to:
            records[station].append(Rec(START_NS + at * US + 2000, frame(raw, by), 1))
    for station, mine in records.items():
        write(tmp_path / f"s{station}.pcapng", sorted(mine, key=lambda r: r.time_ns))
    return tmp_path


def shape(life: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        ("+".join(s["what"]), s["by"], (s["time_ns"] - START_NS) // US, sorted(map(int, s["receipts"])), s["missing"])
        for s in life["sendings"]
    ]


def test_the_whole_story(folder: Path) -> None:
    life = known("1:5", str(folder), "--no-levels", "--no-align")
    assert shape(life) == [
        ("copy", 1, 10, [2], [3]),
        ("ack", 2, 20, [1, 3], []),
        ("asked", 3, 30, [1, 2], []),
        ("copy", 2, 40, [1, 3], []),
        ("ack+pack", 3, 50, [1], [2]),
        ("pack", 1, 60, [2, 3], []),
        ("pack", 2, 70, [1, 3], []),
    ]
    assert [m["size"] for m in life["pdu"]["messages"]] == [5, 6] and life["index"] is None
    third = life["stations"]["3"]
    assert third["first_ns"] == START_NS + 42 * US and third["copies"] == 1
    assert third["heard"] == {
        "ack": {"2": START_NS + 22 * US},
        "pack": {"1": START_NS + 62 * US, "2": START_NS + 72 * US},
    }
    assert life["stations"]["1"]["copies"] == 2, "its own, and the one sent for it"


def test_names(folder: Path) -> None:
    for text in ("1:5", "1.1:5", "1:5:1"):
        assert known(text, str(folder), "--no-levels", "--no-align")["pdu"]["seq"] == 5
    assert known("1:5:1", str(folder), "--no-levels", "--no-align")["index"] == 1
    found = known("--text", "second", str(folder), "--no-levels", "--no-align")
    assert found["pdu"]["seq"] == 5 and found["index"] == 1
    assert name("3.4:5:6") == Name(3, 4, 5, 6)
    for wrong in ("", "1", "1:", "0:1", "65:1", "1:4294967296", "1.2", "a:b", "1:2:x"):
        with pytest.raises(ValueError):
            name(wrong)


def test_what_is_not_there_or_not_clear(folder: Path) -> None:
    one = str(folder)
    assert run("1:77", one, "--no-align").exit_code == 1 and "no such PDU" in run("1:77", one, "--no-align").output
    assert run("--text", "nowhere", one, "--no-align").exit_code == 1
    assert "has 2 messages" in run("1:5:2", one, "--no-align").output
    write(folder / "s4.pcapng", [Rec(START_NS, frame(pdu(Kind.DATA, 1, 5, [5, 0, 0], data(b"x"), incarnation=2)))])
    several = run("1:5", one, "--no-align")
    assert several.exit_code == 2 and "say which" in several.output and "1.1:5" in several.output and "1.2:5" in several.output
    for wrong in ([], ["1:5"], ["x", one], ["--text", "", one], ["--text", "x"], ["1:5", "-"], ["1:5", one, "--station", "1"]):
        assert run(*wrong).exit_code == 2, wrong
    assert run("1:5", str(folder / "none")).exit_code == 1
    lone = [
        str(write(folder / "lone" / f"s{k}.pcapng", [Rec(START_NS, frame(pdu(Kind.DATA, 1, 5, [0], data(b"x"))), 0)]))
        for k in (1, 2)
    ]
    result = run("1:5", *lone, "--no-levels")
    assert result.exit_code == 0 and "the clocks cannot be aligned" in result.stderr


def test_another_life_s_acknowledgements_do_not_count(folder: Path, tmp_path: Path) -> None:
    """After station 1 has begun another life in the next instance, its numbers are others."""
    records = [
        Rec(START_NS, frame(pdu(Kind.DATA, 1, 5, [5, 0, 0], data(b"x")), 1), 1),
        Rec(START_NS + 1, frame(pdu(Kind.CONFIRM, 3, 0, [5, 0, 0], confirm(9), pack=[5, 0, 0]), 3), 1),
        Rec(START_NS + 2, frame(pdu(Kind.DATA, 1, 0, [0, 0, 0], data(b"y"), incarnation=2, instance=2), 1), 1),
        Rec(START_NS + 3, frame(pdu(Kind.CONFIRM, 3, 0, [9, 0, 0], confirm(1), pack=[9, 0, 0], instance=2), 3), 1),
    ]
    path = write(tmp_path / "alone" / "s2.pcapng", records)
    life = known("1.1:5", str(path), "--no-levels")
    assert [s["what"] for s in life["sendings"]] == [["copy"]] and life["stations"]["2"]["heard"] == {"ack": {}, "pack": {}}
    earlier = [Rec(START_NS - 1, frame(pdu(Kind.CONFIRM, 3, 0, [90, 0, 0], confirm(1), pack=[90, 0, 0], instance=0), 3), 1)]
    path = write(tmp_path / "alone" / "s2.pcapng", earlier + records)
    assert known("1.1:5", str(path), "--no-levels")["stations"]["2"]["heard"] == {"ack": {}, "pack": {}}


def test_the_picture(folder: Path) -> None:
    text = run("1:5", str(folder), "--no-levels", "--no-align").stdout
    rows = [line for line in text.splitlines() if line.lstrip().startswith("+")]
    assert rows[0].split()[1].startswith("●") and "✗" in rows[0] and rows[0].endswith("DATA 5")
    assert "NAK: 3 asks 1" in rows[2] and "DATA sent again for 1" in rows[3] and "CONFIRM: 3 has it, knows" in rows[4]
    assert "sent twice" in text or "sent 2 times" in text
    assert "asked for once" in text and "by 1,2" in text


def test_a_picture_for_narrow_terminals(folder: Path) -> None:
    """Columns while they fit, then a list; never too wide."""
    for columns in (48, 72, 120):
        text = terminal("follow", "1:5", str(folder), "--no-levels", "--no-align", columns=columns, NO_COLOR="1")
        assert all(len(line) <= columns for line in text.splitlines()), text
        assert ("s1: " in text or "from s1" in text) == (columns < 70)


def test_without_unicode(folder: Path) -> None:
    import os
    import subprocess

    env = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run(
        [*ZENJUN, "follow", "1:5", str(folder), "--no-levels", "--no-align"], env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "o---" in done.stdout and done.stdout.isascii()


def test_fragments(tmp_path: Path) -> None:
    whole = bytes(range(250))
    records = []
    for k, (at, size) in enumerate(((0, 100), (100, 100), (200, 50))):
        flags = wire.MessageFlag.FRAGMENT | (wire.MessageFlag.LAST if at + size == 250 else 0)
        piece = wire.MESSAGE.struct.pack(size, 1, 1, 0, flags) + wire.FRAGMENT.struct.pack(250, at) + whole[at : at + size]
        records.append(Rec(START_NS + k, frame(pdu(Kind.DATA, 1, 10 + k, [0, 0], piece), 1), 2))
        records.append(Rec(START_NS + k, frame(pdu(Kind.CONFIRM, 1, 11 + k, [0, 0], confirm(k), pack=[0, 0]), 1), 2))
    path = str(write(tmp_path / "s1.pcapng", records))
    life = known("1:12", path, "--no-levels")
    assert [(f["seq"], f["offset"], f["size"]) for f in life["fragments"]] == [(10, 0, 100), (11, 100, 100), (12, 200, 50)]
    assert "piece in PDU 11" in run("1:11", path, "--no-levels").stdout


def test_brief_times() -> None:
    assert [brief(n) for n in (0, 999, 1500, -2_000_000, 3_000_000_000)] == ["0ns", "999ns", "1.5µs", "-2ms", "3s"]
    assert Style().width == 0


# ---- on real captures ----


def copies(files: dict[int, Path], src: int, seq: int) -> dict[int, list[int]]:
    """Station → times of copies, counted by another way: the plain decoder over all frames."""
    out: dict[int, list[int]] = {}
    for station, path in files.items():
        for f in frames(Capture(str(path), station), Selection(), Notes()):
            plain = f.decoded()
            if plain and plain["src"] == src and plain["seq"] == seq and plain["kind"] == "DATA" and f.time_ns is not None:
                out.setdefault(station, []).append(f.time_ns)
    return out


@pytest.mark.lab
@pytest.mark.parametrize("medium", ["switched", "bus"])
def test_messages_of_a_lab(medium: str) -> None:
    """Any message: every copy in the captures is in its life, levels come in their order, places are the same everywhere."""
    files = captures(medium)
    folder = str(next(iter(files.values())).parent)
    for number in random.Random(3).sample(range(2, 38), 4):
        for src in files:
            text = f"{number} from {src}"
            life = known("--text", text, folder) if number > 9 else known(f"{src}:{number}", folder)
            seq = life["pdu"]["seq"]
            counted = copies(files, src, seq)
            assert {int(s): v["copies"] for s, v in life["stations"].items()} == {s: len(counted.get(s, [])) for s in files}
            arrived = sorted(
                t for s in life["sendings"] if "copy" in s["what"] for t in [s["time_ns"], *s["receipts"].values()] if t
            )
            assert arrived == sorted(t for times in counted.values() for t in times)
            places = set()
            for about in life["stations"].values():
                # On a bus the order is fixed by the last of them only: a reset may cut what everybody has.
                names = (
                    ("accepted", "preack", "ordered", "acked") if medium == "bus" else ("accepted", "ordered", "preack", "acked")
                )
                levels = [about[level] for level in names if about[level] is not None]
                assert levels == sorted(levels) and len(levels) == 4, about
                assert levels[0] >= about["first_ns"]
                places.add((about["position"], about["clock"], tuple(about["before"]), tuple(about["after"])))
            assert len(places) == 1, "one order"
            position = life["stations"]["1"]["position"]
            if medium == "bus":
                # Of whichever instance: on a busy machine the first one may have ended while it was opened.
                assert life["place"] == {"clock": (life["pdu"]["instance"] << 32) + position, "src": src}
            else:
                assert life["place"] == {"clock": life["pdu"]["clock"], "src": src}


@pytest.mark.lab
def test_losses_are_followed_by_naks() -> None:
    """Some PDU of a lossy lab was asked for: the NAK stands between the loss and the copy that arrived."""
    files = captures()
    asked = set()
    for station, path in files.items():
        for f in frames(Capture(str(path), station), Selection(kinds=frozenset({int(Kind.NAK)}), direction=2), Notes()):
            plain = f.decoded()
            assert plain is not None
            asked |= {(plain["stream"], r["first"]) for r in plain["ranges"] if plain["target"] == plain["stream"]}
    assert asked, "5 % of loss, and nobody asked"
    src, seq = min(asked)
    folder = str(next(iter(files.values())).parent)
    result = run(f"{src}:{seq}", folder, "--json")
    if result.exit_code == 2:
        pytest.fail("several lives of one station: " + result.output)
    life = json.loads(result.stdout)
    naks = [s for s in life["sendings"] if "asked" in s["what"]]
    assert naks
    first = naks[0]
    assert any("copy" in s["what"] and first["by"] in s["missing"] and s["time_ns"] < first["time_ns"] for s in life["sendings"])
    got = [s["receipts"][str(first["by"])] for s in life["sendings"] if "copy" in s["what"] and str(first["by"]) in s["receipts"]]
    assert got and min(got) > first["time_ns"]


@pytest.mark.lab
def test_a_long_message_of_a_lab() -> None:
    folder = str(next(iter(captures().values())).parent)
    result = run("--text", "L" * 200, folder, "--no-levels")
    assert result.exit_code == 2 and "say which" in result.output, "its pieces are in several PDUs"
    first = result.output.split("which:")[1].split()[0]
    life = known(first, folder, "--no-levels")
    assert sum(f["size"] for f in life["fragments"]) == LONG
    assert all(len(f["stations"]) == 3 for f in life["fragments"])
