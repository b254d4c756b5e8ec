"""Every version of the client protocol that the daemon serves, by frames written by hand."""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from zenjun.daemon.access import Access
from zenjun.daemon.audit import Audit
from zenjun.daemon.connections import Connection, Connections, Facts, Standing
from zenjun.daemon.observe import Journal
from zenjun.daemon.requests import Requests
from zenjun.daemon.services import Services
from zenjun.proto.service.base import Reply

from ..daemon.test_services import Recorder
from .rig import Bench, Program, frame, takes
from .test_membership import Daemon

STATUS, MEMBERS, ADMIN = 1, 2, 3


@pytest.fixture
def daemon(double_library: tuple[Any, Any]) -> Iterator[Daemon]:
    made = Daemon(double_library)
    yield made
    made.bench.close()


def talk(daemon: Daemon, program: Program, data: bytes) -> bytes:
    """What comes back, byte for byte."""
    program.send(data)
    daemon.turn()
    return b"".join(struct.pack("<IBBH", len(f.body), f.type, f.flags, f.handle) + f.body for f in program.receive())


def request(number: int, kind: int, body: bytes = b"") -> bytes:
    return struct.pack("<IBBHIHH", 8 + len(body), 9, 0, 0, number, kind, 0) + body


def reply(data: bytes) -> tuple[int, int, dict[str, Any]]:
    size, kind, flags, handle, number, status, pad = struct.unpack_from("<IBBHIHH", data)
    assert (kind, flags, handle, pad, size) == (74, 0, 0, 0, len(data) - 8)
    return number, status, json.loads(data[16:])


VIEW = (
    b'{"group":"g","clock":%d,"station":1,"index":%d,"instance":5,"members":[[1,1,"p"]],"joined":[[1,1,"p"]],"left":[],'
    b'"reason":"join"}'
)


@pytest.mark.parametrize("version", [1, 2])
def test_the_old_ones_byte_for_byte(daemon: Daemon, version: int) -> None:
    daemon.open(5)
    p = daemon.program("p", version)
    back = talk(daemon, p, b"\x01\0\0\0\x02\x04\x07\0g")  # JOIN, ordered, OPEN, handle 7
    size, kind, flags, handle = struct.unpack_from("<IBBH", back)
    view = json.loads(back[8 : 8 + size])
    assert (kind, flags, handle) == (67, 0, 7) and back[8 : 8 + size] == VIEW % (view["clock"], view["index"])
    back = talk(daemon, p, b"\x01\0\0\0\x07\0\0\0g")
    assert back == b'\x25\0\0\0\x48\0\0\0{"group":"g","members":[[1,1,"p"]]}'.replace(b"\x25", bytes([len(back) - 8]))
    back = talk(daemon, p, b"\0\0\0\0\x05\0\0\0")
    assert back[4:8] == b"\x47\0\0\0" and json.loads(back[8:])["peers"]
    back = talk(daemon, p, b"\x01\0\0\0\x02\x20\x08\0h")  # JOIN, order op by its flag
    assert back[4:8] == b"\x43\0\x08\0" and json.loads(back[8:])["group"] == "h"
    body = b'{"command": "leave"}'
    back = talk(daemon, p, struct.pack("<IBBH", len(body), 8, 0, 0) + body)
    if version == 1:
        assert back[4:6] == b"\x46\x01" and json.loads(back[8:])["code"] == "protocol"
    else:
        assert back == b'\x1f\0\0\0\x49\0\0\0{"ok":true,"message":"begun"}'.replace(b"\x1f", bytes([len(back) - 8]))
        assert talk(daemon, p, request(1, STATUS))[4:6] == b"\x46\x01", "not in version 2"


