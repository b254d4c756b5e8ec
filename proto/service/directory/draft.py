"""What one input does to the rows, beside the store: committed as a whole, or dropped (rule W1: all or nothing)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple, Protocol

from .canon import encode, load
from .entries import (
    Entry,
    Lease,
    Place,
    Zone,
    entry_row,
    lease_text,
    parse_place,
)
from .store import Store, Table


class Change(NamedTuple):
    """An entry before and after an input; None: there is none."""

    name: str
    old: Entry | None
    new: Entry | None


class Waiting(NamedTuple):
    """A lease that waits for an exclusive name."""

    lease: Lease
    address: str
    priority: int
    weight: int


class Facts(Protocol):
    """What a draft reads of the state besides rows."""

    store: Store
    zones: dict[str, Zone]
    owners: dict[str, str]
    counts: dict[str, int]
    leases: int
    outs: int
    names_max: int
    home_zone: Zone

    def stations_up(self) -> Collection[int]: ...

    def known(self, name: str) -> tuple[Entry | None, bytes | None]:
        """An entry and its row."""


def place_key(place: Place) -> str:
    """Keys made of places compare like places."""
    return f"{place[0]:020d}.{place[1]:02d}.{place[2]:05d}"


def lease_key(lease: Lease) -> str:
    return f"{lease.station:02d}.{lease.client:020d}.{lease.number:020d}"


def waiting_row(w: Waiting) -> bytes:
    return encode({"l": lease_text(w.lease), "x": w.address, "p": w.priority, "w": w.weight})


def read_waiting(row: bytes) -> Waiting:
    r = load(row)
    return Waiting(Lease(*parse_place(r["l"])), r["x"], r["p"], r["w"])


class Draft:
    """Changes at one place. Reads see what the draft has written."""

    def __init__(self, facts: Facts, place: Place) -> None:
        self.facts = facts
        self.place = place
        self.old: dict[str, tuple[Entry | None, bytes | None]] = {}
        """Entries and rows as the store has them."""
        self.new: dict[str, Entry | None] = {}
        self.entry_rows: dict[str, bytes] = {}
        self.zones: dict[str, Zone | None] = {}
        self.rows: dict[tuple[Table, str], bytes | None] = {}
        """Rows of the other summed tables; None: removed."""
        self.counts: dict[str, int] = {}
        """Names by zone: more or fewer than in the state."""
        self.new_leases = 0
        """Leases that operations have added."""
        self.new_outs = 0
        """Addresses taken out of use, less those back."""

    # ---- entries

    def entry(self, name: str) -> Entry | None:
        if name in self.new:
            return self.new[name]
        found = self.old.get(name)
        if found is None:
            found = self.old[name] = self.facts.known(name)
        return found[0]

    def put(self, entry: Entry) -> int:
        """Write an entry. Returns the size of its row in bytes."""
        before = self.entry(entry.name)
        if before is None or before.zone != entry.zone:
            if before is not None:
                self._count(before.zone, -1)
            self._count(entry.zone, 1)
        self.new[entry.name] = entry
        row = self.entry_rows[entry.name] = entry_row(entry)
        return len(row)

    def remove(self, name: str) -> None:
        """Remove an entry with what waits for it, and its cursor."""
        before = self.entry(name)
        if before is None:
            return
        self._count(before.zone, -1)
        self.new[name] = None
        self.entry_rows.pop(name, None)
        if before.exclusive:
            for key, _ in list(self.waiting_for(name)):
                self.stop_waiting(key)
        if self.row(Table.CURSOR, name) is not None:
            self.rows[(Table.CURSOR, name)] = None

    def _count(self, zone: str, number: int) -> None:
        self.counts[zone] = self.counts.get(zone, 0) + number

    def names_in(self, zone: str) -> int:
        return self.facts.counts.get(zone, 0) + self.counts.get(zone, 0)

    def names(self) -> int:
        return self.facts.counts.get("", 0) + sum(self.counts.values())

    # ---- zones

    def zone(self, name: str) -> Zone | None:
        """A zone's row. The home zone exists of itself, and every program may write there until it has a row."""
        found = self.zones[name] if name in self.zones else self.facts.zones.get(name)
        return self.facts.home_zone if found is None and name == self.facts.home_zone.name else found

    def owner_of_pattern(self, pattern: str) -> str | None:
        """The zone that alone may use the names of a pattern."""
        for zone in self.zones.values():
            if zone is not None and pattern in zone.patterns:
                return zone.name
        found = self.facts.owners.get(pattern)
        return None if found in self.zones else found

    def number_of_zones(self) -> int:
        number = len(self.facts.zones)
        for name, zone in self.zones.items():
            number += (zone is not None) - (name in self.facts.zones)
        return number

    # ---- other rows

    def row(self, table: Table, key: str) -> bytes | None:
        if (table, key) in self.rows:
            return self.rows[(table, key)]
        return self.facts.store.get(table, key)

    def scan(self, table: Table, start: str, end: str) -> Iterator[tuple[str, bytes]]:
        found = dict(self.facts.store.scan(table, start, end))
        for (changed, key), row in self.rows.items():
            if changed is table and start <= key < end:
                if row is None:
                    found.pop(key, None)
                else:
                    found[key] = row
        yield from sorted(found.items())

    def is_out(self, address: str) -> bool:
        return bool(self.facts.outs or self.rows) and self.row(Table.OUT, address) is not None

    def put_out(self, address: str, end: int) -> None:
        """Take an address, or a station, out of use. end: seconds since 1970, 0: until it is put back."""
        self.new_outs += not self.is_out(address)
        self.rows[(Table.OUT, address)] = b"%d" % end

    def remove_out(self, address: str) -> None:
        self.new_outs -= self.is_out(address)
        self.rows[(Table.OUT, address)] = None

    # ---- leases

    def waiting_for(self, name: str) -> Iterator[tuple[str, Waiting]]:
        """(key, lease) of who waits for a name, in order."""
        for key, row in self.scan(Table.WAITING, f"{name} ", f"{name}!"):
            yield key, read_waiting(row)

    def wait(self, name: str, number: int, w: Waiting) -> None:
        """Put a lease into the queue; ``number`` of the operation in its message."""
        self.rows[(Table.WAITING, f"{name} {place_key(self.place)}.{number:02d}")] = waiting_row(w)
        self.new_leases += 1

    def stop_waiting(self, key: str) -> None:
        self.rows[(Table.WAITING, key)] = None
