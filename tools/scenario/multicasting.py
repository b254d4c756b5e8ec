"""Programs in groups that overlap, beside the others of a scenario: what ``[multicast]`` asks for, and the judgement of it.

One recording process for each station (``histories/multicaster.py``). Captures of all stations show which frames of links each
has sent, and so whether only stations that a message concerns have to do with it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from ...proto import wire
from ...proto.multicast.records import Data, Decide, Id, Relay, Report, Timed
from ..histories import multicasts
from ..histories.checker import Report as Found
from ..histories.checker import shown
from ..histories.history import read
from ..histories.multicaster import LEVELS, Task, named
from ..histories.programs import wait_until
from ..histories.recorder import Journal
from ..lab import Lab, LabError, Station
from ..pcap.frames.links import LinkRecord, records, sent_by
from ..pcap.frames.pdu import decode

READY_S: Final = 60.0
QUIET_S: Final = 30.0
ROUND_S: Final = 15.0
CAPTURE_TRIES: Final = 5
ROUNDS_MAX: Final = 3
"""On a machine short of time a station may miss its heartbeats without any fault: then the last message is sent again."""
END_S: Final = 20.0


class MulticastKeepers:
    """A recording process at each station, and captures."""

    def __init__(
        self, task: Task, seed: int, lab: Lab, stations: Mapping[int, tuple[Station, Path]], folder: Path, journal: Journal
    ) -> None:
        """stations: each with the socket of its daemon."""
        self.found: dict[str, Any] = {}
        """``report`` of the histories, ``genuine`` (violations), ``links`` (counts), or ``error``."""
        self.task = task
        self._seed = seed
        self._lab = lab
        self._stations = stations
        self._folder = folder
        self._journal = journal
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._said: dict[int, dict[str, Any]] = {}
        self._captures: dict[int, Path] = {}
        self._capturing: dict[int, Path] = {}
        """Those of the captures that have not been stopped."""

    def start(self) -> None:
        """All of them. Raises LabError."""
        self._journal.write({"k": "multicast", "groups": {name: list(there) for name, there in self.task.groups.items()}})
        self._captures = self._capturing = self._start_captures()
        for station, (at, socket) in self._stations.items():
            words = [str(station), str(self._seed * 100 + station), str(self._path(station)), self.task.text()]
            with (self._folder / f"multicaster-{station}.log").open("ab") as log:
                self._running[station] = process = subprocess.Popen(
                    [sys.executable, "-m", "zenjun.tools.histories.multicaster", *words],
                    env=at.environment({"ZENJUN_SOCKET": str(socket)}),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            threading.Thread(target=self._listen, args=(station, process.stdout), daemon=True).start()
        if not wait_until(lambda: len(self._said) == len(self._stations), READY_S):
            raise LabError("programs in groups that overlap do not start; see multicaster-*.log")

    def _start_captures(self) -> dict[int, Path]:
        """On a busy machine a capture may not answer in its time. Raises LabError when none of some tries succeeds."""
        for _ in range(CAPTURE_TRIES - 1):
            with contextlib.suppress(LabError):
                return self._lab.start_capture(self._folder / "captures")
        return self._lab.start_capture(self._folder / "captures")

    def begin(self) -> None:
        """They send from the start."""

    def judge(self) -> None:
        """Ask for the last messages, end all, and read what they have recorded."""
        try:
            self._finish()
        except LabError as error:
            self.found = {"error": str(error)}

    def _finish(self) -> None:
        self._tell("quiet")
        quiet = self._wait(lambda said: said.get("phase") == "quiet" and not said["under_way"], QUIET_S)
        self._journal.write({"k": "multicast", "quiet": quiet, "said": dict(self._said)})
        everybody = self.task.programs
        for number in range(1, ROUNDS_MAX + 1):
            self._tell(f"last {number}")

            def is_complete(said: Mapping[str, Any], number: int = number) -> bool:
                return said.get("number") == number and all(said["done"]) and min(said["heard"], default=everybody) >= everybody

            complete = self._wait(is_complete, ROUND_S)
            self._journal.write({"k": "multicast", "round": number, "complete": complete, "said": dict(self._said)})
            if complete:
                break
        self._tell("end")
        try:
            codes = {station: process.wait(END_S) for station, process in self._running.items()}
        except subprocess.TimeoutExpired:
            raise LabError(f"recorders of groups that overlap did not end within {END_S:.0f} s; see multicaster-*.log") from None
        if any(codes.values()):
            raise LabError(f"recorders of groups that overlap ended with {codes}; see multicaster-*.log")
        self._stop_captures()
        found = judge_histories(self._folder, self.task, len(self._stations))
        genuine, links = judge_frames(self._captures, self.task)
        self.found = {"report": found, "genuine": genuine, "links": links}

    def close(self) -> None:
        """End all of them."""
        with contextlib.suppress(LabError):
            self._stop_captures()
        for process in self._running.values():
            if process.poll() is None:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()

    def _stop_captures(self) -> None:
        captures, self._capturing = self._capturing, {}
        if captures:
            self._lab.stop_capture(captures)

    def _path(self, station: int) -> Path:
        return self._folder / f"multicast-{station}.jsonl"

    def _listen(self, station: int, stdout: IO[bytes] | None) -> None:
        for line in stdout or ():
            self._said[station] = json.loads(line)

    def _tell(self, phase: str) -> None:
        for process in self._running.values():
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(f"{phase}\n".encode())
                process.stdin.flush()

    def _wait(self, condition: Any, timeout_s: float) -> bool:
        """Whether what all of them say came true in time. Raises LabError when one has ended."""

        def settled() -> bool:
            for station, process in self._running.items():
                if (code := process.poll()) is not None:
                    raise LabError(f"the recorder of groups that overlap at station {station} ended with {code}")
            return all(condition(said) for said in list(self._said.values()))

        return wait_until(settled, timeout_s)


# ---- judgement


def judge_histories(folder: Path, task: Task, stations: int) -> Found:
    """What the programs' records in a run's folder say."""
    paths = [*folder.glob("multicast-*.jsonl"), folder / "runner.jsonl"]
    return multicasts.judge(read(paths, stations, stations // 2 + 1, (), LEVELS), task.groups)


def judge_frames(captures: Mapping[int, Path], task: Task) -> tuple[list[str], dict[str, int]]:
    """Whether DATA, REPORT, DECIDE and RELAY went between stations only that their message concerns: those of its groups and its
    originator. captures: by station. Returns violations, and counts of frames. Raises CaptureDamage and OSError."""
    sent: list[LinkRecord] = []
    concerned: dict[Id, frozenset[int]] = {}
    counts: Counter[str] = Counter()
    stations = {wire.group_id(named(name, order)): there for name, there in task.groups.items() for order in task.orders}
    kind_at = wire.HEADER.offset("kind")
    group_mac = bytes.fromhex(wire.GROUP_MAC.replace(":", ""))
    for station, path in captures.items():
        for mac, pdu in sent_by(station, path):
            counts["frames"] += 1
            counts["to_group_address"] += mac == group_mac
            if pdu[kind_at] != wire.Kind.DATA or (plain := decode(pdu)) is None:
                continue
            for one in records(plain):
                data = one.record.data if isinstance(one.record, Relay) else one.record
                if isinstance(data, Data) and set(data.groups) <= stations.keys():
                    where = {station for group in data.groups for station in stations[group]}
                    concerned[data.id] = frozenset({*where, data.id.origin})
                sent.append(one)
    out: list[str] = []
    for one in sent:
        record = one.record
        ids = [record.data.id] if isinstance(record, Relay) else [record.id] if isinstance(record, Data) else []
        ids += record.ids() if isinstance(record, Timed) else []
        counts["records"] += isinstance(record, Data | Report | Decide | Relay)
        for each in ids:
            there = concerned.get(each)
            if there is not None and not {one.source, one.target} <= there:
                out.append(f"{one} went from station {one.source} to {one.target}; it concerns {sorted(there)}")
    return shown(out), dict(counts)
