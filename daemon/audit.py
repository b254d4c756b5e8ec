"""What programs were refused, and (``log.audit = "all"``) what they were allowed: entries of the log, and counters by reason."""

from __future__ import annotations

import logging
from collections import Counter

from .access import Identity
from .observe import Journal


class Audit:
    """Writes the entries; a user's above the journal's limit are counted in its next one."""

    def __init__(self, journal: Journal, *, everything: bool = False) -> None:
        self._journal = journal
        self.everything = everything
        self.refusals: Counter[str] = Counter()
        """Refused requests and connections, by code of the client protocol."""

    def refused(self, code: str, who: Identity, program: str, text: str, now: int) -> None:
        """A program did not get what it wanted; text: what and why."""
        self.refusals[code] += 1
        self._write(logging.WARNING, f"refused ({code}): {text}", who, program, now, code)

    def done(self, what: str, who: Identity, program: str, now: int) -> None:
        """A program did something that was allowed."""
        if self.everything:
            self._write(logging.INFO, what, who, program, now, "ok")

    def _write(self, level: int, text: str, who: Identity, program: str, now: int, result: str) -> None:
        shown = f" ({program})" if program else ""
        line = f"{who.name}, pid {who.pid}{shown}: {text}"
        self._journal.event(
            level, "audit", line, now=now, key=f"{who.uid}/{result}", uid=who.uid, pid=who.pid, program=program, result=result
        )
