"""Process groups: a function of the delivered order, total on any bytes."""

from __future__ import annotations

import itertools
import random
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zenjun.proto.errors import UsageError
from zenjun.proto.service.base import Effect, Emit, Place, Reply, ViewEvent, decode_view
from zenjun.proto.service.groups import (
    CONTROL,
    LEVEL_OF,
    SNAPSHOT,
    SNAPSHOT_BYTES_MAX,
    Change,
    Groups,
    Operation,
    Request,
    SnapshotEntry,
    SnapshotPart,
    decode,
    encode,
    encode_snapshot,
)
from zenjun.proto.wire import VIEW, Ordering, group_id

TOTAL, FIFO = Ordering.TOTAL, Ordering.FIFO
HERE: Place = (1, 1, 0)
"""The tables do not depend on it: a group's view has the place of what began it."""

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=32)
joins = st.builds(
    lambda group, program, level, open: Request(Operation.JOIN, group, program, level, open, False),
    names,
    st.text("abc", max_size=64),
    st.integers(0, 2),
    st.booleans(),
)
op_joins = st.builds(lambda group, open: Request(Operation.JOIN, group, "p", 0, open, False, FIFO), names, st.booleans())
leaves = st.builds(lambda group, death: Request(Operation.LEAVE, group, "", 0, False, death), names, st.booleans())
requests = st.one_of(joins, op_joins, leaves)
entries = st.builds(
    lambda client, group, program, level, open, ordering: SnapshotEntry(
        client, group, program, min(level, LEVEL_OF[ordering]), open, ordering
    ),
    st.integers(0, 65535),
    names,
    st.text("abc", max_size=64),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from(Ordering),
)


def join(
    groups: Groups, station: int, client: int, group: str, *, level: int = 1, open: bool = False, ordering: Ordering = TOTAL
) -> list[Effect]:
    data = Groups.encode_join(group, f"p{client}", level=min(level, LEVEL_OF[ordering]), open=open, ordering=ordering)
    return groups.on_message(HERE, (station, client), data)


def changes(effects: list[Effect]) -> list[Change]:
    return [effect for effect in effects if isinstance(effect, Change)]


def said(effects: list[Effect]) -> list[bytes]:
    """What a station broadcasts for itself."""
    assert all(effect.client == 0 for effect in effects if isinstance(effect, Emit))
    return [effect.data for effect in effects if isinstance(effect, Emit)]


def leave(groups: Groups, station: int, client: int, group: str, *, death: bool = False) -> list[Effect]:
    return groups.on_message(HERE, (station, client), Groups.encode_leave(group, death=death))


@pytest.fixture(scope="module")
def colliding() -> tuple[str, str]:
    """Two names with one CRC-32: found by the birthday, a few tens of thousands of tries."""
    seen: dict[int, str] = {}
    for i in itertools.count():
        name = f"group-{zlib.adler32(str(i).encode()):08x}-{i}"
        other = seen.setdefault(group_id(name), name)
        if other != name:
            return other, name
    raise AssertionError("unreachable")


# ---- codec


@given(requests)
def test_round_trip(request: Request) -> None:
    assert decode(encode(request)) == request


def again(decoded: Request | SnapshotPart) -> bytes:
    if isinstance(decoded, Request):
        return encode(decoded)
    (data,) = encode_snapshot(decoded.instance, decoded.entries, 1 << 20)
    return data if decoded.last else data[:1] + b"\0" + data[2:]


@given(st.binary(max_size=300), st.sampled_from([b"", b"\1", b"\2", b"\3", b"\3\x08\0\1"]))
def test_decoding_any_bytes_gives_a_request_or_none(data: bytes, start: bytes) -> None:
    decoded = decode(start + data)
    assert decoded is None or again(decoded) == start + data


