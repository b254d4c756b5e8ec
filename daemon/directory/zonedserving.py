"""The socket for programs at a station with several zones, or with none: a request goes to the part for the zone of its name.

A part is what ``serving.Client`` is where there is one zone only. It writes by the connection of the program.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

from ...proto.service.directory.draft import Change
from ...proto.service.directory.entries import NOWHERE, Entry, Place, parse_place, place_text
from ...proto.service.directory.messages import Id
from ...proto.service.directory.names import is_name, lower
from ...proto.service.directory.operate import HOPS_MAX
from ...proto.service.directory.operations import In, Move, Operation, Out, SetZone, operation_row
from ...proto.service.directory.remote import read_outcome
from ...proto.service.directory.watch import Watch
from ..listening import Listener
from ..observe import Journal
from ..programs import Program, Programs, Refused
from .away import Away
from .copy import DATABASE_ERRORS, bounds
from .node import Node
from .process import Process
from .serving import WATCHES_MAX, Client, Server, _name, _operation, _row
from .updates import Pending
from .wire import FRAME_MAX, LIST_MAX, UNDER_WAY_MAX, VERSION, Frame
from .zones import ZoneProcess

PROD_S: Final = 0.05
"""Between two messages by which a copy is brought to a place that another zone's answer had."""
WATCH_S: Final = 0.1
"""Least time between two looks at the names of a zone that is not kept here, for its watches."""


class Elsewhere(Exception):
    """An alias leads to a name in another zone. path: the names on the way, that one last."""

    def __init__(self, path: Sequence[str]) -> None:
        super().__init__(path[-1])
        self.path = list(path)


Page = tuple[Place, list[Entry], str]
"""Place, entries, and the name where the next page begins; "": there is none."""


class HeldPart(Client):
    """Requests about names of a zone that this station keeps."""

    def __init__(self, outer: ZonedClient, process: ZoneProcess) -> None:
        super().__init__(_as_server(process), outer.uid, outer.gid)
        self.outer = outer
        self.zone = process.zone

    def write(self, frame: Frame) -> None:
        self.outer.write_for(self.zone, frame)

    def inside(self, name: str) -> bool:
        """Whether a look-up ends in this zone."""
        path = self._process.answers.follow(name).path
        return len(path) == 1 or self.outer.node.parts.of(path[-1]) == self.zone

    async def resolve(self, frame: Frame) -> Frame:
        """Answer a look-up; raises Elsewhere."""
        await self._readable(frame)
        name = _name(frame)
        if not self.inside(name):
            raise Elsewhere(self._process.answers.follow(name).path)
        return self.completed(self._lookup(frame))

    async def _catch_up(self, frame: Frame) -> None:
        """The place may be of an answer from another zone, and none of this one's group: an own message gives a later one."""
        if frame.get("fresh"):
            await super()._catch_up({**frame, "after": None})
        wanted = parse_place(str(frame["after"])) if frame.get("after") else NOWHERE
        while self._process.facts.place < wanted:
            if not self._process.stale_ms():
                await self._process.fresh()
            await asyncio.sleep(0 if self._process.facts.place >= wanted else PROD_S)

    async def page(self, frame: Frame, first: str, last: str) -> Page:
        self._process.check_stale()
        await self._readable(frame)
        place, found = await self._process.work(self._process.copy.entries, first, last)
        return place, found[:LIST_MAX], found[LIST_MAX].name if len(found) > LIST_MAX else ""


