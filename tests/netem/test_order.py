"""The total order of real daemons while sch_netem loses, delays, reorders, doubles and damages their frames.

All programs send at once, and must get the same sequence, byte for byte, with nothing lost and nothing doubled.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from zenjun.tools.lab import Lab

from ..e2e.cluster import core, drops, exchange, plan, programs, same_views
from ..e2e.test_order import settled
from . import bounds

MS = 1_000_000
MESSAGES = 3000
"""Of each program, in every test."""
SIZE = 1200
FRAMES = 2000
"""At least so many frames the daemons must have exchanged under a fault, or it has shown nothing."""
pytestmark = [pytest.mark.lab, pytest.mark.timeout(200)]

FAULTS: dict[str, dict[str, Any]] = {
    "loss-1": {"loss": 0.01},
    "loss-5": {"loss": 0.05},
    "loss-20": {"loss": 0.2},
    "burst": {"burst": (0.02, 0.25)},
    "late-and-overtaken": {"delay_ns": 25 * MS, "jitter_ns": 10 * MS, "reorder": 0.25},
    "corrupt": {"corrupt": 0.01},
    "duplicate": {"duplicate": 0.25},
    "all": {
        "delay_ns": 10 * MS,
        "jitter_ns": 5 * MS,
        "jitter_distribution": "normal",
        "reorder": 0.1,
        "duplicate": 0.05,
        "corrupt": 0.01,
        "burst": (0.01, 0.25),
    },
}


@pytest.mark.parametrize("name", list(FAULTS))
def test_one_order(segment: Lab, name: str) -> None:
    fault = FAULTS[name]
    rng = random.Random(name)
    stations = segment.stations.values()
    before = {s.id: (core(s), drops(s)) for s in stations}
    frames_before = segment.counters()
    with programs(segment, {"g": "preack", "h": "ack"}) as members:
        segment.impair(None, **fault)
        exchange(members, [plan(m, MESSAGES, rng, levels=("preack", "ordered"), chunk=100, size_max=SIZE) for m in members], 150)
        same_views(members, "g")
        frames = segment.counters()
    lost, received = (sum(frames[s][k] - frames_before[s][k] for s in frames) for k in ("lost", "received"))
    print(f"{name}: {received} frames received, {lost} lost")
    settled(segment)
    assert received > FRAMES
    if list(fault) == ["loss"]:
        bounds.check_hits("the daemons' frames lost", lost, lost + received, fault["loss"])
    # What was set really happened to the daemons' frames.
    now = {s.id: (core(s), drops(s)) for s in stations}

    def grown(key: str) -> int:
        return sum(now[s][0][key] - before[s][0][key] for s in now)

    if "loss" in fault or "burst" in fault:
        assert lost and grown("rx_repaired"), f"{lost} frames lost, {grown('rx_repaired')} repaired"
    if "corrupt" in fault:
        assert sum(now[s][1]["check"] - before[s][1]["check"] for s in now)
    if "duplicate" in fault:
        assert grown("rx_duplicate")
