"""The socket of a process beside the daemon: programs connect, say hello, and ask; requests are answered in any order."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from ..proto.errors import UsageError
from .jsonframes import Frame, FrameError, Frames, pack
from .listening import Listener, peer
from .observe import Journal

CONNECTIONS_MAX: Final = 1000
WRITE_HIGH: Final = 256 * 1024
"""Bytes not taken by a program above which no more of its requests are read."""


class Refused(Exception):
    """A request that is not done. code: one word, which the program gets with the text."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(text or code)
        self.code = code


class Programs:
    """Accepts programs."""

    def __init__(self, make: Callable[[int, int], Program], listener: Listener, journal: Journal) -> None:
        """make: a connection's protocol, for a user and a group."""
        self.connections: set[Program] = set()
        self._make = make
        self._listener = listener
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listener.fileno(), self._accept)

    def _accept(self) -> None:
        taken, error = self._listener.accept()
        for sock in taken:
            if len(self.connections) >= CONNECTIONS_MAX:
                sock.close()
                self._journal.event(30, "busy", f"{CONNECTIONS_MAX} programs are connected", now=time.monotonic_ns())
                continue
            sock.setblocking(False)
            self._loop.create_task(self._take(sock))
        if error is not None:
            self._journal.event(40, "accept", str(error), now=time.monotonic_ns())

    async def _take(self, sock: socket.socket) -> None:
        _, uid, gid = peer(sock)

        def make() -> Program:
            program = self._make(uid, gid)
            program.connections = self.connections
            return program

        with contextlib.suppress(OSError):
            await self._loop.connect_accepted_socket(make, sock)

    async def close(self) -> None:
        """No more programs; those that are here are cut off."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for program in list(self.connections):
            program.cut()
        await asyncio.sleep(0)


class Program(asyncio.Protocol):
    """One connection. A subclass has a method ``_do_NAME`` for each request, and says what it is in ``hello``."""

    errors: tuple[type[Exception], ...] = ()
    """What a request may raise besides Refused and ValueError; ``refusal`` says what the program gets."""

    version = 1
    """Of the protocol."""
    frame_max = 1 << 20
    under_way_max = 1024
    """Requests that are not answered yet; more are read when there are fewer."""

    def __init__(self) -> None:
        self.connections: set[Program] = set()
        self._frames = Frames(self.frame_max, self.binary)
        self._transport: asyncio.Transport | None = None
        self.is_greeted = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writable = True
        self._taskless = 0
        """Requests under way that have no task."""

    def hello(self) -> Frame:
        """The answer to the program's hello."""
        raise NotImplementedError

    def ended(self) -> None:
        """The program has gone."""

    def at_once(self, do: str, frame: Frame) -> Callable[[Frame], Frame] | None:
        """What answers this request without waiting for anything, so that it needs no task; None: nothing."""
        return None

    def binary(self, body: bytes) -> Frame | None:
        """What a frame that is no JSON stands for; None: it has been dealt with. Raises FrameError."""
        raise FrameError("a frame that is no JSON")

    def completed(self, answer: Frame) -> Frame:
        """An answer on its way to the program."""
        return answer

    def refusal(self, error: Exception) -> Refused:
        """What the program gets for one of ``errors``."""
        return Refused("failed", str(error))

    # ---- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has another base
        self._transport.set_write_buffer_limits(WRITE_HIGH)
        self.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        self._transport = None
        for task in list(self._tasks):
            task.cancel()
        self.ended()

    def pause_writing(self) -> None:
        self._writable = False
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._writable = True
        self._read_on()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.close()

    @property
    def is_here(self) -> bool:
        """The program has not gone."""
        return self._transport is not None

    def _read_on(self) -> None:
        if self._transport is not None and self._writable and not self._is_full():
            self._transport.resume_reading()

    def _is_full(self) -> bool:
        return len(self._tasks) + self._taskless >= self.under_way_max

    def write(self, frame: Frame) -> None:
        self.write_bytes(pack(frame))

    def write_bytes(self, data: bytes) -> None:
        """A whole frame."""
        if self._transport is not None:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                self._take(frame)
        except FrameError as error:
            self.write({"error": {"code": "protocol", "text": str(error)}})
            self.cut()

    def _take(self, frame: Frame) -> None:
        if not self.is_greeted:
            if frame.get("hello") != self.version:
                raise FrameError(f"this process speaks version {self.version}, not {frame.get('hello')!r}"[:200])
            self.is_greeted = True
            self.write({"hello": self.version, **self.hello()})
            return
        number, do = frame.get("id"), frame.get("do")
        if type(number) is not int or type(do) is not str:
            raise FrameError("a request without id or do")
        if (answers := self.at_once(do, frame)) is not None:
            try:
                self.write({"id": number, "ok": self.completed(answers(frame))})
            except Exception as error:
                self._refuse_for(number, error)
            return
        request: Callable[[Frame], Awaitable[Frame]] | None = getattr(self, f"_do_{do.replace('-', '_')}", None)
        if request is None:
            self.refuse(number, Refused("unknown-request", f"unknown request {do[:40]!r}"))
            return
        self.begin(number, request(frame))

    def begin(self, number: int, request: Awaitable[Frame]) -> None:
        """Answer a request with what this comes to, while the program is here."""
        task = asyncio.get_running_loop().create_task(self._run(number, request))
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        self._pause_if_full()

    def begin_taskless(self) -> None:
        """A request is under way that has no task. ``end_taskless`` follows, once."""
        self._taskless += 1
        self._pause_if_full()

    def end_taskless(self) -> None:
        was_full = self._is_full()
        self._taskless -= 1
        if was_full:
            self._read_on()

    def _pause_if_full(self) -> None:
        if self._is_full() and self._transport is not None:
            self._transport.pause_reading()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._read_on()

    async def _run(self, number: int, request: Awaitable[Frame]) -> None:
        try:
            self.write({"id": number, "ok": self.completed(await request)})
        except Exception as error:
            self._refuse_for(number, error)

    def _refuse_for(self, number: int, error: Exception) -> None:
        """Tell the program what is wrong; an exception that no request may raise is raised again."""
        if isinstance(error, Refused):
            self.refuse(number, error)
        elif isinstance(error, ValueError | UsageError):
            self.refuse(number, Refused("malformed", str(error)[:500]))
        elif isinstance(error, self.errors):
            self.refuse(number, self.refusal(error))
        else:
            raise error

    def refuse(self, number: int, refused: Refused) -> None:
        self.write({"id": number, "error": {"code": refused.code, "text": str(refused)}})


def seconds_of(frame: Frame, otherwise: float) -> float:
    """The request's time-out. Raises Refused."""
    seconds: Any = frame.get("timeout", otherwise)
    if type(seconds) not in (int, float) or not 0 <= seconds <= 86400:
        raise Refused("malformed", "timeout is 0 to 86400 s")
    return float(seconds)
