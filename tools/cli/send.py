"""``zenjun send``."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import click

from ...daemon.client.sync import SyncConnection, SyncGroup, SyncPipeline
from ...daemon.client.types import Order, SendLevel
from .common import Failure, daemon, groups_option, on_terminal, order_option, plural, say, size_option, socket_option

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

READ_BYTES: Final = 64 * 1024
RATE_SLICE_S: Final = 0.001
"""Shorter pauses cost more than they space out; above 1/slice messages a second several go out together."""
RATE_BATCH_MAX: Final = 1024


@click.command(
    short_help="Broadcast messages to a group.",
    epilog="Returns when the last message has reached the level. Exit codes: docs/cli.md.",
)
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@groups_option
@click.option(
    "-l", "--level", type=click.Choice(["sent", "ordered", "preack", "ack"]), default="preack", show_default=True,
    help="When a message counts as done: handed over; place in the order fixed; every station has it; every station knows that.",
)  # fmt: skip
@click.option(
    "-n", "--count", type=click.IntRange(min=1), help="Stop after this many messages; arguments and files are gone through again."
)
@click.option("--repeat", type=click.IntRange(min=0), help="Go through arguments or files this many times; 0: forever.")
@click.option(
    "-r", "--rate", type=click.FloatRange(min=0, min_open=True), metavar="PER_SECOND", help="Messages per second at most."
)
@click.option(
    "-f", "--file", "files", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Send a file as one message (or in pieces, with --chunk). May be given several times.",
)  # fmt: skip
@click.option("-b", "--binary", is_flag=True, help="Take standard input as one message instead of one per line.")
@click.option(
    "--chunk", callback=size_option, metavar="BYTES", help="With --file or --binary: cut into messages of this size, like 64k."
)
@click.option("--send-only", is_flag=True, help="Do not join the group; works for groups that are open.")
@click.option("--open", "open_group", is_flag=True, help="If the group is new, make it open to programs that are not members.")
@order_option
@click.option("-t", "--timeout", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds without progress.")
@socket_option
def send(
    messages: tuple[str, ...],
    groups: tuple[str, ...],
    level: str,
    count: int | None,
    repeat: int | None,
    rate: float | None,
    files: tuple[Path, ...],
    binary: bool,
    chunk: int | None,
    send_only: bool,
    open_group: bool,
    order: str,
    timeout: float,
    path: str | None,
) -> None:
    """Broadcast messages to a group: each MESSAGE, each --file, or else (or for a single -) each line of standard input.

    \b
    Examples:
      zenjun send hello                            one message to the group "default"
      zenjun send -g log -l ack "disk full"        return when every station knows that every station has it
      tail -f app.log | zenjun send -g log         every line
      zenjun send -g img -f photo.jpg              a file as one message
      tar c dir | zenjun send -g tar -b --chunk 64k
      zenjun send tick --rate 10 --repeat 0        ten a second until Ctrl-C
      zenjun send -g a -g b --order token hello    one message to two groups
    """
    if messages == ("-",):
        messages = ()
    _check_usage(bool(messages), bool(files), binary, bool(chunk))
    stored = bool(messages or files)
    if repeat is not None and not stored:
        raise click.UsageError("--repeat goes with MESSAGE arguments or --file; standard input comes only once")
    passes = repeat if repeat is not None else (0 if count is not None else 1)
    with daemon(path, "send", timeout) as connection:
        # A member that receives nothing: the daemon need not queue for it, and closed groups take its messages.
        join = partial(connection.join, order=cast(Order, order), open_group=open_group, send_only=send_only)
        joined = [join(group, no_self=True, receive=False) for group in dict.fromkeys(groups)]
        limit = connection.welcome.message_max
        if messages:
            source = _again([[os.fsencode(m)] for m in messages], passes)
        elif files:
            source = _again(lambda: (piece for f in files for piece in _file(f, chunk, limit)), passes)
        elif binary:
            source = _stdin_binary(connection, chunk, limit)
        else:
            source = _stdin_lines(connection)
        total = count if count is not None else len(messages) * passes if messages and passes else None
        sent = size = 0
        begin = time.monotonic()
        with _progress(total, level) as progress, _sink(connection, joined, cast(SendLevel, level)) as pipeline:
            for batch in _paced(source, rate, connection, stored):
                if count is not None:
                    batch = batch[: count - sent]
                for data in batch:
                    pipeline.put(data)
                    size += len(data)
                pipeline.flush()
                sent += len(batch)
                progress(pipeline, sent)
                if count is not None and sent >= count:
                    break
            pipeline.wait()
            progress(pipeline, sent)
        seconds = time.monotonic() - begin
    if on_terminal():
        say(f"{plural(sent, 'message')}, {plural(size, 'byte')}, level {level}, {seconds:.3f} s")


def _check_usage(messages: bool, files: bool, binary: bool, chunk: bool) -> None:
    """Which options go together."""
    if files and (messages or binary):
        raise click.UsageError("give either MESSAGE arguments, or --file, or --binary")
    if messages and binary:
        raise click.UsageError("--binary takes standard input; give no MESSAGE with it")
    if chunk and not (files or binary):
        raise click.UsageError("--chunk goes with --file or --binary")


class _Several:
    """Sends each message to several groups, one after the other; used like a pipeline."""

    def __init__(self, connection: SyncConnection, groups: list[SyncGroup], level: SendLevel) -> None:
        self._connection = connection
        self._groups = groups
        self._level = level
        self.completed = 0

    def __enter__(self) -> _Several:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def put(self, data: bytes) -> None:
        self._connection.send(data, self._groups, self._level)
        self.completed += 1

    def flush(self) -> None:
        pass

    def wait(self) -> None:
        pass


def _sink(connection: SyncConnection, groups: list[SyncGroup], level: SendLevel) -> SyncPipeline | _Several:
    """Where messages go."""
    return groups[0].pipeline(level) if len(groups) == 1 else _Several(connection, groups, level)


def _again(batches: object, passes: int) -> Iterator[list[bytes]]:
    """Go through stored input ``passes`` times, 0: forever."""
    done = 0
    while passes == 0 or done < passes:
        empty = True
        for batch in cast("Iterator[list[bytes]]", batches() if callable(batches) else batches):
            empty = False
            yield batch
        if empty:
            return
        done += 1


def _file(file: Path, chunk: int | None, limit: int) -> Iterator[list[bytes]]:
    with file.open("rb") as f:
        if not chunk:
            data = f.read(limit + 1)  # a pipe has no size to look at first
            if len(data) > limit:
                raise Failure(
                    f"{file} is larger than the limit of {limit} bytes (message_max): cut it up with --chunk", command="send"
                )
            yield [data]
            return
        while data := f.read(chunk):
            yield [data]


def _stdin_binary(connection: SyncConnection, chunk: int | None, limit: int) -> Iterator[list[bytes]]:
    wanted = chunk or limit + 1
    held = bytearray()
    while data := _read_stdin(connection):
        held += data
        while chunk and len(held) >= chunk:
            yield [bytes(held[:chunk])]
            del held[:chunk]
        if len(held) >= wanted:
            break
    if held or not chunk:
        yield [bytes(held)]


def _stdin_lines(connection: SyncConnection) -> Iterator[list[bytes]]:
    """Lines without their ends, as soon as they are there."""
    rest: list[bytes] = []
    while data := _read_stdin(connection):
        head, newline, tail = data.rpartition(b"\n")
        if not newline:
            rest.append(data)
            continue
        lines = (b"".join(rest) + head).split(b"\n")
        rest = [tail] if tail else []
        yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [b"".join(rest)]


def _read_stdin(connection: SyncConnection) -> bytes:
    """What standard input has; while it has nothing, the connection is served. Empty: the end."""
    stdin = sys.stdin.fileno()
    while True:
        ready, _, _ = select.select([stdin, connection], [], [])
        if stdin in ready:
            return os.read(stdin, READ_BYTES)
        connection.serve()


def _paced(source: Iterator[list[bytes]], rate: float | None, connection: SyncConnection, stored: bool) -> Iterator[list[bytes]]:
    """Cut and space batches so that no more than ``rate`` messages a second come through, counted from the first."""
    if rate is None:
        # Typed or piped input is sent as it arrives.
        yield from _gathered(source) if stored else source
        return
    begin = time.monotonic()
    passed = 0
    for batch in source:
        while batch:
            due = int((time.monotonic() - begin) * rate) + 1 - passed
            if due <= 0:
                wait = begin + passed / rate - time.monotonic()
                connection.serve(max(wait, RATE_SLICE_S if rate > 1 / RATE_SLICE_S else 0.0))
                continue
            now, batch = batch[: min(due, RATE_BATCH_MAX)], batch[min(due, RATE_BATCH_MAX) :]
            passed += len(now)
            yield now


def _gathered(source: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """Join tiny batches of stored input, so that a million copies of one argument are not a million writes."""
    held: list[bytes] = []
    size = 0
    begin = time.monotonic()
    for batch in source:
        held += batch
        size += sum(map(len, batch))
        if len(held) >= RATE_BATCH_MAX or size >= READ_BYTES or time.monotonic() - begin > RATE_SLICE_S:
            yield held
            held, size, begin = [], 0, time.monotonic()
    if held:
        yield held


class _progress:
    """A progress bar on a terminal if the work takes longer than a moment; otherwise nothing."""

    MOMENT_S: Final = 0.5

    def __init__(self, total: int | None, level: str) -> None:
        self._total = total
        self._level = level
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._begin = time.monotonic()
        self._shown = 0.0
        self._on = on_terminal()

    def __enter__(self) -> _progress:
        return self

    def __call__(self, pipeline: SyncPipeline | _Several, sent: int) -> None:
        now = time.monotonic()
        if not self._on or now - self._begin < self.MOMENT_S or now - self._shown < 0.1:
            return
        self._shown = now
        if self._progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn(f"at level {self._level}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task("send", total=self._total)
            self._progress.start()
        if self._task is not None:
            self._progress.update(self._task, completed=pipeline.completed)

    def __exit__(self, *exc: object) -> None:
        if self._progress is not None:
            self._progress.stop()
