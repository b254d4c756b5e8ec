"""The links of the product, cores of two stations, under the orders of groups that overlap (tests/model/multicast/cores.py)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from zenjun.proto.core import add_checksum
from zenjun.proto.core._core import ffi, lib
from zenjun.proto.engineconfig import make_core
from zenjun.proto.envelope import pieces_carry
from zenjun.proto.multicast.codec import (
    Encoded,
    decode,
    decode_digests,
    decode_listed,
    decode_lives,
    decode_part,
    encode,
    encode_closed,
    encode_flush,
    encode_state,
)
from zenjun.proto.multicast.links import Links
from zenjun.proto.multicast.records import Closed, Data, Decide, Flush, Held, Id, Listed, Record, Relay, Report, Stable, State
from zenjun.proto.multicast.tables import EraNumber, Program
from zenjun.proto.wire import HEADER, Kind

from ..rules import rule
from ..sim.history_asserts import assert_holds
from ..virtual.engines import CONFIG
from .multicast import broken, cores
from .multicast.cores import CoreEnd, CoreWorld
from .multicast.link import FALLBACK_NS, MS, Frame, LinkEnd, LinkId
from .multicast.world import simulate
from .test_multicast_links import three, unfinished

SEEDS = 25
VARIANT_SEEDS = 60


def test_seeds_on_cores() -> None:
    """Frames that are lost, late, repeated; holes and one-way cuts: the orders' properties hold, and each record comes once."""
    assert_holds(lambda seed: simulate(seed, kind=CoreWorld), range(SEEDS))


CAUGHT: dict[type[CoreEnd], tuple[str, int]] = {
    cores.CoreNoPoll: ("complete", 0),
    cores.CoreSkipsGaps: ("link", 0),
    cores.CoreNoFallback: ("link", 0),
    cores.CoreAnswersByAddress: ("link", 0),
    cores.CoreOneLife: ("link", 0),
    cores.CoreCalledForGood: ("addresses", 0),
}
"""Each broken rule with the checker that catches it, and the first seed."""


@pytest.mark.parametrize("defect", CAUGHT, ids=lambda defect: defect.__name__)
@rule("L1", "L2", "L3")
def test_a_broken_rule_of_cores_is_caught(defect: type[CoreEnd]) -> None:
    checker, first = CAUGHT[defect]
    seeds = range(first, first + VARIANT_SEEDS)
    assert any(simulate(seed, defect, None, frozenset({checker}), CoreWorld) for seed in seeds)


@rule("L4")
def test_a_core_that_gets_no_confirmation_has_the_other_end_removed() -> None:
    run = three(CoreEnd, {(1, 2)}, set())
    assert run.stuck >= 1 and not unfinished(run)
    run = three(cores.CoreNeverStuck, {(1, 2)}, set())
    assert run.stuck == 0 and unfinished(run) == 4, "a full window, for ever"


@rule("L2")
@pytest.mark.parametrize("hole", [(1, 2), (2, 1)])
def test_cores_use_the_group_address_where_a_hole_swallows_others(hole: tuple[int, int]) -> None:
    run = three(CoreEnd, set(), {hole})
    assert run.stuck == 0 and not unfinished(run)


@rule("L2")
@pytest.mark.parametrize("end", [LinkEnd, CoreEnd])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_who_have_met_at_the_group_address_leave_it(end: type[LinkEnd], lost: int) -> None:
    """The first frames go there, and some come before the other end is open. Then all go by address, both ways: no other station
    hears more than that."""
    link = LinkId(1, (1, 1), (2, 1))
    one, two = end(link, 1), end(link, 2)
    now, sent = 0, 0
    for k in range(6):
        for side, (source, target) in enumerate(((one, two), (two, one))):
            source.send(now, [Report(ERA, "token", 1, 1 + k, 1, 1)])
            before = sent
            while source.out or target.out or source.deadline is not None or target.deadline is not None:
                due = min((e.deadline for e in (source, target) if e.deadline is not None), default=now)
                if not source.out and not target.out:
                    now = max(now + 1, due)
                    source.on_time(now)
                    target.on_time(now)
                for a, b in ((source, target), (target, source)):
                    frames, a.out[:] = list(a.out), []
                    for frame in frames:
                        sent += frame.to_group
                        lost -= 1
                        if lost < 0:
                            b.on_frame(now, frame)
            assert k < 1 or sent == before, f"round {k}, side {side}: frames at the group address"


