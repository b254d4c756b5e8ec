"""What stations say of configurations in their OPENs: whether one that has other options is a rival, or takes over what
the other one says (``changing.py``), and when what it says counts.

Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .openconfig import OpeningConfig
from .openpdu import NO_CLAIM, Claim, OpenPdu


class Claims:
    """Of one ``Opening``."""

    def __init__(self, config: OpeningConfig, own: Callable[[], Claim | None], believe: Callable[[int, int], bool]) -> None:
        """own: what this station says. believe: the number of an instance that another station knows counts as seen from now on
        (time, number); False: not yet, it is too far ahead."""
        self._config = config
        self._own = own
        self._believe = believe

    def settle(self) -> None:
        """The configuration is decided: who has other options is a rival again."""
        self._config = replace(self._config, joint=False)

    def is_change(self, pdu: OpenPdu) -> bool:
        """Its sender has other options, or is not of the roster, because the configuration is changed while the cluster runs: no
        rival."""
        theirs, own = pdu.claim or NO_CLAIM, self._own() or NO_CLAIM
        if theirs.number != own.number or theirs.ballot or own.ballot:
            return True
        outside = bool(theirs.options) and theirs.options in (own.options, self._config.options)  # equal but for who it is
        return self._config.joint or outside

    def counts(self, now: int, pdu: OpenPdu) -> bool:
        """Whether its claim, if it has one, is to be heard now. A later configuration counts only with the numbers of instances
        that the sender knows: else the first station of the new roster would begin again below numbers that were used."""
        if pdu.claim is None:
            return False
        return pdu.claim.number <= (self._own() or NO_CLAIM).number or self._believe(now, pdu.highest)

    def is_behind(self, pdu: OpenPdu) -> bool:
        """Its sender does not know this station's configuration: it takes it over before it is let in. Else it could be a member
        that takes no part in the next change."""
        return (pdu.claim or NO_CLAIM).number < (self._own() or NO_CLAIM).number
