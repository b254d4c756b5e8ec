"""What operators do with names, by the command line on real processes: zones, schedules, export and load, checks, repair, a
start without the others."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from .cluster import cluster, wait_for
from .test_directory import Names
from .test_directory_files import end, equal, log_of, three

pytestmark = pytest.mark.lab

ZENJUN = [sys.executable, "-c", "from zenjun.tools.command import main; main()"]


def done(names: Names, station: int, *words: str) -> str:
    """Output of ``zenjun name …``, which succeeds."""
    ran = names.run(station, *words)
    assert ran.returncode == 0, f"{words}: {ran.stderr}"
    return ran.stdout


def test_export_follows_and_load_brings_back(tmp_path: Path) -> None:
    with three() as names:
        done(names, 1, "set", "db", "tcp://10.0.0.7:5432", "tcp://10.0.0.8:5432@1*3", "--meta", "team=data", "--select", "first")
        done(names, 1, "alias", "www", "db")
        saved, hosts = tmp_path / "names.json", tmp_path / "hosts"
        done(names, 2, "export", "--to", str(saved))
        argv = [*ZENJUN, "name", "export", "--format", "hosts", "--to", str(hosts), "--follow"]
        follower = subprocess.Popen(argv, env=names.lab.station(3).environment(), stderr=subprocess.PIPE)
        try:
            wait_for(hosts.exists, "the first export", 30)
            assert hosts.read_text().splitlines()[1:] == ["10.0.0.7\tdb", "10.0.0.8\tdb"]
            done(names, 1, "set", "web", "http://[fe80::1]:80", "station:2/web")
            wait_for(lambda: "fe80::1\tweb" in hosts.read_text(), "the change in the file", 30)
            before = done(names, 1, "list", "--json")
            done(names, 1, "rm", "db")
            done(names, 1, "rm", "www")
            done(names, 1, "rm", "web")
            wait_for(lambda: hosts.read_text().count("\n") == 1, "nothing is left in the file", 30)
            assert done(names, 3, "load", str(saved)) == "2 names are set\n"
            wait_for(lambda: "10.0.0.8\tdb" in hosts.read_text(), "the names in the file", 30)
        finally:
            follower.send_signal(signal.SIGINT)
            assert follower.wait(30) == 130
            assert follower.stderr is not None
            follower.stderr.close()

        def plain(text: str) -> dict[str, dict[str, object]]:
            return {e["name"]: {k: v for k, v in e.items() if k != "version"} for e in json.loads(text) if e["name"] != "web"}

        assert plain(done(names, 2, "list", "--json")) == plain(before)
        lines = tmp_path / "names.csv"
        lines.write_text("# two\nqueue,tcp://10.0.0.9:1\ncache,tcp://10.0.0.9:2,tcp://10.0.0.9:3@1\n")
        assert done(names, 2, "load", str(lines)) == "2 names are set\n"
        assert done(names, 3, "get", "cache", "--fresh") == "tcp://10.0.0.9:2\n"
        lines.write_text('[{"no": "name"}]')
        wrong = names.run(1, "load", str(lines))
        assert wrong.returncode == 2 and "no list of names" in wrong.stderr


def test_zones_have_bounds_and_patterns() -> None:
    with three() as names:
        done(
            names,
            1,
            "zone",
            "set",
            "plant",
            "--admin",
            "group:ops",
            "--writer",
            "station:2",
            "--names",
            "*.plant",
            "--names-max",
            "2",
        )
        assert done(names, 3, "zone", "list") == "plant\tadmins group:ops\twriters station:2\tnames *.plant\n"
        done(names, 2, "set", "db.plant", "tcp://10.0.0.7:5432", "--zone", "plant")
        done(names, 1, "set", "web.plant", "tcp://10.0.0.8:80", "--zone", "plant")
        # Root is an operator at every station, and what is full is full for operators as well.
        full = names.run(2, "set", "mail.plant", "tcp://10.0.0.9:25", "--zone", "plant")
        assert (full.returncode, "full" in full.stderr) == (1, True), full.stderr
        elsewhere = names.run(1, "set", "job.plant", "tcp://10.0.0.9:1", "--zone", "default")
        assert elsewhere.returncode == 1, "the pattern is the zone's alone"
        held = names.run(1, "zone", "rm", "plant")
        assert held.returncode == 1, "it has names"
        done(names, 1, "rm", "db.plant")
        done(names, 1, "rm", "web.plant")
        done(names, 1, "zone", "rm", "plant")
        assert done(names, 2, "zone", "list") == ""


@contextmanager
def one_wrong_clock(seconds: float) -> Iterator[Names]:
    """Three active directories; station 3's clock is off."""
    with cluster(3) as lab:
        names = Names(lab)
        try:
            for station in (1, 2):
                names.start(station)
            at = lab.station(3)
            with (at.directory / "directory.log").open("ab") as log:
                argv = [sys.executable, "-m", "zenjun.tools.scenario.wrongclock", str(seconds), "--config", str(at.config_path)]
                names.processes[3] = subprocess.Popen(argv, env=at.environment(), stdout=log, stderr=log)
            wait_for(lambda: all(names.active(k) for k in (1, 2, 3)), "three active directories", 60)
            yield names
        finally:
            end(names)


