"""Statements of a program of another station, run here by the driver that programs here have, in a thread of their own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from ...proto.service.base import Source
from ...proto.service.database.distance import CALL_MAX
from ...proto.service.database.messages import Txid
from .driver.connection import Connection
from .driver.cursor import Cursor
from .errors import DataError, Error, OperationalError, ProgrammingError
from .values import batch, bindings_from_json, error_to_json

CURSORS_MAX: Final = 256
"""Of a program, whose rows have not all been fetched."""
_OPTIONS: Final = ("isolation", "read", "durability")


class Worker:
    """One session. ``run`` is called in its thread, one call after another."""

    def __init__(self, socket: str, me: Source) -> None:
        """socket: of the process itself. me: the service whose session it is."""
        self._socket, self.me = socket, me
        self._connection: Connection | None = None
        self._rows: dict[int, Iterator[Any]] = {}
        """Of cursors that have more."""
        self._ends_with: int | None = None
        """The cursor with whose last row the transaction ends."""
        self.committing: Txid | None = None
        """The transaction that is being committed."""
        self._lone: Cursor | None = None
        """Of a statement that is a transaction of its own and has written."""
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="distant")

    def run(self, call: Mapping[str, Any]) -> bytes:
        """The reply. What is wrong is in it."""
        try:
            do = call.get("do")
            steps: dict[Any, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
                "open": self._open, "run": self._run, "many": self._many, "fetch": self._fetch, "commit": self._commit,
                "rollback": self._rollback, "dump": self._dump, "changes": self._changes,
            }  # fmt: skip
            if do not in steps:
                raise ProgrammingError(f"unknown call {str(do)[:40]!r}")
            reply: dict[str, Any] = {"ok": steps[do](call)}
        except (Error, TypeError, ValueError, OverflowError, KeyError) as error:
            reply = {"error": error_to_json(error)}
        reply["in"] = self._connection is not None and self._connection.in_transaction
        data = json.dumps(reply).encode()
        if len(data) > CALL_MAX:
            too_long = DataError(f"a row of {len(data)} bytes; {CALL_MAX} are allowed at a distance")
            data = json.dumps({"error": error_to_json(too_long), "in": reply["in"]}).encode()
        return data

    def interrupt(self) -> None:
        """In any thread: what runs comes to its end; a commit goes on."""
        branch = self._connection._branch if self._connection is not None else None
        if branch is not None and self.committing is None:
            with contextlib.suppress(Exception):
                branch.interrupt()

    def close(self) -> None:
        """What is not committed is rolled back."""
        self._rows.clear()
        if self._connection is not None:
            self._connection.close()

    # ---- calls

    @property
    def _c(self) -> Connection:
        if self._connection is None:
            raise ProgrammingError("the session is not open")
        return self._connection

    def _seen(self) -> list[int]:
        return list(self._c._snapshot if self._c.in_transaction else self._c._seen)

    def _open(self, call: Mapping[str, Any]) -> dict[str, Any]:
        if self._connection is not None:
            raise ProgrammingError("the session is open")
        options = {name: str(call[name]) for name in _OPTIONS}
        seen = tuple(int(part) for part in call["seen"])
        at_least = f"{seen[0]}.{seen[1]}" if seen != (0, 0) else None
        self._connection = Connection(
            str(call["db"]), **options, timeout=float(call["timeout"]), autocommit=False, at_least=at_least,
            max_stale=call.get("max_stale"), socket=self._socket, here=True,
        )  # fmt: skip
        self._connection._foreign_keys = call.get("foreign_keys") is not False
        return {}

    def _begin(self, call: Mapping[str, Any]) -> Connection:
        c = self._c
        if self._ends_with is not None:  # the program did not want the other rows
            self._rows.pop(self._ends_with, None)
            self._ends_with = None
            c.rollback()
        c._own_txid = Txid.decode(bytes.fromhex(call["txid"]))
        if not c.in_transaction:
            self._rows.clear()
            for name in _OPTIONS:
                if name in call:
                    setattr(c, name, str(call[name]))
        return c

    def _run(self, call: Mapping[str, Any]) -> dict[str, Any]:
        c = self._begin(call)
        cursor = Cursor(c)
        is_lone, self._lone = call.get("alone") is True and not c._explicit, None
        (c._lone.begin if is_lone and not c.in_transaction else c._lone.end)()
        try:
            cursor.execute(str(call["sql"]), bindings_from_json(call.get("args")) or ())
        except Exception:
            if is_lone:
                c.rollback()
            raise
        reply = {
            "description": cursor.description, "rowcount": cursor.rowcount, "lastrowid": cursor.lastrowid, "seen": self._seen(),
        }  # fmt: skip
        only_read = is_lone and c._lock is None and not (c._branch and c._branch.is_writing)
        self._lone = cursor if is_lone else None
        return reply | self._batch(int(call["cursor"]), cursor, ends=only_read)

    def _batch(self, number: int, rows: Iterator[Any], *, ends: bool) -> dict[str, Any]:
        """The next rows of a cursor. ends: with the last one the transaction ends."""
        found, more = batch(rows)
        if more:
            if len(self._rows) >= CURSORS_MAX and number not in self._rows:
                raise OperationalError(f"{CURSORS_MAX} cursors have rows that are not fetched")
            self._rows[number] = rows
            self._ends_with = number if ends else None
        else:
            self._rows.pop(number, None)
            self._ends_with = None
            if ends:
                self._c.rollback()
        return {"rows": found, "more": more}

    def _fetch(self, call: Mapping[str, Any]) -> dict[str, Any]:
        number = int(call["cursor"])
        if (rows := self._rows.get(number)) is None:
            raise ProgrammingError("the rows are gone: their transaction has ended")
        return self._batch(number, rows, ends=self._ends_with == number)

    def _many(self, call: Mapping[str, Any]) -> dict[str, Any]:
        c = self._begin(call)
        c._lone.end()
        self._lone = None
        cursor = Cursor(c)
        cursor.executemany(str(call["sql"]), [bindings_from_json(each) for each in call["many"]])
        return {"rowcount": cursor.rowcount, "seen": self._seen()}

    def _commit(self, call: Mapping[str, Any]) -> dict[str, Any]:
        self.committing = Txid.decode(bytes.fromhex(call["txid"]))
        try:
            self._c.commit()
        finally:
            self.committing = None
            self._rows.clear()
        if self._lone is None:
            return {"seen": list(self._c._seen)}
        self._c._lone.settle(self._lone)
        return {"seen": list(self._c._seen), "lastrowid": self._lone.lastrowid}

    def _rollback(self, call: Mapping[str, Any]) -> dict[str, Any]:
        self._rows.clear()
        self._ends_with = None
        self._c.rollback()
        return {}

    def _dump(self, call: Mapping[str, Any]) -> dict[str, Any]:
        return self._batch(int(call["cursor"]), ((line,) for line in self._c.iterdump()), ends=False)

    def _changes(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """What was committed after a version, as far as it is here; waits a little for the first of it."""
        since, tables = call.get("since"), [str(table) for table in call["tables"]]
        if since is None:
            since = int(self._c.token().partition(".")[2])
            return {"at": since, "changes": []}
        try:
            self._c._ask("reach", seconds=float(call["seconds"]), version=int(since) + 1)
        except OperationalError as error:
            if error.code != "timeout":
                raise
            return {"at": since, "changes": []}
        at = int(self._c._ask("reach", version=0)["version"])
        found = [*self._c.watch(*tables, since=int(since), timeout=0.05)]
        return {"at": max([at, *(change.version for change in found)]), "changes": batch(map(_row, found))[0]}


def _row(change: Any) -> list[Any]:
    from .values import to_json

    return [json.dumps({k: to_json(v) for k, v in value.items()}) if isinstance(value, dict) else value for value in change]
