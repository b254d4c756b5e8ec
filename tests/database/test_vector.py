"""The test vector of the design: verdicts and digests, byte by byte; and the messages' encodings."""

from __future__ import annotations

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zenjun.daemon.database.applier import Applier
from zenjun.daemon.database.rows import SqliteRows
from zenjun.proto.service.database import messages as m
from zenjun.proto.service.database.certify import Certifier, Shared, table_hash
from zenjun.proto.service.database.changeset import Numbered, encoded_integer, row_hash
from zenjun.proto.service.database.rows import RowsFailed, Verdict
from zenjun.proto.service.database.window import Window

from ..rules import rule

UUID = bytes(16)
TABLES = """
CREATE TABLE acct(id INTEGER PRIMARY KEY, bal INTEGER); INSERT INTO acct VALUES(1, 100), (2, 50);
CREATE TABLE user(id INTEGER PRIMARY KEY, mail TEXT UNIQUE); CREATE TABLE log(t TEXT);
"""
A = bytes.fromhex("01 00000027 540201006163637400 1700 010000000000000001 010000000000000064 00 01000000000000005a")
C = bytes.fromhex("01 00000027 540201006163637400 1700 010000000000000002 010000000000000032 00 01000000000000002d")


def txid(station: int, number: int = 1) -> m.Txid:
    return m.Txid(station, 1, 0, number)


def account(number: int) -> bytes:
    return row_hash("acct", (b"\x01" + number.to_bytes(8, "big"),))


class Place:
    """One site, whose rows and shared state each transaction finds as the one before left them."""

    def __init__(self) -> None:
        self.rows = SqliteRows(Applier(apsw.Connection(":memory:")), UUID)
        self.rows.create(UUID)
        self.rows.connection.execute(TABLES)
        self.shared = Shared(0, {(1, 1)}, Window(0), schema=0, release=0)

    def decide(self, station: int, snapshot: int, body: bytes, reads: tuple[bytes, ...] = (), number: int = 1) -> tuple[str, int]:
        write = m.Write(txid(station, number), 0, snapshot, reads, body)
        again = m.decode(m.encode(write))
        assert again == write and isinstance(again, m.Write)
        verdict, version = Certifier().decide(self.shared, self.rows, again, True)
        return verdict.value, version

    def run(self, sql: str, kind: m.Segment = m.Segment.CHANGESET) -> bytes:
        """The body of a transaction on the rows as they are."""
        self.rows.connection.execute("BEGIN")
        session = apsw.Session(self.rows.connection, "main")
        session.config(apsw.SQLITE_SESSION_OBJCONFIG_ROWID, True)
        session.attach()
        self.rows.connection.execute(sql)
        changeset = session.changeset()
        session.close()
        self.rows.connection.execute("ROLLBACK")
        return m.encode_body([(kind, changeset)])

    def digest(self) -> str:
        return self.rows.position().digest.hex()


@rule("K1", "K2", "K8", "B8")
@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_the_vector_of_the_design(isolation: str) -> None:
    """Place by place. *isolation* is that of the fourth, which the vector has in both ways: with snapshot isolation the places
    behind it have one version more."""
    place = Place()
    assert place.digest() == "463be1d58a72e9618ea59884367c4358"
    a = place.run("UPDATE acct SET bal = 90 WHERE id = 1")
    b = place.run("UPDATE acct SET bal = 70 WHERE id = 1")
    c = place.run("UPDATE acct SET bal = 45 WHERE id = 2")
    assert (a, c) == (A, C)
    assert txid(1).encode().hex() == "00000001000000010000000000000001"
    assert txid(3).encode().hex() == "00000003000000010000000000000001"
    assert place.decide(1, 0, a, (account(1),)) == ("done", 1)
    assert place.digest() == "d0eef9a5ee0047580fee3b1ec493cb5d"
    d = place.run("INSERT INTO log SELECT sum(bal) FROM acct")  # s = 1
    assert place.decide(2, 0, b, (account(1),)) == ("conflict", 1)
    assert place.decide(3, 0, c, (account(2),)) == ("done", 2)
    assert place.digest() == "b0031e959649a0775bfe9237347a2673"
    e, f = (place.run(f"INSERT INTO user VALUES({number}, 'a')") for number in (1, 2))  # s = 2
    g, h = (place.run(f"INSERT INTO log VALUES('{letter}')", m.Segment.NUMBERED) for letter in "gh")
    assert numbers(g) == numbers(h) == [1], "at both origins"
    is_serializable = isolation == "serializable"
    expected = ("read", 2) if is_serializable else ("done", 3)
    assert place.decide(1, 1, d, (table_hash("acct"),) * is_serializable, number=2) == expected
    more = int(not is_serializable)
    assert place.decide(2, 2, e) == ("done", 3 + more)
    assert place.decide(3, 2, f, number=2) == ("constraint", 3 + more)
    assert place.decide(1, 2, g, number=3) == ("done", 4 + more)
    assert place.decide(2, 2, h, number=2) == ("done", 5 + more)
    assert place.rows.connection.execute("SELECT rowid, t FROM log WHERE t IN ('g', 'h')").fetchall() == [
        (1 + more, "g"),
        (2 + more, "h"),
    ]
    assert [numbers(body) for (body,) in place.rows.connection.execute(LAST)] == [[2 + more], [1 + more]], "as they came to be"
    assert place.decide(2, 2, h, number=2) == ("done", 5 + more), "the first verdict again"
    assert place.decide(1, 0, a, (account(1),)) == ("done", 1)


