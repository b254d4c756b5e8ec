"""The membership agreement by itself, against a core that only writes down what it is asked for.

What happens between several stations is the simulation's business (tests/sim) and the figures' of the paper (tests/paper).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zenjun.proto.core import Commit, Peer, Vote, add_checksum
from zenjun.proto.effects import Changed, Effect, Persist, Send
from zenjun.proto.openpdu import INCARNATION_MAX, pack, unpack
from zenjun.proto.outcomes import InstanceOver, Outcome
from zenjun.proto.peerstate import MOVES, TRANSITIONS, Cause, PeerState
from zenjun.proto.votes import ChangeProposal, Quorum, bits, decode_proposal, encode_proposal, stations_of, takes_in
from zenjun.proto.wire import HEADER, PROPOSAL, VERSION, Kind, view_hash

from tests.sim import broken

from ..rules import rule

MS = 1_000_000
FAIL, ADOPT, GIVE_UP = 400 * MS, 300 * MS, 2_000 * MS
N = 4


class Ledger:
    """A core as the agreement sees it: what was asked, and what the test says of the streams."""

    def __init__(self) -> None:
        self.req = [0] * N
        self.seq, self.clock = 10, 100
        self.sent: list[tuple[int, bytes]] = []
        self.limits: dict[int, int] = {}
        self.waits: dict[int, int] = {}
        self.commits: list[Commit] = []
        self.state = (0, 0)
        self.blocked = self.known = self.watched = False
        self.room = self.ready = True
        self.beats = 0

    def peer(self, index: int) -> Peer:
        return Peer(**{**dict.fromkeys(Peer._fields, 0), "mac": b"", "req": self.req[index]})  # type: ignore[arg-type]

    def propose(self, now: int, kind: int, payload: bytes) -> tuple[int, int, bytes] | None:
        if not self.room:
            return None
        self.seq += 1
        self.clock += 1
        self.sent.append((kind, payload))
        return self.seq, self.clock, pdu_of(1, kind, payload, self.seq, self.clock, 7)

    def limit(self, now: int, index: int, limit: int | None) -> None:
        self.limits.pop(index, None) if limit is None else self.limits.__setitem__(index, limit)

    def wait_for(self, index: int, clock: int | None, frame_max: int = 0) -> None:
        self.waits.pop(index, None) if clock is None else self.waits.__setitem__(index, clock)

    def all_have(self, stations: int, seqs: Mapping[int, int]) -> bool:
        return self.known

    def report_progress(self, yes: bool) -> None:
        self.watched = yes

    def commit(self, now: int, change: Commit) -> bool:
        if self.ready:
            self.commits.append(change)
        return self.ready

    def set_state(self, state: int, trans: int) -> None:
        self.state = (state, trans)

    def block(self, yes: bool) -> None:
        self.blocked = yes

    def heartbeat(self, now: int, flags: int = 0) -> None:
        self.beats += 1


def pdu_of(station: int, kind: int, payload: bytes, seq: int, clock: int, instance: int) -> bytes:
    header = pack(
        HEADER, cluster=1, version=VERSION, kind=kind, stations=N, src=station, length=len(payload), incarnation=station,
        instance=instance, seq=seq, clock=clock, frame_max=1500,
    )  # fmt: skip
    return add_checksum(header + bytes(4 * N) + payload)


class One:
    """Station 1 of four, in instance 7 with all of them (incarnation = number)."""

    def __init__(self, quorum: Quorum | None = None, faults: frozenset[str] = frozenset()) -> None:
        self.core = Ledger()
        self.stored: list[int] = []
        self.m = broken.membership(faults)(
            stations=N, station=1, quorum=quorum or Quorum(N, 3), fail_timeout_ns=FAIL, adopt_timeout_ns=ADOPT,
            give_up_timeout_ns=GIVE_UP, frame_max_least=576, streams=self.core, promise=self.promise,
        )  # fmt: skip
        self.m.begin(0, 7, (1, 2, 3, 4))

    def promise(self, instance: int) -> list[Effect]:
        self.stored.append(instance)
        return [Persist(1, instance)]

    def vote(
        self,
        station: int,
        proposal: ChangeProposal,
        *,
        seq: int = 5,
        clock: int = 200,
        instance: int = 7,
        now: int = 0,
        sure: int = 0,
    ) -> list[Outcome]:
        kind = Kind.STOP if proposal.stop else Kind.RCV_ACK
        pdu = pdu_of(station, kind, encode_proposal(proposal, state=sure, trans=0), seq, clock, instance)
        return self.m.on_votes(now, [Vote(station - 1, kind, instance, seq, clock, pdu)])

    def word(self) -> str:
        return " ".join(state.name for _, state in sorted(self.m.peer_states.items()))

    def last(self) -> ChangeProposal:
        kind, payload = self.core.sent[-1]
        proposal = decode_proposal(pdu_of(1, kind, payload, 1, 1, 7), kind, N)
        assert proposal is not None
        return proposal


def only(outcomes: list[Outcome], kind: type[Any]) -> Any:
    found = [o for o in outcomes if isinstance(o, kind)]
    assert len(found) == 1, outcomes
    return found[0]


STOP_4 = ChangeProposal(True, (1, 2, 3), ((4, 0),))


# ---- the table


def test_transitions_are_total_and_moves_are_what_moves() -> None:
    assert set(TRANSITIONS) == set(product(PeerState, Cause))
    assert {k for k, to in TRANSITIONS.items() if to is not k[0]} <= set(MOVES)


def test_bits_of_the_peer_states() -> None:
    """state: held to be stopped; trans: being agreed (DOP protocol, section 3)."""
    assert {x.name: (x.state, x.trans) for x in PeerState} == {
        "A": (False, False), "AAS": (False, False), "SA": (False, True),
        "S": (True, False), "SSA": (True, False), "AS": (True, True),
    }  # fmt: skip


@given(st.sets(st.integers(1, 64)))
def test_bitmaps(stations: set[int]) -> None:
    assert stations_of(bits(stations)) == tuple(sorted(stations))


# ---- votes on the wire


@st.composite
def proposals(draw: st.DrawFn) -> ChangeProposal:
    changed = draw(st.sets(st.integers(1, N), min_size=1, max_size=N - 1))
    rest = sorted(set(range(1, N + 1)) - changed)
    kept = draw(st.sets(st.sampled_from(rest), min_size=1))
    stop = draw(st.booleans())
    values = tuple((k, draw(st.integers(0 if stop else 1, INCARNATION_MAX))) for k in sorted(changed))
    return ChangeProposal(stop, tuple(sorted(kept if stop else kept | changed)), values)


@given(proposals(), st.integers(0, 2**N - 1), st.integers(0, 2**N - 1))
def test_votes_survive_the_wire(proposal: ChangeProposal, state: int, trans: int) -> None:
    kind = Kind.STOP if proposal.stop else Kind.RCV_ACK
    payload = encode_proposal(proposal, state=state, trans=trans)
    assert decode_proposal(pdu_of(2, kind, payload, 1, 1, 1), kind, N) == proposal


@given(st.binary(max_size=300), st.sampled_from((Kind.STOP, Kind.STOP_ACK, Kind.RCV_ACK)))
def test_decoding_votes_is_total(data: bytes, kind: Kind) -> None:
    decode_proposal(data, kind, N)
    decode_proposal(pdu_of(2, kind, data, 1, 1, 1), kind, N)


def test_senseless_votes_are_nothing() -> None:
    for stop, members, changes in (
        (False, (1, 4), ((1, 5), (4, 5))),  # nobody votes
        (False, (1, 4), ((4, 0),)),  # a life that is none
        (True, (1, 2, 4), ((4, 0),)),  # removed and kept
        (False, (1, 2), ((4, 9),)),  # let in, and not a member
        (True, (), ((4, 0),)),
        (True, (1, 2), ()),
    ):
        kind = Kind.STOP if stop else Kind.RCV_ACK
        payload = encode_proposal(ChangeProposal(stop, members, changes), state=0, trans=0)
        assert decode_proposal(pdu_of(2, kind, payload, 1, 1, 1), kind, N) is None


# ---- quorum


@rule("M3")
def test_quorums_share_a_station() -> None:
    """Majority, a larger number, and a number below it with a required station: no two disjoint sets of four have any of them."""
    sets = [set(c) for k in range(1, 5) for c in combinations(range(1, 5), k)]
    for quorum in (Quorum(4, 3), Quorum(4, 4), Quorum(4, 1, (2,)), Quorum(4, 2, (1, 3))):
        good = [s for s in sets if quorum(s)]
        assert good and all(a & b for a in good for b in good), quorum


@rule("M3")
def test_two_stations_with_a_casting_vote() -> None:
    quorum = Quorum(2, 1, (1,))
    assert quorum((1,)) and quorum((1, 2)) and not quorum((2,))


# ---- stop


@rule("M1", "M2")
def test_a_stop_is_closed_voted_for_and_carried_out_when_everybody_has_every_vote() -> None:
    one = One()
    one.core.req[3] = 9
    stop = ChangeProposal(True, (1, 2, 3), ((4, 9),))
    effects = one.m.suspect(MS, (4, "silent"))
    assert one.word() == "A A A AS" and one.core.limits == {3: 9} and one.core.state == (8, 8)
    assert effects == [Persist(1, 8)] and one.last() == stop and one.core.sent[-1][0] == Kind.STOP
    assert one.vote(2, stop, clock=300) == []
    assert one.vote(3, stop, clock=250) == [] and not one.core.commits, "complete, but perhaps somebody lacks a vote"
    one.core.known = True
    changed = only(one.m.on_progress(2 * MS), Changed)
    assert changed == Changed(8, (1, 2, 3, 0), (), (4,))
    commit = one.core.commits[0]
    assert (commit.place_clock, commit.place_src) == (300, 1), "right after the last vote"
    assert commit.view == view_hash(8, (1, 2, 3, 0)) and commit.vote_seq == {0: 11, 1: 5, 2: 5}
    assert one.word() == "A A A S" and one.core.state == (8, 0) and one.m.members == (1, 2, 3)
    assert not one.m.busy and one.m.next_deadline_ns() is None


@rule("M8")
@pytest.mark.parametrize(("issued", "rule", "leaves"), [(7, "", False), (8, "", True), (8, "reuse_issued", False)])
def test_no_vote_for_a_number_that_was_issued_for_an_opening(issued: int, rule: str, leaves: bool) -> None:
    """Rule 8. It had agreed to open instance 8 with others, and then started 7 after all, because a member of that had: the
    others may start 8 yet. Rather than vote for another instance 8 it goes on with a new life."""
    one = One(faults=frozenset({rule} if rule else ()))
    one.m.begin(0, 7, (1, 2, 3, 4), issued=issued)
    outcomes = one.m.suspect(1, (4, "silent"))
    assert bool([o for o in outcomes if isinstance(o, InstanceOver)]) == leaves
    assert bool(one.core.sent) != leaves
    if leaves:
        gone = only(outcomes, InstanceOver)
        assert gone.station == 1 and not gone.expelled and one.stored == []


def test_told_of_a_stop_and_adopting_it() -> None:
    one = One()
    one.vote(2, STOP_4, sure=bits({4}))
    assert one.word() == "A A A AAS" and not one.core.sent and one.m.next_deadline_ns() == ADOPT
    assert one.m.on_time(ADOPT - 1) == []
    one.m.on_time(ADOPT)
    assert one.word() == "A A A AS" and one.core.sent[-1][0] == Kind.STOP_ACK and one.last() == STOP_4


@pytest.mark.parametrize("fault", ["", "believe_one"])
def test_one_that_is_not_sure_is_not_believed_against_what_is_heard(fault: str) -> None:
    one = One(faults=frozenset({fault} - {""}))
    one.vote(2, STOP_4)
    one.m.on_time(ADOPT - 1)
    assert one.word() == "A A A AAS"
    one.m.on_time(ADOPT)
    assert one.word() == ("A A A AS" if fault else "A AS A AAS")
    if not fault:
        assert one.core.sent[-1][0] == Kind.STOP and one.last() == ChangeProposal(True, (1, 3, 4), ((2, 0),))
        head = unpack(PROPOSAL, one.core.sent[-1][1], 0)
        assert head["state"] & ~head["trans"] == bits({2}), "sure of it: it does not hang on what is heard here"


def test_a_second_witness_or_silence_here_is_enough() -> None:
    one = One()
    one.vote(2, STOP_4)
    one.vote(3, STOP_4)
    one.m.on_time(ADOPT)
    assert one.word() == "A A A AS"
    one = One()
    one.vote(2, STOP_4)
    one.m.adopt(MS, [4], unheard=True)
    assert one.word() == "A A A AS"


def test_of_two_that_accuse_each_other_the_lower_number_is_believed() -> None:
    for due in ([3], [4], [3, 4]):
        one = One()
        one.vote(3, STOP_4)
        one.vote(4, ChangeProposal(True, (1, 2, 4), ((3, 0),)))
        one.m.adopt(ADOPT, due)
        assert one.word() == "A A AAS AS"


def test_who_is_accused_alone_joins_those_who_remove_its_accuser() -> None:
    one = One()
    one.vote(2, ChangeProposal(True, (2, 3, 4), ((1, 0),)))
    one.m.on_time(GIVE_UP - 1)
    assert one.word() == "A A A A", "it does not judge in its own case"
    one.vote(3, ChangeProposal(True, (1, 3, 4), ((2, 0),)), sure=bits({2}))
    one.m.on_time(MS)
    assert one.word() == "A AS A A"


def test_aas_ends_when_the_accuser_has_stopped() -> None:
    one = One()
    one.vote(2, STOP_4)
    one.m.on_heard(MS, lambda station: True)
    assert one.word() == "A A A AAS", "heard, but its accuser is well"
    one.m.suspect(MS, (2, "silent"))
    one.m.on_heard(MS, lambda station: False)
    assert one.word() == "A AS A AAS", "not heard"
    one.m.on_heard(MS, lambda station: True)
    assert one.word() == "A AS A A"


def test_notices_of_a_suspect_are_ignored() -> None:
    one = One()
    one.m.suspect(MS, (2, "silent"))
    one.vote(2, STOP_4)
    assert one.word() == "A AS A A"


@rule("M1")
def test_equalisation_fetches_what_a_voter_has_more_and_votes_again_once() -> None:
    one = One()
    one.core.req[3] = 5
    one.m.suspect(MS, (4, "silent"))
    assert one.last().changes == ((4, 5),)
    one.vote(2, ChangeProposal(True, (1, 2, 3), ((4, 8),)))
    assert one.core.limits == {3: 8} and len(one.core.sent) == 1
    one.core.req[3] = 7
    one.m.on_progress(2 * MS)
    assert len(one.core.sent) == 1, "not per PDU"
    one.core.req[3] = 8
    one.m.on_progress(2 * MS)
    assert one.last().changes == ((4, 8),) and len(one.core.sent) == 2


@rule("M1")
def test_equalisation_counts_what_was_said_before_the_own_suspicion() -> None:
    one = One()
    one.core.req[3] = 2**32 - 2  # across the wrap of the wire's 32 bits
    one.vote(2, ChangeProposal(True, (1, 2, 3), ((4, 1),)))
    one.m.suspect(MS, (4, "silent"))
    assert one.core.limits == {3: 2**32 + 1} and not one.core.sent
    one.core.req[3] = 2**32 + 1
    one.m.on_progress(MS)
    assert one.last().changes == ((4, 1),)


@rule("M1")
def test_what_a_removed_voter_had_accepted_binds_nobody() -> None:
    """Else the survivors would wait for PDUs that only the dead have."""
    one = One(Quorum(N, 2))
    one.vote(3, ChangeProposal(True, (1, 2, 3), ((4, 50),)))
    one.m.suspect(MS, (4, "silent"))
    assert one.core.limits == {3: 50} and not one.core.sent
    one.m.suspect(MS, (3, "silent"))
    assert one.core.limits == {3: 0, 2: 0} and one.last() == ChangeProposal(True, (1, 2), ((3, 0), (4, 0)))


@rule("M2")
def test_removals_are_unions_and_the_earliest_complete_one_goes_first() -> None:
    """Rule 2: a later, larger removal never hides an earlier one that someone may have carried out."""
    one = One(Quorum(N, 2))
    one.m.suspect(MS, (4, "silent"))
    one.vote(2, STOP_4)
    one.vote(3, STOP_4)
    one.m.suspect(2 * MS, (3, "silent"))
    both = ChangeProposal(True, (1, 2), ((3, 0), (4, 0)))
    assert one.last() == both
    one.core.known = True
    effects = one.vote(2, both, seq=6)
    assert only(effects, Changed).instance == 8
    assert one.core.commits[-1].members == bits((1, 2, 3)) and one.m.instance == 8
    assert one.last() == ChangeProposal(True, (1, 2), ((3, 0),)), "what is still open is proposed for the instance after it"


def test_votes_for_the_next_instance_that_came_early_count_once_there() -> None:
    one = One(Quorum(N, 2))
    one.m.suspect(MS, (4, "silent"))
    one.vote(2, STOP_4)
    one.vote(3, STOP_4)
    one.vote(2, ChangeProposal(True, (1, 2), ((3, 6),)), seq=6, instance=8)
    assert one.word() == "A A A AS"
    one.core.known = True
    one.m.on_progress(MS)
    assert one.m.instance == 8 and one.word() == "A A AAS S"
    one.m.suspect(2 * MS, (3, "silent"))
    assert one.core.limits[2] == 6


# ---- quorum and giving up


@rule("M3")
def test_without_quorum_nothing_is_proposed_and_the_suspicion_can_be_taken_back() -> None:
    one = One()
    one.m.suspect(MS, (4, "silent"))
    one.m.suspect(MS, (3, "silent"))
    assert one.last() == STOP_4 and len(one.core.sent) == 1 and one.core.blocked and not one.m.has_quorum
    one.m.on_heard(2 * MS, lambda station: station == 3)
    assert one.word() == "A A A AS" and not one.core.blocked and one.core.limits == {3: 0} and one.m.withdrawals == 1
    one.m.suspect(3 * MS, (3, "silent"))
    one.m.on_heard(3 * MS, lambda station: station == 4)
    assert one.word() == "A A AS AS", "its removal has been proposed, and could have been agreed"


@rule("M3")
def test_no_removal_is_proposed_that_those_in_doubt_would_have_to_agree_to() -> None:
    """It could not be agreed, and not be taken back either: a segment that is away for a moment would cost a member."""
    one = One()
    one.m.set_unresponsive(MS, (3, 4))
    one.m.suspect(MS, (4, "silent"))
    assert not one.core.sent and one.m.has_quorum
    one.m.set_unresponsive(2 * MS, (4,))
    assert one.last() == STOP_4


@rule("M3")
def test_the_first_to_be_heard_again_makes_no_quorum_against_the_others() -> None:
    one = One()
    one.m.begin(0, 7, (1, 2, 3, 0))
    one.m.suspect(MS, (2, "silent"), (3, "silent"))
    one.m.on_heard(2 * MS, lambda station: station == 2)
    assert one.word() == "A A A S" and not one.core.sent


@pytest.mark.parametrize("reason", ["left", "restarted", "expelled"])
def test_some_reasons_are_not_refuted_by_a_sign_of_life(reason: str) -> None:
    one = One(Quorum(N, 4))
    one.m.suspect(MS, (4, reason))
    one.m.on_heard(2 * MS, lambda station: True)
    assert one.word() == "A A A AS"


@rule("M3")
def test_giving_up() -> None:
    one = One()
    one.m.suspect(0, (4, "silent"), (3, "deaf"))
    assert one.m.next_deadline_ns() == GIVE_UP and one.m.on_time(GIVE_UP - 1) == []
    out = only(one.m.on_time(GIVE_UP), InstanceOver)
    assert not out.expelled and out.reason == "no quorum without station 3 (deaf), station 4 (silent) for 2000 ms"


# ---- recovery


def without_4(**kwargs: Any) -> One:
    one = One(**kwargs)
    one.m.begin(0, 7, (1, 2, 3, 0))
    return one


@rule("M5")
def test_a_recovery_is_voted_for_waited_for_and_carried_out() -> None:
    one = without_4()
    one.core.known = True
    join = ChangeProposal(False, (1, 2, 3, 4), ((4, 9),))
    assert one.word() == "A A A S"
    assert one.m.on_recovering(MS, 4, 9) == [Persist(1, 8)]
    assert one.word() == "A A A SA" and one.core.state == (0, 8) and one.last() == join
    assert one.core.waits == {3: one.core.clock - 1}, "in the wait set from the vote on"
    one.vote(2, join)
    changed = only(one.vote(3, join), Changed)
    assert changed == Changed(8, (1, 2, 3, 9), (4,), ()) and one.word() == "A A A A"
    assert one.core.commits[-1].joined == 8


def test_told_of_a_recovery() -> None:
    one = without_4()
    one.vote(2, ChangeProposal(False, (1, 2, 3, 4), ((4, 9),)))
    assert one.word() == "A A A SSA" and not one.core.sent
    one.m.on_time(ADOPT)
    assert one.word() == "A A A SA" and one.last().changes == ((4, 9),), "else those who have voted would wait for ever"


def test_stop_wins_and_the_promise_is_still_judged() -> None:
    """The paper takes an acknowledgement of a recovery back when a stop is noticed; one that was given may have been believed."""
    one = without_4(quorum=Quorum(N, 2))
    join = ChangeProposal(False, (1, 2, 3, 4), ((4, 9),))
    one.m.on_recovering(MS, 4, 9)
    one.vote(2, join)
    one.m.suspect(2 * MS, (3, "silent"))
    assert one.word() == "A A AS S" and one.last() == ChangeProposal(True, (1, 2), ((3, 0),))
    one.core.known = True
    one.vote(3, join)  # sent before it stopped, below the limit
    assert one.m.instance == 8 and one.word() == "A A AS A", "the promise first"
    assert one.last() == ChangeProposal(True, (1, 2, 4), ((3, 0),)), "then the stop, for the instance after"


def test_a_stop_one_is_only_told_of_wins_too() -> None:
    """Figure 5 of the paper: the stop overtakes the recovery also where it has not been seen yet."""
    one = without_4(quorum=Quorum(N, 2))
    one.m.on_recovering(MS, 4, 9)
    one.vote(3, ChangeProposal(True, (1, 3), ((2, 0),)))
    assert one.word() == "A AAS A S" and one.core.state == (8, 0)
    assert one.m.on_recovering(2 * MS, 4, 9) == [] and one.word() == "A AAS A S"
    one.core.known = True
    one.vote(2, ChangeProposal(False, (1, 2, 3, 4), ((4, 9),)))
    one.vote(3, ChangeProposal(False, (1, 2, 3, 4), ((4, 9),)), seq=4)
    assert one.m.instance == 8 and one.word() == "A A A A", "the vote that was given stands"


@rule("M7")
def test_a_restart_is_proved_whatever_was_suspected_before() -> None:
    one = One(Quorum(N, 4))
    one.m.suspect(MS, (4, "silent"))
    one.m.on_recovering(2 * MS, 4, 5)
    one.m.on_heard(3 * MS, lambda station: True)
    assert one.word() == "A A A AS" and one.m.waiting() == [(4, "restarted", MS)]


def test_an_unkept_promise_dies_with_the_stop() -> None:
    one = without_4(quorum=Quorum(N, 2))
    one.m.on_recovering(MS, 4, 9)
    one.m.suspect(2 * MS, (3, "silent"))
    assert one.m.on_recovering(3 * MS, 4, 9) == [], "a stop is agreed first; it will ask again"
    one.core.known = True
    one.vote(2, ChangeProposal(True, (1, 2), ((3, 0),)), seq=6)
    assert one.m.instance == 8 and one.word() == "A A S S" and not one.core.waits


@rule("M5")
def test_several_joiners_are_one_proposal() -> None:
    one = One(Quorum(N, 2))
    one.m.begin(0, 7, (1, 2, 0, 0))
    one.m.on_recovering(MS, 4, 9)
    one.m.on_recovering(MS, 3, 8)
    assert one.last() == ChangeProposal(False, (1, 2, 3, 4), ((3, 8), (4, 9)))


@rule("M7")
def test_a_restart_is_proof_of_a_stop() -> None:
    one = One()
    one.m.on_recovering(MS, 4, 5)
    assert one.word() == "A A A AS" and one.last() == STOP_4


def test_only_later_lives_are_let_in() -> None:
    one = without_4()
    one.m.begin(0, 6, (1, 2, 3, 4))
    one.m.begin(0, 7, (1, 2, 3, 0))
    assert one.m.on_recovering(MS, 4, 4) == [] and one.m.on_recovering(MS, 4, 3) == [] and one.word() == "A A A S"
    assert one.m.on_recovering(MS, 4, 5) and one.word() == "A A A SA"


def asked_before_a_suspicion(faults: frozenset[str] = frozenset()) -> One:
    """Station 1 of 1 and 2 has voted to let 3 in, then 3 and 4; then it has suspected 2, which both, and taken that back."""
    one = One(Quorum(N, 2), faults)
    one.m.begin(0, 7, (1, 2, 0, 0))
    one.m.on_recovering(MS, 3, 8)
    one.m.on_recovering(MS, 4, 9)
    one.m.suspect(MS, (2, "silent"))
    one.m.on_heard(2 * MS, lambda station: True)
    assert one.word() == "A A S S" and len(one.core.sent) == 2
    return one


@rule("M2")
def test_a_later_vote_takes_in_the_earlier_ones() -> None:
    """A suspicion taken back makes joiners ask again, one after the other. A vote for the first to ask alone would come after the
    one for both, while others may have voted for it before that (seeds 5020592, 5017543). And nothing is voted for twice: the
    second vote would have another place in the order, and a joiner might see only that one."""
    one = asked_before_a_suspicion()
    one.m.on_recovering(3 * MS, 4, 9)
    assert one.word() == "A A SA SA" and len(one.core.sent) == 2
    one.m.on_recovering(3 * MS, 4, 10)
    assert one.last() == ChangeProposal(False, (1, 2, 3, 4), ((3, 8), (4, 10))) and len(one.core.sent) == 3
    broken = asked_before_a_suspicion(frozenset({"shrinking_votes"}))
    broken.m.on_recovering(3 * MS, 4, 9)
    assert broken.last() == ChangeProposal(False, (1, 2, 4), ((4, 9),))


@rule("M2")
def test_a_vote_that_cannot_take_in_an_earlier_one_is_not_cast() -> None:
    """The life that was to be let in turns out to be used up: nobody else may be let in instead, only it in a later life."""
    one = asked_before_a_suspicion()
    one.m.note_incarnation(3, 8)
    one.m.on_recovering(3 * MS, 4, 9)
    assert one.word() == "A A S SA" and len(one.core.sent) == 2
    one.m.on_recovering(3 * MS, 3, 9)
    assert one.last() == ChangeProposal(False, (1, 2, 3, 4), ((3, 9), (4, 9))) and len(one.core.sent) == 3


JOINS = [
    ChangeProposal(False, tuple(sorted({1, 2, *lives})), tuple(sorted(lives.items())))
    for lives in ({3: 8}, {4: 9}, {3: 8, 4: 9}, {3: 9})
]
STOPS = [
    ChangeProposal(True, (1, 2, 3), ((4, 2**32 - 1),)),
    ChangeProposal(True, (1, 2, 3), ((4, 3),)),
    ChangeProposal(True, (1, 2), ((3, 7), (4, 3))),
    ChangeProposal(True, (1, 2), ((3, 7), (4, 2**32 - 1))),
]


@rule("M2")
def test_which_votes_take_in_which() -> None:
    """A partial order: of two different votes at most one takes in the other, and what takes in a third one by another does."""
    every = [*JOINS, *STOPS]
    assert all(takes_in(p, p) for p in every)
    assert not any(takes_in(p, q) and takes_in(q, p) for p in every for q in every if p != q)
    assert all(takes_in(p, r) for p in every for q in every for r in every if takes_in(p, q) and takes_in(q, r))
    assert all(takes_in(stop, join) and not takes_in(join, stop) for stop in STOPS for join in JOINS)
    assert takes_in(JOINS[2], JOINS[0]) and takes_in(JOINS[3], JOINS[0]) and not takes_in(JOINS[0], JOINS[1])
    assert takes_in(STOPS[1], STOPS[0]) and takes_in(STOPS[2], STOPS[1]) and not takes_in(STOPS[3], STOPS[1])


@rule("M2")
@pytest.mark.parametrize("fault", ["", "one_vote_at_a_time"])
def test_all_votes_of_a_batch_are_noted_before_anything_is_carried_out(fault: str) -> None:
    """The core has acknowledged all of them: whoever knows that may have carried out the earlier proposal, of which the last vote
    stands at the batch's end."""
    one = One(Quorum(N, 2), frozenset({fault} - {""}))
    one.m.begin(0, 7, (1, 2, 3, 0))
    one.m.on_recovering(MS, 4, 9)
    early = ChangeProposal(False, (1, 2, 3, 4), ((4, 9),))
    one.vote(2, early)
    one.m.suspect(2 * MS, (3, "silent"))
    late = ChangeProposal(True, (1, 2), ((3, 0),))
    assert one.last() == late
    one.core.known = True
    batch = []
    for station, proposal in ((2, late), (3, early)):
        kind = Kind.STOP if proposal.stop else Kind.RCV_ACK
        pdu = pdu_of(station, kind, encode_proposal(proposal, state=0, trans=0), 6, 201, 7)
        batch.append(Vote(station - 1, kind, 7, 6, 201, pdu))
    one.m.on_votes(3 * MS, batch)
    assert one.m.instance == 8 and one.m.members == ((1, 2) if fault else (1, 2, 3, 4))


