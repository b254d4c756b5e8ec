"""The OPEN agreement by itself: several stations on the virtual segment.

There is no agreement by votes here: a member that learns that another one recovers ends its own life in the instance, so that
all of them open anew, as they do when too few are left.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zenjun.proto.effects import NOTICE_GAP_NS, Closed, Effect, Notice, Opened, Persist, Refused, Send
from zenjun.proto.openconfig import OpeningConfig
from zenjun.proto.opening import Opening
from zenjun.proto.openpdu import (
    INCARNATION_MAX,
    INSTANCE_MAX,
    NO_PAST,
    OpenPdu,
    OpenProposal,
    Past,
    decode_open,
    encode_open,
)
from zenjun.proto.openstate import TRANSITIONS, Cause, State
from zenjun.proto.outcomes import Outcome, Recovering
from zenjun.proto.wire import HEADER, MEMBER, OPEN, Kind, view_hash

from ..virtual.segment import MS, NEVER, Segment, lose_nothing

INTERVAL, WINDOW = 100 * MS, 500 * MS
START = 10_000 * MS


def no_checksum(pdu: bytes) -> bytes:
    """Checksums are the core's business."""
    return pdu


class Station:
    """A daemon, its disk, and what it was told to do."""

    def __init__(self, number: int, n: int, *, boot: int | None = None, host: str | None = None, fingerprint: int = 7) -> None:
        self.number, self.n = number, n
        self.boot = boot if boot is not None else 1000 + number
        self.host = host or f"host{number}"
        self.fingerprint = fingerprint
        self.mac = bytes([2, 0, 0, 0, 0, self.boot % 251])
        self.stored = (0, 0)
        self.frame_max = 1500
        self.effects: list[Outcome] = []
        self.outbox: list[bytes] = []
        self.instances: list[OpenProposal] = []
        self.flushes: list[tuple[int, int]] = []
        """(instance it comes from, PDUs of it to be delivered first), of this process."""
        self.lives = [0] * n
        self.reached: int | None = 0
        """PDUs that are at preack when its instance ends."""
        self.running = False

    def boot_up(self, now: int) -> None:
        self.opening = Opening(
            OpeningConfig(
                cluster_id=1,
                stations=self.n,
                station=self.number,
                fingerprint=self.fingerprint,
                boot=self.boot,
                host_name=self.host,
                interval_ns=INTERVAL,
                window_ns=WINDOW,
                recover_ns=INTERVAL,
            ),
            incarnation=self.stored[0] + 1,
            instance=self.stored[1],
            frame_max=self.frame_max,
            add_checksum=no_checksum,
            reached=lambda: None if self.reached is None else Past(self.view, self.reached),
            held=lambda station: self.opening.instance.incarnation_of(station) if self.opening.instance else 0,
            life_of=lambda station: self.lives[station - 1],
        )
        self.opening.mac = self.mac
        self.flushes = []
        self.running = True
        self.carry_out(self.opening.start(now), now)

    @property
    def view(self) -> int:
        """Hash of the instance it is in."""
        assert self.opening.instance is not None
        lives = dict(self.opening.instance.members)
        return view_hash(self.opening.instance.instance, [lives.get(k, 0) for k in range(1, self.n + 1)])

    def carry_out(self, effects: Sequence[Outcome], now: int = 0) -> None:
        for effect in effects:
            if isinstance(effect, Recovering):
                assert self.opening.instance is not None
                if effect.incarnation > self.opening.instance.incarnation_of(effect.station):
                    self.carry_out(self.opening.renew(now, f"station {effect.station} has begun a new life", effect.station), now)
                continue
            self.effects.append(effect)
            match effect:
                case Persist(incarnation, highest):
                    assert incarnation >= self.stored[0] and highest >= self.stored[1], "numbers on disk never shrink"
                    self.stored = (incarnation, highest)
                case Send(data):
                    pdu = decode_open(data, self.n)
                    assert pdu is not None, "only sensible OPENs are sent"
                    assert pdu.incarnation <= self.stored[0] and pdu.highest <= self.stored[1], "durable before it is told"
                    self.outbox.append(data)
                case Opened():
                    instance, past = self.opening.instance, self.opening.past
                    assert instance is not None
                    flushed = max((r for _, view, r in instance.pasts if past.view and view == past.view), default=0)
                    self.flushes.append((self.instances[-1].instance if past.view else 0, flushed))
                    assert flushed >= past.reached, "what was released here is never taken back"
                    self.instances.append(instance)
                    self.lives = [max(pair) for pair in zip(self.lives, effect.incarnations, strict=True)]
                case _:
                    pass

    @property
    def instance(self) -> OpenProposal | None:
        return self.opening.instance if self.running else None

    # ---- as the segment sees it

    def collect(self) -> list[bytes]:
        sent, self.outbox = self.outbox, []
        return sent

    def on_frames(self, now: int, batch: list[tuple[bytes, bytes]]) -> None:
        for pdu, mac in batch if self.running else ():
            self.carry_out(self.opening.on_pdu(now, pdu, mac), now)

    def next_deadline_ns(self) -> int:
        return self.opening.next_deadline_ns() if self.running else NEVER

    def on_timeout(self, now: int) -> None:
        self.carry_out(self.opening.on_timeout(now), now)

    def said(self, kind: type[Effect]) -> list[Outcome]:
        return [e for e in self.effects if isinstance(e, kind)]


