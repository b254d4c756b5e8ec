"""What a turn of the data path does first, and whom it reads again. Each test states the rule it protects."""

from __future__ import annotations

from collections.abc import Callable

from zenjun.daemon.datapath import Want
from zenjun.proto.core import Status

from .rig import MESSAGE, Bench, Frame, frame, grown
from .test_clients import GROUP


def test_delivery_goes_before_a_control_pdu(bench: Bench) -> None:
    """A control PDU may end the instance: everything in order before it is delivered first, also behind a group message that
    Python must see and beyond what one pass delivers. Who was told that a message is stable may rely on every survivor."""
    a = bench.member(11)
    for k in range(5_000):
        bench.core.deliver(GROUP, b"%d" % k)
    bench.core.deliver(99, b"join!", client=3, src=2, type=1)
    bench.core.deliver(GROUP, b"last")
    bench.core.c.status = Status.CONTROL
    for _ in range(100):
        turn = bench.turn()
        assert bool(turn.want & Want.CONTROL) == bool(turn.status & Status.CONTROL)
        if turn.want & Want.GROUP:
            assert not turn.want & Want.CONTROL
            bench.dp.group_done()
        elif turn.want & Want.CONTROL:
            break
    else:
        raise AssertionError("control never comes")
    bench.core.c.status = 0
    got: list[Frame] = []
    bench.until(lambda: grown(got, a.receive()) == 5_001)
    assert got[-1].type == MESSAGE and got[-1].body.endswith(b"last")


def test_delivery_does_not_hold_a_control_pdu_for_ever(bench: Bench) -> None:
    """The opening of a cluster must not starve because somebody else is busy."""
    bench.core.c.status = Status.CONTROL
    bench.core.deliver(99, b"join!", client=3, src=2, type=1)
    for _ in range(1_000):
        if bench.turn().want & Want.CONTROL:  # the group message is never done
            return
    raise AssertionError("control never comes")


def test_a_client_that_was_paused_by_what_is_forgotten_is_read_again(make_bench: Callable[..., Bench]) -> None:
    """Back-pressure ends with its cause: when an instance ends, embargoed frames go, and no write would show it."""
    bench = make_bench(queue_bytes_max=64 * 1024)
    a = bench.member(11, level=1)
    for _ in range(50):
        bench.core.deliver(GROUP, bytes(1000))
    bench.core.positions(50, 0, 0)
    bench.core.c.room = 100
    bench.until(lambda: bench.dp.client_info(a.slot).queued_bytes > 32 * 1024)
    a.send(frame(4, b"held", handle=1))
    for _ in range(20):
        bench.turn()
    assert bench.dp.client_info(a.slot).paused and not bench.core.taken()[50:]
    bench.dp.reset()
    bench.until(lambda: [m for m in bench.core.taken() if m[2] == b"held"])
