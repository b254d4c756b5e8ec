"""Debian's corosync programs and libraries, unchanged, on three stations with stand-ins."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import pytest

from ..rules import rule
from .cluster import kill
from .corosync_common import DEADLINE_S, Member, StandIns, standins, until

pytestmark = [pytest.mark.lab, pytest.mark.slow]

JOIN, LEAVE, NODEDOWN, NODEUP, PROCDOWN = 1, 2, 3, 4, 5


def members(up: StandIns, *stations: int, group: str = "g") -> list[Member]:
    """A program at each station, all in one group."""
    found = [up.member(number, group) for number in stations]
    until(lambda: all(m.nodes() == list(stations) for m in found), f"{stations} in the group")
    return found


def got(found: list[Member], count: int) -> Callable[[], bool]:
    """Each of them has this many messages. All are read each time: one whose output nobody reads stops."""
    return lambda: min([len(m.messages()) for m in found]) >= count


def left(member: Member) -> list[tuple[int, int]]:
    """Node and reason of each process that has left, in order."""
    return [(address[0], address[2]) for _, gone, _ in member.changes() for address in gone]


def joined(member: Member) -> list[tuple[int, int]]:
    return [(address[0], address[2]) for _, _, come in member.changes() for address in come]


QUORUMTOOL = """Quorum provider:  corosync_votequorum
Nodes:            3
Node ID:          2
Ring ID:          1.N
Quorate:          Yes

Votequorum information
----------------------
Expected votes:   3
Highest expected: 3
Total votes:      3
Quorum:           2
Flags:            Quorate

Membership information
----------------------
    Nodeid      Votes Name
         1          1 node1
         2          1 node2 (local)
         3          1 node3
"""
CFGTOOL = """Local node ID 2, transport udpu
LINK ID 0
	addr	= 10.77.0.3
	status:
		nodeid:          1:	connected
		nodeid:          2:	localhost
		nodeid:          3:	connected
"""
NODES = """Local node ID 2, transport udpu
nodeid: 1 reachable
   LINK: 0  (10.77.0.1) enabled connected mtu: 1500

nodeid: 3 reachable
   LINK: 0  (10.77.0.3) enabled connected mtu: 1500

"""
"""What corosync's own programs print on corosync, but for the date, the ring's number and the MTU. That ``-s`` shows the address
of the last node is corosync's, for all transports but knet."""


KEYS = """nodelist.local_node_pos (u32)
nodelist.node.K.name (str)
nodelist.node.K.nodeid (u32)
nodelist.node.K.ring0_addr (str)
quorum.provider (str)
runtime.config.totem.consensus (u32)
runtime.config.totem.token (u32)
runtime.members.K.config_version (u64)
runtime.members.K.ip (str)
runtime.members.K.join_count (u32)
runtime.members.K.status (str)
runtime.votequorum.highest_node_id (u32)
runtime.votequorum.lowest_node_id (u32)
runtime.votequorum.this_node_id (u32)
runtime.votequorum.two_node (u8)
totem.cluster_name (str)
totem.transport (str)
totem.version (u32)
"""
"""What corosync-cmapctl lists on corosync 3.1.7, nodes and members by their number, but for: internal_configuration.service.
resources. runtime.blackbox. runtime.services. runtime.force_gather runtime.votequorum.ev_barrier totem.interface.0.bindnetaddr,
what runtime.config.totem. has of Totem, and logging."""
CPGTOOL = "Group Name\t       PID\t   Node ID\ng\n" + "".join(
    f"\t\t         P\t         {node} (10.77.0.{node})\n" for node in (1, 2, 3)
)
"""On corosync the members are in the order in which they came."""


def shape(listed: str) -> str:
    """Keys with their types, sorted."""
    keys = {re.sub(r"(nodelist\.node|runtime\.members)\.\d+", r"\1.K", line.partition(" = ")[0]) for line in listed.splitlines()}
    return "".join(f"{key}\n" for key in sorted(keys) if not key.startswith("internal_configuration.service."))


def plain(text: str) -> str:
    text = re.sub(r"(?s)^Quorum information\n-+\nDate:[^\n]*\n", "", text)
    return re.sub(r"(?m)[ \t]+$", "", re.sub(r"Ring ID:( +)1\.[0-9a-f]+", r"Ring ID:\g<1>1.N", text))


