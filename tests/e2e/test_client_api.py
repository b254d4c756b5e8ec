"""Programs and their daemon when the daemon does not answer, and names that are meant to do harm."""

from __future__ import annotations

import contextlib
import json
import signal
import struct
import sys
from collections.abc import Callable, Iterator

import pytest
from zenjun.daemon.client import BadName, ClientError, Timeout, connect_sync
from zenjun.tools.lab import Lab

from .cluster import cluster, log_of, process_alive, programs, status, wait_for
from .daemon_common import RawClient

pytestmark = pytest.mark.lab
ZENJUN = [sys.executable, "-c", "from zenjun.tools.cli import main; main()"]


@pytest.fixture(scope="module")
def segment() -> Iterator[Lab]:
    # A daemon is stopped for more than a second here: too short to be missed.
    with cluster(2, options={"cluster": {"fail_timeout_ms": 20_000}}) as lab:
        yield lab


def test_every_call_against_a_stopped_daemon_times_out_case_147(segment: Lab) -> None:
    """Each call has its deadline; after SIGCONT the connection is usable, and no answer belongs to another question."""
    station = segment.station(1)
    with programs(segment, {"g": "preack"}, ids=[1]) as (program,):
        connection, group = program.connection, program.groups["g"]
        station.signal(signal.SIGSTOP)
        try:
            calls: dict[str, Callable[[], object]] = {
                "send": lambda: group.send(b"late", timeout=0.2),
                "join": lambda: connection.join("other", timeout=0.2),
                "status": lambda: connection.status(timeout=0.2),
                "members": lambda: connection.members("g", timeout=0.2),
                "recv": lambda: group.recv(timeout=0.2),
                "connect": lambda: connect_sync(str(station.socket_path), timeout=0.2),
            }
            for name, call in calls.items():
                with pytest.raises(Timeout):
                    call()
                assert not connection.closed, name
            group.leave()  # does not wait
        finally:
            station.signal(signal.SIGCONT)
        assert connection.status(timeout=10)["station"] == 1
        wait_for(lambda: connection.members("g", timeout=10) == (), "the leave has found its place in the order")
        again = connection.join("g", timeout=10)
        again.send(b"usable", timeout=10)
        assert again.recv(10).data == b"usable"
    other = connect_sync(str(station.socket_path), timeout=5)
    station.signal(signal.SIGSTOP)
    assert other.close(timeout=0.2) is False, "closing is bounded as well"
    station.signal(signal.SIGCONT)
    wait_for(lambda: status(station)["state"] == "open", "it is back")


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "/", "..", "a\nb", "\x1b[31m", "ü" * 64, "x" * 128, " ", "%s%n"])
def test_odd_group_names_are_only_names_case_141(segment: Lab, name: str) -> None:
    """Names never become paths or formats: a group of any name of 1 to 128 bytes works, or is refused as a name."""
    paths = [str(segment.station(i).socket_path) for i in (1, 2)]
    with connect_sync(paths[0], timeout=10) as one, connect_sync(paths[1], timeout=10) as two:
        try:
            groups = [one.join(name), two.join(name)]
        except BadName:
            return
        groups[0].send(b"x", timeout=5)
        assert groups[1].recv(5).group == name
        assert name in {g["name"] for g in status(segment.station(2))["groups"]}
        if not name.isprintable():
            shown = segment.station(2).run([*ZENJUN, "status"], 20).stdout
            assert all(c.isprintable() or c == "\n" for c in shown), "a terminal would obey it"


@pytest.mark.parametrize("name", ["", "x" * 129, "ü" * 65, "x" * 10_240, "nul\0byte"])
def test_impossible_group_names_are_refused_case_141(segment: Lab, name: str) -> None:
    with connect_sync(str(segment.station(1).socket_path), timeout=10) as client:
        if "\0" in name:
            with contextlib.suppress(ClientError):
                client.join(name).leave()
        else:
            with pytest.raises(BadName):
                client.join(name)
        client.join("fine").send(b"x", timeout=5)
    assert process_alive(segment.station(1))


@pytest.mark.parametrize("name", ["x\n2026-01-01T00:00:00.000Z info forged: line", "\x1b[2J"])
def test_odd_program_names_stay_out_of_the_log_case_141(segment: Lab, name: str) -> None:
    """The daemon refuses them, in one line; the library does not send them: what cannot be printed is a question mark there."""
    station = segment.station(1)
    before = log_of(station).count("not printable")
    raw = RawClient(station.socket_path, b"ZENJ" + struct.pack("<HH", 1, 1) + name.encode())
    assert "not printable" in raw.error()["message"]
    wait_for(lambda: log_of(station).count("not printable") == before + 1, "one line")
    with connect_sync(str(station.socket_path), timeout=10, name=name):
        clients = [c["name"] for c in status(station)["clients"]]
        assert any("?" in c and c.isprintable() for c in clients), clients
    assert name[:20] not in log_of(station) and "\x1b" not in log_of(station)


def test_command_line_says_what_is_so_case_149(segment: Lab) -> None:
    """``zenjun status --json`` and ``zenjun members`` against what the test knows to be true."""
    with programs(segment, {"truth": "ack"}) as members:
        members[0].groups["truth"].send(b"12345", "ack")
        for station in segment.stations.values():
            done = station.run([*ZENJUN, "status", "--json"], 20)
            assert done.returncode == 0, done.stderr
            told = json.loads(done.stdout)
            assert (told["station"], told["stations"], told["state"], told["blocked"]) == (station.id, 2, "open", [])
            assert told["interface"]["mac"] == station.interface["mac"] and told["interface"]["mtu"]["bytes"] == 1500
            assert [p["state"] for p in told["peers"]] == (["self", "up"] if station.id == 1 else ["up", "self"])
            group = next(g for g in told["groups"] if g["name"] == "truth")
            assert [tuple(m[:2]) for m in group["members"]] == [(m.station, m.client) for m in members]
            table = station.run([*ZENJUN, "members", "truth"], 20)
            assert table.returncode == 0, table.stderr
            assert all(f"p{m.station}.0" in table.stdout for m in members)
