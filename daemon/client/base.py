"""What the connection for asyncio and the blocking one have in common: everything but how they wait."""

from __future__ import annotations

import copy
import time
from collections import deque
from typing import Final

from .common import PIPELINE_BYTES, RETRY_FIRST_S, RETRY_MAX_S, RUN_BYTES, Default, Seconds, why_ended
from .errors import Busy, ClientError, ConnectionClosed, DaemonClosing, Fenced, NotMember, NotReachable
from .protocol import ClientProtocol, Membership
from .ticket import Ticket
from .types import Item, Level, Member, Message, Order, SendLevel, View, Welcome

TRY_AGAIN: Final = (NotReachable, DaemonClosing, Busy)
"""Errors of a try to connect after which another one may succeed."""


def left(deadline: float | None) -> float | None:
    """Seconds until a deadline of ``time.monotonic``; None: forever."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class Patience:
    """How long to keep trying to reach a daemon. wait: seconds, None: forever, 0: try once."""

    def __init__(self, wait: float | None) -> None:
        self._give_up = None if wait is None else time.monotonic() + wait
        self._pause = RETRY_FIRST_S

    def after(self, error: ClientError) -> float:
        """Seconds to wait after a failed try before the next one. Raises the error when there is to be none."""
        now = time.monotonic()
        if getattr(error, "final", False) or (self._give_up is not None and now >= self._give_up):
            raise error
        pause = self._pause if self._give_up is None else min(self._pause, self._give_up - now)
        self._pause = min(2 * self._pause, RETRY_MAX_S)
        return pause


class BaseConnection:
    """State of a connection that programs may look at."""

    def __init__(self, protocol: ClientProtocol, timeout: float | None) -> None:
        self._protocol = protocol
        self._timeout = timeout

    @property
    def welcome(self) -> Welcome:
        """What the daemon reported of itself: own station, limits and so on."""
        welcome = self._protocol.welcome
        if welcome is None:
            raise ConnectionClosed
        return welcome

    @property
    def closed(self) -> bool:
        return self._protocol.ended.settled

    @property
    def instance(self) -> int:
        """Instance number of the cluster as last heard, 0 while it has never been open."""
        return self._protocol.instance

    @property
    def blocked(self) -> tuple[tuple[int, str], ...]:
        """(station, reason) pairs that delivery waits for, as last heard."""
        return self._protocol.blocked

    @property
    def quorum(self) -> bool:
        """Whether this station is in an instance that has its quorum, as last heard. Without it nothing is sent or delivered, and
        what was delivered before may not be the latest."""
        protocol = self._protocol
        return protocol.instance > 0 and protocol.quorum and not protocol.outside and not protocol.ended.settled

    def _seconds(self, timeout: Seconds) -> float | None:
        return self._timeout if isinstance(timeout, Default) else timeout

    def _deadline(self, timeout: Seconds) -> float | None:
        seconds = self._seconds(timeout)
        return None if seconds is None else time.monotonic() + seconds


class BaseGroup:
    """A joined group's facts, and the cursor in what has been taken from its inbox."""

    def __init__(self, protocol: ClientProtocol, membership: Membership) -> None:
        self._protocol = protocol
        self._membership = membership
        self._ready: list[Item] = []
        self._at = 0
        self._weight = 0
        self._mixed = False
        self._view = membership.view

    @property
    def name(self) -> str:
        return self._membership.name

    @property
    def level(self) -> Level:
        """Level of delivery; in a group of order ``op`` it is ``ordered``, and means on acceptance."""
        return self._membership.level

    @property
    def order(self) -> Order:
        """Order of delivery."""
        return self._membership.order

    @property
    def view(self) -> View | None:
        """The view at the place up to which messages have been read; None for a handle that only sends."""
        return self._view

    @property
    def members(self) -> tuple[Member, ...]:
        """Members in ``view``."""
        return self._view.members if self._view else ()

    def _passed(self, item: Item) -> None:
        if type(item) is View:
            self._view = item

    def _step(self) -> Item:
        """The next item of those taken; there is one."""
        item = self._ready[self._at]
        self._at += 1
        if type(item) is not Message:
            self._passed(item)
        return item

    def _take_rest(self) -> list[Item]:
        """All items taken and not yet read, at least one."""
        items = self._ready[self._at :] if self._at else self._ready
        self._ready, self._at = [], 0
        self._give_back()
        if self._mixed:
            for item in items:
                self._passed(item)
        return items

    def _must_wait(self) -> bool:
        """Give back what has been read; whether the inbox has nothing to be taken. Raises NotMember, Fenced."""
        membership = self._membership
        self._give_back()
        if membership.readable() or membership.state == "left":
            return False
        if self._protocol.fenced is not None:
            raise Fenced(str(self._protocol.fenced))
        return True

    def _check_receives(self) -> None:
        if self._membership.discard:
            raise NotMember(f"group {self.name!r} was joined for sending only")

    def _take(self) -> bool:
        """Take what the inbox holds. False: the end, on purpose. Raises what ended it otherwise."""
        membership, protocol = self._membership, self._protocol
        if not membership.readable():
            if membership.error is not None:
                raise why_ended(protocol) if protocol.ended.settled else copy.copy(membership.error)
            return False
        self._ready, self._weight, self._mixed = membership.take()
        self._at = 0
        return True

    def _give_back(self) -> None:
        self._protocol.consumed(self._weight)
        self._weight = 0

    def _left_group(self) -> NotMember:
        return NotMember(f"group {self.name!r} has been left")

    @property
    def _what(self) -> str:
        """What a reader waits for, as the text of its Timeout."""
        return f"waiting for a message of group {self.name!r}"


