"""The driver: runs one cluster at one station, in the event loop. Reads the clock, turns the data path and the engine.

One turn, whenever the data path's descriptor is readable (frames, bytes of clients, its timer) or something here has changed:

1. ``dp_turn``: receive, offer, step, deliver, send, all in C, until idle or until Python is needed. Reading comes before judging:
   after a pause of this process the ring is emptied first, so that no station counts as silent for the time of the pause.
2. ``engine.poll``: control PDUs and deadlines; its effects are applied in order (``applying.py``).
3. group messages and control frames of clients; then again, at most ROUNDS_MAX times before other callbacks have their turn.

libuv's timers are coarse (1 ms), so the engine's deadline goes into ``dp_turn``, whose timerfd wakes the same descriptor. So does
that of the chores, which are done together with what the engine looks at anyway: one waking fewer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import signal
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ..proto.engine import Engine
from ..proto.errors import UsageError
from ..proto.reconfiguring import Outcome
from .accepting import Acceptor
from .announce import Announcer
from .applying import Applier
from .clientwire import Frame
from .confighost import ConfigHost
from .datapath import DataPath, LinkInfo, Turn, Want, now_ns
from .exits import Exit
from .judging import Judging
from .keyhost import KeyHost
from .link import Limits
from .links import Links
from .listening import Listener
from .metrics import MetricsServer
from .observe import Journal, Notifier
from .sessions import Sessions
from .sizing import SAID, Sizing, take_unread
from .stopping import Phase, Stopping
from .store import Store, StoreError

ROUNDS_MAX: Final = 64
ROUNDS_NS: Final = 8_000_000
"""Maximum of turns of the data path in one callback, and time after which none begins or waits: signals, netlink and new clients
are served under any load. The time counts from the beginning of the callback, whose first turn C may have made; only that of the
data path's descriptor waits at all, so that two in a row are not twice as long."""
CONTROL_FRAMES_MAX: Final = 4
MESSAGES_MAX: Final = 64
CONTROL_SLICE_NS: Final = 1_000_000
"""Maximum of control frames of programs in one turn, of messages to groups that overlap among them, and of their time (without
the last one)."""
PAUSE_NS: Final = 200_000_000
"""Between turns for longer than was planned: we did not run, and catch up with the ring before judging others."""
CATCH_UP_MAX: Final = 256
TICK_NS: Final = 1_000_000_000
REST_NS: Final = 2 * TICK_NS
ALONE_NS: Final = 1_500_000_000
"""Time between chores: while something goes on; at rest, where the engine's look at the members is as long a time apart; and from
chores that no look went with, so that the next ones meet one. One waking of Python serves both."""
# Plain integers: enum arithmetic would be the dearest thing in a turn.
GROUP, CLIENT, LINK, MORE, PAIR = int(Want.GROUP), int(Want.CLIENT), int(Want.LINK), int(Want.MORE), int(Want.PAIR)
SOMETHING: Final = ~int(Want.FENCED)
SPOKEN: Final = GROUP | CLIENT | PAIR
MESSAGES: Final = (int(Frame.SEND), int(Frame.SEND_TO))


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
        interfaces: Mapping[int, str],
        limits: Limits,
        drain_timeout_ns: int,
        reload: Callable[[], None],
        metrics: MetricsServer | None = None,
        keys: KeyHost | None = None,
        by_links: tuple[Judging | None, Sizing | None] = (None, None),
        configs: ConfigHost | None = None,
    ) -> None:
        """interfaces: by the number of their link; reload: on SIGHUP; keys: if frames prove their sender;
        by_links: who judges several links, if there are such, and who finds out frame sizes, if they are; configs: if
        configurations may change while it runs. Raises OSError (no netlink socket)."""
        self._engine = engine
        self._dp = dp
        self._clients = clients
        self._store = store
        self._journal = journal
        self._notifier = notifier
        self._stations = limits.stations
        self._reload = reload
        self._metrics = metrics
        self.keys = keys
        self._trusting = keys.trusting if keys is not None else None
        if keys is not None:
            keys.trusting.host = self
            store.on_written = keys.trusting.has_written
            clients.register(keys)
        self.configs = configs
        if configs is not None:
            configs.host = self
            configs.joins_wait = lambda: clients.joins_wait
            clients.register(configs)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.started_ns = now_ns()
        self._announcer = Announcer(engine, journal, notifier, self.started_ns)
        self._links = Links(interfaces, dp=dp, host=self, limits=limits, journal=journal, notifier=notifier)
        self._judging, self.sizing = judging, sizing = by_links
        if judging is not None:
            judging.links = self._links
        if sizing is not None:
            sizing.links = self._links
        self._applier = Applier(
            self, engine, dp=dp, clients=clients, store=store, links=self._links, announcer=self._announcer, configs=configs
        )
        self.stopping = Stopping(
            self, engine, dp=dp, clients=clients, journal=journal, notifier=notifier, drain_timeout_ns=drain_timeout_ns
        )
        self._acceptor = Acceptor(self, listener, clients, journal)
        clients.multicast.accuse = self._accuse
        self._done: asyncio.Future[int] | None = None
        self._turning = False
        self._again = False
        self._chores_ns = 0
        self._chored_ns = 0
        """When chores are due, and when they were last done."""
        self._ready = False
        self.has_begun = False
        """The engine has been started. Not before the first link: a station that no frame reaches is in no instance, not even in
        one of its own where one station is enough."""

    # ---- start and end

    async def run(self) -> int:
        """Serve until stopped; returns an ``Exit`` code. Every descriptor is out of the loop before it is closed."""
        loop = self._loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        for number, action in ((signal.SIGTERM, self._stop), (signal.SIGINT, self._stop), (signal.SIGHUP, self._on_hangup)):
            loop.add_signal_handler(number, self._guarded, action)
        readers = (*self._links.readers(), (self._acceptor.fileno(), self._acceptor.on_readable))
        for fd, action in readers:
            self.add_reader(fd, action)
        call, argument = self._dp.again(functools.partial(self._guarded, self._turn))
        loop.add_reader(self._dp.fileno(), call, argument)
        self.stopping.phase = Phase.RUNNING
        self._guarded(self._start)
        if self._metrics is not None:
            await self._metrics.start()
        watchdog = loop.create_task(self._watchdog())
        # All objects that exist now exist as long as the daemon: the collector need not walk them again, which would pause the
        # daemon.
        gc.collect()
        gc.freeze()
        try:
            return await self._done
        finally:
            self.stopping.phase = Phase.ENDED
            watchdog.cancel()
            for fd in (self._dp.fileno(), *(fd for fd, _ in readers)):
                self.remove_reader(fd)
            self._acceptor.close()
            if self._metrics is not None:
                self._metrics.close()
            self._links.close()
            self._dp.close()
            self._store.close()
            self._notifier.close()

    def _start(self) -> None:
        self._chores_ns = now_ns() + TICK_NS
        self._dp.hold(True)
        self._links.start()
        if self.is_running:
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
        """Run a callback of the loop: on an exception the daemon ends with a reason instead of continuing in an unknown state."""
        if self.stopping.phase is Phase.ENDED:
            return
        self._dp.alone(False)  # until a turn has seen what this has changed
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
        if more and self._loop is not None and self.stopping.phase is not Phase.ENDED:
            self._loop.call_soon(self._guarded, self._turn)

    def _rounds(self) -> bool:
        called = self._dp.began_ns
        began = called or now_ns()
        until = began + ROUNDS_NS
        if self._trusting is not None:
            self._trusting.woke(began, self._dp.planned_ns)
        catch_up = CATCH_UP_MAX if began > self._dp.planned_ns + PAUSE_NS else 0
        for _ in range(ROUNDS_MAX + catch_up):
            self._again = False
            deadline = self._deadline()
            turn = self._dp.turn(deadline, until if called else 0)
            if catch_up > 0 and turn.want == MORE:
                catch_up -= 1
                continue
            catch_up = 0
            # What is left of a slice is C's own work, and the descriptor stays readable: under load each turn leaves some.
            ours = turn.want & ~MORE or self._again or not self.is_running or self._clients.waiting
            if not ours:  # all was done in C
                break
            self._serve(turn)
            if self._done is None or self._done.done():
                return False
            # A deadline that is over or has come nearer must be in the data path's timer before we sleep.
            if not (turn.want & SOMETHING or self._again or self._deadline() < deadline):
                break
            if turn.now >= until:
                return self._goes_on()
        else:
            return self._goes_on()
        # While nothing changes here, turns that want nothing need no Python. What has slept seals nothing before it has asked.
        self._dp.alone(self.is_running and not self._clients.waiting)
        return False

    def _goes_on(self) -> bool:
        """As soon as others have had their turn: who has been busy for long has not been away."""
        self._dp.planned_ns = now_ns()
        return True

    def _deadline(self) -> int:
        """Of Python; the core's own are in the data path's timer anyway."""
        own = min(self.stopping.deadline_ns, self._clients.multicast.deadline, self._chores_ns)
        if self._trusting is not None:
            own = min(own, self._trusting.deadline_ns())
        if self._judging is not None and self.has_begun:
            own = min(own, self._judging.deadline_ns())
        if self.sizing is not None and self.has_begun:
            own = min(own, self.sizing.deadline_ns())
        return min(self._engine.own_deadline_ns(), own) if self.has_begun else own

    def _serve(self, turn: Turn) -> None:
        now = turn.now
        want = turn.want
        chores = self._chores_due(now, want)
        if want & PAIR:
            self._clients.multicast.on_pairs()
            self._again = True
        if want & GROUP:
            self._serve_group(now)
        self._clients.multicast.on_time(now)
        if self._trusting is not None:
            self._trusting.serve(now)
        if self._judging is not None and self.has_begun:
            self._judging.serve(now, want)
        if self.has_begun:
            self._applier.apply(self._engine.poll(now, turn.status))
            if self.sizing is not None and self.sizing.serve(now, want):
                self._clients.payload_max = self._engine.core.payload_max
        if want & SAID and (self.sizing is None or not self.has_begun):
            take_unread(self._dp)  # on a bus nobody sizes, nor before the first session
        if want & CLIENT:
            self._serve_clients(now)
        if self._clients.waiting:
            self._clients.after_turn(now)
        if want & LINK:
            self._links.on_error(now)
        if chores:
            self._chores()
        self.stopping.advance(now)
        self._dp.flush()

    def _serve_clients(self, now: int) -> None:
        """Control frames of programs, each of which has one here at a time, or several messages to groups that overlap: a few,
        then data path and engine have their turn, or programs that ask without end would keep heartbeats and confirmations back
        until this station is removed."""
        until = now_ns() + CONTROL_SLICE_NS
        messages = others = 0
        while messages < MESSAGES_MAX and others < CONTROL_FRAMES_MAX:
            take = self._dp.take()
            if take is None:
                break
            if take.type in MESSAGES:
                messages += 1
            else:
                others += 1
            self._clients.on_frame(take, now)
            if now_ns() >= until:
                break
        self._clients.multicast.go_on()
        self._again = True

    def _serve_group(self, now: int) -> None:
        message = self._dp.group()
        if message is None:
            return
        # Perhaps of the instance that has ended: its groups stay until the next one begins.
        self._clients.on_delivered(message)
        self._dp.group_done()

    def _accuse(self, station: int) -> None:
        """A link to this station is blocked."""
        with contextlib.suppress(UsageError):
            self._applier.apply(self._engine.expel(now_ns(), station, "deaf"))
            self._again = True

    # ---- commands

    def admin(self, command: str, arguments: dict[str, Any]) -> str | dict[str, Any]:
        """Begin what an operator asks for; returns a line for people, or an answer with one as its ``message``. Raises
        UsageError if it cannot be."""
        if command == "leave":
            self._stop()
            return "this station leaves"
        if command == "expel":
            station = arguments.get("station")
            if type(station) is not int or not 1 <= station <= self._stations:
                raise UsageError(f"stations are 1..{self._stations}")
            self._applier.apply(self._engine.expel(now_ns(), station))
            self._again = True
            return f"the removal of station {station} has been proposed"
        if command == "key":
            if self.keys is None:
                raise UsageError("this station has no key of 64 hexadecimal digits")
            self._again = True
            return self.keys.command(arguments["step"], arguments)
        if command == "cluster":
            if self.configs is None:
                raise UsageError('cluster.medium is "bus": its options change with all stations stopped only (docs/changing.md)')
            return self.configs.command(arguments)
        raise UsageError(f"unknown command {command!r}")

    def apply(self, effects: Iterable[Outcome]) -> None:
        """Effects that ``configs`` has followed."""
        self._applier.apply_followed(effects)

    def core_replaced(self) -> None:
        """The engine has another core: with it, the first instance of another configuration begins."""
        config = self._engine.config
        self._stations = config.stations
        self._dp.set_core(self._engine.core, self._stations)
        groups_max = self.configs.present.cluster.groups_max if self.configs is not None else None
        self._clients.on_configuration(self._stations, groups_max)
        self._clients.multicast.on_configuration(config)
        self._links.on_configuration(self._stations)
        if self.sizing is not None:
            self.sizing.on_configuration(self._stations)
        if self._judging is not None:
            self._judging.on_configuration(config.heartbeat_ns)

    # ---- links

    def link_opened(self, name: str, info: LinkInfo) -> None:
        """Start the engine with the first link; pass it the present frame size."""
        now = now_ns()
        text = self._announcer.is_open() if self._announcer.instance else f"opening on {name}"
        (self._notifier.status if self._ready else self._notifier.ready)(text)
        self._ready = True
        self._clients.mtu = self._links.mtu
        if self._trusting is not None:
            self._trusting.on_link(now)
        if not self.has_begun:
            self.has_begun = True
            self._applier.apply(self._engine.start(now))
        self._engine.set_mac(info.mac)
        if self.configs is not None:
            self.configs.settings.frame_max = self._links.pdu_max
        self._applier.apply(self._engine.set_frame_max(now, self._links.pdu_max))
        self._clients.multicast.set_frame_max(self._links.pdu_max)
        self._clients.payload_max = self._engine.core.payload_max
        if self.sizing is not None:
            self.sizing.wake()

    def link_unfit(self, why: str) -> bool:
        """At the start, a daemon none of whose links can ever be used ends."""
        ends = self.is_running and self._links.are_unfit
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

    def add_reader(self, fd: int, action: Callable[[], None]) -> None:
        """Call whenever the descriptor is readable, until ``remove_reader``."""
        if self._loop is not None:
            self._loop.add_reader(fd, self._guarded, action)

    def remove_reader(self, fd: int) -> None:
        if self._loop is not None:
            self._loop.remove_reader(fd)

    # ---- stopping and reloading

    @property
    def is_running(self) -> bool:
        """Neither starting nor stopping."""
        return self.stopping.phase is Phase.RUNNING

    def turn_again(self) -> None:
        """Another turn of the data path is due before the daemon sleeps."""
        self._again = True

    def leave(self, now: int) -> None:
        """Announce to the other stations that this one leaves."""
        if self.has_begun:
            self._applier.apply(self._engine.leave(now))

    def _stop(self) -> None:
        self.stopping.ask(now_ns())
        self._turn()

    def _on_hangup(self) -> None:
        if self._ready:  # before, READY=1 would not mean that reading is done
            self._notifier.reloading(now_ns())
        self._reload()
        if self.keys is not None:
            self.keys.reload()
        if self._ready:
            self._notifier.reloaded()

    # ---- chores

    def _chores_due(self, now: int, want: int) -> bool:
        """About once a second, and at rest less often, together with the engine's look, which comes after this. want: of the
        turn; what programs or stations say to Python may be what the next chores go on with."""
        if want & SPOKEN:
            self._chores_ns = min(self._chores_ns, self._chored_ns + TICK_NS)
        met = now - self._chored_ns >= TICK_NS and self.has_begun and self._engine.own_deadline_ns() <= now
        if not met and now < self._chores_ns:
            return False
        rests = now - self._dp.active_ns > TICK_NS and not self._has_chores
        self._chored_ns = now
        self._chores_ns = now + ((REST_NS if met else ALONE_NS) if rests else TICK_NS)
        return True

    @property
    def _has_chores(self) -> bool:
        """There is something that is to be looked at every second, whatever goes on."""
        clients = self._clients
        return (
            self._trusting is not None
            or self._judging is not None
            or clients.multicast.has_links
            or clients.awaits_hello
            or self._journal.holds_back
            or not self._links.are_open
            or not self._announcer.instance
        )

    def _chores(self) -> None:
        now = now_ns()
        self._clients.tick(now)
        self._clients.multicast.tick(now)
        self._engine.set_links_too_long(self._clients.multicast.too_long)
        self._journal.tell_held(now)
        self._announcer.look_for_others(now, self._links)
        self._links.tick(now)
        if self._trusting is not None:
            self._trusting.tick(now)
        if self.sizing is not None:
            self.sizing.tick()
        if self.configs is not None:
            self.configs.flush()
        self._again = True

    async def _watchdog(self) -> None:
        """Ask for a turn twice per interval, and notify the watchdog only when the data path has really made one.

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

    def links(self, now: int) -> list[dict[str, Any]]:
        """``links`` of docs/status.md."""
        rows = self._links.status()
        return [row | self._judging.status(row["link"], now) for row in rows] if self._judging is not None else rows

    def sessions(self, now: int) -> dict[str, Any] | None:
        """``sessions`` of docs/status.md; None: frames do not prove their sender."""
        return self._trusting.status(now) if self._trusting is not None else None

    def state(self) -> str:
        """``state`` of docs/status.md: the last of these words that applies."""
        if not self._links.is_open:
            return "no link"
        if self.stopping.has_begun:
            return "draining"
        return "fenced" if self._applier.has_fenced else self._engine.state
