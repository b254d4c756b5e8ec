"""What several of the lab's tests need."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ..timing import rest

MARK = "ZENJUN_TEST_MARK"
CALM = {"cluster": {"fail_timeout_ms": 5000, "progress_timeout_ms": 10_000}}
"""Options of daemons that nobody is to take for dead because the machine is busy."""
CLI = (sys.executable, "-c", "from zenjun.tools.cli.lab import lab; lab(prog_name='zenjun lab')")


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """Poll a condition until it holds; the test fails when it does not within *timeout_s* seconds."""
    begun = asked = time.monotonic()
    while not condition():
        if time.monotonic() > begun + timeout_s:
            pytest.fail(f"not within {timeout_s:g} s: {what}")
        rest(begun, asked)
        asked = time.monotonic()


def marked_processes(mark: str) -> list[int]:
    """Living processes with this mark in their environment, but not the test itself."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
