"""Where a station stands in the OPEN agreement (``opening.py``), and what changes that: a total table."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class State(Enum):
    """Where this station stands."""

    LISTENING = auto()
    """Newcomer, or told of a later life of its own number: sends OPEN without a proposal, to be contradicted if the number is
    in use."""
    PROPOSING = auto()
    STARTED = auto()
    """In an instance. Silent, but for answers."""
    ENDED = auto()
    """Refused, or gone on purpose."""


class Cause(Enum):
    """Why a state may change."""

    LISTENED = auto()
    """A whole window without contradiction."""
    AGREED = auto()
    RESTARTED = auto()
    """This station's life in the instance is over; it goes on with a new incarnation."""
    LET_IN = auto()
    """The members of a living instance have let it in."""
    OUTDATED = auto()
    """Others know a later life of the own number."""
    DISPLACED = auto()
    """Another daemon with the own number has the better right."""
    LEAVING = auto()


_STAYS: Final = {
    State.LISTENING: (Cause.AGREED, Cause.RESTARTED, Cause.LET_IN),
    State.PROPOSING: (Cause.LISTENED,),
    State.STARTED: (Cause.LISTENED, Cause.AGREED, Cause.LET_IN),
    State.ENDED: tuple(Cause),
}
MOVES: Final[dict[tuple[State, Cause], State]] = {
    (State.LISTENING, Cause.LISTENED): State.PROPOSING,
    (State.LISTENING, Cause.OUTDATED): State.LISTENING,
    (State.LISTENING, Cause.DISPLACED): State.ENDED,
    (State.LISTENING, Cause.LEAVING): State.ENDED,
    (State.PROPOSING, Cause.AGREED): State.STARTED,
    (State.PROPOSING, Cause.LET_IN): State.STARTED,
    (State.PROPOSING, Cause.RESTARTED): State.PROPOSING,
    (State.PROPOSING, Cause.OUTDATED): State.LISTENING,
    (State.PROPOSING, Cause.DISPLACED): State.ENDED,
    (State.PROPOSING, Cause.LEAVING): State.ENDED,
    (State.STARTED, Cause.RESTARTED): State.PROPOSING,
    (State.STARTED, Cause.OUTDATED): State.LISTENING,
    (State.STARTED, Cause.DISPLACED): State.ENDED,
    (State.STARTED, Cause.LEAVING): State.ENDED,
}
"""What changes the state, or begins the same one again: its entry action runs. No other row has any action."""
TRANSITIONS: Final[dict[tuple[State, Cause], State]] = {
    **{(state, cause): state for state, causes in _STAYS.items() for cause in causes},
    **MOVES,
}
"""Total: a test walks State x Cause."""
