"""State transfer on real daemons: joiners while messages flow, donors and joiners that die, the example of the documentation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path

import pytest
from zenjun.daemon.client import Message, SyncConnection, connect, connect_sync
from zenjun.daemon.client.sync import SyncStateGroup
from zenjun.proto.service.stateapi import Have, Offer, Place, Snapshot
from zenjun.proto.service.transferwire import digest_of
from zenjun.tools.lab import Lab

from .cluster import cluster, kill, wait_for

pytestmark = pytest.mark.lab
COUNTER = Path(__file__).resolve().parents[2] / "docs" / "examples" / "counter.py"
CHUNK = 64 * 1024


class Book:
    """A state of ``chunks`` chunks of 64 KiB, which every message changes at one place, and a hash over all messages."""

    def __init__(self, chunks: int = 0) -> None:
        self.chunks = {b"%d" % k: bytes([k % 251]) * CHUNK for k in range(chunks)}
        self.history = bytes(16)
        self.count = 0
        self.partial: dict[bytes, bytes] = {}
        self.fetched = 0
        self.pause_s = 0.0
        """What the program takes to store a chunk."""

    def apply(self, m: Message) -> None:
        self.history = blake2b(self.history + m.data, digest_size=16).digest()
        self.count += 1

    def digest(self) -> bytes:
        return _digest({**self.chunks, b"head": self.history + b"%d" % self.count})

    def have(self) -> Have | None:
        return None

    def snapshot(self, place: Place, have: Have | None) -> Snapshot:
        data = {**self.chunks, b"head": self.history + b"%d" % self.count}
        size = sum(map(len, data.values()))
        return Snapshot(iter(data.items()), read=data.__getitem__, digest=partial(_digest, data), count=len(data), size=size)

    def restore(self, offer: Offer) -> Building:
        return Building(self)


def _digest(data: dict[bytes, bytes]) -> bytes:
    h = blake2b(digest_size=16)
    for key in sorted(data):
        h.update(data[key])
    return h.digest()


class Building:
    """A Book being restored. Its chunks outlive the program, as files would."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.new = Book()

    def kept(self) -> list[tuple[bytes, bytes]]:
        return [(key, digest_of(data)) for key, data in self.book.partial.items()]

    def chunk(self, key: bytes, data: bytes) -> None:
        self.book.partial[key] = data
        self.book.fetched += 1
        time.sleep(self.book.pause_s)

    def drop(self, key: bytes) -> None:
        del self.book.partial[key]

    def end(self) -> bytes:
        self.new.chunks = dict(self.book.partial)
        head = self.new.chunks.pop(b"head")
        self.new.history, self.new.count = head[:16], int(head[16:])
        return self.new.digest()

    def commit(self, offer: Offer) -> None:
        self.book.chunks, self.book.history, self.book.count = self.new.chunks, self.new.history, self.new.count

    def abort(self) -> None:
        self.book.partial.clear()


class Reader:
    """A program that keeps a Book in a thread of its own."""

    def __init__(self, path: str, book: Book) -> None:
        self.book = book
        self.connection: SyncConnection = connect_sync(path, timeout=60, wait=10)
        self.group: SyncStateGroup | None = None
        self.error: BaseException | None = None
        self._stop = False
        self._send: list[bytes] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            group = self.connection.join("book", state=self.book)
            assert isinstance(group, SyncStateGroup)
            self.group = group
            while not self._stop:
                for data in self._send[:]:
                    group.send(data, "sent")
                    self._send.remove(data)
                with contextlib.suppress(TimeoutError):
                    for m in group.recv_batch(timeout=0.02):
                        self.book.apply(m)
        except BaseException as error:
            self.error = error

    def send(self, data: bytes) -> None:
        self._send.append(data)

    def ready(self) -> bool:
        if self.error is not None and not self._stop:
            raise AssertionError("the program has failed") from self.error
        return self.group is not None and self.group.active

    def stop(self) -> None:
        self._stop = True
        self._thread.join(30)
        self.connection.close(timeout=0.2)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with cluster(4) as up:
        yield up


@pytest.fixture
def readers(lab: Lab) -> Iterator[Callable[[int, Book], Reader]]:
    started: list[Reader] = []

    def start(station: int, book: Book) -> Reader:
        started.append(Reader(str(lab.station(station).socket_path), book))
        return started[-1]

    yield start
    for reader in started:
        reader.stop()


def same(*readers: Reader) -> bool:
    return len({r.book.digest() for r in readers}) == 1


def test_a_joiner_while_messages_flow(lab: Lab, readers: Callable[[int, Book], Reader]) -> None:
    """Messages before, while and after: the joiner's state is the others', and it has read each message behind the state once."""
    first = readers(1, Book(64))
    wait_for(first.ready, "the first program starts with what it has")
    for k in range(200):
        first.send(b"%d" % k)
    second = readers(2, Book())
    second.book.pause_s = 0.005
    for k in range(200, 600):
        first.send(b"%d" % k)
        time.sleep(0.002)
    wait_for(second.ready, "the joiner is active", 30)
    second.send(b"from the joiner")
    wait_for(lambda: first.book.count == 601 and same(first, second), "equal states", 20)
    assert len(second.book.chunks) == 64


