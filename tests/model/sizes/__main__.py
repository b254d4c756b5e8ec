"""``python -m tests.model.sizes N [FIRST]``: run seeds FIRST.. (default 0); prints those that fail."""

from __future__ import annotations

import sys
import traceback

from .runs import Run


def main() -> int:
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    bad = 0
    for seed in range(first, first + count):
        try:
            Run(seed).run()
        except AssertionError as error:
            bad += 1
            print(f"seed {seed}: {error}")
        except Exception:
            bad += 1
            print(f"seed {seed}:\n{traceback.format_exc()}")
    print(f"{count} runs from seed {first}, {bad} failed")
    return 1 if bad else 0


sys.exit(main())
