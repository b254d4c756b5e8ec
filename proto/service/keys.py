"""Changes of the key, as messages in the total order: every station has them at the same place.

``rotate``: seal with another key from here on. ``retire``: read a key no more. A station that cannot follow, because it does not
have the key or seals with the one that is to be retired, says so and stays as it is; a change is proposed only if all can.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from ..wire import Field, Layout


class Step(IntEnum):
    """What a message does."""

    ROTATE = 1
    RETIRE = 2


KEY_CHANGE: Final = Layout(
    "key_change",
    (
        Field("step", 1, "1 rotate: seal with this key; 2 retire: read this key no more"),
        Field("pad", 3, "0"),
        Field("key", 4, "its id"),
    ),
    "A message of type SERVICE of a daemon (client 0).",
)


class KeyChange(NamedTuple):
    """One message."""

    step: Step
    key: int

    def packed(self) -> bytes:
        return KEY_CHANGE.struct.pack(self.step, bytes(3), self.key)

    @classmethod
    def read(cls, data: bytes) -> KeyChange | None:
        """None: it is none that this version knows."""
        if len(data) != KEY_CHANGE.size:
            return None
        step, _, key = KEY_CHANGE.struct.unpack(data)
        return cls(Step(step), key) if step in set(Step) else None


class Holder(NamedTuple):
    """What is known of the keys of a member."""

    station: int
    reads: tuple[int, ...]
    uses: frozenset[int]
    """Frames under these may be on their way: also under the former one, for some seconds after a change."""


def why_not(change: KeyChange, members: list[Holder], absent: list[int], without_absent: bool) -> str:
    """Why a change cannot be proposed now, for people; empty: it can. members: all of the instance, this station among them;
    absent: the others of the cluster."""
    name = f"{change.key:08x}"
    if change.step is Step.RETIRE:
        senders = [m.station for m in members if change.key in m.uses]
        if senders:
            return f"key {name} is in use at station{_list(senders)}, or was until just now: rotate to another one first"
        if all(change.key not in m.reads for m in members):
            return f"no member has key {name}"
    elif missing := [m.station for m in members if change.key not in m.reads]:
        return f"key {name} is missing at station{_list(missing)}: zenjun key add it there first"
    if absent and not without_absent:
        return f"away: station{_list(absent)}; without the newer key it could not come back (--without-absent: all the same)"
    return ""


def _list(stations: list[int]) -> str:
    return ("s " if len(stations) > 1 else " ") + ", ".join(map(str, stations))
