"""What zenjund does not take at once, over the end of a membership."""

from __future__ import annotations

import asyncio

from zenjun.daemon.client.aio import Connection, Group
from zenjun.daemon.directory.outbox import Outbox


class Slow(Connection):
    """A connection whose daemon takes nothing until it is told to."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()

    async def writable(self, timeout: object = None) -> None:
        await self.ready.wait()


class Taking(Group):
    """A group that takes what the connection is ready for."""

    def __init__(self, connection: Slow) -> None:
        self.connection = connection
        self.sent: list[bytes] = []

    def send_nowait(self, data: bytes, **options: object) -> bool:
        if self.connection.ready.is_set():
            self.sent.append(data)
        return self.connection.ready.is_set()


def test_what_waits_for_an_old_membership_does_not_hold_up_the_next_one() -> None:
    async def story() -> None:
        outbox = Outbox()
        old, new = Slow(), Slow()
        before, after = Taking(old), Taking(new)
        assert outbox.send(old, before, b"old")
        await asyncio.sleep(0)
        outbox.clear()
        assert outbox.send(new, after, b"one") and outbox.send(new, after, b"two")
        new.ready.set()
        while len(after.sent) < 2:
            await asyncio.sleep(0)
        old.ready.set()
        await asyncio.sleep(0.01)
        assert (before.sent, after.sent) == ([], [b"one", b"two"]) and not outbox.congested

    asyncio.run(asyncio.wait_for(story(), 60))
