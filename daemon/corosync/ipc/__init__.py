"""libqb's IPC for corosync's local services: connections of programs, their requests, answers and events (``ipc.h``)."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from ._ipc import ffi, lib

LIBRARY: Final = "libqb.so.100"
SERVICES: Final = {"cmap": 0, "cfg": 1, "cpg": 2, "quorum": 3, "votequorum": 5}
"""Names under which corosync's libraries look for their services, and corosync's numbers of these."""
_NAMES: Final = {number: name for name, number in SERVICES.items()}
_PATH_BYTES: Final = 108
"""libqb fills up the abstract name of a socket with zeros."""
_CREDENTIALS: Final = struct.Struct("3i")
_lib: Any = lib
_ffi: Any = ffi


class IpcError(Exception):
    """The services cannot be served; one line for the operator."""


class Reason(IntEnum):
    """Why a connection has ended or was refused."""

    BY_PROGRAM = _lib.IPC_BY_PROGRAM
    RIGHTS = _lib.IPC_RIGHTS
    TOO_MANY = _lib.IPC_TOO_MANY
    BUFFER = _lib.IPC_BUFFER
    QUEUE = _lib.IPC_QUEUE
    BROKEN = _lib.IPC_BROKEN
    ENDED = _lib.IPC_ENDED


TEXTS: Final = {
    Reason.BY_PROGRAM: "closed by the program",
    Reason.RIGHTS: "neither root nor in uidgid",
    Reason.TOO_MANY: f"more than {_lib.IPC_CONNECTIONS_MAX} connections, or no memory",
    Reason.BUFFER: f"its buffer would be larger than {_lib.IPC_BUFFER_MAX} bytes",
    Reason.QUEUE: "it does not take its events",
    Reason.BROKEN: "it has sent something that is no request, or does not take its answers",
    Reason.ENDED: "ended by the stand-in",
}


class Opened(NamedTuple):
    connection: int
    service: str
    pid: int
    """As the kernel says; 0: not known."""
    uid: int
    gid: int


class Asked(NamedTuple):
    connection: int
    service: str
    message: bytes


class Said(NamedTuple):
    """A message to the program's process group, as the stand-ins' group has it (``Server.route``)."""

    connection: int
    message: bytes


class Ended(NamedTuple):
    connection: int
    service: str
    reason: Reason


class Refused(NamedTuple):
    service: str
    reason: Reason
    uid: int
    gid: int


class Server:
    """All services of this process; there is one at a time. Its methods never wait."""

    def __init__(self, queue_bytes_max: int, library: str = LIBRARY) -> None:
        """queue_bytes_max: of a connection's events that have no room. Raises IpcError if libqb cannot be loaded."""
        self._server = _lib.ipc_create(library.encode(), queue_bytes_max)
        if self._server == _ffi.NULL:
            raise IpcError(f"{library} (package libqb100): {_ffi.string(_lib.ipc_why()).decode(errors='replace')}")

    def serve(self, name: str) -> None:
        """Raises IpcError, with the pid of the server that there is already."""
        error = _lib.ipc_serve(self._server, name.encode(), SERVICES[name])
        if error == -errno.EADDRINUSE:
            pid = owner(name)
            raise IpcError(f"service {name} is served already" + (f" by process {pid}" if pid else ""))
        if error:
            raise IpcError(f"service {name}: {errno.errorcode.get(-error, error)}")

    def allow(self, uids: Iterable[int], gids: Iterable[int]) -> None:
        """Who may connect besides uid 0 and gid 0."""
        lists = [list(uids), list(gids)]
        if _lib.ipc_allow(self._server, lists[0], len(lists[0]), lists[1], len(lists[1])):
            raise MemoryError

    def fileno(self) -> int:
        """Readable while ``turn`` has something to do."""
        return int(_lib.ipc_fd(self._server))

    def turn(self) -> list[Opened | Asked | Said | Ended | Refused]:
        """Serve what is ready, at most a batch of each connection; what has come in, in its order."""
        count = _lib.ipc_turn(self._server)
        items, data = _lib.ipc_items(self._server), _lib.ipc_bytes(self._server)
        said = _lib.IPC_SAID
        found: list[Opened | Asked | Said | Ended | Refused] = []
        for k in range(count):
            item = items[k]
            if item.kind == said:
                found.append(Said(item.connection, bytes(_ffi.buffer(data + item.at, item.size))))
                continue
            service = _NAMES[item.service]
            if item.kind == _lib.IPC_REQUEST:
                found.append(Asked(item.connection, service, bytes(_ffi.buffer(data + item.at, item.size))))
            elif item.kind == _lib.IPC_OPENED:
                found.append(Opened(item.connection, service, item.pid, item.uid, item.gid))
            elif item.kind == _lib.IPC_CLOSED:
                found.append(Ended(item.connection, service, Reason(item.reason)))
            else:
                found.append(Refused(service, Reason(item.reason), item.uid, item.gid))
        _lib.ipc_clear(self._server)
        return found

    def answer(self, connection: int, message: bytes) -> None:
        """The answer to a request; nothing happens for a connection that has ended."""
        _lib.ipc_answer(self._server, connection, _ffi.from_buffer(message), len(message))

    def event(self, connections: Sequence[int], message: bytes) -> None:
        """The same event to several; what has no room waits."""
        _lib.ipc_event(self._server, list(connections), len(connections), _ffi.from_buffer(message), len(message))

    def route(self, connection: int, head: bytes) -> None:
        """The connection's messages to its process group come as ``Said`` and begin so; empty: they come as requests."""
        if _lib.ipc_route(self._server, connection, head, len(head)):
            raise ValueError(f"{len(head)} bytes are no head of a message")

    def hearers(self, connections: Sequence[int]) -> Any:
        """For ``deliver``."""
        return _ffi.new("uint32_t[]", connections)

    def deliver(self, hearers: Any, count: int, node: int, message: bytes) -> None:
        """A whole message to a process group, as the stand-ins' group has it, as an event of libcpg to several connections."""
        if _lib.ipc_deliver(self._server, hearers, count, node, message, len(message)):
            raise ValueError("not a whole message, or no memory")

    def deliver_all(self, hearers: Any, count: int, node: int, head: bytes, bundle: bytes, at: int) -> int:
        """Whole messages of a bundle from there on, as long as they begin so; where the next one begins. At least one."""
        end = _lib.ipc_deliver_all(self._server, hearers, count, node, head, len(head), bundle, len(bundle), at)
        if end <= at:
            raise ValueError("not a whole message, or no memory")
        return int(end)

    def pause(self, connection: int, paused: bool) -> None:
        """Stop or start reading the requests of a connection."""
        _lib.ipc_pause(self._server, connection, paused)

    def end(self, connection: int) -> None:
        _lib.ipc_end(self._server, connection)

    def waiting(self, connection: int) -> int:
        """Bytes of events that have no room yet."""
        return int(_lib.ipc_waiting(self._server, connection))

    def close(self) -> None:
        """End all connections and services."""
        if self._server is not None:
            _lib.ipc_destroy(self._server)
            self._server = None


def owner(name: str) -> int:
    """The process that serves a name here; 0: none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(b"\0" + name.encode().ljust(_PATH_BYTES - 1, b"\0"))
            pid, _, _ = _CREDENTIALS.unpack(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        except OSError:
            return 0
    return int(pid)
