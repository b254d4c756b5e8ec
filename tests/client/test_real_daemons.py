"""Client library and commands against real daemons in a lab: what the tests' own daemon cannot vouch for."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from zenjun.daemon.client import (
    BadName,
    ClosedGroup,
    ClusterView,
    ConnectionClosed,
    Event,
    Expelled,
    Message,
    NotMember,
    OrderMismatch,
    Refused,
    Reopened,
    SlowReceiver,
    SyncConnection,
    SyncGroup,
    TooLarge,
    View,
    connect,
    connect_sync,
)
from zenjun.tools.lab import Lab

from ..timing import in_time
from .fake_daemon import fill
from .reallab import MIB, path, real_lab

pytestmark = pytest.mark.lab
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-c", "from zenjun.tools.cli import main; main()"]
T = TypeVar("T", bound=Event)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with real_lab() as made:
        yield made


def at(lab: Lab, station: int, **options: Any) -> SyncConnection:
    return connect_sync(path(lab, station), **{"timeout": 20.0, **options})


def test_three_stations_see_one_sequence(lab: Lab) -> None:
    """All send at once at 1 % loss, each at another level; everybody gets the same messages and views in the same order."""

    async def one(station: int, ready: asyncio.Barrier, level: Any) -> list[Any]:
        async with connect(path(lab, station), timeout=30) as c:
            g = await c.join("three", level)
            await g.recv_items()  # the own join at least
            while len(g.members) < 3:
                await g.recv_items()
            first = g.view
            await ready.wait()
            sending = asyncio.create_task(g.send_many([b"%d-%d" % (station, i) for i in range(1500)], level))
            got: list[Any] = [(first.place, first.members)] if first else []
            while len([x for x in got if isinstance(x, Message)]) < 4500:
                got += [x if isinstance(x, Message) else x.place for x in await g.recv_items() if isinstance(x, Message | View)]
            assert await sending == 1500
            await ready.wait()
            own = [x.data for x in got if isinstance(x, Message) and x.own]
            assert own == [b"%d-%d" % (station, i) for i in range(1500)]
            return [x._replace(own=False) if isinstance(x, Message) else x for x in got]

    async def main() -> list[list[Any]]:
        ready = asyncio.Barrier(3)
        return await asyncio.gather(*(one(s, ready, level) for s, level in ((1, "ordered"), (2, "preack"), (3, "ack"))))

    first, second, third = asyncio.run(asyncio.wait_for(main(), 60))
    assert first == second == third
    places = [x.place for x in first if isinstance(x, Message)]
    assert places == sorted(places) and len(set(places)) == 4500


def test_case_123_sizes_up_to_the_limit(lab: Lab) -> None:
    with at(lab, 1) as c, at(lab, 3) as d:
        g, h = c.join("sizes"), d.join("sizes")
        limit = c.welcome.message_max
        for size in (0, 1, c.welcome.payload_max, c.welcome.payload_max + 1, MIB, limit):
            data = os.urandom(size)
            g.send(data, "ack")
            assert h.recv().data == data and g.recv().data == data
        before = c.status()["clients"]
        with pytest.raises(TooLarge, match=str(limit)):
            g.send(bytes(limit + 1))
        for clients in (before, c.status()["clients"]):
            assert next(x["sent"] for x in clients if x["client"] == c.welcome.client) == 6


def test_groups_open_closed_left_and_joined_again(lab: Lab) -> None:
    with at(lab, 1, name="one") as c, at(lab, 2, name="two") as d:
        g = c.join("door")
        with pytest.raises(ClosedGroup):
            d.join("door", send_only=True)
        with pytest.raises(BadName):
            c.join("door")
        g.leave()
        for _ in range(10):
            with c.join("door", open_group=True) as g:
                g.send(b"x")
        g = c.join("door", open_group=True)
        deadline = time.monotonic() + 60
        while not d.members("door") and time.monotonic() < deadline:
            pass
        sender = d.join("door", send_only=True)
        sender.send(b"from outside")
        m = g.recv()
        assert (m.data, m.station, m.client, m.own) == (b"from outside", 2, d.welcome.client, False)
        assert [(x.station, x.name) for x in g.members] == [(1, "one")]
        with pytest.raises(NotMember):
            sender.recv()


def test_many_messages_through_one_client(lab: Lab) -> None:
    with at(lab, 2, timeout=60.0) as c, at(lab, 3, timeout=60.0) as d:
        g, h = c.join("many", no_self=True), d.join("many")
        got: list[int] = []
        failed: list[BaseException] = []

        def read() -> None:
            try:
                while len(got) < 30_000:
                    got.extend(int(m.data) for m in h.recv_batch())
            except BaseException as error:
                failed.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        assert g.send_many(b"%d" % i for i in range(30_000)) == 30_000
        reader.join(60)
        assert not failed and got == list(range(30_000))


def test_case_119_slow_receiver_is_cut_off_with_a_reason(lab: Lab) -> None:
    """Others go on at full speed; the reason names the option."""
    with at(lab, 1) as c, at(lab, 1) as slow:
        g, s = c.join("slow", receive=False), slow.join("slow")
        g.send_many([bytes(10_000)] * 1000)
        total = 0
        with pytest.raises(SlowReceiver, match="queue_bytes_max"):
            while True:
                total += len(s.recv_batch())
        assert total < 1000
        g.send(b"still here")


def test_case_147_every_call_against_a_stopped_daemon(lab: Lab) -> None:
    with at(lab, 2) as c:
        g = c.join("stopped")
        g.recv_items()
        lab.station(2).signal(signal.SIGSTOP)
        try:
            calls: list[Callable[[], object]] = [
                lambda: c.status(0.1), lambda: c.members("", 0.1), lambda: c.join("other", timeout=0.1),
                lambda: g.send(b"1", timeout=0.1), lambda: g.send_many([b"2"] * 10, timeout=0.1), lambda: g.recv(0.1),
                lambda: g.recv_batch(0.1), lambda: fill(g, MIB, 20),
                lambda: connect_sync(path(lab, 2), timeout=0.1),
            ]  # fmt: skip
            for call in calls:
                begin = time.monotonic()
                with pytest.raises(TimeoutError):
                    call()
                in_time(time.monotonic() - begin < 10, "a call that ends after 0.1 s")
        finally:
            lab.station(2).signal(signal.SIGCONT)
        assert c.status()["station"] == 2
        while g.recv().data != b"1":
            pass
        g.send(b"again")


def next_event(group: SyncGroup, kind: type[T], test: Callable[[T], object] = lambda event: True) -> T:
    """Read on until this event comes; what is read before it is dropped."""
    for item in group.items(timeout=60):
        if isinstance(item, kind) and test(item):
            return item
    raise AssertionError("the group was left")


def next_view(group: SyncGroup, test: Callable[[View], object]) -> View:
    for item in group.items(timeout=60):
        if isinstance(item, View) and test(item):
            return item
    raise AssertionError("the group was left")


def test_a_killed_station_is_left_behind_and_comes_back(lab: Lab) -> None:
    """Nobody has to wait for it for long: sends go through, a view of the cluster says that it is gone, its members of groups
    have died at the same place; restarted, it is let in and knows the groups of the others."""
    with at(lab, 1) as c, at(lab, 2) as other:
        g, watched = c.join("reborn", open_group=True), other.join("reborn")
        d = at(lab, 3)
        h = d.join("reborn")
        g.send(b"before")
        number = d.welcome.client
        instance = c.instance
        lives = {s.station: s.incarnation for s in c.stations()}
        lab.station(3).signal(signal.SIGKILL)
        lab.station(3).daemon.wait(60)  # type: ignore[union-attr]
        begin = time.monotonic()
        for level in ("ordered", "preack", "ack"):
            g.send(b"into the void", level)
        in_time(time.monotonic() - begin < 10, "three messages without the dead one")
        with pytest.raises(ConnectionClosed):
            h.send(b"x")
        d.close(0.0)
        places = []
        for group in (g, watched):
            event = next_event(group, ClusterView)
            assert (event.left, event.members, event.instance) == ((3,), (1, 2), instance + 1)
            view = next_view(group, lambda view: view.reason == "death")
            assert [m[:2] for m in view.left] == [(3, number)] and view.place == event.place
            places.append(event.place)
        assert places[0] == places[1] and c.instance == instance + 1
        lab.station(3).start_daemon()
        event = next_event(g, ClusterView)
        assert event.joined == (3,) and event.members == (1, 2, 3)
        with at(lab, 3, wait=20.0) as d:
            h = d.join("reborn")
            assert sorted(m.station for m in h.members) == [1, 2, 3]
            g.send(b"to the new one")
            assert h.recv().data == b"to the new one"
            now = {s.station: s.incarnation for s in d.stations() if s.member}
            assert now.keys() == lives.keys() and [k for k in now if now[k] != lives[k]] == [3] and now[3] > lives[3]
            assert next(g for g in d.status()["groups"] if g["name"] == "reborn")["open"], "as its first member said"


def test_a_paused_station_is_expelled_and_its_programs_come_back_by_themselves(lab: Lab) -> None:
    """It learns that the others have gone on; its programs are told what that costs, and get back into their groups with it."""
    with at(lab, 1) as c, at(lab, 3) as d:
        g, h = c.join("paused"), d.join("paused")
        before = d.instance
        lab.station(3).signal(signal.SIGSTOP)
        try:
            assert next_event(g, ClusterView).left == (3,)
            g.send(b"meanwhile")
        finally:
            lab.station(3).signal(signal.SIGCONT)
        expelled = next_event(h, Expelled)
        assert expelled.unsafe is False and expelled.reason
        back = next_event(h, Reopened)
        assert back.joined and back.instance > before and set(back.members) == {1, 2, 3}
        view = next_view(h, lambda view: any(m[:2] == (3, d.welcome.client) for m in view.joined))
        assert sorted(m.station for m in view.members) == [1, 3]
        h.send(b"back")
        while g.recv().data != b"back":
            pass
        g.send(b"seen")
        while h.recv().data != b"seen":
            pass


def test_operators_expel_a_station(lab: Lab) -> None:
    with at(lab, 1) as c, at(lab, 2) as d:
        g, h = c.join("operated"), d.join("operated")
        for wrong in (1, 4):
            with pytest.raises(Refused):
                c.expel(wrong)
        assert c.expel(2)
        assert next_event(g, ClusterView, lambda view: 2 in view.left).members == (1, 3)
        assert next_event(h, Reopened).joined
        assert next_event(g, ClusterView, lambda view: 2 in view.joined).members == (1, 2, 3)
        next_view(h, lambda view: len(view.members) == 2)
        h.send(b"again")
        while g.recv().data != b"again":
            pass


def test_order_preserving_group_across_stations(lab: Lab) -> None:
    """Each sender's messages in its order, at 1 % loss, counted at every level; the other order is refused everywhere."""
    with at(lab, 1) as a, at(lab, 2) as b, at(lab, 3) as c:
        groups = [a.join("fast", order="op"), b.join("fast", order="op", no_self=True), c.join("fast", "accepted", order="op")]
        with at(lab, 2) as x, pytest.raises(OrderMismatch):
            x.join("fast")
        while len(groups[0].members) < 3:
            groups[0].recv_items()
        assert [g.level for g in groups] == ["ordered"] * 3
        with ThreadPoolExecutor() as pool:
            levels: tuple[Any, ...] = ("ordered", "preack", "ack")
            sending = [
                pool.submit(g.send_many, [b"%d-%d" % (i, k) for k in range(1000)], levels[i]) for i, g in enumerate(groups)
            ]
            assert [s.result(30) for s in sending] == [1000] * 3
        for i, g in enumerate(groups):
            got = [tuple(map(int, g.recv().data.split(b"-"))) for _ in range(2000 if i == 1 else 3000)]
            for sender in range(3):
                mine = [k for s, k in got if s == sender]
                assert mine == ([] if sender == i == 1 else list(range(1000)))


