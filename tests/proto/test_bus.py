"""A bus with a member that sends anything: well-formed frames with nonsense in every field. The engine neither raises nor hands
out what is not acknowledged, and what it does is bounded."""

from __future__ import annotations

import random
import struct

import pytest
from zenjun.proto import wire
from zenjun.proto.bus import BusHandover
from zenjun.proto.core import Medium, add_checksum
from zenjun.proto.effects import Opened
from zenjun.proto.engine import Engine
from zenjun.proto.openpdu import NO_PAST, BusReached, Past
from zenjun.proto.timers import Deadline, Timers
from zenjun.proto.wire import Flag, Kind

from ..virtual.engines import CONFIG, Cluster, opened
from ..virtual.pdus import kind
from ..virtual.segment import MS

N = 3
HEADER = wire.HEADER


def bus() -> Cluster:
    """Three engines in their first instance."""
    return opened(
        N,
        medium=Medium.BUS,
        window_frames=8,
        message_max=1 << 16,
        open_window_ns=20 * MS,
        open_interval_ns=5 * MS,
    )


def nonsense(rng: random.Random, engine: Engine, src: int) -> bytes:
    """A frame of this station with a right checksum; most of it is right, so that it gets far."""
    core = engine.core
    kind = rng.choice((Kind.DATA, Kind.CONFIRM, Kind.RST, Kind.RSTC, Kind.RST, Kind.NAK, Kind.OPEN))
    near = [peer.req + rng.choice((0, 0, 0, 1, -1, 7, 1 << 20, -(1 << 31))) & 0xFFFFFFFF for peer in map(core.peer, range(N))]
    epoch = core.phase()[1] + rng.choice((0, 0, 1, 2, 1000, 0xFFFFFFFF)) & 0xFFFFFFFF
    pack = kind == Kind.CONFIRM or (kind == Kind.DATA and rng.random() < 0.5)
    instance = engine.instance
    view = wire.view_hash(instance, engine.membership.incarnations)
    if kind in wire.RESETS:
        payload = wire.RESET.struct.pack(rng.choice((epoch, epoch, 0)), view)
    elif kind == Kind.CONFIRM:
        payload = wire.CONFIRM.struct.pack(
            0, 0, rng.choice((0, 1, 1 << 40)), rng.getrandbits(64), rng.choice((0, instance)), view
        )
    elif kind == Kind.DATA:
        payload = wire.MESSAGE.struct.pack(3, 1, 1, 0, 0) + b"abc"
    else:
        payload = rng.randbytes(40)
    flags = Flag.PACK if pack else rng.choice((0, Flag.POLL, Flag.RELAYED))
    head = HEADER.struct.pack(
        wire.cluster_id(CONFIG.cluster), wire.VERSION, kind, flags, N, src + 1,
        rng.choice((0, 0, 1)), len(payload), engine.membership.incarnations[src], instance,
        near[src] if rng.random() < 0.8 else rng.getrandbits(32),
        (instance << 32 | epoch) if rng.random() < 0.9 else rng.getrandbits(64), rng.getrandbits(10), 1500, 0, 0,
    )  # fmt: skip
    vectors = struct.pack(f">{N}I", *near) + (struct.pack(f">{N}I", *near) if pack else b"")
    return add_checksum(head + vectors + payload)


@pytest.mark.parametrize("seed", range(12))
def test_nonsense_from_a_member(seed: int) -> None:
    rng = random.Random(seed)
    cluster = bus()
    first = cluster.nodes[0].engine
    for _ in range(150):
        if first.instance and rng.random() < 0.7:
            src = rng.choice((0, 1, 2))
            cluster.nodes[src].sent.append(nonsense(rng, first, src))
        cluster.frames.clear()
        cluster.run(rng.choice((100_000, MS, 5 * MS)))
        for node in cluster.nodes:
            handed, acked, preack, accepted = node.engine.core.receipts()
            assert handed <= acked <= preack <= accepted
        assert len(cluster.frames) < 200


def test_epochs_do_not_run_out() -> None:
    """A RST of an epoch far ahead is nonsense: the next one would have no number."""
    cluster = bus()
    engine = cluster.nodes[0].engine
    core, instance = engine.core, engine.instance
    view = wire.view_hash(instance, engine.membership.incarnations)
    head = HEADER.struct.pack(
        wire.cluster_id(CONFIG.cluster), wire.VERSION, Kind.RST, 0, N, 2, 0, wire.RESET.size, 1, instance, core.peer(1).req,
        instance << 32 | 0xFFFFFFFF, 0, 1500, 0, 0,
    )  # fmt: skip
    vectors = struct.pack(f">{N}I", *core.vector())
    frame = add_checksum(head + vectors + wire.RESET.struct.pack(0xFFFFFFFF, view))
    engine.on_frames(cluster.now, [(frame, cluster.nodes[1].mac)])
    assert core.phase() == (0, 0)
    assert core.drops()["clock"] == 1


def test_what_all_had_when_their_vectors_were_equal_counts_though_another_reset_has_begun() -> None:
    """Who has seen the same has completed the reset, and handed all of the log out. If both others die then, this station alone
    knows of it (bus seed 8000000)."""
    cluster = bus()
    core = cluster.nodes[2].engine.core
    cluster.send(0, b"m")
    sent = [pdu for pdu in cluster.nodes[0].collect() if kind(pdu) == Kind.DATA]
    for pdu in sent:
        core.rx(cluster.now, pdu, cluster.nodes[0].mac)
    accepted = core.receipts()[3]
    assert accepted and core.secured() == 0, "accepted, and nobody else's word for it"
    core.reset_enter(1)
    assert core.secured() == 0
    core.reset_agree()
    assert core.secured() == accepted
    core.reset_enter(2)
    assert core.secured() == accepted


