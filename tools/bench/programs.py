"""What the client libraries cost in Python: one program at a station of a lab, in the ways that programs are written.

``own``: it sends as fast as it can and gets its own messages; ``send``: it sends only; ``batch`` and ``iterate``: it receives
what another program sends, by ``recv_batch`` or one by one; ``closed``: one message at a time. Each for the blocking library and
the one for asyncio, with asyncio's own loop and with uvloop. Messages per second are those of a machine that program, daemon and
feeder share; the program's own processor time for a message says what one could do that has a core for itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..lab import Lab, LabError
from .cell import BenchError, Client, Json
from .plan import machine
from .pyload import INTERFACES, RECEIVES, WHAT
from .systems import Zenjun
from .table import markdown, number

KIND: Final = "programs"
READY_S: Final = 60.0
LEAD_NS: Final = 300_000_000
"""From the command to the window: what is sent meanwhile warms up."""
TITLES: Final = {
    "own": "sends and gets its own: `pipeline`, `recv_batch`",
    "send": "sends: `pipeline`",
    "batch": "receives: `recv_batch`",
    "iterate": "receives: iteration",
    "closed": "one at a time: `send`",
}

Report = Callable[[Json], None]


@dataclass(frozen=True)
class ProgramsPlan:
    """Options of one call."""

    stations: int = 1
    what: tuple[str, ...] = WHAT
    interfaces: tuple[str, ...] = INTERFACES
    size: int = 64
    seconds: float = 2.0
    """Of each window."""
    repeat: int = 3
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def runs(self) -> int:
        """How many lines the call will give."""
        return self.repeat * len(self.what) * len(self.interfaces)


def run(plan: ProgramsPlan, report: Report, starting: Callable[[str], None] = lambda what: None) -> None:
    """Run everything; ``report`` gets one JSON object a line. The interfaces take turns. Raises LabError when the lab cannot be
    made."""
    with Lab(plan.stations, options=plan.options) as lab:
        system = Zenjun(lab)
        system.start()
        try:
            for repeat in range(1, plan.repeat + 1):
                for what in plan.what:
                    for interface in plan.interfaces:
                        starting(f"{what}, {interface}")
                        head = {
                            "bench": KIND,
                            "system": "zenjun",
                            "stations": plan.stations,
                            "what": what,
                            "interface": interface,
                        }
                        head |= {"size": plan.size, "repeat": repeat, "machine": machine(), "python": platform.python_version()}
                        head["started"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                        try:
                            figures = measure(plan, lab, what, interface)
                        except (BenchError, LabError) as error:
                            figures = {"ok": False, "problems": [str(error)]}
                        report({**head, **figures})
        finally:
            system.stop()


def measure(plan: ProgramsPlan, lab: Lab, what: str, interface: str) -> Json:
    """The figures of one program. Raises BenchError, LabError."""
    station = lab.station(1)
    fifo = station.directory / "credits"
    clients: list[Client] = []

    def spawn(*words: str) -> Client:
        argv = [sys.executable, "-m", "zenjun.tools.bench.pyload", "--target", str(station.socket_path), "--size", str(plan.size)]
        pipe = subprocess.PIPE
        clients.append(Client(1, station.spawn([*argv, *words, "--fifo", str(fifo)], stdin=pipe, stdout=pipe, stderr=pipe)))
        clients[-1].line("READY", time.monotonic() + READY_S)
        return clients[-1]

    grace_s = 0.0
    fifo.unlink(missing_ok=True)
    os.mkfifo(fifo)
    try:
        program = spawn("--what", what, "--interface", interface)
        if what in RECEIVES:
            spawn("--what", "feed")
        start = time.monotonic_ns() + LEAD_NS
        for client in clients:
            client.say(f"GO {start} {plan.seconds}")
        figures: Json = json.loads(program.line("RESULT", time.monotonic() + plan.seconds + READY_S))
        grace_s = 5.0
    finally:
        for client in clients:
            client.end(grace_s)
        fifo.unlink(missing_ok=True)
    return {"ok": True, "problems": [], **figures}


# ---- table


def render(rows: Sequence[Json]) -> str:
    """Tables (markdown), one for each size: medians over the repeats."""
    out = []
    for size in sorted({r["size"] for r in rows}):
        some = [r for r in rows if r["ok"] and r["size"] == size]
        interfaces = [i for i in INTERFACES if any(r["interface"] == i for r in some)]
        if not some:
            continue
        heads = [f"messages/s · µs of the program's processor time, {size} B", *interfaces]
        lines = [
            [TITLES[what], *(_cell([r for r in some if r["what"] == what and r["interface"] == i]) for i in interfaces)]
            for what in WHAT
            if any(r["what"] == what for r in some)
        ]
        out.append(markdown(heads, lines))
    return "\n\n".join(out) + "\n"


def _cell(rows: Sequence[Json]) -> str:
    if not rows:
        return "–"

    def median(key: str) -> float:
        return statistics.median(float(r[key]) for r in rows)

    text = f"{number(median('messages_per_s'))} · {number(median('cpu_us'))}"
    with contextlib.suppress(KeyError, TypeError):
        text += f", p50 {number(median('p50_us'))} µs"
    return text
