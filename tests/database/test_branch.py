"""One branch: what it sees, what it never does, what it refuses, and what stays of it."""

from __future__ import annotations

import gc
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import apsw
import pytest
from zenjun.daemon.database import vfs
from zenjun.daemon.database.applier import Applied, Applier
from zenjun.daemon.database.branch import Branch
from zenjun.daemon.database.errors import IntegrityError, NotSupportedError, OperationalError, ProgrammingError

from ..rules import rule
from .pages import MODES
from .rig import branch_pages, commit, create, files, pages


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a database?.db"


@pytest.fixture
def applier(path: Path) -> Iterator[Applier]:
    made = create(path)
    yield made
    made.close()


@pytest.fixture
def branch(path: Path, applier: Applier) -> Iterator[Branch]:
    with Branch(path) as made:
        yield made


_VALUES = count(1)


def work(applier: Applier, commits: int = 200) -> None:
    """Each writes something new: SQLite does not write what is there already."""
    for i in islice(_VALUES, commits):
        with applier.connection:
            applier.connection.execute("UPDATE t SET a = ?, b = ? WHERE id = ?", (i, "y" * 100, i * 37 % 5000))


def checkpoint(path: Path, mode: int) -> str:
    """By another connection; what came of it."""
    connection = apsw.Connection(str(path))
    try:
        connection.pragma("synchronous", "OFF")
        connection.wal_checkpoint(mode=mode)
        return "done"
    except apsw.BusyError:
        return "busy"
    finally:
        connection.close()


@rule("B1")
@pytest.mark.parametrize("start", ["empty WAL", "frames in the WAL", "all frames backfilled"])
def test_a_snapshot_outlasts_commits_and_all_checkpoints(path: Path, applier: Applier, branch: Branch, start: str) -> None:
    if start != "empty WAL":
        work(applier)
    if start == "all frames backfilled":
        checkpoint(path, apsw.SQLITE_CHECKPOINT_PASSIVE)
    begun = branch.begin()
    assert (begun.frames == begun.backfilled) == (start != "frames in the WAL")
    before = pages(branch.reader)
    branch.execute("SAVEPOINT s; UPDATE t SET a = -1 WHERE id < 4; INSERT INTO t VALUES(99999, 1, 2)").fetchall()
    results = set()
    for _ in range(4):
        work(applier, 50)
        results |= {(mode, checkpoint(path, mode)) for mode in MODES}
        assert (
            branch.execute("SELECT count(*), sum(a) FROM t").fetchall()
            != branch.reader.execute("SELECT count(*), sum(a) FROM t").fetchall()
        )
        assert pages(branch.reader) == before
    assert (apsw.SQLITE_CHECKPOINT_TRUNCATE, "busy") in results, "the reader's lock holds"
    branch.execute("ROLLBACK TO s").fetchall()
    branch.writer.pragma("shrink_memory")
    assert pages(branch.writer) == before and branch.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    branch.end()
    assert checkpoint(path, apsw.SQLITE_CHECKPOINT_TRUNCATE) == "done", "nothing of the branch is left"


@rule("B1")
@pytest.mark.parametrize("page_bytes", [512, 1024, 65536])
def test_all_sizes_of_pages(path: Path, page_bytes: int) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("page_size", page_bytes)
    connection.pragma("journal_mode", "WAL")
    connection.close()
    applier = create(path)
    assert applier.connection.pragma("page_size") == page_bytes
    with Branch(path) as branch:
        for i in range(3):
            work(applier, 20)
            branch.begin()
            branch.execute("CREATE TEMP TABLE IF NOT EXISTS x(y)")
            branch.execute("UPDATE t SET b = b || 'x'")
            assert branch.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            changeset = branch.changeset()
            if i:
                branch.keep()
            branch.end()
            assert commit(applier, changeset) is Applied.DONE
    applier.close()


@rule("B3")
def test_nothing_is_written_before_the_order_has_decided(path: Path, applier: Applier, branch: Branch) -> None:
    work(applier, 20)
    branch.begin()
    before = files(path)
    branch.execute("PRAGMA cache_size = 20").fetchall()
    branch.execute(
        "UPDATE t SET b = 'new' || id WHERE id % 3 = 0; DELETE FROM t WHERE id % 7 = 0; CREATE TEMP TABLE x(y)"
    ).fetchall()
    branch.execute("INSERT INTO t SELECT id + 100000, a, b FROM t LIMIT 3000; INSERT INTO x SELECT id FROM t").fetchall()
    assert branch.writer.status(apsw.SQLITE_DBSTATUS_CACHE_SPILL)[0] > 0, "pages had to leave the cache"
    assert branch.changeset()
    branch.keep()
    assert files(path) == before
    branch.end()
    branch.close()
    assert files(path) == before


