"""One cluster at one station: the wiring of its parts, and the only class that the daemon and the simulator talk to.

An input goes to the part that it concerns; what the part decides (``outcomes.py``) comes back here and is followed up in
``_absorb``. The parts, and which of them may call which: docs/adr/0010.

It knows no socket, no clock and no randomness: time comes in as monotonic nanoseconds, bytes as PDUs without their Ethernet
header, randomness as a seed. Every input returns the effects to apply, in order.

Two ways to drive it:

- *daemon*: the C data path feeds ``engine.core`` by pointer (``dp_turn``). After each turn call ``poll(now, status)``; it
  takes the control PDUs, serves the deadlines that are due and reports changes. Then flush the core's transmit queue.
- *simulator and tests*: ``on_frames(now, [(pdu, mac), ...])`` does the receiving as well. Then ``engine.core.deliver()``,
  ``engine.core.positions()`` and ``engine.core.tx()`` until nothing is left.

Between instances (``core.flushing``) the core delivers the rest of the last one; ``Opened`` comes when the driver has taken it.

In both, call again by ``next_deadline_ns()`` at the latest, and apply the effects before anything of the transmit queue
leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from .bus import BusRules
from .control import ControlPdus
from .core import Core, Medium, Status, add_checksum
from .effects import Changed, Closed, Effect, Fenced, Opened, Replaced
from .engineconfig import EngineConfig, make_core, make_quorum, validate
from .errors import UsageError
from .heartbeat import Heartbeat
from .joining import Entry
from .medium import MediumRules
from .membership import Membership
from .openconfig import OpeningConfig
from .opening import Opening
from .openpdu import FRAME_MAX_MIN, Claim
from .openstate import State
from .outcomes import InstanceOver, Outcome, Recovering, Steps, UsedUp
from .parts import Parts
from .probing import Probing
from .silence import Silence
from .status import PeerReport, engine_state, engine_status, peer_reports
from .switched import SwitchedRules
from .timers import NEVER, Deadline, Timers
from .watch import Watch
from .wire import Ordering, cluster_id, mtu_needed, view_hash

__all__ = ["NEVER", "Engine", "EngineConfig"]

MEDIA: Final[dict[int, type[MediumRules]]] = {Medium.SWITCHED: SwitchedRules, Medium.BUS: BusRules}
_CONTROL: Final = int(Status.CONTROL)
_FENCED: Final = int(Status.FENCED)
"""Plain numbers: ``poll`` runs after every turn, and the operators of a flag are Python."""


class Engine:
    """One cluster at one station. One thread; no method blocks; nothing a peer sends raises. ``now`` is monotonic nanoseconds;
    a value smaller than in an earlier call counts as that one."""

    core: Core
    """The C core: ``deliver``, ``tx``, ``positions`` and, for the data path, its pointers."""
    membership_class: type[Membership] = Membership
    heeds_rivals = True
    """Rule 9. Both for tests that break a rule: a subclass has another one."""

    def __init__(self, config: EngineConfig, *, incarnation: int, instance: int) -> None:
        """Reserve all memory.

        incarnation: number of this incarnation, larger than any used before (the stored one + 1), 1..``INCARNATION_MAX``.
        instance: highest instance number stored, 0..``INSTANCE_MAX``.
        Raises UsageError for a configuration that cannot be, MemoryError.
        """
        validate(config, incarnation, instance)
        self.claim: Callable[[], Claim | None] = lambda: None
        """What this station says of configurations (``changing.py``). The driver sets it."""
        self._timers = Timers(Deadline)
        self._now = self.began_ns = 0
        self.fenced = False
        """Its order has diverged from another station's."""
        self.last_instance = 0
        """Number of the instance it was in last, 0: none."""
        self.core = make_core(config)
        self._pauses = self._lates = 0  # of the core's, as last taken
        self._frame_max = config.frame_max
        self._build(config, self.core, incarnation, instance)
        self._bringing = self._handover

    def _build(self, config: EngineConfig, core: Core, incarnation: int, instance: int) -> None:
        """The parts for a configuration. Until its first instance begins, ``core`` is not the one that is driven
        (``reconfigure``)."""
        self.config = config
        self._next_core = core
        self.quorum = make_quorum(config)
        self._heartbeat = Heartbeat(core, self._timers)
        for one in {self.core, core}:
            one.set_beats(config.heartbeat_ns, pause_ns=config.fail_timeout_ns, late_ns=self._late_ns(config))
        self.silence = Silence(
            fail_timeout_ns=config.fail_timeout_ns,
            progress_timeout_ns=config.progress_timeout_ns,
            late_ns=self._late_ns(config),
        )
        self.membership = self.membership_class(
            stations=config.stations,
            station=config.station,
            quorum=self.quorum,
            fail_timeout_ns=config.fail_timeout_ns,
            adopt_timeout_ns=config.adopt_timeout_ns,
            frame_max_least=max(FRAME_MAX_MIN, mtu_needed(config.stations)),
            give_up_timeout_ns=config.give_up_timeout_ns,
            streams=core,
            promise=lambda number: self.opening.note_instance(number),
        )
        medium = MEDIA[config.medium]
        self._handover = medium.handover_class(core, self.membership, self._timers)
        self.opening = self._make_opening(incarnation, instance, returns=medium.own_frames_return)
        probing = Probing(
            core,
            self.silence,
            after_ns=min(config.heartbeat_ns * 5 // 4, config.fail_timeout_ns),
            interval_ns=config.probe_interval_ns,
        )
        parts = Parts(core, self.quorum, self.opening, self.membership, self.silence, probing, self._timers)
        self.medium = medium(config, parts)
        self._control = ControlPdus(config.stations, parts, lambda: self._bringing.agreed is not None, self.medium)
        self.watch = Watch(config, parts, self.medium)

    def _make_opening(self, incarnation: int, instance: int, *, returns: bool) -> Opening:
        config, membership = self.config, self.membership
        return Opening(
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
                returns=returns,
                recent_ns=max(2 * config.open_window_ns, 3 * config.heartbeat_ns),
                heeds_rivals=self.heeds_rivals,
                number=config.number,
                options=config.options,
                vacant=frozenset(config.vacant),
                joint=bool(config.both),
                past_instance=self.last_instance,
            ),
            incarnation=incarnation,
            instance=instance,
            frame_max=config.frame_max,
            add_checksum=add_checksum,
            reached=lambda: self._bringing.reached(),
            bind=lambda past, pasts: self._bringing.bind(past, pasts),
            quorum=self.quorum,
            held=membership.held_incarnation,
            life_of=membership.last_incarnation,
            claim=lambda: self.claim(),
        )

    # ---- inputs
    def start(self, now: int) -> list[Effect]:
        """Begin to open. Call once, before anything else. The first effect is the Persist of this incarnation."""
        self._now = self.began_ns = now
        self._begin_ticks(now)
        self.watch.start(now)
        self.medium.verify(now)
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
        agreed = self._bringing.agreed
        if agreed is not None:
            if self.core.flushed:
                effects += self._begin(now, agreed)
                effects += self._absorb(now, self._restarted(now))
            else:
                effects += self._wait_for_rest(now)
                if self._bringing.agreed is not None:
                    return effects  # control PDUs wait as well: they may be about the instance that is to begin
            status |= _CONTROL
        if status & _CONTROL:
            effects += self._follow(now, self._control.take(now))
            self.watch.hasten(now)
        if status & _FENCED:
            effects += self._report_fence()
        self._beat(now)
        if self.next_deadline_ns() > now:
            return effects
        self.silence.note_late(now, now - self.own_deadline_ns())
        return effects + self._serve(now)

    def on_timeout(self, now: int) -> list[Effect]:
        """A deadline may be over. Early and repeated calls are harmless."""
        return self.poll(now, 0)

    def offer(
        self,
        now: int,
        group: int,
        client: int,
        type: int,
        data: bytes,
        need_ack: bool = False,
        ordering: Ordering = Ordering.TOTAL,
    ) -> bool:
        """Queue a message (simulation and tests; in the daemon the data path does it). Any number of them, then
        ``on_frames(now, [])``, and drain the core. False: not (wholly) taken, or in no instance: offer the very same message
        again after a later input. ``ordering``: the order of its group. Raises UsageError if it is larger than message_max."""
        self._tick(now)
        return self.core.offer(data, group=group, client=client, type=type, need_ack=need_ack, ordering=ordering)

    def expel(self, now: int, station: int, reason: str = "expelled") -> list[Effect]:
        """An operator wants a member out: its removal is proposed. It may come back as a new incarnation. UsageError if it is no
        member, this station itself, or if the rest would have no quorum."""
        now = self._tick(now)
        effects = self._absorb(now, self.medium.expel(now, station, reason))
        self.watch.hasten(now)
        return effects + self._serve(now)

    def leave(self, now: int) -> list[Effect]:
        """Leave on purpose: queues a CONFIRM with BYE, and two more by the next deadlines; ``left`` is True after the last. The
        others remove this station at once. Drain the core and stop then, or at once if there is no time. Nothing is to be
        offered any more."""
        now = self._tick(now)
        if not self._heartbeat.is_leaving:
            self.opening.leave(now)
            self._bringing.end()
            self.watch.stop()
            self._heartbeat.leave(now)
        return self._serve(now)

    def reconfigure(self, now: int, config: EngineConfig, reason: str) -> list[Effect]:
        """Go on under another configuration, decided or not (``config.both``): end the instance, if in one, and open or join one
        of the other configuration. Its core takes the place of the present one when that begins (``Replaced``); until then the
        present one receives, and keeps what the last instance has left. UsageError for a configuration that cannot be, and then
        nothing has happened. On the medium of the present one."""
        now = self._tick(now)
        if self.opening.state is State.ENDED:
            return []
        validate(config, self.incarnation + 1, self.opening.highest)
        core = make_core(config)
        before, lives, stations = self.opening, self.membership.last_incarnation, self.config.stations
        effects = self._absorb(now, before.hand_over(reason))
        self.watch.end(now)
        self._heartbeat.end()
        self._build(config, core, before.incarnation + 1, before.highest)
        for station in range(1, min(stations, config.stations) + 1):
            self.membership.note_incarnation(station, lives(station))
        self._control.mailbox = self.core
        self.set_mac(before.mac)
        self._set_frame_max(self._frame_max)
        self.watch.start(now)
        self.medium.verify(now)
        return effects + self._absorb(now, self.opening.resume(now, before))

    def settle(self) -> None:
        """The configuration is decided: a quorum of the former one is not needed any more, and stations may be admitted."""
        self.quorum.both = ()
        self.opening.claims.settle()

    def _set_frame_max(self, frame_max: int) -> None:
        self._frame_max = frame_max
        self.opening.frame_max = min(frame_max, self.config.frame_max)
        for core in {self.core, self._next_core}:
            core.set_frame_max(self.opening.frame_max)

    def set_frame_max(self, now: int, frame_max: int) -> list[Effect]:
        """The interface now carries PDUs of this size in bytes (its MTU); cut to the configuration's frame_max. The others learn
        of it by the next PDU. UsageError below 512."""
        now = self._tick(now)
        if frame_max < FRAME_MAX_MIN:
            raise UsageError(f"the interface carries {frame_max} bytes; at least {FRAME_MAX_MIN} are needed")
        self._set_frame_max(frame_max)
        return self._serve(now)

    def set_links_too_long(self, too_long: bool) -> None:
        """Whether PDUs of a link to one station (docs/multicast.md) are larger than the interface carries now."""
        self.watch.own.links_too_long = too_long

    def set_mac(self, mac: bytes) -> None:
        """The interface's own address (6 bytes), to name it and to know own frames that come back. May change."""
        self.opening.mac = mac
        self.medium.verify(self._now)

    # ---- reads
    @property
    def parts_core(self) -> Core:
        """The core of the present configuration: ``core``, or the one that takes its place with the next instance."""
        return self._next_core

    @property
    def incarnation(self) -> int:
        """The present one; grows when the instance ends."""
        return self.opening.incarnation

    @property
    def instance(self) -> int:
        """Number of the instance this station is in, 0: none."""
        return self.membership.instance

    @property
    def left(self) -> bool:
        """``leave`` is complete."""
        return self._heartbeat.has_left

    def next_deadline_ns(self) -> int:
        """When to call ``on_timeout`` at the latest, or ``NEVER``. A pure read."""
        core = self.core
        of_core = (core.nak_due_ns(), core.poll_due_ns(), core.confirm_due_ns(), core.beat_due_ns(), core.silence_due_ns())
        return min(self.own_deadline_ns(), *of_core)

    def own_deadline_ns(self) -> int:
        """The same without the core's deadlines, for a driver whose data path looks at those itself. Moves only by an input."""
        if self._bringing.agreed is not None:  # nothing else is served until then
            return self._timers.at_ns(Deadline.FLUSH)
        return min(self._timers.next_ns(), self.opening.next_deadline_ns(), self.medium.next_deadline_ns())

    @property
    def state(self) -> str:
        """ "opening", "open", "blocked" (no quorum) or "fenced"."""
        return engine_state(self)

    def peers(self, now: int) -> list[PeerReport]:
        """What is known of each station, this one included, in the order of their numbers."""
        return peer_reports(self, max(now, self._now))

    def status(self, now: int | None = None) -> dict[str, Any]:
        """What the protocol knows of docs/status.md, JSON-able. ``now``: default, that of the last input."""
        return engine_status(self, self._now if now is None else max(now, self._now))

    # ---- following up what the parts decide
    def _follow(self, now: int, steps: Steps) -> list[Effect]:
        """Each step before the next one is computed."""
        return [effect for outcomes in steps for effect in self._absorb(now, outcomes)]

    def _absorb(self, now: int, outcomes: Iterable[Outcome]) -> list[Effect]:
        """Let the other parts follow what one of them has decided. Returns the effects, in order."""
        out: list[Effect] = []
        begun = False
        for outcome in outcomes:
            match outcome:
                case Opened():
                    if self._bringing.agree(now, outcome, self.opening.pasts, self.opening.past):
                        out += self._begin(now, outcome)
                        begun = True
                case Closed():
                    out.append(outcome)
                    self._close(now, outcome)
                case Changed():
                    self._change(now, outcome)
                    out.append(outcome)
                case InstanceOver(reason, station, expelled):
                    out += self._absorb(now, self.opening.renew(now, reason, station, expelled))
                case Recovering():
                    out += self._absorb(now, self.medium.recover(now, outcome))
                case UsedUp(station, incarnation):
                    self.membership.note_incarnation(station, incarnation)
                case Entry():
                    out += self._join(now, outcome)
                    begun = True
                case _:
                    out.append(outcome)
        if begun:  # not before what belongs to the beginning is out: it may be the end
            out += self._absorb(now, self._restarted(now))
        return out

    def _begin(self, now: int, opened: Opened) -> list[Effect]:
        """The agreed instance starts, in the core as well."""
        view = view_hash(opened.instance, opened.incarnations)
        replaced = self._replace_core()
        self._handover.begin(view, opened.instance, opened=True)
        self.core.open(now, opened.instance, view, opened.incarnations, opened.frame_max)
        self.membership.begin(now, opened.instance, opened.incarnations, issued=self.opening.issued)
        self.medium.begin([index for index, incarnation in enumerate(opened.incarnations) if incarnation])
        return [*replaced, opened, *self._enter_open(now)]

    def _replace_core(self) -> list[Effect]:
        """The first instance of another configuration begins: what the last one has left is delivered, or will never be."""
        if self.core is self._next_core:
            return []
        self._bringing.end()
        self.core, self._bringing = self._next_core, self._handover
        self._begin_ticks(self._now)
        self._control.mailbox = self.core
        return [Replaced()]

    def _wait_for_rest(self, now: int) -> list[Effect]:
        """The driver has not taken all of the last instance. There may be no memory for it."""
        if self.core.starves:
            self._bringing.postpone(now + self.config.probe_interval_ns)
        return self._absorb(now, self.watch.starvation.judge(now, self.core))

    def _join(self, now: int, entry: Entry) -> list[Effect]:
        """The members of a running instance have admitted this station."""
        frame_max = min(entry.frame_max, self.opening.frame_max)
        view = view_hash(entry.instance, entry.incarnations)
        replaced = self._replace_core()
        self.core.join(now, entry.instance, view, entry.starts, entry.place_clock, entry.place_station - 1, frame_max)
        effects = self.opening.admitted(now, entry.instance)
        self._handover.begin(view, entry.instance, opened=False)
        self.membership.begin(now, entry.instance, entry.incarnations, joined=True, issued=self.opening.issued)
        self.core.heartbeat(now)
        return [*effects, *replaced, Opened(entry.instance, entry.incarnations, frame_max, True), *self._enter_open(now)]

    def _enter_open(self, now: int) -> list[Effect]:
        self.fenced = False
        self.last_instance = self.instance
        self.silence.forgive(now + self.opening.pace.grace_ns)
        self._heartbeat.begin(now)
        return self.watch.begin(now)

    def _change(self, now: int, changed: Changed) -> None:
        """The members have agreed on the next instance."""
        self.opening.current = self.last_instance = changed.instance
        self._handover.change(self.membership.view, changed.instance)
        self.watch.hurry(now)

    def _close(self, now: int, closed: Closed) -> None:
        """The instance has ended for this station."""
        self._bringing.end(expelled=closed.expelled)
        self.membership.end(self._next_core.proposals())
        self.core.close()
        self.medium.end()
        self.watch.end(now)
        self._heartbeat.end()

    def _restarted(self, now: int) -> list[Recovering]:
        return self.opening.restarted(now, self.membership.incarnations)

    # ---- time
    def _late_ns(self, config: EngineConfig) -> int:
        """A station that serves its own deadlines so late blames none for a while."""
        return max(2 * config.probe_interval_ns, config.fail_timeout_ns // 10)

    def _tick(self, now: int) -> int:
        """Time never runs backwards. After a pause of its own this station suspects no other for that time (the batch that woke
        it is processed first)."""
        if now <= self._now:
            return self._now
        self._now = now
        core = self.core
        core.tick(now)
        if core.pauses != self._pauses:
            self._pauses = core.pauses
            self.membership.restart_timeouts(now)
            self.watch.forgive(now)
        self._note_lates()
        return now

    def _begin_ticks(self, now: int) -> None:
        """The core has not been driven before."""
        self.core.tick(now)
        self._pauses, self._lates = self.core.pauses, self.core.late()[0]

    def _note_lates(self) -> None:
        """Deadlines that C has served too late."""
        count, at_ns = self.core.late()
        if count != self._lates:
            self.silence.note_lates(count - self._lates, at_ns)
            self._lates = count

    def _beat(self, now: int) -> None:
        """After what has come has been taken, the heartbeat. The data path does it as well."""
        if self.core.beat(now):
            self.core.step(now, False)
        self._note_lates()

    def _serve(self, now: int) -> list[Effect]:
        """Everything that is due."""
        effects = self._absorb(now, self.opening.on_timeout(now))
        self._serve_core(now)
        if self._timers.due(Deadline.BYE, now):
            self._heartbeat.bye(now)
        if self._timers.due(Deadline.WATCH, now) or self.core.silence_due_ns() <= now:
            effects += self._follow(now, self.watch.look(now))
        return effects + self._absorb(now, self.medium.serve(now))

    def _serve_core(self, now: int) -> None:
        """NAKs, POLLs (rule C4), confirmations that waited for a ring that does not drain."""
        core = self.core
        if not core.is_open:
            return
        acted = False
        if core.nak_due_ns() <= now:
            acted |= core.nak(now) > 0
        if core.poll_due_ns() <= now:
            core.step(now, False)  # what has been delivered since the last one is not pending any more
            acted |= core.poll(now) > 0
        if acted or core.confirm_due_ns() <= now:
            core.step(now, False)

    def _report_fence(self) -> list[Effect]:
        """Once per instance."""
        fence = None if self.fenced or not self.core.is_open else self.core.fence()
        if fence is None:
            return []
        self.fenced = True
        return [Fenced(fence.station + 1, fence.position, fence.own, fence.theirs)]
