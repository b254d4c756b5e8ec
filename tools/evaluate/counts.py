"""The papers' numbers, counted by Spark from captures of labs (experiments.py): what ``zenjun evaluate all`` writes down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final

from ...proto.wire import PROPOSALS, Kind, MessageType
from ..pcap.report.summary import LEVELS, STEPS, Tables, peer_state
from ..pcap.tables import schema
from .experiments import Phase, Run

STOP_BUCKET_NS: Final = 10_000_000
QUANTILES: Final = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one message has cost on a bus until all had said that they know all to have it, and to the silence after that."""

    cluster: int
    number: int
    """Which DATA PDU of its capture, from 1."""
    pdus: int
    rounds: int
    """Longest chain of PDUs each of which is its source's first to cover the one before."""
    complete: bool
    """Everybody knows in the end; nobody before everybody had said so; nothing but one DATA and CONFIRMs."""


def exchanges(spark: Any, pdus: Any) -> list[Exchange]:
    """Count the lone messages in an onlooker's captures (``pdus``: rows of that table, several clusters), by cluster and time.

    A DATA PDU is round 1. The first PDU of another station whose A covers it is round 2 (the source covers it by itself), and a
    station's first PDU whose P covers it is one round after the last of the others' that it had to see for that.
    """
    pdus.createOrReplaceTempView("seen")
    rows = spark.sql(f"""
        WITH numbered AS (
            SELECT *, sum(IF(kind = {int(Kind.DATA)}, 1, 0)) OVER (PARTITION BY cluster ORDER BY file, frame) AS number
            FROM seen),
        data AS (SELECT cluster, number, src AS source, seq AS place, n FROM numbered WHERE kind = {int(Kind.DATA)}),
        said AS (
            SELECT x.cluster, x.number, d.n, d.source, x.src, x.frame, x.kind,
                   x.kind <> {int(Kind.DATA)} AND x.ack[d.source - 1] > d.place AS covers,
                   x.pack IS NOT NULL AND x.pack[d.source - 1] > d.place AS knows
            FROM numbered x JOIN data d ON x.cluster = d.cluster AND x.number = d.number),
        speakers AS (
            SELECT cluster, number, n, source, src, count(*) AS pdus,
                   count_if(kind NOT IN ({int(Kind.DATA)}, {int(Kind.CONFIRM)})) AS strange,
                   IF(src = source, 1, 2) AS round_covers,
                   IF(src = source, min(frame), min(IF(covers, frame, NULL))) AS first_covers,
                   min(IF(knows, frame, NULL)) AS first_knows
            FROM said GROUP BY cluster, number, n, source, src),
        knowing AS (
            SELECT a.cluster, a.number, a.n, a.src, first(a.pdus) AS pdus, first(a.strange) AS strange,
                   first(a.first_knows) AS knows,
                   first(a.round_covers) AS own, 1 + max(b.round_covers) AS round_knows,
                   count_if(b.first_covers < a.first_knows) AS others
            FROM speakers a JOIN speakers b ON a.cluster = b.cluster AND a.number = b.number AND a.src <> b.src
            GROUP BY a.cluster, a.number, a.n, a.src)
        SELECT cluster, number, sum(pdus) AS pdus, max(greatest(own, round_knows)) AS rounds,
               count(knows) = first(n) AND min(others) = first(n) - 1 AND sum(strange) = 0 AS complete
        FROM knowing GROUP BY cluster, number ORDER BY cluster, number
    """).collect()
    return [Exchange(r.cluster, int(r.number), int(r.pdus), int(r.rounds), bool(r.complete)) for r in rows]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one phase of a run has cost: frames of all stations, from its begin to its end."""

    run: Run
    phase: Phase
    messages: int
    """Of programs, each counted once."""
    data: int
    """DATA PDUs, each counted once."""
    repeated: int
    """Their further transmissions, by whomever."""
    confirms: int
    other: int
    wire_bytes: int
    """Of all frames."""
    expected: int
    """Receipts there should have been, of all PDUs at all stations."""
    lost: int
    latencies: dict[str, tuple[float, ...]]
    """Level → ms at 0, 1/STEPS … 1 of the DATA PDUs, at the source, from the first transmission."""
    kept: int
    """High-water mark over the stations: PDUs accepted and not yet known to be everywhere (level preack)."""
    kept_ack: int
    """The same until level ack."""

    @property
    def control_per_data(self) -> float:
        """Control PDUs for each DATA PDU."""
        return (self.confirms + self.other) / self.data if self.data else 0.0

    def latency_ms(self, level: str, share: float) -> float | None:
        """Quantile, ms."""
        found = self.latencies.get(level)
        return None if found is None else found[round(share * STEPS)]


def costs(spark: Any, runs: Sequence[tuple[Run, Path]]) -> list[Cost]:
    """Count all phases of all runs, each with the folder of its tables, in their order.

    All runs go through each query together: what a query costs beside its rows is paid once. Captures must be of one clock, and
    there must be one of each station.
    """
    session = spark.newSession()
    for name in ("pdus", "order", "messages", "transmissions"):
        parts = [schema.read(session, folder, name).selectExpr(f"{i} AS run", "*") for i, (_, folder) in enumerate(runs)]
        reduce(lambda a, b: a.unionByName(b), parts).createOrReplaceTempView(name)
    places = [(i, k, phase) for i, (run, _) in enumerate(runs) for k, phase in enumerate(run.phases)]
    values = ", ".join(f"({i}, {k}, {runs[i][0].stations}, {p.begin_ns}L, {p.end_ns}L)" for i, k, p in places)
    session.sql(f"SELECT * FROM VALUES {values} AS t(run, phase, n, a, b)").createOrReplaceTempView("phases")
    sent, messages, losses, times = (
        {(r.run, r.phase): r for r in session.sql(query).collect()} for query in (_SENT, _MESSAGES, _LOST, _LATENCIES)
    )
    kept = {level: {(r.run, r.phase): r.kept for r in session.sql(_kept(level)).collect()} for level in ("preack", "acked")}
    out = []
    for i, k, phase in places:
        key = (i, k)
        if key not in sent:
            continue
        s, lost = sent[key], losses.get(key)
        found = {name: tuple(q / 1e6 for q in times[key][name]) for name in LEVELS if key in times and times[key][name]}
        out.append(
            Cost(
                runs[i][0], phase, messages[key].n if key in messages else 0, s.once, s.data - s.once, s.confirms,
                s.other, s.bytes,
                int(lost.expected) if lost else 0, int(lost.lost) if lost else 0, found,
                int(kept["preack"].get(key, 0)), int(kept["acked"].get(key, 0)),
            )
        )  # fmt: skip
    return out


_DATA, _CONFIRM = int(Kind.DATA), int(Kind.CONFIRM)
_SENT: Final = f"""
    SELECT run, phase, count_if(kind = {_DATA}) AS data, count_if(kind = {_CONFIRM}) AS confirms,
           count_if(kind NOT IN ({_DATA}, {_CONFIRM})) AS other, sum(wire) AS bytes,
           count(DISTINCT IF(kind = {_DATA}, struct(src, incarnation, seq), NULL)) AS once
    FROM pdus JOIN phases USING (run) WHERE direction = 2 AND time_ns BETWEEN a AND b GROUP BY run, phase
