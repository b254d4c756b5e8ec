"""Look-ups at a process: entries from what was last applied, targets in use, their order (rules L1, E5, E6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...proto.service.directory import lookup, selection
from ...proto.service.directory.entries import Entry, Target, place_text, read_entry
from ...proto.service.directory.store import Table
from ..programs import Refused
from .copy import Copy, Facts
from .store import Rows

CACHE_MAX: Final = 20_000
"""Entries kept decoded."""


class Answers:
    """Reads on a connection of its own, so that no transaction has to be waited for."""

    def __init__(self, copy: Copy, station: int) -> None:
        self._copy = copy
        self._station = station
        self._rows: Rows | None = None
        self._known: dict[str, Entry | None] = {}
        self._ready: dict[str, dict[str, Any]] = {}
        """Answers that hold until their name changes, or ``forget_choices``: to look-ups without a key, of names that are no
        alias and not cyclic."""
        self._turns: dict[str, int] = {}
        self.by_code: dict[str, int] = {}
        """Number of look-ups by their answer; "ok": an address."""

    def forget(self, names: list[str] | None = None) -> None:
        """These names have changed; None: the whole file is another one."""
        if names is None:
            self._known.clear()
            self._ready.clear()
            if self._rows is not None:
                self._rows.close()
                self._rows = None
        else:
            for name in names:
                self._known.pop(name, None)
                self._ready.pop(name, None)

    def forget_choices(self) -> None:
        """Stations have come or gone, or something is out of use, or in use again."""
        self._ready.clear()

    def close(self) -> None:
        self.forget()

    @property
    def _reading(self) -> Rows:
        if self._rows is None:
            self._rows = self._copy.file.reader()
        return self._rows

    def _row(self, table: Table, key: str) -> bytes | None:
        return self._copy.rows.settled(table, key, self._reading)

    def entry(self, name: str) -> Entry | None:
        if name in self._known:
            return self._known[name]
        row = self._row(Table.ENTRY, name)
        if len(self._known) >= CACHE_MAX:
            self._known.clear()
        found = self._known[name] = read_entry(row) if row is not None else None
        return found

    def is_out(self, facts: Facts) -> Callable[[str], bool]:
        if not facts.outs:
            return lambda address: False
        return lambda address: self._row(Table.OUT, address) is not None

    def follow(self, name: str) -> lookup.Found:
        """Where a name leads."""
        return lookup.follow(self.entry, name)

    def targets(self, entry: Entry, key: bytes, facts: Facts) -> list[Target]:
        """The targets in use, in the order in which this caller tries them; for ``cyclic`` the next one begins one further."""
        targets = selection.effective(entry, facts.up, self.is_out(facts))
        turn = self._turns.get(entry.name, 0)
        if targets and entry.selection == "cyclic":
            self._turns[entry.name] = turn + 1
        return selection.select(targets, entry.selection, self._station, turn, key)

    def lookup(self, name: str, key: bytes, facts: Facts) -> dict[str, Any]:
        """The answer to a look-up, for the caller to add to. Raises Refused: ``no-name``, ``alias-loop``, ``no-address``."""
        answer = self._ready.get(name) if not key else None
        if answer is None:
            try:
                answer = self._lookup(name, key, facts)
            except Refused as refused:
                self.count(refused.code)
                raise
            if not key and len(answer["path"]) == 1 and answer["selection"] != "cyclic":
                if len(self._ready) >= CACHE_MAX:
                    self._ready.clear()
                self._ready[name] = answer
        self.count("ok")
        return answer.copy()

    def count(self, code: str) -> None:
        """A look-up was answered so."""
        self.by_code[code] = self.by_code.get(code, 0) + 1

    def _lookup(self, name: str, key: bytes, facts: Facts) -> dict[str, Any]:
        found = self.follow(name)
        entry = found.entry
        if entry is None:
            path = " → ".join(found.path)
            text = f"there is no name {found.path[-1]!r}" + (f" ({path})" if len(found.path) > 1 else "")
            raise Refused(found.code, text if found.code == "no-name" else f"too many aliases: {path}")
        chosen = self.targets(entry, key, facts)
        if not chosen:
            raise Refused("no-address", f"no address of {entry.name!r} is up")
        return {
            "name": entry.name,
            "path": list(found.path),
            "addresses": [t.address for t in chosen],
            "targets": [list(t) for t in chosen],
            "selection": entry.selection,
            "zone": entry.zone,
            "owner": entry.owner,
            "ttl": entry.ttl,
            "meta": dict(entry.meta),
            "version": place_text(entry.version),
        }
