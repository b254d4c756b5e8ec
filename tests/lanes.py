"""Run several commands at the same time, each in a process group of its own.

    python -m tests.lanes [--deadline SECONDS] [--behind NAME]… [--at-once POOL=N]… NAME=COMMAND…

COMMAND is a line for the shell. Lanes whose names begin with POOL/ are started in their order, N of a pool at a time (1 if
nothing is said): whoever has done with one takes the next, so that no processor is idle before the last has begun. A lane (or
pool) that computes only goes behind the others: it gets what those leave over that wait for timers of real daemons, and does not
make them late. What a lane says is in out/lanes/NAME.log, and shown when it has ended: its last lines and what each part cost,
all of it when it failed. The first that fails ends the others; so do Ctrl-C and the deadline. When all have ended, tests that
they noted run once more, alone (again.py). Exit code: 0 all ended well, 1 not so, 130.
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
from collections import Counter
from collections.abc import Collection, Mapping
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


def _pool(name: str) -> str:
    """Of a lane that waits for its turn; any other is one by itself."""
    return name.partition("/")[0]


def _log(name: str) -> Path:
    return FOLDER / f"{name.replace('/', '-')}.log"


def _start(name: str, command: str, behind: bool, notes: Path) -> subprocess.Popen[bytes]:
    """With the default actions of the signals: a shell's background jobs ignore Ctrl-C, and tests of it would fail there."""

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if behind:
            _give_way()

    with _log(name).open("wb") as log:
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
    lines = _log(name).read_text(errors="replace").splitlines()
    print(f"-- {name}: {'passed' if code == 0 else f'FAILED ({code})'} after {seconds:.0f} s", flush=True)
    loud = [k for k, line in enumerate(lines[:-TAIL_LINES]) if LOUD in line or line.startswith(COST)]
    shown = lines if code else [*(line for k in loud for line in lines[k : k + 2]), *lines[-TAIL_LINES:]]
    for line in shown:
        print(f"   {line}", flush=True)


def run(lanes: dict[str, str], deadline_s: float, behind: Collection[str] = (), at_once: Mapping[str, int] | None = None) -> int:
    with tempfile.TemporaryDirectory(prefix="zenjun-lanes-") as folder:
        notes = Path(folder) / "again"
        if (code := _run(lanes, deadline_s, behind, at_once or {}, notes)) or not (failed := again.read(notes)):
            return code
        print(f"== {len(failed)} FAILED BESIDE OTHERS, AND RUN ONCE MORE ALONE", flush=True)
        for one in failed:
            print(f"-- {one.test}", *(f"   {line}" for line in one.said.splitlines()), sep="\n", flush=True)
        return _run({"again": again.command(failed)}, deadline_s, (), {}, notes)


def _next(waiting: Collection[str], running: Collection[str], at_once: Mapping[str, int]) -> str | None:
    """The first lane for which there is room."""
    busy = Counter(map(_pool, running))
    return next((name for name in waiting if busy[_pool(name)] < at_once.get(_pool(name), 1)), None)


def _run(lanes: Mapping[str, str], deadline_s: float, behind: Collection[str], at_once: Mapping[str, int], notes: Path) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, exit codes are lost, and what has failed passes
    FOLDER.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    waiting = dict(lanes)
    running: dict[str, subprocess.Popen[bytes]] = {}
    since: dict[str, float] = {}
    try:
        while waiting or running:
            while (name := _next(waiting, running, at_once)) is not None:
                since[name] = time.monotonic()
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # else one could be started that nobody knows of
                running[name] = _start(name, waiting.pop(name), bool({name, _pool(name)} & set(behind)), notes)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            for name, lane in list(running.items()):
                if (code := lane.poll()) is None:
                    continue
                del running[name]
                _tell(name, code, time.monotonic() - since[name])
                if code:
                    return 1
            if time.monotonic() > begun + deadline_s:
                for name in running:
                    print(f"-- {name}: not done within {deadline_s:g} s", flush=True)
                    _tell(name, -1, time.monotonic() - since[name])
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
    parser.add_argument("--at-once", action="append", default=[], metavar="POOL=N", help="how many lanes POOL/… run at a time")
    parser.add_argument("lanes", nargs="+", metavar="NAME=COMMAND")
    options = parser.parse_args(argv)
    lanes = dict(lane.partition("=")[::2] for lane in options.lanes)
    if not all(name and command for name, command in lanes.items()):
        parser.error("a lane is NAME=COMMAND")
    at_once = {pool: int(number) for pool, _, number in (each.partition("=") for each in options.at_once) if number.isdigit()}
    if len(at_once) < len(options.at_once) or 0 in at_once.values():
        parser.error("--at-once is POOL=N, once for each, with N at least 1")
    if unknown := {*options.behind, *at_once} - {*lanes, *map(_pool, lanes)}:
        parser.error(f"no such lane: {', '.join(sorted(unknown))}")
    return run(lanes, options.deadline, options.behind, at_once)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
