"""The listening sockets of the daemon: made with their permissions, never taken from a living process, removed at the end."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Final

BACKLOG: Final = 128
ACCEPTS_MAX: Final = 64
"""Connections accepted in one call; the rest waits for the next."""
PROBE_TIMEOUT_S: Final = 1.0
PEER: Final = struct.Struct("=iII")
"""SO_PEERCRED: pid, uid, gid."""


class SocketError(Exception):
    """A socket cannot be made; the text is one line for the operator."""


def listen(path: Path, mode: int, group: str, what: str = "client socket") -> socket.socket:
    """A listening, non-blocking Unix stream socket at ``path`` with these permissions; ``group`` empty: the process's own.

    A leftover socket is replaced only if no process answers on it. Raises SocketError: in use (with the owner's pid), folder
    missing and not to be made, not a socket, unknown group, path too long.
    """
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as exc:
        raise SocketError(f"cannot create the folder of the {what} {path.parent}: {exc.strerror}") from exc
    _make_way(path, what)
    gid = -1
    if group:
        try:
            gid = grp.getgrnam(group).gr_gid
        except KeyError:
            raise SocketError(f"the group {group!r} for the {what} does not exist") from None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        before = os.umask(0o777)  # no process may connect before the permissions are right
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        if gid >= 0:
            os.chown(path, -1, gid)
        path.chmod(mode)
        sock.listen(BACKLOG)
    except OSError as exc:
        sock.close()
        raise SocketError(f"cannot open the {what} {path}: {exc.strerror or exc}") from exc
    return sock


def _make_way(path: Path, what: str) -> None:
    """Remove a stale socket. Raises SocketError if a process answers on it or if it is no socket."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise SocketError(f"cannot open the {what} {path}: something else is there already")
    except FileNotFoundError:
        return
    except OSError as exc:
        raise SocketError(f"cannot open the {what} {path}: {exc.strerror}") from exc
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            return
        except (TimeoutError, BlockingIOError):
            raise SocketError(f"the {what} {path} is in use by a process that does not answer") from None
        except OSError as exc:
            raise SocketError(f"cannot open the {what} {path}: {exc.strerror or exc}") from exc
        pid, _, _ = peer(probe)
    raise SocketError(f"the {what} {path} is in use by pid {pid}")


class Listener:
    """The listening socket in the loop: accepts in bounded bursts and rests when descriptors run out instead of spinning."""

    def __init__(self, path: Path, mode: int, group: str, given: socket.socket | None = None) -> None:
        """given: listens already, and belongs with its file to the service manager. Raises SocketError."""
        self._path = path
        self._identity: tuple[int, int] | None = None
        if given is not None:
            self._socket = given
            return
        self._socket = listen(path, mode, group)
        status = path.lstat()
        self._identity = (status.st_dev, status.st_ino)

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> tuple[list[socket.socket], OSError | None]:
        """New connections (at most ACCEPTS_MAX), and the error that ended it early (out of descriptors or memory)."""
        taken: list[socket.socket] = []
        for _ in range(ACCEPTS_MAX):
            try:
                sock, _ = self._socket.accept()
            except BlockingIOError:
                break
            except (ConnectionAbortedError, InterruptedError):
                continue
            except OSError as exc:
                if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    return taken, exc
                raise
            taken.append(sock)
        return taken, None

    def close(self) -> None:
        """Close, and remove the socket from the file system if it is still ours. Harmless when repeated."""
        if self._socket.fileno() < 0:
            return
        self._socket.close()
        if self._identity is None:
            return
        with contextlib.suppress(OSError):
            status = self._path.lstat()
            if (status.st_dev, status.st_ino) == self._identity:
                self._path.unlink()


def peer(sock: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the process at the other end of a Unix socket, as it connected."""
    pid, uid, gid = PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return pid, uid, gid
