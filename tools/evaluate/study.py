"""``zenjun evaluate all``: record every run, then count them all, then write docs/evaluation.md and its plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...proto import wire
from ..pcap import tables
from ..pcap.frames import files
from ..pcap.report.plots import Drawing
from ..pcap.report.summary import Tables
from ..pcap.spark.session import Session
from ..pcap.tables import ingest, schema
from . import counts, experiments, results
from .counts import Cost, Exchange, Stop
from .exchanges import Exchange as PlainExchange
from .experiments import Run

RATES: Final = (20.0, 200.0, 2000.0)
"""Messages per second, all stations together."""
LATENCY_RATE: Final = 200.0
LOSSES: Final = (0.0, 0.01, 0.02, 0.05, 0.1)
LOSS_RATE: Final = 500.0
WINDOWS: Final = (4, 16, 64)
FLOOD: Final = 4000
"""Messages of all stations together, sent as fast as they go through."""
LOSS_STATIONS: Final = 4
STOP_STATIONS: Final = 4
STOP_RATE: Final = 400.0
"""Low enough that no window is full before the stop is agreed: fail_timeout × rate / survivors < W."""
LOAD_S: Final = 1.5
LOSS_S: Final = 3.0


@dataclass(slots=True)
class Recorded:
    """Captures of all runs, not yet counted."""

    exchanges: dict[tuple[int, bool], tuple[Path, list[PlainExchange]]] = field(default_factory=dict)
    """(n, every reception answered) → the onlooker's capture, and what the plain count says of it."""
    loads: list[Run] = field(default_factory=list)
    losses: list[Run] = field(default_factory=list)
    windows: list[Run] = field(default_factory=list)
    stops: list[Run] = field(default_factory=list)


@dataclass(slots=True)
class Study:
    """Everything counted."""

    exchanges: dict[int, tuple[list[Exchange], list[Exchange]]] = field(default_factory=dict)
    loads: list[Cost] = field(default_factory=list)
    losses: list[Cost] = field(default_factory=list)
    windows: list[Cost] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What is not as the papers say, or where two counts of one capture differ."""


def record(sizes: Sequence[int], repeats: int, folder: Path, note: Callable[[str], None]) -> Recorded:
    """Run all labs, one after the other. Raises LabError."""
    out = Recorded()
    for n in sizes:
        note(f"n = {n}: lone messages on a bus, then load")
        for each in (False, True):
            out.exchanges[n, each] = experiments.exchanges(n, each, repeats, folder)
        out.loads.append(experiments.loads(n, RATES, LOAD_S, FLOOD, folder))
    some = [n for n in (LOSS_STATIONS, 3) if n in sizes][:1] or list(sizes[:1])
    for n in some:
        note(f"n = {n}: loss of {', '.join(f'{100 * f:g}' for f in LOSSES)} %, windows of {', '.join(map(str, WINDOWS))}")
        out.losses.append(experiments.losses(n, LOSSES, LOSS_RATE, LOSS_S, folder))
        out.windows += [experiments.window(n, w, FLOOD, folder) for w in WINDOWS]
    n = max([n for n in sizes if 3 <= n <= STOP_STATIONS], default=0)
    if n:
        note(f"n = {n}: a station stops and comes back")
        out.stops.append(experiments.stop_and_recovery(n, STOP_RATE, folder))
    return out


def tables_of(run: Run, folder: Path) -> Path:
    """Make all tables of one run, without Spark: they are small. Returns their folder."""
    captures = files.gather([run.folder])
    ingest.ingest(captures, folder / run.name)
    tables.derive(captures, folder / run.name)
    return folder / run.name


def count(recorded: Recorded, folder: Path, session: Session, note: Callable[[str], None]) -> Study:
    """Count every run; ``folder`` is where the tables go."""
    out = Study()
    note("counting")
    _count_exchanges(recorded, folder / "exchanges", session, out)
    runs = [*recorded.loads, *recorded.losses, *recorded.windows]
    costs = counts.costs(session.spark, [(run, tables_of(run, folder)) for run in runs])
    out.loads = [c for c in costs if c.run in recorded.loads]
    out.losses = [c for c in costs if c.run in recorded.losses]
    out.windows = [c for c in costs if c.run in recorded.windows]
    for run in recorded.stops:
        made = Tables(session.spark, tables_of(run, folder))
        out.stops.append(counts.stop(made, run, run.stations))
    return out


def _count_exchanges(recorded: Recorded, folder: Path, session: Session, out: Study) -> None:
    # One analysis for all: the captures are told apart by their clusters, so the numbers they get as stations do not matter.
    given = {str(path): index for index, (path, _) in enumerate(recorded.exchanges.values(), 1)}
    ingest.ingest(files.gather(list(given), stations_given=given), folder)
    spark = session.spark
    found: dict[int, list[Exchange]] = {}
    for exchange in counts.exchanges(spark, schema.read(spark, folder, "pdus")):
        found.setdefault(exchange.cluster, []).append(exchange)
    for (n, each), (path, plain) in recorded.exchanges.items():
        mine = found.get(wire.cluster_id(f"lab-e{path.parent.name}"), [])
        out.exchanges.setdefault(n, ([], []))[each].extend(mine)
        if [(e.pdus, e.rounds) for e in mine] != [(e.pdus, e.rounds) for e in plain]:
            out.problems.append(f"{path.parent.name}: Spark and the plain count of the same capture differ")
    out.problems += results.not_as_claimed(out.exchanges)


def blocks(study: Study) -> dict[str, str]:
    """The page's tables by name; those that were not measured are left out."""
    made = {
        "to": results.exchanges_table(study.exchanges),
        "load": results.load_table(study.loads),
        "loss": results.loss_table(study.losses),
        "buffers": results.buffers_table([c for c in (*study.loads, *study.windows) if not c.phase.rate]),
    }
    if study.stops:
        made["stop"] = results.stop_text(study.stops[0])
    return made


def drawings(study: Study) -> Mapping[str, tuple[Drawing, str, str, float]]:
    """The page's plots by name: (drawing, title, description, height in inches)."""
    flood = [c for c in (*study.loads, *study.windows) if not c.phase.rate]
    made: dict[str, tuple[Drawing, str, str, float]] = {
        "to": (results.exchanges_plot(study.exchanges), "PDUs for one message", "PDUs until level ack at all, against n", 3.4),
        "load": (results.load_plot(study.loads), "Control PDUs against load", "Control PDUs per DATA PDU, against load", 3.2),
        "latency": (
            results.latency_plot([c for c in study.loads if c.phase.rate == LATENCY_RATE]),
            "Latency by level",
            f"At {LATENCY_RATE:g} messages per second",
            3.2,
        ),
        "loss": (results.loss_plot(study.losses), "Cost of loss", "PDUs per 100 DATA PDUs and latency, against loss", 3.2),
        "buffers": (results.buffers_plot(flood), "Receipt log", "Most PDUs kept at a station, in windows, against n", 3.2),
    }
    if study.stops:
        made["stop"] = (results.stop_plot(study.stops[0]), "Stop and recovery", "DATA PDUs of the survivors in 10 ms", 3.2)
    return made


def write(study: Study, page: Path) -> None:
    """Bring the page and its plots up to date. Raises ValueError, OSError."""
    results.write(page, blocks(study), drawings(study))


__all__ = ["Recorded", "Study", "count", "record", "write"]
