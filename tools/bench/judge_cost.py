"""What the verdict on a large order costs: synthetic tables of stations with many PDUs, judged by ``zenjun pcap check``.

    python -m zenjun.tools.bench.judge_cost [--rows 10000000] [--stations 3] [--master 'local[2]'] [--write]

The tables are those that captures would give (schema.py), without the captures. CPU time and memory are those of all
processes together, JVM and workers too, sampled from /proc. With ``--write`` the result goes into docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..pcap.tables import schema
from ..pcap.tables.replay import options as writer_options

PAGE: Final = Path(__file__).resolve().parent.parent.parent / "docs" / "performance.md"
BEGIN: Final = "<!-- table: zenjun.tools.bench.judge_cost -->"
END: Final = "<!-- end: zenjun.tools.bench.judge_cost -->"
CPU_SECONDS_MAX: Final = 25.0
"""For 3 stations with 10 million PDUs each."""
_CHUNK: Final = 1 << 16
_SAMPLE_S: Final = 0.05
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICK: Final = os.sysconf("SC_CLK_TCK")


def generate(folder: Path, stations: int, rows: int, *, swap_at: int = 0) -> None:
    """Tables of a cluster in which so many PDUs were delivered at every station, in one view. swap_at: the last station has two
    neighbours the other way round there."""
    for station in range(1, stations + 1):
        _order(folder, station, stations, rows, swap_at if station == stations else 0)
        _view(folder, station, stations, rows)


def _order(folder: Path, station: int, stations: int, rows: int, swap_at: int) -> None:
    made = schema.arrow("order")
    rng = np.random.default_rng(7)  # the same at every station
    path = folder / "order" / f"station={station}" / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = np.zeros(stations, np.int64)
    base = (1 << 32) + 1
    with pq.ParquetWriter(path, made, **writer_options(made)) as writer:
        for first in range(0, rows, _CHUNK):
            count = min(_CHUNK, rows - first)
            src = rng.integers(0, stations, count)
            seq = np.empty(count, np.int64)
            for h in range(stations):
                mine = src == h
                total = int(mine.sum())
                seq[mine] = numbers[h] + np.arange(total)
                numbers[h] += total
            crc = rng.integers(0, 1 << 32, count)
            clock = base + first + np.arange(count)
            if first <= swap_at - 1 and swap_at < first + count and swap_at:
                k = swap_at - first
                for column in (src, seq, crc):
                    column[[k - 1, k]] = column[[k, k - 1]]
            seen = 1_700_000_000_000_000_000 + (first + np.arange(count)) * 1000
            columns: dict[str, Any] = {
                "view": np.full(count, 1),
                "view_hash": np.full(count, 77),
                "position": first + np.arange(1, count + 1),
                "clock": clock,
                "src": (src + 1).astype(np.int8),
                "incarnation": 1000 + src,
                "seq": seq,
                "kind": np.full(count, 1, np.int8),
                "payload_crc": crc,
                "head_crc": crc ^ 0x5A5A5A5A,
                "messages": np.full(count, 1, np.int32),
                "bytes": np.full(count, 100, np.int32),
                "copies": np.full(count, 1, np.int32),
                "seen_ns": seen,
                "accepted_ns": seen,
                "ordered_ns": seen + 50_000,
                "preack_ns": seen + 90_000,
                "acked_ns": seen + 130_000,
                "file": np.full(count, station - 1, np.int32),
                "frame": 2 * (first + np.arange(count)),
            }
            arrays = [pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(count, f.type) for f in made]
            writer.write_table(pa.Table.from_arrays(arrays, schema=made))


def _view(folder: Path, station: int, stations: int, rows: int) -> None:

    row = {
        "view": 1,
        "view_hash": 77,
        "time_ns": 1_700_000_000_000_000_000,
        "place_clock": 1 << 32,
        "place_src": 0,
        "members": (1 << stations) - 1,
        "incarnations": [1000 + h for h in range(stations)],
        "joined": (1 << stations) - 1,
        "left": 0,
        "seed": 5,
        "complete": True,
        "from_clock": 1 << 32,
        "to_clock": (1 << 32) + rows,
    }
    path = folder / "views" / f"station={station}" / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([row], schema=schema.arrow("views")), path)


@dataclass
class Usage:
    """Of a process and its descendants."""

    seconds: float = 0.0
    cpu: dict[int, float] = field(default_factory=dict)
    """By process."""
    rss: dict[str, int] = field(default_factory=dict)
    """Largest resident memory of one process, bytes, by kind."""
    rss_all: int = 0
    """Largest sum over all, which counts shared pages several times."""

    @property
    def cpu_seconds(self) -> float:
        return sum(self.cpu.values())


def measure(command: list[str], **options: Any) -> tuple[Usage, subprocess.CompletedProcess[str]]:
    """Run a command and watch it and all its descendants."""
    usage = Usage()
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, text=True, **options)
        while process.poll() is None:
            _sample(process.pid, usage)
            time.sleep(_SAMPLE_S)
        usage.seconds = time.monotonic() - begun
        out.seek(0)
        return usage, subprocess.CompletedProcess(command, process.returncode, out.read(), "")


def _sample(root: int, usage: Usage) -> None:
    parents: dict[int, int] = {}
    found: dict[int, tuple[str, list[str]]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        parents[int(entry.name)] = int(fields[1])
        found[int(entry.name)] = name, fields
    total = 0
    for pid, (name, fields) in found.items():
        above = pid
        while above not in (root, 0, 1) and above in parents:
            above = parents[above]
        if above != root and pid not in usage.cpu:  # whose parent has gone is known already
            continue
        kind = "java" if "(java" in name else "python"
        usage.cpu[pid] = (int(fields[11]) + int(fields[12])) / _TICK
        rss = int(fields[21]) * _PAGE_BYTES
        usage.rss[kind] = max(usage.rss.get(kind, 0), rss)
        total += rss
    usage.rss_all = max(usage.rss_all, total)


def run(rows: int, stations: int, master: str, folder: Path) -> list[tuple[str, Usage, dict[str, Any]]]:
    """(what, usage, verdicts as JSON): without Spark and with it."""
    command = [sys.executable, "-c", "import sys; from zenjun.tools.command import main; sys.exit(main())", "pcap", "check"]
    out = []
    for what, options in (("threads of one process", ["--master", "none"]), (f"Spark, {master}", ["--master", master])):
        usage, done = measure([*command, str(folder), "--json", *options], stderr=subprocess.DEVNULL)
        if done.returncode not in (0, 1):
            raise SystemExit(f"zenjun pcap check: exit code {done.returncode}")
        out.append((what, usage, json.loads(done.stdout)))
    return out


def table(results: list[tuple[str, Usage, dict[str, Any]]], rows: int, stations: int) -> str:
    """Markdown."""
    lines = [
        f"{stations} stations × {rows:,} PDUs, from the start of `zenjun pcap check` to its end:",
        "",
        "| done by | wall | CPU | PDUs per CPU-second | largest process: Python, JVM |",
        "|---|---|---|---|---|",
    ]
    for what, usage, _ in results:
        rate = stations * rows / usage.cpu_seconds / 1e6
        mib = {kind: f"{size / 2**20:,.0f} MiB" for kind, size in usage.rss.items()}
        lines.append(
            f"| {what} | {usage.seconds:.1f} s | {usage.cpu_seconds:.1f} s | {rate:.2f} million |"
            f" {mib.get('python', '-')}, {mib.get('java', '-')} |"
        )
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Command line: see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m zenjun.tools.bench.judge_cost", description="What verdicts cost.")
    parser.add_argument("--rows", type=int, default=10_000_000, help="PDUs delivered at each station")
    parser.add_argument("--stations", type=int, default=3)
    parser.add_argument("--master", default="local[2]", help="Spark that does it in the second run")
    parser.add_argument("--folder", type=Path, help="where the tables lie or are made; kept")
    parser.add_argument("--write", action="store_true", help="put the result into docs/performance.md")
    options = parser.parse_args(argv)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="zenjun-verdicts-"))
    try:
        if not (folder / "views").is_dir():
            generate(folder, options.stations, options.rows)
        results = run(options.rows, options.stations, options.master, folder)
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    made = table(results, options.rows, options.stations)
    sys.stdout.write(made + "\n")
    if options.write:
        head, _, rest = PAGE.read_text().partition(BEGIN)
        _, _, tail = rest.partition(END)
        PAGE.write_text(f"{head}{BEGIN}\n\n{made}\n\n{END}{tail}")
    good = all(verdicts["verdicts"]["order"]["kept"] for _, _, verdicts in results)
    slow = options.rows * options.stations >= 30_000_000 and any(u.cpu_seconds > CPU_SECONDS_MAX for _, u, _ in results)
    return 0 if good and not slow else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
