"""Captures of real labs, made once for a run of the tests."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
import time
from pathlib import Path
from typing import Literal

import pytest
from zenjun.daemon.client import connect_sync
from zenjun.tools.lab import Lab, LabUnsupported

CALM = {"cluster": {"fail_timeout_ms": 4000, "progress_timeout_ms": 10_000}}
"""Options of the daemons: nobody is to be removed because the machine is busy."""
LONG = 5000
"""Bytes of a message that has to be fragmented."""


@functools.cache
def captures(medium: str = "switched", stations: int = 3, loss: float = 0.05, messages: int = 40) -> dict[int, Path]:
    """pcapng files by station of a lab in which every station has sent so many messages ``NUMBER from STATION``, station 1
    then one of LONG bytes; on a switched medium the last station went away after that and came back. Skips where no lab can
    be made."""
    # Not named like the folders of our commands: those that nobody holds are removed by the next command.
    folder = Path(tempfile.mkdtemp(prefix="zenjun-recorded-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    level: Literal["ordered", "ack"] = "ack" if medium == "bus" else "ordered"
    try:
        with Lab(stations, medium=medium, options=CALM) as lab, lab.capture(folder) as files:
            lab.start_daemons()
            lab.wait_open(60)
            lab.set_loss(loss)
            opened = [connect_sync(str(s.socket_path), name="recorded", timeout=30, wait=30) for s in lab.stations.values()]
            groups = [c.join("recorded", level) for c in opened]
            for k in range(messages):
                for number, group in enumerate(groups, 1):
                    group.send(b"%d from %d" % (k, number))
            groups[0].send(b"L" * LONG, level, timeout=30)
            lab.set_loss(0)
            if medium != "bus":
                opened[-1].close()
                lab.station(stations).stop_daemon(30)
                lab.wait_open(60, range(1, stations))
                lab.station(stations).start_daemon()
                lab.wait_open(60)
            time.sleep(1.0)  # a heartbeat of everybody, in the capture
            for c in opened[: -1 if medium != "bus" else None]:
                c.close()
    except LabUnsupported as error:
        if "cannot be made here" in str(error):
            pytest.skip(str(error))
        raise
    return files
