"""The properties, each in a class of its own, judged only from ``Facts``: no engine is believed where the network saw better.

A checker raises ``Violation`` the moment its property is broken. ``CHECKERS`` is the registry; ``test_variants.py`` has the
defect that proves that each can fail.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from zenjun.proto.wire import MESSAGE_MAX, Flag, Kind

from . import frames
from .checker import Checker, Merged, due, last_of_streams, start_of
from .checkers_membership import Blameless, Claims, Continuity, GoingOn, Instances, Quorum, Recovery
from .facts import (
    ACK,
    AT_ONCE,
    LEVEL_NAMES,
    ORDERED,
    PREACK,
    VIEW,
    Delivery,
    Facts,
    Instance,
    Life,
    Number,
    PeerView,
    Place,
    Stay,
)
from .frames import Frame, name
from .options import MS
from .violation import Violation

__all__ = [
    "CHECKERS",
    "AckHonest",
    "Blameless",
    "Bounded",
    "Causality",
    "Checker",
    "Claims",
    "Continuity",
    "Digest",
    "Fifo",
    "Flow",
    "GoingOn",
    "Instances",
    "Liveness",
    "Monotonic",
    "NoDuplicate",
    "NoInvention",
    "OpOrder",
    "PlaceInOrder",
    "PreackHonest",
    "Quorum",
    "Recovery",
    "Silence",
    "Survivors",
    "TotalOrder",
    "Views",
    "Violation",
]


class TotalOrder(Checker):
    """What any two stations, in any lives, have at preack or at ack is one order wherever it overlaps, view events included; at
    ordered for those who stay to the end."""

    name = "total_order"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._orders = {PREACK: Merged(), ACK: Merged()}

    def delivered(self, stay: Stay, record: Delivery, number: Number | None) -> None:
        if stay.records and record.place <= stay.records[-1].place:
            self.fail(f"station {stay.station + 1} delivers {record.name()} after {stay.records[-1].name()}", stay.station)

    def released(self, stay: Stay, level: int, old: int, new: int) -> None:
        if stay.positions[level] > stay.positions[ORDERED]:
            self.fail(
                f"station {stay.station + 1} is at {LEVEL_NAMES[level]} {new} but has ordered {stay.positions[0]}", stay.station
            )
        if level != ORDERED:
            for at in due(stay, level, new):
                if wrong := self._orders[level].add(stay, stay.records[at]):
                    self.fail(f"at {LEVEL_NAMES[level]}: {wrong}", stay.station)

    def converged(self) -> None:
        order = Merged()
        for stay in self.facts.all_stays():
            safe = stay.released[PREACK] if stay.ended or stay.fenced else len(stay.records)
            for record in stay.records[:safe]:
                if wrong := order.add(stay, record):
                    self.fail(f"at the end: {wrong}", stay.station)


class Survivors(Checker):
    """What any client was told is at preack, every station that is still in a lineage which has it has delivered."""

    name = "survivors"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._told: dict[Place, tuple[Delivery, int]] = {}

    def released(self, stay: Stay, level: int, old: int, new: int) -> None:
        if level == PREACK:
            for at in due(stay, level, new):
                self._told.setdefault(stay.records[at].place, (stay.records[at], stay.station))

    def converged(self) -> None:
        for stay in self.facts.stays:
            if stay is None:
                continue
            have = {r.place for r in stay.records}
            start = start_of(stay)
            for place, (record, station) in self._told.items():
                if place > start and place not in have:
                    self.fail(f"s{station + 1} has released {record.name()}, s{stay.station + 1} has never delivered it")


class Views(Checker):
    """View events: each instance's once, in turn, right after the last vote for it, with the members that everybody else says;
    and nothing that was sent in an instance comes before its view event."""

    name = "views"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._seen: dict[Stay, int] = {}

    def delivered(self, stay: Stay, record: Delivery, number: Number | None) -> None:
        who = f"station {stay.station + 1}"
        if stay.joined and not stay.records and record.type != VIEW:
            self.fail(f"{who} has been let in, and delivers {record.name()} before the view event", stay.station)
        last = self._seen.get(stay, stay.first.number - stay.joined)
        if record.type != VIEW:
            self._judge_instance(stay, record, last)
            return
        event = frames.view(record.data)
        if event.instance != last + 1:
            self.fail(f"{who} delivers the view event of instance {event.instance} after that of {last}", stay.station)
        self._seen[stay] = event.instance
        instance = self.facts.instances.get(event.instance)
        if instance is None or instance.parent is None:
            self.fail(f"{who} delivers the view event of instance {event.instance}, which nobody has agreed", stay.station)
            return
        said = (event.incarnations, event.members, event.joined, event.left, event.hash)
        true = (instance.incarnations, instance.members, instance.joined, instance.left, instance.hash)
        if said != true:
            self.fail(f"{who}: the view event of instance {event.instance} says {said}, it is {true}", stay.station)
        if not self.facts.resolve(instance):
            self.fail(f"no proposal for instance {event.instance} has the votes of all voters", stay.station)
        if (record.clock, record.src, record.index) != (*(instance.place or (0, 0)), 0xFFFF):
            self.fail(f"{who}: {record.name()}, but the last vote stands at {instance.place}", stay.station)

    def handed(self, stay: Stay, record: Delivery, number: Number | None) -> None:
        self._judge_instance(stay, record, self._instance(stay))

    def _instance(self, stay: Stay) -> int:
        """The one it is in. Whose instance has ended may learn at the next opening that others have carried out what it had voted
        for. If it holds all votes it carries that out late: what it has accepted of that instance may be confirmed to its
        source."""
        if not stay.ended:
            return stay.instance.number
        after = [i for i in self.facts.instances.values() if i.parent is stay.instance and i.has(*stay.lives)]
        return max([stay.instance.number, *(i.number for i in after if self._has_all_votes(stay, i))])

    def _has_all_votes(self, stay: Stay, instance: Instance) -> bool:
        for voter in self.facts.voters(instance):
            stream, peer = self.facts.streams[voter], stay.core.peer(voter[0])
            seqs = [
                vote.seq
                for vote in stream.votes_for(stay.instance.number)
                if vote.proposal.leads_to(stay.instance.incarnations) == instance.incarnations
            ]
            if not seqs or peer.incarnation != voter[1] or stream.unwrap(peer.req) <= min(seqs):
                return False
        return True

    def _judge_instance(self, stay: Stay, record: Delivery, reached: int) -> None:
        sent = self.facts.sent.get((record.clock, record.src))
        if sent is not None and sent[2] > reached:
            text = f"station {stay.station + 1} is at instance {reached} and delivers {record.name()}, sent in {sent[2]}"
            self.fail(text, stay.station, record.src)


class PlaceInOrder(Checker):
    """The order is (clock, src) of the PDUs really sent: none is left out between two records, none comes in from elsewhere."""

    name = "place"

    def delivered(self, stay: Stay, record: Delivery, number: Number | None) -> None:
        facts = self.facts
        if facts.doomed(stay):  # what it delivers at ordered may go beyond what the others have kept
            return
        who = f"station {stay.station + 1}"
        place = (record.clock, record.src)
        begin = facts.offset(stay, stay.start)
        at = facts.offset(stay, place) - begin
        if record.type == VIEW:
            if record.position != at - 1 and not (at == 0 and record.position == AT_ONCE):
                self.fail(f"{who} delivers {record.name()} at position {record.position}, {at} PDUs are before it", stay.station)
            return
        if at <= 0 or facts.order(stay)[begin + at - 1][:2] != place:
            self.fail(f"{who} delivers {record.name()}, which no PDU of this order holds", stay.station, record.src)
        if record.position != at - 1:
            want = facts.pdu_at(stay, record.position)
            text = f"{who} delivers {record.name()} as PDU {record.position}; that is {want}, this one is {at - 1}"
            self.fail(text, stay.station)


class NoDuplicate(Checker):
    """No message is delivered twice at a station, and none handed out twice on acceptance."""

    name = "no_duplicate"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._seen: dict[tuple[Stay, bool], set[Place]] = {}

    def delivered(self, stay: Stay, record: Delivery, number: Number | None) -> None:
        self._note(stay, record, False)

    def handed(self, stay: Stay, record: Delivery, number: Number | None) -> None:
        self._note(stay, record, True)

    def _note(self, stay: Stay, record: Delivery, early: bool) -> None:
        seen = self._seen.setdefault((stay, early), set())
        if record.place in seen:
            self.fail(f"station {stay.station + 1} delivers {record.name()} again", stay.station, record.src)
        seen.add(record.place)


class NoInvention(Checker):
    """What is delivered has been sent: same content, group, type and program, by this source at this place."""

    name = "no_invention"

    def delivered(self, stay: Stay, record: Delivery, number: Number | None) -> None:
        if record.type != VIEW:
            self._judge(stay, record, number)

    def handed(self, stay: Stay, record: Delivery, number: Number | None) -> None:
        self._judge(stay, record, number)

    def _judge(self, stay: Stay, record: Delivery, number: Number | None) -> None:
        m = self.facts.message_at(record.src, number)
        if m is None or (m.group, m.type, m.client) != (record.group, record.type, record.client) or m.op != bool(record.op):
            self.fail(f"station {stay.station + 1} delivers {record.name()}, which nobody sent", stay.station, record.src)
        elif record.op != 2 and m.data != record.data:
            self.fail(
                f"station {stay.station + 1} delivers {record.name()}; sent was {len(m.data)} B {m.data[:16].hex()}",
                stay.station,
                record.src,
            )


class Fifo(Checker):
    """Each program's messages come in its order and without a gap, from the start of its life or of the stay."""

    name = "fifo"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._next: dict[tuple[Stay, int, int, int, bool], int] = {}

    def delivered(self, stay: Stay, record: Delivery, number: Number | None) -> None:
        if number is None or record.type == VIEW:
            return
        incarnation, client, op, k = number
        key = (stay, record.src, incarnation, client, op)
        want = self._next.get(key)
        if want is None:
            stream = self.facts.streams[record.src, incarnation]
            want = k if stream.since < stay.start else 0
        if k != want:
            self.fail(
                f"station {stay.station + 1} delivers {record.name()}, number {k} of its program, where {want} is due",
                stay.station,
                record.src,
            )
        self._next[key] = k + 1


