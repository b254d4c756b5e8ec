"""State transfer by single inputs: messages that are none, and schedules too rare for the simulation."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from zenjun.proto.errors import UsageError
from zenjun.proto.service.donor import Donation
from zenjun.proto.service.joiner import Attempt
from zenjun.proto.service.roster import Awaited, RosterState
from zenjun.proto.service.stateapi import Snapshot
from zenjun.proto.service.transfer import Transfer
from zenjun.proto.service.transfertypes import MemoryQueue, Options
from zenjun.proto.service.transferwire import (
    CHUNK_MAX,
    Active,
    Ask,
    Chunk,
    Control,
    Data,
    End,
    Entry,
    Failed,
    Fetch,
    Gone,
    Have,
    Holding,
    List,
    Listing,
    OfferMessage,
    Open,
    Preparing,
    Roster,
    Start,
    decode,
    encode,
)

from ..rules import rule
from ..sim.broken_transfer import StaleActive
from ..sim.transfer_state import Features, Program, Table

A, J, C = (1, 1), (2, 1), (3, 1)
SECOND = 1_000_000_000
FEATURES = Features(True, True, True, True, True, 4, 0)
MESSAGES: list[Control | Data] = [
    Roster((1, 2, 3), (A, C), (Open(J, 7, (A,)),)),
    Holding((1, 2, 3), Have((4, 5, 6), b"digest"), False),
    Holding((1, 2, 3), None, True),
    Ask(9, (A, C), Have((4, 5, 6), b"digest", b"detail")),
    OfferMessage(J, 9, True, False, -1, 100, b"digest"),
    Gone(J, 9, "disk"),
    Preparing(J, 9),
    List(9, A, 0, 1000),
    Fetch(9, A, 4096, ((b"key", 0, 32), (b"k", 3, 1))),
    End(9, (A,)),
    Active(9),
    Failed("wrong"),
    Start((1, 2, 3), (A, J)),
    Listing(9, 0, True, (Entry(b"key", 5, b"d" * 16),)),
    Chunk(9, b"key", 2, b"data"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_message_comes_back_as_it_was_and_cut_or_changed_ones_do_no_harm(message: Control | Data) -> None:
    data = encode(message)
    assert decode(data) == message
    for size in range(len(data) - (isinstance(message, Chunk) and 4)):
        assert decode(data[:size]) is None
    r = random.Random(len(data))
    for _ in range(500):
        changed = bytearray(data)
        changed[r.randrange(len(data))] ^= 1 << r.randrange(8)
        again = decode(bytes(changed))
        assert again is None or decode(encode(again)) == again


def roster(kind: type[RosterState]) -> RosterState:
    """C's, while A is active and J gets the state from A; then A leaves, and C starts."""
    r = kind(C, 0, Counter())
    r.on_view(0, (1, 3, 0), [A, J, C], [C], [])
    r.on_control(0, A, Roster((1, 3, 0), (A,), ()))
    r.on_control(0, J, Ask(5, (A,), None))
    assert r.transfers[J].donors == (A,)
    r.on_view(0, (2, 1, 0), [J, C], [], [A])
    assert r.vacant and r.transfers[J].donors == ()
    r.on_control(0, C, Start((2, 1, 0), (C,)))
    assert r.active == {C}
    return r


@rule("X9")
@pytest.mark.parametrize(("kind", "active"), [(RosterState, {C}), (StaleActive, {C, J})])
def test_an_active_behind_a_start_is_of_another_state(kind: type[RosterState], active: set[tuple[int, int]]) -> None:
    """J had A's state to the end, and says so after C has started with its own."""
    r = roster(kind)
    r.on_control(0, J, Active(5))
    assert r.active == active


@rule("X10")
def test_the_first_start_counts_and_strangers_do_not() -> None:
    r = roster(RosterState)
    r.on_control(0, J, Start((2, 1, 0), (J,)))
    r.on_control(0, (9, 9), Failed("x"))
    assert r.active == {C} and r.counters == {"start-late": 1, "stranger": 1}


def test_messages_that_make_no_sense_are_counted() -> None:
    program = Program(FEATURES, Table())
    t: Transfer[object] = Transfer(C, program, Options(4096, 1))
    t.on_view(0, (1, 3, 0), [C], [C], [])
    t.on_control(0, (1, 3, 1), C, b"noise")
    t.on_data(0, A, b"")
    t.on_data(0, A, encode(Chunk(1, b"k", 0, b"")))
    t.on_control(0, (1, 3, 2), C, encode(Fetch(1, C, 10, ((b"k", 0, 1),))))
    t.on_control(0, (1, 3, 3), C, encode(OfferMessage(C, 4, False, False, 1, 1, b"")))
    assert t.counters == {"malformed": 2, "data-unasked": 1, "request-unknown": 1, "offer-unasked": 1}
    with pytest.raises(UsageError, match="message_max"):
        Transfer(C, program, Options(1000, 1))


