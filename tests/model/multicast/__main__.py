"""Runs of the model from the command line.

``python -m tests.model.multicast FIRST COUNT [KIND ...]``: many seeds; prints those that fail. KIND is ``abstract`` (the default:
links that lose nothing), ``lossy`` (links as modelled, on a wire that loses), ``cores`` (the product's links on that wire),
``hosts`` (the daemon's part), ``paths`` (that part on real data paths), ``c`` or ``c-cores`` (the machine whose open era is in C,
beside its twin).
``python -m tests.model.multicast counts``: records per message, beside the paper's table. Simulated, not measured.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from ...link import overlap_hosts
from ...sim.violation import Violation
from . import hostworld
from .cores import CoreWorld
from .counts import table
from .inc import Beside
from .lossy import LossyWorld
from .world import simulate


def _on_paths(seed: int) -> Violation | None:
    try:
        overlap_hosts.simulate(seed)
    except AssertionError as error:
        return Violation("paths", str(error))
    return None


KINDS: Final[dict[str, Callable[[int], Violation | None]]] = {
    "abstract": simulate,
    "lossy": lambda seed: simulate(seed, kind=LossyWorld),
    "cores": lambda seed: simulate(seed, kind=CoreWorld),
    "hosts": hostworld.simulate,
    "paths": _on_paths,
    "c": lambda seed: simulate(seed, Beside),
    "c-cores": lambda seed: simulate(seed, Beside, kind=CoreWorld),
}
SAY_EVERY: Final = 1_000
"""Seeds after which the state of a run is printed."""


def counts() -> int:
    """Print both tables. Returns 1 if a number is not the paper's."""
    wrong = False
    for inside, where in ((False, "outside"), (True, "inside")):
        rows = list(table(inside))
        wrong |= "!" in "".join(rows)
        print(f"Simulated: records for one message, sender {where} the group of N stations, n of them with a token\n")
        print("\n".join(rows) + "\n")
    print("not as the paper says where marked with !" if wrong else "every number is the paper's: 3N, and 2N + n - 2")
    return int(wrong)


def seeds(kind: str, first: int, count: int) -> int:
    """Run these seeds of one kind. Returns how many failed."""
    failed: Counter[str] = Counter()
    for seed in range(first, first + count):
        violation = KINDS[kind](seed)
        if violation is not None:
            failed[violation.checker] += 1
            print(f"{kind} {seed}: {violation}", flush=True)
            if count == 1:
                print("\n".join(violation.__notes__))
        done = seed - first + 1
        if done % SAY_EVERY == 0 or done == count:
            print(
                f"{kind}: {done} seeds from {first}: {failed.total()} failed {dict(failed)}, {time.process_time():.0f} s",
                flush=True,
            )
    return failed.total()


def main() -> int:
    if sys.argv[1:] == ["counts"]:
        return counts()
    try:
        first, count = (int(text) for text in sys.argv[1:3])
    except ValueError:
        first = count = 0
    kinds = sys.argv[3:] or ["abstract"]
    if count < 1 or not set(kinds) <= set(KINDS):
        sys.stderr.write(f"usage: python -m tests.model.multicast FIRST COUNT [{' '.join(KINDS)}] | counts\n")
        return 2
    return 1 if sum(seeds(kind, first, count) for kind in kinds) else 0


if __name__ == "__main__":
    sys.exit(main())
