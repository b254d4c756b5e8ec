"""Cursors, as PEP 249 has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import apsw

from ..branch import Bindings
from ..errors import ProgrammingError
from .mapping import mapped

if TYPE_CHECKING:
    from .connection import Connection

Row: TypeAlias = Any
"""A tuple, or what the connection's ``row_factory`` makes of it."""
Described: TypeAlias = tuple[tuple[Any, ...], ...] | None
"""Of each column its name and declared type, perhaps more."""
NO_ROWS: Final[Iterator[tuple[Any, ...]]] = iter(())
ROWS_READ: Final = type(iter([()]))
"""An iterator of rows that have all been read."""


class Cursor:
    """Runs statements, and has their rows. Within a transaction rows come as they are read; outside of one they are all read at
    once, before ``execute`` returns."""

    arraysize = 1

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._described: Described = None
        self.rowcount = -1
        """Rows changed by the last statement, or by all of an ``executemany``; -1: it was no INSERT, UPDATE or DELETE."""
        self.lastrowid: int | None = None
        """rowid of the last row that was inserted."""
        self.row_factory = connection.row_factory
        self._rows: Iterator[tuple[Any, ...]] = NO_ROWS
        self._closed = False

    @property
    def description(self) -> tuple[tuple[Any, ...], ...] | None:
        """Name and declared type of each column, and five times None; None: no rows."""
        return tuple((*column, None, None, None, None, None) for column in self._described) if self._described else None

    @description.setter
    def description(self, columns: Described) -> None:
        self._described = columns and tuple((name, kind) for name, kind, *_ in columns)

    def execute(self, sql: str, parameters: Bindings = ()) -> Self:
        """Run one statement. Parameters are ``?`` with a sequence, or ``:name`` with a mapping."""
        self._begin()
        self.connection._execute(self, sql, parameters)
        return self

    def executemany(self, sql: str, parameters: Iterable[Bindings]) -> Self:
        """Run one statement that gives no rows, with each of these parameters, in one transaction."""
        self._begin()
        self.connection._execute_many(self, sql, parameters)
        return self

    def executescript(self, script: str) -> Self:
        """Run several statements one after another. As everything else they are in the transaction that is open; outside of one
        each is committed by itself."""
        for statement in self.connection.split(script):
            self.execute(statement)
        return self

    def fetchone(self) -> Row | None:
        """The next row; None: there are no more."""
        return next(self, None)

    def fetchmany(self, size: int | None = None) -> list[Row]:
        """The next rows, as many at most; ``arraysize`` if no number is given."""
        found: list[Row] = []
        for _ in range(self.arraysize if size is None else size):
            if (row := next(self, None)) is None:
                break
            found.append(row)
        return found

    def fetchall(self) -> list[Row]:
        """All rows that are left."""
        if type(self._rows) is ROWS_READ and self.row_factory is None:
            self._check()
            return list(self._rows)
        return list(self)

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        self._check()
        with self.connection._mutex:
            try:
                row = next(self._rows)
            except apsw.Error as error:
                raise self.connection._ended_or(mapped(error)) from error
        return row if self.row_factory is None else self.row_factory(self, row)

    def close(self) -> None:
        """Not to be used any more. Again: nothing happens."""
        self._closed = True
        self._rows = NO_ROWS

    def setinputsizes(self, sizes: object) -> None:
        """Does nothing, as PEP 249 allows."""

    def setoutputsize(self, size: object, column: object = None) -> None:
        """Does nothing, as PEP 249 allows."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._closed:
            raise ProgrammingError("the cursor is closed")
        self.connection._check()

    def _begin(self) -> None:
        self._check()
        self._described, self.rowcount, self._rows = None, -1, NO_ROWS
