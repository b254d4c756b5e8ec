"""The operations of an update (rule W1): their types, bounds and form on the wire.

A ``condition`` is the version that the name must have: ``NOWHERE``: no such name yet (*new*); None: any.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

from .addresses import is_address, is_station
from .canon import INT_MAX
from .entries import (
    DEFAULT_ZONE,
    NUMBER_MAX,
    SELECTIONS,
    SLOTS_MAX,
    TARGETS_MAX,
    TIME_MAX,
    TTL_MAX,
    Place,
    Slot,
    Target,
    is_meta,
    is_target,
    parse_place,
    place_text,
)
from .names import ANYBODY, is_name, is_pattern, is_role, is_zone_name

ROLES_MAX: Final = 64
"""Admins, and writers, of a zone."""
PATTERNS_MAX: Final = 64
"""Maximum number of patterns of a zone."""
NAMES_MAX: Final = 1_000_000

Meta: TypeAlias = tuple[tuple[str, str], ...]


class Set(NamedTuple):
    """Make a name with these targets, or replace what it has; targets with leases stay. Override and schedule stay. zone "": the
    present one, or ``default``."""

    name: str
    targets: tuple[Target, ...] = ()
    selection: str = "all"
    ttl: int = 1
    meta: Meta = ()
    zone: str = ""
    condition: Place | None = None


class Add(NamedTuple):
    """Add targets, or change the priority and weight of those that are there."""

    name: str
    targets: tuple[Target, ...]
    condition: Place | None = None


class Drop(NamedTuple):
    """Remove all targets with these addresses."""

    name: str
    addresses: tuple[str, ...]
    condition: Place | None = None


class Alias(NamedTuple):
    """Make a name another name of ``target``, which need not exist."""

    name: str
    target: str
    ttl: int = 1
    meta: Meta = ()
    zone: str = ""
    condition: Place | None = None


class Remove(NamedTuple):
    """Remove a name with all that belongs to it (``rm``)."""

    name: str
    condition: Place | None = None


class Move(NamedTuple):
    """Put a name into another zone."""

    name: str
    zone: str
    condition: Place | None = None


class Switch(NamedTuple):
    """Use these addresses instead of all others until ``end`` (seconds since 1970; 0: until switched back). None: switch back."""

    name: str
    addresses: tuple[str, ...]
    end: int = 0
    condition: Place | None = None


class Out(NamedTuple):
    """Take an address, or all that a station has (``station:k``), out of use until ``end`` (0: until ``In``)."""

    address: str
    end: int = 0


class In(NamedTuple):
    """Use it again."""

    address: str


class SetSchedule(NamedTuple):
    """Give a name a schedule, or take it away (no slots). current, last: the slot in effect at the sender's time, and since when;
    due, slot: the next instant and its slot. The sender computes them, by its time zone data."""

    name: str
    slots: tuple[Slot, ...]
    current: int = -1
    last: int = 0
    due: int = 0
    slot: int = 0
    condition: Place | None = None


class Take(NamedTuple):
    """Take the next of a name's effective targets, by one cursor for all stations. The outcome's text is the address."""

    name: str
    condition: Place | None = None


class Register(NamedTuple):
    """Add a target that goes with the lease ``number`` of the sending process. exclusive: have the name alone, or wait for it.
    selection and zone count if the name is new."""

    name: str
    address: str
    number: int
    priority: int = 0
    weight: int = 1
    exclusive: bool = False
    selection: str = "all"
    zone: str = ""
    condition: Place | None = None


class SetZone(NamedTuple):
    """Make or change a zone's row; remove: remove it, if it has no names. Lists are sorted, without repetitions."""

    name: str
    admins: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    names_max: int = 0
    remove: bool = False
    condition: Place | None = None


Operation: TypeAlias = Set | Add | Drop | Alias | Remove | Move | Switch | Out | In | SetSchedule | Take | Register | SetZone
Row: TypeAlias = dict[str, Any]


# ---- reading members of a received object: each returns a value within its bounds or raises ValueError


def _need(good: bool, what: str) -> None:
    if not good:
        raise ValueError(what)


def read_int(row: Row, key: str, least: int = 0, most: int = INT_MAX, default: int | None = None) -> int:
    value = row.get(key, default)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{key}: no integer from {least} to {most}")
    return value


def read_list(row: Row, key: str, most: int) -> list[Any]:
    value = row.get(key, [])
    if type(value) is not list:
        raise ValueError(f"{key}: no list")
    if len(value) > most:
        raise ValueError(f"too-large: {key} has more than {most}")
    return value


def _name(row: Row, key: str = "n") -> str:
    value = row.get(key)
    if not is_name(value):
        raise ValueError("name")
    return str(value)


def _zone(row: Row, key: str = "z", default: str = "") -> str:
    value = row.get(key, default)
    if value != "" and not is_zone_name(value):
        raise ValueError("zone")
    return str(value)


