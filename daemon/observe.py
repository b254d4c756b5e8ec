"""What the daemon reports besides its status: log lines, and notifications to the service manager.

One line per event on standard error, as text or JSON. Every event has a name of a word or two, so that repeated ones can be
limited and counted: a fault that happens ten thousand times a second is one line and a number, not a full disk.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from .terminal import json_text, printable

BURST: Final = 5
"""Lines of one event let through in one interval before the rest is only counted."""
INTERVAL_NS: Final = 10_000_000_000
EVENTS_MAX: Final = 512
"""Events remembered for limiting; beyond it, the limits start again (names come from the code, so this is never reached)."""

LEVELS: Final[Mapping[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class TextFormatter(logging.Formatter):
    """``2025-01-31T12:00:00.123Z info open: instance 7 …`` followed by the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        event, fields = event_of(record)
        extra = "".join(f" {k}={_plain(v)}" for k, v in fields.items())
        return f"{_stamp(record)} {record.levelname.lower()} {event}: {_one_line(_message(record))}{extra}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ``time``, ``level``, ``event``, ``message``, then the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        event, fields = event_of(record)
        body: dict[str, object] = {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "event": event,
            "message": _message(record),
        }
        for key, value in fields.items():
            body.setdefault(key, value)
        return json_text(body, default=str)


@dataclass(slots=True)
class _Limit:
    since_ns: int
    passed: int
    held: int
    level: int
    message: str


class Journal:
    """Writes events. Not thread-safe: the daemon has one thread."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._limits: dict[str, _Limit] = {}
        self.held = 0
        """Lines not written because of the limit, since the start."""

    def event(self, level: int, event: str, message: str, *, now: int | None = None, key: str = "", **fields: object) -> None:
        """Write one line. With ``now`` (monotonic ns) the event is limited to BURST lines per INTERVAL, per ``key`` within it."""
        if now is None:
            self._write(level, event, message, fields)
            return
        name = f"{event}/{key}" if key else event
        limit = self._limits.get(name)
        if limit is None or now - limit.since_ns >= INTERVAL_NS:
            if limit is None and len(self._limits) >= EVENTS_MAX:
                self.tell_held(now, everything=True)
                self._limits.clear()
            elif limit is not None:
                self._tell(name, limit)
            limit = self._limits[name] = _Limit(now, 0, 0, level, message)
        limit.message = message
        if limit.passed >= BURST:
            limit.held += 1
            self.held += 1
            return
        limit.passed += 1
        self._write(level, event, message, fields)

    def info(self, event: str, message: str, **fields: object) -> None:
        self._write(logging.INFO, event, message, fields)

    def warning(self, event: str, message: str, **fields: object) -> None:
        self._write(logging.WARNING, event, message, fields)

    def error(self, event: str, message: str, **fields: object) -> None:
        self._write(logging.ERROR, event, message, fields)

    def debug(self, event: str, message: str, **fields: object) -> None:
        self._write(logging.DEBUG, event, message, fields)

    @property
    def holds_back(self) -> bool:
        """Whether ``tell_held`` will have something to say later: an event that came seldom is counted, too, but all was said."""
        return any(limit.held for limit in self._limits.values())

    def tell_held(self, now: int, *, everything: bool = False) -> None:
        """Say how often limited events happened beyond what was written; call it now and then."""
        for name, limit in list(self._limits.items()):
            if everything or now - limit.since_ns >= INTERVAL_NS:
                self._tell(name, limit)
                del self._limits[name]

    def _tell(self, name: str, limit: _Limit) -> None:
        if limit.held:
            event = name.partition("/")[0]
            self._write(limit.level, event, f"{limit.message} (and {limit.held} more like this)", {"repeated": limit.held})
            limit.held = 0

    def _write(self, level: int, event: str, message: str, fields: Mapping[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", message, extra={"zj_event": event, "zj_fields": dict(fields)})


class PatientStream(io.TextIOBase):
    """A text stream over a descriptor that loses lines instead of waiting for its reader.

    A terminal stopped by Ctrl-S, or a pipe that is not read, would otherwise stop the daemon, and with it the cluster. Pipes and
    terminals are opened again for writing, so that only the daemon's own description becomes non-blocking; files never block;
    sockets are written with MSG_DONTWAIT. What cannot be opened again is used as it is.
    """

    def __init__(self, fd: int) -> None:
        self.lost = 0
        """Lines not written since the start."""
        self._fd, self._owned = fd, False
        self._socket: socket.socket | None = None
        self._untold = 0
        with contextlib.suppress(OSError):
            mode = os.fstat(fd).st_mode
            if stat.S_ISSOCK(mode):
                self._socket = socket.socket(fileno=os.dup(fd))
            elif stat.S_ISFIFO(mode) or (stat.S_ISCHR(mode) and os.isatty(fd)):
                self._fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
                self._owned = True

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Write a whole line or lose it; a line cut by a full pipe ends with the next line that fits."""
        told = f"({self._untold} lines were lost: nobody was reading)\n" if self._untold else ""
        data = (told + text).encode("utf-8", "replace")
        try:
            if self._socket is not None:
                self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            else:
                os.write(self._fd, data)
        except OSError:  # full, or its reader has gone
            self.lost += 1
            self._untold += 1
        else:
            self._untold = 0
        return len(text)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        elif self._owned:
            os.close(self._fd)
        self._socket, self._owned = None, False
        super().close()


