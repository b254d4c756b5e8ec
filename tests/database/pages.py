"""Branches beside an applier that commits, checkpoints and is killed: every branch sees its snapshot, page for page.

    python -m tests.database.pages FOLDER --seconds 60 [--kill] [--unpinned] [--seed N]

Prints counts as JSON. ``--first`` ends at the first difference; ``--unpinned`` breaks the rule that the reader's transaction
lasts as long as the branch's.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import apsw
from zenjun.daemon.database.applier import Applier
from zenjun.daemon.database.branch import Branch
from zenjun.daemon.database.errors import OperationalError

from .rig import ROWS, create, pages

MODES = (
    apsw.SQLITE_CHECKPOINT_PASSIVE,
    apsw.SQLITE_CHECKPOINT_FULL,
    apsw.SQLITE_CHECKPOINT_RESTART,
    apsw.SQLITE_CHECKPOINT_TRUNCATE,
)


def applying(path: Path, seed: int) -> None:
    """Commit until killed: now and then more than the cache holds, so that uncommitted pages are in the WAL, and take it back;
    and checkpoint in all modes. ``meta`` has the sum of what t.a has."""
    r = random.Random(seed)
    c = Applier.open(path).connection
    c.set_busy_timeout(20)
    c.pragma("cache_size", 20)
    while True:
        try:
            c.execute("BEGIN IMMEDIATE")
            count = r.choice((1, 1, 1, 1, 300))
            for _ in range(count):
                c.execute("UPDATE t SET a = a + 1, b = ? WHERE id = ?", ("z" * r.randrange(300), r.randrange(ROWS)))
            c.execute("UPDATE meta SET v = v + ?", (count,))
            c.execute("ROLLBACK" if r.random() < 0.1 else "COMMIT")
            if r.random() < 0.1:
                c.wal_checkpoint(mode=r.choice(MODES))
        except apsw.BusyError:
            if c.in_transaction:
                c.execute("ROLLBACK")


class Looking:
    """Branches, one after another."""

    def __init__(self, path: Path, r: random.Random, *, unpinned: bool) -> None:
        self.branch, self.r, self.unpinned = Branch(path), r, unpinned
        self.found: Counter[str] = Counter(unequal=0)

    def look(self, meanwhile: float) -> None:
        """One branch: change something, wait, take it back; then writer and reader see the same pages as at the beginning."""
        b, r = self.branch, self.r
        try:
            begun = b.begin()
        except OperationalError as error:
            self.found[f"no snapshot: {error}"] += 1
            return
        self.found.update(branches=1, retries=begun.retries, backfilled=begun.frames == begun.backfilled)
        before = pages(b.reader)
        if self.unpinned:
            b.reader.execute("ROLLBACK")
        b.execute("SAVEPOINT s; UPDATE t SET a = -9 WHERE id = ?", (r.randrange(ROWS),)).fetchall()
        time.sleep(meanwhile)
        if r.random() < 0.3:
            b.writer.pragma("shrink_memory")
        b.execute("ROLLBACK TO s").fetchall()
        same = pages(b.writer) == before and (self.unpinned or pages(b.reader) == before)
        sums = b.execute("SELECT (SELECT sum(a) FROM t) = (SELECT v FROM meta)").fetchall() == [(1,)]
        if not same or not sums or b.changeset():
            self.found["unequal"] += 1
        b.end()


def run(
    path: Path, seconds: float, *, seed: int = 1, kill: bool = False, first: bool = False, unpinned: bool = False
) -> Counter[str]:
    """What was found: branches, unequal ones, applier kills."""
    r = random.Random(seed)
    create(path).close()

    def start() -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "tests.database.pages", str(path), "--applying", "--seed", str(r.randrange(1 << 30))]
        return subprocess.Popen(argv)

    applier = start()
    looking = Looking(path, r, unpinned=unpinned)
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until and not (first and looking.found["unequal"]):
            try:
                looking.look(r.random() * 0.02)
            except (apsw.Error, OperationalError) as error:  # what a broken VFS says; an honest one says nothing
                looking.found.update({"unequal": 1, f"{type(error).__name__}: {error}": 1})
                looking.branch.close()
                looking.branch = Branch(path)
            if applier.poll() is not None:
                raise RuntimeError(f"the applier has ended by itself: {applier.returncode}")
            if kill and looking.found["branches"] % 8 == 0:
                applier.kill()
                applier.wait()
                looking.found["kills"] += 1
                applier = start()
    finally:
        applier.kill()
        applier.wait()
        looking.branch.close()
    c = Applier.open(path).connection
    sound = c.execute("PRAGMA integrity_check").fetchall() + c.execute("SELECT sum(a) = (SELECT v FROM meta) FROM t").fetchall()
    if sound != [("ok",), (1,)]:
        looking.found["unequal"] += 1
    c.close()
    return looking.found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    for name in ("applying", "kill", "first", "unpinned"):
        parser.add_argument(f"--{name}", action="store_true")
    o = parser.parse_args()
    if o.applying:
        applying(o.path, o.seed)
    o.path.mkdir(parents=True, exist_ok=True)
    for old in o.path.glob("pages.db*"):
        old.unlink()
    found = run(o.path / "pages.db", o.seconds, seed=o.seed, kill=o.kill, first=o.first, unpinned=o.unpinned)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
