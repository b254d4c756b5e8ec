"""How often a station asks for what it misses."""

from __future__ import annotations

from itertools import pairwise

import pytest
from zenjun.proto.wire import Kind

from ..rules import rule
from ..virtual.cores import PROMPT, Cores
from ..virtual.pdus import peek
from ..virtual.segment import MS

STEP_NS = MS // 8


@rule("C2")
@pytest.mark.parametrize("even", [0, 3])
def test_requests_that_nobody_answers_come_less_and_less_often(even: int) -> None:
    """The first waits are equal: where frames are lost, so are requests and answers."""
    cores = Cores(2, **PROMPT, nak_even=even)
    cores.send(0)
    cores.give(0, 1, cores.send(0))
    asked: list[int] = []
    while len(asked) < even + 4:
        asked += [cores.now for pdu in cores.step(1, STEP_NS, timers=True) if peek(pdu, "kind") == Kind.NAK]
    waits = [later - earlier for earlier, later in pairwise(asked)]
    expected = [2] * (even + 1) + [4, 8]
    assert all(ms * MS <= wait <= 1.5 * ms * MS + STEP_NS for ms, wait in zip(expected, waits, strict=True)), waits