class Network(Segment[Station]):
    """Frames arrive a millisecond after they were sent."""

    def __init__(self, *stations: Station) -> None:
        super().__init__(stations, now=START, latency_ns=MS)


def cluster(n: int = 3) -> Network:
    return Network(*(Station(i + 1, n) for i in range(n)))


def opened(n: int = 3) -> Network:
    net = cluster(n)
    for s in net.stations:
        s.boot_up(net.now)
    net.until(lambda: all(s.instance for s in net.stations))
    net.run(WINDOW)
    return net


def together(net: Network) -> bool:
    """All in one instance."""
    return len({s.instance for s in net.stations if s.running}) == 1 and net.stations[0].instance is not None


# ---- table


def test_transitions_are_total() -> None:
    assert set(TRANSITIONS) == {(state, cause) for state in State for cause in Cause}


def test_an_ended_station_stays_ended() -> None:
    assert {TRANSITIONS[State.ENDED, cause] for cause in Cause} == {State.ENDED}


# ---- codec


@st.composite
def proposals(draw: st.DrawFn, n: int = 3) -> OpenProposal:
    number = draw(st.integers(1, INSTANCE_MAX))
    lives = draw(st.dictionaries(st.integers(1, n), st.integers(1, INCARNATION_MAX), min_size=1, max_size=n))
    pasts = [(s, draw(st.integers(1, 2**32 - 1)), draw(st.integers(0, 2**64 - 1))) for s in sorted(lives) if number > 1]
    return OpenProposal(number, tuple(sorted(lives.items())), tuple(p for p in pasts if draw(st.booleans())))


@st.composite
def open_pdus(draw: st.DrawFn) -> OpenPdu:
    proposal = draw(st.none() | proposals())
    src, life = (
        draw(st.sampled_from(proposal.members)) if proposal else (draw(st.integers(1, 3)), draw(st.integers(1, INCARNATION_MAX)))
    )
    highest = draw(st.integers(proposal.instance if proposal else 0, INSTANCE_MAX))
    if proposal:
        past = next((Past(*rest) for station, *rest in proposal.pasts if station == src), NO_PAST)
    else:
        past = draw(st.just(NO_PAST) | st.builds(Past, st.integers(1, 2**32 - 1), st.integers(0, 2**64 - 1)))
    return OpenPdu(
        src=src,
        incarnation=life,
        frame_max=draw(st.integers(512, 65535)),
        proposal=proposal,
        highest=highest,
        fingerprint=draw(st.integers(0, 2**32 - 1)),
        age_ms=draw(st.integers(0, 2**32 - 1)),
        boot=draw(st.integers(0, 2**64 - 1)),
        started=draw(st.booleans()) and proposal is not None,
        host=draw(st.text("abc-é", max_size=40)),
        past=past,
    )


def encoded(pdu: OpenPdu) -> bytes:
    return encode_open(pdu, cluster=1, stations=3, checksum=no_checksum)


@given(open_pdus())
def test_codec_round_trip(pdu: OpenPdu) -> None:
    assert decode_open(encoded(pdu), 3) == pdu
    assert decode_open(encoded(pdu) + bytes(20), 3) == pdu, "Ethernet padding"
    assert decode_open(encoded(pdu), 4) is None


@given(open_pdus(), st.data())
def test_decoding_is_total(pdu: OpenPdu, data: st.DataObject) -> None:
    good = bytearray(encoded(pdu))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    damaged = decode_open(bytes(good), 3)
    assert damaged is None or (1 <= damaged.src <= 3 and damaged.highest <= INSTANCE_MAX)
    cut = data.draw(st.integers(0, len(good) - 1))
    assert decode_open(encoded(pdu)[:cut], 3) is None


@given(st.binary(max_size=200))
def test_decoding_any_bytes(data: bytes) -> None:
    decode_open(data, 3)


