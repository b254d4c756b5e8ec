"""``python -m tests.sim``: run or replay seeds from the root of the repository."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from .bus import BusSimulation, simulate_bus
from .checkers import CHECKERS, Violation
from .cluster import Simulation, simulate
from .runner import base_seed, run_many, summary


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
    args = parser.parse_args(argv)
    if args.bus:
        return _bus(args)
    only = tuple(filter(None, args.only.split(",")))
    if unknown := sorted(set(only) - set(CHECKERS)):
        parser.error(f"no such checker: {', '.join(unknown)}; there are {', '.join(CHECKERS)}")
    if args.seed is not None:
        return _replay(args.seed, only, args.trace)
    base, source = (args.base, "--base") if args.base is not None else base_seed()
    say(f"base seed {base} ({source})")
    began = time.monotonic()
    outcomes = []
    for o in run_many(range(base, base + args.seeds), args.jobs):
        outcomes.append(o)
        if o.checker:
            say(o.report)
    return 1 if summary(outcomes, time.monotonic() - began, say) else 0


def _bus(args: argparse.Namespace) -> int:
    if args.seed is not None:
        if args.trace:
            sim = BusSimulation(args.seed)
            try:
                sim.run()
            except Violation as error:
                say(f"ends with {error}")
            say("\n".join(sim.trace.last(frozenset(), args.trace)))
        r = simulate_bus(args.seed)
        say(r.report if r.violation else f"options: {r.options.text()}\nall properties hold")
        say(f"trace hash {r.trace_hash}  {r.messages} messages  {r.instances} instances  {r.resets} resets")
        return 1 if r.violation else 0
    base, source = (args.base, "--base") if args.base is not None else base_seed()
    say(f"base seed {base} ({source})")
    failed = resets = messages = 0
    began = time.monotonic()
    with ProcessPoolExecutor(args.jobs) as pool:
        for r in pool.map(simulate_bus, range(base, base + args.seeds), chunksize=5):
            resets += r.resets
            messages += r.messages
            if r.violation:
                failed += 1
                say(f"{r.report}\nreplay: python -m tests.sim --bus --seed {r.seed}")
    say(f"{args.seeds} seeds, {failed} failed, {messages} messages, {resets} resets in {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


def _replay(seed: int, only: tuple[str, ...], lines: int) -> int:
    say(f"seed {seed}")
    if lines:
        sim = Simulation(seed, only=only)
        try:
            sim.run()
        except Exception as error:  # printed again, in full, by the plain replay below
            say(f"ends with {type(error).__name__}")
        say("\n".join(sim.trace.last(frozenset(), lines)))
    r = simulate(seed, only=only)
    say(r.report if r.violation else f"options: {r.options.text()}\nall properties hold")
    counts = f"{r.frames} frames  {r.messages} messages  {r.instances} instances"
    say(f"trace hash {r.trace_hash}  {counts}  {r.virtual_ns / 1e6:.3f} ms of virtual time")
    return 1 if r.violation else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
