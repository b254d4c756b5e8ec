"""What all tests share: the option that rewrites expected texts, and the seed of the simulation, printed first."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the texts that scenarios and snapshots expect anew")


def pytest_report_header() -> str:
    """The same rule as ``tests/sim/runner.py``: the environment, else the commit."""
    seed = os.environ.get("ZENJUN_SIM_SEED")
    if seed:
        return f"zenjun: ZENJUN_SIM_SEED={seed}"
    root = Path(__file__).resolve().parent.parent
    head = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    ).stdout.strip()
    return f"zenjun: simulation seeds from commit {head}" if head else "zenjun: simulation seeds from 1"
