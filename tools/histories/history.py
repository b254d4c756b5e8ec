"""What the programs of a run have written down, read back: connections, what each of them sent and saw, and the runner's marks.

Every recorder appends JSON objects, one a line, to a file of its own (``recorder.py`` writes them, the table of kinds is here).
All times ``t`` are nanoseconds of CLOCK_MONOTONIC, which all processes of one machine share.

| k | written when | members besides ``t`` |
|---|---|---|
| connect | the daemon has answered | ``c`` connection, ``station``, ``slot``, ``client``, ``level``, ``group`` (may be missing) |
| send | before the message is queued | ``c``, ``m`` its name, ``level`` waited for |
| result | the fate of a message is told | ``c``, ``m``, ``r``: done, undecided (then ``reached``), refused, lost, timeout |
| message | delivered | ``c``, ``m``, ``p`` place, ``from`` [station, client], ``whole``: its bytes are as sent, ``g`` (below) |
| group | a view of the process group | ``c``, ``p``, ``instance``, ``members``, ``joined``, ``left``, ``reason`` |
| view | the cluster's members change | ``c``, ``p``, ``instance``, ``members`` [[station, incarnation]], ``joined``, ``left`` |
| event | anything else the daemon says | ``c``, ``name``, ``detail`` |
| end | the connection is over | ``c``, ``why`` (``bye``: closed on purpose), ``error``: name of the exception |
| run, began, fault, healed, converged, round, died, multicast | the runner's marks | below |

``run``: ``seed``, ``stations``, ``quorum``, ``last`` (stations there at the end), ``levels``. ``began``: time 0 of the plan.
``fault``: ``what``, ``number``, ``does`` (begin or end). ``converged``: ``took_ms`` since healed. ``round``: ``number``,
``complete``. ``died``, a daemon that ended by itself: ``station``, ``code``, ``log``.

Programs in groups that overlap (``multicaster.py``) have files of their own, in which ``group`` of a connection is its order.
There ``g`` of a message or view of a group is the group's name. Mark ``multicast``: ``groups`` (stations by group), or ``round``
and ``complete``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

Place: TypeAlias = tuple[int, int, int]
"""(clock, station, index); a change of members follows all messages of its (clock, station)."""
VIEW_INDEX: Final = 1 << 16
"""Index of a change of members in a place: larger than that of any message."""
SLOTS: Final = ("ordered", "preack", "ack")
"""Each recorder keeps one connection per level of delivery."""
BUS_SLOTS: Final = ("ack",)
"""On a bus the other levels may be taken back, and cannot be had."""
SAFE: Final = frozenset({"preack", "ack"})
"""Levels at which nothing that was delivered may be taken back."""
MARKS: Final = frozenset({"run", "began", "fault", "healed", "converged", "round", "died", "multicast"})


@dataclass(slots=True)
class Sent:
    """One message as its sender saw it."""

    name: str
    connection: Connection
    number: int
    """From 1, in the order of sending; what was refused keeps its number here, but the daemon does not count it."""
    level: str
    t: int
    result: str | None = None
    """done, undecided, refused, lost (with the connection), timeout; None: never reported."""
    reached: str | None = None
    t_result: int = 0


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that a connection was given, in the order in which it came."""

    t: int
    kind: str
    """message, group, view or event."""
    place: Place | None
    """None for an event."""
    content: tuple[Any, ...]
    """What must be equal at all stations at this place."""
    raw: dict[str, Any]

    @property
    def name(self) -> str:
        """Of a message or an event."""
        return str(self.raw["m"] if self.kind == "message" else self.raw.get("name", self.kind))


@dataclass(slots=True)
class Connection:
    """One program's connection to its daemon, from the daemon's first answer to its end."""

    id: str
    station: int
    slot: str
    client: int
    t: int
    group: str = ""
    """The process group it is in."""
    items: list[Item] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    end: str | None = None
    """``bye``, or what broke it; None: the recorder ended before it could write it."""
    error: str = ""
    t_end: int = 0


@dataclass(slots=True)
class Life:
    """A stretch of a connection in which its daemon stayed in the cluster: over changes of members, up to the next break."""

    connection: Connection
    number: int
    items: list[Item]
    """Those with a place, and their order is the order of the cluster."""
    tags: list[int]
    """For each item: the instance that the daemon had reported last."""
    expelled: bool = False
    alive: bool = False
    """It lasted until the end of the run."""

    @property
    def safe(self) -> bool:
        """Whether nothing in it may be taken back."""
        return self.connection.slot in SAFE

    @property
    def instances(self) -> set[int]:
        return set(self.tags)

    def __str__(self) -> str:
        return f"{self.connection.id}/{self.number} ({self.connection.slot} at station {self.connection.station})"


