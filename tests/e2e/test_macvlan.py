"""Interfaces that stand on others: the group's frames pass them like any wire."""

from __future__ import annotations

import random

import pytest
from zenjun.tools.lab import Lab

from .cluster import exchange, plan, programs, status

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("mode", ["bridge", "passthru"])
def test_group_address_passes_a_macvlan_case_107(mode: str) -> None:
    """Each station has one on its cable: what a container on the LAN gets. It hands up only what somebody has asked for, so that
    the daemon must have joined the group address there."""
    with Lab(3, options={"cluster": {"fail_timeout_ms": 1500}}) as lab:
        for station in lab.stations.values():
            made = station.run(["ip", "link", "add", "mv0", "link", "eth0", "type", "macvlan", "mode", mode])
            if made.returncode and "Unknown device type" in made.stderr:
                pytest.skip("the kernel has no macvlan")
            assert made.returncode == 0, made.stderr
            station.run(["ip", "link", "set", "mv0", "up"], check=True)
            station.write_config({"station": {"interface": "mv0"}})
            station.start_daemon()
        lab.wait_open(90)
        assert {status(s)["interface"]["name"] for s in lab.stations.values()} == {"mv0"}
        with programs(lab, {"g": "preack"}) as members:
            exchange(members, [plan(m, 100, random.Random(m.station)) for m in members], 30)
