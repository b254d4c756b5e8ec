"""``zenjun db``: the replicated databases of a cluster (docs/database.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...daemon.terminal import json_text, printable
from .common import FAILED, Failure, agreed, plural
from .dbcommon import CODES, ask, asking, connected, database_option, json_option, timeout_option, upload
from .lazy import Overview


@click.group(cls=Overview, epilog=CODES)
def db() -> None:
    """Replicated databases: SQLite files that are kept equal at all stations.

    \b
    Examples:
      zenjun db create shop
      zenjun sql shop "CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT)"
      zenjun db status
    """


@db.command(epilog=CODES)
@click.argument("name")
@click.option("--from", "source", metavar="FILE", help="Begin with what this SQLite file has, a backup for example.")
@click.option(
    "--mode",
    type=click.Choice(["replicated", "unanimous"]),
    default="replicated",
    show_default=True,
    help="unanimous: a transaction is committed when all stations have agreed, and shown when all have it on their disks.",
)
@click.option(
    "--zones", metavar="ZONE,ZONE,...", help="Only in these zones (database.zones of the configuration). [default: all]"
)
@click.option("--copies", type=click.IntRange(1, 255), help="At so many stations of each zone. [default: 1]")
@timeout_option
@database_option
def create(
    name: str, source: str | None, mode: str, zones: str | None, copies: int | None, timeout: float, path: str | None
) -> None:
    """Make a database, and return when all of its stations have it on their disks. For root and the daemon's user.

    \b
    Examples:
      zenjun db create shop
      zenjun db create rates --mode unanimous
      zenjun db create shop --from shop.sqlite -t 600
      zenjun db create shop --zones north,south --copies 2
    """
    with asking(path, timeout) as service:
        if source is not None:
            upload(service, Path(source), timeout)
        where = zones.split(",") if zones else None
        service.ask("create", timeout=timeout, db=name, mode=mode, zones=where, copies=copies)
    click.echo(f"{name} is created")


@db.command(epilog=CODES)
@click.argument("name")
@click.argument("file")
@click.option("--yes", is_flag=True, help="Do not ask.")
@timeout_option
@database_option
def restore(name: str, file: str, yes: bool, timeout: float, path: str | None) -> None:
    """Put what an SQLite file has in the place of a database, at all stations. What it has now is lost.

    For root and the daemon's user. FILE is a backup, or another SQLite file.

    \b
    Example:
      zenjun db restore shop shop-monday.db
    """
    if not Path(file).exists():
        raise Failure(f"{printable(file)}: there is no such file", FAILED, "db")
    if not yes and _is_there(name, path, timeout):
        agreed(f"Replace {name}, with all its rows at all stations, by {printable(file)}?")
    with asking(path, timeout) as service:
        upload(service, Path(file), timeout)
        service.ask("restore", timeout=timeout, db=name)
    click.echo(f"{name} is restored")


@db.command("force-open", epilog=CODES)
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@timeout_option
@database_option
def force_open(name: str, yes: bool, timeout: float, path: str | None) -> None:
    """Open a database of which too few copies are left, with the best one that is here. For root and the daemon's user.

    What was committed with the stations that are missing, and is not in that copy, is lost. Use it only if their copies will not
    come back.

    \b
    Example:
      zenjun db force-open shop
    """
    with asking(path, timeout) as service:
        found = service.ask("force-open", timeout=timeout, db=name, plan=True)
        missing = f"without stations {_stations(found['missing'])}" if found["missing"] else "with all stations here"
        text = f"version {found['version']} of station {_stations(found['from'])}, {missing}"
        click.echo(f"{name} would open with {text}: whatever was committed later is lost", err=True)
        if not yes:
            agreed("Open it?")
        service.ask("force-open", timeout=timeout, db=name)
    click.echo(f"{name} is open with {text}")


@db.command(epilog=CODES)
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@timeout_option
@database_option
def drop(name: str, yes: bool, timeout: float, path: str | None) -> None:
    """Remove a database with all its rows at all stations. For root and the daemon's user.

    \b
    Example:
      zenjun db drop shop --yes
    """
    if not yes and _is_there(name, path, timeout):
        agreed(f"Remove {name} with all its rows at all stations?")
    ask(path, "drop", timeout, db=name)
    click.echo(f"{name} is dropped")


@db.command("list", epilog=CODES)
@json_option
@timeout_option
@database_option
def list_(as_json: bool, timeout: float, path: str | None) -> None:
    """List the databases: name, version, and which stations have them.

    \b
    Example:
      zenjun db list --json | jq -r '.[].name'
    """
    found = ask(path, "list", timeout)["databases"]
    if as_json:
        click.echo(json_text(found))
        return
    for facts in found:
        version = "not here" if facts.get("elsewhere") else f"version {facts['version']}"
        click.echo(f"{facts['name']}\t{version}\tactive at {_stations(facts['active_sites'])}")


def _is_there(name: str, path: str | None, timeout: float) -> bool:
    """Whether there is anything to ask a person about; if not, the process says so."""
    return name in {d["name"] for d in ask(path, "list", timeout)["databases"]}


def _stations(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "no station"


@db.command(epilog=CODES)
@click.argument("name")
@timeout_option
@database_option
def where(name: str, timeout: float, path: str | None) -> None:
    """Print the path of a database's file at this station; any SQLite tool may open it read-only.

    \b
    Example:
      sqlite3 "file:$(zenjun db where shop)?mode=ro" .tables
    """
    click.echo(ask(path, "open", timeout, db=name, here=True)["path"])


@db.command(epilog=CODES)
@click.argument("name", required=False)
@json_option
@timeout_option
@database_option
def status(name: str | None, as_json: bool, timeout: float, path: str | None) -> None:
    """Show how a database, or all of them, stand at this station.

    \b
    Examples:
      zenjun db status
      zenjun db status shop --json | jq '.databases[0].version'
    """
    found = ask(path, "status", timeout, db=name)
    if as_json:
        click.echo(json_text(found))
        return
    order = "in the order" if found["quorum"] else "without quorum: databases can be read, not written"
    click.echo(f"station {found['station']} of {printable(found['cluster'])}: {order}, {plural(found['programs'], 'program')}")
    distance = found["distance"]
    sessions = f"{distance['sessions_elsewhere']} sessions at other stations, {distance['sessions_here']} of them here"
    if len(distance["zones"]) < distance["stations"] or distance["sessions_elsewhere"] or distance["sessions_here"]:
        click.echo(f"zone {printable(distance['zone'])}, {sessions}")
    if distance["refused"]:
        click.echo(f"refused: {printable(distance['refused'])}")
    for facts in found["databases"]:
        for line in _lines(facts):
            click.echo(line)


def _lines(facts: dict[str, Any]) -> list[str]:
    if facts.get("elsewhere"):
        at = f"{_stations(facts['active_sites'])} of {_stations(facts['sites'])}"
        return [f"{facts['name']}: not at this station; programs use it elsewhere", f"  active at {at}"]
    lags = [f"{s}: {facts['version'] - v} behind" for s, v in facts["synced"].items() if v < facts["version"]]
    return [
        f"{facts['name']}: {printable(facts['step'])}",
        f"  version {facts['version']} of epoch {facts['epoch']}, digest {facts['digest']}, on enough disks {facts['durable']}",
        f"  active at {_stations(facts['active_sites'])} of {_stations(facts['sites'])}"
        + (f"; disks: {', '.join(lags)}" if lags else ""),
        *([f"  mode {facts['mode']}, {_reads(facts)}"] if facts["mode"] != "replicated" else []),
        f"  file {facts['file_bytes']:,} bytes, log {facts['wal_bytes']:,} bytes, {facts['path']}",
        *([f"  last comparison of all rows: {printable(facts['scrub'])}"] if facts["scrub"] else []),
        *([f"  state: {facts['transfer_bytes']:,} bytes have come"] if facts["transfer_bytes"] else []),
        *([f"  gives the state to {facts['serving']} stations"] if facts["serving"] else []),
    ]


def _reads(facts: dict[str, Any]) -> str:
    if facts["open"]:
        return "serves reads"
    return "serves no reads" + (
        f": a transaction waits for stations {_stations(facts['waits_for'])}" if facts["waits_for"] else ""
    )


@db.command(epilog=CODES)
@click.argument("name")
@timeout_option
@database_option
def scrub(name: str, timeout: float, path: str | None) -> None:
    """Compare all rows with those of the other stations, and replace a copy that differs from most.

    For root and the daemon's user.

    \b
    Example:
      zenjun db scrub shop -t 600
    """
    found = ask(path, "scrub", timeout, db=name)
    if found["tied"]:
        raise Failure(f"{name}: the copies differ, and no kind is that of most stations", FAILED, "db")
    if found["damaged"]:
        stations = _stations(found["damaged"])
        raise Failure(f"{name}: the copy at station {stations} is damaged: it is kept, and another one comes", FAILED, "db")
    click.echo(f"{name}: version {found['version']} is equal at stations {_stations(found['stations'])}")


@db.command(epilog=CODES)
@click.argument("name")
@timeout_option
@database_option
def check(name: str, timeout: float, path: str | None) -> None:
    """Look for damage in the copy at this station: pages, indexes, foreign keys. It reads the whole file.

    \b
    Example:
      zenjun db check shop
    """
    with connected(name, path, timeout) as c:
        found = [str(text) for (text,) in c.execute("PRAGMA integrity_check") if text != "ok"]
        found += [f"foreign key of {row[0]}, rowid {row[1]}: no row in {row[2]}" for row in c.execute("PRAGMA foreign_key_check")]
    for line in found:
        click.echo(printable(line))
    if found:
        raise Failure(f"{name}: {len(found)} problems", FAILED, "db")
    click.echo(f"{name}: no damage")


@db.command(epilog=CODES)
@click.argument("name")
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
@timeout_option
@database_option
def backup(name: str, target: Path, timeout: float, path: str | None) -> None:
    """Copy a database as it is now to a file, which must not be there yet.

    \b
    Example:
      zenjun db backup shop shop-monday.db
    """
    if target.exists():
        raise Failure(f"{target} is there already", FAILED, "db")
    with connected(name, path, timeout) as c:
        c.backup(target)
    click.echo(f"{target}: {target.stat().st_size:,} bytes")
