"""What the tests of the database share: a database to begin with, what is in it, and its pages."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import apsw
from zenjun.daemon.database.applier import Applied, Applier
from zenjun.daemon.database.branch import Branch

ROWS: Final = 5000
SCHEMA: Final = "CREATE TABLE meta(v INTEGER); INSERT INTO meta VALUES(0); CREATE TABLE t(id INTEGER PRIMARY KEY, a, b);"
_FILES: Final = """
import hashlib, os, sys
for suffix in ("", "-wal", "-shm"):
    path = sys.argv[1] + suffix
    print(hashlib.sha256(open(path, "rb").read()).hexdigest(), suffix == "-shm" or os.stat(path).st_mtime_ns)
"""


def create(path: Path, schema: str = SCHEMA, rows: int = ROWS) -> Applier:
    """A database with the table t of that many rows, all in the file."""
    applier = Applier.open(path)
    with applier.connection:
        applier.connection.execute(schema)
        if schema is SCHEMA:
            applier.connection.executemany("INSERT INTO t VALUES(?, 0, ?)", ((i, "x" * 100) for i in range(rows)))
    assert applier.restart_wal()
    return applier


def pages(connection: apsw.Connection) -> str:
    """A digest of all pages as a connection sees them."""
    return hashlib.blake2b(connection.serialize("main") or b"", digest_size=8).hexdigest()


def branch_pages(branch: Branch) -> str:
    """The same of what the writer of a branch sees that has changed nothing, or has taken it back."""
    branch.execute("SELECT 1")
    return pages(branch.writer)


def files(path: Path) -> str:
    """Digests and times of the three files. Another process reads them: closing a descriptor here would drop SQLite's locks."""
    return subprocess.run([sys.executable, "-c", _FILES, path], check=True, capture_output=True, text=True, timeout=240).stdout


def commit(applier: Applier, changeset: bytes) -> Applied:
    """Apply in a transaction of its own, which is committed if it applies."""
    applier.connection.execute("BEGIN IMMEDIATE")
    applied = applier.apply(changeset)
    applier.connection.execute("COMMIT" if applied is Applied.DONE else "ROLLBACK")
    return applied


def content(connection: apsw.Connection, without: tuple[str, ...] = ("sqlite_",)) -> dict[str, list[str]]:
    """All rows of all ordinary tables, with their rowids where a changeset keeps them."""
    query = "SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND type IN ('table', 'shadow') ORDER BY name"
    found: dict[str, list[str]] = {}
    tables: list[tuple[Any, ...]] = connection.execute(query).fetchall()
    for name, without_rowid in tables:
        if name.startswith(without):
            continue
        key = connection.execute("SELECT upper(type) FROM pragma_table_info(?, 'main') WHERE pk > 0", (name,)).fetchall()
        keeps = not without_rowid and (not key or key == [("INTEGER",)])
        rows: list[tuple[Any, ...]] = connection.execute(f'SELECT {"_rowid_, " * keeps}* FROM main."{name}"').fetchall()
        found[name] = sorted(map(repr, rows))
    return found
