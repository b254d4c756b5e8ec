"""The members of each group in one era, and what follows from that alone: token hosts, proposers, coordinator (rules T1-T3,
O2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple, Self, TypeVar

ORDERS: Final = ("abcast", "token")


KEPT_MAX: Final = 1024
"""Answers that a table keeps of each kind: programs may address many sets of groups."""
K = TypeVar("K")
V = TypeVar("V")


def _keep(known: dict[K, V], key: K, value: V) -> V:
    """Enter an answer, in place of all others if there are many."""
    if len(known) >= KEPT_MAX:
        known.clear()
    known[key] = value
    return value


class EraNumber(NamedTuple):
    """An era's number. A view event begins (instance, 0), any other change the next one of the same instance."""

    instance: int
    change: int


class Table(ABC):
    """The groups of one order, and the stations that have a member program in each."""

    def __init__(self, groups: Mapping[int, Iterable[int]]) -> None:
        self.groups: dict[int, frozenset[int]] = {g: frozenset(stations) for g, stations in groups.items() if stations}
        own: defaultdict[int, set[int]] = defaultdict(set)
        for group, stations in self.groups.items():
            for z in stations:
                own[z].add(group)
        self._own = {z: frozenset(found) for z, found in own.items()}
        """The groups of each station that is in one."""
        self._followed: dict[int, int] = {}
        self._destinations: dict[tuple[int, ...], frozenset[int]] = {}
        self._proposers: dict[frozenset[int], frozenset[int]] = {}
        self._followers: dict[tuple[int, frozenset[int]], frozenset[int]] = {}

    def changed(self, groups: Mapping[int, Iterable[int]]) -> Self:
        """The table in which these groups have these stations, others the same; this one if that is no change. What it costs
        does not grow with the other groups, but for a copy of their list: a program may join some hundred, one by one."""
        now = {g: frozenset(stations) for g, stations in groups.items()}
        now = {g: stations for g, stations in now.items() if stations != self.groups.get(g, frozenset())}
        if not now:
            return self
        made = type(self)({})
        made.groups, own = {**self.groups, **now}, dict(self._own)
        for group, stations in now.items():
            before = self.groups.get(group, frozenset())
            for z in before - stations:
                own[z] -= {group}
            for z in stations - before:
                own[z] = own.get(z, frozenset()) | {group}
            if not stations:
                del made.groups[group]
        made._own = {z: found for z, found in own.items() if found}
        return made

    @cached_property
    def members(self) -> frozenset[int]:
        """The stations that are in a group."""
        return frozenset(self._own)

    def groups_of(self, station: int) -> frozenset[int]:
        """The groups that a station has a member program in."""
        return self._own.get(station, frozenset())

    def destinations(self, groups: Iterable[int]) -> frozenset[int]:
        """The stations of the addressed groups; empty if these have no members."""
        key = tuple(groups)
        found = self._destinations.get(key)
        if found is None:
            found = _keep(self._destinations, key, frozenset(z for g in key for z in self.groups.get(g, ())))
        return found

    @abstractmethod
    def proposers(self, destinations: frozenset[int]) -> frozenset[int]:
        """Rule O2: the stations that report a time for a message to these destinations."""

    @abstractmethod
    def coordinator(self, destinations: frozenset[int], origin: int) -> int:
        """Rule O2: the station that decides the time."""

    @abstractmethod
    def followed(self, station: int) -> int:
        """The station whose order this one follows: itself if it proposes."""

    def followers(self, proposer: int, destinations: frozenset[int]) -> frozenset[int]:
        """The destinations that get the order of their messages from this proposer."""
        key = (proposer, destinations)
        found = self._followers.get(key)
        if found is None:
            own = frozenset(z for z in destinations if z != proposer and self.followed(z) == proposer)
            found = _keep(self._followers, key, own)
        return found


class AbcastTable(Table):
    """ISIS' ABCAST: every destination proposes, the originator decides."""

    def proposers(self, destinations: frozenset[int]) -> frozenset[int]:
        return destinations

    def coordinator(self, destinations: frozenset[int], origin: int) -> int:
        return origin

    def followed(self, station: int) -> int:
        return station


class TokenTable(Table):
    """The paper: token hosts propose, the one with the super token decides. All of it is a function of the groups (T1)."""

    @cached_property
    def hosts(self) -> frozenset[int]:
        """Rule T2: the stations that have a token: no other station's set of groups contains this one's, unless it is the same
        set and that station's number is higher. A set that another one contains is in one of a token host, which is larger, or
        the same and of a lower number: so each is compared with the token hosts before it only."""
        found: list[int] = []
        for station in sorted(self._own, key=lambda z: (-len(self._own[z]), z)):
            if not any(self._own[host] >= self._own[station] for host in found):
                found.append(station)
        return frozenset(found)

    def followed(self, station: int) -> int:
        """Rule T2: the lowest token host that is in all groups of this station; of a token host itself."""
        if station not in self._followed:
            self._followed[station] = min(t for t in self.hosts if self.groups_of(t) >= self.groups_of(station))
        return self._followed[station]

    def hosts_in(self, group: int) -> frozenset[int]:
        """Rule T3: the token hosts in a group; two or more are its meta-group."""
        return self.hosts & self.groups.get(group, frozenset())

    def super_host(self, group: int) -> int:
        """Rule T3: the token host of a group that decides."""
        return min(self.hosts_in(group))

    def proposers(self, destinations: frozenset[int]) -> frozenset[int]:
        found = self._proposers.get(destinations)
        if found is None:
            found = _keep(self._proposers, destinations, self.hosts & destinations)
        return found

    def coordinator(self, destinations: frozenset[int], origin: int) -> int:
        return min(self.proposers(destinations))


TABLES: Final[dict[str, type[Table]]] = {"abcast": AbcastTable, "token": TokenTable}


class View(NamedTuple):
    """A group's members (programs) from the beginning of an era on."""

    group: int
    members: frozenset[Program]


class Program(NamedTuple):
    """A program, of one incarnation of its station."""

    station: int
    incarnation: int
    client: int


@dataclass(frozen=True)
class Era:
    """The time between two changes."""

    number: EraNumber
    part: Mapping[int, int]
    """The stations that take part, each with its incarnation."""
    tables: Mapping[str, Table]
    views: tuple[View, ...] = ()
    """The groups whose members differ from those of the era before."""
    order_of: Mapping[int, str] = field(default_factory=dict)
    """The order of each group."""

    @property
    def is_used(self) -> bool:
        """Whether any group of these orders has a member."""
        return any(table.groups for table in self.tables.values())
