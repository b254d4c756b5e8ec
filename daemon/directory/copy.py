"""This station's copy of the directory: the state machine on its file, as state transfer wants it and as messages change it.

All methods are called by one thread at a time; ``lock`` is for those who share it between the loop and the worker.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from ...proto.service.directory import copying
from ...proto.service.directory.entries import DEFAULT_ZONE, NOWHERE, Entry, Place, Who
from ...proto.service.directory.messages import ONDISK, Check, Digest, Id, Message, Update
from ...proto.service.directory.state import Outcome, Result, State
from ...proto.service.directory.store import Table
from ...proto.service.directory.tally import Tally
from ...proto.service.stateapi import Have, Offer, Restore, Snapshot
from ..timing import Timing
from .store import MARK, File, Rows, Writing

COMMON_LAST: Final = "~"
"""Behind every name."""


class Heard(NamedTuple):
    """A message of the group; ``message``: what it decodes to, if that is known."""

    place: Place
    sender: Who
    data: bytes
    message: Message | None = None


class Seen(NamedTuple):
    """A view of the group."""

    place: Place
    members: tuple[Who, ...]
    joined: tuple[Who, ...]


Input = Heard | Seen


class Applied(NamedTuple):
    """What a batch has done. durable: it has to be on disk, and is not yet. sums: at the places of CHECKs."""

    results: list[Result]
    facts: Facts
    durable: bool
    sums: list[Digest]


class Facts(NamedTuple):
    """What is read of the state outside the worker: published after each commit.

    active: active holders. groups: groups and users that zones name. next_due: seconds since 1970, 0: none.
    """

    place: Place
    up: frozenset[int]
    active: tuple[Who, ...]
    outs: bool
    roles: frozenset[str]
    names: int
    leases: int
    main: int
    rest: int
    next_due: int
    stopped: int


class Copy:
    """The state, its file, and the lock for both."""

    views = True
    """The members are those of the group's views."""

    def __init__(self, file: File, home: str = DEFAULT_ZONE) -> None:
        """home: the zone that its names are in unless another one is named."""
        self.file = file
        self.home = home
        self.lock = threading.Lock()
        self.rows: Writing = file.open()
        self.state = State(self.rows, home=self.home)
        self._saved = self.state.place
        """Place in the file."""
        self.commits = {"no": Timing(), "yes": Timing()}
        """Ends of transactions, and waits for the disk."""
        self.on_replaced: Callable[[], None] = lambda: None
        """Called when the whole state has become another one, with the lock held."""

    def facts(self) -> Facts:
        s = self.state
        roles = {role for zone in s.zones.values() for role in (*zone.admins, *zone.writers)}
        return Facts(
            s.place,
            frozenset(s.stations_up()),
            tuple(s.active()),
            s.outs > 0,
            frozenset(roles),
            s.counts.get("", 0),
            s.leases,
            s.main,
            s.rest,
            s.next_due(),
            s.stopped,
        )

    # ---- the worker

    def apply(self, inputs: Sequence[Input], later: bool = False) -> Applied:
        """All inputs, or none: raises what SQLite raises, with nothing changed. later: SQLite gets the rows by ``write``; else in
        a transaction of their own.

        Inputs that change no row move the place only, and that is written with the next row: to see them again does nothing."""
        with self.lock:
            try:
                sums: list[Digest] = []
                results = [self._apply(i, sums) for i in inputs if not self.state.stopped]
                durable = any(isinstance(r.message, Update) and r.message.flags & ONDISK for r in results)
                if self.rows.dirty:
                    if later:
                        self.state.save()
                        self.rows.settle()
                        self._saved = self.state.place
                    else:
                        with self.commits["no"].took():
                            self._save()
            except BaseException:
                self._undo()
                raise
            return Applied(results, self.facts(), durable, sums)

    def write(self, rows: Writing, durable: bool) -> None:
        """In another thread: commit what ``rows.take`` has taken. durable: return when it is on disk, with all before it. Raises
        what SQLite raises, OSError."""
        with self.commits["no"].took():
            rows.write_out()
        if durable:
            with self.commits["yes"].took():
                self.file.sync()

    def rewrite(self) -> None:
        """Write all rows again, to a new file: after a sync that failed. Raises what a broken disk raises."""
        with self.lock:
            self._rewrite()

    def _rewrite(self) -> None:
        self.rows = self.file.rewritten(self.rows)
        self.state = State(self.rows, home=self.home)
        self._saved = self.state.place

    def _to_disk(self) -> None:
        """In the loop, with the lock held: what is committed is on disk then. Raises what a broken disk raises."""
        if self.file.failed:
            self._rewrite()
            self.on_replaced()
        else:
            self.file.sync()

    def _apply(self, i: Input, sums: list[Digest]) -> Result:
        if isinstance(i, Heard):
            result = self.state.apply(i.place, i.sender, i.data, i.message)
            if isinstance(result.message, Check):
                sums.append(Digest(i.place, self.state.main, self.state.rest))
            return result
        return self.state.on_view(i.place, i.members, i.joined)

    def _save(self) -> None:
        """Commit, with the place and all before it."""
        self.state.save()
        self.rows.commit()
        self._saved = self.state.place

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """One transaction, which the block commits. If the block raises, rows and state are as before. The caller holds the
        lock."""
        self.rows.begin()
        try:
            yield
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        try:
            self.rows.roll_back()
        finally:
            self.state = State(self.rows, home=self.home)
            self._saved = self.state.place

    def outcome(self, update: Id) -> Outcome | None:
        """What has become of an update."""
        with self.lock:
            return self.state.outcome(update)

    def entries(self, first: str = "", last: str = COMMON_LAST) -> tuple[Place, list[Entry]]:
        """The entries from ``first`` up to ``last``, and the place at which they are so."""
        with self.lock:
            found = [e for name, _ in self.rows.scan(Table.ENTRY, first, last) if (e := self.state.entry(name)) is not None]
            return self.state.place, found

    def changes(self, since: Place, first: str, last: str) -> tuple[Place, list[Entry], list[str] | None]:
        """The entries from ``first`` up to ``last`` that have changed after a place, the names that have gone after it (None: no
        longer known, and the entries are all there are), and the place at which that is so."""
        place, entries = self.entries(first, last)
        with self.lock:
            if not copying.delta_possible(self.state, since):
                return place, entries, None
            removed = copying.removed_since(self.state, since)
        gone = [name for table, name in removed if table == Table.ENTRY and first <= name < last]
        return place, [e for e in entries if e.version > since], gone

    # ---- state transfer, in the loop

    def have(self) -> Have | None:
        with self.lock:
            if self.state.place == NOWHERE:
                return None
            return Have(self.state.place, copying.digest(self.state))

    def start(self, place: Place, members: tuple[Who, ...]) -> None:
        """A START has made this state the group's: all leases have ended (rule C1)."""
        with self.lock:
            with self._transaction():
                self.state.on_start(place, members, self.views)
                self._save()
                self._to_disk()
            self.on_replaced()

    def snapshot(self, place: Place, have: Have | None) -> Snapshot:
        with self.lock:
            if self._saved != self.state.place:
                self._save()
            self.rows.flush()
            frozen = self.file.frozen()
        state = State(frozen, home=self.home)
        if have is not None and copying.delta_possible(state, have.place):
            chunks = copying.delta_chunks(state, have.place, frozen.changed_since(have.place))
            return Snapshot(chunks, delta=True, digest=copying.digest(state), close=frozen.close)
        bounds = frozen.chunk_bounds()
        starts = {copying.chunk_key(start, 0).partition(b".")[0]: at for at, start in enumerate(bounds[:-1])}

        def read(key: bytes) -> bytes:
            if key == copying.HEAD:
                return copying.encode_head(state)
            start, _, part = key.partition(b".")
            for number, data in enumerate(frozen.chunks(bounds, starts[start])):
                if number == int(part, 16):
                    return data
            raise KeyError(key)

        def every() -> Iterator[tuple[bytes, bytes]]:
            yield copying.HEAD, read(copying.HEAD)
            for at, start in enumerate(bounds[:-1]):
                for part, data in enumerate(frozen.chunks(bounds, at)):
                    yield copying.chunk_key(start, part), data

        return Snapshot(every(), read=read, digest=copying.digest(state), count=len(bounds), close=frozen.close)

    def restore(self, offer: Offer) -> Restore:
        return DeltaBuilding(self) if offer.delta else FullBuilding(self)


