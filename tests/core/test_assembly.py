"""Messages of several PDUs: memory grows with what comes, goes back afterwards, and where there is none the order waits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.proto.core import Core, Stage
from zenjun.proto.wire import MESSAGE_MAX, Ordering

from ..virtual.cores import config
from ..virtual.segment import MS
from . import memory_refused
from .memory_refused import SCENARIOS
from .test_face import VIEW, alone

ROOT = Path(__file__).resolve().parents[2]
UNIT = 16 << 10
S = 1000 * MS
MAC = b"\x02\0\0\0\0\1"


def bound(come: int) -> int:
    """What may be mapped for a message of which so many bytes have come."""
    return (2 * come + UNIT - 1) // UNIT * UNIT + UNIT


def pieces(core: Core, data: bytes, *, ordering: Ordering) -> Iterator[int]:
    """Offer a message to a core that is alone, step by step: how many bytes have been taken, at most."""
    for turn in range(100_000):
        done = core.offer(data, group=1, client=1, ordering=ordering)
        core.step(2 * MS + turn * MS, True)
        core.tx()
        yield len(data) if done else (turn + 1) * 64 * 1500
        if done:
            return
    raise AssertionError("does not end")


@pytest.mark.parametrize("ordering", [Ordering.TOTAL, Ordering.FIFO])
def test_memory_follows_what_has_come_and_goes_back(ordering: Ordering) -> None:
    core, data = alone(), os.urandom(MESSAGE_MAX)
    reserved = core.memory_bytes
    got, most = [], 0
    for come in pieces(core, data, ordering=ordering):
        got += core.deliver()
        assert core.assembling_bytes <= bound(come)
        most = max(most, core.assembling_bytes)
    core.step(100 * S, True)
    got += core.deliver()
    assert [m.data for m in got if m.stage != Stage.PLACED] == [data] and most == MESSAGE_MAX
    core.step(100 * S + 999 * MS, True)
    assert core.assembling_bytes == MESSAGE_MAX, "another one may come at once"
    core.step(103 * S, True)
    core.step(105 * S, True)
    assert core.assembling_bytes == 0
    assert core.memory_bytes == reserved and core.memory_refused == 0


def test_whole_messages_need_no_memory() -> None:
    core = alone()
    for turn in range(100):
        assert core.offer(bytes(1200), group=1, client=1)
        core.step(2 * MS + turn * MS, True)
        core.tx()
        assert core.deliver() and core.assembling_bytes == 0


def test_who_announces_much_and_sends_a_piece_costs_a_piece() -> None:
    """63 stations announce 16 MiB at a time, by both services."""
    n = 64
    wide = {"stations": n, "frame_max": 2048}

    def member(index: int) -> Core:
        core = Core(**config(**wide, self_index=index))
        core.open(MS, 1, VIEW, (1,) * n, 2048)
        return core

    victim = member(0)
    for index in range(1, n):
        attacker = member(index)
        assert not attacker.offer(bytes(MESSAGE_MAX), group=1, client=1, ordering=Ordering(index % 2))
        attacker.step(2 * MS, True)
        assert victim.rx(2 * MS, attacker.tx()[0], MAC) == 0
    victim.step(3 * MS, True)
    victim.deliver()
    assert n // 2 * UNIT <= victim.assembling_bytes <= 2 * n * UNIT
    assert victim.memory_bytes < 64 << 20


def test_what_will_not_be_completed_is_given_back() -> None:
    core = alone()
    assert not core.offer(bytes(MESSAGE_MAX), group=1, client=1)
    core.step(2 * MS, True)
    core.tx()
    core.deliver()
    assert core.assembling_bytes
    core.step(10 * S, True)
    core.step(12 * S, True)
    assert core.assembling_bytes, "it goes on when there is room"
    core.close()
    core.open(13 * S, 2, VIEW, (2,), 1500)
    core.step(14 * S, True)
    core.step(16 * S, True)
    assert core.assembling_bytes == 0


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_order_waits_where_memory_is_refused(scenario: str) -> None:
    """A process that may not have more address space: nothing is lost, nothing crashes, and it goes on once there is some."""
    command = [sys.executable, "-m", memory_refused.__name__, scenario]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
