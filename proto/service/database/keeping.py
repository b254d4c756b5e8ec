"""What a site keeps while the state that it wants is on its way: everything from the place of its WANT on (rule W4)."""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

from ..base import Place, Source
from .messages import Message

Item: TypeAlias = tuple[Place, Source, Message | None, frozenset[Source]]
"""(place, sender, message, members): a view has no message."""
ALL: Final = 1 << 62


class Kept:
    """First in, first out, in memory. A host may have another one, which keeps more than memory has room for."""

    def __init__(self) -> None:
        self.bytes = 0
        """Of the messages that are here."""
        self.is_whole = True
        """Nothing is missing; otherwise what is here is of no use."""
        self._items: deque[tuple[Item, int]] = deque()

    def add(self, item: Item, size: int) -> None:
        """The latest. size: bytes of its message."""
        self.bytes += size
        self._items.append((item, size))

    def take(self) -> Item | None:
        """The oldest; None: there is none."""
        if not self._items:
            return None
        item, size = self._items.popleft()
        self.bytes -= size
        return item

    @property
    def is_empty(self) -> bool:
        return not self._items


__all__ = ["ALL", "Item", "Kept"]
