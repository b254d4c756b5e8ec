"""What each operation of an update does to the rows, and when it is refused (rules W1, W6, E5 to E7, A1).

Nothing here knows a clock or time zone data: what depends on them the sender of the update has computed.
"""

from __future__ import annotations

from typing import Final

from .draft import Draft, Waiting
from .entries import (
    NOWHERE,
    ROW_MAX,
    TARGETS_MAX,
    Entry,
    Lease,
    Place,
    Schedule,
    Target,
    Who,
    Zone,
    lease_text,
    place_text,
)
from .messages import Update
from .names import ANYBODY, OPERATOR, patterns_of, station_of_name
from .operations import (
    Add,
    Alias,
    Drop,
    In,
    Move,
    Operation,
    Out,
    Register,
    Remove,
    Set,
    SetSchedule,
    SetZone,
    Switch,
    Take,
)
from .selection import effective
from .store import Table

HOPS_MAX: Final = 8
"""Aliases that a look-up follows."""
LEASES_MAX: Final = 100_000
ZONES_MAX: Final = 256
OUTS_MAX: Final = 10_000


class Refused(Exception):
    """An operation that is not done, and with it the whole update. code: of the outcome. text: for the caller, equal
    everywhere."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class Operating:
    """One update at its place."""

    def __init__(self, draft: Draft, sender: Who, present: bool, update: Update) -> None:
        """present: the sender is in the group's view."""
        self.draft = draft
        self.sender = sender
        self.present = present
        self.roles = frozenset((*update.roles, f"station:{sender[0]}"))
        self.owner = update.owner
        self.number = 0
        """Number of the operation in the message."""
        self.text = ""
        """The text of the outcome if the update succeeds."""

    def run(self, operations: tuple[Operation, ...]) -> None:
        """Do all. Raises Refused; then ``number`` is that of the operation."""
        for self.number, op in enumerate(operations):
            getattr(self, _METHODS[type(op)])(op)

    # ---- rights (rule A1)

    def _is_admin(self, zone: Zone) -> bool:
        return OPERATOR in self.roles or not self.roles.isdisjoint(zone.admins)

    def _is_writer(self, zone: Zone) -> bool:
        return self._is_admin(zone) or ANYBODY in zone.writers or not self.roles.isdisjoint(zone.writers)

    def _may_change(self, entry: Entry) -> None:
        zone = self.draft.zone(entry.zone)
        if zone is None or not (self._is_admin(zone) or (self._is_writer(zone) and entry.owner in self.roles)):
            raise Refused("not-permitted", f"{entry.name} is {entry.owner}'s in zone {entry.zone}")

    def _may_make(self, name: str, wanted: str) -> str:
        """The zone of a new name: ``wanted``, else the one that its pattern belongs to, else the home zone."""
        claimed = ""
        for pattern in patterns_of(name):
            found = self.draft.owner_of_pattern(pattern)
            if found is not None:
                claimed = found
                break
        zone_name = wanted or claimed or self.draft.facts.home_zone.name
        zone = self.draft.zone(zone_name)
        if zone is None:
            raise Refused("no-zone", zone_name)
        if claimed and claimed != zone_name:
            raise Refused("not-permitted", f"{name} belongs to zone {claimed}")
        if not self._is_writer(zone):
            raise Refused("not-permitted", f"zone {zone_name}")
        if zone.names_max and self.draft.names_in(zone_name) >= zone.names_max:
            raise Refused("full", zone_name)
        return zone_name

    def _room(self) -> None:
        if self.draft.names() >= self.draft.facts.names_max:
            raise Refused("full", "directory")

    def _operator(self) -> None:
        if OPERATOR not in self.roles:
            raise Refused("not-permitted", "for root and the daemon's user")

    # ---- common to operations

    def _find(self, name: str, condition: Place | None) -> Entry | None:
        """The entry, if the condition holds."""
        if station_of_name(name):
            raise Refused("not-permitted", f"{name} exists of itself")
        entry = self.draft.entry(name)
        self._hold(condition, entry.version if entry else NOWHERE)
        return entry

    @staticmethod
    def _hold(condition: Place | None, version: Place) -> None:
        if condition is None or condition == version:
            return
        if condition == NOWHERE:
            raise Refused("exists", place_text(version))
        raise Refused("version", place_text(version))

    def _get(self, name: str, condition: Place | None, kind: str = "addr") -> Entry:
        """An entry that the sender may change. kind: ``addr`` with targets to be changed, or "" for any."""
        entry = self._find(name, condition)
        if entry is None:
            raise Refused("no-name", name)
        self._may_change(entry)
        if kind:
            self._is_plain(entry)
        return entry

    @staticmethod
    def _is_plain(entry: Entry) -> None:
        if entry.alias:
            raise Refused("kind", f"{entry.name} is an alias")
        if entry.exclusive:
            raise Refused("kind", f"{entry.name} is exclusive")

    def _put(self, entry: Entry) -> None:
        if len(entry.targets) > TARGETS_MAX or self.draft.put(entry) > ROW_MAX:
            raise Refused("too-large", entry.name)

    # ---- operations

    def _set(self, op: Set) -> None:
        entry = self._find(op.name, op.condition)
        if entry is None:
            zone = self._may_make(op.name, op.zone)
            self._room()
            made = Entry(op.name, self.owner, self.draft.place, zone)
        else:
            self._may_change(entry)
            self._is_plain(entry)
            if op.zone and op.zone != entry.zone:
                raise Refused("exists", f"in zone {entry.zone}")
            made = entry
        leased = tuple([t for t in made.targets if t.until[:1].isdigit()])
        targets = tuple(sorted(op.targets + leased, key=_order)) if leased else op.targets
        self._put(
            made._replace(
                version=self.draft.place,
                targets=targets,
                selection=op.selection,
                ttl=op.ttl,
                meta=op.meta,
                kept=True,
            )
        )

    def _add(self, op: Add) -> None:
        entry = self._get(op.name, op.condition)
        new = {t.address for t in op.targets}
        others = [t for t in entry.targets if t.until[:1].isdigit() or t.address not in new]
        targets = tuple(sorted([*others, *op.targets], key=_order))
        self._put(entry._replace(version=self.draft.place, targets=targets, kept=True))

    def _drop(self, op: Drop) -> None:
        entry = self._get(op.name, op.condition)
        here = {t.address for t in entry.targets}
        for address in op.addresses:
            if address not in here:
                raise Refused("no-address", address)
        gone = frozenset(op.addresses)
        targets = tuple([t for t in entry.targets if t.address not in gone])
        if not targets and not entry.kept:
            self.draft.remove(op.name)
        else:
            self._put(entry._replace(version=self.draft.place, targets=targets))

    def _alias(self, op: Alias) -> None:
        entry = self._find(op.name, op.condition)
        if entry is None:
            zone = self._may_make(op.name, op.zone)
        else:
            self._may_change(entry)
            zone = entry.zone
        self._circle(op)
        if entry is None:
            self._room()
            entry = Entry(op.name, self.owner, self.draft.place, zone)
        elif not entry.alias:
            raise Refused("kind", f"{op.name} has addresses")
        elif op.zone and op.zone != zone:
            raise Refused("exists", f"in zone {zone}")
        self._put(entry._replace(version=self.draft.place, alias=op.target, ttl=op.ttl, meta=op.meta))

    def _circle(self, op: Alias) -> None:
        """Refuse what would close a circle, and chains of more than ``HOPS_MAX`` (rule E7). A circle cannot come from two of
        them: whichever alias closes it meets its own name, or too many, on the way."""
        name = op.target
        for _ in range(HOPS_MAX):
            if name == op.name:
                raise Refused("alias-loop", name)
            entry = self.draft.entry(name)
            if entry is None or not entry.alias:
                return
            name = entry.alias
        raise Refused("alias-loop", f"more than {HOPS_MAX} names")

    def _remove(self, op: Remove) -> None:
        self._get(op.name, op.condition, kind="")
        self.draft.remove(op.name)

    def _move(self, op: Move) -> None:
        entry = self._get(op.name, op.condition, kind="")
        if op.zone != entry.zone:
            self._may_make(op.name, op.zone)
        self._put(entry._replace(version=self.draft.place, zone=op.zone))

    def _switch(self, op: Switch) -> None:
        entry = self._get(op.name, op.condition)
        self._put(entry._replace(version=self.draft.place, override=op.addresses, override_end=op.end))

    def _out(self, op: Out) -> None:
        self._operator()
        if not self.draft.is_out(op.address) and self.draft.facts.outs + self.draft.new_outs >= OUTS_MAX:
            raise Refused("full", "out of use")
        self.draft.put_out(op.address, op.end)

    def _in(self, op: In) -> None:
        self._operator()
        if not self.draft.is_out(op.address):
            raise Refused("no-address", op.address)
        self.draft.remove_out(op.address)

    def _schedule(self, op: SetSchedule) -> None:
        entry = self._get(op.name, op.condition)
        schedule = Schedule(op.slots, op.current, op.last, op.due, op.slot) if op.slots else None
        self._put(entry._replace(version=self.draft.place, schedule=schedule))

    def _take(self, op: Take) -> None:
        """Every program may take: it changes a cursor, and no entry."""
        name = op.name
        if station_of_name(name):
            raise Refused("kind", f"{name} exists of itself")
        entry = self.draft.entry(name)
        self._hold(op.condition, entry.version if entry else NOWHERE)
        for _ in range(HOPS_MAX):
            if entry is None or not entry.alias:
                break
            name = entry.alias
            entry = self.draft.entry(name)
        if entry is None or entry.alias:
            raise Refused("no-name", name)
        targets = effective(entry, self.draft.facts.stations_up(), self.draft.is_out)
        if not targets:
            raise Refused("no-address", name)
        row = self.draft.row(Table.CURSOR, name)
        turn = int(row) if row else 0
        self.draft.rows[(Table.CURSOR, name)] = b"%d" % (turn + 1)
        self.text = targets[turn % len(targets)].address

    def _register(self, op: Register) -> None:
        if not self.present:
            raise Refused("not-member", "a process outside the group has no leases")
        entry = self._find(op.name, op.condition)
        lease = Lease(*self.sender, op.number)
        target = Target(op.address, op.priority, op.weight, lease_text(lease))
        if self.draft.facts.leases + self.draft.new_leases >= LEASES_MAX:
            raise Refused("full", "leases")
        if entry is None:
            zone = self._may_make(op.name, op.zone)
            self._room()
            self.draft.new_leases += 1
            entry = Entry(op.name, self.owner, self.draft.place, zone, selection=op.selection, kept=False, exclusive=op.exclusive)
            self._put(entry._replace(targets=(target,)))
            return
        self._may_change(entry)
        if op.zone and op.zone != entry.zone:
            raise Refused("exists", f"in zone {entry.zone}")
        if entry.alias or (entry.exclusive and not op.exclusive):
            self._is_plain(entry)
        if op.exclusive:
            self._register_alone(entry, target, lease)
            return
        others = [t for t in entry.targets if (t.address, t.until) != (target.address, target.until)]
        self.draft.new_leases += len(others) == len(entry.targets)
        targets = tuple(sorted([*others, target], key=_order))
        self._put(entry._replace(version=self.draft.place, targets=targets))

    def _register_alone(self, entry: Entry, target: Target, lease: Lease) -> None:
        """Rule M4: the name, if no lease has it, else a place in its queue."""
        name = entry.name
        if not entry.targets:
            if entry.override or entry.schedule is not None:
                raise Refused("kind", f"{name} has an override or a schedule")
            self.draft.new_leases += 1
            self._put(entry._replace(version=self.draft.place, exclusive=True, targets=(target,)))
        elif not entry.exclusive:
            raise Refused("kind", f"{name} has addresses")
        elif entry.targets[0].until != target.until:
            self.text = "waiting"
            if all(w.lease != lease for _, w in self.draft.waiting_for(name)):
                self.draft.wait(name, self.number, Waiting(lease, target.address, target.priority, target.weight))

    def _zone(self, op: SetZone) -> None:
        self._operator()
        zone = self.draft.zone(op.name)
        self._hold(op.condition, zone.version if zone else NOWHERE)
        if op.remove:
            self._remove_zone(op, zone)
            return
        if zone is None and self.draft.number_of_zones() >= ZONES_MAX:
            raise Refused("full", "zones")
        for pattern in op.patterns:
            owner = self.draft.owner_of_pattern(pattern)
            if owner is not None and owner != op.name:
                raise Refused("exists", f"{pattern} belongs to zone {owner}")
        self.draft.zones[op.name] = Zone(op.name, self.draft.place, op.admins, op.writers, op.patterns, op.names_max)

    def _remove_zone(self, op: SetZone, zone: Zone | None) -> None:
        if zone is None or zone.version == NOWHERE:
            raise Refused("no-zone", op.name)
        if op.name != self.draft.facts.home_zone.name and self.draft.names_in(op.name):
            raise Refused("exists", "the zone has names")
        self.draft.zones[op.name] = None


_METHODS: Final[dict[type[Operation], str]] = {
    Set: "_set",
    Add: "_add",
    Drop: "_drop",
    Alias: "_alias",
    Remove: "_remove",
    Move: "_move",
    Switch: "_switch",
    Out: "_out",
    In: "_in",
    SetSchedule: "_schedule",
    Take: "_take",
    Register: "_register",
    SetZone: "_zone",
}


def _order(target: Target) -> tuple[int, str, str]:
    return (target.priority, target.address, target.until)
