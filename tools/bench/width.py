"""What a message costs against the number of stations, for docs/performance.md.

    python -m zenjun.tools.bench.width [-n 2,3,…] [--repeat 3] [--seconds 2] [--out FILE] [--write]
    python -m zenjun.tools.bench.width --from FILE… --write

For each number of stations a lab, in which the settings of ``cluster.confirm`` take turns: 1,000 messages of 64 bytes a second
of all stations together (mode ``rate`` of ``zenjun bench``), one at a time (``closed``), and nothing (``idle``). One JSON line a
cell, with the members of docs/performance.md and ``confirm``. ``--write`` puts table and plot of the medians there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import sys
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from ..lab import Lab, LabError
from ..pcap.report import plots
from ..pcap.report.plots import Shape, axes_of, legend, lines
from .cell import BenchError, Cell, Json, run_window, summary
from .plan import DRAIN_S, WARM_S, machine
from .systems import Zenjun
from .table import figure, markdown, number

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
NAME: Final = "zenjun.tools.bench.width"
BEGIN: Final = f"<!-- table: {NAME} -->"
END: Final = f"<!-- end: {NAME} -->"
STATIONS: Final = (2, 3, 4, 5, 6, 8, 10, 12, 14, 16)
SETTINGS: Final = ("merged", "sender")
"""Of ``cluster.confirm``, the default first."""
MODES: Final = ("rate", "closed", "idle")
SIZE: Final = 64
TRIES: Final = 3
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as of ``zenjun bench``."""


def measure(stations: int, settings: Sequence[str], repeat: int, seconds: float) -> Generator[Json, None, None]:
    """The lines of one lab. What fails is run again, ``TRIES`` times at most. Raises LabError, BenchError."""
    with Lab(stations) as lab:
        systems = [Zenjun(lab, name=name, options={"cluster": {"confirm": name}}) for name in settings]
        for turn in range(repeat):
            at = turn % len(systems)
            for system in (*systems[at:], *systems[:at]):
                for mode in MODES:
                    cell = Cell(stations, stations, SIZE, "preack", mode, 0.0, 1500, seconds, WARM_S, DRAIN_S)
                    yield {
                        "confirm": system.name,
                        "stations": stations,
                        "mode": mode,
                        "machine": machine(),
                        **_cell(system, cell),
                    }
                system.stop()


def _cell(system: Zenjun, cell: Cell) -> Json:
    for left in reversed(range(TRIES)):
        try:
            if not any(s.daemon is not None and s.daemon.poll() is None for s in system.lab.stations.values()):
                system.start()
            row = summary(cell, run_window(system, cell))
            if row["ok"] or not left:
                return row
        except BenchError:
            if not left:
                raise
        system.stop()
    raise AssertionError("unreachable")


def medians(rows: Iterable[Json], confirm: str, mode: str, path: str) -> dict[int, float]:
    """By the number of stations."""
    found: dict[int, list[float]] = {}
    for row in rows:
        value = figure(row, path)
        if row["confirm"] == confirm and row["mode"] == mode and row["ok"] and value is not None:
            found.setdefault(row["stations"], []).append(value)
    return {n: statistics.median(values) for n, values in sorted(found.items())}


FIGURES: Final = (
    ("% of a core at 1,000 msg/s", "rate", "cpu.daemons_cores", 100.0),
    ("frames per message", "rate", "frames.per_message", 1.0),
    ("one at a time, p50 µs", "closed", "round_trip_p50_us", 1.0),
)


def table(rows: Sequence[Json]) -> str:
    """Markdown. What each station but the sender costs is the first figure divided by n - 1: it does not grow where that is
    linear."""
    settings = [s for s in SETTINGS if any(r["confirm"] == s for r in rows)]
    heads = ["stations"]
    columns: list[dict[int, float]] = []
    for what, mode, path, scale in FIGURES:
        for setting in settings:
            heads.append(f"{what}: {setting}")
            columns.append({n: v * scale for n, v in medians(rows, setting, mode, path).items()})
    heads.append(f"the first, divided by n − 1: {settings[0]}")
    columns.append({n: v / (n - 1) for n, v in columns[0].items()})
    heads.append("idle, % of a core")
    columns.append({n: 100 * v for n, v in medians(rows, settings[0], "idle", "cpu.daemons_cores").items()})
    widths = sorted({n for column in columns for n in column})
    return markdown(heads, [[str(n), *(number(column.get(n)) for column in columns)] for n in widths])


