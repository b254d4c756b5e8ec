"""Look-ups (rules E7, L1 to L5): what a name stands for in a copy, and which process answers.

A process that keeps the entry answers from its copy. Any other asks one that does: a *terminal*, which keeps nothing, asks the
manager of its own zone, and that asks the manager of the entry's zone. Copies may be at different places of the order, so one of
them may look in vain for a name that has just moved. The process whose copy is older waits until it has reached the other's
place, and decides again. So each request is forwarded once, and two processes never send it back and forth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol, TypeAlias

from . import canon
from .entries import (
    DEFAULT_ZONE,
    NOWHERE,
    SELECTIONS,
    TARGETS_MAX,
    TTL_MAX,
    Entry,
    Place,
    Target,
    Who,
    is_meta,
    is_target,
    parse_place,
    place_text,
)
from .names import STATIONS_MAX, is_name, is_user, is_zone_name, station_of_name
from .operate import HOPS_MAX
from .operations import Row, read_int, read_list

MAGIC: Final = b"ZA"
FORMAT: Final = 1
CODES: Final = ("", "no-name", "no-address", "alias-loop", "zone-down")
_HEADER: Final = MAGIC + bytes([FORMAT])


# ---- within one copy


class Found(NamedTuple):
    """Where a name leads. path: the names on the way, that of ``entry`` last. code: ``no-name`` or ``alias-loop``, and entry
    None."""

    path: tuple[str, ...]
    entry: Entry | None
    code: str = ""


def station_entry(name: str) -> Entry | None:
    """``sk.station``, which exists of itself at every place; None for other names."""
    station = station_of_name(name)
    if not station:
        return None
    target = Target(f"station:{station}", until=f"station:{station}")
    return Entry(name, "user:root", NOWHERE, targets=(target,))


def follow(read: Callable[[str], Entry | None], name: str) -> Found:
    """Follow aliases, at most ``HOPS_MAX``. read: an entry of the copy. No circle can be made, but a chain can be too long."""
    path = [name]
    for _ in range(HOPS_MAX + 1):
        entry = station_entry(name) or read(name)
        if entry is None:
            return Found(tuple(path), None, "no-name")
        if not entry.alias:
            return Found(tuple(path), entry)
        name = entry.alias
        path.append(name)
    return Found(tuple(path[:-1]), None, "alias-loop")


# ---- between processes


class Ask(NamedTuple):
    """A look-up. version: of the common entry that its sender used, NOWHERE: none. after: the place of the last answer that the
    caller has seen; an earlier one would take it back (rule L5). hop: 0 from where the look-up is, 1 forwarded."""

    request: int
    name: str
    version: Place = NOWHERE
    after: Place = NOWHERE
    hop: int = 0


class Answer(NamedTuple):
    """The effective targets of a name at ``place``, or why there are none. path: the names on the way, that of the entry last.
    targets: in their own order; the asking process selects. zone: of the entry, or the one that is down."""

    request: int
    place: Place
    code: str = ""
    path: tuple[str, ...] = ()
    version: Place = NOWHERE
    ttl: int = 1
    selection: str = "all"
    targets: tuple[Target, ...] = ()
    zone: str = DEFAULT_ZONE
    owner: str = "user:root"
    meta: tuple[tuple[str, str], ...] = ()


class NotHere(NamedTuple):
    """The sender does not keep the entry. version: of its common entry, or its place if it knows no such name."""

    request: int
    version: Place


AskMessage: TypeAlias = Ask | Answer | NotHere


class Common(NamedTuple):
    """What every holder knows of a name."""

    zone: str
    version: Place


class Copy(Protocol):
    """A process's copy, as far as decisions need it."""

    @property
    def place(self) -> Place:
        """The place of the last input applied."""

    def common(self, name: str) -> Common | None: ...

    def keeps(self, zone: str) -> bool:
        """Whether this process has the entries of a zone."""

    def manager(self, zone: str) -> Who | None:
        """The zone's lowest active holder in the view (rule Z3)."""


class Here(NamedTuple):
    """Answer from the own copy: what the name stands for, or that the name does not exist."""


class Forward(NamedTuple):
    """Send ``ask`` to another process, and pass its answer on."""

    to: Who
    ask: Ask


class Wait(NamedTuple):
    """Decide again when the own copy has reached this place."""

    place: Place


class Down(NamedTuple):
    """Answer ``zone-down``."""

    zone: str


Decision: TypeAlias = Here | Forward | Wait | Down | NotHere


