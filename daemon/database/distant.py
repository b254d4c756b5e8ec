"""Databases at a distance: this station's place in the group ``zenjun.db``, its programs' sessions at other stations and theirs
here. The machine is ``proto/service/database/distance.py``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...proto.service.base import Effect, Emit, Source
from ...proto.service.database.distance import (
    CALL_MAX,
    HEAD_BYTES,
    PART_BYTES,
    Asked,
    Distance,
    Dropped,
    Lost,
    Told,
)
from ...proto.service.database.messages import Txid
from ...proto.service.database.zones import Zones
from ..client import Message, View
from ..client.aio import Connection, Group
from ..companion import until_first
from ..programs import Refused
from .errors import NoQuorum
from .jobs import Changes
from .site import GROUP, Site
from .values import error_to_json
from .waiting import NotHere
from .worker import Worker

if TYPE_CHECKING:
    from .process import Process

TURN_S: Final = 0.05
PATIENCE_S: Final = 2.0
"""For the first word of every other process, before this one takes part without."""
LOOK_S: Final = 0.1
"""Between two looks for what became of a transaction."""
_Key = tuple[Source, int]


class Distant:
    """One at each station."""

    def __init__(self, process: Process, zones: Zones, socket: str) -> None:
        """socket: of this process, for programs."""
        self._process, self._socket = process, socket
        self.machine = Distance((process.config.station.id, 0), zones)
        self.counters: Counter[str] = Counter()
        self.admitted = False
        """This station takes part."""
        self._workers: dict[_Key, Worker] = {}
        self._closing: set[Worker] = set()
        """Of sessions that are over; one may still commit."""
        self._told: dict[int, asyncio.Future[bytes]] = {}
        self._out: asyncio.Queue[bytes] = asyncio.Queue()
        self._changes = Changes()
        self._since = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()

    # ---- the group

    async def serve(self, connection: Connection) -> None:
        """Be in the group until the connection ends. Raises ClientError."""
        machine = self.machine
        machine.me = (connection.welcome.station, connection.welcome.client)
        machine.part_bytes = min(PART_BYTES, connection.welcome.message_max - HEAD_BYTES)
        self._out = asyncio.Queue()
        self._since = time.monotonic()
        try:
            # A bus has one order and no other.
            order = "total" if self._process.config.cluster.medium == "bus" else "op"
            group = await connection.join(GROUP, order=order, timeout=None)  # type: ignore[arg-type]
            await until_first([self._read(group), self._write(group), self._turn()])
        finally:
            self.admitted = False
            self._carry_out(machine.on_lost())

    async def _read(self, group: Group) -> None:
        while True:
            for item in await group.recv_items(timeout=None):
                if isinstance(item, View):
                    members, joined = ([(m.station, m.client) for m in part] for part in (item.members, item.joined))
                    self._carry_out(self.machine.on_view(members, joined))
                elif isinstance(item, Message):
                    self._carry_out(self.machine.on_message((item.station, item.client), item.data))

    async def _write(self, group: Group) -> None:
        while True:
            await group.send(await self._out.get(), level="sent", timeout=None)

    async def _turn(self) -> None:
        while True:
            effects = self.machine.announce(self._active())
            if effects or not self.admitted:
                self._carry_out(effects)
            await asyncio.sleep(TURN_S)

    def _active(self) -> dict[str, bool]:
        return {site.uuid.hex(): site.is_whole for site in self._process.sites.values() if site.active}

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Emit):
                self._out.put_nowait(effect.data)
            elif isinstance(effect, Told):
                _settle(self._told.pop(effect.session, None), effect.data)
            elif isinstance(effect, Lost):
                _settle(self._told.pop(effect.session, None), Refused("session-lost", effect.reason))
            elif isinstance(effect, Asked):
                self._asked(effect)
            elif isinstance(effect, Dropped):
                self._end_worker((effect.source, effect.session))
        machine = self.machine
        waited = time.monotonic() - self._since > PATIENCE_S and machine.me in machine.members
        self.admitted = (machine.is_complete or waited) and not machine.refused()
        self._changes.tell()

    async def changed(self) -> None:
        """Wait until something may have changed."""
        seen = False

        def told() -> bool:
            nonlocal seen
            before, seen = seen, True
            return before

        await self._changes.until(told, 3600.0)

    def _soon(self, what: Any) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def facts(self) -> dict[str, Any]:
        """For the status."""
        own = self.machine.zones.of(self.machine.me[0])
        return {
            "zone": own,
            "stations": self._process.config.cluster.stations,
            "zones": {zone: list(stations) for zone, stations in self.machine.zones.zones.items()},
            "refused": self.machine.refused(),
            "sessions_here": len(self.machine.served),
            "sessions_elsewhere": len(self.machine.used),
            "counters": dict(self.counters),
        }

    # ---- programs here

    async def begin(self, uuid: str, sites: Container[int], seconds: float) -> tuple[int, Source] | None:
        """A session at the nearest primary, as soon as there is one; None: not in time."""
        deadline = time.monotonic() + seconds
        while (to := self.machine.nearest(uuid, sites)) is None:
            if not await self.until(lambda: self.machine.nearest(uuid, sites) is not None, deadline - time.monotonic()):
                return None
        self.counters["begun"] += 1
        return self.machine.begin(to), to

    async def until(self, condition: Any, seconds: float) -> bool:
        """Wait until it holds; False: not in time."""
        return await self._changes.until(condition, seconds)

    async def call(self, session: int, data: bytes, seconds: float) -> bytes:
        """The reply to a call. Raises Refused: the session is over (``session-lost``), or the call is too long."""
        if len(data) > CALL_MAX:
            raise Refused("too-large", f"a statement with {len(data)} bytes; {CALL_MAX} are allowed at a distance")
        if session not in self.machine.used:
            raise Refused("session-lost", "the session is over")
        if session in self._told:
            raise Refused("malformed", "the call before has not been answered")
        self.counters["calls"] += 1
        future = self._told[session] = asyncio.get_running_loop().create_future()
        self._carry_out(self.machine.call(session, data))
        try:
            return await asyncio.wait_for(future, seconds)
        except TimeoutError:
            self.end(session)
            raise Refused("session-lost", "the other station has not answered in time") from None

    def end(self, session: int) -> None:
        """The program does not need it any more."""
        _settle(self._told.pop(session, None), Refused("session-lost", "the session is over"))
        self._carry_out(self.machine.end(session))

    async def outcome(self, at: Source, uuid: str, sites: Container[int], question: dict[str, Any], seconds: float) -> Any:
        """Ask the station that was to commit a transaction, or the nearest primary if it has gone; its reply. Raises Refused."""
        deadline = time.monotonic() + seconds
        while True:
            to = at if at in self.machine.members else self.machine.nearest(uuid, sites)
            left = max(0.01, deadline - time.monotonic())
            if to is not None:
                session = self.machine.begin(to)
                try:
                    body = json.dumps(question | {"do": "outcome", "timeout": left}).encode()
                    return json.loads(await self.call(session, body, left + TURN_S))
                except Refused as refused:
                    if refused.code != "session-lost":
                        raise
                finally:
                    self.end(session)
            if time.monotonic() > deadline:
                raise Refused("undecided", "no station can be asked what became of the transaction")
            await asyncio.sleep(LOOK_S)

    # ---- programs of others

    def _asked(self, asked: Asked) -> None:
        try:
            call = json.loads(asked.data)
            do = call["do"]
        except (ValueError, RecursionError, TypeError, KeyError):
            self._carry_out(self.machine.close(asked.source, asked.session, "no call"))
            return
        key = (asked.source, asked.session)
        if do == "outcome" and asked.number == 0:
            self._soon(self._answer_outcome(asked, call))
            return
        worker = self._workers.get(key)
        if worker is None:
            if not self.admitted:
                self._carry_out(self.machine.close(*key, self.machine.refused() or "this station does not take part yet"))
                return
            worker = self._workers[key] = Worker(self._socket, self.machine.me)
            self.counters["served"] += 1
        self._soon(self._run(worker, asked, call))

    async def _run(self, worker: Worker, asked: Asked, call: dict[str, Any]) -> None:
        try:
            reply = await asyncio.get_running_loop().run_in_executor(worker.thread, worker.run, call)
        except Exception as error:  # a bug ends the session, and not the process
            self._process.journal.error("distant", f"a call of station {asked.source[0]} failed: {error!r}")
            self._carry_out(self.machine.close(asked.source, asked.session, f"an error there: {type(error).__name__}"))
            return
        self._carry_out(self.machine.answer(asked.source, asked.session, asked.number, reply))

    def began(self, txid: Txid) -> Source | None:
        """The service with whose session a transaction began that is being committed here for a program of another station."""
        if not self._workers and not self._closing:
            return None
        workers = (*self._workers.values(), *self._closing)
        return next((worker.me for worker in workers if worker.committing == txid), None)

    def _end_worker(self, key: _Key) -> None:
        worker = self._workers.pop(key, None)
        if worker is None:
            return

        async def end() -> None:
            worker.interrupt()
            with contextlib.suppress(Exception):
                await asyncio.get_running_loop().run_in_executor(worker.thread, worker.close)
            worker.thread.shutdown(wait=False)
            self._closing.discard(worker)

        self._closing.add(worker)
        self._soon(end())

    async def _answer_outcome(self, asked: Asked, question: dict[str, Any]) -> None:
        try:
            reply: dict[str, Any] = {"ok": {"version": await self._look_for(question)}}
        except (NotHere, ValueError, KeyError, TypeError, Refused) as error:
            reply = {"error": error_to_json(NoQuorum(str(error)))}
        self._carry_out(self.machine.answer(asked.source, asked.session, asked.number, json.dumps(reply).encode()))

    async def _look_for(self, question: dict[str, Any]) -> int:
        """The version that a transaction has made; 0: none, and it will not. Raises NotHere: that is not known here (rule Z5)."""
        txid = Txid.decode(bytes.fromhex(question["txid"]))
        at, snapshot = (int(question["at"][0]), int(question["at"][1])), int(question["snapshot"])
        site: Site = self._process.site(str(question["db"]))
        deadline = time.monotonic() + float(question["timeout"])
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise NotHere("it is not decided in time")
            if self.began(txid) is not None:
                await asyncio.sleep(LOOK_S)
                continue
            await site.waiting.barrier(left, durable=True)
            found = await site.work(site.look_for, txid, snapshot, at)
            if found is not None:
                return int(found)
            await asyncio.sleep(LOOK_S)


def _settle(future: asyncio.Future[bytes] | None, result: bytes | Refused) -> None:
    if future is None or future.done():
        return
    if isinstance(result, Refused):
        future.set_exception(result)
    else:
        future.set_result(result)
