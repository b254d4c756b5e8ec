"""The server of libqb's IPC against libqb's own client: ``python -m tests.daemon.corosync_ipc_rig CASE``, one case a process.

A child serves; this process is the program. Requests: id 1 is answered by itself; 2 asks for events (number, size); 3 has no
answer; 4 stops reading this connection until another one sends 5; 6 has the head of its messages to a process group, which come
back as events of node 7, three times, or go to zenjund; 9 asks zenjund something, and has how often that was heard; 11 has how
much of requests a turn has read at most. What the server says of connections comes through a pipe.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from cffi import FFI
from zenjun.daemon.corosync.codec import event
from zenjun.daemon.corosync.ipc import (
    BLOCKED,
    LOST,
    SERVICES,
    Asked,
    Ended,
    Happened,
    IpcError,
    Opened,
    OrderItem,
    Refused,
    Said,
    Server,
    Told,
    Viewed,
    Welcomed,
    owner,
)
from zenjun.proto.service.base import Source
from zenjun.proto.service.corosync.cpg import MCAST_BYTES, MESSAGE_BYTES, WAITING_BYTES_MAX
from zenjun.proto.service.corosync.messages import Mcast, Part, Process, bundle, mcast_head, whole_head
from zenjun.proto.service.corosync.results import Deliver

from ..client.fake_daemon import MESSAGE_MAX, FakeThread, fake_daemon

HEAD: Final = struct.Struct("<i4xi4x")
EVENT: Final = struct.Struct("<i4xi4xi4xQ")
BUFFER: Final = 1 << 20
QUEUE: Final = 4 << 20
WAIT_S: Final = 30.0
PLACE: Final = struct.Struct("<QHHBBH")
"""zenjund's, before a message of a group."""
WATCH: Final = "zenjun-corosync-watch"
"""The name of the connection on which zenjund is asked."""
A_LIST: Final = b"\1\3a list"
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
routes: dict[int, bytes] = {}
"""By connection, in the serving child."""
me: list[Source] = []
most = [0]
"""Bytes of requests that one turn has read, at most; in the serving child."""
qb: Any = None
"""libqb's client, in the process of a case only."""


def serve(said: int, allowed: list[int], path: str) -> None:
    """Until it is killed. path: of zenjund's socket; empty: there is none."""
    server = Server(QUEUE)
    if path:
        assert not server.open(path, "rig", 1)
    for name in SERVICES:
        server.serve(name)
    server.allow(allowed, [])
    stopped: list[int] = []
    poll = select.poll()
    poll.register(server.fileno(), select.POLLIN)
    os.write(said, b'["ready"]\n')
    held: list[Said] = []
    while True:
        poll.poll()
        items = server.turn()
        most[0] = max(most[0], sum(len(item.message) for item in items if isinstance(item, Asked)))
        for item in items:
            match item:
                case Asked():
                    answer(server, item, stopped)
                case Said() if path:
                    held.append(item)
                    server.pause(item.connection, True)
                case Said():
                    deliver(server, item)
                case Opened():
                    os.write(said, json.dumps(["opened", item.service, item.pid, item.uid]).encode() + b"\n")
                case Ended():
                    os.write(said, json.dumps(["ended", item.service, item.reason.name]).encode() + b"\n")
                case Refused():
                    os.write(said, json.dumps(["refused", item.service, item.reason.name]).encode() + b"\n")
                case Welcomed() | Viewed() | Told() | Happened():
                    os.write(said, json.dumps(of_order(server, item)).encode() + b"\n")
        resume(server, held)


def resume(server: Server, held: list[Said]) -> None:
    """What has had no room goes on when there is some."""
    room = server.room()
    while held and server.has_room and room.of(held[0].connection) < WAITING_BYTES_MAX:
        connection, message = held.pop(0)
        server.under_way().append(message)
        server.send(message)
        room.add(connection, MESSAGE_BYTES + len(message) - len(whole_head(message)) - MCAST_BYTES)
        if not held:
            server.pause(connection, False)


def of_order(server: Server, item: OrderItem) -> list[Any]:
    """As the machines of one node would do: whole messages of anybody are heard by all connections with a route."""
    match item:
        case Welcomed():
            assert not server.join("g")
            me.append(item.source)
            return ["welcomed", *item.source, item.mtu]
        case Viewed():
            server.clear_lanes(sending=True)
            return ["view", len(item.members)]
        case Told(_, source, message):
            return ["malformed"] if message is None else told(server, source, message)
        case Happened():
            if item.what == LOST:  # the machines end the connection
                server.under_way().clear()
            return ["happened", item.what, item.why]


def told(server: Server, source: Source, message: bytes) -> list[Any]:
    is_own, head = source in me, whole_head(message)
    if is_own:
        assert server.under_way().came_back(message)
    if head:
        mine = [number for number, route in routes.items() if is_own and route == head]
        server.lane(source, head, 7, list(routes), *(mine or [0]))
        server.deliver(list(routes), 7, message)
        for number in mine:
            server.room().add(number, len(head) + MCAST_BYTES - MESSAGE_BYTES - len(message))
    return ["told", len(message), is_own]


