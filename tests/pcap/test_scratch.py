"""Folders of processes that ended, in whatever way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.tools.pcap.work import scratch

HOLDER = """
import sys, time
from zenjun.tools.pcap.work import scratch
print(scratch.make(scratch.name("test")), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@pytest.fixture
def holder(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has made a folder and lives, and the folder with something in it, long ago."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            made = Path(process.stdout.readline().strip())
            assert made.parent == place and made.stat().st_mode & 0o777 == 0o700
            (made / "tables").mkdir()
            (made / "tables" / "part-0").write_bytes(b"x")
            age(made)
            yield process, made
        finally:
            process.kill()


def age(folder: Path) -> None:
    os.utime(folder, (1.0, 1.0))


def test_folder_of_a_killed_process_goes_with_the_next_one(holder: tuple[subprocess.Popen[str], Path]) -> None:
    process, left = holder
    with scratch.folder("other") as mine:
        assert left.exists(), "its process lives"
        assert mine.exists()
    assert not mine.exists()
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    assert (left / "tables" / "part-0").exists()
    with scratch.folder("other"):
        assert not left.exists()


def test_folder_goes_with_a_process_that_ends(holder: tuple[subprocess.Popen[str], Path]) -> None:
    process, made = holder
    process.communicate("", 60)
    assert process.returncode == 0
    assert not made.exists()


def test_what_is_no_folder_of_ours_stays(place: Path) -> None:
    """Others' names, a link that leads elsewhere, a file, and one so new that its maker may not hold it yet."""
    others = place / "zenjun-lab-0"
    elsewhere = place / "elsewhere"
    named = place / f"{scratch.PREFIX}captures"
    young = place / f"{scratch.PREFIX}check-000000000000"
    for folder in (others, elsewhere, named, young):
        folder.mkdir()
    link = place / f"{scratch.PREFIX}check-000000000001"
    link.symlink_to(elsewhere)
    file = place / f"{scratch.PREFIX}check-000000000002"
    file.write_text("")
    for path in (others, elsewhere, named, file):
        age(path)
    scratch.sweep(place)
    assert others.exists() and elsewhere.exists() and named.exists() and young.exists() and link.is_symlink() and file.exists()
    age(young)
    scratch.sweep(place)
    assert not young.exists()
