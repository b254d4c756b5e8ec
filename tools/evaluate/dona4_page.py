"""The part of docs/evaluation.md on the directory of the paper on replicated databases: table 4.2, and figure 4.2 with measured
points."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from ..pcap.report import plots
from ..pcap.report.plots import Shape, axes_of, colour, dash, lines
from . import dona4, results
from .dona import Setting
from .dona4 import LOCALITIES, NODES, ZONES, Drawn, Point
from .dona4_lab import SIZE_MIN, Asked

HEIGHT: Final = 3.6
POINTS_FILE: Final = "dona4-points.json"
LOW, HIGH = Fraction(1, 10), Fraction(1, 2)


def point(asked: Asked, sizes: Mapping[int, int]) -> Point:
    """What Spark has counted of one phase: messages by size, which is the request's number."""
    drawn = asked.drawn
    if drawn.full:
        costs = {"retrieve_own": 0, "retrieve_other": 0, **dict.fromkeys(("update_own", "update_other"), _full(drawn.setting.n))}
    else:
        costs = {
            "retrieve_own": dona4.RETRIEVE_OWN,
            "retrieve_other": dona4.RETRIEVE_OTHER,
            "update_own": dona4.UPDATE_OWN,
            "update_other": dona4.update_other(drawn.setting.m),
        }
    wanted = {SIZE_MIN + number: costs[kind] for number, kind in asked.kinds.items() if costs[kind]}
    return Point(drawn, sum(sizes.values()) / drawn.requests, dict(sizes) == wanted)


def _full(n: int) -> int:
    return int(dona4.distributed(n, Fraction(1)))


def table(points: Sequence[Point] = ()) -> str:
    """Markdown: table 4.2, and what was measured."""
    heads = ["m", "d", "α", "T_i, p = 0.1", "T_i, p = 0.5", "zones win from p =", "from p =, one order"]
    rows = []
    for m in ZONES:
        for d in LOCALITIES:
            low, high = Setting(NODES, m, d, LOW), Setting(NODES, m, d, HIGH)
            row = [
                str(m),
                f"{float(d):g}",
                f"{float(low.alpha):.4f}",
                _number(dona4.integrated(low)),
                _number(dona4.integrated(high)),
            ]
            rows.append([*row, _share(dona4.break_even(low)), _share(dona4.break_even_ordered(low))])
    full = [_number(dona4.distributed(NODES, p)) for p in (LOW, HIGH)]
    rows.append(["full", "–", "–", *full, "–", "–"])
    made = results.markdown(heads, rows)
    if not points:
        return made
    heads = [
        "m",
        "d",
        "p",
        "requests: own zone, other; updates: own zone, other",
        "T, at these numbers",
        "measured",
        "each request exact",
    ]
    rows = []
    for one in points:
        s, drawn = one.drawn.setting, one.drawn
        counts = f"{drawn.retrieve_own}, {drawn.retrieve_other}; {drawn.update_own}, {drawn.update_other}"
        where = ["full" if drawn.full else str(s.m), "–" if drawn.full else f"{float(s.d):g}", f"{float(s.p):g}"]
        rows.append([*where, counts, f"{drawn.expected:.4f}", f"{one.mean:.4f}", "yes" if one.exact else "**no**"])
    return made + "\n\n" + results.markdown(heads, rows)


def _number(value: Fraction) -> str:
    return f"{float(value):.3f}"


def _share(value: Fraction | None) -> str:
    return "never" if value is None else f"{float(value):.3f}"


def figure(points: Sequence[Point] = ()) -> plots.Drawing:
    """Figure 4.2: messages per request against the share of updates, one plot for each locality. A measured point is at the
    shares that were drawn."""

    def draw(drawing: Any, shape: Shape) -> None:
        made = axes_of(drawing, len(LOCALITIES), shape)
        for axes, d in zip(made, LOCALITIES, strict=True):
            lines(axes, {f"m = {m}": dona4.curve(m, d) for m in ZONES})
            full = len(ZONES)
            ends = [0.0, float(dona4.distributed(NODES, Fraction(1)))]
            axes.plot([0.0, 1.0], ends, color=colour(full), linestyle=dash(1), label="full distribution")
            for index, m in enumerate((*ZONES, None)):
                own = [p for p in points if _is_of(p, m, d)]
                if own:
                    at = [((p.drawn.update_own + p.drawn.update_other) / p.drawn.requests, p.mean) for p in own]
                    axes.plot(*zip(*at, strict=True), color=colour(index), marker="o", linestyle="none", gid="measured")
            axes.set_title(f"d = {float(d):g}")
            axes.set_xlabel("share of updates p")
            axes.set_ylim(0, 30)
        made[0].set_ylabel("messages per request")
        handles, labels = made[0].get_legend_handles_labels()
        drawing.legend(handles, labels, loc="outside upper left", ncols=2 if shape.narrow else len(labels))

    return draw


def _is_of(point: Point, m: int | None, d: Fraction) -> bool:
    """m: None: full distribution, whose messages do not depend on d."""
    return point.drawn.full if m is None else not point.drawn.full and (point.drawn.setting.m, point.drawn.setting.d) == (m, d)


def drawings(points: Sequence[Point] = ()) -> Mapping[str, tuple[plots.Drawing, str, str, float]]:
    """The plot by name: (drawing, title, description, height in inches)."""
    text = f"Messages per request of a directory against the share of updates, n = {NODES}, k = {dona4.MESSAGES}"
    return {"dona4": (figure(points), "Figure 4.2", text, HEIGHT)}


def _file(page: Path) -> Path:
    return page.with_suffix("") / POINTS_FILE


def stored(page: Path) -> list[Point]:
    """The points that were measured last; none if there is no such file. Raises ValueError, OSError."""
    if not _file(page).exists():
        return []
    points = []
    for row in json.loads(_file(page).read_text()):
        own, other, update_own, update_other = row["drawn"]
        s = Setting(row["n"], row["m"], Fraction(row["d"]), Fraction(row["p"]))
        points.append(Point(Drawn(s, own, other, update_own, update_other, row["full"]), row["mean"], row["exact"]))
    return points


def store(page: Path, points: Sequence[Point]) -> None:
    """Keep measured points beside the page. Raises OSError."""
    rows = [
        {
            "n": p.drawn.setting.n, "m": p.drawn.setting.m, "d": str(p.drawn.setting.d), "p": str(p.drawn.setting.p),
            "drawn": list(p.drawn[1:5]), "full": p.drawn.full, "mean": round(p.mean, 6), "exact": p.exact,
        }
        for p in points
    ]  # fmt: skip
    _file(page).write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def write(page: Path, points: Sequence[Point] = ()) -> None:
    """Bring the page's tables and plot up to date. Raises ValueError, OSError."""
    results.write(page, {"dona4": table(points)}, drawings(points))