class Causality(Checker):
    """What a station had delivered when it sent m stands before m everywhere, and what it had at preack is delivered before m."""

    name = "causality"

    def delivered(self, stay: Stay, record: Delivery, number: Number | None) -> None:
        self._place(stay, record, number)
        m = self.facts.message_at(record.src, number)
        if (
            m is None
            or m.after_preack <= start_of(stay)
            or (m.after_preack[2] == 0 and m.after_preack not in self.facts.contents)
        ):
            return
        at = bisect_left(stay.records, m.after_preack, key=lambda r: r.place)
        if at == len(stay.records) or stay.records[at].place != m.after_preack:
            self.fail(
                f"station {stay.station + 1} delivers {m.name()} without what its sender had at preack before it,"
                f" at {m.after_preack}",
                stay.station,
                record.src,
            )

    def handed(self, stay: Stay, record: Delivery, number: Number | None) -> None:
        self._place(stay, record, number)

    def _place(self, stay: Stay, record: Delivery, number: Number | None) -> None:
        m = self.facts.message_at(record.src, number)
        if m is not None and record.place <= m.after_ordered:
            self.fail(
                f"station {stay.station + 1} delivers {m.name()} at {record.place}, but its sender had delivered"
                f" {m.after_ordered} before it",
                stay.station,
                record.src,
            )


