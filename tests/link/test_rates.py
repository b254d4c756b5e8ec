"""How fast the programs of one user may send: the reckoning, in virtual time, and the data path that sets programs aside."""

from __future__ import annotations

import time
from typing import Any

import pytest
from zenjun.daemon.datapath import DataPath, now_ns
from zenjun.daemon.datapath._datapath import lib
from zenjun.proto.wire import group_id

from ..rules import rule
from .rig import CLUSTER, ETHERTYPE, GROUP_MAC, Bench, Double, Program, frame

SEND = 4
SECOND = 10**9
BURST_S = int(lib.DP_RATE_BURST_NS) / SECOND
GROUP = group_id("g")
GREEDY, OTHER = 4711, 4712


def passed(rate: int, size: int, seconds: float, *, wait: bool = True, forgets: int = 0) -> list[int]:
    """When messages of this size went out of a program that always has one, at so many units (of ``size`` each message) a second.
    Broken variants. wait False: it sends again as soon as it has sent; forgets: what is owed is forgotten so often, in ns."""
    now, due, out = 5 * SECOND, 0, []
    end = now + int(seconds * SECOND)
    forgotten = now
    while now < end:
        if forgets and now >= forgotten + forgets:
            forgotten, due = now, 0
        free = lib.dp_rate_free(due, now) if wait else 0
        if free:
            assert free > now, "a wait that is over"
            now = free
            continue
        out.append(now)
        due = lib.dp_rate_after(due, now, size, rate)
        now += 1_000  # what a message costs
        if len(out) > 200_000:
            break
    return out


def is_within(times: list[int], rate: int, size: int, seconds: float) -> bool:
    """Never more than the rate and one burst, in the whole time, and not much less than the rate."""
    units = len(times) * size
    most = rate * (seconds + BURST_S) + size
    return rate * seconds * 0.95 - size <= units <= most


@rule("G5")
@pytest.mark.parametrize(
    ("rate", "size"), [(1, 1), (5, 1), (1000, 1), (100_000, 1), (1 << 20, 1300), (1 << 20, 1 << 20), (1024, 1 << 24)]
)
def test_the_rate_is_kept_over_any_time(rate: int, size: int) -> None:
    seconds = max(1.0, min(20.0, 50_000 * size / rate), 3 * size / rate)
    times = passed(rate, size, seconds)
    assert is_within(times, rate, size, seconds), f"{len(times)} of {size} at {rate} in {seconds} s"
    units = rate * BURST_S  # and over any part of it: the k-th one behind another comes no earlier than the rate says
    for apart in (10, 100, 1000):
        for first, last in zip(times, times[apart:], strict=False):
            assert (apart * size - units - size) / rate <= (last - first) / SECOND + 1e-6


