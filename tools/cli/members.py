"""``zenjun members``."""

from __future__ import annotations

import json
import time

import click

from ...daemon.client.sync import SyncConnection
from ...daemon.client.types import Member
from .common import complete_groups, daemon, say, socket_option


@click.command(short_help="List the programs in a group, or the stations.", epilog="Exit codes: docs/cli.md.")
@click.argument("group", required=False, default="", shell_complete=complete_groups)
@click.option("-w", "--watch", is_flag=True, help="Go on and print changes as they come, looked up by --interval.")
@click.option("--interval", type=click.FloatRange(min=0.05), default=1.0, show_default=True, help="Seconds between looks.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list; with --watch one a change.")
@click.option(
    "-t", "--timeout", type=click.FloatRange(min=0), default=5.0, show_default=True, help="Seconds to wait for an answer."
)
@socket_option
def members(group: str, watch: bool, interval: float, as_json: bool, timeout: float, path: str | None) -> None:
    """List the members of GROUP as the local daemon knows them; without GROUP, the stations of the cluster.

    One line each: station, number of the program at its daemon, its name. Watching does not join the group.

    \b
    Examples:
      zenjun members                 which stations are there
      zenjun members chat            who is in the group chat
      zenjun members chat --watch    … and who comes and goes
      zenjun members chat --json | jq length
    """
    with daemon(path, "members", timeout) as connection:
        now = connection.members(group)
        _print_all(now, as_json, group == "")
        if not (now or as_json or watch):
            say(f"nobody is in group {group}" if group else "no stations: the cluster is not open (zenjun status says why)")
        while watch:
            before, now = now, _later(connection, group, interval)
            if now != before:
                _print_changes(before, now, as_json, group == "")


def _later(connection: SyncConnection, group: str, interval: float) -> tuple[Member, ...]:
    end = time.monotonic() + interval
    while (left := end - time.monotonic()) > 0:
        connection.serve(left)
    return connection.members(group)


def _line(m: Member, stations: bool) -> str:
    return f"{m.station}\t{m.name}" if stations else f"{m.station}\t{m.client}\t{m.name}"


def _print_all(now: tuple[Member, ...], as_json: bool, stations: bool) -> None:
    if as_json:
        click.echo(json.dumps(now, ensure_ascii=False))
        return
    for m in now:
        click.echo(_line(m, stations))


def _print_changes(before: tuple[Member, ...], now: tuple[Member, ...], as_json: bool, stations: bool) -> None:
    if as_json:
        click.echo(json.dumps(now, ensure_ascii=False))
        return
    for m in before:
        if m not in now:
            click.echo("-\t" + _line(m, stations))
    for m in now:
        if m not in before:
            click.echo("+\t" + _line(m, stations))
