"""The DNS port of the process: UDP and TCP on one loopback address, answered in the loop from what was committed last.

A flood of questions must not keep the process from its messages: what is above ``directory.dns_rate`` answers a second is dropped
unread and counted, and each TCP connection has one question under way at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from ...proto.service.directory.entries import Entry, Target
from ...proto.service.directory.lookup import Found
from ..config import DirectoryOptions, loopback
from ..listening import BACKLOG, SocketError
from ..programs import Refused
from .copy import DATABASE_ERRORS
from .dnsanswer import Failed, Unanswerable, Zone
from .process import Process

TCP_CONNECTIONS_MAX: Final = 64
TCP_IDLE_S: Final = 5.0
"""Until a connection without a whole question is closed."""
DATAGRAM_MAX: Final = 4096
"""Bytes of a question over UDP; a longer one is cut off, and so malformed."""
DATAGRAMS_AT_ONCE: Final = 32
"""Questions read in one turn of the loop."""


class Bucket:
    """A limit of events a second, with a burst of a tenth of a second's."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._most = max(1.0, rate / 10)
        self._level = self._most
        self._at_ns = 0

    def take(self, now_ns: int) -> bool:
        """Whether one more is within the limit. now_ns: monotonic."""
        self._level = min(self._most, self._level + (now_ns - self._at_ns) * self._rate / 1e9)
        self._at_ns = now_ns
        if self._level < 1:
            return False
        self._level -= 1
        return True


class ProcessSource:
    """The process's copy as the zone's source."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def follow(self, name: str) -> Found:
        try:
            self._process.check_stale()
            return self._process.answers.follow(name)
        except (Refused, *DATABASE_ERRORS) as error:
            raise Failed(str(error)) from None

    def targets(self, entry: Entry) -> Sequence[Target]:
        try:
            return self._process.answers.targets(entry, b"", self._process.facts)
        except DATABASE_ERRORS as error:
            raise Failed(str(error)) from None

    @property
    def serial(self) -> int:
        return self._process.facts.place[0] & 0xFFFF_FFFF


class DnsServer:
    """``DnsServer(process, options)`` listens; ``start`` answers, ``close`` ends both. Raises SocketError."""

    def __init__(self, process: Process, options: DirectoryOptions) -> None:
        self.listen = options.dns
        self.zone = Zone(ProcessSource(process), options.dns_domain, process.config.station.id)
        self.dropped: Counter[str] = Counter()
        """Questions without an answer, by reason: ``malformed``, ``response``, ``limited``, ``busy`` (TCP connections)."""
        self._bucket = Bucket(options.dns_rate)
        self._loop = asyncio.get_running_loop()
        self._connections: set[asyncio.Task[None]] = set()
        host, port = loopback(options.dns)
        family = socket.AF_INET if host.version == 4 else socket.AF_INET6
        with contextlib.ExitStack() as opened:
            try:
                self._udp = opened.enter_context(
                    socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
                )
                self._udp.bind((str(host), port))
                self._tcp = opened.enter_context(
                    socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
                )
                self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._tcp.bind((str(host), port))
                self._tcp.listen(BACKLOG)
            except OSError as error:
                raise SocketError(f"cannot answer DNS at {options.dns}: {error.strerror or error}") from error
            opened.pop_all()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._loop.add_reader(self._udp.fileno(), self._read)
        self._server = await asyncio.start_server(self._accept, sock=self._tcp)

    def close(self) -> None:
        self._loop.remove_reader(self._udp.fileno())
        self._udp.close()
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()

    def status(self) -> dict[str, Any]:
        return {
            "listen": self.listen,
            "domain": self.zone.domain,
            "answers": dict(self.zone.answers),
            "dropped": dict(self.dropped),
            "connections": len(self._connections),
        }

    def _respond(self, wire: bytes, *, tcp: bool) -> bytes | None:
        if not self._bucket.take(time.monotonic_ns()):
            self.dropped["limited"] += 1
            return None
        try:
            return self.zone.respond(wire, tcp=tcp)
        except Unanswerable as reason:
            self.dropped[str(reason)] += 1
            return None

    def _read(self) -> None:
        for _ in range(DATAGRAMS_AT_ONCE):
            try:
                wire, asker = self._udp.recvfrom(DATAGRAM_MAX)
            except OSError:
                # Nothing more, or an ICMP error for an earlier answer: its asker has gone.
                return
            answer = self._respond(wire, tcp=False)
            if answer is not None:
                with contextlib.suppress(OSError):  # an asker that does not read loses answers, as in any network
                    self._udp.sendto(answer, asker)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= TCP_CONNECTIONS_MAX:
            self.dropped["busy"] += 1
            writer.close()
            return
        self._connections.add(task)
        try:
            while (answer := self._respond(await self._question(reader), tcp=True)) is not None:
                writer.write(len(answer).to_bytes(2, "big") + answer)
                await asyncio.wait_for(writer.drain(), TCP_IDLE_S)
        except (asyncio.IncompleteReadError, TimeoutError, OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    @staticmethod
    async def _question(reader: asyncio.StreamReader) -> bytes:
        async with asyncio.timeout(TCP_IDLE_S):
            size = int.from_bytes(await reader.readexactly(2), "big")
            return await reader.readexactly(size)
