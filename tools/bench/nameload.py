"""The load of ``zenjun bench directory``: one process at a station, controlled by lines on its standard input.

A line is a JSON object: ``do`` and its arguments; the answer is one line with what was measured. All times are of the monotonic
clock, which the stations of a lab share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from ...daemon.client import connect
from ...daemon.names import Directory, calls, connect_directory
from .etcdwire import PUT, RANGE, WATCH, EtcdError, Http2, inner, put_request, range_request, watch_request, watched

NAMES: Final = 100
"""Names that updates and look-ups go round."""
TIMEOUT_S: Final = 30.0
MIRRORED: Final = 200_000
"""Look-ups of one measurement that need no I/O."""
WORK_S: Final = 1.5
ADDRESS: Final = "tcp://10.0.0.7:5432"

Json = dict[str, Any]


class Names(Protocol):
    """A name service as its users see it."""

    async def put(self, number: int, stamp: int) -> None:
        """Give a name a value that has ``stamp`` in it."""

    async def get(self, number: int) -> None:
        """Look a name up."""

    async def watch(self, on_stamp: Callable[[int], None]) -> None:
        """Call with the stamp of each value that a name gets from now on."""

    async def close(self) -> None: ...


class Zenjun:
    """``zenjun.names``. wait: when an update is done. fresh: look-ups have all that was acknowledged before."""

    def __init__(self, directory: Directory, wait: str, fresh: bool) -> None:
        self._d = directory
        self._wait = wait
        self._fresh = fresh
        self._tasks: list[asyncio.Task[None]] = []

    async def put(self, number: int, stamp: int) -> None:
        await self._d.update(calls.set_of(f"bench.n{number}", [ADDRESS], meta={"t": str(stamp)}), wait=self._wait)

    async def get(self, number: int) -> None:
        await self._d.lookup(f"bench.n{number}", fresh=self._fresh)

    async def watch(self, on_stamp: Callable[[int], None]) -> None:
        listed = asyncio.Event()

        async def follow() -> None:
            async for change in self._d.watch("bench."):
                if change.kind == "listed":
                    listed.set()
                elif listed.is_set() and change.entry is not None:
                    on_stamp(int(dict(change.entry.meta)["t"]))

        self._tasks.append(asyncio.create_task(follow()))
        await listed.wait()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._d.close()


class Group:
    """A message to a group, until it has come back at *preack*: what an update costs without a directory."""

    def __init__(self, connection: Any, group: Any) -> None:
        self._connection = connection
        self._group = group

    async def put(self, number: int, stamp: int) -> None:
        await self._group.send(struct.pack("<q", stamp) + bytes(200), "preack")

    async def get(self, number: int) -> None:
        raise NotImplementedError("a group has nothing to look up")

    async def watch(self, on_stamp: Callable[[int], None]) -> None:
        raise NotImplementedError("a group has nothing to watch")

    async def close(self) -> None:
        await self._connection.close()


class Etcd(asyncio.Protocol):
    """etcd's gRPC interface. fresh: linearizable; else from the member's own copy."""

    def __init__(self, authority: str, fresh: bool) -> None:
        self._http = Http2(authority)
        self._fresh = fresh
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._http.receive(data)
        self._flush()

    def _flush(self) -> None:
        if data := self._http.take():
            self._transport.write(data)

    async def _call(self, path: str, message: bytes) -> bytes:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def answered(data: bytes | None) -> None:
            if not future.done():
                if data is None:
                    future.set_exception(EtcdError(f"{path}: no answer"))
                else:
                    future.set_result(data)

        self._http.call(path, message, answered)
        self._flush()
        return await future

    async def put(self, number: int, stamp: int) -> None:
        await self._call(PUT, put_request(b"bench.n%d" % number, f"{ADDRESS} {stamp}".encode()))

    async def get(self, number: int) -> None:
        answer = await self._call(RANGE, range_request(b"bench.n%d" % number, not self._fresh))
        if not inner(answer, 2, 5):
            raise EtcdError(f"bench.n{number} has no value")

    async def watch(self, on_stamp: Callable[[int], None]) -> None:
        created: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(data: bytes | None) -> None:
            if not created.done():
                created.set_result(None)
            for value in watched(data or b""):
                on_stamp(int(value.split()[1]))

        self._http.call(WATCH, watch_request(b"bench."), told, last=False)
        self._flush()
        await created

    async def close(self) -> None:
        self._transport.close()


async def opened(arguments: argparse.Namespace, wait: str, fresh: bool) -> Names:
    """A connection of its own for one measurement."""
    if arguments.system == "etcd":
        host, _, port = arguments.target.rpartition(":")
        _, protocol = await asyncio.get_running_loop().create_connection(lambda: Etcd(arguments.target, fresh), host, int(port))
        return protocol
    if arguments.system == "group":
        connection = await connect(arguments.target, timeout=TIMEOUT_S)
        return Group(connection, await connection.join("bench", receive=False))
    return Zenjun(await connect_directory(arguments.target, timeout=TIMEOUT_S, keep=False), wait, fresh)


def figures(times_ns: Sequence[int], seconds: float) -> Json:
    """Percentiles, µs, and the rate."""
    found = sorted(times_ns)
    if not found:
        return {"count": 0, "per_s": 0.0}

    def at(share: float) -> float:
        return round(found[min(len(found) - 1, int(share * len(found)))] / 1e3, 1)

    return {
        "count": len(found),
        "per_s": round(len(found) / seconds, 1),
        "p50_us": at(0.5),
        "p99_us": at(0.99),
        "max_us": at(1.0),
    }


async def closed_loop(step: Callable[[int], Awaitable[None]], start_ns: int, seconds: float, inflight: int) -> Json:
    """``inflight`` calls at a time, each begun when one has ended. ``calls`` has those that ended after the window, too."""
    end_ns = start_ns + int(seconds * 1e9)
    times: list[int] = []
    calls = 0

    async def one(number: int) -> None:
        nonlocal calls
        while (began := time.monotonic_ns()) < end_ns:
            await step(number)
            calls += 1
            now = time.monotonic_ns()
            if now <= end_ns:
                times.append(now - began)
            number = (number + inflight) % NAMES

    await asyncio.sleep(max(0.0, (start_ns - time.monotonic_ns()) / 1e9))
    await asyncio.gather(*(one(number % NAMES) for number in range(inflight)))
    return {**figures(times, seconds), "calls": calls}


async def paced(step: Callable[[int], Awaitable[None]], start_ns: int, seconds: float, rate: float) -> Json:
    """One call at a time, at most ``rate`` a second."""
    times: list[int] = []
    await asyncio.sleep(max(0.0, (start_ns - time.monotonic_ns()) / 1e9))
    for turn in range(int(rate * seconds)):
        due = start_ns + int(turn / rate * 1e9)
        await asyncio.sleep(max(0.0, (due - time.monotonic_ns()) / 1e9))
        began = time.monotonic_ns()
        await step(turn % NAMES)
        times.append(time.monotonic_ns() - began)
    return figures(times, seconds)


class Load:
    """Carries lines out."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._watching: Names | None = None
        self._seen: list[int] = []

    async def run(self, line: Json) -> Json:
        do = line["do"]
        if do == "watch":
            self._watching = await opened(self._arguments, "memory", False)
            await self._watching.watch(lambda stamp: self._seen.append(time.monotonic_ns() - stamp))
            return {}
        if do == "seen":
            assert self._watching is not None
            await asyncio.sleep(line["settle_s"])
            await self._watching.close()
            return figures(self._seen, line["seconds"])
        if do in ("kept", "mirror"):
            return await kept(self._arguments.target, do)
        if do == "gone":
            return await gone(self._arguments.target)
        names = await opened(self._arguments, line.get("wait", "memory"), line.get("fresh", False))
        try:

            async def put(number: int) -> None:
                await names.put(number, time.monotonic_ns())

            if do == "fill":
                for number in range(NAMES):
                    await put(number)
                return {}
            step = put if do == "put" else names.get
            if "rate" in line:
                return await paced(step, line["start_ns"], line["seconds"], line["rate"])
            return await closed_loop(step, line["start_ns"], line["seconds"], line["inflight"])
        finally:
            await names.close()


