"""docs/evaluation.md: tables between its marks, and the plots beside it, made of what counts.py counted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..pcap.report import plots
from ..pcap.report.figures import LEVEL_NAMES
from ..pcap.report.plots import Shape, colour, dash, legend, lines, plain_log
from ..pcap.report.summary import LEVELS, STEPS
from .counts import QUANTILES, Cost, Exchange, Stop

_BLOCK: Final = re.compile(r"(<!-- made by zenjun evaluate: (?P<name>[a-z0-9-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Exchanges = Mapping[int, tuple[Sequence[Exchange], Sequence[Exchange]]]
"""n → (one confirmation for all, every reception answered)."""


def refresh(text: str, blocks: Mapping[str, str]) -> str:
    """The page with these blocks replaced. ValueError if it lacks one."""
    names = {match["name"] for match in _BLOCK.finditer(text)}
    if missing := sorted(set(blocks) - names):
        raise ValueError(f"the page has no place for: {', '.join(missing)}")
    return _BLOCK.sub(lambda m: f"{m[1]}{blocks[m['name']]}\n{m[3]}" if m["name"] in blocks else m[0], text)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table."""
    out = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*out, *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows)])


def _range(values: Sequence[int]) -> str:
    return str(values[0]) if min(values) == max(values) else f"{min(values)}–{max(values)}"


# TO: PDUs and rounds


def not_as_claimed(counted: Exchanges) -> list[str]:
    """What does not agree with the paper. Its domain begins at n = 3: of two, one confirmation says it all."""
    out = []
    for n, (merged, each) in sorted(counted.items()):
        best = {2 * n - 1, 2 * n} if n > 2 else {3}
        out += [f"n = {n}: {e.pdus} PDUs in {e.rounds} rounds" for e in merged if e.pdus not in best or e.rounds > 3]
        worst = n * n - n + 1
        out += [f"n = {n}, every reception answered: {e.pdus} PDUs" for e in each if e.pdus != worst]
        out += [f"n = {n}: message {e.number} is not acknowledged by all" for e in (*merged, *each) if not e.complete]
    return out


def exchanges_table(counted: Exchanges) -> str:
    """By n, measured beside what the paper says."""
    heads = (
        "n",
        "best, paper: 2n",
        "measured",
        "serialised: 2n − 1",
        "rounds, paper: 3",
        "measured",
        "worst, paper: n² − n + 1",
        "measured",
    )
    rows = [
        (
            n, 2 * n, _range([e.pdus for e in merged]), f"{sum(e.pdus == 2 * n - 1 for e in merged)} of {len(merged)}", 3,
            _range([e.rounds for e in merged]), n * n - n + 1, _range([e.pdus for e in each]),
        )
        for n, (merged, each) in sorted(counted.items())
    ]  # fmt: skip
    return markdown(heads, rows)


def exchanges_plot(counted: Exchanges) -> plots.Drawing:
    """PDUs for one message against n."""

    def draw(figure: Any, shape: Shape) -> None:
        axes = figure.subplots()
        sizes = sorted(counted)
        lines(
            axes,
            {
                "paper, best: 2n": (sizes, [2 * n for n in sizes]),
                "paper, worst: n² − n + 1": (sizes, [n * n - n + 1 for n in sizes]),
            },
        )
        for index, (which, label) in enumerate(
            ((0, "measured, one confirmation for all"), (1, "measured, every reception answered")), 2
        ):
            points = sorted({(n, e.pdus) for n in sizes for e in counted[n][which]})
            axes.plot(
                *zip(*points, strict=True), color=colour(index), marker="os"[which], linestyle="none", markersize=5, label=label
            )
        axes.set_xlabel("stations n")
        axes.set_ylabel("PDUs until level ack at all")
        axes.set_xticks(sizes)
        axes.set_ylim(bottom=0)
        legend(axes, shape, 2)

    return draw


# Load


def load_table(costs: Sequence[Cost]) -> str:
    """Control PDUs against load, and latency, by n and rate."""
    heads = (
        "n", "messages/s offered", "messages", "DATA PDUs", "CONFIRMs", "other control", "control per DATA PDU",
        "PDUs per message",
        *(f"{LEVEL_NAMES[level]}, ms: 50 / 90 / 99 %" for level in LEVELS),
    )  # fmt: skip
    rows = []
    for c in costs:
        total = c.data + c.repeated + c.confirms + c.other
        rows.append(
            (
                c.run.stations, _offered(c), c.messages, c.data, c.confirms, c.other, f"{c.control_per_data:.2f}",
                f"{total / c.messages:.2f}" if c.messages else "–", *(_quantiles(c, level) for level in LEVELS),
            )
        )  # fmt: skip
    return markdown(heads, rows)


