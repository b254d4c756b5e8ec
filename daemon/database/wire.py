"""What a program and its database process say to each other on the Unix socket (docs/database.md).

Frames are those of ``jsonframes``. The program speaks first: ``hello`` with its version. Requests have an ``id`` and ``do``; the
answer has the same ``id``, and ``ok`` or ``error``. Bytes are base64.

A transaction that is not given in pieces is a binary frame instead (``pack_commit``), and so is the answer that it is committed
(``pack_version``): numbers in network byte order, and in the former the message of the group as it is sent. All other answers
are JSON.
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Final, NamedTuple

from ...proto.service.database.machine import Durability
from ..jsonframes import BINARY, pack_binary

VERSION: Final = 2
PIECE_BYTES: Final = 1 << 20
"""A transaction with more than that is given to the process in pieces of this size."""
FRAME_MAX: Final = 16 << 20
UNDER_WAY_MAX: Final = 1024
"""Requests of one connection that are not answered yet; more are read when there are fewer."""
SOCKET: Final = "/run/zenjun/db.sock"
SOCKET_ENV: Final = "ZENJUN_DB"
NAME_PATTERN: Final = "[a-z0-9_-]{1,48}"
TIMEOUT_S: Final = 30.0


def beside(daemon_socket: str) -> str:
    """The process's socket for a daemon's: ``zenjund.sock`` → ``db.sock``, ``NAME.sock`` → ``NAME.db.sock``."""
    path = Path(daemon_socket)
    stem = "" if path.stem == "zenjund" else f"{path.stem}."
    return str(path.with_name(f"{stem}db.sock"))


class Commit(NamedTuple):
    """A transaction as its program gives it."""

    number: int
    """Of the request."""
    again: bool
    """It may have been given before."""
    durability: Durability
    seconds: float
    """To wait for its end."""
    name: str
    """Of the database."""
    data: bytes
    """The encoded ``messages.Write``."""


_COMMIT: Final = struct.Struct("!BQBBIB")
_VERSION: Final = struct.Struct("!BQQ")
_DURABILITIES: Final = tuple(Durability)
MILLISECONDS_MAX: Final = 86_400_000


def pack_commit(commit: Commit) -> bytes:
    """The whole frame."""
    name, number = commit.name.encode(), _DURABILITIES.index(commit.durability)
    milliseconds = min(MILLISECONDS_MAX, max(0, int(commit.seconds * 1000)))
    return pack_binary(_COMMIT.pack(BINARY, commit.number, commit.again, number, milliseconds, len(name)) + name + commit.data)


def unpack_commit(body: bytes) -> Commit:
    """Of a frame's content. What it has as ``data`` need be nothing. Raises ValueError."""
    try:
        _, number, again, durability, milliseconds, size = _COMMIT.unpack_from(body)
    except struct.error:
        raise ValueError("a commit that is cut") from None
    end = _COMMIT.size + size
    if end > len(body) or again > 1 or durability >= len(_DURABILITIES) or milliseconds > MILLISECONDS_MAX:
        raise ValueError("a commit that is none")
    name = body[_COMMIT.size : end].decode()
    return Commit(number, bool(again), _DURABILITIES[durability], milliseconds / 1000, name, body[end:])


def pack_version(number: int, version: int) -> bytes:
    """The whole frame that says of a request: committed, as this version."""
    return pack_binary(_VERSION.pack(BINARY, number, version))


def unpack_version(body: bytes) -> tuple[int, int]:
    """Of a frame's content: the request, and the version. Raises ValueError."""
    try:
        _, number, version = _VERSION.unpack(body)
    except struct.error:
        raise ValueError("an answer that is none") from None
    return number, version


def to_text(data: bytes) -> str:
    """Bytes as a frame has them."""
    return b64encode(data).decode("ascii")


def to_bytes(text: object) -> bytes:
    """The reverse. Raises ValueError."""
    if type(text) is bytes:
        return text  # of a binary frame
    if type(text) is not str:
        raise ValueError("bytes are base64")
    return b64decode(text, validate=True)