class AwayPart(Client):
    """Requests about names of a zone that this station does not keep."""

    def __init__(self, outer: ZonedClient, away: Away) -> None:
        super().__init__(_as_server(cast(Process, away)), outer.uid, outer.gid)
        self.outer = outer
        self.away = away
        self.zone = away.zone
        self._seen: Place = NOWHERE
        """Place of the program's last answer of this zone."""
        self._watching: dict[int, asyncio.Task[None]] = {}

    def write(self, frame: Frame) -> None:
        self.outer.write_for(self.zone, frame)

    def ended(self) -> None:
        for task in self._watching.values():
            task.cancel()
        ended = [number for number in self._leases if self.away.leases.remove(number)]
        self.away.end_leases(ended)

    def completed(self, answer: Frame) -> Frame:
        answer.setdefault("place", place_text(self._seen))
        return answer

    # ---- look-ups

    async def _after(self, frame: Frame) -> Place:
        """The place that an answer must have reached."""
        after = self._seen
        if frame.get("fresh"):
            after = max(after, await self._in_time(frame, self.away.fresh()))
        if wanted := frame.get("after"):
            place = parse_place(str(wanted))
            if place > after:
                after = await self._in_time(frame, self.away.reached(place))
        return after

    async def resolve(self, frame: Frame) -> Frame:
        """Answer a look-up; raises Elsewhere."""
        try:
            name = _name(frame)
            after = await self._after(frame)
            found = await self._in_time(frame, self.away.look_up(name, after))
            self._seen = max(self._seen, found.place)
            path = found.path or (name,)
            if found.code == "no-name" and len(path) > 1 and self.outer.node.parts.of(path[-1]) != self.zone:
                raise Elsewhere(path)
            if found.code:
                raise Refused(found.code, _why(found.code, path))
        except Refused as refused:
            self._count(refused.code)
            raise
        self._count("ok")
        targets = self.away.choose(path[-1], found, str(frame.get("key") or "").encode("utf-8", "surrogatepass"))
        return {
            "name": path[-1],
            "path": list(path),
            "addresses": [t.address for t in targets],
            "targets": [list(t) for t in targets],
            "selection": found.selection,
            "zone": found.zone,
            "owner": found.owner,
            "ttl": found.ttl,
            "meta": dict(found.meta),
            "version": place_text(found.version),
            "place": place_text(found.place),
        }

    def _count(self, code: str) -> None:
        self.away.by_code[code] = self.away.by_code.get(code, 0) + 1

    async def page(self, frame: Frame, first: str, last: str) -> Page:
        after = await self._after(frame)
        place, found, following = await self._in_time(frame, self.away.entries(first, last, LIST_MAX, after))
        self._seen = max(self._seen, place)
        return place, found, following

    async def _do_zones(self, frame: Frame) -> Frame:
        reply = await self._in_time(frame, self.away.inquire("zones", {}, self._seen))
        return {"zones": reply.body["z"]}

    async def _do_outs(self, frame: Frame) -> Frame:
        reply = await self._in_time(frame, self.away.inquire("outs", {}, self._seen))
        return {"outs": reply.body["o"]}

    async def _do_outcome(self, frame: Frame) -> Frame:
        client, counter = frame.get("c"), frame.get("n")
        if type(client) is not str or type(counter) is not int:
            raise Refused("malformed", "an update's id is c and n")
        outcome = read_outcome((await self._in_time(frame, self.away.inquire("outcome", {"c": client, "n": counter}))).body)
        if outcome is None:
            return {"known": False}
        return {"known": True, "code": outcome.code, "text": outcome.text, "place": place_text(outcome.place)}

    # ---- updates and leases

    async def _update(self, frame: Frame, operations: tuple[Operation, ...]) -> Pending:
        await self._in_time(frame, self.away.can_change())
        pending = await super()._update(frame, operations)
        self.away.start(pending.update.id)
        return pending

    async def _done(self, frame: Frame, pending: Pending) -> Frame:
        try:
            answer = await super()._done(frame, pending)
            self._seen = max(self._seen, parse_place(answer["place"]))
            return answer
        finally:
            if self.away.remote is not None:
                self.away.remote.untrack(Id(*pending.update.id))

    async def _do_register(self, frame: Frame) -> Frame:
        answer = await super()._do_register(frame)
        if self.away.remote is not None:
            self.away.remote.hold(answer["lease"], answer["held"])
        return answer

    # ---- watches

    async def _do_watch(self, frame: Frame) -> Frame:
        subject, number = lower(str(frame.get("name") or "")), frame.get("watch")
        if type(number) is not int or number in self._watching:
            raise Refused("malformed", "a watch needs a number of its own")
        if len(self.away.on_changed) >= WATCHES_MAX:
            raise Refused("full", f"{WATCHES_MAX} watches are here")
        watch = Watch(subject)
        passed = self.away.passed
        place, entries = await self._in_time(frame, self._all(subject))
        # What is gone from a zone that is not kept here, nobody here knows.
        watch.start(place, entries, missed=bool(frame.get("since")))
        self._watches[number] = watch
        self._watching[number] = asyncio.get_running_loop().create_task(self._follow(number, watch, passed, entries))
        asyncio.get_running_loop().call_soon(self._tell, number)
        return {}

    async def _do_unwatch(self, frame: Frame) -> Frame:
        number = frame.get("watch", -1)
        self._watches.pop(number, None)
        if (task := self._watching.pop(number, None)) is not None:
            task.cancel()
        return {}

    async def _all(self, subject: str) -> tuple[Place, list[Entry]]:
        first, last = bounds(subject)
        entries: list[Entry] = []
        place, after = NOWHERE, self._seen
        while True:
            place, found, first = await self.away.entries(first, last, LIST_MAX, max(after, place))
            entries += found
            if not first:
                return place, entries

    async def _follow(self, number: int, watch: Watch, passed: int, entries: Sequence[Entry]) -> None:
        """Look at the names again when they may have changed. What lies between two looks is reported as left out."""
        known = {entry.name: entry for entry in entries}
        changed = asyncio.Event()
        if passed != self.away.passed:
            changed.set()
        self.away.on_changed.add(changed.set)
        try:
            while True:
                await changed.wait()
                changed.clear()
                try:
                    before, passed = passed, self.away.passed
                    place, entries = await self._all(watch.subject)
                except Refused:
                    changed.set()  # no holder is active, or this station is alone: the watch goes on afterwards
                    await asyncio.sleep(10 * WATCH_S)
                    continue
                found = {entry.name: entry for entry in entries}
                changes = [
                    Change(name, known.get(name), found.get(name))
                    for name in sorted({*known, *found})
                    if known.get(name) != found.get(name)
                ]
                known = found
                if changes:
                    if passed - before != 1:
                        watch.skip(place)
                    watch.on_changes(place, changes)
                    self._tell(number)
                await asyncio.sleep(WATCH_S)
        finally:
            self.away.on_changed.discard(changed.set)


