"""What follows from the main order alone, so that all stations know it alike: eras, the awaited stations, and what a change
decides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from .records import Closed, Entry, Flush, Id, Joined, Left, Listed, Synced, ViewEvent
from .tables import ORDERS, TABLES, Era, EraNumber, Program, View


@dataclass(frozen=True)
class Decision:
    """Rule E4: what the eras before a change have left, with a time for each message."""

    messages: dict[Id, Listed]
    """Each with its time and the destinations that are left."""
    holders: dict[Id, frozenset[int]]
    """The stations that have its data."""
    view_times: dict[EraNumber, int]
    """The place of the views that begin an era: one for each era that is being opened."""
    clock: int
    """Times in the new era are above this."""


@dataclass
class MainOrder:
    """The state after a prefix of the main order."""

    members: dict[int, int]
    """The cluster: incarnation by station."""
    eras: list[Era]
    """The earlier eras that are not closed, and the current one."""
    group_orders: dict[int, str]
    programs: dict[int, set[Program]]
    """The members of each group."""
    awaited: frozenset[int] = frozenset()
    """The stations whose FLUSH, then whose CLOSED the current change waits for (rule E4)."""
    decided: bool = True
    flushes: dict[int, Flush] | None = None
    closed: dict[int, Closed] | None = None
    view_times: dict[EraNumber, int] | None = None
    """The places of views that an earlier change has decided."""
    clock: int = 0
    """Clock of the last decision, not below the instance number times 2^32."""

    @classmethod
    def begin(cls, instance: int, members: dict[int, int]) -> MainOrder:
        """The first instance, with no groups."""
        tables = {order: TABLES[order]({}) for order in ORDERS}
        return cls(
            dict(members), [Era(EraNumber(instance, 0), dict(members), tables)], {}, {}, view_times={}, clock=instance << 32
        )

    def copy(self) -> MainOrder:
        """What a joiner gets at the end of its sync."""
        return type(self)(
            dict(self.members),
            list(self.eras),
            dict(self.group_orders),
            {g: set(programs) for g, programs in self.programs.items()},
            self.awaited,
            self.decided,
            dict(self.flushes or {}),
            dict(self.closed or {}),
            dict(self.view_times or {}),
            self.clock,
        )

    @property
    def era(self) -> Era:
        return self.eras[-1]

    def is_same_life(self, station: int, era: Era) -> bool:
        """Whether the station that took part in an era still does, in the same incarnation."""
        return station in era.part and self.era.part.get(station) == era.part[station]

    def remaining(self, destinations: Iterable[int], era: Era) -> frozenset[int]:
        """The destinations of an era that are left."""
        return frozenset(z for z in destinations if self.is_same_life(z, era))

    # ---- changes

    def change(self, entry: Entry) -> bool:
        """Take an entry that may begin an era (rule E1). Returns whether it does."""
        part, number = dict(self.era.part), self.era.number
        changed: set[int] = set()
        if isinstance(entry, ViewEvent):
            self.members = dict(entry.members)
            part = {z: life for z, life in part.items() if self.members.get(z) == life and z not in entry.waiting}
            for group, programs in self.programs.items():
                dead = {p for p in programs if part.get(p.station) != p.incarnation}
                if dead:
                    programs -= dead
                    changed.add(group)
            number = EraNumber(entry.instance, 0)
        else:
            if isinstance(entry, Synced) and (lives := [life for life in entry.lives if life in self.members.items()]):
                part.update(lives)
            elif isinstance(entry, Joined) and self._may_join(entry):
                self.group_orders[entry.group] = entry.order
                self.programs.setdefault(entry.group, set()).add(entry.program)
                changed.add(entry.group)
            elif isinstance(entry, Left) and entry.program in self.programs.get(entry.group, ()):
                self.programs[entry.group].discard(entry.program)
                changed.add(entry.group)
            else:
                return False
            number = number._replace(change=number.change + 1)
        self._begin(number, part, changed)
        return True

    def _may_join(self, entry: Joined) -> bool:
        """Whether its station takes part and it is no member yet; the order of the first member stays."""
        station, incarnation, _ = entry.program
        members = self.programs.get(entry.group, set())
        fits = not members or self.group_orders[entry.group] == entry.order
        return self.era.part.get(station) == incarnation and entry.program not in members and fits

    def _begin(self, number: EraNumber, part: dict[int, int], changed: set[int]) -> None:
        stations = {g: {p.station for p in self.programs[g]} for g in changed}
        tables = {
            order: table.changed({g: there for g, there in stations.items() if self.group_orders[g] == order})
            for order, table in self.era.tables.items()
        }
        views = tuple(View(g, frozenset(self.programs[g])) for g in sorted(changed))
        before = self.era
        self.eras.append(Era(number, part, tables, views, dict(self.group_orders)))
        for group in [group for group in changed if not self.programs[group]]:
            del self.programs[group], self.group_orders[group]
        self.awaited = self.remaining(before.part, before)
        self.flushes, self.closed, self.decided = {}, {}, False

    def needs_flush(self) -> bool:
        """Whether an era that is still open had such a group (rule E2)."""
        return any(era.is_used for era in self.eras[:-1]) and bool(self.awaited)

    # ---- the end of the eras before

    def flush(self, entry: Flush) -> bool:
        """Take a FLUSH. Returns whether it was the last one awaited (rule E4)."""
        if self.decided or entry.opens != self.era.number or entry.station not in self.awaited or self.flushes is None:
            return False
        self.flushes[entry.station] = entry
        return set(self.flushes) >= self.awaited

    def close(self, entry: Closed) -> bool:
        """Take a CLOSED. Returns whether it was the last one awaited (rule E6): the eras before are closed."""
        if not self.decided or entry.opens != self.era.number or entry.station not in self.awaited or self.closed is None:
            return False
        self.closed[entry.station] = entry
        return set(self.closed) >= self.awaited

    def forget(self) -> None:
        """Only the current era is left."""
        self.eras = self.eras[-1:]
        self.view_times = {}

    def decide(self) -> Decision:
        """Rule E4, alike everywhere, from the FLUSH of all awaited."""
        self.decided = True
        flushes = [f for _, f in sorted((self.flushes or {}).items())]
        merged, holders = self._merge(flushes)
        clock = max([self.clock, *(f.clock for f in flushes)])
        decided: dict[Id, Listed] = {}
        view_times: dict[EraNumber, int] = {}
        known = self.view_times if self.view_times is not None else {}
        for before, era in pairwise(self.eras):
            of_era = [m for i, m in merged.items() if i.era == before.number]
            decided |= self._decide_era(of_era, clock)
            if era.number not in known:
                known[era.number] = clock + 2
                clock += 2
            view_times[era.number] = known[era.number]
        self.clock = max(clock, self.era.number.instance << 32)
        return Decision(decided, holders, view_times, self.clock)

    def _merge(self, flushes: list[Flush]) -> tuple[dict[Id, Listed], dict[Id, frozenset[int]]]:
        """The contents of all FLUSHes together, without messages whose data no station has, or that have no destination left."""
        eras = {era.number: era for era in self.eras}
        found: dict[Id, Listed] = {}
        holders: dict[Id, set[int]] = {}
        for flush in flushes:
            for listed in flush.listed:
                if listed.id.era not in eras:
                    continue
                known = found.get(listed.id)
                if known is None:
                    left = self.remaining(listed.destinations, eras[listed.id.era])
                    found[listed.id] = replace(listed, destinations=left)
                elif known.time is None and listed.time is not None:
                    found[listed.id] = replace(known, time=listed.time)
                if listed.held:
                    holders.setdefault(listed.id, set()).add(flush.station)
        left_over = {i: m for i, m in found.items() if holders.get(i) and m.destinations}
        return left_over, {i: frozenset(holders[i]) for i in left_over}

    def _decide_era(self, messages: list[Listed], clock: int) -> dict[Id, Listed]:
        """A time for each message of an era, from the highest number down.

        Where no FLUSH has one: below that of later messages of the same program to a common destination; without these, above
        all others. All this is one turn of the daemon, with up to a window of messages of every station.
        """
        decided: dict[Id, Listed] = {}
        least: dict[tuple[Program, str, int], int] = {}  # of a program's later messages of this order to this station
        for m in sorted(messages, key=lambda m: m.id.number, reverse=True):
            ways = [(m.program, m.order, z) for z in m.destinations]
            time = m.time if m.time is not None else self._time_for([least[way] for way in ways if way in least], clock)
            decided[m.id] = replace(m, time=time)
            least.update((way, min(time, least.get(way, time))) for way in ways)
        return decided

    def _time_for(self, later: list[int], clock: int) -> int:
        return min([*later, clock + 1])
