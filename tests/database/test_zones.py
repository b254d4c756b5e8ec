"""Zones of databases: which stations have one, which of them is used, and messages that are not as they should be."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from zenjun.daemon.config.option import check_database_zones
from zenjun.proto.service.base import Emit
from zenjun.proto.service.database import distance
from zenjun.proto.service.database.distance import CALL_MAX, SESSIONS_MAX, Asked, Distance, Frame, Kind, Lost, Told
from zenjun.proto.service.database.zones import Zones, parse_zone

from ..rules import rule

ZONES = Zones(6, {"north": (2, 1), "south": (5, 4, 3)})


@rule("Z2")
def test_sites() -> None:
    assert list(ZONES.zones) == ["north", "south", "6"]
    assert ZONES.sites() == (2, 5, 6), "the first of each zone's list"
    assert ZONES.sites(2) == (1, 2, 4, 5, 6)
    assert ZONES.sites(9, ["south"]) == (3, 4, 5)
    assert Zones(3).sites() == (1, 2, 3), "without zones every station"
    with pytest.raises(KeyError):
        ZONES.sites(1, ["west"])


@rule("Z3")
def test_nearest() -> None:
    sites = ZONES.sites(2)
    assert ZONES.primary("south", sites, {3, 4, 5}) == 5
    assert ZONES.primary("south", sites, {3, 4}) == 4, "the next of the list that is active"
    assert [ZONES.nearest(k, sites, {2, 4}) for k in range(1, 7)] == [2, 2, 4, 4, 4, 2]
    assert ZONES.nearest(3, sites, {2}) == 2 and ZONES.nearest(1, sites, {3}) is None, "3 has no copy"


@pytest.mark.parametrize("text", ["", "north", "north=", "north=1,1", "north=x", "7=1", "No=1", "a=1;2"])
def test_what_is_no_zone(text: str) -> None:
    with pytest.raises(ValueError):
        parse_zone(text)
    assert check_database_zones([text])


def test_options() -> None:
    assert check_database_zones(["north=2,1", "south=3"]) == ""
    assert "station 1 is in two zones" in check_database_zones(["north=2,1", "south=1"])
    assert "named twice" in check_database_zones(["north=2", "north=1"])


def _pair() -> tuple[Distance, Distance]:
    """Two stations that have spoken."""
    one, two = Distance((1, 1), Zones(2)), Distance((2, 1), Zones(2))
    for machine in (one, two):
        machine.on_view({one.me, two.me}, {one.me, two.me})
    _carry(one, two, one.announce({"u": True}) + two.announce({}))
    _carry(two, one, two.announce({"u": False}))
    return one, two


def _carry(source: Distance, target: Distance, effects: Sequence[object]) -> list[object]:
    found: list[object] = []
    for effect in effects:
        if isinstance(effect, Emit):
            source.on_message(source.me, effect.data)
            found += target.on_message(source.me, effect.data)
        else:
            found.append(effect)
    return found


def test_what_others_may_send() -> None:
    """Every byte cut, every kind, every number: nothing is raised, and nothing begins."""
    one, two = _pair()
    frames = [Frame(kind, one.me, 3, 1, True, b"x").encode() for kind in Kind]
    for data in (b"", b"\x09" * 30, *frames, *(f[:k] for f in frames for k in range(len(f)))):
        one.on_message(two.me, data)
    for data in (b"[]", b"{", b'{"z":1,"d":{}}', b'{"z":"","d":[]}', b"9" * distance.TEXT_MAX + b"9", b"[" * 20_000):
        one.on_message(two.me, Frame(Kind.HERE, data=data).encode())
    assert one.on_message((9, 9), frames[1]) == [] and one.dropped["stranger"] == 1
    assert not one.served and one.said[two.me].zones == two.text


@rule("Z4")
def test_bounds() -> None:
    one, two = _pair()
    for k in range(SESSIONS_MAX):
        assert isinstance(_carry(one, two, one.call(one.begin(two.me), b"{}"))[0], Asked), k
    session = one.begin(two.me)
    (answer,) = _carry(two, one, _carry(one, two, one.call(session, b"{}")))
    assert isinstance(answer, Lost) and f"{SESSIONS_MAX} sessions" in answer.reason
    two.part_bytes = 100
    assert [type(e) for e in _carry(two, one, two.answer(one.me, 1, 0, bytes(999)))] == [Told], "in parts"
    (gone,) = _carry(one, two, one.call(1, bytes(CALL_MAX + 1)))[:1]
    assert isinstance(gone, distance.Dropped), "a call that is too long ends the session"
    assert len(two.served) == SESSIONS_MAX - 1


def test_a_call_at_a_time() -> None:
    one, two = _pair()
    session = one.begin(two.me)
    assert _carry(one, two, one.call(session, b"1"))
    found = _carry(one, two, one.call(session, b"2"))
    assert isinstance(found[0], distance.Dropped), "the first has not been answered"
    assert two.answer(one.me, session, 0, b"late") == [], "its reply goes nowhere"


@rule("Z3")
def test_messages_and_views_come_in_any_order() -> None:
    """The group has order op: what a newcomer says may come before the view that lets it in, and what others say at that view may
    come to it before it is in the group, where nobody gets it."""
    one, two = Distance((1, 1), Zones(2)), Distance((2, 1), Zones(2))
    everybody = {one.me, two.me}
    one.on_view({one.me}, {one.me})
    one.announce({"u": True})
    lost = one.on_view(everybody, {two.me})  # what it says does not reach the newcomer
    assert lost
    (here,) = [e for e in two.on_view(everybody, {two.me}) if isinstance(e, Emit)]
    other = Distance((1, 2), Zones(2))
    other.on_message(two.me, here.data)
    other.on_view({other.me, two.me}, {other.me})
    assert other.said[two.me].zones == two.text, "said before the view"
    _carry(one, two, one.on_message(two.me, here.data))
    assert two.nearest("u", (1, 2)) == one.me, "what the newcomer says is answered"
    for k in range(200):
        other.on_message((9, k), here.data)
    assert len(other.early) <= distance.EARLY_MAX


def test_here_is_json() -> None:
    made = distance.Here("1=1", {"u": True, "v": False})
    assert distance.Here.decode(made.encode()) == made
    assert json.loads(made.encode()) == {"z": "1=1", "d": {"u": True, "v": False}}