class ZonedClient(Program):
    """One program."""

    version = VERSION
    frame_max = FRAME_MAX
    under_way_max = UNDER_WAY_MAX
    errors = DATABASE_ERRORS

    def __init__(self, server: ZonedServer, uid: int, gid: int) -> None:
        super().__init__()
        self.node = server.node
        self.uid, self.gid = uid, gid
        self._connected = server.connections
        self._parts: dict[str, HeldPart | AwayPart] = {
            **{zone: HeldPart(self, process) for zone, process in self.node.held.items()},
            **{zone: AwayPart(self, away) for zone, away in self.node.away.items()},
        }
        self._unlisted: dict[int, set[str]] = {}
        """Zones whose names a watch has not listed yet."""

    # ---- the connection

    def hello(self) -> Frame:
        config = self.node.config
        return {"station": config.station.id, "stations": config.cluster.stations, "cluster": config.cluster.name, "place": ""}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        for part in self._parts.values():
            part._transport = self._transport

    def ended(self) -> None:
        for part in self._parts.values():
            part._transport = None
            part.ended()

    def pause_writing(self) -> None:
        super().pause_writing()
        for part in self._parts.values():
            part._writable = False

    def resume_writing(self) -> None:
        super().resume_writing()
        for part in self._parts.values():
            part._writable = True
            for number in list(part._watches):
                part._tell(number)

    def completed(self, answer: Frame) -> Frame:
        return answer

    def refusal(self, error: Exception) -> Refused:
        return Refused("failed", f"{self.node.config.station.state_dir}: {error}")

    def write_for(self, zone: str, frame: Frame) -> None:
        """News from a part. All names of a watch are listed when those of every zone are."""
        number = frame.get("watch")
        waiting = self._unlisted.get(number) if type(number) is int else None
        if waiting:
            events = []
            for event in frame["events"]:
                if event[0] == "listed" and zone in waiting:
                    waiting.discard(zone)
                    if waiting:
                        continue
                events.append(event)
            frame = {**frame, "events": events}
            if not waiting:
                del self._unlisted[cast(int, number)]
            if not events:
                return
        self.write(frame)

    # ---- look-ups

    def _part(self, name: str) -> HeldPart | AwayPart:
        return self._parts[self.node.parts.of(name)]

    def at_once(self, do: str, frame: Frame) -> Callable[[Frame], Frame] | None:
        if do != "lookup" or frame.get("fresh") or "after" in frame:
            return None
        name = lower(str(frame.get("name") or ""))
        part = self._part(name)
        if not isinstance(part, HeldPart) or not is_name(name) or part._process.stale_ms() or not part.inside(name):
            return None
        return lambda frame: part.completed(part._lookup(frame))

    async def _do_lookup(self, frame: Frame) -> Frame:
        name, before = _name(frame), []  # type: ignore[var-annotated]
        while len(before) <= HOPS_MAX:
            part = self._part(name)
            asked = {**frame, "name": name, "track": frame.get("track") and not before}
            try:
                answer = await part.resolve(asked)
            except Elsewhere as elsewhere:
                before += elsewhere.path[:-1]
                name = elsewhere.path[-1]
                continue
            except Refused as refused:
                if before and refused.code == "no-name":
                    raise Refused("no-name", f"there is no name {name!r} ({' → '.join([*before, name])})") from None
                raise
            if before:
                answer["path"] = [*before, *answer["path"]]
                answer.pop("tracked", None)
            if len(answer["path"]) <= HOPS_MAX + 1:
                return answer
            before = answer["path"]
        raise Refused("alias-loop", f"too many aliases: {' → '.join(before[: HOPS_MAX + 1])}")

    async def _do_list(self, frame: Frame) -> Frame:
        first, last = bounds(lower(str(frame.get("prefix") or "")))
        first = max(first, str(frame.get("from") or ""))
        zones = self.node.parts.beneath(lower(str(frame.get("prefix") or "")))
        entries: list[Entry] = []
        following, place, down = "", NOWHERE, []
        for zone in zones:
            try:
                at, found, goes_on = await self._parts[zone].page(frame, first, last)
            except Refused as refused:
                if refused.code != "zone-down" or len(zones) == 1:
                    raise
                down.append(zone)
                continue
            place = max(place, at)
            entries += found
            if goes_on and (not following or goes_on < following):
                following = goes_on
        entries = sorted((e for e in entries if not following or e.name < following), key=lambda e: e.name)
        if len(entries) > LIST_MAX:
            following = entries[LIST_MAX].name
        answer: Frame = {"names": [_row(entry) for entry in entries[:LIST_MAX]], "place": place_text(place)}
        if following:
            answer["next"] = following
        if down:
            answer["down"] = down
        return answer

    async def _each(self, frame: Frame, do: str, key: str) -> Frame:
        """What all zones answer, together; those that are down are named."""
        found: list[Any] = []
        down = []
        for zone, part in self._parts.items():
            try:
                found += [item for item in (await getattr(part, do)(frame))[key] if item not in found]
            except Refused as refused:
                if refused.code != "zone-down":
                    raise
                down.append(zone)
        return {key: found, **({"down": down} if down else {})}

    async def _do_zones(self, frame: Frame) -> Frame:
        return await self._each(frame, "_do_zones", "zones")

    async def _do_outs(self, frame: Frame) -> Frame:
        return await self._each(frame, "_do_outs", "outs")

    async def _do_status(self, frame: Frame) -> Frame:
        return {**self.node.status(len(self._connected)), "uid": self.uid}

    # ---- updates

    def _zone_of(self, operations: Sequence[Operation]) -> str:
        """The zone that an update is about; raises Refused for one that is about several."""
        parts, zones = self.node.parts, {}
        for operation in operations:
            name = str(getattr(operation, "name", ""))
            zone = name if isinstance(operation, SetZone) and name in parts.holders else parts.of(name)
            if isinstance(operation, SetZone) and name not in parts.holders:
                zone = parts.of("")
            wanted = "" if isinstance(operation, SetZone) else str(getattr(operation, "zone", ""))
            if wanted and wanted != zone and (wanted in parts.holders or zone != parts.of("")):
                what = "cannot move" if isinstance(operation, Move) else "is in zone " + zone
                raise Refused("zone", f"{name} {what}: names of zone {wanted} are those that end in .{wanted}")
            zones[zone] = name
        if len(zones) > 1:
            named = ", ".join(f"{name} in {zone}" for zone, name in sorted(zones.items()))
            raise Refused("zone", f"an update is about names of one zone: {named}")
        return next(iter(zones))

    async def _do_update(self, frame: Frame) -> Frame:
        rows = frame.get("ops")
        if type(rows) is not list or not 0 < len(rows) <= 64:
            raise Refused("too-large" if rows else "malformed", "an update has 1 to 64 operations")
        operations = [_operation(row) for row in rows]
        everywhere = [operation for operation in operations if isinstance(operation, Out | In)]
        if not everywhere:
            part = self._parts[self._zone_of(operations)]
            return part.completed(await part._do_update(frame))
        if len(everywhere) < len(operations):
            raise Refused("zone", "what is out of use is so in all zones: out and in are updates of their own")
        return await self._in_all(frame)

    async def _in_all(self, frame: Frame) -> Frame:
        """An update in each zone, one after the other. An address that is in use in some of the zones only may be put back."""
        answer: Frame = {}
        refused: dict[str, Refused] = {}
        for zone, part in self._parts.items():
            try:
                answer = part.completed(await part._do_update(frame))
            except Refused as error:
                refused[zone] = error
        if not refused or (answer and all(error.code == "no-address" for error in refused.values())):
            return answer
        zone, first = next(iter(refused.items()))
        done = ", ".join(each for each in self._parts if each not in refused)
        raise Refused(first.code, f"zone {zone}: {first}" + (f"; it is done in {done}" if done else ""))

    async def _do_outcome(self, frame: Frame) -> Frame:
        down: Refused | None = None
        for part in self._parts.values():
            try:
                answer = await part._do_outcome(frame)
            except Refused as refused:
                if refused.code != "zone-down":
                    raise
                down = refused
                continue
            if answer["known"]:
                return answer
        if down is not None:
            raise down
        return {"known": False}

    # ---- leases

    async def _do_register(self, frame: Frame) -> Frame:
        row = frame.get("op")
        operation = _operation({**row, "l": 1} if type(row) is dict else row)
        part = self._parts[self._zone_of([operation])]
        return part.completed(await part._do_register({**frame, "op": operation_row(operation)}))

    def _part_of_lease(self, frame: Frame) -> HeldPart | AwayPart:
        found = (part for part in self._parts.values() if frame.get("lease") in part._leases)
        return next(found, next(iter(self._parts.values())))

    async def _do_renew(self, frame: Frame) -> Frame:
        return await self._part_of_lease(frame)._do_renew(frame)

    async def _do_release(self, frame: Frame) -> Frame:
        return await self._part_of_lease(frame)._do_release(frame)

    # ---- watches, and what operators do

    async def _do_watch(self, frame: Frame) -> Frame:
        subject, number = lower(str(frame.get("name") or "")), frame.get("watch")
        if (subject and not is_name(subject.removesuffix("."))) or type(number) is not int or number in self._unlisted:
            raise Refused("malformed", "a watch needs a name, or the beginning of names with a dot, and a number of its own")
        zones = self.node.parts.beneath(subject)
        self._unlisted[number] = set(zones)
        begun = []
        try:
            for zone in zones:
                await self._parts[zone]._do_watch(frame)
                begun.append(zone)
        except BaseException:
            self._unlisted.pop(number, None)
            for zone in begun:
                await self._parts[zone]._do_unwatch(frame)
            raise
        return {}

    async def _do_unwatch(self, frame: Frame) -> Frame:
        self._unlisted.pop(frame.get("watch", -1), None)
        for part in self._parts.values():
            await part._do_unwatch(frame)
        return {}

    async def _do_start(self, frame: Frame) -> Frame:
        return await self._operate(frame, "_do_start")

    async def _do_repair(self, frame: Frame) -> Frame:
        return await self._operate(frame, "_do_repair")

    async def _operate(self, frame: Frame, do: str) -> Frame:
        for part in self._held():
            await getattr(part, do)(frame)
        if not self.node.held:
            if self.uid not in (0, os.geteuid()):
                raise Refused("not-permitted", "that is for root and the daemon's user")
            raise Refused("zone", "this station keeps no zone: do that at a holder")
        return {}

    def _held(self) -> Iterator[HeldPart]:
        return (part for part in self._parts.values() if isinstance(part, HeldPart))


class ZonedServer(Programs):
    """Accepts programs."""

    def __init__(self, node: Node, listener: Listener, journal: Journal) -> None:
        self.node = node
        super().__init__(lambda uid, gid: ZonedClient(self, uid, gid), listener, journal)


def _as_server(process: Process) -> Server:
    """What a ``Client`` reads of its server."""
    return cast(Server, SimpleNamespace(process=process, connections=()))


def _why(code: str, path: Sequence[str]) -> str:
    way = " → ".join(path)
    if code == "no-name":
        return f"there is no name {path[-1]!r}" + (f" ({way})" if len(path) > 1 else "")
    return f"no address of {path[-1]!r} is up" if code == "no-address" else f"too many aliases: {way}"
