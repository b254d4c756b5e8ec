"""A station whose number another one uses as well: which of the two stops (``opening.py``). Sans-I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from .effects import Closed, Effect, Refused
from .notices import Notices
from .openconfig import OpeningConfig
from .openpdu import OpenPdu, OpenProposal, mac_text
from .openstate import Cause
from .sending import Sender

AGE_TIE_MS: Final = 1000
"""Two daemons whose ages differ by less are ranked by their boot numbers."""


class OwnNumber(ABC):
    """A part of ``Opening``, which has these."""

    _config: OpeningConfig
    _notices: Notices
    _sender: Sender
    mac: bytes
    instance: OpenProposal | None
    current: int
    returned: bool

    @abstractmethod
    def _move(self, now: int, cause: Cause) -> list[Effect]: ...

    def _on_own_number(self, now: int, pdu: OpenPdu, mac: bytes) -> list[Effect]:
        """An OPEN with this station's own number."""
        if pdu.boot == self._config.boot:
            self.returned = True
            if self._config.returns:
                return []
            return self._notices.give(now, "loop", 0, f"own frames come back from the segment (last from {mac_text(mac)})")
        if self.mac and mac == self.mac:
            return []  # sent by this host before the daemon was restarted
        both = f"station number {self._config.station} is used twice: by {self._who()} and by {pdu.host} ({mac_text(mac)})"
        if self._yields_to(now, pdu):
            closed = [Closed(self.current, both, self._config.station)] if self.instance else []
            self._move(now, Cause.DISPLACED)
            return [*closed, Refused(f"{both}; the other one was here first, this one stops")]
        return self._sender.answer(now) + self._notices.give(
            now, "duplicate", self._config.station, f"{both}; the other one is told to stop"
        )

    def _yields_to(self, now: int, pdu: OpenPdu) -> bool:
        """The one in an instance stays, then the older one; at nearly the same age the one with the smaller boot number."""
        if pdu.started or self.instance is not None:
            own = self.current
            other = pdu.proposal.instance if pdu.started and pdu.proposal else 0
            return other > own
        older_ms = self._sender.age_ms(now) - pdu.age_ms
        if abs(older_ms) < AGE_TIE_MS:
            return pdu.boot < self._config.boot
        return older_ms < 0

    def _who(self) -> str:
        """This station, human-readable."""
        return f"{self._config.host_name or 'this host'} ({mac_text(self.mac)})"
