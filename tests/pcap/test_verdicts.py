"""Verdicts on captures of a real lab: a lossy one in which a station dies and comes back, and is cut off, is right in everything;
each fault planted into it is found, and put down to the guarantee that it breaks."""

from __future__ import annotations

import atexit
import functools
import json
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
from typing import Any

import pytest
from zenjun.daemon.client import connect_sync
from zenjun.proto import wire
from zenjun.tools.lab import Lab, LabUnsupported
from zenjun.tools.pcap import tables
from zenjun.tools.pcap.judge import api as checking
from zenjun.tools.pcap.judge.evidence import dropped
from zenjun.tools.pcap.judge.judgement import OF_LINKS, TITLES, Judgement

from . import planted, recorded
from .planted import Pdu

STATIONS = 3
MESSAGES = 250
COMMAND = (sys.executable, "-c", "import sys; from zenjun.tools.cli import main; sys.exit(main())", "pcap", "check")


def _talk(lab: Lab, number: int, count: int) -> None:
    with connect_sync(str(lab.station(number).socket_path), name="verdicts", timeout=30, wait=30) as connection:
        group = connection.join("verdicts", "ordered")
        for k in range(count):
            group.send(b"%d from %d" % (k, number) * (1 + k % 9))
            if k % 50 == 49:
                group.send(b"L" * 5000, "ordered", timeout=30)
            if k % 10 == 0:
                time.sleep(0.002)


