"""Checkers of who is in: instances, quorum, recovery, and that those who go on do so without a gap."""

from __future__ import annotations

from typing import Final

from zenjun.proto.wire import Kind

from . import frames
from .checker import Checker
from .facts import ACK, PREACK, Facts, Instance, Life, Message, Stay
from .frames import Frame, name


class Instances(Checker):
    """One number, one set of members, one end of each removed stream; numbers grow; a life has one stream; state is durable
    before it is spoken of."""

    name = "instances"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._last = [0] * facts.stations
        self._lives: list[set[int]] = [set() for _ in range(facts.stations)]

    def opened(self, stay: Stay) -> None:
        self._enter(stay)

    def changed(self, stay: Stay, before: Instance) -> None:
        inst = stay.instance
        if inst.number != before.number + 1:
            self.fail(f"station {stay.station + 1} goes from instance {before.number} to {inst.number}", stay.station)
        if inst.parent is not before:
            other = inst.parent.number if inst.parent else "the OPEN agreement"
            self.fail(f"instance {inst.number} follows {before.number} at s{stay.station + 1}, {other} elsewhere", stay.station)
        self._enter(stay)

    def _enter(self, stay: Stay) -> None:
        s, inst = stay.station, stay.instance
        if inst.number <= self._last[s]:
            self.fail(f"station {s + 1} opens instance {inst.number} after {self._last[s]}", s)
        self._last[s] = inst.number
        if stay.lives in self.facts.twice:
            self.fail(f"station {s + 1} enters instance {inst.number} as incarnation {stay.life}, which has another stream", s)
        if inst.incarnations[s] != self.facts.life[s]:
            self.fail(f"station {s + 1} is incarnation {self.facts.life[s]}, its instance has {inst.incarnations[s]}", s)

    def members(self, inst: Instance, station: int, incarnations: tuple[int, ...]) -> None:
        """The station says that the instance has these incarnations."""
        if inst.incarnations != incarnations:
            self.fail(f"instance {inst.number} has {inst.incarnations}, for station {station + 1} it has {incarnations}", station)

    def ends(self, inst: Instance, station: int, reqs: dict[int, int]) -> None:
        """The station says how far it had accepted the streams (low 32 bits) that have ended."""
        first = inst.hints[0]
        if any(first.get(s, value) != value for s, value in reqs.items()):
            self.fail(f"instance {inst.number}: streams end at {first}, for station {station + 1} at {reqs}", station)

    def started(self, station: int, incarnation: int) -> None:
        """A daemon's life begins."""
        if incarnation in self._lives[station]:
            self.fail(f"station {station + 1} lives incarnation {incarnation} twice", station)
        self._lives[station].add(incarnation)

    def sent(self, station: int, frame: Frame, fresh: bool, now: int) -> None:
        if frame.src != station + 1:
            return
        incarnation, instance = self.facts.disk[station]
        spoken = frame.instance + (frame.kind in (Kind.STOP, Kind.STOP_ACK, Kind.RCV_ACK) and fresh)
        if frame.incarnation > incarnation or spoken > instance:
            self.fail(
                f"station {station + 1} sends {name(frame.kind)} as incarnation {frame.incarnation} about instance {spoken};"
                f" durable are {incarnation} and {instance}",
                station,
            )
        known = self.facts.instances.get(frame.instance)
        if frame.kind == Kind.CONFIRM and known is not None and frames.confirmed_view(frame) != known.hash:
            self.fail(f"station {station + 1} confirms another instance {frame.instance} than the others", station)


