"""The status of the process: for ``zenjun name status``, and for its metrics."""

from __future__ import annotations

from typing import Any

from ...proto.service.directory.entries import NOWHERE, place_text
from ..release import version
from .process import Process


def status(process: Process, programs: int) -> dict[str, Any]:
    """The answer to the request ``status``. programs: number of those that are connected."""
    facts = process.facts
    return {
        "station": process.config.station.id,
        "cluster": process.config.cluster.name,
        "active": process.active,
        "step": process.step,
        "awaited": process.awaited(),
        "stale_ms": process.stale_ms(),
        "place": place_text(facts.place) if facts.place != NOWHERE else "",
        "names": facts.names,
        "leases": facts.leases,
        "leases_here": len(process.leases),
        "programs": programs,
        "watches": len(process.watches),
        "kept": len(process.tracking),
        "stations": sorted(facts.up),
        "holders": sorted(station for station, _ in facts.active),
        "clocks": {str(station): offset for station, offset in sorted(process.clocks.offsets.items())},
        "wrong_clocks": process.clocks.wrong(),
        "sums": f"{facts.main:032x} {facts.rest:032x}",
        "updates_under_way": len(process.updates),
        "update": process.config.directory.update,
        "attempts": process.attempts(),
        "lookups": dict(process.answers.by_code),
        "counters": dict(process.counters),
        "dns": process.dns_status(),
        "file": str(process.copy.file.path),
    }


def measured(process: Process, programs: int) -> dict[str, Any]:
    """The status, and the values that only the metrics have (``metrics.families``)."""
    # Of the state as it is just now, perhaps in the middle of a transaction: who looks each few seconds does not mind.
    state, zones = process.copy.state, list(process.copy.state.zones.values())
    lag, lag_s = process.lag()
    came, total, serving = process.transfer()
    by_zone = {zone: number for zone, number in dict(state.counts).items() if zone}
    return {
        **status(process, programs),
        "version": version(),
        "of": process.config.cluster.stations,
        "state": "stopped" if process.facts.stopped else process.standing,
        "stale_s": process.stale_ms() / 1000,
        "names_by_zone": {"default": 0, **{z.name: 0 for z in zones}, **by_zone},
        "names_max_by_zone": {z.name: z.names_max for z in zones if z.names_max},
        "outs": state.outs,
        "place_clock": process.facts.place[0],
        "lag_messages": lag,
        "lag_s": lag_s,
        "time": state.time,
        "next_due": process.facts.next_due,
        "transfer_bytes": came,
        "transfer_total_bytes": total if total >= 0 else None,
        "serving": serving,
        "timings": {"commit": process.copy.commits, "update": process.updates.timings},
    }
