"""Corosync's stand-in, case by case: messages, results of requests, who is let in, and what is refused."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zenjun.proto.errors import InvariantError
from zenjun.proto.service.base import Effect, Emit, Source, Store
from zenjun.proto.service.corosync import cpg as cpg_module
from zenjun.proto.service.corosync.messages import (
    Kill,
    List,
    Mcast,
    Message,
    Part,
    Process,
    ProcJoin,
    ProcLeave,
    Reason,
    Reload,
    Votes,
    Word,
    decode,
    encode,
)
from zenjun.proto.service.corosync.results import (
    Address,
    Answer,
    Apart,
    Code,
    Confchg,
    Connect,
    Deliver,
    Disconnect,
    Kept,
    Nodelist,
    Quorum,
    Reread,
    RingId,
    Stop,
    Totem,
    VotesExpected,
    VotesNodelist,
    VotesQuorum,
)
from zenjun.proto.service.corosync.ring import GREET_NS, LIVES, LIVES_AHEAD, RETRY_NS, Nodes, Phase
from zenjun.proto.service.corosync.standin import StandIn
from zenjun.proto.service.corosync.tracking import Track
from zenjun.proto.service.corosync.votequorum import Config

from ..rules import rule

MARK = b"0123456789abcdef"
GROUP = b"pacemakerd\0"

# ---- messages

PROCESSES = st.builds(Process, st.binary(min_size=1, max_size=128), st.integers(0, 2**32 - 1))
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
PLACES = st.tuples(U64, st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1))
LISTS = st.builds(
    List,
    *(PLACES, U32, st.binary(min_size=16, max_size=16), U64, U64, st.booleans()),
    st.builds(Word, U32, U32, st.booleans()),
    st.lists(PROCESSES, max_size=4).map(tuple),
)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(ProcJoin, PROCESSES),
    st.builds(ProcLeave, PROCESSES, st.sampled_from([Reason.LEAVE, Reason.PROCDOWN])),
    st.builds(Mcast, PROCESSES, st.sampled_from(Part), U32, st.binary(max_size=64)),
    LISTS,
    st.builds(Kill, U32, st.binary(max_size=64)),
    st.just(Reload()),
    st.builds(Votes, U32, U32),
)


@given(MESSAGES)
def test_a_message_is_read_as_it_was_written(message: Message) -> None:
    again = decode(encode(message))
    assert again == message and type(again) is type(message)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_as_nothing_or_as_what_makes_them(data: bytes) -> None:
    message = decode(data)
    assert message is None or encode(message) == data


@given(MESSAGES, st.randoms(use_true_random=False))
def test_a_damaged_message_is_read_as_nothing_or_as_what_makes_it(message: Message, r: random.Random) -> None:
    data = bytearray(encode(message))
    data[r.randrange(len(data))] ^= 1 << r.randrange(8)
    del data[r.randrange(len(data)) + 1 :]
    found = decode(bytes(data))
    assert found is None or encode(found) == bytes(data)


# ---- a cluster without delays


@dataclass
class Cluster:
    """Stand-ins, and an order in which everything has its place at once."""

    config: Config
    nodes: dict[int, StandIn] = field(default_factory=dict)
    marks: dict[int, bytes] = field(default_factory=dict)
    kept: dict[int, bytes] = field(default_factory=dict)
    told: dict[int, list[Effect]] = field(default_factory=dict)
    order: list[tuple[Source, bytes | None]] = field(default_factory=list)
    members: frozenset[Source] = frozenset()
    clock: int = 0
    now: int = 0

    def start(self, *nodes: int, alone_after_ns: int = 0) -> None:
        for node in nodes:
            stations = {k: k for k in self.config.votes}
            mark = self.marks.get(node, MARK)
            made = StandIn(Nodes(node, stations, mark), self.config, self.kept.get(node, b""), alone_after_ns=alone_after_ns)
            self.nodes[node] = made
            self.told[node] = []
            self.do(node, made.ring.start(self.now))

    def do(self, node: int, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Emit):
                self.order.append(((node, 1), effect.data))
            elif isinstance(effect, Store):
                self.kept[node] = effect.data or b""
            self.told[node].append(effect)

    def join(self, *nodes: int) -> None:
        for node in nodes:
            self.do(node, self.nodes[node].ring.on_connected((node, 1)))
            self.view(self.members | {(node, 1)})
        self.run()

    def view(self, members: frozenset[Source]) -> None:
        self.members = members
        self.order.append(((0, 0), None))
        self.run()

    def run(self) -> None:
        """Everything that is under way has its place, and all hear of it."""
        while self.order:
            source, data = self.order.pop(0)
            self.clock += 1
            for node, standin in self.nodes.items():
                if (node, 1) not in self.members:
                    continue
                if data is None:
                    self.do(node, standin.ring.on_view((self.clock, 1, 65535), self.members))
                else:
                    self.do(node, standin.ring.on_message(source, data))

    def lose(self, *nodes: int) -> None:
        """Stations are cut off: they are told, and the others see them leave."""
        for node in nodes:
            self.do(node, self.nodes[node].ring.on_lost(self.now))
        self.view(self.members - {(node, 1) for node in nodes})

    def heard(self, node: int, kind: type[Effect]) -> list[Effect]:
        return [effect for effect in self.told[node] if isinstance(effect, kind)]

    def clear(self) -> None:
        for told in self.told.values():
            told.clear()

    def program(self, node: int, handle: int, pid: int, group: bytes = GROUP) -> None:
        self.nodes[node].cpg.open(handle)
        self.do(node, self.nodes[node].cpg.join(handle, group, pid))
        self.run()


def cluster(count: int, **config: object) -> Cluster:
    made = Cluster(Config(dict.fromkeys(range(1, count + 1), 1), **config))  # type: ignore[arg-type]
    made.start(*range(1, count + 1))
    made.join(*range(1, count + 1))
    return made


# ---- rings


@rule("Y7", "Y8")
def test_a_ring_is_told_in_one_order() -> None:
    c = cluster(3)
    c.program(1, 1, 11)
    c.program(3, 3, 33)
    trackers = c.nodes[1].trackers
    for handle, votes, model in ((4, False, 0), (5, False, 1), (6, True, 0)):
        trackers.open(handle, votes=votes, model=model)
        c.do(1, trackers.track(handle, Track.CHANGES))
    c.clear()
    c.lose(3)
    ring = c.nodes[1].ring.id
    assert ring == c.nodes[2].ring.id and ring.node == 1
    left = (Address(3, 33, Reason.NODEDOWN),)
    assert c.told[1][1:] == [
        Confchg(1, GROUP, (Address(1, 11),), left, ()),
        Totem(1, ring, (1, 2)),
        Quorum(4, True, ring, (1, 2)),
        Nodelist(5, ring, (1, 2), (), (3,)),
        Quorum(5, True, ring, (1, 2)),
        VotesNodelist(6, ring, (1, 2)),
        VotesQuorum(6, True, ((1, True), (2, True), (3, False))),
    ]
    assert isinstance(c.told[1][0], Kept), "the number has long been durable: nobody waits for a disk"
    assert c.heard(3, Confchg) == [Confchg(3, GROUP, (Address(3, 33),), (Address(1, 11, Reason.NODEDOWN),), ())]


@rule("Y3")
def test_numbers_are_durable_before_they_are_needed() -> None:
    """Only who has none left waits for the disk when it loses quorum."""
    c = cluster(2)
    ring = c.nodes[1].ring

    def lost() -> list[Store | Kept]:
        c.clear()
        c.lose(1)
        c.join(1)
        return [effect for effect in c.told[1] if isinstance(effect, Store | Kept)][:1]

    while not ring.wants_reserve:
        assert [type(effect) for effect in lost()] == [Kept]
    c.do(1, kept := ring.reserve())
    assert [type(effect) for effect in kept] == [Store] and ring.reserve() == [] and not ring.wants_reserve
    before = c.kept[1]
    found = [lost() for _ in range(LIVES_AHEAD + 1)]
    assert [type(effects[0]) for effects in found] == [Kept] * LIVES_AHEAD + [Store], "none were made durable in time"
    assert c.kept[1] > before
    c.start(1)
    assert c.nodes[1].ring.count > ring.count and c.nodes[1].ring.life > ring.life


@rule("Y8")
def test_who_was_alone_sees_everybody_else_come_up() -> None:
    c = cluster(3)
    for node in (1, 2, 3):
        c.program(node, node, 10 * node)
    c.lose(3)
    c.clear()
    c.join(3)
    everybody = (Address(1, 10), Address(2, 20), Address(3, 30))
    others = (Address(1, 10, Reason.NODEUP), Address(2, 20, Reason.NODEUP))
    assert c.heard(3, Confchg) == [Confchg(3, GROUP, everybody, (), others)]
    assert c.heard(1, Confchg) == [Confchg(1, GROUP, everybody, (), (Address(3, 30, Reason.NODEUP),))]


@rule("Y4", "Y5")
def test_going_alone_closes_the_connection_first_and_delivers_own_messages() -> None:
    c = cluster(3)
    c.program(1, 1, 11)
    c.program(2, 2, 22)
    c.clear()
    c.do(1, c.nodes[1].cpg.mcast(1, b"under way"))
    c.order.clear()
    c.do(1, c.nodes[1].ring.on_blocked(0, quorum=False))
    kinds = [type(effect) for effect in c.told[1][2:]]
    assert kinds == [Disconnect, Deliver, Kept, Confchg, Totem]
    assert c.nodes[1].ring.members == (1,) and not c.nodes[1].votequorum.quorate


@rule("Y4")
def test_blocked_with_quorum_means_nothing_and_a_short_loss_may_be_waited_for() -> None:
    c = Cluster(Config({1: 1, 2: 1, 3: 1}))
    c.start(1, 2, 3, alone_after_ns=500)
    c.join(1, 2, 3)
    ring = c.nodes[1].ring
    assert ring.on_blocked(0, quorum=True) == [] and ring.next_deadline_ns() is None
    assert ring.on_blocked(100, quorum=False) == [] and ring.on_blocked(200, quorum=False) == []
    assert ring.next_deadline_ns() == 600 and ring.on_timer(599) == []
    ring.on_unblocked()
    assert ring.next_deadline_ns() is None and ring.on_timer(700) == []
    ring.on_blocked(1000, quorum=False)
    c.do(1, ring.on_timer(1500))
    assert ring.members == (1,)


@rule("Y5")
def test_who_is_alone_connects_again_and_again() -> None:
    c = cluster(2)
    ring = c.nodes[1].ring
    ring.on_lost(1000)
    assert ring.next_deadline_ns() == 1000 + RETRY_NS and ring.on_timer(1000) == []
    assert ring.on_timer(1000 + RETRY_NS) == [Connect()]
    assert ring.on_timer(1000 + 3 * RETRY_NS) == [], "a busy zenjund takes a while for its welcome"
    assert ring.on_timer(1000 + RETRY_NS + GREET_NS) == [Connect()], "but not for ever"
    ring.on_lost(9 * GREET_NS)
    assert ring.next_deadline_ns() == 9 * GREET_NS + RETRY_NS
    ring.on_connected((1, 7))
    assert ring.next_deadline_ns() is None
    assert ring.on_blocked(2000, quorum=False) == [] and ring.phase is Phase.WAITING, "the join waits for quorum"


@rule("Y4")
def test_fenced_ends_the_stand_in() -> None:
    effects = cluster(2).nodes[1].ring.on_fenced()
    assert isinstance(effects[0], Disconnect) and isinstance(effects[1], Stop)


@rule("Y3")
def test_a_ring_never_has_the_number_of_one_that_its_lowest_node_has_not_heard_of() -> None:
    """1 and 2 make a ring of which 1 hears nothing; then 1 and 3, who know less, must not come to the same number."""
    c = cluster(3)
    c.do(3, c.nodes[3].ring.on_lost(0))
    c.order.append(((0, 0), None))
    c.members -= {(3, 1)}
    hidden = c.nodes.pop(1)
    c.run()
    first = c.nodes[2].ring.id
    c.nodes[1] = hidden
    c.do(1, hidden.ring.on_lost(0))
    del c.nodes[2]
    c.members = frozenset()
    c.join(1, 3)
    second = hidden.ring.id
    assert first.node == second.node == 1 and second != first
    assert second.seq // LIVES == first.seq // LIVES + 1 or second.seq % LIVES != first.seq % LIVES


@rule("Y3")
def test_numbers_go_on_after_a_restart() -> None:
    c = cluster(2)
    before = c.nodes[1].ring.id
    c.start(1)
    assert c.nodes[1].ring.id > before
    with pytest.raises(ValueError, match="no past"):
        StandIn(Nodes(1, {1: 1}, MARK), Config({1: 1}), b"x")


@rule("Y2")
def test_another_nodelist_stays_apart_and_both_sides_say_so() -> None:
    c = Cluster(Config({1: 1, 2: 1, 3: 1}), marks={3: b"another nodelist"})
    c.start(1, 2, 3)
    c.join(1, 2, 3)
    assert c.nodes[1].ring.members == (1, 2) and c.nodes[3].ring.members == (3,)
    assert c.nodes[3].ring.phase is Phase.APART
    assert Apart((3,), here=False) in c.told[1] and Apart((3,), here=True) in c.told[3]
    c.program(3, 3, 33)
    assert c.heard(3, Confchg) and not c.heard(1, Confchg), "alone, it works"


@rule("Y2")
def test_the_ring_keeps_its_nodelist_however_many_come_with_another() -> None:
    c = Cluster(Config(dict.fromkeys(range(1, 6), 1)), marks=dict.fromkeys((3, 4, 5), b"another nodelist"))
    c.start(1, 2, 3, 4, 5)
    c.join(1, 2, 3, 4, 5)
    assert c.nodes[1].ring.members == (1, 2) and c.nodes[4].ring.members == (4,)


@rule("Y1")
def test_a_member_that_says_nothing_stops_every_round() -> None:
    """The reason for a group that only root and the daemon's user may join."""
    c = Cluster(Config({1: 1, 2: 1}))
    c.start(1, 2)
    c.view(frozenset({(2, 9)}))
    c.join(1, 2)
    assert [n.ring.members for n in c.nodes.values()] == [(1,), (2,)] and c.nodes[1].ring.phase is Phase.SYNCING
    c.view(c.members - {(2, 9)})
    assert [n.ring.members for n in c.nodes.values()] == [(1, 2), (1, 2)]


