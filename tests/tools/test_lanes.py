"""Lanes of tools/test: one that fails is a failure, and nothing goes on running behind it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .. import again
from ..timing import in_time

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240.0


def start(*arguments: str, first: Callable[[], object] | None = None) -> subprocess.Popen[str]:
    """first: what the process does before."""
    command = [sys.executable, "-m", "tests.lanes", *arguments]
    out = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, text=True, preexec_fn=first)


def lanes(*arguments: str, first: Callable[[], object] | None = None) -> tuple[int, str]:
    process = start(*arguments, first=first)
    out, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out


def alive(path: Path) -> bool:
    return Path(f"/proc/{path.read_text().strip()}").exists()


def test_all_pass(tmp_path: Path) -> None:
    """They run at the same time: each waits for what the other makes."""
    a, b = tmp_path / "a", tmp_path / "b"
    wait = "until [ -e {} ]; do sleep 0.05; done; echo done {}"
    code, out = lanes(f"t1=touch {a}; {wait.format(b, 1)}", f"t2=touch {b}; {wait.format(a, 2)}")
    assert code == 0 and "t1: passed" in out and "t2: passed" in out and "done 1" in out and "done 2" in out


def test_one_that_fails_ends_the_others_and_shows_all_it_said(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code, out = lanes(f"t1=echo $$ > {pid}; sleep 60 & wait", f"t2=until [ -s {pid} ]; do sleep 0.05; done; seq 1 9; exit 3")
    assert code == 1 and "t2: FAILED (3)" in out and all(f"   {n}\n" in out for n in range(1, 10)), out
    assert not alive(pid)


def test_a_failure_is_one_though_who_started_it_ignores_the_ends_of_its_children() -> None:
    code, out = lanes("t1=exit 3", first=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert code == 1 and "t1: FAILED (3)" in out, out


def test_the_deadline_ends_what_hangs(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code, out = lanes("--deadline", "6", f"t1=echo $$ > {pid}; exec sleep 60")
    assert code == 1 and "t1: not done within 6 s" in out and not alive(pid), out


def test_interrupt_ends_all(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    process = start(f"t1=echo $$ > {pid}; exec sleep 60")
    until = time.monotonic() + PATIENCE_S
    while not (pid.exists() and pid.read_text().strip()):
        in_time(time.monotonic() < until, "it has begun")
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and not alive(pid)


def test_what_did_not_run_is_shown_though_more_follows() -> None:
    code, out = lanes("t1=echo '!!!! TESTS THAT NEED A MOON DID NOT RUN !!!!'; echo no moon here; seq 1 9; echo 7 passed")
    assert code == 0
    lines = [line.strip() for line in out.splitlines()]
    assert lines[-6:] == ["!!!! TESTS THAT NEED A MOON DID NOT RUN !!!!", "no moon here", "7", "8", "9", "7 passed"]


def test_a_lane_behind_gives_way_to_the_others() -> None:
    """By its niceness, and by that of its session where the kernel schedules sessions."""
    ask = "echo niceness $(nice); cat /proc/self/autogroup || true"
    code, out = lanes("--behind", "t1", f"t1={ask}")
    assert code == 0 and "niceness 19\n" in out, out
    if Path("/proc/self/autogroup").exists():
        assert " nice 19\n" in out, out
    code, out = lanes(f"t1={ask}")
    assert code == 0 and f"niceness {os.nice(0)}\n" in out, out
    code, out = lanes("--behind", "t2", "t1=true")
    assert code == 2 and "no such lane: t2" in out


def test_lanes_of_a_pool_take_turns_and_whoever_is_done_takes_the_next(tmp_path: Path) -> None:
    """Two at a time: the third runs beside the first, which waits for the last; never three of them. Each has its log."""
    at = "d={0}; mkdir $d/r$$; ls $d | grep -c ^r > $d/n$$; {1}; rmdir $d/r$$"
    wait = "until [ -e $d/last ]; do sleep 0.05; done"
    parts = [wait, "true", "true", "touch $d/last"]
    code, out = lanes("--at-once", "p=2", *(f"p/t{k}={at.format(tmp_path, part)}" for k, part in enumerate(parts)))
    assert code == 0 and all(f"-- p/t{k}: passed" in out for k in range(len(parts))), out
    assert max(int(path.read_text()) for path in tmp_path.glob("n*")) <= 2
    assert out.index("p/t2: passed") < out.index("p/t0: passed")
    order = tmp_path / "order"
    code, out = lanes(*(f"p/t{k}=echo {k} >> {order}" for k in range(3)))
    assert code == 0 and order.read_text() == "0\n1\n2\n", out
    code, out = lanes("p/t0=exit 3", f"p/t1=touch {tmp_path}/after")
    assert code == 1 and not (tmp_path / "after").exists(), "nothing is started any more"
    for wrong in ("p=0", "p", "q=2"):
        assert lanes("--at-once", wrong, "p/t0=true")[0] == 2
    code, out = lanes("--behind", "p", "p/t0=echo niceness $(nice)")
    assert code == 0 and "niceness 19\n" in out, out


LATE = """
import os
from pathlib import Path
from tests.stalls import Finding

