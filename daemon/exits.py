"""Exit codes of ``zenjund``."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of ``zenjund`` (docs/daemon.md)."""

    OK = 0
    BUG = 1
    USAGE = 2
    CONFIG = 3
    RIGHTS = 4
    STATE = 5
    SOCKET = 6
    INTERFACE = 7
    REFUSED = 8
    FORCED = 9
