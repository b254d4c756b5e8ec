"""Named deadlines: early, late and repeated questions change nothing."""

from __future__ import annotations

from enum import Enum, auto

from hypothesis import given
from hypothesis import strategies as st
from zenjun.proto.timers import NEVER, Timers


class Name(Enum):
    A = auto()
    B = auto()
    C = auto()


def test_nothing_is_set_at_first() -> None:
    timers = Timers(Name)
    assert timers.next_ns() == NEVER
    assert not timers.due(Name.A, NEVER - 1)
    assert timers.as_dict() == {}


def test_no_names_no_deadline() -> None:
    assert Timers[Name]([]).next_ns() == NEVER


def test_the_earliest_is_next() -> None:
    timers = Timers(Name)
    timers.set(Name.A, 30)
    timers.set(Name.B, 20)
    assert timers.next_ns() == 20
    timers.stop(Name.B)
    assert timers.next_ns() == 30
    timers.stop(Name.B)  # twice is harmless
    assert timers.as_dict() == {"a": 30}


def test_due_stays_due_until_set_or_stopped() -> None:
    timers = Timers(Name)
    timers.set(Name.A, 10)
    assert not timers.due(Name.A, 9)
    assert timers.due(Name.A, 10)
    assert timers.due(Name.A, 11)
    timers.set(Name.A, 20)
    assert not timers.due(Name.A, 11)


def test_set_earlier_never_postpones() -> None:
    timers = Timers(Name)
    timers.set_earlier(Name.A, 10)
    timers.set_earlier(Name.A, 20)
    assert timers.at_ns(Name.A) == 10
    timers.set_earlier(Name.A, 5)
    assert timers.at_ns(Name.A) == 5


def test_beyond_the_end_of_time_is_never() -> None:
    timers = Timers(Name)
    timers.set(Name.A, NEVER + 5)
    assert timers.next_ns() == NEVER


@given(st.lists(st.tuples(st.sampled_from(Name), st.one_of(st.none(), st.integers(0, 1000)))))
def test_like_a_dictionary(operations: list[tuple[Name, int | None]]) -> None:
    timers, twin = Timers(Name), dict[Name, int]()
    for name, at in operations:
        if at is None:
            timers.stop(name)
            twin.pop(name, None)
        else:
            timers.set(name, at)
            twin[name] = at
        assert timers.next_ns() == min(twin.values(), default=NEVER)
        assert {n for n in Name if timers.due(n, 500)} == {n for n, v in twin.items() if v <= 500}
