"""A name that a schedule switches while one station's clock is wrong: what ``[names]`` in a scenario asks for."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ...daemon.client.errors import ClientError
from ...daemon.names import calls, connect_directory_sync
from ..lab import LabError, Station, files
from .model import Switching

NAME: Final = "service"
OLD: Final = "tcp://10.0.0.7:5432"
NEW: Final = "tcp://10.0.0.8:5432"
READY_S: Final = 90.0
"""Until all stations have an active directory."""
LOOK_S: Final = 0.02
"""Between two look-ups at a station."""
AFTER_S: Final = 1.0
"""How long all stations are looked at after the last one has switched."""
END_S: Final = 10.0


@dataclass(slots=True)
class Seen:
    """What one station answered: the wall clock's time of the first answer with the new address, and how often the old one came
    back."""

    first: float = 0.0
    back: int = 0
    failed: str = ""
    done: threading.Event = field(default_factory=threading.Event)


class NameKeepers:
    """A directory process for each station, one of them with a wrong clock, and a thread that looks the name up at each."""

    def __init__(self, switching: Switching, stations: Mapping[int, tuple[Station, Path]], folder: Path) -> None:
        self.found: dict[str, Any] = {}
        """``early_ms`` and ``late_ms`` of the stations furthest from the instant, ``back``; ``named``: stations that name the
        wrong clock; ``error``."""
        self._switching = switching
        self._stations = stations
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        self._instant = 0
        self._seen = {station: Seen() for station in stations}
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()

    def _socket(self, station: int) -> str:
        return str(self._stations[station][1].with_name("directory.sock"))

    def start(self) -> None:
        """All processes are active, and the name has its addresses. Raises LabError."""
        for station in self._stations:
            self._spawn(station)
        deadline = time.monotonic() + READY_S
        waiting = dict.fromkeys(self._stations, "no answer yet")
        while waiting:
            for station in list(waiting):
                try:
                    with connect_directory_sync(self._socket(station), timeout=5) as d:
                        status = d.status()
                    waiting[station] = str(status["step"])
                    if status["active"] and len(status["holders"]) == len(self._stations):
                        del waiting[station]
                except (ClientError, OSError) as error:
                    waiting[station] = str(error)
            if waiting and time.monotonic() > deadline:
                raise LabError(f"no active directory at stations {waiting} in {READY_S:g} s")
            time.sleep(0.1)
        with connect_directory_sync(self._socket(self._switching.wrong), timeout=READY_S) as d:
            d.set(NAME, [OLD, f"{NEW}@1"], wait="everywhere")

    def begin(self) -> None:
        """Set the schedule, at the station whose clock is wrong, and look at all of them. Raises LabError."""
        self._instant = int(time.time() + self._switching.at_ms / 1000) + 1
        when = datetime.fromtimestamp(self._instant, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for station in self._stations:
            thread = threading.Thread(target=self._look, args=(station,))
            thread.start()
            self._threads.append(thread)
        try:
            with connect_directory_sync(self._socket(self._switching.wrong), timeout=READY_S) as d:
                d.update(calls.schedule_of(NAME, [(when, [NEW])]), wait="memory")
        except ClientError as error:
            raise LabError(f"the schedule could not be set: {error}") from error

    def judge(self) -> None:
        """Wait until all stations have switched, or the time for it is over."""
        deadline = self._instant + self._switching.within_ms / 1000
        for seen in self._seen.values():
            seen.done.wait(max(0.0, deadline - time.time()))
        time.sleep(AFTER_S)
        named = [station for station in self._stations if station != self._switching.wrong and self._names_wrong(station)]
        self._end_looking()
        failed = {station: seen.failed or "never switched" for station, seen in self._seen.items() if not seen.first}
        if failed:
            self.found = {"error": ", ".join(f"station {station}: {text}" for station, text in failed.items())}
            return
        apart = [1000 * (seen.first - self._instant) for seen in self._seen.values()]
        self.found = {
            "early_ms": max(0, round(-min(apart))),
            "late_ms": max(0, round(max(apart))),
            "back": sum(seen.back for seen in self._seen.values()),
            "named": named,
        }

    def close(self) -> None:
        """End all of them."""
        self._end_looking()
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _end_looking(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _names_wrong(self, station: int) -> bool:
        with contextlib.suppress(ClientError, OSError), connect_directory_sync(self._socket(station), timeout=END_S) as d:
            return self._switching.wrong in d.status()["wrong_clocks"]
        return False

    def _look(self, station: int) -> None:
        """Look the name up again and again; a connection that breaks is made anew."""
        seen = self._seen[station]
        while not self._stop.is_set():
            try:
                with connect_directory_sync(self._socket(station), timeout=5, keep=False) as d:
                    while not self._stop.is_set():
                        new = d.lookup(NAME).addresses == (NEW,)
                        if new and not seen.first:
                            seen.first = time.time()
                            seen.done.set()
                        seen.back += bool(seen.first) and not new
                        self._stop.wait(LOOK_S)
            except (ClientError, OSError) as error:
                seen.failed = str(error)
                self._stop.wait(LOOK_S)

    def _spawn(self, station: int) -> None:
        at, socket = self._stations[station]
        folder = self._folder / f"names-{station}"
        folder.mkdir(parents=True, exist_ok=True)
        tables = {
            "cluster": {"name": "scenario", "stations": len(self._stations)},
            "station": {"id": station, "interface": "eth0", "socket": str(socket), "state_dir": str(folder)},
        }
        config = folder / "zenjund.toml"
        config.write_text(files.to_toml(tables))
        wrong = station == self._switching.wrong
        module = ["zenjun.tools.scenario.wrongclock", str(self._switching.clock_s)] if wrong else ["zenjun.daemon.directory"]
        argv = [sys.executable, "-m", *module, "--config", str(config)]
        with (self._folder / f"directory-{station}.log").open("ab") as log:
            self._running.append(subprocess.Popen(argv, env=at.environment(), stdout=log, stderr=log, start_new_session=True))
