"""A site's disk: what is committed is brought to it, and the others are told as soon as somebody waits for that."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ...proto.service.base import Effect
from ...proto.service.database.messages import Position
from ...proto.service.database.roll import NOTHING
from . import vfs

if TYPE_CHECKING:
    from .copy import FileRows
    from .doubt import Doubts
    from .site import Site

LATE_S: Final = 0.2
"""After a sync everything has been reported."""
MANY: Final = 4
"""Versions of one sync from which on the next one waits ``PAUSE_S``. A sync and its report take as long as many transactions, and
programs that commit all the time wait for processors, not for the disk."""
PAUSE_S: Final = 0.004


class _Sync(NamedTuple):
    """One that is under way."""

    session: asyncio.Future[None]
    rows: FileRows
    doubts: Doubts
    position: Position
    """All up to it is on the disk afterwards."""


class Syncing:
    """For one site; ``run`` for each of its sessions. All of it is in the thread of the loop, and no task waits for a sync: it
    is on the way of each commit."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._disk: vfs.Disk | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """That watches the disk."""
        self._session: asyncio.Future[None] | None = None
        """Gets what goes wrong; None: there is no session."""
        self._sync: _Sync | None = None
        self._is_held = False
        """The next sync has to wait: for what the last one has to say, or for ``PAUSE_S``."""
        self._needed = False
        self._said: tuple[int, int] = (0, 0)
        """Epoch and version of which the machine knows that the disk has them."""
        self._aimed: tuple[int, int] = (0, 0)
        """Those that the sync which runs, or the last one, is for."""
        self._timer: asyncio.TimerHandle | None = None
        """For what is reported later."""
        self._pause: asyncio.TimerHandle | None = None
        self.seconds = 0.0
        """How long the last sync took."""

    def begin(self) -> None:
        """Another session of the site: nothing has been said in it."""
        self._said = self._aimed = (0, 0)

    def look(self, position: Position) -> None:
        """The copy of a site that follows has this."""
        if position[:2] != self._aimed:
            self._needed = True
            self._start()

    def close(self) -> None:
        """Once. What a sync that is under way has to say is not heard any more."""
        if self._disk is not None and self._loop is not None:
            self._loop.remove_reader(self._disk.told)
            self._disk.close()
            self._disk = None

    async def run(self) -> None:
        """Let commits be brought to the disk, those that have come meanwhile at once, and have it said. Ends with what goes
        wrong."""
        self._session = asyncio.get_running_loop().create_future()
        self._is_held = False
        try:
            self._start()
            await self._session
        finally:
            self._session = None
            for timer in (self._timer, self._pause):
                if timer is not None:
                    timer.cancel()
            self._timer = self._pause = None

    def _start(self) -> None:
        session, site = self._session, self._site
        if not self._needed or session is None or self._sync is not None or self._is_held:
            return
        self._needed = False
        rows, position = site.rows, site.position
        if rows is None or position == NOTHING:
            return
        self._aimed = position[:2]
        doubts = site.doubts
        try:
            disk = self._watched()
            doubts.begin()
            try:
                disk.sync(rows.wal)
            except BaseException:
                doubts.failed()
                doubts.end()
                raise
        except OSError as error:
            self._failed(f"{rows.wal}: {error.strerror or error}")
            return
        self._sync = _Sync(session, rows, doubts, position)

    def _watched(self) -> vfs.Disk:
        """The disk's thread. Raises OSError."""
        if self._disk is None:
            self._disk, self._loop = vfs.Disk(), asyncio.get_running_loop()
            self._loop.add_reader(self._disk.told, self._ended)
        return self._disk

    def _ended(self) -> None:
        """A sync has."""
        if self._disk is None or self._sync is None or (taken := self._disk.take()) is None:
            return
        sync, self._sync, site = self._sync, None, self._site
        error, self.seconds = taken
        if error:
            sync.doubts.failed()
        try:
            sync.doubts.end()
        except OSError as failure:  # then there is doubt, as before the sync
            site.journal.error("sync", f"database {site.name}: {failure.strerror}")
        if sync.session is not self._session:
            self._start()
        elif error:
            self._failed(f"{sync.rows.wal}: {os.strerror(error)}")
        elif sync.rows is not site.rows:
            self._aimed = (0, 0)
            self._start()
        else:
            self._tell(sync)

    def _failed(self, reason: str) -> None:
        self._aimed = (0, 0)
        if (machine := self._site.machine) is not None:
            self._site.soon(self._site.act(machine.fail, reason))

    def _tell(self, sync: _Sync) -> None:
        """The machine learns what is on the disk, at once if that is possible."""
        before, self._is_held = self._said, True
        if not self._site.is_free:
            self._site.soon(self._tell_later(sync, before))
            return
        try:
            self._site.act_now(self._say, sync.position)
            self._go_on(sync, before)
        except Exception as error:
            self._wrong(sync, error)

    async def _tell_later(self, sync: _Sync, before: tuple[int, int]) -> None:
        try:
            await self._site.act(self._say, sync.position)
            self._go_on(sync, before)
        except Exception as error:
            self._wrong(sync, error)

    def _wrong(self, sync: _Sync, error: Exception) -> None:
        """It ends the session."""
        if sync.session.done():
            raise error
        sync.session.set_exception(error)

    def _go_on(self, sync: _Sync, before: tuple[int, int]) -> None:
        """It is told: now the next one, perhaps after a pause."""
        if sync.session is not self._session:
            return  # the next session holds nothing
        self._report_later()
        if sync.position.epoch == before[0] and sync.position.version - before[1] >= MANY:
            self._pause = asyncio.get_running_loop().call_later(PAUSE_S, self._release)
        else:
            self._release()

    def _release(self) -> None:
        self._pause, self._is_held = None, False
        self._start()

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
