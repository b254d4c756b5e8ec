"""The driver on a file without an order: reading, rows, errors, transactions that are not sent."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from zenjun import db
from zenjun.daemon.database.copy import FileRows, open_copy
from zenjun.daemon.database.driver import distant, sending
from zenjun.daemon.database.driver.connection import Connection
from zenjun.daemon.database.driver.service import Lost
from zenjun.daemon.database.errors import error_of
from zenjun.daemon.database.files import Files
from zenjun.daemon.database.leases import encode_lease
from zenjun.daemon.database.wire import to_bytes, to_text
from zenjun.proto.service.database.certify import Certifier, table_hash
from zenjun.proto.service.database.errand import Outcome
from zenjun.proto.service.database.messages import (
    READS_MAX,
    Position,
    Segment,
    Txid,
    decode_body,
    encode_body,
    is_numbered,
    next_digest,
)
from zenjun.proto.service.database.rows import Entry, Verdict

from ..rules import rule

UUID = bytes(16)


class Local:
    """A database process that has the order alone: what it is sent is applied at once."""

    def __init__(self, folder: Path) -> None:
        self.files = Files(folder, "shop")
        self.rows, _ = open_copy(self.files, UUID)
        self.rows.create(UUID)
        self.sent: list[dict[str, Any]] = []
        self.refuse: list[db.Error] = []
        """What the next commits are refused with."""
        self.pieces = b""
        self.asked: list[str] = []
        """The requests."""
        self.stale: Any = 0.0
        """For how long the copy has been without the others; an exception: there is no answer."""
        self.no_leases = False
        """The others cannot be reached."""
        self.is_late = False
        """Versions are waited for."""
        self.until: Any = None
        """Called with a version that a program waits for."""
        self.meanwhile: Any = None
        """Called when a barrier is reached, before the program knows."""
        self.waited: list[tuple[int, int]] = []
        """Epochs and versions that programs want on enough disks."""
        self.disks_fail = False

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.asked.append(do)
        if do == "fresh":
            if isinstance(self.stale, Exception):
                raise self.stale
            return {"seconds": self.stale}
        if do == "barrier":
            version = self.rows.position().version
            if self.meanwhile is not None:
                self.meanwhile()
            return {"version": version}
        if do == "reach" and "epoch" in arguments:
            self.waited.append((arguments["epoch"], arguments["version"]))
            if self.disks_fail:
                raise error_of("no-quorum", "too few disks")
            return {"version": arguments["version"]}
        if do == "reach" and self.is_late:
            while self.rows.position().version < arguments["version"]:
                if self.until is None:
                    raise error_of("timeout", "it does not come")
                until, self.until = self.until, None
                until(arguments["version"])
                self.until = until
        if do == "lease":
            if self.no_leases:
                raise error_of("no-quorum", "no")
            body = encode_body([(Segment.LEASE, encode_lease(arguments["table"], arguments["count"]))])
            version = commit(self.rows, {"txid": to_text(Txid(9, 9, 9, len(self.asked)).encode()), "body": to_text(body)})
            return {
                "first": self.rows.query(f"SELECT first FROM zenjun_lease WHERE version = {version}")[0][0],
                "count": arguments["count"],
            }
        if do == "open":
            return {"path": str(self.files.link)}
        if do == "lock":
            return {"version": self.rows.position().version}
        if do == "piece":
            self.pieces = self.pieces * bool(arguments["number"]) + to_bytes(arguments["body"])
        if do == "commit":
            if "pieces" in arguments:
                assert arguments["pieces"] == len(self.pieces) and not arguments["body"]
                arguments["body"] = to_text(self.pieces)
            self.sent.append(arguments)
            if self.refuse:
                raise self.refuse.pop(0)
            return {"version": commit(self.rows, arguments)}
        return {}

    @property
    def reads(self) -> set[bytes]:
        """Of the last transaction that was sent."""
        data = to_bytes(self.sent[-1]["reads"])
        return {data[i : i + 8] for i in range(0, len(data), 8)}

    @property
    def kinds(self) -> list[Segment]:
        return [kind for kind, _ in decode_body(to_bytes(self.sent[-1]["body"]))]


def commit(rows: FileRows, arguments: dict[str, Any]) -> int:
    txid, body = Txid.decode(to_bytes(arguments["txid"])), to_bytes(arguments["body"])
    if (known := rows.version_of(txid)) is not None:
        return known
    if is_numbered(body):
        body, _ = Certifier().numbered(rows, body)
    last = rows.position()
    digest = next_digest(last.digest, last.version + 1, txid, body)
    assert rows.write(Entry(Position(last.epoch, last.version + 1, digest), txid, body)) is Verdict.DONE
    return last.version + 1


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Local]:
    here = Local(tmp_path)
    monkeypatch.setattr(Connection, "_ask", lambda self, do, *, seconds=None, **arguments: here.ask(do, **arguments))
    with db.connect("shop") as c:
        c.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT)")
        c.executemany("INSERT INTO t VALUES(?, ?)", [(1, "a"), (2, "b"), (3, "c")])
    c.close()
    yield here
    here.rows.close()


def test_the_module_is_what_pep_249_says() -> None:
    assert (db.apilevel, db.threadsafety, db.paramstyle) == ("2.0", 1, "qmark")
    for name in ("Warning", "Error", "InterfaceError", "DatabaseError", "DataError", "OperationalError", "IntegrityError",
                 "InternalError", "ProgrammingError", "NotSupportedError"):  # fmt: skip
        assert issubclass(getattr(db, name), Exception)
    assert db.STRING == "VARCHAR(10)" and db.NUMBER == "INTEGER" and db.STRING != "INTEGER"
    assert db.DateFromTicks(0.0) and db.TimeFromTicks(0.0) and db.TimestampFromTicks(0.0) and db.Binary(b"x") == b"x"


def test_cursors(local: Local) -> None:
    c = db.connect("shop")
    cursor = c.cursor()
    assert cursor.description is None and cursor.rowcount == -1
    assert cursor.execute("SELECT id, v AS name FROM t ORDER BY id").fetchone() == (1, "a")
    assert cursor.description is not None and [d[0] for d in cursor.description] == ["id", "name"]
    assert len(cursor.description[0]) == 7
    assert cursor.fetchmany() == [(2, "b")] and cursor.fetchmany(5) == [(3, "c")] and cursor.fetchone() is None
    cursor.execute("SELECT v FROM t WHERE 0")
    assert cursor.description is not None and cursor.fetchall() == []
    cursor.execute("UPDATE t SET v = :new WHERE id > :low", {"new": "z", "low": 1})
    assert (cursor.rowcount, cursor.description) == (2, None)
    cursor.execute("INSERT INTO t(v) VALUES(?) RETURNING id", ("d",))
    assert cursor.fetchall() == [(4,)] and cursor.lastrowid == 4
    assert cursor.executemany("DELETE FROM t WHERE id = ?", [(1,), (2,), (99,)]).rowcount == 2
    c.row_factory = lambda cursor, row: dict(zip((d[0] for d in cursor.description or ()), row, strict=True))
    assert c.execute("SELECT id FROM t WHERE id = 3").fetchall() == [{"id": 3}]
    c.rollback()
    assert len(c.execute("SELECT * FROM t").fetchall()) == 3, "nothing was sent"
    cursor.close()
    with pytest.raises(db.ProgrammingError):
        cursor.execute("SELECT 1")
    c.close()
    c.close()
    with pytest.raises(db.ProgrammingError):
        c.execute("SELECT 1")


def test_errors(local: Local) -> None:
    with db.connect("shop") as c:
        for sql, parameters, kind in (
            ("SELECT nonsense", (), db.OperationalError),
            ("nonsense", (), db.OperationalError),
            ("SELECT * FROM t WHERE id = ?", (), db.ProgrammingError),
            ("INSERT INTO t VALUES(1, 'again')", (), db.IntegrityError),
            ("INSERT INTO t VALUES('x', 'no number')", (), db.IntegrityError),
            ("SELECT 1; SELECT 2", (), db.ProgrammingError),
            ("ATTACH 'x' AS y", (), db.NotSupportedError),
            ("CREATE TABLE u AS SELECT * FROM t", (), db.NotSupportedError),
            ("CREATE TABLE zenjun_x(x)", (), db.NotSupportedError),
            ("BEGIN", (), db.OperationalError),
        ):
            with pytest.raises(kind):
                c.execute(sql, parameters)
        with pytest.raises(db.ProgrammingError):
            c.executemany("SELECT ?", [(1,)])
        c.rollback()
        with pytest.raises(db.ProgrammingError):
            db.connect("shop", isolation="none")
    c.close()


def test_what_was_read_is_sent(local: Local) -> None:
    table = table_hash("t")
    with db.connect("shop") as c:
        c.execute("SELECT v FROM t WHERE id = 2").fetchall()
        c.execute("INSERT INTO t VALUES(10, 'x')")
    assert len(local.reads) == 1 and table not in local.reads and local.kinds == [Segment.CHANGESET]
    with c:
        c.execute("CREATE TEMP TABLE kept AS SELECT * FROM t")
        c.execute("INSERT INTO t SELECT id + 100, v FROM kept")
        assert c.execute("EXPLAIN SELECT * FROM t").fetchone()
    assert local.reads == {table}
    with c, pytest.raises(db.IntegrityError):
        c.execute("INSERT INTO t VALUES(1, 'there is one')")
    with c:
        with pytest.raises(db.IntegrityError):
            c.execute("INSERT INTO t VALUES(1, 'there is one')")
        c.execute("INSERT INTO t VALUES(11, 'x')")
    assert table in local.reads, "the program knows that there is a row 1"
    sent = len(local.sent)
    with c:
        c.execute("SELECT * FROM t").fetchall()
    assert len(local.sent) == sent, "who only reads sends nothing"
    with db.connect("shop", isolation="snapshot") as other:
        other.execute("SELECT * FROM t").fetchall()
        other.execute("INSERT INTO t VALUES(12, 'x')")
    assert local.reads == set()
    other.close()
    c.close()


@rule("K2")
def test_more_rows_than_a_transaction_can_name(local: Local) -> None:
    """4,096 of them; one more, and it is the tables."""
    c = db.connect("shop")
    for number in (READS_MAX, READS_MAX + 1):
        for key in range(number):
            c.execute("SELECT v FROM t WHERE id = ?", (key,)).fetchall()
        c.execute("INSERT INTO t VALUES(?, 'x')", (-number,))
        c.commit()
        assert len(local.reads) == READS_MAX if number == READS_MAX else table_hash("t") in local.reads
    c.close()


def test_a_schema_change_among_rows(local: Local) -> None:
    """One transaction of rows, a new table, rows of it, a column, rows again."""
    with db.connect("shop") as c:
        c.execute("INSERT INTO t VALUES(20, 'x')")
        c.execute("CREATE TABLE u(id INTEGER PRIMARY KEY, t INTEGER REFERENCES t(id))")
        c.execute("INSERT INTO u VALUES(1, 20)")
        c.execute("ALTER TABLE t ADD COLUMN more")
        c.execute("UPDATE t SET more = 1 WHERE id = 20")
    assert local.kinds == [Segment.CHANGESET, Segment.SQL, Segment.CHANGESET, Segment.SQL, Segment.CHANGESET]
    assert c.execute("SELECT t.more FROM u JOIN t ON t.id = u.t").fetchall() == [(1,)]
    c.rollback()
    c.execute("CREATE TABLE gone(x)")
    c.rollback()
    with pytest.raises(db.OperationalError, match="no such table"):
        c.execute("SELECT * FROM gone")
    c.close()


def test_a_transaction_is_run_again(local: Local) -> None:
    c = db.connect("shop")
    seen: list[int] = []

    def add(c: Connection) -> str:
        seen.append(1)
        c.execute("INSERT INTO t VALUES(30, 'x')")
        return "done"

    local.refuse = [db.SerializationError("conflict"), db.SerializationError("read")]
    assert c.run(add) == "done" and len(seen) == 3
    local.refuse = [db.SerializationError("conflict")] * 3
    with pytest.raises(db.SerializationError):
        c.run(lambda c: c.execute("INSERT INTO t VALUES(31, 'x')"), tries=3)
    with pytest.raises(ValueError, match="of its own"):

        def fails(c: Connection) -> None:
            c.execute("INSERT INTO t VALUES(32, 'x')")
            raise ValueError("an error of its own")

        c.run(fails)
    assert not c.in_transaction
    c.autocommit = True
    local.refuse = [db.SerializationError("conflict")]
    c.execute("INSERT INTO t VALUES(33, 'x')")
    assert c.execute("SELECT id FROM t WHERE id >= 30 ORDER BY id").fetchall() == [(30,), (33,)]
    local.refuse = [db.NoQuorum("too few")]
    with pytest.raises(db.NoQuorum):
        c.execute("INSERT INTO t VALUES(34, 'x')")
    assert not c.in_transaction
    c.close()


def test_more_than_pep_249(local: Local, tmp_path: Path) -> None:
    c = db.connect("shop", autocommit=True)
    c.create_function("twice", 1, lambda x: 2 * x)
    assert c.execute("SELECT twice(id) FROM t WHERE id = 2").fetchall() == [(4,)]
    c.executescript("INSERT INTO t VALUES(40, 'a;b'); -- a remark; with a semicolon\nINSERT INTO t VALUES(41, NULL);")
    c.execute("BEGIN")
    c.execute("SAVEPOINT s")
    c.execute("DELETE FROM t")
    c.execute("ROLLBACK TO s")
    c.execute("UPDATE t SET v = 'new' WHERE id = 41")
    c.execute("COMMIT")
    dumped = list(c.iterdump())
    assert dumped[0] == "BEGIN;" and """INSERT INTO "t"("id", "v") VALUES(40, 'a;b');""" in dumped
    assert not any("zenjun_" in line for line in dumped)
    c.backup(tmp_path / "copy.db")
    assert (tmp_path / "copy.db").stat().st_size
    before = c.token()
    c.execute("INSERT INTO t VALUES(42, 'x')")
    assert c.token() != before
    db.connect("shop", at_least=c.token()).close()
    local.rows.connection.execute("DELETE FROM zenjun_log")  # as after so many versions
    db.connect("shop", at_least=c.token()).close()
    db.connect("shop", at_least=before).close()
    lost, wrong = db.PositionLost, db.ProgrammingError
    for token, kind in (("9.9", lost), ("9.1", lost), ("0.99", lost), ("x", wrong)):
        with pytest.raises(kind):
            db.connect("shop", at_least=token)
    c.close()


def test_another_copy_takes_the_place_of_the_file(local: Local) -> None:
    """A connection that is open reads the new one, with its next transaction."""
    c = db.connect("shop", autocommit=True)
    assert c.execute("SELECT count(*) FROM t").fetchone() == (3,)
    path = local.files.next()
    c.backup(path)
    other = FileRows(local.files, UUID, path)
    local.files.point(path)
    local.rows.close()
    local.rows = other
    c.execute("INSERT INTO t VALUES(50, 'x')")
    assert c.execute("SELECT count(*) FROM t").fetchone() == (4,)
    c.close()


def test_a_long_transaction_goes_in_pieces(local: Local) -> None:
    with db.connect("shop") as c:
        c.execute("INSERT INTO t VALUES(60, ?)", ("x" * 3_000_000,))
    assert len(local.pieces) > 3_000_000
    assert c.execute("SELECT length(v) FROM t WHERE id = 60").fetchone() == (3_000_000,)
    c.close()


def test_too_large(local: Local) -> None:
    with pytest.raises(db.DataError), db.connect("shop") as c:
        c.execute("INSERT INTO t VALUES(60, zeroblob(68000000))")
    assert encode_body([]) == b""
    c.close()


def test_a_temporary_table_may_have_the_name_of_another_table(local: Local) -> None:
    """What is said of it concerns it alone, and stays here."""
    with contextlib.closing(db.connect("shop", autocommit=True)) as c:
        c.execute("CREATE TEMP TABLE t(id, v, w)")
        c.execute("INSERT INTO t VALUES(7, 'temporary', 0)")
        sent = len(local.sent)
        for statement in ("CREATE INDEX i ON t(v)", "ALTER TABLE t ADD COLUMN x", "DROP INDEX i", "ALTER TABLE t RENAME w TO y"):
            c.execute(statement)
        assert c.execute("SELECT id, v, y, x FROM t").fetchall() == [(7, "temporary", 0, None)]
        c.execute("DROP TABLE t")
        assert len(local.sent) == sent
        assert len(c.execute("SELECT * FROM t").fetchall()) == 3
        c.execute("DROP TABLE t")
        assert local.kinds == [Segment.SQL]


def test_a_schema_is_changed_beside_a_temporary_table(local: Local) -> None:
    with contextlib.closing(db.connect("shop", autocommit=True)) as c:
        c.execute("CREATE TEMP TABLE s(id)")
        c.execute("CREATE INDEX i ON t(v)")
        assert local.kinds == [Segment.SQL]
        with pytest.raises(db.OperationalError, match="no such table"):
            c.execute("DROP TABLE nowhere")


@pytest.mark.parametrize("pragma", ["table_info(t)", "temp.table_info(t)", "main.index_list('t')", 'table_xinfo("t")'])
def test_a_pragma_about_the_schema_reads_no_table(local: Local, pragma: str) -> None:
    """Two programs that look at a schema do not collide."""
    with contextlib.closing(db.connect("shop")) as c:
        c.execute(f"PRAGMA {pragma}").fetchall()
        c.execute("INSERT INTO t VALUES(4, 'd')")
        c.commit()
    assert table_hash("t") not in local.reads


@rule("K4")
@pytest.mark.parametrize(("code", "do"), [("busy", "piece"), ("busy", "commit"), ("no-database", "commit"), ("no-copy", "piece")])
@pytest.mark.parametrize("passes", [True, False])
def test_what_may_be_committed_is_not_said_to_be_not(
    local: Local, monkeypatch: pytest.MonkeyPatch, code: str, do: str, passes: bool
) -> None:
    """The process is lost after the commit; the next one has no room for it, or does not have the database yet."""
    monkeypatch.setattr(sending, "PIECE_BYTES", 1000)
    monkeypatch.setattr(sending, "RETRY_S", 0.0)
    ask, step = local.ask, ["lost", "refused"]

    def breaks(asked: str, **arguments: Any) -> dict[str, Any]:
        if step and asked == ("commit" if step[0] == "lost" else do):
            if step[0] == "refused":
                if passes:
                    step.clear()
                raise error_of(code, "not now")
            step.pop(0)
            ask(asked, **arguments)
            raise Lost("the connection broke")
        return ask(asked, **arguments)

    monkeypatch.setattr(local, "ask", breaks)
    c = db.connect("shop")
    c.execute("INSERT INTO t VALUES(10, ?)", ("x" * 1500,))
    c.timeout = 20.0 if passes else 0.5
    if passes:
        c.commit()
    else:
        with pytest.raises(db.Undecided):
            c.commit()
    assert c.execute("SELECT count(*) FROM t WHERE id = 10").fetchone() == (1,) and bool(step) is not passes
    c.close()


@rule("Z5")
@pytest.mark.parametrize("code", ["no-database", "no-quorum", "session-lost"])
def test_what_became_of_a_transaction_at_a_distance_is_asked_until_it_is_known(
    monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """The process here begins again meanwhile, and does not know the database yet."""
    monkeypatch.setattr(distant, "RETRY_S", 0.0)
    c = distant.DistantConnection.__new__(distant.DistantConnection)
    answers: list[Any] = [error_of(code, "not now"), Lost("gone"), {"version": 7}]

    def ask(do: str, **arguments: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(c, "_ask", ask)
    c._closed, c._deadline = True, time.monotonic() + 60
    assert c._outcome(Outcome(Txid(1, 1, 1, 1), (1, 1), (2, 1))) == 7 and not answers
    answers += [error_of(code, "not now")]
    monkeypatch.setattr(distant, "RETRY_S", 1.0)
    c._deadline = 0.0
    with pytest.raises(db.Undecided):
        c._outcome(Outcome(Txid(1, 1, 1, 1), (1, 1), (2, 1)))


@rule("K6")
def test_a_process_that_is_lost_gets_all_pieces_again(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process has none of a long transaction."""
    monkeypatch.setattr(sending, "PIECE_BYTES", 1000)
    monkeypatch.setattr(sending, "RETRY_S", 0.0)
    ask, lost = local.ask, [2, 0]
    """The requests after which the connection breaks: a piece, then the commit."""

    def breaks(do: str, **arguments: Any) -> dict[str, Any]:
        if lost and (arguments["number"] == lost[0] if do == "piece" and lost[0] else do == "commit"):
            lost.pop(0)
            local.pieces = b""
            raise Lost("the connection broke")
        return ask(do, **arguments)

    monkeypatch.setattr(local, "ask", breaks)
    with db.connect("shop") as c:
        c.execute("INSERT INTO t VALUES(10, ?)", ("x" * 4500,))
    assert not lost and local.asked.count("piece") == 2 + 5 + 5
    assert local.sent[-1]["again"] is True
    assert c.execute("SELECT length(v) FROM t WHERE id = 10").fetchone() == (4500,)
    c.close()


