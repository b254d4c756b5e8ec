"""Many stations on few processors: engines whose every turn costs processor time that all of them share.

What ``cluster.py`` does not have: there each station has a machine of its own. Here daemons take long to start, one after the
other, and a broadcast of n stations is n * n receptions for the same two processors, so that whoever is late makes the others
late. No loss, no faults, no load; virtual time; the same run each time.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from zenjun.daemon.config.options import ClusterOptions
from zenjun.proto import wire
from zenjun.proto.effects import Changed, Closed, Effect, Opened, Persist, Refused, Send
from zenjun.proto.engine import NEVER, Engine, EngineConfig
from zenjun.proto.opening import Opening
from zenjun.proto.openpdu import OpenProposal
from zenjun.proto.pace import Arrivals, Pace

US: Final = 1_000
MS: Final = 1_000_000
S: Final = 1_000_000_000
TIMES: Final = ClusterOptions(name="crowd", stations=3).times_ns()
"""As users have them by default."""
SLICE_NS: Final = 4 * MS
"""A starting daemon computes for so long, then the others have their turn."""
INBOX_MAX: Final = 8192
_KIND_AT: Final = wire.HEADER.offset("kind")
_OPENING: Final = frozenset((wire.Kind.OPEN, wire.Kind.RCV))


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor time, nanoseconds. Measured on one processor of 2 GHz: docs/performance.md, "Many stations"."""

    start_ns: int = 520 * MS
    """From fork to the first OPEN: mostly the interpreter's imports."""
    turn_ns: int = 300 * US
    """To be woken, to look, to sleep again."""
    open_ns: int = 250 * US
    """To take one OPEN or RCV."""
    frame_ns: int = 3 * US
    """To take any other PDU."""
    send_ns: int = 20 * US
    copy_ns: int = 4 * US
    """For the bridge to hand a frame to one more port; the sender pays."""


class _Daemon:
    """One station's process."""

    def __init__(self, engine: Engine, to_start_ns: int) -> None:
        self.engine = engine
        self.to_start_ns = to_start_ns
        self.running = False
        self.queued = False
        self.stalled_until_ns = 0
        self.inbox: deque[tuple[bytes, bytes]] = deque()
        self.timer_ns = NEVER
        self.view: tuple[int, frozenset[int]] = (0, frozenset())
        """Number and members of the instance it is in; 0: none."""


