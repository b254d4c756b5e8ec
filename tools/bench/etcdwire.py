"""etcd's gRPC calls as far as ``zenjun bench directory`` needs them, over an HTTP/2 of its own without I/O.

A library for gRPC would cost more than what is measured. Here a call is one HEADERS and one DATA frame, and an answer is its
DATA frame; headers that come back are not decoded: who gets no message has failed. Sources: RFC 9113 (HTTP/2), RFC 7541 (the
indices of its static table), gRPC over HTTP/2, etcd's ``rpc.proto``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
WINDOW: Final = (1 << 31) - 1
"""Bytes that each stream may send before it gets more credit."""
CONNECTION_WINDOW: Final = 65535
"""What all of them may send at first."""
AGAIN: Final = 1 << 30
"""Bytes after which the connection's window is opened again."""
PUT, RANGE = "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Range"
WATCH = "/etcdserverpb.Watch/Watch"


class EtcdError(Exception):
    """A call that etcd did not execute, or malformed bytes."""


def varint(value: int) -> bytes:
    """Protocol Buffers' number."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: int | bytes) -> bytes:
    """One field of a message: a number, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """The fields of a message, in their order. Raises EtcdError."""
    found: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value, at = _varint(data, at)
        if key & 7 == 2:
            found.append((key >> 3, data[at : at + value]))
            at += value
        elif key & 7 == 0:
            found.append((key >> 3, value))
        else:
            raise EtcdError(f"a field of wire type {key & 7}")
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data):
            raise EtcdError("a message that ends within a field")
        value |= (data[at] & 0x7F) << shift
        at += 1
        if not data[at - 1] & 0x80:
            return value, at
        shift += 7


def inner(data: bytes, *path: int) -> bytes:
    """The last field of these numbers, one inside the other; empty if there is none."""
    for number in path:
        data = next((value for found, value in reversed(fields(data)) if found == number and isinstance(value, bytes)), b"")
    return data


def put_request(key: bytes, value: bytes) -> bytes:
    return field(1, key) + field(2, value)


def range_request(key: bytes, serializable: bool) -> bytes:
    """serializable: from the member's own copy; else the answer has all that was acknowledged before."""
    return field(1, key) + (field(7, 1) if serializable else b"")


def watch_request(prefix: bytes) -> bytes:
    """All keys that begin with ``prefix``."""
    return field(1, field(1, prefix) + field(2, prefix[:-1] + bytes([prefix[-1] + 1])))


def watched(response: bytes) -> list[bytes]:
    """The values of a WatchResponse's events."""
    return [inner(event, 2, 5) for number, event in fields(response) if number == 11 and isinstance(event, bytes)]


class Http2:
    """One connection to etcd. ``take`` returns the output; received bytes go to ``receive``.

    A stream's ``on_message`` is called with each of its messages, and with None when it ends.
    """

    def __init__(self, authority: str) -> None:
        self._authority = authority.encode()
        self._out = [PREFACE, _frame(SETTINGS, 0, 0, struct.pack(">HIHI", 1, 0, 4, WINDOW))]
        self._out.append(_frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW - CONNECTION_WINDOW)))
        self._rest = b""
        self._taken = 0
        self._next = 1
        self._streams: dict[int, Callable[[bytes | None], None]] = {}
        self._parts: dict[int, bytes] = {}
        self._heads: dict[str, bytes] = {}

    def take(self) -> bytes:
        """What is to be written now."""
        out, self._out = b"".join(self._out), []
        return out

    def call(self, path: str, message: bytes, on_message: Callable[[bytes | None], None], *, last: bool = True) -> None:
        """Begin a call. last: no further request follows on its stream."""
        head = self._heads.get(path)
        if head is None:
            head = self._heads[path] = self._head(path.encode())
        number, self._next = self._next, self._next + 2
        self._streams[number] = on_message
        self._out.append(_frame(HEADERS, END_HEADERS, number, head))
        self._out.append(_frame(DATA, END_STREAM if last else 0, number, struct.pack(">BI", 0, len(message)) + message))

    def _head(self, path: bytes) -> bytes:
        # :method POST and :scheme http stand in the static table; the others are literals that are not kept.
        return (
            b"\x83\x86" + _literal(4, path) + _literal(1, self._authority) + _literal(31, b"application/grpc")
            + b"\x00\x02te" + bytes([8]) + b"trailers"
        )  # fmt: skip

    def receive(self, data: bytes) -> None:
        """Bytes from etcd. Raises EtcdError."""
        data = self._rest + data
        at = 0
        while len(data) - at >= 9:
            size = int.from_bytes(data[at : at + 3], "big")
            if len(data) - at - 9 < size:
                break
            kind, flags, number = data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9], "big") & WINDOW
            self._take_frame(kind, flags, number, data[at + 9 : at + 9 + size])
            at += 9 + size
        self._rest = data[at:]

    def _take_frame(self, kind: int, flags: int, number: int, body: bytes) -> None:
        if kind == DATA:
            self._taken += len(body)
            if self._taken >= AGAIN:
                self._out.append(_frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._taken)))
                self._taken = 0
            self._messages(number, body)
        elif kind == SETTINGS and not flags & ACK:
            self._out.append(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._out.append(_frame(PING, ACK, 0, body))
        elif kind == GOAWAY:
            raise EtcdError(f"etcd has ended the connection: {body[8:].decode(errors='replace') or 'no reason'}")
        if (kind in (DATA, HEADERS) and flags & END_STREAM) or kind == RST_STREAM:
            self._parts.pop(number, None)
            if (ended := self._streams.pop(number, None)) is not None:
                ended(None)

    def _messages(self, number: int, body: bytes) -> None:
        data = self._parts.pop(number, b"") + body
        on_message = self._streams.get(number)
        while len(data) >= 5:
            size = int.from_bytes(data[1:5], "big")
            if len(data) < 5 + size:
                break
            if on_message is not None:
                on_message(data[5 : 5 + size])
            data = data[5 + size :]
        if data:
            self._parts[number] = data


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def _literal(index: int, value: bytes) -> bytes:
    """A header whose name is in the static table, by its value; not to be kept."""
    return (bytes([index]) if index < 15 else bytes([15, index - 15])) + _length(len(value)) + value


def _length(size: int) -> bytes:
    if size < 127:
        return bytes([size])
    raise EtcdError(f"a header of {size} bytes")
