"""What a lone message costs against the number of stations, each with a processor of its own, in virtual time.

    python -m tests.virtual.width [-n 2,3,…] [--messages 1200] [--write]

Real cores, a model of what is around them: a frame is 20 µs on the wire; a station that sleeps runs 10 µs after the first frame
has come, and later by a random time of 20 µs on average; it takes all frames that are there, 1 µs each, and needs 5 µs to send
one. Stations send in turn, one message of 64 bytes a millisecond. Counts are exact for this model, and the same on every machine;
times show what a hop more or a lost frame does, not what a machine would do. ``--write`` puts table and plot into
docs/performance.md.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

from zenjun.daemon.config import OPTIONS
from zenjun.proto.engineconfig import DIRECT_FROM
from zenjun.proto.wire import addressee
from zenjun.tools.bench.table import markdown
from zenjun.tools.pcap.report import plots
from zenjun.tools.pcap.report.plots import Shape, axes_of, legend, lines

from .cores import Cores
from .segment import MS, NEVER, US

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
BEGIN: Final = "<!-- table: tests.virtual.width -->"
END: Final = "<!-- end: tests.virtual.width -->"
STATIONS: Final = (2, 3, 4, 5, 6, 8, 10, 12, 14, 16)
LOSS: Final = 0.01
WIRE_NS, WAKE_NS, LATE_NS, TAKE_NS, SEND_NS, GAP_NS = 20 * US, 10 * US, 20 * US, US, 5 * US, MS
START_NS: Final = 10 * MS
AFTER_NS: Final = 400 * MS
"""For what is lost at the end."""
OFFER, FRAME, WAKE, TIMER = range(4)


@dataclass
class Cost:
    """Of all messages: latencies to level preack at their senders and elsewhere, ns; what was sent and received; wake-ups."""

    messages: int
    own: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    frames: int = 0
    receptions: int = 0
    wakes: int = 0


def quantile(values: list[int], q: float) -> float:
    """In µs."""
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] / US


class World:
    """n stations; direct: members from which on they confirm to the sender alone, 0 never."""

    def __init__(self, n: int, direct: int, loss: float, messages: int, *, late_ns: int = LATE_NS) -> None:
        d = {o.name: o.default for o in OPTIONS if o.section == "cluster"}
        times = {f"{name}_ns": d[f"{name}_us"] * US for name in ("confirm_delay", "nak_delay")}
        times |= {f"{name}_ns": d[f"{name}_ms"] * MS for name in ("nak_retry", "nak_retry_max", "poll_delay", "poll_delay_max")}
        times["retransmit_gap_ns"] = d["retransmit_gap_ms"] * MS
        window = max(16, min(256, 1000 // (n * n)))
        self.stations = Cores(n, window=window, slots=512, message_max=1 << 16, direct=direct, **times)
        self.loss, self.late_ns, self.random = loss, late_ns, random.Random(n)
        self.cost = Cost(messages)
        self.events: list[tuple[int, int, int, int, Any]] = []
        self.numbers = count()
        self.inbox: list[list[tuple[bytes, bytes]]] = [[] for _ in range(n)]
        self.wakes = [False] * n
        self.timers = [NEVER] * n
        self.sent: list[tuple[int, int]] = []
        """(time, sender) of each message."""
        self.done = [0] * n
        for k, core in enumerate(self.stations.cores):
            core.heartbeat(MS)
            self.at(MS + US, WAKE, k)
        for i in range(messages):
            self.at(START_NS + i * GAP_NS + self.random.randrange(50 * US), OFFER, i % n)

    def at(self, when: int, what: int, station: int, about: Any = None) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), what, station, about))

    def run(self) -> Cost:
        """Raises AssertionError if not every station has every message at the end."""
        end = START_NS + self.cost.messages * GAP_NS + AFTER_NS
        while self.events and self.events[0][0] <= end:
            when, _, what, k, about = heapq.heappop(self.events)
            if what == OFFER:
                self.stations.offer(k, b"x" * 64)
                self.sent.append((when, k))
            elif what == FRAME:
                self.inbox[k].append(about)
            elif what == WAKE or self.timers[k] == when:
                self.work(when, k)
                continue
            else:
                continue  # of a timer that was set anew
            if not self.wakes[k]:
                self.wakes[k] = True
                late = int(self.random.expovariate(1 / self.late_ns)) if self.late_ns else 0
                self.at(when + WAKE_NS + late, WAKE, k)
        assert self.done == [self.cost.messages] * self.stations.n, self.done
        return self.cost

    def work(self, now: int, k: int) -> None:
        """What a station does when it runs."""
        core = self.stations.cores[k]
        self.cost.wakes += 1
        self.wakes[k], self.timers[k] = False, NEVER
        for pdu, mac in self.inbox[k]:
            now += TAKE_NS
            core.rx(now, pdu, mac)
        self.inbox[k].clear()
        core.step(now, True)
        if core.nak_due_ns() <= now:
            core.nak(now)
        if core.poll_due_ns() <= now:
            core.poll(now)
        for pdu in core.tx():
            now += SEND_NS
            self.send(now, k, pdu)
        core.step(now, True)
        core.deliver()
        while self.done[k] < min(core.positions().preack, len(self.sent)):
            when, sender = self.sent[self.done[k]]
            (self.cost.own if sender == k else self.cost.others).append(now - when)
            self.done[k] += 1
        due = min(core.confirm_due_ns(), core.nak_due_ns(), core.poll_due_ns())
        if due != NEVER:
            self.timers[k] = max(due, now + US)
            self.at(self.timers[k], TIMER, k)

    def send(self, now: int, k: int, pdu: bytes) -> None:
        self.cost.frames += 1
        mac = self.stations.stations[k].mac
        for h in range(self.stations.n):
            if h != k and addressee(pdu) in (0, h + 1):
                self.cost.receptions += 1
                if self.random.random() >= self.loss:
                    self.at(now + WIRE_NS, FRAME, h, (pdu, mac))


Costs = dict[tuple[int, bool, float], Cost]
"""(n, whether they confirm to the sender, loss) → cost."""


def table(costs: Costs) -> str:
    """Markdown: confirmations to all / to the sender."""
    heads = ("n", "frames a message", "receptions", "wake-ups", "own p50, µs", "others' p50, µs",
             "1 % loss: own p99, ms", "others' p90, ms", "others' p99, ms")  # fmt: skip
    rows = []
    for n in sorted({n for n, _, _ in costs}):
        pairs = [[costs[n, direct, loss] for direct in (False, True)] for loss in (0.0, LOSS)]
        clean, lossy = pairs
        cells = [[f"{getattr(c, name) / c.messages:.1f}" for c in clean] for name in ("frames", "receptions", "wakes")]
        cells += [[f"{quantile(c.own, 0.5):.0f}" for c in clean], [f"{quantile(c.others, 0.5):.0f}" for c in clean]]
        cells += [[f"{quantile(v, q) / 1000:.2f}" for v in values] for values, q in (
            ([c.own for c in lossy], 0.99), ([c.others for c in lossy], 0.9), ([c.others for c in lossy], 0.99))]  # fmt: skip
        rows.append([str(n), *(" / ".join(pair) for pair in cells)])
    return markdown(heads, rows)


def drawing(costs: Costs) -> plots.Drawing:
    """Receptions and wake-ups; latencies."""

    def draw(picture: Any, shape: Shape) -> None:
        left, right = axes_of(picture, 2, shape)
        sizes = sorted({n for n, _, _ in costs})

        def of(direct: bool, name: str) -> tuple[list[int], list[float]]:
            return sizes, [getattr(costs[n, direct, 0.0], name) / costs[n, direct, 0.0].messages for n in sizes]

        lines(
            left,
            {
                "receptions, to all": of(False, "receptions"),
                "to the sender": of(True, "receptions"),
                "wake-ups, to all": of(False, "wakes"),
                "to the sender ": of(True, "wakes"),
            },
            markers=True,
        )
        left.set_ylabel("of all stations, a message")
        times = {
            f"{who}, {words}": (sizes, [quantile(getattr(costs[n, direct, 0.0], name), 0.5) for n in sizes])
            for who, name in (("sender", "own"), ("others", "others"))
            for words, direct in (("to all", False), ("to the sender", True))
        }
        lines(right, times, markers=True)
        right.set_ylim(bottom=0)
        right.set_ylabel("until level preack, p50 µs")
        for axes in (left, right):
            axes.set_xticks(sizes)
            axes.set_xlabel("stations n")
            legend(axes, shape, 2)

    return draw


def write(costs: Costs, page: Path) -> None:
    folder = page.with_suffix("")
    folder.mkdir(exist_ok=True)
    about = "What a lone message costs against the number of stations, by whom it is confirmed to"
    (folder / "width.svg").write_text(
        plots.standalone(drawing(costs), "width", "Cost against the number of stations", about, 3.6)
    )
    head, _, rest = page.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n\n![{about}](performance/width.svg)\n\n{table(costs)}\n{END}{tail}")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.virtual.width", description="Cost against the number of stations.")
    parser.add_argument("-n", "--stations", default=",".join(map(str, STATIONS)), metavar="N,…", help="2 to 16 each")
    parser.add_argument("--messages", type=int, default=1200, help="in each run")
    parser.add_argument("--write", action="store_true", help="put the result into docs/performance.md")
    options = parser.parse_args(argv)
    try:
        sizes = [int(part) for part in options.stations.split(",")]
    except ValueError:
        parser.error(f"{options.stations!r} is not a list of whole numbers")
    if not all(2 <= n <= 16 for n in sizes) or options.messages < 1:
        parser.error("stations: 2 to 16; messages: at least 1")
    costs = {
        (n, direct, loss): World(n, DIRECT_FROM * direct, loss, options.messages).run()
        for n in sizes
        for direct in (False, True)
        for loss in (0.0, LOSS)
    }
    sys.stdout.write(table(costs))
    if options.write:
        write(costs, PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
