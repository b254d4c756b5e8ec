"""A running cluster changes its configuration: honest stations under faults, and each broken rule shown to do harm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from zenjun.proto.changing import AHEAD_MAX, ATTEMPT_NS, Changing, Hold, Keep, Said, Stand, Tell
from zenjun.proto.configmessages import ConfigMessage, Say
from zenjun.proto.gathering import GATHER_NS, Gathering
from zenjun.proto.openpdu import Claim, OpenPdu, decode_open, encode_open
from zenjun.proto.wire import HEADER, Kind, open_bytes

from ..rules import rule
from ..virtual.segment import MS
from .broken_changing import VARIANTS
from .changing import Machine, Options, PowerFails, World, simulate, trim
from .violation import Violation

US = 1_000
ALONE = Options(3, quorum=1, required=(1,))
"""Station 1 is a quorum of this configuration."""
OTHERS = trim(Options(5), {1, 4, 5})
"""Any two of these are: no quorum of 1, 2 and 3."""


def opened(variant: str = "", first: Options | None = None) -> World:
    """All machines run; those of the roster are in an instance."""
    world = World(1, VARIANTS[variant]() if variant else None, first or Options(3))
    for machine in world.stations:
        machine.boot()
    roster = world.first.roster
    world.until(lambda: all(world.machine(k).instance for k in roster))
    world.traffic(200 * MS)
    return world


def step(world: World, condition: Callable[[], object], what: str, limit_ns: int = 200 * MS) -> None:
    world.until(lambda: bool(condition()), limit_ns, 20 * US)


def marked(machine: Machine) -> bool:
    return bool(machine.on and machine.changing.stand.ballot)


def number(machine: Machine) -> int:
    return machine.changing.stand.number


def cut_off_after_prepared(variant: str = "", full: tuple[int, ...] = ()) -> World:
    """Station 1 commits the roster {1, 4, 5}; 2 and 3 have made the mark durable, and lose power before more is. Then 1, 4, 5 do
    not hear 2 and 3, nor these those, and all have power. full: their disks have no room for the mark."""
    world = opened(variant)
    for k in full:
        world.machine(k).is_full = True
    world.machine(1).propose(OTHERS)
    world.doomed = frozenset({2, 3})

    def lost(source: Machine, to: Machine, pdu: bytes) -> bool:
        return bool(number(world.machine(1))) and (source.station in (1, 4, 5)) != (to.station in (1, 4, 5))

    world.lost = lost
    if full and not variant:
        world.run(300 * MS)
    else:
        step(world, lambda: number(world.machine(1)) == 1, "station 1 commits")
    for k in (2, 3):
        world.machine(k).fail()
        world.machine(k).boot()
    world.traffic(3_000 * MS)
    return world


@rule("V1", "V2", "V3")
def test_who_has_a_mark_opens_nothing_under_the_former_configuration() -> None:
    world = cut_off_after_prepared()
    assert number(world.machine(1)) == 1 and world.machine(1).instance and world.machine(4).instance
    assert not world.machine(2).instance and not world.machine(3).instance
    world.lost = lambda source, to, pdu: False
    world.until(world.is_one)
    assert world.machine(2).engine.config.outside


@pytest.mark.parametrize("variant", ["number_not_durable", "opens_by_file", "mark_binds_nobody"])
@rule("V1", "V2", "V5")
def test_two_parts_where_a_station_forgets_or_ignores_what_it_has_durable(variant: str) -> None:
    with pytest.raises(Violation, match="two parts"):
        cut_off_after_prepared(variant)


def alone_with_a_mark(variant: str = "") -> World:
    """Station 1 alone has the mark of a configuration by which it is a quorum, when it does not hear the others any more."""
    world = opened(variant)
    world.machine(1).propose(ALONE)
    step(world, lambda: marked(world.machine(1)), "station 1 has the mark")
    world.island = frozenset({1})
    world.traffic(6_000 * MS)
    return world


@rule("V1", "V3", "V4")
def test_a_mark_alone_opens_nothing_without_a_quorum_of_the_former_configuration() -> None:
    world = alone_with_a_mark()
    assert not world.machine(1).instance
    assert {number(world.machine(k)) for k in (1, 2, 3)} <= {0} or world.is_one()
    world.island = frozenset()
    world.until(world.is_one)
    assert number(world.machine(1)) in (0, 1)


@rule("V3")
def test_two_parts_without_a_quorum_of_the_former_configuration() -> None:
    with pytest.raises(Violation, match="two parts"):
        alone_with_a_mark("no_old_quorum")


def two_attempts(variant: str = "") -> World:
    """Station 1 has the mark of a first attempt, at which all lost power, 3 that of a second one; neither was carried out. 2
    heard 3, which then said a proposal of the second that nobody heard, and lost power. 1 and 2 say one of the first, with the
    same number, and open; 2 loses power before more, 1 does not come back. 2 and 3 start."""
    world = World(1, VARIANTS[variant]() if variant else None, Options(3))
    one, two, three = (world.machine(k) for k in (1, 2, 3))
    for machine in (one, two, three):
        machine.boot()
    world.until(lambda: bool(one.instance and two.instance and three.instance))
    world.traffic(200 * MS)

    def fails_behind(machine: Machine, condition: Callable[[Stand], bool], *, written: bool) -> None:
        """Power fails at a write of the configuration, before or after it."""

        def durable(what: str, value: Any) -> None:
            ends = what == "stand" and condition(value)
            if ends and not written:
                raise PowerFails
            Machine.durable(machine, what, value)
            if ends:
                raise PowerFails

        machine.durable = durable  # type: ignore[method-assign]

    for machine in (two, three):
        fails_behind(machine, lambda stand: bool(stand.ballot), written=False)
    one.propose(replace(Options(3), heartbeat=7))
    step(world, lambda: marked(one) and not two.on and not three.on, "1 has a mark, and only 1")
    one.fail()
    for machine in (two, three):
        del machine.durable
        machine.boot()
    world.until(lambda: all(m.instance for m in (two, three)))
    world.traffic(300 * MS)
    assert not marked(two) and not marked(three), "nobody knows of it"
    world.lost = lambda source, to, pdu: source is three and marked(three)
    two.propose(replace(Options(3), heartbeat=9))
    step(world, lambda: marked(three) and not marked(two), "3 has a mark")
    two.fail()
    three.fail()
    before = three.disk["stand"]

    fails_behind(three, lambda stand: max(stand.promise, stand.ballot) > before.ballot, written=True)
    fails_behind(two, lambda stand: stand.number > 0, written=False)
    world.lost = lambda source, to, pdu: source is three and two.on and two.changing.joint is not None
    two.boot()
    three.boot()
    step(world, lambda: not three.on, "3 says a proposal", 5_000 * MS)
    world.lost = lambda source, to, pdu: False
    world.run(3_500 * MS)
    assert two.changing.joint is None, "it has heard no more of 3"
    one.boot()
    step(world, lambda: not two.on, "1 and 2 open, and 2 is about to commit", 20_000 * MS)
    one.fail()
    for machine in (two, three):
        del machine.durable
        machine.boot()
    return world


@rule("V1", "V3")
def test_two_attempts_that_were_not_carried_out() -> None:
    world = two_attempts()
    step(world, lambda: world.machine(2).instance and world.machine(3).instance, "2 and 3 open", 10_000 * MS)
    world.traffic(300 * MS)
    assert {world.machine(k).changing.stand.options for k in (2, 3)} == {replace(Options(3), heartbeat=7).packed()}
    world.machine(1).boot()
    world.until(lambda: len({world.machine(k).changing.stand for k in (1, 2, 3)}) == 1)


@rule("V3")
def test_a_mark_that_one_station_makes_alone_binds_another_one_for_ever() -> None:
    world = two_attempts("marks_at_once")
    world.run(30_000 * MS)
    assert not world.machine(2).instance and not world.machine(3).instance
    assert world.machine(2).changing.stand.ballot == world.machine(3).changing.stand.ballot
    assert world.machine(2).changing.stand.proposed != world.machine(3).changing.stand.proposed


def heard_by_one(variant: str = "") -> World:
    """What 5 says once it has the mark reaches 1 alone, and then nothing of 1 the others; 5 dies, 1 is cut off. The next roster
    is 1 alone."""
    world = opened(variant, Options(5))
    one, five = world.machine(1), world.machine(5)
    world.lost = lambda source, to, pdu: marked(five) and (source is one or (source is five and to is not one))
    one.propose(trim(Options(5), {1}))
    for _ in range(4_000):
        world.run(50 * US)
        if number(one):
            break
    five.fail()
    world.lost = lambda source, to, pdu: (source is one) != (to is one)
    world.traffic(4_000 * MS)
    return world


@rule("V1", "V2")
def test_what_counts_is_what_all_members_are_known_to_have() -> None:
    world = heard_by_one()
    assert number(world.machine(1)) == 0 and all(world.machine(k).instance for k in (2, 3, 4))
    with pytest.raises(Violation, match="two parts"):
        heard_by_one("judges_at_ordered")


def earlier_and_decided(variant: str = "") -> World:
    """A first attempt is given up. 5 is cut off then, and knows of it. A second one is carried out by 1, which is alone in the
    next roster; 2 and 3 have its mark, and hear 5."""
    world = opened(variant, Options(5))
    m = {k: world.machine(k) for k in range(1, 6)}
    m[1].propose(replace(Options(5), heartbeat=7))
    m[4].fail()
    world.traffic(1_500 * MS)
    assert m[5].changing.kept and number(m[5]) == 0
    world.lost = lambda source, to, pdu: (source is m[5]) != (to is m[5])
    world.until(lambda: tuple(m[1].engine.membership.members) == (1, 2, 3))
    world.traffic(300 * MS)
    m[1].propose(trim(Options(5), {1}))
    world.doomed = frozenset({2, 3})
    step(world, lambda: number(m[1]) == 1, "1 commits", 1_000 * MS)
    world.lost = lambda source, to, pdu: (source is m[1]) != (to is m[1])
    for k in (2, 3):
        m[k].fail()
    world.doomed = frozenset()
    for k in (2, 3):
        m[k].boot()
    world.traffic(5_000 * MS)
    return world


@rule("V4")
def test_an_instance_before_the_mark_removes_none() -> None:
    world = earlier_and_decided()
    assert world.machine(1).instance and not any(world.machine(k).instance for k in (2, 3, 5))
    with pytest.raises(Violation, match="two parts"):
        earlier_and_decided("gives_up_by_any_instance")


@rule("V5")
def test_a_later_configuration_of_another_history_is_named() -> None:
    changing = Changing(1, Stand(0, b"now"))
    changing.begun(5, (1, 2))
    (said,) = changing.hear(0, Claim(7, b"others"), 3)
    assert isinstance(said, Said) and said.warning and said.outcome is None
    assert said.text.startswith(
        "station 3 says that configuration 7 is in force; this station is in an instance of configuration 0"
    )
    assert changing.hear(1, Claim(7, b"others"), 3) == [], "not with each OPEN"
    assert changing.stand == Stand(0, b"now")


def given_up(by: str, options: Options, variant: str = "") -> World:
    """Station 3 has made its mark durable and loses power before it is heard again; 1 and 2 give the attempt up, and go on. by:
    a view, or a member that cannot take the options over."""
    world = opened(variant)
    one, two, three = (world.machine(k) for k in (1, 2, 3))
    for station in (4, 5):
        world.machine(station).fail()
    if by == "unable":
        two.changing._unfit = lambda options: "it cannot"
    one.propose(options)
    world.lost = lambda source, to, pdu: source is three and marked(three)
    step(world, lambda: marked(three), "3 has the mark", 2_000 * MS)
    three.fail()
    world.lost = lambda source, to, pdu: False
    two.changing._unfit = lambda options: ""
    world.until(lambda: one.engine.membership.members == two.engine.membership.members == (1, 2))
    world.traffic(500 * MS)
    assert any("given up" in text for text in one.said)
    assert three.disk["stand"].ballot and one.changing.instance > three.disk["stand"].ballot >> 32
    return world


@pytest.mark.parametrize("by", ["view", "unable"])
@rule("V4")
def test_what_was_given_up_stays_so_when_all_have_lost_power(by: str) -> None:
    world = given_up(by, replace(Options(3), heartbeat=7))
    machines = [world.machine(k) for k in (1, 2, 3)]
    for machine in machines[:2]:
        machine.fail()
    for machine in machines:
        machine.boot()
    world.until(lambda: all(m.instance and not marked(m) for m in machines), 10_000 * MS)
    world.traffic(300 * MS)
    assert {number(m) for m in machines} == {0}


@rule("V4")
def test_a_mark_that_was_given_up_keeps_no_quorum_closed() -> None:
    """3 was to be removed. 2 does not come back: 1 and 3 are a quorum of the configuration in force, and none of the other."""
    world = given_up("view", trim(Options(3), {1, 2}))
    one, two, three = (world.machine(k) for k in (1, 2, 3))
    one.fail()
    two.fail()
    one.boot()
    three.boot()
    world.until(lambda: bool(one.instance and three.instance), 10_000 * MS)
    assert (number(one), number(three), marked(three)) == (0, 0, False)


@rule("V4")
def test_who_forgets_what_it_gave_up_carries_it_out_or_opens_nothing() -> None:
    world = given_up("view", replace(Options(3), heartbeat=7), "forgets_what_it_gave_up")
    machines = [world.machine(k) for k in (1, 2, 3)]
    for machine in machines[:2]:
        machine.fail()
    for machine in machines:
        machine.boot()
    world.until(lambda: all(number(m) == 1 for m in machines), 10_000 * MS)
    world = given_up("view", trim(Options(3), {1, 2}), "forgets_what_it_gave_up")
    one, two, three = (world.machine(k) for k in (1, 2, 3))
    one.fail()
    two.fail()
    one.boot()
    three.boot()
    world.run(30_000 * MS)
    assert not one.instance and not three.instance


@rule("V3")
def test_others_are_rivals_again_once_the_configuration_is_decided() -> None:
    world = opened()
    machines = [world.machine(k) for k in (1, 2, 3)]
    for station in (4, 5):
        world.machine(station).fail()
    machines[0].propose(replace(Options(3), heartbeat=7))
    step(world, lambda: all(marked(m) for m in machines), "all have marks", 2_000 * MS)
    for machine in machines:
        machine.fail()
    for machine in machines:
        machine.boot()
    opening = machines[0].engine.opening
    other = OpenPdu(2, 5, 1500, None, 10, ~opening._config.fingerprint & 0xFFFFFFFF, 0, 1, False, "x", claim=Claim(1, b"others"))
    undecided = replace(other, claim=Claim(0, b"others"))
    assert opening.claims.is_change(undecided), "a quorum of both is asked for"
    world.until(lambda: all(number(m) == 1 and m.instance and not m.changing.joint for m in machines))
    assert not machines[0].engine.opening.claims.is_change(other)


@pytest.mark.parametrize("number", [1, 3])
@rule("V1")
def test_a_member_at_another_configuration_ends_the_attempt(number: int) -> None:
    """It would say nothing, and all would hold their programs."""
    changing = Changing(1, Stand(1, b"now"))
    changing.begun(5, (1, 2))
    asked = ConfigMessage(Say.CHANGE, number, 0, b"new").packed()
    (told,) = changing.on_message(0, 77, 2, asked)
    assert isinstance(told, Tell)
    said = ConfigMessage.read(told.data)
    assert said is not None and (said.say, said.number, said.ballot) == (Say.UNABLE, number, (5 << 32) + 1)
    assert not changing.under_way


@rule("V1")
def test_an_attempt_that_takes_too_long_ends_and_its_ballot_is_of_its_instance() -> None:
    """A sender's clock may not have jumped yet, behind the vote that has begun the instance."""
    changing = Changing(1, Stand(0, b"now"))
    changing.begun(5, (1, 2))
    hold, keep, prepared = changing.on_message(0, 4 << 32, 2, ConfigMessage(Say.CHANGE, 1, 0, b"new").packed())
    assert hold == Hold(True) and isinstance(keep, Keep) and isinstance(prepared, Tell)
    assert keep.stand.ballot == (5 << 32) + 1
    assert changing.on_time(ATTEMPT_NS - 1) == []
    (told,) = changing.on_time(ATTEMPT_NS)
    assert isinstance(told, Tell) and changing.on_time(ATTEMPT_NS + 1) == []
    effects = changing.on_message(ATTEMPT_NS, 0, 1, told.data)
    assert Hold(False) in effects and not changing.stand.ballot


