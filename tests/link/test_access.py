"""Rights and limits of the programs on one machine, on real sockets of processes of other users (docs/access.md)."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from zenjun.daemon.access import Access, Quota, Rule, identity
from zenjun.daemon.config.principals import Principals
from zenjun.proto.service.groups import Groups
from zenjun.proto.service.transferwire import companion_of, mailbox_of
from zenjun.proto.wire import group_id

from ..rules import rule
from .rig import Frame, Program, frame
from .test_membership import ADMIN, ERROR, GROUP_VIEW, JOIN, MEMBERS, OPEN, ORDERED, SEND, SEND_ONLY, Daemon, kinds

STATUS, STATUS_REPLY = 5, 71
READER, WRITER, STRANGER, TEAM = 4711, 4712, 4713, 4800
ALL = Principals(all=True)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes root, who can be another user as well")


@pytest.fixture
def daemon(double_library: tuple[Any, Any]) -> Iterator[Daemon]:
    made = Daemon(double_library, 1 << 20)
    made.open(5)
    yield made
    made.bench.close()


def users(*uids: int, groups: tuple[int, ...] = ()) -> Principals:
    return Principals(frozenset(uids), frozenset(groups))


def connected(uid: int, groups: tuple[int, ...] = ()) -> tuple[socket.socket, socket.socket]:
    """A connection made by a process of this user and these groups, both ends: what counts is who called connect()."""
    listener, theirs = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    with listener:
        listener.bind("")
        listener.listen()
        mine = os.getgroups()
        os.setgroups(groups)
        os.setegid(uid)
        os.seteuid(uid)
        try:
            theirs.connect(listener.getsockname())
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(mine)
        return theirs, listener.accept()[0]


def program(daemon: Daemon, uid: int, groups: tuple[int, ...] = ()) -> Program:
    return daemon.program(f"u{uid}", 2, connected(uid, groups))


def talk(daemon: Daemon, p: Program, data: bytes) -> list[Frame]:
    p.send(data)
    daemon.turn()
    return list(p.receive())


def error(frames: list[Frame]) -> tuple[str, str]:
    (body,) = [json.loads(f.body) for f in frames if f.type == ERROR]
    return body["code"], body["message"]


def secret(daemon: Daemon, **options: Any) -> None:
    """Group ``secret``: the reader and the team may receive, the writer may send."""
    daemon.clients.access.change(Access((Rule("secret*", users(WRITER), users(READER, groups=(TEAM,))),), **options))


def test_the_kernel_says_who_is_there_with_all_groups() -> None:
    many = tuple(range(5000, 5200))  # more than fit into the first answer's room
    for groups in ((), (TEAM,), many):
        theirs, ours = connected(READER, groups)
        with theirs, ours:
            who = identity(ours)
            assert (who.uid, who.pid) == (READER, os.getpid())
            assert who.groups == {READER, *groups}


@rule("G1", "G2")
def test_who_may_not_receive_gets_neither_messages_nor_names_nor_members(daemon: Daemon) -> None:
    secret(daemon)
    reader, stranger = program(daemon, READER), program(daemon, STRANGER)
    daemon.join(reader, "secret", OPEN)
    for flags in (ORDERED, OPEN, SEND_ONLY):
        code, text = error(talk(daemon, stranger, frame(JOIN, b"secret", flags=flags, handle=2)))
        what = "send to" if flags == SEND_ONLY else "receive of"
        assert code == "not-permitted" and f"uid {STRANGER} may not {what} group 'secret'" in text and "[[access]]" in text
    assert error(talk(daemon, stranger, frame(MEMBERS, b"secret")))[0] == "not-permitted"
    assert kinds(talk(daemon, stranger, frame(MEMBERS, b"other"))) == [{"group": "other", "members": []}]
    assert kinds(talk(daemon, reader, frame(MEMBERS, b"secret")))[-1]["members"], "who may receive sees them"
    assert daemon.clients.audit.refusals == {"not-permitted": 4}
    daemon.core.deliver(group_id("secret"), b"told", src=1)
    daemon.turn()
    assert kinds(reader.receive()) == [b"told"] and stranger.receive() == []


@rule("G2")
def test_a_status_leaves_out_what_a_program_may_not_see(daemon: Daemon) -> None:
    whole = {"groups": [{"name": "secret"}, {"name": "open"}], "clients": [{"client": 1, "groups": ["open", "secret"]}]}
    daemon.clients.requests._make_status = lambda now: whole

    def seen(uid: int) -> dict[str, Any]:
        (reply,) = talk(daemon, program(daemon, uid), frame(STATUS))
        assert reply.type == STATUS_REPLY
        return dict(json.loads(reply.body))

    assert seen(STRANGER) == whole, "nothing is configured"
    secret(daemon, operators=users(WRITER))
    assert seen(READER) == seen(0) == seen(WRITER) == whole
    assert seen(STRANGER) == {"groups": [{"name": "open"}], "clients": [{"client": 1, "groups": ["open"]}]}


@rule("G2")
@pytest.mark.parametrize("flags", [ORDERED, 32], ids=["total", "op"])
def test_who_may_only_receive_cannot_send(daemon: Daemon, flags: int) -> None:
    secret(daemon)
    reader = program(daemon, READER)
    daemon.join(reader, "secret", flags)
    reader.receive()
    before = len(daemon.core.taken())
    code, text = error(talk(daemon, reader, frame(SEND, b"x" * 100, handle=1)))
    assert code == "not-permitted" and f"uid {READER} may not send to group 'secret'" in text
    assert len(daemon.core.taken()) == before, "nothing has gone"
    assert kinds(talk(daemon, reader, frame(MEMBERS, b"secret")))[-1]["members"], "it is still connected, and a member"


@rule("G1", "G2")
def test_who_may_only_send_sends_to_an_open_group(daemon: Daemon) -> None:
    secret(daemon)
    reader, writer = program(daemon, STRANGER, (TEAM,)), program(daemon, WRITER)
    daemon.join(reader, "secret", OPEN)
    reader.receive()
    assert error(talk(daemon, writer, frame(JOIN, b"secret", handle=1)))[0] == "not-permitted"
    talk(daemon, writer, frame(JOIN, b"secret", flags=SEND_ONLY, handle=1))
    talk(daemon, writer, frame(SEND, b"sent", handle=1))
    assert kinds(reader.receive()) == [b"sent"], "by a supplementary group of the reader"


@rule("G2")
def test_the_first_rule_counts_and_closed_is_for_the_others(daemon: Daemon) -> None:
    rules = (Rule("a.b*", ALL, ALL), Rule("a.*", Principals(), Principals()), Rule("c", ALL, ALL))
    daemon.clients.access.change(Access(rules))
    p = program(daemon, STRANGER)

    def may(group: str, handle: int) -> bool:
        return not [f for f in talk(daemon, p, frame(JOIN, group.encode(), handle=handle)) if f.type == ERROR]

    assert [may(group, n) for n, group in enumerate(("a.b", "a.bc", "a.c", "c", "d"), 1)] == [True, True, False, True, True]
    daemon.clients.access.change(Access(rules, closed=True))
    assert not may("e", 9)
    assert "clients.closed" in error(talk(daemon, p, frame(JOIN, b"e", handle=9)))[1]
    root = daemon.program("root")
    daemon.join(root, "a.c")
    assert daemon.groups.members("a.c"), "root could change the rules: they do not bind it"


@rule("G6")
def test_rights_that_are_taken_away_end_what_they_allowed(daemon: Daemon) -> None:
    secret(daemon)
    both = Access((Rule("secret", users(READER), users(READER)),))
    daemon.clients.access.change(both)
    p = program(daemon, READER)
    daemon.join(p, "secret")
    daemon.join(p, "free", handle=2)
    talk(daemon, p, frame(SEND, b"one", handle=1))
    assert [c for c, _, data, _ in daemon.core.taken() if data == b"one"]
    daemon.clients.access.change(Access((Rule("secret", Principals(), users(READER)),)))
    daemon.clients.review()
    assert error(talk(daemon, p, frame(SEND, b"two", handle=1)))[0] == "not-permitted"
    daemon.clients.access.change(both)
    daemon.clients.review()
    assert not [f for f in talk(daemon, p, frame(SEND, b"three", handle=1)) if f.type == ERROR], "and given back"
    daemon.clients.access.change(Access((Rule("secret", Principals(), Principals()),)))
    daemon.clients.review()
    daemon.turn()
    frames = p.receive()
    assert [f.handle for f in frames if f.type == ERROR] == [1] and error(frames)[0] == "not-permitted"
    (view,) = [json.loads(f.body) for f in frames if f.type == GROUP_VIEW]
    assert view["left"] and not daemon.groups.members("secret"), "the others see it go"
    assert daemon.groups.members("free"), "and the rest stays"


def test_two_names_with_one_id_neither_pass_rights_nor_end_the_daemon(daemon: Daemon) -> None:
    """A program holds a name for sending. A group begins at another station whose name has the same CRC-32; its first message to
    that group would have this id. Then a program here joins it."""
    mine, theirs = "nidmovh", "bubanxn"
    assert group_id(mine) == group_id(theirs)
    daemon.clients.access.change(Access((Rule(theirs, users(READER), users(READER)),)))
    stranger, reader = program(daemon, STRANGER), program(daemon, READER)
    talk(daemon, stranger, frame(JOIN, mine.encode(), flags=SEND_ONLY, handle=1))
    daemon.say(2, Groups.encode_join(theirs, "q", level=0, open=True), client=9)
    talk(daemon, stranger, frame(SEND, b"forged", handle=1))
    assert not [data for _, _, data, _ in daemon.core.taken() if data == b"forged"]
    daemon.join(reader, theirs)
    assert len(daemon.groups.members(theirs)) == 2
    for p in (stranger, reader):
        p.sock.close()
        daemon.turn()
    assert len(daemon.groups.members(theirs)) == 1


@rule("G3")
def test_state_is_transferred_to_those_only_who_may_receive(daemon: Daemon) -> None:
    """The groups that transfer a group's state are named by its hash: who cannot have the group cannot have these."""
    secret(daemon)
    stranger, reader = program(daemon, STRANGER), program(daemon, READER)
    names = [companion_of("secret"), mailbox_of("secret", (1, 7))]
    for handle, name in enumerate(names, 1):
        daemon.join(stranger, name, handle=handle)
        assert daemon.groups.members(name), "nobody knows of which group it is"
    stranger.receive()
    daemon.join(reader, companion_of("secret"), handle=5)
    daemon.join(reader, "secret")
    assert [f.handle for f in stranger.receive() if f.type == ERROR] == [1, 2]
    assert [len(daemon.groups.members(name)) for name in names] == [1, 0], "the reader's own"
    assert error(talk(daemon, stranger, frame(JOIN, names[0].encode(), handle=3)))[0] == "not-permitted"
    assert error(talk(daemon, stranger, frame(MEMBERS, names[0].encode())))[0] == "not-permitted"


