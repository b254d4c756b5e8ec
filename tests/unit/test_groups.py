"""Process groups: a function of the delivered order, total on any bytes."""

from __future__ import annotations

import itertools
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zenjun.proto.errors import UsageError
from zenjun.proto.groups import CONTROL, Change, Groups, Operation, Request, decode, encode
from zenjun.proto.wire import group_id

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=32)
joins = st.builds(
    lambda group, program, level, open: Request(Operation.JOIN, group, program, level, open, False),
    names,
    st.text("abc", max_size=64),
    st.integers(0, 2),
    st.booleans(),
)
leaves = st.builds(lambda group, death: Request(Operation.LEAVE, group, "", 0, False, death), names, st.booleans())
requests = st.one_of(joins, leaves)


def join(groups: Groups, station: int, client: int, group: str, *, level: int = 1, open: bool = False) -> list[Change]:
    return groups.apply(station, client, Groups.encode_join(group, f"p{client}", level=level, open=open))


def leave(groups: Groups, station: int, client: int, group: str, *, death: bool = False) -> list[Change]:
    return groups.apply(station, client, Groups.encode_leave(group, death=death))


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


@given(st.binary(max_size=300))
def test_decoding_any_bytes_gives_a_request_or_none(data: bytes) -> None:
    request = decode(data)
    assert request is None or encode(request) == data


@given(requests, st.data())
def test_decoding_damaged_requests(request: Request, data: st.DataObject) -> None:
    good = bytearray(encode(request))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] ^= data.draw(st.integers(1, 255))
    damaged = decode(bytes(good))
    assert damaged is None or encode(damaged) == bytes(good)
    assert decode(encode(request)[:at]) is None
    assert decode(encode(request) + b"x") is None


def test_long_names_are_refused_before_they_are_sent() -> None:
    Groups.encode_join("g" * 128, "p" * 64, level=2, open=True)
    for group, program, level in (("g" * 129, "p", 0), ("", "p", 0), ("g", "p" * 65, 0), ("é" * 65, "p", 0), ("g", "p", 3)):
        with pytest.raises(UsageError):
            Groups.encode_join(group, program, level=level, open=False)


# ---- views


def test_join_and_leave_are_views() -> None:
    groups = Groups()
    groups.open(1)
    assert join(groups, 2, 7, "chat") == [Change("chat", ((2, 7, "p7"),), (), ((2, 7, "p7"),), "join")]
    assert join(groups, 1, 9, "chat") == [Change("chat", ((1, 9, "p9"),), (), ((1, 9, "p9"), (2, 7, "p7")), "join")]
    assert leave(groups, 2, 7, "chat") == [Change("chat", (), ((2, 7, "p7"),), ((1, 9, "p9"),), "leave")]
    assert leave(groups, 1, 9, "chat", death=True) == [Change("chat", (), ((1, 9, "p9"),), (), "death")]
    assert groups.names() == []


def test_members_and_who_has_just_left_are_told() -> None:
    groups = Groups()
    for station, client in ((1, 5), (2, 6), (1, 3)):
        join(groups, station, client, "g")
    (change,) = leave(groups, 1, 5, "g")
    assert change.clients_at(1) == (3, 5)
    assert change.clients_at(2) == (6,)
    assert change.clients_at(3) == ()


def test_joining_twice_and_leaving_as_a_stranger_change_nothing() -> None:
    groups = Groups()
    join(groups, 1, 1, "g")
    assert join(groups, 1, 1, "g", level=2) == []
    assert leave(groups, 1, 2, "g") == []
    assert leave(groups, 2, 1, "g") == []
    assert leave(groups, 1, 1, "other") == []
    assert groups.members("g") == ((1, 1, "p1"),)
    assert not groups.needs_ack("g")


def test_nonsense_is_ignored_and_counted() -> None:
    groups = Groups()
    assert groups.apply(1, 1, b"") == []
    assert groups.apply(1, 1, bytes(CONTROL.size)) == []
    assert groups.malformed == 2


def test_a_second_name_with_the_same_number_is_refused(colliding: tuple[str, str]) -> None:
    first, second = colliding
    groups = Groups()
    join(groups, 1, 1, first)
    assert join(groups, 2, 2, second) == [Change(second, (), (), (), "name-collision")]
    assert groups.name_of(group_id(second)) == first
    assert groups.members(second) == ()
    assert not groups.may_send(second)
    assert leave(groups, 1, 1, second) == []
    leave(groups, 1, 1, first)
    assert join(groups, 2, 2, second)[0].reason == "join"


def test_who_finds_the_group_empty_decides_whether_it_is_open() -> None:
    groups = Groups()
    assert groups.may_send("g")  # nobody there
    join(groups, 1, 1, "g", open=False)
    join(groups, 1, 2, "g", open=True)
    assert not groups.may_send("g") and not groups.is_open("g")
    leave(groups, 1, 1, "g")
    leave(groups, 1, 2, "g")
    join(groups, 1, 2, "g", open=True)
    assert groups.may_send("g") and groups.is_open("g")


def test_ack_is_needed_while_a_member_wants_it() -> None:
    groups = Groups()
    join(groups, 1, 1, "g", level=2)
    join(groups, 2, 1, "g", level=0)
    assert groups.needs_ack("g")
    leave(groups, 1, 1, "g")
    assert not groups.needs_ack("g")


def test_a_new_instance_starts_empty() -> None:
    groups = Groups()
    groups.open(1)
    join(groups, 1, 1, "g")
    groups.close()
    assert (groups.instance, groups.names()) == (0, [])
    groups.open(2)
    assert (groups.instance, groups.members("g")) == (2, ())
    assert groups.as_list() == []


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3), st.integers(1, 3), st.sampled_from(["a", "b"]))))
def test_the_groups_are_the_same_at_every_station_and_views_add_up(operations: list[tuple[bool, int, int, str]]) -> None:
    """Two stations fed the same order agree on every view; each view is the one before it, plus joined, minus left."""
    stations = [Groups(), Groups()]
    seen: dict[str, set[tuple[int, int, str]]] = {"a": set(), "b": set()}
    for joining, station, client, name in operations:
        views = [(join if joining else leave)(groups, station, client, name) for groups in stations]
        assert views[0] == views[1]
        for change in views[0]:
            seen[change.group] = (seen[change.group] | set(change.joined)) - set(change.left)
            assert change.members == tuple(sorted(seen[change.group]))
    assert all(groups.members(name) == tuple(sorted(seen[name])) for groups in stations for name in seen)
    assert [g["name"] for g in stations[0].as_list()] == [name for name in sorted(seen) if seen[name]]


def test_fuzz_apply_never_raises() -> None:
    groups, rng = Groups(), random.Random(2)
    for _ in range(2000):
        data = bytearray(Groups.encode_join("g" * rng.randint(1, 5), "p", level=rng.randint(0, 2), open=bool(rng.randint(0, 1))))
        for _ in range(rng.randint(0, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        groups.apply(rng.randint(1, 3), rng.randint(0, 3), bytes(data))
    assert groups.malformed > 100
