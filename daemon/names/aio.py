"""The directory for asyncio (any loop)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, cast

from ...proto.service.directory.entries import NOWHERE, Entry, Place
from ...proto.service.directory.operations import Operation
from ..client.base import Patience
from ..client.common import TIMEOUT_S, program_name
from ..client.errors import ClientError, ConnectionClosed, NotReachable, Timeout
from ..client.ticket import Ticket
from ..directory.wire import Frame
from . import calls
from .base import RETRY_S, SLACK_S, LeaseState, Pages, Persistence, apply_changes, done_of, outcome_of
from .common import open_socket, socket_path
from .errors import UpdateId
from .protocol import NamesProtocol
from .types import Addresses, Answer, Done, NameChange, answer_of

TURN_HITS: Final = 256
"""Kept answers given out between two turns of the loop: a program that does nothing but look up hears of changes, too."""


class _Link(asyncio.Protocol):
    """Bytes between the transport and the protocol."""

    def __init__(self, protocol: NamesProtocol) -> None:
        self.protocol = protocol
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has another base

    def data_received(self, data: bytes) -> None:
        self.protocol.receive(data)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        why = (
            f"the connection to the directory process broke: {exc}" if exc else "the directory process has closed the connection"
        )
        self.protocol.lost(ConnectionClosed(why))

    def flush(self) -> None:
        if self.transport is not None and (data := self.protocol.take()):
            self.transport.write(data)


class DirectoryLease(LeaseState):
    """An address registered while this object's ``async with`` lasts. With a ttl it is renewed by this very loop, so that the
    address goes with a program that hangs."""

    def __init__(self, directory: Directory, operation: Any, ttl: float) -> None:
        super().__init__()
        self._directory = directory
        self._operation = operation
        self._ttl = ttl
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> DirectoryLease:
        directory = self._directory
        ticket = directory._protocol.register(self._operation, self._ttl, directory._timeout)
        self._registered(directory._protocol, await directory._call(ticket))
        if self._ttl:
            self._renewing = asyncio.create_task(self._renew())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        if self._directory._protocol.ended is None:
            await self._directory._call(self._directory._protocol.ask("release", lease=self.number))

    async def wait_held(self, timeout: float | None = None) -> bool:
        """Wait until the name is this lease's; False: not in time, or the lease has ended. Raises ConnectionClosed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not (self.held or self.ended):
                    await self._directory._news(None)
        return self.held

    async def _renew(self) -> None:
        with contextlib.suppress(ClientError):
            while True:
                await asyncio.sleep(self._ttl / 3)
                await self._directory._call(self._directory._protocol.ask("renew", lease=self.number))


class Mirror(Mapping[str, Entry]):
    """The entries of a watch as a mapping, kept up to date by the loop."""

    def __init__(self, directory: Directory, subject: str) -> None:
        self._entries: dict[str, Entry] = {}
        self._directory = directory
        self._number, self._ticket = directory._protocol.watch(subject)
        self._queue = directory._protocol.watches[self._number]
        self.listed = False

    async def _fill(self) -> Mirror:
        await self._directory._call(self._ticket)
        while not any(change.kind == "listed" for change in self._queue):
            await self._directory._news(self._directory._timeout)
        return self

    def __getitem__(self, name: str) -> Entry:
        apply_changes(self._entries, self._queue)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        apply_changes(self._entries, self._queue)
        return iter(dict(self._entries))

    def __len__(self) -> int:
        apply_changes(self._entries, self._queue)
        return len(self._entries)

    def close(self) -> None:
        """Follow no more."""
        self._directory._protocol.unwatch(self._number)
        self._directory._link.flush()


