"""The TO paper (Nakamura, Takizawa, "Design and implementation of a total ordering broadcast protocol on Ethernet"), on the
medium it was written for: one test for each definition, condition and action, which names its section and says the rule in its
own words. Where zenjun does something else the test says so; docs/deviations.md has the counter-example.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from zenjun.proto import wire
from zenjun.proto.core import Fault, Medium, Phase
from zenjun.proto.reset import Reset, State
from zenjun.proto.wire import Kind

from ..rules import rule
from ..virtual.cores import PROMPT, Cores
from ..virtual.pdus import ack, kind, pack, peek
from ..virtual.segment import MS, NEVER

SEQ0 = 100
"""ISS of every station."""
OPTIONS = PROMPT | {"first_seq": SEQ0, "own_timeout_ns": 20 * MS}


class Bus(Cores):
    """n cores on a one-channel medium: what is broadcast reaches all in this order, its source included."""

    def __init__(self, n: int, **options: Any) -> None:
        super().__init__(n, echo=True, medium=int(Medium.BUS), **{**OPTIONS, **options})
        self.resets = [Reset(core, index=i, repeat_ns=2 * MS, repeat_max_ns=8 * MS) for i, core in enumerate(self.cores)]
        for reset in self.resets:
            reset.begin(range(n))

    def settle(self, i: int) -> None:
        """The reset at station i takes what has come."""
        reset, core = self.resets[i], self.cores[i]
        reset.observe()
        for control in core.control():
            if kind(control.pdu) in wire.RESETS:
                at = wire.HEADER.size + 4 * self.n
                epoch, _ = wire.RESET.struct.unpack_from(control.pdu, at)
                src = control.pdu[wire.HEADER.offset("src")] - 1
                reset.on_pdu(self.now, kind(control.pdu), src, epoch, tuple(ack(control.pdu)))
        reset.settle(self.now)

    def finish(self, rounds: int = 60) -> int:
        """Without further loss until nothing is sent any more; returns how many frames were."""
        count = 0
        for _ in range(rounds):
            sent = []
            for i in range(self.n):
                self.settle(i)
                sent += self.step(i)
                self.got[i] += self.cores[i].deliver()
            if not sent and all(core.poll_due_ns() == NEVER for core in self.cores):
                return count
            if not sent:
                self.now = min(core.poll_due_ns() for core in self.cores)
                for core in self.cores:
                    core.poll(self.now)
            self.broadcast(*sent)
            count += len(sent)
        raise AssertionError("no end")

    def receipts(self, i: int) -> dict[str, list[tuple[int, int]]]:
        """The receipt log by its parts: (source, number)."""
        self.cores[i].positions()
        _, acked, preack, accepted = self.cores[i].receipts()
        log = [self.cores[i].entry(k) for k in range(accepted)]
        entries = [(e[0], e[1] - SEQ0) for e in log if e is not None]
        return {"APL": entries[:acked], "PPL": entries[acked:preack], "RPL": entries[preack:]}


def rel(values: Iterable[int]) -> list[int]:
    return [v - SEQ0 for v in values]


# ---- section 2: reliability


def test_definition_correct_receipt_has_three_levels() -> None:
    """Section 2: received; knows that all have received it (pre-acknowledged); knows that all know that (acknowledged). zenjun
    delivers at the third only."""
    b = Bus(3)
    b.broadcast(b.send(0))
    assert b.receipts(1) == {"APL": [], "PPL": [], "RPL": [(0, 0)]}
    b.broadcast(*b.step(1), *b.step(2))
    b.step(1)
    assert b.receipts(0) == {"APL": [], "PPL": [(0, 0)], "RPL": []}
    assert b[0].deliver() == [], "everybody has it, but not everybody knows that"
    b.finish()
    assert b.receipts(0) == {"APL": [(0, 0)], "PPL": [], "RPL": []}
    assert [m.data for m in b.got[0]] == [b"p"]


def test_definition_total_order_service() -> None:
    """Section 2: whoever receives two PDUs receives them in the same order."""
    b = Bus(4)
    frames = [b.send(i, bytes((i, k))) for k in range(3) for i in (2, 0, 3, 1)]
    b.broadcast(*frames)
    b.finish()
    orders = [[m.data for m in got] for got in b.got]
    assert orders == [[bytes((i, k)) for k in range(3) for i in (2, 0, 3, 1)]] * 4


def test_definition_cluster_of_more_than_two() -> None:
    """Section 2: a cluster joins n > 2 entities. zenjun also takes two, and one; of two, the source's confirmation is one of
    n - 1."""
    for n in (1, 2, 3):
        b = Bus(n)
        b.broadcast(b.send(0))
        b.finish()
        assert [len(got) for got in b.got] == [1] * n


def test_definition_one_channel_service_may_lose_but_not_reorder() -> None:
    """Section 2: PDUs may be lost; those that are received come in one order. What breaks this is told by the digest."""
    b = Bus(3, faults=int(Fault.EARLY_PREACK | Fault.EARLY_ACK))  # so that both orders are handed out
    p, q = b.send(0, b"p"), b.send(1, b"q")
    for i, frames in enumerate(((p, q), (p, q), (q, p))):
        for frame in frames:
            b[i].rx(b.now, frame, bytes(6))
        b.step(i)
        b[i].deliver()
    b[2].heartbeat(b.now)
    (beat,) = b[2].tx()
    b[0].rx(b.now, beat, bytes(6))
    fence = b[0].fence()
    assert fence is not None
    assert (fence.station, fence.position) == (2, 2)


# ---- section 3: logs


def test_own_pdus_are_received_from_the_medium() -> None:
    """Section 3: E_k receives what E_k has sent. It is accepted then, in its place, and not when it is sent."""
    b = Bus(3)
    own = b.send(0, b"own")
    assert b.receipts(0)["RPL"] == []
    b.broadcast(b.send(1, b"other"), own)
    assert b.receipts(0)["RPL"] == [(1, 0), (0, 0)], "in the medium's order, not the sender's"


def test_what_comes_back_must_be_what_was_sent() -> None:
    """Likewise: a frame with the own number that this station has not sent is not its PDU."""
    a, b = Bus(3), Bus(3)
    a.send(0, b"mine")
    other = b.send(0, b"else")
    assert a[0].rx(a.now, other, bytes(6)) != 0
    assert a.receipts(0)["RPL"] == []


def test_definition_sending_log_is_a_sequence() -> None:
    """Section 3, SL_k: what E_k sends is numbered in turn, and kept until everybody has it."""
    b = Bus(3)
    frames = [b.send(1, bytes((k,))) for k in range(4)]
    assert rel(peek(f, "seq") for f in frames) == [0, 1, 2, 3]
    assert b[1].peer(1).base == SEQ0


def test_definition_receipt_log_is_correct_when_no_source_has_a_gap() -> None:
    """Section 3: RL_k is correct if PDUs that follow each other at their source do so in it. It never has a gap here: what comes
    after a lost PDU is not accepted."""
    b = Bus(3)
    first, second, third = (b.send(0, bytes((k,))) for k in range(3))
    b.broadcast(first)
    b.broadcast(second, lost=[2])
    b.broadcast(third)
    assert b.receipts(1)["RPL"] == [(0, 0), (0, 1), (0, 2)]
    assert b.receipts(2)["RPL"] == [(0, 0)]


def test_definition_failure_point() -> None:
    """Section 3, FP: up to there all receipt logs are equal and correct, and right behind it one is not. Everybody comes
    back to a common log that ends there or later, without a gap."""
    b = Bus(3)
    frames = [b.send(0, bytes((k,))) for k in range(3)]
    b.broadcast(frames[0])
    b.broadcast(frames[1], lost=[2])
    b.broadcast(frames[2])
    b.settle(2)
    assert b[2].phase() == (Phase.RESET, 1)
    b.finish()
    assert [[m.data for m in got] for got in b.got] == [[b"\0", b"\1", b"\2"]] * 3


def test_definition_partial_logs() -> None:
    """Section 3: APL, PPL and RPL are parts of one log, in this order."""
    b = Bus(3)
    b.broadcast(b.send(0, b"a"))
    b.finish()
    b.broadcast(b.send(1, b"b"))
    (confirm,) = b.step(0)
    b.broadcast(confirm, *b.step(2))
    b.step(0)
    b.broadcast(b.send(2, b"c"))
    parts = b.receipts(0)
    assert parts == {"APL": [(0, 0)], "PPL": [(1, 0)], "RPL": [(2, 0)]}


# ---- section 3: variables


def test_fields_of_a_pdu() -> None:
    """Section 3: A_j, the number expected next from each; SEQ; SRC; BUF, free buffers (here times n, of those for one source)."""
    b = Bus(3)
    b.broadcast(b.send(1), b.send(2))
    p = b.send(0)
    assert (rel(ack(p)), peek(p, "seq") - SEQ0, peek(p, "src")) == ([0, 1, 1], 0, 1)
    assert peek(p, "free_buffers") == 3 * (OPTIONS["slots"] - 1)


def test_own_entry_of_a_is_what_has_come_back() -> None:
    """Section 3, p.A_j = AL_jj: also for itself. With several own PDUs under way it is behind SEQ; a receiver whose
    expectation is not smaller can accept."""
    b = Bus(3)
    first, second = b.send(0), b.send(0)
    assert rel(ack(second)) == [0, 0, 0]
    b.broadcast(first, second)
    assert b[1].peer(0).req == SEQ0 + 2


def test_initial_values() -> None:
    """Section 3: SEQ_k = ISS_k, all AL of h are ISS_h, F_j = IBF_j. They are known from opening (in zenjun the OPEN
    agreement)."""
    b = Bus(4)
    assert b[0].matrix() == [[SEQ0] * 4] * 4
    assert [b[0].peer(j).req for j in range(4)] == [SEQ0] * 4
    assert peek(b.send(0), "seq") == SEQ0


def test_matrix_is_apart_from_the_expectation() -> None:
    """Section 3 keeps AL_jj for both. Deviation: an own PDU that comes back would set the expectation back to its value at
    sending."""
    b = Bus(3)
    old = b.send(0)
    b.broadcast(b.send(2))
    assert b[0].peer(2).req == SEQ0 + 1
    b.broadcast(old)
    assert b[0].peer(2).req == SEQ0 + 1, "old.A_3 is less"


def test_min_al_is_what_all_have() -> None:
    """Section 3, minAL_h: everybody has received what has a smaller number. Its source counts from its transmission."""
    b = Bus(3)
    b.broadcast(b.send(0))
    b.broadcast(*b.step(1))
    b.step(2)
    assert b[2].peer(0).min_al == SEQ0 + 1
    assert b[0].peer(0).min_al == SEQ0, "station 3's confirmation has not been carried"


# ---- section 3: receiving, sending, flow


def test_acceptance_condition_1() -> None:
    """Section 3: p.SEQ is the number expected from its source."""
    b = Bus(3)
    p = b.send(0)
    b.broadcast(p)
    b.broadcast(p)
    assert b.receipts(1)["RPL"] == [(0, 0)], "a second time it is not"


def test_acceptance_condition_2_is_less_or_equal() -> None:
    """Section 3 prints p.A_h < AL_hh. Deviation: <=, or the very first PDU, whose A is what everybody expects, is accepted by
    nobody."""
    b = Bus(3)
    b.broadcast(b.send(0))
    assert b[1].peer(0).req == SEQ0 + 1
    printed = Bus(3, faults=int(Fault.STRICT_ACCEPT))
    printed.broadcast(printed.send(0))
    assert [printed[i].peer(0).req for i in range(3)] == [SEQ0] * 3


def test_acceptance_condition_2_keeps_out_what_follows_something_lost() -> None:
    """Section 3: p whose source has received what this station has not would stand before that in the log."""
    b = Bus(3)
    b.broadcast(b.send(0, b"first"), lost=[2])
    b.broadcast(b.send(1, b"answer"))
    assert b.receipts(1)["RPL"] == [(0, 0), (1, 0)]
    assert b.receipts(2)["RPL"] == []


def test_acceptance_action() -> None:
    """Section 3: the expectation grows by one, the source's column of AL takes p.A (by maximum), F_j takes p.BUF, p goes to the
    end of RPL."""
    b = Bus(3)
    b.broadcast(b.send(1))
    p = b.send(0)
    b.broadcast(p)
    assert b[2].peer(0).req == SEQ0 + 1
    assert b[2].matrix()[1][0] == SEQ0 + 1
    assert b[2].peer(0).free_buffers == peek(p, "free_buffers")
    assert b.receipts(2)["RPL"][-1] == (0, 0)


@pytest.mark.parametrize("window", [1, 4])
def test_flow_condition(window: int) -> None:
    """Section 3: SEQ stays within minAL_k + min(W, minF / n²); who may not send waits. Deviation: minF / n, as n² would let
    nobody send when buffers are few."""
    b = Bus(3, window=window)
    for k in range(window):
        b.broadcast(b.send(0, bytes((k,))))
    b.offer(0, b"waits")
    assert all(kind(f) != Kind.DATA for f in b.step(0))
    assert b[0].peer(0).top == SEQ0 + window
    b.finish()
    assert b.got[1][-1].data == b"waits"


def test_flow_condition_2_no_receiver_overflows() -> None:
    """Section 3: each entity can receive the PDU. With all windows open no buffer is short."""
    b = Bus(4, window=8, slots=16)
    for round_ in range(6):
        for i in range(4):
            b.offer(i, bytes((i, round_)) * 600)
        b.finish()
    assert all("window" not in core.drops() for core in b.cores)


def test_confirmations_obey_no_window() -> None:
    """Section 5 makes confirmations PDUs like others. Deviation: they take no number and no buffer, so a window that is closed
    cannot keep everybody from opening it."""
    b = Bus(3, window=1)
    b.broadcast(b.send(0), b.send(1), b.send(2))
    for i in range(3):
        b.offer(i, b"more")
    assert [kind(f) for f in b.step(0)] == [Kind.CONFIRM]
    b.finish()
    assert [len(got) for got in b.got] == [6] * 3


def test_sending_action() -> None:
    """Section 3: BUF and A are as they are now, SEQ is the next number, which then grows; p is broadcast."""
    b = Bus(3)
    b.broadcast(b.send(1))
    p = b.send(0)
    assert rel(ack(p)) == [0, 1, 0]
    assert peek(b.send(0), "seq") == peek(p, "seq") + 1


# ---- section 3: pre-acknowledgement and acknowledgement


def test_pack_condition() -> None:
    """Section 3: p is pre-acknowledged when p.SEQ < minAL of its source."""
    b = Bus(3)
    b.broadcast(b.send(0))
    b.broadcast(*b.step(1))
    assert b.receipts(0)["PPL"] == []
    b.broadcast(*b.step(2))
    assert b.receipts(0)["PPL"] == [(0, 0)]


def test_pack_action_takes_the_head_first() -> None:
    """Section 3: RPL's PDUs from its head to p go to the end of PPL. Deviation: none passes by one before it that is not yet
    pre-acknowledged, as section 5 has it."""
    b = Bus(3)
    b.broadcast(b.send(0, b"p"))
    c1, c2 = b.step(1), b.step(2)
    b.broadcast(b.send(1, b"q"))
    d0, d2 = b.step(0), b.step(2)
    b.broadcast(*d0, *d2)  # all have confirmed q; of p too, in the same breath
    b.broadcast(*b.step(1))
    assert b.receipts(2)["RPL"] == []
    assert (b.receipts(2)["APL"] + b.receipts(2)["PPL"]) == [(0, 0), (1, 0)]
    assert c1
    assert c2


def test_definition_first_and_last_preacknowledging_pdu() -> None:
    """Section 3: at each E_h some PDU is the first by which E_h has pre-acknowledged p; the last of these that comes pre-
    acknowledges p last. In zenjun it is the PDU whose P is the first to be beyond p.SEQ."""
    b = Bus(3)
    b.broadcast(b.send(0))
    first = [*b.step(1), *b.step(2)]
    b.broadcast(*first)
    assert [rel(pack(f))[0] for f in first] == [0, 0]
    for i in (0, 1, 2):
        (said,) = b.step(i)
        assert rel(pack(said))[0] == 1
        assert b.receipts(0)["APL"] == []
        b.broadcast(said)
    assert b.receipts(0)["APL"] == [(0, 0)]


def test_ack_condition_is_the_third_level_written_directly() -> None:
    """Section 3: p is acknowledged when the PDU that pre-acknowledges it last is pre-acknowledged itself. Deviation: when
    everybody has said, by P, that it has pre-acknowledged p; confirmations take no number, so they could not be pre-
    acknowledged."""
    b = Bus(4)
    b.broadcast(b.send(3))
    b.broadcast(*(f for i in range(3) for f in b.step(i)))
    said = [f for i in range(4) for f in b.step(i)]
    for k, frame in enumerate(said):
        assert b.receipts(0)["APL"] == [], f"{k} of 4 have said so"
        b.broadcast(frame)
    assert b.receipts(0)["APL"] == [(3, 0)]


def test_own_receipt_counts_when_it_has_been_broadcast() -> None:
    """Section 5's shortcut, read literally, counts own receipt at once: station 3 would acknowledge p although it has never said
    anything, so that nobody can know."""
    b = Bus(3)
    b.broadcast(b.send(0))
    (c1,) = b.step(1)
    b[2].rx(b.now, c1, bytes(6))
    assert b.receipts(2)["PPL"] == []
    b.step(2)
    assert b.receipts(2)["PPL"] == [(0, 0)]


def test_ack_action_hands_out_in_log_order() -> None:
    """Section 3: PPL's PDUs from its head to p go to the end of APL; that is what programs get, all levels at once."""
    b = Bus(3)
    b.broadcast(b.send(1, b"a"), b.send(0, b"b"), b.send(1, b"c"))
    b.finish()
    assert [m.data for m in b.got[2]] == [b"a", b"b", b"c"]
    assert [m.clock for m in b.got[2]] == [(1 << 32) + k for k in (1, 2, 3)]
    assert set(b[2].positions()) == {3}