class Flight:
    """Sends with a bounded number under way: runs collected, runs sent and not yet at their level.

    window: messages under way at most; ``PIPELINE_BYTES`` together.
    """

    def __init__(self, protocol: ClientProtocol, membership: Membership, level: SendLevel, window: int) -> None:
        if window < 1:
            raise ValueError("window must be at least 1")
        self._protocol = protocol
        self._membership = membership
        self._level: SendLevel = level
        self._window = window
        self._run_max = max(1, window // 4)
        self._run: list[bytes] = []
        self._run_bytes = 0
        self._flight: deque[tuple[Ticket[None] | None, int, int]] = deque()
        self._flight_messages = 0
        self._flight_bytes = 0
        self.completed = 0
        """Messages known to have reached the level (for ``sent``: handed to the daemon)."""

    def _add(self, data: bytes) -> bool:
        """Collect one; True: time to flush."""
        self._run.append(data)
        self._run_bytes += len(data)
        return self._run_bytes >= RUN_BYTES or len(self._run) >= self._run_max

    def _take_run(self) -> tuple[list[bytes], int]:
        """What has been collected, and its bytes."""
        run, size = self._run, self._run_bytes
        self._run, self._run_bytes = [], 0
        return run, size

    def _full(self, messages: int, size: int) -> bool:
        """Whether so much more has to wait for the oldest run."""
        return bool(self._flight) and (
            self._flight_messages + messages > self._window or self._flight_bytes + size > PIPELINE_BYTES
        )

    def _launch(self, run: list[bytes], size: int) -> None:
        ticket = self._protocol.send_run(self._membership, run, self._level)
        self._flight.append((ticket, len(run), size))
        self._flight_messages += len(run)
        self._flight_bytes += size

    def _land(self, *, reached: bool) -> None:
        """The oldest run is over. Its error is raised once; later messages have results of their own."""
        _, messages, size = self._flight.popleft()
        self._flight_messages -= messages
        self._flight_bytes -= size
        if reached:
            self.completed += messages

    def _count_in(self, error: ClientError) -> None:
        """Add to the error how far the pipeline came."""
        error.completed = self.completed
