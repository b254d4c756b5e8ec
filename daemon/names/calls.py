"""What both clients ask for: each call as the operations of one update, so that they cannot differ in what they mean."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ...proto.service.directory.entries import NOWHERE, Place, Slot
from ...proto.service.directory.names import lower
from ...proto.service.directory.operations import (
    Add,
    Alias,
    Drop,
    In,
    Move,
    Out,
    Register,
    Remove,
    Set,
    SetSchedule,
    SetZone,
    Switch,
    Take,
)
from .types import Addresses, target_of, targets_of


def condition_of(new: bool, version: Place | None) -> Place | None:
    """The version that a name must have."""
    return NOWHERE if new else version


def set_of(
    name: str,
    addresses: Addresses,
    *,
    selection: str = "all",
    ttl: int = 1,
    meta: Mapping[str, str] | None = None,
    zone: str = "",
    new: bool = False,
    version: Place | None = None,
) -> Set:
    pairs = tuple(sorted((meta or {}).items()))
    return Set(lower(name), targets_of(addresses), selection, ttl, pairs, zone, condition_of(new, version))


def add_of(name: str, addresses: Addresses, version: Place | None = None) -> Add:
    return Add(lower(name), targets_of(addresses), version)


def drop_of(name: str, addresses: Addresses, version: Place | None = None) -> Drop:
    return Drop(lower(name), tuple(t.address for t in targets_of(addresses)), version)


def alias_of(name: str, target: str, *, zone: str = "", new: bool = False, version: Place | None = None) -> Alias:
    return Alias(lower(name), lower(target), zone=zone, condition=condition_of(new, version))


def remove_of(name: str, version: Place | None = None) -> Remove:
    return Remove(lower(name), version)


def move_of(name: str, zone: str, version: Place | None = None) -> Move:
    return Move(lower(name), zone, version)


def _end(seconds: float | None) -> int:
    return 0 if seconds is None else int(time.time() + seconds + 0.999)


def switch_of(name: str, addresses: Addresses | None, seconds: float | None = None) -> Switch:
    """addresses None: switch back. seconds: for how long."""
    if addresses is None:
        return Switch(lower(name), ())
    return Switch(lower(name), tuple(target_of(a).address for a in addresses), _end(seconds))


def out_of(address: str, seconds: float | None = None) -> Out:
    return Out(address, _end(seconds))


def in_of(address: str) -> In:
    return In(address)


def schedule_of(name: str, slots: Sequence[tuple[str, Sequence[str]]]) -> SetSchedule:
    """slots: (when, addresses) each; none: no schedule any more."""
    return SetSchedule(
        lower(name), tuple(Slot(when, tuple(target_of(a).address for a in addresses)) for when, addresses in slots)
    )


def take_of(name: str) -> Take:
    return Take(lower(name))


def register_of(name: str, address: str, *, exclusive: bool = False, selection: str = "all", zone: str = "") -> Register:
    target = target_of(address)
    return Register(lower(name), target.address, 1, target.priority, target.weight, exclusive, selection, zone)


def zone_of(
    name: str, admins: list[str], writers: list[str], patterns: list[str], names_max: int = 0, remove: bool = False
) -> SetZone:
    lists = [tuple(sorted(set(each))) for each in (admins, writers, patterns)]
    return SetZone(name, lists[0], lists[1], lists[2], names_max, remove)
