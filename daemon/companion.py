"""What the processes beside zenjund have in common: their command line, their configuration, and their end in order."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from . import config as configuration
from .config import Config
from .exits import Exit
from .manager import adapted, journal_handler
from .metrics import SWITCH_S
from .observe import LEVELS, Journal, Notifier, set_up
from .release import version


def parser(prog: str, description: str, own: str) -> argparse.ArgumentParser:
    """The command line. own: what exit code 5 is about."""
    p = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=f"exit codes: 0 stopped in order, 1 bug, 2 command line, 3 configuration, 5 {own}, 6 its socket, or zenjund's",
    )
    default = f"${configuration.CONFIG_ENV}, else {configuration.CONFIG_PATH}"
    p.add_argument("--config", metavar="FILE", type=Path, help=f"zenjund's configuration (default: {default})")
    p.add_argument(
        "--daemon-socket", metavar="PATH", help="zenjund's socket, where a socket unit makes it (default: as configured)"
    )
    p.add_argument("--log-level", choices=list(LEVELS), help="instead of the configuration's log.level")
    p.add_argument("--version", action="version", version=f"{prog} {version()}")
    return p


def configured(arguments: argparse.Namespace) -> tuple[Config, Journal]:
    """What the command line names. Raises ConfigError."""
    config = adapted(configuration.load(arguments.config), environ=dict(os.environ), socket_path=arguments.daemon_socket or "")
    entries = journal_handler(os.environ, {"cluster": config.cluster.name, "own_station": config.station.id})
    return config, set_up(config.log.format, arguments.log_level or config.log.level, entries=entries)


def stop_signals() -> asyncio.Event:
    """Set by SIGTERM and SIGINT. The first thing in the loop: an end that comes early is one in order, too."""
    sys.setswitchinterval(SWITCH_S)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def until_ended(
    run: Coroutine[Any, Any, None],
    stop: asyncio.Event,
    close: Callable[[], Awaitable[None]],
    journal: Journal,
    refused: type[Exception],
) -> int:
    """Tell the service manager, run until a signal or an error that waiting does not repair, close; returns the exit code.
    refused: what ``run`` raises where zenjund is not to be used."""
    notifier = Notifier(os.environ, os.getpid())
    running = asyncio.create_task(run)
    stopping = asyncio.create_task(stop.wait())
    notifier.ready("serving")
    alive = asyncio.create_task(_alive(notifier))
    await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
    notifier.stopping()
    await close()
    code = Exit.OK
    if running.done():
        error = running.exception()
        if isinstance(error, refused):
            journal.error("exit", str(error))
            code = Exit.SOCKET
        elif error is not None:
            journal.error("exit", f"{type(error).__name__}: {error}")
            raise error
    running.cancel()
    alive.cancel()
    with contextlib.suppress(asyncio.CancelledError, refused):
        await running
    notifier.close()
    return code


async def _alive(notifier: Notifier) -> None:
    """Tell the service manager's watchdog, if there is one, as long as the loop goes round."""
    while notifier.watchdog_ns:
        notifier.watchdog()
        await asyncio.sleep(notifier.watchdog_ns / 2e9)


async def until_first(parts: Iterable[Awaitable[Any]]) -> None:
    """Run these until the first of them ends, with what ended it; the others are cancelled."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
