"""Programs at one station that send to groups that overlap, and record what they get:
``python -m zenjun.tools.histories.multicaster``.

For each order (``token``, ``abcast``) and each level of delivery there is one connection. It is a member of the groups that its
station is in, and sends to any of the groups, one or several at once. Its history is a file of the records that ``history.py``
describes; ``group`` of a connection is the order, ``g`` of a message or view the group on whose handle it came, and the groups
that a message is sent to are the last part of its name. Records are in the order in which the daemon gave them, over all groups.

Lines on standard input start a phase: ``random``, ``quiet`` (send no more), ``last N`` (one message of each program to all
groups), ``end``. Standard output has one JSON object per line: how far the phase is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ...daemon.client import (
    ClientError,
    ClosedGroup,
    ConnectionClosed,
    Event,
    Item,
    Message,
    NotMember,
    Order,
    OrderMismatch,
    Timeout,
    Undecided,
    View,
    connect,
)
from ...daemon.client.aio import Connection, Group
from ...daemon.client.protocol import Membership
from .recorder import CALL_S, UNDER_WAY_MAX, Journal, body, parse
from .tasks import until_one_ends

LEVELS: Final = ("ordered", "preack")
"""Of delivery: groups of these orders have no other."""
RATE: Final = 40.0
"""Messages a second, where nothing else is asked for."""
SIZES: Final = (0, 0, 40, 300, 1400, 6000)
AGAIN_S: Final = 0.05
"""Until a group that has no members yet is joined for sending again."""


@dataclass(frozen=True, slots=True)
class Task:
    """What the programs of all stations do."""

    groups: Mapping[str, Sequence[int]]
    """Stations whose programs are members, by the group's name: one letter or more, no ``.`` or ``+``."""
    orders: tuple[Order, ...] = ("token", "abcast")
    rate: float = RATE
    """Messages a second of all programs of all stations, on average; 0: none."""
    stations: int = 3

    def text(self) -> str:
        """As one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Task:
        """What ``text`` gave."""
        data = json.loads(text)
        return cls(data["groups"], tuple(data["orders"]), float(data["rate"]), int(data["stations"]))

    @property
    def programs(self) -> int:
        """Of one order, at all stations."""
        return self.stations * len(LEVELS)


def named(group: str, order: Order) -> str:
    """The process group of this order that is called so here."""
    return f"{group}-{order}"


def groups_of(name: str) -> tuple[str, ...]:
    """Groups that a message of this name is sent to."""
    return tuple(name.rpartition(".")[2].split("+"))


class _Inbox(list[Item]):
    """A group's inbox that tells of each item when it arrives."""

    def __init__(self, tell: Callable[[Item], None]) -> None:
        self._tell = tell

    def append(self, item: Item) -> None:
        self._tell(item)
        super().append(item)


class _Tapped(Membership):
    """A membership whose inbox tells of what arrives, so that the sequence over several groups is known."""

    tell: Callable[[Item], None]

    def take(self) -> tuple[list[Item], int, bool]:
        taken = super().take()
        self.items = _Inbox(self.tell)
        return taken


