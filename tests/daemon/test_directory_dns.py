"""The DNS port of a directory process, asked by dig and by bytes that are no questions."""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import dns.message
import pytest
from zenjun.daemon.directory.dnsserver import TCP_CONNECTIONS_MAX, TCP_IDLE_S, Bucket

from ..timing import in_time
from .test_directory_process import PATIENCE_S, Alone, alone

__all__ = ["alone"]


def free_port(family: socket.AddressFamily = socket.AF_INET, host: str = "127.0.0.1") -> int:
    """One that is free for UDP and TCP now."""
    with socket.socket(family, socket.SOCK_DGRAM) as udp, socket.socket(family) as tcp:
        udp.bind((host, 0))
        port = int(udp.getsockname()[1])
        with contextlib.suppress(OSError):
            tcp.bind((host, port))
            return port
    return free_port(family, host)


class Asked:
    """A process that answers DNS questions."""

    def __init__(self, alone: Alone, rate: int = 1000) -> None:
        self.port = free_port()
        alone.configure(f'dns = "127.0.0.1:{self.port}"\ndns_rate = {rate}\n')
        alone.fill()
        self.directory = alone.start()

    def dig(self, *words: str) -> str:
        program = shutil.which("dig")
        assert program is not None, "dig is not installed; tools/bootstrap.sh test does that"
        argv = [program, "@127.0.0.1", "-p", str(self.port), "+norecurse", "+tries=1", "+time=30", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        return done.stdout

    def udp(self) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.connect(("127.0.0.1", self.port))
        made.settimeout(PATIENCE_S)
        return made

    def tcp(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)

    def status(self) -> dict[str, Any]:
        return dict(self.directory.status()["dns"])


@pytest.fixture
def asked(alone: Alone) -> Iterator[Asked]:
    up = Asked(alone)
    with up.directory:
        yield up


def question(name: str = "db", kind: str = "A") -> bytes:
    return dns.message.make_query(f"{name}.zenjun.internal", kind).to_wire()


def frame(wire: bytes) -> bytes:
    return struct.pack(">H", len(wire)) + wire


def test_dig(asked: Asked) -> None:
    assert asked.dig("db.zenjun.internal", "+short") == "10.0.0.7\n"
    assert asked.dig("db.zenjun.internal", "+short", "+tcp") == "10.0.0.7\n"
    found = asked.dig("_db._tcp.zenjun.internal", "SRV")
    assert "status: NOERROR" in found and "flags: qr aa;" in found and "WARNING" not in found
    assert "_db._tcp.zenjun.internal. 1\tIN\tSRV\t0 1 5432 0a000007.addr.zenjun.internal." in found
    assert "0a000007.addr.zenjun.internal. 1 IN\tA\t10.0.0.7" in found
    assert "EDNS: version: 0, flags:; udp: 1232" in found
    nothing = asked.dig("nothing.zenjun.internal")
    assert "status: NXDOMAIN" in nothing and "SOA\ts1.station.zenjun.internal. hostmaster.zenjun.internal." in nothing
    assert "status: REFUSED" in asked.dig("example.org")
    assert asked.status()["answers"] == {"NOERROR": 3, "NXDOMAIN": 1, "REFUSED": 1}


def test_malformed_messages_are_dropped_and_counted(asked: Asked) -> None:
    with asked.udp() as udp:
        for wire in (b"", b"x", b"\0" * 12 + b"\xc0\x0c", question()[:-1], question() + b"x", b"\xff" * 4000, b"\xff" * 9000):
            udp.send(wire)
        udp.send(question())
        assert dns.message.from_wire(udp.recv(4096)).answer
    assert asked.status()["dropped"] == {"malformed": 7}
    with asked.tcp() as tcp:
        tcp.sendall(frame(question()) + frame(question("nothing")))
        with tcp.makefile("rb") as answers:
            for _ in range(2):
                dns.message.from_wire(answers.read(int.from_bytes(answers.read(2), "big")))
            tcp.sendall(frame(b"no question"))
            assert answers.read() == b""
    assert asked.status()["dropped"] == {"malformed": 8}
    assert asked.dig("db.zenjun.internal", "+short") == "10.0.0.7\n"


def test_tcp_connections_that_say_nothing_take_no_place_for_ever(asked: Asked) -> None:
    begun = time.monotonic()

    def all_are_open() -> None:
        in_time(time.monotonic() - begun < TCP_IDLE_S, "the first has been let go before the last one came")

    with contextlib.ExitStack() as held:
        silent = [held.enter_context(asked.tcp()) for _ in range(TCP_CONNECTIONS_MAX)]
        while asked.status()["connections"] != TCP_CONNECTIONS_MAX:
            all_are_open()
        with asked.tcp() as more:
            end = more.recv(1)
        told = asked.status()
        all_are_open()
        assert end == b"" and told["dropped"] == {"busy": 1}
        assert asked.dig("db.zenjun.internal", "+short") == "10.0.0.7\n"
        for each in silent:
            each.settimeout(PATIENCE_S)
            assert each.recv(1) == b""
    assert asked.dig("db.zenjun.internal", "+short", "+tcp") == "10.0.0.7\n"


def test_what_is_above_the_rate_is_dropped(alone: Alone) -> None:
    asked = Asked(alone, rate=10)
    with asked.directory, asked.udp() as udp:
        begun = time.monotonic()
        for _ in range(100):
            udp.send(question())
        answered = limited = 0
        while answered + limited < 100:
            in_time(time.monotonic() - begun < PATIENCE_S, f"{answered} answered and {limited} dropped of 100")
            told = asked.status()
            answered, limited = told["answers"].get("NOERROR", 0), told["dropped"].get("limited", 0)
        taken_s = time.monotonic() - begun
        assert answered + limited == 100 and 1 <= answered <= 2 + 10 * taken_s
        for _ in range(answered):
            udp.recv(4096)
        in_time(limited > 0, f"so many come in {taken_s:.1f} s that some are too many")


def test_a_bucket_gives_its_rate_and_a_tenth_of_a_second_at_once() -> None:
    bucket = Bucket(1000)
    assert sum(bucket.take(1) for _ in range(500)) == 100
    assert sum(bucket.take(10_000_000 + i * 100_000) for i in range(1000)) == pytest.approx(110, abs=2)
    assert sum(Bucket(1).take(t * 100_000_000) for t in range(1, 100)) > 0


def test_a_port_that_is_taken_or_dnspython_missing_ends_it(alone: Alone) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        alone.configure(f'dns = "127.0.0.1:{port}"\n')
        config = str(alone.folder / "zenjund.toml")
        argv = [sys.executable, "-m", "zenjun.daemon.directory", "--config", config]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert (done.returncode, f"cannot answer DNS at 127.0.0.1:{port}: Address already in use" in done.stderr) == (6, True)
        hidden = (
            "import sys; sys.modules['dns'] = None; "
            "from zenjun.daemon.directory.__main__ import main; sys.exit(main(sys.argv[1:]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", hidden, "--config", config], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert (done.returncode, "directory.dns needs dnspython: pip install 'zenjun[dns]'" in done.stderr) == (3, True)
    assert not (alone.folder / "directory.sock").exists()


def test_ipv6(alone: Alone) -> None:
    try:
        port = free_port(socket.AF_INET6, "::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    alone.configure(f'dns = "[::1]:{port}"\ndns_domain = "names.example"\n')
    alone.fill()
    with alone.start(), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as udp:
        udp.connect(("::1", port))
        udp.settimeout(PATIENCE_S)
        udp.send(dns.message.make_query("db.names.example", "A").to_wire())
        assert dns.message.from_wire(udp.recv(4096)).answer[0][0].to_text() == "10.0.0.7"
