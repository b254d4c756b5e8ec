"""This station among those that have groups of these orders: when it takes part, and with which state.

Fed by the main order of the daemon: view events, changes of groups, group messages FLUSH, CLOSED and STATE. While no group of
these orders has a member, every view event that admits stations lets all members take part at once, and nothing is sent.
Otherwise a station that was admitted waits: the SNAPSHOTs of the groups say that the orders are in use
(``GroupFlag.MULTICAST``), and when no era but the present one is open the lowest station that takes part sends STATE. At its
place all members take part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..service.base import ViewEvent as StationView
from ..service.groups import Change, Groups
from ..wire import ORDER_NAMES, Ordering, group_id
from .codec import (
    CLOSED,
    FLUSH,
    Part,
    decode_digests,
    decode_listed,
    decode_lives,
    decode_part,
    encode_closed,
    encode_flush,
    encode_state,
)
from .fast import FastStation
from .links import Pair
from .main import MainOrder
from .records import Broadcast, Closed, Effect, Entry, Flush, Id, Joined, Left, Record, State, Synced, ViewEvent
from .tables import ORDERS, TABLES, Era, EraNumber, Program

MULTICAST: Final = frozenset({Ordering.ABCAST, Ordering.TOKEN})
"""Orderings of groups whose messages only their members receive."""
WINDOW: Final = 256
"""Messages of an originator that are not finished, at most."""
SETTLE_NS: Final = 20_000_000
"""Rule S3: HELD and STABLE that nobody waits for are sent after this time."""


class Member:
    """One station. Inputs return effects, in order; ``Broadcast`` among them is to be sent by ``group_messages``."""

    def __init__(self, station: int, groups: Groups) -> None:
        self.station = station
        self.machine: FastStation | None = None
        """None: this station takes no part, or does not know yet that it does."""
        self._groups = groups
        self._view: ViewEvent | None = None
        """While it takes no part: the view since which ``_log`` has all entries; None in it is a message that is kept."""
        self._log: list[Entry | None] = []
        self._users: set[int] = set()
        """Stations that take part, as far as one that does not knows."""
        self._parts: dict[tuple[int, int, EraNumber], list[Part]] = {}
        self._stated: EraNumber | None = None
        self._admitted: set[int] = set()
        """Stations that were admitted since all SNAPSHOTs had come last, at this place of the order."""
        self.malformed = 0

    # ---- instances

    def open(self, instance: int, members: dict[int, int], *, joined: bool) -> list[Effect]:
        """An instance has started. joined: this station has been admitted; its view event comes first."""
        self.close()
        return [] if joined else self._start(MainOrder.begin(instance, members))

    def close(self) -> None:
        """The instance has ended for this station."""
        self.machine, self._view, self._stated = None, None, None
        self._log.clear()
        self._users.clear()
        self._parts.clear()
        self._admitted.clear()

    def _start(self, main: MainOrder) -> list[Effect]:
        self.machine = FastStation(self.station, main, WINDOW, SETTLE_NS, direct=True)
        self._log.clear()
        self._view = None
        return self.machine.begin()

    @property
    def is_used(self) -> bool:
        """A group of these orders has a member, or an era that had one is not closed. Equal at all stations that take part."""
        machine = self.machine
        return machine is not None and (len(machine.main.eras) > 1 or machine.era.is_used)

    # ---- the main order

    def on_view(self, now: int, view: StationView, syncing: bool) -> list[Effect]:
        """A view event is at this place; the groups have taken it. syncing: they awaited SNAPSHOTs before it."""
        members = {z: life for z, life in enumerate(view.incarnations, 1) if life}
        self._admitted = (self._admitted if syncing else set()) & set(members) - set(view.joined)
        entry = ViewEvent(view.instance, tuple(members.items()), tuple(sorted(self._admitted)))
        self._admitted |= set(view.joined)
        asks = bool(view.joined) or syncing
        for station in view.left:
            self._parts = {key: parts for key, parts in self._parts.items() if key[0] != station}
        if self.machine is not None:
            if asks and not self.is_used:
                return self._start(MainOrder.begin(view.instance, members))
            return self._enter(now, entry)
        if asks:
            self._view, self._users = entry, set()
            self._log.clear()
            return []
        self._log.append(entry)
        if self._users and not self._users & set(members):
            self._view = entry
            self._log.clear()
            self._users.clear()
            return self.on_groups_known(now)
        self._users &= set(members)
        return []

    def on_users(self, stations: Iterable[int]) -> None:
        """The SNAPSHOTs of these stations say that they take part, and that the orders are in use."""
        self._users |= set(stations)

    def on_kept(self) -> None:
        """A group message is at this place that is kept until the groups are known."""
        if self.machine is None:
            self._log.append(None)

    def on_groups_known(self, now: int, caught_up: Iterable[list[Change]] = ()) -> list[Effect]:
        """The groups have taken a message. caught_up: if they have become known with it, what each message that was kept has
        changed. If nobody uses the orders, this station takes part since its view."""
        if self.machine is not None:
            return self._offer_state()
        for changes in caught_up:
            at = self._log.index(None)
            self._log[at : at + 1] = [self._entry(change) for change in changes if change.ordering in MULTICAST]
        if self._view is None or self._groups.syncing or not self._groups.known or self._users:
            return []
        log = [entry for entry in self._log if entry is not None]
        effects = self._start(MainOrder.begin(self._view.instance, dict(self._view.members)))
        for entry in log:
            effects += self._enter(now, entry)
        return effects

    def on_change(self, now: int, change: Change) -> list[Effect]:
        """A program has joined a group of these orders, or left it."""
        return self._enter(now, self._entry(change))

    def _entry(self, change: Change) -> Joined | Left:
        ((station, client, _),) = change.joined or change.left
        program = Program(station, self._members().get(station, 0), client)
        group = group_id(change.group)
        return Joined(program, group, ORDER_NAMES[change.ordering]) if change.joined else Left(program, group)

    def _members(self) -> dict[int, int]:
        if self.machine is not None:
            return self.machine.main.members
        last = next((e for e in reversed(self._log) if isinstance(e, ViewEvent)), self._view)
        return dict(last.members) if last is not None else {}

    def on_group_message(self, now: int, station: int, data: bytes) -> list[Effect]:
        """A part of a FLUSH, CLOSED or STATE of a station is at this place."""
        part = decode_part(data)
        if part is None:
            self.malformed += 1
            return []
        key = (station, part.operation, part.opens)
        parts = self._parts.setdefault(key, [])
        parts.append(part)
        if not part.last:
            return []
        del self._parts[key]
        body = b"".join(p.body for p in parts)
        if part.operation == FLUSH:
            listed = decode_listed(body)
            return self._bad() if listed is None else self._enter(now, Flush(part.opens, station, part.clock, listed))
        if part.operation == CLOSED:
            digests = decode_digests(body)
            return self._bad() if digests is None else self._enter(now, Closed(part.opens, station, digests))
        lives = decode_lives(body)
        return self._bad() if lives is None else self._on_state(now, State(part.opens, part.clock, lives))

    def _bad(self) -> list[Effect]:
        self.malformed += 1
        return []

    def _enter(self, now: int, entry: Entry) -> list[Effect]:
        if self.machine is None:
            self._log.append(entry)
            return []
        return self.machine.on_entry(now, entry) + self._offer_state()

    # ---- stations that were admitted

    def _offer_state(self) -> list[Effect]:
        """Send STATE if this is the station to do it, once in each era."""
        machine = self.machine
        if machine is None:
            return []
        main, era = machine.main, machine.era
        waits = any(era.part.get(z) != life for z, life in main.members.items())
        ready = len(main.eras) == 1 and not self._groups.syncing and self._stated != era.number
        if not waits or not ready or self.station != min(era.part, default=0):
            return []
        self._stated = era.number
        return [Broadcast(State(era.number, main.clock, tuple(sorted(era.part.items()))))]

    def _on_state(self, now: int, state: State) -> list[Effect]:
        """All members take part from here on, if nothing has changed since the message was sent."""
        machine = self.machine
        if machine is not None:
            if state.era != machine.era.number or len(machine.main.eras) != 1:
                return self._offer_state()
            return machine.on_entry(now, self._newcomers(machine.main))
        if self._view is None or not self._groups.known or state.era != self._number():
            return []
        main = self._main_of(state)
        main.change(self._newcomers(main))
        return self._start(main)

    @staticmethod
    def _newcomers(main: MainOrder) -> Synced:
        return Synced(tuple((z, life) for z, life in sorted(main.members.items()) if main.era.part.get(z) != life))

    def _number(self) -> EraNumber:
        """The present era, as one that takes no part counts it."""
        number = EraNumber(self._view.instance if self._view is not None else 0, 0)
        for entry in self._log:
            if isinstance(entry, ViewEvent):
                number = EraNumber(entry.instance, 0)
            elif isinstance(entry, Joined | Left):
                number = number._replace(change=number.change + 1)
        return number

    def _main_of(self, state: State) -> MainOrder:
        """The main order's state at the place of a STATE, from that and the groups."""
        members = self._members()
        group_orders: dict[int, str] = {}
        programs: dict[int, set[Program]] = {}
        for name in self._groups.names():
            ordering = self._groups.ordering(name)
            if ordering in MULTICAST:
                group_orders[group_id(name)] = ORDER_NAMES[ordering]
                programs[group_id(name)] = {Program(z, members[z], client) for z, client, _ in self._groups.members(name)}
        tables = {
            order: TABLES[order]({g: {p.station for p in ps} for g, ps in programs.items() if group_orders[g] == order})
            for order in ORDERS
        }
        era = Era(state.era, dict(state.part), tables, (), dict(group_orders))
        return MainOrder(dict(members), [era], group_orders, programs, view_times={}, clock=state.clock)

    # ---- records and programs

    def on_records(self, now: int, accepted: Iterable[tuple[int, Iterable[Record]]]) -> list[Effect]:
        """Records of links, by PDU, and the station that they come from."""
        return self.machine.on_pdus(now, accepted) if self.machine is not None else []

    def on_links(self, now: int, pairs: Iterable[Pair]) -> list[Effect]:
        """Take what links have accepted, while the machine ``is_fast``."""
        machine = self.machine
        if machine is None:
            return []
        for pair in pairs:
            pair.give_to(machine)
        return machine.on_pdus(now, ())

    def on_time(self, now: int) -> list[Effect]:
        return self.machine.on_time(now) if self.machine is not None else []

    def send(self, now: int, client: int, groups: Iterable[int], data: bytes, safe: bool) -> Id | None:
        """A program sends to groups that have members; ``on_sent`` follows, after one or several. None: the window is full, send
        it again after a later input."""
        machine = self.machine
        if machine is None:
            return None
        return machine.send(now, Program(self.station, machine.incarnation, client), groups, data, safe)

    def on_sent(self, now: int) -> list[Effect]:
        """Carry out what ``send`` has begun, unless another input has done so since."""
        return self.machine.after(now) if self.machine is not None else []

    def groups_of_one_order(self, groups: Iterable[int]) -> tuple[int, ...]:
        """Of these groups those that have members and one of these orders, in the order as given. They have the same, unless
        somebody has made one of them anew; then it is the order of the first."""
        if self.machine is None:
            return ()
        tables = self.machine.era.tables.values()
        found = [(g, table) for g in groups for table in tables if g in table.groups]
        return tuple(g for g, table in found if table is found[0][1])

    def destinations(self, groups: Iterable[int]) -> frozenset[int]:
        """The stations of these groups, which are of one order."""
        if self.machine is None:
            return frozenset()
        return frozenset(z for table in self.machine.era.tables.values() for z in table.destinations(groups))


def group_messages(entry: Flush | Closed | State) -> list[bytes]:
    """A broadcast as group messages."""
    if isinstance(entry, Flush):
        return encode_flush(entry)
    if isinstance(entry, Closed):
        return encode_closed(entry)
    return encode_state(entry)
