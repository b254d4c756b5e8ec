"""Confirmations to one station, and CONFIRMs that speak for all (docs/protocol.md, rules C6 to C9). Each rule is shown, and
most by what happens without it."""

from __future__ import annotations

from typing import Any

import pytest
from zenjun.proto.core import Fault
from zenjun.proto.wire import NO_BOUND, Kind, addressee

from ..rules import rule
from ..virtual.cores import PROMPT, Cores, CoreStation
from ..virtual.pdus import peek
from ..virtual.segment import MS, US
from ..virtual.width import World, quantile

S = 1000 * MS
Sent = list[tuple[CoreStation, bytes]]


class Five(Cores):
    """n cores that have all spoken to all in this instance; confirmations to one station begin with ``direct`` of them."""

    def __init__(self, n: int = 5, direct: int = 4, **options: Any) -> None:
        super().__init__(n, **{**PROMPT, "direct": direct, **options})
        for core in self.cores:
            core.heartbeat(self.now)
        self.settle()

    def settle(self, timers: bool = False, lost: tuple[int, ...] = (), turns: int = 200) -> Sent:
        """Let all step, send and receive until nobody sends; what was sent. lost: receivers that get none of it. timers: those
        that want to ask do, 1 ms later each time."""
        out: Sent = []
        quiet = 0
        for _ in range(turns):
            self.now += MS if timers else 0
            sent = [(self.stations[k], pdu) for k in range(self.n) for pdu in self.step(k, timers=timers)]
            self.lost = lambda source, to, pdu: to.core.index in lost
            self.carry(sent)
            for k in range(self.n):
                self.deliver(k)
            out += sent
            quiet = 0 if sent else quiet + 1
            if quiet > (30 if timers else 0):
                return out
        raise AssertionError("they do not come to rest")

    def preack(self) -> list[int]:
        return [core.positions().preack for core in self.cores]


def told(sent: Sent) -> list[tuple[int, str, int]]:
    """(source, kind, the only receiver or 0)."""
    return [(source.core.index + 1, Kind(peek(pdu, "kind")).name, addressee(pdu)) for source, pdu in sent]


def receptions(sent: Sent, n: int) -> int:
    return sum(1 if addressee(pdu) else n - 1 for _, pdu in sent)


@rule("C6", "C7")
@pytest.mark.parametrize("n", [3, 4, 5, 8])
def test_a_lone_message_is_confirmed_to_its_sender_who_tells_all(n: int) -> None:
    """From four stations on n + 1 frames and 3(n - 1) receptions instead of n frames and n(n - 1) receptions, and silence."""
    c = Five(n)
    for round_ in range(1, 4):  # of changing senders
        c.offer(round_ % n)
        sent = c.settle()
        assert len(sent) == (n + 1 if n >= 4 else n)
        assert receptions(sent, n) == (3 * (n - 1) if n >= 4 else n * (n - 1))
        if n >= 4:
            assert told(sent)[-1] == (round_ % n + 1, "CONFIRM", 0)
            assert {to for _, _, to in told(sent)[1:-1]} == {round_ % n + 1}
        assert c.preack() == [round_] * n
    assert c.settle(timers=True) == []


@rule("C6")
def test_where_several_send_all_are_told() -> None:
    c = Five()
    c.offer(1)
    c.offer(2)
    sent = c.settle()
    assert not any(addressee(pdu) for _, pdu in sent)
    assert len(sent) == 2 + 5
    assert c.preack() == [2] * 5


@rule("C6")
def test_what_somebody_waits_for_at_level_ack_is_confirmed_to_all() -> None:
    c = Five()
    c.offer(1, need_ack=True)
    sent = c.settle()
    assert not any(addressee(pdu) for _, pdu in sent)
    assert len(sent) == 10
    assert [core.positions().ack for core in c.cores] == [1] * 5


@rule("C6")
def test_the_first_word_in_an_instance_is_for_all() -> None:
    """A joiner waits for just that, and who has not said that it speaks for all may be of a version that does not know this."""
    c = Cores(5, **PROMPT, direct=4)
    c.offer(1)
    c.broadcast(*c.step(1))
    words = [pdu for k in range(5) for pdu in c.step(k)]
    assert len(words) == 4
    assert not any(addressee(pdu) for pdu in words)


@rule("C6")
def test_a_confirmation_to_one_station_does_not_put_off_the_heartbeat() -> None:
    """The others have not heard it: for them it is no sign of life."""
    c = Five()
    before = [core.last_tx_ns() for core in c.cores]
    c.now += 20 * MS
    c.offer(1)
    c.settle()
    for k, core in enumerate(c.cores):
        assert (core.last_tx_ns() == before[k]) == (k != 1)
        assert core.last_word_ns() > before[k]


@rule("C6")
def test_a_confirmation_that_is_overheard_counts_for_nothing() -> None:
    """A switch sends what it does not know the place of to all."""
    c = Five()
    c.broadcast(c.send(1))
    (word,) = c.step(0)
    assert addressee(word) == 2
    before = (c[3].matrix(), c[3].peer(0))
    assert c.give(0, 3, word) == 0
    assert (c[3].matrix(), c[3].peer(0)) == before


