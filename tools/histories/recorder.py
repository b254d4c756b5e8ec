"""A program at one station that sends, receives, and records everything:
``python -m zenjun.tools.histories.recorder``.

One connection per level of delivery and group, made again whenever its daemon is gone. Events are appended to a file without
buffering (``history.py`` has the table of records). Lines on standard input start a phase: ``random`` traffic, ``final`` (every
program repeats its message until all receive from all), ``settle`` (nothing new), ``last N`` (one message each), ``end``;
``load JSON`` changes what is sent in the random phase. Standard output has one JSON object per line: what the runner waits for,
or ``news``, a change of the cluster that this station was told.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ...daemon.client import (
    BadName,
    ClientError,
    ConnectionClosed,
    Message,
    NotMember,
    Timeout,
    TooLarge,
    Undecided,
    connect,
)
from ...daemon.client.aio import Connection, Group
from .history import SLOTS
from .tasks import until_one_ends

GROUP: Final = "verdict"
CALL_S: Final = 60.0
"""Deadline of every call; longer than any fault, so that it only ends what hangs."""
UNDER_WAY_MAX: Final = 60
"""Messages of one connection without a result; at this number no more are sent."""
FINAL_GAP_S: Final = 0.3
LEVELS: Final = ("sent", "ordered", "preack", "preack", "ack")
SIZES: Final = (0, 0, 0, 40, 300, 1400, 6000)
"""Bytes of filling after the name; the last ones take several frames."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the programs of one station send in the random phase."""

    rate: float = 36.0
    """Messages a second of all of them together, on average; 0: none."""
    burst: tuple[int, int] = (1, 5)
    """Messages at once, each number equally likely."""
    sizes: tuple[tuple[int, int], ...] = tuple((size, size) for size in SIZES)
    """Bytes of filling: one of these ranges, then a number out of it, each equally likely."""
    levels: tuple[str, ...] = LEVELS
    """What their senders wait for, each equally likely."""

    def text(self) -> str:
        """As one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Load:
        """What ``text`` gave."""
        data = json.loads(text)
        sizes = tuple((int(low), int(high)) for low, high in data["sizes"])
        low, high = data["burst"]
        return cls(float(data["rate"]), (int(low), int(high)), sizes, tuple(data["levels"]))

    def gap_s(self, programs: int) -> float:
        """Mean time between bursts of one of this number of programs; the rate is not 0."""
        return programs * (self.burst[0] + self.burst[1]) / 2 / self.rate


def body(name: str, filling: int) -> bytes:
    """A message: its name, how much follows, and bytes that are made from both."""
    head = f"{name}|{filling}|".encode()
    digest = hashlib.blake2b(head).digest()
    return head + (digest * (filling // len(digest) + 1))[:filling]


def parse(data: bytes) -> tuple[str, bool]:
    """(name, whether the bytes are those that ``body`` makes). Never raises: damaged bytes have a name as well."""
    name, _, rest = data.partition(b"|")
    filling, _, _ = rest.partition(b"|")
    text = name.decode("ascii", "replace")
    return text, filling.isdigit() and len(filling) < 8 and data == body(text, int(filling))


class Journal:
    """The append-only file. Each batch is one write, so that it survives the death of everything but the machine."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, *records: dict[str, Any]) -> None:
        now = time.monotonic_ns()
        data = b"".join(json.dumps({"t": now, **record}, separators=(",", ":")).encode() + b"\n" for record in records)
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def close(self) -> None:
        os.close(self._fd)