@pytest.mark.parametrize("instance", [1, 2**18 - 1, 2**18, 2**30 - 1])
@pytest.mark.parametrize("count", [0, 5, 2**23 - 1, 2**23, 2**40])
def test_what_a_past_says_on_a_bus_goes_round(instance: int, count: int) -> None:
    """Numbers are told modulo what has room, and are told apart as long as they are near each other."""
    mine = BusReached.parse(BusReached(instance, count, 7).packed())
    assert mine == (instance % 2**18, count % 2**23, 7)
    assert BusReached(instance, count, 2**22 - 1).packed() < 2**63
    assert BusReached.parse(BusReached(instance, count, 2**40).packed()) == (instance % 2**18, count % 2**23, 2**22 - 1)
    for apart in (-(2**21), -1, 0, 1, 2**21):
        other = BusReached.parse(BusReached(instance + apart % 2**17, count + apart, 0).packed())
        assert other.ahead_of(mine) == apart and mine.ahead_of(other) == -apart
        assert other.is_after(mine) == (apart % 2**17 != 0)
        assert not mine.is_after(other)


@pytest.mark.parametrize("bits", [0, 2**63, 2**64 - 1, 0x5555555555555555])
def test_a_past_of_any_bits_is_read(bits: int) -> None:
    past = BusReached.parse(bits)
    assert BusReached.parse(past.packed()) == past


class Flushed:
    """A core that says how far it has got, and remembers how far it is told to go."""

    def __init__(self, view: int, count: int) -> None:
        self._reached = view, count
        self.to: tuple[int, int] | None = None

    @property
    def flushed(self) -> bool:
        return self.to is None

    def fence(self) -> None:
        return None

    def secured(self) -> int:
        return 0

    def reached(self) -> tuple[int, int]:
        return self._reached

    def flush(self, view: int, count: int) -> None:
        self.to = view, count


@pytest.mark.parametrize(
    ("pasts", "to"),
    [
        pytest.param([(1, 22, 3)], 25, id="alone"),
        pytest.param([(1, 22, 3), (2, 24, 0)], 24, id="who has it acknowledged"),
        pytest.param([(1, 22, 3), (2, 22, 1)], 23, id="only what all of them hold"),
        pytest.param([(1, 22, 3), (2, 22, 3), (3, 5, 0, 1)], 25, id="a third from an earlier instance"),
        pytest.param([(1, 22, 3), (2, 22, 3), (3, 5, 0, 3)], 22, id="others have gone on from there"),
    ],
)
def test_how_far_the_last_instance_is_delivered(pasts: list[tuple[int, ...]], to: int) -> None:
    """Bus seed 33000147: two of instance 2, who held PDUs that the two others may have acknowledged, opened the next one with a
    third that came from instance 1."""
    core = Flushed(77, 22)
    handover = BusHandover(core, bus().nodes[0].engine.membership, Timers(Deadline))
    handover.begin(77, 2, opened=True)
    listed = []
    for station, count, secured, *instance in pasts:
        number = instance[0] if instance else 2
        listed.append((station, 77 if number == 2 else 100 + number, BusReached(number, count, secured).packed()))
    agreed = Opened(3, (1,) * 4, 1500)
    assert not handover.agree(0, agreed, tuple(listed), NO_PAST) and handover.agreed is agreed
    assert core.to == (77, to)


@pytest.mark.parametrize(
    ("pasts", "brings"),
    [
        pytest.param([(1, 22, 3), (2, 22, 0)], (22, 0), id="nobody can have delivered more than 22"),
        pytest.param([(1, 22, 3), (2, 22, 1)], (22, 1), id="others may have delivered 23"),
        pytest.param([(1, 22, 3), (2, 24, 0)], (24, 0), id="the other one has delivered 24"),
        pytest.param([(1, 22, 3), (2, 5, 0, 3)], (22, 0), id="others have gone on from there"),
        pytest.param([(1, 22, 3)], (22, 3), id="alone"),
    ],
)
def test_what_a_station_brings_once_it_has_agreed(pasts: list[tuple[int, ...]], brings: tuple[int, int]) -> None:
    """Bus seed 35005779: 1, 2 and 3 agreed on where the last instance ends; 3 stood still before it heard that the others had
    started the next one, opened another one alone, and delivered what they had not. Alone (seed 41001224): it does not say that
    it has delivered what others may not even have."""
    handover = BusHandover(Flushed(77, 22), bus().nodes[0].engine.membership, Timers(Deadline))
    handover.begin(77, 2, opened=True)
    listed = []
    for station, count, secured, *instance in pasts:
        number = instance[0] if instance else 2
        listed.append((station, 77 if number == 2 else 100 + number, BusReached(number, count, secured).packed()))
    before = Past(77, BusReached(2, 22, 3).packed())
    assert handover.bind(before, tuple(listed)) == Past(77, BusReached(2, *brings).packed())
    assert handover.bind(NO_PAST, tuple(listed)) == NO_PAST
