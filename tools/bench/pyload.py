"""A program of ``zenjun bench programs``: ``python -m zenjun.tools.bench.pyload``. It uses a client library as a program would.

``READY`` on standard output: it is in its group. A line ``GO START SECONDS`` on standard input (START: monotonic nanoseconds)
begins the window; ``RESULT JSON`` follows when it is over, and the program ends. Bodies begin with their number, counted round
``CYCLE``, which the receiver checks.

A feeder sends what another program receives. The receiver writes a byte into a FIFO for each ``BURST`` messages it has got; the
feeder has at most ``AHEAD`` bursts on the way, so that no receiver counts as slow.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import struct
import sys
import time
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any, Final

from ...daemon.client import Message, SyncGroup, connect, connect_sync
from ...daemon.client.aio import Group

BURST: Final = 1024
AHEAD: Final = 8
CYCLE: Final = AHEAD * BURST
WHAT: Final = ("own", "send", "batch", "iterate", "closed")
RECEIVES: Final = ("batch", "iterate")
"""What a feeder is needed for."""
INTERFACES: Final = ("blocking", "asyncio", "uvloop")
NUMBER: Final = struct.Struct("<Q")
GROUP: Final = "programs"
TIMEOUT_S: Final = 60.0


class Wrong(Exception):
    """What came is not what was sent; the text has where."""


class Count:
    """Messages of one program in its window, and the processor time of it all."""

    def __init__(self, seconds: float, start_ns: int) -> None:
        self._start, self._end = start_ns, start_ns + int(seconds * 1e9)
        self._cpu: list[int] = []
        self._edges: list[tuple[int, int]] = []
        self.total = 0
        self.times: list[int] = []
        """Of messages one at a time, ns."""

    def is_over(self) -> bool:
        """Look at the clock; True once the window is over, and something has passed in it. Called once a burst or less: the clock
        would cost as much as the rest."""
        now = time.monotonic_ns()
        if not self._edges:
            begins, ends = now >= self._start, False
        else:
            begins, ends = False, now >= self._end and self.total > self._edges[0][1]
        if begins or ends:
            self._edges.append((now, self.total))
            self._cpu.append(time.process_time_ns())
        return ends

    def result(self) -> dict[str, Any]:
        """Of a window that is over."""
        (began, before), (ended, after) = self._edges
        count = after - before
        times = sorted(self.times)
        return {
            "messages_per_s": count / (ended - began) * 1e9,
            "cpu_us": (self._cpu[1] - self._cpu[0]) / count / 1000,
            "p50_us": times[len(times) // 2] / 1000 if times else None,
            "p99_us": times[len(times) * 99 // 100] / 1000 if times else None,
        }


def bodies(size: int) -> list[bytes]:
    """One round of messages, numbered."""
    return [NUMBER.pack(number).ljust(size, b"x") for number in range(CYCLE)]


def check(message: Message, number: int) -> None:
    """Raises Wrong unless this is the message of that number, counted from 0."""
    (found,) = NUMBER.unpack_from(message.data)
    if found != number % CYCLE:
        raise Wrong(f"message {number} of the group has the body of {found}")


class Credits:
    """The receiver's end of the FIFO."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY)
        self._given = 0

    def give(self, received: int) -> None:
        while received - self._given >= BURST:
            os.write(self._fd, b".")
            self._given += BURST

    def close(self) -> None:
        os.close(self._fd)


# ---- blocking


def feed(group: SyncGroup, fifo: str, size: int) -> None:
    """Send until the receiver has gone."""
    messages = cycle(bodies(size))
    fd = os.open(fifo, os.O_RDONLY)
    ahead = 0
    with group.pipeline("sent") as pipeline:
        while True:
            for body in islice(messages, BURST):
                pipeline.put(body)
            pipeline.flush()
            ahead += 1
            while ahead >= AHEAD:
                if not (came := os.read(fd, AHEAD)):
                    return
                ahead -= len(came)