def test_messages_that_cannot_be_are_counted() -> None:
    ring = cluster(2).nodes[1].ring
    assert ring.on_message((2, 1), b"\xff") == [] and ring.on_message((2, 9), encode(Reload())) == []
    assert ring.dropped == {"malformed": 1, "stranger": 1}
    with pytest.raises(InvariantError):
        ring.on_message((1, 1), encode(Reload()))


@given(st.randoms(use_true_random=False), st.lists(st.tuples(st.integers(2, 3), st.one_of(LISTS, MESSAGES)), max_size=16))
def test_nothing_that_another_node_says_raises(r: random.Random, said: list[tuple[int, Message]]) -> None:
    """A ring of two, and a third that is to be let in, of which all but one say anything, also in the round."""
    c = Cluster(Config({1: 1, 2: 1, 3: 1}))
    c.start(1, 2)
    c.join(1, 2)
    c.program(1, 1, 11)
    ring = c.nodes[1].ring
    del c.nodes[2]
    place = (c.clock + 1, 1, 65535)
    c.do(1, ring.on_view(place, c.members | {(3, 1)}))
    for station, message in said:
        if isinstance(message, List):
            known = message._replace(node=r.choice([station, 1, message.node]), fingerprint=r.choice([MARK, message.fingerprint]))
            message = known._replace(round=place)
        c.do(1, ring.on_message((station, 1), encode(message)))
    while c.order:
        source, data = c.order.pop(0)
        c.do(1, ring.on_message(source, data or b""))
    c.do(1, ring.on_view((place[0] + 1, 1, 65535), frozenset({(1, 1)})))
    c.do(1, ring.on_lost(0))
    assert ring.members == (1,)


