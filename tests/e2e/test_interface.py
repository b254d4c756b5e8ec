"""The interface goes and comes while messages are under way. For less than the time-out that is loss, and nothing is lost of it;
for longer the station is left behind, told so, and comes back.

What the daemon itself notices and says (names, addresses, carrier, MTU, other interfaces) is in ``test_daemon_netlink.py``.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.tools.lab import Lab, Station

from ..timing import in_time
from .cluster import (
    Program,
    cluster,
    compare,
    datapath,
    exchange,
    in_parallel,
    instances_of,
    log_of,
    plan,
    process_alive,
    programs,
    status,
    together,
    wait_for,
)

pytestmark = pytest.mark.lab
FAST = {"cluster": {"heartbeat_ms": 50, "fail_timeout_ms": 1500, "progress_timeout_ms": 2000}}
PATIENT = {"cluster": {"heartbeat_ms": 50, "fail_timeout_ms": 20_000, "progress_timeout_ms": 20_000}}


@pytest.fixture(params=["fast"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with cluster(3, options=PATIENT if request.param == "patient" else FAST) as lab:
        yield lab


patient = pytest.mark.parametrize("lab", ["patient"], indirect=True, ids=[""])
"""Nobody is removed for being away for some seconds."""


@pytest.fixture
def members(lab: Lab) -> Iterator[list[Program]]:
    with programs(lab, {"g": "preack"}) as found:
        yield found


def sends_through(lab: Lab, members: list[Program], seed: int, instance: int) -> None:
    """Everybody's messages reach everybody, in the instance of this number."""
    exchange(members, [plan(m, 100, random.Random(seed * 10 + m.station)) for m in members], 30)
    wait_for(lambda: all(status(s)["state"] == "open" for s in lab.stations.values()), "all clear")
    assert instances_of(lab) == {instance}


def lines(station: Station, event: str) -> int:
    return len(re.findall(rf" {event}: ", log_of(station)))


@pytest.mark.parametrize("station", [1, 3])
def test_link_down_and_up_case_71(lab: Lab, members: list[Program], station: int) -> None:
    """Down: the station says so, has no quorum and delivers nothing, the others go on without it; up: it is let in again without
    a restart of the daemon, and its programs are told. One log line each way."""
    isolated, other = lab.station(station), lab.station(2)
    others = [m for m in members if m.station != station]
    own = next(m for m in members if m.station == station)
    changes = status(other)["membership"]["changes"]
    for round_ in (1, 2):
        isolated.link_down()
        wait_for(lambda: status(isolated)["state"] == "no link" and status(isolated)["interface"]["state"] == "down", "it knows")
        own.groups["g"].send(b"alone %d" % round_, "sent")
        together(lab, [m.station for m in others])
        for member in others:
            member.groups["g"].send(b"meanwhile %d" % round_, timeout=10)
        assert not any(m.data.startswith(b"meanwhile %d" % round_) for m in own.messages("g"))
        isolated.link_up()
        own.read_event("g", "reopened", 20)
        together(lab)
        wait_for(lambda: len(own.connection.members("g")) == 3, "its program is in the group again")
        own.groups["g"].send(b"end %d" % round_, timeout=10)
        for member in members:
            while not member.messages("g") or member.messages("g")[-1].data != b"end %d" % round_:
                member.read("g", 10)
        assert lines(isolated, "interface down") == lines(isolated, "interface up") - 1 == round_
    compare("g", [m.messages("g") for m in others])
    assert [m.data for m in others[0].messages("g") if m.data.startswith(b"mean")] == [b"meanwhile %d" % r for r in (1, 1, 2, 2)]
    missed = [m.data for m in own.messages("g") if m.data.startswith(b"mean")]
    assert not missed, "what the others have confirmed without it is not for who was not there"
    assert status(other)["membership"]["changes"] == changes + 4


@patient
def test_interface_is_made_anew_at_once_case_69(lab: Lab, members: list[Program]) -> None:
    """Under the same name with another index: the socket is opened anew, the group joined again, and nothing is lost."""
    second, instance = lab.station(2), together(lab)
    first = second.interface["index"]
    second.delete_interface()
    second.create_interface()
    wait_for(lambda: (status(second)["interface"]["index"] or first) != first, "the new index is seen")
    sends_through(lab, members, 69, instance)


def test_interface_is_made_anew_after_it_was_missed_case_69(lab: Lab, members: list[Program]) -> None:
    """The others have gone on without the station; no busy loop meanwhile, and it comes back with the interface."""
    second, instance = lab.station(2), together(lab)
    second.delete_interface()
    wait_for(lambda: status(second)["interface"]["state"] == "absent", "it knows that it is gone")
    together(lab, [1, 3])
    turns, begin = datapath(second)["turns"], time.monotonic()
    assert status(second)["interface"]["index"] is None
    wait_for(lambda: status(second)["quorum"]["have"] is False, "it knows that it is alone")
    in_time(datapath(second)["turns"] - turns < 1000 * max(1.0, time.monotonic() - begin), "it spins")
    second.create_interface()
    together(lab)
    members[1].read_event("g", "reopened", 10)
    wait_for(lambda: len(members[0].connection.members("g")) == 3, "its program is in the group again")
    sends_through(lab, members, 70, instance + 2)


@pytest.mark.slow
@patient
def test_interface_flaps_under_load_case_77(lab: Lab, members: list[Program]) -> None:
    """Gone and back twenty times while everybody sends: nothing is lost; descriptors stay the same."""
    second, instance = lab.station(2), together(lab)
    daemon = second.daemon
    assert daemon is not None

    def descriptors() -> int:
        return len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))

    wait_for(lambda: descriptors() > 0, "it runs")
    before = descriptors()

    def flap() -> None:
        for _ in range(20):
            second.delete_interface()
            second.create_interface()
        wait_for(lambda: status(second)["interface"]["state"] == "up", "it is up")

    plans = [plan(m, 2000, random.Random(77 + m.station), chunk=20) for m in members]
    in_parallel([lambda: exchange(members, plans, 90), flap])
    wait_for(lambda: descriptors() <= before, "no descriptor is left over")
    sends_through(lab, members, 77, instance)


def test_other_traffic_on_the_interface_is_untouched_case_87(lab: Lab, members: list[Program]) -> None:
    """IP on the same interface works as without us: no promiscuous or all-multicast mode, no lost replies."""
    plans = [plan(m, 1000, random.Random(87), chunk=50) for m in members]

    def ip_traffic() -> None:
        script = (
            "import socket,sys\n"
            "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(5)\n"
            "if sys.argv[1]=='serve':\n"
            "  s.bind(('',9)); print('ready',flush=True)\n"
            "  for _ in range(200):\n    d,a=s.recvfrom(100); s.sendto(d,a)\n"
            "else:\n"
            "  for k in range(200):\n    s.sendto(b'%d'%k,('10.90.0.2',9)); assert s.recv(100)==b'%d'%k\n"
        )
        server = lab.station(2).spawn([sys.executable, "-c", script, "serve"], stdout=-1, text=True)
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        lab.station(1).run([sys.executable, "-c", script, "ask"], 30, check=True)
        assert server.wait(60) == 0

    in_parallel([lambda: exchange(members, plans, 60), ip_traffic])
    flags = int(lab.station(2).run(["cat", "/sys/class/net/eth0/flags"]).stdout, 16)
    assert not flags & 0x100 and not flags & 0x200, "promiscuous or all-multicast"
    assert all(process_alive(s) for s in lab.stations.values())
