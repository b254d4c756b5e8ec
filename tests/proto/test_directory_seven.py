"""The seven steps, one at a time: what is sent, in which order, and what is refused."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from zenjun.proto.errors import UsageError
from zenjun.proto.service.directory.entries import NOWHERE, Who
from zenjun.proto.service.directory.seven import HELD_MAX, Seven
from zenjun.proto.service.directory.seventypes import Commit, Finished, Keep, Locked, Lost, Send, Standing, Wrong
from zenjun.proto.service.directory.sevenwire import Asking, Kind, Message, decode, encode

from ..rules import rule

PLACE = (1 << 32, 1, 0)


class Managers:
    """Managers whose messages come at once, to all, in the order in which they were sent."""

    def __init__(self, n: int, *, unicast: bool = False) -> None:
        self.all = {(k, 1): Seven((k, 1), unicast=unicast) for k in range(1, n + 1)}
        self.sent: list[Message] = []
        self.effects: dict[Who, list[object]] = {who: [] for who in self.all}
        for k, m in enumerate(self.all.values()):
            place = (PLACE[0] + k, k + 1, 65535)
            for other in list(self.all.values())[: k + 1]:
                other.on_view(place, [w for w in self.all if w[0] <= k + 1], [m.me])
            self.run()
        for m in self.all.values():
            m.activate((PLACE[0] + 100, 1, 65535))
        self.run()
        self.sent.clear()

    def run(self) -> None:
        """Until nothing is under way; data is ``x`` with the owner's station."""
        busy = True
        while busy:
            busy = False
            for who, m in self.all.items():
                for effect in m.take():
                    busy = True
                    self.effects[who].append(effect)
                    if isinstance(effect, Send):
                        message = decode(effect.data)
                        assert message is not None
                        self.sent.append(message)
                        for other in self.all.values():
                            other.receive(who, effect.data)
                    elif isinstance(effect, Keep):
                        m.kept(effect.asking)
                    elif isinstance(effect, Locked):
                        m.data(b"x%d" % who[0], durable=True)

    def of(self, who: Who, kind: type) -> list[object]:
        return [e for e in self.effects[who] if isinstance(e, kind)]


@rule("U5")
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("unicast", [False, True])
def test_an_update_costs_what_the_formulas_say(n: int, unicast: bool) -> None:
    """5(m - 1) messages as the paper counts, 2(m - 1) + 3 on a broadcast medium; all commit the same, and all disks are named."""
    group = Managers(n, unicast=unicast)
    group.all[1, 1].request()
    group.run()
    kinds = Counter(m.kind for m in group.sent)
    once = n - 1 if unicast else 1
    assert kinds == Counter({Kind.REQ: once, Kind.GRANT: n - 1, Kind.DATA: once, Kind.DONE: n - 1, Kind.CONF: once})
    assert len(group.sent) == (5 * (n - 1) if unicast else 2 * (n - 1) + 3)
    (finished,) = group.of((1, 1), Finished)
    assert isinstance(finished, Finished) and finished.durable == frozenset(group.all)
    for who in group.all:
        assert group.of(who, Commit) == [Commit((PLACE[0] + 101, 1, 0), (1, 1), False, b"x1")]
        assert group.all[who].lock is None


@rule("U2", "U3")
def test_all_ask_at_once_and_the_oldest_goes_first() -> None:
    group = Managers(4)
    for m in reversed(group.all.values()):
        m.request()
    group.run()
    orders = [[e.data for e in group.of(who, Commit) if isinstance(e, Commit)] for who in group.all]
    assert orders == [[b"x1", b"x2", b"x3", b"x4"]] * 4, "of equal counters the lowest station's is the oldest"
    assert Counter(m.kind for m in group.sent)[Kind.RELEASE] >= 1
    assert all(m.standing is Standing.IDLE for m in group.all.values())


@rule("U4")
def test_whom_an_attempt_waits_for_is_known_by_name() -> None:
    group = Managers(3)
    one = group.all[1, 1]
    one.request()
    sent = one.take()
    assert one.missing == [(2, 1), (3, 1)] and one.closed
    for effect in sent:
        assert isinstance(effect, Send)
        group.all[2, 1].receive((1, 1), effect.data)
    (grant,) = group.all[2, 1].take()
    assert isinstance(grant, Send) and group.all[2, 1].closed
    one.receive((2, 1), grant.data)
    assert one.missing == [(3, 1)] and one.take() == []
    one.on_view((PLACE[0] + 200, 3, 65535), [(1, 1), (2, 1)], (), [(3, 1)])
    assert one.take() == [Locked(False, (PLACE[0] + 100, 1, 65535))]
    one.abandon()
    assert not one.closed and one.standing is Standing.IDLE