class OpOrder(Checker):
    """Order-preserving messages are handed out in each sender's order without a gap, before their place in the total order is
    reached; of a station that is removed everybody has handed out the same when its removal is delivered."""

    name = "op_order"

    def handed(self, stay: Stay, record: Delivery, number: Number | None) -> None:
        if number is None:
            return
        incarnation, client, op, k = number
        before = stay.handed.get(((record.src, incarnation), client), [])
        stream = self.facts.streams[record.src, incarnation]
        want = before[-1] + 1 if before else (k if stream.since < stay.start else 0)
        if not op or k != want:
            self.fail(
                f"station {stay.station + 1} hands out {record.name()}, number {k} of its program, where {want} is due",
                stay.station,
                record.src,
            )

    def delivered(self, stay: Stay, record: Delivery, number: Number | None) -> None:
        if record.type == VIEW:
            self._removal(stay, record)
        elif record.op and number is not None:
            incarnation, client, _, k = number
            handed = stay.handed.get(((record.src, incarnation), client), [])
            at = bisect_left(handed, k)
            if at == len(handed) or handed[at] != k:
                self.fail(f"station {stay.station + 1} has {record.name()} in the order and has not handed it out", stay.station)

    def _removal(self, stay: Stay, record: Delivery) -> None:
        instance = self.facts.instances[frames.view(record.data).instance]
        for s in instance.left:
            assert instance.parent is not None
            key = (s, instance.parent.incarnations[s])
            stream = self.facts.streams[key]
            if stream.cut is None:
                continue
            for client, sent in stream.sent_ops.items():
                kept = sum(seq < stream.cut for seq, _ in sent)
                handed = stay.handed.get((key, client), [])
                if not handed and stream.since < stay.start:
                    continue  # all of them may be from before its own start
                have = handed[-1] + 1 if handed else 0
                if have != kept:
                    self.fail(
                        f"station {stay.station + 1} delivers the removal of s{s + 1} and has handed out {have} of its"
                        f" {kept} order-preserving messages (program {client})",
                        stay.station,
                        s,
                    )


