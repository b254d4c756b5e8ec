"""Settings of one ``Opening``, and its deadlines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto


class Timer(IntEnum):
    """Deadlines of opening."""

    OPEN = auto()
    """Send OPEN."""
    LOOK = auto()
    """OPENs have come: see what follows from them, once for all that are here."""
    LISTENED = auto()


@dataclass(frozen=True, kw_only=True)
class OpeningConfig:
    """Fields as in ``engine.EngineConfig``."""

    cluster_id: int
    stations: int
    station: int
    fingerprint: int
    boot: int
    host_name: str
    interval_ns: int
    window_ns: int
    recover_ns: int
    returns: bool = False
    """Own frames come back: the medium is a bus."""
    recent_ns: int = 0
    """Time for which a report of another configuration counts; 0: two windows."""
    heeds_rivals: bool = True
    """False breaks rule 9, on purpose."""
