"""``python -m tests.model.queues [MBIT…]``: what two links of this rate carry against one, today and with the rules of before."""

from __future__ import annotations

import sys

from .runs import Rules, Run

MILLISECONDS = 400.0


def main() -> int:
    for text in sys.argv[1:] or ["200"]:
        rate = float(text)
        one = Run(0, 1, (rate,))
        one.run(MILLISECONDS)
        print(f"{rate:g} Mbit/s: one link: {one.summary()}")
        for name, rules in {"two": Rules(), "fixed wait": Rules(fixed_wait=True), "count only": Rules(count_only=True),
                            "both": Rules(fixed_wait=True, count_only=True)}.items():  # fmt: skip
            two = Run(0, 2, (rate, rate), rules=rules)
            two.run(MILLISECONDS)
            print(f"  {name:10} {two.delivered / max(1, one.delivered):.2f} x: {two.summary()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
