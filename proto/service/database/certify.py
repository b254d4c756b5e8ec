"""Certification: the verdict on a transaction at its place. Nothing but the order and the state at the last version counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from ..base import Source
from .agreement import Agreement
from .changeset import Numbered, row_hash, summary
from .messages import (
    SEGMENT_HEAD_BYTES,
    Lock,
    Position,
    Segment,
    Write,
    decode_body,
    encode_body,
    is_numbered,
    is_one_changeset,
    next_digest,
)
from .parts import Incoming
from .rows import Entry, Rows, Verdict
from .scrub import Scrubbing
from .window import Window

WAITING_MAX: Final = 10_000
WAITING_BYTES_MAX: Final = 64 << 20
NUMBER_MAX: Final = (1 << 63) - 1


class Written:
    """What a body writes: rows and tables by hash."""

    def __init__(self, body: bytes) -> None:
        """Raises ValueError for what is no body."""
        self.rows: set[bytes] = set()
        self.tables: set[bytes] = set()
        self.changes_schema = False
        self.are_new = False
        """Its rows have got their numbers at this place."""
        if is_one_changeset(body):  # most are
            self._add(body[SEGMENT_HEAD_BYTES:])
            return
        segments = decode_body(body)
        if any(kind is Segment.NUMBERED for kind, _ in segments):
            raise ValueError("numbered rows are a transaction of their own")
        self.changes_schema = any(kind is Segment.SQL for kind, _ in segments)
        if [i for i, (kind, _) in enumerate(segments) if kind is Segment.UNCHECKED] not in ([], [0] * self.changes_schema):
            raise ValueError("only a change of the schema does without foreign keys")
        for kind, data in segments:
            if kind is Segment.CHANGESET:
                self._add(data)

    def _add(self, changeset: bytes) -> None:
        about = summary(changeset)
        self.rows |= about.rows
        self.tables.update([table_hash(table.name) for table in about.tables])


@lru_cache(1000)
def table_hash(table: str) -> bytes:
    """What a table is called in certification."""
    return row_hash(table, ())


@dataclass(slots=True)
class Shared:
    """What all who follow the history have alike, besides the rows."""

    epoch: int
    active: set[Source]
    window: Window
    schema: int
    """The version that changed the schema last. What was made before it does not fit."""
    release: int
    """Of SQLite, at all that are active in this epoch."""
    locks: list[tuple[Source, Lock]] = field(default_factory=list)
    """The holder of the database's lock, and the services that wait for it."""
    waiting: list[tuple[Source, Write]] = field(default_factory=list)
    """Transactions of others meanwhile."""
    synced: dict[Source, int] = field(default_factory=dict)
    check: dict[Source, Position | None] = field(default_factory=dict)
    """A comparison of positions that is under way."""
    scrub: Scrubbing = field(default_factory=Scrubbing)
    parts: Incoming = field(default_factory=Incoming)
    """Of transactions that are not whole yet; not given to others."""
    agreement: Agreement = field(default_factory=Agreement)
    """Mode unanimous: how far the holder of the lock is."""

    def copy(self) -> Shared:
        """Another one, for a snapshot."""
        return Shared(
            self.epoch,
            set(self.active),
            self.window.copy(),
            self.schema,
            self.release,
            list(self.locks),
            list(self.waiting),
            dict(self.synced),
            dict(self.check),
            self.scrub.copy(),
            agreement=self.agreement.copy(),
        )


class Certifier:
    """Decides transactions at one site, on its rows. Each rule is a method that a broken variant replaces."""

    waiting_max = WAITING_MAX
    waiting_bytes_max = WAITING_BYTES_MAX

    def decide(self, shared: Shared, rows: Rows, write: Write, enough: bool) -> tuple[Verdict, int]:
        """The verdict, and the version that the transaction makes. enough: the active sites suffice."""
        if (known := rows.version_of(write.txid)) is not None:
            return Verdict.DONE, known
        version = rows.position().version
        if (early := self.early(shared, version, write, enough)) is not None:
            return early, version
        try:
            body, are_new = self.numbered(rows, write.body) if is_numbered(write.body) else (write.body, False)
            written = Written(body)
        except ValueError:
            return Verdict.IMAGE, version
        written.are_new = are_new
        if written.changes_schema and not (shared.locks and shared.locks[0][1].txid == write.txid):
            return Verdict.SCHEMA, version
        if (late := self.conflicts(shared.window, write, written)) is not None:
            return late, version
        return self.apply(shared, rows, write if body is write.body else write._replace(body=body), written)

    def early(self, shared: Shared, version: int, write: Write, enough: bool) -> Verdict | None:
        """Against the epoch and the schema, before its rows are looked at."""
        if write.epoch != shared.epoch or not shared.window.horizon <= write.snapshot <= version:
            return Verdict.STALE
        if write.snapshot < shared.schema:
            return Verdict.SCHEMA
        return None if enough else Verdict.NO_QUORUM

    def numbered(self, rows: Rows, body: bytes) -> tuple[bytes, bool]:
        """The body with the numbers that its rows get here (rule K8), and whether these are new: above the highest one. Without
        room there they keep their own, and are rows as any. Raises ValueError."""
        data = body[SEGMENT_HEAD_BYTES:]
        found = Numbered(data)
        count, highest = len(found.numbers), rows.highest(found.table.name)
        if highest is None:
            raise ValueError(f"{found.table.name}: its rows are not numbered")
        are_new = found.numbers[-1] - found.numbers[0] == count - 1 and highest <= NUMBER_MAX - count
        return encode_body([(Segment.CHANGESET, found.begin_at(highest + 1) if are_new else data)]), are_new

    def conflicts(self, window: Window, write: Write, written: Written) -> Verdict | None:
        """Against what has been committed since its snapshot. First committer wins. Nobody else can have written rows that got
        their numbers here."""
        if not written.are_new and self.is_newer(window, written.rows, write.snapshot):
            return Verdict.CONFLICT
        if self.is_newer(window, self.reads(write), write.snapshot):
            return Verdict.READ
        return None

    def is_newer(self, window: Window, keys: Iterable[bytes], snapshot: int) -> bool:
        return any(window.writer(key) > snapshot for key in keys)

    def reads(self, write: Write) -> tuple[bytes, ...]:
        return write.reads

    def apply(self, shared: Shared, rows: Rows, write: Write, written: Written) -> tuple[Verdict, int]:
        """UNIQUE, foreign keys and all else that the rows decide is part of the verdict."""
        last = rows.position()
        version = last.version + 1
        digest = next_digest(last.digest, version, write.txid, write.body)
        verdict = rows.write(Entry(Position(shared.epoch, version, digest), write.txid, write.body))
        if verdict is not Verdict.DONE:
            return verdict, last.version
        shared.window.add(version, written.rows | written.tables)
        if written.changes_schema:
            shared.schema = version
        return Verdict.DONE, version

    def has_room(self, shared: Shared, write: Write) -> bool:
        """For one more transaction that waits for a lock."""
        size = len(write.body) + sum(len(other.body) for _, other in shared.waiting)
        return len(shared.waiting) < self.waiting_max and size <= self.waiting_bytes_max
