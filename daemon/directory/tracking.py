"""Answers that programs keep: each is told when one of them is right no longer (rule L5; the cache of ``zenjun.names``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

KEPT_MAX: Final = 10_000
"""Names whose answers one program may keep."""

Reader = TypeVar("Reader")


class Tracking(Generic[Reader]):
    """Who keeps an answer to which name, and what it hangs on: the name, and those that its aliases lead over.

    An answer is told of once, then it is forgotten here as there. So what a program can be sent is bounded by what it has asked,
    and it is sent at once, before any answer that is behind the change.
    """

    def __init__(self) -> None:
        self._paths: dict[Reader, dict[str, tuple[str, ...]]] = {}
        """By the name that was asked for."""
        self._keepers: dict[str, dict[Reader, set[str]]] = {}
        """By each name on the paths: the names asked for."""

    def __len__(self) -> int:
        return sum(map(len, self._paths.values()))

    def keep(self, reader: Reader, name: str, path: tuple[str, ...]) -> bool:
        """A program is given an answer to ``name`` that holds until one of ``path`` changes. False: it keeps too many."""
        kept = self._paths.setdefault(reader, {})
        before = kept.get(name)
        if before == path:
            return True
        if before is not None:
            self._drop(reader, name)
        elif len(kept) >= KEPT_MAX:
            return False
        kept[name] = path
        for each in path:
            self._keepers.setdefault(each, {}).setdefault(reader, set()).add(name)
        return True

    def changed(self, names: Iterable[str]) -> dict[Reader, list[str]]:
        """These names have changed: who has to forget which answers."""
        told: dict[Reader, set[str]] = {}
        for name in names:
            for reader, asked in self._keepers.get(name, {}).items():
                told.setdefault(reader, set()).update(asked)
        for reader, asked in told.items():
            for name in asked:
                self._drop(reader, name)
        return {reader: sorted(asked) for reader, asked in told.items()}

    def clear(self) -> list[Reader]:
        """Any answer may be another one now: who keeps some."""
        readers = [reader for reader, kept in self._paths.items() if kept]
        self._paths.clear()
        self._keepers.clear()
        return readers

    def remove(self, reader: Reader) -> None:
        """A program is gone."""
        for name in list(self._paths.get(reader, ())):
            self._drop(reader, name)
        self._paths.pop(reader, None)

    def _drop(self, reader: Reader, name: str) -> None:
        for each in self._paths[reader].pop(name):
            readers = self._keepers[each]
            readers[reader].discard(name)
            if not readers[reader]:
                del readers[reader]
            if not readers:
                del self._keepers[each]
