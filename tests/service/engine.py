"""A Docker Engine of the tests' own (``tools/lab/own_engine.py``), and in it machines whose PID 1 is systemd."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from zenjun.tools.lab import LabUnsupported
from zenjun.tools.lab.own_engine import OwnEngine

from ..timing import rest

ROOT: Final = Path(__file__).resolve().parents[2]
OUT: Final = ROOT / "out"
SUITE: Final = "bookworm"
PACKAGES: Final = "systemd,systemd-sysv,systemd-resolved,dbus,python3,iproute2,procps,corosync"
HOOK: Final = 'systemctl --root="$1" disable corosync.service'
"""Whoever installs corosync has it started at once; here only its own test does."""
IMAGE: Final = "zenjun-test-systemd"
NEEDED: Final = ("docker", "dockerd", "mmdebstrap")
IMAGE_S: Final = 600
BOOT_S: Final = 240
COMMAND_S: Final = 200
CAPABILITIES: Final = ("SYS_ADMIN", "NET_RAW", "NET_ADMIN", "SYS_NICE", "IPC_LOCK")
T = TypeVar("T")


class Missing(Exception):
    """What the machine lacks, in words for the list of skipped tests."""


def wait_for(condition: Callable[[], T], what: str, timeout_s: float = 120.0, tell: Callable[[], str] = lambda: "") -> T:
    """The condition's value as soon as it is true; fails with what ``tell`` says when the time is over."""
    begun = asked = time.monotonic()
    while not (value := condition()):
        if time.monotonic() > begun + timeout_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}\n{tell()}")
        rest(begun, asked)
        asked = time.monotonic()
    return value


