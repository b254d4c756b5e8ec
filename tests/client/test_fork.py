"""A connection on both sides of a fork: it stays with the process that made it, and the child is told so."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from zenjun.daemon.client import Connection, Group, SyncConnection, SyncGroup, connect, connect_sync

from .fake_daemon import FakeThread, fake_daemon

MINE = r"RuntimeError: this is a connection of process \d+; connect again after fork"


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeThread]:
    with fake_daemon(tmp_path) as fake:
        yield fake


def in_child(*actions: Callable[[], object]) -> list[str]:
    """Each action in turn in one forked child: its value, or the exception that it raised."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        lines = []
        try:
            for action in actions:
                try:
                    lines.append(repr(action()))
                except Exception as error:
                    lines.append(f"{type(error).__name__}: {error}")
            os.write(writer, "\n".join(lines).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return text.split("\n")


def all_are_refused(lines: list[str]) -> bool:
    return all(re.fullmatch(MINE, line) for line in lines)


def test_sync_calls_in_a_child_are_refused(fake: FakeThread) -> None:
    with connect_sync(str(fake.daemon.path), timeout=5) as c:
        g = c.join("g")
        c.join("read").send(b"before")
        g.send(b"1")
        assert g.recv().data == b"1"
        g.send(b"2")
        lines = in_child(
            lambda: g.send(b"x"),
            lambda: g.send_many([b"x"]),
            lambda: g.recv(timeout=1),
            lambda: g.recv_items(timeout=1),
            lambda: g.recv_batch(timeout=1),
            lambda: next(iter(g)),
            lambda: next(g.items()),
            g.leave,
            lambda: c.join("h"),
            c.status,
            c.members,
            c.stations,
            lambda: c.serve(0.1),
        )
        assert len(lines) == 13 and all_are_refused(lines), lines
        assert str(os.getpid()) in lines[0]
        assert g.recv().data == b"2", "nothing was taken from the parent"
        g.send(b"3")
        assert g.recv().data == b"3"


def test_sync_close_in_a_child_does_not_disturb_the_parent(fake: FakeThread) -> None:
    def leave_block(c: SyncConnection, g: SyncGroup) -> bool:
        with c, g:
            pass
        return c.closed

    with connect_sync(str(fake.daemon.path), timeout=5) as c:
        g = c.join("g")
        fd = c.fileno()
        lines = in_child(lambda: leave_block(c, g), lambda: c.close(timeout=1), lambda: os.fstat(fd))
        assert lines[:2] == ["True", "False"] and lines[2].startswith("OSError: [Errno 9]"), lines
        g.send(b"x")
        assert g.recv().data == b"x"


def test_sync_child_connects_again(fake: FakeThread) -> None:
    def again() -> bytes:
        with connect_sync(str(fake.daemon.path), timeout=5) as d:
            h = d.join("child")
            h.send(b"of the child")
            return h.recv().data

    with connect_sync(str(fake.daemon.path), timeout=5) as c:
        g = c.join("g")
        assert in_child(again) == ["b'of the child'"]
        g.send(b"x")
        assert g.recv().data == b"x"


def test_async_calls_in_a_child_are_refused(fake: FakeThread) -> None:
    def run(action: Callable[[], Awaitable[object]]) -> Callable[[], object]:
        async def main() -> object:
            return await action()

        return lambda: asyncio.run(main())

    async def leave_block(c: Connection, g: Group) -> bool:
        async with c, g:
            pass
        return c.closed

    async def main() -> None:
        async with connect(str(fake.daemon.path), timeout=5) as c:
            g = await c.join("g")
            await g.send(b"1")
            assert (await g.recv()).data == b"1"
            await g.send(b"2")
            lines = in_child(
                run(lambda: g.send(b"x")),
                run(lambda: g.send_many([b"x"])),
                run(lambda: g.recv(timeout=1)),
                run(lambda: g.recv_items(timeout=1)),
                run(lambda: anext(g.messages())),
                run(lambda: anext(g.items())),
                run(g.leave),
                run(lambda: c.join("h")),
                run(c.status),
            )
            assert len(lines) == 9 and all_are_refused(lines), lines
            fd = c._link.wire.socket.fileno()
            lines = in_child(run(lambda: leave_block(c, g)), run(lambda: c.close(timeout=1)), lambda: os.fstat(fd))
            assert lines[:2] == ["True", "False"] and lines[2].startswith("OSError: [Errno 9]"), lines
            assert (await g.recv()).data == b"2", "nothing was taken from the parent"
            await g.send(b"3")
            assert (await g.recv()).data == b"3"

    asyncio.run(main())