def test_delivery_at_preack_is_unsafe() -> None:
    """Deviation from a shortcut that levels suggest: p is everywhere but at its source, to which it did not come back; it is
    pre-acknowledged at station 3, and the reset takes it out of the log again."""
    b = Bus(3)
    b.broadcast(b.send(0), lost=[0])
    b.broadcast(*b.step(1), lost=[0])
    b.step(2)
    assert b.receipts(2)["PPL"] == [(0, 0)]
    b.broadcast(b.send(1, b"q"), lost=[])  # its A shows station 1 what it lacks
    for i in range(3):
        b.settle(i)
    assert b[0].phase()[0] == Phase.RESET
    b.broadcast(*b.step(0))
    b.settle(2)
    assert b.receipts(2)["PPL"] == [], "it was no use to hand it out"
    b.finish()
    assert [m.data for m in b.got[0]] == [m.data for m in b.got[2]]


# ---- section 3: loss and reset


def test_loss_condition_1() -> None:
    """Section 3: p.SEQ beyond the number expected: those between are lost."""
    b = Bus(3)
    b.broadcast(b.send(0), lost=[1])
    b.broadcast(b.send(0))
    assert b[1].phase()[0] == Phase.LOST
    assert b[2].phase()[0] == Phase.RUN


def test_loss_condition_2() -> None:
    """Section 3: q.A_j beyond the number expected from j: q's source has received what this station has lost."""
    b = Bus(3)
    b.broadcast(b.send(0), lost=[1])
    b.broadcast(*b.step(2))
    assert b[1].phase()[0] == Phase.LOST


