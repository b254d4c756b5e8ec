"""The package from installation to purge, on one machine with three stations: instances of zenjund@ on veths of one bridge.

The tests are one story and run in this order; each leaves the three stations open.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from .engine import ROOT, Machine, wait_for

STATIONS = (1, 2, 3)
SOCKET = "/run/zenjun/s{}.sock"
# Silence is not what is tested here: a paused station must not end the wait of one that drains.
CONFIG = """
[cluster]
name = "service"
stations = 3
fail_timeout_ms = 15000
progress_timeout_ms = 30000

[station]
id = {id}
interface = "e{id}"
drain_timeout_ms = 20000

[metrics]
listen = "{metrics}"
"""


def unit(station: int) -> str:
    return f"zenjund@s{station}.service"


def plug(box: Machine, station: int) -> None:
    """The station's interface: a veth on the bridge."""
    box.ok(
        "sh", "-ec",
        f"ip link show br0 >/dev/null 2>&1 || ip link add br0 up type bridge; "
        f"ip link add p{station} master br0 up type veth peer name e{station}; ip link set e{station} up",
    )  # fmt: skip


def configure(box: Machine, station: int, more: str = "") -> None:
    metrics = "127.0.0.1:9461" if station == 1 else f"/run/zenjun/m{station}.sock"
    box.write(f"/etc/zenjun/s{station}.toml", CONFIG.format(id=station, metrics=metrics) + more)


def status(box: Machine, station: int) -> dict[str, Any]:
    """The station's status, empty while it does not answer."""
    done = box.run("zenjun", "status", "--json", "--socket", SOCKET.format(station))
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


def answer(box: Machine, station: int) -> dict[str, Any]:
    """The status of a station that answers, however long a busy machine takes for it."""
    return wait_for(lambda: status(box, station), f"station {station} answers", tell=box.log)


def wait_open(box: Machine, above: int = 0) -> int:
    """Until all three are in one open instance, whose number is above another; that number."""

    def instance() -> int:
        seen = [status(box, s) for s in STATIONS]
        numbers = {s.get("instance", 0) for s in seen}
        return numbers.pop() if len(numbers) == 1 and all(s.get("state") == "open" for s in seen) else 0

    return wait_for(lambda: n if (n := instance()) > above else 0, "all stations are open", 40, box.log)


def wait_told(box: Machine, station: int) -> None:
    """Until systemd knows that the cluster is open: it is told by another way than who asks for the status."""
    wait_for(
        lambda: re.fullmatch(r"instance \d+ of stations 1, 2, 3 is open", box.show(unit(station)).get("StatusText", "")),
        f"systemd knows of station {station}",
        tell=box.log,
    )


def test_installation_starts_nothing_without_a_configuration(box: Machine) -> None:
    box.ok("dpkg", "-i", "/root/zenjun.deb")
    shown = box.show("zenjund.service")
    assert (shown["LoadState"], shown["ActiveState"], shown["ConditionResult"]) == ("loaded", "inactive", "no")
    assert shown["UnitFileState"] == "enabled"
    assert box.ok("systemctl", "--failed", "--plain", "--no-legend").strip() == ""
    assert "nologin" in box.ok("getent", "passwd", "zenjun")
    assert box.ok("stat", "-c", "%U:%G %a", "/run/zenjun", "/etc/zenjun").split("\n")[:2] == [
        "zenjun:zenjun 755",
        "root:root 755",
    ]
    pages = box.ok("dpkg", "-L", "zenjun")
    for page in ("man1/zenjun.1", "man1/zenjun-lab-up.1", "man8/zenjund.8", "man5/zenjund.toml.5"):
        assert f"/usr/share/man/{page}.gz" in pages
    assert box.ok("zenjun", "version").startswith("zenjun ")
    assert box.ok("zenjun", "config", "check", "/usr/share/doc/zenjun/examples/zenjund.toml")


