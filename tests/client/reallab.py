"""A lab of three stations with real daemons and some loss, for what the tests' own daemon cannot vouch for."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.tools.lab import Lab, LabUnsupported

MIB = 1 << 20
OPTIONS = {
    "clients": {"queue_bytes_max": 4 * MIB},
    # On a busy machine only those are to be taken for dead that are.
    "cluster": {"fail_timeout_ms": 1500, "progress_timeout_ms": 5000},
}


@contextlib.contextmanager
def real_lab() -> Iterator[Lab]:
    """The lab with an open cluster; gone in the end. Where labs cannot be, the test is skipped."""
    folder = Path(tempfile.mkdtemp(prefix="zc", dir="/tmp"))
    made = Lab(3, loss=0.01, options=OPTIONS, directory=folder / "lab")
    try:
        try:
            made.up()
        except LabUnsupported as error:
            pytest.skip(str(error))
        made.start_daemons()
        made.wait_open(90)
        yield made
    finally:
        made.down(grace_s=0.5)
        shutil.rmtree(folder, ignore_errors=True)


def path(lab: Lab, station: int) -> str:
    return str(lab.station(station).socket_path)
