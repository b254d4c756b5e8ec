"""Machines that break one rule each; a run must tell."""

from __future__ import annotations

from collections.abc import Iterable

from zenjun.proto.pieces import Joiner, _Set
from zenjun.proto.sizes import Limit, Sizes, Way, Why


class BelieveInterface(Sizes):
    """J13: what the interface says is what passes."""

    def _decide(self, now: int) -> Limit:
        return Limit(min(self._top(way) for way in self.ways.values()), self.base, Why.INTERFACE)


class AnyMember(Sizes):
    """J13: what one member has had is proven."""

    def _decide(self, now: int) -> Limit:
        ways = [way for way in self.ways.values() if way.proven and self._members]
        size = min((max(way.proven.values()) for way in ways), default=self.base)
        return Limit(size, self.base, Why.PROVEN)


class LimitOfUpLinks(Sizes):
    """J13: a link that is down does not count."""

    def _counts(self, way: Way, now: int, station: int) -> bool:
        return way.is_open and super()._counts(way, now, station)


class NoHole(Sizes):
    """J15: what was proven stays so."""

    def _fall(self, way: Way, now: int, stations: Iterable[int], size: int, station: int) -> None:
        self._rest(way, now)


class NoHold(Sizes):
    """J16: frames are larger again at once."""

    def _fall(self, way: Way, now: int, stations: Iterable[int], size: int, station: int) -> None:
        super()._fall(way, now, stations, size, station)
        self._hold_until = now


class NeverMore(Sizes):
    """J14: what has once come to less is not tried again."""

    def _judge_try(self, way: Way, now: int, size: int, silent: bool) -> None:
        self._rest(way, now)
        way.high = 0


class Impatient(Sizes):
    """J19: whoever does not answer is asked again and again."""

    def _judge_burst(self, way: Way, now: int, silent: bool, less: list[int]) -> None:
        super()._judge_burst(way, now, silent, less)
        if silent:
            way.due = now


class PieceUnbounded(Joiner):
    """J18: what is not whole is kept."""

    def _begin(self, sets: list[_Set], new: _Set) -> _Set:
        sets.append(new)
        return new


MACHINES = {
    "proven": (BelieveInterface,),
    "found": (NoHole, AnyMember),
    "hold": (NoHold,),
    "back": (NeverMore,),
}
"""By the check that must tell."""
