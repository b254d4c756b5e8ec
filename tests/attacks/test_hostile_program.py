"""Attack: one local program against the cluster: all connections it can have, all groups they can join, and STATUS without end.

It may get its own answers late. Everybody else's messages go on, and no station is removed: the daemon's frames and time-outs
have their turn first.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from zenjun.daemon.client import connect_sync
from zenjun.tools.lab import Lab, LabError, Station

from ..e2e.cluster import cluster, process_alive, status, together, wait_for
from ..timing import in_time
from .hostile import HEADER, HELLO, JOIN, frame

pytestmark = [pytest.mark.lab, pytest.mark.slow]
N = 3
SEND = 4
SLOW, HALF = 32, 16
CONNECTIONS, GROUPS, SECONDS = 60, 1023, 8.0


@pytest.fixture
def lab() -> Iterator[Lab]:
    with cluster(N) as made:
        yield made


@pytest.fixture
def impatient() -> Iterator[Lab]:
    """A queue is full after 64 KiB: who does not read is soon cut off."""
    with cluster(2, options={"clients": {"queue_bytes_max": 64 * 1024}}) as made:
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
    in_time(bool(answers["codes"].get("too-many-groups")), told)
    assert all(process_alive(lab.station(i)) for i in range(1, N + 1)), told
    assert together(lab) == instance, f"a station was removed: {told}"
    in_time(under_attack[-1] < 1.0, told)
    in_time(under_attack[len(under_attack) // 2] < 0.1, told)
    wait_for(lambda: not status(lab.station(3))["groups"], "its groups are gone with it", 40)


def test_a_thousand_connections_half_frames_and_programs_that_do_not_read(impatient: Lab) -> None:
    """1,000 connections that end at once; then some with a message that never ends, and members of a group who read
    nothing of it. The others' messages go on, and whoever does not read loses its place. All places taken:
    test_other_users.py."""
    instance, one = together(impatient), impatient.station(1)
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(connect_sync(str(one.socket_path), timeout=60.0)).join("honest")
        for _ in range(1000):
            connected(one.socket_path).close()
        wait_for(lambda: len(patiently(one)["clients"]) <= 2, "they are gone, but for us and who asks", 40)
        opened = [stack.enter_context(contextlib.closing(connected(one.socket_path))) for _ in range(SLOW + HALF)]
        for number, sock in enumerate(opened):
            sock.sendall(frame(JOIN, b"honest", 1) if number < SLOW else frame(JOIN, b"half", 1) + half(1 << 20))
        wait_for(lambda: members(patiently(one)) == {"honest": SLOW + 1, "half": HALF}, "they are members", 40)
        cut_off = int(patiently(one)["counters"]["datapath"]["slow_disconnects"])
        deadline = time.monotonic() + 60
        sent = 0
        while (gone := int(patiently(one)["counters"]["datapath"]["slow_disconnects"]) - cut_off) < SLOW:
            assert time.monotonic() < deadline, f"not within 60 s: {gone} of {SLOW} are cut off after {sent} messages"
            for _ in range(32):
                group.send(bytes(1 << 13))
                assert len(group.recv(timeout=30.0).data) == 1 << 13
            sent += 32
        wait_for(lambda: members(patiently(one)) == {"honest": 1, "half": HALF}, "their places are free again", 40)
    assert all(process_alive(station) for station in impatient.stations.values())
    assert together(impatient) == instance


def members(said: dict[str, Any]) -> dict[str, int]:
    return {group["name"]: len(group["members"]) for group in said["groups"]}


def patiently(station: Station) -> dict[str, Any]:
    """Its status, when those who stand before in the queue of its socket have been turned away."""

    def asked() -> dict[str, Any]:
        with contextlib.suppress(LabError):
            return status(station)
        return {}

    return wait_for(asked, "it answers", 40)


def connected(path: Path) -> socket.socket:
    """A connection that says HELLO and reads nothing."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(5.0)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(str(path))
        sock.sendall(frame(HELLO, b"ZENJ" + struct.pack("<HH", 1, 2) + b"mute"))
    except OSError:  # turned away already
        pass
    return sock


def half(size: int) -> bytes:
    """A message of this size that never ends."""
    return HEADER.pack(size, SEND, 0, 1) + bytes(4096)
