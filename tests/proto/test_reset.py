"""The reset of a bus, as a state machine: no core, no frames."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from zenjun.proto.core import Phase
from zenjun.proto.reset import TRANSITIONS, Cause, Reset, State
from zenjun.proto.timers import NEVER
from zenjun.proto.wire import Kind

from ..rules import rule

MS = 1_000_000


class Log:
    """A core that has nothing but a vector."""

    def __init__(self, *vector: int) -> None:
        self.own = list(vector)
        self.at = Phase.RUN
        self.epoch = 0
        self.said: list[tuple[Kind, int, tuple[int, ...]]] = []
        self.full = False

    def phase(self) -> tuple[int, int]:
        return self.at, self.epoch

    def vector(self) -> tuple[int, ...]:
        return tuple(self.own)

    def reset_enter(self, epoch: int) -> None:
        self.at, self.epoch = Phase.RESET, epoch

    def reset_cut(self, vector: Sequence[int], index: int) -> bool:
        smaller = [min(a, b) for a, b in zip(self.own, vector, strict=True)]
        shrank, self.own = smaller != self.own, smaller
        return shrank

    def reset_agree(self) -> None:
        self.at = Phase.AGREED

    def reset_done(self) -> None:
        self.at = Phase.RUN

    def reset_say(self, kind: int, epoch: int, vector: Sequence[int]) -> bool:
        if not self.full:
            self.said.append((Kind(kind), epoch, tuple(vector)))
        return not self.full

    def take(self) -> list[tuple[Kind, int, tuple[int, ...]]]:
        said, self.said = self.said, []
        return said


def make(log: Log, n: int = 3) -> Reset:
    reset = Reset(log, index=0, repeat_ns=2 * MS, repeat_max_ns=8 * MS)
    reset.begin(range(n))
    return reset


def test_table_is_total() -> None:
    assert set(TRANSITIONS) == set(product(State, Cause))


@rule("R1", "R3", "R4")
def test_a_loss_is_told_and_compared() -> None:
    log = Log(5, 6, 7)
    reset = make(log)
    log.at = Phase.LOST
    assert reset.settle(0)
    assert (reset.state, reset.epoch, log.at) == (State.COMPARING, 1, Phase.RESET)
    assert log.take() == [(Kind.RST, 1, (5, 6, 7))]
    reset.on_pdu(1, Kind.RST, 1, 1, (6, 5, 7))
    reset.settle(1)
    assert log.take() == [(Kind.RST, 1, (5, 5, 7))], "it has shrunk"
    reset.on_pdu(2, Kind.RST, 1, 1, (5, 5, 7))
    reset.on_pdu(2, Kind.RST, 2, 1, (5, 5, 7))
    reset.settle(2)
    assert (reset.state, log.at, log.take()) == (State.AGREED, Phase.AGREED, [(Kind.RSTC, 1, (5, 5, 7))])
    reset.on_pdu(3, Kind.RSTC, 2, 1, (5, 5, 7))
    assert not reset.settle(3)
    reset.on_pdu(4, Kind.RSTC, 1, 1, (5, 5, 7))
    assert reset.settle(4)
    assert (reset.state, log.at, reset.next_deadline_ns()) == (State.RUNNING, Phase.RUN, NEVER)


@rule("R5")
def test_another_pdu_of_the_epoch_ends_it_in_the_core() -> None:
    log = Log(1, 1)
    reset = make(log, 2)
    reset.on_pdu(0, Kind.RST, 1, 1, (1, 1))
    reset.settle(0)
    states = [reset.state]
    log.at = Phase.RUN
    reset.observe()
    states.append(reset.state)
    assert states == [State.AGREED, State.RUNNING]
    log.take()
    log.at = Phase.LOST
    reset.settle(1)
    assert (reset.epoch, log.take()) == (2, [(Kind.RST, 2, (1, 1))])


@rule("R2")
def test_concurrent_resets_merge_and_a_higher_epoch_wins() -> None:
    log = Log(1, 1)
    reset = make(log, 2)
    log.at = Phase.LOST
    reset.settle(0)
    reset.on_pdu(1, Kind.RST, 1, 1, (1, 0))
    assert reset.epoch == 1
    reset.on_pdu(1, Kind.RST, 1, 4, (1, 0))
    assert (reset.state, reset.epoch, log.epoch) == (State.COMPARING, 4, 4)
    reset.on_pdu(1, Kind.RST, 1, 3, (0, 0))
    assert log.own == [1, 0], "an earlier epoch says nothing any more"


@rule("R6")
def test_the_timer_repeats_both_and_backs_off() -> None:
    log = Log(1, 1)
    reset = make(log, 2)
    log.at = Phase.LOST
    reset.settle(0)
    log.take()
    at = reset.next_deadline_ns()
    assert 2 * MS <= at < 4 * MS
    reset.on_timeout(at - 1)
    reset.settle(at - 1)
    assert log.take() == []
    reset.on_timeout(at)
    reset.settle(at)
    assert [kind for kind, _, _ in log.take()] == [Kind.RST]
    assert reset.next_deadline_ns() == at + 4 * MS
    reset.on_pdu(at, Kind.RST, 1, 1, (1, 1))
    reset.settle(at)
    log.take()
    for _ in range(3):
        at = reset.next_deadline_ns()
        reset.on_timeout(at)
        reset.settle(at)
        assert [kind for kind, _, _ in log.take()] == [Kind.RST, Kind.RSTC]
    assert reset.next_deadline_ns() == at + 8 * MS, "no longer than the longest"


@rule("R6")
def test_who_has_completed_answers_rst_and_not_rstc() -> None:
    log = Log(1, 1)
    reset = make(log, 2)
    reset.on_pdu(0, Kind.RST, 1, 1, (1, 1))
    reset.settle(0)
    reset.on_pdu(0, Kind.RSTC, 1, 1, (1, 1))
    reset.settle(0)
    assert reset.state is State.RUNNING
    log.take()
    log.own = [3, 4]  # it has gone on since
    reset.on_pdu(1, Kind.RSTC, 1, 1, (1, 1))
    reset.settle(1)
    assert log.take() == []
    for _ in range(3):
        reset.on_pdu(2, Kind.RST, 1, 1, (1, 1))
    reset.settle(2)
    assert log.take() == [(Kind.RSTC, 1, (1, 1))], "once, and what was agreed"


def test_what_finds_the_queue_full_is_repeated() -> None:
    log = Log(1, 1)
    reset = make(log, 2)
    log.full = True
    log.at = Phase.LOST
    reset.settle(0)
    log.full = False
    reset.on_timeout(reset.next_deadline_ns())
    assert [kind for kind, _, _ in log.take()] == [Kind.RST]


@pytest.mark.parametrize("index", [0, 3, 7])
def test_strangers_and_oneself_are_not_heard(index: int) -> None:
    log = Log(1, 1, 1)
    reset = make(log)
    reset.on_pdu(0, Kind.RST, index, 1, (0, 0, 0))
    assert reset.state is State.RUNNING
    assert log.own == [1, 1, 1]


def test_epoch_0_is_no_reset() -> None:
    log = Log(1, 1)
    reset = make(log, 2)
    reset.on_pdu(0, Kind.RST, 1, 0, (1, 1))
    reset.settle(0)
    assert (reset.state, log.take()) == (State.RUNNING, [])


def test_the_end_of_the_instance_ends_it() -> None:
    log = Log(1, 1)
    reset = make(log, 2)
    log.at = Phase.LOST
    reset.settle(0)
    reset.end()
    assert (reset.state, reset.next_deadline_ns()) == (State.RUNNING, NEVER)
    assert not reset.settle(1)
    log.at = Phase.RUN
    reset.begin(range(2))
    assert reset.epoch == 0


def test_alone_a_reset_is_over_at_once() -> None:
    log = Log(3)
    reset = make(log, 1)
    log.at = Phase.LOST
    assert reset.settle(0)
    assert (reset.state, reset.epoch) == (State.RUNNING, 1)
