"""``zenjun name hold``: a name has an address as long as a command runs."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import click

from ...daemon.client.errors import ConnectionClosed
from ...daemon.names import NoQuorum, SyncDirectory, SyncLease
from ...proto.service.directory.entries import SELECTIONS
from .common import NO_SERVICE, Failure, say
from .impairments import Quantity
from .namecommon import directory, directory_option, seconds

STOP_S = 5.0
"""From SIGTERM to SIGKILL."""


@click.command(epilog="Exit codes: that of COMMAND; else docs/cli.md.")
@click.option("--exclusive", is_flag=True, help="Have the name alone: wait for it, and start COMMAND when it is ours.")
@click.option("--select", "selection", type=click.Choice(SELECTIONS), default="all", help="Order of addresses, for a new name.")
@click.option("--zone", default="", help="Zone, for a new name.")
@click.option("--check", metavar="SHELL", help="Run this again and again; while it fails the name is without this address.")
@click.option("--every", type=Quantity("time", seconds), default="5s", show_default=True, help="Between two checks.")
@directory_option
@click.argument("name")
@click.argument("address")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND [ARGUMENT]...")
def hold(
    name: str,
    address: str,
    command: tuple[str, ...],
    exclusive: bool,
    selection: str,
    zone: str,
    check: str | None,
    every: float,
    path: str | None,
) -> int:
    """Give NAME this ADDRESS while COMMAND runs. It is removed when the command ends, when this process does, and when the
    station is cut off or dead.

    With --exclusive COMMAND runs only while this process holds the name, and is ended when the name is lost. In COMMAND's
    environment, ZENJUN_VERSION is the number that grows with each holder.

    \b
    Examples:
      zenjun name hold web tcp://10.0.0.12:80 -- ./server
      zenjun name hold --exclusive leader station:1/job -- ./job
      zenjun name hold --check "curl -fs localhost:80" --every 5s web tcp://10.0.0.12:80 -- ./server
    """
    with directory(path) as d:
        holder = _Holder(d, lambda: d.register(name, address, exclusive=exclusive, selection=selection, zone=zone), check, every)
        try:
            return holder.run(command, exclusive)
        except ConnectionClosed as error:
            raise Failure(f"{error}; the command was ended", NO_SERVICE, "name hold") from error


class _Holder:
    """A lease, the command, and the check."""

    def __init__(self, d: SyncDirectory, register: Callable[[], SyncLease], check: str | None, every: float) -> None:
        self._d = d
        self._register = register
        self._check = check
        self._every = every
        self._checking: subprocess.Popen[bytes] | None = None
        self._check_at = time.monotonic() + every
        self._lease: SyncLease | None = None

    def run(self, command: tuple[str, ...], exclusive: bool) -> int:
        """The command's exit code."""
        self._lease = lease = self._register()
        if exclusive and not lease.held:
            say("zenjun name hold: another program has the name; waiting")
            if not lease.wait_held():
                raise NoQuorum("the lease has ended before the name was ours; the command was not started")
        environment = {**os.environ, "ZENJUN_VERSION": ".".join(map(str, lease.version))}
        try:
            process = subprocess.Popen(command, env=environment)
        except OSError as error:
            raise Failure(
                f"{command[0]}: {error.strerror or error}", 127 if isinstance(error, FileNotFoundError) else 126, "name hold"
            ) from None
        before = signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
        try:
            return self._watch(process, exclusive)
        finally:
            signal.signal(signal.SIGTERM, before)
            _end(process)
            if self._checking is not None:
                _end(self._checking)

    def _watch(self, process: subprocess.Popen[bytes], exclusive: bool) -> int:
        fd = os.pidfd_open(process.pid)
        try:
            while (code := process.poll()) is None:
                wait = 0.2 if self._check else 1.0
                with contextlib.suppress(InterruptedError):
                    select.select([fd, self._d.fileno()], [], [], wait)
                    self._d.poll()
                if exclusive and self._lease is not None and not self._lease.held:
                    raise NoQuorum("the name is lost; the command was ended")
                if self._check:
                    self._look(self._check)
            return code if code >= 0 else 128 - code
        finally:
            os.close(fd)

    def _look(self, check: str) -> None:
        """Start the check when it is time, and act on how it ended."""
        if self._checking is None:
            if time.monotonic() >= self._check_at:
                self._checking = subprocess.Popen(["/bin/sh", "-c", check], stdin=subprocess.DEVNULL, stdout=sys.stderr)
            return
        code = self._checking.poll()
        if code is None:
            return
        self._checking, self._check_at = None, time.monotonic() + self._every
        if code and self._lease is not None:
            say(f"zenjun name hold: the check failed (exit code {code}): the address is withdrawn")
            self._lease.close()
            self._lease = None
        elif not code and self._lease is None:
            say("zenjun name hold: the check is good again")
            self._lease = self._register()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that still runs."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