"""
_MESSAGES: Final = f"""
    SELECT run, phase, count(*) AS n FROM messages m JOIN `order` o USING (run, station, src, incarnation, seq)
    JOIN phases USING (run) WHERE station = src AND type = {int(MessageType.USER)} AND sent_ns BETWEEN a AND b GROUP BY run, phase
"""
# Of each PDU, every other station should have received what all others sent of it; who has no row of it has received nothing.
_LOST: Final = """
    SELECT run, phase, sum(total * (n - 1) - aggregate(others, 0L, (sum, o) -> sum + o.sent)) AS expected,
           sum(aggregate(others, 0L, (sum, o) -> sum + greatest(0L, total - o.sent - o.received))
               + (n - 1 - size(others)) * total) AS lost
    FROM (SELECT run, src, kind, incarnation, seq, check, sum(sent) AS total, min(first_ns) AS at,
                 collect_list(IF(station <> src, struct(sent, received), NULL)) AS others
          FROM (SELECT run, station, src, kind, incarnation, seq, check, sum(sent) AS sent, sum(received) AS received,
                       min(first_ns) AS first_ns FROM transmissions GROUP BY run, station, src, kind, incarnation, seq, check)
          GROUP BY run, src, kind, incarnation, seq, check)
    JOIN phases USING (run) WHERE total > 0 AND at BETWEEN a AND b GROUP BY run, phase
