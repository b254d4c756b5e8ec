"""Verdicts are fair: clusters that are right must not be accused, whatever captures lack; what is broken must be told."""

from __future__ import annotations

import atexit
import functools
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from zenjun.tools.bench.judge_cost import generate as verdict_tables
from zenjun.tools.pcap.judge import api as checking
from zenjun.tools.pcap.judge import blocks, court, reader
from zenjun.tools.pcap.judge.judgement import Judgement
from zenjun.tools.pcap.tables import schema
from zenjun.tools.pcap.tables.replay import replay

from . import ideal, planted, simulated


def lost_nothing(path: Path, received: int = 1) -> Path:
    """Let a pcapng file say so, as the lab's do."""
    options = struct.pack("=HHQHHQHH", 4, 8, received, 5, 8, 0, 0, 0)
    size = 24 + len(options)
    with path.open("ab") as file:
        file.write(struct.pack("=IIIII", 5, size, 0, 0, 0) + options + struct.pack("=I", size))
    return path


def judged(folder: Path, work: Path) -> Judgement:
    judgement, problems = checking.check([folder], work)
    assert not problems
    return judgement


def broken(judgement: Judgement) -> dict[str, list[str]]:
    return {n: [x.text for x in v.violations] for n, v in judgement.verdicts.items() if v.kept is False}


# ---- clusters that are right


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(18, id="the last word of who was removed"),
        pytest.param(41, id="let in where it would have opened"),
        pytest.param(128, id="the last word of who was removed, of three"),
    ],
)
def test_a_simulated_cluster_is_right(seed: int, tmp_path: Path) -> None:
    for path in simulated.capture(simulated.simulation(seed, first_seq=0), tmp_path / "captures").values():
        lost_nothing(path)
    judgement = judged(tmp_path / "captures", tmp_path / "work")
    assert broken(judgement) == {}
    assert judgement.kept is True


@functools.cache
def _long() -> dict[int, Path]:
    folder = Path(tempfile.mkdtemp(prefix="zenjun-attack-"))
    atexit.register(shutil.rmtree, folder, True)
    return simulated.capture(simulated.simulation(6, first_seq=0), folder)


Blocks = list[bytes]


def _of(path: Path) -> Blocks:
    return list(planted._blocks(path.read_bytes()))


def _with(tmp_path: Path, change: Callable[[Blocks], list[Blocks]], station: int = 1) -> Judgement:
    """Judge the captures with that of one station changed into these; each says that it lost nothing."""
    folder = tmp_path / "captures"
    folder.mkdir()
    for number, path in _long().items():
        for k, packed in enumerate(change(_of(path)) if number == station else [_of(path)]):
            there = folder / f"station-{number}.{k}.pcapng"
            there.write_bytes(b"".join(packed))
            lost_nothing(there)
    return judged(folder, tmp_path / "work")


def _cut(block: bytes, snap: int) -> bytes:
    captured = struct.unpack_from("<I", block, 20)[0] if struct.unpack_from("<I", block)[0] == 6 else 0
    if captured <= snap:
        return block
    options = block[28 + captured + -captured % 4 : -4]
    size = 32 + snap + -snap % 4 + len(options)
    kept = block[28 : 28 + snap] + bytes(-snap % 4)
    head = struct.pack("<II", 6, size) + block[8:20] + struct.pack("<I", snap) + block[24:28]
    return head + kept + options + struct.pack("<I", size)


def _later(block: bytes, by_ns: int) -> bytes:
    if struct.unpack_from("<I", block)[0] != 6:
        return block
    high, low = struct.unpack_from("<II", block, 12)
    time_ns = (high << 32 | low) + by_ns
    return block[:12] + struct.pack("<II", time_ns >> 32, time_ns & 0xFFFFFFFF) + block[20:]