@rule("V3")
def test_who_has_said_a_proposal_marks_nothing_at_a_lower_ballot() -> None:
    changing = Changing(1, Stand(0, b"now", 3 << 32, b"new", 7 << 32))
    changing.hear(0, Claim(0, b"now", kept=4))
    assert changing.joint is None and changing.stand.promise == 7 << 32
    changing.begun(5, (1, 2))
    _, told = changing.on_message(0, 5 << 32, 2, ConfigMessage(Say.CHANGE, 1, 0, b"other").packed())
    assert isinstance(told, Tell) and told.data[0] == Say.UNABLE and not changing.stand.ballot


@rule("V5")
def test_what_a_frame_says_of_configurations_is_believed_within_bounds() -> None:
    def unfit(options: bytes) -> str:
        return "\ud800" if options == b"bad" else ""

    changing = Changing(1, Stand(0, b"now"), unfit=unfit)
    (said,) = changing.hear(0, Claim(AHEAD_MAX + 1, b"new"))
    assert isinstance(said, Said) and changing.number == 0
    assert changing.hear(1, Claim(AHEAD_MAX + 1, b"new")) == [], "not again and again"
    changing.begun(5, (1, 2))
    _, told = changing.on_message(0, 0, 2, ConfigMessage(Say.CHANGE, 1, 0, b"bad").packed())
    assert isinstance(told, Tell), "whatever the reason says"
    for claim, is_sensible in ((Claim(2**32 - 1, b"x"), True), (Claim(2**32 - 1, b"x", 9, b"y"), False)):  # nothing follows that
        pdu = OpenPdu(1, 1, 1500, None, 10, 7, 0, 1, False, "x", claim=claim)
        assert (decode_open(encode_open(pdu, cluster=1, stations=3, checksum=lambda data: data), 3) is not None) == is_sensible


