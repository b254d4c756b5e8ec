"""Sending without waiting, and whether the station has its quorum: what a program needs that serves others from callbacks."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any, cast

import pytest
from zenjun.daemon.client import NotMember, Timeout, TooLarge, connect, connect_sync

from .fake_daemon import MESSAGE_MAX, FakeDaemon, fake_daemon

PART = MESSAGE_MAX // 4


def test_asyncio_feels_back_pressure_and_loses_nothing(tmp_path: Path) -> None:
    """What was not taken is the caller's; what was taken arrives, once and in order."""

    async def story() -> None:
        daemon = FakeDaemon(tmp_path / "z.sock")
        await daemon.start()
        async with asyncio.timeout(60), connect(str(daemon.path)) as c:
            g = await c.join("g")
            daemon.deaf = True
            sent = 0
            while g.send_nowait(bytes([sent]) * (PART // 16)):
                sent += 1
                if sent % 2:
                    await asyncio.sleep(0)
                assert sent < 100, "no back-pressure"
            assert sent > 1
            with pytest.raises(Timeout, match="writing to the daemon"):
                await c.writable(0.05)
            assert not g.send_nowait(b"still not")
            daemon.deaf = False
            await c.writable()
            assert g.send_nowait(b"the last")
            got: list[bytes] = []
            while len(got) <= sent:
                got += [m.data for m in await g.recv_batch()]
            assert [m[0] for m in got[:-1]] == list(range(sent)) and got[-1] == b"the last"
            with pytest.raises(TooLarge):
                g.send_nowait(bytes(MESSAGE_MAX + 1))
            await g.leave()
            with pytest.raises(NotMember):
                g.send_nowait(b"x")
        await daemon.stop()

    asyncio.run(story())


def test_one_turn_of_the_loop_cannot_queue_without_bound(tmp_path: Path) -> None:
    async def story() -> None:
        daemon = FakeDaemon(tmp_path / "z.sock")
        await daemon.start()
        async with asyncio.timeout(60), connect(str(daemon.path)) as c:
            g = await c.join("g")
            taken = [g.send_nowait(bytes(PART)) for _ in range(20)]
            assert taken == [True] * 4 + [False] * 16, "1 MiB in one turn"
            await c.writable()
            assert g.send_nowait(b"x")
        await daemon.stop()

    asyncio.run(story())


def test_sync_feels_back_pressure(tmp_path: Path) -> None:
    with fake_daemon(tmp_path) as fake, connect_sync(str(fake.daemon.path), timeout=60) as c:
        g = c.join("g")
        fake.daemon.deaf = True
        sent = 0
        while True:
            while g.send_nowait(bytes(PART)):
                sent += 1
                assert sent < 100, "no back-pressure"
            try:
                c.writable(0.2)  # what the daemon was reading when it went deaf makes room once
            except Timeout:
                break
        fake.daemon.deaf = False
        c.writable()
        assert g.send_nowait(b"the last")
        got = 0
        while got <= sent:
            got += len(g.recv_batch())


def test_quorum_as_last_heard(tmp_path: Path) -> None:
    async def story() -> None:
        daemon = FakeDaemon(tmp_path / "z.sock")
        await daemon.start()
        async with asyncio.timeout(60), connect(str(daemon.path)) as c:
            await c.join("g")

            async def told(expected: bool, **event: object) -> None:
                daemon.event(**event)
                while c.quorum is not expected:
                    await asyncio.sleep(0.001)

            assert c.quorum
            await told(False, event="blocked", stations=[{"station": 3, "reason": "silent"}], quorum=False)
            await told(True, event="unblocked")
            await told(False, event="closed", instance=7, reason="silent", station=3)
            await told(True, event="reopened", instance=8, members=[1, 2], joined=False, undecided=0)
        assert not c.quorum, "a closed connection hears of none"
        await daemon.stop()

    asyncio.run(story())


class Full:
    """A socket that takes nothing the first time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._was_full = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def send(self, data: bytes) -> int:
        if not self._was_full:
            self._was_full = True
            raise BlockingIOError
        return self._sock.send(data)


def test_who_waits_until_all_is_written_goes_on_when_it_is(tmp_path: Path) -> None:
    """Room that came just before the wait let the rest out, and then nothing was to come: a program that only sends at level
    ``sent`` stood still until its time-out."""
    with fake_daemon(tmp_path) as daemon, connect_sync(str(daemon.daemon.path)) as c:
        group = c.join("g", send_only=True, open_group=True)
        c._wire.socket = cast("Any", Full(c._wire.socket))
        group.send(b"x", "sent", 0.5)