class PreackHonest(Checker):
    """Released at preack: every member has accepted it and every receiver has said so on the wire. What stands before the event
    that let a member in is none of its business."""

    name = "preack_honest"

    def released(self, stay: Stay, level: int, old: int, new: int) -> None:
        if level != PREACK or stay.ended:  # then it is released on others' word, which were judged: see GoingOn
            return
        facts = self.facts
        if new > facts.after(stay):
            self.fail(f"station {stay.station + 1} pre-acknowledges position {new - 1}, which nobody has sent", stay.station)
        for pdu, life in last_of_streams(facts, stay, old, new):
            seq = pdu[2]
            stream = facts.streams[life]
            for j in stay.instance.members:
                mine = facts.streams[j, stay.instance.incarnations[j]]
                if pdu[:2] <= mine.since:
                    continue
                other = facts.stays[j]
                if other is not None and other.life == mine.incarnation:
                    peer = other.core.peer(life[0])
                    if peer.incarnation == life[1] and stream.unwrap(peer.req) <= seq:
                        self._no(stay, pdu, j, "has not accepted it")
                said = mine.ack_sent.get(life, stream.first_seq)
                if (j, mine.incarnation) != life and said <= seq:
                    self._no(stay, pdu, j, f"has broadcast ack {said}")

    def _no(self, stay: Stay, pdu: tuple[int, int, int], j: int, why: str) -> None:
        what = f"s{pdu[1] + 1} seq {pdu[2]} clock {pdu[0] >> 32}:{pdu[0] & 0xFFFFFFFF}"
        self.fail(f"station {stay.station + 1} pre-acknowledges {what}, but s{j + 1} {why}", stay.station, j)


class AckHonest(Checker):
    """Released at ack: every member knows of the pre-acknowledgement and has said so on the wire; of a stream that has ended, by
    anything it has sent in the instance that began with that."""

    name = "ack_honest"

    def released(self, stay: Stay, level: int, old: int, new: int) -> None:
        facts = self.facts
        if level != ACK or not facts.want_ack or stay.ended:
            return
        entered = max(facts.streams[j, stay.instance.incarnations[j]].since for j in stay.instance.members)
        for pdu, life in last_of_streams(facts, stay, old, new):
            stream = facts.streams[life]
            for j in stay.instance.members:
                mine = facts.streams[j, stay.instance.incarnations[j]]
                if pdu[:2] <= mine.since or (stream.cut is not None and mine.spoke >= stream.cut_in):
                    continue
                other = facts.stays[j]
                # A core's minimum is over all members, those who came after this PDU among them: it says nothing about it then.
                if other is not None and other.life == mine.incarnation and other.instance is stay.instance and pdu[:2] > entered:
                    peer = other.core.peer(life[0])
                    if peer.incarnation == life[1] and peer.member and stream.unwrap(peer.min_al) <= pdu[2]:
                        self._no(stay, pdu, j, "has not pre-acknowledged it")
                if j == stay.station and pdu[:2] <= entered:
                    continue  # what it could say of itself is over all members as well; that it knows is enough
                said = mine.pack_sent.get(life, stream.first_seq)
                if said <= pdu[2]:
                    self._no(stay, pdu, j, f"has broadcast pack {said}")

    def _no(self, stay: Stay, pdu: tuple[int, int, int], j: int, why: str) -> None:
        self.fail(f"station {stay.station + 1} acknowledges s{pdu[1] + 1} seq {pdu[2]}, but s{j + 1} {why}", stay.station, j)


