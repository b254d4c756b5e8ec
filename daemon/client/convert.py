"""Converts between the values of programs and the contents of frames."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...proto.wire import GROUP_NAME_MAX, ORDER_NAMES
from ..clientwire import LEVELS
from .errors import BadLevel, BadName, ProtocolError
from .types import (
    Blocked,
    Closed,
    ClusterView,
    Event,
    Expelled,
    JoinLevel,
    Level,
    Member,
    Opened,
    Order,
    Reopened,
    SendLevel,
    Station,
    Unblocked,
)


def cut_name(name: str, limit: int) -> bytes:
    """UTF-8 of the name, at most ``limit`` bytes, never ending inside a character. What cannot be printed becomes a question
    mark: the name goes to logs and terminals, and a script may be called anything."""
    name = "".join(c if c.isprintable() else "?" for c in name)
    return name.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore").encode()


def group_name(name: str) -> bytes:
    try:
        body = name.encode()
    except UnicodeEncodeError:
        raise BadName(f"group name {name!r} cannot be written as UTF-8") from None
    if not 1 <= len(body) <= GROUP_NAME_MAX:
        raise BadName(f"group name of {len(body)} bytes: 1..{GROUP_NAME_MAX} are allowed")
    return body


def join_level(level: JoinLevel | None, order: Order) -> Level:
    """The level of delivery that a JOIN asks for."""
    if order not in ORDER_NAMES.values():
        raise ValueError(f"order {order!r}: expected one of {', '.join(ORDER_NAMES.values())}")
    if order == "op":
        if level not in (None, "ordered", "accepted"):
            raise BadLevel(f"level {level!r}: a group of order op delivers on acceptance, it has no other level")
        return "ordered"
    if level is None:
        return "preack"
    if order in ("abcast", "token") and level == "ack":
        raise BadLevel(f"level {level!r}: a group of order {order} has the levels ordered and preack")
    if level == "accepted" or level not in LEVELS:
        raise ValueError(f"level {level!r}: expected one of {', '.join(LEVELS)}")
    return level


def level_number(level: SendLevel) -> int | None:
    if level is None or level == "sent":
        return None
    if level not in LEVELS:
        raise ValueError(f"level {level!r}: expected one of sent, {', '.join(LEVELS)}")
    return LEVELS.index(level)


def json_object(body: bytes) -> dict[str, Any]:
    value = json.loads(body)
    if not isinstance(value, dict):
        raise ProtocolError("the daemon sent JSON that is no object")
    return value


def to_members(entries: Sequence[Sequence[Any]]) -> tuple[Member, ...]:
    return tuple(Member(int(e[0]), int(e[1]), str(e[2])) for e in entries)


def to_event(e: dict[str, Any]) -> Event:
    """The event of an EVENT frame, of the class that its name has. A name that this library does not know gives a plain one."""
    name, instance = str(e["event"]), int(e.get("instance", 0))
    reason, station = str(e.get("reason", "")), int(e.get("station", 0))
    undecided, forgotten, unsafe = int(e.get("undecided", 0)), int(e.get("forgotten", 0)), bool(e.get("unsafe"))
    if name == "view":
        present = tuple(Station(int(m[0]), int(m[1]), str(m[2])) for m in e["members"])
        joined, left = tuple(int(s) for s in e["joined"]), tuple(int(s) for s in e["left"])
        place = (int(e["clock"]), station, int(e["index"]))
        members = tuple(m.station for m in present)
        return ClusterView(name, instance, members=members, detail=e, present=present, joined=joined, left=left, place=place)
    if name == "expelled":
        return Expelled(
            name, instance, undecided=undecided, detail=e, reason=reason, station=station, forgotten=forgotten, unsafe=unsafe
        )
    if name == "closed":
        return Closed(name, instance, detail=e, reason=reason, station=station)
    if name == "blocked":
        return Blocked(name, stations=_blocked(e["stations"]), detail=e, quorum=bool(e.get("quorum", True)))
    if name == "unblocked":
        return Unblocked(name, detail=e)
    if name in ("open", "reopened"):
        members, joined_in = tuple(int(m) for m in e.get("members", ())), bool(e.get("joined"))
        if name == "open":
            return Opened(name, instance, members=members, detail=e, joined=joined_in)
        return Reopened(
            name, instance, members=members, undecided=undecided, detail=e, joined=joined_in, forgotten=forgotten, unsafe=unsafe
        )
    return Event(name, instance, detail=e)


def _blocked(entries: Sequence[Any]) -> tuple[tuple[int, str], ...]:
    return tuple((int(e["station"]), str(e["reason"])) if isinstance(e, dict) else (int(e[0]), str(e[1])) for e in entries)
