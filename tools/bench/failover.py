"""How long a killed station goes unnoticed, for how long deliveries stop, and how soon the station is back after a restart.

One run: all stations but the last send, lightly and steadily; the last one's daemon is killed with SIGKILL; when every survivor's
program has got the view without it, it is started again; when they have the view with it, the run ends and the survivors must
have delivered the same messages in the same order. Times are taken by the programs, from the same clock as the kill and the
start.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..lab import Lab, LabError
from .cell import LEAD_NS, START_S, BenchError, Cell, Client, Json, problems
from .plan import machine
from .systems import Corosync, System, Zenjun
from .table import markdown, number

KIND: Final = "failover"
"""In the lines of this benchmark: distinguishes them from those of ``plan``."""
FAST: Final[Mapping[str, Mapping[str, Any]]] = {
    "cluster": {"heartbeat_ms": 10, "fail_timeout_ms": 30, "probe_interval_ms": 5, "adopt_timeout_ms": 30},
    "station": {"realtime_priority": 1},
}
"""The lowest useful setting: docs/performance.md has its costs. A station that is not run for 30 ms is removed, so its daemon
must not wait behind other programs; corosync's runs with real-time priority by default."""
STEADY_S: Final = 1.0
"""Load without a fault, before the kill."""
SETTLE_S: Final = 0.5
"""Time that a phase continues after all programs have the view: backlogs must have been delivered in the phase they belong to."""
TOLD_S: Final = 30.0
BACK_S: Final = 30.0
"""Longest waits. corosync with its defaults needs 8 s for the first."""
WARM_S: Final = 0.5
DRAIN_S: Final = 10.0

Report = Callable[[Json], None]