def _condition(row: Row) -> Place | None:
    value = row.get("if")
    if value is None:
        return None
    if type(value) is not str:
        raise ValueError("condition")
    return parse_place(value)


def _selection(row: Row) -> str:
    value = row.get("s", "all")
    if value not in SELECTIONS:
        raise ValueError("selection")
    return str(value)


def _targets(row: Row) -> tuple[Target, ...]:
    """Sorted, each address once."""
    out = []
    for item in read_list(row, "a", TARGETS_MAX):
        if type(item) is not list or len(item) != 4 or type(item[1]) is not int or type(item[2]) is not int:
            raise ValueError("target")
        target = Target(*item)
        if type(target.until) is not str or not is_target(target):
            raise ValueError("address")
        out.append(target)
    if len(out) > 1:
        _need(len({t.address for t in out}) == len(out), "an address twice")
        _need(all(a.key < b.key for a, b in pairwise(out)), "targets out of order")
    return tuple(out)


def _addresses(values: list[Any]) -> tuple[str, ...]:
    """Each once, in the sender's order."""
    _need(all(is_address(a) for a in values), "address")
    _need(len(set(values)) == len(values), "an address twice")
    return tuple(values)


def _meta(row: Row) -> Meta:
    value = row.get("m")
    if value is None:
        return ()
    if type(value) is not dict or not value or not all(type(v) is str for v in value.values()):
        raise ValueError("meta")
    pairs = tuple(sorted(value.items()))
    for pair in pairs:
        "".join(pair).encode()  # half of a surrogate pair: UnicodeEncodeError, a ValueError
    _need(is_meta(pairs), "meta")
    return pairs


def _strings(row: Row, key: str, most: int, good: Callable[[object], bool]) -> tuple[str, ...]:
    """Sorted, each once."""
    values = read_list(row, key, most)
    _need(all(good(v) for v in values), key)
    _need(values == sorted(set(values)), f"{key}: out of order")
    return tuple(values)


def _out_address(row: Row) -> str:
    value = row.get("x")
    if not (is_station(value) or is_address(value)):
        raise ValueError("address")
    return str(value)


# ---- one reader and one writer for each kind; a writer leaves out what has its usual value


def _read_set(r: Row) -> Set:
    return Set(_name(r), _targets(r), _selection(r), read_int(r, "t", 0, TTL_MAX, 1), _meta(r), _zone(r), _condition(r))


def _read_add(r: Row) -> Add:
    targets = _targets(r)
    _need(bool(targets), "no target")
    return Add(_name(r), targets, _condition(r))


def _read_drop(r: Row) -> Drop:
    addresses = _addresses(read_list(r, "x", TARGETS_MAX))
    _need(bool(addresses), "no address")
    return Drop(_name(r), addresses, _condition(r))


def _read_alias(r: Row) -> Alias:
    return Alias(_name(r), _name(r, "l"), read_int(r, "t", 0, TTL_MAX, 1), _meta(r), _zone(r), _condition(r))


def _read_move(r: Row) -> Move:
    zone = _zone(r)
    _need(zone != "", "zone")
    return Move(_name(r), zone, _condition(r))


def _read_switch(r: Row) -> Switch:
    addresses = _addresses(read_list(r, "x", TARGETS_MAX))
    end = read_int(r, "y", 0, TIME_MAX - 1, 0)
    _need(bool(addresses) or not end, "an end of nothing")
    return Switch(_name(r), addresses, end, _condition(r))


def _read_schedule(r: Row) -> SetSchedule:
    slots = []
    for item in read_list(r, "h", SLOTS_MAX):
        if type(item) is not list or len(item) != 2 or type(item[1]) is not list or not 0 < len(item[1]) <= TARGETS_MAX:
            raise ValueError("slot")
        _need(is_when(item[0]), "instant")
        slots.append(Slot(item[0], _addresses(item[1])))
    current = read_int(r, "i", 0, SLOTS_MAX - 1, 0) if "i" in r else -1
    last, due = read_int(r, "d", 0, TIME_MAX - 1, 0), read_int(r, "j", 0, TIME_MAX - 1, 0)
    slot = read_int(r, "w", 0, SLOTS_MAX - 1, 0)
    _need(max(current, slot) < max(len(slots), 1) and (bool(slots) or (current, last, due) == (-1, 0, 0)), "no such slot")
    _need((current >= 0) == (last > 0) and (due > last or not due) and (due > 0 or not slot), "instants out of order")
    return SetSchedule(_name(r), tuple(slots), current, last, due, slot, _condition(r))


def _read_register(r: Row) -> Register:
    address = r.get("x")
    if not is_address(address):
        raise ValueError("address")
    return Register(
        _name(r),
        str(address),
        read_int(r, "l", 1),
        read_int(r, "p", 0, NUMBER_MAX, 0),
        read_int(r, "w", 0, NUMBER_MAX, 1),
        bool(read_int(r, "e", 0, 1, 0)),
        _selection(r),
        _zone(r),
        _condition(r),
    )


