"""Requests and replies between the lab's processes: a 4-byte length, then one JSON object, over a Unix stream socket."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any, Final

from .errors import LabError, LabTimeout

_LENGTH = struct.Struct("!I")
MESSAGE_MAX: Final = 64 * 1024 * 1024
PATH_MAX: Final = 107
"""Longest path of a Unix socket, bytes (sun_path less its terminating zero)."""

Message = dict[str, Any]


def send(sock: socket.socket, message: Message) -> None:
    """Send one message. Raises OSError when the other end is gone."""
    body = json.dumps(message).encode()
    sock.sendall(_LENGTH.pack(len(body)) + body)


def receive(sock: socket.socket, timeout_s: float) -> Message | None:
    """One message, or None at the end of the stream. Raises LabTimeout after *timeout_s* seconds, LabError on rubbish."""
    deadline = time.monotonic() + timeout_s
    header = _exactly(sock, _LENGTH.size, deadline)
    if header is None:
        return None
    (size,) = _LENGTH.unpack(header)
    if size > MESSAGE_MAX:
        raise LabError(f"a message of {size} bytes from another lab process (limit {MESSAGE_MAX})")
    body = _exactly(sock, size, deadline)
    if body is None:
        return None
    message = json.loads(body)
    if not isinstance(message, dict):
        raise LabError("a message from another lab process is no JSON object")
    return message


def _exactly(sock: socket.socket, size: int, deadline: float) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise LabTimeout("no answer from a lab process in time")
        sock.settimeout(left)
        try:
            part = sock.recv(min(size - len(parts), 1 << 20))
        except TimeoutError:
            raise LabTimeout("no answer from a lab process in time") from None
        except ConnectionError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)