def test_host_names_from_the_wire_are_made_safe_to_show() -> None:
    pdu = OpenPdu(1, 1, 1500, None, 0, 0, 0, 0, False, "evil\x1b[2J\n")
    decoded = decode_open(encoded(pdu), 3)
    assert decoded is not None and decoded.host == "evil?[2J?"


@pytest.mark.parametrize(
    "wrong",
    [
        {"proposal": OpenProposal(5, ((2, 1), (1, 1)))},  # not sorted
        {"proposal": OpenProposal(5, ((1, 1), (1, 1)))},  # a station twice
        {"proposal": OpenProposal(5, ((1, 1), (4, 1)))},  # no such station
        {"proposal": OpenProposal(5, ((1, 2),))},  # proposes an own life that is not its own
        {"proposal": OpenProposal(5, ((2, 1),))},  # a set without itself
        {"proposal": OpenProposal(11, ((1, 1),))},  # above its own highest
        {"proposal": OpenProposal(5, ((1, 0),)), "incarnation": 0},
        {"highest": INSTANCE_MAX + 1},
        {"frame_max": 100},
        {"started": True},  # what?
        {"past": Past(0, 3)},  # something of nothing
        {"proposal": OpenProposal(5, ((1, 1),)), "recovering": True},  # asks to be let in, and proposes
    ],
)
def test_senseless_opens_are_counted_and_dropped(wrong: dict[str, object]) -> None:
    pdu = replace(OpenPdu(1, 1, 1500, None, 10, 7, 0, 1, False, "x"), **wrong)  # type: ignore[arg-type]
    assert decode_open(encoded(pdu), 3) is None
    net = opened()
    before = net.stations[1].opening.malformed
    assert net.stations[1].opening.on_pdu(net.now, encoded(pdu), net.stations[0].mac) == []
    assert net.stations[1].opening.malformed == before + 1


# ---- opening


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_all_stations_start_one_instance_and_fall_silent(n: int) -> None:
    net = opened(n)
    assert together(net)
    assert net.stations[0].instance == OpenProposal(1, tuple((i + 1, 1) for i in range(n)))
    assert all(len(s.instances) == 1 for s in net.stations)
    before = len(net.frames)
    net.run(60_000 * MS)
    assert len(net.frames) == before, "who is in an instance sends OPEN only when asked"


def test_the_first_effect_makes_the_incarnation_durable() -> None:
    station = Station(1, 3)
    station.boot_up(START)
    assert station.effects[0] == Persist(1, 0)


def test_nothing_happens_while_one_is_missing() -> None:
    net = cluster(3)
    for s in net.stations[:2]:
        s.boot_up(net.now)
    net.run(5_000 * MS)
    assert not any(s.instance for s in net.stations)
    assert net.stations[0].opening.missing(net.now) == ((3, "never seen"),)
    assert net.stations[0].opening.highest == 0, "nothing is proposed without quorum"
    net.stations[2].boot_up(net.now)
    net.until(lambda: together(net))
    assert net.stations[0].opening.missing(net.now) == ()


def test_who_was_heard_and_is_gone_is_silent() -> None:
    net = cluster(3)
    for s in net.stations[:2]:
        s.boot_up(net.now)
    net.run(2 * WINDOW)
    net.stations[1].running = False
    net.run(2 * WINDOW)
    assert net.stations[0].opening.missing(net.now) == ((2, "silent"), (3, "never seen"))


def test_a_newcomer_listens_for_a_window_before_it_proposes() -> None:
    net = cluster(2)
    net.stations[0].boot_up(net.now)
    net.run(5_000 * MS)
    net.stations[1].boot_up(net.now)
    net.run(WINDOW - 10 * MS)
    assert net.stations[1].opening.state is State.LISTENING
    told = [decode_open(e.pdu, 2) for e in net.stations[1].said(Send) if isinstance(e, Send)]
    assert told and all(pdu is not None and pdu.proposal is None for pdu in told)
    net.until(lambda: together(net), 20 * MS)


def test_opening_survives_loss() -> None:
    rng = random.Random(5)
    net = cluster(5)
    net.lost = lambda source, to, pdu: rng.random() < 0.5
    for s in net.stations:
        s.boot_up(net.now)
    net.until(lambda: together(net), 60_000 * MS)


def test_a_member_that_missed_the_last_open_is_told() -> None:
    """Station 3 has issued the proposal but hears nobody else issue it; the others start; its late OPEN is answered."""
    net = cluster(3)
    third = net.stations[2]

    def lost(source: Station, to: Station, data: bytes) -> bool:
        pdu = decode_open(data, 3)
        return to is third and pdu is not None and pdu.proposal is not None

    net.lost = lost
    for s in net.stations:
        s.boot_up(net.now)
    net.until(lambda: net.stations[0].instance is not None)
    assert third.instance is None
    net.run(1_000 * MS)
    before = len(net.frames)
    net.lost = lose_nothing
    net.until(lambda: together(net), 2 * INTERVAL)
    net.run(1_000 * MS)
    assert len(net.frames) - before < 12, "answers are rate-limited"


