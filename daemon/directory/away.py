"""A zone that this station does not keep: its programs' questions and changes go to the zone's holders.

The machine is ``proto/service/directory/remote.py``. To the socket for programs this looks like ``process.Process``.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from secrets import randbits, token_hex
from typing import Any, Final

from ...proto.service.directory.entries import NOWHERE, Entry, Place, Target, Who, read_entry, read_zone
from ...proto.service.directory.lookup import Answer
from ...proto.service.directory.messages import Due, End, HasApplied, Holding, Id, Next, OnDisk, Update, decode, encode
from ...proto.service.directory.operations import Row, SetZone
from ...proto.service.directory.questions import Question, Reply
from ...proto.service.directory.remote import Remote
from ...proto.service.directory.selection import select
from ..client import Message as GroupMessage
from ..client import View
from ..client.aio import Connection, Group
from ..config import Config
from ..programs import Refused
from .copy import Facts
from .leases import Lease, Leases
from .outbox import Outbox
from .updates import Updates

_NO_FACTS: Final = Facts(NOWHERE, frozenset(), (), False, frozenset(), 0, 0, 0, 0, 0, 0)
NUMBER_BITS: Final = 62
"""Of the first request: what was meant for another zone, or an earlier process of this station, is not taken for an answer."""
PROD_S: Final = 0.05
"""Between two messages by which a place of another zone's answer is reached."""
LEFT: Final = "this station has left the order meanwhile"
Ask = Callable[[int, Question], None]
"""Sends a question to a station."""


