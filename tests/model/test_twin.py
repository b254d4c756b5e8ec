"""One Hypothesis state machine runs the same operations on C cores and on their plain twins, and compares all they know.

The cores do the sending: each frame is decoded by the wire table and judged by its sender's twin (``TwinStation.sent``). The
medium is in the machine's hands: any frame may come late, twice, or never. At the end everything lost is repaired by the cores
themselves, all stations hold the same order, and then there is silence.

``test_defects_are_noticed`` runs the machine on cores with one deliberate defect each: the comparison is known to compare.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, run_state_machine_as_test
from hypothesis.stateful import rule as operation
from zenjun.proto import wire
from zenjun.proto.core import Drop, Fault
from zenjun.proto.wire import addressee

from ..rules import rule
from ..virtual.cores import Cores
from ..virtual.segment import MS, NEVER
from .twin import Pdu, TwinStation, decode

CLUSTER, INSTANCE, FRAME_MAX = 77, 5, 512
HEAL_ROUNDS_MAX = 400

stations = st.integers(0, 3)
waits = st.sampled_from([0, 50_000, 300_000, 2 * MS, 20 * MS])


class Cluster(RuleBasedStateMachine):
    """n cores, n twins, and the frames under way as (receiver, bytes)."""

    faults = 0

    @initialize(
        n=st.integers(2, 4),
        first=st.sampled_from([0, 0, 2**32 - 3, 2**31 - 2]),
        window=st.integers(1, 8),
        slots=st.sampled_from([16, 32]),
        direct=st.sampled_from([0, 2, 3, 4]),
    )
    def start(self, n: int, first: int, window: int, slots: int, direct: int) -> None:
        self.n, self.first, self.slots, self.now = n, first, slots, MS
        self.cores = Cores(
            n,
            instance=INSTANCE,
            view=7,
            incarnations=range(100, 100 + n),
            cluster=CLUSTER,
            window=window,
            slots=slots,
            frame_max=FRAME_MAX,
            message_max=8192,
            confirm_delay_ns=200_000,
            nak_delay_ns=100_000,
            poll_delay_ns=5 * MS,
            poll_delay_max_ns=50 * MS,
            retransmit_gap_ns=200_000,
            first_seq=first,
            direct=direct,
            faults=self.faults,
        ).cores
        self.twins = [TwinStation(n, k, first, INSTANCE << 32, window, slots, direct) for k in range(n)]
        self.under_way: list[tuple[int, bytes]] = []
        self.data: dict[tuple[int, int], bytes] = {}
        self.delivered: list[list[tuple[int, int, bytes]]] = [[] for _ in range(n)]
        self.partly: list[tuple[bytes, bool] | None] = [None] * n
        self.messages = 0

    # ---- operations

    @operation(k=stations, size=st.sampled_from([0, 1, 40, 300, 1500]), need_ack=st.booleans(), wait=waits)
    def send(self, k: int, size: int, need_ack: bool, wait: int) -> None:
        k %= self.n
        if self.partly[k] is None:
            self.messages += 1
            self.partly[k] = (self.messages.to_bytes(4, "big") + bytes(size), need_ack)
        self.turn(k, wait)

    @precondition(lambda self: self.under_way)
    @operation(index=st.integers(0, 63), copies=st.sampled_from([1, 1, 1, 0, 2]), wait=waits, drained=st.booleans())
    def receive(self, index: int, copies: int, wait: int, drained: bool) -> None:
        """Any of the frames under way comes now: once, never, or twice."""
        receiver, frame = self.under_way.pop(index % len(self.under_way))
        for _ in range(copies):
            self.hand_over(receiver, frame)
        self.turn(receiver, wait, drained)

    @precondition(lambda self: self.under_way)
    @operation(k=stations, wait=waits)
    def receive_all(self, k: int, wait: int) -> None:
        """Everything under way to one station comes in a batch."""
        k %= self.n
        coming = [frame for receiver, frame in self.under_way if receiver == k]
        self.under_way = [entry for entry in self.under_way if entry[0] != k]
        for frame in coming:
            self.hand_over(k, frame)
        self.turn(k, wait)

    @operation(k=stations, wait=waits, heartbeat=st.booleans())
    def timers(self, k: int, wait: int, heartbeat: bool) -> None:
        k %= self.n
        if heartbeat:
            self.cores[k].heartbeat(self.now)
        self.turn(k, wait)

    # ---- a core's turn, and its twin's

    def decode(self, frame: bytes) -> Pdu:
        return decode(frame, self.first + 2**20 if self.first == 0 else self.first)

    def hand_over(self, k: int, frame: bytes) -> None:
        # An honest sender never overruns a receiver, nor is anything else of its frames refused.
        assert self.cores[k].rx(self.now, frame, b"\x02\0\0\0\0\x01") == Drop.NONE
        pdu = self.decode(frame)
        if pdu.src != k:
            self.twins[k].rx(pdu)

    def turn(self, k: int, wait: int, drained: bool = True) -> None:
        self.now += wait
        core = self.cores[k]
        core.step(self.now, False)  # what has been delivered since the last one is not pending any more
        core.nak(self.now)
        core.poll(self.now)
        core.step(self.now, drained)
        self.collect(k)
        if (offer := self.partly[k]) and core.offer(offer[0], group=9, client=1, need_ack=offer[1]):
            self.partly[k] = None
        core.step(self.now, drained)
        self.collect(k)
        self.delivered[k] += [(m.src, m.group, m.data) for m in core.deliver()]
        self.compare(k, drained)

    def collect(self, k: int) -> None:
        """Take the core's frames off its queue: its twin judges the new ones, repeated ones must be the same bytes."""
        for frame in self.cores[k].tx(self.now):
            pdu = self.decode(frame)
            known = self.data.get((pdu.src, pdu.seq)) if pdu.sequenced else None
            if pdu.flags & wire.Flag.RELAYED:
                assert self.twins[k].may_pass_on(pdu)
            elif known is not None:
                assert frame == known, "a repeated PDU is the same, byte for byte"
                assert self.twins[k].may_repeat(pdu)
            else:
                self.twins[k].sent(pdu)
                if pdu.sequenced:
                    self.data[pdu.src, pdu.seq] = frame
            self.under_way += [
                (other, frame)
                for other in range(self.n)
                if other != k and other != pdu.src and addressee(frame) in (0, other + 1)
            ]

    def compare(self, k: int, drained: bool) -> None:
        core, twin = self.cores[k], self.twins[k]
        peers = [core.peer(h) for h in range(self.n)]
        assert [p.req for p in peers] == twin.req
        assert core.matrix() == twin.al
        assert [p.min_al for p in peers] == [twin.min_al(h) for h in range(self.n)]
        assert [p.acked for p in peers] == [twin.acked(h) for h in range(self.n)]
        if drained:
            assert twin.owes() == []
        order, messages, positions = twin.order(), twin.messages(), core.positions()
        if twin.missing():
            # Of several promises that wait for missing PDUs the core remembers the last: it may deliver later, nothing else.
            assert positions.ordered <= len(order)
            assert self.delivered[k] == messages[: len(self.delivered[k])]
            return
        assert positions.ordered == len(order)
        assert self.delivered[k] == messages
        assert [p.ordered - self.first for p in peers] == [sum(p.src == h for p in order) for h in range(self.n)]
        assert positions.preack == twin.preack()
        if len(order) <= self.n * self.slots:  # beyond, the core need not remember what nobody waits for
            assert positions.ack == twin.ack()

    # ---- the end

    def stable(self) -> bool:
        """Everything has level preack everywhere, and level ack where somebody asked for it."""
        if any(self.partly) or any(core.positions().preack != len(self.data) for core in self.cores):
            return False
        wanted = (place for twin in self.twins for place in twin.wanted_places())
        return all(twin.ack() > place for place in wanted for twin in self.twins)

    def teardown(self) -> None:
        """Nothing is lost any more: everything arrives everywhere, in one order, and then nobody says anything."""
        if not hasattr(self, "cores"):
            return
        rounds = 0
        while not self.stable() or self.under_way:
            rounds += 1
            assert rounds < HEAL_ROUNDS_MAX, "not stable although nothing is lost any more"
            for k in range(self.n):
                self.receive_all(k, 2 * MS)
        assert all(self.delivered[k] == self.delivered[0] for k in range(self.n))
        assert len(self.delivered[0]) == self.messages
        for k in range(self.n):
            self.turn(k, 10_000 * MS)
        assert not self.under_way, "silence"
        assert all(core.nak_due_ns() == core.poll_due_ns() == NEVER for core in self.cores)


