"""The way of control PDUs from the core's mailbox to the part that each is for.

A batch: the votes that the core has accepted, in their streams' order; then the PDUs that are not of the data path, in the order
of arrival; then what has become decidable; then members that have sent BYE. What differs between the media is
``MediumRules.route``. Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from .core import Control
from .medium import MediumRules
from .openpdu import decode_header
from .outcomes import Outcome, Steps
from .parts import Parts
from .wire import HEADER, Kind

_KIND_AT: Final = HEADER.offset("kind")
_OPENINGS: Final = frozenset((int(Kind.OPEN), int(Kind.RCV)))
"""PDUs that opening collects, to look at all that have come at once."""


class ControlPdus:
    """One per engine."""

    def __init__(self, stations: int, parts: Parts, waits: Callable[[], bool], medium: MediumRules) -> None:
        """waits: an agreed instance waits for the rest of the last one."""
        self._stations = stations
        self._core = parts.core
        self.mailbox = parts.core
        """Where control PDUs come from: before the first instance of another configuration, the last one's core."""
        self._opening = parts.opening
        self._membership = parts.membership
        self._waits = waits
        self._medium = medium
        self._held: list[Control] = []
        """Wait while an agreed instance waits for the rest of the last one: they are about the next one."""

    def take(self, now: int) -> Steps:
        """Take everything that has come since the last call. Each step must be followed up before the next one."""
        yield self._membership.on_votes(now, self._core.proposals())
        waiting, self._held = [*self._held, *self.mailbox.control()], []
        for k, control in enumerate(waiting):
            if control.pdu[_KIND_AT] not in _OPENINGS:
                yield self._opening.look(now)  # what the OPENs before it have led to goes first
            if self._waits():
                self._held = waiting[k:]
                break
            yield self._route(now, control.pdu, control.mac)
        yield self._medium.settle(now)
        for index in self._membership.target_indices if self._core.is_open else ():
            if index != self._core.index and self._core.is_open and self._core.peer(index).left:
                yield self._medium.on_bye(now, index + 1)

    def _route(self, now: int, pdu: bytes, mac: bytes) -> Sequence[Outcome]:
        header = decode_header(pdu)
        if header is None:
            return self._opening.on_pdu(now, pdu, mac)  # which counts it as malformed
        if header["stations"] != self._stations:
            return self._opening.on_other_schema(now, pdu, mac)
        return self._medium.route(now, header, pdu, mac)
