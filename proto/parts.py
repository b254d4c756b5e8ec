"""The parts of the engine that the rules of the medium and the watch build on, put together by ``Engine``."""

from __future__ import annotations

from dataclasses import dataclass

from .core import Core
from .membership import Membership
from .opening import Opening
from .probing import Probing
from .silence import Silence
from .timers import Deadline, Timers
from .votes import Quorum


@dataclass(frozen=True, slots=True)
class Parts:
    """None of these knows the engine, the medium or the watch."""

    core: Core
    quorum: Quorum
    opening: Opening
    membership: Membership
    silence: Silence
    probing: Probing
    timers: Timers[Deadline]
