"""The directory's state machine: what each message and view does to the rows (rule W2).

``State`` is driven by the order alone. It reads no clock, and its rows, sums and outcomes are equal at all stations at equal
places.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...errors import UsageError, invariant
from . import canon
from .draft import Change, Draft, lease_key, place_key, read_waiting
from .entries import (
    DEFAULT_ZONE,
    NOWHERE,
    Entry,
    Place,
    Who,
    Zone,
    entry_row,
    lease_of,
    parse_place,
    place_text,
    read_entry,
    read_zone,
    zone_row,
)
from .leases import end, leases_numbered, leases_of
from .messages import Due, End, Holding, Id, Malformed, Message, Next, TooNew, Update, decode
from .names import ANYBODY
from .operate import Operating, Refused
from .operations import NAMES_MAX
from .store import SUMMED, Store, Table
from .sums import MAIN, MODULUS, row_sum
from .tally import Tally
from .timers import FIRST_DUE, Member, fire, majority_time, out_key, take_next, timer_keys

OUTCOMES_MAX: Final = 65536
GONE_MAX: Final = 65536
KNOWN_MAX: Final = 10_000
"""Entries kept decoded, beside their rows."""
_LAST: Final = "~"
"""Larger than every key."""


class Outcome(NamedTuple):
    """What has become of an update. code: "" if it was done. operation: number of the one that was refused. text: what was
    wrong; the address that ``take`` gave; ``waiting`` for an exclusive name."""

    place: Place
    code: str = ""
    operation: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What one input did.

    message:  what it was; None: a view, or the start.
    outcome:  of an update, and of what is malformed.
    repeated: the update was applied before; nothing was changed, and the outcome is the former one.
    changes:  by name.
    anywhere: effective targets of any name may have changed: the view, or what is out of use, is another one.
    skipped:  the place is not after the state's; nothing was changed.
    """

    place: Place
    message: Message | Malformed | TooNew | None = None
    outcome: Outcome | None = None
    repeated: bool = False
    changes: tuple[Change, ...] = ()
    anywhere: bool = False
    skipped: bool = False


