"""Takes new connections of programs from the listening socket into the sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from .datapath import now_ns
from .listening import Listener
from .observe import Journal
from .sessions import Sessions

REST_S: Final = 0.1
"""Out of descriptors: leave the listening socket alone for this long instead of spinning."""


class Host(Protocol):
    """What accepting asks of the driver."""

    def later(self, seconds: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Call once, from the loop."""

    def add_reader(self, fd: int, action: Callable[[], None]) -> None:
        """Call whenever the descriptor is readable, until ``remove_reader``."""

    def remove_reader(self, fd: int) -> None: ...

    def turn_soon(self) -> None:
        """Turn the data path when the present callback is done."""


class Acceptor:
    """Accepts the connections of one daemon. Its ``Host`` has to call ``on_readable`` for its descriptor."""

    def __init__(self, host: Host, listener: Listener, clients: Sessions, journal: Journal) -> None:
        self._host = host
        self._listener = listener
        self._clients = clients
        self._journal = journal

    def fileno(self) -> int:
        return self._listener.fileno()

    def on_readable(self) -> None:
        """Accept what waits. Rests after an error."""
        taken, error = self._listener.accept()
        now = now_ns()
        for sock in taken:
            self._clients.accept(sock, now)
        if error is not None:
            self._journal.event(logging.WARNING, "client", f"cannot accept clients: {error.strerror}", now=now, key="accept")
            self._host.remove_reader(self._listener.fileno())
            self._host.later(REST_S, self._try_again)
        if taken:
            self._host.turn_soon()

    def _try_again(self) -> None:
        if self._listener.fileno() >= 0:
            self._host.add_reader(self._listener.fileno(), self.on_readable)

    def close(self) -> None:
        self._listener.close()
