"""Programs of one daemon while stations come and go: connections on the data path, the core a double that the tests steer."""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from zenjun.daemon.connections import Facts
from zenjun.daemon.datapath import TIME_MAX, DataPath, Want
from zenjun.daemon.observe import Journal
from zenjun.daemon.sessions import Sessions
from zenjun.proto.errors import UsageError
from zenjun.proto.service.groups import Groups, SnapshotEntry, SnapshotPart, decode, encode_snapshot
from zenjun.proto.wire import VIEW, MessageType, Ordering, group_id

from .rig import CLUSTER, ETHERTYPE, GROUP_MAC, Bench, Double, Frame, Program, frame

HELLO, JOIN, LEAVE, SEND, BYE, MEMBERS, ADMIN = 1, 2, 3, 4, 6, 7, 8
WELCOME, MESSAGE, GROUP_VIEW, EVENT, DONE, ERROR, MEMBERS_REPLY, ADMIN_REPLY = 65, 66, 67, 68, 69, 70, 72, 73
ORDERED, PREACK, ACK, OPEN, SEND_ONLY, OP = 0, 1, 2, 4, 8, 32
NOTIFY = 4
OWN = 1
"""Number of this station, of 3."""


class Daemon:
    """What a daemon has of its programs, without engine and network. Own messages come by themselves (``echo``), those of other
    stations by ``say``."""

    def __init__(self, double: tuple[Any, Any], message_max: int = 1 << 16, queue_bytes_max: int = 64 << 20) -> None:
        self.core = Double(*double, OWN - 1)
        self.core.c.room, self.core.c.echo = 1 << 60, 1
        self.dp = DataPath(
            self.core, station_index=OWN - 1, ethertype=ETHERTYPE, cluster=CLUSTER, group_mac=GROUP_MAC, rest_ns=0, linger_ns=0,
            slice_ns=10**10, message_max=message_max, queue_bytes_max=queue_bytes_max,
        )  # fmt: skip
        self.bench = Bench(self.core, self.dp)
        self.groups = Groups(OWN)
        self.commands: list[tuple[str, dict[str, Any]]] = []
        peers = [{"station": k, "host": f"host{k}", "state": "up", "incarnation": 10 + k} for k in (1, 2, 3)]
        status = {"peers": peers, "membership": {"letters": {"1": {"1": "A", "2": "A", "3": "S"}}}}
        facts = Facts("test", OWN, 3, message_max, 1 << 20, 64)
        self.clients = Sessions(
            self.dp,
            self.groups,
            facts,
            Journal(logging.getLogger("test")),
            lambda now: status,
            lambda yes: None,
            self._command,
            host_of=lambda station: f"host{station}",
        )
        self.programs: dict[int, Program] = {}
        self.events: dict[int, list[Frame]] = {}
        self.clock = 1000

    def _command(self, command: str, arguments: dict[str, Any]) -> str:
        self.commands.append((command, arguments))
        if arguments.get("station") == OWN:
            raise UsageError("that is this station")
        return "begun"

    # ---- programs
    def program(self, name: str = "p", version: int = 2, pair: tuple[socket.socket, socket.socket] | None = None) -> Program:
        """pair: the program's end of the connection and the daemon's, if they are there already."""
        theirs, ours = pair or socket.socketpair()
        before = set(self.clients.connections.by_slot)
        self.clients.accept(ours, 0)
        (slot,) = set(self.clients.connections.by_slot) - before
        program = Program(theirs, slot)
        self.bench.programs.append(program)
        program.send(frame(HELLO, b"ZENJ" + struct.pack("<HH", 1, version) + name.encode()))
        self.turn()
        (welcome,) = [f for f in program.receive() if f.type == WELCOME]
        assert json.loads(welcome.body)["version"] == version
        return program

    def join(self, program: Program, group: str, flags: int = ORDERED, handle: int = 1) -> None:
        program.send(frame(JOIN, group.encode(), flags=flags, handle=handle))
        self.turn()

    # ---- the core's part
    def open(self, instance: int, incarnations: tuple[int, ...] = (11, 12, 13), *, joined: bool = False) -> None:
        lost = self.dp.reset()
        self.core.positions(0, 0, 0)
        self.core.c.position = 0
        self.clients.on_opened(instance, incarnations, lost, joined=joined)
        self.dp.hold(False)
        self.turn()

    def close(self, *, expelled: bool) -> None:
        self.dp.hold(True)
        self.clients.on_closed("they went on", 2, expelled=expelled)
        self.turn()

    def say(self, station: int, data: bytes, *, client: int = 0, group: int = 0, kind: int = MessageType.GROUP) -> None:
        """A message of another station has its place."""
        self.clock += 1
        self.core.deliver(group, data, client=client, src=station - 1, type=int(kind), clock=self.clock)
        self.turn()

    def view(
        self, instance: int, incarnations: tuple[int, ...], *, joined: int = 0, left: int = 0, position: int | None = None
    ) -> None:
        """A view event; joined, left: bitmaps. It stands behind a PDU of station 3."""
        self.clock += 1
        members = sum(1 << i for i, life in enumerate(incarnations) if life)
        data = VIEW.struct.pack(instance, 99, members, joined, left) + struct.pack(">3I", *incarnations)
        before = self.core.c.position
        self.core.c.position = before if position is None else position
        self.core.deliver(0, data, src=OWN - 1, type=int(MessageType.VIEW), clock=self.clock)
        self.core.c.position = before
        self.turn()

    def turn(self) -> None:
        """Until nothing is left to do."""
        for _ in range(1000):
            turn = self.bench.turn()
            if turn.want & Want.GROUP:
                message = self.dp.group()
                assert message is not None
                self.clients.on_delivered(message)
                self.dp.group_done()
            if turn.want & Want.CLIENT:
                while (take := self.dp.take()) is not None:
                    self.clients.on_frame(take, turn.now)
            if self.clients.waiting:
                self.clients.after_turn(turn.now)
            if not turn.want:
                return
        raise AssertionError("it never comes to rest")

    def sent(self) -> list[tuple[int, bytes]]:
        """Group messages that this daemon has sent: (client, data)."""
        return [(c.client, bytes(self.core.ffi.buffer(c.data, c.size))) for c in self._log() if c.type == MessageType.GROUP]

    def _log(self) -> list[Any]:
        return [self.core.c.log[i] for i in range(self.core.c.log_count) if self.core.c.log_place[i].src == OWN - 1]


