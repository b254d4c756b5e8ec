"""Corosync's stand-in: a process that ends and comes back while what it has said has no place yet."""

from __future__ import annotations

from zenjun.proto.service.corosync.results import Answer, Code

from ..rules import rule
from .test_corosync import GROUP, cluster, code


@rule("Y9")
def test_an_older_leave_is_not_the_end_of_the_connection() -> None:
    """One leaves and ends, one joins as the same process and ends, one comes back: the last is let in behind the end of the
    second, or it would be taken for it."""
    c = cluster(2)
    c.program(1, 1, 7)
    cpg = c.nodes[1].cpg
    for effects in (cpg.leave(1), cpg.close(1)):
        c.do(1, effects)
    cpg.open(2)
    for effects in (cpg.join(2, GROUP, 7), cpg.close(2)):
        c.do(1, effects)
    later, c.order = c.order[1:], c.order[:1]
    c.run()  # the leave of the first one has its place
    cpg.open(3)
    assert code(c, 1, cpg.join(3, GROUP, 7)) is Code.TRY_AGAIN
    c.order = later
    c.run()
    c.do(1, cpg.join(3, GROUP, 7))
    c.run()
    assert c.heard(1, Answer)[-1] == Answer(3, Code.OK)
