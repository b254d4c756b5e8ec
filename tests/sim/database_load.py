"""What programs do to the database of the simulation: transactions as statements, with what they read and what they returned.

A transaction is run on a copy of the rows at its site, as a branch is, and becomes a changeset. The reference runs the same
statements again, one transaction after another.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import apsw
from zenjun.daemon.database.guarding import is_recorded
from zenjun.daemon.database.leases import encode_lease
from zenjun.proto.service.database.certify import Written, table_hash
from zenjun.proto.service.database.changeset import row_hash
from zenjun.proto.service.database.messages import Segment, Txid, decode_body, encode_body

Statement: TypeAlias = tuple[str, tuple[Any, ...]]
SCHEMA: Final = """
CREATE TABLE acct(id INTEGER PRIMARY KEY, bal INTEGER CHECK(bal >= 0), n INTEGER);
INSERT INTO acct VALUES(1, 10, 0), (2, 10, 0), (3, 10, 0), (4, 10, 0);
CREATE TABLE audit(n INTEGER PRIMARY KEY, bal);
CREATE TRIGGER seen AFTER UPDATE OF bal ON acct BEGIN INSERT INTO audit VALUES(new.id * 1000 + new.n, new.bal); END;
CREATE TABLE user(id INTEGER PRIMARY KEY, mail TEXT UNIQUE);
CREATE TABLE par(id INTEGER PRIMARY KEY);
CREATE TABLE kid(id INTEGER PRIMARY KEY, p REFERENCES par(id) ON DELETE CASCADE, v);
INSERT INTO par VALUES(1), (2), (3);
CREATE TABLE total(id INTEGER PRIMARY KEY, v);
CREATE TABLE auto(id INTEGER PRIMARY KEY AUTOINCREMENT, v);
CREATE TABLE note(v, id INTEGER PRIMARY KEY, twice AS (id * 2));
CREATE TABLE journal(v);
"""
"""Of version 1: a new database gets it before it is copied to the sites."""
FIRST: Final = "INSERT INTO total VALUES(-77, 1);"
"""What a database has besides that begins with a file."""


@dataclass(slots=True)
class Draft:
    """A transaction on its way."""

    txid: Txid
    epoch: int
    snapshot: int
    statements: tuple[Statement, ...]
    returned: list[Any]
    reads: tuple[bytes, ...]
    body: bytes
    digest: bytes
    """Of its snapshot."""


def row(table: str, key: int) -> bytes:
    return row_hash(table, (b"\x01" + key.to_bytes(8, "big", signed=True),))


def draw(r: random.Random, kinds: tuple[str, ...]) -> tuple[tuple[Statement, ...], tuple[bytes, ...]]:
    """A transaction, and what it reads."""
    kind = r.choice(kinds)
    if kind == "transfer":
        a, b = r.sample(range(1, 5), 2)
        read = "SELECT bal FROM acct WHERE id = ?"
        return ((read, (a,)), (read, (b,)), ("transfer", (a, b, r.randint(1, 4)))), (row("acct", a), row("acct", b))
    if kind == "sum":
        query = "SELECT sum(bal) FROM acct WHERE id > 2"
        return ((query, ()), (f"INSERT INTO total(id, v) VALUES(?, ({query}))", (r.randrange(1 << 30),))), (table_hash("acct"),)
    if kind == "skew":
        a, b = r.sample(range(1, 5), 2)
        found = "SELECT coalesce(max(v), 0) + 1 FROM total WHERE id = ?"
        write = f"INSERT INTO total(id, v) VALUES(?, ({found})) ON CONFLICT(id) DO UPDATE SET v = excluded.v"
        return ((found, (-a,)), (write, (-b, -a))), (row("total", -a),)
    if kind == "user":
        return (("INSERT OR REPLACE INTO user VALUES(?, ?)", (r.randint(1, 9), f"m{r.randint(1, 9)}")),), (table_hash("user"),)
    if kind == "mail":
        return (("INSERT INTO user VALUES(?, ?)", (r.randrange(1 << 30), f"m{r.randint(1, 9)}")),), ()
    if kind == "kid":
        return (("INSERT INTO kid(id, p, v) VALUES(?, ?, ?)", (r.randrange(1 << 30), r.randint(1, 3), r.randint(1, 9))),), ()
    if kind == "number":
        table, count = r.choice(["note(v)", "journal"]), r.choice([1, 1, 2, 3])
        values = ", ".join(["(?)"] * count)
        return ((f"INSERT INTO {table} VALUES{values}", tuple(r.randrange(1 << 30) for _ in range(count))),), ()
    if kind == "unnumber":
        table, key = r.choice([("note", "id"), ("journal", "rowid")])
        return ((f"DELETE FROM {table} WHERE {key} = (SELECT max({key}) FROM {table})", ()),), (table_hash(table),)
    if kind == "par":
        return (("DELETE FROM par WHERE id = ?", (r.randint(1, 3),)),), (table_hash("kid"),)
    return (("INSERT OR IGNORE INTO par VALUES(?)", (r.randint(1, 3),)),), (row("par", 1), row("par", 2), row("par", 3))


KINDS: Final = (
    "transfer", "transfer", "sum", "skew", "skew", "user", "mail", "kid", "par", "parent", "number", "number", "unnumber",
)  # fmt: skip


def execute(connection: apsw.Connection, statements: tuple[Statement, ...]) -> list[Any]:
    """What each statement returned."""
    found: list[Any] = []
    for sql, bindings in statements:
        if sql == "transfer":
            a, b, amount = bindings
            if enough := found[0][0][0] >= amount:
                connection.execute("UPDATE acct SET bal = bal - ?, n = n + 1 WHERE id = ?", (amount, a))
                connection.execute("UPDATE acct SET bal = bal + ?, n = n + 1 WHERE id = ?", (amount, b))
            found.append(enough)
            continue
        try:
            found.append(connection.execute(sql, bindings).fetchall())
        except apsw.ConstraintError:
            found.append("constraint")
    return found


def load(image: bytes) -> apsw.Connection:
    """A database in memory, as a program sees it: triggers and foreign keys on."""
    connection = apsw.Connection(":memory:")
    connection.deserialize("main", image)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def run(image: bytes, statements: tuple[Statement, ...]) -> tuple[list[Any], bytes]:
    """What the statements return on these rows, and the body of the transaction; empty if nothing changed."""
    connection = load(image)
    connection.execute("BEGIN")
    session = apsw.Session(connection, "main")
    session.config(apsw.SQLITE_SESSION_OBJCONFIG_ROWID, True)
    session.table_filter(is_recorded)
    session.attach()
    returned = execute(connection, statements)
    changeset = session.changeset()
    session.close()
    connection.close()
    kind = Segment.NUMBERED if is_numbered(statements) else Segment.CHANGESET
    return returned, encode_body([(kind, changeset)]) if changeset else b""


def is_numbered(statements: tuple[Statement, ...]) -> bool:
    """Its rows get their numbers at its place, not where it is run (``driver/lone.py``)."""
    return len(statements) == 1 and statements[0][0].startswith(("INSERT INTO note(v)", "INSERT INTO journal"))


def tables_and_rows(body: bytes) -> Written:
    """What a body writes; of numbered rows, under the numbers that they have where it was run."""
    segments = decode_body(body)
    return Written(encode_body([(Segment.CHANGESET if k is Segment.NUMBERED else k, data) for k, data in segments]))


def content(connection: apsw.Connection) -> bytes:
    """A digest of all rows and of the schema of the program's tables."""
    digest = blake2b(digest_size=16)
    tables = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
    for name, sql in tables:
        if is_recorded(str(name)):
            number = "_rowid_, " * (name == "journal")
            rows = connection.execute(f'SELECT {number}* FROM "{name}" ORDER BY 1').fetchall()
            digest.update(repr((name, sql, rows)).encode())
    return digest.digest()


def all_tables(connection: apsw.Connection) -> tuple[bytes, ...]:
    """What a program that has the database alone names as read (rule H3)."""
    names: list[Any] = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
    return tuple(table_hash(str(name)) for (name,) in names)


def lease_body(count: int) -> bytes:
    return encode_body([(Segment.LEASE, encode_lease("auto", count))])


def schema_body(sql: str) -> bytes:
    return encode_body([(Segment.SQL, sql.encode())])
