"""How fast captures become tables, side by side with tshark and scapy on the same file, and whether the cost grows linearly.

    python -m zenjun.tools.bench.captures                      a capture of 1 GB, both comparisons, growth to 8 GB
    python -m zenjun.tools.bench.captures --growth "" --write  only the first, into docs/performance.md

CPU-seconds are those of all processes that worked (JVM and Python workers among them); they are what counts on a machine that
others use at the same time. Everything is made in a temporary folder, and removed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..pcap.frames import files, synthetic
from ..pcap.look import dissector
from ..pcap.spark.session import Session
from ..pcap.tables.ingest import ingest
from ..pcap.work.progress import Progress

PAGE: Final = Path(__file__).resolve().parent.parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- captures: written by tools/bench/captures.py -->", "<!-- end -->"
CORES: Final = 2
STATIONS: Final = 3
GB: Final = 10**9
FIRST: Final = "ingest to Parquet, Spark local[2], first job of a session"
AGAIN: Final = "ingest to Parquet, Spark local[2], again"
LIMITS: Final = """\
What limits it: of a split's work three parts in four are encoding Parquet (forty columns and two lists for each frame), one is
reading, checking and laying out; Spark adds the start of two Python workers, its compiler, and some 40 ms a task, which is why
the ratio grows with the size. One process with threads has none of that. tshark makes a tree of each frame; with the dissector it
gives about what our tables hold."""
BASE: Final = "tshark -T fields (time, source, data)"
RATE_AIM: Final = 200e6
"""Bytes of captures a second, on two cores through Spark."""
RATIO_AIM: Final = 20.0
"""Times tshark's frames per CPU-second."""
TSHARK: Final = ("-n", "-T", "fields", "-e", "frame.time_epoch", "-e", "eth.src", "-e", "data.data")
"""The export as far as tshark alone gets: the PDU as hexadecimal bytes."""
DISSECTED: Final = ("zenjun.src", "zenjun.kind", "zenjun.seq", "zenjun.clock")
"""Some of its fields, with the dissector of ``zenjun pcap dissector``."""
SCAPY: Final = """
import sys
from scapy.utils import PcapReader
from zenjun.tools.dissect import Zenjun
count = seq = 0
for frame in PcapReader(sys.argv[1]):
    count += 1
    if Zenjun in frame:
        seq += frame[Zenjun].seq
print(count)
"""


@dataclass
class Row:
    """One measurement."""

    what: str
    frames: int
    bytes: int
    wall_s: float
    cpu_s: float

    @property
    def per_core(self) -> float:
        """Frames a CPU-second."""
        return self.frames / self.cpu_s if self.cpu_s else 0.0

    @property
    def rate(self) -> float:
        """Bytes a second of wall time."""
        return self.bytes / self.wall_s if self.wall_s else 0.0


@dataclass
class Report:
    """All of one run."""

    rows: list[Row] = field(default_factory=list)
    growth: list[tuple[int, Row, float]] = field(default_factory=list)
    """(GB, measurement, largest resident memory of a process in MB)."""
    parquet_bytes: int = 0
    load: float = 0.0
    frame_bytes: float = 0.0


