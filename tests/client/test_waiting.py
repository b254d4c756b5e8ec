"""Waiting for a socket whose descriptor is beyond what select() takes."""

from __future__ import annotations

import fcntl
import resource
import socket
from collections.abc import Iterator

import pytest
from zenjun.daemon.client.common import ready

BEYOND = 1500


@pytest.fixture
def far() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends, one of them far up."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], min(limits[1], 2 * BEYOND)), limits[1]))
    near, other = socket.socketpair()
    with near, other, socket.socket(fileno=fcntl.fcntl(near, fcntl.F_DUPFD_CLOEXEC, BEYOND)) as end:
        yield end, other
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_descriptor_beyond_select(far: tuple[socket.socket, socket.socket]) -> None:
    end, other = far
    assert end.fileno() >= BEYOND
    assert not ready(end, 0.0) and not ready(end, 0.01) and not ready(end, -1.0)
    assert ready(end, None, writing=True)
    other.send(b"x")
    assert ready(end, None)
    end.recv(1)
    end.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            end.send(bytes(65536))
    assert not ready(end, 0.01, writing=True)
    other.close()
    assert ready(end, None) and ready(end, None, writing=True), "its end is something to see"
