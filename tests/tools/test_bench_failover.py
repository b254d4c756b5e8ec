"""``zenjun bench failover`` as people run it, with real daemons; what it measures is tested with a relay in test_bench.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.tools.lab import Lab, LabError
from zenjun.tools.lab.files import HOME_VARIABLE


def failover_process(home: Path, *args: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-c", "from zenjun.tools.cli import main; main()", "bench", "failover", *args]
    environment = {**os.environ, HOME_VARIABLE: str(home)}
    return subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder for labs; skips where none can be made. What is in it at the end was left behind."""
    try:
        with Lab(1):
            pass
    except LabError as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory(prefix="zj.", dir="/tmp") as folder:
        yield Path(folder)
        assert list(Path(folder).iterdir()) == []


@pytest.mark.lab
@pytest.mark.slow
def test_failover_of_real_daemons(home: Path) -> None:
    process = failover_process(home, "--peers", "", "--no-fast", "--repeat", "1", "--rate", "300", "--json")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    (row,) = map(json.loads, out.splitlines())
    assert row["ok"] and row["system"] == "zenjun" and row["bench"] == "failover"
    # generous: this machine may be busy; what counts is in docs/performance.md
    assert 0 < row["told_ms"] < 5_000 and 0 < row["back_ms"] < 20_000
    assert row["gap_ms"]["killed"] <= row["told_ms"] + 1_000 and row["delivered"] > 300


@pytest.mark.lab
def test_interrupted_failover_leaves_nothing_behind(home: Path) -> None:
    process = failover_process(home, "--peers", "", "--json")
    deadline = time.monotonic() + 60
    while not list(home.glob("*/*/zenjund.sock")):
        assert process.poll() is None and time.monotonic() < deadline, "no daemon"
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130 and "interrupted" in err
