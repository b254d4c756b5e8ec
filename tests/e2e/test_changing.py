"""docs/changing.md on real daemons: a change machine by machine opens no second instance, and the documented way works."""

from __future__ import annotations

import json
import subprocess

import pytest
from zenjun.tools.lab import Lab, Station

from .cluster import PATIENT, status, stays, wait_for
from .daemon_common import ZENJUND, adopt, log

pytestmark = pytest.mark.lab
FIVE = {"cluster": {"stations": 5}}


def refused(station: Station) -> str:
    """The last line of a daemon that does not start, with code 3."""
    daemon = station.start_daemon()
    assert daemon.wait(15) == 3
    return log(station).strip().splitlines()[-1]


def test_growing_from_three_to_five() -> None:
    with Lab(5, options=PATIENT) as lab:
        stations = lab.stations
        for k in (1, 2, 3):
            stations[k].start_daemon({"cluster": {"stations": 3}})
        lab.wait_open(90, [1, 2, 3])
        for k in (4, 5):
            stations[k].start_daemon(FIVE)
        stations[3].stop_daemon()
        stations[3].write_config(FIVE)
        said = refused(stations[3])
        assert "ran under other cluster options last: stations was 3 and is 5" in said and "--adopt" in said
        wrong = [*ZENJUND, "--config", str(stations[3].config_path), "--adopt", "00000001"]
        assert subprocess.run(wrong, capture_output=True, timeout=30).returncode == 5, "not by habit"
        refused(stations[3])
        adopt(stations[3])  # though the others have not been stopped
        stations[3].start_daemon()
        wait_for(lambda: "opening waits: station" in log(stations[3]), "it says with whom it conflicts")
        assert "02:5a:4a:00:00:0" in log(stations[3])
        stays(lambda: all(status(stations[k])["state"] == "opening" for k in (3, 4, 5)), "three of five open nothing", 1.5)
        assert [member for member, _ in status(stations[1])["members"]] == [1, 2]
        for k in (1, 2):
            stations[k].stop_daemon()
            adopt(stations[k])
            stations[k].start_daemon(FIVE)
        lab.wait_open(90)
        ran = json.loads((stations[1].state_directory / "station.json").read_text())["ran"]
        assert ran["options"]["stations"] == "5"
