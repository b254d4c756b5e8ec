"""Statements of their own that only insert rows: whatever number a row has where the statement runs, the program learns the one
that it has got (rule K8)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from zenjun import db
from zenjun.daemon.database.driver import lone
from zenjun.daemon.database.driver.connection import Connection
from zenjun.daemon.database.wire import to_bytes
from zenjun.daemon.database.worker import Worker
from zenjun.proto.service.database.messages import Segment, Txid, decode_body

from ..rules import rule
from .station import Station
from .test_driver import Local, local

__all__ = ["local"]

TABLES = (
    "CREATE TABLE note(v UNIQUE, id INTEGER PRIMARY KEY, twice AS (id * 2))",
    "CREATE TABLE journal(v)",
    "CREATE TABLE named(k TEXT PRIMARY KEY NOT NULL, v)",
    "CREATE TABLE auto(id INTEGER PRIMARY KEY AUTOINCREMENT, v)",
    "CREATE TABLE seen(id INTEGER PRIMARY KEY, v)",
    "CREATE TRIGGER tr AFTER INSERT ON seen BEGIN INSERT INTO journal VALUES(new.id); END",
)


class Order:
    """What programs send stands at its place; before that others may come."""

    def __init__(self, station: Station) -> None:
        self.station = station
        self.before: Callable[[], None] | None = None
        self.kinds: list[Segment] = []

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        if do == "commit":
            before, self.before = self.before, None
            if before is not None:
                before()
            self.kinds = [kind for kind, _ in decode_body(to_bytes(arguments["body"]))]
        return self.station.ask(do, **arguments)


@pytest.fixture
def order(local: Local, monkeypatch: pytest.MonkeyPatch) -> Iterator[Order]:
    order = Order(Station(local.files, local.rows))
    monkeypatch.setattr(Connection, "_ask", lambda self, do, *, seconds=None, **arguments: order.ask(do, **arguments))
    with db.connect("shop") as c:
        for sql in TABLES:
            c.execute(sql)
    c.close()
    yield order


def lone_connection() -> Connection:
    return db.connect("shop", autocommit=True)


@rule("K8")
@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_two_programs_insert_at_once(order: Order, isolation: str) -> None:
    """Places 7 and 8 of the design's vector, with real programs: both have number 1 where they run, and none runs again."""
    one, two = (db.connect("shop", autocommit=True, isolation=isolation) for _ in range(2))
    for table, column, key in (("journal", "v", "rowid"), ("note", "v", "id")):
        first, second = one.cursor(), two.cursor()
        order.before = lambda sql=f"INSERT INTO {table}({column}) VALUES(?)", other=second: other.execute(sql, ("g",))
        first.execute(f"INSERT INTO {table}({column}) VALUES(?)", ("h",))
        assert (second.lastrowid, first.lastrowid) == (1, 2) and order.kinds == [Segment.NUMBERED]
        assert one.execute(f"SELECT {key}, v FROM {table} ORDER BY 1").fetchall() == [(1, "g"), (2, "h")]
        for c, number in ((one, 2), (two, 1)):
            assert c.execute("SELECT last_insert_rowid()").fetchall() == [(number,)]
    assert two.execute("SELECT twice FROM note WHERE id = ?", (first.lastrowid,)).fetchall() == [(4,)]
    one.execute("INSERT INTO named VALUES('a', last_insert_rowid())")
    assert one.execute("SELECT v FROM named").fetchall() == [(2,)]
    one.close()
    two.close()


@rule("K8")
def test_several_rows_and_constraints(order: Order) -> None:
    c, other = lone_connection(), lone_connection()

    def between(sql: str, *bindings: Any) -> None:
        order.before = lambda: (other.execute(sql, bindings), None)[1]

    between("INSERT INTO note VALUES('far', 40)")
    assert c.execute("INSERT INTO note(v) VALUES('a'), ('b'), ('c')").lastrowid == 43
    between("INSERT INTO note VALUES('farther', 50)")
    c.executemany("INSERT INTO note(v) VALUES(?)", [("d",), ("e",)])
    assert order.kinds == [Segment.NUMBERED]
    assert c.execute("SELECT id, v FROM note ORDER BY id").fetchall() == [
        (40, "far"), (41, "a"), (42, "b"), (43, "c"), (50, "farther"), (51, "d"), (52, "e"),
    ]  # fmt: skip
    between("INSERT INTO note(v) VALUES('same')")
    cursor = c.execute("SELECT 1")
    with pytest.raises(db.IntegrityError):
        cursor.execute("INSERT INTO note(v) VALUES('same')")
    between("INSERT INTO journal VALUES('j')")
    assert cursor.execute("WITH x(a) AS (VALUES(1), (2)) INSERT INTO journal SELECT a FROM x").lastrowid == 3
    assert cursor.execute("UPDATE journal SET v = 0 WHERE rowid = 1").lastrowid == 3, "as with sqlite3"
    between("DELETE FROM journal")
    assert cursor.execute("INSERT INTO journal VALUES(:v)", {"v": "first again"}).lastrowid == 1
    c.close()
    other.close()


