"""What statements did on a branch is what their changeset does elsewhere: case by case, and in random transactions."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zenjun.daemon.database import applier as applying
from zenjun.daemon.database.applier import Applied, Applier
from zenjun.daemon.database.branch import Branch
from zenjun.daemon.database.errors import IntegrityError
from zenjun.proto.service.database.changeset import Change, Op, Table, _single, parse, row_hash

from ..rules import rule
from .rig import commit, content, create

SCHEMA: Final = """
CREATE TABLE acct(id INTEGER PRIMARY KEY, bal INTEGER CHECK(bal >= 0), note TEXT DEFAULT 'd');
CREATE TABLE hist(n INTEGER PRIMARY KEY AUTOINCREMENT, id, old, new);
CREATE TRIGGER tr AFTER UPDATE OF bal ON acct BEGIN INSERT INTO hist(id, old, new) VALUES(new.id, old.bal, new.bal); END;
CREATE TRIGGER td BEFORE DELETE ON acct BEGIN INSERT INTO nokey VALUES('del', old.id); END;
CREATE TABLE nokey(a, b); CREATE INDEX nokey_b ON nokey(b);
CREATE TABLE par(id INTEGER PRIMARY KEY, x UNIQUE);
CREATE TABLE kid(id INTEGER PRIMARY KEY, p REFERENCES par(id) ON DELETE CASCADE ON UPDATE CASCADE, v);
CREATE TABLE kid2(id INTEGER PRIMARY KEY, p REFERENCES par(id) ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE wr(k TEXT, j INT, v BLOB, PRIMARY KEY(k, j)) WITHOUT ROWID;
CREATE TABLE kv(k TEXT PRIMARY KEY NOT NULL, v, g AS (length(v)) STORED, u AS (v || 'x') VIRTUAL);
CREATE UNIQUE INDEX kv_u ON kv(g, k);
CREATE TABLE uq(id INTEGER PRIMARY KEY, u INT UNIQUE);
CREATE TABLE st(a INT NOT NULL, b TEXT NOT NULL, PRIMARY KEY(b, a)) STRICT;
CREATE VIEW vw AS SELECT id, bal FROM acct;
CREATE TRIGGER vi INSTEAD OF UPDATE ON vw BEGIN UPDATE acct SET bal = new.bal WHERE id = new.id; END;
CREATE VIRTUAL TABLE ft USING fts5(t);
CREATE VIRTUAL TABLE rt USING rtree(id, x0, x1);
INSERT INTO acct(id, bal) VALUES(1, 100), (2, 50), (3, 70), (4, 0);
INSERT INTO nokey VALUES(1, 2), (3, 4), (1, 2), (NULL, NULL);
INSERT INTO par VALUES(1, 'a'), (2, 'b'), (3, 'c');
INSERT INTO kid VALUES(1, 1, 'k'), (2, 1, 'l'), (3, 2, 'm'), (4, 3, 'n'); INSERT INTO kid2 VALUES(1, 1), (2, 2);
INSERT INTO wr VALUES('a', 1, x'00'), ('a', 2, NULL), ('b', 1, zeroblob(10));
INSERT INTO kv(k, v) VALUES('x', '1'), ('y', '22'); INSERT INTO uq VALUES(1, 1), (2, 2), (3, 3), (4, 4);
INSERT INTO st VALUES(1, 'x'); INSERT INTO ft VALUES('one two'), ('two three'); INSERT INTO rt VALUES(1, 0, 1), (2, 5, 6);
"""

CASES: Final[dict[str, tuple[str, ...]]] = {
    "rows": (
        "INSERT INTO acct(id, bal) VALUES(9, 1)",
        "UPDATE acct SET bal = bal + 5 WHERE id < 3",
        "DELETE FROM acct WHERE id = 4",
    ),
    "triggers, INSTEAD OF": ("UPDATE vw SET bal = 77 WHERE id = 2", "DELETE FROM acct WHERE id = 3"),
    "foreign key: DELETE": ("DELETE FROM par WHERE id = 1",),
    "foreign key: UPDATE": ("UPDATE par SET id = 30 WHERE id = 3",),
    "foreign key: child first": ("INSERT INTO kid2 VALUES(7, 99)", "INSERT INTO par VALUES(99, 'z')"),
    "foreign key: parent again": (
        "DELETE FROM kid WHERE p = 3",
        "DELETE FROM par WHERE id = 3",
        "INSERT INTO par VALUES(3, 'cc')",
        "INSERT INTO kid VALUES(4, 3, 'nn')",
    ),
    "UPSERT": (
        "INSERT INTO acct(id, bal) VALUES(1, 5), (77, 6) ON CONFLICT(id) DO UPDATE SET bal = bal + excluded.bal",
        "INSERT INTO kv(k, v) VALUES('x', 'zz') ON CONFLICT DO UPDATE SET v = excluded.v || v",
    ),
    "REPLACE": ("INSERT OR REPLACE INTO uq VALUES(1, 2)", "REPLACE INTO wr VALUES('a', 1, 'r')"),
    "OR IGNORE": (
        "INSERT OR IGNORE INTO uq VALUES(1, 9), (9, 9), (10, 2)",
        "UPDATE OR IGNORE uq SET u = 3 WHERE id < 3",
    ),
    "AUTOINCREMENT": (
        "INSERT INTO hist(id) VALUES(1), (2), (3)",
        "DELETE FROM hist WHERE n = 3",
        "INSERT INTO hist(id) VALUES(4)",
    ),
    "WITHOUT ROWID": (
        "UPDATE wr SET v = 'n' WHERE j = 1",
        "UPDATE wr SET j = 9 WHERE k = 'a' AND j = 2",
        "DELETE FROM wr WHERE k = 'b'",
        "INSERT INTO wr VALUES('z', 1, randomblob(2000))",
    ),
    "no key": (
        "INSERT INTO nokey VALUES(1, 2), (5, 6)",
        "UPDATE nokey SET a = 7 WHERE rowid = 1",
        "DELETE FROM nokey WHERE rowid = 2",
        "UPDATE nokey SET rowid = 500 WHERE rowid = 3",
    ),
    "generated columns": (
        "UPDATE kv SET v = 'longer' WHERE k = 'x'",
        "INSERT INTO kv(k, v) VALUES('z', NULL)",
        "DELETE FROM kv WHERE k = 'y'",
    ),
    "UNIQUE: all shift": ("UPDATE uq SET u = u + 10", "UPDATE uq SET u = u - 9"),
    "UNIQUE: swap": (
        "UPDATE uq SET u = -1 WHERE id = 1",
        "UPDATE uq SET u = 1 WHERE id = 2",
        "UPDATE uq SET u = 2 WHERE id = 1",
    ),
    "UNIQUE: cycle": ("UPDATE uq SET u = -u", "UPDATE uq SET u = (-u) % 4 + 1", "UPDATE uq SET id = id + 1 WHERE id = 4"),
    "keys: swap": (
        "UPDATE uq SET id = -1 WHERE id = 1",
        "UPDATE uq SET id = 1 WHERE id = 2",
        "UPDATE uq SET id = 2 WHERE id = -1",
    ),
    "UNIQUE: to a new row": (
        "DELETE FROM uq WHERE id = 1",
        "INSERT INTO uq VALUES(100, 1)",
        "UPDATE uq SET u = 55 WHERE id = 2",
        "INSERT INTO uq VALUES(0, 2)",
    ),
    "savepoints": (
        "SAVEPOINT a",
        "UPDATE acct SET bal = 1",
        "SAVEPOINT b",
        "DELETE FROM nokey",
        "INSERT INTO wr VALUES('n', 1, 1)",
        "ROLLBACK TO b",
        "INSERT INTO nokey VALUES('k', 'k')",
        "RELEASE a",
    ),
    "nothing in the end": (
        "UPDATE acct SET note = 'q' WHERE id = 1",
        "UPDATE acct SET note = 'd' WHERE id = 1",
        "DELETE FROM wr WHERE k = 'b'",
        "INSERT INTO wr VALUES('b', 1, zeroblob(10))",
    ),
    "statements that fail": (
        "INSERT INTO acct(id, bal) VALUES(60, 1), (61, 2), (1, 9)",
        "UPDATE acct SET bal = bal - 60",
        "UPDATE acct SET bal = bal - 1 WHERE id = 1",
        "INSERT INTO kid VALUES(100, 555, 1)",
        "INSERT OR ABORT INTO uq SELECT id + 50, u FROM uq",
    ),
    "all rows": ("DELETE FROM nokey", "DELETE FROM wr", "DELETE FROM uq"),
    "whole tables": ("DELETE FROM uq", "INSERT INTO uq SELECT id, bal FROM acct WHERE bal <> 50"),
    "values": (
        "INSERT INTO nokey VALUES(1e999, -1e999), (0.1 + 0.2, 9223372036854775807), (zeroblob(100000), char(0, 65)), (-0.0, 1.0)",
        "UPDATE nokey SET b = 1.0 WHERE rowid = 1",
        "UPDATE nokey SET a = 1.0, b = x'32' WHERE rowid = 2",
        "INSERT INTO nokey VALUES('', x'')",
    ),
    "STRICT, key of two": ("INSERT INTO st VALUES(1, 'y')", "UPDATE st SET b = 'w' WHERE b = 'x'"),
    "FTS5": (
        "INSERT INTO ft VALUES('four five')",
        "UPDATE ft SET t = 'six' WHERE rowid = 1",
        "DELETE FROM ft WHERE rowid = 2",
    ),
    "R-Tree": (
        "INSERT INTO rt VALUES(3, 7, 8)",
        "UPDATE rt SET x1 = 9 WHERE id = 2",
        "DELETE FROM rt WHERE id = 1",
    ),
}
FAILING: Final = frozenset({"statements that fail"})


def run(connection: apsw.Connection | Branch, statements: tuple[str, ...]) -> int:
    """How many of them fail; these change nothing."""
    failed = 0
    for statement in statements:
        try:
            connection.execute(statement).fetchall()
        except (apsw.ConstraintError, apsw.MismatchError, apsw.RangeError, apsw.SQLError):
            failed += 1
    return failed


def check(applier: Applier, branch: Branch) -> dict[str, list[str]]:
    """All rows, and what a full text and an R-tree index find."""
    found = content(applier.connection)
    for query in ("SELECT rowid FROM ft('two OR five OR six')", "SELECT id FROM rt WHERE x1 > 4"):
        found[query] = sorted(map(repr, applier.connection.execute(query).fetchall()))
    assert applier.connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert applier.connection.execute("PRAGMA foreign_key_check").fetchall() == []
    return found


@rule("B8")
@pytest.mark.parametrize("name", CASES)
def test_a_changeset_does_what_the_statements_did(tmp_path: Path, name: str) -> None:
    """Branch, a direct commit, and an applier that gets the changeset have the same rows."""
    statements = CASES[name]
    applier = create(tmp_path / "a.db", SCHEMA)
    with Branch(tmp_path / "a.db") as branch:
        branch.begin()
        failed = run(branch, statements)
        assert (failed > 0) == (name in FAILING)
        changeset = branch.changeset()  # first: it makes FTS5 write what it keeps in memory
        seen = content(branch.writer)
        branch.end()
        if name not in ("WITHOUT ROWID", "FTS5"):  # random, and its own way to group what is written
            applier.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
            applier.connection.execute("BEGIN")
            assert run(applier.connection, statements) == failed
            assert content(applier.connection) == seen, "a direct commit"
            applier.connection.execute("ROLLBACK")
            applier.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        assert commit(applier, changeset) is Applied.DONE
        found = check(applier, branch)
        assert {table: rows for table, rows in found.items() if table in seen} == seen
    applier.close()


POOL: Final = tuple(
    statement
    for name, statements in CASES.items()
    if name not in ("values", "FTS5", "R-Tree")
    for statement in statements
    if not statement.startswith(("SAVEPOINT", "ROLLBACK", "RELEASE")) and "random" not in statement
)


def draw(r: random.Random) -> tuple[str, ...]:
    """Statements of the cases with other numbers, and savepoints among them."""
    found: list[str] = []
    depth = 0
    for _ in range(r.randrange(1, 14)):
        chance = r.random()
        if chance < 0.12:
            found.append("SAVEPOINT s")
            depth += 1
        elif chance < 0.2 and depth:
            found.append("ROLLBACK TO s")
        elif chance < 0.26 and depth:
            found.append("RELEASE s")
            depth -= 1
        else:
            statement = r.choice(POOL)
            if r.random() < 0.4 and "x'" not in statement:
                statement = "".join(str(r.randrange(1, 9)) if c.isdigit() and r.random() < 0.4 else c for c in statement)
            found.append(statement)
    return tuple(found)


def compare(folder: Path, seed: int, count: int) -> dict[str, int]:
    """Random transactions: the changeset brings another copy to what the branch saw."""
    r = random.Random(seed)
    applier = create(folder / "a.db", SCHEMA)
    met = {"rows": 0, "nothing": 0, "foreign key": 0}
    with Branch(folder / "a.db") as branch:
        for _ in range(count):
            statements = draw(r)
            branch.begin()
            run(branch, statements)
            try:
                changeset = branch.changeset()
                seen = content(branch.writer)
            except IntegrityError:
                met["foreign key"] += 1
                branch.end()
                continue
            branch.end()
            met["rows" if changeset else "nothing"] += 1
            applier.connection.execute("BEGIN IMMEDIATE")
            assert applier.apply(changeset) is Applied.DONE, statements
            assert content(applier.connection) == seen, statements
            applier.connection.execute("ROLLBACK" if r.random() < 0.9 else "COMMIT")
    applier.close()
    return met


def test_text_that_is_not_utf8_travels(tmp_path: Path) -> None:
    applier = create(tmp_path / "a.db", SCHEMA)
    with Branch(tmp_path / "a.db") as branch:
        branch.begin()
        branch.execute("INSERT INTO wr VALUES(CAST(x'81ff00' AS TEXT), 1, CAST(x'80' AS TEXT))")
        assert commit(applier, branch.changeset()) is Applied.DONE
        branch.end()
    query = "SELECT typeof(k), hex(k), typeof(v), hex(v) FROM wr WHERE hex(k) > '62'"
    assert applier.connection.execute(query).fetchall() == [("text", "81FF00", "text", "80")]
    applier.close()


def test_random_transactions(tmp_path: Path) -> None:
    met = compare(tmp_path, 1, 300)
    assert all(met.values()), met


@rule("B8")
def test_a_changeset_of_another_schema_is_refused(tmp_path: Path) -> None:
    """SQLite would leave out what it does not find, and report success."""
    applier = create(tmp_path / "a.db", SCHEMA)
    changesets = {}
    with Branch(tmp_path / "a.db") as branch:
        for name, statement in {
            "gone": "INSERT INTO uq VALUES(50, 50)",
            "wider": "INSERT INTO nokey VALUES(50, 50)",
            "other key": "INSERT INTO st VALUES(50, 'p')",
            "view": "INSERT INTO par VALUES(50, 'p')",
        }.items():
            branch.begin()
            branch.execute(statement)
            changesets[name] = branch.changeset()
            branch.end()
    applier.connection.execute(
        "DROP TABLE uq; ALTER TABLE nokey ADD COLUMN c; DROP TABLE st; PRAGMA foreign_keys = OFF; DROP TABLE par"
    )
    applier.connection.execute("CREATE TABLE st(a INT PRIMARY KEY NOT NULL, b TEXT); CREATE VIEW par AS SELECT 1 AS id, 2 AS x")
    applier.connection.execute("CREATE TABLE zenjun_meta(a PRIMARY KEY NOT NULL); PRAGMA foreign_keys = ON")
    before = content(applier.connection)
    for name, changeset in changesets.items():
        assert commit(applier, changeset) is Applied.IMAGE, name
    own = b"T\x01\x01zenjun_meta\0\x12\0\x01" + bytes(8)
    assert [change.table.name for change in parse(own)] == ["zenjun_meta"] and commit(applier, own) is Applied.IMAGE
    assert content(applier.connection) == before
    applier.close()


@rule("B8")
@pytest.mark.parametrize("name", ["triggers on", "foreign-key actions on"])
def test_what_acts_again_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What triggers and cascades did is in the changeset. At an applier that lets them act once more it does something else."""
    applier = create(tmp_path / "a.db", SCHEMA)
    with Branch(tmp_path / "a.db") as branch:
        branch.begin()
        run(branch, CASES["rows" if name == "triggers on" else "foreign key: DELETE"])
        changeset = branch.changeset()
        seen = content(branch.writer)
        branch.end()
    if name == "triggers on":
        applier.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
    else:
        monkeypatch.setattr(applying, "_FLAGS", apsw.SQLITE_CHANGESETAPPLY_NOSAVEPOINT)
    assert commit(applier, changeset) is not Applied.DONE or content(applier.connection) != seen
    applier.close()


VERDICTS: Final = {
    "UNIQUE under another key": ("INSERT INTO uq VALUES(50, 60)", "INSERT INTO uq VALUES(51, 60)", Applied.CONSTRAINT),
    "child of a parent that goes": ("DELETE FROM par WHERE id = 3", "INSERT INTO kid VALUES(50, 3, 'x')", Applied.CONSTRAINT),
    "parent of a new child": ("INSERT INTO kid VALUES(50, 3, 'x')", "DELETE FROM par WHERE id = 3", Applied.CONSTRAINT),
    "row is gone": ("DELETE FROM wr WHERE k = 'b'", "UPDATE wr SET v = 1 WHERE k = 'b'", Applied.IMAGE),
    "row has changed": ("UPDATE wr SET v = 2 WHERE k = 'b'", "UPDATE wr SET v = 1 WHERE k = 'b'", Applied.IMAGE),
    "same new key": ("INSERT INTO wr VALUES('c', 1, 1)", "INSERT INTO wr VALUES('c', 1, 2)", Applied.CONSTRAINT),
    "nothing in common": ("DELETE FROM wr WHERE k = 'b'", "UPDATE wr SET v = 1 WHERE k = 'a'", Applied.DONE),
}


@rule("B8")
@pytest.mark.parametrize("name", VERDICTS)
def test_what_does_not_apply_changes_nothing(tmp_path: Path, name: str) -> None:
    first, second, expected = VERDICTS[name]
    applier = create(tmp_path / "a.db", SCHEMA)
    changesets = []
    with Branch(tmp_path / "a.db") as branch:
        for statement in (first, second):
            branch.begin()
            branch.execute(
                f"UPDATE nokey SET a = a || '{statement[:6]}'; " * (statement is second and expected is not Applied.DONE)
            )
            branch.execute(statement)
            changesets.append(branch.changeset())
            branch.end()
    assert commit(applier, changesets[0]) is Applied.DONE
    before = content(applier.connection)
    assert commit(applier, changesets[1]) is expected
    assert (content(applier.connection) == before) == (expected is not Applied.DONE)
    applier.close()


# ---- the parser


CHANGESET: Final = bytes.fromhex(
    "540201006163637400170001000000000000000101000000000000006400 01000000000000005a"  # acct: 1, 100 -> 90
    "54020100 6b7600 1200 0301 61 0400  0900 0301 62 05"  # kv: insert ('a', x''), delete ('b', NULL)
)


def test_a_changeset_is_read() -> None:
    changes = list(parse(CHANGESET))
    one, hundred, ninety = (b"\x01" + v.to_bytes(8, "big") for v in (1, 100, 90))
    acct, kv = Table("acct", (1, 0)), Table("kv", (1, 0))
    assert [(c.table, c.op, c.old, c.new) for c in changes] == [
        (acct, Op.UPDATE, (one, hundred), (b"\0", ninety)),
        (kv, Op.INSERT, (), (b"\x03\x01a", b"\x04\0")),
        (kv, Op.DELETE, (b"\x03\x01b", b"\x05"), ()),
    ]
    assert [c.key for c in changes] == [(one,), (b"\x03\x01a",), (b"\x03\x01b",)]
    assert len({row_hash(c.table.name, c.key) for c in changes} | {row_hash("kva", (b"",)), row_hash("kv", (b"a",))}) == 5


WHOLE: Final = frozenset({0, 9, 39, 46, 53, len(CHANGESET)})
"""Where one may end: behind a table's head, or a change."""


def test_a_cut_changeset_is_refused() -> None:
    for end in range(len(CHANGESET) + 1):
        if end in WHOLE:
            assert len(list(parse(CHANGESET[:end]))) <= 3
        else:
            with pytest.raises(ValueError):
                list(parse(CHANGESET[:end]))


SINGLES: Final = [
    CHANGESET[:39], CHANGESET[39:53],  # an update; an insertion
    bytes.fromhex("54020102 7700 0900 0301 61 020000000000000000"),  # a deletion, by a key of two columns
    bytes.fromhex("5401017700 1200 03 8100") + bytes(128),  # a text that is not short
]  # fmt: skip


def _changes(data: bytes) -> list[Change]:
    try:
        return list(parse(data))
    except ValueError:
        return []


@given(st.sampled_from(SINGLES), st.integers(0, 200), st.integers(0, 255), st.binary(max_size=2))
def test_a_change_alone_is_read_alike(whole: bytes, at: int, flip: int, tail: bytes) -> None:
    """The short way finds what the long one finds, or leaves it to that one."""
    at %= len(whole)
    data = whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :] + tail
    if (found := _single(data)) is not None:
        change, key = found
        assert _changes(data) == [change] and change.key == key


def test_most_changes_are_read_the_short_way() -> None:
    for data in SINGLES[:3]:
        assert _single(data) is not None and len(_changes(data)) == 1
    assert _single(SINGLES[3]) is None and len(_changes(SINGLES[3])) == 1
    assert _single(CHANGESET) is None and _single(b"") is None


@given(st.integers(0, len(CHANGESET) - 1), st.integers(1, 255), st.binary(max_size=4))
def test_damage_is_a_value_error_or_another_changeset(at: int, flip: int, tail: bytes) -> None:
    """And SQLite, with its own reading of it, neither crashes nor finds the database damaged."""
    damaged = CHANGESET[:at] + bytes([CHANGESET[at] ^ flip]) + CHANGESET[at + 1 :] + tail
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE acct(id INTEGER PRIMARY KEY, bal); INSERT INTO acct VALUES(1, 100), (2, 50)")
    connection.execute("CREATE TABLE kv(k TEXT PRIMARY KEY NOT NULL, v); INSERT INTO kv VALUES('b', NULL)")
    applier = Applier(connection)
    try:
        list(parse(damaged))
    except ValueError:
        assert commit(applier, damaged) is Applied.IMAGE
    else:
        assert commit(applier, damaged) in Applied
    connection.close()
