"""Several transactions of one batch: one transaction of SQLite, and still each one wholly or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from zenjun.daemon.database import copy as copying
from zenjun.daemon.database.branch import Branch
from zenjun.daemon.database.copy import FileRows, open_copy
from zenjun.daemon.database.files import Files
from zenjun.daemon.database.jobs import SLOW_S, SLOW_SHARE, Changes, Jobs
from zenjun.proto.service.database.messages import Position, Segment, Txid, encode_body, next_digest
from zenjun.proto.service.database.rows import Entry, RowsFailed, Verdict

from ..rules import rule

UUID = bytes(range(16))


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[FileRows]:
    made, _ = open_copy(Files(tmp_path, "shop"), UUID)
    made.create(UUID)
    assert write(made, (Segment.SQL, b"CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER UNIQUE)")) is Verdict.DONE
    yield made
    made.close()


def write(rows: FileRows, *segments: tuple[Segment, bytes]) -> Verdict:
    body = encode_body(list(segments))
    last, version = rows.position(), rows.position().version + 1
    txid = Txid(1, 1, 1, version)
    return rows.write(Entry(Position(1, version, next_digest(last.digest, version, txid, body)), txid, body))


def changes(rows: FileRows, *statements: str) -> tuple[Segment, bytes]:
    """What these come to on what is committed now."""
    with Branch(rows.path) as branch:
        branch.begin()
        for sql in statements:
            branch.execute(sql)
        return Segment.CHANGESET, branch.changeset()


def seen(rows: FileRows) -> list[tuple[int, ...]]:
    with contextlib.closing(apsw.Connection(str(rows.path), flags=apsw.SQLITE_OPEN_READONLY)) as other:
        return [*other.execute("SELECT id FROM t ORDER BY id"), *other.execute("SELECT version FROM zenjun_meta")]


@rule("D2")
def test_a_batch_is_seen_at_its_end(rows: FileRows) -> None:
    first, second, third = (changes(rows, f"INSERT INTO t VALUES({k}, {n})") for k, n in ((1, 7), (2, 7), (3, 8)))
    both = changes(rows, "INSERT INTO t VALUES(4, 9)")
    with rows.batch():
        assert write(rows, first) is Verdict.DONE
        assert write(rows, second) is Verdict.CONSTRAINT, "the value is taken by one of the same batch"
        assert write(rows, both, second) is Verdict.CONSTRAINT, "its first part is not there either"
        assert write(rows, third) is Verdict.DONE
        assert seen(rows) == [(1,)], "nobody sees it yet"
        rows.flush()
        assert seen(rows) == [(1,), (3,), (3,)]
        assert write(rows, both) is Verdict.DONE
    assert seen(rows) == [(1,), (3,), (4,), (4,)]
    assert rows.version_of(Txid(1, 1, 1, 4)) == 4


def test_a_batch_with_a_change_of_the_schema(rows: FileRows) -> None:
    row = changes(rows, "INSERT INTO t VALUES(1, 1)")
    with rows.batch():
        assert write(rows, row) is Verdict.DONE
        unchecked = (Segment.UNCHECKED, b""), (Segment.SQL, b"CREATE TABLE u(id INTEGER PRIMARY KEY REFERENCES absent)")
        assert write(rows, *unchecked) is Verdict.DONE
        assert seen(rows)[-1] == (3,), "foreign keys are switched between transactions of SQLite alone"
        assert write(rows, (Segment.SQL, b"DROP TABLE missing")) is Verdict.IMAGE
    assert seen(rows) == [(1,), (3,)]


@rule("D2")
def test_a_batch_that_fails(rows: FileRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full at its end: the file has what was before it, and says so when it is opened again."""
    with pytest.raises(RowsFailed, match="full"), rows.batch():
        assert write(rows, changes(rows, "INSERT INTO t VALUES(1, 1)")) is Verdict.DONE
        rows.connection.execute("PRAGMA max_page_count = 1")
        for k in range(2, 200):
            write(rows, (Segment.SQL, f"CREATE TABLE t{k}(id INTEGER PRIMARY KEY)".encode()))
    assert seen(rows) == [(1,)] and not rows.connection.in_transaction
    rows.close()
    again = FileRows(rows.files, UUID, rows.path)
    assert again.position().version == 1
    again.close()


