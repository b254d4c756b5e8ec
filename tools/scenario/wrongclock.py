"""``python -m zenjun.tools.scenario.wrongclock SECONDS ARGUMENT…``: zenjun-directory with a wall clock that is ahead by so many
seconds, or (negative) behind. All processes of a lab share the machine's clock, so it is set wrong for one of them."""

from __future__ import annotations

import sys
import time

from ...daemon.directory.__main__ import main as directory


def main(argv: list[str]) -> int:
    """Run it; returns its exit code."""
    seconds, right = float(argv[0]), time.time
    time.time = lambda: right() + seconds
    return directory(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
