"""What a site sends to its groups, in the order in which it is given, at the pace of zenjund."""

from __future__ import annotations

import asyncio
import contextlib

from ..client import ClientError
from ..client.aio import Connection, Group


class Outbox:
    """For one session of a site; what is given before it begins is sent then."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[tuple[bool, bytes]] = asyncio.Queue()
        """Messages that zenjund has not taken at once, and whether they are of the group beside."""
        self._ways: tuple[Group, Group] | None = None
        self._is_behind = False
        """A message that was taken from the queue waits for zenjund."""

    def put(self, data: bytes) -> None:
        """Give zenjund a message of the group now if it takes it, else later."""
        self._put(data, False)

    def put_beside(self, data: bytes) -> None:
        """``put``, of the group beside."""
        self._put(data, True)

    def _put(self, data: bytes, is_beside: bool) -> None:
        if self._ways is not None and not self._is_behind and self.queue.empty():
            with contextlib.suppress(ClientError):  # ``run`` meets it as well, and ends the session
                if self._ways[is_beside].send_nowait(data):
                    return
        self.queue.put_nowait((is_beside, data))

    async def run(self, connection: Connection, group: Group, beside: Group) -> None:
        """Send, until the connection ends. Raises ClientError."""
        self._ways = (group, beside)
        try:
            while True:
                is_beside, data = await self.queue.get()
                self._is_behind = True
                while not self._ways[is_beside].send_nowait(data):
                    await connection.writable(timeout=None)
                self._is_behind = False
        finally:
            self._ways = None
