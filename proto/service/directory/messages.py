"""Messages of the group ``zenjun.dir``: encoding and decoding.

A message is ``MAGIC``, the format and a canonical JSON object. ``decode`` never raises: what ``encode`` did not make is
``Malformed``, equally at every station, because a message counts only if it is byte for byte what ``encode`` makes of its
content.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from . import canon
from .entries import SLOTS_MAX, TIME_MAX, Place, parse_place, place_text
from .names import is_name, is_stamp, is_user
from .operations import Operation, Row, SetSchedule, Take, operation_row, read_int, read_list, read_operation

MAGIC: Final = b"ZD"
FORMAT: Final = 1
"""A message has the lowest format that has all of its content. A station stops at a higher one than its own (rule S7)."""
MESSAGE_MAX: Final = 60 * 1024
OPERATIONS_MAX: Final = 64
ROLES_MAX: Final = 256
ENDS_MAX: Final = 4096
"""Leases that one END ends."""
ONDISK: Final = 1
"""Flag of an update: report when it is on disk (rule W4)."""
APPLIED: Final = 2
"""Flag of an update: report when it is applied."""
_HEADER: Final = MAGIC + bytes([FORMAT])


class Id(NamedTuple):
    """Identifies an update forever (rule W5). client: 16 hexadecimal digits, random, one for each connection of a program."""

    client: str
    counter: int


class Update(NamedTuple):
    """Operations that take effect together or not at all. roles: sorted; exactly one is ``user:``, which owns what is made."""

    id: Id
    roles: tuple[str, ...]
    operations: tuple[Operation, ...]
    flags: int = 0

    @property
    def owner(self) -> str:
        return next(role for role in self.roles if role.startswith("user:"))


class End(NamedTuple):
    """The sending process's leases with these numbers, sorted, have ended (rule M1)."""

    numbers: tuple[int, ...]


class Due(NamedTuple):
    """The sender's wall clock has reached ``time``, seconds since 1970 (rule T1)."""

    time: int


class Next(NamedTuple):
    """The next instant of a schedule, and its slot, if the name still has this version (rule T3)."""

    name: str
    version: Place
    due: int
    slot: int


class Holding(NamedTuple):
    """The sending process is an active holder from here on, or is not any more."""

    active: bool


class OnDisk(NamedTuple):
    """All up to ``place`` is durable at the sender."""

    place: Place


class HasApplied(NamedTuple):
    """The sender has applied all up to ``place``."""

    place: Place


class Check(NamedTuple):
    """All report their sums at this message's place (rule S6)."""


class Digest(NamedTuple):
    """The sender's sums at the place of a CHECK."""

    place: Place
    main: int
    rest: int


class Malformed(NamedTuple):
    """A message that no correct station has sent. reason: human-readable; it may differ between stations."""

    reason: str


class TooNew(NamedTuple):
    """A message of a later format."""

    format: int


Message: TypeAlias = Update | End | Due | Next | Holding | OnDisk | HasApplied | Check | Digest

_ID: Final = re.compile("[0-9a-f]{16}", re.ASCII)
_SUM: Final = re.compile("[0-9a-f]{32}", re.ASCII)


def encode(message: Message) -> bytes:
    """The bytes of a message. Does not look whether it is within its bounds: ``check`` does."""
    row: Row
    if type(message) is Update:
        row = {
            "k": "update",
            "i": message.id.client,
            "c": message.id.counter,
            "r": message.roles,
            "o": [operation_row(op) for op in message.operations],
        }
        if message.flags:
            row["f"] = message.flags
    else:
        row = _small_row(message)
    return _HEADER + canon.encode(row)


def _small_row(m: Message) -> Row:
    match m:
        case End(numbers):
            return {"k": "end", "l": numbers}
        case Due(time):
            return {"k": "due", "t": time}
        case Next(name, version, due, slot):
            return {"k": "next", "n": name, "v": place_text(version), "j": due, "w": slot}
        case Holding(active):
            return {"k": "holding", "a": int(active)}
        case OnDisk(place):
            return {"k": "ondisk", "p": place_text(place)}
        case HasApplied(place):
            return {"k": "applied", "p": place_text(place)}
        case Digest(place, main, rest):
            return {"k": "digest", "p": place_text(place), "m": f"{main:032x}", "s": f"{rest:032x}"}
        case _:
            return {"k": "check"}


def _place(row: Row, key: str) -> Place:
    value = row.get(key)
    if type(value) is not str:
        raise ValueError("place")
    return parse_place(value)


