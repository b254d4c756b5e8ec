"""The tables that captures are turned into: read out of the frames (ingest.py), or derived by a replay (derived.py)."""

from __future__ import annotations

from .derived import DERIVED, derive, tasks
from .joins import message_lives, read

__all__ = ["DERIVED", "derive", "message_lives", "read", "tasks"]
