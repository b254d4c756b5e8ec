"""Client library and commands against real daemons in a lab: what the tests' own daemon cannot vouch for."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from zenjun.daemon.client import (
    BadName,
    ClosedGroup,
    Message,
    NotMember,
    SlowReceiver,
    SyncConnection,
    TooLarge,
    Undecided,
    View,
    connect,
    connect_sync,
)
from zenjun.tools.lab import Lab, LabUnsupported

pytestmark = pytest.mark.lab
ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
PROGRAM = [sys.executable, "-c", "from zenjun.tools.cli import main; main()"]
OPTIONS = {"clients": {"queue_bytes_max": 4 * MIB}}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    folder = Path(tempfile.mkdtemp(prefix="zc", dir="/tmp"))
    made = Lab(3, loss=0.01, options=OPTIONS, directory=folder / "lab")
    try:
        try:
            made.up()
        except LabUnsupported as error:
            pytest.skip(str(error))
        made.start_daemons()
        made.wait_open(30)
        yield made
    finally:
        made.down(grace_s=0.5)
        shutil.rmtree(folder, ignore_errors=True)


def path(lab: Lab, station: int) -> str:
    return str(lab.station(station).socket_path)


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
        deadline = time.monotonic() + 20
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
    with at(lab, 2) as c, at(lab, 3) as d:
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
        reader.join(30)
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
                lambda: g.recv_batch(0.1), lambda: [g.send(bytes(MIB), None, 0.1) for _ in range(20)],
                lambda: connect_sync(path(lab, 2), timeout=0.1),
            ]  # fmt: skip
            for call in calls:
                begin = time.monotonic()
                with pytest.raises(TimeoutError):
                    call()
                assert time.monotonic() - begin < 2
        finally:
            lab.station(2).signal(signal.SIGCONT)
        assert c.status()["station"] == 2
        while g.recv().data != b"1":
            pass
        g.send(b"again")


def test_a_restarted_station_makes_undecided_and_groups_come_back(lab: Lab) -> None:
    """Another daemon is killed: a send in flight blocks, then raises Undecided; membership, view and counts go on."""
    with at(lab, 1, timeout=40.0) as c:
        g = c.join("reborn", no_self=True)
        g.send(b"before")
        lab.station(3).signal(signal.SIGKILL)
        lab.station(3).daemon.wait(10)  # type: ignore[union-attr]
        errors: list[BaseException] = []
        with pytest.raises(TimeoutError) as caught:
            g.send(b"into the void", timeout=3)
        assert "station 3" in str(caught.value)
        with g.pipeline(timeout=40) as p:
            p.put(b"in flight")
            p.flush()
            lab.station(3).start_daemon()
            try:
                p.wait()
            except Undecided as error:
                errors.append(error)
        lab.wait_open(30)
        assert [type(e) for e in errors] == [Undecided]
        for level in ("ordered", "preack", "ack"):
            g.send(b"after", level)  # type: ignore[arg-type]
        names = [x.detail["event"] if hasattr(x, "detail") else x.reason for x in g.recv_items() if not isinstance(x, Message)]
        assert "reopened" in names and "blocked" in names
        assert g.members and c.instance > 1
        with at(lab, 3) as d:
            h = d.join("reborn")
            g.send(b"to the new one")
            assert h.recv().data == b"to the new one"


def zenjun(*args: str, stdin: bytes = b"") -> bytes:
    return subprocess.run([*PROGRAM, *args], input=stdin, capture_output=True, timeout=60, check=True).stdout


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
    deadline = time.monotonic() + 30
    while b"zenjun recv" not in zenjun("members", "cli", "-s", path(lab, 1)):
        assert time.monotonic() < deadline
    zenjun("send", "-s", path(lab, 1), "-g", "cli", "-l", "ack", stdin=b"".join(b"line %d\n" % i for i in range(1000)))
    zenjun("send", "-s", path(lab, 2), "-g", "cli", "last")
    out, _ = reader.communicate(timeout=60)
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
