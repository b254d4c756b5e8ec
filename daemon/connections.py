"""What sessions, requests and the host of the groups share: records of the connected programs, and frames queued for them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..proto.wire import Ordering
from .access import Identity
from .clientwire import VERSION_MIN, ErrorFlag, Frame
from .datapath import DataPath


@dataclass(slots=True)
class Handle:
    """A client's number for a group."""

    number: int
    group: str
    group_id: int
    level: int
    open: bool
    send_only: bool
    no_self: bool
    ordering: Ordering
    asked: bool = False
    """The join is on its way in this instance."""
    member: bool = False
    """The join has come in its place."""
    leaving: bool = False


@dataclass(slots=True, eq=False)
class Connection:
    """One connected program. ``slot`` is its number in the data path, ``client`` its number in the cluster's order."""

    slot: int
    client: int
    uid: int
    since_ns: int
    version: int = VERSION_MIN
    name: str = ""
    greeted: bool = False
    bye: bool = False
    handles: dict[int, Handle] = field(default_factory=dict)
    joined: dict[str, Handle] = field(default_factory=dict)
    """Handles by group, those that only send left out."""
    requests: set[int] = field(default_factory=set)
    """Ids of its REQUESTs that have no answer yet."""
    pid: int = 0
    groups: frozenset[int] = frozenset()
    """Of its user; uid, pid and groups are the kernel's, as it connected."""

    @property
    def who(self) -> Identity:
        return Identity(self.pid, self.uid, self.groups)


@dataclass(slots=True)
class Facts:
    """Contents of WELCOME besides the client's own number."""

    cluster: str
    station: int
    stations: int
    """May change while the daemon runs; the others do not."""
    message_max: int
    queue_bytes_max: int
    clients_max: int
    medium: str = "switched"


@dataclass(slots=True)
class Standing:
    """The state of this station in the cluster, as reported to its programs."""

    instance: int = 0
    incarnations: tuple[int, ...] = ()
    """Of the stations of the instance as agreed, 0: no member."""
    frame_max: int = 0
    """Largest PDU that all its members take, bytes; 0: not known."""
    view_instance: int = 0
    """Instance at the place up to which messages have been delivered."""
    open: bool = False
    ever_open: bool = False
    closing: bool = False
    blocked: tuple[tuple[int, str], ...] = ()
    """(station, reason): delivery waits for these."""
    quorum: bool = True
    fence: dict[str, object] | None = None
    """The event that reports it: the order here differs from another station's."""

    @property
    def shown_instance(self) -> int:
        """The instance, 0 while this station is in none."""
        return self.instance if self.open else 0


class Connections:
    """All connections of this daemon, by slot and by client number."""

    def __init__(self, dp: DataPath) -> None:
        self._dp = dp
        self.by_slot: dict[int, Connection] = {}
        self.by_number: dict[int, Connection] = {}
        self.handles_of: Counter[int] = Counter()
        """Handles of all connections of a user, by uid."""
        self.count_of: Counter[int] = Counter()
        """Connections of a user, by uid."""
        self._last_number = 0

    def add(self, connection: Connection) -> None:
        self.by_slot[connection.slot] = connection
        self.by_number[connection.client] = connection
        self.count_of[connection.uid] += 1

    def remove(self, connection: Connection) -> None:
        del self.by_slot[connection.slot], self.by_number[connection.client]
        self.count_of[connection.uid] -= 1
        if self.count_of[connection.uid] <= 0:
            del self.count_of[connection.uid]

    def __contains__(self, connection: Connection) -> bool:
        return self.by_slot.get(connection.slot) is connection

    def in_order(self) -> list[Connection]:
        """Connections that have sent HELLO, by client number."""
        return [c for _, c in sorted(self.by_number.items()) if c.greeted]

    def new_number(self) -> int:
        """The next number that no connection has; a number comes back only after all others have been used."""
        while True:
            self._last_number = self._last_number % 65535 + 1
            if self._last_number not in self.by_number:
                return self._last_number

    # ---- frames to a client

    def put(
        self, connection: Connection, kind: Frame, body: Mapping[str, Any], *, urgent: bool, flags: int = 0, handle: int = 0
    ) -> None:
        """Queue a frame with a JSON body; urgent: before what is queued and not yet begun."""
        self._dp.client_put(connection.slot, kind, flags=flags, handle=handle, body=as_json(body), urgent=urgent)

    def event(self, connection: Connection, event: Mapping[str, object], *, urgent: bool = False) -> None:
        self.put(connection, Frame.EVENT, event, urgent=urgent)

    def error(
        self, connection: Connection, code: str, text: str, number: int, *, close: bool = False, admin: bool = False
    ) -> None:
        """number: of the handle that it is about, 0: of none. close: the connection ends with it. admin: it answers an ADMIN."""
        body: dict[str, object] = {"code": code, "message": text}
        if number:
            body["handle"] = number
        if admin:
            body["admin"] = True
        self.put(connection, Frame.ERROR, body, urgent=True, flags=ErrorFlag.CLOSES if close else 0, handle=number)


def as_json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