class Directory:
    """A connection to the directory process of this station; made by ``connect_directory``. The calls are those of
    ``SyncDirectory``."""

    def __init__(self, link: _Link, timeout: float | None, path: str | None = None) -> None:
        self._link = link
        self._protocol = link.protocol
        self._timeout = timeout
        self._path = path
        self.zones_down: tuple[str, ...] = ()
        """Zones whose names the last ``list`` lacks, because no holder is active."""
        self._hits = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._protocol.on_news = self._wake

    async def lookup(self, name: str, *, key: str | None = None, fresh: bool = False, timeout: float | None = None) -> Answer:
        """The addresses of a name; calls as ``SyncDirectory.lookup``. Raises NoName, NoAddress, NoQuorum, Timeout."""
        if not fresh and (kept := self._protocol.kept(name, key)) is not None:
            self._hits += 1
            if not self._hits % TURN_HITS:
                await asyncio.sleep(0)  # what has changed is heard of in the loop
            return kept
        return answer_of(await self._call(self._protocol.lookup(name, key, fresh, self._seconds(timeout)), timeout))

    @property
    def place(self) -> Place:
        """Place of the latest answer. Pass it to ``connect_directory`` for the next connection, and reads never go back."""
        return self._protocol.place

    async def list(self, prefix: str = "") -> list[Entry]:
        """All entries, or those of the names that begin with ``prefix``."""
        pages = Pages(prefix)
        while not pages.complete:
            pages.take(await self._call(pages.ask(self._protocol)))
        self.zones_down = pages.down
        return pages.found

    async def status(self) -> dict[str, Any]:
        """How the process is (docs/directory-service.md)."""
        return await self._call(self._protocol.ask("status"))

    async def update(self, *operations: Operation, wait: str = "disk", timeout: float | None = None) -> Done:
        """Several operations at once: all or none. Raises as ``SyncDirectory.update``."""
        persistence = Persistence(self._protocol.changing(operations, wait), self._seconds(timeout))
        try:
            return done_of(await self._call(persistence.ask(self._protocol), persistence.left()))
        except ClientError as error:
            persistence.after(error)
        while True:
            try:
                async with connect_directory(self._path, wait=persistence.left(), timeout=self._timeout, keep=False) as other:
                    return done_of(await other._call(persistence.ask(other._protocol), persistence.left()))
            except ClientError as error:
                persistence.after(error)
            await asyncio.sleep(RETRY_S)

    async def outcome(self, update: UpdateId) -> Done | None:
        """What has become of an update whose id an Undecided has; None: it never happened, or is under way. Raises what it was
        refused with."""
        return outcome_of(await self._call(self._protocol.ask("outcome", c=update[0], n=update[1])))

    async def set(self, name: str, addresses: Addresses, *, wait: str = "disk", **options: Any) -> Done:
        """Make a name with these addresses, or replace them. options: selection, ttl, meta, zone, new, version."""
        return await self.update(calls.set_of(name, addresses, **options), wait=wait)

    async def add(self, name: str, addresses: Addresses, *, wait: str = "disk") -> Done:
        """Add addresses, or change their priority and weight."""
        return await self.update(calls.add_of(name, addresses), wait=wait)

    async def drop(self, name: str, addresses: Addresses, *, wait: str = "disk") -> Done:
        """Remove addresses."""
        return await self.update(calls.drop_of(name, addresses), wait=wait)

    async def alias(self, name: str, target: str, *, wait: str = "disk", **options: Any) -> Done:
        """Make ``name`` another name of ``target``."""
        return await self.update(calls.alias_of(name, target, **options), wait=wait)

    async def rm(self, name: str, *, wait: str = "disk", version: Place | None = None) -> Done:
        """Remove a name."""
        return await self.update(calls.remove_of(name, version), wait=wait)

    async def take(self, name: str) -> str:
        """The next address, by one cursor for all stations."""
        return (await self.update(calls.take_of(name), wait="memory")).text

    def register(
        self, name: str, address: str, *, ttl: float = 0.0, exclusive: bool = False, selection: str = "all", zone: str = ""
    ) -> DirectoryLease:
        """``async with d.register(…) as lease``: an address that is removed when the block, the connection or the station ends.
        ttl: seconds; with it, also when this event loop does not run for this time."""
        operation = calls.register_of(name, address, exclusive=exclusive, selection=selection, zone=zone)
        return DirectoryLease(self, operation, ttl)

    async def watch(
        self, subject: str = "", timeout: float | None = None, since: Place | None = None
    ) -> AsyncGenerator[NameChange, None]:
        """All there is, ``listed``, then each change. since: as in ``zenjun.names.SyncDirectory.watch``. Raises Timeout,
        ConnectionClosed."""
        number, ticket = self._protocol.watch(subject, since)
        try:
            await self._call(ticket)
            queue = self._protocol.watches[number]
            while True:
                while queue:
                    yield queue.popleft()
                await self._news(timeout)
        finally:
            self._protocol.unwatch(number)
            self._link.flush()

    async def mirror(self, subject: str = "") -> Mirror:
        """A mapping of names to entries, kept up to date."""
        return await Mirror(self, subject)._fill()

    async def close(self) -> None:
        """Close; leases end with it."""
        self._protocol.lost(ConnectionClosed("the connection was closed"))
        if self._link.transport is not None:
            self._link.transport.close()

    async def __aenter__(self) -> Directory:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await self.close()

    def _seconds(self, timeout: float | None) -> float | None:
        return self._timeout if timeout is None else timeout

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def _news(self, timeout: float | None) -> None:
        """Wait until something has come. Raises Timeout, ConnectionClosed."""
        if self._protocol.ended is not None:
            raise self._protocol.ended
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait_for(future, timeout)
        except TimeoutError:
            raise Timeout(f"nothing came in {timeout:g} s") from None
        finally:
            self._waiting.discard(future)

    async def _call(self, ticket: Ticket[Frame], timeout: float | None = None) -> Frame:
        self._link.flush()
        if not ticket.settled:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not future.done():
                    future.set_result(None)

            ticket.on_settled = wake
            seconds = self._seconds(timeout)
            # A timer and a future: ``wait_for`` costs more than all the rest of a look-up.
            expiry = loop.call_later(seconds + SLACK_S, wake) if seconds is not None else None
            try:
                await future
            finally:
                if expiry is not None:
                    expiry.cancel()
            if not ticket.settled:
                raise Timeout(f"the directory process has not answered after {seconds:g} s")
        return ticket.result()


