"""The TO paper (Nakamura, Takizawa), sections 3-5, rule by rule, as far as they hold on a switched medium (no reset, order by
clock).

Each test names the section and says the rule in its own words. The papers' rules for a one-channel bus come with that medium.
"""

from __future__ import annotations

from typing import Any

import pytest
from zenjun.proto import wire
from zenjun.proto.core import Status

from ..rules import rule
from ..virtual.cores import PROMPT, Cores
from ..virtual.pdus import ack, pack
from ..virtual.segment import MS, NEVER


def cores(n: int, **options: Any) -> Cores:
    """n cores and no network: each test says which frame reaches which station."""
    return Cores(n, **{**PROMPT, **options})


def test_initial_state_every_entry_is_the_first_number() -> None:
    """Section 3: at the start every station expects every source's initial number."""
    c = cores(3, first_seq=500)
    assert c[0].matrix() == [[500] * 3] * 3


def test_acceptance_needs_the_expected_number_and_allows_equal_vectors() -> None:
    """Section 3, receive condition (1) p.SEQ is the number expected; (2) with `<=`: the very first PDU carries the vector
    that everyone
    has, which the printed `<` would refuse."""
    c = cores(3)
    first, second = c.send(0), c.send(0)
    assert ack(first) == [1, 0, 0]
    c.answer(1, first)
    assert c[1].peer(0).req == 1
    c.answer(1, first)
    assert c[1].peer(0).req == 1, "a number below the expected one is not accepted again"
    c.answer(2, second)
    assert c[2].peer(0).req == 0, "a number above it is held back"
    c.answer(2, first)
    assert c[2].peer(0).req == 2


def test_own_expectation_is_not_rolled_back_by_an_older_vector() -> None:
    """Section 3, receive action: the sender's column takes p.A, by maximum; the receiver's own expectation is kept apart."""
    c = cores(3)
    old = c.send(1)  # station 1 has accepted nothing yet
    p = c.send(0)
    c.answer(2, p)
    assert c[2].peer(0).req == 1
    (confirm,) = c.answer(1, p)
    c.answer(2, confirm)
    assert c[2].matrix()[0][1] == 1
    c.answer(2, old)
    assert c[2].peer(0).req == 1
    assert c[2].matrix()[0][1] == 1, "an older vector takes nothing back"


def test_sender_counts_from_transmission_receiver_from_its_broadcast() -> None:
    """Section 3, the convention that the counts need: own PDU confirmed by its transmission, own receipt once broadcast."""
    c = cores(2)
    p = c.send(0)
    assert c[0].matrix()[0] == [1, 0]
    assert c.give(0, 1, p) == 0
    assert c[1].peer(0).req == 1
    assert c[1].matrix()[0] == [1, 0], "accepted, not yet said"
    (confirm,) = c.step(1)
    assert c[1].matrix()[0] == [1, 1]
    assert ack(confirm) == [1, 0]


@rule("C1")
def test_pack_condition_everyone_has_it() -> None:
    """Section 3, PACK: p is pre-acknowledged when its number is below the minimum of its source's row."""
    c = cores(3)
    p = c.send(0)
    (from1,) = c.answer(1, p)
    (from2,) = c.answer(2, p)
    c[0].deliver()
    c.answer(0, from1)
    c[0].deliver()
    assert c[0].positions().preack == 0, "one of two has said so"
    c.answer(0, from2)
    assert [m.data for m in c[0].deliver()] == [b"p"]
    assert c[0].positions() == (1, 1, 0)


@rule("C2")
def test_ack_condition_everyone_has_said_that_everyone_has_it() -> None:
    """Section 3, ACK: the PDUs that first pre-acknowledge p at each station are themselves known everywhere; written with
    P vectors."""
    c = cores(3)
    p = c.send(0, need_ack=True)
    (a1,) = c.answer(1, p)
    (a2,) = c.answer(2, p)
    assert pack(a1) == [0, 0, 0]
    (p0,) = c.answer(0, a1, a2)
    (p1,) = c.answer(1, a2)
    (p2,) = c.answer(2, a1)
    for frame in (p0, p1, p2):
        assert pack(frame)[0] == 1
    c.answer(0, p1)
    c[0].deliver()
    assert c[0].positions() == (1, 1, 0), "station 2 has not said it"
    c.answer(0, p2)
    assert c[0].positions() == (1, 1, 1)
    assert not c.step(0, 10_000 * MS), "and then silence"


