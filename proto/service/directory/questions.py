"""Questions of a station that does not keep a zone, besides look-ups: QUERY and REPLY in the group ``zenjun.dir.ask``.

They have the form of ASK and ANSWER (``lookup.py``). What a question is about, and what is answered, are objects that the asking
and the answering process agree on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from . import canon, lookup
from .entries import DEFAULT_ZONE, NOWHERE, Place, Who, parse_place, place_text
from .names import is_zone_name
from .operations import Row, read_int

KINDS: Final = ("outcome", "leases", "list", "zones", "outs", "parts")
"""What has become of an update; how the asker's leases stand; entries; rows of zones; what is out of use. ``parts``: no question,
but the sender's configuration of zones, for everybody."""
LEASES_MAX: Final = 1000
"""Leases that one question is about."""
EVERYBODY: Final[Who] = (1, 1 << 32)
"""Who a message is for that all have to read."""


class Query(NamedTuple):
    """A question about ``zone``. after: place that the answering copy must have reached."""

    request: int
    zone: str
    kind: str
    body: Row
    after: Place = NOWHERE


class Reply(NamedTuple):
    """The answer, as of ``place``."""

    request: int
    place: Place
    body: Row


Question: TypeAlias = lookup.Ask | Query
Message: TypeAlias = lookup.AskMessage | Query | Reply


def encode(to: Who, message: Message) -> bytes:
    """The bytes of a message of the group, and who it is for."""
    if isinstance(message, Query):
        row: Row = {"k": "query", "r": message.request, "z": message.zone, "w": message.kind, "b": message.body}
        row["p"] = place_text(message.after)
    elif isinstance(message, Reply):
        row = {"k": "reply", "r": message.request, "p": place_text(message.place), "b": message.body}
    else:
        return lookup.encode(to, message)
    return lookup.MAGIC + bytes([lookup.FORMAT]) + canon.encode(row | {"d": to})


def decode(data: bytes) -> tuple[Who, Message] | None:
    """The message of these bytes, and who it is for; None for what ``encode`` did not make."""
    header = lookup.MAGIC + bytes([lookup.FORMAT])
    if not data.startswith(header):
        return None
    found = lookup.decode(data)
    if found is not None:
        return found
    try:
        row = canon.load(data[len(header) :])
        to, message = lookup.read_who(row), _read(row)
    except ValueError:
        return None
    return (to, message) if encode(to, message) == data else None


def _is_outcome(body: Row) -> bool:
    return type(body.get("c")) is str and type(body.get("n")) is int


def _is_leases(body: Row) -> bool:
    who, numbers = body.get("w"), body.get("l")
    if type(who) is not list or list(map(type, who)) != [int, int] or type(numbers) is not list:
        return False
    return len(numbers) <= LEASES_MAX and all(type(number) is int for number in numbers)


def _is_list(body: Row) -> bool:
    return type(body.get("f")) is str and type(body.get("l")) is str


def _is_parts(body: Row) -> bool:
    return type(body.get("t")) is str


_BODIES: Final[dict[str, Callable[[Row], bool]]] = {
    "outcome": _is_outcome,
    "leases": _is_leases,
    "list": _is_list,
    "zones": lambda body: not body,
    "outs": lambda body: not body,
    "parts": _is_parts,
}


def _read(row: Row) -> Query | Reply:
    body, place = row.get("b"), row.get("p")
    if type(body) is not dict or type(place) is not str:
        raise ValueError("body")
    if row.get("k") == "reply":
        return Reply(read_int(row, "r"), parse_place(place), body)
    zone, kind = row.get("z", DEFAULT_ZONE), row.get("w")
    if row.get("k") != "query" or not is_zone_name(zone) or kind not in KINDS:
        raise ValueError("query")
    if not _BODIES[str(kind)](body):
        raise ValueError("body")
    return Query(read_int(row, "r"), str(zone), str(kind), body, parse_place(place))
