"""The program's side of ``daemon/directory/wire.py`` without I/O: requests out, answers and news in."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from typing import Any

from ...proto.service.directory.entries import NOWHERE, Place, parse_place, place_text, read_entry
from ...proto.service.directory.names import lower
from ...proto.service.directory.operations import Operation, Register, operation_row
from ..client.errors import ClientError, ConnectionClosed, ProtocolError
from ..client.ticket import Ticket
from ..directory.wire import FRAME_MAX, VERSION, Frame, FrameError, Frames, pack
from .errors import error_of
from .types import Answer, NameChange, answer_of

LeaseEvent = Callable[[str, Place], None]
"""``held``, ``lost``, ``in-doubt`` or ``ended``, and the version of the name, if it has the lease."""


class NamesProtocol:
    """One connection. Output is taken by ``take``; a ticket is settled by ``receive`` or ``lost``."""

    def __init__(self, name: str, place: Place = NOWHERE, keep: bool = True) -> None:
        """place: no answer may be older than it. keep: answers are kept until the process reports that they may be wrong."""
        self.hello: Ticket[Frame] = Ticket()
        self.ended: ClientError | None = None
        self.place: Place = place
        """Place of the latest answer: later answers are not older (rule L5)."""
        self._shown: Place = NOWHERE
        """How far the process has shown to be. It never goes back while it runs."""
        self._keep = keep
        self._kept: dict[tuple[str, str | None], Answer] = {}
        """By name as asked for, and key."""
        self._kept_of: dict[str, list[tuple[str, str | None]]] = {}
        """By name as the process has it."""
        self._asked: dict[int, tuple[str, str | None]] = {}
        """Look-ups under way whose answer may be kept, by number."""
        self.client = secrets.token_hex(8)
        """First half of the ids of this connection's updates."""
        self.watches: dict[int, deque[NameChange]] = {}
        self.leases: dict[int, LeaseEvent] = {}
        self._early: dict[int, list[tuple[str, Place]]] = {}
        """News of leases whose number the program does not know yet."""
        self.on_news: Callable[[], None] = lambda: None
        self._tickets: dict[int, Ticket[Frame]] = {}
        self._frames = Frames(FRAME_MAX)
        self._number = self._counter = 0
        self._out: list[bytes] = [pack({"hello": VERSION, "name": name})]

    def take(self) -> bytes:
        """What is to be written now."""
        out, self._out = b"".join(self._out), []
        return out

    def ask(self, do: str, **arguments: Any) -> Ticket[Frame]:
        """Queue a request."""
        if self.ended is not None:
            raise self.ended
        self._number += 1
        ticket: Ticket[Frame] = Ticket()
        self._tickets[self._number] = ticket
        self._out.append(pack({"id": self._number, "do": do, **{k: v for k, v in arguments.items() if v is not None}}))
        return ticket

    def kept(self, name: str, key: str | None) -> Answer | None:
        """A kept answer that is still right by the reports of the process."""
        return self._kept.get((name, key))

    def lookup(self, name: str, key: str | None, fresh: bool, timeout: float | None) -> Ticket[Frame]:
        after = self._after()
        ticket = self.ask(
            "lookup", name=lower(name), key=key, fresh=fresh or None, after=after, track=self._keep or None,
            timeout=timeout if fresh or after else None,
        )  # fmt: skip
        if self._keep:
            self._asked[self._number] = (name, key)
        return ticket

    def page(self, prefix: str, start: str | None) -> Ticket[Frame]:
        """Ask for a page of a listing, from the name ``start`` on."""
        return self.ask("list", prefix=prefix, after=self._after(), **({"from": start} if start else {}))

    def _after(self) -> str | None:
        """The place that an answer must have reached, if the process has not shown it yet: another one gave the last answer."""
        return place_text(self.place) if self.place > self._shown else None

    def changing(self, operations: tuple[Operation, ...], wait: str) -> dict[str, Any]:
        """An update as a request has it, under an id of its own (rule W5): ``ask("update", **changing)``, again and again."""
        self._counter += 1
        return {"c": self.client, "n": self._counter, "ops": [operation_row(operation) for operation in operations], "wait": wait}

    def register(self, operation: Register, ttl: float, timeout: float | None) -> Ticket[Frame]:
        self._counter += 1
        return self.ask("register", c=self.client, n=self._counter, op=operation_row(operation), ttl=ttl, timeout=timeout)

    def watch(self, subject: str, since: Place | None = None) -> tuple[int, Ticket[Frame]]:
        self._number += 1
        number = self._number
        self.watches[number] = deque()
        more = {} if since is None else {"since": place_text(since)}
        return number, self.ask("watch", watch=number, name=lower(subject), **more)

    def unwatch(self, number: int) -> None:
        self.watches.pop(number, None)
        if self.ended is None:
            self.ask("unwatch", watch=number)

    def hold(self, number: int, on_event: LeaseEvent) -> None:
        """News of this lease go to ``on_event``."""
        self.leases[number] = on_event
        for event, version in self._early.pop(number, ()):
            on_event(event, version)

    # ---- input

    def receive(self, data: bytes) -> None:
        """Take bytes of the process. Never raises for what they are: a violation ends the connection."""
        try:
            for frame in self._frames.feed(data):
                self._take(frame)
        except (FrameError, ValueError, KeyError, TypeError) as error:
            self.lost(ProtocolError(f"the directory process sent a frame that cannot be read ({error})"))
        self.on_news()

    def _take(self, frame: Frame) -> None:
        if "hello" in frame:
            if frame.get("place"):
                self._shown = parse_place(frame["place"])
            self.hello.settle(frame)
        elif "forget" in frame:
            self._forget(frame["forget"])
        elif "watch" in frame:
            queue = self.watches.get(frame["watch"])
            if queue is not None:
                queue.extend(_change(event) for event in frame["events"])
        elif "lease" in frame:
            number, event = int(frame["lease"]), str(frame["event"])
            version = parse_place(frame["version"]) if "version" in frame else NOWHERE
            if number in self.leases:
                self.leases[number](event, version)
            else:
                self._early.setdefault(number, []).append((event, version))
        elif "id" in frame:
            number = int(frame["id"])
            ticket = self._tickets.pop(number, None)
            asked = self._asked.pop(number, None)
            if ticket is not None and "ok" in frame:
                if place := frame["ok"].get("place"):
                    self._show(parse_place(place))
                if asked is not None and frame["ok"].get("tracked"):
                    self._keep_answer(asked, frame["ok"])
                ticket.settle(frame["ok"])
            elif ticket is not None:
                ticket.fail(error_of(str(frame["error"]["code"]), str(frame["error"]["text"])))
        else:
            error = frame.get("error", {})
            self.lost(ProtocolError(f"the directory process has closed the connection: {error.get('text', 'no reason')}"))

    def _show(self, place: Place) -> None:
        self._shown = max(self._shown, place)
        self.place = max(self.place, place)

    def _keep_answer(self, asked: tuple[str, str | None], raw: Frame) -> None:
        # Kept here, not by the caller: the report that ends it may be the next frame.
        if asked not in self._kept:
            self._kept_of.setdefault(lower(asked[0]), []).append(asked)
        self._kept[asked] = answer_of(raw)

    def _forget(self, names: list[str] | None) -> None:
        if names is None:
            self._kept.clear()
            self._kept_of.clear()
            return
        for name in names:
            for asked in self._kept_of.pop(name, ()):
                del self._kept[asked]

    def lost(self, error: ClientError | None) -> None:
        """The connection is over."""
        if self.ended is not None:
            return
        self.ended = error or ConnectionClosed("the directory process has closed the connection")
        self._forget(None)
        self._asked.clear()
        self.hello.fail(self.ended)
        for ticket in self._tickets.values():
            ticket.fail(self.ended)
        self._tickets.clear()
        self.on_news()


def _change(event: list[Any]) -> NameChange:
    kind, place = str(event[0]), parse_place(event[1])
    if kind != "changed":
        return NameChange(kind, place)
    row = event[3]
    return NameChange(kind, place, str(event[2]), read_entry(row.encode()) if row is not None else None)
