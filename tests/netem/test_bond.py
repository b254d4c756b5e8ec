"""Interfaces made of several: what servers in a rack have. A kernel that has sch_netem has these, too."""

from __future__ import annotations

import os
import random

import pytest
from zenjun.tools.lab import Lab, Station, uml

from ..e2e.cluster import exchange, plan, programs, reported, status, wait_for
from .conftest import CALM

pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]
NO_BONDS = "the kernel has no bonds"
PORTS = ("p0", "p1")


def ip(station: Station, line: str) -> str:
    """An ip(8) command in the station; what it says of an error."""
    return str(station.run(["ip", *line.split()]).stderr).strip()


def two_ports(station: Station) -> None:
    """Two cables from the station to a switch of its own on the way to the segment."""
    for line in (
        "link add sw type bridge mcast_snooping 0",
        *(f"link add {port} type veth peer name {port}-sw" for port in PORTS),
        *(f"link set {port}-sw master sw up" for port in PORTS),
        "link set eth0 master sw",
        "link set sw up",
    ):
        assert not ip(station, line), line


@pytest.mark.parametrize("how", ["mode active-backup fail_over_mac active miimon 20", "mode balance-rr miimon 20"])
def test_a_bond_loses_a_port_and_gets_it_back_case_81(how: str) -> None:
    """Nobody is removed and nothing is lost. With fail_over_mac the bond has another address then, with which the daemon sends.
    With balance-rr the ports take turns, so that the switch hears one address on both."""
    with Lab(3, options=CALM) as lab, reported(lab):
        for station in lab.stations.values():
            two_ports(station)
            error = ip(station, f"link add bond0 type bond {how}")
            if "Unknown device type" in error:
                assert uml.INSIDE not in os.environ, "the User-Mode Linux kernel has no bonds"
                pytest.skip(f"{NO_BONDS} (tests/uml runs this under one that has them)")
            assert not error, error
            for port in PORTS:
                assert not ip(station, f"link set {port} master bond0")
            assert not ip(station, "link set bond0 up")
            station.write_config({"station": {"interface": "bond0"}})
            station.start_daemon()
        lab.wait_open(30)
        first = lab.station(1)
        assert status(first)["interface"]["name"] == "bond0"
        before = mac = status(first)["interface"]["mac"]
        instance = status(first)["instance"]
        with programs(lab, {"g": "preack"}) as members:
            for down, up in (("p0", ""), ("p1", "p0"), ("", "p1")):
                if up:
                    assert not ip(first, f"link set {up} up")
                    wait_for(lambda u=up: "UP" in port_flags(first, u), f"port {up} is up")  # type: ignore[misc]
                if down:
                    assert not ip(first, f"link set {down} down")
                rng = random.Random(down)
                exchange(members, [plan(member, 60, rng) for member in members], 40)
                if down and "fail_over_mac" in how:
                    wait_for(lambda m=mac: status(first)["interface"]["mac"] != m, "it has the other port's address")  # type: ignore[misc]
                    mac = status(first)["interface"]["mac"]
                    peers = {peer["station"]: peer for peer in status(lab.station(2))["peers"]}
                    assert peers[1]["mac"] == mac
        assert mac == before
        assert status(first)["instance"] == instance, "nobody was removed"


def port_flags(station: Station, port: str) -> str:
    return str(station.run(["ip", "-o", "link", "show", port]).stdout)