class Caster:
    """The connections of one order at one level, one after the other."""

    def __init__(self, station: Multicasters, order: Order, level: str) -> None:
        self.order: Order = order
        self.level = level
        self._station = station
        self._session = 0
        self._number = 0
        self._id = ""
        self._sends: set[asyncio.Task[None]] = set()
        self._records: list[dict[str, Any]] = []
        self._is_known = False
        self.last_heard: dict[int, set[tuple[str, ...]]] = {}
        """By round, in the present life."""
        self.last_done = 0

    @property
    def under_way(self) -> int:
        return len(self._sends)

    @property
    def listens(self) -> bool:
        """It is a member of some group."""
        return bool(self._station.own_groups)

    def _write(self, kind: str, **record: Any) -> None:
        self._flush()
        self._station.journal.write({"k": kind, "c": self._id, **record})

    def _flush(self) -> None:
        records, self._records = self._records, []
        if records:
            self._station.journal.write(*records)

    async def run(self) -> None:
        """Connect, join, send and read, again and again until the end."""
        station = self._station
        while not station.over:
            self._session += 1
            self._number = 0
            self._is_known = False
            self._id = f"{station.station}.{self.order[0]}{self.level[0]}.{self._session}"
            connection = None
            why, error = "cancelled", ""
            try:
                connection = await self._connect()
                if connection is None:
                    break
                client = connection.welcome.client
                self._write(
                    "connect", station=station.station, slot=self.level, client=client, level=self.level, group=self.order
                )
                self._is_known = True
                await self._live(connection)
                why = "bye"
            except (ConnectionClosed, Timeout, NotMember) as exc:
                why, error = str(exc), type(exc).__name__
            finally:
                for task in list(self._sends):
                    task.cancel()
                await asyncio.gather(*self._sends, return_exceptions=True)
                self.last_heard.clear()
                if connection is not None:
                    self._write("end", why=why, error=error)
                    with contextlib.suppress(ClientError):
                        await connection.close(timeout=1.0 if why == "bye" else 0.0)
            await asyncio.sleep(0.01)

    async def _connect(self) -> Connection | None:
        """A connection, or None: it is over before there was one."""

        async def wait() -> Connection:
            return await connect(name=self._id, wait=None, timeout=CALL_S, on_event=self._on_event)

        made = asyncio.create_task(wait())
        over = asyncio.create_task(self._station.ended.wait())
        try:
            await asyncio.wait((made, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            made.cancel()
            over.cancel()
            await asyncio.gather(made, over, return_exceptions=True)
        return None if made.cancelled() else made.result()

    async def _live(self, connection: Connection) -> None:
        joined = {name: await self._join(connection, name) for name in self._station.own_groups}

        async def rest() -> None:
            others = [name for name in self._station.task.groups if name not in joined]
            handles = dict(joined)
            for name in others:
                handles[name] = await self._join_to_send(connection, name)
            await self._send(connection, handles)

        reading = (self._read(group) for group in joined.values())
        await until_one_ends(*reading, rest(), self._watch(connection), self._station.ended.wait())

    @staticmethod
    async def _watch(connection: Connection) -> None:
        """Who is in no group reads nothing, and is not told when the daemon is gone. Raises ConnectionClosed."""
        while not connection.closed:
            await asyncio.sleep(AGAIN_S)
        raise ConnectionClosed

    # ---- joining

    async def _join(self, connection: Connection, name: str) -> Group:
        """As ``Connection.join`` does, but with an inbox that tells of what arrives."""
        membership = connection._protocol.join(named(name, self.order), self.level, order=self.order, open_group=True)  # type: ignore[arg-type]
        membership.__class__ = _Tapped
        assert isinstance(membership, _Tapped)
        membership.tell = lambda item: self._arrived(name, item)
        membership.items = _Inbox(membership.tell)
        connection._link.flush()
        await connection._wait(membership.joined, CALL_S, "joining")
        return Group(connection, membership)

    async def _join_to_send(self, connection: Connection, name: str) -> Group:
        while True:
            try:
                return await connection.join(named(name, self.order), order=self.order, send_only=True, timeout=CALL_S)
            except (ClosedGroup, OrderMismatch):  # nobody is in it at present
                await asyncio.sleep(AGAIN_S)

    # ---- reading

    async def _read(self, group: Group) -> None:
        while True:
            await group.recv_items(timeout=None)  # recorded when it arrived
            self._flush()
            self._station.tell()

    def _arrived(self, group: str, item: Item) -> None:
        record: dict[str, Any] = {"t": self._station.now(), "c": self._id}
        if type(item) is Message:
            name, whole = parse(item.data)
            self._count(name)
            record |= {"k": "message", "g": group, "m": name, "p": item.place, "from": [item.station, item.client]}
            record["whole"] = whole
        elif isinstance(item, View):
            members = {key: [list(m) for m in getattr(item, key)] for key in ("members", "joined", "left")}
            record |= {"k": "group", "g": group, "p": item.place, "instance": item.instance, "reason": item.reason, **members}
        else:
            return  # an event, which each group gets
        self._records.append(record)

    def _on_event(self, event: Event) -> None:
        """Also where there are no groups whose inbox would have it."""
        detail = dict(event.detail)
        if detail["event"] == "reopened":
            self.last_heard.clear()
        if self._is_known:  # before that the connection is not in the history
            self._records.append(
                {"t": self._station.now(), "c": self._id, "k": "event", "name": detail["event"], "detail": detail}
            )
            if not self.listens:
                self._flush()

    def _count(self, name: str) -> None:
        station, slot, _, _, kind, *_ = name.split(".")
        if kind[0] == "l":
            self.last_heard.setdefault(int(kind[1:]), set()).add((station, slot))

    # ---- sending

    async def _send(self, connection: Connection, handles: Mapping[str, Group]) -> None:
        station, rng = self._station, self._station.rng
        said = 0
        names = sorted(handles)
        task = station.task
        gap_s = 2 * task.programs * len(task.orders) / task.rate if task.rate else CALL_S
        while True:
            phase, number = station.phase
            if phase == "random" and task.rate:
                chosen = rng.sample(names, rng.randint(1, len(names)))
                for _ in range(rng.randint(1, 3)):
                    if rng.random() < 0.3:
                        chosen = rng.sample(names, rng.randint(1, len(names)))
                    if self.under_way < UNDER_WAY_MAX:
                        self._start(connection, handles, "r", chosen, rng.choice(LEVELS), rng.choice(SIZES))
            elif phase == "last" and said < number:
                said = number
                self._start(connection, handles, f"l{number}", names, "preack", 0)
            await station.pause(rng.expovariate(1 / gap_s) if phase == "random" else CALL_S)

    def _start(
        self, connection: Connection, handles: Mapping[str, Group], kind: str, chosen: Iterable[str], level: str, filling: int
    ) -> None:
        """Begin to send one message. Tasks start in the order in which they are made, and so the messages are queued."""
        self._number += 1
        to = sorted(chosen)
        name = f"{self._id}.{self._number}.{kind}.{'+'.join(to)}"
        task = asyncio.create_task(self._one(connection, [handles[g] for g in to], name, kind, level, filling))
        self._sends.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._sends.discard(task)
        self._station.tell()

    async def _one(self, connection: Connection, to: list[Group], name: str, kind: str, level: str, filling: int) -> None:
        self._write("send", m=name, level=level)
        result: dict[str, Any]
        try:
            await connection.send(body(name, filling), to, level, timeout=CALL_S)  # type: ignore[arg-type]
            result = {"r": "done"}
            if kind[0] == "l":
                self.last_done = max(self.last_done, int(kind[1:]))
        except Undecided as error:
            result = {"r": "undecided", "reached": error.reached}
        except Timeout:
            result = {"r": "timeout"}
        except (ClosedGroup, OrderMismatch):
            result = {"r": "refused"}  # all members of a group are gone
        except (ClientError, asyncio.CancelledError):
            result = {"r": "lost"}
        self._write("result", m=name, **result)


class Multicasters:
    """All connections of one station, and the phase that they are in."""

    def __init__(self, station: int, seed: int, path: Path, task: Task) -> None:
        self.station = station
        self.rng = random.Random(seed)
        self.task = task
        self.journal = Journal(path)
        self.own_groups = [name for name, stations in task.groups.items() if station in stations]
        self.phase: tuple[str, int] = ("random", 0)
        self.ended = asyncio.Event()
        self._changed = asyncio.Event()
        self.casters = [Caster(self, order, level) for order, level in itertools.product(task.orders, LEVELS)]
        self._told = ""

    @property
    def over(self) -> bool:
        return self.ended.is_set()

    @staticmethod
    def now() -> int:
        """As the journal's times."""
        return time.monotonic_ns()

    async def pause(self, seconds: float) -> None:
        """Wait for this time, or until the phase changes."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def tell(self) -> None:
        """Report progress, if it is new."""
        phase, number = self.phase
        state: dict[str, Any] = {"phase": phase, "number": number}
        if phase == "quiet":
            state["under_way"] = sum(caster.under_way for caster in self.casters)
        elif phase == "last":
            state["heard"] = [len(c.last_heard.get(number, ())) for c in self.casters if c.listens]
            state["done"] = [caster.last_done >= number for caster in self.casters]
        text = json.dumps(state)
        if text != self._told:
            self._told = text
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    async def run(self) -> None:
        """Run until asked to end, or until standard input is closed: who started it is gone."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        tasks = [asyncio.create_task(caster.run()) for caster in self.casters]
        self.tell()
        try:
            while line := (await reader.readline()).decode():
                phase, _, number = line.strip().partition(" ")
                if phase == "end":
                    break
                self.phase = (phase, int(number or 0))
                self._changed.set()
                self._changed = asyncio.Event()
                self.tell()
        finally:
            self.ended.set()
            _, late = await asyncio.wait(tasks, timeout=5.0)
            for task in late:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            self.journal.close()
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result


def main(argv: Sequence[str]) -> int:
    """Exit code 0: everything is written down."""
    parser = argparse.ArgumentParser(prog="python -m zenjun.tools.histories.multicaster")
    parser.add_argument("station", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("path", type=Path)
    parser.add_argument("task", type=Task.parse, help="JSON: groups, orders, rate, stations")
    args = parser.parse_args(argv)

    async def run() -> None:
        await Multicasters(args.station, args.seed, args.path, args.task).run()

    asyncio.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
