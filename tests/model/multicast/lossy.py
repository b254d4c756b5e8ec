"""The same runs with links that repair what the wire loses (link.py) in place of abstract ones.

The wire loses, delays, re-orders and repeats frames. A *hole* from one station to another swallows frames to its address and lets
those to the group address pass, as a switch does that has learned a wrong port. A *cut* swallows both. The main order is as
before: what goes to all stations takes other ways, and is relayed.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from zenjun.proto.multicast.records import Record, ViewEvent
from zenjun.proto.multicast.station import Station

from .link import FALLBACK_NS, FALLBACK_POLLS, STUCK_NS, Frame, LinkEnd, LinkId
from .net import Host, Life
from .world import Plan, World

FAULTS: Final = ("crash", "cut", "pause", "join", "leave", "hole", "one_way")
BAD_LUCK: Final = 5
"""Frames between two stations that chance has taken shortly before one has the other removed: it need not be the link's fault."""
LATER: Final = 3
"""Times that something is said after everything has rested for longer than a fallback."""


@dataclass
class Addressed:
    """What an end of a link may send to the group address (rules L2, M8), by the frames that came and went, not by its state."""

    heard: bool = False
    polls: int = 0
    """POLLs sent since something but a NAK came."""
    until: int = 0
    """It has asked twice in vain: until then all may go there."""
    called: int = 0
    """It was asked there: until then all but POLLs may."""

    def came(self, now: int, frame: Frame) -> None:
        """A frame of this link has come from the other end."""
        if not frame.to_group:
            self.called = 0
        elif frame.asks and self.heard:
            self.called = now + FALLBACK_NS
        self.heard = True
        if not frame.is_nak:
            self.polls = 0

    def goes(self, now: int, frames: Iterable[Frame]) -> list[Frame]:
        """These frames of this end go out together. Returns those that go to the group address and may not."""
        frames = list(frames)
        self.polls += sum(frame.asks for frame in frames)
        if self.polls >= FALLBACK_POLLS and any(frame.asks for frame in frames):
            self.until = now + FALLBACK_NS
        if not self.heard or now < self.until:
            return []
        return [frame for frame in frames if frame.to_group and (now >= self.called or frame.asks)]