@pytest.fixture
def daemon(double_library: tuple[Any, Any]) -> Iterator[Daemon]:
    made = Daemon(double_library)
    yield made
    made.bench.close()


def kinds(frames: list[Frame]) -> list[Any]:
    """What a program got, in short."""
    out: list[Any] = []
    for f in frames:
        if f.type == MESSAGE:
            out.append(f.body[16:])
        elif f.type == GROUP_VIEW:
            v = json.loads(f.body)
            out.append((v["group"], v["reason"], [m[:2] for m in v["members"]]))
        elif f.type == EVENT:
            out.append(json.loads(f.body)["event"])
        elif f.type == ERROR:
            out.append(json.loads(f.body)["code"])
        elif f.type == DONE:
            out.append(struct.unpack("<QQQ", f.body))
        else:
            out.append(json.loads(f.body))
    return out


def events(frames: list[Frame], name: str) -> list[dict[str, Any]]:
    bodies = [json.loads(f.body) for f in frames if f.type == EVENT]
    return [b for b in bodies if b["event"] == name]


# ---- stations go


def test_a_removed_station_is_a_view_event_and_then_death_in_its_groups(daemon: Daemon) -> None:
    daemon.open(5)
    p, stranger = daemon.program(), daemon.program()
    daemon.join(p, "g")
    daemon.say(2, Groups.encode_join("g", "q", level=0, open=False), client=9)
    daemon.say(2, b"last", client=9, group=group_id("g"), kind=MessageType.USER)
    p.receive()
    stranger.receive()
    daemon.view(6, (11, 0, 13), left=0b010)
    daemon.say(3, b"next", client=1, group=group_id("g"), kind=MessageType.USER)
    frames = p.receive()
    assert kinds(frames) == ["view", ("g", "death", [[1, 1]]), b"next"]
    (event,) = events(frames, "view")
    clock = daemon.clock - 1
    assert event == {
        "event": "view", "instance": 6, "clock": clock, "station": 3, "index": 65535, "joined": [], "left": [2],
        "members": [[1, 11, "host1"], [3, 13, "host3"]],
    }  # fmt: skip
    group_view = json.loads(frames[1].body)
    assert (group_view["clock"], group_view["station"], group_view["instance"]) == (clock, 3, 6)
    assert group_view["left"] == [[2, 9, "q"]]
    assert kinds(stranger.receive()) == ["view"], "who is in no group is told as well"
    assert daemon.sent()[1:] == [], "nobody has come: nobody has to be told"