@dataclass(slots=True)
class History:
    """All of a run."""

    stations: int
    quorum: int
    connections: list[Connection] = field(default_factory=list)
    marks: list[dict[str, Any]] = field(default_factory=list)
    sent: dict[str, Sent] = field(default_factory=dict)
    """By name."""
    finalists: tuple[int, ...] = ()
    """Stations that must be there at the end; empty: all."""
    slots: tuple[str, ...] = SLOTS
    """What programs there were at each station."""

    @property
    def last(self) -> tuple[int, ...]:
        """Stations that must be there at the end."""
        return self.finalists or tuple(range(1, self.stations + 1))

    def by_group(self) -> dict[str, History]:
        """A history for each process group, by name: its connections and what they sent, and all marks."""
        names = sorted({connection.group for connection in self.connections})
        return {name: self._only(name) for name in names}

    def _only(self, group: str) -> History:
        out = History(self.stations, self.quorum, marks=self.marks, finalists=self.finalists, slots=self.slots)
        out.connections = [connection for connection in self.connections if connection.group == group]
        out.sent = {name: sent for name, sent in self.sent.items() if sent.connection.group == group}
        return out

    def lives(self) -> list[Life]:
        """Every connection cut at its breaks, those without anything delivered left out."""
        return [life for connection in self.connections for life in _lives(connection) if life.items]

    def marked(self, kind: str) -> list[dict[str, Any]]:
        return [mark for mark in self.marks if mark["k"] == kind]


class Unreadable(Exception):
    """A history contradicts itself: the recorder is wrong, not the cluster."""


def read(
    paths: Iterable[Path], stations: int, quorum: int, finalists: tuple[int, ...] = (), slots: tuple[str, ...] = SLOTS
) -> History:
    """Read the files of one run. A last line without an end is left out: its writer was killed. Raises Unreadable."""
    history = History(stations, quorum, finalists=finalists, slots=slots)
    for path in sorted(paths):
        load(history, _lines(path), path.name)
    return history


def load(history: History, records: Iterable[dict[str, Any]], where: str = "records") -> None:
    """Add one recorder's records to a history. Raises Unreadable."""
    open_: dict[str, Connection] = {}
    for number, r in enumerate(records, 1):
        try:
            _take(history, open_, r)
        except (KeyError, TypeError, ValueError) as error:
            raise Unreadable(f"{where}, record {number}: {type(error).__name__} {error}: {r}") from error


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    text = path.read_bytes()
    for line in text.splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)


def _take(history: History, open_: dict[str, Connection], r: dict[str, Any]) -> None:
    kind, t = r["k"], int(r["t"])
    if kind in MARKS:
        history.marks.append(r)
        return
    if kind == "connect":
        connection = Connection(r["c"], int(r["station"]), r["slot"], int(r["client"]), t, r.get("group", ""))
        if open_.setdefault(connection.id, connection) is not connection:
            raise ValueError("a connection begins twice")
        history.connections.append(connection)
        return
    connection = open_[r["c"]]
    if kind == "send":
        sent = Sent(r["m"], connection, len(connection.sent) + 1, r["level"], t)
        if history.sent.setdefault(sent.name, sent) is not sent:
            raise ValueError("a name is used twice")
        connection.sent.append(sent)
    elif kind == "result":
        sent = history.sent[r["m"]]
        if sent.result is not None:
            raise ValueError("two results of one message")
        sent.result, sent.reached, sent.t_result = r["r"], r.get("reached"), t
    elif kind == "end":
        connection.end, connection.error, connection.t_end = r["why"], r.get("error", ""), t
    else:
        connection.items.append(_item(kind, t, r))


def _item(kind: str, t: int, r: dict[str, Any]) -> Item:
    if kind == "event":
        return Item(t, kind, None, (r["name"],), r)
    clock, station, index = (int(x) for x in r["p"])
    content: tuple[Any, ...]
    if kind == "message":
        content = (r["m"], *r["from"])
    elif kind == "group":
        content = ("group", r["instance"], r["reason"], *(_members(r[key]) for key in ("members", "joined", "left")))
    elif kind == "view":
        content = ("view", r["instance"], _members(r["members"]), tuple(sorted(r["joined"])), tuple(sorted(r["left"])))
    else:
        raise ValueError(f"unknown kind {kind!r}")
    return Item(t, kind, (clock, station, index), content, r)


def _members(entries: Iterable[Any]) -> tuple[tuple[Any, ...], ...]:
    return tuple(sorted(tuple(entry) for entry in entries))


def _lives(connection: Connection) -> Iterator[Life]:
    life = Life(connection, 1, [], [])
    instance = 0
    for item in connection.items:
        if item.kind == "event":
            if item.name == "expelled":
                life.expelled = True
            elif item.name in ("open", "reopened"):
                yield life
                life = Life(connection, life.number + 1, [], [])
                instance = int(item.raw["detail"]["instance"])
            continue
        if item.kind == "view" or not instance:
            instance = int(item.raw.get("instance", 0))
        life.items.append(item)
        life.tags.append(instance)
    life.alive = connection.end == "bye"
    yield life