def test_jobs_end_in_their_order() -> None:
    """What is given while the thread works is run together; an error is that of its own job."""
    log: list[int] = []
    gate = threading.Event()

    def job(number: int) -> int:
        if number == 0:
            assert gate.wait(20)
        log.append(number)
        if number % 5 == 3:
            raise ValueError(number)
        return number

    async def run() -> None:
        jobs = Jobs("test")
        told: list[int] = []

        async def one(number: int) -> None:
            try:
                told.append(await jobs.run(job, number))
            except ValueError:
                told.append(-number)

        tasks = [asyncio.create_task(one(number)) for number in range(20)]
        await asyncio.sleep(0)
        tasks[7].cancel()
        gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert told == [-k if k % 5 == 3 else k for k in range(20) if k != 7]
        jobs.close()
        with pytest.raises(RuntimeError):
            await jobs.run(job, 1)

    asyncio.run(run())
    assert [k for k in log if k != 7] == [k for k in range(20) if k != 7]


def test_a_short_job_is_done_at_once_if_nothing_is_under_way() -> None:
    """Results go on in the order of the calls, whichever thread does them; after a long one all are the thread's."""

    async def run() -> None:
        now = 0.0
        jobs, log = Jobs("test", clock=lambda: now), list[str]()
        here, gate = threading.get_ident(), threading.Event()

        def job(name: str, takes_s: float = 0.0) -> str:
            nonlocal now
            now += takes_s
            return name + ("" if threading.get_ident() == here else " (thread)")

        def held() -> str:
            assert gate.wait(20)
            return job("held")

        async def one(call: Coroutine[Any, Any, str]) -> None:
            log.append(await call)

        assert await jobs.run_short(job, "first") == "first"
        tasks = [asyncio.create_task(one(jobs.run(held)))]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(one(jobs.run_short(job, "second"))))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*tasks)
        assert log == ["held (thread)", "second (thread)"]
        assert await jobs.run_short(job, "slow", SLOW_S * 1.1) == "slow"
        assert await jobs.run_short(job, "after it") == "after it (thread)"
        now += SLOW_SHARE * SLOW_S * 1.2
        assert await jobs.run_short(job, "much later") == "much later"
        with pytest.raises(ZeroDivisionError):
            await jobs.run_short(lambda: 1 // 0)
        jobs.close()
        with pytest.raises(RuntimeError):
            await jobs.run_short(job, "closed")

    asyncio.run(run())


def test_a_whole_job_goes_on_without_its_caller() -> None:
    """In its place among the others. What is wrong is its caller's, and nobody's if that has gone."""

    async def run() -> None:
        jobs, log, noise, gate = Jobs("test"), list[Any](), list[Any](), threading.Event()
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: noise.append(context))

        async def one(number: int) -> None:
            log.append(await jobs.run(int, number))

        first = asyncio.create_task(jobs.run(gate.wait, 20))
        await asyncio.sleep(0)
        whole: list[Any] = [(log.append, int, 2), (log.append, divmod, 1, 0), (lambda _: 1 // 0, int)]
        gone = [asyncio.create_task(jobs.run_whole(*each)) for each in whole[:2]]
        others = [asyncio.create_task(one(3)), *(asyncio.create_task(jobs.run_whole(*each)) for each in whole[1:])]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        gate.set()
        assert await first
        found = await asyncio.gather(*others, return_exceptions=True)
        assert [type(each) for each in found] == [type(None), ZeroDivisionError, ZeroDivisionError]
        assert log == [2, 3] and not noise and jobs.is_free
        await jobs.run_whole(log.append, threading.get_ident, is_short=True)
        assert log[-1] == threading.get_ident()
        jobs.close()

    asyncio.run(run())


def test_results_go_on_in_the_order_of_the_calls() -> None:
    """The thread is ready, and what waits for it has not gone on yet: a short job now would come before it."""

    async def run() -> None:
        jobs, log = Jobs("test"), list[str]()

        async def one() -> None:
            log.append(await jobs.run(lambda: "first"))

        first = asyncio.create_task(one())
        await asyncio.sleep(0)
        assert jobs._task is not None
        jobs._task.add_done_callback(lambda _: asyncio.ensure_future(short()))
        done = asyncio.Event()

        async def short() -> None:
            log.append(await jobs.run_short(lambda: "second"))
            done.set()

        await asyncio.wait_for(done.wait(), 20)
        await first
        assert log == ["first", "second"]
        jobs.close()

    asyncio.run(run())


def test_waiting_for_a_change() -> None:
    async def run() -> None:
        changes, there = Changes(), [False]
        assert not await changes.until(lambda: there[0], 0.0)
        waits: list[Any] = [asyncio.create_task(changes.until(lambda: there[0], 60.0)) for _ in range(3)]
        await asyncio.sleep(0)
        changes.tell()
        await asyncio.sleep(0)
        waits[0].cancel()
        there[0] = True
        changes.tell()
        assert (await asyncio.gather(*waits, return_exceptions=True))[1:] == [True, True]

    asyncio.run(run())


@rule("B10")
def test_a_wal_that_was_long_is_not_restarted_all_the_time(rows: FileRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file keeps its size; only the frames in use count. While a reader holds it up the applier stands still now and then."""
    limit, pauses, restart = 200_000, list[float](), rows.applier.restart_wal
    monkeypatch.setattr(copying, "WAL_BYTES_MAX", limit)

    def pause(pause_s: float) -> bool:
        pauses.append(pause_s)
        return restart(0.0)

    monkeypatch.setattr(rows.applier, "restart_wal", pause)
    rows._grown_at = limit

    def commit(size: int) -> None:
        rows.connection.execute("INSERT OR REPLACE INTO t VALUES(1, zeroblob(?))", (size,))
        if rows.has_grown():
            rows.tend()

    while not pauses:
        commit(20_000)
    assert rows.wal.stat().st_size > limit and not rows.has_grown()
    for _ in range(5):
        commit(1)
    assert len(pauses) == 1
    reader = apsw.Connection(str(rows.path))
    reader.execute("BEGIN; SELECT * FROM t LIMIT 1").fetchall()
    for _ in range(30):
        commit(20_000)
    assert 2 < len(pauses) < 9, "each quarter more"
    assert pauses[2] > pauses[1] == pauses[0] and rows.held_s > 0, "the first had nobody to wait for"
    reader.close()
    while rows.has_grown() or rows._grown_at != limit:
        commit(20_000)
    assert rows.held_s == 0.0
    tried = len(pauses)
    rows.tend()
    commit(1)
    assert len(pauses) == tried
    again = FileRows(rows.files, UUID, rows.path)
    assert again.has_grown(), "what is in use is not known before the next commit"
    again.close()


@rule("B10")
def test_transactions_that_always_overlap_bound_the_wal(rows: FileRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three programs read for 0.3 s, again and again: there is always one whose snapshot is older than the last commit, and in a
    pause of 0.1 s never all of them end."""
    limit = 200_000
    monkeypatch.setattr(copying, "WAL_BYTES_MAX", limit)
    rows._grown_at = limit
    over = threading.Event()

    def read(wait_s: float) -> None:
        with contextlib.closing(apsw.Connection(str(rows.path))) as reader:
            time.sleep(wait_s)
            while not over.is_set():
                reader.execute("BEGIN; SELECT * FROM t LIMIT 1").fetchall()
                time.sleep(0.3)
                reader.execute("COMMIT")

    threads = [threading.Thread(target=read, args=(n / 10,)) for n in range(3)]
    for thread in threads:
        thread.start()
    longest, began = 0, time.monotonic()
    while time.monotonic() < began + 6:
        rows.connection.execute("INSERT OR REPLACE INTO t VALUES(1, zeroblob(20000))")
        longest = max(longest, rows._frames * rows._frame_bytes)
        if rows.has_grown():
            rows.tend()
        time.sleep(0.005)
    over.set()
    for thread in threads:
        thread.join()
    assert longest < 4 * limit, longest


@rule("B10")
def test_what_takes_long_is_done_beside_commits(rows: FileRows) -> None:
    """Another thread brings the frames into the file; a reader that needs them holds up the rest of it, and nobody waits."""

    def commit(count: int) -> None:
        for _ in range(count):
            rows.connection.execute("INSERT OR REPLACE INTO t VALUES(1, zeroblob(9000))")

    commit(30)
    thread = threading.Thread(target=rows.backfill)
    thread.start()
    commit(30)
    thread.join()
    rows.backfill()
    with Branch(rows.path) as branch:
        begun = branch.begin()
        assert begun.frames > 10 and begun.backfilled == begun.frames
        commit(10)
        rows.backfill()
    assert not rows.applier.connection.in_transaction
    with Branch(rows.path) as branch:
        begun = branch.begin()
        assert begun.backfilled < begun.frames, "the first branch needed the older rows"
    rows.path.rename(rows.path.with_suffix(".away"))
    with pytest.raises(RowsFailed, match="cannot checkpoint"):
        rows.backfill()
