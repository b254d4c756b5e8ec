"""Named deadlines: one table instead of a field per timer, so that nothing is forgotten when the next one is asked for.

Times are monotonic nanoseconds. A deadline that has passed stays in the table until it is set again or stopped: asking twice,
early or late changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum, auto
from typing import Final, Generic, TypeVar

NEVER: Final = 2**64 - 1
"""A deadline that never comes; the core's UINT64_MAX."""

Name = TypeVar("Name", bound=Enum)


class Deadline(IntEnum):
    """Those that the parts of the engine share one table for. Opening, reset and core have their own."""

    BYE = auto()
    """``heartbeat.py``."""
    WATCH = auto()
    """``watch.py``."""
    FLUSH = auto()
    """The next instance is agreed (``handover.py``): at once, but for what is left of the last one."""
    PROBE = auto()
    """``bus.py``: own frames must have come back by then."""


class Timers(Generic[Name]):
    """Deadlines by name. Every operation takes time in proportion to the number of names, which is fixed."""

    def __init__(self, names: Iterable[Name]) -> None:
        self._at_ns: dict[Name, int] = dict.fromkeys(names, NEVER)
        self._next_ns: int | None = None  # None: has to be looked for; it is read far more often than deadlines move

    def set(self, name: Name, at_ns: int) -> None:
        """Fire at ``at_ns``, whatever was set before."""
        self._at_ns[name] = min(at_ns, NEVER)
        self._next_ns = None

    def set_earlier(self, name: Name, at_ns: int) -> None:
        """Fire at ``at_ns`` or when it was going to, whichever is first."""
        self._at_ns[name] = min(self._at_ns[name], at_ns)
        self._next_ns = None

    def stop(self, name: Name) -> None:
        """Do not fire; harmless if it was not set."""
        self._at_ns[name] = NEVER
        self._next_ns = None

    def at_ns(self, name: Name) -> int:
        """When it fires, or ``NEVER``."""
        return self._at_ns[name]

    def due(self, name: Name, now_ns: int) -> bool:
        """True if its time has come. It stays due until it is set or stopped."""
        return self._at_ns[name] <= now_ns

    def next_ns(self) -> int:
        """The earliest deadline, or ``NEVER``. A pure read."""
        if self._next_ns is None:
            self._next_ns = min(self._at_ns.values(), default=NEVER)
        return self._next_ns

    def as_dict(self) -> dict[str, int]:
        """The deadlines that are set, by lower-case name, for people."""
        return {name.name.lower(): at for name, at in self._at_ns.items() if at != NEVER}