@rule("V3", "V5")
def test_who_asks_to_be_let_in_takes_the_configuration_over_first() -> None:
    """All lose power with their marks; two go on, and decide. The third asks them before it has heard an OPEN of theirs, and the
    configurations do not differ in who is of the cluster, so that its own looks like theirs."""
    world = opened()
    for k in (4, 5):  # they would tell it
        world.machine(k).fail()
    world.machine(1).propose(replace(Options(3), heartbeat=7))
    world.doomed = frozenset({1, 2, 3})
    three = world.machine(3)
    step(world, lambda: not any(world.machine(k).on for k in (1, 2, 3)), "all lose power")
    world.doomed = frozenset()
    world.lost = lambda source, to, pdu: three in (source, to)
    for k in (1, 2, 3):
        world.machine(k).boot()
    world.until(lambda: number(world.machine(1)) == number(world.machine(2)) == 1)
    world.traffic(2_000 * MS)
    assert number(three) == 0 and three.changing.joint is not None
    world.lost = lambda source, to, pdu: to is three and pdu[HEADER.offset("kind")] == Kind.OPEN and not three.instance
    world.run(3_000 * MS)
    world.lost = lambda source, to, pdu: False
    world.until(lambda: bool(three.instance) and number(three) == 1 and three.changing.joint is None)


