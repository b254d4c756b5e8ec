"""How many pieces of a copy are under way at once: what programs commit waits behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest
from zenjun.daemon.database import moving
from zenjun.daemon.database.copy import Frozen
from zenjun.daemon.database.moving import WINDOW, Kind, Piece, Sending

from ..rules import rule

LATE_S = 0.02
PIECES = 60


class Copy:
    """As ``Frozen``, of so many pieces."""

    goes_on, state = True, b"state"

    def __init__(self) -> None:
        self.answers: dict[int, bytes] = {}

    def entries(self) -> Iterator[bytes]:
        return iter([b"entries"] * PIECES)

    def close(self) -> None:
        pass


async def under_way(took_s: list[float]) -> list[int]:
    """Pieces under way when each was sent, if the other site acknowledges them after so many seconds (the last: all others)."""
    loop = asyncio.get_running_loop()
    found: list[int] = []
    there: set[int] = set()

    def send(data: bytes) -> None:
        piece = Piece.decode(data)
        assert piece is not None
        there.add(piece.number)
        found.append(len(there))
        wait = took_s.pop(0) if len(took_s) > 1 else took_s[0]
        loop.call_later(wait if piece.kind is Kind.ENTRIES else 0.0, came, piece.number)

    def came(number: int) -> None:
        there.discard(number)
        sending.on_ack(number)

    sending = Sending(cast(Any, Copy()), (2, 1), (1, 1, 1), 1 << 20, send)
    assert isinstance(sending.frozen, Copy | Frozen)
    assert await sending.run()
    return found


@rule("D6")
def test_there_are_fewer_while_they_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """At first few; more while the way is free; one that is late makes it half, and those that were under way with it no less."""
    monkeypatch.setattr(moving, "LATE_S", LATE_S)
    free = asyncio.run(under_way([0.001]))
    assert max(free[:2]) <= 2 and max(free) == WINDOW
    assert max(asyncio.run(under_way([1.5 * LATE_S]))) <= 2
    mixed = asyncio.run(under_way([*[0.001] * 30, *[1.5 * LATE_S] * WINDOW, 0.001]))
    assert max(mixed[:30]) == WINDOW and min(mixed[40:]) < WINDOW and max(mixed[-10:]) >= WINDOW - 1
