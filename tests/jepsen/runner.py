"""A run for a minute, or for hours: the scenario of one random phase on five stations (tools/scenario plays it)."""

from __future__ import annotations

import contextlib
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from zenjun.tools.histories.multicaster import Task
from zenjun.tools.histories.recorder import Load
from zenjun.tools.lab import Lab
from zenjun.tools.scenario.model import RANDOM_KINDS, Entry, Expect, Scenario
from zenjun.tools.scenario.plan import Act, plan
from zenjun.tools.scenario.play import CONVERGE_S, Outcome, own, play

from .clocks import Clocks

ROOT: Final = Path(__file__).resolve().parents[2]


OVERLAP: Final = {"a": [1, 2, 3], "b": [2, 3, 4], "c": [1, 4]}
"""Groups that overlap, in a ring; station 5 is in none, and sends to all."""


def scenario(seed: int, seconds: float, stations: int = 5, groups: bool = False) -> Scenario:
    """Random faults for so long. groups: with programs in groups that overlap, in labs of four stations or more."""
    everybody = tuple(range(1, stations + 1))
    end_ms = int(seconds * 1000)
    phase = Entry("random", (0, 0), (end_ms, end_ms), values={"faults": RANDOM_KINDS})
    return Scenario(
        name="jepsen",
        about="random faults on real daemons, judged by their clients",
        stations=stations,
        seed=seed,
        end_ms=end_ms,
        timeline=(phase,),
        expect=Expect(members=everybody),
        loads=dict.fromkeys(everybody, Load()),
        multicasting=Task(OVERLAP, stations=stations) if groups and stations >= 4 else None,
        quorum=stations // 2 + 1,
    )


def draw(seed: int, seconds: float, stations: int = 5) -> list[Act]:
    """What a seed does."""
    return plan(scenario(seed, seconds, stations), seed)


def run(
    *,
    seed: int,
    seconds: float,
    folder: Path,
    stations: int = 5,
    acts: Sequence[Act] | None = None,
    defect: str | None = None,
    clocks: bool = True,
    converge_s: float = CONVERGE_S,
    groups: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Run it all; everything that is written stays in ``folder``.

    seed, seconds: of the plan, and of what the programs send. acts: another plan. defect: the daemons are broken in this way
    (``broken.py``), which the checks must find out. clocks: the daemons' clocks are wrong (``clocks.py``). converge_s: allowed
    until all hear all. groups: with programs in groups that overlap. Raises LabError when there can be no lab.
    """
    broken = [str(ROOT / "tests" / "jepsen" / "broken.py"), str(defect)] if defect else ["-m", "zenjun.daemon"]
    folder.mkdir(parents=True, exist_ok=True)
    wrong = Clocks(folder, seed, range(1, stations + 1)) if clocks else None

    def daemon(config: Path) -> list[str]:
        station = tomllib.loads(config.read_text())["station"]["id"]
        return [*(wrong.prefix(station) if wrong else []), sys.executable, *broken, "--config", str(config)]

    with wrong or contextlib.nullcontext():
        outcome = play(
            scenario(seed, seconds, stations, groups),
            own(Lab(stations)),
            folder,
            acts=acts,
            daemon=daemon,
            converge_s=converge_s,
            say=lambda at, text: say(text if at is None else f"{at:8.1f} s  {text}"),
        )
    if wrong:
        say(f"wall clocks were set {wrong.jumps} times")
    return outcome
