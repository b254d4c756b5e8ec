"""The two frames of the client protocol that the lab needs: greet a daemon, ask for its status."""

from __future__ import annotations

import json
import socket
import struct
import time
from pathlib import Path
from typing import Any, Final

from ...daemon.clientwire import BODY_MAX, HEADER, HELLO, MAGIC, Frame
from .errors import LabError, LabTimeout

_VERSION: Final = 1
"""The oldest will do, and finds daemons of every release."""


def daemon_status(path: Path, timeout_s: float) -> dict[str, Any]:
    """The status of the daemon at a client socket: the members of WELCOME, then those of STATUS_REPLY.

    Raises LabTimeout after *timeout_s* seconds and LabError when no process listens or the answer is malformed.
    """
    deadline = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.settimeout(timeout_s)
            sock.connect(str(path))
            hello = HELLO.struct.pack(MAGIC, _VERSION, _VERSION) + b"zenjun lab"
            sock.sendall(HEADER.struct.pack(len(hello), Frame.HELLO, 0, 0) + hello + HEADER.struct.pack(0, Frame.STATUS, 0, 0))
            stream = sock.makefile("rb")
            status: dict[str, Any] = {}
            while True:
                sock.settimeout(max(0.001, deadline - time.monotonic()))
                size, kind, _flags, _handle = HEADER.struct.unpack(stream.read(HEADER.size))
                if size > BODY_MAX:
                    raise LabError(f"{path}: a frame of {size} bytes")
                body = stream.read(size)
                if kind in (Frame.WELCOME, Frame.STATUS_REPLY):
                    status |= json.loads(body)
                if kind == Frame.STATUS_REPLY:
                    return status
                if kind == Frame.ERROR:
                    raise LabError(f"{path}: the daemon answers: {json.loads(body).get('message')}")
        except TimeoutError:
            raise LabTimeout(f"{path}: the daemon does not answer") from None
        except OSError as error:
            raise LabError(f"{path}: {error.strerror}") from error
        except (struct.error, ValueError) as error:
            raise LabError(f"{path}: the daemon closed the connection or sent rubbish ({error})") from error
