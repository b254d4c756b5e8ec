"""Waiting for an exclusive name: every end of it is seen, at both clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
from zenjun.daemon.client.errors import ConnectionClosed
from zenjun.daemon.directory.wire import pack
from zenjun.daemon.names.aio import Directory, _Link
from zenjun.daemon.names.protocol import NamesProtocol
from zenjun.daemon.names.sync import SyncDirectory, SyncLease

QUEUED = {"lease": 7, "place": "4294967300.1.0", "held": False}


def told(event: str) -> bytes:
    return pack({"lease": 7, "event": event})


async def waited(act: Callable[[NamesProtocol], None], timeout: float | None = None) -> bool:
    directory = Directory(_Link(NamesProtocol("test")), 1.0)
    lease = directory.register("job", "tcp://10.0.0.1:1", exclusive=True)
    lease._registered(directory._protocol, QUEUED)
    waiting = asyncio.create_task(lease.wait_held(timeout))
    await asyncio.sleep(0)
    act(directory._protocol)
    return await asyncio.wait_for(waiting, 60)


def test_asyncio_sees_that_the_name_is_its_own() -> None:
    assert asyncio.run(waited(lambda protocol: protocol.receive(told("held"))))


def test_asyncio_sees_that_the_lease_has_ended() -> None:
    assert not asyncio.run(waited(lambda protocol: protocol.receive(told("ended"))))


def test_asyncio_sees_that_the_connection_is_over() -> None:
    with pytest.raises(ConnectionClosed):
        asyncio.run(waited(lambda protocol: protocol.lost(None)))


def test_asyncio_waits_no_longer_than_told() -> None:
    assert not asyncio.run(waited(lambda protocol: None, 0.05))


def test_sync_sees_the_same() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        directory = SyncDirectory(ours, NamesProtocol("test"), 1.0)
        lease = SyncLease(directory, QUEUED)
        assert not lease.wait_held(0.05)
        theirs.sendall(told("held"))
        assert lease.wait_held(60)
        theirs.sendall(told("ended"))
        directory.poll()
        assert not lease.wait_held(60)
        theirs.close()
        with pytest.raises(ConnectionClosed):
            directory.poll()
