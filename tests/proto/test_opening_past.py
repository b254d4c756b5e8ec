"""What an OPEN tells of the instance before, and what must not be concluded from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from zenjun.proto.opening import PATIENCE_WINDOWS
from zenjun.proto.openpdu import BY_VOTES, OpenPdu, OpenProposal, Past, encode_open
from zenjun.proto.outcomes import Outcome, Recovering
from zenjun.proto.settling import KEPT_MAX, WITHOUT_MAX
from zenjun.proto.wire import view_hash

from ..virtual.segment import MS
from .test_opening import INTERVAL, START, WINDOW, Station, encoded, no_checksum, ready


@pytest.mark.parametrize("by_votes", [False, True])
def test_an_instance_that_was_voted_for_is_not_the_one_that_was_to_be_opened(by_votes: bool) -> None:
    """Station 3 has issued a proposal that nobody agrees to. The others have opened the number before without it, and then voted
    it in: that instance has the number and the members of the proposal, and they have left it again. Whether their past began by
    votes is what tells one from the other (profile joining, seed 8100002)."""
    three = Station(3, 3)
    three.boot_up(START)
    now = START
    for _ in range(200):
        now += 10 * MS
        for other in (1, 2):
            pdu = OpenPdu(other, 1, 1500, None, 39, three.fingerprint, 10**6, other, False, "x")
            three.carry_out(three.opening.on_pdu(now, encoded(pdu), bytes(6)), now)
        three.carry_out(three.opening.on_timeout(now), now)
        if three.opening.issued:
            break
    assert three.opening.issued == 40
    view = view_hash(40, (1, 1, three.opening.incarnation))
    past = Past(view, 7 | (BY_VOTES if by_votes else 0))
    pdu = OpenPdu(1, 2, 1500, None, 40, three.fingerprint, 10**6, 1, False, "x", past=past)
    three.carry_out(three.opening.on_pdu(now + MS, encoded(pdu), bytes(6)), now + MS)
    assert bool(three.instance) == (not by_votes)


def test_a_proposal_that_is_taken_from_a_colleague_is_kept() -> None:
    """Not everybody hears everybody: station 1 has left 2 out, and then takes a proposal of 3 that has 2 in it. If its own set
    overtook that at the next look, four stations that do so in turn never agree (seed 9501636: for 17 s in a whole network)."""
    one = Station(1, 4)
    one.boot_up(START)
    one.opening._quorum = lambda stations: len(set(stations)) >= 3
    now = START
    says: dict[int, OpenProposal | None] = dict.fromkeys((2, 3, 4))
    latest: list[tuple[int, int]] = []  # (time, number) whenever another proposal was issued

    def run(duration: int) -> None:
        nonlocal now
        for _ in range(duration // INTERVAL):
            now += INTERVAL
            for src, proposal in says.items():
                pdu = OpenPdu(
                    src, 1, 1500, proposal, proposal.instance if proposal else 0, one.fingerprint, 10**6, src, False, "x"
                )
                one.carry_out(
                    one.opening.on_pdu(now, encode_open(pdu, cluster=1, stations=4, checksum=no_checksum), bytes(6)), now
                )
            one.carry_out(one.opening.on_timeout(now), now)
            if one.opening.issued != (latest[-1][1] if latest else 0):
                latest.append((now, one.opening.issued))

    run(2 * WINDOW)
    assert one.opening.issued == 1
    says[2] = OpenProposal(2, ((2, 1), (3, 1), (4, 1)))
    says[3] = says[4] = OpenProposal(1, ((1, 1), (2, 1), (3, 1), (4, 1)))
    run((WITHOUT_MAX * PATIENCE_WINDOWS + 2) * WINDOW)
    left = one.opening.latest
    assert left is not None and [station for station, _ in left.members] == [1, 3, 4], "station 2 has been left out"
    number = latest[-1][1] + 1
    says[3] = OpenProposal(number, ((1, 1), (2, 1), (3, 1)))
    says[4] = OpenProposal(1, ((1, 1), (3, 1), (4, 1)))
    run(6 * WINDOW)
    taken = next(k for k, (_, issued) in enumerate(latest) if issued == number)
    assert taken == len(latest) - 1 or latest[taken + 1][0] - latest[taken][0] >= PATIENCE_WINDOWS * WINDOW, latest


def settle(
    says: Callable[[int], dict[int, OpenProposal | None]], windows: int, required: frozenset[int] = frozenset(), n: int = 4
) -> list[OpenProposal]:
    """What station 1 of four (or n; quorum 3) issues while the others say this in each window."""
    one = Station(1, n)
    one.boot_up(START)
    one.opening._quorum = lambda stations: len(found := set(stations)) >= 3 and found >= required
    now = START
    issued: list[OpenProposal] = []
    for k in range(windows * WINDOW // INTERVAL):
        now += INTERVAL
        for src, proposal in says(k * INTERVAL // WINDOW).items():
            number = proposal.instance if proposal else 0
            pdu = OpenPdu(src, 1, 1500, proposal, number, one.fingerprint, 10**6, src, False, "x")
            one.carry_out(one.opening.on_pdu(now, encode_open(pdu, cluster=1, stations=n, checksum=no_checksum), bytes(6)), now)
        one.carry_out(one.opening.on_timeout(now), now)
        latest = one.opening.latest
        if latest is not None and (not issued or issued[-1] != latest):
            issued.append(latest)
    return issued


EVERYBODY = ((1, 1), (2, 1), (3, 1), (4, 1))


def they_propose_all(window: int) -> dict[int, OpenProposal | None]:
    return {2: OpenProposal(1 + 4 * (window > 2), EVERYBODY), 3: OpenProposal(1 + 4 * (window > 2), EVERYBODY)}


def test_the_largest_set_is_taken() -> None:
    """4 does not reach station 1. What 2 and 3 propose has it in, and one of them hears all four."""
    issued = settle(they_propose_all, 3 + PATIENCE_WINDOWS)
    assert [len(p.members) for p in issued] == [3, 4] and issued[-1] == OpenProposal(5, EVERYBODY)


def test_the_largest_set_is_proposed_anew_under_a_number_that_all_can_take() -> None:
    """Station 1 hears all, 2 and 3 do not hear each other, and have issued higher numbers for less."""
    two, three = (*EVERYBODY[:2], EVERYBODY[3]), (EVERYBODY[0], *EVERYBODY[2:])

    def says(window: int) -> dict[int, OpenProposal | None]:
        return {
            2: OpenProposal(1 + 6 * (window > 2), two),
            3: OpenProposal(1 + 7 * (window > 2), three),
            4: OpenProposal(1, EVERYBODY),
        }

    issued = settle(says, 3 + PATIENCE_WINDOWS)
    assert issued[-1] == OpenProposal(9, EVERYBODY)


def test_a_set_with_one_who_has_gone_is_not_kept_for_ever() -> None:
    """2 and 3 propose a set with 4, who is not there any more, and station 1 has taken it from them: each could keep it because
    the others do (three of 300 seeds never opened)."""
    issued = settle(they_propose_all, 3 + (KEPT_MAX + 3) * PATIENCE_WINDOWS)
    assert [len(p.members) for p in issued] == [3, 4, 3], issued


def test_a_member_that_never_follows_is_left_out() -> None:
    """4 went deaf after it had issued a proposal, and repeats it for ever: it names station 1, and is no answer to what 1 issues.
    Three of four hear each other and waited for it without end."""

    def says(window: int) -> dict[int, OpenProposal | None]:
        return {2: OpenProposal(2, EVERYBODY), 3: OpenProposal(2, EVERYBODY), 4: OpenProposal(1, EVERYBODY)}

    issued = settle(says, 3 + (WITHOUT_MAX + 2) * PATIENCE_WINDOWS)
    assert [k for k, _ in issued[-1].members] == [1, 2, 3]


def test_the_own_set_counts_only_if_it_has_quorum() -> None:
    """Station 4 is required, and station 1 hears it no more: its own set of four may not open, and hid a smaller one that may."""
    all_five = (*EVERYBODY, (5, 1))

    def says(window: int) -> dict[int, OpenProposal | None]:
        if window > 3:
            smaller = OpenProposal(9, (EVERYBODY[0], EVERYBODY[1], EVERYBODY[3]))
            return {2: smaller, 3: OpenProposal(1, all_five), 5: OpenProposal(1, all_five)}
        return {2: None, 3: None, 4: None, 5: None}

    issued = settle(says, 5 + 2 * PATIENCE_WINDOWS, frozenset({4}), n=5)
    assert issued[-1].instance == 9


def test_what_a_station_brings_after_it_has_agreed() -> None:
    """To the same set it says the same again. To another one it brings what the proposal would have made it deliver: the others
    may have started that (bus seed 35005779, where it went on alone with less)."""
    one, now = ready(1, 3)
    one.opening._quorum = lambda stations: 1 in set(stations)
    one.opening.past = Past(77, 20)
    one.instances.append(OpenProposal(9, ((1, 1), (2, 1), (3, 1))))
    one.opening._bind = lambda past, pasts: Past(past.view, max(reached for _, _, reached in pasts))

    def hear(*stations: int) -> None:
        for src in stations:
            pdu = OpenPdu(src, 1, 1500, None, 0, 7, 1000, src, False, "x", past=Past(77, 20 + src))
            one.carry_out(one.opening.on_pdu(now, encoded(pdu), bytes(6)))
        one.carry_out(one.opening.on_timeout(now))

    hear(2, 3)
    first = one.opening.latest
    assert first is not None and first.pasts == ((1, 77, 20), (2, 77, 22), (3, 77, 23))
    assert one.opening.past == Past(77, 23)
    now += INTERVAL
    hear(2, 3)
    assert one.opening.latest == first, "the same set, the same words"
    for _ in range(2 * WINDOW // INTERVAL):
        now += INTERVAL
        hear()
    assert one.opening.instance is not None and one.opening.instance.pasts == ((1, 77, 23),)


def test_a_member_that_has_started_elsewhere_with_a_later_life_has_restarted() -> None:
    """Switched seed 1795932130: station 1 had stood still while 3 began a new life, asked to be let in, and opened another
    instance. Of its words station 1 reads the first and the last; the last one proves the restart as well."""
    one, now = ready(1, 3)
    members = ((1, 1), (2, 1), (3, 1))
    for src in (2, 3):
        pdu = OpenPdu(src, 1, 1500, OpenProposal(1, members), 1, 7, 1000, src, False, "x")
        one.carry_out(one.opening.on_pdu(now, encoded(pdu), bytes(6)))
    one.carry_out(one.opening.on_timeout(now))
    assert one.instance == OpenProposal(1, members)

    def outcomes(life: int) -> list[Outcome]:
        pdu = OpenPdu(3, life, 1500, OpenProposal(2, ((2, 1), (3, life))), 2, 7, 1000, 3, True, "x")
        return [e for e in one.opening.on_pdu(now, encoded(pdu), bytes(6)) if isinstance(e, Recovering)]

    assert outcomes(1) == []
    assert outcomes(2) == [Recovering(3, 2, 1500)]
