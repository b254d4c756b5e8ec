"""The services inside the daemon: where one is added, and how it gets its messages and requests.

A service is a state machine (``proto/service/base.py``) with a *host* here: a ``ServiceHost`` that feeds it from the order and
applies what it returns. To add one:

1. the state machine, in ``proto/service/``;
2. its host, in ``daemon/``: a ``ServiceHost`` that names the messages of the order and the requests of programs that are its own;
3. one line in ``Sessions.__init__`` that makes the host. It registers itself with ``Services``, and gets its part from then on.

So far there is one, the process groups (``grouphost.py``). A service that waits for a disk, or that programs can flood, does not
belong here, because this thread also detects silent stations: it becomes a program, a client of the daemon
(docs/adr/0012-services.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import ClassVar, Final

from ..proto.service.base import Place, ViewEvent
from ..proto.wire import MessageType
from .clientwire import Kind
from .connections import Connection

SHARED: Final = frozenset({MessageType.SERVICE})
"""Messages of daemons: each service knows its own by their first byte, and ignores the others."""


class ServiceHost(ABC):
    """What the daemon does with one service. One thread; every method returns at once."""

    MESSAGES: ClassVar[frozenset[MessageType]] = frozenset()
    """Types of messages in the order that are this service's. No other service has them, but for those of ``SHARED``."""
    REQUESTS: ClassVar[frozenset[Kind]] = frozenset()
    """Kinds of requests that it answers. No other service does."""

    # ---- instances

    @abstractmethod
    def open(self, instance: int, *, joined: bool) -> None:
        """An instance begins; joined: this station has been admitted to a running one. ``begin`` follows."""

    @abstractmethod
    def begin(self) -> None:
        """The programs have got the event of the instance: messages may be sent."""

    @abstractmethod
    def suspend(self) -> None:
        """This station is in no instance now. What is delivered of the last one before the next begins still counts."""

    @abstractmethod
    def end(self) -> None:
        """The last instance has nothing more to deliver; the next one is about to begin."""

    # ---- inputs

    @abstractmethod
    def on_message(self, place: Place, client: int, data: bytes, position: int) -> None:
        """One of ``MESSAGES``, sent for a client of station ``place[1]`` (0: for the station itself). position: of its PDU."""

    @abstractmethod
    def on_view(self, place: Place, view: ViewEvent, position: int) -> None:
        """Stations have come or gone at this place of the order."""

    def on_request(self, request: Hashable, body: bytes) -> None:
        """A program asks one of ``REQUESTS``. The answer is a ``Reply`` with this ``request``, now or later."""
        raise NotImplementedError(f"{type(self).__name__} names requests that it does not answer")

    @abstractmethod
    def forget(self, connection: Connection, *, death: bool) -> None:
        """A program has gone; death: without good-bye."""

    # ---- messages to the order

    @property
    def waiting(self) -> bool:
        """Messages wait for room in the data path: call ``flush`` after the next turn."""
        return False

    @abstractmethod
    def flush(self) -> None:
        """Send what there is room for."""


class Services:
    """All services of this daemon. Whatever concerns them all reaches them in the order in which they have registered."""

    def __init__(self) -> None:
        self._hosts: list[ServiceHost] = []
        self._of_message: dict[int, list[ServiceHost]] = {}
        self._of_request: dict[Kind, ServiceHost] = {}

    def register(self, host: ServiceHost) -> None:
        """Once for each service, before the first instance. Raises ValueError if another one has its messages or requests."""
        name = type(host).__name__
        if taken := (host.MESSAGES - SHARED) & self._of_message.keys():
            raise ValueError(f"{name}: messages of type {min(taken)} are another service's")
        if asked := host.REQUESTS & self._of_request.keys():
            raise ValueError(f"{name}: requests of kind {min(asked)} are another service's")
        self._hosts.append(host)
        for kind in host.MESSAGES:
            self._of_message.setdefault(kind, []).append(host)
        self._of_request |= dict.fromkeys(host.REQUESTS, host)

    def open(self, instance: int, *, joined: bool) -> None:
        for host in self._hosts:
            host.open(instance, joined=joined)

    def begin(self) -> None:
        for host in self._hosts:
            host.begin()

    def suspend(self) -> None:
        for host in self._hosts:
            host.suspend()

    def end(self) -> None:
        for host in self._hosts:
            host.end()

    def on_message(self, kind: int, place: Place, client: int, data: bytes, position: int) -> None:
        """A message of this type (``MessageType``); nothing if no service here has such messages."""
        for host in self._of_message.get(kind, ()):
            host.on_message(place, client, data, position)

    def on_view(self, place: Place, view: ViewEvent, position: int) -> None:
        for host in self._hosts:
            host.on_view(place, view, position)

    def on_request(self, kind: Kind, request: Hashable, body: bytes) -> bool:
        """Pass a question on. False: no service here answers such."""
        host = self._of_request.get(kind)
        if host is not None:
            host.on_request(request, body)
        return host is not None

    def forget(self, connection: Connection, *, death: bool) -> None:
        for host in self._hosts:
            host.forget(connection, death=death)

    @property
    def waiting(self) -> bool:
        """Some service has messages for which the data path had no room."""
        return any(host.waiting for host in self._hosts)

    def flush(self) -> None:
        for host in self._hosts:
            host.flush()
