"""What one part of the engine decides and another one applies: effects for the driver, and facts for the other parts.

A part returns outcomes in order and calls no other part to follow them up: ``Engine._absorb`` does that, in one place. An
effect passes through to the driver. A part with several steps, each of which must be followed up before the next one is
computed, is a generator: it yields the outcomes of one step at a time (``Steps``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .effects import Effect
from .joining import Entry


@dataclass(frozen=True, slots=True)
class InstanceOver:
    """This incarnation's time in the instance is over: the engine leaves the instance and asks to join again."""

    reason: str
    station: int
    """The station that reports it; this one, if it gives up."""
    expelled: bool = True
    """The other members continue without it. False: it leaves on its own decision."""


@dataclass(frozen=True, slots=True)
class Recovering:
    """A station that is in no instance asks to join, or to join again."""

    station: int
    incarnation: int
    frame_max: int
    """Largest PDU that it takes, bytes."""


@dataclass(frozen=True, slots=True)
class UsedUp:
    """A member reports that this incarnation of a station has been a member: no lower one may join."""

    station: int
    incarnation: int


Outcome: TypeAlias = Effect | InstanceOver | Recovering | UsedUp | Entry
"""``Entry``: the members of a running instance have admitted this station."""
Steps: TypeAlias = Iterator[Sequence[Outcome]]
"""The outcomes of one step at a time. The caller follows each step up before it asks for the next one."""
