"""The report's drawings, made of what summary.py counted: functions that plots.figure calls for a wide and a narrow page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ....proto.wire import Kind
from .plots import GRID, INK, Drawing, Points, Shape, axes_of, colour, dash, legend, lines, plain_log
from .summary import LEVELS, STEPS, Clock, Distribution, Span, peer_state

LETTER_COLOURS: Final = {"AS": 1, "S": 7, "SA": 2}
LETTER_MEANING: Final = {"AS": "AS: stop seen, being agreed", "S": "S: stopped", "SA": "SA: recovery seen, being agreed"}
LEVEL_NAMES: Final = {"seen": "arrived", "ordered": "ordered", "preack": "preack (safe)", "acked": "ack"}
VOICE_GAP_S: Final = 0.5
"""A station that is silent for this time is drawn as absent."""
LOSS_BUCKETS: Final = 5
LINES_MAX: Final = 16
"""More stations than that are drawn as one line: all together."""


def _filled(span: Span, counted: Mapping[int, float], scale: float) -> Points:
    """A line over all buckets, 0 where nothing was counted."""
    last = int((span.last_ns - span.first_ns) // span.bucket_ns)
    return [span.bucket_seconds(b) for b in range(last + 1)], [counted.get(b, 0) * scale for b in range(last + 1)]


def _by_station(rows: Sequence[tuple[int, int, float]]) -> dict[str, dict[int, float]]:
    """(bucket, station, value) → label → bucket → value; one line for all if they are too many."""
    out: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    many = len({station for _, station, _ in rows}) > LINES_MAX
    for bucket, station, value in sorted(rows, key=lambda row: row[1]):
        out["all stations" if many else f"station {station}"][bucket] += value
    return out


def _time_axis(axes: Any, span: Span) -> None:
    axes.set_xlabel("seconds since the first PDU")
    axes.set_xlim(0, max(1e-6, span.seconds(span.last_ns)))
    axes.set_ylim(bottom=0)


def throughput(
    span: Span, rates: Sequence[tuple[int, int, str, int, int]], delivered: Sequence[tuple[int, int, int, int]]
) -> Drawing:
    """DATA PDUs by source, and messages that became safe at each station."""

    def draw(figure: Any, shape: Shape) -> None:
        scale = 1e9 / span.bucket_ns
        left, right = axes_of(figure, 2, shape)
        sent = _by_station([(b, s, n) for b, s, what, n, _ in rates if what == "data"])
        lines(left, {label: _filled(span, counted, scale) for label, counted in sent.items()}, steps=True)
        left.set_ylabel("DATA PDUs sent per second")
        safe = _by_station([(b, s, n) for b, s, n, _ in delivered])
        lines(right, {label: _filled(span, counted, scale) for label, counted in safe.items()}, steps=True)
        right.set_ylabel("messages safe per second")
        for axes in (left, right):
            _time_axis(axes, span)
            legend(axes, shape, 4)

    return draw


def loss(span: Span, losses: Sequence[tuple[int, int, int, int]], again: Sequence[tuple[int, int, int, int]]) -> Drawing:
    """Share of frames that did not arrive, and PDUs sent again."""

    def draw(figure: Any, shape: Shape) -> None:
        left, right = axes_of(figure, 2, shape)
        # Shares of a few frames are not meaningful: several buckets together, unless there are few anyway.
        coarse = Span(span.first_ns, span.last_ns, span.pdus, span.bucket_ns * LOSS_BUCKETS)
        sent = _by_station([(b // LOSS_BUCKETS, s, expected) for b, s, expected, _ in losses])
        gone = _by_station([(b // LOSS_BUCKETS, s, lost) for b, s, _, lost in losses])
        share = {label: {b: 100.0 * gone[label][b] / n for b, n in counted.items() if n} for label, counted in sent.items()}
        lines(left, {label: _filled(coarse, counted, 1.0) for label, counted in share.items()}, steps=True)
        left.set_ylabel("% of frames lost on the way")
        scale = 1e9 / span.bucket_ns
        sums: dict[str, dict[int, float]] = {"by the source": defaultdict(float), "by other stations": defaultdict(float)}
        for b, _, own, other in again:
            sums["by the source"][b] += own
            sums["by other stations"][b] += other
        lines(right, {label: _filled(span, counted, scale) for label, counted in sums.items()}, steps=True)
        right.set_ylabel("PDUs sent again per second")
        for axes in (left, right):
            _time_axis(axes, span)
            axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
            legend(axes, shape, 4)

    return draw


def control(span: Span, rates: Sequence[tuple[int, int, str, int, int]]) -> Drawing:
    """Frames per second by class, and how many control PDUs there are for each DATA PDU."""

    def draw(figure: Any, shape: Shape) -> None:
        left, right = axes_of(figure, 2, shape)
        sums: dict[str, dict[int, float]] = {
            "data": defaultdict(float),
            "confirm": defaultdict(float),
            "other": defaultdict(float),
        }
        for b, _, what, n, _ in rates:
            sums[what][b] += n
        scale = 1e9 / span.bucket_ns
        names = {"data": "DATA", "confirm": "CONFIRM", "other": "other control"}
        lines(left, {names[k]: _filled(span, v, scale) for k, v in sums.items()}, steps=True)
        left.set_ylabel("PDUs per second, all stations")
        x, y = [], []
        for b in sorted(sums["data"]):
            x.append(span.bucket_seconds(b))
            y.append((sums["confirm"][b] + sums["other"][b]) / sums["data"][b])
        right.plot(x, y, color=colour(3), linestyle="none", marker=".", markersize=3, label="control PDUs per DATA PDU")
        right.set_ylabel("control PDUs per DATA PDU")
        for axes in (left, right):
            _time_axis(axes, span)
            legend(axes, shape, 3)

    return draw


def latencies(
    own: Mapping[tuple[int, str], Distribution], cross: Mapping[tuple[int, str], Distribution], uncertainty_ns: int | None
) -> Drawing:
    """Cumulative distributions; across machines with the band in which the clocks leave them."""

    def draw(figure: Any, shape: Shape) -> None:
        left, right = axes_of(figure, 2, shape)
        shares = [100.0 * i / STEPS for i in range(STEPS + 1)]
        for axes, found, names, title in (
            (left, own, LEVELS, "at the source, one clock: exact"),
            (right, cross, ("seen", *LEVELS), "at the other stations" + (", two clocks" if uncertainty_ns != 0 else "")),
        ):
            axes.set_title(title, loc="left", pad=30 if not shape.narrow else 36)
            floor = 1e-3
            for index, name in enumerate(names):
                if (0, name) not in found:
                    continue
                place = index + (len(LEVELS) - len(names) + 1)
                x = [max(floor, q / 1e6) for q in found[0, name].quantiles]
                axes.plot(x, shares, color=colour(place), linestyle=dash(place), label=LEVEL_NAMES[name])
                if axes is right and uncertainty_ns:
                    low = [max(floor, (q - uncertainty_ns) / 1e6) for q in found[0, name].quantiles]
                    high = [max(floor, (q + uncertainty_ns) / 1e6) for q in found[0, name].quantiles]
                    axes.fill_betweenx(shares, low, high, color=colour(place), alpha=0.15, linewidth=0)
            plain_log(axes, "x")
            axes.set_xlabel("ms since the first transmission")
            axes.set_ylabel("% of DATA PDUs")
            axes.set_ylim(0, 100)
            legend(axes, shape, 4)

    return draw


# Who was a member, and who thought so


@dataclass(frozen=True, slots=True)
class Lane:
    """One station on the time line; times in seconds."""

    station: int
    spoken: tuple[tuple[float, float], ...]
    """When it was heard."""
    instances: tuple[tuple[float, float, int], ...]
    """(from, to, instance) that it reported to be in."""
    opinions: Mapping[int, tuple[tuple[float, float, str], ...]]
    """Other station → (from, to, peer state), where it was not A."""


def lanes(span: Span, rates: Sequence[tuple[int, int, str, int, int]], changes: Sequence[Any]) -> list[Lane]:
    """What the time line shows, from the buckets in which each station sent and the changes of its reports."""
    heard: dict[int, list[int]] = defaultdict(list)
    for bucket, sender, *_ in rates:
        if not heard[sender] or heard[sender][-1] != bucket:
            heard[sender].append(bucket)
    width = span.bucket_ns / 1e9
    end = span.seconds(span.last_ns)
    told: dict[int, list[Any]] = defaultdict(list)
    for change in changes:
        told[change.src].append(change)
    out = []
    for station in sorted(heard):
        spoken: list[list[float]] = []
        for bucket in sorted(set(heard[station])):
            begin = span.bucket_seconds(bucket)
            if spoken and begin - spoken[-1][1] <= max(VOICE_GAP_S, width):
                spoken[-1][1] = min(end, begin + width)
            else:
                spoken.append([begin, min(end, begin + width)])
        instances: list[tuple[float, float, int]] = []
        opinions: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
        rows = told[station]
        everybody = sorted(heard)
        for row, following in zip(rows, [*rows[1:], None], strict=True):
            begin = span.seconds(row.at)
            until = end if following is None else span.seconds(following.at)
            until = _voice_end(spoken, begin, until)
            if instances and instances[-1][2] == row.instance and begin - instances[-1][1] < VOICE_GAP_S:
                instances[-1] = (instances[-1][0], until, row.instance)
            else:
                instances.append((begin, until, row.instance))
            for other in everybody:
                if other != station and (said := peer_state(row.state, row.trans, other)) not in ("", "A"):
                    opinions[other].append((begin, until, said))
        out.append(
            Lane(
                station,
                tuple((a, b) for a, b in spoken),
                tuple(instances),
                {other: tuple(parts) for other, parts in sorted(opinions.items())},
            )
        )
    return out


def _voice_end(spoken: Sequence[Sequence[float]], begin: float, until: float) -> float:
    """A station's report at ``begin`` holds until it is silent."""
    for a, b in spoken:
        if a - 1e-9 <= begin <= b + VOICE_GAP_S:
            return min(until, max(b, begin))
    return until


