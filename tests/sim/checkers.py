"""The properties, each in a class of its own, judged only from ``Facts``: no engine is believed where the network saw better.

A checker raises ``Violation`` the moment its property is broken. ``CHECKERS`` is the registry; ``test_variants.py`` has the
defect that proves that each can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from zenjun.proto.wire import Flag, Kind

from .facts import ACK, LEVEL_NAMES, ORDERED, PREACK, Delivery, Facts, Instance, Message, View
from .frames import Frame, name


class Violation(AssertionError):
    """A property is broken: by whom, and how."""

    def __init__(self, checker: str, text: str, stations: tuple[int, ...] = ()) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker
        self.text = text
        self.stations = stations


class Checker:
    """Hooks, all optional. Stations are 0..n-1."""

    name: ClassVar[str]

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def fail(self, text: str, *stations: int) -> None:
        raise Violation(self.name, text, stations)

    def opened(self, view: View) -> None:
        """``view.station`` has entered ``view.instance``; ``facts.views`` still shows what it was in before."""

    def closed(self, view: View) -> None: ...

    def crashed(self, station: int) -> None:
        """Its process is gone; ``closed`` came before if it was in an instance."""

    def sent(self, station: int, frame: Frame, now: int) -> None:
        """The station has broadcast this; ``facts`` already hold it. ``frame.src`` may be another's: a relayed retransmission."""

    def delivered(self, view: View, record: Delivery) -> None:
        """A message at level ordered; not yet in ``view.records``."""

    def released(self, view: View, level: int, old: int, new: int) -> None:
        """The station's position of that level has moved from old to new; ``view.positions`` already has the new ones."""

    def turn(self, view: View, frames_sent: int) -> None:
        """A station has finished a turn."""

    def fenced(self, station: int, position: int) -> None: ...

    def converged(self) -> None:
        """The healed network has delivered everything (``liveness`` judges whether it has)."""


class TotalOrder(Checker):
    """Sequences of any two stations in one instance are prefixes of one order, byte for byte, at each level."""

    name = "total_order"

    def delivered(self, view: View, record: Delivery) -> None:
        order, at = view.instance.order, len(view.records)
        if view.records and (record.position, record.index) <= (view.records[-1].position, view.records[-1].index):
            self.fail(f"station {view.station + 1} delivers {record.name()} after {view.records[-1].name()}", view.station)
        if at == len(order):
            order.append(record)
        elif order[at] != record:
            self.fail(
                f"instance {view.instance.number}, message {at}: station {view.station + 1} delivers {record.name()},"
                f" another has {order[at].name()}",
                view.station,
                order[at].src,
            )

    def released(self, view: View, level: int, old: int, new: int) -> None:
        order = view.instance.order
        if view.positions[level] > view.positions[0]:
            self.fail(
                f"station {view.station + 1} is at {LEVEL_NAMES[level]} {new} but has ordered {view.positions[0]}", view.station
            )
        at = view.released[level]
        while at < len(view.records) and view.records[at].position < new:
            if order[at] != view.records[at]:
                self.fail(
                    f"station {view.station + 1} releases {view.records[at].name()} at {LEVEL_NAMES[level]},"
                    f" not {order[at].name()}"
                )
            at += 1


class Place(Checker):
    """The order is (clock, src) of the PDUs really sent: every record stands at the place the network's oracle gives its PDU."""

    name = "place"

    def delivered(self, view: View, record: Delivery) -> None:
        pdus = view.instance.pdus
        if record.position >= len(pdus) or pdus[record.position][:2] != (record.clock, record.src):
            want = pdus[record.position][:2] if record.position < len(pdus) else None
            self.fail(
                f"station {view.station + 1} delivers {record.name()}, where (clock, src) is {want}", view.station, record.src
            )


class NoDuplicate(Checker):
    """No message is delivered twice at a station."""

    name = "no_duplicate"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._seen: dict[View, set[tuple[int, ...]]] = {}

    def delivered(self, view: View, record: Delivery) -> None:
        key = (record.clock, record.src, record.index)
        seen = self._seen.setdefault(view, set())
        if key in seen:
            self.fail(f"station {view.station + 1} delivers {record.name()} again", view.station, record.src)
        seen.add(key)


