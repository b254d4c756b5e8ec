"""A turn that waits for the next event itself while events come: when it does, and what ends it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from zenjun.daemon.datapath import Want, now_ns

from .rig import Bench, Program, frame

SEND = 4
MS = 1_000_000
STAY_NS = 1200 * MS


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench(stay_ns=STAY_NS, slice_ns=5 * MS)


@pytest.fixture
def later() -> Iterator[Callable[[Program, float, int], None]]:
    """Messages of a program, from another thread: (program, seconds before each, how many)."""
    threads: list[threading.Thread] = []

    def start(program: Program, gap_s: float, count: int) -> None:
        def run() -> None:
            for _ in range(count):
                time.sleep(gap_s)
                program.send(frame(SEND, b"later", handle=1))

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join(10)


def make_busy(bench: Bench, program: Program) -> None:
    """The turn before has had something to do."""
    program.send(frame(SEND, b"first", handle=1))
    bench.turn()
    assert bench.core.c.offered == 1 and bench.dp.counters()["waits"] == 0, "nothing had come for long before it"


def test_events_that_follow_each_other_are_served_in_one_turn(bench: Bench, later: Callable[[Program, float, int], None]) -> None:
    """Also after more than a slice: that bounds work without a pause, not waiting."""
    program = bench.member(11)
    make_busy(bench, program)
    later(program, 0.02, 3)
    start = now_ns()
    assert bench.turn().want == 0
    assert bench.core.c.offered == 4 and bench.dp.counters()["waits"] >= 3
    assert now_ns() - start >= STAY_NS


def test_rare_events_are_waited_for_in_the_loop(bench: Bench) -> None:
    program = bench.member(11)
    make_busy(bench, program)
    time.sleep(STAY_NS / 4 / 1e9)
    bench.turn()
    assert bench.dp.counters()["waits"] == 0


def test_the_time_of_its_callback_ends_it(bench: Bench) -> None:
    """Turns of one callback of the loop do not wait for so long each."""
    make_busy(bench, bench.member(11))
    bench.dp.turn(now_ns() + 60_000 * MS, now_ns())
    assert bench.dp.counters()["waits"] == 0
    until = now_ns() + 30 * MS
    assert bench.dp.turn(now_ns() + 60_000 * MS, until).now >= until
    assert bench.dp.counters()["waits"] >= 1


def test_a_timer_that_is_over_ends_no_wait(bench: Bench) -> None:
    """It would end each one, and the turn would not sleep."""
    make_busy(bench, bench.member(11))
    assert bench.dp.turn(now_ns()).want == Want.DEADLINE  # it stands at once, so that what is left is not forgotten
    bench.turn()
    assert 1 <= bench.dp.counters()["waits"] <= 5


def test_the_deadline_ends_it(bench: Bench) -> None:
    make_busy(bench, bench.member(11))
    deadline = now_ns() + 30 * MS
    turn = bench.dp.turn(deadline)
    assert turn.want == Want.DEADLINE and turn.now >= deadline
    assert bench.dp.counters()["waits"] >= 1


def test_what_python_has_to_do_ends_it(make_bench: Callable[..., Bench]) -> None:
    patient = make_bench(stay_ns=60_000 * MS)
    program = patient.member(11)
    make_busy(patient, program)
    closing = threading.Timer(0.03, program.close)
    closing.start()
    assert patient.turn().want & Want.CLIENT
    closing.join(10)


def test_a_signal_ends_it(make_bench: Callable[..., Bench]) -> None:
    """Else Ctrl-C would wait for it."""
    bench = make_bench(stay_ns=60_000 * MS)
    make_busy(bench, bench.member(11))
    caught: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: caught.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)  # again and again: the first may come before the turn waits
        start = now_ns()
        assert bench.turn().want == 0
        assert set(caught) == {signal.SIGALRM} and now_ns() - start < 30_000 * MS
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