# ---- process groups


def code(c: Cluster, node: int, effects: list[Effect]) -> Code:
    c.do(node, effects)
    (answer,) = [e for e in effects if isinstance(e, Answer)]
    return answer.code


@rule("Y9")
def test_results_of_join_and_leave() -> None:
    c = cluster(2)
    cpg = c.nodes[1].cpg
    for handle in (1, 2):
        cpg.open(handle)
    assert code(c, 1, cpg.join(1, b"x" * 129, 1)) is Code.NAME_TOO_LONG and code(c, 1, cpg.join(1, b"", 1)) is Code.INVALID_PARAM
    assert code(c, 1, cpg.leave(1)) is Code.NOT_EXIST
    c.do(1, cpg.join(1, GROUP, 7))
    assert not c.heard(1, Answer)[3:], "answered at its place"
    assert code(c, 1, cpg.leave(1)) is Code.BUSY and code(c, 1, cpg.join(1, GROUP, 7)) is Code.EXIST
    assert code(c, 1, cpg.join(2, GROUP, 7)) is Code.EXIST
    c.run()
    assert c.heard(1, Answer)[-1] == Answer(1, Code.OK)
    assert code(c, 1, cpg.leave(1)) is Code.OK
    assert code(c, 1, cpg.leave(1)) is Code.NOT_EXIST and code(c, 1, cpg.join(1, GROUP, 7)) is Code.BUSY
    assert code(c, 1, cpg.join(2, GROUP, 7)) is Code.TRY_AGAIN
    c.run()
    c.do(1, cpg.join(2, GROUP, 7))
    c.do(1, cpg.close(2))
    cpg.open(3)
    assert code(c, 1, cpg.join(3, GROUP, 7)) is Code.TRY_AGAIN, "its former connection's end has no place yet"


