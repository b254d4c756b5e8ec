"""The bus medium on a real one-channel bridge, and on bridges that are none."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.daemon.client import BadLevel, ClientError, Event, Message, Timeout, View, connect_sync
from zenjun.tools.evaluate import exchanges
from zenjun.tools.lab import Lab, LabError

from ..timing import in_time
from .cluster import Program, cluster, core, exchange, log_of, plan, programs, reported, status, wait_for

pytestmark = pytest.mark.lab
MESSAGES = 800


@pytest.fixture(scope="module")
def bus() -> Iterator[Lab]:
    """Three stations on a bus; tests leave it as they found it."""
    with cluster(3, medium="bus") as lab:
        yield lab


def places(member: Program, group: str = "g") -> list[tuple[int, int, int, bytes]]:
    return [(*m.place, bytes(m.data)) for m in member.messages(group)]


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.05])
def test_all_send_at_once(bus: Lab, loss: float) -> None:
    """One order at all stations, own messages at the same places; what is lost is repaired by resets, and by nothing else."""
    rng = random.Random(f"bus {loss}")
    before = {i: core(s) for i, s in bus.stations.items()}
    bus.set_loss(loss)
    try:
        with programs(bus, {"g": "ack"}, per_station=2) as members:
            exchange(members, [plan(m, MESSAGES, rng) for m in members])
            assert len({tuple(places(m)) for m in members}) == 1
            clocks = [place[:3] for place in places(members[0])]
            assert clocks == sorted(clocks), "places can be compared"
    finally:
        bus.set_loss(0.0)
    after = {i: core(s) for i, s in bus.stations.items()}
    resets = [after[i]["resets"] - before[i]["resets"] for i in after]
    assert all(c["tx_nak"] == 0 and c["tx_relay"] == 0 for c in after.values())
    assert all(after[i]["rx_own"] > before[i]["rx_own"] for i in after)
    if loss:
        assert min(resets) > 0
    wait_for(lambda: all(status(s)["state"] == "open" for s in bus.stations.values()), "all are open")


def test_large_messages(bus: Lab) -> None:
    with programs(bus, {"g": "ack"}) as members:
        sent = [bytes([m.station]) * 300_000 for m in members]
        for member, data in zip(members, sent, strict=True):
            member.groups["g"].send(data, "ack", timeout=30)
        for member in members:
            got = member.read_messages("g", 3)
            assert sorted(m.data for m in got) == sorted(sent)


def test_only_level_ack_is_to_be_had(bus: Lab) -> None:
    """Who asks for less is told why not; who asks for nothing gets ack."""
    with connect_sync(str(bus.station(1).socket_path), timeout=10, wait=10) as connection:
        assert connection.welcome.medium == "bus"
        for level in ("ordered", "preack"):
            with pytest.raises(BadLevel, match=f'level {level} cannot be had: medium = "bus" delivers only at level ack'):
                connection.join(f"less-{level}", level)
        with pytest.raises(BadLevel, match="order op"):
            connection.join("op", order="op")
        group = connection.join("default")
        group.send(b"x", "preack", timeout=10)  # a sender may wait for less: it waits for ack
        assert next(iter(group.recv_items(10)))
        assert status(bus.station(1))["medium"] == "bus"


def together(members: list[Program], times: int) -> None:
    """The cluster has been opened anew so often, and all are in the group again, as each of them has been told."""
    deadline = time.monotonic() + 20
    for member in members:
        while len(member.events("reopened")) < times or len(views_since_opening(member)) < 1:
            member.read("g", max(0.01, deadline - time.monotonic()))


def views_since_opening(member: Program) -> list[View]:
    """Views of all members since the last ``reopened``."""
    items = member.items["g"]
    last = max((k for k, item in enumerate(items) if isinstance(item, Event) and item.name == "reopened"), default=-1)
    return [item for item in items[last + 1 :] if isinstance(item, View) and len(item.members) == 2]


def test_a_station_that_dies_and_comes_back(tmp_path: Path) -> None:
    """Its end ends the instance, and so does its return: the others' clients are told, and nothing confirmed is lost."""
    with cluster(3, medium="bus") as lab, programs(lab, {"g": "ack"}, ids=[1, 2]) as members:
        first = status(lab.station(1))["instance"]
        for k in range(20):
            members[0].groups["g"].send(b"before %d" % k, "ack", timeout=10)
        lab.station(3).signal(9)
        lab.wait_open(90, [1, 2])
        wait_for(lambda: status(lab.station(1))["instance"] > first, "a new instance", 20)
        second = status(lab.station(1))["instance"]
        together(members, 1)
        members[1].groups["g"].send(b"between", "ack", timeout=10)
        lab.station(3).start_daemon()
        lab.wait_open(90)
        assert status(lab.station(3))["instance"] > second
        wait_for(lambda: status(lab.station(1))["instance"] > second, "all three", 20)
        together(members, 2)
        members[1].groups["g"].send(b"after", "ack", timeout=20)
        want = [b"before %d" % k for k in range(20)] + [b"between", b"after"]
        for member in members:
            member.read_messages("g", len(want))
            assert [m.data for m in member.messages("g")] == want


