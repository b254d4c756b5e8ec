"""The interface: watched by name and index, so that the daemon survives what happens to it.

Down and up, deleted and made again under the same name (a new index, also within milliseconds), renamed, another MTU, another
address: each is noticed, reported and answered by opening the packet socket again. Netlink events are only a hint to look: they
may be merged, late or lost (the kernel drops them when they are not read), so what counts is a fresh answer of the kernel about
the interface, and the comparison of its *index* with the one the socket is bound to. Events of other interfaces cost one
comparison. While there is no link, the driver also looks without an event, once per LOOK_AGAIN_NS.

Identity: the configured name. If the interface is renamed while in use, its index stays under a new name and the daemon stays
with it (and reports it); when that index goes away, the configured name counts again.

The netlink socket is our own and pyroute2 encodes and decodes, since the daemon needs to see ENOBUFS (events lost) as such.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from ..proto.wire import MTU_MIN
from .rtnetlink import NLM_F_REQUEST, RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK, RTMGRP_LINK, LinkMarshal, ifinfmsg

IFF_UP: Final = 0x1
IFF_BROADCAST: Final = 0x2
IFF_LOOPBACK: Final = 0x8
IFF_LOWER_UP: Final = 0x10000
ARPHRD_ETHER: Final = 1
READS_MAX: Final = 64
"""Datagrams read from the event socket in one call; the rest waits for the next."""
DATAGRAM_MAX: Final = 64 * 1024
RCVBUF_BYTES: Final = 256 * 1024
LOOK_AGAIN_NS: Final = 2_000_000_000
"""Period of the looks without an event, while the interface cannot be used."""
REPLY_TIMEOUT_S: Final = 1.0
"""The kernel answers inside the send call; this only bounds a kernel that does not."""


class LinkState(Enum):
    """What can be done with the interface."""

    UP = "up"
    DOWN = "down"
    ABSENT = "absent"
    UNFIT = "unfit"
    """It is there and will never carry our frames as it is (loopback, no broadcast, not Ethernet, MTU too small)."""


@dataclass(frozen=True, slots=True)
class Link:
    """One interface as the kernel describes it."""

    index: int
    name: str
    flags: int
    kind: int
    """ARPHRD_* hardware type."""
    mtu: int
    """Bytes."""
    mac: str

    def state(self) -> LinkState:
        """Whether frames can be sent on it, by its flags."""
        if self.flags & IFF_LOOPBACK or not self.flags & IFF_BROADCAST or self.kind != ARPHRD_ETHER or self.mtu < MTU_MIN:
            return LinkState.UNFIT
        return LinkState.UP if self.flags & IFF_UP else LinkState.DOWN

    @property
    def has_carrier(self) -> bool:
        """Whether something is at the other end, as far as the interface knows."""
        return bool(self.flags & IFF_LOWER_UP)

    def why_not(self) -> str:
        """The state in words for a log line, empty if it is up."""
        if self.flags & IFF_LOOPBACK:
            return f"{self.name} is a loopback interface: it reaches no other station"
        if self.kind != ARPHRD_ETHER:
            return f"{self.name} is not an Ethernet interface (hardware type {self.kind})"
        if not self.flags & IFF_BROADCAST:
            return f"{self.name} cannot broadcast (point-to-point)"
        if self.mtu < MTU_MIN:
            return f"{self.name} has an MTU of {self.mtu} bytes; at least {MTU_MIN} are needed"
        if not self.flags & IFF_UP:
            return f"{self.name} is down"
        return ""


@dataclass(frozen=True, slots=True)
class Change:
    """What the driver has to do and report about the interface, one per look that found something new."""

    state: LinkState
    link: Link | None
    """None: absent."""
    reopen: bool
    """The packet socket must be closed and, if the state is UP, opened again (other index, address, larger MTU, or back up)."""
    what: tuple[tuple[str, str], ...]
    """(event word, text for people); words: ``up``, ``down``, ``absent``, ``unfit``, ``recreated``, ``renamed``, ``mtu``,
    ``mac``, ``carrier``."""


class InterfaceTracker:
    """Decides what a look at the kernel means. No input or output of its own; ``look`` is its only input."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: Link | None = None
        self._state: LinkState | None = None

    @property
    def name(self) -> str:
        """Name to look for when the followed index is gone."""
        return self._name

    @property
    def index(self) -> int:
        """Index being followed, 0: none."""
        return self._last.index if self._last is not None else 0

    @property
    def link(self) -> Link | None:
        """As last seen; None: absent (or not looked yet)."""
        return self._last

    @property
    def state(self) -> LinkState:
        return self._state if self._state is not None else LinkState.ABSENT

    def look(self, by_index: Link | None, by_name: Link | None, *, gone: bool = False) -> Change | None:
        """Compare a fresh look with the last one.

        by_index: the interface that has the followed index now; by_name: the one that has the configured name. gone: the kernel
        has reported the end of the followed index since the last look, so that an interface with that index is another one.
        Returns None if nothing changed.
        """
        link = by_name if gone or by_index is None else by_index
        old, old_state = self._last, self._state
        state = link.state() if link is not None else LinkState.ABSENT
        what: list[tuple[str, str]] = []
        reopen = state is not old_state
        if link is None:
            if old_state is not LinkState.ABSENT:
                what.append(("absent", f"waiting for interface {self._name}: it does not exist"))
        else:
            if old is not None:
                reopen |= self._differences(old, link, gone, what)
            if state is not old_state or (state is LinkState.UNFIT and old is not None and link.why_not() != old.why_not()):
                what.append((state.value, self._words(link, state)))
        self._last, self._state = link, state
        if not what and not reopen:
            return None
        return Change(state, link, reopen, tuple(what))

    @staticmethod
    def _words(link: Link, state: LinkState) -> str:
        if state is LinkState.UP:
            return f"interface {link.name} is up (index {link.index}, MTU {link.mtu}, {link.mac})"
        return f"waiting for interface {link.name}: {link.why_not()}"

    @staticmethod
    def _differences(old: Link, link: Link, gone: bool, what: list[tuple[str, str]]) -> bool:
        reopen = False
        if link.index != old.index or gone:
            what.append(("recreated", f"interface {link.name} is a new one: index {old.index} became {link.index}"))
            reopen = True
        elif link.name != old.name:
            what.append(("renamed", f"interface {old.name} is now called {link.name}; still using it (index {link.index})"))
        if link.mtu != old.mtu:
            what.append(("mtu", f"MTU of {link.name} changed from {old.mtu} to {link.mtu}"))
            reopen |= link.mtu > old.mtu  # what has room for the larger frames has it for the smaller ones
        if link.mac != old.mac:
            what.append(("mac", f"address of {link.name} changed from {old.mac} to {link.mac}"))
            reopen = True
        if (link.flags ^ old.flags) & IFF_LOWER_UP and link.flags & old.flags & IFF_UP:
            what.append(("carrier", f"{link.name} {'has a carrier again' if link.has_carrier else 'has lost its carrier'}"))
        return reopen