def test_loss_condition_2_is_also_about_own_pdus() -> None:
    """Section 3, j = k: another station confirms an own PDU that has not come back here."""
    b = Bus(3)
    b.broadcast(b.send(0), lost=[0])
    b.broadcast(*b.step(2))
    assert b[0].phase()[0] == Phase.LOST


def test_loss_by_the_next_number_of_a_confirmation() -> None:
    """Addition: a confirmation says its source's next number, so that the loss of the last PDU is found as well."""
    b = Bus(3)
    b.broadcast(b.send(0), lost=[1, 2])
    b.now = b[0].poll_due_ns()
    assert b[0].poll(b.now) == 1
    b.broadcast(*b[0].tx())
    assert b[1].phase()[0] == Phase.LOST


def start_reset(b: Bus) -> None:
    """Station 2 has lost the second of three PDUs of station 1, and says so."""
    frames = [b.send(0, bytes((k,))) for k in range(3)]
    b.broadcast(frames[0])
    b.broadcast(frames[1], lost=[1])
    b.broadcast(frames[2])
    b.settle(1)


def reset_to_the_end(b: Bus) -> None:
    """RST, RST of the others, RSTC: three rounds."""
    for _ in range(3):
        b.broadcast(*(f for i in range(3) for f in b.step(i)))
        for i in range(3):
            b.settle(i)