NUMBERED = (
    ("INSERT INTO note VALUES('x', NULL)", ()),
    ("INSERT INTO note VALUES(?, ?)", ("x", None)),
    ("INSERT INTO note VALUES(:a, :b)", {"a": "x", "b": None}),
    ("INSERT INTO note(v) SELECT k FROM named", ()),
    ("INSERT INTO journal DEFAULT VALUES", ()),
    ("INSERT INTO journal VALUES(random())", ()),
    ("REPLACE INTO journal VALUES(1)", ()),
)
PLAIN = (
    ("INSERT INTO note VALUES('x', 7)", ()),
    ("INSERT INTO note VALUES(?, ?)", ("x", 7)),
    ("INSERT INTO note VALUES('x', NULL), ('y', 9)", ()),
    ("INSERT INTO note(v) VALUES('x') RETURNING id", ()),
    ("INSERT INTO note(v) VALUES('x') ON CONFLICT DO UPDATE SET v = 'y'", ()),
    ("INSERT OR REPLACE INTO note(v) VALUES('x')", ()),
    ("INSERT OR IGNORE INTO note(v) VALUES('x')", ()),
    ("INSERT INTO note(v) SELECT coalesce(max(id), 0) + 1 FROM note", ()),
    ("INSERT INTO journal VALUES(last_insert_rowid())", ()),
    ("INSERT INTO seen(v) VALUES('x')", ()),
    ("INSERT INTO auto(v) VALUES('x')", ()),
    ("INSERT INTO named VALUES('x', 1)", ()),
    ("UPDATE named SET v = 7", ()),
)


