"""Frame sizes, step by step: when PROBEs leave, what an answer proves, what a hole is, what sets the limit."""

from __future__ import annotations

import random

import pytest
from zenjun.proto.sizes import (
    AGAIN_NS,
    BASE,
    BURST_REST_NS,
    HOLD_FIRST_NS,
    SIZES,
    TRY_NS,
    WAIT_NS,
    Answer,
    Config,
    Effect,
    Hole,
    Probe,
    Sizes,
    Why,
)

from ..rules import rule

MS = 1_000_000
MOST = 9216


class Scene:
    """Station 1 of three, on one or two links."""

    def __init__(self, *, links: int = 1, mtu: int = 9000, machine: type[Sizes] = Sizes) -> None:
        self.now = 1_000 * MS
        numbers = tuple(range(1, links + 1))
        self.machine = machine(Config(1, 3, numbers, 576, MOST, links == 1), random.Random(1).randrange)
        for link in numbers:
            self.machine.on_interface(self.now, link, mtu)
        self.members: tuple[int, ...] = (1, 2, 3)
        self.ceiling = MOST
        self.passes = {(link, station): mtu for link in numbers for station in (2, 3)}
        self.lost = 0
        """So many of the next PROBEs above the base come nowhere."""
        self.said: list[Effect] = []

    def step(self, wait: int = 0) -> list[Effect]:
        """The machine's word, after so long; members answer PROBEs a moment later, with the largest that passes."""
        self.now += wait
        effects = self.machine.step(self.now, self.members, self.ceiling)
        self.said += effects
        probes = [e for e in effects if isinstance(e, Probe)]
        for (link, station), passes in self.passes.items():
            mine = [p for p in probes if p.link == link and p.size <= passes and not (self.lost and p.size > BASE)]
            if mine and passes:
                self.machine.on_said(self.now + MS, link, station, mine[0].round, max(p.size for p in mine))
        self.lost -= bool(self.lost and any(p.size > BASE for p in probes))
        return effects

    def run(self, time: int, tick: int = 5 * MS) -> None:
        end = self.now + time
        while self.now < end:
            self.step(tick)

    @property
    def size(self) -> int:
        return self.machine.limit.size

    def probes(self) -> list[Probe]:
        return [e for e in self.said if isinstance(e, Probe)]

    def holes(self) -> list[Hole]:
        return [e for e in self.said if isinstance(e, Hole)]


@rule("J13", "J14")
def test_the_first_frames_are_within_the_base() -> None:
    """The base holds until every member has answered; the burst has all sizes, the largest first."""
    scene = Scene()
    scene.passes = {}
    scene.step()
    assert (scene.size, scene.machine.limit.why) == (BASE, Why.UNPROVEN)
    assert [p.size for p in scene.probes()] == list(SIZES) and all(p.answer for p in scene.probes())
    number = scene.probes()[0].round
    scene.machine.on_said(scene.now, 1, 2, number, 9000)
    scene.step(MS)
    assert (scene.size, scene.machine.limit.station) == (BASE, 3)
    scene.machine.on_said(scene.now, 1, 3, number, 9000)
    scene.step(MS)
    assert (scene.size, scene.machine.limit.why) == (9000, Why.INTERFACE)
    assert scene.machine.is_settled


@rule("J13")
@pytest.mark.parametrize(("mtu", "base"), [(9000, 1280), (1000, 1000)])
def test_the_base_is_no_more_than_the_interface_carries(mtu: int, base: int) -> None:
    scene = Scene(mtu=mtu)
    scene.passes = {}
    scene.step()
    assert (scene.size, scene.machine.base) == (base, base)


