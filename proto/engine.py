"""One cluster at one station: composes the C core, opening, membership and the silence watch. Wiring, not logic.

The only class that the daemon and the simulator talk to. It knows no socket, no clock and no randomness: time comes in as
monotonic nanoseconds, bytes as PDUs without their Ethernet header, randomness as a seed. Every input returns the effects to
carry out in order.

Two ways to drive it:

- *daemon*: the C data path feeds ``engine.core`` by pointer (``dp_turn``). After each turn call ``poll(now, status)``; it
  takes the control PDUs, serves the deadlines that are due and reports changes. Then flush the core's transmit queue.
- *simulator and tests*: ``on_frames(now, [(pdu, mac), ...])`` does the receiving as well. Then ``engine.core.deliver()``,
  ``engine.core.positions()`` and ``engine.core.tx()`` until all are told.

Between instances (``core.flushing``) the core delivers the rest of the last one; ``Opened`` comes when the driver has taken it.

In both, call again by ``next_deadline_ns()`` at the latest, and carry out the effects before anything of the transmit queue
leaves.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum, auto
from typing import Any, Final

from .core import Control, Core, Drop, Fault, Medium, Status, seal
from .effects import NOTICE_GAP_NS, Blocked, Changed, Closed, Effect, Fenced, Notice, Opened, Refused
from .engineconfig import MS, EngineConfig, slots_for, validate
from .errors import UsageError, invariant
from .joining import Entry, Joining
from .membership import Expelled, Membership, Outcome
from .opening import Opening, OpeningConfig, Recovering, UsedUp
from .openpdu import BY_VOTES, FRAME_MAX_MIN, INSTANCE_MAX, BusReached, Past, Pasts, decode_header, unpack
from .openstate import State
from .reset import Reset
from .silence import SilenceWatch, unheard
from .status import engine_status
from .timers import NEVER, Timers
from .votes import Quorum, stations_of
from .wire import CONFIRM, HEADER, RESET, RESETS, Flag, Kind, Service, cluster_id, mtu_needed, view_hash

__all__ = ["NEVER", "Engine", "EngineConfig"]

BYES: Final = 3
"""CONFIRMs with BYE that are sent when leaving: nobody repeats them if they are lost."""
BYE_GAP_NS: Final = 5 * MS
VIEWS_KEPT: Final = 16
"""Own views remembered, to know how far others who come from them had got."""
CONFLICTS: Final = {Drop.VERSION: "speaks another protocol version"}
"""Frames dropped in C for these reasons are worth a notice: somebody of this cluster is set up differently."""
_KIND_AT: Final = HEADER.offset("kind")
_ASKING: Final = frozenset((int(Kind.OPEN), int(Kind.RCV)))
_CONTROL: Final = int(Status.CONTROL)
_FENCED: Final = int(Status.FENCED)
"""Plain numbers: ``poll`` runs after every turn, and the operators of a flag are Python."""


class Deadline(IntEnum):
    """The engine's own deadlines; opening and the core have theirs."""

    HEARTBEAT = auto()
    WATCH = auto()
    BYE = auto()
    FLUSH = auto()
    """The next instance is agreed: at once, but for what is left of the last one."""
    PROBE = auto()
    """Bus: own frames must have come back by then."""


