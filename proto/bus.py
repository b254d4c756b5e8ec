"""A bus: every station receives the same frames in the same order, its own among them, so that members need no votes.

An instance has all members that opened it. A member that comes, leaves or stops ends it for all, and they open the next one
together. After a loss inside an instance the members reset to what all of them have (``reset.py``). Sans-I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, ClassVar

from .core import Fault
from .effects import Refused
from .engineconfig import EngineConfig
from .errors import UsageError
from .handover import Handover
from .medium import MediumRules
from .openpdu import BusReached, Past, Pasts
from .outcomes import Outcome, Recovering, Steps
from .parts import Parts
from .reset import Reset
from .timers import Deadline
from .wire import HEADER, RESET, RESETS, Kind, payload_offset


class BusHandover(Handover):
    """``reached`` of a past is a ``BusReached``. An instance has one view: no change by votes can have been missed."""

    def _told(self, view: int, count: int) -> int:
        return BusReached(self._views.get(view, 0), count, self._core.secured()).packed()

    def bind(self, past: Past, pasts: Pasts) -> Past:
        """All stations have what any station has acknowledged. No station has acknowledged more than what the proposal makes its
        members deliver. But that may be more than a station outside the proposal has."""
        limits = self._limits(pasts) if past.view else None
        if limits is None:
            return past
        view, acknowledged, target = limits
        return Past(view, BusReached(self._views.get(view, 0), acknowledged, target - acknowledged).packed())

    def _flush(self, now: int, pasts: Pasts) -> None:
        if limits := self._limits(pasts):
            view, _, target = limits
            self._core.flush(view, target)

    def _limits(self, pasts: Pasts) -> tuple[int, int, int] | None:
        """(view, PDUs after it that are acknowledged somewhere, those that are to be delivered): up to the furthest position that
        any station of the last instance has acknowledged; or, if that is further, up to what all of them hold of what others may
        have acknowledged, unless a station has continued from there without this one, with less. None: no station was in it."""
        view, count = self._core.reached()
        told = [(past, BusReached.parse(reached)) for _, past, reached in pasts]
        mine = BusReached(self._views.get(view, 0), count, 0)
        peers = [other for past, other in told if past == view]
        if not view or not peers:
            return None
        acknowledged = target = max(0, count + max(other.ahead_of(mine) for other in peers))
        if not any(other.is_after(mine) for _, other in told):
            target = max(target, count + min(other.ahead_of(mine) + other.secured for other in peers))
        return view, acknowledged, target


class BusRules(MediumRules):
    """All see the same."""

    handover_class: ClassVar[type[Handover]] = BusHandover
    own_frames_return: ClassVar[bool] = True

    def __init__(self, config: EngineConfig, parts: Parts) -> None:
        super().__init__(config, parts)
        self.reset = Reset(
            parts.core,
            index=config.station - 1,
            repeat_ns=config.poll_delay_ns,
            repeat_max_ns=min(config.poll_delay_max_ns, config.heartbeat_ns // 4),
            once=bool(config.faults & Fault.RESET_ONCE),
        )
        """How all members go back to what all of them have."""

    # ---- start and end of an instance
    def verify(self, now: int) -> None:
        """Own frames have to come back, once."""
        if not self._opening.returned:
            self._timers.set(Deadline.PROBE, now + self._config.bus_probe_ns)

    def begin(self, members: Sequence[int]) -> None:
        self.reset.begin(members)

    def end(self) -> None:
        self.reset.end()

    # ---- received
    def route(self, now: int, header: dict[str, int], pdu: bytes, mac: bytes) -> Sequence[Outcome]:
        """The reset takes RST, RSTC and PDUs of a higher epoch; opening takes the rest. A station in no instance takes only
        OPENs: the members will join it, since what it sends while it opens ends their instance."""
        kind, src = header["kind"], header["src"]
        if self._core.is_open and header["instance"] == self._membership.instance and src != self._core.index + 1:
            if kind in RESETS:
                n = self._config.stations
                epoch, _ = RESET.struct.unpack_from(pdu, payload_offset(n, packed=False))
                self.reset.on_pdu(now, kind, src - 1, epoch, struct.unpack_from(f">{n}I", pdu, HEADER.size))
                return []
            if kind in (Kind.DATA, Kind.CONFIRM) and header["incarnation"] == self._membership.incarnations[src - 1]:
                self.reset.on_higher(now, header["clock"] & 0xFFFFFFFF)
                return []
        if kind != Kind.OPEN and not self._core.is_open:
            return []
        return self._opening.on_pdu(now, pdu, mac)

    def settle(self, now: int) -> Sequence[Outcome]:
        """Say what is due in a reset, and decide what follows from what was heard."""
        if self.reset.settle(now):
            self._core.step(now, False)
        return []

    # ---- stations that come and go
    def recover(self, now: int, asking: Recovering) -> Sequence[Outcome]:
        """The instance ends: it is opened again with that station."""
        station = asking.station
        if not self._membership.instance or asking.incarnation == self._membership.incarnations[station - 1]:
            return []
        return self._opening.renew(now, f"station {station} wants in", station)

    def on_bye(self, now: int, station: int) -> Sequence[Outcome]:
        return self._opening.renew(now, f"station {station} has left", station)

    def on_deaf(self, now: int, stations: Sequence[int]) -> Sequence[Outcome]:
        """No station votes on a bus: the instance ends by the first of them."""
        return self._opening.renew(now, f"station {stations[0]} is deaf", stations[0])

    def expel(self, now: int, station: int, reason: str) -> Sequence[Outcome]:
        raise UsageError("on a bus nobody is expelled: an instance has all who are there")

    def find_silent(self, now: int) -> Steps:
        """A member that shows no sign of life ends the instance; a quiet one is asked."""
        members = self._membership.target_indices
        blamed = self._silence.judge(now, self._core, members)
        if blamed:
            station, reason = blamed[0]
            yield self._opening.renew(now, f"station {station} is {reason}", station)
        else:
            self._probing.ask(now, self._probing.quiet(now, members))

    # ---- deadlines
    def serve(self, now: int) -> Sequence[Outcome]:
        """The reset's repetitions, and own frames that have not come back."""
        if self._core.is_open:
            self._core.step(now, False)  # own PDUs that have not come back: the core has no deadline for them
        self.reset.on_timeout(now)
        self.settle(now)
        return self._judge_medium(now) if self._timers.due(Deadline.PROBE, now) else []

    def _judge_medium(self, now: int) -> Sequence[Outcome]:
        """Is the medium a bus?"""
        self._timers.stop(Deadline.PROBE)
        if self._opening.returned:
            return []
        self._opening.leave(now)
        wait = self._config.bus_probe_ns // 1_000_000
        return [
            Refused(
                f'medium = "bus", but own frames have not come back from the segment within {wait} ms: it is no bus. Use '
                'medium = "switched", or a bridge whose ports are in hairpin mode and which forwards serially (docs/lab.md)'
            )
        ]

    def next_deadline_ns(self) -> int:
        return self.reset.next_deadline_ns()

    def status(self) -> dict[str, Any] | None:
        return {"state": self.reset.state.name.lower(), "epoch": self.reset.epoch, "moves": dict(self.reset.moves)}