@given(st.integers(0, 2**32 - 1), st.lists(entries, max_size=30), st.integers(50, 2000))
def test_a_state_comes_back_from_its_parts(instance: int, told: list[SnapshotEntry], limit: int) -> None:
    parts = encode_snapshot(instance, told, limit)
    decoded = [decode(part) for part in parts]
    assert [d.last for d in decoded if isinstance(d, SnapshotPart)] == [False] * (len(parts) - 1) + [True]
    assert all(isinstance(d, SnapshotPart) and d.instance == instance for d in decoded)
    assert [entry for d in decoded if isinstance(d, SnapshotPart) for entry in d.entries] == told
    assert all(len(part) <= limit or part[2:4] == b"\0\1" for part in parts)


def test_every_state_fits_the_smallest_message_max() -> None:
    longest = SnapshotEntry(65535, "g" * 128, "p" * 64, 2, True, TOTAL)
    parts = encode_snapshot(1, [longest] * 20)
    assert len(parts) > 1 and all(SNAPSHOT.size < len(part) <= SNAPSHOT_BYTES_MAX < 1024 for part in parts)


def test_a_cut_state_is_none() -> None:
    (data,) = encode_snapshot(7, [SnapshotEntry(1, "g", "p", 1, False, TOTAL)] * 3)
    for size in range(len(data)):
        assert decode(data[:size]) is None
    assert decode(data + b"x") is None


def test_a_view_event_is_read() -> None:
    data = VIEW.struct.pack(9, 77, 0b101, 0b100, 0b110) + b"".join(i.to_bytes(4, "big") for i in (5, 0, 8))
    event = decode_view(data)
    assert event == ViewEvent(9, 77, (5, 0, 8), (3,), (2, 3))
    assert event.members == (1, 3)


@pytest.mark.parametrize("level", [1, 2])
def test_fifo_has_one_level(level: int) -> None:
    with pytest.raises(UsageError, match="on acceptance"):
        Groups.encode_join("g", "p", level=level, open=False, ordering=FIFO)


@given(requests, st.data())
def test_decoding_damaged_requests(request: Request, data: st.DataObject) -> None:
    good = bytearray(encode(request))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] ^= data.draw(st.integers(1, 255))
    damaged = decode(bytes(good))
    assert damaged is None or (isinstance(damaged, Request) and encode(damaged) == bytes(good))
    assert decode(encode(request)[:at]) is None
    assert decode(encode(request) + b"x") is None


@pytest.mark.parametrize("bit", range(8))
def test_a_flag_that_is_not_declared_makes_no_request(bit: int) -> None:
    for operation, declared in ((Operation.JOIN, 0b110101), (Operation.LEAVE, 0b10)):
        data = bytearray(encode(Request(operation, "g", "", 0, False, False)))
        data[1] |= 1 << bit
        assert (decode(bytes(data)) is not None) == bool(declared >> bit & 1)


def test_long_names_are_refused_before_they_are_sent() -> None:
    Groups.encode_join("g" * 128, "p" * 64, level=2, open=True)
    for group, program, level in (("g" * 129, "p", 0), ("", "p", 0), ("g", "p" * 65, 0), ("é" * 65, "p", 0), ("g", "p", 3)):
        with pytest.raises(UsageError):
            Groups.encode_join(group, program, level=level, open=False)


# ---- views


def test_join_and_leave_are_views() -> None:
    groups = Groups(1)
    groups.open(1)
    assert join(groups, 2, 7, "chat") == [Change("chat", ((2, 7, "p7"),), (), ((2, 7, "p7"),), "join")]
    assert join(groups, 1, 9, "chat") == [Change("chat", ((1, 9, "p9"),), (), ((1, 9, "p9"), (2, 7, "p7")), "join")]
    assert leave(groups, 2, 7, "chat") == [Change("chat", (), ((2, 7, "p7"),), ((1, 9, "p9"),), "leave")]
    assert leave(groups, 1, 9, "chat", death=True) == [Change("chat", (), ((1, 9, "p9"),), (), "death")]
    assert groups.names() == []


