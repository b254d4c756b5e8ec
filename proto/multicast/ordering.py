"""Order and stability within one open era: rules O1-O8 and S1-S4 of docs/multicast.md.

What an input costs does not grow with the messages that are under way: each rule has a list of those that it may concern
(``work.py``). A message that is finished is forgotten; of its name a set of numbers remains, as large as the window.

Each rule is a method, so that a broken variant (broken.py) replaces one. An input ends with ``_advance``, which applies the rules
until none of them changes anything.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Final

from .main import MainOrder
from .records import Data, Decide, Deliver, Effect, Finished, Held, Id, Record, Relay, Release, Report, Send, Stable, Timed
from .tables import Era, EraNumber, Program, Table
from .work import Counts, Gone, Message, Tail, Work

NUMBER_MAX: Final = 2**32 - 1
"""Of a station's messages, from its start to its stop."""
U64: Final = 2**64 - 1
PLACE_MASK: Final = 0xFFFF
"""Bits of a message's number that its place has (client frame MESSAGE, ``index``)."""


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
        """The number of each program's last message delivered here, until that one is finished."""
        self.reports: defaultdict[Id, dict[int, int]] = defaultdict(dict)
        """At a coordinator."""
        self.to_follow: list[tuple[Id, int]] = []
        """DECIDEs of the token host that this station follows, with their times."""
        self.counts = Counts()
        self.work = Work()
        self._gone: defaultdict[tuple[EraNumber, int], Gone] = defaultdict(lambda: Gone(2 * window))
        """Messages that are finished and forgotten, by era and originator."""
        self._unfinished: dict[tuple[int, int], dict[Id, Message]] = defaultdict(dict)
        """By incarnation of the originator, in the order of their numbers."""
        self._last_sends: dict[int, int] = {}
        """Place of the last record for a station in ``effects``."""
        self.sequence: defaultdict[str, list[Id]] = defaultdict(list)
        """Delivered and not released at level preack, by order."""
        self.digests: defaultdict[tuple[EraNumber, int], int] = defaultdict(int)
        self.due: dict[int, int] = {}
        """When HELD and STABLE go to a station at the latest (rule S3)."""
        self.effects: list[Effect] = []
        self.dropped = 0
        """Records that contradict their era's tables."""
        self._inputs = 0
        """Counts what comes together (rule O8)."""

    @property
    def era(self) -> Era:
        return self.main.era

    @property
    def unfinished(self) -> list[Message]:
        """Own messages that are under way."""
        return list(self._unfinished[self.me, self.incarnation].values())

    @property
    def deadline(self) -> int | None:
        """When ``on_time`` has something to do."""
        return min(self.due.values(), default=None)

    @property
    def n_dropped(self) -> int:
        return self.dropped

    def _all_finished(self) -> int:
        """Rule S4: all own messages up to this number are finished."""
        first = next(iter(self._unfinished[self.me, self.incarnation]), None)
        return first.number - 1 if first is not None else self.number

    def _is_own(self, m: Message) -> bool:
        return (m.program.station, m.program.incarnation) == (self.me, self.incarnation)

    # ---- inputs; each returns its effects in their order

    def send(self, now: int, program: Program, groups: Iterable[int], content: bytes, safe: bool = False) -> Id | None:
        """Rule O1; ``after`` follows, after one or several. Returns the message's name, or None if the window is full or the
        groups are empty."""
        groups = tuple(sorted(set(groups)))
        order = self.era.order_of[groups[0]]
        destinations = self.era.tables[order].destinations(groups)
        finished = self._all_finished()
        if self.number - finished >= self.window or not destinations or not self._may_use(self.number + 1):
            return None
        self.number += 1
        safe = safe or self._presses(self.number - finished)
        name = Id(self.era.number, self.me, self.number)
        data = Data(name, program, order, groups, self.clock, content, safe, finished)
        self._add(Message(name, program, order, groups, destinations, data, safe, self._inputs))
        for station in sorted(self._receivers(destinations) - {self.me}):
            self._send(station, data)
        return name

    def _presses(self, unfinished: int) -> bool:
        """Rule S3: more than half of the window is unfinished, over all links, each of which may owe little."""
        return unfinished > self.window // 2

    def _may_use(self, number: int) -> bool:
        """A number whose low bits begin anew waits until all before are finished, so that messages which share a time have places
        in the order of their numbers. The last number of all is never used: a record would not hold it."""
        return number <= NUMBER_MAX and (number & PLACE_MASK != 0 or not self._unfinished[self.me, self.incarnation])

    def after(self, now: int) -> list[Effect]:
        """Carry out what an input has made possible."""
        self._inputs += 1
        if self.is_open:
            self._advance()
        self._settle(now)
        effects, self.effects = self.effects, []
        self._last_sends.clear()
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
        known.data, known.safe, known.input = data, data.safe, self._inputs
        self._add(known)

    def _add(self, m: Message) -> None:
        """A message has come, or has been sent: it concerns these rules, if its era is open here."""
        self.messages[m.id] = m
        self._unfinished[m.program.station, m.program.incarnation][m.id] = m
        if self.is_open and m.id.era == self.era.number:
            self._index(m)

    def _index(self, m: Message) -> None:
        coordinator = self._coordinator(m)
        if self.me in self._proposers(m):
            self.work.unreported[m.program, m.order].append(m)
        if coordinator == self.me:
            self.work.undecided[m.id.origin, m.groups].append(m)
        if m.id.origin not in m.destinations:
            if coordinator == self.me != m.id.origin:
                self.counts.outside[m.id.origin, m.order].append(m)
                self.counts.peers.add((m.id.origin, m.order))
            elif self._is_own(m) and coordinator != self.me:
                self.counts.sent_to[coordinator, m.order].append(m)

    def _reindex(self) -> None:
        """An era opens: its messages that have come already, by origin and number."""
        self.counts, self.work = Counts(), Work()
        for m in self._current():
            self._index(m)

    def _on_finished(self, data: Data) -> None:
        """Rule S4: the originator knows that all have delivered what it has sent before."""
        under_way = self._unfinished[data.program.station, data.program.incarnation]
        while under_way:
            first = next(iter(under_way.values()))
            if first.id.number > data.finished:
                break
            self._finish(first)
            under_way.pop(first.id, None)

    def _on_record(self, source: int, record: Record) -> None:
        if isinstance(record, Timed) and record.count > self.window:
            self.dropped += 1
        elif isinstance(record, Report):
            self._on_report(source, record)
        elif isinstance(record, Decide):
            self._on_decide(source, record)
        elif isinstance(record, Held):
            self._on_held(source, record)
        elif isinstance(record, Stable) and record.sent:
            sent = self.counts.sent_to[source, record.order]
            for m in sent.take(record.k):
                self._finish(m)
            sent.used = sent.taken
        elif isinstance(record, Stable):
            for name in self.counts.decided_by[source, record.order].take(record.k):
                if name in self.messages:
                    self._finish(self.messages[name])

    def _on_report(self, source: int, record: Report) -> None:
        """Rule O4. Reports may come before the data; as many are kept as can be right."""
        for name in record.ids():
            known = self.messages.get(name)
            if known is not None:
                fits = self._coordinator(known) == self.me and source in self._proposers(known)
            else:
                room = len(self.reports) < 2 * self.window * len(self.era.part)
                fits = room and name.origin in self.era.part and not self._is_gone(name)
            if fits and (name not in self.reports or source not in self.reports[name]):
                self.reports[name][source] = record.time
            else:
                self.dropped += 1

    def _on_held(self, source: int, record: Held) -> None:
        """Rule S1."""
        for m in self.counts.decided_to[source, record.order].take(record.k):
            m.held_by.add(source)
            self.work.perhaps_stable.append(m)

    def _on_decide(self, source: int, record: Decide) -> None:
        """Rules O5, O7."""
        table = self._table(record.order)
        leads = self.me in table.members and source == table.followed(self.me)
        self._raise_clock(record.time)
        for name in record.ids():
            known = self.messages.get(name)
            fits = leads or (known is not None and source == self._coordinator(known))
            if not fits or (known is not None and known.time is not None):
                self.dropped += 1
                continue
            self.counts.decided_by[source, record.order].append(name)
            if known is not None:
                self._set_time(known, record.time)
            if leads:
                self.to_follow.append((name, record.time))
        self.counts.peers.add((source, record.order))

    def _set_time(self, m: Message, time: int) -> None:
        """It is decided: its place is no longer that of the own report."""
        if m.time is None and m.report is not None:
            self.work.decided(m)
        m.time = time
        if m.report is not None and not m.delivered:
            self.work.push(m.order, self._key(m), m)

    def _raise_clock(self, time: int) -> None:
        """Rule O5: what is reported later has a later time."""
        self.clock = max(self.clock, time)

    # ---- the rules

    def _advance(self) -> None:
        moves = True
        while moves:
            moves = False
            for rule in (self._report, self._decide, self._deliver, self._follow, self._stabilise):
                while rule():
                    moves = True

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
        for queue in list(self.work.unreported.values()):
            if not queue or self._waits(queue[0]):
                continue
            run = self._run(queue)
            time = max([self.clock, *(r.data.seen for r in run if r.data is not None)]) + 1
            self.clock = time
            for m in run:
                queue.popleft()
                m.report = time
                if m.time is None:
                    self.work.reported(m)
                self.work.push(m.order, self._key(m), m)
                self._say(self._coordinator(m), m, Report, time)
            if not queue:
                del self.work.unreported[run[0].program, run[0].order]
            return True
        return False

    def _waits(self, m: Message) -> bool:
        """Rule O3: an earlier message of the same program, for this station and to other groups, is not decided here. Those that
        are not reported either stand before it in the queue."""
        return any(groups != m.groups for groups in self.work.groups[m.program, m.order])

    def _run(self, queue: deque[Message]) -> list[Message]:
        """Rule O8: consecutive messages to the same groups that came together."""
        run = [queue[0]]
        for m in islice(queue, 1, None):
            last = run[-1]
            fits = m.id.number == last.id.number + 1 and m.groups == last.groups and m.input == last.input
            if not fits or self._waits(m):
                break
            run.append(m)
        return run

    def _decide(self) -> bool:
        """Rule O4: with the reports of all proposers, decide the largest; by number for one origin and the same groups."""
        for same, queue in list(self.work.undecided.items()):
            m = queue[0]
            if not self._is_reported(m):
                continue
            queue.popleft()
            if not queue:
                del self.work.undecided[same]
            time = self._largest(m)
            self._set_time(m, time)
            self._raise_clock(time)
            for station in sorted(self._decide_to(m)):
                self._say(station, m, Decide, time)
            self.work.perhaps_stable.append(m)
            return True
        return False

    def _is_reported(self, m: Message) -> bool:
        return self.reports[m.id].keys() >= self._proposers(m)

    def _largest(self, m: Message) -> int:
        return max(self.reports[m.id].values())

    def _decide_to(self, m: Message) -> frozenset[int]:
        """Rule O4: the stations to which the coordinator sends the time."""
        return self._proposers(m) - {self.me}

    def _deliver(self) -> bool:
        """Rule O6: a proposer delivers the least of what it has reported, once that is decided."""
        for order in self.era.tables:
            least = self.work.least(order, self._key)
            if least is not None and least.time is not None:
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
        self.work.perhaps_stable.append(m)
        self.last[m.program, m.order] = m.id.number
        self.sequence[m.order].append(m.id)
        for group in m.groups:
            self.digests[m.id.era, group] = add_digest(self.digests[m.id.era, group], m.id)
        content = m.data.content if m.data is not None else b""
        self.effects.append(Deliver(m.id, m.program, m.order, m.groups, content, m.time or 0))

    # ---- level preack

    def _stabilise(self) -> bool:
        """Rule S1: what all destinations have delivered is stable, as far as the coordinator knows."""
        while self.work.perhaps_stable:
            m = self.work.perhaps_stable.pop()
            if not m.finished and m.id.era == self.era.number and self._coordinator(m) == self.me and self._is_stable(m):
                self._finish(m)
                return True
        return False

    def _is_stable(self, m: Message) -> bool:
        told = (self._proposers(m) | self._followers(m)) - {self.me}
        return m.time is not None and (m.delivered or self.me not in m.destinations) and self._have_said_held(m, told)

    def _have_said_held(self, m: Message, stations: Iterable[int]) -> bool:
        return m.held_by.issuperset(stations)

    def _is_held(self, name: Id) -> bool:
        """Rule S1: delivered here and HELD by the followers."""
        m = self.messages.get(name)
        if m is None:
            return self._is_gone(name)
        return m.finished or (m.delivered and self._have_said_held(m, self._followers(m)))

    def _is_gone(self, name: Id) -> bool:
        """Whether a message that is not known here was finished. What is two windows below another one of its originator is."""
        gone = self._gone.get((name.era, name.origin))
        return gone is not None and name.number in gone

    def _finish(self, m: Message) -> None:
        """All destinations have delivered it: no station will need it again."""
        if m.finished:
            return
        m.finished = True
        self._unfinished[m.program.station, m.program.incarnation].pop(m.id, None)
        if self._is_own(m):
            self.effects.append(Finished(m.id))
        self._release(m.order)
        self._forget(m)

    def _forget(self, m: Message) -> None:
        m.data = None
        self.reports.pop(m.id, None)
        self.messages.pop(m.id, None)
        if self.last.get((m.program, m.order)) == m.id.number:
            del self.last[m.program, m.order]
        self._gone[m.id.era, m.id.origin].add(m.id.number)

    def _release(self, order: str) -> None:
        """Level preack comes in the order of delivery."""
        sequence = self.sequence[order]
        while sequence and (sequence[0] not in self.messages or self.messages[sequence[0]].finished):
            self.effects.append(Release(sequence.pop(0), order))

    def _sent_by(self, origin: int, order: str) -> Tail[Message]:
        """Rule S2: messages of an originator that is outside their groups, which this station decides."""
        return self.counts.outside[origin, order]

    # ---- HELD and STABLE

    def _settle(self, now: int) -> None:
        """Rule S3: with the next record, at once for who waits or whose window presses, after ``settle``, or at half a window."""
        if not self.is_open:
            self.due.clear()
            return
        sends = {
            e.to for e in self.effects if isinstance(e, Send) and not isinstance(e.record, Relay)
        }  # of eras before: no company
        for station in sorted({z for z, _ in self.counts.peers}):
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

    def _owed(self, station: int) -> list[tuple[Held | Stable, list[Message]]]:
        """The records that could be sent to a station, each with the messages that are new in it and still known."""
        owed: list[tuple[Held | Stable, list[Message]]] = []
        era, counts = self.era.number, self.counts
        for order in [order for order, table in self.era.tables.items() if table.groups]:
            peer = (station, order)
            names, held = counts.decided_by[peer], counts.held_to[peer]
            k = held + _prefix(self._is_held(name) for name in names.since(held))
            if k > held:
                owed.append((Held(era, order, k), self._named(names.between(held, k))))
            messages, stable = counts.decided_to[peer], counts.stable_to[peer]
            k = stable + _prefix(m.finished for m in messages.since(stable))
            if k > stable:
                owed.append((Stable(era, order, k), messages.between(stable, k)))
            messages, stable = self._sent_by(station, order), counts.sent_stable_to[peer]
            k = stable + _prefix(m.finished for m in messages.since(stable))
            if k > stable:
                owed.append((Stable(era, order, k, sent=True), messages.between(stable, k)))
        return owed

    def _named(self, names: list[Id]) -> list[Message]:
        return [self.messages[name] for name in names if name in self.messages]

    def _count_sent(self, station: int, record: Held | Stable) -> Held | Stable:
        peer, counts = (station, record.order), self.counts
        if isinstance(record, Held):
            counts.held_to[peer] = record.k
            counts.decided_by[peer].used = record.k
        elif record.sent:
            counts.sent_stable_to[peer] = record.k
            counts.outside[peer].taken = counts.outside[peer].used = record.k
        else:
            counts.stable_to[peer] = record.k
            counts.decided_to[peer].used = record.k
        return record

    # ---- sending

    def _say(self, station: int, m: Message, kind: type[Report] | type[Decide], time: int) -> None:
        """A report or a decision, to a station or to oneself; consecutive ones share a record (rule O8)."""
        if station == self.me:
            self.reports[m.id][self.me] = time
            return
        if kind is Decide:
            self.counts.decided_to[station, m.order].append(m)
            self.counts.peers.add((station, m.order))
        at = self._last_sends.get(station)
        last = self.effects[at] if at is not None else None
        if isinstance(last, Send) and isinstance(last.record, kind) and self._continues(last.record, m, time):
            self.effects[at or 0] = Send(station, replace(last.record, count=last.record.count + 1))
            return
        self._send(station, kind(m.id.era, m.order, m.id.origin, m.id.number, 1, time))

    def _continues(self, record: Timed, m: Message, time: int) -> bool:
        follows = record.origin == m.id.origin and record.number + record.count == m.id.number
        if not follows or record.time != time or record.order != m.order or record.era != m.id.era:
            return False
        before = self.messages.get(m.id._replace(number=m.id.number - 1))
        return before is not None and before.groups == m.groups

    def _send(self, station: int, record: Record) -> None:
        self._last_sends[station] = len(self.effects)
        self.effects.append(Send(station, record))

    def _send_first(self, station: int, records: list[Held | Stable]) -> None:
        """Before what goes to the station already: who learns of the next message knows what is stable (rule M11). Relays stay
        first: they are of eras before, and let the other station open this one."""
        under_way = [(i, e.record) for i, e in enumerate(self.effects) if isinstance(e, Send) and e.to == station]
        at = next((i for i, record in under_way if not isinstance(record, Relay)), len(self.effects))
        self.effects[at:at] = [Send(station, record) for record in records]


def add_digest(before: int, name: Id) -> int:
    """The digest of a group's messages, 64 bits, after one more (``add_to_digests`` of proto/core/multi/multi.c)."""
    one = _mix(name.era.instance << 32 | name.era.change) ^ (name.origin << 32 | name.number)
    return _mix(before + _mix(one) & U64)


def _mix(x: int) -> int:
    """One to one on 64 bits."""
    for _ in range(2):
        x = (x ^ x >> 32) * 0xD6E8FEB86659FD93 & U64
    return x ^ x >> 32


def _prefix(flags: Iterable[bool]) -> int:
    """How many are true before the first that is not."""
    k = 0
    for flag in flags:
        if not flag:
            break
        k += 1
    return k
