"""Changes of the key: what a message says, and why one cannot be proposed."""

from __future__ import annotations

import pytest
from zenjun.proto.service.keys import Holder, KeyChange, Step, why_not

OLD, NEW = 0x5E6F7A8B, 0x1A2B3C4D
BOTH = (OLD, NEW)


def test_a_message_is_what_was_packed_and_nothing_else_is_one() -> None:
    for step in Step:
        change = KeyChange(step, NEW)
        assert KeyChange.read(change.packed()) == change
    good = KeyChange(Step.ROTATE, NEW).packed()
    for wrong in (b"", good[:-1], good + b"\0", b"\0" + good[1:], b"\3" + good[1:]):
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
