"""Order and stability within one open era: rules O1-O8 and S1-S4 of docs/multicast.md.

Each rule is a method, so that a broken variant (broken.py) replaces one. An input ends with ``_advance``, which applies the rules
until none of them changes anything.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from .main import MainOrder
from .records import Data, Decide, Deliver, Effect, Finished, Held, Id, Record, Release, Report, Send, Stable, Timed
from .tables import Era, EraNumber, Program, Table

Peer = tuple[int, str]
"""The other end of a link, and an order."""


@dataclass
class Message:
    """A message that this station knows."""

    id: Id
    program: Program
    order: str
    groups: tuple[int, ...]
    destinations: frozenset[int]
    data: Data | None = None
    safe: bool = False
    pdu: int = 0
    """The PDU that it came in."""
    report: int | None = None
    """The time at which this station has reported it."""
    time: int | None = None
    """The time decided."""
    delivered: bool = False
    finished: bool = False

    @property
    def key(self) -> tuple[int, int, int]:
        """Rule O5: its place within its era; while undecided that of the own report."""
        time = self.time if self.time is not None else self.report
        return (time or 0, self.id.origin, self.id.number)


@dataclass
class Counts:
    """What HELD and STABLE count on the links, in one era (rule S1)."""

    decided_by: defaultdict[Peer, list[Id]] = field(default_factory=lambda: defaultdict(list))
    """Messages of the DECIDEs that came from a station."""
    decided_to: defaultdict[Peer, list[Id]] = field(default_factory=lambda: defaultdict(list))
    """Messages of the DECIDEs that went to a station."""
    held_to: defaultdict[Peer, int] = field(default_factory=lambda: defaultdict(int))
    held_by: defaultdict[Peer, int] = field(default_factory=lambda: defaultdict(int))
    stable_to: defaultdict[Peer, int] = field(default_factory=lambda: defaultdict(int))
    sent_stable_to: defaultdict[Peer, int] = field(default_factory=lambda: defaultdict(int))


class Ordering:
    """One station in its current era. ``station.py`` adds the change of eras."""

    def __init__(self, station: int, main: MainOrder, window: int = 256, settle: int = 20_000_000) -> None:
        self.me = station
        self.incarnation = main.members.get(station, 0)
        self.main = main
        self.window = window
        self.settle = settle
        self.clock = main.clock
        self.is_open = True
        self.number = 0
        self.messages: dict[Id, Message] = {}
        self.last: dict[tuple[Program, str], int] = {}
        """The number of each program's last message delivered here."""
        self.reports: defaultdict[Id, dict[int, int]] = defaultdict(dict)
        """At a coordinator."""
        self.to_follow: list[tuple[Id, int]] = []
        """DECIDEs of the token host that this station follows, with their times."""
        self.counts = Counts()
        self.sequence: defaultdict[str, list[Id]] = defaultdict(list)
        """Delivered and not released at level preack, by order."""
        self.digests: defaultdict[tuple[EraNumber, int], int] = defaultdict(int)
        self.due: dict[int, int] = {}
        """When HELD and STABLE go to a station at the latest (rule S3)."""
        self.effects: list[Effect] = []
        self.dropped = 0
        """Records that contradict their era's tables."""
        self._pdus = 0

    @property
    def era(self) -> Era:
        return self.main.era

    @property
    def unfinished(self) -> list[Message]:
        """Own messages that are under way."""
        return [m for m in self.messages.values() if self._is_own(m) and not m.finished]

    @property
    def deadline(self) -> int | None:
        """When ``on_time`` has something to do."""
        return min(self.due.values(), default=None)

    def _all_finished(self) -> int:
        """Rule S4: all own messages up to this number are finished."""
        return min((m.id.number for m in self.unfinished), default=self.number + 1) - 1

    def _is_own(self, m: Message) -> bool:
        return (m.program.station, m.program.incarnation) == (self.me, self.incarnation)

    # ---- inputs; each returns its effects in their order

    def send(self, now: int, program: Program, groups: Iterable[int], content: bytes, safe: bool = False) -> Id | None:
        """Rule O1. Returns the message's name, or None if the window is full or the groups are empty."""
        groups = tuple(sorted(set(groups)))
        order = self.era.order_of[groups[0]]
        destinations = self.era.tables[order].destinations(groups)
        finished = self._all_finished()
        if self.number - finished >= self.window or not destinations:
            return None
        self.number += 1
        name = Id(self.era.number, self.me, self.number)
        data = Data(name, program, order, groups, self.clock, content, safe, finished)
        self._pdus += 1
        self.messages[name] = Message(name, program, order, groups, destinations, data, safe, self._pdus)
        for station in sorted(self._receivers(destinations) - {self.me}):
            self._send(station, data)
        return name

    def after(self, now: int) -> list[Effect]:
        """Carry out what an input has made possible."""
        if self.is_open:
            self._advance()
        self._settle(now)
        effects, self.effects = self.effects, []
        return effects

    def on_time(self, now: int) -> list[Effect]:
        """The deadline has come. Harmless if it has not."""
        return self.after(now)

    # ---- records of the current era, which is open

    def _on_data(self, data: Data, destinations: frozenset[int]) -> None:
        self._on_finished(data)
        known = self.messages.get(data.id)
        if known is not None and (known.data is not None or known.delivered):
            self.dropped += 1
            return
        if known is None:
            known = Message(data.id, data.program, data.order, data.groups, destinations)
            self.messages[data.id] = known
        known.data, known.safe, known.pdu = data, data.safe, self._pdus

    def _on_finished(self, data: Data) -> None:
        """Rule S4: the originator knows that all have delivered what it has sent before."""
        for m in list(self.messages.values()):
            same_life = m.id.origin == data.id.origin and m.program.incarnation == data.program.incarnation
            if same_life and m.id.number <= data.finished:
                self._finish(m)

    def _on_record(self, source: int, record: Record) -> None:
        if isinstance(record, Report):
            for name in record.ids():
                self.reports[name][source] = record.time
        elif isinstance(record, Decide):
            self._on_decide(source, record)
        elif isinstance(record, Held):
            self.counts.held_by[source, record.order] = record.k
        elif isinstance(record, Stable) and record.sent:
            for message in self._sent_to(source, record.order)[: record.k]:
                self._finish(message)
        elif isinstance(record, Stable):
            for name in self.counts.decided_by[source, record.order][: record.k]:
                if name in self.messages:
                    self._finish(self.messages[name])

    def _on_decide(self, source: int, record: Decide) -> None:
        """Rules O5, O7."""
        self._raise_clock(record.time)
        for name in record.ids():
            self.counts.decided_by[source, record.order].append(name)
            known = self.messages.get(name)
            if known is not None:
                known.time = record.time
            if source == self._table(record.order).followed(self.me):
                self.to_follow.append((name, record.time))

    def _raise_clock(self, time: int) -> None:
        """Rule O5: what is reported later has a later time."""
        self.clock = max(self.clock, time)

    # ---- the rules

    def _advance(self) -> None:
        while self._report() or self._decide() or self._deliver() or self._follow() or self._stabilise():
            pass

    def _table(self, order: str) -> Table:
        return self.era.tables[order]

    def _current(self) -> list[Message]:
        """Unfinished messages of the open era, by origin and number."""
        number = self.era.number
        now = [m for m in self.messages.values() if m.id.era == number and not m.finished]
        return sorted(now, key=lambda m: (m.id.origin, m.id.number))

    def _proposers(self, m: Message) -> frozenset[int]:
        return self._table(m.order).proposers(m.destinations)

    def _coordinator(self, m: Message) -> int:
        return self._table(m.order).coordinator(m.destinations, m.id.origin)

    def _receivers(self, destinations: frozenset[int]) -> frozenset[int]:
        """The stations to which the records of a message are sent."""
        return destinations

    def _report(self) -> bool:
        """Rules O3, O8: report what has come, once what its program sent before it is decided."""
        for m in self._current():
            if m.data is not None and m.report is None and self.me in self._proposers(m) and not self._waits(m):
                time = max([self.clock, *(r.data.seen for r in self._run(m) if r.data is not None)]) + 1
                self.clock = time
                for part in self._run(m):
                    part.report = time
                    self._say(self._coordinator(part), part, Report, time)
                return True
        return False

    def _waits(self, m: Message) -> bool:
        """Rule O3: an earlier message of the same program, for this station and to other groups, is not decided here."""
        return any(
            e.program == m.program
            and e.order == m.order
            and e.id.number < m.id.number
            and e.groups != m.groups
            and self.me in e.destinations
            and e.time is None
            for e in self._current()
        )

    def _run(self, first: Message) -> list[Message]:
        """Rule O8: consecutive messages to the same groups that came in one PDU."""
        run = [first]
        while True:
            name = run[-1].id._replace(number=run[-1].id.number + 1)
            m = self.messages.get(name)
            fits = m is not None and m.data is not None and m.groups == first.groups and m.pdu == first.pdu and m.report is None
            if m is None or not fits or self._waits(m):
                return run
            run.append(m)

    def _decide(self) -> bool:
        """Rule O4: with the reports of all proposers, decide the largest; by number for one origin and the same groups."""
        undecided: set[tuple[int, tuple[int, ...]]] = set()
        for m in self._current():
            if self._coordinator(m) != self.me or m.time is not None:
                continue
            same = (m.id.origin, m.groups)
            if self._is_reported(m) and same not in undecided:
                m.time = self._largest(m)
                self._raise_clock(m.time)
                for station in sorted(self._decide_to(m)):
                    self._say(station, m, Decide, m.time)
                return True
            undecided.add(same)
        return False

    def _is_reported(self, m: Message) -> bool:
        return set(self.reports[m.id]) >= self._proposers(m)

    def _largest(self, m: Message) -> int:
        return max(self.reports[m.id].values())

    def _decide_to(self, m: Message) -> frozenset[int]:
        """Rule O4: the stations to which the coordinator sends the time."""
        return self._proposers(m) - {self.me}

    def _deliver(self) -> bool:
        """Rule O6: a proposer delivers the least of what it has reported, once that is decided."""
        for order in self.era.tables:
            waiting = [m for m in self._current() if m.order == order and m.report is not None and not m.delivered]
            if waiting:
                least = min(waiting, key=self._key)
                if least.time is not None:
                    self._hand_over(least)
                    return True
        return False

    def _key(self, m: Message) -> tuple[int, int, int]:
        return m.key

    def _follow(self) -> bool:
        """Rule O7: a follower delivers in the order of its token host's DECIDEs. One whose data are missing blocks the others."""
        if not self.to_follow:
            return False
        name, time = self.to_follow[0]
        m = self.messages.get(name)
        if m is None or m.data is None:
            return False
        del self.to_follow[0]
        m.time = time
        self._hand_over(m)
        return True

    def _hand_over(self, m: Message) -> None:
        """Deliver, and send the decision to the followers (rule O7)."""
        self._delivered(m)
        for station in sorted(self._followers(m)):
            self._say(station, m, Decide, m.time or 0)

    def _followers(self, m: Message) -> frozenset[int]:
        if self.me not in self._proposers(m):
            return frozenset()
        return self._table(m.order).followers(self.me, m.destinations)

    def _delivered(self, m: Message) -> None:
        m.delivered = True
        self.last[m.program, m.order] = m.id.number
        self.sequence[m.order].append(m.id)
        for group in m.groups:
            self.digests[m.id.era, group] = _digest(self.digests[m.id.era, group], m.id)
        content = m.data.content if m.data is not None else b""
        self.effects.append(Deliver(m.id, m.program, m.order, m.groups, content, m.time or 0))

    # ---- level preack

    def _stabilise(self) -> bool:
        """Rule S1: what all destinations have delivered is stable, as far as the coordinator knows."""
        for m in self._current():
            if self._coordinator(m) == self.me and self._is_stable(m):
                self._finish(m)
                return True
        return False

    def _is_stable(self, m: Message) -> bool:
        told = (self._proposers(m) | self._followers(m)) - {self.me}
        return m.time is not None and (m.delivered or self.me not in m.destinations) and self._have_said_held(m, told)

    def _have_said_held(self, m: Message, stations: Iterable[int]) -> bool:
        return all(m.id in self.counts.decided_to[z, m.order][: self.counts.held_by[z, m.order]] for z in stations)

    def _is_held(self, name: Id) -> bool:
        """Rule S1: delivered here and HELD by the followers."""
        m = self.messages.get(name)
        return m is not None and (m.finished or (m.delivered and self._have_said_held(m, self._followers(m))))

    def _finish(self, m: Message) -> None:
        """All destinations have delivered it: no station will need it again."""
        if m.finished:
            return
        m.finished = True
        if self._is_own(m):
            self.effects.append(Finished(m.id))
        self._release(m.order)
        self._forget(m)

    def _forget(self, m: Message) -> None:
        m.data = None
        self.reports.pop(m.id, None)

    def _release(self, order: str) -> None:
        """Level preack comes in the order of delivery."""
        sequence = self.sequence[order]
        while sequence and (sequence[0] not in self.messages or self.messages[sequence[0]].finished):
            self.effects.append(Release(sequence.pop(0)))

    def _sent_to(self, coordinator: int, order: str) -> list[Message]:
        """Rule S2: own messages of this era that this station is no destination of, and the other one decides."""
        return [m for m in self._outside(self.me, order) if self._coordinator(m) == coordinator != self.me]

    def _sent_by(self, origin: int, order: str) -> list[Message]:
        """The same at the coordinator."""
        return [m for m in self._outside(origin, order) if self._coordinator(m) == self.me != origin]

    def _outside(self, origin: int, order: str) -> list[Message]:
        number = self.era.number
        of = [m for i, m in self.messages.items() if i.origin == origin and i.era == number and m.order == order]
        return sorted((m for m in of if origin not in m.destinations), key=lambda m: m.id.number)

    # ---- HELD and STABLE

    def _settle(self, now: int) -> None:
        """Rule S3: with the next record, at once for who waits, after ``settle``, or at half a window."""
        if not self.is_open:
            self.due.clear()
            return
        sends = {e.to for e in self.effects if isinstance(e, Send)}
        for station in sorted({z for z, _ in self._peers()}):
            owed = self._owed(station)
            if not owed:
                self.due.pop(station, None)
                continue
            self.due.setdefault(station, now + self.settle)
            covered = [m for _, messages in owed for m in messages]
            urgent = any(m.safe for m in covered) or len(covered) >= max(self.window // 2, 1)
            if urgent or station in sends or now >= self.due[station]:
                del self.due[station]
                self._send_first(station, [self._count_sent(station, record) for record, _ in owed])

    def _peers(self) -> set[Peer]:
        counts = self.counts
        origins = {(m.id.origin, m.order) for m in self.messages.values()}
        return {p for p in set(counts.decided_by) | set(counts.decided_to) | origins if p[0] != self.me}

    def _owed(self, station: int) -> list[tuple[Held | Stable, list[Message]]]:
        """The records that could be sent to a station, each with the messages that are new in it."""
        owed: list[tuple[Held | Stable, list[Message]]] = []
        era, counts = self.era.number, self.counts
        for order in [order for order, table in self.era.tables.items() if table.groups]:
            peer = (station, order)
            decided_by = counts.decided_by[peer]
            k = _prefix(self._is_held(name) for name in decided_by)
            if k > counts.held_to[peer]:
                owed.append((Held(era, order, k), self._named(decided_by[counts.held_to[peer] : k])))
            decided_to = counts.decided_to[peer]
            k = _prefix(name in self.messages and self.messages[name].finished for name in decided_to)
            if k > counts.stable_to[peer]:
                owed.append((Stable(era, order, k), self._named(decided_to[counts.stable_to[peer] : k])))
            sent = self._sent_by(station, order)
            k = _prefix(m.finished for m in sent)
            if k > counts.sent_stable_to[peer]:
                owed.append((Stable(era, order, k, sent=True), sent[counts.sent_stable_to[peer] : k]))
        return owed

    def _named(self, names: list[Id]) -> list[Message]:
        return [self.messages[name] for name in names if name in self.messages]

    def _count_sent(self, station: int, record: Held | Stable) -> Held | Stable:
        peer = (station, record.order)
        if isinstance(record, Held):
            self.counts.held_to[peer] = record.k
        elif record.sent:
            self.counts.sent_stable_to[peer] = record.k
        else:
            self.counts.stable_to[peer] = record.k
        return record

    # ---- sending

    def _say(self, station: int, m: Message, kind: type[Report] | type[Decide], time: int) -> None:
        """A report or a decision, to a station or to oneself; consecutive ones share a record (rule O8)."""
        if station == self.me:
            self.reports[m.id][self.me] = time
            return
        if kind is Decide:
            self.counts.decided_to[station, m.order].append(m.id)
        last = next((e for e in reversed(self.effects) if isinstance(e, Send) and e.to == station), None)
        if last is not None and isinstance(last.record, kind) and self._continues(last.record, m, time):
            record = replace(last.record, count=last.record.count + 1)
            self.effects[self.effects.index(last)] = Send(station, record)
            return
        self._send(station, kind(m.id.era, m.order, m.id.origin, m.id.number, 1, time))

    def _continues(self, record: Timed, m: Message, time: int) -> bool:
        first = self.messages.get(Id(record.era, record.origin, record.number))
        follows = record.origin == m.id.origin and record.number + record.count == m.id.number
        return follows and record.time == time and record.order == m.order and first is not None and first.groups == m.groups

    def _send(self, station: int, record: Record) -> None:
        self.effects.append(Send(station, record))

    def _send_first(self, station: int, records: list[Held | Stable]) -> None:
        """Before what goes to the station already: who learns of the next message knows what is stable (rule M11)."""
        at = next((i for i, e in enumerate(self.effects) if isinstance(e, Send) and e.to == station), len(self.effects))
        self.effects[at:at] = [Send(station, record) for record in records]


def _digest(before: int, name: Id) -> int:
    """The digest of a group's messages, 64 bits, after one more."""
    data = struct.pack(">QIIII", before, *name.era, name.origin, name.number)
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def _prefix(flags: Iterable[bool]) -> int:
    """How many are true before the first that is not."""
    k = 0
    for flag in flags:
        if not flag:
            break
        k += 1
    return k