class Crowd:
    """``n`` stations that are all switched on at 0, each process forked ``fork_ns`` after the one before."""

    def __init__(
        self,
        n: int,
        *,
        processors: int = 2,
        costs: Costs | None = None,
        fork_ns: int = 70 * MS,
        start_at: Mapping[int, int] | None = None,
        deaf: Collection[int] = (),
        broken: str = "",
    ) -> None:
        """start_at: stations that are forked later, and when. deaf: stations that hear nothing, and are heard. broken: a name of
        ``BROKEN``."""
        self.n = n
        self.costs = costs or Costs()
        self.now = 0
        self.instances: set[int] = set()
        self.opens = 0
        """OPEN and RCV sent."""
        self.frames = 0
        self.closed: Counter[str] = Counter()
        """Lives that ended, by reason."""
        self.drops = 0
        self.busy_ns = 0
        """Processor time used."""
        self._broken = broken
        self._deaf = frozenset(k - 1 for k in deaf)
        self._daemons = [_Daemon(self._engine(k), self.costs.start_ns) for k in range(1, n + 1)]
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._ready: deque[int] = deque()
        self._idle = processors
        for k in range(n):
            self._at((start_at or {}).get(k + 1, k * fork_ns), lambda k=k: self._queue(k))  # type: ignore[misc]

    def _engine(self, station: int) -> Engine:
        config = EngineConfig(
            cluster="crowd",
            stations=self.n,
            station=station,
            window_frames=8,
            frame_max=2048,
            message_max=4096,
            seed=station,
            boot=1000 + station,
            host_name=f"host{station}",
            **{**TIMES, "open_interval_ns": 100 * MS, "open_window_ns": 400 * MS},
        )
        engine = Engine(config, incarnation=1, instance=0)
        engine.set_mac(self._mac(station - 1))
        if self._broken:
            BROKEN[self._broken](engine.opening)
        return engine

    @staticmethod
    def _mac(index: int) -> bytes:
        return bytes((2, 0, 0, 0, 0, index + 1))

    # ---- what is seen from outside
    def views(self) -> Counter[tuple[int, int]]:
        """(instance, how many members): how many stations are in it."""
        return Counter((number, len(members)) for number, members in (d.view for d in self._daemons))

    def view(self, station: int) -> tuple[int, frozenset[int]]:
        """Number and members of the instance a station is in, (0, nobody): none."""
        return self._daemons[station - 1].view

    def together(self) -> bool:
        """All n stations are in one instance that has all of them."""
        return all(d.view == self._daemons[0].view and len(d.view[1]) == self.n for d in self._daemons)

    def run(self, until_ns: int, done: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass until then, or until ``done()``; True if it was done."""
        while self._events and self._events[0][0] <= until_ns:
            self.now, _, action = heapq.heappop(self._events)
            action()
            if done():
                return True
        self.now = until_ns
        return False

    # ---- processors
    def _at(self, when: int, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, action))

    def stall(self, station: int, for_ns: int) -> None:
        """The machine gives this station's process no time."""
        self._daemons[station - 1].stalled_until_ns = self.now + for_ns

    def _queue(self, k: int) -> None:
        daemon = self._daemons[k]
        if self.now < daemon.stalled_until_ns:
            self._at(daemon.stalled_until_ns, lambda: self._queue(k))
        elif not daemon.queued:
            daemon.queued = True
            self._ready.append(k)
            self._dispatch()

    def _dispatch(self) -> None:
        while self._idle and self._ready:
            self._idle -= 1
            k = self._ready.popleft()
            cost, out = self._turn(k)
            self.busy_ns += cost
            self._at(self.now + cost, lambda k=k, out=out: self._end(k, out))  # type: ignore[misc]

    def _end(self, k: int, out: list[bytes]) -> None:
        """The turn's time is over: now what it sent is on the segment."""
        self._idle += 1
        daemon = self._daemons[k]
        daemon.queued = False
        for pdu in out:
            for j, other in enumerate(self._daemons):
                if j != k and other.running and j not in self._deaf and wire.addressee(pdu) in (0, j + 1):
                    if len(other.inbox) >= INBOX_MAX:
                        self.drops += 1
                        continue
                    other.inbox.append((pdu, self._mac(k)))
                    self._queue(j)
        if not daemon.running or daemon.inbox:
            self._queue(k)
        else:
            self._set_timer(k)
        self._dispatch()

    def _set_timer(self, k: int) -> None:
        daemon = self._daemons[k]
        due = daemon.engine.next_deadline_ns()
        daemon.timer_ns = due
        if due < NEVER:
            self._at(due - S, lambda: self._queue(k) if daemon.timer_ns == due else None)

    def _turn(self, k: int) -> tuple[int, list[bytes]]:
        """Processor time, and what is sent at its end."""
        daemon, costs = self._daemons[k], self.costs
        if not daemon.running:
            if daemon.to_start_ns > 0:
                daemon.to_start_ns -= SLICE_NS
                return SLICE_NS, []
            daemon.running = True
            cost = costs.turn_ns
            out = self._carry_out(daemon, daemon.engine.start(self.now + S))
        else:
            batch = list(daemon.inbox)
            daemon.inbox.clear()
            opens = sum(pdu[_KIND_AT] in _OPENING for pdu, _ in batch)
            cost = costs.turn_ns + opens * costs.open_ns + (len(batch) - opens) * costs.frame_ns
            engine = daemon.engine
            out = self._carry_out(daemon, engine.on_frames(self.now + S, batch) if batch else engine.on_timeout(self.now + S))
        for _ in range(64):
            sent = daemon.engine.core.tx(self.now + S)
            delivered = daemon.engine.core.deliver()
            daemon.engine.core.positions()
            out += sent
            if not sent and not delivered:
                break
            out += self._carry_out(daemon, daemon.engine.on_frames(self.now + S, []))
        self.frames += len(out)
        self.opens += sum(pdu[_KIND_AT] in _OPENING for pdu in out)
        return cost + len(out) * (costs.send_ns + self.n * costs.copy_ns), out

    def _carry_out(self, daemon: _Daemon, effects: list[Effect]) -> list[bytes]:
        out = []
        for effect in effects:
            match effect:
                case Send(pdu):
                    out.append(pdu)
                case Opened(instance, incarnations, _, _) | Changed(instance, incarnations, _, _):
                    daemon.view = (instance, frozenset(k for k, life in enumerate(incarnations, 1) if life))
                    self.instances.add(instance)
                case Closed(_, reason, _, _):
                    daemon.view = (0, frozenset())
                    self.closed[reason] += 1
                case Persist() | Refused():
                    pass
        return out


# ---- the rules of proto/pace.py, broken one by one
class _Careless(Arrivals):
    """Whoever comes, a set that lacks some is proposed as soon as it has quorum."""

    def calm_ns(self, pace: Pace, since_ns: int) -> int:
        return since_ns


def _often(opening: Opening) -> None:
    configured = opening._config
    opening.pace = replace(opening.pace, interval_ns=configured.interval_ns, recover_ns=configured.recover_ns)


def _forgetful(opening: Opening) -> None:
    opening.pace = replace(opening.pace, window_ns=opening._config.window_ns)


def _careless(opening: Opening) -> None:
    opening._arrivals = _Careless()


def _everyone(opening: Opening) -> None:
    opening.pace = replace(opening.pace, crowded=False)


def _impatient(opening: Opening) -> None:
    follow = opening._follow

    def hasty(now: int, lowest: int, latest: OpenProposal | None, number: int) -> tuple[OpenProposal | None, bool]:
        opening._answered_ns = -S
        return follow(now, lowest, latest, number)

    opening._follow = hasty  # type: ignore[method-assign]


def _graceless(opening: Opening) -> None:
    opening.pace = replace(opening.pace, grace_ns=0)


BROKEN: Final[dict[str, Callable[[Opening], None]]] = {
    "often": _often,
    "forgetful": _forgetful,
    "careless": _careless,
    "everyone": _everyone,
    "impatient": _impatient,
    "graceless": _graceless,
}
"""What each does to every station's opening: intervals, presence, arrivals, who proposes, patience, grace."""
