"""What operators do with names: switching, maintenance, schedules, zones, repair."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from ...daemon.names import Malformed, calls
from ...daemon.terminal import json_text
from ...proto.service.directory.entries import Place, read_zone
from .namecommon import (
    CODES,
    Update,
    directory,
    directory_option,
    for_option,
    json_option,
    timeout_option,
    update_options,
    version_option,
)


@click.command(epilog=CODES)
@click.argument("name")
@click.argument("addresses", nargs=-1, metavar="ADDRESS...")
@click.option("--back", is_flag=True, help="Use the name's own addresses again.")
@for_option
@version_option
@update_options
def switch(
    name: str,
    addresses: tuple[str, ...],
    back: bool,
    lasts: float | None,
    version: Place | None,
    update: Update,
) -> None:
    """Have a name stand for these addresses instead of its own, for a time or until switched back.

    \b
    Examples:
      zenjun name switch db tcp://10.0.0.8:5432 --for 2h
      zenjun name switch db --back
    """
    if back == bool(addresses) or (back and lasts is not None):
        raise click.UsageError("give either the addresses to switch to (and --for), or --back")
    operation = calls.switch_of(name, None if back else addresses, lasts)._replace(condition=version)
    what = "switched back" if back else f"switched to {', '.join(addresses)}"
    update.send(operation, f"{name} is {what}")


@click.command(epilog=CODES)
@click.argument("address")
@for_option
@update_options
def out(address: str, lasts: float | None, update: Update) -> None:
    """Take an address, or all of a station, out of use: for maintenance. For root and the daemon's user.

    \b
    Examples:
      zenjun name out station:3 --for 2h
      zenjun name out tcp://10.0.0.8:5432
    """
    update.send(calls.out_of(address, lasts), f"{address} is out of use")


@click.command("in", epilog=CODES)
@click.argument("address")
@update_options
def in_(address: str, update: Update) -> None:
    """Use an address, or a station, again.

    \b
    Example:
      zenjun name in station:3
    """
    update.send(calls.in_of(address), f"{address} is in use")


@click.command(epilog=CODES)
@click.argument("name")
@click.argument("words", nargs=-1, metavar='["WHEN" ADDRESS...]...')
@click.option("--clear", is_flag=True, help="No schedule any more.")
@version_option
@update_options
def schedule(
    name: str,
    words: tuple[str, ...],
    clear: bool,
    version: Place | None,
    update: Update,
) -> None:
    """Give a name other addresses by the time of day. WHEN is [mon-fri] HH:MM [Area/City] (UTC without a zone) or an instant
    YYYY-MM-DDTHH:MMZ; the addresses after it are used from then on, until the next WHEN.

    \b
    Examples:
      zenjun name schedule db "mon-fri 08:00 Asia/Tokyo" tcp://10.0.0.7:5432 "18:00 Asia/Tokyo" tcp://10.0.0.8:5432
      zenjun name schedule db --clear
    """
    if clear == bool(words):
        raise click.UsageError("give either times and addresses, or --clear")
    operation = calls.schedule_of(name, _slots(words))._replace(condition=version)
    update.send(operation, f"{name} has {len(operation.slots) or 'no'} slots")


def _slots(words: tuple[str, ...]) -> Sequence[tuple[str, Sequence[str]]]:
    from ...proto.service.directory.operations import is_when

    slots: list[tuple[str, list[str]]] = []
    for word in words:
        if is_when(word):
            slots.append((word, []))
        elif slots and "://" not in word and " " in word:
            raise Malformed(f'{word!r} is no time: expected "[mon-fri] HH:MM [Area/City]" or YYYY-MM-DDTHH:MMZ')
        elif slots:
            slots[-1][1].append(word)
        else:
            raise Malformed(f'{word!r} is no time: expected "[mon-fri] HH:MM [Area/City]" or YYYY-MM-DDTHH:MMZ first')
    if empty := [when for when, addresses in slots if not addresses]:
        raise Malformed(f"no address follows {empty[0]!r}")
    return slots


@click.group()
def zone() -> None:
    """Rights: which users may change which names.

    \b
    Examples:
      zenjun name zone list
      zenjun name zone set plant --admin group:ops --writer user:deploy --names "*.plant"
    """


@zone.command("set", epilog=CODES)
@click.argument("zone")
@click.option(
    "--admin", "admins", multiple=True, metavar="ROLE", help="user:NAME, group:NAME, station:K: changes all of its names."
)
@click.option("--writer", "writers", multiple=True, metavar="ROLE", help="Makes names and changes its own; *: all users.")
@click.option(
    "--names", "patterns", multiple=True, metavar="PATTERN", help="Names that this zone alone may use: *.plant, or one name."
)
@click.option(
    "--names-max", type=click.IntRange(0, 1_000_000), default=0, help="At most this number of names; 0: no bound of its own."
)
@update_options
def zone_set(
    zone: str,
    admins: tuple[str, ...],
    writers: tuple[str, ...],
    patterns: tuple[str, ...],
    names_max: int,
    update: Update,
) -> None:
    """Make a zone, or replace its row. For root and the daemon's user.

    \b
    Example:
      zenjun name zone set plant --admin group:ops --writer user:deploy --names "*.plant"
    """
    operation = calls.zone_of(zone, list(admins), list(writers), list(patterns), names_max)
    update.send(operation, f"zone {zone} is set")


@zone.command("rm", epilog=CODES)
@click.argument("zone")
@update_options
def zone_rm(zone: str, update: Update) -> None:
    """Remove a zone that has no names."""
    update.send(calls.zone_of(zone, [], [], [], 0, True), f"zone {zone} is removed")


@zone.command("list", epilog=CODES)
@json_option
@timeout_option
@directory_option
def zone_list(as_json: bool, timeout: float, path: str | None) -> None:
    """List the zones that have a row."""
    with directory(path, timeout) as d:
        rows = [str(row) for row in d.request("zones")["zones"]]
    if as_json:
        click.echo(json_text([json.loads(row) for row in rows]))
        return
    for row in rows:
        z = read_zone(row.encode())
        lists = (("admins", z.admins), ("writers", z.writers), ("names", z.patterns))
        click.echo("\t".join([z.name, *(f"{word} {', '.join(each) or '-'}" for word, each in lists)]))


@click.command(epilog=CODES)
@directory_option
def repair(path: str | None) -> None:
    """Have this station get the whole directory from the others again. For root and the daemon's user.

    \b
    Example:
      zenjun name repair
    """
    with directory(path) as d:
        d.request("repair")
    click.echo("this station gets the directory from the others")


@click.command(epilog=CODES)
@click.option("--force", is_flag=True, help="Do not wait for reports of missing stations: names that only they have are lost.")
@directory_option
def start(force: bool, path: str | None) -> None:
    """Start with what the present stations have, after all were down. For root and the daemon's user.

    Without this command the directory starts when a quorum of the stations that have it have reported what they have, or all
    stations have.

    \b
    Example:
      zenjun name start --force
    """
    if not force:
        raise click.UsageError("the directory starts by itself when it may; --force starts it without a quorum")
    with directory(path) as d:
        d.request("start")
    click.echo("this station proposes to begin with what those here have")


COMMANDS = (switch, out, in_, schedule, zone, repair, start)
