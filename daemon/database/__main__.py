"""``zenjun-db``: command line, composition, the end in order."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

import uvloop

from .. import companion
from ..client import ClientError
from ..config import ConfigError
from ..exits import Exit
from ..listening import Listener, SocketError
from ..metrics import MetricsServer
from ..observe import Journal
from ..programs import Programs
from ..release import version
from . import vfs
from .errors import NotSupportedError
from .files import FilesError, claim
from .metrics import families
from .process import FOLDER, Process
from .serving import Client, socket_of


def parser() -> argparse.ArgumentParser:
    """The command line."""
    text = "The replicated databases of one station of a zenjun cluster (docs/database.md)."
    return companion.parser("zenjun-db", text, "its folder")


async def serve(process: Process, listener: Listener, monitoring: MetricsServer, journal: Journal) -> int:
    """Run until a signal, or an end that waiting does not mend."""
    stop = companion.stop_signals()
    await process.open()
    programs = Programs(lambda uid, gid: Client(process, uid), listener, journal)
    monitoring.status = lambda: process.status(None, len(programs.connections))
    await monitoring.start()

    async def close() -> None:
        monitoring.close()
        await programs.close()

    return await companion.until_ended(process.run(), stop, close, journal, ClientError)


def main(argv: list[str] | None = None) -> int:
    """Run the process; returns its exit code (see ``Exit``)."""
    try:
        config, journal = companion.configured(parser().parse_args(argv))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return Exit.CONFIG
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
        process = Process(config, root, journal, str(path))
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
