"""What the machine of state transfer works with: its effects, the queue in front of the program, its options."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from .transferwire import NOWHERE, Place, Who

KEPT_BYTES_MAX: Final = 1 << 30
"""Messages kept while the state comes; with more the joiner asks again."""

Item = TypeVar("Item")


# ---- effects


class ToGroup(NamedTuple):
    """Broadcast in the companion group."""

    data: bytes


class ToJoiner(NamedTuple):
    """Send to a joiner's mailbox."""

    joiner: Who
    data: bytes


class OpenMailbox(NamedTuple):
    """Join the own mailbox, then call ``on_mailbox``."""


class CloseMailbox(NamedTuple):
    """Leave the own mailbox."""


class Release(NamedTuple):
    """Stop sending to this joiner."""

    joiner: Who


class Digest(NamedTuple):
    """Call ``compute`` beside the program, in a thread, then ``on_digest`` with what it returns or raises."""

    joiner: Who
    number: int
    compute: Callable[[], bytes | None]


class Note(NamedTuple):
    """An event for the program: ``asked``, ``offer``, ``progress``, ``restored``, ``active``, ``syncing``, ``state-lost``,
    ``diverged``, ``overflow``, ``serving``, ``snapshot-failed`` or ``failed``. text: for people. size, total: bytes, -1: not
    known."""

    kind: str
    text: str
    place: Place = NOWHERE
    size: int = 0
    total: int = -1


Effect: TypeAlias = ToGroup | ToJoiner | OpenMailbox | CloseMailbox | Release | Digest | Note


class Queue(Protocol, Generic[Item]):
    """Items between the order and the program, first in, first out."""

    def append(self, item: Item, size: int, limited: bool) -> bool:
        """Add an item. limited: False if the queue is full; otherwise it is taken in any case."""

    def pop(self, count: int) -> list[Item]:
        """The first items, at most ``count`` of them."""

    def clear(self) -> None:
        """Drop everything."""

    def __len__(self) -> int: ...


class MemoryQueue(Generic[Item]):
    """A queue in memory. The limit in bytes counts while the member gets the state."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._items: deque[tuple[Item, int]] = deque()
        self._bytes = 0

    def append(self, item: Item, size: int, limited: bool) -> bool:
        if limited and self._bytes + size > self.bytes_max:
            return False
        self._items.append((item, size))
        self._bytes += size
        return True

    def pop(self, count: int) -> list[Item]:
        out = []
        for _ in range(min(count, len(self._items))):
            item, size = self._items.popleft()
            self._bytes -= size
            out.append(item)
        return out

    def clear(self) -> None:
        self._items.clear()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._items)


class Gate(Enum):
    """What becomes of the group's messages at their position."""

    DROP = "drop"
    """Drop the kept messages, which are part of the coming state. The program still reads what was delivered before."""
    KEEP = "keep"
    """After the ASK: kept until the state is complete."""
    OPEN = "open"
    """The program may read them."""


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of one member.

    message_max: the cluster's limit, bytes; at least 4 KiB.
    number:      first number for this member's transfers: random, so that what a donor sent to a predecessor of the same name is
                 not taken for an answer. 64 bits.
    holders:     for a persistent group the number of stations that keep its state durably; 0: not persistent.
    donors:      number of donors asked at a time if enough are active, 1 or 2. Two are compared, and both serve.
    """

    message_max: int
    number: int
    holders: int = 0
    donors: int = 2
