"""The driver for programs (PEP 249): ``from zenjun.db import connect``. docs/database.md says what a program can rely on."""

from __future__ import annotations

import time
from datetime import date as Date
from datetime import datetime as Timestamp
from datetime import time as Time
from typing import Final

import apsw

from ..errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NoQuorum,
    NotCommitted,
    NotPermitted,
    NotReachable,
    NotSupportedError,
    OperationalError,
    PositionLost,
    ProgrammingError,
    SerializationError,
    Undecided,
    Warning,
    WatchGap,
)
from .connecting import connect
from .connection import Connection
from .cursor import Cursor
from .watching import Change

apilevel: Final = "2.0"
threadsafety: Final = 1
paramstyle: Final = "qmark"
sqlite_version: Final = apsw.sqlite_lib_version()
sqlite_version_info: Final = tuple(int(part) for part in sqlite_version.split("."))
"""Of the SQLite library, as in ``sqlite3``."""


class _Type:
    """A type of PEP 249: equal to the declared types of columns that it stands for. SQLite's own types are those of values."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Type):
            return self is other
        return isinstance(other, str) and any(word in other.upper() for word in self._words)

    def __hash__(self) -> int:
        return hash(self._words)


STRING: Final = _Type("CHAR", "CLOB", "TEXT")
BINARY: Final = _Type("BLOB")
NUMBER: Final = _Type("INT", "REAL", "FLOA", "DOUB", "NUM", "DEC")
DATETIME: Final = _Type("DATE", "TIME")
ROWID: Final = _Type("ROWID")
Binary: Final = bytes


def DateFromTicks(ticks: float) -> Date:
    """PEP 249."""
    return Date(*time.localtime(ticks)[:3])


def TimeFromTicks(ticks: float) -> Time:
    """PEP 249."""
    return Time(*time.localtime(ticks)[3:6])


def TimestampFromTicks(ticks: float) -> Timestamp:
    """PEP 249."""
    return Timestamp(*time.localtime(ticks)[:6])


__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Change",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NoQuorum",
    "NotCommitted",
    "NotPermitted",
    "NotReachable",
    "NotSupportedError",
    "OperationalError",
    "PositionLost",
    "ProgrammingError",
    "SerializationError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Undecided",
    "Warning",
    "WatchGap",
    "apilevel",
    "connect",
    "paramstyle",
    "sqlite_version",
    "sqlite_version_info",
    "threadsafety",
]
