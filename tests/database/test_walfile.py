"""What was committed outlasts a sync that failed, with the process killed before it could say so (docs/database.md, D4).

The disk is simulated: what a failed sync leaves in the page cache may be forgotten, so the file gets its former bytes back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from zenjun.daemon.database import walfile
from zenjun.daemon.database.applier import Applier
from zenjun.daemon.database.walfile import ContentLost, write_again

from ..rules import rule
from .rig import content, create

READER = """
import sys, apsw
c = apsw.Connection(sys.argv[1], flags=apsw.SQLITE_OPEN_READONLY)
c.execute("BEGIN")
print(c.execute("SELECT v FROM meta").fetchone()[0], flush=True)
sys.stdin.read()
"""
KILLED = """
import os, sys
from pathlib import Path
from typing import Any
import apsw
from zenjun.daemon.database.applier import Applier
a = Applier.open(Path(sys.argv[1]))
for v in range(1, 4):
    with a.connection:
        a.connection.execute("UPDATE meta SET v = ?; ", (v,))
        a.connection.execute("UPDATE t SET a = ?", (v,))
    if v == 2:
        print("now", flush=True)
        sys.stdin.readline()
print(*a.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE), flush=True)
os.kill(os.getpid(), 9)
"""


@contextlib.contextmanager
def program(text: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", text, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def held_up(tmp_path: Path) -> Iterator[tuple[Path, bytes]]:
    """A file of which a reader has the second of three versions, so that a checkpoint brought two into it, and whose process was
    killed. Also the bytes that the disk had before."""
    path = tmp_path / "x.db"
    create(path, rows=300).close()
    before = path.read_bytes()
    with program(KILLED, path) as writer, contextlib.ExitStack() as stack:
        assert line(writer) == "now"
        reader = stack.enter_context(program(READER, path))
        assert line(reader) == "2"
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
        frames, done = map(int, line(writer).split())
        assert 0 < done < frames, "the checkpoint is a partial one"
        assert writer.wait(20) == -9
        yield path, before


def found(path: Path) -> list[Any]:
    """What another process has, once it has brought all of the log into the file."""
    applier = Applier.open(path)
    try:
        applier.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        rows: list[Any] = applier.connection.execute("SELECT v, (SELECT sum(a) FROM t) FROM meta").fetchall()
        return rows + applier.connection.execute("PRAGMA integrity_check(1)").fetchall()
    except apsw.CorruptError as error:
        return [str(error)]
    finally:
        applier.close()


@rule("D4")
@pytest.mark.parametrize("again", [True, False])
def test_a_partial_checkpoint_is_not_on_the_disk(held_up: tuple[Path, bytes], again: bool) -> None:
    """Without the second writing the next checkpoint takes its frames for done."""
    path, before = held_up
    assert path.read_bytes() != before
    path.write_bytes(before)
    if again:
        write_again(path)
    assert (found(path) == [(3, 900), ("ok",)]) is again


@rule("D4")
def test_what_is_written_again_is_synced(held_up: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """The log, and the pages that a checkpoint has taken from it; each after it was written."""
    path, _ = held_up
    before = {name: name.read_bytes() for name in (path, path.with_name("x.db-wal"))}
    happened: list[tuple[str, str]] = []
    write, sync = os.pwrite, os.fdatasync

    def name(fd: int) -> str:
        return Path(f"/proc/self/fd/{fd}").readlink().name

    def pwrite(fd: int, data: bytes, at: int) -> int:
        happened.append(("write", name(fd)))
        return write(fd, data, at)

    def fdatasync(fd: int) -> None:
        happened.append(("sync", name(fd)))
        sync(fd)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(walfile, "COPY_BYTES", 4096)
    write_again(path)
    assert list(dict.fromkeys(happened)) == [
        ("write", "x.db-wal"), ("sync", "x.db-wal"), ("write", "x.db"), ("sync", "x.db"),
    ]  # fmt: skip
    assert happened.count(("write", "x.db-wal")) >= path.with_name("x.db-wal").stat().st_size // 4096
    assert {name: name.read_bytes() for name in before} == before, "nothing is changed"


@rule("D4")
@pytest.mark.parametrize("damage", ["frame", "shorter", "none"])
def test_a_log_that_lacks_what_was_committed(held_up: tuple[Path, bytes], damage: str) -> None:
    """The page cache has forgotten it: the copy must not be used."""
    path, _ = held_up
    wal = path.with_name("x.db-wal")
    if damage == "none":
        wal.write_bytes(b"")
    else:
        with wal.open("r+b") as file:
            if damage == "shorter":
                file.truncate(wal.stat().st_size // 2)
            else:
                file.seek(wal.stat().st_size // 2)
                file.write(bytes(4096))
    with pytest.raises(ContentLost, match="frames can be read"):
        write_again(path)


def test_without_an_index_the_log_says_what_there_is(held_up: tuple[Path, bytes], tmp_path: Path) -> None:
    """After the last program has closed the file the next one reads the log as far as it is valid, and nothing else."""
    path, _ = held_up
    other = tmp_path / "other"
    other.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(path.with_name(f"x.db{suffix}"), other)
    write_again(other / "x.db")
    (other / "x.db-shm").write_bytes(bytes(32768))
    write_again(other / "x.db")
    applier = Applier.open(other / "x.db")
    assert content(applier.connection)["meta"] == ["(1, 3)"]
    applier.close()
    (other / "x.db-shm").unlink()
    (other / "x.db-wal").write_bytes(b"no log")
    write_again(other / "x.db")


def test_a_log_that_has_begun_again(tmp_path: Path) -> None:
    """Its former frames are of other salts, and no frames are committed."""
    path = tmp_path / "x.db"
    applier = create(path, rows=10)
    with program(READER, path) as reader:
        assert line(reader) == "0"
        applier.close()
        write_again(path)
