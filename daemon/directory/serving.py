"""The socket for programs: requests of one connection, answered in any order, and news of its watches and leases."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
import pwd
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ...proto.errors import UsageError
from ...proto.service.directory.entries import NOWHERE, Entry, Place, entry_row, parse_place, place_text, zone_row
from ...proto.service.directory.messages import Id, Update, seal
from ...proto.service.directory.names import OPERATOR, is_name, lower
from ...proto.service.directory.operations import Operation, Register, SetSchedule, read_operation
from ...proto.service.directory.store import Table
from ...proto.service.directory.watch import Changed, Event, Listed, Watch
from ..listening import Listener
from ..observe import Journal
from ..programs import Program, Programs, Refused
from ..slots import first_instant
from .copy import DATABASE_ERRORS, bounds
from .leases import Lease
from .process import Process
from .report import status
from .updates import FLAGS, Pending
from .wire import FRAME_MAX, LIST_MAX, UNDER_WAY_MAX, VERSION, WAITS, Frame, beside

WATCHES_MAX: Final = 10_000
LEASES_MAX: Final = 100_000
EVENTS_AT_ONCE: Final = 100
ROLES_S: Final = 5.0
"""How long a change of a user's groups may go unnoticed by a program that is connected."""
TIMEOUT_S: Final = 30.0
"""Time after which an update, or a wait, is given up, unless the request has another one."""


def roles_of(uid: int, gid: int, named: frozenset[str]) -> tuple[str, ...]:
    """What an update of this user is stamped with (rule A1): its user, those of its groups that zones name, ``operator``."""
    try:
        entry = pwd.getpwuid(uid)
        user, groups = entry.pw_name, os.getgrouplist(entry.pw_name, gid)
    except KeyError:
        user, groups = str(uid), [gid]
    roles = {f"user:{user}"}
    for each in groups:
        with contextlib.suppress(KeyError):
            role = f"group:{grp.getgrgid(each).gr_name}"
            if role in named:
                roles.add(role)
    if uid in (0, os.geteuid()):
        roles.add(OPERATOR)
    return tuple(sorted(roles))


WHY: Final = {
    "name": "a name is labels of a-z 0-9 - _, 1 to 63 characters each, joined by dots, 253 in all",
    "address": "an address is a URI of at most 512 printable ASCII characters, or mac:…, station:K, station:K/PROGRAM",
    "target": "a name has at most 64 addresses, with priority and weight from 0 to 65535",
    "zone": "a zone is named like a label: a-z 0-9 - _, 1 to 63 characters",
    "meta": "meta is at most 32 pairs, 1 KiB in all",
    "slot": "a slot is the time of day and one to 64 addresses",
    "condition": "a condition is new, or a version",
    "selection": "selection is one of all, first, cyclic, spread, nearest",
    "too-large": "an update has at most 64 operations and 60 KiB",
}
"""What is allowed, by the part of an operation that is not."""


def _refused(code: str, problem: str) -> Refused:
    return Refused(code, f"refused before it was sent: {WHY.get(problem, problem) or 'malformed'}"[:300])


class Server(Programs):
    """Accepts programs."""

    def __init__(self, process: Process, listener: Listener, journal: Journal) -> None:
        super().__init__(lambda uid, gid: Client(self, uid, gid), listener, journal)
        self.process = process