def test_requests_are_answered_under_their_ids(daemon: Daemon) -> None:
    daemon.open(5)
    p = daemon.program("p", 3)
    assert talk(daemon, p, b"\x05\0\0\0\x02\x04\x07\0\0\0\0\0g")[4:8] == b"\x43\0\x07\0"
    assert reply(talk(daemon, p, request(9, MEMBERS, b"g"))) == (9, 0, {"group": "g", "members": [[1, 1, "p"]]})
    number, status, body = reply(talk(daemon, p, request(2**32 - 1, MEMBERS)))
    assert (number, status, body["stations"]) == (2**32 - 1, 0, 3) and len(body["detail"]) == 3
    assert reply(talk(daemon, p, request(0, STATUS)))[2]["peers"]
    assert reply(talk(daemon, p, request(3, ADMIN, b'{"command":"leave"}'))) == (3, 0, {"ok": True, "message": "begun"})
    number, status, body = reply(talk(daemon, p, request(3, ADMIN, b"x")))
    assert (number, status, body["code"]) == (3, 1, "refused")
    number, status, body = reply(talk(daemon, p, request(4, MEMBERS, b"\xff")))
    assert (number, status, body["code"]) == (4, 1, "name")
    for kind in (0, 4, 65535):
        number, status, body = reply(talk(daemon, p, request(5, kind, b"what?")))
        assert (number, status, body["code"]) == (5, 1, "unknown-request") and str(kind) in body["message"]
    assert reply(talk(daemon, p, request(6, STATUS)))[1] == 0, "and the connection goes on"


@pytest.mark.parametrize(
    "data",
    [
        b"\x07\0\0\0\x09\0\0\0" + bytes(7),
        b"\0\0\0\0\x09\0\0\0",
        b"\0\0\0\0\x05\0\0\0",
        b"\0\0\0\0\x07\0\0\0",
        b"\0\0\0\0\x08\0\0\0",
        b"\x03\0\0\0\x02\0\x01\0\0\0\0",
        b"\x05\0\0\0\x02\x20\x01\0\1\0\0\0g",
    ],
    ids=["short", "empty", "STATUS", "MEMBERS", "ADMIN", "JOIN without its order", "OP flag"],
)
def test_violations_of_version_3(daemon: Daemon, data: bytes) -> None:
    daemon.open(5)
    p = daemon.program("p", 3)
    back = talk(daemon, p, data)
    assert back[4:6] == b"\x46\x01" and json.loads(back[8:])["code"] == "protocol"


def test_the_order_of_a_join(daemon: Daemon) -> None:
    daemon.open(5)
    p = daemon.program("p", 3)
    for number in (2, 7, 255):
        back = talk(daemon, p, b"\x05\0\0\0\x02\0\x01\0" + bytes([number]) + b"\0\0\0g")
        error = json.loads(back[8:])
        assert back[4:8] == b"\x46\0\x01\0" and error["code"] == "unknown-order" and error["handle"] == 1
        assert f"number {number};" in error["message"] and "0 (total), 1 (op)" in error["message"]
    assert talk(daemon, p, b"\x05\0\0\0\x02\0\x01\0\1\0\0\0g")[4:8] == b"\x43\0\x01\0"
    assert daemon.groups.as_list()[0]["order"] == "op"
    q = daemon.program("q", 2)
    assert json.loads(talk(daemon, q, b"\x01\0\0\0\x02\0\x01\0g")[8:])["code"] == "order-mismatch"
    assert talk(daemon, q, b"\x01\0\0\0\x02\x20\x01\0g")[4:8] == b"\x43\0\x01\0", "both versions mean the same"