@pytest.mark.parametrize("seconds", [86400.0, -86400.0])
def test_a_schedule_switches_by_most_clocks(seconds: float) -> None:
    """One clock is a day off: the slot begins when it is time, once, at all stations; and the wrong clock is named."""
    with one_wrong_clock(seconds) as names:
        done(names, 1, "set", "db", "tcp://10.0.0.7:5432", "tcp://10.0.0.8:5432")
        begins = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
        if begins.timestamp() - time.time() < 20:
            begins += timedelta(minutes=1)
        when = begins.strftime("%Y-%m-%dT%H:%MZ")
        done(names, 3, "schedule", "db", when, "tcp://10.0.0.8:5432", "--wait", "everywhere")
        scheduled = json.loads(done(names, 1, "list", "db", "--json"))[0]["version"]
        with names.connect(1) as d:
            while time.time() < begins.timestamp() - 1:
                assert set(d.lookup("db", fresh=True).addresses) == {"tcp://10.0.0.7:5432", "tcp://10.0.0.8:5432"}
                time.sleep(0.5)
            wait_for(lambda: d.lookup("db", fresh=True).addresses == ("tcp://10.0.0.8:5432",), "the slot has begun", 30)
            assert time.time() >= begins.timestamp()
        for station in (2, 3):
            assert done(names, station, "get", "db", "--fresh") == "tcp://10.0.0.8:5432\n"
        first = json.loads(done(names, 1, "list", "db", "--json"))[0]["version"]
        assert first != scheduled
        status = done(names, 1, "status")
        if seconds > 0:  # whose clock is behind has not said that it is time
            assert "clocks" in status and "station 3" in status and "the clock of station 3 is" in log_of(names, 1)
        time.sleep(3)
        assert json.loads(done(names, 2, "list", "db", "--json"))[0]["version"] == first, "once"
        done(names, 2, "schedule", "db", "--clear", "--wait", "everywhere")
        assert set(done(names, 1, "get", "db", "--fresh").split()) == {"tcp://10.0.0.7:5432", "tcp://10.0.0.8:5432"}
        wrong = names.run(1, "schedule", "db", "mon-fry 08:00", "tcp://10.0.0.8:5432")
        assert wrong.returncode == 2 and "is no time" in wrong.stderr


def test_a_check_takes_the_address_out_and_brings_it_back(tmp_path: Path) -> None:
    with three() as names:
        good = tmp_path / "good"
        good.touch()
        words = ("--check", f"test -e {good}", "--every", "0.2s", "web", "tcp://10.0.0.13:80", "--", "sleep", "1000")
        held = names.hold(3, *words)
        try:
            wait_for(lambda: names.run(1, "get", "web").stdout == "tcp://10.0.0.13:80\n", "the held name", 30)
            good.unlink()
            wait_for(lambda: names.run(1, "get", "web").returncode == 1, "the address is withdrawn", 30)
            assert held.poll() is None, "the command goes on"
            good.touch()
            wait_for(lambda: names.run(2, "get", "web").stdout == "tcp://10.0.0.13:80\n", "the address is back", 30)
            held.terminate()
            assert held.wait(30) == 143, "SIGTERM goes to the command, and its end is told"
            wait_for(lambda: names.run(1, "get", "web").returncode == 1, "the name goes with it", 30)
        finally:
            held.kill()
            held.wait(60)


def test_repair_gets_the_state_from_the_others() -> None:
    with three() as names:
        for k in range(3):
            done(names, 1, "set", f"n{k}", "tcp://10.0.0.1:1", "--wait", "everywhere")

        def restored() -> int:
            with names.connect(2) as d:
                return int(d.status()["counters"].get("transfer_restored", 0))

        before = restored()
        assert "gets the directory from the others" in done(names, 2, "repair")
        wait_for(lambda: restored() == before + 1, "the state has come again", 30)
        wait_for(equal(names, 1, 2, 3), "equal copies", 30)


def test_a_start_without_the_others() -> None:
    with three() as names:
        for k in range(3):
            done(names, 1, "set", f"n{k}", "tcp://10.0.0.1:1", "--wait", "everywhere")
        for station in (1, 2, 3):
            names.kill_station(station)
        lone = names.lab.station(1)
        lone.start_daemon()
        names.lab.station(2).start_daemon()  # a quorum of stations, but one has no directory
        names.start(1)
        wait_for(lambda: names.run(1, "get", "n0").returncode == 0, "it answers from its file", 40)
        assert not names.active(1)
        waits = "waits    for zenjun-directory at stations 2, 3 (those of most stations are enough)"
        wait_for(lambda: waits in done(names, 1, "status"), "it names those that are missing", 40)
        assert names.run(1, "start").returncode == 2, "it says what --force is for"
        assert "proposes to begin" in done(names, 1, "start", "--force")
        wait_for(lambda: names.active(1), "it has begun with what is here", 40)
        done(names, 1, "set", "n3", "tcp://10.0.0.1:1", "--wait", "memory")
        names.lab.station(3).start_daemon()
        for station in (2, 3):
            names.start(station)
        wait_for(lambda: names.active(2) and names.active(3), "the others are back", 60)
        wait_for(equal(names, 1, 2, 3), "equal copies", 30)
        assert done(names, 3, "get", "n3") == "tcp://10.0.0.1:1\n"
