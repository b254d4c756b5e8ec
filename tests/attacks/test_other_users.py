"""Attack: a program of another user against the station's programs: their groups, all connections, all groups, an operator's
command (docs/access.md).

The same program does harm where nothing is configured: it reads and writes the group, and takes every place. Then the rules are
taken over by a reload, while the others' programs are connected.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from zenjun.daemon.client import SyncGroup, connect_sync
from zenjun.tools.lab import Station

from ..e2e.cluster import cluster, log_of, status, wait_for
from ..rules import rule

pytestmark = [pytest.mark.lab, pytest.mark.skipif(os.geteuid() != 0, reason="takes root, who can be another user as well")]
INTRUDER = 4711
RULES = """
[[access]]
groups = "secret"
send = ["user:4712"]
receive = ["user:4712"]
"""


@contextlib.contextmanager
def intruder(station: Station) -> Iterator[dict[str, Any]]:
    """What it got; it keeps what it has until the block ends."""
    argv = [
        sys.executable,
        "-m",
        "tests.attacks.intruder",
        str(station.directory),
        station.socket_path.name,
        str(INTRUDER),
        "secret",
    ]
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline() or "{}")
    finally:
        process.communicate(timeout=60)


def received(group: SyncGroup) -> list[bytes]:
    """The messages that have come until one of its own has."""
    group.send(b"end")
    out: list[bytes] = []
    while not out or out[-1] != b"end":
        out.append(group.recv(timeout=60.0).data)
    return out[:-1]


@rule("G1", "G2", "G4", "G5", "G6", "G7")
def test_another_user_gets_nothing_of_what_it_may_not_have() -> None:
    with cluster(1, options={"station": {"socket_mode": "0666"}}) as lab:
        station = lab.station(1)
        station.directory.chmod(0o711)
        with connect_sync(str(station.socket_path), timeout=60.0) as connection:
            group = connection.join("secret")
            with intruder(station) as got:  # the broken variant: no rules
                assert got["join"] == "done" and got["read"] == ["forged"] and got["members"] and got["seen"], got
                assert received(group) == [b"forged"], "it speaks in the group"
                assert got["groups"] == {"done": 400} and got["admin"] == "not-permitted", got
                assert got["connections"] == 63 and got["refused"]["busy"], "it has all places but ours"
                assert status(station)["refusals"]["busy"] == got["refused"]["busy"], "an operator still has one"

            text = station.write_config({"clients": {"connections_per_user": 8, "groups_per_user": 100}}).read_text()
            station.config_path.write_text(text + RULES)
            station.signal(signal.SIGHUP)
            wait_for(lambda: "taken over: " in log_of(station), "the rules are taken over", 40)
            with intruder(station) as got:
                assert got["join"] == got["members"] == got["admin"] == "not-permitted" and not got["seen"], got
                assert got["send"] == ["not-permitted", "bad-handle"], got
                assert got["connections"] == 8 and got["refused"] == {"too-many-connections": 62}, got
                assert got["groups"] == {"done": 100, "too-many-groups": 300}, got
                for name, what in (("join", "receive of"), ("send_only", "send to")):
                    said = f"NotPermitted: uid {INTRUDER} may not {what} group 'secret': table 1 of [[access]]"
                    assert got["library"][name].startswith(said), got
                assert received(group) == [], "nothing of it has come"
                refusals = status(station)["refusals"]
            assert refusals["too-many-connections"] == 62 and refusals["too-many-groups"] == 300, refusals
            assert f"uid {INTRUDER}, pid " in log_of(station) and "refused (not-permitted): " in log_of(station)
