"""One simulated machine: the driver around a real engine, with a disk, a skewed clock, a bounded receive ring, a power switch.

It does what ``daemon/runtime.py`` does, in virtual time: frames first, then timers, effects in order, then what the core has to
send and to deliver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from zenjun.proto import wire
from zenjun.proto.core import Drop, Stage
from zenjun.proto.core import Message as CoreMessage
from zenjun.proto.effects import Blocked, Changed, Closed, Effect, Fenced, Notice, Opened, Persist, Refused, Send
from zenjun.proto.engine import NEVER, Engine, EngineConfig
from zenjun.proto.errors import UsageError

from . import variants
from .facts import VIEW, CoreView, Delivery, Message, PeerView
from .options import Options

BATCH_MAX: Final = 64
"""Frames read in one turn."""
TRAILER_MAX: Final = 64
"""Padding and trailers that do not count against the MTU."""
ROUNDS_MAX: Final = 4096
"""Drain rounds in one turn before it counts as a livelock."""
CLUSTER: Final = "sim"
_KIND_AT: Final = wire.HEADER.offset("kind")
_ASKING: Final = (int(wire.Kind.RCV), int(wire.Kind.OPEN))


class Crashed(Exception):
    """The machine has lost power in the middle of a turn."""


class Host(ABC):
    """What a station asks of the simulation around it. No protocol: compiled, a call by one takes several times as long."""

    options: Options

    @abstractmethod
    def virtual_now(self) -> int: ...

    @abstractmethod
    def chance(self, probability: float) -> bool: ...

    @abstractmethod
    def uniform(self, below: int) -> int: ...

    @abstractmethod
    def bits(self, count: int) -> int: ...

    @abstractmethod
    def schedule(self, when: int, action: Callable[[], None]) -> None: ...

    @abstractmethod
    def log(self, station: int, text: str) -> None: ...

    @abstractmethod
    def on_broadcast(self, station: int, pdu: bytes) -> None: ...

    @abstractmethod
    def on_persist(self, station: int, incarnation: int, instance: int) -> None: ...

    @abstractmethod
    def on_opened(self, station: int, instance: int, incarnations: tuple[int, ...], joined: bool) -> None: ...

    @abstractmethod
    def on_changed(self, station: int, instance: int, incarnations: tuple[int, ...]) -> None: ...

    @abstractmethod
    def on_closed(self, station: int, expelled: bool) -> None: ...

    @abstractmethod
    def on_blocked(self, station: int, quorum: bool) -> None: ...

    @abstractmethod
    def on_running(self, station: int) -> None: ...

    @abstractmethod
    def on_read(self, station: int, pdu: bytes) -> None:
        """An RCV or OPEN, perhaps a damaged one, is about to be given to the engine."""

    @abstractmethod
    def on_taken(self, message: Message) -> None: ...

    @abstractmethod
    def on_deliveries(self, station: int, records: list[Delivery]) -> None:
        """Messages and view events in the order in which the core gives them, ``op`` 1 on acceptance among them."""

    @abstractmethod
    def on_positions(self, station: int, positions: tuple[int, int, int]) -> None: ...

    @abstractmethod
    def on_fenced(self, station: int, position: int) -> None: ...

    @abstractmethod
    def on_refused(self, station: int, text: str) -> None: ...

    @abstractmethod
    def on_turn(self, station: int, frames_sent: int) -> None: ...

    @abstractmethod
    def on_crash(self, station: int) -> None: ...

    @abstractmethod
    def power_fails(self, station: int) -> bool:
        """Asked right before a state is made durable, and right after."""


class Clock:
    """A monotonic clock of its own rate and start."""

    def __init__(self, ppm: int, offset_ns: int) -> None:
        self.ppm = ppm
        self.offset = offset_ns

    def local(self, virtual: int) -> int:
        return self.offset + virtual + virtual * self.ppm // 1_000_000

    def virtual(self, local: int) -> int:
        """The first virtual time at which the clock shows at least ``local``."""
        guess = max(0, (local - self.offset) * 1_000_000 // (1_000_000 + self.ppm) - 2)
        while self.local(guess) < local:
            guess += 1
        return guess


class Station(CoreView):
    """Station ``index`` (0..n-1). Off until ``boot``."""

    def __init__(self, host: Host, index: int, clock: Clock) -> None:
        self.host = host
        self.index = index
        self.clock = clock
        self.mac = bytes((2, 0x5A, 0x4A, 0, 0, index + 1))
        self.disk = (0, 0)
        """(incarnation, highest instance number) as durable."""
        self.engine: Engine | None = None
        self.variant = variants.make("")
        self.paused = False
        self.mtu = host.options.frame_max[index]
        """PDU bytes the interface carries now; longer frames are lost, in both directions."""
        self.queues: list[deque[Message]] = [deque() for _ in range(host.options.clients)]
        """Per program: messages its daemon has not taken yet. They outlive the daemon, as the programs do."""
        self.mended = False
        """Its configuration is that of the others now, whatever it was (``Options.divided``)."""
        self.without_memory = False
        """Its system has none for messages of several PDUs."""
        self.ring_drops = 0
        self.work: Counter[str] = Counter()
        """Counters of the cores of all lives, for judging what a swarm of runs has met."""
        self._boots = 0
        self._inbox: deque[tuple[bytes, bytes]] = deque()
        self._turn_at: int | None = None
        self._turn_number = 0
        self._busy_until = 0
        self._client = 0
        self._partial: Message | None = None
        self._last_positions = (0, 0, 0)

    # ---- life
    def boot(self) -> None:
        """Power on: a new life with the next incarnation."""
        host, o = self.host, self.host.options
        self._boots += 1
        if self.index in o.defective:
            self.variant = variants.make(o.wrapper)
        faulty = o.defects if self.index in o.defective else 0
        other = self.index in o.divided and not self.mended
        config = EngineConfig(
            cluster=CLUSTER,
            stations=o.other_stations or o.stations if other else o.stations,
            station=self.index + 1,
            fingerprint=int(other),
            window_frames=o.window,
            slots=o.slots,
            frame_max=o.frame_max[self.index],
            message_max=1 << 16,
            first_seq=o.first_seq,
            faults=faulty,
            seed=host.bits(64),
            host_name=f"host{self.index + 1}",
            boot=host.bits(64),
            confirm_delay_ns=o.confirm_delay_ns,
            nak_delay_ns=o.nak_delay_ns,
            nak_retry_ns=o.nak_retry_ns,
            nak_retry_max_ns=o.nak_retry_max_ns,
            poll_delay_ns=o.poll_delay_ns,
            poll_delay_max_ns=o.poll_delay_max_ns,
            retransmit_gap_ns=o.retransmit_gap_ns,
            heartbeat_ns=o.heartbeat_ns,
            fail_timeout_ns=o.fail_timeout_ns,
            adopt_timeout_ns=o.adopt_timeout_ns,
            give_up_timeout_ns=o.give_up_timeout_ns,
            probe_interval_ns=o.probe_interval_ns,
            recover_interval_ns=o.recover_interval_ns,
            progress_timeout_ns=o.progress_timeout_ns,
            medium=o.medium,
            own_timeout_ns=o.own_timeout_ns,
            direct_from=o.direct_from,
            quorum=o.other_quorum if other else o.quorum,
            required=o.other_required if other else o.required,
            open_interval_ns=o.open_interval_ns,
            open_window_ns=o.open_window_ns,
        )
        self.disk = self.variant.survives(self.disk)
        incarnation, instance = self.disk
        self.mtu = o.frame_max[self.index]
        rules = frozenset(o.rules if self.index in o.defective else ())
        self.engine = _engine(rules)(config, incarnation=incarnation + 1, instance=instance)
        self.engine.set_mac(self.mac)
        if self.without_memory:
            self.engine.core.refuse_memory(True)
        if o.need_ack:
            self.engine.core.want_ack(True)
        self._inbox.clear()
        self.paused = False
        self._busy_until = 0
        self._partial = None
        host.log(self.index, f"boot incarnation {incarnation + 1} after instance {instance}")
        host.on_running(self.index)
        engine = self.engine
        self._guard(lambda: self._apply(engine.start(self.now())))

    def crash(self) -> None:
        """Power off. What is on disk stays."""
        self.count_work()
        self.host.log(self.index, "crash")
        self.host.on_crash(self.index)
        self.engine = None
        self.paused = False
        self._inbox.clear()
        self._turn_at = None
        self._partial = None

    def count_work(self) -> None:
        """Add what the engine of this life has counted to ``work``; to be called once per life, at its end."""
        if self.engine is not None:
            self.work.update(self.engine.core.counters())
            self.work.update({f"drop {reason}": count for reason, count in self.engine.core.drops().items()})
            self.work.update({f"peer {move}": count for move, count in self.engine.membership.moves.items()})
            self.work.update({f"opening {move}": count for move, count in self.engine.opening.moves.items()})
            reset = self.engine.medium.status() or {"moves": {}}
            self.work.update({f"reset {move}": count for move, count in reset["moves"].items()})

    def leave(self) -> None:
        """Stop on purpose: say good-bye, then off."""
        engine = self.engine
        if engine is None:
            return
        self.host.log(self.index, "leave")

        def go() -> None:
            self._apply(engine.leave(self.now()))

        self._guard(go)
        if self.engine is not None:
            self.crash()

    def expel(self, other: int) -> bool:
        """An operator at this station wants station 0..n-1 out. False: it cannot be."""
        engine = self.engine
        if engine is None or self.paused:
            return False
        self.host.log(self.index, f"expel s{other + 1}")
        try:
            effects = engine.expel(self.now(), other + 1)
        except UsageError as error:
            self.host.log(self.index, f"refused: {error}")
            return False
        self._guard(lambda: self._apply(effects))
        return True

    def pause(self) -> None:
        self.paused = True
        self._turn_at = None
        self.host.log(self.index, "pause")

    def resume(self) -> None:
        """Go on after a pause: first what has queued up in the ring, then timers."""
        if self.paused:
            self.paused = False
            self.host.log(self.index, f"resume, {len(self._inbox)} frames waiting")
            self.host.on_running(self.index)
            self.wake(0)

    def set_mtu(self, mtu: int) -> None:
        """The interface's MTU changes, and the daemon learns of it at once."""
        engine = self.engine
        if engine is not None and not self.paused:
            self.mtu = mtu
            self.host.log(self.index, f"mtu {mtu}")
            self._guard(lambda: self._apply(engine.set_frame_max(self.now(), mtu)))

    def refuse_memory(self, yes: bool) -> None:
        """Its system has no memory for messages of several PDUs, or has some again."""
        self.without_memory = yes
        self.host.log(self.index, "no memory" if yes else "memory")
        if self.engine is not None:
            self.engine.core.refuse_memory(yes)

    def now(self) -> int:
        return self.clock.local(self.host.virtual_now())

    # ---- input
    def arrive(self, pdu: bytes, mac: bytes) -> None:
        """A frame reaches the interface."""
        if self.engine is None or len(pdu) > self.mtu + TRAILER_MAX:
            return
        if len(self._inbox) >= self.host.options.inbox_frames_max:
            self.ring_drops += 1
            self.host.log(self.index, "ring full")
            return
        self._inbox.append((pdu, mac))
        o = self.host.options
        self.wake(self.host.uniform(o.wake_ns) if o.wake_ns else 0)

    def submit(self, message: Message) -> None:
        """A program hands over a message."""
        self.queues[message.client - 1].append(message)
        self.wake(0)

    def wake(self, delay_ns: int) -> None:
        """Run a turn after so long at the latest, but not while busy."""
        if self.engine is None or self.paused:
            return
        when = max(self.host.virtual_now() + delay_ns, self._busy_until)
        if self._turn_at is not None and self._turn_at <= when:
            return
        self._turn_at = when
        self._turn_number += 1
        number = self._turn_number

        def run() -> None:
            if number == self._turn_number and self._turn_at is not None and self.engine is not None and not self.paused:
                self._turn_at = None
                self._guard(self._turn)

        self.host.schedule(when, run)

    # ---- a turn
    def _guard(self, action: Callable[[], None]) -> None:
        """Run something that may end in a crash, and then set the timer."""
        try:
            action()
            if self.engine is not None:
                self._drain()
        except Crashed:
            self.crash()
            return
        self._set_timer()

    def _set_timer(self) -> None:
        if self.engine is None or self.paused:
            return
        deadline = self.engine.next_deadline_ns()
        if deadline < NEVER:
            self.wake(max(0, self.clock.virtual(deadline) - self.host.virtual_now()))

    def _turn(self) -> None:
        engine = self.engine
        assert engine is not None
        now = self.now()
        inbox = self._inbox
        batch = [inbox.popleft() for _ in range(min(BATCH_MAX, len(inbox)))]
        if batch:
            for pdu, _ in batch:
                if len(pdu) > _KIND_AT and pdu[_KIND_AT] in _ASKING:
                    self.host.on_read(self.index, pdu)
            self._apply(engine.on_frames(now, batch))
        elif engine.next_deadline_ns() <= now:
            self._apply(engine.on_timeout(now))
        o = self.host.options
        self._busy_until = self.host.virtual_now() + o.turn_cost_ns + len(batch) * o.frame_cost_ns
        if inbox:
            self.wake(0)

    def _drain(self) -> None:
        """Take everything out of the core, offer what the programs have, until neither makes a difference."""
        engine = self.engine
        assert engine is not None
        host, core = self.host, engine.core
        sent = 0
        fresh = True
        for _ in range(ROUNDS_MAX):
            out = core.tx(self.now())
            for pdu in out:
                sent += 1
                host.on_broadcast(self.index, pdu)
            records = core.deliver()
            if records:
                host.on_deliveries(self.index, self.variant.deliveries([_delivery(m) for m in records]))
            if core.is_open or core.flushing:
                p = core.positions()
                if p != self._last_positions:
                    positions = self._last_positions = (p.ordered, p.preack, p.ack)
                    host.on_positions(self.index, self.variant.positions(positions))
            moved = bool(out or records)
            taken, tried = self._offer(engine)
            if taken or (tried and (moved or fresh)):  # a message may have been taken in part
                self._apply(engine.on_frames(self.now(), []))
            elif not moved:
                break
            fresh = False
        else:
            raise AssertionError(f"station {self.index + 1} does not come to rest")
        self._busy_until += sent * host.options.send_cost_ns
        host.on_turn(self.index, sent)

    def _offer(self, engine: Engine) -> tuple[bool, bool]:
        """Offer waiting messages, one program after the other: (some were taken whole, one was refused or taken in part)."""
        if self._partial is None and not any(self.queues):
            return False, False
        if not engine.core.is_open:
            self._partial = None
            return False, False
        taken = False
        while True:
            message = self._partial or self._next()
            if message is None:
                return taken, False
            m = message
            if not engine.core.offer(
                m.data, group=m.group, client=m.client, type=m.type, need_ack=m.need_ack, ordering=wire.Ordering(m.op)
            ):
                self._partial = message
                return taken, True
            self._partial = None
            self.queues[message.client - 1].popleft()
            taken = True
            self.host.on_taken(message)

    def _next(self) -> Message | None:
        for k in range(len(self.queues)):
            at = (self._client + k) % len(self.queues)
            if self.queues[at]:
                self._client = (at + 1) % len(self.queues)
                return self.queues[at][0]
        return None

    def _apply(self, effects: list[Effect]) -> None:
        host, s = self.host, self.index
        for e in effects:
            match e:
                case Persist():
                    self._persist(e)
                case Send():
                    host.on_broadcast(s, e.pdu)
                case Opened():
                    self._last_positions = (0, 0, 0)
                    how = "joined" if e.joined else "opened"
                    host.log(s, f"{how} instance {e.instance} of {e.incarnations}, frame_max {e.frame_max}")
                    host.on_opened(s, e.instance, self.variant.incarnations(e.incarnations), e.joined)
                case Changed():
                    host.log(s, f"changed to instance {e.instance} of {e.incarnations}: joined {e.joined}, left {e.left}")
                    host.on_changed(s, e.instance, self.variant.incarnations(e.incarnations))
                case Closed():
                    host.log(s, f"closed instance {e.instance}: {e.reason} (s{e.station}){' expelled' if e.expelled else ''}")
                    self._partial = None
                    host.on_closed(s, e.expelled)
                case Blocked():
                    host.log(s, f"blocked by {e.stations}{'' if e.quorum else ', no quorum'}")
                    host.on_blocked(s, e.quorum)
                case Fenced():
                    host.log(s, f"fenced by s{e.station} at {e.position}")
                    host.on_fenced(s, e.position)
                case Refused():
                    host.on_refused(s, e.message)
                case Notice():
                    host.log(s, f"notice {e.kind}: {e.message}")

    def _persist(self, e: Persist) -> None:
        """A barrier; the power may fail right before or right after it."""
        if self.host.power_fails(self.index):
            raise Crashed
        if self.variant.durable():
            self.disk = (e.incarnation, e.instance)
        self.host.log(self.index, f"persist incarnation {e.incarnation} instance {e.instance}")
        self.host.on_persist(self.index, e.incarnation, e.instance)
        if self.host.power_fails(self.index):
            raise Crashed

    # ---- what checkers may ask (facts.CoreView)
    def peer(self, station: int) -> PeerView:
        assert self.engine is not None
        p = self.engine.core.peer(station)
        return PeerView(p.req, p.base, p.top, p.min_al, p.acked, p.ordered, p.incarnation, p.member, p.closing)

    def window_drops(self) -> int:
        assert self.engine is not None
        return self.engine.core.dropped(Drop.WINDOW)

    def memory_bytes(self) -> int:
        assert self.engine is not None
        return self.variant.memory_bytes(self.engine.core.memory_bytes)

    def assembling_bytes(self) -> int:
        assert self.engine is not None
        return self.engine.core.assembling_bytes

    def starves(self) -> int:
        assert self.engine is not None
        return self.engine.core.memory_refused if self.engine.core.starves else 0

    def core_clock(self) -> int:
        assert self.engine is not None
        return self.engine.core.clock

    def claim(self) -> tuple[int, int]:
        assert self.engine is not None
        core = self.engine.core
        return core.reached() if not core.is_open and core.fence() is None else (0, 0)


def _delivery(m: CoreMessage) -> Delivery:
    """Content is judged where it is delivered: with stage PLACED there may be none any more."""
    src = m.view_src if m.type == VIEW else m.src
    return Delivery(
        src, m.clock, m.position, m.index, m.group, m.client, m.type, m.data if m.stage != Stage.PLACED else b"", m.stage
    )


GROUP: Final = wire.group_id("sim")


def _engine(rules: frozenset[str]) -> type[Engine]:
    """The engine with these rules broken. Compiled classes have no interpreted subclasses (compiled.py), so that those are
    imported only where they are wanted."""
    if not rules:
        return Engine
    from . import broken

    return broken.engine(rules)
