"""A connection at a station without an active copy: statements run at another station, in a session there.

To the program it is as the other kind but for functions of its own and backups. ``proto/service/database/errand.py`` has what a
transaction goes through; this is its host.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ....proto.service.database.distance import CALL_MAX
from ....proto.service.database.errand import Begin, Call, Errand, Outcome, Session, SessionLost, Steps, TransactionLost
from ....proto.service.database.messages import Txid
from ..branch import Bindings
from ..errors import (
    DataError,
    Error,
    NotCommitted,
    NotReachable,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Undecided,
)
from ..values import bindings_to_json, error_from_json, from_json
from .connection import Connection
from .cursor import Cursor
from .freshness import parsed
from .service import RETRY_S, Lost
from .statements import Kind, foreign_keys_of, kind_of, words_of
from .watching import Change

MANY_BYTES: Final = 256 * 1024
"""Of parameters in one call of ``executemany``, as JSON; one longer row of them goes alone."""
WATCH_S: Final = 10.0
"""For one answer to what ``watch`` asks."""
CALL_S: Final = 3600.0
"""For a call that takes as long as it takes: a dump's."""


class DistantConnection(Connection):
    """Made by ``connect``."""

    def __init__(
        self, name: str, *, isolation: str, read: str, durability: str, timeout: float, autocommit: bool, socket: str | None,
        at_least: str | None, max_stale: float | None,
    ) -> None:  # fmt: skip
        self.name, self.isolation, self.read, self.durability, self.timeout = name, isolation, read, durability, timeout
        self.row_factory = None
        self.max_stale = max_stale
        self._autocommit = autocommit
        self._socket = socket
        self._closed = False
        self._service = None
        self._foreign_keys = True
        self._mutex = threading.RLock()
        self._explicit = False
        self._deadline = time.monotonic() + timeout
        self._start = (secrets.randbits(32), secrets.randbits(32))
        self._number = 0
        self._cursor_numbers = itertools.count(1)
        self._in = False
        """The other station has a transaction open."""
        self._errand = Errand(self._txid, self._opening)
        if at_least is not None:
            self._errand.seen = parsed(at_least)
        self._host(self._errand.ask({"do": "rollback"}))  # so that a name or an option that is wrong is told now

    def _txid(self) -> Txid:
        self._number += 1
        return Txid(self._service.station if self._service is not None else 0, *self._start, self._number)

    def _opening(self) -> Mapping[str, Any]:
        return {
            "do": "open", "db": self.name, "isolation": self.isolation, "read": self.read, "durability": self.durability,
            "timeout": self.timeout, "max_stale": self.max_stale, "foreign_keys": self._foreign_keys,
        }  # fmt: skip

    # ---- the host of an errand

    def _host(self, steps: Steps, seconds: float | None = None) -> dict[str, Any]:
        """Carry out what it wants, up to the time-out. Raises the driver's errors."""
        self._deadline = time.monotonic() + (self.timeout if seconds is None else seconds)
        result: Any = None
        wrong: Exception | None = None
        while True:
            try:
                wanted = steps.send(result) if wrong is None else steps.throw(wrong)
            except StopIteration as done:
                reply: dict[str, Any] = done.value
                return reply
            except TransactionLost as lost:
                self._in = self._explicit = False
                error = NotCommitted(f"the transaction is not committed, and over: {lost}")
                raise error from None
            result = wrong = None
            try:
                result = self._carry_out(wanted)
            except (SessionLost, Error, TypeError, ValueError, OverflowError) as error_of_step:
                wrong = error_of_step
            except BaseException:  # Ctrl-C: what runs at the other station ends with the session
                self._forget()
                raise

    def _forget(self) -> None:
        """The connection to the process may be in the middle of a request: another one, and another session, for what follows."""
        self._errand.session = None
        self._over()
        if self._service is not None:
            self._service.close()
            self._service = None

    def _carry_out(self, wanted: Begin | Call | Outcome) -> Any:
        if isinstance(wanted, Call):
            return self._call(wanted)
        if isinstance(wanted, Outcome):
            return self._outcome(wanted)
        while True:
            if time.monotonic() >= self._deadline:
                raise NotReachable(f"no station where {self.name} is active has answered in time")
            try:
                found = self._ask("session", seconds=self._left())
                return Session(int(found["session"]), (int(found["station"]), int(found["client"])))
            except (Lost, NotReachable) as error:
                if self._left() <= RETRY_S:
                    raise NotReachable(str(error)) from None
                time.sleep(RETRY_S)

    def _left(self) -> float:
        return max(0.1, self._deadline - time.monotonic())

    def _call(self, call: Call) -> dict[str, Any]:
        body = json.dumps(call.body)
        if len(body) > CALL_MAX:
            raise DataError(f"a statement with {len(body)} bytes; {CALL_MAX} are allowed at a distance")
        try:
            found = json.loads(self._ask("call", seconds=self._left() + RETRY_S, session=call.session.number, body=body)["reply"])
        except Lost as error:
            raise SessionLost(str(error)) from None
        except OperationalError as error:
            if error.code != "session-lost":
                raise
            raise SessionLost(str(error)) from None
        self._in = found["in"] is True
        if "error" in found:
            raise error_from_json(found["error"])
        reply: dict[str, Any] = found["ok"]
        return reply

    def _outcome(self, wanted: Outcome) -> int:
        """Raises Undecided."""
        question = {"txid": wanted.txid.encode().hex(), "snapshot": wanted.snapshot[1], "at": list(wanted.at)}
        while True:
            try:
                return int(self._ask("outcome", seconds=self._left(), **question)["version"])
            except Undecided:
                raise
            except Error as error:  # of any kind: the process may have begun again, and not have the list of databases yet
                if self._left() <= RETRY_S:
                    raise Undecided(f"{error}; the transaction may be committed") from None
            time.sleep(RETRY_S)

    # ---- PEP 249

    def commit(self) -> None:
        """Commit. Errors are those of the other kind of connection; NotCommitted as well if the other station is lost."""
        self._committed()

    def _committed(self) -> dict[str, Any] | None:
        """``commit``, and what the other station has replied; None: there was nothing to commit."""
        self._check()
        with self._mutex:
            if self._errand.txid is None:
                return None
            try:
                return self._host(self._errand.commit()) if self._in else None
            finally:
                self._over()

    def rollback(self) -> None:
        self._check()
        with self._mutex:
            if self._errand.txid is not None and self._errand.session is not None:
                self._errand.end()
                with contextlib.suppress(Error):
                    self._host(self._errand.ask({"do": "rollback"}))
            self._over()

    def _over(self) -> None:
        self._errand.end()
        self._in = self._explicit = False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._service is not None:
                self._service.close()  # which ends the session

    @property
    def in_transaction(self) -> bool:
        return self._errand.txid is not None and self._in

    @property
    def station(self) -> int | None:
        """Where statements run now; None: that is not decided."""
        return self._errand.session.at[0] if self._errand.session is not None else None

    def _begin(self) -> None:
        self.execute("BEGIN")

    def _abandon(self) -> None:
        if not self._closed:
            self.rollback()

    def token(self) -> str:
        return f"{self._errand.seen[0]}.{self._errand.seen[1]}"

    def _add_function(self, how: str, *arguments: Any, **options: Any) -> None:
        raise NotSupportedError(f"functions of the program: statements on {self.name} run at another station")

    def backup(self, target: str | Path) -> None:
        raise NotSupportedError(f"backup: {self.name} has no copy in use at this station (zenjun db list shows where it has)")

    def iterdump(self) -> Iterator[str]:
        self._check()
        number = next(self._cursor_numbers)
        reply = self._host(self._errand.ask({"do": "dump", "cursor": number}), CALL_S)
        for (line,) in self._rows_of(number, reply):
            yield line

    def watch(self, *tables: str, since: int | None = None, timeout: float | None = None) -> Iterator[Change]:
        options: dict[str, Any] = {"isolation": "snapshot", "read": "local", "durability": "memory", "autocommit": True}
        other = DistantConnection(self.name, **options, timeout=self.timeout, socket=self._socket, at_least=None, max_stale=None)
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                left = WATCH_S if deadline is None else max(0.1, min(WATCH_S, deadline - time.monotonic()))
                body = {"do": "changes", "tables": list(tables), "since": since, "seconds": left}
                reply = other._host(other._errand.ask(body), left + self.timeout)
                for row in map(json.loads, reply["changes"]):
                    yield Change(*(_object(value) if i >= 3 else value for i, value in enumerate(row)))
                    deadline = None if timeout is None else time.monotonic() + timeout
                since = int(reply["at"])
                if deadline is not None and not reply["changes"] and time.monotonic() >= deadline:
                    return
        finally:
            other.close()

    # ---- statements

    def _ended_or(self, error: Error) -> Error:
        return error

    def _execute(self, cursor: Cursor, sql: str, bindings: Bindings) -> None:
        kind = kind_of(sql)
        if kind is Kind.ROLLBACK:
            self.rollback()
            return
        if kind is Kind.COMMIT:
            self.commit()
            return
        if kind is Kind.EMPTY:
            return
        with self._mutex:
            if kind is Kind.BEGIN and self.in_transaction:
                raise OperationalError("cannot start a transaction within a transaction")
            if self.in_transaction or not self._autocommit or kind is Kind.BEGIN:
                self._run_at_distance(cursor, sql, bindings, alone=False)
                self._explicit |= kind is Kind.BEGIN
            else:
                self._alone(lambda: self._run_at_distance(cursor, sql, bindings, alone=True), cursor)
            if value := foreign_keys_of(sql):
                self._foreign_keys = value in ("ON", "YES", "TRUE", "1")

    def _body(self, do: str, sql: str) -> dict[str, Any]:
        body: dict[str, Any] = {"do": do, "sql": sql}
        if not self.in_transaction:
            body |= {"isolation": self.isolation, "read": self.read, "durability": self.durability}
        return body

    def _run_at_distance(self, cursor: Cursor, sql: str, bindings: Bindings, *, alone: bool) -> None:
        number = next(self._cursor_numbers)
        body = self._body("run", sql) | {"args": bindings_to_json(bindings), "cursor": number, "alone": alone}
        try:
            reply = self._host(self._errand.run(body))
        finally:
            if not self._in:
                self._errand.end()
        description = reply["description"]
        cursor.description = tuple(tuple(column) for column in description) if description is not None else None
        cursor.rowcount, cursor.lastrowid = reply["rowcount"], reply["lastrowid"]
        cursor._rows = self._rows_of(number, reply)

    def _rows_of(self, number: int, reply: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        while True:
            for row in map(json.loads, reply["rows"]):
                yield tuple(map(from_json, row))
            if not reply["more"]:
                return
            reply = self._host(self._errand.ask({"do": "fetch", "cursor": number}))

    def _alone(self, run: Callable[[], None], cursor: Cursor, *, is_one: bool = True) -> None:
        def once() -> None:
            run()
            cursor._rows = iter(list(cursor._rows))
            if (reply := self._committed()) is not None and is_one:
                cursor.lastrowid = reply.get("lastrowid")  # rule K8; missing if its session was lost, and another site asked

        self._again(once)

    def _execute_many(self, cursor: Cursor, sql: str, many: Iterable[Bindings]) -> None:
        if kind_of(sql) is not Kind.WRITE and words_of(sql)[:1] != ("WITH",):
            raise ProgrammingError("executemany is for INSERT, UPDATE, DELETE and REPLACE")

        def run(each: Iterable[Bindings] = many) -> None:
            changed = 0
            for chunk in _chunks(each):
                try:
                    reply = self._host(self._errand.run(self._body("many", sql) | {"many": chunk}))
                finally:
                    if not self._in:
                        self._errand.end()
                changed += max(0, int(reply["rowcount"]))
            cursor.rowcount = changed

        with self._mutex:
            if self.in_transaction or not self._autocommit:
                run()
            else:
                kept = list(many)
                self._alone(lambda: run(kept), cursor, is_one=False)


def _chunks(many: Iterable[Bindings]) -> Iterator[list[Any]]:
    """Parameters for one call after another."""
    found: list[Any] = []
    size = 0
    for bindings in many:
        found.append(bindings_to_json(bindings))
        size += len(json.dumps(found[-1]))
        if size >= MANY_BYTES:
            yield found
            found, size = [], 0
    if found:
        yield found


def _object(value: Any) -> Any:
    """A part of a change."""
    return {k: from_json(v) for k, v in json.loads(value).items()} if isinstance(value, str) else value
