"""``python -m tests.model.multicast FIRST COUNT``: many seeds; prints those that fail."""

from __future__ import annotations

import sys
from collections import Counter

from .world import simulate


def main() -> int:
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
