"""``zenjun-directory``: command line, composition, the end in order."""

from __future__ import annotations

import argparse
import contextlib
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from ...proto.service.directory.entries import DEFAULT_ZONE
from .. import companion
from ..client import ClientError
from ..config import ConfigError, Problem
from ..exits import Exit
from ..listening import Listener, SocketError
from ..metrics import MetricsServer
from ..observe import Journal
from ..release import version
from . import metrics, report, zonedreport
from .copy import Copy
from .node import Node
from .process import Process
from .serving import Server, socket_of
from .sevencopy import SevenCopy
from .sevenprocess import SevenProcess
from .store import File, StoreError
from .zonedserving import ZonedServer
from .zones import file_of, parts_of

MESSAGE_LEAST: Final = 64 * 1024
"""An update has up to 60 KiB, and so has a part of a state."""

if TYPE_CHECKING:
    from .dnsserver import DnsServer  # it needs dnspython, which is installed only where it is used


def parser() -> argparse.ArgumentParser:
    """The command line."""
    text = "The directory of one station of a zenjun cluster: names that give addresses (docs/directory-service.md)."
    return companion.parser("zenjun-directory", text, "its file")


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


async def serve_zones(node: Node, listener: Listener, monitoring: MetricsServer, journal: Journal) -> int:
    """``serve`` for zones with holders of their own, or names that this station does not keep."""
    stop = companion.stop_signals()
    server = ZonedServer(node, listener, journal)
    monitoring.status = lambda: zonedreport.measured(node, len(server.connections))
    await monitoring.start()

    async def close() -> None:
        monitoring.close()
        await server.close()

    return await companion.until_ended(node.run(), stop, close, journal, ClientError)


async def serve(process: Process, listener: Listener, monitoring: MetricsServer, dns: DnsServer | None, journal: Journal) -> int:
    """Run until a signal, or an error that waiting does not repair."""
    stop = companion.stop_signals()
    server = Server(process, listener, journal)
    monitoring.status = lambda: report.measured(process, len(server.connections))
    await monitoring.start()
    if dns is not None:
        process.dns_status = dns.status
        await dns.start()

    async def close() -> None:
        monitoring.close()
        if dns is not None:
            dns.close()
        await server.close()

    return await companion.until_ended(process.run(), stop, close, journal, ClientError)


def main(argv: list[str] | None = None) -> int:
    """Run the process; returns its exit code (see ``Exit``)."""
    try:
        config, journal = companion.configured(parser().parse_args(argv))
        if config.cluster.message_max < MESSAGE_LEAST:
            text = f"cluster.message_max is {config.cluster.message_max}: a directory needs {MESSAGE_LEAST} bytes or more"
            raise ConfigError(config.file, (Problem(0, text),))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return Exit.CONFIG
    station = config.station
    seven = config.directory.update == "seven"
    parts = parts_of(config)
    copies: dict[str, Copy] = {}
    for zone in parts.kept_at(station.id):
        file = File(Path(station.state_dir), config.cluster.name, station.id, file_of(zone))
        try:
            copies[zone] = SevenCopy(file) if seven else Copy(file, zone)
        except StoreError as error:
            journal.error("exit", str(error), code=int(Exit.STATE))
            return Exit.STATE
        if file.moved:
            journal.warning("damaged", f"{file.path} was damaged ({file.why}): it is {file.moved} now, and a blank one is begun")
    path = socket_of(config.directory.socket, station.socket)

    async def run_zones() -> int:
        try:
            monitoring = MetricsServer(
                config.directory.metrics, station.socket_bits, station.socket_group, journal,
                partial(metrics.families, tuple(copies.values())), "directory.metrics",
            )  # fmt: skip
            with contextlib.ExitStack() as undo:
                undo.callback(monitoring.close)
                listener = Listener(path, station.socket_bits, station.socket_group)
                undo.pop_all()
        except SocketError as error:
            journal.error("exit", str(error), code=int(Exit.SOCKET))
            return Exit.SOCKET
        kept = ", ".join(copies) or "none"
        text = f"zenjun-directory {version()}: station {station.id} of {config.cluster.name!r}, keeps zones: {kept}"
        journal.info("start", text, socket=str(path))
        return await serve_zones(Node(config, parts, copies, journal), listener, monitoring, journal)

    async def run() -> int:
        copy = copies[DEFAULT_ZONE]
        try:
            process = SevenProcess(config, copy, journal) if isinstance(copy, SevenCopy) else Process(config, copy, journal)
            dns = _dns(process)
            monitoring = MetricsServer(
                config.directory.metrics, station.socket_bits, station.socket_group, journal,
                partial(metrics.families, (copy,)), "directory.metrics",
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

    return uvloop.run(run() if parts.full else run_zones())


if __name__ == "__main__":
    sys.exit(main())
