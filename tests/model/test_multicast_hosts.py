"""The daemon's part of groups that overlap, on an abstract data path (tests/model/multicast/hosts.py)."""

from __future__ import annotations

from collections.abc import Iterable

from zenjun.daemon.clientwire import SEND_TO, Frame, JoinFlag
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
