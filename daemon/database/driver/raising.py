"""The exceptions as attributes of a connection, as PEP 249 has them: for programs that use several drivers."""

from __future__ import annotations

from typing import Final

from .. import errors

__all__ = ["Raising"]


class Raising:
    """Of every connection."""

    Warning: Final = errors.Warning
    Error: Final = errors.Error
    InterfaceError: Final = errors.InterfaceError
    DatabaseError: Final = errors.DatabaseError
    DataError: Final = errors.DataError
    OperationalError: Final = errors.OperationalError
    IntegrityError: Final = errors.IntegrityError
    InternalError: Final = errors.InternalError
    ProgrammingError: Final = errors.ProgrammingError
    NotSupportedError: Final = errors.NotSupportedError