class State:
    """One copy of the directory.

    store:     its rows. After an input, and before ``save``, the store has changes that ``META`` does not describe; the caller's
               transaction takes both. When a transaction is rolled back, make a new State on the store.
    names_max: cluster option.
    home:      the zone that new names are in unless another one is named.
    """

    draft_class: type[Draft] = Draft
    operating_class: type[Operating] = Operating

    def __init__(self, store: Store, names_max: int = NAMES_MAX, home: str = DEFAULT_ZONE) -> None:
        self.store = store
        self.names_max = names_max
        self.home_zone = Zone(home, writers=(ANYBODY,))
        """While it has no row of its own."""
        self.place: Place = NOWHERE
        """Place of the last input."""
        self.main = self.rest = 0
        """Sums of rule E8."""
        self.stopped = 0
        """The later format of a message; no message after it may be applied (rule S7)."""
        self.members: dict[Who, Member] = {}
        self.zones: dict[str, Zone] = {}
        self.owners: dict[str, str] = {}
        """Zone by pattern."""
        self.counts: dict[str, int] = {}
        """Names by zone; "": of all."""
        self.leases = self.outs = self.outcomes = self.gone = 0
        """Numbers of rows."""
        self.floor: Place = NOWHERE
        """All removals after this place are in GONE."""
        self._begun = False
        """No view has come since a START, which knows the processes with a state only: there are other members."""
        self._up: frozenset[int] = frozenset()
        self._time = 0
        self._next_due: int | None = None
        self._known: dict[str, tuple[Entry | None, bytes | None]] = {}
        self._outcomes: tuple[set[str], deque[str]] | None = None
        """Keys of the outcomes, and these in the order of their places. None: not read yet."""
        self._load()

    # ---- reading

    def entry(self, name: str) -> Entry | None:
        return self.known(name)[0]

    def known(self, name: str) -> tuple[Entry | None, bytes | None]:
        """An entry and its row. What changes is often changed again soon, so the latest are kept."""
        found = self._known.get(name)
        if found is None:
            row = self.store.get(Table.ENTRY, name)
            if row is None:
                return None, None
            found = (read_entry(row), row)
            self._keep(name, found)
        return found

    def _keep(self, name: str, found: tuple[Entry | None, bytes | None]) -> None:
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[name] = found

    def zone(self, name: str) -> Zone | None:
        return self.zones.get(name)

    def outcome(self, update: Id) -> Outcome | None:
        """What has become of an update; None: it is not among the last ``OUTCOMES_MAX`` (rule W5)."""
        key = f"{update.client}.{update.counter}"
        row = self.store.get(Table.OUTCOME, key) if key in self._outcome_keys()[0] else None
        return _read_outcome(row) if row is not None else None

    def _outcome_keys(self) -> tuple[set[str], deque[str]]:
        """Nearly every update is a new one, for which the store is not asked."""
        if self._outcomes is None:
            found = sorted((parse_place(canon.load(row)["p"]), key) for key, row in self.store.scan(Table.OUTCOME, "", _LAST))
            self._outcomes = ({key for _, key in found}, deque(key for _, key in found))
        return self._outcomes

    def is_out(self, address: str) -> bool:
        """Whether an address, or ``station:k``, is out of use."""
        return self.outs > 0 and self.store.get(Table.OUT, address) is not None

    def stations_up(self) -> Collection[int]:
        """Stations with a directory process in the group's view."""
        return self._up

    def active(self) -> list[Who]:
        """The active holders, the lowest first."""
        return sorted(who for who, m in self.members.items() if m.active)

    @property
    def time(self) -> int:
        """Directory time, seconds since 1970: what the clocks of most active holders have reached, by their reports."""
        return self._time

    def next_due(self) -> int:
        """The earliest instant at which something is to happen, seconds since 1970; 0: none is known."""
        if self._next_due is None:
            self._next_due = 0
            for key, _ in self.store.scan(Table.TIMER, FIRST_DUE, _LAST):
                self._next_due = int(key[:13])
                break
        return self._next_due

    def due_message(self, me: Who, now: int) -> Due | None:
        """The message that process ``me`` has to send when its wall clock shows ``now``, seconds since 1970 (rule T1). Call it
        when that reaches ``next_due``, and again each second until directory time has advanced: a message may be lost with its
        instance."""
        member, due = self.members.get(me), self.next_due()
        if member is None or not member.active:
            return None
        if member.due < due <= now:
            return Due(now)
        # The sender of NEXT for a schedule that waits has to know the time: after a START no holder has reported it yet.
        waits = not member.due and any(True for _ in self.store.scan(Table.TIMER, "", FIRST_DUE))
        return Due(now) if waits else None

    def without_next(self) -> Iterator[Entry]:
        """Entries whose schedule waits for a NEXT by the lowest active holder (rule T3). None while directory time is not
        known: a NEXT would name the first instant that was missed, not the last."""
        if not self.time:
            return
        for key, _ in list(self.store.scan(Table.TIMER, "", FIRST_DUE)):
            entry = self.entry(key.split(" ")[1])
            if entry is not None:
                yield entry

    # ---- inputs

    def apply(self, place: Place, sender: Who, data: bytes, message: Message | None = None) -> Result:
        """A message of ``zenjun.dir`` at its place; ``message`` is what ``decode`` makes of it, if the caller knows that. Raises
        UsageError if the state has stopped; nothing that others send raises."""
        if self.stopped:
            raise UsageError(f"too-old: a message has format {self.stopped}")
        if place <= self.place:
            return Result(place, skipped=True)
        found = decode(data) if message is None else message
        if isinstance(found, TooNew):
            self.stopped = found.format
            return Result(place, found)
        self.place = place
        if isinstance(found, Update):
            return self._update(place, sender, found)
        if isinstance(found, Malformed):
            return Result(place, found, Outcome(place, "malformed"))
        return self._other(place, sender, found)

    def _other(self, place: Place, sender: Who, message: Message) -> Result:
        draft = self.draft_class(self, place)
        if isinstance(message, End):
            self._end(draft, leases_numbered(draft, sender, message.numbers))
        elif isinstance(message, Next):
            member = self.members.get(sender)
            if member is not None and member.active:
                self._take_next(draft, message)
        elif isinstance(message, Due | Holding):
            self._hear(draft, sender, message)
        return self._finish(draft, message)

    def on_view(self, place: Place, members: Iterable[Who], joined: Iterable[Who] = ()) -> Result:
        """A view of ``zenjun.dir``. The leases of a process that is not in it have ended, and of one that has come again."""
        if self.stopped:
            raise UsageError(f"too-old: a message has format {self.stopped}")
        if place <= self.place:
            return Result(place, skipped=True)
        self.place = place
        here, new = set(members), set(joined)
        gone = self._left(here, new)
        kept = {who: m for who, m in self.members.items() if who in here and who not in gone}
        self._begun = False
        return self._change_members(self.draft_class(self, place), gone, {who: kept.get(who, Member(False, 0)) for who in here})

    def on_enter(self, place: Place, who: Who) -> Result:
        """Mode seven: a process has got the state, and is an active holder. The leases of its former incarnation have ended."""
        if place <= self.place:
            return Result(place, skipped=True)
        self.place = place
        gone = [who] if who in self.members else []
        return self._change_members(self.draft_class(self, place), gone, {**self.members, who: Member(True, 0)})

    def on_left(self, place: Place, gone: Iterable[Who]) -> Result:
        """Mode seven: these processes have left."""
        if place <= self.place:
            return Result(place, skipped=True)
        self.place = place
        left = sorted(set(gone) & self.members.keys())
        kept = {who: member for who, member in self.members.items() if who not in left}
        return self._change_members(self.draft_class(self, place), left, kept)

    def _left(self, here: set[Who], new: set[Who]) -> list[Who]:
        """The processes that have left, those among them that have come again."""
        return sorted(who for who in self.members if who not in here or who in new)

    def _end(self, draft: Draft, leases: dict[str, set[str]]) -> None:
        end(draft, leases)

    def _take_next(self, draft: Draft, message: Next) -> None:
        take_next(draft, message)

    def on_start(self, place: Place, members: Iterable[Who], views: bool = True) -> Result:
        """A START: this state is the group's from here on, and ``members`` are in its view. All leases have ended (rule C1): they
        belonged to processes of former incarnations, whose numbers the present ones may have.

        views: the members are those of the group's views, so that who sends before the next one is a member. Not in mode seven,
        whose members enter one by one."""
        self.place = max(self.place, place)
        draft = self.draft_class(self, self.place)
        found: dict[str, set[str]] = {}
        for key, _ in self.store.scan(Table.LEASE, "", _LAST):
            station, client, _ = key.split(" ")[0].split(".")
            found.update(leases_of(draft, (int(station), int(client))))
        self._end(draft, found)
        self._begun = views
        return self._change_members(draft, [], {who: Member(False, 0) for who in members})

    def _change_members(self, draft: Draft, gone: list[Who], members: dict[Who, Member]) -> Result:
        leases: dict[str, set[str]] = {}
        for who in gone:
            leases.update(leases_of(draft, who))
        self._end(draft, leases)
        self._set_members(draft, members)
        return self._finish(draft, None, anywhere=True)

    # ---- updates

    def _update(self, place: Place, sender: Who, update: Update) -> Result:
        before = self.outcome(update.id)
        if before is not None:
            return Result(place, update, before, repeated=True)
        new = self._begun and sender not in self.members
        draft = self._draft_of(sender, new, place)
        operating = self.operating_class(draft, sender, sender in self.members, update)
        try:
            operating.run(update.operations)
        except Refused as refused:
            outcome = Outcome(place, refused.code, operating.number, refused.text)
            draft = self._draft_of(sender, new, place)
        else:
            outcome = Outcome(place, text=operating.text)
        self._remember(draft, update.id, outcome)
        return self._finish(draft, update, outcome)

    def _draft_of(self, sender: Who, new: bool, place: Place) -> Draft:
        """For an update of this process, which is a member if it is new: it has sent before it heard that a state has begun, and
        its HOLDING(no) comes later; but the group gives a place to messages of members only."""
        draft = self.draft_class(self, place)
        if new:
            self._set_members(draft, {**self.members, sender: Member(False, 0)})
        return draft

    def _remember(self, draft: Draft, update: Id, outcome: Outcome) -> None:
        key = f"{update.client}.{update.counter}"
        draft.rows[(Table.OUTCOME, key)] = _outcome_row(outcome)
        if self.outcomes >= OUTCOMES_MAX:
            draft.rows[(Table.OUTCOME, self._outcome_keys()[1][0])] = None

    # ---- members and time

    def _hear(self, draft: Draft, sender: Who, message: Due | Holding) -> None:
        """DUE counts from active holders only, and one that has just become active has not reported its time. HOLDING(no) of a
        process that is no member yet: the group has it, but the state has begun by a START, which knows the processes with a
        state only."""
        member = self.members.get(sender)
        if member is None:
            self._hear_stranger(draft, sender, message)
            return
        if isinstance(message, Holding):
            new = member if member.active == message.active else Member(message.active, 0)
        elif member.active and message.time > member.due:
            new = Member(True, message.time)
        else:
            return
        if new != member:
            self._set_members(draft, {**self.members, sender: new})

    def _hear_stranger(self, draft: Draft, sender: Who, message: Due | Holding) -> None:
        if isinstance(message, Holding) and not message.active:
            self._set_members(draft, {**self.members, sender: Member(False, 0)})

    def _set_members(self, draft: Draft, members: dict[Who, Member]) -> None:
        self.members = members
        self._up = frozenset(station for station, _ in members)
        rows = [[who[0], who[1], int(m.active), m.due] for who, m in sorted(members.items())]
        draft.rows[(Table.SCALAR, "view")] = canon.encode({"m": rows, "b": 1} if self._begun else {"m": rows})
        self._time = self._majority()

    def _majority(self) -> int:
        return majority_time(self.members)

    def _finish(self, draft: Draft, message: Message | None, outcome: Outcome | None = None, anywhere: bool = False) -> Result:
        """Commit, then let the timers that are due take effect at the same place: this input may have set them, or moved time."""
        anywhere = anywhere or any(table is Table.OUT for table, _ in draft.rows)
        changes = self._commit(draft)
        if 0 < self.next_due() <= self.time:
            due = [key for key, _ in self.store.scan(Table.TIMER, FIRST_DUE, f"{self.time + 1:013d}")]
            second = self.draft_class(self, draft.place)
            fire(second, due)
            anywhere = anywhere or any(table is Table.OUT for table, _ in second.rows)
            merged = {c.name: c for c in changes}
            for c in self._commit(second):
                merged[c.name] = Change(c.name, merged[c.name].old if c.name in merged else c.old, c.new)
            changes = tuple([c for _, c in sorted(merged.items())])
        return Result(draft.place, message, outcome, False, changes, anywhere)

    # ---- commit

    def _commit(self, draft: Draft) -> tuple[Change, ...]:
        changes = []
        for name in sorted(draft.new) if len(draft.new) > 1 else draft.new:
            old, old_row = draft.old[name]
            new = draft.new[name]
            if old is None and new is None:
                continue
            row = draft.entry_rows.get(name)
            self._write(Table.ENTRY, name, old_row, row, draft.place)
            if new is not None:
                self._keep(name, (new, row))
            self._index(old, new, draft.place)
            changes.append(Change(name, old, new))
        for zone, number in draft.counts.items():
            if number:
                self._count(zone, number)
        for zone_name, new_zone in draft.zones.items():
            self._write(
                Table.ZONE,
                zone_name,
                self.store.get(Table.ZONE, zone_name),
                zone_row(new_zone) if new_zone is not None else None,
                draft.place,
            )
            self._set_zone(zone_name, new_zone)
        for (table, key), row in draft.rows.items():
            is_new = table is Table.OUTCOME and key not in self._outcome_keys()[0]
            before = None if is_new else self.store.get(table, key)
            if before != row:
                self._write(table, key, before, row, draft.place)
                self._index_row(table, key, before, row)
        return tuple(changes)

    def _write(self, table: Table, key: str, old: bytes | None, new: bytes | None, place: Place) -> None:
        change = 0
        if old is not None:
            change -= row_sum(table, key, old)
        if new is not None:
            change += row_sum(table, key, new)
            self.store.put(table, key, new, place)
        elif old is not None:
            self.store.delete(table, key)
            if table is not Table.OUTCOME:  # the oldest go by themselves
                self._bury(table, key, place)
        if table is Table.ENTRY:
            self._known.pop(key, None)
        if table in MAIN:
            self.main = (self.main + change) % MODULUS
        else:
            self.rest = (self.rest + change) % MODULUS

    def _bury(self, table: Table, key: str, place: Place) -> None:
        self.store.put(Table.GONE, f"{place_key(place)} {table} {key}", b"", place)
        self.gone += 1
        if self.gone > GONE_MAX:
            for oldest, _ in self.store.scan(Table.GONE, "", _LAST):
                self.store.delete(Table.GONE, oldest)
                clock, station, index = oldest.split(" ")[0].split(".")
                self.floor = (int(clock), int(station), int(index))
                self.gone -= 1
                break

    def _index(self, old: Entry | None, new: Entry | None, place: Place) -> None:
        """Keep LEASE and TIMER in step with an entry."""
        before, after = _lease_keys(old), _lease_keys(new)
        if before != after:
            for key in sorted(before - after):
                self.store.delete(Table.LEASE, key)
            for key in sorted(after - before):
                self.store.put(Table.LEASE, key, b"", place)
            self.leases += len(after) - len(before)
        self._retime(timer_keys(old), timer_keys(new), place)

    def _index_row(self, table: Table, key: str, old: bytes | None, new: bytes | None) -> None:
        if table is Table.WAITING:
            self._index_waiting(key, old, -1)
            self._index_waiting(key, new, 1)
        elif table is Table.OUT:
            self.outs += (new is not None) - (old is not None)
            self._retime(_out_keys(key, old), _out_keys(key, new), self.place)
        elif table is Table.OUTCOME:
            self.outcomes += (new is not None) - (old is not None)
            if self._outcomes is not None:
                keys, ages = self._outcomes
                if old is None:
                    keys.add(key)
                    ages.append(key)
                elif new is None and ages[0] == key:
                    keys.discard(key)
                    ages.popleft()
                else:
                    self._outcomes = None

    def _index_waiting(self, key: str, row: bytes | None, number: int) -> None:
        if row is None:
            return
        lease = f"{lease_key(read_waiting(row).lease)} {key.split(' ')[0]}"
        self.leases += number
        # A lease that gets the name it waits for goes from one row to the other: whichever was written first has made the key.
        entry = self.entry(key.split(" ")[0])
        if number > 0:
            self.store.put(Table.LEASE, lease, b"", self.place)
        elif lease not in _lease_keys(entry):
            self.store.delete(Table.LEASE, lease)

    def _retime(self, before: list[str], after: list[str], place: Place) -> None:
        if before == after:
            return
        for key in before:
            if key not in after:
                self.store.delete(Table.TIMER, key)
        for key in after:
            if key not in before:
                self.store.put(Table.TIMER, key, b"", place)
        self._next_due = None

    def _set_zone(self, name: str, zone: Zone | None) -> None:
        before = self.zones.pop(name, None)
        for pattern in before.patterns if before else ():
            if self.owners.get(pattern) == name:
                del self.owners[pattern]
        if zone is not None:
            self.zones[name] = zone
            self.owners.update(dict.fromkeys(zone.patterns, name))

    # ---- between process and store

    def save(self) -> None:
        """Write what is not in rows: place, sums, counts. To be called before the store's transaction is committed."""
        row = {
            "p": place_text(self.place),
            "f": place_text(self.floor),
            "m": f"{self.main:032x}",
            "s": f"{self.rest:032x}",
            "c": {zone: number for zone, number in self.counts.items() if number},
            "l": self.leases,
            "u": self.outs,
            "o": self.outcomes,
            "g": self.gone,
        }
        self.store.put(Table.META, "state", canon.encode(row), self.place)

    def _load(self) -> None:
        row = self.store.get(Table.META, "state")
        if row is None:
            return
        r = canon.load(row)
        self.place, self.floor = parse_place(r["p"]), parse_place(r["f"])
        self.main, self.rest = int(r["m"], 16), int(r["s"], 16)
        self.counts = dict(r["c"])
        self.leases, self.outs, self.outcomes, self.gone = r["l"], r["u"], r["o"], r["g"]
        self._load_scalars()

    def _load_scalars(self) -> None:
        self.zones, self.owners, self._next_due = {}, {}, None
        for name, row in self.store.scan(Table.ZONE, "", _LAST):
            self._set_zone(name, read_zone(row))
        found = self.store.get(Table.SCALAR, "view")
        view = canon.load(found) if found is not None else {"m": []}
        members, self._begun = view["m"], bool(view.get("b"))
        self.members = {(station, client): Member(bool(active), due) for station, client, active, due in members}
        self._up = frozenset(station for station, _ in self.members)
        self._time = self._majority()

    @classmethod
    def rebuild(
        cls, store: Store, place: Place, names_max: int = NAMES_MAX, home: str = DEFAULT_ZONE, tally: Tally | None = None
    ) -> State:
        """The state at ``place`` of a store that has the summed rows only, as a snapshot brings them: sums, counts and the other
        tables are made from these. Compare ``main`` and ``rest`` with the sums that came along.

        tally: of all these rows, if the caller has counted them as they came. Raises ValueError for rows that are none of a
        directory."""
        for table in Table:
            invariant(table in SUMMED or store.count(table) == 0, "the store has rows beside those of a snapshot")
        if tally is None:
            tally = Tally()
            for table in sorted(SUMMED):
                tally.take((table, key, row) for key, row in store.scan(table, "", _LAST))
        state = cls(store, names_max, home)
        state.place = state.floor = place
        state._load_scalars()
        state.main, state.rest, state.outcomes = tally.main % MODULUS, tally.rest % MODULUS, tally.outcomes
        for zone, number in tally.names.items():
            state._count(zone, number)
        for table, key, row in sorted(tally.special):
            if table is Table.ENTRY:
                entry = _check_entry(key, row)
                state._index(None, entry, place)
                state._count(entry.zone)
            else:
                state._index_row(table, key, None, row)
        return state

    def merge(self, place: Place, removed: Iterable[tuple[Table, str]], rows: Iterable[tuple[Table, str, bytes]]) -> None:
        """Take a delta, after which this is the state at ``place``. It is wrong if the state has another past than the donor's:
        the caller compares the sums, on a copy or in a transaction. Raises ValueError for rows that are none of a directory."""
        for table, key in removed:
            self._replace_row(table, key, None, place)
        for table, key, row in rows:
            self._replace_row(table, key, row, place)
        self._outcomes = None  # a delta's rows are in no order
        while self.outcomes > OUTCOMES_MAX:
            self._replace_row(Table.OUTCOME, self._outcome_keys()[1][0], None, place)
        for key, _ in list(self.store.scan(Table.GONE, "", _LAST)):
            self.store.delete(Table.GONE, key)
        self.gone, self.place, self.floor = 0, place, place
        self._load_scalars()

    def _replace_row(self, table: Table, key: str, row: bytes | None, place: Place) -> None:
        before = self.store.get(table, key)
        if before == row:
            return
        old = _check_entry(key, before) if table is Table.ENTRY and before is not None else None
        new = _check_entry(key, row) if table is Table.ENTRY and row is not None else None
        self._write(table, key, before, row, place)
        if table is Table.ENTRY:
            self._index(old, new, place)
            for entry, number in ((old, -1), (new, 1)):
                if entry is not None:
                    self._count(entry.zone, number)
        else:
            self._index_row(table, key, before, row)

    def _count(self, zone: str, number: int = 1) -> None:
        self.counts[zone] = self.counts.get(zone, 0) + number
        self.counts[""] = self.counts.get("", 0) + number


