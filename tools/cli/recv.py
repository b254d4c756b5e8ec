"""``zenjun recv``."""

from __future__ import annotations

import base64
import sys
import time
from typing import Any, Final, cast

import click

from ...daemon.client.errors import ClientError, ConnectionClosed, NotReachable, Timeout
from ...daemon.client.sync import SyncConnection, SyncGroup
from ...daemon.client.types import Event, Item, Level, Member, Message, Order, View
from ...daemon.terminal import json_text, printable
from .common import (
    NEVER_AGAIN,
    OK,
    TIMED_OUT,
    daemon,
    group_option,
    on_terminal,
    order_option,
    plural,
    say,
    socket_option,
    wait_for_news,
)
from .events import describe

FORMATS: Final = ("text", "hex", "json", "raw")
WAIT_S: Final = 30.0
"""For the daemon's answers and to get into the group, if --timeout gives no less."""
NEWS_S: Final = 60.0
"""Longest sleep before looking by itself."""


@click.command(short_help="Print the messages of a group, in the total order.", epilog="Exit codes: docs/cli.md.")
@group_option
@click.option(
    "-F", "--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="How to print a message."
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option(
    "-t", "--timeout", type=click.FloatRange(min=0), help="Stop after this number of seconds without a message. [default: never]"
)
@click.option(
    "-l", "--level", type=click.Choice(["ordered", "preack", "ack"]),
    help="When a message is delivered: place in the order fixed; every station has it; every station knows that.  "
    "[default: preack; on a bus ack, the only one there]",
)  # fmt: skip
@click.option(
    "--views", is_flag=True, help="Show who joins and leaves, at its place between the messages, and the cluster's events."
)
@click.option("-v", "--verbose", is_flag=True, help="Begin text and hex lines with sender and place in the order.")
@click.option("--open", "open_group", is_flag=True, help="If the group is new, make it open to programs that are not members.")
@order_option
@click.option("--retry", is_flag=True, help="When the daemon ends, wait for it, join again and continue.")
@socket_option
def recv(
    group: str,
    form: str,
    count: int | None,
    timeout: float | None,
    level: str | None,
    views: bool,
    verbose: bool,
    open_group: bool,
    order: str,
    retry: bool,
    path: str | None,
) -> int:
    """Join a group and print its messages, in the same order as every other member sees them.

    \b
    --format text   one line a message; bytes that are not UTF-8 are replaced, control characters (but tabs) and line
                    ends shown as \\x1b, \\n: human-readable; the bytes sent cannot always be reconstructed from it
             hex    one line a message, hexadecimal
             json   one object a line: type, group, station, client, clock, index, own, size, and text or base64
             raw    the bytes of the messages and nothing else
    Exit code 4 if --timeout comes before --count messages, or before any message if --count is not given. With --retry, messages
    that are sent while the daemon is away are missed; a line on standard error says so.

    \b
    Examples:
      zenjun recv                                  the group "default", until Ctrl-C
      zenjun recv -g log -v --views                with senders, places, joins and leaves
      zenjun recv -g jobs -F json -n 10 -t 60 | jq .text
      zenjun recv -g img -F raw -n 1 > photo.jpg
      zenjun recv -g log --retry >> log            through restarts of the daemon
    """
    reader = _Reader(_Show(form, verbose, views), count, timeout)
    wait: float | None = 0.0
    while True:
        try:
            patience = WAIT_S if timeout is None else min(timeout, WAIT_S)
            with daemon(path, "recv", timeout=patience, wait=wait) as connection:
                # With --retry, once it was there: the daemon comes back before its cluster is open.
                left = patience if wait == 0.0 else reader.left()
                wanted, ordering = cast("Level | None", level), cast("Order", order)
                g = connection.join(group, wanted, order=ordering, open_group=open_group, timeout=left)
                if on_terminal() and not count and sys.stdout.isatty():
                    say(f"group {group}, {plural(len(g.members), 'member')}; Ctrl-C ends")
                return reader.read(connection, g)
        except Timeout as error:
            if wait == 0.0:
                raise
            return reader.timed_out(error)
        except ConnectionClosed as error:
            if not retry or isinstance(error, NEVER_AGAIN) or (isinstance(error, NotReachable) and wait == 0.0):
                raise
            wait = reader.left()
            if isinstance(error, NotReachable) or wait == 0.0:  # waited for to the end of --timeout
                return reader.timed_out(error)
            reader.lost(error)


class _Reader:
    """What has been printed, over all connections, and until when to wait for more."""

    def __init__(self, show: _Show, count: int | None, timeout: float | None) -> None:
        """count: messages to print; timeout: seconds to wait for each; None: no limit."""
        self._show = show
        self._count = count
        self._timeout = timeout
        self._seen = 0
        self._deadline: float | None = None

    def left(self) -> float | None:
        """Seconds until the time for the next message is over, None: no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def read(self, connection: SyncConnection, g: SyncGroup) -> int:
        """Print until the count or the timeout is reached; returns the exit code. Raises what ends the connection."""
        if self._deadline is None:
            self._start_clock()
        try:
            while self._count is None or self._seen < self._count:
                items = self._next(connection, g)
                if self._count is not None:
                    items = _first(items, self._count - self._seen)
                now = self._show(items)
                self._seen += now
                if now:
                    self._start_clock()
        except Timeout as error:
            return self.timed_out(error)
        return OK

    def timed_out(self, error: ClientError) -> int:
        """The exit code when the time is over, which may be enough messages all the same."""
        wanted = self._count or 1
        if self._seen >= wanted:
            return OK
        say(f"zenjun: {error} (got {self._seen} of {wanted})" if self._count else f"zenjun: {error}")
        return TIMED_OUT

    def lost(self, error: ConnectionClosed) -> None:
        """The daemon has gone, and is waited for."""
        self._show.lost(error.reason)

    def _start_clock(self) -> None:
        self._deadline = None if self._timeout is None else time.monotonic() + self._timeout

    def _next(self, connection: SyncConnection, g: SyncGroup) -> list[Item]:
        """What has come, waiting for it. Raises Timeout, and BrokenPipeError if the reader of our output has gone."""
        while True:
            try:
                return g.recv_items(0.0)
            except Timeout as error:
                left = self.left()
                if left == 0.0:  # the error has the likely reason; the time is that of all looks together
                    raise Timeout(str(error).replace("after 0 s", f"after {self._timeout:g} s", 1)) from None
            wait_for_news(connection.fileno(), NEWS_S if left is None else min(left, NEWS_S))


def _first(items: list[Item], messages: int) -> list[Item]:
    """Everything up to the given number of messages."""
    for at, item in enumerate(items):
        if isinstance(item, Message):
            messages -= 1
            if messages == 0:
                return items[: at + 1]
    return items


class _Show:
    """Prints items; gives the number of messages among them. One write and one flush for all."""

    def __init__(self, form: str, verbose: bool, views: bool) -> None:
        self._form = form
        self._verbose = verbose
        self._views = views
        self._out = sys.stdout.buffer

    def __call__(self, items: list[Item]) -> int:
        messages = 0
        pieces: list[bytes] = []
        for item in items:
            if isinstance(item, Message):
                messages += 1
                pieces.append(item.data if self._form == "raw" else self._message(item).encode() + b"\n")
            elif self._views and self._form != "raw":
                pieces.append(self._other(item).encode() + b"\n")
            elif isinstance(item, Event):
                self._warn(item)
        if pieces:
            self._out.write(b"".join(pieces))
            self._out.flush()
        return messages

    def _message(self, m: Message) -> str:
        if self._form == "json":
            return json_text(message_json(m))
        text = m.data.hex() if self._form == "hex" else printable(m.data.decode("utf-8", "replace"), keep="\t")
        return f"{m.station}/{m.client} @{m.place[0]}.{m.place[1]}.{m.place[2]}  {text}" if self._verbose else text

    def _other(self, item: View | Event) -> str:
        if self._form == "json":
            return json_text(view_json(item) if isinstance(item, View) else {"type": "event", **item.detail})
        if isinstance(item, Event):
            return f"* {printable(describe(item.detail))}"
        changes = [f"+{_who(m)}" for m in item.joined] + [f"-{_who(m)}" for m in item.left]
        return f"* {item.reason}: {' '.join(changes) or 'no change'} · now {', '.join(map(_who, item.members)) or 'nobody'}"

    def lost(self, reason: str) -> None:
        """The daemon has ended: messages sent from now on are missed."""
        say(f"zenjun: {reason}; waiting for the daemon")
        if self._views and self._form == "json":
            self._out.write(json_text({"type": "event", "event": "lost", "reason": reason}).encode() + b"\n")
            self._out.flush()

    def _warn(self, event: Event) -> None:
        say(f"zenjun: {printable(describe(event.detail))}")


def message_json(m: Message) -> dict[str, Any]:
    """A message as one JSON object."""
    clock, station, index = m.place
    out: dict[str, Any] = {
        "type": "message", "group": m.group, "station": station, "client": m.client, "clock": clock, "index": index, "own": m.own,
        "size": len(m.data),
    }  # fmt: skip
    try:
        out["text"] = m.data.decode()
    except UnicodeDecodeError:
        out["base64"] = base64.b64encode(m.data).decode()
    return out


def view_json(v: View) -> dict[str, Any]:
    """A view as one JSON object."""
    clock, station, index = v.place
    return {
        "type": "view", "group": v.group, "reason": v.reason, "clock": clock, "station": station, "index": index,
        "instance": v.instance, "members": v.members, "joined": v.joined, "left": v.left,
    }  # fmt: skip


def _who(m: Member) -> str:
    return f"{m.station}/{m.client}" + (f" {printable(m.name)}" if m.name else "")
