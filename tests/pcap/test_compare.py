"""``zenjun pcap compare``: what is only in one, order, times between, losses; equal to counting by hand, and over disk too."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from zenjun.proto import wire
from zenjun.tools.cli.pcap.compare import compare as command
from zenjun.tools.pcap.frames.lookup import Capture, Notes, Selection, frames
from zenjun.tools.pcap.look.compare import compare, side

from .built import PDUS, Rec, frame, pcapng, write
from .recorded import captures
from .traffic import START_NS, Clock, Traffic, data, pdu

MS = 1_000_000
S = 1_000_000_000
Kind = wire.Kind


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


def known(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code in (0, 1), result.output
    found = dict(json.loads(result.stdout))
    assert found["same"] == (result.exit_code == 0)
    return found


ITEMS = [frame(pdu(Kind.DATA, 1 + k % 2, k, [k, k], data(b"%d" % k)), 1 + k % 2) for k in range(12)]


def saved(path: Path, numbers: list[int], step_ns: int = 1000) -> str:
    return str(write(path, [Rec(START_NS + k * step_ns, ITEMS[n]) for k, n in enumerate(numbers)]))


def test_the_same(tmp_path: Path) -> None:
    one = saved(tmp_path / "a.pcapng", [0, 1, 2, 2, 3])
    two = saved(tmp_path / "b.pcapng", [0, 1, 2, 2, 3], 5000)
    found = known(one, two)
    assert found["same"] and found["both"] == 5 and found["order"] == {"common": 4, "late": 0, "late_of_source": 0}
    assert run(one, two, "--quiet").output == "" and run(one, one).exit_code == 0
    assert "order: the same" in run(one, two).output


@pytest.mark.parametrize(
    ("a", "b", "only_a", "only_b", "late", "late_of_source"),
    [
        ([0, 1, 2, 3], [0, 1, 3], 1, 0, 0, 0),
        ([0, 1, 3], [0, 1, 2, 3], 0, 1, 0, 0),
        ([0, 1, 1, 2], [0, 1, 2], 1, 0, 0, 0),
        ([0, 1, 2, 3], [1, 0, 2, 3], 0, 0, 1, 0),
        ([0, 1, 2, 3], [2, 1, 0, 3], 0, 0, 2, 1),
        ([0, 2, 4], [1, 3, 5], 3, 3, 0, 0),
        ([], [1, 3], 0, 2, 0, 0),
    ],
)
def test_one_difference(
    tmp_path: Path, a: list[int], b: list[int], only_a: int, only_b: int, late: int, late_of_source: int
) -> None:
    found = known(saved(tmp_path / "a.pcapng", a), saved(tmp_path / "b.pcapng", b))
    assert sum(o["pdus"] for o in found["a"]["only"]) == only_a and sum(o["pdus"] for o in found["b"]["only"]) == only_b
    assert found["order"]["late"] == late and found["order"]["late_of_source"] == late_of_source
    assert found["same"] == (not only_a and not only_b and not late_of_source)


def by_hand(a: list[int], b: list[int]) -> tuple[Counter[int], Counter[int], int, int]:
    """Only in A, only in B, late in all, late in their sources, for numbers of ITEMS."""
    ours, theirs = Counter(a), Counter(b)
    common = [n for n in dict.fromkeys(a) if n in theirs]
    place = {n: b.index(n) for n in common}
    late = sum(any(place[m] > place[n] for m in common[:k]) for k, n in enumerate(common))
    own = sum(any(place[m] > place[n] for m in common[:k] if m % 2 == n % 2) for k, n in enumerate(common))
    return ours - theirs, theirs - ours, late, own


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 11), max_size=30), st.lists(st.integers(0, 11), max_size=30), st.booleans())
def test_as_counted_by_hand(tmp_path_factory: pytest.TempPathFactory, a: list[int], b: list[int], disk: bool) -> None:
    """In memory, and in many parts on disk."""
    folder = tmp_path_factory.mktemp("compare")
    sides = []
    for letter, numbers in (("a", a), ("b", b)):
        half = len(numbers) // 2  # two files of one station are one capture
        for k, part in enumerate((numbers[:half], numbers[half:])):
            records = [Rec(START_NS + (k * 50 + i) * 1000, ITEMS[n]) for i, n in enumerate(part)]
            write(folder / letter / f"{k}.pcapng", records)
        files = [Capture(str(folder / letter / f"{k}.pcapng"), 0) for k in (1, 0)]
        sides.append(side(letter, files))
    found = compare(sides[0], sides[1], rows_in_memory=1 if disk else 4_000_000)
    only_a, only_b, late, own = by_hand(a, b)
    assert found.a.only.total() == only_a.total() and found.b.only.total() == only_b.total()
    assert (found.order.late, found.order.late_of_source) == (late, own)
    assert found.same == (not only_a and not only_b and not own)
    by_source = Counter({(Kind.DATA, 1 + n % 2): 0 for n in only_a})
    for n, count in only_a.items():
        by_source[Kind.DATA, 1 + n % 2] += count
    assert +found.a.only == +by_source
    for index in found.a.first_only:
        capture, number = found.a.place(index)
        assert number < 30 and capture.path.startswith(str(folder))


def test_the_first_differences_are_shown(tmp_path: Path) -> None:
    one, two = saved(tmp_path / "a.pcapng", list(range(12))), saved(tmp_path / "b.pcapng", [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11])
    text = run(one, two).stdout
    assert "only in A: 1 PDU  DATA 1 of 2" in text and f"only in A: {one}, frame 5" in text
    around = text.split("frame 5\n")[1].splitlines()
    assert [line.startswith(">") for line in around] == [False, False, True, False, False]
    assert [f"seq {n} " in line for n, line in zip(range(3, 8), around, strict=True)] == [True] * 5
    assert "frame 5" not in run(one, two, "--count", "0").stdout
    swapped = saved(tmp_path / "c.pcapng", [0, 1, 2, 5, 4, 3, 6, 7, 8, 9, 10, 11])
    text = run(one, swapped).stdout
    assert "first out of its source's order, in A" in text and "the same in B" in text


def test_two_stations_losses_and_times(tmp_path: Path) -> None:
    traffic = Traffic({1: Clock(), 2: Clock(3 * S)}, lambda *_: 50_000, loss=0.2, repeats=0.3, every_ns=5 * MS).run()
    paths = {k: str(write(tmp_path / f"s{k}.pcapng", r)) for k, r in traffic.records.items()}
    found = known(paths[1], paths[2])
    for side_name, station, other in (("a", 1, 2), ("b", 2, 1)):
        sent = [r.data for r in traffic.records[station] if r.direction == 2]
        got = [r.data for r in traffic.records[other] if r.direction == 1]
        lost = (Counter(sent) - Counter(got)).total()
        assert abs(found[side_name]["sent"] - len(sent)) <= 2 and abs(found[side_name]["lost"] - lost) <= 2
        assert 0.1 < found[side_name]["lost"] / found[side_name]["sent"] < 0.3
    assert abs(found["delays_ns"]["least"]) < 100 * MS, "aligned: not three seconds"
    raw = known(paths[1], paths[2], "--no-align")
    assert 2.9 * S < raw["delays_ns"]["least"] < 3.1 * S
    text = run(paths[1], paths[2]).output
    assert "lost from station 1 to 2: " in text and "B after A:" in text


def test_damage_counts(tmp_path: Path) -> None:
    good = frame(PDUS["one"])
    bad = good[:-1] + b"x"
    one = str(write(tmp_path / "a.pcapng", [Rec(1, good)]))
    two = str(write(tmp_path / "b.pcapng", [Rec(1, good), Rec(2, bad)]))
    assert known(one, two)["b"]["damaged"] == 1 and "1 damaged" in run(one, two).output
    (tmp_path / "cut.pcapng").write_bytes(pcapng([Rec(1, good), Rec(2, good)])[:-9])
    result = run(one, str(tmp_path / "cut.pcapng"))
    assert result.exit_code == 0 and "the last record is cut" in result.stderr
    (tmp_path / "worse.pcapng").write_bytes(pcapng([Rec(1, good)]) + b"\6\0\0\0\3\0\0\0" * 9)
    result = run(one, str(tmp_path / "worse.pcapng"))
    assert result.exit_code == 1 and "offset" in result.stderr and "only in A: 0" in result.stdout
    (tmp_path / "empty.pcap").write_bytes(b"")
    result = run(one, str(tmp_path / "empty.pcap"))
    assert result.exit_code == 1 and "the file is empty" in result.stderr


def test_wrong_usage(tmp_path: Path) -> None:
    one = saved(tmp_path / "s1.pcapng", [0])
    for wrong in ([], [one], [one, one, one], ["-", one], [one, one, "--ethertype", "x"], [one, one, "--count", "9"]):
        assert run(*wrong).exit_code == 2, wrong
    assert run(one, str(tmp_path / "none")).exit_code == 1
    saved(tmp_path / "s2.pcapng", [0])
    result = run(str(tmp_path), one)
    assert result.exit_code == 2 and "captures of stations 1, 2" in result.output
    assert "Exit status" in run("--help").output


@pytest.mark.lab
def test_a_real_capture() -> None:
    """Against a count by the plain decoder: multisets of PDUs."""
    files = captures()
    counts = {}
    for station in (1, 2):
        every = frames(Capture(str(files[station]), station), Selection(), Notes())
        counts[station] = Counter(f.pdu[: 48 + _size(f.pdu)] for f in every if not f.problem)
    found = known(str(files[1]), str(files[2]))
    assert found["both"] == (counts[1] & counts[2]).total()
    assert sum(o["pdus"] for o in found["a"]["only"]) == (counts[1] - counts[2]).total()
    assert sum(o["pdus"] for o in found["b"]["only"]) == (counts[2] - counts[1]).total()
    share = found["a"]["lost"] / found["a"]["sent"]
    assert 0 < share < 0.15, "5 % were lost while messages were sent"
    assert known(str(files[1]), str(files[1]))["same"]
    bus = captures("bus")
    assert known(str(bus[1]), str(bus[3]))["a"]["returned"] > 50, "a bus gives everybody its own frames back"


def _size(raw: bytes) -> int:
    return 4 * raw[7] * (2 if raw[6] & wire.Flag.PACK else 1) + int.from_bytes(raw[10:12], "big")


def test_memory_is_bounded_by_parts(tmp_path: Path) -> None:
    """Forty times the rows that may be in memory: the same result."""
    source = random.Random(9)
    raw = [frame(pdu(Kind.DATA, 1 + k % 3, k, [0, 0, 0], data(b"%d" % k)), 1 + k % 3) for k in range(4000)]
    kept = [k for k in range(4000) if source.random() > 0.01]
    one = [Capture(str(write(tmp_path / "a.pcapng", [Rec(START_NS + k, r) for k, r in enumerate(raw)])), 0)]
    two = [Capture(str(write(tmp_path / "b.pcapng", [Rec(START_NS + k, raw[k]) for k in kept])), 0)]
    found = compare(side("a", one), side("b", two), rows_in_memory=100)
    assert found.a.only.total() == 4000 - len(kept) and not found.b.only and not found.order.late
    assert found.a.first_only == sorted(set(range(4000)) - set(kept))[:5]
