"""What both clients of the directory share besides the protocol: leases, listings, what an update has come to."""

from __future__ import annotations

from collections import deque
from collections.abc import MutableMapping
from typing import Final

from ...proto.service.directory.entries import Entry, Place, parse_place, read_entry
from ..client.ticket import Ticket
from ..directory.wire import Frame
from .protocol import NamesProtocol
from .types import Done, NameChange

SLACK_S: Final = 2.0
"""What an answer may take beyond the time in which the process gives one."""


class LeaseState:
    """An address registered for the life of a connection.

    held: the name has the address now. in_doubt: this station may be without the others, so another one may hold the name too.
    ended: the process has taken the lease away.
    """

    def __init__(self) -> None:
        self.number = 0
        self.version: Place = (0, 0, 0)
        """Grows with each holder of an exclusive name: the fencing number."""
        self.held = self.in_doubt = self.ended = False

    def _registered(self, protocol: NamesProtocol, answer: Frame) -> None:
        self.number, self.version, self.held = int(answer["lease"]), parse_place(answer["place"]), bool(answer["held"])
        protocol.hold(self.number, self._on_event)

    def _on_event(self, event: str) -> None:
        self.held = event == "held" or (self.held and event == "in-doubt")
        self.in_doubt = event == "in-doubt"
        self.ended = self.ended or event == "ended"


def done_of(answer: Frame) -> Done:
    return Done(parse_place(answer["place"]), str(answer.get("text", "")))


class Pages:
    """A listing that comes in pages: ``ask`` for the next one and ``take`` its answer until it is ``complete``."""

    def __init__(self, prefix: str) -> None:
        self.found: list[Entry] = []
        self.complete = False
        self._prefix = prefix
        self._start: str | None = None

    def ask(self, protocol: NamesProtocol) -> Ticket[Frame]:
        return protocol.ask("list", prefix=self._prefix, **({"from": self._start} if self._start else {}))

    def take(self, answer: Frame) -> None:
        self.found += [read_entry(row.encode()) for row in answer["names"]]
        self._start = answer.get("next")
        self.complete = self._start is None


def apply_changes(entries: MutableMapping[str, Entry], queue: deque[NameChange]) -> None:
    """Carry changes out on a mapping of entries."""
    while queue:
        change = queue.popleft()
        if change.kind != "changed":
            continue
        if change.entry is None:
            entries.pop(change.name, None)
        else:
            entries[change.name] = change.entry