LAST = "SELECT body FROM zenjun_log ORDER BY version DESC LIMIT 2"


def numbers(body: bytes) -> list[int]:
    """Of the rows that it inserts."""
    ((_, data),) = m.decode_body(body)
    return Numbered(data).numbers


@rule("K8")
def test_numbers_at_their_place() -> None:
    """Above the highest row there is, whatever the origin had, whatever was written under them: as SQLite would pick them."""
    place = Place()
    place.rows.connection.execute("CREATE TABLE note(v, id INTEGER PRIMARY KEY, twice AS (id * 2))")
    two, one = (
        place.run("INSERT INTO note(v) VALUES('a'), ('b')", m.Segment.NUMBERED),
        place.run("INSERT INTO note VALUES('x', 5)"),
    )
    assert place.decide(1, 0, one) == ("done", 1)
    assert place.decide(2, 0, two) == ("done", 2)
    assert place.rows.connection.execute("SELECT * FROM note ORDER BY id").fetchall() == [
        ("x", 5, 10),
        ("a", 6, 12),
        ("b", 7, 14),
    ]
    assert place.decide(2, 2, place.run("DELETE FROM note WHERE id > 5"), number=2) == ("done", 3)
    assert place.decide(1, 1, two, number=2) == ("done", 4), "6 and 7 again, which others have written since"
    assert place.rows.connection.execute("SELECT id FROM note").fetchall() == [(5,), (6,), (7,)]
    looked = (row_hash("note", (encoded_integer(6),)),)
    assert place.decide(3, 3, place.run("INSERT INTO log VALUES('none')"), looked) == ("read", 4), "who has not found such a row"
    assert place.decide(3, 3, place.run("UPDATE note SET v = 'c' WHERE id = 7"), number=2) == ("conflict", 4)


@rule("K8")
def test_where_no_numbers_are_left() -> None:
    """SQLite picks any that is free, at the origin; that one counts, and is certified as any other key is."""
    place = Place()
    place.rows.connection.execute("INSERT INTO log(rowid, t) VALUES(?, 'last')", ((1 << 63) - 1,))
    first, second = (place.run("INSERT INTO log(t) VALUES('x')", m.Segment.NUMBERED) for _ in range(2))
    assert numbers(first) != numbers(second)
    assert place.decide(1, 0, first) == ("done", 1) and place.decide(2, 0, second) == ("done", 2)
    assert place.decide(3, 0, second) == ("conflict", 2)
    rowids = [rowid for (rowid,) in place.rows.connection.execute("SELECT rowid FROM log ORDER BY rowid")]
    assert rowids == sorted([*numbers(first), *numbers(second), (1 << 63) - 1])


