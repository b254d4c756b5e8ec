"""The interface goes and comes while messages are under way: nothing is lost, whatever happens to it.

What the daemon itself notices and says (names, addresses, carrier, MTU, other interfaces) is in ``test_daemon_netlink.py``.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.tools.lab import Lab, Station

from .cluster import Program, cluster, datapath, exchange, in_parallel, log_of, plan, process_alive, programs, status, wait_for

pytestmark = pytest.mark.lab
FAST = {"cluster": {"heartbeat_ms": 50, "silent_timeout_ms": 500, "progress_timeout_ms": 1000}}


@pytest.fixture
def lab() -> Iterator[Lab]:
    with cluster(3, options=FAST) as lab:
        yield lab


@pytest.fixture
def members(lab: Lab) -> Iterator[list[Program]]:
    with programs(lab, {"g": "preack"}) as found:
        yield found


def blocked(station: Station) -> set[int]:
    return {int(entry["station"]) for entry in status(station)["blocked"]}


def all_clear(lab: Lab) -> bool:
    return all(status(s)["state"] == "open" for s in lab.stations.values())


def same_instance(lab: Lab) -> None:
    assert {status(s)["instance"] for s in lab.stations.values()} == {1}, "an interface's fault is no restart"


def sends_through(lab: Lab, members: list[Program], seed: int, count: int = 100) -> None:
    exchange(members, [plan(m, count, random.Random(seed * 10 + m.station)) for m in members], 30)
    wait_for(lambda: all_clear(lab), "all clear")
    same_instance(lab)


def lines(station: Station, event: str) -> int:
    return len(re.findall(rf" {event}: ", log_of(station)))


@pytest.mark.parametrize("station", [1, 3])
def test_link_down_and_up_case_71(lab: Lab, members: list[Program], station: int) -> None:
    """Down: the station says so, the others miss it; up: on it goes without a restart. One log line each way."""
    isolated = lab.station(station)
    others = [s for s in lab.stations.values() if s.id != station]
    for round_ in (1, 2):
        isolated.link_down()
        wait_for(lambda: status(isolated)["state"] == "no link" and status(isolated)["interface"]["state"] == "down", "it knows")
        for other in others:
            wait_for(lambda o=other: blocked(o) == {station}, "it is missed")  # type: ignore[misc]
        for member in members:
            member.groups["g"].send(b"meanwhile", "sent")
        isolated.link_up()
        wait_for(lambda: all_clear(lab), "all clear")
        for member in members:
            member.read_messages("g", 3 * round_, 20)
        assert lines(isolated, "interface down") == lines(isolated, "interface up") - 1 == round_
    assert [m[:5] for m in members[0].messages("g")] == [m[:5] for m in members[1].messages("g")]
    same_instance(lab)


def test_interface_is_deleted_and_made_anew_case_69(lab: Lab, members: list[Program]) -> None:
    """Under the same name with another index, at once and after the others have missed it: the socket is opened anew, the group
    joined again; no busy loop meanwhile."""
    second = lab.station(2)
    first = second.interface["index"]
    second.delete_interface()
    second.create_interface()
    wait_for(lambda: (status(second)["interface"]["index"] or first) != first, "the new index is seen")
    sends_through(lab, members, 69)

    second.delete_interface()
    wait_for(lambda: status(second)["interface"]["state"] == "absent", "it knows that it is gone")
    wait_for(lambda: blocked(lab.station(1)) == {2}, "it is missed")
    turns = datapath(second)["turns"]
    assert status(second)["interface"]["index"] is None
    wait_for(lambda: lines(lab.station(3), "blocked"), "the third says so as well")
    assert datapath(second)["turns"] - turns < 1000, "it spins"
    second.create_interface()
    sends_through(lab, members, 70)


@pytest.mark.slow
def test_interface_flaps_under_load_case_77(lab: Lab, members: list[Program]) -> None:
    """Gone and back twenty times while everybody sends: nothing is lost; descriptors stay the same."""
    second = lab.station(2)
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
    in_parallel([lambda: exchange(members, plans, 60), flap])
    wait_for(lambda: descriptors() <= before, "no descriptor is left over")
    sends_through(lab, members, 77)


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
        assert server.wait(10) == 0

    in_parallel([lambda: exchange(members, plans, 60), ip_traffic])
    flags = int(lab.station(2).run(["cat", "/sys/class/net/eth0/flags"]).stdout, 16)
    assert not flags & 0x100 and not flags & 0x200, "promiscuous or all-multicast"
    assert all(process_alive(s) for s in lab.stations.values())
