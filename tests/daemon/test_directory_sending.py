"""What the directory process sends: nothing is lost for a daemon that takes no more, or with an instance that ends."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from zenjun.daemon.client import Event
from zenjun.daemon.config import parse
from zenjun.daemon.directory.copy import Applied, Copy, Heard
from zenjun.daemon.directory.outbox import UNSENT_MAX
from zenjun.daemon.directory.process import Process
from zenjun.daemon.directory.store import File
from zenjun.daemon.observe import set_up
from zenjun.proto.service.directory.messages import (
    ENDS_MAX,
    ONDISK,
    End,
    HasApplied,
    Holding,
    Id,
    OnDisk,
    Update,
    decode,
    encode,
)
from zenjun.proto.service.directory.operations import Remove

CONFIG = '[cluster]\nname = "c"\nstations = 3\n[station]\nid = 1\ninterface = "eth0"\n'
ME = (1, 7)


class Group:
    """A group whose daemon takes ``room`` messages, and then none until it is ``writable``."""

    active = True

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.wrong: list[str] = []
        self.room = 1_000_000
        self.waits = 0

    def state_wrong(self, reason: str) -> None:
        self.wrong.append(reason)

    def send_nowait(self, data: bytes) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.sent.append(decode(data))
        return True


class Connection:
    closed = False
    quorum = True

    def __init__(self, group: Group) -> None:
        self.group = group

    async def writable(self, timeout: float | None) -> None:
        await asyncio.sleep(0)
        self.group.waits += 1
        self.group.room = 2


def played(folder: Path, story: Callable[[Process, Group], Awaitable[None]]) -> None:
    async def run() -> None:
        copy = Copy(File(folder, "c", 1))
        process, group = Process(parse(CONFIG), copy, set_up("text", "error")), Group()
        process.me = ME
        process._group, process._connection = cast(Any, group), cast(Any, Connection(group))
        async with asyncio.timeout(60):
            await story(process, group)
        process.answers.close()
        copy.rows.close()

    asyncio.run(run())


def heard(process: Process, clock: int, message: End | Update) -> Applied:
    inputs = [Heard((clock, 1, 0), ME, encode(message))]
    applied = process.copy.apply(inputs)
    process._publish(applied, inputs)
    return applied


def test_the_end_of_a_lease_is_said_until_it_is_heard(tmp_path: Path) -> None:
    """A lease whose END was lost with an instance would live as long as its process (rule M1)."""

    async def story(process: Process, group: Group) -> None:
        process.end_leases([3, 5])
        assert group.sent == [End((3, 5))]
        process._on_event(Event("reopened", 2))
        await asyncio.sleep(0)
        assert group.sent[1:] == [End((3, 5))]
        heard(process, 1, End((3,)))
        process._on_event(Event("reopened", 3))
        await asyncio.sleep(0)
        assert group.sent[2:] == [End((5,))]

    played(tmp_path, story)


def test_what_a_holder_has_said_is_said_again_in_the_next_instance(tmp_path: Path) -> None:
    async def story(process: Process, group: Group) -> None:
        process._active = True
        beside = asyncio.create_task(process._disk.run())
        heard(process, 4, Update(Id("0" * 16, 1), ("user:root",), (Remove("x"),), ONDISK))
        while group.sent != [OnDisk((4, 1, 0))]:
            await asyncio.sleep(0.001)
        beside.cancel()
        process._on_event(Event("reopened", 2))
        await asyncio.sleep(0)
        assert group.sent[1:] == [Holding(True), HasApplied((4, 1, 0)), OnDisk((4, 1, 0))]

    played(tmp_path, story)


def on_disk(clock: int) -> Update:
    return Update(Id("0" * 16, clock), ("user:root",), (Remove("x"),), ONDISK)


def test_on_disk_is_said_of_what_was_committed_before_the_sync_began(tmp_path: Path) -> None:
    """And updates go on meanwhile; one sync is for all that came during the last one."""

    async def story(process: Process, group: Group) -> None:
        begun, go_on, syncs = threading.Event(), threading.Event(), 0

        def slow() -> None:
            nonlocal syncs
            syncs += 1
            begun.set()
            assert go_on.wait(60)
            go_on.clear()

        process.copy.file.sync = slow  # type: ignore[method-assign]
        beside = asyncio.create_task(process._disk.run())
        heard(process, 4, on_disk(4))
        await asyncio.to_thread(begun.wait, 60)
        begun.clear()
        for clock in (5, 6, 7):
            heard(process, clock, on_disk(clock))
        assert group.sent == [] and process.facts.place == (7, 1, 0)
        go_on.set()
        await asyncio.to_thread(begun.wait, 60)
        assert group.sent == [OnDisk((4, 1, 0))]
        go_on.set()
        while len(group.sent) < 2:
            await asyncio.sleep(0.001)
        assert group.sent[1:] == [OnDisk((7, 1, 0))] and syncs == 2
        beside.cancel()

    played(tmp_path, story)


def test_a_disk_that_fails_at_the_sync_is_no_disk(tmp_path: Path) -> None:
    """Rule S5: not said to be on disk; the copy is stale, and the state is asked for again."""

    async def story(process: Process, group: Group) -> None:
        def broken() -> None:
            raise OSError(errno.EIO, "Input/output error")

        process._active = True
        process.copy.file.sync = broken  # type: ignore[method-assign]
        beside = asyncio.create_task(process._disk.run())
        heard(process, 4, on_disk(4))
        while not group.wrong:
            await asyncio.sleep(0.001)
        assert "Input/output error" in group.wrong[0] and group.sent == []
        assert not process.active and process.stale_ms() > 0 and process.counters["disk_errors"] == 1
        beside.cancel()

    played(tmp_path, story)


def test_after_a_sync_that_failed_all_rows_are_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells of pages that it could not write once: the next sync of the same file would say nothing of them."""

    async def story(process: Process, group: Group) -> None:
        file = process.copy.file
        monkeypatch.setattr("zenjun.daemon.directory.writing.BROKEN_S", 0.001)
        real, calls = os.fdatasync, 0

        def once(descriptor: int) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise OSError(errno.EIO, "Input/output error")
            real(descriptor)

        monkeypatch.setattr(os, "fdatasync", once)
        inode = file.path.stat().st_ino
        beside = asyncio.create_task(process._disk.run())
        heard(process, 4, on_disk(4))
        while not file.failed:
            await asyncio.sleep(0.001)
        with pytest.raises(OSError, match="an earlier sync failed"):
            file.sync()
        while not group.sent:
            await asyncio.sleep(0.001)
        assert group.sent == [OnDisk((4, 1, 0))] and not file.failed
        assert file.path.stat().st_ino != inode and process.copy.state.place == (4, 1, 0)
        beside.cancel()

    played(tmp_path, story)


