"""Values of rows and parameters as JSON, between a program's driver and the station where its statements run."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from . import errors

ROWS_BYTES: Final = 64 * 1024
"""Of the rows in one reply; one longer row goes alone."""


def to_json(value: Any) -> Any:
    """A value that SQLite can take. Raises TypeError."""
    if value is None or isinstance(value, int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return [b64encode(value).decode("ascii")]
    raise TypeError(f"a value of type {type(value).__name__}: None, int, float, str and bytes can be sent to another station")


def from_json(value: Any) -> Any:
    """The reverse. Raises ValueError."""
    return b64decode(value[0]) if type(value) is list else value


def bindings_to_json(bindings: Any) -> Any:
    """Raises TypeError."""
    if bindings is None:
        return None
    if isinstance(bindings, Mapping):
        return {str(name): to_json(value) for name, value in bindings.items()}
    return [to_json(value) for value in bindings]


def bindings_from_json(found: Any) -> Any:
    """Raises ValueError."""
    if isinstance(found, Mapping):
        return {name: from_json(value) for name, value in found.items()}
    return None if found is None else tuple(from_json(value) for value in found)


def batch(rows: Iterable[Sequence[Any]]) -> tuple[list[str], bool]:
    """The next rows, each as JSON, about ``ROWS_BYTES`` of them; and whether there may be more."""
    found, size = [], 0
    for row in rows:
        found.append(json.dumps([to_json(value) for value in row]))
        size += len(found[-1])
        if size >= ROWS_BYTES:
            return found, True
    return found, False


def error_to_json(error: Exception) -> dict[str, str]:
    """What the program is told."""
    kind = next((c.__name__ for c in type(error).__mro__ if c.__name__ in errors.__all__), type(error).__name__)
    return {"type": kind, "text": str(error), "code": getattr(error, "code", "")}


def error_from_json(found: Mapping[str, Any]) -> Exception:
    """The exception that the program gets."""
    builtin = {"TypeError": TypeError, "ValueError": ValueError, "OverflowError": OverflowError}
    kind = str(found.get("type"))
    if kind in builtin:
        return builtin[kind](str(found.get("text")))
    made: errors.Error = getattr(errors, kind if kind in errors.__all__ and kind != "error_of" else "InternalError")(
        str(found.get("text"))
    )
    made.code = str(found.get("code", ""))
    return made