@rule("C7", "C9")
@pytest.mark.parametrize("polls", [True, False], ids=["polls", "nobody polls"])
def test_who_misses_the_word_for_all_asks_for_it(polls: bool) -> None:
    """Without a poll it would never know."""
    c = Five()
    c.broadcast(c.send(1))
    c.broadcast(*(pdu for k in (0, 2, 3, 4) for pdu in c.step(k)))
    (summary,) = c.step(1)
    assert addressee(summary) == 0
    c.broadcast(summary, lost=(3,))
    c.settle(timers=polls)
    assert c.preack() == [1, 1, 1, 1 if polls else 0, 1]


@rule("C9")
@pytest.mark.parametrize("polls", [True, False], ids=["polls", "nobody polls"])
def test_a_confirmation_to_one_station_that_is_lost_is_asked_for_and_the_next_ones_go_to_all(polls: bool) -> None:
    """It may be lost because frames to one address do not get through. After a second it tries again."""
    c = Five()
    c.broadcast(c.send(1))
    words = {k: c.step(k)[0] for k in (0, 2, 3, 4)}
    c.broadcast(*(words[k] for k in (0, 2, 3)))
    assert c.step(1) == []
    c.settle(timers=polls)
    assert c.preack() == ([1] * 5 if polls else [0] * 5)
    if not polls:
        return
    for later, to in ((10 * MS, 0), (2 * S, 2)):
        c.now += later
        c.offer(1)
        (word,) = (pdu for source, pdu in c.settle() if source.core.index == 4)
        assert addressee(word) == to


@rule("C8")
@pytest.mark.parametrize("fault", [Fault(0), Fault.EARLY_BOUND], ids=["kept", "broken"])
def test_the_bound_counts_only_behind_what_its_source_has_accepted(fault: Fault) -> None:
    """Station 3 sends, and station 5 does not get it; then station 2 sends, and says for all that all have passed its clock. At
    station 5 station 3's message still stands before station 2's."""
    c = Five(faults=int(fault))
    first = c.send(2, b"first")
    c.broadcast(first, lost=(4,))
    second = c.send(1, b"second")
    c.broadcast(second)
    words = [pdu for k in (0, 2, 3, 4) for pdu in c.step(k)]
    c.broadcast(*words, lost=(4,))
    c[1].heartbeat(c.now)
    (beat,) = c.step(1)
    assert 0 < peek(beat, "bound") < NO_BOUND
    c.give(1, 4, beat)
    assert [m.data for m in c.deliver(4)] == ([b"second"] if fault else [])
    c.settle(timers=True)
    assert [m.data for m in c.got[0]] == [b"first", b"second"]
    assert [m.data for m in c.got[4]] == ([b"second"] if fault else [b"first", b"second"]), "what comes too late is not taken"


@rule("C8")
def test_the_bound_is_what_all_are_known_to_have_passed() -> None:
    c = Five()
    c.broadcast(c.send(1))
    words = [pdu for k in (0, 2, 3, 4) for pdu in c.step(k)]
    c.broadcast(*words)
    (summary,) = c.step(1)
    assert peek(summary, "bound") == 1, "all have passed the clock of what they have confirmed"
    assert peek(words[0], "bound") == 2, "and this one knew of itself and the sender only"


def test_with_three_members_nothing_is_said_for_all() -> None:
    c = Five(3)
    c.offer(1)
    assert {peek(pdu, "bound") for _, pdu in c.settle()} == {0}


@rule("C9")
def test_a_lone_sender_without_pause_is_confirmed_to_itself_and_sums_up() -> None:
    """The window does not close, the others deliver with it, and nothing is said twice."""
    c = Five()
    frames: Sent = []
    for k in range(400):
        c.offer(1, b"%d" % k)
        sent = [(c.stations[i], pdu) for i in range(5) for pdu in c.step(i, 10 * US)]
        c.lost = lambda source, to, pdu: False
        c.carry(sent)
        for i in range(5):
            c.deliver(i)
        frames += sent
    frames += c.settle()
    assert c.preack() == [len([f for f in told(frames) if f[1] == "DATA"])] * 5
    assert [m.data for m in c.got[4]] == [b"%d" % k for k in range(400)]
    assert sum(addressee(pdu) == 0 for _, pdu in frames if peek(pdu, "kind") == Kind.CONFIRM) < 420


@rule("C6", "C7", "C9")
@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_with_processors_of_their_own_all_learn_of_all_with_fewer_receptions(loss: float) -> None:
    to_all, to_sender = (World(6, direct, loss, 60).run() for direct in (0, 4))
    for cost in (to_all, to_sender):
        assert (len(cost.own), len(cost.others)) == (60, 300)
    assert to_sender.receptions < (0.6 if not loss else 1.0) * to_all.receptions
    assert quantile(to_sender.others, 0.5) > quantile(to_all.others, 0.5), "they know one hop later"
