"""What happened, line by line: hashed whole, kept only at its end."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Final

KEEP_LINES: Final = 6000
"""Lines kept for a failure report; the hash covers all."""

BATCH_LINES: Final = 256
"""Lines hashed at a time."""


class Trace:
    """Ordered lines, each with the virtual time in ns and the station (-1: nobody's) it belongs to."""

    def __init__(self, keep_lines: int = KEEP_LINES) -> None:
        self._lines: deque[tuple[int, int, str]] = deque(maxlen=keep_lines)
        self._fresh: list[str] = []
        """Lines that are not in the hash yet."""
        self._hash = hashlib.blake2b(digest_size=8)
        self.count = 0

    def add(self, at_ns: int, station: int, text: str) -> None:
        self._fresh.append(f"{at_ns} {station} {text}")
        self._lines.append((at_ns, station, text))
        self.count += 1
        if len(self._fresh) == BATCH_LINES:
            self._absorb()

    def _absorb(self) -> None:
        self._hash.update("".join(self._fresh).encode())
        self._fresh.clear()

    def digest(self) -> str:
        """Hash of every line so far: equal runs have equal ones."""
        self._absorb()
        return self._hash.hexdigest()

    def last(self, stations: frozenset[int], lines_max: int) -> list[str]:
        """The last lines of these stations (all if empty), oldest first."""
        out: list[str] = []
        for at_ns, station, text in reversed(self._lines):
            if station < 0 or not stations or station in stations:
                out.append(f"{at_ns / 1e6:12.6f} ms  {'-' if station < 0 else station + 1}  {text}")
                if len(out) == lines_max:
                    break
        return out[::-1]
