"""Commits on their way to the disk."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from zenjun.daemon.database import syncing, vfs
from zenjun.daemon.database.copy import AHEAD_BYTES, AHEAD_MIN_BYTES, WAL_HEAD_BYTES, FileRows
from zenjun.daemon.database.doubt import Doubt, Doubts
from zenjun.daemon.database.files import Files
from zenjun.daemon.database.syncing import Syncing
from zenjun.daemon.database.walfile import write_again
from zenjun.proto.service.database.messages import Position

from ..rules import rule

LIMIT_S = 20.0
NOT_A_FILE = Path("/dev/null")
"""A sync of it fails with EINVAL."""


def told(disk: vfs.Disk) -> tuple[int, float]:
    assert select.select([disk.told], [], [], LIMIT_S)[0], f"no sync has ended within {LIMIT_S} s"
    found = disk.take()
    assert found is not None and disk.take() is None
    return found


def open_ones() -> set[Path]:
    """Descriptors of this process."""
    return {each for each in Path("/proc/self/fd").iterdir() if each.exists()}


def test_the_thread_says_how_each_sync_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000)
    before = open_ones()
    disk = vfs.Disk()
    assert disk.take() is None
    for wanted, each in ((0, path), (errno.EINVAL, NOT_A_FILE), (0, path)):
        disk.sync(each)
        error, seconds = told(disk)
        assert error == wanted and 0 <= seconds < LIMIT_S
    with pytest.raises(FileNotFoundError):
        disk.sync(tmp_path / "none")
    disk.sync(path)
    disk.close()  # in the middle of it, perhaps
    deadline = time.monotonic() + LIMIT_S
    while open_ones() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not open_ones() - before, "descriptors are left"


class Machine:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.shared = SimpleNamespace(epoch=1)
        self.owes_report = self.is_wrong = False
        self.inputs: list[tuple[str, Any]] = []

    def on_synced(self, version: int) -> list[Any]:
        if self.is_wrong:
            raise ZeroDivisionError
        self.inputs.append(("synced", version))
        return []

    def fail(self, reason: str) -> list[Any]:
        self.inputs.append(("fail", reason))
        return []


class Site:
    """What ``Syncing`` needs of a site, with a thread that may have something else to do."""

    def __init__(self, folder: Path) -> None:
        self.name, self.doubts, self.machine = "shop", Doubts(folder), Machine()
        wal = folder / "wal"
        wal.write_bytes(b"x" * 1000)
        self.rows = SimpleNamespace(wal=wal)
        self.position = Position(1, 0, bytes(16))
        self.is_free = True
        self.syncing = Syncing(cast(Any, self))
        self.tasks: list[asyncio.Task[Any]] = []

    def act_now(self, function: Callable[..., Sequence[Any]], *arguments: Any) -> None:
        assert self.is_free
        function(*arguments)

    async def act(self, function: Callable[..., Sequence[Any]], *arguments: Any, is_short: bool = False) -> None:
        await asyncio.sleep(0.01)
        function(*arguments)

    def soon(self, what: Any) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(what))

    def commit(self, version: int) -> None:
        self.position = Position(1, version, bytes(16))
        self.syncing.look(self.position)

    async def comes(self, *wanted: tuple[str, Any]) -> None:
        """These inputs, one after another, and no others."""
        deadline = time.monotonic() + LIMIT_S
        while len(self.machine.inputs) < len(wanted) and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        assert self.machine.inputs == list(wanted)
        self.machine.inputs.clear()


def session(folder: Path, test: Callable[[Site], Awaitable[None]]) -> None:
    async def run() -> None:
        site = Site(folder)
        site.syncing.begin()
        task = asyncio.create_task(site.syncing.run())
        await asyncio.sleep(0)
        try:
            await test(site)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, *site.tasks, return_exceptions=True)
            site.syncing.close()
            site.doubts.close()

    asyncio.run(run())


@rule("D5")
@pytest.mark.parametrize("is_free", [True, False])
def test_what_comes_during_a_sync_is_synced_together_after_it(tmp_path: Path, is_free: bool) -> None:
    async def test(site: Site) -> None:
        site.is_free = is_free
        site.commit(1)
        for version in (2, 3):
            site.commit(version)
        await site.comes(("synced", 1), ("synced", 3))
        site.syncing.look(site.position)
        await site.comes()
        assert site.syncing.seconds > 0 and site.doubts._read() is Doubt.NONE

    session(tmp_path, test)


@rule("D4")
def test_a_sync_that_fails_is_noted_and_the_copy_given_up(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        site.rows.wal = NOT_A_FILE
        site.commit(1)
        await site.comes(("fail", f"{NOT_A_FILE}: Invalid argument"))
        assert site.doubts.has_failed and site.doubts._read() is Doubt.FAILED
        site.rows.wal = tmp_path / "none"
        site.commit(2)
        await site.comes(("fail", f"{tmp_path}/none: No such file or directory"))

    session(tmp_path, test)


def test_of_another_copy_nothing_is_said(tmp_path: Path) -> None:
    """It took the place of the one that is synced."""

    async def test(site: Site) -> None:
        site.commit(1)
        site.rows = SimpleNamespace(wal=site.rows.wal)
        site.commit(2)
        await site.comes(("synced", 2))

    session(tmp_path, test)


def test_a_later_session_hears_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    """The sync goes on beyond the end of the session that it began in."""

    async def run() -> None:
        site = Site(tmp_path)
        site.syncing.begin()
        first = asyncio.create_task(site.syncing.run())
        await asyncio.sleep(0)
        site.commit(1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        site.syncing.begin()
        second = asyncio.create_task(site.syncing.run())
        await asyncio.sleep(0)
        await site.comes()
        site.commit(2)
        await site.comes(("synced", 2))
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        site.syncing.close()
        site.doubts.close()

    asyncio.run(run())


def test_what_goes_wrong_ends_the_session(tmp_path: Path) -> None:
    async def run() -> None:
        site = Site(tmp_path)
        site.syncing.begin()
        task = asyncio.create_task(site.syncing.run())
        await asyncio.sleep(0)
        site.machine.is_wrong = True
        site.commit(1)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(task, LIMIT_S)
        site.syncing.close()
        site.doubts.close()

    asyncio.run(run())


def test_many_versions_of_one_sync_are_followed_by_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncing, "PAUSE_S", 0.3)

    async def test(site: Site) -> None:
        site.commit(1)
        await site.comes(("synced", 1))
        many = 1 + syncing.MANY
        site.commit(many)
        await site.comes(("synced", many))
        began = time.monotonic()
        site.commit(many + 1)
        await site.comes(("synced", many + 1))
        assert time.monotonic() - began > 0.2

    session(tmp_path, test)


def test_a_note_that_is_closed_during_a_sync_is_written_nowhere(tmp_path: Path) -> None:
    """Its descriptor's number is another file's by then."""
    doubts = Doubts(tmp_path)
    doubts.begin()
    doubts.close()
    other = tmp_path / "other"
    with other.open("wb") as file:
        doubts.end()
        assert file.fileno() >= 0
    assert other.read_bytes() == b""
    assert Doubts(tmp_path).found is Doubt.SYNCING


# ---- the log reaches beyond its frames


def filled(folder: Path, commits: int) -> FileRows:
    files = Files(folder, "shop")
    rows = FileRows(files, bytes(16), files.open())
    rows.create(bytes(16))
    rows.connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    for number in range(commits):
        rows.connection.execute("INSERT INTO t VALUES(?, ?)", (number, "x" * 500))
    return rows


def end_of(rows: FileRows) -> int:
    return WAL_HEAD_BYTES + rows._frames * rows._frame_bytes


def test_the_log_s_file_grows_before_commits_need_it(tmp_path: Path) -> None:
    rows = filled(tmp_path, 10)
    sizes = set()
    for number in range(10, 400):
        rows.connection.execute("INSERT INTO t VALUES(?, ?)", (number, "x" * 500))
        size = rows.wal.stat().st_size
        sizes.add(size)
        assert end_of(rows) + AHEAD_MIN_BYTES <= size <= end_of(rows) + AHEAD_MIN_BYTES + AHEAD_BYTES
    assert len(sizes) > 3, "and it has grown several times"
    assert rows.connection.execute("SELECT count(*) FROM t").fetchall() == [(400,)] and not rows.damage()
    rows.close()
    write_again(rows.path)
    again = FileRows(rows.files, bytes(16), rows.path)
    assert again.connection.execute("SELECT count(*) FROM t").fetchall() == [(400,)] and not again.damage()
    again.close()


_KILLED = """
import sys
from pathlib import Path
from tests.database.test_syncing import filled
rows = filled(Path(sys.argv[1]), 60)
print("ready", flush=True)
for number in range(60, 1 << 40):
    rows.connection.execute("INSERT INTO t VALUES(?, ?)", (number, "x" * 500))
    print(number, flush=True)
"""


def test_what_was_committed_is_there_after_a_kill(tmp_path: Path) -> None:
    """Somewhere between frames, zeros, and the next zeros."""
    for turn in range(3):
        folder = tmp_path / str(turn)
        folder.mkdir()
        writer = subprocess.Popen([sys.executable, "-c", _KILLED, folder], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
        time.sleep(0.05 * (turn + 1))
        writer.send_signal(signal.SIGKILL)
        said = [int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        writer.wait(LIMIT_S)
        files = Files(folder, "shop")
        (folder / "shop.db-shm").unlink(missing_ok=True)  # so that the log is read as after a power cut
        rows = FileRows(files, bytes(16), files.open())
        found: list[Any] = rows.connection.execute("SELECT count(*), max(id) FROM t").fetchall()
        ((count, last),) = found
        assert not rows.damage() and count == last + 1 and last >= max(said, default=59)
        rows.close()


def test_without_room_commits_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def full(fd: int, data: bytes, at: int) -> int:
        tries.append(at)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    rows = filled(tmp_path, 200)
    assert 1 < len(tries) < 20, "it is tried again, but not with each commit"
    assert rows.connection.execute("SELECT count(*) FROM t").fetchall() == [(200,)]
    rows.close()
