"""A running cluster: stopping in order, pauses, blocking, opening anew, and what clients are told meanwhile."""

from __future__ import annotations

import contextlib
import re
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from zenjun.daemon.client import Blocked, ClusterView, DaemonClosing, Event, Fenced, Message, Timeout, Undecided, View
from zenjun.daemon.client.sync import SyncGroup
from zenjun.daemon.clientwire import VERSION
from zenjun.tools.lab import Lab, Station

from ..timing import in_time
from .cluster import PATIENT, cluster, kill, members_of, together
from .daemon_common import RawClient, adopt, log, logs, program, state, status, wait_for

pytestmark = pytest.mark.lab
STOP_S = 10.0
"""Two seconds for the daemon, the rest for a loaded machine."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Lab]:
    """Three stations that tests leave as they found them: open."""
    with Lab(3, options=PATIENT) as lab:
        lab.start_daemons()
        lab.wait_open()
        yield lab


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(3, options=PATIENT) as lab:
        lab.start_daemons()
        lab.wait_open()
        yield lab


def read_until(group: SyncGroup, last: bytes, timeout_s: float = 60.0) -> list[Message | View | Event]:
    """Everything up to and with the message ``last``."""
    out: list[Message | View | Event] = []
    deadline = time.monotonic() + timeout_s
    while not any(isinstance(item, Message) and item.data == last for item in out):
        out += group.recv_items(max(0.01, deadline - time.monotonic()))
    return out


def event_of(group: SyncGroup, name: str, timeout_s: float = 60.0) -> Event:
    """The next event of this name; what comes before it is dropped."""
    deadline = time.monotonic() + timeout_s
    while True:
        for item in group.recv_items(max(0.01, deadline - time.monotonic())):
            if isinstance(item, Event) and item.name == name:
                return item


def test_everybody_sees_the_same_views_at_the_same_place(shared: Lab) -> None:
    watchers = [program(s, f"watch{s.id}") for s in shared.stations.values()]
    groups = [w.join("views") for w in watchers]
    order: list[list[object]] = [[] for _ in groups]

    def visit(number: int) -> None:
        for round_ in range(5):
            with program(shared.station(number), f"guest{number}") as guest:
                group = guest.join("views", receive=False)
                group.send(b"%d-%d" % (number, round_))
                if round_ % 2:
                    group.leave()

    guests = [threading.Thread(target=visit, args=(n,)) for n in (1, 2, 3)]
    for guest in guests:
        guest.start()
    for guest in guests:
        guest.join(30)
    groups[0].send(b"end")
    for group, seen in zip(groups, order, strict=True):
        for item in read_until(group, b"end"):
            if isinstance(item, Message):
                seen.append((item.place, item.data))
            elif isinstance(item, View):
                seen.append((item.place, item.members, item.joined, item.left, item.reason))
    third = order[2]  # joined last, so the others' sequences end with its
    assert [o[-len(third) :] for o in order[:2]] == [third, third], logs(shared)
    reasons = [entry[-1] for entry in third if len(entry) == 5]  # type: ignore[arg-type, index]
    assert reasons.count("join") >= 15 and reasons.count("leave") >= 15
    for watcher in watchers:
        watcher.close()


def test_death_of_a_program_is_a_view_everywhere(shared: Lab) -> None:
    with program(shared.station(1)) as one, program(shared.station(2)) as two:
        groups = [one.join("death"), two.join("death")]
        with RawClient(shared.station(3).socket_path) as victim:
            victim.put(2, 1, 5, b"death")
            for group in groups:
                wait_for(lambda g=group: any(m.name == "raw" for m in _latest(g).members), "it is in")  # type: ignore[misc]
        for group in groups:
            wait_for(lambda g=group: _latest(g).reason == "death", "it is out")  # type: ignore[misc]
            view = _latest(group)
            assert [m.name for m in view.left] == ["raw"] and [m[0] for m in view.members] == [1, 2]


def _latest(group: SyncGroup) -> View:
    """The view after everything that has come by now."""
    with contextlib.suppress(Timeout):
        group.recv_items(0.01)
    assert group.view is not None
    return group.view


def test_leaver_gets_the_view_without_itself_last(shared: Lab) -> None:
    with RawClient(shared.station(1).socket_path) as client:
        client.put(2, 1, 7, b"leaving")
        client.put(4, 0, 7, b"mine")
        client.put(3, 0, 7)
        frames: list[tuple[int, int, int, bytes]] = []
        while not frames or frames[-1][0] != 67 or len(frames) < 4:
            frame = client.get()
            assert frame is not None
            frames.append(frame)
        assert [f[0] for f in frames] == [65, 67, 66, 67]
        client.put(2, 1, 7, b"leaving")
        again = client.get()
        assert again is not None and again[0] == 67, "the handle and the group are free again"


def test_bye_gets_final_counts(shared: Lab) -> None:
    with RawClient(shared.station(2).socket_path) as client:
        client.put(2, 1, 1, b"bye")
        for i in range(50):
            client.put(4, 0, 1, b"%d" % i)
        client.put(6)
        frames = client.wait_end()
    assert frames[-1][0] == 69 and frames[-1][3] == (50).to_bytes(8, "little") * 3


def test_misuse_gets_an_error_and_at_worst_costs_the_connection(shared: Lab) -> None:
    path = shared.station(1).socket_path
    fatal: dict[str, Callable[[RawClient], None]] = {
        "garbage": lambda c: c.socket.sendall(b"\xff" * 64),
        "unknown type": lambda c: c.put(99),
        "two hellos": lambda c: c.put(1, body=b"ZENJ\x01\x00\x01\x00"),
        "join with flags nobody knows": lambda c: c.put(2, 0x80, 1, b"g"),
        "level 3": lambda c: c.put(2, 3, 1, b"g"),
    }
    for what, send in fatal.items():
        with RawClient(path) as client:
            send(client)
            error = client.error()
            assert error["code"] == "protocol" and error["closes"], what
            client.wait_end()
    for hello, code in (
        (b"ZENJ" + struct.pack("<HH", VERSION + 1, VERSION + 6), "version"),
        (b"HTTP\x01\x00\x01\x00", "protocol"),
        (b"ZENJ", "protocol"),
        (b"ZENJ\x01\x00\x01\x00" + b"x" * 65, "protocol"),
        (b"ZENJ\x01\x00\x01\x00\xff\xfe", "protocol"),
    ):
        with RawClient(path, hello) as client:
            assert client.error()["code"] == code, hello
            client.wait_end()
    with RawClient(path, b"") as client:
        client.put(2, 0, 1, b"g")  # no HELLO at all
        assert client.error()["code"] == "protocol"
    with RawClient(path) as client:
        for kind, flags, handle, body, code in (
            (2, 0, 0, b"g", "bad-handle"),
            (2, 0, 5000, b"g", "bad-handle"),
            (2, 0, 1, b"", "name"),
            (2, 0, 1, b"x" * 129, "name"),
            (2, 0, 1, b"\xff\xff", "name"),
            (3, 0, 9, b"", "bad-handle"),
            (4, 0, 9, b"to nobody", "bad-handle"),
            (7, 0, 0, b"x" * 200, "name"),
        ):
            client.put(kind, flags, handle, body)
            error = client.error()
            assert error["code"] == code and not error["closes"], (kind, body)
        client.put(2, 0, 1, b"twice")
        client.put(2, 0, 1, b"other")
        assert client.error()["code"] == "bad-handle"
        client.put(2, 0, 2, b"twice")
        assert client.error()["code"] == "name"
        client.put(2, 0, 3, b"plumless")  # two words of one CRC-32
        client.put(2, 0, 4, b"buckeroo")
        assert client.error()["code"] == "name-collision"
    with program(shared.station(1)) as client:
        assert client.status()["state"] == "open", "and the daemon has not minded"


def test_colliding_names_at_two_stations_are_refused_by_the_order(shared: Lab) -> None:
    with RawClient(shared.station(1).socket_path) as one, RawClient(shared.station(2).socket_path) as two:
        one.put(2, 1, 1, b"plumless")
        while (frame := one.get()) is not None and frame[0] != 67:
            pass
        two.put(2, 1, 1, b"buckeroo")
        assert two.error()["code"] == "name-collision"
        two.put(4, 0, 1, b"x")
        assert two.error()["code"] == "bad-handle"


def groups_at(station: Station) -> set[str]:
    """Names of the groups that a station knows."""
    return {g["name"] for g in status(station)["groups"]}


def test_closed_and_open_groups(shared: Lab) -> None:
    with program(shared.station(1)) as inside, RawClient(shared.station(2).socket_path) as outside:
        closed, opened = inside.join("closed"), inside.join("open", open_group=True)
        wait_for(lambda: {"closed", "open"} <= groups_at(shared.station(2)), "both known at station 2")
        outside.put(2, 8, 1, b"closed")
        assert outside.error()["code"] == "closed-group"
        outside.put(2, 8, 2, b"open")
        outside.put(4, 0, 2, b"from outside")
        assert opened.recv(5).data == b"from outside"
        assert closed.view is not None and len(closed.view.members) == 1
        inside.close()


def test_a_thousand_groups_of_one_client_hold_up_nobody(shared: Lab) -> None:
    with RawClient(shared.station(1).socket_path) as hoarder, program(shared.station(1)) as client:
        group = client.join("meanwhile")
        for number in range(1, 1024):
            hoarder.put(2, 1, number, b"hoard %d" % number)
        worst = 0.0
        views = 0
        begin = time.monotonic()
        while views < 1023:
            started = time.monotonic()
            group.send(b"x", timeout=10)
            worst = max(worst, time.monotonic() - started)
            hoarder.socket.settimeout(0.001)
            try:
                while (frame := hoarder.get()) is not None:
                    views += frame[0] == 67
            except TimeoutError:
                pass
        # On a machine that needs long for the groups a message may take a part of that, but does not wait for them all.
        took = time.monotonic() - begin
        in_time(worst < max(1.0, took / 3), f"one message took {worst:.3f} s, all groups {took:.3f} s")
        # Level preack at station 1: station 2 has every join, and is perhaps still working on them.
        wait_for(lambda: len(groups_at(shared.station(2))) >= 1023, "all known at station 2", 30, shared)
    wait_for(lambda: len(groups_at(shared.station(2))) < 10, "all left with their program", 30, shared)


def test_too_many_clients_are_told_busy(lab: Lab) -> None:
    station = lab.station(1)
    station.stop_daemon()
    station.start_daemon({"clients": {"max": 2}})
    lab.wait_open()
    with contextlib.ExitStack() as programs:
        for _ in range(2 + 2):  # two more are kept for operators, as whoever runs the tests is one
            programs.enter_context(program(station))
        another = programs.enter_context(RawClient(station.socket_path, b""))
        assert another.error()["code"] == "busy"
        assert another.wait_end() == []
    wait_for(lambda: status(station).get("state") == "open", "room again")


def test_slow_receiver_is_cut_off_and_nobody_else_notices(lab: Lab) -> None:
    station = lab.station(1)
    station.stop_daemon()
    station.start_daemon({"clients": {"queue_bytes_max": 256 * 1024}})
    lab.wait_open()
    with RawClient(station.socket_path) as slow, program(lab.station(2)) as sender, program(lab.station(3)) as other:
        slow.put(2, 1, 1, b"flood")
        frame = slow.get(), slow.get()  # WELCOME, VIEW; and then it reads no more
        assert frame[1] is not None and frame[1][0] == 67
        theirs = other.join("flood")
        mine = sender.join("flood", receive=False)
        flood = threading.Thread(target=mine.send_many, args=([b"x" * 10_000] * 1000,), kwargs={"timeout": 30})
        flood.start()
        try:
            wait_for(lambda: "slow-receiver" in log(station), "it is cut off", 20, lab)
            codes = [f[3] for f in slow.wait_end() if f[0] == 70]  # at once: it may read its last words for two seconds only
            count = 0
            while count < 1000:
                count += len(theirs.recv_batch(10))
        finally:
            flood.join(40)
        assert len(codes) == 1 and b"slow-receiver" in codes[0] and b"queue_bytes_max" in codes[0]
    assert state(station) == "open"


def test_blocked_and_unblocked_are_told() -> None:
    """Where all must be there, a pause of one is a time in which nothing goes on, and is told as that: nobody is removed."""
    patient = {"cluster": {**PATIENT["cluster"], "quorum": 3, "give_up_timeout_ms": 60_000}}
    with cluster(3, options=patient) as lab, program(lab.station(1)) as client:
        group = client.join("g")
        before = members_of(lab.station(1))
        lab.station(3).signal(signal.SIGSTOP)
        blocked = event_of(group, "blocked")
        assert isinstance(blocked, Blocked) and blocked.stations == ((3, "silent"),) and not blocked.quorum
        assert state(lab.station(1)) == "blocked"
        with program(lab.station(1)) as late:
            wait_for(lambda: late.status() and late.blocked == ((3, "silent"),), "a newcomer is told as well")
        lab.station(3).signal(signal.SIGCONT)
        event_of(group, "unblocked")
        group.send(b"on we go", timeout=10)
        assert members_of(lab.station(1)) == before, "a pause is no restart"
        assert len(re.findall(r" blocked: ", log(lab.station(1)))) == 1, "one line each way"
        assert len(re.findall(r" unblocked: ", log(lab.station(1)))) == 1


def test_removal_is_told(lab: Lab) -> None:
    """With quorum: the view without it, and who is waited for until then. Where the others have agreed by the time that this
    station is told of it, there is nothing to wait for."""
    with program(lab.station(1)) as client:
        group = client.join("g")
        lab.station(3).signal(signal.SIGSTOP)
        try:
            seen: list[Event] = []
            while not any(isinstance(event, ClusterView) for event in seen):
                seen += [item for item in group.recv_items(10) if isinstance(item, Event)]
            view = next(event for event in seen if isinstance(event, ClusterView))
            assert view.left == (3,) and view.members == (1, 2)
            before = seen[: seen.index(view)]
            assert [event.name for event in before] in ([], ["blocked"], ["blocked", "unblocked"])
            assert all(e.stations[0][0] == 3 and e.quorum for e in before if isinstance(e, Blocked))
            wait_for(lambda: client.status() and not client.blocked, "nobody is waited for any more")
            group.send(b"on we go", timeout=10)
            assert state(lab.station(1)) == "open"
        finally:
            lab.station(3).signal(signal.SIGCONT)
    together(lab)


def test_own_pause_blames_nobody_case_9() -> None:
    """Who has slept judges nobody by what it has slept through. Shorter than the time-out a pause changes nothing; beyond it the
    sleeper has been left behind, and learns and tells just that."""
    timeout_s = 2.5  # far from both pauses
    with cluster(3, options={"cluster": {"fail_timeout_ms": int(timeout_s * 1000), "progress_timeout_ms": 5000}}) as lab:
        station = lab.station(1)
        first = status(station)["instance"]
        with program(station) as client, program(lab.station(2)) as other:
            group, chatter = client.join("g"), other.join("g")
            for pause_s in (0.8, 4.5):
                station.signal(signal.SIGSTOP)
                end = time.monotonic() + pause_s
                while time.monotonic() < end:
                    chatter.send(b"while it sleeps", level="sent")
                    threading.Event().wait(0.05)
                station.signal(signal.SIGCONT)
                if pause_s > timeout_s:
                    told: list[str] = []
                    while "reopened" not in told:
                        told += [item.name for item in group.recv_items(10) if isinstance(item, Event)]
                    assert told.index("expelled") < told.index("reopened")
                group.send(b"awake", timeout=10)
                read_until(group, b"awake")
            together(lab)
        text = log(station)
        assert "about to go on without" not in text and "no quorum without" not in text, text
        assert text.count(f" closed: expelled from instance {first}") == 1


def test_restart_of_a_station_is_two_views_and_nothing_is_undecided(lab: Lab) -> None:
    """Killed and started again while somebody sends: the others go on in the same life, once without it and once with it. What
    was sent before they noticed stands before the votes: it waits for them, and is delivered before the view, confirmed."""
    with program(lab.station(1), "one") as one, program(lab.station(2), "two") as two:
        groups = [one.join("g"), two.join("g")]
        groups[0].send(b"before")
        instance, old = one.instance, members_of(lab.station(1))[3]
        third = lab.station(3)
        kill(third)
        groups[0].send(b"into the gap", timeout=20)
        third.start_daemon()
        assert together(lab) == instance + 2
        groups[0].send(b"after", timeout=10)
        shown = []
        for group in groups:
            items = read_until(group, b"after")
            shown.append(
                [i.data if isinstance(i, Message) else (i.joined, i.left) for i in items if isinstance(i, Message | ClusterView)]
            )
            assert not any(isinstance(i, Event) and i.name in ("closed", "expelled", "reopened") for i in items)
        assert shown[0][-4:] == shown[1][-4:]
        assert shown[0][-4:] == [b"into the gap", ((), (3,)), ((3,), ()), b"after"], shown[0]
        assert members_of(lab.station(1))[3] > old
        # The daemon that came back knows the groups of the others.
        known = {("g", "one"), ("g", "two")}
        wait_for(
            lambda: {(g["name"], m[2]) for g in status(third)["groups"] for m in g["members"]} == known, "it is told of both"
        )


def test_diverging_order_is_told_and_nothing_more_is_delivered() -> None:
    """One station delivers two neighbours the wrong way round, once; the digest tells."""
    swap = (
        "import sys, functools; from zenjun.proto.core import Fault; from zenjun.daemon import __main__ as m; "
        "m.EngineConfig = functools.partial(m.EngineConfig, faults=int(Fault.SWAP)); sys.exit(m.main(sys.argv[1:]))"
    )
    with Lab(3, options=PATIENT) as lab:
        lab.start_daemons([1, 2])
        bad = lab.station(3)
        bad.write_config()
        bad.start_daemon(argv=[sys.executable, "-c", swap, "--config", str(bad.config_path)])
        lab.wait_open()
        with program(lab.station(1)) as one, program(lab.station(2)) as two:
            groups = [one.join("g"), two.join("g")]

            def pour(index: int) -> None:
                with contextlib.suppress(Fenced, Timeout):
                    while not over.is_set():  # the defect needs two PDUs that wait at one time
                        groups[index].send_many([b"x" * 1000] * 20, level="sent", timeout=3)

            over = threading.Event()
            threads = [threading.Thread(target=pour, args=(i,)) for i in (0, 1)]
            for thread in threads:
                thread.start()
            try:
                wait_for(lambda: any(state(s) == "fenced" for s in lab.stations.values()), "somebody notices", 90, lab=lab)
            finally:
                over.set()
                for thread in threads:
                    thread.join(20)
            noticed = next(s for s in lab.stations.values() if state(s) == "fenced")
            wait_for(lambda: "the order here differs from station" in log(noticed), "it says so", lab=lab)
            assert status(noticed)["fence"]["position"] > 0
            with RawClient(noticed.socket_path) as late:
                late.put(2, 1, 1, b"late")
                assert late.error()["code"] == "fenced"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stops_in_order_when_idle_case_103(lab: Lab, number: signal.Signals) -> None:
    with program(lab.station(1)) as client:
        group = client.join("g")
        daemon = lab.station(1).daemon
        assert daemon is not None
        lab.station(1).signal(number)
        assert daemon.wait(STOP_S) == 0
        assert event_of(group, "closing").name == "closing"
        with pytest.raises(DaemonClosing):
            while True:
                group.recv_items(5)
    wait_for(lambda: members_of(lab.station(2)).keys() == {2, 3}, "the others go on at once", lab=lab)
    assert "(silent)" not in log(lab.station(2)), "they heard its good-bye"


def test_stops_in_order_in_mid_send_case_103(lab: Lab) -> None:
    received = program(lab.station(2))
    theirs = received.join("g")
    done = 0
    with program(lab.station(1)) as client:
        group = client.join("g", receive=False)
        daemon = lab.station(1).daemon
        assert daemon is not None

        def pour() -> None:
            nonlocal done
            try:
                for i in range(1_000_000):
                    group.send(b"%d" % i, timeout=10)
                    done += 1
            except DaemonClosing:
                pass

        thread = threading.Thread(target=pour)
        thread.start()
        wait_for(lambda: done > 50, "under way", lab=lab)
        lab.station(1).signal(signal.SIGTERM)
        assert daemon.wait(STOP_S) == 0
        thread.join(10)
    got: list[bytes] = []
    while len(got) < done:
        got += [m.data for m in theirs.recv_batch(10)]
    assert got == [b"%d" % i for i in range(len(got))], "whatever was acknowledged has been delivered elsewhere"
    assert received.close(timeout=4.0), "closing is quick: nothing of ours is under way"


def test_stops_while_opening_and_while_blocked_case_103(lab: Lab) -> None:
    with program(lab.station(1)) as client:
        group = client.join("g")
        kill(lab.station(2), lab.station(3))
        group.send(b"stuck", level="sent")
        wait_for(lambda: state(lab.station(1)) == "blocked", "no quorum", lab=lab)
        assert lab.station(1).stop_daemon(STOP_S) == 0
    lab.station(1).start_daemon()
    wait_for(lambda: state(lab.station(1)) in ("opening", "blocked"), "opening", lab=lab)
    assert lab.station(1).stop_daemon(STOP_S) == 0


def test_stops_in_order_while_views_of_its_clients_groups_go_on(lab: Lab) -> None:
    """Views that come when clients have been closed already are for nobody: they must not end the daemon with an error."""
    station = lab.station(1)
    over = threading.Event()

    def churn() -> None:
        with program(lab.station(2), "churn") as guest, contextlib.suppress(Timeout, Undecided):
            while not over.is_set():
                guest.join("g", receive=False, timeout=5).leave()

    with program(station, "reads") as reads, RawClient(station.socket_path) as mute:
        reads.join("g")
        mute.put(2, 1, 5, b"g")
        mute.put(2, 1, 6, b"bulk")
        bulk = reads.join("bulk", receive=False)
        bulk.send_many([bytes(60_000)] * 100)  # more than a socket takes: the last words have to wait for this one
        guest = threading.Thread(target=churn)
        guest.start()
        try:
            wait_for(lambda: reads.instance and "g" in str(status(lab.station(2)).get("groups")), "views come", lab=lab)
            daemon = station.daemon
            assert daemon is not None
            station.signal(signal.SIGTERM)
            while True:  # reads until it is closed, so that its slot is free at once
                try:
                    reads.serve(5)
                except DaemonClosing:
                    break
            assert daemon.wait(STOP_S) == 0, log(station)
        finally:
            over.set()
            guest.join(30)


def test_second_signal_forces_the_end_case_103(lab: Lab) -> None:
    station = lab.station(1)
    for one in lab.stations.values():
        one.stop_daemon()
        adopt(one)
    station.start_daemon({"station": {"drain_timeout_ms": 60_000}, "cluster": {"fail_timeout_ms": 60_000}})
    for other in (lab.station(2), lab.station(3)):
        other.start_daemon({"cluster": {"fail_timeout_ms": 60_000}})
    lab.wait_open()
    with program(station) as client:
        group = client.join("g")
        for other in (lab.station(2), lab.station(3)):
            other.signal(signal.SIGSTOP)
        group.send(b"never acknowledged", level="sent")
        wait_for(lambda: status(station)["clients"][0]["sent"] == 1, "it is under way", lab=lab)
        daemon = station.daemon
        assert daemon is not None
        station.signal(signal.SIGTERM)
        wait_for(lambda: log(station).count("stopping: stopping") == 2, "draining", lab=lab)
        with RawClient(station.socket_path, b"") as late:
            assert late.error()["code"] == "closing"
        assert daemon.poll() is None, "it waits for the others"

        # Within a tenth of a second it would be the first once more: a terminal's Ctrl-C, and a parent's that passes it on.
        first = time.monotonic()
        wait_for(lambda: time.monotonic() - first > 0.15, "the time of one signal is over")
        station.signal(signal.SIGTERM)
        assert daemon.wait(STOP_S) == 9


def test_hangup_takes_over_what_may_change(shared: Lab) -> None:
    station = shared.station(2)
    station.write_config({"log": {"level": "debug"}, "clients": {"max": 1, "queue_bytes_max": 1 << 20}})
    station.signal(signal.SIGHUP)
    wait_for(lambda: "configuration read again: log level debug" in log(station), "told", lab=shared)
    assert "taken over: clients.max, log.level; changed but in force only after a restart: clients.queue_bytes_max" in log(
        station
    )
    # Two more are kept for operators, and this user is one.
    with program(station), program(station), program(station), RawClient(station.socket_path) as another:
        assert another.error()["code"] == "busy"
    station.config_path.write_text("nonsense")
    station.signal(signal.SIGHUP)
    wait_for(lambda: "the configuration is wrong, nothing is changed" in log(station), "told", lab=shared)
    station.write_config()
    station.signal(signal.SIGHUP)
    wait_for(lambda: "log level info; taken over: clients.max, log.level" in log(station), "back", lab=shared)


def test_collector_leaves_the_daemon_alone_and_memory_is_reported(shared: Lab) -> None:
    memory = status(shared.station(3))["memory_bytes"]
    assert memory["core"] > 0 and memory["datapath"] > 0
