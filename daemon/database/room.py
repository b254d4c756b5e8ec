"""The bytes of long transactions that a process holds: those that programs give in pieces, and those on their way."""

from __future__ import annotations

import asyncio
from collections import deque


class Room:
    """A number of bytes, given in the order of the requests, so that a long transaction need not wait for all shorter ones."""

    def __init__(self, total: int) -> None:
        self.free = total
        self._total = total
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int, seconds: float) -> bool:
        """Take so many bytes, which ``give`` gives back; False: not in time, or there are not so many at all."""
        if size > self._total:
            return False
        if not self._waiting and size <= self.free:
            self.free -= size
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, future))
        try:
            await asyncio.wait([future], timeout=seconds)  # wait_for may swallow a cancellation
        except asyncio.CancelledError:
            self._withdraw(size, future)
            raise
        if not future.done():
            self._withdraw(size, future)
            return False
        return True

    def _withdraw(self, size: int, future: asyncio.Future[None]) -> None:
        if future.done():
            self.give(size)
        else:
            self._waiting.remove((size, future))
            self._serve()

    def give(self, size: int) -> None:
        """What was taken is not needed any more."""
        self.free += size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.free:
            size, future = self._waiting.popleft()
            self.free -= size
            future.set_result(None)
