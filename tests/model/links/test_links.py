"""Judges of links in virtual time: they find what is so, broken ones do not. More seeds: ``python -m tests.model.links 1000``."""

from __future__ import annotations

import pytest
from zenjun.proto.links import Judge

from ...rules import rule
from .broken import BROKEN
from .runs import KINDS, Run, Violation


@rule("J7", "J11")
@pytest.mark.parametrize("seed", [*range(5), 7, 11, 102, 189])
def test_runs(seed: int) -> None:
    """In 4, 7 and 102 a station stops, and what it said last on one link is a heartbeat older than on another."""
    Run(seed).run()


@pytest.mark.parametrize(
    ("check", "judge"), [(c, j) for c, judges in BROKEN.items() for j in judges], ids=lambda x: getattr(x, "__name__", x)
)
def test_a_broken_judge_is_caught(check: str, judge: type[Judge]) -> None:
    kinds = ("one way", "heal") if check == "truth" else KINDS
    for seed in range(40):
        try:
            Run(seed, judge, stops=check == "stopped", kinds=kinds).run()
        except Violation as violation:
            if str(violation).startswith(check):
                return
    pytest.fail(f"{judge.__name__} is not caught in 40 runs")
