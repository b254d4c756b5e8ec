"""Hunting: coverage, profiles of what is rare, the corpus, failures made small. Defects are planted for what must find them."""

from __future__ import annotations

import pickle
import random
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from zenjun.proto.core import Medium

from ..amounts import amount
from ..timing import in_time, until_enough
from .bus import draw_bus, possible, simulate_bus
from .case import Case, Run, check_profile, parse_settings, run
from .cluster import Result
from .coverage import bucket
from .hunt import CORPUS, CORPUS_MAX, Hunt, corpus_text, distil, read_corpus
from .options import PROFILES, draw
from .rare import CHANGES, MORE, RARE, apply
from .shrink import shrink, smaller
from .violation import Violation

CORPUS_SECONDS = 300
"""Of processor time."""
STILL_MET = 0.8
"""Share of what the corpus met when it was written that it must still meet; else a hunt makes a new one."""
FAILS = 299
PLANTED = Case(0).set(rules=("no_quorum",), defective=(0, 1, 2, 3, 4, 5))
"""Seed 5 fails by it (test_variants.py)."""


def planted(seed: int) -> Case:
    return replace(PLANTED, seed=seed)


@pytest.mark.parametrize("profile", ["divided", "starved", "meagre"])
def test_what_is_configured_otherwise_or_starved_harms_nobody(profile: str) -> None:
    """Two configurations never have an instance each, and are one cluster once their files are equal; a station that is late and
    loses much has no other one removed; one without memory for large messages holds nobody up."""
    runs = [run(Case(seed, profile)) for seed in range(amount(4, 8))]
    assert not [done.result.report for done in runs if done.checker]
    kinds = {bool(done.result.options.other_stations) for done in runs}
    assert kinds == ({True, False} if profile == "divided" else {False})


@pytest.mark.slow
def test_corpus_holds_and_still_meets_what_it_is_kept_for() -> None:
    corpus = read_corpus()
    assert 10 <= len(corpus) <= CORPUS_MAX
    began = time.process_time()
    met: set[str] = set()
    for case, _ in corpus:
        done = run(case)
        assert not done.checker, f"{case.command()}\n{done.result.report}"
        met |= done.met
    known = set().union(*(news for _, news in corpus))
    assert len(known & met) >= STILL_MET * len(known), f"make a new corpus: {sorted(known - met)}"
    assert time.process_time() - began < CORPUS_SECONDS


def test_coverage_tells_what_a_run_was_made_to_meet() -> None:
    alone = run(Case(1).set(stations=1, messages=6)).met
    assert "stations 1" in alone
    assert not any(name.startswith(("peer ", "depth")) for name in alone)
    crossed = run(Case(3, "crossing")).met
    assert {"peer a stop_seen", "peer a stop_told", "sent STOP busy", "sent OPEN opening", "faults cut expel"} <= crossed
    assert "depth 2" in crossed
    assert any(name.startswith("ends expelled") for name in crossed)
    assert "opening proposing agreed" in crossed


def test_coverage_does_not_change_a_run() -> None:
    case = Case(3)
    with_it, without = run(case).result, case.simulation()
    without.run()
    assert with_it.trace_hash == without.trace.digest()


def test_counts_fall_into_buckets() -> None:
    assert [bucket(k) for k in (1, 2, 3, 4, 5, 7, 8, 15, 16)] == [1, 2, 3, 4, 4, 4, 8, 8, 16]


def test_profiles_of_what_is_rare_are_what_they_say() -> None:
    assert not set(RARE) & set(PROFILES)
    assert set(CHANGES) == set(PROFILES) | set(RARE) | set(MORE)
    for seed in range(200):
        drawn = draw(random.Random(seed))
        for name in CHANGES:
            o = CHANGES[name](drawn)
            assert len(o.frame_max) == o.stations, name
            assert all(1 <= s <= o.stations for s in o.required), name
            assert o.quorum <= o.stations, name
            assert not o.quorum or o.required or 2 * o.quorum > o.stations, name
            assert o.faults.bad_receiver < o.stations, name
        assert 8 <= CHANGES["wide"](drawn).stations <= 12
        assert CHANGES["crossing"](drawn).faults.expel_gap_ns < 20_000_000


