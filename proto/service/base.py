"""What a service is: a state machine that the total order feeds, and what it asks of the host that drives it.

Every station that runs a service gives it the same messages and views at the same places, so every copy has the same state at the
same place. A service has no socket, clock or file: its host passes in messages, views and time, and applies the returned effects
in order. The host of the services inside the daemon is ``daemon/services.py``; a service that is a program of its own has a host
on the client library. The service cannot tell them apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from ..wire import VIEW

Place: TypeAlias = tuple[int, int, int]
"""(clock, station 1..n, index): order key of a message or of a view. Places compare like the order itself."""
Source: TypeAlias = tuple[int, int]
"""(station 1..n, client): the sender of a message; client 0: the station's daemon."""
Chunk: TypeAlias = tuple[bytes, bytes]
"""(key, data) of a piece of a snapshot; a key comes once."""
ViewT = TypeVar("ViewT")
"""What a view is to a service: the stations of the instance, or the members of its group."""


class Effect:
    """Something that a service asks of its host."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Emit(Effect):
    """Broadcast a message of the service. It comes back to every copy, this one included, at its place; or never, if the instance
    ends before."""

    data: bytes
    client: int = 0
    """The local client that it speaks for, 0: this station."""


@dataclass(frozen=True, slots=True)
class Reply(Effect):
    """Answer a request, once. ``code`` is empty for success, else one of the error codes of the client protocol, and ``body`` has
    ``message``."""

    request: Hashable
    body: Mapping[str, object] = field(default_factory=dict)
    code: str = ""


@dataclass(frozen=True, slots=True)
class Store(Effect):
    """Make this durable. A barrier: later effects are applied when it is on disk. data None: remove the key."""

    key: bytes
    data: bytes | None


class StateMachine(ABC, Generic[ViewT]):
    """A replicated state machine. Every input returns effects, to be applied in order; none raises for received data.

    The inputs of ``on_message`` and ``on_view`` are equal at all copies, and so must be the changes that they make to the state:
    no clock, no randomness, no order of a set or of a hash. Effects may differ between copies: for example, only one copy sends.
    """

    @abstractmethod
    def on_message(self, place: Place, source: Source, data: bytes) -> list[Effect]:
        """A message of the service is at this place of the order."""

    @abstractmethod
    def on_view(self, place: Place, view: ViewT) -> list[Effect]:
        """Stations or members have joined or left at this place of the order."""

    def on_request(self, request: Hashable, body: bytes) -> list[Effect]:
        """A local client sends a request. ``request`` identifies it in the ``Reply``, which may be an effect of a later input. By
        default a request is refused as unknown."""
        return [Reply(request, {"message": "this service answers no requests"}, "unknown-request")]

    def next_deadline_ns(self) -> int | None:
        """When ``on_timer`` has to be called, monotonic nanoseconds; None: never. A pure read. It may move with each input."""
        return None

    def on_timer(self, now_ns: int) -> list[Effect]:
        """Time has passed. Early or repeated calls are harmless. Timers differ between copies, so they must not change the state:
        they send a message (``Emit``), which has the same place at all copies."""
        return []

    @abstractmethod
    def snapshot(self) -> list[Chunk]:
        """The state at the place of the last input. Equal at all copies at equal places."""

    @abstractmethod
    def restore(self, chunks: Iterable[Chunk]) -> None:
        """Replace the state by another copy's snapshot; the next input is the first one after its place. Raises ValueError if the
        chunks are no snapshot, and leaves the state as it was."""


class ViewEvent(NamedTuple):
    """A view event of the core (layout ``wire.VIEW``): the stations of the instance from a place on. Stations are numbers 1..n;
    ``incarnations[i]`` is station i + 1's, 0: no member. A station that has restarted may be in ``left`` and ``joined``."""

    instance: int
    hash: int
    incarnations: tuple[int, ...]
    joined: tuple[int, ...]
    left: tuple[int, ...]

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(station for station, incarnation in enumerate(self.incarnations, 1) if incarnation)


def decode_view(data: bytes) -> ViewEvent:
    """The view event that the core delivers as a message of type VIEW."""
    instance, hash_, operational, joined, left = VIEW.struct.unpack_from(data)
    stations = (len(data) - VIEW.size) // 4
    incarnations = tuple(int.from_bytes(data[VIEW.size + 4 * i : VIEW.size + 4 * i + 4], "big") for i in range(stations))
    members = tuple(incarnations[i] if operational >> i & 1 else 0 for i in range(stations))

    def numbers(bitmap: int) -> tuple[int, ...]:
        return tuple(i + 1 for i in range(stations) if bitmap >> i & 1)

    return ViewEvent(instance, hash_, members, numbers(joined), numbers(left))
