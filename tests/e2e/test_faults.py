"""Stations that stop, die, come back, hear badly or not at all: what the others say and do; nothing is lost or swapped.

With quorum the others go on; where all stations are required everybody waits, and goes on with the same sequence. More of the
first kind, with five stations, is in ``test_membership.py``.
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from zenjun.daemon.client import ClusterView, Event, Message, View
from zenjun.tools.lab import Lab, Station

from ..timing import in_time
from .cluster import (
    Program,
    cluster,
    compare,
    core,
    exchange,
    in_parallel,
    instances_of,
    kill,
    log_of,
    payload,
    plan,
    programs,
    reported,
    same_views,
    status,
    stays,
    together,
    wait_for,
)

pytestmark = pytest.mark.lab
ZENJUN = [sys.executable, "-c", "from zenjun.tools.cli import main; main()"]
FAIL_MS = 1500
FAST = {"cluster": {"heartbeat_ms": 50, "fail_timeout_ms": FAIL_MS, "progress_timeout_ms": 2000}}
"""Only who is dead, stopped or cut off is missed: not a daemon that a busy machine does not run for half a second."""
ALL = {"cluster": {**FAST["cluster"], "quorum": 3, "give_up_timeout_ms": 60_000}}
"""Nobody can be done without: whoever is missing is waited for."""
ALL_OR_ANEW = {"cluster": {**FAST["cluster"], "quorum": 3, "give_up_timeout_ms": 500}}
"""The same, but only for a short time: then the instance is given up and everybody opens a new one."""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with cluster(3, options=FAST) as lab:
        yield lab


@pytest.fixture
def whole() -> Iterator[Lab]:
    with cluster(3, options=ALL) as lab:
        yield lab


@pytest.fixture
def anew() -> Iterator[Lab]:
    with cluster(3, options=ALL_OR_ANEW) as lab:
        yield lab


def blocked_on(station: Station) -> dict[int, str]:
    """Who is missing for a quorum, and why."""
    return {int(entry["station"]): str(entry["reason"]) for entry in status(station)["blocked"]}


def cli_status(station: Station) -> dict[str, Any]:
    """What the command line says."""
    done = station.run([*ZENJUN, "status", "--json"], 20.0)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


# ---- pauses ----


def test_stopped_daemon_blocks_and_all_is_delivered_afterwards_case_149(whole: Lab) -> None:
    """Where all are required, SIGSTOP for longer than the time-out: the others name it (event, status, command line), nothing is
    delivered beyond it; after SIGCONT everything comes, at all stations, the stopped one included, in the same order."""
    rng, lab = random.Random(1), whole
    third, instances = lab.station(3), instances_of(lab)
    with programs(lab, {"g": "preack", "h": "ordered"}) as members:
        exchange(members, [plan(m, 100, rng) for m in members])
        third.signal(signal.SIGSTOP)
        late = [[payload(m, k, 200, rng) for k in range(300)] for m in members[:2]]
        for member, messages in zip(members, late, strict=False):
            member.groups["g"].send_many(messages, "sent")
        for member, station in zip(members[:2], (lab.station(1), lab.station(2)), strict=True):
            event = member.read_event("g", "blocked")
            assert event.stations == ((3, "silent"),)
            assert blocked_on(station) == {3: "silent"} and status(station)["state"] == "blocked"
            assert re.search(rf"without station 3 \(silent, not heard for \d+ ms, fail_timeout_ms {FAIL_MS}\)", log_of(station))
            peer = status(station)["peers"][2]
            assert peer["state"] == "silent" and peer["heard_ms"] >= FAIL_MS
            assert cli_status(station)["blocked"][0]["station"] == 3
            assert status(station)["peers"][1 if station.id == 1 else 0]["state"] == "up"
        held = len(members[0].messages("g"))
        third.signal(signal.SIGCONT)
        for member in members[:2]:
            member.read_event("g", "unblocked")
        members[2].groups["g"].send(b"awake", timeout=10)
        total = 150 + 600 + 1
        sequences = [member.read_messages("g", total, 20) for member in members]
        compare("g", sequences)
        assert len(sequences[0]) == total and held < total - 1
        mine = {s: [m.data for m in sequences[2] if m.station == s] for s in (1, 2)}
        assert mine[1][-300:] == late[0] and mine[2][-300:] == late[1]
        for station in lab.stations.values():
            wait_for(lambda s=station: blocked_on(s) == {} and status(s)["state"] == "open", "all clear")  # type: ignore[misc]
        assert instances_of(lab) == instances, "a pause is no restart"
        same_views(members, "g")


def test_short_pauses_are_not_even_noticed_case_9() -> None:
    """Half the time-out, again and again while frames queue in the ring: on waking it reads them before it judges; nobody is
    removed, nobody is blamed."""
    rng = random.Random(9)
    timeout_s = 3.0
    options = {"cluster": {"fail_timeout_ms": int(timeout_s * 1000), "progress_timeout_ms": 6000}}
    with cluster(3, options=options) as lab, programs(lab, {"g": "preack"}) as members:
        instances = instances_of(lab)
        plans = [plan(m, 1000, rng, chunk=20) for m in members]

        def pause() -> None:
            for _ in range(4):
                lab.station(2).signal(signal.SIGSTOP)
                # The pause is the stimulus, not a wait; the other half of the time-out is for a busy machine.
                threading.Event().wait(timeout_s / 2)
                lab.station(2).signal(signal.SIGCONT)
                wait_for(lambda: status(lab.station(2))["state"] == "open", "awake")

        in_parallel([lambda: exchange(members, plans, 60), pause])
        assert instances_of(lab) == instances, "nobody was removed"
        assert " blocked: " not in log_of(lab.station(2)), "the sleeper blames nobody"


def test_all_stopped_in_turn_under_load(whole: Lab) -> None:
    """Each station sleeps beyond the time-out while everybody sends; whoever sends or sleeps, the order is one."""
    rng, lab = random.Random(2), whole
    instances = instances_of(lab)
    with programs(lab, {"g": "preack"}) as members:
        plans = [plan(m, 3000, rng, chunk=100, levels=("preack", "ack")) for m in members]

        def stop_each() -> None:
            for number in (1, 2, 3):
                station, other = lab.station(number), lab.station(number % 3 + 1)
                station.signal(signal.SIGSTOP)
                wait_for(lambda o=other, n=number: n in blocked_on(o), "it is missed")  # type: ignore[misc]
                station.signal(signal.SIGCONT)
                wait_for(lambda o=other: not blocked_on(o), "it is back")  # type: ignore[misc]

        in_parallel([lambda: exchange(members, plans, 90), stop_each])
        assert instances_of(lab) == instances


# ---- deaths ----


def test_killed_daemon_comes_back_and_all_go_on(lab: Lab) -> None:
    """kill -9 under load, twice: the others go on without it and with it again, in the same life. Their sends are all confirmed,
    what they get is the same, views of the cluster and of the group included, and the daemon that came back knows the groups."""
    rng = random.Random(3)
    first = together(lab)
    with programs(lab, {"g": "preack", "h": "ordered"}, ids=[1, 2]) as members:
        for round_ in range(2):
            victim = lab.station(3)
            with programs(lab, {"g": "preack"}, ids=[3]) as (lost,):
                lost.groups["g"].send(b"from the victim %d" % round_)
                over = threading.Event()
                flood = threading.Thread(target=_send_until, args=(members[0], rng, over))
                flood.start()
                try:
                    kill(victim)
                    together(lab, [1, 2])
                    victim.start_daemon()
                    assert together(lab) == first + 2 * round_ + 2, "one view without it, one with it"
                finally:
                    over.set()
                    flood.join(30)
                assert not flood.is_alive()
            with programs(lab, {"g": "preack"}, ids=[3]) as (new,):
                new.groups["g"].send(b"back %d" % round_, timeout=10)
                everybody = {(m.station, m.name) for m in new.connection.members("g")}
                assert everybody == {(1, "p1.0"), (2, "p2.0"), (3, "p3.0")}, "it was told of the groups"
                for member in members:
                    _read_until(member, b"back %d" % round_)
        end = next(m.place for m in members[0].messages("g") if m.data == b"back 1")
        shown = [
            [_brief(i) for i in m.items["g"] if isinstance(i, Message | View | ClusterView) and i.place <= end] for m in members
        ]
        # The first one joined the group earlier; from the second one's join on they have seen the same.
        assert shown[0][-len(shown[1]) :] == shown[1]
        changes = [(i.joined, i.left) for i in members[1].items["g"] if isinstance(i, ClusterView)]
        assert changes == [((), (3,)), ((3,), ())] * 2
        assert not any(m.events(name) for m in members for name in ("closed", "expelled", "reopened"))


def _brief(item: Message | View | ClusterView) -> tuple[object, ...]:
    """What must be the same everywhere."""
    if isinstance(item, Message):
        return item.place, item.station, item.client, item.data
    if isinstance(item, View):
        return item.place, item.members, item.joined, item.left, item.reason
    return item.place, item.present, item.joined, item.left


def _send_until(member: Program, rng: random.Random, over: threading.Event) -> None:
    """One after the other, each confirmed: a message without a known fate ends it with an error."""
    for k in range(100_000):
        member.groups["g"].send(payload(member, k, 100, rng), timeout=30)
        if over.is_set():
            return


def _read_until(member: Program, data: bytes) -> None:
    while not any(m.data == data for m in member.messages("g")):
        member.read("g", 15)


def test_large_message_goes_on_through_views(lab: Lab) -> None:
    """A message of many windows has gone out in part when a station dies, and still when it comes back: it comes out once and
    whole all the same, between those that were sent before and after it, and nothing is undecided."""
    big = random.Random(7).randbytes(16_000_000)
    with programs(lab, {"g": "preack"}, ids=[1, 2]) as members:
        victim = lab.station(3)
        lab.impair(rate_bit=16_000_000)  # it takes eight seconds at least, or as long as it has to
        members[0].groups["g"].send(b"before")
        sending = threading.Thread(target=members[0].send, args=([("g", "preack", [big, b"after"])],))
        sending.start()
        try:
            first = core(lab.station(1))["tx_data"]
            wait_for(lambda: core(lab.station(1))["tx_data"] > first + 100, "it is under way")
            kill(victim)
            together(lab, [1, 2])
            victim.start_daemon()
            together(lab)
            assert sending.is_alive(), "it is still under way"
        finally:
            lab.impair(rate_bit=0)
            sending.join(60)
        members[0].groups["g"].send(b"end", timeout=30)
        for member in members:
            _read_until(member, b"end")
        assert [m.data for m in members[1].messages("g")] == [b"before", big, b"after", b"end"]
        compare("g", [m.messages("g") for m in members])


def test_large_message_under_way_survives_a_new_instance(anew: Lab) -> None:
    """The same where the instance ends, for want of quorum: in the new one the message is sent from its beginning, and comes out
    once and whole, before what was sent after it."""
    big = random.Random(8).randbytes(4_000_000)
    lab = anew
    with programs(lab, {"g": "preack"}, ids=[1, 2]) as members:
        victim = lab.station(3)
        kill(victim)
        members[0].send([("g", "sent", [b"before", big, b"after"])])
        wait_for(lambda: status(lab.station(1))["window"]["in_flight"] > 50, "it is under way")
        victim.start_daemon()
        members[0].read_event("g", "reopened", 15)
        members[0].groups["g"].send(b"end", timeout=20)
        for member in members:
            while not member.messages("g") or member.messages("g")[-1].data != b"end":
                member.read("g", 10)
        # The first one was complete on its way: its fate is undecided. The large one was not, and is not lost.
        assert [m.data for m in members[1].messages("g") if m.data != b"before"] == [big, b"after", b"end"]
        compare("g", [m.messages("g") for m in members])


def test_who_says_goodbye_is_let_go_at_once() -> None:
    """A daemon that ends in order, or is told to leave, is not waited for: the view without it comes long before the time-out."""
    timeout_s = 60.0
    with cluster(3, options={"cluster": {"fail_timeout_ms": int(timeout_s * 1000), "give_up_timeout_ms": 60_000}}) as lab:
        with programs(lab, {"g": "preack"}, ids=[1]) as (member,):
            for by_hand in (False, True):
                begin = time.monotonic()
                if by_hand:
                    done = lab.station(3).run([*ZENJUN, "leave", "--yes"], 20)
                    assert done.returncode == 0, done.stderr
                    daemon = lab.station(3).daemon
                    assert daemon is not None and daemon.wait(60) == 0
                else:
                    assert lab.station(3).stop_daemon(10) == 0
                view = member.read_event("g", "view", 10)
                assert isinstance(view, ClusterView) and (view.left, view.members) == ((3,), (1, 2))
                in_time(time.monotonic() - begin < timeout_s, "the view without 3")
                member.groups["g"].send(b"on", timeout=10)
                lab.station(3).start_daemon()
                view = member.read_event("g", "view", 15)
                assert isinstance(view, ClusterView) and (view.joined, view.members) == ((3,), (1, 2, 3))
        assert "(silent)" not in log_of(lab.station(1))


# ---- networks that are cut ----


def test_one_way_cut_case_29(lab: Lab) -> None:
    """What 1 sends does not reach 2, all else does: 3 has it and passes it on. Everything is delivered during the cut, nobody is
    removed, with traffic and without, and there is no storm of repairs."""
    rng = random.Random(29)
    with programs(lab, {"g": "preack"}) as members:
        exchange(members, [plan(m, 50, rng) for m in members])
        lab.cut(1, 2)
        instances, begin = instances_of(lab), time.monotonic()
        before = sum(c["sent"] for c in lab.counters().values())
        for _ in range(3):
            exchange(members, [plan(m, 40, rng, chunk=20) for m in members], 30)
        sent = sum(c["sent"] for c in lab.counters().values()) - before
        took = time.monotonic() - begin
        in_time(sent < 20 * 360 + 1500 * took, f"{sent} frames for 360 messages in {took:.1f} s")
        before, begin = sum(c["sent"] for c in lab.counters().values()), time.monotonic()
        stays(lambda: instances_of(lab) == instances, "nobody is removed", 3.0)
        took = time.monotonic() - begin
        sent = sum(c["sent"] for c in lab.counters().values()) - before
        in_time(sent < took * 1500, f"{sent} frames in {took:.1f} s in which nobody sent anything")
        assert sum(c["cut"] for c in lab.counters().values()) > 10, "the cut was not real"
        lab.heal()
        exchange(members, [plan(m, 50, rng) for m in members])


def test_partition_and_heal_under_load_case_5(whole: Lab) -> None:
    """All are required. 3 alone, 1 alone, all alone, while everybody sends: no part delivers alone, the sequences stay one."""
    rng, lab = random.Random(5), whole
    instances = instances_of(lab)
    with programs(lab, {"g": "preack", "h": "ack"}) as members:
        plans = [plan(m, 2000, rng, levels=("preack", "ordered", "ack")) for m in members]

        def cut() -> None:
            for groups in ([[1, 2], [3]], [[1], [2, 3]], [[1], [2], [3]]):
                lab.partition(groups)
                wait_for(lambda: all(blocked_on(s) for s in lab.stations.values()), "all report it")
                positions = {i: status(s)["positions"]["preack"] for i, s in lab.stations.items()}
                stays(
                    lambda p=positions: {i: status(s)["positions"]["preack"] for i, s in lab.stations.items()} == p,  # type: ignore[misc]
                    "nothing moves in any part",
                    0.3,
                )
                lab.heal()
                wait_for(lambda: not any(blocked_on(s) for s in lab.stations.values()), "all clear")

        in_parallel([lambda: exchange(members, plans, 90), cut])
        assert instances_of(lab) == instances


def test_deaf_station_is_removed_and_comes_back(lab: Lab) -> None:
    """A station that sends but receives nothing is not silent: those who wait for its acknowledgements take it for deaf and go on
    without it. It notices that it hears nobody. It may be let in once, by those who hear it ask, but not again and again."""
    with programs(lab, {"g": "preack"}) as members:
        lab.cut(1, 3)
        lab.cut(2, 3)
        members[0].groups["g"].send(b"can you hear me", timeout=10)
        for member in members[:2]:
            _read_until(member, b"can you hear me")
        together(lab, [1, 2])
        assert status(lab.station(1))["peers"][2]["heard_ms"] < FAIL_MS, "it was heard all the time"
        wait_for(lambda: not status(lab.station(3))["quorum"]["have"], "3 hears nobody")
        instance = status(lab.station(1))["instance"]
        stays(lambda: status(lab.station(1))["instance"] <= instance + 2, "who cannot hear is not let in for ever", 4.0)
        lab.heal()
        together(lab)
        members[2].read_event("g", "reopened", 10)
        wait_for(lambda: len(members[0].connection.members("g")) == 3, "its program is back")
        exchange(members, [plan(m, 50, random.Random(3)) for m in members])
        assert members[1].messages("g")[0].data == b"can you hear me"


def test_mute_station_is_removed_and_comes_back(lab: Lab) -> None:
    """The other way round: it hears everything and nobody hears it."""
    with programs(lab, {"g": "preack"}) as members:
        lab.cut(3, 1)
        lab.cut(3, 2)
        together(lab, [1, 2])
        members[0].groups["g"].send(b"without it", timeout=10)
        for member in members[:2]:
            _read_until(member, b"without it")
        members[2].read_event("g", "expelled", 10)
        instance = status(lab.station(1))["instance"]
        stays(lambda: status(lab.station(1))["instance"] == instance, "nothing else happens", 1.0)
        lab.heal()
        together(lab)
        members[2].read_event("g", "reopened", 10)
        wait_for(lambda: len(members[0].connection.members("g")) == 3, "its program is back")
        exchange(members, [plan(m, 50, random.Random(4)) for m in members])


def test_hardly_anything_arrives_at_one_station_case_17(lab: Lab) -> None:
    """80 % of the frames to one station are lost for three seconds, while all send: it is kept, or removed and perhaps let in
    again, but not in an endless cycle; all see the same members under the same number, and afterwards all are there."""
    with programs(lab, {"g": "preack"}) as members:
        lab.set_loss(0.8, 3)
        end = threading.Event()
        chatter = [threading.Thread(target=_send_until, args=(m, random.Random(m.station), end)) for m in members[:2]]
        for thread in chatter:
            thread.start()
        threading.Event().wait(3.0)  # the loss is the stimulus
        lab.set_loss(0.0)
        end.set()
        for thread in chatter:
            thread.join(30)
        together(lab)
        wait_for(lambda: len(members[0].connection.members("g")) == 3, "all programs are in the group")
        members[0].groups["g"].send(b"end", timeout=10)
        for member in members:
            _read_until(member, b"end")
        seen: dict[int, set[tuple[int, ...]]] = {}
        for member in members:
            for item in member.items["g"]:
                if isinstance(item, ClusterView):
                    seen.setdefault(item.instance, set()).add(item.members)
        assert all(len(versions) == 1 for versions in seen.values()), seen
        assert len(seen) <= 12, f"a cycle: {seen}"
        compare("g", [m.messages("g") for m in members[:2]])


# ---- clocks ----


def test_clocks_far_apart_cases_23_43() -> None:
    """Monotonic clocks a day and an hour apart (time namespaces): no timer, order or protection against old frames depends on
    clocks that agree."""
    with Lab(3, options=FAST) as lab, reported(lab):
        offsets = {1: 0, 2: 3600, 3: 86_400}
        for number, offset in offsets.items():
            station = lab.station(number)
            station.write_config()
            argv = [sys.executable, "-m", "zenjun.daemon", "--config", str(station.config_path)]
            shift = ["unshare", "-T", "--monotonic", str(offset), "--boottime", str(offset), "--fork", "--kill-child", "--"]
            if subprocess.run([*shift, "true"], capture_output=True, timeout=10, check=False).returncode:
                pytest.skip("the kernel has no time namespaces")
            station.start_daemon(argv=[*shift, *argv])
        lab.wait_open(90)
        rng = random.Random(43)
        with programs(lab, {"g": "preack"}) as members:
            exchange(members, [plan(m, 300, rng) for m in members])
            instance = status(lab.station(1))["instance"]
            begin = time.monotonic()
            lab.partition([[1, 2], [3]])
            together(lab, [1, 2])
            assert time.monotonic() - begin >= 0.75 * FAIL_MS / 1000, "the time-out has hardly begun"
            assert status(lab.station(1))["peers"][2]["heard_ms"] < 60_000
            lab.heal()
            assert together(lab) >= instance + 2
            members[2].read_event("g", "reopened", 10)
            wait_for(lambda: len(members[0].connection.members("g")) == 3, "its program is back")
            exchange(members, [plan(m, 300, rng) for m in members])


@pytest.mark.parametrize("options", [FAST, ALL_OR_ANEW], ids=["removed", "reopened"])
def test_confirmed_message_reaches_all_who_go_on(options: dict[str, dict[str, int]]) -> None:
    """What a sender was told to be at level preack ("every station has it") must come out at every station that lives on.

    Station 1 gets the message but not the confirmation of station 3, which then dies: 1 holds the message, 2 has confirmed and
    delivered it. The others go on without 3, or, where all are required, in a new instance: not before 1 has delivered it too.
    """
    with cluster(3, options=options) as lab, programs(lab, {"g": "preack"}, ids=[1, 2]) as members:
        lab.cut(3, 1)
        # The second one has a later clock than anything 1 has heard from 3, so 1 cannot put it into order.
        for data in (b"first", b"confirmed"):
            members[1].groups["g"].send(data, "preack", timeout=10)
        assert members[1].read_messages("g", 2, 10)[1].data == b"confirmed"
        victim = lab.station(3)
        kill(victim)
        lab.heal()
        victim.start_daemon()
        together(lab)
        if options is ALL_OR_ANEW:
            members[1].read_event("g", "reopened", 15)
        # Who is not in the group yet, in the new instance, does not get what is sent to it.
        wait_for(lambda: len(members[1].connection.members("g")) == 2, "both programs are in the group")
        members[1].groups["g"].send(b"end", timeout=20)
        for member in members:
            _read_until(member, b"end")
        compare("g", [m.messages("g") for m in members])
        assert all(bool(m.events("reopened")) == (options is ALL_OR_ANEW) for m in members)


def test_views_of_the_instance_that_ends_come_before_reopened(anew: Lab) -> None:
    """The same for joins and leaves: a program that joins at station 2 while 1 cannot follow the order, and one that leaves, are
    seen by the program at station 1 as views between the same messages, with the groups as they were, before it is told of the
    new instance."""
    lab = anew
    with programs(lab, {"g": "preack"}, ids=[1, 2]) as members, programs(lab, {"g": "preack"}, ids=[2]) as (leaver,):
        lab.cut(3, 1)
        leaver.groups["g"].leave()
        with programs(lab, {"g": "preack"}, ids=[2]) as (late,):
            late.groups["g"].send(b"from a new member", "preack", timeout=10)
            victim = lab.station(3)
            kill(victim)
            lab.heal()
            victim.start_daemon()
            members[0].read_event("g", "reopened", 15)
            members[1].read_event("g", "reopened", 15)
            shown = [_until_reopened(member) for member in members]
            assert shown[0][-3:] == [("leave", 2), ("join", 3), b"from a new member"]
            assert shown[0][-3:] == shown[1][-3:]


def _until_reopened(member: Program) -> list[object]:
    """Views, as reason and number of members, and messages of the first instance."""
    items = member.items["g"]
    end = next(k for k, item in enumerate(items) if isinstance(item, Event) and item.name == "reopened")
    return [(i.reason, len(i.members)) if isinstance(i, View) else i.data for i in items[:end] if isinstance(i, View | Message)]