def _all_talk(lab: Lab, stations: range, count: int = MESSAGES) -> None:
    threads = [threading.Thread(target=_talk, args=(lab, number, count)) for number in stations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _folder() -> Path:
    """One that lasts as long as the run of the tests."""
    folder = Path(tempfile.mkdtemp(prefix="zenjun-verdicts-"))
    atexit.register(shutil.rmtree, folder, True)
    return folder


@functools.cache
def lossy() -> Path:
    """Captures with 5 % loss: station 3 is killed and comes back, is cut off and comes back."""
    folder = _folder()
    everybody, others = range(1, STATIONS + 1), range(1, STATIONS)
    try:
        # As few as possible are to be removed who have done nothing: the machine may be busy.
        options = {"cluster": {"fail_timeout_ms": 1500, "progress_timeout_ms": 10_000}}
        with Lab(STATIONS, options=options) as lab, lab.capture(folder):
            lab.start_daemons()
            lab.wait_open(60)
            lab.set_loss(0.05)
            _all_talk(lab, everybody)
            lab.station(STATIONS).signal(signal.SIGKILL)
            _all_talk(lab, others, 50)
            lab.wait_open(60, others)
            lab.station(STATIONS).start_daemon()
            lab.wait_open(60)
            _all_talk(lab, everybody)
            lab.partition([others, [STATIONS]])
            _all_talk(lab, others, 50)  # its last message waits until they go on without station 3
            lab.heal()
            lab.wait_open(60)
            _all_talk(lab, everybody, 50)
            time.sleep(0.5)
    except LabUnsupported as error:
        if "cannot be made here" in str(error):
            pytest.skip(str(error))
        raise
    return folder


def _judge(folder: Path, work: Path) -> Judgement:
    judgement, problems = checking.check([folder], work)
    assert not problems
    return judgement


@functools.cache
def _derived() -> Path:
    work = _folder()
    _judge(lossy(), work)
    return work


def _order(station: int) -> list[dict[str, Any]]:
    return planted.rows(_derived(), "order", station)


def _plant(tmp_path: Path, change: Callable[[Pdu], list[Pdu] | None], station: int = 2) -> Judgement:
    """Judge the captures with that of one station changed."""
    folder = tmp_path / "captures"
    folder.mkdir()
    for path in lossy().iterdir():
        if path.name == f"station-{station}.pcapng":
            assert planted.rewrite(path, folder / path.name, change), "nothing was planted"
        else:
            shutil.copy(path, folder)
    return _judge(folder, tmp_path / "work")


def _broken(judgement: Judgement) -> dict[str, list[str]]:
    return {n: [x.text for x in v.violations] for n, v in judgement.verdicts.items() if v.kept is False}


def test_a_lossy_run_that_is_right_keeps_every_promise(tmp_path: Path) -> None:
    judgement = _judge(lossy(), tmp_path)
    assert _broken(judgement) == {}
    assert judgement.kept is True
    assert all(v.compared > 0 for v in judgement.verdicts.values()), judgement.as_dict()
    assert judgement.verdicts["digests"].compared > 500
    assert judgement.notes == []
    views = {row["view"] for row in planted.rows(tmp_path, "views", 1)}
    assert len(views) >= 5  # opened, without 3, with it, without it, with it
    assert all(row["complete"] for s in (1, 2, 3) for row in planted.rows(tmp_path, "views", s))


def test_a_bus_with_loss_keeps_them_too(tmp_path: Path) -> None:
    judgement, _ = checking.check([next(iter(recorded.captures("bus").values())).parent], tmp_path)
    assert _broken(judgement) == {}
    assert all(v.compared > 0 for v in judgement.verdicts.values()), judgement.as_dict()


def test_another_order_at_one_station(tmp_path: Path) -> None:
    for a, b in zip(rows := _order(2), rows[1:], strict=False):
        later = next((r["clock"] for r in rows if r["src"] == a["src"] and r["clock"] > a["clock"]), 0)
        if a["src"] in (1, 3) and b["src"] not in (2, a["src"]) and a["view"] == b["view"] and later > b["clock"] + 1:
            break
    key = (a["src"], a["incarnation"], a["seq"])
    judgement = _plant(tmp_path, planted.with_clock(key, b["clock"] + 1))
    broken = _broken(judgement)
    assert "order" in broken and f"{key[0]}.{key[1]}:{key[2]}" in broken["order"][0]
    assert "digests" in broken  # what station 2 announced is the right order
    evidence = judgement.verdicts["order"].violations[0].evidence
    assert {w.station for w in evidence} == {1, 2}
    assert all(w.text and w.path for w in evidence), evidence


def _victim(kind: int = 1) -> dict[str, Any]:
    """A DATA PDU of station 1 in the middle of what station 2 has."""
    rows = [r for r in _order(2) if r["src"] == 1 and r["kind"] == kind and r["messages"]]
    return rows[len(rows) // 3]


def _is(row: dict[str, Any]) -> Callable[[Pdu], bool]:
    return lambda pdu: pdu.sequenced and pdu.key == (row["src"], row["incarnation"], row["seq"])


def _other_content(pdu: Pdu) -> Pdu:
    other = pdu.copy()
    other.bytes[-1] ^= 0x55
    return other


def test_a_pdu_lost_although_acknowledged(tmp_path: Path) -> None:
    row = _victim()
    assert all(dropped(str(p)) == 0 for p in lossy().iterdir())
    judgement = _plant(tmp_path, lambda pdu: [] if _is(row)(pdu) else None)
    broken = _broken(judgement)
    assert list(broken) == ["loss"]
    assert f"1.{row['incarnation']}:{row['seq']}" in broken["loss"][0]
    assert any("lacks 1 PDU" in note for note in judgement.notes)


def test_a_hole_of_a_capture_accuses_nobody(tmp_path: Path) -> None:
    """The same in a capture that does not say that it lost nothing."""
    row = _victim()
    folder = tmp_path / "captures"
    folder.mkdir()
    for path in lossy().iterdir():
        planted.rewrite(path, folder / path.name, lambda pdu: [] if _is(row)(pdu) else None)
        if path.name == "station-2.pcapng":
            data = (folder / path.name).read_bytes()
            blocks = list(planted._blocks(data))
            (folder / path.name).write_bytes(b"".join(b for b in blocks if struct.unpack_from("<I", b)[0] != 5))
        else:
            shutil.copy(path, folder)
    judgement = _judge(folder, tmp_path / "work")
    assert _broken(judgement) == {}
    assert judgement.verdicts["order"].compared > 1000
    assert any("station 2" in note and "lacks" in note for note in judgement.notes)


def test_one_number_with_two_contents(tmp_path: Path) -> None:
    row = _victim()
    judgement = _plant(tmp_path, lambda pdu: [pdu.copy(), _other_content(pdu)] if _is(row)(pdu) else None)
    assert "duplicates" in _broken(judgement)
    assert f"1.{row['incarnation']}:{row['seq']}" in _broken(judgement)["duplicates"][0]


def test_something_that_was_never_sent(tmp_path: Path) -> None:
    row = _victim()
    judgement = _plant(tmp_path, lambda pdu: [_other_content(pdu)] if _is(row)(pdu) else None)
    broken = _broken(judgement)
    assert "never sent" in broken["invention"][0]
    assert "digests" in broken


def test_a_sender_out_of_order(tmp_path: Path) -> None:
    row = _victim()
    before = max(r["clock"] for r in _order(2) if r["src"] == 1 and r["clock"] < row["clock"])
    judgement = _plant(tmp_path, planted.with_clock((1, row["incarnation"], row["seq"]), before))
    assert "sender_order" in _broken(judgement)


def test_an_effect_before_its_cause(tmp_path: Path) -> None:
    rows = _order(2)
    place = {(r["src"], r["incarnation"], r["seq"]): r for r in rows}
    lives = {(r["src"], r["view"]): r["incarnation"] for r in rows}
    for pdu in planted.pdus(lossy() / "station-2.pcapng"):
        row = place.get(pdu.key) if pdu.sequenced else None
        if row is None or row["src"] != 1 or row["kind"] != 1:
            continue
        cause = place.get((3, lives.get((3, row["view"]), 0), pdu.ack(3) - 1))
        before = max((r["clock"] for r in rows if r["src"] == 1 and r["clock"] < row["clock"]), default=0)
        begun = before > row["view"] << 32
        if begun and cause is not None and cause["view"] == row["view"] and before + 1 < cause["clock"] < row["clock"]:
            break
    else:
        pytest.fail("no PDU of station 1 whose cause stands behind the one before it")
    judgement = _plant(tmp_path, planted.with_clock(pdu.key, before + 1))
    assert "causality" in _broken(judgement)


def test_a_view_at_another_place(tmp_path: Path) -> None:
    view = next(v for v in planted.rows(_derived(), "views", 2) if v["place_src"] in (1, 2))
    vote = next(r for r in _order(2) if (r["clock"], r["src"]) == (view["place_clock"], view["place_src"]))
    key = (vote["src"], vote["incarnation"], vote["seq"])
    judgement = _plant(tmp_path, planted.with_clock(key, vote["clock"] + 1), 3 - vote["src"])
    assert "views" in _broken(judgement)
    assert "another place" in _broken(judgement)["views"][0]


def test_a_view_with_other_members(tmp_path: Path) -> None:
    """Station 2 lets in another life of station 3 than station 1 does."""
    view = next(v for v in planted.rows(_derived(), "views", 2) if v["joined"] == 4)
    life, other = view["incarnations"][2], view["incarnations"][2] + 7
    hashes = {
        v["view_hash"]: wire.view_hash(v["view"], [other if k == 2 and x == life else x for k, x in enumerate(v["incarnations"])])
        for v in planted.rows(_derived(), "views", 2)
    }
    at, form = planted.confirm("view")

    def change(pdu: Pdu) -> list[Pdu]:
        if pdu["src"] == 3 and pdu["incarnation"] == life:
            pdu["incarnation"] = other
        body = pdu.payload_at
        if pdu["kind"] == wire.Kind.CONFIRM:
            old = form.unpack_from(pdu.bytes, body + at)[0]
            form.pack_into(pdu.bytes, body + at, hashes.get(old, old))
        if pdu["kind"] == wire.Kind.RCV_ACK:
            pdu.bytes[body + 25 + 1 : body + 25 + 5] = other.to_bytes(4, "big")
        return [pdu]

    judgement = _plant(tmp_path, change)
    assert "views" in _broken(judgement)


def test_another_digest(tmp_path: Path) -> None:
    at, form = planted.confirm("digest")
    position, number = planted.confirm("position")
    done: list[int] = []

    def change(pdu: Pdu) -> list[Pdu] | None:
        body = pdu.payload_at
        if done or pdu["kind"] != wire.Kind.CONFIRM or pdu["src"] != 2 or pdu.direction != planted.OUT:
            return None
        if number.unpack_from(pdu.bytes, body + position)[0] < 100:
            return None
        done.append(1)
        form.pack_into(pdu.bytes, body + at, form.unpack_from(pdu.bytes, body + at)[0] ^ 1)
        return [pdu]

    judgement = _plant(tmp_path, change)
    assert list(_broken(judgement)) == ["digests"]
    assert judgement.verdicts["digests"].violations[0].evidence[0].text


def test_nothing_to_judge(tmp_path: Path) -> None:
    out = subprocess.run(
        [*COMMAND, "--master", "none", str(_alien(tmp_path))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.returncode == 3, out
    assert "nothing to judge" in out.stderr
    assert "kept" not in out.stdout.replace("not judged", "")


def _alien(tmp_path: Path) -> Path:
    """A capture of a station with other people's frames only."""
    from zenjun.tools.lab.capture import PcapngWriter

    path = tmp_path / "s1.pcapng"
    with path.open("wb") as file:
        writer = PcapngWriter(file, "test")
        writer.frame(writer.interface("eth0", ""), 1, b"\x02" * 12 + b"\x08\x00" + bytes(50), 64, 1)
    return path


def test_the_command_says_it_all(tmp_path: Path) -> None:
    """From captures and, the same, from tables; exit codes; JSON."""
    good = subprocess.run(
        [*COMMAND, str(lossy()), "--work", str(tmp_path / "t"), "--json"], capture_output=True, text=True, check=False
    )
    assert good.returncode == 0, good
    told = json.loads(good.stdout)
    assert told["kept"] is True and set(told["verdicts"]) == set(TITLES) - OF_LINKS and told["stations"] == [1, 2, 3]
    # Tables that are there already would be judged with those of other captures.
    again = [*COMMAND, str(lossy()), "--work", str(tmp_path / "t"), "--master", "none"]
    refused = subprocess.run(again, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and not refused.stdout
    assert f"--work {tmp_path / 't'}: is not empty; choose a new folder" in refused.stderr
    row = _victim()
    folder = tmp_path / "captures"
    for path in lossy().iterdir():
        there = path.name == "station-2.pcapng"
        planted.rewrite(path, folder / path.name, lambda p, there=there: [] if there and _is(row)(p) else None)  # type: ignore[misc]
    bad = subprocess.run([*COMMAND, str(folder)], capture_output=True, text=True, check=False)
    assert bad.returncode == 1, bad
    assert "BROKEN" in bad.stdout and f"1.{row['incarnation']}:{row['seq']}" in bad.stdout
    assert "station-2.pcapng, frame" in bad.stdout


def test_spark_gives_the_same(tmp_path: Path, session: Any) -> None:
    judgement, problems = checking.check([lossy()], tmp_path, session)
    assert not problems
    here = _judge(lossy(), tmp_path / "here")
    assert judgement.as_dict() == here.as_dict()
    lives = tables.message_lives(session.spark, tmp_path)
    found = lives.groupBy().agg({"*": "count", "lost": "sum", "retransmissions": "sum"}).collect()[0].asDict()
    rows = sum(len(planted.rows(tmp_path, "messages", s)) for s in (1, 2, 3))
    assert found["count(1)"] == rows > 1000
    assert found["sum(lost)"] > 0 and found["sum(retransmissions)"] > 0
    own = lives.where("station = src AND sent_ns IS NULL").count()
    assert own == 0
