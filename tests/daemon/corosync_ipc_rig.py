"""The server of libqb's IPC against libqb's own client: ``python -m tests.daemon.corosync_ipc_rig CASE``, one case a process.

A child serves; this process is the program. Requests: id 1 is answered by itself; 2 asks for events (number, size); 3 has no
answer; 4 stops reading this connection until another one sends 5; 6 has the head of its messages to a process group, which come
back as events of node 7, three times. What the server says of connections comes through a pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from cffi import FFI
from zenjun.daemon.corosync.codec import event
from zenjun.daemon.corosync.ipc import SERVICES, Asked, Ended, IpcError, Opened, Refused, Said, Server, owner
from zenjun.proto.service.corosync.messages import LENGTH_BYTES, Mcast, Part, Process, bundle, mcast_head, whole_head
from zenjun.proto.service.corosync.results import Deliver

HEAD: Final = struct.Struct("<i4xi4x")
EVENT: Final = struct.Struct("<i4xi4xi4xQ")
BUFFER: Final = 1 << 20
QUEUE: Final = 4 << 20
WAIT_S: Final = 30.0
OTHER: Final = 12345
"""A user and a group that is not root."""
CLIENT: Final = """
void *qb_ipcc_connect(const char *name, size_t max); void qb_ipcc_disconnect(void *c);
ssize_t qb_ipcc_send(void *c, const void *data, size_t size);
ssize_t qb_ipcc_recv(void *c, void *data, size_t size, int32_t ms);
ssize_t qb_ipcc_event_recv(void *c, void *data, size_t size, int32_t ms);
int32_t qb_ipcc_fd_get(void *c, int32_t *fd);
"""
ffi: Any = FFI()
qb: Any = None
"""libqb's client, in the process of a case only."""


def serve(said: int, allowed: list[int]) -> None:
    """Until it is killed."""
    server = Server(QUEUE)
    for name in SERVICES:
        server.serve(name)
    server.allow(allowed, [])
    stopped: list[int] = []
    poll = select.poll()
    poll.register(server.fileno(), select.POLLIN)
    os.write(said, b'["ready"]\n')
    while True:
        poll.poll()
        for item in server.turn():
            match item:
                case Asked():
                    answer(server, item, stopped)
                case Said():
                    deliver(server, item)
                case Opened():
                    os.write(said, json.dumps(["opened", item.service, item.pid, item.uid]).encode() + b"\n")
                case Ended():
                    os.write(said, json.dumps(["ended", item.service, item.reason.name]).encode() + b"\n")
                case Refused():
                    os.write(said, json.dumps(["refused", item.service, item.reason.name]).encode() + b"\n")


def deliver(server: Server, item: Said) -> None:
    """Three times: alone, and in a bundle with a message of others behind."""
    hearers, data = server.hearers([item.connection]), bundle([item.message, item.message, b"other"])
    server.deliver(hearers, 1, 7, item.message)
    end = server.deliver_all(hearers, 1, 7, whole_head(item.message), data, 1)
    assert end == len(data) - LENGTH_BYTES - len(b"other")


def answer(server: Server, item: Asked, stopped: list[int]) -> None:
    number, _ = HEAD.unpack_from(item.message)
    if number == 1:
        server.answer(item.connection, item.message)
    elif number == 2:
        count, size = struct.unpack_from("<II", item.message, HEAD.size)
        for k in range(count):
            server.event([item.connection], EVENT.pack(7, size, 1, k).ljust(size, b"e"))
        server.answer(item.connection, item.message)
    elif number == 4:
        server.pause(item.connection, True)
        stopped.append(item.connection)
        server.answer(item.connection, item.message)
    elif number == 6:
        server.route(item.connection, item.message[HEAD.size :])
        server.answer(item.connection, item.message)
    elif number == 5:
        for connection in stopped:
            server.pause(connection, False)
        server.answer(item.connection, item.message)


class Rig:
    """The serving child, and what it has said."""

    def __init__(self, allowed: list[int]) -> None:
        self.out, told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                serve(told, allowed)
            finally:
                os._exit(1)
        os.close(told)
        self.text = b""
        self.said: list[list[Any]] = []
        self.wait_for("ready")

    def wait_for(self, *wanted: Any) -> None:
        """Until the server has said something that begins so."""
        deadline = time.monotonic() + WAIT_S
        while not any(line[: len(wanted)] == list(wanted) for line in self.said):
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.out], [], [], left)[0], (wanted, self.said)
            data = os.read(self.out, 65536)
            assert data, f"the server has ended: {self.said}"
            *lines, self.text = (self.text + data).split(b"\n")
            self.said += [json.loads(line) for line in lines]