@rule("V1")
def test_two_changes_at_once_are_one_after_the_other() -> None:
    """Both are proposed before either is known: one is carried out, the other one refused, at every station alike."""
    world = opened()
    first, second = replace(Options(3), heartbeat=7), trim(Options(4), {1, 2, 3, 4})
    assert world.machine(1).propose(first) and world.machine(2).propose(second)
    world.until(lambda: all(number(world.machine(k)) == 1 for k in (1, 2, 3)))
    world.traffic(500 * MS)
    assert len({world.machine(k).changing.stand for k in (1, 2, 3)}) == 1
    said = [sum("refused" in text for text in world.machine(k).said) for k in (1, 2, 3)]
    assert said == [1, 1, 1]


@rule("V1")
def test_a_member_that_goes_ends_the_attempt_at_all_members() -> None:
    world = opened()
    world.machine(1).propose(replace(Options(3), heartbeat=7))
    world.machine(3).fail()
    world.traffic(1_500 * MS)
    assert number(world.machine(1)) == number(world.machine(2)) == 0
    assert all(any("given up: members have come or gone" in text for text in world.machine(k).said) for k in (1, 2))
    assert not marked(world.machine(1)) and world.machine(1).instance == world.machine(2).instance
    world.machine(3).boot()
    world.until(world.is_one)


