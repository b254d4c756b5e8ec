"""The daemon's part of groups that overlap, on an abstract data path (tests/model/multicast/hosts.py)."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

import pytest
from zenjun.daemon.clientwire import SEND_TO, Frame, JoinFlag
from zenjun.daemon.multicast import MORE
from zenjun.proto.multicast.codec import decode, encode
from zenjun.proto.multicast.records import Decide, Report
from zenjun.proto.multicast.tables import ORDERS
from zenjun.proto.wire import Ordering

from ..sim.history_asserts import assert_holds
from .multicast import hostworld
from .multicast.hosts import Program
from .multicast.hostworld import MS, HostWorld, Plan

SEEDS = 40


def test_seeds_of_the_daemons_part() -> None:
    """Joins, leaves, programs that end, stations that stop and come back, alone and together, instances that end: nothing raises,
    nothing stays behind, all stations have one order."""
    assert_holds(hostworld.simulate, range(SEEDS))


def test_a_station_that_is_left_alone_before_it_takes_part_keeps_no_views() -> None:
    """It was admitted, and the others, whose programs had groups, are gone before the groups are known to it."""
    assert hostworld.simulate(29821361158) is None


class Few(HostWorld):
    """Stations in which only the test does something."""

    def __init__(self, stations: int = 2) -> None:
        super().__init__(Plan(0, stations=stations, groups=("token",)))
        for station in range(1, stations + 1):
            self.boot(station)
            self.members[station] = 1
        self.instance = 1
        for d in self.living():
            d.open(1, self.vector(), joined=False)

    def settled(self) -> None:
        self.settle()
        self.at_end()

    def put_join(self, p: Program, handle: int, group: str, order: Ordering = Ordering.TOKEN, flags: int = 0) -> None:
        p.names[handle] = group
        d = next(d for d in self.daemons.values() if d.programs.get(p.connection.slot) is p)
        d.put(p, Frame.JOIN, flags | JoinFlag.OPEN, handle, bytes([order, 0, 0, 0]) + group.encode())

    def put_send_to(self, p: Program, handles: Iterable[int], content: bytes) -> None:
        self.sent.add(content)
        numbers = list(handles)
        body = SEND_TO.struct.pack(len(numbers)) + b"".join(h.to_bytes(2, "little") for h in numbers) + content
        d = next(d for d in self.daemons.values() if d.programs.get(p.connection.slot) is p)
        d.put(p, Frame.SEND_TO, 1, numbers[0], body)


def contents(p: Program) -> list[bytes]:
    return [content for _, _, content in p.got]


def test_a_message_right_behind_a_join_waits_for_its_place() -> None:
    run = Few()
    p = run.daemons[1].connect()
    run.put_join(p, 1, "g")
    run.put_join(p, 2, "h")
    run.put_send_to(p, [1, 2], b"first")
    run.settled()
    assert contents(p) == [b"first"] and p.done == {1: 1}


def test_a_large_message_waits_for_what_is_under_way_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones of another program leave too little room all the time: those given after it go after it."""
    monkeypatch.setattr("zenjun.daemon.multicast.MESSAGE_MAX", 100)
    run = Few()
    p, q = run.daemons[1].connect(), run.daemons[1].connect()
    for program in (p, q, run.daemons[2].connect()):
        run.put_join(program, 1, "g")
    run.settled()
    for k in range(3):
        run.put_send_to(p, [1], b"before %d " % k + bytes(20))
    run.put_send_to(q, [1], b"large" + bytes(95))
    run.run_until(run.now + 1)
    for k in range(60):
        run.put_send_to(p, [1], b"after %d " % k)
        run.run_until(run.now + MS // 20)
    run.settled()
    assert [c.split()[0].rstrip(b"\0") for c in contents(q)] == [b"before"] * 3 + [b"large"] + [b"after"] * 60


def test_who_ends_while_its_large_message_waits_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zenjun.daemon.multicast.MESSAGE_MAX", 100)
    run = Few()
    p, q = run.daemons[1].connect(), run.daemons[1].connect()
    for program in (p, q, run.daemons[2].connect()):
        run.put_join(program, 1, "g")
    run.settled()
    run.put_send_to(p, [1], b"before" + bytes(20))
    run.put_send_to(q, [1], b"large" + bytes(95))
    run.put_send_to(p, [1], b"after" + bytes(20))
    run.daemons[1].end(q)
    run.settled()
    assert [c.rstrip(b"\0") for c in contents(p) if not c.startswith(b"large")] == [b"before", b"after"]


def test_a_large_message_holds_up_nobody_whom_it_does_not_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for one to a station that has stopped; others send to another group meanwhile."""
    monkeypatch.setattr("zenjun.daemon.multicast.MESSAGE_MAX", 100)
    run = Few(3)
    p, q, r = (run.daemons[1].connect() for _ in range(3))
    for program, group in ((p, "g"), (q, "g"), (r, "h"), (run.daemons[2].connect(), "g"), (run.daemons[3].connect(), "h")):
        run.put_join(program, 1, group)
    run.settled()
    run.put_send_to(p, [1], b"before" + bytes(20))
    run.put_send_to(q, [1], b"large" + bytes(95))
    run.put_send_to(r, [1], b"other" + bytes(20))
    run.run_until(run.now + 1)
    assert q.held and not r.held, "the other one has gone"
    run.settled()
    assert [c.rstrip(b"\0") for c in contents(p)] == [b"before", b"large"] and len(contents(r)) == 1


def test_a_message_that_is_too_large_is_not_sent_though_its_program_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for its join, and would have been refused after that. No link could carry it."""
    monkeypatch.setattr("zenjun.daemon.multicast.MESSAGE_MAX", 100)
    run = Few()
    p, q = run.daemons[1].connect(), run.daemons[2].connect()
    run.put_join(q, 1, "g")
    run.settled()
    run.put_join(p, 1, "g")
    run.put_send_to(p, [1], b"too large" + bytes(100))
    run.run_until(run.now + 1)
    assert p.held and not p.errors
    run.daemons[1].end(p)
    run.put_send_to(q, [1], b"later")
    run.settled()
    assert contents(q) == [b"later"]


def test_who_is_refused_while_its_large_message_waits_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its right to send is taken away meanwhile."""
    monkeypatch.setattr("zenjun.daemon.multicast.MESSAGE_MAX", 100)
    run = Few()
    first, p, q = (run.daemons[1].connect() for _ in range(3))
    for program in (first, p, q, run.daemons[2].connect()):
        run.put_join(program, 1, "g")
    run.settled()
    host = run.daemons[1].multicast
    judge, refused = host.judge, False
    monkeypatch.setattr(
        host, "judge", lambda m: ("not-allowed", "no right") if refused and m.connection is q.connection else judge(m)
    )
    run.put_send_to(p, [1], b"before" + bytes(20))
    run.run_until(run.now + 1)
    run.put_send_to(q, [1], b"large" + bytes(95))
    run.run_until(run.now + 1)
    run.put_send_to(first, [1], b"first" + bytes(20))
    run.put_send_to(p, [1], b"after" + bytes(20))
    run.run_until(run.now + 1)
    assert q.held and first.held, "they wait for the large one"
    refused = True
    run.settled()
    assert q.errors == ["not-allowed"] and not q.held
    assert sorted(c.rstrip(b"\0") for c in contents(p)) == [b"after", b"before", b"first"]


def test_a_message_that_waits_goes_to_the_next_instance() -> None:
    """It waits for a quorum when the instance ends: programs are in their groups again before it is sent."""
    run = Few()
    p, q = run.daemons[1].connect(), run.daemons[2].connect()
    run.put_join(p, 1, "g")
    run.put_join(q, 1, "g")
    run.settled()
    run.daemons[1].standing.quorum = False
    run.put_send_to(p, [1], b"later")
    run.run_until(run.now + 10 * MS)
    run.reopen()
    run.settled()
    assert contents(p) == [b"later"]


def test_a_group_that_has_another_order_when_a_message_to_it_is_sent() -> None:
    """While it waits somebody else makes one of its groups, of order total: it is refused, nothing of it is sent."""
    run = Few()
    p, q = run.daemons[1].connect(), run.daemons[2].connect()
    run.put_join(p, 1, "g")
    run.put_join(p, 2, "new", flags=JoinFlag.SEND_ONLY)
    run.settled()
    run.daemons[1].standing.quorum = False
    run.put_send_to(p, [1, 2], b"mixed")
    run.put_join(q, 1, "new", Ordering.TOTAL)
    run.run_until(run.now + 50 * MS)
    run.daemons[1].standing.quorum = True
    run.daemons[1].multicast.on_quorum()
    run.settled()
    assert p.errors == ["order-mismatch"] and not contents(p) and not p.held


def test_a_join_that_is_refused_ends_what_waits_for_it() -> None:
    run = Few()
    p, q = run.daemons[1].connect(), run.daemons[2].connect()
    run.put_join(q, 1, "g", Ordering.ABCAST)
    run.settled()
    run.put_join(p, 1, "g", Ordering.TOKEN)
    run.put_send_to(p, [1], b"lost")
    run.settled()
    assert p.errors == ["order-mismatch", "bad-handle"] and not contents(q) and not p.held


@pytest.mark.parametrize("refused", [True, False])
def test_the_message_of_a_program_that_has_gone_waits_for_its_join(refused: bool) -> None:
    """It goes on if the join comes to its place, and reaches nobody if that is refused."""
    run = Few()
    p, q = run.daemons[1].connect(), run.daemons[2].connect()
    run.put_join(q, 1, "g", Ordering.ABCAST if refused else Ordering.TOKEN)
    run.settled()
    run.put_join(p, 1, "g", Ordering.TOKEN)
    run.put_send_to(p, [1], b"last words")
    run.run_until(run.now + 1)
    assert p.held and not p.errors
    run.daemons[1].end(p)
    assert run.daemons[1].multicast._outgoing, "it does not go before its join"
    run.settled()
    assert contents(q) == ([] if refused else [b"last words"])


def test_a_roster_that_changes() -> None:
    """A station is added, and one that was there is removed; each time the cluster opens anew. All that are left are in their
    groups again, with the links of the new configuration."""
    run = Few(2)
    p, q = run.daemons[1].connect(), run.daemons[2].connect()
    for program in (p, q):
        run.put_join(program, 1, "g")
    run.settled()
    run.put_send_to(p, [1], b"two")
    run.settled()
    run.stations = 3
    run.boot(3)
    r = run.daemons[3].connect()
    for d in run.daemons.values():
        d.multicast.on_configuration(run.config(d.station))
    run.reopen()
    run.put_join(r, 1, "g")
    run.settled()
    for k, program in enumerate((p, q, r)):
        run.put_send_to(program, [1], b"three %d" % k)
    run.settled()
    assert sorted(contents(r)) == [b"three 0", b"three 1", b"three 2"] and contents(p)[1:] == contents(q)[1:] == contents(r)
    run.daemons[3].alive = False
    run.stations = 2
    for d in run.living():
        d.multicast.on_configuration(replace(run.config(d.station), window_frames=8))
    run.reopen()
    run.put_send_to(q, [1], b"two again")
    run.settled()
    assert contents(p)[-1] == contents(q)[-1] == b"two again"
    links = run.daemons[1].multicast.links
    assert links is not None and set(links.pairs) == {2} and links.config.window_frames == 8 * MORE


def test_two_stations_that_are_admitted_together_take_part() -> None:
    """A group is in use; two come at the same time, so that one STATE is for both."""
    run = Few(3)
    p = run.daemons[1].connect()
    run.put_join(p, 1, "g")
    run.settled()
    for station in (2, 3):
        run.crash(run.daemons[station])
    run.healed = True
    run.settled()
    for station in (2, 3):
        run.restart(station)
    run.settled()


def test_who_is_admitted_when_the_last_program_has_left_takes_part_at_once() -> None:
    run = Few(3)
    p = run.daemons[1].connect()
    run.put_join(p, 1, "g")
    run.settled()
    run.healed = True
    run.crash(run.daemons[3])
    run.settled()
    run.restart(3)
    run.run_until(run.now + MS)
    run.daemons[1].end(p)
    run.settled()
    run.crash(run.daemons[2])
    run.settled()
    run.restart(2)
    run.settled()


def test_places_where_numbers_begin_anew() -> None:
    """The place of a message has 16 bits of its number; messages that share a time keep their order there."""
    run = Few()
    p, q = run.daemons[1].connect(), run.daemons[2].connect()
    run.put_join(p, 1, "g")
    run.put_join(q, 1, "g")
    run.settled()
    machine = run.daemons[1].multicast.member.machine
    assert machine is not None
    machine.renumber(0xFFFD)
    for k in range(6):
        run.put_send_to(p, [1], b"%d" % k)
    run.settled()
    assert contents(q) == contents(p) == [b"%d" % k for k in range(6)]
    machine.renumber(2**32 - 2)
    for k in range(6, 8):
        run.put_send_to(p, [1], b"%d" % k)
    run.settle()
    assert contents(q)[6:] == [b"6"] and p.held, "one number is left"


def _items(what: object, seen: set[int]) -> int:
    """Items in all containers that are reached from an object of the orders."""
    if id(what) in seen or isinstance(what, (str, bytes, int, float, type)) or callable(what):
        return 0
    seen.add(id(what))
    if isinstance(what, dict):
        return len(what) + sum(_items(v, seen) for v in what.values())
    if isinstance(what, (list, tuple, set, frozenset, deque)):
        return len(what) + sum(_items(v, seen) for v in what)
    if type(what).__module__.startswith("zenjun.") and hasattr(what, "__dict__"):
        return sum(_items(v, seen) for v in vars(what).values())
    return 0


def test_programs_and_groups_that_are_gone_leave_nothing() -> None:
    """Programs come, join groups of new names, send, and end: what the daemon keeps does not grow with their number."""
    run = Few(3)
    anchor = run.daemons[2].connect()
    run.put_join(anchor, 1, "anchor")

    def rounds(first: int, count: int) -> int:
        for k in range(first, first + count):
            p = run.daemons[1 + k % 3].connect()
            run.put_join(p, 1, f"group{k}")
            run.put_join(p, 2, "anchor", flags=JoinFlag.SEND_ONLY)
            run.put_send_to(p, [1, 2], b"%d" % k)
            run.settle()
            run.daemons[1 + k % 3].end(p)
            run.settle()
        hosts = [run.daemons[z].multicast for z in (1, 2, 3)]
        return sum(_items(h.member.machine, set()) + _items([h._receivers, h._changes], set()) for h in hosts)

    few = rounds(0, 12)
    assert rounds(12, 36) <= few + 60, "36 more programs and groups"
    run.settled()


def test_records_that_contradict_the_tables_are_dropped() -> None:
    """Reports of who is no proposer or of messages that nobody sends, decisions of who decides nothing, times beyond all, records
    twice: nothing raises, nothing is delivered twice, memory is bounded, and the group goes on."""
    run = Few(3)
    programs = [run.daemons[z].connect() for z in (1, 2, 3)]
    for p in programs:
        run.put_join(p, 1, "g")
    run.settled()
    chance = random.Random(1)
    for victim in (1, 3):
        machine = run.daemons[victim].multicast.member.machine
        assert machine is not None
        era = machine.era.number
        for _ in range(3_000):
            kind = chance.choice((Report, Decide))
            origin, number, count = chance.randint(0, 5), chance.randint(1, 9999), chance.choice((1, 3, 65_535))
            record = kind(era, chance.choice(ORDERS), origin, number, count, chance.randint(0, 99))
            if isinstance(record, Report) or victim == 1:
                machine.on_pdus(run.now, [(2, [record])])
        assert machine.n_reports <= 2 * machine.window * 3
    assert decode(encode(Report(era, "token", 1, 1, 1, 2**63)), 2, 1) is None
    for k in range(5):
        run.put_send_to(programs[k % 3], [1], b"%d" % k)
    run.settled()
    assert len(contents(programs[0])) == 5


def test_without_a_quorum_nothing_is_sent_and_nobody_is_accused() -> None:
    run = Few()
    p, q = run.daemons[1].connect(), run.daemons[2].connect()
    run.put_join(p, 1, "g")
    run.put_join(q, 1, "g")
    run.settled()
    two = run.daemons[2]
    two.standing.quorum = False
    run.put_send_to(p, [1], b"kept")
    run.settle()
    assert not contents(q) and two.multicast.deadline > 1 << 62 and two.multicast._accepted
    two.standing.quorum = True
    two.multicast.on_quorum()
    two.after()
    run.settled()
    assert contents(q) == contents(p) == [b"kept"]
