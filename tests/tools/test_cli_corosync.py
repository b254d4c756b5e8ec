"""``zenjun corosync``: the drop-in, what does not fit, and the configuration that does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from zenjun.daemon import config as options
from zenjun.daemon.corosync.conf import load
from zenjun.tools.cli.corosync import configuration

from ..daemon.corosync_alone import COROSYNC, ZENJUND

ZENJUN = [sys.executable, "-c", "from zenjun.tools.command import main; main()", "corosync"]


def run(folder: Path, *words: str, state: str = "inactive") -> subprocess.CompletedProcess[str]:
    """With a systemctl that says that the service is in this state, and notes what it is asked."""
    fake = folder / "systemctl"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n[ "$1" = is-active ] && echo {state}\nexit 0\n')
    fake.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "ZENJUN_SOCKET": str(folder / "none.sock")}
    return subprocess.run([*ZENJUN, *words], env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_the_service_starts_the_one_or_the_other(tmp_path: Path) -> None:
    folder = tmp_path / "corosync.service.d"
    where = ["--folder", str(folder)]
    assert run(tmp_path, "enable", *where).returncode == 0
    text = (folder / "zenjun.conf").read_text()
    assert "\nExecStart=\nExecStart=/usr/sbin/zenjun-corosync " in text
    assert "corosync.service starts zenjun-corosync" in run(tmp_path, "status", *where).stdout
    assert run(tmp_path, "disable", *where).returncode == 0
    assert not folder.exists(), "nothing is left"
    assert run(tmp_path, "disable", *where).returncode == 0, "twice is harmless"
    assert "corosync.service starts corosync" in run(tmp_path, "status", *where).stdout
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["is-active corosync.service", "daemon-reload"] * 3


@pytest.mark.parametrize("command", ["enable", "disable"])
def test_nothing_changes_while_the_service_runs(tmp_path: Path, command: str) -> None:
    folder = tmp_path / "corosync.service.d"
    done = run(tmp_path, command, "--folder", str(folder), state="active")
    assert done.returncode == 1
    assert "corosync.service is active: stop it first" in done.stderr
    assert not folder.exists()


def files(folder: Path, corosync: str = COROSYNC, zenjund: str = ZENJUND) -> list[str]:
    (folder / "z.toml").write_text(zenjund.format(folder))
    (folder / "corosync.conf").write_text(corosync)
    return [str(folder / "z.toml"), "--corosync-conf", str(folder / "corosync.conf")]


def test_check(tmp_path: Path) -> None:
    good = run(tmp_path, "check", *files(tmp_path))
    assert (good.returncode, good.stdout) == (0, f"{tmp_path}/corosync.conf: good. 1 nodes; this one is 1\n")
    wrong = COROSYNC.replace("nodeid: 1", "nodeid: 2\n    ring1_addr: 10.0.0.1").replace("udpu", "knet\n  crypto_cipher: aes256")
    bad = run(tmp_path, "check", *files(tmp_path, wrong))
    assert bad.returncode == 1
    for text in (
        "2 rings, but zenjund has 1 link (links.count)",
        "corosync.conf:14: node 2 is station 2, but zenjund's cluster has stations 1 to 1",
        "corosync.conf: no node of the nodelist is at this station, 1",
        "crypto_cipher is aes256, but zenjund has no key",
    ):
        assert text in bad.stderr, text
    mixed = run(tmp_path, "check", "corosync.conf")
    assert mixed.returncode == 2 and "--corosync-conf corosync.conf" in mixed.stderr, "not the errors of a zenjund.toml"
    broken = run(tmp_path, "check", *files(tmp_path, "nonsense"))
    assert broken.returncode == 1
    assert "corosync.conf:1: expected 'key: value'" in broken.stderr


def test_the_configuration_that_goes_with_it_is_one(tmp_path: Path) -> None:
    (tmp_path / "corosync.conf").write_text(COROSYNC.replace("nodeid: 1", "nodeid: 70\n    zenjun_station: 3"))
    conf = load(tmp_path / "corosync.conf")
    (tmp_path / "z.toml").write_text(configuration(conf, {"127.0.0.1": "eth7"}))
    config = options.load(tmp_path / "z.toml")
    assert (config.cluster.name, config.cluster.stations) == ("lab", 3)
    assert (config.station.id, config.station.interface) == (3, "eth7")
    assert "no address of this machine is in the nodelist" in configuration(conf, {})
    done = run(tmp_path, "config", "--corosync-conf", str(tmp_path / "corosync.conf"))
    assert done.returncode == 0
    assert "stations = 3\n" in done.stdout
    assert run(tmp_path, "config", str(tmp_path / "corosync.conf")).stdout == done.stdout


def test_what_protects_and_what_is_redundant_stays_so(tmp_path: Path) -> None:
    text = COROSYNC.replace("nodeid: 1", "nodeid: 1\n    ring1_addr: 10.7.0.1")
    files(tmp_path, text.replace("udpu", "knet\n  token: 3000\n  crypto_cipher: aes256"))
    conf = load(tmp_path / "corosync.conf")
    said = configuration(conf, {"127.0.0.1": "eth7", "10.7.0.1": "eth8"})
    (tmp_path / "z.toml").write_text(said)
    config = options.load(tmp_path / "z.toml")
    assert config.cluster.security == "encrypt" and config.station.key_file == "/etc/zenjun/zenjund.key"
    assert config.links.count == 2 and [(each.number, each.interface) for each in config.link] == [(2, "eth8")]
    assert "corosync waited 3000 ms" in said
    assert "# the interface with 10.7.0.1" in configuration(conf, {"127.0.0.1": "eth7"})


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("nodeid: 1", "nodeid: 100", "node 100 would be station 100, but stations are 1 to 64: give it zenjun_station"),
        ("nodeid: 1", "nodeid: 0", "nodeid 0: expected one from 1"),
        ("totem {", "lgging {\n}\ntotem {\n  token: abc", "warning: token: expected a number, not 'abc'"),
        ("totem {", "lgging {\n  debug: on\n}\ntotem {", "warning: section 'lgging' has no meaning"),
    ],
)
def test_what_is_misspelt_is_told(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert told in run(tmp_path, "check", *files(tmp_path, COROSYNC.replace(old, new))).stderr


def test_the_time_that_a_node_has_to_stop(tmp_path: Path) -> None:
    """Only with three nodes and more, where a majority goes on."""
    node = "  node {\n    ring0_addr: 10.0.0.9\n    nodeid: %d\n  }\n"
    (tmp_path / "corosync.conf").write_text(COROSYNC.rstrip()[:-1] + node % 2 + node % 3 + "}\n")
    conf = ["config", "--corosync-conf", str(tmp_path / "corosync.conf")]
    assert "fail_timeout_ms = 400\n" in run(tmp_path, *conf).stdout
    (tmp_path / "z.toml").write_text(run(tmp_path, *conf, "--stop-time", "2500").stdout.replace("id = 0", "id = 1") + "\n")
    cluster = options.load(tmp_path / "z.toml").cluster
    assert (cluster.fail_timeout_ms, cluster.quorum_timeout_ms) == (2700, 150)
    wrong = run(tmp_path, *conf, "--stop-time", "100")
    assert wrong.returncode == 2 and "200<=x<=60000" in wrong.stderr