@pytest.mark.parametrize("decided", [False, True])
@rule("V1", "V2", "V5")
def test_the_one_that_has_asked_for_a_change_dies(decided: bool) -> None:
    """When it alone knows that the change is decided, or when its mark alone is durable: nobody waits for it, and when it is back
    all have the same configuration."""
    world = opened()
    asker = world.machine(1)
    asker.propose(replace(Options(3), heartbeat=7))
    step(world, lambda: number(asker) == 1 if decided else marked(asker), "as far as that")
    asker.fail()
    world.until(lambda: all(world.machine(k).instance for k in (2, 3)))
    world.until(lambda: tuple(world.machine(2).engine.membership.members) == (2, 3))
    world.traffic(500 * MS)
    assert number(world.machine(2)) == number(world.machine(3)) and (number(world.machine(2)) == 1 or not decided)
    asker.boot()
    world.until(world.is_one)


@rule("V5", "V6")
def test_a_station_that_was_removed_while_it_was_off_comes_back() -> None:
    """By its disk and its file it is a member of a configuration of which no quorum is left: it opens nothing, alone or with
    another one that was away, disturbs no instance, and waits when it has heard of the later configuration."""
    world = opened(first=Options(5))
    for k in (4, 5):
        world.machine(k).fail()
    world.until(lambda: tuple(world.machine(1).engine.membership.members) == (1, 2, 3))
    for n in (4, 3):
        world.machine(1).propose(Options(n))
        world.until(lambda n=n: number(world.machine(1)) == 5 - n and bool(world.machine(1).instance))  # type: ignore[misc]
    world.island = frozenset({4, 5})
    for k in (4, 5):
        world.machine(k).boot()
    before = world.machine(1).instance
    world.traffic(3_000 * MS)
    assert not world.machine(4).instance and not world.machine(5).instance
    world.island = frozenset()
    world.until(world.is_one)
    assert [world.machine(k).engine.config.outside for k in (3, 4, 5)] == [False, True, True]
    assert world.machine(1).instance == before