def set_up(form: str, level: str, stream: TextIO | None = None, entries: logging.Handler | None = None) -> Journal:
    """Send the package's log lines to ``stream`` (standard error, never waited for) as ``text`` or ``json`` from ``level`` on.

    entries: takes the place of lines of the form ``text``: entries with fields, for a log that has them.
    """
    logging.raiseExceptions = False  # a closed standard error must not end the daemon
    logger = logging.getLogger("zenjun")
    lines: logging.StreamHandler[Any] = logging.StreamHandler(stream if stream is not None else PatientStream(2))
    lines.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logger.handlers[:] = [entries if entries is not None and form == "text" else lines]
    logger.propagate = False
    logger.setLevel(LEVELS[level])
    return Journal(logger)


def set_level(level: str) -> None:
    """Log from ``level`` on from now."""
    logging.getLogger("zenjun").setLevel(LEVELS[level])


class Notifier:
    """Reports the daemon's state to the service manager, by the datagram socket named in NOTIFY_SOCKET; without one it does
    nothing.

    Never blocks and never raises: a manager that does not read, or a socket that is gone, must not stop the daemon (case 91).
    """

    def __init__(self, environ: Mapping[str, str], pid: int) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_ns = 0
        """How often the manager wants to hear WATCHDOG=1, nanoseconds; 0: never."""
        if environ.get("WATCHDOG_PID", str(pid)) == str(pid):
            with contextlib.suppress(ValueError):
                self.watchdog_ns = max(0, int(environ.get("WATCHDOG_USEC", "0")) * 1000)
        self._socket: socket.socket | None = None
        if self._address[:1] in ("/", "\0"):
            with contextlib.suppress(OSError):
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self.lost = 0
        """Notifications that could not be sent."""

    def send(self, *lines: str) -> bool:
        """Send ``lines`` in one datagram; False if there is no manager or the datagram was not sent."""
        if self._socket is None:
            return False
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except (OSError, ValueError):
            self.lost += 1
            return False
        return True

    def ready(self, status: str) -> bool:
        return self.send("READY=1", f"STATUS={_one_line(status)}", f"MAINPID={os.getpid()}")

    def status(self, status: str) -> bool:
        return self.send(f"STATUS={_one_line(status)}")

    def stopping(self, longest_ns: int = 0) -> bool:
        """longest_ns: how long the end may take by the configuration, so that the manager does not kill us before."""
        extend = (f"EXTEND_TIMEOUT_USEC={longest_ns // 1000}",) if longest_ns else ()
        return self.send("STOPPING=1", "STATUS=draining", *extend)

    def reloading(self, now: int) -> bool:
        """now: monotonic nanoseconds. ``reloaded`` has to follow."""
        return self.send("RELOADING=1", f"MONOTONIC_USEC={now // 1000}")

    def reloaded(self) -> bool:
        return self.send("READY=1")

    def watchdog(self) -> bool:
        return self.send("WATCHDOG=1")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def event_of(record: logging.LogRecord) -> tuple[str, Mapping[str, object]]:
    """An event's name and its fields, as ``Journal`` put them into the record."""
    event = getattr(record, "zj_event", record.name)
    fields = getattr(record, "zj_fields", {})
    return str(event), fields if isinstance(fields, dict) else {}


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info and record.exc_info[0] is not None:
        text += "\n" + logging.Formatter().formatException(record.exc_info)
    return text


def _stamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _one_line(text: str) -> str:
    return printable(" | ".join(text.splitlines()) if "\n" in text or "\r" in text else text, keep="\t")


def _plain(value: object) -> str:
    text = _one_line(str(value))
    return json.dumps(text, ensure_ascii=False) if not text or any(c in text for c in ' "=') else text
