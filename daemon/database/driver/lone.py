"""A statement of its own that only inserts rows: they get their numbers at its place in the order, not here (rule K8)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import apsw

from ....proto.service.database.changeset import Numbered
from ....proto.service.database.messages import SEGMENT_HEAD_BYTES, Segment, Txid, encode_body, is_one_changeset
from ..branch import Bindings, Branch
from ..errors import Error
from .statements import words_of

if TYPE_CHECKING:
    from .connection import Connection
    from .cursor import Cursor

BYTES_MAX: Final = 64 * 1024
"""Of the changeset: every site reads it row by row. Longer ones have the numbers that they have here, and may be rejected."""
_BODY: Final = "SELECT body FROM zenjun_log WHERE version = ? AND txid = ?"


class Lone:
    """Of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_lone = False
        self._only_inserts = True
        """As far as it has run."""
        self._sent = b""
        """The changeset of what is committed with other numbers."""
        self._last = 0
        """The number that its last row has here."""
        self._committed: tuple[Txid, int] | None = None

    def begin(self) -> None:
        """What runs now is a transaction of its own."""
        self._is_lone = self._only_inserts = True
        self._sent, self._committed = b"", None

    def end(self) -> None:
        self._is_lone = False

    def ran(self, sql: str, bindings: Bindings) -> None:
        """A statement of the transaction has run on the writer."""
        if self._is_lone and words_of(sql, 1) != ("EXPLAIN",):
            reads = self._connection._reads
            self._only_inserts = self._only_inserts and reads is not None and reads.only_inserts(sql, bindings)

    def body(self, segments: list[tuple[Segment, bytes]]) -> bytes:
        """Of the transaction that is committed."""
        branch = self._connection._branch
        if self._is_lone and self._only_inserts and branch is not None and len(segments) == 1:
            ((kind, data),) = segments
            if kind is Segment.CHANGESET and len(data) <= BYTES_MAX:
                self._sent, self._last = data, branch.writer.last_insert_rowid()
                return encode_body([(Segment.NUMBERED, data)])
        return encode_body(segments)

    def committed(self, txid: Txid, version: int) -> None:
        self._committed = (txid, version)

    def settle(self, cursor: Cursor) -> None:
        """The transaction is over: ``lastrowid`` is the number that the row has got. None: it cannot be learned any more."""
        if not self._sent or self._committed is None:
            return
        connection = self._connection
        cursor.lastrowid = None
        with contextlib.suppress(apsw.Error, Error, ValueError):  # it is committed: an error would say that it is not
            cursor.lastrowid = self._number(connection._branch, *self._committed)
            if cursor.lastrowid is None:  # another copy has taken the file's place
                cursor.lastrowid = self._number(connection._open(), *self._committed)
        if (branch := connection._branch) is not None:
            for each in (branch.reader, branch.writer):
                each.set_last_insert_rowid(cursor.lastrowid or 0)

    def _number(self, branch: Branch | None, txid: Txid, version: int) -> int | None:
        """Of the last row, as the history has it. Errors are apsw's; ValueError: it has no such row."""
        found: list[Any] = [] if branch is None else branch.reader.execute(_BODY, (version, txid.encode())).fetchall()
        if not found or not is_one_changeset(found[0][0] or b""):
            return None
        return self._last + Numbered(found[0][0][SEGMENT_HEAD_BYTES:]).numbers[0] - Numbered(self._sent).numbers[0]