@rule("M5")
def test_lives_that_are_used_up_are_not_adopted_either() -> None:
    """Who has joined meanwhile does not know of them, and votes; believing it would let one life in twice."""
    one = without_4()
    one.m.begin(0, 6, (1, 2, 3, 9))
    one.m.begin(0, 7, (1, 2, 3, 0))
    one.vote(2, ChangeProposal(False, (1, 2, 3, 4), ((4, 9),)))
    one.m.on_time(ADOPT)
    assert one.word() == "A A A S" and not one.core.sent
    one.vote(2, ChangeProposal(False, (1, 2, 3, 4), ((4, 10),)))
    one.m.on_time(ADOPT)
    assert one.word() == "A A A SA"


@rule("M5")
def test_a_joiner_that_asks_again_gets_the_votes_again() -> None:
    one = without_4()
    join = ChangeProposal(False, (1, 2, 3, 4), ((4, 9),))
    one.m.on_recovering(MS, 4, 9)
    mine = only(one.m.on_recovering(2 * MS, 4, 9), Send)
    assert decode_proposal(mine.pdu, Kind.RCV_ACK, N) == join
    assert one.m.on_recovering(3 * MS, 4, 9) == [], "not at every word of it"
    one.core.known = True
    one.vote(2, join)
    one.vote(3, join)
    assert one.m.instance == 8
    again = one.m.on_recovering(100 * MS, 4, 9)
    assert mine in again, "it is a member, and does not know it yet"
    assert len(again) == 3, "it may not hear the other voters"


