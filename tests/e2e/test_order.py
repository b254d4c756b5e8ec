"""The total order on real frames: all send at once; frames are lost, late, overtaken, doubled, damaged."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from zenjun.daemon.client import Message, SendLevel
from zenjun.tools.lab import Lab

from .cluster import (
    Program,
    cluster,
    core,
    drops,
    exchange,
    in_parallel,
    log_of,
    payload,
    plan,
    programs,
    same_views,
    status,
    wait_for,
)
from .hub import UserHub

pytestmark = pytest.mark.lab
LEVELS: tuple[SendLevel, ...] = ("preack", "ordered", "ack", "sent")
MESSAGES = 1500
"""Of each program, in every exchange."""
HUB = {"cluster": {"fail_timeout_ms": 10_000, "progress_timeout_ms": 10_000}}
"""The hub is one program: on a busy machine frames may wait in it for long."""


@pytest.fixture(scope="module", params=[3, 5], ids=["3-stations", "5-stations"])
def segment(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A cluster that tests leave as they found it: open, without impairments."""
    with cluster(request.param) as lab:
        yield lab


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.05, 0.2])
def test_all_send_at_once_with_loss_case_31(segment: Lab, loss: float) -> None:
    rng = random.Random(f"{segment.size} {loss}")
    before = {i: core(s) for i, s in segment.stations.items()}
    with programs(segment, {"red": "preack", "green": "ordered", "blue": "ack"}, per_station=2) as members:
        segment.set_loss(loss)
        try:
            exchange(members, [plan(m, MESSAGES, rng, levels=LEVELS, chunk=60) for m in members])
        finally:
            segment.set_loss(0.0)
        for group in ("red", "green", "blue"):
            same_views(members, group)
    after = {i: core(s) for i, s in segment.stations.items()}
    repaired = sum(after[i]["rx_repaired"] - before[i]["rx_repaired"] for i in after)
    if loss >= 0.01:
        lost = sum(c["lost"] for c in segment.counters().values())
        assert lost and repaired, f"{lost} frames lost, {repaired} repaired: the loss was not real"
    settled(segment)


def settled(lab: Lab) -> None:
    """Everything sent is known to be everywhere, and the running digests of the order are the same."""
    wait_for(lambda: all(status(s)["window"]["in_flight"] == 0 for s in lab.stations.values()), "nothing is in flight")

    def digests() -> bool:
        found = [status(s)["digest"] for s in lab.stations.values()]
        return all(d == found[0] for d in found)

    wait_for(digests, "equal digests at equal positions")
    assert {status(s)["state"] for s in lab.stations.values()} == {"open"}
    assert all(status(s)["fence"] is None for s in lab.stations.values())


def test_programs_in_different_groups_see_one_order(segment: Lab) -> None:
    """Messages of all groups share one total order: merged by place, what a program of two groups got one after the other
    from the daemon is what everybody else has, whatever groups they are in."""
    rng = random.Random(7)
    with programs(segment, {"a": "preack", "b": "preack"}) as both, programs(segment, {"a": "ack"}, ids=[1, 2]) as only_a:
        members = [*both, *only_a]
        exchange(both, [plan(m, 100, rng, chunk=10) for m in both])
        for member in only_a:
            member.read_messages("a", len(both[0].messages("a")), 20)
            assert [m[:5] for m in member.messages("a")] == [m[:5] for m in both[0].messages("a")]
        merged = sorted((m for g in ("a", "b") for m in both[0].messages(g)), key=lambda m: m.place)
        assert len({m.place for m in merged}) == len(merged)
        for member in members:
            same_views([member, both[0]], "a")


def test_groups_come_and_go_while_others_send(segment: Lab) -> None:
    """Views stand at the same place between the same messages for all who stay (process groups live in the order)."""
    rng = random.Random(11)
    with programs(segment, {"stay": "preack"}) as members:
        first = members[-1].groups["stay"].view  # joined last: from here on all see the same
        assert first is not None

        def visit(number: int) -> int:
            for _ in range(5):
                guest = Program(segment.station(number), {"stay": "ordered"}, f"guest{number}")
                guest.groups["stay"].send(payload(guest, 0, 50, rng), "ordered")
                guest.close()
            return 5

        def chatter(member: Program) -> int:
            member.send([("stay", "preack", [payload(member, k, 60, rng) for k in range(200)])])
            return 200

        calls = [lambda n=n: visit(n) for n in segment.stations]
        calls += [lambda m=m: chatter(m) for m in members]
        total = sum(in_parallel(calls))
        # A guest's last view may still be under way when its message has come.
        members[0].groups["stay"].send(b"end")
        histories = []
        for member in members:
            member.read_messages("stay", total + 1, 30)
            items = member.items["stay"]
            last = next(k for k, i in enumerate(items) if isinstance(i, Message) and i.data == b"end")
            histories.append([i[:5] if isinstance(i, Message) else i for i in items[: last + 1] if _place(i) > first.place])
        assert all(h == histories[0] for h in histories), "messages and views interleave differently"
        for member in members:
            assert len([v for v in member.views("stay") if v.joined and v.joined[0].name.startswith("guest")]) == 5 * segment.size