def test_corosyncs_tools_and_a_station_that_dies_and_comes_back() -> None:
    with standins(3) as up:
        assert plain(up.run(2, "corosync-quorumtool", "-s").stdout) == QUORUMTOOL
        assert plain(up.run(2, "corosync-cfgtool", "-s").stdout) == CFGTOOL
        assert plain(up.run(2, "corosync-cfgtool", "-n").stdout) == NODES
        listed = up.run(2, "corosync-cmapctl").stdout
        assert shape(listed) == KEYS
        keys = dict(line.split(" = ", 1) for line in listed.splitlines())
        assert keys["nodelist.local_node_pos (u32)"] == "1"
        assert keys["runtime.members.3.status (str)"] == "joined"
        first, second, third = members(up, 1, 2, 3)
        for member in (first, second, third):
            member.tell("send", "40", "300", f"of{member.station}-")
        until(got([first, second, third], 120), "120 messages each")
        assert first.messages() == second.messages() == third.messages()
        table = up.run(2, "corosync-cpgtool").stdout
        assert re.sub(r"\t +\d+\t( +\d \()", r"\t         P\t\1", table) == CPGTOOL
        up.kill(3)
        until(lambda: first.nodes() == second.nodes() == [1, 2], "the dead node's process has left")
        assert left(first) == left(second) == [(3, NODEDOWN)]
        up.together(1, 2)
        up.lab.station(3).start_daemon()
        up.start(3)
        up.together(1, 2, 3)
        again = up.member(3, "g")
        until(lambda: first.nodes() == again.nodes() == [1, 2, 3], "it is back")
        again.tell("send", "5", "20", "again-")
        until(got([first, second], 125), "its messages")
        until(got([again], 5), "its messages at itself")
        assert first.messages() == second.messages()
        assert again.messages() == first.messages()[120:]
        ring = [entry[1:] for entry in first.heard if entry[0] == "ring"][-1]
        assert ring == [entry[1:] for entry in again.heard if entry[0] == "ring"][-1]
        assert not any(entry[0] == "error" for m in (first, second, again) for entry in m.heard)


def test_a_node_that_is_cut_off_is_alone_and_comes_back() -> None:
    with standins(3) as up:
        first, second, third = members(up, 1, 2, 3)
        up.lab.partition([[1], [2, 3]])
        until(lambda: first.nodes() == [1], "alone")
        until(lambda: second.nodes() == third.nodes() == [2, 3], "without the node that is cut off")
        assert sorted(left(first)) == [(2, NODEDOWN), (3, NODEDOWN)]
        assert left(second) == left(third) == [(1, NODEDOWN)]
        assert "Quorate:          No" in up.run(1, "corosync-quorumtool", "-s").stdout
        assert "Quorate:          Yes" in up.run(2, "corosync-quorumtool", "-s").stdout
        first.tell("send", "3", "20", "alone-")
        until(got([first], 3), "its own messages, to itself")
        second.tell("send", "3", "20", "others-")
        until(got([second, third], 3), "the others' messages")
        up.lab.heal()
        up.together(1, 2, 3)
        until(lambda: all(m.nodes() == [1, 2, 3] for m in (first, second, third)), "together again")
        assert joined(first)[-2:] == [(2, NODEUP), (3, NODEUP)]
        assert joined(second)[-1:] == [(1, NODEUP)]
        assert [m[2] for m in second.messages()] == ["others-0", "others-1", "others-2"]
        for member in (first, second, third):
            member.tell("send", "10", "20", f"after{member.station}-")
        until(got([first, second, third], 33), "messages of all")
        assert first.messages()[3:] == second.messages()[3:] == third.messages()[3:]
        up.lab.partition([[1], [2], [3]])
        until(lambda: [m.nodes() for m in (first, second, third)] == [[1], [2], [3]], "each is alone")
        up.lab.heal()
        up.together(1, 2, 3)
        until(lambda: all(m.nodes() == [1, 2, 3] for m in (first, second, third)), "all together again")


@rule("Y21")
def test_processes_that_end_one_after_the_other() -> None:
    """A program, a stand-in, a zenjund: what is left goes on, and all come back."""
    with standins(3) as up:
        first, second, third = members(up, 1, 2, 3)
        first.tell("many", "64")
        until(lambda: [entry for entry in first.read() if entry[0] == "many"] == [["many", 64]], "64 programs at once")
        daemon = up.lab.station(3).daemon
        assert daemon is not None
        daemon.send_signal(signal.SIGSTOP)
        until(lambda: first.nodes() == second.nodes() == [1, 2], "without the node whose zenjund is stopped")
        until(lambda: third.nodes() == [3], "its own programs are alone: nothing tells them that they are not")
        assert "Quorate:          No" in up.run(3, "corosync-quorumtool", "-s").stdout
        daemon.send_signal(signal.SIGCONT)
        up.together(1, 2, 3)
        until(lambda: first.nodes() == second.nodes() == third.nodes() == [1, 2, 3], "it is back")
        assert left(first) == left(second) == [(3, NODEDOWN)] and set(left(third)) == {(1, NODEDOWN), (2, NODEDOWN)}
        third.process.kill()
        until(lambda: first.nodes() == second.nodes() == [1, 2], "the killed program has left")
        assert left(first)[1:] == left(second)[1:] == [(3, PROCDOWN)]
        second.tell("leave")
        until(lambda: first.nodes() == [1], "the second one has left")
        assert left(first)[-1] == (2, LEAVE)
        second.tell("join")
        until(lambda: first.nodes() == second.nodes() == [1, 2], "it has joined again")
        up.processes[3].kill()
        up.processes[3].wait(DEADLINE_S)
        up.together(1, 2)
        up.start(3)
        up.together(1, 2, 3)
        kill(up.lab.station(1))
        until(lambda: up.ring(1) == (1,), "without its zenjund node 1 is alone")
        until(lambda: first.nodes() == [1], "and its program is told")
        up.lab.station(1).start_daemon()
        up.together(1, 2, 3)
        until(lambda: first.nodes() == second.nodes() == [1, 2], "together again")
        up.processes[2].terminate()
        assert up.processes[2].wait(DEADLINE_S) == 0
        until(lambda: first.nodes() == [1], "an end in order is one as well")