@rule("B3", "B4")
def test_a_branch_that_was_kept_has_its_temporary_rows_and_sees_the_applier(path: Path, applier: Applier, branch: Branch) -> None:
    branch.begin()
    branch.execute("CREATE TEMP TABLE seen(id); INSERT INTO seen VALUES(1); UPDATE t SET a = 7 WHERE id = 1").fetchall()
    changeset = branch.changeset()
    branch.keep()
    assert branch.writer.execute("SELECT a FROM t WHERE id = 1").fetchall() == [(7,)]
    assert branch.reader.execute("SELECT a FROM t WHERE id = 1").fetchall() == [(0,)]
    branch.end()
    branch.begin()
    assert branch.execute("SELECT a FROM t WHERE id = 1").fetchall() == [(0,)], "not applied yet"
    assert branch.execute("SELECT id FROM seen").fetchall() == [(1,)]
    branch.execute("INSERT INTO seen VALUES(2)")
    branch.end()
    assert commit(applier, changeset) is Applied.DONE
    branch.begin()
    assert branch.execute("SELECT a FROM t WHERE id = 1").fetchall() == [(7,)]
    assert branch.execute("SELECT id FROM seen").fetchall() == [(1,)], "what was not kept is gone"
    assert branch_pages(branch) == pages(branch.reader)
    branch.end()


@rule("B4")
def test_what_spilled_is_forgotten(path: Path, applier: Applier, branch: Branch) -> None:
    """Own frames of one transaction, kept or not, never show up in a later one; and their file shrinks."""
    for kept in (True, False, True, False):
        branch.begin()
        branch.execute("CREATE TEMP TABLE IF NOT EXISTS x(y)")  # without one ``keep`` has nothing to commit
        branch.execute("PRAGMA cache_size = 20; UPDATE t SET a = a + 1, b = b || 'y'").fetchall()
        assert branch.changeset()
        if kept:
            branch.keep()
        branch.end()
        work(applier, 3)
        branch.begin()
        assert branch_pages(branch) == pages(branch.reader)
        branch.end()


def test_a_large_transaction_needs_little_memory(path: Path, applier: Applier, branch: Branch) -> None:
    branch.begin()
    numbers = "WITH RECURSIVE n(i) AS (VALUES(10000) UNION ALL SELECT i + 1 FROM n WHERE i < 40000)"
    branch.execute(f"{numbers} INSERT INTO t SELECT i, 1, zeroblob(1000) FROM n")
    assert branch.writer.status(apsw.SQLITE_DBSTATUS_CACHE_USED)[0] < 4 << 20
    changeset = branch.changeset()
    assert len(changeset) > 30_000_000
    branch.end()
    assert commit(applier, changeset) is Applied.DONE


def locks(path: Path) -> list[tuple[str, ...]]:
    """The process's POSIX locks on the three files."""
    inodes = {os.stat(f"{path}{suffix}").st_ino: suffix for suffix in ("", "-wal", "-shm")}  # noqa: PTH116
    found = []
    for line in Path("/proc/locks").read_text().splitlines():
        _, kind, _, mode, pid, file, *span = line.replace("-> ", "").split()
        if kind == "POSIX" and int(pid) == os.getpid() and (inode := int(file.split(":")[2])) in inodes:
            found.append((inodes[inode], mode, *span))
    return sorted(found)


@rule("B5")
def test_other_connections_keep_their_locks(path: Path, applier: Applier, branch: Branch) -> None:
    work(applier, 5)
    branch.begin()
    held = locks(path)
    assert {suffix for suffix, *_ in held} == {"", "-shm"}
    for _ in range(5):
        with Branch(path) as other:
            other.begin()
            other.execute("DELETE FROM t")
    assert locks(path) == held
    os.close(os.open(f"{path}-shm", os.O_RDONLY))  # what the VFS must not do
    assert locks(path) != held, "the check sees a lock that is lost"


