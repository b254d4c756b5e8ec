"""``zenjun lab``: a test network on this machine, from the command line (docs/lab.md)."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console

from ..lab import Impairment, Lab, LabError, LabNotFound, LabTimeout, LabUnsupported, Station, backends
from ..lab import files as lab_files
from ..lab.awaiting import left_s, open_limit_s
from . import labrun
from .common import FAILED, INTERRUPTED, TIMED_OUT, UNREACHABLE, UNSUPPORTED, Failure
from .impairments import SHARE, TIME, Quantity, impairment_options
from .labuml import uml
from .lazy import Overview

_EXIT_CODES: Final[dict[type[LabError], int]] = {
    LabNotFound: UNREACHABLE,
    LabUnsupported: UNSUPPORTED,
    LabTimeout: TIMED_OUT,
}
_LAST_WORDS_S: Final = 1.0

F = TypeVar("F", bound=Callable[..., Any])


def exit_code_of(error: LabError) -> int:
    """The exit code for an error of the lab."""
    return next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), FAILED)


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


def parse_stations(text: str) -> list[int] | None:
    """``1,3-5`` → [1, 3, 4, 5]; ``all`` → None. Raises ValueError."""
    if text == "all":
        return None
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{text!r} names no stations: write 2 or 1,3 or 1-3 or all")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


STATIONS = Quantity("stations", parse_stations)


def _name_option(function: F) -> F:
    return click.option(
        "--name", default="default", show_default=True, envvar="ZENJUN_LAB", show_envvar=True, help="Which lab.", metavar="NAME"
    )(function)


def _stations_option(*, required: bool = False, text: str = "Stations: 2 or 1,3 or 1-3 or all.") -> Callable[[F], F]:
    def decorate(function: F) -> F:
        return click.option("-s", "--station", "stations", type=STATIONS, required=required, help=text)(function)

    return decorate


@contextlib.contextmanager
def _progress(text: str) -> Iterator[None]:
    """A spinner on standard error while the block runs; nothing when that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


def _show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Aligned columns of plain text; the terminal may break lines that are too long for it, nothing is left out."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(columns, *texts, strict=True)]
    for number, line in enumerate((columns, *texts)):
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        click.echo(text if number else click.style(text, bold=True))


def _chosen(lab: Lab, stations: list[int] | None) -> list[Station]:
    return [lab.station(number) for number in (lab.stations if stations is None else stations)]


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