@pytest.mark.slow
@pytest.mark.parametrize("profile", RARE)
def test_every_property_holds_in_the_rare_profiles(profile: str) -> None:
    for seed in range(amount(1, 2) if profile == "wide" else amount(2, 4)):
        done = run(Case(seed, profile))
        assert not done.checker, f"{done.case.command()}\n{done.result.report}"


def test_settings_are_read_and_written() -> None:
    case = Case(7, "calm+louder", parse_settings(["faults.loss=0.5", "stations=3", "load=steady", "sizes=(64,)"]))
    o = case.simulation().options
    assert (o.faults.loss, o.stations, o.load, o.sizes) == (0.5, 3, "steady", (64,))
    words = case.command().split()
    assert words[words.index("--profile") + 1] == "calm+louder"
    again = parse_settings([w for before, w in pairwise(words) if before == "--set"])
    assert again == case.settings
    for wrong in (["loss=1"], ["stations"], ["faults.stations=3"]):
        with pytest.raises(ValueError, match="no such option"):
            parse_settings(wrong)
    with pytest.raises(ValueError, match="no such profile"):
        check_profile("calm+nothing")
    assert apply("")(o) == o


@pytest.mark.slow
def test_a_failure_is_made_small_and_stays_the_same_failure() -> None:
    found = next(done for seed in range(20) if (done := run(planted(seed))).checker)
    small = until_enough(
        lambda seconds: shrink(found.case, seconds), lambda done: done.result.options.messages < found.result.options.messages, 5
    )
    assert small.checker == found.checker == "quorum"
    before, after = found.result.options, small.result.options
    assert after.stations <= before.stations
    assert after.messages < before.messages
    assert isinstance(small.result, Result) and isinstance(found.result, Result)
    assert small.result.frames < found.result.frames
    assert after.rules == before.rules, "what is planted stays"
    again = run(small.case)
    assert (again.checker, again.result.trace_hash) == (small.checker, small.result.trace_hash)


def test_what_does_not_fail_is_not_made_small() -> None:
    with pytest.raises(ValueError, match="nothing fails"):
        shrink(Case(1), 1)


def test_steps_are_smaller() -> None:
    o = Case(5).simulation().options
    for candidate in smaller(Case(5), o):
        assert candidate != Case(5)
        assert candidate.simulation().options != o


def test_a_hunt_keeps_what_is_new_and_writes_failures_down(tmp_path: Path) -> None:
    said: list[str] = []
    hunt = Hunt(100, tmp_path / "out", said.append)
    hunt.try_case(Case(1))
    assert [case for case, _ in hunt.kept] == [Case(1)]
    hunt.try_case(Case(1))
    assert len(hunt.kept) == 1, "the same again is nothing new"
    failing = next(planted(seed) for seed in range(20) if run(planted(seed)).checker)
    hunt.try_case(failing, time.monotonic() + 5)
    (report,) = (tmp_path / "out").glob("*-quorum.txt")
    text = report.read_text()
    assert failing.command() in text
    assert "fails: quorum" in text
    assert hunt.failed == [failing]
    assert any(line.startswith("FAILED") for line in said)


@pytest.mark.slow
@pytest.mark.parametrize("bus", [False, True], ids=["switched", "bus"])
def test_a_hunt_on_two_processes(tmp_path: Path, bus: bool) -> None:
    """What both have met is put together, a failure is written down and made small, and it ends."""
    hunt = Hunt(300, tmp_path / "out", lambda _: None, planted_first, bus)
    corpus = tmp_path / "first.txt"
    corpus.write_text(corpus_text([(Case(FAILS, bus=bus), frozenset())]))
    began = time.monotonic()
    hunt.hunt(4, corpus, jobs=2)
    in_time(time.monotonic() - began < 600, "it ends, however busy the machine is")
    assert hunt.count >= 2, "one case at each process at least, however busy the machine is"
    assert hunt.failed == [Case(FAILS, bus=bus)]
    assert list((tmp_path / "out").glob(f"{'bus-' if bus else ''}{FAILS}-drawn-planted.txt"))
    kept = read_corpus(tmp_path / "out" / "corpus.txt")
    assert kept
    assert all(case.bus == bus for case, _ in kept)