class NoInvention(Checker):
    """What is delivered has been sent: same content, group, type and program, in this instance by this source."""

    name = "no_invention"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._known: dict[tuple[int, int, int], tuple[int, set[tuple[int, int, bytes]]]] = {}

    def delivered(self, view: View, record: Delivery) -> None:
        key = (view.instance.number, record.src, record.client)
        taken = view.instance.taken.get(key[1:], [])
        count, known = self._known.get(key, (0, set()))
        for m in taken[count:]:
            known.add((m.group, m.type, m.data))
        self._known[key] = (len(taken), known)
        if (record.group, record.type, record.data) not in known:
            self.fail(f"station {view.station + 1} delivers {record.name()}, which nobody sent", view.station, record.src)


class Fifo(Checker):
    """Each program's messages come in its order and without a gap."""

    name = "fifo"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._next: dict[View, dict[tuple[int, int], int]] = {}

    def delivered(self, view: View, record: Delivery) -> None:
        key = (record.src, record.client)
        at = self._next.setdefault(view, {}).get(key, 0)
        taken = view.instance.taken.get(key, [])
        if at >= len(taken) or taken[at].data != record.data:
            want = taken[at].name() if at < len(taken) else "nothing"
            self.fail(f"station {view.station + 1} delivers {record.name()} where {want} is due", view.station, record.src)
        self._next[view][key] = at + 1


class Causality(Checker):
    """What a station had delivered when it sent m stands before m everywhere."""

    name = "causality"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._next: dict[View, dict[tuple[int, int], int]] = {}

    def delivered(self, view: View, record: Delivery) -> None:
        key = (record.src, record.client)
        at = self._next.setdefault(view, {}).get(key, 0)
        self._next[view][key] = at + 1
        taken = view.instance.taken.get(key, [])
        if at < len(taken) and len(view.records) < taken[at].delivered_before:
            self.fail(
                f"station {view.station + 1} delivers {taken[at].name()} as message {len(view.records)}, but its sender"
                f" had delivered {taken[at].delivered_before} before it",
                view.station,
                record.src,
            )


class PreackHonest(Checker):
    """Released at preack: every station has accepted it and every receiver has said so on the wire."""

    name = "preack_honest"

    def released(self, view: View, level: int, old: int, new: int) -> None:
        if level != PREACK or view.ended:  # then it is released on others' word, which were judged: see GoingOn
            return
        inst = view.instance
        if new > len(inst.pdus):
            self.fail(f"station {view.station + 1} pre-acknowledges position {new - 1}, which nobody has sent", view.station)
        last = {inst.pdus[p][1]: (p, inst.pdus[p][2]) for p in range(old, new)}  # of each source: streams are accepted in order
        for src, (position, seq) in last.items():
            for j in range(self.facts.stations):
                other = self.facts.views[j]
                if other is not None and other.instance is inst and other.core.peer(src).req <= seq:
                    self._no(view, position, j, src, seq, "has not accepted it")
                if j != src and inst.ack_sent[j][src] <= seq:
                    self._no(view, position, j, src, seq, f"has broadcast ack {inst.ack_sent[j][src]}")

    def _no(self, view: View, position: int, j: int, src: int, seq: int, why: str) -> None:
        self.fail(
            f"station {view.station + 1} pre-acknowledges position {position} (s{src + 1} seq {seq}), but s{j + 1} {why}",
            view.station,
            j,
        )


class AckHonest(Checker):
    """Released at ack: every station knows of the pre-acknowledgement and has said so on the wire."""

    name = "ack_honest"

    def released(self, view: View, level: int, old: int, new: int) -> None:
        if level != ACK or not self.facts.want_ack or view.ended:
            return
        inst = view.instance
        last = {inst.pdus[p][1]: (p, inst.pdus[p][2]) for p in range(old, min(new, len(inst.pdus)))}
        for src, (position, seq) in last.items():
            for j in range(self.facts.stations):
                other = self.facts.views[j]
                if other is not None and other.instance is inst and other.core.peer(src).min_al <= seq:
                    self.fail(
                        f"station {view.station + 1} acknowledges position {position}, s{j + 1} has not pre-acknowledged it",
                        view.station,
                        j,
                    )
                if inst.pack_sent[j][src] <= seq:
                    self.fail(
                        f"station {view.station + 1} acknowledges position {position} (s{src + 1} seq {seq}),"
                        f" but s{j + 1} has broadcast pack {inst.pack_sent[j][src]}",
                        view.station,
                        j,
                    )


