"""What ``daemon/datapath/overlap.c`` does with what is delivered, in Python: its twin, and the data path of ``hosts.py``.

A program's frames are in one queue, in the order in which they were given. A message at level preack waits there until the line
of its order has passed it, and so does what stands behind it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from zenjun.daemon.clientwire import MESSAGE, Frame, MessageFlag
from zenjun.daemon.datapath import MULTI_LEVEL

ORDERS = 2
PREACK = 1


@dataclass
class Line:
    """The places of level preack of one order."""

    items: deque[int] = field(default_factory=deque)
    """From ``passed`` on; 0: a message, else the era whose views are there."""
    passed: int = 0
    released: int = 0

    def push(self, era: int) -> int:
        self.items.append(era)
        return self.passed + len(self.items) - 1

    def let_go(self, settled: int) -> None:
        while self.items and (self.items[0] <= settled if self.items[0] else self.released):
            self.released -= self.items.popleft() == 0
            self.passed += 1


@dataclass(frozen=True)
class Receiver:
    handle: int
    level: int
    no_self: bool


Give = Callable[[int, int, int, int, bytes], None]
"""Slot, kind, flags, handle and body of a frame that its program gets now."""


class Delivering:
    """One station's."""

    def __init__(self, station: int, give: Give) -> None:
        self.station = station
        self._give = give
        self.clear()

    def clear(self) -> None:
        self.lines = [Line() for _ in range(ORDERS)]
        self.settled = 0
        self.receivers: defaultdict[int, dict[int, Receiver]] = defaultdict(dict)
        """Of each group by slot."""
        self.queues: defaultdict[int, deque[tuple[int, int, tuple[int, int, int, bytes]]]] = defaultdict(deque)
        """Of each slot: level, position, and the frame."""
        self.unfinished: dict[int, tuple[int | None, int, int]] = {}
        """Slot, number among its messages, and bytes, by number of the machine."""

    # ---- who gets what

    def join(self, slot: int, handle: int, group: int, level: int, no_self: bool) -> None:
        self.receivers[group][slot] = Receiver(handle, level, no_self)

    def leave(self, slot: int, group: int) -> None:
        del self.receivers[group][slot]

    def forget(self, slot: int) -> None:
        """The program has gone."""
        self.queues.pop(slot, None)
        for receivers in self.receivers.values():
            receivers.pop(slot, None)
        gone = [n for n, (s, _, _) in self.unfinished.items() if s == slot]
        self.unfinished |= {n: (None, 0, self.unfinished[n][2]) for n in gone}

    # ---- what is delivered

    def deliver(
        self,
        order: int,
        origin: int,
        client: int,
        number: int,
        time: int,
        groups: Sequence[int],
        content: bytes,
        own_slot: int | None,
    ) -> None:
        """own_slot: of the program that has sent it, if that is here."""
        position = self.lines[order].push(0)
        body = MESSAGE.struct.pack(time, number & 0xFFFF, client, origin) + content
        to: dict[int, Receiver] = {}
        for group in groups:
            for slot, receiver in self.receivers[group].items():
                if slot not in to or receiver.handle < to[slot].handle:
                    to[slot] = receiver
        for slot, receiver in to.items():
            own = slot == own_slot
            if not (own and receiver.no_self):
                flags = int(MessageFlag.OWN) if own else 0
                level = MULTI_LEVEL + order if receiver.level else 0
                self.put(slot, level, position, (int(Frame.MESSAGE), flags, receiver.handle, body))

    def put(self, slot: int, level: int, position: int, frame: tuple[int, int, int, bytes]) -> None:
        self.queues[slot].append((level, position, frame))
        self._write(slot)

    def release(self, order: int) -> None:
        line = self.lines[order]
        assert line.released < line.items.count(0), "nothing waits for it"
        line.released += 1
        self._let_go(order)

    def view(self, order: int, era: int) -> int:
        place = self.lines[order].push(era)
        self._let_go(order)
        return place

    def settle(self, era: int) -> None:
        self.settled = era
        for order in range(ORDERS):
            self._let_go(order)

    def _let_go(self, order: int) -> None:
        self.lines[order].let_go(self.settled)
        for slot in list(self.queues):
            self._write(slot)

    def _write(self, slot: int) -> None:
        queue = self.queues[slot]
        while queue:
            level, position, frame = queue[0]
            if level >= MULTI_LEVEL and position >= self.lines[level - MULTI_LEVEL].passed:
                break
            queue.popleft()
            self._give(slot, *frame)
