"""What the async and the sync connection share besides the protocol."""

from __future__ import annotations

import os
import select
import socket
import sys
from pathlib import Path
from typing import Any, Final, TypeAlias

from .errors import ClientError, ConnectionClosed, NotReachable, Timeout
from .protocol import ClientProtocol
from .types import Member, Station, Tokens

SOCKET: Final = "/run/zenjun/zenjund.sock"
SOCKET_ENV: Final = "ZENJUN_SOCKET"
TIMEOUT_S: Final = 30.0
RETRY_FIRST_S: Final = 0.02
RETRY_MAX_S: Final = 0.5
PIPELINE_WINDOW: Final = 8192
PIPELINE_BYTES: Final = 4 * 1024 * 1024
RUN_BYTES: Final = 64 * 1024
READ_BYTES: Final = 256 * 1024


class Default:
    """Type of ``DEFAULT``: the connection's own timeout."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT: Final = Default()
Seconds: TypeAlias = float | Default | None
"""A call's timeout: seconds, None forever, DEFAULT the connection's."""


class Wire:
    """A non-blocking socket and the protocol it feeds. Errors of the socket end the protocol; nothing is raised."""

    def __init__(self, sock: socket.socket, protocol: ClientProtocol) -> None:
        self.socket = sock
        self.protocol = protocol
        self._process = os.getpid()
        self.unwritten = memoryview(b"")
        self._buffer = bytearray(READ_BYTES)

    @property
    def foreign(self) -> bool:
        """Whether this is a copy in a child of the process that made the connection."""
        return self._process != os.getpid()

    def check_owner(self) -> None:
        """Raise RuntimeError in a forked child: two processes would take each other's answers and messages."""
        if self._process != os.getpid():
            raise RuntimeError(f"this is a connection of process {self._process}; connect again after fork")

    def abandon(self) -> None:
        """In a forked child: close its descriptor. The connection stays open in the process that made it."""
        self.protocol.lost(None)
        self.socket.close()

    def read(self) -> None:
        """One read of what is there."""
        self.check_owner()
        try:
            size = self.socket.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError as error:
            self.protocol.lost(ConnectionClosed(f"the connection to the daemon broke: {error.strerror or error}"))
            return
        if size:
            self.protocol.receive(bytes(memoryview(self._buffer)[:size]))
        else:
            self.protocol.eof()

    def flush(self) -> None:
        """Write as much of what is queued as the socket takes now; the rest stays in ``unwritten``."""
        self.check_owner()
        while not self.protocol.ended.settled:
            if not self.unwritten:
                data = self.protocol.take_output()
                if not data:
                    return
                self.unwritten = memoryview(data)
            try:
                written = self.socket.send(self.unwritten)
            except BlockingIOError:
                return
            except OSError as error:
                self._last_words(error)
                return
            self.unwritten = self.unwritten[written:]

    def _last_words(self, error: OSError) -> None:
        """Writing failed: the daemon has closed. Its last frames (above all the reason) matter more than EPIPE."""
        while not self.protocol.ended.settled:
            before = self.protocol.received_bytes
            self.read()
            if self.protocol.received_bytes == before:
                self.protocol.lost(ConnectionClosed(f"the connection to the daemon broke: {error.strerror or error}"))


def socket_path(path: str | os.PathLike[str] | None) -> str:
    """The socket to use: the one given, else $ZENJUN_SOCKET, else the packaged default."""
    return os.fspath(path) if path is not None else os.environ.get(SOCKET_ENV) or SOCKET


def program_name() -> str:
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"


def ready(sock: socket.socket, seconds: float | None, *, writing: bool = False) -> bool:
    """Wait until there is something to read, or room to write; False: not in this time (None: for ever). Not by select(), which
    fails for descriptors from 1,024 on."""
    poll = select.poll()
    poll.register(sock, select.POLLOUT if writing else select.POLLIN)
    return bool(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))


def open_socket(path: str) -> socket.socket:
    """A non-blocking socket connected to the daemon. A Unix socket connects at once or not at all. Raises NotReachable."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.connect(path)
    except OSError as error:
        sock.close()
        raise _unreachable(path, error) from None
    return sock


def _unreachable(path: str, error: OSError) -> NotReachable:
    """NotReachable with the likely reason; ``final`` is set on it if waiting cannot help."""
    if isinstance(error, FileNotFoundError):
        why, final = "there is no such socket; is zenjund running?", False
    elif isinstance(error, ConnectionRefusedError):
        why, final = "nobody listens there; is zenjund running?", False
    elif isinstance(error, BlockingIOError):
        why, final = "its queue of new connections is full", False
    elif isinstance(error, PermissionError):
        why, final = "permission denied; see socket_mode and socket_group in the daemon's configuration", True
    else:
        why, final = error.strerror or str(error), True
    result = NotReachable(f"cannot reach the daemon at {path}: {why}")
    result.final = final
    return result


def timed_out(protocol: ClientProtocol, what: str, timeout: float) -> Timeout:
    """The Timeout of a call, with what is known about the reason."""
    text = f"{what}: nothing after {round(timeout, 3):g} s"
    if protocol.blocked:
        text += "; the cluster waits for " + ", ".join(f"station {s} ({reason})" for s, reason in protocol.blocked)
        text += "" if protocol.quorum else "; without quorum nothing is sent or delivered"
    elif protocol.outside:
        text += f"; this station is in no instance now: {protocol.outside}"
    elif protocol.welcome is not None and protocol.instance == 0:
        text += "; the cluster is not open yet"
    if not protocol.may_read:
        text += (
            f"; {protocol.inbox_bytes} bytes unread in the groups hold back the answer (read them, or join with receive=False)"
        )
    error = Timeout(text)
    error.not_open = protocol.welcome is not None and (protocol.instance == 0 or bool(protocol.outside))
    return error


def members_of(reply: dict[str, Any]) -> tuple[Member, ...]:
    """The members in a MEMBERS_REPLY."""
    return tuple(Member(int(m[0]), int(m[1]), str(m[2] or "")) for m in reply.get("members", ()))


def tokens_of(reply: dict[str, Any]) -> Tokens | None:
    """The tokens in a MEMBERS_REPLY; None: the group has no members, or another order."""
    told = reply.get("tokens")
    if told is None:
        return None
    return Tokens(tuple(int(z) for z in told["hosts"]), int(told["super"]), {int(z): int(host) for z, host in told["follows"]})


def stations_of(reply: dict[str, Any]) -> tuple[Station, ...]:
    """The stations in the MEMBERS_REPLY to a MEMBERS without a name."""
    return tuple(
        Station(int(d["station"]), int(d["incarnation"]), str(d["host"]), bool(d["member"]), d.get("letter"), d.get("state"))
        for d in reply.get("detail", ())
    )


def why_ended(protocol: ClientProtocol) -> ClientError:
    """The error that ended the connection, as a fresh copy."""
    try:
        protocol.ended.result()
    except ClientError as error:
        return error
    return ConnectionClosed("the connection was closed")
