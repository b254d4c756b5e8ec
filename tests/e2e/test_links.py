"""Two links: whatever happens to one of them, no member changes and all messages reach all stations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from zenjun.tools.lab import Lab

from ..rules import rule
from .cluster import Program, cluster, exchange, instances_of, plan, programs, status, wait_for

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with cluster(
        3, links=2, options={"cluster": {"heartbeat_ms": 100, "fail_timeout_ms": 3000, "progress_timeout_ms": 10_000}}
    ) as lab:
        yield lab


@pytest.fixture(scope="module")
def members(lab: Lab) -> Iterator[list[Program]]:
    with programs(lab, {"g": "preack"}) as found:
        yield found


def cut_another_for_each(lab: Lab) -> None:
    lab.cut(1, 2, link=1)
    lab.cut(1, 3, link=2)


FAULTS: dict[str, tuple[Callable[[Lab], None], Callable[[Lab], None]]] = {
    "switch 1 dies": (lambda lab: lab.cut_link(1), Lab.heal),
    "switch 2 dies": (lambda lab: lab.cut_link(2), Lab.heal),
    "one way": (lambda lab: lab.cut(1, 2, link=1), Lab.heal),
    "another link for each": (cut_another_for_each, Lab.heal),
    "interface down": (lambda lab: lab.station(1).link_down(1), lambda lab: lab.station(1).link_up(1)),
    "card pulled": (lambda lab: lab.station(2).delete_interface(2), lambda lab: lab.station(2).create_interface(2)),
}


@rule("J2")
@pytest.mark.parametrize("fault", FAULTS)
def test_no_member_changes(lab: Lab, members: list[Program], fault: str) -> None:
    begin, end = FAULTS[fault]
    before = {s.id: (status(s)["instance"], status(s)["membership"]["changes"]) for s in lab.stations.values()}
    begin(lab)
    exchange(members, [plan(m, 150, random.Random(m.station)) for m in members], 40)
    end(lab)
    exchange(members, [plan(m, 50, random.Random(10 + m.station)) for m in members], 40)
    after = {s.id: (status(s)["instance"], status(s)["membership"]["changes"]) for s in lab.stations.values()}
    assert after == before and len(set(instances_of(lab))) == 1


def test_status_names_the_link_that_is_down(lab: Lab) -> None:
    station = lab.station(3)
    named = [(row["link"], row["name"], row["state"]) for row in status(station)["links"]]
    assert named == [(1, "eth0", "up"), (2, "eth1", "up")]
    station.link_down(2)
    wait_for(lambda: [row["state"] for row in status(station)["links"]] == ["up", "down"], "link 2 is down")
    station.link_up(2)
    wait_for(lambda: [row["state"] for row in status(station)["links"]] == ["up", "up"], "link 2 is up")
    assert all(row["counters"]["rx_frames"] > 0 for row in status(station)["links"])
