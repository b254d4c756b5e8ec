"""A program at a station without an active copy: its transactions, without I/O (rules Z4 to Z6 of docs/database.md).

What needs the process of the station is yielded by generators, and its result sent into them: ``Begin``, ``Call``, ``Outcome``.
The host throws ``SessionLost`` where a session has ended instead, and its own exceptions for what has no end in time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...errors import InvariantError
from ..base import Source
from .messages import Txid

Seen: TypeAlias = tuple[int, int]
"""Epoch and version."""


class SessionLost(Exception):
    """The session is over, for this reason."""


class TransactionLost(Exception):
    """The transaction's session is over: it is rolled back, and nothing of it is or will be committed."""


@dataclass(frozen=True, slots=True)
class Session:
    """Where the program's statements run."""

    number: int
    at: Source


@dataclass(frozen=True, slots=True)
class Begin:
    """A session at the nearest primary. Result: a Session."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a session. Result: its reply, a mapping, which has ``seen`` if a snapshot was taken."""

    session: Session
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a transaction that a session was to commit. Result: its version; 0: it is not committed, and never will
    be."""

    txid: Txid
    snapshot: Seen
    at: Source


Request: TypeAlias = Begin | Call | Outcome
Steps: TypeAlias = Generator[Request, Any, dict[str, Any]]


class Errand:
    """The transactions of one connection, one after another."""

    def __init__(self, next_txid: Callable[[], Txid], opening: Callable[[], Mapping[str, Any]]) -> None:
        """opening: the first call of a session but for ``seen``."""
        self._next_txid, self._opening = next_txid, opening
        self.session: Session | None = None
        self.seen: Seen = (0, 0)
        """The newest that the connection has seen or written: no session shows anything older."""
        self.snapshot: Seen = (0, 0)
        """Of the present transaction."""
        self.txid: Txid | None = None
        """Of the present transaction; None: there is none."""
        self.has_run = False
        """Something of the present transaction has been answered."""

    def run(self, body: Mapping[str, Any]) -> Steps:
        """A statement, in the present transaction or in a new one, which stays open until ``commit`` or ``end``. Raises
        TransactionLost: the transaction is over."""
        if self.txid is None:
            self.txid, self.has_run = self._next_txid(), False
        while True:
            try:
                session = yield from self._present()
                reply: dict[str, Any] = yield Call(session, {**body, "txid": self.txid.encode().hex()})
            except SessionLost as lost:
                self.session = None
                if self.has_run:
                    self.end()
                    raise TransactionLost(str(lost)) from None
                self.txid = self._next_txid()  # nothing of it was seen here: the same once more, elsewhere
                continue
            self.has_run = True
            self._learn(reply)
            return reply

    def commit(self) -> Steps:
        """Commit the present transaction, which has run something. Raises TransactionLost: it is not committed."""
        txid, session, self.txid = self.txid, self.session, None
        if txid is None or session is None:
            raise InvariantError("there is no transaction")
        try:
            reply: dict[str, Any] = yield Call(session, {"do": "commit", "txid": txid.encode().hex()})
        except SessionLost as lost:
            self.session = None
            version = yield Outcome(txid, self.snapshot, session.at)
            if not version:
                raise TransactionLost(str(lost)) from None
            reply = {"seen": [self.snapshot[0], version]}
        self._learn(reply)
        return reply

    def ask(self, body: Mapping[str, Any]) -> Steps:
        """Something that is no part of a transaction and may be done twice; or of the present one, which then ends with it."""
        while True:
            try:
                session = yield from self._present()
                reply: dict[str, Any] = yield Call(session, body)
            except SessionLost as lost:
                self.session = None
                if self.txid is not None:
                    self.end()
                    raise TransactionLost(str(lost)) from None
                continue
            self._learn(reply)
            return reply

    def end(self) -> None:
        """The present transaction is over."""
        self.txid = None

    def _present(self) -> Generator[Request, Any, Session]:
        if self.session is None:
            session: Session = yield Begin()
            yield Call(session, {**self._opening(), "seen": list(self.seen)})
            self.session = session
        return self.session

    def _learn(self, reply: Mapping[str, Any]) -> None:
        if (seen := reply.get("seen")) is not None:
            self.snapshot = (int(seen[0]), int(seen[1]))
            self.seen = max(self.seen, self.snapshot)
