"""zenjun-directory as a unit: from the package to a name that any program of the machine looks up through systemd-resolved."""

from __future__ import annotations

import json
import re

from .engine import ROOT, Machine, wait_for

CONFIG = """
[cluster]
name = "names"
stations = 1

[station]
id = 1
interface = "e1"

[directory]
dns = "127.0.0.1:5390"
metrics = "127.0.0.1:9462"
"""
RESOLVED = "[Resolve]\nDNS=127.0.0.1:5390\nDomains=~zenjun.internal\n"
LOOK_UP = "import socket; print(sorted({a[4][0] for a in socket.getaddrinfo('db.zenjun.internal', 80)}))"


def test_from_the_package_to_a_name_in_systemd_resolved(box: Machine) -> None:
    box.ok("dpkg", "-i", "/root/zenjun.deb")
    shown = box.show("zenjun-directory.service")
    assert (shown["LoadState"], shown["ActiveState"], shown["UnitFileState"]) == ("loaded", "inactive", "disabled")
    assert box.run("systemd-analyze", "verify", "--man=no", "/lib/systemd/system/zenjun-directory.service").stderr.strip() == ""
    box.ok("sh", "-ec", "ip link add e1 type veth peer name p1; ip link set e1 up; ip link set p1 up")
    # Without any address of its own a machine has no network, for systemd-resolved.
    box.ok("ip", "address", "add", "192.0.2.1/24", "dev", "e1")
    box.write("/etc/zenjun/zenjund.toml", CONFIG)
    box.ok("systemctl", "start", "zenjund.service", "zenjun-directory.service")
    assert box.show("zenjun-directory.service")["ActiveState"] == "active"

    def active() -> bool:
        done = box.run("zenjun", "name", "status", "--json")
        return done.returncode == 0 and bool(json.loads(done.stdout)["active"])

    wait_for(active, "the directory is active", tell=lambda: box.log("zenjun*"))
    box.ok("zenjun", "name", "set", "db", "tcp://10.0.0.7:5432", "tcp://[fd00::7]:5432")
    box.ok("zenjun", "name", "alias", "www", "db")
    box.write("/etc/systemd/resolved.conf.d/zenjun.conf", RESOLVED)
    box.ok("systemctl", "restart", "systemd-resolved")
    assert "10.0.0.7" in box.ok("resolvectl", "query", "--legend=no", "db.zenjun.internal")
    assert "fd00::7" in box.ok("resolvectl", "query", "--legend=no", "--type=AAAA", "db.zenjun.internal")
    assert "10.0.0.7" in box.ok("resolvectl", "query", "--legend=no", "www.zenjun.internal")
    service = box.ok("resolvectl", "query", "--legend=no", "--type=SRV", "_db._tcp.zenjun.internal")
    assert "_db._tcp.zenjun.internal IN SRV 0 1 5432 0a000007.addr.zenjun.internal" in service
    assert "10.0.0.7" in box.ok("resolvectl", "query", "--legend=no", "0a000007.addr.zenjun.internal")
    nothing = box.run("resolvectl", "query", "nothing.zenjun.internal")
    assert nothing.returncode != 0 and "not found" in nothing.stderr
    # By the stub that /etc/resolv.conf names, as programs do that know of neither. Docker has mounted that file: it stays.
    box.ok("sh", "-ec", "cat /run/systemd/resolve/stub-resolv.conf > /etc/resolv.conf")
    assert box.ok("python3", "-c", LOOK_UP).strip() == "['10.0.0.7', 'fd00::7']"
    # A change is seen as soon as what was kept has aged: its time is the entry's ttl, 1 s.
    box.ok("zenjun", "name", "set", "db", "tcp://10.0.0.8:5432")
    wait_for(lambda: box.ok("python3", "-c", LOOK_UP).strip() == "['10.0.0.8']", "the change is seen", 10)
    told = json.loads(box.ok("zenjun", "name", "status", "--json"))["dns"]
    assert told["answers"]["NOERROR"] > 0 and told["answers"]["NXDOMAIN"] > 0 and told["dropped"] == {}
    scrape = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:9462/metrics').read().decode())"
    assert 'zenjun_directory_dns_answers_total{code="NXDOMAIN"}' in box.ok("python3", "-c", scrape)
    box.ok("systemctl", "stop", "zenjun-directory.service", "zenjund.service")
    assert box.show("zenjun-directory.service")["Result"] == "success"


def test_exposure_is_what_the_documentation_says(box: Machine) -> None:
    text = box.ok("systemd-analyze", "security", "--no-pager", "zenjun-directory.service")
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d)", text)
    assert found, text
    page = (ROOT / "docs" / "directory-service.md").read_text()
    assert f"`systemd-analyze security` says {found[1]}" in " ".join(page.split())
