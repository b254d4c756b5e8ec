"""Changes of the key, as messages in the total order: every station has them at the same place.

``rotate``: seal with another key from here on. ``retire``: read a key no more. A station that cannot follow, because it does not
have the key or seals with the one that is to be retired, says so and stays as it is; a change is proposed only if all can.

``tell``: the key that is sealed with. Who comes into an instance has chosen a key by what it had heard before; a change whose
place in the order is before its coming is no message to it. So members tell those who come, and send ``retire`` again for the
keys that were retired: who was away may still have them.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import Final, NamedTuple

from ..wire import Field, Layout
from .base import ViewEvent

TELLERS: Final = 3
"""So many members tell: one may go before its word is in the order."""
_SINCE: Final = 0xFFFFFF


class Step(IntEnum):
    """What a message does."""

    ROTATE = 1
    RETIRE = 2
    TELL = 3


KEY_CHANGE: Final = Layout(
    "key_change",
    (
        Field("step", 1, "1 rotate: seal with this key; 2 retire: read this key no more; 3 tell: this key is sealed with"),
        Field("since", 3, "tell: the instance that stations have come into, its last 24 bits; else 0"),
        Field("key", 4, "its id"),
    ),
    "A message of type SERVICE of a daemon (client 0).",
)


class KeyChange(NamedTuple):
    """One message."""

    step: Step
    key: int
    since: int = 0

    def packed(self) -> bytes:
        return KEY_CHANGE.struct.pack(self.step, self.since.to_bytes(3, "big"), self.key)

    @classmethod
    def read(cls, data: bytes) -> KeyChange | None:
        """None: it is none that this version knows."""
        if len(data) != KEY_CHANGE.size:
            return None
        step, since, key = KEY_CHANGE.struct.unpack(data)
        return cls(Step(step), key, int.from_bytes(since, "big")) if step in set(Step) else None


class KeyOrder:
    """Which messages count for one station, and when it tells others. Instances have their numbers, which grow with each view."""

    def __init__(self, station: int) -> None:
        self._station = station
        self._since = 0
        self._knows = False
        """The order has said which key is sealed with since this station is in the instance."""
        self._owes = 0
        """The instance that stations have come into who are to be told; 0: none."""
        self._begins = False

    def open(self, instance: int, members: Collection[int], *, joined: bool) -> None:
        """This station is in an instance, which has just begun or (joined) runs already. At the beginning nobody knows, and the
        first word counts for all."""
        self._since, self._knows, self._begins = instance & _SINCE, False, not joined
        self._owes = instance if not joined and self._is_early(members) else 0

    def on_view(self, view: ViewEvent) -> None:
        if view.joined and self._is_early(set(view.members) - set(view.joined)):
            self._owes = view.instance

    def on_change(self, change: KeyChange) -> bool:
        """Returns whether this station is to do what a message says."""
        if change.step is Step.RETIRE:
            return True
        if change.step is Step.TELL and (self._knows or (change.since - self._since) & _SINCE > _SINCE >> 1):
            return False  # from before this station came: perhaps another key was sealed with then
        self._knows = True
        return True

    def word(self, key: int) -> KeyChange | None:
        """To be sent now, by a station that seals with this key; to be asked for after each input."""
        if not self._owes or not (self._knows or self._begins):
            return None
        since, self._owes, self._begins = self._owes & _SINCE, 0, False
        return KeyChange(Step.TELL, key, since)

    def _is_early(self, stations: Collection[int]) -> bool:
        return self._station in sorted(stations)[:TELLERS]


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
