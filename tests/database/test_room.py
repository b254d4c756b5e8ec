"""What long transactions of programs take in the memory of the database process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from zenjun.daemon.database.room import Room
from zenjun.daemon.database.serving import Client
from zenjun.daemon.database.waiting import Undecided
from zenjun.daemon.database.wire import to_text
from zenjun.daemon.programs import Refused
from zenjun.proto.service.database.messages import Txid
from zenjun.proto.service.database.parts import PART_BYTES


def test_first_come_first_served() -> None:
    async def run() -> None:
        room = Room(10)
        assert await room.take(6, 0) and not await room.take(11, 0)
        big = asyncio.create_task(room.take(8, 20))
        await asyncio.sleep(0)
        assert not await room.take(4, 0.01), "it came later"
        room.give(6)
        assert await big and room.free == 2
        waiting = [asyncio.create_task(room.take(5, 20)) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        room.give(8)
        assert await waiting[1] and room.free == 5
        granted = asyncio.create_task(room.take(6, 20))
        await asyncio.sleep(0)
        room.give(5)
        granted.cancel()  # at the moment when it has its turn
        await asyncio.gather(granted, return_exceptions=True)
        assert room.free == 10

    asyncio.run(run())


class Station:
    """A process with room for little, and a site that is slow."""

    def __init__(self) -> None:
        self.room = Room(1000)
        self.sent: set[Txid] = set()
        self.told = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self.is_late = False
        self.closed = False
        self.waiting = SimpleNamespace(commit=self.commit)
        self.distant = SimpleNamespace(began=lambda txid: None)
        self.name = "shop"

    def site(self, name: str) -> Any:
        return self

    async def commit(self, write: Any, durability: Any, seconds: float, *, again: bool, began: Any) -> Any:
        self.sent.add(write.txid)
        if self.is_late:
            raise Undecided("late")
        await self.until(lambda: write.txid not in self.sent, 20)
        return SimpleNamespace(verdict=SimpleNamespace(value="busy"))

    def is_sending(self, txid: Txid) -> bool:
        return txid in self.sent

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        while not condition():
            self.told.clear()
            await self.told.wait()
        return True

    def soon(self, what: Any) -> None:
        self.tasks.append(asyncio.create_task(what))

    def sent_all(self) -> None:
        self.sent.clear()
        self.told.set()


def frames(number: int, size: int, timeout: float = 0.01) -> tuple[dict[str, Any], dict[str, Any]]:
    txid = to_text(Txid(1, 1, 1, number).encode())
    return (
        {"txid": txid, "number": 0, "bytes": size, "body": to_text(bytes(size)), "timeout": timeout},
        {"txid": txid, "pieces": size, "body": "", "epoch": 1, "snapshot": 1, "timeout": timeout},
    )


def test_what_is_under_way_takes_room_until_it_is_sent() -> None:
    """Also after its program was told that the result is not known, or has gone."""

    async def run() -> None:
        station: Any = Station()
        one, two = (Client(station, 0) for _ in range(2))
        piece, commit = frames(1, 600)
        await one._do_piece(piece)
        await one._do_piece(piece)
        assert station.room.free == 400, "begun anew"
        with pytest.raises(Refused, match="long transactions under way"):
            await two._do_piece(frames(2, 500)[0])
        station.is_late = True
        with pytest.raises(Refused, match="not decided in time"):
            await one._do_commit(commit)
        one.ended()
        await asyncio.sleep(0)
        assert station.room.free == 400
        waits = asyncio.create_task(two._do_piece(frames(2, 500, timeout=20)[0]))
        await asyncio.sleep(0)
        station.sent_all()
        await waits
        two.ended()
        assert station.room.free == 1000
        with pytest.raises(Refused, match="more than 600 bytes"):
            await one._do_piece(piece | {"body": to_text(bytes(601))})
        with pytest.raises(Refused, match="pieces of the transaction are missing"):
            await one._do_commit(commit)
        for wrong in (-1, 1 << 40, "many"):
            with pytest.raises(Refused):
                await one._do_piece(piece | {"bytes": wrong})
        assert station.room.free == 1000

    asyncio.run(run())


def test_a_long_body_in_one_frame_takes_room_too() -> None:
    async def run() -> None:
        station: Any = Station()
        client = Client(station, 0)
        _, commit = frames(1, 0)
        del commit["pieces"]
        with pytest.raises(Refused, match="long transactions under way"):
            await client._do_commit(commit | {"body": to_text(bytes(PART_BYTES))})
        station.room = Room(2 * PART_BYTES)
        with pytest.raises(Refused, match="epoch and snapshot"):
            await client._do_commit(commit | {"body": to_text(bytes(PART_BYTES)), "epoch": None})
        assert station.room.free == 2 * PART_BYTES

    asyncio.run(run())
