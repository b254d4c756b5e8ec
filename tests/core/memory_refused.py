"""A process of its own that may not have more address space: python -m tests.core.memory_refused ordered|fifo|overtaken.

For ``test_assembly.py``. Exit code 0: the order waited as long as memory was refused, lost nothing, and went on then.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Final

from zenjun.proto.core import Core, Message, Stage
from zenjun.proto.wire import Ordering

from ..virtual.cores import config
from ..virtual.segment import MS
from .test_face import VIEW, alone

SLACK = 3 << 20
"""Bytes it may still have: less than the message."""


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def limit(more: int | None) -> None:
    """So many bytes more than there are now; None: no limit."""
    most = resource.RLIM_INFINITY if more is None else address_space() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def waits(ordering: Ordering) -> None:
    """Three messages of one ordering, of which the second is larger than what there is."""
    core, large = alone(), bytes(range(256)) * (32 << 10)
    sent = [b"before", large, b"after"]
    waiting = sent[::-1]
    got: list[Message] = []
    refused_at = position = 0
    limit(SLACK)
    for turn in range(4000):
        while waiting and core.offer(waiting[-1], group=1, client=1, ordering=ordering):
            waiting.pop()
        core.step(2 * MS + turn * MS, True)
        core.tx()
        got += core.deliver()
        if core.memory_refused and not refused_at:
            refused_at, position = turn, core.positions().ordered
        if refused_at and turn == refused_at + 1000:
            assert core.memory_refused == 1, "one wait, however often it is tried again"
            assert core.positions().ordered == position and [m.data for m in got if m.stage != Stage.PLACED] == sent[:1]
            assert 0 < core.assembling_bytes <= SLACK
            limit(None)
    assert refused_at and not waiting
    assert [m.data for m in got if m.stage != Stage.PLACED] == sent
    assert sum(m.stage == Stage.PLACED for m in got) == (3 if ordering is Ordering.FIFO else 0)


def overtaken() -> None:
    """A message in FIFO order is accepted behind one that waits for memory, but its place is before that one's:
    it must not be counted at its place before it has been handed out."""
    here, early, large = (Core(**config(stations=3, self_index=k)) for k in range(3))
    for core in (here, large, early):
        core.open(MS, 1, VIEW, (1, 1, 1), 1500)
    for core, data in ((early, b"early"), (large, bytes(1 << 20))):
        core.offer(data, group=1, client=1, ordering=Ordering.FIFO)
        core.step(2 * MS, True)
    (first,), pieces = early.tx(), large.tx()
    for pdu in (*pieces[:8], first):  # several, so that the clocks of all have passed the place
        assert here.rx(3 * MS, pdu, bytes(6)) == 0
    here.step(3 * MS, True)
    limit(0)
    assert not here.deliver() and here.memory_refused == 1
    limit(None)
    here.step(5 * MS, True)
    here.tx()
    here.step(6 * MS, True)
    assert [(m.stage, m.data) for m in here.deliver()] == [(Stage.ACCEPTED, b"early"), (Stage.PLACED, b"")]


SCENARIOS: Final = {"ordered": lambda: waits(Ordering.TOTAL), "fifo": lambda: waits(Ordering.FIFO), "overtaken": overtaken}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]]()
