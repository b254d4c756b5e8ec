"""The recorders of a run from the runner's side: it starts them, sends them the phases, and waits for them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from ..lab import LabError, Station
from .history import SLOTS
from .recorder import Journal, Load

READY_S: Final = 30.0
ROUND_S: Final = 8.0
ROUNDS_MAX: Final = 3
"""On a machine short of time a station may miss its heartbeats without any fault: then the last message is sent again."""
END_S: Final = 20.0

News = Callable[[int, Mapping[str, Any]], None]
"""Called with a station and the event that it got of the cluster; from a thread of the recording."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a recorder is to do."""

    seed: int
    load: Load = Load()  # noqa: RUF009 (frozen)
    groups: int = 1
    levels: tuple[str, ...] = SLOTS
    """Of delivery: a program for each, in each group."""


class Recording:
    """A running recorder: its last report, and a pipe for the phases."""

    def __init__(self, station: Station, socket: Path, order: Order, folder: Path, news: News) -> None:
        """socket: of the station's daemon, also of one that is started later."""
        self.station = station.id
        self.path = folder / f"station-{station.id}.jsonl"
        self.levels = order.levels
        self._news = news
        self._errors = (folder / f"recorder-{station.id}.log").open("ab")
        words = [str(station.id), str(order.seed), str(self.path), "--load", order.load.text(), "--groups", str(order.groups)]
        words += ["--levels", ",".join(order.levels)]
        # Its socket is a file, so it needs no namespace; by its environment it is found when the lab goes down.
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-m", "zenjun.tools.histories.recorder", *words],
            env=station.environment({"ZENJUN_SOCKET": str(socket)}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C at the terminal is for the caller to handle
        )
        self.said: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True)
        self._thread.start()

    def _listen(self, stdout: IO[bytes]) -> None:
        for line in stdout:
            said = json.loads(line)
            if "news" in said:
                self._news(self.station, said["news"])
            else:
                self.said = said

    def last_words(self) -> str:
        """The last line of its log."""
        lines = Path(self._errors.name).read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it wrote nothing"

    def tell(self, phase: str) -> None:
        """Begin a phase. A recorder that is gone is found out by its exit code."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{phase}\n".encode())
            self.process.stdin.flush()

    def end(self, timeout_s: float) -> int:
        """Wait for its end; it is killed if it takes longer. Returns the exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(5.0)
        finally:
            if self.process.poll() is None:  # interrupted while waiting
                self.process.kill()
            self._thread.join(2.0)
            for pipe in (self.process.stdin, self.process.stdout, self._errors):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()


class Programs:
    """All recorders of a run."""

    def __init__(self, recordings: Sequence[Recording], journal: Journal) -> None:
        self._all = {recording.station: recording for recording in recordings}
        self._journal = journal

    def __getitem__(self, station: int) -> Recording:
        return self._all[station]

    def _chosen(self, stations: Collection[int]) -> list[Recording]:
        return [recording for station, recording in self._all.items() if station in stations]

    def tell(self, phase: str) -> None:
        """Begin a phase everywhere."""
        for recording in self._all.values():
            recording.tell(phase)

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Whether the condition came true in time. Raises LabError when a recorder has ended, without which it cannot."""

        def settled() -> bool:
            for station, recording in self._all.items():
                if (code := recording.process.poll()) is not None:
                    raise LabError(f"the recorder of station {station} ended with {code}: {recording.last_words()}")
            return condition()

        return wait_until(settled, timeout_s)

    def awake(self) -> None:
        """Wait until all have begun. Raises LabError."""
        if not self._wait(lambda: all(r.said for r in self._all.values()), READY_S):
            raise LabError(f"recorders of stations {[s for s, r in self._all.items() if not r.said]} do not start")

    def converge(self, stations: Collection[int], timeout_s: float) -> int | None:
        """All programs at these stations hear all others there; returns after how many milliseconds, None if not in time."""
        chosen = self._chosen(stations)
        everybody = len(stations) * len(chosen[0].levels)
        began = time.monotonic()
        self.tell("final")

        def all_hear_all() -> bool:
            return all(r.said.get("phase") == "final" and min(r.said["heard"]) >= everybody for r in chosen)

        if not self._wait(all_hear_all, timeout_s):
            return None
        took = int((time.monotonic() - began) * 1000)
        self._journal.write({"k": "converged", "took_ms": took})
        self.tell("settle")
        self._wait(lambda: all(r.said.get("phase") == "settle" and not r.said["under_way"] for r in chosen), ROUND_S)
        return took

    def last_words(self, stations: Collection[int]) -> int:
        """One message of every program, acknowledged, which every program gets; returns the number of rounds that it took."""
        chosen = self._chosen(stations)
        everybody = len(stations) * len(chosen[0].levels)
        for number in range(1, ROUNDS_MAX + 1):
            self.tell(f"last {number}")

            def complete(wanted: int = number) -> bool:
                said = [r.said for r in chosen]
                return all(s.get("number") == wanted and all(s["done"]) and min(s["heard"]) >= everybody for s in said)

            done = self._wait(complete, ROUND_S)
            self._journal.write({"k": "round", "number": number, "complete": done, "said": [r.said for r in chosen]})
            if done:
                return number
        return ROUNDS_MAX

    def dismiss(self) -> None:
        """Let them close their connections and end. One that failed has a history that cannot be trusted: raises LabError."""
        self.tell("end")
        codes = {station: recording.end(END_S) for station, recording in self._all.items()}
        if any(codes.values()):
            raise LabError(f"recorders ended with {codes}; see recorder-*.log")


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextlib.contextmanager
def recording(
    stations: Mapping[int, tuple[Station, Path]], orders: Mapping[int, Order], folder: Path, journal: Journal, news: News
) -> Iterator[Programs]:
    """Recorders at all stations, each with the socket of its daemon; none is left after the block."""
    recordings: list[Recording] = []
    finished = False
    try:
        for number, (station, socket) in stations.items():
            recordings.append(Recording(station, socket, orders[number], folder, news))
        yield Programs(recordings, journal)
        finished = True
    finally:
        for each in recordings:
            each.end(END_S if finished and each.process.poll() is None else 0.0)