class connect_directory:
    """Connect to the directory process of this station: ``async with connect_directory() as d:`` or ``d = await …``.

    path: its socket; default $ZENJUN_DIRECTORY, else directory.sock beside $ZENJUN_SOCKET, else /run/zenjun/directory.sock.
    wait: seconds to keep trying while no process answers (None: forever). timeout: default for each call, seconds.
    place: no answer may be from before it: ``Directory.place`` of a former connection, also of one to another station's process.
    keep: answers are kept, and returned again until the process reports that they may have changed. Raises NotReachable.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        name: str | None = None,
        wait: float | None = 0.0,
        timeout: float | None = TIMEOUT_S,
        place: Place = NOWHERE,
        keep: bool = True,
    ) -> None:
        self._place = place
        self._keep = keep
        self._path = socket_path(path)
        self._name = program_name() if name is None else name
        self._wait = wait
        self._timeout = timeout
        self._directory: Directory | None = None

    def __await__(self) -> Generator[Any, None, Directory]:
        return self._open().__await__()

    async def __aenter__(self) -> Directory:
        self._directory = await self._open()
        return self._directory

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._directory is not None:
            await self._directory.close()

    async def _open(self) -> Directory:
        patience = Patience(self._wait)
        while True:
            try:
                sock = open_socket(self._path)
                break
            except NotReachable as error:
                await asyncio.sleep(patience.after(error))
        sock.setblocking(False)
        link = _Link(NamesProtocol(self._name, self._place, self._keep))
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=sock)
        directory = Directory(link, self._timeout, self._path)
        try:
            await directory._call(link.protocol.hello)
        except BaseException:
            await directory.close()
            raise
        return directory