def drawing(rows: Sequence[Json]) -> plots.Drawing:
    """Processor time at 1,000 messages a second, and the time of one at a time."""

    def draw(picture: Any, shape: Shape) -> None:
        for axes, (what, mode, path, scale) in zip(axes_of(picture, 2, shape), (FIGURES[0], FIGURES[2]), strict=True):
            series = {}
            for setting in SETTINGS:
                found = medians(rows, setting, mode, path)
                if found:
                    series[f"confirm = {setting}"] = (list(found), [v * scale for v in found.values()])
            lines(axes, series, markers=True)
            axes.set_ylim(bottom=0)
            axes.set_xticks(sorted({r["stations"] for r in rows}))
            axes.set_xlabel("stations n")
            axes.set_ylabel(f"daemons' CPU, {what}" if mode == "rate" else what)
            legend(axes, shape, 2)

    return draw


def write(rows: Sequence[Json], page: Path) -> None:
    """Table and plot into the page and its folder."""
    folder = page.with_suffix("")
    folder.mkdir(exist_ok=True)
    about = "Processor time of all daemons at 1,000 messages a second, and the time of one at a time, by the number of stations"
    picture = plots.standalone(drawing(rows), "width-lab", "Cost against the number of stations", about, 3.4)
    (folder / "width-lab.svg").write_text(picture)
    head, _, rest = page.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n\n![{about}](performance/width-lab.svg)\n\n{table(rows)}\n{END}{tail}")


def _rows(files: Iterable[Path]) -> list[Json]:
    return [json.loads(line) for file in files for line in file.read_text().splitlines() if line]


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers") from None
    if not all(2 <= n <= 16 for n in numbers):
        raise argparse.ArgumentTypeError("each must be between 2 and 16")
    return numbers


def _settings(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if unknown := [name for name in found if name not in SETTINGS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(SETTINGS)}")
    return found


def _stop(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _run(options: argparse.Namespace, rows: list[Json]) -> int:
    """Measure what was asked for; exit code. ``rows`` gets each line as it is made: what has been measured counts, whatever ends
    it. SIGTERM ends it as Ctrl-C does: with everything it has started."""
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(options.out.open("a")) if options.out else sys.stdout
            for stations in options.stations:
                found = stack.enter_context(
                    contextlib.closing(measure(stations, options.confirm, options.repeat, options.seconds))
                )
                for row in found:
                    rows.append(row)
                    stream.write(json.dumps(row) + "\n")
                    stream.flush()
    except (BenchError, LabError) as error:
        sys.stderr.write(f"{NAME}: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"{NAME}: interrupted\n")
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0 if all(r["ok"] for r in rows) else 1


def main(argv: list[str]) -> int:
    """Command line: see the module's text. 1: a cell of ours failed; 130: interrupted, and what was measured before is shown."""
    parser = argparse.ArgumentParser(prog=f"python -m {NAME}", description="What a message costs against the number of stations.")
    parser.add_argument("-n", "--stations", type=_numbers, default=STATIONS, metavar="N,…", help="2 to 16 each")
    parser.add_argument("--confirm", type=_settings, default=SETTINGS, metavar="SETTING,…", help="settings that take turns")
    parser.add_argument("--repeat", type=int, default=3, help="how often each is measured")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a window")
    parser.add_argument("--out", type=Path, help="append the lines to this file, not to the output")
    parser.add_argument("--from", dest="files", type=Path, nargs="+", metavar="FILE", help="lines of earlier calls; runs nothing")
    parser.add_argument("--write", action="store_true", help="put the result into docs/performance.md")
    options = parser.parse_args(argv)
    rows = _rows(options.files) if options.files else []
    code = _run(options, rows) if not options.files else 0 if all(r["ok"] for r in rows) else 1
    if options.write and rows and code != INTERRUPTED:
        write(rows, PAGE)
    elif rows:
        sys.stderr.write(table(rows))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
