"""Short PDUs have buffers of their own, close to each other; which one a PDU lies in follows from its size alone."""

from __future__ import annotations

import random

import pytest
from zenjun.proto.core import check

from ..virtual.cores import Cores
from .test_face import alone

SIZES = (0, 1, 700, 1300, 1400, 1420, 1440, 1460, 1480, 1500, 1520, 1540, 1600, 4000, 8000, 8900, 20_000)
LARGEST = 9000


@pytest.mark.parametrize("seed", range(20))
def test_what_is_sent_arrives_whatever_frames_take_meanwhile(seed: int) -> None:
    """PDUs that were begun as short ones and may become long, and the other way round; kept, repeated and delivered."""
    rng = random.Random(seed)
    two = Cores(2, frame_max=LARGEST, window=40)
    sent: list[list[bytes]] = [[], []]
    waiting: list[bytes | None] = [None, None]
    for turn in range(400):
        for k in (0, 1):
            for _ in range(rng.randint(0, 4)):
                if rng.random() < 0.3:
                    two[k].set_frame_max(rng.choice((1200, 1500, 1536, 1537, LARGEST)))
                data = waiting[k] or (b"%d" % turn + rng.randbytes(rng.choice(SIZES)))
                if not two[k].offer(data, group=1, client=1):
                    waiting[k] = data
                    break
                waiting[k] = None
                sent[k].append(data)
        for k in (0, 1):
            pdus = two.step(k, 300_000, timers=rng.random() < 0.5)
            assert not any(check(pdu, 1, 2) for pdu in pdus)
            two.broadcast(*pdus, lost=[1 - k] if rng.random() < 0.1 else [])
        two.deliver(0), two.deliver(1)
    for _ in range(200):
        for k in (0, 1):
            if waiting[k] is not None and two[k].offer(waiting[k] or b"", group=1, client=1):
                sent[k].append(waiting[k] or b"")
                waiting[k] = None
            two.broadcast(*two.step(k, 1_000_000, timers=True))
        two.deliver(0), two.deliver(1)
    assert waiting == [None, None] and [(m.src, m.data) for m in two.got[0]] == [(m.src, m.data) for m in two.got[1]]
    for k in (0, 1):
        assert [m.data for m in two.got[0] if m.src == k] == sent[k]
    assert len(sent[0]) > 200 and len(sent[1]) > 200


def test_a_core_of_short_pdus_has_no_other_buffers() -> None:
    short, long = alone(frame_max=1500), alone(frame_max=LARGEST)
    assert short.memory_bytes < 128 * 1536 + (long.memory_bytes - 128 * LARGEST)
    assert long.memory_bytes >= 128 * (1536 + LARGEST)