def bounds(subject: str) -> tuple[str, str]:
    """The names that a watch or a list is about, as a range of keys: a name, or the beginning of names with a dot; "": all."""
    if not subject:
        return "", "~"
    return (subject, subject + "~") if subject.endswith(".") else (subject, subject + "\0")


class FullBuilding:
    """A whole state in a file of its own.

    Each row has the mark of the chunk that brought it last, where others have a place. So a chunk that is dropped takes no row
    with it that a later one has brought, too.
    """

    def __init__(self, copy: Copy) -> None:
        self._copy = copy
        self._rows = copy.file.fresh()
        self._rows.begin()
        self._parts: dict[bytes, tuple[str, Tally]] = {}
        self._dropped: list[str] = []
        self._marks = 0
        self._head: Place = NOWHERE

    def kept(self) -> Iterable[tuple[bytes, bytes]]:
        return ()

    def chunk(self, key: bytes, data: bytes) -> None:
        self.drop(key)
        if key == copying.HEAD:
            self._head = copying.decode_head(data)
            return
        rows = copying.decode_rows(data)
        tally = Tally()
        tally.take(rows)
        self._marks += 1
        mark = f"{MARK}{self._marks:x}"
        self._parts[key] = (mark, tally)
        self._rows.load(rows, mark)

    def drop(self, key: bytes) -> None:
        if key in self._parts:
            self._dropped.append(self._parts.pop(key)[0])

    def end(self) -> bytes:
        self._rows.complete(self._dropped)
        whole = Tally()
        for _, tally in self._parts.values():
            whole.add(tally)
        state = State.rebuild(self._rows, self._head, home=self._copy.home, tally=whole)
        state.save()
        return copying.digest(state)

    def commit(self, offer: Offer) -> None:
        with self._copy.lock:
            self._rows.commit()
            self._copy.rows = self._copy.file.replace(self._copy.rows, self._rows)
            self._copy.state = State(self._copy.rows, home=self._copy.home)
            self._copy._saved = self._copy.state.place
            self._copy.on_replaced()

    def abort(self) -> None:
        self._rows.close()


