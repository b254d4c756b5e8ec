"""State transfer over an abstract total order: thousands of short histories a minute.

In place of the whole core there is one sequence of messages and views. Each program takes it at its own pace, as the client
library would: the companion group, the group and the views in one order, chunks by a channel that only keeps each sender's order.
Programs crash, restart with or without what they had, are expelled and admitted again, stall, read slowly; the order stands still
or ends and opens again; a state is damaged. Then everything is repaired and must come to rest.

``python -m tests.sim.transfer FIRST COUNT`` runs many seeds and prints those that fail.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from zenjun.proto.service.stateapi import Place
from zenjun.proto.service.transfer import Transfer
from zenjun.proto.service.transfertypes import (
    CloseMailbox,
    Digest,
    Effect,
    MemoryQueue,
    Note,
    OpenMailbox,
    Options,
    ToGroup,
    ToJoiner,
)
from zenjun.proto.service.transferwire import Who
from zenjun.proto.timers import NEVER

from .histories import run_seeds, violation_of
from .transfer_checks import Checks
from .transfer_state import Features, Program, Table
from .violation import Violation

MS: Final = 1_000_000
S: Final = 1_000_000_000
COMPANION, GROUP = "companion", "group"
REST_NS: Final = 90 * S
"""After the repair all members are active within this time."""

Item = tuple[str, object]
"""("message", (place, key, value)) or ("view", place)."""


@dataclass(slots=True)
class Plan:
    """One run, drawn from its seed; a test may fix any of it."""

    seed: int
    members: int = 3
    messages: int = 40
    faults: int = 4
    fault_kinds: tuple[str, ...] = (
        "crash",
        "cut",
        "stall",
        "slow",
        "end",
        "mute",
        "damage",
        "fail",
        "error",
        "leave",
        "join",
        "deaf",
    )
    features: Features = field(default_factory=lambda: Features(True, True, True, True, True, 4, 0))
    persistent: bool = False
    donors: int = 2
    kept_bytes_max: int = 1 << 20
    chunk_loss: float = 0.0
    early_companion: bool = False
    """Rule X1 broken: the companion's messages come by a connection of their own."""

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Any run."""
        r = random.Random(seed)
        digests = r.random() < 0.8
        features = Features(
            digests=digests,
            readable=r.random() < 0.6,
            deltas=r.random() < 0.5,
            remembers=r.random() < 0.6,
            keeps_chunks=r.random() < 0.5,
            buckets=r.choice([1, 3, 8, 40]),
            padding=r.choice([0, 0, 30, 500]),
            late_digests=digests and seed % 3 == 0,
        )
        return cls(
            seed,
            members=r.randint(1, 5),
            messages=r.choice([0, 20, 60]),
            faults=r.randint(0, 6),
            features=features,
            persistent=features.remembers and r.random() < 0.3,
            donors=r.choice([1, 2, 2]),
            kept_bytes_max=r.choice([300, 1 << 20, 1 << 20]),
            chunk_loss=r.choice([0, 0, 0, 0.1]),
        )


class Member:
    """One program and its library at a station."""

    def __init__(self, who: Who, program: Program, transfer: Transfer[Item]) -> None:
        self.who = who
        self.program = program
        self.transfer = transfer
        self.alive = True
        self.connected = True
        self.groups: set[str] = set()
        self.epoch = 0
        """Counts cuts: what was on its way before one does not come."""
        self.ready_at = {COMPANION: 0, GROUP: 0}
        """When the last item so far will be delivered."""
        self.data_at: dict[Who, int] = {}
        self.pace = 2 * MS
        self.timer = NEVER
        self.mailbox = False
        self.turn = False
        """The program's next turn is planned."""
        self.batch: list[Item] = []
        self.stored = Table()
        self.damaged = False
        self.muted_until = 0
        self.joined_at = 0
        self.last_control = 0


