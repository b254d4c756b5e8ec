"""The machine with its open era in C (``proto/core/multi``): rules O1-O8 and S1-S4 per message there, changes of eras here.

``ordering.py`` says the same in Python, and is the twin: the worlds of tests/model/multicast drive both. When an era opens the
state goes to C, when a change freezes it the state comes back, and ``station.py`` goes on with it. Of messages of earlier eras
only what is needed until they are finished goes along; their bytes stay here.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from ..core._core import ffi, lib
from ..errors import InvariantError
from .codec import Encoded, decode, encode, era_bytes, era_number
from .main import MainOrder
from .records import Data, Deliver, Effect, Finished, Id, Record, Relay, Release, Send, era_of
from .sendqueue import SendQueue
from .station import Station
from .tables import ORDERS, EraNumber, Program, Table, TokenTable
from .work import Counts, Gone, Message, Work

STATIONS: Final = 64
EVENT: Final = struct.Struct("@QQPIIIHBBBB6x16I")
"""``struct zj_multi_event``."""
DELIVER: Final = lib.ZJ_MULTI_DELIVER
RELEASE: Final = lib.ZJ_MULTI_RELEASE
NEVER: Final = 2**64 - 1
_after: Final = lib.zj_multi_after
_events: Final = lib.zj_multi_events
_send: Final = lib.zj_multi_send


def bits(stations: Iterable[int]) -> int:
    """A bitmap of stations."""
    return sum(1 << z - 1 for z in stations)


def stations_of(bitmap: int) -> frozenset[int]:
    """The stations of a bitmap."""
    return frozenset(z for z in range(1, bitmap.bit_length() + 1) if bitmap >> z - 1 & 1)


class FastStation(Station):
    """``Station``, with the same inputs and effects. ``direct``: records stay in C for the links, which take them by ``flush``;
    else they are effects, too."""

    def __init__(
        self, station: int, main: MainOrder, window: int = 256, settle: int = 20_000_000, *, direct: bool = False
    ) -> None:
        super().__init__(station, main, window, settle)
        made = lib.zj_multi_create(station, self.incarnation, window, settle)
        if made == ffi.NULL:
            raise MemoryError("the machine of groups that overlap")
        self._multi = ffi.gc(made, lib.zj_multi_destroy)
        self.direct = direct
        self.is_fast = False
        """The open era is C's."""
        self._of_era = EraNumber(0, 0)
        """That era."""
        self._given: dict[int, Table] = {}
        """The tables that C has, by order."""
        self._old: dict[Id, Message] = {}
        """Messages of earlier eras that C knows by name only."""
        self.pointer = int(ffi.cast("uintptr_t", self._multi))
        """Of the machine in C, for the data path."""
        self._count = ffi.new("uint32_t *")
        self._size = ffi.new("uint64_t *")
        self._groups = ffi.new("uint32_t[16]")
        self._message = ffi.new("struct zj_message *")
        self._queue = SendQueue()

    def begin(self) -> list[Effect]:
        effects = super().begin()
        if self.is_open and not self.is_fast:
            self._reindex()
        return effects

    # ---- inputs

    def send(self, now: int, program: Program, groups: Iterable[int], content: bytes, safe: bool = False) -> Id | None:
        if not self.is_fast:
            return super().send(now, program, groups, content, safe)
        addressed = sorted(set(groups))
        at = self._groups
        for k, group in enumerate(addressed):
            at[k] = group
        order = ORDERS.index(self.main.era.order_of[addressed[0]])
        number = _send(self._multi, program.client, at, len(addressed), order, ffi.from_buffer(content), len(content), safe)
        return Id(self._of_era, self.me, number) if number else None

    def on_pdus(self, now: int, accepted: Iterable[tuple[int, Iterable[Record]]]) -> list[Effect]:
        if self.is_fast:
            lib.zj_multi_begin(self._multi)
        return super().on_pdus(now, accepted)

    def take_link(self, core: Any, index: int, source: int, incarnation: int) -> int:
        """Take what the core of a link has accepted from its other end; ``on_pdus`` follows. Returns how many were no records."""
        foreign, malformed = self._message, self._size
        malformed[0] = 0
        while lib.zj_multi_take(self._multi, core, index, source, incarnation, foreign, malformed):
            data = bytes(ffi.buffer(foreign.data, foreign.size))
            if not self.take_foreign(source, incarnation, Encoded(foreign.type, foreign.group, foreign.client, data)):
                malformed[0] += 1
        return int(malformed[0])

    def take_records(self, source: int, records: Iterable[Record]) -> None:
        """As ``take_link``, of a link that is not a core."""
        for record in records:
            self._take(source, record)

    def _take(self, source: int, record: Record) -> None:
        if not self.is_fast:
            super()._take(source, record)
            return
        era = era_of(record)
        if era > self._of_era:
            self.waiting.append((source, record))
        elif era < self._of_era or isinstance(record, Relay):
            self.dropped += isinstance(record, Data | Relay)
        else:
            station, incarnation = record.program[:2] if isinstance(record, Data) else (source, 0)
            encoded = encode(record)
            data = ffi.from_buffer(encoded.data)
            m = self._message
            m.type, m.group, m.client, m.size, m.data = encoded.type, encoded.group, encoded.client, len(encoded.data), data
            lib.zj_multi_record(self._multi, station, incarnation, m)

    def after(self, now: int) -> list[Effect]:
        if not self.is_fast:
            return super().after(now)
        effects, self.effects = self.effects, []
        self._last_sends.clear()
        _after(self._multi, now)
        self._take_events(effects)
        if not self.direct:
            self._take_records(effects)
        return effects

    # ---- what has come of it

    def _take_events(self, effects: list[Effect]) -> None:
        events = _events(self._multi, self._count)
        count = self._count[0]
        if not count:
            return
        era, now = self._of_era, era_bytes(self._of_era)
        for event in EVENT.iter_unpack(ffi.buffer(events, count * EVENT.size)):
            of, time, start, size, number, incarnation, client, kind, origin, order, n = event[:11]
            name = Id(era if of == now else era_number(of), origin, number)
            if kind == DELIVER:
                content = bytes(ffi.buffer(ffi.cast("uint8_t *", start), size)) if size else b""
                program = Program(origin, incarnation, client)
                effects.append(Deliver(name, program, ORDERS[order], event[11 : 11 + n], content, time))
            elif kind == RELEASE:
                effects.append(Release(name, ORDERS[order]))
            else:
                effects.append(Finished(name))
        lib.zj_multi_clear(self._multi)

    def take_foreign(self, source: int, incarnation: int, encoded: Encoded) -> bool:
        """A record that the data path has taken from a link, and that is not of the era that C has. False: it makes no sense."""
        record = decode(encoded, source, incarnation)
        if record is not None:
            self._take(source, record)
        return record is not None

    @property
    def ready(self) -> frozenset[int]:
        """Stations for which there are records."""
        bitmap = lib.zj_multi_ready(self._multi)
        return stations_of(bitmap) if bitmap else frozenset()

    def flush(self, station: int, queue: SendQueue | None) -> None:
        """Give the records for a station to the queue of its link; without one they are forgotten."""
        lib.zj_multi_flush(self._multi, station, queue.handle if queue is not None else ffi.NULL)

    def _take_records(self, effects: list[Effect]) -> None:
        for station in sorted(self.ready):
            self.flush(station, self._queue)
            for encoded in self._queue.take():
                record = decode(encoded, self.me, self.incarnation)
                if record is None:
                    raise InvariantError("C made a record that makes no sense")
                effects.append(Send(station, record))

    @property
    def deadline(self) -> int | None:
        if not self.is_fast:
            return super().deadline
        due = lib.zj_multi_due(self._multi)
        return due if due != NEVER else None

    # ---- the state, when an era opens

    def _reindex(self) -> None:
        self.counts, self.work = Counts(), Work()
        era = self._of_era = self.era.number
        lives = [self.era.part.get(z, 0) for z in range(1, STATIONS + 1)]
        lib.zj_multi_open(self._multi, era_bytes(era), self.clock, self.number, self._inputs, ffi.new("uint32_t[]", lives))
        for k, order in enumerate(ORDERS):
            self._give_table(k, self.era.tables[order])
        for (program, order), number in self.last.items():
            last = (program.incarnation, number, program.client, program.station, ORDERS.index(order))
            lib.zj_multi_last(self._multi, ffi.new("struct zj_multi_last *", last))
        self._give_old()
        for m in self._current():
            self._give(m)
        self.messages, self.last = {}, {}
        self._unfinished.clear()
        self.sequence.clear()
        self.due.clear()
        self.is_fast = True

    def _give_table(self, order: int, table: Table) -> None:
        """What differs from the table of this order that C has."""
        given = self._given.get(order)
        if given is table:
            return
        hosts = table.hosts if isinstance(table, TokenTable) else table.members
        followed = [table.followed(z) if z in table.members else 0 for z in range(1, STATIONS + 1)]
        lib.zj_multi_table(self._multi, order, bits(table.members), bits(hosts), bytes(followed))
        before = given.groups if given is not None else {}
        for group in before.keys() - table.groups.keys():
            self._give_group(order, group, frozenset())
        for group, members in table.groups.items():
            if before.get(group) is not members:
                self._give_group(order, group, members)
        self._given[order] = table

    def _give_group(self, order: int, group: int, members: frozenset[int]) -> None:
        lib.zj_multi_group(self._multi, order, group, bits(members))

    def _give_old(self) -> None:
        era = self._of_era
        under_way = [m for messages in self._unfinished.values() for m in messages.values() if m.id.era < era]
        self._old = {m.id: m for m in sorted(under_way, key=lambda m: m.id) if not m.finished}
        handles = {name: lib.zj_multi_old(self._multi, self._described(m)) for name, m in self._old.items()}
        for order, names in self.sequence.items():
            for name in names:
                if name in handles:
                    lib.zj_multi_wait(self._multi, handles[name])
                else:
                    at = (era_bytes(name.era), 0, 0, 0, 0, name.number, 0, 0, 0, 0, name.origin, ORDERS.index(order))
                    lib.zj_multi_wait_done(self._multi, ffi.new("struct zj_multi_message *", at))

    @staticmethod
    def _described(m: Message) -> Any:
        out = ffi.new("struct zj_multi_message *")
        out.era, out.number, out.origin, out.order = era_bytes(m.id.era), m.id.number, m.id.origin, ORDERS.index(m.order)
        out.incarnation, out.client = m.program.incarnation, m.program.client
        out.destinations, out.input, out.flags = bits(m.destinations), m.input, lib.ZJ_MULTI_SAFE if m.safe else 0
        return out

    def _give(self, m: Message) -> None:
        if m.data is None:
            return
        encoded = encode(m.data)
        out, data = self._described(m), ffi.from_buffer(encoded.data)
        out.group, out.size, out.data = encoded.group, len(encoded.data), data
        lib.zj_multi_add(self._multi, out)

    # ---- the state, when it is frozen

    def _freeze(self) -> None:
        if self.is_fast:
            self._take_back()
        super()._freeze()

    def _totals(self) -> Any:
        totals = ffi.new("struct zj_multi_totals *")
        lib.zj_multi_totals(self._multi, totals)
        return totals

    @property
    def n_dropped(self) -> int:
        """Records that contradict their era's tables."""
        return self.dropped + int(self._totals().dropped)

    @property
    def n_reports(self) -> int:
        """Messages of which reports are kept."""
        return int(self._totals().reports) if self.is_fast else len(self.reports)

    def renumber(self, number: int) -> None:
        """Go on after this number, as if so many messages had been sent: for tests."""
        self.number = number
        lib.zj_multi_renumber(self._multi, number)

    def known(self) -> dict[Id, Message]:
        """The messages that C has and that are not finished, of each originator by number."""
        count = self._totals().messages
        found = ffi.new("struct zj_multi_message[]", max(count, 1))
        lib.zj_multi_messages(self._multi, found)
        return {m.id: m for m in map(self._read, found[0:count])}

    def _read(self, x: Any) -> Message:
        if x.flags & lib.ZJ_MULTI_OLD:
            return self._old[Id(era_number(x.era), x.origin, x.number)]
        encoded = Encoded(0, x.group, x.client, bytes(ffi.buffer(x.data, x.size)))
        data = decode(encoded, x.origin, x.incarnation)
        if not isinstance(data, Data):
            raise InvariantError("C keeps a message that makes no sense")
        m = Message(data.id, data.program, data.order, data.groups, stations_of(x.destinations), data, data.safe, x.input)
        m.report = x.report if x.flags & lib.ZJ_MULTI_REPORTED else None
        m.time = x.time if x.flags & lib.ZJ_MULTI_DECIDED else None
        m.delivered = bool(x.flags & lib.ZJ_MULTI_DELIVERED)
        return m

    def _take_back(self) -> None:
        self._take_events(self.effects)
        self._take_records(self.effects)
        totals = self._totals()
        self.clock, self.number, self._inputs = totals.clock, totals.number, totals.input
        self.messages = messages = self.known()
        for m in messages.values():
            self._unfinished[m.program.station, m.program.incarnation][m.id] = m
        for name in self._old.keys() - messages.keys():
            self._gone[name.era, name.origin].add(name.number)
        self._old = {}
        self._take_digests()
        lasts = ffi.new("struct zj_multi_last[]", max(totals.lasts, 1))
        lib.zj_multi_lasts(self._multi, lasts)
        self.last = {(Program(x.origin, x.incarnation, x.client), ORDERS[x.order]): x.number for x in lasts[0 : totals.lasts]}
        self.sequence = defaultdict(list, {order: self.unreleased(k) for k, order in enumerate(ORDERS)})
        numbers = ffi.new("uint32_t[]", 2 * self.window)
        for origin in range(1, STATIONS + 1):
            count = lib.zj_multi_gone(self._multi, origin, numbers, 2 * self.window)
            if count:
                gone = self._gone[self._of_era, origin] = Gone(2 * self.window)
                for number in numbers[0:count]:
                    gone.add(number)
        self.is_fast = False

    def _take_digests(self) -> None:
        for order in range(len(ORDERS)):
            count = lib.zj_multi_digests(self._multi, order, ffi.NULL, ffi.NULL, 0)
            groups, digests = ffi.new("uint32_t[]", max(count, 1)), ffi.new("uint64_t[]", max(count, 1))
            lib.zj_multi_digests(self._multi, order, groups, digests, count)
            for group, digest in zip(groups[0:count], digests[0:count], strict=True):
                self.digests[self._of_era, group] = digest

    def unreleased(self, order: int) -> list[Id]:
        """Messages that are delivered and not released, in their order."""
        count = lib.zj_multi_unreleased(self._multi, order, ffi.NULL, 0)
        found = ffi.new("struct zj_multi_message[]", max(count, 1))
        lib.zj_multi_unreleased(self._multi, order, found, count)
        return [Id(era_number(x.era), x.origin, x.number) for x in found[0:count]]

    def _finish_before(self) -> None:
        if not self.is_fast:
            super()._finish_before()
            return
        lib.zj_multi_close(self._multi)
        self._take_events(self.effects)
        self._old = {}