@contextlib.contextmanager
def connected(name: str, size: int = BUFFER) -> Iterator[Any]:
    c = qb.qb_ipcc_connect(name.encode(), size)
    assert c != ffi.NULL, os.strerror(ffi.errno)
    yield c
    qb.qb_ipcc_disconnect(c)


def message(number: int, body: bytes = b"") -> bytes:
    return HEAD.pack(number, HEAD.size + len(body)) + body


def ask(c: Any, data: bytes) -> bytes:
    """A request and its answer; b"" if the connection has ended."""
    if qb.qb_ipcc_send(c, data, len(data)) != len(data):
        return b""
    buffer = ffi.new("char[]", BUFFER)
    got = qb.qb_ipcc_recv(c, buffer, BUFFER, int(WAIT_S * 1000))
    return bytes(ffi.buffer(buffer, got)) if got > 0 else b""


def echo(rig: Rig) -> None:
    """Answers are the requests, at all services, up to the size of the buffer."""
    for name in SERVICES:
        with connected(name) as c:
            for size in (24, 25, 4096, BUFFER - 4096):
                data = message(1, bytes(size - HEAD.size))
                assert ask(c, data) == data, (name, size)
        rig.wait_for("opened", name, os.getpid(), 0)
        rig.wait_for("ended", name, "BY_PROGRAM")


def events(rig: Rig) -> None:
    """More events than the buffer holds come complete and in order, though the program reads late."""
    with connected("cpg") as c:
        data = message(2, struct.pack("<II", 3000, 1024))
        assert ask(c, data) == data
        buffer = ffi.new("char[]", 4096)
        for k in range(3000):
            assert qb.qb_ipcc_event_recv(c, buffer, 4096, int(WAIT_S * 1000)) == 1024
            assert EVENT.unpack_from(ffi.buffer(buffer, 1024))[3] == k


def queue(rig: Rig) -> None:
    """A program that does not take its events is ended, and no other."""
    with connected("quorum") as other, connected("cpg") as c:
        data = message(2, struct.pack("<II", 8000, 1024))
        assert qb.qb_ipcc_send(c, data, len(data)) == len(data)
        rig.wait_for("ended", "cpg", "QUEUE")
        data = message(1, b"12345678")
        assert ask(other, data) == data


def hostile(rig: Rig) -> None:
    """A header that says another size than there is; 0 and less than a header; numbers of messages that nobody has."""
    for size in (0, 1, 15, BUFFER * 8, 0x7FFFFFFF, -1, -0x80000000):
        rig.said.clear()
        with connected("cmap") as c:
            data = HEAD.pack(1, size) + bytes(8)
            qb.qb_ipcc_send(c, data, len(data))
            rig.wait_for("ended", "cmap")
            assert rig.said[-1] == ["ended", "cmap", "BROKEN"], (size, rig.said)
    with connected("cmap") as c:
        for number in (99, -5, 0x7FFFFFFF):
            qb.qb_ipcc_send(c, message(number), HEAD.size)
        data = message(1, b"12345678")
        assert ask(c, data) == data


def greedy(rig: Rig) -> None:
    """A program that never reads its answers, and one that wants a buffer beyond measure."""
    with connected("cfg") as c:
        data = message(1, bytes(100_000))
        rig.wait_for("opened", "cfg")
        while not select.select([rig.out], [], [], 0.001)[0]:
            qb.qb_ipcc_send(c, data, len(data))
        rig.wait_for("ended", "cfg", "BROKEN")
    assert qb.qb_ipcc_connect(b"cpg", 512 << 20) == ffi.NULL
    rig.wait_for("refused", "cpg", "BUFFER")


def pause(rig: Rig) -> None:
    """While a connection is not read its program has no room after a while; then everything comes, in order. Its end is seen."""
    with connected("cpg") as c, connected("cpg") as other:
        assert ask(c, message(4))
        data = message(3, bytes(50_000))
        sent = 0
        while qb.qb_ipcc_send(c, data, len(data)) == len(data):
            sent += 1
        assert 5 < sent < 100, sent
        assert ask(other, message(1, b"12345678"))
        assert ask(other, message(5))
        assert ask(c, message(1, b"12345678"))
    rig.said.clear()
    child = os.fork()
    if child == 0:
        ask(qb.qb_ipcc_connect(b"votequorum", BUFFER), message(4))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    rig.wait_for("ended", "votequorum")


