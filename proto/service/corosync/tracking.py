"""Who hears of rings and quorum through libquorum and libvotequorum (rule Y7 of docs/corosync.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntFlag

from ..base import Effect
from .results import (
    Answer,
    Changed,
    Code,
    Nodelist,
    Quorum,
    RingId,
    VotesExpected,
    VotesNodelist,
    VotesQuorum,
)
from .votequorum import Votequorum


class Track(IntFlag):
    """Flags of trackstart."""

    CURRENT = 1
    CHANGES = 2
    CHANGES_ONLY = 4


@dataclass(slots=True)
class Tracker:
    votes: bool
    """Of libvotequorum; False: of libquorum."""
    model: int = 0
    """Of libquorum: 0 or 1."""
    on: bool = False


class Trackers:
    """The handles of both libraries at one node."""

    def __init__(self, votequorum: Votequorum, ring: RingId) -> None:
        self.votequorum = votequorum
        self.handles: dict[int, Tracker] = {}
        self._ring = ring
        """The ring that programs know of."""

    def open(self, number: int, *, votes: bool, model: int = 0) -> None:
        self.handles[number] = Tracker(votes, model)

    def close(self, number: int) -> None:
        del self.handles[number]

    def track(self, number: int, flags: Track) -> list[Effect]:
        """trackstart. What is told at once is told also to who tracks already, as corosync does."""
        tracker = self.handles[number]
        effects = list(self._tell(number, tracker, (), ())) if flags & (Track.CURRENT | Track.CHANGES) else []
        code = Code.EXIST if tracker.on else Code.OK
        tracker.on = tracker.on or bool(flags & (Track.CHANGES | Track.CHANGES_ONLY))
        return [*effects, Answer(number, code)]

    def stop(self, number: int) -> list[Effect]:
        """trackstop. libquorum's may be called without a trackstart, as in corosync; corosync-quorumtool does so."""
        tracker = self.handles[number]
        code = Code.OK if tracker.on or not tracker.votes else Code.NOT_EXIST
        tracker.on = False
        return [Answer(number, code)]

    def on_changed(self, changed: Changed) -> Iterator[Effect]:
        """A ring begins: libquorum's handles hear of it, then libvotequorum's."""
        self._ring = changed.ring
        for votes in (False, True):
            for number, tracker in self._on(votes):
                yield from self._tell(number, tracker, changed.joined, changed.left)

    def on_votes(self, was_quorate: bool, expected: int | None) -> Iterator[Effect]:
        """Votes were set. expected: what was set for all together."""
        v = self.votequorum
        if expected is not None:
            for number, _ in self._on(votes=True):
                yield VotesExpected(number, expected)
        if v.quorate != was_quorate:
            for number, _ in self._on(votes=False):
                yield Quorum(number, v.quorate, self._ring, v.members)
            for number, _ in self._on(votes=True):
                yield VotesQuorum(number, v.quorate, v.known())

    def _on(self, votes: bool) -> list[tuple[int, Tracker]]:
        return [(number, t) for number, t in self.handles.items() if t.on and t.votes == votes]

    def _tell(self, number: int, tracker: Tracker, joined: tuple[int, ...], left: tuple[int, ...]) -> Iterator[Effect]:
        v = self.votequorum
        if tracker.votes:
            yield VotesNodelist(number, self._ring, v.members)
            yield VotesQuorum(number, v.quorate, v.known())
            return
        if tracker.model:
            yield Nodelist(number, self._ring, v.members, joined, left)
        yield Quorum(number, v.quorate, self._ring, v.members)
