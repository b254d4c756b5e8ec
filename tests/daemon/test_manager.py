"""What the service manager hands over: the socket, the state folder, the journal."""

from __future__ import annotations

import logging
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from zenjun.daemon.config import parse
from zenjun.daemon.listening import Listener
from zenjun.daemon.manager import FIELD_BYTES_MAX, JournalHandler, adapted, in_journal, journal_handler, passed_socket
from zenjun.daemon.observe import Journal, set_up

GOOD = '[cluster]\nname = "c"\nstations = 3\n[station]\nid = 2\ninterface = "eth0"\n'
CHILD = """
import os, socket, sys
from zenjun.daemon.listening import SocketError
from zenjun.daemon.manager import passed_socket
os.environ["LISTEN_PID"] = str(os.getpid() + int(sys.argv[2]))
os.dup2(int(sys.argv[1]), 3)
try:
    sock = passed_socket(os.environ, os.getpid())
except SocketError as error:
    print("error:", error)
else:
    print("none" if sock is None else f"{sock.getsockname()} {sock.getblocking()} {sock.get_inheritable()}")
assert not [name for name in os.environ if name.startswith("LISTEN_")]
"""


def child(fd: int, number: str = "1", other: int = 0) -> str:
    """What a process makes of a descriptor handed over as systemd does it."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(fd), str(other)],
        pass_fds=[fd], env={**os.environ, "LISTEN_FDS": number, "LISTEN_FDNAMES": "x"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_listening_socket_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
        assert child(sock.fileno()) == f"{path} False False"
        assert child(sock.fileno(), other=1) == "none", "meant for another process"
        assert child(sock.fileno(), number="0") == "none"
        assert child(sock.fileno(), number="soon") == "none"
        assert child(sock.fileno(), number="2").startswith("error: the service manager hands over 2 sockets")


def test_anything_else_is_refused(tmp_path: Path) -> None:
    wanted = "error: the service manager hands over something else"
    with socket.socket(socket.AF_UNIX) as deaf, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        deaf.bind(str(tmp_path / "deaf"))
        datagrams.bind(str(tmp_path / "datagrams"))
        assert child(deaf.fileno()).startswith(wanted)
        assert child(datagrams.fileno()).startswith(wanted)
    with socket.socket() as tcp:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        assert child(tcp.fileno()).startswith(wanted)
    with (tmp_path / "file").open("w") as file:
        assert "is no socket" in child(file.fileno())
    assert passed_socket({}, 1) is None


def test_a_given_socket_stays_the_managers(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
        listener = Listener(path, 0o600, "", sock.dup())
        listener.close()
        listener.close()
        assert path.exists()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    own = Listener(tmp_path / "own", 0o600, "")
    own.close()
    assert not (tmp_path / "own").exists()


def test_state_folder_and_socket_of_the_unit() -> None:
    config = parse(GOOD)
    assert adapted(config, {}, "") == config
    assert adapted(config, {"STATE_DIRECTORY": "/var/lib/zenjun/x:/other"}, "").station.state_dir == "/var/lib/zenjun/x"
    said = parse(GOOD + 'state_dir = "/srv/zenjun"\n')
    assert adapted(said, {"STATE_DIRECTORY": "/var/lib/zenjun/x"}, "").station.state_dir == "/srv/zenjun"
    assert adapted(said, {}, "/run/zenjun/x.sock").station.socket == "/run/zenjun/x.sock"


def journal(path: Path) -> socket.socket:
    """Where the journal would listen."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(str(path))
    sock.settimeout(60)
    return sock


def fields(data: bytes) -> dict[str, str]:
    """An entry in the native form, read as its specification says."""
    out: dict[str, str] = {}
    while data:
        line, data = data.split(b"\n", 1)
        name, equals, value = line.partition(b"=")
        if not equals:
            (size,) = struct.unpack_from("<Q", data)
            value, rest = data[8 : 8 + size], data[8 + size :]
            assert rest[:1] == b"\n"
            data = rest[1:]
        out[name.decode()] = value.decode()
    return out


def test_entries_have_fields(tmp_path: Path) -> None:
    with journal(tmp_path / "j") as sock:
        handler = JournalHandler({"cluster": "demo", "own_station": 2}, str(tmp_path / "j"))
        log = set_up("text", "info", entries=handler)
        log.warning("blocked", "delivery waits\nfor two", stations=[1, 3], **{"odd-näme": "a=b\nc", "priority": 9})
        seen = fields(sock.recv(65536))
        assert seen == {
            "MESSAGE": "blocked: delivery waits\nfor two", "PRIORITY": "4", "SYSLOG_IDENTIFIER": "zenjund",
            "ZENJUN_EVENT": "blocked", "ZENJUN_CLUSTER": "demo", "ZENJUN_OWN_STATION": "2", "ZENJUN_STATIONS": "[1, 3]",
            "ZENJUN_ODD_N_ME": "a=b\nc", "ZENJUN_PRIORITY": "9",
        }  # fmt: skip
        log.debug("x", "below the level")
        log.error("bug", "z" * 100_000)
        assert fields(sock.recv(65536))["MESSAGE"] == ("bug: " + "z" * FIELD_BYTES_MAX)[:FIELD_BYTES_MAX]
        handler.close()


def test_a_journal_that_does_not_read_or_is_gone_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with journal(path):
        handler = JournalHandler({}, str(path))
        log = Journal(logging.getLogger("zenjun"))
        logging.getLogger("zenjun").handlers[:] = [handler]
        for _ in range(5000):
            log.error("x", "y")
        assert handler.lost > 0
    path.unlink()
    lost = handler.lost
    log.error("x", "nobody")
    assert handler.lost == lost + 1
    with journal(path) as sock:  # restarted
        log.error("x", "again")
        assert fields(sock.recv(65536))["MESSAGE"] == "x: again"
    handler.close()
    with pytest.raises(OSError):
        JournalHandler({}, str(tmp_path / "none"))


def test_entries_only_where_standard_error_goes_to_the_journal(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, journal(tmp_path / "j"):
        found = os.fstat(file.fileno())
        stream = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert in_journal(stream, file.fileno())
        assert not in_journal({"JOURNAL_STREAM": "1:2"}, file.fileno()) and not in_journal({}, file.fileno())
        assert not in_journal(stream, 9999)
        assert journal_handler({}, {}, str(tmp_path / "j")) is None
        mine = os.fstat(2)
        here = {"JOURNAL_STREAM": f"{mine.st_dev}:{mine.st_ino}"}
        handler = journal_handler(here, {}, str(tmp_path / "j"))
        assert isinstance(handler, JournalHandler)
        handler.close()
        assert journal_handler(here, {}, str(tmp_path / "none")) is None
    lines = set_up("json", "info", entries=logging.NullHandler())
    assert lines._logger.handlers and not isinstance(lines._logger.handlers[0], logging.NullHandler), "json means lines"
