"""Sessions and envelopes, one rule at a time; under random networks and attacks they are in tests/sim/test_trust.py."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from zenjun.proto.envelope import (
    ECHOES_PER_PART,
    ENVELOPE,
    HELLO_BYTES_MAX,
    TAG_BYTES,
    WINDOW,
    Drop,
    Echo,
    Envelope,
    Hello,
    Window,
)
from zenjun.proto.trust import (
    ANSWERED_MAX,
    CHALLENGE_NS,
    HELLO_GAP_NS,
    JITTER_NS,
    MS,
    ROUND_NS,
    SWITCH_NS,
    Behind,
    Config,
    Effect,
    Facts,
    ForgetSession,
    Name,
    Partner,
    ReadSession,
    SealUnder,
    SendHello,
    Trust,
    Twin,
    Unlike,
    Unread,
)
from zenjun.proto.wire import MTU_MIN

SUITE = 1


def station(number: int, stations: int = 3, seed: int = 0, suite: int = SUITE) -> Trust:
    trust = Trust(Config(number, stations, suite, number, 1, (7,)), entropy=random.Random(100 * seed + number).randbytes)
    trust.members = frozenset(range(1, stations + 1))
    return trust


def said(effects: list[Effect]) -> Hello:
    """The HELLO among the effects, as its receivers read it (one part)."""
    (hello,) = [e.hello for e in effects if isinstance(e, SendHello)]
    (body,) = hello.bodies()
    read = Hello.read(Envelope(1, 2, hello.tx, hello.suite, len(body), hello.session[:4], 0), body)
    assert read == hello
    return read


def meet(a: Trust, b: Trust, now: int = 0) -> list[Effect]:
    """Both start and prove each other; the last effects."""
    first, second = said(a.start(now, Facts())), said(b.start(now, Facts()))
    a.on_hello(now, Facts(), second)
    b.on_hello(now, Facts(), first)
    later = now + HELLO_GAP_NS + JITTER_NS
    proven = b.on_hello(later, Facts(), said(a.on_timeout(later, Facts())))
    a.on_hello(later, Facts(), said(b.on_timeout(later, Facts())))
    return proven


def test_a_hello_proves_nothing_until_it_echoes() -> None:
    a, b = station(1), station(2)
    first = said(a.start(0, Facts()))
    assert said(b.start(0, Facts())).session != first.session
    assert b.on_hello(0, Facts(), first) == []
    assert b.session_of(1) is None
    assert b.deadline_ns() <= HELLO_GAP_NS + JITTER_NS, "it answers at once"


def test_three_frames_and_both_believe() -> None:
    a, b = station(1), station(2)
    assert meet(a, b) == [ReadSession(1, a.session, 1, 7)]
    assert b.session_of(1) == a.session
    assert a.session_of(2) == b.session


def test_a_recorded_hello_with_an_old_challenge_proves_nothing() -> None:
    a, b = station(1), station(2)
    meet(a, b)
    last = said(a.on_timeout(ROUND_NS * 2, Facts()))
    late = CHALLENGE_NS + HELLO_GAP_NS + JITTER_NS + 1
    again = replace(last, session=bytes(range(32)), echoes=tuple(Echo(0, e.echo, e.other) for e in last.echoes))
    assert b.on_hello(late, Facts(), again) == []
    assert b.session_of(1) == a.session


def test_what_was_sealed_before_the_proof_is_not_read() -> None:
    a, b = station(1), station(2)
    first, second = said(a.start(0, Facts())), said(b.start(0, Facts()))
    a.on_hello(0, Facts(), second)
    b.on_hello(0, Facts(), first)
    later = HELLO_GAP_NS + JITTER_NS
    hello = said(a.on_timeout(later, Facts(next=41)))
    assert b.on_hello(later, Facts(), hello) == [ReadSession(1, a.session, 41, 7)]
    assert b.on_hello(later, Facts(), replace(hello, next=1)) == [], "and its window never goes back"


def test_a_session_that_has_ended_is_not_proven_again_by_what_proved_it() -> None:
    a, b = station(1), station(2)
    meet(a, b)
    now = 100 * MS
    old = said(a.on_timeout(now, Facts()))
    b.on_hello(now, Facts(), old)
    first_session = a.session
    for _ in range(2):
        now += HELLO_GAP_NS
        a.restart(now, Facts())
        b.on_timeout(now, Facts())
        fresh = said(b.on_timeout(now + HELLO_GAP_NS, Facts()) or b.restart(now + HELLO_GAP_NS, Facts()))
        a.on_hello(now, Facts(), fresh)
        now += 2 * HELLO_GAP_NS + JITTER_NS
        effects = b.on_hello(now, Facts(), said(a.on_timeout(now, Facts())))
    assert ForgetSession(1, first_session) in effects
    assert b.on_hello(now, Facts(), old) == []
    assert b.session_of(1) == a.session


def test_an_announced_session_is_used_when_the_members_have_proven_it() -> None:
    a, b = station(1, stations=2), station(2, stations=2)
    meet(a, b)
    before = a.session
    now = 200 * MS
    a.renew(now)
    hello = said(a.on_timeout(now, Facts(next=90)))
    assert hello.session == a.announced != before
    assert hello.next == 1
    assert b.on_hello(now, Facts(), hello) == [ReadSession(1, hello.session, 1, 7)], "it echoes what b has said lately"
    assert b.former() == [(1, before)], "both are read"
    now += JITTER_NS
    a.on_hello(now, Facts(), said(b.on_timeout(now, Facts())))
    assert a.session == before
    assert SealUnder(hello.session, 7) in a.on_timeout(now, Facts())
    assert b.on_silent(now, 1, before) == [ForgetSession(1, before)]
    assert b.on_silent(now, 1, a.session) == [], "the present one stays, however long it is silent"


def test_a_session_that_nobody_proves_is_used_after_a_second() -> None:
    a = station(1)
    a.start(0, Facts())
    a.renew(5 * MS)
    announced = a.announced
    assert not [e for e in a.on_timeout(5 * MS + SWITCH_NS - 1, Facts()) if isinstance(e, SealUnder)]
    assert SealUnder(announced or b"", 7) in a.on_timeout(5 * MS + SWITCH_NS, Facts())


def test_after_a_pause_no_frame_leaves_under_the_old_session() -> None:
    a = station(1)
    a.start(0, Facts())
    before = a.session
    effects = a.restart(MS, Facts(next=7))
    assert effects[0] == SealUnder(a.session, 7)
    assert a.session != before


def answers(recorded: list[Hello], seconds: int = 4) -> int:
    """HELLOs that a station says in this time, to which others are sent as fast as the line carries them."""
    a, sent = station(1), 0
    a.start(0, Facts())
    for count, now in enumerate(range(0, 1000 * seconds * MS, MS)):
        a.on_hello(now, Facts(), recorded[count % len(recorded)])
        sent += len(a.on_timeout(now, Facts())) if a.deadline_ns() <= now else 0
    return sent


def test_without_the_rule_each_recorded_hello_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken variant ``AnswersAlways``: as many as the gap between two HELLOs lets out."""
    monkeypatch.setattr(Partner, "answer_at", lambda self, now, session: now)
    assert answers([said(station(2).start(0, Facts()))]) >= 300


