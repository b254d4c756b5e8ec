"""The process under ``update = "seven"``: a manager of the seven steps (docs/directory-seven.md).

Names change by attempts in the group ``zenjun.dir.seven``. The group ``zenjun.dir.copy``, which is in total order, transfers the
state to joining processes, and carries messages that change nothing. All messages are applied at once, in the loop: in this mode
one slow disk delays all stations anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final

from ...proto.service.directory.entries import NOWHERE, Place
from ...proto.service.directory.messages import (
    ONDISK,
    Digest,
    Due,
    HasApplied,
    Holding,
    OnDisk,
    Update,
    decode,
)
from ...proto.service.directory.seven import GROUP as MANAGERS
from ...proto.service.directory.seven import Seven
from ...proto.service.directory.seventypes import Commit, Effect, Finished, Keep, Locked, Lost, Send, Standing, Wrong
from ...proto.service.directory.state import Result
from ..client import ClientError, Event, View
from ..client import Message as GroupMessage
from ..client.aio import Connection, StateGroup
from ..client.protocol import Membership
from ..companion import until_first
from ..config import Config
from ..observe import Journal
from .copy import DATABASE_ERRORS, Applied, Heard
from .process import Process
from .sevencopy import INDEX_MAX, LEFT, SevenCopy, base_of, encode_left, encode_many
from .store import what_to_do

GROUP: Final = "zenjun.dir.copy"
OTHERS: Final = "zenjun.dir"
"""Where the processes of ``update = "ordered"`` are."""
MANY_MAX: Final = 256
MANY_BYTES: Final = 48 * 1024
MANY_OVERHEAD: Final = 4
"""Updates that one attempt commits, and their bytes with what is added to each."""
WARN_S: Final = 5.0
"""An attempt that waits for longer is reported (rule U7)."""


decoded: Final = lru_cache(maxsize=2 * MANY_MAX)(decode)
"""Own messages are looked at several times until they are committed."""


def is_update(data: bytes) -> bool:
    """Whether this is an update; other messages go by themselves."""
    return isinstance(decoded(data), Update)


class _Managers(Membership):
    """The managers' group: its messages are taken at once."""

    def __init__(self, take: Callable[[], None], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.on_items = take


class SevenProcess(Process):
    """Everything but the socket for programs."""

    group_name = GROUP
    lets_keep = False

    def __init__(self, config: Config, copy: SevenCopy, journal: Journal) -> None:
        super().__init__(config, copy, journal)
        self.machine = Seven(self.me)
        self._seven = copy
        self._managers: _Managers | None = None
        self._wanted: deque[bytes] = deque()
        """What is to be committed by attempts of this station after the present one."""
        self._waiting: set[bytes] = set()
        """The same, to be found."""
        self._attempt: tuple[bytes, ...] = ()
        self._began = 0.0
        self._may_ask = self._state_wanted = False
        self._copied_at: Place = NOWHERE
        self._broken: asyncio.Future[None] | None = None
        self._opened = asyncio.Event()
        self._opened.set()
        self._busy = False
        copy.drain = self._take
        copy.on_started = self._on_started
        copy.on_wanted = self._on_wanted

    # ---- standing

    @property
    def closed(self) -> bool:
        return self.machine.closed and self._active

    async def opened(self) -> None:
        while self.closed:
            self._opened.clear()
            await self._opened.wait()

    def attempts(self) -> dict[str, Any]:
        m = self.machine
        owner = m.lock.asking.owner if m.lock is not None else None
        return {
            "attempt": m.standing.value,
            "waits_for": sorted({station for station, _ in m.missing}),
            "waits_s": round(time.monotonic() - self._began, 3) if m.standing is not Standing.IDLE else 0,
            "lock": owner[0] if owner is not None else 0,
            "queue": len(self._wanted),
            "managers": sorted({m.me[0], *(station for station, _ in m.members)}) if m.life != NOWHERE else [],
            "dropped": dict(m.counters),
        }

    # ---- connection and groups

    async def _session(self, connection: Connection) -> None:
        self._connection = connection
        self.me = (connection.welcome.station, connection.welcome.client)
        self.step = "waiting for the others"
        self.machine = Seven(self.me, unicast=self.config.directory.profile == "unicast")
        self._wanted.clear()
        self._waiting.clear()
        self._attempt = ()
        self._broken = asyncio.get_running_loop().create_future()
        protocol = connection._protocol
        managers = protocol.join(MANAGERS, order="op", no_self=True, kind=partial(_Managers, self._take))
        assert isinstance(managers, _Managers)
        self._managers = managers
        connection._link.flush()
        await connection._wait(managers.joined, None, "joining the managers")
        await until_first([self._copies(connection), self._warn(connection), self._broken])

    def _leave(self) -> None:
        self._managers = None
        self._may_ask = self._state_wanted = False
        super()._leave()
        self._opened.set()

    async def _copies(self, connection: Connection) -> None:
        """The group by which copies come."""
        group = await connection.join(GROUP, state=self.copy, persistent=True, timeout=None)
        assert isinstance(group, StateGroup)
        self._group = group
        while True:
            for item in await group.recv_items(timeout=None):
                if isinstance(item, GroupMessage) and isinstance(m := decode(item.data), OnDisk | HasApplied | Digest):
                    heard = Heard(item.place, (item.station, item.client), item.data)
                    self._publish(Applied([Result(item.place, m)], self.facts, False, []), [heard])

    async def _warn(self, connection: Connection) -> None:
        """Rule U7: report attempts that wait, and what they wait for."""
        told = mixed = False
        while True:
            await asyncio.sleep(WARN_S / 2)
            m = self.machine
            late = m.standing is not Standing.IDLE and time.monotonic() - self._began > WARN_S
            if late and not told:
                who = ", ".join(str(station) for station, _ in m.missing) or "its state"
                self.journal.warning("attempt", f"an attempt has been {m.standing.value} for {WARN_S:g} s and waits for: {who}")
            told = late
            if not self._active and not mixed and (others := await connection.members(OTHERS)):
                mixed = True
                stations = ", ".join(str(k) for k in sorted({member.station for member in others}))
                self.journal.error(
                    "mixed",
                    f'directory.update is "seven" here and "ordered" at stations {stations}: it has to be the same at all',
                )

    def _on_event(self, event: Event) -> None:
        # What was lost with an instance is sent again when this copy is active again.
        if event.name not in ("open", "reopened"):
            super()._on_event(event)
        self._look_stale()

    def _fail(self, text: str) -> None:
        if self._broken is not None and not self._broken.done():
            self._broken.set_exception(ClientError(text))

    def _on_disk_error(self, error: Exception) -> None:
        """Out of the group, so that the others do not wait for this one's DONE; back by a copy."""
        self.counters["disk_errors"] += 1
        self._fail(what_to_do(self.copy.file.path, error))

    # ---- the managers' group

    def _take(self) -> None:
        """Take what has come from the managers."""
        managers, connection = self._managers, self._connection
        if managers is None or connection is None:
            return
        items, weight, _ = managers.take()
        connection._protocol.consumed(weight)
        for item in items:
            if isinstance(item, GroupMessage):
                self.machine.receive((item.station, item.client), item.data)
            elif isinstance(item, View):
                self.machine.on_view(item.place, *([m[:2] for m in part] for part in (item.members, item.joined, item.left)))
                if not self.machine.active:
                    self._active = self._may_ask = False
        self._go_on()

    def _go_on(self) -> None:
        """Carry out what the machine wants, and begin the next attempt."""
        if self._busy:
            return  # a call below has come back here: the loop below continues
        self._busy = True
        try:
            while effects := self.machine.take() or self._begin():
                for effect in effects:
                    self._do(effect)
        except DATABASE_ERRORS as error:
            self._on_disk_error(error)
        finally:
            self._busy = False
        if not self.closed:
            self._opened.set()
        if self._connection is not None:
            self._connection._link.flush_soon()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send(data):
                if self._managers is not None and self._connection is not None:
                    with contextlib.suppress(ClientError):
                        self._connection._protocol.send(self._managers, data, "sent")
            case Keep():
                self._seven.keep(effect)
                self.machine.kept(effect.asking)
            case Commit():
                applied, inputs = self._seven.carry_out(effect)
                self.counters["attempts"] += 1
                self._publish(applied, inputs)
                if applied.facts.stopped:
                    self._fail(f"a message has format {applied.facts.stopped}: this program is too old for it")
            case Locked(copying, place):
                self._on_locked(copying, place)
            case Finished(place, durable):
                self._on_finished(place, {station for station, _ in durable})
            case Lost():
                self._attempt = ()
            case Wrong(text):
                self.journal.error("wrong", text)
                self._fail(text)

    # ---- attempts

    def send_raw(self, data: bytes) -> bool:
        """Whatever changes a row is an attempt (rule U10)."""
        if isinstance(decoded(data), OnDisk | HasApplied | Digest):
            return super().send_raw(data)
        if not self._active:
            return False
        if data not in self._attempt and data not in self._waiting:
            self._want(data)
            self._go_on()
        return True

    def _want(self, data: bytes) -> None:
        self._wanted.append(data)
        self._waiting.add(data)

    def _next(self) -> tuple[bytes, ...]:
        """What the next attempt commits: one message, or all updates that wait, up to its bounds. Each attempt costs five hops
        and a turn of all locks, so what waits goes together."""
        chosen: list[bytes] = []
        size = 0
        while self._wanted and len(chosen) < MANY_MAX:
            data = self._wanted[0]
            size += len(data) + MANY_OVERHEAD
            if chosen and (size > MANY_BYTES or not (is_update(data) and is_update(chosen[0]))):
                break
            chosen.append(self._wanted.popleft())
            self._waiting.discard(data)
        return tuple(chosen)

    def _begin(self) -> list[Effect]:
        """Begin the next attempt, if there is one and it may begin."""
        m = self.machine
        if m.standing is not Standing.IDLE or m.life == NOWHERE:
            return []
        if not m.active:
            if not self._state_wanted:
                return []
            m.request(copying=True)
        else:
            if not self._wanted and self._gone():
                self._want(LEFT)
            if not self._wanted:
                return []
            self._attempt = self._next()
            m.request()
        self._began = time.monotonic()
        return m.take()

    def _gone(self) -> bool:
        """The lowest active manager removes members that have left (rule U10)."""
        here = {self.me, *self.machine.members}
        active = [who for who in self.facts.active if who in here]
        return active[:1] == [self.me] and any(who not in here for who in self.copy.state.members)

    def _on_locked(self, copying: bool, place: Place) -> None:
        m = self.machine
        if m.standing is not Standing.LOCKED:
            return
        if not copying:
            messages = [decoded(wanted) for wanted in self._attempt if wanted != LEFT]
            parts = [data for wanted in self._attempt if (data := self._data(wanted))]
            if parts:
                m.data(encode_many(parts), durable=any(isinstance(u, Update) and u.flags & ONDISK for u in messages))
            else:
                self._attempt = ()
                m.abandon()
        elif m.active:
            m.abandon()
        else:
            self._seven.drop_kept()
            self._copied_at = place
            self._may_ask = True
            asyncio.get_running_loop().call_soon(self._ask)

    def _data(self, wanted: bytes) -> bytes:
        """What to commit now that nothing else can change; empty: it has been done meanwhile."""
        state = self.copy.state
        if wanted == LEFT:
            here = {self.me, *self.machine.members}
            gone = [who for who in state.members if who not in here]
            return encode_left(gone) if gone else b""
        message = decoded(wanted)
        member = state.members.get(self.me)
        done = False
        if isinstance(message, Update):
            outcome = state.outcome(message.id)
            done = outcome is not None
            if outcome is not None:
                self.updates.on_outcome(message.id, outcome)
                self._settle(outcome.place, {station for station, _ in self.facts.active})
        elif isinstance(message, Holding):
            done = member is not None and member.active == message.active
        elif isinstance(message, Due):
            done = member is None or member.due >= message.time
        return b"" if done else wanted

    def _settle(self, place: Place, disks: set[int]) -> None:
        place = (place[0], place[1], INDEX_MAX)  # of all messages of the attempt
        for station in disks:
            self.updates.on_disk(station, place)
        active = {station for station, _ in self.facts.active}
        for station in active:
            # Look-ups there wait for CONF, so none returns an earlier version from here on.
            self.updates.on_applied(station, place)
        self.updates.look(active)

    def _on_finished(self, place: Place, disks: set[int]) -> None:
        entered, self._attempt = not self._active, ()
        self._settle(place, disks)
        if entered:
            self._set_active()

    def _say_applied(self, done: asyncio.Future[None] | None = None) -> None:
        if done is not None:
            super()._say_applied(done)

    # ---- the state comes

    def _on_wanted(self) -> bool:
        """State transfer needs to ask: it may with all locks (rule U9), also those of managers that have joined since."""
        self._take()
        m = self.machine
        if self._may_ask and m.standing is Standing.LOCKED and not m.covered:
            self._may_ask = self._state_wanted = False
            m.abandon()
        if not self._may_ask and not self._state_wanted:
            self._state_wanted = True
            asyncio.get_running_loop().call_soon(self._go_on)
        return self._may_ask

    def _ask(self) -> None:
        if self._connection is not None:
            self._connection.state_allowed(GROUP)

    def _on_started(self, place: Place) -> None:
        """A START has made this copy the group's."""
        m = self.machine
        m.activate(place)
        self._state_wanted = self._may_ask = False
        if m.standing is Standing.LOCKED:
            m.abandon()
        self._go_on()

    def _on_group_active(self, group: StateGroup) -> None:
        m = self.machine
        if m.active:
            if not self._active:
                self._set_active()
            return
        if m.standing is not Standing.LOCKED:
            return
        place = base_of(self.copy.state.place)
        if self._copied_at not in (NOWHERE, place):
            group.state_wrong(f"the state that has come is at {place}, the managers are at {self._copied_at}")
            return
        self._state_wanted = self._may_ask = False
        self._attempt = ()
        m.copied(place)
        m.data(b"", durable=True)
        self._go_on()
