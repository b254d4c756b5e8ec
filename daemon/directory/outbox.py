"""What is to go to a group: at once, or in its order when zenjund takes it again."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Final

from ..client import ClientError
from ..client.aio import Connection, Group

UNSENT_MAX: Final = 1 << 20
"""Bytes that wait for zenjund above which no further update is taken from programs."""


class Outbox:
    """Messages that zenjund has not taken yet, of one membership at a time."""

    def __init__(self) -> None:
        self._unsent: deque[bytes] = deque()
        self._bytes = 0
        self._group: Group | None = None
        """What they are for."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Held, so that they are not collected before they are done."""
        self._room = asyncio.Event()

    def send(self, connection: Connection | None, group: Group, data: bytes) -> bool:
        """Give a message to the group; False: the membership is over."""
        try:
            if not self._unsent and group.send_nowait(data):
                return True
        except ClientError:
            return False
        self._group = group
        self._unsent.append(data)
        self._bytes += len(data)
        if len(self._unsent) == 1 and connection is not None:
            task = asyncio.get_running_loop().create_task(self._send_rest(connection, group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return True

    async def _send_rest(self, connection: Connection, group: Group) -> None:
        with contextlib.suppress(ClientError):
            while self._unsent and group is self._group:
                await connection.writable(timeout=None)
                while self._unsent and group is self._group and group.send_nowait(self._unsent[0]):
                    self._bytes -= len(self._unsent.popleft())
                if not self.congested:
                    self._room.set()

    def clear(self) -> None:
        """The membership is over, and with it what was for it."""
        self._group = None
        self._unsent.clear()
        self._bytes = 0
        self._room.set()

    @property
    def congested(self) -> bool:
        """No further update may be started now."""
        return self._bytes >= UNSENT_MAX

    async def room(self) -> None:
        """Wait until zenjund takes updates: programs feel its back-pressure."""
        while self.congested:
            self._room.clear()
            await self._room.wait()
