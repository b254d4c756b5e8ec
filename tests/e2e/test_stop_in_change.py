"""Stations that stop in order while the others are agreeing on somebody else."""

from __future__ import annotations

import contextlib
import random
import signal
import time

import pytest
from zenjun.daemon.client import Event, connect_sync

from ..timing import in_time
from .cluster import cluster, exchange, kill, members_of, plan, programs, status, wait_for

pytestmark = pytest.mark.lab
STOP_S = 10.0
"""Two seconds for the daemon, the rest for a loaded machine."""


def test_stops_in_order_in_the_middle_of_a_change_case_103() -> None:
    """Station 5 is dead and about to be removed when 4 is told to end; then 5 comes back while 4, which is back too, is told to
    end again. It ends with 0 both times, and the rest comes to one view without anybody's help."""
    with cluster(5, options={"cluster": {"fail_timeout_ms": 1500}}) as lab:
        leaves, stays = lab.station(4), [lab.station(number) for number in (1, 2, 3)]

        def view() -> list[set[int]]:
            return [set(members_of(station)) if status(station)["state"] == "open" else set() for station in stays]

        daemon = leaves.daemon
        assert daemon is not None
        seen: list[Event] = []
        with contextlib.ExitStack() as watching:
            # Who misses 5 first waits for the others, and says so; who hears their votes first may have nothing to wait for.
            watchers = [watching.enter_context(connect_sync(str(s.socket_path), on_event=seen.append)) for s in stays]
            kill(lab.station(5))
            end = time.monotonic() + 60
            while not any(event.name in ("blocked", "view") for event in seen):
                in_time(time.monotonic() < end, "5 is not missed")
                for watcher in watchers:
                    watcher.serve(0.01)
            leaves.signal(signal.SIGTERM)  # the others agree within some ten milliseconds
        assert daemon.wait(STOP_S) == 0
        wait_for(lambda: view() == [{1, 2, 3}] * 3, "three go on", 20)
        leaves.start_daemon()
        wait_for(lambda: view() == [{1, 2, 3, 4}] * 3, "4 is back", 20)
        daemon = leaves.daemon
        assert daemon is not None
        lab.station(5).start_daemon()
        leaves.signal(signal.SIGTERM)
        assert daemon.wait(STOP_S) == 0
        wait_for(lambda: view() == [{1, 2, 3, 5}] * 3, "5 is in, 4 is out", 20)
        with programs(lab, {"g": "preack"}, ids=(1, 2, 3, 5)) as members:
            exchange(members, [plan(m, 50, random.Random(m.station)) for m in members], 30)