class Flow(Checker):
    """In flight ≤ window, but for votes and what must be numbered before one; no receive buffer overflows, and nobody keeps more
    than its slots."""

    name = "flow"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._over: dict[int, str] = {}
        """By station: its last DATA was beyond the window, which is right only if a vote follows."""
        self._drops: dict[int, int] = {}
        """By station: PDUs that its core had dropped for want of a buffer."""
        self._voted: set[int] = set()
        """Lineages in which there have been votes: those obey no window, may find a receiver's buffers full, and are repeated."""

    def sent(self, station: int, frame: Frame, fresh: bool, now: int) -> None:
        facts = self.facts
        if not fresh or frame.src != station + 1:
            return
        over = self._over.pop(station, "")
        if over and frame.kind == Kind.DATA:
            self.fail(over, station)
        stay = facts.stays[station]
        if frame.kind != Kind.DATA:
            self._voted.add(facts.instances[frame.instance].root)
            return
        if stay is None or frame.instance != stay.instance.number:
            return
        mine = facts.streams[stay.lives]
        seq = mine.unwrap(frame.seq)
        lowest = seq
        for j in stay.instance.members:
            if j != station:
                other = facts.streams[j, stay.instance.incarnations[j]]
                lowest = min(lowest, max(other.ack_sent.get(stay.lives, mine.first_seq), self._entry(stay, other.since)))
        if seq >= lowest + facts.window and seq + 1 not in mine.seen:  # a vote that is repeated may have overtaken it
            text = f"station {station + 1} sends seq {seq} while only {lowest} is acknowledged by all, window {facts.window}"
            self._over[station] = text

    def crashed(self, station: int) -> None:
        self._over.pop(station, None)
        self._drops.pop(station, None)

    def closed(self, stay: Stay) -> None:
        self._judge_drops(stay)

    def _judge_drops(self, stay: Stay) -> None:
        before, drops = self._drops.get(stay.station, 0), stay.core.window_drops()
        self._drops[stay.station] = drops
        lives = [(j, stay.instance.incarnations[j]) for j in stay.instance.members]
        if any(self.facts.streams[life].root != stay.first.root for life in lives):
            return  # it has started what the others have long passed over: their windows are not for this one
        if drops > before and stay.first.root not in self._voted:
            self.fail(f"station {stay.station + 1} has dropped {drops - before} PDUs beyond its window", stay.station)

    def _entry(self, stay: Stay, since: tuple[int, int]) -> int:
        """A member that was let in counts as having what stands up to the vote for it."""
        votes = self.facts.streams[stay.lives].votes
        return max((v.seq + 1 for v in votes if not v.proposal.stop and (v.clock, stay.station) <= since), default=0)

    def turn(self, stay: Stay, peers: Sequence[PeerView], frames_sent: int) -> None:
        self._judge_drops(stay)
        for h, peer in enumerate(peers):
            if peer.req - peer.base > self.facts.slots:
                self.fail(
                    f"station {stay.station + 1} keeps {peer.req - peer.base} PDUs of s{h + 1}, slots {self.facts.slots}",
                    stay.station,
                    h,
                )


