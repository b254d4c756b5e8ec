"""Answers that programs keep: a program gets a report when one of them is no longer right (rule L5; the cache of
``zenjun.names``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

KEPT_MAX: Final = 10_000
"""Names whose answers one program may keep."""

Reader = TypeVar("Reader")


class Tracking(Generic[Reader]):
    """The programs that keep an answer to a name, and the names that it depends on: the name, and those on the way of its
    aliases.

    A report is sent once, then both sides forget the answer. So the number of reports is bounded by the program's requests. A
    report is sent at once, before any answer from after the change.
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
        """These names have changed: which programs have to forget which answers."""
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
