"""Frame sizes in the daemon: feeds ``proto.sizes`` with what has come, and applies its effects to the data path."""

from __future__ import annotations

import logging
import random
from typing import Any, Final

from ..proto.engine import Engine
from ..proto.links import Said
from ..proto.sizes import Answer, Config, Effect, Hole, Limit, Probe, Sizes, Why
from ..proto.wire import mtu_needed
from .config import Config as Options
from .datapath import DataPath, Heard, Want
from .link import Limits
from .links import Links
from .observe import Journal

SAID: Final = int(Want.SAID)
MS: Final = 1_000_000
HEARD_NS: Final = 25_000 * MS
"""With one link: a station that was heard by LINKS or PROBE so lately is there; it says something every 10 s."""


def said_of(dp: DataPath, link: int, count: int, hears: int, rows: list[Heard]) -> Said:
    """LINKS of this station on a link (number). rows: of all stations."""
    return Said(
        link,
        count,
        hears,
        dp.link_counters(link - 1)["tx_frames"],
        tuple(row.frames for row in rows),
        tuple(row.largest for row in rows),
        tuple(row.round for row in rows),
    )


def take_unread(dp: DataPath) -> None:
    """Take what LINKS, PROBEs and refused frames have said where nobody judges by it: left there, it is news in every turn."""
    while dp.links_said() is not None:  # bound: links x stations
        pass
    dp.links_doubtful()
    dp.links_asked()
    dp.links_large()


