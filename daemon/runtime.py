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
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final

from ..proto.effects import Blocked, Changed, Closed, Effect, Fenced, Notice, Opened, Persist, Refused, Send
from ..proto.engine import NEVER, Engine
from ..proto.errors import UsageError
from ..proto.wire import mtu_needed
from .datapath import DataPath, Turn, Want, now_ns
from .listening import Listener
from .metrics import MetricsServer
from .netlink import LOOK_AGAIN_NS, Change, LinkMonitor, LinkState
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
LINK_RETRY_S: Final = 1.0
MS: Final = 1_000_000
# Plain integers: enum arithmetic would be the dearest thing in a turn.
GROUP, CLIENT, LINK, MORE = int(Want.GROUP), int(Want.CLIENT), int(Want.LINK), int(Want.MORE)
SOMETHING: Final = ~int(Want.FENCED)


class Exit(IntEnum):
    """Exit codes of ``zenjund`` (docs/daemon.md)."""

    OK = 0
    BUG = 1
    USAGE = 2
    CONFIG = 3
    RIGHTS = 4
    STATE = 5
    SOCKET = 6
    INTERFACE = 7
    REFUSED = 8
    FORCED = 9


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
        interface: str,
        frame_max: int,
        overhead: int = 0,
        drain_timeout_ns: int,
        others: int,
        reload: Callable[[], None],
        metrics: MetricsServer | None = None,
    ) -> None:
        """frame_max: bytes of the largest PDU this station will ever take; overhead: bytes of a frame behind its PDU; others: how
        many other stations; reload: on SIGHUP."""
        self._engine = engine
        self._dp = dp
        self._clients = clients
        self._store = store
        self._listener = listener
        self._journal = journal
        self._notifier = notifier
        self._frame_max = frame_max
        self._overhead = overhead
        self._unsealed = 0
        self.drain_timeout_ns = drain_timeout_ns
        self._others = others
        self._reload = reload
        self._metrics = metrics
        self._loop: asyncio.AbstractEventLoop | None = None
        self._monitor = LinkMonitor(interface, self._on_link_change)
        self._interface = interface
        self.link_open = False
        self._link_index = 0
        self._phase = Phase.STARTING
        self._phase_deadline = NEVER
        self._done: asyncio.Future[int] | None = None
        self._turning = False
        self._again = False
        self._planned_ns = 0
        self.started_ns = now_ns()
        self._blocked: tuple[tuple[int, str], ...] = ()
        self._instance = 0
        self._stopping_since_ns = 0
        self._opening_since_ns = self.started_ns
        self._hinted = False
        self._fenced = False
        self._ready = False
        self._retry: asyncio.TimerHandle | None = None
        self._looked_ns = self.started_ns
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
            (self._monitor.fileno(), self._on_netlink),
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
            if self._retry is not None:
                self._retry.cancel()
            for fd, _ in readers:
                loop.remove_reader(fd)
            self._listener.close()
            if self._metrics is not None:
                self._metrics.close()
            self._monitor.close()
            if self.link_open:
                self._dp.link_close()
            self._dp.close()
            self._store.close()
            self._notifier.close()

    def _start(self) -> None:
        self._dp.hold(True)
        self._monitor.start()
        if self._phase is Phase.RUNNING:
            self._turn()

    def _finish(self, code: Exit, message: str) -> None:
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
            self._finish(Exit.STATE, str(exc))
        except Exception as exc:
            self._journal.error("bug", f"{type(exc).__name__}: {exc}", traceback=traceback.format_exc())
            self._finish(Exit.BUG, f"internal error, please report it: {type(exc).__name__}: {exc}")

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
            self._on_link_error(now)
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
                    if self.link_open:
                        self._dp.links_send(pdu)
                case Opened():
                    self._on_opened(effect)
                case Changed():
                    self._on_changed(effect)
                case Closed():
                    self._on_closed(effect)
                case Blocked(stations, quorum):
                    self._on_blocked(stations, quorum)
                case Fenced():
                    self._on_fenced(effect)
                case Refused(message):
                    self._finish(Exit.REFUSED, message)
                    return
                case Notice(kind, message):
                    self._journal.event(logging.WARNING, kind, self._store.explained(kind, message), now=now_ns())
                    if not self._instance:
                        self._notifier.status(message)
            self._again = True

    def _on_opened(self, effect: Opened) -> None:
        self._store.note_ran()
        self._instance = effect.instance
        self._clients.payload_max = self._engine.core.payload_max
        # The data path forgets the last instance only now: its counts jump with that, and `reopened` has to come before them.
        self._clients.on_opened(effect.instance, effect.incarnations, self._dp.reset(), joined=effect.joined)
        if self._phase is Phase.RUNNING:
            self._dp.hold(False)
        members = [k for k, incarnation in enumerate(effect.incarnations, 1) if incarnation]
        text = f"{'let into ' if effect.joined else ''}instance {effect.instance} of {self._words(members)}"
        self._journal.info("open", text, instance=effect.instance, members=members, frame_max=effect.frame_max)
        self._notifier.status(self._is_open())

    def _on_changed(self, effect: Changed) -> None:
        self._instance = effect.instance
        self._clients.payload_max = self._engine.core.payload_max
        self._clients.on_changed(effect.instance, effect.incarnations)
        what = [f"without {self._words(effect.left)}"] if effect.left else []
        what += [f"with {self._words(effect.joined)}"] if effect.joined else []
        members = [k for k, incarnation in enumerate(effect.incarnations, 1) if incarnation]
        text = f"instance {effect.instance} goes on {' and '.join(what)}: {self._words(members)}"
        level = logging.WARNING if effect.left else logging.INFO
        self._journal.event(
            level, "view", text, now=now_ns(), key=str(effect.instance), instance=effect.instance, members=members,
            joined=list(effect.joined), left=list(effect.left),
        )  # fmt: skip
        self._notifier.status(self._is_open())

    def _is_open(self) -> str:
        """The instance for people."""
        return f"instance {self._instance} of {self._words(self._engine.membership.members)} is open"

    @staticmethod
    def _words(stations: Sequence[int]) -> str:
        """Stations for people."""
        return f"station{'s' if len(stations) != 1 else ''} {', '.join(map(str, stations))}"

    def _on_closed(self, effect: Closed) -> None:
        self._dp.hold(True)
        self._clients.on_closed(effect.reason, effect.station, expelled=effect.expelled)
        self._instance = 0
        self._opening_since_ns, self._hinted = now_ns(), False
        text = f"{'expelled from' if effect.expelled else 'out of'} instance {effect.instance}: {effect.reason}"
        self._journal.warning("closed", text, instance=effect.instance, station=effect.station, expelled=effect.expelled)
        self._notifier.status(f"{text}; trying to get back in")

    def _since(self, station: int, reason: str, now: int) -> str:
        """How long a silent member has not been heard, beside what is allowed; for people."""
        heard_ns = self._engine.core.peer(station - 1).heard_ns
        if reason != "silent" or not self._instance or not heard_ns:
            return ""
        allowed = self._engine.config.fail_timeout_ns // 1_000_000
        return f", not heard for {max(0, now - heard_ns) // 1_000_000} ms, fail_timeout_ms {allowed}"

    def _on_blocked(self, stations: tuple[tuple[int, str], ...], quorum: bool) -> None:
        now = now_ns()
        before = dict(self._blocked)
        self._blocked = stations
        if stations:
            words = ", ".join(f"station {station} ({reason}{self._since(station, reason, now)})" for station, reason in stations)
            if not self._instance:
                text = f"waiting for {words}"
            else:
                text = f"about to go on without {words}" if quorum else f"no quorum without {words}: blocked"
            if any(reason == "joining" for _, reason in stations):
                text = f"letting in {words}" if all(reason == "joining" for _, reason in stations) else text
            self._journal.event(
                logging.WARNING,
                "blocked",
                text,
                now=now,
                key=str((stations, quorum)),
                stations=[s for s, _ in stations],
                quorum=quorum,
            )
            self._notifier.status(text)
        elif before:
            self._journal.event(logging.INFO, "unblocked", "nobody is waited for", now=now)
            self._notifier.status(self._is_open() if self._instance else "opening")
        if self._instance or stations:
            self._clients.on_blocked(stations, quorum)

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

    def _on_fenced(self, effect: Fenced) -> None:
        self._fenced = True
        text = (
            f"the order here differs from station {effect.station}'s at position {effect.position}: nothing is delivered any "
            f"more (digest {effect.own:016x} here, {effect.theirs:016x} there)"
        )
        self._journal.error("fenced", text, station=effect.station, position=effect.position)
        self._notifier.status("fenced: " + text)
        self._clients.on_fenced(effect.station, effect.position)

    # ---- interface

    def _on_netlink(self) -> None:
        self._monitor.on_readable()

    def _on_link_change(self, change: Change) -> None:
        for word, text in change.what:
            bad = change.state is not LinkState.UP or word == "carrier"
            self._journal.event(logging.WARNING if bad else logging.INFO, f"interface {word}", text, now=now_ns(), key=word)
        if change.reopen:
            if self.link_open:
                self.link_open = False
                self._dp.link_close()
            if change.state is LinkState.UP:
                self._open_link()
            elif change.state is LinkState.UNFIT and self._phase is Phase.RUNNING and not self._link_index:
                self._finish(Exit.INTERFACE, change.link.why_not() if change.link else "")
            elif change.what:
                self._notifier.status(change.what[-1][1])
        if self._loop is not None and not self._turning:
            self._loop.call_soon(self._guarded, self._turn)

    def _open_link(self) -> None:
        link = self._monitor.watch.link
        if link is None or self._phase >= Phase.ENDED:
            return
        try:
            opened = self._dp.link_open(link.name)
        except PermissionError:
            text = (
                "the kernel refuses the packet socket although CAP_NET_RAW is held: its user namespace does not own this network"
            )
            self._finish(Exit.RIGHTS, text + " (systemd: PrivateUsers=no)")
            return
        except OSError as exc:
            text = f"cannot open a packet socket on {link.name}: {exc.strerror}; trying again"
            self._journal.event(logging.WARNING, "interface", text, now=now_ns(), key="open")
            self._notifier.status(text)
            self._retry_link()
            return
        needed = mtu_needed(self._others + 1) + self._overhead
        if opened.mtu < needed:
            self._dp.link_close()
            text = f"{link.name} carries {opened.mtu} bytes; {self._others + 1} stations need an MTU of at least {needed}"
            self._journal.event(logging.ERROR, "interface mtu", text, now=now_ns(), key="small")
            self._notifier.status(text)
            return  # a larger MTU is a change of the interface and opens it again
        self.link_open = True
        self._link_index = opened.ifindex
        now = now_ns()
        text = self._is_open() if self._instance else f"opening on {link.name}"
        (self._notifier.status if self._ready else self._notifier.ready)(text)
        self._ready = True
        self._clients.mtu = opened.mtu
        if not self._begun:
            self._begun = True
            self._apply(self._engine.start(now))
        self._engine.set_mac(opened.mac)
        self._apply(self._engine.set_frame_max(now, min(opened.mtu - self._overhead, self._frame_max)))
        self._clients.payload_max = self._engine.core.payload_max
        if opened.mtu - self._overhead > self._frame_max:
            most = self._frame_max + self._overhead
            text = f"{link.name} carries {opened.mtu} bytes; frames stay within {most} (station.mtu, or as at the start)"
            self._journal.event(logging.INFO, "interface mtu", text, now=now, key="cut")
        if opened.ifindex != link.index:  # made anew between the look and the opening: look again
            self._monitor.look()

    def _retry_link(self) -> None:
        if self._loop is None or self._retry is not None:
            return

        def again() -> None:
            self._retry = None
            self._monitor.look()
            if not self.link_open and self._monitor.watch.state is LinkState.UP:
                self._open_link()

        self._retry = self._loop.call_later(LINK_RETRY_S, self._guarded, again)

    def _on_link_error(self, now: int) -> None:
        code = self._dp.link_error()
        if not code and self.link_open:
            return
        was = self.link_open
        if self.link_open:
            self.link_open = False
            self._dp.link_close()
        self._monitor.look()  # says what happened, and opens anew if it is up under another index
        if not self.link_open and self._monitor.watch.state is LinkState.UP:
            if was and code:
                text = f"the packet socket reports: {os.strerror(abs(code))}; opening it anew"
                self._journal.event(logging.WARNING, "interface", text, now=now, key="error")
            self._retry_link()

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
                self._finish(Exit.FORCED, "second signal: ending at once")
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
            self._finish(Exit.OK, "stopped")

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
        if self._others and not self._instance and not self._hinted and now - self._opening_since_ns > NOBODY_SEEN_NS:
            self._hint(now)
        if self._overhead:
            self._look_for_unsealed(now)
        if not self.link_open and now - self._looked_ns >= LOOK_AGAIN_NS:  # an event may have been lost
            self._looked_ns = now
            self._monitor.look()
        self._turn()

    def _look_for_unsealed(self, now: int) -> None:
        unsealed = self._dp.counters()["rx_unsealed"]
        if unsealed != self._unsealed:
            self._unsealed = unsealed
            text = (
                f"frames without the seal of this cluster's key arrive on {self._interface} ({unsealed} so far): they are dropped"
            )
            self._journal.event(
                logging.WARNING, "unsealed", text + "; a station with another key, or none?", now=now, key="unsealed"
            )

    def _hint(self, now: int) -> None:
        peers = self._engine.status(now)["peers"]
        if self.link_open and all(peer["state"] in ("self", "never seen") for peer in peers):
            self._hinted = True
            seconds = (now - self._opening_since_ns) // (1000 * MS)
            text = (
                f"no other station has been heard on {self._interface} for {seconds} s: are they on the same segment and VLAN, "
                "with the same cluster name, EtherType and key? (CAP_NET_RAW alone puts no container on the LAN: docs/daemon.md)"
            )
            self._journal.warning("nobody seen", text)
            self._notifier.status(text)

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

    def interface(self) -> dict[str, Any]:
        """``interface`` of docs/status.md without what the engine knows: name, index, mac, state, and the MTU it uses."""
        watch = self._monitor.watch
        link = watch.link
        state = {LinkState.UP: "up", LinkState.DOWN: "down", LinkState.ABSENT: "absent", LinkState.UNFIT: "down"}[watch.state]
        mtu = link.mtu - self._overhead if link is not None else 0
        return {
            "name": link.name if link is not None else self._interface,
            "index": link.index if link is not None else None,
            "mac": link.mac if link is not None else None,
            "state": state,
            "mtu": {"bytes": min(mtu, self._frame_max), "source": "configuration" if mtu > self._frame_max else "interface"},
        }

    def state(self) -> str:
        """``state`` of docs/status.md: the last of these words that applies."""
        if not self.link_open:
            return "no link"
        if self._phase >= Phase.DRAINING:
            return "draining"
        if self._fenced:
            return "fenced"
        if not self._instance:
            return "opening"
        return "open" if self._engine.membership.has_quorum else "blocked"
