"""What an agreement costs those who go on: data transfer does not stop (DOP paper, sections 1 and 3.2)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from zenjun.proto.wire import Kind

from . import frames
from .cluster import Simulation
from .facts import VIEW, Delivery
from .options import MS, quiet

FAIL = 150 * MS
GAP = 2 * MS
"""Each station sends a message so often."""
ROUNDS = 5 * MS
"""Far more than the few rounds of 50 us that an agreement, or a confirmation, takes."""
N = 4
DEAD = 3


class Flowing:
    """Four stations that send all the while, every other message order-preserving only; and what they send and deliver."""

    def __init__(self, **options: int) -> None:
        self.sim = Simulation(1, quiet(N, window=128, slots=512, heartbeat_ns=50 * MS, fail_timeout_ns=FAIL, **options))
        self.data: list[tuple[int, int]] = []
        """(time, station) of every DATA sent for the first time."""
        self.votes: list[int] = []
        self.delivered: dict[tuple[int, bool], list[int]] = {}
        """(station, on acceptance?) → times."""
        self.views: dict[int, list[int]] = {s: [] for s in range(N)}
        self.sim.on_frame = self._see
        self.sim.on_delivery = self._note
        self.sim.start()
        assert self.sim.clockwork.run(500 * MS, lambda: all(stay is not None for stay in self.sim.facts.stays))
        for s in range(N):
            self._send(s, 0)

    def _send(self, station: int, k: int) -> None:
        if station not in self.sim.facts.absent:
            self.sim.submit(station, 0, 100, op=bool(k % 2))
            self.sim.clockwork.at(self.sim.clockwork.now + GAP, lambda: self._send(station, k + 1))

    def _see(self, station: int, f: frames.Frame) -> None:
        if f.src == station + 1 and f.kind == Kind.DATA:
            self.data.append((self.sim.clockwork.now, station))
        if f.src == station + 1 and f.kind in (Kind.STOP, Kind.STOP_ACK):
            self.votes.append(self.sim.clockwork.now)

    def _note(self, station: int, record: Delivery) -> None:
        now = self.sim.clockwork.now
        if record.type == VIEW:
            self.views[station].append(now)
        elif record.op != 2:
            self.delivered.setdefault((station, record.op == 1), []).append(now)

    def run(self, duration: int) -> None:
        self.sim.clockwork.run(self.sim.clockwork.now + duration)

    def crash(self, station: int) -> int:
        self.sim.facts.absent.add(station)
        self.sim.stations[station].crash()
        return self.sim.clockwork.now


def longest_gap(times: list[int], start: int, end: int) -> int:
    """Longest time between two of them, or from start or to end."""
    inside = [start, *(t for t in times if start < t < end), end]
    return max(b - a for a, b in pairwise(inside))


def test_a_crash_among_four_who_send() -> None:
    """Survivors go on sending all the while; what is ordered waits for the dead one until it is removed and no longer; what is
    order-preserving only does not wait at all; nothing of the survivors is lost."""
    c = Flowing()
    c.run(200 * MS)
    dead_at = c.crash(DEAD)
    c.run(400 * MS)
    end = c.sim.clockwork.now
    for s in range(N - 1):
        assert len(c.views[s]) == 1
        removed = c.views[s][0]
        assert FAIL - 50 * MS <= removed - dead_at <= FAIL + ROUNDS
        assert longest_gap([t for t, station in c.data if station == s], dead_at, end) <= GAP + ROUNDS
        assert longest_gap(c.delivered[s, False], dead_at, end) <= FAIL + ROUNDS
        assert longest_gap(c.delivered[s, True], dead_at, end) <= GAP + ROUNDS
        stay = c.sim.facts.stays[s]
        assert stay is not None and len(stay.instance.members) == N - 1
        own = [r for r in stay.records if r.type != VIEW and r.src in range(N - 1)]
        taken = sum(len(m) for (src, _), stream in c.sim.facts.streams.items() if src != DEAD for m in stream.taken.values())
        assert taken - len(own) < 10, "but for the last moment all is delivered"


def test_data_flows_while_a_stop_is_being_agreed() -> None:
    """The accuser is alone for as long as the others do not adopt its notice: data of all goes on, and passes on acceptance."""
    adopt = 100 * MS
    c = Flowing(adopt_timeout_ns=adopt)
    c.run(200 * MS)
    c.votes.clear()
    assert c.sim.stations[0].expel(DEAD)
    began = c.sim.clockwork.now
    c.run(adopt + 50 * MS)
    decided = min(c.views[s][0] for s in range(N - 1))
    assert decided - began >= adopt
    agreeing = [station for t, station in c.data if began + ROUNDS < t < decided - ROUNDS]
    for s in range(N):  # the one in question as well: nobody has told it to stop
        assert agreeing.count(s) >= (adopt - 2 * ROUNDS) // GAP - 2
    for s in range(N - 1):
        assert longest_gap(c.delivered[s, True], began, decided) <= GAP + ROUNDS
    assert len(c.votes) <= 2 * N, "one of each, and one more where somebody had accepted more"


@pytest.mark.parametrize("who", [0, 2])
def test_a_joiner_stops_nobody(who: int) -> None:
    """Letting a station in costs the others no more than a few rounds, whoever it is."""
    c = Flowing(open_window_ns=40 * MS)
    c.run(100 * MS)
    c.crash(who)
    c.run(FAIL + 100 * MS)
    others = [s for s in range(N) if s != who]
    assert all(len(c.views[s]) == 1 for s in others)
    c.sim.facts.absent.discard(who)
    c.sim.stations[who].boot()
    began = c.sim.clockwork.now
    assert c.sim.clockwork.run(began + 500 * MS, lambda: c.sim.facts.stays[who] is not None)
    c.run(50 * MS)
    end = c.sim.clockwork.now
    for s in others:
        assert len(c.views[s]) == 2
        for early in (False, True):
            assert longest_gap(c.delivered[s, early], began, end) <= 2 * GAP + ROUNDS
