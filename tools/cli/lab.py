"""``zenjun lab``: a test network on this machine, from the command line (docs/lab.md).

This file has the group, the commands that make and remove a lab, and programs in it; labdaemons, labfaults, labcapture, labrun
and labuml have the other commands.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click
from rich.console import Console

from ..lab import Impairment, Lab, LabError, LabNotFound, LabTimeout, LabUnsupported, Station, backends
from ..lab import files as lab_files
from ..lab.awaiting import left_s
from . import labcapture, labdaemons, labfaults, labrun
from .common import INTERRUPTED, Failure
from .impairments import impairment_options
from .labcommon import chosen_stations, exit_code_of, name_option, progress, show_table, stations_option
from .labuml import uml
from .lazy import Overview

_LAST_WORDS_S: Final = 1.0


class _LabGroup(Overview):
    """Turns the lab's errors into exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LabError as error:
            raise Failure(str(error), exit_code_of(error), "lab") from error
        except KeyboardInterrupt:
            click.echo("zenjun lab: interrupted", err=True)
            sys.exit(INTERRUPTED)


@click.group(cls=_LabGroup)
def lab() -> None:
    """Run a test network on this machine: stations as network namespaces on one bridge, a zenjund in each.

    Needs root, or a system that lets ordinary users make user namespaces; leaves nothing on the machine.

    \b
    Examples:
      zenjun lab up -n 3 --loss 5%
      zenjun lab exec -s 1 -- zenjun send hello
      zenjun lab partition 1,2 3
      zenjun lab heal
      zenjun lab capture --out /tmp/frames --duration 5s
      zenjun lab down

    \b
    Exit codes: 0 done, 1 it failed, 2 wrong usage, 3 no such lab or station, 4 not in time, 6 the machine lacks a right,
    a kernel feature or a program, 130 interrupted. exec and shell give the program's own code.
    """