def halfway(rig: Rig) -> None:
    """A program that stops between a request and the byte that announces it: nobody else waits for it, and what it has sent comes
    when it goes on. One that announces what it has not sent is ended."""
    number = ffi.new("int32_t*")
    with connected("cpg") as c, connected("cpg") as other:
        assert qb.qb_ipcc_fd_get(c, number) == 0
        at, real = number[0], os.dup(number[0])
        mine, _nobody = socket.socketpair()
        os.dup2(mine.fileno(), at)  # the byte goes astray
        assert qb.qb_ipcc_send(c, message(3), HEAD.size) == HEAD.size
        os.dup2(real, at)
        data = message(1, b"12345678")
        assert qb.qb_ipcc_send(c, data, len(data)) == len(data)
        assert ask(other, data) == data
        os.write(real, b"x")
        buffer = ffi.new("char[]", BUFFER)
        assert qb.qb_ipcc_recv(c, buffer, BUFFER, int(WAIT_S * 1000)) == len(data)
        os.write(real, b"x")
        rig.wait_for("ended", "cpg", "BROKEN")
        assert ask(other, data) == data


def strangers(rig: Rig) -> None:
    """Who connects and says nothing, which anybody may, uses up no descriptors, and stops nobody."""
    held = Path(f"/proc/{rig.pid}/fd")
    before = len(list(held.iterdir()))
    silent = []
    for _ in range(600):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.connect(b"\0cmap".ljust(108, b"\0"))
        silent.append(one)
    data = message(1, b"12345678")
    deadline = time.monotonic() + WAIT_S  # libqb's queue of connections is short, and its client does not wait for room in it
    while (c := qb.qb_ipcc_connect(b"cmap", BUFFER)) == ffi.NULL and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ask(c, data) == data
    qb.qb_ipcc_disconnect(c)
    assert len(list(held.iterdir())) < before + 200


def mcast(length: int, data: bytes) -> bytes:
    """libcpg's request for a message."""
    out = bytearray(40) + data
    HEAD.pack_into(out, 0, 2, len(out))
    struct.pack_into("<I", out, 32, length)
    return bytes(out)


def group(rig: Rig) -> None:
    """Messages to a process group do not pass through Python: what C reads and writes is what the table says."""
    buffer = ffi.new("char[]", BUFFER)
    for name, pid in ((b"g", 1), (b"pacemaker\0", 0xFFFFFFFF), (b"n" * 128, 4711)):
        process = Process(name, pid)
        with connected("cpg") as c:
            assert ask(c, message(6, mcast_head(process)))
            for data in (b"", b"x", bytes(range(256)) * 400):
                request = mcast(len(data), data + b"what is behind it")
                assert qb.qb_ipcc_send(c, request, len(request)) == len(request)
                wanted = event(Deliver(0, 7, Mcast(process, Part.WHOLE, len(data), data)))
                for _ in range(3):
                    got = qb.qb_ipcc_event_recv(c, buffer, BUFFER, int(WAIT_S * 1000))
                    assert bytes(ffi.buffer(buffer, got)) == wanted, (name, len(data))
            for request in (mcast(1, b""), mcast(0xFFFFFFFF, b"x"), mcast(9, b"12345678"), mcast(0, b"")[:-1]):
                short = request[:8] + struct.pack("<i", len(request)) + request[12:]
                assert ask(c, short) == short, "malformed: it comes as it is"
            assert ask(c, message(6)) and ask(c, mcast(0, b"")) == mcast(0, b""), "and again as a request"


def rights(rig: Rig) -> None:
    """Only root and whom the lists have."""
    for user, works in ((OTHER, True), (OTHER + 1, False)):
        child = os.fork()
        if child == 0:
            os.setresgid(OTHER, OTHER, OTHER)
            os.setresuid(user, user, user)
            c = qb.qb_ipcc_connect(b"cpg", BUFFER)
            data = message(1, b"12345678")
            os._exit(0 if (ask(c, data) == data if c != ffi.NULL else not works) else 1)
        assert os.waitpid(child, 0)[1] == 0, user
    rig.wait_for("opened", "cpg")
    rig.wait_for("refused", "cpg", "RIGHTS")


def taken(rig: Rig) -> None:
    """A second server is refused, with the first one's pid."""
    assert owner("cmap") == rig.pid
    second = Server(QUEUE)
    try:
        second.serve("cmap")
    except IpcError as error:
        assert str(error) == f"service cmap is served already by process {rig.pid}", error
    else:
        raise AssertionError("two servers")
    second.close()
    os.kill(rig.pid, 0)
    try:
        Server(QUEUE, "libqb.so.none")
    except IpcError as error:
        assert "libqb.so.none" in str(error) and "package libqb100" in str(error), error
    else:
        raise AssertionError("a library that is not there")


CASES: Final[dict[str, Callable[[Rig], None]]] = {
    case.__name__: case for case in (echo, events, queue, hostile, greedy, pause, halfway, strangers, group, rights, taken)
}


def main() -> None:
    global qb
    ffi.cdef(CLIENT)
    qb = ffi.dlopen("libqb.so.100")
    rig = Rig([OTHER])
    try:
        CASES[sys.argv[1]](rig)
        assert os.waitpid(rig.pid, os.WNOHANG) == (0, 0), "the server has ended"
    finally:
        os.kill(rig.pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