@rule("U6")
@pytest.mark.parametrize("sent", [False, True])
def test_a_view_ends_the_lock_of_its_owner(sent: bool) -> None:
    """With its DATA the attempt is committed, without it dropped; the lock goes to who asks for it."""
    group = Managers(3)
    one, two = group.all[1, 1], group.all[2, 1]
    one.request()
    for effect in one.take():
        if isinstance(effect, Send):
            two.receive((1, 1), effect.data)
            group.all[3, 1].receive((1, 1), effect.data)
    for who in ((2, 1), (3, 1)):
        for effect in group.all[who].take():
            if isinstance(effect, Send):
                one.receive(who, effect.data)
    assert isinstance(one.take()[0], Locked)
    one.data(b"x1")
    (data, _) = one.take()
    assert isinstance(data, Send)
    if sent:
        two.receive((1, 1), data.data)
        two.take()
    two.request()
    assert two.missing == [(1, 1)]
    two.on_view((PLACE[0] + 200, 1, 65535), [(2, 1), (3, 1)], (), [(1, 1)])
    effects = two.take()
    assert [type(e) for e in effects] == ([Commit, Send] if sent else [Send])
    assert two.standing is Standing.ASKING


@rule("U8")
def test_who_comes_back_has_lost_everything() -> None:
    group = Managers(3)
    one = group.all[1, 1]
    one.request()
    one.on_view((PLACE[0] + 300, 1, 65535), [(1, 1), (2, 1), (3, 1)], [(1, 1)])
    kinds = [type(e) for e in one.take()]
    assert kinds == [Send, Lost, Send] and not one.active and one.lock is None
    with pytest.raises(UsageError):
        one.request()
    one.request(copying=True)
    assert one.standing is Standing.ASKING and not one.closed, "COPY closes no look-up"


def test_a_copy_that_is_not_the_others_is_noticed() -> None:
    group = Managers(2)
    group.all[2, 1].place = (PLACE[0] + 99, 1, 0)
    group.all[1, 1].request()
    group.run()
    assert any(group.of(who, Wrong) for who in group.all)


def test_calls_at_a_wrong_time_are_refused() -> None:
    lone = Seven((1, 1))
    with pytest.raises(UsageError):
        lone.request()
    group = Managers(2)
    one = group.all[1, 1]
    for call in (lambda: one.data(b""), one.abandon, lambda: one.request(copying=True)):
        with pytest.raises(UsageError):
            call()
    one.kept(Asking((2, 1), PLACE, 7))
    one.request()
    with pytest.raises(UsageError):
        one.request()


def test_messages_come_back_as_they_were() -> None:
    full = Message(
        Kind.DATA, (5, 1, 65535), Asking((64, (1 << 64) - 1), (5, 1, 65535), (1 << 32) - 1), (2, 9), 0, True, True, True,
        ((1 << 64) - 1, 64, 0), (7, 1, 0), b"any bytes",
    )  # fmt: skip
    assert decode(encode(full)) == full
    assert decode(encode(full)[:80]) is None and decode(b"") is None
    assert decode(encode(full._replace(kind=Kind.CONF))) is None, "only DATA has data"


def test_nothing_that_others_send_raises() -> None:
    """Random bytes, changed messages, messages of strangers and former lives, more than is held."""
    r = random.Random(7)
    group = Managers(3)
    one = group.all[1, 1]
    one.request()
    samples = [encode(Message(kind, group.all[2, 1].life, Asking((2, 1), group.all[2, 1].life, 1))) for kind in Kind]
    for _ in range(20_000):
        data = bytearray(r.choice(samples))
        for _ in range(r.randint(0, 3)):
            data[r.randrange(len(data))] = r.randrange(256)
        one.receive(r.choice([(2, 1), (3, 1), (9, 9), (1, 1)]), bytes(data[: r.choice([len(data), r.randint(0, len(data))])]))
        one.take()
    ahead = encode(Message(Kind.REQ, (1 << 40, 2, 65535), Asking((2, 1), (1 << 40, 2, 65535), 1)))
    for _ in range(HELD_MAX + 5):
        one.receive((2, 1), ahead)
    assert one.counters["held-full"] >= 5 and one.counters["malformed"]
    assert one.place != NOWHERE


@rule("U3")
@pytest.mark.parametrize("seed", range(4))
def test_three_managers_that_always_want_something_get_it(seed: int) -> None:
    """Messages of each sender in their order, those of different senders in any: every attempt ends, and costs at most twice as
    many messages as one that meets no other."""
    r, each = random.Random(seed), 24
    group = Managers(3).all
    under_way: dict[tuple[Who, Who], list[bytes]] = {(a, b): [] for a in group for b in group if a != b}
    wanted, sent = dict.fromkeys(group, each), 0

    def go_on(who: Who) -> None:
        nonlocal sent
        m = group[who]
        while True:
            effects = m.take()
            if not effects:
                if m.standing is not Standing.IDLE or not wanted[who]:
                    return
                m.request()
            for effect in effects:
                match effect:
                    case Send(data):
                        sent += 1
                        for other in group:
                            if other != who:
                                under_way[who, other].append(data)
                    case Keep():
                        m.kept(effect.asking)
                    case Locked():
                        m.data(b"x")
                    case Finished():
                        wanted[who] -= 1
                    case Wrong(text):
                        pytest.fail(text)

    for who in group:
        go_on(who)
    while ways := [way for way, messages in under_way.items() if messages]:
        sender, to = r.choice(ways)
        group[to].receive(sender, under_way[sender, to].pop(0))
        go_on(to)
    assert not any(wanted.values()) and all(m.standing is Standing.IDLE and m.lock is None for m in group.values())
    assert sent <= 2 * 7 * 3 * each
