"""Comparisons of all rows with the other sites': begun now and then or by a command, summed beside the applier, reported."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import apsw

from ...proto.service.base import Effect
from ...proto.service.database.machine import Machine
from ...proto.service.database.scrub import UNREADABLE, Compared, complained
from .copy import FileRows
from .scrub import Pinned
from .waiting import NotHere

if TYPE_CHECKING:
    from .site import Site

FIRST_S: Final = 3600.0
"""After the start, until the first one; sooner if they are more frequent."""


_DAMAGE: Final = (apsw.CorruptError, apsw.NotADBError)
"""Everything else (no descriptor, no memory, busy) says nothing of the copy."""


@dataclass(frozen=True, slots=True)
class Summing(Effect):
    """Rows that are to be summed. pinned: None: the copy cannot be read; ``damage`` or ``trouble`` says why."""

    number: int
    pinned: Pinned | None
    damage: str = ""
    trouble: str = ""


def pin(rows: FileRows, number: int) -> Summing:
    """In the thread of the applier, at the place of the comparison."""
    try:
        return Summing(number, Pinned(rows))
    except _DAMAGE as error:
        return Summing(number, None, damage=str(error))
    except apsw.Error as error:
        return Summing(number, None, trouble=str(error))


class Scrubs:
    """Those of one site."""

    def __init__(self, site: Site, every_s: float) -> None:
        """every_s: seconds from one to the next; 0: only when they are asked for."""
        self._site, self._every_s = site, every_s
        self._waiting: dict[int, asyncio.Future[Compared]] = {}
        self._due = time.monotonic() + min(FIRST_S, every_s)
        self.last = ""
        """What the last one has shown, for people."""
        self._damage = ""
        """What SQLite has found in the copy here."""

    async def run(self, summing: Summing, machine: Machine) -> None:
        """Look at the copy, and say what its rows sum up to, and whether SQLite finds something wrong with it: only a comparison
        shows whether the copy is damaged, or the rows are such at all sites. If it cannot be read now nothing is said, and
        nothing is compared: a sum that is not its own would look like damage."""
        damage, trouble, sums = summing.damage, summing.trouble, UNREADABLE
        if (pinned := summing.pinned) is not None:
            try:
                damage = await asyncio.to_thread(pinned.damage)
                sums = await asyncio.to_thread(pinned.sums)
            except _DAMAGE as error:
                damage = damage or str(error)
            except apsw.Error as error:
                trouble = str(error)
            finally:
                await asyncio.to_thread(pinned.close)
        site = self._site
        if site.machine is not machine:
            return
        if trouble:
            self.last = f"not compared: {trouble}"
            site.journal.warning("scrub", f"database {site.name}: {self.last}", version=site.position.version)
            return
        self._damage = damage
        if damage:
            site.journal.warning("scrub", f"database {site.name}: SQLite finds in the copy: {damage}")
            sums = complained(sums) if sums != UNREADABLE else sums
        await site.act(machine.on_sum, summing.number, sums)

    def on_compared(self, compared: Compared) -> None:
        """All active sites have said what they have."""
        site = self._site
        self._due = time.monotonic() + self._every_s
        site.counters["scrubs"] += 1
        stations = ", ".join(str(station) for station, _ in sorted(compared.outside))
        if compared.tied:
            self.last = "the copies differ, and no kind is that of most stations"
        elif stations:
            self.last = f"the copy at station {stations} was damaged"
        elif self._damage:
            self.last = f"equal, and SQLite finds in all copies: {self._damage}"
        else:
            self.last = "equal"
        say = site.journal.info if self.last == "equal" else site.journal.error
        say("scrub", f"database {site.name}: comparison of all rows: {self.last}", version=site.position.version)
        if site.machine is not None and site.machine.me in compared.outside:
            site.counters["damaged"] += 1
        future = self._waiting.pop(compared.number, None)
        if future is not None and not future.done():
            future.set_result(compared)

    async def ask(self, seconds: float) -> dict[str, Any]:
        """A comparison now. Raises NotHere."""
        site = self._site
        deadline = time.monotonic() + seconds
        if not await site.until(lambda: site.active, seconds) or (machine := site.machine) is None:
            raise NotHere(site.why_not())
        shared = machine.shared
        before = {station for station, _ in shared.active} if shared is not None else set()
        number = secrets.randbits(63)
        future: asyncio.Future[Compared] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        await site.act(machine.scrub, number)
        try:
            compared = await asyncio.wait_for(future, max(0.01, deadline - time.monotonic()))
        except TimeoutError:
            raise NotHere("not all have summed their rows in time; what comes of it is in the status") from None
        finally:
            self._waiting.pop(number, None)
        left = before - {station for station, _ in shared.active} if shared is not None else set()
        damaged = {station for station, _ in compared.outside} | left
        return {"stations": sorted(before), "damaged": sorted(damaged), "tied": compared.tied, "version": site.position.version}

    def order_lost(self) -> None:
        """What has begun in this order is not heard of any more."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(NotHere(self._site.files.distrusted or "this station has left the order meanwhile"))
        self._waiting.clear()

    async def turn(self, machine: Machine) -> None:
        """The lowest active site begins one when it is time."""
        shared = machine.shared
        if not self._every_s or shared is None or time.monotonic() < self._due:
            return
        if machine.me == min(shared.active, default=None):
            self._due = time.monotonic() + self._every_s
            await self._site.act(machine.scrub, secrets.randbits(63))
