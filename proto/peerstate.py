"""How one station sees another, and what moves that: the state table of the membership agreement (DOP protocol, section 3).

A diagram in docs/membership.md is made from it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class PeerState(Enum):
    """How a station sees another one (STATE and TRANS of the paper say as much of it as others need)."""

    A = auto()
    AAS = auto()
    AS = auto()
    S = auto()
    SSA = auto()
    SA = auto()

    @property
    def state(self) -> bool:
        """Bit of the STATE bitmap: held to be stopped."""
        return self in (PeerState.AS, PeerState.S, PeerState.SSA)

    @property
    def trans(self) -> bool:
        """Bit of the TRANS bitmap: being agreed."""
        return self in (PeerState.AS, PeerState.SA)


class Cause(Enum):
    """Why a state may change."""

    STOP_SEEN = auto()
    """Nothing was heard for too long, or it is deaf, said good-bye, has restarted, or an operator wants it out; or others have
    said so for ``adopt_timeout``."""
    STOP_TOLD = auto()
    """A vote of an operational station removes it."""
    WITHDRAWN = auto()
    """It is heard, and nobody (any more) wants it out, or there is no quorum without it."""
    REMOVED = auto()
    """Decided."""
    RECOVERY_SEEN = auto()
    """An RCV of it; or others have voted for it for ``adopt_timeout``."""
    RECOVERY_TOLD = auto()
    """A vote of an operational station lets it in."""
    STOP_WINS = auto()
    """A stop is being agreed meanwhile: it will have to ask again. A vote given already stays a promise."""
    LET_IN = auto()
    """Decided."""


_SAME: Final = {
    PeerState.A: (Cause.WITHDRAWN, Cause.RECOVERY_SEEN, Cause.RECOVERY_TOLD, Cause.STOP_WINS, Cause.LET_IN),
    PeerState.AAS: (Cause.STOP_TOLD, Cause.RECOVERY_SEEN, Cause.RECOVERY_TOLD, Cause.STOP_WINS),
    PeerState.AS: (Cause.STOP_SEEN, Cause.STOP_TOLD, Cause.RECOVERY_SEEN, Cause.RECOVERY_TOLD, Cause.STOP_WINS),
    PeerState.S: (Cause.STOP_SEEN, Cause.STOP_TOLD, Cause.WITHDRAWN, Cause.REMOVED, Cause.STOP_WINS),
    PeerState.SSA: (Cause.STOP_SEEN, Cause.STOP_TOLD, Cause.WITHDRAWN, Cause.REMOVED, Cause.RECOVERY_TOLD),
    PeerState.SA: (Cause.STOP_SEEN, Cause.STOP_TOLD, Cause.WITHDRAWN, Cause.REMOVED, Cause.RECOVERY_SEEN, Cause.RECOVERY_TOLD),
}
MOVES: Final[dict[tuple[PeerState, Cause], PeerState]] = {
    (PeerState.A, Cause.STOP_SEEN): PeerState.AS,
    (PeerState.A, Cause.STOP_TOLD): PeerState.AAS,
    (PeerState.A, Cause.REMOVED): PeerState.S,  # decided on the votes of others and an own earlier one
    (PeerState.AAS, Cause.STOP_SEEN): PeerState.AS,
    (PeerState.AAS, Cause.WITHDRAWN): PeerState.A,
    (PeerState.AAS, Cause.REMOVED): PeerState.S,
    (PeerState.AAS, Cause.LET_IN): PeerState.A,
    (PeerState.AS, Cause.REMOVED): PeerState.S,
    (PeerState.AS, Cause.WITHDRAWN): PeerState.A,
    (PeerState.AS, Cause.LET_IN): PeerState.AS,
    (PeerState.S, Cause.RECOVERY_SEEN): PeerState.SA,
    (PeerState.S, Cause.RECOVERY_TOLD): PeerState.SSA,
    (PeerState.S, Cause.LET_IN): PeerState.A,  # the promise given before the stop was decided first
    (PeerState.SSA, Cause.RECOVERY_SEEN): PeerState.SA,
    (PeerState.SSA, Cause.STOP_WINS): PeerState.S,
    (PeerState.SSA, Cause.LET_IN): PeerState.A,
    (PeerState.SA, Cause.STOP_WINS): PeerState.S,
    (PeerState.SA, Cause.LET_IN): PeerState.A,
}
"""What really moves."""
TRANSITIONS: Final[dict[tuple[PeerState, Cause], PeerState]] = {
    **{(state, cause): state for state, causes in _SAME.items() for cause in causes},
    **MOVES,
}
"""Total: a test walks PeerState x Cause."""
