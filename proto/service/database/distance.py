"""Databases at a distance, without I/O: the messages of the group ``zenjun.db`` (rules Z1 to Z4 of docs/database.md).

The process of each station tells the others which zones it is configured with and which databases are active there. A program at
a station without an active copy has a *session* at another one: a sequence of calls, one at a time, each with one reply. The
group delivers each sender's messages in their order and without a hole while sender and receiver are in it, so no call is sent
twice; a session ends with the view without one of its ends.

Every input returns effects, to be carried out in order; none raises for what others sent.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from ..base import Effect, Emit, Source
from .zones import Zones

EARLY_MAX: Final = 64
SESSIONS_MAX: Final = 32
"""That a station serves at a time."""
CALL_MAX: Final = 8 << 20
"""Bytes of a call; and of a reply, which has the rows of a batch or one long row."""
PART_BYTES: Final = 60 * 1024
"""Of a call or reply in one message."""
TEXT_MAX: Final = 64 * 1024
"""Bytes of HERE, and of the reason why a session is over."""
_HEAD: Final = struct.Struct("!BIIIIB")
HEAD_BYTES: Final = _HEAD.size
_NOBODY: Final[Source] = (0, 0)


class Kind(IntEnum):
    HERE = 1
    """What a station is configured with, and what is active there."""
    CALL = 2
    REPLY = 3
    END = 4
    """The program has no use for the session any more."""
    GONE = 5
    """There is no such session; or there is none any more."""


class Frame(NamedTuple):
    """A message of the group."""

    kind: Kind
    to: Source = _NOBODY
    session: int = 0
    """The number is that of the process of the program's station."""
    number: int = 0
    """Of the call in its session, from 0."""
    is_last: bool = True
    """The last part of the call or reply."""
    data: bytes = b""

    def encode(self) -> bytes:
        return _HEAD.pack(self.kind, *self.to, self.session, self.number, self.is_last) + self.data

    @classmethod
    def decode(cls, data: bytes) -> Frame | None:
        """None: no frame."""
        try:
            kind, station, client, session, number, is_last = _HEAD.unpack_from(data)
            return cls(Kind(kind), (station, client), session, number, bool(is_last), data[_HEAD.size :])
        except (struct.error, ValueError):
            return None