def deliver(server: Server, item: Said) -> None:
    """Three times."""
    for _ in range(3):
        server.deliver([item.connection], 7, item.message)


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
        routes[item.connection] = item.message[HEAD.size :]
        server.route(item.connection, item.message[HEAD.size :])
        server.answer(item.connection, item.message)
    elif number == 7:  # the stand-in says something itself, a LIST between two others
        for text in (item.message, A_LIST, item.message + b"!"):
            server.under_way().append(text)
            server.send(text)
        server.answer(item.connection, item.message)
    elif number == 8:
        assert not list(server.under_way()) and not len(server.under_way()) and not server.room().of(item.connection)
        server.answer(item.connection, item.message)
    elif number == 10:  # more than zenjund takes
        server.under_way().append(bytes(MESSAGE_MAX + 1))
        server.send(bytes(MESSAGE_MAX + 1))
        server.answer(item.connection, item.message)
    elif number == 9:
        server.ask("g")
        server.answer(item.connection, item.message[: HEAD.size] + struct.pack("<Q", server.heard))
    elif number == 11:
        server.answer(item.connection, item.message[: HEAD.size] + struct.pack("<Q", most[0]))
    elif number == 5:
        for connection in stopped:
            server.pause(connection, False)
        server.answer(item.connection, item.message)


class Rig:
    """The serving child, and what it has said."""

    def __init__(self, allowed: list[int], fake: FakeThread | None = None) -> None:
        """fake: zenjund's place."""
        self.fake = fake
        path = str(fake.daemon.path) if fake is not None else ""
        self.out, told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                serve(told, allowed, path)
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


def queues(rig: Rig) -> None:
    """What waits for all programs together is bounded, too: the one that has left the most is ended, and the others get all."""
    buffer = ffi.new("char[]", 4096)
    with contextlib.ExitStack() as held:
        first = held.enter_context(connected("cfg"))
        others = [held.enter_context(connected("quorum")) for _ in range(5)]
        assert ask(first, message(2, struct.pack("<II", 4600, 1024)))
        for c in others:
            assert ask(c, message(2, struct.pack("<II", 4000, 1024)))
        rig.wait_for("ended", "cfg", "QUEUE")
        for c in others:
            for k in range(4000):
                assert qb.qb_ipcc_event_recv(c, buffer, 4096, int(WAIT_S * 1000)) == 1024
                assert EVENT.unpack_from(ffi.buffer(buffer, 1024))[3] == k
        assert [line for line in rig.said if line[0] == "ended"] == [["ended", "cfg", "QUEUE"]]


def turns(rig: Rig) -> None:
    """Large requests of many programs at once are read a part in each turn, and nobody is left out."""
    large = message(1, bytes(BUFFER - 4096 - HEAD.size))
    with contextlib.ExitStack() as held:
        programs = [held.enter_context(connected("cmap")) for _ in range(20)]
        rig.wait_for("opened", "cmap")
        assert ask(programs[0], message(11, bytes(8)))
        os.kill(rig.pid, signal.SIGSTOP)
        for c in programs:
            assert qb.qb_ipcc_send(c, large, len(large)) == len(large)
        os.kill(rig.pid, signal.SIGCONT)
        buffer = ffi.new("char[]", BUFFER)
        for c in programs:
            assert qb.qb_ipcc_recv(c, buffer, BUFFER, int(WAIT_S * 1000)) == len(large)
        together = int.from_bytes(ask(programs[0], message(11, bytes(8)))[HEAD.size :], "little")
        assert BUFFER // 2 < together <= 9 * BUFFER, together
    with connected("cmap", 4 * BUFFER) as c:
        data = message(1, bytes(3 * BUFFER))
        assert qb.qb_ipcc_send(c, data, len(data)) == len(data)
        rig.wait_for("ended", "cmap", "BROKEN")


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


def order(rig: Rig) -> None:
    """Between a program and zenjund Python sees the first message only, and none is lost, doubled or out of order; also while
    zenjund takes nothing for a while. What the stand-in says itself keeps its place among them."""
    fake = rig.fake
    assert fake is not None
    rig.wait_for("view", 1)
    process = Process(b"g", os.getpid())
    with connected("cpg") as c:
        assert ask(c, message(6, mcast_head(process)))
        for size, count in ((8, 1), (8, 3000), (8000, 800)):
            flood(rig, fake, c, process, size, count)
        rig.wait_for("told")
        assert [line[2] for line in rig.said if line[0] == "told"] == [True], "Python has seen the first one"
        assert ask(c, message(7, b"something of its own"))
        rig.wait_for("told", HEAD.size + len(b"something of its own!"), True)
        assert ask(c, message(8))
        before, deadline = ask(c, message(9, bytes(8))), time.monotonic() + WAIT_S
        while ask(c, message(9, bytes(8))) == before:
            assert time.monotonic() < deadline, "zenjund has answered, and nobody has noticed"
            time.sleep(0.001)
    sent = [body for kind, _, _, body in fake.daemon.received if kind == 4]
    assert len(sent) < 2500, "in bundles"
    assert A_LIST in sent, "which an earlier version could not read"
    other = bundle([mcast_head(process) + bytes(5), b"no message"])
    for body in (other, other[:-1]):
        fake.call(partial(fake.daemon.frame, *to(fake), PLACE.pack(1 << 40, 5, 99, 2, 0, 0) + body))
    rig.wait_for("malformed")
    fake.call(lambda: fake.daemon.event(event="blocked", quorum=False))
    rig.wait_for("happened", BLOCKED)
    with connected("cpg") as c:
        assert ask(c, message(10))
        rig.wait_for("happened", LOST, "a message above message_max, or one that cannot be sent")
    fake.call(fake.daemon.hang_up)
    rig.wait_for("happened", LOST)


