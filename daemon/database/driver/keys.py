"""Automatic ids of AUTOINCREMENT tables: from blocks that no other program has (``leases``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..branch import Branch
from ..errors import Error
from ..leases import automatic, highest

if TYPE_CHECKING:
    from .connection import Connection

COUNT: Final = 100
"""Ids of a block; twice as many each time that a transaction needs another one, up to ``COUNT_MAX``."""
COUNT_MAX: Final = 10_000
CACHE_MAX: Final = 1000
"""Statements that are known."""
LEASE_S: Final = 5.0
"""To wait for a block. Without one SQLite's id is used, and certification decides."""


class Keys:
    """The blocks of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._blocks: dict[str, range] = {}
        """Ids that are left, by table."""
        self._armed: set[str] = set()
        """Tables whose next id in the transaction is decided."""
        self._automatic: set[str] = set()
        self._inserts: dict[str, frozenset[str]] = {}
        """Tables that a statement inserts rows into, by its text."""
        self._version = -1
        self._count = COUNT
        self._epoch = -1
        self.leases = 0
        """Blocks that the transaction has got; each is a version of the history."""

    def begin(self, epoch: int) -> None:
        """Another transaction. Blocks of an epoch that is over may have been lost with it."""
        self._armed.clear()
        self._count = COUNT
        self.leases = 0
        if epoch != self._epoch:
            self._epoch = epoch
            self._blocks.clear()

    def wanting(self, branch: Branch, sql: str) -> list[str]:
        """The tables of which the statement that is about to run may take ids, and has none."""
        if branch.inserted or sql not in self._inserts:
            if len(self._inserts) >= CACHE_MAX:
                self._inserts.clear()
            self._inserts[sql] = frozenset(branch.inserted)
        if not (inserted := self._inserts[sql]):
            return []
        version = branch.schema_version()
        if version != self._version:
            self._automatic, self._version = automatic(branch.writer), version
        return sorted(t for t in inserted & self._automatic if t not in self._armed or not self._blocks.get(t, range(1)))

    def arm(self, branch: Branch, tables: list[str]) -> None:
        """Have the next ids of these tables come from a block."""
        for table in tables:
            block = self._blocks.get(table)
            if not block or highest(branch.writer, table) >= block[0]:
                if table in self._armed:
                    self._count = min(COUNT_MAX, 2 * self._count)
                block = self._lease(table)
            self._armed.add(table)
            if block:
                self._blocks[table] = block
                branch.set_sequence(table, block[0] - 1)
            else:
                self._blocks.pop(table, None)

    def _lease(self, table: str) -> range:
        connection = self._connection
        try:
            seconds = min(LEASE_S, connection.timeout)
            found = connection._ask("lease", seconds=seconds, table=table, count=self._count)
        except Error:
            return range(0)
        self.leases += 1
        return range(int(found["first"]), int(found["first"]) + int(found["count"]))

    def used(self, branch: Branch) -> None:
        """The statement has run: what it has taken is not used again, whatever becomes of the transaction."""
        for table in self._armed:
            if block := self._blocks.get(table):
                self._blocks[table] = range(max(block[0], highest(branch.writer, table) + 1), block.stop)