def test_a_flood_is_complete_and_a_node_is_killed() -> None:
    """Also while frames are lost and a stand-in is stopped."""
    with standins(3) as up:
        up.lab.set_loss(0.01)
        found = members(up, 1, 2, 3)
        flood(found)
        up.lab.set_loss(0.0)
        stopped(up, *found)
        assert up.run(1, "corosync-cfgtool", "-k", "2").returncode == 0
        assert up.processes[2].wait(DEADLINE_S) == 8, "it is not to be started again"
        assert "killed by node 1" in up.log(2)
        up.together(1, 3)
        shown = up.run(1, "corosync-cfgtool", "-n").stdout.split("nodeid: ")
        assert [text.split()[:2] for text in shown[1:]] == [["3", "reachable"]], "it lists reachable nodes only"


def flood(found: list[Member]) -> None:
    """More than a handle may have under way, from two senders at once, and messages in parts between them."""
    first, second, third = found
    first.tell("send", "600", "8000", "a-")
    second.tell("send", "600", "60", "b-")
    third.tell("send", "2", "3000000", "large-")
    until(got([first, second, third], 1202), "all messages", 120.0)
    assert first.messages() == second.messages() == third.messages()
    for node, label, count in ((1, "a", 600), (2, "b", 600), (3, "large", 2)):
        mine = [text for sender, _, text, _ in first.messages() if sender == node]
        assert mine == [f"{label}-{k}" for k in range(count)]
    assert not any(entry[0] == "error" for m in (first, second, third) for entry in m.heard)


def stopped(up: StandIns, first: Member, second: Member, third: Member) -> None:
    """A stand-in that is stopped delays its own programs only, and has missed nothing."""
    count = len(first.messages())
    up.processes[3].send_signal(signal.SIGSTOP)
    for member in (first, second, third):
        member.tell("send", "50", "60", f"on{member.station}-")
    until(got([first, second], count + 100), "messages of the others")
    assert len(third.messages()) == count
    up.processes[3].send_signal(signal.SIGCONT)
    until(got([first, second, third], count + 150), "all messages")
    assert first.messages() == second.messages() == third.messages()


@rule("Y19")
def test_a_program_that_takes_nothing_sends_no_more() -> None:
    """Else what it gets back of its own messages would end its connection."""
    with standins(2) as up:
        (member,) = members(up, 1)
        member.tell("ahead", "1000", "200000")
        until(lambda: any(entry[0] in ("ahead", "error") for entry in member.read()), "the end of a flood")
        assert not [entry for entry in member.heard if entry[0] == "error"]
        ((sent, came),) = (entry[1:] for entry in member.heard if entry[0] == "ahead")
        assert 200 < sent == came < 1000
        member.tell("send", "1", "60", "more-")
        until(got([member], sent + 1), "one more")


@rule("Y21")
def test_a_death_under_load_is_no_hang() -> None:
    """While the dead one is a member, nothing is delivered and zenjund reads no more messages: it answers all the same. That
    takes several times as long as a zenjund that hangs is given: a stand-in that asked among its messages would go alone."""
    with standins(3, fail_timeout_ms=6000) as up:
        found = members(up, 1, 2)
        for member in found:
            member.tell("send", "40000", "30000", f"on{member.station}-")
        until(lambda: min(len(member.messages()) for member in found) > 100, "a flood")
        rings = {k: up.log(k).count(" info ring: ") for k in (1, 2)}
        up.kill(3)

        def is_over() -> bool:
            """All output is read meanwhile: a program whose output nobody reads stops."""
            for member in found:
                member.read()
            return all(up.log(k).count(" info ring: ") > count for k, count in rings.items())

        until(is_over, "a ring without the dead one")
        counts = [len(member.messages()) for member in found]
        until(lambda: all(len(m.messages()) > n + 100 for m, n in zip(found, counts, strict=True)), "the flood goes on")
        for k in (1, 2):
            assert "zenjund does not answer" not in up.log(k)


def test_two_nodes_that_lose_each_other_both_keep_quorum() -> None:
    with standins(2, quorum="two_node: 1") as up:
        assert "2Node Quorate WaitForAll" in up.run(1, "corosync-quorumtool", "-s").stdout
        up.lab.partition([[1], [2]])
        for node in (1, 2):
            until(lambda node=node: up.ring(node) == (node,), f"node {node} is alone")
            assert "Quorate:          Yes" in up.run(node, "corosync-quorumtool", "-s").stdout
        up.lab.heal()
        up.together(1, 2)
