"""SQLite files that become databases, and those that do not."""

from __future__ import annotations

import contextlib
from pathlib import Path

import apsw
import pytest
from zenjun.daemon.database.copy import open_copy
from zenjun.daemon.database.files import Files
from zenjun.daemon.database.importing import ImportRefused, imported
from zenjun.proto.service.database.messages import Position, first_digest

UUID = bytes(range(16))
GOOD = """
CREATE TABLE t(id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT);
CREATE TABLE k(k TEXT PRIMARY KEY, v);
CREATE TABLE nokey(a, b);
CREATE TABLE w(a TEXT, b INT, PRIMARY KEY(a, b)) WITHOUT ROWID;
CREATE VIRTUAL TABLE f USING fts5(body);
CREATE VIRTUAL TABLE r USING rtree(id, x0, x1);
CREATE VIEW v AS SELECT sin(id) FROM t;
CREATE TRIGGER tr AFTER INSERT ON t BEGIN INSERT INTO nokey VALUES(new.id, 1); END;
INSERT INTO t(name) VALUES('a'), ('b');
INSERT INTO k VALUES('x', 1);
INSERT INTO f VALUES('one two');
"""


def source(folder: Path, sql: str, *pragmas: str) -> Path:
    path = folder / "source.db"
    with contextlib.closing(apsw.Connection(str(path))) as c:
        for pragma in pragmas:
            c.execute(f"PRAGMA {pragma}").fetchall()
        c.execute(sql)
    return path


@pytest.mark.parametrize("pragmas", [(), ("page_size = 512", "journal_mode = WAL"), ("page_size = 65536", "auto_vacuum = FULL")])
def test_a_file_becomes_a_copy(tmp_path: Path, pragmas: tuple[str, ...]) -> None:
    """As copies are laid out, at version 0; a backup of a database, too."""
    path = source(tmp_path, GOOD + "INSERT INTO f VALUES(hex(randomblob(100000)));", *pragmas)
    for number in (1, 2):
        root = tmp_path / str(number)
        root.mkdir()
        files, prepared = Files(root, "shop"), root / "prepared"
        imported(path, prepared, UUID)
        files.adopt(prepared)
        rows, damaged = open_copy(files, bytes(16))
        assert not damaged and rows.uuid() == UUID and rows.position() == Position(0, 0, first_digest(UUID))
        assert rows.query("PRAGMA page_size") == [(4096,)] and rows.query("PRAGMA auto_vacuum") == [(2,)]
        assert rows.query("SELECT id, name FROM t") == [(1, "a"), (2, "b")] and rows.query("SELECT count(*) FROM nokey") == [(2,)]
        assert rows.query("SELECT count(*) FROM f('two')") == [(1,)] and rows.query("SELECT seq FROM sqlite_sequence") == [(2,)]
        assert [p.name for p in root.iterdir() if p.name.startswith("prepared")] == []
        path = tmp_path / f"backup{number}.db"
        rows.connection.execute("VACUUM INTO ?", (str(path),))
        rows.close()
    other = tmp_path / "other"
    other.write_bytes(b"")
    files.adopt(other)
    assert not other.exists() and files.link.resolve().stat().st_size, "there is one"


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("CREATE TABLE k(k TEXT PRIMARY KEY, v); INSERT INTO k VALUES(NULL, 1)", r"k\.k: NULL in a key"),
        ("CREATE TABLE zenjun_x(a)", "table zenjun_x"),
        ("CREATE TABLE k(k TEXT COLLATE NOCASE PRIMARY KEY)", r"k\.k: the collation"),
        ("CREATE TABLE k(a PRIMARY KEY)", r"k\.a: a column of a key needs a type"),
        ("CREATE TABLE k(_rowid_, b)", "table k: it has no key"),
        ("CREATE VIRTUAL TABLE d USING fts3(body)", "table d: of virtual tables only"),
        ("CREATE TABLE t(a); CREATE INDEX i ON t(exp(a))", "exp: not in what"),
        ("CREATE TABLE t(a UNIQUE ON CONFLICT REPLACE)", "table t: PRIMARY KEY and UNIQUE without ON CONFLICT"),
        ("CREATE TABLE p(id INTEGER PRIMARY KEY); CREATE TABLE c(p REFERENCES p); INSERT INTO c VALUES(5)", "foreign key"),
    ],
)
def test_what_cannot_be_kept_equal_is_refused(tmp_path: Path, sql: str, why: str) -> None:
    path = source(tmp_path, sql)
    with pytest.raises(ImportRefused, match=why):
        imported(path, tmp_path / "prepared", UUID)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source.db"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportRefused, match="encoding is UTF-16"):
        imported(source(tmp_path, "CREATE TABLE t(a)", "encoding = 'UTF-16'"), tmp_path / "prepared", UUID)
    bad = tmp_path / "bad.db"
    bad.write_bytes(b"no database at all" * 1000)
    with pytest.raises(ImportRefused, match="cannot be read"):
        imported(bad, tmp_path / "prepared", UUID)
    (tmp_path / "more").mkdir()
    whole = source(tmp_path / "more", "DROP TABLE IF EXISTS t; CREATE TABLE t(a, b); CREATE INDEX i ON t(a)")
    with contextlib.closing(apsw.Connection(str(whole))) as c:
        c.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) INSERT INTO t SELECT i, i FROM n"
        )
    data = bytearray(whole.read_bytes())
    data[5 * 4096 : 5 * 4096 + 8] = b"\xff" * 8
    whole.write_bytes(data)
    with pytest.raises(ImportRefused, match=r"damaged|cannot be read"):
        imported(whole, tmp_path / "prepared", UUID)
