"""Attack: one old CONFIRM that says "this instance has quorum", repeated for ever while all stations start.

Whoever hears a living instance asks it to be let in, and opens none. A recorded CONFIRM asks nobody, lets nobody in, and kept a
cluster from ever opening.
"""

from __future__ import annotations

import pytest
from zenjun.proto import asking
from zenjun.proto.asking import UNANSWERED_WINDOWS

from ..proto.test_membership_numbers import confirm_pdu, give_all, together
from ..virtual.engines import Cluster, opened
from ..virtual.segment import MS


def repeat(cluster: Cluster, instance: int) -> None:
    """Of stations 1 and 2, so that everybody hears one of another."""
    for src in (1, 2):
        give_all(cluster, src, confirm_pdu(3, src, 1, instance, 9))


@pytest.mark.parametrize("every_ms", [20, 400])
def test_old_confirms_do_not_keep_a_cluster_from_opening(every_ms: int) -> None:
    cluster = Cluster(3)
    windows = UNANSWERED_WINDOWS + 8
    for _ in range(windows * cluster.nodes[0].config.open_window_ns // (every_ms * MS)):
        if together(cluster, 1, 2, 3):
            break
        repeat(cluster, 5)
        cluster.run(every_ms * MS)
    assert together(cluster, 1, 2, 3), f"not open after {windows} windows"
    for _ in range(20):
        repeat(cluster, 5)
        cluster.run(every_ms * MS)
    assert together(cluster, 1, 2, 3), "and it goes on"


def test_without_the_rule_nobody_ever_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken variant ``asks_for_ever``: who hears an instance asks it, however long nobody answers."""
    monkeypatch.setattr(asking, "UNANSWERED_WINDOWS", 1 << 30)
    cluster = Cluster(3)
    for _ in range(UNANSWERED_WINDOWS + 8):
        repeat(cluster, 5)
        cluster.run(cluster.nodes[0].config.open_window_ns)
        assert not any(node.engine.instance for node in cluster.nodes)


def test_who_asks_a_living_instance_in_vain_opens_none_beside_it() -> None:
    """Its RCVs are lost for far longer than it waits for an answer: it proposes, and alone has no quorum. When it is heard, it is
    let in."""
    cluster = opened()
    cluster.nodes[2].paused = True
    cluster.until(lambda: together(cluster, 1, 2))
    before = cluster.nodes[0].engine.instance
    three = cluster.nodes[2]
    three.paused = False
    three.backlog.clear()
    cluster.lost = lambda source, to, pdu: source is three
    three.boot(cluster.now)
    cluster.run(3 * UNANSWERED_WINDOWS * three.config.open_window_ns)
    assert not three.engine.instance
    assert cluster.nodes[0].engine.instance == before
    cluster.lost = lambda source, to, pdu: False
    cluster.until(lambda: together(cluster, 1, 2, 3), limit_ns=10_000 * MS)