def test_joining_twice_and_leaving_as_a_stranger_change_nothing() -> None:
    groups = Groups(1)
    join(groups, 1, 1, "g")
    assert join(groups, 1, 1, "g", level=2) == []
    assert leave(groups, 1, 2, "g") == []
    assert leave(groups, 2, 1, "g") == []
    assert leave(groups, 1, 1, "other") == []
    assert groups.members("g") == ((1, 1, "p1"),)
    assert not groups.needs_ack("g")


def test_one_group_too_many_is_refused_at_its_place() -> None:
    groups = Groups(1, groups_max=2)
    for name in ("a", "b"):
        join(groups, 1, 1, name)
    assert join(groups, 2, 7, "c") == [refused := Change("c", (), (), (), "too-many-groups")] and refused.refused
    join(groups, 2, 7, "b")
    assert len(groups.members("b")) == 2 and not groups.members("c"), "another member is no other group"
    leave(groups, 1, 1, "a")
    join(groups, 2, 7, "c")
    assert groups.members("c") == ((2, 7, "p7"),)


def test_nonsense_is_ignored_and_counted() -> None:
    groups = Groups(1)
    assert groups.on_message(HERE, (1, 1), b"") == []
    assert groups.on_message(HERE, (1, 1), bytes(CONTROL.size)) == []
    assert groups.malformed == 2


def test_a_second_name_with_the_same_number_is_refused(colliding: tuple[str, str]) -> None:
    first, second = colliding
    groups = Groups(1)
    join(groups, 1, 1, first)
    assert join(groups, 2, 2, second) == [Change(second, (), (), (), "name-collision")]
    assert groups.name_of(group_id(second)) == first
    assert groups.members(second) == ()
    assert not groups.may_send(second)
    assert leave(groups, 1, 1, second) == []
    leave(groups, 1, 1, first)
    assert changes(join(groups, 2, 2, second))[0].reason == "join"


def test_who_finds_the_group_empty_decides_whether_it_is_open() -> None:
    groups = Groups(1)
    assert groups.may_send("g")  # nobody there
    join(groups, 1, 1, "g", open=False)
    join(groups, 1, 2, "g", open=True)
    assert not groups.may_send("g") and not groups.is_open("g")
    leave(groups, 1, 1, "g")
    leave(groups, 1, 2, "g")
    join(groups, 1, 2, "g", open=True)
    assert groups.may_send("g") and groups.is_open("g")


def test_ack_is_needed_while_a_member_wants_it() -> None:
    groups = Groups(1)
    join(groups, 1, 1, "g", level=2)
    join(groups, 2, 1, "g", level=0)
    assert groups.needs_ack("g")
    leave(groups, 1, 1, "g")
    assert not groups.needs_ack("g")


def test_a_new_instance_starts_empty() -> None:
    groups = Groups(1)
    groups.open(1)
    join(groups, 1, 1, "g")
    groups.close()
    assert (groups.instance, groups.names()) == (0, [])
    groups.open(2)
    assert (groups.instance, groups.members("g")) == (2, ())
    assert groups.as_list() == []


def test_the_first_member_fixes_the_order() -> None:
    groups = Groups(1)
    join(groups, 1, 1, "g", ordering=FIFO)
    assert groups.ordering("g") is FIFO and groups.as_list()[0]["order"] == "op"
    assert join(groups, 2, 1, "g") == [Change("g", (), (), (), "order-mismatch", FIFO)]
    assert join(groups, 1, 1, "g") == []  # a member already: nothing happens, whatever it asks for
    assert changes(join(groups, 2, 1, "g", ordering=FIFO))[0].reason == "join"
    leave(groups, 1, 1, "g")
    leave(groups, 2, 1, "g")
    assert groups.ordering("g") is TOTAL
    assert changes(join(groups, 2, 1, "g"))[0].reason == "join" and groups.ordering("g") is TOTAL


# ---- views of the cluster


def event(instance: int, members: tuple[int, ...], *, joined: tuple[int, ...] = (), left: tuple[int, ...] = ()) -> ViewEvent:
    return ViewEvent(instance, 1000 + instance, tuple(instance if s in members else 0 for s in range(1, 6)), joined, left)


