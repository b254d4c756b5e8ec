"""The counts of the evaluation, on captures with known answers; then a small run of the real thing, and the page it makes."""

from __future__ import annotations

import math
import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from zenjun.proto import wire
from zenjun.proto.wire import Kind
from zenjun.tools.cli.evaluate import PAGE
from zenjun.tools.evaluate import counts, exchanges, experiments, results, study
from zenjun.tools.evaluate.counts import Exchange
from zenjun.tools.evaluate.experiments import Phase, Run
from zenjun.tools.pcap import tables
from zenjun.tools.pcap.frames import files
from zenjun.tools.pcap.report.summary import Tables
from zenjun.tools.pcap.spark.session import Session
from zenjun.tools.pcap.tables import ingest, schema

from ..timing import in_time
from . import built
from .traffic import CLUSTER, confirm, data, pdu

START = 1_800_000_000 * 10**9
_NAK = wire.NAK.struct.pack(1, 1, 0, 1) + wire.RANGE.struct.pack(5, 1)
Said = tuple[int, Sequence[int], Sequence[int]]
"""Station, and of the PDUs it speaks of: source's number in its A, in its P."""


def _lone(number: int, n: int, answers: Sequence[Said]) -> list[bytes]:
    """One DATA of station 1 with this number, and CONFIRMs about it."""
    vector = [number] + [1] * (n - 1)
    out = [pdu(Kind.DATA, 1, number, vector, data(b"x"), clock=number)]
    for k, (station, a, p) in enumerate(answers):
        raw = pdu(Kind.CONFIRM, station, 1, [*a, *[1] * (n - 1)], confirm(k), pack=[*p, *[1] * (n - 1)], clock=number)
        out.append(raw)
    return out


def _onlooker(path: Path, lone: Sequence[Sequence[bytes]]) -> Path:
    pdus = [raw for one in lone for raw in one]
    return built.write(path, [built.Rec(START + k * 1_000_000, built.frame(raw, raw[8]), 1) for k, raw in enumerate(pdus)])


def _count(spark: Any, path: Path, folder: Path) -> list[Exchange]:
    ingest.ingest(files.gather([path], stations_given={str(path): 1}), folder)
    return counts.exchanges(spark, schema.read(spark, folder, "pdus"))


def test_lone_messages_are_counted(spark: Any, tmp_path: Path) -> None:
    """n = 3: all confirm twice (best case), the last says both at once, one never says that everybody knows, one knows too early,
    something else than a CONFIRM is there."""
    best = [(2, [2], [1]), (3, [2], [1]), (1, [2], [2]), (2, [2], [2]), (3, [2], [2])]
    serial = [(2, [3], [2]), (3, [3], [3]), (1, [3], [3]), (2, [3], [3])]
    never = [(2, [4], [3]), (3, [4], [4]), (1, [4], [4])]
    early = [(2, [5], [5]), (3, [5], [5]), (1, [5], [5])]
    lone = [_lone(k, 3, said) for k, said in enumerate((best, serial, never, early), 1)]
    lone.append(_lone(5, 3, [(2, [6], [5]), (3, [6], [6]), (1, [6], [6]), (2, [6], [6])]))
    lone[-1].insert(1, pdu(Kind.NAK, 3, 1, [5, 1, 1], _NAK, pack=[5, 1, 1], target=1))
    found = _count(spark, _onlooker(tmp_path / "station-4.pcapng", lone), tmp_path / "tables")
    assert [(e.cluster, e.number, e.pdus, e.rounds, e.complete) for e in found] == [
        (CLUSTER, 1, 6, 3, True), (CLUSTER, 2, 5, 3, True), (CLUSTER, 3, 4, 3, False), (CLUSTER, 4, 4, 3, False),
        (CLUSTER, 5, 6, 3, False),
    ]  # fmt: skip
    problems = [text for text in results.not_as_claimed({3: (found, [])}) if "acknowledged" in text]
    assert problems == [f"n = 3: message {k} is not acknowledged by all" for k in (3, 4, 5)]


def test_both_counts_agree(spark: Any, tmp_path: Path) -> None:
    """Random exchanges in which everybody knows in the end: counted in Spark and plainly."""
    rng = random.Random(7)
    for n in (2, 3, 5):
        lone = []
        for number in range(1, 16):
            have = [1]
            answers: list[Said] = []
            for station in rng.sample(range(2, n + 1), n - 1):
                have.append(station)
                last = len(have) == n
                answers.append((station, [number + 1], [number + 1 if last else number]))
            waiting = [s for s in range(1, n + 1) if s != have[-1]]
            for station in rng.sample(waiting, len(waiting)):
                answers += [(station, [number + 1], [number + 1])] * rng.randint(1, 2)
            lone.append(_lone(number, n, answers))
        path = _onlooker(tmp_path / f"n{n}" / "station-9.pcapng", lone)
        found = _count(spark, path, tmp_path / f"tables-{n}")
        plain = [exchanges.judge(one) for one in exchanges.split(exchanges.read(path, CLUSTER))]
        assert [(e.pdus, e.rounds) for e in found] == [(e.pdus, e.rounds) for e in plain]
        assert all(e.complete for e in found) and len(found) == 15


