"""Silence: which members show no sign of life, and the reason.

Reasons, the first that applies:

- ``left``: it said BYE;
- ``silent``: no sign of life for ``fail_timeout_ns``, neither a PDU of its own nor, through others, that its stream has grown;
- ``deaf``: it is heard, but its acknowledgements are behind what this station and a third one have, and have not advanced for
  ``progress_timeout_ns``. Streams that it has closed, because it votes to remove their source, do not count.

Sans-I/O; reads the core, changes nothing. A station that did not run itself for a while (stopped, or its machine was) must not
judge the others by the time it missed: ``forgive`` starts every wait again. A station that gets little processor time and misses
its own deadlines (``note_late``) has received less than the others: it waits LATE_PATIENCE times as long during one fail time-out
after that. This ends, because otherwise no station would be removed on a machine that is too slow for all its stations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, Protocol

from .core import Peer
from .timers import NEVER

LATE_PATIENCE: Final = 4


class Streams(Protocol):
    """What is read of the core."""

    index: int

    def peer(self, index: int) -> Peer: ...

    def matrix(self) -> list[list[int]]: ...


def behind(matrix: list[list[int]], members: Sequence[int], own: int, j: int, closed: Collection[int] = ()) -> bool:
    """Whether member j lacks something that station ``own`` and a station other than its source have (all are indices). A member
    does not count as deaf for lacking what the own station lacks too, or what its source alone has: then the fault may be
    elsewhere. ``closed``: sources whose PDUs j no longer accepts."""
    for h in members:
        if h == j or h in closed or matrix[h][j] >= matrix[h][own]:
            continue
        others = [matrix[h][k] for k in members if k not in (h, j)]
        if others and matrix[h][j] < min(max(others), matrix[h][own]):
            return True
    return False


def unheard(matrix: list[list[int]], members: Sequence[int], own: int) -> bool:
    """Whether no other member has what the own station sends, by its reports."""
    others = [matrix[own][k] for k in members if k != own]
    return bool(others) and max(others) < matrix[own][own]


class Silence:
    """One per engine."""

    def __init__(self, *, fail_timeout_ns: int, progress_timeout_ns: int, late_ns: int = NEVER) -> None:
        """late_ns: a deadline that is served so much too late counts as missed."""
        self._fail_timeout_ns = fail_timeout_ns
        self._late_ns = late_ns
        self._late_at_ns = -NEVER
        self.late = 0
        """Own deadlines missed."""
        self.near_misses = 0
        """How often a member that had not been heard for a while, and was asked, was heard again in time."""
        self._quiet: frozenset[int] = frozenset()
        self._progress_timeout_ns = progress_timeout_ns
        self._since_ns = 0
        self._stuck: dict[int, tuple[int, int]] = {}
        """By station index: when its acks had last moved, and since when that is so here."""

    def forgive(self, now: int) -> None:
        """Suspect no station before one full time-out from now: after opening, and after an own pause."""
        self._since_ns = now
        self._stuck.clear()

    def note_late(self, now: int, by_ns: int) -> None:
        """An own deadline was served so much too late."""
        if by_ns >= self._late_ns:
            self._late_at_ns = now
            self.late += 1

    def note_lates(self, count: int, at_ns: int) -> None:
        """So many deadlines that C serves were served too late, the last one then."""
        self.late += count
        self._late_at_ns = max(self._late_at_ns, at_ns)

    def note_quiet(self, quiet: Collection[int], members: Collection[int]) -> None:
        """These of these members (station numbers) have not been heard for a while, and are being asked."""
        now_quiet = frozenset(quiet)
        self.near_misses += len((self._quiet - now_quiet).intersection(members))
        self._quiet = now_quiet

    def patience(self, now: int) -> int:
        """Number of time-outs to wait before a station is suspected."""
        return LATE_PATIENCE if now - self._late_at_ns < self._fail_timeout_ns else 1

    @property
    def suspicious(self) -> bool:
        """A member's acks do not advance while others' do: look again soon."""
        return bool(self._stuck)

    @property
    def since_ns(self) -> int:
        """Every member counts as heard then at the earliest."""
        return self._since_ns

    def heard_ns(self, peer: Peer) -> int:
        """Time at which it was last heard, as far as it may be judged by that."""
        return max(peer.heard_ns, self._since_ns)

    def quiet_at_ns(self, core: Streams, members: Sequence[int], after_ns: int) -> int:
        """Time at which the first of these members (indices) will have been silent for this duration, if no more frames
        arrive."""
        heard = [self.heard_ns(core.peer(i)) for i in members if i != core.index]
        return min(heard) + after_ns if heard else NEVER

    def judge(
        self, now: int, core: Streams, members: Sequence[int], closed_by: Callable[[int], Collection[int]] = lambda index: ()
    ) -> tuple[tuple[int, str], ...]:
        """(station number, reason) of those of these members (indices) that count as stopped. closed_by: the sources whose PDUs a
        member no longer accepts, by its votes. Work: m * m, and m more for each pair that is behind."""
        matrix = core.matrix()
        blamed = []
        for index in members:
            if index == core.index:
                continue
            peer = core.peer(index)
            reason = self._reason(now, index, peer, partial(behind, matrix, members, core.index, index, closed_by(index)))
            if reason:
                blamed.append((index + 1, reason))
        return tuple(blamed)

    def _reason(self, now: int, index: int, peer: Peer, lacks: Callable[[], bool]) -> str:
        if peer.left:
            return "left"
        patience = self.patience(now)
        if now - self.heard_ns(peer) >= patience * self._fail_timeout_ns:
            return "silent"
        if not lacks():
            self._stuck.pop(index, None)
            return ""
        moved_ns, since_ns = self._stuck.get(index, (-1, 0))
        if moved_ns != peer.ack_moved_ns:
            self._stuck[index] = (peer.ack_moved_ns, now)
            return ""
        return "deaf" if now - since_ns >= patience * self._progress_timeout_ns else ""