def test_judging_an_older_proposal_needs_a_member_that_started_it() -> None:
    """Station 1 issued (1, S), then adopted (9, S) from station 2. A plain (1, S) of the others must not complete what 1 has left
    behind; one that is STARTED does: its sender never went on."""
    one = Station(1, 3)
    one.boot_up(START)
    now = START + 600 * MS
    one.carry_out(one.opening.on_timeout(now))
    members = ((1, 1), (2, 1), (3, 1))

    def hear(src: int, proposal: OpenProposal | None, *, started: bool = False) -> None:
        pdu = OpenPdu(src, 1, 1500, proposal, proposal.instance if proposal else 0, 7, 1000, src, started, "x")
        one.carry_out(one.opening.on_pdu(now, encoded(pdu), bytes(6)))
        one.carry_out(one.opening.on_timeout(now))

    hear(2, None)
    hear(3, None)
    assert one.opening.highest == 1
    hear(2, OpenProposal(9, members))  # adopted
    hear(3, OpenProposal(1, members))
    hear(2, OpenProposal(1, members))  # a frame from before
    assert one.instance is None
    hear(3, OpenProposal(1, members), started=True)
    assert one.instance == OpenProposal(1, members)


def ready(number: int, n: int) -> tuple[Station, int]:
    """A station that has listened, and the time."""
    one = Station(number, n)
    one.boot_up(START)
    one.carry_out(one.opening.on_timeout(START + 600 * MS))
    return one, START + 600 * MS


def test_a_colleague_that_may_be_in_the_instance_agreed_on_is_asked_whether_it_is() -> None:
    """Station 3 has missed the last word of station 1; station 2 has not, and beats in the instance, or in one that began by
    votes, with the same number and members: a CONFIRM does not tell which. After a window it asks to be let in."""
    one, now = ready(3, 3)
    for src in (1, 2):
        pdu = OpenPdu(src, 1, 1500, None, 0, 7, 1000, src, False, "x")
        one.carry_out(one.opening.on_pdu(now, encoded(pdu), bytes(6)))
    one.carry_out(one.opening.on_timeout(now))
    assert one.opening.issued == 1 and one.instance is None
    view = view_hash(1, (1, 1, 1))
    for src, instance, said in ((2, 1, view ^ 1), (2, 2, view), (2, 1, view_hash(1, (1, 1, 2))), (4, 1, view)):
        assert one.opening.on_view(now, src, instance, said) is None, "another instance, or no member"
    now += INTERVAL
    asked = one.opening.on_view(now, 2, 1, view)
    assert asked is not None and one.instance is None
    said_own = [decode_open(e.pdu, 3) for e in asked if isinstance(e, Send)]
    assert len(said_own) == 1 and said_own[0] is not None and said_own[0].proposal == OpenProposal(1, ((1, 1), (2, 1), (3, 1)))
    assert one.opening.on_view(now + WINDOW, 2, 1, view) is None
    answer = OpenPdu(2, 1, 1500, said_own[0].proposal, 1, 7, 1000, 2, True, "x")
    one.carry_out(one.opening.on_pdu(now, encoded(answer), bytes(6)))
    assert one.instance == said_own[0].proposal
    assert one.opening.on_view(now, 2, 1, view) is None


def test_what_several_opens_lead_to_is_looked_at_once() -> None:
    one, now = ready(1, 3)
    for src in (2, 3):
        pdu = OpenPdu(src, 1, 1500, None, 0, 7, 1000, src, False, "x")
        one.carry_out(one.opening.on_pdu(now, encoded(pdu), bytes(6)))
        assert one.opening.issued == 0 and one.opening.next_deadline_ns() <= now
    one.carry_out(one.opening.on_timeout(now))
    assert one.opening.issued == 1


def test_race_of_numbers_ends_with_the_highest() -> None:
    net = cluster(3)
    for s, number in zip(net.stations, (5, 90, 33), strict=True):
        s.stored = (s.number * 10, number)
        s.boot_up(net.now)
    net.until(lambda: together(net))
    assert net.stations[0].instance == OpenProposal(91, ((1, 11), (2, 21), (3, 31)))