def test_early_ack_at_receipt_is_unsound_and_not_done() -> None:
    """Section 5's shortcut read literally counts own receipt at once; then station 2 would acknowledge p although it never said
    anything, so station 0 cannot know. Counter-example p, a1, then a PDU of station 0."""
    c = cores(3)
    p = c.send(0, need_ack=True)
    (a1,) = c.answer(1, p)
    c.give(0, 2, p)
    c.give(1, 2, a1)
    c[2].deliver()
    assert c[2].positions().preack == 0, "its own receipt has not been broadcast"


@pytest.mark.parametrize("window", [1, 3])
def test_flow_condition(window: int) -> None:
    """Section 3, flow: SEQ stays below minAL + min(W, minF / n); a sender that has to wait keeps its messages."""
    c = cores(2, window=window)
    sent: list[bytes] = []
    for k in range(window):
        sent.append(c.send(0, b"%d" % k))
    assert c[0].offer(b"waits", group=1, client=1)
    assert c.step(0) == []
    assert not Status(c[0].step(c.now, True)) & Status.ROOM
    (confirm,) = c.answer(1, *sent)
    (more,) = c.answer(0, confirm)
    assert b"waits" in more


def test_confirmations_are_exempt_from_the_flow_condition() -> None:
    """Section 5 would block confirmations with a closed window, and then nobody could open it again."""
    c = cores(2, window=1)
    a, b = c.send(0), c.send(1)
    assert c[0].offer(b"more", group=1, client=1)
    (confirm,) = c.answer(0, b)
    assert confirm[wire.HEADER.offset("kind")] == wire.Kind.CONFIRM
    c.answer(1, a)


def test_loss_condition_1_gap_in_a_stream() -> None:
    """Section 3, loss (1): a number above the expected one means that those between are missing; asked for after nak_delay."""
    c = cores(2)
    lost, later = c.send(0, b"lost"), c.send(0, b"later")
    c.answer(1, later)
    assert c[1].peer(0).gaps == 1
    c.now = c[1].nak_due_ns()
    assert c[1].nak(c.now) == 1
    (nak,) = (f for f in c[1].tx() if f[wire.HEADER.offset("kind")] == wire.Kind.NAK)
    c.now += 2 * MS
    repeated = c.answer(0, nak)
    assert repeated[0] == lost, "byte for byte"


def test_loss_condition_2_somebody_else_has_it() -> None:
    """Section 3, loss (2): another station's vector shows a PDU that did not come here; any holder may repeat it."""
    c = cores(3)
    p = c.send(0)
    (confirm,) = c.answer(1, p)
    c.answer(2, confirm)
    assert c[2].peer(0).top == 1
    assert c[2].nak_due_ns() < 2**63
    asked: set[int] = set()
    for _ in range(12):
        c.now = max(c.now + 1, c[2].nak_due_ns())
        c[2].nak(c.now)
        for frame in c[2].tx():
            if frame[wire.HEADER.offset("kind")] == wire.Kind.NAK:
                asked.add(frame[wire.HEADER.offset("target")])
    assert asked == {1, 2}, "the source first, later also the holder"


@rule("C4")
def test_timeout_nobody_has_it_is_sent_again() -> None:
    """Section 3: the sender that hears nothing concludes that nobody has the PDU and sends it again (harmless where order
    is by clock)."""
    c = cores(3)
    p = c.send(0)
    c.now = c[0].poll_due_ns()
    assert c[0].poll(c.now) == 1
    frames = c[0].tx()
    assert frames[0] == p
    assert frames[1][wire.HEADER.offset("flags")] & wire.Flag.POLL


@pytest.mark.parametrize("n", range(2, 9))
@pytest.mark.parametrize("need_ack", [False, True])
def test_evaluation_best_case(n: int, need_ack: bool) -> None:
    """Section 4: 1 + (n - 1) + n = 2n PDUs and 3 rounds until everyone knows that everyone has it; n and 2 rounds until
    everyone has it.
    n = 2 is outside the paper's domain: the confirmation of one is at once that of both levels."""
    c = cores(n)
    c.offer(0, need_ack=need_ack)
    frames = rounds = 0
    while True:
        sent = [(i, f) for i in range(n) for f in c.step(i)]
        if not sent:
            break
        rounds += 1
        frames += len(sent)
        for i, frame in sent:
            for j in range(n):
                if j != i:
                    assert c.give(i, j, frame) == 0
        for core in c.cores:
            core.step(c.now, False)
            core.deliver()
    level = 2 if need_ack else 1
    assert all(core.positions()[level] == 1 for core in c.cores)
    expected = (3, 3) if n == 2 and need_ack else (2 * n, 3) if need_ack else (n, 2)
    assert (frames, rounds) == expected
    assert all(core.poll_due_ns() == NEVER for core in c.cores)
