"""The runner of programs under the User-Mode Linux kernel: what comes out, and that it always ends."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.tools.lab import LabError, LabTimeout, LabUnsupported, uml

from ..lab.support import CLI, wait_for
from .conftest import processes

pytestmark = pytest.mark.timeout(600)
DEADLINE_S = 270.0
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest")


def run(*command: str, **settings: object) -> tuple[int, list[str]]:
    """Exit code and output."""
    lines: list[str] = []
    code = uml.run(command, say=lambda line: lines.append(line.decode()), **{"deadline_s": DEADLINE_S, **settings})  # type: ignore[arg-type]
    return code, lines


def gone(place: Path) -> None:
    """All processes of a kernel have been killed, some not as children of who waits for its own: they end a moment later."""
    wait_for(lambda: not processes(place), "no process of a kernel is left")


def test_output_and_exit_code_come_out(place: Path) -> None:
    code, lines = run("sh", "-c", "echo one; printf 'two\\nthree without end'; id -u >&2; exit 7")
    assert (code, lines) == (7, ["one", "two", "three without end0"])
    assert run("no-such-program")[0] == 127


def test_a_failing_test_inside_is_a_failure_outside(place: Path) -> None:
    (place / "inside").mkdir()
    tests = "def test_fails() -> None:\n    assert 1 == 2\n\ndef test_passes() -> None:\n    pass\n"
    (place / "inside" / "test_it.py").write_text(tests)
    where = str(place / "inside" / "test_it.py")
    code, lines = run(*PYTEST, where, write=[place / "inside"])
    assert code == 1
    assert any("1 failed, 1 passed" in line for line in lines), lines
    assert run(*PYTEST, where, "-k", "passes", write=[place / "inside"])[0] == 0
    (place / "inside" / "test_it.py").unlink()
    (place / "inside").rmdir()


def test_what_hangs_inside_is_ended_by_the_deadline(place: Path) -> None:
    """Whether it sleeps, or works without end and takes no signal."""
    for program in ("sleep 1000", "trap '' TERM INT; while :; do :; done"):
        with pytest.raises(LabTimeout, match="not at its end after 6 s under User-Mode Linux: sh -c"):
            run("sh", "-c", program, deadline_s=6.0)
        gone(place)
        assert not list(place.iterdir())


def test_files_are_read_only_but_for_folders_named(place: Path) -> None:
    shared, other = place / "shared", place / "other"
    for folder in (shared, other):
        folder.mkdir()
    root = Path(__file__).resolve().parents[2]
    code, lines = run("sh", "-c", f"echo hello >{shared}/file; echo x >{root}/.never; echo $?; ls {place}", write=[shared])
    assert code == 0
    assert (shared / "file").read_text() == "hello\n"
    assert not (root / ".never").exists()
    assert lines[-1] == "shared", "and of /tmp nothing else is seen"
    (shared / "file").unlink()
    shared.rmdir()
    other.rmdir()


def test_the_current_folder_is_seen_and_read_only_also_below_what_is_in_memory(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen with a checkout in /tmp: it could be written."""
    here = place / "here"
    here.mkdir()
    (here / "file").write_text("hello")
    monkeypatch.chdir(here)
    code, lines = run("sh", "-c", "cat file; echo x >other")
    assert code != 0 and lines[0].startswith("hello")
    assert [path.name for path in here.iterdir()] == ["file"]
    (here / "file").unlink()
    here.rmdir()


@pytest.fixture
def command(place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``zenjun lab uml`` with a program that says "ready" and stays."""
    process = subprocess.Popen(
        [*CLI, "uml", "--", "sh", "-c", "echo ready; sleep 1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 240)[0], "not within 240 s: it is ready"
        assert process.stdout.readline() == b"ready\n"
        assert processes(place)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=120)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_it(command: subprocess.Popen[bytes], place: Path, number: signal.Signals) -> None:
    command.send_signal(number)
    _, said = command.communicate(timeout=120)
    assert (command.returncode, said) == (130, b"zenjun lab: interrupted\n")
    gone(place)
    assert not list(place.iterdir())


def test_it_ends_with_a_caller_that_is_killed(
    command: subprocess.Popen[bytes], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes at once; its folder is removed by the next run."""
    command.kill()
    command.wait(60)
    wait_for(lambda: not processes(place), "the kernel has ended")
    (left,) = place.iterdir()
    monkeypatch.setattr(uml, "_OLD_S", -1.0)
    assert run("true")[0] == 0
    assert not left.exists()


def test_a_kernel_that_ends_by_itself_is_an_error(place: Path) -> None:
    def say(_line: bytes) -> None:
        for pid in processes(place):
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(LabError, match="ended before the program did"):
        uml.run(["sh", "-c", "while :; do echo ready; sleep 1; done"], deadline_s=DEADLINE_S, say=say)


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_args, **_options: None)
    with pytest.raises(LabUnsupported, match="install the package user-mode-linux"):
        uml.run(["true"])
    monkeypatch.setattr(shutil, "which", lambda name, **_options: f"/bin/{name}" if name == "linux.uml" else None)
    with pytest.raises(LabUnsupported, match="install the package kmod"):
        uml.run(["true"])


def test_it_runs_at_the_speed_of_the_clock(place: Path) -> None:
    """Time inside is time outside: delays that are measured there mean something."""
    started = time.monotonic()
    code, lines = run("sh", "-c", "read a _ </proc/uptime; sleep 2; read b _ </proc/uptime; echo $a $b")
    took = time.monotonic() - started
    before, after = map(float, lines[0].split())
    assert code == 0
    assert 2.0 <= round(after - before, 1) <= took
