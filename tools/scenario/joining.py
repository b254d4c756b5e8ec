"""A program that joins others with a large state while messages flow: what ``[state]`` in a scenario asks for."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..histories.programs import wait_until
from ..lab import LabError, Station
from .model import Joining

READY_S: Final = 120.0
"""Until the programs that are there from the beginning have made their state."""
END_S: Final = 10.0


class StateKeepers:
    """One program per station; that of the joiner is started in the middle."""

    def __init__(self, joining: Joining, stations: Mapping[int, tuple[Station, Path]], folder: Path) -> None:
        self.found: dict[str, Any] = {}
        """``gap_ms`` of those that gave the state, ``joined_ms`` of the joiner, ``equal``, ``error``."""
        self._joining = joining
        self._stations = stations
        self._folder = folder
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """Those that are there from the beginning. Raises LabError."""
        others = [station for station in self._stations if station != self._joining.joiner]
        for station in others:
            self._spawn(station, self._joining.size, self._joining.rate / len(others))
        for station in others:
            self._ask(station, "", READY_S)

    def begin(self) -> None:
        """Start the joiner when it is time."""
        self._timer = threading.Timer(self._joining.at_ms / 1000, self._spawn, (self._joining.joiner, 0, 0.0))
        self._timer.start()

    def judge(self) -> None:
        """Wait for the joiner's state, and compare all states at one place."""
        joining = self._joining
        if self._timer is not None:
            self._timer.join()
        try:
            self._ask(joining.joiner, "", joining.within_ms / 1000)
            for process in self._running.values():
                self._tell(process, "quiet")
            facts: dict[int, dict[str, Any]] = {}

            def settled() -> bool:
                facts.update({station: self._ask(station, "facts", END_S * 6) for station in self._running})
                return len({f["count"] for f in facts.values()}) == 1

            wait_until(settled, END_S * 6)
            donors = [f for station, f in facts.items() if station != joining.joiner]
            self.found = {
                "gap_ms": max(f["gap_ms"] for f in donors),
                "joined_ms": facts[joining.joiner]["joined_ms"],
                "equal": len({(f["count"], f["digest"]) for f in facts.values()}) == 1,
                "messages": donors[0]["count"],
            }
        except LabError as error:
            self.found = {"error": str(error)}

    def close(self) -> None:
        """End all of them."""
        if self._timer is not None:
            self._timer.cancel()
        for process in self._running.values():
            self._tell(process, "end")
        for process in self._running.values():
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _spawn(self, station: int, size: int, rate: float) -> None:
        at, socket = self._stations[station]
        argv = [sys.executable, "-m", "zenjun.tools.histories.statekeeper", "--size", str(size), "--rate", str(rate)]
        with (self._folder / f"statekeeper-{station}.log").open("ab") as log:
            self._running[station] = subprocess.Popen(
                argv,
                env=at.environment({"ZENJUN_SOCKET": str(socket)}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    @staticmethod
    def _tell(process: subprocess.Popen[bytes], word: str) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(f"{word}\n".encode())
            process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # it has ended; what it says next is missed and reported

    def _ask(self, station: int, word: str, timeout_s: float) -> dict[str, Any]:
        """Its next line. Raises LabError: none in time."""
        process = self._running[station]
        if word:
            self._tell(process, word)
        assert process.stdout is not None
        said: list[bytes] = []
        reading = threading.Thread(target=lambda: said.append(process.stdout.readline()), daemon=True)  # type: ignore[union-attr]
        began = time.monotonic()
        reading.start()
        reading.join(timeout_s)
        if not said or not said[0]:
            raise LabError(f"the state keeper of station {station} said nothing in {time.monotonic() - began:.1f} s")
        found: dict[str, Any] = json.loads(said[0])
        return found