class Away:
    """One zone. ``ask``, which the owner sets, sends to a holder; the owner calls ``join``, ``take``, ``hear``, ``turn``,
    ``leave``."""

    lets_keep = False
    closed = False

    def __init__(self, config: Config, zone: str, holders: Sequence[int], numbers: Iterator[int]) -> None:
        self.config = config
        self.zone = zone
        self.holders = tuple(holders)
        self.ask: Ask = lambda station, question: None
        self.remote: Remote | None = None
        self.facts = _NO_FACTS
        self.leases = Leases(numbers)
        self.updates = Updates(self.send_raw, self.holders)
        self.counters: Counter[str] = Counter()
        self.by_code: dict[str, int] = {}
        """Look-ups by their answer."""
        self.on_changed: set[Callable[[], None]] = set()
        """Called when names of the zone may have changed."""
        self.passed = 0
        """Messages and views by which names may have changed."""
        self.step = "waiting for zenjund"
        self._connection: Connection | None = None
        self._group: Group | None = None
        self._answers: dict[int, asyncio.Future[Answer | Reply | None]] = {}
        self._turns: dict[str, int] = {}
        self._roles_known = False
        self._roles_asked = 0
        self.outbox = Outbox()
        self._heard: deque[asyncio.Future[None]] = deque()
        """Waits for own empty messages, in their order."""

    # ---- for the owner

    def join(self, connection: Connection, group: Group) -> None:
        """This station is in the zone's group."""
        self._connection, self._group = connection, group
        me: Who = (connection.welcome.station, connection.welcome.client)
        self.remote = Remote(self.zone, self.holders, me, randbits(NUMBER_BITS))
        self.step = "waiting for a holder"
        for lease in self.leases.all():
            self.remote.hold(lease.number, False)
        for update in self.updates.under_way():
            self.remote.track(update)

    def leave(self) -> None:
        """The connection to zenjund is over: leases and questions of this membership end with it."""
        self._connection = self._group = self.remote = None
        self.facts = _NO_FACTS
        self.step = "waiting for zenjund"
        self._roles_known = False
        self._roles_asked = 0
        self.outbox.clear()
        self._give_up()
        for lease in self.leases.all():
            lease.turn(False, NOWHERE)

    def on_quorum(self, there: bool) -> None:
        """This station has lost the quorum, or has one again."""
        if there and self.remote is not None:
            self.remote.doubt()
        elif not there:
            self.leases.in_doubt()
            self._give_up()

    def _give_up(self) -> None:
        for future in self._answers.values():
            if not future.done():
                future.set_exception(Refused("no-quorum", LEFT))
        self._answers.clear()
        self._lose_heard()

    def _lose_heard(self) -> None:
        for done in self._heard:
            if not done.done():
                done.set_exception(Refused("no-quorum", LEFT))
        self._heard.clear()

    def take(self, items: Sequence[Any]) -> None:
        """Messages and views of the zone's group."""
        remote, now = self.remote, time.monotonic_ns()
        if remote is None:
            return
        changed = False
        for item in items:
            if isinstance(item, View):
                members, joined = [[(m[0], m[1]) for m in part] for part in (item.members, item.joined)]
                remote.on_view(now, item.place, members, joined)
                changed = True
                if remote.me in joined:
                    self._lose_heard()
                    self.updates.again()
            elif isinstance(item, GroupMessage):
                sender = (item.station, item.client)
                vacant = not remote.active
                remote.on_message(now, item.place, sender, item.data)
                if vacant and remote.active:  # perhaps after a START, which has ended what was not on enough disks
                    for update, place in self.updates.doubt():
                        remote.ask_again(now, update, place)
                changed |= self._hear(item.place, sender, item.data)
        self.facts = self.facts._replace(place=remote.place, up=frozenset(remote.up()), active=tuple(sorted(remote.active)))
        self.updates.look({station for station, _ in remote.active})
        if changed:
            for call in list(self.on_changed):
                call()
        self._carry_out()

    def _hear(self, place: Place, sender: Who, data: bytes) -> bool:
        message = decode(data)
        if isinstance(message, OnDisk):
            self.updates.on_disk(sender[0], message.place)
        elif isinstance(message, HasApplied):
            self.updates.on_applied(sender[0], message.place)
            if self.remote is not None and sender == self.remote.me and self._heard:
                done = self._heard.popleft()
                if not done.done():
                    done.set_result(None)
        elif isinstance(message, Holding) and message.active:
            self._roles_known = False  # perhaps after a START
        elif isinstance(message, Update):
            self._roles_known &= not any(isinstance(operation, SetZone) for operation in message.operations)
        changes = isinstance(message, Update | End | Due | Next)
        self.passed += changes
        return changes

    def hear(self, station: int, message: object) -> None:
        """A message of ``zenjun.dir.ask`` for this zone."""
        if self.remote is not None:
            self.remote.on_answer(time.monotonic_ns(), station, message)
            self._carry_out()

    def turn(self) -> None:
        """Ten times a second."""
        self.end_leases(self.leases.expired(time.monotonic_ns()))
        if self.remote is not None:
            self.remote.on_time(time.monotonic_ns())
            if not self._roles_known and not self._roles_asked and self.remote.active:
                self._roles_asked = self.remote.ask("zones", {}, self.remote.place, time.monotonic_ns())
            self._carry_out()

    def _carry_out(self) -> None:
        r = self.remote
        if r is None:
            return
        for data in _all_of(r.to_group):
            self.send_raw(data)
        for station, question in _all_of(r.to_holder):
            self.ask(station, question)
        answered, r.answered = r.answered, {}
        for number, answer in answered.items():
            self._on_answer(number, answer)
        for update in _all_of(r.again):
            if not self.updates.resend(update):
                r.untrack(update)
        for update, outcome in _all_of(r.outcomes):
            self.counters[f"updates_{outcome.code or 'done'}"] += 1
            self.updates.on_outcome(update, outcome)
            self.updates.look({station for station, _ in r.active})
        for number, held, version in _all_of(r.news):
            if (lease := self.leases.get(number)) is not None:
                lease.turn(held, version)
        for number in _all_of(r.register):
            if (lease := self.leases.get(number)) is not None:
                self._register_again(r, lease)

    def _on_answer(self, number: int, answer: Answer | Reply | None) -> None:
        if number == self._roles_asked:
            self._roles_asked = 0
            if isinstance(answer, Reply):
                try:
                    zones = [read_zone(row.encode()) for row in answer.body.get("z", [])]
                except (ValueError, TypeError, KeyError, IndexError, AttributeError):
                    return  # what a station of another release may say
                roles = frozenset(role for zone in zones for role in (*zone.admins, *zone.writers))
                self.facts = self.facts._replace(roles=roles)
                self._roles_known = True
            return
        future = self._answers.pop(number, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def _register_again(self, remote: Remote, lease: Lease) -> None:
        update = Update(Id(token_hex(8), 1), lease.roles, (lease.operation,))
        pending = self.updates.start(update, "memory")
        remote.registers(update.id, lease.number)
        pending.done.add_done_callback(lambda _: self.updates.forget(pending))

    # ---- standing, as ``Process`` has it

    @property
    def active(self) -> bool:
        """A holder can be asked."""
        return self.remote is not None and bool(self.remote.active)

    def stale_ms(self) -> int:
        """There is no copy that could be late."""
        return 0

    @property
    def down(self) -> bool:
        """Rule Z3: no holder is active."""
        return self.remote is not None and self.remote.is_down(time.monotonic_ns())

    def need(self) -> Remote:
        """The machine; raises Refused if nobody can be asked."""
        c = self._connection
        if self.remote is None or not self.remote.joined or c is None or not c.quorum:
            raise Refused("no-quorum", f"this station does not keep zone {self.zone}, and cannot ask another one: {self.step}")
        if self.down:
            raise self.zone_down()
        return self.remote

    def zone_down(self) -> Refused:
        stations = ", ".join(map(str, self.holders))
        return Refused("zone-down", f"no holder of zone {self.zone} is active (stations {stations})")

    # ---- questions

    async def answer(self, number: int) -> Answer | Reply:
        """Wait for an answer; raises Refused ``zone-down``."""
        future: asyncio.Future[Answer | Reply | None] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        self._carry_out()
        try:
            found = await future
        finally:
            self._answers.pop(number, None)
            if self.remote is not None:
                self.remote.drop(number)
        if found is None:
            raise self.zone_down()
        return found

    async def look_up(self, name: str, after: Place) -> Answer:
        """What a name stands for in this zone, not before ``after``."""
        remote, now = self.need(), time.monotonic_ns()
        kept = remote.kept(name, after, now)
        if kept is not None:
            return kept
        found = await self.answer(remote.look_up(name, after, now))
        assert isinstance(found, Answer)
        return found

    async def inquire(self, kind: str, body: Row, after: Place = NOWHERE) -> Reply:
        """Another question."""
        found = await self.answer(self.need().ask(kind, body, after, time.monotonic_ns()))
        assert isinstance(found, Reply)
        return found

    async def entries(self, first: str, last: str, most: int, after: Place = NOWHERE) -> tuple[Place, list[Entry], str]:
        """Entries from ``first`` up to ``last``, at most ``most`` or a few more; the name where it goes on, "": nowhere."""
        found: list[Entry] = []
        while True:
            reply = await self.inquire("list", {"f": first, "l": last}, after)
            found += [read_entry(row.encode()) for row in reply.body["e"]]
            first = str(reply.body["n"])
            if not first or len(found) >= most:
                return reply.place, found, first

    async def fresh(self) -> Place:
        """The place of an own message that is sent now: what has been acknowledged before is before it."""
        remote = self.need()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._heard.append(done)
        self.send_raw(encode(HasApplied(NOWHERE)))
        await done
        return remote.place

    async def reached(self, place: Place) -> Place:
        """A place from ``place`` on that questions may name: one of another zone's is none of this group's."""
        while True:
            found = await self.fresh()
            if found >= place:
                return found
            await asyncio.sleep(PROD_S)

    def choose(self, name: str, answer: Answer, key: bytes) -> list[Target]:
        """The targets in the order for this caller (rule E6)."""
        turn = self._turns.get(name, 0)
        if answer.targets and answer.selection == "cyclic":
            self._turns[name] = turn + 1
        return select(list(answer.targets), answer.selection, self.config.station.id, turn, key)

    async def can_change(self) -> None:
        """Wait until the roles are known that updates are stamped with (rule A1); raises Refused."""
        while True:
            self.need()
            if self._roles_known:
                return
            await asyncio.sleep(0.01)

    # ---- sending

    def start(self, update: Id) -> None:
        if self.remote is not None:
            self.remote.track(update)

    def send_raw(self, data: bytes) -> bool:
        """Give a message to the zone's group. An update's outcome is asked for when it has come back."""
        return self._group is not None and self.outbox.send(self._connection, self._group, data)

    # ---- leases

    def end_leases(self, numbers: Collection[int]) -> None:
        if numbers and self.remote is not None:
            for update in self.remote.end(numbers):
                self.updates.abandon(update)
            self._carry_out()

    def status(self) -> dict[str, Any]:
        """For ``zenjun name status``."""
        return {
            "zone": self.zone,
            "keeps": False,
            "holders": sorted({station for station, _ in self.facts.active}),
            "configured": list(self.holders),
            "step": "asks its holders" if self.active else "down: no holder is active" if self.down else self.step,
            "leases_here": len(self.leases),
            "updates_under_way": len(self.updates),
        }


def _all_of(items: list[Any]) -> list[Any]:
    """What is in a list, which is empty then."""
    found = items[:]
    items.clear()
    return found
