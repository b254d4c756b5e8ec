"""``python -m tests.jepsen``: a run of faults by hand, or the judgement of an old one, from the root of the repository."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
import time
from pathlib import Path

from zenjun.tools.histories import history as histories
from zenjun.tools.histories import judge
from zenjun.tools.histories.multicaster import Task
from zenjun.tools.scenario.multicasting import judge_histories

from .broken import DEFECTS
from .runner import draw, run


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(argv: list[str]) -> int:
    """0: every property held; 1: some did not; 2: wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.jepsen", description="Faults on real daemons, judged by their clients."
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults (default 60)")
    parser.add_argument("--seed", type=int, help="of the plan; default: a new one, which is printed")
    parser.add_argument("--stations", type=int, default=5, help="2 to 16 (default 5)")
    parser.add_argument("--groups", action="store_true", help="with programs in groups that overlap; 4 stations or more")
    parser.add_argument("--out", type=Path, help="folder for histories, logs and the report (default: a new one, kept)")
    parser.add_argument("--defect", metavar="NAME", help="break the daemons on purpose: the run must not pass (see broken.py)")
    parser.add_argument("--plan", action="store_true", help="print the plan of the seed and stop")
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="judge the histories of an earlier run again and stop")
    args = parser.parse_args(argv)
    if args.judge is not None:
        return _judge(args.judge)
    if args.defect is not None and args.defect not in DEFECTS:
        parser.error(f"no such defect: {args.defect}; there are {', '.join(DEFECTS)}")
    if not (4 if args.groups else 2) <= args.stations <= 16:
        parser.error(f"{4 if args.groups else 2} to 16 stations")
    seed = secrets.randbelow(10**9) if args.seed is None else args.seed
    say(f"seed {seed}")
    if args.plan:
        say("\n".join(f"{act.begin_ms:7d} ms  {act}" for act in draw(seed, args.seconds, args.stations)))
        return 0
    folder = args.out or Path(tempfile.mkdtemp(prefix="zenjun-jepsen-"))
    began = time.monotonic()
    outcome = run(
        seed=seed,
        seconds=args.seconds,
        folder=folder,
        stations=args.stations,
        defect=args.defect,
        groups=args.groups,
        say=say,
    )
    say((folder / "report.txt").read_text())
    say(f"converged after {outcome.converged_ms} ms, {outcome.rounds} rounds of last words")
    say(f"{time.monotonic() - began:.0f} s in all")
    say(f"histories and logs: {outcome.folder}")
    say("all properties hold" if outcome.held else "VIOLATED")
    return 0 if outcome.held else 1


def _judge(folder: Path) -> int:
    marks = [json.loads(line) for line in (folder / "runner.jsonl").read_text().splitlines()]
    stations = next(int(mark["stations"]) for mark in marks if mark["k"] == "run")
    paths = [*folder.glob("station-*.jsonl"), folder / "runner.jsonl"]
    report = judge(histories.read(paths, stations, stations // 2 + 1))
    say(report.text)
    violated = bool(report.violations)
    task = next((Task(mark["groups"], stations=stations) for mark in marks if "groups" in mark), None)
    if task is not None:
        found = judge_histories(folder, task, stations)
        say(f"groups that overlap:\n{found.text}")
        violated |= bool(found.violations)
    say("VIOLATED" if violated else "all properties hold")
    return int(violated)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
