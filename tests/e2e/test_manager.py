"""What a service manager hears and hands over, with a station of a lab under a manager of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from zenjun.daemon.runtime import Runtime
from zenjun.tools.lab import Lab, Station

from ..timing import in_time
from .daemon_common import ZENJUND, client_at, state, wait_for

pytestmark = pytest.mark.lab
# Hands descriptor 3 over as systemd does: LISTEN_PID is the process that the program becomes.
HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.fixture
def station() -> Iterator[Station]:
    with Lab(1) as lab:
        lab.station(1).write_config()
        yield lab.station(1)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(60)
        yield sock


@contextlib.contextmanager
def zenjund(station: Station, tmp_path: Path, **env: str) -> Iterator[Any]:
    daemon = station.spawn(
        [*ZENJUND, "--config", str(station.config_path)], env={"NOTIFY_SOCKET": str(tmp_path / "notify"), **env}
    )
    try:
        yield daemon
    finally:
        daemon.kill()
        daemon.wait(60)


def hear(manager: socket.socket, wanted: str) -> list[str]:
    """What comes up to the first notification with this in it."""
    seen: list[str] = []
    deadline = time.monotonic() + 60
    while not seen or wanted not in seen[-1]:
        in_time(time.monotonic() < deadline, f"{wanted}, of {seen}")
        seen.append(manager.recv(4096).decode())
    return seen


def test_ready_waits_for_the_interface_case_89(station: Station, manager: socket.socket, tmp_path: Path) -> None:
    station.link_down()
    with zenjund(station, tmp_path, WATCHDOG_USEC="200000") as daemon:
        seen = hear(manager, "waiting for interface eth0: eth0 is down")
        for _ in range(3):
            seen += hear(manager, "WATCHDOG=1")
        assert not any("READY=1" in text for text in seen), seen
        assert state(station) == "no link", "programs are served meanwhile"
        daemon.send_signal(signal.SIGHUP)
        seen = hear(manager, "WATCHDOG=1") + hear(manager, "WATCHDOG=1")
        assert not any("RELOADING" in text or "READY" in text for text in seen), "a reload must not look like being ready"
        station.link_up()
        ready = hear(manager, "READY=1")[-1].split("\n")
        assert ready[:2] == ["READY=1", "STATUS=opening on eth0"], "not open without its interface, though it is alone"
        hear(manager, "STATUS=instance 1 of station 1 is open")
        station.link_down()
        hear(manager, "waiting for interface eth0")
        station.link_up()
        seen = hear(manager, "STATUS=instance 1 of station 1 is open")
        assert not any("READY" in text for text in seen), "that is told once"


def test_reload_and_stop_are_told(station: Station, manager: socket.socket, tmp_path: Path) -> None:
    station.write_config({"station": {"drain_timeout_ms": 7000}})
    with zenjund(station, tmp_path) as daemon:
        hear(manager, "is open")
        daemon.send_signal(signal.SIGHUP)
        began = hear(manager, "RELOADING=1")[-1].split("\n")
        assert began[0] == "RELOADING=1" and int(began[1].removeprefix("MONOTONIC_USEC=")) > 0
        assert manager.recv(4096) == b"READY=1"
        daemon.send_signal(signal.SIGTERM)
        last = hear(manager, "STOPPING=1")[-1].split("\n")
        assert last[:2] == ["STOPPING=1", "STATUS=draining"]
        assert int(last[2].removeprefix("EXTEND_TIMEOUT_USEC=")) > 7_000_000, "longer than it may drain"
        assert daemon.wait(60) == 0


def test_a_stopped_daemon_is_not_heard_of(station: Station, manager: socket.socket, tmp_path: Path) -> None:
    with zenjund(station, tmp_path, WATCHDOG_USEC="400000") as daemon:
        hear(manager, "is open")
        hear(manager, "WATCHDOG=1")
        os.kill(daemon.pid, signal.SIGSTOP)
        manager.settimeout(1.5)
        with pytest.raises(TimeoutError):
            for _ in range(100):  # what was on its way, then nothing
                manager.recv(4096)
        manager.settimeout(60)
        os.kill(daemon.pid, signal.SIGCONT)
        hear(manager, "WATCHDOG=1")


@pytest.mark.parametrize("turning", [True, False])
def test_the_watchdog_wants_turns_of_the_data_path(turning: bool) -> None:
    """The loop runs and the callbacks return, but the data path may not have turned: then nothing is reported."""
    said: list[str] = []
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += turning

    runtime = object.__new__(Runtime)
    runtime._notifier = SimpleNamespace(watchdog_ns=2_000_000, watchdog=lambda: said.append("alive"))  # type: ignore[assignment]
    runtime._dp = SimpleNamespace(counters=lambda: {"turns": turns})  # type: ignore[assignment]
    runtime._turn = turn  # type: ignore[method-assign]
    runtime._guarded = lambda action: action()  # type: ignore[method-assign]

    async def a_while() -> None:
        watchdog = asyncio.create_task(runtime._watchdog())
        end = time.monotonic() + (10.0 if turning else 0.1)
        while not said and time.monotonic() < end:
            await asyncio.sleep(0.002)
        watchdog.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watchdog

    asyncio.run(a_while())
    assert bool(said) is turning


def test_a_socket_handed_over_is_served_and_left(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "handed.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen(16)
        argv = [sys.executable, "-c", HAND_OVER, str(sock.fileno()), *ZENJUND, "--config", str(station.config_path)]
        early = socket.socket(socket.AF_UNIX)
        early.connect(str(path))  # before the daemon is there: it waits in the queue
        daemon = station.spawn(argv, env={"LISTEN_FDS": "1"}, pass_fds=[sock.fileno()])
        try:
            with client_at(path) as client:
                assert client.status()["station"] == 1
            assert not station.socket_path.exists(), "the configured one is not made as well"
            early.settimeout(60)
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(60) == 0
            assert early.recv(1), "it was served: the daemon's last words"
            assert path.exists() and wait_for(lambda: sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN), "it listens on")
        finally:
            daemon.kill()
            daemon.wait(60)
            early.close()