@pytest.mark.parametrize(
    "chunk", [(b"", b"x"), (b"k" * 65, b"x"), (b"k", b"x" * (CHUNK_MAX + 1))], ids=["no key", "long key", "large"]
)
def test_chunks_out_of_bounds_are_refused(chunk: tuple[bytes, bytes]) -> None:
    donation = Donation(J, 1, (1, 1, 1), None, 0)
    donation.open(Snapshot([chunk]))
    with pytest.raises(UsageError):
        donation.answer(List(1, A, 0, 10), 4096)


@rule("X6")
def test_a_donor_answers_only_what_exists() -> None:
    closed: list[int] = []
    donation = Donation(J, 1, (1, 1, 1), None, 0)
    donation.open(Snapshot([(b"a", b"x" * 10), (b"b", b"")], close=lambda: closed.append(1)))
    listing = donation.answer(List(1, A, 0, 1), 4096)
    assert listing is not None and [e.key for e in listing.entries] == [b"a"] and not listing.last
    assert donation.answer(List(1, A, 0, 1), 4096) == listing, "asked again"
    assert donation.answer(List(1, A, 5, 1), 4096) is None
    parts = donation.fetch(Fetch(1, A, 4, ((b"a", 0, 3),)))
    assert parts is not None and [p.data for p in parts] == [b"xxxx", b"xxxx", b"xx"]
    for wanted in ((b"a", 0, 4), (b"a", 3, 1), (b"a", 0, 0), (b"b", 0, 1), (b"c", 0, 1)):
        assert donation.fetch(Fetch(1, A, 4, (wanted,))) is None
    assert donation.fetch(Fetch(1, A, 1, ((b"a", 0, 10),) * 4)) is None, "more than 32 parts"
    second = donation.answer(List(1, A, 1, 9), 4096)
    assert second is not None and second.last
    assert donation.fetch(Fetch(1, A, 4, ((b"b", 0, 1),))) == [Chunk(1, b"b", 0, b"")]
    assert donation.fetch(Fetch(1, A, 4, ((b"a", 0, 1),))) is None, "of an earlier listing, and it cannot be read again"
    donation.close()
    donation.close()
    assert closed == [1]


def test_a_full_queue_takes_what_it_must() -> None:
    queue: MemoryQueue[int] = MemoryQueue(100)
    assert queue.append(1, 60, True) and not queue.append(2, 60, True) and queue.append(3, 60, False)
    assert queue.pop(5) == [1, 3] and len(queue) == 0


def test_a_joiner_waits_for_a_donor_that_is_at_work_on_its_digest() -> None:
    """Sixty seconds of PREPARING are no silence; three seconds without one are."""
    attempt = Attempt(Program(FEATURES, Table()), 9, (1, 1, 1), (A,), 1 << 20, Counter(), 0)
    now = 0
    for _ in range(60):
        now += SECOND
        attempt.on_preparing(now, A)
        attempt.on_timeout(now, None)
        assert attempt.outcome is None
    attempt.on_timeout(now + 3 * SECOND, None)
    assert attempt.outcome == "slow"


@pytest.mark.parametrize("digest", [b"", b"x" * 65])
def test_a_digest_out_of_bounds_is_refused(digest: bytes) -> None:
    donation = Donation(J, 1, (1, 1, 1), None, 0)
    donation.open(Snapshot([]))
    with pytest.raises(UsageError, match="64 bytes"):
        donation.complete(digest)


def test_what_a_start_waits_for() -> None:
    """``zenjun name status`` names the stations that are missing."""
    r = RosterState((1, 1), 3, Counter())
    assert r.awaited() is None, "it is not known whether a member is active"
    r.on_view(0, (1, 1, 0), [(1, 1)], [(1, 1)], [])
    r.on_control(0, (1, 1), Holding((1, 1, 0), None, False))
    assert r.awaited() == Awaited(frozenset({1}), 3, False), "the first start: all have to report"
    r.on_view(0, (2, 1, 0), [(1, 1), (3, 1)], [(3, 1)], [])
    r.on_control(0, (3, 1), Holding((2, 1, 0), Have((1, 1, 0), b""), False))
    assert r.awaited() == Awaited(frozenset({1, 3}), 3, True), "a quorum that knows what was"
    r.on_control(0, (3, 1), Start((2, 1, 0), ((3, 1),)))
    assert r.awaited() is None