def talk(
    end: type[LinkEnd], lost: Callable[[int, int, Frame], bool], rounds: int, delay: int, senders: tuple[int, ...] = (1, 2)
) -> list[int]:
    """Two ends send two records each in a round of 500 ms; a frame takes ``delay`` ns unless ``lost(round, source, frame)``;
    how many went to the group address in each round."""
    link = LinkId(1, (1, 1), (2, 1))
    ends = {1: end(link, 1), 2: end(link, 2)}
    counts, flying = [0] * rounds, list[tuple[int, int, Frame]]()
    for now in range(0, rounds * 500 * MS, MS):
        k = now // (500 * MS)
        for me, it in ends.items():
            if now % (500 * MS) == 0 and me in senders:
                for number in (2 * k + 1, 2 * k + 2):
                    it.send(now, [Report(ERA, "token", me, number, 1, 1)])
            if it.deadline is not None and it.deadline <= now:
                it.on_time(now)
            assert k in range(FAULT.start, FAULT.stop + 1) or not it.is_stuck(now), "nothing is confirmed"
        for frame in [f for at, _, f in flying if at <= now]:
            ends[3 - frame.source].on_frame(now, frame)
        flying = [f for f in flying if f[0] > now]
        for me, it in ends.items():
            counts[k] += sum(frame.to_group for frame in it.out)
            flying += [(now + delay, me, frame) for frame in it.out if not lost(k, me, frame)]
            it.out.clear()
    return counts


FAULT = range(5, 7)
FALLBACK_ROUNDS = FALLBACK_NS // (500 * MS) + 2
LOSSES: dict[str, Callable[[int, int, Frame], bool]] = {
    "hole": lambda k, source, frame: k in FAULT and source == 1 and not frame.to_group,
    "holes": lambda k, source, frame: k in FAULT and not frame.to_group,
    "silence": lambda k, source, frame: k in FAULT and source == 2,
}


@rule("L2")
@pytest.mark.parametrize("delay", [0, 5 * MS])
@pytest.mark.parametrize("fault", LOSSES)
@pytest.mark.parametrize("end", [LinkEnd, CoreEnd])
def test_links_leave_the_group_address_when_a_fault_is_over(end: type[LinkEnd], fault: str, delay: int) -> None:
    """Also where answers take longer than a POLL waits, so that there are POLLs all the time."""
    counts = talk(end, LOSSES[fault], FAULT.stop + FALLBACK_ROUNDS + 6, delay)
    assert not any(counts[1:5]) and any(counts[5:7])
    assert not any(counts[FAULT.stop + FALLBACK_ROUNDS :]), counts


@pytest.mark.parametrize(("defect", "delay"), [(broken.CalledForGood, 0), (broken.CallersCall, 5 * MS)])
def test_ends_that_call_each_other_stay_at_the_group_address(defect: type[LinkEnd], delay: int) -> None:
    counts = talk(defect, LOSSES["holes"], FAULT.stop + FALLBACK_ROUNDS + 6, delay)
    assert all(counts[FAULT.stop + FALLBACK_ROUNDS :]), "all other stations hear them, for ever"


@rule("L2")
def test_who_is_called_at_the_group_address_answers_there() -> None:
    """As designed the answers fall into the hole, as nothing of that station's own is pending, and it is removed."""

    def lost(k: int, source: int, frame: Frame) -> bool:
        return k > 0 and source == 2 and not frame.to_group

    for end in (LinkEnd, CoreEnd):
        talk(end, lost, 12, 0, (1,))
    with pytest.raises(AssertionError, match="nothing is confirmed"):
        talk(broken.AnswerByAddress, lost, 12, 0, (1,))


