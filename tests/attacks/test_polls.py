"""Attack: one recorded POLL, sent again as fast as the line carries it, on a cluster with a key.

A POLL asks for an answer at once. Where numbers that were seen count again, each copy brings one out, as many as the gap between
two answers lets: thousands of frames a second at every station. Floods on real stations: ``test_keyed_segment.py::test_floods``.
"""

from __future__ import annotations

import pytest
from zenjun.proto.core import Core
from zenjun.proto.envelope import ENVELOPE, TAG_BYTES, Drop, Envelope, Reader, Suite, What, Window
from zenjun.proto.wire import Flag

from ..virtual.cores import Cores
from ..virtual.pdus import peek
from ..virtual.segment import MS, US

SESSION = bytes(range(32))
TIMES, EVERY_NS = 10_000, 100 * US
TAG = b"t" * TAG_BYTES


class Forgetful(Window):
    """Takes what it has seen."""

    def look(self, number: int) -> Drop | None:
        return None


class TakesAgain(Reader):
    """Broken variant: S7 is missing."""

    def add(self, tx: int, session: bytes, first: int, now: int) -> None:
        super().add(tx, session, first, now)
        self.sessions[tx, session[:4]].window = Forgetful(first)


def open_toy(session: bytes, number: int, head: bytes, body: bytes, tag: bytes) -> bytes | None:
    return body if tag == TAG else None


def recorded() -> tuple[bytes, Core, int]:
    """The POLL of a station whose last PDU nobody has confirmed, the one that it asks, and the time."""
    cores = Cores(2)
    lost = cores.send(0)
    assert lost
    for _ in range(100):
        for pdu in cores.step(0, MS, timers=True):
            if peek(pdu, "flags") & Flag.POLL:
                return pdu, cores[1], cores.now
    raise AssertionError("it has not asked")


def answers(kind: type[Reader]) -> tuple[int, dict[Drop, int]]:
    """How many frames the attacked station sends, and what it has counted."""
    pdu, victim, now = recorded()
    reader = kind(2, 2, Suite.AES_256_GCM, open_toy)
    reader.add(1, SESSION, 1, now)
    frame = Envelope(peek(pdu, "cluster"), What.PDU, 1, Suite.AES_256_GCM, len(pdu), SESSION[:4], 1).packed() + pdu + TAG
    assert len(frame) == ENVELOPE.size + len(pdu) + TAG_BYTES
    sent = 0
    for _ in range(TIMES):
        now += EVERY_NS
        taken = reader.take(frame, now)
        if not isinstance(taken, Drop):
            victim.rx(now, taken, bytes([2, 0, 0, 0, 0, 1]))
        victim.step(now, True)
        sent += len(victim.tx())
    return sent, reader.drops


@pytest.mark.parametrize("kind", [Reader, TakesAgain])
def test_a_poll_is_answered_once(kind: type[Reader]) -> None:
    sent, drops = answers(kind)
    if kind is Reader:
        assert 1 <= sent <= 10 and drops[Drop.REPLAYED] == TIMES - 1, (sent, drops)
    else:
        assert sent >= TIMES // 10, "each tenth at least, for a second"
