"""What one member of an instance knows of another station: one record, whose state moves by the table of ``peerstate.py``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from .peerstate import TRANSITIONS, Cause, PeerState
from .votes import ChangeProposal

CALM_UNIT_NS: Final = 500_000_000
CALM_UNITS: Final = 10
"""A station that stays for CALM_UNITS units (the fail time-out, at most half a second) is no longer one that comes and goes."""
_REPORTED: Final = frozenset({PeerState.AAS, PeerState.SSA})


@dataclass(slots=True)
class Suspicion:
    """Why this station proposes the removal of a peer, or would."""

    reason: str
    since_ns: int
    limit: int
    """Sequence number before which the peer's stream ends, as far as known."""


@dataclass(slots=True)
class Admission:
    """How a peer has joined: its incarnation, and the instance and proposal of the votes that admitted it."""

    incarnation: int
    instance: int
    proposal: ChangeProposal


@dataclass(slots=True)
class Resent:
    """Votes repeated to a joiner: to which incarnation, how often, and when last."""

    incarnation: int
    times: int
    at_ns: int


@dataclass(slots=True)
class Peer:
    """One station as another one sees it. Times are monotonic nanoseconds."""

    station: int
    moves: Counter[str]
    """How often each state was left by which cause, of all peers together."""
    state: PeerState = PeerState.S

    suspicion: Suspicion | None = None
    """Only in AS."""
    reported_ns: int | None = None
    """Only in AAS and SSA: since when others report the stop, or the recovery."""
    joining: int = 0
    """Incarnation that asks to join, 0: none."""
    waited_ns: int | None = None
    """Since when delivery waits for it as a joiner: from the own vote for it on."""
    admission: Admission | None = None
    resent: Resent = field(default_factory=lambda: Resent(0, 0, -(1 << 62)))

    last_incarnation: int = 0
    """The highest that was ever a member: only later ones may join."""
    asked: int = 0
    """Incarnation that asked once, at a station that does not know yet which ones are used up."""
    latest_asked: int = 0
    """The latest incarnation that has asked to join in this instance, whatever came of it."""
    frame_max: int = 0
    """Largest PDU that the joiner takes, bytes; 0: unknown."""
    admitted_ns: int | None = None
    backoff_ns: int = 0
    not_before_ns: int = 0
    """Its requests to join are not heard before."""

    def move(self, cause: Cause) -> None:
        """Change the state and let go of what only the former state had."""
        before, self.state = self.state, TRANSITIONS[self.state, cause]
        if self.state is not before:
            self.moves[f"{before.name.lower()} {cause.value}"] += 1
        if self.state not in _REPORTED:
            self.reported_ns = None
        if self.state is not PeerState.AS:
            self.suspicion = None

    def reset(self, state: PeerState) -> None:
        """A new instance was opened or entered: what belonged to the last one is forgotten. How the peer came and went is not."""
        self.state = state
        self.suspicion = self.reported_ns = self.waited_ns = self.admission = None
        self.joining = self.asked = self.latest_asked = 0

    def back_off(self, now: int, fail_timeout_ns: int) -> None:
        """It was removed. If it has joined only lately, it joins later each time: every change costs all members."""
        unit = min(fail_timeout_ns, CALM_UNIT_NS)
        calm = self.admitted_ns is None or now - self.admitted_ns >= CALM_UNITS * unit
        self.backoff_ns = 0 if calm else min(max(2 * self.backoff_ns, unit // 4), 4 * unit)
        self.not_before_ns = now + self.backoff_ns
