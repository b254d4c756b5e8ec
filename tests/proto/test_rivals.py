"""Rule 9: no instance beside a living one of another configuration of the cluster, and of two that open at once at most one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from zenjun.proto.core import add_checksum
from zenjun.proto.effects import Closed, Notice
from zenjun.proto.rivals import RIVALS_MAX, Rival, Rivals
from zenjun.proto.wire import CONFIRM, HEADER, Flag, Kind, cluster_id

from ..rules import rule
from ..virtual.engines import Cluster, Node
from ..virtual.segment import MS

WAIT = 5_000 * MS


def mixed(
    files: dict[int, dict[str, Any]], absent: tuple[int, ...] = (), rules: frozenset[str] = frozenset(), **common: Any
) -> Cluster:
    """A segment whose stations have different files: number -> what differs. The absent ones are started later."""
    cluster = Cluster(rules=rules, files=files, **common)
    cluster.lost = lambda source, to, pdu: source.paused or to.paused
    for node in cluster.nodes:
        node.paused = node.config.station in absent
    return cluster


def start(cluster: Cluster, station: int, **changes: Any) -> None:
    """Start, or restart with another file."""
    node = cluster.nodes[station - 1]
    node.paused = False
    node.backlog.clear()
    node.config = replace(node.config, **changes)
    node.boot(cluster.now)


def halves(cluster: Cluster) -> set[tuple[int, int]]:
    """(n, fingerprint) of each station that is in an instance."""
    return {(node.config.stations, node.config.fingerprint) for node in cluster.nodes if node.engine.instance}


def notices(node: Node, kind: str) -> list[str]:
    return [notice.message for notice in node.reported(Notice) if notice.kind == kind]


def watch(cluster: Cluster, duration_ns: int) -> list[set[tuple[int, int]]]:
    """What ``halves`` was, step by step."""
    seen = []
    for _ in range(duration_ns // (20 * MS)):
        cluster.run(20 * MS)
        seen.append(halves(cluster))
    return seen


@rule("M9")
@pytest.mark.parametrize("rules", [frozenset(), frozenset({"beside_rivals"})], ids=["", "beside_rivals"])
def test_growing_machine_by_machine_opens_no_second_instance(rules: frozenset[str]) -> None:
    """Three of three run; two new ones and then an old one are started with five: these three have a majority of five."""
    three, five = {"stations": 3}, {"stations": 5}
    cluster = mixed({1: three, 2: three, 3: three, 4: five, 5: five}, (4, 5), rules=rules)
    cluster.until(lambda: all(node.engine.instance for node in cluster.nodes[:3]))
    for station in (4, 5):
        start(cluster, station)
    cluster.run(WAIT // 5)
    start(cluster, 3, stations=5)
    two = any(len(seen) > 1 for seen in watch(cluster, WAIT))
    assert two == bool(rules)
    if not rules:
        assert halves(cluster) == {(3, 0)}
        (said, *_) = notices(cluster.nodes[4], "conflict")
        assert "opening waits: station" in said and "stations is 3 there and 5 here" in said
        assert cluster.nodes[0].mac.hex(":") in said or cluster.nodes[1].mac.hex(":") in said
        assert cluster.nodes[4].engine.status()["state"] == "opening"
        (told, *_) = notices(cluster.nodes[0], "stations")
        assert "5 there, 3 at station 1" in told


@rule("M9")
@pytest.mark.parametrize("rules", [frozenset(), frozenset({"beside_rivals"})], ids=["", "beside_rivals"])
def test_other_options_open_no_second_instance(rules: frozenset[str]) -> None:
    """Two stations that may work alone, and ``required`` changed at one of them."""
    one, two = {"required": (1,), "fingerprint": 1}, {"required": (2,), "fingerprint": 2}
    cluster = mixed({1: one, 2: one}, stations=2, quorum=1, rules=rules)
    cluster.until(lambda: all(node.engine.instance for node in cluster.nodes))
    start(cluster, 2, **two)
    assert any(len(seen) > 1 for seen in watch(cluster, WAIT)) == bool(rules)
    if not rules:
        assert halves(cluster) == {(2, 1)}
        (said, *_) = notices(cluster.nodes[1], "conflict")
        assert f"station 1 (host1, {cluster.nodes[0].mac.hex(':')}) is in an instance" in said
        assert "fingerprint 00000001 there and 00000002 here" in said


@rule("M9")
def test_once_the_others_have_stopped_it_opens() -> None:
    three, five = {"stations": 3}, {"stations": 5}
    cluster = mixed({1: three, 2: three, 3: three, 4: five, 5: five}, (4, 5))
    cluster.until(lambda: all(node.engine.instance for node in cluster.nodes[:3]))
    for station in (3, 4, 5):
        start(cluster, station, stations=5)
    cluster.run(WAIT)
    assert halves(cluster) == {(3, 0)}
    for station in (1, 2):
        cluster.nodes[station - 1].paused = True
    cluster.until(lambda: all(node.engine.instance for node in cluster.nodes[2:]), limit_ns=WAIT)
    assert cluster.nodes[4].engine.status()["opening"]["conflicts"] == []


@rule("M9")
@pytest.mark.parametrize("rules", [frozenset(), frozenset({"beside_rivals"})], ids=["", "beside_rivals"])
def test_started_at_once_the_larger_party_opens(rules: frozenset[str]) -> None:
    three, five = {"stations": 3}, {"stations": 5}
    cluster = mixed({1: three, 2: three, 3: five, 4: five, 5: five}, rules=rules)
    seen = watch(cluster, WAIT)
    if rules:
        assert len(seen[-1]) == 2
    else:
        assert max(map(len, seen)) == 1 and seen[-1] == {(5, 0)}
        assert notices(cluster.nodes[0], "conflict")


@rule("M9")
def test_started_at_once_two_equal_parties_both_wait() -> None:
    one, two = {"required": (1,), "fingerprint": 1}, {"required": (2,), "fingerprint": 2}
    cluster = mixed({1: one, 2: two}, stations=2, quorum=1)
    assert not any(watch(cluster, WAIT))
    assert notices(cluster.nodes[0], "conflict") and notices(cluster.nodes[1], "conflict")
    start(cluster, 2, **one)
    cluster.until(lambda: all(node.engine.instance for node in cluster.nodes), limit_ns=WAIT)


@rule("M9")
@pytest.mark.parametrize("typo", [{"stations": 7}, {"stations": 5}, {"fingerprint": 9}, {"quorum": 1, "required": (5,)}])
def test_one_wrong_file_does_not_stop_the_others(typo: dict[str, Any]) -> None:
    stations: dict[int, dict[str, Any]] = {k: {"stations": 5} for k in range(1, 6)}
    stations[5] = {"stations": 5, "fingerprint": 1, **typo}
    cluster = mixed(stations)
    cluster.until(lambda: all(node.engine.instance for node in cluster.nodes[:4]), limit_ns=WAIT)
    cluster.run(WAIT)
    assert halves(cluster) == {(5, 0)}


@rule("M9")
def test_two_that_opened_at_once_without_hearing_each_other_do_not_both_stay() -> None:
    three, five = {"stations": 3}, {"stations": 5}
    cluster = mixed({1: three, 2: three, 3: five, 4: five, 5: five})
    cluster.lost = lambda source, to, pdu: source.config.stations != to.config.stations
    cluster.until(lambda: len(halves(cluster)) == 2)
    cluster.lost = lambda source, to, pdu: False
    cluster.until(lambda: len(halves(cluster)) < 2, limit_ns=500 * MS)  # a heartbeat is 200
    assert any("another configuration" in closed.reason for node in cluster.nodes for closed in node.reported(Closed))
    seen = watch(cluster, 2 * WAIT)
    assert max(map(len, seen)) == 1 and seen[-1] == {(5, 0)}


def forged(stations: int, instance: int = 7) -> bytes:
    values = {
        "cluster": cluster_id("test"), "version": 1, "kind": Kind.CONFIRM, "stations": stations, "src": 2, "instance": instance,
        "incarnation": 1, "length": CONFIRM.size, "flags": Flag.PACK,
    }  # fmt: skip
    return add_checksum(HEADER.struct.pack(*(values.get(f.name, 0) for f in HEADER.fields)) + bytes(8 * stations + CONFIRM.size))


@rule("M9")
def test_an_open_instance_takes_no_notice_of_a_forged_one() -> None:
    """And an opening is delayed only for as long as the frame is repeated."""
    cluster = mixed({k: {"stations": 3} for k in (1, 2, 3)})
    cluster.until(lambda: all(node.engine.instance for node in cluster.nodes))
    cluster.run(WAIT)
    for node in cluster.nodes:
        node.apply(cluster.now, node.engine.on_frames(cluster.now, [(forged(5), bytes(6))]))
    cluster.run(WAIT)
    assert not any(node.reported(Closed) for node in cluster.nodes)
    for node in cluster.nodes:
        node.boot(cluster.now)
    for _ in range(10):
        cluster.run(200 * MS)
        for node in cluster.nodes:
            node.apply(cluster.now, node.engine.on_frames(cluster.now, [(forged(5), bytes(6))]))
        assert not halves(cluster)
    cluster.until(lambda: all(node.engine.instance for node in cluster.nodes), limit_ns=3_000 * MS)


def test_the_memory_of_others_is_bounded_and_short() -> None:
    rivals = Rivals(1000)
    for k in range(2 * RIVALS_MAX):
        rivals.note(Rival(1, 5, k, "h", k.to_bytes(6, "big"), True, k))
    assert len(rivals.recent(2 * RIVALS_MAX)) == RIVALS_MAX
    assert rivals.living(600) is not None and rivals.living(1510) is not None and rivals.living(1511) is None
    assert rivals.status(3000) == []


def test_a_pdu_without_a_fingerprint_keeps_what_is_known() -> None:
    rivals = Rivals(1000)
    rivals.note(Rival(1, 5, 77, "h", bytes(6), False, 1))
    rivals.note(Rival(1, 5, None, "", bytes(6), True, 2))
    (known,) = rivals.recent(3)
    assert (known.fingerprint, known.host, known.living) == (77, "h", True)