class LossyWorld(World):
    """A run of one plan on links of rules L1-L4."""

    def __init__(self, plan: Plan, station_class: type[Station] = Station) -> None:
        longer = random.Random(plan.seed).choice((1, 1, 10))
        super().__init__(replace(plan, kinds=FAULTS, span=plan.span * longer), station_class)
        self.loss = self.random.choice((0.0, 0.05, 0.3))
        self.frames = 0
        self.stuck = 0
        """Removals that a link has proposed."""
        self._ends: dict[tuple[Life, Life], LinkEnd] = {}
        self._holes: set[tuple[int, int]] = set()
        self._cuts: set[tuple[int, int]] = set()
        self._was_cut = False
        self._given: defaultdict[tuple[Life, Life], list[Record]] = defaultdict(list)
        self._taken: Counter[tuple[Life, Life]] = Counter()
        self._addressed: defaultdict[tuple[Life, Life], Addressed] = defaultdict(Addressed)
        self._timers: set[tuple[Life, Life, int]] = set()
        self._lost: defaultdict[frozenset[int], list[int]] = defaultdict(list)
        """When chance took a frame between two stations."""

    # ---- links

    def _end(self, host: Host, other: Life) -> LinkEnd:
        """Rule L3: it opens in the first instance that has both incarnations."""
        pair = (host.life, other)
        if pair not in self._ends:
            lower, higher = sorted(pair)
            instance = max(self._came_in(life) for life in pair)
            self._ends[pair] = self.end_class(LinkId(instance, lower, higher), host.station)
        return self._ends[pair]

    def _came_in(self, life: Life) -> int:
        """The instance in which an incarnation has begun."""
        entry = self.order[self.hosts[life].first]
        return entry.instance if isinstance(entry, ViewEvent) else 1

    def transmit(self, host: Host, to: int, record: Record) -> None:
        life = host.machine.main.members.get(to) if host.machine is not None else None
        self.checks.on_record(host, to, record)
        self.note(f"{host.station} -> {to}", record)
        if life is not None:
            end = self._end(host, (to, life))
            self._given[host.life, (to, life)].append(record)
            end.send(self.now, [record])
            self._flush(host, (to, life), end)

    def _flush(self, host: Host, other: Life, end: LinkEnd) -> None:
        """Send its frames, and enter its deadline into the calendar."""
        frames, end.out = end.out, []
        for frame in self._addressed[host.life, other].goes(self.now, frames):
            self.checks.fail("addresses", f"{host.life} sends {frame} for {other} to all")
        for frame in frames:
            self.frames += 1
            way = (host.station, other[0])
            lost = self._chance(self.loss)
            if lost:
                self._lost[frozenset(way)].append(self.now)
            lost = lost or way in self._cuts or (way in self._holes and not frame.to_group)
            if not lost:
                self._fly(other[0], host.life, frame)
                if self._chance(self.loss / 4):
                    self._come_again(other[0], host.life, frame)
        deadline = end.deadline
        if deadline is not None and (host.life, other, deadline) not in self._timers:
            self._timers.add((host.life, other, deadline))
            self.at(deadline, lambda: self._tick(host, other, end, deadline))

    def _come_again(self, station: int, source: Life, frame: Frame) -> None:
        """A copy of a frame arrives much later, perhaps at another incarnation."""
        self.at(self._soon(self.plan.span), lambda: self._fly(station, source, frame))

    def _fly(self, station: int, source: Life, frame: Frame) -> None:
        self.at(self.now + self.link_delay(source[0], station), lambda: self._come(station, source, frame))

    def _come(self, station: int, source: Life, frame: Frame) -> None:
        """A frame has arrived: it is for the present incarnation of the station, if the other one is a member there."""
        host = next((h for h in self.hosts.values() if h.station == station and h.alive), None)
        if host is None:
            return
        current = next((life for life in host.known if life[0] == source[0] and self._is_member(host, life)), None)
        if current is None:
            return
        end = self._end(host, current)
        if frame.link == end.link:
            self._addressed[host.life, current].came(self.now, frame)
        accepted = end.on_frame(self.now, frame)
        for records in accepted:
            self._check_sequence(current, host.life, records)
            host.inbox.append((current, list(records)))
        if accepted:
            self.at(max(self.now + self.take_delay(host), host.paused_until), lambda: self.take(host))
        self._flush(host, current, end)

    def _check_sequence(self, source: Life, target: Life, records: Iterable[Record]) -> None:
        """A link brings what it was given, in order, once."""
        for record in records:
            k = self._taken[source, target]
            self._taken[source, target] += 1
            given = self._given[source, target]
            if k >= len(given) or given[k] != record:
                self.checks.fail("link", f"record {k} from {source} at {target} is {record}")

    def _is_member(self, host: Host, life: Life) -> bool:
        """By what this station knows; one that has no tables yet knows the view that brought it in."""
        members = host.machine.main.members if host.machine is not None else self.members
        return members.get(life[0]) == life[1]

    def _tick(self, host: Host, other: Life, end: LinkEnd, deadline: int) -> None:
        self._timers.discard((host.life, other, deadline))
        if not host.alive or not self._is_member(host, other):
            return
        end.on_time(self.now)
        if end.is_stuck(self.now):
            self._propose_removal(host, other, end)
        self._flush(host, other, end)

    def _propose_removal(self, host: Host, other: Life, end: LinkEnd) -> None:
        """Rule L4: else the groups of both would be blocked forever."""
        target = self.hosts[other]
        if other not in self._gone and host.life not in self._gone and self._may_go(target):
            self.stuck += 1
            bad_luck = sum(at > self.now - 2 * STUCK_NS for at in self._lost[frozenset((host.station, other[0]))])
            if not self._was_cut and self.loss < 0.1 and bad_luck < BAD_LUCK:
                self.checks.fail("link", f"{host.life} has {other} removed, and nothing is cut")
            self._cut(target)

    # ---- faults

    def fault(self) -> None:
        kind = self.random.choice(self.plan.kinds)
        if kind in ("hole", "one_way"):
            a, b = self.random.sample(range(1, self.plan.stations + 1), 2)
            self.note(f"{kind} from {a} to {b}")
            self._was_cut |= kind == "one_way"
            (self._holes if kind == "hole" else self._cuts).add((a, b))
        else:
            super().fault()

    def run(self) -> None:
        """Later, too, when all that was asked in vain is long ago: who has met at the group address has left it."""
        super().run()
        for _ in range(LATER):
            self.run_until(self.now + FALLBACK_NS // 2)
            self.say_to_all()
            self._settle_down()
        self.checks.at_end()

    def _heal(self) -> None:
        """Holes stay: links do without addresses (rule L2)."""
        self._cuts.clear()
        super()._heal()