@pytest.mark.parametrize(
    "name", ["zenjund.service", "zenjund@s1.service", "zenjun-directory.service", "zenjun-directory@s1.service"]
)
def test_exposure_is_what_the_documentation_says_case_97(box: Machine, name: str) -> None:
    text = box.ok("systemd-analyze", "security", "--no-pager", name)
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d)", text)
    assert found, text
    assert float(found[1]) < 2.0
    page = "service.md" if name.startswith("zenjund") else "directory-service.md"
    text = " ".join((ROOT / "docs" / page).read_text().split())
    assert f"`systemd-analyze security` says {found[1]}" in text
    assert box.run("systemd-analyze", "verify", "--man=no", f"/lib/systemd/system/{name.replace('s1', '')}").stderr.strip() == ""


def test_start_is_ready_when_the_interface_is_open_case_99(box: Machine) -> None:
    for station in STATIONS:
        plug(box, station)
        configure(box, station)
    box.ok("systemctl", "start", *map(unit, STATIONS))
    wait_open(box)
    for station in STATIONS:
        wait_told(box, station)
        shown = box.show(unit(station))
        assert (shown["ActiveState"], shown["Type"], shown["NRestarts"]) == ("active", "notify", "0")
        process = box.ok("cat", f"/proc/{shown['MainPID']}/status")
        rights = dict(re.findall(r"^Cap(\w+):\s+(\w+)$", process, re.M))
        net_raw = f"{1 << 13:016x}"
        assert rights == {"Inh": "0" * 16, "Prm": net_raw, "Eff": net_raw, "Bnd": net_raw, "Amb": "0" * 16}
        assert re.search(r"^NoNewPrivs:\s+1$", process, re.M) and re.search(r"^Seccomp:\s+2$", process, re.M)
        assert not re.search(r"^Uid:.*\b0\b", process, re.M)
    reader = box.popen("zenjun", "recv", "--socket", SOCKET.format(2), "--count", "3", "--timeout", "120")
    wait_for(lambda: "zenjun recv" in str(status(box, 1).get("groups")), "the reader is in", tell=box.log)
    box.ok("zenjun", "send", "--socket", SOCKET.format(1), "one", "two", "three")
    out, errors = reader.communicate(timeout=200)
    assert re.findall(r"one|two|three", out) == ["one", "two", "three"], (out, errors)


def test_the_journal_has_fields(box: Machine) -> None:
    opened = box.entries(unit(2), ZENJUN_EVENT="open")
    number = opened[-1]["ZENJUN_INSTANCE"]
    assert answer(box, 2)["instance"] >= int(number)
    assert opened[-1]["ZENJUN_CLUSTER"] == "service" and opened[-1]["ZENJUN_OWN_STATION"] == "2"
    assert opened[-1]["PRIORITY"] == "6" and opened[-1]["SYSLOG_IDENTIFIER"] == "zenjund"
    assert re.match(rf"open: (admitted to )?instance {number} of stations (\d, )+\d$", opened[-1]["MESSAGE"])


SCRAPE = """
import socket, sys
where = sys.argv[1]
s = socket.create_connection(("127.0.0.1", int(where))) if where.isdecimal() else socket.socket(socket.AF_UNIX)
where.isdecimal() or s.connect(where)
s.settimeout(60)
s.sendall(b"GET /metrics HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
data = b""
while chunk := s.recv(65536):
    data += chunk
sys.stdout.write(data.decode().replace("\\r\\n", "\\n"))
"""


def test_metrics_inside_the_sandbox(box: Machine) -> None:
    for where in ("9461", "/run/zenjun/m2.sock"):
        text = box.python(SCRAPE, where)
        assert text.startswith("HTTP/1.1 200 OK\n") and text.endswith("# EOF\n")
        assert 'zenjun_state{zenjun_state="open"} 1.0' in text
        assert float(re.search(r"^zenjun_core_rx_frames_total (\S+)$", text, re.M)[1]) > 0  # type: ignore[index]
        assert re.search(r"^process_resident_memory_bytes \S+$", text, re.M)


