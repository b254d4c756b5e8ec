"""What the README shows of names: three stations, one of them holds a name and dies, dig asks the others."""

from __future__ import annotations

import shutil
import signal
import sys

import pytest
from zenjun.tools.lab import Lab

from .cluster import cluster, wait_for

pytestmark = pytest.mark.lab

DNS = "127.0.0.1:5390"
"""Of each station: they have loopbacks of their own."""
ZENJUN = (sys.executable, "-c", "from zenjun.tools.command import main; main()")


def name(lab: Lab, station: int, *words: str) -> str:
    """Output of ``zenjun name …`` at a station, whatever its exit code."""
    return str(lab.station(station).run([*ZENJUN, "name", *words], timeout_s=60, check=False).stdout)


def dig(lab: Lab, station: int, *words: str) -> str:
    program = shutil.which("dig")
    assert program is not None, "dig is not installed; tools/bootstrap.sh test does that"
    done = lab.station(station).run([program, "@127.0.0.1", "-p", "5390", "+tries=1", "+time=10", *words], timeout_s=60)
    return str(done.stdout)


def test_a_held_name_is_in_dns_until_its_station_dies() -> None:
    with cluster(3, options={"directory": {"dns": DNS}, "cluster": {"fail_timeout_ms": 1000}}) as lab:
        for station in lab.stations.values():
            station.start_directory()
        wait_for(lambda: "active" in name(lab, 1, "status").split("\n")[0].split(), "the directory is active", 40)
        name(lab, 1, "set", "db", "tcp://10.0.0.7:5432", "tcp://10.0.0.8:5432@1", "--wait", "everywhere")
        assert dig(lab, 2, "+short", "db.zenjun.internal") == "10.0.0.7\n"
        assert dig(lab, 3, "+short", "_db._tcp.zenjun.internal", "SRV") == "0 1 5432 0a000007.addr.zenjun.internal.\n"
        with lab.station(3).spawn([*ZENJUN, "name", "hold", "web", "tcp://10.0.0.12:80", "--", "sleep", "1000"]) as held:
            wait_for(lambda: dig(lab, 2, "+short", "web.zenjun.internal") == "10.0.0.12\n", "the held name is in DNS", 30)
            lab.station(3).signal(signal.SIGKILL)
            wait_for(lambda: "NXDOMAIN" in dig(lab, 2, "web.zenjun.internal"), "the held name is gone", 30)
            held.kill()
        name(lab, 2, "switch", "db", "tcp://10.0.0.8:5432", "--wait", "everywhere")
        assert dig(lab, 1, "+short", "+tcp", "db.zenjun.internal") == "10.0.0.8\n"
        assert "dns      127.0.0.1:5390: " in name(lab, 1, "status")
