"""What must hold of corosync's stand-ins: of what programs are told, beside what has really happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from zenjun.proto.service.base import Effect, Store
from zenjun.proto.service.corosync import results
from zenjun.proto.service.corosync.messages import Part, Reason
from zenjun.proto.service.corosync.results import Address, Changed, Code, RingId
from zenjun.proto.service.corosync.ring import Phase
from zenjun.proto.service.corosync.votequorum import Votequorum

from .corosync_load import Program
from .violation import Violation

if TYPE_CHECKING:
    from .corosync import Node, World

CHECKERS: Final = frozenset(
    """rise same apart nodelist alone lists own reason outside twice fifo order virtual self torn services agree quorum waits
    rest first""".split()  # noqa: SIM905
)
Ring = tuple[RingId, tuple[int, ...]]


class Verdict(NamedTuple):
    """What a node thinks of quorum when a ring begins."""

    quorate: bool
    expected: int
    total: int
    waiting: bool

    @classmethod
    def of(cls, v: Votequorum) -> Verdict:
        return cls(v.quorate, v.expected, v.total, v.waiting)


class Checks:
    """All checkers of a run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.highest = dict.fromkeys(world.nodes, 0)
        """Number of the last ring that anybody at a node has heard of."""
        self.rings: dict[RingId, tuple[int, ...]] = {}
        self.marks: dict[RingId, bytes] = {}
        """The nodelist of those in a ring."""
        self.current: dict[int, Ring | None] = dict.fromkeys(world.nodes)
        """By node, in this life of its stand-in."""
        self.before: dict[RingId, dict[int, Ring]] = {}
        """Where each member of a ring comes from."""
        self.verdicts: dict[RingId, Verdict] = {}
        self.quorate: dict[RingId, tuple[int, ...]] = {}
        self.segments: dict[tuple[bytes, RingId, RingId], tuple[list[tuple[object, ...]], bool]] = {}
        """The longest that anybody has heard between two rings, and whether that was all."""
        self.heard: list[tuple[bytes, int, list[bytes]]] = []
        """What each membership of a program has heard: group, node, messages."""

    # ---- rings

    def on_start(self, node: Node) -> None:
        self.current[node.id] = None

    def on_ring(self, node: Node, changed: Changed, before: bool, verdict: Verdict) -> None:
        """A ring whose number is on disk: from here on somebody may hear of it."""
        who = f"node {node.id}: ring {changed.ring} of {changed.members}"
        self.world.note(f"{who} joined {changed.joined} left {changed.left}")
        if changed.ring.seq <= self.highest[node.id]:
            raise Violation("rise", f"{who} after number {self.highest[node.id]}")
        self.highest[node.id] = changed.ring.seq
        if changed.ring.node != changed.members[0] or self.rings.setdefault(changed.ring, changed.members) != changed.members:
            raise Violation("same", f"{who}, at another node {self.rings.get(changed.ring)}")
        if self.marks.setdefault(changed.ring, node.fingerprint) != node.fingerprint:
            raise Violation("nodelist", f"{who}, and another node in it has another nodelist")
        was = self.current[node.id]
        old = was[1] if was is not None else (node.id,)
        wanted = sorted((set(old) | set(changed.joined)) - set(changed.left))
        if list(changed.members) != wanted or set(changed.joined) & set(old) or not set(changed.left) <= set(old):
            raise Violation("lists", f"{who} joined {changed.joined} left {changed.left} after {old}")
        if was is not None:
            self._come_from(node, changed, was)
        self.current[node.id] = (changed.ring, changed.members)
        self._judge(node, changed, before, verdict)

    def _come_from(self, node: Node, changed: Changed, was: Ring) -> None:
        """Who comes into a ring from the same ring has not lost the other in between; whoever comes from elsewhere was seen to
        leave."""
        others = self.before.setdefault(changed.ring, {})
        others[node.id] = was
        for other, came in others.items():
            if came[0] != was[0] and (other in was[1] or node.id in came[1]):
                text = f"into {changed.ring}: node {node.id} from {was}, node {other} from {came}"
                raise Violation("apart", text)

    def _judge(self, node: Node, changed: Changed, before: bool, verdict: Verdict) -> None:
        """What a ring's members think of quorum, each when it begins."""
        if self.verdicts.setdefault(changed.ring, verdict) != verdict:
            raise Violation("agree", f"{changed.ring} at node {node.id}: {verdict}, elsewhere {self.verdicts[changed.ring]}")
        if not verdict.quorate:
            return
        config = self.world.config
        if not config.two_node and not self.world.load.votes_set:
            for ring, members in self.quorate.items():
                if not set(members) & set(changed.members):
                    raise Violation("quorum", f"{changed.ring} of {changed.members} and {ring} of {members}")
        self.quorate[changed.ring] = changed.members
        meeting = changed.meeting
        if config.waits_for_all and not before and verdict.total < verdict.expected:
            words = {**meeting.before, **meeting.alone} if meeting is not None else {}
            if not any(word.quorate for word in words.values()):
                raise Violation("waits", f"{changed.ring} of {changed.members} is quorate, and not all have been there")

    def on_effects(self, node: Node, effects: list[Effect]) -> None:
        """Who loses quorum is told so before anything else, and stays connected for a while: the others may start what it runs
        when they have seen it leave."""
        made, lost, groups = iter(node.made), False, False
        for effect in effects:
            if isinstance(effect, Store | results.Kept) and (ring := next(made, None)) is not None:
                lost, groups = ring[1] and not ring[2].quorate, False
            elif lost and isinstance(effect, results.Confchg | results.Totem):
                groups = True
            elif lost and groups and isinstance(effect, results.Quorum | results.VotesQuorum):
                raise Violation("first", f"node {node.id} tells process groups of a ring before it tells of its loss of quorum")
        ends = any(isinstance(effect, results.Disconnect) for effect in effects)
        stops = any(isinstance(effect, results.Stop) for effect in effects)
        if ends and not stops and node.alone_at is not None:
            after = self.world.now - node.alone_at
            if after < self.world.plan.linger * 1_000_000_000:
                raise Violation("first", f"node {node.id} leaves {after / 1e9} s after it has lost quorum")

    def on_end(self, node: Node) -> None:
        """zenjund has no quorum, or is gone."""
        if node.standin is not None and node.standin.ring.members != (node.id,):
            raise Violation("alone", f"node {node.id} is in {node.standin.ring.members}, without zenjund")

    # ---- what programs are told

    def on_told(self, node: Node, effect: Effect) -> None:
        program = node.programs.get(getattr(effect, "handle", 0))
        if program is None:
            return
        match effect:
            case results.Answer(_, code):
                self._answered(program, code)
            case results.Confchg():
                self._confchg(program, effect)
            case results.Totem(_, ring, members):
                self._totem(program, ring, members)
            case results.Deliver():
                self._delivered(program, effect)
            case results.Nodelist(_, ring, members) | results.VotesNodelist(_, ring, members):
                self._ring(program, ring, members)
                program.half = ring
            case results.Quorum(_, _, ring, members):
                self._quorum_told(program, ring, members)
            case results.VotesQuorum():
                program.half = None

    def _answered(self, program: Program, code: Code) -> None:
        self.world.met[code.name] += 1
        if program.asked == "join" and code is not Code.OK:
            program.asked = ""
            program.waiting.clear()
            program.parts = []
        elif program.asked == "leave" and code is not Code.OK:
            raise Violation("lists", f"{program.handle} is a member, and cannot leave: {code.name}")

    def _ring(self, program: Program, ring: RingId, members: tuple[int, ...]) -> None:
        if self.rings.get(ring) != members:
            raise Violation("same", f"{program.kind} {program.handle} hears of {ring} with {members}, not {self.rings.get(ring)}")
        if program.ring is not None and ring.seq < program.ring.seq:
            raise Violation("rise", f"{program.kind} {program.handle} hears of {ring} after {program.ring}")
        program.ring, program.ring_members = ring, members

    def _quorum_told(self, program: Program, ring: RingId, members: tuple[int, ...]) -> None:
        if program.half not in (None, ring):
            raise Violation("services", f"quorum of {ring} behind the nodes of {program.half}")
        program.half = None
        self._ring(program, ring, members)

    def _totem(self, program: Program, ring: RingId, members: tuple[int, ...]) -> None:
        old, before = program.ring, set(program.ring_members)
        self._ring(program, ring, members)
        if old == ring and program.segment is not None and program.whole:
            raise Violation("services", f"{program.handle} hears of {ring} twice")
        known = {n for n, _ in program.members}
        if program.is_member and (known - set(members) or program.leaving & set(members)):
            raise Violation("outside", f"{program.handle}: members at {known}, left {program.leaving}, ring {members}")
        if old is not None and old != ring and (program.coming & before or program.coming - set(members)):
            raise Violation("reason", f"{program.handle}: NODEUP of {program.coming}, from ring {before} to {members}")
        if old is not None and program.is_member and program.segment is not None and old != ring:
            self._close_segment(program, old, ring)
        program.leaving, program.coming = set(), set()
        if program.is_member and old is not None and old != ring:
            program.whole = program.segment is not None
            program.segment = []

    def _close_segment(self, program: Program, old: RingId, new: RingId) -> None:
        """Who goes from one ring to the next together has heard the same in between."""
        assert program.segment is not None
        key = (program.group, old, new)
        mine = program.segment
        theirs, theirs_whole = self.segments.get(key, (mine, program.whole))
        both = min(len(mine), len(theirs))
        short = (program.whole and len(mine) < len(theirs)) or (theirs_whole and len(theirs) < len(mine))
        if short or mine[len(mine) - both :] != theirs[len(theirs) - both :]:
            text = f"{program.group!r} from {old} to {new}: node {program.node} heard {mine}, another one {theirs}"
            raise Violation("virtual", text)
        if len(mine) >= len(theirs):
            self.segments[key] = (mine, program.whole or theirs_whole)

    def _confchg(self, program: Program, change: results.Confchg) -> None:
        own = (program.node, program.pid)
        now = {a[:2] for a in change.members}
        left, joined = {a[:2] for a in change.left}, {a[:2] for a in change.joined}
        text = f"{program.handle} {own} of {change.group!r}: {change.members} joined {change.joined} left {change.left}"
        if not program.is_member:
            if own not in joined:
                raise Violation("lists", f"{text}: not a member, and does not join")
            program.is_member, program.asked, program.members = True, "", now - joined
            program.segment, program.whole, program.got = [], False, []
            self.heard.append((program.group, program.node, program.got))
        if now != (program.members | joined) - left or left & joined or joined & program.members or not left <= program.members:
            raise Violation("lists", f"{text} after {sorted(program.members)}")
        if not (change.left or change.joined) or change.group != program.group:
            raise Violation("lists", text)
        if any(list(found) != sorted(found) for found in (change.members, change.left, change.joined)):
            raise Violation("lists", f"{text}: not sorted")
        self._reasons(program, change, text)
        program.members = now
        assert program.segment is not None
        program.segment.append(("change", change.left, change.joined))
        for address in left:
            program.pieces.pop(address, None)
        if own in left:
            program.is_member, program.asked, program.segment = False, "", None
            if program.waiting:
                raise Violation("self", f"{text}: {list(program.waiting)} did not come back")

    def _reasons(self, program: Program, change: results.Confchg, text: str) -> None:
        if any(a.reason is not Reason.NONE for a in change.members):
            raise Violation("reason", text)
        for found, allowed in (
            (change.left, (Reason.LEAVE, Reason.NODEDOWN, Reason.PROCDOWN)),
            (change.joined, (Reason.JOIN, Reason.NODEUP)),
        ):
            for address in found:
                if address.reason not in allowed or not self._is_true(program, change.group, address):
                    raise Violation("reason", text)
        if any(a.node == program.node and a.reason is Reason.NODEDOWN for a in change.left):
            raise Violation("own", text)
        here = {Reason.JOIN, Reason.LEAVE, Reason.PROCDOWN}
        if program.ring is not None and any(
            a.reason in here and a.node not in program.ring_members for a in (*change.left, *change.joined)
        ):
            raise Violation("reason", f"{text}: not in the ring")
        program.leaving |= {a.node for a in change.left if a.reason is Reason.NODEDOWN}
        program.coming |= {a.node for a in change.joined if a.reason is Reason.NODEUP}

    def _is_true(self, program: Program, group: bytes, address: Address) -> bool:
        return self.world.load.may_be(address.reason, group, address.node, address.pid)

    def _delivered(self, program: Program, delivered: results.Deliver) -> None:
        message = delivered.message
        sender, data = (delivered.node, message.process.pid), message.data
        text = f"{program.handle} of node {program.node}: {data!r} of {sender}"
        if not program.is_member or sender not in program.members or message.process.group != program.group:
            raise Violation("outside", f"{text}, members {sorted(program.members)}")
        if program.ring is not None and sender[0] not in program.ring_members:
            raise Violation("outside", f"{text}, ring {program.ring_members}")
        if data in program.got:
            raise Violation("twice", text)
        program.got.append(data)
        assert program.segment is not None
        if message.part in (Part.WHOLE, Part.FIRST):  # who joins behind the first part gets nothing of the message
            program.segment.append(("message", sender, data))
        if sender == (program.node, program.pid) and (not program.waiting or program.waiting.popleft() != data):
            raise Violation("self", f"{text}: another one was to come back")
        self._assemble(program, sender, message.part, data)

    def _assemble(self, program: Program, sender: tuple[int, int], part: Part, data: bytes) -> None:
        """As libcpg does it."""
        if part is Part.WHOLE:
            return
        if part is Part.FIRST:
            program.pieces[sender] = []
        if sender not in program.pieces:
            return
        pieces = program.pieces[sender]
        pieces.append(data)
        wanted = [data.partition(b".")[0] + b".%d" % k for k in range(len(pieces))]
        if pieces != wanted:
            raise Violation("torn", f"{program.handle} of node {program.node}: {pieces}")
        if part is Part.LAST:
            del program.pieces[sender]
            self.world.met["parts"] += 1

    # ---- after an input, and at rest

    def on_input(self, node: Node) -> None:
        """Every tracking handle of every service has heard of the ring."""
        current = self.current[node.id]
        if node.standin is None or current is None:
            return
        for program in node.programs.values():
            if program.ring is not None and program.ring != current[0]:
                raise Violation(
                    "services", f"{program.kind} {program.handle} of node {node.id}: {program.ring}, not {current[0]}"
                )
            if program.half is not None or program.leaving or program.coming:
                raise Violation("services", f"{program.kind} {program.handle} of node {node.id} lacks the end of a change")

    def on_rest(self) -> None:
        """One ring of all, and its members are the processes that live."""
        world = self.world
        everybody = tuple(sorted(world.nodes))
        living: dict[bytes, set[tuple[int, int]]] = {}
        for node in world.nodes.values():
            for p in node.programs.values():
                if p.asked or p.waiting:
                    raise Violation("rest", f"{p.handle} of node {node.id} waits: {p.asked} {list(p.waiting)}")
                if p.is_member:
                    living.setdefault(p.group, set()).add((node.id, p.pid))
        for node in world.nodes.values():
            standin = node.standin
            if standin is None or standin.ring.phase is not Phase.IN or standin.ring.members != everybody:
                raise Violation("rest", f"node {node.id} is in {standin.ring.members if standin else None}")
            if standin.ring.id != world.nodes[everybody[0]].standin.ring.id:  # type: ignore[union-attr]
                raise Violation("rest", f"node {node.id} is in {standin.ring.id}")
            found: dict[bytes, set[tuple[int, int]]] = {}
            for group, address in standin.cpg.everybody():
                found.setdefault(group, set()).add(address[:2])
            if found != living:
                raise Violation("rest", f"node {node.id} has {found}; alive are {living}")
            for p in node.programs.values():
                if p.is_member and p.members != living[p.group]:
                    raise Violation("rest", f"{p.handle} of node {node.id} knows {p.members}; alive are {living[p.group]}")
            if not standin.votequorum.quorate and not world.load.votes_set:
                raise Violation("rest", f"node {node.id} has no quorum")
        self._one_order()

    def _one_order(self) -> None:
        """What two programs of a group have both heard they have heard in one order."""
        places = [(group, node, {data: k for k, data in enumerate(got)}, got) for group, node, got in self.heard if len(got) > 1]
        for k, (group, node, place, _) in enumerate(places):
            for other_group, other, _, got in places[:k]:
                if group == other_group and node != other:
                    common = [place[data] for data in got if data in place]
                    if common != sorted(common):
                        raise Violation("order", f"{group!r} at nodes {node} and {other}")