@rule("G4")
def test_operators_give_commands_and_others_do_not(daemon: Daemon) -> None:
    ask = frame(ADMIN, b'{"command": "leave"}')
    code, text = error(talk(daemon, program(daemon, READER, (TEAM,)), ask))
    assert code == "not-permitted" and "station.operators" in text and not daemon.commands
    daemon.clients.access.change(Access(operators=users(groups=(TEAM,))))
    assert kinds(talk(daemon, program(daemon, READER, (TEAM,)), ask)) == [{"ok": True, "message": "begun"}]
    assert error(talk(daemon, program(daemon, READER), ask))[0] == "not-permitted"
    code, text = error(talk(daemon, program(daemon, READER, (TEAM,)), frame(JOIN, b"zenjun.dir", handle=1)))
    assert code == "not-permitted", "the services' groups are not an operator's"


def turned_away(daemon: Daemon, uid: int) -> str:
    """The code that a new connection of this user is refused with."""
    theirs, ours = connected(uid)
    with theirs:
        daemon.clients.accept(ours, 0)
        theirs.setblocking(False)
        return str(json.loads(theirs.recv(4096)[8:])["code"])


@rule("G4", "G5", "G7")
def test_connections_of_a_user_are_bounded_and_two_are_kept_for_operators(daemon: Daemon) -> None:
    daemon.clients.access.change(Access(quota=Quota(connections=2)))
    held = [program(daemon, STRANGER), program(daemon, STRANGER)]
    assert turned_away(daemon, STRANGER) == "too-many-connections"
    held += [program(daemon, READER), *(program(daemon, 0) for _ in range(3))]
    daemon.clients.clients_max = 6
    assert turned_away(daemon, WRITER) == "busy"
    held += [program(daemon, 0), program(daemon, 0)]
    assert turned_away(daemon, 0) == "busy"
    held[0].sock.close()
    daemon.turn()
    daemon.clients.clients_max = 64
    program(daemon, STRANGER)
    assert daemon.clients.audit.refusals == {"too-many-connections": 1, "busy": 2}
    assert daemon.clients.refused == 3


