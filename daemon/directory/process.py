"""The process: a member of ``zenjun.dir`` that applies its messages in a worker thread, a transaction for what came meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex
from typing import Any, Final

from ...proto.service.directory.draft import lease_key
from ...proto.service.directory.entries import NOWHERE, Place, Who, lease_text, place_text
from ...proto.service.directory.entries import Lease as EntryLease
from ...proto.service.directory.messages import (
    APPLIED,
    ENDS_MAX,
    Check,
    Digest,
    Due,
    End,
    HasApplied,
    Holding,
    Id,
    Malformed,
    Message,
    Next,
    OnDisk,
    Update,
    encode,
)
from ...proto.service.directory.state import Result
from ...proto.service.directory.store import Table
from ...proto.service.directory.watch import Watch
from ..client import ClientError, Event, NotReachable, View, connect
from ..client import Message as GroupMessage
from ..client.aio import Connection, StateGroup
from ..config import Config
from ..observe import Journal
from ..programs import Refused
from ..slots import next_instant
from .answers import Answers
from .copy import DATABASE_ERRORS, Applied, Copy, Facts, Heard, Input, Seen, bounds
from .leases import Lease, Leases
from .outbox import Outbox
from .store import what_to_do
from .timing import Clocks
from .tracking import Tracking
from .updates import Updates
from .writing import BROKEN_S, DiskWriter

GROUP: Final = "zenjun.dir"
BATCH_MAX: Final = 64
BATCH_BYTES: Final = 64 * 1024
"""Messages, and bytes of them, that are applied at once: some milliseconds, in which no program is answered."""
TURN_S: Final = 0.1
"""Between looks at leases, due instants and the like."""
CHECK_S: Final = 60.0
"""Between comparisons of all copies, if anything has changed."""
RETRY_S: Final = 0.5


class Process:
    """Everything but the socket for programs."""

    group_name: str = GROUP
    lets_keep: bool = True
    """Programs may keep answers until the process reports a change."""

    def __init__(self, config: Config, copy: Copy, journal: Journal, holders: Sequence[int] = ()) -> None:
        """holders: the stations that keep these names; (): all."""
        self.config = config
        self.copy = copy
        self.journal = journal
        self.facts: Facts = copy.facts()
        self.holders: tuple[int, ...] = tuple(holders) or tuple(range(1, config.cluster.stations + 1))
        self.answers = Answers(copy, config.station.id)
        self.leases = Leases()
        self.updates = Updates(self.send_raw, self.holders)
        self.watches: dict[Watch, Callable[[], None]] = {}
        self.me: Who = (config.station.id, 0)
        self.counters: Counter[str] = Counter()
        self.tracking: Tracking[Callable[[list[str] | None], None]] = Tracking()
        """Programs that keep answers, by the function that has them forget some (None: all)."""
        self.clocks = Clocks()
        self.peers: dict[int, Digest] = {}
        self.step = "waiting for zenjund"
        """What it is at, for people."""
        self.dns_status: Callable[[], dict[str, Any] | None] = lambda: None
        """The status of the DNS port; None: there is none."""
        self._connection: Connection | None = None
        self._group: StateGroup | None = None
        self._active = False
        self._wrong = ""
        """Why nothing may be answered from this copy, until it is the group's again."""
        self._stale_since = time.monotonic()
        self._stale = True
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="directory")
        self._working = 0
        """Calls of ``work`` under way."""
        self._reached: list[tuple[Place, asyncio.Future[None]]] = []
        """Requests that wait for a place."""
        self._tasks: list[asyncio.Task[None]] = []
        """Held, so that they are not collected before they are done."""
        self._due_at = 0.0
        self._changed = False
        self._check_at = time.monotonic() + CHECK_S
        self._said: deque[asyncio.Future[None] | None] = deque()
        self.outbox = Outbox()
        self._ending: set[int] = set()
        """Leases whose END has not come back."""
        self._disk = DiskWriter(copy, lambda: self.facts.place, self._on_disk, self._rewrite, self._on_disk_error)
        self._behind = 0
        self._behind_since = 0.0
        copy.on_replaced = self._replaced

    # ---- standing

    @property
    def active(self) -> bool:
        """This copy is the group's."""
        return self._active

    def stale_ms(self) -> int:
        """Time for which this copy may have missed changes without knowing it, milliseconds; 0: it has not."""
        self._look_stale()
        return max(1, int((time.monotonic() - self._stale_since) * 1000)) if self._stale else 0

    def lag(self) -> tuple[int, float]:
        """Messages and views that have come and are not applied yet, and seconds since the oldest of them came."""
        return self._behind, time.monotonic() - self._behind_since if self._behind else 0.0

    @property
    def closed(self) -> bool:
        """Look-ups have to wait until ``opened``; never in mode ordered."""
        return False

    async def opened(self) -> None:
        """Wait until look-ups may be answered."""

    def attempts(self) -> dict[str, Any] | None:
        """Mode seven: what its attempts and its lock are at; None: there are none."""
        return None

    def transfer(self) -> tuple[int, int, int]:
        """Bytes of the state that have come here, bytes in all (-1: not known), and stations that read it from here now."""
        group = self._group
        return (*group.progress, group.serving) if group is not None else (0, -1, 0)

    @property
    def standing(self) -> str:
        """``active``, ``behind`` (it catches up, or cannot), or ``waiting`` (for zenjund)."""
        return "active" if self._active else "behind" if self._connection is not None else "waiting"

    def check_stale(self) -> None:
        """Raises Refused: this copy may not answer, because there is none yet or because it is too old (rule L5)."""
        stale, most = self.stale_ms(), self.config.directory.stale_max_s * 1000
        if stale and self._wrong:
            raise Refused("stale", f"this station's copy is wrong, and gets the others' state: {self._wrong}")
        if stale and self.facts.place == NOWHERE:
            raise Refused("stale", f"this station has no copy yet ({self.step})")
        if stale > most:
            raise Refused("stale", f"this station's copy is not in the order ({self.step}), {stale / 1000:.1f} s now")

    def _look_stale(self) -> None:
        c = self._connection
        good = self._active and c is not None and c.quorum
        if good == (not self._stale):
            return
        self._stale = not good
        self._stale_since = time.monotonic()
        if self._stale:
            self.leases.in_doubt()
            self._forget_all()
        elif self.leases.doubted:
            self._tasks.append(asyncio.get_running_loop().create_task(self._renew_leases()))

    def _forget_all(self) -> None:
        """Have programs forget their kept answers: these may be wrong now, and no report would come."""
        for forget in self.tracking.clear():
            forget(None)

    # ---- connection and group

    async def run(self) -> None:
        """Serve the group, with one connection to zenjund after the other."""
        beside = [asyncio.create_task(each) for each in (self._turns(), self._disk.run())]
        try:
            while True:
                try:
                    async with connect(
                        self.config.station.socket, name="zenjun-directory", wait=None, on_event=self._on_event
                    ) as connection:
                        await self._session(connection)
                except NotReachable:
                    raise
                except ClientError as error:
                    self.journal.warning("zenjund", f"{error}; trying again")
                finally:
                    self._leave()
                await asyncio.sleep(RETRY_S)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            self.answers.close()
            self._worker.shutdown()
            self._disk.close()

    def _leave(self) -> None:
        self._forget_said()
        self._connection = self._group = None
        self._active = False
        self._behind = 0
        # The leases of this membership end with it, and updates are sent again.
        self._ending.clear()
        self.outbox.clear()
        self.step = "waiting for zenjund"
        self._look_stale()

    async def _session(self, connection: Connection) -> None:
        self._connection = connection
        self.me = (connection.welcome.station, connection.welcome.client)
        self.step = "waiting for the others"
        group = await connection.join(self.group_name, state=self.copy, persistent=True, holders=len(self.holders), timeout=None)
        assert isinstance(group, StateGroup)
        self._group = group
        while True:
            items = await group.recv_items(timeout=None)
            inputs: list[Input] = []
            for item in items:
                if isinstance(item, GroupMessage):
                    sender = (item.station, item.client)
                    known = self.updates.message(item.data) if sender == self.me else None
                    inputs.append(Heard(item.place, sender, item.data, known))
                elif isinstance(item, View):
                    inputs.append(Seen(item.place, _whos(item.members), _whos(item.joined)))
            self._behind, self._behind_since = len(inputs), time.monotonic()
            for batch in _batches(inputs):
                if not await self._apply(group, batch):
                    break
                self._behind -= len(batch)
                if self._behind:
                    await asyncio.sleep(0)
            self._behind = 0

    async def _apply(self, group: StateGroup, inputs: Sequence[Input]) -> bool:
        await self._disk.room()
        try:
            if not self._working:
                applied = self.copy.apply(inputs, later=True)  # two changes of the thread cost more
            else:
                applied = await asyncio.get_running_loop().run_in_executor(self._worker, self.copy.apply, inputs, True)
        except DATABASE_ERRORS as error:
            self._on_disk_error(error)
            await asyncio.sleep(BROKEN_S)
            return False
        self._publish(applied, inputs)
        if applied.facts.stopped:
            # Rule S7: out of the group, so that the others do not wait for it; answers are stale from here on.
            self.step = f"a message has format {applied.facts.stopped}: this program is too old for it"
            self.journal.error("too-old", self.step)
            self._active = False
            self._look_stale()
            await group.leave()
            await asyncio.Event().wait()
        return True

    def _on_disk(self, place: Place) -> None:
        self.send(OnDisk(place))

    async def _rewrite(self) -> None:
        """After a sync that failed."""
        await self.work(self.copy.rewrite)
        self._replaced()

    def _on_disk_error(self, error: Exception) -> None:
        """Rule S5: answers are stale from here on; the others continue, and give what is missing when the disk works again."""
        self.counters["disk_errors"] += 1
        text = what_to_do(self.copy.file.path, error)
        self.journal.error("disk", f"{text}; answers are stale until then, the state is asked for again in {BROKEN_S:g} s")
        self._active = False
        self._look_stale()
        if self._group is not None:
            self._group.state_wrong(f"disk: {error}"[:150])

    def _on_event(self, event: Event) -> None:
        """Within the loop, at once."""
        if event.name in ("state", "state-lost", "diverged"):
            step, text = event.detail["step"], event.detail["text"]
            self.step = text
            if step != "progress":
                self.counters[f"transfer_{step}"] += 1
            if step in ("restored", "serving", "failed", "snapshot-failed", "state-lost", "diverged", "active", "overflow"):
                level = self.journal.info if step in ("restored", "serving", "active") else self.journal.warning
                level(step, text)
            if step == "active":
                asyncio.get_running_loop().call_soon(self._on_active)
            elif step in ("syncing", "failed"):
                self._active = False
        elif event.name in ("open", "reopened") and self._group is not None:
            asyncio.get_running_loop().call_soon(self._again)
        self._look_stale()

    def _on_active(self) -> None:
        """State transfer counts this copy as the group's."""
        group = self._group
        if group is None:
            # The join is about to return.
            asyncio.get_running_loop().call_later(0.005, self._on_active)
            return
        if group.active:
            self._on_group_active(group)

    def _on_group_active(self, group: StateGroup) -> None:
        self._set_active()

    def _set_active(self) -> None:
        """This copy is the group's: report that, and send what may have been lost."""
        self._active = True
        self._wrong = ""
        self._look_stale()
        self.step = "active"
        self._again()
        self._tasks.append(asyncio.get_running_loop().create_task(self._renew_leases()))

    def awaited(self) -> dict[str, Any] | None:
        """The stations that the START waits for: ``missing``, and whether a quorum of all is enough; None: it waits for none."""
        found = self._connection.start_awaited(self.group_name) if self._connection is not None else None
        if found is None:
            return None
        missing = [k for k in self.holders if k not in found.present]
        return {"missing": missing, "quorum": found.known} if missing else None

    def force_start(self) -> None:
        """For an operator: start with what the members here have."""
        if self._connection is not None:
            self._connection.force_start(self.group_name)

    # ---- sending

    def send(self, message: Message) -> None:
        self.send_raw(encode(message))

    def send_raw(self, data: bytes) -> bool:
        """Give a message to the group, if this process is in it; what matters is sent again by ``again``."""
        return self._group is not None and self.outbox.send(self._connection, self._group, data)

    def _again(self) -> None:
        """Send again what may have been lost with an instance, or with the connection. All of it may arrive twice."""
        self._forget_said()
        self.updates.again()
        self._send_ends(self._ending)
        if not self._active:
            return
        self.send(Holding(True))
        self._say_applied()
        if self._disk.durable != NOWHERE:
            self.send(OnDisk(self._disk.durable))

    # ---- what the worker has done

    def _replaced(self) -> None:
        """The whole state has been replaced."""
        self.facts = self.copy.facts()
        for update, _ in self.updates.doubt():
            if (outcome := self.copy.state.outcome(update)) is not None:
                self.updates.on_outcome(update, outcome)
        self._disk.replaced()
        self._tell_place(self.facts.place)
        self.answers.forget()
        self._forget_all()
        for watch, wake in self.watches.items():
            watch.start(self.facts.place, [])
            entries = [e for e in (self.copy.state.entry(n) for n in self._names_of(watch)) if e is not None]
            watch.start(self.facts.place, entries)
            wake()

    def _names_of(self, watch: Watch) -> list[str]:
        first, last = bounds(watch.subject)
        return [name for name, _ in self.copy.rows.scan(Table.ENTRY, first, last)]

    def _publish(self, applied: Applied, inputs: Sequence[Input]) -> None:
        self.facts = facts = applied.facts
        want_applied = False
        for result, source in zip(applied.results, inputs, strict=False):
            if result.skipped:
                continue
            message = result.message
            if isinstance(message, Update):
                self._on_update(result, message)
                want_applied |= bool(message.flags & APPLIED)
            if isinstance(source, Seen):
                pass
            elif isinstance(message, OnDisk):
                self.updates.on_disk(source.sender[0], message.place)
            elif isinstance(message, HasApplied):
                self.updates.on_applied(source.sender[0], message.place)
                if source.sender == self.me and self._said and (done := self._said.popleft()) is not None and not done.done():
                    done.set_result(None)
            elif isinstance(message, Digest):
                self._compare(source.sender[0], message)
            elif isinstance(message, End) and source.sender == self.me:
                self._ending.difference_update(message.numbers)
            elif isinstance(message, Due) and self._active:
                self._on_due(source.sender[0], message)
            elif isinstance(message, Malformed):
                self.counters["updates_malformed"] += 1
            self._on_changes(result)
        self._disk.look(applied.durable)
        if want_applied:
            self._say_applied()
        for digest in applied.sums:
            self.send(digest)
        self.updates.look({station for station, _ in facts.active})
        self._tell_place(facts.place)
        self._tasks = [task for task in self._tasks if not task.done()]

    def _on_update(self, result: Result, update: Update) -> None:
        outcome = result.outcome
        if outcome is None:
            return
        self.counters["updates_repeated" if result.repeated else f"updates_{outcome.code or 'done'}"] += 1
        self._changed = True
        self.updates.on_outcome(update.id, outcome)

    def _on_changes(self, result: Result) -> None:
        if result.anywhere:
            self.answers.forget_choices()
            self._forget_all()
        if not result.changes:
            return
        names = [c.name for c in result.changes]
        self.answers.forget(names)
        for forget, asked in self.tracking.changed(names).items():
            forget(asked)
        self.leases.on_changes(result.changes, self.me)
        for watch, wake in self.watches.items():
            if watch.on_changes(result.place, result.changes):
                wake()

    def _tell_place(self, place: Place) -> None:
        if self._reached:
            waiting, self._reached = self._reached, []
            for wanted, future in waiting:
                if wanted > place:
                    self._reached.append((wanted, future))
                elif not future.done():
                    future.set_result(None)

    async def reached(self, place: Place) -> None:
        """Wait until this copy is at ``place``."""
        if self.facts.place < place:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._reached.append((place, future))
            await future

    async def fresh(self) -> None:
        """Wait until this copy has all that was acknowledged before: until an own empty message has come."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._say_applied(done)
        await done

    def _say_applied(self, done: asyncio.Future[None] | None = None) -> None:
        """Report the place of this copy; ``done`` is set when the message has its own place."""
        self._said.append(done)
        self.send(HasApplied(self.facts.place))

    def _forget_said(self) -> None:
        """What was under way may be lost."""
        while self._said:
            done = self._said.popleft()
            if done is not None and not done.done():
                done.set_exception(Refused("no-quorum", "this station has left the order meanwhile"))

    async def work(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run something between two transactions. The caller uses the result, up to its next wait, before the next transaction is
        reported."""
        self._working += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)
        finally:
            self._working -= 1

    # ---- leases

    def end_leases(self, numbers: list[int]) -> None:
        """Their programs are gone, or have given them back."""
        self._ending.update(numbers)
        self._send_ends(numbers)

    def _send_ends(self, numbers: Collection[int]) -> None:
        wanted = sorted(numbers)
        for at in range(0, len(wanted), ENDS_MAX):
            self.send(End(tuple(wanted[at : at + ENDS_MAX])))

    async def _renew_leases(self) -> None:
        """Register again the leases that ended with a membership of this process: its station was out of the group (rule M3)."""

        def look() -> list[tuple[Lease, bool, bool, Place]]:
            with self.copy.lock:
                return [(lease, *self._standing(lease)) for lease in self.leases.all()]

        for lease, registered, held, version in await self.work(look):
            if self.leases.get(lease.number) is None:
                continue  # given back meanwhile
            lease.turn(held, version)
            if registered:
                continue
            update = Update(Id(token_hex(8), 1), lease.roles, (lease.operation,))
            pending = self.updates.start(update, "memory")
            pending.done.add_done_callback(lambda _, pending=pending: self.updates.forget(pending))  # type: ignore[misc]

    def _standing(self, lease: Lease) -> tuple[bool, bool, Place]:
        """Whether the directory knows a lease, whether its name has its address, and the version of the name."""
        full = EntryLease(*self.me, lease.number)
        key, text = lease_key(full), lease_text(full)
        known = any(True for _ in self.copy.rows.scan(Table.LEASE, f"{key} ", f"{key}!"))
        entry = self.copy.state.entry(lease.operation.name) if known else None
        held = entry is not None and any(t.until == text for t in entry.targets)
        return known, held, entry.version if entry is not None else NOWHERE

    # ---- time

    async def _turns(self) -> None:
        while True:
            await asyncio.sleep(TURN_S)
            self._look_stale()
            self.end_leases(self.leases.expired(time.monotonic_ns()))
            if not self._active:
                continue
            now = time.time()
            if now >= self._due_at:
                self._due_at = now + 1.0 if self.facts.next_due <= now else now + 0.2
                await self._say_due(int(now))
            if self._changed and time.monotonic() >= self._check_at and self.facts.active[:1] == (self.me,):
                self._changed = False
                self._check_at = time.monotonic() + CHECK_S
                self.send(Check())

    async def _say_due(self, now: int) -> None:
        """DUE for instants that have passed, NEXT for schedules that wait for one (rules T1, T3)."""

        def look() -> list[Message]:
            with self.copy.lock:
                state = self.copy.state
                out: list[Message] = []
                if (due := state.due_message(self.me, now)) is not None:
                    out.append(due)
                if self.facts.active[:1] == (self.me,):
                    for entry in state.without_next():
                        s = entry.schedule
                        if s is None:
                            continue
                        at, slot = next_instant([each.when for each in s.slots], s.last, max(state.time, s.last))
                        if at:
                            out.append(Next(entry.name, entry.version, at, slot))
                return out

        for message in await self.work(look):
            self.send(message)

    def _on_due(self, station: int, due: Due) -> None:
        """Rule T2: one wrong clock stops nothing, and is named."""
        offset = self.clocks.on_due(station, due.time, time.time())
        if offset:
            words = "ahead of" if offset > 0 else "behind"
            self.journal.warning("clock", f"the clock of station {station} is {abs(offset)} s {words} this one's")

    # ---- comparison of copies

    def _compare(self, station: int, digest: Digest) -> None:
        """All have reported their sums at one place: a copy that differs from the majority gets the state again (rule S6)."""
        if self.peers and next(iter(self.peers.values())).place != digest.place:
            self.peers.clear()
        self.peers[station] = digest
        active = {s for s, _ in self.facts.active}
        if not active <= self.peers.keys():
            return
        sums = Counter((d.main, d.rest) for d in self.peers.values())
        if len(sums) == 1:
            return
        self.counters["unequal_sums"] += 1
        most, count = sums.most_common(1)[0]
        own = self.peers.get(self.me[0])
        at = place_text(digest.place)
        if 2 * count <= len(self.peers):
            self.journal.error("unequal", f"the copies differ at {at}, and no sum has a majority: zenjun name repair")
        elif own is not None and (own.main, own.rest) != most:
            self.journal.error("unequal", f"this copy differs from the majority's at {at}: getting it anew")
            self._active = False
            self._wrong = "unequal sums"
            self._look_stale()
            if self._group is not None:
                self._group.state_wrong(self._wrong)

    def repair(self) -> None:
        """For an operator: get the state from the others."""
        if self._group is None:
            return
        self._active = False
        self._group.state_wrong("repair asked for by an operator")


def _batches(inputs: Sequence[Input]) -> Iterator[Sequence[Input]]:
    """Messages in turn, within BATCH_MAX and BATCH_BYTES."""
    start = size = 0
    for at, each in enumerate(inputs):
        if at - start >= BATCH_MAX or size >= BATCH_BYTES:
            yield inputs[start:at]
            start, size = at, 0
        size += len(each.data) if isinstance(each, Heard) else 0
    if inputs:
        yield inputs[start:]


def _whos(members: Sequence[Any]) -> tuple[Who, ...]:
    return tuple((m[0], m[1]) for m in members)
