"""The stand-in's connection to zenjund: a member of the stand-ins' group, whose views, messages and events go to the ring.

The connection itself is in C (``ipc/order.c``): messages of programs do not come here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from ...proto.service.base import Place, Source
from ...proto.service.corosync.messages import GROUP
from .ipc import BLOCKED, FENCED, UNBLOCKED, Happened, OrderItem, Server, Told, Viewed, Welcomed

NAME: Final = "zenjun-corosync"
LOOKS: Final = 4
"""Between one word of zenjund and giving it up. By looks and not by the clock: this process, too, may have been stopped."""


class Ring(Protocol):
    """Who hears of the order."""

    def on_connected(self, source: Source, mtu: int, message_max: int) -> None: ...

    def on_lost(self, why: str) -> None: ...

    def on_blocked(self) -> None:
        """Without quorum."""
        ...

    def on_unblocked(self) -> None: ...

    def on_fenced(self) -> None: ...

    def on_view(self, place: Place, members: frozenset[Source]) -> None: ...

    def on_message(self, source: Source, data: bytes) -> None: ...

    def on_malformed(self) -> None: ...


class Order:
    """One connection after the other; the ring says when. Nothing of a connection is passed on after ``close``."""

    def __init__(self, path: str, server: Server, ring: Ring, patience_s: float, after: Callable[..., Any]) -> None:
        """path: of zenjund's socket. patience_s: a zenjund that has said nothing for so long, though it was asked, is lost (rule
        Y21). after: calls a function after so many seconds; what it returns has a method ``cancel``."""
        self._path, self._server, self._ring = path, server, ring
        self._patience_s, self._after = patience_s, after
        self._serial = 0
        self._is_open = False
        self._watch: Any = None
        self._heard = 0
        self._silent = 0
        """Looks since zenjund was heard."""

    def open(self) -> None:
        """Begin a connection; ``on_connected`` or ``on_lost`` follows, not at once."""
        self._serial += 1
        self._is_open = True
        self._unwatch()
        if why := self._server.open(self._path, NAME, self._serial):
            asyncio.get_running_loop().call_soon(self._lost, self._serial, why)

    def _lost(self, serial: int, why: str) -> None:
        if self._is_open and serial == self._serial:
            self._ring.on_lost(why)

    def close(self) -> None:
        """End the connection, if there is one: zenjund sees it at once."""
        self._is_open = False
        self._unwatch()
        self._server.part()

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _look(self) -> None:
        """Has zenjund said anything since the last look? Ask it again."""
        heard = self._server.heard
        self._silent = 0 if heard != self._heard else self._silent + 1
        self._heard = heard
        if self._silent >= LOOKS:
            self._watch = None
            self._ring.on_lost(f"zenjund does not answer, for {self._patience_s:g} s at least")
            return
        self._server.ask(GROUP)
        self._watch = self._after(self._patience_s / LOOKS, self._look)

    def on_item(self, item: OrderItem) -> None:
        """Something has come."""
        if not self._is_open or item.serial != self._serial:
            return
        match item:
            case Told(_, source, message):
                if message is None:
                    self._ring.on_malformed()
                else:
                    self._ring.on_message(source, message)
            case Viewed(_, place, members):
                self._ring.on_view(place, members)
            case Welcomed(serial, source, mtu, message_max):
                self._ring.on_connected(source, mtu, message_max)
                if self._is_open and (why := self._server.join(GROUP)):
                    self._lost(serial, why)
                elif self._is_open:
                    self._heard = -1  # the welcome is a word of it
                    self._look()
            case Happened(_, what, why):
                self._happened(what, why)

    def _happened(self, what: int, why: str) -> None:
        if what == BLOCKED:
            self._ring.on_blocked()
        elif what == UNBLOCKED:
            self._ring.on_unblocked()
        elif what == FENCED:
            self._ring.on_fenced()
        else:
            self._ring.on_lost(why)