def heard(c: Any) -> int:
    """Have the server ask zenjund; how often it has heard it so far."""
    return int.from_bytes(ask(c, message(9, bytes(8)))[HEAD.size :], "little")


def until_heard(c: Any, more: int) -> None:
    """zenjund is heard so many times more."""
    before, deadline = heard(c), time.monotonic() + WAIT_S
    while heard(c) < before + more:
        assert time.monotonic() < deadline, f"not within {WAIT_S:g} s: {more} answers of zenjund"
        time.sleep(0.001)


def asked(rig: Rig) -> None:
    """Rule Y21. A zenjund that does not read messages, for a member that has died holds its window, answers what it is asked: by
    a connection of its own. One that reads and delivers messages, and does not answer, is not heard by being asked."""
    fake = rig.fake
    assert fake is not None

    def deaf_to(*names: str) -> None:
        fake.call(lambda: setattr(fake.daemon, "deaf_to", set(names)))

    rig.wait_for("view", 1)
    process, buffer, sent = Process(b"g", os.getpid()), ffi.new("char[]", 1 << 16), 0
    with connected("cpg") as c, connected("cmap") as other:
        assert ask(c, message(6, mcast_head(process)))
        until_heard(other, 1)
        deaf_to("rig")
        request = mcast(8000, bytes(8000))
        while sent < 400 and qb.qb_ipcc_send(c, request, len(request)) == len(request):
            sent += 1
        until_heard(other, 3)
        assert qb.qb_ipcc_event_recv(c, buffer, 1 << 16, 0) < 0, "it was heard by its messages"
        deaf_to(WATCH)
        for _ in range(sent):
            assert qb.qb_ipcc_event_recv(c, buffer, 1 << 16, int(WAIT_S * 1000)) > 0
        before = [heard(other) for _ in range(10)]
        assert len(set(before[2:])) == 1, "what it had answered before is read by then"
        deaf_to()
        until_heard(other, 2)
        (watch,) = [one for one in fake.daemon.clients.values() if one.name == WATCH]
        fake.call(watch.writer.close)
        until_heard(other, 3)  # its end is a word of it, and there is a new one


def to(fake: FakeThread) -> tuple[Any, int, int, int]:
    """For ``FakeDaemon.frame``: a message to the first program's first group."""
    client = next(iter(fake.daemon.clients.values()))
    return client, 66, 0, next(iter(client.handles))


def flood(rig: Rig, fake: FakeThread, c: Any, process: Process, size: int, count: int) -> None:
    """So many messages, and zenjund is stopped while they are sent; all come back."""
    buffer = ffi.new("char[]", 1 << 16)
    fake.daemon.deaf = count > 1
    sent = came = stuck = 0
    while came < count:
        data = sent.to_bytes(8, "big").ljust(size, b".")
        request = mcast(len(data), data)
        if sent < count and qb.qb_ipcc_send(c, request, len(request)) == len(request):
            sent += 1
            continue
        stuck += sent < count
        fake.daemon.deaf = fake.daemon.deaf and sent < count and stuck < 20
        got = qb.qb_ipcc_event_recv(c, buffer, 1 << 16, 20 if sent < count else int(WAIT_S * 1000))
        if got > 0:
            data = came.to_bytes(8, "big").ljust(size, b".")
            wanted = event(Deliver(0, 7, Mcast(process, Part.WHOLE, size, data)))
            assert bytes(ffi.buffer(buffer, got)) == wanted, (came, size)
            came += 1
        else:
            assert sent < count and got in (-errno.EAGAIN, -errno.ETIMEDOUT), (sent, came, got, rig.said)


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
    case.__name__: case
    for case in (
        echo,
        events,
        queue,
        queues,
        turns,
        hostile,
        greedy,
        pause,
        halfway,
        strangers,
        group,
        order,
        asked,
        rights,
        taken,
    )
}


def main() -> None:
    global qb
    ffi.cdef(CLIENT)
    qb = ffi.dlopen("libqb.so.100")
    with contextlib.ExitStack() as held:
        fake = None
        if sys.argv[1] in (order.__name__, asked.__name__):
            fake = held.enter_context(fake_daemon(Path(held.enter_context(tempfile.TemporaryDirectory()))))
        case(CASES[sys.argv[1]], Rig([OTHER], fake))


def case(run: Callable[[Rig], None], rig: Rig) -> None:
    try:
        run(rig)
        assert os.waitpid(rig.pid, os.WNOHANG) == (0, 0), "the server has ended"
    finally:
        os.kill(rig.pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
