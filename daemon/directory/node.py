"""All zones of a station, those that it keeps and those that it does not, and what stations ask each other about them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from itertools import count
from typing import Any, Final

from ...proto.service.directory.entries import DEFAULT_ZONE, place_text
from ...proto.service.directory.lookup import Answer, Ask, NotHere
from ...proto.service.directory.parts import Parts
from ...proto.service.directory.questions import EVERYBODY, Message, Query, Reply, decode, encode
from ...proto.service.directory.remote import at
from ..client import ClientError, NotReachable, View, connect
from ..client import Message as GroupMessage
from ..client.aio import Connection, Group
from ..companion import until_first
from ..config import Config
from ..observe import Journal
from .away import Away
from .copy import Copy
from .process import RETRY_S, TURN_S
from .report import status
from .zones import ZoneProcess, group_of

ASK: Final = "zenjun.dir.ask"


class Node:
    """The zones of this station by name, and its connection for those that it does not keep."""

    def __init__(self, config: Config, parts: Parts, copies: Mapping[str, Copy], journal: Journal) -> None:
        """copies: of the zones that this station keeps."""
        self.config = config
        self.parts = parts
        self.journal = journal
        self.counters: Counter[str] = Counter()
        self.held: dict[str, ZoneProcess] = {}
        self.away: dict[str, Away] = {}
        self.others: dict[int, str] = {}
        """Stations whose zones are configured differently, and how."""
        numbers = count(1)
        for zone, holders in parts.holders.items():
            if zone in copies:
                self.held[zone] = ZoneProcess(config, copies[zone], journal, zone, holders, numbers)
                self.held[zone].say = self._send
            else:
                self.away[zone] = Away(config, zone, holders, numbers)
                self.away[zone].ask = self._send
        self._asking: Group | None = None
        self._connection: Connection | None = None
        self._quorum = False

    def zone_at(self, zone: str) -> ZoneProcess | Away:
        return self.held[zone] if zone in self.held else self.away[zone]

    async def run(self) -> None:
        """Serve all zones, until one of them ends with an error that waiting does not repair."""
        await until_first([*(process.run() for process in self.held.values()), self._ask(), self._turn()])

    async def _turn(self) -> None:
        while True:
            await asyncio.sleep(TURN_S)
            there = self._connection is not None and self._connection.quorum
            if there != self._quorum:
                self._quorum = there
                for away in self.away.values():
                    away.on_quorum(there)
            for away in self.away.values():
                away.turn()

    async def _ask(self) -> None:
        """One connection to zenjund after the other."""
        while True:
            try:
                async with connect(self.config.station.socket, name="zenjun-directory-ask", wait=None) as connection:
                    await self._session(connection)
            except NotReachable:
                raise
            except ClientError as error:
                self.journal.warning("zenjund", f"{error}; trying again")
            finally:
                self._asking = self._connection = None
                for away in self.away.values():
                    away.leave()
            await asyncio.sleep(RETRY_S)

    async def _session(self, connection: Connection) -> None:
        self._connection = connection
        # A bus has one order and no other.
        bus = self.config.cluster.medium == "bus"
        asking = await connection.join(ASK, order="total" if bus else "op", no_self=True, timeout=None)
        self._asking = asking
        readers = [self._read(asking, self._take)]
        for zone, away in self.away.items():
            group = await connection.join(group_of(zone), timeout=None)
            away.join(connection, group)
            readers.append(self._read(group, away.take))
        await until_first(readers)

    @staticmethod
    async def _read(group: Group, take: Any) -> None:
        while True:
            take(await group.recv_items(timeout=None))

    # ---- between stations

    def _send(self, station: int, message: Message) -> None:
        """What is lost is asked for again."""
        self._broadcast(encode(at(station), message))

    def _broadcast(self, data: bytes) -> None:
        try:
            if self._asking is not None and self._asking.send_nowait(data):
                return
        except ClientError:
            pass
        self.counters["asks_dropped"] += 1

    def _take(self, items: list[Any]) -> None:
        for item in items:
            if isinstance(item, GroupMessage):
                found = decode(item.data)
                if found is None:
                    self.counters["asks_malformed"] += 1
                elif found[0] == at(self.config.station.id):
                    self._hear(item.station, found[1])
                elif found[0] == EVERYBODY and isinstance(found[1], Query) and found[1].kind == "parts":
                    self._compare(item.station, str(found[1].body["t"]))
            elif isinstance(item, View):
                for member in item.left:
                    self.others.pop(member[0], None)
                if item.joined:
                    self._broadcast(encode(EVERYBODY, Query(0, DEFAULT_ZONE, "parts", {"t": self.parts.text()})))

    def _hear(self, station: int, message: Message) -> None:
        if isinstance(message, Ask | Query):
            zone = self.parts.of(message.name) if isinstance(message, Ask) else message.zone
            if zone in self.held:
                self.held[zone].keeper.on_question(station, message)
            else:
                self.counters["asks_astray"] += 1
        elif isinstance(message, Answer | Reply):
            for away in self.away.values():
                away.hear(station, message)
        else:
            assert isinstance(message, NotHere)  # of the look-ups by one order for all zones; nobody sends it here

    def _compare(self, station: int, text: str) -> None:
        """Where names are kept has to be the same at all stations."""
        own = self.parts.text()
        if text == own:
            self.others.pop(station, None)
        elif self.others.get(station) != text:
            self.others[station] = text
            self.journal.error("mixed", f"zones and holders are {own} here, and {text} at station {station}: they must be equal")

    # ---- status

    def status(self, programs: int) -> dict[str, Any]:
        """As ``report.status``; ``zones`` has each one by itself."""
        held = [{"zone": zone, "keeps": True, **status(process, programs)} for zone, process in self.held.items()]
        away = [a.status() for a in self.away.values()]
        processes = list(self.held.values())
        zones: list[ZoneProcess | Away] = [*processes, *self.away.values()]
        lookups: Counter[str] = Counter()
        counters = Counter(self.counters)
        for process in processes:
            lookups.update(process.answers.by_code)
            counters.update(process.counters)
        for each in self.away.values():
            lookups.update(each.by_code)
            counters.update(each.counters)
        wrong = sorted({k for p in processes for k in p.clocks.wrong()})
        steps = [f"{p.zone}: {p.step}" for p in processes if not p.active]
        steps += [f"{a.zone}: {a.status()['step']}" for a in self.away.values() if not a.active]
        up = {k for p in processes for k in p.facts.up} | {k for a in self.away.values() for k in a.facts.up}
        awaited = [found for p in processes if (found := p.awaited()) is not None]
        missing = sorted({k for found in awaited for k in found["missing"]})
        return {
            "station": self.config.station.id,
            "cluster": self.config.cluster.name,
            "placement": self.config.directory.placement,
            "active": not steps,
            "step": "; ".join(steps) or "active",
            "awaited": {"missing": missing, "quorum": all(found["quorum"] for found in awaited)} if missing else None,
            "stale_ms": max((p.stale_ms() for p in processes), default=0),
            "place": place_text(max(p.facts.place for p in processes)) if processes else "",
            "names": sum(p.facts.names for p in processes),
            "leases": sum(p.facts.leases for p in processes),
            "leases_here": sum(len(z.leases) for z in zones),
            "programs": programs,
            "watches": sum(len(p.watches) for p in processes) + sum(len(a.on_changed) for a in self.away.values()),
            "kept": sum(len(p.tracking) for p in processes),
            "stations": sorted(up),
            "holders": sorted({k for each in (*held, *away) for k in each["holders"]}),
            "clocks": {k: offset for p in processes for k, offset in _clocks(p).items()},
            "wrong_clocks": wrong,
            "sums": "; ".join(f"{zone} {p.facts.main:032x} {p.facts.rest:032x}" for zone, p in self.held.items()),
            "updates_under_way": sum(len(z.updates) for z in zones),
            "update": "ordered",
            "attempts": None,
            "lookups": dict(lookups),
            "counters": dict(counters),
            "dns": None,
            "file": ", ".join(str(p.copy.file.path) for p in processes),
            "zones": [*held, *away],
            "mixed": {str(station): text for station, text in sorted(self.others.items())},
        }


def _clocks(process: ZoneProcess) -> dict[str, int]:
    return {str(station): offset for station, offset in sorted(process.clocks.offsets.items())}
