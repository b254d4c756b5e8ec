"""SQLite's errors, which apsw raises, as those of PEP 249."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import apsw

from ..errors import (
    DataError,
    Error,
    IntegrityError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)
from .ageing import TooOld


def mapped(error: apsw.Error) -> Error:
    """An exception of apsw as one of the driver's."""
    if isinstance(error, apsw.InterruptError):
        return TooOld()
    for kind, result in _MAPPED:
        if isinstance(error, kind):
            return result(str(error))
    return OperationalError(str(error))


_MAPPED: Final[tuple[tuple[type[apsw.Error] | tuple[type[apsw.Error], ...], type[Error]], ...]] = (
    (apsw.ConstraintError, IntegrityError),
    ((apsw.TooBigError, apsw.RangeError), DataError),
    (apsw.MismatchError, IntegrityError),
    ((apsw.BindingsError, apsw.MisuseError, apsw.IncompleteExecutionError), ProgrammingError),
    (apsw.CursorClosedError, ProgrammingError),
    ((apsw.CorruptError, apsw.NotADBError), InternalError),
    ((apsw.AuthError, apsw.ReadOnlyError), NotSupportedError),
)


def aggregate(cls: Callable[[], Any] | None) -> Callable[[], tuple[Any, Any, Any]] | None:
    """A class of aggregates as ``sqlite3`` has it, for apsw."""
    if cls is None:
        return None
    return lambda: (cls(), lambda state, *values: state.step(*values), lambda state: state.finalize())
