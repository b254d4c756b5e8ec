"""corosync.service with the stand-in's drop-in, by real systemd and Debian's corosync; and Debian's corosync again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..daemon.corosync_alone import COROSYNC
from .engine import Engine, Machine, machine, wait_for

ZENJUND = """
[cluster]
name = "corosync"
stations = 1

[station]
id = 1
interface = "e1"
"""
PACKAGES = ("corosync", "libqb100", "libcpg4", "libquorum5", "libvotequorum8", "libcmap4", "libcfg7", "libcorosync-common4")
CAPABILITIES = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 23
"""CHOWN, DAC_OVERRIDE, FOWNER."""


@pytest.fixture(scope="module")
def node(engine: Engine, package: Path) -> Iterator[Machine]:
    with machine(engine, "corosync") as made:
        made.copy_in(package, "/root/zenjun.deb")
        made.ok("dpkg", "-i", "/root/zenjun.deb")
        made.ok("sh", "-ec", "ip link add p1 up type veth peer name e1; ip link set e1 up")
        made.write("/etc/zenjun/zenjund.toml", ZENJUND)
        made.write("/etc/corosync/corosync.conf", COROSYNC)
        yield made


def log(node: Machine) -> str:
    return node.run("journalctl", "-u", "corosync", "-u", "zenjund", "--no-pager", "-n", "40").stdout


def verified(node: Machine) -> str:
    """What differs from the packages, besides the configuration that this test writes."""
    said = node.run("dpkg", "-V", *PACKAGES).stdout.splitlines()
    return "\n".join(line for line in said if not line.endswith(" /etc/corosync/corosync.conf"))


def files(node: Machine) -> str:
    """What decides about the service and about corosync, byte by byte."""
    return node.ok("sh", "-ec", "find /etc/corosync /etc/systemd/system -type f | sort | xargs sha256sum")


def serves(node: Machine) -> str:
    """The program of the running service, once corosync's own tool has an answer from it."""
    wait_for(lambda: "Quorate:          Yes" in node.run("corosync-quorumtool", "-s").stdout, "quorum", 60, lambda: log(node))
    pid = node.show("corosync.service")["MainPID"]
    return node.ok("sh", "-c", f"tr '\\0' ' ' </proc/{pid}/cmdline")


def test_the_service_starts_the_stand_in_and_corosync_again(node: Machine) -> None:
    assert verified(node) == ""
    before = files(node)
    node.ok("zenjun", "corosync", "check")
    node.ok("zenjun", "corosync", "enable")
    node.ok("systemctl", "start", "corosync")
    assert "zenjun-corosync" in serves(node)
    shown = node.show("corosync.service")
    assert (shown["ActiveState"], shown["Type"], shown["WatchdogUSec"]) == ("active", "notify", "10s"), log(node)
    wait_for(lambda: node.show("zenjund.service")["ActiveState"] == "active", "it has brought zenjund with it")
    rights = node.ok("cat", f"/proc/{shown['MainPID']}/status")
    assert re.search(rf"^CapBnd:\s+{CAPABILITIES:016x}$", rights, re.M) and re.search(r"^NoNewPrivs:\s+1$", rights, re.M)
    for word in ("enable", "disable"):
        done = node.run("zenjun", "corosync", word)
        assert done.returncode == 1 and "stop it first" in done.stderr, "not while it runs"
    assert "starts zenjun-corosync" in node.ok("zenjun", "corosync", "status")
    assert verified(node) == ""
    node.ok("kill", "-STOP", shown["MainPID"])
    wait_for(lambda: node.show("corosync.service")["ActiveState"] == "failed", "one that hangs is ended", 60, lambda: log(node))
    assert node.show("corosync.service")["Result"] == "watchdog"
    node.ok("systemctl", "start", "corosync")
    assert "zenjun-corosync" in serves(node)
    node.ok("corosync-cfgtool", "-H")
    wait_for(lambda: node.show("corosync.service")["ActiveState"] == "inactive", "its end is no failure", 30, lambda: log(node))
    assert node.show("corosync.service")["NRestarts"] == "0"
    node.ok("zenjun", "corosync", "disable")
    assert files(node) == before
    node.ok("systemctl", "start", "corosync")
    assert re.match(r"/usr/sbin/corosync ", serves(node))
    assert verified(node) == ""
    node.ok("systemctl", "stop", "corosync")