def test_the_first_vote_of_a_station_for_a_proposal_stands() -> None:
    """Its place is that of the view event: a station that has committed by the first must not differ from one that has both."""
    one = without_4()
    join = ChangeProposal(False, (1, 2, 3, 4), ((4, 9),))
    one.m.on_recovering(MS, 4, 9)
    one.core.known = True
    one.vote(2, join, seq=10, clock=1000)
    one.vote(2, join, seq=20, clock=2000)
    one.vote(3, join)
    assert one.core.commits[-1].place_clock == 1000 and one.core.commits[-1].vote_seq[1] == 10


@rule("M7")
@pytest.mark.parametrize("fault", ["", "forget_later"])
def test_who_has_restarted_while_it_joined_is_removed_at_once(fault: str) -> None:
    """4.9 joins by votes that are complete after 4.10 has asked. That proves that 4.9 has stopped; the RCV of 4.10 may not come
    again, and nobody would take 4.9 for stopped before it has been silent for too long (seed 20103118)."""
    one = without_4(faults=frozenset({fault} - {""}))
    one.m.on_recovering(MS, 4, 9)
    one.m.on_recovering(2 * MS, 4, 10)
    one.core.known = True
    join = ChangeProposal(False, (1, 2, 3, 4), ((4, 9),))
    one.vote(2, join)
    one.vote(3, join)
    assert one.m.instance == 8 and one.m.incarnations[3] == 9
    assert one.word() == ("A A A A" if fault else "A A A AS")
    assert one.last().stop is not bool(fault)


