"""A switched network: members vote on removals and joins, so that a running instance gains and loses members.

Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from .engineconfig import EngineConfig
from .errors import UsageError
from .handover import Handover
from .joining import Joining
from .medium import MediumRules
from .openpdu import BY_VOTES, INSTANCE_MAX, Past, Pasts, unpack
from .openstate import State
from .outcomes import Outcome, Recovering, Steps
from .parts import Parts
from .votes import stations_of
from .wire import CONFIRM, Kind, payload_offset


class SwitchedHandover(Handover):
    """``reached`` of a past is a number of PDUs, and a bit that is set if its view began by votes."""

    def _told(self, view: int, count: int) -> int:
        return count | (BY_VOTES if view != self._opened_view else 0)

    def bind(self, past: Past, pasts: Pasts) -> Past:
        """As far as the proposal makes it deliver: every member of that view has accepted all of it."""
        target = self._target(pasts) if past.view else None
        return past if target is None else Past(target[0], self._told(*target))

    def _flush(self, now: int, pasts: Pasts) -> None:
        for view in dict.fromkeys(past for _, past, _ in pasts):
            late = None if view in self._views else self._changes.late_change(view)
            if late is not None and self._changes.late_commit(now, late):  # refused: one of the views known before must do
                self._views[view] = max(self._views.values(), default=0) + 1
        if target := self._target(pasts):
            self._core.flush(*target)

    def _target(self, pasts: Pasts) -> tuple[int, int] | None:
        """As far as any station has it released after the last of the views that this one knows."""
        known = [(self._views[view], view, reached & ~BY_VOTES) for _, view, reached in pasts if view in self._views]
        return max(known)[1:] if known else None


class SwitchedRules(MediumRules):
    """Members vote."""

    handover_class: ClassVar[type[Handover]] = SwitchedHandover
    own_frames_return: ClassVar[bool] = False

    def __init__(self, config: EngineConfig, parts: Parts) -> None:
        super().__init__(config, parts)
        self._joining = Joining(stations=config.stations, station=config.station)

    # ---- start and end of an instance
    def verify(self, now: int) -> None:
        """Any segment will do."""

    def begin(self, members: Sequence[int]) -> None:
        """Nothing beside ``Membership.begin``."""

    def end(self) -> None:
        """Nothing beside ``Membership.end``."""

    # ---- received
    def route(self, now: int, header: dict[str, int], pdu: bytes, mac: bytes) -> Sequence[Outcome]:
        """CONFIRMs show the instance of their sender, RCV_ACKs may be votes for this station; opening takes the rest."""
        kind, src, instance = header["kind"], header["src"], header["instance"]
        if src == self._config.station or kind not in (Kind.CONFIRM, Kind.RCV_ACK):
            return self._opening.on_pdu(now, pdu, mac)
        self._joining.begin(self._opening.incarnation)  # opening takes a new one for several reasons
        if kind == Kind.RCV_ACK:
            if not self._core.is_open and self._joining.on_vote(pdu):
                self._opening.asking.answered(now)
            return []
        at = payload_offset(self._config.stations, packed=True)
        if len(pdu) < at + CONFIRM.size or instance > INSTANCE_MAX:
            return []
        confirm = unpack(CONFIRM, pdu, at)
        if not self._core.is_open:
            asked = self._opening.on_view(now, src, instance, confirm["view"])
            return self._on_running(now, instance, confirm["state"], pdu) if asked is None else asked
        if instance <= self._membership.instance:
            return self._opening.on_pdu(now, pdu, mac)
        effects = self._opening.hear_instance(now, instance)
        if instance > self._opening.highest:
            return effects
        return effects + self._membership.on_confirm(now, src, instance, confirm["view"], confirm["state"], confirm["trans"])

    def _on_running(self, now: int, instance: int, state: int, confirm: bytes) -> Sequence[Outcome]:
        """A member of some instance was heard while this station is in none: ask to join, start if the members have admitted it.
        ``state``: STATE bitmap of the CONFIRM. An instance without quorum admits no station."""
        outcomes: list[Outcome] = []
        if self._opening.state is State.ENDED or instance <= self._opening.past_instance:
            return outcomes
        if instance >= self._opening.highest:
            # Durable before it asks: once admitted it must not keep the others waiting for its disk.
            outcomes += self._opening.hear_instance(now, instance + 1)
            if instance > self._opening.highest:
                return outcomes
        everybody = (1 << self._config.stations) - 1
        if self._quorum(stations_of(everybody & ~state)):
            outcomes += self._opening.note_live(now)
        if self._opening.state is not State.PROPOSING:
            return outcomes
        entry = self._joining.on_confirm(confirm)
        if entry is not None:
            return [*outcomes, entry]
        if self._joining.missed(instance):
            outcomes += self._opening.outdated(now)
        return outcomes

    def settle(self, now: int) -> Sequence[Outcome]:
        """A proposal may be decided by what was accepted or acknowledged."""
        return self._membership.on_progress(now)

    # ---- stations that come and go
    def recover(self, now: int, asking: Recovering) -> Sequence[Outcome]:
        """The members vote on it. While the configuration is not decided, not yet (rule V3 of ``changing.py``)."""
        if self._quorum.both:
            return ()
        return self._membership.on_recovering(now, asking.station, asking.incarnation, asking.frame_max)

    def on_bye(self, now: int, station: int) -> Sequence[Outcome]:
        """It is removed at once."""
        return self._membership.suspect(now, (station, "left"))

    def on_deaf(self, now: int, stations: Sequence[int]) -> Sequence[Outcome]:
        """They are removed."""
        return self._membership.suspect(now, *((k, "deaf") for k in stations))

    def expel(self, now: int, station: int, reason: str) -> Sequence[Outcome]:
        """Propose its removal."""
        if not self._membership.instance:
            raise UsageError("this station is in no instance")
        if station == self._config.station:
            raise UsageError(f"station {station} is this one: let it leave instead")
        if station not in self._membership.members:
            raise UsageError(f"station {station} is no member of instance {self._membership.instance}")
        if not self._quorum(k for k in self._membership.target if k != station):
            raise UsageError(f"without station {station} there would be no quorum")
        return self._membership.suspect(now, (station, reason))

    def find_silent(self, now: int) -> Steps:
        """Probe quiet members; suspect, adopt what others report, take back, give up."""
        core, membership = self._core, self._membership
        quiet = self._probing.quiet(now, (k - 1 for k in membership.members))
        stations = [i + 1 for i in quiet]
        self._silence.note_quiet(stations, membership.members)
        yield membership.set_unresponsive(now, stations)
        if core.is_open:
            yield membership.suspect(now, *self._silence.judge(now, core, membership.target_indices, membership.closed_by))
        # Its stop is reported, and it has been silent here for a while as well: no need to wait for the time-out of this station.
        # A station that only has nothing to send between two heartbeats is not silent.
        least_ns = max(self._config.fail_timeout_ns // 2, self._probing.after_ns)
        reported = [k for k in membership.reported if self._probing.silent_ns(now, k - 1) >= least_ns]
        if reported and core.is_open:
            yield membership.adopt(now, reported, unheard=True)
        if core.is_open:
            withdrawals = membership.withdrawals
            outcomes = membership.on_heard(now, lambda k: self._probing.silent_ns(now, k - 1) < self._probing.after_ns)
            if membership.withdrawals != withdrawals:
                self._silence.forgive(now)
            yield outcomes
        if core.is_open:
            yield membership.on_time(now)
        self._probing.ask(now, quiet)
