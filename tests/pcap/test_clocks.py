"""Clocks aligned from PDUs: the true offset is always within the interval, whatever delays, losses, drifts and repetitions."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from zenjun.proto import wire
from zenjun.tools.cli.pcap.clocks import clocks as command
from zenjun.tools.pcap.frames.lookup import Capture, captures
from zenjun.tools.pcap.look.clocks import ClockError, Pair, align, estimate, observed

from . import recorded
from .built import Rec, frame, pcap, write
from .shapes import enhanced, interface, section
from .traffic import START_NS, Clock, Traffic, confirm, pdu

MS = 1_000_000
S = 1_000_000_000


def uniform(low: int, high: int):  # type: ignore[no-untyped-def]
    return lambda _a, _b, chance: chance.randint(low, high)


def saved(folder: Path, traffic: Traffic) -> list[Capture]:
    return [Capture(str(write(folder / f"s{k}.pcapng", records)), k) for k, records in traffic.records.items()]


def check(folder: Path, traffic: Traffic, **options: object) -> float:
    """Align the captures; everywhere the true offset must be within the interval. Returns the worst uncertainty, ns."""
    made = estimate(saved(folder, traffic), **options).alignment  # type: ignore[arg-type]
    worst = 0.0
    for station in traffic.clocks:
        for true_ns in range(0, traffic.duration_ns, traffic.duration_ns // 50):
            reference = traffic.clocks[made.reference].reads(true_ns)
            own = traffic.clocks[station].reads(true_ns)
            low, high = made.interval_ns(made.reference, station, reference)
            assert low[0] - 1 <= own - reference <= high[0] + 1, (station, true_ns)
            offset, doubt = made.offset_ns(station, own)[0], made.uncertainty_ns(station, own)[0]
            assert abs(own - reference - offset) <= doubt + 1, (station, true_ns)
            worst = max(worst, doubt)
    return worst


@pytest.mark.parametrize("offset_s", [0, 3, -3])
@pytest.mark.parametrize("ppm", [0.0, 50.0, -50.0])
def test_known_offset_and_drift(tmp_path: Path, offset_s: int, ppm: float) -> None:
    traffic = Traffic(
        {1: Clock(), 2: Clock(offset_s * S, ppm), 3: Clock(123_456_789, -ppm / 2)}, uniform(20_000, 300_000), loss=0.05
    ).run()
    assert check(tmp_path, traffic) < 400_000
    made = estimate(saved(tmp_path, traffic), reference=1).alignment
    drift = made.drift(2)
    assert drift is not None and drift.low <= ppm <= drift.high and drift.high - drift.low < 400


def test_the_drift_of_a_long_capture(tmp_path: Path) -> None:
    traffic = Traffic(
        {1: Clock(), 2: Clock(-3 * S, 50.0)}, uniform(20_000, 100_000), duration_ns=120 * S, every_ns=200 * MS
    ).run()
    check(tmp_path, traffic)
    drift = estimate(saved(tmp_path, traffic), reference=1).alignment.drift(2)
    assert drift is not None and drift.low <= 50 <= drift.high and abs(drift.ppm - 50) < 2 and drift.high - drift.low < 8


def test_lopsided_delays_are_within_the_uncertainty(tmp_path: Path) -> None:
    def delay(a: int, _b: int, chance: random.Random) -> int:
        return 2 * MS + chance.randint(0, MS) if a == 1 else 50_000

    worst = check(tmp_path, Traffic({1: Clock(), 2: Clock(77 * MS)}, delay).run())
    assert worst > 0.9 * MS, "one cannot know better than that"


def test_losses_and_repetitions(tmp_path: Path) -> None:
    """Half of all frames lost, half of the DATA sent again, also by others."""
    traffic = Traffic(
        {1: Clock(), 2: Clock(S, 20), 3: Clock(-S, -20), 4: Clock(5)}, uniform(10_000, 10 * MS), loss=0.5, repeats=0.5, seed=4
    ).run()
    check(tmp_path, traffic)


@pytest.mark.parametrize("seed", range(8))
def test_captures_that_begin_at_different_times(tmp_path: Path, seed: int) -> None:
    """What a late capture shows first may have been sent before: heartbeats that are alike, PDUs sent again."""
    chance = random.Random(seed)
    begins = {k: chance.randrange(800 * MS) for k in (1, 2, 3)}
    traffic = Traffic(
        {1: Clock(), 2: Clock(3 * S), 3: Clock(-3 * S)}, uniform(10_000, 100_000), loss=0.2, repeats=0.6, begins=begins, seed=seed
    ).run()
    check(tmp_path, traffic)


def test_without_that_care_it_would_be_wrong(tmp_path: Path) -> None:
    """A heartbeat that only b's capture has, since a's begins later, and then an identical one that only a's has: no bound may
    come of it."""
    same = frame(pdu(wire.Kind.CONFIRM, 1, 5, [5, 5], confirm(), pack=[5, 5]))
    back = frame(pdu(wire.Kind.CONFIRM, 2, 5, [5, 5], confirm(), pack=[5, 5]), 2)
    write(tmp_path / "s1.pcapng", [Rec(START_NS + 400 * MS, same, 2), Rec(START_NS + 500 * MS, back, 1)])
    write(tmp_path / "s2.pcapng", [Rec(START_NS + 200 * MS, same, 1), Rec(START_NS + 500 * MS, back, 2)])
    with pytest.raises(ClockError, match="repetitions"):
        estimate(captures([str(tmp_path)]))
    later = frame(pdu(wire.Kind.CONFIRM, 1, 6, [6, 5], confirm(), pack=[5, 5]))
    late = frame(pdu(wire.Kind.CONFIRM, 2, 6, [6, 6], confirm(), pack=[5, 5]), 2)
    more = [Rec(START_NS + 600 * MS, later, 2), Rec(START_NS + 700 * MS, late, 1)]
    write(tmp_path / "s1.pcapng", [Rec(START_NS + 400 * MS, same, 2), *more])
    turned = [Rec(r.time_ns, r.data, 3 - r.direction) for r in more]
    write(tmp_path / "s2.pcapng", [Rec(START_NS + 200 * MS, same, 1), Rec(START_NS + 550 * MS, back, 2), *turned])
    made = estimate(captures([str(tmp_path)]), reference=1).alignment
    low, high = made.interval_ns(1, 2, START_NS + 650 * MS)
    assert low[0] <= 0 <= high[0]


def test_one_way_only_is_a_bound(tmp_path: Path) -> None:
    traffic = Traffic({1: Clock(), 2: Clock(40 * MS)}, uniform(50_000, 60_000), silent=frozenset({2})).run()
    made = estimate(saved(tmp_path, traffic), reference=1).alignment
    low, high = made.interval_ns(1, 2, START_NS + S)
    assert low[0] == -np.inf and 40 * MS <= high[0] <= 40 * MS + 70_000
    assert np.isnan(made.offset_ns(2, START_NS + S)[0]) and made.uncertainty_ns(2, START_NS + S)[0] == np.inf
    assert not made.aligned(2) and made.drift(2) is None
    result = CliRunner().invoke(command, [str(tmp_path), "--reference", "1"])
    assert result.exit_code == 1 and "at most 40.0" in result.output and "nothing was heard the other way" in result.output
    result = CliRunner().invoke(command, [str(tmp_path), "--reference", "2"])
    assert "at least -40.0" in result.output


def test_over_a_third_station(tmp_path: Path) -> None:
    """1 and 3 never hear each other."""
    traffic = Traffic({1: Clock(), 2: Clock(S), 3: Clock(2 * S)}, uniform(10_000, 20_000)).run()
    for station, other in ((1, 3), (3, 1)):
        traffic.records[station] = [r for r in traffic.records[station] if r.data[14 + 8] != other]
    made = estimate(saved(tmp_path, traffic), reference=1).alignment
    assert (1, 3) not in made.pairs and made.aligned(3)
    assert abs(made.offset_ns(3, START_NS + 3 * S)[0] - 2 * S) <= made.uncertainty_ns(3, START_NS + 3 * S)[0] < 100_000


def test_a_clock_that_was_set(tmp_path: Path) -> None:
    """Before and after are right apart; the command says so and does not exit with 0."""
    traffic = Traffic({1: Clock(), 2: Clock(0, 0, ((S, 250 * MS),))}, uniform(20_000, 60_000)).run()
    made = estimate(saved(tmp_path, traffic), reference=1).alignment
    assert len(made.breaks_ns) == 1 and abs(made.breaks_ns[0] - START_NS - S) < 300 * MS
    for true_ns in (200 * MS, 700 * MS, 1500 * MS, 1900 * MS):
        low, high = made.interval_ns(1, 2, START_NS + true_ns)
        assert low[0] <= traffic.clocks[2].reads(true_ns) - START_NS - true_ns <= high[0]
    result = CliRunner().invoke(command, [str(tmp_path)])
    assert result.exit_code == 1 and "a clock was set" in result.output


def test_a_clock_that_is_slewed(tmp_path: Path) -> None:
    traffic = Traffic({1: Clock(), 2: Clock(0, 900.0)}, uniform(20_000, 30_000)).run()
    made = estimate(saved(tmp_path, traffic)).alignment
    assert made.rate_ppm > 900 and not made.breaks_ns
    check(tmp_path, traffic)


def test_latencies_carry_the_uncertainty(tmp_path: Path) -> None:
    traffic = Traffic({1: Clock(), 2: Clock(3 * S, 50)}, uniform(50_000, 150_000)).run()
    made = estimate(saved(tmp_path, traffic)).alignment
    for true_ns in range(100 * MS, 2 * S, 100 * MS):
        sent, seen = traffic.clocks[1].reads(true_ns), traffic.clocks[2].reads(true_ns + 80_000)
        value, doubt = made.latency_ns(1, sent, 2, seen)
        assert abs(value[0] - 80_000) <= doubt[0] + 10 < 300_000


def test_a_capture_without_directions(tmp_path: Path) -> None:
    """tcpdump's pcap does not say what was sent: the own address does."""
    traffic = Traffic({1: Clock(), 2: Clock(S)}, uniform(20_000, 60_000)).run()
    for station, records in traffic.records.items():
        (tmp_path / f"s{station}.pcap").write_bytes(pcap(records))
    made = estimate(captures([str(tmp_path)])).alignment
    assert made.aligned(1) and made.aligned(2)


