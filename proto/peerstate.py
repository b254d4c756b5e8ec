"""How one station sees another, and what moves that: the state table of the membership agreement (DOP protocol, section 3).

The diagram and the table in docs/membership.md are generated from it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class PeerState(Enum):
    """How a station sees another one (the bitmaps STATE and TRANS of the paper carry what the others need of it)."""

    A = auto()
    AAS = auto()
    AS = auto()
    S = auto()
    SSA = auto()
    SA = auto()

    @property
    def state(self) -> bool:
        """Bit of the STATE bitmap: regarded as stopped."""
        return self in (PeerState.AS, PeerState.S, PeerState.SSA)

    @property
    def trans(self) -> bool:
        """Bit of the TRANS bitmap: being agreed."""
        return self in (PeerState.AS, PeerState.SA)


class Cause(Enum):
    """Why a state may change. The value is its name in ``moves`` of the status and in the metrics."""

    STOP_SEEN = "stop_seen"
    """Nothing was received from the peer for too long, or it does not receive, has left, has restarted, or is expelled by an
    operator; or other stations have reported its stop for ``adopt_timeout``."""
    STOP_REPORTED = "stop_told"
    """A vote of an operational station removes it."""
    WITHDRAWN = "withdrawn"
    """It is heard, and no station votes (any more) to remove it, or there is no quorum without it."""
    REMOVED = "removed"
    """The removal is decided."""
    RECOVERY_SEEN = "recovery_seen"
    """An RCV of it; or others have voted for it for ``adopt_timeout``."""
    RECOVERY_REPORTED = "recovery_told"
    """A vote of an operational station admits it."""
    STOP_WINS = "stop_wins"
    """A stop is being agreed meanwhile: the joiner must ask again. Votes already sent stay valid."""
    ADMITTED = "let_in"
    """The admission is decided."""


_SAME: Final = {
    PeerState.A: (Cause.WITHDRAWN, Cause.RECOVERY_SEEN, Cause.RECOVERY_REPORTED, Cause.STOP_WINS, Cause.ADMITTED),
    PeerState.AAS: (Cause.STOP_REPORTED, Cause.RECOVERY_SEEN, Cause.RECOVERY_REPORTED, Cause.STOP_WINS),
    PeerState.AS: (Cause.STOP_SEEN, Cause.STOP_REPORTED, Cause.RECOVERY_SEEN, Cause.RECOVERY_REPORTED, Cause.STOP_WINS),
    PeerState.S: (Cause.STOP_SEEN, Cause.STOP_REPORTED, Cause.WITHDRAWN, Cause.REMOVED, Cause.STOP_WINS),
    PeerState.SSA: (Cause.STOP_SEEN, Cause.STOP_REPORTED, Cause.WITHDRAWN, Cause.REMOVED, Cause.RECOVERY_REPORTED),
    PeerState.SA: (
        Cause.STOP_SEEN,
        Cause.STOP_REPORTED,
        Cause.WITHDRAWN,
        Cause.REMOVED,
        Cause.RECOVERY_SEEN,
        Cause.RECOVERY_REPORTED,
    ),
}
MOVES: Final[dict[tuple[PeerState, Cause], PeerState]] = {
    (PeerState.A, Cause.STOP_SEEN): PeerState.AS,
    (PeerState.A, Cause.STOP_REPORTED): PeerState.AAS,
    (PeerState.A, Cause.REMOVED): PeerState.S,  # decided on the votes of others and an own earlier one
    (PeerState.AAS, Cause.STOP_SEEN): PeerState.AS,
    (PeerState.AAS, Cause.WITHDRAWN): PeerState.A,
    (PeerState.AAS, Cause.REMOVED): PeerState.S,
    (PeerState.AAS, Cause.ADMITTED): PeerState.A,
    (PeerState.AS, Cause.REMOVED): PeerState.S,
    (PeerState.AS, Cause.WITHDRAWN): PeerState.A,
    (PeerState.AS, Cause.ADMITTED): PeerState.AS,
    (PeerState.S, Cause.RECOVERY_SEEN): PeerState.SA,
    (PeerState.S, Cause.RECOVERY_REPORTED): PeerState.SSA,
    (PeerState.S, Cause.ADMITTED): PeerState.A,  # the promise given before the stop was decided first
    (PeerState.SSA, Cause.RECOVERY_SEEN): PeerState.SA,
    (PeerState.SSA, Cause.STOP_WINS): PeerState.S,
    (PeerState.SSA, Cause.ADMITTED): PeerState.A,
    (PeerState.SA, Cause.STOP_WINS): PeerState.S,
    (PeerState.SA, Cause.ADMITTED): PeerState.A,
}
"""The rows that change the state."""
TRANSITIONS: Final[dict[tuple[PeerState, Cause], PeerState]] = {
    **{(state, cause): state for state, causes in _SAME.items() for cause in causes},
    **MOVES,
}
"""Total: a test walks PeerState x Cause."""
