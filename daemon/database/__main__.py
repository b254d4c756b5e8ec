"""``zenjun-db``: command line, composition, the end in order."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import uvloop

from .. import config as configuration
from ..__main__ import version
from ..client import ClientError
from ..config import ConfigError
from ..exits import Exit
from ..listening import Listener, SocketError
from ..manager import adapted, journal_handler
from ..metrics import SWITCH_S, MetricsServer
from ..observe import LEVELS, Journal, Notifier, set_up
from ..programs import Programs
from . import vfs
from .errors import NotSupportedError
from .files import FilesError, claim
from .metrics import families
from .process import FOLDER, Process
from .serving import Client, socket_of


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="zenjun-db",
        description="The replicated databases of one station of a zenjun cluster (docs/database.md).",
        epilog="exit codes: 0 stopped in order, 1 bug, 2 command line, 3 configuration, 5 its folder, 6 its socket, or zenjund's",
    )
    default = f"${configuration.CONFIG_ENV}, else {configuration.CONFIG_PATH}"
    p.add_argument("--config", metavar="FILE", type=Path, help=f"zenjund's configuration (default: {default})")
    p.add_argument(
        "--daemon-socket", metavar="PATH", help="zenjund's socket, where a socket unit makes it (default: as configured)"
    )
    p.add_argument("--log-level", choices=list(LEVELS), help="instead of the configuration's log.level")
    p.add_argument("--version", action="version", version=f"zenjun-db {version()}")
    return p


async def serve(process: Process, listener: Listener, monitoring: MetricsServer, journal: Journal) -> int:
    """Run until a signal, or an end that waiting does not mend."""
    sys.setswitchinterval(SWITCH_S)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await process.open()
    programs = Programs(lambda uid, gid: Client(process, uid), listener, journal)
    monitoring.status = lambda: process.status(None, len(programs.connections))
    await monitoring.start()
    notifier = Notifier(os.environ, os.getpid())
    running = asyncio.create_task(process.run())
    stopping = asyncio.create_task(stop.wait())
    notifier.ready("serving")
    await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
    notifier.stopping()
    monitoring.close()
    await programs.close()
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
    root = Path(station.state_dir) / FOLDER
    try:
        vfs.load()
        claim(root, config.cluster.name, station.id)
    except (FilesError, NotSupportedError) as error:
        journal.error("exit", str(error), code=int(Exit.STATE))
        return Exit.STATE
    path = socket_of(config.database.socket, station.socket)

    async def run() -> int:
        process = Process(config, root, journal)
        try:
            monitoring = MetricsServer(
                config.database.metrics, station.socket_bits, station.socket_group, journal, families, "database.metrics"
            )
            with contextlib.ExitStack() as undo:
                undo.callback(monitoring.close)
                listener = Listener(path, station.socket_bits, station.socket_group)
                undo.pop_all()
        except SocketError as error:
            journal.error("exit", str(error), code=int(Exit.SOCKET))
            return Exit.SOCKET
        journal.info("start", f"zenjun-db {version()}: station {station.id} of {config.cluster.name!r}", socket=str(path))
        return await serve(process, listener, monitoring, journal)

    return uvloop.run(run())


if __name__ == "__main__":
    sys.exit(main())