@lru_cache(maxsize=1024)
def _wrong_roles(roles: tuple[str, ...]) -> str:
    """What is wrong with an update's roles; most updates have the same ones."""
    if not all(is_stamp(role) for role in roles) or list(roles) != sorted(set(roles)):
        return "roles"
    return "" if sum(is_user(role) for role in roles) == 1 else "roles without exactly one user"


def _check_update(update: Update) -> Update:
    """Raises ValueError for what is wrong besides the operations."""
    if type(update.id.client) is not str or _ID.fullmatch(update.id.client) is None:
        raise ValueError("id")
    if not all(type(role) is str for role in update.roles):
        raise ValueError("roles")
    if problem := _wrong_roles(update.roles):
        raise ValueError(problem)
    if len(update.roles) > ROLES_MAX or len(update.operations) > OPERATIONS_MAX:
        raise ValueError("too-large")
    if not update.operations:
        raise ValueError("no operation")
    if len(update.operations) > 1 and sum(type(op) is Take for op in update.operations) > 1:
        raise ValueError("an outcome has room for one address")
    return update


def _read_update(row: Row) -> Update:
    roles = tuple(read_list(row, "r", ROLES_MAX))
    operations = tuple([read_operation(item) for item in read_list(row, "o", OPERATIONS_MAX)])
    flags = read_int(row, "f", 0, ONDISK | APPLIED, 0)
    return _check_update(Update(Id(row.get("i"), read_int(row, "c")), roles, operations, flags))  # type: ignore[arg-type]


def _read_end(row: Row) -> End:
    numbers = read_list(row, "l", ENDS_MAX)
    if not all(type(n) is int and 1 <= n <= canon.INT_MAX for n in numbers) or numbers != sorted(set(numbers)):
        raise ValueError("leases")
    return End(tuple(numbers))


def _read_next(row: Row) -> Next:
    name = row.get("n")
    if not is_name(name):
        raise ValueError("name")
    due, slot = read_int(row, "j", 1, TIME_MAX - 1), read_int(row, "w", 0, SLOTS_MAX - 1)
    return Next(str(name), _place(row, "v"), due, slot)


def _read_digest(row: Row) -> Digest:
    sums = []
    for key in ("m", "s"):
        value = row.get(key)
        if type(value) is not str or _SUM.fullmatch(value) is None:
            raise ValueError("sum")
        sums.append(int(value, 16))
    return Digest(_place(row, "p"), sums[0], sums[1])


_READERS: Final[dict[str, Callable[[Row], Message]]] = {
    "update": _read_update,
    "end": _read_end,
    "due": lambda r: Due(read_int(r, "t", 1, TIME_MAX - 1)),
    "next": _read_next,
    "holding": lambda r: Holding(bool(read_int(r, "a", 0, 1))),
    "ondisk": lambda r: OnDisk(_place(r, "p")),
    "applied": lambda r: HasApplied(_place(r, "p")),
    "check": lambda r: Check(),
    "digest": _read_digest,
}


def decode(data: bytes) -> Message | Malformed | TooNew:
    """The message of these bytes. Never raises."""
    if data[:2] != MAGIC or len(data) < 4 or data[2] == 0:
        return Malformed("no message of the directory")
    if data[2] > FORMAT:
        return TooNew(data[2])
    if len(data) > MESSAGE_MAX:
        return Malformed("too long")
    try:
        row = canon.load(data[3:])
        kind = row.get("k")
        reader = _READERS.get(kind) if type(kind) is str else None
        if reader is None:
            return Malformed("no such kind of message")
        message = reader(row)
    except ValueError as error:
        return Malformed(str(error)[:200])
    if encode(message) != data:
        return Malformed("not in canonical form")
    return message


def check(message: Message) -> str:
    """Why no station would take this message, for its sender: "" if all would; else ``too-large``, or what is wrong."""
    data = encode(message)
    if len(data) > MESSAGE_MAX:
        return "too-large"
    decoded = decode(data)
    return decoded.reason if isinstance(decoded, Malformed) else ""


def seal(update: Update) -> tuple[bytes, str]:
    """The bytes of an update whose operations ``read_operation`` has made, and what ``check`` says of it."""
    data = encode(update)
    if len(data) > MESSAGE_MAX:
        return data, "too-large"
    if any(type(op) is SetSchedule for op in update.operations):
        return data, check(update)  # a sender computes its instants after it was read
    try:
        read_int({"c": update.id.counter}, "c")
        _check_update(update)
    except ValueError as error:
        return data, str(error)[:200]
    return data, ""
