"""``zenjun lab capture``: frames of a lab in pcapng files."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import click

from ..lab import LabUnsupported, backends
from .impairments import TIME
from .labcommon import name_option, progress, stations_option


@click.command()
@name_option
@stations_option()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Folder for the files; those of the same stations are replaced.  [default: here]",
)
@click.option("--duration", "duration_ns", type=TIME, help="End after this time, as in 5s.")
@click.option("--count", type=click.IntRange(min=0), default=0, help="End at each station after this number of frames.")
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
    # Ctrl-C is taken between requests only: one cut short would leave a recording that no command ends.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        paths = attached.start_capture(out, stations, count)
        if background:
            for number, path in paths.items():
                click.echo(f"station {number}: {path}")
            return
        deadline = None if duration_ns is None else time.monotonic() + duration_ns / 1e9
        try:
            with progress("recording, end with Ctrl-C"):
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
