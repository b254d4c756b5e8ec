"""A station that gets little of its processor and loses much has no healthy one removed; who alone does not hear somebody is not
believed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from zenjun.proto.effects import Changed
from zenjun.proto.openpdu import decode_header
from zenjun.proto.wire import Kind

from ..virtual.engines import Cluster, Node, opened
from ..virtual.segment import MS

SICK = 5


def starved(rules: frozenset[str], seed: int, loss: float = 0.3, run_ns: int = 5 * MS, of_ns: int = 100 * MS) -> Cluster:
    """Fifteen seconds with a station that runs 5 ms of every 100 and loses 30 % of what is sent to it."""
    cluster = opened(5, rules=rules)
    rng = random.Random(seed)
    sick = cluster.nodes[SICK - 1]
    cluster.lost = lambda source, to, pdu: to is sick and rng.random() < loss
    for _ in range(15_000 * MS // of_ns):
        sick.paused = True
        cluster.run(of_ns - run_ns)
        sick.paused = False
        batch, sick.backlog = sick.backlog, []
        sick.apply(cluster.now, sick.engine.on_frames(cluster.now, batch))  # a daemon reads before it judges
        cluster.run(run_ns)
    return cluster


def removed(cluster: Cluster) -> dict[int, tuple[int, ...]]:
    """Who was removed, by the number of the instance that began without them."""
    return {c.instance: c.left for node in cluster.nodes for c in node.reported(Changed) if c.left}


BOTH = frozenset({"judge_late", "believe_one"})


@pytest.mark.parametrize("rules", [frozenset(), frozenset({"judge_late"}), frozenset({"believe_one"}), BOTH], ids=str)
def test_a_starved_station_has_no_healthy_one_removed(rules: frozenset[str]) -> None:
    """Either rule alone keeps the healthy ones in; with neither they are removed."""
    changes = [removed(starved(rules, seed)) for seed in range(3)]
    healthy = [left for change in changes for left in change.values() if left != (SICK,)]
    if rules == BOTH:
        assert healthy
    else:
        assert not healthy, changes
    if not rules:
        assert all(len(change) <= 1 for change in changes)


def deaf_to(station: int, *deaf: int) -> Callable[[Node, Node, bytes], bool]:
    """These get nothing from the station, nor its word through others; only what it has put in order, when others repeat that."""

    def lost(source: Node, to: Node, pdu: bytes) -> bool:
        header = decode_header(pdu)
        if to.config.station not in deaf or header is None or header["src"] != station:
            return False
        return source.config.station == station or header["kind"] in (Kind.CONFIRM, Kind.NAK)

    return lost


@pytest.mark.parametrize("rules", [frozenset(), frozenset({"believe_one"})], ids=str)
def test_who_alone_does_not_hear_another_is_removed_itself(rules: frozenset[str]) -> None:
    cluster = opened(4, rules=rules)
    cluster.lost = deaf_to(1, 4)
    cluster.until(lambda: bool(removed(cluster)), limit_ns=5_000 * MS)
    assert set(removed(cluster).values()) == ({(1,)} if rules else {(4,)})


def test_two_witnesses_are_believed() -> None:
    """Nobody but 2 hears 1, who hears all: 3, 4 and 5 are right to go on without it."""
    cluster = opened(5)
    cluster.lost = deaf_to(1, 3, 4, 5)
    cluster.until(lambda: bool(removed(cluster)), limit_ns=5_000 * MS)
    assert set(removed(cluster).values()) == {(1,)}


def test_of_two_that_do_not_hear_each_other_the_lower_number_is_believed() -> None:
    cluster = opened(4)
    cluster.lost = lambda source, to, pdu: deaf_to(1, 4)(source, to, pdu) or deaf_to(4, 1)(source, to, pdu)
    cluster.until(lambda: bool(removed(cluster)), limit_ns=5_000 * MS)
    assert set(removed(cluster).values()) == {(4,)}


def test_an_expulsion_is_believed_though_its_station_alone_wants_it() -> None:
    cluster = opened(5)
    node = cluster.nodes[1]
    node.apply(cluster.now, node.engine.expel(cluster.now, 4))
    cluster.until(lambda: bool(removed(cluster)), limit_ns=5_000 * MS)
    assert set(removed(cluster).values()) == {(4,)}


def test_late_stations_still_go_on_without_one_that_has_died() -> None:
    cluster = opened(3)
    dead = cluster.nodes[2]
    dead.paused = True
    cluster.lost = lambda source, to, pdu: to is dead
    for _ in range(60):  # both of the others run 5 ms of every 100
        for node in cluster.nodes[:2]:
            node.paused = True
        cluster.run(95 * MS)
        for node in cluster.nodes[:2]:
            node.paused = False
            batch, node.backlog = node.backlog, []
            node.apply(cluster.now, node.engine.on_frames(cluster.now, batch))
        cluster.run(5 * MS)
    assert set(removed(cluster).values()) == {(3,)}


def test_near_misses_and_late_deadlines_are_counted() -> None:
    """A station that stalls for less than the fail time-out is asked, and heard again in time; it itself was late."""
    cluster = opened(3)
    cluster.run(1_000 * MS)
    before = [node.engine.status()["membership"] for node in cluster.nodes]
    assert [m["near_misses"] for m in before] == [0, 0, 0]
    stalled = cluster.nodes[2]
    stalled.paused = True
    cluster.run(350 * MS)
    stalled.paused = False
    batch, stalled.backlog = stalled.backlog, []
    stalled.apply(cluster.now, stalled.engine.on_frames(cluster.now, batch))
    cluster.run(500 * MS)
    after = [node.engine.status()["membership"] for node in cluster.nodes]
    assert [m["near_misses"] for m in after] == [1, 1, 0] and not removed(cluster)
    assert after[2]["late"] > before[2]["late"] and after[0]["late"] == before[0]["late"]
