"""Changes of the key: what a message says, and why one cannot be proposed."""

from __future__ import annotations

import pytest
from zenjun.proto.service.base import ViewEvent
from zenjun.proto.service.keys import Holder, KeyChange, KeyOrder, Step, why_not

OLD, NEW = 0x5E6F7A8B, 0x1A2B3C4D
BOTH = (OLD, NEW)


def test_a_message_is_what_was_packed_and_nothing_else_is_one() -> None:
    for step in Step:
        change = KeyChange(step, NEW)
        assert KeyChange.read(change.packed()) == change
    told = KeyChange(Step.TELL, NEW, 0x123456)
    assert KeyChange.read(told.packed()) == told
    good = KeyChange(Step.ROTATE, NEW).packed()
    for wrong in (b"", good[:-1], good + b"\0", b"\0" + good[1:], b"\4" + good[1:]):
        assert KeyChange.read(wrong) is None


@pytest.mark.parametrize(
    ("step", "key", "third", "absent", "without_absent", "why"),
    [
        (Step.ROTATE, NEW, Holder(3, BOTH, frozenset({OLD})), [], False, ""),
        (Step.ROTATE, NEW, Holder(3, (OLD,), frozenset({OLD})), [], True, "key 1a2b3c4d is missing at station 3"),
        (Step.ROTATE, NEW, Holder(3, (), frozenset()), [], True, "key 1a2b3c4d is missing at station 3"),
        (Step.ROTATE, NEW, Holder(3, BOTH, frozenset({OLD})), [4, 5], False, "away: stations 4, 5;"),
        (Step.ROTATE, NEW, Holder(3, BOTH, frozenset({OLD})), [4, 5], True, ""),
        (Step.RETIRE, OLD, Holder(3, BOTH, frozenset({OLD, NEW})), [], True, "key 5e6f7a8b is in use at station 3, or was"),
        (Step.RETIRE, OLD, Holder(3, BOTH, frozenset({NEW})), [], False, ""),
        (Step.RETIRE, OLD, Holder(3, BOTH, frozenset({NEW})), [4], False, "away: station 4;"),
        (Step.RETIRE, 7, Holder(3, BOTH, frozenset({NEW})), [], False, "no member has key 00000007"),
    ],
)
def test_why_a_change_cannot_be(step: Step, key: int, third: Holder, absent: list[int], without_absent: bool, why: str) -> None:
    sends = NEW if step is Step.RETIRE else OLD
    members = [Holder(1, BOTH, frozenset({sends})), Holder(2, BOTH, frozenset({sends})), third]
    found = why_not(KeyChange(step, key), members, absent, without_absent)
    assert found.startswith(why) and bool(found) == bool(why)


def view(instance: int, members: tuple[int, ...], joined: tuple[int, ...] = (), left: tuple[int, ...] = ()) -> ViewEvent:
    return ViewEvent(instance, 0, tuple(7 if n in members else 0 for n in range(1, 6)), joined, left)


def test_members_that_know_the_key_tell_it_to_who_comes() -> None:
    orders = {n: KeyOrder(n) for n in range(1, 6)}

    def words(key: int) -> dict[int, KeyChange]:
        said = {n: order.word(key) for n, order in orders.items()}
        assert not any(order.word(key) for order in orders.values()), "once"
        return {n: word for n, word in said.items() if word is not None}

    for n in range(2, 6):
        orders[n].open(4, (2, 3, 4, 5), joined=False)
    assert words(OLD) == dict.fromkeys((2, 3, 4), KeyChange(Step.TELL, OLD, 4)), "nobody knows: three begin"
    come = view(5, (1, 2, 3, 4, 5), joined=(1,))
    for n in range(2, 6):
        orders[n].on_view(come)
    orders[1].open(5, (1, 2, 3, 4, 5), joined=True)
    assert not words(OLD), "nobody knows it yet"
    first, second = KeyChange(Step.TELL, OLD, 4), KeyChange(Step.TELL, NEW, 4)
    assert all(orders[n].on_change(first) and not orders[n].on_change(second) for n in range(2, 6)), "the first word counts"
    assert not orders[1].on_change(second), "it was said before this station came"
    assert words(OLD) == dict.fromkeys((2, 3, 4), KeyChange(Step.TELL, OLD, 5)), "what was owed"
    orders[1].on_view(view(6, (1, 2, 3, 4), joined=(4,), left=(5,)))
    assert not words(NEW), "who does not know says nothing"
    assert orders[1].on_change(KeyChange(Step.TELL, OLD, 6)) and not orders[1].on_change(KeyChange(Step.TELL, NEW, 5))
    assert words(OLD) == {1: KeyChange(Step.TELL, OLD, 6)}
    orders[2].on_view(view(7, (1, 2, 3), left=(4,)))
    assert not words(OLD) and orders[1].on_change(KeyChange(Step.RETIRE, OLD))


def test_a_change_in_the_order_counts_more_than_what_is_told() -> None:
    order = KeyOrder(1)
    order.open(0xFFFFFFF, (1, 2), joined=True)
    assert order.on_change(KeyChange(Step.ROTATE, NEW)) and not order.on_change(KeyChange(Step.TELL, OLD, 0x1))
    order.open(0xFFFFFFF, (1, 2), joined=True)
    assert order.on_change(KeyChange(Step.TELL, OLD, 0x1)), "the last bits of the number of a later instance"