def test_watchdog_kills_a_stopped_process_and_it_comes_back(box: Machine) -> None:
    box.write("/run/systemd/system/zenjund@s2.service.d/watchdog.conf", "[Service]\nWatchdogSec=4s\n")
    box.ok("systemctl", "daemon-reload")
    box.ok("systemctl", "restart", unit(2))
    before = wait_open(box)
    old = box.show(unit(2))
    # Alive it may run much longer than the watchdog's time.
    started = time.monotonic()
    wait_for(lambda: time.monotonic() - started > 9, "more than two intervals", 20)
    assert box.show(unit(2))["MainPID"] == old["MainPID"]
    box.ok("kill", "-STOP", old["MainPID"])
    wait_for(lambda: box.show(unit(2))["NRestarts"] != old["NRestarts"], "systemd has noticed", 30, box.log)
    wait_open(box, above=before)
    new = box.show(unit(2))
    assert new["MainPID"] != old["MainPID"] and int(new["NRestarts"]) == int(old["NRestarts"]) + 1
    log = box.log(unit(2))
    assert "Watchdog timeout" in log
    assert "Fatal Python error: Aborted" in log, "where it hung is in the journal"
    box.ok("rm", "-r", "/run/systemd/system/zenjund@s2.service.d")
    box.ok("systemctl", "daemon-reload")


def test_reload_takes_over_what_may_change_and_refuses_a_wrong_file(box: Machine) -> None:
    pid = box.show(unit(3))["MainPID"]
    configure(box, 3, '[clients]\nmax = 5\nqueue_bytes_max = 1000000\n[log]\nlevel = "debug"\n')
    box.ok("systemctl", "reload", unit(3))
    told = wait_for(lambda: box.entries(unit(3), ZENJUN_EVENT="reload"), "it is told", tell=box.log)[-1]["MESSAGE"]
    assert "taken over: clients.max, log.level" in told and "only after a restart: clients.queue_bytes_max" in told
    box.write("/etc/zenjun/s3.toml", "nonsense")
    refused = box.run("systemctl", "reload", unit(3))
    assert refused.returncode != 0
    assert "/etc/zenjun/s3.toml:1:" in box.log(unit(3)), "the reason is in the journal"
    assert len(box.entries(unit(3), ZENJUN_EVENT="reload")) == 1, "the daemon was not asked"
    configure(box, 3)
    box.ok("systemctl", "reload", unit(3))
    wait_for(lambda: len(box.entries(unit(3), ZENJUN_EVENT="reload")) == 2, "it is told", tell=box.log)
    wait_for(lambda: box.show(unit(3))["SubState"] == "running", "the reload is over", tell=box.log)
    wait_told(box, 3)
    shown = box.show(unit(3))
    assert (shown["ActiveState"], shown["SubState"], shown["MainPID"]) == ("active", "running", pid)


MESSAGES = 60
SENDER = f"""
import os, signal, sys
from zenjun.daemon.client import connect_sync
c = connect_sync("{SOCKET.format(1)}", timeout=30)
g = c.join("drain", receive=False)
os.kill(int(sys.argv[1]), signal.SIGSTOP)
print("joined", flush=True)
for n in range({MESSAGES}):
    g.send(b"%05d" % n + bytes(1300), level="sent")
c.serve(30)
"""
RECEIVER = f"""
from zenjun.daemon.client import connect_sync
c = connect_sync("{SOCKET.format(2)}", timeout=60)
g = c.join("drain")
print("joined", flush=True)
for n in range({MESSAGES}):
    assert g.recv(60).data[:5] == b"%05d" % n
print("all", flush=True)
"""
PYTHON = "/usr/lib/zenjun/bin/python3"