def test_on_disk_is_not_said_of_a_state_that_another_has_replaced(tmp_path: Path) -> None:
    """What comes by state transfer is another past; it is said of that one, with its own place."""

    async def story(process: Process, group: Group) -> None:
        begun, go_on = threading.Event(), threading.Event()
        real = process.copy.file.sync

        def slow() -> None:
            begun.set()
            assert go_on.wait(60)
            real()

        process.copy.file.sync = slow  # type: ignore[method-assign]
        beside = asyncio.create_task(process._disk.run())
        heard(process, 4, on_disk(4))
        await asyncio.to_thread(begun.wait, 60)
        process.copy.state.place = (9, 1, 0)
        process._replaced()
        go_on.set()
        while not group.sent:
            await asyncio.sleep(0.001)
        assert group.sent == [OnDisk((9, 1, 0))]
        beside.cancel()

    played(tmp_path, story)


def test_more_ends_than_one_message_takes(tmp_path: Path) -> None:
    async def story(process: Process, group: Group) -> None:
        process.end_leases(list(range(1, ENDS_MAX + 3)))
        assert [len(end.numbers) for end in group.sent] == [ENDS_MAX, 2]

    played(tmp_path, story)


def test_what_the_daemon_does_not_take_waits_in_its_order(tmp_path: Path) -> None:
    async def story(process: Process, group: Group) -> None:
        group.room = 1
        for number in range(1, 8):
            assert process.send_raw(encode(End((number,))))
        assert group.sent == [End((1,))]
        while len(group.sent) < 7:
            await asyncio.sleep(0)
        assert [end.numbers[0] for end in group.sent] == list(range(1, 8)) and group.waits == 3

    played(tmp_path, story)


def test_updates_wait_while_much_is_unsent(tmp_path: Path) -> None:
    async def story(process: Process, group: Group) -> None:
        group.room = 0
        process.send_raw(bytes(UNSENT_MAX))
        assert process.outbox.congested
        waiting = asyncio.create_task(process.outbox.room())
        await asyncio.sleep(0)
        assert not waiting.done() and group.sent == []
        await waiting
        assert not process.outbox.congested and len(group.sent) == 1

    played(tmp_path, story)


def test_what_waited_goes_with_the_connection(tmp_path: Path) -> None:
    """Its leases end at the view without this process, and updates are sent again by their ids."""

    async def story(process: Process, group: Group) -> None:
        group.room = 0
        process.send_raw(bytes(UNSENT_MAX))
        process._leave()
        assert not process.outbox.congested
        await process.outbox.room()
        await asyncio.sleep(0.01)
        assert group.sent == []

    played(tmp_path, story)
