"""The process: the machines of one node, their programs by libqb's IPC, and their order by zenjund.

Everything happens in one thread, an input at a time: what a program asks, what the order brings, the time. The machines answer an
input with effects, which are applied in their order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ...proto.service.base import Effect, Emit, Place, Source, Store
from ...proto.service.corosync import results
from ...proto.service.corosync.cpg import State
from ...proto.service.corosync.messages import Mcast, decode, whole_head
from ...proto.service.corosync.results import Code
from ...proto.service.corosync.ring import Phase
from ...proto.service.corosync.standin import StandIn
from ..config import Config, ConfigError
from ..config.options import ClusterOptions
from ..exits import Exit
from ..observe import Journal
from . import keys
from .codec import Value, answer, event, refusal, request
from .conf import MESSAGE_BYTES, Conf, check, load
from .groups import Groups, pieces
from .ipc import SERVICES, TEXTS, Asked, Ended, Opened, Reason, Refused, Said, Server
from .keys import Keys
from .maps import STRING, U32, U64, USERS, Map, Track
from .maps import Value as MapValue
from .nodes import Nodes
from .order import Order
from .past import Past
from .programs import Program, Service
from .quorums import Quorums, Votequorums

STATUS_ANSWER: Final = "status"
"""libvotequorum's answer to all requests but getinfo."""
PROGRAM_EVENTS: Final = (
    results.Confchg,
    results.Totem,
    results.Deliver,
    results.Nodelist,
    results.Quorum,
    results.VotesNodelist,
    results.VotesQuorum,
    results.VotesExpected,
)
NO_ANSWER: Final = "mcast"
RESERVE_S: Final = 5.0
"""After a ring has begun, when its programs have dealt with it: rule Y3's numbers are made durable for the next ones."""
SHOW_S: Final = 0.005
"""After a ring has begun, when the first messages to it are through."""
NS_PER_MS: Final = 1_000_000
PATIENCE_MS: Final = 1000
"""With a longer ``fail_timeout_ms``, which gives a node time to stop (``zenjun corosync config --stop-time``): it needs it here,
too."""


def linger_ns(cluster: ClusterOptions) -> int:
    """Rule Y5: how long a node that has lost quorum stays connected. Then the others hear of it as late as of one that was cut
    off, at the earliest."""
    return cluster.fail_timeout_ns - cluster.quorum_timeout_ns if cluster.quorum_timeout_ns else 0


def patience_s(cluster: ClusterOptions) -> float:
    """Rule Y21: how long zenjund may say nothing to the stand-in. The others give up a station after ``fail_timeout_ms``."""
    return min(cluster.fail_timeout_ms, max(PATIENCE_MS, cluster.quorum_timeout_ms)) / 1000


