"""What a program is told of a transaction that was sent more than once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import pytest
from zenjun.daemon.database.jobs import Jobs
from zenjun.daemon.database.waiting import NotHere, Undecided, Waiting
from zenjun.proto.service.base import Effect, Emit
from zenjun.proto.service.database import messages as m
from zenjun.proto.service.database.certify import Shared
from zenjun.proto.service.database.machine import Answer, Durability, Granted, Machine
from zenjun.proto.service.database.roll import Sites
from zenjun.proto.service.database.rows import Verdict
from zenjun.proto.service.database.window import Window

from ..rules import rule

WRITE = m.Write(m.Txid(1, 1, 1, 7), 1, 10, (), b"")


class Site:
    """It answers with these verdicts, one after another; the log begins here when the last one is there."""

    can_write = True

    def __init__(self, verdicts: Sequence[Verdict], log_begin: int) -> None:
        self.verdicts, self.begins, self.begin = list(verdicts), log_begin, 1
        self.counters: Counter[str] = Counter()
        self.machine: Any = self
        self.me = (1, 1)
        self.waiting = Waiting(self)  # type: ignore[arg-type]

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        return condition()

    async def work(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    async def act(self, function: Callable[..., Sequence[Answer]], *arguments: Any, is_short: bool = False) -> None:
        self.carry_out(function(*arguments))

    def submit(self, write: m.Write, durability: Durability) -> list[Answer]:
        verdict = self.verdicts.pop(0)
        if not self.verdicts:
            self.begin = self.begins
        return [Answer(write.txid, verdict, 0)]

    def carry_out(self, effects: Sequence[Answer]) -> None:
        for effect in effects:
            self.waiting.on_effect(effect)

    def log_begin(self) -> int:
        return self.begin

    def why_not(self) -> str:
        return "no answer"

    def commit(self, *, again: bool = False) -> Verdict:
        return asyncio.run(self.waiting.commit(WRITE, Durability.MEMORY, 20.0, again=again)).verdict


@rule("K4")
@pytest.mark.parametrize("verdicts", [[Verdict.UNDECIDED, Verdict.CONFLICT], [Verdict.STALE]])
def test_what_is_forgotten_before_it_is_decided_is_not_refused(verdicts: list[Verdict]) -> None:
    """It may have been committed at its first place, and be in conflict with itself at the second: its program must not repeat
    it. The log had that place when it was sent again."""
    again = len(verdicts) == 1
    with pytest.raises(Undecided):
        Site(verdicts, 12).commit(again=again)
    assert Site(verdicts, 11).commit(again=again) is verdicts[-1], "all is there that it may have become"


@pytest.mark.parametrize("verdict", [Verdict.CONFLICT, Verdict.STALE])
def test_what_is_sent_once_is_refused_whatever_is_forgotten(verdict: Verdict) -> None:
    assert Site([verdict], 1000).commit() is verdict


@rule("K4")
def test_no_room_behind_a_lock_says_nothing_of_what_was_sent_before() -> None:
    assert Site([Verdict.UNDECIDED, Verdict.BUSY, Verdict.DONE], 1000).commit() is Verdict.DONE
    assert Site([Verdict.BUSY], 1000).commit() is Verdict.BUSY
    with pytest.raises(Undecided):
        asyncio.run(Site([Verdict.BUSY], 1).waiting.commit(WRITE, Durability.MEMORY, 0.0, again=True))


def test_what_is_committed_is_committed() -> None:
    assert Site([Verdict.UNDECIDED, Verdict.DONE], 1000).commit() is Verdict.DONE


@rule("Z5")
@pytest.mark.parametrize("verdicts", [[Verdict.UNDECIDED, Verdict.DONE], [Verdict.DONE]])
def test_a_session_s_transaction_is_not_sent_by_another_service(verdicts: list[Verdict]) -> None:
    """The station was cut off after it was sent, or before: another site may have said that it never comes."""
    site = Site(verdicts, 1000)
    began = site.me

    def cut_off(write: m.Write, durability: Durability) -> list[Answer]:
        site.me = (1, 2)
        return Site.submit(site, write, durability)

    if len(verdicts) == 2:
        site.submit = cut_off  # type: ignore[method-assign]
    else:
        site.me = (1, 2)
    with pytest.raises(Undecided):
        asyncio.run(site.waiting.commit(WRITE, Durability.MEMORY, 20.0, began=began))
    assert site.verdicts == [Verdict.DONE], "not sent as (1, 2)"


class Syncing(Site):
    """Enough disks have this version of this epoch."""

    def __init__(self, epoch: int, version: int) -> None:
        super().__init__([], 1)
        self.shared, self.version = Shared(epoch, set(), Window(0), 0, 0), version

    def durable(self) -> int:
        return self.version

    def ask_reports(self) -> list[Effect]:
        return []


@rule("D3")
def test_a_version_is_waited_for_in_its_epoch() -> None:
    """In a later one another version may have its number."""
    asyncio.run(Syncing(7, 20).waiting.durable(7, 20, 1.0))
    for site, why in ((Syncing(7, 19), "too few disks"), (Syncing(8, 30), "opened again")):
        with pytest.raises(NotHere, match=why):
            asyncio.run(site.waiting.durable(7, 20, 1.0))


class Applying(Site):
    """One whose thread is at work when programs go; the machine is the real one."""

    def __init__(self) -> None:
        super().__init__([], 1)
        self.machine: Any = Machine((1, 1), Sites(frozenset({1})), cast(Any, None))
        self.machine.shared = Shared(1, {(1, 1)}, Window(0), 0, 0)
        self.jobs, self.sent, self.tasks, self.follows = Jobs("test"), list[m.Message | None](), list[asyncio.Task[Any]](), True

    async def act(self, function: Callable[..., Sequence[Effect]], *arguments: Any, is_short: bool = False) -> None:
        await self.jobs.run_whole(self.carry_out, function, *arguments, is_short=is_short)

    def carry_out(self, effects: Sequence[Effect]) -> None:
        self.sent += [m.decode(effect.data) for effect in effects if isinstance(effect, Emit)]

    def soon(self, what: Any) -> None:
        self.tasks.append(asyncio.create_task(what))

    async def gone_meanwhile(self, request: Coroutine[Any, Any, Any]) -> None:
        """The program goes when its request has come to the thread, which has something to do before it."""
        gate = threading.Event()
        before = asyncio.create_task(self.jobs.run(gate.wait, 20))
        await asyncio.sleep(0)
        task = asyncio.create_task(request)
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gate.set()
        assert await before
        await self.jobs.run(int)
        await asyncio.gather(*self.tasks)
        assert task.cancelled()


def test_a_program_that_goes_leaves_nothing_by_half() -> None:
    """Its lock ends for all stations; its long transaction is sent, and the next one does not wait for it for ever."""

    async def run() -> None:
        site, one = Applying(), m.Txid(1, 1, 1, 1)
        await site.gone_meanwhile(site.waiting.unlock(one))
        assert site.sent == [m.Release(one)]
        await site.gone_meanwhile(site.waiting.lock(one, 20.0))
        assert site.sent[1:] == [m.Lock(one, 1), m.Release(one)]
        await site.gone_meanwhile(site.waiting.commit(WRITE._replace(body=bytes(1 << 20)), Durability.MEMORY, 20.0))
        parts = site.sent[3:]
        assert [(part.txid, part.number) for part in parts if isinstance(part, m.Part)] == [(WRITE.txid, n) for n in range(4)]
        site.jobs.close()

    asyncio.run(run())


def test_a_lock_that_comes_when_its_program_goes_is_given_back() -> None:
    async def run() -> None:
        site, one = Applying(), m.Txid(1, 1, 1, 1)
        task = asyncio.create_task(site.waiting.lock(one, 20.0))
        while not site.sent:
            await asyncio.sleep(0.001)
        site.waiting.on_effect(Granted(one, 7))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*site.tasks)
        await site.jobs.run(int)
        assert task.cancelled() and site.sent == [m.Lock(one, 1), m.Release(one)] and not site.waiting._ends
        site.jobs.close()

    asyncio.run(run())
