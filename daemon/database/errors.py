"""What goes wrong, in the classes of PEP 249."""

from __future__ import annotations

__all__ = [
    "DatabaseError",
    "Error",
    "IntegrityError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
]


class Error(Exception):
    """All of them."""


class DatabaseError(Error):
    """Something about the database."""


class OperationalError(DatabaseError):
    """Not the program's fault: a file that cannot be opened, a transaction that was ended, no snapshot in time."""


class IntegrityError(DatabaseError):
    """What was written breaks a rule of the schema."""


class InternalError(DatabaseError):
    """The database is not what it must be."""


class ProgrammingError(DatabaseError):
    """A call at the wrong time."""


class NotSupportedError(DatabaseError):
    """Something that cannot be replicated, or a library that is too old."""