class Process:
    """Implements ``programs.Host`` for the services and ``order.Ring`` for the connection to zenjund."""

    def __init__(self, config: Config, conf: Conf, past: Past, server: Server, journal: Journal) -> None:
        """Raises PastError, ValueError: what was kept cannot be used."""
        self.config, self.conf, self.past, self.server, self.journal = config, conf, past, server, journal
        self.mtu = config.station.mtu or 1500
        self.maps = (Map(), Map())
        self.standin = StandIn(
            conf.ring_nodes(self.station),
            conf.quorum(),
            past.read(),
            alone_after_ns=conf.alone_after_ms * NS_PER_MS,
            linger_ns=linger_ns(config.cluster),
            under_way=server.under_way(),
            room=server.room(),
        )
        cluster = config.cluster
        keys.begin(conf, self.maps[0], self.station, cluster.fail_timeout_ms, cluster.adopt_timeout_ms)
        self.programs: dict[int, Program] = {}
        self.held: set[int] = set()
        """Programs whose requests are not read: no room."""
        self._gathering = 0
        self._events: list[tuple[Sequence[int], bytes]] = []
        """Of the effects that are being applied."""
        self.refused = 0
        self.malformed = 0
        loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[Exit] = loop.create_future()
        loop.set_exception_handler(lambda _, context: self.on_bug(context.get("exception") or RuntimeError(context["message"])))
        socket = conf.get("zenjun", "socket") or config.station.socket
        self.order = Order(socket, server, self, patience_s(config.cluster), self.after)
        self._groups = Groups(self)
        self.services: dict[str, Service] = {
            "cmap": Keys(self),
            "cfg": Nodes(self),
            "cpg": self._groups,
            "quorum": Quorums(self),
            "votequorum": Votequorums(self),
        }
        self._noted: results.RingId | None = None
        self._to_show: list[tuple[tuple[int, ...], str]] = []
        """Members and the journal's text of rings that have been noted."""
        self._shown: tuple[int, ...] = ()
        """Members of the last one that libcmap has."""
        self._alarm: asyncio.TimerHandle | None = None
        self._due: int | None = None
        self._why_alone = "starting"
        self._users_changed = False
        any_change = int(Track.ADD | Track.MODIFY | Track.DELETE | Track.PREFIX)
        self.maps[0].track(USERS, any_change, lambda *_: setattr(self, "_users_changed", True))

    @property
    def station(self) -> int:
        return self.config.station.id

    # ---- the life of the process

    def start(self) -> None:
        """A ring of one begins, and programs may connect. Raises IpcError: a service is served already."""
        self._allow()
        self._input(lambda now: self.standin.ring.start(now))
        for name in SERVICES if not self.stopped.done() else ():
            self.server.serve(name)
        asyncio.get_running_loop().add_reader(self.server.fileno(), self._turn)

    async def run(self) -> Exit:
        """Until a program or another node ends it."""
        return await self.stopped

    async def close(self) -> None:
        """Programs see their connections end, and the others this node leave."""
        self._show_rings()
        if self._alarm is not None:
            self._alarm.cancel()
        asyncio.get_running_loop().remove_reader(self.server.fileno())
        self.order.close()
        self.server.close()

    def stop(self, reason: str, code: Exit = Exit.REFUSED) -> None:
        """Nothing more happens here."""
        self._show_rings()
        self.journal.error("stop", reason, code=int(code))
        if not self.stopped.done():
            self.stopped.set_result(code)

    def on_bug(self, error: BaseException) -> None:
        if not self.stopped.done():
            self.stopped.set_exception(error)

    def after(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, call)

    def _input(self, call: Callable[[int], list[Effect]]) -> None:
        """An input to the ring, and what follows: effects, keys, the next time, programs that have room again."""
        if self.stopped.done():
            return
        self.apply(call(time.monotonic_ns()))
        if self.stopped.done():  # what has not been applied has not happened
            return
        self._note_ring()
        self._set_alarm()
        self._resume()
        if self._users_changed:
            self._allow()

    def _set_alarm(self) -> None:
        due = self.standin.ring.next_deadline_ns()
        if due == self._due:
            return
        self._due = due
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if due is not None and not self.stopped.done():
            self._alarm = self.after(max(0.0, (due - time.monotonic_ns()) / 1e9), self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = self._due = None
        self._input(self.standin.ring.on_timer)

    def _note_ring(self) -> None:
        """Of a new ring the journal and libcmap hear a moment later: programs have just been told, and what they say to it is
        not to wait for that."""
        ring, v = self.standin.ring, self.standin.votequorum
        if ring.id == self._noted:
            return
        self._noted = ring.id
        nodes = " ".join(map(str, ring.members))
        why = f" ({self._why_alone})" if len(ring.members) == 1 else ""
        quorum = "quorum" if v.quorate else "no quorum"
        text = f"ring {ring.id.node}.{ring.id.seq:x} of nodes {nodes}{why}: {quorum}, {v.total} votes of {v.expected}"
        self._to_show.append((ring.members, text))
        if len(self._to_show) == 1:
            self.after(SHOW_S, self._show_rings)

    def _show_rings(self) -> None:
        """Those that have been noted. Before a program asks libcmap, or this process ends: nobody sees the keys of before."""
        rings, self._to_show = self._to_show, []
        for members, text in rings:
            keys.show_ring(self.conf, self.maps[0], self._shown, members)
            self._shown = members
            self.journal.info("ring", text)
        if rings and self.standin.ring.wants_reserve:
            self.after(RESERVE_S, lambda: self._input(self.standin.ring.reserve))

    # ---- the order

    def on_connected(self, source: Source, mtu: int, message_max: int) -> None:
        """zenjund may have been started with another file than this process has read."""
        if source[0] != self.station:
            self.stop(f"zenjund is station {source[0]}, expected {self.station}")
            return
        if message_max < MESSAGE_BYTES:
            self.stop(f"zenjund runs with message_max {message_max}, expected at least {MESSAGE_BYTES}", Exit.CONFIG)
            return
        self.mtu = mtu or self.mtu
        self._input(lambda _: self.standin.ring.on_connected(source))

    def on_lost(self, why: str) -> None:
        self._why_alone = why
        if self.standin.ring.phase in (Phase.OUT, Phase.WAITING):
            self.order.close()
            self.journal.event(logging.WARNING, "alone", f"still alone: {why}", now=time.monotonic_ns(), key=why)
        self._input(self.standin.ring.on_lost)

    def on_blocked(self) -> None:
        self._why_alone = "no quorum in zenjun"
        self._input(lambda now: self.standin.ring.on_blocked(now, quorum=False))

    def on_unblocked(self) -> None:
        self._input(lambda _: self.standin.ring.on_unblocked())

    def on_fenced(self) -> None:
        self._input(lambda _: self.standin.ring.on_fenced())

    def on_view(self, place: Place, members: frozenset[Source]) -> None:
        self._input(lambda _: self.standin.ring.on_view(place, members))

    def on_message(self, source: Source, data: bytes) -> None:
        """Whole messages to process groups come by the ten thousand: who hears them is looked up once, and C delivers the next
        ones."""
        if self.stopped.done():
            return
        cpg, head = self.standin.cpg, whole_head(data)
        lane = cpg.lane(source, head) if head else None
        if lane is None:
            self._input(lambda _: self.standin.ring.on_message(source, data))
            return
        self.server.lane(source, head, lane.node, lane.handles, lane.sender.number if lane.sender is not None else 0)
        if self.standin.ring.is_own(source):
            cpg.came_back(lane, data)
        if lane.handles:
            self.server.deliver(lane.handles, lane.node, data)

    def on_malformed(self) -> None:
        self.standin.ring.dropped["malformed"] += 1

    # ---- effects

    def apply(self, effects: Sequence[Effect]) -> None:
        """Apply effects in their order; a message for several programs is written once. Events are written together, behind the
        other effects: a program that has read the first one of a change and acts on it finds the others of it there."""
        self.server.clear_lanes(sending=self.standin.ring.phase is Phase.IN)
        self._gathering += 1
        try:
            self._apply_all(effects)
        finally:
            self._gathering -= 1
            self._flush()

    def _apply_all(self, effects: Sequence[Effect]) -> None:
        deliver: list[int] = []
        before: results.Deliver | None = None
        for effect in effects:
            if self.stopped.done():
                return
            if before is not None and not (
                isinstance(effect, results.Deliver) and effect.message is before.message and effect.node == before.node
            ):
                self.event(deliver, event(before))
                deliver, before = [], None
            if isinstance(effect, results.Deliver):
                before = effect
                deliver.append(effect.handle)
            else:
                self._apply(effect)
        if before is not None:
            self.event(deliver, event(before))

    def _apply(self, effect: Effect) -> None:
        match effect:
            case results.Answer(handle, code):
                self._answered(handle, code)
            case Emit(data):
                self.server.send(data)
            case Store(_, data):
                self._keep(data or b"")
            case results.Connect():
                self.order.open()
            case results.Disconnect():
                self.order.close()
            case results.Apart(stations, here):
                which = " ".join(map(str, stations))
                what = "another nodelist, other options of quorum or another version of zenjun-corosync"
                if here:
                    text = f"{what} than the ring has: this node stays alone"
                else:
                    text = f"stations {which} have {what}: they stay alone"
                self.journal.warning("apart", text, stations=which)
            case results.Reread():
                self._reread()
            case results.Stop(reason):
                self.stop(reason)
            case results.Confchg():
                for piece in pieces(effect, self._groups.own(effect.handle)):
                    self.event([effect.handle], event(piece))
            case results.Totem() | results.Nodelist() | results.Quorum() | results.VotesNodelist() | results.VotesQuorum():
                self._event(effect.handle, effect)
            case results.VotesExpected(handle):
                self._event(handle, effect)

    def _keep(self, data: bytes) -> None:
        """A barrier: when it is not durable, nothing follows."""
        try:
            self.past.write(data)
        except OSError as error:
            self.stop(f"{self.past.path}: {error.strerror or error}", Exit.STATE)

    def _event(self, handle: int, effect: Effect) -> None:
        program = self.programs.get(handle)
        if program is not None:
            self.event([handle], event(effect, model=program.model, context=program.context))

    def event(self, numbers: Sequence[int], message: bytes) -> None:
        if self._gathering:
            self._events.append((numbers, message))
        else:
            self.server.event(numbers, message)

    def _flush(self) -> None:
        """What was gathered goes out, before an answer to one of the programs does."""
        events, self._events = self._events, []
        for numbers, message in events:
            self.server.event(numbers, message)

    def _answered(self, handle: int, code: Code) -> None:
        """The machines answer what is asked now; a join, also later."""
        program = self.programs.get(handle)
        if program is None or program.asked == NO_ANSWER:
            return
        name = program.asked or "join"
        self.answer(program, STATUS_ANSWER if program.service == "votequorum" else name, code)
        if program.service == "cpg":
            self._route(program)

    def answer(
        self, to: Program, name: str, code: Code = Code.OK, values: Mapping[str, Value] | None = None, tail: bytes = b""
    ) -> None:
        self._flush()
        self.server.answer(to.number, answer(to.service, name, code, values, tail))

    # ---- programs

    def programs_of(self, service: str) -> list[Program]:
        return [program for program in self.programs.values() if program.service == service]

    def _turn(self) -> None:
        """What programs ask, a batch of each, and what the order brings."""
        if self.stopped.done():
            return
        items = self.server.turn()
        if not items and not self.held:
            return  # only messages have passed, or nothing
        for item in items:
            if self.stopped.done():
                return
            match item:
                case Said(number, message):
                    self._asked(number, message, said=True)
                case Asked(number, _, message):
                    self._asked(number, message, said=False)
                case Opened():
                    program = Program(item.connection, item.service, item.pid, item.uid)
                    self.programs[program.number] = program
                    self.services[program.service].opened(program)
                case Ended():
                    self._ended(item)
                case Refused():
                    self.refused += 1
                    text = f"a program of user {item.uid}, group {item.gid} was refused at {item.service}: {TEXTS[item.reason]}"
                    self.journal.event(logging.WARNING, "refused", text, now=time.monotonic_ns(), key=item.service)
                case _:
                    self.order.on_item(item)
        if not self.stopped.done():
            self._resume()
            self._note_ring()
            self._set_alarm()
            if self._users_changed:
                self._allow()

    def _ended(self, item: Ended) -> None:
        program = self.programs.pop(item.connection, None)
        self.held.discard(item.connection)
        if program is None:
            return
        if item.reason is not Reason.BY_PROGRAM:
            text = f"the connection of process {program.pid} to {program.service} was ended: {TEXTS[item.reason]}"
            self.journal.event(logging.WARNING, "ended", text, now=time.monotonic_ns(), key=program.service)
        self.services[program.service].closed(program)

    def _asked(self, number: int, message: bytes, *, said: bool) -> None:
        program = self.programs.get(number)
        if program is None:
            return
        if program.waiting or not self._has_room(program):
            program.waiting.append((message, said))
            self._hold(program)
        else:
            self._ask(program, message, said=said)

    def _say(self, program: Program, message: bytes) -> None:
        """A message to the program's process group, which has been written by ``ipc`` already."""
        cpg = self.standin.cpg
        if cpg.said(program.number, message):
            self.server.send(message)
        elif isinstance(found := decode(message), Mcast):
            self.apply(cpg.mcast(program.number, found.data))

    def _route(self, program: Program) -> None:
        """Tell ``ipc`` which process the program is now."""
        handle = self.standin.cpg.handles.get(program.number)
        head = handle.head if handle is not None and handle.state is State.INSIDE else b""
        if head != program.route:
            program.route = head
            self.server.route(program.number, head)

    def _ask(self, program: Program, message: bytes, *, said: bool) -> None:
        if said:
            program.asked = NO_ANSWER
            self._say(program, message)
            program.asked = ""
            return
        found = request(program.service, message)
        if found is None:
            self.malformed += 1
            if not is_silent(program.service, message):
                self.server.answer(program.number, refusal(message, Code.NOT_SUPPORTED))
            return
        program.asked = found.name
        if program.service == "cmap":
            self._show_rings()
        try:
            self.services[program.service].asked(program, found)
        finally:
            program.asked = ""

    def _has_room(self, program: Program) -> bool:
        if program.service != "cpg":
            return True
        number = program.number
        return self.server.has_room and self.standin.cpg.accepts(number) and self.server.takes_events(number)

    def _hold(self, program: Program) -> None:
        if program.number not in self.held:
            self.held.add(program.number)
            self.server.pause(program.number, True)

    def _resume(self) -> None:
        """Programs that wait for room go on, each with what was read of it."""
        for number in sorted(self.held):
            program = self.programs[number]
            while program.waiting and number in self.programs and self._has_room(program):
                message, said = program.waiting.popleft()
                self._ask(program, message, said=said)
            if not program.waiting and number in self.held:
                self.held.discard(number)
                self.server.pause(number, False)

    def _allow(self) -> None:
        """Who may connect from here on. Once for all that has changed: the next program is let in by a later turn."""
        self._users_changed = False
        self.server.allow(*keys.users(self.maps[0]))

    # ---- configuration, statistics

    def _reread(self) -> None:
        """RELOAD, at all nodes: names, addresses, users, logging; the rest needs a restart, and the key says so."""
        values = self.maps[0]
        try:
            conf = load(self.conf.path)
            problems = check(conf, self.config.cluster.stations, self.station, self.config.cluster.message_max, "switched")
            if found := list(problems):
                raise ConfigError(str(conf.path), tuple(found))
        except ConfigError as error:
            values.put("config.reload_error_message", _text(str(error)))
            self.journal.error("reload", str(error))
            return
        same = (self.conf.ring_nodes(self.station), self.conf.quorum()) == (conf.ring_nodes(self.station), conf.quorum())
        text = "" if same else "nodes, stations, votes and options of quorum change with a restart of all nodes only"
        values.put("config.reload_error_message", _text(text))
        if text:
            self.journal.error("reload", text)
            return
        self.conf = conf
        keys.configure(conf, values, self.station)
        for service in self.services.values():
            if isinstance(service, Nodes):
                service.resolve_later()
        self.journal.info("reload", f"{conf.path} was read again")

    def measure(self) -> None:
        values, ring = self.maps[1], self.standin.ring
        values.put("stats.ipcs.global.active", U64.pack(len(self.programs)))
        values.put("stats.ipcs.global.refused", U64.pack(self.refused))
        values.put("stats.ipcs.global.malformed", U64.pack(self.malformed))
        values.put("stats.zenjun.rings", U64.pack(ring.count))
        values.put("stats.zenjun.dropped", U64.pack(sum(ring.dropped.values())))
        values.put("stats.zenjun.unsent", U64.pack(self.standin.cpg.unsent))
        values.put("stats.zenjun.connected", U32.pack(int(ring.phase.value in ("in", "syncing", "apart"))))

    def status(self) -> dict[str, Any]:
        """For the journal and tests."""
        ring = self.standin.ring
        return {"ring": list(ring.id), "members": list(ring.members), "phase": ring.phase.value, "programs": len(self.programs)}


def is_silent(service: str, message: bytes) -> bool:
    """A request of this number has no answer: libcpg's messages."""
    return service == "cpg" and int.from_bytes(message[:4], "little") == 2


def _text(text: str) -> MapValue:
    return STRING.pack(text[:4096])
