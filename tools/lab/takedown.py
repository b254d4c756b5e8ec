"""Ending labs, in whatever state they are: running, crashed, or being made."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

from . import files, ipc, namespaces
from .errors import LabError, LabNotFound, LabTimeout

TOKEN_VARIABLE: Final = "ZENJUN_LAB_TOKEN"
"""In the environment of every process of a lab: distinguishes the left-overs of a crashed lab from all other processes."""
GONE_S: Final = 12.0
"""Time for the holder to end when asked."""


def connect(directory: Path) -> socket.socket:
    """A connection to the holder of the lab in *directory*. Raises LabNotFound."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(5.0)
        sock.connect(str(directory / "holder.sock"))
    except OSError as error:
        sock.close()
        raise LabNotFound(f"the lab in {directory} does not answer: {error.strerror}") from error
    return sock


def answers(directory: Path) -> bool:
    """Whether the holder of the lab in *directory* takes connections."""
    try:
        connect(directory).close()
    except LabNotFound:
        return False
    return True


def take_down(
    directory: Path,
    *,
    grace_s: float,
    token: str | None = None,
    keep: bool = False,
    holder: subprocess.Popen[bytes] | None = None,
) -> bool:
    """End the lab whose files are in *directory*, in whatever state it is; returns whether there was anything to end.

    Asks the holder; if that does not answer, or has crashed, kills what is left of the lab. The folder is removed unless
    *keep*. holder: its process, when it is the caller's child. Raises LabTimeout when something refuses to die.
    """
    note = files.read_note(directory)
    token = token or (str(note["token"]) if note else None)
    found = note is not None or files.in_use(directory)
    if found and _ask_down(directory, grace_s):
        _await_unlocked(directory, grace_s + GONE_S)
    elif holder is not None:
        # It may still be making the network: it takes that down by itself.
        with contextlib.suppress(ProcessLookupError):
            holder.terminate()
        _await_unlocked(directory, GONE_S)
    if token:
        deadline = time.monotonic() + GONE_S
        while kill_by_token(token):
            found = True
            if holder is not None:
                holder.poll()  # a child that is not reaped looks alive
            if time.monotonic() > deadline:
                raise LabTimeout(f"processes of the lab in {directory} do not die")
            time.sleep(0.005)
    if not keep:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        for name in ("holder.sock", "lab.json"):
            (directory / name).unlink(missing_ok=True)
    return found


def _ask_down(directory: Path, grace_s: float) -> bool:
    """Ask the holder to end and wait until it has closed the connection; False when it does not answer."""
    try:
        with connect(directory) as sock:
            ipc.send(sock, {"op": "down", "grace_s": grace_s})
            while ipc.receive(sock, grace_s + GONE_S) is not None:
                pass
    except (LabError, OSError):
        return False
    return True


def _await_unlocked(directory: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while files.in_use(directory) and time.monotonic() < deadline:
        time.sleep(0.002)


def kill_by_token(token: str) -> int:
    """Kill all processes whose environment carries the lab's token, but not the caller and its parents; returns how many."""
    mark = f"{TOKEN_VARIABLE}={token}".encode()
    spared = {os.getpid()}
    pid = os.getpid()
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            break
        spared.add(pid)
    killed = 0
    for process in namespaces.processes():
        if process in spared:
            continue
        try:
            # A zombie's environment is empty, so one that waits to be reaped is not counted.
            if mark in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                os.kill(process, signal.SIGKILL)
                killed += 1
        except OSError:
            continue
    return killed


def all_labs() -> list[str]:
    """Names of all labs of this user that have a folder, running or crashed."""
    try:
        return sorted(entry.name for entry in files.home().iterdir() if entry.is_dir())
    except OSError:
        return []
