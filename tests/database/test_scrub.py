"""What a comparison of copies finds: a changed byte of a row, of an index, of the log."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest
from zenjun.daemon.database import vfs
from zenjun.daemon.database.copy import FileRows, open_copy
from zenjun.daemon.database.files import Files
from zenjun.daemon.database.scrub import Pinned
from zenjun.daemon.database.scrubbing import Scrubs, Summing, pin
from zenjun.proto.service.database import messages as m
from zenjun.proto.service.database.roll import NOTHING
from zenjun.proto.service.database.rows import Entry, Verdict
from zenjun.proto.service.database.scrub import UNREADABLE, complained

from ..rules import rule

UUID = bytes(range(16))
WIDE = ", ".join(f"c{i} INTEGER" for i in range(150))
SCHEMA = (
    "CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, x REAL, b BLOB)",
    "CREATE TABLE nokey(a)",
    f"CREATE TABLE wide({WIDE})",
    "CREATE INDEX i ON t(name)",
    "CREATE VIRTUAL TABLE f USING fts5(body)",
)


def made(folder: Path) -> FileRows:
    """A copy with tables, whose rows are put there behind its back."""
    folder.mkdir()
    rows, _ = open_copy(Files(folder, "shop"), UUID)
    rows.create(UUID)
    for number, sql in enumerate(SCHEMA):
        body = m.encode_body([(m.Segment.SQL, sql.encode())])
        last, txid = rows.position(), m.Txid(1, 1, 1, number)
        digest = m.next_digest(last.digest, last.version + 1, txid, body)
        assert rows.write(Entry(m.Position(0, last.version + 1, digest), txid, body)) is Verdict.DONE
    return rows


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[FileRows, FileRows]]:
    """Two copies with the same rows, which were inserted in different orders."""
    one, other = made(tmp_path / "one"), made(tmp_path / "other")
    inserts = [f"INSERT INTO t VALUES({i}, 'name {i}', {i / 3}, zeroblob({i}))" for i in range(200)]
    inserts += ["INSERT INTO nokey(rowid, a) VALUES(5, NULL)", "INSERT INTO nokey(rowid, a) VALUES(7, 'é')"]
    inserts += ["INSERT INTO wide(c0, c149) VALUES(1, 2)"]
    for rows, order in ((one, inserts), (other, inserts[::-1])):
        for sql in order:
            rows.connection.execute(sql)
        rows.connection.execute("INSERT INTO f VALUES('one two')")
    yield one, other
    one.close()
    other.close()


def sums(rows: FileRows) -> bytes:
    pinned = Pinned(rows)
    try:
        assert pinned.damage() == ""
        return pinned.sums()
    finally:
        pinned.close()


@rule("W3")
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE t SET name = 'nane 7' WHERE id = 7",
        "UPDATE t SET x = x + 1e-9 WHERE id = 7",
        "UPDATE t SET x = 1 WHERE id = 3",
        "UPDATE t SET b = zeroblob(8) WHERE id = 7",
        "UPDATE t SET id = 1000 WHERE id = 7",
        "DELETE FROM t WHERE id = 7",
        "UPDATE nokey SET a = '' WHERE a IS NULL",
        "UPDATE nokey SET rowid = 6 WHERE rowid = 5",
        "INSERT INTO nokey(rowid, a) VALUES(6, NULL)",
        "UPDATE wide SET c149 = 3",
        "UPDATE wide SET c0 = 2, c149 = 1",
        "DROP INDEX i",
        "ALTER TABLE nokey ADD COLUMN z",
        "INSERT INTO f VALUES('three')",
    ],
)
def test_another_row_is_another_sum(two: tuple[FileRows, FileRows], sql: str) -> None:
    one, other = two
    assert sums(one) == sums(other), "whatever the order"
    pinned = Pinned(other)
    other.connection.execute(sql)
    assert pinned.sums() == sums(one), "as of its place"
    pinned.close()
    assert (sums(other) == sums(one)) == (sql == "UPDATE t SET x = 1 WHERE id = 3"), "1.0 is 1.0"


def test_an_empty_table_and_no_value() -> None:
    vfs.load()
    c = apsw.Connection(":memory:")
    vfs.add_sum(c)
    query = "SELECT zenjun_sum(column1) FROM (VALUES (1)) WHERE 0"
    assert c.execute(query).fetchall() == [(bytes(24),)]
    different = ["NULL", "0", "0.0", "''", "x''", "x'00'", "'0'", "1", "'a'", "x'61'", "'ab'", "zeroblob(8)", "zeroblob(16)"]
    found = {c.execute(f"SELECT zenjun_sum({value})").fetchall()[0][0] for value in different}
    assert len(found) == len(different)
    assert c.execute("SELECT zenjun_sum('a', 'b')").fetchall() != c.execute("SELECT zenjun_sum('ab', '')").fetchall()
    c.close()


@rule("W3")
def test_a_flipped_byte_in_the_file(two: tuple[FileRows, FileRows]) -> None:
    """In a row only the comparison finds it; in an index SQLite does; in the log the digests do."""
    one, other = two
    assert other.applier.restart_wal()
    path, fine = other.path, sums(one)
    data = path.read_bytes()
    for text in (b"name 77", b"CREATE TABLE nokey"):
        places = [at for at in range(len(data)) if data.startswith(text, at)]
        assert len(places) == 2, "the row and the index, the schema and the log"
        for at in places:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([data[at] ^ 1]))
            with contextlib.suppress(apsw.CorruptError), contextlib.closing(Pinned(other)) as pinned:
                assert pinned.damage() or pinned.sums() != fine, (text, at)
            path.write_bytes(data)
            assert sums(other) == fine


def test_what_cannot_be_read_now_is_not_damaged(tmp_path: Path) -> None:
    """No descriptor is to be had, whatever numbers are free: nothing is said of the copy."""
    rows = made(tmp_path / "shop")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        summing = pin(rows, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert summing.pinned is None and not summing.damage and "unable to open" in summing.trouble
    rows.close()


def said(summing: Summing) -> list[bytes]:
    """What a site sends for this copy."""
    sent: list[bytes] = []

    async def act(function: Any, *arguments: Any) -> None:
        function(*arguments)

    machine: Any = SimpleNamespace(on_sum=lambda number, sums: sent.append(sums))
    journal = SimpleNamespace(warning=lambda *words, **facts: None)
    site: Any = SimpleNamespace(machine=machine, journal=journal, name="shop", act=act, position=NOTHING)
    asyncio.run(Scrubs(site, 0.0).run(summing, machine))
    return sent


@rule("W3")
def test_a_site_does_not_give_up_what_the_others_have_too(two: tuple[FileRows, FileRows]) -> None:
    """SQLite finds something wrong with the rows: the site says so, and what they sum up to; the file is opened again."""
    for rows in two:
        fine = said(pin(rows, 5))
        assert fine == [sums(rows)]
        rows.connection.execute("UPDATE f_content SET c0 = 'three'")
        pinned = Pinned(rows)
        assert "malformed inverted index" in pinned.damage()
        wrong = pinned.sums()
        pinned.close()
        assert wrong not in fine and said(pin(rows, 5)) == [complained(wrong)]
        assert rows.damage() == ""
    assert said(Summing(5, None, damage="file is not a database")) == [UNREADABLE]
    assert said(Summing(5, None, trouble="unable to open database file")) == []
