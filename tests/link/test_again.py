"""Turns that the loop makes without Python: what they do, and when Python is asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from zenjun.daemon.datapath import Want, now_ns

from .rig import Bench, Program, frame, takes

SEND, STATUS = 4, 5
S = 1_000_000_000
Loop = Callable[[], list[int]]


@pytest.fixture
def loop(bench: Bench) -> Loop:
    """Call what the loop calls; the turns that Python then got, by what they want."""
    asked: list[int] = []
    call, *arguments = bench.dp.again(lambda: asked.append(bench.turn().want))
    bench.turn()
    bench.dp.alone(True)

    def woken() -> list[int]:
        del asked[:]
        call(*arguments)
        return list(asked)

    return woken


def turns(bench: Bench) -> int:
    return bench.dp.counters()["turns"]


def test_a_turn_that_wants_nothing_is_not_pythons(bench: Bench, loop: Loop) -> None:
    program = bench.member(11)
    program.send(frame(SEND, b"x", handle=1))
    assert loop() == [] and bench.core.c.offered == 1


def test_python_gets_what_the_turn_wants_and_makes_no_second_one(bench: Bench, loop: Loop) -> None:
    program = bench.member(11)
    program.send(frame(STATUS))
    before = turns(bench)
    assert loop() == [Want.CLIENT] and turns(bench) == before + 1
    assert len(takes(bench)) == 1
    assert bench.turn().want == 0, "its outcome is told once"


def test_what_is_told_once_is_told(bench: Bench, loop: Loop) -> None:
    bench.core.c.status = 64
    assert loop() == [Want.FENCED]
    assert loop() == []


def test_its_deadline_is_the_last_one(bench: Bench, loop: Loop) -> None:
    bench.dp.turn(now_ns())
    assert loop() == [Want.DEADLINE]


def test_python_that_wants_to_see_each_turn_makes_it(bench: Bench, loop: Loop) -> None:
    bench.dp.alone(False)
    program: Program = bench.member(11)
    program.send(frame(SEND, b"x", handle=1))
    before = turns(bench)
    assert loop() == [0] and turns(bench) == before + 1


def test_after_a_pause_of_the_process_python_is_asked_first(bench: Bench, loop: Loop) -> None:
    """It may need another session before a frame leaves."""
    bench.dp.planned_ns = now_ns() - S
    asked: list[int] = []
    call, *arguments = bench.dp.again(lambda: asked.append(turns(bench)))
    before = turns(bench)
    call(*arguments)
    assert asked == [before]
    bench.dp.planned_ns = now_ns() + 60 * S
    call(*arguments)
    assert asked == [before] and turns(bench) == before + 1


def test_python_is_told_when_the_loops_callback_began(bench: Bench, loop: Loop) -> None:
    """What C has done in it before is part of the time after which others have their turn."""
    asked: list[tuple[int, int]] = []
    program = bench.member(11)
    call, *arguments = bench.dp.again(lambda: asked.append((bench.dp.began_ns, bench.turn().now)))
    bench.dp.alone(True)
    program.send(frame(STATUS))
    before = now_ns()
    call(*arguments)
    ((began, turned),) = asked
    assert before <= began <= turned and bench.dp.began_ns == 0