def test_a_view_event_is_held_back_for_the_highest_level_of_the_programs_groups(daemon: Daemon) -> None:
    daemon.open(5)
    p, q = daemon.program(), daemon.program()
    daemon.join(p, "a", ORDERED)
    daemon.join(p, "b", PREACK, 2)
    daemon.join(q, "a", ORDERED)
    daemon.core.positions(1, 1, 0)
    daemon.turn()
    p.receive()
    q.receive()
    daemon.core.c.position = 4
    daemon.view(6, (11, 0, 13), left=0b010)
    daemon.core.positions(5, 4, 0)
    daemon.turn()
    assert kinds(p.receive()) == [] and kinds(q.receive()) == ["view"]
    daemon.core.positions(5, 5, 0)
    daemon.turn()
    assert kinds(p.receive()) == ["view"]


def test_a_program_of_version_1_sees_nothing_that_it_does_not_know(daemon: Daemon) -> None:
    daemon.open(5)
    p = daemon.program(version=1)
    daemon.join(p, "g")
    p.receive()
    daemon.view(6, (11, 0, 13), left=0b010)
    daemon.close(expelled=True)
    daemon.open(9, joined=True)
    assert kinds(p.receive()) == ["reopened"]
    p.send(frame(ADMIN, b"{}"))
    daemon.turn()
    assert kinds(p.receive()) == ["protocol"]


# ---- stations come


def test_who_was_there_tells_a_newcomer_as_of_the_view(daemon: Daemon) -> None:
    daemon.open(5, (11, 12, 0))
    p = daemon.program("one")
    daemon.join(p, "g", PREACK | OPEN)
    daemon.join(p, "h", ORDERED | OP, 2)
    before = len(daemon.sent())
    daemon.view(6, (11, 12, 14), joined=0b100)
    ((client, data),) = daemon.sent()[before:]
    state = decode(data)
    assert client == 0 and isinstance(state, SnapshotPart) and (state.instance, state.last) == (6, True)
    assert sorted(state.entries) == [
        SnapshotEntry(1, "g", "one", 1, True, Ordering.TOTAL),
        SnapshotEntry(1, "h", "one", 0, False, Ordering.FIFO),
    ]
    assert daemon.groups.syncing, "station 2 has to tell too"
    daemon.say(2, encode_snapshot(6, [])[0])
    assert not daemon.groups.syncing


def test_a_long_state_goes_in_parts_and_an_empty_one_too(daemon: Daemon) -> None:
    daemon.open(5, (11, 12, 0))
    daemon.view(6, (11, 12, 14), joined=0b100)
    assert [decode(d) for _, d in daemon.sent()] == [SnapshotPart(6, True, ())]
    p = daemon.program()
    for k in range(1, 30):
        daemon.join(p, "g" * 100 + str(k), handle=k)
    before = len(daemon.sent())
    daemon.view(7, (11, 12, 0), left=0b100)  # station 2 has not told: again
    parts = [decode(d) for _, d in daemon.sent()[before:]]
    assert [x.last for x in parts if isinstance(x, SnapshotPart)] == [False] * (len(parts) - 1) + [True] and len(parts) > 2
    assert sum(len(x.entries) for x in parts if isinstance(x, SnapshotPart)) == 29


