"""The judge of lists: the smallest wrong histories, and one that is right."""

from __future__ import annotations

import random

import pytest

from ..e2e.cycles import FAILED, OK, UNKNOWN, Txn, components, violations


def txn(program: str, began: float, appends: dict[int, list[int]], *reads: tuple[int, tuple[int, ...]], ended: float = 0.0,
        outcome: str = OK, is_newest: bool = True) -> Txn:  # fmt: skip
    return Txn(program, began, appends, list(reads), ended or began + 1, outcome, is_newest)


WRONG: dict[str, tuple[list[Txn], dict[int, tuple[int, ...]], str]] = {
    "lost": ([txn("a", 0, {1: [1]})], {1: ()}, "acknowledged"),
    "rejected": ([txn("a", 0, {1: [1]}, outcome=FAILED)], {1: (1,)}, "was rejected"),
    "twice": ([txn("a", 0, {1: [1]})], {1: (1, 1)}, "twice"),
    "torn": ([txn("a", 0, {1: [1, 2]}, outcome=UNKNOWN)], {1: (1,)}, "there is only"),
    "between": ([txn("a", 0, {1: [1, 2]}), txn("b", 0, {1: [3]})], {1: (1, 3, 2)}, "another transaction's"),
    "no state": ([txn("a", 0, {1: [1]}), txn("b", 0, {1: [2]}), txn("c", 0, {}, (1, (2,)))], {1: (1, 2)}, "no state"),
    "a part": ([txn("a", 0, {1: [1, 2]}), txn("b", 0, {}, (1, (1,)))], {1: (1, 2)}, "seen a part"),
    "write skew": ([txn("a", 0, {1: [1]}, (2, ())), txn("b", 0, {2: [2]}, (1, ()))], {1: (1,), 2: (2,)}, "cycle"),
    "two orders": ([txn("a", 0, {1: [1], 2: [2]}), txn("b", 0, {1: [3], 2: [4]})], {1: (1, 3), 2: (4, 2)}, "cycle"),
    "a snapshot of two": (
        [txn("a", 0, {1: [1]}), txn("b", 0, {2: [2]}), txn("c", 0, {}, (1, (1,)), (2, ())), txn("d", 0, {}, (1, ()), (2, (2,)))],
        {1: (1,), 2: (2,)}, "cycle",
    ),
    "an old state": ([txn("a", 0, {1: [1]}), txn("b", 2, {}, (1, ()))], {1: (1,)}, "cycle"),
    "back in time": (
        [txn("a", 0, {1: [1]}), txn("b", 2, {}, (1, (1,)), is_newest=False), txn("b", 4, {}, (1, ()), is_newest=False)],
        {1: (1,)}, "cycle",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_seen(name: str) -> None:
    txns, last, text = WRONG[name]
    found = violations(txns, last)
    assert found and text in found[0]


def test_what_is_right(name: str = "") -> None:
    """An old state of a program that may see one; who is undecided, and there; who is undecided, and is not."""
    txns = [
        txn("a", 0, {1: [1], 2: [2]}), txn("b", 2, {}, (1, ()), is_newest=False), txn("c", 2, {1: [3]}, outcome=UNKNOWN),
        txn("d", 2, {1: [4]}, outcome=UNKNOWN), txn("b", 5, {2: [5]}, (1, (1, 3))), txn("e", 5, {1: [6]}, outcome=FAILED),
    ]  # fmt: skip
    assert violations(txns, {1: (1, 3), 2: (2, 5)}) == []


@pytest.mark.parametrize("outcome", [UNKNOWN, OK])
def test_who_is_undecided_may_come_after_what_its_program_did_next(outcome: str) -> None:
    txns = [txn("a", 0, {1: [1]}, outcome=outcome), txn("a", 2, {}, (1, ()), is_newest=False)]
    assert bool(violations(txns, {1: (1,)})) == (outcome == OK)


@pytest.mark.parametrize("seed", range(20))
def test_a_serial_history_and_one_that_is_not(seed: int) -> None:
    """Transactions one after another are right; one that reads what was there before the last change of what it writes is not."""
    r = random.Random(seed)
    lists: dict[int, tuple[int, ...]] = dict.fromkeys(range(4), ())
    txns: list[Txn] = []
    for number in range(200):
        keys = r.sample(range(4), 2)
        reads = [(key, lists[key]) for key in keys]
        appends = {keys[0]: [number]} if r.random() < 0.7 else {}
        for key, values in appends.items():
            lists[key] = (*lists[key], *values)
        txns.append(txn(f"p{r.randrange(5)}", number, appends, *reads, ended=number + 0.5))
    assert violations(txns, lists) == []
    victim = next(t for t in reversed(txns) if t.appends and all(len(seen) > 1 for _, seen in t.reads))
    victim.reads = [(key, seen[:-1]) for key, seen in victim.reads]
    assert "cycle" in violations(txns, lists)[0]


def test_components() -> None:
    assert components([{1}, {2}, {0}, {2}, {5}, {4}]) == [[0, 1, 2], [4, 5]]
    assert components([{1}, {2}, set()]) == []
    assert components([set(range(1, 3000)), *({k + 1} for k in range(1, 2999)), {0}]) != []
