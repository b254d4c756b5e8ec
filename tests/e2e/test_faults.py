"""Stations that stop, die, come back, hear badly or not at all: what the others say and do; nothing is lost or swapped."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from zenjun.daemon.client import Event, Message, Undecided, View
from zenjun.tools.lab import Lab, Station

from .cluster import (
    Program,
    cluster,
    compare,
    exchange,
    in_parallel,
    log_of,
    payload,
    plan,
    process_alive,
    programs,
    reported,
    same_views,
    status,
    stays,
    wait_for,
)

pytestmark = pytest.mark.lab
FAST = {"cluster": {"heartbeat_ms": 50, "silent_timeout_ms": 400, "progress_timeout_ms": 1000}}
"""A failure is seen sooner than by default; the machine may be slow, so not by much."""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with cluster(3, options=FAST) as lab:
        yield lab


def blocked_on(station: Station) -> dict[int, str]:
    """Who delivery waits for, and why."""
    return {int(entry["station"]): str(entry["reason"]) for entry in status(station)["blocked"]}


def cli_status(station: Station) -> dict[str, Any]:
    """What the command line says."""
    argv = [sys.executable, "-m", "zenjun.tools.cli", "status", "--json"]
    done = station.run(argv, 20.0)
    if done.returncode != 0:
        argv = [sys.executable, "-c", "from zenjun.tools.cli import main; main()", "status", "--json"]
        done = station.run(argv, 20.0)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


# ---- pauses ----


def test_stopped_daemon_blocks_and_all_is_delivered_afterwards_case_149(lab: Lab) -> None:
    """SIGSTOP for longer than the silence timeout: the others name it (event, status, command line), nothing is delivered beyond
    it; after SIGCONT everything comes, at all stations, the stopped one included, in the same order."""
    rng = random.Random(1)
    third = lab.station(3)
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
            peer = status(station)["peers"][2]
            assert peer["state"] == "silent" and peer["heard_ms"] >= 400
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
        assert {status(s)["instance"] for s in lab.stations.values()} == {1}, "a pause is no restart"
        same_views(members, "g")


def test_short_pauses_are_not_even_noticed_case_9(lab: Lab) -> None:
    """0.8 of the silence timeout, while frames queue in the ring: on waking it reads them before it judges; nobody is blocked."""
    rng = random.Random(9)
    with programs(lab, {"g": "preack"}) as members:
        plans = [plan(m, 1000, rng, chunk=20) for m in members]

        def pause() -> None:
            for _ in range(4):
                lab.station(2).signal(signal.SIGSTOP)
                # The pause is the stimulus, not a wait: as long as 0.5 of the timeout, the rest is for a busy machine.
                threading.Event().wait(0.2)
                lab.station(2).signal(signal.SIGCONT)
                wait_for(lambda: status(lab.station(2))["state"] == "open", "awake")

        in_parallel([lambda: exchange(members, plans, 60), pause])
        assert " blocked: " not in log_of(lab.station(2)), "the sleeper blames nobody"


def test_all_stopped_in_turn_under_load(lab: Lab) -> None:
    """Each station sleeps beyond the timeout while everybody sends; whoever sends or sleeps, the order is one."""
    rng = random.Random(2)
    with programs(lab, {"g": "preack"}) as members:
        plans = [plan(m, 3000, rng, chunk=100, levels=("preack", "ack")) for m in members]

        def stop_each() -> None:
            for number in (1, 2, 3):
                station, other = lab.station(number), lab.station(number % 3 + 1)
                station.signal(signal.SIGSTOP)
                wait_for(lambda o=other, n=number: n in blocked_on(o), "it is missed")  # type: ignore[misc]
                station.signal(signal.SIGCONT)
                wait_for(lambda o=other: not blocked_on(o), "it is back")  # type: ignore[misc]

        in_parallel([lambda: exchange(members, plans, 60), stop_each])


# ---- deaths ----


def test_killed_daemon_comes_back_and_all_go_on(lab: Lab) -> None:
    """kill -9 under load, twice: blocked, then a new instance; clients are told, groups are joined again by the daemons, and
    everything delivered, before and after, is the same at the survivors."""
    rng = random.Random(3)
    with programs(lab, {"g": "preack", "h": "ordered"}, ids=[1, 2]) as members:
        for round_ in range(2):
            victim = lab.station(3)
            with programs(lab, {"g": "preack"}, ids=[3]) as (lost,):
                lost.groups["g"].send(b"from the victim %d" % round_)
                flood = threading.Thread(target=_send_until_reopened, args=(members[0], rng))
                flood.start()
                victim.signal(signal.SIGKILL)
                assert victim.daemon is not None and victim.daemon.wait(5) == -signal.SIGKILL
            wait_for(lambda: 3 in blocked_on(lab.station(2)), "its silence is reported")
            victim.start_daemon()
            flood.join(30)
            assert not flood.is_alive()
            lab.wait_open(20)
            instance = status(lab.station(1))["instance"]
            assert instance == round_ + 2
            with programs(lab, {"g": "preack"}, ids=[3]) as (new,):
                new.groups["g"].send(b"back %d" % round_, timeout=10)
                everybody = {(m.station, m.name) for m in new.connection.members("g")}
                assert everybody == {(1, "p1.0"), (2, "p2.0"), (3, "p3.0")}, "the groups were joined again by the daemons"
                for member in members:
                    event = member.read_event("g", "reopened") if round_ == 0 else None
                    assert event is None or event.members == (1, 2, 3)
                    _read_until(member, b"back %d" % round_)
        histories = [[(m.place, m.station, m.client, m.data) for m in member.messages("g")] for member in members]
        assert histories[0] == histories[1]
        assert len(members[0].events("reopened")) >= 2


def _send_until_reopened(member: Program, rng: random.Random) -> None:
    with contextlib.suppress(Undecided):
        for k in range(100_000):
            member.groups["g"].send(payload(member, k, 100, rng), timeout=30)


def _read_until(member: Program, data: bytes) -> None:
    while not any(m.data == data for m in member.messages("g")):
        member.read("g", 15)


def test_large_message_under_way_survives_a_new_instance(lab: Lab) -> None:
    """A message of many windows has gone out in part when a station dies: in the new instance it is sent from its beginning, and
    comes out once and whole, before what was sent after it."""
    big = random.Random(8).randbytes(4_000_000)
    with programs(lab, {"g": "preack"}, ids=[1, 2]) as members:
        victim = lab.station(3)
        victim.signal(signal.SIGKILL)
        assert victim.daemon is not None
        victim.daemon.wait(5)
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


def test_stop_notice_is_told_as_left(lab: Lab) -> None:
    """A daemon that ends in order says goodbye: the others need no timeout, and the reason is another one than silence."""
    with programs(lab, {"g": "preack"}, ids=[1]) as (member,):
        assert lab.station(3).stop_daemon() == 0
        event = member.read_event("g", "blocked")
        assert event.stations == ((3, "left"),)
        lab.station(3).start_daemon()
        assert member.read_event("g", "reopened", 15).members == (1, 2, 3)
        member.groups["g"].send(b"on", timeout=10)


# ---- networks that are cut ----


def test_one_way_cut_case_29(lab: Lab) -> None:
    """What 1 sends does not reach 2, all else does. Messages are relayed by 3 or delivery stops with 1 named: nothing in between,
    and no endless repair traffic; all is well again after the cut."""
    rng = random.Random(29)
    with programs(lab, {"g": "preack"}) as members:
        exchange(members, [plan(m, 50, rng) for m in members])
        lab.cut(1, 2)
        for member in members:
            member.groups["g"].send_many([payload(member, k, 100, rng) for k in range(50)], "sent")
        wait_for(lambda: blocked_on(lab.station(2)).get(1) == "silent", "station 2 names 1")
        before = {i: c["sent"] for i, c in lab.counters().items()}
        # The cluster works through the third station or waits; in either case the segment stays calm.
        stays(lambda: all(process_alive(s) for s in lab.stations.values()), "alive", 1.0)
        rate = {i: c["sent"] - before[i] for i, c in lab.counters().items()}
        assert all(count < 1000 for count in rate.values()), f"frames in a second: {rate}"
        lab.heal()
        sequences = [member.read_messages("g", 300, 20) for member in members]
        compare("g", sequences)
        wait_for(lambda: not any(blocked_on(s) for s in lab.stations.values()), "all clear")


def test_partition_and_heal_under_load_case_5(lab: Lab) -> None:
    """3 alone, 1 alone, all alone, while everybody sends: nobody delivers what the others cannot, and the sequences stay one."""
    rng = random.Random(5)
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

        in_parallel([lambda: exchange(members, plans, 60), cut])
        assert {status(s)["instance"] for s in lab.stations.values()} == {1}


def test_deaf_station_is_named() -> None:
    """A station that sends but receives nothing is not silent: it is named as deaf by those who wait for its acknowledgements."""
    with cluster(3, options=FAST) as lab, programs(lab, {"g": "preack"}) as members:
        lab.cut(1, 3)
        lab.cut(2, 3)
        members[0].groups["g"].send(b"can you hear me", "sent")
        wait_for(lambda: blocked_on(lab.station(1)) == {3: "deaf"}, "1 names 3 as deaf")
        assert set(blocked_on(lab.station(3))) == {1, 2}, "3 hears nobody"
        lab.heal()
        for member in members:
            assert member.read_messages("g", 1)[0].data == b"can you hear me"


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
        lab.wait_open(20)
        rng = random.Random(43)
        with programs(lab, {"g": "preack"}) as members:
            exchange(members, [plan(m, 300, rng) for m in members])
            lab.cut(2, 1)
            wait_for(lambda: blocked_on(lab.station(1)) == {2: "silent"}, "silence is seen in time")
            assert status(lab.station(1))["peers"][1]["heard_ms"] < 60_000
            lab.heal()
            exchange(members, [plan(m, 300, rng) for m in members])


def test_confirmed_message_reaches_all_who_go_on(lab: Lab) -> None:
    """What a sender was told to be at level preack ("every station has it") must come out at every station that lives on.

    Station 1 gets the message but not the confirmation of station 3, which then dies: 1 holds the message, 2 has confirmed and
    delivered it, and the new instance must not begin before 1 has delivered it too.
    """
    with programs(lab, {"g": "preack"}, ids=[1, 2]) as members:
        lab.cut(3, 1)
        # The second one has a later clock than anything 1 has heard from 3, so 1 cannot put it into order.
        for data in (b"first", b"confirmed"):
            members[1].groups["g"].send(data, "preack", timeout=10)
        assert members[1].read_messages("g", 2, 10)[1].data == b"confirmed"
        victim = lab.station(3)
        victim.signal(signal.SIGKILL)
        assert victim.daemon is not None
        victim.daemon.wait(5)
        lab.heal()
        victim.start_daemon()
        members[1].read_event("g", "reopened", 15)
        # Who is not in the group yet, in the new instance, does not get what is sent to it.
        wait_for(lambda: len(members[1].connection.members("g")) == 2, "both daemons have joined their programs again")
        members[1].groups["g"].send(b"end", timeout=20)
        for member in members:
            _read_until(member, b"end")
        compare("g", [m.messages("g") for m in members])


def test_views_of_the_instance_that_ends_come_before_reopened(lab: Lab) -> None:
    """The same for joins and leaves: a program that joins at station 2 while 1 cannot follow the order, and one that leaves, are
    seen by the program at station 1 as views between the same messages, with the groups as they were, before it is told of the
    new instance."""
    with programs(lab, {"g": "preack"}, ids=[1, 2]) as members, programs(lab, {"g": "preack"}, ids=[2]) as (leaver,):
        lab.cut(3, 1)
        leaver.groups["g"].leave()
        with programs(lab, {"g": "preack"}, ids=[2]) as (late,):
            late.groups["g"].send(b"from a new member", "preack", timeout=10)
            victim = lab.station(3)
            victim.signal(signal.SIGKILL)
            assert victim.daemon is not None
            victim.daemon.wait(5)
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
