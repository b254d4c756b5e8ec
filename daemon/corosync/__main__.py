"""``zenjun-corosync``: command line, composition, the end in order."""

from __future__ import annotations

import argparse
import os
import resource
import sys
from pathlib import Path

import uvloop

from .. import companion
from ..client import ClientError
from ..config import Config, ConfigError
from ..exits import Exit
from ..observe import Journal
from ..release import version
from .conf import Conf, check, load, path_of
from .ipc import IpcError, Server
from .past import Past, PastError
from .process import Process


def parser() -> argparse.ArgumentParser:
    """The command line."""
    text = "Serves the programs of corosync at one station of a zenjun cluster (docs/corosync.md)."
    p = companion.parser("zenjun-corosync", text, "its file")
    p.epilog = (p.epilog or "") + ", or a live corosync; 8 ended by a program or by another node, not to be started again"
    p.add_argument(
        "--corosync-conf", metavar="FILE", type=Path, help="default: $COROSYNC_MAIN_CONFIG_FILE, else /etc/corosync/corosync.conf"
    )
    return p


def loaded(config: Config, path: Path | None) -> Conf:
    """corosync.conf, checked against zenjund's configuration. Raises ConfigError."""
    conf = load(path or path_of(dict(os.environ)))
    cluster = config.cluster
    if problems := tuple(check(conf, cluster.stations, config.station.id, cluster.message_max, cluster.medium)):
        raise ConfigError(str(conf.path), problems)
    return conf


def _more_descriptors() -> None:
    """Connections of programs may be as many as the usual limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def take_realtime(wanted: bool) -> bool:
    """Run ahead of programs that are not real-time, as corosync does: all of a change is written before the first program acts on
    a part of it (docs/corosync.md, "Cut off"). False: the kernel refuses."""
    if not wanted or os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK in (os.SCHED_RR, os.SCHED_FIFO):
        return True
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except OSError:
        return False
    return True


async def serve(config: Config, conf: Conf, past: Past, journal: Journal) -> int:
    """Run until a signal, or until a program or another node ends it."""
    stop = companion.stop_signals()
    try:
        server = Server(conf.queue_bytes_max)
        process = Process(config, conf, past, server, journal)
    except (PastError, ValueError) as error:
        journal.error("exit", str(error), code=int(Exit.STATE))
        return Exit.STATE
    except IpcError as error:
        journal.error("exit", str(error), code=int(Exit.SOCKET))
        return Exit.SOCKET
    try:
        process.start()
    except IpcError as error:
        await process.close()
        journal.error("exit", str(error), code=int(Exit.SOCKET))
        return Exit.SOCKET
    code = Exit.OK

    async def run() -> None:
        nonlocal code
        code = await process.run()

    ended = await companion.until_ended(run(), stop, process.close, journal, ClientError)
    return ended or code


def main(argv: list[str] | None = None) -> int:
    """Run the process; returns its exit code (see ``Exit``)."""
    arguments = parser().parse_args(argv)
    try:
        config, journal = companion.configured(arguments)
        conf = loaded(config, arguments.corosync_conf)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return Exit.CONFIG
    for line, text in conf.warnings:
        journal.warning("corosync.conf", f"{conf.path}:{line}: {text}")
    try:
        past = Past(Path(config.station.state_dir))
    except PastError as error:
        journal.error("exit", str(error), code=int(Exit.STATE))
        return Exit.STATE
    _more_descriptors()
    if not take_realtime(conf.is_realtime):
        journal.warning("realtime", "the kernel refuses real-time scheduling: programs may see a change in parts")
    node = conf.node_of(config.station.id)
    journal.info("start", f"zenjun-corosync {version()}: node {node.id} at station {node.station} of {config.cluster.name!r}")
    return uvloop.run(serve(config, conf, past, journal))


if __name__ == "__main__":
    sys.exit(main())
