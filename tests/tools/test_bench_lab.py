"""`zenjun bench` in a lab: the bare programs and corosync under the common client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from zenjun.tools.bench import failover as failover_module
from zenjun.tools.bench.cell import BenchError, raw_summary, run_window, summary
from zenjun.tools.bench.failover import Failover
from zenjun.tools.bench.systems import Corosync, Floor, Raw
from zenjun.tools.lab import Lab, LabError

from .test_bench import CELL, undisturbed


@pytest.fixture
def lab() -> Iterator[Lab]:
    try:
        with Lab(2) as made:
            yield made
    except LabError as error:
        pytest.skip(str(error))


@pytest.mark.lab
def test_the_bare_program_loses_nothing(lab: Lab) -> None:
    system = Raw(lab)
    cell = replace(CELL, stations=2, senders=2, size=1500, seconds=0.5, drain_s=5.0)
    got = undisturbed(
        lambda: raw_summary(cell, run_window(system, cell)),
        lambda got: got["frames_per_s"] == pytest.approx(got["frames"]["per_s"], rel=0.2),
    )
    assert got["lost"] == 0
    assert got["frames_per_s"] > 1000


@pytest.mark.lab
def test_bare_stations_pass_on_what_programs_send(lab: Lab, tmp_path: Path) -> None:
    system = Floor(lab, tmp_path)
    cell = replace(CELL, stations=2, senders=2, size=64, mode="rate", seconds=1.0)
    try:
        got = undisturbed(
            lambda: summary(cell, run_window(system, cell), ordered=system.ordered),
            lambda got: got["frames"]["per_message"] == pytest.approx(2.0, rel=0.1),
        )
    finally:
        system.stop()
    assert got["ok"], got["problems"]
    assert got["cpu"]["daemons_s_per_million"] > 0 and not system.daemon_pids()


def corosync_client(folder: Path) -> Path:
    if missing := Corosync.missing():
        pytest.skip(f"corosync: {missing}")
    try:
        return Corosync.build_client(folder)
    except BenchError as error:
        pytest.skip(f"corosync: {error}")


@pytest.mark.lab
def test_corosync_runs_under_the_same_client(lab: Lab, tmp_path: Path) -> None:
    client = corosync_client(tmp_path)
    system = Corosync(lab, real_time=False, client=client, folder=tmp_path)
    try:
        system.start()
        cell = replace(CELL, stations=2, senders=2, mode="rate", seconds=1.0)
        got = undisturbed(
            lambda: summary(cell, run_window(system, cell)),
            lambda got: got["messages_per_s"] == pytest.approx(1000, rel=0.2),
        )
    finally:
        system.stop()
    assert got["frames"]["per_message"] > 1 and got["cpu"]["daemons_cores"] > 0


@pytest.mark.lab
@pytest.mark.slow
def test_failover_of_corosync(lab: Lab, tmp_path: Path) -> None:
    client = corosync_client(tmp_path)
    with Lab(3) as three:  # that labs can be made at all, the fixture has shown
        system = Corosync(three, real_time=False, client=client, folder=tmp_path)
        try:
            system.start()
            got = failover_module.measure(system, Failover(3, rate=300.0).cell())
            pids = [p.pid for p in system.daemons]
        finally:
            system.stop()
    assert got["ok"], got["problems"]
    assert got["told_ms"] > 1_000 and got["gap_ms"]["killed"] > 1_000, "its token time-out is 3 s and more"
    assert 0 < got["back_ms"] < 20_000
    assert not [p for pid in pids for p in Path("/dev/shm").glob(f"qb-*{pid}-*")], "shared memory left behind"