def test_race_a_colleagues_higher_number_is_adopted() -> None:
    one = Station(1, 2)
    one.boot_up(START)
    now = START + 600 * MS
    one.carry_out(one.opening.on_timeout(now))
    pdu = OpenPdu(2, 4, 1500, OpenProposal(8, ((1, 1), (2, 4))), 8, 7, 1000, 2, False, "two")
    one.carry_out(one.opening.on_pdu(now, encode_open(pdu, cluster=1, stations=2, checksum=no_checksum), bytes(6)))
    one.carry_out(one.opening.on_timeout(now))
    assert one.instance == OpenProposal(8, ((1, 1), (2, 4)))
    assert one.stored == (1, 8), "durable before it was sent"


def test_the_smallest_frame_max_counts() -> None:
    net = cluster(3)
    net.stations[1].frame_max = 9000
    net.stations[2].frame_max = 1400
    for s in net.stations:
        s.boot_up(net.now)
    net.until(lambda: together(net))
    assert {e.frame_max for s in net.stations for e in s.said(Opened) if isinstance(e, Opened)} == {1400}


def test_instance_numbers_used_up_is_said() -> None:
    net = cluster(1)
    net.stations[0].stored = (1, INSTANCE_MAX)
    net.stations[0].boot_up(net.now)
    net.run(3_000 * MS)
    assert net.stations[0].instance is None
    assert [e.kind for e in net.stations[0].said(Notice) if isinstance(e, Notice)] == ["exhausted"]


# ---- restarts


def test_restart_of_a_member_ends_the_instance_and_all_open_anew() -> None:
    net = opened()
    first = net.stations[0].instance
    net.stations[1].boot = 77
    net.stations[1].boot_up(net.now)
    net.run(WINDOW - 20 * MS)
    assert net.stations[0].instance == first, "a newcomer still listens: it might be a duplicate"
    net.until(lambda: together(net), 300 * MS)
    closed = net.stations[0].said(Closed)
    assert [(e.instance, e.station) for e in closed if isinstance(e, Closed)] == [(1, 2)]
    instance = net.stations[0].instance
    assert instance is not None and instance.instance > 1
    assert [life for _, life in instance.members] == [2, 2, 2]
    assert [s.stored[0] for s in net.stations] == [2, 2, 2]
    assert all(len(s.instances) == 2 for s in (net.stations[0], net.stations[2]))
    before = len(net.frames)
    net.run(10_000 * MS)
    assert len(net.frames) == before


def test_restart_of_all_at_once() -> None:
    net = opened()
    for s in net.stations:
        s.boot += 50
        s.boot_up(net.now)
    net.until(lambda: together(net), 2_000 * MS)


def test_restarting_every_second_always_heals() -> None:
    """cases.md 3: one station restarted again and again never leaves the others stuck."""
    net = opened()
    for round_ in range(10):
        net.stations[2].boot = 500 + round_
        net.stations[2].boot_up(net.now)
        net.run(1_000 * MS)
    net.until(lambda: together(net), 2_000 * MS)
    instance = net.stations[0].instance
    assert instance is not None and instance.incarnation_of(3) == net.stations[2].opening.incarnation


def test_outdated_a_paused_station_learns_that_it_was_replaced() -> None:
    """Station 3 stands still while the others restart and open with a new life of it (its disk moved to another machine)."""
    net = opened()
    paused, spare = net.stations[2], Station(3, 3, boot=333, host="spare")
    spare.stored = paused.stored
    net.stations[2] = spare
    spare.boot_up(net.now)
    net.until(lambda: together(net))
    net.stations.append(paused)
    # It runs again and hears of the instance it is not in.
    paused.outbox.clear()
    net.stations[0].outbox.extend(e.pdu for e in net.stations[0].effects[-1:] if isinstance(e, Send))
    net.until(lambda: not paused.opening.instance and paused.opening.state is State.ENDED, 3_000 * MS)
    assert paused.said(Refused)
    assert len({s.instance for s in net.stations[:3]}) == 1
    assert not spare.said(Closed) and len(spare.instances) == 1


def test_outdated_a_lost_state_file_heals() -> None:
    """A station whose disk was wiped starts as incarnation 1 again; the others know a later life of it."""
    net = opened()
    for round_ in range(3):
        net.stations[1].boot = 900 + round_
        net.stations[1].boot_up(net.now)
        net.run(2_000 * MS)
    assert together(net)
    net.stations[1].stored = (0, 0)
    net.stations[1].boot = 999
    net.stations[1].boot_up(net.now)
    net.run(10 * MS)
    net.until(lambda: together(net), 5_000 * MS)
    instance = net.stations[0].instance
    assert instance is not None and instance.incarnation_of(2) > 4