@rule("K8")
def test_which_statements_these_are(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    c = lone_connection()
    c.execute("INSERT INTO named VALUES('k', 1)")
    for expected, statements in ((Segment.NUMBERED, NUMBERED), (Segment.CHANGESET, PLAIN)):
        for sql, bindings in statements:
            c.execute(sql, bindings)
            assert order.kinds == [expected], sql
            c.execute("DELETE FROM note")
    for sql, bindings in NUMBERED:
        with c:
            c.execute("BEGIN")
            c.execute(sql, bindings)
        assert order.kinds == [Segment.CHANGESET], "a program that has seen the number may have used it"
        c.execute("DELETE FROM note")
    monkeypatch.setattr(lone, "BYTES_MAX", 100)
    for size, expected in ((50, Segment.NUMBERED), (200, Segment.CHANGESET)):
        c.execute("INSERT INTO journal VALUES(?)", ("x" * size,))
        assert order.kinds == [expected]
    c.close()


def test_a_number_that_cannot_be_learned(order: Order) -> None:
    """The row is committed; a number that may be another row's is not given."""
    c = lone_connection()
    cursor = c.execute("INSERT INTO journal VALUES('a')")
    assert cursor.lastrowid == 1
    asked = order.ask

    def forget(do: str, **arguments: Any) -> dict[str, Any]:
        answer = asked(do, **arguments)
        if do == "commit":
            order.station.rows.connection.execute("DELETE FROM zenjun_log")
        return answer

    order.ask = forget  # type: ignore[method-assign]
    assert cursor.execute("INSERT INTO journal VALUES('b')").lastrowid is None
    assert c.execute("SELECT last_insert_rowid(), count(*) FROM journal").fetchall() == [(0, 2)]
    c.close()


def test_what_the_last_statement_changed(order: Order) -> None:
    """``changes()`` in a statement of its own is about the program's own last statement, as with SQLite."""
    one, two = (db.connect("shop", autocommit=True) for _ in range(2))
    asks = "SELECT changes()"
    assert one.execute(asks).fetchall() == [(0,)]
    one.execute("INSERT INTO named VALUES('a', 1), ('b', 2), ('c', 3)")
    assert [one.execute(asks).fetchall() for _ in range(2)] == [[(3,)]] * 2
    two.execute("UPDATE named SET v = 7 WHERE v < 3")
    assert (two.execute(asks).fetchall(), one.execute(asks).fetchall()) == ([(2,)], [(3,)])
    one.execute("DELETE FROM named WHERE v = 8")
    assert one.execute(asks).fetchall() == [(0,)]
    one.execute("BEGIN")
    one.execute("UPDATE named SET v = v + 1")
    assert one.execute("SELECT changes(), n FROM (SELECT count(*) AS n FROM named)").fetchall() == [(3, 3)]
    one.execute("ROLLBACK")
    one.close()
    two.close()


COUNTING = [
    "CREATE TABLE counted(n INTEGER, total INTEGER)",
    "INSERT INTO named VALUES('a', 1), ('b', 2), ('c', 3)",
    "INSERT INTO counted VALUES(changes(), total_changes())",
    "INSERT INTO counted SELECT changes(), total_changes() FROM named",
    "SELECT changes(), total_changes()",
    "UPDATE counted SET n = n + 100 * changes(), total = total_changes() WHERE n = 1",
    "WITH few(v) AS (VALUES(0)) UPDATE named SET v = 0 WHERE v IN few",
    "SELECT changes(), total_changes()",
    "INSERT INTO counted VALUES(changes(), total_changes()) RETURNING n, total, changes()",
    "EXPLAIN DELETE FROM named",
    "CREATE TEMP TABLE mine(n INTEGER)",
    "INSERT INTO mine VALUES(changes()), (changes() + 10)",
    "DELETE FROM mine WHERE n > (SELECT changes())",
    "SELECT changes(), total_changes()",
    "CREATE TABLE automatic(id INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER)",
    "INSERT INTO automatic(n) VALUES(changes()), (total_changes())",
    "INSERT INTO automatic(n) VALUES(changes()), (total_changes())",
    "INSERT INTO automatic VALUES(NULL, changes())",
    "CREATE TRIGGER after AFTER INSERT ON named BEGIN INSERT INTO counted VALUES(changes(), total_changes()); "
    "UPDATE counted SET n = n + 1; INSERT INTO counted VALUES(changes(), total_changes()); END",
    "DELETE FROM automatic WHERE n > 1",
    "INSERT INTO named VALUES('d', changes()), ('e', changes())",
    "SELECT changes(), total_changes()",
    "INSERT OR IGNORE INTO named VALUES('d', 9)",
    "SELECT changes(), total_changes()",
    "UPDATE named SET v = 5",
]
"""With SQLite, and here."""


@pytest.mark.parametrize("how", ["alone", "in one transaction"])
def test_numbers_of_changes_are_those_of_sqlite(order: Order, how: str) -> None:
    """``changes()`` and ``total_changes()``, also within INSERT, UPDATE and DELETE, and in triggers."""
    plain = sqlite3.connect(":memory:", isolation_level=None)
    plain.execute("CREATE TABLE named(k TEXT PRIMARY KEY NOT NULL, v)")
    c = db.connect("shop", autocommit=True)
    if how != "alone":
        c.execute("BEGIN EXCLUSIVE")
    for sql in COUNTING:
        found, wanted = ([tuple(row) for row in one.execute(sql).fetchall()] for one in (c, plain))
        assert sql.startswith("EXPLAIN") or found == wanted, sql
    for query in ("* FROM counted ORDER BY rowid", "* FROM named ORDER BY k", "n FROM automatic ORDER BY id"):
        assert c.execute(f"SELECT {query}").fetchall() == plain.execute(f"SELECT {query}").fetchall()
    for one, error in ((c, db.IntegrityError), (plain, sqlite3.IntegrityError)):
        with pytest.raises(error):
            one.execute("INSERT INTO named VALUES('d', 9)")
    query = "SELECT changes(), total_changes()"
    assert c.execute(query).fetchall() == plain.execute(query).fetchall()
    c.close()
    plain.close()


@rule("K8", "Z4")
def test_at_a_distance(order: Order) -> None:
    """A session's statement that is a transaction of its own, and one that is not."""
    other, worker = lone_connection(), Worker("", (2, 1))
    options = {"isolation": "serializable", "read": "local", "durability": "memory", "timeout": 5.0, "seen": [0, 0]}
    assert b'"ok"' in worker.run({"do": "open", "db": "shop", **options})
    numbers = iter(range(1, 100))

    def run(sql: str, *, alone: bool) -> str:
        txid = Txid(2, 7, 7, next(numbers)).encode().hex()
        worker.run({"do": "run", "sql": sql, "alone": alone, "cursor": 1, "txid": txid})
        order.before = lambda: (other.execute("INSERT INTO journal VALUES('between')"), None)[1]
        return worker.run({"do": "commit", "txid": txid}).decode()

    assert '"lastrowid": 2' in run("INSERT INTO journal VALUES('a')", alone=True)
    assert order.kinds == [Segment.NUMBERED]
    assert "SerializationError" in run("INSERT INTO journal VALUES('b')", alone=False)
    assert order.kinds == [Segment.CHANGESET]
    assert '"lastrowid": ' not in run("INSERT INTO named VALUES('b', 1)", alone=False)
    worker.close()
    other.close()