class Here(NamedTuple):
    """What a process says of its station."""

    zones: str
    """``Zones.text()``."""
    databases: Mapping[str, bool]
    """Those that are active, by uuid; True: all of their sites are, and have them on their disks."""

    def encode(self) -> bytes:
        return json.dumps({"z": self.zones, "d": dict(sorted(self.databases.items()))}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Here | None:
        """None: it is none."""
        try:
            found = json.loads(data) if len(data) <= TEXT_MAX else None
        except (ValueError, RecursionError):
            return None
        if type(found) is not dict or type(found.get("z")) is not str or type(found.get("d")) is not dict:
            return None
        return cls(found["z"], {str(uuid): value is True for uuid, value in found["d"].items()})


@dataclass(frozen=True, slots=True)
class Asked(Effect):
    """Run this call for a program of another station; ``answer`` has to follow. number 0 begins the session."""

    source: Source
    session: int
    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Dropped(Effect):
    """A session that is served here is over: what it has begun is rolled back."""

    source: Source
    session: int


@dataclass(frozen=True, slots=True)
class Told(Effect):
    """The reply to a call of a program here."""

    session: int
    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Lost(Effect):
    """A session of a program here is over; what was asked last may have been done."""

    session: int
    reason: str


@dataclass(slots=True)
class _Served:
    """A session of a program elsewhere."""

    number: int = 0
    """Of the call that comes, or runs."""
    came: bytearray = field(default_factory=bytearray)
    runs: bool = False


@dataclass(slots=True)
class _Used:
    """A session of a program here."""

    to: Source
    number: int = 0
    """Of the next call."""
    came: bytearray = field(default_factory=bytearray)


class Distance:
    """What the process of one station knows of the others, its sessions at them and theirs here."""

    def __init__(self, me: Source, zones: Zones, part_bytes: int = PART_BYTES) -> None:
        """me: another one after each connection to zenjund. part_bytes: of what a message takes."""
        self.me, self.zones, self.part_bytes = me, zones, part_bytes
        self.text = zones.text()
        self.members: frozenset[Source] = frozenset()
        self.said: dict[Source, Here] = {}
        """What each member has said last."""
        self.early: dict[Source, Here] = {}
        """What processes have said that are in no view yet: in a group of order op a message may come before the view."""
        self.own: Mapping[str, bool] = {}
        self.served: dict[tuple[Source, int], _Served] = {}
        self.used: dict[int, _Used] = {}
        self.dropped: Counter[str] = Counter()
        self._numbers = 0
        self._effects: list[Effect] = []

    # ---- what others may ask

    @property
    def is_complete(self) -> bool:
        """This station is in the group, and every member has spoken."""
        return self.me in self.members and all(member in self.said for member in self.members)

    def refused(self) -> str:
        """Why this station takes no part: its zones are not those of most stations, or of the lowest one if two kinds have as
        many (rule Z1). Empty: they are."""
        found = {source: here.zones for source, here in sorted(self.said.items()) if source in self.members}
        if not found or self.me not in found:
            return ""
        counts = Counter(found.values())
        most = max(found.values(), key=lambda text: counts[text])  # the first of the largest, so that of the lowest station
        if most == self.text:
            return ""
        stations = ", ".join(str(station) for (station, _), text in found.items() if text == most)
        return f"its zones are {self.text}; those of stations {stations} are {most}: they must be equal"

    def active(self, uuid: str) -> dict[int, Source]:
        """The stations where a database is active, whose zones are those here."""
        here = ((source, said) for source, said in self.said.items() if source in self.members and said.zones == self.text)
        return {source[0]: source for source, said in here if uuid in said.databases}

    def is_whole(self, uuid: str) -> bool:
        """One station at least says that all sites of a database are active, and have it on their disks."""
        return any(said.databases.get(uuid) for source, said in self.said.items() if source in self.members)

    def nearest(self, uuid: str, sites: Container[int]) -> Source | None:
        """Where a program of this station uses a database; None: it is active nowhere (rule Z3)."""
        active = self.active(uuid)
        station = self.zones.nearest(self.me[0], sites, active)
        return None if station is None else active[station]

    # ---- the group

    def on_view(self, members: Collection[Source], joined: Collection[Source]) -> list[Effect]:
        """Processes have come or gone."""
        self.members = frozenset(members)
        self.said = {source: here for source, here in self.said.items() if source in self.members and source not in joined}
        self.said |= {source: self.early.pop(source) for source in list(self.early) if source in self.members}
        for session, used in list(self.used.items()):
            if used.to not in self.members or used.to in joined:
                self._lose(session, f"station {used.to[0]} has gone")
        for source, session in list(self.served):
            if source not in self.members or source in joined:
                self._drop(source, session)
        if joined and self.me in self.members:
            self._say()
        return self._take()

    def on_lost(self) -> list[Effect]:
        """The connection to zenjund, or its place in the order, is lost."""
        self.members = frozenset()
        self.said = {}
        self.early = {}
        for session in list(self.used):
            self._lose(session, "this station has left the order")
        for source, session in list(self.served):
            self._drop(source, session)
        return self._take()

    def on_message(self, source: Source, data: bytes) -> list[Effect]:
        """A message of the group."""
        frame = Frame.decode(data)
        if frame is not None and frame.kind is Kind.HERE and source not in self.members:
            if (here := Here.decode(frame.data)) is not None:
                self.early[source] = here
                while len(self.early) > EARLY_MAX:
                    del self.early[next(iter(self.early))]
        elif frame is None or source not in self.members:
            self.dropped["stranger" if frame is not None else "malformed"] += 1
        elif frame.kind is Kind.HERE:
            if (here := Here.decode(frame.data)) is None:
                self.dropped["malformed"] += 1
            else:
                is_first = source not in self.said
                self.said[source] = here
                if is_first and source != self.me and self.me in self.members:
                    self._say()  # what was said at its view may have come to it before it was in the group
        elif frame.to == self.me:
            take = {Kind.CALL: self._call, Kind.REPLY: self._reply, Kind.END: self._end, Kind.GONE: self._gone}
            take[frame.kind](source, frame)
        return self._take()

    def announce(self, databases: Mapping[str, bool]) -> list[Effect]:
        """What is active here now."""
        if databases != self.own:
            self.own = dict(databases)
            if self.me in self.members:
                self._say()
        return self._take()

    def _say(self) -> None:
        self._send(Frame(Kind.HERE, data=Here(self.text, self.own).encode()))

    # ---- programs here

    def begin(self, to: Source) -> int:
        """A session at another station, or at this one; nothing is sent before its first call."""
        self._numbers += 1
        self.used[self._numbers] = _Used(to)
        return self._numbers

    def call(self, session: int, data: bytes) -> list[Effect]:
        """The next call; Told or Lost follows. The one before has been answered."""
        used = self.used[session]
        if used.to not in self.members:
            self._lose(session, f"station {used.to[0]} has gone")
        else:
            self._send_parts(Kind.CALL, used.to, session, used.number, data)
        return self._take()

    def end(self, session: int) -> list[Effect]:
        """The program does not need it any more; also while a call is under way."""
        used = self.used.pop(session, None)
        if used is not None and used.to in self.members:
            self._send(Frame(Kind.END, used.to, session))
        return self._take()

    def _reply(self, source: Source, frame: Frame) -> None:
        used = self.used.get(frame.session)
        if used is None or used.to != source or frame.number != used.number:
            self.dropped["reply"] += 1
            return
        used.came += frame.data
        if frame.is_last:
            data, used.came = bytes(used.came), bytearray()
            used.number += 1
            self._effects.append(Told(frame.session, frame.number, data))

    def _gone(self, source: Source, frame: Frame) -> None:
        used = self.used.get(frame.session)
        if used is not None and used.to == source:
            self._lose(frame.session, f"station {source[0]}: {frame.data[:TEXT_MAX].decode(errors='replace')}")

    def _lose(self, session: int, reason: str) -> None:
        if self.used.pop(session, None) is not None:
            self._effects.append(Lost(session, reason))

    # ---- programs of others

    def answer(self, source: Source, session: int, number: int, data: bytes) -> list[Effect]:
        """The reply to a call."""
        served = self.served.get((source, session))
        if served is not None and served.runs and served.number == number:
            served.runs = False
            served.number += 1
            self._send_parts(Kind.REPLY, source, session, number, data)
        return self._take()

    def close(self, source: Source, session: int, reason: str) -> list[Effect]:
        """A session here cannot go on."""
        if (source, session) in self.served:
            self._refuse(source, session, reason)
        return self._take()

    def _call(self, source: Source, frame: Frame) -> None:
        served = self.served.get((source, frame.session))
        if served is None:
            if (reason := self._why_not(source, frame)) != "":
                self._refuse(source, frame.session, reason)
                return
            served = self.served[source, frame.session] = _Served()
        if served.runs or frame.number != served.number or len(served.came) + len(frame.data) > CALL_MAX:
            self._refuse(source, frame.session, "not a call of this session")
            return
        served.came += frame.data
        if frame.is_last:
            data, served.came, served.runs = bytes(served.came), bytearray(), True
            self._effects.append(Asked(source, frame.session, frame.number, data))

    def _why_not(self, source: Source, frame: Frame) -> str:
        """Why no session begins with this call; empty: one does."""
        said = self.said.get(source)
        if frame.number:
            return "there is no such session"
        if said is None or said.zones != self.text:
            return "the zones are not equal"
        return f"{SESSIONS_MAX} sessions are served" if len(self.served) >= SESSIONS_MAX else ""

    def _refuse(self, source: Source, session: int, reason: str) -> None:
        self._drop(source, session)
        self._send(Frame(Kind.GONE, source, session, data=reason.encode()[:TEXT_MAX]))

    def _end(self, source: Source, frame: Frame) -> None:
        self._drop(source, frame.session)

    def _drop(self, source: Source, session: int) -> None:
        if self.served.pop((source, session), None) is not None:
            self._effects.append(Dropped(source, session))

    # ---- effects

    def _send_parts(self, kind: Kind, to: Source, session: int, number: int, data: bytes) -> None:
        for at in range(0, max(1, len(data)), self.part_bytes):
            piece = data[at : at + self.part_bytes]
            self._send(Frame(kind, to, session, number, at + self.part_bytes >= len(data), piece))

    def _send(self, frame: Frame) -> None:
        self._effects.append(Emit(frame.encode()))

    def _take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
