"""A station that is cut off says so before the others go on without it."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from zenjun.proto.effects import Blocked, Changed
from zenjun.tools.cli.corosync import STOP_MS, times

from ..rules import rule
from ..virtual.engines import Node, opened
from ..virtual.segment import MS

QUORUM_MS, FAIL_MS, BEAT_MS, PROBE_MS = 150, 400, 50, 10
BOUND_MS = FAIL_MS - QUORUM_MS - BEAT_MS - PROBE_MS
TIMES = {
    "quorum_timeout_ns": QUORUM_MS * MS,
    "fail_timeout_ns": FAIL_MS * MS,
    "heartbeat_ns": BEAT_MS * MS,
    "probe_interval_ns": PROBE_MS * MS,
}
NOTHING: frozenset[str] = frozenset()


def lost_quorum(node: Node) -> bool:
    return any(not report.quorum for report in node.reported(Blocked))


def margin_ms(
    seed: int, rules: frozenset[str] = NOTHING, late_ms: int = 1, stations: int = 3, options: Mapping[str, int] = TIMES
) -> int:
    """Station 1 is cut off at any moment: milliseconds from its report to the first instance without it. late_ms: it runs only
    once in this time."""
    rng = random.Random(seed)
    cluster = opened(stations, rules=rules, **options)
    for _ in range(rng.randrange(4)):
        cluster.send(rng.randrange(stations), b"x")
        cluster.run(rng.randrange(200) * MS)
    cluster.run(500 * MS + rng.randrange(BEAT_MS * 1000) * 1000)
    lone, others = cluster.nodes[0], cluster.nodes[1:]
    assert not any(node.blocked() for node in cluster.nodes), "nobody is waited for while nothing is wrong"
    cluster.lost = lambda source, to, pdu: (source is lone) != (to is lone)
    reported = removed = 0
    for at in range(1, 3000):
        lone.paused = at % late_ms != 0
        cluster.run(MS)
        reported = reported or (at if lost_quorum(lone) else 0)
        removed = removed or (at if any(c.left == (1,) for node in others for c in node.reported(Changed)) else 0)
        if reported and removed:
            return removed - reported
    raise AssertionError("nothing was reported")


@rule("M11")
@pytest.mark.parametrize("stations", [3, 5])
def test_a_station_that_is_cut_off_says_so_first(stations: int) -> None:
    """By what the times promise, less one millisecond, which is how closely this looks."""
    margins = [margin_ms(seed, stations=stations) for seed in range(10)]
    assert min(margins) >= BOUND_MS - 1, margins


@rule("M11")
@pytest.mark.parametrize("stop_ms", [STOP_MS, 2500])
def test_the_time_to_stop_that_a_configuration_promises(stop_ms: int) -> None:
    """``zenjun corosync config --stop-time``: whatever takes no longer has ended before anybody hears that the node has left."""
    lines = (line.partition(" = ") for line in times(stop_ms))
    options = {name.replace("_ms", "_ns"): int(value) * MS for name, equals, value in lines if equals}
    margins = [margin_ms(seed, options=options) for seed in range(4)]
    assert min(margins) >= stop_ms - 1, margins
    assert max(margins) <= stop_ms + options["heartbeat_ns"] // MS + 50, "and a failover takes no longer than that"


@rule("M11")
def test_also_if_it_is_late() -> None:
    """A station that runs every 45 ms may be late twice: with the last frames that it hears, and with its deadline."""
    margins = [margin_ms(seed, late_ms=45) for seed in range(6)]
    assert min(margins) >= BOUND_MS - 2 * 45 - 1, margins


@rule("M11")
def test_without_the_rule_the_others_may_be_first() -> None:
    broken = frozenset({"lose_quorum_late"})
    assert min(margin_ms(seed, broken) for seed in range(6)) < BOUND_MS - 1
    assert min(margin_ms(seed, broken, late_ms=45) for seed in range(6)) < 0


def test_an_interruption_shorter_than_fail_timeout() -> None:
    """It has quorum again as soon as it hears the others, and nobody has been removed."""
    cluster = opened(3, **TIMES)
    lone = cluster.nodes[0]
    cluster.lost = lambda source, to, pdu: (source is lone) != (to is lone)
    cluster.run((QUORUM_MS + BEAT_MS) * MS)
    assert lone.blocked() == ((2, "silent"), (3, "silent"))
    cluster.lost = lambda source, to, pdu: False
    cluster.run((BEAT_MS + PROBE_MS) * MS)
    last = lone.reported(Blocked)[-1]
    assert last.quorum and not last.stations
    assert not any(c.left for node in cluster.nodes for c in node.reported(Changed))


def test_one_of_three_that_is_silent_is_no_loss_of_quorum() -> None:
    cluster = opened(3, **TIMES)
    silent = cluster.nodes[2]
    cluster.lost = lambda source, to, pdu: silent in (source, to)
    cluster.run((FAIL_MS + 100) * MS)
    assert not any(lost_quorum(node) for node in cluster.nodes[:2])
    assert lost_quorum(silent)
