"""``zenjun leave`` and ``zenjun expel``: what an operator does to the membership."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections import deque

import click

from ...daemon.client.errors import ConnectionClosed
from ...daemon.client.sync import SyncConnection
from ...daemon.client.types import ClusterView, Event
from ...daemon.terminal import printable
from .common import FAILED, OK, STATION, TIMED_OUT, UNREACHABLE, Failure, agreed, daemon, say, socket_option
from .events import describe

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
timeout_option = click.option(
    "-t", "--timeout", type=click.FloatRange(min=0), default=10.0, show_default=True, help="Seconds until it must be done."
)


@click.command(short_help="Let this station leave the cluster; its daemon ends.", epilog="Exit codes: docs/cli.md.")
@yes_option
@timeout_option
@socket_option
def leave(yes: bool, timeout: float, path: str | None) -> int:
    """Let this station leave: its daemon announces that, the others continue without it at once, and the daemon ends.

    Messages that programs here have sent are broadcast first. They are disconnected. The station is back when its daemon is
    started again. Allowed to root and to the user the daemon runs as.

    \b
    Examples:
      zenjun leave
      zenjun leave --yes --socket /run/zenjun/other.sock
    """
    deadline = time.monotonic() + timeout
    with _admin(path, "leave", timeout) as connection:
        who = f"station {connection.welcome.station} of cluster {connection.welcome.cluster}"
        _ask(yes, f"{who} leaves and its daemon ends. Go on?")
        try:
            connection.leave_cluster()
            while (left := deadline - time.monotonic()) > 0:
                connection.serve(left)
        except ConnectionClosed:
            say(f"{who} has left")
            return OK
    raise Failure(f"{who} was asked to leave, but its daemon still runs after {timeout:g} s", TIMED_OUT, "leave")


@click.command(short_help="Remove a station from the cluster.", epilog="Exit codes: docs/cli.md.")
@click.argument("station", type=STATION)
@yes_option
@timeout_option
@socket_option
def expel(station: int, yes: bool, timeout: float, path: str | None) -> int:
    """Have the others continue without STATION now, instead of waiting until they detect its failure.

    They agree on it as on any stop: the remaining stations must have quorum. A daemon that runs there learns of it, and comes
    back with a new incarnation as soon as it can; stop it first if it is to stay away. Allowed to root and to the user the daemon
    runs as.

    \b
    Examples:
      zenjun expel 3
      zenjun expel 3 --yes --timeout 2
    """
    deadline = time.monotonic() + timeout
    events: deque[Event] = deque()
    with _admin(path, "expel", timeout, events) as connection:
        welcome = connection.welcome
        if station > welcome.stations:
            raise Failure(f"no station {station}: cluster {welcome.cluster} has 1 to {welcome.stations}", UNREACHABLE, "expel")
        if station == welcome.station:
            raise click.UsageError(f"station {station} is this one: zenjun leave lets it go")
        them = {s.station: s for s in connection.stations()}
        if station not in them or not them[station].member:
            here = welcome.station in them and them[welcome.station].member
            why = "" if here else ": this station is in no instance"
            raise Failure(f"station {station} is not a member{why}", FAILED, "expel")
        host = printable(them[station].host)
        _ask(yes, f"station {station}{f' ({host})' if host else ''} is removed from cluster {welcome.cluster}. Go on?")
        connection.expel(station)
        while (left := deadline - time.monotonic()) > 0:
            while events:
                event = events.popleft()
                if isinstance(event, ClusterView) and station in event.left:
                    say(f"station {station} is removed; {describe(event.detail)}")
                    return OK
            select.select([connection], [], [], left)
            connection.serve(0.0)
    raise Failure(
        f"the removal of station {station} is not agreed after {timeout:g} s; zenjun status shows which station waits for which",
        TIMED_OUT,
        "expel",
    )


def _admin(
    path: str | None, name: str, timeout: float, events: deque[Event] | None = None
) -> contextlib.AbstractContextManager[SyncConnection]:
    return daemon(path, name, timeout, on_event=None if events is None else events.append)


def _ask(yes: bool, question: str) -> None:
    """Ask a person; a script that calls is taken at its word."""
    if not yes and sys.stdin.isatty():
        agreed(question)
