"""What a service manager hands a daemon when it starts it: a listening socket, a folder for its state, the journal.

All of it comes in environment variables, each of which may be missing or meant for another process: then the daemon does what it
does without a manager. Notifications to the manager are ``observe.Notifier``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import socket
import struct
from collections.abc import Mapping, MutableMapping
from typing import Final

from .config import Config, StationOptions
from .listening import SocketError
from .observe import event_of

FIRST_FD: Final = 3
"""Descriptors handed over begin here (sd_listen_fds)."""
JOURNAL_SOCKET: Final = "/run/systemd/journal/socket"
FIELD_BYTES_MAX: Final = 16 * 1024
"""Of one field of one entry: a datagram has to fit into a socket's send buffer."""
FIELD_NAME_MAX: Final = 64
PRIORITIES: Final = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}


def passed_socket(environ: MutableMapping[str, str], pid: int) -> socket.socket | None:
    """The client socket if the service manager listens on it for us, else None. Taken once: the variables are removed.

    Raises SocketError when what is handed over is not one listening Unix stream socket.
    """
    ours = environ.get("LISTEN_PID") == str(pid)
    number = environ.get("LISTEN_FDS", "")
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        environ.pop(name, None)
    if not ours or not number.isdecimal() or int(number) == 0:
        return None
    if int(number) > 1:
        raise SocketError(f"the service manager hands over {number} sockets: expected one, the client socket")
    try:
        sock = socket.socket(fileno=FIRST_FD)
    except OSError as exc:
        raise SocketError(f"the service manager's descriptor {FIRST_FD} is no socket: {exc.strerror}") from exc
    listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM or not listening:
        sock.close()
        raise SocketError(
            "the service manager hands over something else than a listening Unix stream socket (ListenStream=/path)"
        )
    sock.setblocking(False)
    sock.set_inheritable(False)
    return sock


def adapted(config: Config, environ: Mapping[str, str], socket_path: str) -> Config:
    """The configuration with the manager's values: the state folder that it made for this unit, if the file names none, and
    ``socket_path``, where it listens for the daemon (empty: nowhere), regardless of the file."""
    station = config.station
    folder = environ.get("STATE_DIRECTORY", "").split(":")[0]
    default = next(f.default for f in dataclasses.fields(StationOptions) if f.name == "state_dir")
    if folder and station.state_dir == default:
        station = dataclasses.replace(station, state_dir=folder)
    if socket_path:
        station = dataclasses.replace(station, socket=socket_path)
    return dataclasses.replace(config, station=station)


def in_journal(environ: Mapping[str, str], fd: int) -> bool:
    """Whether the descriptor is a stream to the journal: then entries can have fields of their own ($JOURNAL_STREAM)."""
    with contextlib.suppress(OSError):
        found = os.fstat(fd)
        return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
    return False


class JournalHandler(logging.Handler):
    """Log records as journal entries: MESSAGE, PRIORITY, ZENJUN_EVENT, and one ZENJUN_… field for each of the event's.

    Never waits: an entry that the journal does not take at once is lost and counted, as lines are (``observe.PatientStream``).
    """

    def __init__(self, context: Mapping[str, object], path: str = JOURNAL_SOCKET) -> None:
        """context: fields of every entry. Raises OSError when no journal listens there."""
        super().__init__()
        self.lost = 0
        self._context = dict(context)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._path = path
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise

    def emit(self, record: logging.LogRecord) -> None:
        """Send one entry, or lose it."""
        data = entry(record, self._context)
        try:
            self._socket.send(data)
        except OSError:
            try:  # a journal that was restarted has a new socket at the same place
                self._socket.connect(self._path)
                self._socket.send(data)
            except OSError:
                self.lost += 1

    def close(self) -> None:
        self._socket.close()
        super().close()


def entry(record: logging.LogRecord, context: Mapping[str, object]) -> bytes:
    """One record in the journal's native form: NAME=value lines, or NAME, a length and the bytes for values of several lines."""
    event, fields = event_of(record)
    own: dict[str, object] = {
        "MESSAGE": f"{event}: {record.getMessage()}",
        "PRIORITY": PRIORITIES.get(record.levelno, 6),
        "SYSLOG_IDENTIFIER": "zenjund",
        "ZENJUN_EVENT": event,
    }
    for key, value in (*context.items(), *fields.items()):
        name = "ZENJUN_" + re.sub(r"[^A-Z0-9]", "_", key.upper())
        own.setdefault(name[:FIELD_NAME_MAX], value)
    out = bytearray()
    for name, value in own.items():
        data = str(value).encode("utf-8", "replace")[:FIELD_BYTES_MAX]
        if b"\n" in data:
            out += name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
        else:
            out += name.encode() + b"=" + data + b"\n"
    return bytes(out)


def journal_handler(
    environ: Mapping[str, str], context: Mapping[str, object], path: str = JOURNAL_SOCKET
) -> logging.Handler | None:
    """A handler that writes to the journal, if standard error goes there anyway; None otherwise."""
    if not in_journal(environ, 2):
        return None
    with contextlib.suppress(OSError):
        return JournalHandler(context, path)
    return None
