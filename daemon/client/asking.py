"""Requests of one connection: each REPLY belongs to the REQUEST whose id it has."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ..clientwire import REPLY, REQUEST, REQUESTS_MAX, Kind, ReplyStatus
from .convert import json_object
from .errors import ClientError, ProtocolError, from_code
from .ticket import Ticket


class Requests:
    """At most ``REQUESTS_MAX`` of them are under way at a time; further ones wait here until answers have come.

    put: queues the body of a REQUEST.
    """

    def __init__(self, put: Callable[[bytes], None]) -> None:
        self._put = put
        self._under_way: dict[int, Ticket[dict[str, Any]]] = {}
        self._held: deque[tuple[int, bytes, Ticket[dict[str, Any]]]] = deque()
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._under_way) + len(self._held)

    def ask(self, kind: Kind, body: bytes = b"") -> Ticket[dict[str, Any]]:
        """Queue a request; the ticket settles with the JSON of its answer, or fails with the daemon's error."""
        ticket: Ticket[dict[str, Any]] = Ticket()
        # 32 bits last for weeks of requests; one that is still under way then is passed over.
        self._last_id = self._last_id % 0xFFFFFFFF + 1
        while self._last_id in self._under_way:
            self._last_id = self._last_id % 0xFFFFFFFF + 1
        self._held.append((self._last_id, REQUEST.struct.pack(self._last_id, kind) + body, ticket))
        self._send()
        return ticket

    def _send(self) -> None:
        while self._held and len(self._under_way) < REQUESTS_MAX:
            number, data, ticket = self._held.popleft()
            self._under_way[number] = ticket
            self._put(data)

    def on_reply(self, data: bytes) -> None:
        """A REPLY. Raises ProtocolError for one that answers no request."""
        number, status = REPLY.struct.unpack_from(data)
        body = json_object(data[REPLY.size :])
        ticket = self._under_way.pop(number, None)
        if ticket is None:
            raise ProtocolError(f"the daemon answered request {number}, which is not under way")
        self._send()
        if status == ReplyStatus.OK:
            ticket.settle(body)
        else:
            code = str(body.get("code", ""))
            ticket.fail(from_code(code, str(body.get("message", "")) or f"the daemon answered with error {code!r}"))

    def fail(self, error: ClientError) -> None:
        """The connection is over."""
        tickets = [*self._under_way.values(), *(ticket for _, _, ticket in self._held)]
        self._under_way.clear()
        self._held.clear()
        for ticket in tickets:
            ticket.fail(error)