@rule("Y9")
def test_a_group_has_room_for_128() -> None:
    c = cluster(2)
    for pid in range(128):
        c.program(1, pid + 1, pid)
    c.program(2, 500, 1)
    assert c.heard(2, Answer) == [Answer(500, Code.NO_RESOURCES)]
    c.do(1, c.nodes[1].cpg.close(1))
    c.run()
    c.do(2, c.nodes[2].cpg.join(500, GROUP, 1))
    c.run()
    assert c.heard(2, Answer)[-1] == Answer(500, Code.OK)


@rule("Y10")
def test_a_message_in_parts_is_cut_short_when_its_group_changes() -> None:
    c = cluster(2)
    c.program(1, 1, 11)
    cpg = c.nodes[1].cpg
    assert code(c, 1, cpg.mcast_part(1, Part.MIDDLE, 9, b"x")) is Code.INVALID_PARAM
    assert code(c, 1, cpg.mcast_part(1, Part.FIRST, 9, b"abc")) is Code.OK
    c.program(2, 2, 22)
    assert code(c, 1, cpg.mcast_part(1, Part.MIDDLE, 9, b"def")) is Code.INTERRUPT
    for part in (Part.FIRST, Part.MIDDLE, Part.LAST):
        assert code(c, 1, cpg.mcast_part(1, part, 9, b"abc")) is Code.OK
    c.run()
    assert [e.message.part for e in c.heard(2, Deliver)] == [Part.FIRST, Part.MIDDLE, Part.LAST]  # type: ignore[attr-defined]


