"""Notices are for people: the same one is not repeated within ``NOTICE_GAP_NS``."""

from __future__ import annotations

from .effects import NOTICE_GAP_NS, Effect, Notice


class Notices:
    """Which notices were given lately. Each kind is used with one of the two methods."""

    def __init__(self) -> None:
        self._given_ns: dict[tuple[str, int], int] = {}  # by kind and station
        self._counted: dict[str, tuple[int, int]] = {}  # by kind: the count at its last notice, and when that was

    def give(self, now: int, kind: str, about: int, message: str) -> list[Effect]:
        """A notice, unless one of this kind about this station (0: none) was given lately."""
        last = self._given_ns.get((kind, about))
        if last is not None and now - last < NOTICE_GAP_NS:
            return []
        self._given_ns[kind, about] = now
        return [Notice(kind, message)]

    def is_news(self, now: int, kind: str, count: int) -> bool:
        """Has this kind's counter grown since its last notice, and is that long enough ago? True counts as given."""
        before, at_ns = self._counted.get(kind, (0, -NOTICE_GAP_NS))
        if count == before or now - at_ns < NOTICE_GAP_NS:
            return False
        self._counted[kind] = (count, now)
        return True