class Instances(Checker):
    """One number, one set of members; numbers grow; at most one instance lives; state is durable before it is spoken of."""

    name = "instances"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._last = [0] * facts.stations
        self._lives: list[set[int]] = [set() for _ in range(facts.stations)]

    def opened(self, view: View) -> None:
        s, inst = view.station, view.instance
        if inst.number <= self._last[s]:
            self.fail(f"station {s + 1} opens instance {inst.number} after {self._last[s]}", s)
        self._last[s] = inst.number
        if inst.incarnations[s] != self.facts.life[s]:
            self.fail(f"station {s + 1} is incarnation {self.facts.life[s]}, its instance has {inst.incarnations[s]}", s)
        for j, other in enumerate(self.facts.views):
            if j != s and other is not None and other.instance.number != inst.number:
                self.fail(
                    f"station {s + 1} opens instance {inst.number} while s{j + 1} is still in {other.instance.number}", s, j
                )

    def members(self, inst: Instance, station: int, incarnations: tuple[int, ...]) -> None:
        """The station says that the instance has these incarnations."""
        if inst.incarnations != incarnations:
            self.fail(f"instance {inst.number} has {inst.incarnations}, for station {station + 1} it has {incarnations}", station)

    def started(self, station: int, incarnation: int) -> None:
        """A daemon's life begins."""
        if incarnation in self._lives[station]:
            self.fail(f"station {station + 1} lives incarnation {incarnation} twice", station)
        self._lives[station].add(incarnation)

    def sent(self, station: int, frame: Frame, now: int) -> None:
        incarnation, instance = self.facts.disk[station]
        if frame.src == station + 1 and (frame.incarnation > incarnation or frame.instance > instance):
            self.fail(
                f"station {station + 1} sends {name(frame.kind)} as incarnation {frame.incarnation} in instance {frame.instance};"
                f" durable are {incarnation} and {instance}",
                station,
            )


class GoingOn(Checker):
    """Whoever goes from one instance to the next in one life of its process has delivered and released the same of it as all
    others who do, at preack and at ack, before it starts the next: nothing that one of them has released is missing at another.
    """

    name = "going_on"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._left: dict[int, View] = {}
        """By station: the instance that its process was in last."""
        self._end: dict[Instance, View] = {}
        """Of the first to go on from each instance."""

    def closed(self, view: View) -> None:
        self._left[view.station] = view

    def crashed(self, station: int) -> None:
        self._left.pop(station, None)

    def opened(self, view: View) -> None:
        left = self._left.pop(view.station, None)
        if left is None:
            return
        first = self._end.setdefault(left.instance, left)
        for level in (PREACK, ACK):
            if left.positions[level] != first.positions[PREACK] or left.released[level] != first.released[PREACK]:
                self.fail(
                    f"station {view.station + 1} goes on from instance {left.instance.number} with {LEVEL_NAMES[level]}"
                    f" {left.positions[level]} ({left.released[level]} messages), s{first.station + 1} with"
                    f" {first.positions[PREACK]} ({first.released[PREACK]} messages)",
                    view.station,
                    first.station,
                )


class Flow(Checker):
    """In flight ≤ window, no receive buffer overflows, and nobody keeps more than its slots."""

    name = "flow"

    def sent(self, station: int, frame: Frame, now: int) -> None:
        view = self.facts.views[station]
        if frame.kind != Kind.DATA or frame.src != station + 1 or view is None or frame.instance != view.instance.number:
            return
        inst = view.instance
        seq = inst.unwrap(frame.seq)
        others = [inst.ack_sent[j][station] for j in range(self.facts.stations) if j != station]
        lowest = min(others, default=seq)
        if seq >= lowest + self.facts.window:
            self.fail(
                f"station {station + 1} sends seq {seq} while only {lowest} is acknowledged by all, window {self.facts.window}",
                station,
            )

    def turn(self, view: View, frames_sent: int) -> None:
        if view.core.window_drops():
            self.fail(f"station {view.station + 1} has dropped {view.core.window_drops()} PDUs beyond its window", view.station)
        for h in range(self.facts.stations):
            peer = view.core.peer(h)
            if peer.req - peer.base > self.facts.slots:
                self.fail(
                    f"station {view.station + 1} keeps {peer.req - peer.base} PDUs of s{h + 1}, slots {self.facts.slots}",
                    view.station,
                    h,
                )


