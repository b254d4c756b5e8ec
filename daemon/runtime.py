"""The driver: one cluster at one station, alive. Reads the clock, lives in the loop, carries the engine's effects out in order.

One turn, whenever the data path's descriptor is readable (frames, bytes of clients, its timer) or something here has changed:

1. ``dp_turn``: receive, offer, step, deliver, send, all in C, until idle or until Python is needed. Reading comes before judging:
   after a pause of this process the ring is emptied first, so that nobody is called silent for the time we slept.
2. ``engine.poll``: control PDUs and deadlines; its effects are carried out in order. ``Persist`` is a barrier: a synchronous
   fsync on this thread, so nothing behind it, and no frame the engine queued, can leave before.
3. group messages and control frames of clients; then again, at most ROUNDS_MAX times before other callbacks have their turn.

libuv's timers are coarse (1 ms), so the engine's deadline goes into ``dp_turn``, whose timerfd wakes the same descriptor. Only
chores of a tenth of a second and more use the loop's clock.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import traceback
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final

from ..proto.effects import Blocked, Changed, Closed, Effect, Fenced, Notice, Opened, Persist, Refused, Send
from ..proto.engine import NEVER, Engine
from ..proto.errors import UsageError
from .announce import Announcer
from .datapath import DataPath, LinkInfo, Turn, Want, now_ns
from .exits import Exit
from .link import Limits
from .links import Links
from .listening import Listener
from .metrics import MetricsServer
from .observe import Journal, Notifier
from .sessions import Sessions
from .store import Store, StoreError

ROUNDS_MAX: Final = 64
"""Turns of the data path in one callback, so that signals, netlink and new clients are served under any load."""
CONTROL_FRAMES_MAX: Final = 4
CONTROL_SLICE_NS: Final = 1_000_000
"""Control frames of programs in one turn, at most so many and, but for the last one, at most so long."""
PAUSE_NS: Final = 200_000_000
"""Between turns for longer than was planned: we did not run, and catch up with the ring before judging others."""
CATCH_UP_MAX: Final = 256
TICK_S: Final = 1.0
NOBODY_SEEN_NS: Final = 10_000_000_000
"""Opening for so long without having heard anybody: say what to check (case 111)."""
ACCEPT_REST_S: Final = 0.1
"""Out of descriptors: leave the listening socket alone for so long instead of spinning."""
SAME_SIGNAL_NS: Final = 100_000_000
"""One Ctrl-C can reach us twice: from the terminal, and from a parent that passes it on. Later it is a second one."""
LAST_WORDS_NS: Final = 300_000_000
"""For the queues of clients after the last message, when stopping."""
STOP_MARGIN_NS: Final = 3_000_000_000
"""What the service manager should wait beyond the configured times before it kills: a loaded machine is slow."""
# Plain integers: enum arithmetic would be the dearest thing in a turn.
GROUP, CLIENT, LINK, MORE = int(Want.GROUP), int(Want.CLIENT), int(Want.LINK), int(Want.MORE)
SOMETHING: Final = ~int(Want.FENCED)


class Phase(IntEnum):
    """Where the daemon is in its life."""

    STARTING = 0
    RUNNING = 1
    DRAINING = 2
    LEAVING = 3
    ENDED = 4


class Runtime:
    """One daemon's parts, joined. ``await run()`` returns its exit code."""

    def __init__(
        self,
        *,
        engine: Engine,
        dp: DataPath,
        clients: Sessions,
        store: Store,
        listener: Listener,
        journal: Journal,
        notifier: Notifier,
        interfaces: Sequence[str],
        limits: Limits,
        drain_timeout_ns: int,
        reload: Callable[[], None],
        metrics: MetricsServer | None = None,
    ) -> None:
        """interfaces: one for each link of ``dp``; reload: on SIGHUP. Raises OSError (no netlink socket)."""
        self._engine = engine
        self._dp = dp
        self._clients = clients
        self._store = store
        self._listener = listener
        self._journal = journal
        self._notifier = notifier
        self.drain_timeout_ns = drain_timeout_ns
        self._others = limits.stations - 1
        self._reload = reload
        self._metrics = metrics
        self._loop: asyncio.AbstractEventLoop | None = None
        self._announcer = Announcer(engine, journal, notifier)
        self._links = Links(interfaces, dp=dp, host=self, limits=limits, journal=journal, notifier=notifier)
        self._phase = Phase.STARTING
        self._phase_deadline = NEVER
        self._done: asyncio.Future[int] | None = None
        self._turning = False
        self._again = False
        self._planned_ns = 0
        self.started_ns = now_ns()
        self._stopping_since_ns = 0
        self._opening_since_ns = self.started_ns
        self._hinted = False
        self._fenced = False
        self._ready = False
        self._begun = False
        """The engine has been started. Not before the first link: a station that no frame reaches is in no instance, not even in
        one of its own where one station is enough."""

    # ---- life

    async def run(self) -> int:
        """Serve until stopped; returns an ``Exit`` code. Every descriptor is out of the loop before it is closed."""
        loop = self._loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        for number, action in ((signal.SIGTERM, self._on_stop), (signal.SIGINT, self._on_stop), (signal.SIGHUP, self._on_hangup)):
            loop.add_signal_handler(number, self._guarded, action)
        readers = (
            (self._dp.fileno(), self._turn),
            *self._links.readers(),
            (self._listener.fileno(), self._on_accept),
        )
        for fd, action in readers:
            loop.add_reader(fd, self._guarded, action)
        self._phase = Phase.RUNNING
        self._guarded(self._start)
        if self._metrics is not None:
            await self._metrics.start()
        watchdog = loop.create_task(self._watchdog())
        tick = loop.create_task(self._tick())
        # Everything alive now lives as long as the daemon: the collector need not walk it again and pause us for it.
        gc.collect()
        gc.freeze()
        try:
            return await self._done
        finally:
            self._phase = Phase.ENDED
            watchdog.cancel()
            tick.cancel()
            for fd, _ in readers:
                loop.remove_reader(fd)
            self._listener.close()
            if self._metrics is not None:
                self._metrics.close()
            self._links.close()
            self._dp.close()
            self._store.close()
            self._notifier.close()

    def _start(self) -> None:
        self._dp.hold(True)
        self._links.start()
        if self._phase is Phase.RUNNING:
            self._turn()

    def give_up(self, code: Exit, message: str) -> None:
        """End with this code, for this reason; the first reason counts."""
        if self._done is None or self._done.done():
            return
        if message:
            level = logging.ERROR if code else logging.INFO
            self._journal.event(level, "exit" if code else "stopped", message, code=int(code))
        self._done.set_result(int(code))

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run a callback of the loop: the daemon ends with a reason instead of going on half broken."""
        if self._phase is Phase.ENDED:
            return
        try:
            action()
        except StoreError as exc:
            self.give_up(Exit.STATE, str(exc))
        except Exception as exc:
            self._journal.error("bug", f"{type(exc).__name__}: {exc}", traceback=traceback.format_exc())
            self.give_up(Exit.BUG, f"internal error, please report it: {type(exc).__name__}: {exc}")

    # ---- the turn

    def _turn(self) -> None:
        """Turn the data path and the engine until nothing is left or others must have their turn."""
        if self._turning:  # an effect asked for another turn
            self._again = True
            return
        self._turning = True
        try:
            more = self._rounds()
        finally:
            self._turning = False
        if more and self._loop is not None and self._phase is not Phase.ENDED:
            self._loop.call_soon(self._guarded, self._turn)

    def _rounds(self) -> bool:
        catch_up = CATCH_UP_MAX if now_ns() > self._planned_ns + PAUSE_NS else 0
        for _ in range(ROUNDS_MAX + catch_up):
            self._again = False
            deadline = self._deadline()
            turn = self._dp.turn(deadline)
            if catch_up > 0 and turn.want == MORE:
                catch_up -= 1
                continue
            catch_up = 0
            ours = turn.want or self._again or self._phase is not Phase.RUNNING or self._clients.waiting
            if not ours and self._begun:
                self._engine.join_heartbeat(turn.now)
            if not ours and not (self._begun and self._engine.has_work):  # all was done in C
                self._planned_ns = min(deadline, turn.next_due)
                return False
            self._serve(turn)
            if self._done is None or self._done.done():
                return False
            # A deadline that is over or has come nearer must be in the data path's timer before we sleep.
            if not (turn.want & SOMETHING or self._again or self._deadline() < deadline):
                self._planned_ns = min(deadline, turn.next_due)
                return False
        return True

    def _deadline(self) -> int:
        """Of Python; the core's own are in the data path's timer anyway."""
        return min(self._engine.own_deadline_ns(), self._phase_deadline) if self._begun else self._phase_deadline

    def _serve(self, turn: Turn) -> None:
        now = turn.now
        want = turn.want
        if want & GROUP:
            self._serve_group(now)
        if self._begun:
            self._apply(self._engine.poll(now, turn.status))
        if want & CLIENT:
            self._serve_clients(now)
        if self._clients.waiting:
            self._clients.after_turn(now)
        if want & LINK:
            self._links.on_error(now)
        if self._phase >= Phase.DRAINING:
            self._drain(now)
        self._dp.flush()

    def _serve_clients(self, now: int) -> None:
        """Control frames of programs, each of which has one here at a time: a few, then data path and engine have their turn, or
        programs that ask without end would keep heartbeats and confirmations back until this station is removed."""
        until = now_ns() + CONTROL_SLICE_NS
        for _ in range(CONTROL_FRAMES_MAX):
            take = self._dp.take()
            if take is None:
                return
            self._clients.on_frame(take, now)
            if now_ns() >= until:
                break
        self._again = True

    def _serve_group(self, now: int) -> None:
        message = self._dp.group()
        if message is None:
            return
        # Perhaps of the instance that has ended: its groups live until the next one begins.
        self._clients.on_delivered(message)
        self._dp.group_done()

    # ---- effects

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Persist(incarnation, instance):
                    self._store.persist(incarnation, instance)
                case Send(pdu):
                    if self._links.is_open:
                        self._dp.links_send(pdu)
                case Opened():
                    self._on_opened(effect)
                case Changed():
                    self._on_changed(effect)
                case Closed():
                    self._on_closed(effect)
                case Blocked():
                    self._on_blocked(effect)
                case Fenced():
                    self._on_fenced(effect)
                case Refused(message):
                    self.give_up(Exit.REFUSED, message)
                    return
                case Notice(kind, message):
                    self._announcer.notice(effect, self._store.explained(kind, message), now_ns())
            self._again = True

    def _on_opened(self, effect: Opened) -> None:
        self._store.note_ran()
        self._clients.payload_max = self._engine.core.payload_max
        # The data path forgets the last instance only now: its counts jump with that, and `reopened` has to come before them.
        self._clients.on_opened(effect.instance, effect.incarnations, self._dp.reset(), joined=effect.joined)
        if self._phase is Phase.RUNNING:
            self._dp.hold(False)
        self._announcer.opened(effect)

    def _on_changed(self, effect: Changed) -> None:
        self._clients.payload_max = self._engine.core.payload_max
        self._clients.on_changed(effect.instance, effect.incarnations)
        self._announcer.changed(effect, now_ns())

    def _on_closed(self, effect: Closed) -> None:
        self._dp.hold(True)
        self._clients.on_closed(effect.reason, effect.station, expelled=effect.expelled)
        self._opening_since_ns, self._hinted = now_ns(), False
        self._announcer.closed(effect)

    def _on_blocked(self, effect: Blocked) -> None:
        self._announcer.blocked(effect, now_ns())
        if self._announcer.instance or effect.stations:
            self._clients.on_blocked(effect.stations, effect.quorum)

    def _on_fenced(self, effect: Fenced) -> None:
        self._fenced = True
        self._announcer.fenced(effect)
        self._clients.on_fenced(effect.station, effect.position)

    def admin(self, command: str, arguments: dict[str, Any]) -> str:
        """An operator's command, from a client that may give it: what has been begun, for people. UsageError if it cannot be."""
        if command == "leave":
            self._on_stop()
            return "this station leaves"
        if command == "expel":
            station = arguments.get("station")
            if type(station) is not int or not 1 <= station <= self._others + 1:
                raise UsageError(f"stations are 1..{self._others + 1}")
            self._apply(self._engine.expel(now_ns(), station))
            self._again = True
            return f"the removal of station {station} has been proposed"
        raise UsageError(f"unknown command {command!r}")

    # ---- links

    def link_opened(self, name: str, info: LinkInfo) -> None:
        """Start the engine with the first link; tell it what frames may have now."""
        now = now_ns()
        text = self._announcer.is_open() if self._announcer.instance else f"opening on {name}"
        (self._notifier.status if self._ready else self._notifier.ready)(text)
        self._ready = True
        self._clients.mtu = self._links.mtu
        if not self._begun:
            self._begun = True
            self._apply(self._engine.start(now))
        self._engine.set_mac(info.mac)
        self._apply(self._engine.set_frame_max(now, self._links.pdu_max))
        self._clients.payload_max = self._engine.core.payload_max

    def link_unfit(self, why: str) -> bool:
        """At the start, a daemon none of whose links can ever be used ends."""
        ends = self._phase is Phase.RUNNING and self._links.are_unfit
        if ends:
            self.give_up(Exit.INTERFACE, why)
        return ends

    def turn_soon(self) -> None:
        """Turn when the present callback is done, unless a turn is what called."""
        if self._loop is not None and not self._turning:
            self._loop.call_soon(self._guarded, self._turn)

    def later(self, seconds: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Call once, from the loop, which must be running."""
        return asyncio.get_running_loop().call_later(seconds, self._guarded, action)

    # ---- clients

    def _on_accept(self) -> None:
        taken, error = self._listener.accept()
        now = now_ns()
        for sock in taken:
            self._clients.accept(sock, now)
        if error is not None and self._loop is not None:
            self._journal.event(logging.WARNING, "client", f"cannot accept clients: {error.strerror}", now=now, key="accept")
            self._loop.remove_reader(self._listener.fileno())
            self._loop.call_later(ACCEPT_REST_S, self._guarded, self._accept_again)
        if taken:
            self._turn()

    def _accept_again(self) -> None:
        if self._loop is not None and self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener.fileno(), self._guarded, self._on_accept)

    # ---- stopping

    def _on_stop(self) -> None:
        now = now_ns()
        if self._phase >= Phase.DRAINING:
            if now - self._stopping_since_ns > SAME_SIGNAL_NS:
                self.give_up(Exit.FORCED, "second signal: ending at once")
            return
        self._stopping_since_ns = now
        self._phase, self._phase_deadline = Phase.DRAINING, now + self.drain_timeout_ns
        self._journal.info("stopping", "stopping: no new messages; own ones get until every station has them")
        self._notifier.stopping(self.drain_timeout_ns + LAST_WORDS_NS + STOP_MARGIN_NS)
        self._clients.on_closing(now)
        self._dp.hold(True)
        self._turn()

    def _drain(self, now: int) -> None:
        """Move on when the phase's aim is reached or its time is over."""
        if self._phase is Phase.DRAINING:
            unstable = self._engine.core.is_open and self._engine.core.unstable
            hopeless = not self._engine.membership.has_quorum
            if unstable and not hopeless and now < self._phase_deadline:
                return
            if unstable:
                self._journal.warning("stopping", "own messages have not reached every station in time")
            self._phase, self._phase_deadline = Phase.LEAVING, now + LAST_WORDS_NS
            if self._begun:
                self._apply(self._engine.leave(now))
            self._clients.close_all(LAST_WORDS_NS)
            self._dp.flush()
            self._again = True
        elif self._phase is Phase.LEAVING and (
            now >= self._phase_deadline or ((self._engine.left or not self._begun) and not self._dp.clients_left())
        ):
            self.give_up(Exit.OK, "stopped")

    def _on_hangup(self) -> None:
        if self._ready:  # before, READY=1 would not mean that reading is done
            self._notifier.reloading(now_ns())
        self._reload()
        if self._ready:
            self._notifier.reloaded()

    # ---- chores

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._guarded(self._chores)

    def _chores(self) -> None:
        now = now_ns()
        self._clients.tick(now)
        self._journal.tell_held(now)
        self._look_for_others(now)
        self._links.tick(now)
        self._turn()

    def _look_for_others(self, now: int) -> None:
        """Opening for long, and no other station was heard: say once what to check."""
        opening_ns = now - self._opening_since_ns
        if not self._others or self._announcer.instance or self._hinted or opening_ns <= NOBODY_SEEN_NS:
            return
        peers = self._engine.status(now)["peers"]
        if self._links.is_open and all(peer["state"] in ("self", "never seen") for peer in peers):
            self._hinted = True
            self._announcer.nobody_seen(self._links.names, opening_ns)

    async def _watchdog(self) -> None:
        """Ask for a turn twice per interval, and say that we live only when the data path has really made one.

        A loop that runs callbacks while frames are no longer served would otherwise look alive.
        """
        if not self._notifier.watchdog_ns:
            return
        while True:
            before = self._dp.counters()["turns"]
            self._guarded(self._turn)
            if self._dp.counters()["turns"] != before:
                self._notifier.watchdog()
            await asyncio.sleep(self._notifier.watchdog_ns / 2e9)

    # ---- status

    def links(self) -> list[dict[str, Any]]:
        """``interface`` of docs/status.md without what the engine knows, of each link."""
        return self._links.status()

    def state(self) -> str:
        """``state`` of docs/status.md: the last of these words that applies."""
        if not self._links.is_open:
            return "no link"
        if self._phase >= Phase.DRAINING:
            return "draining"
        if self._fenced:
            return "fenced"
        if not self._announcer.instance:
            return "opening"
        return "open" if self._engine.membership.has_quorum else "blocked"
