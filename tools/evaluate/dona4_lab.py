"""What ``zenjun evaluate dona4 --measure`` records: a lab of ten stations whose nodes ask directories in zones.

As in ``dona_lab``, each station has a program that is a node, and those of the first m stations keep their zone's directory as
well. A node sends its requests to its zone's directory by messages also if that is its own, since the paper counts them. Requests
are drawn from a seed. The tables that Spark counts have the sizes of messages and not what is in them, so a request's number is
the size of all its messages. Nothing is counted here.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...daemon.client import Message as GroupMessage
from ...proto.service.directory.sevenwire import Kind, decode
from .dona import Setting, Update
from .dona4 import LOCALITIES, NODES, ZONES, Drawn
from .dona_lab import Common, Play, Sender, measure, recorded
from .experiments import PATIENCE_S, Run

SHARES: Final = (Fraction(1, 10), Fraction(1, 2))
REQUESTS: Final = 2000
"""Of all nodes together, in each phase."""
POINTS: Final = (
    *((Setting(NODES, m, d, p), False) for m in ZONES for d in (LOCALITIES[0], LOCALITIES[-1]) for p in SHARES),
    *((Setting(NODES, NODES, LOCALITIES[0], p), True) for p in SHARES),
)
"""What is measured: zones, or full distribution."""
SIZE_MIN: Final = 400
"""Bytes of the messages of request 0; above that of any message of the machine."""
_FRAME: Final = struct.Struct("!BBBBI")
"""Kind, from, to, the station of the node that the request concerns, number of the request."""
_LENGTH: Final = struct.Struct("!H")
_RETRIEVE, _PASSED_ON, _FOUND, _ANSWER, _REQUEST, _GRANT, _DATA, _DONE = range(8)
_ANSWERS: Final = frozenset({_FOUND, _ANSWER, _GRANT, _DATA, _DONE})


class Wanted(NamedTuple):
    """One request: its number, from 0 and different at all nodes; the station of the node that it concerns."""

    number: int
    is_update: bool
    about: int


def draw(s: Setting, requests: int, seed: int) -> dict[int, list[Wanted]]:
    """The requests of each station's node."""
    r = random.Random(seed)
    wanted: dict[int, list[Wanted]] = {k: [] for k in range(1, s.n + 1)}
    for number in range(requests):
        node = number % s.n + 1
        about = node if r.random() < s.d else r.choice([k for k in wanted if k != node])
        wanted[node].append(Wanted(number, r.random() < s.p, about))
    return wanted


def kinds_of(s: Setting, wanted: dict[int, list[Wanted]]) -> dict[int, str]:
    """What each request is, by number: a field of ``Drawn``."""
    return {
        w.number: ("update_" if w.is_update else "retrieve_") + ("own" if zone(s, w.about) == zone(s, node) else "other")
        for node, each in wanted.items()
        for w in each
    }


def drawn_of(s: Setting, kinds: dict[int, str], *, full: bool) -> Drawn:
    """How many of each kind there are."""
    found = Counter(kinds.values())
    counts = found["retrieve_own"], found["retrieve_other"], found["update_own"], found["update_other"]
    return Drawn(s, *counts, full)


def zone(s: Setting, station: int) -> int:
    """The station with the directory of this one's zone."""
    return (station - 1) % s.m + 1


class Numbered(Common):
    """The seven steps, in messages whose size is the number of the request."""

    def __init__(self, update: Update, me: tuple[int, int], group: Any) -> None:
        super().__init__(update, me, group)
        self.number = 0
        """Of the own request."""
        self._numbers: dict[tuple[int, int], int] = {}
        """Of the others', by their owner."""

    def wrap(self, data: bytes) -> bytes:
        message = decode(data)
        assert message is not None
        number = self._numbers.get(message.asking.owner, self.number)
        size = 0 if message.kind is Kind.HERE else SIZE_MIN + number  # HERE belongs to no request
        return (_LENGTH.pack(len(data)) + data).ljust(size, b"\0")

    def unwrap(self, data: bytes) -> bytes:
        (length,) = _LENGTH.unpack_from(data)
        inner = data[_LENGTH.size : _LENGTH.size + length]
        message = decode(inner)
        if message is not None and message.asking.owner != self.machine.me:
            self._numbers[message.asking.owner] = len(data) - SIZE_MIN
        return inner