def decide(copy: Copy, ask: Ask) -> Decision:
    """What to do with a look-up, the process's own or another one's."""
    behind = max(ask.version, ask.after)
    if behind > copy.place:
        return Wait(behind)
    common = copy.common(ask.name)
    if common is None:
        # The process that forwarded it knew the name, or knows its end by now: it decides by this place.
        return Here() if ask.hop == 0 else NotHere(ask.request, copy.place)
    if copy.keeps(common.zone):
        return Here()
    if ask.hop:
        return NotHere(ask.request, common.version)
    manager = copy.manager(common.zone)
    if manager is None:
        return Down(common.zone)
    return Forward(manager, ask._replace(version=common.version, hop=1))


def after_not_here(copy: Copy, ask: Ask, reply: NotHere) -> Decision:
    """What to do when the process that ``ask`` was forwarded to does not keep the name: its knowledge is the newer one, for it
    has waited for the version in ``ask``."""
    return decide(copy, ask._replace(after=max(ask.after, reply.version)))


def manager_of(stations: Iterable[int], active: Iterable[Who]) -> Who | None:
    """The lowest active holder among a zone's stations."""
    among = frozenset(stations)
    return min((who for who in active if who[0] in among), default=None)


# ---- messages of the group zenjun.dir.ask


def encode(to: Who, message: AskMessage) -> bytes:
    """The bytes of a message, and who it is for: all members of the group get it."""
    match message:
        case Ask(request, name, version, after, hop):
            row: Row = {"k": "ask", "r": request, "n": name, "v": place_text(version), "p": place_text(after), "h": hop}
        case NotHere(request, version):
            row = {"k": "not-here", "r": request, "v": place_text(version)}
        case Answer(request, place, code, path, version, ttl, selection, targets, zone, owner, meta):
            row = {"k": "answer", "r": request, "p": place_text(place), "c": code, "n": path, "v": place_text(version)}
            row |= {"t": ttl, "s": selection, "a": targets, "z": zone, "o": owner, "m": dict(meta)}
    return _HEADER + canon.encode(row | {"d": to})


def _place(row: Row, key: str) -> Place:
    value = row.get(key)
    if type(value) is not str:
        raise ValueError("place")
    return parse_place(value)


def _read_answer(row: Row) -> Answer:
    code, path, selection, meta = row.get("c"), read_list(row, "n", HOPS_MAX + 1), row.get("s"), row.get("m")
    zone, owner = row.get("z"), row.get("o")
    if code not in CODES or not all(map(is_name, path)) or selection not in SELECTIONS or type(meta) is not dict:
        raise ValueError("answer")
    if not is_zone_name(zone) or not is_user(owner):
        raise ValueError("answer")
    pairs = tuple(sorted(meta.items()))
    if not all(type(value) is str for _, value in pairs) or not is_meta(pairs):
        raise ValueError("meta")
    targets = tuple([_read_target(item) for item in read_list(row, "a", TARGETS_MAX)])
    ttl = read_int(row, "t", 0, TTL_MAX)
    request, place, version = read_int(row, "r"), _place(row, "p"), _place(row, "v")
    names = tuple(map(str, path))
    return Answer(request, place, str(code), names, version, ttl, str(selection), targets, str(zone), str(owner), pairs)


def _read_target(item: object) -> Target:
    """A target in use; unlike one that a program sets, it may go with a lease."""
    if type(item) is not list or list(map(type, item)) != [str, int, int, str]:
        raise ValueError("target")
    target = Target(*item)
    leased = target.until[:1].isdigit()
    if leased:
        parse_place(target.until)
    if not is_target(target._replace(until="") if leased else target):
        raise ValueError("target")
    return target


def read_who(row: Row) -> Who:
    station, client = read_list(row, "d", 2)
    if type(station) is not int or type(client) is not int or not 0 < station <= STATIONS_MAX or client < 0:
        raise ValueError("who")
    return (station, client)


def _read(row: Row) -> AskMessage:
    match row.get("k"):
        case "ask":
            name = row.get("n")
            if not is_name(name):
                raise ValueError("name")
            return Ask(read_int(row, "r"), str(name), _place(row, "v"), _place(row, "p"), read_int(row, "h", 0, 1))
        case "not-here":
            return NotHere(read_int(row, "r"), _place(row, "v"))
        case "answer":
            return _read_answer(row)
    raise ValueError("no such message")


def decode(data: bytes) -> tuple[Who, AskMessage] | None:
    """The message of these bytes, and who it is for; None for what ``encode`` did not make."""
    if not data.startswith(_HEADER):
        return None
    try:
        row = canon.load(data[3:])
        to, message = read_who(row), _read(row)
    except ValueError:
        return None
    return (to, message) if encode(to, message) == data else None
