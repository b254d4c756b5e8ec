"""``zenjun members``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from ...daemon.client.errors import ConnectionClosed, NotReachable
from ...daemon.client.sync import SyncConnection
from ...daemon.client.types import Event, Member
from ...daemon.terminal import json_text, printable
from .common import NEVER_AGAIN, complete_groups, daemon, say, socket_option, wait_for_news
from .events import describe, stations


@click.command(short_help="List the programs in a group, or the stations.", epilog="Exit codes: docs/cli.md.")
@click.argument("group", required=False, default="", shell_complete=complete_groups)
@click.option("-w", "--watch", is_flag=True, help="Go on and print changes as they come.")
@click.option("--retry", is_flag=True, help="With --watch: when the daemon ends, wait for it and continue.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    help="With --watch and GROUP: seconds between looks.",
)
@click.option("--tokens", is_flag=True, help="Of a group of order token: who decides, and whom each station follows.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list; with --watch one line a change.")
@click.option(
    "-t", "--timeout", type=click.FloatRange(min=0), default=5.0, show_default=True, help="Seconds to wait for an answer."
)
@socket_option
def members(
    group: str, watch: bool, retry: bool, interval: float, tokens: bool, as_json: bool, timeout: float, path: str | None
) -> None:
    """List the members of GROUP as the local daemon knows them; without GROUP, the stations of the cluster.

    One line each: station, number of the program at its daemon, its name; for stations: station, name of the host, and the
    peer state that this station keeps for it (as in zenjun status). Watching does not join the group. Without GROUP, --watch
    prints the cluster's events with the local time: views (joined, left), blocked, expelled, reopened.

    \b
    Examples:
      zenjun members                 the stations of the cluster
      zenjun members --watch         … and each change
      zenjun members chat            the members of the group chat
      zenjun members chat --watch    … and each join and leave
      zenjun members chat --tokens   the group is of order token: a line for each station, with the token host that it follows
      zenjun members chat --json | jq length
    """
    if retry and not watch:
        raise click.UsageError("--retry needs --watch")
    if tokens and (watch or not group):
        raise click.UsageError("--tokens needs GROUP, and goes without --watch")
    if tokens:
        _list_tokens(path, group, as_json, timeout)
        return
    wait: float | None = 0.0
    while True:
        try:
            if watch and not group:
                _watch_stations(path, timeout, wait, as_json)
            else:
                _list(path, group, watch, interval, as_json, timeout, wait)
                return
        except ConnectionClosed as error:
            # A daemon that was never there is an error of the call; --retry is for one that comes back later.
            if not retry or isinstance(error, NEVER_AGAIN) or (isinstance(error, NotReachable) and wait is not None):
                raise
            _lost(error, as_json and not group)
            wait = None


def _list(path: str | None, group: str, watch: bool, interval: float, as_json: bool, timeout: float, wait: float | None) -> None:
    with daemon(path, "members", timeout, wait=wait) as connection:
        now = connection.members(group)
        if as_json:
            click.echo(json_text(now))
        elif group:
            _print(now)
        else:
            states = {s.station: s.peer_state for s in connection.stations()}
            for m in now:
                click.echo(f"{m.station}\t{printable(m.name)}\t{states.get(m.station) or '-'}")
        if not (now or as_json or watch):
            say(f"no program is in group {group}" if group else "no stations: the cluster is not open (zenjun status shows why)")
        while watch:
            before, now = now, _later(connection, group, interval)
            if now != before:
                _print_changes(before, now, as_json)


def _list_tokens(path: str | None, group: str, as_json: bool, timeout: float) -> None:
    with daemon(path, "members", timeout, wait=0.0) as connection:
        found = connection.tokens(group)
    if as_json:
        as_told = found and {"hosts": found.hosts, "super": found.super_host, "follows": sorted(found.follows.items())}
        click.echo(json_text(as_told))
    elif found is None:
        say(f"no program is in a group {group} of order token")
    else:
        for station, host in sorted(found.follows.items()):
            is_super = station == found.super_host
            click.echo(f"{station}\t{'super token' if is_super else 'token' if station == host else f'follows {host}'}")


def _later(connection: SyncConnection, group: str, interval: float) -> tuple[Member, ...]:
    end = time.monotonic() + interval
    while (left := end - time.monotonic()) > 0:
        wait_for_news(connection.fileno(), left)
        connection.serve(0.0)
    return connection.members(group)


def _print(now: tuple[Member, ...], sign: str = "") -> None:
    for m in now:
        click.echo(f"{sign}{m.station}\t{m.client}\t{printable(m.name)}")


def _print_changes(before: tuple[Member, ...], now: tuple[Member, ...], as_json: bool) -> None:
    if as_json:
        click.echo(json_text(now))
        return
    _print(tuple(m for m in before if m not in now), "-\t")
    _print(tuple(m for m in now if m not in before), "+\t")


# ---- the stations, by the cluster's events


def _watch_stations(path: str | None, timeout: float, wait: float | None, as_json: bool) -> None:
    """Print what is there now, then every event as it comes. Ends by an exception only."""
    events: deque[Event] = deque()
    with daemon(path, "members", timeout, wait=wait, on_event=events.append) as connection:
        status = connection.status()
        instance = int(status.get("instance") or 0)
        hosts = {s.station: s.host for s in connection.stations()}
        present = [[k, life, hosts.get(k, "")] for k, life, *_ in status.get("members") or ()]
        _line({"event": "now", "instance": instance, "state": status.get("state"), "members": present}, as_json, hosts)
        # What came before the answer to STATUS is in that answer.
        early = [e for e in events if e.instance > instance or e.name not in ("open", "view", "reopened")]
        events.clear()
        events.extend(early)
        while True:
            while events:
                _line(events.popleft().detail, as_json, hosts)
            wait_for_news(connection.fileno(), 1.0)
            try:
                connection.serve(0.0)
            except ConnectionClosed:
                while events:  # the last ones, which may have the reason
                    _line(events.popleft().detail, as_json, hosts)
                raise


def _line(event: Mapping[str, Any], as_json: bool, hosts: Mapping[int, str]) -> None:
    now = datetime.now().astimezone()
    if as_json:
        click.echo(json_text({"time": now.isoformat(timespec="milliseconds"), **event}))
        return
    name = str(event.get("event"))
    if name == "now":
        who = stations(event.get("members"), hosts)
        text = f"instance {event.get('instance')}: {who}" if who else "in no instance"
        text += f" ({event.get('state')})" if event.get("state") != "open" else ""
    elif name == "lost":
        text = f"{event.get('reason')}; waiting for the daemon"
    else:
        text = describe(event, hosts)
    click.echo(f"{now:%H:%M:%S}.{now.microsecond // 1000:03}  {name:<9}  {text}")


def _lost(error: ConnectionClosed, as_json: bool) -> None:
    _line({"event": "lost", "reason": error.reason}, as_json, {})
