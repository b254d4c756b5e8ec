"""How often a station asks for what it misses."""

from __future__ import annotations

from itertools import pairwise

import pytest
from zenjun.proto.wire import HEADER, NAK, RANGE, Kind

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


@rule("J10")
def test_what_may_come_over_another_link_is_waited_for() -> None:
    """What has been overtaken on every link is lost, and asked for as ever; the rest after so much more time."""
    cores = Cores(2, **PROMPT)
    pdus = [cores.send(0) for _ in range(5)]
    for seq in (1, 4):  # 0, 2 and 3 are missing
        cores.give(0, 1, pdus[seq])

    def asked(ns: int) -> list[tuple[int, int]]:
        """What station 1 asks for in so many ns, as ranges of numbers."""
        found, end = [], cores.now + ns
        while cores.now < end:
            naks = [pdu for pdu in cores.step(1, STEP_NS, timers=True) if peek(pdu, "kind") == Kind.NAK]
            found += [pair for pdu in naks for pair in ranges(pdu)]
        return found

    cores[1].passed(0, 2, 20 * MS)
    assert asked(MS) == [(0, 1)], "later numbers have come on every link"
    cores[1].passed(0, 3, 20 * MS)
    assert asked(MS // 2) == [(2, 1)], "and now of this one, too"
    assert not any(first + span > 3 for first, span in asked(15 * MS))
    assert any(first + span > 3 for first, span in asked(10 * MS)), "a link may have failed"


def ranges(nak: bytes) -> list[tuple[int, int]]:
    """First number and how many, of each range."""
    at = HEADER.size + 8 * peek(nak, "stations") + NAK.size
    return [RANGE.struct.unpack_from(nak, at + k * RANGE.size) for k in range(nak[at - NAK.size + NAK.offset("count")])]


@rule("C4")
@pytest.mark.parametrize("own", [0, 3])
def test_who_goes_on_sending_asks_all_the_same(own: int) -> None:
    """Nobody receives what it sends. It has a message every 2 ms, and the time for a poll is 5 ms."""
    cores = Cores(2, **{**PROMPT, "window": 32}, poll_own=own)
    polls = 0
    for _ in range(20):
        cores.offer(0)
        polls += sum(peek(pdu, "kind") == Kind.CONFIRM for pdu in cores.step(0, 2 * MS, timers=True))
    assert (polls > 0) == (own > 0)
    assert polls < 5
