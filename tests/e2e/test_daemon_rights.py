"""What the daemon may do: started without the right, and what is left of a root's rights once it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.daemon.rights import CAP_NET_RAW
from zenjun.tools.lab import Lab, Station

from .daemon_common import ZENJUND, log, refused, status, wait_for

pytestmark = pytest.mark.lab


@pytest.fixture
def station() -> Iterator[Station]:
    with Lab(1) as lab:
        yield lab.station(1)


def limited(station: Station, drop: str, extra: str = "") -> list[str]:
    """zenjund without some capabilities, by a small program that gives them up and goes on as zenjund."""
    code = f"import sys; from zenjun.daemon import rights; h = rights.capabilities(); d = {drop}\n"
    code += f"rights._set(rights.Capabilities(h.effective & ~d, h.permitted & ~d, 0)); {extra}\n"
    code += "from zenjun.daemon.__main__ import main; sys.exit(main(sys.argv[1:]))"
    return [ZENJUND[0], "-c", code, "--config", str(station.config_path)]


def kernel_sets(pid: int) -> dict[str, dict[str, str]]:
    """Capability sets of every thread of a process, as the kernel shows them."""
    out = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        pairs = dict(line.split(":\t", 1) for line in lines if line.startswith(("Cap", "NoNewPrivs", "Name")))
        out[task.name] = pairs
    return out


def test_without_the_right_it_says_how_to_grant_it(station: Station) -> None:
    station.write_config()
    code, line = refused(station, argv=limited(station, f"1 << {CAP_NET_RAW}"))
    assert code == 4
    assert "CAP_NET_RAW is missing" in line and "setcap cap_net_raw+ep " in line and "AmbientCapabilities=CAP_NET_RAW" in line
    assert not station.socket_path.exists() and not (station.state_directory / "lock").exists(), "nothing was touched"


def test_only_net_raw_is_left_while_running_case_99(station: Station) -> None:
    daemon = station.start_daemon()
    wait_for(lambda: status(station).get("state") == "open", "open")
    only, none = f"{1 << CAP_NET_RAW:016x}", f"{0:016x}"
    for name, sets in kernel_sets(daemon.pid).items():
        assert sets["CapEff"] == sets["CapPrm"] == sets["CapBnd"] == only, (name, sets)
        assert sets["CapInh"] == sets["CapAmb"] == none and sets["NoNewPrivs"] == "1", (name, sets)
    assert status(station)["rights"] == {"net_raw": True, "realtime": False, "realtime_wanted": False}
    # And it is enough to open the interface again.
    station.delete_interface()
    wait_for(lambda: status(station).get("state") == "no link", "interface gone")
    station.create_interface()
    wait_for(lambda: status(station).get("state") == "open", "open again")


def test_net_raw_alone_is_enough_to_start(station: Station) -> None:
    station.write_config()
    daemon = station.spawn(limited(station, f"~(1 << {CAP_NET_RAW})"))
    try:
        wait_for(lambda: status(station).get("state") == "open", "open")
    finally:
        daemon.terminate()
        assert daemon.wait(60) == 0


def test_realtime_refused_is_one_warning_case_101(station: Station) -> None:
    station.write_config({"station": {"realtime_priority": 10}})
    no_limit = "import resource; resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))"
    with station.log_path.open("wb") as out:
        daemon = station.spawn(limited(station, "1 << 23", no_limit), stderr=out)
    try:
        wait_for(lambda: status(station).get("state") == "open", "open")
        assert status(station)["rights"] == {"net_raw": True, "realtime": False, "realtime_wanted": True}
        assert log(station).count("refuses real-time priority 10") == 1
        assert os.sched_getscheduler(daemon.pid) == os.SCHED_OTHER
    finally:
        daemon.terminate()
        assert daemon.wait(60) == 0


def test_realtime_is_taken_where_it_is_allowed(station: Station) -> None:
    probe = station.run([ZENJUND[0], "-c", "import os; os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(5))"], 20)
    if probe.returncode:
        pytest.skip("real-time scheduling is refused here")
    daemon = station.start_daemon({"station": {"realtime_priority": 5}})
    wait_for(lambda: status(station).get("state") == "open", "open")
    assert status(station)["rights"]["realtime"] is True
    assert os.sched_getscheduler(daemon.pid) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
    assert os.sched_getparam(daemon.pid).sched_priority == 5