class Quorum(Checker):
    """No instance without a quorum of the schema, so at most one at a time has one; who says that it has none sends no data, and
    who is out of touch with it takes none for long."""

    name = "quorum"

    patience_ns: int = 0
    """How long a station that runs may take messages after the others have gone on without it; set by the simulation, 0: not
    judged."""

    def opened(self, stay: Stay) -> None:
        self._judge(stay)

    def changed(self, stay: Stay, before: Instance) -> None:
        self._judge(stay)

    def _judge(self, stay: Stay) -> None:
        if not self.facts.quorum(stay.instance.members):
            members = [s + 1 for s in stay.instance.members]
            self.fail(f"station {stay.station + 1} is in instance {stay.instance.number} of {members}: no quorum", stay.station)
        others = [other for other in self.facts.stays if other is not None and not self.facts.doomed(other)]
        together = {stay.station} | {other.station for other in others if other.instance.root == stay.instance.root}
        apart = {other.station for other in others} - together
        if self.facts.quorum(together) and self.facts.quorum(apart):
            self.fail(f"stations {sorted(together)} and {sorted(apart)} both have quorum", *together)

    def sent(self, station: int, frame: Frame, fresh: bool, now: int) -> None:
        since = self.facts.blocked_since[station]
        if fresh and frame.kind == Kind.DATA and frame.src == station + 1 and since is not None and now > since:
            self.fail(f"station {station + 1} sends new data and says that it has no quorum", station)

    def taken(self, stay: Stay, message: Message, now: int) -> None:
        if not self.patience_ns:
            return
        for other in self.facts.stays:
            if other is None or other.instance.number <= stay.instance.number or other.instance.has(*stay.lives):
                continue
            since = max(other.instance.began_ns, self.facts.running_since[stay.station])
            if now - since > self.patience_ns:
                self.fail(
                    f"station {stay.station + 1} still takes messages in instance {stay.instance.number},"
                    f" {(now - since) / 1e6:.0f} ms after instance {other.instance.number} began without it",
                    stay.station,
                    other.station,
                )


RESTART_NS: Final = 5_000_000
"""So long after reading the RCV of a new life a station may still say that the former one is in operation."""


class Recovery(Checker):
    """Who reads an RCV of a new life holds the former one to be stopped, at once; and who has voted for a stop lets nobody in who
    has not asked again since, or whom another station has not voted in since. (A vote that another station has cast in a former
    instance counts as long as only joins lie between: a join that is carried out voids nobody's request.)"""

    name = "recovery"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._read: dict[tuple[int, int], dict[int, int]] = {}
        """(station, src) → incarnation → when it has been read last."""
        self._restarts: dict[tuple[int, int], dict[int, int]] = {}
        """The same of RCV alone, and first."""
        self._stopped: dict[int, int] = {}
        """By station: when it has voted for a stop last."""
        self._first: dict[int, int] = {}
        """By station: the first instance in which it has voted for no stop since."""

    def crashed(self, station: int) -> None:
        for table in (self._read, self._restarts):
            for key in [key for key in table if key[0] == station]:
                del table[key]
        self._stopped.pop(station, None)
        self._first.pop(station, None)

    def closed(self, stay: Stay) -> None:
        self.crashed(stay.station)

    def opened(self, stay: Stay) -> None:
        self._first[stay.station] = stay.instance.number
        for j in range(self.facts.stations):
            self._restarts.pop((stay.station, j), None)

    def changed(self, stay: Stay, before: Instance) -> None:
        for j in stay.instance.joined:  # it may have died again meanwhile, and will say so again
            self._restarts.pop((stay.station, j), None)

    def asked(self, station: int, src: int, incarnation: int, rcv: bool, now: int) -> None:
        self._read.setdefault((station, src), {})[incarnation] = now
        told = self._restarts.setdefault((station, src), {})
        if rcv:
            told.setdefault(incarnation, now)
        else:  # of several such words in one batch the last one counts: a later life only listens yet, or an old copy came last
            for earlier in [life for life, at in told.items() if life < incarnation or (life == incarnation and at == now)]:
                del told[earlier]

    def sent(self, station: int, frame: Frame, fresh: bool, now: int) -> None:
        stay = self.facts.stays[station]
        if frame.src != station + 1 or stay is None or frame.instance != stay.instance.number:
            return
        if frame.kind == Kind.CONFIRM:
            self._judge_restart(stay, frame, now)
        elif fresh and frame.kind in (Kind.STOP, Kind.STOP_ACK):
            self._stopped[station] = now
            self._first[station] = frame.instance + 1
        elif fresh and frame.kind == Kind.RCV_ACK:
            self._judge_joiners(stay, frame)

    def _judge_restart(self, stay: Stay, frame: Frame, now: int) -> None:
        state, _ = frames.bitmaps(frame)
        for j, life in enumerate(stay.instance.incarnations):
            newer = [at for incarnation, at in self._restarts.get((stay.station, j), {}).items() if incarnation > life]
            if life and newer and now - min(newer) > RESTART_NS and not state >> j & 1:
                self.fail(
                    f"station {stay.station + 1} has known for {(now - min(newer)) / 1e6:.1f} ms that s{j + 1} has restarted,"
                    f" and says that incarnation {life} is in operation",
                    stay.station,
                    j,
                )

    def _judge_joiners(self, stay: Stay, frame: Frame) -> None:
        for j, incarnation in frames.proposal(frame).changes:
            if self._read.get((stay.station, j), {}).get(incarnation, -1) >= self._stopped.get(stay.station, 0):
                continue
            others = (
                vote.proposal
                for (s, _), stream in self.facts.streams.items()
                if s != stay.station
                for number in range(self._first.get(stay.station, stay.instance.number), stay.instance.number + 1)
                for vote in stream.votes_for(number)
            )
            if not any(not p.stop and (j, incarnation) in p.changes for p in others):
                self.fail(
                    f"station {stay.station + 1} votes to let s{j + 1} in, which has not asked since the last vote for a stop",
                    stay.station,
                    j,
                )


