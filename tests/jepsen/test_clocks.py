"""The wrong clocks are wrong: a library that does nothing would let every run pass."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..timing import in_time
from .clocks import FIELDS, Clocks

LOOK = """
import sys, time
def real():
    return float(open("/proc/uptime").read().split()[0])
before, at, began = real(), time.monotonic(), real()
while (ended := real()) < began + 1:
    pass
passed, after = time.monotonic() - at, real()
print(time.time(), passed, ended - began, after - before, flush=True)
sys.stdin.readline()
print(time.time())
"""


@pytest.mark.parametrize("ppm", [-300_000, 300_000])
def test_clocks_are_wrong(tmp_path: Path, ppm: int) -> None:
    """The wall clock jumps while the program runs; the monotonic clock is too slow or too fast."""
    clocks = Clocks(tmp_path, 1, [1])
    (tmp_path / "clock-1").write_bytes(FIELDS.pack(10**12, ppm))
    argv = [*clocks.prefix(1), sys.executable, "-c", LOOK]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        wall, passed, least, most = map(float, child.stdout.readline().split())
        assert abs(wall - time.time() - 1000) < 60
        assert passed < 0.9 * most if ppm < 0 else passed > 1.1 * least
        with (tmp_path / "clock-1").open("r+b") as file:
            file.write(FIELDS.pack(-(10**12), ppm))
        out, _ = child.communicate("\n", timeout=60)
    assert abs(float(out) - time.time() + 1000) < 60


def test_clocks_are_set_while_they_are_entered(tmp_path: Path) -> None:
    deadline = time.monotonic() + 60
    with Clocks(tmp_path, 1, [1, 2]) as clocks:
        while not clocks.jumps and time.monotonic() < deadline:
            time.sleep(0.05)
    in_time(bool(clocks.jumps), "a jump")
    assert any(FIELDS.unpack((tmp_path / f"clock-{k}").read_bytes())[0] for k in (1, 2))
