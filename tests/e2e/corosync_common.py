"""Stations with a stand-in for corosync at each, and Debian's programs in them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from zenjun.tools.lab import Lab

from .. import corosyncs
from .cluster import cluster, wait_for

MEMBER: Final = [sys.executable, "-m", "tests.e2e.corosync_member"]
DEADLINE_S: Final = 60.0
CONF: Final = """totem {{
  version: 2
  cluster_name: lab
  transport: udpu
}}
quorum {{
  provider: corosync_votequorum
  {quorum}
}}
nodelist {{
{nodes}
}}
"""
NODE: Final = "  node {{\n    ring0_addr: 10.77.0.{0}\n    name: node{0}\n    nodeid: {0}\n  }}"


class StandIns:
    """The stations of a lab, their stand-ins, and programs of corosync."""

    def __init__(self, lab: Lab, quorum: str = "") -> None:
        self.lab = lab
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.members: list[Member] = []
        nodes = "\n".join(NODE.format(number) for number in lab.stations)
        for number in lab.stations:
            self.conf(number).write_text(CONF.format(quorum=quorum, nodes=nodes))
            if not same_mounts(lab.station(number).netns_pid):
                lab.station(number).run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"])

    def conf(self, station: int) -> Path:
        return self.lab.station(station).directory / "corosync.conf"

    def log(self, station: int) -> str:
        try:
            return (self.lab.station(station).directory / "corosync.log").read_text(errors="replace")
        except OSError:
            return ""

    def command(self, station: int) -> list[str]:
        config = ["--config", str(self.lab.station(station).config_path)]
        return [sys.executable, "-m", "zenjun.daemon.corosync", *config, "--corosync-conf", str(self.conf(station))]

    def start(self, station: int) -> None:
        at = self.lab.station(station)
        with (at.directory / "corosync.log").open("ab") as log:
            self.processes[station] = at.spawn(self.command(station), env=corosyncs.environment(), stdout=log, stderr=log)

    def run(self, station: int, program: str, *arguments: str, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """One of corosync's programs."""
        path = corosyncs.folder() / "usr" / "sbin" / program
        return self.lab.station(station).run([path, *arguments], timeout_s, env=corosyncs.environment())

    def kill(self, station: int) -> None:
        """The whole station: as a machine that loses power."""
        daemon = self.lab.station(station).daemon
        assert daemon is not None
        for member in self.members:
            if member.station == station:
                member.process.kill()
        self.processes[station].kill()
        daemon.send_signal(signal.SIGKILL)
        self.processes[station].wait(20)
        daemon.wait(20)

    def together(self, *nodes: int) -> None:
        """Wait until the stand-ins of these are in one ring of exactly them, by what votequorum's tool says."""
        wait_for(lambda: all(self.ring(node) == nodes for node in nodes), f"a ring of {nodes}", DEADLINE_S)

    def ring(self, station: int) -> tuple[int, ...]:
        """Node ids in corosync-quorumtool's list; empty: it cannot be asked."""
        done = self.run(station, "corosync-quorumtool", "-l")
        lines = [line.split() for line in done.stdout.splitlines()]
        return tuple(sorted(int(words[0]) for words in lines if len(words) >= 3 and words[0].isdigit()))

    def member(self, station: int, group: str) -> Member:
        """A program that joins a group of libcpg."""
        member = Member(self, station, group)
        self.members.append(member)
        return member


class Member:
    """A program at a station: joins a group, sends what it is told to, and reports what it hears."""

    def __init__(self, of: StandIns, station: int, group: str) -> None:
        self.station = station
        options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        argv = [*MEMBER, group]
        self.process = of.lab.station(station).spawn(argv, env=corosyncs.environment(), cwd=corosyncs.ROOT, **options)
        self.heard: list[list[Any]] = []
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._text = ""

    def tell(self, *words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()

    def read(self) -> list[list[Any]]:
        """All that it has heard so far."""
        assert self.process.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.process.stdout.fileno(), 1 << 16):
                self._text += data.decode()
        *lines, self._text = self._text.split("\n")
        self.heard += [json.loads(line) for line in lines]
        return self.heard

    def messages(self) -> list[list[Any]]:
        """Node, pid, text of each message, in order."""
        return [entry[1:] for entry in self.read() if entry[0] == "message"]

    def changes(self) -> list[list[Any]]:
        """Members, left, joined of each change of the group."""
        return [entry[1:] for entry in self.read() if entry[0] == "change"]

    def nodes(self) -> list[int]:
        """Of the group's members, by the last change."""
        return [address[0] for address in self.changes()[-1][0]] if self.changes() else []


def same_mounts(pid: int) -> bool:
    return Path(f"/proc/{pid}/ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink()


@contextlib.contextmanager
def standins(stations: int, *, quorum: str = "", ids: Sequence[int] = (), fail_timeout_ms: int = 1000) -> Iterator[StandIns]:
    """A lab whose stations are in one ring."""
    corosyncs.folder()
    with cluster(stations, options={"cluster": {"fail_timeout_ms": fail_timeout_ms}}) as lab:
        up = StandIns(lab, quorum)
        try:
            for number in ids or lab.stations:
                up.start(number)
            up.together(*(ids or lab.stations))
            yield up
        except BaseException as error:
            for number in lab.stations:
                error.add_note(f"stand-in {number}:\n    " + "\n    ".join(up.log(number).splitlines()[-25:]))
            raise
        finally:
            for process in [*up.processes.values(), *(member.process for member in up.members)]:
                process.kill()
                process.wait(20)


def until(condition: Any, what: str, timeout_s: float = DEADLINE_S) -> Any:
    return wait_for(condition, what, timeout_s)


def now() -> float:
    return time.monotonic()