class Slot:
    """The connections at one level in one group, one after the other."""

    def __init__(self, recorder: Recorder, level: str, group: str = GROUP, mark: str = "") -> None:
        """mark: distinguishes the slots of the same level in names."""
        self.level = level
        self.group = group
        self.letter = f"{level[0]}{mark}"
        self._recorder = recorder
        self._session = 0
        self._number = 0
        self._id = ""
        self._sends: set[asyncio.Task[None]] = set()
        self.final_heard: set[tuple[str, ...]] = set()
        """(station, level) whose message of the final phase came in the present life."""
        self.last_heard: dict[int, set[tuple[str, ...]]] = {}
        """By round, in the present life."""
        self.last_done = 0
        """Round whose own message is known to be acknowledged."""

    @property
    def under_way(self) -> int:
        return len(self._sends)

    def _write(self, kind: str, **record: Any) -> None:
        self._recorder.journal.write({"k": kind, "c": self._id, **record})

    async def run(self) -> None:
        """Connect, join, send and read, again and again until the end."""
        while not self._recorder.over:
            self._session += 1
            self._number = 0
            self._id = f"{self._recorder.station}.{self.letter}.{self._session}"
            connection = None
            why, error = "cancelled", ""
            try:
                connection = await self._connect()
                if connection is None:
                    break
                self._write(
                    "connect",
                    station=self._recorder.station,
                    slot=self.level,
                    client=connection.welcome.client,
                    level=self.level,
                    group=self.group,
                )
                await self._live(connection)
                why = "bye"
            except (ConnectionClosed, Timeout, NotMember) as exc:
                why, error = str(exc), type(exc).__name__
            finally:
                for task in list(self._sends):
                    task.cancel()
                await asyncio.gather(*self._sends, return_exceptions=True)
                self._new_life()
                if connection is not None:
                    self._write("end", why=why, error=error)
                    with contextlib.suppress(ClientError):
                        await connection.close(timeout=1.0 if why == "bye" else 0.0)
            await asyncio.sleep(0.01)

    async def _connect(self) -> Connection | None:
        """A connection, or None: it is over before there was one."""

        async def wait() -> Connection:
            return await connect(name=self._id, wait=None, timeout=CALL_S)

        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(wait()), asyncio.create_task(self._recorder.ended.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        made: asyncio.Task[Connection] = tasks[0]
        return None if made.cancelled() else made.result()

    async def _live(self, connection: Connection) -> None:
        group = await connection.join(self.group, self.level, timeout=CALL_S)  # type: ignore[arg-type]
        await until_one_ends(self._read(group), self._send(group), self._recorder.ended.wait())

    # ---- reading

    async def _read(self, group: Group) -> None:
        while True:
            items = await group.recv_items(timeout=None)
            self._recorder.journal.write(*(self._record(item) for item in items))
            self._recorder.tell()

    def _record(self, item: Any) -> dict[str, Any]:
        """One item as a record; keeps count of what the last phases wait for."""
        if type(item) is Message:
            name, whole = parse(item.data)
            self._count(name)
            return {
                "k": "message", "c": self._id, "m": name, "p": item.place, "from": [item.station, item.client], "whole": whole,
            }  # fmt: skip
        if hasattr(item, "group"):
            members = {key: [list(m) for m in getattr(item, key)] for key in ("members", "joined", "left")}
            return {
                "k": "group", "c": self._id, "p": item.place, "instance": item.instance, "reason": item.reason, **members,
            }  # fmt: skip
        detail = dict(item.detail)
        self._recorder.news(self, detail)
        if detail["event"] == "view":
            return {
                "k": "view",
                "c": self._id,
                "p": [detail["clock"], detail["station"], detail["index"]],
                "instance": detail["instance"],
                "members": [list(m[:2]) for m in detail["members"]],
                "joined": detail["joined"],
                "left": detail["left"],
            }
        if detail["event"] == "reopened":
            self._new_life()
        return {"k": "event", "c": self._id, "name": detail["event"], "detail": detail}

    def _new_life(self) -> None:
        self.final_heard.clear()
        self.last_heard.clear()

    def _count(self, name: str) -> None:
        station, level, *_, kind = name.split(".")
        if kind == "f":
            self.final_heard.add((station, level))
        elif kind[0] == "l":
            self.last_heard.setdefault(int(kind[1:]), set()).add((station, level))

    # ---- sending

    async def _send(self, group: Group) -> None:
        recorder, rng = self._recorder, self._recorder.rng
        said = 0
        while True:
            phase, number = recorder.phase
            gap = FINAL_GAP_S
            if phase == "random":
                load = recorder.load
                gap = rng.expovariate(1 / load.gap_s(len(recorder.slots))) if load.rate else CALL_S
                for _ in range(rng.randint(*load.burst) if load.rate else 0):
                    if self.under_way < UNDER_WAY_MAX:
                        self._start(group, "r", rng.choice(load.levels), rng.randint(*rng.choice(load.sizes)))
            elif phase == "final" and self.under_way < UNDER_WAY_MAX:
                self._start(group, "f", recorder.final_level, 0)
            elif phase == "last" and said < number:
                said = number
                self._start(group, f"l{number}", "ack", 0)
            await recorder.pause(gap)

    def _start(self, group: Group, kind: str, level: str, filling: int) -> None:
        """Begin to send one message. Tasks start in the order in which they are made, and so the messages are queued."""
        self._number += 1
        name = f"{self._id}.{self._number}.{kind}"
        task = asyncio.create_task(self._one(group, name, kind, level, filling))
        self._sends.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._sends.discard(task)
        self._recorder.tell()

    async def _one(self, group: Group, name: str, kind: str, level: str, filling: int) -> None:
        self._write("send", m=name, level=level)
        result: dict[str, Any]
        try:
            await group.send(body(name, filling), level, timeout=CALL_S)  # type: ignore[arg-type]
            result = {"r": "done"}
            if kind[0] == "l":
                self.last_done = max(self.last_done, int(kind[1:]))
        except Undecided as error:
            result = {"r": "undecided", "reached": error.reached}
        except Timeout:
            result = {"r": "timeout"}
        except (TooLarge, BadName):
            result = {"r": "refused"}
        except (ClientError, asyncio.CancelledError):
            result = {"r": "lost"}
        self._write("result", m=name, **result)


class Recorder:
    """All slots of one station, and the phase they are in."""

    def __init__(self, station: int, seed: int, path: Path, load: Load, groups: int = 1, levels: Sequence[str] = SLOTS) -> None:
        self.station = station
        self.rng = random.Random(seed)
        self.load = load
        self.journal = Journal(path)
        self.phase: tuple[str, int] = ("random", 0)
        self.ended = asyncio.Event()
        self._changed = asyncio.Event()
        marks = [""] if groups == 1 else [str(number) for number in range(1, groups + 1)]
        self.slots = [Slot(self, level, f"{GROUP}{mark}", mark) for mark in marks for level in levels]
        self.final_level = "preack" if "preack" in levels else "ack"
        self._told = ""
        self._news: set[tuple[Any, ...]] = set()

    @property
    def over(self) -> bool:
        return self.ended.is_set()

    async def pause(self, seconds: float) -> None:
        """Wait for this time, or until the phase changes."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def tell(self) -> None:
        """Report progress to the runner, if it is new."""
        phase, number = self.phase
        state: dict[str, Any] = {"phase": phase, "number": number}
        if phase == "final":
            state["heard"] = [len(slot.final_heard) for slot in self.slots]
        elif phase == "settle":
            state["under_way"] = sum(slot.under_way for slot in self.slots)
        elif phase == "last":
            state["heard"] = [len(slot.last_heard.get(number, ())) for slot in self.slots]
            state["done"] = [slot.last_done >= number for slot in self.slots]
        text = json.dumps(state)
        if text != self._told:
            self._told = text
            self._say(text)

    def _say(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def news(self, slot: Slot, detail: dict[str, Any]) -> None:
        """Report a change of the cluster to the runner when the first connection gets it; for what is done to this station as
        well."""
        known = (detail["event"], detail.get("instance"))
        fresh = slot is self.slots[0] if detail["event"] in ("expelled", "fenced") else known not in self._news
        if detail["event"] in ("view", "expelled", "reopened", "fenced") and fresh:
            self._news.add(known)
            kept = ("event", "instance", "members", "joined", "left")
            self._say(json.dumps({"news": {key: detail[key] for key in kept if key in detail}}))

    async def run(self) -> None:
        """Run until asked to end, or until standard input is closed: the runner is gone."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        tasks = [asyncio.create_task(slot.run()) for slot in self.slots]
        self.tell()
        try:
            while line := (await reader.readline()).decode():
                phase, _, number = line.strip().partition(" ")
                if phase == "end":
                    break
                if phase == "load":
                    self.load = Load.parse(number)
                else:
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
    parser = argparse.ArgumentParser(prog="python -m zenjun.tools.histories.recorder")
    parser.add_argument("station", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("path", type=Path)
    parser.add_argument("--load", type=Load.parse, default=Load(), help="JSON; what is sent in the random phase")
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--levels", default=",".join(SLOTS), help="of delivery, a connection for each")
    args = parser.parse_args(argv)

    async def run() -> None:
        await Recorder(args.station, args.seed, args.path, args.load, args.groups, args.levels.split(",")).run()

    asyncio.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
