"""Waiting until a lab's cluster is open: for the time that this number of stations may need, at little cost to them; and a reason
for each if it does not open."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from .errors import LabError, LabNotFound, LabTimeout

OPEN_S: Final = 30.0
PLENTY: Final = 16
"""Up to this number of stations a lab opens within ``OPEN_S`` on two processors, with much to spare."""
MORE_S: Final = 1.25
"""For each station beyond."""
PAUSE_S: Final = 0.01
ALIVE_S: Final = 0.5
"""All daemons are looked at for having ended this often."""
LAST_WORDS_S: Final = 10.0
"""The end of the time, at most a tenth of it, is for asking all stations what they wait for: this time for 64."""
LEAST_S: Final = 5.0
"""However long a lab took to be made, its daemons get so much to open."""


class Daemon(Protocol):
    def poll(self) -> int | None: ...


class Asked(Protocol):
    """What is needed of a station (``lab.Station``)."""

    id: int
    socket_path: Path
    log_path: Path

    @property
    def daemon(self) -> Daemon | None: ...

    def status(self, timeout_s: float = 1.0) -> dict[str, Any]: ...


def open_limit_s(stations: int) -> float:
    """Time to wait for this number of stations (1..64) to open: 30 s up to 16 stations, 90 s for 64."""
    return OPEN_S + MORE_S * max(0, stations - PLENTY)


def left_s(stations: int, began_s: float) -> float:
    """What is left of that for a lab that has been begun then (monotonic): network and daemons take their part of it."""
    return max(LEAST_S, began_s + open_limit_s(stations) - time.monotonic())


def wait_open(chosen: Sequence[Asked], timeout_s: float) -> int:
    """Wait until the daemons of all these are in the same instance; returns its number.

    Asks one after the other, each again until it is in one, and all of them only then: every answer takes processor time that
    those who open need. Raises LabTimeout with a line for each station by the end of the time, LabError at once when a daemon
    has ended.
    """
    end = time.monotonic() + timeout_s
    deadline = end - min(LAST_WORDS_S * len(chosen) / 64, timeout_s / 10)
    looked_s = 0.0
    found: dict[int, int] = {}
    while True:
        if time.monotonic() - looked_s >= ALIVE_S:
            looked_s = time.monotonic()
            _all_run(chosen)
        missing = [station for station in chosen if not found.get(station.id)]
        for station in missing:
            found[station.id] = _instance(station, max(0.05, min(1.0, deadline - time.monotonic())))
            if not found[station.id]:
                break
        else:
            if len(set(found.values())) == 1:
                return next(iter(found.values()))
            latest = max(found.values())
            found = {k: instance for k, instance in found.items() if instance == latest}  # the others will get there
        if time.monotonic() > deadline:
            raise LabTimeout(f"the cluster is not open after {timeout_s:.3g} s:\n" + "\n".join(_last_words(chosen, end)))
        time.sleep(PAUSE_S if missing else 0)


def _all_run(chosen: Iterable[Asked]) -> None:
    for station in chosen:
        daemon = station.daemon
        if daemon is None:
            raise LabNotFound(f"no daemon was started at station {station.id}")
        if (code := daemon.poll()) is not None:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise LabError(f"the daemon of station {station.id} ended with {how}: {tail(station.log_path)}")


def _instance(station: Asked, timeout_s: float) -> int:
    """Number of the instance it is in, 0: none, or not reported."""
    try:
        said = station.status(timeout_s)
    except LabError:
        return 0
    # A station in none reports the number of its last one.
    return int(said.get("instance", 0)) if said.get("state", "open") == "open" else 0


def _last_words(chosen: Iterable[Asked], deadline: float) -> list[str]:
    """One line for each station."""
    lines = []
    for station in chosen:
        try:
            words = waits_for(station.status(max(0.05, min(1.0, deadline - time.monotonic()))))
        except LabError as error:
            words = str(error).removeprefix(f"{station.socket_path}: ") if station.socket_path.exists() else "still starting"
        lines.append(f"station {station.id}: {words}")
    return lines


def waits_for(said: dict[str, Any]) -> str:
    """What a station waits for, in one line, from its status (docs/status.md)."""
    members = [k for k, _ in said.get("members", ())]
    reasons: dict[str, list[int]] = {}
    for blocked in said.get("blocked", ()):
        reasons.setdefault(str(blocked["reason"]), []).append(int(blocked["station"]))
    missing = ", ".join(f"{ranges(numbers)} ({reason})" for reason, numbers in sorted(reasons.items()))
    state = said.get("state", "open")
    if state == "opening":
        what = f"waits for {missing}" if missing else "hears all that it needs, agreement is still missing"
        conflicts = said.get("opening", {}).get("conflicts") or ()
        return f"in no instance: {what}" + (f"; {len(conflicts)} are configured otherwise" if conflicts else "")
    where = f"in instance {said.get('instance', 0)} of {ranges(members)}"
    return f"{where}, {state}" + (f": waits for {missing}" if missing else "")


def ranges(numbers: Iterable[int]) -> str:
    """1, 2, 3, 5 → ``1-3, 5``."""
    out: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if out and out[-1][1] == number - 1:
            out[-1] = (out[-1][0], number)
        else:
            out.append((number, number))
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in out) or "nobody"


def tail(path: Path, lines: int = 3) -> str:
    """The last lines of a log, in one."""
    try:
        text = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return "it wrote nothing"
    return " | ".join(text[-lines:]) or "it wrote nothing"