class Monotonic(Checker):
    """Nothing is taken back: expectations, ack minima, positions of every level, the clock. When an instance follows another one,
    minima may fall (somebody new has acknowledged nothing) and what is known to exist as well (nobody asks for the end of a
    stream that was cut off)."""

    name = "monotonic"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._last: dict[Stay, tuple[int, list[tuple[int, ...]], list[int]]] = {}
        self._clock: dict[Stay, int] = {}
        self._vectors: dict[tuple[int, int, int], tuple[tuple[int, ...], int]] = {}

    def released(self, stay: Stay, level: int, old: int, new: int) -> None:
        if new < old:
            self.fail(
                f"station {stay.station + 1} takes its {LEVEL_NAMES[level]} position back from {old} to {new}", stay.station
            )
        if level and new > stay.positions[level - 1]:
            self.fail(
                f"station {stay.station + 1} is at {LEVEL_NAMES[level]} {new},"
                f" at {LEVEL_NAMES[level - 1]} {stay.positions[level - 1]}",
                stay.station,
            )

    def sent(self, station: int, frame: Frame, fresh: bool, now: int) -> None:
        """What a station broadcasts about its knowledge never shrinks; its clock never falls behind its own promises."""
        inst = self.facts.instances.get(frame.instance)
        if frame.src != station + 1 or inst is None or frame.kind not in (Kind.CONFIRM, Kind.NAK):
            return
        acks = tuple(
            self.facts.streams[h, life].unwrap(a) if (life := inst.incarnations[h]) else 0 for h, a in enumerate(frame.ack)
        )
        key = (station, frame.incarnation, frame.instance)
        old, clock = self._vectors.get(key, (acks, frame.clock))
        if any(a < b for a, b in zip(acks, old, strict=True)) or frame.clock < clock:
            self.fail(f"station {station + 1} broadcasts ack {acks} clock {frame.clock} after {old}, {clock}", station)
        self._vectors[key] = (acks, frame.clock)

    def turn(self, stay: Stay, peers: Sequence[PeerView], frames_sent: int) -> None:
        now: list[tuple[int, ...]] = []
        lives: list[int] = []
        for h, p in enumerate(peers):
            now.append((p.req, p.base, p.ordered, p.top if not p.closing else 0, p.min_al, p.acked))
            lives.append(p.incarnation if p.member else 0)
            if p.member and (not p.base <= p.min_al or p.acked > p.min_al or p.min_al > p.top):
                self.fail(
                    f"station {stay.station + 1} about s{h + 1}: base, acked <= min_al <= top does not hold in {p}",
                    stay.station,
                    h,
                )
        changes, old, before = self._last.get(stay, (stay.changes, now, lives))
        firm = 6 if changes == stay.changes else 3
        for h, (a, b) in enumerate(zip(old, now, strict=True)):
            if before[h] != lives[h]:
                continue
            if any(x > y for k, (x, y) in enumerate(zip(a, b, strict=True)) if k < firm and not (k == 3 and y == 0)):
                self.fail(
                    f"station {stay.station + 1} takes back (req, base, ordered, top, min_al, acked) of s{h + 1}: {a} to {b}",
                    stay.station,
                    h,
                )
        self._last[stay] = (stay.changes, now, lives)
        clock = stay.core.core_clock()
        if clock < self._clock.get(stay, 0):
            self.fail(f"station {stay.station + 1} turns its clock back from {self._clock[stay]} to {clock}", stay.station)
        self._clock[stay] = clock


class Digest(Checker):
    """No station is fenced in a correct run."""

    name = "digest"

    def fenced(self, station: int, position: int) -> None:
        self.fail(f"station {station + 1} is fenced at position {position}", station)


class Bounded(Checker):
    """Memory is what was reserved at the start, but for messages under way; a turn sends a bounded number of frames; nobody waits
    for memory for ever."""

    name = "bounded"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._memory: dict[Life, int] = {}
        self._starving: dict[tuple[Life, int], int] = {}

    def turn(self, stay: Stay, peers: Sequence[PeerView], frames_sent: int) -> None:
        memory = stay.core.memory_bytes()
        if memory != self._memory.setdefault(stay.lives, memory):
            self.fail(f"station {stay.station + 1} has {memory} bytes, began with {self._memory[stay.lives]}", stay.station)
        if stay.core.assembling_bytes() > 2 * self.facts.stations * MESSAGE_MAX:  # a multiple of the unit it grows by
            self.fail(f"station {stay.station + 1} has {stay.core.assembling_bytes()} bytes of messages under way", stay.station)
        limit = (self.facts.slots + 16) * (self.facts.stations + 1)
        if frames_sent > limit and len(stay.instance.members) > 1:  # alone it need not wait for anybody
            self.fail(f"station {stay.station + 1} has sent {frames_sent} frames in one turn, limit {limit}", stay.station)
        if self.facts.starving_ns:
            self._note_starving(stay)

    def _note_starving(self, stay: Stay) -> None:
        if not (which := stay.core.starves()):
            return
        since = self._starving.setdefault((stay.lives, which), self.facts.now_ns)
        since = max(since, self.facts.running_since[stay.station])
        if (waited := self.facts.now_ns - since) > self.facts.starving_ns:
            self.fail(f"station {stay.station + 1} has waited for memory for {waited / MS:.0f} ms", stay.station)


