"""The state of a station in the OPEN agreement (``opening.py``), and what changes it: a total table."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class State(Enum):
    """State of this station."""

    LISTENING = auto()
    """A newcomer, or another station has reported a later incarnation of it: sends OPEN without a proposal, and waits for
    a station that contradicts because the number is in use."""
    PROPOSING = auto()
    STARTED = auto()
    """In an instance. Silent, but for answers."""
    ENDED = auto()
    """Refused, or has left."""


class Cause(Enum):
    """Why a state may change. The value is its name in ``moves`` of the status."""

    LISTENED = "listened"
    """A whole window without contradiction."""
    AGREED = "agreed"
    RESTARTED = "restarted"
    """This station's incarnation is no longer in the instance; it continues with a new one."""
    ADMITTED = "let_in"
    """The members of a running instance have admitted it."""
    OUTDATED = "outdated"
    """Others know a later incarnation of this station."""
    DISPLACED = "displaced"
    """Another daemon with this station's number has precedence."""
    LEAVING = "leaving"


_STAYS: Final = {
    State.LISTENING: (Cause.AGREED, Cause.RESTARTED, Cause.ADMITTED),
    State.PROPOSING: (Cause.LISTENED,),
    State.STARTED: (Cause.LISTENED, Cause.AGREED, Cause.ADMITTED),
    State.ENDED: tuple(Cause),
}
MOVES: Final[dict[tuple[State, Cause], State]] = {
    (State.LISTENING, Cause.LISTENED): State.PROPOSING,
    (State.LISTENING, Cause.OUTDATED): State.LISTENING,
    (State.LISTENING, Cause.DISPLACED): State.ENDED,
    (State.LISTENING, Cause.LEAVING): State.ENDED,
    (State.PROPOSING, Cause.AGREED): State.STARTED,
    (State.PROPOSING, Cause.ADMITTED): State.STARTED,
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
