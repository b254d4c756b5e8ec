"""Starting the daemon: what it refuses and how it says so, each with its exit code; what it waits for."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.tools.lab import Lab, Station

from ..timing import in_time
from .daemon_common import (
    ZENJUND,
    client_at,
    events,
    log,
    logs,
    once,
    program,
    quietest_second,
    refused,
    state,
    status,
    wait_for,
)

pytestmark = pytest.mark.lab


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(1) as lab:
        yield lab


@pytest.fixture
def station(lab: Lab) -> Station:
    return lab.station(1)


def test_help_names_exit_codes_and_examples() -> None:
    done = once(["--help"])
    assert done.returncode == 0 and "exit codes:" in done.stdout and "sudo zenjund --config" in done.stdout


def test_a_locale_without_utf8_is_no_traceback(tmp_path: Path) -> None:
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    def run(*argv: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*ZENJUND, *argv], capture_output=True, timeout=20, check=False, env=ascii_only)

    done = run("--help")
    assert done.returncode == 0 and b"exit codes:" in done.stdout and not done.stderr, done.stderr
    good = tmp_path / "gr\u00fcn.toml"
    good.write_text('[cluster]\nname = "x"\nstations = 1\n[station]\nid = 1\ninterface = "eth0"\n')
    done = run("--config", str(good), "--check")
    assert done.returncode == 0 and b"the configuration is right" in done.stdout, done.stderr
    good.write_text('[cluster]\nname = "x"\nstations = "\u4e00"\n')
    done = run("--config", str(good))
    assert done.returncode == 3 and b"Traceback" not in done.stderr, done.stderr


def test_version_and_check(tmp_path: Path) -> None:
    assert once(["--version"]).stdout.startswith("zenjund ")
    assert once(["--nonsense"]).returncode == 2
    missing = once(["--config", str(tmp_path / "none.toml"), "--check"])
    assert missing.returncode == 3 and missing.stderr.count("\n") == 1 and "none.toml" in missing.stderr
    good = tmp_path / "good.toml"
    good.write_text('[cluster]\nname = "x"\nstations = 1\n[station]\nid = 1\ninterface = "eth0"\n')
    assert once(["--config", str(good), "--check"]).returncode == 0
    good.write_text(good.read_text().replace("id = 1", "id = 4"))
    waits = once(["--config", str(good), "--check"])
    assert waits.returncode == 0 and "station 4 is not in its roster: it waits until it is added" in waits.stdout
    good.write_text('[cluster]\nname = "x"\nstations = 1\nspeed = 3\n[station]\nid = 2\ninterface = "eth0"\n')
    bad = once(["--config", str(good)])
    assert bad.returncode == 3 and f"{good}:4:" in bad.stderr


def test_a_cluster_of_one_opens_and_delivers(lab: Lab, station: Station) -> None:
    lab.start_daemons()
    lab.wait_open()
    with program(station) as client:
        group = client.join("g")
        group.send(b"hello", level="ack")
        assert group.recv(5).data == b"hello"
    assert station.stop_daemon() == 0
    assert not station.socket_path.exists()


def test_second_daemon_on_the_same_state_is_refused_with_its_pid(lab: Lab, station: Station) -> None:
    lab.start_daemons()
    lab.wait_open()
    assert station.daemon is not None
    code, line = refused(station)
    assert code == 5 and f"in use by pid {station.daemon.pid}" in line
    assert state(station) == "open", "the first is not disturbed"


def test_state_of_another_station_is_refused(lab: Lab, station: Station) -> None:
    station.state_directory.mkdir(parents=True, exist_ok=True)
    other = {"format": 1, "cluster": "elsewhere", "station": 7, "incarnation": 5, "instance": 5}
    (station.state_directory / "station.json").write_text(json.dumps(other))
    station.write_config()
    code, line = refused(station)
    assert code == 5 and "station 7 of cluster 'elsewhere'" in line and "station 1 of cluster" in line


def test_unusable_state_folder_is_one_line(station: Station, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    station.write_config({"station": {"state_dir": str(tmp_path / "file" / "x")}})
    code, line = refused(station)
    assert code == 5 and "cannot create the state folder" in line


def test_live_socket_is_respected_case_95(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        station.write_config({"station": {"socket": str(path)}})
        code, line = refused(station)
        assert code == 6 and f"in use by pid {os.getpid()}" in line
        assert path.exists()


def test_stale_socket_is_replaced_and_folder_is_made_case_95(lab: Lab, station: Station, tmp_path: Path) -> None:
    path = tmp_path / "run" / "zenjun" / "s.sock"
    station.write_config({"station": {"socket": str(path), "socket_mode": "0600"}})
    station.start_daemon()
    wait_for(path.exists, "a socket in a folder made for it", lab=lab)
    assert station.daemon is not None
    station.signal(signal.SIGKILL)
    station.daemon.wait(60)
    assert stat.S_ISSOCK(path.lstat().st_mode), "left over by the crash"
    station.start_daemon()
    with client_at(path) as client:
        client.join("g")
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    station.stop_daemon()
    assert not path.exists()


def test_socket_path_that_is_no_socket_or_group_that_is_none(station: Station, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("keep me")
    station.write_config({"station": {"socket": str(tmp_path / "plain")}})
    code, line = refused(station)
    assert code == 6 and "something else is there" in line and (tmp_path / "plain").read_text() == "keep me"
    station.write_config({"station": {"socket": str(tmp_path / "s"), "socket_group": "no-such-group"}})
    code, line = refused(station)
    assert code == 6 and "'no-such-group'" in line and "does not exist" in line


def test_interface_that_can_never_do_is_refused_case_73(station: Station) -> None:
    station.write_config({"station": {"interface": "lo"}})
    code, line = refused(station)
    assert code == 7 and "lo is a loopback interface" in line


def test_absent_interface_is_waited_for_cases_73_89(lab: Lab, station: Station) -> None:
    station.delete_interface()
    station.write_config({"station": {"interface": "eth0"}})
    station.start_daemon()
    wait_for(lambda: "waiting for interface eth0: it does not exist" in log(station), "the log says so", lab=lab)
    wait_for(lambda: state(station) == "no link", "status says so", lab=lab)
    assert status(station)["interface"] == {**status(station)["interface"], "state": "absent", "index": None, "mac": None}
    with program(station) as client:
        membership_waits = client.status()["instance"]
        assert membership_waits == 0
    station.create_interface()
    lab.wait_open()
    assert "interface eth0 is up" in log(station)


def test_down_interface_is_waited_for_case_73(lab: Lab, station: Station) -> None:
    station.link_down()
    station.start_daemon()
    wait_for(lambda: "waiting for interface eth0: eth0 is down" in log(station), "the log says so", lab=lab)
    station.link_up()
    lab.wait_open()


def test_a_cluster_of_one_does_not_open_without_its_interface(lab: Lab, station: Station, tmp_path: Path) -> None:
    """It would be enough for itself, but no frame reaches it: not open, not ready, and the service manager is told why."""
    station.delete_interface()
    station.write_config()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        daemon = station.spawn([*ZENJUND, "--config", str(station.config_path)], env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        try:
            assert manager.recv(4096) == b"STATUS=waiting for interface eth0: it does not exist"
            # Alone it opens after open_window_ms, 0.4 s.
            wait_for(lambda: status(station).get("uptime_ms", 0) > 2000, "time to open", lab=lab)
            now = status(station)
            assert (now["state"], now["instance"], now["incarnation"] > 0) == ("no link", 0, True)
            manager.setblocking(False)
            with pytest.raises(BlockingIOError):
                manager.recv(4096)
            manager.settimeout(60)
            station.create_interface()
            seen = [manager.recv(4096).decode()]
            while not seen[-1].startswith("STATUS=instance 1 of "):
                seen.append(manager.recv(4096).decode())
            assert any(text.startswith("READY=1\nSTATUS=opening on eth0") for text in seen), seen
            station.delete_interface()
            wait_for(lambda: state(station) == "no link", "the interface goes again", lab=lab)
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(60) == 0
            daemon = station.spawn([*ZENJUND, "--config", str(station.config_path)])
            wait_for(lambda: state(station) == "no link", "waiting", lab=lab)
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(60) == 0, "it stops in order without ever having opened"
        finally:
            daemon.kill()
            daemon.wait(60)


def test_waiting_costs_nothing_case_77(lab: Lab, station: Station) -> None:
    station.delete_interface()
    station.start_daemon()
    wait_for(lambda: state(station) == "no link", "waiting", lab=lab)
    assert station.daemon is not None
    in_time(quietest_second(station.daemon.pid) <= 0.1, "no busy loop")


def test_ready_and_stopping_are_notified_case_91(lab: Lab, station: Station, tmp_path: Path) -> None:
    station.write_config()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        daemon = station.spawn([*ZENJUND, "--config", str(station.config_path)], env=env)
        try:
            seen: list[str] = []
            while not any("STATUS=instance 1 of " in text for text in seen) or sum(text == "WATCHDOG=1" for text in seen) < 3:
                seen.append(manager.recv(4096).decode())
            assert any(text.startswith("READY=1\nSTATUS=") for text in seen)
            daemon.send_signal(signal.SIGTERM)
            while not seen[-1].startswith("STOPPING=1"):
                seen.append(manager.recv(4096).decode())
            assert daemon.wait(60) == 0
        finally:
            daemon.kill()
            daemon.wait(60)


def test_notify_socket_that_nobody_reads_is_harmless_case_91(station: Station, tmp_path: Path) -> None:
    station.write_config()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "10000"}
        daemon = station.spawn([*ZENJUND, "--config", str(station.config_path)], env=env)
        try:
            wait_for(lambda: state(station) == "open", "it opens all the same")
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(60) == 0
        finally:
            daemon.kill()
            daemon.wait(60)


def test_lost_state_is_said_and_incarnation_grows(lab: Lab, station: Station) -> None:
    station.start_daemon()
    lab.wait_open()
    first = status(station)["incarnation"]
    station.stop_daemon()
    station.start_daemon()
    lab.wait_open()
    second = status(station)["incarnation"]
    assert second == first + 1, "remembered"
    station.stop_daemon()
    (station.state_directory / "station.json").unlink()
    station.start_daemon()
    lab.wait_open()
    assert "the state file is gone" in log(station)
    assert status(station)["incarnation"] > second


def test_duplicate_station_number_is_refused_naming_both() -> None:
    with Lab(3) as lab:
        lab.start_daemons([1, 2])
        # Who has been there a second longer stays; below that, chance decides.
        wait_for(lambda: all(status(lab.station(i)).get("uptime_ms", 0) > 1500 for i in (1, 2)), "two old ones", lab=lab)
        third = lab.station(3)
        third.write_config({"station": {"id": 2}})  # somebody else is station 2 already
        code, line = refused(third)
        assert code == 8, line + logs(lab)
        assert "station number 2 is used twice" in line and line.count("02:5a:4a:00:00:0") == 2
        (third.state_directory / "station.json").unlink()  # else it is refused: the state is station 2's now
        third.write_config({"station": {"id": 3}})
        third.start_daemon()
        lab.wait_open()


def test_different_cluster_options_are_not_admitted_and_both_say_so() -> None:
    with Lab(2) as lab:
        lab.start_daemons([1])
        other = lab.station(2)
        other.write_config({"cluster": {"heartbeat_ms": 77}})
        other.start_daemon()
        for station, named in ((lab.station(1), "station 2 ("), (other, "station 1 (")):
            wait_for(lambda s=station: "has other cluster options" in log(s), "both say so", lab=lab)  # type: ignore[misc]
            assert named in log(station) and state(station) == "opening"
        other.stop_daemon()
        other.write_config()
        other.start_daemon()
        lab.wait_open()


def test_nobody_seen_is_hinted_case_111(lab: Lab) -> None:
    with Lab(2) as lab:
        station = lab.station(1)
        station.start_daemon()
        wait_for(lambda: "no other station has been heard on eth0" in log(station), "the hint", 20, lab)
        assert log(station).count("no other station has been heard") == 1


def test_json_log_has_one_object_per_line(lab: Lab, station: Station) -> None:
    station.write_config({"log": {"format": "json"}})
    station.start_daemon()
    lab.wait_open()
    station.stop_daemon()
    names = [event["event"] for event in events(station.log_path)]
    assert names[:2] == ["state", "start"] and names[-2:] == ["stopping", "stopped"] and "open" in names
