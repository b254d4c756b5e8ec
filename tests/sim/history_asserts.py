"""What the tests of simulations on an abstract order assert: ``histories.py``, and the groups that overlap of tests/model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence

from .histories import Run, World
from .runner import base_seed


def assert_holds(simulate: Run, offsets: Iterable[int]) -> None:
    """So many seeds behind the base seed."""
    seed, source = base_seed()
    for k in offsets:
        violation = simulate(seed + k)
        assert violation is None, f"({source}) {violation}\n" + "\n".join(violation.__notes__)


def block(number: int, count: int) -> range:
    """The offsets of one of several tests that share the seeds."""
    return range(number * 1000, number * 1000 + count)


def caught(broken: Run, honest: Run, seeds: int, known: int = 0) -> tuple[str, int]:
    """The checker that catches a broken rule first, and the seed; no checker if none of the seeds shows it. The honest machine
    passes the run in which the broken one fails. known: the seed that showed it last, which is tried before all others."""
    for seed in (known, *(seed for seed in range(seeds) if seed != known)):
        violation = broken(seed)
        if violation is not None:
            assert honest(seed) is None, f"seed {seed} fails without the broken rule as well"
            return violation.checker, seed
    return "", seeds


def assert_same_again(make: Callable[[], World]) -> None:
    """Two runs of the same plan have the same trace."""
    traces = []
    for _ in range(2):
        world = make()
        world.run()
        traces.append(world.trace)
    assert traces[0] == traces[1] and traces[0]


def assert_same_for_every_hash(program: str, lines: int, hash_seeds: Sequence[str]) -> None:
    """Interpreters whose text hashes differ, and with them the order of sets, print the same lines."""
    outputs = set()
    for number in hash_seeds:
        environment = {**os.environ, "PYTHONHASHSEED": number, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=200, check=True
        )
        outputs.add(run.stdout)
    assert len(outputs) == 1 and len(outputs.pop().splitlines()) == lines