def _place(item: object) -> tuple[int, int, int]:
    place: tuple[int, int, int] = getattr(item, "place", (0, 0, 0))
    return place


def test_one_message_now_and_then_with_loss_is_repaired_at_once_case_31() -> None:
    """One lost frame among nothing else: found by the poll and repaired in a few round trips, each time; no growth of traffic."""
    # Who only waits for a busy machine does not ask at once for what is not lost.
    with cluster(2, loss=0.1, options={"cluster": {"poll_delay_ms": 30}}) as lab, programs(lab, {"g": "preack"}) as members:
        for number in range(60):
            members[number % 2].groups["g"].send(b"%d" % number, timeout=10)
        for member in members:
            assert [int(m.data) for m in member.read_messages("g", 60, 10)] == list(range(60))
        counters = core(lab.station(1))
        # 60 lone messages of 2 frames; each loss costs a poll, an answer and a repair.
        lone = counters["tx_confirm"] - counters["tx_heartbeat"] + counters["tx_nak"] + counters["tx_retransmit"]
        assert lone < 60 * 6, counters


@pytest.mark.parametrize("stations", [3, 5])
def test_delay_and_reordering(stations: int) -> None:
    """25 ms ± 10 ms for each copy by itself, so that nearly every frame of a burst is overtaken."""
    rng = random.Random(stations)
    with cluster(stations, options=HUB) as lab:
        hub = UserHub(lab, seed=stations, delay_ms=25, jitter_ms=10)
        with hub, programs(lab, {"g": "preack", "h": "ordered"}) as members:
            exchange(members, [plan(m, MESSAGES, rng, levels=LEVELS, chunk=100, size_max=900) for m in members])
            same_views(members, "g")
            settled(lab)
        assert hub.counters["overtaken"] > 100, hub.counters


def test_duplicates_delay_and_bit_errors_case_39() -> None:
    """Every frame twice, with delay and jitter, and one copy in a hundred damaged: exactly once, counted, no log flood."""
    rng = random.Random(39)
    with cluster(3, options=HUB) as lab:
        lines = sum(len(log_of(s).splitlines()) for s in lab.stations.values())
        hub = UserHub(lab, seed=39, delay_ms=25, jitter_ms=10, duplicate=1.0, corrupt=0.01)
        with hub, programs(lab, {"g": "preack", "h": "ack"}, per_station=2) as members:
            exchange(members, [plan(m, MESSAGES, rng, levels=LEVELS, chunk=100) for m in members])
            settled(lab)
            for station in lab.stations.values():
                assert core(station)["rx_duplicate"] > 0
        assert hub.counters["duplicated"] > 100 and hub.counters["corrupted"] > 10, hub.counters
        found = sum((drops(s) for s in lab.stations.values()), start=drops(lab.station(1)).__class__())
        # A damaged address or EtherType, or a damaged cluster number, does not even pass the kernel's filter.
        assert found["check"] > hub.counters["corrupted"] // 2, (found, hub.counters)
        written = sum(len(log_of(s).splitlines()) for s in lab.stations.values()) - lines
        assert written < 60, "a flood in the log"


def test_corruption_alone_is_loss() -> None:
    """A fifth of all frames with a flipped bit: dropped by the checksum, repaired like losses, never delivered damaged."""
    rng = random.Random(5)
    with cluster(3, options=HUB) as lab:
        hub = UserHub(lab, seed=5, corrupt=0.2)
        with hub, programs(lab, {"g": "preack"}) as members:
            exchange(members, [plan(m, MESSAGES, rng, size_max=2000) for m in members])
            settled(lab)
        assert hub.counters["corrupted"] > 100


def test_tail_of_a_burst_is_repaired_without_waiting_for_more_case_33() -> None:
    """A rate limit with a short queue drops the tails of bursts; nothing follows them that would show the gap."""
    rng = random.Random(33)
    with cluster(3, rate_bit=8_000_000) as lab, programs(lab, {"g": "preack"}) as members:
        for _ in range(3):
            plans = [
                [("g", level, [payload(m, k, 1200, rng) for k in range(150)])] for m, level in zip(members, LEVELS, strict=False)
            ]
            exchange(members, plans, 30)
        assert sum(c["queue_drops"] for c in lab.counters().values()) > 10, "the queues were too long"
        settled(lab)
