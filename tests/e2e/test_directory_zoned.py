"""Zones with holders of their own, on real daemons: two stations keep a zone, two another one, and one keeps none."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from zenjun.daemon.names import (
    DirectoryError,
    Exists,
    Malformed,
    NoAddress,
    NoName,
    NoQuorum,
    SyncDirectory,
    ZoneDown,
    calls,
    connect_directory,
)

from .cluster import cluster, wait_for
from .test_directory import Names

pytestmark = pytest.mark.lab

ALL = (1, 2, 3, 4, 5)
OPTIONS = {"directory": {"placement": "zoned", "holders": [1, 2, 3], "zones": ["a=1,2", "b=3,4"]}}
"""Station 5 keeps nothing."""


@contextmanager
def zones() -> Iterator[Names]:
    with cluster(5, options=OPTIONS) as lab:
        up = Names(lab)
        try:
            for station in (1, 5):
                at = lab.station(station)
                listen = f'[directory]\nmetrics = "{at.directory}/directory-metrics.sock"\n'
                at.config_path.write_text(at.config_path.read_text().replace("[directory]\n", listen))
            for station in (1, 3, 4, 5):
                up.start(station)
            missing = "waits    for zenjun-directory at stations 2 (at the first start all have to run)"
            wait_for(lambda: missing in up.run(1, "status").stdout, "the first start waits for station 2", 40)
            up.start(2)
            wait_for(lambda: all(up.active(k) for k in ALL), "active directories", 40)
            yield up
        finally:
            for process in up.processes.values():
                process.kill()
                process.wait(60)


def done(names: Names, station: int, *words: str) -> str:
    ran: subprocess.CompletedProcess[str] = names.run(station, *words)
    assert ran.returncode == 0, f"{words} at {station}: {ran.stderr}"
    return ran.stdout


def zone(status: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(z for z in status["zones"] if z["zone"] == name)
    return found


def equal(names: Names, name: str, *stations: int) -> bool:
    """The copies of a zone at these stations are active and have the same sums."""
    found = set()
    for station in stations:
        with names.connect(station) as d:
            z = zone(d.status(), name)
        assert z["keeps"]
        found.add(z["sums"] if z["active"] else f"station {station} is not active")
    return len(found) == 1 and not any("not active" in each for each in found)


def test_two_zones_and_a_station_without_any() -> None:
    with zones() as names, names.connect(5) as d, names.connect(2) as holder:
        d.set("db.a", ["tcp://10.0.0.1:1"], wait="everywhere")
        holder.set("db.b", ["tcp://10.0.0.2:1"], wait="everywhere")
        d.set("plain", ["tcp://10.0.0.3:1"])
        d.alias("www", "db.a", wait="everywhere")
        for station in ALL:
            with names.connect(station) as other:
                for name, address in (("db.a", 1), ("db.b", 2), ("plain", 3), ("www", 1)):
                    assert other.lookup(name).addresses == (f"tcp://10.0.0.{address}:1",), (station, name)
                assert [entry.name for entry in other.list()] == ["db.a", "db.b", "plain", "www"]
                assert other.lookup("www").path == ("www", "db.a")
        assert done(names, 5, "get", "www") == "tcp://10.0.0.1:1\n"
        assert [z["zone"] for z in holder.status()["zones"] if z["keeps"]] == ["default", "a"]
        assert not any(z["keeps"] for z in d.status()["zones"])
        assert not list(names.lab.station(5).state_directory.glob("directory*"))
        kept = sorted(path.name for path in names.lab.station(4).state_directory.glob("directory*.db"))
        assert kept == ["directory.b.db"], "only what it keeps is transferred"
        lines = names.lab.station(5).directory / "names.csv"
        lines.write_text("one.a,tcp://10.0.0.9:1\none.b,tcp://10.0.0.9:2\n")
        assert done(names, 5, "load", str(lines)) == "2 names are set\n"
        done(names, 4, "rm", "one.a")
        done(names, 1, "rm", "one.b")
        what_is_refused(d)
        a_circle_over_zones_is_found_by_the_look_up(d)
        one, none = names.scrape(1), names.scrape(5)
        assert one["zenjun_directory_names", "a"] == 1 and ("zenjun_directory_names", "b") not in one
        assert one["zenjun_directory_zone_kept", "a"] == 1 and none["zenjun_directory_zone_kept", "a"] == 0
        assert none["zenjun_directory_zone_holders", "b"] == 2 and none["zenjun_directory_state", "active"] == 1
        assert none["zenjun_directory_lookups_total", "ok"] > 0
        leases_and_watches(d, holder)
        asyncio.run(the_other_client(names))
        holders_go_and_come_back(names, d)


def what_is_refused(d: SyncDirectory) -> None:
    with pytest.raises(NoName):
        d.lookup("nobody.b")
    with pytest.raises(Exists):
        d.set("db.a", ["tcp://10.0.0.7:1"], new=True)
    with pytest.raises(Malformed, match="one zone"):
        d.update(calls.set_of("x.a", ["tcp://10.0.0.7:1"]), calls.set_of("x.b", ["tcp://10.0.0.7:1"]))
    with pytest.raises(Malformed, match=r"end in .b"):
        d.set("x.a", ["tcp://10.0.0.7:1"], zone="b")
    d.update(calls.out_of("tcp://10.0.0.2:1"))
    with pytest.raises(NoAddress):
        d.lookup("db.b", fresh=True)
    d.update(calls.in_of("tcp://10.0.0.2:1"))
    assert d.lookup("db.b", fresh=True).addresses == ("tcp://10.0.0.2:1",)


def a_circle_over_zones_is_found_by_the_look_up(d: SyncDirectory) -> None:
    d.alias("one.a", "two.b")
    d.alias("two.b", "one.a")
    with pytest.raises(DirectoryError, match=r"too many aliases: one\.a → two\.b → one\.a"):
        d.lookup("one.a")
    d.rm("one.a")
    d.rm("two.b")


def leases_and_watches(d: SyncDirectory, holder: SyncDirectory) -> None:
    """d: at the station that keeps nothing."""
    names = d.watch("", timeout=30)
    listed = []
    for change in names:
        if change.kind == "listed":
            break
        listed.append(change.name)
    assert sorted(listed) == ["db.a", "db.b", "plain", "www"]
    first = d.register("web.a", "tcp://10.0.0.5:80", exclusive=True)
    with first, holder.register("web.a", "tcp://10.0.0.6:80", exclusive=True) as second:
        assert first.held and not second.held
        assert holder.lookup("web.a", fresh=True).addresses == ("tcp://10.0.0.5:80",)
        third = d.register("web.a", "tcp://10.0.0.7:80", exclusive=True)
        with third:
            first.__exit__()
            wait_for(lambda: second.wait_held(1), "the second has the name", 30)
            assert second.version == holder.lookup("web.a", fresh=True).version > third.version > first.version
            second.__exit__()
            wait_for(lambda: third.wait_held(1), "the third, whose station does not keep the name", 30)
            found = holder.lookup("web.a", fresh=True)
            assert found.addresses == ("tcp://10.0.0.7:80",) and third.version == found.version > second.version
    for change in names:
        if change.name == "web.a" and change.entry is None:
            break  # made and gone again
    wait_for(lambda: not any(e.name == "web.a" for e in d.list()), "the name is gone with its leases", 30)


async def the_other_client(names: Names) -> None:
    """The asyncio client, at a station that keeps nothing and at one that keeps what it looks up."""
    async with connect_directory(names.socket(5), timeout=20) as d, connect_directory(names.socket(3), timeout=20) as other:
        mirror = await d.mirror("web.")
        async with d.register("web.b", "tcp://10.0.0.5:81", ttl=20), asyncio.timeout(30):
            found = await other.lookup("web.b", fresh=True)
            assert found.addresses == ("tcp://10.0.0.5:81",) and found.zone == "b"
            while "web.b" not in mirror:
                await asyncio.sleep(0.05)
        done = await d.set("db.b", ["tcp://10.0.0.2:2"], version=(await d.lookup("db.b")).version)
        # Its place is one of zone b; the look-up in the silent zone default has to return all the same.
        async with connect_directory(names.socket(1), place=done.place, timeout=20) as elsewhere:
            assert (await elsewhere.lookup("plain")).addresses == ("tcp://10.0.0.3:1",)
            assert (await elsewhere.lookup("db.b")).addresses == ("tcp://10.0.0.2:2",)
            assert (await elsewhere.outcome((d._protocol.client, d._protocol._counter))) == done
        await d.set("db.b", ["tcp://10.0.0.2:1"])


def holders_go_and_come_back(names: Names, d: SyncDirectory) -> None:
    names.kill_station(1)
    wait_for(lambda: zone(d.status(), "a")["holders"] == [2], "the holder has left", 30)
    assert d.lookup("db.a", timeout=20).addresses == ("tcp://10.0.0.1:1",)
    d.set("db.a", ["tcp://10.0.0.9:1"], wait="memory")
    with pytest.raises(NoQuorum, match="missing: 1"):
        d.update(calls.set_of("db.a", ["tcp://10.0.0.9:1"]), timeout=3)
    names.processes[2].kill()
    wait_for(lambda: not zone(d.status(), "a")["holders"], "both have left", 30)
    with pytest.raises(ZoneDown, match="stations 1, 2"):
        d.lookup("db.a", fresh=True)
    with pytest.raises(ZoneDown):
        d.set("db.a", ["tcp://10.0.0.8:1"])
    assert d.lookup("db.b", fresh=True).addresses == ("tcp://10.0.0.2:1",), "its names only"
    assert names.scrape(5)["zenjun_directory_zone_holders", "a"] == 0
    listed = names.run(5, "list")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["db.b", "plain", "www"]
    assert "zone a is down" in listed.stderr
    down = names.run(5, "get", "db.a", "--fresh")
    assert down.returncode == 5 and "zone-down" in down.stderr
    names.start(2)
    names.start_station(1)
    wait_for(lambda: zone(d.status(), "a")["holders"] == [1, 2], "both are back", 60)
    wait_for(lambda: equal(names, "a", 1, 2) and equal(names, "b", 3, 4) and equal(names, "default", 1, 2, 3), "equal copies", 40)
    assert d.lookup("db.a", fresh=True).addresses == ("tcp://10.0.0.9:1",)
    with names.connect(3) as other:
        assert other.lookup("www", fresh=True).addresses == ("tcp://10.0.0.9:1",)
