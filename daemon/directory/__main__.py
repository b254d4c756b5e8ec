"""``zenjun-directory``: command line, composition, the end in order."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from .. import config as configuration
from ..__main__ import version
from ..client import ClientError
from ..config import ConfigError, Problem
from ..exits import Exit
from ..listening import Listener, SocketError
from ..manager import adapted, journal_handler
from ..metrics import SWITCH_S, MetricsServer
from ..observe import LEVELS, Journal, Notifier, set_up
from . import metrics, report
from .copy import Copy
from .process import Process
from .serving import Server, socket_of
from .sevencopy import SevenCopy
from .sevenprocess import SevenProcess
from .store import File, StoreError

if TYPE_CHECKING:
    from .dnsserver import DnsServer  # it needs dnspython, which is installed only where it is used


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="zenjun-directory",
        description="The directory of one station of a zenjun cluster: names that give addresses (docs/directory-service.md).",
        epilog="exit codes: 0 stopped in order, 1 bug, 2 command line, 3 configuration, 5 its file, 6 its socket, or zenjund's",
    )
    default = f"${configuration.CONFIG_ENV}, else {configuration.CONFIG_PATH}"
    p.add_argument("--config", metavar="FILE", type=Path, help=f"zenjund's configuration (default: {default})")
    p.add_argument(
        "--daemon-socket", metavar="PATH", help="zenjund's socket, where a socket unit makes it (default: as configured)"
    )
    p.add_argument("--log-level", choices=list(LEVELS), help="instead of the configuration's log.level")
    p.add_argument("--version", action="version", version=f"zenjun-directory {version()}")
    return p


def _dns(process: Process) -> DnsServer | None:
    """The port for DNS questions, if one is configured. Raises ConfigError: dnspython is missing; SocketError."""
    options = process.config.directory
    if not options.dns:
        return None
    try:
        from .dnsserver import DnsServer
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "dns":
            raise
        problem = Problem(0, "directory.dns needs dnspython: pip install 'zenjun[dns]'")
        raise ConfigError(process.config.file, (problem,)) from None
    return DnsServer(process, options)


async def serve(process: Process, listener: Listener, monitoring: MetricsServer, dns: DnsServer | None, journal: Journal) -> int:
    """Run until a signal, or an error that waiting does not repair."""
    sys.setswitchinterval(SWITCH_S)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = Server(process, listener, journal)
    monitoring.status = lambda: report.measured(process, len(server.connections))
    await monitoring.start()
    if dns is not None:
        process.dns_status = dns.status
        await dns.start()
    notifier = Notifier(os.environ, os.getpid())
    running = asyncio.create_task(process.run())
    stopping = asyncio.create_task(stop.wait())
    notifier.ready("serving")
    await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
    notifier.stopping()
    monitoring.close()
    if dns is not None:
        dns.close()
    await server.close()
    code = Exit.OK
    if running.done():
        error = running.exception()
        if isinstance(error, ClientError):
            journal.error("exit", str(error))
            code = Exit.SOCKET
        elif error is not None:
            journal.error("exit", f"{type(error).__name__}: {error}")
            raise error
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError, ClientError):
        await running
    notifier.close()
    return code


def main(argv: list[str] | None = None) -> int:
    """Run the process; returns its exit code (see ``Exit``)."""
    arguments = parser().parse_args(argv)
    try:
        config = adapted(
            configuration.load(arguments.config), environ=dict(os.environ), socket_path=arguments.daemon_socket or ""
        )
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return Exit.CONFIG
    entries = journal_handler(os.environ, {"cluster": config.cluster.name, "own_station": config.station.id})
    journal = set_up(config.log.format, arguments.log_level or config.log.level, entries=entries)
    station = config.station
    seven = config.directory.update == "seven"
    file = File(Path(station.state_dir), config.cluster.name, station.id)
    try:
        copy = SevenCopy(file) if seven else Copy(file)
    except StoreError as error:
        journal.error("exit", str(error), code=int(Exit.STATE))
        return Exit.STATE
    if file.moved:
        journal.warning("damaged", f"{file.path} was damaged ({file.why}): it is {file.moved} now, and a blank one is begun")
    path = socket_of(config.directory.socket, station.socket)

    async def run() -> int:
        try:
            process = SevenProcess(config, copy, journal) if isinstance(copy, SevenCopy) else Process(config, copy, journal)
            dns = _dns(process)
            monitoring = MetricsServer(
                config.directory.metrics, station.socket_bits, station.socket_group, journal,
                partial(metrics.families, copy), "directory.metrics",
            )  # fmt: skip
            with contextlib.ExitStack() as undo:
                undo.callback(monitoring.close)
                listener = Listener(path, station.socket_bits, station.socket_group)
                undo.pop_all()
        except SocketError as error:
            journal.error("exit", str(error), code=int(Exit.SOCKET))
            return Exit.SOCKET
        except ConfigError as error:
            journal.error("exit", str(error), code=int(Exit.CONFIG))
            return Exit.CONFIG
        journal.info("start", f"zenjun-directory {version()}: station {station.id} of {config.cluster.name!r}", socket=str(path))
        return await serve(process, listener, monitoring, dns, journal)

    return uvloop.run(run())


if __name__ == "__main__":
    sys.exit(main())