@lab.command()
@click.option("-n", "--stations", "count", type=click.IntRange(1, 64), default=3, show_default=True, help="How many stations.")
@_name_option
@impairment_options
@click.option("--mtu", type=click.IntRange(68, 65535), default=1500, show_default=True, help="Of all links, bytes.")
@click.option("--medium", type=click.Choice(["switched", "bus"]), default="switched", show_default=True, help="See docs/lab.md.")
@click.option("--snooping", is_flag=True, help="Switch the bridge's multicast snooping on.")
@click.option("--docker", is_flag=True, help="Stations are containers of the Docker Engine (docs/docker.md).")
@click.option("--image", default="zenjun:local", show_default=True, help="What the containers run, with --docker.")
@click.option("--daemons/--no-daemons", default=True, show_default=True, help="Start zenjund in every station.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when the cluster is open.")
@click.option(
    "-o", "--option", "options", multiple=True, metavar="TABLE.NAME=VALUE", help="For zenjund's configuration; repeatable."
)
def up(
    count: int,
    name: str,
    mtu: int,
    medium: str,
    snooping: bool,
    docker: bool,
    image: str,
    daemons: bool,
    wait: bool,
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
      zenjun lab up -n 5 --docker
    """
    given = {key: value for key, value in impairments.items() if value is not None}
    try:
        settings = {"name": name, "mtu": mtu, "medium": medium, "snooping": snooping, "options": _parse_options(options), **given}
        made = _containers(count, image, settings) if docker else backends.make(count, **settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    started = time.monotonic()
    # Until it is detached the lab belongs to this process and ends with it: interrupted, killed or failed.
    made.up()
    try:
        instance = 0
        if daemons:
            with _progress(f"starting {count} daemons"):
                made.start_daemons()
                if wait:
                    instance = made.wait_open(left_s(count, started))
        made.detach()
    except BaseException as error:
        if isinstance(error, LabTimeout):  # at once: to take down 64 stations of a busy machine takes a while
            click.echo(f"zenjun lab: {error}", err=True)
        made.down(grace_s=0.0)
        if isinstance(error, LabTimeout):
            raise LabTimeout(f"lab {name} has been taken down again") from error
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


@lab.command()
@_name_option
@click.option("--all", "everything", is_flag=True, help="Every lab of this user.")
def down(name: str, everything: bool) -> None:
    """End a lab and everything in it, also one whose processes have crashed. Nothing to end is no error.

    \b
    Examples:
      zenjun lab down
      zenjun lab down --all
    """
    for each in backends.owned() if everything else [lab_files.check_name(name)]:
        with _progress(f"ending lab {each}"):
            found = backends.end(each, grace_s=2.0)
        click.echo(f"lab {each}: {'down' if found else 'is not up'}")


@lab.command("list")
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
    _show_table(("name", "state", "stations", "process", "folder"), rows)


@lab.command()
@_name_option
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
    _show_table(
        ("station", "interface", "mtu", "daemon", "cluster", "sent", "received", "lost", "cut"),
        [_status_row(entry) for entry in described["stations"]],
    )
    for text, numbers in _impaired(described["stations"]).items():
        click.echo(f"impaired: {', '.join(numbers)}: {text}")
    if described["cuts"]:
        click.echo("cut: " + ", ".join(f"{a} → {b}" for a, b in described["cuts"]))
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
    """Impairments in words, each with the stations that have it."""
    found: dict[str, list[str]] = {}
    for entry in stations:
        if "impairment" in entry and (text := Impairment.from_json(entry["impairment"]).describe()):
            found.setdefault(text, []).append(str(entry["station"]))
    return found


def _status_row(entry: dict[str, Any]) -> list[Any]:
    if "error" in entry:
        return [entry["station"], entry["error"], *["-"] * 7]
    interface, daemon, counters = entry["interface"], entry["daemon"], entry["counters"]
    state = "up" if interface["up"] else "down" if interface["present"] else "absent"
    if daemon is None:
        process = "-"
    elif daemon["returncode"] is None:
        process = str(daemon["pid"])
    else:
        process = f"ended: {daemon['returncode']}"
    return [
        entry["station"],
        f"{interface['name']} {state}",
        interface["mtu"] or "-",
        process,
        entry["open"],
        *(counters[key] for key in ("sent", "received", "lost", "cut")),
    ]


@lab.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_name_option
@_stations_option(text="Where: 2 or 1,3 or 1-3 or all (the default).")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(name: str, stations: list[int] | None, command: tuple[str, ...]) -> None:
    """Run a program in one station, or in several at once with their lines marked by station.

    The program keeps this environment, folder and terminal; ZENJUN_SOCKET tells zenjun programs their daemon,
    ZENJUN_STATION the station's number. With several stations the exit code is the highest of all.

    \b
    Examples:
      zenjun lab exec -s 2 -- zenjun recv
      zenjun lab exec -- ip -brief address
      zenjun lab exec -s 1,3 -- sh -c 'echo I am $ZENJUN_STATION'
    """
    chosen = _chosen(backends.attach(name), stations)
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
            # Ctrl-C at the terminal has reached the programs as well: let them say their last words.
            end = time.monotonic() + _LAST_WORDS_S
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))
        finally:
            for process in running:
                process.kill()
        raise
    return max(code if code >= 0 else 128 - code for code in codes)


@lab.command()
@_name_option
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


@lab.command()
@_name_option
@_stations_option()
@click.option("--wait/--no-wait", default=False, show_default=True, help="Return when the whole cluster is open.")
def start(name: str, stations: list[int] | None, wait: bool) -> None:
    """Start the daemons that do not run.

    \b
    Examples:
      zenjun lab start -s 2
      zenjun lab start --wait
    """
    attached = backends.attach(name)
    for station in _chosen(attached, stations):
        if (daemon := station.daemon) is None or daemon.poll() is not None:
            click.echo(f"station {station.id}: process {station.start_daemon().pid}")
        elif stations is not None:
            raise LabError(f"the daemon of station {station.id} is running already (process {daemon.pid})")
    if wait:
        with _progress("waiting for the cluster to open"):
            click.echo(f"instance {attached.wait_open(open_limit_s(attached.size))} is open")


@lab.command()
@_name_option
@_stations_option(required=True)
def stop(name: str, stations: list[int] | None) -> None:
    """End daemons in order (SIGTERM) and wait for them.

    \b
    Example:
      zenjun lab stop -s 3
    """
    for station in _chosen(backends.attach(name), stations):
        click.echo(f"station {station.id}: exit code {station.stop_daemon(10.0)}")


@lab.command()
@_name_option
@_stations_option(required=True)
@click.option("--wait/--no-wait", default=False, show_default=True, help="Return when the whole cluster is open.")
def restart(name: str, stations: list[int] | None, wait: bool) -> None:
    """End daemons in order and start them again; of containers, the whole container. Faults are set anew.

    \b
    Example:
      zenjun lab restart -s 3 --wait
    """
    attached = backends.attach(name)
    for station in _chosen(attached, stations):
        with contextlib.suppress(LabNotFound):
            station.stop_daemon(10.0)
        click.echo(f"station {station.id}: process {station.start_daemon().pid}")
    if wait:
        with _progress("waiting for the cluster to open"):
            click.echo(f"instance {attached.wait_open(open_limit_s(attached.size))} is open")


def _parse_signal(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    try:
        return signal.Signals(number) if number else signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"]
    except (KeyError, ValueError):
        raise ValueError(f"{text!r} is no signal") from None


@lab.command()
@_name_option
@_stations_option(required=True)
@click.option(
    "--signal", "number", type=Quantity("signal", _parse_signal), default="KILL", show_default=True, help="Name or number."
)
def kill(name: str, stations: list[int] | None, number: int) -> None:
    """Send daemons a signal.

    \b
    Examples:
      zenjun lab kill -s 2
      zenjun lab kill -s 1,3 --signal HUP
    """
    for station in _chosen(backends.attach(name), stations):
        station.signal(number)


@lab.command()
@_name_option
@_stations_option(required=True)
def pause(name: str, stations: list[int] | None) -> None:
    """Stop daemons where they are (SIGSTOP).

    \b
    Example:
      zenjun lab pause -s 2
    """
    for station in _chosen(backends.attach(name), stations):
        station.signal(signal.SIGSTOP)


@lab.command()
@_name_option
@_stations_option(required=True)
def resume(name: str, stations: list[int] | None) -> None:
    """Let paused daemons go on (SIGCONT).

    \b
    Example:
      zenjun lab resume -s 2
    """
    for station in _chosen(backends.attach(name), stations):
        station.signal(signal.SIGCONT)


@lab.command()
@_name_option
@click.argument("groups", nargs=-1, required=True, type=STATIONS)
def partition(name: str, groups: tuple[list[int] | None, ...]) -> None:
    """Let only stations of the same group hear each other. Stations not named form one more group.

    \b
    Examples:
      zenjun lab partition 1,2 3
      zenjun lab partition 1          (cuts station 1 off)
    """
    attached = backends.attach(name)
    attached.partition([list(attached.stations) if group is None else group for group in groups])


@lab.command()
@_name_option
@click.argument("sender", type=int)
@click.argument("receiver", type=int)
@click.option("--both", is_flag=True, help="Cut the other direction too.")
def cut(name: str, sender: int, receiver: int, both: bool) -> None:
    """Drop what one station sends to another, until healed.

    \b
    Examples:
      zenjun lab cut 1 2
      zenjun lab cut 1 2 --both
    """
    if sender == receiver:
        raise click.UsageError(f"station {sender} has no link to itself that could be cut: name two stations")
    attached = backends.attach(name)
    attached.cut(sender, receiver)
    if both:
        attached.cut(receiver, sender)


@lab.command()
@_name_option
def heal(name: str) -> None:
    """End all partitions and cuts (losses stay).

    \b
    Example:
      zenjun lab heal
    """
    backends.attach(name).heal()


@lab.command()
@_name_option
@_stations_option()
@click.argument("share", type=SHARE)
def loss(name: str, stations: list[int] | None, share: float) -> None:
    """Drop a share of the frames towards stations, each losing by itself.

    \b
    Examples:
      zenjun lab loss 5%
      zenjun lab loss 20% -s 3
      zenjun lab loss 0%
    """
    backends.attach(name).impair(stations, loss=share)


@lab.command()
@_name_option
@_stations_option()
@impairment_options
def impair(name: str, stations: list[int] | None, **impairments: Any) -> None:
    """Change impairments of stations; those not named stay as they are.

    \b
    Examples:
      zenjun lab impair --rate 100mbit
      zenjun lab impair -s 2 --delay 5ms --jitter 2ms --distribution normal
      zenjun lab impair --burst 5%x4
      zenjun lab impair --loss 0% --rate 0 --burst none
    """
    changes = {key: value for key, value in impairments.items() if value is not None}
    if not changes:
        raise click.UsageError("name at least one impairment, as in --rate 100mbit")
    backends.attach(name).impair(stations, **changes)


@lab.command()
@_name_option
@impairment_options
def hold(name: str, **impairments: Any) -> None:
    """Impair the containers of a lab, also those that are started again later, until Ctrl-C; then end all faults.

    Looks every half second, and waits for a lab that is not up yet: the service "faults" of docker/compose.yml.

    \b
    Example:
      zenjun lab hold --name zenjun --loss 5%
    """
    from ..lab.containers import hold as keep

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    keep(name, {key: value for key, value in impairments.items() if value is not None}, click.echo)


@lab.command()
@_name_option
@_stations_option()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Folder for the files; those of the same stations are replaced.  [default: here]",
)
@click.option("--duration", "duration_ns", type=TIME, help="End after this time, as in 5s.")
@click.option("--count", type=click.IntRange(min=0), default=0, help="End at each station after so many frames.")
@click.option("--background", is_flag=True, help="Return at once; end with --stop.")
@click.option("--stop", "stopping", is_flag=True, help="End a capture in the background.")
def capture(
    name: str, stations: list[int] | None, out: Path, duration_ns: int | None, count: int, background: bool, stopping: bool
) -> None:
    """Record every frame a station sends or receives, whole, in one pcapng file per station.

    Ends at Ctrl-C unless a duration or a count is given. Frames lost on purpose are not in the receiver's file.

    \b
    Examples:
      zenjun lab capture --out frames --duration 5s
      zenjun lab capture -s 1 --count 1000
      zenjun lab capture --background && … && zenjun lab capture --stop
    """
    attached = backends.attach(name)
    if background and not attached.captures_outlive:
        raise LabUnsupported("a capture of containers ends with this command: leave out --background")
    if stopping:
        _report_captures({}, attached.stop_capture(stations))
        return
    # Ctrl-C is taken between requests only: one cut short would leave a recording that nobody ends.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        paths = attached.start_capture(out, stations, count)
        if background:
            for number, path in paths.items():
                click.echo(f"station {number}: {path}")
            return
        deadline = None if duration_ns is None else time.monotonic() + duration_ns / 1e9
        try:
            with _progress("recording, end with Ctrl-C"):
                while (deadline is None or time.monotonic() < deadline) and attached.capturing():
                    pause = 0.05 if deadline is None else max(0.0, min(0.05, deadline - time.monotonic()))
                    if signal.sigtimedwait({signal.SIGINT}, pause) is not None:
                        break
        finally:
            _report_captures(paths, attached.stop_capture(paths))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _report_captures(paths: dict[int, Path], results: dict[int, dict[str, int]]) -> None:
    for number, result in results.items():
        missing = f", {result['dropped']} missing" if result["dropped"] else ""
        where = f", {paths[number]}" if number in paths else ""
        click.echo(f"station {number}: {result['frames']} frames, {result['bytes']} bytes{missing}{where}")


_LINK_ACTIONS: Final[dict[str, Callable[[Station], None]]] = {
    "down": Station.link_down,
    "up": Station.link_up,
    "cable-out": Station.cable_out,
    "cable-in": Station.cable_in,
    "delete": Station.delete_interface,
    "create": Station.create_interface,
}


@lab.command()
@_name_option
@_stations_option(required=True)
@click.option("--mtu", type=click.IntRange(68, 65535), help="Change the MTU, bytes.")
@click.option("--port-mtu", type=click.IntRange(68, 65535), help="Change the MTU of the hub's end, bytes.")
@click.option("--rename", metavar="NAME", help="Give the interface another name.")
@click.option("--mac", help="Change the MAC address.")
@click.argument("action", required=False, type=click.Choice(list(_LINK_ACTIONS)))
def link(name: str, stations: list[int] | None, action: str | None, **changes: Any) -> None:
    """Do things to the interface of stations.

    down, up: the interface itself; cable-out, cable-in: the other end; delete, create: as when a card is exchanged.

    \b
    Examples:
      zenjun lab link -s 2 down
      zenjun lab link -s 2 --mtu 9000
    """
    chosen = _chosen(backends.attach(name), stations)
    mtu, port_mtu, rename, mac = (changes[key] for key in ("mtu", "port_mtu", "rename", "mac"))
    if action is None and all(value is None for value in changes.values()):
        raise click.UsageError("say what to do: an action or an option")
    for station in chosen:
        if action is not None:
            _LINK_ACTIONS[action](station)
        if mtu is not None or port_mtu is not None:
            station.set_mtu(mtu or int(station.interface["mtu"]), port_mtu)
        if rename is not None:
            station.rename_interface(rename)
        if mac is not None:
            station.set_mac(mac)


@lab.command()
@_name_option
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


lab.add_command(labrun.run)


lab.add_command(uml)
