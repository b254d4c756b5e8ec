"""What the daemon's end-to-end tests share: waiting on a condition with a deadline, and running zenjund by itself."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from zenjun.daemon.client import SyncConnection, connect_sync
from zenjun.daemon.key import new_text
from zenjun.tools.lab import Lab, Station

from ..timing import rest

ZENJUND = [sys.executable, "-m", "zenjun.daemon"]
T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str, timeout_s: float = 60.0, lab: Lab | None = None) -> T:
    """The condition's value as soon as it is true; fails with the logs of the lab when the time is over."""
    begun = time.monotonic()
    while True:
        asked = time.monotonic()
        value = condition()
        if value:
            return value
        if time.monotonic() > begun + timeout_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}\n{logs(lab) if lab else ''}")
        rest(begun, asked)


def logs(lab: Lab) -> str:
    """Everything the daemons wrote."""
    return "\n".join(f"--- station {s.id}\n{log(s)}" for s in lab.stations.values())


def log(station: Any) -> str:
    """What one daemon wrote."""
    try:
        return str(station.log_path.read_text())
    except OSError:
        return ""


def status(station: Any) -> dict[str, Any]:
    """The station's status, empty while nobody is there to answer; waits for a daemon that is starved."""
    try:
        return dict(station.status(10.0))
    except Exception:
        return {}


def state(station: Any) -> str:
    """``state`` of the station's status."""
    return str(status(station).get("state", ""))


def program(station: Any, name: str = "test") -> SyncConnection:
    """A client of the station's daemon."""
    return client_at(station.socket_path, name)


def client_at(path: Path, name: str = "test") -> SyncConnection:
    """A client of the daemon at a socket, waiting for it to be there."""
    return connect_sync(str(path), name=name, timeout=10.0, wait=10.0)


def quietest_second(pid: int) -> float:
    """Processor time (seconds) that a process takes in the best of five seconds: what is idle has one in which it takes next to
    nothing, whatever else the machine does, and what spins has none."""

    def used() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    best = 1.0
    for _ in range(5):
        before, begin = used(), time.monotonic()
        threading.Event().wait(1.0)
        best = min(best, (used() - before) / (time.monotonic() - begin))
        if best <= 0.1:
            break
    return best


def once(argv: list[str], timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run zenjund with these arguments in this namespace to its end."""
    return subprocess.run([*ZENJUND, *argv], capture_output=True, text=True, timeout=timeout_s, check=False)


def refused(station: Any, timeout_s: float = 60.0, argv: list[str] | None = None) -> tuple[int, str]:
    """Run zenjund in the station with its configuration until it gives up: exit code and last line."""
    done = station.run(argv or [*ZENJUND, "--config", str(station.config_path)], timeout_s)
    lines = str(done.stderr).strip().splitlines()
    return int(done.returncode), lines[-1] if lines else ""


def events(path: Path) -> list[dict[str, Any]]:
    """A JSON log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


class RawClient:
    """The client protocol by hand, for what the library would never send."""

    def __init__(self, path: Path, hello: bytes | None = None) -> None:
        """Connects and, unless ``hello`` is b"", sends a HELLO (the given body, or a right one)."""
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))
        self._rest = b""
        body = b"ZENJ" + struct.pack("<HH", 1, 1) + b"raw" if hello is None else hello
        if body:
            with contextlib.suppress(BrokenPipeError):  # refused already: why is there to be read
                self.put(1, body=body)

    def put(self, kind: int, flags: int = 0, handle: int = 0, body: bytes = b"") -> None:
        self.socket.sendall(struct.pack("<IBBH", len(body), kind, flags, handle) + body)

    def get(self) -> tuple[int, int, int, bytes] | None:
        """The next frame: type, flags, handle, body; None at the end of the connection."""
        while True:
            if len(self._rest) >= 8:
                size, kind, flags, handle = struct.unpack_from("<IBBH", self._rest)
                if len(self._rest) >= 8 + size:
                    body, self._rest = self._rest[8 : 8 + size], self._rest[8 + size :]
                    return kind, flags, handle, body
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._rest += data

    def error(self) -> dict[str, Any]:
        """The next ERROR, other frames skipped; fails at the end of the connection."""
        while True:
            frame = self.get()
            assert frame is not None, "the connection ended without an ERROR"
            if frame[0] == 70:
                return {**json.loads(frame[3]), "closes": bool(frame[1] & 1)}

    def wait_end(self) -> list[tuple[int, int, int, bytes]]:
        """Frames up to the end of the connection."""
        out = []
        while (frame := self.get()) is not None:
            out.append(frame)
        return out

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()


def adopt(station: Station) -> None:
    """Let a stopped station start under other cluster options than it ran under: docs/changing.md."""
    ran = json.loads((station.state_directory / "station.json").read_text()).get("ran")
    if ran is not None:
        command = [*ZENJUND, "--config", str(station.config_path), "--adopt", ran["fingerprint"]]
        subprocess.run(command, check=True, capture_output=True, timeout=30)


def write_key(path: Path, size: int) -> Path:
    """A new key of so many bytes."""
    path.write_text(new_text(size))
    path.chmod(0o600)
    return path
