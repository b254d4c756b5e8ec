"""When what is applied goes to the disk: how much may wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from zenjun.daemon.directory import writing
from zenjun.daemon.directory.copy import Copy
from zenjun.daemon.directory.store import File, Writing
from zenjun.daemon.directory.writing import DiskWriter
from zenjun.proto.service.directory.entries import Place
from zenjun.proto.service.directory.store import Table

from ..timing import in_time

PATIENCE_S = 60.0


class SlowDisk(Copy):
    """Its writes wait until they are let go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(File(folder, "c", 1))
        self.go = threading.Event()
        self.began = threading.Event()
        self.error: Exception | None = None

    def write(self, rows: Writing, durable: bool) -> None:
        self.began.set()
        assert self.go.wait(PATIENCE_S)
        if (error := self.error) is not None:
            self.error = None
            raise error
        super().write(rows, durable)

    def settle(self, first: int, count: int, size: int = 10) -> None:
        for k in range(first, first + count):
            self.rows.put(Table.GONE, f"n{k}", b"x" * size, (k, 1, 0))
        self.rows.settle()


def running(folder: Path, use: Callable[[SlowDisk, DiskWriter], object], errors: list[Exception]) -> None:
    async def run() -> None:
        copy = SlowDisk(folder)
        at: Place = (1, 1, 0)

        async def rewrite() -> None:
            raise AssertionError("no sync has failed")

        writer = DiskWriter(copy, lambda: at, lambda place: None, rewrite, errors.append)
        task = asyncio.create_task(writer.run())
        try:
            await asyncio.wait_for(use(copy, writer), PATIENCE_S)  # type: ignore[arg-type]
        finally:
            copy.go.set()
            task.cancel()
            await asyncio.to_thread(writer.close)

    asyncio.run(run())


async def waits(writer: DiskWriter) -> asyncio.Task[None]:
    """Somebody who wants room, and does not get it."""
    waiting = asyncio.create_task(writer.room())
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done, "there is no room"
    return waiting


@pytest.mark.parametrize("size", [1, 2000], ids=["rows", "bytes"])
def test_more_is_applied_when_what_waits_has_been_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(writing, "PENDING_MAX", 50 if size == 1 else 1000)
    monkeypatch.setattr(writing, "PENDING_BYTES_MAX", 50 * 2000)

    async def use(copy: SlowDisk, writer: DiskWriter) -> None:
        copy.settle(0, 49, size)
        await asyncio.wait_for(writer.room(), PATIENCE_S)
        copy.settle(49, 1, size)
        waiting = await waits(writer)
        began = await asyncio.to_thread(copy.began.wait, PATIENCE_S)
        in_time(began, "it does not wait until so many rows are old enough")
        copy.settle(50, 49, size)  # what an update that is applied already adds while the first ones are written
        copy.go.set()
        await waiting
        assert copy.rows.count(Table.GONE) == 99 and not copy.rows.pending and not copy.rows.pending_bytes

    running(tmp_path, use, [])


def test_there_is_no_room_while_the_disk_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails has made none, and loses nothing."""
    monkeypatch.setattr(writing, "PENDING_BYTES_MAX", 5000)
    monkeypatch.setattr(writing, "BROKEN_S", 0.2)
    errors: list[Exception] = []

    async def use(copy: SlowDisk, writer: DiskWriter) -> None:
        copy.settle(0, 5, 1000)
        waiting = await waits(writer)
        copy.error = OSError(28, "No space left on device")
        copy.go.set()
        await waiting
        assert [str(e) for e in errors] == ["[Errno 28] No space left on device"]
        assert copy.rows.count(Table.GONE) == 5 and not copy.rows.pending_bytes

    running(tmp_path, use, errors)
