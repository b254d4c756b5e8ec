"""Wrong clocks for real daemons: a preloaded library (``clock_shim.c``) and what tells it how wrong they are.

Wall clocks jump, every few seconds one, by up to two days, back or forth, as if they were set by hand or by a bad time server;
each daemon's monotonic clock runs up to 0.05 % too fast or too slow.
"""

from __future__ import annotations

import random
import struct
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final

from zenjun.tools.cmodules import ROOT

SHIM: Final = ROOT / "tests" / "jepsen" / "clock_shim.c"
FIELDS: Final = struct.Struct("=qq")
"""Added to the wall clock, ns; the monotonic clock is too fast, ppm."""
JUMPS_S: Final = (1, 60, 3_600, 172_800)
PPM_MAX: Final = 500
PAUSE_S: Final = (0.5, 5.0)
"""Between two jumps of anybody's clock."""


class Clocks:
    """While it is entered a thread sets the stations' clocks wrong, by the seed."""

    def __init__(self, folder: Path, seed: int, stations: Iterable[int]) -> None:
        """folder: for the library and one file per station. Raises OSError, CalledProcessError."""
        self._rng = random.Random(f"clocks {seed}")
        self._folder = folder
        self._stations = list(stations)
        self._library = folder / "clock_shim.so"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clocks", daemon=True)
        self.jumps = 0
        """How often a wall clock has been set."""
        argv = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(self._library), str(SHIM)]
        subprocess.run(argv, check=True, timeout=60)
        for station in self._stations:
            self._file(station).write_bytes(FIELDS.pack(0, self._rng.randint(-PPM_MAX, PPM_MAX)))

    def prefix(self, station: int) -> list[str]:
        """Before the command line of a station's daemon."""
        return ["env", f"LD_PRELOAD={self._library}", f"ZJ_CLOCK_FILE={self._file(station)}"]

    def __enter__(self) -> Clocks:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join(10)

    def _file(self, station: int) -> Path:
        return self._folder / f"clock-{station}"

    def _run(self) -> None:
        while not self._over.wait(self._rng.uniform(*PAUSE_S)):
            wrong_s = self._rng.choice((-1, 1)) * self._rng.uniform(0, self._rng.choice(JUMPS_S))
            with self._file(self._rng.choice(self._stations)).open("r+b") as file:  # in place: it is mapped
                file.write(FIELDS.pack(int(wrong_s * 1e9), self._rng.randint(-PPM_MAX, PPM_MAX)))
            self.jumps += 1