class LinkMonitor:
    """Watches one interface of this network namespace. ``fileno`` belongs in the loop, ``on_readable`` is its callback."""

    def __init__(self, name: str, on_change: Callable[[Change], None]) -> None:
        """Opens two netlink sockets; needs no rights. Raises OSError."""
        self.tracker = InterfaceTracker(name)
        self._on_change = on_change
        self._parser = LinkMarshal()
        self._sequence = 0
        self.events = 0
        """Events of the watched interface."""
        self.foreign = 0
        """Events of other interfaces, ignored."""
        self.overruns = 0
        """Number of times that the kernel reported dropped events."""
        self.looks = 0
        self._behind = False
        """Events were dropped and the queue has not been empty since: the kernel drops more without another error."""
        self._ask = _netlink(0)
        self._ask.settimeout(REPLY_TIMEOUT_S)
        try:
            self._events = _netlink(RTMGRP_LINK)
        except OSError:
            self._ask.close()
            raise
        self._events.setblocking(False)

    def fileno(self) -> int:
        return self._events.fileno()

    def start(self) -> None:
        """First look: reports the state, whatever it is."""
        self.look()

    def close(self) -> None:
        """Close both sockets; the caller has removed the reader before. Harmless when repeated."""
        self._events.close()
        self._ask.close()

    def on_readable(self) -> None:
        """Read the queued events (at most READS_MAX) and look once if any of them concerns the interface or some were dropped.

        After an overrun, look again when the queue is empty: the kernel reports dropped events (ENOBUFS) only once until then.
        """
        concerned, gone = False, False
        for _ in range(READS_MAX):
            try:
                data = self._events.recv(DATAGRAM_MAX)
            except BlockingIOError:
                concerned |= self._behind
                self._behind = False
                break
            except OSError as exc:
                if exc.errno != errno.ENOBUFS:
                    raise
                self.overruns += 1
                self._behind = True
                concerned = True
                continue
            for message in self._parse(data):
                mine, end = self._concerns(message)
                concerned |= mine
                gone |= end
        if concerned:
            self.look(gone=gone)

    def look(self, *, gone: bool = False) -> None:
        """Ask the kernel and report what changed. ``gone``: the followed index is known to have ended."""
        self.looks += 1
        by_index = self._get(index=self.tracker.index) if self.tracker.index and not gone else None
        by_name = self._get(name=self.tracker.name)
        change = self.tracker.look(by_index, by_name, gone=gone)
        if change is not None:
            self._on_change(change)

    def _concerns(self, message: Any) -> tuple[bool, bool]:
        """(whether the event is about our interface, whether the followed index has ended)."""
        if message["header"]["type"] not in (RTM_NEWLINK, RTM_DELLINK):
            return False, False
        index = int(message["index"])
        mine = index == self.tracker.index or message.get_attr("IFLA_IFNAME") == self.tracker.name
        if mine:
            self.events += 1
        else:
            self.foreign += 1
        # A bridge reports with RTM_DELLINK (family AF_BRIDGE) that a port left it: the interface itself stays.
        deleted = message["header"]["type"] == RTM_DELLINK and int(message["family"]) != socket.AF_BRIDGE
        return mine, deleted and index == self.tracker.index

    def _get(self, *, index: int = 0, name: str = "") -> Link | None:
        request = ifinfmsg()
        self._sequence += 1
        request["header"]["type"] = RTM_GETLINK
        request["header"]["flags"] = NLM_F_REQUEST
        request["header"]["sequence_number"] = self._sequence
        request["index"] = index
        if name:
            request["attrs"] = [("IFLA_IFNAME", name)]
        request.encode()
        self._ask.send(request.data)
        while True:
            for message in self._parse(self._ask.recv(DATAGRAM_MAX)):
                if int(message["header"]["sequence_number"]) != self._sequence:
                    continue
                error = message["header"].get("error")
                if error is not None:
                    if getattr(error, "code", 0) in (errno.ENODEV, errno.EINVAL, errno.ERANGE):
                        return None
                    raise OSError(error.code, os.strerror(error.code))
                return _link(message)

    def _parse(self, data: bytes) -> list[Any]:
        return list(self._parser.parse(data))


def _netlink(groups: int) -> socket.socket:
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RCVBUF_BYTES)
        sock.bind((0, groups))
    except OSError:
        sock.close()
        raise
    return sock


def _link(message: Any) -> Link:
    return Link(
        index=int(message["index"]),
        name=str(message.get_attr("IFLA_IFNAME")),
        flags=int(message["flags"]),
        kind=int(message["ifi_type"]),
        mtu=int(message.get_attr("IFLA_MTU") or 0),
        mac=str(message.get_attr("IFLA_ADDRESS") or ""),
    )
