"""A program with a state that it gives to joining programs: ``python -m zenjun.tools.histories.statekeeper``.

It sends to its group at a steady rate and records the longest time without a delivery. Lines on standard input:
``quiet`` (send no more), ``facts`` (answer with one line of JSON), ``end``. The first line of standard output reports that its
state is the group's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final

from ...daemon.client import Message, connect
from ...daemon.client.aio import StateGroup
from ...proto.service.stateapi import Have, Offer, Place, Restore, Snapshot
from .tasks import until_one_ends

GROUP: Final = "state"
CHUNK: Final = 64 * 1024
HEAD: Final = b"head"
TICK_S: Final = 0.005
BODY: Final = bytes(80)


def digest_of(chunks: dict[bytes, bytes]) -> bytes:
    """Of a whole state."""
    h = blake2b(digest_size=16)
    for key in sorted(chunks):
        h.update(key + chunks[key])
    return h.digest()


class Book:
    """Chunks of 64 KiB, one of which each message changes, and a hash over all messages."""

    def __init__(self, size: int) -> None:
        fill = random.Random(size).randbytes(CHUNK)
        self.chunks: dict[bytes, bytes] = {b"%d" % k: fill for k in range(-(-size // CHUNK))}
        self.history = bytes(16)
        self.count = 0

    def apply(self, m: Message) -> None:
        self.history = blake2b(self.history + m.data, digest_size=16).digest()
        if self.chunks:
            key = b"%d" % (self.count % len(self.chunks))
            self.chunks[key] = self.history + self.chunks[key][16:]
        self.count += 1

    def frozen(self) -> dict[bytes, bytes]:
        return {**self.chunks, HEAD: self.history + b"%d" % self.count}

    def have(self) -> Have | None:
        return None

    def snapshot(self, place: Place, have: Have | None) -> Snapshot:
        data = self.frozen()
        size = sum(map(len, data.values()))
        return Snapshot(iter(data.items()), data.__getitem__, digest=partial(digest_of, data), count=len(data), size=size)

    def restore(self, offer: Offer) -> Restore:
        return Building(self)


class Building:
    """A state that comes."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._chunks: dict[bytes, bytes] = {}

    def kept(self) -> Iterable[tuple[bytes, bytes]]:
        return ()

    def chunk(self, key: bytes, data: bytes) -> None:
        self._chunks[key] = data

    def drop(self, key: bytes) -> None:
        del self._chunks[key]

    def end(self) -> bytes:
        return digest_of(self._chunks)

    def commit(self, offer: Offer) -> None:
        head = self._chunks.pop(HEAD)
        self._book.chunks, self._book.history, self._book.count = self._chunks, head[:16], int(head[16:])

    def abort(self) -> None:
        self._chunks.clear()


class Keeper:
    """The program."""

    def __init__(self, size: int, rate: float) -> None:
        self.book = Book(size)
        self._rate = rate
        self._gap = 0.0
        self._quiet = asyncio.Event()
        self._began = time.monotonic()
        self._joined = 0.0

    async def run(self) -> None:
        """Run until asked to end, or until standard input is closed."""
        async with connect(name="state keeper", wait=30.0, timeout=None) as connection:
            group = await connection.join(GROUP, state=self.book, timeout=None)
            assert isinstance(group, StateGroup)
            self._joined = time.monotonic() - self._began
            self._say({"active": True})
            await until_one_ends(self._read(group), self._send(group), self._listen(group))

    async def _read(self, group: StateGroup) -> None:
        last = 0.0
        while True:
            for m in await group.recv_batch(timeout=None):
                self.book.apply(m)
            now = time.monotonic()
            if last and group.active and not self._quiet.is_set():
                self._gap = max(self._gap, now - last)
            last = now if group.active else 0.0

    async def _send(self, group: StateGroup) -> None:
        due, owed = time.monotonic(), 0.0
        while self._rate and not self._quiet.is_set():
            due += TICK_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            owed += self._rate * TICK_S
            while owed >= 1 and not self._quiet.is_set():
                owed -= 1
                await group.send(BODY, "sent")
        await asyncio.Event().wait()

    async def _listen(self, group: StateGroup) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := (await reader.readline()).decode().strip():
            if line == "end":
                return
            if line == "quiet":
                self._quiet.set()
            else:
                frozen, count = self.book.frozen(), self.book.count  # both now: messages come while the digest is computed
                digest = await asyncio.to_thread(digest_of, frozen)
                facts = {"count": count, "digest": digest.hex(), "gap_ms": round(self._gap * 1000)}
                self._say({**facts, "joined_ms": round(self._joined * 1000), "active": group.active})

    @staticmethod
    def _say(facts: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()


def main(argv: Sequence[str]) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m zenjun.tools.histories.statekeeper")
    parser.add_argument("--size", type=int, default=0, help="bytes of its state before anybody has joined")
    parser.add_argument("--rate", type=float, default=0.0, help="messages per second")
    args = parser.parse_args(argv)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Keeper(args.size, args.rate).run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
