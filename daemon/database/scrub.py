"""Whether a copy is what it should be: what SQLite says of the file, the history's digests, and a sum of all rows for comparison
with the other sites (docs/database.md, W3).

A changed byte in a row's content is no error to SQLite; only the other sites' rows show it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final
from urllib.parse import quote

import apsw

from ...proto.service.database.messages import DIGEST_BYTES, Txid, next_digest
from . import vfs
from .copy import FileRows
from .guarding import is_recorded, quoted

ARGUMENTS_MAX: Final = 100
"""Values in one call of a function of SQLite, at most."""
_TABLES: Final = """
    SELECT name FROM pragma_table_list WHERE schema = 'main' AND type IN ('table', 'shadow') ORDER BY name"""
_COLUMNS: Final = "SELECT name, pk FROM pragma_table_xinfo(?, 'main') WHERE hidden IN (0, 3) ORDER BY cid"
_SCHEMA: Final = "SELECT type, name, tbl_name, sql FROM main.sqlite_schema WHERE sql IS NOT NULL ORDER BY type, name"


class Pinned:
    """The copy at one place. Made in the thread of the applier, used in another one, while commits go on."""

    def __init__(self, rows: FileRows) -> None:
        """Raises apsw.Error."""
        uri = f"file:{quote(str(rows.path))}?mode=ro"
        self.position = rows.position()
        self._connection = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        try:
            vfs.add_sum(self._connection)
            self._connection.execute("BEGIN; SELECT 1 FROM zenjun_meta")
        except BaseException:
            self._connection.close(True)
            raise

    def damage(self) -> str:
        """What is wrong with the copy by itself; empty: nothing. It reads the whole file."""
        try:
            found: list[Any] = self._connection.execute("PRAGMA integrity_check(1)").fetchall()
            if found != [("ok",)]:
                return str(found[0][0])
            return self._wrong_digest()
        except (apsw.CorruptError, apsw.NotADBError) as error:
            return str(error)

    def _wrong_digest(self) -> str:
        """The log is the history that the digests are of."""
        last: bytes | None = None
        for version, digest, txid, body in self._connection.execute(
            "SELECT version, digest, txid, body FROM zenjun_log ORDER BY version"
        ):
            if last is not None and body is not None and next_digest(last, version, Txid.decode(txid), body) != digest:
                return f"the log's entry of version {version} has another digest"
            last = digest
        return ""

    def sums(self) -> bytes:
        """Of the schema and the rows of the program's tables; equal at all sites that have the same. Raises apsw.Error."""
        whole = blake2b(digest_size=DIGEST_BYTES)
        for row in self._connection.execute(_SCHEMA):
            if is_recorded(str(row[1])):
                whole.update(ascii(row).encode())
        tables: list[Any] = self._connection.execute(_TABLES).fetchall()
        for (table,) in tables:
            if is_recorded(table):
                whole.update(table.encode() + b"\0")
                self._add(whole, table)
        return whole.digest()

    def _add(self, whole: blake2b, table: str) -> None:
        columns: list[Any] = self._connection.execute(_COLUMNS, (table,)).fetchall()
        names = [quoted(name) for name, _ in columns]
        if not any(pk for _, pk in columns):
            names.insert(0, "_rowid_")  # its key
        for at in range(0, len(names), ARGUMENTS_MAX):
            values = ", ".join(names[at : at + ARGUMENTS_MAX])
            found: list[Any] = self._connection.execute(f"SELECT zenjun_sum({values}) FROM main.{quoted(table)}").fetchall()
            whole.update(found[0][0])

    def close(self) -> None:
        self._connection.close(True)