@rule("B6")
def test_the_wal_stays_when_a_branch_closes(path: Path, applier: Applier) -> None:
    work(applier, 5)
    applier.close()
    for _ in range(2):
        with Branch(path) as branch:
            branch.begin()
            branch.execute("CREATE TEMP TABLE x(y); DELETE FROM t").fetchall()
            branch.keep()
    with Branch(path) as branch:
        branch.begin()
        assert branch.execute("SELECT count(*) FROM t").fetchall() == [(5000,)]
    assert Path(f"{path}-wal").exists()


REFUSED = {
    "COMMIT": "begins and ends",
    "BEGIN": "begins and ends",
    "ROLLBACK": "begins and ends",
    "CREATE TABLE x(y)": "schema",
    "CREATE INDEX ix ON t(a)": "schema",
    "DROP TABLE t": "schema",
    "ALTER TABLE t ADD COLUMN c": "schema",
    "ALTER TABLE t RENAME TO u": "schema",
    "CREATE VIRTUAL TABLE f USING fts5(x)": "schema",
    "ATTACH ':memory:' AS other": "ATTACH",
    "DETACH temp": "DETACH",
    "ANALYZE": "schema",
    "REINDEX": "REINDEX",
    "INSERT INTO zenjun_meta VALUES(1)": "zenjun_meta",
    "DELETE FROM sqlite_sequence": "sqlite_sequence",
    "PRAGMA journal_mode = DELETE": "journal_mode",
    "PRAGMA wal_checkpoint": "wal_checkpoint",
    "PRAGMA main.user_version = 7": "user_version",
    "PRAGMA synchronous = OFF": "synchronous",
    "VACUUM": "VACUUM",
    "VACUUM INTO 'other.db'": "VACUUM",
}


@rule("B7")
def test_what_no_changeset_can_carry_is_refused(path: Path, applier: Applier) -> None:
    applier.connection.execute("CREATE TABLE zenjun_meta(v); CREATE TABLE q(id INTEGER PRIMARY KEY AUTOINCREMENT)")
    applier.connection.execute("CREATE INDEX ia ON t(a)")
    with Branch(path) as branch:
        branch.begin()
        before = files(path)
        branch.execute("UPDATE t SET a = 5 WHERE id = 1")
        for statement, reason in REFUSED.items():
            with pytest.raises((NotSupportedError, apsw.SQLError), match=reason):
                branch.execute(statement).fetchall()
            assert branch.execute("SELECT a FROM t WHERE id = 1").fetchall() == [(5,)], f"{statement} took something with it"
        assert branch.execute("INSERT INTO q DEFAULT VALUES RETURNING id").fetchall() == [(1,)], (
            "SQLite itself may write its table"
        )
        assert files(path) == before


def test_a_commit_behind_the_guard_writes_nothing(path: Path, branch: Branch) -> None:
    branch.begin()
    branch.execute("UPDATE t SET a = 5 WHERE id = 1")
    branch.writer.set_authorizer(None)
    before = files(path)
    with pytest.raises(apsw.ConstraintError):
        branch.writer.execute("COMMIT")
    with pytest.raises(OperationalError, match="ended the transaction"):
        branch.changeset()
    branch.end()
    assert files(path) == before


def test_errors_say_what_is_wrong(tmp_path: Path, path: Path, branch: Branch) -> None:
    with pytest.raises(OperationalError, match="unable to open"):
        Branch(tmp_path / "none.db")
    other = tmp_path / "other.db"
    apsw.Connection(str(other)).execute("CREATE TABLE t(a)").fetchall()
    with pytest.raises(NotSupportedError, match="journal mode delete, not wal"):
        Branch(other)
    assert {p.name for p in tmp_path.glob("other*")} == {"other.db"}, "no -shm is made for it"
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"no database" * 1000)
    with pytest.raises(OperationalError, match="not a database"):
        Branch(garbage)
    with pytest.raises(OperationalError, match="not a database"):
        Applier.open(garbage)
    with pytest.raises(ProgrammingError, match="no transaction"):
        branch.execute("SELECT 1")
    branch.begin()
    with pytest.raises(ProgrammingError, match="has a transaction"):
        branch.begin()
    with pytest.raises(apsw.MisuseError):
        vfs.bind(branch.writer, branch.reader)
    with pytest.raises(apsw.MisuseError):
        vfs.drop(branch.reader)