def _offered(cost: Cost) -> str:
    return f"{cost.phase.rate:g}" if cost.phase.rate else "as many as go through"


def _quantiles(cost: Cost, level: str) -> str:
    found = [q for share in QUANTILES if (q := cost.latency_ms(level, share)) is not None]
    return " / ".join(f"{q:.2f}" for q in found) or "–"


def load_plot(costs: Sequence[Cost]) -> plots.Drawing:
    """Control PDUs per DATA PDU against the load really offered, a line for each n."""

    def draw(figure: Any, shape: Shape) -> None:
        axes = figure.subplots()
        series: dict[str, tuple[list[float], list[float]]] = {}
        for c in costs:
            if c.phase.rate:
                x, y = series.setdefault(f"n = {c.run.stations}", ([], []))
                x.append(c.phase.rate)
                y.append(c.control_per_data)
        lines(axes, series, markers=True)
        plain_log(axes, "x")
        axes.set_xlabel("messages per second, all stations together")
        axes.set_ylabel("control PDUs per DATA PDU")
        axes.set_ylim(bottom=0)
        legend(axes, shape, 7)

    return draw


def latency_plot(costs: Sequence[Cost]) -> plots.Drawing:
    """Distributions of each level, a line for each of these phases: one plot for each level."""

    def draw(figure: Any, shape: Shape) -> None:
        made = figure.subplots(1, len(LEVELS), sharey=True)
        shares = [100.0 * i / STEPS for i in range(STEPS + 1)]
        for axes, level in zip(made, LEVELS, strict=True):
            for index, c in enumerate(costs):
                if level in c.latencies:
                    axes.plot(
                        c.latencies[level], shares, color=colour(index), linestyle=dash(index), label=f"n = {c.run.stations}"
                    )
            plain_log(axes, "x")
            axes.set_xlabel(f"ms until {LEVEL_NAMES[level]}")
            axes.set_ylim(0, 100)
        made[0].set_ylabel("% of DATA PDUs")
        handles, labels = made[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=7)

    return draw


# Loss


def loss_table(costs: Sequence[Cost]) -> str:
    """What retransmission costs, by the share of frames lost."""
    heads = (
        "loss set", "frames lost", "messages", "DATA PDUs sent again, per 100", "NAK and other control, per 100",
        "CONFIRMs, per 100",
        "PDUs per message", "bytes per message", "ack, ms: 50 / 90 / 99 %",
    )  # fmt: skip
    rows = []
    for c in costs:
        total = c.data + c.repeated + c.confirms + c.other
        rows.append(
            (
                f"{100 * c.phase.loss:g} %", f"{100 * c.lost / c.expected:.2f} %" if c.expected else "–", c.messages,
                f"{100 * c.repeated / c.data:.1f}", f"{100 * c.other / c.data:.1f}", f"{100 * c.confirms / c.data:.0f}",
                f"{total / c.messages:.2f}", f"{c.wire_bytes / c.messages:.0f}", _quantiles(c, "acked"),
            )
        )  # fmt: skip
    return markdown(heads, rows)


def loss_plot(costs: Sequence[Cost]) -> plots.Drawing:
    """PDUs per DATA PDU by kind, and latency, against loss."""

    def draw(figure: Any, shape: Shape) -> None:
        left, right = figure.subplots(1, 2)
        x = [100 * c.phase.loss for c in costs]
        lines(
            left,
            {
                "sent again": (x, [100 * c.repeated / c.data for c in costs]),
                "NAK and other control": (x, [100 * c.other / c.data for c in costs]),
                "CONFIRM": (x, [100 * c.confirms / c.data for c in costs]),
            },
            markers=True,
        )
        left.set_ylabel("PDUs per 100 DATA PDUs")
        series = {}
        for share in QUANTILES:
            series[f"{100 * share:g} %"] = (x, [c.latency_ms("acked", share) or 0.0 for c in costs])
        lines(right, series, markers=True, first=3)
        right.set_ylabel("ms until level ack")
        for axes in (left, right):
            axes.set_xlabel("% of frames lost at each station")
            axes.set_ylim(bottom=0)
            legend(axes, shape, 2)

    return draw


# Receipt logs


