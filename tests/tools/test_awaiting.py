"""What a lab says while its cluster does not open, and how long it waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from zenjun.tools.lab import LabError, LabTimeout
from zenjun.tools.lab.awaiting import LEAST_S, left_s, open_limit_s, ranges, wait_open, waits_for

Answer = dict[str, Any]


class Process:
    def __init__(self, code: int | None) -> None:
        self.code = code

    def poll(self) -> int | None:
        return self.code


class Station:
    """One that answers what the test says: the next of ``answers``, the last one again and again."""

    def __init__(self, number: int, folder: Path, *answers: Answer | LabError, code: int | None = None) -> None:
        self.id = number
        self.socket_path = folder / f"{number}.sock"
        self.log_path = folder / f"{number}.log"
        self.daemon = Process(code)
        self.answers = list(answers)
        self.asked = 0

    def status(self, timeout_s: float = 1.0) -> Answer:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, LabError):
            raise answer
        return answer


def is_open(instance: int, members: int = 3) -> Answer:
    return {"state": "open", "instance": instance, "members": [[k, 1] for k in range(1, members + 1)], "blocked": []}


def is_opening(*blocked: tuple[int, str]) -> Answer:
    return {"state": "opening", "instance": 4, "members": [], "blocked": [{"station": k, "reason": r} for k, r in blocked]}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Station]:
    return lambda number, *answers, **more: Station(number, tmp_path, *answers, **more)


def test_nobody_is_asked_before_those_ahead_of_it_are_open(make: Callable[..., Station]) -> None:
    stations = [make(1, is_opening(), is_opening(), is_opening(), is_open(7)), make(2, is_open(7)), make(3, is_open(7))]
    assert wait_open(stations, 5) == 7
    assert [s.asked for s in stations] == [4, 1, 1]


def test_all_must_be_in_one_instance(make: Callable[..., Station]) -> None:
    """Station 1 was in instance 1 before station 3 was let in."""
    assert wait_open([make(1, is_open(1), is_open(2)), make(2, is_open(2)), make(3, is_open(2))], 5) == 2
    with pytest.raises(LabTimeout, match="station 1: in instance 1 of 1-2, open"):
        wait_open([make(1, is_open(1, 2)), make(2, is_open(2))], 0.1)


def test_a_line_for_each_station(make: Callable[..., Station]) -> None:
    starting = make(2, LabError("2.sock: No such file or directory"))
    mute = make(3, LabTimeout("the daemon does not answer"))
    mute.socket_path.touch()
    with pytest.raises(LabTimeout) as raised:
        wait_open([make(1, is_opening((2, "never seen"), (3, "silent"), (4, "silent"))), starting, mute], 0.1)
    assert str(raised.value).splitlines() == [
        "the cluster is not open after 0.1 s:",
        "station 1: in no instance: waits for 2 (never seen), 3-4 (silent)",
        "station 2: still starting",
        "station 3: the daemon does not answer",
    ]


def test_what_a_station_waits_for() -> None:
    assert waits_for(is_opening()) == "in no instance: hears all that it needs, agreement is still missing"
    assert waits_for({**is_opening(), "opening": {"conflicts": [{}]}}).endswith("; 1 are configured otherwise")
    blocked = {**is_open(3), "state": "blocked", "blocked": [{"station": 2, "reason": "silent", "since_ms": 5}]}
    assert waits_for(blocked) == "in instance 3 of 1-3, blocked: waits for 2 (silent)"
    assert waits_for(is_open(3)) == "in instance 3 of 1-3, open"


def test_a_daemon_that_has_ended_is_told_at_once(make: Callable[..., Station]) -> None:
    ended = make(2, is_open(1), code=-9)
    ended.log_path.write_text("a\nb\nc\nd\n")
    with pytest.raises(LabError, match=r"station 2 ended with signal 9: b \| c \| d"):
        wait_open([make(1, is_opening()), ended], 60)


def test_ranges() -> None:
    assert ranges([]) == "nobody"
    assert ranges([5, 1, 2, 3, 9, 8]) == "1-3, 5, 8-9"


def test_the_limit_grows_with_the_stations_and_is_bounded() -> None:
    assert [open_limit_s(n) for n in (1, 16, 32, 64)] == [30, 30, 50, 90]


def test_what_was_needed_to_make_the_lab_counts() -> None:
    begun = time.monotonic()
    left = left_s(64, begun - 40)
    assert 50 - (time.monotonic() - begun) <= left <= 50
    assert left_s(64, time.monotonic() - 500) == LEAST_S


def test_the_last_words_are_said_before_the_time_is_over(make: Callable[..., Station]) -> None:
    """64 stations, none of which answers."""

    asked: list[float] = []

    class Mute(Station):
        def status(self, timeout_s: float = 1.0) -> Answer:
            asked.append(timeout_s)
            time.sleep(timeout_s)
            raise LabTimeout("the daemon does not answer")

    mute = [Mute(k, Path("/nowhere"), is_opening()) for k in range(1, 65)]
    with pytest.raises(LabTimeout) as raised:
        wait_open(mute, 3)
    assert sum(asked) < 3 + 64 * 0.06, "0.05 s at least for each"
    assert len(str(raised.value).splitlines()) == 65
