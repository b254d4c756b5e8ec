"""libqb's IPC for corosync's local services, and the connection to zenjund, in one loop in C (``ipc.h``)."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

from ....proto.errors import InvariantError
from ....proto.service.base import Place, Source
from ....proto.service.corosync.cpg import Room
from ....proto.service.corosync.messages import LENGTH_BYTES
from ....proto.service.corosync.ring import UnderWay
from ._ipc import ffi, lib

LIBRARY: Final = "libqb.so.100"
SERVICES: Final = {"cmap": 0, "cfg": 1, "cpg": 2, "quorum": 3, "votequorum": 5}
"""Names under which corosync's libraries look for their services, and corosync's numbers of these."""
_NAMES: Final = {number: name for name, number in SERVICES.items()}
_PATH_BYTES: Final = 108
"""libqb fills up the abstract name of a socket with zeros."""
_CREDENTIALS: Final = struct.Struct("3i")
_SOURCE: Final = struct.Struct("=II")
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


class Welcomed(NamedTuple):
    """The connection to zenjund stands."""

    serial: int
    source: Source
    """This station, and the number of this connection there."""
    mtu: int
    message_max: int


class Viewed(NamedTuple):
    """The members of the stand-ins' group are others from here on."""

    serial: int
    place: Place
    members: frozenset[Source]


class Told(NamedTuple):
    """A message of the group that has no lane; None: something that is no message."""

    serial: int
    source: Source
    message: bytes | None


class Happened(NamedTuple):
    """zenjund, or the connection to it, says so."""

    serial: int
    what: int
    """``BLOCKED``, ``UNBLOCKED``, ``FENCED`` or ``LOST``."""
    why: str


BLOCKED, UNBLOCKED, FENCED, LOST = (int(n) for n in (_lib.IPC_BLOCKED, _lib.IPC_UNBLOCKED, _lib.IPC_FENCED, _lib.IPC_LOST))


class Ended(NamedTuple):
    connection: int
    service: str
    reason: Reason


class Refused(NamedTuple):
    service: str
    reason: Reason
    uid: int
    gid: int


OrderItem: TypeAlias = Welcomed | Viewed | Told | Happened
Item: TypeAlias = Opened | Asked | Said | Ended | Refused | OrderItem


class Server:
    """All services of this process, and its connection to zenjund; there is one at a time. Its methods never wait."""

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

    def turn(self) -> list[Item]:
        """Serve what is ready, at most a batch of each connection; what has come in, in its order. Of the connection to zenjund
        there is one item at most, the last one."""
        count = _lib.ipc_turn(self._server)
        if not count:
            return []
        items, data = _lib.ipc_items(self._server), _lib.ipc_bytes(self._server)
        said = _lib.IPC_SAID
        found: list[Item] = []
        for k in range(count):
            item = items[k]
            if item.kind == said:
                found.append(Said(item.connection, bytes(_ffi.buffer(data + item.at, item.size))))
                continue
            if item.kind >= _lib.IPC_WELCOME:
                found.append(_of_order(item, bytes(_ffi.buffer(data + item.at, item.size))))
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
        """The connection's messages to its process group begin so, and go out at once as long as ``clear_lanes`` said so and
        there is room, otherwise they come as ``Said``. Empty: they come as requests."""
        if _lib.ipc_route(self._server, connection, head, len(head)):
            raise ValueError(f"{len(head)} bytes are no head of a message")

    def lane(self, source: Source, head: bytes, node: int, hearers: Sequence[int], sender: int) -> None:
        """Whole messages of this source that begin so are of this node and go to these connections, until ``clear_lanes``.
        sender: the connection that sends them, 0: none here."""
        if _lib.ipc_lane(self._server, *source, head, len(head), node, list(hearers), len(hearers), sender):
            raise ValueError("no head of a message, or no memory")

    def clear_lanes(self, *, sending: bool) -> None:
        """sending: what programs say to their groups goes out at once."""
        _lib.ipc_lanes_clear(self._server, sending)

    def deliver(self, hearers: Sequence[int], node: int, message: bytes) -> None:
        """A whole message to a process group, as the stand-ins' group has it, as an event of libcpg to several connections."""
        if _lib.ipc_deliver(self._server, list(hearers), len(hearers), node, message, len(message)):
            raise ValueError("not a whole message, or no memory")

    def open(self, path: str, name: str, serial: int) -> str:
        """Connect to zenjund. Empty, or why that is impossible; ``Welcomed`` or ``LOST`` with this serial number follow."""
        error = _lib.ipc_order_open(self._server, path.encode(), name.encode(), serial)
        return _text(_lib.ipc_order_error(error)) if error else ""

    def join(self, group: str) -> str:
        """Join the stand-ins' group. Empty, or why that is impossible."""
        error = _lib.ipc_order_join(self._server, group.encode())
        return _text(_lib.ipc_order_error(error)) if error else ""

    def ask(self, group: str) -> None:
        """Have zenjund say who is in the group, unless it still owes the last answer."""
        _lib.ipc_order_ask(self._server, group.encode())

    @property
    def heard(self) -> int:
        """How often something has come from zenjund."""
        return int(_lib.ipc_order_heard(self._server))

    def part(self) -> None:
        """End the connection to zenjund, if there is one: nothing of it comes any more."""
        if self._server is not None:
            _lib.ipc_order_close(self._server)

    def send(self, message: bytes) -> None:
        """The oldest own message that has not been sent may go out: with the next turn, as all that may by then."""
        if _lib.ipc_own_free(self._server, message, len(message)):
            raise InvariantError("own messages go out in their order")

    @property
    def has_room(self) -> bool:
        """zenjund takes what is sent, or not much of it waits."""
        return bool(_lib.ipc_own_has_room(self._server))

    def under_way(self) -> UnderWay:
        """Own messages that have no place yet, for the ring."""
        return _Own(self._server)

    def room(self) -> Room:
        """What is under way of each connection, for the process groups."""
        return _Ways(self._server)

    def pause(self, connection: int, paused: bool) -> None:
        """Stop or start reading the requests of a connection."""
        _lib.ipc_pause(self._server, connection, paused)

    def end(self, connection: int) -> None:
        _lib.ipc_end(self._server, connection)

    def waiting(self, connection: int) -> int:
        """Bytes of events that have no room yet."""
        return int(_lib.ipc_waiting(self._server, connection))

    def takes_events(self, connection: int) -> bool:
        """There is room for what the program would get back of what it sends."""
        return bool(_lib.ipc_takes_events(self._server, connection))

    def close(self) -> None:
        """End all connections and services."""
        if self._server is not None:
            _lib.ipc_destroy(self._server)
            self._server = None