def test_a_reckoning_that_forgets_or_does_not_wait_is_seen() -> None:
    """Broken variants: without a wait, and with a debt that is forgotten ten times a second."""
    assert is_within(passed(1000, 1, 5.0), 1000, 1, 5.0)
    assert not is_within(passed(1000, 1, 0.1, wait=False), 1000, 1, 0.1)
    assert not is_within(passed(1000, 1, 5.0, forgets=SECOND // 10), 1000, 1, 5.0)


def test_no_rate_is_no_limit() -> None:
    assert lib.dp_rate_after(0, 77, 1 << 24, 0) == 0
    assert len(passed(0, 1, 0.01)) == 10_000


@pytest.fixture
def bench(double_library: tuple[Any, Any]) -> Any:
    core = Double(*double_library, 0)
    core.c.room, core.c.echo = 1 << 60, 0
    dp = DataPath(
        core, station_index=0, ethertype=ETHERTYPE, cluster=CLUSTER, group_mac=GROUP_MAC, rest_ns=0, linger_ns=0,
        slice_ns=10**10, message_max=1 << 16,
    )  # fmt: skip
    made = Bench(core, dp)
    yield made
    made.close()


def member(bench: Bench, number: int, user: int) -> Program:
    program = bench.member(number, GROUP)
    if user:
        bench.dp.client_bound(program.slot, user)
    return program


def taken(bench: Bench) -> dict[int, list[bytes]]:
    out: dict[int, list[bytes]] = {}
    for client, _, data, _ in bench.core.taken():
        out.setdefault(client, []).append(data)
    return out


def turn_for(bench: Bench, seconds: float) -> None:
    """Turns whenever the data path says that it is due."""
    end = now_ns() + int(seconds * SECOND)
    while (now := now_ns()) < end:
        due = min(bench.turn().next_due, end)
        if due > now:
            time.sleep((due - now) / SECOND)


COUNT = 60


def flood(bench: Bench, *programs: Program) -> None:
    for program in programs:
        for number in range(COUNT):
            program.send(frame(SEND, b"%d" % number, handle=1))


@rule("G5")
@pytest.mark.parametrize("per_connection", [False, True], ids=["", "broken: each connection has a rate of its own"])
def test_the_rate_is_a_users_and_nobody_elses(bench: Bench, per_connection: bool) -> None:
    """Both programs of a user have its rate together, each a share; the other user and root are not slowed by them."""
    mine = [member(bench, 1, GREEDY), member(bench, 2, GREEDY + 100 * per_connection)]
    other, root = member(bench, 3, OTHER), member(bench, 4, 0)
    bench.dp.user_rates(100, 0)
    flood(bench, *mine, root)
    for number in range(10):
        other.send(frame(SEND, b"%d" % number, handle=1))
    turn_for(bench, 0.5)
    got = {client: len(data) for client, data in taken(bench).items()}
    both = got[1] + got[2]
    assert got[3] == 10 and got[4] == COUNT, f"others wait: {got}"
    assert (both > 90) == per_connection, f"100/s and 10 at once, in 0.5 s: {got}"
    assert min(got[1], got[2]) > both / 4, f"one has all: {got}"
    assert bench.dp.client_info(mine[0].slot).throttled != per_connection and not bench.dp.client_info(root.slot).throttled
    assert bench.dp.counters()["client_throttles"]
    bench.dp.user_rates(0, 0)
    turn_for(bench, 0.05)
    assert taken(bench)[1] == [b"%d" % n for n in range(COUNT)] == taken(bench)[2], "nothing is lost, and in its order"
    assert not bench.dp.client_info(mine[0].slot).throttled


@rule("G5")
def test_bytes_count_too_and_a_large_message_passes(bench: Bench) -> None:
    program = member(bench, 1, GREEDY)
    bench.dp.user_rates(0, 100_000)
    for size in (60_000, 10, 10):
        program.send(frame(SEND, bytes(size), handle=1))
        bench.turn()
    assert [len(data) for data in taken(bench)[1]] == [60_000], "paid for in 0.6 s, of which 0.1 s may be owed"
    turn_for(bench, 0.3)
    assert [len(data) for data in taken(bench)[1]] == [60_000]
    turn_for(bench, 0.5)
    assert [len(data) for data in taken(bench)[1]] == [60_000, 10, 10]


def test_who_comes_back_owes_what_it_has_sent(bench: Bench) -> None:
    """A new connection begins no new account, and its end is told only when what it has sent has gone."""
    first = member(bench, 1, GREEDY)
    bench.dp.user_rates(100, 0)
    flood(bench, first)
    bench.turn()
    assert 10 <= len(taken(bench)[1]) <= 13
    bench.dp.client_remove(first.slot, hard=True)
    second = member(bench, 2, GREEDY)
    second.send(frame(SEND, b"again", handle=1))
    bench.turn()
    assert 2 not in taken(bench)
    second.close()
    turn_for(bench, 0.3)
    assert taken(bench)[2] == [b"again"]
    (end,) = [take for take in iter(bench.dp.take, None) if take.slot == second.slot]
    assert end.type == 0 and end.error == 0


def test_more_users_than_there_are_places(bench: Bench) -> None:
    bench.dp.user_rates(10, 0)
    greedy = member(bench, 1, GREEDY)
    flood(bench, greedy)
    bench.turn()
    count = len(taken(bench)[1])
    for number in range(1000):
        program = member(bench, 2 + number % 1000, 10_000 + number)
        bench.dp.client_remove(program.slot, hard=True)
    bench.turn()
    assert len(taken(bench)[1]) == count, "it still owes what it owed"
