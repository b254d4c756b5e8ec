"""Whether transactions that append to lists and read them could have run one after another.

Each value is appended once. So a list shows the order of the transactions that wrote it, and which state of it was read. From
that follow edges: ww (from the writer of a value to that of the next one), wr (from the writer of a value to its reader), rw
(from the reader of a list to the writer of the value after it). With the order of each program, and of what had ended before
something began, a cycle of edges is a violation. This is the method of Elle (Kingsbury and Alvaro, 2020), for one data type.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"
_END: Final = float("inf")
Lists: TypeAlias = Mapping[int, tuple[int, ...]]


@dataclass(slots=True)
class Txn:
    """A transaction as its program saw it."""

    program: str
    """Or connection: nothing is promised of its order but to who sees no old state (``is_newest``)."""
    began: float
    appends: dict[int, list[int]] = field(default_factory=dict)
    """Key to values, in their order."""
    reads: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """Key and what was there before the transaction's own appends to it."""
    ended: float = _END
    outcome: str = UNKNOWN
    is_newest: bool = True
    """It reads no old state: it changes something, or its reads are linearizable."""


def violations(txns: Sequence[Txn], last: Lists) -> list[str]:
    """What is wrong with a history. last: all lists when everything has ended."""
    writers = {value: (i, key) for i, txn in enumerate(txns) for key, values in txn.appends.items() for value in values}
    wrong = list(_seen_in_lists(txns, last, writers))
    if wrong:
        return wrong
    there = {value for values in last.values() for value in values}
    for txn in txns:
        if txn.outcome == UNKNOWN and any(value in there for values in txn.appends.values() for value in values):
            txn.outcome, txn.ended = OK, _END  # it may have come to be whenever, also after its program was told
    edges = _edges(txns, last, writers)
    return [
        "a cycle: " + " → ".join(f"{txns[i].program} {txns[i].appends} {txns[i].reads}"[:160] for i in cycle if i < len(txns))
        for cycle in components(edges)
    ]


def _seen_in_lists(txns: Sequence[Txn], last: Lists, writers: Mapping[int, tuple[int, int]]) -> Iterator[str]:
    """What the lists themselves show."""
    for key, all_ in last.items():
        if len(set(all_)) != len(all_) or any(writers.get(value, (0, -1))[1] != key for value in all_):
            yield f"list {key} has a value twice, or one that nobody appended to it"
    for txn in txns:
        for key, values in txn.appends.items():
            there = [value for value in last.get(key, ()) if value in values]
            if txn.outcome == OK and there != values:
                yield f"{txn.program}: of {values}, acknowledged for list {key}, there is {there}"
            if txn.outcome == FAILED and there:
                yield f"{txn.program}: {there} was rejected, and is in list {key}"
            if there and there != values:
                yield f"{txn.program}: of {values} for list {key} there is only {there}"
            places = [last[key].index(value) for value in there]
            if places and places != list(range(places[0], places[0] + len(places))):
                yield f"{txn.program}: between {values} of list {key} there is another transaction's"
        for key, seen in txn.reads:
            if txn.outcome != FAILED and seen != last.get(key, ())[: len(seen)]:
                yield f"{txn.program}: {seen} is no state of list {key}"
            if txn.outcome != FAILED and seen and (writer := txns[writers[seen[-1]][0]]).appends[key][-1] != seen[-1]:
                yield f"{txn.program}: it has seen a part of {writer.appends[key]} in list {key}"


def _edges(txns: Sequence[Txn], last: Lists, writers: Mapping[int, tuple[int, int]]) -> list[set[int]]:
    """By transaction, and after these one node for each end, in the order of time."""
    done = [i for i, txn in enumerate(txns) if txn.outcome == OK]
    ends = sorted((i for i in done if txns[i].ended < _END), key=lambda i: txns[i].ended)
    edges: list[set[int]] = [set() for _ in range(len(txns) + len(ends))]

    def add(a: int, b: int) -> None:
        if a != b:
            edges[a].add(b)

    for values in last.values():
        for one, other in itertools.pairwise(values):
            add(writers[one][0], writers[other][0])
    for i in done:
        for key, seen in txns[i].reads:
            values = last.get(key, ())
            if seen:
                add(writers[seen[-1]][0], i)
            if len(seen) < len(values):
                add(i, writers[values[len(seen)]][0])
    before: dict[str, int] = {}
    for i in sorted(done, key=lambda i: txns[i].began):
        if txns[i].program in before:
            add(before[txns[i].program], i)
        if txns[i].ended < _END:
            before[txns[i].program] = i
    times = [txns[i].ended for i in ends]
    for number, i in enumerate(ends):
        edges[i].add(len(txns) + number)
        if number:
            edges[len(txns) + number - 1].add(len(txns) + number)
    for i in done:
        number = bisect.bisect_left(times, txns[i].began)
        if number and txns[i].is_newest:
            edges[len(txns) + number - 1].add(i)
    return edges


def components(edges: Sequence[set[int]]) -> list[list[int]]:
    """Sets of nodes each of which reaches the others, of two or more (Tarjan)."""
    found: list[list[int]] = []
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in range(len(edges)):
        if root in index:
            continue
        path: list[tuple[int, Iterator[int]]] = [(root, iter(sorted(edges[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while path:
            node, rest = path[-1]
            following = next(rest, None)
            if following is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    component = stack[at:]
                    del stack[at:]
                    on_stack.difference_update(component)
                    if len(component) > 1:
                        found.append(component)
            elif following not in index:
                index[following] = low[following] = len(index)
                stack.append(following)
                on_stack.add(following)
                path.append((following, iter(sorted(edges[following]))))
            elif following in on_stack:
                low[node] = min(low[node], index[following])
    return found
