"""What both clients of the directory share besides the protocol: leases, listings, what an update has come to."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import MutableMapping
from typing import Final

from ...proto.service.directory.entries import Entry, Place, parse_place, read_entry
from ..client.errors import ClientError, ConnectionClosed, NotReachable
from ..client.ticket import Ticket
from ..directory.wire import Frame
from .errors import NoQuorum, Undecided, UpdateId, error_of
from .protocol import NamesProtocol
from .types import Done, NameChange

RETRY_S: Final = 0.1
"""Between two tries to have an update answered by another connection."""
SLACK_S: Final = 2.0
"""What an answer may take beyond the time in which the process gives one."""


class LeaseState:
    """An address registered until the connection ends.

    held: the name has the address now. in_doubt: this station may be cut off, so another program may hold the name, too.
    ended: the process has ended the lease.
    """

    def __init__(self) -> None:
        self.number = 0
        self.version: Place = (0, 0, 0)
        """Grows with each holder of an exclusive name: the fencing number."""
        self.held = self.in_doubt = self.ended = False

    def _registered(self, protocol: NamesProtocol, answer: Frame) -> None:
        self.number, self.version, self.held = int(answer["lease"]), parse_place(answer["place"]), bool(answer["held"])
        protocol.hold(self.number, self._on_event)

    def _on_event(self, event: str, version: Place) -> None:
        # A program that waited, or whose station was away, has the name by a later change than its registration.
        self.version = max(self.version, version)
        self.held = event == "held" or (self.held and event == "in-doubt")
        self.in_doubt = event == "in-doubt"
        self.ended = self.ended or event == "ended"


def done_of(answer: Frame) -> Done:
    return Done(parse_place(answer["place"]), str(answer.get("text", "")))


def outcome_of(answer: Frame) -> Done | None:
    """What the request ``outcome`` has found; None: nothing. Raises what the update was refused with."""
    if not answer["known"]:
        return None
    if code := answer["code"]:
        raise error_of(code, answer["text"] or code)
    return done_of(answer)


class Persistence:
    """An update that is requested until there is an answer to it (rule W5): what an error of one attempt means.

    changing: the request, with its id. seconds: for all attempts together, None: forever.
    """

    def __init__(self, changing: Frame, seconds: float | None) -> None:
        self.id: UpdateId = (changing["c"], changing["n"])
        self._changing = changing
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._sent = self._again = False

    def left(self) -> float | None:
        """Seconds for the next try."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def ask(self, protocol: NamesProtocol) -> Ticket[Frame]:
        ticket = protocol.ask("update", **self._changing, timeout=self.left())
        self._sent = True
        return ticket

    def after(self, error: ClientError) -> None:
        """A try has failed. Returns if there is to be another one, on a connection of its own; raises else."""
        if isinstance(error, Undecided):
            error.update = self.id
            raise error
        lost = isinstance(error, ConnectionClosed | NotReachable)
        # A process that has not sent it cannot know that no process has: the one that the first attempt went to may have.
        elsewhere = isinstance(error, NoQuorum) and error.code == "no-quorum" and self._again
        if not self._sent or not (lost or elsewhere):
            raise error
        self._again = True
        if self._deadline is not None and time.monotonic() >= self._deadline:
            undecided = Undecided(f"{error}; the update may have been carried out")
            undecided.code, undecided.update = "undecided", self.id
            raise undecided from None


class Pages:
    """A listing that comes in pages: ``ask`` for the next one and ``take`` its answer until it is ``complete``."""

    def __init__(self, prefix: str) -> None:
        self.found: list[Entry] = []
        self.complete = False
        self.down: tuple[str, ...] = ()
        """Zones without an active holder: their names are missing."""
        self._prefix = prefix
        self._start: str | None = None

    def ask(self, protocol: NamesProtocol) -> Ticket[Frame]:
        return protocol.page(self._prefix, self._start)

    def take(self, answer: Frame) -> None:
        self.found += [read_entry(row.encode()) for row in answer["names"]]
        self.down = tuple(sorted({*self.down, *answer.get("down", ())}))
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