def test_what_does_not_agree_with_the_paper_is_told() -> None:
    def one(pdus: int, rounds: int = 3, complete: bool = True) -> Exchange:
        return Exchange(1, 1, pdus, rounds, complete)

    assert results.not_as_claimed({4: ([one(7), one(8)], [one(13)]), 2: ([one(3)], [one(3)])}) == []
    wrong: list[results.Exchanges] = [
        {4: ([one(9)], [])}, {4: ([one(6)], [])}, {4: ([one(8, 4)], [])}, {4: ([], [one(12)])}, {2: ([one(4)], [])},
        {4: ([one(8, 3, False)], [])},
    ]  # fmt: skip
    for counted in wrong:
        assert len(results.not_as_claimed(counted)) == 1


def test_costs_of_a_phase(spark: Any, tmp_path: Path) -> None:
    """Two stations. Station 1 sends 10 DATA, of which 2 are lost and sent again, in the first phase; 5 in the second."""
    ms = 1_000_000
    records: dict[int, list[built.Rec]] = {1: [], 2: []}

    def send(at: int, by: int, raw: bytes, arrives: bool = True) -> None:
        records[by].append(built.Rec(START + at, built.frame(raw, by), 2))
        if arrives:
            records[3 - by].append(built.Rec(START + at + 1000, built.frame(raw, by), 1))

    sizes = []
    for k in range(15):
        at = (20 + 10 * k if k < 10 else 500 + 10 * k) * ms
        raw = pdu(Kind.DATA, 1, 1 + k, [1 + k, 1], data(b"x" * 100), clock=10 + k)
        send(at, 1, raw, arrives=k not in (3, 4))
        if k in (3, 4):
            send(at + ms, 1, raw)
        answer = pdu(Kind.CONFIRM, 2, 1, [2 + k, 1], confirm(k), pack=[1 + k, 1], clock=20 + k)
        send(at + 2 * ms, 2, answer)
        sizes.append((len(built.frame(raw)) * (2 if k in (3, 4) else 1)) + len(built.frame(answer)))
    for station, rows in records.items():
        built.write(tmp_path / "captures" / f"s{station}.pcapng", sorted(rows))
    captures = files.gather([tmp_path / "captures"])
    ingest.ingest(captures, tmp_path / "tables")
    tables.derive(captures, tmp_path / "tables")
    phases = (Phase(START, START + 400 * ms, 100.0, 0.2), Phase(START + 401 * ms, START + 900 * ms))
    run = Run("built", tmp_path / "captures", 2, 16, phases)
    first, second = counts.costs(spark, [(run, tmp_path / "tables")])
    assert (first.data, first.repeated, first.confirms, first.other) == (10, 2, 10, 0)
    assert (second.data, second.repeated, second.confirms, second.other) == (5, 0, 5, 0)
    assert (first.wire_bytes, second.wire_bytes) == (sum(sizes[:10]), sum(sizes[10:]))
    assert (first.expected, first.lost) == (22, 2) and (second.expected, second.lost) == (10, 0)
    assert first.control_per_data == 1.0 and first.phase is phases[0]
    # The same twice: runs do not run into each other.
    again = counts.costs(spark, [(run, tmp_path / "tables"), (run, tmp_path / "tables")])
    assert [(c.data, c.lost, c.wire_bytes) for c in again] == [(c.data, c.lost, c.wire_bytes) for c in (first, second)] * 2


@pytest.fixture(scope="module")
def small(session: Session, tmp_path_factory: pytest.TempPathFactory) -> tuple[study.Recorded, study.Study]:
    """Labs of three stations, each run short."""
    folder = tmp_path_factory.mktemp("evaluation")
    recorded = study.Recorded()
    for each in (False, True):
        recorded.exchanges[3, each] = experiments.exchanges(3, each, 3, folder)
    recorded.loads.append(experiments.loads(3, (study.LATENCY_RATE,), 0.5, 600, folder))
    recorded.losses.append(experiments.losses(3, (0.0, 0.1), 200.0, 0.8, folder))
    recorded.windows.append(experiments.window(3, 8, 600, folder))
    counted = study.count(recorded, folder / "tables", session, lambda _: None)
    for k in range(3):
        # Behind on a busy machine, stations send several messages in a PDU.
        recorded.stops = [run := experiments.stop_and_recovery(3, 300.0, folder / f"attempt-{k}")]
        made = Tables(session.spark, study.tables_of(run, folder / f"counted-{k}"))
        counted.stops = [counts.stop(made, run, run.stations)]
        if _goes_on(counted.stops[0]):
            break
    return recorded, counted


