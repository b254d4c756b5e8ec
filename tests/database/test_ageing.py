"""A transaction that is open for too long ends by itself, whatever its program is doing."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from zenjun import db
from zenjun.daemon.database.branch import Branch
from zenjun.daemon.database.driver import ageing

from ..rules import rule
from ..timing import in_time
from .test_driver import Local, local

__all__ = ["local"]

YOUNG_S = 3600.0
"""No transaction gets so old, however long a test waits for its processor."""
FOREVER = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def c(local: Local, monkeypatch: pytest.MonkeyPatch) -> Iterator[db.Connection]:
    monkeypatch.setattr(ageing, "TICK_S", 0.02)
    monkeypatch.setattr(ageing, "TRANSACTION_S", YOUNG_S)
    with contextlib.closing(db.connect("shop")) as connection:
        yield connection


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        in_time(time.monotonic() < deadline, "what the thread does")
        time.sleep(0.01)


def age(c: db.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its transaction becomes too old; the next one does not."""
    monkeypatch.setattr(ageing, "TRANSACTION_S", 0.0)
    until(lambda: not c.in_transaction)
    monkeypatch.setattr(ageing, "TRANSACTION_S", YOUNG_S)


def test_it_ends_while_its_program_does_nothing(local: Local, c: db.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The WAL can begin again, and the program is told once."""
    c.execute("INSERT INTO t VALUES(10, 'x')")
    rows = c.execute("SELECT * FROM t")
    with db.connect("shop") as other:
        other.execute("INSERT INTO t VALUES(11, 'y')")
    other.close()
    assert not local.rows.applier.restart_wal(0.0), "its snapshot needs it"
    age(c, monkeypatch)
    assert local.rows.applier.restart_wal(0.0)
    for use in (rows.fetchone, c.commit):
        with pytest.raises(db.OperationalError, match=r"open for more than [0-9]+ s"):
            use()
    c.commit()
    assert c.execute("SELECT id FROM t WHERE id > 9").fetchall() == [(11,)]
    assert len(local.sent) == 2, "nothing of it was sent"


@rule("B10")
def test_who_waits_for_its_commit_holds_no_snapshot(local: Local, c: db.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it has temporary tables, which stay as the transaction leaves them if it is committed."""
    free: list[bool] = []
    ask = local.ask

    def look(do: str, **arguments: Any) -> dict[str, Any]:
        if do == "commit":
            free.append(local.rows.applier.restart_wal(0.0))
        return ask(do, **arguments)

    monkeypatch.setattr(local, "ask", look)
    for number in (10, 11):
        c.execute("INSERT INTO t VALUES(?, 'x')", (number,))
        c.commit()
    c.execute("CREATE TEMP TABLE own(a)")
    c.execute("INSERT INTO own VALUES(7)")
    c.execute("INSERT INTO t VALUES(12, 'x')")
    c.commit()
    assert free == [True, True, False]
    assert c.execute("SELECT count(*), (SELECT a FROM own) FROM t WHERE id >= 10").fetchone() == (3, 7)


@pytest.mark.parametrize("end", ["rollback", "ROLLBACK"])
def test_a_program_that_gives_up_is_told_nothing(c: db.Connection, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    c.execute("INSERT INTO t VALUES(10, 'x')")
    age(c, monkeypatch)
    if end == "rollback":
        c.rollback()
    else:
        c.execute(end)
    assert c.execute("SELECT count(*) FROM t").fetchone() == (3,)


@pytest.mark.parametrize("sql", [FOREVER, f"UPDATE t SET v = ({FOREVER})"])
def test_a_statement_is_interrupted(c: db.Connection, monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    monkeypatch.setattr(ageing, "TRANSACTION_S", 1.0)
    with pytest.raises(db.OperationalError, match="open for more than"):
        c.execute(sql).fetchall()
    monkeypatch.setattr(ageing, "TRANSACTION_S", YOUNG_S)
    assert not c.in_transaction
    assert c.execute("SELECT count(*) FROM t").fetchone() == (3,)


def test_a_commit_is_not(local: Local, c: db.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a time-out of its own."""
    ask = local.ask

    looked, interrupted = threading.Semaphore(0), []
    end_if_old = c._end_if_old

    def look() -> None:
        end_if_old()
        looked.release()

    def slow(do: str, **arguments: Any) -> dict[str, Any]:
        if do == "commit":
            monkeypatch.setattr(ageing, "TRANSACTION_S", 0.0)
            for _ in range(3):  # the first may have begun before
                assert looked.acquire(timeout=60)
        return ask(do, **arguments)

    monkeypatch.setattr(c, "_end_if_old", look)
    monkeypatch.setattr(Branch, "interrupt", lambda branch: interrupted.append(branch))
    monkeypatch.setattr(local, "ask", slow)
    c.execute("INSERT INTO t VALUES(10, 'x')")
    c.commit()
    monkeypatch.setattr(ageing, "TRANSACTION_S", YOUNG_S)
    assert not interrupted, "what SQLite does in it for the changeset would fail"
    assert c.execute("SELECT count(*) FROM t").fetchone() == (4,)


def test_a_connection_that_nobody_has_is_gone(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that looks at it has no reference to it while it sleeps."""
    monkeypatch.setattr(ageing, "TICK_S", 0.02)
    until(lambda: not any(thread.name == "zenjun-db-ageing" for thread in threading.enumerate()))
    looked = threading.Event()
    connection = db.connect("shop")
    connection._end_if_old = looked.set  # type: ignore[method-assign]
    assert looked.wait(60)
    gone = weakref.ref(connection)
    del connection
    until(lambda: gc.collect() >= 0 and gone() is None)


def test_the_child_of_a_fork_looks_at_its_own(c: db.Connection) -> None:
    watch = ageing.Watch()
    watch.add(c)
    lock = watch._lock
    with lock:  # as the thread may have it at that moment
        watch.forget()
    assert watch._lock is not lock and not watch._connections
    assert watch._thread is None


def test_there_is_a_thread_while_there_are_connections(c: db.Connection) -> None:
    def there() -> bool:
        return any(thread.name == "zenjun-db-ageing" for thread in threading.enumerate())

    assert there()
    c.close()
    until(lambda: not there())
    with contextlib.closing(db.connect("shop")):
        assert there()


@pytest.mark.parametrize("is_open", [True, False])
def test_a_dump_is_of_one_snapshot(c: db.Connection, monkeypatch: pytest.MonkeyPatch, is_open: bool) -> None:
    """It takes as long as it takes, in a transaction and without one; what others write meanwhile is not in it."""
    c.execute("CREATE TABLE z(id INTEGER PRIMARY KEY)")
    c.commit()
    if is_open:
        c.execute("SELECT * FROM t").fetchall()
    lines = c.iterdump()
    first = [next(lines) for _ in range(2)]
    monkeypatch.setattr(ageing, "TRANSACTION_S", 0.1)
    with db.connect("shop") as other:
        monkeypatch.setattr(other, "_is_old", lambda: False)
        other.execute("INSERT INTO z VALUES(77)")
    other.close()
    time.sleep(0.5)
    whole = "".join([*first, *lines])
    assert "77" not in whole and "CREATE TABLE z" in whole


def test_rows_that_come_slowly_age(c: db.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ageing, "TRANSACTION_S", 0.1)

    def slowly() -> Iterator[tuple[int, str]]:
        for number in range(100, 200):
            time.sleep(0.05)
            yield number, "x"

    with pytest.raises(db.OperationalError, match="open for more than"):
        c.executemany("INSERT INTO t VALUES(?, ?)", slowly())
    monkeypatch.setattr(ageing, "TRANSACTION_S", YOUNG_S)
    c.rollback()
    assert c.execute("SELECT count(*) FROM t WHERE id >= 100").fetchall() == [(0,)]


def test_the_lock_of_an_old_transaction_is_given_back_by_the_next_call(
    local: Local, c: db.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = local.ask

    def heard(do: str, **arguments: Any) -> dict[str, Any]:
        asked.append(do)
        return ask(do, **arguments)

    monkeypatch.setattr(local, "ask", heard)
    c.execute("BEGIN EXCLUSIVE")
    age(c, monkeypatch)
    assert "unlock" not in asked
    with pytest.raises(db.OperationalError, match="open for more than"):
        c.execute("SELECT 1")
    assert "unlock" in asked