class _Own(UnderWay):
    """With those that have gone out without Python."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def append(self, message: bytes) -> None:
        if _lib.ipc_own_add(self._server, message, len(message)):
            raise MemoryError

    def came_back(self, message: bytes) -> bool:
        return not _lib.ipc_own_back(self._server, message, len(message))

    def clear(self) -> None:
        _lib.ipc_own_clear(self._server)

    def __len__(self) -> int:
        return int(_lib.ipc_own_count(self._server))

    def __iter__(self) -> Iterator[bytes]:
        first = _ffi.new("const uint8_t**")
        size = int(_lib.ipc_own_bytes(self._server, first))
        data, at = bytes(_ffi.buffer(first[0], size)) if size else b"", 0
        while at < size:
            length = int.from_bytes(data[at : at + LENGTH_BYTES], "big")
            yield data[at + LENGTH_BYTES : at + LENGTH_BYTES + length]
            at += LENGTH_BYTES + length


class _Ways(Room):
    """C counts what it sends and delivers by itself."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def of(self, number: int) -> int:
        return int(_lib.ipc_way_bytes(self._server, number))

    def add(self, number: int, size: int) -> None:
        _lib.ipc_way_add(self._server, number, size)

    def end(self, number: int) -> None:
        """Its memory ends with the connection."""


def _text(of: Any) -> str:
    return bytes(_ffi.string(of)).decode(errors="replace")


def _of_order(item: Any, data: bytes) -> OrderItem:
    serial, source = int(item.connection), (int(item.station), int(item.client))
    if item.kind == _lib.IPC_WELCOME:
        return Welcomed(serial, source, int(item.value), int(item.clock))
    if item.kind == _lib.IPC_VIEW:
        return Viewed(serial, (int(item.clock), source[0], int(item.value)), frozenset(_SOURCE.iter_unpack(data)))
    if item.kind in (_lib.IPC_TOLD, _lib.IPC_MALFORMED):
        return Told(serial, source, data if item.kind == _lib.IPC_TOLD else None)
    if item.kind == _lib.IPC_BUG:
        raise InvariantError(data.decode())
    return Happened(serial, int(item.kind), data.decode(errors="replace"))


def owner(name: str) -> int:
    """The process that serves a name here; 0: none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(b"\0" + name.encode().ljust(_PATH_BYTES - 1, b"\0"))
            pid, _, _ = _CREDENTIALS.unpack(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        except OSError:
            return 0
    return int(pid)
