"""The metrics of a station with several zones, or with none: those of its zones, put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..timing import Timing
from .node import Node
from .report import measured as measured_one


def measured(node: Node, programs: int) -> dict[str, Any]:
    """The status, and the values that only the metrics have (``metrics.families``)."""
    from ..release import version

    held = {zone: measured_one(process, programs) for zone, process in node.held.items()}
    each = list(held.values())
    names: Counter[str] = Counter()
    for zone, m in held.items():
        # A zone's own copy has no names of any other; ``default`` is in every report.
        names.update({name: number for name, number in m["names_by_zone"].items() if number or name == zone or zone == "default"})
    status = node.status(programs)
    dues = [m["next_due"] for m in each if m["next_due"]]
    totals = [m["transfer_total_bytes"] for m in each]
    updates = [p.updates.timings for p in node.held.values()] + [a.updates.timings for a in node.away.values()]
    return {
        **status,
        "version": version(),
        "of": node.config.cluster.stations,
        "state": _state([m["state"] for m in each], status["active"]),
        "stale_s": max((m["stale_s"] for m in each), default=0),
        "names_by_zone": dict(names),
        "names_max_by_zone": {zone: most for m in each for zone, most in m["names_max_by_zone"].items()},
        "kept_by_zone": {zone: zone in node.held for zone in node.parts.holders},
        "holders_by_zone": {z["zone"]: len(z["holders"]) for z in status["zones"]},
        "outs": max((m["outs"] for m in each), default=0),
        "place_clock": max((m["place_clock"] for m in each), default=0),
        "lag_messages": sum(m["lag_messages"] for m in each),
        "lag_s": max((m["lag_s"] for m in each), default=0),
        "time": max((m["time"] for m in each), default=0),
        "next_due": min(dues, default=0),
        "transfer_bytes": sum(m["transfer_bytes"] for m in each),
        "transfer_total_bytes": sum(totals) if None not in totals else None,
        "serving": sum(m["serving"] for m in each),
        "timings": {
            "commit": _together(m["timings"]["commit"] for m in each),
            "update": _together(updates),
        },
    }


def _state(states: list[str], active: bool) -> str:
    """``active`` if all zones can be used here; else that of the worst copy, or ``behind`` for want of a holder."""
    found = next((state for state in ("stopped", "waiting", "behind") if state in states), "")
    return found or ("active" if active else "behind")


def _together(timings: Iterable[dict[str, Timing]]) -> dict[str, Timing]:
    found: dict[str, Timing] = {}
    for each in timings:
        for word, timing in each.items():
            sum_of = found.setdefault(word, Timing())
            sum_of.counts = [a + b for a, b in zip(sum_of.counts, timing.counts, strict=True)]
            sum_of.sum_s += timing.sum_s
    return found
