"""What goes wrong, in the classes of PEP 249."""

from __future__ import annotations

from typing import Final

__all__ = [
    "DataError",
    "DatabaseError",
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
    "Undecided",
    "Warning",
    "WatchGap",
    "error_of",
]


class Warning(Exception):  # PEP 249 names it so
    """Never raised; PEP 249 wants it."""


class Error(Exception):
    """All of them."""

    sqlstate = ""
    """SQLSTATE, where there is one."""
    retryable = False
    """The transaction has not been committed, and may well be if it is run again."""
    code = ""
    """The word of the database process, where the error comes from it (docs/database.md)."""


class InterfaceError(Error):
    """Something about the driver, not the database."""


class DatabaseError(Error):
    """Something about the database."""


class DataError(DatabaseError):
    """A value that SQLite cannot take."""


class OperationalError(DatabaseError):
    """Not the program's fault: a file that cannot be opened, a transaction that was ended, no snapshot in time."""


class SerializationError(OperationalError):
    """Another transaction came between: nothing is committed. Run it again; ``Connection.run`` does."""

    sqlstate = "40001"
    retryable = True


class NotCommitted(OperationalError):
    """The database process was lost while a commit was under way, and the transaction turns out not to be committed."""

    sqlstate = "40001"
    retryable = True


class NoQuorum(OperationalError):
    """This station is without the others, or too few sites are active: nothing is committed. Reading goes on."""

    sqlstate = "57P03"


class Undecided(OperationalError):
    """It is not known whether the transaction is committed, or will be."""

    sqlstate = "08007"


class PositionLost(OperationalError):
    """The version that was to be seen is not in the history: that history was left behind when the database was opened anew."""


class WatchGap(OperationalError):
    """What followed is not in the history here: too old, or left behind."""


class NotReachable(OperationalError):
    """No database process answers at this station."""

    sqlstate = "08001"


class NotPermitted(OperationalError):
    """This user may not do it."""

    sqlstate = "42501"


class IntegrityError(DatabaseError):
    """What was written breaks a rule of the schema."""

    sqlstate = "23000"


class InternalError(DatabaseError):
    """The database is not what it must be."""


class ProgrammingError(DatabaseError):
    """A call at the wrong time, or something that is not there."""


class NotSupportedError(DatabaseError):
    """Something that cannot be replicated, or a library that is too old."""


_CLASSES: Final[dict[str, type[Error]]] = {
    "stale": SerializationError,
    "schema": SerializationError,
    "busy": SerializationError,
    "conflict": SerializationError,
    "read": SerializationError,
    "constraint": IntegrityError,
    "image": InternalError,
    "no-quorum": NoQuorum,
    "no-copy": NoQuorum,
    "undecided": Undecided,
    "not-permitted": NotPermitted,
    "no-database": ProgrammingError,
    "elsewhere": ProgrammingError,
    "name": ProgrammingError,
    "exists": ProgrammingError,
    "malformed": ProgrammingError,
    "too-large": DataError,
}


def error_of(code: str, text: str) -> Error:
    """The exception for an answer of the process."""
    error = _CLASSES.get(code, OperationalError)(text)
    error.code = code
    return error
