"""Run several commands at the same time, each in a process group of its own.

    python -m tests.lanes [--deadline SECONDS] [--behind NAME]… NAME=COMMAND…

COMMAND is a line for the shell. A lane that computes only goes behind the others: it gets what those leave over that wait for
timers of real daemons, and does not make them late. What a lane says is in out/lanes/NAME.log, and shown when it has ended: its
last lines and what each part cost, all of it when it failed. The first that fails ends the others; so do Ctrl-C and the
deadline. When all have ended, tests that they noted run once more, alone (again.py). Exit code: 0 all ended well, 1 not so, 130.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from . import again

FOLDER = Path(__file__).resolve().parent.parent / "out" / "lanes"
TAIL_LINES = 4
LOUD = "DID NOT RUN"
"""In the line in large letters about what the machine lacks (conftest.py): shown with the next one, which says why."""
COST = "processor time "
"""How the line begins that says what a part of a lane costs (conftest.py): shown with the next one, the part's result."""
GRACE_S = 10.0
LOWEST = 19
"""Niceness of the lanes behind."""


def _give_way() -> None:
    """Lowest priority for this process and what it starts. Where the kernel groups processes by session, the niceness of a
    process counts among those of its session only, and that of the session is what matters."""
    os.nice(LOWEST)
    with contextlib.suppress(OSError):  # a kernel that does not group them
        Path("/proc/self/autogroup").write_text(str(LOWEST))


def _start(name: str, command: str, behind: bool, notes: Path) -> subprocess.Popen[bytes]:
    """With the default actions of the signals: a shell's background jobs ignore Ctrl-C, and tests of it would fail there."""

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if behind:
            _give_way()

    with (FOLDER / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            ["sh", "-euc", command],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=prepare,
            env={**os.environ, again.VARIABLE: str(notes)},
        )


def _end(running: dict[str, subprocess.Popen[bytes]]) -> None:
    """SIGINT to the groups of what still runs, SIGKILL to what does not heed it."""
    for number, patience in ((signal.SIGINT, GRACE_S), (signal.SIGKILL, GRACE_S)):
        for lane in running.values():
            if lane.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(lane.pid, number)
        until = time.monotonic() + patience
        for lane in running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                lane.wait(max(0.0, until - time.monotonic()))


def _tell(name: str, code: int, seconds: float) -> None:
    lines = (FOLDER / f"{name}.log").read_text(errors="replace").splitlines()
    print(f"-- {name}: {'passed' if code == 0 else f'FAILED ({code})'} after {seconds:.0f} s", flush=True)
    loud = [k for k, line in enumerate(lines[:-TAIL_LINES]) if LOUD in line or line.startswith(COST)]
    shown = lines if code else [*(line for k in loud for line in lines[k : k + 2]), *lines[-TAIL_LINES:]]
    for line in shown:
        print(f"   {line}", flush=True)


def run(lanes: dict[str, str], deadline_s: float, behind: Collection[str] = ()) -> int:
    with tempfile.TemporaryDirectory(prefix="zenjun-lanes-") as folder:
        notes = Path(folder) / "again"
        if (code := _run(lanes, deadline_s, behind, notes)) or not (failed := again.read(notes)):
            return code
        print(f"== {len(failed)} FAILED BESIDE OTHERS, AND RUN ONCE MORE ALONE", flush=True)
        for one in failed:
            print(f"-- {one.test}", *(f"   {line}" for line in one.said.splitlines()), sep="\n", flush=True)
        return _run({"again": again.command(failed)}, deadline_s, (), notes)


def _run(lanes: dict[str, str], deadline_s: float, behind: Collection[str], notes: Path) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, exit codes are lost, and what has failed passes
    FOLDER.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in lanes.items():
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # else one could be started that nobody knows of
            running[name] = _start(name, command, name in behind, notes)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        while running:
            for name, lane in list(running.items()):
                if (code := lane.poll()) is None:
                    continue
                del running[name]
                _tell(name, code, time.monotonic() - begun)
                if code:
                    return 1
            if time.monotonic() > begun + deadline_s:
                for name in running:
                    print(f"-- {name}: not done within {deadline_s:g} s", flush=True)
                    _tell(name, -1, time.monotonic() - begun)
                return 1
            time.sleep(0.1)
        return 0
    except KeyboardInterrupt:
        return 130
    finally:
        _end(running)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lanes", description="Commands at the same time.")
    parser.add_argument("--deadline", type=float, default=900.0, metavar="SECONDS")
    parser.add_argument("--behind", action="append", default=[], metavar="NAME", help="a lane that gives way to the others")
    parser.add_argument("lanes", nargs="+", metavar="NAME=COMMAND")
    options = parser.parse_args(argv)
    lanes = dict(lane.partition("=")[::2] for lane in options.lanes)
    if not all(name and command for name, command in lanes.items()):
        parser.error("a lane is NAME=COMMAND")
    if unknown := set(options.behind) - set(lanes):
        parser.error(f"no such lane: {', '.join(sorted(unknown))}")
    return run(lanes, options.deadline, options.behind)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
