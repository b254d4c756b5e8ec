"""``zenjun lab run``: a scenario of faults and load, and the verdict on it (docs/scenarios.md)."""

from __future__ import annotations

import shutil
import signal
import tempfile
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from .common import FAILED, OK, UNSUPPORTED, USAGE, Failure
from .impairments import Quantity

if TYPE_CHECKING:
    from ..lab import Lab
    from ..scenario import Outcome, Scenario

LEFT_BY_A_RUN: Final = "runner.jsonl"


def _size(text: str) -> int:
    from ..scenario.reader import state_size

    return state_size(text)


def _complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from ..scenario import ready

    return [name for name in ready() if name.startswith(incomplete)]


@click.command("run", epilog="Exit codes: 0 everything held, 1 something did not, others as docs/cli.md.")
@click.argument("what", metavar="NAME|FILE", required=False, shell_complete=_complete)
@click.option("--list", "listing", is_flag=True, help="List the ready-made scenarios.")
@click.option("--docker", is_flag=True, help="Stations are containers of the Docker Engine (docs/docker.md).")
@click.option("--image", default="zenjun:local", show_default=True, help="What the containers run, with --docker.")
@click.option("-n", "--stations", "count", type=click.IntRange(1, 64), help="Another number of stations than in the file.")
@click.option("--seed", type=click.IntRange(min=0), help="Another seed than in the file.")
@click.option("--state-size", type=Quantity("size", _size), metavar="SIZE", help="Of [state]: another size, as 64M or 1G.")
@click.option("--keep", is_flag=True, help="Leave the lab up at the end.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for histories, logs and the report.")
@click.option("--name", metavar="NAME", help="Play it in the lab or compose project of this name, which is up and stays.")
def run(
    what: str | None,
    listing: bool,
    docker: bool,
    image: str,
    count: int | None,
    seed: int | None,
    state_size: int | None,
    keep: bool,
    out: Path | None,
    name: str | None,
) -> int:
    """Play a scenario: a lab with daemons and programs, faults and load on a time line, and a verdict by the checkers.

    NAME is one of the ready-made scenarios, FILE a file of your own (docs/scenarios.md). Without --out, histories and logs
    are kept only when something did not hold.

    \b
    Examples:
      zenjun lab run --list
      zenjun lab run partition-heal
      zenjun lab run random-mix --seed 7 -n 7
      zenjun lab run kill-restart --docker
      zenjun lab run mine.toml --out /tmp/mine
      zenjun lab run one-way-cut --name zenjun
    """
    if listing:
        _list()
        return OK
    if what is None:
        raise click.UsageError("no scenario: give a name (--list shows them) or a file")
    if name is not None and (docker or keep):
        raise click.UsageError("--name plays in a lab that is up already, and stays: leave out --docker and --keep")
    if out is not None and (out / LEFT_BY_A_RUN).exists():
        raise click.UsageError(f"--out: {out} has the files of another run; give an empty folder")
    from ..lab import LabUnsupported, backends

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    attached = None if name is None else backends.attach(name)
    scenario = _read(what, attached.size if attached is not None and count is None else count)
    if state_size is not None:
        if scenario.joining is None:
            raise click.UsageError(f"--state-size: scenario {scenario.name} has no [state]")
        scenario = replace(scenario, joining=replace(scenario.joining, size=state_size))
    made = _lent(attached, scenario) if attached is not None else _own(scenario, docker, image, keep)
    seed = scenario.seed if seed is None else seed
    click.echo(f"{click.style(scenario.name, bold=True)}: {scenario.about}")
    click.echo(f"{scenario.stations} stations, {_where(docker, name)}, seed {seed}, {scenario.end_ms / 1000:g} s")
    folder = out or Path(tempfile.mkdtemp(prefix="zenjun-run-"))
    try:
        outcome = _play(scenario, made, folder, seed)
    except (KeyboardInterrupt, BrokenPipeError, LabUnsupported):
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    except Exception:
        click.echo(f"histories and logs: {folder}", err=True)
        raise
    kept = out is not None or not outcome.held
    if not kept:
        shutil.rmtree(folder, ignore_errors=True)
    _show(scenario, outcome)
    if kept:
        click.echo(f"histories and logs: {folder}")
    if keep:
        click.echo(
            f"the lab is up: zenjun lab status --name {_kept_name(scenario)}; zenjun lab down --name {_kept_name(scenario)}"
        )
    return OK if outcome.held else FAILED


