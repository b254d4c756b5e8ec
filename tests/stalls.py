"""How long this machine made a process wait for its processor, while a test ran.

What a test of real daemons finds on a machine that stands still for a while proves nothing: timers of several stations expire
together, and healthy ones are removed. Nor does what a test of processes, threads or sockets finds that has the time alone that
others leave over (lanes.py). A small process sleeps for `STEP_S` over and over and notes when it woke late. A test that
fails while that was `LONG_S` or more fails with the words by which tools/test knows what it runs once more (tests/timing.py). On
a machine that did not stall, and the second time, it fails as it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import IO

STEP_S = 0.02
LONG_S = 0.06
"""Late by so much is a stall. Daemons in tests remove a station after 400 ms of silence, at the earliest."""
_SLEEPER = """
import os, sys, time
step, least, parent = float(sys.argv[1]), float(sys.argv[2]), os.getppid()
while os.getppid() == parent:
    before = time.monotonic()
    time.sleep(step)
    now = time.monotonic()
    if now - before - step >= least:
        print(before, now - before - step, flush=True)
"""


class Finding(AssertionError):
    """What has been delivered, or committed, is not what was promised: no stall excuses that, and it is not tried once more."""


def found(ok: bool, what: str) -> None:
    """A promise that is kept on any machine."""
    if not ok:
        raise Finding(what)


class Sleeper:
    """The process, and what it has noted."""

    def __init__(self, step_s: float = STEP_S, least_s: float = LONG_S) -> None:
        self._notes: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by close())
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _SLEEPER, str(step_s), str(least_s)],
            stdin=subprocess.DEVNULL,
            stdout=self._notes,
            start_new_session=True,  # Ctrl-C is for the tests
        )

    def longest_s(self, since: float) -> float:
        """The longest stall that ended after this time of `time.monotonic`; 0.0 if there was none."""
        text = os.pread(self._notes.fileno(), os.fstat(self._notes.fileno()).st_size, 0).decode()
        rows = [tuple(map(float, line.split())) for line in text.splitlines()]
        return max((late for begun, late in rows if begun + late >= since), default=0.0)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._notes.close()
