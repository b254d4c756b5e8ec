"""How one station sees another, and what moves that: the state table of the membership agreement (DOP protocol, section 3).

A diagram in docs/membership.md is made from it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class Letter(Enum):
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
        return self in (Letter.AS, Letter.S, Letter.SSA)

    @property
    def trans(self) -> bool:
        """Bit of the TRANS bitmap: being agreed."""
        return self in (Letter.AS, Letter.SA)


class Cause(Enum):
    """Why a letter may change."""

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
    Letter.A: (Cause.WITHDRAWN, Cause.RECOVERY_SEEN, Cause.RECOVERY_TOLD, Cause.STOP_WINS, Cause.LET_IN),
    Letter.AAS: (Cause.STOP_TOLD, Cause.RECOVERY_SEEN, Cause.RECOVERY_TOLD, Cause.STOP_WINS),
    Letter.AS: (Cause.STOP_SEEN, Cause.STOP_TOLD, Cause.RECOVERY_SEEN, Cause.RECOVERY_TOLD, Cause.STOP_WINS),
    Letter.S: (Cause.STOP_SEEN, Cause.STOP_TOLD, Cause.WITHDRAWN, Cause.REMOVED, Cause.STOP_WINS),
    Letter.SSA: (Cause.STOP_SEEN, Cause.STOP_TOLD, Cause.WITHDRAWN, Cause.REMOVED, Cause.RECOVERY_TOLD),
    Letter.SA: (Cause.STOP_SEEN, Cause.STOP_TOLD, Cause.WITHDRAWN, Cause.REMOVED, Cause.RECOVERY_SEEN, Cause.RECOVERY_TOLD),
}
MOVES: Final[dict[tuple[Letter, Cause], Letter]] = {
    (Letter.A, Cause.STOP_SEEN): Letter.AS,
    (Letter.A, Cause.STOP_TOLD): Letter.AAS,
    (Letter.A, Cause.REMOVED): Letter.S,  # decided on the votes of others and an own earlier one
    (Letter.AAS, Cause.STOP_SEEN): Letter.AS,
    (Letter.AAS, Cause.WITHDRAWN): Letter.A,
    (Letter.AAS, Cause.REMOVED): Letter.S,
    (Letter.AAS, Cause.LET_IN): Letter.A,
    (Letter.AS, Cause.REMOVED): Letter.S,
    (Letter.AS, Cause.WITHDRAWN): Letter.A,
    (Letter.AS, Cause.LET_IN): Letter.AS,
    (Letter.S, Cause.RECOVERY_SEEN): Letter.SA,
    (Letter.S, Cause.RECOVERY_TOLD): Letter.SSA,
    (Letter.S, Cause.LET_IN): Letter.A,  # the promise given before the stop was decided first
    (Letter.SSA, Cause.RECOVERY_SEEN): Letter.SA,
    (Letter.SSA, Cause.STOP_WINS): Letter.S,
    (Letter.SSA, Cause.LET_IN): Letter.A,
    (Letter.SA, Cause.STOP_WINS): Letter.S,
    (Letter.SA, Cause.LET_IN): Letter.A,
}
"""What really moves."""
TRANSITIONS: Final[dict[tuple[Letter, Cause], Letter]] = {
    **{(letter, cause): letter for letter, causes in _SAME.items() for cause in causes},
    **MOVES,
}
"""Total: a test walks Letter x Cause."""
