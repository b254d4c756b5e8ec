"""How the daemon stops: no new messages, until every station has the own ones; then good-bye, last words to programs, the end.

DRAINING lasts until no own message is on its way any more, at most ``drain_timeout_ns``, and not at all without quorum: no
message can get anywhere then. LEAVING lasts until the leave is out and the programs have read what is queued, at most
``LAST_WORDS_NS``. A second signal ends both at once.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Protocol

from ..proto.engine import NEVER, Engine
from .datapath import DataPath
from .exits import Exit
from .observe import Journal, Notifier
from .sessions import Sessions

SAME_SIGNAL_NS: Final = 100_000_000
"""One Ctrl-C can reach us twice: from the terminal, and from a parent that passes it on. Later it is a second one."""
LAST_WORDS_NS: Final = 300_000_000
"""For the queues of clients after the last message."""
MARGIN_NS: Final = 3_000_000_000
"""What the service manager should wait beyond the configured times before it kills: a loaded machine is slow."""


class Phase(IntEnum):
    """Where the daemon is between its start and its end."""

    STARTING = 0
    RUNNING = 1
    DRAINING = 2
    LEAVING = 3
    ENDED = 4


class Host(Protocol):
    """What stopping asks of the driver."""

    @property
    def has_begun(self) -> bool:
        """The engine has been started."""

    def leave(self, now: int) -> None:
        """Announce to the other stations that this one leaves."""

    def give_up(self, code: Exit, message: str) -> None:
        """End the daemon."""

    def turn_again(self) -> None:
        """Another turn of the data path is due before the daemon sleeps."""


class Stopping:
    """The phase of one daemon, and what moves it."""

    def __init__(
        self,
        host: Host,
        engine: Engine,
        *,
        dp: DataPath,
        clients: Sessions,
        journal: Journal,
        notifier: Notifier,
        drain_timeout_ns: int,
    ) -> None:
        self._host = host
        self._engine = engine
        self._dp = dp
        self._clients = clients
        self._journal = journal
        self._notifier = notifier
        self._drain_timeout_ns = drain_timeout_ns
        self.phase = Phase.STARTING
        self.deadline_ns = NEVER
        """When ``advance`` has to be called at the latest."""
        self._asked_ns = 0

    @property
    def has_begun(self) -> bool:
        """The daemon has been asked to stop."""
        return self.phase >= Phase.DRAINING

    def set_drain_timeout(self, timeout_ns: int) -> None:
        """For the next stop; one that has begun keeps its time."""
        self._drain_timeout_ns = timeout_ns

    def ask(self, now: int) -> None:
        """A signal or an operator wants the daemon to stop; the second time, to end at once."""
        if self.has_begun:
            if now - self._asked_ns > SAME_SIGNAL_NS:
                self._host.give_up(Exit.FORCED, "second signal: ending at once")
            return
        self._asked_ns = now
        self.phase, self.deadline_ns = Phase.DRAINING, now + self._drain_timeout_ns
        self._journal.info("stopping", "stopping: no new messages; own ones get until every station has them")
        self._notifier.stopping(self._drain_timeout_ns + LAST_WORDS_NS + MARGIN_NS)
        self._clients.on_closing(now)
        self._dp.hold(True)

    def advance(self, now: int) -> None:
        """Move on when the phase's aim is reached or its time is over. Harmless while the daemon is not stopping."""
        if self.phase is Phase.DRAINING:
            unstable = self._engine.core.is_open and (self._engine.core.unstable or not self._clients.multicast.is_stable)
            hopeless = not self._engine.membership.has_quorum
            if unstable and not hopeless and now < self.deadline_ns:
                return
            if unstable:
                self._journal.warning("stopping", "own messages have not reached every station in time")
            self.phase, self.deadline_ns = Phase.LEAVING, now + LAST_WORDS_NS
            self._host.leave(now)
            self._clients.close_all(LAST_WORDS_NS)
            self._dp.flush()
            self._host.turn_again()
        elif self.phase is Phase.LEAVING and (
            now >= self.deadline_ns or ((self._engine.left or not self._host.has_begun) and not self._dp.clients_left())
        ):
            self._host.give_up(Exit.OK, "stopped")
