"""A station: order within an era (ordering.py), and the change of eras by the main order (rules E1-E7 of docs/multicast.md)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from .main import Decision
from .ordering import Ordering
from .records import (
    Broadcast,
    Closed,
    Data,
    DeliverView,
    Effect,
    Entry,
    Fenced,
    Finished,
    Flush,
    Listed,
    Opened,
    Record,
    Relay,
    Send,
    Settled,
    era_of,
)
from .tables import Era, EraNumber
from .work import Message


class Station(Ordering):
    """Inputs: ``send``, ``on_pdus``, ``on_entry``, ``on_time``. A joiner is made at the end of its sync."""

    _left: list[Message]
    """Rule E5: what the eras before have left for this station, in its order."""
    _decision: Decision | None = None
    waiting: list[tuple[int, Record]]
    """Rule E7: records of later eras, and those of the current one until it is open."""
    _viewed: EraNumber
    """The era whose views were delivered last."""

    def begin(self) -> list[Effect]:
        """Start in the current era of the main order: the first one, or that in which a joiner takes part."""
        self._left, self.waiting = [], []
        self._viewed = self.era.number
        self.is_open = self.main.decided
        if not self.is_open and not self.main.needs_flush():
            self._decide_change()
        return self._go_on(0)

    @property
    def viewed(self) -> EraNumber:
        """The era whose views were delivered last, or with which the machine has begun."""
        return self._viewed

    # ---- records

    def on_pdus(self, now: int, accepted: Iterable[tuple[int, Iterable[Record]]]) -> list[Effect]:
        """Records accepted from links, of each PDU with the station that it comes from: all that are there, so that what follows
        from them goes out together."""
        self._inputs += 1
        for source, records in accepted:
            for record in records:
                self._take(source, record)
        return self._go_on(now)

    def _take(self, source: int, record: Record) -> None:
        """Rule E7."""
        number, current = era_of(record), self.era.number
        if number > current or (number == current and not self.is_open and not isinstance(record, Data)):
            self.waiting.append((source, record))
        elif isinstance(record, Data):
            self._take_data(record)
        elif isinstance(record, Relay):
            self._take_data(record.data)
        elif number == current:
            self._on_record(source, record)

    def _take_data(self, data: Data) -> None:
        """Data are taken in any era that is not closed, by its tables; a second time they are not."""
        era = next((era for era in self.main.eras if era.number == data.id.era), None)
        if era is None or self.last.get((data.program, data.order), 0) >= data.id.number or self._is_gone(data.id):
            self.dropped += 1
            return
        destinations = self.main.remaining(era.tables[data.order].destinations(data.groups), era)
        if self.me not in destinations or (data.id not in self.messages and self._is_decided(data.id.era)):
            self.dropped += 1
            return
        self._on_data(data, destinations)

    def _is_decided(self, era: EraNumber) -> bool:
        """Whether a change has decided what is left of an era: nothing can be added."""
        return era < self.era.number and self._decision is not None

    # ---- the main order

    def on_entry(self, now: int, entry: Entry) -> list[Effect]:
        """What has the next place in the main order. The station has taken what its links have accepted (rule E2)."""
        if isinstance(entry, Flush):
            if self.main.flush(entry):
                self._decide_change()
        elif isinstance(entry, Closed):
            if self.main.close(entry):
                self._all_closed()
        elif self.main.change(entry):
            self._freeze()
        return self._go_on(now)

    def _go_on(self, now: int) -> list[Effect]:
        self._deliver_left()
        return self.after(now)

    def _freeze(self) -> None:
        """Rules E2, E3: freeze the earlier eras, and report to all what this station knows of them."""
        self.is_open = False
        self._decision, self._left = None, []
        for m in self.messages.values():
            m.destinations = self._still(m)
        waiting, self.waiting = self.waiting, []
        for source, record in waiting:
            if era_of(record) >= self.era.number:
                self._take(source, record)
        if not self.main.needs_flush():
            self._decide_change()
        elif self.me in self.main.awaited:
            self.effects.append(Broadcast(Flush(self.era.number, self.me, self.clock, self._listed())))

    def _still(self, m: Message) -> frozenset[int]:
        """Rule E4: the destinations that are left, each in the incarnation that it had."""
        era = next((era for era in self.main.eras if era.number == m.id.era), None)
        return self.main.remaining(m.destinations, era) if era is not None else m.destinations

    def _listed(self) -> tuple[Listed, ...]:
        """Rule E3: each message of the eras before that is not finished here."""
        return tuple(
            Listed(m.id, m.program, m.order, m.groups, m.destinations, m.data is not None, m.time)
            for _, m in sorted(self.messages.items())
            if not m.finished and m.id.era < self.era.number
        )

    def _decide_change(self) -> None:
        """Rules E4, E5: all know the same; take it over, relay what others lack, and find what is left to deliver here."""
        decision = self._decision = self.main.decide()
        self.clock = max(self.clock, decision.clock)
        for name, m in list(self.messages.items()):
            if name.era < self.era.number and not m.finished and name not in decision.messages:
                self._drop(m)
        for name, listed in decision.messages.items():
            if name not in self.messages and self._is_gone(name):
                continue
            m = self.messages.setdefault(name, Message(name, listed.program, listed.order, listed.groups, listed.destinations))
            if not m.finished:
                m.time, m.destinations = listed.time, listed.destinations
                if self.me not in m.destinations and not self._is_own(m):
                    del self.messages[name]
                    self._unfinished[m.program.station, m.program.incarnation].pop(name, None)
        self._relay(decision)
        left = [self.messages[name] for name in decision.messages if name in self.messages]
        self._left = sorted((m for m in left if self._is_left(m)), key=lambda m: (m.id.era, m.key))

    def _drop(self, m: Message) -> None:
        """No station has its data, or it has no destination left."""
        if self._is_own(m):
            self.effects.append(Finished(m.id))
        m.finished, m.data = True, None
        self._unfinished[m.program.station, m.program.incarnation].pop(m.id, None)

    def _is_left(self, m: Message) -> bool:
        """Rule E5: for this station, and not delivered: each program's messages have come up to its last one."""
        return self.me in m.destinations and not m.delivered and m.id.number > self.last.get((m.program, m.order), 0)

    def _relay(self, decision: Decision) -> None:
        """Rule E5: data come from the originator while it is a member, else from the lowest station that holds them."""
        eras = {era.number: era for era in self.main.eras}
        for name, listed in decision.messages.items():
            holders = decision.holders[name]
            data = self.messages[name].data if name in self.messages else None
            if self.main.is_same_life(name.origin, eras[name.era]) or min(holders) != self.me or data is None:
                continue
            for station in sorted(listed.destinations - holders):
                self.effects.append(Send(station, Relay(data)))

    def _deliver_left(self) -> None:
        """Rules E5, E6: what is left, era by era, each followed by the views of the next one; then the era is open."""
        if self.is_open or self._decision is None:
            return
        for before, era in pairwise(self.main.eras):
            blocked: set[str] = set()
            for m in [m for m in self._left if m.id.era == before.number]:
                if m.data is None or m.order in blocked:
                    blocked.add(m.order)
                    continue
                self._left.remove(m)
                self._delivered(m)
            if blocked:
                return
            if self._viewed < era.number:
                self._viewed = era.number
                self.effects.append(DeliverView(era.number, self._decision.view_times[era.number]))
        self._open()

    def _open(self) -> None:
        """Rule E6."""
        self.is_open = True
        self._reindex()
        self.reports = defaultdict(dict)
        self.to_follow = []
        self.effects.append(Opened(self.era.number))
        if self.main.needs_flush():
            if self.me in self.main.awaited:
                self.effects.append(Broadcast(Closed(self.era.number, self.me, self._own_digests())))
        else:
            self._all_closed()
        waiting, self.waiting = self.waiting, []
        for source, record in waiting:
            self._take(source, record)

    def _own_digests(self) -> tuple[tuple[EraNumber, int, int], ...]:
        """Of own groups to which something was delivered: a program may be in some hundred, and each change ends with these."""
        own = {era.number: self._groups_in(era, self.me) for era in self.main.eras[:-1]}
        return tuple(
            (era, group, digest)
            for (era, group), digest in sorted(self.digests.items())
            if digest and group in own.get(era, frozenset())
        )

    def _groups_in(self, era: Era, station: int) -> frozenset[int]:
        """The groups of a station in an era in which it took part and still does."""
        if not self.main.is_same_life(station, era):
            return frozenset()
        return frozenset().union(*(table.groups_of(station) for table in era.tables.values()))

    def _all_closed(self) -> None:
        """Rule E6: everything before is stable, and forgotten."""
        self._compare_digests()
        self._finish_before()
        for era, origin in [key for key in self._gone if key[0] < self.era.number]:
            del self._gone[era, origin]
        for life in [life for life, under_way in self._unfinished.items() if not under_way]:
            del self._unfinished[life]
        self.main.forget()
        self.effects.append(Settled(self.era.number))
        self.digests = defaultdict(int, {k: v for k, v in self.digests.items() if k[0] >= self.era.number})

    def _finish_before(self) -> None:
        for name, m in sorted(self.messages.items()):
            if name.era < self.era.number:
                self._finish(m)
                self.messages.pop(name, None)

    def _compare_digests(self) -> None:
        """Who was in a group and does not name it has delivered nothing to it."""
        told = {z: {(e, g): digest for e, g, digest in c.digests} for z, c in sorted((self.main.closed or {}).items())}
        own = {(era.number, z): self._groups_in(era, z) for era in self.main.eras for z in told}
        for name, group in sorted({place for digests in told.values() for place in digests}):
            seen: dict[int, int] = {}
            for station, digests in told.items():
                if (name, group) in digests or group in own.get((name, station), ()):
                    seen[station] = digests.get((name, group), 0)
            (first, digest), *others = seen.items()
            for station, other in others:
                if other != digest:
                    text = f"group {group} in {name}: {first} has delivered {digest}, {station} {other}"
                    self.effects.append(Fenced(text))
