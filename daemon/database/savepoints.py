"""Savepoints of a transaction on a branch, with what had been recorded when each began.

A changeset ends where the schema changes, and cannot be cut later. So in a transaction that has changed the schema it ends where
a savepoint begins, too, and a ROLLBACK TO drops what came after that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_STATEMENT: Final = re.compile(
    r"""\s*(?P<word>SAVEPOINT|RELEASE|ROLLBACK)\b(?:\s+TRANSACTION)?(?:\s+TO)?(?:\s+SAVEPOINT)?\s+
    (?:"(?P<double>(?:[^"]|"")+)"|'(?P<single>[^']+)'|`(?P<back>[^`]+)`|\[(?P<square>[^]]+)]|(?P<plain>[\w$]+))\s*;?\s*$""",
    re.IGNORECASE | re.VERBOSE,
)


@dataclass(slots=True)
class Savepoint:
    """One that is open."""

    name: str
    segments: int
    """Parts of the body that were complete when it began."""
    is_clean: bool
    """Nothing else had been recorded then."""


class Savepoints:
    """Those of one transaction, the last one at the end."""

    def __init__(self) -> None:
        self._open: list[Savepoint] = []

    def begin(self, name: str, segments: int, *, is_clean: bool) -> None:
        self._open.append(Savepoint(name.lower(), segments, is_clean))

    def find(self, name: str) -> Savepoint | None:
        """The last one with this name."""
        return next((each for each in reversed(self._open) if each.name == name.lower()), None)

    def end(self, savepoint: Savepoint, *, is_released: bool) -> None:
        """Those that began later have ended, and it has if it is released."""
        at = next(i for i, each in enumerate(self._open) if each is savepoint)
        del self._open[at + (not is_released) :]

    def clear(self) -> None:
        self._open.clear()


def parsed(sql: str) -> tuple[str, str] | None:
    """SAVEPOINT, RELEASE or ROLLBACK, and the name; None: the text is more than that, and SQLite may understand it."""
    if (found := _STATEMENT.match(sql)) is None:
        return None
    name = next(text for key, text in found.groupdict().items() if key != "word" and text is not None)
    return found["word"].upper(), name.replace('""', '"') if found["double"] else name
