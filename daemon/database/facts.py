"""What the status says of one database at this station."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .files import size_of

if TYPE_CHECKING:
    from .site import Site


def facts_of(site: Site, wal: Path | None) -> dict[str, Any]:
    """wal: of the copy that is open."""
    machine, rows = site.machine, site.rows
    shared = machine.shared if machine is not None else None
    position = site.position
    return {
        "name": site.name,
        "mode": site.mode,
        "uuid": site.uuid.hex(),
        "path": str(site.files.link),
        "step": site.step,
        "open": site.is_open,
        "waits_for": [],
        "active": site.active,
        "can_write": site.can_write,
        "epoch": position.epoch,
        "version": position.version,
        "digest": position.digest.hex(),
        "durable": machine.durable_version() if machine is not None else 0,
        "active_sites": sorted({s for s, _ in shared.active}) if shared is not None else [],
        "synced": {str(s): v for (s, _), v in sorted(shared.synced.items())} if shared is not None else {},
        "members": sorted({s for s, _ in machine.members}) if machine is not None else [],
        "sites": sorted(site.sites.stations),
        "locks": len(shared.locks) if shared is not None else 0,
        "file_bytes": size_of(site.files.link),
        "wal_bytes": size_of(wal),
        "sync_s": site.syncing.seconds,
        "held_s": rows.held_s if rows is not None else 0.0,
        "applied": {"sum_s": rows.applied.sum_s, "buckets": rows.applied.buckets()} if rows is not None else None,
        "transfer_bytes": site.receiving.came_bytes if site.receiving is not None else 0,
        "serving": len(site.sending),
        "dropped": sum(machine.dropped.values()) if machine is not None else 0,
        "scrub": site.scrubs.last,
        "counters": dict(site.counters),
    }
