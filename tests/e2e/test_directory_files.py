"""The directory's file on real processes: no room on the disk, another station's file, damaged ones, an old one."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from zenjun.daemon.names import NoQuorum, calls

from .cluster import cluster, reported, wait_for
from .test_directory import Names

pytestmark = pytest.mark.lab


@contextmanager
def three() -> Iterator[Names]:
    """Three stations whose directories are active."""
    with cluster(3) as lab:
        up = Names(lab)
        try:
            for station in (1, 2, 3):
                up.start(station)
            wait_for(lambda: all(up.active(k) for k in (1, 2, 3)), "three active directories", 60)
            yield up
        finally:
            end(up)


def end(names: Names) -> None:
    for process in names.processes.values():
        process.kill()
        process.wait(60)


def file_of(names: Names, station: int) -> Path:
    return Path(names.lab.station(station).state_directory) / "directory.db"


def log_of(names: Names, station: int) -> str:
    return (names.lab.station(station).directory / "directory.log").read_text()


def equal(names: Names, *stations: int) -> Callable[[], bool]:
    """Whether these stations' copies are active and have the same names."""

    def look() -> bool:
        found = set()
        for station in stations:
            with names.connect(station) as d:
                status = d.status()
                found.add((status["active"], status["sums"].split()[0]))
        return len(found) == 1 and found.pop()[0]

    return look


def test_a_full_disk_stops_nobody_else() -> None:
    """The station answers what it has, marked as stale, and says what to do. A quorum of disks is enough for the others. It comes
    back by itself when there is room."""
    with cluster(3) as lab, reported(lab):
        names = Names(lab)
        full = lab.station(3)
        place = full.state_directory
        assert full.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", place]).returncode == 0
        try:
            for station in (1, 2):
                names.start(station)
            with (full.directory / "directory.log").open("ab") as log:
                argv = [sys.executable, "-m", "zenjun.daemon.directory", "--config", str(full.config_path)]
                names.processes[3] = full.spawn(argv, stdout=log, stderr=log)
            wait_for(lambda: all(names.active(k) for k in (1, 2, 3)), "three active directories", 60)
            with names.connect(1) as one, names.connect(3) as three:
                one.set("db", ["tcp://10.0.0.7:5432"], wait="everywhere")
                filled = full.run(["sh", "-c", 'cat /dev/zero > "$1"', "sh", place / "ballast"])
                assert "No space left on device" in filled.stderr

                def stale() -> bool:
                    for k in range(32):
                        one.set(f"n{k}", ["tcp://10.0.0.1:1"], meta={"text": "x" * 900}, wait="disk")
                    return three.lookup("db").stale_ms > 0

                wait_for(stale, "station 3 has no room", 60)
                assert three.lookup("db").addresses == ("tcp://10.0.0.7:5432",)
                text = log_of(names, 3)
                assert "make room" in text and str(place) in text, text
                one.set("db", ["tcp://10.0.0.8:5432"], wait="disk")
                assert names.active(1) and names.active(2)
                assert full.run(["rm", place / "ballast"]).returncode == 0
                wait_for(equal(names, 1, 2, 3), "station 3 has all", 60)
                assert three.lookup("db").addresses == ("tcp://10.0.0.8:5432",) and three.lookup("db").stale_ms == 0
        finally:
            end(names)


def test_without_a_quorum_of_disks_it_is_said_whose_are_missing() -> None:
    with three() as names:
        assert names.stop(2) == 0 and names.stop(3) == 0
        with names.connect(1) as d, pytest.raises(NoQuorum, match="2, 3"):
            d.update(calls.set_of("db", ["tcp://10.0.0.7:5432"]), wait="disk", timeout=2)


def test_another_stations_file_and_an_old_one() -> None:
    """A copied folder is refused, with both stations and what to do; a copy of the own file gets what has changed since."""
    with three() as names:
        with names.connect(1) as d:
            for k in range(5):
                d.set(f"n{k}", ["tcp://10.0.0.1:1"], wait="everywhere")
        assert names.stop(2) == 0
        own = file_of(names, 2)
        old = own.read_bytes()
        assert not own.with_name("directory.db-wal").exists(), "after an end in order all is in the file"
        with names.connect(1) as d:
            d.rm("n1")
            d.set("n0", ["tcp://10.0.0.1:2"])
        with sqlite3.connect(file_of(names, 1)) as source, sqlite3.connect(own) as target:
            source.backup(target)
        source.close()
        target.close()
        names.start(2)
        assert names.processes[2].wait(30) == 5
        last = log_of(names, 2)
        assert f"{own} belongs to station 1 of cluster" in last and "this is station 2 of cluster" in last
        assert "remove the file: the others have the state" in last
        own.write_bytes(old)
        names.start(2)
        wait_for(lambda: names.active(2), "station 2 is back with its old file", 60)
        wait_for(equal(names, 1, 2, 3), "it has what has changed", 30)
        with names.connect(2) as d:
            assert [e.name for e in d.list()] == ["n0", "n2", "n3", "n4"]


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def overwritten(file: Path) -> None:
    """Pages in the middle."""
    with file.open("r+b") as f:
        f.seek(4096)
        f.write(b"\xa5" * 8192)


def no_database(file: Path) -> None:
    file.write_bytes(b"not what SQLite writes\n" * 400)


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("stopped", [(2,), (1, 2, 3)])
def test_damaged_files_are_moved_away_and_the_others_give_the_state(stopped: tuple[int, ...]) -> None:
    """Also when all were down: what is damaged does not count for a quorum."""
    with three() as names:
        with names.connect(1) as d:
            for k in range(30):
                d.set(f"n{k}", ["tcp://10.0.0.1:1"], meta={"text": "x" * 500}, wait="everywhere")
        file, moved = file_of(names, 2), 0
        for damage in (truncated, overwritten, no_database, empty) if stopped == (2,) else (overwritten,):
            for station in stopped:
                assert names.stop(station) == 0
            damage(file)
            for station in stopped:
                names.start(station)
            wait_for(lambda: names.active(2), f"station 2 is back, {damage.__name__}", 60)
            wait_for(equal(names, 1, 2, 3), f"equal copies, {damage.__name__}", 30)
            if damage is not empty:  # that is a new one
                moved += 1
                assert f"{file} was damaged" in log_of(names, 2) and file.with_name(f"directory.db.bad-{moved}").exists()
        with names.connect(2) as d:
            assert len(d.list()) == 30


def test_a_folder_that_may_not_be_written() -> None:
    """The exit names file and reason, and a restart does not mend it."""
    with three() as names:
        assert names.stop(3) == 0
        folder = file_of(names, 3).parent
        file_of(names, 3).unlink()
        shutil.copytree(folder, away := folder.with_name("away"))
        shutil.rmtree(folder)
        folder.write_text("no folder")
        try:
            names.start(3)
            assert names.processes[3].wait(30) == 5
            assert f"cannot use {folder / 'directory.db'}" in log_of(names, 3)
        finally:
            folder.unlink()
            shutil.copytree(away, folder)