def _tree(pid: int) -> list[int]:
    """The process and all it has started."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def tree_cpu(pid: int) -> float:
    """CPU-seconds of a process and all that it and its children have started, those that have ended too."""
    ticks = 0
    for one in _tree(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def tree_memory_mb(pid: int) -> float:
    """The largest resident set that one process of the tree has had."""
    most = 0
    for one in _tree(pid):
        try:
            text = Path(f"/proc/{one}/status").read_text()
        except OSError:
            continue
        if found := re.search(r"^VmHWM:\s+(\d+)", text, re.MULTILINE):
            most = max(most, int(found[1]))
    return most / 1024


def timed(what: str, work: Callable[[], tuple[int, int]]) -> Row:
    """Measure work of this process and its children (Spark's JVM is a child): it gives (frames, bytes)."""
    cpu, wall = tree_cpu(os.getpid()), time.monotonic()
    frames, size = work()
    return Row(what, frames, size, time.monotonic() - wall, tree_cpu(os.getpid()) - cpu)


def _program(what: str, command: Sequence[str], frames: int, size: int) -> Row:
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - wall
    lines = done.stdout.count(b"\n")
    told = int(done.stdout) if lines == 1 else lines
    if told != frames:
        raise SystemExit(f"{what} saw {told} frames of {frames}")
    return Row(what, frames, size, seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _ingest(captures: list[files.Capture], out: Path, session: Session | None) -> tuple[int, int]:
    result = ingest(captures, out, session)
    if result.problems or result.frames != sum(c.frames for c in captures) or result.pdus != result.frames:
        raise SystemExit(f"ingest lost frames: {result}")
    return result.frames, result.bytes


def _parts(folder: Path, source: Path, size: int) -> tuple[Path, int]:
    """A copy of the beginning of a capture, at a record border: (path, frames)."""
    capture = files.scan(source, station=1, split_bytes=size)
    split = capture.splits[0]
    part = folder / f"part-{size}.pcapng"
    with source.open("rb") as file:
        part.write_bytes(file.read(split.end))
    return part, files.scan(part, station=1).frames


def compare(folder: Path, size: int, part: int, session: Session, say: Callable[[str], None]) -> Report:
    """Ingest of *size* bytes by Spark and by threads; tshark and scapy on the first *part* bytes of the same capture."""
    report = Report()
    say(f"making {size / GB:g} GB of captures")
    made = synthetic.captures(folder / "in", stations=STATIONS, bytes_each=size // STATIONS + 1)
    report.frame_bytes = made.bytes / made.frames
    scanned: list[files.Capture] = []

    def scan() -> tuple[int, int]:
        scanned.extend(files.gather([folder / "in"]))
        return made.frames, made.bytes

    report.rows.append(timed("index scan of the captures", scan))
    say("waiting for Spark")
    session.spark.sparkContext.parallelize(range(8), 8).map(lambda x: x).collect()
    report.load = os.getloadavg()[0]
    for what, chosen in ((FIRST, session), (AGAIN, session), ("ingest to Parquet, threads of one process, no Spark", None)):
        say(what)
        out = folder / "out"
        report.rows.append(timed(what, lambda: _ingest(scanned, out, chosen)))  # noqa: B023
        report.parquet_bytes = sum(p.stat().st_size for p in out.rglob("*.parquet"))
        shutil.rmtree(out)
    path, frames = _parts(folder, made.files[0], part)
    if shutil.which("tshark"):
        say("tshark")
        report.rows.append(_program(BASE, ["tshark", "-r", str(path), *TSHARK], frames, part))
        path, frames = _parts(folder, made.files[0], part // 8)
        script = folder / "zenjun.lua"
        script.write_text(dissector.lua())
        wanted = [word for name in DISSECTED for word in ("-e", name)]
        command = [
            "tshark",
            "-r",
            str(path),
            "-X",
            f"lua_script:{script}",
            "-n",
            "-T",
            "fields",
            "-e",
            "frame.time_epoch",
            *wanted,
        ]
        report.rows.append(_program("tshark -T fields with our dissector (time and 4 fields)", command, frames, part // 8))
    path, frames = _parts(folder, made.files[0], part // 8)
    say("scapy")
    command = [sys.executable, "-c", SCAPY, str(path)]
    report.rows.append(_program("scapy, PcapReader with our layers", command, frames, part // 8))
    shutil.rmtree(folder / "in")
    return report


def grow(folder: Path, sizes: Sequence[int], session: Session, report: Report, say: Callable[[str], None]) -> None:
    """Scan and ingest by Spark of more and more."""
    for size in sizes:
        say(f"growth: {size} GB")
        synthetic.captures(folder / "in", stations=STATIONS, bytes_each=size * GB // STATIONS + 1)

        def work() -> tuple[int, int]:
            return _ingest(files.gather([folder / "in"]), folder / "out", session)

        row = timed(f"{size} GB", work)
        report.growth.append((size, row, tree_memory_mb(os.getpid())))
        shutil.rmtree(folder / "in")
        shutil.rmtree(folder / "out")


def markdown(report: Report, command: str) -> str:
    """The section of docs/performance.md."""
    base = next((row for row in report.rows if row.what == BASE), None)
    spark = next(row for row in report.rows if row.what == AGAIN)
    lines = [
        "## Captures",
        "",
        f"`{command}`, {datetime.date.today()}: generated captures of three stations, {spark.frames:,} frames of"
        f" {report.frame_bytes:.0f} bytes with their records (70 % of the DATA one message of 64 bytes, 20 % four, 10 % full; one"
        f" CONFIRM for four DATA), every checksum right and checked. Other programs used the machine (load {report.load:.1f} on"
        f" {CORES} cores): CPU-seconds, of all processes, are the figures to go by.",
        "",
        "| | frames | MB | wall s | CPU s | MB/s | frames per CPU-s | × tshark |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report.rows:
        ratio = f"{row.per_core / base.per_core:.0f}" if base and base.per_core else ""
        lines.append(
            f"| {row.what} | {row.frames:,} | {row.bytes / 1e6:,.0f} | {row.wall_s:.1f} | {row.cpu_s:.1f} | {row.rate / 1e6:.0f}"
            f" | {row.per_core:,.0f} | {ratio} |"
        )
    aims = [f"at least {RATE_AIM / 1e6:.0f} MB/s on local[2]: {'met' if spark.rate >= RATE_AIM else 'missed'}"]
    if base is not None:
        met = spark.per_core >= RATIO_AIM * base.per_core
        aims.append(f"at least {RATIO_AIM:.0f} times tshark's frames per core: {'met' if met else 'missed'}")
    lines += [
        "",
        f"Aims, of Spark's second row: {'; '.join(aims)}. With its CPU-seconds on {CORES} cores of its own it would be"
        f" {spark.bytes / spark.cpu_s * CORES / 1e6:.0f} MB/s. The Parquet files are {report.parquet_bytes / 1e6:,.0f} MB.",
    ]
    if report.growth:
        lines += ["", "Growth, index scan and ingest by Spark together, one session:", ""]
        lines += [
            "| GB | frames | wall s | CPU s | CPU s per GB | × tshark | largest process so far, MB |",
            "|---|---|---|---|---|---|---|",
        ]
        for size, row, memory in report.growth:
            ratio = f"{row.per_core / base.per_core:.0f}" if base and base.per_core else ""
            cells = f"{row.frames:,} | {row.wall_s:.1f} | {row.cpu_s:.1f} | {row.cpu_s / row.bytes * GB:.2f}"
            lines.append(f"| {size} | {cells} | {ratio} | {memory:,.0f} |")
    lines += ["", LIMITS]
    return "\n".join(lines) + "\n"


def write(section: str, page: Path = PAGE) -> None:
    """Put the section between its markers; at the end of the page if they are not there."""
    text = page.read_text()
    block = f"{BEGIN}\n\n{section}\n{END}\n"
    if BEGIN in text:
        head, rest = text.split(BEGIN, 1)
        text = head + block + rest.split(f"{END}\n", 1)[1]
    else:
        text = f"{text.rstrip()}\n\n{block}"
    page.write_text(text)


def main(argv: list[str]) -> int:
    """Command line: see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m zenjun.tools.bench.captures", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--gb", type=float, default=1.0, help="size of the captures, all stations together")
    parser.add_argument("--part-mb", type=int, default=64, help="of it for tshark; scapy gets an eighth of that")
    parser.add_argument("--growth", default="1,2,4,8", help='sizes in GB, or "" for none')
    parser.add_argument("--folder", type=Path, help="where the captures go; needs twice the largest size")
    parser.add_argument("--write", action="store_true", help="write the section of docs/performance.md")
    options = parser.parse_args(argv)

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    folder = Path(tempfile.mkdtemp(prefix="zenjun-bench-", dir=options.folder))
    try:
        with Session(f"local[{CORES}]", progress=Progress(quiet=True)) as session:
            report = compare(folder, int(options.gb * GB), options.part_mb << 20, session, say)
            sizes = [int(text) for text in options.growth.split(",") if text]
            grow(folder, sizes, session, report, say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    section = markdown(report, shlex.join(["python", "-m", "zenjun.tools.bench.captures", *argv]))
    sys.stdout.write(section)
    if options.write:
        write(section)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