@rule("G5")
def test_groups_of_a_user_are_bounded_over_all_its_programs(daemon: Daemon) -> None:
    daemon.clients.access.change(Access(quota=Quota(groups=3)))
    first, second, root = program(daemon, STRANGER), program(daemon, STRANGER), daemon.program("root")
    for handle in (1, 2):
        daemon.join(first, f"g{handle}", handle=handle)
    daemon.join(second, "g3")
    second.receive()
    code, text = error(talk(daemon, second, frame(JOIN, b"g4", handle=2)))
    assert code == "too-many-groups" and "hold 3 groups" in text
    for handle in range(1, 6):
        daemon.join(root, f"r{handle}", handle=handle)
    assert len(daemon.groups.names()) == 8, "root and the services are bound by the fixed limit alone"


def test_without_rules_everybody_may_do_what_they_could(daemon: Daemon) -> None:
    a, b = program(daemon, STRANGER), program(daemon, READER)
    daemon.join(a, "g", OPEN)
    daemon.join(b, "g")
    for each in (a, b):
        each.receive()
    talk(daemon, b, frame(SEND, b"x", handle=1))
    assert kinds(a.receive()) == [b"x"] and not daemon.clients.audit.refusals
    assert kinds(talk(daemon, a, frame(MEMBERS, b"g")))[0]["members"]