def test_stop_drains_and_stays_stopped(box: Machine) -> None:
    instance = wait_open(box)
    receiver = box.popen(PYTHON, "-u", "-c", RECEIVER)
    assert receiver.stdout is not None and receiver.stdout.readline() == "joined\n"
    third = box.show(unit(3))["MainPID"]
    # Nobody can have what the third station has not: the first must wait for it.
    sender = box.popen(PYTHON, "-u", "-c", SENDER, third)
    assert sender.stdout is not None and sender.stdout.readline() == "joined\n"
    wait_for(
        lambda: status(box, 1).get("window", {}).get("in_flight", 0) >= MESSAGES,
        "all are under way",
        tell=lambda: str(status(box, 1)),
    )
    stop = box.popen("systemctl", "stop", "zenjund@s1.socket", unit(1))
    wait_for(lambda: box.show(unit(1))["StatusText"] == "draining", "it drains", 10, box.log)
    assert box.show(unit(1))["SubState"] == "stop-sigterm"
    box.ok("kill", "-CONT", third)
    assert stop.wait(30) == 0
    out, errors = receiver.communicate(timeout=200)
    assert out == "all\n", (errors, box.log())
    sender.communicate(timeout=200)
    shown = box.show(unit(1))
    assert (shown["ActiveState"], shown["Result"], shown["ExecMainStatus"]) == ("inactive", "success", "0"), box.log(unit(1))
    late = box.run("zenjun", "status", "--socket", SOCKET.format(1))
    assert late.returncode == 3, "without its socket nobody starts it"
    assert box.show(unit(1))["ActiveState"] == "inactive"
    box.ok("systemctl", "start", unit(1))
    wait_open(box, above=instance)


def test_killed_it_rejoins_and_programs_that_come_meanwhile_wait(box: Machine) -> None:
    before = wait_open(box)
    old, life = box.show(unit(1)), answer(box, 1)["incarnation"]
    box.ok("systemctl", "kill", "--signal=KILL", unit(1))
    # Dead it is half a second only, and its start takes as long again: on a busy machine that may be over before we look.
    wait_for(
        lambda: (s := box.show(unit(1)))["ActiveState"] != "active" or s["NRestarts"] != old["NRestarts"],
        "it is dead",
        tell=box.log,
    )
    # systemd holds the socket: who connects before the daemon is back waits in its queue.
    assert box.ok("zenjun", "status", "--json", "--timeout", "60", "--socket", SOCKET.format(1))
    wait_open(box, above=before)
    new = box.show(unit(1))
    assert int(new["NRestarts"]) == int(old["NRestarts"]) + 1 and new["MainPID"] != old["MainPID"]
    assert answer(box, 1)["incarnation"] > life


def test_a_program_that_connects_starts_the_daemon(box: Machine) -> None:
    before = wait_open(box)
    box.ok("systemctl", "stop", unit(2))
    box.ok("systemctl", "start", "zenjund@s2.socket")
    assert box.show(unit(2))["ActiveState"] == "inactive"
    assert json.loads(box.ok("zenjun", "status", "--json", "--timeout", "60", "--socket", SOCKET.format(2)))["station"] == 2
    wait_open(box, above=before)
    mode = box.ok("stat", "-c", "%U:%G %a", SOCKET.format(2)).strip()
    assert mode == "root:zenjun 660"


def test_the_credential_is_the_key(box: Machine) -> None:
    """No such file is no key; with the same file everywhere the cluster is sealed; the daemon's user alone may read it. The way
    back is a command, which leaves the state the daemon's."""
    assert answer(box, 1)["key"] is None
    box.ok("sh", "-c", "umask 077; zenjun config key > /etc/zenjun/s1.key")
    for station in STATIONS[1:]:
        box.ok("cp", "-p", "/etc/zenjun/s1.key", f"/etc/zenjun/s{station}.key")
    box.ok("systemctl", "restart", *map(unit, STATIONS))
    wait_open(box)
    marks = {answer(box, station)["key"] for station in STATIONS}
    assert len(marks) == 1 and None not in marks
    box.ok("sh", "-c", "rm /etc/zenjun/s?.key")
    box.ok("systemctl", "stop", *map(unit, STATIONS))
    assert box.run("systemctl", "start", unit(1)).returncode != 0, "there is no way back by mistake"
    assert "zenjun key forget" in box.log(unit(1))
    for station in STATIONS:
        state = f"STATE_DIRECTORY=/var/lib/zenjun/s{station}"
        box.ok("env", state, "zenjun", "key", "forget", "--config", f"/etc/zenjun/s{station}.toml")
    box.ok("systemctl", "start", *map(unit, STATIONS))
    wait_open(box)
    assert {answer(box, station)["key"] for station in STATIONS} == {None}


