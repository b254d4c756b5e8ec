"""The stand-in's connection to zenjund: a member of the stand-ins' group, whose views, messages and events go to the ring."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Protocol

from ...proto.service.base import Place, Source
from ...proto.service.corosync.messages import BUNDLE, GROUP, LENGTH_BYTES, bundle
from ..client import ClientError, Event, Message, View, connect
from ..client.aio import Connection, Group
from ..client.types import Blocked, Welcome
from ..observe import Journal

QUEUE_BYTES_MAX: Final = 4 << 20
"""Bytes that zenjund does not take yet above which no more is read of programs in process groups."""
BUNDLE_BYTES: Final = 32 << 10
"""Messages that are sent together are one message of the group up to here."""
ENDED: Final = frozenset({"closed", "expelled", "reopened"})


class Ring(Protocol):
    """Who hears of the order."""

    def on_connected(self, source: Source, welcome: Welcome) -> None: ...

    def on_lost(self, why: str) -> None: ...

    def on_blocked(self, quorum: bool) -> None: ...

    def on_unblocked(self) -> None: ...

    def on_fenced(self) -> None: ...

    def on_view(self, place: Place, members: frozenset[Source]) -> None: ...

    def on_message(self, source: Source, data: bytes) -> None: ...

    def on_bundle(self, source: Source, data: bytes) -> None:
        """Several messages, as ``messages.bundle`` writes them."""
        ...

    def on_batch(self) -> None:
        """The messages that were there have been passed in."""
        ...

    def on_bug(self, error: BaseException) -> None: ...

    def on_room(self) -> None:
        """zenjund takes messages again."""
        ...


class Order:
    """One connection after the other; the ring says when. Nothing of a connection is passed on after ``close``."""

    def __init__(self, socket: str, ring: Ring, journal: Journal) -> None:
        self._socket, self._ring, self._journal = socket, ring, journal
        self._task: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[bool]] = set()
        self._connection: Connection | None = None
        self._group: Group | None = None
        self._queue: deque[bytes] = deque()
        self._queue_bytes = 0
        self._pumping = False
        self._gathering = False

    @property
    def has_room(self) -> bool:
        return self._queue_bytes < QUEUE_BYTES_MAX

    def open(self) -> None:
        """Begin a connection; ``on_connected`` or ``on_lost`` follows."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._ring.on_bug(error)

    def close(self) -> None:
        """End the connection, if there is one. It is closed in the next turn of the loop."""
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        if self._connection is not None:
            self._end(self._connection)
        self._connection = self._group = None
        self._queue.clear()
        self._queue_bytes = 0

    def _end(self, connection: Connection) -> None:
        closing = asyncio.create_task(connection.close(timeout=0.0))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def closed(self) -> None:
        """After ``close``: wait until connections are closed."""
        if self._closing:
            await asyncio.wait(self._closing)

    def send(self, data: bytes) -> None:
        """A message to the group, behind those sent before. Only after the first view."""
        self._queue.append(data)
        self._queue_bytes += len(data)
        if not self._gathering:
            self._pump()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is sent within goes out at its end, in as few messages of the group as it takes."""
        self._gathering = True
        try:
            yield
        finally:
            self._gathering = False
            self._pump()

    def _first(self) -> tuple[int, bytes]:
        """How many messages go out together, and as what."""
        size = count = 0
        for data in self._queue:
            size += LENGTH_BYTES + len(data)
            if count and size > BUNDLE_BYTES:
                break
            count += 1
        return count, self._queue[0] if count == 1 else bundle(islice(self._queue, count))

    def _pump(self) -> None:
        group, connection = self._group, self._connection
        if group is None or connection is None or self._pumping:
            return
        while self._queue:
            count, data = self._first()
            try:
                if not group.send_nowait(data):
                    self._pumping = True
                    asyncio.get_running_loop().create_task(self._wait(connection))
                    return
            except ClientError:
                return  # the reader hears why, and the ring ends with it
            for _ in range(count):
                self._queue_bytes -= len(self._queue.popleft())

    async def _wait(self, connection: Connection) -> None:
        """Until zenjund takes more."""
        with contextlib.suppress(ClientError):
            await connection.writable(timeout=None)
        self._pumping = False
        self._pump()
        if self.has_room:
            self._ring.on_room()

    def _is_current(self) -> bool:
        return self._task is asyncio.current_task()

    async def _run(self) -> None:
        """One connection, until it ends."""
        mine: Callable[[], bool] = self._is_current
        task = asyncio.current_task()
        try:
            connection = await connect(
                self._socket,
                name="zenjun-corosync",
                wait=0.0,
                timeout=None,
                on_event=lambda event: self._on_event(event) if self._task is task else None,
            )
        except ClientError as error:
            self._lost(str(error))
            return
        if not mine():
            self._end(connection)
            return
        self._connection = connection
        welcome = connection.welcome
        self._ring.on_connected((welcome.station, welcome.client), welcome)
        try:
            self._group = await connection.join(GROUP, "preack", timeout=None)
            while mine():
                items = await self._group.recv_items(timeout=None)
                for item in items:
                    if not mine():
                        return
                    self._pass(item)
                self._ring.on_batch()
                await asyncio.sleep(0)  # programs have their turn, also while messages flow
        except ClientError as error:
            self._lost(str(error))

    def _pass(self, item: object) -> None:
        if isinstance(item, Message) and item.data.startswith(BUNDLE):
            self._ring.on_bundle((item.station, item.client), item.data)
        elif isinstance(item, Message):
            self._ring.on_message((item.station, item.client), item.data)
        elif isinstance(item, View):
            self._ring.on_view(item.place, frozenset((m.station, m.client) for m in item.members))

    def _lost(self, why: str) -> None:
        if self._is_current():
            self._ring.on_lost(why)

    def _on_event(self, event: Event) -> None:
        """Within the loop, before the messages that came before it are read: what they would bring is not needed, for a node
        that goes alone delivers its own."""
        if event.name in ENDED:
            self._ring.on_lost(event.name)
        elif event.name == "fenced":
            self._ring.on_fenced()
        elif isinstance(event, Blocked):
            self._ring.on_blocked(event.quorum)
        elif event.name == "unblocked":
            self._ring.on_unblocked()
