"""What the machine needs of the copy at its site. The process has it in SQLite, and so has the simulation."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from .messages import Position, Txid


class Verdict(Enum):
    """What becomes of a transaction, at all sites alike."""

    DONE = "done"
    STALE = "stale"
    """Made in another epoch, or on a version so old that the writes since then are no longer known."""
    SCHEMA = "schema"
    """The schema has changed since its snapshot."""
    NO_QUORUM = "no-quorum"
    BUSY = "busy"
    """Too much waits for a lock."""
    CONFLICT = "conflict"
    """A row that it writes has been written since."""
    READ = "read"
    """What it has read has been written since."""
    CONSTRAINT = "constraint"
    IMAGE = "image"
    """Rows or schema are not what its origin had."""
    UNDECIDED = "undecided"
    """Not a verdict: this site will not learn it. The next one has to be asked for the transaction's id."""


class RowsFailed(Exception):
    """The copy cannot be written, or is damaged: this site gives it up."""


class RowsDamaged(RowsFailed):
    """What the copy has is not right."""


class Entry(NamedTuple):
    """One version of the history."""

    position: Position
    txid: Txid
    body: bytes


class Rows(Protocol):
    """A copy: rows, position and history, changed together or not at all. Everything may raise RowsFailed."""

    def blank(self) -> bool:
        """Whether there is no copy yet."""

    def uuid(self) -> bytes:
        """The database's id; a blank copy has one that was drawn for it."""

    def position(self) -> Position:
        """The position of the last entry."""

    def create(self, uuid: bytes) -> None:
        """Make an empty database: version 0 of epoch 0."""

    def write(self, entry: Entry) -> Verdict:
        """Apply the entry's body and make it the last version. DONE, or CONSTRAINT or IMAGE and nothing has changed."""

    def version_of(self, txid: Txid) -> int | None:
        """The version that a transaction made; None: not among those that are kept."""

    def digest_at(self, version: int) -> bytes | None:
        """The digest of a version; None: the version is no longer kept."""

    def highest(self, table: str) -> int | None:
        """The highest number that a row of this table has as its key, 0 without rows; None: rows of this table have no numbers
        that SQLite picks, or those come from blocks (rule K7)."""

    def gate(self, is_open: bool) -> None:
        """Mode unanimous: whether reads are served. With RowsFailed nobody can read the copy any more."""
