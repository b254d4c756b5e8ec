"""``zenjun cluster``: the options and the roster of a cluster, and their change while it runs."""

from __future__ import annotations

import select
import time
from typing import Any, Final

import click

from ...daemon.client.errors import Refused
from ...daemon.client.sync import SyncConnection
from ...daemon.terminal import json_text, printable
from .common import FAILED, OK, STATION, TIMED_OUT, Failure, daemon, say, socket_option
from .lazy import Overview

SETTLED_S: Final = 5.0
"""How long a change waits for the station to be in an instance: a re-opening takes a fraction of a second."""

timeout_option = click.option(
    "-t", "--timeout", type=click.FloatRange(min=0), default=20.0, show_default=True, help="Seconds until it must be done."
)


@click.group(
    cls=Overview,
    short_help="Options and roster of the cluster: show, set, add, remove.",
    epilog="Step by step: docs/changing.md.",
)
def cluster() -> None:
    """Show and change the [cluster] options and the roster while data flows.

    A change needs a quorum of the present configuration and of the new one. All members leave their instance at the same place
    of the total order and open the next one under the new configuration; programs stay connected, and nothing that they have
    sent is lost. Every station remembers it, and its file counts no more. Allowed to root and to the user the daemon runs as.
    """


@cluster.command(epilog="Exit codes: docs/cli.md.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--toml", "as_toml", is_flag=True, help="The section [cluster] that the configuration file should have.")
@timeout_option
@socket_option
def show(as_json: bool, as_toml: bool, timeout: float, path: str | None) -> int:
    """Print the configuration that this station runs under.

    \b
    Examples:
      zenjun cluster show
      zenjun cluster show --toml
    """
    if as_json and as_toml:
        raise click.UsageError("--json and --toml do not go together")
    with daemon(path, "cluster show", timeout) as connection:
        answer = connection.cluster("show")
    toml = str(answer.pop("message"))
    answer.pop("ok", None)
    if as_json:
        click.echo(json_text(answer))
    elif as_toml:
        click.echo(toml, nl=False)
    else:
        what = "as in the stations' files" if not answer["number"] else f"number {answer['number']}"
        click.echo(f"configuration: {what}{_state(answer)}")
        click.echo(toml, nl=False)
        for text in answer["file_differs"]:
            click.echo(f"# {printable(text)}")
    return OK


@cluster.command("set", epilog="Which options: docs/changing.md. Exit codes: docs/cli.md.")
@click.argument("option")
@click.argument("value")
@timeout_option
@socket_option
def set_option(option: str, value: str, timeout: float, path: str | None) -> int:
    """Give OPTION of [cluster] another VALUE at all stations. A list is written with commas, an empty one as "".

    \b
    Examples:
      zenjun cluster set heartbeat_ms 100
      zenjun cluster set required_stations 1,2
    """
    return _change(path, timeout, "set", option=option.removeprefix("cluster."), value=value)


@cluster.command(epilog="Exit codes: docs/cli.md.")
@click.argument("station", type=STATION)
@click.option("--absent", is_flag=True, help="Although the station is not heard: it counts for the quorum all the same.")
@timeout_option
@socket_option
def add(station: int, absent: bool, timeout: float, path: str | None) -> int:
    """Add STATION to the roster. Its daemon should run by then, with the same [cluster] options as the others and its own number.

    \b
    Examples:
      zenjun cluster add 4
    """
    return _change(path, timeout, "add", station=station, absent=absent)


@cluster.command(epilog="Exit codes: docs/cli.md.")
@click.argument("station", type=STATION)
@timeout_option
@socket_option
def remove(station: int, timeout: float, path: str | None) -> int:
    """Take STATION out of the roster, for good: it counts for no quorum any more. (zenjun expel removes a member that may come
    back.)

    If its daemon runs, it closes its instance and waits to be added again; it can be stopped then.

    \b
    Examples:
      zenjun cluster remove 5
    """
    return _change(path, timeout, "remove", station=station, absent=False)


# ---- helpers


def _state(answer: dict[str, Any]) -> str:
    if not answer["in_roster"]:
        return "; this station is not in its roster, and waits to be added"
    if answer["undecided"]:
        return "; the next one has been proposed, and is opened if it has a quorum of both"
    return "; the next one is under way" if answer["under_way"] else ""


def _change(path: str | None, timeout: float, step: str, **arguments: Any) -> int:
    deadline = time.monotonic() + timeout
    with daemon(path, f"cluster {step}", timeout) as connection:
        asked = _ask(connection, min(deadline, time.monotonic() + SETTLED_S), step, **arguments)
        say(str(asked["message"]))
        found = _until(connection, deadline, asked)
        say(f"configuration {found['number']} is in force")
    return OK


def _ask(connection: SyncConnection, until: float, step: str, **arguments: Any) -> dict[str, Any]:
    """Ask for the change. While the change before it goes on at this station, or it opens its next instance, wait; what remains
    then, its daemon says."""
    before = connection.status()
    while True:
        try:
            return connection.cluster(step, **arguments)
        except Refused:
            now = connection.status()
            goes_on = _goes_on(before) or _goes_on(now) or before["instance"] != now["instance"]
            if not goes_on or time.monotonic() >= until:
                raise
        before = now
        select.select([connection], [], [], 0.02)
        connection.serve(0.0)


def _goes_on(status: dict[str, Any]) -> bool:
    """Another change, or what follows one. A station that is not in the roster opens nothing, for as long as that is so."""
    found = status["configuration"]
    return (found["in_roster"] and status["state"] == "opening") or bool(found["under_way"] or found["undecided"])


def _until(connection: SyncConnection, deadline: float, asked: dict[str, Any]) -> dict[str, Any]:
    """Wait until the attempt has ended, and an instance is open under it. asked: the daemon's answer."""
    number = int(asked["number"])
    while True:
        status = connection.status()
        found = status["configuration"]
        if found["number"] >= number and (status["state"] == "open" or not found["in_roster"]):
            if found["number"] == number and found["options"] != asked["options"]:
                raise Failure(
                    f"configuration {number} is another change, which came first; this one was refused", FAILED, "cluster"
                )
            return dict(found)
        if found["attempts"] > int(asked["attempts"]) and found["carried_out"] is False:
            raise Failure(str(found["last"]), FAILED, "cluster")
        if (left := deadline - time.monotonic()) <= 0:
            raise Failure(f"configuration {number} is not in force yet: zenjun cluster show", TIMED_OUT, "cluster")
        select.select([connection], [], [], min(left, 0.02))
        connection.serve(0.0)