class Queue:
    """Takes what is queued for a client, in place of the data path."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int, str]] = []

    def client_put(self, slot: int, kind: int, *, body: bytes, urgent: bool) -> None:
        number, status, _ = struct.unpack_from("<IHH", body)
        self.frames.append((number, status, str(json.loads(body[8:]).get("code", ""))))


def test_requests_without_an_answer_are_bounded() -> None:
    """A service may answer later; a program that does not wait is told."""
    queue: Any = Queue()
    connections = Connections(queue)
    connection = Connection(0, 1, 0, 0, version=3)
    connections.add(connection)
    services = Services()
    asked = Recorder(services).asked
    requests = Requests(
        queue, connections, Standing(), Facts("c", 1, 3, 1, 1, 1), Journal(logging.getLogger("test")), lambda now: {},
        services, access=Access(), audit=Audit(Journal(logging.getLogger("test"))),
    )  # fmt: skip
    body = struct.pack("<HH", MEMBERS, 0) + b"g"
    for number in range(66):
        assert requests.on_request(connection, struct.pack("<I", number) + body, 0) == ""
    assert len(asked) == 64 and queue.frames == [(64, 1, "too-many-requests"), (65, 1, "too-many-requests")]
    requests.reply(Reply(asked[5], {"members": []}))
    assert queue.frames[2:] == [(5, 0, "")]
    requests.on_request(connection, struct.pack("<I", 6) + body, 0)
    assert queue.frames[3:] == [(6, 1, "too-many-requests")], "an id that is still under way"
    requests.on_request(connection, struct.pack("<I", 5) + body, 0)
    assert len(asked) == 65
    connections.remove(connection)
    requests.reply(Reply(asked[0], {}))
    assert len(queue.frames) == 4, "nobody is there any more"


def test_a_question_of_a_deaf_client_is_dropped_and_a_command_is_not(bench: Bench) -> None:
    """Of a client that can no longer be written to, requests that only ask are not taken up (``asks_only``)."""
    slots: list[int] = []
    for data in (request(1, STATUS), request(2, MEMBERS), request(3, ADMIN)):
        program = bench.client(len(slots) + 11)
        program.sock.shutdown(socket.SHUT_RD)
        bench.dp.client_put(program.slot, 68, body=b"{}")
        bench.turn()
        program.send(data)
        slots.append(program.slot)
    seen: list[int] = []
    for _ in range(20):
        bench.turn()
        seen += [take.slot for take in takes(bench) if take.type == 9]
    assert seen == [slots[2]]


def connected_as(uid: int) -> tuple[socket.socket, socket.socket]:
    """A connection made by a process of this user (needs root), both ends: what counts is who called connect()."""
    listener, theirs = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    with listener:
        listener.bind("")  # an abstract name of the kernel's choice: no folder is in the way
        listener.listen()
        before = os.geteuid()
        os.seteuid(uid)
        try:
            theirs.connect(listener.getsockname())
        finally:
            os.seteuid(before)
        return theirs, listener.accept()[0]


@pytest.mark.parametrize("flags", [0, 4, 8], ids=["member", "open", "send only"])
def test_reserved_groups_are_for_root_and_the_daemons_own_user(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, flags: int
) -> None:
    daemon.open(5)
    ordinary = 65534 if os.geteuid() == 0 else os.geteuid()
    own = daemon.program("own", 3)
    back = talk(daemon, own, frame(2, bytes(4) + b"zenjun.dir", flags=4, handle=1))
    assert back[4] == 67, "the user that the daemon runs as"
    if ordinary == os.geteuid():  # without root: the same user, and a daemon of another one
        monkeypatch.setattr(os, "geteuid", lambda: ordinary + 1)
        other = daemon.program("other", 3)
    else:
        other = daemon.program("other", 3, connected_as(ordinary))
    for name in (b"zenjun.dir", b"zenjun.", b"zenjun.state", b"zenjun.states"):
        back = talk(daemon, other, frame(2, bytes(4) + name, flags=flags, handle=1))
        error = json.loads(back[8:])
        assert back[4:8] == b"\x46\0\x01\0" and error["code"] == "not-permitted" and name.decode() in error["message"]
    for name in (b"zenjun", b"zenjunk", b"my.zenjun.dir", b"zenjun.state.00.1.2"):
        back = talk(daemon, other, frame(2, bytes(4) + name, flags=4, handle=len(name)))
        assert back[4] == 67, "not reserved"
    assert daemon.groups.members("zenjun.dir") == ((1, 1, "own"),)
