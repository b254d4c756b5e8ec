"""Attack: one local program against the cluster: all connections it can have, all groups they can join, and STATUS without end.

It may get its own answers late. Everybody else's messages go on, and no station is removed: the daemon's frames and time-outs
have their turn first.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.daemon.client import connect_sync
from zenjun.tools.lab import Lab

from ..e2e.cluster import cluster, process_alive, status, together, wait_for

pytestmark = [pytest.mark.lab, pytest.mark.slow]
N = 3
CONNECTIONS, GROUPS, SECONDS = 60, 1023, 8.0


@pytest.fixture
def lab() -> Iterator[Lab]:
    with cluster(N) as made:
        yield made


def delays(lab: Lab, station: int, seconds: float) -> list[float]:
    """How long own messages take to be delivered at preack, one after the other, in s."""
    out = []
    with connect_sync(str(lab.station(station).socket_path), timeout=30.0) as connection:
        group = connection.join("honest")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.monotonic()
            group.send(b"x")
            group.recv(timeout=30.0)
            out.append(time.monotonic() - begun)
            time.sleep(0.01)
    return sorted(out)


def test_one_hostile_program_neither_stalls_the_others_nor_removes_a_station(lab: Lab) -> None:
    instance = together(lab)
    argv = [sys.executable, str(Path(__file__).with_name("hostile.py")), str(lab.station(1).socket_path)]
    argv += [str(CONNECTIONS), str(GROUPS), str(SECONDS)]
    calm = delays(lab, 2, 1.0)
    hostile = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        under_attack = delays(lab, 2, SECONDS - 1.0)
        answers = json.loads(hostile.communicate(timeout=60)[0])
    finally:
        hostile.kill()
        hostile.wait()
    told = f"{answers}; {len(under_attack)} messages, calm {calm[len(calm) // 2]:.4f} s, "
    told += f"median {under_attack[len(under_attack) // 2]:.4f} s, longest {under_attack[-1]:.3f} s"
    print(told)
    assert answers["codes"].get("too-many-groups"), told
    assert all(process_alive(lab.station(i)) for i in range(1, N + 1)), told
    assert together(lab) == instance, f"a station was removed: {told}"
    assert under_attack[-1] < 1.0, told
    assert under_attack[len(under_attack) // 2] < 0.1, told
    wait_for(lambda: not status(lab.station(3))["groups"], "its groups are gone with it", 40)