def archive() -> Path:
    """A Debian with systemd, made once for these packages and kept in out/. It takes minutes and needs no engine: tools/test has
    it made beforehand. Raises Missing without a Debian mirror."""
    made = OUT / f"systemd-base-{SUITE}-{zlib.crc32(PACKAGES.encode()):08x}.tar"
    if made.exists():
        return made
    OUT.mkdir(exist_ok=True)
    fresh = made.with_suffix(f".{os.getpid()}")
    try:
        done = subprocess.run(
            ["mmdebstrap", "--quiet", "--format=tar", "--variant=minbase", f"--include={PACKAGES}", f"--customize-hook={HOOK}",
             SUITE, str(fresh)],
            capture_output=True, text=True, timeout=IMAGE_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Missing(f"no base image can be made from Debian's packages: {done.stderr.strip()[-300:]}")
        fresh.rename(made)
    finally:
        fresh.unlink(missing_ok=True)
    return made


class Engine:
    """``with Engine() as engine``: a running dockerd. Raises Missing."""

    def __init__(self) -> None:
        lacking = [name for name in NEEDED if shutil.which(name) is None]
        if lacking:
            raise Missing(f"not installed (tools/bootstrap.sh test does): {', '.join(lacking)}")
        try:
            self._own = OwnEngine()
        except LabUnsupported as error:
            raise Missing(str(error)) from error
        self.host = ""
        """As ``docker --host`` takes it."""

    def __enter__(self) -> Engine:
        try:
            self.host = self._own.__enter__().host
        except LabUnsupported as error:
            raise Missing(str(error)) from error
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            if ids := self.docker("ps", "-aq").split():  # systemd takes its time when it is only told to stop
                self.docker("rm", "-f", "-v", *ids)
        finally:
            self._own.__exit__(None, None, None)

    def _docker(self, *arguments: str, timeout_s: float = COMMAND_S, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", "--host", self.host, *arguments],
            input=text, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip

    def docker(self, *arguments: str, timeout_s: float = COMMAND_S) -> str:
        """Output of a docker command that must succeed."""
        done = self._docker(*arguments, timeout_s=timeout_s)
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def run(self, *arguments: str, timeout_s: float = COMMAND_S, text: str = "") -> subprocess.CompletedProcess[str]:
        """A docker command that may fail."""
        return self._docker(*arguments, timeout_s=timeout_s, text=text)

    def image(self) -> str:
        """A Debian with systemd, imported. Raises Missing without a Debian mirror."""
        self.docker("import", str(archive()), IMAGE, timeout_s=IMAGE_S)
        return IMAGE


class Machine:
    """A container in which systemd is PID 1; without any network but what tests make inside."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self.name = name
        rights = [word for capability in CAPABILITIES for word in ("--cap-add", capability)]
        engine.docker(
            "run", "-d", "--name", name, "--network", "none", *rights, "--security-opt", "seccomp=unconfined", "--cgroupns=host",
            "-v", "/sys/fs/cgroup:/sys/fs/cgroup:rw", "--tmpfs", "/run", "--tmpfs", "/run/lock", IMAGE, "/sbin/init",
        )  # fmt: skip
        self.wait_booted()

    def wait_booted(self) -> None:
        """Until systemd answers and has nothing left to do but what may wait for an interface."""
        wait_for(lambda: self.run("systemctl", "is-active", "basic.target").stdout.strip() == "active", "systemd is up", BOOT_S)
        # As on a machine, where systemd has done so; in containers it does not, and credentials would not arrive.
        self.ok("mount", "--make-rshared", "/")

    def reboot(self) -> None:
        """End PID 1 and everything with it, and start again; interfaces are gone then."""
        self._engine.docker("restart", "-t", "20", self.name, timeout_s=BOOT_S)
        self.wait_booted()

    def remove(self) -> None:
        self._engine.docker("rm", "-f", "-v", self.name)

    def copy_in(self, source: Path, target: str) -> None:
        self._engine.docker("cp", str(source), f"{self.name}:{target}")

    def write(self, path: str, text: str) -> None:
        """Make a file, with its folder."""
        done = self.run("sh", "-c", 'mkdir -p "$(dirname "$0")" && cat > "$0"', path, text=text)
        assert done.returncode == 0, done.stderr

    def run(self, *command: str, text: str = "", timeout_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
        """A command as root, which may fail."""
        return self._engine.run("exec", "-i", self.name, *command, text=text, timeout_s=timeout_s)

    def ok(self, *command: str, text: str = "", timeout_s: float = COMMAND_S) -> str:
        """Output of a command that must succeed."""
        done = self.run(*command, text=text, timeout_s=timeout_s)
        assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.log()}"
        return done.stdout

    def popen(self, *command: str) -> subprocess.Popen[str]:
        """A command that goes on meanwhile."""
        return subprocess.Popen(
            ["docker", "--host", self._engine.host, "exec", "-i", self.name, *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def show(self, unit: str) -> Mapping[str, str]:
        """The unit's properties."""
        lines = self.ok("systemctl", "show", unit).splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def log(self, unit: str = "zenjund*") -> str:
        """The last lines of the journal, and where the daemon found bugs in itself."""
        self._written()
        bugs = [str(e.get("ZENJUN_TRACEBACK")) for e in self.entries("zenjund*", ZENJUN_EVENT="bug")]
        last = self.run("journalctl", "--no-pager", "-o", "short-monotonic", "-u", unit, "-n", "60").stdout
        return "\n".join([last, *bugs])

    def _written(self) -> None:
        """The journal gets its lines through sockets: until what has been said by now is in it."""
        self.run("journalctl", "--sync")

    def entries(self, unit: str, **fields: str) -> list[dict[str, Any]]:
        """The journal's entries of a unit with these fields."""
        self._written()
        match = [f"{k}={v}" for k, v in fields.items()]
        text = self.run("journalctl", "--no-pager", "-o", "json", "-u", unit, *match).stdout
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def python(self, program: str, *arguments: str, timeout_s: float = COMMAND_S) -> str:
        """Output of a program for the interpreter that has zenjun."""
        return self.ok("/usr/lib/zenjun/bin/python3", "-u", "-c", program, *arguments, timeout_s=timeout_s)


@contextlib.contextmanager
def machine(engine: Engine, name: str) -> Iterator[Machine]:
    """A machine for the time of a test module."""
    made = Machine(engine, name)
    try:
        yield made
    finally:
        made.remove()


if __name__ == "__main__":
    with contextlib.suppress(Missing, OSError, subprocess.TimeoutExpired):  # the tests that need it say so
        archive()