STORM_FRAMES: Final = 15_000
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

    def sent(self, station: int, frame: Frame, fresh: bool, now: int) -> None:
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
            if station in self.facts.absent:
                continue
            if count > intervals + 1:
                self.fail(f"station {station + 1} sends {count} frames in {intervals} heartbeat intervals", station)
            if 2 * count < intervals - 1:  # an engine may notice late that its last frame has left, and count from there
                self.fail(f"station {station + 1} sends only {count} heartbeats in {intervals} intervals", station)


class Liveness(Checker):
    """After the last fault: one instance of all that are up, everything sent in it delivered everywhere, in a bounded time."""

    name = "liveness"

    def missing(self) -> str:
        """What is still to come; empty if nothing."""
        facts = self.facts
        up = [s for s in range(facts.stations) if s not in facts.absent]
        stays = [(s, facts.stays[s]) for s in up]
        if any(stay is None for _, stay in stays):
            return "in no instance: " + ", ".join(f"s{s + 1}" for s, stay in stays if stay is None)
        present = [stay for _, stay in stays if stay is not None]
        inst = present[0].instance
        if any(stay.instance is not inst for stay in present):
            return "several instances: " + ", ".join(f"s{stay.station + 1} in {stay.instance.number}" for stay in present)
        if list(inst.members) != up:
            return f"instance {inst.number} is of {[s + 1 for s in inst.members]}, up are {[s + 1 for s in up]}"
        for stay in present:
            if behind := self._behind(stay):
                return f"s{stay.station + 1} {behind}"
        return ""

    def _behind(self, stay: Stay) -> str:
        if stay.viewed_now() != stay.instance.number:
            return f"has not delivered the view event of instance {stay.instance.number}"
        pdus = self.facts.after(stay)
        for level in (ORDERED, PREACK):
            if stay.positions[level] < pdus:
                return f"is at {LEVEL_NAMES[level]} {stay.positions[level]} of {pdus} PDUs"
        total = len(stay.records)
        for level in (ORDERED, PREACK, ACK):
            want = total if level < ACK else self._ack_due(stay)
            if stay.released[level] < want:
                return f"has released {stay.released[level]} of {want} records at {LEVEL_NAMES[level]}"
        own = self.facts.streams[stay.lives]
        for (client, op), messages in own.taken.items():
            done = own.counted.get((client, op), 0)
            if done < len(messages):
                return f"has sent {done} of {len(messages)} messages of its program {client}"
        for j in stay.instance.members:
            life = (j, stay.instance.incarnations[j])
            for client, sent in self.facts.streams[life].sent_ops.items():
                handed = stay.handed.get((life, client), [])
                if sent[-1][1][:2] > stay.start and (not handed or handed[-1] + 1 < len(sent)):
                    return f"has not handed out all order-preserving messages of s{j + 1}"
        return ""

    def _ack_due(self, stay: Stay) -> int:
        """How many records must reach level ack: up to the last message that asked for it."""
        for k in range(len(stay.records) - 1, -1, -1):
            number = stay.numbers[k]
            if number is not None and (stay.records[k].src, number) in self.facts.wanted:
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
        OpOrder,
        TotalOrder,
        Views,
        PlaceInOrder,
        Causality,
        PreackHonest,
        AckHonest,
        Instances,
        Quorum,
        Recovery,
        Continuity,
        Blameless,
        Claims,
        GoingOn,
        Survivors,
        Flow,
        Monotonic,
        Digest,
        Bounded,
        Silence,
        Liveness,
    )
}
"""All checkers, in the order in which they judge one and the same event."""
