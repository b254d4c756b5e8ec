"""Which cells a call runs, in which order, and running them: all systems take turns in one lab."""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from ...daemon.trusting import SUITES
from ..lab import Lab
from .cell import BenchError, Cell, Json, raw_summary, run_window, summary
from .systems import Corosync, Floor, Keyed, Raw, System, Zenjun
from .table import BUS

MODES: Final = ("throughput", "rate", "closed", "idle")
PEERS: Final = ("corosync",)
RAW_STATIONS_MAX: Final = 8
RAW_DRAIN_S: Final = 0.3
WARM_S: Final = 1.0
DRAIN_S: Final = 10.0

Report = Callable[[Json], None]


@dataclass(frozen=True)
class Plan:
    """Options of one call. Sizes are bytes, losses fractions of the frames at each station's input, times seconds."""

    stations: int = 3
    senders: int = 3
    sizes: tuple[int, ...] = (64, 1300, 65536)
    light_sizes: tuple[int, ...] = (64, 1300)
    level: str = "preack"
    losses: tuple[float, ...] = (0.0, 0.01)
    modes: tuple[str, ...] = MODES
    mtu: int = 1500
    seconds: float = 3.0
    warm_s: float = WARM_S
    drain_s: float = DRAIN_S
    repeat: int = 3
    peers: tuple[str, ...] = ()
    raw: bool = False
    floor: bool = False
    """Bare stations at a light load (``Floor``)."""
    ours: bool = True
    tries: int = 1
    quiet_cores: float = 0.2
    """A cell during which other programs used more of the machine than this is run again, up to ``tries`` times in all; the
    quietest run counts."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    keyed: bool = False
    """Ours runs twice more, with a key of 32 bytes: authenticated, and encrypted."""
    medium: str = "switched"
    """``bus``: the lab's bridge is one, and ours runs twice, with the paper's recovery (medium bus) and the selective one."""

    def quick(self) -> Plan:
        """A first impression in about half a minute: two sizes, short windows, once, no loss."""
        return replace(self, sizes=(64, 1300), light_sizes=(64,), losses=(0.0,), seconds=1.0, warm_s=0.5, drain_s=5.0, repeat=1)

    def rounds(self) -> Iterator[Round]:
        """Within a round every system runs the same cells, one system after the other; who begins changes from round to round."""
        for repeat in range(1, self.repeat + 1):
            for loss in self.losses:
                for mode in self.modes:
                    if loss and mode == "idle":
                        continue  # nothing to lose
                    sizes = self.sizes if mode == "throughput" else self.light_sizes[:1] if mode == "idle" else self.light_sizes
                    yield Round(repeat, tuple(self._cell(size, mode, loss) for size in sizes))

    def _cell(self, size: int, mode: str, loss: float) -> Cell:
        return Cell(
            self.stations, self.senders, size, self.level, mode, loss, self.mtu, self.seconds, self.warm_s, self.drain_s
        )  # fmt: skip

    def cells(self) -> int:
        """How many lines the call will print."""
        systems = int(self.ours) * (2 if self.medium == "bus" else 1) + 2 * (len(self.peers) + int(self.keyed))
        rounds = list(self.rounds())
        raw = sum(1 for r in rounds if r.with_raw) if self.raw else 0
        floor = sum(len(r.cells) for r in rounds if r.with_floor) if self.floor else 0
        return systems * sum(len(r.cells) for r in rounds) + raw + floor


@dataclass(frozen=True)
class Round:
    """Cells that differ only in size."""

    repeat: int
    cells: tuple[Cell, ...]

    @property
    def with_raw(self) -> bool:
        """The bare program belongs beside throughput without loss."""
        return self.cells[0].mode == "throughput" and not self.cells[0].loss

    @property
    def with_floor(self) -> bool:
        """Bare stations send nothing again, and have no flow control."""
        return self.cells[0].mode in ("rate", "closed") and not self.cells[0].loss


def machine() -> str:
    """The machine in a few words: processors, model, kernel."""
    model = "unknown processor"
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return f"{os.cpu_count()} × {model}, Linux {platform.release()}"


def run(plan: Plan, report: Report, starting: Callable[[str, Cell], None] = lambda system, cell: None) -> None:
    """Run all cells; ``report`` gets one JSON object after each, ``starting`` is called before each. The lab and every process
    are gone when it returns or raises. Raises LabError when the lab cannot be made, BenchError when a peer cannot be prepared."""
    with tempfile.TemporaryDirectory(prefix="zenjun-bench.") as folder, contextlib.ExitStack() as stack:
        client = Corosync.build_client(Path(folder)) if "corosync" in plan.peers else None
        lab = stack.enter_context(Lab(plan.stations, mtu=plan.mtu, options=plan.options, medium=plan.medium))
        systems: list[System] = []
        if plan.ours and plan.medium == "bus":
            systems += [Zenjun(lab, options={"cluster": {"medium": "switched"}}), Zenjun(lab, name=BUS)]
        elif plan.ours:
            systems.append(Zenjun(lab))
        if plan.keyed:
            systems += [Keyed(lab, security, Path(folder)) for security in SUITES]
        if client is not None:
            systems += [Corosync(lab, real_time=rr, client=client, folder=Path(folder)) for rr in (True, False)]
        if plan.floor:
            systems.append(Floor(lab, Path(folder)))
        for number, each in enumerate(plan.rounds()):
            first = number % len(systems) if systems else 0
            for system in systems[first:] + systems[:first]:
                if isinstance(system, Floor) and not each.with_floor:
                    continue
                _run_system(lab, system, each, plan, report, starting)
            if plan.raw and each.with_raw:
                _run_raw(lab, each, plan, report, starting)


def _run_system(lab: Lab, system: System, each: Round, plan: Plan, report: Report, starting: Callable[[str, Cell], None]) -> None:
    running = False
    try:
        for cell in each.cells:
            starting(system.name, cell)
            head = _head(system, cell, each.repeat)
            try:
                if not running:
                    system.start()
                    running = True
                    lab.set_loss(cell.loss)
                figures = quietest(plan, partial(_measure, system, cell))
            except BenchError as error:
                figures = {"ok": False, "problems": [str(error)]}
            report({**head, **figures})
            if not figures["ok"]:
                # A backlog would continue into the next cell.
                system.stop()
                lab.set_loss(0.0)
                running = False
    finally:
        system.stop()
        lab.set_loss(0.0)


def _run_raw(lab: Lab, each: Round, plan: Plan, report: Report, starting: Callable[[str, Cell], None]) -> None:
    system = Raw(lab)
    cell = replace(each.cells[0], size=each.cells[0].mtu, drain_s=RAW_DRAIN_S)
    starting(system.name, cell)
    try:
        figures = quietest(plan, partial(_measure_raw, system, cell))
    except BenchError as error:
        figures = {"ok": False, "problems": [str(error)]}
    report({**_head(system, cell, each.repeat), **figures})


def _measure(system: System, cell: Cell) -> Json:
    return summary(cell, run_window(system, cell), ordered=system.ordered)


def _measure_raw(system: System, cell: Cell) -> Json:
    return raw_summary(cell, run_window(system, cell))


def quietest(plan: Plan, measure: Callable[[], Json]) -> Json:
    """The figures of the run that others disturbed least. A run that failed counts as it is: disturbance excuses nothing."""
    best = measure()
    tries = 1
    while best["ok"] and best["cpu"]["foreign_cores"] > plan.quiet_cores and tries < plan.tries:
        figures = measure()
        tries += 1
        if not figures["ok"] or figures["cpu"]["foreign_cores"] < best["cpu"]["foreign_cores"]:
            best = figures
    return {**best, "tries": tries}


def _head(system: System, cell: Cell, repeat: int) -> Json:
    return {
        "system": system.name,
        "version": system.version(),
        "stations": cell.stations,
        "senders": cell.sending,
        "size": cell.size,
        "level": system.level(cell),
        "mode": cell.mode,
        "rate": cell.rate if cell.mode == "rate" else None,
        "loss": cell.loss,
        "mtu": cell.mtu,
        "window_s": cell.seconds,
        "repeat": repeat,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
    }
