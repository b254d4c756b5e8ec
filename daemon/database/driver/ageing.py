"""Transactions that are open for too long end by themselves: their snapshot keeps the WAL of the station growing."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from ..errors import OperationalError

if TYPE_CHECKING:
    from .connection import Connection

TRANSACTION_S: Final = 60.0
"""A transaction is ended when it has been open for so long."""
TICK_S: Final = 1.0
"""Between two looks."""


class TooOld(OperationalError):
    """The transaction was open for too long: it is rolled back."""

    def __init__(self) -> None:
        super().__init__(f"the transaction was open for more than {TRANSACTION_S:g} s: it is rolled back")


class Watch:
    """Looks at the connections of this process, in a thread that is there while there are any."""

    def __init__(self) -> None:
        self._connections: WeakSet[Connection] = WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def forget(self) -> None:
        """In the child of a fork: the connections are the parent's, its thread is not here, and the lock may be held by it."""
        self._connections = WeakSet()
        self._lock = threading.Lock()
        self._thread = None

    def add(self, connection: Connection) -> None:
        with self._lock:
            self._connections.add(connection)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="zenjun-db-ageing", daemon=True)
                self._thread.start()

    def remove(self, connection: Connection) -> None:
        with self._lock:
            self._connections.discard(connection)

    def _run(self) -> None:
        while True:
            time.sleep(TICK_S)
            with self._lock:
                connections = list(self._connections)
                if not connections:
                    self._thread = None
                    return
            while connections:
                with contextlib.suppress(Exception):  # what one of them has closed meanwhile must not end it for all
                    connections.pop()._end_if_old()  # and no reference while it sleeps


watch: Final = Watch()
os.register_at_fork(after_in_child=watch.forget)
