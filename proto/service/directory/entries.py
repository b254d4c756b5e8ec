"""Entries and zones as values, and their rows (rules E2, E8, Z1).

A row is the canonical JSON of one value; members that have their usual value are left out. Rows are what stations store, transfer
and sum up, so equal values have equal rows.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple, TypeAlias

from .addresses import is_address, is_station
from .canon import encode, load

Place: TypeAlias = tuple[int, int, int]
"""(clock, station 1..n, index): position in the total order."""
Who: TypeAlias = tuple[int, int]
"""(station 1..n, client): a directory process."""

NOWHERE: Final[Place] = (0, 0, 0)
TARGETS_MAX: Final = 64
NUMBER_MAX: Final = 65535
"""Maximum of priorities and weights."""
TTL_MAX: Final = 86400
META_PAIRS_MAX: Final = 32
META_MAX: Final = 1024
"""Bytes of all pairs as JSON."""
ROW_MAX: Final = 48 * 1024
SLOTS_MAX: Final = 32
SELECTIONS: Final = ("all", "first", "cyclic", "spread", "nearest")
DEFAULT_ZONE: Final = "default"
TIME_MAX: Final = 1 << 40
"""Seconds since 1970, exclusive."""
_NUMBER: Final = "(0|[1-9][0-9]{0,19})"
_META_KEY: Final = re.compile("[!-~]{1,63}", re.ASCII)
_META_VALUE: Final = re.compile("[^\\x00-\\x1f\\x7f]*")
_PLACE: Final = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}", re.ASCII)


class Lease(NamedTuple):
    """(station, client, number): the directory process that it belongs to, and its number there (rule M1)."""

    station: int
    client: int
    number: int

    @property
    def who(self) -> Who:
        return (self.station, self.client)


class Target(NamedTuple):
    """One address of an entry.

    priority: the lowest is used first. weight: for ``spread``.
    until:    the *while* of rule E4: "" until removed, ``station:k`` down while k is not in the view, or a lease ``s.c.n``.
    """

    address: str
    priority: int = 0
    weight: int = 1
    until: str = ""

    @property
    def key(self) -> tuple[int, str, str]:
        """Targets are in this order."""
        return (self.priority, self.address, self.until)


class Slot(NamedTuple):
    """One slot of a schedule: when it begins (``[mon-fri] HH:MM [Area/City]`` or an instant), and the addresses in use from
    then on."""

    when: str
    addresses: tuple[str, ...]


class Schedule(NamedTuple):
    """A schedule and what has come of it.

    current: number of the slot in effect, -1: none yet. last: the instant at which it began, 0: none.
    due:     the next instant, seconds since 1970, 0: not known until the next NEXT (rule T3). slot: number of the slot that it
    begins.
    """

    slots: tuple[Slot, ...]
    current: int = -1
    last: int = 0
    due: int = 0
    slot: int = 0


class Entry(NamedTuple):
    """What a name stands for.

    version:      place of the last change.
    alias:        the name that this one is another name of; "": kind ``addr``, with targets.
    override:     addresses in use instead of all others, by ``switch``; override_end: seconds since 1970, 0: until switched back.
    exclusive:    at most one lease at a time has the name; the others wait for it.
    kept:         a program has set it, so it stays without targets.
    """

    name: str
    owner: str
    version: Place
    zone: str = DEFAULT_ZONE
    alias: str = ""
    targets: tuple[Target, ...] = ()
    selection: str = "all"
    ttl: int = 1
    meta: tuple[tuple[str, str], ...] = ()
    override: tuple[str, ...] = ()
    override_end: int = 0
    exclusive: bool = False
    kept: bool = True
    schedule: Schedule | None = None


class Zone(NamedTuple):
    """A zone: who may do what with its names (rule A1). admins, writers, patterns: sorted. names_max 0: as many as the
    directory."""

    name: str
    version: Place = NOWHERE
    admins: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    names_max: int = 0


def place_text(place: Place) -> str:
    return f"{place[0]}.{place[1]}.{place[2]}"


def parse_place(text: str) -> Place:
    """Raises ValueError for what ``place_text`` did not make."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:80]!r} is no place")
    clock, station, index = match.groups()
    return (int(clock), int(station), int(index))