def test_outdated_the_very_same_life_without_memory() -> None:
    """Disk restored from a backup: the life it takes is the one the others are in an instance with."""
    net = opened()
    net.stations[1].stored = (0, 0)
    net.stations[1].boot = 4
    net.stations[1].boot_up(net.now)
    net.run(10 * MS)
    net.until(lambda: together(net) and net.stations[0].instance != OpenProposal(1, ((1, 1), (2, 1), (3, 1))), 5_000 * MS)


def test_outdated_whoever_asks_with_a_used_life_is_told_which_one() -> None:
    """Its incarnation was a member once, and was removed: only a later one can be let in. No proposal it ever issued is meant."""
    net = opened()
    one, three = net.stations[0].opening, net.stations[2].opening
    one.instance = three.instance = None
    net.stations[0].lives[2] = three.incarnation
    one.instance, one.current = OpenProposal(5, ((1, 1),)), 5
    for station in (net.stations[0], net.stations[2]):
        station.carry_out(station.opening.note_instance(5), net.now)
    asks = OpenPdu(3, three.incarnation, 1500, None, 5, 7, 10_000, 1003, False, "host3", recovering=True)
    net.run(INTERVAL)
    (said,) = [e.pdu for e in one.on_pdu(net.now, encoded(asks), net.stations[2].mac) if isinstance(e, Send)]
    answer = decode_open(said, 3)
    assert answer is not None and answer.outdated and answer.proposal == OpenProposal(5, ((1, 1), (3, 1)))
    three.state = State.PROPOSING
    three._issued.add(answer.proposal)  # it may have proposed just that
    effects = three.on_pdu(net.now, said, net.stations[0].mac)
    net.stations[2].carry_out(effects, net.now)
    assert not any(isinstance(e, Opened) for e in effects) and three.state is State.LISTENING
    net.run(WINDOW)
    assert three.incarnation == 2


def test_a_number_that_a_former_life_may_have_used_is_not_adopted() -> None:
    """Station 1 went on alone to instance 35 (it may: it has the casting vote), and died. Station 2, which knows nothing of that,
    proposes 35 when both are back: one number for two instances."""
    one = Station(1, 2)
    one.stored = (12, 42)
    one.boot_up(START)
    one.carry_out(one.opening.on_timeout(START + WINDOW), START + WINDOW)
    two = OpenPdu(2, 12, 1500, OpenProposal(35, ((1, 13), (2, 12))), 35, 7, 10_000, 1002, False, "host2")
    one.carry_out(
        one.opening.on_pdu(START + WINDOW + MS, encode_open(two, cluster=1, stations=2, checksum=no_checksum), b"2"), START
    )
    one.carry_out(one.opening.on_timeout(START + WINDOW + MS), START)
    assert not one.instances
    said = decode_open(one.outbox[-1], 2)
    assert said is not None and said.proposal == OpenProposal(43, ((1, 13), (2, 12)))


def test_a_delayed_open_of_an_earlier_life_changes_nothing() -> None:
    net = opened()
    old = [e.pdu for e in net.stations[1].said(Send) if isinstance(e, Send)]
    net.stations[1].boot = 42
    net.stations[1].boot_up(net.now)
    net.until(lambda: together(net) and len(net.stations[0].instances) == 2)
    instance = net.stations[0].instance
    for pdu in old:
        net.stations[0].carry_out(net.stations[0].opening.on_pdu(net.now, pdu, net.stations[1].mac))
    net.run(2_000 * MS)
    assert together(net) and net.stations[0].instance == instance


def test_frames_of_another_instance_are_answered_at_a_limited_rate() -> None:
    net = opened()
    one = net.stations[0]
    stranger = bytearray(encoded(OpenPdu(2, 9, 1500, None, 0, 7, 0, 1, False, "")))
    stranger[HEADER.offset("kind")] = Kind.CONFIRM
    for i in range(100):
        one.carry_out(one.opening.on_pdu(net.now + i * MS, bytes(stranger), net.stations[1].mac))
        one.carry_out(one.opening.on_timeout(net.now + i * MS))
    assert len(one.outbox) <= 2


# ---- two daemons with one number


def test_duplicate_newcomer_is_refused_and_disturbs_nobody() -> None:
    net = opened()
    instance = net.stations[0].instance
    double = Station(2, 3, boot=50, host="double")
    double.stored = (40, 0)  # it even claims a later life
    net.stations.append(double)
    double.boot_up(net.now)
    net.run(3_000 * MS)
    (refused,) = double.said(Refused)
    assert isinstance(refused, Refused)
    for name in ("host2", "double", net.stations[1].mac.hex(":"), double.mac.hex(":")):
        assert name in refused.message
    (notice,) = net.stations[1].said(Notice)
    assert isinstance(notice, Notice) and notice.kind == "duplicate" and double.mac.hex(":") in notice.message
    assert {s.instance for s in net.stations[:3]} == {instance}
    assert double.opening.state is State.ENDED
    before = len(net.frames)
    net.run(3_000 * MS)
    assert len(net.frames) == before


