"""The stand-in answers as corosync 3.1.7 does: all results and events, but for a list with reasons; and how it starts and ends.

``corosync-answers.txt`` is what ``corosync_calls.py`` prints where Debian's corosync runs, with the corosync.conf of
``corosync_alone.py`` (docs/corosync.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from .. import corosyncs
from ..rules import rule
from .corosync_alone import COROSYNC, command

STORED: Final = Path(__file__).parent / "corosync-answers.txt"
OTHERWISE: Final[dict[str, tuple[Any, str]]] = {
    '["cpg_join, no name", 1]': (["cpg_join, no name", 7], "a group without a name cannot be named in a message of ours"),
    '["cmap_delete", "runtime.members.1.status", 1]': (
        ["cmap_delete", "runtime.members.1.status", 11],
        "all of runtime. is the stand-in's: corosync lets a program take the status of nodes away from others",
    ),
    **{
        f'["votequorum_qdevice_{call}", {code}]': ([f"votequorum_qdevice_{call}", 19], "there are no quorum devices (rule Y13)")
        for call, code in (
            ("poll, none", 12),
            ("master_wins, none", 12),
            ("update, none", 12),
            ("unregister, none", 12),
            ("register", 1),
            ("unregister", 1),
        )
    },
}
"""What corosync answers, what the stand-in answers instead, and why."""


def alone(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """A command beside a stand-in that is alone."""
    rig = [*corosyncs.alone(), sys.executable, "-m", "tests.daemon.corosync_alone", str(folder), *argv]
    environment = corosyncs.environment()
    return subprocess.run(rig, cwd=corosyncs.ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)


def log(folder: Path) -> str:
    return (folder / "log").read_text()


@rule("Y14")
def test_results_and_events_are_those_of_corosync(tmp_path: Path) -> None:
    done = alone(tmp_path, sys.executable, "-m", "tests.daemon.corosync_calls")
    assert done.returncode == 0, done.stderr + log(tmp_path)
    wanted = STORED.read_text().splitlines()
    assert OTHERWISE.keys() <= set(wanted), "a difference that is none any more"
    expected = [json.dumps(OTHERWISE[line][0]) if line in OTHERWISE else line for line in wanted]
    assert done.stdout.splitlines() == expected


@rule("Y17")
def test_a_second_one_names_the_first_and_ends(tmp_path: Path) -> None:
    """Exit code 6, whatever serves the names: a live corosync has the same ones."""
    second = tmp_path / "second"
    second.mkdir()
    done = alone(tmp_path, *command(second))
    assert done.returncode == 6, done.stderr
    assert "service cmap is served already by process" in done.stderr


def test_what_cannot_be_is_named_with_its_line(tmp_path: Path) -> None:
    text = COROSYNC.replace("  provider", "  last_man_standing: 1\n  provider").replace("nodeid: 1", "nodeid: 2")
    (tmp_path / "corosync.conf").write_text(text)
    done = subprocess.run(
        command(tmp_path),
        cwd=corosyncs.ROOT,
        env=corosyncs.environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 3
    assert f"{tmp_path}/corosync.conf:7: quorum.last_man_standing is not supported here: " in done.stderr


def test_a_damaged_ring_file_is_not_guessed_at(tmp_path: Path) -> None:
    """An id of a ring must not come twice."""
    assert alone(tmp_path, "true").returncode == 0
    kept = tmp_path / "state" / "corosync" / "ring"
    data = kept.read_bytes()
    kept.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    assert alone(tmp_path, "true").returncode == 99
    assert f"{kept} is damaged" in log(tmp_path)
    kept.write_bytes(data)
    assert alone(tmp_path, "true").returncode == 0
    first, second = (line.split("ring ")[1].split()[0] for line in log(tmp_path).splitlines() if " info ring: " in line)
    assert int(first.split(".")[1], 16) < int(second.split(".")[1], 16)


def test_a_program_ends_it(tmp_path: Path) -> None:
    """corosync-cfgtool -H: exit code 8, so that a service manager leaves it ended."""
    tool = corosyncs.folder() / "usr" / "sbin" / "corosync-cfgtool"
    done = alone(tmp_path, str(tool), "-H", "--force")
    assert done.returncode == 99, "the stand-in has not ended by itself"
    assert "corosync_cfg_try_shutdown" in log(tmp_path)
    assert "code=8" in log(tmp_path)


@rule("Y19")
def test_alone_a_program_that_takes_nothing_sends_no_more(tmp_path: Path) -> None:
    (tmp_path / "corosync.conf").write_text(COROSYNC + "zenjun {\n  queue_bytes_max: 8000000\n}\n")
    member = f"echo ahead 100 200000 | {sys.executable} -m tests.e2e.corosync_member g"
    done = alone(tmp_path, "sh", "-c", member)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert not [line for line in said if line[0] == "error"]
    ((sent, came),) = (line[1:] for line in said if line[0] == "ahead")
    assert 20 < sent == came < 100


@rule("Y18")
@pytest.mark.parametrize("seed", [1, 2])
def test_requests_at_random_do_not_end_it(tmp_path: Path, seed: int) -> None:
    """Numbers at the edges, lengths that lie, messages cut short, connections that end: it serves everybody afterwards."""
    done = alone(tmp_path, sys.executable, "-m", "tests.daemon.corosync_fuzz", str(seed), "1500")
    assert done.returncode == 0, done.stderr + log(tmp_path)
    assert "Traceback" not in log(tmp_path)


def test_without_room_on_the_disk_it_ends_before_anybody_hears_of_a_ring(tmp_path: Path) -> None:
    """Exit code 5: a ring whose number is not durable could be told of twice. The disk has room for one file, and a new one
    takes its place only when it is whole."""
    (tmp_path / "state").mkdir()
    text = 'mount -t tmpfs -o size=4k tmpfs "$1/state" && shift && "$@" && "$@"'
    rig = [sys.executable, "-m", "tests.daemon.corosync_alone", str(tmp_path), "true"]
    argv = [*corosyncs.alone(), "sh", "-c", text, "sh", str(tmp_path), *rig]
    done = subprocess.run(
        argv, cwd=corosyncs.ROOT, env=corosyncs.environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 99, done.stderr
    assert log(tmp_path).count(" info ring: ") == 1
    assert "No space left on device code=5" in log(tmp_path)
