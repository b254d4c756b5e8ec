"""Look-ups between processes in the simulation (rules L1 to L5, Z3): each process keeps the entries of some zones only, and asks
others; two stations keep none. The code of the product decides, keeps and asks; here are the messages' ways and what must hold.

A message waits for a receiver that is paused, and is lost with one that has gone or is cut off.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from zenjun.proto.service.directory.asking import RETRY_NS, Desk, Forwarded, Sent, Terminal
from zenjun.proto.service.directory.entries import NOWHERE, Place, Who
from zenjun.proto.service.directory.lookup import (
    Answer,
    Ask,
    AskMessage,
    Common,
    Down,
    NotHere,
    decode,
    encode,
    follow,
    manager_of,
)
from zenjun.proto.service.directory.selection import effective

from .violation import Violation

if TYPE_CHECKING:
    from .directory import Process, World

ZONES: Final = ("default", "plant", "north")
TERMINALS: Final = ((61, 1), (62, 1))
UNDER_WAY_MAX: Final = 4
"""Look-ups of one station."""
CLIENTS: Final = 2
"""Programs at a terminal that name the place of their last answer; one more does not."""


def holders(world: World, zone: str) -> list[int]:
    """The stations whose turn a zone is. Of a cluster with fewer stations than zones, station 1 keeps the rest."""
    first = ZONES.index(zone) if zone in ZONES else 0
    return [s for s in world.clients if s % len(ZONES) == first] or [1]


class ZonedCopy:
    """A process as one that keeps the zones whose turn it is at its station."""

    def __init__(self, world: World, p: Process) -> None:
        self.world = world
        self.p = p

    @property
    def place(self) -> Place:
        return self.p.state.place

    def common(self, name: str) -> Common | None:
        entry = self.p.state.entry(name)
        return Common(entry.zone, entry.version) if entry else None

    def keeps(self, zone: str) -> bool:
        return self.p.who[0] in holders(self.world, zone)

    def manager(self, zone: str) -> Who | None:
        return manager_of(holders(self.world, zone), self.p.state.active())


def _watched(kind: type[Desk], asking: Asking) -> type[Desk]:
    """A desk whose decisions are looked at."""

    class Watched(kind):  # type: ignore[misc, valid-type]
        copy: ZonedCopy

        def _carry_out(self, asker: Who | None, ask: Ask, decision: Any, now_ns: int) -> Any:
            if isinstance(decision, Down):
                asking.check_down(self.copy, decision.zone)
            return super()._carry_out(asker, ask, decision, now_ns)

        def on_message(self, sender: Who, message: AskMessage, now_ns: int) -> list[Sent]:
            found = self._forwarded.get(message.request) if isinstance(message, NotHere) else None
            out: list[Sent] = super().on_message(sender, message, now_ns)
            if found is not None and found.to == sender:
                asking.check_again(self.copy, found, out)
            return out

    return Watched


class Host:
    """A station that looks names up for its programs: a process with a copy, or a terminal."""

    def __init__(self, who: Who, process: Process | None, desk: Desk | None, terminal: Terminal | None) -> None:
        self.who = who
        self.process = process
        self.desk = desk
        self.terminal = terminal
        self.asked: dict[int, tuple[str, int, Place]] = {}
        """Name, client and the place that the client named, by request."""

    @property
    def alive(self) -> bool:
        return self.process is None or (self.process.alive and self.process.connected)

    @property
    def usable(self) -> bool:
        return self.process is None or self.process.usable


class Asking:
    """All look-ups between processes."""

    def __init__(self, world: World, desk: type[Desk] | None = None, terminal: type[Terminal] | None = None) -> None:
        self.world = world
        self.desk_class = _watched(desk or Desk, self)
        self.terminal_class = terminal or Terminal
        self.hosts: dict[Who, Host] = {}
        self.ways: dict[tuple[Who, Who], deque[bytes]] = {}
        self.seen: dict[tuple[Who, int], Place] = {}
        """Place of the last answer, by program at a terminal."""
        self.cursor = dict.fromkeys(TERMINALS, -1)
        """Last item whose members a terminal knows."""
        self.answered = self.forwarded = self.bounced = self.kept = self.down = 0

    # ---- who there is

    def host(self, p: Process) -> Host:
        found = self.hosts.get(p.who)
        if found is None or found.process is not p or found.desk is None or found.desk.copy.p.state is not p.state:  # type: ignore[attr-defined]
            copy = ZonedCopy(self.world, p)
            found = self.hosts[p.who] = Host(p.who, p, self.desk_class(copy, lambda ask: self._answer(p, ask)), None)
        return found

    def terminal(self, who: Who) -> Host:
        found = self.hosts.get(who)
        if found is None:
            zone = ZONES[who[0] % len(ZONES)]
            found = self.hosts[who] = Host(who, None, None, self.terminal_class(holders(self.world, zone)))
        return found

    def forget(self) -> None:
        """All stations lost power at once."""
        self.hosts.clear()
        self.ways.clear()
        self.seen.clear()

    # ---- look-ups begin

    def ask(self, p: Process, name: str) -> None:
        """A program looks a name up, at a process or at a terminal."""
        r = self.world.r
        if r.random() < 0.5:
            self._ask_terminal(self.terminal(r.choice(TERMINALS)), name, r.randrange(CLIENTS + 1))
            return
        host = self.host(p)
        if host.desk is not None and len(host.asked) < UNDER_WAY_MAX:
            number = host.desk.number()
            host.asked[number] = (name, CLIENTS, NOWHERE)
            self._send(host, host.desk.look_up(Ask(number, name), self.world.now))

    def _ask_terminal(self, host: Host, name: str, client: int) -> None:
        terminal = host.terminal
        assert terminal is not None
        if len(host.asked) >= UNDER_WAY_MAX or (client < CLIENTS and any(c == client for _, c, _ in host.asked.values())):
            return
        after = self.seen.get((host.who, client), NOWHERE) if client < CLIENTS else NOWHERE
        found = terminal.kept(name, after, self.world.now)
        if found is not None:
            self.kept += 1
            self._check(host, found, name, client)
            return
        number, messages = terminal.look_up(name, after, self.world.now)
        host.asked[number] = (name, client, after)
        self._send(host, messages)

    # ---- messages

    def _send(self, host: Host, messages: list[Sent]) -> None:
        for to, message in messages:
            self.forwarded += isinstance(message, Ask) and message.hop
            self.ways.setdefault((host.who, to), deque()).append(encode(to, message))
        self._take_answers(host)

    def _take_answers(self, host: Host) -> None:
        part = host.desk if host.desk is not None else host.terminal
        assert part is not None
        for number, answer in list(part.answered.items()):
            name, client, _ = host.asked.pop(number)
            self.answered += 1
            self._check(host, answer, name, client)
        part.answered.clear()

    def step(self) -> None:
        """Some messages arrive, copies that have gone on decide anew, terminals hear of views."""
        world = self.world
        for p in world.usable():
            host = self.host(p)
            assert host.desk is not None
            self._send(host, host.desk.on_place(world.now) + host.desk.on_time(world.now))
        for who in TERMINALS:
            host = self.terminal(who)
            assert host.terminal is not None
            last = len(world.log) - 1
            if self.cursor[who] > last:
                self.cursor[who] = -1
            if last >= 0 and world.r.random() < 0.5:
                self.cursor[who] = world.r.randint(max(self.cursor[who], 0), last)
                members = world.pasts[self.cursor[who]].members
                active = sorted(w for w, (is_active, _) in members.items() if is_active)
                self._send(host, host.terminal.on_active(active, world.now))
            self._send(host, host.terminal.on_time(world.now))
        for _ in range(4):
            self._deliver_one()

    def _deliver_one(self) -> None:
        ways = [way for way in self.ways if self.ways[way]]
        if not ways:
            return
        sender, to = way = self.world.r.choice(ways)
        host, other = self._at(to), self._at(sender)
        if host is None or not host.alive or other is None or not other.alive:
            self.ways[way].clear()
        elif host.usable:
            message = self._decoded(to, self.ways[way].popleft())
            now = self.world.now
            if host.desk is not None:
                self.bounced += isinstance(message, NotHere)
                self._send(host, host.desk.on_message(sender, message, now))
            elif host.terminal is not None:
                host.terminal.on_message(sender, message, now)
                self._take_answers(host)

    def _at(self, who: Who) -> Host | None:
        if who in TERMINALS:
            return self.terminal(who)
        p = self.world.processes.get(who[0])
        return self.host(p) if p is not None and p.who == who else None

    @staticmethod
    def _decoded(to: Who, data: bytes) -> AskMessage:
        found = decode(data)
        if found is None or found[0] != to:
            raise Violation("hops", f"{data!r} is not what was encoded for {to}")
        return found[1]

    # ---- what an answer is, and what must hold

    @staticmethod
    def _answer(p: Process, ask: Ask) -> Answer:
        found, place = follow(p.state.entry, ask.name), p.state.place
        if found.entry is None:
            return Answer(ask.request, place, found.code, found.path)
        e = found.entry
        targets = tuple(effective(e, p.state.stations_up(), p.state.is_out))
        code = "" if targets else "no-address"
        return Answer(ask.request, place, code, found.path, e.version, e.ttl, e.selection, targets, e.zone, e.owner, e.meta)

    def check_down(self, copy: ZonedCopy, zone: str) -> None:
        """Z3: a zone is down only if none of its holders is active at the copy's place."""
        self.down += 1
        if any(who[0] in holders(self.world, zone) for who in copy.p.state.active()):
            raise Violation("zone-down", f"{copy.p.who} says that {zone} is down at {copy.place}, where it is not")

    def check_again(self, copy: ZonedCopy, before: Forwarded, out: list[Sent]) -> None:
        """P8: who was told NOT_HERE forwards again only by what is newer."""
        if copy.place == before.at and any(isinstance(message, Ask) for _, message in out):
            raise Violation("hops", f"{copy.p.who} forwards {before.ask} twice by what is known at {before.at}")

    def _check(self, host: Host, answer: Answer, name: str, client: int) -> None:
        """P3: it was right at its place, and is no earlier one than the program has seen."""
        before = self.seen.get((host.who, client), NOWHERE) if host.terminal is not None and client < CLIENTS else NOWHERE
        if answer.place < before:
            raise Violation("back", f"{host.who}: {name} as of {answer.place}, after an answer of {before}")
        if host.terminal is not None and client < CLIENTS:
            self.seen[host.who, client] = answer.place
        if answer.code == "zone-down":
            return
        index = self.world.index_of(answer.place)
        if index < 0 or self.world.log[index].place != answer.place:
            return  # of a past that a START has ended
        wanted = self.world.pasts[index].look_up(name)
        got = (answer.version, answer.code, sorted({t.address for t in answer.targets}))
        if got != wanted:
            raise Violation("answer", f"{host.who}: {name} at {answer.place} is {got}, not {wanted}")

    def on_rest(self) -> None:
        """All copies are equal and all processes up: whatever is asked now is answered."""
        for host in [self.terminal(who) for who in TERMINALS]:
            self._ask_terminal(host, self.world.plan.names[0], CLIENTS)
        for _ in range(300):
            self.step()
            if not any(self.ways.values()) and not any(h.asked for h in self._hosts()):
                return
            self.world.now += RETRY_NS // 100
        left = {h.who: h.asked for h in self._hosts() if h.asked}
        raise Violation("hops", f"no answer for {left}")

    def _hosts(self) -> list[Host]:
        return [self.host(p) for p in self.world.live()] + [self.terminal(who) for who in TERMINALS]