@rule("Y10")
def test_who_joins_behind_the_first_part_gets_no_part() -> None:
    c = cluster(2)
    c.program(1, 1, 11)
    cpg = c.nodes[1].cpg
    c.do(1, cpg.mcast_part(1, Part.FIRST, 6, b"abc"))
    c.nodes[2].cpg.open(2)
    c.do(2, c.nodes[2].cpg.join(2, GROUP, 22))
    c.do(1, cpg.mcast_part(1, Part.LAST, 6, b"def"))
    c.run()
    assert not c.heard(2, Deliver) and len(c.heard(1, Deliver)) == 2


@rule("Y10")
def test_parts_fit_into_the_message_that_the_first_one_announces() -> None:
    """libcpg copies parts into a buffer of the announced length without looking: every member's memory would be overwritten."""
    c = cluster(1)
    c.program(1, 1, 11)
    cpg = c.nodes[1].cpg
    for parts, wanted in (
        ([(Part.FIRST, 3, b"abcd")], [Code.INVALID_PARAM]),
        ([(Part.FIRST, 3, b"ab"), (Part.MIDDLE, 3, b"cd")], [Code.OK, Code.INVALID_PARAM]),
        ([(Part.FIRST, 3, b"ab"), (Part.LAST, 3, b"cd")], [Code.OK, Code.INVALID_PARAM]),
        ([(Part.FIRST, 3, b"ab"), (Part.LAST, 4, b"cd")], [Code.OK, Code.INVALID_PARAM]),
        ([(Part.FIRST, 4, b"ab"), (Part.LAST, 4, b"c")], [Code.OK, Code.INVALID_PARAM]),
        ([(Part.FIRST, 4, b"ab"), (Part.MIDDLE, 4, b"c"), (Part.LAST, 4, b"d")], [Code.OK] * 3),
        ([(Part.LAST, 4, b"")], [Code.INVALID_PARAM]),
    ):
        assert [code(c, 1, cpg.mcast_part(1, *part)) for part in parts] == wanted, parts


