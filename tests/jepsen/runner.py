"""One run: a lab, its daemons and recorders, the plan carried out, everything healed, everybody heard, histories judged.

The runner's own file holds marks: ``run`` (seed, stations, seconds), ``fault`` (``what``, ``does``: begin or end), ``died``
(a daemon that ended by itself), ``healed``, ``converged`` (``took_ms`` since healed), ``round`` (``number``, ``complete``).
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from zenjun.tools.lab import Lab, LabError

from . import history as histories
from .checker import Report, judge
from .history import SLOTS
from .plan import Fault, draw
from .recorder import Journal

ROOT: Final = Path(__file__).resolve().parents[2]
OPEN_S: Final = 30.0
READY_S: Final = 30.0
CONVERGE_S: Final = 30.0
"""From the last fault until all hear all; a blocked station gives up after 2 s and tries to get in a few times a second."""
ROUND_S: Final = 8.0
ROUNDS_MAX: Final = 3
"""On a machine short of time a station may miss its heartbeats without any fault: then the last word is said again."""
END_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is left of a run."""

    report: Report
    folder: Path
    faults: list[Fault]
    converged_ms: int | None
    rounds: int

    @property
    def failed(self) -> bool:
        return bool(self.report.violations)


class Recording:
    """A recorder at work, as seen from the runner: the last thing it said, and a pipe to tell it the phase."""

    def __init__(self, lab: Lab, station: int, seed: int, folder: Path) -> None:
        self.station = station
        self.path = folder / f"station-{station}.jsonl"
        self._errors = (folder / f"recorder-{station}.log").open("ab")
        argv = [sys.executable, "-m", "tests.jepsen.recorder", str(station), str(seed), str(self.path)]
        self.process: subprocess.Popen[bytes] = lab.station(station).spawn(
            argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        self.said: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True)
        self._thread.start()

    def _listen(self, stdout: IO[bytes]) -> None:
        for line in stdout:
            self.said = json.loads(line)

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
            self._thread.join(2.0)
            for pipe in (self.process.stdin, self.process.stdout, self._errors):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()


class Nemesis:
    """Carries faults out and undoes them; knows at any time what must be true of the network and the daemons."""

    def __init__(self, lab: Lab, start: Callable[[int], None], journal: Journal, say: Callable[[str], None]) -> None:
        self._lab = lab
        self._start_daemon = start
        self._journal = journal
        self._say = say
        self._active: list[Fault] = []
        self._down: set[int] = set()
        """Stations whose daemon we have ended and not started again."""

    def begin(self, fault: Fault) -> None:
        """The fault strikes. Raises LabError."""
        self._mark(fault, "begin")
        self._active.append(fault)
        if fault.kind in ("kill", "massacre", "leave"):
            number = signal.SIGTERM if fault.kind == "leave" else signal.SIGKILL
            for station in fault.stations:
                if self.still_there(station):
                    self._down.add(station)
                    self._lab.station(station).signal(number)
        elif fault.kind == "pause":
            for station in fault.stations:
                if self.still_there(station):
                    self._lab.station(station).signal(signal.SIGSTOP)
        elif fault.kind == "cable":
            for station in fault.stations:
                self._lab.station(station).cable_out()
        else:
            self._network()

    def end(self, fault: Fault) -> None:
        """The fault is over: what it broke is mended, as far as no other fault keeps it broken. Raises LabError."""
        self._mark(fault, "end")
        self._active.remove(fault)
        if fault.kind in ("kill", "massacre", "leave"):
            for station in fault.stations:
                self._start(station)
        elif fault.kind == "pause":
            for station in fault.stations:
                if self.still_there(station):
                    self._lab.station(station).signal(signal.SIGCONT)
        elif fault.kind == "cable":
            for station in fault.stations:
                if not any(f.kind == "cable" and station in f.stations for f in self._active):
                    self._lab.station(station).cable_in()
        else:
            self._network()

    def still_there(self, station: int) -> bool:
        """Whether the daemon that should be running there is; one that has ended by itself is marked, and started again."""
        if station in self._down:
            return False
        daemon = self._lab.station(station).daemon
        code = daemon.poll() if daemon is not None else None
        if code is None:
            return True
        tail = self._lab.station(station).log_path.read_text(errors="replace").splitlines()[-3:]
        self._journal.write({"k": "died", "station": station, "code": code, "log": " | ".join(tail)})
        self._down.add(station)
        self._start(station)
        return True

    def _start(self, station: int) -> None:
        if station in self._down:
            daemon = self._lab.station(station).daemon
            assert daemon is not None
            daemon.wait(15.0)  # SIGTERM takes its time: it drains, and says goodbye
            self._start_daemon(station)
            self._down.discard(station)

    def _network(self) -> None:
        """Set all cuts and losses to what the active faults say."""
        pairs: set[tuple[int, int]] = set()
        loss = dict.fromkeys(self._lab.stations, 0.0)
        for fault in self._active:
            if fault.kind == "partition":
                inside = set(fault.stations)
                pairs |= {(a, b) for a in self._lab.stations for b in self._lab.stations if (a in inside) != (b in inside)}
            elif fault.kind == "oneway":
                pairs |= {(a, b) for a in fault.stations for b in fault.others}
            elif fault.kind == "loss":
                for station in fault.stations:
                    loss[station] = max(loss[station], fault.fraction)
        self._lab.request("cuts", how="set", pairs=sorted(pairs))
        for station, fraction in loss.items():
            self._lab.set_loss(fraction, station)

    def _mark(self, fault: Fault, does: str) -> None:
        self._journal.write({"k": "fault", "what": str(fault), "number": fault.number, "does": does})
        if does == "begin":
            self._say(str(fault))