@rule("V2")
def test_a_change_without_faults_loses_nothing_and_leaves_nothing_undecided() -> None:
    """From three to five and back: all that was taken is delivered, in lines that do not overlap."""
    world = opened()
    for target in ({1, 2, 3, 4}, {1, 2, 3, 4, 5}, {1, 2, 3, 5}, {1, 2, 3}):
        before = number(world.machine(1))
        for _ in range(20):
            for machine in world.stations:
                machine.offer()
            world.run(MS)
        world.machine(1).propose(trim(Options(5), target))
        world.until(lambda before=before: world.is_one() and number(world.machine(1)) > before)  # type: ignore[misc]
        world.traffic(100 * MS)
    world.run(500 * MS)
    assert world.checks.confirmed == len(world.checks.begun) > 100


def sends_at_once(variant: str = "") -> World:
    """Programs want to send all the time while one more station comes in."""
    world = opened(variant)
    world.machine(1).propose(trim(Options(4), {1, 2, 3, 4}))
    for _ in range(2_000):
        for machine in world.stations:
            machine.offer()
        world.run(MS)
        if any(world.checks.whole.values()) and world.checks.confirmed == len(world.checks.begun):
            break
    return world


@rule("V1")
def test_a_member_whose_disk_is_full_ends_the_attempt_and_stays() -> None:
    world = opened()
    two = world.machine(2)
    two.is_full = True
    before = [world.machine(k).instance for k in (1, 2, 3)]
    world.machine(1).propose(replace(Options(3), heartbeat=7))
    world.traffic(500 * MS)
    assert [world.machine(k).instance for k in (1, 2, 3)] == before and all(m.on for m in world.stations)
    assert all(number(world.machine(k)) == 0 and not marked(world.machine(k)) for k in (1, 2, 3))
    assert all(any("given up: station 2: no space left" in text for text in world.machine(k).said) for k in (1, 2, 3))
    world.run(300 * MS)
    assert world.checks.confirmed == len(world.checks.begun) > 20
    two.is_full = False
    world.machine(1).propose(replace(Options(3), heartbeat=7))
    world.until(lambda: world.is_one() and number(two) == 1)


