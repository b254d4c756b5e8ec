"""What is under way in an open era, listed by what has to be done next (``ordering.py``)."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from typing import Final, Generic, TypeVar

from .records import Data, Id
from .tables import Program

T = TypeVar("T")
COUNT_BITS: Final = 32
"""Of a count in HELD and STABLE (``codec.COUNTED``)."""
Peer = tuple[int, str]
"""The other end of a link, and an order."""
Key = tuple[int, int, int]


@dataclass
class Message:
    """A message that this station knows."""

    id: Id
    program: Program
    order: str
    groups: tuple[int, ...]
    destinations: frozenset[int]
    data: Data | None = None
    safe: bool = False
    input: int = 0
    """Equal for messages that came together, or were sent together."""
    report: int | None = None
    """The time at which this station has reported it."""
    time: int | None = None
    """The time decided."""
    held_by: set[int] = field(default_factory=set)
    """Stations that have said HELD of it (rule S1)."""
    delivered: bool = False
    finished: bool = False

    @property
    def key(self) -> tuple[int, int, int]:
        """Rule O5: its place within its era; while undecided that of the own report."""
        time = self.time if self.time is not None else self.report
        return (time or 0, self.id.origin, self.id.number)


class Tail(Generic[T]):
    """A list that grows at its end, and forgets from its beginning what two readers have passed. Places count from 0."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._first = 0
        self.taken = 0
        """How far ``take`` has come."""
        self.used = 0
        """How far the other reader has come; what both have passed is forgotten."""

    def append(self, item: T) -> None:
        self._items.append(item)

    def take(self, k: int) -> list[T]:
        """The items from ``taken`` up to place k, which is the new ``taken``; fewer if there are not so many. Of k the low
        COUNT_BITS are known; one below ``taken`` is an old one."""
        ahead = (k - self.taken) % (1 << COUNT_BITS)
        if ahead >> (COUNT_BITS - 1):
            return []
        k = min(self.taken + ahead, self._first + len(self._items))
        out = self.between(self.taken, k)
        self.taken = max(self.taken, k)
        self._forget()
        return out

    def since(self, place: int) -> Iterator[T]:
        self._forget()
        return islice(self._items, place - self._first, None)

    def between(self, start: int, end: int) -> list[T]:
        return list(islice(self._items, max(start - self._first, 0), max(end - self._first, 0)))

    def _forget(self) -> None:
        while self._items and self._first < min(self.taken, self.used):
            self._items.popleft()
            self._first += 1


class Gone:
    """Numbers of messages that are finished: those within `span` of the highest one, and all below that."""

    def __init__(self, span: int) -> None:
        self._span = span
        self._numbers: set[int] = set()
        self._highest = 0

    def add(self, number: int) -> None:
        self._numbers.add(number)
        self._highest = max(self._highest, number)
        if len(self._numbers) > 2 * self._span:
            lowest = self._highest - self._span
            self._numbers = {n for n in self._numbers if n >= lowest}

    def __contains__(self, number: int) -> bool:
        return number in self._numbers or number <= self._highest - self._span


class Counts:
    """What HELD and STABLE count on the links, in one era (rules S1, S2)."""

    def __init__(self) -> None:
        self.decided_by: defaultdict[Peer, Tail[Id]] = defaultdict(Tail)
        """Messages of the DECIDEs that came from a station."""
        self.decided_to: defaultdict[Peer, Tail[Message]] = defaultdict(Tail)
        """Messages of the DECIDEs that went to a station."""
        self.outside: defaultdict[Peer, Tail[Message]] = defaultdict(Tail)
        """Messages that a station outside their groups has sent, and this one decides."""
        self.sent_to: defaultdict[Peer, Tail[Message]] = defaultdict(Tail)
        """Own ones that a station decides, to groups that this one is outside of."""
        self.held_to: defaultdict[Peer, int] = defaultdict(int)
        self.stable_to: defaultdict[Peer, int] = defaultdict(int)
        self.sent_stable_to: defaultdict[Peer, int] = defaultdict(int)
        self.peers: set[Peer] = set()
        """Those to which HELD or STABLE may be owed."""


class Work:
    """Messages by the rule that comes next."""

    def __init__(self) -> None:
        self.unreported: defaultdict[tuple[Program, str], deque[Message]] = defaultdict(deque)
        """O3: of each program, in the order of their numbers."""
        self.groups: defaultdict[tuple[Program, str], Counter[tuple[int, ...]]] = defaultdict(Counter)
        """O3: the groups of a program's messages that are reported and not decided, each with their number."""
        self.undecided: defaultdict[tuple[int, tuple[int, ...]], deque[Message]] = defaultdict(deque)
        """O4: those that this station decides, by origin and groups, in the order of their numbers."""
        self.perhaps_stable: list[Message] = []
        """S1: something has changed about these."""
        self._heaps: defaultdict[str, list[tuple[Key, Id, Message]]] = defaultdict(list)

    def reported(self, m: Message) -> None:
        self.groups[m.program, m.order][m.groups] += 1

    def decided(self, m: Message) -> None:
        counter = self.groups[m.program, m.order]
        counter[m.groups] -= 1
        if counter[m.groups] <= 0:
            del counter[m.groups]
        if not counter:
            del self.groups[m.program, m.order]

    def push(self, order: str, key: Key, m: Message) -> None:
        """O6: it waits for its delivery at this place, which may change."""
        heappush(self._heaps[order], (key, m.id, m))

    def least(self, order: str, key: Callable[[Message], Key]) -> Message | None:
        """O6: the one with the least key of those that wait."""
        heap = self._heaps[order]
        while heap:
            at, _, m = heap[0]
            if not m.delivered and not m.finished and at == key(m):
                return m
            heappop(heap)
        return None
