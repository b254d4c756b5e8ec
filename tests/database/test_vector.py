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
from zenjun.proto.service.database.changeset import row_hash
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

    def run(self, sql: str) -> bytes:
        """The body of a transaction on the rows as they are."""
        self.rows.connection.execute("BEGIN")
        session = apsw.Session(self.rows.connection, "main")
        session.config(apsw.SQLITE_SESSION_OBJCONFIG_ROWID, True)
        session.attach()
        self.rows.connection.execute(sql)
        changeset = session.changeset()
        session.close()
        self.rows.connection.execute("ROLLBACK")
        return m.encode_body([(m.Segment.CHANGESET, changeset)])

    def digest(self) -> str:
        return self.rows.position().digest.hex()


@rule("K1", "K2", "B8")
def test_the_vector_of_the_design() -> None:
    place = Place()
    assert place.digest() == "463be1d58a72e9618ea59884367c4358"
    assert place.run("UPDATE acct SET bal = 90 WHERE id = 1") == A
    second = place.run("UPDATE acct SET bal = 70 WHERE id = 1")
    assert place.run("UPDATE acct SET bal = 45 WHERE id = 2") == C
    assert txid(1).encode().hex() == "00000001000000010000000000000001"
    assert place.decide(1, 0, A, (account(1),)) == ("done", 1)
    assert place.digest() == "d0eef9a5ee0047580fee3b1ec493cb5d"
    assert place.decide(2, 0, second, (account(1),)) == ("conflict", 1)
    fourth = place.run("INSERT INTO log SELECT sum(bal) FROM acct")
    assert place.decide(3, 0, C, (account(2),)) == ("done", 2)
    assert place.digest() == "b0031e959649a0775bfe9237347a2673"
    assert place.decide(1, 1, fourth, (table_hash("acct"),), number=2) == ("read", 2)
    users = [place.run(f"INSERT INTO user VALUES({number}, 'a')") for number in (1, 2)]
    assert place.decide(2, 2, users[0]) == ("done", 3)
    assert place.decide(3, 2, users[1], number=2) == ("constraint", 3)
    assert place.decide(1, 1, fourth, number=3) == ("done", 4), "snapshot isolation: nothing was read"
    assert place.decide(1, 0, A, (account(1),)) == ("done", 1), "the first verdict again"


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
