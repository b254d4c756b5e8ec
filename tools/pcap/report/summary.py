"""What the report shows, taken out of the tables by Spark SQL: every answer is bounded, however large the captures are.

Time is cut into at most ``BUCKETS`` pieces, distributions into ``STEPS`` quantiles, lists into ``ROWS`` rows. Times of different
machines are brought to one clock by the offsets given; all others stay as captured.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ....proto.wire import SEQUENCED, Flag, Kind
from ..frames.problem import Problem
from ..tables import schema

BUCKETS: Final = 240
STEPS: Final = 200
ROWS: Final = 10
EVENTS: Final = 4000
"""Rows of a time line that are drawn at most; the report mentions it when there are more."""
SILENCE_PIECES: Final = 20_000
PIECES: Final = 16
"""Straight lines that a drifting clock is made of."""
LEVELS: Final = ("ordered", "preack", "acked")
_SEQUENCED: Final = ", ".join(str(int(k)) for k in sorted(SEQUENCED))
_SMALL_BYTES: Final = 64 << 20
_SMALL: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""Little data is counted before code for it would have been compiled: half the processor time."""
_PEER_STATES: Final = {(0, 0): "A", (1, 1): "AS", (1, 0): "S", (0, 1): "SA"}


@dataclass(frozen=True, slots=True)
class Piece:
    """From ``begin_ns`` of its own time on, a clock is ``offset_ns`` ahead of the common one, and gains ``ppm`` on it."""

    begin_ns: int
    offset_ns: int
    ppm: float = 0.0


@dataclass(frozen=True, slots=True)
class Clock:
    """How a station's capture clock differs from the common one, by pieces in order; none: not at all, or unknown."""

    pieces: tuple[Piece, ...] = ()
    uncertainty_ns: int | None = 0
    """Possible error of that, at the times of 95 of 100 PDUs; None: unknown."""
    worst_ns: int = 0
    """The same at all times."""

    @property
    def offset_ns(self) -> int:
        """In the beginning."""
        return self.pieces[0].offset_ns if self.pieces else 0

    def common(self, time_ns: int) -> int:
        """A time of this clock by the common one."""
        found = [piece for piece in self.pieces if piece.begin_ns <= time_ns] or list(self.pieces[:1])
        if not found:
            return time_ns
        piece = found[-1]
        return time_ns - piece.offset_ns - int((time_ns - piece.begin_ns) * piece.ppm * 1e-6)

    def sql(self, time: str) -> str:
        """SQL: how far this clock is ahead at a time of its own."""

        def one(piece: Piece) -> str:
            gain = f" + CAST(({time} - {piece.begin_ns}L) * {piece.ppm * 1e-6:.12e}D AS BIGINT)" if piece.ppm else ""
            return f"({piece.offset_ns}L{gain})"

        if len(self.pieces) < 2:
            return one(self.pieces[0]) if self.pieces else "0L"
        later = " ".join(f"WHEN {time} >= {piece.begin_ns}L THEN {one(piece)}" for piece in reversed(self.pieces[1:]))
        return f"(CASE {later} ELSE {one(self.pieces[0])} END)"


def clocks_of(estimate: Any, spans: Mapping[int, tuple[int, int]]) -> dict[int, Clock]:
    """Clocks for SQL from an estimate (clocks.py): a straight line where one does, else ``PIECES`` lines, and new ones at steps.

    spans: station → first and last time of its captures.
    """
    alignment = estimate.alignment
    return {
        station: _clock(alignment, station, span, estimate.marks[station].times_ns)
        if station in alignment.stations and alignment.aligned(station)
        else Clock((), None)
        for station, span in spans.items()
    }


