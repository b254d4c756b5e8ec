"""A branch sees its snapshot, whatever the applier does meanwhile; and each rule that this rests on, broken, is seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from zenjun.tools.cmodules import MODULES, ROOT, linked_tree

from ..rules import rule
from ..timing import in_time, until_enough
from .pages import run

SECONDS = 3.0
BROKEN_SECONDS = 180.0
"""Until a broken rule must have been seen; most are within one, where nothing else runs."""


@rule("B1")
@pytest.mark.parametrize("kill", [False, True], ids=["checkpoints", "applier killed"])
def test_pages_are_those_of_the_snapshot(tmp_path: Path, kill: bool) -> None:
    def look(seconds: float) -> Counter[str]:
        for old in tmp_path.iterdir():
            old.unlink()
        found = run(tmp_path / "pages.db", seconds, kill=kill)
        assert found["unequal"] == 0, found
        return found

    until_enough(look, lambda found: found["branches"] > 20 and (not kill or found["kills"] > 2), SECONDS)


class Change(NamedTuple):
    """A copy of the VFS with other lines, and how it is tried."""

    lines: dict[str, dict[str, str]]
    """File to line to what stands there instead."""
    options: tuple[str, ...] = ()


_STILL = "int rc = still(reader, x->header, 0, HEADER_BYTES);"
_AGAIN = "    rc = still(reader, x->header, 0, HEADER_BYTES);\n"
_PEEKED = "const int peeked = rc == SQLITE_OK;"
SLOW = {"face.c": {_PEEKED: f"{_PEEKED} sqlite3_sleep(2);"}}
"""Commits come between the header and the reader's transaction more often."""
BROKEN = {
    "the header is not compared": Change({**SLOW, "index.c": {_STILL: "int rc = SQLITE_OK;", _AGAIN: ""}}),
    "the live header in place of the reader's": Change(
        {"index.c": {_STILL: "int rc = zb_peek(reader, x->header);", _AGAIN: "    rc = zb_peek(reader, x->header);\n"}}
    ),
    "the copy is not renewed after another WAL": Change(
        {"index.c": {"memcmp(x->salt, x->header + SALT_AT, SALT_BYTES) != 0": "0"}}
    ),
    "the reader's transaction ends early": Change({}, ("--unpinned",)),
}


def patched(folder: Path, file: str, lines: dict[str, str]) -> Path:
    """The file with other lines, in the folder. Each one to be replaced is there once: a changed source must not heal a broken
    rule."""
    text = (ROOT / "daemon/database/vfs" / file).read_text()
    for old, new in lines.items():
        assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
        text = text.replace(old, new)
    path = folder / file
    path.write_text(text)
    return path


def python(tree: Path, change: Change, *argv: str) -> subprocess.CompletedProcess[str]:
    """A program with the changed VFS in place of the honest one."""
    module = MODULES["database"]()
    sources = tuple(patched(tree, p.name, change.lines[p.name]) if p.name in change.lines else p for p in module.sources)
    assert len(set(sources) - set(module.sources)) == len(change.lines)
    made = linked_tree(tree, [module._replace(sources=sources)], sanitize=False)
    check = "from zenjun.daemon.database.vfs import _vfs; print(_vfs.__file__)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tree), str(ROOT), *sys.path))}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=2 * BROKEN_SECONDS, check=True
        )

    assert call("-c", check).stdout.strip() == str(made[0])
    return call(*argv)


def pages_found(folder: Path, change: Change, seconds: float) -> dict[str, Any]:
    argv = ("-m", "tests.database.pages", str(folder), "--seconds", str(seconds), "--first", *change.options)
    found: dict[str, Any] = json.loads(python(folder, change, *argv).stdout)
    return found


def test_commits_that_come_between_are_seen(tmp_path: Path) -> None:
    """The honest rule under the conditions in which the broken one fails."""

    def look(seconds: float) -> dict[str, Any]:
        folder = tmp_path / f"{seconds:g}"
        folder.mkdir()
        found = pages_found(folder, Change(SLOW), seconds)
        assert found["unequal"] == 0, found
        return found

    until_enough(look, lambda found: found.get("retries", 0) > 0 and found["branches"] > 0, SECONDS)


@rule("B1", "B2")
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_seen(tmp_path: Path, name: str) -> None:
    found = pages_found(tmp_path, BROKEN[name], BROKEN_SECONDS)
    in_time(found["unequal"] > 0, f"nothing has been seen, {found}")


_CLOSE = """
import sys
from pathlib import Path
from zenjun.daemon.database.branch import Branch
from tests.database.rig import create
path = Path(sys.argv[1])
applier = create(path)
applier.connection.execute("UPDATE t SET a = 1 WHERE id = 1")
applier.connection.wal_checkpoint()
with Branch(path) as branch:
    branch.begin()
    branch.execute("SELECT 1")
print(Path(f"{path}-wal").exists())
"""
_OPEN_LOCKS = {
    "return level <= SQLITE_LOCK_SHARED ? SQLITE_OK : SQLITE_BUSY;": "(void)level; return SQLITE_OK;",
    "return at >= READ_0 || (at == WRITE && count == 1) ?": "(void)f; return at >= 0 || (count && WRITE + READ_0) ?",
    "    if (!OURS(f)->armed)\n        return SQLITE_IOERR_SHMMAP;\n": "",
    "*(int *)argument = 1; return SQLITE_OK;": "return SQLITE_NOTFOUND;",
    "    (void)name;\n    (void)sync;\n    return SQLITE_IOERR_DELETE;": "    return zb_unix->xDelete(zb_unix, name, sync);",
}


@rule("B6")
@pytest.mark.parametrize("lines", [{}, _OPEN_LOCKS], ids=["honest", "all locks granted"])
def test_a_branch_that_may_lock_everything_deletes_the_wal(tmp_path: Path, lines: dict[str, str]) -> None:
    """The WAL that the applier and others are using."""
    same = {"SQLITE_EXTENSION_INIT1": "SQLITE_EXTENSION_INIT1"}
    run = python(tmp_path, Change({"file.c": lines or same}), "-c", _CLOSE, str(tmp_path / "a.db"))
    assert run.stdout.split() == [str(not lines)]
