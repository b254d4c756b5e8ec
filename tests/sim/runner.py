"""Many seeds on several processes, and the base seed they count from."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from .cluster import simulate

ROOT: Final = Path(__file__).resolve().parents[2]
Result = TypeVar("Result")
SEED_VARIABLE: Final = "ZENJUN_SIM_SEED"
CHUNK: Final = 10
"""Seeds a worker takes at a time."""


@dataclass(frozen=True)
class Outcome:
    """What is left of one run: small enough to send between processes."""

    seed: int
    trace_hash: str
    checker: str
    """Empty: every property held."""
    text: str
    report: str
    frames: int
    messages: int
    instances: int
    virtual_ns: int
    work: Counter[str]


def base_seed() -> tuple[int, str]:
    """(seed, where it comes from): the environment, else the commit, so that every commit tries others; else 1."""
    text = os.environ.get(SEED_VARIABLE)
    if text:
        return int(text), SEED_VARIABLE
    try:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
        return int(head[:10], 16), f"commit {head[:10]}"
    except (OSError, subprocess.SubprocessError, ValueError):
        return 1, "no commit"


def outcome(seed: int) -> Outcome:
    """Run one seed with the options it draws."""
    r = simulate(seed)
    checker, text = (r.violation.checker, r.violation.text) if r.violation else ("", "")
    return Outcome(seed, r.trace_hash, checker, text, r.report, r.frames, r.messages, r.instances, r.virtual_ns, r.work)


def _chunk(run: Callable[[int], Result], seeds: list[int]) -> list[Result]:
    return [run(seed) for seed in seeds]


def run_many(seeds: Iterable[int], jobs: int) -> Iterator[Outcome]:
    """Outcomes in the order of the seeds."""
    return run_each(outcome, seeds, jobs)


def run_each(run: Callable[[int], Result], seeds: Iterable[int], jobs: int) -> Iterator[Result]:
    """The same with what ``run``, a function of a module, makes of a seed."""
    todo = list(seeds)
    chunks = [todo[k : k + CHUNK] for k in range(0, len(todo), CHUNK)]
    if jobs <= 1:
        for chunk in chunks:
            yield from _chunk(run, chunk)
        return
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        for done in pool.map(_chunk, [run] * len(chunks), chunks):
            yield from done


def replay_command(seed: int) -> str:
    return f"python -m tests.sim --seed {seed}"


def summary(outcomes: list[Outcome], seconds: float, say: Callable[[str], None]) -> int:
    """Say how it went, failing seeds first with the command that replays each; returns their number."""
    failed = [o for o in outcomes if o.checker]
    for o in failed:
        say(f"FAILED seed {o.seed}: {o.checker}: {o.text}\n  replay: {replay_command(o.seed)}")
    frames, messages = sum(o.frames for o in outcomes), sum(o.messages for o in outcomes)
    say(
        f"{len(outcomes)} seeds, {len(failed)} failed, {sum(o.instances for o in outcomes)} instances, {messages} messages,"
        f" {frames} frames, {sum(o.virtual_ns for o in outcomes) / 1e9:.0f} s of virtual time in {seconds:.1f} s"
        f" ({len(outcomes) / max(seconds, 1e-9):.1f} seeds/s)"
    )
    return len(failed)
