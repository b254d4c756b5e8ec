"""What the loss of a link costs, and what a second link brings.

A cut: all stations send; one of two links fails at once and without a word (the switch forwards nothing, one direction of one
path, or the cable of one station); later it is healed. Taken are the longest time without a delivery at any station, before, from
the cut on and from the healing on, and how many changes of members there were. A rate: links whose ports are limited, one against
two, without losses and with losses on one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ..lab import Lab, LabError
from .cell import BenchError, Cell, Json, problems, run_phases, run_window, summary
from .plan import machine
from .systems import Zenjun
from .table import markdown, number

KIND: Final = "links"
CUTS: Final[Mapping[str, Callable[[Lab], None]]] = {
    "switch": lambda lab: lab.cut_link(1),
    "one-way": lambda lab: lab.cut(1, 2, link=1),
    "cable": lambda lab: lab.station(1).cable_out(1),
}
MODES: Final = ("auto", "duplicate", "stripe", "passive")
PHASES: Final = ("before", "cut", "healed")
PHASE_S: Final = 2.0
WARM_S: Final = 1.0
DRAIN_S: Final = 10.0
LOSS: Final = 0.01

Report = Callable[[Json], None]


@dataclass(frozen=True)
class LinksPlan:
    """Options of one call. rate: messages per second of all stations together, 0: as many as go. mbit: the limit of each link
    for the rates, 0: no rates."""

    stations: int = 3
    cuts: tuple[str, ...] = tuple(CUTS)
    modes: tuple[str, ...] = ("auto", "passive")
    rates: tuple[float, ...] = (1000.0, 0.0)
    size: int = 64
    mbit: int = 200
    repeat: int = 1
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def runs(self) -> int:
        """How many lines the call will give."""
        return self.repeat * (len(self.cuts) * len(self.modes) * len(self.rates) + (3 if self.mbit else 0))


def run(plan: LinksPlan, report: Report, starting: Callable[[str], None] = lambda system: None) -> None:
    """Run everything; ``report`` gets one JSON object a run. Raises LabError when the lab cannot be made."""
    for mode in plan.modes:
        options = _merged(plan.options, {"links": {"mode": mode}})
        with _cluster(plan, 2, options) as (lab, system):
            for _ in range(plan.repeat):
                for rate in plan.rates:
                    for cut in plan.cuts:
                        starting("zenjun")
                        head = _head(plan, {"what": "cut", "mode": mode, "cut": cut, "rate": rate, "size": plan.size})
                        report({**head, **_figures(partial(_cut, lab, system, plan, cut, rate))})
    if plan.mbit:
        for links, loss in ((1, 0.0), (2, 0.0), (2, LOSS)):
            with _cluster(plan, links, plan.options, rate_bit=plan.mbit * 1_000_000) as (lab, system):
                if loss:
                    lab.impair(link=2, loss=loss)
                for _ in range(plan.repeat):
                    starting("zenjun")
                    head = _head(plan, {"what": "rate", "links": links, "loss": loss, "mbit": plan.mbit, "size": 1300})
                    report({**head, **_figures(partial(_rate, system, plan))})


@contextlib.contextmanager
def _cluster(
    plan: LinksPlan, links: int, options: Mapping[str, Mapping[str, Any]], **impairments: Any
) -> Iterator[tuple[Lab, Zenjun]]:
    with Lab(plan.stations, links=links, options=options, **impairments) as lab:
        system = Zenjun(lab)
        system.start()
        try:
            yield lab, system
        finally:
            system.stop()


def _figures(work: Callable[[], Json]) -> Json:
    try:
        return work()
    except (BenchError, LabError) as error:
        return {"ok": False, "problems": [str(error)]}


def changes_of(lab: Lab) -> int:
    """Changes of members that any station has seen, and instances that it has begun."""
    said = [station.status(5.0) for station in lab.stations.values()]
    return sum(int(s["membership"]["changes"]) + int(s["instance"]) for s in said)


def _cut(lab: Lab, system: Zenjun, plan: LinksPlan, cut: str, rate: float) -> Json:
    """One run. Raises BenchError, LabError."""
    seconds = len(PHASES) * PHASE_S + 3
    mode = "rate" if rate else "throughput"
    cell = Cell(
        plan.stations, plan.stations, plan.size, "preack", mode, 0.0, 1500, seconds, WARM_S, DRAIN_S, rate or 1.0, watch=True
    )
    before = changes_of(lab)

    def healed() -> None:
        lab.heal()
        lab.station(1).cable_in(1)

    try:
        results, gaps = run_phases(system, cell, (partial(CUTS[cut], lab), healed), PHASE_S)
    finally:
        healed()
    found, changes = problems(cell, results), changes_of(lab) - before
    if changes:
        found.append(f"{changes} changes of members were seen")
    return {
        "gap_ms": dict(zip(PHASES, gaps, strict=True)),
        "changes": changes,
        "delivered": results[0]["delivered"],
        "ok": not found,
        "problems": found,
    }


def _rate(system: Zenjun, plan: LinksPlan) -> Json:
    """Throughput of all stations. Raises BenchError."""
    cell = Cell(plan.stations, plan.stations, 1300, "preack", "throughput", 0.0, 1500, 3.0, WARM_S, DRAIN_S)
    return summary(cell, run_window(system, cell))


def _merged(*options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for each in options:
        for table, values in each.items():
            found.setdefault(table, {}).update(values)
    return found


def _head(plan: LinksPlan, about: Json) -> Json:
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"bench": KIND, "system": "zenjun", "stations": plan.stations, **about, "started": started, "machine": machine()}


def render(rows: Sequence[Json]) -> str:
    """Two tables (markdown): the longest gaps, ms; the rates."""
    out = []
    cuts = [r for r in rows if r["what"] == "cut"]
    if cuts:
        lines = []
        for key in dict.fromkeys((r["mode"], r["rate"], r["cut"]) for r in cuts):
            some = [r for r in cuts if (r["mode"], r["rate"], r["cut"]) == key and "gap_ms" in r]
            load = f"{key[1]:g} msg/s" if key[1] else "flat out"
            figures = [number(max(r["gap_ms"][phase] for r in some)) if some else "failed" for phase in PHASES]
            lines.append([key[0], load, key[2], *figures, str(sum(r["changes"] for r in some))])
        head = ["links.mode", "load", "fails", *(f"longest gap {phase}, ms" for phase in PHASES), "changes of members"]
        out.append(markdown(head, lines))
    rates = [r for r in rows if r["what"] == "rate"]
    if rates:
        lines = []
        base = max((r["megabytes_per_s"] for r in rates if r["links"] == 1 and "megabytes_per_s" in r), default=0.0)
        for r in rates:
            rate = r.get("megabytes_per_s", 0.0)
            times = f"{rate / base:.2f}" if base else "–"
            lines.append([f"{r['links']} of {r['mbit']} Mbit/s", f"{r['loss']:.0%}", number(rate), times])
        out.append(markdown(["links", "loss on one", "MB/s", "against one link"], lines))
    return "\n\n".join(out) + "\n"