def buffers_table(costs: Sequence[Cost]) -> str:
    """High-water marks of the receipt log, in PDUs and in windows."""
    heads = (
        "n",
        "window W",
        "messages/s offered",
        "most kept until preack",
        "in windows W",
        "most kept until ack",
        "in windows W",
        "n²",
    )
    rows = [
        (
            c.run.stations, c.run.window, _offered(c), c.kept,
            f"{c.kept / c.run.window:.2f}", c.kept_ack, f"{c.kept_ack / c.run.window:.2f}", c.run.stations**2,
        )
        for c in costs
    ]  # fmt: skip
    return markdown(heads, rows)


def buffers_plot(costs: Sequence[Cost]) -> plots.Drawing:
    """High-water marks in windows against n, under full load."""

    def draw(figure: Any, shape: Shape) -> None:
        axes = figure.subplots()
        flood = sorted((c for c in costs if not c.phase.rate), key=lambda c: c.run.stations)
        sizes = sorted({c.run.stations for c in flood})
        lines(axes, {"one window of each station: n": (sizes, sizes), "paper, at most: n²": (sizes, [n * n for n in sizes])})
        for index, (label, marker) in enumerate((("until preack", "o"), ("until ack", "s")), 2):
            kept = [max(0.01, (c.kept if index == 2 else c.kept_ack) / c.run.window) for c in flood]
            axes.plot([c.run.stations for c in flood], kept, color=colour(index), marker=marker, linestyle="none", label=label)
        plain_log(axes, "y")
        axes.set_xticks(sizes)
        axes.set_xlabel("stations n")
        axes.set_ylabel("PDUs kept, in windows W")
        legend(axes, shape, 3)

    return draw


# DOP: stop and recovery


def stop_text(found: Stop) -> str:
    """What happened when, the bitmaps, and how data went on."""
    events = markdown(("s", "what"), [(f"{at:.3f}", words) for at, words in found.events])
    bitmaps = markdown(("s", "station", "STATE", "TRANS", "peer states"), [(f"{at:.3f}", *rest) for at, *rest in found.bitmaps])
    means = (
        f"{found.usual:.2f} before the death, {found.agreeing:.2f} from then until all survivors are in the next instance,"
        f" {found.without:.2f} until the station is back"
    )
    longest = (
        f"The longest time without any DATA PDU of theirs was {found.longest_ms:.1f} ms, the longest in which no message became"
        f" safe {found.safe_ms:.0f} ms."
    )
    return f"DATA PDUs of the survivors in 10 ms, on average: {means}. {longest}\n\n{events}\n\n{bitmaps}"


def stop_plot(found: Stop) -> plots.Drawing:
    """DATA PDUs of the survivors, all together, in each 10 ms."""

    def draw(figure: Any, shape: Shape) -> None:
        axes = figure.subplots()
        times = [at for at, _ in next(iter(found.data.values()))]
        sums = [sum(counts) for counts in zip(*([n for _, n in points] for points in found.data.values()), strict=True)]
        lines(axes, {f"stations {', '.join(map(str, sorted(found.data)))} together": (times, sums)}, steps=True)
        top = max(1, *sums) * 1.6
        axes.set_ylim(0, top)
        for at, words in _moments(found):
            axes.axvline(at, color=colour(6), linewidth=0.8, linestyle=":")
            axes.text(at, top, f"{words} ", rotation=90, va="top", ha="right", fontsize=shape.letters - 1.5)
        axes.set_xlabel("seconds since the last frame of the station that was killed")
        axes.set_ylabel("DATA PDUs in 10 ms")
        legend(axes, shape, 4)

    return draw


def _moments(found: Stop) -> list[tuple[float, str]]:
    """What to write at which line: the first of each kind of event, those that cannot be told apart in a drawing together."""
    out: list[tuple[float, list[str]]] = []
    told: set[str] = set()
    for at, words in found.events:
        short = words.split(" of station")[0].removeprefix("first ")
        if "is in instance" in words:
            short = f"view {words.split(', ')[-1].split(' station')[0]} it"
        short = {"last frame": "killed", "frame": "started again"}.get(short, short)
        if short in told:
            continue
        told.add(short)
        if out and at - out[-1][0] < 0.06:
            out[-1][1].append(short)
        else:
            out.append((at, [short]))
    return [(at, ", ".join(words)) for at, words in out]


def write(page: Path, blocks: Mapping[str, str], drawings: Mapping[str, tuple[plots.Drawing, str, str, float]]) -> None:
    """Write the page's blocks, and the plots into the folder of the page's name. ValueError, OSError."""
    fresh = refresh(page.read_text(), blocks)
    folder = page.with_suffix("")
    folder.mkdir(exist_ok=True)
    for name, (draw, title, description, height) in drawings.items():
        (folder / f"{name}.svg").write_text(plots.standalone(draw, name, title, description, height))
    page.write_text(fresh)
