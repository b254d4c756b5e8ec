"""Watches: the changes that a program receives of the names that it has chosen (property P11).

First all entries, then each change at its place. A reader that is too slow gets each name's latest state instead of every state,
after a ``Gap``: it has missed intermediate states, but has the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from .draft import Change
from .entries import Entry, Place

EVENTS_MAX: Final = 1000
"""Events that a watch holds for its reader, besides those of one place, before it holds only the latest of each name."""


class Changed(NamedTuple):
    """A name as it is from ``place`` on; entry None: it is gone."""

    place: Place
    name: str
    entry: Entry | None


class Listed(NamedTuple):
    """All entries have been listed, as of ``place``."""

    place: Place


class Gap(NamedTuple):
    """States up to ``place`` are left out; the latest ones follow."""

    place: Place


Event: TypeAlias = Changed | Listed | Gap


class Watch:
    """One watch.

    subject: a name, or the beginning of names with a dot at its end; "": all names.
    """

    def __init__(self, subject: str, events_max: int = EVENTS_MAX) -> None:
        self.subject = subject
        self.events_max = events_max
        self._events: deque[Event] = deque()
        self._latest: dict[str, Changed] = {}
        """After a gap, by name; the events are delivered first."""
        self._gap: Gap | None = None
        self._held: list[tuple[Place, list[Change]]] | None = None

    def hold(self) -> None:
        """What it begins with is being read: changes wait for it (``start``, ``resume``), and those of a later place follow."""
        self._held = []

    @property
    def is_held(self) -> bool:
        return self._held is not None

    def concerns(self, name: str) -> bool:
        subject = self.subject
        return name == subject or not subject or (subject[-1] == "." and name.startswith(subject))

    def start(self, place: Place, entries: Iterable[Entry], missed: bool = False) -> None:
        """All entries, as of ``place``. Also when the copy was replaced: undelivered events are dropped, and the reader starts
        again. missed: after a ``Gap``, for a reader that asked for what has changed since a place that is too long ago."""
        self._events.clear()
        self._latest.clear()
        self._gap = None
        if missed:
            self._events.append(Gap(place))
        self._events.extend(Changed(place, e.name, e) for e in entries if self.concerns(e.name))
        self._events.append(Listed(place))
        self._go_on(place)

    def resume(self, place: Place, changed: Iterable[Entry], gone: Iterable[str]) -> None:
        """In place of ``start``, for a reader that knows what was at an earlier place: what has changed since then, by the places
        of the changes, then what is gone, as of ``place``."""
        found = sorted((e for e in changed if self.concerns(e.name)), key=lambda e: (e.version, e.name))
        self._events.extend(Changed(e.version, e.name, e) for e in found)
        self._events.extend(Changed(place, name, None) for name in gone if self.concerns(name))
        self._events.append(Listed(place))
        self._go_on(place)

    def _go_on(self, place: Place) -> None:
        held, self._held = self._held or [], None
        for at, changes in held:
            if at > place:
                self.on_changes(at, changes)

    def on_changes(self, place: Place, changes: Iterable[Change]) -> bool:
        """What an input has changed. True: there is something to be read that was not there before."""
        if self._held is not None:
            self._held.append((place, [c for c in changes if self.concerns(c.name)]))
            return False
        before = len(self)
        events = [Changed(place, c.name, c.new) for c in changes if self.concerns(c.name)]
        if self._gap is None and (not self._events or len(self._events) + len(events) <= self.events_max):
            self._events.extend(events)
        elif events:
            # All of one place are on the same side of the gap: half an update is no list that ever was.
            self._gap = Gap(place)
            for event in events:
                self._latest.pop(event.name, None)
                self._latest[event.name] = event
        return not before and len(self) > 0

    def skip(self, place: Place) -> None:
        """States up to ``place`` are not known here; the latest ones follow."""
        if self._gap is None:
            self._gap = Gap(place)

    def read(self, count: int) -> list[Event]:
        """The next events, at most ``count``, in the order of their places."""
        out = [self._events.popleft() for _ in range(min(count, len(self._events)))]
        if self._gap is not None and not self._events and len(out) < count:
            out.append(self._gap)
            self._events.extend(self._latest.values())
            self._gap = None
            self._latest.clear()
            out += [self._events.popleft() for _ in range(min(count - len(out), len(self._events)))]
        return out

    def __len__(self) -> int:
        return len(self._events) + len(self._latest)