@rule("K8")
def test_what_is_not_numbered() -> None:
    """Only inserted rows of one table whose key is a number that SQLite picks: anything else is refused by all alike."""
    place = Place()
    place.rows.connection.execute(
        "CREATE TABLE auto(id INTEGER PRIMARY KEY AUTOINCREMENT, v); CREATE TABLE named(k TEXT PRIMARY KEY NOT NULL);"
        "CREATE TABLE bare(k INTEGER PRIMARY KEY) WITHOUT ROWID; CREATE TABLE down(k INTEGER PRIMARY KEY DESC);"
        "CREATE TABLE pair(a INTEGER, b INTEGER, PRIMARY KEY(a, b)); CREATE VIRTUAL TABLE f USING fts5(x);"
    )
    for number, sql in enumerate(
        (
            "UPDATE acct SET bal = 1 WHERE id = 1",
            "DELETE FROM acct",
            "INSERT INTO log VALUES('a'); INSERT INTO user(mail) VALUES('b')",
            "INSERT INTO log VALUES('a'); DELETE FROM acct WHERE id = 1",
            "INSERT INTO auto(v) VALUES(1)",
            "INSERT INTO named VALUES('a')",
            "INSERT INTO bare VALUES(1)",
            "INSERT INTO down VALUES(1)",
            "INSERT INTO pair VALUES(1, 1)",
            "INSERT INTO f VALUES('a')",
        )
    ):
        assert place.decide(1, 0, place.run(sql, m.Segment.NUMBERED), number=number) == ("image", 0), sql
    one = m.decode_body(place.run("INSERT INTO log VALUES('a')", m.Segment.NUMBERED))
    ((_, data),) = one
    for number, segments in enumerate(
        (
            [*one, *one],
            [(m.Segment.CHANGESET, data), *one],
            [(m.Segment.UNCHECKED, b""), *one],
            [(m.Segment.NUMBERED, b"")],
            [(m.Segment.NUMBERED, data[:-1])],
            [(m.Segment.NUMBERED, data.replace(b"log", b"lag"))],
            [(m.Segment.NUMBERED, data.replace(b"log", b"\xff\xfe\xfd"))],
        ),
        50,
    ):
        assert place.decide(1, 0, m.encode_body(segments), number=number) == ("image", 0), segments
    assert place.rows.position().version == 0
    assert place.decide(1, 0, m.encode_body(one)) == ("done", 1)


@rule("K3", "K4", "K5", "H2")
def test_what_is_rejected_before_its_rows_are_looked_at() -> None:
    place = Place()
    assert place.decide(1, 0, A) == ("done", 1)
    assert place.decide(2, 2, C) == ("stale", 1), "a snapshot that is not there yet"
    assert Certifier().decide(place.shared, place.rows, m.Write(txid(2), 1, 1, (), C), True)[0] is Verdict.STALE
    assert Certifier().decide(place.shared, place.rows, m.Write(txid(2), 0, 1, (), C), False)[0] is Verdict.NO_QUORUM
    place.shared.schema = 1
    assert place.decide(2, 0, C) == ("schema", 1)
    ddl = m.encode_body([(m.Segment.SQL, b"CREATE TABLE x(a)")])
    assert place.decide(2, 1, ddl, number=2) == ("schema", 1), "without the lock"
    place.shared.locks = [((2, 1), m.Lock(txid(2, 3), 0))]
    assert place.decide(2, 1, ddl, number=3) == ("done", 2) and place.shared.schema == 2
    for body in (b"\x03\0\0\0\0", ddl[:-1], m.encode_body([(m.Segment.CHANGESET, b"T")])):
        assert place.decide(2, 2, body, number=9) == ("image", 2)
    assert place.rows.position().version == 2


@rule("K1", "B8")
def test_who_does_not_say_what_it_has_read() -> None:
    """Only its own isolation suffers: rows are compared with what they were at its origin, whatever it says of its snapshot."""
    place = Place()
    stale, sums = place.run("UPDATE acct SET bal = 70 WHERE id = 1"), place.run("INSERT INTO log SELECT sum(bal) FROM acct")
    gone = place.run("DELETE FROM acct WHERE id = 1")
    assert place.decide(1, 0, A) == ("done", 1)
    assert place.decide(2, 0, stale) == ("conflict", 1)
    assert place.decide(2, 1, stale) == ("image", 1) and place.decide(2, 1, gone) == ("image", 1)
    assert place.decide(2, 0, sums) == ("done", 2), "a sum that is not true any more, in its own row"
    assert place.rows.connection.execute("SELECT bal FROM acct WHERE id = 1").fetchall() == [(90,)]


@rule("K3")
def test_the_window_ends_where_its_size_says() -> None:
    window = Window(5, versions_max=3)
    for version in range(6, 11):
        window.add(version, [b"a" * (version % 2), b"%d" % version])
    assert window.horizon == 7 and window.writer(b"8") == 8 and window.writer(b"6") == 7 and window.writer(b"a") == 9
    other = window.copy()
    other.add(11, [b"x"])
    assert (window.horizon, other.horizon) == (7, 8)
    small = Window(0, keys_max=2)
    small.add(1, [b"a", b"b"])
    small.add(2, [b"b", b"c"])
    assert small.horizon == 1 and small.entries() == ((2, (b"b", b"c")),)


