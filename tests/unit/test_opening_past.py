"""What an OPEN tells of the instance before, and what must not be concluded from it."""

from __future__ import annotations

import pytest
from test_opening import MS, START, Station, encoded
from zenjun.proto.openpdu import BY_VOTES, OpenPdu, Past
from zenjun.proto.wire import view_hash


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
