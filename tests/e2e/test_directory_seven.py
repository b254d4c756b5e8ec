"""The directory under ``update = "seven"`` on real daemons: changes under locks, stations that die and come back."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from zenjun.daemon.names import Exists, NoName, NoQuorum

from .cluster import cluster, wait_for
from .test_directory import Names, directories

pytestmark = pytest.mark.lab


def started(n: int, *, profile: str = "broadcast", **directory: Any) -> AbstractContextManager[Names]:
    return directories(n, {"directory": {"update": "seven", "profile": profile, **directory}}, active_s=90)


def equal(names: Names, stations: list[int]) -> Callable[[], bool]:
    """Whether these stations have the same rows, and no attempt is under way."""

    def look() -> bool:
        found = []
        for station in stations:
            with names.connect(station) as d:
                status = d.status()
                found.append((status["sums"], status["place"], status["attempts"]["attempt"], status["attempts"]["lock"]))
        return len(set(found)) == 1 and found[0][2:] == ("idle", 0)

    return look


def test_changes_leases_and_a_station_that_dies() -> None:
    with started(3) as names:
        with names.connect(1) as one, names.connect(2) as two:
            done = one.set("db", ["tcp://10.0.0.7:5432"], new=True)
            assert two.lookup("db").addresses == ("tcp://10.0.0.7:5432",), "without fresh: nobody reads an old version"
            with pytest.raises(Exists):
                two.set("db", ["tcp://10.0.0.9:5432"], new=True)
            two.set("db", ["tcp://10.0.0.9:5432"], version=done.place)
            assert one.lookup("db", fresh=True).addresses == ("tcp://10.0.0.9:5432",)
            assert one.status()["update"] == "seven" and one.status()["attempts"]["managers"] == [1, 2, 3]
        held = names.hold(3, "web", "tcp://10.0.0.13:80", "--", "sleep", "60")
        try:
            wait_for(lambda: names.run(1, "get", "web").stdout == "tcp://10.0.0.13:80\n", "the held name", 10)
            names.kill_station(3)
            wait_for(lambda: names.run(1, "get", "web").returncode == 1, "the held name is gone", 15)
        finally:
            held.kill()
            held.wait(60)
        with names.connect(2) as two:
            two.set("x", ["tcp://10.0.0.2:1"])
        names.start_station(3)
        wait_for(lambda: names.active(3), "station 3 is back", 30)
        with names.connect(3) as three:
            assert three.lookup("x").addresses == ("tcp://10.0.0.2:1",)
            three.set("y", ["tcp://10.0.0.3:1"])
        wait_for(equal(names, [1, 2, 3]), "equal copies", 10)


@pytest.mark.parametrize("profile", ["broadcast", "unicast"])
def test_all_change_at_once_while_one_is_killed(profile: str) -> None:
    """Every update whose caller was told is there in the end, once; look-ups never go back to an earlier version."""
    done: list[str] = []
    wrong: list[str] = []
    stop = threading.Event()

    def change(names: Names, station: int) -> None:
        with names.connect(station) as d:
            for k in range(15):
                d.set(f"n{station}-{k}", [f"tcp://10.0.0.{station}:{k + 1}"], new=True)
                done.append(f"n{station}-{k}")

    def read(names: Names) -> None:
        latest = 0
        with names.connect(1) as one, names.connect(2) as two:
            while not stop.is_set():
                for d in (one, two):
                    found = int(d.lookup("count").addresses[0].rsplit(":", 1)[1])
                    if found < latest:
                        wrong.append(f"{found} after {latest}")
                    latest = found

    with started(4, profile=profile) as names:
        with names.connect(2) as two:
            two.set("count", ["tcp://10.0.0.1:1"])
            threads = [threading.Thread(target=change, args=(names, k)) for k in (1, 2, 3)]
            threads.append(threading.Thread(target=read, args=(names,)))
            for thread in threads:
                thread.start()
            for k in range(2, 12):
                two.set("count", [f"tcp://10.0.0.1:{k}"])
                if k == 5:
                    names.lab.station(4).signal(signal.SIGKILL)
                    names.processes[4].kill()
            for thread in threads[:3]:
                thread.join(60)
            stop.set()
            threads[3].join(20)
        assert not wrong and len(done) == 45
        wait_for(equal(names, [1, 2, 3]), "equal copies", 10)
        with names.connect(3) as three:
            assert {e.name for e in three.list()} == {*done, "count"}
            assert three.lookup("count").addresses == ("tcp://10.0.0.1:11",)


def test_all_are_killed_and_what_was_on_disk_is_there() -> None:
    with started(3) as names:
        with names.connect(1) as d:
            for k in range(10):
                d.set(f"n{k}", [f"tcp://10.0.0.1:{k + 1}"])
        for station in (1, 2, 3):
            names.kill_station(station)
        for station in (1, 2, 3):
            names.start_station(station)
        wait_for(lambda: all(names.active(k) for k in (1, 2, 3)), "three active directories", 30)
        with names.connect(3) as d:
            assert len(d.list()) == 10
            d.set("again", ["tcp://10.0.0.3:1"])
        wait_for(equal(names, [1, 2, 3]), "equal copies", 10)


def test_without_quorum_nothing_changes() -> None:
    with started(3) as names, names.connect(1) as d:
        d.set("db", ["tcp://10.0.0.7:5432"])
        names.kill_station(2)
        names.kill_station(3)
        wait_for(lambda: d.lookup("db").stale_ms > 0, "a stale answer", 10)
        with pytest.raises(NoQuorum):
            d.lookup("db", fresh=True)
        with pytest.raises(NoName):
            d.lookup("nothing")


def test_another_mode_at_one_station_is_named() -> None:
    with cluster(3, options={"directory": {"update": "seven"}}) as lab:
        names = Names(lab)
        at = lab.station(3)
        at.config_path.write_text(at.config_path.read_text().replace('"seven"', '"ordered"'))
        try:
            names.start(3)
            time.sleep(1)
            names.start(1)
            log = lab.station(1).directory / "directory.log"
            wait_for(lambda: '"ordered" at stations 3' in log.read_text().replace("\\", ""), "the error", 20)
        finally:
            for process in names.processes.values():
                process.kill()
                process.wait(60)