def test_a_newcomer_holds_joins_and_sends_until_it_knows_the_groups(daemon: Daemon) -> None:
    """Programs that were connected before and joins made meanwhile; then each begins with a view at its own place."""
    p = daemon.program("early")
    daemon.join(p, "g")
    p.send(frame(SEND, b"held", handle=1, flags=ORDERED | NOTIFY))
    daemon.open(6, (11, 12, 13), joined=True)
    daemon.view(6, (11, 12, 13), joined=0b001, position=TIME_MAX)
    q = daemon.program("late")
    daemon.join(q, "g", PREACK)
    daemon.say(3, Groups.encode_join("g", "three", level=0, open=False), client=4)
    daemon.say(2, encode_snapshot(6, [SnapshotEntry(7, "g", "two", 0, True, Ordering.TOTAL)])[0])
    assert daemon.sent() == [] and daemon.core.c.offered == 0 and kinds(q.receive()) == []
    opened = p.receive()
    assert kinds(opened) == ["open", "view"] and events(opened, "open")[0]["joined"] is True
    daemon.say(3, encode_snapshot(6, [])[0])
    daemon.core.positions(10, 10, 0)
    daemon.turn()
    before = [[2, 7], [3, 4]]
    assert kinds(p.receive()) == [
        ("g", "join", [[1, 1], *before]), ("g", "join", [[1, 1], [1, 2], *before]), b"held", (1, 0, 0),
    ]  # fmt: skip
    assert daemon.groups.is_open("g") and len(daemon.groups.members("g")) == 4
    assert kinds(q.receive())[0] == ("g", "join", [[1, 1], [1, 2], *before])


def test_a_view_while_a_newcomer_learns_begins_anew(daemon: Daemon) -> None:
    p = daemon.program()
    daemon.join(p, "g")
    daemon.open(6, (11, 12, 13), joined=True)
    daemon.view(6, (11, 12, 13), joined=0b001, position=TIME_MAX)
    daemon.say(2, encode_snapshot(6, [SnapshotEntry(7, "g", "two", 0, True, Ordering.TOTAL)])[0])
    daemon.view(7, (11, 12, 0), left=0b100)
    assert [decode(d) for _, d in daemon.sent()] == [SnapshotPart(7, True, ())], "who still learns has nobody in any group"
    daemon.say(2, encode_snapshot(7, [SnapshotEntry(8, "g", "two", 0, False, Ordering.TOTAL)])[0])
    assert daemon.groups.members("g") == ((1, 1, "p"), (2, 8, "two")) and not daemon.groups.is_open("g")


def test_a_handle_that_only_sends_waits_for_the_groups(daemon: Daemon) -> None:
    """Whether the group takes its messages, and in which order they go, is known only then."""
    p = daemon.program()
    daemon.join(p, "open", SEND_ONLY)
    daemon.join(p, "fast", SEND_ONLY, 2)
    daemon.join(p, "closed", SEND_ONLY, 3)
    daemon.open(6, (11, 12, 13), joined=True)
    daemon.view(6, (11, 12, 13), joined=0b001, position=TIME_MAX)
    p.send(frame(SEND, b"1", handle=1) + frame(SEND, b"2", handle=2) + frame(SEND, b"3", handle=3))
    daemon.turn()
    told = [
        SnapshotEntry(1, "open", "x", 0, True, Ordering.TOTAL),
        SnapshotEntry(1, "fast", "x", 0, True, Ordering.FIFO),
        SnapshotEntry(2, "closed", "x", 0, False, Ordering.TOTAL),
    ]
    for station, entries in ((2, told), (3, [])):
        assert daemon.core.c.offered == 0
        daemon.say(station, encode_snapshot(6, entries)[0])
    offered = [(m.group, m.ordering) for m in daemon._log() if m.type == MessageType.USER]
    assert offered == [(group_id("open"), 0), (group_id("fast"), 1), (group_id("fast"), 1)]  # op: on acceptance and at its place
    assert kinds(p.receive())[-1] == "not-member"


# ---- this station goes, and comes back


