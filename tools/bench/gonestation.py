"""How soon the address of a program is gone when its whole station dies, as a program at another station sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Final

from ...daemon.client.errors import ClientError
from ...daemon.config import load
from ...daemon.names import connect_directory_sync
from .cell import BenchError, Json
from .names_systems import START_S, OurNames

NAME: Final = "benched.dead"


def measure_gone_station(ours: OurNames) -> Json:
    """The last station is killed, and stays so. ``fail_timeout_us`` is how long it has to be silent for being removed. Raises
    BenchError, ClientError."""
    lab = ours.lab
    first, last = min(lab.stations), max(lab.stations)
    station = lab.station(last)
    with (
        connect_directory_sync(ours.target(first), timeout=START_S, keep=False) as watching,
        connect_directory_sync(ours.target(last), timeout=START_S, keep=False) as holding,
    ):
        holding.register(NAME, "tcp://10.0.0.7:5432")
        changes = watching.watch("benched.", timeout=START_S)
        if not any(change.entry is not None and change.name == NAME for change in changes):
            raise BenchError("the address never came")
        began = time.monotonic()
        station.signal(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(ours.pids.pop(last), signal.SIGKILL)
        for change in changes:
            if change.name == NAME and change.entry is None:
                break
        took = time.monotonic() - began
        with contextlib.suppress(ClientError, OSError):
            holding.close()
    timeout_ms = load(station.config_path).cluster.fail_timeout_ms
    figures = {"count": 1, "per_s": round(1 / took, 1), "p50_us": round(took * 1e6, 1), "fail_timeout_us": timeout_ms * 1000.0}
    return {**figures, "load": os.getloadavg()[0], "ok": True, "problems": []}