class Gap:
    """A hole from 1 to 2 that begins right behind a gap: of the third round's frames the first is lost, the second comes."""

    def __init__(self) -> None:
        self.passed = 0

    def __call__(self, k: int, source: int, frame: Frame) -> bool:
        if k < 2 or source == 2:
            return False
        self.passed += 1
        return self.passed != 2 and not frame.to_group


@rule("L2")
def test_who_lacks_a_pdu_gets_it_at_the_group_address() -> None:
    """If its NAKs counted as answers to POLLs, what it lacks would go to the address, and into the hole, until it is removed."""
    for end in (LinkEnd, CoreEnd):
        talk(end, Gap(), 12, 0, (1,))
    with pytest.raises(AssertionError, match="nothing is confirmed"):
        talk(broken.NakAnswers, Gap(), 12, 0, (1,))


@rule("L2")
@pytest.mark.parametrize("end", [LinkEnd, CoreEnd])
def test_a_hole_that_stays_costs_two_polls_now_and_then(end: type[LinkEnd]) -> None:
    """The address is tried again, and nothing is lost."""
    counts = talk(end, lambda k, source, frame: source == 1 and not frame.to_group and k > 0, 60, 0)
    assert any(counts[50:])
    run = three(end, set(), {(1, 2)})
    assert run.stuck == 0 and not unfinished(run)


@rule("L1")
def test_frames_are_not_larger_than_the_interface_carries() -> None:
    """The interface carries less than the configuration allows, and each end says so of its own: a record of many frames passes,
    also when both have been heard. One that was built before the interface carried less goes in pieces; one that takes more of
    them than there may be cannot be sent again, and is told of."""
    vectors = (9, 9)
    ends = [Links(replace(CONFIG, stations=2, station=z, frame_max=9000, window_frames=64, message_max=100_000)) for z in (1, 2)]
    for links in ends:
        links.begin(1, vectors, 1500)
        links.set_frame_max(1500)
    one, two = ends[0].pair(2, 0), ends[1].pair(1, 0)
    now, longest, taken = 0, 0, 0
    for k in range(6):
        for pair in (one, two):
            pair.send(encode(Data(Id(ERA, pair.core.index + 1, k + 1), PROGRAM, "token", (3,), 0, bytes(6000))))
        for _ in range(200):
            now += MS
            for pair, other in ((one, two), (two, one)):
                pair.pump(now)
                pair.core.step(now, True)
                if pair.core.nak_due_ns() <= now:
                    pair.core.nak(now)
                if pair.core.poll_due_ns() <= now:
                    pair.core.poll(now)
                for pdu in pair.core.tx(now):
                    longest = max(longest, len(pdu))
                    if len(pdu) <= 1500:
                        other.core.pair_rx(now, pdu, bytes(6), False)
                taken += sum(len(records) for records in pair.take())
    assert (longest, taken) == (1500, 12) and not any(links.too_long for links in ends)
    one.send(encode(Data(Id(ERA, 1, 9), PROGRAM, "token", (3,), 0, bytes(6000))))
    one.pump(now)
    one.core.step(now, True)
    assert list(one.core.tx(now)), "they are lost"
    ends[0].set_frame_max(600)
    assert not ends[0].too_long and not ends[1].too_long
    ends[0].begin(2, vectors, 9000)
    ends[0].set_frame_max(9000)
    wide = ends[0].pair(2, now)
    wide.send(encode(Data(Id(ERA, 1, 10), PROGRAM, "token", (3,), 0, bytes(8900))))
    wide.pump(now)
    wide.core.step(now, True)
    assert max(map(len, wide.core.tx(now))) > pieces_carry(512)
    ends[0].set_frame_max(512)
    assert ends[0].too_long


