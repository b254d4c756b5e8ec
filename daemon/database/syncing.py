"""A site's disk: what is committed is brought to it, and the others are told as soon as somebody waits for that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from ...proto.service.base import Effect
from ...proto.service.database.messages import Position
from ...proto.service.database.roll import NOTHING
from .doubt import sync_file

if TYPE_CHECKING:
    from .site import Site

LATE_S: Final = 0.2
"""After a sync everything has been reported."""
MANY: Final = 4
"""Versions of one sync from which on the next one waits ``PAUSE_S``. A sync and its report take as long as many transactions, and
programs that commit all the time wait for processors, not for the disk."""
PAUSE_S: Final = 0.004


class Syncing:
    """For one site; ``run`` for each of its sessions."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"sync-{site.name}")
        self._needed = asyncio.Event()
        self._said: tuple[int, int] = (0, 0)
        """Epoch and version of which the machine knows that the disk has them."""
        self._aimed: tuple[int, int] = (0, 0)
        """Those that the sync which runs, or the last one, is for."""
        self._timer: asyncio.TimerHandle | None = None
        """For what is reported later."""
        self.seconds = 0.0
        """How long the last sync took."""

    def begin(self) -> None:
        """Another session of the site: nothing has been said in it."""
        self._said = self._aimed = (0, 0)

    def look(self, position: Position) -> None:
        """The copy of a site that follows has this."""
        if position[:2] != self._aimed:
            self._needed.set()

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    async def run(self) -> None:
        """Bring commits to the disk, those that have come meanwhile at once, and say so."""
        try:
            while True:
                await self._needed.wait()
                self._needed.clear()
                await self._sync()
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    async def _sync(self) -> None:
        site = self._site
        rows, position, before = site.rows, site.position, self._said
        if rows is None or position == NOTHING:
            return
        began, self._aimed = time.monotonic(), position[:2]
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, sync_file, rows.wal, site.doubts)
        except OSError as error:
            machine = site.machine
            self._aimed = (0, 0)
            if machine is not None:
                await site.act(machine.fail, f"{rows.wal}: {error.strerror}")
            return
        self.seconds = time.monotonic() - began
        if rows is not site.rows:
            self._aimed = (0, 0)
            return
        await site.act(self._say, position, is_short=True)
        self._report_later()
        if position.epoch == before[0] and position.version - before[1] >= MANY:
            await asyncio.sleep(PAUSE_S)

    def _say(self, position: Position) -> Sequence[Effect]:
        """In the thread of the applier."""
        machine = self._site.machine
        if machine is None or machine.shared is None or machine.shared.epoch != position.epoch:
            self._aimed = (0, 0)
            return []
        self._said = position[:2]
        return machine.on_synced(position.version)

    def _report_later(self) -> None:
        machine = self._site.machine
        if self._timer is None and machine is not None and machine.owes_report:
            self._timer = asyncio.get_running_loop().call_later(LATE_S, self._report)

    def _report(self) -> None:
        self._timer = None
        machine = self._site.machine
        if machine is not None and machine.owes_report:
            self._site.soon(self._site.act(machine.report, is_short=True))
