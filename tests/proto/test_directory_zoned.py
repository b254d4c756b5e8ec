"""Zones with holders of their own: where names belong, messages between processes, and what a holder and another station say."""

from __future__ import annotations

import random
from typing import Any

import pytest
from zenjun.proto.service.directory.entries import NOWHERE, Target
from zenjun.proto.service.directory.keeping import LIST_BYTES, Keeper, answer_of, outcome_body
from zenjun.proto.service.directory.lookup import Answer, Ask
from zenjun.proto.service.directory.messages import Holding, Id, Update, encode
from zenjun.proto.service.directory.operations import Move, Register, Set, SetZone
from zenjun.proto.service.directory.parts import Parts, parse_zone
from zenjun.proto.service.directory.questions import EVERYBODY, Message, Query, Question, Reply, decode
from zenjun.proto.service.directory.questions import encode as encode_question
from zenjun.proto.service.directory.remote import GRACE_NS, Remote, read_outcome
from zenjun.proto.service.directory.state import Outcome, State
from zenjun.proto.service.directory.store import MemoryStore

H1, H2, H3, T = (1, 7), (2, 4), (3, 6), (5, 9)
ROLES = ("operator", "user:x")


def update(number: int, *operations: object) -> bytes:
    return encode(Update(Id("0" * 16, number), ROLES, operations))  # type: ignore[arg-type]


def test_a_name_is_in_the_zone_of_its_last_label() -> None:
    parts = Parts(5, (1, 2, 3), {"north": (2, 1), "south": [3, 4]})
    assert [parts.of(name) for name in ("db", "db.north", "north", "north.db", "a.b.south")] == [
        "default", "north", "north", "default", "south",
    ]  # fmt: skip
    assert parts.kept_at(1) == ["default", "north"] and parts.kept_at(4) == ["south"] and parts.kept_at(5) == []
    assert parts.beneath("db.") == ["default", "north", "south"] and parts.beneath("db.north") == ["north"]
    assert parts.text() == "default=1,2,3 north=1,2 south=3,4" and not parts.full and Parts(5).full
    assert not Parts(5, (1, 2)).full


def test_a_zone_in_the_configuration() -> None:
    assert parse_zone("north=3,1") == ("north", (1, 3))
    for bad in ("north", "north=", "north=1,x", "north=1,1", "default=1", "station=1", "No=1", "a.b=1"):
        with pytest.raises(ValueError, match=r"expected|numbers|twice"):
            parse_zone(bad)