class Monotonic(Checker):
    """Within an instance nothing is taken back: expectations, ack minima, positions of every level, the clock."""

    name = "monotonic"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._last: dict[View, list[tuple[int, ...]]] = {}
        self._clock: dict[View, int] = {}
        self._vectors: dict[tuple[int, int], tuple[tuple[int, ...], int]] = {}

    def released(self, view: View, level: int, old: int, new: int) -> None:
        if new < old:
            self.fail(
                f"station {view.station + 1} takes its {LEVEL_NAMES[level]} position back from {old} to {new}", view.station
            )
        if level and new > view.positions[level - 1]:
            self.fail(
                f"station {view.station + 1} is at {LEVEL_NAMES[level]} {new},"
                f" at {LEVEL_NAMES[level - 1]} {view.positions[level - 1]}",
                view.station,
            )

    def sent(self, station: int, frame: Frame, now: int) -> None:
        """What a station broadcasts about its knowledge never shrinks; its clock never falls behind its own promises."""
        view = self.facts.views[station]
        if (
            view is None
            or frame.src != station + 1
            or frame.instance != view.instance.number
            or frame.kind in (Kind.DATA, Kind.OPEN)
        ):
            return
        acks = tuple(view.instance.unwrap(a) for a in frame.ack)
        key = (station, frame.instance)
        old, clock = self._vectors.get(key, (acks, frame.clock))
        if any(a < b for a, b in zip(acks, old, strict=True)) or frame.clock < clock:
            self.fail(f"station {station + 1} broadcasts ack {acks} clock {frame.clock} after {old}, {clock}", station)
        self._vectors[key] = (acks, frame.clock)

    def turn(self, view: View, frames_sent: int) -> None:
        now: list[tuple[int, ...]] = []
        for h in range(self.facts.stations):
            p = view.core.peer(h)
            now.append((p.req, p.base, p.top, p.min_al, p.acked, p.ordered))
            if not p.base <= p.min_al or p.acked > p.min_al or p.min_al > p.top:
                self.fail(
                    f"station {view.station + 1} about s{h + 1}: base, acked <= min_al <= top does not hold in {p}",
                    view.station,
                    h,
                )
        old = self._last.get(view)
        if old is not None:
            for h, (a, b) in enumerate(zip(old, now, strict=True)):
                if any(x > y for x, y in zip(a, b, strict=True)):
                    self.fail(
                        f"station {view.station + 1} takes back (req, base, top, min_al, acked, ordered) of s{h + 1}: {a} to {b}",
                        view.station,
                        h,
                    )
        self._last[view] = now
        clock = view.core.core_clock()
        if clock < self._clock.get(view, 0):
            self.fail(f"station {view.station + 1} turns its clock back from {self._clock[view]} to {clock}", view.station)
        self._clock[view] = clock


class Digest(Checker):
    """No station is fenced in a correct run."""

    name = "digest"

    def fenced(self, station: int, position: int) -> None:
        self.fail(f"station {station + 1} is fenced at position {position}", station)


class Bounded(Checker):
    """Memory is what was reserved at the start, and a turn sends a bounded number of frames."""

    name = "bounded"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._memory: dict[tuple[int, int], int] = {}

    def turn(self, view: View, frames_sent: int) -> None:
        memory = view.core.memory_bytes()
        if memory != self._memory.setdefault((view.station, view.life), memory):
            self.fail(
                f"station {view.station + 1} has {memory} bytes, began with {self._memory[view.station, view.life]}", view.station
            )
        limit = (self.facts.slots + 16) * (self.facts.stations + 1)
        if frames_sent > limit:
            self.fail(f"station {view.station + 1} has sent {frames_sent} frames in one turn, limit {limit}", view.station)


