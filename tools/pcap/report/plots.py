"""Plots as SVG text: the same input gives the same bytes, colours follow the reader's light or dark scheme, no scripts inside.

Every plot is drawn twice, for wide and for narrow pages: text that is readable at 1280 pixels is not at 400 when it is scaled. A
placeholder colour is drawn and then replaced by a CSS variable, so that one style sheet decides for the page. Lines differ in
dash pattern as well: so that no reader needs to distinguish colours.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Points = tuple[Sequence[float], Sequence[float]]
"""x and y of a line."""

COLOURS: Final = 8
"""Lines of one plot that differ in colour; then dashes do."""
DASHES: Final = ("-", "--", "-.", ":")
_STAND_INS: Final = tuple(f"#fe{index:02x}{index:02x}" for index in range(COLOURS))
INK, GRID = "#fdfd01", "#fdfd02"
VARIABLES: Final = {
    **{stand: f"var(--c{index + 1})" for index, stand in enumerate(_STAND_INS)},
    INK: "var(--ink)",
    GRID: "var(--grid)",
}

LIGHT: Final = {
    "paper": "#ffffff", "ink": "#1c1e21", "grid": "#d5d9de", "c1": "#0b62b8", "c2": "#b3470a", "c3": "#0f7a4c", "c4": "#8a2fa0",
    "c5": "#8a6a00", "c6": "#0a7f8c", "c7": "#b81d4d", "c8": "#5b6470",
}  # fmt: skip
DARK: Final = {
    "paper": "#15181c", "ink": "#e4e7eb", "grid": "#3a4149", "c1": "#6db3f8", "c2": "#f5965a", "c3": "#5cd39b", "c4": "#d592e6",
    "c5": "#e0bf4f", "c6": "#58cfdc", "c7": "#ff85a8", "c8": "#aab3bf",
}  # fmt: skip
"""Each at least 4.5 : 1 against its paper."""

JOINS: Final = "svg *{stroke-linejoin:round;stroke-linecap:butt}svg{font-family:system-ui,sans-serif}"
"""Style that all drawings need."""


def variables(colours: Mapping[str, str]) -> str:
    """As CSS declarations."""
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def colour(index: int) -> str:
    """Stand-in for the colour of line ``index`` from 0."""
    return _STAND_INS[index % COLOURS]


def dash(index: int) -> str:
    """Dash pattern of line ``index`` from 0: the first colours are whole lines, so that crowded plots stay readable."""
    return DASHES[index % len(DASHES)]


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a drawing in inches, and the letters in points."""

    name: str
    width: float
    height: float
    letters: float

    @property
    def narrow(self) -> bool:
        return self.name == "narrow"


def shapes(height: float, narrow_height: float = 0.0) -> tuple[Shape, Shape]:
    """For pages of about 1100 and 370 pixels."""
    return Shape("wide", 10.4, height, 8.5), Shape("narrow", 4.0, narrow_height or height, 8.5)


Drawing = Callable[[Any, Shape], None]
"""Draws into the figure that it is given."""


