"""The total order of real daemons while sch_netem loses, delays, reorders, doubles and damages their frames.

All programs send at once, and must get the same sequence, byte for byte, with nothing lost and nothing doubled.
"""

from __future__ import annotations

import contextlib
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from zenjun.daemon.client import Message
from zenjun.tools.lab import Lab

from ..e2e.cluster import compare, core, drops, exchange, plan, programs, same_views, status, wait_for
from . import bounds
from .measure import calm, read

MS = 1_000_000
MESSAGES = 1200
"""Of each program, in every test."""
SIZE = 1200
FRAMES = 1500
"""At least so many frames the daemons must have exchanged under a fault, or it has shown nothing."""
pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]

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
    settled(segment)
    assert received > FRAMES
    if list(fault) == ["loss"]:
        bounds.check_hits("the daemons' frames lost", lost, lost + received, fault["loss"])

    # What was set really happened to the daemons' frames.
    def grown(key: str) -> int:
        return sum(core(s)[key] - before[s.id][0][key] for s in stations)

    wait_for(lambda: grown("digests_compared"), "digests have been compared", 30)
    if "loss" in fault or "burst" in fault:
        assert lost and grown("rx_repaired"), f"{lost} frames lost, {grown('rx_repaired')} repaired"
    if "corrupt" in fault:
        assert sum(drops(s)["check"] - before[s.id][1]["check"] for s in stations)
    if "duplicate" in fault:
        assert grown("rx_duplicate")


@pytest.mark.parametrize("name", ["loss-5", "burst"])
def test_captures_of_the_daemons_frames_lack_what_the_queues_say(segment: Lab, tmp_path: Path, name: str) -> None:
    """What stations sent, by captures at the senders, less what others received, by captures there, is what the queues have
    dropped: for each receiver, to the frame. The daemons are stopped while captures begin and end, so that nothing is under way.
    """
    rng = random.Random(name)
    with programs(segment, {"g": "preack"}) as members:
        with stopped(segment):
            before = segment.counters()
            segment.impair(None, **FAULTS[name])
            paths = segment.start_capture(tmp_path, ring_mib=16)
        exchange(members, [plan(m, MESSAGES // 2, rng, chunk=100, size_max=SIZE) for m in members], 150)
        with stopped(segment):
            results = segment.stop_capture()
            after = segment.counters()
            calm(segment)
    settled(segment)
    assert not any(result["dropped"] for result in results.values())
    frames = {s: [data for data, _ in read(path)] for s, path in paths.items()}
    own = {s: bytes.fromhex(str(station.interface["mac"]).replace(":", "")) for s, station in segment.stations.items()}
    total = 0
    for s in segment.stations:
        sent = [
            f for other in own if other != s for f in frames[other] if f[6:12] == own[other] and (f[0] & 1 or f[:6] == own[s])
        ]
        got = [f for f in frames[s] if f[6:12] != own[s]]
        lost = after[s]["lost"] - before[s]["lost"]
        total += lost
        assert len(sent) - len(got) == lost, f"station {s}: {len(sent)} sent to it, {len(got)} received, {lost} dropped"
        assert not Counter(got) - Counter(sent)
        if name == "loss-5":
            bounds.check_hits(f"lost towards station {s}", lost, len(sent), 0.05)
            with pytest.raises(AssertionError, match="not between"):  # the check can fail
                bounds.check_hits(f"lost towards station {s}", lost, len(sent), 0.2)
    assert total > 20


def settled(lab: Lab) -> None:
    """Everything sent is known to be everywhere, and no station has found that its order is not that of the others.

    The daemons compare running digests of their orders; numbers of positions are not compared here, because a station that was
    let in after the others have opened counts from there.
    """
    wait_for(lambda: all(status(s)["window"]["in_flight"] == 0 for s in lab.stations.values()), "nothing is in flight", 60)
    for station in lab.stations.values():
        told = status(station)
        assert told["state"] == "open" and told["fence"] is None, told


@contextlib.contextmanager
def stopped(lab: Lab) -> Iterator[None]:
    """Nobody sends while the block runs."""
    for station in lab.stations.values():
        station.signal(signal.SIGSTOP)
    try:
        for station in lab.stations.values():
            assert station.daemon is not None
            stat = Path(f"/proc/{station.daemon.pid}/stat")
            wait_for(lambda s=stat: s.read_text().rpartition(")")[2].split()[0] == "T", "it stands still")  # type: ignore[misc]
        yield
    finally:
        for station in lab.stations.values():
            station.signal(signal.SIGCONT)


def test_the_comparison_notices_what_is_wrong() -> None:
    """Two messages exchanged, one lost, one doubled, one with another byte: each is found."""
    right = [Message(b"%d" % k, "g", 1 + k % 3, 1, (1, k, 1), False) for k in range(20)]
    sent = [(m.station, m.client, m.data) for m in right]
    compare("right", [right, list(right)], sent)
    other = right[7]._replace(data=b"8")
    for wrong in (
        [*right[:5], right[6], right[5], *right[7:]],
        right[:-1],
        [*right[:9], *right[8:]],
        [*right[:7], other, *right[8:]],
    ):
        with pytest.raises(AssertionError, match="differs from sequence 0"):
            compare("wrong", [right, wrong], sent)
        with pytest.raises(AssertionError):
            compare("wrong everywhere", [wrong, wrong], sent)
