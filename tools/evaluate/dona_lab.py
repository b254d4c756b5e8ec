"""What ``zenjun evaluate dona --measure`` records: a lab of n stations whose nodes call each other as the DONA paper has it.

The service keeps all names at all stations, so zones are played: at each station one program is a node, the first m of them are
the managers of their zones. They send ASK and ANSWER in the group ``zenjun.dir.ask``, and change the common directory by the
seven steps (``proto/service/directory/seven.py``, the machine that the service has), or by one message of the total order. Calls
are dealt by quota, and updates come one after the other: the formulas count no refused locks. Nothing is counted here.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from ...daemon.client import Message as GroupMessage
from ...daemon.client import View, connect
from ...proto.service.directory.seven import Seven
from ...proto.service.directory.seventypes import Finished, Keep, Locked, Send
from ..lab import Lab
from .dona import LOCALITIES, Setting, Update
from .dona_counts import ASK, COMMON, Asked
from .experiments import PATIENCE_S, SETTLE_S, Phase, Run

NODES: Final = 10
ALL_D: Final = (Fraction(0), Fraction(1, 2))
POINTS: Final[tuple[tuple[Setting, Update], ...]] = (
    *((Setting(NODES, m, d), Update.UNICAST) for m in (1, 2, 5, 10) for d in ALL_D),
    (Setting(NODES, 10, LOCALITIES[-1]), Update.UNICAST),
    *((Setting(NODES, m), update) for update in (Update.BROADCAST, Update.ORDERED) for m in (2, 5, 10)),
)
"""What is measured: with k = 1 and p = 0.01, so that the points are on the figures' lines."""
CALLS_MIN: Final = 100
WINDOW: Final = 4
"""Calls of one node under way."""
DATA_BYTES: Final = 100
_PLACE: Final = (1 << 40, 1, 0)
_FRAME: Final = struct.Struct(">BBBII")
"""ASK or ANSWER, from, to, number of the request, what is wanted."""
_ASK, _ANSWER = 1, 2
_OWN, _UPDATE = 0, 1000
"""What is wanted: something of the own zone; an update of the common directory. Any other number: what that manager has."""


def calls_of(s: Setting) -> int:
    """Calls of each node that deal all shares without a rest."""
    outside = 1 - s.alpha
    once = math.lcm(outside.denominator, (outside * s.p).denominator)
    return once * -(-CALLS_MIN // once)


def deal(s: Setting, station: int) -> list[int]:
    """What one node wants, in any order that is the same again."""
    manager, calls = _manager(s, station), calls_of(s)
    outside = int(calls * (1 - s.alpha))
    updates = int(outside * s.p)
    others = [k for k in range(1, s.m + 1) if k != manager]
    wanted = [_UPDATE] * updates + [others[i % len(others)] for i in range(outside - updates)] + [_OWN] * (calls - outside)
    random.Random(station).shuffle(wanted)
    return wanted


def _manager(s: Setting, station: int) -> int:
    return (station - 1) % s.m + 1


class Sender:
    """Sends to a group from callbacks, also what zenjund does not take at once."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._waiting: deque[bytes] = deque()
        self._task: asyncio.Task[None] | None = None

    def send(self, data: bytes) -> None:
        """In the order of the calls."""
        if self._waiting or not self._group.send_nowait(data):
            self._waiting.append(data)
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._waiting:
            await self._group.send(self._waiting[0], level="sent", timeout=PATIENCE_S)
            self._waiting.popleft()


class Common:
    """How one manager changes the common directory."""

    def __init__(self, update: Update, me: tuple[int, int], group: Any) -> None:
        self.machine = Seven(me, unicast=update is Update.UNICAST)
        self.ordered = update is Update.ORDERED
        self.group = group
        self._sender = Sender(group)
        self.done: asyncio.Future[None] | None = None

    async def read(self) -> None:
        """Take what comes, until cancelled."""
        while True:
            for item in await self.group.recv_items(timeout=None):
                if self.ordered:
                    if isinstance(item, GroupMessage) and item.station == self.machine.me[0]:
                        self._finish()
                elif isinstance(item, GroupMessage):
                    self.machine.receive((item.station, item.client), self.unwrap(item.data))
                elif isinstance(item, View):
                    self.machine.on_view(item.place, *([m[:2] for m in part] for part in (item.members, item.joined, item.left)))
            self.go_on()

    def go_on(self) -> None:
        while effects := self.machine.take():
            for effect in effects:
                if isinstance(effect, Send):
                    self._sender.send(self.wrap(effect.data))
                elif isinstance(effect, Keep):
                    self.machine.kept(effect.asking)
                elif isinstance(effect, Locked):
                    self.machine.data(bytes(DATA_BYTES))
                elif isinstance(effect, Finished):
                    self._finish()

    def wrap(self, data: bytes) -> bytes:
        """What the machine sends, as it travels."""
        return data

    def unwrap(self, data: bytes) -> bytes:
        """The reverse."""
        return data

    def _finish(self) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(None)

    async def change(self) -> None:
        """One update."""
        self.done = asyncio.get_running_loop().create_future()
        if self.ordered:
            self._sender.send(bytes(DATA_BYTES))
        else:
            self.machine.request()
            self.go_on()
        await asyncio.wait_for(self.done, PATIENCE_S)


class Node:
    """One station's program."""

    def __init__(self, s: Setting, station: int, group: Any, one_at_a_time: asyncio.Lock) -> None:
        self.s = s
        self.station = station
        self.manager = _manager(s, station)
        self.common: Common | None = None
        self._group = group
        self._sender = Sender(group)
        self._turn = one_at_a_time
        self._number = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self) -> None:
        while True:
            for item in await self._group.recv_items(timeout=None):
                if not isinstance(item, GroupMessage):
                    continue
                kind, sender, to, number, what = _FRAME.unpack(item.data)
                if to != self.station:
                    continue
                if kind == _ANSWER:
                    self._waiting.pop(number).set_result(None)
                else:
                    task = asyncio.get_running_loop().create_task(self._answer(sender, number, what))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

    async def _answer(self, sender: int, number: int, what: int) -> None:
        await self._have(what)
        self._sender.send(_FRAME.pack(_ANSWER, self.station, sender, number, what))

    async def _have(self, what: int) -> None:
        """A manager does what is wanted, itself or by another one."""
        if what == _UPDATE:
            assert self.common is not None
            async with self._turn:
                await self.common.change()
        elif what != _OWN:
            await self._ask(what, _OWN)

    async def _ask(self, manager: int, what: int) -> None:
        self._number += 1
        future = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        self._sender.send(_FRAME.pack(_ASK, self.station, manager, self._number, what))
        await asyncio.wait_for(future, PATIENCE_S)

    async def call_all(self) -> None:
        """Make all calls, some at a time."""
        wanted = iter(deal(self.s, self.station))

        async def some() -> None:
            for what in wanted:
                if self.station == self.manager:
                    await self._have(what)
                else:
                    await self._ask(self.manager, what)

        await asyncio.gather(*(some() for _ in range(WINDOW)))