@rule("R1")
def test_reset_procedure_1_stop_and_tell() -> None:
    """Section 3: E_k stops receiving and broadcasts RST with what it expects of each. Addition: with the next epoch, so that old
    and concurrent resets are told apart. Deviation: SEQ_k is set when the reset ends, to the common number."""
    b = Bus(3)
    start_reset(b)
    (rst,) = b.step(1)
    assert (kind(rst), rel(ack(rst)), peek(rst, "clock")) == (Kind.RST, [1, 0, 0], 1 << 32 | 1)
    b.broadcast(b.send(2))
    assert b.receipts(1)["RPL"] == [(0, 0)], "nothing is accepted"


@rule("R2", "R3")
def test_reset_procedure_2_remove_and_answer() -> None:
    """Section 3: who receives RST takes out of its log what the other lacks, stops as well, and says what it expects then.
    Deviation: the lost PDU itself goes too, and what its source sent after it; PDUs of others stay."""
    b = Bus(3)
    b.broadcast(b.send(2, b"stays"))
    start_reset(b)
    b.broadcast(*b.step(1))
    b.settle(0)
    assert b.receipts(0)["APL"] + b.receipts(0)["PPL"] + b.receipts(0)["RPL"] == [(2, 0), (0, 0)]
    (answer,) = b.step(0)
    assert (kind(answer), rel(ack(answer))) == (Kind.RST, [1, 0, 1])
    assert b[0].phase() == (Phase.RESET, 1)


