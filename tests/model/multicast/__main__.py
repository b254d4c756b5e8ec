"""Runs of the model from the command line.

``python -m tests.model.multicast FIRST COUNT``: many seeds; prints those that fail.
``python -m tests.model.multicast counts``: records per message, beside the paper's table. Simulated, not measured.
"""

from __future__ import annotations

import sys
from collections import Counter

from .counts import table
from .world import simulate


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


def main() -> int:
    if sys.argv[1:] == ["counts"]:
        return counts()
    first, count = (int(text) for text in sys.argv[1:3])
    failed: Counter[str] = Counter()
    for seed in range(first, first + count):
        violation = simulate(seed)
        if violation is not None:
            failed[violation.checker] += 1
            print(f"{seed}: {violation}", flush=True)
            if count == 1:
                print("\n".join(violation.__notes__))
    print(f"{count} seeds from {first}: {sum(failed.values())} failed {dict(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