@rule("G5", "G7")
def test_memory_of_a_user_is_bounded_over_all_its_programs(daemon: Daemon) -> None:
    daemon.clients.access.change(Access(quota=Quota(queue_bytes=1 << 20, input_bytes=1 << 20)))
    daemon.clients.review()
    mine = [program(daemon, STRANGER) for _ in range(3)]
    others = [program(daemon, READER), daemon.program("root")]
    for p in mine + others:
        daemon.join(p, "g")
        p.receive()
    for _ in range(14):  # 14 * 60 kB for each of five, and nobody reads: more than 1 MiB for three, less for one
        daemon.core.deliver(group_id("g"), bytes(60_000), src=1)
    daemon.turn()
    ended = [p for p in mine if "too-many-bytes" in [f for f in kinds(p.receive()) if isinstance(f, str)]]
    assert ended and len(ended) < 3, "the programs that would need more, and no others"
    for p in others:  # other users, and root
        got = 0
        while got < 14:
            daemon.turn()
            messages = len(p.receive())
            assert messages, f"{got} of 14 have come, and no more do"
            got += messages
    assert daemon.clients.audit.refusals == {"too-many-bytes": len(ended)}


@rule("G5")
@pytest.mark.parametrize("most", [1 << 20, 0], ids=["", "no limit"])
def test_memory_of_all_users_together_is_bounded(daemon: Daemon, most: int) -> None:
    """Each user is within its own limit; together they are not within that of all. Without the limit all is held: harm."""
    daemon.clients.access.change(Access(quota=Quota(queue_bytes=1 << 20, queue_bytes_users=most)))
    daemon.clients.review()
    theirs = [program(daemon, uid) for uid in (READER, WRITER, STRANGER)]
    root = daemon.program("root")
    for p in [*theirs, root]:
        daemon.join(p, "g")
        p.receive()
    for _ in range(14):
        daemon.core.deliver(group_id("g"), bytes(60_000), src=1)
    daemon.turn()
    ended = daemon.clients.audit.refusals.get("too-many-bytes", 0)
    assert (0 < ended < 3) if most else not ended
    got = [0] * 4
    for _ in range(20):
        daemon.turn()
        got = [n + sum(isinstance(f, bytes) for f in kinds(p.receive())) for n, p in zip(got, [*theirs, root], strict=True)]
    assert got.count(14) == 4 - ended and got[3] == 14, "the others, and root, get all"