def zenjun(*args: str, stdin: bytes = b"") -> bytes:
    return subprocess.run([*PROGRAM, *args], input=stdin, capture_output=True, timeout=240, check=True).stdout


def test_commands(lab: Lab) -> None:
    reader = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from zenjun.tools.cli import main; main()",
            "recv",
            "-s",
            path(lab, 3),
            "-g",
            "cli",
            "-n",
            "1001",
            "-t",
            "30",
        ],
        stdout=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while b"zenjun recv" not in zenjun("members", "cli", "-s", path(lab, 1)):
        in_time(time.monotonic() < deadline, "the reader is in")
    zenjun("send", "-s", path(lab, 1), "-g", "cli", "-l", "ack", stdin=b"".join(b"line %d\n" % i for i in range(1000)))
    zenjun("send", "-s", path(lab, 2), "-g", "cli", "last")
    out, _ = reader.communicate(timeout=240)
    assert out.splitlines() == [b"line %d" % i for i in range(1000)] + [b"last"] and reader.returncode == 0
    assert zenjun("members", "-s", path(lab, 2)).count(b"\n") == 3
    assert b"Stations" in zenjun("status", "--matrix", "-s", path(lab, 2))


def test_status_is_what_the_document_says(lab: Lab) -> None:
    """Case 149 in part: the daemon gives every member of docs/status.md, and what was injected shows."""
    document = (ROOT / "docs" / "status.md").read_text()

    def names(title: str) -> set[str]:
        section = document.split(f"## {title}\n")[1].split("\n## ")[0]
        return set(re.findall(r"^\| `(\w+)` \|", section, re.M))

    with at(lab, 2, name="watcher") as c:
        c.join("watched")
        s = json.loads(zenjun("status", "--json", "-s", path(lab, 2)))
    assert names("Top level") - set(s) == set()
    assert names("`interface`") - set(s["interface"]) == set()
    assert [names("`peers[]`") - set(p) for p in s["peers"]] == [set()] * 3
    assert all(names("`clients[]`") - set(x) == set() for x in s["clients"])
    assert (s["station"], s["stations"], s["state"], s["blocked"]) == (2, 3, "open", [])
    assert [(p["station"], p["self"]) for p in s["peers"]] == [(1, False), (2, True), (3, False)]
    assert [2, c.welcome.client, "watcher"] in next(g["members"] for g in s["groups"] if g["name"] == "watched")
    assert all(isinstance(s["interface"][n]["source"], str) for n in ("mtu", "header_bytes", "frame_max", "payload_max"))
    assert set(s["rights"]) == {"net_raw", "realtime", "realtime_wanted"} and s["rights"]["net_raw"] is True