@dataclass(frozen=True)
class Failover:
    """Options of one call. ``rate``: messages per second of all survivors together, each of ``size`` bytes."""

    stations: int = 3
    rate: float = 1000.0
    size: int = 64
    level: str = "preack"
    repeat: int = 5
    peers: tuple[str, ...] = ()
    fast: bool = True
    """Measure zenjun with ``FAST`` as well."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def cell(self) -> Cell:
        """The load: everyone but the last station sends."""
        seconds = STEADY_S + TOLD_S + BACK_S + 2 * SETTLE_S + 5
        survivors = self.stations - 1
        return Cell(
            self.stations, survivors, self.size, self.level, "rate", 0.0, 1500, seconds, WARM_S, DRAIN_S, self.rate, watch=True
        )  # fmt: skip

    def runs(self) -> int:
        """How many lines the call will give."""
        return self.repeat * (1 + self.fast + len(self.peers))


def run(plan: Failover, report: Report, starting: Callable[[str], None] = lambda system: None) -> None:
    """Run everything, systems taking turns in one lab; ``report`` gets one JSON object a run, ``starting`` is called before each.

    The lab and every process are gone when it returns or raises. Raises LabError when the lab cannot be made, BenchError when a
    peer cannot be prepared.
    """
    with tempfile.TemporaryDirectory(prefix="zenjun-bench.") as folder, contextlib.ExitStack() as stack:
        client = Corosync.build_client(Path(folder)) if "corosync" in plan.peers else None
        lab = stack.enter_context(Lab(plan.stations, options=plan.options))
        systems: list[System] = [Zenjun(lab)]
        if plan.fast:
            systems.append(Zenjun(lab, name="zenjun-fast", options=FAST))
        if client is not None:
            systems.append(Corosync(lab, real_time=True, client=client, folder=Path(folder)))
        for repeat in range(1, plan.repeat + 1):
            first = repeat % len(systems)
            for system in systems[first:] + systems[:first]:
                starting(system.name)
                head = _head(plan, system, repeat)
                try:
                    system.start()
                    figures = measure(system, plan.cell())
                except (BenchError, LabError) as error:
                    figures = {"ok": False, "problems": [str(error)]}
                finally:
                    system.stop()
                report({**head, **figures})


def measure(system: System, cell: Cell) -> Json:
    """One run on a system that has been started. Takes at most START_S + cell.seconds and its drain. Raises BenchError."""
    victim = cell.stations
    clients: list[Client] = []
    grace_s = 0.0
    try:
        for station in range(1, cell.stations + 1):
            clients.append(Client(station, system.spawn_client(station, cell)))
        deadline = time.monotonic() + START_S
        for client in clients:
            client.line("READY", deadline)
        survivors = clients[:-1]
        t0 = time.monotonic_ns() + LEAD_NS
        w0 = t0 + int(cell.warm_s * 1e9)
        w1 = w0 + int(cell.seconds * 1e9)
        for client in clients:
            client.say(f"GO {t0} {w0} {w1} {w1 + int(cell.drain_s * 1e9)}")
        time.sleep(max(0.0, (w0 - time.monotonic_ns()) / 1e9) + STEADY_S)

        _say(survivors, "MARK")
        killed_ns = time.monotonic_ns()
        system.kill(victim)
        told = {c.station: _told(c, killed_ns, cell.stations) for c in survivors}
        time.sleep(SETTLE_S)

        _say(survivors, "MARK")
        started_ns = time.monotonic_ns()
        system.restart(victim)
        back = {c.station: _back(c, started_ns, victim) for c in survivors}
        time.sleep(SETTLE_S)

        _say(survivors, "STOP")
        deadline = time.monotonic() + cell.drain_s + 5
        results = [json.loads(c.line("RESULT", deadline)) for c in survivors]
        grace_s = 2.0
    finally:
        for client in clients:
            client.end(grace_s)
    found = [
        f"station {k} was removed though it was alive: fail_timeout_ms is too short for this machine" for k in expelled(results)
    ]
    found += problems(cell, results)
    found += [f"station {k} was told of {n} members, not of {cell.stations - 1}" for k, (_, n) in told.items() if n != victim - 1]
    gaps = [max(phase) for phase in zip(*(r["gap_max_ms_by_phase"] for r in results), strict=True)]
    return {
        "told_ms": max(ms for ms, _ in told.values()),
        "told_ms_by_station": [ms for ms, _ in told.values()],
        "back_ms": max(back.values()),
        "back_ms_by_station": list(back.values()),
        "gap_ms": dict(zip(("before", "killed", "restarted"), gaps, strict=True)),
        "delivered": results[0]["delivered"],
        "events": sorted({e for r in results for e in r["events"]}),
        "ok": not found,
        "problems": found,
    }


def expelled(results: Iterable[Json]) -> list[int]:
    """Survivors that the others went on without for a while. Their sequence has a hole then."""
    return [r["id"] for r in results if any('"event":"expelled"' in e.replace(" ", "") for e in r["events"])]


def _say(clients: Iterable[Client], line: str) -> None:
    for client in clients:
        client.say(line)


def _told(client: Client, since_ns: int, members: int) -> tuple[float, int]:
    """When a program got a view of the group with fewer members (ms after ``since_ns``), and their number."""
    deadline = time.monotonic() + TOLD_S
    while True:
        at, count = client.line("GROUP", deadline).split()
        if int(at) > since_ns and int(count) < members:
            return round((int(at) - since_ns) / 1e6, 1), int(count)


def _back(client: Client, since_ns: int, station: int) -> float:
    """When a program got a view of the stations with this one again, ms after ``since_ns``."""
    deadline = time.monotonic() + BACK_S
    while True:
        at, mask = client.line("STATIONS", deadline).split()
        if int(at) > since_ns and int(mask, 16) >> (station - 1) & 1:
            return round((int(at) - since_ns) / 1e6, 1)


def _head(plan: Failover, system: System, repeat: int) -> Json:
    return {
        "bench": KIND,
        "system": system.name,
        "version": system.version(),
        "stations": plan.stations,
        "rate": plan.rate,
        "size": plan.size,
        "level": system.level(plan.cell()),
        "options": {**plan.options, **system.settings()},
        "repeat": repeat,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
    }


COLUMNS: Final = (
    ("death told", "told_ms"),
    ("longest gap, killed", "gap_ms.killed"),
    ("back in the view", "back_ms"),
    ("longest gap, restarted", "gap_ms.restarted"),
    ("longest gap before", "gap_ms.before"),
)


def render(rows: Sequence[Json]) -> str:
    """The table (markdown): medians over the runs, lowest and highest in parentheses, ms."""
    if not rows:
        return "No runs.\n"
    lines = []
    for stations in sorted({r["stations"] for r in rows}):
        for system in dict.fromkeys(sorted((r["system"] for r in rows), key=lambda name: (not name.startswith("zenjun"), name))):
            some = [r for r in rows if r["system"] == system and r["stations"] == stations]
            if not some:
                continue
            failed = sum(not r["ok"] for r in some)
            counted = f"{len(some)}" + (f", {failed} failed" if failed else "")
            lines.append([system, str(stations), *(_figure(some, path) for _, path in COLUMNS), counted])
    head = ["ms, median (range)", "stations", *(name for name, _ in COLUMNS), "n"]
    about = "; ".join(dict.fromkeys(str(r["version"]) for r in rows))
    loads = ", ".join(dict.fromkeys(f"{r['rate']:g} messages of {r['size']} B per second" for r in rows))
    machines = ", ".join(dict.fromkeys(str(r["machine"]) for r in rows))
    return f"Machine: {machines}. Versions: {about}. Load: {loads} from the survivors.\n\n{markdown(head, lines)}"


def _figure(rows: Sequence[Json], path: str) -> str:
    name, _, inner = path.partition(".")
    found = [r[name][inner] if inner else r[name] for r in rows if name in r]
    if not found:
        return "–"
    low, high = number(min(found)), number(max(found))
    return f"{number(statistics.median(found))} ({low}–{high})" if len(found) > 1 else number(found[0])