STORM_FRAMES = 15_000
"""So many frames, and 4 n for every DATA frame (level ack takes 2 n), are no run's work: stations answer each other for ever."""


class Silence(Checker):
    """No storm ever, and after convergence only heartbeats: one CONFIRM per station and interval, none of them a POLL."""

    name = "silence"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.watching = False
        """Set by the simulation when silence is due."""
        self.counts = [0] * facts.stations
        self._total = 0
        self._data = 0

    def sent(self, station: int, frame: Frame, now: int) -> None:
        self._total += 1
        self._data += frame.kind == Kind.DATA
        if self._total > STORM_FRAMES + 4 * self.facts.stations * self._data:
            self.fail(f"{self._total} frames in one run, {self._data} of them DATA", station)
        if not self.watching:
            return
        self.counts[station] += 1
        if frame.kind != Kind.CONFIRM or frame.flags & Flag.POLL:
            self.fail(
                f"station {station + 1} sends {name(frame.kind)} flags {frame.flags:#x} when everything is delivered", station
            )

    def judge(self, intervals: int) -> None:
        """At the end of a watch of so many heartbeat intervals."""
        for station, count in enumerate(self.counts):
            if count > intervals + 1:
                self.fail(f"station {station + 1} sends {count} frames in {intervals} heartbeat intervals", station)
            if 2 * count < intervals - 1:  # an engine may notice late that its last frame has left, and count from there
                self.fail(f"station {station + 1} sends only {count} heartbeats in {intervals} intervals", station)


class Liveness(Checker):
    """After the last fault: one instance of all, everything sent in it delivered everywhere, in a bounded time."""

    name = "liveness"

    def missing(self) -> str:
        """What is still to come; empty if nothing."""
        views = self.facts.views
        present = [v for v in views if v is not None]
        if len(present) < self.facts.stations:
            return "in no instance: " + ", ".join(f"s{j + 1}" for j, v in enumerate(views) if v is None)
        inst = present[0].instance
        if any(v.instance is not inst for v in present):
            return "several instances: " + ", ".join(f"s{v.station + 1} in {v.instance.number}" for v in present)
        total = inst.messages()
        for v in present:
            if len(v.records) < total:
                return f"s{v.station + 1} has delivered {len(v.records)} of {total} messages"
            for level in (ORDERED, PREACK):
                if v.positions[level] < len(inst.pdus):
                    return f"s{v.station + 1} is at {LEVEL_NAMES[level]} {v.positions[level]} of {len(inst.pdus)} PDUs"
            for level in (ORDERED, PREACK, ACK):
                due = total if level < ACK else self._ack_due(inst, v)
                if v.released[level] < due:
                    return f"s{v.station + 1} has released {v.released[level]} of {due} messages at {LEVEL_NAMES[level]}"
        return ""

    def _ack_due(self, inst: Instance, view: View) -> int:
        """How many messages must reach level ack: up to the last one that asked for it."""
        if inst.wanted:
            for k in range(len(view.records) - 1, -1, -1):
                r = view.records[k]
                if (r.src, r.client, r.data) in inst.wanted:
                    return k + 1
        return 0

    def judge(self, missing: str, bound_ns: int) -> None:
        if missing:
            self.fail(f"{bound_ns / 1e9:g} s after the last fault: {missing}", *range(self.facts.stations))


CHECKERS: dict[str, Callable[[Facts], Checker]] = {
    c.name: c
    for c in (
        NoDuplicate,
        NoInvention,
        Fifo,
        TotalOrder,
        Place,
        Causality,
        PreackHonest,
        AckHonest,
        Instances,
        GoingOn,
        Flow,
        Monotonic,
        Digest,
        Bounded,
        Silence,
        Liveness,
    )
}
"""All checkers, in the order in which they judge one and the same event."""


def note_message(facts: Facts, message: Message) -> None:
    """Record that a core has taken a message whole, in the instance its station is in."""
    view = facts.views[message.station]
    if view is None:
        raise Violation("instances", f"station {message.station + 1} takes a message in no instance", (message.station,))
    message.instance = view.instance.number
    message.delivered_before = len(view.records)
    view.instance.taken.setdefault((message.station, message.client), []).append(message)
    if message.need_ack:
        view.instance.wanted.add((message.station, message.client, message.data))