class Sizing:
    """One station's frame sizes. ``links`` is set once it exists."""

    links: Links

    def __init__(self, options: Options, limits: Limits, *, engine: Engine, dp: DataPath, journal: Journal) -> None:
        self._stations = limits.stations
        self._count = options.links.count
        self._overhead = limits.overhead
        self._machine = Sizes(
            Config(
                station=options.station.id,
                stations=limits.stations,
                links=tuple(options.interfaces),
                needed=limits.mtu_needed,
                most=engine.config.frame_max + limits.overhead,
                speaks=self._count == 1,
            ),
            random.Random(engine.config.seed).randrange,
        )
        self._engine = engine
        self._dp = dp
        self._journal = journal
        self._mtu: dict[int, int] = {}
        self._rounds: dict[tuple[int, int], int] = {}
        self._deadline_ns = 0
        self._last_members: tuple[int, ...] = ()
        self._holes = 0
        self._told: Limit | None = None
        self.answer_by: Any = None
        """With several links: who says LINKS on one (``Judging.say``)."""

    def on_configuration(self, stations: int) -> None:
        """The engine has another core, and numbers of stations are up to this now. What is proven stays so."""
        self._stations = stations
        self._machine.on_stations(stations, mtu_needed(stations) + self._overhead)
        self._limit(self._machine.limit)
        self.wake()

    def wake(self) -> None:
        """Something has changed: look at once."""
        self._deadline_ns = 0

    def tick(self) -> None:
        """About once a second, at rest every two: what the others can receive comes with any PDU, which nobody tells."""
        if self._ceiling(self._members()) != self._machine.ceiling:
            self.wake()

    def deadline_ns(self) -> int:
        """When ``serve`` is due at the latest."""
        return self._deadline_ns

    def serve(self, now: int, want: int) -> bool:
        """Take what has come, and judge if it is time. want: of the turn. Returns whether PDUs of another size are built now."""
        members = self._members()
        if not want & SAID and now < self._deadline_ns and members == self._last_members:
            return False
        self._last_members = members
        if self.answer_by is None:
            self._read(now)
        machine = self._machine
        for link in self.links:
            mtu = link.info.mtu if link.is_open and link.info is not None else 0
            if mtu != self._mtu.get(link.number, 0):
                self._mtu[link.number] = mtu
                machine.on_interface(now, link.number, mtu)
        for index in self._dp.links_asked():
            self._note_probes(now, index + 1)
        large, again = self._dp.links_large()
        if large:
            machine.on_large(now, [index + 1 for index in large])
        if again:
            machine.on_again()
        before = machine.limit
        for effect in machine.step(now, members, self._ceiling(members)):
            self._apply(effect, now)
        self._tell(now)
        self._deadline_ns = max(machine.deadline_ns(), now + MS)
        return machine.limit != before

    def on_links(self, now: int, station: int, index: int, said: Said) -> None:
        """LINKS has come on a link (index)."""
        own = self._machine.config.station - 1
        if len(said.frames) == self._stations:
            self._machine.on_said(now, index + 1, station, said.rounds[own], said.largest[own])

    def _read(self, now: int) -> None:
        while (came := self._dp.links_said()) is not None:  # bound: stations
            station, index, body = came
            said = Said.read(body)
            if said is not None:
                self.on_links(now, station, index, said)

    def _note_probes(self, now: int, link: int) -> None:
        for station, row in enumerate(self._dp.links_heard(link - 1)[: self._stations], 1):
            if row.round != self._rounds.get((link, station), 0):
                self._rounds[link, station] = row.round
                self._machine.on_probe(now, link, station)

    def _members(self) -> tuple[int, ...]:
        if not self._engine.instance:
            return ()
        membership = self._engine.membership
        return tuple(sorted({*membership.members, *membership.awaited}))

    def _ceiling(self, members: tuple[int, ...]) -> int:
        own = self._machine.config.station
        said = [self._engine.core.peer(station - 1).frame_max for station in members if station != own]
        return min([self._machine.config.most, *(size + self._overhead for size in said if size)])

    def _apply(self, effect: Effect, now: int) -> None:
        match effect:
            case Probe():
                self._dp.probe(effect.link - 1, effect.body(), effect.size)
            case Answer(link):
                if self.answer_by is not None:
                    self.answer_by(link)
                else:
                    self._answer(now, link)
            case Limit():
                self._limit(effect)
            case Hole(link, station, size):
                self._holes += 1
                where = f"link {link} to station {station}" if station else f"the interface of link {link}"
                text = f"{where} carries no frames of {size} bytes any more: they stay within {self._machine.base} for now"
                self._journal.event(logging.WARNING, "frame size", text, now=now, key=f"hole {link} {station}", link=link)

    def _answer(self, now: int, link: int) -> None:
        rows = self._dp.links_heard(link - 1)[: self._stations]
        hears = sum(1 << i for i, row in enumerate(rows) if row.heard_ns and now - row.heard_ns <= HEARD_NS)
        self._dp.links_say(link - 1, said_of(self._dp, link, self._count, hears, rows).packed())

    def _limit(self, limit: Limit) -> None:
        size = limit.size - self._overhead
        self._dp.limit_size(size, min(limit.base - self._overhead, size))

    def _tell(self, now: int) -> None:
        """The journal has a line when less passes than interfaces say, once that has been found out, and when it is over."""
        limit = self._machine.limit
        if limit == self._told or not self._machine.is_settled or limit.why not in (Why.PROVEN, Why.INTERFACE):
            return
        narrow, was_narrow = limit.why is Why.PROVEN, self._told is not None and self._told.why is Why.PROVEN
        if narrow or was_narrow:
            level = logging.WARNING if narrow else logging.INFO
            self._journal.event(level, "frame size", self.text(), now=now, key="limit", frame_max=limit.size - self._overhead)
        self._told = limit

    def text(self) -> str:
        """For people: how large frames are, and why."""
        limit = self._machine.limit
        size = min(limit.size, self._machine.ceiling) - self._overhead
        if limit.why is Why.ALONE or not limit.link:
            return f"frame_max {size}: no other member"
        way = f"link {limit.link} to station {limit.station}"
        says = max(self._mtu.values(), default=0)
        match limit.why:
            case Why.INTERFACE:
                return f"frame_max {size}: all that interfaces carry"
            case Why.PROVEN:
                return f"frame_max {size}: {way}; interfaces say {says}: something between carries less"
            case Why.HOLD:
                return f"frame_max {size}: {way}; more has passed again, but not for long"
            case _:
                return f"frame_max {size}: {way}; nothing is known yet of what passes"

    @property
    def source(self) -> str | None:
        """What keeps frames smaller than interfaces say, for docs/status.md; None: nothing does."""
        limit = self._machine.limit
        if limit.why in (Why.INTERFACE, Why.ALONE):
            return None
        more = {Why.HOLD: " (held)", Why.UNPROVEN: " (unproven)"}.get(limit.why, "")
        return f"link {limit.link} to station {limit.station}{more}"

    def status(self) -> dict[str, Any]:
        """``frame_sizes`` of docs/status.md."""
        machine, limit = self._machine, self._machine.limit
        return {
            "limit": limit.size,
            "base": limit.base,
            "why": str(limit.why),
            "link": limit.link or None,
            "station": limit.station or None,
            "settled": machine.is_settled,
            "holes": self._holes,
            "text": self.text(),
        }