def carry_out(nemesis: Nemesis, faults: list[Fault], began: float) -> None:
    """Begin and end all faults at their times; what is late is done at once. Raises LabError."""
    steps = [(fault.begin_ms, 0, fault) for fault in faults] + [(fault.end_ms, 1, fault) for fault in faults]
    for at_ms, ends, fault in sorted(steps, key=lambda step: (step[0], step[1], step[2].number)):
        # The plan's times are the stimulus; nothing is waited for here.
        time.sleep(max(0.0, began + at_ms / 1000 - time.monotonic()))
        if ends:
            nemesis.end(fault)
        else:
            nemesis.begin(fault)


def _await(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextlib.contextmanager
def _recorders(lab: Lab, seed: int, folder: Path) -> Iterator[list[Recording]]:
    recordings: list[Recording] = []
    try:
        for station in lab.stations:
            recordings.append(Recording(lab, station, seed * 100 + station, folder))
        yield recordings
    finally:
        for recording in recordings:
            recording.end(0.0 if recording.process.poll() is None else END_S)


def run(
    *,
    seed: int,
    seconds: float,
    folder: Path,
    stations: int = 5,
    faults: list[Fault] | None = None,
    defect: str | None = None,
    converge_s: float = CONVERGE_S,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Run it all; everything that is written stays in ``folder``.

    seed, seconds: of the plan, and of what the recorders send. faults: another plan. defect: the daemons are broken in this way
    (``broken.py``), which the checker must find out. converge_s: allowed until all hear all. Raises LabError when there can be
    no lab.
    """
    folder.mkdir(parents=True, exist_ok=True)
    faults = draw(seed, seconds, stations) if faults is None else faults
    (folder / "plan.txt").write_text("".join(f"{fault}\n" for fault in faults))
    journal = Journal(folder / "runner.jsonl")
    converged_ms: int | None = None
    number = 0
    try:
        journal.write({"k": "run", "seed": seed, "stations": stations, "seconds": seconds})
        with Lab(stations) as lab:

            def start(station: int) -> None:
                config = str(lab.station(station).write_config())
                argv = [sys.executable, "-m", "tests.jepsen.broken", defect, "--config", config] if defect else None
                lab.station(station).start_daemon(argv=argv)

            try:
                for station in lab.stations:
                    start(station)
                lab.wait_open(OPEN_S)
                with _recorders(lab, seed, folder) as recorders:
                    _awake(recorders)
                    nemesis = Nemesis(lab, start, journal, say)
                    carry_out(nemesis, faults, time.monotonic())
                    for station in lab.stations:
                        nemesis.still_there(station)
                    journal.write({"k": "healed"})
                    converged_ms = _converge(recorders, stations * len(SLOTS), converge_s, journal)
                    if converged_ms is not None:
                        number = _last_words(recorders, stations * len(SLOTS), journal)
                    for station in lab.stations:
                        nemesis.still_there(station)
                    _dismiss(recorders)
            finally:
                _keep(lab, folder)
    finally:
        journal.close()
    history = histories.read([*folder.glob("station-*.jsonl"), folder / "runner.jsonl"], stations, stations // 2 + 1)
    report = judge(history)
    (folder / "report.txt").write_text(report.text + "\n")
    return Outcome(report, folder, faults, converged_ms, number)


def _awake(recorders: list[Recording]) -> None:
    if not _await(lambda: all(r.said for r in recorders), READY_S):
        raise LabError(f"recorders of stations {[r.station for r in recorders if not r.said]} do not start")


def _phase(recorders: list[Recording], phase: str) -> None:
    for recording in recorders:
        recording.tell(phase)


def _converge(recorders: list[Recording], everybody: int, timeout_s: float, journal: Journal) -> int | None:
    """All programs hear all programs; returns after how many milliseconds, None if not in time."""
    began = time.monotonic()
    _phase(recorders, "final")

    def all_hear_all() -> bool:
        return all(r.said.get("phase") == "final" and min(r.said["heard"]) >= everybody for r in recorders)

    if not _await(all_hear_all, timeout_s):
        return None
    took = int((time.monotonic() - began) * 1000)
    journal.write({"k": "converged", "took_ms": took})
    _phase(recorders, "settle")
    _await(lambda: all(r.said.get("phase") == "settle" and not r.said["under_way"] for r in recorders), ROUND_S)
    return took


def _last_words(recorders: list[Recording], everybody: int, journal: Journal) -> int:
    """One message of everybody, acknowledged, that everybody gets; returns how many rounds it took."""
    for number in range(1, ROUNDS_MAX + 1):
        _phase(recorders, f"last {number}")

        def complete(wanted: int = number) -> bool:
            said = [r.said for r in recorders]
            return all(s.get("number") == wanted and all(s["done"]) and min(s["heard"]) >= everybody for s in said)

        done = _await(complete, ROUND_S)
        journal.write({"k": "round", "number": number, "complete": done, "said": [r.said for r in recorders]})
        if done:
            return number
    return ROUNDS_MAX


def _dismiss(recorders: list[Recording]) -> None:
    """Let them close their connections and end; one that failed has a history that cannot be trusted."""
    _phase(recorders, "end")
    codes = {recording.station: recording.end(END_S) for recording in recorders}
    if any(codes.values()):
        raise LabError(f"recorders ended with {codes}; see recorder-*.log")


def _keep(lab: Lab, folder: Path) -> None:
    """The daemons' logs, for whoever has to find out."""
    for station in lab.stations.values():
        with contextlib.suppress(OSError):
            (folder / f"zenjund-{station.id}.log").write_bytes(station.log_path.read_bytes())
        with contextlib.suppress(LabError):
            (folder / f"status-{station.id}.json").write_text(json.dumps(station.status(1.0), indent=1))