@rule("Y19")
def test_messages_without_a_byte_are_bounded_while_a_round_goes_on() -> None:
    c = cluster(2)
    c.program(1, 1, 11)
    c.lose(1)
    c.do(1, c.nodes[1].ring.on_connected((1, 1)))
    c.do(1, c.nodes[1].ring.on_view((c.clock + 1, 1, 65535), c.members | {(1, 1)}))  # and node 2 does not say what it has
    cpg = c.nodes[1].cpg
    sent = 0
    while cpg.accepts(1) and sent < 100_000:
        cpg.mcast(1, b"")
        sent += 1
    assert 1000 < sent < 50_000


@rule("Y19")
def test_a_handle_has_four_mebibytes_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpg_module, "WAITING_BYTES_MAX", 260)
    c = cluster(2)
    c.program(1, 1, 11)
    cpg = c.nodes[1].cpg
    assert code(c, 1, cpg.mcast(1, b"ab")) is Code.OK and cpg.accepts(1)
    assert code(c, 1, cpg.mcast(1, b"cdef")) is Code.OK and not cpg.accepts(1)
    assert code(c, 1, cpg.mcast(1, b"g")) is Code.TRY_AGAIN
    c.run()
    assert cpg.accepts(1) and [e.message.data for e in c.heard(1, Deliver)] == [b"ab", b"cdef"]  # type: ignore[attr-defined]
    assert code(c, 1, cpg.mcast(1, b"x" * (cpg_module.DATA_MAX + 1))) is Code.INVALID_PARAM