def test_a_snapshot_comes_with_its_position_and_schema(applier: Applier, branch: Branch) -> None:
    begun = branch.begin()
    assert begun.facts is None and begun.schema == branch.schema_version() == branch.writer.pragma("schema_version")
    with pytest.raises(apsw.SQLError, match="zenjun_meta"):
        assert branch.position
    branch.end()
    applier.connection.execute("CREATE TABLE zenjun_meta(epoch, version); INSERT INTO zenjun_meta VALUES(5, 1 << 40)")
    for version in (1 << 40, (1 << 40) + 1):
        begun = branch.begin()
        assert begun.facts == branch.position == (5, version)
        assert begun.schema == branch.schema_version() == branch.reader.pragma("schema_version")
        branch.change_schema("CREATE TABLE x(id INTEGER PRIMARY KEY)")
        assert branch.schema_version() == branch.writer.pragma("schema_version") != begun.schema
        branch.end()
        applier.connection.execute("UPDATE zenjun_meta SET version = version + 1")


def test_a_program_that_closes_nothing_ends_without_a_word(path: Path, applier: Applier) -> None:
    """The writer has statements of the reader, which can only be closed after it."""
    code = f"""
from zenjun.daemon.database.branch import Branch
class Holder:
    pass
one, two = Branch({str(path)!r}), Holder()
two.branch, two.me = Branch({str(path)!r}), two
for branch in (one, two.branch):
    branch.begin()
    branch.execute("UPDATE t SET b = 'new'")
two.branch.end()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_connections_to_two_files_are_no_branch(tmp_path: Path, path: Path, branch: Branch) -> None:
    create(tmp_path / "other.db").close()
    writer = apsw.Connection(str(tmp_path / "other.db"), vfs=vfs.NAME)
    with pytest.raises(apsw.MismatchError):
        vfs.bind(writer, branch.reader)
    with pytest.raises(apsw.IOError):
        writer.execute("SELECT * FROM t").fetchall()
    writer.close()


@rule("B2")
def test_a_branch_without_its_snapshot_reads_nothing(branch: Branch) -> None:
    """At once, and not what the file has become."""
    branch.begin()
    cursor = branch.execute("SELECT id FROM t")
    assert next(iter(cursor)) == (0,)
    with pytest.raises(apsw.MisuseError):
        vfs.drop(branch.writer)
    branch.end()
    with pytest.raises(apsw.CursorClosedError):
        cursor.fetchall()
    with pytest.raises(apsw.IOError):
        branch.writer.execute("SELECT count(*) FROM t").fetchall()


@rule("B7")
def test_null_in_a_key_is_refused(path: Path, applier: Applier) -> None:
    """A session leaves such rows out."""
    applier.connection.execute(
        'CREATE TABLE n("the key" TEXT PRIMARY KEY, v); CREATE TABLE c(a INT, b INT, v, PRIMARY KEY(a, b))'
    )
    with Branch(path) as branch:
        for statement in ("INSERT INTO n(v) VALUES(1)", "INSERT INTO c VALUES(1, NULL, 1)"):
            branch.begin()
            branch.execute("INSERT INTO n VALUES('a', 1)")
            assert branch.changeset()
            branch.execute(statement)
            with pytest.raises(IntegrityError, match="NULL in the key"):
                branch.changeset()
            branch.end()
        branch.begin()
        branch.execute("INSERT INTO t VALUES(NULL, 1, 2)")
        assert branch.changeset(), "an INTEGER PRIMARY KEY takes NULL for the next number"
        branch.end()


@rule("B7")
def test_a_violated_deferred_foreign_key_is_refused(path: Path, applier: Applier) -> None:
    schema = "CREATE TABLE p(id INTEGER PRIMARY KEY); CREATE TABLE k(p REFERENCES p DEFERRABLE INITIALLY DEFERRED)"
    applier.connection.execute(schema)
    with Branch(path) as branch:
        branch.begin()
        branch.execute("INSERT INTO k VALUES(1)")
        with pytest.raises(IntegrityError, match="FOREIGN KEY"):
            branch.changeset()
        branch.execute("INSERT INTO p VALUES(1)")
        changeset = branch.changeset()
        branch.end()
        assert commit(applier, changeset) is Applied.DONE


def test_a_transaction_that_a_statement_ended_is_not_promised(path: Path, applier: Applier, branch: Branch) -> None:
    branch.begin()
    branch.execute("UPDATE t SET a = 1")
    with pytest.raises(apsw.ConstraintError):
        branch.execute("INSERT OR ROLLBACK INTO t VALUES(1, 1, 1)")
    for call in (branch.changeset, branch.keep, lambda: branch.execute("SELECT 1")):
        with pytest.raises(OperationalError, match="ended the transaction"):
            call()
    branch.end()
    branch.begin()
    assert branch.execute("SELECT max(a) FROM t").fetchall() == [(0,)]


_CLIENT = """
import os, sys
from pathlib import Path
from zenjun.daemon.database.branch import Branch
path = Path(sys.argv[1])
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
for suffix in ("", "-wal"):
    try:
        open(f"{path}{suffix}", "r+b")
    except PermissionError:
        continue
    raise SystemExit(f"this program may write {suffix or 'the file'}")