def svg(draw: Drawing, shape: Shape, name: str, title: str, description: str) -> str:
    """One SVG element. ``draw`` gets the figure. ``name`` makes its ids its own within the page."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    prefix = f"{name}-{shape.name}"
    settings: dict[Any, Any] = {
        "svg.hashsalt": prefix,
        "svg.fonttype": "none",
        "font.size": shape.letters,
        "axes.titlesize": shape.letters + 0.5,
        "legend.fontsize": shape.letters - 0.5,
        "font.family": "sans-serif",
        "text.color": INK,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "grid.color": GRID,
        "axes.grid": True,
        "grid.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.7,
        "lines.linewidth": 1.3,
        "path.simplify": True,
        "legend.frameon": False,
        "legend.handlelength": 2.6,
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=(shape.width, shape.height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure, shape)
        figure.patch.set_visible(False)
        for axes in figure.axes:
            axes.patch.set_visible(False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _clean(out.getvalue(), prefix, title, description)


_DIGITS: Final = re.compile(r"\d+\.\d{3,}")


def _shorter(number: re.Match[str]) -> str:
    """A hundredth of a point is finer than any screen."""
    return f"{float(number[0]):.2f}"


def _clean(text: str, prefix: str, title: str, description: str) -> str:
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    text = re.sub(r'(xlink:)?href="#([^"]+)"', rf'href="#{prefix}-\2"', text)
    text = re.sub(r' xmlns:xlink="[^"]*"', "", text)
    text = re.sub(r"<style type.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;\"]*; ?", "", text)  # the page's own
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r' (?:d|x|y|width|height|transform)="[^"]*"', lambda part: _DIGITS.sub(_shorter, part[0]), text)
    for stand, value in VARIABLES.items():
        text = text.replace(stand, value)
    text = re.sub(r"#000000\b", "var(--ink)", text)
    head = re.match(r'<svg[^>]*viewBox="([^"]*)"[^>]*>', text)
    if head is None:
        raise ValueError("the drawing has no viewBox")
    text = re.sub(r"<g id=\"[^\"]*\">\s*</g>", "", text[head.end() :])
    text = re.sub(r"\s*\n\s*(?=[<A-Za-z])", " ", text).replace("> <", "><")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{head[1]}" role="img" aria-labelledby="{prefix}-title {prefix}-desc">'
        f'<title id="{prefix}-title">{html.escape(title)}</title><desc id="{prefix}-desc">{html.escape(description)}</desc>{text}'
    )


def figure(
    draw: Callable[[Any, Shape], None], name: str, title: str, description: str, height: float, narrow: float = 0.0
) -> str:
    """HTML: both shapes, of which the style sheet shows one, and the description as its caption."""
    drawings = "".join(
        f'<div class="{shape.name}">{svg(draw, shape, name, title, description)}</div>' for shape in shapes(height, narrow)
    )
    return f'<figure id="{name}">{drawings}<figcaption>{html.escape(description)}</figcaption></figure>'


def standalone(draw: Drawing, name: str, title: str, description: str, height: float) -> str:
    """An SVG file of its own, for a page that shows it as a picture."""
    style = (
        f"svg{{{variables(LIGHT)}}}@media(prefers-color-scheme:dark){{svg{{{variables(DARK)}}}}}{JOINS}text{{fill:var(--ink)}}"
    )
    text = svg(draw, Shape("wide", 8.4, height, 9.0), name, title, description)
    at = text.index("<title")
    return f'{text[:at]}<style>{style}</style><rect width="100%" height="100%" style="fill:var(--paper)"/>{text[at:]}\n'


# What the drawings have in common


def axes_of(figure: Any, count: int, shape: Shape) -> list[Any]:
    """So many plots: side by side on a wide page, one below the other on a narrow one."""
    made = figure.subplots(count, 1, squeeze=False) if shape.narrow else figure.subplots(1, count, squeeze=False)
    return list(made.ravel())


def legend(axes: Any, shape: Shape, columns: int = 6) -> None:
    """Above the plot, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    columns = min(2 if shape.narrow else columns, len(handles))
    axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, borderaxespad=0.2, columnspacing=1.2)


def lines(axes: Any, series: Mapping[str, Points], *, steps: bool = False, markers: bool = False, first: int = 0) -> None:
    """Lines with labels, colours and dashes in their order."""
    for index, (label, (x, y)) in enumerate(series.items(), first):
        style: dict[str, Any] = {"color": colour(index), "linestyle": dash(index), "label": label}
        if steps:
            style["drawstyle"] = "steps-post"
        if markers:
            style.update(marker="osD^vP*X"[index % 8], markersize=4)
        axes.plot(x, y, **style)


def plain_log(axes: Any, which: str) -> None:
    """A logarithmic axis with plain numbers: superscripts do not survive as text."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if 1e-4 <= value < 1e7 else f"{value:.0e}"))
    axis.set_minor_formatter(NullFormatter())
