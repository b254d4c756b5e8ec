"""Where the directory process is."""

from __future__ import annotations

import os
import socket

from ..client.common import SOCKET_ENV as DAEMON_ENV
from ..client.errors import NotReachable
from ..directory.wire import SOCKET, SOCKET_ENV, beside


def socket_path(path: str | None) -> str:
    """The socket to use: the one given, else $ZENJUN_DIRECTORY, else beside $ZENJUN_SOCKET, else the packaged default."""
    if path is not None:
        return path
    if found := os.environ.get(SOCKET_ENV):
        return found
    if daemon := os.environ.get(DAEMON_ENV):
        return beside(daemon)
    return SOCKET


def open_socket(path: str) -> socket.socket:
    """A blocking socket connected to the process. Raises NotReachable."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        final = not isinstance(error, FileNotFoundError | ConnectionRefusedError | BlockingIOError)
        why = "permission denied" if isinstance(error, PermissionError) else "is zenjun-directory running?"
        if final and not isinstance(error, PermissionError):
            why = error.strerror or str(error)
        result = NotReachable(f"cannot reach the directory at {path}: {why}")
        result.final = final
        raise result from None
    return sock