class Node:
    """One station's program."""

    def __init__(self, s: Setting, station: int, group: Any, wanted: Sequence[Wanted], turn: asyncio.Lock, *, full: bool) -> None:
        """turn: among all, for changes of the common directory."""
        self.s, self.station, self.full = s, station, full
        self.common: Common | None = None
        self._group, self._wanted, self._turn = group, wanted, turn
        self._sender = Sender(group)
        self._own_turn = asyncio.Lock()
        self._waiting: dict[tuple[int, int], asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self) -> None:
        while True:
            for item in await self._group.recv_items(timeout=None):
                if isinstance(item, GroupMessage):
                    self._take(item.data)

    def _send(self, kind: int, to: int, wanted: Wanted) -> None:
        head = _FRAME.pack(kind, self.station, to, wanted.about, wanted.number)
        data = head.ljust(SIZE_MIN + wanted.number, b"\0")
        self._sender.send(data)
        if to == self.station:
            self._take(data)  # it is on the wire all the same

    def _take(self, data: bytes) -> None:
        kind, sender, to, about, number = _FRAME.unpack_from(data)
        if to != self.station:
            return
        if kind in _ANSWERS:
            self._waiting.pop((kind, number)).set_result(None)
        else:
            task = asyncio.get_running_loop().create_task(self._serve(kind, sender, Wanted(number, kind == _REQUEST, about)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, kind: int, to: int, wanted: Wanted, answer: int) -> None:
        future = self._waiting[answer, wanted.number] = asyncio.get_running_loop().create_future()
        self._send(kind, to, wanted)
        await asyncio.wait_for(future, PATIENCE_S)

    async def _serve(self, kind: int, sender: int, wanted: Wanted) -> None:
        """The directory of the zone does what its node wants; or answers another one."""
        other = zone(self.s, wanted.about)
        if kind == _PASSED_ON:
            self._send(_FOUND, sender, wanted)
        elif kind == _RETRIEVE:
            if other != self.station:
                await self._ask(_PASSED_ON, other, wanted, _FOUND)
            self._send(_ANSWER, sender, wanted)
        else:
            async with self._own_turn:
                await self._ask(_GRANT, sender, wanted, _DATA)
                if other != self.station:
                    await self.change(wanted.number)
            self._send(_DONE, sender, wanted)

    async def change(self, number: int) -> None:
        """The common directory, at all that keep it."""
        assert isinstance(self.common, Numbered)
        async with self._turn:
            self.common.number = number
            await self.common.change()

    async def call_all(self) -> None:
        """All requests of this node, one after the other."""
        directory = zone(self.s, self.station)
        for wanted in self._wanted:
            if self.full:
                if wanted.is_update:
                    await self.change(wanted.number)
            elif not wanted.is_update:
                await self._ask(_RETRIEVE, directory, wanted, _ANSWER)
            else:
                await self._update(directory, wanted)

    async def _update(self, directory: int, wanted: Wanted) -> None:
        done = self._waiting[_DONE, wanted.number] = asyncio.get_running_loop().create_future()
        await self._ask(_REQUEST, directory, wanted, _GRANT)
        self._send(_DATA, directory, wanted)
        await asyncio.wait_for(done, PATIENCE_S)


def _nodes(s: Setting, wanted: dict[int, list[Wanted]], *, full: bool) -> Callable[[Sequence[Any]], Play]:
    def play(groups: Sequence[Any]) -> Play:
        turn = asyncio.Lock()
        nodes = [Node(s, k, group, wanted[k], turn, full=full) for k, group in enumerate(groups, 1)]
        return Play(nodes, s.n if full else s.m, Update.UNICAST, Numbered)

    return play


async def play(
    connections: Sequence[Any], groups: Sequence[Any], s: Setting, wanted: dict[int, list[Wanted]], *, full: bool
) -> None:
    """One phase on these stations' connections and groups."""
    await measure(connections, groups, _nodes(s, wanted, full=full)(groups))


class Asked(NamedTuple):
    """What one phase was asked to do. kinds: by the number of the request."""

    drawn: Drawn
    kinds: dict[int, str]


def record(folder: Path, requests: int = REQUESTS, points: Sequence[tuple[Setting, bool]] = POINTS) -> tuple[Run, list[Asked]]:
    """Play all points one after the other in one lab, each a phase. Raises LabError, ClientError."""
    plays, asked = [], []
    for seed, (s, full) in enumerate(points):
        wanted = draw(s, requests, seed)
        kinds = kinds_of(s, wanted)
        plays.append(_nodes(s, wanted, full=full))
        asked.append(Asked(drawn_of(s, kinds, full=full), kinds))
    return recorded(f"dona4-{NODES}", NODES, plays, folder), asked
