"""Zones with holders of their own: where their names are at this station, and the process for one that it keeps.

Each zone has a group, a file and a copy of its own, so it is a directory by itself. Answers for stations that do not keep it go
by the group ``zenjun.dir.ask`` (``node.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ...proto.service.directory.entries import DEFAULT_ZONE
from ...proto.service.directory.keeping import Keeper, answer_of
from ...proto.service.directory.lookup import Answer
from ...proto.service.directory.messages import Holding
from ...proto.service.directory.parts import Parts, parse_zone
from ...proto.service.directory.questions import Question, Reply
from ..config import Config
from ..observe import Journal
from .copy import DATABASE_ERRORS, Applied, Copy, Input, Seen
from .leases import Leases
from .process import GROUP, Process
from .store import FILE

ZONE_GROUP: Final = "zenjun.dir.zone."
Say = Callable[[int, Answer | Reply], None]
"""Sends an answer to a station."""


def parts_of(config: Config) -> Parts:
    """The zones with holders of their own, as configured."""
    d = config.directory
    return Parts(config.cluster.stations, d.holders, dict(map(parse_zone, d.zones)))


def group_of(zone: str) -> str:
    """The group in which the names of a zone change."""
    return GROUP if zone == DEFAULT_ZONE else f"{ZONE_GROUP}{zone}"


def file_of(zone: str) -> str:
    """The name of the file with a zone's copy."""
    return FILE if zone == DEFAULT_ZONE else FILE.replace(".db", f".{zone}.db")


class ZoneProcess(Process):
    """A zone that this station keeps."""

    def __init__(
        self, config: Config, copy: Copy, journal: Journal, zone: str, holders: Sequence[int], numbers: Iterator[int]
    ) -> None:
        """numbers: of leases, for all zones of this station."""
        super().__init__(config, copy, journal, holders)
        self.zone = zone
        self.group_name = group_of(zone)
        self.leases = Leases(numbers)
        self.keeper = Keeper(lambda: self.facts.place, self._may_answer, self._answer)
        self.say: Say = lambda station, answer: None
        self._said_active = False
        self._answering: set[asyncio.Task[None]] = set()

    def _may_answer(self) -> bool:
        return self.active and not self.stale_ms()

    def _answer(self, station: int, question: Question) -> None:
        """Between two batches, so that the answer is of one place."""

        def answer() -> Answer | Reply:
            with self.copy.lock:
                return answer_of(self.copy.state, question)

        async def later() -> None:
            try:
                self.say(station, await self.work(answer))
            except DATABASE_ERRORS as error:
                self._on_disk_error(error)

        if self._working:
            task = asyncio.get_running_loop().create_task(later())
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            return
        try:
            self.say(station, answer())
        except DATABASE_ERRORS as error:
            self._on_disk_error(error)

    def _publish(self, applied: Applied, inputs: Sequence[Input]) -> None:
        super()._publish(applied, inputs)
        for result, source in zip(applied.results, inputs, strict=False):
            if isinstance(source, Seen) and not result.skipped:
                others = set(source.joined) - {self.me}
                for station, _ in others:
                    self.keeper.forget(station)
                if others and self._active:
                    self.send(Holding(True))  # a station that has joined does not know who is active
        self.keeper.on_place()

    def _set_active(self) -> None:
        super()._set_active()
        self._said_active = True
        self.keeper.on_place()

    def _look_stale(self) -> None:
        super()._look_stale()
        if self._said_active and not self._active:
            self._said_active = False
            self.keeper.on_place()
            if self._group is not None:
                self.send(Holding(False))  # others ask another holder