def test_recorded_hellos_at_line_rate_cause_few() -> None:
    """Each of them made a hundred a second, at every station. Of many sessions they still cause no more than that."""
    recorded = [said(station(2, seed=seed).start(0, Facts())) for seed in range(ANSWERED_MAX + 20)]
    assert answers(recorded[:1]) <= 5 + 4000 // 160
    assert answers(recorded) <= 400 + 1


def test_who_starts_while_recorded_hellos_come_is_answered_at_once() -> None:
    """Those of its earlier lives wait, not its own; nor does one that is not heard at once and asks again."""
    a = station(1)
    a.start(0, Facts())
    old = said(station(2, seed=1).start(0, Facts()))
    for now in range(0, 2000 * MS, 10 * MS):
        a.on_hello(now, Facts(), old)
        a.on_timeout(now, Facts())
    b = station(2, seed=2)
    now = 2000 * MS
    first = said(b.start(now, Facts(clock=1)))
    for again in (now, now + 20 * MS, now + 60 * MS, now + 140 * MS):
        a.on_hello(again, Facts(), first)
        assert a.deadline_ns() <= again + HELLO_GAP_NS + JITTER_NS
        echo = said(a.on_timeout(again + HELLO_GAP_NS + JITTER_NS, Facts())).said_to(2)
        assert echo is not None and first.challenge in (echo.echo, echo.other)


