"""``zenjun lab start``, ``stop``, ``restart``, ``kill``, ``pause``, ``resume``: the daemons of a lab."""

from __future__ import annotations

import contextlib
import signal

import click

from ..lab import LabError, LabNotFound, backends
from ..lab.awaiting import open_limit_s
from .impairments import Quantity
from .labcommon import chosen_stations, name_option, progress, stations_option


@click.command()
@name_option
@stations_option()
@click.option("--wait/--no-wait", default=False, show_default=True, help="Return when the whole cluster is open.")
def start(name: str, stations: list[int] | None, wait: bool) -> None:
    """Start the daemons that do not run.

    \b
    Examples:
      zenjun lab start -s 2
      zenjun lab start --wait
    """
    attached = backends.attach(name)
    for station in chosen_stations(attached, stations):
        if (daemon := station.daemon) is None or daemon.poll() is not None:
            click.echo(f"station {station.id}: process {station.start_daemon().pid}")
        elif stations is not None:
            raise LabError(f"the daemon of station {station.id} is running already (process {daemon.pid})")
    if wait:
        with progress("waiting for the cluster to open"):
            click.echo(f"instance {attached.wait_open(open_limit_s(attached.size))} is open")


@click.command()
@name_option
@stations_option(required=True)
def stop(name: str, stations: list[int] | None) -> None:
    """End daemons in order (SIGTERM) and wait for them.

    \b
    Example:
      zenjun lab stop -s 3
    """
    for station in chosen_stations(backends.attach(name), stations):
        click.echo(f"station {station.id}: exit code {station.stop_daemon(10.0)}")


@click.command()
@name_option
@stations_option(required=True)
@click.option("--wait/--no-wait", default=False, show_default=True, help="Return when the whole cluster is open.")
def restart(name: str, stations: list[int] | None, wait: bool) -> None:
    """End daemons in order and start them again; of containers, the whole container. Faults are set again.

    \b
    Example:
      zenjun lab restart -s 3 --wait
    """
    attached = backends.attach(name)
    for station in chosen_stations(attached, stations):
        with contextlib.suppress(LabNotFound):
            station.stop_daemon(10.0)
        click.echo(f"station {station.id}: process {station.start_daemon().pid}")
    if wait:
        with progress("waiting for the cluster to open"):
            click.echo(f"instance {attached.wait_open(open_limit_s(attached.size))} is open")


def _parse_signal(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    try:
        return signal.Signals(number) if number else signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"]
    except (KeyError, ValueError):
        raise ValueError(f"{text!r} is no signal") from None


@click.command()
@name_option
@stations_option(required=True)
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
    for station in chosen_stations(backends.attach(name), stations):
        station.signal(number)


@click.command()
@name_option
@stations_option(required=True)
def pause(name: str, stations: list[int] | None) -> None:
    """Stop daemons where they are (SIGSTOP).

    \b
    Example:
      zenjun lab pause -s 2
    """
    for station in chosen_stations(backends.attach(name), stations):
        station.signal(signal.SIGSTOP)


@click.command()
@name_option
@stations_option(required=True)
def resume(name: str, stations: list[int] | None) -> None:
    """Let paused daemons continue (SIGCONT).

    \b
    Example:
      zenjun lab resume -s 2
    """
    for station in chosen_stations(backends.attach(name), stations):
        station.signal(signal.SIGCONT)
