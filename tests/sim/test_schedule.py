"""A run as text: the same run again, and the shortest one that still shows a planted defect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from zenjun.proto.core import Fault

from .__main__ import main
from .cluster import simulate
from .options import PROFILES, Options
from .scenario import carry_out
from .schedule import Recorded, checker_of, options_text, read_options, record, replay, shorten
from .violation import Violation


def broken(fault: Fault) -> dict[str, object]:
    return {"defects": int(fault), "defective": (0, 1, 2, 3, 4, 5)}


@pytest.mark.parametrize("seed", [0, 3, 8, 14])
def test_recording_does_not_change_a_run(seed: int) -> None:
    plain, (_, recorded) = simulate(seed), record(seed)
    assert (recorded.trace_hash, recorded.frames) == (plain.trace_hash, plain.frames)


@pytest.mark.parametrize("seed", [0, 1, 3, 5, 8, 14])
def test_a_run_from_its_text_sends_the_same_frames_and_delivers_the_same(seed: int) -> None:
    """Content of messages is other random bytes; everything else is what it was."""
    lines, recorded = record(seed)
    again = replay(lines)
    assert again.violation is None, again.report
    assert (again.frames, again.messages, again.instances, again.virtual_ns) == (
        *(recorded.frames, recorded.messages, recorded.instances),
        recorded.virtual_ns,
    )


def test_faults_are_in_the_text() -> None:
    sim = Recorded(3, PROFILES["stormy"])
    sim.run()
    words = {line.split()[2] for line in sim.schedule_lines() if line.startswith("at ")}
    assert {"boot", "crash", "expel", "send", "apart"} <= words
    assert any(line.endswith("lost") for line in sim.schedule_lines())


def test_options_are_read_and_written() -> None:
    for seed in range(40):
        drawn = Recorded(seed).options
        o = replace(drawn, load="closed" if drawn.load == "closed" else "none", messages=0)
        named = dict(word.split("=", 1) for word in options_text(o).split())
        assert read_options(named) == o


@pytest.mark.slow
def test_the_shortest_schedule_of_a_planted_defect_is_a_scenario(tmp_path: Path) -> None:
    """Made by the command; the text shows the violation, holds without the defect, and is short."""
    path = tmp_path / "defect.txt"
    settings = [f"--set={k}={str(v).replace(' ', '')}" for k, v in broken(Fault.EARLY_PREACK).items()]
    assert main(["--shrink", "1", "--seconds", "15", "--scenario", str(path), *settings]) == 1
    there, now = carry_out(path)
    assert now == there
    assert there.splitlines()[-1].startswith("fails preack_honest: ")
    lines = [line for line in there.split("\n----\n")[0].splitlines() if not line.startswith("#")]
    first = lines[0].split()
    honest = " ".join(word for word in first if not word.startswith(("defects=", "defective=")))
    assert honest != lines[0]
    assert replay([honest, *lines[1:]]).violation is None
    assert len(lines) <= 10, "so early a defect needs no fault: the stations, and what all send when healed"


@pytest.mark.slow
def test_a_text_is_shortened_to_what_the_failure_needs() -> None:
    def change(o: Options) -> Options:
        return replace(o, **broken(Fault.EARLY_PREACK))  # type: ignore[arg-type]

    lines, result = record(1, change)
    assert checker_of(result) == "preack_honest"
    short = shorten(lines, 20)
    assert len(short) < len(lines) / 2
    assert checker_of(replay(short)) == "preack_honest"
    assert replay(short).trace_hash == replay(short).trace_hash


def test_a_text_shows_what_a_rule_broken_on_purpose_does(tmp_path: Path) -> None:
    """As the other scenarios: carried out with a rule broken at every station it raises the violation."""
    found = next(s for s in range(20) if checker_of(simulate(s, change=lambda o: no_quorum(o))) == "quorum")
    lines, _ = record(found, no_quorum)
    path = tmp_path / "quorum.txt"
    kept = [word for word in lines[0].split() if not word.startswith(("rules=", "defective="))]
    path.write_text("\n".join([" ".join(kept), *lines[1:], "----", ""]))
    with pytest.raises(Violation, match="quorum"):
        carry_out(path, ("no_quorum",))


def no_quorum(o: Options) -> Options:
    return replace(o, rules=("no_quorum",), defective=(0, 1, 2, 3, 4, 5))


@pytest.mark.parametrize("line", ["dance station=1", "at 5 dance station=1", "frame 3 from=1 to=2", "clock station=1"])
def test_a_line_that_cannot_be_read_is_an_error(line: str) -> None:
    with pytest.raises((KeyError, ValueError)):
        replay(["replay stations=2", line])