def timeline(span: Span, shown: Sequence[Lane], views: Sequence[Any], resets: Sequence[Any]) -> Drawing:
    """One band for each station: above, the instances it was in; below, the stations that it regarded as not operational."""

    def draw(figure: Any, shape: Shape) -> None:
        (axes,) = axes_of(figure, 1, shape)
        end = max(1e-6, span.seconds(span.last_ns))
        used: dict[str, Any] = {}
        for row, lane in enumerate(shown):
            for a, b, number in lane.instances:
                strong = number % 2 == 1
                axes.barh(row - 0.2, b - a, left=a, height=0.3, color=colour(0), alpha=0.45 if strong else 0.2, linewidth=0)
                if (b - a) / end > (0.1 if shape.narrow else 0.04):
                    label = f"instance {number}" if number and (b - a) / end > 0.16 else (str(number) if number else "none")
                    axes.text(
                        a + end * 0.004, row - 0.2, label, va="center", ha="left", fontsize=shape.letters - 1.5, clip_on=True
                    )
            for a, b in lane.spoken:
                axes.plot([a, b], [row - 0.38, row - 0.38], color=INK, linewidth=0.8, solid_capstyle="butt")
            strips = list(lane.opinions)[:8]
            for place, other in enumerate(strips):
                height = 0.42 / max(2, len(strips))
                y = row + 0.02 + height * (place + 0.5)
                for a, b, said in lane.opinions[other]:
                    bar = axes.barh(
                        y, max(b - a, end * 0.002), left=a, height=height * 0.8, color=colour(LETTER_COLOURS[said]),
                        hatch={"AS": "////", "S": "", "SA": "...."}[said], edgecolor=GRID, linewidth=0,
                    )  # fmt: skip
                    used.setdefault(said, bar)
                first = min(a for a, _, _ in lane.opinions[other])
                axes.text(
                    first - end * 0.004, y, f"of {other}", va="center", ha="right", fontsize=shape.letters - 2, clip_on=True
                )
        for view in views:
            rows = [row for row, lane in enumerate(shown) if lane.station == view.station]
            if rows and view.at is not None:
                x = span.seconds(view.at)
                axes.plot([x, x], [rows[0] - 0.42, rows[0] + 0.46], color=colour(3), linewidth=1.1, linestyle="-")
        for reset in resets:
            axes.axvspan(span.seconds(reset.at), span.seconds(reset.until), color=colour(6), alpha=0.3, linewidth=0.5)
        axes.set_yticks(
            range(len(shown)), [f"station {lane.station}" if not shape.narrow else str(lane.station) for lane in shown]
        )
        if shape.narrow:
            axes.set_ylabel("station")
        axes.set_ylim(len(shown) - 0.45, -0.5)
        axes.grid(visible=False, axis="y")
        axes.set_xlim(0, end)
        axes.set_xlabel("seconds since the first PDU")
        handles = [used[said] for said in LETTER_MEANING if said in used]
        if handles:
            axes.legend(
                handles, [LETTER_MEANING[said] for said in LETTER_MEANING if said in used], loc="lower left",
                bbox_to_anchor=(0.0, 1.0), ncols=1 if shape.narrow else 3, borderaxespad=0.2,
            )  # fmt: skip

    return draw