class Player(Protocol):
    """One station's program."""

    common: Common | None
    """How it changes the common directory, if it is a manager."""

    async def read(self) -> None: ...

    async def call_all(self) -> None: ...


class Play(NamedTuple):
    """One phase: who plays, and who of them, the first ones, changes the common directory and how."""

    nodes: Sequence[Player]
    managers: int
    update: Update
    common: type[Common] = Common


async def measure(connections: Sequence[Any], groups: Sequence[Any], play: Play) -> Phase:
    """One phase."""
    readers = [asyncio.ensure_future(node.read()) for node in play.nodes]
    joined = []
    try:
        for node, connection in zip(play.nodes[: play.managers] if play.managers > 1 else (), connections, strict=False):
            ordered = play.update is Update.ORDERED
            options: dict[str, Any] = {} if ordered else {"order": "op", "no_self": True}
            group = await connection.join(COMMON[play.update], timeout=PATIENCE_S, **options)
            joined.append(group)
            node.common = play.common(play.update, (connection.welcome.station, connection.welcome.client), group)
            readers.append(asyncio.ensure_future(node.common.read()))
        await asyncio.sleep(SETTLE_S)
        changing = [node.common for node in play.nodes if node.common is not None and not node.common.ordered]
        deadline = time.monotonic() + PATIENCE_S
        while any(len(common.machine.members) < play.managers - 1 for common in changing):
            assert time.monotonic() < deadline, "the managers do not know each other"
            await asyncio.sleep(SETTLE_S)
        for common in changing:
            common.machine.activate(_PLACE)
        begin = time.time_ns()
        calling = asyncio.gather(*(node.call_all() for node in play.nodes))
        running: list[asyncio.Future[Any]] = [calling, *readers]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for reader in readers:
            if reader.done():
                reader.result()
        await calling
        await asyncio.sleep(SETTLE_S)
        return Phase(begin, time.time_ns())
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        for group in joined:
            await group.leave()


async def _play(lab: Lab, n: int, plays: Sequence[Callable[[Sequence[Any]], Play]]) -> tuple[Phase, ...]:
    async with contextlib.AsyncExitStack() as stack:
        connections = []
        for k in range(1, n + 1):
            path = str(lab.station(k).socket_path)
            connections.append(await stack.enter_async_context(connect(path, name="dona", timeout=PATIENCE_S, wait=PATIENCE_S)))
        groups = [await c.join(ASK, order="op", no_self=True) for c in connections]
        await asyncio.sleep(SETTLE_S)
        return tuple([await measure(connections, groups, play(groups)) for play in plays])


def recorded(name: str, n: int, plays: Sequence[Callable[[Sequence[Any]], Play]], folder: Path) -> Run:
    """Play one after the other in a lab of n stations, each a phase. A play gets the stations' groups for requests. Raises
    LabError, ClientError."""
    with _cluster(n, folder / name) as lab:
        phases = asyncio.run(_play(lab, n, plays))
    return Run(name, folder / name, n, 0, phases)


def _nodes(s: Setting, update: Update) -> Callable[[Sequence[Any]], Play]:
    def play(groups: Sequence[Any]) -> Play:
        turn = asyncio.Lock()
        return Play([Node(s, k, group, turn) for k, group in enumerate(groups, 1)], s.m, update)

    return play


def record(n: int, points: Sequence[tuple[Setting, Update]], folder: Path) -> tuple[Run, list[Asked]]:
    """Play all points one after the other in one lab, each a phase. Raises LabError, ClientError."""
    run = recorded(f"dona-{n}", n, [_nodes(s, update) for s, update in points], folder)
    asked = [Asked(s, update, frozenset(range(1, s.m + 1)), s.n * calls_of(s)) for s, update in points]
    return run, asked


@contextlib.contextmanager
def _cluster(n: int, folder: Path) -> Iterator[Lab]:
    """Captures begin before the daemons do; who starts late on a busy machine is waited for."""
    options = {"cluster": {"fail_timeout_ms": 5000}}
    with Lab(n, name=f"e{folder.name}", options=options) as lab, lab.capture(folder):
        lab.start_daemons()
        lab.wait_open(3 * PATIENCE_S)
        yield lab