def dump(groups: Groups) -> list[object]:
    return [(g, [(m, groups.needs_ack(g["name"])) for m in g["members"]]) for g in groups.as_list()]  # type: ignore[arg-type, attr-defined]


def test_members_of_a_removed_station_have_died() -> None:
    groups = Groups(1)
    groups.open(1)
    join(groups, 1, 1, "a")
    join(groups, 2, 1, "a")
    join(groups, 2, 2, "a", level=2)
    join(groups, 2, 1, "only")
    assert groups.on_view(HERE, event(2, (1, 3), left=(2,))) == [
        Change("a", (), ((2, 1, "p1"), (2, 2, "p2")), ((1, 1, "p1"),), "death"),
        Change("only", (), ((2, 1, "p1"),), (), "death"),
    ]
    assert groups.names() == ["a"] and not groups.needs_ack("a") and not groups.syncing and groups.instance == 2


def test_members_of_a_restarted_station_have_died() -> None:
    """One view can remove a life of a station and let the next one in."""
    groups = Groups(1)
    groups.open(1)
    join(groups, 2, 1, "a")
    assert [c.reason for c in changes(groups.on_view(HERE, event(2, (1, 2), joined=(2,), left=(2,))))] == ["death"]
    assert groups.syncing


def test_a_station_that_is_let_in_learns_the_groups() -> None:
    """JOINs and LEAVEs that stand between the view and the SNAPSHOTs are applied to the tables as of the view."""
    one, two, new = Groups(1), Groups(2), Groups(3)
    for groups in (one, two):
        groups.open(1)
        join(groups, 1, 1, "a", open=True, level=2)
        join(groups, 2, 1, "b", ordering=FIFO)
        join(groups, 2, 2, "b", ordering=FIFO)
    new.open(2, joined=True)
    first = event(2, (1, 2, 3), joined=(3,))
    told = {groups.station: said(groups.on_view(HERE, first)) for groups in (one, two)}
    assert new.on_view(HERE, first) == [] and all(told.values())
    assert one.syncing and new.syncing and one.known and not new.known
    with pytest.raises(UsageError):
        new.snapshot()
    for old in (one, two):
        assert leave(old, 2, 1, "b")
        assert join(old, 1, 2, "c")
        assert join(old, 2, 3, "c", ordering=FIFO) == [Change("c", (), (), (), "order-mismatch")]
    assert leave(new, 2, 1, "b") == join(new, 1, 2, "c") == join(new, 2, 3, "c", ordering=FIFO) == []
    for station, parts in told.items():
        assert not new.known and new.names() == []
        for part in parts:
            for groups in (one, two, new):
                assert groups.on_message(HERE, (station, 0), part) == []
    assert new.known and not new.syncing and not one.syncing
    assert dump(new) == dump(one) == dump(two) and new.names() == ["a", "b", "c"]
    assert new.is_open("a") and new.needs_ack("a") and new.ordering("b") is FIFO


def test_a_view_before_everybody_has_told_begins_anew() -> None:
    """What a removed station had to tell is lost: without a new start the flags of a group that it was first in would be, too."""
    old, new = Groups(1), Groups(3)
    old.open(1)
    join(old, 2, 1, "g", open=True)
    new.open(2, joined=True)
    first = said(old.on_view(HERE, event(2, (1, 2, 3), joined=(3,))))
    assert first and not said(new.on_view(HERE, event(2, (1, 2, 3), joined=(3,))))
    states: dict[int, list[bytes]] = {}
    for groups in (old, new):
        join(groups, 1, 1, "g")
        states[groups.station] = said(groups.on_view(HERE, event(3, (1, 3), left=(2,))))
        for part in first:
            groups.on_message(HERE, (1, 0), part)
    assert not new.known and old.syncing and new.syncing  # that SNAPSHOT was as of the former view
    for station, parts in states.items():
        assert parts
        for part in parts:
            for groups in (old, new):
                groups.on_message(HERE, (station, 0), part)
    assert new.known and dump(new) == dump(old) and new.is_open("g")