@rule("Y19")
def test_requests_that_wait_for_a_round_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpg_module, "WAITING_BYTES_MAX", 260)
    c = cluster(2)
    c.lose(2)
    c.program(2, 2, 22)
    c.do(2, c.nodes[2].ring.on_connected((2, 1)))
    c.members |= {(2, 1)}
    c.do(2, c.nodes[2].ring.on_view((c.clock + 1, 1, 65535), c.members))
    assert c.nodes[2].ring.phase is Phase.SYNCING
    assert [code(c, 2, c.nodes[2].cpg.mcast(2, b"abc")) for _ in range(3)] == [Code.OK, Code.OK, Code.TRY_AGAIN]


def test_a_program_outside_of_its_group_sends_nothing() -> None:
    c = cluster(2)
    c.nodes[1].cpg.open(1)
    assert code(c, 1, c.nodes[1].cpg.mcast(1, b"x")) is Code.OK and c.nodes[1].cpg.unsent == 1
    assert code(c, 1, c.nodes[1].cpg.mcast_part(1, Part.FIRST, 9, b"x")) is Code.NOT_EXIST and not c.order


def test_killing_and_reloading() -> None:
    c = cluster(2)
    assert code(c, 1, c.nodes[1].kill(0, 9, b"no such node")) is Code.NOT_EXIST
    assert code(c, 1, c.nodes[1].reload(0)) is Code.OK
    c.run()
    assert c.heard(1, Reread) == c.heard(2, Reread) == [Reread()]
    assert code(c, 1, c.nodes[1].kill(0, 2, b"enough")) is Code.OK
    c.run()
    assert c.heard(2, Stop) == [Stop("killed by node 1: enough")] and not c.heard(1, Stop)


@rule("Y6")
def test_who_is_let_in_reads_the_configuration_again_if_the_others_have() -> None:
    c = cluster(3)
    c.lose(3)
    c.clear()
    c.do(3, c.nodes[3].ring.on_connected((3, 1)))
    c.do(1, c.nodes[1].reload(0))
    reload = c.order.pop()
    c.order.append(((0, 0), None))
    c.members |= {(3, 1)}
    c.order.append(reload)
    c.run()
    assert c.nodes[3].ring.members == (1, 2, 3) and c.heard(1, Reread) == c.heard(3, Reread) == [Reread()]


# ---- quorum


@rule("Y11")
def test_two_nodes_that_lose_each_other_are_both_quorate_but_not_after_a_restart() -> None:
    """Else the node that was fenced would be quorate alone when it starts again, and fence the other: wait_for_all begins anew
    at each start."""
    c = Cluster(Config({1: 1, 2: 1}, two_node=True))
    c.start(1, 2)
    assert not c.nodes[1].votequorum.quorate, "it waits for the other"
    c.join(1, 2)
    assert c.nodes[1].votequorum.quorate
    c.lose(2)
    assert c.nodes[1].votequorum.quorate and c.nodes[2].votequorum.quorate
    c.start(2)
    assert not c.nodes[2].votequorum.quorate
    c.join(2)
    assert c.nodes[2].votequorum.quorate and c.nodes[2].ring.members == (1, 2)


@rule("Y11")
def test_who_waits_for_all_is_let_go_by_a_member_that_has_quorum() -> None:
    c = cluster(3, wait_for_all=True)
    c.lose(3)
    assert c.nodes[1].votequorum.quorate
    c.lose(2)
    assert not c.nodes[1].votequorum.quorate
    c.join(2)
    assert not c.nodes[1].votequorum.quorate, "both have lost quorum, and wait for all again"
    c.join(3)
    c.lose(2)
    c.start(2)
    c.lose(3)
    assert [n.votequorum.quorate for n in c.nodes.values()] == [False] * 3
    c = cluster(4, wait_for_all=True)
    c.lose(4)
    c.lose(3)
    c.do(4, [])
    assert not c.nodes[1].votequorum.quorate
    c = cluster(5, wait_for_all=True)
    c.lose(5)
    c.lose(4)
    c.start(4)
    c.join(4)
    assert c.nodes[4].votequorum.quorate, "the ring has quorum, though node 5 is not there"


