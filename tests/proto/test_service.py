"""The contract of a service, shown on the smallest one that uses all of it: leases. Its host here is an order in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zenjun.proto.service.base import Chunk, Effect, Emit, Place, Reply, Source, StateMachine, Store, ViewEvent
from zenjun.proto.service.groups import Groups

LEASE_NS = 1000


class Leases(StateMachine[tuple[int, ...]]):
    """Who holds which name; a lease ends with its station, or when the holder's own copy says so."""

    def __init__(self, station: int) -> None:
        self.station = station
        self.holders: dict[bytes, tuple[int, Place]] = {}
        self.now = 0
        self._until: dict[bytes, int] = {}
        self._asked: dict[bytes, Hashable] = {}

    def on_message(self, place: Place, source: Source, data: bytes) -> list[Effect]:
        kind, name = data[:1], data[1:]
        effects: list[Effect] = []
        if kind == b"+" and name not in self.holders:
            self.holders[name] = (source[0], place)
            effects.append(Store(name, bytes([source[0]])))
        elif kind == b"-" and self.holders.get(name, (0,))[0] == source[0]:
            del self.holders[name]
            effects.append(Store(name, None))
        if source[0] == self.station and kind == b"+" and (request := self._asked.pop(name, None)) is not None:
            mine = self.holders[name][0] == self.station
            self._until[name] = self.now + LEASE_NS
            effects.append(Reply(request, {"holder": self.holders[name][0]}, "" if mine else "refused"))
        return effects

    def on_view(self, place: Place, view: tuple[int, ...]) -> list[Effect]:
        gone = sorted(name for name, (station, _) in self.holders.items() if station not in view)
        for name in gone:
            del self.holders[name]
        return [Store(name, None) for name in gone]

    def on_request(self, request: Hashable, body: bytes) -> list[Effect]:
        self._asked[body] = request
        return [Emit(b"+" + body)]

    def next_deadline_ns(self) -> int | None:
        return min(self._until.values(), default=None)

    def on_timer(self, now_ns: int) -> list[Effect]:
        self.now = now_ns
        over = sorted(name for name, until in self._until.items() if until <= now_ns)
        for name in over:
            del self._until[name]
        return [Emit(b"-" + name) for name in over]

    def snapshot(self) -> list[Chunk]:
        return [(name, b"%d %d %d %d" % (station, *place)) for name, (station, place) in sorted(self.holders.items())]

    def restore(self, chunks: Iterable[Chunk]) -> None:
        rows = {name: tuple(map(int, data.split())) for name, data in chunks}
        if any(len(row) != 4 for row in rows.values()):
            raise ValueError("no lease")
        self.holders = {name: (row[0], (row[1], row[2], row[3])) for name, row in rows.items()}


class Cluster:
    """Copies fed with one order; ``disks`` is what each has stored."""

    def __init__(self, stations: int) -> None:
        self.copies = {s: Leases(s) for s in range(1, stations + 1)}
        self.disks: dict[int, dict[bytes, bytes]] = {s: {} for s in self.copies}
        self.replies: list[Reply] = []
        self.under_way: deque[tuple[int, bytes]] = deque()
        self.clock = 0

    def carry_out(self, station: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Emit(data, client):
                    assert client == 0
                    self.under_way.append((station, data))
                case Reply():
                    self.replies.append(effect)
                case Store(key, None):
                    self.disks[station].pop(key, None)
                case Store(key, data):
                    assert data is not None
                    self.disks[station][key] = data

    def order(self) -> None:
        while self.under_way:
            station, data = self.under_way.popleft()
            self.clock += 1
            for s, copy in self.copies.items():
                self.carry_out(s, copy.on_message((self.clock, station, 0), (station, 0), data))

    def view(self, stations: set[int]) -> None:
        self.clock += 1
        for s in [s for s in self.copies if s not in stations]:
            del self.copies[s]
        for s, copy in self.copies.items():
            self.carry_out(s, copy.on_view((self.clock, min(stations), 65535), tuple(sorted(stations))))

    def check(self) -> None:
        first = next(iter(self.copies.values()))
        assert all(copy.snapshot() == first.snapshot() for copy in self.copies.values())
        for s, copy in self.copies.items():
            assert {name: holder for name, (holder, _) in copy.holders.items()} == {n: d[0] for n, d in self.disks[s].items()}


def test_the_first_in_the_order_wins_and_both_are_answered() -> None:
    cluster = Cluster(3)
    for station in (2, 1):
        cluster.carry_out(station, cluster.copies[station].on_request(f"of {station}", b"db"))
    cluster.order()
    cluster.check()
    assert cluster.replies == [Reply("of 2", {"holder": 2}), Reply("of 1", {"holder": 2}, "refused")]


def test_a_timer_speaks_and_the_order_decides() -> None:
    cluster = Cluster(2)
    one = cluster.copies[1]
    assert one.next_deadline_ns() is None
    cluster.carry_out(1, one.on_request("q", b"db"))
    cluster.order()
    assert one.next_deadline_ns() == LEASE_NS and cluster.copies[2].next_deadline_ns() is None
    assert one.on_timer(LEASE_NS - 1) == []
    effects = one.on_timer(LEASE_NS)
    assert effects == [Emit(b"-db")] and one.on_timer(LEASE_NS) == [] and b"db" in one.holders
    cluster.carry_out(1, effects)
    cluster.order()
    cluster.check()
    assert not one.holders


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 4), st.sampled_from([b"a", b"b"])),
        st.tuples(st.just("over"), st.integers(1, 4), st.integers(0, 5 * LEASE_NS)),
        st.tuples(st.just("go"), st.integers(2, 4), st.just(b"")),
        st.tuples(st.just("copy"), st.integers(1, 4), st.just(b"")),
        st.tuples(st.just("order"), st.just(0), st.just(b"")),
    ),
    max_size=40,
)


@given(steps)
def test_copies_are_equal_wherever_one_got_its_state_from(todo: list[tuple[str, int, int | bytes]]) -> None:
    cluster = Cluster(4)
    for what, station, argument in todo:
        copy = cluster.copies.get(station)
        if what == "order":
            cluster.order()
        elif copy is None:
            continue
        elif what == "ask" and isinstance(argument, bytes):
            cluster.carry_out(station, copy.on_request(object(), argument))
        elif what == "over" and isinstance(argument, int):
            cluster.carry_out(station, copy.on_timer(argument))
        elif what == "go":
            cluster.order()
            cluster.view(set(cluster.copies) - {station})
        elif what == "copy":
            fresh = Leases(station)
            fresh.restore(cluster.copies[1].snapshot())
            cluster.copies[station] = fresh
        cluster.check()


def test_a_service_need_not_answer_nor_time_anything() -> None:
    class Silent(Groups):
        on_request = StateMachine.on_request

    service: StateMachine[ViewEvent] = Silent(1)
    (reply,) = service.on_request("q", b"")
    assert isinstance(reply, Reply) and reply.code and reply.body["message"]
    assert service.next_deadline_ns() is None and service.on_timer(1) == []
    with pytest.raises(TypeError):
        StateMachine()  # type: ignore[abstract]