with Branch(path) as branch:
    for _ in range(int(sys.argv[2])):
        branch.begin()
        branch.execute("UPDATE t SET a = a + 1 WHERE id = 1; INSERT INTO t VALUES(NULL, 1, 2)").fetchall()
        assert branch.execute("SELECT count(*) FROM t").fetchall() > [(5000,)]
        assert branch.changeset()
        branch.end()
"""


@rule("B9")
def test_programs_need_only_read_the_file(tmp_path: Path, path: Path, applier: Applier) -> None:
    """Programs that may write the -shm alone. Several, for one of them would find a free read mark in any case."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == Path(tmp_path).owner() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    for suffix, mode in (("", 0o444), ("-wal", 0o444), ("-shm", 0o666)):
        Path(f"{path}{suffix}").chmod(mode)
    argv = [sys.executable, "-c", _CLIENT, str(path), "50"]
    programs = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    while any(program.poll() is None for program in programs):
        work(applier, 20)
    results = [(program.returncode, program.communicate(timeout=240)[1]) for program in programs]
    assert results == [(0, "")] * 3


@rule("B9")
def test_the_group_may_write_the_shm(path: Path) -> None:
    path.touch()
    path.chmod(0o640)
    create(path).close()
    assert stat.S_IMODE(Path(f"{path}-shm").stat().st_mode) == 0o660
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@rule("B10")
def test_the_wal_begins_again_between_transactions(path: Path, applier: Applier) -> None:
    """Branches that overlap all the time keep a WAL growing; while the applier pauses, they move on."""
    branches = [Branch(path) for _ in range(2)]
    for i, branch in enumerate(branches):
        work(applier, 10)
        branch.begin()
        assert not applier.restart_wal(0.01), f"branch {i} needs it"
    branches[0].end()
    assert not applier.restart_wal(0.0), "the other one needs it; but all frames are in the file now"
    branches[0].begin()
    branches[1].end()
    branches[1].begin()
    before = Path(f"{path}-wal").stat().st_size
    assert applier.restart_wal(), "those that have begun since need the file only"
    work(applier, 10)
    assert Path(f"{path}-wal").stat().st_size == before
    for branch in branches:
        branch.close()


def test_an_old_sqlite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lib:
        zb_loaded = staticmethod(lambda: 0)

    monkeypatch.setattr(vfs, "lib", Lib)
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.40.1")
    with pytest.raises(NotSupportedError, match=r"3\.40\.1 in apsw: 3\.54\.0 or later"):
        vfs.load()


def test_a_damaged_index_is_told(path: Path, applier: Applier, branch: Branch) -> None:
    """No snapshot: an error, within the time-out, and not another program's pages."""
    work(applier, 5)
    with Path(f"{path}-shm").open("r+b") as shm:  # drops this process's locks, which does not matter here
        shm.write(b"\xff" * 96)
    other: Any = Branch(path, busy_timeout_ms=50)
    begun = other.begin()  # SQLite recovers the index from the WAL
    assert begun.frames > 0 and other.execute("SELECT count(*) FROM t").fetchall() == [(5000,)]
    other.close()


def test_a_program_without_descriptors_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite says only that it cannot open the file."""

    def none(fd: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "dup", none)
    with pytest.raises(OperationalError, match=r"unable to open database file: Too many open files; .*ulimit -n"):
        Branch(tmp_path / "nothing.db")


def test_who_forgets_to_close(path: Path, applier: Applier) -> None:
    """The writer has statements of the reader: collected in another order the process ended with a fault."""
    branch = Branch(path)
    branch.begin()
    writer, reader, cycle = branch.writer, branch.reader, [branch]
    cycle.append(cycle)  # type: ignore[arg-type]
    del branch, cycle
    gc.collect()
    for connection in (writer, reader):
        with pytest.raises(apsw.ConnectionClosedError):
            connection.execute("SELECT 1")