"""
_SHARES: Final = f"array({', '.join(f'{i / STEPS:g}D' for i in range(STEPS + 1))})"
_LATENCIES: Final = f"""
    SELECT run, phase, {", ".join(f"percentile({name}_ns - sent_ns, {_SHARES}) AS {name}" for name in LEVELS)}
    FROM `order` JOIN phases USING (run) WHERE station = src AND kind = {_DATA} AND sent_ns BETWEEN a AND b GROUP BY run, phase
"""


def _kept(level: str) -> str:
    """SQL: greatest running sum over +1 at acceptance and -1 at the level."""
    rows = f"FROM `order` WHERE accepted_ns IS NOT NULL AND {level}_ns IS NOT NULL"
    return f"""
        WITH steps AS (SELECT run, station, accepted_ns AS at, 1 AS step {rows} UNION ALL
                       SELECT run, station, {level}_ns, -1 {rows}),
        sums AS (SELECT run, at, sum(step) OVER (PARTITION BY run, station ORDER BY at, step) AS kept FROM steps)
        SELECT run, phase, max(kept) AS kept FROM sums JOIN phases USING (run) WHERE at BETWEEN a AND b GROUP BY run, phase
    """


@dataclass(frozen=True, slots=True)
class Stop:
    """A station's death and return, seconds since the last frame of its first life."""

    data: dict[int, tuple[tuple[float, int], ...]]
    """Surviving station → (begin of 10 ms, DATA PDUs it sent first there)."""
    events: tuple[tuple[float, str], ...]
    """What happened when, by time."""
    bitmaps: tuple[tuple[float, int, str, str, str], ...]
    """(time, station, STATE, TRANS, peer states) of each change that a survivor announced, bits of station 1 first."""
    usual: float
    """DATA PDUs of all survivors in 10 ms, mean before the death."""
    agreeing: float
    """The same from the death until the last survivor is in the instance without the station."""
    without: float
    """The same from then until the station is back."""
    longest_ms: float
    """Longest time without any DATA PDU of a survivor between death and return."""
    safe_ms: float
    """Longest time in which nothing became safe (level preack) at a survivor meanwhile."""


