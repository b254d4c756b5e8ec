"""The reset of a bus (TO paper, section 3, corrected): after a loss all members go back to what all of them have.

Rules, numbered as in docs/protocol.md, "Reset":

- R1 on a loss, or when own PDUs do not come back: the next epoch; no more PDUs are accepted; RST(epoch, vector) reports the
  number expected from each. The core has stopped accepting by itself.
- R2 RST of a higher epoch: take it over and do likewise. RST and the paper's RST_ACK are one PDU; concurrent resets merge.
- R3 RST(epoch, v): PDUs that v lacks are removed from the log; if the own vector has shrunk it is sent again. So all reach the
  component-wise minimum.
- R4 all vectors are equal: RSTC(epoch, vector).
- R5 RSTC from all, or any other PDU of this epoch (whose source has had RSTC from all): the log is acknowledged as a whole.
- R6 RST and RSTC are repeated by a timer. A station that has completed the reset answers RST with RSTC, and does not answer RSTC.

A member that stops in the middle does not end the reset but the instance: the survivors' reset is the change to the next one,
before which all of them deliver what any of them had acknowledged (``opening.py``).

Sans-I/O. Stations are indices 0..n-1, numbers of PDUs have 32 bits as on the wire.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, Protocol

from .core import Phase
from .timers import NEVER
from .wire import Kind

Vector = tuple[int, ...]


class State(Enum):
    """State of this station."""

    RUNNING = auto()
    COMPARING = auto()
    """Vectors are being exchanged and cut to the minimum."""
    AGREED = auto()
    """All were equal; who else has seen that?"""


class Cause(Enum):
    """Why a state may change."""

    LOSS = auto()
    """R1."""
    HIGHER = auto()
    """R2."""
    EQUAL = auto()
    """R4."""
    ALL = auto()
    """R5: RSTC from all members."""
    RESUMED = auto()
    """R5: another PDU of the epoch. The core has received it and continues."""
    ENDED = auto()
    """The instance is over, or begins."""


_STAYS: Final = {
    State.RUNNING: (Cause.EQUAL, Cause.ALL, Cause.RESUMED),
    State.COMPARING: (Cause.LOSS, Cause.ALL, Cause.RESUMED),
    State.AGREED: (Cause.LOSS, Cause.EQUAL),
}
MOVES: Final[dict[tuple[State, Cause], State]] = {
    (State.RUNNING, Cause.LOSS): State.COMPARING,
    (State.RUNNING, Cause.HIGHER): State.COMPARING,
    (State.RUNNING, Cause.ENDED): State.RUNNING,
    (State.COMPARING, Cause.HIGHER): State.COMPARING,
    (State.COMPARING, Cause.EQUAL): State.AGREED,
    (State.COMPARING, Cause.ENDED): State.RUNNING,
    (State.AGREED, Cause.HIGHER): State.COMPARING,
    (State.AGREED, Cause.ALL): State.RUNNING,
    (State.AGREED, Cause.RESUMED): State.RUNNING,
    (State.AGREED, Cause.ENDED): State.RUNNING,
}
"""What changes the state, or begins the same one again: its entry action runs. No other row has any action."""
TRANSITIONS: Final[dict[tuple[State, Cause], State]] = {
    **{(state, cause): state for state, causes in _STAYS.items() for cause in causes},
    **MOVES,
}
"""Total: a test walks State x Cause."""


class Log(Protocol):
    """What the reset reads and does in the core (``core.Core``)."""

    def phase(self) -> tuple[int, int]: ...

    def vector(self) -> Vector: ...

    def reset_enter(self, epoch: int) -> None: ...

    def reset_cut(self, vector: Sequence[int], index: int) -> bool: ...

    def reset_agree(self) -> None: ...

    def reset_done(self) -> None: ...

    def reset_say(self, kind: int, epoch: int, vector: Sequence[int]) -> bool: ...


class Reset:
    """One per engine. Inputs: ``on_pdu`` for each control PDU of a batch, ``settle`` after it, which sends what is due;
    ``on_timeout``. PDUs wait in the core's transmit queue."""

    def __init__(self, core: Log, *, index: int, repeat_ns: int, repeat_max_ns: int, once: bool = False) -> None:
        """repeat_ns: first wait before RST is repeated, which then doubles. once: every station sends once, as printed; only for
        tests of the checkers."""
        self._core = core
        self._index = index
        self._repeat_ns = repeat_ns
        self._repeat_max_ns = max(repeat_ns, repeat_max_ns)
        self._once = once
        self.state = State.RUNNING
        self.epoch = 0
        """Of the present instance: resets so far, here or elsewhere."""
        self.moves: Counter[str] = Counter()
        """How often each state was entered from which cause."""
        self._members: tuple[int, ...] = ()
        self._said: dict[int, Vector] = {}  # by others, of this epoch
        self._completed: set[int] = set()  # RSTC heard
        self._agreed: Vector = ()
        self._tell = 0  # kind that is to be sent
        self._asked = False
        self._wait_ns = repeat_ns
        self._at_ns = NEVER

    # ---- inputs
    def begin(self, members: Sequence[int]) -> None:
        """An instance of these members (indices, self among them) begins."""
        self._members = tuple(members)
        self.epoch = 0
        self._agreed = ()
        self._move(0, Cause.ENDED)

    def end(self) -> None:
        """It is over."""
        self.begin(())

    def observe(self) -> None:
        """The core may have ended the reset by itself (R5). The other inputs ask first."""
        if self.state is State.AGREED and self._core.phase()[0] in (Phase.RUN, Phase.LOST):
            self._move(0, Cause.RESUMED)

    def on_pdu(self, now: int, kind: int, index: int, epoch: int, vector: Vector) -> None:
        """A RST or RSTC of another member of the instance."""
        self.observe()
        if index not in self._members or index == self._index or epoch < max(1, self.epoch):
            return
        if epoch > self.epoch:
            self.on_higher(now, epoch)
        if self.state is State.RUNNING:
            self._asked |= kind == Kind.RST
            return
        if kind == Kind.RSTC:
            self._completed.add(index)
        if self.state is State.COMPARING:
            self._said[index] = vector
            if self._core.reset_cut(vector, index) and not self._once:
                self._tell = Kind.RST

    def on_higher(self, now: int, epoch: int) -> None:
        """R2: some member is in this epoch."""
        self.observe()
        if epoch > self.epoch and self._members:
            self.epoch = epoch
            self._move(now, Cause.HIGHER)

    def settle(self, now: int) -> bool:
        """The batch is read: decide, and send what is due. True: the core has something to send, or is in another phase."""
        self.observe()
        if not self._members:
            return False
        before = (self.state, self.epoch)
        if self.state is State.RUNNING and self._core.phase()[0] == Phase.LOST:
            self.epoch += 1
            self._move(now, Cause.LOSS)
        if self.state is State.COMPARING:
            own = self._core.vector()
            if all(self._said.get(j) == own for j in self._members if j != self._index):
                self._move(now, Cause.EQUAL)
        spoken = self._speak()
        if self.state is State.AGREED and self._completed >= set(self._members) - {self._index}:
            self._core.reset_done()
            self._move(now, Cause.ALL)
        return spoken or before != (self.state, self.epoch)

    def on_timeout(self, now: int) -> None:
        """R6. Early and repeated calls are harmless; ``settle`` after it."""
        self.observe()
        if now < self._at_ns or self.state is State.RUNNING:
            return
        self._tell = Kind.RST
        self._speak()
        if self.state is State.AGREED:
            self._tell = Kind.RSTC
        self._wait_ns = min(2 * self._wait_ns, self._repeat_max_ns)
        self._at_ns = now + self._wait_ns

    def next_deadline_ns(self) -> int:
        return self._at_ns

    # ---- inside
    def _speak(self) -> bool:
        """Send what is due; if the queue is full, the timer sends it."""
        core, spoken = self._core, False
        if self._tell and self.state is not State.RUNNING:
            vector = self._agreed if self.state is State.AGREED else core.vector()
            spoken = core.reset_say(self._tell, self.epoch, vector)
        elif self._asked and self._agreed:
            spoken = core.reset_say(Kind.RSTC, self.epoch, self._agreed)
        self._tell = 0
        self._asked = False
        return spoken

    # ---- states: each entry sets everything the state owns
    def _move(self, now: int, cause: Cause) -> None:
        """Change the state and run its entry action. ``now`` counts only for COMPARING, whose ``epoch`` is set before."""
        key = self.state, cause
        self.moves[f"{self.state.name} {cause.name}".lower()] += 1
        if key not in MOVES:
            return
        self.state = MOVES[key]
        match self.state:
            case State.RUNNING:
                self._enter_running()
            case State.COMPARING:
                self._enter_comparing(now)
            case State.AGREED:
                self._enter_agreed()

    def _enter_running(self) -> None:
        self._said.clear()
        self._completed.clear()
        self._tell = 0
        self._asked = False
        self._at_ns = NEVER

    def _enter_comparing(self, now: int) -> None:
        self._said.clear()
        self._completed.clear()
        self._agreed = ()
        self._asked = False
        self._core.reset_enter(self.epoch)
        self._tell = Kind.RST
        self._wait_ns = self._repeat_ns
        self._at_ns = NEVER if self._once else now + self._wait_ns + self._wait_ns * self._index // 16

    def _enter_agreed(self) -> None:
        self._agreed = self._core.vector()
        self._core.reset_agree()
        self._tell = Kind.RSTC
