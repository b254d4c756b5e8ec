"""What has been committed, change by change, as it comes to this station."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import apsw

from ....proto.service.database.messages import Segment, decode_body
from ..errors import OperationalError, WatchGap

if TYPE_CHECKING:
    from .connection import Connection

BATCH_MAX: Final = 100
"""Versions that are read at once."""
WAIT_S: Final = 10.0
"""For one answer of the process."""
_ENTRIES: Final = "SELECT version, digest, body FROM zenjun_log WHERE version > ? ORDER BY version LIMIT ?"
_COLUMNS: Final = "SELECT name, pk FROM pragma_table_xinfo(?, 'main') WHERE hidden = 0 ORDER BY cid"


class Change(NamedTuple):
    """One row, or a change of the schema."""

    version: int
    table: str
    """Empty for a change of the schema."""
    op: str
    """INSERT, UPDATE, DELETE or SCHEMA."""
    key: dict[str, Any]
    """Values by column; ``rowid`` of a table without a key."""
    old: dict[str, Any] | None
    """Values before; of an UPDATE those that changed. None: INSERT."""
    new: dict[str, Any] | None
    """Values afterwards, likewise; of a change of the schema its ``sql``. None: DELETE."""


def changes(connection: Connection, tables: tuple[str, ...], since: int | None, timeout: float | None) -> Iterator[Change]:
    """See ``Connection.watch``. The connection is used for nothing else."""
    deadline = None if timeout is None else time.monotonic() + timeout
    at, digest = _begin(connection, since)
    while True:
        left = WAIT_S if deadline is None else max(0.0, min(WAIT_S, deadline - time.monotonic()))
        try:
            connection._ask("reach", seconds=left, version=at + 1)
        except OperationalError as error:
            if error.code != "timeout":
                raise
            if deadline is not None and time.monotonic() >= deadline:
                return
            continue
        with connection._reading() as branch:
            found: list[Any] = branch.reader.execute(_ENTRIES, (at - 1 if at else at, BATCH_MAX)).fetchall()
            decoded = [*_checked(found, at, digest, branch.reader, tables)]
            at, digest = found[-1][:2]
        yield from decoded


def _begin(connection: Connection, since: int | None) -> tuple[int, bytes | None]:
    """The version to begin behind, and its digest."""
    with connection._reading() as branch:
        if since is None:
            last: list[Any] = branch.reader.execute("SELECT version, digest FROM zenjun_meta").fetchall()
            return int(last[0][0]), last[0][1]
        found: list[Any] = branch.reader.execute("SELECT digest FROM zenjun_log WHERE version = ?", (since,)).fetchall()
    return since, found[0][0] if found else None


def _checked(
    found: list[Any], at: int, digest: bytes | None, reader: apsw.Connection, tables: tuple[str, ...]
) -> Iterator[Change]:
    """The changes behind a version. Raises WatchGap if they are not all that followed it."""
    if found and found[0][0] == at:
        if digest is not None and found[0][1] != digest:
            raise WatchGap(f"version {at} was left behind when the database was opened anew")
        found = found[1:]
    for number, (version, _, body) in enumerate(found, at + 1):
        if version != number or body is None:
            raise WatchGap(f"version {number} is no longer in the history here")
        for kind, data in decode_body(body):
            if kind is Segment.CHANGESET:
                yield from _rows(version, data, reader, tables)
            elif kind is Segment.SQL and not tables:
                yield Change(version, "", "SCHEMA", {}, None, {"sql": data.decode()})


def _rows(version: int, changeset: bytes, reader: apsw.Connection, tables: tuple[str, ...]) -> Iterator[Change]:
    names: dict[str, list[str]] = {}
    for change in apsw.Changeset.iter(changeset):
        table = change.name
        if tables and table not in tables:
            continue
        if table not in names:
            columns: list[Any] = reader.execute(_COLUMNS, (table,)).fetchall()
            first = [] if any(pk for _, pk in columns) else ["rowid"]
            names[table] = [*first, *(name for name, _ in columns)]
        columns = names[table]
        columns = [*columns, *(f"column {i}" for i in range(len(columns), change.column_count))]  # those of a dropped table
        old, new = (_values(columns, values) for values in (change.old, change.new))
        whole = new if old is None else old
        key = {columns[i]: whole[columns[i]] for i in sorted(change.pk_columns)} if whole is not None else {}
        yield Change(version, table, change.op, key, old, new)


def _values(columns: list[str], values: tuple[Any, ...] | None) -> dict[str, Any] | None:
    if values is None:
        return None
    return {column: value for column, value in zip(columns, values, strict=False) if value is not apsw.no_change}