def attempt(name):
    path = Path(os.environ["ATTEMPTS"]) / name
    path.write_text(path.read_text() + "x" if path.exists() else "x")
    return path.stat().st_size

def test_chance():
    assert attempt("chance") > 1, "the first time"

def test_never():
    assert attempt("never") < 0, "each time"

def test_wrong():
    attempt("wrong")
    raise Finding("lost")
"""


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], tuple[int, str, list[int]]]:
    """Runs tests of a folder that waits for time, or one that computes; exit code, what was said, attempts of each. Not in a
    folder that is collected beside these tests (tools/test)."""
    monkeypatch.setenv("ATTEMPTS", str(tmp_path))

    def run(folder: str, tests: str) -> tuple[int, str, list[int]]:
        base = ROOT / "out" / f"attempts-{os.getpid()}"
        path = base / folder / "test_attempts.py"
        path.parent.mkdir(parents=True)
        path.write_text(LATE)
        try:
            ids = " ".join(f"{path.relative_to(ROOT)}::test_{name}" for name in tests.split())
            command = f"{sys.executable} -m pytest -q -p no:cacheprovider -p tests.conftest {ids}"
            code, out = lanes(f"t1={command}; echo and went on", "t2=true")
        finally:
            shutil.rmtree(base)
        made = [tmp_path / name for name in tests.split()]
        return code, out, [each.stat().st_size for each in made if each.exists()]

    return run


def test_what_fails_by_chance_runs_once_more_when_all_lanes_have_ended(
    judged: Callable[[str, str], tuple[int, str, list[int]]],
) -> None:
    code, out, attempts = judged("e2e", "chance")
    assert code == 0 and attempts == [2], out
    assert "1 FAILED BESIDE OTHERS" in out and "the first time" in out and "and went on" in out, out


def test_what_fails_twice_or_is_wrong_on_any_machine_is_a_failure(
    judged: Callable[[str, str], tuple[int, str, list[int]]],
) -> None:
    code, out, attempts = judged("e2e", "chance never")
    assert code == 1 and attempts == [2, 2] and "each time" in out, out
    code, out, attempts = judged("e2e", "wrong")
    assert code == 1 and attempts == [1] and "lost" in out and "and went on" not in out, out


def test_what_only_computes_fails_at_once(judged: Callable[[str, str], tuple[int, str, list[int]]]) -> None:
    code, out, attempts = judged("fuzz", "chance")
    assert code == 1 and attempts == [1] and "the first time" in out, out


def test_many_failures_are_no_chance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(again.VARIABLE, str(tmp_path / "notes"))
    notes = again.Notes()
    for k in range(again.MOST):
        notes.add(f"tests/e2e/test_a.py::test_{k}[a b]", "late", True)
    assert notes.write()
    failed = again.read(tmp_path / "notes")
    assert [one.said for one in failed] == ["late"] * again.MOST
    assert again.command(failed).splitlines()[1].count("'tests/e2e/test_a.py::test_") == again.MOST
    notes.add("tests/e2e/test_a.py::test_more", "late", True)
    assert not notes.write()