class Continuity(Checker):
    """Nobody gives an instance up that could have gone on: stations enough for a quorum, which have all been in it and in touch
    with each other for longer than every time-out, agree on whatever has happened to the rest, unless one of the rest came or
    went so lately that they cannot have noticed: agreement is with those who are heard, and begins anew without them."""

    name = "continuity"

    patience_ns: int = 0
    """How long is long enough; set by the simulation, 0: not judged, for frames are lost too often."""
    give_up_ns: int = 0
    """After this time without agreement a station gives up: what stands in its way may be as old."""
    notice_ns: int = 0
    """How long it takes at most to notice that a member is gone, and to believe it; 0: who comes and goes is no excuse."""

    def closed(self, stay: Stay) -> None:
        facts = self.facts
        if not self.patience_ns or stay.expelled or stay.crashed or facts.doomed(stay):
            return
        since = facts.now_ns - self.patience_ns
        if sum(at > since - max(self.patience_ns, self.give_up_ns) for at in facts.expels) > 1:
            return  # operators who contradict each other are not agreed with
        group = [stay.station]
        for other in facts.stays:
            if other is None or other is stay or other.instance.root != stay.instance.root or facts.doomed(other):
                continue
            links = [link for k in group for link in ((k, other.station), (other.station, k))]
            if other.began_ns <= since and all(facts.linked_since.get(link, 0) <= since for link in links):
                group.append(other.station)
        if stay.began_ns <= since and facts.quorum(group) and not self._unnoticed(stay, group):
            self.fail(
                f"station {stay.station + 1} gives up instance {stay.instance.number}, in touch with stations"
                f" {sorted(s + 1 for s in group)} for {self.patience_ns / 1e6:.0f} ms",
                *group,
            )

    def _unnoticed(self, stay: Stay, group: list[int]) -> bool:
        """Has a member outside of the group been lost, or come back, within the time that it takes to notice?"""
        rest = [k for k in stay.instance.members if k not in group]
        links = [link for k in group for other in rest for link in ((k, other), (other, k))]
        return any(self.facts.now_ns - self.facts.changed_ns(link) < self.notice_ns for link in links)


class Blameless(Checker):
    """Where one station is late and loses much, and nothing else is wrong, no other one is removed, and that one once at most."""

    name = "blameless"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.removals: set[int] = set()
        """Numbers of the instances that others have begun without the late one."""

    def changed(self, stay: Stay, before: Instance) -> None:
        late, left = self.facts.starved, stay.instance.left
        if late < 0:
            return
        healthy = [s for s in left if s != late]
        if healthy:
            self.fail(
                f"station {stay.station + 1} goes on to instance {stay.instance.number} without {[s + 1 for s in healthy]},"
                f" and only s{late + 1} is not well",
                stay.station,
                *healthy,
            )
        if late in left:
            self.removals.add(stay.instance.number)
            if len(self.removals) > 1:
                self.fail(f"s{late + 1} is removed again and again: {sorted(self.removals)}", stay.station, late)