def blocking(what: str, group: SyncGroup, count: Count, size: int, credits: Credits | None) -> None:
    """One kind of load until the window is over."""
    if credits is not None:
        if what == "batch":
            while not count.is_over():
                batch = group.recv_batch()
                check(batch[0], count.total)
                count.total += len(batch)
                check(batch[-1], count.total - 1)
                credits.give(count.total)
            return
        for message in group:
            count.total += 1
            if not count.total % BURST:
                check(message, count.total - 1)
                credits.give(count.total)
                if count.is_over():
                    return
    elif what == "closed":
        body = bodies(size)[0]
        while not count.is_over():
            began = time.monotonic_ns()
            group.send(body)
            count.times.append(time.monotonic_ns() - began)
            count.total += 1
    else:
        own, got, sent = what == "own", 0, 0
        messages = cycle(bodies(size))
        with group.pipeline() as pipeline:
            while not count.is_over():
                for body in islice(messages, BURST):
                    pipeline.put(body)
                sent += BURST
                while own and sent - got > CYCLE // 2:
                    batch = group.recv_batch()
                    check(batch[0], got)
                    got += len(batch)
                    check(batch[-1], got - 1)
                count.total = got if own else pipeline.completed


# ---- asyncio


async def with_loop(what: str, group: Group, count: Count, size: int, credits: Credits | None) -> None:
    """As ``blocking``."""
    if credits is not None:
        if what == "batch":
            while not count.is_over():
                batch = await group.recv_batch()
                check(batch[0], count.total)
                count.total += len(batch)
                check(batch[-1], count.total - 1)
                credits.give(count.total)
            return
        async for message in group:
            count.total += 1
            if not count.total % BURST:
                check(message, count.total - 1)
                credits.give(count.total)
                if count.is_over():
                    return
    elif what == "closed":
        body = bodies(size)[0]
        while not count.is_over():
            began = time.monotonic_ns()
            await group.send(body)
            count.times.append(time.monotonic_ns() - began)
            count.total += 1
    else:
        reading = asyncio.create_task(_own(group, count)) if what == "own" else None
        messages = cycle(bodies(size))
        async with group.pipeline() as pipeline:
            while not count.is_over():
                for body in islice(messages, BURST):
                    await pipeline.put(body)
                if reading is None:
                    count.total = pipeline.completed
                elif reading.done():
                    break
                else:
                    await asyncio.sleep(0)
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])
            if not reading.cancelled():
                reading.result()


async def _own(group: Group, count: Count) -> None:
    while True:
        batch = await group.recv_batch(timeout=None)
        check(batch[0], count.total)
        count.total += len(batch)
        check(batch[-1], count.total - 1)


# ---- the program


def window() -> tuple[float, int]:
    """(seconds, start) of the window, once it is told."""
    print("READY", flush=True)
    _, start, seconds = sys.stdin.readline().split()
    return float(seconds), int(start)


def run_blocking(a: argparse.Namespace) -> dict[str, Any] | None:
    """The result, None of a feeder. Raises ClientError, Wrong."""
    receives = a.what in ("own", *RECEIVES)
    with connect_sync(a.target, name="bench", wait=TIMEOUT_S, timeout=TIMEOUT_S) as connection:
        group = connection.join(GROUP, open_group=True, send_only=not receives)
        count = Count(*window())
        if a.what == "feed":
            feed(group, a.fifo, a.size)
            return None
        blocking(a.what, group, count, a.size, Credits(a.fifo) if a.what in RECEIVES else None)
    return count.result()


async def run_asyncio(a: argparse.Namespace) -> dict[str, Any]:
    """As ``run_blocking``; never a feeder."""
    receives = a.what in ("own", *RECEIVES)
    async with connect(a.target, name="bench", wait=TIMEOUT_S, timeout=TIMEOUT_S) as connection:
        group = await connection.join(GROUP, open_group=True, send_only=not receives)
        count = Count(*window())
        await with_loop(a.what, group, count, a.size, Credits(a.fifo) if a.what in RECEIVES else None)
    return count.result()


def main(argv: Sequence[str]) -> int:
    """Exit code 0; 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(prog="python -m zenjun.tools.bench.pyload")
    parser.add_argument("--target", help="socket of the daemon")
    parser.add_argument("--what", choices=(*WHAT, "feed"), required=True)
    parser.add_argument("--interface", choices=INTERFACES, default="blocking")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--fifo", default="", help="credits from the receiver to the feeder")
    a = parser.parse_args(argv)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            if a.interface == "blocking":
                result = run_blocking(a)
            elif a.interface == "asyncio":
                result = asyncio.run(run_asyncio(a))
            else:
                import uvloop

                result = uvloop.run(run_asyncio(a))
        except Wrong as error:
            sys.stderr.write(f"{error}\n")
            return 1
        if result is not None:
            print("RESULT " + json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
