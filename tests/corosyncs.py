"""Debian's corosync programs and libraries, as ``tests/corosync-packages`` has unpacked them, and namespaces to run them in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / ".venv" / "corosync"
WITH_PACEMAKER: Final = ROOT / ".venv" / "pacemaker"


def folder() -> Path:
    """Where they are; skips the test if they could not be had."""
    if not (FOLDER / "complete").exists():
        pytest.skip("corosync's programs are not here: tests/corosync-packages .venv/corosync")
    return FOLDER


def pacemaker() -> Path:
    """Where Pacemaker is beside them; skips the test if it could not be had."""
    if not (WITH_PACEMAKER / "complete").exists():
        pytest.skip("corosync's programs are not here: tests/corosync-packages .venv/pacemaker pacemaker")
    return WITH_PACEMAKER


def environment() -> dict[str, str]:
    """Their libraries first. Programs of the machine that know the same names get Debian's of the same interface."""
    libraries = sorted({str(path.parent) for path in folder().rglob("libqb.so.100")})
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}


def alone() -> list[str]:
    """A command's prefix: a network namespace of its own, since libqb's names are abstract sockets, and shared memory of its own,
    where what is killed leaves its files."""
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *root, "--net", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]
