"""``zenjun top``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import click
from rich.console import Console
from rich.live import Live

from ...daemon.client import Connection, connect
from ...daemon.client.errors import ClientError
from .common import OK, socket_option
from .output import Output
from .topview import Latencies, Rates, picture

INTERVAL_MIN: Final = 0.1
INTERVAL_MAX: Final = 60.0
ANSWER_S: Final = 3.0
"""Time for a status; a daemon that takes longer is shown as not answering."""
PROBE_S: Final = 1.0
PROBE_TIMEOUT_S: Final = 5.0
RETRY_S: Final = 1.0
PIPE_WIDTH: Final = 120
KEYS: Final = "q quit · space freeze · + − faster, slower"


@dataclass
class Watch:
    """What is known now, and what the keys have changed."""

    interval: float
    latencies: Latencies | None
    status: Mapping[str, Any] = field(default_factory=dict)
    rates: Rates = field(default_factory=Rates)
    trouble: str = ""
    frozen: bool = False
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at each look, successful or not."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def on_key(self, key: str) -> None:
        """One key of the person at the terminal."""
        if key in ("q", "Q", "\x04"):
            self.ended.set()
        elif key == " ":
            self.frozen = not self.frozen
        elif key in ("+", "="):
            self.interval = max(INTERVAL_MIN, self.interval / 2)
        elif key in ("-", "_"):
            self.interval = min(INTERVAL_MAX, self.interval * 2)
        self.looked.set()

    def show(self, keys: bool) -> Any:
        """The picture."""
        note = self.trouble or ("frozen" if self.frozen else "")
        shown = picture(self.status, self.rates, self.latencies, note)
        if not keys:
            return shown
        from rich.console import Group
        from rich.text import Text

        return Group(Text(f"{KEYS} · every {self.interval:g} s", style="dim"), shown)


@click.command(
    short_help="Watch the cluster live: states, rates, latency, windows, drops.",
    epilog="Keys: q ends, space freezes, + and - change the interval. Exit codes: docs/cli.md.",
)
@click.option(
    "-i", "--interval", type=click.FloatRange(INTERVAL_MIN, INTERVAL_MAX), default=1.0, show_default=True,
    help="Seconds between looks.",
)  # fmt: skip
@click.option(
    "--probe/--no-probe", default=True, show_default=True,
    help="Measure latency: broadcast an empty message each second in a group of our own.",
)  # fmt: skip
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after this number of updates.")
@click.option("--once", is_flag=True, help="Print one picture, with the rates of one interval, and end.")
@socket_option
def top(interval: float, probe: bool, count: int | None, once: bool, path: str | None) -> int:
    """Show the cluster as the local daemon sees it, again and again: stations, window, latency, rates with their recent
    curve, drops, programs.

    The latency is that of a probe: an empty message a second, until every station has it. Without a terminal the pictures are
    printed one after the other.

    \b
    Examples:
      zenjun top
      zenjun top --interval 0.2 --no-probe
      zenjun top --once > now.txt
      zenjun top --socket /run/zenjun/other.sock
    """
    if once:
        count = 2  # a rate needs two looks
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_watch(path, interval, probe, count, once))
    return OK


async def _watch(path: str | None, interval: float, probe: bool, count: int | None, once: bool) -> None:
    connection = await connect(path, name="zenjun top", timeout=ANSWER_S)  # not reachable at the start: that is the command's end
    watch = Watch(interval, Latencies() if probe else None)
    tasks = [asyncio.create_task(_look(watch, path, connection))]
    if watch.latencies is not None:
        tasks.append(asyncio.create_task(_probe(path, watch.latencies)))
    screen = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not once
    console = Output(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    ended = asyncio.create_task(watch.ended.wait())
    try:
        with (
            _keys(watch) if screen else contextlib.nullcontext(),
            _screen(console) if screen else contextlib.nullcontext() as live,
        ):
            looks = 0
            while (count is None or looks < count) and not watch.ended.is_set():
                looked = asyncio.create_task(watch.looked.wait())
                await asyncio.wait([looked, ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
                looked.cancel()
                for task in tasks:
                    if task.done():
                        task.result()  # they end only by an error of ours
                if not watch.looked.is_set():
                    continue
                watch.looked.clear()
                looks += 1
                if live is not None:
                    live.update(watch.show(True), refresh=True)
                elif not once or looks == count:
                    console.print(watch.show(False))
    finally:
        ended.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _look(watch: Watch, path: str | None, connection: Connection) -> None:
    """Ask for the status every interval; a daemon that does not answer, or has ended, is reported and tried again."""
    loop = asyncio.get_running_loop()
    async for c in _connections(path, connection, watch):
        try:
            while True:
                status = await c.status()
                watch.trouble = ""
                if not watch.frozen:
                    watch.rates.feed(loop.time(), status)
                    watch.status = status
                watch.looked.set()
                await asyncio.sleep(watch.interval)
        except ClientError as error:
            watch.trouble = f"no answer: {error}"
            watch.looked.set()


async def _connections(path: str | None, first: Connection, watch: Watch) -> AsyncIterator[Connection]:
    """The first connection, then new ones; each is closed when the next one is requested."""
    connection: Connection | None = first
    while True:
        if connection is not None:
            try:
                yield connection
            finally:
                await connection.close(0.2)
        await asyncio.sleep(RETRY_S)
        try:
            connection = await connect(path, name="zenjun top", timeout=ANSWER_S)
        except ClientError as error:
            connection = None
            watch.trouble = str(error)
            watch.looked.set()


async def _probe(path: str | None, latencies: Latencies) -> None:
    """Send an empty message every second and note how long it takes until every station has it."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            async with connect(path, name="zenjun top probe", timeout=PROBE_TIMEOUT_S) as c:
                # No other program is in this group, and it ends with this one.
                group = await c.join(f"zenjun top {c.welcome.station}.{c.welcome.client}", receive=False)
                while True:
                    started = loop.time()
                    await group.send(b"", "preack")
                    latencies.add(loop.time() - started)
                    await asyncio.sleep(max(0.0, PROBE_S - (loop.time() - started)))
        except ClientError:
            latencies.missed += 1
            await asyncio.sleep(RETRY_S)


@contextlib.contextmanager
def _screen(console: Console) -> Iterator[Live]:
    """The terminal's other screen, drawn again when its size changes."""
    loop = asyncio.get_running_loop()
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        loop.add_signal_handler(signal.SIGWINCH, live.refresh)
        try:
            yield live
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)


@contextlib.contextmanager
def _keys(watch: Watch) -> Iterator[None]:
    """Single keys from the terminal, if there is one; its settings come back at the end."""
    if not sys.stdin.isatty():
        yield
        return
    fd = sys.stdin.fileno()
    loop = asyncio.get_running_loop()
    before = termios.tcgetattr(fd)

    def read() -> None:
        data = os.read(fd, 64)
        if not data:  # the terminal has gone
            loop.remove_reader(fd)
            watch.ended.set()
        for key in data.decode("utf-8", "replace"):
            watch.on_key(key)

    tty.setcbreak(fd)
    loop.add_reader(fd, read)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
