"""A program at one station that sends, takes what comes, and writes everything down: ``python -m tests.jepsen.recorder``.

One connection per level of delivery, made again whenever its daemon is gone. What happens is appended to a file without
buffering (``history.py`` has the table of records). Lines on standard input say which phase begins: ``random`` traffic, ``final``
(everybody says the same again and again until all hear all), ``settle`` (nothing new), ``last N`` (one message each), ``end``.
Standard output has one JSON object per line with what the runner waits for.
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
from pathlib import Path
from typing import Any, Final

from zenjun.daemon.client import (
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
from zenjun.daemon.client.aio import Connection, Group

from .history import SLOTS

GROUP: Final = "jepsen"
CALL_S: Final = 60.0
"""Deadline of every call; longer than any fault, so that it only ends what hangs."""
UNDER_WAY_MAX: Final = 60
"""Messages of one connection whose fate is open; while there are so many nothing is sent."""
GAP_S: Final = 0.25
"""Mean time between bursts of one connection in the random phase."""
BURST_MAX: Final = 5
FINAL_GAP_S: Final = 0.3
LEVELS: Final = ("sent", "ordered", "preack", "preack", "ack")
SIZES: Final = (0, 0, 0, 40, 300, 1400, 6000)
"""Bytes of filling after the name; the last ones take several frames."""


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
    """The connections at one level, one after the other."""

    def __init__(self, recorder: Recorder, level: str) -> None:
        self.level = level
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
            self._id = f"{self._recorder.station}.{self.level[0]}.{self._session}"
            connection = None
            why, error = "cancelled", ""
            try:
                connection = await connect(name=self._id, wait=CALL_S, timeout=CALL_S)
                self._write(
                    "connect", station=self._recorder.station, slot=self.level, client=connection.welcome.client, level=self.level
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

    async def _live(self, connection: Connection) -> None:
        group = await connection.join(GROUP, self.level, timeout=CALL_S)  # type: ignore[arg-type]
        tasks = [
            asyncio.create_task(self._read(group)),
            asyncio.create_task(self._send(group)),
            asyncio.create_task(self._recorder.ended.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

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
                gap = rng.expovariate(1 / GAP_S)
                for _ in range(rng.randrange(1, BURST_MAX + 1)):
                    if self.under_way < UNDER_WAY_MAX:
                        self._start(group, "r", rng.choice(LEVELS), rng.choice(SIZES))
            elif phase == "final" and self.under_way < UNDER_WAY_MAX:
                self._start(group, "f", "preack", 0)
            elif phase == "last" and said < number:
                said = number
                self._start(group, f"l{number}", "ack", 0)
            await recorder.pause(gap)

    def _start(self, group: Group, kind: str, level: str, filling: int) -> None:
        """Begin to send one message. Tasks start in the order in which they are made, and so the messages are queued."""
        self._number += 1
        name = f"{self._recorder.station}.{self.level[0]}.{self._session}.{self._number}.{kind}"
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

    def __init__(self, station: int, seed: int, path: Path) -> None:
        self.station = station
        self.rng = random.Random(seed)
        self.journal = Journal(path)
        self.phase: tuple[str, int] = ("random", 0)
        self.ended = asyncio.Event()
        self._changed = asyncio.Event()
        self.slots = [Slot(self, level) for level in SLOTS]
        self._told = ""

    @property
    def over(self) -> bool:
        return self.ended.is_set()

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until the phase changes."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def tell(self) -> None:
        """Tell the runner how far we are, if that is news."""
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
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    async def run(self) -> None:
        """Until told to end, or until standard input is closed: the runner is gone."""
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


def main(argv: list[str]) -> int:
    """Exit code 0: everything is written down."""
    parser = argparse.ArgumentParser(prog="python -m tests.jepsen.recorder")
    parser.add_argument("station", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("path", type=Path)
    args = parser.parse_args(argv)

    async def run() -> None:
        await Recorder(args.station, args.seed, args.path).run()

    asyncio.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
