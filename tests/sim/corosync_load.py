"""Programs of corosync in the simulation: what they ask, and what they keep of what they are told."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

from zenjun.proto.service.corosync.cpg import Cpg
from zenjun.proto.service.corosync.messages import Part, Reason
from zenjun.proto.service.corosync.results import Code, RingId
from zenjun.proto.service.corosync.standin import StandIn
from zenjun.proto.service.corosync.tracking import Track

if TYPE_CHECKING:
    from .corosync import Node, World

GROUPS: Final = (b"pacemakerd\0", b"dlm", b"\xff")
PROGRAMS_MAX: Final = 6
"""At a node."""


@dataclass(slots=True)
class Program:
    """A connection of a program. ``kind``: cpg, quorum, votes."""

    handle: int
    node: int
    kind: str
    pid: int = 0
    group: bytes = b""
    asked: str = ""
    """The request that has no result yet: "join", "leave"."""
    is_member: bool = False
    members: set[tuple[int, int]] = field(default_factory=set)
    leaving: set[int] = field(default_factory=set)
    """Nodes that its last lists have as NODEDOWN, until the ring is told."""
    coming: set[int] = field(default_factory=set)
    ring: RingId | None = None
    """As it was told; None: not yet."""
    ring_members: tuple[int, ...] = ()
    half: RingId | None = None
    """The ring of a list of nodes whose quorum has not been told."""
    segment: list[tuple[object, ...]] | None = None
    """What it has heard in this ring since it has been a member."""
    whole: bool = False
    """It was a member when this ring began."""
    waiting: deque[bytes] = field(default_factory=deque)
    """Accepted, and not delivered here."""
    got: list[bytes] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    """What is left to send of a message in parts, the next one first."""
    length: int = 0
    """Of that message as a whole."""
    pieces: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)
    """Messages in parts that are being put together, by sender."""


class Load:
    """Draws what programs do."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.r = world.r
        self.handles = count(1)
        self.texts = count(1)
        self.left: set[tuple[bytes, int, int]] = set()
        """(group, node, pid) of those that have ever left, and that have ever been lost."""
        self.lost: set[tuple[bytes, int, int]] = set()
        self.joined: set[tuple[bytes, int, int]] = set()
        self.votes_set = False

    # ---- a stand-in's programs

    def lose(self, node: Node) -> None:
        """The stand-in is gone, and with it every connection."""
        node.programs.clear()

    def act(self, node: Node) -> None:
        """A program does something."""
        r, standin = self.r, node.standin
        assert standin is not None
        if len(node.programs) < PROGRAMS_MAX and r.random() < 0.3:
            self.open(node, standin)
            return
        if not node.programs:
            return
        program = node.programs[r.choice(sorted(node.programs))]
        if r.random() < 0.04:
            self.close(node, standin, program)
        elif program.kind == "cpg":
            self.use_group(node, standin, program)
        elif program.kind == "votes" and r.random() < self.world.plan.votes:
            self.set_votes(node, standin, program)

    def open(self, node: Node, standin: StandIn) -> None:
        kind = self.r.choice(["cpg", "cpg", "cpg", "quorum", "votes"])
        program = Program(next(self.handles), node.id, kind)
        node.programs[program.handle] = program
        if kind == "cpg":
            standin.cpg.open(program.handle)
            return
        standin.trackers.open(program.handle, votes=kind == "votes", model=self.r.choice([0, 1]))
        flags = self.r.choice([Track.CHANGES, Track.CHANGES | Track.CURRENT, Track.CHANGES_ONLY])
        self.world.carry_out(node, standin.track(program.handle, flags))

    def close(self, node: Node, standin: StandIn, program: Program) -> None:
        """A program ends, or is closed because it reads too slowly."""
        del node.programs[program.handle]
        if program.kind == "cpg":
            self.lost.add((program.group, node.id, program.pid))
            self.world.carry_out(node, standin.cpg.close(program.handle))
        else:
            standin.trackers.close(program.handle)

    def use_group(self, node: Node, standin: StandIn, program: Program) -> None:
        r, carry, cpg = self.r, self.world.carry_out, standin.cpg
        if not program.is_member and not program.asked:
            program.group, program.pid = r.choice(GROUPS), r.randint(1, self.world.plan.pids)
            program.asked = "join"
            self.joined.add((program.group, node.id, program.pid))
            carry(node, cpg.join(program.handle, program.group, program.pid, initial=True))
        elif program.parts:
            self.send_part(node, cpg, program)
        elif program.is_member and not program.asked and r.random() < 0.06:
            program.asked = "leave"
            self.left.add((program.group, node.id, program.pid))
            carry(node, cpg.leave(program.handle))
        elif program.asked != "leave" and r.random() < self.world.plan.parts:
            text = f"{next(self.texts)}".encode()
            program.parts = [text + b".%d" % k for k in range(r.randint(2, 4))]
            program.length = sum(map(len, program.parts))
            self.send_part(node, cpg, program, Part.FIRST)
        elif program.asked != "leave":
            data = f"{next(self.texts)}".encode()
            effects = cpg.mcast(program.handle, data)
            program.waiting.append(data)
            carry(node, effects)

    def send_part(self, node: Node, cpg: Cpg, program: Program, part: Part | None = None) -> None:
        """The next fragment, as libcpg sends them one after another."""
        data = program.parts.pop(0)
        part = part or (Part.MIDDLE if program.parts else Part.LAST)
        effects = cpg.mcast_part(program.handle, part, program.length, data)
        code = next(e.code for e in effects if hasattr(e, "code"))
        if code is Code.OK:
            program.waiting.append(data)
        else:
            program.parts = []
            self.world.met[code.name] += 1
        self.world.carry_out(node, effects)

    def set_votes(self, node: Node, standin: StandIn, program: Program) -> None:
        r = self.r
        self.votes_set = True
        if r.random() < 0.5:
            effects = standin.set_expected(program.handle, r.randint(1, 2 * self.world.plan.stations))
        else:
            effects = standin.set_votes(program.handle, r.choice(sorted(self.world.nodes)), r.randint(0, 3))
        self.world.carry_out(node, effects)

    def kill_node(self, node: Node) -> None:
        """corosync-cfgtool -k."""
        assert node.standin is not None
        target = self.r.choice(node.standin.ring.members)
        self.world.carry_out(node, node.standin.kill(0, target, b"test"))

    def last_words(self) -> None:
        """At rest every member sends once more, and a program at every node joins each group."""
        for node in self.world.nodes.values():
            standin = node.standin
            assert standin is not None
            for program in list(node.programs.values()):
                if program.is_member and program.asked != "leave" and not program.parts:
                    data = f"{next(self.texts)}".encode()
                    effects = standin.cpg.mcast(program.handle, data)
                    program.waiting.append(data)
                    self.world.carry_out(node, effects)

    # ---- what has really happened

    def may_be(self, reason: Reason, group: bytes, node: int, pid: int) -> bool:
        """Has this process ever done that?"""
        known = {Reason.LEAVE: self.left, Reason.PROCDOWN: self.lost, Reason.JOIN: self.joined, Reason.NODEUP: self.joined}
        return reason is Reason.NODEDOWN or (group, node, pid) in known.get(reason, ())