class DeltaBuilding:
    """Changes to the own state, in a transaction that ends with them."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy
        self._chunks: dict[bytes, bytes] = {}

    def kept(self) -> Iterable[tuple[bytes, bytes]]:
        return ()

    def chunk(self, key: bytes, data: bytes) -> None:
        self._chunks[key] = data

    def drop(self, key: bytes) -> None:
        del self._chunks[key]

    def end(self) -> bytes:
        copy, rows = self._copy, self._chunks
        with copy.lock, self._whole():
            copy.rows.begin()
            removed = copying.decode_removed(rows[copying.REMOVED])
            changed = [r for key in rows if key not in (copying.HEAD, copying.REMOVED) for r in copying.decode_rows(rows[key])]
            copy.state.merge(copying.decode_head(rows[copying.HEAD]), removed, changed)
            return copying.digest(copy.state)

    def commit(self, offer: Offer) -> None:
        with self._copy.lock:
            with self._whole():
                self._copy._save()
            self._copy.on_replaced()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """If the block raises, the old state stays: nobody calls ``abort`` then."""
        try:
            yield
        except BaseException:
            self._copy._undo()
            raise

    def abort(self) -> None:
        with self._copy.lock:
            self._copy._undo()


DATABASE_ERRORS: Final = (sqlite3.Error, OSError)
"""What a full or broken disk raises."""
__all__ = ["Copy", "Facts", "File", "Heard", "Input", "Rows", "Seen"]