async def kept(path: str, how: str) -> Json:
    """Look-ups from answers that the library keeps, or from a mirror."""
    async with connect_directory(path, timeout=TIMEOUT_S) as d:
        asked = [f"bench.n{number}" for number in range(NAMES)]
        mirror = await d.mirror("bench.") if how == "mirror" else None
        for name in asked:
            await d.lookup(name)
        began = time.monotonic_ns()
        for _ in range(MIRRORED // NAMES):
            if mirror is not None:
                for name in asked:
                    mirror[name]
            else:
                for name in asked:
                    await d.lookup(name)
        return {"count": MIRRORED, "per_s": round(MIRRORED / (time.monotonic_ns() - began) * 1e9, 1)}


async def gone(path: str) -> Json:
    """How soon the address of a program that closes its connection is gone, as another program here sees it."""
    times: list[int] = []
    async with connect_directory(path, timeout=TIMEOUT_S) as watching, asyncio.timeout(TIMEOUT_S):
        changes = watching.watch("benched.")
        while (await anext(changes)).kind != "listed":
            pass
        for _ in range(50):
            async with connect_directory(path, timeout=TIMEOUT_S) as d:
                lease = await d.register("benched.web", ADDRESS).__aenter__()
                assert lease.held
                while (await anext(changes)).entry is None:
                    pass
                began = time.monotonic_ns()
            while (await anext(changes)).entry is not None:
                pass
            times.append(time.monotonic_ns() - began)
    return figures(times, 1.0)


async def serve(arguments: argparse.Namespace) -> None:
    load = Load(arguments)
    loop = asyncio.get_running_loop()
    print("READY", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print("RESULT " + json.dumps(await load.run(json.loads(line))), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="nameload", description="The load of zenjun bench directory at one station.")
    parser.add_argument("--system", choices=("zenjun", "group", "etcd"), required=True)
    parser.add_argument("--target", required=True, help="socket of zenjun-directory or zenjund; HOST:PORT of etcd")
    import uvloop

    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