class Client(Program):
    """One program."""

    version = VERSION
    frame_max = FRAME_MAX
    under_way_max = UNDER_WAY_MAX
    errors = DATABASE_ERRORS

    def __init__(self, server: Server, uid: int, gid: int) -> None:
        super().__init__()
        self._server = server
        self._process = server.process
        self._uid, self._gid = uid, gid
        self._watches: dict[int, Watch] = {}
        self._leases: set[int] = set()
        self._roles_are: tuple[str, ...] = ()
        self._roles_named: frozenset[str] = frozenset()
        self._roles_until = 0.0

    # ---- the connection

    def hello(self) -> Frame:
        config = self._process.config
        return {
            "station": config.station.id,
            "stations": config.cluster.stations,
            "cluster": config.cluster.name,
            "place": place_text(self._process.facts.place),
        }

    def ended(self) -> None:
        for watch in self._watches.values():
            self._process.watches.pop(watch, None)
        self._process.tracking.remove(self._forget)
        ended = [number for number in self._leases if self._process.leases.remove(number)]
        self._process.end_leases(ended)

    def resume_writing(self) -> None:
        super().resume_writing()
        for number in list(self._watches):
            self._tell(number)

    def at_once(self, do: str, frame: Frame) -> Callable[[Frame], Frame] | None:
        """The most frequent request is answered without a task."""
        is_lookup = do == "lookup" and not frame.get("fresh") and "after" not in frame
        return self._lookup if is_lookup and not self._process.closed else None

    def completed(self, answer: Frame) -> Frame:
        facts, stale = self._process.facts, self._process.stale_ms()
        answer["place"] = answer.get("place") or place_text(facts.place)
        if stale:
            answer["stale_ms"] = stale
        return answer

    def refusal(self, error: Exception) -> Refused:
        return Refused("failed", f"{self._process.copy.file.path}: {error}")

    # ---- look-ups

    def _lookup(self, frame: Frame) -> Frame:
        try:
            self._process.check_stale()
        except Refused as refused:
            self._process.answers.count(refused.code)
            raise
        name = _name(frame)
        key = str(frame.get("key") or "").encode("utf-8", "surrogatepass")
        answer = self._process.answers.lookup(name, key, self._process.facts)
        # Answers for a cyclic name differ each time; no process knows when an answer of a stale copy becomes wrong.
        if frame.get("track") and self._process.lets_keep and answer["selection"] != "cyclic" and not self._process.stale_ms():
            answer["tracked"] = self._process.tracking.keep(self._forget, name, tuple(answer["path"]))
        return answer

    def _forget(self, names: list[str] | None) -> None:
        self.write({"forget": names})

    async def _do_lookup(self, frame: Frame) -> Frame:
        await self._readable(frame)
        return self._lookup(frame)

    async def _readable(self, frame: Frame) -> None:
        """Return when the copy is as far as the request wants it, and look-ups are answered."""
        await self._in_time(frame, self._catch_up(frame))
        while self._process.closed:
            await self._in_time(frame, self._process.opened())

    async def _catch_up(self, frame: Frame) -> None:
        if frame.get("fresh"):
            if self._process.stale_ms():
                raise Refused("no-quorum", f"no fresh answer: {self._process.step}")
            await self._process.fresh()
        if after := frame.get("after"):
            await self._process.reached(parse_place(str(after)))

    async def _do_list(self, frame: Frame) -> Frame:
        self._process.check_stale()
        await self._readable(frame)
        first, last = bounds(lower(str(frame.get("prefix") or "")))
        first = max(first, str(frame.get("from") or ""))
        place, found = await self._process.work(self._process.copy.entries, first, last)
        rows = [_row(entry) for entry in found[:LIST_MAX]]
        answer: Frame = {"names": rows, "place": place_text(place)}
        if len(found) > LIST_MAX:
            answer["next"] = found[LIST_MAX].name
        return answer

    async def _do_zones(self, frame: Frame) -> Frame:
        def zones() -> list[str]:
            with self._process.copy.lock:
                return [zone_row(z).decode() for _, z in sorted(self._process.copy.state.zones.items())]

        return {"zones": await self._process.work(zones)}

    async def _do_outs(self, frame: Frame) -> Frame:
        def outs() -> list[list[Any]]:
            with self._process.copy.lock:
                return [[key, int(row)] for key, row in self._process.copy.rows.scan(Table.OUT, "", "~")]

        return {"outs": await self._process.work(outs)}

    async def _do_status(self, frame: Frame) -> Frame:
        return {**status(self._process, len(self._server.connections)), "uid": self._uid}

    # ---- updates

    async def _update(self, frame: Frame, operations: tuple[Operation, ...]) -> Pending:
        if self._process.outbox.congested:
            await self._in_time(frame, self._process.outbox.room())
        wait = frame.get("wait", "disk")
        if wait not in WAITS:
            raise Refused("malformed", f"wait is one of {', '.join(WAITS)}")
        client, counter = frame.get("c"), frame.get("n")
        if type(client) is not str or type(counter) is not int:
            raise Refused("malformed", "an update needs an id: c and n")
        roles = self._roles()
        update = Update(Id(client, counter), roles, operations, FLAGS[wait])
        data, problem = seal(update)
        if problem:
            raise _refused(code_of(problem), problem)
        return self._process.updates.start(update, wait, data)

    def _roles(self) -> tuple[str, ...]:
        """Kept for a while: the groups of a user are read from files."""
        now, named = time.monotonic(), self._process.facts.roles
        if now >= self._roles_until or named != self._roles_named:
            self._roles_are = roles_of(self._uid, self._gid, named)
            self._roles_until, self._roles_named = now + ROLES_S, named
        return self._roles_are

    async def _done(self, frame: Frame, pending: Pending) -> Frame:
        began = time.perf_counter()
        try:
            # Not by ``_in_time``: the future may be another request's as well, and this is the way of every update.
            await _either(pending.done, self._seconds(frame))
            if not pending.done.done():
                raise Refused("timeout", "")
            outcome = pending.done.result()
        except Refused:
            if pending.outcome is None and not pending.sent:
                raise Refused("no-quorum", f"not done: {self._process.step}") from None
            if pending.outcome is None:
                raise Refused("undecided", f"not decided in time: {self._process.step}; it may still happen") from None
            missing = self._process.updates.missing(pending, {s for s, _ in self._process.facts.active})
            text = f"it is done, but not on the disks of enough stations in time; missing: {', '.join(map(str, missing))}"
            raise Refused("no-disk-quorum" if pending.wait == "disk" else "not-everywhere", text) from None
        finally:
            self._process.updates.forget(pending)
        if outcome.code:
            raise Refused(outcome.code, outcome.text or outcome.code)
        self._process.updates.timings[pending.wait].add(time.perf_counter() - began)
        return {"place": place_text(outcome.place), "text": outcome.text}

    async def _do_update(self, frame: Frame) -> Frame:
        rows = frame.get("ops")
        if type(rows) is not list or not 0 < len(rows) <= 64:
            raise Refused("too-large" if rows else "malformed", "an update has 1 to 64 operations")
        operations = tuple([_timed(_operation(row)) for row in rows])
        if any(isinstance(operation, Register) for operation in operations):
            raise Refused("malformed", "a lease is asked for by the request register")
        return await self._done(frame, await self._update(frame, operations))

    async def _do_outcome(self, frame: Frame) -> Frame:
        """What has become of an update; ``known`` false: it never happened, or is under way."""
        client, counter = frame.get("c"), frame.get("n")
        if type(client) is not str or type(counter) is not int:
            raise Refused("malformed", "an update's id is c and n")
        outcome = await self._process.work(self._process.copy.outcome, Id(client, counter))
        if outcome is None:
            return {"known": False}
        return {"known": True, "code": outcome.code, "text": outcome.text, "place": place_text(outcome.place)}

    # ---- leases

    async def _do_register(self, frame: Frame) -> Frame:
        process = self._process
        if len(process.leases) >= LEASES_MAX:
            raise Refused("full", f"{LEASES_MAX} leases live here")
        number = process.leases.number()
        row = frame.get("op")
        operation = _operation({**row, "l": number} if type(row) is dict else row)
        ttl = frame.get("ttl", 0)
        if not isinstance(operation, Register) or type(ttl) not in (int, float) or not 0 <= ttl <= 86400:
            raise Refused("malformed", "a lease needs an operation register, and a ttl of 0 to 86400 s")
        pending = await self._update({"wait": "memory", **frame}, (operation,))
        lease = Lease(number, operation, pending.update.roles, self._tell_lease)
        process.leases.add(lease, time.monotonic_ns(), int(ttl * 1e9))
        self._leases.add(number)
        try:
            answer = await self._done(frame, pending)
        except BaseException:
            self._leases.discard(number)
            if process.leases.remove(number):
                process.end_leases([number])
            raise
        if answer["text"] != "waiting":
            lease.held = True
        return {**answer, "lease": number, "held": lease.held}

    def _tell_lease(self, number: int, event: str, version: Place) -> None:
        if event == "ended":
            self._leases.discard(number)
        news: Frame = {"lease": number, "event": event, "place": place_text(self._process.facts.place)}
        self.write({**news, "version": place_text(version)} if version != NOWHERE else news)

    async def _do_renew(self, frame: Frame) -> Frame:
        number = frame.get("lease")
        if number not in self._leases or not self._process.leases.ttls.renew(time.monotonic_ns(), int(number)):
            raise Refused("no-lease", "there is no such lease; its ttl may be over")
        return {}

    async def _do_release(self, frame: Frame) -> Frame:
        number = frame.get("lease")
        if number in self._leases:
            self._leases.discard(number)
            if self._process.leases.remove(int(number)):
                self._process.end_leases([int(number)])
        return {}

    # ---- watches

    async def _do_watch(self, frame: Frame) -> Frame:
        process = self._process
        if len(process.watches) >= WATCHES_MAX:
            raise Refused("full", f"{WATCHES_MAX} watches are here")
        subject = lower(str(frame.get("name") or ""))
        number = frame.get("watch")
        if (subject and not is_name(subject.removesuffix("."))) or type(number) is not int or number in self._watches:
            raise Refused("malformed", "a watch needs a name, or the beginning of names with a dot, and a number of its own")
        watch = Watch(subject)
        watch.hold()  # what the worker does after it has read them may be published before this goes on
        self._watches[number] = watch
        process.watches[watch] = lambda: self._tell(number)
        try:
            await self._begin(watch, frame, subject)
        except BaseException:
            self._watches.pop(number, None)
            process.watches.pop(watch, None)
            raise
        asyncio.get_running_loop().call_soon(self._tell, number)
        return {}

    async def _begin(self, watch: Watch, frame: Frame, subject: str) -> None:
        process = self._process
        if since := frame.get("since"):
            # A program that comes from another station may be ahead of this one.
            await self._in_time(frame, self._catch_up({"after": since}))
            place, entries, gone = await process.work(process.copy.changes, parse_place(str(since)), *bounds(subject))
        else:
            place, entries = await process.work(process.copy.entries, *bounds(subject))
            gone = None
        if not watch.is_held:
            return  # the whole state was replaced meanwhile: it has begun with that
        if since and gone is not None:
            watch.resume(place, entries, gone)
        else:
            watch.start(place, entries, missed=bool(since))

    async def _do_unwatch(self, frame: Frame) -> Frame:
        watch = self._watches.pop(frame.get("watch", -1), None)
        if watch is not None:
            self._process.watches.pop(watch, None)
        return {}

    def _tell(self, number: int) -> None:
        watch = self._watches.get(number)
        while watch is not None and self._writable and self._transport is not None and len(watch):
            events = [_event(event) for event in watch.read(EVENTS_AT_ONCE)]
            self._process.counters["gaps"] += sum(event[0] == "gap" for event in events)
            self.write({"watch": number, "events": events})

    # ---- for operators

    def _need_operator(self) -> None:
        if self._uid not in (0, os.geteuid()):
            raise Refused("not-permitted", "that is for root and the daemon's user")

    async def _do_start(self, frame: Frame) -> Frame:
        self._need_operator()
        self._process.force_start()
        return {}

    async def _do_repair(self, frame: Frame) -> Frame:
        self._need_operator()
        self._process.repair()
        return {}

    @staticmethod
    def _seconds(frame: Frame) -> float:
        seconds = frame.get("timeout", TIMEOUT_S)
        if type(seconds) not in (int, float) or not 0 <= seconds <= 86400:
            raise Refused("malformed", "timeout is 0 to 86400 s")
        return float(seconds)

    async def _in_time(self, frame: Frame, what: Awaitable[Any]) -> Any:
        seconds = self._seconds(frame)
        try:
            return await asyncio.wait_for(what, seconds)
        except TimeoutError:
            raise Refused("timeout", f"nothing after {seconds:g} s: {self._process.step}") from None


