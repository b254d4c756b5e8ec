"""A daemon for the tests of the client library: speaks docs/client-protocol.md for one process, orders by order of arrival.

It is written from the document, not from the library, so that the two check each other. It can be told to misbehave.
"""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zenjun.daemon.client.sync import SyncGroup

MESSAGE_MAX = 1 << 20
PATIENCE_S = 60.0


@dataclass
class Client:
    writer: asyncio.StreamWriter
    number: int
    name: str = ""
    handles: dict[int, str] = field(default_factory=dict)
    flags: dict[int, int] = field(default_factory=dict)
    sends: int = 0
    done: int = 0


def fill(group: SyncGroup, size: int, count: int) -> None:
    """Messages of this size, until nothing more is taken."""
    for _ in range(count):
        group.send(bytes(size), None, 0.1)


class FakeDaemon:
    """Serves one socket. ``deaf``: acts like a stopped process; ``deaf_to``: does not read the connections of these programs, as
    one whose window is full; ``hold``: sends are not done."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clients: dict[int, Client] = {}
        self.groups: dict[str, list[Client]] = {}
        self.orders: dict[str, int] = {}
        self.operator = True
        """Commands of operators are taken."""
        self.clock = 0
        self.hold = False
        self.deaf = False
        self.deaf_to: set[str] = set()
        self.refuse: tuple[str, str] | None = None
        self.received: list[tuple[int, int, int, bytes]] = []
        self.status: dict[str, Any] = {"version": "0", "station": 1}
        self._server: asyncio.AbstractServer | None = None
        self._numbers = 0

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def stop(self) -> None:
        for c in list(self.clients.values()):
            c.writer.close()
        if self._server is not None:
            self._server.close()

    def frame(self, c: Client, kind: int, flags: int = 0, handle: int = 0, body: bytes | dict[str, Any] = b"") -> None:
        if c.writer.is_closing():
            return
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        c.writer.write(struct.pack("<IBBH", len(data), kind, flags, handle) + data)

    def hang_up(self) -> None:
        """End all connections, as if the process had died."""
        for c in list(self.clients.values()):
            c.writer.close()

    def go_away(self) -> None:
        """Say that it ends, and end all connections."""
        self.event(event="closing")
        self.hang_up()

    def event(self, **body: Any) -> None:
        for c in self.clients.values():
            self.frame(c, 68, body=body)

    def error(self, c: Client, code: str, handle: int = 0, fatal: bool = False, **more: Any) -> None:
        self.frame(c, 70, int(fatal), handle, {"code": code, "message": f"because of {code}", "handle": handle, **more})
        if fatal:
            c.writer.close()

    def done_all(self, c: Client, levels: tuple[int, int, int] | None = None) -> None:
        self.frame(c, 69, body=struct.pack("<3Q", *(levels or (c.done,) * 3)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._numbers += 1
        c = Client(writer, self._numbers)
        try:
            while True:
                size, kind, flags, handle = struct.unpack("<IBBH", await reader.readexactly(8))
                body = await reader.readexactly(size)
                while self.deaf or c.name in self.deaf_to:
                    await asyncio.sleep(0.005)
                if not self._frame(c, kind, flags, handle, body):
                    break
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.clients.pop(c.number, None)
            for handle in list(c.handles):
                self._leave(c, handle, "death")
            writer.close()

    def _members(self, group: str) -> list[list[Any]]:
        return sorted([1, c.number, c.name] for c in self.groups.get(group, []))

    def _view(self, group: str, joined: list[Client], left: list[Client], reason: str) -> None:
        """As docs/client-protocol.md says: all members get it, and those who have just left as their last frame."""
        self.clock += 1
        for m in [*self.groups[group], *left]:
            for handle, name in m.handles.items():
                if name == group:
                    self.frame(
                        m, 67, 0, handle,
                        {
                            "group": group, "clock": self.clock, "station": 1, "index": 0, "instance": 7, "reason": reason,
                            "members": self._members(group), "extra": "to be ignored",
                            "joined": [[1, j.number, j.name] for j in joined], "left": [[1, x.number, x.name] for x in left],
                        },
                    )  # fmt: skip

    def _leave(self, c: Client, handle: int, reason: str) -> None:
        group = c.handles.get(handle, "")
        if group and c in self.groups.get(group, []) and not c.flags[handle] & 8:
            self.groups[group].remove(c)
            self._view(group, [], [c], reason)
        c.handles.pop(handle, None)

    def _frame(self, c: Client, kind: int, flags: int, handle: int, body: bytes) -> bool:
        self.received.append((kind, flags, handle, body))
        if kind == 1:
            assert body[:4] == b"ZENJ" and struct.unpack_from("<HH", body, 4) == (3, 3)
            c.name = body[8:].decode()
            if self.refuse:
                self.frame(c, 70, 1, 0, {"code": self.refuse[0], "message": self.refuse[1]})
                return False
            self.clients[c.number] = c
            self.frame(
                c, 65, 0, 0,
                {
                    "version": 3, "station": 1, "stations": 3, "cluster": "test", "client": c.number, "message_max": MESSAGE_MAX,
                    "queue_bytes_max": 1 << 22, "instance": 7, "mtu": 1500, "payload_max": 1400, "new": [],
                },
            )  # fmt: skip
        elif kind == 2:
            (order,), group = body[:1], body[4:].decode()
            assert body[1:4] == bytes(3) and not flags & ~31
            if order > 1:
                self.error(c, "unknown-order", handle)
                return True
            if group == "refused":
                self.error(c, "name-collision", handle)
                return True
            if c in self.groups.get(group, []) and not flags & 8:
                self.error(c, "name", handle)
                return True
            if flags & 8 and group == "closed":
                self.error(c, "closed-group", handle)
                return True
            if order and flags & 3:
                self.error(c, "level", handle)
                return True
            if not flags & 8 and self.groups.get(group) and self.orders[group] != order:
                self.error(c, "order-mismatch", handle)
                return True
            c.handles[handle] = group
            c.flags[handle] = flags
            if not flags & 8:
                if not self.groups.setdefault(group, []):
                    self.orders[group] = order
                self.groups[group].append(c)
                self._view(group, [c], [], "join")
        elif kind == 3 and handle not in c.handles:
            self.error(c, "bad-handle", handle)
        elif kind == 3:
            self._leave(c, handle, "leave")
        elif kind == 4:
            self._send(c, flags, handle, body)
        elif kind == 9:
            number, what = struct.unpack_from("<IH", body)
            self._request(c, number, what, body[8:])
        elif kind == 6:
            for h in list(c.handles):
                self._leave(c, h, "leave")
            if not self.hold:
                c.done = c.sends
            self.done_all(c)
            return False
        else:
            self.error(c, "protocol", fatal=True)
            return False
        return True

    def reply(self, c: Client, number: int, body: dict[str, Any], code: str = "") -> None:
        body = {"code": code, "message": f"because of {code}"} if code else body
        self.frame(c, 74, body=struct.pack("<IHH", number, int(bool(code)), 0) + json.dumps(body).encode())

    def _request(self, c: Client, number: int, what: int, body: bytes) -> None:
        if what == 1:
            self.reply(c, number, self.status)
        elif what == 2:
            name = body.decode()
            members = self._members(name) if name else [[s, 0, f"host{s}"] for s in (1, 2, 3)]
            detail = [
                {"station": s, "incarnation": 10 + s, "host": f"host{s}", "letter": "A", "state": "up", "member": True}
                for s in (1, 2, 3)
            ]
            tokens = {"tokens": {"hosts": [1, 3], "super": 1, "follows": [[1, 1], [2, 3], [3, 3]]}} if name == "tokens" else {}
            self.reply(c, number, {"group": name, "members": members, **tokens, **({} if name else {"detail": detail})})
        elif what == 3:
            self._admin(c, number, json.loads(body))
        else:
            self.reply(c, number, {}, "unknown-request")

    def _admin(self, c: Client, number: int, body: dict[str, Any]) -> None:
        if not self.operator:
            self.reply(c, number, {}, "not-permitted")
        elif body == {"command": "leave"}:
            self.reply(c, number, {"ok": True, "message": "this station leaves"})
        elif body.get("command") == "expel" and body.get("station") in (2, 3):
            self.reply(c, number, {"ok": True, "message": f"station {body['station']} goes"})
        else:
            self.reply(c, number, {}, "refused")

    def _send(self, c: Client, flags: int, handle: int, body: bytes) -> None:
        group = c.handles.get(handle)
        if group is None or body == b"refuse me":
            self.error(c, "closed-group", handle, send=sum(1 for k, *_ in self.received if k == 4))
            return
        c.sends += 1
        self.clock += 1
        place = struct.pack("<QHHBBH", self.clock, 5, c.number, 1, 0, 0)
        for m in self.groups.get(group, []):
            for h, name in m.handles.items():
                own = m is c
                if name == group and not m.flags[h] & 8 and not (own and m.flags[h] & 16):
                    self.frame(m, 66, int(own), h, place + body)
        if not self.hold:
            c.done = c.sends
            if flags & 4:
                self.done_all(c)


class FakeThread:
    """A FakeDaemon on a loop of its own thread, for the sync client and the CLI."""

    def __init__(self, path: Path) -> None:
        self.daemon = FakeDaemon(path)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.daemon.start(), self.loop).result(PATIENCE_S)

    def call(self, function: Callable[[], Any]) -> Any:
        """Run in the daemon's thread."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE_S)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.daemon.stop(), self.loop).result(PATIENCE_S)

        async def rest() -> None:
            tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for t in tasks:
                t.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(rest(), self.loop).result(PATIENCE_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()


@contextmanager
def fake_daemon(folder: Path) -> Iterator[FakeThread]:
    fake = FakeThread(folder / "zenjund.sock")
    fake.start()
    try:
        yield fake
    finally:
        fake.stop()