def _check_entry(key: str, row: bytes) -> Entry:
    """The entry of a row that came from another station. Raises ValueError for one that no station has written."""
    try:
        entry = read_entry(row)
    except (KeyError, TypeError, IndexError):
        raise ValueError(f"the row of {key} is none of an entry") from None
    if entry.name != key or entry_row(entry) != row:
        raise ValueError(f"the row of {key} is none of this entry")
    return entry


def _lease_keys(entry: Entry | None) -> frozenset[str]:
    """Keys in LEASE of an entry's targets."""
    if entry is None or all(not t.until[:1].isdigit() for t in entry.targets):
        return frozenset()
    leases = [lease_of(t) for t in entry.targets]
    return frozenset([f"{lease_key(lease)} {entry.name}" for lease in leases if lease is not None])


def _out_keys(address: str, row: bytes | None) -> list[str]:
    end = int(row) if row is not None else 0
    return [out_key(address, end)] if end else []


def _outcome_row(outcome: Outcome) -> bytes:
    if not outcome.code and not outcome.text:
        return b'{"c":"","i":0,"p":"%d.%d.%d","t":""}' % outcome.place
    return canon.encode({"p": place_text(outcome.place), "c": outcome.code, "i": outcome.operation, "t": outcome.text})


def _read_outcome(row: bytes) -> Outcome:
    r = canon.load(row)
    return Outcome(parse_place(r["p"]), r["c"], r["i"], r["t"])