class Engine:
    """One cluster at one station. One thread; no method blocks; nothing a peer sends raises. ``now`` is monotonic nanoseconds;
    a value smaller than in an earlier call counts as that one."""

    core: Core
    """The C core: ``deliver``, ``tx``, ``positions`` and, for the data path, its pointers."""
    reset: Reset
    """Bus: how all go back to what all have. A switched medium needs none."""
    membership_class: type[Membership] = Membership
    heeds_rivals = True
    """Rule 9. Both for tests that break a rule: a subclass has another one."""

    def __init__(self, config: EngineConfig, *, incarnation: int, instance: int) -> None:
        """Reserve all memory.

        incarnation: number of this life, larger than any used before (the stored one + 1), 1..``INCARNATION_MAX``.
        instance: highest instance number stored, 0..``INSTANCE_MAX``.
        Raises UsageError for a configuration that cannot be, MemoryError.
        """
        validate(config, incarnation, instance)
        self.config = config
        self.core = _core(config)
        self._bus = config.medium == Medium.BUS
        self.quorum = Quorum(config.stations, config.quorum or config.stations // 2 + 1, config.required)
        self.opening = Opening(
            OpeningConfig(
                cluster_id=cluster_id(config.cluster),
                stations=config.stations,
                station=config.station,
                fingerprint=config.fingerprint,
                boot=config.boot,
                host_name=config.host_name,
                interval_ns=config.open_interval_ns,
                window_ns=config.open_window_ns,
                recover_ns=config.recover_interval_ns,
                returns=self._bus,
                recent_ns=max(2 * config.open_window_ns, 3 * config.heartbeat_ns),
                heeds_rivals=self.heeds_rivals,
            ),
            incarnation=incarnation,
            instance=instance,
            frame_max=config.frame_max,
            seal=seal,
            reached=self._reached,
            quorum=self._may_open,
            held=lambda station: self.membership.incarnations[station - 1] if self.membership.instance else 0,
            life_of=lambda station: self.membership.last_incarnation(station),
        )
        self.membership = self.membership_class(
            stations=config.stations,
            station=config.station,
            quorum=self.quorum,
            fail_timeout_ns=config.fail_timeout_ns,
            adopt_timeout_ns=config.adopt_timeout_ns,
            frame_max_least=max(FRAME_MAX_MIN, mtu_needed(config.stations)),
            give_up_timeout_ns=config.give_up_timeout_ns,
            streams=self.core,
            promise=self.opening.note_instance,
        )
        self._joining = Joining(stations=config.stations, station=config.station)
        self._joining.begin(incarnation)
        self.reset = _reset(config, self.core)
        self._probe_after_ns = min(config.heartbeat_ns * 5 // 4, config.fail_timeout_ns)
        self._watched_ns = self._probed_ns = self._probes = 0
        self._views: dict[int, int] = {}  # view hash: instance; of the lineage this process is in
        self._opened_view = 0  # of the instance that this lineage was opened with; 0: let in
        self.silence = SilenceWatch(
            fail_timeout_ns=config.fail_timeout_ns,
            progress_timeout_ns=config.progress_timeout_ns,
            late_ns=self._late_ns(config),
        )
        self._timers = Timers(Deadline)
        self._now = self.began_ns = 0
        self._confirms_heard = 0
        self._beat_now = False
        self._waiting_since_ns = 0  # not in an instance since then
        self.blocked: dict[int, tuple[str, int]] = {}
        """Whom delivery, or opening, waits for: reason, and since when. Changed only here, like the next ones."""
        self._quorate = True
        self._stuck: dict[str, tuple[int, int]] = {}  # what is wrong with own PDUs: how far they have got, and since when
        self.fenced = False
        """Its order has diverged from another station's."""
        self.last_instance = 0
        """Number of the instance it was in last, 0: none."""
        self._held: list[Control] = []  # control PDUs that wait with it
        self._agreed: Opened | None = None  # waits until the driver has taken the rest of the last instance
        self._byes_left: int | None = None  # None: not leaving
        self._noticed: dict[str, tuple[int, int]] = {}  # kind of trouble: how often until its last notice, and when that was

    # ---- inputs
    def start(self, now: int) -> list[Effect]:
        """Begin to open. Call once, before anything else. The first effect is the Persist of this incarnation."""
        self._now = self.began_ns = self._waiting_since_ns = now
        self._timers.set(Deadline.WATCH, self._next_watch_ns(now))
        if self._bus:
            self._timers.set(Deadline.PROBE, now + self.config.bus_probe_ns)
        return self._absorb(now, self.opening.start(now))

    def on_frames(self, now: int, frames: Sequence[tuple[bytes, bytes]]) -> list[Effect]:
        """Take (PDU, source MAC of 6 bytes) pairs in order of arrival, as one batch that leaves nothing unread; then as
        ``poll``. With an empty batch it seals and queues what ``offer`` took."""
        now = self._tick(now)
        for pdu, mac in frames:
            self.core.rx(now, pdu, mac)
        status = self.core.step(now, True)
        if status & _CONTROL:
            self.core.collect()  # a control PDU may end the instance; what was in order before it is still to be delivered
        return self.poll(now, status)

    def poll(self, now: int, status: int) -> list[Effect]:
        """After the data path has run a turn that ended with ``status`` (``enum zj_status`` of its last ``zj_step``): take
        control PDUs, serve deadlines that are due, report changes. May fill the core's transmit queue. Calling it too often is
        harmless."""
        now = self._tick(now)
        effects: list[Effect] = []
        if self._agreed is not None:
            if not self.core.flushed:
                return effects  # control PDUs wait as well: they may be about the instance that is to begin
            effects += self._begin(now, self._agreed)
            effects += self._absorb(now, self._restarted(now))
            status |= _CONTROL
        if status & _CONTROL:
            effects += self._take_control(now)
        if status & _FENCED:
            effects += self._report_fence()
        self._join_heartbeat(now)
        if self.next_deadline_ns() > now:
            return effects
        self.silence.note_late(now, now - self.own_deadline_ns())
        return effects + self._serve(now)

    def join_heartbeat(self, now: int) -> None:
        """If another station's heartbeat has woken this one, send the own one along with it: that saves everybody a wake-up per
        beat and station. Cheap: called after every wake-up; ``poll`` does it as well."""
        self._join_heartbeat(self._tick(now))

    @property
    def has_work(self) -> bool:
        """After a turn of the data path that wanted nothing of Python, and ``join_heartbeat``: has ``poll`` something to do all
        the same?"""
        return self._beat_now

    def on_timeout(self, now: int) -> list[Effect]:
        """A deadline may be over. Early and repeated calls are harmless."""
        return self.poll(now, 0)

    def offer(
        self, now: int, group: int, client: int, type: int, data: bytes, need_ack: bool = False, service: Service = Service.TOTAL
    ) -> bool:
        """Queue a message (simulation and tests; in the daemon the data path does it). Any number of them, then
        ``on_frames(now, [])``, and drain the core. False: not (wholly) taken, or in no instance: offer the very same message
        again after a later input. ``service``: the order of its group. Raises UsageError if it is larger than message_max."""
        self._tick(now)
        return self.core.offer(data, group=group, client=client, type=type, need_ack=need_ack, service=service)

    def expel(self, now: int, station: int) -> list[Effect]:
        """An operator wants a member out: its removal is proposed. It may come back as a new incarnation. UsageError if it is no
        member, this station itself, or if the rest would have no quorum."""
        now = self._tick(now)
        if self._bus:
            raise UsageError("on a bus nobody is expelled: an instance has all who are there")
        if not self.instance:
            raise UsageError("this station is in no instance")
        if station == self.config.station:
            raise UsageError(f"station {station} is this one: let it leave instead")
        if station not in self.membership.members:
            raise UsageError(f"station {station} is no member of instance {self.instance}")
        if not self.quorum(k for k in self.membership.target if k != station):
            raise UsageError(f"without station {station} there would be no quorum")
        return self._absorb(now, self.membership.suspect(now, (station, "expelled"))) + self._serve(now)

    def leave(self, now: int) -> list[Effect]:
        """Leave on purpose: queues a CONFIRM with BYE, and two more by the next deadlines; ``left`` is True after the last. The
        others remove this station at once. Drain the core and stop then, or at once if there is no time. Nothing is to be
        offered any more."""
        now = self._tick(now)
        if self._byes_left is None:
            self.opening.leave()
            self._agreed = None
            self._byes_left = BYES
            self._timers.stop(Deadline.FLUSH)
            self._timers.stop(Deadline.HEARTBEAT)
            self._timers.stop(Deadline.WATCH)
            self._timers.set(Deadline.BYE, now)
        return self._serve(now)

    def set_frame_max(self, now: int, frame_max: int) -> list[Effect]:
        """The interface now carries PDUs of so many bytes (its MTU); cut to the configuration's frame_max. The others learn of
        it by the next PDU. UsageError below 512."""
        now = self._tick(now)
        if frame_max < FRAME_MAX_MIN:
            raise UsageError(f"the interface carries {frame_max} bytes; at least {FRAME_MAX_MIN} are needed")
        self.opening.frame_max = min(frame_max, self.config.frame_max)
        self.core.set_frame_max(self.opening.frame_max)
        return self._serve(now)

    def set_mac(self, mac: bytes) -> None:
        """The interface's own address (6 bytes), to name it and to know own frames that come back. May change."""
        self.opening.mac = mac
        if self._bus and not self.opening.returned:
            self._timers.set(Deadline.PROBE, self._now + self.config.bus_probe_ns)

    # ---- reads
    @property
    def incarnation(self) -> int:
        """Of this life; grows when the instance ends."""
        return self.opening.incarnation

    @property
    def instance(self) -> int:
        """Number of the instance this station is in, 0: none."""
        return self.membership.instance

    @property
    def left(self) -> bool:
        """``leave`` has been carried out."""
        return self._byes_left == 0

    def next_deadline_ns(self) -> int:
        """When to call ``on_timeout`` at the latest, or ``NEVER``. A pure read."""
        core = self.core
        return min(self.own_deadline_ns(), core.nak_due_ns(), core.poll_due_ns(), core.confirm_due_ns())

    def own_deadline_ns(self) -> int:
        """The same without the core's deadlines, for a driver whose data path looks at those itself. Moves only by an input."""
        return min(self._timers.next_ns(), self.opening.next_deadline_ns(), self.reset.next_deadline_ns())

    def status(self, now: int | None = None) -> dict[str, Any]:
        """What the protocol knows of docs/status.md, JSON-able. ``now``: default, that of the last input."""
        return engine_status(self, self._now if now is None else max(now, self._now))

    # ---- inside
    def _tick(self, now: int) -> int:
        """Time never runs backwards; and after an own pause nobody is suspected for what they did meanwhile (whatever woke us
        serves its batch first)."""
        if now <= self._now:
            return self._now
        if now - self._now > self.config.fail_timeout_ns:
            self.silence.forgive(now)
            self.membership.restart_timeouts(now)
            self._stuck.clear()
            self._waiting_since_ns = now
        self._now = now
        return now

    def _take_control(self, now: int) -> list[Effect]:
        """Votes in their streams' order, then PDUs that are not of the data path, then what has become decidable."""
        effects: list[Effect] = []
        self.reset.observe()
        effects += self._absorb(now, self.membership.on_votes(now, self.core.proposals()))
        waiting, self._held = [*self._held, *self.core.control()], []
        for k, control in enumerate(waiting):
            if control.pdu[_KIND_AT] not in _ASKING:  # what the OPENs before it have led to goes first
                effects += self._absorb(now, self.opening.look(now))
            if self._agreed is not None:  # the next instance begins when the rest of the last one is out, and these are about it
                self._held = waiting[k:]
                break
            effects += self._on_control(now, control.pdu, control.mac)
        if self._bus:
            self._settle(now)
        else:
            effects += self._absorb(now, self.membership.on_progress(now))
        return effects + self._watch_byes(now)

    def _settle(self, now: int) -> None:
        """What is to be said in a reset, and what follows from what was heard."""
        if self.reset.settle(now):
            self.core.step(now, False)

    def _on_control_bus(self, now: int, header: dict[str, int], pdu: bytes, mac: bytes) -> list[Effect]:
        """On a bus there are no votes, and nobody is let into a living instance."""
        n = self.config.stations
        kind, src = header["kind"], header["src"]
        if self.core.is_open and header["instance"] == self.instance and src != self.config.station:
            at = HEADER.size + 4 * n
            if kind in RESETS:
                epoch, _ = RESET.struct.unpack_from(pdu, at)
                self.reset.on_pdu(now, kind, src - 1, epoch, struct.unpack_from(f">{n}I", pdu, HEADER.size))
                return []
            if kind in (Kind.DATA, Kind.CONFIRM) and header["incarnation"] == self.membership.incarnations[src - 1]:
                self.reset.on_higher(now, header["clock"] & 0xFFFFFFFF)
                return []
        if kind != Kind.OPEN and not self.core.is_open:
            return []  # they will come here: what this station sends while it opens ends their instance
        return self._absorb(now, self.opening.on_pdu(now, pdu, mac))

    def _on_control(self, now: int, pdu: bytes, mac: bytes) -> list[Effect]:
        header = decode_header(pdu)
        kind = header["kind"] if header else 0
        if header is not None and header["stations"] != self.config.stations:
            return self._absorb(now, self.opening.on_other_schema(now, pdu, mac))
        if self._bus and header is not None:
            return self._on_control_bus(now, header, pdu, mac)
        if header is None or header["src"] == self.config.station or kind not in (Kind.CONFIRM, Kind.RCV_ACK):
            return self._absorb(now, self.opening.on_pdu(now, pdu, mac))
        self._joining.begin(self.opening.incarnation)  # opening takes a new one for several reasons
        if kind == Kind.RCV_ACK:
            if not self.core.is_open and self._joining.on_vote(pdu):
                self.opening.asking.answered(now)
            return []
        at = HEADER.size + 8 * self.config.stations
        if len(pdu) < at + CONFIRM.size or header["instance"] > INSTANCE_MAX:
            return []
        said = unpack(CONFIRM, pdu, at)
        src, instance = header["src"], header["instance"]
        if not self.core.is_open:
            asked = self.opening.on_view(now, src, instance, said["view"]) if self._agreed is None else None
            if asked is not None:
                return self._absorb(now, asked)
            return self._on_living(now, instance, said["state"], pdu)
        if instance > self.instance:
            effects: list[Effect] = [*self.opening.hear_instance(now, instance)]
            if instance > self.opening.highest:
                return effects
            outcomes = self.membership.on_confirm(now, src, instance, said["view"], said["state"], said["trans"])
            return effects + self._absorb(now, outcomes)
        return self._absorb(now, self.opening.on_pdu(now, pdu, mac))

    def _on_living(self, now: int, instance: int, state: int, pdu: bytes) -> list[Effect]:
        """A member of some instance was heard while in none. One that has no quorum will not let anybody in."""
        effects: list[Effect] = []
        if self._agreed is not None or self._byes_left is not None:
            return effects
        if instance >= self.opening.highest:
            # Durable before it asks: once let in it must not keep the others waiting for its disk.
            effects += self.opening.hear_instance(now, instance + 1)
            if instance > self.opening.highest:
                return effects
        everybody = (1 << self.config.stations) - 1
        if self.quorum(stations_of(everybody & ~state)):
            effects += self._absorb(now, self.opening.note_live(now))
        if self.opening.state is not State.PROPOSING:
            return effects
        entry = self._joining.on_confirm(pdu)
        if entry is not None:
            return effects + self._let_in(now, entry)
        if self._joining.missed(instance):
            effects += self._absorb(now, self.opening.outdated(now))
        return effects

    def _let_in(self, now: int, entry: Entry) -> list[Effect]:
        frame_max = min(entry.frame_max, self.opening.frame_max)
        view = view_hash(entry.instance, entry.incarnations)
        self.core.join(now, entry.instance, view, entry.starts, entry.place_clock, entry.place_station - 1, frame_max)
        effects: list[Effect] = [*self.opening.let_in(now, entry.instance)]
        self._views = {view: entry.instance}
        self._opened_view = 0
        self.membership.begin(now, entry.instance, entry.incarnations, joined=True, issued=self.opening.issued)
        self.core.heartbeat(now)
        effects += [Opened(entry.instance, entry.incarnations, frame_max, True), *self._enter_open(now)]
        return effects + self._absorb(now, self._restarted(now))

    def _restarted(self, now: int) -> list[Recovering]:
        return self.opening.restarted(now, self.membership.incarnations)

    def _late_ns(self, config: EngineConfig) -> int:
        """A station that serves its own deadlines so late blames none for a while."""
        return max(2 * config.probe_interval_ns, config.fail_timeout_ns // 10)

    def _absorb(self, now: int, outcomes: Iterable[Outcome | Recovering | UsedUp]) -> list[Effect]:
        """Let the parts follow what one of them decided."""
        out: list[Effect] = []
        begun = False
        for outcome in outcomes:
            match outcome:
                case Opened():
                    self._flush(now)
                    if self.core.flushed:
                        out += self._begin(now, outcome)
                        begun = True
                    else:
                        self._agreed = outcome
                        self._timers.set(Deadline.FLUSH, now)
                case Closed():
                    out.append(outcome)
                    self._agreed = None
                    self._timers.stop(Deadline.FLUSH)
                    self.membership.end(self.core.proposals())
                    self.core.close()
                    self.reset.end()
                    if outcome.expelled:
                        self._views.clear()  # what others have released since is not for here
                    self._enter_closed(now)
                case Changed():
                    self._enter_changed(now, outcome)
                    out.append(outcome)
                case Expelled(reason, station, expelled):
                    out += self._absorb(now, self.opening.renew(now, reason, station, expelled))
                case Recovering(station, incarnation, _) if self._bus:
                    if self.instance and incarnation != self.membership.incarnations[station - 1]:
                        reason = f"station {station} wants in"
                        out += self._absorb(now, self.opening.renew(now, reason, station))
                case Recovering(station, incarnation, frame_max):
                    out += self._absorb(now, self.membership.on_recovering(now, station, incarnation, frame_max))
                case UsedUp(station, incarnation):
                    self.membership.note_incarnation(station, incarnation)
                case _:
                    out.append(outcome)
        if begun:  # not before what belongs to the beginning is out: it may be the end
            out += self._absorb(now, self._restarted(now))
        return out

    def _may_open(self, stations: Iterable[int]) -> bool:
        if self._bus and not self.opening.returned:
            return False  # first it has to be seen that the medium is one
        return self.quorum(stations)

    def _reached(self) -> Past | None:
        """What can be said of the instance that ends: how far everybody has it, unless its order has diverged."""
        if self.core.fence():
            return None
        view, count = self.core.reached()
        if self._bus:
            return Past(view, BusReached(self._views.get(view, 0), count, self.core.secured()).packed() if view else 0)
        return Past(view, count | (BY_VOTES if view != self._opened_view else 0) if view else 0)

    def _flush(self, now: int) -> None:
        """An instance is agreed by OPEN: the rest of the last one, as far as anybody who goes on has released it."""
        proposal = self.opening.instance
        if proposal is None:
            return
        if self._bus:
            self._flush_bus(proposal.pasts)
            return
        targets: dict[int, int] = {}
        for _, view, reached in proposal.pasts:
            targets[view] = max(targets.get(view, 0), reached & ~BY_VOTES)
        for view in targets:
            late = None if view in self._views else self.membership.late_change(view)
            if late is not None and self.membership.late_commit(now, late):  # refused: one of the views known before must do
                self._views[view] = max(self._views.values(), default=0) + 1
        known = [view for view in targets if view in self._views]
        if known:
            furthest = max(known, key=lambda view: self._views[view])
            self.core.flush(furthest, targets[furthest])

    def _flush_bus(self, pasts: Pasts) -> None:
        """As far as anybody who was in the last instance has it acknowledged, or as all of them hold what others may have
        acknowledged, if that is further and nobody has gone on from there without this station, and with less."""
        view, count = self.core.reached()
        told = [(past, BusReached.parse(reached)) for _, past, reached in pasts]
        mine = BusReached(self._views.get(view, 0), count, 0)
        peers = [other for past, other in told if past == view]
        if not view or not peers:
            return
        target = max(other.ahead_of(mine) for other in peers)
        if not any(other.is_after(mine) for _, other in told):
            target = max(target, min(other.ahead_of(mine) + other.secured for other in peers))
        self.core.flush(view, max(0, count + target))

    def _begin(self, now: int, opened: Opened) -> list[Effect]:
        """The agreed instance starts, in the core as well."""
        self._agreed = None
        self._timers.stop(Deadline.FLUSH)
        view = view_hash(opened.instance, opened.incarnations)
        self._views = {view: opened.instance}
        self._opened_view = view
        self.core.open(now, opened.instance, view, opened.incarnations, opened.frame_max)
        self.membership.begin(now, opened.instance, opened.incarnations, issued=self.opening.issued)
        if self._bus:
            self.reset.begin([index for index, life in enumerate(opened.incarnations) if life])
        return [opened, *self._enter_open(now)]

    def _enter_changed(self, now: int, changed: Changed) -> None:
        self.opening.current = self.last_instance = changed.instance
        self._views[self.membership.view] = changed.instance
        while len(self._views) > VIEWS_KEPT:
            del self._views[next(iter(self._views))]
        self._timers.set(Deadline.WATCH, now)

    def _enter_open(self, now: int) -> list[Effect]:
        self.fenced = False
        self.last_instance = self.instance
        self.silence.forgive(now + self.opening.pace.grace_ns)
        self._confirms_heard = self.core.confirms_heard()
        self._beat_now = False
        self._timers.set(Deadline.HEARTBEAT, now + self.config.heartbeat_ns)
        self._timers.set(Deadline.WATCH, self._next_watch_ns(now))
        return self._report_blocked(now, (), True)

    def _enter_closed(self, now: int) -> None:
        self._waiting_since_ns = now
        self._timers.stop(Deadline.HEARTBEAT)

    def _serve(self, now: int) -> list[Effect]:
        """Everything that is due."""
        effects = self._absorb(now, self.opening.on_timeout(now))
        self._serve_core(now)
        if self._timers.due(Deadline.BYE, now):
            self._say_bye(now)
        if self._timers.due(Deadline.WATCH, now):
            effects += self._watch(now)
        if self._bus:
            self.reset.observe()
            self.reset.on_timeout(now)
            self._settle(now)
        if self._timers.due(Deadline.PROBE, now):
            effects += self._judge_probe()
        return effects

    def _judge_probe(self) -> list[Effect]:
        """Is the medium a bus?"""
        self._timers.stop(Deadline.PROBE)
        if self.opening.returned:
            return []
        self.opening.leave()
        wait = self.config.bus_probe_ns // MS
        return [
            Refused(
                f'medium = "bus", but own frames have not come back from the segment within {wait} ms: it is no bus. Use '
                'medium = "switched", or a bridge whose ports are in hairpin mode and which forwards serially (docs/lab.md)'
            )
        ]

    def _report_fence(self) -> list[Effect]:
        """Once per instance."""
        fence = None if self.fenced or not self.core.is_open else self.core.fence()
        if fence is None:
            return []
        self.fenced = True
        return [Fenced(fence.station + 1, fence.position, fence.own, fence.theirs)]

    def _join_heartbeat(self, now: int) -> None:
        heard = self.core.confirms_heard()
        if heard != self._confirms_heard:
            self._confirms_heard = heard
            if now - self.core.last_tx_ns() > self.config.heartbeat_ns // 2 and self._timers.at_ns(Deadline.HEARTBEAT) != NEVER:
                self._timers.set(Deadline.HEARTBEAT, now)
                self._beat_now = True

    def _serve_core(self, now: int) -> None:
        """NAKs, POLLs (rule C4), confirmations that waited for a ring that does not drain, the heartbeat."""
        core = self.core
        if not core.is_open:
            return
        acted = False
        if core.nak_due_ns() <= now:
            acted |= core.nak(now) > 0
        if core.poll_due_ns() <= now:
            core.step(now, False)  # what has been delivered since the last one is not pending any more
            acted |= core.poll(now) > 0
        if self._timers.due(Deadline.HEARTBEAT, now):
            # Any PDU is as good as a heartbeat: what was sent meanwhile is looked at only now, not at every turn.
            next_ns = core.last_tx_ns() + self.config.heartbeat_ns
            if self._beat_now or next_ns <= now:
                core.heartbeat(now)
                acted = True
                next_ns = now + self.config.heartbeat_ns
            self._beat_now = False
            self._timers.set(Deadline.HEARTBEAT, next_ns)
            # All beat along with the first, so that now everybody has been heard: the watch need not wake us to find that out.
            self._timers.set(Deadline.WATCH, max(now + MS, self._next_watch_ns(now)))
        if acted or core.confirm_due_ns() <= now or self._bus:
            core.step(now, False)

    def _say_bye(self, now: int) -> None:
        invariant(bool(self._byes_left), "a BYE is due that nobody wants")
        if self.core.is_open:
            self.core.heartbeat(now, Flag.BYE)
        self._byes_left = (self._byes_left or 1) - 1
        if self._byes_left and self.core.is_open:
            self._timers.set(Deadline.BYE, now + BYE_GAP_NS)
        else:
            self._byes_left = 0
            self._timers.stop(Deadline.BYE)

    def _indices(self) -> list[int]:
        """Members that nobody here wants out, by index."""
        return [k - 1 for k in self.membership.target]

    def _next_watch_ns(self, now: int) -> int:
        """When somebody can be asked for, blamed or cleared at the earliest: an idle cluster is not woken in order to find
        nothing."""
        if not self.core.is_open:
            return now + self.opening.pace.window_ns // 2
        due = self.membership.next_deadline_ns()
        at = NEVER if due is None else due
        if self.membership.busy:
            at = min(at, now + self.config.probe_interval_ns)
        own = self.core.peer(self.core.index)
        if self.silence.suspicious or own.min_al < own.req:
            at = min(at, self._watched_ns + self.config.progress_timeout_ns // 4)
        quiet_ns = self.silence.quiet_at_ns(self.core, self._indices(), self._probe_after_ns)
        if quiet_ns <= now:  # being asked already: again, or the time is over
            quiet_ns = min(
                now + self.config.probe_interval_ns,
                self.silence.quiet_at_ns(self.core, self._indices(), self.silence.patience(now) * self.config.fail_timeout_ns),
            )
        return min(at, quiet_ns, self._watched_ns + self.config.progress_timeout_ns)

    def _watch_byes(self, now: int) -> list[Effect]:
        """Who has said good-bye is removed at once."""
        effects: list[Effect] = []
        for index in self._indices() if self.core.is_open else ():
            if self._bus and index != self.core.index and self.core.is_open and self.core.peer(index).left:
                effects += self._absorb(now, self.opening.renew(now, f"station {index + 1} has left", index + 1))
            elif index != self.core.index and self.core.peer(index).left:
                effects += self._absorb(now, self.membership.suspect(now, (index + 1, "left")))
        return effects

    def _watch(self, now: int) -> list[Effect]:
        """Whom does delivery, or opening, wait for?"""
        self._watched_ns = now
        effects = self._conflicts(now) + self._shortages(now)
        if self.core.is_open:
            effects += self.opening.note_clock(self.core.clock)
            effects += self._watch_own(now)
        if self.core.is_open:
            effects += self._watch_bus(now) if self._bus else self._watch_members(now)
        if self.core.is_open:
            waiting = [(station, reason) for station, reason, _ in self.membership.waiting()]
            effects += self._report_blocked(now, waiting, self.membership.has_quorum)
        elif now - self._waiting_since_ns >= 2 * self.opening.pace.window_ns:
            effects += self._report_blocked(now, self.opening.missing(now), True)
        self._timers.set(Deadline.WATCH, max(now + MS, self._next_watch_ns(now)))
        return effects

    def _watch_members(self, now: int) -> list[Effect]:
        """Suspect, ask, adopt, give up."""
        core, membership, silence = self.core, self.membership, self.silence
        effects: list[Effect] = []

        def silent_ns(station: int) -> int:
            return now - silence.heard_ns(core.peer(station - 1))

        quiet = [k for k in membership.members if k != self.config.station and silent_ns(k) >= self._probe_after_ns]
        silence.note_quiet(quiet, membership.members)
        effects += self._absorb(now, membership.set_unresponsive(now, quiet))
        if core.is_open:
            effects += self._absorb(
                now, membership.suspect(now, *silence.judge(now, core, self._indices(), membership.closed_by))
            )
        # Told of a stop while it has been silent here for a while as well: no need to wait for the own time-out. A station that
        # only has nothing to say between two heartbeats is not silent.
        least_ns = max(self.config.fail_timeout_ns // 2, self._probe_after_ns)
        told = [k for k in membership.told if silent_ns(k) >= least_ns]
        if told and core.is_open:
            effects += self._absorb(now, membership.adopt(now, told, unheard=True))
        if core.is_open:
            withdrawals = membership.withdrawals
            outcomes = membership.on_heard(now, lambda k: silent_ns(k) < self._probe_after_ns)
            if membership.withdrawals != withdrawals:
                silence.forgive(now)
            effects += self._absorb(now, outcomes)
        if core.is_open:
            effects += self._absorb(now, membership.on_time(now))
        if quiet and core.is_open and now - self._probed_ns >= self.config.probe_interval_ns:
            self._probes += 1
            self._probed_ns = now
            core.probe(now, quiet[self._probes % len(quiet)] - 1)  # one CONFIRM carries one question
            core.step(now, False)
        return effects

    def _watch_bus(self, now: int) -> list[Effect]:
        """Who is not there any more ends the instance; who has not been heard for a while is asked."""
        for station, reason in self.silence.judge(now, self.core, self._indices()):
            return self._absorb(now, self.opening.renew(now, f"station {station} is {reason}", station))
        quiet = [
            i
            for i in self._indices()
            if i != self.core.index and now - self.silence.heard_ns(self.core.peer(i)) >= self._probe_after_ns
        ]
        if quiet and now - self._probed_ns >= self.config.probe_interval_ns:
            self._probes += 1
            self._probed_ns = now
            self.core.probe(now, quiet[self._probes % len(quiet)])
            self.core.step(now, False)
        return []

    def _watch_own(self, now: int) -> list[Effect]:
        """Own PDUs that cannot get through: larger than an MTU that has been lowered since, so that nobody can repeat them; or
        received by nobody at all, while everybody is heard. A stream has no gaps: only a new life can help."""
        core = self.core
        quiet_ns = self.silence.quiet_at_ns(core, self._indices(), self.config.progress_timeout_ns // 2)
        away = quiet_ns <= now or not self.membership.has_quorum  # then that is why they are not confirmed
        matrix, members = core.matrix(), self._indices()
        others = [matrix[core.index][k] for k in members if k != core.index]
        me = f"station {self.config.station}"
        for why, wrong, stable in (
            (f"PDUs of {me} are larger than the MTU is now and cannot be sent again", core.too_long, min(others, default=0)),
            (f"nobody receives what {me} sends", unheard(matrix, members, core.index), max(others, default=0)),
        ):
            before, since = self._stuck.get(why, (-1, now))
            if away or not wrong or stable != before:
                since = now
            self._stuck[why] = (stable, since)
            if now - since >= self.config.progress_timeout_ns:
                self._stuck.clear()
                if self.quorum([self.config.station]):  # it can do without them, and they cannot without it
                    deaf = [(k + 1, "deaf") for k in members if k != core.index]
                    if self._bus:  # nobody votes there
                        return self._absorb(now, self.opening.renew(now, f"station {deaf[0][0]} is deaf", deaf[0][0]))
                    return self._absorb(now, self.membership.suspect(now, *deaf))
                return self._absorb(now, self.opening.renew(now, why))
        return []

    def _report_blocked(self, now: int, blamed: Iterable[tuple[int, str]], quorum: bool) -> list[Effect]:
        """An effect if the set has changed."""
        new = dict(blamed)
        if new == {station: reason for station, (reason, _) in self.blocked.items()} and quorum == self._quorate:
            return []
        self._quorate = quorum
        old = self.blocked
        self.blocked = {s: (reason, old[s][1] if s in old and old[s][0] == reason else now) for s, reason in new.items()}
        return [Blocked(tuple(sorted(new.items())), quorum)]

    def _conflicts(self, now: int) -> list[Effect]:
        """Frames of our cluster that the core must drop because somebody is configured differently."""
        effects: list[Effect] = []
        for reason, what in CONFLICTS.items():
            dropped = self.core.dropped(reason)
            if self._is_news(now, reason.name.lower(), dropped):
                message = f"some station of cluster {self.config.cluster!r} {what}: {dropped} of its frames were dropped"
                effects.append(Notice(reason.name.lower(), message))
        return effects

    def _is_news(self, now: int, kind: str, count: int) -> bool:
        """Has trouble of this kind happened since its last notice, and is that NOTICE_GAP_NS ago?"""
        before, at_ns = self._noticed.get(kind, (0, -NOTICE_GAP_NS))
        if count == before or now - at_ns < NOTICE_GAP_NS:
            return False
        self._noticed[kind] = (count, now)
        return True

    def _shortages(self, now: int) -> list[Effect]:
        """The order waits for memory, or has waited since the last notice."""
        if not self._is_news(now, "memory", self.core.memory_refused):
            return []
        mib = self.core.assembling_bytes / 2**20
        message = f"the system has no memory for a large message ({mib:.1f} MiB in use for such): delivery waits for some"
        return [Notice("memory", message)]


def _core(config: EngineConfig) -> Core:
    return Core(
        stations=config.stations,
        self_index=config.station - 1,
        cluster=cluster_id(config.cluster),
        window=config.window_frames,
        slots=slots_for(config),
        frame_max=config.frame_max,
        message_max=config.message_max,
        confirm_delay_ns=config.confirm_delay_ns,
        nak_delay_ns=config.nak_delay_ns,
        nak_retry_ns=config.nak_retry_ns,
        nak_retry_max_ns=config.nak_retry_max_ns,
        poll_delay_ns=config.poll_delay_ns,
        poll_delay_max_ns=config.poll_delay_max_ns,
        retransmit_gap_ns=config.retransmit_gap_ns,
        first_seq=config.first_seq,
        faults=config.faults,
        seed=config.seed,
        medium=int(config.medium),
        answer_each=int(config.answer_each),
        own_timeout_ns=config.own_timeout_ns,
    )


def _reset(config: EngineConfig, core: Core) -> Reset:
    return Reset(
        core,
        index=config.station - 1,
        repeat_ns=config.poll_delay_ns,
        repeat_max_ns=min(config.poll_delay_max_ns, config.heartbeat_ns // 4),
        once=bool(config.faults & Fault.RESET_ONCE),
    )