async def _either(future: asyncio.Future[Any], seconds: float) -> None:
    """Return when a future is done, or after some seconds; without ``asyncio.wait``, which costs more."""
    if future.done():
        return
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    future.add_done_callback(wake)
    expiry = loop.call_later(seconds, wake)
    try:
        await waiter
    finally:
        expiry.cancel()
        future.remove_done_callback(wake)


def _name(frame: Frame) -> str:
    name = lower(str(frame.get("name") or ""))
    if not is_name(name):
        raise Refused("name", f"{name[:80]!r} is no name: labels of a-z 0-9 - _, joined by dots, 253 characters at most")
    return name


def _operation(row: object) -> Operation:
    try:
        return read_operation(row)
    except (ValueError, TypeError, KeyError) as error:
        raise _refused(code_of(str(error)), str(error)) from None


def code_of(problem: str) -> str:
    """The code for a program whose update nobody would take, by what is wrong with it."""
    what = problem.split(":", maxsplit=1)[0].split(" ")[0]
    return what if what in ("name", "address", "zone", "meta", "too-large") else "address" if what == "target" else "malformed"


def _timed(operation: Operation) -> Operation:
    """A schedule with the instant that this machine's time zone data give it (rule T3)."""
    if isinstance(operation, SetSchedule) and operation.slots:
        try:
            due, slot = first_instant([s.when for s in operation.slots], int(time.time()))
        except UsageError as error:
            raise Refused("malformed", str(error)) from None
        return operation._replace(current=-1, last=0, due=due, slot=slot)
    return operation


@lru_cache(maxsize=256)
def _row(entry: Entry) -> str:
    """The entry's row; a change is encoded for the first of its watches."""
    return entry_row(entry).decode("ascii")


def _event(event: Event) -> list[Any]:
    if isinstance(event, Changed):
        return ["changed", place_text(event.place), event.name, _row(event.entry) if event.entry is not None else None]
    return ["listed" if isinstance(event, Listed) else "gap", place_text(event.place)]


def socket_of(listen: str, daemon_socket: str) -> Path:
    """Where programs find the process: the option, or beside the daemon's socket."""
    return Path(listen or beside(daemon_socket))