@rule("V1")
def test_two_parts_where_members_without_a_mark_say_that_they_are_ready() -> None:
    with pytest.raises(Violation, match="two parts"):
        cut_off_after_prepared("ready_all_the_same", full=(2, 3))
    world = cut_off_after_prepared(full=(2, 3))
    assert number(world.machine(1)) == 0, "nobody commits"


@rule("V7")
def test_what_is_sent_in_a_changed_configuration_reaches_the_programs_of_all_members() -> None:
    world = sends_at_once()
    assert number(world.machine(4)) == 1
    assert any(world.checks.whole.values())


@rule("V7")
def test_programs_that_send_before_the_others_are_in_their_groups() -> None:
    with pytest.raises(Violation, match="does not reach"):
        sends_at_once("gathers_nobody")


def with_a_mute_member(variant: str = "") -> tuple[World, int]:
    """Station 2 puts nothing into a group and never says READY in the changed configuration; and for how long programs waited,
    ns."""
    world = opened(variant)
    world.machine(2).is_mute = True
    world.machine(1).propose(trim(Options(4), {1, 2, 3, 4}))
    world.until(lambda: all(world.machine(k).instance and number(world.machine(k)) for k in (1, 2, 3, 4)))
    since, confirmed = world.now, world.checks.confirmed
    while world.checks.confirmed == confirmed and world.now - since < 3 * GATHER_NS:
        for machine in world.stations:
            machine.offer()
        world.run(5 * MS)
    return world, world.now - since


