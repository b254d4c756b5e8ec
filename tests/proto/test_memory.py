"""Rule M10: a station that has no memory for a message goes without it, before or after its instance has ended."""

from __future__ import annotations

from dataclasses import replace

from zenjun.proto.effects import Closed, Notice, Replaced

from ..rules import rule
from ..virtual.engines import CONFIG, Cluster, Node, opened
from ..virtual.segment import MS

TIMEOUT_NS = CONFIG.progress_timeout_ns


def refused(**changes: int) -> tuple[Cluster, Node]:
    """Of three stations the third has no memory for a large message of the first, which the others have delivered."""
    cluster = opened(**changes)
    sick = cluster.nodes[2]
    sick.engine.core.refuse_memory(True)
    cluster.nodes[0].engine.offer(cluster.now, 1, 1, 0, bytes(20_000))
    cluster.nodes[0].engine.on_frames(cluster.now, [])
    cluster.run(100 * MS)
    assert [len(node.delivered) for node in cluster.nodes] == [1, 1, 0] and sick.engine.core.starves
    return cluster, sick


@rule("M10")
def test_who_has_had_no_memory_for_long_goes_and_comes_back() -> None:
    """Its programs are told, as if the others had removed it; they go on, and let its new life in."""
    cluster, sick = refused()
    life = sick.engine.incarnation
    cluster.run(TIMEOUT_NS // 2)
    assert not sick.reported(Closed) and [n.kind for n in sick.reported(Notice)] in ([], ["memory"])
    cluster.run(2 * TIMEOUT_NS)
    (closed,) = sick.reported(Closed)
    assert closed.expelled and closed.station == 3 and "no memory" in closed.reason
    cluster.run(1_000 * MS)
    assert not any(node.reported(Closed) for node in cluster.nodes[:2])
    assert {node.engine.instance for node in cluster.nodes} == {cluster.nodes[0].engine.instance}
    assert sick.engine.incarnation == life + 1 and not sick.engine.core.starves
    assert sick.engine.core.assembling_bytes == 0, "what it held of the message is given back"


@rule("M10")
def test_memory_that_comes_in_time_ends_the_wait() -> None:
    cluster, sick = refused()
    cluster.run(TIMEOUT_NS // 2)
    sick.engine.core.refuse_memory(False)
    cluster.run(3 * TIMEOUT_NS)
    assert len(sick.delivered) == 1 and not sick.reported(Closed)


@rule("M10")
def test_two_messages_have_waited_each_for_itself() -> None:
    """The second one waits when the first has had its memory: each time is a new one."""
    cluster, sick = refused()
    for size in (40_000, 60_000, 80_000):
        cluster.run(TIMEOUT_NS // 2)
        sick.engine.core.refuse_memory(False)
        cluster.run(250 * MS)
        sick.engine.core.refuse_memory(True)
        while not cluster.nodes[0].engine.offer(cluster.now, 1, 1, 0, bytes(size)):
            cluster.nodes[0].engine.on_frames(cluster.now, [])
            cluster.run(1 * MS)
        cluster.nodes[0].engine.on_frames(cluster.now, [])
        cluster.run(50 * MS)
        assert sick.engine.core.starves
    assert not sick.reported(Closed) and len(sick.delivered) == 3


@rule("M10")
def test_who_cannot_deliver_the_rest_that_is_agreed_on_brings_it_all_the_same() -> None:
    """The instance ends by want of quorum before the message is delivered at 3. What was agreed on counts for the next opening,
    though 3 goes without it: others may have delivered it and have gone since."""
    cluster, sick = refused(give_up_timeout_ns=500 * MS)
    first = cluster.nodes[0]
    cluster.nodes[1].paused = True
    cluster.lost = lambda source, to, pdu: True
    cluster.run(1_100 * MS)  # both give up
    assert first.engine.instance == sick.engine.instance == 0
    count = first.engine.opening.past.reached
    assert sick.engine.opening.past.reached < count
    cluster.lost = lambda source, to, pdu: False
    cluster.run(850 * MS)
    assert first.engine.opening.instance and sick.engine.core.flushing
    cluster.lost = lambda source, to, pdu: True
    cluster.run(2 * TIMEOUT_NS)
    assert [c.expelled for c in sick.reported(Closed)][-1]
    assert sick.engine.instance == 0 and sick.engine.opening.past.reached == count


@rule("M10")
def test_the_rest_of_the_former_configuration_is_not_waited_for_without_end() -> None:
    """The instance ends by a change of the configuration. The rest waits for memory in the core of the former one."""
    cluster, sick = refused()
    for node in cluster.nodes:
        node.config = replace(node.config, number=1, fingerprint=1)
        node.apply(cluster.now, node.engine.reconfigure(cluster.now, node.config, "other options"))
    cluster.run(2 * TIMEOUT_NS)
    (closed,) = (c for c in sick.reported(Closed) if "no memory" in c.reason)
    assert closed.expelled and closed.station == 3
    cluster.run(1_000 * MS)
    assert len({node.engine.instance for node in cluster.nodes}) == 1 and sick.engine.instance
    assert sick.reported(Replaced) and not sick.engine.core.starves
