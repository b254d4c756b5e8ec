"""What the stations stand on, made abstract: a main order, a link for each pair of stations, machines that run and stop.

The main order is one list of entries that every station gets in turn, each in its own time. A link brings the records of one
station to another in order; it may take long. ``Net`` has no fault and no chance of its own: ``world.py`` adds both.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from zenjun.proto.multicast.main import MainOrder
from zenjun.proto.multicast.records import Broadcast, Effect, Entry, Id, Joined, Record, Send, State, Synced, ViewEvent
from zenjun.proto.multicast.station import Station
from zenjun.proto.multicast.tables import Program

from .checks import Checks

US: Final = 1_000
MS: Final = 1_000_000
Life = tuple[int, int]
"""A station and its incarnation."""


@dataclass
class Link:
    """Records from one incarnation of a station to one of another station."""

    queue: deque[Record] = field(default_factory=deque)
    """Not yet in a PDU."""
    flying: deque[tuple[int, list[Record]]] = field(default_factory=deque)
    """PDUs with the time of their arrival."""
    blocked_until: int = 0
    leaving: bool = False


class Host:
    """One incarnation of a station."""

    def __init__(self, life: Life, first: int) -> None:
        self.life = life
        self.station = life[0]
        self.first = first
        """Place in the main order of the view event that brings it in."""
        self.machine: Station | None = None
        self.alive = True
        self.cut = False
        """Set when its broadcasts no longer reach any station."""
        self.deaf = False
        self.has_own = False
        """It is cut off, and has what nobody else has."""
        """Set when it no longer receives the main order."""
        self.known: set[Life] = set()
        """Lives that have been in a view here."""
        self.inbox: deque[tuple[Life, list[Record]]] = deque()
        """Accepted from links, not yet taken."""
        self.ready = 0
        """When the last entry so far comes."""
        self.paused_until = 0
        self.wakes: set[int] = set()


class Net:
    """A run. ``station_class`` may be a broken variant."""

    main_class: type[MainOrder] = MainOrder

    def __init__(self, station_class: type[Station] = Station, window: int = 256, settle: int = 20 * MS) -> None:
        self.now = 0
        self.window, self.settle = window, settle
        self.hosts: dict[Life, Host] = {}
        self.links: dict[tuple[Life, Life], Link] = {}
        self.order: list[Entry] = []
        self.members: dict[int, int] = {}
        self.instance = 0
        self.trace: list[tuple[int, str, object]] = []
        self.sent = 0
        self._class = station_class
        self._snapshots: dict[Life, MainOrder] = {}
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._count = 0
        self.checks = Checks(self)

    # ---- time

    def at(self, when: int, action: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, action))

    def run_until(self, until: int) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until

    @property
    def is_idle(self) -> bool:
        return not self._events

    def note(self, text: str, what: object = "") -> None:
        self.trace.append((self.now, text, what))

    def report(self, lines: int = 60) -> str:
        """The last lines of what happened."""
        return "\n".join(f"{now / MS:9.3f} {text} {_short(what)}" for now, text, what in self.trace[-lines:])

    # ---- what a world may make otherwise

    def link_delay(self, source: int, target: int) -> int:
        return 100 * US

    def order_delay(self, station: int) -> int:
        return 100 * US

    def pdu_records(self, waiting: int) -> int:
        """How many of the waiting records the next PDU takes."""
        return waiting

    def take_delay(self, host: Host) -> int:
        """How long what is accepted lies until the station takes it."""
        return 0

    # ---- beginning

    def start(self, members: dict[int, int], joins: Iterable[Joined] = ()) -> None:
        """The first instance opens with these stations; the joins have their places before anything else happens."""
        self.members, self.instance = dict(members), 1
        self.reference = Station(0, self.main_class.begin(1, members))
        self.reference.begin()
        for life in members.items():
            self.hosts[life] = host = Host(life, 0)
            host.known = set(members.items())
            self._boot(host, self.main_class.begin(1, members))
        for join in joins:
            self.append(join, at_once=True)

    def _boot(self, host: Host, main: MainOrder) -> None:
        host.machine = self._class(host.station, main, self.window, self.settle)
        self.apply(host, host.machine.begin())

    # ---- the main order

    def append(self, entry: Entry, at_once: bool = False) -> None:
        """Give an entry the next place."""
        self.order.append(entry)
        index = len(self.order) - 1
        self.note(f"place {index}", entry)
        self.reference.on_entry(self.now, entry)
        self.checks.on_era(self.reference.era)
        if isinstance(entry, Synced):
            self._snapshots |= dict.fromkeys(entry.lives, self.reference.main.copy())
        for host in list(self.hosts.values()):
            if host.alive and not host.deaf and index >= host.first:
                self._bring(host, entry, at_once)

    def _bring(self, host: Host, entry: Entry, at_once: bool = False) -> None:
        host.ready = self.now if at_once else max(host.ready, self.now + self.order_delay(host.station), host.paused_until)

        def arrive() -> None:
            if host.alive and not host.deaf:
                self._hand(host, entry)

        if at_once:
            arrive()
        else:
            self.at(host.ready, arrive)

    def _hand(self, host: Host, entry: Entry) -> None:
        """An entry comes to its place at a station, which takes before what its links have accepted (rules E2, L3)."""
        self.empty_links(host)
        if isinstance(entry, ViewEvent):
            host.known |= set(entry.members)
        if isinstance(entry, Synced) and host.life in entry.lives:
            self._boot(host, self._snapshots[host.life].copy())
        elif host.machine is not None:
            self.apply(host, host.machine.on_entry(self.now, entry))
        self.take(host)

    def empty_links(self, host: Host) -> None:
        self.take(host)

    def broadcast(self, host: Host, entry: Entry) -> None:
        """A station gives something to the main order; it has a place there a while later."""
        self.append(entry)

    # ---- links

    def transmit(self, host: Host, to: int, record: Record) -> None:
        """A record for the link to a station, in the incarnation that the sender knows."""
        machine = host.machine
        life = machine.main.members.get(to) if machine is not None else None
        self.sent += 1
        self.checks.on_record(host, to, record)
        self.note(f"{host.station} -> {to}", record)
        if life is None:
            return
        link = self.links.setdefault((host.life, (to, life)), Link())
        link.queue.append(record)
        if not link.leaving:
            link.leaving = True
            self.at(self.now, lambda: self._leave(host, (to, life), link))

    def _leave(self, host: Host, target: Life, link: Link) -> None:
        """Send the next PDU of a link."""
        link.leaving = False
        if not link.queue or not host.alive:
            return
        records = [link.queue.popleft() for _ in range(self.pdu_records(len(link.queue)))]
        when = self.now + self.link_delay(host.station, target[0])
        if link.flying:
            when = max(when, link.flying[-1][0])
        link.flying.append((when, records))
        self.at(when, lambda: self._arrive(host.life, target, link))
        if link.queue:
            link.leaving = True
            self.at(self.now + 1, lambda: self._leave(host, target, link))

    def _arrive(self, source: Life, target: Life, link: Link) -> None:
        if self.now < link.blocked_until:
            self.at(link.blocked_until, lambda: self._arrive(source, target, link))
            return
        if not link.flying:
            return
        _, records = link.flying.popleft()
        host = self.hosts.get(target)
        if host is not None and host.alive:
            host.inbox.append((source, records))
            self.at(max(self.now + self.take_delay(host), host.paused_until), lambda: self.take(host))

    def take(self, host: Host) -> None:
        """The station takes what its links have accepted. Records of an incarnation that it does not know yet are kept."""
        if not host.alive or host.machine is None:
            return
        waiting, host.inbox = host.inbox, deque()
        accepted: list[tuple[int, Iterable[Record]]] = []
        for source, records in waiting:
            if host.machine.main.members.get(source[0]) == source[1]:
                accepted.append((source[0], records))
            elif source not in host.known:
                host.inbox.append((source, records))
        if accepted:
            self.apply(host, host.machine.on_pdus(self.now, accepted))

    # ---- effects

    def apply(self, host: Host, effects: list[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, Send):
                self.note(f"{host.station}", effect)
            self.checks.on_effect(host, effect)
            if isinstance(effect, Send):
                self.transmit(host, effect.to, effect.record)
            elif isinstance(effect, Broadcast) and not isinstance(effect.entry, State):
                self.broadcast(host, effect.entry)
        self.checks.on_input(host)
        if host.machine is not None and host.machine.deadline is not None and host.machine.deadline not in host.wakes:
            deadline = host.machine.deadline
            host.wakes.add(deadline)
            self.at(deadline, lambda: self._wake(host, deadline))

    def _wake(self, host: Host, deadline: int) -> None:
        host.wakes.discard(deadline)
        if host.alive and host.machine is not None:
            self.apply(host, host.machine.on_time(self.now))

    # ---- programs

    def send(self, station: int, groups: Iterable[int], safe: bool = False, client: int = 1) -> Id | None:
        """A program at a station sends a message."""
        return self.send_from(self.hosts[station, self.members[station]], groups, safe, client)

    def send_from(self, host: Host, groups: Iterable[int], safe: bool, client: int, *, together: bool = False) -> Id | None:
        """together: another one follows at once, and what both make possible is done then."""
        machine, content = host.machine, b"%d" % (len(self.checks.sent) + 1)
        assert machine is not None
        self.checks.before_send(host)
        name = machine.send(self.now, Program(*host.life, client), groups, content, safe)
        if name is not None:
            self.checks.on_sent(host, machine.messages[name])
            self.note(f"{host.station} sends to {sorted(groups)}", name)
        if not together:
            self.apply(host, machine.after(self.now))
        return name


def _short(what: object) -> str:
    """As repr() has it, without the names of its parts."""
    text = re.sub(r"EraNumber\(instance=(\d+), change=(\d+)\)", r"\1.\2", repr(what))
    text = re.sub(r"Program\(station=(\d+), incarnation=(\d+), client=(\d+)\)", r"\1/\2/\3", text)
    return re.sub(r"\b[a-z_]+=", "", re.sub(r"Id\(era=([\d.]+), origin=(\d+), number=(\d+)\)", r"\1#\2.\3", text))
