"""A program of ``zenjun bench groups``: ``python -m zenjun.tools.bench.groupload``. It joins a group, and sends lone messages to
it, or listens.

``READY`` on standard output: it has joined. A line ``GO START SECONDS`` on standard input (START: monotonic nanoseconds) begins
the window; in mode ``closed`` it ends after as many messages as were asked for. ``RESULT JSON`` follows, and the program ends
when standard input does. Bodies begin with the time of sending, since all programs of a lab share one clock.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from ...daemon.client import Order, SendLevel, connect
from ...daemon.client.aio import Group
from ..histories.tasks import until_one_ends

MODES: Final = ("listen", "closed")
STAMP: Final = struct.Struct("<q")
TIMEOUT_S: Final = 60.0


class Program:
    """What it sends and gets."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._a = arguments
        self._window = (0, 0)
        self._times: list[int] = []
        """Of sending, until known to be done; ns. Mode ``closed``."""
        self._latencies: list[int] = []
        """From sending to delivery here, ns, in the window."""
        self._delivered = 0
        self._sent = 0

    def _body(self) -> bytes:
        return STAMP.pack(time.monotonic_ns()).ljust(self._a.size, b"x")

    async def run(self) -> None:
        a = self._a
        async with connect(a.target, name="bench", wait=TIMEOUT_S, timeout=TIMEOUT_S) as connection:
            order: Order = a.order
            group = await connection.join(a.group, a.level, order=order, open_group=True)
            if a.mode == "closed":
                await group.send(self._body(), "preack")  # it opens the links, which takes the first message some time
            print("READY", flush=True)
            reader = asyncio.StreamReader()
            await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
            _, start, seconds = (await reader.readline()).decode().split()
            self._window = (int(start), int(start) + int(float(seconds) * 1e9))
            reading = asyncio.create_task(self._read(group))
            await asyncio.sleep(max(0.0, (self._window[0] - time.monotonic_ns()) / 1e9))
            await until_one_ends(self._send(group), reader.read())
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            print("RESULT " + json.dumps(self._result()), flush=True)
            await reader.read()

    def _result(self) -> dict[str, Any]:
        return {
            "sent": self._sent,
            "delivered": self._delivered,
            "done_us": [t // 1000 for t in self._times],
            "latency_us": [t // 1000 for t in self._latencies],
        }

    async def _read(self, group: Group) -> None:
        first, end = self._window
        while True:
            batch = await group.recv_batch(timeout=None)
            now = time.monotonic_ns()
            if not first <= now < end:
                continue
            self._delivered += len(batch)
            self._latencies += (now - STAMP.unpack_from(m.data)[0] for m in batch)

    async def _send(self, group: Group) -> None:
        end = self._window[1]
        level: SendLevel = self._a.level
        if self._a.mode == "closed":
            for _ in range(self._a.count):
                began = time.monotonic_ns()
                await group.send(self._body(), level)
                self._times.append(time.monotonic_ns() - began)
                self._sent += 1
                await asyncio.sleep(self._a.pause)
        await asyncio.sleep(max(0.0, (end - time.monotonic_ns()) / 1e9))


def main(argv: Sequence[str]) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m zenjun.tools.bench.groupload")
    parser.add_argument("--target", help="socket of the daemon")
    parser.add_argument("--group", required=True)
    parser.add_argument("--order", choices=("total", "abcast", "token"), required=True)
    parser.add_argument("--level", choices=("ordered", "preack"), default="preack")
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--count", type=int, default=0, help="messages, mode closed")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two, mode closed")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Program(parser.parse_args(argv)).run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
