"""Commands that print what comes, for as long as they are let: their reader goes, their daemon goes, their names are odd."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.daemon.client import connect_sync

from ..client.fake_daemon import FakeThread, fake_daemon
from .test_cli import OPEN, WAIT_S, joined, nobody, read_line, start, zenjun


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeThread]:
    with fake_daemon(tmp_path) as fake:
        monkeypatch.setenv("ZENJUN_SOCKET", str(fake.daemon.path))
        yield fake


def hang_up(fake: FakeThread) -> None:
    """The daemon ends all connections, as if it were restarted."""
    fake.call(fake.daemon.hang_up)


@pytest.mark.parametrize("words", [["members", "--watch", "--json"], ["members", "g", "--watch"], ["recv"], ["recv", "-t", "60"]])
def test_a_reader_that_goes_is_noticed_while_nothing_happens(fake: FakeThread, words: list[str]) -> None:
    """As in ``| head -1``: the next line may never come."""
    fake.daemon.status = OPEN
    with connect_sync(str(fake.daemon.path), name="prog") as c:
        c.join("g")
        p = start(*words)
        assert p.stdout and p.stderr
        if words[0] == "members":
            assert read_line(p.stdout)
        else:
            joined(fake, "default")
        p.stdout.close()
        assert p.wait(timeout=WAIT_S) == 141
        assert p.stderr.read() == b""
        p.stderr.close()


@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["members"], ["config", "example"]])
def test_a_reader_that_has_gone_is_one_end_for_all(fake: FakeThread, words: list[str]) -> None:
    """Also where a library writes, which would end by itself."""
    reader, writer = os.pipe()
    os.close(reader)
    p = start(*words, stdout=writer)
    os.close(writer)
    _, err = p.communicate(timeout=WAIT_S)
    assert (p.returncode, err) == (141, b"")


def test_recv_retry_goes_on_after_its_daemon(fake: FakeThread) -> None:
    p = start("recv", "--retry", "-n", "2")
    joined(fake, "default")
    with connect_sync(str(fake.daemon.path)) as c:
        c.join("default", receive=False).send(b"1")
        assert p.stdout and read_line(p.stdout) == b"1\n"
    hang_up(fake)
    assert p.stderr and read_line(p.stderr) == b"zenjun: the daemon closed the connection; waiting for the daemon\n"
    joined(fake, "default")
    with connect_sync(str(fake.daemon.path)) as c:
        c.join("default", receive=False).send(b"2")
        assert p.communicate(timeout=WAIT_S) == (b"2\n", b"") and p.returncode == 0, "the count goes on, too"


def test_recv_without_retry_ends_with_its_daemon(fake: FakeThread) -> None:
    p = start("recv")
    joined(fake, "default")
    hang_up(fake)
    assert p.communicate(timeout=WAIT_S) == (b"", b"zenjun: the daemon closed the connection\n") and p.returncode == 5


def test_recv_retry_tells_programs_of_the_gap(fake: FakeThread) -> None:
    p = start("recv", "--retry", "--views", "-F", "json")
    assert p.stdout
    assert json.loads(read_line(p.stdout))["type"] == "view"
    joined(fake, "default")
    hang_up(fake)
    assert json.loads(read_line(p.stdout)) == {"type": "event", "event": "lost", "reason": "the daemon closed the connection"}
    assert json.loads(read_line(p.stdout))["type"] == "view", "in again"
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=WAIT_S)
    assert p.returncode == 130


def test_recv_retry_heeds_the_timeout_and_a_daemon_that_was_never_there(tmp_path: Path) -> None:
    with fake_daemon(tmp_path) as fake:
        p = start("recv", "--retry", "-t", "4", "-s", str(fake.daemon.path))
        joined(fake, "default")
    _, err = p.communicate(timeout=WAIT_S)
    assert p.returncode == 4 and b"waiting for the daemon" in err.splitlines()[0] and b"cannot reach" in err.splitlines()[-1]
    done = zenjun("recv", "--retry", "-s", str(tmp_path / "none"), code=3)
    assert b"cannot reach the daemon" in done.stderr


def test_recv_timeout_says_how_long_and_why(fake: FakeThread) -> None:
    done = zenjun("recv", "-t", "2", code=4)
    assert b"waiting for a message of group 'default': nothing after 2 s" in done.stderr
    nobody(fake)


@pytest.mark.parametrize("name", ["tab\there.py", "new\nline.py", "\x1b[31mred.py", b"latin\xe9.py", "schön.py"])
def test_a_script_may_be_called_anything(fake: FakeThread, tmp_path: Path, name: str | bytes) -> None:
    script = os.path.join(os.fsencode(tmp_path), os.fsencode(name))  # noqa: PTH118 - bytes
    code = "from zenjun.daemon.client import connect_sync\nwith connect_sync() as c:\n"
    code += "    print(*(m.name for m in c.join('g').members))\n"
    with open(script, "w") as file:  # noqa: PTH123 - bytes
        file.write(code)
    done = subprocess.run([sys.executable, script], capture_output=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode().removesuffix("\n")
    assert shown.isprintable() and shown.endswith(".py"), shown


def test_wrong_names_of_commands_are_answered_alike() -> None:
    for words in (("snd",), ("lab", "upp"), ("config", "chek"), ("pcap", "shw")):
        err = zenjun(*words, code=2).stderr.decode()
        assert f"no such command {words[-1]!r}; did you mean " in err.splitlines()[-1], err
    assert "; commands are " in zenjun("lab", "qqq", code=2).stderr.decode()


def test_lab_cut_takes_two_stations() -> None:
    assert b"station 1 has no link to itself" in zenjun("lab", "cut", "1", "1", code=2).stderr