def _is_writer(role: object) -> bool:
    return role == ANYBODY or is_role(role)


def _read_zone(r: Row) -> SetZone:
    zone = _zone(r, "n")
    _need(zone != "", "zone")
    op = SetZone(
        zone,
        _strings(r, "a", ROLES_MAX, is_role),
        _strings(r, "w", ROLES_MAX, _is_writer),
        _strings(r, "p", PATTERNS_MAX, is_pattern),
        read_int(r, "c", 0, NAMES_MAX, 0),
        bool(read_int(r, "rm", 0, 1, 0)),
        _condition(r),
    )
    _need(not op.remove or op[1:5] == ((), (), (), 0), "a zone that is removed has nothing")
    _need(zone != DEFAULT_ZONE or not op.patterns, "the default zone has no patterns")
    return op


_READERS: Final[dict[str, Callable[[Row], Operation]]] = {
    "set": _read_set,
    "add": _read_add,
    "drop": _read_drop,
    "alias": _read_alias,
    "rm": lambda r: Remove(_name(r), _condition(r)),
    "move": _read_move,
    "switch": _read_switch,
    "out": lambda r: Out(_out_address(r), read_int(r, "y", 0, TIME_MAX - 1, 0)),
    "in": lambda r: In(_out_address(r)),
    "schedule": _read_schedule,
    "take": lambda r: Take(_name(r), _condition(r)),
    "register": _read_register,
    "zone": _read_zone,
}

_KINDS: Final[dict[type[Operation], str]] = {
    Set: "set",
    Add: "add",
    Drop: "drop",
    Alias: "alias",
    Remove: "rm",
    Move: "move",
    Switch: "switch",
    Out: "out",
    In: "in",
    SetSchedule: "schedule",
    Take: "take",
    Register: "register",
    SetZone: "zone",
}

_MEMBERS: Final[dict[str, str]] = {
    "name": "n",
    "targets": "a",
    "selection": "s",
    "ttl": "t",
    "meta": "m",
    "zone": "z",
    "addresses": "x",
    "address": "x",
    "target": "l",
    "end": "y",
    "slots": "h",
    "current": "i",
    "last": "d",
    "due": "j",
    "slot": "w",
    "number": "l",
    "priority": "p",
    "weight": "w",
    "exclusive": "e",
    "admins": "a",
    "writers": "w",
    "patterns": "p",
    "names_max": "c",
    "remove": "rm",
}
_LAYOUT: Final = {
    cls: [(i, _MEMBERS[f], f, cls._field_defaults.get(f)) for i, f in enumerate(cls._fields) if f != "condition"]
    for cls in _KINDS
}


def operation_row(op: Operation) -> Row:
    """The object that represents an operation in a message."""
    row: Row = {"op": _KINDS[type(op)]}
    for i, key, field, default in _LAYOUT[type(op)]:
        value: Any = op[i]
        if value == default or (not value and default is None and field != "number"):
            continue
        if field == "meta":
            value = dict(value)
        elif type(value) is bool:
            value = 1
        row[key] = value
    condition: Place | None = getattr(op, "condition", None)
    if condition is not None:
        row["if"] = place_text(condition)
    return row


def read_operation(row: object) -> Operation:
    """The operation of a received object. Raises ValueError. It does not refuse members without a meaning; the caller compares
    encodings."""
    if type(row) is not dict:
        raise ValueError("no operation")
    kind = row.get("op")
    reader = _READERS.get(kind) if type(kind) is str else None
    if reader is None:
        raise ValueError("no such operation")
    return reader(row)


# ---- when a slot begins: syntax only, and no time zone data (rule W2)

_DAY: Final = "(?:mon|tue|wed|thu|fri|sat|sun)"
_WHEN: Final = re.compile(
    rf"(?:{_DAY}(?:-{_DAY})? )?(?:[01][0-9]|2[0-3]):[0-5][0-9]"
    "(?: [A-Za-z][A-Za-z0-9_+-]{0,31}(?:/[A-Za-z0-9_+-]{1,31}){0,2})?",
    re.ASCII,
)
_INSTANT: Final = re.compile(
    "([0-9]{4})-(0[1-9]|1[0-2])-([0-2][0-9]|3[01])T(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9])?Z", re.ASCII
)
_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_when(text: object) -> bool:
    """``[mon[-fri]] HH:MM [Area/City]``, or an instant ``YYYY-MM-DDTHH:MM[:SS]Z`` that the calendar has."""
    if type(text) is not str:
        return False
    if _WHEN.fullmatch(text):
        return True
    match = _INSTANT.fullmatch(text)
    if match is None:
        return False
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return year >= 1970 and 1 <= day <= _DAYS[month - 1] + leap