class World:
    """A run. ``run`` raises Violation."""

    transfer_class: type[Transfer[Item]] = Transfer

    def __init__(self, plan: Plan, transfer_class: type[Transfer[Item]] | None = None) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed ^ 0x5EED)
        self.now = S
        self.instance = 1
        self.clock = 0
        self.members: dict[Who, Member] = {}
        self.in_group: dict[str, set[Who]] = {COMPANION: set(), GROUP: set()}
        self.checks = Checks(self)
        self.blocked_until = 0
        self.healed = False
        self.fetched = 0
        self.trace: list[str] = []
        self._class = transfer_class or self.transfer_class
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._order_at: dict[Who, int] = {}
        self._clients = dict.fromkeys(range(1, plan.members + 1), 0)
        self._disks: dict[int, tuple[Table, dict[bytes, bytes]]] = {}

    # ---- time

    def at(self, when: int, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, action))

    def run_until(self, until: int) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until

    def _soon(self, low_us: int, high_us: int) -> int:
        return self.now + self.random.randint(low_us, high_us) * 1000

    # ---- the order

    def order(self, sender: Member | None, action: Callable[[Place], None]) -> None:
        """Give a message its position after a while; one sender's in its order. It is lost if the sender is cut before."""
        key = sender.who if sender else (0, 0)
        when = max(self._soon(100, 3000), self._order_at.get(key, 0) + 1)
        self._order_at[key] = when
        epoch = sender.epoch if sender else 0

        def ordered() -> None:
            if sender is not None and (not sender.alive or sender.epoch != epoch):
                return
            if self.now < self.blocked_until:
                self.at(self.blocked_until, ordered)
                return
            self.clock += 1
            action((self.instance << 32 | self.clock, key[0], 0))

        self.at(when, ordered)

    def deliver(self, group: str, action: Callable[[Member], None]) -> None:
        """Hand something at its position to all members of a group. Both groups are one sequence (rule X1)."""
        for who in sorted(self.in_group[group]):
            member = self.members.get(who)
            if member is None or not member.alive or not member.connected:
                continue
            line = group if self.plan.early_companion else GROUP
            when = max(self._soon(50, 4000), member.ready_at[line], member.muted_until) + 1
            member.ready_at[line] = when
            if self.plan.early_companion:
                self._hand(member, self.now + 1 if group == COMPANION else when + 5 * MS, action)
            else:
                self._hand(member, when, action)

    def _hand(self, member: Member, when: int, action: Callable[[Member], None]) -> None:
        epoch = member.epoch

        def arrive() -> None:
            if member.alive and member.epoch == epoch and member.transfer.failed is None:
                action(member)
                self.after(member)

        self.at(when, arrive)

    def view(self, group: str, joined: set[Who], left: set[Who], place: Place) -> None:
        self.in_group[group] = (self.in_group[group] - left) | joined
        members = set(self.in_group[group])
        if group == COMPANION:
            self.checks.on_view(members)

        def seen(member: Member) -> None:
            if group == COMPANION:
                member.transfer.on_view(self.now, place, members, joined, left)
                self.checks.on_order(member, place)
                return
            member.transfer.on_item(self.now, ("view", place), place, 50)
            if member.who in joined:
                member.transfer.on_group(self.now)

        self.deliver(group, seen)

    # ---- members

    def start(self, station: int) -> Member:
        """A program starts at a station."""
        self._clients[station] += 1
        who = (station, self._clients[station])
        disk, kept = self._disks.get(station, (Table(), {}))
        table = Table(dict(disk.rows), disk.history, disk.place)
        features = self.plan.features
        program = Program(features, table if features.remembers else Table(), kept if features.keeps_chunks else None)
        options = Options(4096, self.random.getrandbits(64), self.plan.members if self.plan.persistent else 0, self.plan.donors)
        queue: MemoryQueue[tuple[Item, Place]] = MemoryQueue(self.plan.kept_bytes_max)
        member = Member(who, program, self._class(who, program, options, queue))
        member.stored = disk
        member.joined_at = self.now
        self.members[who] = member
        self.enter(member)
        return member

    def enter(self, member: Member) -> None:
        """Join the companion, then the group."""
        for group in (COMPANION, GROUP):
            self.order(member, lambda place, group=group: self.view(group, {member.who}, set(), place))  # type: ignore[misc]
        if member.mailbox:
            self._join_mailbox(member)

    def live(self) -> list[Member]:
        return [m for _, m in sorted(self.members.items()) if m.alive]

    def crash(self, member: Member) -> None:
        """The program ends without a word."""
        member.alive = False
        member.epoch += 1
        kept = dict(member.program.building.chunks) if member.program.building and not member.program.building.delta else {}
        self._disks[member.who[0]] = (member.stored, kept or dict(member.program.kept_chunks))
        self.remove(member.who, self._soon(100, 200_000))

    def cut(self, member: Member, back_at: int) -> None:
        """The station is expelled, and admitted again later."""
        member.connected = False
        member.epoch += 1
        self.remove(member.who, self._soon(100, 200_000))
        self.at(max(back_at, self.now + 300 * MS), lambda: self._back(member))

    def _back(self, member: Member) -> None:
        if not member.alive or member.connected:
            return
        if any(member.who in group for group in self.in_group.values()):
            self.at(self.now + 10 * MS, lambda: self._back(member))  # the others have not removed it yet
            return
        member.connected = True
        self.enter(member)

    def remove(self, who: Who, when: int) -> None:
        def gone() -> None:
            member = self.members[who]
            if member.alive and member.connected:
                return  # it has come again meanwhile, with a whole new instance
            for group in (COMPANION, GROUP):
                if who in self.in_group[group]:
                    self.order(None, lambda place, group=group: self._remove(group, who, place))  # type: ignore[misc]

        self.at(when, gone)

    def _remove(self, group: str, who: Who, place: Place) -> None:
        member = self.members[who]
        if not (member.alive and member.connected) and who in self.in_group[group]:
            self.view(group, set(), {who}, place)

    def end_instance(self) -> None:
        """All stations lose the instance and open the next one; their programs join again one after the other."""
        self.instance += 1
        self.clock = 0
        for group in self.in_group.values():
            group.clear()
        for member in self.live():
            member.epoch += 1
            member.connected = False
            self.at(self._soon(100, 200_000), lambda m=member: self._back(m))  # type: ignore[misc]

    # ---- one member's turns

    def after(self, member: Member) -> None:
        """Carry out what the machine wants done, and set its timer."""
        transfer = member.transfer
        for effect in transfer.take():
            self._do(member, effect)
        self.checks.on_member(member)
        if transfer.failed is not None:
            if member.alive:
                self.checks.on_failed(member)
                member.stored = Table()
                member.program.kept_chunks.clear()
                self.crash(member)
                self.at(self._soon(1000, 500_000), lambda: self._restart(member.who[0]))
            return
        if not member.turn and (member.batch or transfer.readable):
            member.turn = True
            self.at(self.now + self.random.randint(1, 2 * member.pace), lambda: self._read(member))
        due = transfer.next_deadline()
        if due < NEVER and due != member.timer:
            member.timer = due
            self.at(due, lambda: self._time(member, due))

    def _time(self, member: Member, due: int) -> None:
        if member.alive and member.timer == due:
            member.timer = NEVER
            member.transfer.on_timeout(self.now)
            self.after(member)

    def _do(self, member: Member, effect: Effect) -> None:
        if isinstance(effect, Note):
            self.trace.append(f"{self.now / S:.4f} {member.who} {effect.kind}: {effect.text}")
            self.checks.on_note(member, effect)
        elif isinstance(effect, OpenMailbox):
            member.mailbox = True
            self._join_mailbox(member)
        elif isinstance(effect, CloseMailbox):
            member.mailbox = False
        elif isinstance(effect, ToGroup):
            member.last_control = self.now
            if member.who in self.in_group[COMPANION] and member.connected:
                self.order(member, lambda place: self._control(place, member.who, effect.data))
        elif isinstance(effect, ToJoiner):
            self._data(member, effect)
        elif isinstance(effect, Digest):
            self._hand(member, self._soon(10, 7_000_000), lambda m: self._digest(m, effect))

    def _digest(self, member: Member, effect: Digest) -> None:
        member.transfer.on_digest(self.now, effect.joiner, effect.number, effect.compute())

    def _join_mailbox(self, member: Member) -> None:
        self.order(member, lambda _: self._hand(member, self._soon(50, 2000), lambda m: m.transfer.on_mailbox(self.now)))

    def _control(self, place: Place, sender: Who, data: bytes) -> None:
        self.checks.on_control(sender, data)

        def seen(member: Member) -> None:
            member.transfer.on_control(self.now, place, sender, data)
            self.checks.on_order(member, place)

        self.deliver(COMPANION, seen)

    def _data(self, member: Member, effect: ToJoiner) -> None:
        joiner = self.members.get(effect.joiner)
        if joiner is None or not joiner.alive or not joiner.connected or not member.connected:
            return
        if self.random.random() < self.plan.chunk_loss and not self.healed:
            return
        self.fetched += len(effect.data)
        when = max(self._soon(100, 5000), joiner.data_at.get(member.who, 0), joiner.muted_until) + 1
        joiner.data_at[member.who] = when
        self._hand(joiner, when, lambda m: m.transfer.on_data(self.now, member.who, effect.data))

    def _read(self, member: Member) -> None:
        """The program's turn: what it took before has been applied by now."""
        member.turn = False
        if not member.alive or member.transfer.failed is not None:
            return
        for kind, value in member.batch:
            if kind == "message":
                assert isinstance(value, tuple)
                self.checks.on_apply(member, *value)
        member.batch = []
        if self.random.random() < 0.3 and not member.damaged:
            member.stored = Table(dict(member.program.table.rows), member.program.table.history, member.program.table.place)
        if member.transfer.poll(self.now):
            member.batch = member.transfer.read(self.random.choice([1, 3, 1000]))
        self.after(member)

    def send(self) -> None:
        """A program that may send does so."""
        able = [m for m in self.live() if m.connected and m.who in self.in_group[GROUP] and m.transfer.stands]
        if not able:
            return
        sender = self.random.choice(able)
        key, value = f"k{self.random.randint(0, 30)}", self.random.choice([0, 1, 2, 3, 4])
        self.order(sender, lambda place: self._message(place, key, value))

    def _message(self, place: Place, key: str, value: int) -> None:
        self.checks.on_message(place)
        self.deliver(GROUP, lambda m: m.transfer.on_item(self.now, ("message", (place, key, value)), place, 60))

    # ---- faults

    def _restart(self, station: int) -> None:
        if not any(m.alive and m.who[0] == station for m in self.members.values()):
            self.start(station)

    def fault(self, kind: str) -> None:
        """One thing goes wrong."""
        self.trace.append(f"{self.now / S:.4f} {kind}")
        if kind == "stall":
            self.blocked_until = self.now + self.random.choice([50, 500, 4000]) * MS
        elif kind == "end":
            self.end_instance()
        live = self.live()
        if not live:
            return
        member = self.random.choice(live)
        if kind in ("crash", "leave"):
            self.crash(member)
            self.at(self._soon(1000, 3_000_000), lambda: self._restart(member.who[0]))
        elif kind == "join":
            # The others stop as well, or this one comes back at once.
            self.crash(member)
            self._restart(member.who[0])
        elif kind == "cut" and member.connected:
            self.cut(member, self._soon(1000, 2_000_000))
        elif kind == "slow":
            member.pace = self.random.choice([100, 1000, 5000]) * MS
        elif kind == "mute":
            member.muted_until = self._soon(1000, 6_000_000)
        elif kind == "deaf":
            # What the order has for it comes later than the others' patience with it lasts.
            member.muted_until = self.now + self.random.randint(11_000, 20_000) * MS
        elif kind == "damage" and member.transfer.active and self.plan.features.digests:
            member.program.table.history += "!"
            member.damaged = True
            self.checks.damaged = True
        elif kind == "fail" and member.transfer.stands and not member.batch:
            member.transfer.fail(self.now, "the program says so")
            self.after(member)
        elif kind == "error":
            member.program.snapshot_error = "disk"

    def heal(self) -> None:
        """Everything works again."""
        self.healed = True
        self.blocked_until = 0
        for member in self.live():
            member.pace = 2 * MS
            member.muted_until = 0
            member.program.snapshot_error = ""
            self._back(member)
        for station in self._clients:
            self._restart(station)

    def run(self) -> None:
        """The whole history. Raises Violation."""
        plan = self.plan
        for station in range(1, plan.members + 1):
            self.at(self._soon(0, self.random.choice([10_000, 1_000_000])), lambda s=station: self._restart(s))  # type: ignore[misc]
        span = 4_000_000
        for _ in range(plan.messages):
            self.at(self._soon(0, span), self.send)
        for _ in range(plan.faults):
            kind = self.random.choice(plan.fault_kinds)
            self.at(self._soon(100_000, span), lambda k=kind: self.fault(k))  # type: ignore[misc]
        self.run_until(6 * S)
        self.heal()
        self.run_until(10 * S)
        for _ in range(5):
            self.at(self._soon(0, 100_000), self.send)
        self.run_until(self.now + S)
        give_up = self.now + REST_NS
        while self.now < give_up and not self.checks.at_rest():
            self.run_until(self.now + S)
        self.run_until(self.now + 2 * S)
        self.checks.finish()


def simulate(seed: int, plan: Plan | None = None, transfer_class: type[Transfer[Item]] | None = None) -> Violation | None:
    """Run one seed (or plan); the violation that was found."""
    return violation_of(World(plan or Plan.draw(seed), transfer_class), 60)


if __name__ == "__main__":
    sys.exit(run_seeds(simulate, sys.argv[1:]))
