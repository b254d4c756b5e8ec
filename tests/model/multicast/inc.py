"""Runs of the machine whose open era is in C (``proto/multicast/fast.py``), under the same checkers as its twin in Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from zenjun.proto.multicast.codec import encode
from zenjun.proto.multicast.fast import FastStation
from zenjun.proto.multicast.links import LinkLife, Pair
from zenjun.proto.multicast.main import MainOrder
from zenjun.proto.multicast.records import Data, Decide, Effect, Entry, Held, Id, Record, Relay, Report, Send, Stable
from zenjun.proto.multicast.station import Station
from zenjun.proto.multicast.tables import ORDERS, Program, Table
from zenjun.proto.multicast.work import Message

from ...sim.violation import Violation
from .cores import LINK_CONFIG, MAC
from .net import Host
from .world import Plan, World


class InC(FastStation):
    """What the checkers look at comes out of C while that has it."""

    @property
    def messages(self) -> dict[Id, Message]:
        return self.known() if self.is_fast else self._messages

    @messages.setter
    def messages(self, messages: dict[Id, Message]) -> None:
        self._messages = messages

    @property
    def sequence(self) -> defaultdict[str, list[Id]]:
        if not self.is_fast:
            return self._sequence
        return defaultdict(list, {order: self.unreleased(k) for k, order in enumerate(ORDERS)})

    @sequence.setter
    def sequence(self, sequence: defaultdict[str, list[Id]]) -> None:
        self._sequence = sequence

    @property
    def unfinished(self) -> list[Message]:
        if not self.is_fast:
            return super().unfinished
        return [m for m in self.known().values() if self._is_own(m)]


class Beside(InC):
    """Its twin in Python gets every input, too, and must want the same: events, and records for each station."""

    def __init__(self, station: int, main: MainOrder, window: int = 256, settle: int = 20_000_000) -> None:
        super().__init__(station, main, window, settle)
        self.twin = Station(station, main.copy(), window, settle)
        self._inside = False

    def begin(self) -> list[Effect]:
        return self._both(lambda: super(Beside, self).begin(), self.twin.begin)

    def send(self, now: int, program: Program, groups: Iterable[int], content: bytes, safe: bool = False) -> Id | None:
        addressed = tuple(groups)
        names = (super().send(now, program, addressed, content, safe), self.twin.send(now, program, addressed, content, safe))
        if names[0] != names[1]:
            raise Violation("twin", f"station {self.me} gives a message the name {names[0]}, its twin {names[1]}")
        return names[0]

    def on_pdus(self, now: int, accepted: Iterable[tuple[int, Iterable[Record]]]) -> list[Effect]:
        kept = [(source, tuple(records)) for source, records in accepted]
        return self._both(lambda: super(Beside, self).on_pdus(now, kept), lambda: self.twin.on_pdus(now, kept))

    def on_entry(self, now: int, entry: Entry) -> list[Effect]:
        return self._both(lambda: super(Beside, self).on_entry(now, entry), lambda: self.twin.on_entry(now, entry))

    def after(self, now: int) -> list[Effect]:
        if self._inside:  # it ends every other input
            return super().after(now)
        return self._both(lambda: super(Beside, self).after(now), lambda: self.twin.after(now))

    def _both(self, mine: Callable[[], list[Effect]], other: Callable[[], list[Effect]]) -> list[Effect]:
        self._inside = True
        try:
            return self._same(mine(), other())
        finally:
            self._inside = False

    def _same(self, mine: list[Effect], other: list[Effect]) -> list[Effect]:
        if _sorted(mine) != _sorted(other):
            first = next((a, b) for a, b in zip(_flat(mine), _flat(other), strict=False) if a != b)
            raise Violation("twin", f"station {self.me} wants {first[0]}, its twin {first[1]}")
        if self.n_dropped != self.twin.n_dropped:
            raise Violation("twin", f"station {self.me} has dropped {self.n_dropped} records, its twin {self.twin.n_dropped}")
        if (self.deadline, self.unfinished_ids()) != (self.twin.deadline, [m.id for m in self.twin.unfinished]):
            raise Violation("twin", f"station {self.me} waits for {self.deadline}, its twin for {self.twin.deadline}")
        return mine

    def unfinished_ids(self) -> list[Id]:
        return [m.id for m in self.unfinished]


class Loop:
    """A link of two cores without a wire: what is given to one end is accepted at the other one at once."""

    def __init__(self, source: tuple[int, int], me: tuple[int, int]) -> None:
        lower, higher = sorted((source, me))
        life = LinkLife(1, lower, higher)
        self.now = 0
        self.ends = [Pair(life, z, replace(LINK_CONFIG, station=z), LINK_CONFIG.frame_max, 0) for z in (source[0], me[0])]

    def bring(self, records: Iterable[Record]) -> Pair:
        sender, receiver = self.ends
        for record in records:
            sender.send(encode(record))
        while True:  # bound: a window of frames each time
            self.now += 2 * LINK_CONFIG.confirm_delay_ns
            sender.pump(self.now)
            for end, other in ((sender, receiver), (receiver, sender)):
                end.core.step(self.now, True)
                for pdu in end.core.tx(self.now):
                    other.core.pair_rx(self.now, pdu, MAC, False)
            sender.core.step(self.now, True)
            receiver.core.step(self.now, False)
            if not sender.waits and not sender.core.unstable:
                return receiver


class ByTake(Beside):
    """C reads what comes out of the cores of links (``zj_multi_take``), as it does in the data path."""

    def __init__(self, station: int, main: MainOrder, window: int = 256, settle: int = 20_000_000) -> None:
        super().__init__(station, main, window, settle)
        self._loops: dict[tuple[int, int], Loop] = {}

    def on_pdus(self, now: int, accepted: Iterable[tuple[int, Iterable[Record]]]) -> list[Effect]:
        kept = [(source, tuple(records)) for source, records in accepted]
        if not self.is_fast:
            return super().on_pdus(now, kept)
        return self._both(lambda: self._take_all(now, kept), lambda: self.twin.on_pdus(now, kept))

    def _take_all(self, now: int, kept: list[tuple[int, tuple[Record, ...]]]) -> list[Effect]:
        for source, records in kept:
            life = (source, self.main.members.get(source, 0))
            if life not in self._loops:
                self._loops[life] = Loop(life, (self.me, self.incarnation))
            receiver = self._loops[life].bring(records)
            receiver.give_to(self)
            if receiver.malformed:
                raise Violation("twin", f"station {self.me} reads {receiver.malformed} records that make no sense")
        return FastStation.on_pdus(self, now, ())


class NoisyWorld(World):
    """Stations also send what they may not: records again, to others, with other numbers, times and counts. Nothing holds then
    but that C and its twin do the same, and drop as many."""

    def __init__(self, plan: Plan, station_class: type[Station] = Station) -> None:
        super().__init__(plan, station_class)
        self._said: list[tuple[int, Record]] = []

    def transmit(self, host: Host, to: int, record: Record) -> None:
        super().transmit(host, to, record)
        if isinstance(record, Relay):
            return
        self._said.append((host.station, record))
        while self._chance(0.2):
            own = [said for station, said in self._said[-60:] if station == host.station]
            again = self.random.choice(own)
            other = self.random.choice([to, to, *(z for z in self.members if z != host.station)])
            super().transmit(host, other, again if self._chance(0.4) else self._changed(again))

    def _changed(self, record: Record) -> Record:
        r = self.random
        if isinstance(record, Data):
            return replace(record, finished=max(record.finished - r.choice((0, 1)), 0), seen=record.seen + r.choice((0, 9)))
        if isinstance(record, Report | Decide):
            kind = r.choice((Report, Decide, type(record)))
            number = max(record.number + r.choice((-9, -2, -1, 0, 0, 1, 2, 3, r.randint(1, 40))), 1)
            origin = r.choice((record.origin, *self.members, 7))
            return kind(record.era, record.order, origin, number, r.choice((1, 1, 2, 99)), record.time + r.choice((-1, 0, 1)))
        if isinstance(record, Held | Stable):
            return replace(record, k=(record.k + r.choice((-2, -1, 1, 5, 2**31))) % 2**32)
        return record


def _sorted(effects: list[Effect]) -> tuple[list[Effect], dict[int, list[Record]]]:
    """What happens here, in order, and the records for each station, in order; in C the two are not one list."""
    sends: defaultdict[int, list[Record]] = defaultdict(list)
    for e in effects:
        if isinstance(e, Send):
            sends[e.to].append(e.record)
    return [e for e in effects if not isinstance(e, Send)], dict(sends)


def _flat(effects: list[Effect]) -> list[Any]:
    events, sends = _sorted(effects)
    return [*events, *((to, record) for to in sorted(sends) for record in sends[to]), "nothing more"]


# ---- broken on purpose: what goes between C and Python at a change of eras


class ForgetsFinished(Beside):
    """E5: it is not remembered which messages of the frozen era are finished."""

    def _take_back(self) -> None:
        super()._take_back()
        self._gone.clear()


class ForgetsWaiting(Beside):
    """I4: what is delivered and has not reached level preack is forgotten when the next era opens."""

    def _give_old(self) -> None:
        self.sequence.clear()
        super()._give_old()


class NobodyFollows(Beside):
    """O7: C is not told who follows whom."""

    def _give_table(self, order: int, table: Table) -> None:
        super()._give_table(order, type(table)({}))
        for group, members in table.groups.items():
            self._give_group(order, group, members)


class KeepsMembers(Beside):
    """E1: C is not told who has joined or left a group that it has."""

    def _give_group(self, order: int, group: int, members: frozenset[int]) -> None:
        given = self._given.get(order)
        if given is None or group not in given.groups or not members:
            super()._give_group(order, group, members)


DEFECTS = (ForgetsFinished, ForgetsWaiting, NobodyFollows, KeepsMembers)
