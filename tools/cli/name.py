"""``zenjun name``: names that give addresses (docs/directory-service.md). This file has the commands that read and change one
name; nameops has those of operators, namehold a lease for the run time of a command."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import click

from ...daemon.names import Malformed, NameChange, calls
from ...daemon.terminal import json_text, printable
from ...proto.service.directory.entries import SELECTIONS, Entry, Place, Target, place_text
from ...proto.service.directory.operations import Operation
from . import namehold, nameops
from .common import USAGE, Failure
from .namecommon import (
    CODES,
    NameGroup,
    Update,
    directory,
    directory_option,
    entry_json,
    entry_line,
    json_option,
    said,
    since_option,
    timeout_option,
    update_options,
    version_option,
)


@click.group(
    cls=NameGroup, epilog="Exit codes: 0 done · 1 refused · 2 wrong name or address · 3 no process · 4 timeout · 5 no quorum."
)
def name() -> None:
    """Names that give addresses: kept at every station, changed in one order.

    \b
    Examples:
      zenjun name set db tcp://10.0.0.7:5432 tcp://10.0.0.8:5432@1
      zenjun name get db
      zenjun name hold web tcp://10.0.0.12:80 -- ./server
      zenjun name watch
    """


@name.command("set", epilog=CODES)
@click.argument("name")
@click.argument("addresses", nargs=-1, metavar="ADDRESS[@PRIORITY[*WEIGHT]]...")
@click.option(
    "--select", "selection", type=click.Choice(SELECTIONS), default="all", show_default=True, help="Order of addresses."
)
@click.option("--zone", default="", help="Zone of the name. [default: the present one, or default]")
@click.option("--ttl", type=click.IntRange(0, 86400), default=1, show_default=True, help="Seconds that DNS may keep it.")
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Said along with the addresses; may be repeated.")
@click.option("--new", is_flag=True, help="Only if there is no such name yet.")
@version_option
@update_options
def set_(
    name: str,
    addresses: tuple[str, ...],
    selection: str,
    zone: str,
    ttl: int,
    meta: tuple[str, ...],
    new: bool,
    version: Place | None,
    update: Update,
) -> None:
    """Make a name with these addresses, or replace the ones it has. Of several the lowest priority that is up is used.

    \b
    Examples:
      zenjun name set db tcp://10.0.0.7:5432 tcp://10.0.0.8:5432@1
      zenjun name set job station:3/editor --new
    """
    if new and version is not None:
        raise click.UsageError("--new and --if-version contradict each other")
    pairs = dict(_pair(each) for each in meta)
    operation = calls.set_of(name, addresses, selection=selection, ttl=ttl, meta=pairs, zone=zone, new=new, version=version)
    update.send(operation, f"{operation.name} is set")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.UsageError(f"--meta {text}: expected KEY=VALUE")
    return key, value


@name.command(epilog=CODES)
@click.argument("name")
@click.option("--fresh", is_flag=True, help="With all that was done before anywhere; needs quorum.")
@click.option("--key", help="For selection spread: equal keys get equal addresses.")
@json_option
@timeout_option
@directory_option
def get(name: str, fresh: bool, key: str | None, as_json: bool, timeout: float, path: str | None) -> None:
    """Print the addresses of a name, one a line, in the order in which to try them.

    \b
    Examples:
      zenjun name get db
      psql "$(zenjun name get db | head -1)"
    """
    with directory(path, timeout) as d:
        answer = d.lookup(name, key=key, fresh=fresh, timeout=timeout)
    if as_json:
        click.echo(json_text(answer.raw))
        return
    for address in answer.addresses:
        click.echo(printable(address))
    if answer.stale_ms:
        click.echo(f"zenjun name: this station's copy is not in the order, {answer.stale_ms / 1000:.1f} s now", err=True)


@name.command("list", epilog=CODES)
@click.argument("prefix", default="")
@json_option
@timeout_option
@directory_option
def list_(prefix: str, as_json: bool, timeout: float, path: str | None) -> None:
    """List all names with what they stand for, or those that begin with PREFIX (such as web.).

    \b
    Examples:
      zenjun name list
      zenjun name list plant. --json | jq length
    """
    with directory(path, timeout) as d:
        found = d.list(prefix)
        for zone in d.zones_down:
            click.echo(f"zenjun name: zone {zone} is down: its names are missing", err=True)
    if as_json:
        click.echo(json_text([entry_json(entry) for entry in found]))
    else:
        for entry in found:
            click.echo(entry_line(entry))


@name.command(epilog=CODES)
@click.argument("subject", default="", metavar="[NAME|PREFIX.]")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after this number of changes.")
@click.option("-t", "--timeout", type=click.FloatRange(min=0.1), help="Longest wait for a change, seconds. [default: forever]")
@since_option
@json_option
@directory_option
def watch(subject: str, count: int | None, timeout: float | None, since: Place | None, as_json: bool, path: str | None) -> None:
    """Print all there is, then each change in its order, until Ctrl-C.

    With --json each line has its place: go on with --since and the last one, at any station.

    \b
    Examples:
      zenjun name watch db
      zenjun name watch plant. --json
      zenjun name watch plant. --json --since 4294967300.1.0
    """
    listed = seen = 0
    with directory(path) as d:
        for change in d.watch(subject, timeout, since):
            if change.kind == "listed":
                listed = 1
            _show(change, bool(listed), as_json)
            seen += change.kind == "changed" and bool(listed)
            if count is not None and seen >= count:
                return


def _show(change: NameChange, listed: bool, as_json: bool) -> None:
    if as_json:
        row: dict[str, Any] = {"kind": change.kind, "place": place_text(change.place)}
        if change.name:
            row |= {"name": change.name, "entry": entry_json(change.entry) if change.entry else None}
        click.echo(json_text(row))
    elif change.kind == "changed":
        click.echo(entry_line(change.entry) if change.entry else f"{change.name}\tgone")
    elif change.kind == "gap":
        click.echo("zenjun name: some states are left out; the latest ones follow", err=True)


@name.command(epilog=CODES)
@click.argument("name")
@click.argument("target")
@click.option("--new", is_flag=True, help="Only if there is no such name yet.")
@click.option("--zone", default="", help="Zone of the name.")
@version_option
@update_options
def alias(
    name: str,
    target: str,
    new: bool,
    zone: str,
    version: Place | None,
    update: Update,
) -> None:
    """Make NAME another name of TARGET, which need not exist yet.

    \b
    Example:
      zenjun name alias www web
    """
    operation = calls.alias_of(name, target, zone=zone, new=new, version=version)
    update.send(operation, f"{operation.name} is another name of {operation.target}")


@name.command(epilog=CODES)
@click.argument("name")
@click.argument("addresses", nargs=-1, required=True, metavar="ADDRESS[@PRIORITY[*WEIGHT]]...")
@version_option
@update_options
def add(name: str, addresses: tuple[str, ...], version: Place | None, update: Update) -> None:
    """Add addresses to a name, or change the priority and weight of those that it has.

    \b
    Example:
      zenjun name add db tcp://10.0.0.9:5432@2
    """
    update.send(calls.add_of(name, addresses, version), f"{name}: added")


@name.command(epilog=CODES)
@click.argument("name")
@click.argument("addresses", nargs=-1, required=True, metavar="ADDRESS...")
@version_option
@update_options
def drop(name: str, addresses: tuple[str, ...], version: Place | None, update: Update) -> None:
    """Remove addresses from a name; it stays, even without any.

    \b
    Example:
      zenjun name drop db tcp://10.0.0.9:5432
    """
    update.send(calls.drop_of(name, addresses, version), f"{name}: dropped")


@name.command(epilog=CODES)
@click.argument("name")
@version_option
@update_options
def rm(name: str, version: Place | None, update: Update) -> None:
    """Remove a name with all that belongs to it.

    \b
    Example:
      zenjun name rm db
    """
    update.send(calls.remove_of(name, version), f"{name} is removed")


@name.command(epilog=CODES)
@click.argument("name")
@json_option
@timeout_option
@directory_option
def take(name: str, as_json: bool, timeout: float, path: str | None) -> None:
    """Print the next address of a name: every call at any station gets the one after the last.

    \b
    Example:
      zenjun name take printer
    """
    with directory(path, timeout) as d:
        done = d.update(calls.take_of(name), wait="memory")
    said(done, printable(done.text), as_json)


@name.command(epilog=CODES)
@click.argument("file", type=click.File("r"))
@click.option("--at-once", type=click.IntRange(1, 64), default=32, show_default=True, help="Names in one update.")
@update_options
def load(file: TextIO, at_once: int, update: Update) -> None:
    """Set the names in FILE (-: standard input): what list --json and export --format json print, or CSV lines with a
    name and its addresses.

    \b
    Examples:
      zenjun name export --format json --to names.json; zenjun name load names.json
      printf 'db,tcp://10.0.0.7:5432,tcp://10.0.0.8:5432@1\\n' | zenjun name load -
    """
    operations = list(_operations(file))
    with directory(update.path, update.timeout) as d:
        for at in range(0, len(operations), at_once):
            some = operations[at : at + at_once]
            try:
                try:
                    d.update(*some, wait=update.wait)
                except Malformed as error:
                    if error.code != "zone" or len(some) == 1:
                        raise
                    for operation in some:  # an update is about names of one zone
                        d.update(operation, wait=update.wait)
            except Malformed as error:
                raise Failure(f"{error}; {at} of {len(operations)} names are set", USAGE, "name load") from error
    click.echo(json_text({"names": len(operations)}) if update.as_json else f"{len(operations)} names are set")


def _operations(file: TextIO) -> Iterator[Operation]:
    text = file.read()
    if text.lstrip()[:1] not in ("[", "{"):
        for row in csv.reader(text.splitlines()):
            if row and not row[0].startswith("#"):
                yield calls.set_of(row[0].strip(), [each.strip() for each in row[1:]])
        return
    try:
        tree = json.loads(text)
        for entry in tree if isinstance(tree, list) else tree["names"]:
            if entry.get("zone") == "default":
                del entry["zone"]  # where the name belongs now, the directory decides
            if "alias" in entry:
                yield calls.alias_of(entry["name"], entry["alias"], zone=entry.get("zone", ""))
                continue
            whole = [Target(t["address"], t["priority"], t["weight"], t.get("while", "")) for t in entry["targets"]]
            given = [target for target in whole if "." not in target.until]  # leases end with their programs
            fields = {key: entry[key] for key in ("selection", "ttl", "meta", "zone") if key in entry}
            yield calls.set_of(entry["name"], given, **fields)
    except (ValueError, KeyError, TypeError) as error:
        text = f"{file.name}: no list of names as list --json prints ({type(error).__name__}: {error})"
        raise Failure(text, USAGE, "name load") from None


@name.command(epilog=CODES)
@click.option(
    "--format", "form", type=click.Choice(["json", "hosts"]), default="json", show_default=True, help="hosts: as /etc/hosts."
)
@click.option("--to", "file", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Replaced as a whole.")
@click.option("--follow", is_flag=True, help="Continue, and write it again after each change.")
@directory_option
def export(form: str, file: Path, follow: bool, path: str | None) -> None:
    """Write all names to a file: JSON, or a hosts file for dnsmasq's or CoreDNS's folder.

    \b
    Examples:
      zenjun name export --to names.json
      zenjun name export --format hosts --to /etc/dnsmasq-hosts.d/zenjun --follow
    """
    entries: dict[str, Entry] = {}
    listed = False
    with directory(path) as d:
        for change in d.watch():
            if change.kind == "changed":
                entries.pop(change.name, None)
                if change.entry is not None:
                    entries[change.name] = change.entry
            listed = listed or change.kind == "listed"
            if not listed:
                continue
            _replace(file, _hosts(entries) if form == "hosts" else _json(entries))
            if not follow:
                return


def _json(entries: dict[str, Entry]) -> str:
    return json.dumps([entry_json(entry) for _, entry in sorted(entries.items())], indent=1) + "\n"


def _hosts(entries: dict[str, Entry]) -> str:
    import ipaddress
    from urllib.parse import urlsplit

    lines = ["# written by zenjun name export"]
    for name, entry in sorted(entries.items()):
        for target in entry.targets:
            try:
                host = urlsplit(target.address).hostname or ""
                lines.append(f"{ipaddress.ip_address(host)}\t{name}")
            except ValueError:
                continue
    return "\n".join(lines) + "\n"


def _replace(file: Path, text: str) -> None:
    fresh = file.with_name(f".{file.name}.new")
    with fresh.open("w") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    fresh.replace(file)


@name.command(epilog=CODES)
@json_option
@timeout_option
@directory_option
def status(as_json: bool, timeout: float, path: str | None) -> int:
    """Show how the directory of this station is: active or why not, names, holders, look-ups, sums.

    \b
    Example:
      zenjun name status
    """
    with directory(path, timeout) as d:
        s = d.status()
    if as_json:
        click.echo(json_text(s))
        return 0
    state = "active" if s["active"] else f"not active: {s['step']}"
    click.echo(f"station {s['station']} of {s['cluster']}: {state}")
    if found := s["awaited"]:
        stations = ", ".join(map(str, found["missing"]))
        enough = "those of most stations are enough" if found["quorum"] else "at the first start all have to run"
        click.echo(f"waits    for zenjun-directory at stations {stations} ({enough})")
    if s["stale_ms"]:
        click.echo(f"stale    for {s['stale_ms'] / 1000:.1f} s")
    click.echo(f"names    {s['names']}, {s['leases']} with leases ({s['leases_here']} of programs here)")
    click.echo(f"holders  {', '.join(map(str, s['holders'])) or 'none'} active; at place {s['place'] or '-'}")
    for each in s.get("zones", ()):
        holders = ", ".join(map(str, each["holders"])) or "none"
        kept = f"kept here, {each['names']} names" if each["keeps"] else "not kept here"
        click.echo(f"zone     {each['zone']}: {kept}; holders {holders} active{'' if each['holders'] else ': ' + each['step']}")
    for station, text in s.get("mixed", {}).items():
        click.echo(f"mixed    station {station} has other zones: {text}")
    if found := s.get("attempts"):
        lock = f"station {found['lock']}'s" if found["lock"] else "free"
        waits = f", waits for {', '.join(map(str, found['waits_for']))}" if found["waits_for"] else ""
        click.echo(f"seven    attempt {found['attempt']}{waits}; {found['queue']} more wait; this manager's lock is {lock}")
    if s["wrong_clocks"]:
        wrong = [f"station {k} {s['clocks'][str(k)]:+d} s" for k in s["wrong_clocks"]]
        click.echo(f"clocks   beside this one's: {', '.join(wrong)}")
    click.echo(f"look-ups {', '.join(f'{count} {code}' for code, count in sorted(s['lookups'].items())) or 'none'}")
    if s["dns"]:
        dropped = sum(s["dns"]["dropped"].values())
        click.echo(f"dns      {s['dns']['listen']}: {sum(s['dns']['answers'].values())} answers, {dropped} dropped")
    click.echo(f"sums     {s['sums']}")
    return 0


for command in (*nameops.COMMANDS, namehold.hold):
    name.add_command(command)