def _where(docker: bool, name: str | None) -> str:
    return f"lab {name}" if name is not None else "containers" if docker else "namespaces"


def _read(what: str, stations: int | None) -> Scenario:
    from ..scenario import ScenarioError, resolve
    from ..scenario.reader import load

    try:
        return load(resolve(what), stations)
    except ScenarioError as error:
        raise Failure(str(error), USAGE, "lab run") from error
    except OSError as error:
        raise Failure(f"{what}: {error.strerror or error}", USAGE, "lab run") from error


def _kept_name(scenario: Scenario) -> str:
    return f"run-{scenario.name}"[:32].rstrip("-_.")


def _own(scenario: Scenario, docker: bool, image: str, keep: bool) -> AbstractContextManager[Lab]:
    from ..lab import backends
    from ..scenario.play import own

    settings: dict[str, Any] = {
        "name": _kept_name(scenario) if keep else None,
        "mtu": scenario.mtu,
        "medium": scenario.medium,
        "links": scenario.links,
        "options": scenario.options,
    }
    if docker and scenario.links > 1:
        raise Failure(f"scenario {scenario.name} has {scenario.links} links, a lab of containers has one", UNSUPPORTED, "lab run")
    return own(backends.make(scenario.stations, image if docker else None, **settings), keep=keep)


def _lent(lab: Lab, scenario: Scenario) -> AbstractContextManager[Lab]:
    from ..scenario.play import lent

    if ignored := [word for word, given in (("[options]", scenario.options), ("network.mtu", scenario.mtu != 1500)) if given]:
        click.echo(f"zenjun lab run: {' and '.join(ignored)} of the scenario do not count in a lab that is up", err=True)
    if scenario.medium != lab.daemon_medium and scenario.medium == "bus":
        raise Failure(f"scenario {scenario.name} is for a bus; lab {lab.name} is none", FAILED, "lab run")
    return lent(lab)


def _play(scenario: Scenario, lab: AbstractContextManager[Lab], folder: Path, seed: int) -> Outcome:
    from ..scenario import play

    def say(at: float | None, text: str) -> None:
        when = " " * 10 if at is None else f"{at:8.1f} s"
        click.echo(f"{click.style(when, dim=True)}  {text}")

    return play(scenario, lab, folder, seed=seed, say=say)


def _show(scenario: Scenario, outcome: Outcome) -> None:
    figures = outcome.judgement.report.figures
    click.echo(
        f"\n{figures['sent']} messages sent, {figures['delivered_safe']} deliveries at preack and ack, "
        f"{figures['instances']} instances, longest silence {figures['longest_silence_ms']} ms\n"
    )
    verdicts = outcome.judgement.verdicts
    width = max(len(verdict.name) for verdict in verdicts)
    for verdict in verdicts:
        word = click.style("holds   ", fg="green") if verdict.held else click.style("VIOLATED", fg="red", bold=True)
        click.echo(f"{word}  {verdict.name.ljust(width)}  {verdict.text}")
        for line in verdict.violations:
            click.echo(f"          {line}")
    failed = [verdict.name for verdict in verdicts if not verdict.held]
    if failed:
        click.echo(click.style(f"\n{scenario.name}: VIOLATED: {', '.join(failed)}", fg="red", bold=True))
    else:
        click.echo(click.style(f"\n{scenario.name}: all {len(verdicts)} hold", fg="green", bold=True))


def _list() -> None:
    from ..scenario import ready
    from ..scenario.reader import load

    rows = []
    for name, path in ready().items():
        scenario = load(path)
        needs = f"  (needs {', '.join(scenario.needs)})" if scenario.needs else ""
        rows.append((name, f"{scenario.about}{needs}"))
    width = max((len(name) for name, _ in rows), default=0)
    for name, about in rows:
        click.echo(f"{name.ljust(width)}  {about}")
