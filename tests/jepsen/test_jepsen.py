"""A minute of faults on five real daemons, judged by their clients. By hand, longer: ``python -m tests.jepsen --seconds 600``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from zenjun.tools.scenario.plan import Act

from ..timing import in_time
from .runner import ROOT, run

SEED_VARIABLE = "ZENJUN_JEPSEN_SEED"
SECONDS = 60.0


def base_seed() -> int:
    """The environment's, else the commit's, so that every commit tries another plan; 1 where there is neither."""
    if text := os.environ.get(SEED_VARIABLE):
        return int(text)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, timeout=10, check=False)
    return int(head.stdout[:7], 16) if head.returncode == 0 else 1


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


@pytest.mark.lab
@pytest.mark.judge
@pytest.mark.slow
@pytest.mark.timeout(480)
def test_a_minute_of_faults(tmp_path: Path) -> None:
    """Every property holds, everybody comes together after the last fault, and enough has happened for that to mean something."""
    seed = base_seed()
    again = f"python -m tests.jepsen --groups --seconds {SECONDS:g} --seed {seed}"
    say(again)
    outcome = run(seed=seed, seconds=SECONDS, folder=tmp_path / "run", groups=True, say=say)
    report = outcome.judgement.report
    figures = report.figures
    say(report.text)
    assert outcome.held, f"{again}\nhistories in {outcome.folder}\n{report.text}"
    in_time(figures["sent_done"] > 500 and figures["delivered_safe"] > 5000, f"hardly anything was sent: {figures}")
    in_time(figures["instances"] > 3, f"the members hardly changed: {figures}")
    overlapping = outcome.judgement.multicast
    assert overlapping is not None
    say(overlapping.text)
    in_time(overlapping.figures["sent_done"] > 50 and overlapping.figures["at_several_stations"] > 50, overlapping.text)


@pytest.mark.lab
@pytest.mark.slow
def test_a_cluster_with_a_broken_order_of_groups_that_overlap_does_not_pass(tmp_path: Path) -> None:
    """Without any fault: what is decided is delivered before what may come before it, and a message goes to all stations."""
    defect = "DecidedToEverybody"
    failed: set[str] = set()
    for seed in (1, 2, 3):  # on a busy machine few messages meet
        folder = tmp_path / f"run-{seed}"
        outcome = run(seed=seed, seconds=3.0, folder=folder, acts=(), defect=defect, clocks=False, groups=True, stations=4)
        failed |= {verdict.name for verdict in outcome.judgement.verdicts if not verdict.held}
        if failed & {"multicast.no_cycle", "multicast.places_grow"} and "multicast.genuine" in failed:
            return
    in_time(False, f"only {failed} in three runs")


@pytest.mark.lab
@pytest.mark.judge
@pytest.mark.slow
def test_a_cluster_that_ignores_the_quorum_does_not_pass(tmp_path: Path) -> None:
    """The canary: the same programs and the same judge, with daemons that go on in both halves of a partition."""
    acts = [Act(1, "partition", 1000, 6000, groups=((1, 2),))]  # both halves must have opened, and delivered, before it ends
    outcome = run(seed=1, seconds=6.5, folder=tmp_path / "run", acts=acts, defect="no_quorum", converge_s=5.0)
    report = outcome.judgement.report
    in_time(not outcome.held, f"both halves have opened and delivered\n{report.text}")
    in_time({"quorate", "same_members", "common_order"} <= set(report.violations), report.text)