def lease_text(lease: Lease) -> str:
    return f"{lease.station}.{lease.client}.{lease.number}"


def lease_of(target: Target) -> Lease | None:
    """The lease that a target goes with, if it has one."""
    if target.until[:1].isdigit():
        return Lease(*parse_place(target.until))
    return None


def evidently_kept(targets: tuple[Target, ...]) -> bool:
    """Whether the targets alone show that a program has set the entry: there is none, or one without a lease."""
    for target in targets:
        if not target.until[:1].isdigit():
            return True
    return not targets


def entry_row(e: Entry) -> bytes:
    """The row of an entry. ``p`` marks an entry that stays although all its targets have leases."""
    row: dict[str, object] = {"k": "addr", "n": e.name, "o": e.owner, "v": place_text(e.version), "z": e.zone}
    if e.alias:
        row["k"] = "alias"
        row["l"] = e.alias
    else:
        row["a"] = e.targets
        row["s"] = e.selection
        if e.kept and not evidently_kept(e.targets):
            row["p"] = 1
    if e.ttl != 1:
        row["t"] = e.ttl
    if e.meta:
        row["m"] = dict(e.meta)
    if e.override:
        row["x"] = e.override
        if e.override_end:
            row["y"] = e.override_end
    if e.exclusive:
        row["e"] = 1
    if e.schedule is not None:
        _put_schedule(row, e.schedule)
    return encode(row)


def _put_schedule(row: dict[str, object], s: Schedule) -> None:
    row["h"] = s.slots
    if s.current >= 0:
        row["i"] = s.current
        row["d"] = s.last
    if s.due:
        row["j"] = (s.due, s.slot)


def read_entry(data: bytes) -> Entry:
    """The entry of an own row."""
    row: dict[str, Any] = load(data)
    targets = tuple([Target(*t) for t in row.get("a", ())])
    meta = row.get("m")
    return Entry(
        row["n"],
        row["o"],
        parse_place(row["v"]),
        row["z"],
        row.get("l", ""),
        targets,
        row.get("s", "all"),
        row.get("t", 1),
        tuple(sorted(meta.items())) if meta else (),
        tuple(row.get("x", ())),
        row.get("y", 0),
        "e" in row,
        "p" in row or evidently_kept(targets),
        _read_schedule(row) if "h" in row else None,
    )


def _read_schedule(row: dict[str, Any]) -> Schedule:
    due, slot = row.get("j", (0, 0))
    slots = tuple(Slot(when, tuple(addresses)) for when, addresses in row["h"])
    return Schedule(slots, row.get("i", -1), row.get("d", 0), due, slot)


def zone_row(z: Zone) -> bytes:
    row: dict[str, object] = {"k": "zone", "n": z.name, "v": place_text(z.version), "a": z.admins, "w": z.writers}
    if z.patterns:
        row["p"] = z.patterns
    if z.names_max:
        row["c"] = z.names_max
    return encode(row)


def read_zone(data: bytes) -> Zone:
    """The zone of an own row."""
    row: dict[str, Any] = load(data)
    return Zone(row["n"], parse_place(row["v"]), tuple(row["a"]), tuple(row["w"]), tuple(row.get("p", ())), row.get("c", 0))


# ---- what an entry may consist of


def is_target(target: Target) -> bool:
    """A target as a program may set it, without a lease."""
    return (
        is_address(target.address)
        and 0 <= target.priority <= NUMBER_MAX
        and 0 <= target.weight <= NUMBER_MAX
        and (not target.until or is_station(target.until))
    )


def is_meta(pairs: tuple[tuple[str, str], ...]) -> bool:
    """Pairs in the order of their keys, printable or beyond ASCII, in ``META_MAX`` bytes. Keys are 1 to 63 ASCII characters."""
    if len(pairs) > META_PAIRS_MAX:
        return False
    # A character has at most 12 bytes as JSON, and what is around a pair 6: most need not be encoded.
    length = sum(len(key) + len(value) for key, value in pairs)
    if 12 * length + 6 * len(pairs) + 2 > META_MAX and len(encode(dict(pairs))) > META_MAX:
        return False
    return all(_META_KEY.fullmatch(key) and _META_VALUE.fullmatch(value) for key, value in pairs)