@rule("V7")
def test_a_member_that_never_becomes_ready_holds_programs_up_for_some_seconds_only() -> None:
    """Nobody is removed for it, and nothing that was taken is lost; its own programs go on as well."""
    world, waited = with_a_mute_member()
    assert GATHER_NS * 0.9 < waited < GATHER_NS * 1.2
    world.traffic(300 * MS)
    world.run(300 * MS)
    assert world.is_one() and world.checks.confirmed == len(world.checks.begun) > 20
    assert {int(data.split()[0]) for data in world.checks.begun} >= {1, 2, 3, 4}


@rule("V7")
def test_a_member_that_never_becomes_ready_would_hold_programs_up_for_ever() -> None:
    world, waited = with_a_mute_member("waits_for_all")
    assert waited >= 3 * GATHER_NS and world.is_one()


@rule("V7")
def test_a_member_that_dies_before_it_is_ready_is_not_waited_for() -> None:
    """Nor is a newcomer that the instance lets in meanwhile."""
    world = opened(first=Options(5))
    world.machine(2).is_mute = True
    world.machine(1).propose(replace(Options(5), heartbeat=7))
    world.until(lambda: all(number(world.machine(k)) and world.machine(k).instance for k in range(1, 6)))
    two = world.machine(2)
    two.fail()
    two.is_mute = False
    two.boot()
    since, confirmed = world.now, world.checks.confirmed
    while world.checks.confirmed == confirmed and world.now - since < 3 * GATHER_NS:
        for machine in world.stations:
            machine.offer()
        world.run(5 * MS)
    assert world.now - since < GATHER_NS * 0.8
    world.until(world.is_one)
    world.traffic(200 * MS)


@rule("V7")
def test_a_member_that_never_says_ready_is_waited_for_a_limited_time_and_one_that_goes_not_at_all() -> None:
    gathering = Gathering()
    gathering.begin(7, (1, 2, 3))
    gathering.ready(1)
    gathering.ready(9)
    gathering.members((1, 3))
    assert gathering.holds and not gathering.look(7 + GATHER_NS - 1) and gathering.holds
    assert gathering.look(7 + GATHER_NS) == {3} and not gathering.holds
    assert not gathering.look(8 + GATHER_NS), "once"
    gathering.begin(8, (1, 2))
    gathering.ready(1)
    gathering.members((1,))
    assert not gathering.holds


@rule("V3", "M8")
def test_a_roster_without_a_former_member_does_not_begin_again_with_used_numbers() -> None:
    world = opened()
    last = world.machine(1).instance
    world.machine(1).propose(trim(Options(4), {4}))
    world.until(lambda: bool(world.machine(4).instance))
    assert world.machine(4).instance > last


@rule("V5")
def test_one_frame_ends_no_instance() -> None:
    """An OPEN with a later configuration, from nowhere: members stay; so they do with its number at another one."""
    world = opened()
    before = [world.machine(k).instance for k in (1, 2, 3)]
    changing = world.machine(1).changing
    assert all(isinstance(effect, Said) for effect in changing.hear(world.now, Claim(7, b'{"stations": 1}')))
    assert not changing.hear(world.now, Claim(0, changing.stand.options, 1 << 32, b'{"stations": 1}'))
    world.traffic(500 * MS)
    assert [world.machine(k).instance for k in (1, 2, 3)] == before


def test_frames_of_a_cluster_that_was_never_changed_have_no_claim() -> None:
    world = opened(first=Options(5))
    assert all(machine.changing.claim() is None for machine in world.stations)
    opens = [frame for frame in world.frames if frame[HEADER.offset("kind")] == Kind.OPEN]
    assert opens and all(len(frame) <= open_bytes(5, len("host1")) for frame in opens)


@pytest.mark.parametrize("seed", [1797100001, 1797100002, 1797100003])
@rule("V1", "V2", "V3", "V4", "V5", "V6")
def test_a_storm(seed: int) -> None:
    assert simulate(seed).checks.options
