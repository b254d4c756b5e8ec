"""Parts of mode unanimous that break a rule each. The docstring of each begins with the rule (docs/database.md)."""

from __future__ import annotations

from typing import Any

from zenjun.proto.service.base import Effect, Source
from zenjun.proto.service.database.certify import Shared
from zenjun.proto.service.database.machine import Durability
from zenjun.proto.service.database.messages import Close, Lock
from zenjun.proto.service.database.unanimous import Unanimous


class LowerFirst(Unanimous):
    """N1: the request of a lower station goes before those that have come earlier, as in the paper."""

    def _on_close(self, shared: Shared, source: Source, close: Close) -> None:
        super()._on_close(shared, source, close)
        first = shared.locks[0] if shared.locks else None
        shared.locks.sort(key=lambda entry: entry[0])
        if shared.locks and shared.locks[0] != first:
            self._grant(shared)


class GrantsOpen(Unanimous):
    """N2: a site grants, and goes on to show what it has."""

    def _say_grant(self, shared: Shared) -> None:
        super()._say_grant(shared)
        self._owes = True


class SilenceGrants(Unanimous):
    """N3: data are sent when the lock is there, whoever has not answered."""

    def may_write(self, shared: Shared) -> bool:
        return self._is_closed(shared)


class ReleasesEarly(Unanimous):
    """N5: all go on, and the program is told, before all disks have it."""

    def _is_durable(self, version: int, durability: Durability) -> bool:
        return durability is Durability.ALL or super()._is_durable(version, durability)


class LockSurvives(Unanimous):
    """N6: the lock of a service that has gone stays."""

    def _end_lock(self, shared: Shared, ended: list[Lock]) -> None:
        here = [lock for source, lock in shared.locks if lock in ended and source in self.members]
        super()._end_lock(shared, here)


class UnlocksByTime(Unanimous):
    """N6: a site that has waited for long takes the lock for ended, as in the paper."""

    def next_deadline_ns(self) -> int | None:
        return 0 if self.shared is not None and self._is_closed(self.shared) else super().next_deadline_ns()

    def on_timer(self, now_ns: int) -> list[Effect]:
        if self.shared is not None and self._is_closed(self.shared):
            self._end_lock(self.shared, [self.shared.locks[0][1]])
        return super().on_timer(now_ns)


class ShowsWhatIsLeft(Unanimous):
    """N7: a site that is not active shows what it has."""

    def may_serve(self) -> bool:
        return self.shared is None or not self.is_active or super().may_serve()


class ShowsEarly(Unanimous):
    """N8: a site shows what only its own disk may have."""

    def durable_version(self) -> int:
        return 1 << 62


PARTS: dict[str, dict[str, Any]] = {
    c.__name__: {"machine": c}
    for c in (
        LowerFirst, GrantsOpen, SilenceGrants, ReleasesEarly, LockSurvives, UnlocksByTime, ShowsWhatIsLeft, ShowsEarly,
    )
}  # fmt: skip
"""Broken rule to what a world is made of in place of the honest parts."""