def _clock(alignment: Any, station: int, span: tuple[int, int], times_ns: Any) -> Clock:
    import numpy as np

    first, last = span
    steps = [t + round(alignment.rough[station]) for t in alignment.breaks_ns]
    edges = sorted({first, last + 1, *(t for t in steps if first < t <= last)})
    pieces: list[Piece] = []
    for low, high in itertools.pairwise(edges):
        knots = np.linspace(low, high - 1, PIECES + 1).astype(np.int64)
        offsets, unsure = alignment.offset_ns(station, knots), alignment.uncertainty_ns(station, knots)
        # One line through the places that are known best, if it is nowhere outside of what is possible.
        third = PIECES // 3
        i, j = int(np.argmin(unsure[: third + 1])), PIECES - int(np.argmin(unsure[::-1][: third + 1]))
        slope = float(offsets[j] - offsets[i]) / max(1, int(knots[j] - knots[i]))
        line = offsets[i] + slope * (knots - knots[i]).astype(np.float64)
        if bool(np.all(np.abs(offsets - line) <= unsure)):
            pieces.append(Piece(low, round(float(line[0])), slope * 1e6))
            continue
        for a, b in itertools.pairwise(range(PIECES + 1)):
            width = max(1, int(knots[b] - knots[a]))
            pieces.append(Piece(int(knots[a]), round(float(offsets[a])), float(offsets[b] - offsets[a]) / width * 1e6))
    made = Clock(tuple(pieces))
    sample = times_ns[:: max(1, len(times_ns) // 4000)]
    used = np.array([t - made.common(int(t)) for t in sample], dtype=np.float64)
    wrong = np.abs(used - alignment.offset_ns(station, sample)) + alignment.uncertainty_ns(station, sample)
    return Clock(made.pieces, round(float(np.quantile(wrong, 0.95))), round(float(np.max(wrong))))


@dataclass(frozen=True, slots=True)
class Span:
    """Of the PDUs' times, brought to one clock. ``bucket_ns``: width of one piece of it."""

    first_ns: int
    last_ns: int
    pdus: int
    bucket_ns: int

    def seconds(self, time_ns: float) -> float:
        """Since the beginning."""
        return (time_ns - self.first_ns) / 1e9

    def bucket_seconds(self, bucket: int) -> float:
        """Beginning of a bucket."""
        return bucket * self.bucket_ns / 1e9


def bucket_for(span_ns: int, most: int = BUCKETS) -> int:
    """A round width, ns, of which at most ``most`` cover the span."""
    least = max(1, math.ceil(span_ns / most))
    scale = 10 ** int(math.log10(least))
    return int(next(scale * step for step in (1, 2, 5, 10) if scale * step >= least))


@dataclass(frozen=True, slots=True)
class Distribution:
    """Quantiles 0, 1/STEPS … 1 of a latency in ns."""

    count: int
    quantiles: tuple[int, ...]

    def at(self, share: float) -> int:
        """Quantile, ns."""
        return self.quantiles[min(len(self.quantiles) - 1, round(share * (len(self.quantiles) - 1)))]


@dataclass(slots=True)
class Tables:
    """The tables of one folder in one session, with the clocks of the stations, as SQL views of their own names."""

    spark: Any
    folder: Path
    clocks: Mapping[int, Clock] = field(default_factory=dict)
    stations: tuple[int, ...] = field(default=(), init=False)
    """That have captured."""
    span: Span = field(default=Span(0, 0, 0, 1), init=False)

    def __post_init__(self) -> None:
        self.spark = self.spark.newSession()  # the names of the views are this one's own
        if sum(path.stat().st_size for path in Path(self.folder).rglob("*.parquet")) < _SMALL_BYTES:
            for key, value in _SMALL.items():
                self.spark.conf.set(key, value)
        for name in schema.TABLES:
            schema.read(self.spark, self.folder, name).createOrReplaceTempView(name)
        self.stations = tuple(
            sorted(row.station for row in self.sql("SELECT DISTINCT station FROM files WHERE problem IS NULL OR frames > 0"))
        )
        self._views()

    def sql(self, query: str) -> list[Any]:
        """The rows of a query, which must be few."""
        rows: list[Any] = self.spark.sql(query).collect()
        return rows

    def _views(self) -> None:
        captured = ", ".join(map(str, self.stations)) or "0"
        first = min(self.stations, default=0)
        # A transmission is known from the direction; from captures that have none, by who is the source. Of stations without a
        # capture, the first capture shows what arrived.
        self.spark.sql(f"""
            SELECT *, {self.at("station", "time_ns")} AS at,
                   CASE WHEN direction = 2 THEN station ELSE src END AS sender
            FROM pdus
            WHERE direction = 2 OR (direction = 0 AND station = src)
               OR (station = {first} AND direction <> 2 AND src NOT IN ({captured}))
        """).createOrReplaceTempView("sent")
        row = self.sql(
            f"SELECT min({self.at('station', 'time_ns')}) a, max({self.at('station', 'time_ns')}) b, count(*) n FROM pdus"
        )[0]
        low, high = row.a or 0, row.b or 0
        self.span = Span(low, high, row.n, bucket_for(high - low + 1))

    def bucket(self, time: str) -> str:
        """SQL: number of the piece of time; ``time`` is on the common clock."""
        return f"CAST(floor(({time} - {self.span.first_ns}L) / {self.span.bucket_ns}) AS INT)"

    def at(self, station: str, time: str) -> str:
        """SQL: a station's time on the common clock."""
        known = [
            (number, clock) for number, clock in sorted(self.clocks.items()) if any(p.offset_ns or p.ppm for p in clock.pieces)
        ]
        if not known:
            return time
        cases = " ".join(f"WHEN {number} THEN {clock.sql(time)}" for number, clock in known)
        return f"({time} - CASE {station} {cases} ELSE 0L END)"

    # What was on the wire

    def files(self) -> list[Any]:
        """All captures."""
        return self.sql("SELECT * FROM files ORDER BY station, first_ns, file")

    def kinds(self) -> list[tuple[int, int, int, int]]:
        """(sender, kind, PDUs, bytes on the wire)."""
        rows = self.sql("SELECT sender, kind, count(*) n, sum(wire) b FROM sent GROUP BY sender, kind ORDER BY sender, kind")
        return [(r.sender, r.kind, r.n, r.b) for r in rows]

    def rates(self) -> list[tuple[int, int, str, int, int]]:
        """(bucket, sender, class, PDUs, bytes); class: data, confirm, other."""
        rows = self.sql(f"""
            SELECT {self.bucket("at")} b, sender,
                   CASE kind WHEN {int(Kind.DATA)} THEN 'data' WHEN {int(Kind.CONFIRM)} THEN 'confirm' ELSE 'other' END class,
                   count(*) n, sum(wire) bytes
            FROM sent WHERE at IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
        """)
        return [(r.b, r.sender, r["class"], r.n, r.bytes) for r in rows]

    def delivered(self) -> list[tuple[int, int, int, int]]:
        """(bucket, station, PDUs, payload bytes) that became safe (level preack) there."""
        rows = self.sql(f"""
            SELECT {self.bucket(self.at("station", "preack_ns"))} b, station, sum(messages) n, sum(bytes) bytes
            FROM `order` WHERE preack_ns IS NOT NULL AND kind = {int(Kind.DATA)} GROUP BY 1, 2 ORDER BY 1, 2
        """)
        return [(r.b, r.station, r.n, r.bytes) for r in rows]

    def _sums(self) -> None:
        """View ``moved``: one row per PDU, with what each station sent and received of it."""
        self.spark.sql(f"""
            SELECT src, kind, incarnation, seq, check, min(at) at, sum(sent) sent, sum(IF(station = src, sent, 0)) own,
                   map_from_entries(collect_list(struct(station, struct(sent, received)))) who
            FROM (SELECT station, src, kind, incarnation, seq, check, sum(sent) sent, sum(received) received,
                         min({self.at("station", "first_ns")}) at
                  FROM transmissions GROUP BY station, src, kind, incarnation, seq, check)
            GROUP BY src, kind, incarnation, seq, check
        """).createOrReplaceTempView("moved")

    def losses(self) -> list[tuple[int, int, int, int]]:
        """(bucket, station, expected, lost): frames other stations sent while the capture ran that did not get there.

        What is still under way at either end of a capture is left out: its first and last 10 ms.
        """
        if len(self.stations) < 2:
            return []
        self._sums()
        covered = ", ".join(
            f"({r.station}, {r.a}L, {r.b}L)"
            for r in self.sql(
                f"SELECT station, min({self.at('station', 'first_ns')}) a, max({self.at('station', 'last_ns')}) b"
                " FROM files WHERE first_ns IS NOT NULL GROUP BY station"
            )
        )
        if not covered:
            return []
        rows = self.sql(f"""
            SELECT {self.bucket("at")} b, c.station, sum(sent - coalesce(who[c.station].sent, 0)) expected,
                   sum(greatest(0, sent - coalesce(who[c.station].sent, 0) - coalesce(who[c.station].received, 0))) lost
            FROM moved JOIN (SELECT * FROM VALUES {covered} AS t(station, a, b)) c
                 ON at BETWEEN c.a + 10000000 AND c.b - 10000000 AND src <> c.station
            WHERE sent > 0 GROUP BY 1, 2 ORDER BY 1, 2
        """)
        return [(r.b, r.station, r.expected, r.lost) for r in rows]

    def retransmissions(self) -> list[tuple[int, int, int, int]]:
        """(bucket of the first transmission, source, again by the source, by other stations), of PDUs of the streams."""
        rows = self.sql(f"""
            SELECT {self.bucket("at")} b, src, sum(greatest(0, own - 1)) own, sum(other) other FROM (
                SELECT src, min({self.at("station", "first_ns")}) at, sum(IF(station = src, sent, 0)) own,
                       sum(IF(station <> src, sent, 0)) other
                FROM transmissions WHERE kind IN ({_SEQUENCED}) GROUP BY src, kind, incarnation, seq, check)
            WHERE own > 1 OR other > 0 GROUP BY 1, 2 ORDER BY 1, 2
        """)
        return [(r.b, r.src, r.own, r.other) for r in rows]

    # Latencies

    def _quantiles(self, rows: Iterable[Any]) -> dict[tuple[int, str], Distribution]:
        return {
            (r["station"], name): Distribution(r[f"n_{name}"], tuple(r[name]))
            for r in (row.asDict() for row in rows)
            for name in ("seen", *LEVELS)
            if r.get(f"n_{name}")
        }

    def own_latencies(self) -> dict[tuple[int, str], Distribution]:
        """(station, level): from its first transmission of an own DATA PDU to that level there; one clock. Station 0: all."""
        shares = _shares()
        columns = ", ".join(
            f"approx_percentile({name}_ns - sent_ns, {shares}, 2000) {name}, count({name}_ns - sent_ns) n_{name}"
            for name in LEVELS
        )
        return self._quantiles(
            self.sql(f"""
                SELECT coalesce(station, 0) station, {columns} FROM order
                WHERE station = src AND sent_ns IS NOT NULL AND kind = {int(Kind.DATA)}
                GROUP BY ROLLUP(station) ORDER BY 1
            """)
        )

    def cross_latencies(self) -> dict[tuple[int, str], Distribution]:
        """(station, level): from the first transmission at the source to arrival (``seen``) and each level at another station."""
        shares = _shares()
        start = self.at("o.station", "o.sent_ns")
        columns = ", ".join(
            f"approx_percentile({self.at('r.station', f'r.{name}_ns')} - {start}, {shares}, 2000) {name},"
            f" count(r.{name}_ns) n_{name}"
            for name in ("seen", *LEVELS)
        )
        return self._quantiles(
            self.sql(f"""
                SELECT coalesce(r.station, 0) station, {columns} FROM `order` r JOIN `order` o
                     ON o.station = r.src AND o.src = r.src AND o.incarnation = r.incarnation AND o.seq = r.seq
                WHERE r.station <> r.src AND o.sent_ns IS NOT NULL AND r.kind = {int(Kind.DATA)}
                GROUP BY ROLLUP(r.station) ORDER BY 1
            """)
        )

    # Who was a member, and who thought so

    def views(self) -> list[Any]:
        """View events, at most ``EVENTS``."""
        return self.sql(
            f"SELECT *, {self.at('station', 'time_ns')} AS at FROM views ORDER BY time_ns, view, station LIMIT {EVENTS}"
        )

    def instances(self) -> list[Any]:
        """Changes of each station's reports of itself and the others, as the best capture of it shows: its own, or the first."""
        captured = ", ".join(map(str, self.stations)) or "0"
        first = min(self.stations, default=0)
        return self.sql(f"""
            SELECT src, {self.at("station", "time_ns")} AS at, incarnation, instance, state, trans, flags FROM instances
            WHERE time_ns IS NOT NULL AND (station = src OR (station = {first} AND src NOT IN ({captured})))
            ORDER BY at, src LIMIT {EVENTS}
        """)

    def resets(self) -> list[Any]:
        """Bus: first and last frame of each reset (instance and epoch)."""
        return self.sql(f"""
            SELECT instance, proposal AS epoch, min({self.at("station", "time_ns")}) AS at,
                   max({self.at("station", "time_ns")}) AS until,
                   count(DISTINCT src) AS speakers
            FROM control WHERE kind IN ({int(Kind.RST)}, {int(Kind.RSTC)}) GROUP BY 1, 2 ORDER BY 3 LIMIT {EVENTS}
        """)

    # Anomalies

    def slowest(self, limit: int = ROWS) -> list[Any]:
        """Own DATA PDUs that took longest from their first transmission to level ack at the source."""
        return self.sql(f"""
            SELECT station, src, incarnation, seq, view, messages, bytes, copies, sent_ns, {self.at("station", "sent_ns")} AS at,
                   ordered_ns - sent_ns AS ordered, preack_ns - sent_ns AS preack, acked_ns - sent_ns AS acked
            FROM `order` WHERE station = src AND sent_ns IS NOT NULL AND acked_ns IS NOT NULL AND kind = {int(Kind.DATA)}
            ORDER BY acked DESC, src, seq LIMIT {limit}
        """)

    def most_sent(self, limit: int = ROWS) -> list[Any]:
        """PDUs of the streams that were sent most often, by whomever."""
        return self.sql(f"""
            SELECT src, incarnation, seq, kind, sum(sent) AS times, sum(IF(station = src, 0, sent)) AS others,
                   sum(received) AS received, min({self.at("station", "first_ns")}) AS at,
                   max({self.at("station", "last_ns")}) AS until
            FROM transmissions WHERE kind IN ({_SEQUENCED}) GROUP BY 1, 2, 3, 4 HAVING times > 1
            ORDER BY times DESC, src, seq LIMIT {limit}
        """)

    def silences(self, limit: int = ROWS) -> list[tuple[int, int, int]]:
        """(station, begin, length): longest times in which a station sent nothing. Exact if longer than span / 20,000."""
        return self._gaps("sent", "sender", "at", limit)

    def capture_gaps(self, limit: int = ROWS) -> list[tuple[int, int, int]]:
        """(station, begin, length): longest times without any frame in a station's captures."""
        return self._gaps(f"(SELECT station, {self.at('station', 'time_ns')} AS at FROM frames)", "station", "at", limit)

    def _gaps(self, source: str, who: str, time: str, limit: int) -> list[tuple[int, int, int]]:
        # Least and greatest time of each small piece, then neighbours: no sort of all frames, and only gaps within one piece are
        # overlooked.
        piece = max(1, -(-(self.span.last_ns - self.span.first_ns + 1) // SILENCE_PIECES))
        rows = self.sql(f"""
            SELECT who, low, gap FROM (
                SELECT who, lag(high) OVER (PARTITION BY who ORDER BY piece) AS low,
                       least - lag(high) OVER (PARTITION BY who ORDER BY piece) AS gap
                FROM (SELECT {who} AS who, floor(({time} - {self.span.first_ns}L) / {piece}) AS piece,
                             min({time}) AS least, max({time}) AS high
                      FROM {source} WHERE {time} IS NOT NULL GROUP BY 1, 2))
            WHERE gap > 0 ORDER BY gap DESC, who LIMIT {limit}
        """)
        return [(r.who, r.low, r.gap) for r in rows]

    def bad_frames(self) -> list[Any]:
        """Damaged frames by problem and station, with the first of each."""
        return self.sql(f"""
            SELECT station, problem, count(*) AS n, min_by(struct(file, frame, offset, {self.at("station", "time_ns")} AS at),
                   struct(file, frame)) AS one
            FROM frames WHERE problem NOT IN ({int(Problem.NONE)}, {int(Problem.ASIDE)})
            GROUP BY station, problem ORDER BY n DESC, station, problem LIMIT 100
        """)

    def findings(self) -> list[Any]:
        """What the replay of the captures noticed, by kind and station, with the first of each."""
        return self.sql(f"""
            SELECT station, what, count(*) AS n, sum(count) AS pdus,
                   min_by(struct(src, seq, file, frame, {self.at("station", "time_ns")} AS at), struct(file, frame)) AS one
            FROM findings GROUP BY station, what ORDER BY what, station LIMIT 200
        """)

    # One message

    def message(self, src: int, seq: int, incarnation: int | None = None) -> list[Any]:
        """Its row in the order of each station, the latest incarnation of the source first unless one is named."""
        life = "" if incarnation is None else f"AND incarnation = {incarnation}"
        rows = self.sql(f"""
            SELECT *, {", ".join(f"{self.at('station', n + '_ns')} AS {n}_at" for n in ("sent", "seen", *LEVELS))}
            FROM `order` WHERE src = {src} AND seq = {seq} {life} ORDER BY incarnation DESC, station LIMIT 1000
        """)
        return [row for row in rows if row.incarnation == rows[0].incarnation]

    def exchange(self, rows: Sequence[Any]) -> list[Any]:
        """The PDUs that brought a message (its rows in the order) through its levels, as transmissions and receipts.

        The PDU itself wherever it was sent or received; of each station the first PDU whose A covers it and the first whose P
        does; NAKs for its source meanwhile. By time, at most 400.
        """
        one = rows[0]
        times = [t for r in rows for t in (r.sent_at, r.seen_at, r.acked_at or r.preack_at or r.ordered_at) if t is not None]
        if not times:
            return []
        low, high = min(times) - 1_000_000, max(times) + 1_000_000
        covers = f"pmod({{0}}[{one.src - 1}] - {one.seq & 0xFFFFFFFF}L - 1, 4294967296L) < 2147483648L"
        own = f"kind IN ({_SEQUENCED}) AND src = {one.src} AND incarnation = {one.incarnation} AND seq = {one.seq & 0xFFFFFFFF}L"
        return self.sql(f"""
            WITH around AS (
                SELECT *, {self.at("station", "time_ns")} AS at, ({own}) AS itself FROM pdus
                WHERE {self.at("station", "time_ns")} BETWEEN {low} AND {high}),
            firsts AS (
                SELECT src, min_by(check, at) FILTER (WHERE {covers.format("ack")}) AS a,
                       min_by(check, at) FILTER (WHERE pack IS NOT NULL AND {covers.format("pack")}) AS p
                FROM around WHERE NOT itself GROUP BY src)
            SELECT x.station, x.at, x.direction, x.kind, x.flags, x.src, x.target, x.seq, x.check, x.wire, x.itself,
                   coalesce(x.check = f.a, false) AS covers, coalesce(x.check = f.p, false) AS knows
            FROM around x LEFT JOIN firsts f ON x.src = f.src
            WHERE x.itself OR x.check IN (f.a, f.p) OR (x.kind = {int(Kind.NAK)} AND x.target = {one.src})
            ORDER BY x.at, x.station LIMIT 400
        """)

    def around(self, low_ns: int, high_ns: int, kinds: Sequence[Kind], limit: int = 400) -> list[Any]:
        """PDUs of some kinds between two moments on the common clock, by time: for the diagram of a reset or a vote."""
        numbers = ", ".join(str(int(k)) for k in kinds)
        return self.sql(f"""
            SELECT station, {self.at("station", "time_ns")} AS at, direction, kind, flags, src, target, seq, check, wire,
                   false AS itself, false AS covers, false AS knows
            FROM pdus WHERE {self.at("station", "time_ns")} BETWEEN {low_ns} AND {high_ns} AND kind IN ({numbers})
            ORDER BY at, station LIMIT {limit}
        """)


def peer_state(state: int | None, trans: int | None, station: int) -> str:
    """The state that a sender keeps for a station (docs/membership.md), from the bitmaps it sent; "" if it sent none."""
    if state is None or trans is None:
        return ""
    return _PEER_STATES[(state >> station - 1 & 1, trans >> station - 1 & 1)]


def _shares() -> str:
    return f"array({', '.join(f'{i / STEPS:g}D' for i in range(STEPS + 1))})"


__all__ = ["Clock", "Distribution", "Flag", "Kind", "Span", "Tables", "peer_state"]
