"""``python -m tests.model.links COUNT [FIRST]``: so many seeds; the first one that fails is named."""

from __future__ import annotations

import sys

from .runs import Run, Violation


def main() -> int:
    count, first = (int(text) for text in (*sys.argv[1:], "0")[:2])
    for seed in range(first, first + count):
        try:
            Run(seed).run()
        except Violation as violation:
            print(f"seed {seed}: {violation}")
            return 1
    print(f"{count} seeds from {first}: all checks hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