def test_a_medium_that_does_not_return_frames_is_refused() -> None:
    """An ordinary segment: the daemon ends, and says what to do."""
    with Lab(2, options={"cluster": {"medium": "bus"}}) as lab, reported(lab):
        lab.start_daemons()
        with pytest.raises(LabError, match="exit code 8"):
            lab.wait_open(60)
        for station in lab.stations.values():
            wait_for(lambda s=station: "it is no bus" in log_of(s), "the reason", 30)  # type: ignore[misc]
            assert 'Use medium = "switched"' in log_of(station)
            assert "open: instance" not in log_of(station), "nothing has begun before"


def test_a_bridge_that_is_not_serial_shows_no_difference_or_is_caught() -> None:
    """Ports return frames, but on any processor: all send flat out. Either all have been handed the same, or the digest has told
    within a heartbeat."""
    heartbeat_s, slack_s = 0.2, 1.0  # slack: readers and watcher share two processors with everything else
    slowest = 0.0  # what one look of the watcher took; on a machine that is busier still it sees the fence as much later
    with cluster(3, medium="hairpin", options={"cluster": {"heartbeat_ms": 200}}) as lab:
        stop = time.monotonic() + 6.0
        handed: dict[tuple[int, int], tuple[int, bytes]] = {}
        counts: Counter[int] = Counter()
        diverged: list[float] = []
        fenced: list[float] = []
        all_read = threading.Barrier(2 * len(lab.stations))  # nobody sends before all readers are in the group

        def send(i: int) -> None:
            all_read.wait(30)
            with contextlib.suppress(ClientError), connect_sync(str(lab.station(i).socket_path), timeout=5, wait=10) as c:
                group, k = c.join("g", "ack"), 0
                while time.monotonic() < stop and not fenced:
                    group.send_many([b"%d:%d " % (i, k + j) + bytes(600) for j in range(50)], "ack", timeout=5)
                    k += 50

        def read(i: int) -> None:
            with connect_sync(str(lab.station(i).socket_path), timeout=5, wait=10) as c:
                group = c.join("g", "ack")
                all_read.wait(30)
                while time.monotonic() < stop + 1:
                    try:
                        items = group.recv_items(0.2)
                    except Timeout:
                        continue
                    except ClientError:
                        return
                    for item in items:
                        if isinstance(item, Message):
                            counts[i] += 1
                            clock, station, index = item.place
                            mine = (station, bytes(item.data[:20]))
                            if handed.setdefault((clock, index), mine) != mine:
                                diverged.append(time.monotonic())

        def watch() -> None:
            nonlocal slowest
            while time.monotonic() < stop + 1 and not fenced:
                begin = time.monotonic()
                if any(status(s)["state"] == "fenced" for s in lab.stations.values()):
                    fenced.append(time.monotonic())
                slowest = max(slowest, time.monotonic() - begin)

        threads = [threading.Thread(target=f, args=(i,)) for i in lab.stations for f in (read, send)]
        threads.append(threading.Thread(target=watch))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert fenced or all(counts[i] for i in lab.stations)
        if diverged:
            assert fenced, "different things were handed out, and nobody has told"
            in_time(fenced[0] - diverged[0] < heartbeat_s + max(slack_s, 4 * slowest), f"fenced; slowest look {slowest:.3f} s")
        for station in lab.stations.values():
            if (fence := status(station)["fence"]) is not None:
                assert fence["own"] != fence["theirs"]


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_papers_counts(n: int, tmp_path: Path) -> None:
    """TO paper, section 4, from captures: best case 2n, or 2n - 1, in 3 rounds; n² - n + 1 if every reception is answered."""
    merged, each = (exchanges.measure(n, mode, 5, tmp_path / str(mode)) for mode in (False, True))
    assert not exchanges.as_claimed(n, merged, each), (merged, each)
