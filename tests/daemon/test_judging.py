"""Several links in the daemon: what the data path tells and is told."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

from zenjun.daemon.config import parse
from zenjun.daemon.datapath import DataPath, Heard, Spreading, Want
from zenjun.daemon.judging import Judging
from zenjun.daemon.links import Links
from zenjun.daemon.observe import Journal
from zenjun.proto.engine import Engine
from zenjun.proto.links import Said

from ..rules import rule

TEXT = """
[cluster]
name = "c"
stations = 2
heartbeat_ms = 100
[links]
count = 2
[station]
id = 1
interface = "eth0"
[[link]]
number = 2
interface = "eth1"
rate_mbit = 100
"""
MS = 1_000_000


class Path:
    """A data path that notes what it is told."""

    def __init__(self) -> None:
        self.weights: dict[int, int] = {}
        self.used: list[tuple[Spreading, list[int]]] = []
        self.spoke: list[tuple[int, Said | None]] = []
        self.waits: list[tuple[int, int, bytes]] = []
        self.doubtful: list[int] = []
        self.heard_ns = 0

    def link_weight(self, link: int, mbit: int) -> None:
        self.weights[link] = mbit

    def links_doubtful(self) -> list[int]:
        return self.doubtful

    def links_heard(self, link: int) -> list[Heard]:
        return [Heard(0, 0, 0, 0), Heard(self.heard_ns, 7, 1400, 5)]

    def links_said(self) -> tuple[int, int, bytes] | None:
        return self.waits.pop(0) if self.waits else None

    def links_say(self, link: int, body: bytes) -> bool:
        self.spoke.append((link, Said.read(body)))
        return True

    def link_counters(self, link: int) -> dict[str, int]:
        return {"tx_frames": 50 + link}

    def links_use(self, how: Spreading, links: list[int]) -> None:
        self.used.append((how, links))
        self.doubtful = []


def made() -> tuple[Judging, Path, list[str]]:
    lines: list[str] = []
    logger = logging.Logger("judging", logging.DEBUG)
    logger.addHandler(cast(logging.Handler, SimpleNamespace(level=0, handle=lambda record: lines.append(record.getMessage()))))
    path = Path()
    engine: Any = SimpleNamespace(
        instance=1, membership=SimpleNamespace(members=(1, 2)), config=SimpleNamespace(stations=2, heartbeat_ns=100_000_000)
    )
    judging = Judging(parse(TEXT), engine=cast(Engine, engine), dp=cast(DataPath, path), journal=Journal(logger))
    links: Any = [SimpleNamespace(number=1, can_send=True), SimpleNamespace(number=2, can_send=True)]
    judging.links = cast(Links, links)
    return judging, path, lines


def come(path: Path, now: int, frames: int) -> None:
    """Station 2 is heard on both links, and hears this one there."""
    path.heard_ns = now
    path.waits = [(2, link, Said(link + 1, 2, 0b1, 9, (frames, 0), (1300, 0), (4, 0)).packed()) for link in (0, 1)]


def test_links_are_said_judged_and_used() -> None:
    judging, path, lines = made()
    assert path.weights == {0: 0, 1: 100}
    judging.serve(1000 * MS, 0)
    assert path.spoke == [(link, Said(link + 1, 2, 0, 50 + link, (0, 7), (0, 1400), (0, 5))) for link in (0, 1)]
    assert path.used == [(Spreading.ALL, [0, 1])]
    judging.serve(1000 * MS + 1, 0)
    assert len(path.spoke) == 2, "not before its time"
    come(path, 1020 * MS, 1)
    judging.serve(1020 * MS, int(Want.SAID))
    assert path.used[-1] == (Spreading.AUTO, [0, 1])
    assert [said.hears for _, said in path.spoke[2:] if said] == [0b10, 0b10], "a change is said at once"
    assert any("link 2 to station 2 is up (was down)" in line for line in lines)
    row = judging.status(2, 1020 * MS)
    assert row["stations"] == [{"station": 2, "state": "up", "frames": 7, "frames_there": 1, "largest_there": 1300}]
    assert (row["data"], row["doubtful"], row["connected_with"], row["hold_ms"]) == ("auto", False, None, 0)
    assert 1020 * MS < judging.deadline_ns() <= 1120 * MS


def test_a_doubt_is_taken_over_from_the_data_path() -> None:
    judging, path, _ = made()
    for at in (1000, 1020):
        come(path, at * MS, 1)
        judging.serve(at * MS, int(Want.SAID))
    path.doubtful = [1]
    judging.serve(1030 * MS, int(Want.SAID))
    assert path.used[-1] == (Spreading.ALL, [0, 1]) and judging.status(2, 1030 * MS)["doubtful"]
    path.doubtful = [1]  # it comes again, of frames under way
    judging.serve(1040 * MS, int(Want.SAID))
    assert path.doubtful == [] and path.used[-1] == (Spreading.ALL, [0, 1])
    for at, frames in ((1100, 2), (1200, 3)):
        come(path, at * MS, frames)
        judging.serve(at * MS, int(Want.SAID))
    assert path.used[-1] == (Spreading.AUTO, [0, 1]) and not judging.status(2, 1200 * MS)["doubtful"]


@rule("J3")
def test_a_lost_carrier_is_seen_at_once() -> None:
    """Not when nothing has been heard for so long."""
    judging, path, lines = made()
    for at in (1000, 1020):
        come(path, at * MS, 1)
        judging.serve(at * MS, int(Want.SAID))
    assert path.used[-1] == (Spreading.AUTO, [0, 1]) and judging.deadline_ns() > 1021 * MS
    cast(Any, judging.links)[0].can_send = False
    assert judging.deadline_ns() == 0
    judging.serve(1021 * MS, 0)
    assert path.used[-1] == (Spreading.ALL, [1]) and lines[-1] == "link 1 to station 2 is down (was up)"
    assert judging.deadline_ns() > 1021 * MS


def test_links_of_another_number_of_links_are_not_believed() -> None:
    judging, path, _ = made()
    path.heard_ns = 1000 * MS
    path.waits = [(2, 0, Said(1, 3, 0b1, 9, (1, 0), (1300, 0), (4, 0)).packed()), (2, 1, b"\x00" * 30)]
    judging.serve(1000 * MS, int(Want.SAID))
    assert [row["state"] for link in (1, 2) for row in judging.status(link, 0)["stations"]] == ["one-way", "one-way"]