def test_the_donor_dies_in_the_middle(lab: Lab, readers: Callable[[int, Book], Reader]) -> None:
    """The other donor goes on; nothing is fetched twice."""
    first, second = readers(1, Book(64)), readers(2, Book(64))
    wait_for(lambda: first.ready() and second.ready(), "two active programs", 20)
    joiner = readers(3, Book())
    joiner.book.pause_s = 0.02
    wait_for(lambda: joiner.book.fetched > 10, "the transfer is under way", 20)
    first.stop()
    second.send(b"after")
    wait_for(joiner.ready, "the joiner is active", 30)
    wait_for(lambda: joiner.book.count == 1 and same(second, joiner), "equal states")
    assert joiner.book.fetched < 64 + 40, "chunks here are not fetched again"


def test_the_joiner_dies_and_comes_back(lab: Lab, readers: Callable[[int, Book], Reader]) -> None:
    """What it kept is not fetched again, and the donor has let go of the first transfer."""
    donor = readers(1, Book(64))
    wait_for(donor.ready, "an active program", 20)
    killed = readers(2, Book())
    killed.book.pause_s = 0.02
    wait_for(lambda: killed.book.fetched > 20, "the transfer is under way", 20)
    killed._stop = True
    killed.connection._wire.socket.shutdown(socket.SHUT_RDWR)  # as the kernel does for a program that is killed
    back = Book()
    back.partial = dict(killed.book.partial)
    again = readers(3, back)
    wait_for(again.ready, "the joiner is active", 30)
    wait_for(lambda: same(donor, again), "equal states")
    assert back.fetched <= 65 - 20
    wait_for(lambda: donor.group is not None and donor.group.serving == 0, "no transfer is left", 20)


def test_a_station_that_dies_takes_its_donor_with_it(readers: Callable[[int, Book], Reader], lab: Lab) -> None:
    first, second = readers(4, Book(64)), readers(2, Book(64))
    wait_for(lambda: first.ready() and second.ready(), "two active programs", 20)
    joiner = readers(3, Book())
    joiner.book.pause_s = 0.02
    wait_for(lambda: joiner.book.fetched > 5, "the transfer is under way", 20)
    first._stop = True
    kill(lab.station(4))
    wait_for(joiner.ready, "the joiner is active", 40)
    wait_for(lambda: same(second, joiner), "equal states")
    lab.start_daemons([4])


def test_the_asyncio_client(lab: Lab, readers: Callable[[int, Book], Reader]) -> None:
    """It serves, and it joins; both while its tasks do other things."""

    async def main(path: str, other: str) -> tuple[int, bytes, bytes]:
        async with connect(path, timeout=30) as a, connect(other, timeout=30) as b:
            books = Book(16), Book()
            one = await a.join("async", state=books[0])

            async def follow(group: object, book: Book) -> None:
                async for m in one if group is one else two:
                    book.apply(m)

            tasks = [asyncio.create_task(follow(one, books[0]))]
            for k in range(50):
                await one.send(b"%d" % k)
            two = await b.join("async", state=books[1])
            tasks.append(asyncio.create_task(follow(two, books[1])))
            await two.send_many([b"x"] * 50)
            while min(book.count for book in books) < 100:
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            return books[1].count, books[0].digest(), books[1].digest()

    paths = [str(lab.station(k).socket_path) for k in (1, 2)]
    count, one, two = asyncio.run(asyncio.wait_for(main(*paths), 60))
    assert count == 100 and one == two


def test_the_counter_of_the_documentation_survives_restarts(lab: Lab, tmp_path: Path) -> None:
    """Two programs; each is killed and comes back; then both."""

    def run(station: int, *arguments: str) -> subprocess.Popen[str]:
        env = {**os.environ, "ZENJUN_SOCKET": str(lab.station(station).socket_path)}
        command = [sys.executable, str(COUNTER), str(tmp_path / f"{station}.json"), *arguments]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    def line(program: subprocess.Popen[str]) -> str:
        assert program.stdout is not None
        return program.stdout.readline().strip()

    started: list[subprocess.Popen[str]] = []
    try:
        started.append(run(1, "5"))
        assert [line(started[0]), line(started[0])] == ["at 0", "5"]
        started.append(run(2, "2"))
        assert [line(started[1]), line(started[1])] == ["at 5", "7"]
        assert line(started[0]) == "7"
        started[0].kill()
        started[0].wait(60)
        started.append(run(1))
        assert line(started[2]) == "at 7"
        for program in started:
            program.kill()
            program.wait(60)
        started.append(run(2, "1"))
        assert [line(started[3]), line(started[3])] == ["at 7", "8"], "what was stored"
    finally:
        for program in started:
            program.kill()
            program.wait(60)
