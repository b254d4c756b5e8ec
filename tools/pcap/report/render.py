"""``zenjun pcap report``: the tables as one self-contained HTML page (page.py is its frame, figures.py draws)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ....proto.wire import PROPOSALS, RESETS, Kind
from ..frames.problem import Problem
from ..tables.schema import Finding
from . import figures, page, plots
from .page import Raw, link, paragraph, section, table
from .summary import EVENTS, LEVELS, Clock, Span, Tables, peer_state

FINDINGS: Final = {
    Finding.GAP: "acknowledged PDUs that its capture does not hold: the capture has a hole",
    Finding.CONFLICT: "two PDUs with one number and different contents",
    Finding.SENDER_ORDER: "a later PDU of a source has no larger clock",
    Finding.CAUSALITY: "an ack vector names PDUs that stand behind it",
    Finding.PROMISE: "a clock below what its source had promised",
    Finding.DIGEST: "announced a digest that its own frames do not give",
    Finding.VIEW_UNKNOWN: "in an instance whose beginning the capture does not show",
    Finding.NEVER_SENT: "somebody acknowledges own PDUs that it has not sent",
    Finding.RESUMED: "the replay began anew in the middle of an instance",
}


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames around a place, at one station."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    marked: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """One guarantee, as the page shows it. ``kept`` None: the captures do not suffice to decide."""

    name: str
    kept: bool | None
    summary: str
    evidence: tuple[tuple[str, tuple[Frames, ...]], ...] = ()
    """Of a violation: what diverges first, and the frames around it at the stations concerned."""


@dataclass(slots=True)
class Report:
    """Builds the page. ``note`` is called with each step."""

    tables: Tables
    verdicts: Sequence[Verdict]
    message: tuple[int, int, int | None] | None = None
    """(source, number, incarnation) of the message to draw; None: the slowest."""
    title: str = "zenjun: what the captures show"
    note: Callable[[str], None] = lambda _: None
    remarks: Sequence[str] = ()
    """What makes counts on the page wrong, and what captures were taken for; sentences."""
    span: Span = field(init=False)
    drawn: dict[tuple[int, int, int], str] = field(default_factory=dict, init=False)
    """(source, incarnation, number) of a message → id of its diagram."""

    def html(self) -> str:
        """The page. Raises page.NoSuchMessage if the message asked for is in no station's order."""
        self.span = self.tables.span
        self.note("counting frames, losses and latencies")
        rates = self.tables.rates()
        slowest = self.tables.slowest()
        again = self.tables.most_sent()
        views, changes, resets = self.tables.views(), self.tables.instances(), self.tables.resets()
        self.note("drawing")
        parts: list[tuple[str, str, Callable[[str, str], str]]] = [
            ("verdicts", "Verdicts", self._verdicts),
            ("members", "Who was a member, and who thought so", lambda i, h: self._members(i, h, rates, views, changes, resets)),
            ("latency", "Latency by level", self._latency),
            ("throughput", "Throughput", lambda i, h: self._throughput(i, h, rates)),
            ("loss", "Loss and retransmission", self._loss),
            ("control", "Control PDUs against data", lambda i, h: self._control(i, h, rates)),
            ("exchange", "One message on its way", lambda i, h: self._exchanges(i, h, slowest)),
            ("reset", "A reset or a change of members on its way", lambda i, h: self._change(i, h, views, resets)),
            ("anomalies", "What stands out", lambda i, h: self._anomalies(i, h, slowest, again)),
            ("captures", "Captures", self._captures),
        ]
        return page.page(self.title, self._lead(), [(name, heading, make(name, heading)) for name, heading, make in parts])

    # Words for times and places

    def _when(self, at: int | None) -> str | None:
        """A moment, in seconds since the first PDU."""
        return None if at is None else f"{self.span.seconds(at):.6f}"

    def _lead(self) -> str:
        s = self.span
        bad = [v for v in self.verdicts if v.kept is False]
        unsure = [v for v in self.verdicts if v.kept is None]
        if bad:
            names = ", ".join(v.name for v in bad)
            verdict = page.badge(False, f"{len(bad)} of {len(self.verdicts)} guarantees violated: {names}")
        elif unsure or not self.verdicts:
            verdict = page.badge(
                None, f"no violation seen, but not judged: {', '.join(v.name for v in unsure) or 'nothing was judged'}"
            )
        else:
            verdict = page.badge(True, "all guarantees kept, as far as the captures reach")
        tone = verdict.split('"', 2)[1]
        stations = ", ".join(map(str, self.tables.stations)) or "none"
        return (
            f'<p class="verdict {tone}">{verdict}</p>'
            + paragraph(
                f"Captures of stations {stations}; {s.pdus:,} PDUs in {(s.last_ns - s.first_ns) / 1e9:.3f} s"
                f" from {_utc(s.first_ns)}."
                " All times on this page are seconds since the first PDU."
            )
            + "".join(paragraph(f"Note: {remark}.") for remark in self.remarks)
        )  # fmt: skip

    # The sections

    def _verdicts(self, name: str, heading: str) -> str:
        rows = []
        evidence = []
        for index, verdict in enumerate(self.verdicts):
            target = f"verdict-{index + 1}"
            words: object = verdict.summary
            if verdict.evidence:
                words = Raw(f"{page.text(verdict.summary)} {link(target, 'evidence')}")
                content = "".join(
                    paragraph(said) + "".join(table(f.caption, f.heads, f.rows, marked=f.marked) for f in frames)
                    for said, frames in verdict.evidence
                )
                evidence.append(section(target, f"{verdict.name}: first divergence", content, level=3))
            rows.append((verdict.name, page.badge(verdict.kept), words))
        return section(
            name, heading, table("Guarantees of the cluster", ("guarantee", "verdict", "what was compared"), rows), *evidence
        )

    def _members(
        self, name: str, heading: str, rates: Sequence[Any], views: Sequence[Any], changes: Sequence[Any], resets: Sequence[Any]
    ) -> str:
        lanes = figures.lanes(self.span, rates, changes)
        text = (
            "Each station's band: the line on top shows when it was heard, the bar the instance it said it was in, the strips"
            " below whom it did not hold to be operational. Upright lines are view events. "
            + (f"{len(resets)} resets are shaded." if resets else "")
        )
        if max(len(views), len(changes)) >= EVENTS:
            text += f" Only the first {EVENTS} events are drawn."
        drawing = plots.figure(
            figures.timeline(self.span, lanes, views, resets), "fig-members", "Time line of instances", text,
            0.9 + 0.62 * max(1, len(lanes)), 1.1 + 0.62 * max(1, len(lanes)),
        )  # fmt: skip
        rows = [
            (
                v.view, v.station, self._when(v.at), _bits(v.members), _bits(v.joined), _bits(v.left),
                _place(v.place_clock, v.place_src),
            )
            for v in sorted(views, key=lambda v: (v.view, v.station))[:200]
        ]  # fmt: skip
        heads = ("instance", "at station", "first seen in it, s", "members", "joined", "left", "right after (clock, source)")
        opinions = [
            (c.src, self._when(c.at), c.instance or "none", _opinion(c.state, c.trans))
            for c in changes[:200]
            if c.state is not None
        ]
        return section(
            name, heading, drawing, table("View events", heads, rows, numbers=(0, 1, 2)),
            page.details(
                "What each station said of the others, as a list",
                table("Changes", ("station", "at, s", "instance", "not operational for it"), opinions, numbers=(1,)),
            ),
        )  # fmt: skip

    def _latency(self, name: str, heading: str) -> str:
        own, cross = self.tables.own_latencies(), self.tables.cross_latencies()
        unsure = figures.uncertainty(self.tables.clocks, self.tables.stations)
        if unsure is None:
            words = "The clocks of some stations could not be compared: differences between stations are shown as captured."
        elif unsure:
            worst = sum(sorted(c.worst_ns for c in self.tables.clocks.values())[-2:])
            words = (
                f"Differences between two stations' clocks are known to ±{_duration(unsure)} for 95 of 100 PDUs (shaded),"
                f" and never worse than ±{_duration(worst)}."
            )
        else:
            words = "All captures were taken by one clock."
        text = (
            "From the first transmission of a DATA PDU until each level is reached: by the source's own capture, and at all other"
            " stations. " + words
        )
        drawing = plots.figure(figures.latencies(own, cross, unsure), "fig-latency", "Latency distributions", text, 3.4, 6.4)
        rows: list[tuple[str, ...]] = []
        for label, found, names in (("own PDUs at", own, LEVELS), ("others' PDUs at", cross, ("seen", *LEVELS))):
            for station in sorted({s for s, _ in found}):
                for level in names:
                    if d := found.get((station, level)):
                        who = f"{label} station {station}" if station else f"{label} all stations"
                        rows.append(
                            (
                                who,
                                figures.LEVEL_NAMES[level],
                                f"{d.count:,}",
                                *(f"{d.at(q) / 1e6:.3f}" for q in (0.5, 0.9, 0.99, 1.0)),
                            )
                        )
        heads = ("DATA PDUs", "level", "count", "50 % ms", "90 % ms", "99 % ms", "largest ms")
        right = (2, 3, 4, 5, 6)
        return section(
            name, heading, drawing,
            table("Latencies", heads, [row for row in rows if row[0].endswith("all stations")], numbers=right),
            page.details("The same by station", table("Latencies by station", heads, rows, numbers=right)),
        )  # fmt: skip

    def _throughput(self, name: str, heading: str, rates: Sequence[Any]) -> str:
        text = (
            f"DATA PDUs by sender (retransmissions as well) and messages that became safe (level preack) at each station,"
            f" per {_duration(self.span.bucket_ns)}."
        )
        drawing = plots.figure(
            figures.throughput(self.span, rates, self.tables.delivered()),
            "fig-throughput",
            "Throughput over time",
            text,
            2.9,
            5.0,
        )
        return section(name, heading, drawing)

    def _loss(self, name: str, heading: str) -> str:
        losses, again = self.tables.losses(), self.tables.retransmissions()
        text = (
            "Lost: on the wire of the sender but not of the receiver, while both were captured. Sent again: PDUs of the streams"
            " after their first transmission, by the time of that."
        )
        drawing = plots.figure(
            figures.loss(self.span, losses, again), "fig-loss", "Loss and retransmission over time", text, 2.9, 5.0
        )
        sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for _, station, expected, lost in losses:
            sums[station][0] += expected
            sums[station][1] += lost
        rows = [(s, f"{e:,}", f"{lost:,}", f"{100 * lost / e:.3f}" if e else None) for s, (e, lost) in sorted(sums.items())]
        repeated: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for _, source, by_source, others in again:
            repeated[source][0] += by_source
            repeated[source][1] += others
        return section(
            name, heading, drawing,
            table("Frames lost by receiver", ("station", "sent to it", "lost", "%"), rows, numbers=(1, 2, 3)),
            table(
                "PDUs sent again", ("source", "by itself", "by others"), [(s, *v) for s, v in sorted(repeated.items())],
                numbers=(1, 2),
            ),
        )  # fmt: skip

    def _control(self, name: str, heading: str, rates: Sequence[Any]) -> str:
        text = f"PDUs of all stations, per {_duration(self.span.bucket_ns)}; on the right where there were DATA PDUs at all."
        drawing = plots.figure(figures.control(self.span, rates), "fig-control", "Control PDUs against data", text, 2.9, 5.0)
        kinds = self.tables.kinds()
        stations = sorted({s for s, *_ in kinds})
        count = {(s, k): n for s, k, n, _ in kinds}
        size = {k: sum(b for _, kind, _, b in kinds if kind == k) for _, k, _, _ in kinds}
        rows = [
            (Kind(k).name, *(f"{count.get((s, k), 0):,}" for s in stations), f"{size[k]:,}")
            for k in sorted({k for _, k, _, _ in kinds})
        ]
        heads = ("kind", *(f"sent by {s}" for s in stations), "bytes")
        return section(name, heading, drawing, table("PDUs by kind and sender", heads, rows, numbers=range(1, len(heads))))

    # Sequence diagrams

    def _stations(self) -> list[int]:
        return list(self.tables.stations)

    def _exchanges(self, name: str, heading: str, slowest: Sequence[Any]) -> str:
        wanted: list[tuple[int, int, int | None]] = [self.message] if self.message else []
        if not wanted:
            wanted = [(row.src, row.seq, row.incarnation) for row in slowest[:1]]
        wanted += [(r.src, r.seq, r.incarnation) for r in slowest[:3] if (r.src, r.seq) != wanted[0][:2]]
        parts = []
        for index, (src, seq, incarnation) in enumerate(wanted):
            rows = self.tables.message(src, seq, incarnation)
            if not rows:
                if index == 0 and self.message:
                    raise page.NoSuchMessage(f"message {src}:{seq} is in no station's order")
                continue
            target = f"message-{src}-{rows[0].incarnation}-{seq}"
            self.drawn[src, rows[0].incarnation, seq] = target
            parts.append(self._exchange(target, rows, "asked for" if self.message and not index else "among the slowest"))
        return section(name, heading, *(parts or [paragraph("No DATA PDU was seen from its transmission to level ack.")]))

    def _exchange(self, target: str, rows: Sequence[Any], why: str) -> str:
        one = rows[0]
        found = self.tables.exchange(rows)
        reached: dict[tuple[int, int], list[str]] = defaultdict(list)
        for row in rows:
            for level in LEVELS:
                if (at := row[f"{level}_at"]) is not None:
                    reached[row.station, at].append(figures.LEVEL_NAMES[level].split()[0])
        marks = [figures.Mark(station, at, ", ".join(names)) for (station, at), names in reached.items()]
        shown = figures.arrows(found, self._stations())[:150]
        title = f"DATA {one.src}:{one.seq}, {why}"
        text = (
            f"PDU {one.seq} of station {one.src}: the PDU itself, then of each station the first PDU that says that the station"
            " has it [A] and that everybody has it [P]; NAKs meanwhile. Dots: levels reached. A cross: not arrived."
        )
        return self._diagram(target, title, text, shown, marks)

    def _diagram(self, target: str, title: str, text: str, shown: Sequence[Any], marks: Sequence[Any]) -> str:
        if not shown:
            return section(f"{target}-h", title, paragraph("The captures do not show it on the wire."), level=3)
        draw, height = figures.sequence(shown, marks, self._stations())
        begin = min([a.at_ns for a in shown] + [m.at_ns for m in marks])
        lines: list[tuple[int, str, str]] = [
            (
                a.at_ns,
                a.label,
                f"station {a.sender} to {a.receiver}, "
                + ("lost" if a.until_ns is None else f"{(a.until_ns - a.at_ns) / 1e6:.3f} ms"),
            )
            for a in shown
        ]
        lines += [(m.at_ns, m.text, f"at station {m.station}") for m in marks]
        rows = [(self._when(at), f"{(at - begin) / 1e6:.3f}", what, where) for at, what, where in sorted(lines)]
        return section(
            f"{target}-h", title, plots.figure(draw, target, title, text, height),
            page.details("The same as a list", table(title, ("at, s", "ms", "what", "where"), rows, numbers=(1,))), level=3,
        )  # fmt: skip

    def _change(self, name: str, heading: str, views: Sequence[Any], resets: Sequence[Any]) -> str:
        if resets:
            low, high, kinds = resets[0].at - 1_000_000, resets[0].until + 1_000_000, sorted(RESETS)
            title = f"Reset {resets[0].epoch} of instance {resets[0].instance}"
        else:
            later = sorted((v for v in views if v.at is not None and v.place_src), key=lambda v: v.at)
            if not later:
                return section(name, heading, paragraph("There was none."))
            view = later[0].view
            times = [v.at for v in later if v.view == view]
            kinds = [*sorted(PROPOSALS), Kind.RCV]
            low, high = min(times) - 600_000_000, max(times) + 1_000_000
            title = f"How instance {view} came about"
        rows = self.tables.around(low, high, kinds)
        if len({row.check for row in rows}) > 40:  # the latest are those that decided
            keep = list(dict.fromkeys(row.check for row in rows))[-40:]
            rows = [row for row in rows if row.check in set(keep)]
        shown = figures.arrows(rows, self._stations())[:150]
        return section(
            name, heading, self._diagram("change", title, "Every PDU of this agreement, as the captures show it.", shown, [])
        )

    # What stands out

    def _message_link(self, src: int, incarnation: int, seq: int) -> object:
        target = self.drawn.get((src, incarnation, seq))
        return link(target, f"{src}:{seq}") if target else f"{src}:{seq}"

    def _anomalies(self, name: str, heading: str, slowest: Sequence[Any], again: Sequence[Any]) -> str:
        slow = [
            (
                self._message_link(r.src, r.incarnation, r.seq), self._when(r.at), *(_ms(r[level]) for level in LEVELS),
                r.messages, r.copies,
            )
            for r in slowest
        ]  # fmt: skip
        often = [
            (
                self._message_link(r.src, r.incarnation, r.seq), Kind(r.kind).name, self._when(r.at), r.times, r.others,
                r.received, _ms(r.until - r.at) if r.at is not None else None,
            )
            for r in again
        ]  # fmt: skip
        quiet = [
            (s, self._when(at), f"{gap / 1e6:.3f}", link("fig-members", "time line")) for s, at, gap in self.tables.silences()
        ]
        holes = [
            (s, self._when(at), f"{gap / 1e6:.3f}", link("fig-throughput", "throughput"))
            for s, at, gap in self.tables.capture_gaps()
        ]
        paths = {f.file: f.path for f in self.tables.files()}
        bad = [
            (r.station, Problem(r.problem).name.lower(), f"{r.n:,}", self._when(r.one["at"]),
             f"frame {r.one.frame} at byte {r.one.offset} of {Path(paths.get(r.one.file, '?')).name}")
            for r in self.tables.bad_frames()
        ]  # fmt: skip
        noticed = [
            (r.station, FINDINGS[Finding(r.what)], f"{r.n:,}", f"{r.one.src}:{r.one.seq}", self._when(r.one["at"]),
             f"frame {r.one.frame} of {Path(paths.get(r.one.file, '?')).name}")
            for r in self.tables.findings()
        ]  # fmt: skip
        return section(
            name, heading,
            table("Slowest DATA PDUs, at their source", ("PDU", "sent at, s", "ordered, ms", "preack, ms", "ack, ms", "messages",
                  "times sent"), slow, numbers=(1, 2, 3, 4, 5, 6)),
            table("PDUs sent most often", ("PDU", "kind", "first at, s", "times sent", "by others", "received", "over ms"), often,
                  numbers=(2, 3, 4, 5, 6)),
            table("Longest silences of a station", ("station", "from, s", "ms", "see"), quiet, numbers=(1, 2)),
            table("Longest pauses of a capture", ("station", "from, s", "ms", "see"), holes, numbers=(1, 2)),
            table("Damaged frames", ("station", "what", "frames", "first at, s", "which"), bad, numbers=(2, 3)),
            table("Noticed in the replay", ("station", "what", "times", "first of", "at, s", "where"), noticed, numbers=(2, 4)),
        )  # fmt: skip

    def _captures(self, name: str, heading: str) -> str:
        rows = []
        for f in self.tables.files():
            clock = self.tables.clocks.get(f.station, Clock())
            offset = (
                "unknown" if clock.uncertainty_ns is None else f"{_duration(clock.offset_ns)} ± {_duration(clock.uncertainty_ns)}"
            )
            state = f.problem or (f"cut: {f.tail_bytes} bytes behind the last record" if f.truncated else "whole")
            rows.append(
                (f.station, Path(f.path).name, f.format, f"{f.frames:,}", f"{f.bytes:,}", self._when(_minus(f.first_ns, clock)),
                 self._when(_minus(f.last_ns, clock)), state, offset)
            )  # fmt: skip
        heads = ("station", "file", "format", "frames", "bytes", "from, s", "to, s", "state", "its clock is ahead by")
        return section(name, heading, table("Capture files", heads, rows, numbers=(3, 4, 5, 6)))


def _minus(time_ns: int | None, clock: Clock) -> int | None:
    return None if time_ns is None else clock.common(time_ns)


def _utc(time_ns: int) -> str:
    whole = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    return f"{whole:%Y-%m-%d %H:%M:%S}.{time_ns % 1_000_000_000:09d} UTC"


def _ms(duration_ns: int | None) -> str | None:
    return None if duration_ns is None else f"{duration_ns / 1e6:.3f}"


def _duration(ns: int) -> str:
    for unit, name in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")):
        if abs(ns) >= unit:
            return f"{ns / unit:.4g} {name}"
    return f"{ns} ns"


def _place(clock: int | None, source: int | None) -> str | None:
    if clock is None:
        return None
    return f"({clock}, {source})" if source else "the beginning"


def _bits(bitmap: int | None) -> str | None:
    if bitmap is None:
        return None
    return ", ".join(str(j + 1) for j in range(64) if bitmap >> j & 1) or "none"


def _opinion(state: int, trans: int) -> str:
    said = [(j, peer_state(state, trans, j)) for j in range(1, 65)]
    return ", ".join(f"{j}: {what}" for j, what in said if what != "A") or "nobody"


__all__ = ["Frames", "Report", "Verdict"]