def test_expelled_and_back(daemon: Daemon) -> None:
    """At once: what may be lost. When back: final figures, then the groups again. Group messages under way die."""
    daemon.open(5)
    p, q = daemon.program("p"), daemon.program("q")
    daemon.join(p, "g", ORDERED)
    daemon.join(q, "g", PREACK)
    daemon.core.positions(1, 1, 0)
    daemon.turn()
    daemon.core.c.position = 1
    daemon.say(2, b"unsafe", client=9, group=group_id("g"), kind=MessageType.USER)
    p.send(frame(SEND, b"mine", handle=1, flags=PREACK | NOTIFY))
    daemon.turn()
    for x in (p, q):
        x.receive()
    daemon.core.c.room = 0
    daemon.join(p, "stuck", ORDERED, 2)
    daemon.close(expelled=True)
    (lost,) = events(p.receive(), "expelled")
    assert lost == {
        "event": "expelled", "instance": 5, "reason": "they went on", "station": 2, "undecided": 1, "first": 1, "forgotten": 0,
        "unsafe": True,
    }  # fmt: skip
    (lost,) = events(q.receive(), "expelled")
    assert (lost["undecided"], lost["forgotten"], lost["unsafe"]) == (0, 2, False)
    daemon.core.c.room = 1 << 60
    daemon.open(8, (15, 12, 13), joined=True)
    daemon.view(8, (15, 12, 13), joined=0b001, position=TIME_MAX)
    before = len(daemon.sent())
    for station in (2, 3):
        daemon.say(station, encode_snapshot(8, [SnapshotEntry(9, "g", "r", 0, False, Ordering.TOTAL)] if station == 2 else [])[0])
    asked = [(c, decode(d)) for c, d in daemon.sent()[before:]]
    requests = [(c, x.group) for c, x in asked if x is not None and not isinstance(x, SnapshotPart)]
    assert requests == [
        (1, "g"),
        (1, "stuck"),
        (2, "g"),
    ]
    daemon.core.positions(10, 10, 0)
    daemon.turn()
    frames = p.receive()
    (back,) = events(frames, "reopened")
    assert (back["instance"], back["joined"], back["undecided"], back["first"], back["unsafe"]) == (8, True, 1, 1, True)
    assert [k for k in kinds(frames) if isinstance(k, tuple) and k[0] == "g"] == [
        ("g", "join", [[1, 1], [2, 9]]), ("g", "join", [[1, 1], [1, 2], [2, 9]]),
    ]  # fmt: skip
    assert (1, 1, 1) in kinds(frames), "the undecided message counts as done from reopened on"
    assert b"unsafe" not in kinds(q.receive())


def test_closed_keeps_what_may_still_be_released(daemon: Daemon) -> None:
    daemon.open(5)
    p = daemon.program()
    daemon.join(p, "g", PREACK)
    daemon.core.positions(1, 1, 0)
    daemon.turn()
    daemon.core.c.position = 1
    daemon.say(2, b"kept", client=9, group=group_id("g"), kind=MessageType.USER)
    p.receive()
    daemon.close(expelled=False)
    assert kinds(p.receive()) == ["closed"]
    daemon.core.positions(2, 2, 2)
    daemon.view(6, (11, 0, 13), left=0b010)  # of the rest that is delivered before the next instance
    daemon.turn()
    assert kinds(p.receive()) == [b"kept", "view"]
    daemon.view(7, (0, 0, 13), left=0b001)
    daemon.open(9)
    daemon.core.positions(1, 1, 0)
    daemon.turn()
    assert kinds(p.receive()) == ["reopened", ("g", "join", [[1, 1]])]
    assert [decode(d) for c, d in daemon.sent() if c == 0] == [], "nobody is told anything in an instance that has ended"


def test_the_first_opening_joins_at_once(daemon: Daemon) -> None:
    p = daemon.program()
    daemon.join(p, "g")
    daemon.open(5)
    assert kinds(p.receive()) == ["open", ("g", "join", [[1, 1]])]


def test_blocked_says_whether_there_is_quorum(daemon: Daemon) -> None:
    daemon.open(5)
    p = daemon.program()
    p.receive()
    daemon.clients.on_blocked(((2, "silent"),), False)
    daemon.clients.on_blocked(())
    daemon.turn()
    frames = p.receive()
    assert events(frames, "blocked")[0]["quorum"] is False and events(frames, "unblocked")


# ---- order op


