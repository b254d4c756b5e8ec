"""What the engine asks of the medium: a switched network (``switched.py``) or a bus (``bus.py``).

``Engine`` chooses one in its constructor; no other code of the engine asks which one it is. The core makes the same choice for
itself (``core/medium.h``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from .engineconfig import EngineConfig
from .handover import Handover
from .outcomes import Outcome, Recovering, Steps
from .parts import Parts
from .timers import NEVER


class MediumRules(ABC):
    """What a station does differently on each medium. Stations are numbers 1..n unless stated otherwise."""

    handover_class: ClassVar[type[Handover]]
    own_frames_return: ClassVar[bool]
    """Every station receives its own frames."""

    def __init__(self, config: EngineConfig, parts: Parts) -> None:
        self._config = config
        self._core = parts.core
        self._quorum = parts.quorum
        self._opening = parts.opening
        self._membership = parts.membership
        self._silence = parts.silence
        self._probing = parts.probing
        self._timers = parts.timers

    # ---- start and end of an instance
    @abstractmethod
    def verify(self, now: int) -> None:
        """This station has begun to open, or its interface has another address: see whether the segment is this medium."""

    @abstractmethod
    def begin(self, members: Sequence[int]) -> None:
        """An instance of these members (indices) was opened."""

    @abstractmethod
    def end(self) -> None:
        """The instance has ended here."""

    # ---- received
    @abstractmethod
    def route(self, now: int, header: dict[str, int], pdu: bytes, mac: bytes) -> Sequence[Outcome]:
        """A control PDU of the own cluster and number of stations; its checksum is right."""

    @abstractmethod
    def settle(self, now: int) -> Sequence[Outcome]:
        """All control PDUs of a batch have been routed: what follows from what the core has accepted."""

    # ---- stations that come and go
    @abstractmethod
    def recover(self, now: int, asking: Recovering) -> Sequence[Outcome]:
        """A station asks to join."""

    @abstractmethod
    def on_bye(self, now: int, station: int) -> Sequence[Outcome]:
        """A member has announced that it leaves."""

    @abstractmethod
    def on_deaf(self, now: int, stations: Sequence[int]) -> Sequence[Outcome]:
        """These members, at least one, do not receive what this station sends, and the instance can continue without them."""

    @abstractmethod
    def expel(self, now: int, station: int, reason: str) -> Sequence[Outcome]:
        """An operator wants a member out, or a link to it is blocked. UsageError if that cannot be."""

    @abstractmethod
    def find_silent(self, now: int) -> Steps:
        """In an instance, at each look of ``watch.py``: which members show no sign of life, and what follows."""

    # ---- deadlines
    def serve(self, now: int) -> Sequence[Outcome]:
        """What is due beside the watch. Early and repeated calls are harmless."""
        return ()

    def next_deadline_ns(self) -> int:
        """When ``serve`` has something to do at the latest, but for deadlines in the shared table."""
        return NEVER

    def status(self) -> dict[str, Any] | None:
        """``reset`` of docs/status.md."""
        return None
