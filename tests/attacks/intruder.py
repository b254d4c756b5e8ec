"""A program of another user on a station's own socket: ``intruder.py FOLDER SOCKET UID GROUP``; prints as JSON what it got.

It takes all connections that it can have, joins GROUP, sends to it, asks for its members and for the status, joins as many groups
as it can, and gives an operator's command. It keeps its connections until its standard input ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
from collections import Counter

from zenjun.daemon.client import ClientError, connect_sync

HEADER = struct.Struct("<IBBH")
HELLO, JOIN, SEND, STATUS, MEMBERS, ADMIN = 1, 2, 4, 5, 7, 8
WELCOME, MESSAGE, VIEW, EVENT, DONE, ERROR, STATUS_REPLY, MEMBERS_REPLY, ADMIN_REPLY = 65, 66, 67, 68, 69, 70, 71, 72, 73
SEND_ONLY = 8
CONNECTIONS, GROUPS = 70, 400
WAIT_S = 60.0


class Connection:
    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(path)
        self.rest = b""
        with contextlib.suppress(BrokenPipeError):  # turned away already; the reason can be read
            self.put(HELLO, b"ZENJ" + struct.pack("<HH", 1, 2) + b"intruder")

    def put(self, kind: int, body: bytes = b"", flags: int = 0, handle: int = 0) -> None:
        self.sock.sendall(HEADER.pack(len(body), kind, flags, handle) + body)

    def next(self, *kinds: int) -> tuple[int, bytes]:
        """The next frame of one of these kinds; others are passed over."""
        while True:
            while len(self.rest) < HEADER.size or len(self.rest) < HEADER.size + HEADER.unpack_from(self.rest)[0]:
                data = self.sock.recv(1 << 20)
                if not data:
                    raise ConnectionError("ended")
                self.rest += data
            size, kind, _, _ = HEADER.unpack_from(self.rest)
            body, self.rest = self.rest[HEADER.size : HEADER.size + size], self.rest[HEADER.size + size :]
            if kind in kinds:
                return kind, body


def code(kind: int, body: bytes) -> str:
    """What an answer says in a word."""
    return str(json.loads(body)["code"]) if kind == ERROR else "done"


def attack(path: str, group: bytes) -> tuple[dict[str, object], list[Connection]]:
    got: dict[str, object] = {}
    connections, refused = [], Counter[str]()
    for _ in range(CONNECTIONS):
        try:
            connection = Connection(path)
            kind, body = connection.next(WELCOME, ERROR)
        except OSError as error:
            refused[type(error).__name__] += 1
            continue
        if kind == ERROR:
            refused[code(kind, body)] += 1
        else:
            connections.append(connection)
    got["connections"], got["refused"] = len(connections), refused
    first = connections[0]
    first.put(MEMBERS, group)
    kind, body = first.next(MEMBERS_REPLY, ERROR)
    got["members"] = code(kind, body) if kind == ERROR else json.loads(body)["members"]
    first.put(STATUS)
    got["seen"] = [g["name"] for g in json.loads(first.next(STATUS_REPLY)[1])["groups"] if g["name"].encode() == group]
    first.put(ADMIN, b'{"command": "expel", "station": 1}')
    got["admin"] = code(*first.next(ADMIN_REPLY, ERROR))
    first.put(JOIN, group, handle=1)
    got["join"] = code(*first.next(VIEW, ERROR))
    first.put(JOIN, group, flags=SEND_ONLY, handle=2)
    first.put(SEND, b"forged", handle=1 if got["join"] == "done" else 2)
    first.put(MEMBERS, b"others")  # behind the others in its turn: what was refused has been told
    told: list[tuple[int, bytes]] = []
    read: list[tuple[int, bytes]] = []
    while (answer := first.next(ERROR, MESSAGE, MEMBERS_REPLY))[0] != MEMBERS_REPLY:
        (told if answer[0] == ERROR else read).append(answer)
    if got["join"] == "done" and not read:
        read.append(first.next(MESSAGE))
    got["send"] = [code(*answer) for answer in told]
    got["read"] = [body[16:].decode() for _, body in read]
    second, joined = connections[1], Counter[str]()
    for number in range(1, GROUPS + 1):
        second.put(JOIN, b"mine-%d" % number, handle=number)
    for _ in range(GROUPS):
        joined[code(*second.next(VIEW, ERROR))] += 1
    got["groups"] = joined
    second.sock.close()
    connections.remove(second)
    return got, connections


def by_library(path: str, group: str) -> dict[str, str]:
    """What the client library makes of the refusals."""
    said = {}
    with connect_sync(path, timeout=WAIT_S) as connection:
        for name in ("join", "send_only"):
            try:
                connection.join(group, timeout=WAIT_S, send_only=name == "send_only")
            except ClientError as error:
                said[name] = f"{type(error).__name__}: {error}"
    return said


def main() -> None:
    folder, path, uid, group = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    os.chdir(folder)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    got, kept = attack(path, group.encode())
    if got["join"] != "done":
        kept.pop().sock.close()
        got["library"] = by_library(path, group)
    print(json.dumps(got), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
