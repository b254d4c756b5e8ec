"""What a program is told of a transaction that was sent more than once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from zenjun.daemon.database.waiting import Undecided, Waiting
from zenjun.proto.service.database import messages as m
from zenjun.proto.service.database.machine import Answer, Durability
from zenjun.proto.service.database.rows import Verdict

from ..rules import rule

WRITE = m.Write(m.Txid(1, 1, 1, 7), 1, 10, (), b"")


class Site:
    """It answers with these verdicts, one after another; the log begins here when the last one is there."""

    can_write = True

    def __init__(self, verdicts: Sequence[Verdict], log_begin: int) -> None:
        self.verdicts, self.begins, self.begin = list(verdicts), log_begin, 1
        self.counters: Counter[str] = Counter()
        self.machine = self
        self.me = (1, 1)
        self.waiting = Waiting(self)  # type: ignore[arg-type]

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        return condition()

    async def work(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    work_short = work

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