# One exchange


@dataclass(frozen=True, slots=True)
class Arrow:
    """A PDU on its way; times in ns on the common clock. ``until_ns`` None: it did not arrive, as far as the captures show."""

    sender: int
    receiver: int
    at_ns: int
    until_ns: int | None
    label: str
    role: str
    """itself, covers, knows, or other."""


def label_of(row: Any) -> str:
    """Like DATA 2:17; what a control PDU asks, and which station."""
    name = Kind(row.kind).name
    return (
        f"{name} {row.src}:{row.seq}"
        if row.kind in (Kind.DATA, Kind.STOP, Kind.STOP_ACK, Kind.RCV_ACK)
        else f"{name} of {row.src}"
    )


def arrows(rows: Sequence[Any], stations: Sequence[int]) -> list[Arrow]:
    """Pair transmissions with receipts of the same PDU.

    Each receipt belongs to the latest transmission before it, or to the first where the clocks do not agree. A source without a
    capture is taken to have sent when the first saw it.
    """
    groups: dict[tuple[int, int, int], list[Any]] = defaultdict(list)
    for row in rows:
        groups[row.src, row.kind, row.check].append(row)
    out: list[Arrow] = []
    for same in groups.values():
        sends = [(r.at, r.station) for r in same if r.direction == 2 or (r.direction == 0 and r.station == r.src)]
        receipts = [r for r in same if r.direction == 1 or (r.direction == 0 and r.station != r.src)]
        one = same[0]
        role = "itself" if one.itself else "knows" if one.knows else "covers" if one.covers else "other"
        says = "".join(f" [{vector}]" for vector, said in (("A", one.covers), ("P", one.knows)) if said and not one.itself)
        label = f"{label_of(one)}{says}"
        if not sends:
            if one.src in stations or not receipts:
                continue
            sends = [(receipts[0].at, one.src)]
        arrived: set[tuple[int, int]] = set()
        for r in receipts:
            before = [s for s in sends if s[0] <= r.at and s[1] != r.station] or [s for s in sends if s[1] != r.station][:1]
            if not before:
                continue  # a bus returns the sender's own frame
            at, sender = before[-1]
            arrived.add((at, r.station))
            out.append(Arrow(sender, r.station, at, r.at, label, role))
        for at, sender in sends:
            out.extend(
                Arrow(sender, other, at, None, label, role)
                for other in stations
                if other != sender and (at, other) not in arrived and one.itself
            )
    return sorted(out, key=lambda a: (a.at_ns, a.sender, a.receiver))


