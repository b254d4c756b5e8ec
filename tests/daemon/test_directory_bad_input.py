"""Bad input to the directory, line by line: what is refused before it is sent, what changes nothing anywhere, what an update or a
look-up is told, what state transfer drops and counts. (``no-disk-quorum`` and a group without the right to it need processes:
tests/e2e/test_directory_files.py, tests/e2e/test_daemon_rights.py.)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from zenjun.daemon.directory.serving import code_of
from zenjun.daemon.names.errors import Malformed as Refused
from zenjun.daemon.names.errors import error_of
from zenjun.proto.service.directory import lookup
from zenjun.proto.service.directory.entries import NOWHERE, Slot, Target
from zenjun.proto.service.directory.lookup import Answer, Ask, Common, Down
from zenjun.proto.service.directory.messages import MAGIC, Id, Update, check, encode
from zenjun.proto.service.directory.operations import (
    Add,
    Alias,
    Drop,
    In,
    Move,
    Operation,
    Out,
    Register,
    Remove,
    Set,
    SetSchedule,
    SetZone,
    Switch,
    Take,
)
from zenjun.proto.service.directory.selection import effective
from zenjun.proto.service.directory.state import State
from zenjun.proto.service.directory.store import MemoryStore
from zenjun.proto.service.joiner import Attempt
from zenjun.proto.service.roster import RosterState
from zenjun.proto.service.transferwire import Chunk, Entry, Listing, OfferMessage, Roster

from ..sim.transfer_state import Features, Program, Table

ME, OTHER = (1, 7), (2, 7)
A, B = "tcp://10.0.0.1:80", "tcp://10.0.0.2:80"
OPERATOR = ("operator", "user:root")
USER = ("user:u",)


def update(*operations: Operation, roles: tuple[str, ...] = OPERATOR, counter: int = 1) -> Update:
    return Update(Id("0" * 16, counter), roles, operations)


def targets(count: int, size: int = 0) -> tuple[Target, ...]:
    return tuple(Target(f"tcp://{'x' * size}:{k:05}") for k in range(count))


# ---- refused before anything is sent


BEFORE: dict[str, tuple[tuple[Operation, ...], str]] = {
    "a name in capitals": ((Set("A"),), "name"),
    "a label of 64 bytes": ((Set("a" * 64),), "name"),
    "a name of 254 bytes": ((Set(".".join(["a" * 62] * 4) + "aaa"),), "name"),
    "an alias of what is no name": ((Alias("a", "b..c"),), "name"),
    "no URI": ((Set("a", (Target("10.0.0.1"),)),), "address"),
    "an address of 513 bytes": ((Add("a", (Target("x:" + "y" * 511),)),), "address"),
    "a station that cannot be": ((Drop("a", ("station:65",)),), "address"),
    "a MAC in capitals": ((Set("a", (Target("mac:02:00:00:00:00:0A"),)),), "address"),
    "a priority of 65536": ((Set("a", (Target(A, 65536),)),), "address"),
    "33 pairs of meta": ((Set("a", meta=tuple((f"k{k:02}", "v") for k in range(33))),), "meta"),
    "meta of more than 1 KiB": ((Set("a", meta=(("k", "v" * 1024),)),), "meta"),
    "no zone's name": ((Set("a", zone="no zone"),), "zone"),
    "65 targets": ((Set("a", targets(65)),), "too-large"),
    "65 operations": ((Remove("a"),) * 65, "too-large"),
    "60 KiB": ((Set("a", targets(64, 470)), Set("b", targets(64, 470))), "too-large"),
    "a ttl of more than a day": ((Set("a", ttl=86401),), "malformed"),
    "no selection": ((Set("a", selection="best"),), "malformed"),
    "no time": ((SetSchedule("a", (Slot("8 o'clock", (A,)),)),), "malformed"),
    "no role": ((SetZone("z", writers=("nobody",)),), "malformed"),
    "nothing": ((), "malformed"),
}


@pytest.mark.parametrize("line", BEFORE)
def test_out_of_bounds_is_refused_before_it_is_sent(line: str) -> None:
    operations, code = BEFORE[line]
    problem = check(update(*operations))
    assert code_of(problem) == code, problem
    assert isinstance(error_of(code, problem), Refused), "and its program is told that nothing was sent"


# ---- sent all the same, by another station


GOOD = encode(update(Set("a")))
SENT: dict[str, bytes] = {
    **{line: encode(update(*operations)) for line, (operations, _) in BEFORE.items()},
    "nothing at all": b"",
    "noise": b"\x00\xff" * 40,
    "a blank more": GOOD.replace(b'":', b'": ', 1),
    "a member more": GOOD[:-1] + b',"z":1}',
    "another spelling": GOOD.replace(b'"update"', b'"upd\\u0061te"'),
    "a member twice": GOOD.replace(b'"c":1', b'"c":1,"c":1'),
    "members in another order": GOOD.replace(b'"c":1,"i":"0000000000000000"', b'"i":"0000000000000000","c":1'),
    "a fraction": GOOD.replace(b'"c":1', b'"c":1.0'),
    "below nothing": GOOD.replace(b'"c":1', b'"c":-1'),
    "beyond 64 bits": GOOD.replace(b'"c":1', b'"c":18446744073709551616'),
    "no ASCII": GOOD.replace(b"user:root", b"user:\xff"),
    "two users": GOOD.replace(b'"operator"', b'"user:a"'),
    "nested 9 deep": MAGIC + b'\1{"k":"check","x":' + b"[" * 9 + b"]" * 9 + b"}",
    "nested 20,000 deep": MAGIC + b"\1" + b"[" * 20_000 + b"]" * 20_000,
    "an unknown operation": GOOD.replace(b'"op":"set"', b'"op":"sett"'),
    "an unknown message": MAGIC + b'\1{"k":"hello"}',
}


@pytest.mark.parametrize("line", SENT)
def test_a_wrong_message_changes_nothing_and_is_malformed_everywhere(line: str) -> None:
    copies = [State(MemoryStore(), 1000) for _ in range(2)]
    for state in copies:
        state.on_view((1, 1, 65535), [ME, OTHER], [ME, OTHER])
        state.apply((2, 1, 0), ME, encode(update(Set("b", (Target(B),)), counter=9)))
    before = copies[0].main
    results = [state.apply((3, 2, 0), OTHER, SENT[line]) for state in copies]
    assert [r.outcome.code if r.outcome else None for r in results] == ["malformed"] * 2
    assert [state.main for state in copies] == [before] * 2 and copies[0].rest == copies[1].rest
    assert copies[0].entry("a") is None and copies[0].entry("b") is not None
    assert copies[0].apply((4, 1, 0), ME, GOOD).outcome is not None, "and it goes on"


# ---- what an update is told


def grown(*before: tuple[Operation, ...], names_max: int = 1000) -> State:
    state = State(MemoryStore(), names_max)
    state.on_view((10, 1, 65535), [ME, OTHER], [ME, OTHER])
    for k, operations in enumerate(before):
        outcome = state.apply((11 + k, 1, 0), ME, encode(update(*operations, counter=100 + k))).outcome
        assert outcome is not None and outcome.code == ""
    return state


CHAIN = tuple((Alias(f"a{k}", f"a{k + 1}"),) for k in range(8))
OUTCOMES: dict[str, tuple[State, Operation, tuple[str, ...], str]] = {
    "an alias of itself": (grown(), Alias("a", "a"), OPERATOR, "alias-loop"),
    "a circle of three": (grown((Alias("a", "b"),), (Alias("b", "c"),)), Alias("c", "a"), OPERATOR, "alias-loop"),
    "a chain of nine": (grown(*CHAIN), Alias("z", "a0"), OPERATOR, "alias-loop"),
    "an unknown name": (grown(), Drop("a", (A,)), OPERATOR, "no-name"),
    "a dangling alias": (grown((Alias("a", "b"),)), Take("a"), OPERATOR, "no-name"),
    "nothing to take": (grown((Set("a"),)), Take("a"), OPERATOR, "no-address"),
    "in use already": (grown(), In(A), OPERATOR, "no-address"),
    "new, and there": (grown((Set("a"),)), Set("a", condition=NOWHERE), OPERATOR, "exists"),
    "another version": (grown((Set("a"),)), Remove("a", condition=(1, 1, 0)), OPERATOR, "version"),
    "a zone with names": (grown((SetZone("z"),), (Set("a", zone="z"),)), SetZone("z", remove=True), OPERATOR, "exists"),
    "no such zone": (grown((Set("a"),)), Move("a", "z"), OPERATOR, "no-zone"),
    "a zone of others": (grown((SetZone("z"),)), Set("a", zone="z"), USER, "not-permitted"),
    "a name of others": (grown((SetZone("default", writers=("user:u",)), Set("a"))), Remove("a"), USER, "not-permitted"),
    "a pattern of another zone": (
        grown((SetZone("z", patterns=("*.z",)),)),
        Set("a.z", zone="default"),
        OPERATOR,
        "not-permitted",
    ),
    "out of use, for operators": (grown(), Out(A), USER, "not-permitted"),
    "a station's own name": (grown(), Set("s1.station"), OPERATOR, "not-permitted"),
    "a full zone": (grown((SetZone("z", names_max=1),), (Set("a", zone="z"),)), Set("b", zone="z"), OPERATOR, "full"),
    "a full directory": (grown((Set("a"),), names_max=1), Set("b"), OPERATOR, "full"),
    "a lease beside an alias": (grown((Alias("a", "b"),)), Register("a", A, 1), OPERATOR, "kind"),
    "a 65th target": (grown((Set("a", targets(64)),)), Add("a", (Target(A),)), OPERATOR, "too-large"),
    "a row of 48 KiB": (
        grown((Set("a", targets(64, 400)),)),
        SetSchedule("a", tuple(Slot(f"0{k}:00", tuple(t.address for t in targets(9, 450))) for k in range(9))),
        OPERATOR,
        "too-large",
    ),
    "a switch of an alias": (grown((Alias("a", "b"),)), Switch("a", (A,)), OPERATOR, "kind"),
}


@pytest.mark.parametrize("line", OUTCOMES)
def test_what_an_update_is_told(line: str) -> None:
    state, operation, roles, code = OUTCOMES[line]
    before = state.main
    message = update(operation, roles=roles)
    assert check(message) == ""
    outcome = state.apply((900, 1, 0), ME, encode(message)).outcome
    assert outcome is not None and outcome.code == code
    assert state.main == before, "nothing is changed"


# ---- what a look-up is told


def test_what_a_look_up_is_told() -> None:
    down = Target(A, until="station:3")
    state = grown((Alias("www", "web"),), (Set("a", (down,)),), (Set("none"),), *CHAIN, (Alias("z", "a1"),))
    dangling = lookup.follow(state.entry, "www")
    assert (dangling.code, dangling.path, dangling.entry) == ("no-name", ("www", "web"), None), "with the path"
    assert lookup.follow(state.entry, "nobody").code == "no-name"
    for name in ("a", "none"):
        entry = lookup.follow(state.entry, name).entry
        assert entry is not None
        assert effective(entry, frozenset(state.stations_up()), lambda address: False) == [], "no-address"
    longer = grown(*CHAIN)  # a chain grows at its other end, too
    assert longer.apply((800, 1, 0), ME, encode(update(Alias("a8", "a9"), counter=800))).outcome is not None
    assert lookup.follow(longer.entry, "a0").code == "alias-loop"


class NoHolder:
    """A copy that knows a name of a zone in which nobody is active."""

    place = (100, 1, 0)

    def common(self, name: str) -> Common | None:
        return Common("north", (50, 1, 0))

    def keeps(self, zone: str) -> bool:
        return False

    def manager(self, zone: str) -> None:
        return None


def test_a_zone_without_a_holder_is_down_for_its_names() -> None:
    assert lookup.decide(NoHolder(), Ask(1, "a")) == Down("north")
    assert "zone-down" in lookup.CODES and Answer(1, NOWHERE, "zone-down", zone="north").code == "zone-down"


# ---- state transfer


DATA = b"x" * 40
LISTED = Entry(b"k", len(DATA), b"d" * 16)


def joining() -> tuple[Attempt, Counter[str]]:
    """A joiner that has asked its donor for the one chunk there is."""
    counters: Counter[str] = Counter()
    joiner = Attempt(Program(Features(True, True, True, True, True, 4, 0), Table()), 9, (1, 1, 1), (ME,), 1 << 16, counters, 0)
    building = joiner.on_offer(0, ME, OfferMessage((2, 1), 9, False, False, 1, len(DATA), b"digest"), None)
    assert building is not None
    joiner.on_listing(0, ME, Listing(9, 0, True, (LISTED,)))
    assert joiner.under_way() == {ME: 1}
    return joiner, counters


DROPPED: dict[str, tuple[Callable[[Attempt], Any], str]] = {
    "a chunk nobody asked for": (lambda j: j.on_chunk(0, ME, Chunk(9, b"other", 0, DATA)), "chunk-unasked"),
    "a chunk of who is no donor": (lambda j: j.on_chunk(0, OTHER, Chunk(9, b"k", 0, DATA)), "chunk-unasked"),
    "a chunk that is too long": (lambda j: j.on_chunk(0, ME, Chunk(9, b"k", 0, DATA + b"x")), "chunk-size"),
    "a chunk with another digest": (lambda j: j.on_chunk(0, ME, Chunk(9, b"k", 0, DATA)), "chunk-digest"),
    "a listing nobody asked for": (lambda j: j.on_listing(0, ME, Listing(9, 1, True, ())), "listing-unasked"),
    "an offer of who is no donor": (
        lambda j: j.on_offer(0, OTHER, OfferMessage((2, 1), 9, False, False, 1, 1, b""), None),
        "offer-unasked",
    ),
}


@pytest.mark.parametrize("line", DROPPED)
def test_what_state_transfer_drops_it_counts(line: str) -> None:
    joiner, counters = joining()
    bad, reason = DROPPED[line]
    bad(joiner)
    assert counters == {reason: 1} and joiner.chunks == 0


def test_a_roster_of_an_earlier_view_or_another_opinion_is_dropped() -> None:
    counters: Counter[str] = Counter()
    roster = RosterState(OTHER, 0, counters)
    roster.on_view(0, (1, 2, 0), [ME, OTHER], [OTHER], [])
    roster.on_control(0, ME, Roster((0, 9, 0), (OTHER,), ()))
    assert not roster.active
    roster.on_control(0, ME, Roster((1, 2, 0), (ME,), ()))
    roster.on_control(0, OTHER, Roster((1, 2, 0), (OTHER,), ()))
    assert roster.active == {ME} and counters == {"roster-old": 1, "roster-differs": 1}
