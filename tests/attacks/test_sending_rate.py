"""Attack: a user's programs send as fast as they can (clients.rate_per_user, docs/access.md).

Without a limit they have the whole station. With it they have their rate together, over all their connections; another user has
the same for itself, root is not bound; what is sent arrives, all of it and in order.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from zenjun.daemon.client import connect_sync
from zenjun.tools.lab import Station

from ..e2e.cluster import cluster, log_of, status, wait_for
from ..rules import rule
from ..timing import in_time

pytestmark = [pytest.mark.lab, pytest.mark.skipif(os.geteuid() != 0, reason="takes root, who can be another user as well")]
FLOODING, QUIET = 4711, 4712
RATE, EACH, FEW = 200, 300, 30
BURST = RATE // 10
"""What passes at once (``DP_RATE_BURST_NS``)."""


class Senders:
    """Programs that send to the group at the same time; how long each took."""

    def __init__(self, station: Station, plan: dict[str, tuple[int, int]]) -> None:
        """plan: for each name the user and how many messages it sends."""
        root = Path(__file__).resolve().parents[2]
        self.processes = {}
        for name, (uid, count) in plan.items():
            argv = [sys.executable, "-m", "tests.attacks.sender", str(station.directory), station.socket_path.name]
            argv += [str(uid), name, str(count)]
            pipe = subprocess.PIPE
            self.processes[name] = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, cwd=root)
        for process in self.processes.values():
            assert process.stdout is not None and process.stdin is not None
            assert process.stdout.readline() == "ready\n"
        for process in self.processes.values():
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

    def seconds(self) -> dict[str, float]:
        return {name: float(process.communicate(timeout=120)[0]) for name, process in self.processes.items()}


def sent(station: Station, plan: dict[str, tuple[int, int]]) -> dict[str, float]:
    """What the programs of the plan send arrives, of each in its order; how long each of them took."""
    with connect_sync(str(station.socket_path), timeout=60.0) as connection:
        group = connection.join("flood", open_group=True)
        senders = Senders(station, plan)
        came: dict[str, list[int]] = {name: [] for name in plan}
        while sum(map(len, came.values())) < sum(count for _, count in plan.values()):
            name, number = group.recv(timeout=60.0).data.decode().split()
            came[name].append(int(number))
        took = senders.seconds()
    assert came == {name: list(range(1, count + 1)) for name, (_, count) in plan.items()}, "all of it, in its order"
    return took


@rule("G5", "G6")
def test_a_user_who_sends_too_much_is_read_no_faster_than_its_rate() -> None:
    plan = {"a": (FLOODING, EACH), "b": (FLOODING, EACH), "quiet": (QUIET, FEW), "root": (0, EACH)}
    least = (2 * EACH - BURST) / RATE
    with cluster(1, options={"station": {"socket_mode": "0666"}}) as lab:
        station = lab.station(1)
        station.directory.chmod(0o711)
        took = sent(station, plan)
        in_time(max(took.values()) < least / 2, f"without a limit nobody is slowed: {took}")

        station.write_config({"clients": {"rate_per_user": RATE}})
        station.signal(signal.SIGHUP)
        wait_for(lambda: "taken over: " in log_of(station), "the limit is taken over", 40)
        took = sent(station, plan)
        both = max(took["a"], took["b"])
        assert both > 0.9 * least, f"{2 * EACH} messages at {RATE}/s take {least:.2f} s at least: {took}"
        in_time(both < 1.5 * least, f"not much longer: {took}")
        in_time(abs(took["a"] - took["b"]) < least / 4, f"both connections have their share: {took}")
        in_time(max(took["quiet"], took["root"]) < least / 2, f"others are not slowed: {took}")
        assert status(station)["counters"]["datapath"]["client_throttles"]