@pytest.mark.parametrize("asks", [True, False])
def test_who_is_not_read_for_long_hears_a_hello_soon(asks: bool) -> None:
    """1 and 2 hear nothing of each other for 15 s, which each has begun after the other one knew it; then all is well. Without
    the rule they wait for the next round of HELLOs, though frames come all the time."""
    a, b, now = station(1, stations=2), station(2, stations=2), 15_000 * MS
    a.start(0, Facts())
    b.start(0, Facts())
    for trust in (a, b):  # alone they say HELLO again and again: as if somebody else had believed them
        trust._young_ns = 0
        trust._partners[trust.config.station].has_proven = b"seen"
        trust._timers.set(Name.HELLO, now + ROUND_NS)
    end = now + ROUND_NS // 2
    while now < end and not (a.session_of(2) and b.session_of(1)):
        for me, other in ((a, b), (b, a)):
            if asks and other.session_of(me.config.station) is None:
                other.on_unread(now, me.config.station)
            if me.deadline_ns() <= now:
                other.on_hello(now, Facts(), said(me.on_timeout(now, Facts())))
        now += MS
    assert (now < end) is asks
    a.on_unread(now, 64)  # no such station


def test_frames_of_unknown_sessions_cause_few_hellos() -> None:
    a = station(1)
    a.start(0, Facts())
    sent = 0
    for now in range(0, 6400 * MS, MS):
        a.on_unread(now, 2 + now // MS % 2)
        sent += len(a.on_timeout(now, Facts())) if a.deadline_ns() <= now else 0
    assert sent <= 2 * 10 + 16, "of each of two stations one in 640 ms, and those of a station that nobody has heard"


def test_a_flood_of_recorded_hellos_does_not_crowd_out_a_new_one() -> None:
    """Of the two challenges that are echoed one is that of the latest clock."""
    a, b = station(1), station(2)
    a.start(0, Facts())
    old = said(station(2, seed=1).start(0, Facts(clock=10)))
    new = said(b.start(0, Facts(clock=20)))
    a.on_hello(0, Facts(), new)
    for _ in range(100):
        a.on_hello(0, Facts(), old)
    answer = said(a.on_timeout(HELLO_GAP_NS + JITTER_NS, Facts()))
    echo = answer.said_to(2)
    assert echo is not None
    assert {echo.echo, echo.other} == {old.challenge, new.challenge}


def test_a_hello_of_a_session_before_does_not_end_the_present_one() -> None:
    """Held back on its way until the station has taken another session: which is the newer one is seen by what they return."""
    a, b = station(1), station(2)
    meet(a, b)
    now = 50 * MS
    a.restart(now, Facts())
    a.on_hello(now, Facts(), said(b.restart(now, Facts())))
    now += HELLO_GAP_NS + JITTER_NS
    held = said(a.on_timeout(now, Facts()))
    now += HELLO_GAP_NS
    a.restart(now, Facts())
    a.on_hello(now, Facts(), said(b.restart(now, Facts())))
    now += HELLO_GAP_NS + JITTER_NS
    b.on_hello(now, Facts(), said(a.on_timeout(now, Facts())))
    assert b.session_of(1) == a.session
    assert b.on_hello(now, Facts(), held) == []
    assert b.session_of(1) == a.session


def test_an_old_hello_says_nothing_about_what_is_proven() -> None:
    a, b = station(1), station(2)
    old = said(b.start(0, Facts()))
    c = station(2)
    meet(a, c)
    assert a.is_proven_at(2)
    a.on_hello(5_000 * MS, Facts(), replace(old, session=c.session, echoes=(Echo(), Echo(), Echo())))
    assert a.is_proven_at(2)


def with_keys(number: int, *keys: int, stations: int = 2) -> Trust:
    trust = Trust(Config(number, stations, SUITE, number, 1, keys), entropy=random.Random(number).randbytes)
    trust.members = frozenset(range(1, stations + 1))
    return trust


def talk(a: Trust, b: Trust, now: int, rounds: int = 12, instance: tuple[int, int] = (0, 0)) -> tuple[int, list[Effect]]:
    """Each hears every HELLO of the other; the time after, and all effects."""
    seen: list[Effect] = []
    for _ in range(rounds):
        for me, other, (own, theirs) in ((a, b, instance), (b, a, instance[::-1])):
            effects = me.on_timeout(now, Facts(instance=own))
            seen += effects
            for effect in effects:
                if isinstance(effect, SendHello) and set(effect.hello.keys) & set(other.keys):
                    seen += other.on_hello(now, Facts(instance=theirs), effect.hello)
        now += HELLO_GAP_NS
    return now, seen


def test_at_opening_the_newest_key_that_all_read_is_taken() -> None:
    a, b = with_keys(1, 5, 6), with_keys(2, 5)
    a.start(0, Facts())
    b.start(0, Facts())
    assert (a.key, b.key) == (6, 5)
    talk(a, b, 0)
    assert (a.key, b.key) == (5, 5)
    assert a.session_of(2) == b.session and b.session_of(1) == a.session


def test_who_joins_takes_the_key_of_the_instance() -> None:
    a, b = with_keys(1, 5, 6), with_keys(2, 5, 6)
    a.start(0, Facts())
    a.seal_with(0, 5)
    b.start(0, Facts())
    talk(a, b, 0, instance=(4, 0))
    assert (a.key, b.key) == (5, 5)


def test_a_change_is_announced_and_an_unread_key_named() -> None:
    a, b = with_keys(1, 5), with_keys(2, 5)
    a.start(0, Facts())
    b.start(0, Facts())
    now, _ = talk(a, b, 0, instance=(4, 4))
    b.set_keys(now, (5, 6))
    now, _ = talk(a, b, now, instance=(4, 4))
    assert a.reads(2) == (5, 6) and a.sends(2) == 5
    before = b.session
    b.seal_with(now, 6)
    now, seen = talk(a, b, now, instance=(4, 4))
    assert Unread(2, 6) in seen
    assert not any(isinstance(effect, Behind) for effect in seen), "it is read as before"
    assert b.session == before, "it waits for its members, for a second"
    a.set_keys(now, (5, 6))
    now, _ = talk(a, b, now, instance=(4, 4))
    assert b.session != before and a.session_of(2) == b.session
    a.seal_with(now, 6)
    now, _ = talk(a, b, now, instance=(4, 4))
    assert b.session_of(1) == a.session and a.sends(2) == 6
    assert ForgetSession(1, a.session) not in b.set_keys(now, (6,))


def test_who_is_new_says_hello_until_all_have_proven_it() -> None:
    """One that does not hear it at first is not heard by it either, and asks for nothing."""
    a, b, c = (station(number) for number in (1, 2, 3))
    b.start(0, Facts())
    a.start(0, Facts())
    now = HELLO_GAP_NS
    for _ in range(8):  # 3 hears nothing
        for me, other in ((a, b), (b, a)):
            for effect in me.on_timeout(now, Facts()):
                if isinstance(effect, SendHello):
                    other.on_hello(now, Facts(), effect.hello)
        now += HELLO_GAP_NS + JITTER_NS
    assert a.is_proven_at(2) and b.is_proven_at(1)
    assert a.deadline_ns() < now + 700 * MS
    c.start(now, Facts())
    end = now + 700 * MS
    while now < end and c.session_of(1) is None:
        now = max(now, min(a.deadline_ns(), c.deadline_ns()))
        for me, other in ((a, c), (c, a)):
            for effect in me.on_timeout(now, Facts()) if me.deadline_ns() <= now else ():
                if isinstance(effect, SendHello):
                    other.on_hello(now, Facts(), effect.hello)
    assert c.session_of(1) == a.session


def test_two_changes_in_a_row_end_no_session_that_is_in_use() -> None:
    """Two are read of a station: that in use, and one that is announced. A member that has died holds the first change up."""
    a, b = (with_keys(number, 5, 6, 7, stations=3) for number in (1, 2))
    for trust in (a, b):
        trust.start(0, Facts())
        trust.seal_with(0, 5)
    now, _ = talk(a, b, 0, instance=(4, 4))
    now, _ = talk(a, b, now + SWITCH_NS, instance=(4, 4))
    used, seen = b.session, []
    for key in (6, 7):
        b.seal_with(now, key)
        now, effects = talk(a, b, now, instance=(4, 4))
        seen += effects
    assert b.session == used and b.announced is not None and (b.key, b.wanted) == (6, 7)
    assert ForgetSession(2, used) not in seen
    now, _ = talk(a, b, now + SWITCH_NS, instance=(4, 4))
    now, _ = talk(a, b, now + SWITCH_NS, instance=(4, 4))
    assert a.session_of(2) == b.session != used and b.key == 7 and b.uses(2) == {7}


def test_sessions_under_a_key_that_is_gone_end() -> None:
    a, b = with_keys(1, 5, 6), with_keys(2, 5)
    a.start(0, Facts())
    b.start(0, Facts())
    now, _ = talk(a, b, 0)
    session = b.session
    assert a.set_keys(now, (6,)) == [ForgetSession(2, session)]


def test_only_a_living_twin_is_one() -> None:
    a, twin = station(1), station(1, seed=1)
    own = said(a.start(0, Facts()))
    assert a.on_hello(0, Facts(), own) == [], "an own one that came back"
    earlier = said(station(1, seed=2).start(0, Facts()))
    assert a.on_hello(0, Facts(), earlier) == [], "a recorded one of an earlier life"
    twin.start(0, Facts())
    now = HELLO_GAP_NS + JITTER_NS
    twin.on_hello(now, Facts(), own)
    now += JITTER_NS
    found = said(twin.on_timeout(now, Facts()))
    assert a.on_hello(now, Facts(), found) == [Twin(found)]


def test_another_suite_is_named_and_not_believed() -> None:
    a, b = station(1), station(2, suite=SUITE + 16)
    a.start(0, Facts())
    assert a.on_hello(0, Facts(), said(b.start(0, Facts()))) == [Unlike(2, SUITE + 16)]


def test_a_hello_of_many_stations_has_parts_that_fit_the_least_mtu() -> None:
    hello = replace(
        said(station(1).start(0, Facts())), echoes=tuple(Echo(i, i, i) for i in range(64)), stations=64, keys=(1, 2, 3, 4)
    )
    bodies = hello.bodies()
    assert len(bodies) == 64 // ECHOES_PER_PART
    assert max(map(len, bodies)) + ENVELOPE.size + TAG_BYTES == HELLO_BYTES_MAX <= MTU_MIN
    envelope = Envelope(1, 2, 1, SUITE, 0, hello.session[:4], 0)
    for part, body in enumerate(bodies):
        read = Hello.read(envelope, body)
        assert read is not None
        assert [read.said_to(s) for s in range(1, 65)].count(None) == 64 - ECHOES_PER_PART
        assert read.said_to(part * ECHOES_PER_PART + 3) == Echo(*[part * ECHOES_PER_PART + 2] * 3)


def test_no_bytes_make_reading_a_hello_raise() -> None:
    rng = random.Random(1)
    good = said(station(1).start(0, Facts())).bodies()[0]
    envelope = Envelope(1, 2, 1, SUITE, len(good), good[:4], 0)
    for size in range(len(good)):
        assert Hello.read(envelope, good[:size]) is None
    for _ in range(2000):
        changed = bytearray(good)
        changed[rng.randrange(len(changed))] = rng.randrange(256)
        hello = Hello.read(envelope, bytes(changed))
        if hello is not None:
            station(2).on_hello(0, Facts(), hello)


def test_the_window() -> None:
    window = Window(10)
    assert window.look(9) is Drop.LATE
    for number in (10, 12, 10 + WINDOW):
        assert window.look(number) is None
        window.mark(number)
        assert window.look(number) is (Drop.LATE if number == 10 and window.top > 12 else Drop.REPLAYED)
    assert window.look(10) is Drop.LATE
    assert window.look(11) is None, "the oldest that still counts"
    assert window.look(12) is Drop.REPLAYED
    window.mark(2**50)
    assert window.look(2**50 - WINDOW) is Drop.LATE
    assert window.look(2**50 - WINDOW + 1) is None
