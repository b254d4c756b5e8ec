"""The directory on real daemons: the command line, the client library, stations that die and come back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from zenjun.daemon.names import (
    Exists,
    Malformed,
    NoName,
    NoQuorum,
    NotReachable,
    SyncDirectory,
    VersionMismatch,
    calls,
    connect_directory,
    connect_directory_sync,
)
from zenjun.proto.service.directory.entries import Place
from zenjun.tools.lab import Lab

from ..timing import in_time
from .cluster import cluster, wait_for

pytestmark = pytest.mark.lab


class Names:
    """Stations with a directory process at each."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def socket(self, station: int) -> str:
        return str(self.lab.station(station).directory / "directory.sock")

    def start(self, station: int) -> None:
        at = self.lab.station(station)
        log = (at.directory / "directory.log").open("ab")
        argv = [sys.executable, "-m", "zenjun.daemon.directory", "--config", str(at.config_path)]
        self.processes[station] = subprocess.Popen(argv, env=at.environment(), stdout=log, stderr=log)
        log.close()

    def connect(self, station: int) -> SyncDirectory:
        return connect_directory_sync(self.socket(station), wait=60, timeout=60)

    def active(self, station: int) -> bool:
        try:
            with connect_directory_sync(self.socket(station), timeout=5) as d:
                return bool(d.status()["active"])
        except (NotReachable, OSError):
            return False

    def holders(self, station: int) -> list[int]:
        with self.connect(station) as d:
            return list(d.status()["holders"])

    def run(self, station: int, *words: str) -> subprocess.CompletedProcess[str]:
        """``zenjun name …`` at a station."""
        argv = [sys.executable, "-c", "from zenjun.tools.command import main; main()", "name", *words]
        at = self.lab.station(station)
        return subprocess.run(argv, env=at.environment(), capture_output=True, text=True, timeout=30, check=False)

    def hold(self, station: int, *words: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", "from zenjun.tools.command import main; main()", "name", "hold", *words]
        return subprocess.Popen(argv, env=self.lab.station(station).environment())

    def restart_with_metrics(self, station: int) -> None:
        self.stop(station)
        at = self.lab.station(station)
        with at.config_path.open("a") as config:
            config.write(f'[directory]\nmetrics = "{at.directory}/directory-metrics.sock"\n')
        self.start(station)
        wait_for(lambda: self.active(station), "it is back", 20)

    def scrape(self, station: int) -> dict[tuple[str, ...], float]:
        """One answer, by name and label values."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(60)
            sock.connect(str(self.lab.station(station).directory / "directory-metrics.sock"))
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            text = b"".join(iter(lambda: sock.recv(65536), b"")).partition(b"\r\n\r\n")[2].decode()
        found = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        return {(s.name, *(v for _, v in sorted(s.labels.items()))): s.value for family in found for s in family.samples}

    def stop(self, station: int) -> int:
        self.processes[station].terminate()
        return self.processes[station].wait(60)

    def kill_station(self, station: int) -> None:
        """As a machine that loses power: the daemon and the process at once."""
        daemon = self.lab.station(station).daemon
        assert daemon is not None
        daemon.send_signal(signal.SIGKILL)
        self.processes[station].kill()
        self.processes[station].wait(60)
        daemon.wait(60)  # else it could still run when it is to start again

    def start_station(self, station: int) -> None:
        self.lab.station(station).start_daemon()
        self.start(station)


@contextmanager
def directories(n: int, options: dict[str, dict[str, Any]] | None = None, *, active_s: float = 20) -> Iterator[Names]:
    """n stations with active directories, which end with the block. options: tables of zenjund.toml."""
    stations = list(range(1, n + 1))
    with cluster(n, options=options) as lab:
        up = Names(lab)
        try:
            for station in stations:
                up.start(station)
            wait_for(lambda: all(up.active(k) for k in stations), "active directories", active_s)
            wait_for(lambda: up.holders(1) == stations, "holders", 30)
            yield up
        finally:
            for process in up.processes.values():
                process.kill()
                process.wait(60)


@pytest.fixture
def names() -> Iterator[Names]:
    with directories(3) as up:
        yield up


def test_metrics_while_names_change(names: Names) -> None:
    """What one station's process counts when another station's programs change names."""
    names.restart_with_metrics(2)
    with names.connect(1) as d:
        d.set("db", ["tcp://10.0.0.7:5432"])
        with pytest.raises(Exists):
            d.set("db", ["tcp://10.0.0.8:5432"], new=True)
        d.register("web", "tcp://10.0.0.1:80")
        d.update(calls.switch_of("db", ["tcp://10.0.0.8:5432"], 1.0))

        def offsets() -> list[float]:
            return [value for key, value in names.scrape(2).items() if key[0] == "zenjun_directory_clock_offset_seconds"]

        # The third need not say it: two clocks of three are most of them.
        wait_for(lambda: len(offsets()) >= 2, "most stations have said that the switch's end is due", 10)
        assert all(abs(offset) <= 5 for offset in offsets())
        seen = names.scrape(2)
    assert seen["zenjun_directory_updates_total", "done"] == 3 and seen["zenjun_directory_updates_total", "exists"] == 1
    assert seen["zenjun_directory_names", "default"] == 2
    assert seen["zenjun_directory_state", "active"] == 1 and seen["zenjun_directory_stale_seconds",] == 0
    assert [seen["zenjun_directory_holder", str(k)] for k in (1, 2, 3)] == [1, 1, 1]
    assert seen["zenjun_directory_commit_seconds_count", "yes"] >= 1
    assert seen["zenjun_directory_transfers_total", "restored"] == 1


def test_the_first_slice(names: Names) -> None:
    """A name set at one station is there at another; a held one goes with its station."""
    assert names.run(1, "set", "db", "tcp://10.0.0.7:5432", "tcp://10.0.0.8:5432@1").returncode == 0
    found = names.run(2, "get", "db", "--fresh")
    assert (found.returncode, found.stdout, found.stderr) == (0, "tcp://10.0.0.7:5432\n", "")
    held = names.hold(3, "web", "tcp://10.0.0.13:80", "--", "sleep", "60")
    try:
        wait_for(lambda: names.run(1, "get", "web").stdout == "tcp://10.0.0.13:80\n", "the held name", 10)
        names.kill_station(3)
        wait_for(lambda: names.run(1, "get", "web").returncode == 1, "the held name is gone", 10)
        gone = names.run(2, "get", "web", "--fresh")
        assert (gone.stdout, gone.returncode) == ("", 1)
        assert "no name 'web'" in gone.stderr and "(no-name)" in gone.stderr
        assert held.wait(60) == 5, "without its directory process the command is ended"
    finally:
        held.kill()
        held.wait(60)
    names.start_station(3)
    wait_for(lambda: names.active(3), "station 3 is back", 20)
    listed = json.loads(names.run(3, "list", "--json").stdout)
    assert [entry["name"] for entry in listed] == ["db"]
    assert [t["address"] for t in listed[0]["targets"]] == ["tcp://10.0.0.7:5432", "tcp://10.0.0.8:5432"]


def test_a_held_name_goes_with_its_command(names: Names) -> None:
    done = names.run(1, "hold", "job", "tcp://10.0.0.1:1", "--", sys.executable, "-c", "raise SystemExit(7)")
    assert done.returncode == 7, done.stderr
    with names.connect(2) as d:

        def gone() -> bool:
            try:
                d.lookup("job", fresh=True)
            except NoName:
                return True
            return False

        wait_for(gone, "the name is gone with its command", 5)
    assert names.run(1, "hold", "job", "tcp://10.0.0.1:1", "--", "/no/such/program").returncode == 127


def test_conditions_and_bad_input(names: Names) -> None:
    """Of two who want a name new one gets it; what is out of bounds is refused before anything is sent."""
    with names.connect(1) as one, names.connect(2) as two:
        done = one.set("db", ["tcp://10.0.0.7:5432"], new=True)
        with pytest.raises(Exists):
            two.set("db", ["tcp://10.0.0.9:5432"], new=True)
        two.set("db", ["tcp://10.0.0.9:5432"], version=done.place)
        with pytest.raises(VersionMismatch):
            one.set("db", ["tcp://10.0.0.7:5432"], version=done.place)
        one.alias("www", "db")
        answer = one.lookup("WWW")
        assert (answer.path, answer.addresses) == (("www", "db"), ("tcp://10.0.0.9:5432",))
        before = one.status()["counters"]
        for name, address in (("no name", "tcp://a"), ("x", "no address"), ("x" * 64, "tcp://a"), ("x", "station:65")):
            with pytest.raises(Malformed):
                one.set(name, [address])
        assert one.status()["counters"] == before, "nothing was sent"
    wrong = names.run(1, "set", "db", "no address")
    assert wrong.returncode == 2 and "address" in wrong.stderr and wrong.stdout == ""
    assert names.run(1, "alias", "db", "www").returncode == 1
    assert "circle" in names.run(1, "alias", "db", "www").stderr
    assert names.run(1, "--nonsense").returncode == 2
    nobody = names.run(1, "get", "db", "--socket", "/nowhere/directory.sock")
    assert nobody.returncode == 3 and "is zenjun-directory running?" in nobody.stderr


def test_all_are_killed_and_what_was_on_disk_is_there(names: Names) -> None:
    with names.connect(1) as d:
        for k in range(20):
            d.set(f"n{k}", [f"tcp://10.0.0.1:{k + 1}"])
    for station in (1, 2, 3):
        names.kill_station(station)
    for station in (1, 2, 3):
        names.start_station(station)
    wait_for(lambda: all(names.active(k) for k in (1, 2, 3)), "three active directories", 30)
    with names.connect(3) as d:
        assert len(d.list()) == 20
        sums = d.status()["sums"].split()[0]
    with names.connect(1) as d:
        assert d.status()["sums"].split()[0] == sums


def test_without_quorum_answers_are_stale_and_fresh_ones_refused(names: Names) -> None:
    with names.connect(1) as d:
        d.set("db", ["tcp://10.0.0.7:5432"])
        names.kill_station(2)
        names.kill_station(3)
        wait_for(lambda: d.lookup("db").stale_ms > 0, "a stale answer", 10)
        with pytest.raises(NoQuorum):
            d.lookup("db", fresh=True)


def test_a_damaged_file_is_moved_away_and_the_others_give_the_state(names: Names) -> None:
    with names.connect(1) as d:
        d.set("db", ["tcp://10.0.0.7:5432"])
    assert names.stop(2) == 0
    file = Path(names.lab.station(2).state_directory) / "directory.db"
    import sqlite3

    with sqlite3.connect(file) as rows:
        rows.execute("UPDATE rows SET row = replace(row, '7:5432', '8:5432') WHERE key = 'db'")
    rows.close()
    names.start(2)
    wait_for(lambda: names.active(2), "station 2 is back", 20)
    assert file.with_name("directory.db.bad-1").exists()
    with names.connect(2) as d:
        assert d.lookup("db").addresses == ("tcp://10.0.0.7:5432",)


def test_asyncio_watch_mirror_and_leases(names: Names) -> None:
    """A lease goes with its block, a watch tells of it in order, an exclusive name goes to the next in the queue."""

    async def run() -> None:
        async with connect_directory(names.socket(1), timeout=10) as one, connect_directory(names.socket(2), timeout=10) as two:
            await one.set("web.a", ["tcp://10.0.0.1:80"])
            seen: list[tuple[str, str, int]] = []
            places: dict[tuple[str, str, int], Place] = {}

            async def follow() -> None:
                async for change in two.watch("web."):
                    seen.append((change.kind, change.name, len(change.entry.targets) if change.entry else 0))
                    places.setdefault(seen[-1], change.place)

            follower = asyncio.create_task(follow())
            while ("listed", "", 0) not in seen:
                await asyncio.sleep(0.01)
            mirror = await two.mirror("web.")
            async with one.register("web.b", "tcp://10.0.0.2:80", ttl=2.0) as lease:
                assert lease.held
                await asyncio.sleep(3.0)  # renewed meanwhile
                assert list(mirror) == ["web.a", "web.b"]
            while len(seen) < 4:
                await asyncio.sleep(0.01)
            assert seen == [("changed", "web.a", 1), ("listed", "", 0), ("changed", "web.b", 1), ("changed", "web.b", 0)]
            assert list(mirror) == ["web.a"]
            follower.cancel()
            # Who knows a place goes on from there, at any station.
            await one.set("web.c", ["tcp://10.0.0.3:80"])
            again = one.watch("web.", since=places[("listed", "", 0)])
            later = [await anext(again) for _ in range(3)]
            assert [(c.kind, c.name, c.entry is not None) for c in later] == [
                ("changed", "web.c", True), ("changed", "web.b", False), ("listed", "", False),
            ]  # fmt: skip
            await again.aclose()
            async with (
                one.register("leader", "station:1/job", exclusive=True) as first,
                two.register("leader", "station:2/job", exclusive=True) as second,
            ):
                assert first.held and not second.held
                await one.close()
                await asyncio.wait_for(second.wait_held(), 10)
                assert (await two.lookup("leader")).addresses == ("station:2/job",)

    asyncio.run(run())


def test_a_lease_with_a_ttl_goes_with_a_program_that_hangs(names: Names) -> None:
    with names.connect(1) as d, names.connect(2) as other:
        d.register("web", "tcp://10.0.0.1:80", ttl=0.5)
        assert other.lookup("web", fresh=True).addresses == ("tcp://10.0.0.1:80",)
        began = time.monotonic()

        def gone() -> bool:
            try:
                other.lookup("web")
            except NoName:
                return True
            return False

        wait_for(gone, "the lease is over", 5)
        in_time(time.monotonic() - began < 3, "the lease is over")


def test_a_lease_comes_back_with_its_station(names: Names) -> None:
    """The daemon is killed and started again: the program is told that the name was lost, and that it has it again."""
    with names.connect(1) as d, names.connect(2) as other:
        lease = d.register("web", "tcp://10.0.0.1:80")
        assert lease.held
        assert other.lookup("web", fresh=True).addresses
        names.lab.station(1).signal(signal.SIGKILL)

        def gone() -> bool:
            try:
                other.lookup("web")
            except NoName:
                return True
            return False

        wait_for(gone, "the lease has ended for the others", 10)
        names.lab.station(1).start_daemon()

        def back() -> bool:
            d.poll()
            return not gone() and lease.held

        wait_for(back, "the lease is back", 20)
        assert other.lookup("web").addresses == ("tcp://10.0.0.1:80",)
        lease.close()
        wait_for(gone, "the lease is given back", 5)


def test_kept_answers_follow_what_others_change(names: Names) -> None:
    """Over an alias, a switch, an address taken out of use, and a copy that turns stale: never long behind, never unsaid."""
    with names.connect(1) as one, names.connect(2) as two:
        one.set("db", ["tcp://10.0.0.7:5432", "tcp://10.0.0.8:5432@1"])
        one.alias("www", "db", wait="everywhere")

        def follows(*expected: str) -> None:
            wait_for(lambda: two.lookup("www").addresses == expected, f"{expected} at the other station", 5)

        follows("tcp://10.0.0.7:5432")
        before = two.status()["lookups"]["ok"]
        for _ in range(1000):
            two.lookup("www")
        assert two.status()["lookups"]["ok"] == before, "kept answers are not asked for"
        one.update(calls.switch_of("db", ["tcp://10.0.0.9:1"]))
        follows("tcp://10.0.0.9:1")
        one.update(calls.switch_of("db", None))
        one.update(calls.out_of("tcp://10.0.0.7:5432"))
        follows("tcp://10.0.0.8:5432")
        one.set("other", ["tcp://10.0.0.5:1"])
        one.alias("www", "other")
        follows("tcp://10.0.0.5:1")
        assert two.lookup("www").stale_ms == 0
        names.kill_station(1)
        names.kill_station(3)
        wait_for(lambda: two.lookup("www").stale_ms > 0, "a stale answer", 10)


def test_an_update_outlives_its_process(names: Names) -> None:
    """The process is killed with updates under way: each is carried out once, and its program hears of it all the same."""
    for _ in range(3):
        with names.connect(1) as d:
            d.set("db", ["tcp://10.0.0.7:1"])
            d._protocol.ask("update", **d._protocol.changing((calls.add_of("db", ["tcp://10.0.0.8:1"]),), "disk"))
            d._pump(lambda: True, 0)
            names.processes[1].kill()
            names.processes[1].wait(60)
            names.start(1)
            done = d.update(calls.add_of("db", ["tcp://10.0.0.9:1"]), timeout=30)
        with names.connect(2) as other:
            found = other.outcome((d._protocol.client, 3))
            assert found is not None and found.place == done.place
            assert other.lookup("db", fresh=True).addresses[-1] == "tcp://10.0.0.9:1"
        wait_for(lambda: names.active(1), "the process is back", 20)


def test_reads_never_go_back_over_stations(names: Names) -> None:
    with names.connect(1) as one:
        one.set("db", ["tcp://10.0.0.7:5432"])
        clock, station, index = one.place
    ahead = (clock + 50, station, index)
    with connect_directory_sync(names.socket(2), timeout=0.5, place=ahead) as two:
        with pytest.raises(TimeoutError):
            two.lookup("db")
        with names.connect(1) as one:
            while one.place < ahead:
                one.set("db", ["tcp://10.0.0.8:5432"], wait="memory")
        assert two.lookup("db", timeout=10).addresses == ("tcp://10.0.0.8:5432",)
        assert two.place >= ahead


def test_a_lab_with_directories_from_the_command_line(tmp_path: Path) -> None:
    """What docs/directory-service.md says to try."""

    def zenjun(*words: str, code: int = 0) -> str:
        argv = [sys.executable, "-c", "from zenjun.tools.command import main; main()", *words]
        env = {**os.environ, "ZENJUN_LAB_HOME": str(tmp_path), "ZENJUN_LAB": "names"}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout

    zenjun("lab", "up", "-n", "3", "--directory")
    try:
        run = ("-c", "from zenjun.tools.command import main; main()", "name")

        def set_db() -> bool:
            argv = ["lab", "exec", "-s", "1", "--", sys.executable, *run, "set", "db", "tcp://10.0.0.7:5432"]
            try:
                zenjun(*argv)
            except AssertionError:  # the processes have just been started
                return False
            return True

        wait_for(set_db, "a name is set", 20)
        assert "tcp://10.0.0.7:5432" in zenjun("lab", "exec", "-s", "3", "--", sys.executable, *run, "get", "db", "--fresh")
        zenjun("lab", "kill", "-s", "2")
        wait_for(
            lambda: "1, 3 active" in zenjun("lab", "exec", "-s", "1", "--", sys.executable, *run, "status"), "two holders", 10
        )
    finally:
        zenjun("lab", "down")
    assert not list(tmp_path.glob("*/s1/directory.sock"))