@rule("R3")
def test_reset_procedure_2_again_until_all_are_equal() -> None:
    """Deviation: RST is sent again whenever the own vector has shrunk. With crossed losses neither vector is the smaller
    one, and the printed step 3 would wait for ever."""
    b = Bus(3)
    p, q = b.send(0, b"p"), b.send(1, b"q")
    b.broadcast(p, lost=[1])
    b.broadcast(q, lost=[0])
    b.broadcast(*(f for f in b.step(2)))  # its A shows both what they have lost
    for i in (0, 1):
        b.settle(i)
    rsts = [f for i in (0, 1) for f in b.step(i) if kind(f) == Kind.RST]
    assert [rel(ack(f)) for f in rsts] == [[1, 0, 0], [0, 1, 0]]
    b.broadcast(*rsts)
    b.finish()
    assert [[m.data for m in got] for got in b.got] == [[b"p", b"q"]] * 3


@rule("R4", "R5")
def test_reset_procedure_3_common_vector_acknowledges_the_log() -> None:
    """Section 3: with RST_ACK from all and equal vectors, PPL and RPL go to APL. Deviation: only when everybody has seen that
    (RSTC), as one who stops before has the others acknowledge what it has not."""
    b = Bus(3)
    start_reset(b)
    for _ in range(2):
        b.broadcast(*(f for i in range(3) for f in b.step(i)))
        for i in range(3):
            b.settle(i)
    assert [reset.state for reset in b.resets] == [State.AGREED] * 3
    assert b.receipts(1)["APL"] == [], "equal, but not everybody is known to have seen it"
    b.broadcast(*(f for i in range(3) for f in b.step(i)))
    for i in range(3):
        b.settle(i)
    assert [b.receipts(i)["APL"] for i in range(3)] == [[(0, 0)]] * 3


