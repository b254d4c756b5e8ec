"""Groups that overlap on whole engines in virtual time: where a message is after how many hops, and what a death stops.

    python -m tests.virtual.overlap

Each station has an engine with its main order, the groups, the machine of these orders in C and its links' cores: all that a
daemon has but programs and sockets. A frame takes one hop, nothing else takes time. So the figures are those of the rules,
exactly, and the same on every machine; what a machine adds to them is measured by ``zenjun bench groups``.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from zenjun.daemon.grouphost import MULTICAST_OPERATIONS
from zenjun.daemon.multicast import for_links
from zenjun.proto.core import Message, Status
from zenjun.proto.effects import Closed, Effect, Opened, Persist, Send
from zenjun.proto.multicast.codec import encode
from zenjun.proto.multicast.links import Links, Pair
from zenjun.proto.multicast.member import MULTICAST, Member, group_messages
from zenjun.proto.multicast.records import Broadcast, Deliver, Fenced, Id, Release
from zenjun.proto.multicast.records import Effect as MulticastEffect
from zenjun.proto.multicast.records import Send as Transmit
from zenjun.proto.openpdu import decode_header
from zenjun.proto.service.base import Effect as GroupEffect
from zenjun.proto.service.base import Emit, decode_view
from zenjun.proto.service.groups import Change, Groups
from zenjun.proto.wire import Flag, MessageType, Ordering, group_id

from .engines import CONFIG, LATENCY, START, Node
from .segment import MS, NEVER, US, Segment

CLIENT: Final = 1
ORDERINGS: Final = {"total": Ordering.TOTAL, "abcast": Ordering.ABCAST, "token": Ordering.TOKEN}


@dataclass
class Times:
    """Of one message at one station, ns: when it came at level ordered and at level preack."""

    ordered: int
    preack: int = 0


class Station(Node):
    """An engine, and what a daemon has above it for these groups."""

    def boot(self, now: int) -> None:
        number = self.config.station
        self.groups = Groups(number)
        self.member = Member(number, self.groups)
        self.links = Links(for_links(self.config))
        self.outbox: deque[tuple[int, int, MessageType, bytes]] = deque()
        """Group, client, type and content of messages for the main order."""
        self.waits: deque[tuple[tuple[int, ...], bytes, bool]] = deque()
        """Messages of its program for which the window has no room."""
        self.got: dict[bytes, Times] = {}
        self._names: dict[Id, bytes] = {}
        self._frames: list[bytes] = []
        super().boot(now)

    # ---- the main order

    def apply(self, now: int, effects: list[Effect]) -> None:
        self._apply(now, effects)
        while self.outbox and self._offer(now):
            self._apply(now, self.engine.on_frames(now, []))
        self._turn(now)

    def emit(self, data: bytes) -> None:
        """A message of this station to all."""
        self.outbox.append((0, 0, MessageType.GROUP, data))

    def _offer(self, now: int) -> bool:
        taken = False
        while self.outbox and self.engine.offer(now, *self.outbox[0]):
            self.outbox.popleft()
            taken = True
        return taken

    def _apply(self, now: int, effects: list[Effect]) -> None:
        self.effects += effects
        for effect in effects:
            match effect:
                case Persist(incarnation, instance):
                    self.disk = (incarnation, instance)
                case Send(pdu):
                    self.sent.append(pdu)
                case Opened(instance, incarnations, frame_max, joined):
                    self.groups.open(instance, joined=joined)
                    self.links.begin(instance, incarnations, frame_max)
                    members = {z: life for z, life in enumerate(incarnations, 1) if life}
                    self._carry_out(now, self.member.open(instance, members, joined=joined))
                case Closed():
                    self.groups.suspend()
                    self.links.end()
                    self.member.close()
                case _:
                    pass
        for message in self.engine.core.deliver():
            self._deliver(now, message)
        self.engine.core.positions()
        self.sent += self.engine.core.tx(now)

    def _deliver(self, now: int, m: Message) -> None:
        place = (m.clock, m.src + 1, m.index)
        if m.type == MessageType.USER:
            self.got.setdefault(m.data, Times(now))
            return
        self._take(now)
        if m.type == MessageType.VIEW:
            view = decode_view(m.data)
            syncing = self.groups.syncing
            self.groups.uses_multicast = self.member.is_used
            self._of_groups(now, [e for e in self.groups.on_view(place, view) if not isinstance(e, Change)])
            effects = self.member.on_view(now, view, syncing)
            self.links.change(view.instance, view.incarnations)
            self._carry_out(now, effects)
        elif not m.client and m.data[:1] in MULTICAST_OPERATIONS:
            self._carry_out(now, self.member.on_group_message(now, m.src + 1, m.data))
            return
        else:
            kept = self.groups.kept
            effects_of_groups = self.groups.on_message(place, (m.src + 1, m.client), m.data)
            if self.groups.kept > kept:
                self.member.on_kept()
            self._of_groups(now, effects_of_groups)
        self.member.on_users(self.groups.multicast_stations)
        caught_up, self.groups.caught_up = self.groups.caught_up, []
        self._carry_out(now, self.member.on_groups_known(now, caught_up))

    def _of_groups(self, now: int, effects: Iterable[GroupEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Emit):
                self.emit(effect.data)
            elif isinstance(effect, Change) and effect.ordering in MULTICAST:
                assert not effect.refused, effect
                self._carry_out(now, self.member.on_change(now, effect))

    # ---- the machine

    def _carry_out(self, now: int, effects: Iterable[MulticastEffect]) -> None:
        machine = self.member.machine
        for effect in effects:
            if isinstance(effect, Deliver):
                self._names[effect.id] = effect.content
                self.got[effect.content] = Times(now)
            elif isinstance(effect, Release):
                self.got[self._names.pop(effect.id)].preack = now
            elif isinstance(effect, Broadcast):
                for data in group_messages(effect.entry):
                    self.emit(data)
            elif isinstance(effect, Transmit) and self.links.is_member(effect.to):
                self.links.pair(effect.to, now).send(encode(effect.record))
            elif isinstance(effect, Fenced):
                raise AssertionError(effect.text)
        if machine is None:
            return
        for station in machine.ready:
            if self.links.is_member(station):
                self.links.pair(station, now).take_from(machine)
            else:
                machine.flush(station, None)

    def _take(self, now: int) -> None:
        machine = self.member.machine
        if machine is None or not self.links.pairs:
            return
        pairs = list(self.links.pairs.values())
        if machine.is_fast:
            self._carry_out(now, self.member.on_links(now, pairs))
        else:
            accepted = [(pair.other, records) for pair in pairs for records in pair.take()]
            if accepted:
                self._carry_out(now, self.member.on_records(now, accepted))

    def say(self, now: int, groups: Iterable[int], data: bytes, *, safe: bool) -> None:
        """A program sends to groups of order abcast or token."""
        self.waits.append((tuple(groups), data, safe))
        self._turn(now)

    def _say(self, now: int) -> None:
        while self.waits:
            groups, data, safe = self.waits[0]
            if self.member.send(now, CLIENT, groups, data, safe) is None:
                break
            self.waits.popleft()
            self._carry_out(now, self.member.on_sent(now))

    def _turn(self, now: int) -> None:
        """What the data path does in a turn: links bring records, the rules are applied, links take what there is."""
        self._say(now)
        while [pair for pair in self.links.pairs.values() if self._step(pair, now) & Status.DELIVER]:
            self._take(now)
            self._say(now)
        for pair in self.links.pairs.values():
            while pair.pump(now) and self._step(pair, now) & Status.ROOM:
                pass
            self._frames += pair.core.tx(now)
            self._step(pair, now)
            self._frames += pair.core.tx(now)

    @staticmethod
    def _step(pair: Pair, now: int) -> int:
        status = pair.core.step(now, False)
        return status if status & Status.DELIVER else pair.core.step(now, True)

    # ---- as the segment sees it

    def collect(self) -> list[bytes]:
        frames, self._frames = self._frames, []
        return super().collect() + frames

    def on_frames(self, now: int, batch: list[tuple[bytes, bytes]]) -> None:
        main = []
        for pdu, mac in batch:
            header = decode_header(pdu)
            assert header is not None
            if not header["flags"] & Flag.PAIR:
                main.append((pdu, mac))
            elif header["target"] == self.config.station and self.member.machine and self.links.is_member(header["src"]):
                self.links.pair(header["src"], now).core.pair_rx(now, pdu, mac, False)
        super().on_frames(now, main)
        self._turn(now)

    def _due(self) -> int:
        due = NEVER
        for pair in self.links.pairs.values():
            core = pair.core
            due = min(due, core.nak_due_ns(), core.poll_due_ns(), core.confirm_due_ns())
        machine = self.member.machine
        return due if machine is None or machine.deadline is None else min(due, machine.deadline)

    def next_deadline_ns(self) -> int:
        return min(super().next_deadline_ns(), self._due())

    def on_timeout(self, now: int) -> None:
        for pair in self.links.pairs.values():
            core = pair.core
            if core.nak_due_ns() <= now:
                core.nak(now)
            if core.poll_due_ns() <= now:
                core.step(now, False)
                core.poll(now)
        machine = self.member.machine
        if machine is not None and machine.deadline is not None and machine.deadline <= now:
            self._carry_out(now, self.member.on_time(now))
        if self.engine.next_deadline_ns() <= now:
            super().on_timeout(now)
        self._turn(now)


class Overlapping(Segment[Station]):
    """n such stations in their first instance, with groups: name, order, and the stations of its members."""

    def __init__(self, n: int, groups: Mapping[str, tuple[str, Iterable[int]]], **changes: Any) -> None:
        base = replace(CONFIG, stations=n, **changes)
        self.nodes = [Station(replace(base, station=k, seed=k, host_name=f"host{k}")) for k in range(1, n + 1)]
        super().__init__(self.nodes, now=START, latency_ns=LATENCY)
        for node in self.nodes:
            node.boot(self.now)
        self.until(lambda: all(node.engine.instance for node in self.nodes))
        self.run(20 * MS)
        for name, (order, members) in groups.items():
            for station in members:
                join = Groups.encode_join(name, "p", level=1, open=True, ordering=ORDERINGS[order])
                self.at(station).outbox.append((group_id(name), CLIENT, MessageType.GROUP, join))
                self.at(station).apply(self.now, [])
                self.run(20 * MS)
        self.run(100 * MS)

    def at(self, station: int) -> Station:
        return next(node for node in self.nodes if node.config.station == station)

    def say(self, station: int, groups: Iterable[str], data: bytes, *, order: str, safe: bool = True) -> None:
        """A program of a station sends."""
        node = self.at(station)
        if order == "total":
            node.outbox.append((group_id(next(iter(groups))), CLIENT, MessageType.USER, data))
            node.apply(self.now, [])
        else:
            node.say(self.now, sorted(group_id(name) for name in groups), data, safe=safe)

    def kill(self, station: int) -> None:
        """It sends and receives nothing more."""
        node = self.at(station)
        self.nodes.remove(node)
        self.stations.remove(node)


# ---- latency by hops (rule O9)


@dataclass(frozen=True)
class Case:
    """Lone messages of station ``sender`` to group g."""

    text: str
    order: str
    groups: Mapping[str, tuple[int, ...]]
    sender: int
    ordered: int
    preack: int
    """Hops after which every member has it at these levels. Ordered: as the design says (its rule O9); preack: then those who
    were told say so, which goes back to whoever decided, and forth again (rule S1). total: level ordered only."""


G: Final = (1, 2, 3)
CASES: Final = (
    Case("total", "total", {"g": G}, 1, 2, 0),
    Case("abcast, sender inside", "abcast", {"g": G}, 1, 3, 5),
    Case("abcast, outside", "abcast", {"g": G}, 4, 3, 5),
    Case("token, one host, which sends", "token", {"g": G}, 1, 1, 3),
    Case("token, one host, another member sends", "token", {"g": G}, 3, 2, 4),
    Case("token, one host, sender outside", "token", {"g": G}, 4, 2, 4),
    Case("token, two hosts, all others follow the one that decides", "token", {"g": G, "h": (1,), "i": (2,)}, 4, 3, 5),
    Case("token, three hosts", "token", {"g": G, "h": (1,), "i": (2,), "k": (3,)}, 4, 3, 5),
    Case("token, two hosts, 3 follows the other one", "token", {"g": G, "h": (2, 3, 4), "i": (1, 5)}, 5, 4, 8),
)


def hops(case: Case, lone: int = 5) -> tuple[list[float], list[float]]:
    """The largest number of hops after which stations 1, 2, 3 have it at level ordered, and at level preack (total: not seen)."""
    net = Overlapping(5, {name: (case.order, members) for name, members in case.groups.items()})
    net.say(case.sender, ["g"], b"first", order=case.order)  # it opens the links
    net.run(100 * MS)
    sent: dict[bytes, int] = {}
    for k in range(lone):
        data = b"%d" % k
        sent[data] = net.now
        net.say(case.sender, ["g"], data, order=case.order)
        net.run(50 * MS)
    ordered, preack = [], []
    for z in G:
        times = [(net.at(z).got[data], since) for data, since in sent.items()]
        ordered.append(max((t.ordered - since) / LATENCY for t, since in times))
        preack.append(max((t.preack - since) / LATENCY for t, since in times))
    return ordered, preack if case.order != "total" else []


# ---- a death outside the group


@dataclass
class Pause:
    """Longest time without a delivery at any member, ns."""

    before: int
    """While nothing happens."""
    ordered: int
    preack: int
    """From the death of a station outside on."""


def pause(order: str, gap_ns: int, n: int = 8, size: int = 3) -> Pause:
    """A message each ``gap_ns`` from station 1 to a group of stations 1 to ``size``; station n dies."""
    net = Overlapping(n, {"g": (order, range(1, size + 1))})
    count = 0

    def run(duration: int) -> None:
        nonlocal count
        end = net.now + duration
        while net.now < end:
            net.say(1, ["g"], b"%d" % count, order=order)
            count += 1
            net.run(gap_ns)

    run(50 * MS)
    began = net.now
    run(50 * MS)
    died = net.now
    net.kill(n)
    run(CONFIG.fail_timeout_ns + 50 * MS)
    net.run(200 * MS)
    members = [net.at(z) for z in range(1, size + 1)]
    if any(len(node.got) != count or (n,) not in node.left() for node in members):
        raise AssertionError("not all has been delivered, or the station has not been removed")

    def longest(level: str, since: int, until: int) -> int:
        gaps = [0]
        for node in members:
            times = sorted(t for t in (getattr(times, level) for times in node.got.values()) if since <= t < until)
            gaps += [b - a for a, b in pairwise(times)]
        return max(gaps)

    preack = longest("preack", died - 5 * MS, NEVER) if order != "total" else 0
    return Pause(longest("ordered", began, died), longest("ordered", died - 5 * MS, NEVER), preack)


def main() -> int:
    print("Lone messages to a group of stations 1, 2, 3: hops until each has it at level ordered, and at level preack\n")
    for case in CASES:
        ordered, preack = hops(case)
        print(f"{case.text}: {[round(x, 2) for x in ordered]} {[round(x, 2) for x in preack]}")
    print("\nLongest pause of a group of three in a cluster of eight when a station outside dies, ms: before, ordered, preack\n")
    for order, gap in (("total", MS), ("abcast", 200 * US), ("token", 200 * US)):
        found = pause(order, gap)
        print(f"{order}, a message each {gap / MS:g} ms: {found.before / MS:g} {found.ordered / MS:g} {found.preack / MS:g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