@rule("G5")
@pytest.mark.parametrize("most", [1 << 20, 0], ids=["", "no limit"])
def test_halves_of_messages_are_bounded(daemon: Daemon, most: int) -> None:
    """Each is within ``message_max``; together they are not within what a user may hold. Without the limit all are held: harm."""
    daemon.clients.access.change(Access(quota=Quota(input_bytes=most)))
    daemon.clients.review()
    half = frame(SEND, bytes(600_000), handle=1)[:-1]
    mine = [program(daemon, STRANGER) for _ in range(5)]
    other = program(daemon, READER)
    for p in [*mine, other]:
        daemon.join(p, "g")
        p.receive()
        with contextlib.suppress(BrokenPipeError):  # cut off in the middle
            for at in range(0, len(half), 50_000):
                p.send(half[at : at + 50_000])
                daemon.turn()
    codes = [f for p in mine for f in kinds(p.receive()) if isinstance(f, str)]
    assert set(codes) == ({"too-many-bytes"} if most else set()) and len(codes) < 5
    if not most:  # three times as much as the limit that the daemon keeps else
        for p in mine:
            p.send(b"\0")
        daemon.turn()
        assert sum(data == bytes(600_000) for _, _, data, _ in daemon.core.taken()) == 5
    other.send(b"\0")
    daemon.turn()
    assert any(data == bytes(600_000) for _, _, data, _ in daemon.core.taken()), "others' messages are taken"


@pytest.mark.parametrize("noticed", [True, False], ids=["", "KeepsThePlacesOfTheDead"])
def test_a_thousand_connections_that_end_take_no_places(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, noticed: bool) -> None:
    """Each says HELLO, or nothing, and ends. Where their places are not given back, the honest one is turned away: harm."""
    if not noticed:
        monkeypatch.setattr(daemon.clients, "_on_end", lambda connection, error, now: None)
    turned_away = 0
    for number in range(1000):
        theirs, ours = socket.socketpair()
        theirs.setblocking(False)
        daemon.clients.accept(ours, 0)
        if number % 2:
            with contextlib.suppress(BrokenPipeError):
                theirs.send(frame(1, b"ZENJ" + struct.pack("<HH", 1, 2) + b"hostile"))
        with contextlib.suppress(BlockingIOError):
            turned_away += b"busy" in theirs.recv(4096)
        theirs.close()
        daemon.turn()
    assert len(daemon.clients) == (0 if noticed else 66) and bool(turned_away) != noticed
    if noticed:
        daemon.join(daemon.program("honest"), "g")
        assert daemon.groups.members("g")
    else:
        with pytest.raises(ValueError, match="not enough values"):
            daemon.program("honest")


@pytest.mark.parametrize("most", [1 << 20, 1 << 30], ids=["", "no limit"])
def test_readers_that_do_not_read_hold_up_nobody_and_take_bounded_memory(double_library: tuple[Any, Any], most: int) -> None:
    """Members of a group who read nothing of it: at ``queue_bytes_max`` they are cut off. Where there is no such limit the daemon
    keeps everything for each of them: harm. Who reads gets all of it, whatever the others do."""
    daemon = Daemon(double_library, queue_bytes_max=most)
    daemon.open(5)
    size, count, readers = 100_000, 80, 16
    slow, honest = [daemon.program("slow") for _ in range(readers)], daemon.program("honest")
    for p in [*slow, honest]:
        daemon.join(p, "g")
        p.receive()
    before, got, largest = daemon.dp.memory(), 0, 0
    for _ in range(count):
        daemon.core.deliver(group_id("g"), bytes(size), src=1)
        daemon.turn()
        got += sum(isinstance(f, bytes) for f in kinds(honest.receive()))
        largest = max(largest, daemon.dp.memory() - before)
    while got < count and (more := sum(isinstance(f, bytes) for f in kinds(honest.receive()))):
        got += more
        daemon.turn()
    assert got == count, "who reads gets all"
    is_bounded = most == 1 << 20
    assert daemon.dp.counters()["slow_disconnects"] == (readers if is_bounded else 0)
    told = f"{largest} bytes for {readers} readers of {size * count}"
    assert largest < 3 * readers * most if is_bounded else largest > readers * size * count // 2, told
    daemon.bench.close()
