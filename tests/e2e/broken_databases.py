"""``python -m tests.e2e.broken_databases VARIANT --config …``: a database process with one rule broken.

Station 3 is slow besides: what the order brings it takes 0.2 s later. It may be, and a broken rule is seen however fast the
machine is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from zenjun.daemon.database.__main__ import main
from zenjun.daemon.database.site import Site
from zenjun.proto.service.database.certify import Certifier
from zenjun.proto.service.database.machine import Answer, Durability, Machine
from zenjun.proto.service.database.messages import Txid, Write
from zenjun.proto.service.database.rows import Verdict


def reads_ignored() -> None:
    """Rule K2: what a transaction has read may have been written since."""

    def reads(self: Certifier, write: Write) -> tuple[bytes, ...]:
        return ()

    Certifier.reads = reads  # type: ignore[method-assign]


def answers_at_once() -> None:
    """A program is told that its transaction is committed before the order has decided it."""
    honest = Machine._submit

    def submit(self: Machine, txid: Txid, data: bytes, durability: Durability) -> list[Any]:
        effects = honest(self, txid, data, durability)
        self._answers.pop(txid, None)
        return [*effects, Answer(txid, Verdict.DONE, self.rows.position().version + 1)]

    Machine._submit = submit  # type: ignore[method-assign]


def reads_without_a_barrier() -> None:
    """Rule D3: a linearizable read does not wait for its place."""
    honest = Machine.barrier

    def barrier(self: Machine, number: int) -> list[Any]:
        from zenjun.proto.service.database.machine import Reached

        honest(self, number)
        return [Reached(number, 0)]

    Machine.barrier = barrier  # type: ignore[method-assign]


def slow_at_station_3() -> None:
    """Nothing is broken by this."""
    honest = Site._take

    def take(self: Site, items: Sequence[Any]) -> list[Any]:
        if self.machine is not None and self.machine.me[0] == 3:
            time.sleep(0.2)
        return honest(self, items)

    Site._take = take  # type: ignore[method-assign]


VARIANTS: Final[dict[str, Callable[[], None]]] = {
    "reads-ignored": reads_ignored,
    "answers-at-once": answers_at_once,
    "no-barrier": reads_without_a_barrier,
    "slow": lambda: None,
}

if __name__ == "__main__":
    slow_at_station_3()
    VARIANTS[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
