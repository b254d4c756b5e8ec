"""The silence watch: for whom does delivery wait, and why?

Fixed membership blocks for ever on a station that is gone; all that can be done is to say so. Reasons, the first that applies:

- ``left``: it said BYE;
- ``silent``: nothing valid came directly from it for ``silent_timeout_ns``;
- ``deaf``: it is heard, but what it acknowledges stands behind what another station has and has not moved for
  ``progress_timeout_ns``.

Sans-I/O; reads the core, changes nothing. A station that did not run itself for a while (stopped, or its machine was) must not
judge the others by the time it missed: ``forgive`` starts every wait anew.
"""

from __future__ import annotations

from typing import Protocol

from .core import Peer


class Streams(Protocol):
    """What the watch reads of the core."""

    stations: int
    index: int

    def peer(self, index: int) -> Peer: ...

    def matrix(self) -> list[list[int]]: ...


def behind(matrix: list[list[int]], j: int) -> bool:
    """Has some station been acknowledged further by another station than by j? What j expects of itself is no acknowledgement."""
    return any(row[j] < max(row) for h, row in enumerate(matrix) if h != j)


class SilenceWatch:
    """One per engine."""

    def __init__(self, *, silent_timeout_ns: int, progress_timeout_ns: int) -> None:
        self._silent_timeout_ns = silent_timeout_ns
        self._progress_timeout_ns = progress_timeout_ns
        self._since_ns = 0
        self._stuck: dict[
            int, tuple[int, int]
        ] = {}  # station index: when its acks had last moved, and since when that is so here

    def forgive(self, now: int) -> None:
        """Suspect nobody before one full time-out from now: after opening, and after an own pause."""
        self._since_ns = now
        self._stuck.clear()

    @property
    def suspicious(self) -> bool:
        """Somebody's acks stand still while others' move: look again soon."""
        return bool(self._stuck)

    def silent_at_ns(self, core: Streams) -> int:
        """When the first station will have been silent for too long, if nothing more is heard."""
        heard = [core.peer(i).heard_ns for i in range(core.stations) if i != core.index]
        return max(self._since_ns, min(heard, default=self._since_ns)) + self._silent_timeout_ns

    def judge(self, now: int, core: Streams) -> tuple[tuple[int, str], ...]:
        """(station number, reason) of every station delivery may wait for, by station. Work: n * n."""
        matrix = core.matrix()
        blamed = []
        for index in range(core.stations):
            if index == core.index:
                continue
            peer = core.peer(index)
            reason = self._reason(now, index, peer, matrix)
            if reason:
                blamed.append((index + 1, reason))
        return tuple(blamed)

    def _reason(self, now: int, index: int, peer: Peer, matrix: list[list[int]]) -> str:
        if peer.left:
            return "left"
        if now - max(peer.heard_ns, self._since_ns) >= self._silent_timeout_ns:
            return "silent"
        if not behind(matrix, index):
            self._stuck.pop(index, None)
            return ""
        moved_ns, since_ns = self._stuck.get(index, (-1, 0))
        if moved_ns != peer.ack_moved_ns:
            self._stuck[index] = (peer.ack_moved_ns, now)
            return ""
        return "deaf" if now - since_ns >= self._progress_timeout_ns else ""