@dataclass(frozen=True, slots=True)
class Mark:
    """An event at a station: a level reached."""

    station: int
    at_ns: int
    text: str


def sequence(shown: Sequence[Arrow], marks: Sequence[Mark], stations: Sequence[int]) -> tuple[Drawing, float]:
    """Sequence diagram and its height in inches. Rows are in order of time, not to scale: the times stand at the left."""
    moments = sorted({a.at_ns for a in shown} | {a.until_ns for a in shown if a.until_ns is not None} | {m.at_ns for m in marks})
    rank: dict[int, float] = {}
    y = 0.0
    for before, moment in zip([None, *moments], moments, strict=False):
        if before is not None:  # a little more room for long pauses, so that they are seen
            pause = (moment - before) / 1e6
            y += 1.0 + (0.8 if pause > 1 else 0.0) + (0.8 if pause > 10 else 0.0)
        rank[moment] = y
    height = min(14.0, 1.3 + 0.15 * (y + 1))

    def draw(figure: Any, shape: Shape) -> None:
        (axes,) = axes_of(figure, 1, shape)
        place = {station: index for index, station in enumerate(stations)}
        for station in stations:
            axes.plot([place[station]] * 2, [-1, y + 1], color=INK, linewidth=0.8)
        begin = moments[0] if moments else 0
        labelled: list[tuple[float, str]] = []
        last = -9.0
        for moment in sorted({a.at_ns for a in shown} | {m.at_ns for m in marks}):
            if rank[moment] - last >= 1.0:
                last = rank[moment]
                labelled.append((last, f"{(moment - begin) / 1e6:.3f}"))
        roles = ["itself", "covers", "knows", "other"]
        told: set[tuple[int, str, int]] = set()
        for arrow in shown:
            index = roles.index(arrow.role)
            x0, x1 = place[arrow.sender], place[arrow.receiver]
            y0 = rank[arrow.at_ns]
            style = {"color": colour((0, 2, 3, 7)[index]), "linestyle": dash(index), "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
            if arrow.until_ns is None:
                middle = x0 + (x1 - x0) * 0.55
                axes.annotate("", (middle, y0 + 0.6), (x0, y0), arrowprops={"arrowstyle": "-", **style, "linestyle": ":"})
                axes.plot([middle], [y0 + 0.6], marker="x", color=colour(6), markersize=6)
            else:
                axes.annotate("", (x1, rank[arrow.until_ns]), (x0, y0), arrowprops={"arrowstyle": "-|>", **style})
            if (key := (arrow.at_ns, arrow.label, arrow.sender)) not in told:
                told.add(key)
                side = -1 if x0 == len(stations) - 1 and len(stations) > 1 else 1
                axes.text(
                    x0 + 0.03 * side, y0 - 0.15, arrow.label, fontsize=shape.letters - 1.5, va="bottom",
                    ha="left" if side > 0 else "right", color=style["color"],
                )  # fmt: skip
        for mark in marks:
            axes.plot([place[mark.station]], [rank[mark.at_ns]], marker="o", markersize=3.5, color=INK)
            # Where no arrow that ends here is: outside if there is room, else below on the right.
            outside = -1 if place[mark.station] == 0 and not shape.narrow else place[mark.station] == len(stations) - 1
            axes.text(
                place[mark.station] + 0.03 * (outside or 1), rank[mark.at_ns] + (0 if outside else 0.15), mark.text,
                fontsize=shape.letters - 1.5, ha="right" if outside < 0 else "left", va="center" if outside else "top",
            )  # fmt: skip
        axes.set_xticks(range(len(stations)), [f"station {s}" if not shape.narrow else str(s) for s in stations])
        axes.xaxis.tick_top()
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.35, len(stations) - 0.65)
        axes.set_ylim(y + 1, -1.2)
        axes.set_yticks([at for at, _ in labelled], [text for _, text in labelled])
        axes.set_ylabel("ms, not to scale")
        axes.grid(visible=False)
        for edge in ("left", "bottom"):
            axes.spines[edge].set_visible(False)

    return draw, height


def uncertainty(clocks: Mapping[int, Clock], stations: Sequence[int]) -> int | None:
    """Of a difference between any two of these stations' clocks, ns; None if some clock is not known."""
    found = [clocks[s].uncertainty_ns if s in clocks else 0 for s in stations]
    known = [u for u in found if u is not None]
    if len(known) < len(found):
        return None
    return sum(sorted(known)[-2:])
