"""A hostile program on a station's own socket: ``hostile.py PATH CONNECTIONS GROUPS SECONDS``; prints as JSON what it was told.

It opens so many connections, joins so many groups over each, and asks for the status without end, all at once and as fast as the
daemon takes it.
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
import sys
import time
from collections import Counter

HEADER = struct.Struct("<IBBH")
HELLO, JOIN, STATUS = 1, 2, 5
NAMES = {65: "welcome", 67: "view", 68: "event", 70: "error", 71: "status"}


def frame(kind: int, body: bytes = b"", handle: int = 0) -> bytes:
    return HEADER.pack(len(body), kind, 0, handle) + body


class Connection:
    def __init__(self, path: str, number: int, groups: int) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(path)
        self.sock.setblocking(False)
        self.out = frame(HELLO, b"ZENJ" + struct.pack("<HH", 1, 2) + b"hostile")
        for group in range(1, groups + 1):
            self.out += frame(JOIN, b"hostile-%d-%d" % (number, group), group) + frame(STATUS)
        self.into = b""

    def write(self) -> None:
        if not self.out:
            self.out = frame(STATUS) * 64
        self.out = self.out[self.sock.send(self.out) :]

    def read(self, seen: Counter[str], codes: Counter[str]) -> bool:
        data = self.sock.recv(1 << 18)
        self.into += data
        at = 0
        while len(self.into) - at >= HEADER.size:
            size, kind, _, _ = HEADER.unpack_from(self.into, at)
            if len(self.into) - at < HEADER.size + size:
                break
            seen[NAMES.get(kind, str(kind))] += 1
            if kind == 70:
                codes[json.loads(self.into[at + HEADER.size : at + HEADER.size + size])["code"]] += 1
            at += HEADER.size + size
        self.into = self.into[at:]
        return bool(data)


def main() -> None:
    path, connections, groups, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    seen: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    end = time.monotonic() + seconds
    selector = selectors.DefaultSelector()
    for number in range(connections):
        connection = Connection(path, number, groups)
        selector.register(connection.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
    while selector.get_map() and time.monotonic() < end:
        for key, events in selector.select(0.1):
            try:
                if events & selectors.EVENT_READ and not key.data.read(seen, codes):
                    raise ConnectionResetError
                if events & selectors.EVENT_WRITE:
                    key.data.write()
            except BlockingIOError:
                continue
            except OSError:
                seen["ended"] += 1
                selector.unregister(key.fileobj)
    print(json.dumps({"frames": seen, "codes": codes}))


if __name__ == "__main__":
    main()
