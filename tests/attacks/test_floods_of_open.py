"""Attack: OPEN and RCV at the rate of the line, one frame or a few recorded ones over and over.

Whatever an OPEN says costs the engine Python, and the queue between core and engine holds 128: real ones must not be crowded out,
and the same words again must cost no more than a stranger's.
"""

from __future__ import annotations

import pytest
from zenjun.proto.core import Core, Fault
from zenjun.proto.wire import Kind, cluster_id

from ..proto.test_membership_numbers import open_pdu
from ..virtual.cores import config
from ..virtual.pdus import poke
from ..virtual.segment import MS, US

MAC = bytes([2, 0, 0, 0, 0, 9])
N = 4


def core(opened: bool = True, faults: int = 0) -> Core:
    made = Core(**config(stations=N, self_index=0, cluster=cluster_id("test"), faults=faults))
    if opened:
        made.open(MS, 1, 7, (1, 2, 3, 0), 1500)
    return made


def told(victim: Core, pdus: list[bytes], every: int, frames: int, batch: int = 50) -> list[bytes]:
    """What the engine is shown of so many frames, one each 10 us, taken after each batch."""
    seen: list[bytes] = []
    for k in range(frames):
        victim.rx(MS + k * every, pdus[k % len(pdus)], MAC)
        if k % batch == batch - 1:
            victim.step(MS + k * every, True)
            seen += [control.pdu for control in victim.control()]
    return seen + [control.pdu for control in victim.control()]


@pytest.mark.parametrize("recovering", [False, True])
@pytest.mark.parametrize("opened", [False, True])
def test_the_same_frame_reaches_the_engine_as_seldom_as_a_stranger(recovering: bool, opened: bool) -> None:
    victim = core(opened)
    seen = told(victim, [open_pdu(N, 4, 9, recovering=recovering)], 10 * US, 10_000)  # 100 ms
    assert 5 <= len(seen) <= 12, "one in 10 ms"
    assert victim.drops()["repeated"] == 10_000 - len(seen)


def test_recorded_ones_by_turns_do_not_get_through_either() -> None:
    """Each differs from the one before; each is one that was shown a moment ago."""
    recorded = [open_pdu(N, 4, life, recovering=life % 2 == 0) for life in range(1, 5)]
    assert len(told(core(), recorded, 10 * US, 10_000)) <= 4 * 12


def test_a_flood_of_ever_new_ones_leaves_room_for_the_others() -> None:
    """Two places for each station, however many different frames come in one batch."""
    victim = core()
    for boot in range(300):
        victim.rx(MS, open_pdu(N, 4, 9, boot=boot), MAC)
    honest = open_pdu(N, 3, 1)
    victim.rx(MS, honest, MAC)
    seen = [control.pdu for control in victim.control()]
    assert honest in seen
    assert len(seen) <= 3
    victim.rx(2 * MS, open_pdu(N, 4, 9, boot=1_000), MAC)
    assert len(victim.control()) == 1, "the places are free again when they have been taken"


def test_without_the_rule_the_engine_is_shown_all_and_honest_ones_are_crowded_out() -> None:
    """Broken variant ``CROWDED``."""
    frame = open_pdu(N, 4, 9)
    assert len(told(core(faults=int(Fault.CROWDED)), [frame], 10 * US, 10_000)) == 10_000
    victim, honest = core(faults=int(Fault.CROWDED)), open_pdu(N, 3, 1)
    for boot in range(300):
        victim.rx(MS, open_pdu(N, 4, 9, boot=boot), MAC)
    victim.rx(MS, honest, MAC)
    assert honest not in [control.pdu for control in victim.control()]


def test_what_is_new_is_shown_at_once() -> None:
    """A station that has something else to say within 10 ms is heard."""
    victim = core()
    for k, pdu in enumerate([open_pdu(N, 4, 9), open_pdu(N, 4, 9, highest=5), open_pdu(N, 4, 9, recovering=True)]):
        victim.rx(MS + k * US, pdu, MAC)
        assert [control.pdu for control in victim.control()] == [pdu]


def test_a_vote_for_a_joiner_repeated_does_not_fill_the_queue() -> None:
    """A station in no instance is shown every vote, for each may be the one that lets it in: once."""
    from zenjun.proto.votes import ChangeProposal

    from ..proto.test_membership_numbers import vote_pdu

    victim = core(opened=False)
    vote = vote_pdu(N, 2, Kind.RCV_ACK, ChangeProposal(False, (1, 2), ((1, 1),)), incarnation=7, instance=5)
    votes = [vote, poke(vote, "seq", 3)]
    assert len(told(victim, votes, 10 * US, 10_000, batch=1_000)) <= 2 * 12


def test_a_recorded_word_of_a_former_life_does_not_displace_the_present_one() -> None:
    """A station that has paused reads all at once; what its peer said last must be shown, whatever old copy follows it
    (simulation, seed 1795986986)."""
    victim = core()
    asks = open_pdu(N, 4, 3, recovering=True)
    for pdu in (open_pdu(N, 4, 2), open_pdu(N, 4, 3), asks, open_pdu(N, 4, 1)):
        victim.rx(MS, pdu, MAC)
    assert [control.pdu for control in victim.control()][-1] == asks