REFUSED = (
    "ATTACH ':memory:' AS x",
    "PRAGMA user_version = 1",
    "COMMIT",
    "SAVEPOINT x",
    "DROP TABLE zenjun_log",
    "CREATE TEMP TABLE x(a)",
    "CREATE TABLE zenjun_x(a)",
    "INSERT INTO zenjun_log VALUES(9, 9, x'', x'', x'')",
    "CREATE TABLE acct(a)",
    "nonsense",
    "",
    "DELETE FROM acct",
    "CREATE TABLE x(a); DELETE FROM acct",
    "CREATE TABLE x AS SELECT * FROM acct",
    "CREATE VIRTUAL TABLE x USING fts5vocab(acct, row)",
    "\udc80",
)


CHANGES = (
    "ALTER TABLE acct ADD COLUMN c",
    "ALTER TABLE acct RENAME TO a",
    "ALTER TABLE a RENAME COLUMN bal TO balance",
    "CREATE INDEX i ON a(c)",
    "CREATE VIEW v AS SELECT * FROM a",
    "CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM log; END",
    "DROP TABLE log",
    "CREATE VIRTUAL TABLE f USING fts5(x)",
    "CREATE VIRTUAL TABLE r USING rtree(id, x0, x1)",
    "DROP TABLE f",
)


@rule("H1")
def test_a_change_of_the_schema_is_the_schema_alone() -> None:
    """What is refused at one site is refused at all, and changes nothing."""
    place = Place()
    place.shared.locks = [((2, 1), m.Lock(txid(2, n), 0)) for n in range(100)]
    for number, sql in enumerate(REFUSED):
        body = m.encode_body([(m.Segment.SQL, sql.encode(errors="surrogateescape"))])
        place.shared.locks = [((2, 1), m.Lock(txid(2, number), 0))]
        assert place.decide(2, 0, body, number=number) == ("image", 0), sql
    assert place.rows.connection.execute("SELECT count(*) FROM acct").fetchall() == [(2,)]
    for number, sql in enumerate(CHANGES, 50):
        place.shared.locks = [((2, 1), m.Lock(txid(2, number), 0))]
        body = m.encode_body([(m.Segment.SQL, sql.encode())])
        assert place.decide(2, place.rows.position().version, body, number=number)[0] == "done", sql
    assert place.rows.connection.execute("SELECT id, balance, c FROM v").fetchall() == [(1, 100, None), (2, 50, None)]


def test_a_file_of_another_format_is_refused() -> None:
    place = Place()
    place.rows.connection.execute("UPDATE zenjun_meta SET format = 9")
    with pytest.raises(RowsFailed, match="format 9"):
        SqliteRows(Applier(place.rows.connection), UUID)


POSITION = m.Position(5, 7, bytes(range(16)))
MESSAGES: tuple[m.Message, ...] = (
    m.Write(txid(1), 5, 7, (bytes(8), b"abcdefgh"), A),
    m.Lock(txid(1), 5),
    m.Release(txid(1)),
    m.Stand(9, True, m.Disk.COPY, bytes(16), POSITION, m.FORMAT, 3054001),
    m.Open(9),
    m.Active(POSITION, 3054000),
    m.Leave(5),
    m.Synced(5, 7),
    m.Want(POSITION),
    m.Barrier(3),
    m.Check(5),
    m.Answered(POSITION),
)


def test_messages_are_what_they_were() -> None:
    assert [m.decode(m.encode(message)) for message in MESSAGES] == list(MESSAGES)
    for message in MESSAGES[1:]:
        data = m.encode(message)
        assert [m.decode(data[:end]) for end in range(len(data))] == [None] * len(data)
        assert m.decode(data + b"\0") is None
    with pytest.raises(ValueError):
        m.encode(MESSAGES[0]._replace(reads=(bytes(8),) * (m.READS_MAX + 1)))  # type: ignore[call-arg]


@given(st.binary(max_size=120))
def test_any_bytes_are_a_message_or_none(data: bytes) -> None:
    message = m.decode(data)
    assert message is None or m.encode(message) == data
