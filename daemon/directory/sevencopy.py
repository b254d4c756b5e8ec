"""This station's copy of the directory under ``update = "seven"``: changes come one by one, and are kept before they are
committed (rules U5, U6, U9).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Sequence
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
"""Begins DATA that names processes which have left. Other DATA is a message as in mode ordered, or several."""
INDEX_MAX: Final = 0xFFFF
MANY: Final = b"ZM"
"""Begins DATA that holds several messages: the length of each, four bytes, and the message."""
_LENGTH: Final = struct.Struct(">I")
_KEPT: Final = "kept"


def encode_left(gone: Iterable[Who]) -> bytes:
    return LEFT + canon.encode({"w": sorted(gone)})


def decode_left(data: bytes) -> list[Who]:
    return [(int(station), int(client)) for station, client in canon.load(data[len(LEFT) :])["w"]]


def encode_many(messages: Sequence[bytes]) -> bytes:
    """DATA of an attempt that commits these messages, at least one."""
    if len(messages) == 1:
        return messages[0]
    return MANY + b"".join(part for m in messages for part in (_LENGTH.pack(len(m)), m))


def decode_many(data: bytes) -> list[bytes]:
    """The messages of DATA. What is no list of messages is one, and the state machine refuses it."""
    found, at = [], len(MANY)
    if data[:at] != MANY:
        return [data]
    while at < len(data):
        if at + _LENGTH.size > len(data):
            return [data]
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        found.append(data[at : at + size])
        at += size
    return found if at == len(data) and 0 < len(found) <= INDEX_MAX else [data]


def base_of(place: Place) -> Place:
    """A state's place as the machine of the seven steps counts it: a START has an index of its own, and so has each message of an
    attempt."""
    return (place[0], place[1], 0)


class SevenCopy(Copy):
    """The copy, and what is kept beside it."""

    views = False

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

    def carry_out(self, commit: Commit) -> tuple[Applied, list[Heard]]:
        """Steps 6 and 7, in one transaction. Raises what SQLite raises."""
        with self.lock:
            with self._transaction():
                results = self._change(commit)
                self._forget_kept()
                self.state.save()
                self.rows.commit()
            checked = any(isinstance(result.message, Check) for result in results)
            sums = [Digest(commit.place, self.state.main, self.state.rest)] if checked else []
            inputs = [Heard(result.place, commit.owner, b"") for result in results]
            return Applied(results, self.facts(), False, sums), inputs

    def drop_kept(self) -> None:
        """Drop the stored DATA: the others have continued, with it or without it."""
        with self.lock, self._transaction():
            self._forget_kept()
            self.rows.commit()

    def _change(self, commit: Commit) -> list[Result]:
        if commit.copying:
            return [self.state.on_enter(commit.place, commit.owner)]
        if commit.data.startswith(LEFT):
            return [self.state.on_left(commit.place, decode_left(commit.data))]
        clock, station, _ = commit.place
        results = []
        for index, message in enumerate(decode_many(commit.data)):
            if self.state.stopped:
                break
            results.append(self.state.apply((clock, station, index), commit.owner, message))
        return results

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