MESSAGES: list[Message] = [
    Ask(3, "a.north", after=(1, 2, 3)),
    Query(4, "north", "outcome", {"c": "0" * 16, "n": 3}, (5, 1, 0)),
    Query(4, "north", "leases", {"w": [1, 2], "l": [1, 2]}),
    Query(4, "north", "list", {"f": "", "l": "~"}),
    Query(4, "north", "zones", {}),
    Query(0, "default", "parts", {"t": "default=1"}),
    Reply(4, (5, 1, 0), {"e": ['{"a":1}'], "n": "x"}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_come_back_as_they_were_and_others_are_dropped(message: Message) -> None:
    data = encode_question(EVERYBODY, message)
    assert decode(data) == (EVERYBODY, message)
    r = random.Random(len(data))
    for _ in range(300):
        changed = bytearray(data)
        changed[r.randrange(len(data))] ^= 1 << r.randrange(8)
        found = decode(bytes(changed))
        assert found is None or encode_question(*found) == bytes(changed)
    assert decode(data + b" ") is None


def test_a_question_that_no_station_asks_is_none() -> None:
    leases: list[dict[str, Any]] = [{"w": [1], "l": []}, {"w": [1, 2], "l": ["x"]}, {"w": [1, 2], "l": [1] * 1001}]
    bad: list[tuple[str, dict[str, Any]]] = [("outcome", {}), ("list", {}), ("zones", {"x": 1})]
    for kind, body in [*bad, *(("leases", body) for body in leases)]:
        assert decode(encode_question((1, 0), Query(1, "north", kind, body))) is None


def holder() -> State:
    state = State(MemoryStore(), home="north")
    state.on_view((10, 1, 0), [H1, H2, T], [H1, H2, T])
    state.apply((11, 1, 0), H1, encode(Holding(True)))
    return state


def test_names_of_a_zone_are_in_it_without_a_row() -> None:
    state = holder()
    state.apply((12, 1, 0), T, update(1, Set("a.north", (Target("tcp://10.0.0.1:1"),))))
    entry = state.entry("a.north")
    assert entry is not None and entry.zone == "north" and state.counts == {"north": 1, "": 1}
    moved = state.apply((13, 1, 0), T, update(2, Move("a.north", "other")))
    assert moved.outcome is not None and moved.outcome.code == "no-zone"
    row = state.apply((14, 1, 0), T, update(3, SetZone("north", names_max=1)))
    assert row.outcome is not None and not row.outcome.code
    full = state.apply((15, 1, 0), T, update(4, Set("b.north")))
    assert full.outcome is not None and full.outcome.code == "full"


def test_a_start_learns_of_members_without_a_state() -> None:
    state = holder()
    state.on_start((20, 1, 1), [H1, H2])
    register = Register("web.north", "tcp://10.0.0.5:80", 1)
    state.apply((21, 1, 0), T, encode(Holding(False)))
    assert list(state.stations_up()) == [1, 2, 5]
    state.apply((22, 1, 0), T, update(1, register))
    assert state.leases == 1
    state.on_view((23, 1, 0), [H1, H2], [])
    assert state.leases == 0 and state.entry("web.north") is None


@pytest.mark.parametrize("restarted", [False, True])
def test_who_sends_after_a_start_is_a_member_up_to_the_next_view(restarted: bool) -> None:
    """Its HOLDING(no) comes behind a registration that was under way. A copy that is read again knows that as well."""
    state = holder()
    state.on_start((20, 1, 1), [H1, H2])
    refused = state.apply((21, 1, 0), H3, update(1, Move("web.north", "north")))
    assert refused.outcome is not None and refused.outcome.code == "no-name"
    if restarted:
        state.save()
        state = State(state.store, home="north")
    assert list(state.stations_up()) == [1, 2, H3[0]]
    done = state.apply((22, 1, 0), T, update(2, Register("web.north", "tcp://10.0.0.5:80", 1)))
    assert done.outcome is not None and not done.outcome.code and state.leases == 1
    state.on_view((23, 1, 0), [H1, H2], [])
    assert state.leases == 0 and list(state.stations_up()) == [1, 2]
    late = state.apply((24, 1, 0), T, update(3, Register("web.north", "tcp://10.0.0.5:80", 1)))
    assert late.outcome is not None and late.outcome.code == "not-member"


def test_a_holder_answers_when_its_copy_is_where_the_question_wants_it() -> None:
    state, active, said = holder(), [True], []

    def answer(station: int, question: Question) -> None:
        said.append((station, answer_of(state, question)))

    keeper = Keeper(lambda: state.place, lambda: active[0], answer)
    keeper.on_question(5, Ask(1, "a.north", after=(12, 1, 0)))
    keeper.on_question(6, Ask(1, "a.north", after=(12, 1, 0)))
    keeper.on_place()
    assert not said and len(keeper) == 2
    keeper.forget(6)
    state.apply((12, 1, 0), T, update(1, Set("a.north", (Target("tcp://10.0.0.1:1"),))))
    keeper.on_place()
    (station, found), *rest = said
    assert not rest and station == 5 and isinstance(found, Answer) and found.version == (12, 1, 0) and found.zone == "north"
    active[0] = False
    keeper.on_question(5, Ask(2, "a.north"))
    assert len(said) == 1, "its copy is not the group's: the asker goes to another holder"


def test_what_a_holder_is_asked_for() -> None:
    state = holder()
    for number in range(40):
        name = f"n{number:02d}.north"
        state.apply((12 + number, 1, 0), T, update(number, Set(name, meta=tuple((f"k{i:02d}", "x" * 22) for i in range(32)))))

    def ask(kind: str, body: dict[str, Any]) -> dict[str, Any]:
        found = answer_of(state, Query(1, "north", kind, body))
        assert isinstance(found, Reply) and found.place == state.place
        assert len(encode_question((5, 0), found)) < 60 * 1024
        return found.body

    pages, start = [], ""
    while True:
        page = ask("list", {"f": start, "l": "~"})
        assert sum(map(len, page["e"])) <= LIST_BYTES
        pages += page["e"]
        start = str(page["n"])
        if not start:
            break
    assert len(pages) == 40 and len(set(pages)) == 40
    assert read_outcome(ask("outcome", {"c": "0" * 16, "n": 3})) == Outcome((15, 1, 0))
    assert read_outcome(ask("outcome", {"c": "0" * 16, "n": 99})) is None
    assert ask("zones", {}) == {"z": []} and ask("outs", {}) == {"o": []}
    state.apply((90, 1, 0), T, update(90, Register("web.north", "tcp://10.0.0.5:80", 3)))
    assert ask("leases", {"w": list(T), "l": [3, 4]}) == {"l": [[3, 1, 1, "90.1.0"], [4, 0, 0, "0.0.0"]]}
    assert outcome_body(None) == {}


def remote() -> Remote:
    r = Remote("north", (1, 2), T)
    r.on_view(0, (10, 1, 0), [H1, H2, T], [T])
    r.to_group.clear()
    return r


def test_the_zone_is_down_when_no_holder_is_active() -> None:
    r = remote()
    number = r.look_up("a.north", NOWHERE, 0)
    assert not r.to_holder and not r.answered, "holders are here, and may be about to say that they are active"
    r.on_message(0, (11, 1, 0), H2, encode(Holding(True)))
    assert [station for station, _ in r.to_holder] == [2]
    r.on_view(0, (12, 1, 0), [H1, T], [])
    assert not r.answered
    r.on_time(GRACE_NS)
    assert r.answered == {number: None} and r.is_down(GRACE_NS)
    r.answered.clear()
    r.on_view(GRACE_NS, (13, 1, 0), [T], [])
    number = r.look_up("a.north", NOWHERE, GRACE_NS)
    assert r.answered == {number: None}, "no holder is here: at once"


def test_an_update_that_the_state_does_not_know_is_sent_again() -> None:
    r = remote()
    r.on_message(0, (11, 1, 0), H1, encode(Holding(True)))
    r.track(Id("0" * 16, 1))
    r.on_message(0, (12, 1, 0), T, update(1, Set("a.north")))
    ((station, query),) = r.to_holder
    assert isinstance(query, Query) and station == 1 and query.after == (12, 1, 0)
    r.on_answer(0, 2, Reply(query.request, (12, 1, 0), {"p": "12.1.0"}))
    r.on_answer(0, 1, Reply(query.request, (11, 1, 0), {"p": "11.1.0"}))
    assert not r.outcomes, "not from who was asked, or from before the update"
    r.on_answer(0, 1, Reply(query.request, (12, 1, 0), {}))
    assert r.again == [Id("0" * 16, 1)]
    r.to_holder.clear()
    r.on_message(0, (13, 1, 0), T, update(1, Set("a.north")))
    ((_, query),) = r.to_holder
    r.on_answer(0, 1, Reply(query.request, (13, 1, 0), {"p": "x"}))
    assert not r.outcomes, "what no station of this release says"
