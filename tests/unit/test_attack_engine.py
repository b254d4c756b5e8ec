"""Whole engines under what a hostile reviewer thought of. Each test states the rule it protects."""

from __future__ import annotations

from test_engine import MS, Cluster, opened
from zenjun.proto.openpdu import decode_header
from zenjun.proto.wire import Kind

__all__ = ["MS", "Cluster", "opened"]


def test_sixty_four_stations_that_start_together_open() -> None:
    """Opening ends whatever n is: one batch may bring an OPEN of every other station, and none of them may be lost to the
    queue between core and engine, the same ones each time."""
    cluster = Cluster(64, window_frames=8)
    cluster.until(lambda: all(node.engine.instance for node in cluster.nodes), step_ns=50 * MS, limit_ns=3_000 * MS)
    assert len({node.engine.instance for node in cluster.nodes}) == 1
    assert all(node.engine.core.drops().get("control_full", 0) == 0 for node in cluster.nodes)
    cluster.run(100 * MS)
    cluster.frames.clear()
    cluster.send(63, b"x")
    cluster.run(20 * MS)
    assert all([m.data for m in node.delivered] == [b"x"] for node in cluster.nodes)
    assert [h["kind"] for f in cluster.frames if (h := decode_header(f))].count(Kind.DATA) == 1