def test_a_commit_that_the_core_cannot_carry_out_yet_is_tried_again() -> None:
    one = without_4()
    join = ChangeProposal(False, (1, 2, 3, 4), ((4, 9),))
    one.m.on_recovering(MS, 4, 9)
    one.core.known, one.core.ready = True, False
    one.vote(2, join)
    assert one.vote(3, join) == [] and one.m.instance == 7 and one.core.watched
    one.core.ready = True
    assert only(one.m.on_progress(MS), Changed).instance == 8


def test_a_vote_that_finds_no_buffer_is_sent_later() -> None:
    one = One()
    one.core.room = False
    one.m.suspect(MS, (4, "silent"))
    assert not one.core.sent and one.core.watched
    one.core.room = True
    one.m.on_progress(MS)
    assert one.last() == STOP_4


# ---- expulsion


@rule("M6")
def test_a_complete_proposal_without_oneself() -> None:
    one = One()
    stop_1 = ChangeProposal(True, (2, 3, 4), ((1, 11),))
    assert one.vote(2, stop_1) == [] and one.vote(3, stop_1) == []
    out = only(one.vote(4, stop_1), InstanceOver)
    assert out.expelled and out.reason == "stations 2, 3, 4 have agreed to go on without this one"


@rule("M6")
def test_a_later_instance_without_oneself() -> None:
    one = One()
    view = view_hash(8, (0, 2, 3, 4))
    assert one.m.on_confirm(MS, 2, 7, view, 1, 0) == [], "that one is no later instance"
    assert only(one.m.on_confirm(MS, 2, 8, view, 1, 0), InstanceOver).expelled
    assert only(one.m.on_confirm(MS, 2, 9, view, 1, 0), InstanceOver).expelled, "two behind: it has had no vote in the first"
    assert one.m.on_confirm(MS, 2, 9, view, 0b0111, 0) == [], "no quorum there: nobody goes on"
    assert one.m.on_confirm(MS, 2, 8, view, 1, 1) == [], "a member there, though suspected"


