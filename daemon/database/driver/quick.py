"""Statements of their own that only read: each on a snapshot of the file that it takes and leaves, without a transaction."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import apsw

from ..branch import Bindings
from .freshness import check_fresh, has_seen
from .mapping import mapped
from .statements import words_of

if TYPE_CHECKING:
    from .connection import Connection
    from .cursor import Cursor

KNOWN_MAX: Final = 1000
"""Texts of a connection that are known to be one SELECT."""


def read_quickly(connection: Connection, cursor: Cursor, sql: str, bindings: Bindings) -> bool:
    """A SELECT that has been run before, without looking again at what it is: one statement that writes nothing, whatever the
    schema is by now. False: nothing has been done, and it has to be looked at."""
    branch = connection._branch
    if (
        branch is None
        or branch.begun is not None
        or not connection._autocommit
        or connection._has_expired
        or connection._is_gated
        or branch.has_temporary
        or connection.read == "linearizable"
        or connection._found < connection._seen
    ):
        return False
    with connection._mutex:
        try:
            if os.readlink(connection._link) != connection._pointed:  # noqa: PTH115 (a read of 10 us does not make Path objects)
                return False
        except OSError:
            return False
        if connection.max_stale is not None:
            check_fresh(connection)
        try:
            rows, cursor._described = branch.read_alone(sql, bindings)
        except apsw.SQLError:
            return False
        except apsw.Error as error:
            raise connection._ended_or(mapped(error)) from error
        cursor._rows = iter(rows)
        connection._has_read = True
    return True


def read_alone(connection: Connection, cursor: Cursor, sql: str, bindings: Bindings) -> bool:
    """A statement that only reads, if it is one. False: it has to be a transaction."""
    branch, before = connection._branch, connection._pointed
    if (
        branch is None
        or connection._is_gated
        or connection.read == "linearizable"
        or connection._open() is not branch
        or connection._pointed != before
    ):
        return False
    check_fresh(connection)
    try:
        if not has_seen(connection, branch) or not connection._read(branch, cursor, sql, bindings):
            return False
        cursor._rows = iter(list(cursor._rows))
    except apsw.Error as error:
        raise mapped(error) from error
    connection._has_read = True
    if words_of(sql, 1) == ("SELECT",):
        if len(connection._known) >= KNOWN_MAX:
            connection._known.clear()
        connection._known.add(sql)
    return True