@rule("R5")
def test_reset_procedure_3_an_ordinary_pdu_of_the_epoch_will_do() -> None:
    """Addition: whoever has lost a RSTC learns by the first other PDU of the epoch that everybody has seen it."""
    b = Bus(3)
    start_reset(b)
    for _ in range(2):
        b.broadcast(*(f for i in range(3) for f in b.step(i)))
        for i in range(3):
            b.settle(i)
    rstcs = [f for i in range(3) for f in b.step(i)]
    b.broadcast(*rstcs, lost=[2])
    for i in range(3):
        b.settle(i)
    assert b[2].phase()[0] == Phase.AGREED
    data = [f for f in b.step(0) if kind(f) == Kind.DATA]
    b.broadcast(*data)
    assert b[2].phase()[0] == Phase.RUN
    assert b.receipts(2)["APL"] == [(0, 0)]
    assert (0, 1) in b.receipts(2)["RPL"], "and takes it"


def test_al_reset_is_one_beyond_the_last() -> None:
    """Section 3, AL reset, prints AL = last.SEQ. Deviation: what is expected is the number after it (or the common one, if
    the log has nothing of that source): else it is sent, and accepted, a second time."""
    b = Bus(3)
    start_reset(b)
    b.finish()
    assert [m.data for m in b.got[2]] == [b"\0", b"\1", b"\2"]
    printed = Bus(3, faults=int(Fault.AL_LAST))
    start_reset(printed)
    reset_to_the_end(printed)
    assert printed.receipts(2)["APL"] == [(0, 0)]
    assert rel(printed[2].vector()) == [0, 0, 0], "it expects what it has"


