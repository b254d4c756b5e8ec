"""The examples V1-V4 of docs/multicast.md, to the microsecond.

Groups A = {1, 2, 3} and B = {2, 3, 4}; station 5 is in neither. A frame takes 100 us, from 1 to 3 and from 4 to 2 250 us. m1 goes
from 1 to A at 0, m2 from 4 to B at 20, m3 from 5 to A and B at 60.
"""

from __future__ import annotations

from collections import Counter

import pytest
from zenjun.proto.multicast.records import Data, Decide, Deliver, Effect, Joined, Record, Report, ViewEvent
from zenjun.proto.multicast.tables import Program, TokenTable

from ..rules import rule
from .multicast.net import MS, US, Host, Net

A, B, C = 1, 2, 3
Groups = dict[int, tuple[int, ...]]
GROUPS: Groups = {A: (1, 2, 3), B: (2, 3, 4)}
MESSAGES = {1: "m1", 4: "m2", 5: "m3"}
"""By originator."""


class Example(Net):
    """A lossless network with fixed delays."""

    def __init__(self, order: str, groups: Groups) -> None:
        super().__init__(settle=10_000 * MS)
        self.delivered: dict[int, list[tuple[str, int]]] = {z: [] for z in range(1, 6)}
        """Message and microsecond, by station."""
        self.times: dict[str, int] = {}
        """Times relative to the clock at the beginning."""
        self.records: dict[str, Counter[str]] = {m: Counter() for m in MESSAGES.values()}
        joins = [Joined(Program(z, 1, 1), g, order) for g, stations in groups.items() for z in stations]
        self.start(dict.fromkeys(range(1, 6), 1), joins)
        self.run_until(5 * MS)
        self.begin = self.now
        for host in self.hosts.values():
            assert host.machine is not None
            host.machine.clock = self.clock = self.reference.main.clock
        self.at(self.begin, lambda: self.say(1, A))
        self.at(self.begin + 20 * US, lambda: self.say(4, B))
        self.at(self.begin + 60 * US, lambda: self.say(5, A, B))

    def say(self, station: int, *groups: int) -> None:
        self.send(station, groups)

    def link_delay(self, source: int, target: int) -> int:
        return (250 if (source, target) in ((1, 3), (4, 2)) else 100) * US

    def transmit(self, host: Host, to: int, record: Record) -> None:
        if isinstance(record, Data):
            self.records[MESSAGES[record.id.origin]]["DATA"] += 1
        elif isinstance(record, Report | Decide):
            assert record.count == 1
            self.records[MESSAGES[record.origin]][type(record).__name__.upper()] += 1
        super().transmit(host, to, record)

    def apply(self, host: Host, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                message = MESSAGES[effect.id.origin]
                self.delivered[host.station].append((message, (self.now - self.begin) // US))
                self.times[message] = effect.time - self.clock
        super().apply(host, effects)

    def finish(self) -> Example:
        self.run_until(self.begin + 5 * MS)
        return self

    def counted(self) -> dict[str, tuple[int, ...]]:
        """DATA, REPORT and DECIDE of each message."""
        return {m: tuple(self.records[m][kind] for kind in ("DATA", "REPORT", "DECIDE")) for m in sorted(self.records)}


@rule("O1", "O2", "O7")
def test_v1_one_token_host() -> None:
    run = Example("token", GROUPS).finish()
    assert run.times == {"m1": 1, "m3": 2, "m2": 3}
    assert run.delivered == {
        1: [("m1", 200), ("m3", 260)],
        2: [("m1", 100), ("m3", 160), ("m2", 270)],
        3: [("m1", 250), ("m3", 260), ("m2", 370)],
        4: [("m3", 260), ("m2", 370)],
        5: [],
    }
    assert run.counted() == {"m1": (2, 0, 2), "m2": (2, 0, 2), "m3": (4, 0, 3)}


@rule("T2", "T3", "O4", "O7")
def test_v2_two_token_hosts() -> None:
    run = Example("token", {**GROUPS, C: (1, 5)}).finish()
    assert run.times == {"m1": 1, "m3": 2, "m2": 3}
    assert run.delivered == {
        1: [("m1", 200), ("m3", 260)],
        2: [("m1", 300), ("m3", 360), ("m2", 360)],
        3: [("m1", 400), ("m3", 460), ("m2", 460)],
        4: [("m3", 460), ("m2", 460)],
        5: [],
    }
    assert run.counted() == {"m1": (2, 1, 2), "m2": (2, 0, 2), "m3": (4, 1, 3)}


@rule("O2", "O4", "O5", "O6")
def test_v3_abcast_has_a_tie() -> None:
    run = Example("abcast", GROUPS).finish()
    assert run.times == {"m3": 2, "m1": 3, "m2": 3}
    assert run.delivered == {
        1: [("m3", 360), ("m1", 360)],
        2: [("m3", 450), ("m1", 450), ("m2", 620)],
        3: [("m3", 470), ("m1", 600), ("m2", 600)],
        4: [("m3", 370), ("m2", 370)],
        5: [],
    }
    assert run.counted() == {"m1": (2, 2, 2), "m2": (2, 2, 2), "m3": (4, 4, 4)}


@rule("E4", "E5")
def test_v4_the_originator_dies_with_its_decision() -> None:
    run = Example("abcast", GROUPS)
    run.run_until(run.begin + 340 * US)
    run.hosts[1, 1].alive = False
    run.run_until(run.begin + 1 * MS)
    before = {z: [m for m, _ in delivered] for z, delivered in run.delivered.items()}
    assert before == {1: [], 2: [], 3: ["m3"], 4: ["m3", "m2"], 5: []}
    run.members = dict.fromkeys((2, 3, 4, 5), 1)
    run.append(ViewEvent(2, tuple(run.members.items())))
    run.finish()
    assert run.times == {"m3": 2, "m2": 3, "m1": 4}
    assert [m for m, _ in run.delivered[2]] == ["m3", "m2", "m1"] == [m for m, _ in run.delivered[3]]


def test_v4_with_a_token_host_the_death_changes_nothing() -> None:
    run = Example("token", GROUPS)
    run.run_until(run.begin + 340 * US)
    run.hosts[1, 1].alive = False
    run.run_until(run.begin + 1 * MS)
    assert [m for m, _ in run.delivered[2]] == ["m1", "m3", "m2"] == [m for m, _ in run.delivered[3]]


@pytest.mark.parametrize(
    ("groups", "tokens", "follows"),
    [
        (GROUPS, {2}, {1: 2, 3: 2, 4: 2}),
        ({**GROUPS, C: (1, 5)}, {1, 2}, {3: 2, 4: 2, 5: 1}),
        ({A: (3, 2, 5)}, {2}, {3: 2, 5: 2}),
        ({A: (1, 2), B: (2, 3), C: (3, 1)}, {1, 2, 3}, {}),
    ],
)
@rule("T1", "T2")
def test_tokens(groups: Groups, tokens: set[int], follows: dict[int, int]) -> None:
    table = TokenTable(groups)
    assert table.hosts == tokens
    assert {z: table.followed(z) for z in follows} == follows
