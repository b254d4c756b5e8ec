"""The directory process without a daemon: what it answers, what it refuses, how it ends."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun.daemon.directory.copy import Copy, Heard, Seen
from zenjun.daemon.directory.store import File
from zenjun.daemon.names import Malformed, NoName, NoQuorum, NotReachable, SyncDirectory, connect_directory_sync
from zenjun.proto.service.directory.entries import Target
from zenjun.proto.service.directory.messages import Id, Update, encode
from zenjun.proto.service.directory.operations import Set

WHO = (1, 7)
PATIENCE_S = 120.0
"""For a process to start, and to answer."""


class Alone:
    """A process whose station's daemon does not run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = str(folder / "directory.sock")
        (folder / "zenjund.toml").write_text(
            f'[cluster]\nname = "c"\nstations = 3\n[station]\nid = 1\ninterface = "eth0"\n'
            f'socket = "{folder}/zenjund.sock"\nstate_dir = "{folder}/state"\n[directory]\nstale_max_s = 60\n'
        )
        self.process: subprocess.Popen[bytes] | None = None

    def fill(self) -> None:
        copy = Copy(File(self.folder / "state", "c", 1))
        update = Update(Id("0123456789abcdef", 1), ("operator", "user:root"), (Set("db", (Target("tcp://10.0.0.7:5432"),)),))
        copy.apply([Seen((1, 1, 0), (WHO,), (WHO,)), Heard((2, 1, 0), WHO, encode(update))])
        copy.rows.close()

    def configure(self, more: str) -> None:
        with (self.folder / "zenjund.toml").open("a") as file:
            file.write(more)

    def start(self) -> SyncDirectory:
        argv = [sys.executable, "-m", "zenjun.daemon.directory", "--config", str(self.folder / "zenjund.toml")]
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE)
        return connect_directory_sync(self.path, wait=PATIENCE_S, timeout=PATIENCE_S)

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    found = Alone(tmp_path)
    yield found
    if found.process is not None:
        found.process.kill()
        found.process.wait(PATIENCE_S)
        assert found.process.stderr is not None
        found.process.stderr.close()


def test_it_answers_from_its_file_and_says_that_this_is_stale(alone: Alone) -> None:
    alone.fill()
    with alone.start() as d:
        answer = d.lookup("DB")
        assert answer.addresses == ("tcp://10.0.0.7:5432",) and answer.stale_ms > 0 and answer.place == (2, 1, 0)
        with pytest.raises(NoName, match="no name 'nothing'"):
            d.lookup("nothing")
        with pytest.raises(NoQuorum):
            d.lookup("db", fresh=True)
        with pytest.raises(NoQuorum, match="not done: waiting for zenjund"):
            d.update(Set("x", ()), timeout=0.2)
        assert [entry.name for entry in d.list()] == ["db"]
    assert alone.end() == 0
    assert not Path(alone.path).exists()


def test_a_station_without_a_copy_does_not_say_that_there_is_no_name(alone: Alone) -> None:
    with alone.start() as d, pytest.raises(NoQuorum, match="no copy yet"):
        d.lookup("db")


def test_bytes_that_are_no_frames_end_the_connection_only(alone: Alone) -> None:
    alone.fill()
    with alone.start() as d:
        for data in (b"\xff\xff\xff\xff", struct.pack(">I", 4) + b"null", struct.pack(">I", 3) + b"{x}", b"GET / HTTP/1.0\r\n"):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.connect(alone.path)
                raw.settimeout(PATIENCE_S)
                raw.sendall(data)
                answer = raw.recv(65536)
                assert json.loads(answer[4:])["error"]["code"] == "protocol"
                assert raw.recv(1) == b""
        for wrong in (
            {"do": "update", "ops": 3, "c": "x", "n": 1},
            {"do": "update", "ops": [], "c": "x", "n": 1},
            {"do": "update", "ops": [{"op": "rm"}], "c": "x", "n": 1},
            {"do": "update", "ops": [{"op": "set", "n": "x", "a": [["tcp://a", -1, 1, ""]]}], "c": "0" * 16, "n": 1},
            {"do": "watch", "name": "a b", "watch": 1},
            {"do": "register", "op": None, "c": "0" * 16, "n": 1},
            {"do": "lookup", "name": "db", "after": "nonsense"},
        ):
            arguments = {key: value for key, value in wrong.items() if key != "do"}
            with pytest.raises(Malformed):
                d.request(str(wrong["do"]), **arguments)
        assert d.lookup("db").addresses


def test_the_ends_that_a_restart_does_not_mend(alone: Alone, tmp_path: Path) -> None:
    def run(config: Path) -> tuple[int, str]:
        argv = [sys.executable, "-m", "zenjun.daemon.directory", "--config", str(config)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
        return done.returncode, done.stderr

    code, text = run(tmp_path / "nothing.toml")
    assert code == 3 and "nothing.toml" in text
    alone.fill()
    with alone.start():
        code, text = run(alone.folder / "zenjund.toml")
        assert code == 6 and f"in use by pid {alone.process.pid if alone.process else 0}" in text
    other = alone.folder / "other.toml"
    other.write_text((alone.folder / "zenjund.toml").read_text().replace("id = 1", "id = 2"))
    code, text = run(other)
    assert code == 5 and "belongs to station 1" in text
    small = alone.folder / "small.toml"
    small.write_text(other.read_text().replace("stations = 3", "stations = 3\nmessage_max = 65535"))
    code, text = run(small)
    assert code == 3 and "a directory needs 65536 bytes" in text


def test_the_daemons_socket_may_be_named_by_the_unit(alone: Alone) -> None:
    """And the process's own one is beside it, by its name."""
    alone.fill()
    argv = [sys.executable, "-m", "zenjun.daemon.directory", "--config", str(alone.folder / "zenjund.toml")]
    alone.process = subprocess.Popen([*argv, "--daemon-socket", str(alone.folder / "s1.sock")], stderr=subprocess.PIPE)
    with connect_directory_sync(str(alone.folder / "s1.directory.sock"), wait=PATIENCE_S, timeout=PATIENCE_S) as d:
        assert d.lookup("db").addresses
    assert alone.end() == 0


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(NotReachable, match="is zenjun-directory running"):
        connect_directory_sync(str(tmp_path / "directory.sock"))
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "directory.sock").touch()
    with pytest.raises(NotReachable):
        connect_directory_sync(str(folder / "directory.sock"))
    assert [path.name for path in folder.iterdir()] == ["directory.sock"]