@pytest.mark.parametrize("temporary", ["", "TABLE x(y)"])
def test_what_is_committed_is_no_error(local: Local, monkeypatch: pytest.MonkeyPatch, temporary: str) -> None:
    """The program's own disk is full when the order has committed: its temporary tables cannot be kept, and that is all."""
    full, free = (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]), resource.getrlimit(resource.RLIMIT_FSIZE)

    def ask(connection: Connection, do: str, *, seconds: Any = None, **arguments: Any) -> dict[str, Any]:
        answer = local.ask(do, **arguments)
        if do == "commit":
            resource.setrlimit(resource.RLIMIT_FSIZE, full)
        return answer

    monkeypatch.setattr(Connection, "_ask", ask)
    with contextlib.closing(db.connect("shop")) as c:
        if temporary:
            c.execute(f"CREATE TEMP {temporary}")
            c.commit()
        c.execute("INSERT INTO t VALUES(9, 'paid')")
        try:
            c.commit()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, free)
        assert c.execute("SELECT v FROM t WHERE id = 9").fetchall() == [("paid",)]
        if temporary:
            with pytest.raises(db.Error, match="already exists"):
                c.execute(f"CREATE TEMP {temporary}")


@rule("D3")
def test_a_linearizable_read_shows_what_is_on_disks(local: Local) -> None:
    """Its snapshot is taken after the barrier, and has what came meanwhile, perhaps on no disk yet."""
    query = "SELECT count(*) FROM t"
    with contextlib.closing(db.connect("shop", read="linearizable")) as c, contextlib.closing(db.connect("shop")) as other:
        assert c.execute(query).fetchall() == [(3,)]
        c.rollback()
        assert not local.waited, "the barrier's own version is waited for by the process"

        def meanwhile() -> None:
            other.execute("INSERT INTO t(v) VALUES('new')")
            other.commit()

        local.meanwhile = meanwhile
        assert c.execute(query).fetchall() == [(4,)]
        position = local.rows.position()
        assert local.waited == [(position.epoch, position.version)]
        c.rollback()
        local.disks_fail, before = True, c._seen
        with pytest.raises(db.NoQuorum):
            c.execute(query)
        assert not c.in_transaction and c._seen == before
        local.waited.clear()
        with contextlib.closing(db.connect("shop", read="linearizable", durability="memory")) as fast:
            assert fast.execute(query).fetchall() == [(6,)] and not local.waited


@rule("Z6")
def test_a_read_of_its_own_is_not_older_than_what_was_written(local: Local) -> None:
    """The copy here lacks what the connection has written, as one that took the place of a lost copy may."""
    with contextlib.closing(db.connect("shop", autocommit=True)) as c:
        c.execute("INSERT INTO t(v) VALUES('mine')")
        for _ in range(3):  # the last time its text is known
            assert c.execute("SELECT count(*) FROM t").fetchall() == [(4,)] and c._found == c._seen
        c._seen = (c._seen[0], c._seen[1] + 1)
        for query in ("SELECT count(*) FROM t", "SELECT max(id) FROM t"):
            with pytest.raises(db.PositionLost):
                c.execute(query)
