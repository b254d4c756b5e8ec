"""A program's connection to one service, and what the services share."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ...proto.service.base import Effect
from ...proto.service.corosync.results import Code
from ...proto.service.corosync.standin import StandIn
from ..observe import Journal
from .codec import Request, Value
from .conf import Conf
from .mapped import MappedFile
from .maps import Map

ITERATIONS_MAX: Final = 64
"""Of a connection, under way."""
TRACKERS_MAX: Final = 128
"""Of a connection to cmap."""


@dataclass(slots=True)
class Program:
    """A connection. Its number is the handle of the machines."""

    number: int
    service: str
    pid: int
    uid: int
    asked: str = ""
    """The request that is being answered; "": none is."""
    waiting: deque[tuple[bytes, bool]] = field(default_factory=deque)
    """Requests that have been read and wait for room; True: a message to the process group as it will be sent."""
    route: bytes = b""
    """What such messages begin with (``ipc.Server.route``)."""
    model: int = 0
    context: int = 0
    iterations: dict[int, Iterator[Any]] = field(default_factory=dict)
    last: int = 0
    """The number given last to an iteration or to a file."""
    mapped: dict[int, MappedFile] = field(default_factory=dict)
    """Files of libcpg's messages, by their numbers."""
    map: int = 0
    trackers: dict[int, int] = field(default_factory=dict)
    """Of libcmap: number to what the program has given with it."""

    def iterate(self, over: Iterator[Any]) -> int:
        """The number of a new iteration; 0: there are too many."""
        if len(self.iterations) >= ITERATIONS_MAX:
            return 0
        self.last += 1
        self.iterations[self.last] = over
        return self.last


class Host(Protocol):
    """What the services use of the process."""

    standin: StandIn
    conf: Conf
    maps: tuple[Map, Map]
    """libcmap's two: what the stand-in is configured with and knows, and statistics."""
    journal: Journal
    mtu: int

    @property
    def station(self) -> int: ...

    def apply(self, effects: Sequence[Effect]) -> None: ...

    def answer(
        self, to: Program, name: str, code: Code = Code.OK, values: Mapping[str, Value] | None = None, tail: bytes = b""
    ) -> None: ...

    def event(self, numbers: Sequence[int], message: bytes) -> None: ...

    def programs_of(self, service: str) -> list[Program]: ...

    def measure(self) -> None:
        """Bring the map of statistics up to date."""
        ...

    def after(self, seconds: float, call: Any) -> Any:
        """A timer with a method ``cancel``."""
        ...

    def stop(self, reason: str) -> None:
        """End the process; a service manager is not to start it again."""
        ...


class Service(Protocol):
    """One of corosync's services."""

    def opened(self, program: Program) -> None: ...

    def asked(self, program: Program, request: Request) -> None: ...

    def closed(self, program: Program) -> None: ...


def number_of(request: Request, name: str) -> int:
    """A field that is a number."""
    value = request.values[name]
    return value if isinstance(value, int) else 0


def bytes_of(request: Request, name: str) -> bytes:
    """A field of bytes."""
    value = request.values[name]
    return value if isinstance(value, bytes) else b""
