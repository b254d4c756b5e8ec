"""Groups that overlap, orders abcast and token, with real daemons: who receives what, and in which order."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Literal

import pytest
from zenjun.daemon.client import Message, SyncConnection, SyncGroup, Tokens, View, connect_sync
from zenjun.tools.lab import Lab, Station

from .cluster import cluster, in_parallel, kill, status, together, wait_for

pytestmark = pytest.mark.lab
MemberOrder = Literal["abcast", "token"]
ROUNDS = 30


class Talker:
    """A program at a station, in some of the groups."""

    def __init__(self, station: Station, groups: str, order: MemberOrder, sends_to: str = "") -> None:
        self.connection: SyncConnection = connect_sync(str(station.socket_path), name="talker", timeout=30)
        self.groups: dict[str, SyncGroup] = {g: self.connection.join(g, order=order, open_group=True) for g in groups}
        self.others = {g: self.connection.join(g, order=order, send_only=True) for g in sends_to}
        self.read: dict[str, list[Message]] = {g: [] for g in groups}
        self.views: dict[str, list[View]] = {g: [] for g in groups}

    def send(self, data: bytes, groups: str) -> None:
        handles = {**self.groups, **self.others}
        self.connection.send(data, [handles[g] for g in groups])

    def take(self, group: str, count: int) -> None:
        """Read until so many messages of the group have come in all."""
        handle = self.groups[group]
        while len(self.read[group]) < count:
            for item in handle.recv_items(30):
                if isinstance(item, Message):
                    self.read[group].append(item)
                elif isinstance(item, View):
                    self.views[group].append(item)

    @property
    def got(self) -> list[bytes]:
        """All messages by their places, which is the order of delivery."""
        return [m.data for m in sorted((m for ms in self.read.values() for m in ms), key=lambda m: m.place)]


@contextlib.contextmanager
def talkers(lab: Lab, order: MemberOrder, where: Sequence[tuple[int, str, str]]) -> Iterator[list[Talker]]:
    """where: station, groups it is in, groups it only sends to."""
    made = [Talker(lab.stations[station], groups, order, sends_to) for station, groups, sends_to in where]
    try:
        yield made
    finally:
        for talker in made:
            talker.connection.close()


def one_order(members: Sequence[Talker]) -> None:
    """Any two programs have their common messages in one order."""
    for k, one in enumerate(members):
        for other in members[k + 1 :]:
            common = set(one.got) & set(other.got)
            assert [m for m in one.got if m in common] == [m for m in other.got if m in common]


@pytest.fixture(scope="module")
def segment() -> Iterator[Lab]:
    with cluster(4) as lab:
        yield lab


@pytest.mark.parametrize("order", ["abcast", "token"])
@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_two_groups_that_share_a_station(segment: Lab, order: MemberOrder, loss: float) -> None:
    """Group a at stations 1 and 2, b at 2 and 3; 4 is in neither and sends to both. All send at once; each message comes once,
    only where its groups are, and 2 has one order with each of the others."""
    where = [(1, "a", ""), (2, "ab", ""), (3, "b", ""), (4, "", "ab")]
    with talkers(segment, order, where) as members:
        one, two, three, outside = members
        hosts = Tokens((2,), 2, {1: 2, 2: 2}) if order == "token" else None
        assert one.connection.tokens("a") == outside.connection.tokens("a") == hosts
        segment.set_loss(loss)
        try:
            plans = [(one, "a"), (two, "ab"), (three, "b"), (outside, "ab")]

            def send(number: int) -> None:
                talker, groups = plans[number]
                for k in range(ROUNDS):
                    talker.send(f"{number} {k}".encode(), groups)

            in_parallel([functools.partial(send, number) for number in range(4)])
            # What goes to both groups comes to station 2 once, on its lower handle: that of a.
            one.take("a", 3 * ROUNDS)
            three.take("b", 3 * ROUNDS)
            two.take("a", 3 * ROUNDS)
            two.take("b", ROUNDS)
        finally:
            segment.set_loss(0.0)
        expected = {n: {f"{n} {k}".encode() for k in range(ROUNDS)} for n in range(4)}
        assert set(one.got) == expected[0] | expected[1] | expected[3] and len(one.got) == 3 * ROUNDS
        assert set(three.got) == expected[1] | expected[2] | expected[3] and len(three.got) == 3 * ROUNDS
        assert set(two.got) == set().union(*expected.values()) and len(two.got) == 4 * ROUNDS
        one_order(members)
        for talker in members:
            for n in range(4):
                mine = [m for m in talker.got if m.startswith(b"%d " % n)]
                assert mine == sorted(mine, key=lambda m: int(m.split()[1])), "each sender's order"
    wait_for(lambda: all(status(s)["multicast"]["unfinished"] == 0 for s in segment.stations.values()), "all is finished")


def test_a_station_that_dies_and_comes_back(segment: Lab) -> None:
    """Station 3 of group {1, 2, 3} is killed while messages flow: the others have one sequence, with its death at one place, and
    the station joins again and gets what is sent then."""
    with talkers(segment, "token", [(1, "g", ""), (2, "g", ""), (3, "g", "")]) as (one, two, three):
        for k in range(20):
            one.send(b"before %d" % k, "g")
        three.take("g", 20)
        kill(segment.stations[3])
        for k in range(20):
            two.send(b"after %d" % k, "g")
        one.take("g", 40)
        two.take("g", 40)
        assert one.got == two.got
        segment.start_daemons([3])
        together(segment)
        with talkers(segment, "token", [(3, "g", "")]) as (back,):
            for k in range(20):
                one.send(b"again %d" % k, "g")
            back.take("g", 20)
            one.take("g", 60)
            two.take("g", 60)
        assert one.got == two.got and back.got == one.got[40:]
        assert [v.reason for v in one.views["g"]].count("death") >= 1
