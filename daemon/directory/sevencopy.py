"""This station's copy of the directory under ``update = "seven"``: changes come one by one, and are kept before they are
committed (rules U5, U6, U9).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Final

from ...proto.service.directory import canon, copying
from ...proto.service.directory.entries import NOWHERE, Place, Who, parse_place, place_text
from ...proto.service.directory.messages import Check, Digest
from ...proto.service.directory.seventypes import Commit, Keep
from ...proto.service.directory.state import Result
from ...proto.service.directory.store import Table
from ...proto.service.stateapi import Have
from .copy import Applied, Copy, Heard
from .store import File

LEFT: Final = b"ZL"
"""Begins DATA that names processes which have left; any other is a message as in mode ordered."""
_KEPT: Final = "kept"


def encode_left(gone: Iterable[Who]) -> bytes:
    return LEFT + canon.encode({"w": sorted(gone)})


def decode_left(data: bytes) -> list[Who]:
    return [(int(station), int(client)) for station, client in canon.load(data[len(LEFT) :])["w"]]


def base_of(place: Place) -> Place:
    """A state's place as the machine of the seven steps counts it: a START has an index of its own."""
    return (place[0], place[1], 0)


class SevenCopy(Copy):
    """The copy, and what is kept beside it."""

    def __init__(self, file: File) -> None:
        super().__init__(file)
        self.drain: Callable[[], None] = lambda: None
        """Takes the received messages of the managers' group before the state is reported, or becomes the group's."""
        self.on_started: Callable[[Place], None] = lambda place: None
        self.on_wanted: Callable[[], bool] = lambda: False
        """State transfer wants to ask for the state; whether it may (rule U9: with all locks)."""

    # ---- the steps

    def keep(self, keep: Keep) -> None:
        """Step 5. Raises what SQLite raises."""
        row = {
            "o": keep.owner, "b": place_text(keep.base), "p": place_text(keep.place), "c": int(keep.copying),
            "d": keep.data.hex(),
        }  # fmt: skip
        with self.lock, self._transaction():
            self.rows.put(Table.META, _KEPT, canon.encode(row), NOWHERE)
            self.rows.commit()
            if keep.durable:
                self._to_disk()

    def carry_out(self, commit: Commit) -> tuple[Applied, Heard]:
        """Steps 6 and 7, in one transaction. Raises what SQLite raises."""
        with self.lock:
            with self._transaction():
                result = self._change(commit)
                self._forget_kept()
                self.state.save()
                self.rows.commit()
            sums = [Digest(commit.place, self.state.main, self.state.rest)] if isinstance(result.message, Check) else []
            return Applied([result], self.facts(), False, sums), Heard(commit.place, commit.owner, commit.data)

    def drop_kept(self) -> None:
        """Drop the stored DATA: the others have continued, with it or without it."""
        with self.lock, self._transaction():
            self._forget_kept()
            self.rows.commit()

    def _change(self, commit: Commit) -> Result:
        if commit.copying:
            return self.state.on_enter(commit.place, commit.owner)
        if commit.data.startswith(LEFT):
            return self.state.on_left(commit.place, decode_left(commit.data))
        return self.state.apply(commit.place, commit.owner, commit.data)

    def _forget_kept(self) -> None:
        if self.rows.get(Table.META, _KEPT) is not None:
            self.rows.delete(Table.META, _KEPT)

    def _count_kept(self) -> bool:
        """Within a transaction: what is kept counts as committed (rule U6). False: nothing is, or on another state."""
        row = self.rows.get(Table.META, _KEPT)
        if row is None:
            return False
        kept = canon.load(row)
        if parse_place(kept["b"]) != base_of(self.state.place):
            return False
        station, client = kept["o"]
        self._change(Commit(parse_place(kept["p"]), (station, client), bool(kept["c"]), bytes.fromhex(kept["d"])))
        return True

    # ---- state transfer

    def may_ask(self) -> bool:
        """For state transfer (``stateapi.Gated``)."""
        return self.on_wanted()

    def have(self) -> Have | None:
        self.drain()
        with self.lock, contextlib.ExitStack() as undo:
            self.rows.begin()
            undo.callback(self._undo)
            self._count_kept()
            if self.state.place == NOWHERE:
                return None
            return Have(self.state.place, copying.digest(self.state))

    def start(self, place: Place, members: tuple[Who, ...]) -> None:
        self.drain()
        with self.lock, self._transaction():
            self._count_kept()
            self._forget_kept()
            self.state.save()
            self.rows.commit()
            self._to_disk()
        super().start(place, members)
        self.on_started(base_of(self.state.place))
