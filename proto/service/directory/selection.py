"""Which targets of an entry are in use, and in what order a caller tries them (rules E5, E6). Integers only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from typing import Final, TypeAlias

from .addresses import station_of_address
from .entries import Entry, Target, lease_of

IsOut: TypeAlias = Callable[[str], bool]
"""Whether an address or ``station:k`` is out of use."""

_FRACTION_BITS: Final = 16


def station_of(target: Target) -> int:
    """The station of a target, taken from its *while*, its lease or its address. 0: not known."""
    if target.until:
        lease = lease_of(target)
        return lease.station if lease else int(target.until[8:])
    return station_of_address(target.address)


def _chosen(entry: Entry, addresses: Sequence[str]) -> list[Target]:
    """The entry's targets with these addresses; an address that is no target counts as one of priority 0 and weight 1."""
    known = {t.address for t in entry.targets}
    wanted = frozenset(addresses)
    return [t for t in entry.targets if t.address in wanted] + [Target(a) for a in addresses if a not in known]


def _usable(targets: Sequence[Target], up: Collection[int], is_out: IsOut) -> list[Target]:
    """The targets in use of the lowest priority that has any, in their order, each address once."""
    best: dict[str, Target] = {}
    lowest = -1
    for t in sorted(targets, key=_key):
        if lowest >= 0 and t.priority != lowest:
            break
        if t.address in best or is_out(t.address):
            continue
        station = station_of(t)
        if station and ((t.until[:1] == "s" and station not in up) or is_out(f"station:{station}")):
            continue
        best[t.address] = t
        lowest = t.priority
    return list(best.values())


def _key(target: Target) -> tuple[int, str, str]:
    return (target.priority, target.address, target.until)


def effective(entry: Entry, up: Collection[int], is_out: IsOut) -> list[Target]:
    """The targets in use: a function of the entry, of the stations in the view, and of what is out of use.

    up: stations with a directory process in the group's view. Returns [] if nothing is up (``no-address``).
    """
    schedule = entry.schedule
    if entry.override:
        first = _usable(_chosen(entry, entry.override), up, is_out)
    elif schedule is not None and schedule.current >= 0:
        first = _usable(_chosen(entry, schedule.slots[schedule.current].addresses), up, is_out)
    else:
        return _usable(entry.targets, up, is_out)
    return first or _usable(entry.targets, up, is_out)


def select(
    targets: Sequence[Target],
    selection: str,
    station: int,
    turn: int = 0,
    key: bytes = b"",
    near: Collection[int] = (),
) -> list[Target]:
    """All effective targets in the order in which a caller tries them.

    station: where the look-up is. turn: number of ``cyclic`` look-ups of this name at the station so far. key: for ``spread``.
    near: stations of the own zone, for ``nearest``.
    """
    if selection == "cyclic" and targets:
        start = (station - 1 + turn) % len(targets)
        return [*targets[start:], *targets[:start]]
    if selection == "spread":
        return sorted(targets, key=lambda t: (_cost(t, key), t.address))
    if selection == "nearest":
        return sorted(targets, key=lambda t: _distance(station_of(t), station, near))
    return list(targets)


def _distance(where: int, station: int, near: Collection[int]) -> int:
    return 0 if where == station else 1 if where in near else 2


def _cost(target: Target, key: bytes) -> int:
    """Weighted rendezvous hashing: -log2(u) / weight for a u in (0, 1] that address and key make; the lowest wins. If a target is
    removed, the others keep their keys. Weight 0: after all others."""
    if target.weight == 0:
        return 1 << 80
    digest = blake2b(b"%s %s" % (target.address.encode("ascii"), key), digest_size=8).digest()
    return (minus_log2(int.from_bytes(digest, "big")) << 32) // target.weight


def minus_log2(value: int) -> int:
    """-log2((value + 1) / 2^64) in units of 2^-16, for 0 <= value < 2^64."""
    value += 1
    exponent = value.bit_length() - 1
    mantissa = value << 64 - exponent  # 1 to 2, in units of 2^-64
    fraction = 0
    for _ in range(_FRACTION_BITS):
        mantissa = mantissa * mantissa >> 64
        fraction <<= 1
        if mantissa >> 65:
            fraction |= 1
            mantissa >>= 1
    return ((64 - exponent) << _FRACTION_BITS) - fraction