def stop(tables: Tables, run: Run, victim: int) -> Stop:
    """Data transfer around the stop and the recovery of a station. LookupError if the captures do not show both."""
    lives = tables.sql(f"""
        SELECT incarnation, min(at) AS first, max(at) AS last FROM sent WHERE sender = {victim} AND src = {victim}
        GROUP BY incarnation ORDER BY first
    """)
    views = tables.sql(f"SELECT station, view, time_ns AS at, members FROM views WHERE station <> {victim} ORDER BY time_ns")
    bit = 1 << victim - 1
    without = [v for v in views if v.members is not None and not v.members & bit]
    if not without:
        raise LookupError(f"no view event without station {victim}")
    died = max(life.last for life in lives if life.last < without[-1].at)
    again = [v for v in views if v.members is not None and v.members & bit and v.at > without[-1].at]
    if not again:
        raise LookupError(f"station {victim} does not come back")
    back = max(v.at for v in again)
    own = f"kind = {int(Kind.DATA)} AND sender = src"
    first = f"SELECT sender, min(at) AS at FROM sent WHERE {own} GROUP BY sender, src, incarnation, seq"
    begin, end = run.phases[0].begin_ns, run.phases[0].end_ns
    rows = tables.sql(f"""
        SELECT sender, CAST(floor((at - {died}L) / {STOP_BUCKET_NS}) AS INT) AS bucket, count(*) AS n FROM ({first})
        WHERE sender <> {victim} GROUP BY 1, 2 ORDER BY 1, 2
    """)
    counted: dict[int, dict[int, int]] = defaultdict(dict)
    for r in rows:
        counted[r.sender][r.bucket] = r.n
    low, high = (begin - died) // STOP_BUCKET_NS + 1, min(end - died, back - died + 500_000_000) // STOP_BUCKET_NS
    data = {s: tuple((b * STOP_BUCKET_NS / 1e9, by.get(b, 0)) for b in range(low, high)) for s, by in sorted(counted.items())}
    sums = [sum(by.get(b, 0) for by in counted.values()) for b in range(low, high)]
    agreed = (max(v.at for v in without) - died) // STOP_BUCKET_NS - low
    returned = (back - died) // STOP_BUCKET_NS - low
    return Stop(
        data,
        tuple(_events(tables, died, back, victim, lives, without, again)),
        tuple(_bitmaps(tables, died, back, victim, run.stations)),
        _mean(sums[:-low]), _mean(sums[-low:agreed]), _mean(sums[agreed:returned]),
        _longest(tables, f"SELECT at FROM ({first}) WHERE sender <> {victim}", died, back),
        _longest(tables, f"SELECT preack_ns AS at FROM `order` WHERE station <> {victim} AND preack_ns IS NOT NULL", died, back),
    )  # fmt: skip


def _mean(values: Sequence[int]) -> float:
    return sum(values) / max(1, len(values))


def _longest(tables: Tables, times: str, low: int, high: int) -> float:
    (row,) = tables.sql(f"""
        SELECT max(gap) AS gap FROM (
            SELECT at - lag(at) OVER (ORDER BY at) AS gap FROM ({times}) WHERE at BETWEEN {low} AND {high})
    """)
    return float(row.gap or 0) / 1e6


def _events(
    tables: Tables, died: int, back: int, victim: int, lives: Sequence[Any], without: Sequence[Any], again: Sequence[Any]
) -> list[tuple[float, str]]:
    votes = ", ".join(str(int(k)) for k in sorted(PROPOSALS))
    rows = tables.sql(f"""
        SELECT kind, src, min(time_ns) AS at FROM control
        WHERE direction = 2 AND kind IN ({votes}, {int(Kind.RCV)}) AND time_ns BETWEEN {died} AND {back} GROUP BY kind, src
    """)
    out = [(r.at, f"first {Kind(r.kind).name} of station {r.src}") for r in rows]
    out.append((died, f"last frame of station {victim}"))
    out += [(life.first, f"first frame of station {victim} again") for life in lives if life.first > died]
    for found, what in ((without, f"without station {victim}"), (again, f"with station {victim} again")):
        seen: set[int] = set()
        for v in found:
            if v.station not in seen:
                seen.add(v.station)
                out.append((v.at, f"station {v.station} is in instance {v.view}, {what}"))
    return [((at - died) / 1e9, words) for at, words in sorted(out)]


def _bitmaps(tables: Tables, died: int, back: int, victim: int, n: int) -> list[tuple[float, int, str, str, str]]:
    rows = tables.sql(f"""
        SELECT src, time_ns AS at, state, trans FROM instances
        WHERE station = src AND src <> {victim} AND state IS NOT NULL AND time_ns BETWEEN {died} AND {back + 50_000_000}
        ORDER BY time_ns, src LIMIT 100
    """)
    out: list[tuple[float, int, str, str, str]] = []
    last: dict[int, tuple[int, int]] = {}
    for r in rows:
        if last.get(r.src) != (r.state, r.trans):
            last[r.src] = (r.state, r.trans)
            states = " ".join(peer_state(r.state, r.trans, j) for j in range(1, n + 1))
            out.append(((r.at - died) / 1e9, r.src, _bits(r.state, n), _bits(r.trans, n), states))
    return out


def _bits(bitmap: int, n: int) -> str:
    return "".join(str(bitmap >> j & 1) for j in range(n))


__all__ = ["Cost", "Exchange", "Stop", "costs", "exchanges", "stop"]