@click.command()
@click.option("-n", "--stations", "count", type=click.IntRange(1, 64), default=3, show_default=True, help="How many stations.")
@name_option
@impairment_options
@click.option("--mtu", type=click.IntRange(68, 65535), default=1500, show_default=True, help="Of all links, bytes.")
@click.option("--medium", type=click.Choice(["switched", "bus"]), default="switched", show_default=True, help="See docs/lab.md.")
@click.option(
    "--links",
    type=click.IntRange(1, 4),
    default=1,
    show_default=True,
    help="Segments with an interface of every station on each.",
)
@click.option("--snooping", is_flag=True, help="Switch the bridge's multicast snooping on.")
@click.option("--docker", is_flag=True, help="Stations are containers of the Docker Engine (docs/docker.md).")
@click.option("--image", default="zenjun:local", show_default=True, help="What the containers run, with --docker.")
@click.option("--daemons/--no-daemons", default=True, show_default=True, help="Start zenjund in every station.")
@click.option("--directory", is_flag=True, help="Start zenjun-directory in every station, too (docs/directory-service.md).")
@click.option("--db", "database", is_flag=True, help="Start zenjun-db in every station, too (docs/database.md).")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when the cluster is open.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1, 3600),
    metavar="SECONDS",
    help="How long to wait for that.  [default: 30, more with more than 16 stations]",
)
@click.option(
    "-o", "--option", "options", multiple=True, metavar="TABLE.NAME=VALUE", help="For zenjund's configuration; repeatable."
)
def up(
    count: int,
    name: str,
    mtu: int,
    medium: str,
    links: int,
    snooping: bool,
    docker: bool,
    image: str,
    daemons: bool,
    directory: bool,
    database: bool,
    wait: bool,
    timeout_s: float | None,
    options: tuple[str, ...],
    **impairments: Any,
) -> None:
    """Start a lab and, in every station, a zenjund.

    \b
    Examples:
      zenjun lab up -n 5
      zenjun lab up -n 3 --loss 5% --rate 100mbit --mtu 9000
      zenjun lab up --name quiet --no-daemons
      zenjun lab up -o log.level=debug
      zenjun lab up -n 3 --links 2
      zenjun lab up -n 5 --docker
    """
    if (directory or database) and (docker or not daemons):
        raise click.UsageError(
            "--directory and --db are for a lab of namespaces with daemons: leave out --docker and --no-daemons"
        )
    given = {key: value for key, value in impairments.items() if value is not None}
    try:
        settings = {"name": name, "mtu": mtu, "medium": medium, "links": links, "snooping": snooping, **given}
        settings["options"] = _parse_options(options)
        made = _containers(count, image, settings) if docker else backends.make(count, **settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    started = time.monotonic()
    # Until it is detached the lab belongs to this process and ends with it: interrupted, killed or failed.
    made.up()
    try:
        instance = 0
        if daemons:
            with progress(f"starting {count} daemons"):
                made.start_daemons()
                for station in made.stations.values():
                    if directory:
                        station.start_directory()
                    if database:
                        station.start_database()
                if wait:
                    instance = made.wait_open(timeout_s or left_s(count, started))
        elif not docker:
            for station in made.stations.values():
                station.write_config()  # who starts daemons later does not know --option
        made.detach()
    except BaseException as error:
        if isinstance(error, LabTimeout):  # at once: to take down 64 stations of a busy machine takes a while
            click.echo(f"zenjun lab: {error}", err=True)
        made.down(grace_s=0.0)
        if isinstance(error, LabTimeout):
            raise LabTimeout(f"lab {name} has been taken down again; on a busy machine, give it more --timeout") from error
        raise
    _report_up(made, time.monotonic() - started, daemons, instance)


def _containers(count: int, image: str, settings: dict[str, Any]) -> Lab:
    if settings.pop("snooping"):
        raise click.UsageError("--snooping is for a lab of namespaces: the bridge of containers is the engine's")
    return backends.make(count, image, **settings)


def _report_up(made: Lab, took_s: float, daemons: bool, instance: int) -> None:
    opened = f", instance {instance} is open" if instance else ""
    click.echo(f"lab {made.name}: {made.size} stations up in {took_s:.1f} s{opened}")
    click.echo(f"files in {made.directory}")
    if Console().is_terminal:
        name = "" if made.name == "default" else f" --name {made.name}"
        command = "zenjun status" if daemons else "ip address"
        click.echo(f"\nnext:  zenjun lab exec{name} -s 1 -- {command}\n       zenjun lab down{name}")


def _parse_options(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    result: dict[str, dict[str, Any]] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        table, dot, key = path.strip().partition(".")
        if not (equals and dot and table and key):
            raise click.UsageError(f"{text!r}: write an option as table.name=value, as in log.level=debug")
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value  # bare words need no quotes
        result.setdefault(table, {})[key] = parsed
    return result


@click.command()
@name_option
@click.option("--all", "everything", is_flag=True, help="Every lab of this user.")
def down(name: str, everything: bool) -> None:
    """End a lab and everything in it, also one whose processes have crashed. Nothing to end is no error.

    \b
    Examples:
      zenjun lab down
      zenjun lab down --all
    """
    for each in backends.owned() if everything else [lab_files.check_name(name)]:
        with progress(f"ending lab {each}"):
            found = backends.end(each, grace_s=2.0)
        click.echo(f"lab {each}: {'down' if found else 'is not up'}")


@click.command("list")
def list_labs() -> None:
    """List the labs of this user.

    \b
    Example:
      zenjun lab list
    """
    rows = [
        (row.name, row.state, *("-" if value is None else value for value in (row.stations, row.process)), row.folder)
        for row in backends.listed()
    ]
    show_table(("name", "state", "stations", "process", "folder"), rows)


@click.command()
@name_option
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def status(name: str, as_json: bool) -> None:
    """Show the stations: interface, daemon, impairments, frames.

    \b
    Examples:
      zenjun lab status
      zenjun lab status --json | jq .cuts
    """
    attached = backends.attach(name)
    described = attached.describe()
    for entry in described["stations"]:
        entry["open"] = _daemon_state(attached.station(entry["station"]), entry.get("daemon"))
    if as_json:
        described |= {"name": attached.name, "directory": str(attached.directory)}
        click.echo(json.dumps(described, indent=2))
        return
    click.echo(f"lab {attached.name}, files in {attached.directory}")
    show_table(
        ("station", "interface", "mtu", "daemon", "cluster", "sent", "received", "lost", "cut"),
        [_status_row(entry) for entry in described["stations"]],
    )
    several = len(described["links"]) > 1
    for text, numbers in _impaired(described["stations"]).items():
        click.echo(f"impaired: {', '.join(numbers)}: {text}")
    for each in described["links"]:
        if each["cuts"]:
            where = f"cut on link {each['link']}: " if several else "cut: "
            click.echo(where + ", ".join(f"{a} → {b}" for a, b in each["cuts"]))
    if recorded := [str(e["station"]) for e in described["stations"] if e.get("capturing")]:
        click.echo(f"recording at {', '.join(recorded)}")


def _daemon_state(station: Station, daemon: dict[str, Any] | None) -> str:
    if daemon is None or daemon["returncode"] is not None:
        return "-"
    try:
        said = station.status(0.5)
    except LabError:
        return "no answer"
    instance = said.get("instance", 0)
    return f"{said.get('state', 'open' if instance else 'opening')}" + (f" ({instance})" if instance else "")


def _impaired(stations: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """Impairments in words, each with the stations that have it, and with the link where there are several."""
    found: dict[str, list[str]] = {}
    for entry in stations:
        for each in entry.get("links") or [entry]:
            if "impairment" in each and (text := Impairment.from_json(each["impairment"]).describe()):
                where = f"{entry['station']} link {each['link']}" if "link" in each else str(entry["station"])
                found.setdefault(text, []).append(where)
    return found


def _interface(described: dict[str, Any]) -> str:
    """Its name and state."""
    return f"{described['name']} {'up' if described['up'] else 'down' if described['present'] else 'absent'}"


def _status_row(entry: dict[str, Any]) -> list[Any]:
    if "error" in entry:
        return [entry["station"], entry["error"], *["-"] * 7]
    interface, daemon, counters = entry["interface"], entry["daemon"], entry["counters"]
    if daemon is None:
        process = "-"
    elif daemon["returncode"] is None:
        process = str(daemon["pid"])
    else:
        process = f"ended: {daemon['returncode']}"
    return [
        entry["station"],
        ", ".join([_interface(interface), *(_interface(each) for each in (entry.get("links") or [])[1:])]),
        interface["mtu"] or "-",
        process,
        entry["open"],
        *(counters[key] for key in ("sent", "received", "lost", "cut")),
    ]


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@name_option
@stations_option(text="Where: 2 or 1,3 or 1-3 or all (the default).")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(name: str, stations: list[int] | None, command: tuple[str, ...]) -> None:
    """Run a program in one station, or in several at once with their lines marked by station.

    The program keeps this environment, folder and terminal; ZENJUN_SOCKET is the socket of the station's daemon,
    ZENJUN_CONFIG its configuration, ZENJUN_STATION the station's number. With several stations the exit code is the highest
    of all.

    \b
    Examples:
      zenjun lab exec -s 2 -- zenjun recv
      zenjun lab exec -- ip -brief address
      zenjun lab exec -s 1,3 -- sh -c 'echo I am $ZENJUN_STATION'
    """
    chosen = chosen_stations(backends.attach(name), stations)
    if len(chosen) == 1:
        _become(chosen[0], command)
    sys.exit(_run_everywhere(chosen, command))


def _become(station: Station, command: Sequence[str]) -> None:
    argv = station.command(command)
    sys.stdout.flush()
    os.execve(argv[0], argv, station.environment())


def _run_everywhere(stations: Sequence[Station], command: Sequence[str]) -> int:
    running = [s.spawn(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for s in stations]
    printing = threading.Lock()

    def relay(station: Station, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with printing:
                click.echo(f"{station.id}| ".encode() + line.rstrip(b"\n"))

    threads = [threading.Thread(target=relay, args=pair, daemon=True) for pair in zip(stations, running, strict=True)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
        codes = [process.wait() for process in running]
    except BaseException:
        try:
            # Ctrl-C at the terminal has reached the programs as well: let them finish their output.
            end = time.monotonic() + _LAST_WORDS_S
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))
        finally:
            for process in running:
                process.kill()
        raise
    return max(code if code >= 0 else 128 - code for code in codes)


@click.command()
@name_option
@click.option("-s", "--station", "number", type=int, default=1, show_default=True, help="Which station.")
def shell(name: str, number: int) -> None:
    """Open a shell in a station.

    \b
    Example:
      zenjun lab shell -s 2
    """
    station = backends.attach(name).station(number)
    click.echo(f"station {number} of lab {name}; leave with exit", err=True)
    _become(station, [os.environ.get("SHELL") or "/bin/sh"])


@click.command()
@name_option
@click.option("-s", "--station", "number", type=int, required=True, help="Which station.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on.")
def log(name: str, number: int, follow: bool) -> None:
    """Show what a station's daemon has written.

    \b
    Examples:
      zenjun lab log -s 1
      zenjun lab log -s 1 -f
    """
    attached = backends.attach(name)
    path = attached.station(number).log_path
    attached.refresh_log(number, follow)
    if not path.exists():
        raise LabNotFound(f"station {number} has no log yet: no daemon was started")
    argv = ["tail", "-n", "+1", *(["-F"] if follow else []), str(path)]
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        raise LabUnsupported(f"{shlex.join(argv)}: {error.strerror}") from error


for command in (
    up, down, list_labs, status, exec_, shell, labdaemons.start, labdaemons.stop, labdaemons.restart, labdaemons.kill,
    labdaemons.pause, labdaemons.resume, labfaults.partition, labfaults.cut, labfaults.heal, labfaults.loss, labfaults.impair,
    labfaults.hold, labcapture.capture, labfaults.link, log, labrun.run, uml,
):  # fmt: skip
    lab.add_command(command)
