"""When what is applied goes to the disk: one transaction, and one fsync, for all that came during the last one (rule W4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from ...proto.service.directory.entries import NOWHERE, Place
from .copy import DATABASE_ERRORS, Copy
from .store import CARRY_ROWS

PENDING_MAX: Final = 20_000
PENDING_BYTES_MAX: Final = 32 << 20
"""Rows that wait to be written, and their bytes, from which on no message is applied."""
WRITE_ROWS: Final = 1000
WRITE_S: Final = 0.05
"""Rows that are applied are given to SQLite when there are so many, or so old ones, or when a program wants them on disk."""
BROKEN_S: Final = 10.0
"""After a disk error, until the state is asked for again."""


class DiskWriter:
    """Writes, in a thread of its own, what a copy has applied.

    place:      the place of what has been applied, and reported.
    on_durable: all up to this place is on disk. rewrite: writes all rows to a new file, after a sync that failed.
    on_error:   the disk is full, or broken.
    """

    def __init__(
        self,
        copy: Copy,
        place: Callable[[], Place],
        on_durable: Callable[[Place], None],
        rewrite: Callable[[], Awaitable[Any]],
        on_error: Callable[[Exception], None],
    ) -> None:
        self.durable: Place = NOWHERE
        """What was last said to be on disk."""
        self._copy = copy
        self._place = place
        self._on_durable = on_durable
        self._rewrite = rewrite
        self._on_error = on_error
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="directory-disk")
        self._wanted = asyncio.Event()
        self._durably = False
        self._due: asyncio.TimerHandle | None = None
        self._written = asyncio.Event()
        self._states = 0
        """Times that the state has become another one."""

    def look(self, durably: bool) -> None:
        """Something has been applied. durably: a program waits until it is on disk."""
        self._durably |= durably
        rows = self._copy.rows
        if self._durably or rows.pending >= WRITE_ROWS or rows.written >= CARRY_ROWS:
            self._wanted.set()
        elif rows.pending and self._due is None:
            self._due = asyncio.get_running_loop().call_later(WRITE_S, self._wanted.set)

    def replaced(self) -> None:
        """The whole state has been replaced: determine again what of it is on disk, and report that."""
        self._states += 1
        self.durable = NOWHERE
        self.look(durably=True)

    async def room(self) -> None:
        """Wait until few enough rows wait to be written."""
        rows = self._copy.rows
        while rows.pending >= PENDING_MAX or rows.pending_bytes >= PENDING_BYTES_MAX:
            self._written.clear()
            self._wanted.set()
            await self._written.wait()

    async def run(self) -> None:
        """Write what is to be written, for ever."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            durably, self._durably = self._durably, False
            if self._due is not None:
                self._due.cancel()
                self._due = None
            try:
                await self._write(durably)
            except DATABASE_ERRORS as error:
                if durably:
                    self._durably = True
                    self._wanted.set()
                self._on_error(error)
                await asyncio.sleep(BROKEN_S)
            finally:
                self._written.set()

    async def _write(self, durably: bool) -> None:
        copy, loop = self._copy, asyncio.get_running_loop()
        if durably and copy.file.failed:
            await self._rewrite()
            return
        place, states, rows = self._place(), self._states, copy.rows
        rows.take()
        await loop.run_in_executor(self._thread, copy.write, rows, durably)
        rows.written_out()
        if durably and states == self._states:  # else the place is of a state that is no longer this copy's
            self.durable = place
            self._on_durable(place)
        if rows.written >= CARRY_ROWS:
            rows.written = 0
            await loop.run_in_executor(self._thread, copy.file.carry_over)

    def close(self) -> None:
        """Write the rest."""
        self._thread.shutdown()
        try:
            self._copy.rows.flush()
        except DATABASE_ERRORS as error:
            self._on_error(error)
