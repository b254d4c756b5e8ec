"""Heartbeats and silence, decided in C: engines driven as the daemon drives them, Python only when it is wanted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from zenjun.proto.core import Status
from zenjun.proto.effects import Changed, Replaced

from ..virtual.engines import CONFIG, Cluster, Node, opened
from ..virtual.segment import MS

IDLE_NS = 10_000 * MS


class InDaemon(Node):
    """What ``dp_turn`` does in C is done by the core alone; the engine is asked only where ``dp_turn`` returns to it."""

    def on_frames(self, now: int, batch: list[tuple[bytes, bytes]]) -> None:
        self.backlog += batch
        if self.paused:
            return
        waiting, self.backlog = self.backlog, []
        engine, core = self.engine, self.engine.core
        for pdu, mac in waiting:
            core.rx(now, pdu, mac)
        status = core.step(now, True)
        if core.nak_due_ns() <= now:
            core.nak(now)
        if core.beat(now):
            status |= core.step(now, True)
        due = min(engine.own_deadline_ns(), core.poll_due_ns(), core.silence_due_ns())
        if status & int(Status.CONTROL) or due <= now:
            polls[self] += 1
            self.apply(now, engine.poll(now, status))
        else:
            self.apply(now, [])

    def on_timeout(self, now: int) -> None:
        self.on_frames(now, [])


polls: Counter[Node] = Counter()


def in_daemon() -> Cluster:
    cluster = opened()
    cluster.run(1_000 * MS)
    for node in cluster.nodes:
        node.__class__ = InDaemon
    polls.clear()
    return cluster


def plain() -> Cluster:
    cluster = opened()
    cluster.run(1_000 * MS)
    return cluster


def test_an_idle_station_is_not_woken_by_heartbeats() -> None:
    """Nor by the time-out that each of them puts off: it looks about once per progress time-out."""
    cluster = in_daemon()
    cluster.frames.clear()
    cluster.run(IDLE_NS)
    assert len(cluster.frames) >= 3 * (IDLE_NS // CONFIG.heartbeat_ns) * 9 // 10
    looks = IDLE_NS // CONFIG.progress_timeout_ns
    assert all(polls[node] <= 2 * looks + 2 for node in cluster.nodes), polls.values()
    assert all(node.engine.silence.late == 0 for node in cluster.nodes)
    assert not any(node.reported(Changed) for node in cluster.nodes)


@pytest.mark.parametrize("make", [plain, in_daemon])
def test_a_station_that_falls_silent_is_removed_in_time(make: object) -> None:
    assert callable(make)
    cluster = make()
    cluster.nodes[2].paused = True
    began = max(cluster.nodes[k].engine.core.peer(2).heard_ns for k in (0, 1))
    cluster.until(lambda: all(node.reported(Changed) for node in cluster.nodes[:2]), 5_000 * MS)
    assert CONFIG.fail_timeout_ns <= cluster.now - began <= CONFIG.fail_timeout_ns + 4 * CONFIG.probe_interval_ns
    assert {change.left for node in cluster.nodes[:2] for change in node.reported(Changed)} == {(3,)}


@pytest.mark.parametrize("make", [plain, in_daemon])
def test_who_was_late_knows_it_and_who_has_paused_blames_nobody(make: object) -> None:
    assert callable(make)
    cluster = make()
    one = cluster.nodes[0]
    for pause_ns in (CONFIG.heartbeat_ns * 7 // 4, CONFIG.fail_timeout_ns * 5 // 4):
        late, pauses = one.engine.silence.late, one.engine.core.pauses
        one.paused = True
        cluster.lost = lambda source, to, pdu: to is one  # it must judge by what it has heard before
        cluster.run(pause_ns)
        cluster.lost = lambda source, to, pdu: False
        one.paused = False
        one.on_timeout(cluster.now)
        assert one.engine.silence.late > late
        assert (one.engine.core.pauses > pauses) == (pause_ns > CONFIG.fail_timeout_ns)
        cluster.run(20 * MS)
        assert 2 not in {station for change in one.reported(Changed) for station in change.left}
        cluster.run(3_000 * MS)


@pytest.mark.parametrize("after_ms", [120, 720, 1520, 1920])
def test_a_message_after_an_idle_time_makes_nobody_late(after_ms: int) -> None:
    """When to look at the others is then in the past, by what no station has missed: nobody waits longer before a removal."""
    cluster = in_daemon()
    cluster.run(after_ms * MS)
    cluster.nodes[2].paused = True
    heard = max(cluster.nodes[k].engine.core.peer(2).heard_ns for k in (0, 1))
    cluster.send(0, b"x")
    cluster.run(5 * MS)
    assert all(node.engine.silence.late == 0 for node in cluster.nodes)
    cluster.until(lambda: all(node.reported(Changed) for node in cluster.nodes[:2]), 5_000 * MS)
    assert cluster.now - heard <= CONFIG.fail_timeout_ns + 4 * CONFIG.probe_interval_ns


def test_another_configuration_beats_at_its_own_pace() -> None:
    """Its core is another one. What has passed before it took over is no pause."""
    cluster = plain()
    for node in cluster.nodes:
        changed = replace(node.config, number=1, fingerprint=1, heartbeat_ns=CONFIG.heartbeat_ns // 2)
        node.config = changed
        node.apply(cluster.now, node.engine.reconfigure(cluster.now, changed, "faster"))
    cluster.until(lambda: all(node.reported(Replaced) and node.engine.core.is_open for node in cluster.nodes))
    cluster.run(1_000 * MS)
    for node in cluster.nodes:
        node.__class__ = InDaemon
    polls.clear()
    cluster.frames.clear()
    cluster.run(IDLE_NS)
    beats = 3 * (IDLE_NS // (CONFIG.heartbeat_ns // 2))
    assert beats * 9 // 10 <= len(cluster.frames) <= beats + 3
    assert all(polls[node] <= 2 * (IDLE_NS // CONFIG.progress_timeout_ns) + 2 for node in cluster.nodes), polls.values()
    assert not any(node.engine.silence.late for node in cluster.nodes)
    one = cluster.nodes[0]
    pauses, one.paused = one.engine.core.pauses, True
    cluster.run(CONFIG.fail_timeout_ns * 5 // 4)
    one.paused = False
    one.on_timeout(cluster.now)
    assert one.engine.core.pauses == pauses + 1