def test_a_station_that_is_in_no_instance_says_nothing() -> None:
    """The rest of an instance may still be delivered; who is let in there is the others' business."""
    groups = Groups(1)
    groups.open(1)
    join(groups, 1, 1, "g")
    groups.suspend()
    assert groups.names() == ["g"]
    assert not said(groups.on_view(HERE, event(2, (1, 2, 3), joined=(3,))))
    assert groups.on_request("q", b"g") == [Reply("q", {"group": "g", "members": []})]


def test_questions_about_members() -> None:
    groups = Groups(1)
    groups.open(1)
    join(groups, 2, 7, "g")
    assert groups.on_request("q", b"g") == [Reply("q", {"group": "g", "members": [[2, 7, "p7"]]})]
    assert groups.on_request("q", b"other") == [Reply("q", {"group": "other", "members": []})]
    for wrong in (b"", b"x" * 129, b"\xff"):
        (reply,) = groups.on_request("q", wrong)
        assert isinstance(reply, Reply) and reply.code == "name" and reply.body["message"]


def test_a_state_of_a_program_or_of_a_stranger_is_nothing() -> None:
    groups = Groups(1)
    groups.open(2, joined=True)
    groups.on_view(HERE, event(2, (1, 3), joined=(3,)))
    (state,) = encode_snapshot(2, [])
    groups.on_message(HERE, (1, 5), state)
    assert groups.malformed == 1
    groups.on_message(HERE, (2, 0), state)
    groups.on_message(HERE, (3, 0), state)
    assert not groups.known
    groups.on_message(HERE, (1, 0), state)
    assert groups.known
    groups.on_message(HERE, (1, 0), encode_snapshot(2, [SnapshotEntry(1, "g", "p", 0, False, TOTAL)])[0])
    assert groups.names() == []


class World:
    """Stations that come and go, each with its tables and what it has broadcast and not yet got into the order."""

    def __init__(self) -> None:
        self.instance = 1
        self.tables = {station: Groups(station) for station in (1, 2)}
        self.outbox: dict[int, list[tuple[int, bytes]]] = {1: [], 2: []}
        for groups in self.tables.values():
            groups.open(1)

    def request(self, station: int, client: int, data: bytes) -> None:
        if station in self.tables and self.tables[station].known:
            self.outbox[station].append((client, data))

    def order(self, station: int) -> None:
        """The next thing the station has broadcast gets its place."""
        if self.outbox.get(station):
            client, data = self.outbox[station].pop(0)
            views = [groups.on_message(HERE, (station, client), data) for groups in self.tables.values() if groups.known]
            for groups in self.tables.values():
                if not groups.known:
                    assert groups.on_message(HERE, (station, client), data) == []
            assert all(view == views[0] for view in views)

    def view(self, members: set[int]) -> None:
        before = set(self.tables)
        if not members & before or members == before:
            return
        self.instance += 1
        joined, left = tuple(sorted(members - before)), tuple(sorted(before - members))
        for station in left:
            del self.tables[station], self.outbox[station]
        for station in joined:
            self.tables[station], self.outbox[station] = Groups(station), []
            self.tables[station].open(self.instance, joined=True)
        what = event(self.instance, tuple(sorted(members)), joined=joined, left=left)
        effects = {station: groups.on_view(HERE, what) for station, groups in self.tables.items()}
        views = [changes(effects[station]) for station, groups in self.tables.items() if groups.known]
        assert all(view == views[0] for view in views)
        assert all(not changes(effects[station]) for station, groups in self.tables.items() if not groups.known)
        assert len({groups.syncing for groups in self.tables.values()}) == 1
        for station, groups in self.tables.items():
            assert bool(said(effects[station])) == (groups.syncing and station not in joined)
            self.outbox[station] += [(0, part) for part in said(effects[station])]

    def check(self) -> None:
        """Who knows the groups has the same ones, and could give them to a copy that then goes on like the original."""
        known = [groups for groups in self.tables.values() if groups.known]
        assert all(dump(groups) == dump(known[0]) for groups in known)
        assert all(groups.snapshot() == known[0].snapshot() for groups in known)

    def replace(self, station: int) -> None:
        """A copy that has got its state from another station takes the place of the original."""
        donor = next((groups for groups in self.tables.values() if groups.known), None)
        if station in self.tables and self.tables[station].known and donor is not None:
            copy = Groups(station)
            copy.open(self.instance)
            copy.restore(donor.snapshot())
            self.tables[station] = copy