def _goes_on(stop: counts.Stop) -> bool:
    """Data goes on while a removal is agreed, which takes longer than fail_timeout."""
    return stop.usual > 1 and stop.without > 1 and stop.agreeing > 0.5 and stop.safe_ms > 390 and stop.longest_ms < stop.safe_ms


@pytest.mark.lab
@pytest.mark.slow
def test_a_small_run(small: tuple[study.Recorded, study.Study]) -> None:
    _, counted = small
    assert counted.problems == []
    merged, each = counted.exchanges[3]
    assert len(merged) == len(each) == 3 and {e.pdus for e in each} == {7} and {e.rounds for e in merged} == {3}
    steady, flood = counted.loads
    # What was offered, and one more of each station at the end; groups' own messages are not programs'. Whoever offers them may
    # be late on a busy machine, and offers fewer.
    assert 50 <= steady.messages <= 103 and flood.messages == 603
    assert steady.data <= steady.messages and steady.control_per_data > 0 and steady.lost == 0
    assert all(0 < steady.latency_ms(level, 0.5) <= steady.latency_ms(level, 0.99) for level in ("ordered", "preack", "acked"))  # type: ignore[operator]
    assert steady.latency_ms("ordered", 0.5) <= steady.latency_ms("preack", 0.5) <= steady.latency_ms("acked", 0.5)  # type: ignore[operator]
    assert flood.kept_ack >= flood.kept > 0
    none, tenth = counted.losses
    assert none.lost == 0 and tenth.repeated > 0
    # Who gets a confirmation late repeats its message, though none was lost.
    in_time(none.repeated <= tenth.repeated, f"repeated {none.repeated} and {tenth.repeated}")
    # The more messages share a PDU, the fewer are expected and the wider they scatter: five standard deviations.
    assert tenth.expected > 50 and tenth.other > 0
    assert abs(tenth.lost - 0.1 * tenth.expected) < 5 * math.sqrt(0.1 * 0.9 * tenth.expected), (tenth.lost, tenth.expected)
    assert counted.windows[0].run.window == 8
    (stop,) = counted.stops
    assert set(stop.data) == {1, 2} and all(points[0][0] < 0 < points[-1][0] for points in stop.data.values())
    told = " | ".join(words for _, words in stop.events)
    for words in ("last frame of station 3", "first STOP", "without station 3", "first RCV of station 3", "with station 3 again"):
        assert words in told
    assert {"A A AS", "A A S", "A A A"} <= {states for *_, states in stop.bitmaps}
    in_time(_goes_on(stop), f"{stop.usual} {stop.without} {stop.agreeing} {stop.safe_ms} {stop.longest_ms}")


@pytest.mark.lab
@pytest.mark.slow
def test_the_page_is_written(small: tuple[study.Recorded, study.Study], tmp_path: Path) -> None:
    _, counted = small
    page = tmp_path / "evaluation.md"
    page.write_text(PAGE.read_text())
    study.write(counted, page)
    text = page.read_text()
    assert study.blocks(counted)["to"] in text and "| 3 | 6 |" in text
    drawn = sorted(p.name for p in (tmp_path / "evaluation").iterdir())
    assert drawn == sorted(Path(name).name for name in re.findall(r"\]\((evaluation/[a-z]+\.svg)\)", text))
    before = [(tmp_path / "evaluation" / name).read_text() for name in drawn]
    for one in before:
        ET.fromstring(one)
    study.write(counted, page)
    assert page.read_text() == text and [(tmp_path / "evaluation" / name).read_text() for name in drawn] == before
    with pytest.raises(ValueError, match="no place for: stop"):
        results.refresh(re.sub("made by zenjun evaluate: stop", "x", text), study.blocks(counted))


def test_the_documented_page_has_numbers_and_plots() -> None:
    text = PAGE.read_text()
    for name in ("to", "load", "loss", "buffers", "stop"):
        block = re.search(rf"<!-- made by zenjun evaluate: {name} -->\n(.*?)<!-- end -->", text, re.DOTALL)
        assert block is not None and block[1].count("|") > 10, f"zenjun evaluate all --write has not filled {name}"
    for picture in re.findall(r"\]\((evaluation/[a-z]+\.svg)\)", text):
        ET.fromstring((PAGE.parent / picture).read_text())
    block = re.search(r"evaluate: to -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert block is not None and re.findall(r"^\| (\d) \|", block[1], re.MULTILINE) == [str(n) for n in range(2, 9)]