def test_a_sample_does_as_well(tmp_path: Path) -> None:
    traffic = Traffic({1: Clock(), 2: Clock(S)}, uniform(20_000, 60_000), every_ns=MS).run()
    everything = estimate(saved(tmp_path, traffic))
    some = estimate(saved(tmp_path, traffic), marks_max=1000)
    count = {True: 0, False: 0}
    for small, found in ((False, everything), (True, some)):
        count[small] = len(found.marks[1].keys)
    assert count[True] < count[False] / 2
    check(tmp_path, traffic, marks_max=1000)


@settings(max_examples=150, deadline=None)
@example(seed=185, n=2, rate=1.0, jitter=1, span=S)  # one way only: what was seen was put where the sender's clock stood
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(2, 5),
    rate=st.floats(0, 150),
    jitter=st.integers(1, 20 * MS),
    span=st.sampled_from([10 * MS, S, 1000 * S]),
)
def test_the_true_offset_is_always_inside(seed: int, n: int, rate: float, jitter: int, span: int) -> None:
    """On what was observed: clocks whose rate changes within its limit, arbitrary delays, any pair missing."""
    chance = random.Random(seed)
    knots = [0, span // 3, span]
    offsets: dict[int, list[float]] = {}
    for k in range(1, n + 1):
        at = float(chance.randint(-3 * S, 3 * S))
        offsets[k] = [at]
        for a, b in itertools.pairwise(knots):
            at += (b - a) * chance.uniform(-rate, rate) / 2 * 1e-6
            offsets[k].append(at)

    def reads(k: int, t: int) -> int:
        return START_NS + t + round(float(np.interp(t, knots, offsets[k])))

    pairs = {}
    for a in range(1, n + 1):
        for b in range(1, n + 1):
            if a == b or chance.random() < 0.2:
                continue
            sent = sorted(chance.randrange(span) for _ in range(chance.randint(1, 40)))
            seen = [reads(b, t + chance.randint(0, jitter) // (1 if a < b else 7)) for t in sent]
            own = np.array([reads(a, t) for t in sent])
            pairs[a, b] = Pair(own, np.array(seen) - own)
    if not pairs:
        return
    made = align(pairs, rate_ppm=max(rate, 0.001) * 1.001)
    assert not made.breaks_ns
    for t in [chance.randrange(span) for _ in range(20)]:
        for k in made.stations:
            low, high = made.interval_ns(made.reference, k, reads(made.reference, t))
            assert low[0] - 2 <= reads(k, t) - reads(made.reference, t) <= high[0] + 2
            offset, doubt = made.offset_ns(k, reads(k, t))[0], made.uncertainty_ns(k, reads(k, t))[0]
            if np.isfinite(doubt):
                assert abs(reads(k, t) - reads(made.reference, t) - offset) <= doubt + 2


def test_a_clock_decades_away(tmp_path: Path) -> None:
    """A machine without a battery begins in 1970."""
    traffic = Traffic({1: Clock(), 2: Clock(-START_NS + 10**9)}, uniform(20_000, 60_000)).run()
    assert check(tmp_path, traffic) < 100_000


def test_what_gives_nothing_says_why(tmp_path: Path) -> None:
    with pytest.raises(ClockError, match="no PDU"):
        align({})
    traffic = Traffic({1: Clock(), 2: Clock()}, uniform(1, 2)).run()
    files = saved(tmp_path, traffic)
    with pytest.raises(ClockError, match="two stations or more"):
        estimate(files[:1])
    with pytest.raises(ClockError, match="station 9"):
        align(observed(estimate(files).marks), reference=9)
    for k in (1, 2):  # no directions, and all from one address
        write(tmp_path / f"s{k}.pcapng", [Rec(r.time_ns, r.data[:6] + b"\2\0\0\0\0\7" + r.data[12:]) for r in traffic.records[k]])
    with pytest.raises(ClockError, match="does not tell sent from received"):
        estimate([Capture(f.path, f.station) for f in files])


@pytest.mark.parametrize("unit_ns", [1_000, MS, 10 * MS, S])
@pytest.mark.parametrize("says_so", [True, False])
def test_coarse_stamps_widen_the_bounds(tmp_path: Path, unit_ns: int, says_so: bool) -> None:
    """The true offset is within the uncertainty however coarse the stamps are; also where a converted file says ns."""
    offset = 2 * unit_ns // 5
    traffic = Traffic({1: Clock(), 2: Clock(offset), 3: Clock()}, uniform(5_000, 20_000), duration_ns=4 * S).run()
    digits = len(str(S // unit_ns)) - 1
    for k, records in traffic.records.items():
        data = section() + interface(resolution=digits if says_so else 9)
        for r in records:
            cut = r.time_ns // unit_ns
            data += enhanced(cut if says_so else cut * unit_ns, r.data, flags=r.direction)
        (tmp_path / f"s{k}.pcapng").write_bytes(data)
    made = estimate([Capture(str(tmp_path / f"s{k}.pcapng"), k) for k in traffic.clocks], reference=1).alignment
    low, high = made.interval_ns(1, 2, np.array(made.span_ns()))
    assert (low <= offset).all() and (offset <= high).all()
    assert (high - low).max() < 6 * unit_ns + MS


def test_no_times_and_times_that_go_back(tmp_path: Path) -> None:
    traffic = Traffic({1: Clock(), 2: Clock()}, uniform(5_000, 20_000)).run()
    for k, records in traffic.records.items():
        write(tmp_path / f"s{k}.pcapng", [r._replace(time_ns=0) for r in records])
    sources = [Capture(str(tmp_path / f"s{k}.pcapng"), k) for k in (1, 2)]
    with pytest.raises(ClockError, match="the capture of station 1 has no times"):
        estimate(sources)
    for k, records in traffic.records.items():
        write(tmp_path / f"s{k}.pcapng", [r._replace(time_ns=r.time_ns - 3 * S * (not i % 7)) for i, r in enumerate(records)])
    problems = estimate(sources).problems
    assert len(problems) == 2 and re.search(r"station 1: the times in its capture go back, \d+ times, by up to 3\.0", problems[0])


@pytest.mark.lab
def test_a_lab_has_one_clock(tmp_path: Path) -> None:
    for medium in ("switched", "bus"):
        found = estimate([Capture(str(p), k) for k, p in recorded.captures(medium).items()])
        made = found.alignment
        assert not made.breaks_ns and not found.problems
        start, end = made.span_ns()
        for station in made.stations:
            low, high = made.interval_ns(made.reference, station, np.linspace(start, end, 500).astype(np.int64))
            assert (low <= 0).all() and (high >= 0).all() and made.aligned(station)
            assert (high - low).min() < 500_000 * (station != made.reference) + 1


def test_the_command(tmp_path: Path) -> None:
    run = CliRunner().invoke
    traffic = Traffic({1: Clock(), 2: Clock(3 * S, 50)}, uniform(20_000, 60_000)).run()
    saved(tmp_path, traffic)
    result = run(command, [str(tmp_path), "--reference", "1"])
    assert result.exit_code == 0, result.output
    assert "offsets from the clock of station 1" in result.output and "station 2  3.000 s ± " in result.output
    known = json.loads(run(command, [str(tmp_path), "--json", "--points", "3", "--reference", "1"]).output)
    second = known["stations"][1]
    assert second["aligned"] and len(second["points"]) == 3
    for row in second["points"]:
        assert abs(row["offset_ns"] - 3 * S) < 200_000 and row["low_ns"] <= row["offset_ns"] <= row["high_ns"]
    assert "station 1 to 2" in run(command, [str(tmp_path), "-v"]).output
    assert run(command, [str(tmp_path / "s1.pcapng")]).exit_code == 1
    assert run(command, []).exit_code == 2
    assert run(command, [str(tmp_path / "none")]).exit_code == 1
    assert run(command, [str(tmp_path), "--station", "2"]).exit_code == 2
    (tmp_path / "s3.pcapng").write_bytes(b"")
    result = run(command, [str(tmp_path)])
    assert result.exit_code == 1 and "3.000 s" in result.output.replace("-3.000", "3.000")
    assert f"{tmp_path / 's3.pcapng'}: offset 0: the file is empty" in result.output