@rule("M2")
def test_a_later_instance_proves_that_the_own_votes_were_enough() -> None:
    one = One()
    one.m.suspect(MS, (4, "silent"))
    one.vote(2, STOP_4)
    assert one.m.on_confirm(MS, 2, 8, view_hash(8, (1, 2, 3, 0)), 8, 0) == [], "not complete here"
    one.vote(3, STOP_4)
    assert only(one.m.on_confirm(MS, 2, 8, view_hash(8, (1, 2, 3, 0)), 8, 0), Changed).instance == 8


def test_a_change_that_others_had_carried_out_is_known_after_the_end() -> None:
    one = One()
    one.m.suspect(MS, (4, "silent"))
    one.vote(2, STOP_4)
    one.vote(3, STOP_4)
    one.m.end()
    assert one.m.late_change(view_hash(8, (1, 0, 3, 4))) is None
    late = one.m.late_change(view_hash(8, (1, 2, 3, 0)))
    assert late == STOP_4
    assert one.m.late_commit(2 * MS, late)
    assert one.core.commits[-1].instance == 8 and one.m.instance == 0


def test_votes_that_were_acknowledged_but_not_looked_at_count_after_the_end() -> None:
    """Others may have carried the change out on the strength of those acknowledgements, and released what follows."""
    one = One()
    one.m.suspect(MS, (4, "silent"))
    one.vote(2, STOP_4)
    pdu = pdu_of(3, Kind.STOP, encode_proposal(STOP_4, state=0, trans=0), 6, 201, 7)
    one.m.end([Vote(2, Kind.STOP, 7, 6, 201, pdu)])
    assert one.m.late_change(view_hash(8, (1, 2, 3, 0))) == STOP_4