class TestTwin(Cluster.TestCase):  # type: ignore[valid-type, misc]
    settings = settings(
        max_examples=80, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
    )


@rule("C1", "C2")
@pytest.mark.parametrize(
    "fault",
    [
        Fault.ARRIVAL_ORDER,
        Fault.SKIP_GAP,
        Fault.DUPLICATE,
        Fault.EARLY_PREACK,
        Fault.EARLY_ACK,
        Fault.NO_WAIT,
        Fault.FREE_EARLY,
        Fault.FLOOD,
        Fault.CHATTER,
        Fault.EARLY_PROMISE,
        Fault.SWAP,
    ],
    ids=lambda fault: str(fault.name),
)
def test_defects_are_noticed(fault: Fault) -> None:
    defect = type(f"Cluster{fault.name}", (Cluster,), {"faults": int(fault)})
    quick = settings(
        max_examples=300,
        stateful_step_count=50,
        deadline=None,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(defect, settings=quick)


def test_decode_reads_what_the_table_says() -> None:
    """The twin's own reader, on a frame of known fields."""
    numbers = {"stations": 2, "src": 2, "kind": wire.Kind.CONFIRM, "flags": wire.Flag.PACK, "seq": 5, "clock": 9, "length": 0}
    header = wire.HEADER.struct.pack(*(numbers.get(f.name, 0) for f in wire.HEADER.fields))
    pdu = decode(header + bytes([0, 0, 0, 1, 255, 255, 255, 254, 0, 0, 0, 0, 0, 0, 0, 7]), 2**32)
    assert (pdu.src, pdu.seq, pdu.clock) == (1, 2**32 + 5, 9)
    assert pdu.ack == (2**32 + 1, 2**32 - 2) and pdu.pack == (2**32, 2**32 + 7)