def test_op_sends_wait_for_the_join_and_go_as_op(daemon: Daemon) -> None:
    daemon.open(5)
    p = daemon.program()
    daemon.core.c.room = 0
    p.send(frame(JOIN, b"fast", flags=OP, handle=1) + frame(SEND, b"x", handle=1, flags=ORDERED | NOTIFY))
    daemon.turn()
    daemon.core.c.room = 1 << 60
    daemon.turn()
    assert kinds(p.receive()) == [("fast", "join", [[1, 1]]), b"x", (1, 0, 0)]
    assert [m.ordering for m in daemon._log() if m.type == MessageType.USER] == [1, 1]


def test_another_order_is_refused_at_its_place(daemon: Daemon) -> None:
    daemon.open(5)
    daemon.say(2, Groups.encode_join("g", "q", level=0, open=False), client=9)
    p = daemon.program()
    p.send(frame(JOIN, b"g", flags=OP, handle=1) + frame(SEND, b"x", handle=1))
    daemon.turn()
    assert kinds(p.receive()) == ["order-mismatch", "bad-handle"]
    daemon.join(p, "g", PREACK | OP)
    assert kinds(p.receive()) == ["level"]
    daemon.join(p, "g")
    assert kinds(p.receive()) == [("g", "join", [[1, 1], [2, 9]])]


# ---- questions and commands


def test_members_says_what_is_known_of_every_station(daemon: Daemon) -> None:
    daemon.open(5, (11, 12, 13))
    daemon.clients.on_changed(6, (11, 12, 0))
    p = daemon.program()
    p.send(frame(MEMBERS))
    daemon.turn()
    (reply,) = kinds(p.receive())
    assert reply["members"] == [[1, 0, "host1"], [2, 0, "host2"]] and (reply["instance"], reply["stations"]) == (6, 3)
    assert reply["detail"][1] == {
        "station": 2, "incarnation": 12, "host": "host2", "letter": "A", "state": "up", "member": True,
    }  # fmt: skip
    assert reply["detail"][2] == {
        "station": 3, "incarnation": 13, "host": "host3", "letter": "S", "state": "up", "member": False,
    }  # fmt: skip


def test_commands_of_operators(daemon: Daemon) -> None:
    p = daemon.program()

    def ask(body: bytes) -> dict[str, Any]:
        p.send(frame(ADMIN, body))
        daemon.turn()
        (answer,) = p.receive()
        assert answer.type == (ADMIN_REPLY if b"begun" in answer.body else ERROR)
        return dict(json.loads(answer.body))

    assert ask(b'{"command": "expel", "station": 2}') == {"ok": True, "message": "begun"}
    assert ask(b'{"command": "leave", "more": 1}')["ok"]
    assert daemon.commands == [("expel", {"station": 2}), ("leave", {})]
    for bad in (b"", b"[]", b"\xff", b"{}", b'{"command": "expel"}', b'{"command": "expel", "station": 4}',
                b'{"command": "expel", "station": true}', b'{"command": "expel", "station": "2"}', b"[" * 60_000):  # fmt: skip
        answer = ask(bad)
        assert answer["code"] == "refused" and answer["admin"] is True
    assert len(daemon.commands) == 2
    assert ask(b'{"command": "expel", "station": 1}') == {"code": "refused", "message": "that is this station", "admin": True}


def test_commands_are_for_root_and_the_daemons_own_user(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the credentials of the other end: the daemon's user here is somebody else, and so is the client's."""
    p = daemon.program()
    daemon.clients.connections.by_slot[p.slot].uid = 4711

    def ask() -> list[Any]:
        p.send(frame(ADMIN, b'{"command": "leave"}'))
        daemon.turn()
        return kinds(p.receive())

    assert ask() == ["not-permitted"] and not daemon.commands
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert ask() == [{"ok": True, "message": "begun"}]
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    daemon.clients.connections.by_slot[p.slot].uid = 0
    assert ask() == [{"ok": True, "message": "begun"}]


def test_credentials_are_those_of_the_other_end(daemon: Daemon) -> None:
    p = daemon.program()
    assert daemon.clients.connections.by_slot[p.slot].uid == os.getuid()