def test_cut_frames_are_not_lost_ones(tmp_path: Path) -> None:
    """A capture with a short snap length has dropped nothing, and lacks PDUs all the same."""
    judgement = _with(tmp_path, lambda blocks: [[_cut(b, 300) for b in blocks]])
    assert broken(judgement) == {}
    assert any("lacks" in note for note in judgement.notes)
    files = pq.read_table(tmp_path / "work" / "files").to_pylist()
    assert [f["station"] for f in files if f["cut"]] == [1]


def test_a_pause_between_two_captures_is_no_loss(tmp_path: Path) -> None:
    def two(blocks: Blocks) -> list[Blocks]:
        n = len(blocks)
        return [blocks[: n // 3], blocks[:2] + blocks[n // 2 :]]

    assert broken(_with(tmp_path, two)) == {}


def test_a_filtered_capture_has_lost_nothing_and_lacks_much(tmp_path: Path) -> None:
    """Wireshark's tools copy the statistics of the capture that they take frames from."""
    path = _long()[1]
    thinned = tmp_path / "station-1.pcapng"
    thinned.write_bytes(b"".join(b for k, b in enumerate(_of(path)) if k < 2 or k % 40))
    lost_nothing(thinned, received=len(_of(path)) - 2)
    for number in set(_long()) - {1}:
        shutil.copy(_long()[number], tmp_path)
    assert broken(judged(tmp_path, tmp_path / "work")) == {}


def test_a_clock_that_is_ahead_proves_no_invention(tmp_path: Path) -> None:
    """The capture of station 1 ends early, and its clock is five seconds ahead of the others."""
    judgement = _with(tmp_path, lambda blocks: [[_later(b, 5 * 10**9) for b in blocks[: len(blocks) // 2]]])
    assert broken(judgement) == {}


def test_another_cluster_on_the_segment(tmp_path: Path) -> None:
    """Its frame is the first one in the capture; the station's own cluster is judged all the same."""

    def foreign(blocks: Blocks) -> list[Blocks]:
        first = next(s for b in blocks if (s := planted._split(b)) is not None and s[0].direction == planted.IN)
        block = next(b for b in blocks if planted._split(b) is not None)
        pdu = first[0].copy()
        pdu["cluster"] ^= 0x1234
        pdu.seal()
        return [[*blocks[:2], planted._join(block, pdu, first[2]), *blocks[2:]]]

    judgement = _with(tmp_path, foreign)
    assert broken(judgement) == {}
    rows = [len(planted.rows(tmp_path / "work", "order", s)) for s in (1, 2, 3)]
    assert min(rows) > 500


# ---- tables that are wrong in many places


def _change(folder: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """The order of station 3, changed."""
    path = folder / "order" / "station=3" / "part-0.parquet"
    table = change(pq.read_table(path, partitioning=None))
    pq.write_table(table, path, row_group_size=4096)


def _neighbours_swapped(table: pa.Table) -> pa.Table:
    order = [k ^ 1 for k in range(table.num_rows // 2 * 2)]
    for name in ("src", "seq", "payload_crc", "head_crc", "incarnation"):
        k = table.schema.get_field_index(name)
        table = table.set_column(k, table.schema.field(k), table[name].take(pa.array([*order, *range(len(order), len(table))])))
    return table


def test_a_station_that_is_wrong_everywhere_takes_no_longer(tmp_path: Path) -> None:
    """What is not shown is not looked for: this once took 36 seconds."""
    verdict_tables(tmp_path, 3, 20_000)
    _change(tmp_path, _neighbours_swapped)
    begun = time.process_time()
    judgement = court.judge(tmp_path, {})
    assert time.process_time() - begun < 10
    order = judgement.verdicts["order"]
    assert order.kept is False and len(order.violations) + order.more > 15_000
    assert order.violations[0].evidence


def test_a_station_that_lacks_a_source_takes_no_longer(tmp_path: Path) -> None:
    verdict_tables(tmp_path, 3, 20_000)
    _change(tmp_path, lambda t: t.filter(pc.or_(pc.not_equal(t["src"], 1), pc.less(t["position"], 5000))))
    begun = time.process_time()
    judgement = court.judge(tmp_path, {})
    assert time.process_time() - begun < 10
    loss = judgement.verdicts["loss"]
    assert len(loss.violations) + loss.more > 4000


def _riddled(folder: Path, rows: int, every: int) -> None:
    """Station 3's capture lacks a PDU here and there, and its replay knows it."""
    verdict_tables(folder, 3, rows)
    names = schema.arrow("findings")
    found: list[dict[str, int]] = []

    def thin(table: pa.Table) -> pa.Table:
        lost = table.filter(pa.array([k % every == 0 for k in range(table.num_rows)]))
        found.extend(
            dict.fromkeys(names.names, 0)
            | {"what": 1, "src": r["src"], "incarnation": r["incarnation"], "seq": r["seq"], "count": 1, "file": 2}
            for r in lost.to_pylist()
        )
        return table.filter(pa.array([k % every != 0 for k in range(table.num_rows)]))

    _change(folder, thin)
    path = folder / "findings" / "station=3" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(found, schema=names), path)


def test_many_holes_hide_no_violation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that differ only by holes of a capture do not use up what is looked into, nor do they accuse."""
    monkeypatch.setattr(court, "LOOK_MAX", 2)
    monkeypatch.setattr(reader, "FINDINGS_MAX", 5)
    _riddled(tmp_path, 40_000, 500)
    right = court.judge(tmp_path, {})
    assert broken(right) == {} and right.verdicts["loss"].kept is True
    assert any("lacks 80 PDUs" in note for note in right.notes)
    _change(tmp_path, lambda t: t.filter(pc.not_equal(t["position"], 39_800)))
    assert list(broken(court.judge(tmp_path, {}))) == ["loss"]


def test_what_was_not_looked_into_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BAD_MAX", 0)
    verdict_tables(tmp_path, 3, 40_000, swap_at=30_000)
    judgement = court.judge(tmp_path, {})
    assert judgement.verdicts["order"].kept is None and judgement.verdicts["loss"].kept is None
    assert any("not looked into" in note for note in judgement.notes)


def test_more_holes_than_are_kept_in_mind_accuse_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "HOLES_MAX", 10)
    _riddled(tmp_path, 10_000, 500)
    assert broken(court.judge(tmp_path, {})) == {}


# ---- long holes


@pytest.mark.parametrize("silent", [1, 2], ids=["others go on", "it goes on itself"])
def test_a_hole_longer_than_any_window(silent: int, tmp_path: Path) -> None:
    """A capture that was stopped for 35,000 PDUs: what lies behind is judged again, what the hole hides accuses nobody."""
    frames = list(ideal.run(36_000, senders=(1,), confirm_every=100))
    ideal.captures(tmp_path / "captures", frames, lambda station, k: station != silent or not 500 < k < 35_500)
    judgement = judged(tmp_path / "captures", tmp_path / "work")
    assert broken(judgement) == {}
    assert any("lacks 3" in note for note in judgement.notes)
    behind = [r for r in planted.rows(tmp_path / "work", "order", silent) if r["seq"] > 35_300]
    assert len(behind) > 300
    assert judgement.verdicts["order"].kept is True


def test_what_is_broken_behind_a_long_hole_is_seen(tmp_path: Path) -> None:
    frames = list(ideal.run(36_000, senders=(1,), confirm_every=100))
    paths = ideal.captures(tmp_path / "all", frames, lambda station, k: station != 2 or not 500 < k < 35_000)

    def change(pdu: planted.Pdu) -> list[planted.Pdu] | None:
        if not pdu.sequenced or pdu["seq"] != 35_900:
            return None
        pdu.bytes[-1] ^= 1
        return [pdu]

    (tmp_path / "captures").mkdir()
    for number, path in paths.items():
        planted.rewrite(path, tmp_path / "captures" / path.name, change if number == 2 else lambda _: None)
    assert {"duplicates", "invention"} & set(broken(judged(tmp_path / "captures", tmp_path / "work")))


# ---- Ctrl-C while things begin


def test_ctrl_c_at_any_moment_of_the_start_leaves_nothing(tmp_path: Path) -> None:
    ideal.captures(tmp_path / "captures", list(ideal.run(300)))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    program = "import sys; print('begun', flush=True); from zenjun.tools.cli import main; sys.exit(main())"
    line = [sys.executable, "-c", program, "pcap", "check"]
    for k in range(12):
        process = subprocess.Popen(
            [*line, str(tmp_path / "captures")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"TMPDIR": str(temporary)},
        )
        # Before, it is the interpreter's start that is interrupted, which Python itself takes for a fatal error.
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        time.sleep(0.04 * k)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=240)
        assert process.returncode in (130, -signal.SIGINT)  # the latter: before the command has taken it over
    assert list(temporary.iterdir()) == []


def test_a_session_that_is_still_importing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end must not wait for a module that the thread is importing: Ctrl-C may have left the module's lock behind."""
    from zenjun.tools.pcap.spark import session as sessions

    stuck = threading.Event()
    monkeypatch.setattr(sessions.Session, "_connect", lambda _self: stuck.wait(60))
    monkeypatch.setattr(sessions, "_END_S", 0.2)
    asked: list[str] = []
    monkeypatch.setattr(sessions, "_hang_up", lambda _spark: asked.append("hang up"))
    monkeypatch.setattr(sessions, "_forget", lambda _spark: asked.append("forget"))
    session = sessions.Session("local[1]")
    while session._process is None:
        time.sleep(0.01)
    session.close()
    assert session._process.poll() is not None and not session.folder.exists()
    assert asked == []
    stuck.set()


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Arrow's error has neither number nor file; in a task of Spark it was a page long."""
    from zenjun.tools import cli
    from zenjun.tools.pcap.tables import derived
    from zenjun.tools.pcap.tables import replay as replaying

    def full(*_: object, **__: object) -> None:
        raise OSError("Error writing bytes to file. Detail: [errno 28] No space left on device")

    ideal.captures(tmp_path / "captures", list(ideal.run(30)))
    monkeypatch.setattr(replaying, "replay", full)
    found = derived._or_error((1, (), 0), "there", 0x88B5)
    assert isinstance(found, OSError) and found.filename == "there"
    for words in (["check", "--work"], ["ingest", "--out"]):
        code = cli.run(["pcap", words[0], str(tmp_path / "captures"), "--master", "none", words[1], str(tmp_path / words[0])])
        last = capsys.readouterr().err.splitlines()[-1]
        assert (code, last) == (1, f"zenjun pcap {words[0]}: {tmp_path / words[0]}: no space left on the disk")


def _nonsense(seed: int) -> Callable[[planted.Pdu], list[planted.Pdu] | None]:
    """Now and then a PDU with a right checksum and a field that cannot be."""
    chance = random.Random(seed)

    def change(pdu: planted.Pdu) -> list[planted.Pdu] | None:
        if chance.random() > 0.03:
            return None
        name = chance.choice(("seq", "clock", "incarnation", "instance", "src"))
        near = pdu[name] + chance.randrange(-2, 3)
        far = chance.getrandbits(64)
        value = chance.randrange(1, pdu["stations"] + 1) if name == "src" else near if chance.random() < 0.5 else far
        pdu[name] = max(0, value) & ((1 << (64 if name == "clock" else 32 if name != "src" else 8)) - 1)
        return [pdu]

    return change


def test_nonsense_with_right_checksums_ends(tmp_path: Path) -> None:
    """A replay of such a capture once did not end: a member whose life nobody had let in."""
    paths = simulated.capture(simulated.simulation(128, first_seq=0), tmp_path / "captures")
    for seed in range(30):
        for number, path in paths.items():
            planted.rewrite(path, tmp_path / "f.pcapng", _nonsense(seed))
            begun = time.process_time()
            replay([(0, str(tmp_path / "f.pcapng"))], number, tmp_path / "out")
            assert time.process_time() - begun < 20