def test_duplicate_while_opening_the_older_stays() -> None:
    net = Network(Station(1, 2), Station(1, 2, boot=5, host="younger"))
    net.stations[0].boot_up(net.now)
    net.run(3_000 * MS)
    net.stations[1].boot_up(net.now)
    net.run(3_000 * MS)
    assert net.stations[0].opening.state is State.PROPOSING
    assert net.stations[1].opening.state is State.ENDED


def test_duplicate_started_together_exactly_one_stays() -> None:
    net = Network(Station(1, 2, boot=9), Station(1, 2, boot=5))
    for s in net.stations:
        s.boot_up(net.now)
    net.run(3_000 * MS)
    assert [s.opening.state is State.ENDED for s in net.stations] == [True, False]


def test_duplicate_known_by_a_confirm_from_another_address() -> None:
    net = opened()
    one = net.stations[0]
    confirm = bytearray(encoded(OpenPdu(1, 1, 1500, None, 0, 7, 0, 1, False, "")))
    confirm[HEADER.offset("kind")] = Kind.CONFIRM
    assert one.opening.on_pdu(net.now, bytes(confirm), one.mac) == [], "an own frame that came back"
    one.carry_out(one.opening.on_pdu(net.now, bytes(confirm), bytes.fromhex("02aabbccddee")))
    assert len(one.outbox) == 1
    (notice,) = one.said(Notice)
    assert isinstance(notice, Notice) and "02:aa:bb:cc:dd:ee" in notice.message


def test_own_frames_that_come_back_are_said_once() -> None:
    net = opened()
    one = net.stations[0]
    own = [e.pdu for e in one.said(Send) if isinstance(e, Send)]
    for i in range(20):
        one.carry_out(one.opening.on_pdu(net.now + i, own[i % len(own)], one.mac))
    assert [e.kind for e in one.said(Notice) if isinstance(e, Notice)] == ["loop"]
    assert one.instance


def test_a_late_frame_of_this_hosts_earlier_daemon_refuses_nobody() -> None:
    net = opened()
    one = net.stations[0]
    own = [e.pdu for e in one.said(Send) if isinstance(e, Send)]
    one.boot += 1
    one.boot_up(net.now)
    for pdu in own:
        one.carry_out(one.opening.on_pdu(net.now, pdu, one.mac))
    assert one.opening.state is State.LISTENING


# ---- options


def test_other_cluster_options_are_named_and_not_admitted() -> None:
    net = Network(Station(1, 2), Station(2, 2, fingerprint=8))
    for s in net.stations:
        s.boot_up(net.now)
    net.run(3_000 * MS)
    assert not any(s.instance for s in net.stations)
    (notice,) = net.stations[0].said(Notice)
    assert isinstance(notice, Notice) and notice.kind == "options"
    for name in ("host1", "host2", "00000007", "00000008"):
        assert name in notice.message
    net.run(NOTICE_GAP_NS)
    assert len(net.stations[0].said(Notice)) == 2, "repeated, but not often"


def test_newcomer_with_other_options_is_told_by_those_in_an_instance() -> None:
    net = opened()
    newcomer = net.stations[-1]
    newcomer.fingerprint = 8
    newcomer.boot += 1
    newcomer.boot_up(net.now)
    net.run(3_000 * MS)
    assert any(isinstance(n, Notice) and "other cluster options" in n.message for n in newcomer.said(Notice))


def test_leaving_takes_part_in_nothing() -> None:
    net = opened()
    net.stations[0].opening.leave(net.now)
    net.stations[1].boot = 3
    net.stations[1].boot_up(net.now)
    before = len(net.stations[0].effects)
    net.run(2_000 * MS)
    assert len(net.stations[0].effects) == before