def planted_first(case: Case) -> Run:
    """Runs it; seed ``FAILS`` as drawn is told to have failed."""
    done = run(case)
    if case.seed != FAILS or case.profile:
        return done
    return replace(done, result=replace(done.result, violation=Violation("planted", "by the test"), report="planted"))


def test_a_case_on_a_bus_is_what_its_seed_draws() -> None:
    """A change of options leaves out what a bus cannot do, and changes nothing by itself."""
    for seed in range(100):
        drawn = draw_bus(random.Random(seed))
        assert possible(drawn) == drawn
    case = Case(7, "crossing+lossy", bus=True)
    o = case.simulation().options
    assert (o.medium, o.jitter_ns, o.faults.expel_gap_ns, o.faults.reorder) == (int(Medium.BUS), 0, 0, 0.0)
    assert 0.15 <= o.faults.loss <= 0.2
    assert case.command() == "python -m tests.sim --bus --seed 7 --profile crossing+lossy"
    assert run(Case(3, bus=True)).result.trace_hash == simulate_bus(3).trace_hash


def test_coverage_of_a_bus_tells_of_its_resets() -> None:
    met = set().union(*(run(Case(seed, bus=True)).met for seed in range(4)))
    assert {"sent RST reset", "sent RSTC reset", "sent DATA calm"} <= met
    assert any(name.startswith("reset running") for name in met)
    assert any(name.startswith("resets ") for name in met - {"resets 0"})


def test_a_hunt_ends_in_time(tmp_path: Path) -> None:
    began = time.monotonic()
    hunt = Hunt(200, tmp_path, lambda _: None)
    hunt.hunt(2, corpus=tmp_path / "none.txt")
    in_time(time.monotonic() - began < 300, "the case that runs is finished, no other is begun")
    assert hunt.count
    assert read_corpus(tmp_path / "corpus.txt")


def test_a_hunt_is_the_same_for_the_same_base(tmp_path: Path) -> None:
    def chosen() -> list[Case]:
        out: list[Case] = []

        def start(case: Case) -> Run:
            out.append(case)
            return Run(case, done.result, frozenset({f"thing {len(out) % 7}"}))

        hunt = Hunt(5, tmp_path, lambda _: None, start)
        for _ in range(60):
            hunt.try_case(hunt.choose())
        return out

    done = run(Case(1))
    first = chosen()
    assert first == chosen()
    assert {case.profile for case in first} > {""}
    assert any("+" in case.profile for case in first)


def test_a_corpus_is_distilled_to_few_and_reads_back(tmp_path: Path) -> None:
    runs = [
        (Case(1), frozenset("ab")),
        (Case(2, "calm"), frozenset("abcd")),
        (Case(3), frozenset("e")),
        (Case(4), frozenset("d")),
    ]
    few = distil(runs)
    assert few == [(Case(2, "calm"), frozenset("abcd")), (Case(3), frozenset("e"))]
    assert distil(runs, most=1) == few[:1]
    path = tmp_path / "corpus.txt"
    path.write_text(corpus_text(few))
    assert read_corpus(path) == few
    assert CORPUS.exists()


def test_a_violation_gets_from_one_process_to_another() -> None:
    """Else the first failing seed ends a run of many (``--bus --seeds``) with an error of its own."""
    there = pickle.loads(pickle.dumps(Violation("fifo", "what is wrong", (0, 2))))
    assert (there.checker, there.text, there.stations, str(there)) == ("fifo", "what is wrong", (0, 2), "fifo: what is wrong")