steps = st.one_of(
    st.tuples(
        st.just("ask"),
        st.integers(1, 5),
        st.integers(1, 2),
        st.sampled_from("ab"),
        st.booleans(),
        st.booleans(),
        st.sampled_from(Ordering),
    ),
    st.tuples(st.just("order"), st.integers(1, 5)),
    st.tuples(st.just("order"), st.integers(1, 5)),
    st.tuples(st.just("view"), st.sets(st.integers(1, 5), min_size=1)),
    st.tuples(st.just("replace"), st.integers(1, 5)),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(steps, max_size=80))
def test_who_has_applied_the_same_from_a_state_on_has_the_same_groups(todo: list[tuple[Any, ...]]) -> None:
    """Stations come and go at any place, also while others are being told; whoever knows the groups has the same ones, and once
    all that was broadcast is in the order everybody knows them."""
    world = World()
    for step in todo:
        match step:
            case ("ask", station, client, name, joining, open, ordering):
                data = (
                    Groups.encode_join(name, "p", level=0, open=open, ordering=ordering)
                    if joining
                    else Groups.encode_leave(name, death=False)
                )
                world.request(station, client, data)
            case ("order", station):
                world.order(station)
            case ("view", members):
                world.view(members)
            case ("replace", station):
                world.replace(station)
        world.check()
    while any(world.outbox.values()):
        for station in list(world.outbox):
            world.order(station)
        world.check()
    assert all(groups.known and not groups.syncing for groups in world.tables.values())


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3), st.integers(1, 3), st.sampled_from(["a", "b"]))))
def test_the_groups_are_the_same_at_every_station_and_views_add_up(operations: list[tuple[bool, int, int, str]]) -> None:
    """Two stations fed the same order agree on every view; each view is the one before it, plus joined, minus left."""
    stations = [Groups(1), Groups(1)]
    seen: dict[str, set[tuple[int, int, str]]] = {"a": set(), "b": set()}
    for joining, station, client, name in operations:
        views = [(join if joining else leave)(groups, station, client, name) for groups in stations]
        assert views[0] == views[1]
        for change in changes(views[0]):
            seen[change.group] = (seen[change.group] | set(change.joined)) - set(change.left)
            assert change.members == tuple(sorted(seen[change.group]))
    assert all(groups.members(name) == tuple(sorted(seen[name])) for groups in stations for name in seen)
    assert [g["name"] for g in stations[0].as_list()] == [name for name in sorted(seen) if seen[name]]


def test_fuzz_apply_never_raises() -> None:
    groups, rng = Groups(1), random.Random(2)
    for _ in range(2000):
        data = bytearray(Groups.encode_join("g" * rng.randint(1, 5), "p", level=rng.randint(0, 2), open=bool(rng.randint(0, 1))))
        for _ in range(rng.randint(0, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        groups.on_message(HERE, (rng.randint(1, 3), rng.randint(0, 3)), bytes(data))
    assert groups.malformed > 100


@given(st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=40)), max_size=4), st.booleans())
def test_restoring_nonsense_leaves_the_tables(chunks: list[tuple[bytes, bytes]], headed: bool) -> None:
    groups = Groups(1)
    groups.open(1)
    join(groups, 1, 1, "g")
    before = groups.snapshot()
    try:
        groups.restore([*before[: int(headed)], *chunks])
    except ValueError:
        assert groups.snapshot() == before
    else:
        assert groups.known