def test_what_a_restart_does_not_mend_is_not_restarted(box: Machine) -> None:
    box.write("/etc/zenjun/wrong.toml", "nonsense")
    assert box.run("systemctl", "start", "zenjund@wrong.service").returncode != 0
    shown = box.show("zenjund@wrong.service")
    assert (shown["ActiveState"], shown["ExecMainStatus"], shown["NRestarts"]) == ("failed", "3", "0")
    box.ok("systemctl", "stop", "zenjund@wrong.socket")
    box.ok("systemctl", "reset-failed")
    box.ok("rm", "-r", "/etc/zenjun/wrong.toml", "/var/lib/zenjun/wrong")


def test_without_its_right_it_says_so_and_is_not_restarted_case_97(box: Machine) -> None:
    before = wait_open(box)
    box.write("/run/systemd/system/zenjund@s3.service.d/bare.conf", "[Service]\nAmbientCapabilities=\nCapabilityBoundingSet=\n")
    box.ok("systemctl", "daemon-reload")
    assert box.run("systemctl", "restart", unit(3)).returncode != 0
    shown = box.show(unit(3))
    assert (shown["ActiveState"], shown["ExecMainStatus"]) == ("failed", "4")
    assert "AmbientCapabilities=CAP_NET_RAW" in box.log(unit(3)), "the way out is in the journal"
    box.ok("rm", "-r", "/run/systemd/system/zenjund@s3.service.d")
    box.ok("systemctl", "daemon-reload")
    box.ok("systemctl", "restart", unit(3))
    wait_open(box, above=before)


def test_names_beside_the_instances(box: Machine) -> None:
    """zenjun-directory@NAME finds the socket of zenjund@NAME, keeps its file below the state folder, comes back when killed."""
    units = [f"zenjun-directory@s{station}.service" for station in STATIONS]
    box.ok("systemctl", "start", *units)

    def name(station: int, *words: str) -> Any:
        return box.run("zenjun", "name", *words, "--socket", f"/run/zenjun/s{station}.directory.sock")

    def holders() -> bool:
        done = name(1, "status", "--json")
        return bool(done.returncode == 0 and json.loads(done.stdout)["holders"] == list(STATIONS))

    wait_for(holders, "three stations hold the directory", 40, box.log)
    assert name(1, "set", "db", "tcp://10.0.0.7:5432").returncode == 0
    assert name(3, "get", "db", "--fresh").stdout == "tcp://10.0.0.7:5432\n"
    assert box.ok("stat", "-c", "%U", "/var/lib/zenjun/s2/directory.db").strip() == "zenjun"
    box.ok("systemctl", "kill", "--signal", "KILL", units[1])
    wait_for(lambda: int(box.show(units[1]).get("NRestarts", 0)) == 1 and holders(), "it is back", 40, box.log)
    assert name(2, "get", "db").stdout == "tcp://10.0.0.7:5432\n"
    box.ok("systemctl", "stop", *units)
    assert [box.show(each)["Result"] for each in units] == ["success"] * 3
    assert box.run("test", "-e", "/run/zenjun/s1.directory.sock").returncode == 1