@rule("J14")
@pytest.mark.parametrize("passes", [8996, 4000, 1504, 1500, 1492, 1330, 1280, 1111, 576])
def test_what_passes_is_found_to_eight_bytes(passes: int) -> None:
    scene = Scene()
    scene.passes[1, 3] = passes
    scene.run(6_000 * MS)
    assert passes - 8 < scene.size <= passes
    assert (scene.machine.limit.why, scene.machine.limit.link, scene.machine.limit.station) == (Why.PROVEN, 1, 3)
    tries = [p for p in scene.probes() if p.answer]
    assert len(tries) <= len(SIZES) + 4 * 12, "two of each size, with a smaller one"
    scene.passes[1, 3] = 9000
    scene.run(AGAIN_NS + AGAIN_NS // 5)
    assert scene.size == 9000, "more passes again, and is found by the try of every 10 s"


@rule("J13")
def test_an_answer_to_an_older_round_proves_nothing() -> None:
    class OldAnswers(Sizes):
        """Any answer is one to the last try."""

        def _is_present(self, way: object, round: int) -> bool:
            return True

    for machine, size in ((Sizes, BASE), (OldAnswers, 9000)):
        scene = Scene(machine=machine)
        scene.passes = {}
        scene.step()
        for station in (2, 3):
            scene.machine.on_said(scene.now, 1, station, scene.probes()[0].round - 1, 9000)
        scene.step(MS)
        assert scene.size == size


@rule("J15", "J16")
def test_a_hole_is_found_by_two_tries_and_held() -> None:
    scene = Scene()
    scene.run(200 * MS)
    scene.passes[1, 2] = 1500
    asked = scene.now
    scene.machine.on_again()
    while scene.size == 9000:
        scene.step(MS)
    assert scene.now - asked <= 2 * WAIT_NS and scene.size == BASE
    assert scene.holes() == [Hole(1, 2, 9000)]
    checks = [p for p in scene.probes() if p.round > 0][-4:]
    fell = scene.now
    scene.run(HOLD_FIRST_NS - 50 * MS)
    assert scene.size == BASE and scene.machine.limit.why is Why.HOLD and checks
    scene.run(100 * MS)
    assert scene.size == 1500 and scene.now - fell < HOLD_FIRST_NS + 100 * MS
    scene.passes[1, 2] = 1400
    scene.machine.on_again()
    scene.run(HOLD_FIRST_NS + 500 * MS)
    assert scene.size == BASE, "the second hole doubles the hold"
    scene.run(HOLD_FIRST_NS)
    assert scene.size == 1400


@rule("J15")
def test_loss_is_no_hole() -> None:
    """PDUs are asked for again, and a PROBE is lost: the next one comes, and frames stay as they are."""
    scene = Scene()
    scene.run(200 * MS)
    for _ in range(5):
        scene.lost = 1
        scene.machine.on_again()
        scene.run(300 * MS)
        assert scene.size == 9000 and not scene.holes()


@rule("J15")
def test_an_interface_that_refuses_is_a_hole() -> None:
    scene = Scene(links=2)
    scene.run(200 * MS)
    scene.machine.on_large(scene.now, [2])
    scene.step()
    assert scene.size == BASE and scene.holes() == [Hole(2, 0, 9000)]


@rule("J13", "J15")
def test_a_hole_below_the_base() -> None:
    scene = Scene()
    scene.run(200 * MS)
    scene.passes[1, 2] = 1000
    scene.machine.on_again()
    scene.run(2_500 * MS)
    assert scene.size == 1000 and scene.machine.limit.base == BASE


@rule("J13")
def test_a_link_that_never_came_sets_no_limit() -> None:
    """Nobody has been heard on link 2: it does not hold frames at the base. When they come there, it has 50 ms to show what
    passes; then it counts, and goes on counting when it is down."""
    scene = Scene(links=2)
    scene.passes = {(1, 2): 9000, (1, 3): 9000}
    scene.run(200 * MS)
    assert scene.size == 9000
    scene.passes |= {(2, 2): 4000, (2, 3): 9000}
    for station in (2, 3):
        scene.machine.on_probe(scene.now, 2, station)
    scene.run(400 * MS)
    assert 4000 <= scene.size < 4100 and scene.machine.limit.link == 2
    scene.machine.on_interface(scene.now, 2, 0)
    scene.passes = {(1, 2): 9000, (1, 3): 9000}
    scene.run(30_000 * MS, tick=50 * MS)
    assert 4000 <= scene.size < 4100


@rule("J13")
def test_what_a_station_says_it_can_receive_is_not_looked_for() -> None:
    scene = Scene()
    scene.ceiling = 1500
    scene.passes[1, 3] = 1500
    scene.run(300 * MS)
    assert scene.size == 1500 and scene.machine.limit.why is Why.INTERFACE
    assert max(p.size for p in scene.probes()) == 1500


@rule("J14", "J19")
def test_a_station_that_comes_makes_this_one_look() -> None:
    scene = Scene()
    scene.passes = {}
    scene.members = ()
    scene.run(5_000 * MS)
    alone = len(scene.probes()) // len(SIZES)
    assert 5 <= alone <= 8, "0, 100, 300 … ms"
    scene.passes = {(1, 2): 9000}
    scene.machine.on_probe(scene.now, 1, 2)
    scene.run(BURST_REST_NS + TRY_NS)
    assert len(scene.probes()) // len(SIZES) == alone + 1
    assert sum(isinstance(e, Answer) for e in scene.said[-20:]) >= 1


@rule("J19")
def test_answers_leave_in_turn() -> None:
    scene = Scene()
    scene.run(100 * MS)
    scene.said.clear()
    for _ in range(100):
        scene.machine.on_probe(scene.now, 1, 2)
        scene.step(MS)
    assert sum(isinstance(e, Answer) for e in scene.said) in (10, 11)
    scene.said.clear()
    scene.run(2 * AGAIN_NS, tick=20 * MS)
    assert 1 <= sum(isinstance(e, Answer) for e in scene.said) <= 3, "and now and then without a question"


def test_stations_that_cannot_be_are_not_looked_at() -> None:
    scene = Scene()
    for station in (0, 1, 4, 99):
        scene.machine.on_probe(scene.now, 1, station)
        scene.machine.on_said(scene.now, 1, station, 5, 9000)
    scene.machine.on_said(scene.now, 9, 2, 5, 9000)
    scene.machine.on_probe(scene.now, 9, 2)
    assert all(not way.heard for way in scene.machine.ways.values())


def test_who_is_alone_looks_for_nothing() -> None:
    """Nobody could answer, ever: whoever waits until the sizes are known does not wait for it."""
    scene = Scene()
    scene.passes = {}
    scene.members = (1,)
    scene.run(500 * MS)
    assert scene.machine.is_settled and scene.machine.limit.why is Why.ALONE and scene.size == 9000
    scene.members = (1, 2)
    scene.step(MS)
    assert not scene.machine.is_settled


def test_stations_that_are_added_are_looked_for_and_those_that_are_taken_away_forgotten() -> None:
    """The configuration of a running cluster changes: what is proven stays so, and links go on."""
    scene = Scene()
    scene.run(3_000 * MS)
    proven = scene.machine.limit.size
    assert scene.machine.limit.why is Why.INTERFACE and proven == 9000
    scene.machine.on_stations(5, 576)
    assert scene.machine.limit.size == proven
    scene.members = (1, 2, 3, 4, 5)
    scene.passes |= {(1, 4): 9000, (1, 5): 1500}
    scene.run(3_000 * MS)
    assert (scene.machine.limit.size, scene.machine.limit.station) == (1500, 5)
    scene.machine.on_stations(4, 576)
    scene.members = (1, 2, 3, 4)
    del scene.passes[1, 5]
    scene.run(3_000 * MS)
    assert scene.machine.limit.size == 9000 and 5 not in scene.machine.ways[1].heard