# ---- everything at once


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_schedule_of_loss_delay_and_restarts(seed: int) -> None:
    """Same number, same members, whatever happens; and one instance of all soon after it stops happening."""
    rng = random.Random(seed)
    n = rng.choice([2, 3, 3, 4])
    net = cluster(n)
    delayed: list[tuple[Station, bytes]] = []
    loss = rng.choice([0.0, 0.2, 0.6])

    def lost(source: Station, to: Station, pdu: bytes) -> bool:
        if rng.random() < 0.2:
            delayed.append((source, pdu))
        return rng.random() < loss

    net.lost = lost
    for s in net.stations:
        s.stored = (rng.randrange(5), rng.randrange(5))
    boots = iter(range(2000, 3000))
    for _ in range(30):
        net.run(rng.randrange(300) * MS)
        what, s = rng.random(), rng.choice(net.stations)
        for each in net.stations:
            each.reached = rng.randrange(10)
        if what < 0.35 or not s.running:
            s.boot = next(boots)
            s.boot_up(net.now)
        elif what < 0.5:
            s.running = False
        for source, pdu in rng.sample(delayed, min(len(delayed), 5)):
            for to in net.stations:
                if to is not source and to.running:
                    to.carry_out(to.opening.on_pdu(net.now, pdu, source.mac), net.now)
    net.lost = lose_nothing
    for s in net.stations:
        if not s.running:
            s.boot = next(boots)
            s.boot_up(net.now)
    net.until(lambda: together(net), 10_000 * MS)
    net.run(5_000 * MS)
    assert together(net)
    before = len(net.frames)
    net.run(20_000 * MS)
    assert len(net.frames) == before
    by_number: dict[int, set[OpenProposal]] = {}
    for s in net.stations:
        numbers = [p.instance for p in s.instances]
        assert numbers == sorted(set(numbers)), "a station never enters an older instance"
        for p in s.instances:
            by_number.setdefault(p.instance, set()).add(p)
    assert all(len(same) == 1 for same in by_number.values())
    ends: dict[int, set[int]] = {}
    for past, flushed in (flush for s in net.stations for flush in s.flushes if flush[0]):
        ends.setdefault(past, set()).add(flushed)
    assert all(len(same) == 1 for same in ends.values()), "whoever goes on from one instance delivers the same of it"


# ---- what is left of the last instance


def test_flush_all_deliver_up_to_the_highest_of_those_who_go_on() -> None:
    """A restarted process brings nothing, whatever it had released."""
    net = opened(4)
    for s, reached in zip(net.stations, (5, 9, 7, 99), strict=True):
        s.reached = reached
    net.stations[3].boot_up(net.now)
    net.until(lambda: together(net) and all(s.instance and s.instance.instance == 2 for s in net.stations))
    assert [s.flushes[-1] for s in net.stations] == [(1, 9), (1, 9), (1, 9), (0, 0)]
    assert net.stations[0].instance is not None
    view = view_hash(1, (1, 1, 1, 1))
    assert net.stations[0].instance.pasts == ((1, view, 5), (2, view, 9), (3, view, 7))


def test_flush_nothing_of_an_order_that_is_not_to_be_trusted() -> None:
    net = opened()
    net.stations[0].reached, net.stations[1].reached = 50, None
    net.stations[2].boot_up(net.now)
    net.until(lambda: together(net))
    assert [s.flushes[-1] for s in net.stations] == [(1, 50), (0, 0), (0, 0)]


@pytest.mark.parametrize(("again", "by_another"), [(False, False), (True, False), (True, True)])
def test_flush_who_starts_late_delivers_the_same(again: bool, by_another: bool) -> None:
    """Station 1 has issued the next proposal, and hears no more: the others start it. Then they tell that they have; or (again)
    one of them restarts before they can, so that another instance follows: what station 1 brings to that one must not be the
    end of the first instance, for which it would have nothing but its own word. Who has been in between tells that itself, or
    (by another) is not heard, and only its past in a third station's proposal does."""
    net = opened()
    one, two, three = net.stations
    one.reached, two.reached = 3, 8
    deaf = False

    def lost(source: Station, to: Station, pdu: bytes) -> bool:
        nonlocal deaf
        said = decode_open(pdu, 3)
        assert said is not None
        deaf |= source is one and said.proposal is not None and said.proposal.instance == 2
        # The others hear of the proposal from station 1, so that both votes come after its own.
        early = not deaf and to is not three and source is not one and said.proposal is not None and not said.started
        return early or (deaf and to is one)

    net.lost = lost
    three.boot_up(net.now)
    net.until(lambda: bool(two.instance and three.instance and two.instance.instance == three.instance.instance == 2))
    assert deaf and one.instance is None and two.flushes[-1] == (1, 8)
    if again:
        two.reached = 4
        three.boot_up(net.now)
        net.until(lambda: two.instance is None)
    if by_another:
        net.lost = lambda source, to, pdu: source is two and to is one
        net.until(lambda: len(one.flushes) == 2)
    net.lost = lose_nothing
    net.until(lambda: together(net))
    assert one.flushes == [(0, 0), (1, 8), (2, 4)] if again else [(0, 0), (1, 8)]
    assert two.flushes[-1] == one.flushes[-1]


def test_the_payload_is_where_the_table_says() -> None:
    data = encoded(OpenPdu(1, 1, 1500, None, 0, 7, 0, 1, False, "x"))
    assert len(data) == HEADER.size + 4 * 3 + OPEN.size + MEMBER.size + 1