def test_boot_with_interfaces_that_come_later_case_89(box: Machine) -> None:
    box.ok("systemctl", "enable", *map(unit, STATIONS))
    before = wait_open(box)
    box.reboot()
    for station in STATIONS:
        name = unit(station)
        wait_for(
            lambda n=name, s=station: box.show(n).get("StatusText") == f"waiting for interface e{s}: it does not exist",  # type: ignore[misc]
            "it tells what it waits for",
            tell=box.log,
        )
        assert box.show(name)["SubState"] == "start"
    wait_for(lambda: status(box, 1).get("state") == "no link", "programs are served meanwhile", tell=box.log)
    pids = [box.show(unit(s))["MainPID"] for s in STATIONS]
    started = time.monotonic()
    wait_for(lambda: time.monotonic() - started > 12, "longer than the watchdog's and any start's time", 20)
    for station in STATIONS:
        plug(box, station)
    wait_open(box, above=before)
    for station in STATIONS:
        wait_told(box, station)
    shown_all = [box.show(unit(s)) for s in STATIONS]
    assert [s["MainPID"] for s in shown_all] == pids and {s["NRestarts"] for s in shown_all} == {"0"}
    assert {s["ActiveState"] for s in shown_all} == {"active"}
    wait_for(lambda: box.run("systemctl", "is-system-running").stdout.strip() == "running", "the boot is over", tell=box.log)


def test_upgrade_restarts_the_instances(box: Machine) -> None:
    before = wait_open(box)
    pids = [box.show(unit(s))["MainPID"] for s in STATIONS]
    box.ok("dpkg", "-i", "/root/zenjun.deb")
    wait_open(box, above=before)
    assert not set(pids) & {box.show(unit(s))["MainPID"] for s in STATIONS}


def test_removal_stops_everything_and_purge_leaves_nothing(box: Machine) -> None:
    box.ok("dpkg", "-r", "zenjun")
    assert box.run("pgrep", "-f", "zenjund").returncode == 1
    for path in ("/usr/lib/zenjun", "/run/zenjun", "/lib/systemd/system/zenjund.service"):
        assert box.run("test", "-e", path).returncode == 1, path
    assert box.ok("ls", "/var/lib/zenjun").split() == ["s1", "s2", "s3"], "the state survives a removal"
    box.ok("dpkg", "-P", "zenjun")
    for path in ("/var/lib/zenjun", "/etc/zenjun"):
        assert box.run("test", "-e", path).returncode == 1, path
    left = box.ok("find", "/etc/systemd", "/usr", "/lib/systemd", "/var/lib/systemd", "-name", "*zenjun*").split()
    assert left == []


def test_the_template_is_the_unit_with_the_instance_in_its_paths() -> None:
    folder = ROOT / "tools" / "packaging"
    for kind in ("service", "socket"):
        plain, template = ((folder / f"zenjund{at}.{kind}").read_text() for at in ("", "@"))
        swaps = (
            ("/etc/zenjun/zenjund.toml", "/etc/zenjun/%i.toml"), ("zenjund.socket", "zenjund@%i.socket"),
            ("zenjund.service", "zenjund@%i.service"), ("/run/zenjun/zenjund.sock", "/run/zenjun/%i.sock"),
            ("StateDirectory=zenjun\n", "StateDirectory=zenjun/%i\n"), ("/etc/zenjun/zenjund.key", "/etc/zenjun/%i.key"),
        )  # fmt: skip
        for old, new in swaps:
            plain = plain.replace(old, new)

        def directives(text: str) -> list[str]:
            return [line for line in text.splitlines() if line and not line.startswith(("#", "Description="))]

        assert directives(template) == directives(plain)
    for name in ("zenjun-directory", "zenjun-db"):
        plain, template = ((folder / f"{name}{at}.service").read_text() for at in ("", "@"))
        for old, new in swaps:
            plain = plain.replace(old, new)
        assert directives(template) == directives(plain)
    assert Path(folder / "debian" / "rules").stat().st_mode & 0o111
