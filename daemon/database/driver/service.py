"""The program's side of the socket: one request after the other."""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import Any, Final

from ....proto.service.database.machine import Durability
from ....proto.service.database.messages import pack_write
from ...client.common import SOCKET_ENV as DAEMON_ENV
from ...client.common import program_name
from ...jsonframes import Frame, FrameError, Frames, pack
from ..errors import InterfaceError, NotReachable, OperationalError, error_of
from ..wire import FRAME_MAX, SOCKET, SOCKET_ENV, VERSION, Commit, beside, pack_commit, to_text, unpack_version

READ_BYTES: Final = 64 * 1024
RETRY_S: Final = 0.1
"""Between two tries to reach the database process again."""
TICK: Final = struct.pack("@ll", 0, 500_000)
"""Half a second, as a ``timeval``: a call of the system that waits longer comes back, and is made again."""
SLACK_S: Final = 5.0
"""What an answer may take beyond the time in which the process gives one."""


class Lost(OperationalError):
    """The connection to the database process has ended; what was asked may have been done."""


def socket_path(path: str | None) -> str:
    """The socket to use: the one given, else $ZENJUN_DB, else beside $ZENJUN_SOCKET, else the packaged default."""
    if path is not None:
        return path
    if found := os.environ.get(SOCKET_ENV):
        return found
    if daemon := os.environ.get(DAEMON_ENV):
        return beside(daemon)
    return SOCKET


class Service:
    """A connection to the database process of this station."""

    def __init__(self, path: str | None = None, *, timeout: float = 30.0) -> None:
        """Raises NotReachable."""
        self.path = socket_path(path)
        self._frames = Frames(FRAME_MAX, _version)
        self._number = 0
        self._ready: list[Frame] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(self.path)
            # Not Python's time-out, which makes two calls of the system of one.
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._socket.setsockopt(socket.SOL_SOCKET, option, TICK)
            self._write(pack({"hello": VERSION, "name": program_name()}), time.monotonic() + timeout)
            self.welcome = self._read(time.monotonic() + timeout)
        except OSError as error:
            self.close()
            why = error.strerror or str(error)
            if isinstance(error, FileNotFoundError | ConnectionRefusedError):
                why = "is zenjun-db running?"
            elif isinstance(error, PermissionError):
                why = "permission denied; see socket_mode and socket_group of [station]"
            raise NotReachable(f"cannot reach the database process at {self.path}: {why}") from None
        except Lost as error:
            self.close()
            raise NotReachable(f"cannot reach the database process at {self.path}: {error}") from None
        if "error" in self.welcome:
            self.close()
            raise InterfaceError(str(self.welcome["error"].get("text", "")))

    @property
    def station(self) -> int:
        """Which station this is, 1..n."""
        return int(self.welcome["station"])

    def ask(self, do: str, *, timeout: float, **arguments: Any) -> Frame:
        """The answer to a request. Raises Lost, and what the process refuses with (``errors.error_of``)."""
        self._number += 1
        deadline = time.monotonic() + timeout + SLACK_S
        self._write(self._packed(do, timeout, arguments), deadline)
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._number:
                break
            if "id" not in answer:
                raise Lost(str(answer.get("error", {}).get("text", "the database process has closed the connection")))
        if "error" in answer:
            raise error_of(str(answer["error"]["code"]), str(answer["error"]["text"]))
        ok: Frame = answer["ok"]
        return ok

    def _packed(self, do: str, timeout: float, arguments: dict[str, Any]) -> bytes:
        """The frame of a request."""
        if do == "commit" and type(arguments.get("txid")) is bytes and "pieces" not in arguments:
            asked = arguments
            data = pack_write(asked["txid"], asked["epoch"], asked["snapshot"], asked["reads"], asked["body"])
            again, durability = bool(asked.get("again")), Durability(asked["durability"])
            return pack_commit(Commit(self._number, again, durability, timeout, asked["db"], data))
        given = {k: to_text(v) if type(v) is bytes else v for k, v in arguments.items() if v is not None}
        return pack({"id": self._number, "do": do, "timeout": timeout, **given})

    def has_ended(self) -> bool:
        """The process has closed the connection, or has gone; without waiting."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self._socket.close()

    def _write(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                self._check_time(deadline)
            except OSError as error:
                raise Lost(f"the connection to the database process broke: {error.strerror or error}") from None

    def _read(self, deadline: float) -> Frame:
        while not self._ready:
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                self._check_time(deadline)
                continue
            except OSError as error:
                raise Lost(f"the connection to the database process broke: {error.strerror or error}") from None
            if not data:
                raise Lost("the database process has closed the connection")
            try:
                self._ready.extend(self._frames.feed(data))
            except FrameError as error:
                raise Lost(f"the database process sent {error}") from None
        return self._ready.pop(0)

    def _check_time(self, deadline: float) -> None:
        if time.monotonic() >= deadline:
            raise Lost("the database process does not answer")


def _version(body: bytes) -> Frame:
    try:
        number, version = unpack_version(body)
    except ValueError as error:
        raise FrameError(str(error)) from None
    return {"id": number, "ok": {"version": version}}
