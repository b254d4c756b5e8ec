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
    number: int = 0
    """Of the configuration."""
    vacant: frozenset[int] = frozenset()
    """Numbers that no station has."""
    options: bytes = b""
    """Of the configuration, as claims have them."""
    joint: bool = False
    """The configuration is not decided: what is proposed is to be durable as a mark before (rule V3)."""
    past_instance: int = 0
    """Instances up to it are of earlier configurations."""
    heeds_rivals: bool = True
    """False breaks rule 9, on purpose."""
