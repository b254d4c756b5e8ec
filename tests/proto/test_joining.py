"""A station that is in no instance collects votes until a member's CONFIRM shows that they were enough."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zenjun.proto.core import add_checksum
from zenjun.proto.joining import PROPOSALS_MAX, Joining
from zenjun.proto.openpdu import pack
from zenjun.proto.votes import ChangeProposal, encode_proposal
from zenjun.proto.wire import CONFIRM, HEADER, VERSION, Flag, Kind, view_hash

from ..rules import rule

N, ME = 4, 4
JOIN = ChangeProposal(False, (1, 2, 4), ((4, 9),))


def vote(station: int, proposal: ChangeProposal = JOIN, *, instance: int = 7, kind: int = Kind.RCV_ACK, **fields: int) -> bytes:
    payload = encode_proposal(proposal, state=0, trans=0)
    values = {"incarnation": 10 * station, "seq": 100 + station, "clock": 500 + station, "frame_max": 1500 - station, **fields}
    header = pack(
        HEADER, cluster=1, version=VERSION, kind=kind, stations=N, src=station, length=len(payload), instance=instance, **values
    )
    return add_checksum(header + bytes(4 * N) + payload)


def confirm(station: int, instance: int, incarnations: tuple[int, ...]) -> bytes:
    payload = pack(CONFIRM, view=view_hash(instance, incarnations))
    header = pack(
        HEADER, cluster=1, version=VERSION, kind=Kind.CONFIRM, flags=Flag.PACK, stations=N, src=station, length=len(payload),
        incarnation=10 * station, instance=instance,
    )  # fmt: skip
    return add_checksum(header + bytes(8 * N) + payload)


GOOD = confirm(1, 8, (10, 20, 0, 9))


def joining(*votes: bytes, incarnation: int = 9) -> Joining:
    it = Joining(stations=N, station=ME)
    it.begin(incarnation)
    for pdu in votes:
        it.on_vote(pdu)
    return it


@rule("M5")
def test_starts_when_a_member_is_where_all_votes_lead() -> None:
    entry = joining(vote(1), vote(2)).on_confirm(GOOD)
    assert entry is not None
    assert (entry.instance, entry.incarnations) == (8, (10, 20, 0, 9))
    assert (entry.place_clock, entry.place_station) == (502, 2), "after the last vote in the order"
    assert [tuple(start) for start in entry.starts] == [(1, 10, 101, 501), (1, 20, 102, 502), (0, 0, 0, 0), (2, 9, 0, 0)]
    assert entry.frame_max == 1498


@rule("M5")
@pytest.mark.parametrize(
    ("votes", "word"),
    [
        ([vote(1)], GOOD),  # one vote is missing
        ([vote(1), vote(2)], confirm(1, 7, (10, 20, 0, 9))),  # not there yet
        ([vote(1), vote(2)], confirm(1, 9, (10, 20, 0, 9))),  # gone on from there
        ([vote(1), vote(2)], confirm(1, 8, (10, 20, 0, 8))),  # with another life of this station
        ([vote(1), vote(2)], confirm(1, 8, (10, 0, 0, 9))),  # without a voter
        ([vote(1), vote(2)], confirm(3, 8, (10, 20, 0, 9))),  # of no member
        ([vote(1), vote(2, incarnation=21)], GOOD),  # a vote of another life of a voter
        (
            [vote(1, ChangeProposal(False, (1, 2, 4), ((4, 8),))), vote(2, ChangeProposal(False, (1, 2, 4), ((4, 8),)))],
            GOOD,
        ),  # not for this life
        ([vote(1, kind=Kind.STOP), vote(2)], GOOD),
        ([vote(1), vote(2)], GOOD[:-20]),
    ],
)
def test_nothing_less_will_do(votes: list[bytes], word: bytes) -> None:
    assert joining(*votes).on_confirm(word) is None


def test_a_new_life_begins_anew() -> None:
    it = joining(vote(1), vote(2))
    it.begin(9)
    assert it.on_confirm(GOOD) is not None, "the same one"
    it.begin(10)
    assert it.on_confirm(GOOD) is None and it.votes == 0


def test_passed_over() -> None:
    """Members have gone on from an instance that this life may have been in; it is never let in twice."""
    it = joining()
    assert not it.missed(100), "nobody has voted for it"
    it.on_vote(vote(1, instance=7))
    assert not it.missed(8) and it.missed(9)
    it.on_vote(vote(2, instance=8))
    assert it.missed(9), "the first vote counts: a later one may come from who does not know"
    it.begin(10)
    assert not it.missed(9)


def test_memory_is_bounded() -> None:
    it = joining(vote(2))
    for instance in range(100, 100 + 2 * PROPOSALS_MAX):
        it.on_vote(vote(1, instance=instance))
    it.on_vote(vote(1))
    it.on_vote(vote(2))
    assert it.on_confirm(GOOD) is not None, "what was forgotten can be said again"
    assert len(it._seen) <= PROPOSALS_MAX


@given(st.binary(max_size=200), st.integers(0, 150))
def test_anything_may_come(data: bytes, cut: int) -> None:
    it = joining(data, vote(1)[:cut])
    it.on_confirm(data)
    it.on_confirm(GOOD[:cut])
