"""Sends the OPENs of one station: decides when, fills them in, and makes durable first what they contain.

Opening decides and this part sends. Every OPEN and RCV passes through ``send``, so that no number reaches another station before
it is durable, and so that OPENs are repeated at the interval and answers are rate-limited.

Sans-I/O. Times are monotonic nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from .effects import Effect, Persist, Send
from .openconfig import OpeningConfig, Timer
from .openpdu import INSTANCE_MAX, Claim, OpenPdu, OpenProposal, Past, encode_open
from .openstate import State
from .pace import Pace
from .timers import NEVER, Timers

RECOVER_DOUBLINGS: Final = 2
"""RCV is repeated after the interval, twice it, four times it, with jitter: it may have lost to a stop being agreed."""


class Speaker(Protocol):
    """What is sent: the state of the opening."""

    incarnation: int
    highest: int
    instance: OpenProposal | None
    current: int
    past: Past
    frame_max: int
    state: State
    pace: Pace

    @property
    def latest(self) -> OpenProposal | None:
        """What it has proposed last."""

    def is_recovering(self, now: int) -> bool:
        """It asks a running instance to admit it."""

    def claim(self) -> Claim | None:
        """What it says of configurations."""


class Sender:
    """Of one ``Opening``. It owns the deadline OPEN."""

    def __init__(
        self,
        config: OpeningConfig,
        timers: Timers[Timer],
        speaker: Speaker,
        *,
        instance: int,
        life_of: Callable[[int], int],
        add_checksum: Callable[[bytes], bytes],
    ) -> None:
        """instance: the highest number stored. life_of: the highest incarnation of a station that was ever a member."""
        self._config = config
        self._timers = timers
        self._speaker = speaker
        self._life_of = life_of
        self._add_checksum = add_checksum
        self._persisted = (0, instance)
        self._sent_ns = -NEVER
        self.began_ns = 0
        """When this process began to listen."""
        self.tries = 0
        """RCVs since the instance was first heard."""

    def answer(self, now: int, outdated: int = 0) -> list[Effect]:
        """An OPEN now, or as soon as the interval since the last one allows. ``outdated``: a station that has to learn that it
        needs a later incarnation."""
        interval_ns = self._speaker.pace.interval_ns
        if now - self._sent_ns >= interval_ns:
            return self.send(now, outdated)
        if outdated:
            return []  # it will ask again
        self._timers.set_earlier(Timer.OPEN, self._sent_ns + interval_ns)
        return []

    def send(self, now: int, outdated: int = 0) -> list[Effect]:
        """Broadcast how things stand, after making durable what it reveals."""
        self._sent_ns = now
        speaker, pace = self._speaker, self._speaker.pace
        recovering = speaker.is_recovering(now)
        if speaker.state is State.STARTED:
            self._timers.stop(Timer.OPEN)
        elif recovering:
            wait = pace.recover_ns << min(self.tries, RECOVER_DOUBLINGS)
            self.tries += 1
            self._timers.set(Timer.OPEN, now + wait + self.jitter(wait // 2))
        else:
            self._timers.set(Timer.OPEN, now + pace.interval_ns)
        proposal = None if recovering else speaker.instance or speaker.latest
        if outdated:
            lives = {self._config.station: speaker.incarnation, outdated: self._life_of(outdated)}
            proposal = OpenProposal(speaker.current, tuple(sorted(lives.items())))
        pdu = OpenPdu(
            src=self._config.station,
            incarnation=speaker.incarnation,
            frame_max=speaker.frame_max,
            proposal=proposal,
            outdated=bool(outdated),
            highest=speaker.highest,
            fingerprint=self._config.fingerprint,
            age_ms=self.age_ms(now),
            boot=self._config.boot,
            started=speaker.instance is not None,
            host=self._config.host_name,
            past=speaker.past,
            recovering=recovering,
            claim=speaker.claim(),
        )
        data = encode_open(pdu, cluster=self._config.cluster_id, stations=self._config.stations, checksum=self._add_checksum)
        return [*self.make_durable(), Send(data)]

    def make_durable(self, ahead: int = 0) -> list[Effect]:
        """Make the numbers in use durable. What is on disk may be ahead of them, never behind."""
        incarnation, highest = self._persisted
        own, known = self._speaker.incarnation, self._speaker.highest
        if incarnation == own and highest >= known:
            return []
        upto = min(known + ahead, INSTANCE_MAX) if known > highest else 0
        self._persisted = (own, max(highest, upto))
        return [Persist(*self._persisted)]

    def jitter(self, below: int) -> int:
        """0 <= j < below, from the boot number and what has been sent: no two stations have the same."""
        mixed = (self._config.boot ^ self._sent_ns) * 0x9E3779B97F4A7C15 & 2**64 - 1
        return (mixed >> 32) % below if 0 < below < 1 << 32 else mixed % below if below else 0

    def age_ms(self, now: int) -> int:
        """How long this process has listened, or taken part."""
        return (now - self.began_ns) // 1_000_000