class Claims(Checker):
    """Whoever's instance ends claims to have got so many PDUs beyond some view event at preack, and all who know that view will
    deliver up to there without asking anybody: so every member of that view must hold all that stands before the claimed place,
    from its own start on."""

    name = "claims"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._ended: dict[int, Stay] = {}
        """By station: the stay that its process was in last, while it is in none."""

    def crashed(self, station: int) -> None:
        self._ended.pop(station, None)

    def opened(self, stay: Stay) -> None:
        self._ended.pop(stay.station, None)

    def closed(self, stay: Stay) -> None:
        self._ended[stay.station] = stay
        if stay.crashed or stay.fenced:
            return
        view, count = stay.core.claim()
        inst = next((i for i in self.facts.instances.values() if view and i.hash == view), None)
        if inst is None or not self.facts.resolve(inst):  # whoever is alone in a view may say what has not been on the wire yet
            return
        for member in self._there(inst):
            for life, seq in self._before(stay, inst, count, self.facts.streams[member.lives].since).items():
                if not self._holds(member, life, seq):
                    self.fail(
                        f"station {stay.station + 1} ends and claims view {inst.number} + {count} PDUs,"
                        f" s{member.station + 1} has not PDU {seq} of s{life[0] + 1}, which stands before that",
                        stay.station,
                        member.station,
                        life[0],
                    )

    def _there(self, inst: Instance) -> list[Stay]:
        """The stays, going on or ended last, of the members of that instance."""
        stays = ((self.facts.stays[s] or self._ended.get(s), (s, inst.incarnations[s])) for s in inst.members)
        return [stay for stay, life in stays if stay is not None and stay.lives == life and stay.first.root == inst.root]

    def _before(self, stay: Stay, inst: Instance, count: int, since: tuple[int, int]) -> dict[Life, int]:
        """By stream: the last PDU between ``since`` and the claimed place; streams are accepted in order."""
        assert inst.place is not None
        order = self.facts.order(stay)[: self.facts.offset(stay, inst.place) + count]
        return {(src, self.facts.sent[clock, src][0]): seq for clock, src, seq in order if (clock, src) > since}

    def _holds(self, member: Stay, life: Life, seq: int) -> bool:
        peer = member.core.peer(life[0])  # if it knows another life already it has carried out the end of the former one
        return life == member.lives or peer.incarnation != life[1] or self.facts.streams[life].unwrap(peer.req) > seq


class GoingOn(Checker):
    """Whoever goes from one lineage to the next in one life of its process has delivered and released the same of it as all
    others who do, at preack and at ack, before it starts the next: nothing that one of them has released is missing at another.
    Not those whom the others had removed before."""

    name = "going_on"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._left: dict[int, Stay] = {}
        """By station: the stay that its process was in last."""
        self._gone_on: dict[tuple[int, int], list[Stay]] = {}
        """(lineage they come from, instance they start) → their former stays."""

    def closed(self, stay: Stay) -> None:
        self._left[stay.station] = stay

    def crashed(self, station: int) -> None:
        self._left.pop(station, None)

    def opened(self, stay: Stay) -> None:
        left = self._left.pop(stay.station, None)
        if left is None or stay.joined or left.expelled or left.fenced:
            return
        if left.joined and not left.positions[PREACK]:
            return  # it has released nothing but the view with which it was let in, and claims nothing (rule 5)
        others = self._gone_on.setdefault((left.instance.root, stay.instance.number), [])
        for other in others:
            if self._together(left, other) and (a := self._end(left)) != (b := self._end(other)):
                self.fail(
                    f"station {left.station + 1} goes on to instance {stay.instance.number} with {a},"
                    f" s{other.station + 1} with {b} ((last PDU, last view) at preack, at ack)",
                    left.station,
                    other.station,
                )
        others.append(left)

    def _together(self, a: Stay, b: Stay) -> bool:
        last = self.facts.instances.get(max(a.viewed(PREACK), b.viewed(PREACK)))
        return last is not None and last.has(*a.lives) and last.has(*b.lives)

    def _end(self, stay: Stay) -> list[tuple[object, int]]:
        out: list[tuple[object, int]] = []
        for level in (PREACK, ACK):
            position = stay.positions[level]
            last = self.facts.pdu_at(stay, position - 1) if position else None
            out.append((last[:2] if last else stay.start, stay.viewed(level)))
        return out
