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
        result = NotReachable(f"cannot reach the directory at {path}: {_why(error)}")
        result.final = not isinstance(error, FileNotFoundError | ConnectionRefusedError | BlockingIOError)
        raise result from None
    return sock


def _why(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return (
            "there is no such socket; is zenjun-directory running? It is a process of its own beside zenjund: "
            "systemctl enable --now zenjun-directory, in a lab zenjun lab up --directory"
        )
    if isinstance(error, ConnectionRefusedError | BlockingIOError):
        return "nobody listens there: is zenjun-directory running?"
    if isinstance(error, PermissionError):
        return "permission denied; see socket_mode and socket_group of [station]"
    return error.strerror or str(error)
