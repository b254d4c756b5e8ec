"""The part of docs/evaluation.md on the DONA paper: table, and figures 3.1 and 3.2 with measured points on their lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from ..pcap.report import plots
from ..pcap.report.plots import Shape, axes_of, colour, dash, lines
from . import dona, results
from .dona import CALLS, LOCALITIES, SIZES, UPDATES, Point, Setting, Update

SETTINGS: Final = (
    *(Setting(10, m, d) for d in (Fraction(0), Fraction(1, 2), Fraction(9, 10)) for m in (1, 2, 5, 10)),
    Setting(20, 4, Fraction(1, 2)),
)
"""Rows of the table."""
HEIGHT: Final = 3.6
POINTS_FILE: Final = "dona-points.json"
VARIANT_D: Final = (Fraction(0), Fraction(9, 10))


def table(points: Sequence[Point] = ()) -> str:
    """Markdown: the formulas at some points, and beside them what was measured there, if anything was."""
    heads = [
        "n", "m", "d", "α", "a manager (2)", "network (3)", "broadcast", "ordered",
        "a manager, broadcast", "a manager, ordered", "full, ordered",
    ]  # fmt: skip
    settings = list(SETTINGS)
    settings += [p.setting for p in points if p.setting not in settings]
    if points:
        heads += ["measured: update, network, a manager"]
    rows = []
    for s in settings:
        row = [
            str(s.n), str(s.m), f"{float(s.d):g}", f"{float(s.alpha):.6f}", _number(dona.manager(s)),
            *(_number(dona.network(s, update)) for update in Update),
            _number(dona.manager(s, Update.BROADCAST)), _number(dona.manager(s, Update.ORDERED)),
            _number(dona.everywhere(s)),
        ]  # fmt: skip
        if points:
            own = [p for p in points if p.setting == s]
            row.append("; ".join(f"{p.update.value}, {p.network:.3f}, {p.manager:.3f}" for p in own) or "–")
        rows.append(row)
    return results.markdown(heads, rows)


def _number(value: Fraction) -> str:
    return f"{float(value):.6f}"


def figure(what: str, points: Sequence[Point] = ()) -> plots.Drawing:
    """Figure 3.1 (``what`` is "network") or 3.2 ("manager"): one plot for each n. A measured point has the colour of the line
    that it should be on: points of another k, p, n or d than the lines' are left to the table, and so are those of variants."""

    def draw(drawing: Any, shape: Shape) -> None:
        made = axes_of(drawing, len(SIZES), shape)
        for axes, n in zip(made, SIZES, strict=True):
            lines(axes, {f"d = {float(d):g}": dona.curve(n, d, what) for d in LOCALITIES})
            shown = [p for p in points if p.setting.n == n and p.update is Update.UNICAST and _on_line(p)]
            for index, d in enumerate(LOCALITIES):
                own = [(p.setting.m, getattr(p, what)) for p in shown if p.setting.d == d]
                if own:
                    axes.plot(*zip(*own, strict=True), color=colour(index), marker="o", linestyle="none", gid="measured")
            _axes(axes, n)
        made[0].set_ylabel(f"messages {'in the network' if what == 'network' else 'of a manager'}")
        _legend(drawing, made[0], shape, len(LOCALITIES))

    return draw


def variants(points: Sequence[Point] = ()) -> plots.Drawing:
    """Equation (3) with each way to change the common directory, for calls without and with much locality."""

    def draw(drawing: Any, shape: Shape) -> None:
        made = axes_of(drawing, len(SIZES), shape)
        for axes, n in zip(made, SIZES, strict=True):
            for index, update in enumerate(Update):
                for row, d in enumerate(VARIANT_D):
                    axes.plot(
                        *dona.curve(n, d, "network", update), color=colour(index), linestyle=dash(row),
                        label=f"{update.value}, d = {float(d):g}",
                    )  # fmt: skip
                    here = [p for p in points if (p.setting.n, p.setting.d, p.update) == (n, d, update) and _on_line(p)]
                    own = [(p.setting.m, p.network) for p in here]
                    if own:
                        axes.plot(
                            *zip(*own, strict=True), color=colour(index), marker="os"[row], linestyle="none", gid="measured"
                        )
            _axes(axes, n)
        made[0].set_ylabel("messages in the network")
        _legend(drawing, made[0], shape, len(Update))

    return draw


def _on_line(point: Point) -> bool:
    return (point.setting.k, point.setting.p) == (CALLS, UPDATES)


def _axes(axes: Any, n: int) -> None:
    axes.set_title(f"n = {n}")
    axes.set_xlabel("zones m")
    axes.set_xticks(range(1, n + 1) if n <= 10 else [1, *range(4, n + 1, 4)])
    axes.set_ylim(bottom=0)


def _legend(drawing: Any, axes: Any, shape: Shape, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside upper left", ncols=2 if shape.narrow else columns)


def drawings(points: Sequence[Point] = ()) -> Mapping[str, tuple[plots.Drawing, str, str, float]]:
    """The plots by name: (drawing, title, description, height in inches)."""
    unit = f"k = {float(CALLS):g}, p = {float(UPDATES):g}"
    return {
        "dona-network": (figure("network", points), "Figure 3.1", f"Messages in the network against zones, {unit}", HEIGHT),
        "dona-manager": (figure("manager", points), "Figure 3.2", f"Messages of a manager against zones, {unit}", HEIGHT),
        "dona-variants": (variants(points), "Variants", f"Messages in the network by kind of update, {unit}", HEIGHT),
    }


def _file(page: Path) -> Path:
    return page.parent / "evaluation" / POINTS_FILE


def stored(page: Path) -> list[Point]:
    """The points that were measured last, from beside the page; none if there is no such file. Raises ValueError, OSError."""
    if not _file(page).exists():
        return []
    return [
        Point(
            Setting(row["n"], row["m"], Fraction(row["d"]), Fraction(row["p"]), Fraction(row["k"])),
            Update(row["update"]),
            row["network"],
            row["manager"],
        )
        for row in json.loads(_file(page).read_text())
    ]


def store(page: Path, points: Sequence[Point]) -> None:
    """Keep measured points beside the page, so that the page can be made again without a lab. Raises OSError."""
    rows = [
        {
            "n": p.setting.n, "m": p.setting.m, "d": str(p.setting.d), "p": str(p.setting.p), "k": str(p.setting.k),
            "update": p.update.value, "network": round(p.network, 6), "manager": round(p.manager, 6),
        }
        for p in points
    ]  # fmt: skip
    _file(page).write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def write(page: Path, points: Sequence[Point] = ()) -> None:
    """Bring the page's table and plots up to date. Raises ValueError, OSError."""
    results.write(page, {"dona": table(points)}, drawings(points))
