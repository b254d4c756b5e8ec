"""``python -m tests.sim``: run or replay seeds from the root of the repository."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from .bus import simulate_bus
from .case import Case, check_profile, parse_settings, run
from .checkers import CHECKERS, Violation
from .cluster import Result
from .hunt import Hunt
from .runner import base_seed, run_each, run_many, summary
from .scenario import SEPARATOR
from .schedule import checker_of, outcome, record, replay, shorten
from .shrink import shrink


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(argv: list[str]) -> int:
    """0: every property held; 1: some seed failed; 2: wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Deterministic simulation of whole clusters.")
    parser.add_argument("--seed", type=int, help="replay this seed and print its trace hash")
    parser.add_argument("--trace", type=int, metavar="LINES", default=0, help="with --seed: print the last lines of the trace")
    parser.add_argument(
        "--only", metavar="CHECKERS", default="", help=f"with --seed: use these checkers only, of {','.join(CHECKERS)}"
    )
    parser.add_argument(
        "--seeds", type=int, metavar="COUNT", default=300, help="run so many seeds from the base seed on (default 300)"
    )
    parser.add_argument("--base", type=int, help="first seed; default: ZENJUN_SIM_SEED, else the commit")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--bus", action="store_true", help="seeds of the bus medium (tests/sim/bus.py)")
    parser.add_argument("--profile", default="", metavar="A+B", help="with --seed, --shrink: changes of the options, by name")
    parser.add_argument(
        "--set", action="append", default=[], metavar="OPTION=VALUE", help="the same: one option, as faults.loss=0"
    )
    parser.add_argument("--shrink", type=int, metavar="SEED", help="make this failing seed small")
    parser.add_argument("--hunt", type=float, metavar="MINUTES", help="look for failures and for what no seed has met before")
    parser.add_argument("--seconds", type=float, default=300, help="with --shrink: for so long at most (default 300)")
    parser.add_argument("--scenario", type=Path, metavar="FILE", help="with --seed, --shrink: write what happened as a scenario")
    parser.add_argument(
        "--out", type=Path, default=Path("build/hunt"), help="with --hunt: folder of reports (default build/hunt)"
    )
    args = parser.parse_args(argv)
    if args.bus and args.scenario:
        parser.error("a bus has no scenarios")
    try:
        check_profile(args.profile)
        settings = parse_settings(args.set)
    except ValueError as error:
        parser.error(str(error))
    if args.hunt is not None:
        return _hunt(args)
    if args.shrink is not None:
        return _shrink(Case(args.shrink, args.profile, settings, args.bus), args.seconds, args.scenario)
    if args.bus:
        return _bus(args, settings)
    only = tuple(filter(None, args.only.split(",")))
    if unknown := sorted(set(only) - set(CHECKERS)):
        parser.error(f"no such checker: {', '.join(unknown)}; there are {', '.join(CHECKERS)}")
    if args.seed is not None:
        case = Case(args.seed, args.profile, settings)
        return _scenario(case, args.scenario, 0) if args.scenario else _replay(case, only, args.trace)
    base, source = (args.base, "--base") if args.base is not None else base_seed()
    say(f"base seed {base} ({source})")
    began = time.monotonic()
    outcomes = []
    for o in run_many(range(base, base + args.seeds), args.jobs):
        outcomes.append(o)
        if o.checker:
            say(o.report)
    return 1 if summary(outcomes, time.monotonic() - began, say) else 0


def _bus(args: argparse.Namespace, settings: tuple[tuple[str, Any], ...]) -> int:
    if args.seed is not None:
        case = Case(args.seed, args.profile, settings, bus=True)
        if args.trace:
            sim = case.simulation()
            try:
                sim.run()
            except Violation as error:
                say(f"ends with {error}")
            say("\n".join(sim.trace.last(frozenset(), args.trace)))
        r = simulate_bus(args.seed, change=case.change())
        say(r.report if r.violation else f"options: {r.options.text()}\nall properties hold")
        say(f"trace hash {r.trace_hash}  {r.messages} messages  {r.instances} instances  {r.resets} resets")
        return 1 if r.violation else 0
    base, source = (args.base, "--base") if args.base is not None else base_seed()
    say(f"base seed {base} ({source})")
    failed = resets = messages = 0
    began = time.monotonic()
    for r in run_each(simulate_bus, range(base, base + args.seeds), args.jobs):
        resets += r.resets
        messages += r.messages
        if r.violation:
            failed += 1
            say(f"{r.report}\nreplay: python -m tests.sim --bus --seed {r.seed}")
    say(f"{args.seeds} seeds, {failed} failed, {messages} messages, {resets} resets in {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


def _replay(case: Case, only: tuple[str, ...], lines: int) -> int:
    say(f"seed {case.seed}")
    if lines:
        sim = case.simulation(only)
        try:
            sim.run()
        except Exception as error:  # printed again, in full, by the plain replay below
            say(f"ends with {type(error).__name__}")
        say("\n".join(sim.trace.last(frozenset(), lines)))
    done = run(case, only)
    r = done.result
    assert isinstance(r, Result), "a bus is not replayed here"
    say(r.report if r.violation else f"options: {r.options.text()}\nall properties hold")
    counts = f"{r.frames} frames  {r.messages} messages  {r.instances} instances"
    say(f"trace hash {r.trace_hash}  {counts}  {r.virtual_ns / 1e6:.3f} ms of virtual time")
    return 1 if r.violation else 0


def _scenario(case: Case, path: Path, seconds: float) -> int:
    """Write the schedule of a case, made shorter for so many seconds. 1: it fails, and so does the text. 2: the text does not
    fail as the case does."""
    lines, result = record(case.seed, case.change())
    if not result.violation:
        say("all properties hold")
    elif checker_of(replay(lines)) != checker_of(result):
        say(f"the text does not show it: {result.violation}")
        return 2
    elif seconds:
        lines = shorten(lines, seconds)
    said = outcome(replay(lines))
    path.write_text("\n".join([f"# {case.command()}", *lines, SEPARATOR, said]) + "\n")
    say(f"{path}: {len(lines)} lines, {said}")
    return 1 if result.violation else 0


def _shrink(case: Case, seconds: float, scenario: Path | None) -> int:
    """1: it fails, and what is printed last is the smallest case found; 0: it does not fail."""
    try:
        small = shrink(case, seconds, say)
    except ValueError as error:
        say(str(error))
        return 0
    say(f"{small.result.report}\nsmallest: {small.case.command()}")
    return _scenario(small.case, scenario, seconds) if scenario else 1


def _hunt(args: argparse.Namespace) -> int:
    base, source = (args.base, "--base") if args.base is not None else base_seed()
    say(f"base seed {base} ({source})")
    hunt = Hunt(base, args.out, say, bus=args.bus)
    hunt.hunt(args.hunt * 60, jobs=args.jobs)
    say(f"{hunt.count} cases, {len(hunt.failed)} failed, {len(hunt.known)} things met, {len(hunt.kept)} cases kept: {args.out}")
    say("\n".join(sorted(hunt.known)))
    return 1 if hunt.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