@rule("R5")
def test_after_a_reset_own_pdus_come_again_with_new_vectors() -> None:
    """Section 3 only says that SEQ is set back. What was sent and is not in the common log is sent again, under its number, but
    with A as it is now and in the new epoch."""
    b = Bus(3)
    start_reset(b)
    reset_to_the_end(b)
    again = [f for f in b.step(0) if kind(f) == Kind.DATA]
    assert [(peek(f, "seq") - SEQ0, rel(ack(f)), peek(f, "clock") & 0xFFFF) for f in again] == [
        (1, [1, 0, 0], 1),
        (2, [1, 0, 0], 1),
    ]


def test_old_epochs_are_not_heard_any_more() -> None:
    """Addition: a PDU of before the reset that comes after it changes nothing."""
    b = Bus(3)
    b.offer(2, b"late")
    (late,) = (f for f in b.step(2) if kind(f) == Kind.DATA)
    start_reset(b)
    b.finish()
    before = b[1].peer(2).req
    b.broadcast(late)
    assert b[1].peer(2).req == before
    assert b[1].drops()["epoch"] >= 1


@rule("R1")
def test_timeout_starts_a_reset() -> None:
    """Section 3: a sender whose PDU does not come back concludes that nobody has it, and sends it again. Deviation: somebody may
    have it; it starts a reset, after which it is sent again."""
    b = Bus(3)
    b.broadcast(b.send(0), lost=[0, 2])
    b.step(0)
    b.now += OPTIONS["own_timeout_ns"]
    b[0].poll(b.now)
    assert b[0].phase()[0] == Phase.LOST
    b.broadcast(b.send(2, b"g"), lost=[])
    b.finish()
    assert [m.data for m in b.got[0]] == [m.data for m in b.got[1]] == [m.data for m in b.got[2]]
    assert sorted(m.data for m in b.got[0]) == [b"g", b"p"]


def test_timeout_blind_repetition_breaks_the_order() -> None:
    """The printed rule: p reached station 2 alone, then g everybody, then p again. No gap, equal vectors, different logs."""
    b = Bus(3, faults=int(Fault.BLIND_REPEAT))
    b.broadcast(b.send(0, b"p"), lost=[0, 2])
    b.broadcast(b.send(2, b"g"))
    b[0].step(b.now, True)
    b[0].tx()
    b.now += OPTIONS["own_timeout_ns"]
    b[0].poll(b.now)
    b.broadcast(*(f for f in b[0].tx() if kind(f) == Kind.DATA))
    logs = [b.receipts(i)["RPL"] for i in range(3)]
    assert logs == [[(2, 0), (0, 0)], [(0, 0), (2, 0)], [(2, 0), (0, 0)]]
    assert [core.vector() for core in b.cores] == [(SEQ0 + 1, SEQ0, SEQ0 + 1)] * 3


# ---- section 4: evaluation


