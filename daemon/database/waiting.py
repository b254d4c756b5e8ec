"""What programs at this station wait for: verdicts on their transactions, the database alone, a place to read from."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...proto.service.base import Effect, Source
from ...proto.service.database.fate import may_send
from ...proto.service.database.machine import Answer, Durability, Granted, Reached
from ...proto.service.database.messages import Segment, Txid, Write, encode_body, txid_of
from ...proto.service.database.rows import Verdict
from .leases import encode_lease

if TYPE_CHECKING:
    from .site import Site

LOCK_S: Final = 60.0
"""A program has the database alone for that long at most."""
RETRY_S: Final = 0.05
LATE_S: Final = 0.25
"""Between two looks for transactions without a task whose time is over."""


class NotHere(Exception):
    """What a program wants cannot be done now, and has not been done."""


class Undecided(Exception):
    """It is not known what became of a transaction."""


class _Started(NamedTuple):
    """A transaction whose program has no task that waits."""

    told: Callable[[Answer | None], None]
    """Called once with the answer; None: not in time."""
    deadline: float
    """time.monotonic."""


class Waiting:
    """The requests of programs that a site has not answered yet."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._answers: dict[Txid, asyncio.Future[Answer | None]] = {}
        self._started: dict[Txid, _Started] = {}
        self._looking: asyncio.TimerHandle | None = None
        """For those whose time is over."""
        self._unsent: list[tuple[bytes, Durability]] = []
        """Encoded, to be given to the machine when the thread of the applier comes to it."""
        self._is_sending = False
        """``_send`` runs."""
        self._grants: dict[Txid, asyncio.Future[Granted]] = {}
        self._ends: dict[Txid, asyncio.TimerHandle] = {}
        self._reads: dict[int, asyncio.Future[Reached]] = {}
        self._numbers = 0

    def on_effect(self, effect: Answer | Granted | Reached) -> None:
        """What the machine has for a program."""
        if isinstance(effect, Answer):
            if (started := self._started.pop(effect.txid, None)) is not None:
                if effect.verdict is not Verdict.UNDECIDED:
                    self._site.counters[f"verdict_{effect.verdict.value}"] += 1
                started.told(effect)
            _settle(self._answers.pop(effect.txid, None), effect)
        elif isinstance(effect, Reached):
            _settle(self._reads.pop(effect.number, None), effect)
        else:
            self._on_granted(effect)

    def order_lost(self) -> None:
        """Locks and barriers are not to be had in this order any more. Answers come from the machine."""
        waiting: list[asyncio.Future[Any]] = [*self._grants.values(), *self._reads.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(NotHere("this station has left the order meanwhile"))
        self._grants.clear()
        self._reads.clear()
        for handle in self._ends.values():
            handle.cancel()
        self._ends.clear()

    def start(self, data: bytes, durability: Durability, seconds: float, told: Callable[[Answer | None], None]) -> bool:
        """``commit``, of an encoded ``Write`` that is not long and has not been sent before, without a task of its own. told: is
        called once, perhaps at once: with the answer, which may be UNDECIDED; None: not in time. False: it has to wait before it
        can be sent, and nothing has been done."""
        site = self._site
        machine, txid = site.machine, txid_of(data)
        if machine is None or not site.can_write or len(data) > machine.long.part_bytes:
            return False
        if txid in self._started or txid in self._answers:
            return False
        self._started[txid] = _Started(told, time.monotonic() + seconds)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(LATE_S, self._look_for_late)
        if site.is_free and not self._is_sending:
            site.submit(data, durability)
            return True
        self._unsent.append((data, durability))
        if not self._is_sending:
            self._is_sending = True
            site.soon(self._send())
        return True

    async def _send(self) -> None:
        """Give the machine what has been started while its thread is at work, all of it with one job."""
        try:
            while self._unsent:
                unsent, self._unsent = self._unsent, []
                await self._site.act(self._submit, unsent)
        finally:
            self._is_sending = False

    def _submit(self, unsent: Sequence[tuple[bytes, Durability]]) -> list[Effect]:
        """In the thread of the applier."""
        machine, effects = self._site.machine, list[Effect]()
        for data, durability in unsent:
            if machine is None:
                effects.append(Answer(txid_of(data), Verdict.UNDECIDED, 0))
            else:
                effects += machine.submit_encoded(data, durability)
        return effects

    def _look_for_late(self) -> None:
        now = time.monotonic()
        for txid in [txid for txid, started in self._started.items() if started.deadline <= now]:
            self._started.pop(txid).told(None)
        self._looking = asyncio.get_running_loop().call_later(LATE_S, self._look_for_late) if self._started else None

    async def commit(
        self, write: Write, durability: Durability, seconds: float, *, again: bool = False, began: Source | None = None
    ) -> Answer:
        """What became of a transaction. again: it may have been sent before. began: the service with whose session it
        began, if its program is at another station. Raises NotHere, Undecided."""
        deadline = time.monotonic() + seconds
        sent = again
        while True:
            left = max(0.0, deadline - time.monotonic())
            if not self._site.can_write and not await self._site.until(lambda: self._site.can_write, left):
                if sent:
                    raise Undecided(self._site.why_not())
                raise NotHere(self._site.why_not())
            machine = self._site.machine
            if machine is None:
                continue
            if began is not None and not may_send(machine, began):
                raise Undecided("this station was cut off meanwhile")
            loop = asyncio.get_running_loop()
            future: asyncio.Future[Answer | None] = loop.create_future()
            self._answers[write.txid] = future
            await self._site.act(machine.submit, write, durability, is_short=True)
            # A bare timer: wait_for takes as long as a tenth of the transaction.
            timer = loop.call_later(max(0.01, deadline - time.monotonic()), _settle, future, None)
            try:
                answer = await future
            finally:
                timer.cancel()
            if answer is None:
                self._answers.pop(write.txid, None)
                raise Undecided(self._site.why_not())
            if sent and answer.verdict is Verdict.BUSY and time.monotonic() > deadline:
                raise Undecided("too much waits for the program that has the database alone")
            # BUSY is told before the history is looked at, in which it may be.
            if answer.verdict is Verdict.UNDECIDED or (sent and answer.verdict is Verdict.BUSY):
                sent = True
                self._site.counters["sent_again"] += 1
                await asyncio.sleep(RETRY_S)
                continue
            # The log is asked after the decision: its first place may be forgotten while it is on its way again, if it is long.
            # Then it is in conflict with itself.
            if answer.verdict is not Verdict.DONE and sent and await self._site.work(self._has_forgotten, write.snapshot):
                raise Undecided("the history does not go back so far")
            self._site.counters[f"verdict_{answer.verdict.value}"] += 1
            return answer

    async def lease(self, txid: Txid, table: str, count: int, seconds: float) -> int | None:
        """The first of so many ids of a table, which nobody else has; None: it has none. Raises NotHere, Undecided."""
        deadline = time.monotonic() + seconds
        body = encode_body([(Segment.LEASE, encode_lease(table, count))])
        while True:
            position = self._site.position
            write = Write(txid, position.epoch, position.version, (), body)
            answer = await self.commit(write, Durability.MEMORY, max(0.0, deadline - time.monotonic()))
            if answer.verdict is Verdict.IMAGE:
                return None
            if answer.verdict is Verdict.DONE:
                found = await self._site.query(f"SELECT first FROM zenjun_lease WHERE version = {answer.version:d}")
                if not found:
                    raise NotHere("the lease is not kept")
                return int(found[0][0])
            if time.monotonic() > deadline:
                raise NotHere(answer.verdict.value)
            await asyncio.sleep(RETRY_S)

    def _has_forgotten(self, snapshot: int) -> bool:
        """Whether a transaction on this snapshot may be in a part of the history that is not kept."""
        return self._site.log_begin() > snapshot + 1

    async def lock(self, txid: Txid, seconds: float) -> int:
        """Wait until this transaction has the database alone; returns the last version. Raises NotHere."""
        deadline = time.monotonic() + seconds
        if not await self._site.until(lambda: self._site.can_write, seconds) or self._site.machine is None:
            raise NotHere(self._site.why_not())
        future: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()
        self._grants[txid] = future
        try:
            await self._site.act(self._site.machine.lock, txid)
            await asyncio.wait([future], timeout=max(0.01, deadline - time.monotonic()))  # wait_for may swallow a cancellation
        except asyncio.CancelledError:  # the program has gone, perhaps in the moment in which it got the lock
            self._grants.pop(txid, None)
            self.end_lock(txid)
            raise
        if not future.done():
            self._grants.pop(txid, None)
            await self.unlock(txid)
            raise NotHere("another program has the database alone")
        return future.result().version

    def _on_granted(self, granted: Granted) -> None:
        future = self._grants.pop(granted.txid, None)
        loop = asyncio.get_running_loop()
        if future is None or future.done():
            self.end_lock(granted.txid)
            return
        self._ends[granted.txid] = loop.call_later(LOCK_S, self.end_lock, granted.txid)
        future.set_result(granted)

    def end_lock(self, txid: Txid) -> None:
        """The program has gone, or has had it for too long."""
        self._site.soon(self.unlock(txid))

    async def unlock(self, txid: Txid) -> None:
        """The program has given up."""
        if (handle := self._ends.pop(txid, None)) is not None:
            handle.cancel()
        if self._site.machine is not None and self._site.follows:
            await self._site.act(self._site.machine.unlock, txid)

    async def barrier(self, seconds: float, *, durable: bool) -> int:
        """Wait until all is here that was committed before; returns the version. Raises NotHere."""
        deadline = time.monotonic() + seconds
        if not await self._site.until(lambda: self._site.can_write, seconds) or self._site.machine is None:
            raise NotHere(self._site.why_not())
        self._numbers += 1
        future: asyncio.Future[Reached] = asyncio.get_running_loop().create_future()
        self._reads[self._numbers] = future
        await self._site.act(self._site.machine.barrier, self._numbers, is_short=True)
        try:
            version = (await asyncio.wait_for(future, max(0.01, deadline - time.monotonic()))).version
        except TimeoutError:
            raise NotHere(self._site.why_not()) from None
        if durable and not await self._site.until(
            lambda: self._site.durable() >= version, max(0.01, deadline - time.monotonic())
        ):
            raise NotHere("too few disks have it in time")
        return version

    async def durable(self, epoch: int, version: int, seconds: float) -> None:
        """Wait until enough disks have this version of an epoch. Raises NotHere: they have not in time, or another epoch has
        begun, in which it need not be."""

        def is_over() -> bool:
            shared = self._site.machine.shared if self._site.machine is not None else None
            return shared is not None and shared.epoch > epoch

        if (machine := self._site.machine) is not None and self._site.durable() < version:
            await self._site.act(machine.ask_reports, is_short=True)
        if not await self._site.until(lambda: self._site.durable() >= version or is_over(), seconds) or is_over():
            raise NotHere("too few disks have it in time" if not is_over() else "the database was opened again meanwhile")


def undone(effects: Sequence[Effect]) -> list[Effect]:
    """These, of a batch that is not in the file: what it has committed may not be said to be, nor to be here to be read."""
    found: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Answer) and effect.verdict is Verdict.DONE:
            found.append(Answer(effect.txid, Verdict.UNDECIDED, 0))
        elif not isinstance(effect, Reached):
            found.append(effect)
    return found


def _settle(future: asyncio.Future[Any] | None, value: Any) -> None:
    if future is not None and not future.done():
        future.set_result(value)