@rule("Y12")
def test_the_lower_of_two_nodes_breaks_the_tie() -> None:
    c = Cluster(Config({1: 1, 2: 1}, auto_tie_breaker=True))
    c.start(1, 2)
    assert not c.nodes[1].votequorum.quorate, "it has never been in a ring with quorum"
    c.join(1, 2)
    c.lose(2)
    assert c.nodes[1].votequorum.quorate and not c.nodes[2].votequorum.quorate


@rule("Y11")
def test_votes_are_set_at_their_place() -> None:
    c = cluster(3)
    trackers = c.nodes[2].trackers
    trackers.open(5, votes=True)
    assert code(c, 2, trackers.track(5, Track.CHANGES)) is Code.OK and code(c, 2, trackers.track(5, Track.CHANGES)) is Code.EXIST
    c.clear()
    n = c.nodes[1]
    assert code(c, 1, n.set_expected(9, 20)) is Code.INVALID_PARAM
    assert code(c, 1, n.set_expected(9, 2)) is Code.INVALID_PARAM, "three votes are present"
    assert code(c, 1, n.set_votes(9, 8, 1)) is Code.NAME_NOT_FOUND
    c.do(1, n.set_expected(9, 5))
    c.do(1, n.set_expected(10, 5))
    assert not c.heard(1, Answer)[3:], "it is answered when it counts"
    c.run()
    assert c.heard(1, Answer)[3:] == [Answer(9, Code.OK), Answer(10, Code.OK)]
    assert c.heard(2, VotesExpected) == [VotesExpected(5, 5)] * 2
    assert [v.votequorum.expected for v in c.nodes.values()] == [5, 5, 5]
    c.do(1, n.set_votes(9, 0, 3))
    c.run()
    assert n.votequorum.total == 5 and c.nodes[3].votequorum.votes[1] == 3 and n.votequorum.quorum == 3
    c.lose(2, 3)
    c.clear()
    assert n.votequorum.quorate and code(c, 2, trackers.stop(5)) is Code.OK and code(c, 2, trackers.stop(5)) is Code.NOT_EXIST


@rule("Y13")
def test_what_cannot_be_is_named() -> None:
    two, three = dict.fromkeys((1, 2), 1), dict.fromkeys((1, 2, 3), 1)
    assert Config(two, two_node=True).problems() == [] and Config(two, auto_tie_breaker=True).problems() == []
    assert Config(three, wait_for_all=True).problems() == []

    def named(config: Config) -> set[str]:
        assert all(reason for _, reason in config.problems())
        return {option for option, _ in config.problems()}

    assert named(Config(three, two_node=True)) == {"two_node"} and named(Config(three, auto_tie_breaker=True)) == {
        "auto_tie_breaker"
    }
    assert named(Config(two, two_node=True, auto_tie_breaker=True)) == {"two_node"}
    assert named(Config(two, last_man_standing=True, allow_downscale=True, device=True)) == {
        "last_man_standing",
        "allow_downscale",
        "quorum.device",
    }


@rule("Y7")
def test_the_ring_is_told_to_who_joins_if_it_wants_to_know() -> None:
    c = cluster(2)
    cpg = c.nodes[1].cpg
    cpg.open(1)
    c.do(1, cpg.join(1, GROUP, 7, initial=True))
    c.run()
    kinds = [type(e) for e in c.told[1][-3:]]
    assert kinds == [Answer, Confchg, Totem] and c.heard(1, Totem)[-1] == Totem(1, c.nodes[1].ring.id, (1, 2))
    assert cpg.everybody() == ((GROUP, Address(1, 7)),)
    assert isinstance(c.nodes[1].ring.id, RingId)