@rule("L3")
def test_who_has_no_link_opens_one_for_whole_frames_of_its_cluster_only() -> None:
    """A core reserves megabytes: what is cut, damaged, of another cluster or for another station opens none."""
    links = Links(replace(CONFIG, stations=5, station=4))
    links.begin(1, (1, 1, 1, 1, 1), 1500)
    pair = links.pair(2, 0)
    pair.send(encode(Report(ERA, "token", 1, 1, 1, 1)))
    pair.pump(0)
    pair.core.step(0, True)
    (pdu,) = pair.core.tx(0)
    main = {z: make_core(replace(CONFIG, stations=5, station=z)) for z in (1, 2, 4)}

    def asks(station: int, data: bytes) -> bool:
        core = ffi.cast("struct zj_core *", main[station].handle_pointer)
        return bool(lib.zj_pair_asks(core, data, len(data)))

    assert asks(2, pdu) and not asks(1, pdu) and not asks(4, pdu)
    stranger = make_core(replace(CONFIG, stations=5, station=2, cluster=CONFIG.cluster + "x"))
    assert not lib.zj_pair_asks(ffi.cast("struct zj_core *", stranger.handle_pointer), pdu, len(pdu))
    for at in range(len(pdu)):
        assert not asks(2, pdu[:at])
        assert not asks(2, pdu[:at] + bytes([pdu[at] ^ 1]) + pdu[at + 1 :])
    for kind in range(256):  # a vote would take a place in the link's stream, and nothing behind it would be delivered
        other = bytearray(pdu)
        other[HEADER.offset("kind")] = kind
        whole = add_checksum(bytes(other))
        assert asks(2, whole) == (kind == Kind.DATA)
    own = ffi.cast("struct zj_core *", pair.core.handle_pointer)
    assert not lib.zj_pair_asks(own, pdu, len(pdu)), "a link has no links"


# ---- bytes

ERA = EraNumber(7, 3)
PROGRAM = Program(2, 9, 12)
MESSAGE = Data(Id(ERA, 2, 5), PROGRAM, "token", (3, 8, 70_000), 2**40, b"content", True, 4)
RECORDS: tuple[Record, ...] = (
    MESSAGE,
    Data(Id(ERA, 2, 6), PROGRAM, "abcast", (3,), 0, b""),
    Relay(MESSAGE),
    Report(ERA, "token", 4, 17, 300, 2**45),
    Decide(ERA, "abcast", 4, 17, 1, 2**45),
    Held(ERA, "token", 8),
    Stable(ERA, "token", 8, True),
    Stable(ERA, "abcast", 9, False),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_survives_its_bytes(record: Record) -> None:
    assert decode(encode(record), 2, 9) == record


def test_bytes_that_are_no_record() -> None:
    """Cut, longer or random bytes give None, or another record: never an exception."""
    chance = random.Random(1)
    for record in RECORDS:
        message = encode(record)
        for cut in range(len(message.data)):
            decode(message._replace(data=message.data[:cut]), 2, 9)
        for _ in range(200):
            noise = bytearray(message.data)
            for _ in range(chance.randint(1, 3)):
                if noise:
                    noise[chance.randrange(len(noise))] = chance.randrange(256)
            decode(message._replace(data=bytes(noise), type=chance.choice((0, 3, 4, 5, 6, 7, message.type))), 2, 9)
    assert decode(Encoded(1, 0, 0, b""), 2, 9) is None


def test_group_messages_survive_their_bytes_in_parts() -> None:
    entries = tuple(
        Listed(Id(ERA, 2, k), PROGRAM, "token", (1, 2), frozenset({1, 64}), k % 2 == 0, k if k % 3 else None)
        for k in range(1, 60)
    )
    parts = [decode_part(p) for p in encode_flush(Flush(ERA, 3, 2**40, entries))]
    assert len(parts) > 1 and [p.last for p in parts if p] == [False] * (len(parts) - 1) + [True]
    assert all(p is not None and (p.operation, p.opens, p.clock) == (4, ERA, 2**40) for p in parts)
    assert decode_listed(b"".join(p.body for p in parts if p)) == entries

    (closed,) = encode_closed(Closed(ERA, 3, ((ERA, 5, 2**63),)))
    part = decode_part(closed)
    assert part is not None and part.operation == 5 and decode_digests(part.body) == ((ERA, 5, 2**63),)

    (state,) = encode_state(State(ERA, 77, ((1, 4), (2, 9))))
    part = decode_part(state)
    assert part is not None and (part.operation, part.clock) == (6, 77) and decode_lives(part.body) == ((1, 4), (2, 9))
    assert decode_part(state[:10]) is None and decode_listed(b"x") is None and decode_lives(b"x") is None