def exchange(b: Bus) -> tuple[int, int]:
    """(PDUs, rounds) until nothing is sent any more; all PDUs of a round are carried before anybody answers."""
    frames = rounds = 0
    while True:
        sent = [f for i in range(b.n) for f in b.step(i)]
        if not sent:
            return frames, rounds
        rounds += 1
        frames += len(sent)
        b.broadcast(*sent)
        for core in b.cores:
            core.deliver()


@pytest.mark.parametrize("n", range(2, 9))
def test_evaluation_best_case(n: int) -> None:
    """Section 4: 1 + (n - 1) + n = 2n PDUs and 3 rounds, and then silence. n = 2 is outside the paper's domain (2n - 1)."""
    b = Bus(n)
    b.offer(0)
    assert exchange(b) == ((3, 3) if n == 2 else (2 * n, 3))
    assert all(set(core.positions()) == {1} for core in b.cores)


@pytest.mark.parametrize("n", range(2, 9))
def test_evaluation_one_at_a_time(n: int) -> None:
    """Section 4, no parallel broadcasts: as many rounds as PDUs. The last of the first confirmations then says both: 2n - 1."""
    b = Bus(n)
    b.offer(0)
    count = 0
    while sent := next((f for i in range(n) for f in b.step(i)[:1]), None):
        b.broadcast(sent)
        count += 1
    assert count == 2 * n - 1
    assert all(core.receipts()[1] == 1 for core in b.cores)


@pytest.mark.parametrize("n", range(2, 9))
def test_evaluation_worst_case(n: int) -> None:
    """Section 4: 1 + (n - 1) + (n - 1)² = n² - n + 1 PDUs if every reception is answered at once."""
    b = Bus(n, answer_each=1)
    b.offer(0)
    assert exchange(b) == (n * n - n + 1, 3)
    assert all(set(core.positions()) == {1} for core in b.cores)


# ---- section 5: implementation


def test_queue_ptque_keeps_own_pdus_until_all_have_them() -> None:
    """Section 5: a PDU is put into PTQUE and broadcast. Deviation: it is taken out when everybody has it, not when it has
    come back, as a reset may ask for it again."""
    b = Bus(3)
    b.broadcast(b.send(0))
    assert b[0].peer(0).base == SEQ0
    b.finish()
    assert b[0].peer(0).base == SEQ0 + 1


def test_receiving_step_1_prque() -> None:
    """Section 5: what meets the acceptance condition goes to PRQUE, here the end of the log; what does not, nowhere."""
    b = Bus(3)
    b.broadcast(b.send(0))
    b.broadcast(b.send(0), lost=[1])
    b.broadcast(b.send(0))
    assert (b.receipts(0)["RPL"], b.receipts(1)["RPL"]) == ([(0, 0), (0, 1), (0, 2)], [(0, 0)])


def test_receiving_step_2_arque() -> None:
    """Section 5: as long as the head of PRQUE is pre-acknowledged it goes to ARQUE. RPT, a pointer to the last of these, is
    replaced by the P vector."""
    b = Bus(3)
    b.broadcast(b.send(0), b.send(0))
    b.broadcast(*b.step(1), *b.step(2))
    assert b.receipts(0)["PPL"] == [(0, 0), (0, 1)]
    (said,) = b.step(0)
    assert rel(pack(said)) == [2, 0, 0]


def test_receiving_step_3_confirmations_ride_on_data() -> None:
    """Section 5: with data to send the confirmation goes with it; without, a PDU of its own. Deviation: for several
    receptions one, and none for confirmations, or it would never end."""
    b = Bus(3)
    b.broadcast(b.send(0), b.send(0))
    b.offer(1, b"answer")
    (data,) = b.step(1)
    assert (kind(data), rel(ack(data))[0]) == (Kind.DATA, 2)
    (confirm,) = b.step(2)
    assert (kind(confirm), rel(ack(confirm))[0]) == (Kind.CONFIRM, 2)


@rule("R1")
def test_failure_step_applies_the_reset() -> None:
    """Section 5: whenever a loss condition holds, the reset procedure. Nothing else repairs: there is no NAK on a bus."""
    b = Bus(3)
    start_reset(b)
    sent = [f for i in range(3) for f in b.step(i, 50 * MS)]
    assert {Kind(kind(f)) for f in sent} <= {Kind.RST, Kind.CONFIRM}
    assert b[1].nak_due_ns() == NEVER
