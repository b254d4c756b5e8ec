"""Whether the cluster kept its guarantees, as far as the captures show it.

What stations have in common is compared by blocks (blocks.py); only blocks that differ are read, and each difference is
attributed to one guarantee. What one station's capture shows alone comes from its replay (``findings``). A capture with holes
gives no violations: what falls into a hole is left out, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ....proto import wire
from ..tables import schema
from ..tables.schema import Finding
from . import blocks, sentences
from .blocks import Place, Stream
from .evidence import Source, Where, look_up
from .judgement import (
    CAUSE,
    DIGESTS,
    DUPLICATE,
    INVENTION,
    LOSS,
    OF_LINKS,
    ORDER,
    SENDER,
    SHOWN_MAX,
    TITLES,
    VIEWS,
    FindFrames,
    Judgement,
    Verdict,
)
from .reader import SEQ_MASK, PduKey, Row, TableReader, content, key_of, spans

LOOK_MAX: Final = 200
"""Cells in which something is found to be broken; more are not read."""


class Court:
    """Brings everything together; ``judge`` is the way in."""

    def __init__(self, folder: Path, sources: dict[int, Source]) -> None:
        self.tables = TableReader(folder)
        self.sources = sources
        self.verdicts = {n: Verdict(n) for n in TITLES if n not in OF_LINKS}
        self.notes: list[str] = []
        self._told: set[tuple[str, int, int]] = set()

    # ---- what single captures show

    def judge_findings(self) -> None:
        """From the replays."""
        for row in self.tables.findings:
            what = Finding(row["what"])
            around = partial(self._around, row, key_of(row))
            if what is Finding.GAP:
                self._judge_hole(row)
            elif what is Finding.CONFLICT:
                self.verdicts[DUPLICATE].add(sentences.conflict(row), around)
            elif what in (Finding.SENDER_ORDER, Finding.PROMISE):
                self.verdicts[SENDER].add(sentences.not_beyond(row), around)
            elif what is Finding.CAUSALITY:
                self.verdicts[CAUSE].add(sentences.behind_its_effect(row), around)
            elif what is Finding.DIGEST:
                self._once(DIGESTS, row["station"], row["view"] or 0, sentences.own_digest(row), partial(_at, row))
            elif what is Finding.NEVER_SENT and not self._lost_nothing(row["station"]):
                self.notes.append(sentences.cut_end(row))
            elif what is Finding.NEVER_SENT:
                self.verdicts[INVENTION].add(sentences.acknowledged_unsent(row), partial(_at, row))
            elif what is Finding.VIEW_UNKNOWN:
                self.notes.append(sentences.unknown_view(row))
            elif what is Finding.RESUMED:
                self.notes.append(sentences.begins_within(row))
        lacking: dict[int, int] = {}
        for (station, _, _), found in self.tables.holes.items():
            lacking[station] = lacking.get(station, 0) + sum(count for _, count in found)
        for station, total in sorted(lacking.items()):
            self.notes.append(sentences.holes(station, total, station in self.tables.riddled))

    def _once(self, verdict: str, station: int, group: int, text: str, find_frames: FindFrames) -> None:
        """The first of a kind is reported, its consequences are counted."""
        if (verdict, station, group) in self._told:
            self.verdicts[verdict].more += 1
            return
        self._told.add((verdict, station, group))
        self.verdicts[verdict].add(text, find_frames)

    def _judge_hole(self, row: Row) -> None:
        """A capture that reports no losses has no holes: then the station acknowledged what never arrived."""
        if row["src"] != row["station"] and self._lost_nothing(row["station"]):
            self.verdicts[LOSS].add(sentences.acknowledged_unseen(row), partial(_at, row))

    def _lost_nothing(self, station: int) -> bool:
        """Whether a station's capture is complete and reports no drops. Between two files frames may be missing."""
        mine = [s for s in self.sources.values() if s.station == station]
        return len(mine) == 1 and mine[0].dropped == 0 and mine[0].whole

    def _around(self, finding: Row, key: PduKey) -> list[Where]:
        """The frame at which it was noticed, and how others have the PDU."""
        out = [at(finding, "noticed here")]
        for station in self.tables.stations():
            row = self.tables.find(station, key)
            if row is not None:
                out.append(at(row, f"PDU {sentences.name(key)} as station {station} has it"))
        return out

    # ---- views

    def judge_views(self) -> None:
        """The same number is the same instance, and begins at the same place."""
        by: dict[int, list[Row]] = {}
        for row in self.tables.views:
            by.setdefault(row["view"], []).append(row)
        verdict = self.verdicts[VIEWS]
        for number, rows in sorted(by.items()):
            if len({row["station"] for row in rows}) < 2:
                continue
            verdict.compared += len(rows)
            known = [row for row in rows if row["place_clock"] is not None]
            for what, among, value in (
                ("view hash", rows, lambda r: r["view_hash"]),
                ("place", known, lambda r: (r["place_clock"], r["place_src"])),
                ("members", known, lambda r: (r["members"], tuple(r["incarnations"] or ()))),
            ):
                odd = next((row for row in among if value(row) != value(among[0])), None)
                if odd is not None:
                    verdict.add(sentences.other_view(number, what, among[0], odd), partial(self._begun, among[0], odd))
                    break

    def _begun(self, *rows: Row) -> list[Where]:
        return [where for row in rows for where in self._entered(row)]

    def note_fenced(self) -> None:
        """Stations that have seen an order that is not theirs, and deliver nothing any more."""
        rows = self.tables.rows("instances", None, ds.field("flags") >= int(wire.Flag.FENCED), ("src", "instance"), 1 << 10)
        for src, instance in sorted({(row["src"], row["instance"]) for row in rows}):
            self.notes.append(sentences.fenced(src, instance))

    def _entered(self, view: Row) -> list[Where]:
        where = (ds.field("src") == view["station"]) & (ds.field("instance") == view["view"])
        rows = self.tables.rows("instances", view["station"], where, ("time_ns", "file", "frame"), 1)
        return [at(row, sentences.in_instance(view)) for row in rows]

    # ---- digests

    def judge_digests(self, spark: Any) -> None:
        """Announced between stations, and against what the captures give."""
        verdict = self.verdicts[DIGESTS]
        for path in self.tables.files("announced"):
            station = int(path.parent.name.partition("=")[2])
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group, columns=["src", "digest", "derived", "position"], use_threads=False)
                    known = table.filter(pc.is_valid(table["derived"]))
                    verdict.compared += known.num_rows
                    odd = known.filter(pc.not_equal(known["digest"], known["derived"]))
                    others = odd.filter(pc.not_equal(odd["src"], station))
                    if others.num_rows:
                        self._judge_announced(station, others.num_rows)
        for counted, position, low, high in self._contradictions(spark):
            text = sentences.two_digests(counted, position)
            self._once(DIGESTS, 0, counted, text, partial(self._speakers, counted, position, {low, high}))

    def _judge_announced(self, station: int, count: int) -> None:
        f = ds.field
        where = f("derived").is_valid() & (f("digest") != f("derived")) & (f("src") != station)
        rows = self.tables.rows("announced", station, where, most=1)
        if not rows:
            return
        row = rows[0]
        self._once(DIGESTS, station, -row["src"], sentences.other_digest(row, station), partial(_at, row))
        self.verdicts[DIGESTS].more += count - 1

    def _contradictions(self, spark: Any) -> list[tuple[int, int, int, int]]:
        """(counted, position, digest, another digest), at most a few."""
        if spark is not None:
            from pyspark.sql import functions as F

            said = schema.read(spark, self.tables.folder, "announced").where("position > 0")
            both = said.groupBy("counted", "position").agg(F.min("digest").alias("low"), F.max("digest").alias("high"))
            return [tuple(row) for row in both.where("low <> high").orderBy("counted", "position").limit(SHOWN_MAX).collect()]
        parts = [
            pq.read_table(p, columns=["counted", "position", "digest"], partitioning=None) for p in self.tables.files("announced")
        ]
        if not parts:
            return []
        both = pa.concat_tables(parts).group_by(["counted", "position"]).aggregate([("digest", "min"), ("digest", "max")])
        odd = both.filter(pc.not_equal(both["digest_min"], both["digest_max"])).sort_by(
            [("counted", "ascending"), ("position", "ascending")]
        )
        rows = odd.slice(0, SHOWN_MAX).to_pylist()
        return [(r["counted"], r["position"], r["digest_min"], r["digest_max"]) for r in rows]

    def _speakers(self, counted: int, position: int, digests: set[int]) -> list[Where]:
        f = ds.field
        rows = self.tables.rows("announced", None, (f("counted") == counted) & (f("position") == position), most=64)
        out = []
        for digest in sorted(digests):
            first = next((row for row in rows if row["digest"] == digest), None)
            if first is not None:
                out.append(at(first, f"station {first['src']} says {sentences.digest(digest)}"))
        return out

    # ---- blocks

    def compare_orders(self, spark: Any, on_done: Callable[[int, int], None] | None) -> int:
        """Orders and streams; gives the rows there are."""
        covered = spans(self.tables.views)
        found = blocks.compare(blocks.tasks(self.tables.folder), covered, spark, on_done, blocks.Holes.of(self.tables.holes))
        self.verdicts[ORDER].compared = self.verdicts[LOSS].compared = found.pairs
        self.verdicts[SENDER].compared = self.verdicts[DUPLICATE].compared = found.rows
        if self.tables.files("transmissions"):  # else the captures of these tables have not been replayed
            self.verdicts[CAUSE].compared = found.rows
        self.verdicts[INVENTION].compared = found.streams
        for station, (count, (view, clock, src)) in sorted(found.mixed.items()):
            cell = Place(view, clock - 1, clock)
            rows = [r for r in self.tables.order(station, cell) if r["src"] == src]
            self._once(SENDER, station, view, sentences.misplaced(station, clock, src), partial(_at, *rows))
            self.verdicts[SENDER].more += count - 1
        judge = blocks.Judge(covered)
        left, wrong = found.unseen, 0
        for key, stations in found.bad:
            if wrong == LOOK_MAX:
                left += 1
                continue
            before = self._broken()
            if isinstance(key, Place):
                self._look_into_place(key, judge.covering(key))
            else:
                self._look_into_stream(key, stations)
            wrong += self._broken() != before
        if left:
            self.notes.append(sentences.unread_blocks(left))
            for name in (ORDER, LOSS, DUPLICATE, INVENTION):
                self.verdicts[name].unseen = True
        return found.rows

    def _broken(self) -> int:
        return sum(len(v.violations) + v.more for v in self.verdicts.values())

    def _look_into_place(self, cell: Place, stations: Sequence[int]) -> None:
        """Put each difference in a block down to a guarantee."""
        rows = {s: {key_of(r): r for r in self.tables.order(s, cell)} for s in stations}
        everything: dict[PduKey, Row] = {}
        for mine in rows.values():
            for key, row in mine.items():
                if key not in everything or row["clock"] < everything[key]["clock"]:
                    everything[key] = row
        for key, _ in sorted(everything.items(), key=lambda item: (item[1]["clock"], item[1]["src"])):
            have = [s for s in stations if key in rows[s]]
            for s in have[1:]:
                a, b = rows[have[0]][key], rows[s][key]
                if a["clock"] != b["clock"]:
                    self._another_place(key, a, b, rows)
                elif content(a) != content(b):
                    self._once(DUPLICATE, s, cell.view, sentences.other_content(key, s, have[0]), partial(_at, a, b))
            for s in stations:
                if key in rows[s] or self.tables.in_hole(s, key):
                    continue
                promised = next((rows[h][key] for h in have if not self._undecided(rows[h][key], s)), None)
                if promised is not None:
                    self._missing(key, s, promised, rows)

    def _undecided(self, row: Row, other: int) -> bool:
        """Whether the row's station had the PDU at level `ordered` only when its instance went on without it, at *other*: what
        it then has may be lost there."""
        if row["preack_ns"] is not None:
            return False
        later = (v for v in self.tables.views if v["station"] == other and v["view"] > row["view"])
        went_on = min(later, key=lambda v: v["view"], default=None)
        if went_on is None:
            return False
        return went_on["left"] is None or went_on["place_src"] == 0 or bool(went_on["left"] >> (row["station"] - 1) & 1)

    def _another_place(self, key: PduKey, a: Row, b: Row, rows: dict[int, dict[PduKey, Row]]) -> None:
        text = sentences.other_place(key, a, b)
        self._once(ORDER, b["station"], a["view"], text, lambda: self._neighbours(a, rows) + self._neighbours(b, rows))

    def _missing(self, key: PduKey, station: int, row: Row, rows: dict[int, dict[PduKey, Row]]) -> None:
        there = self.tables.find(station, key, row["seq"])
        if there is not None:
            if there["clock"] != row["clock"] or there["view"] != row["view"]:
                self._another_place(key, row, there, rows)
            return
        if self._was_sent(key, row) is False:
            self._invented(key, row)
            return
        self._once(
            LOSS,
            station,
            row["view"],
            sentences.missing(key, station, row),
            lambda: self._neighbours(row, rows) + _near(row, station, rows.get(station, {}).values()),
        )

    def _neighbours(self, row: Row, rows: dict[int, dict[PduKey, Row]]) -> list[Where]:
        """The row's frame and those of the places before and after it, at its station."""
        all_of = sorted(rows.get(row["station"], {}).values(), key=_by_place)
        index = next((i for i, r in enumerate(all_of) if key_of(r) == key_of(row)), None)
        if index is None:
            return [at(row, f"at station {row['station']}")]
        out = []
        for i, note in ((index - 1, "the one before it"), (index, "the PDU"), (index + 1, "the one after it")):
            if 0 <= i < len(all_of):
                out.append(at(all_of[i], f"{note} at station {row['station']}"))
        return out

    # ---- invention

    def _was_sent(self, key: PduKey, row: Row) -> bool | None:
        """Whether its source sent this very PDU. None: its capture does not show it."""
        reach = self.tables.reach(key[0], key[1])
        sent = self.tables.sent(Stream(key[0], key[1], row["seq"] >> blocks.BLOCK_BITS), reach)
        return self._was_sent_among(key, row, sent, reach)

    def _was_sent_among(self, key: PduKey, row: Row, sent: dict[int, set[int]], reach: tuple[int, int] | None) -> bool | None:
        if reach is None or self.tables.in_hole(key[0], key) or self._before_its_capture(key):
            return None
        check = row["head_crc"] << 32 | row["payload_crc"]
        if key[2] in sent:
            return any(c & (1 << 64) - 1 == check for c in sent[key[2]])
        if key[2] < reach[0] & SEQ_MASK:
            return None
        if key[2] >= reach[1] & SEQ_MASK:  # only its acknowledgements show whether its capture continued
            return False if any(self._covers(f, key) for f in self._never_sent) else None
        return False

    def _before_its_capture(self, key: PduKey) -> bool:
        """Whether the source's own capture follows its stream only from a later number on: what it lacks before is no hole."""
        first = self._resumed.get((key[0], key[1]))
        return first is not None and 0 < (first - key[2]) & SEQ_MASK < 1 << 31

    @cached_property
    def _resumed(self) -> dict[tuple[int, int], int]:
        """Source, incarnation → the last number from which its own capture follows it."""
        found = (f for f in self.tables.findings if f["what"] == Finding.RESUMED and f["station"] == f["src"])
        return {(f["src"], f["incarnation"]): f["seq"] & SEQ_MASK for f in found}

    @cached_property
    def _never_sent(self) -> list[Row]:
        return [f for f in self.tables.findings if f["what"] == Finding.NEVER_SENT and self._lost_nothing(f["station"])]

    @staticmethod
    def _covers(finding: Row, key: PduKey) -> bool:
        number = (key[2] - finding["seq"]) & SEQ_MASK
        return key[:2] == (finding["src"], finding["incarnation"]) and bool(number < finding["count"])

    def _invented(self, key: PduKey, row: Row) -> None:
        self._once(INVENTION, row["station"], row["view"], sentences.invented(key, row), partial(_at, row))

    def _look_into_stream(self, stream: Stream, stations: Collection[int]) -> None:
        """Search for PDUs that are there twice, or were never sent."""
        sent: dict[int, set[int]] | None = None
        reach: tuple[int, int] | None = None
        for station in sorted(stations):
            rows = self.tables.of_stream(station, stream)
            self._twice(rows)
            if station == stream.src or stream.src not in self.tables.stations():
                continue
            if sent is None:
                reach = self.tables.reach(stream.src, stream.incarnation)
                sent = self.tables.sent(stream, reach)
            for row in rows:
                if self._was_sent_among(key_of(row), row, sent, reach) is False:
                    self._invented(key_of(row), row)

    def _twice(self, rows: list[Row]) -> None:
        seen: dict[PduKey, Row] = {}
        for row in rows:
            key = key_of(row)
            if key in seen:
                text = sentences.twice(key, seen[key], row)
                self._once(DUPLICATE, row["station"], row["view"], text, partial(_at, seen[key], row))
            seen[key] = row


def at(row: Row, note: str = "") -> Where:
    """The frame of a row."""
    time_ns = row["seen_ns"] if "seen_ns" in row else row.get("time_ns")
    return Where(row["station"], row["file"], row["frame"], time_ns, note)


def _at(*rows: Row) -> list[Where]:
    return [at(row) for row in rows]


def _near(row: Row, station: int, there: Collection[Row]) -> list[Where]:
    """The rows before and after a row's place at a station that lacks it."""
    before = [r for r in there if r["clock"] <= row["clock"]]
    after = [r for r in there if r["clock"] > row["clock"]]
    out = [at(max(before, key=_by_place), f"the one before it at station {station}")] if before else []
    return out + ([at(min(after, key=_by_place), f"the one after it at station {station}")] if after else [])


def _by_place(row: Row) -> tuple[int, int]:
    return row["clock"], row["src"]


def judge(
    folder: Path,
    sources: dict[int, Source],
    spark: Any = None,
    *,
    ethertype: int = wire.ETHERTYPE,
    on_done: Callable[[int, int], None] | None = None,
) -> Judgement:
    """Judge the tables of a folder (``tables.derive`` has made them). sources: the captures they come from, by their numbers,
    for the frames around what is wrong. spark: a SparkSession whose tasks compare; None: threads of this process, whose memory
    then has to hold what was announced. Raises OSError, or what Spark raises."""
    court = Court(folder, sources)
    rows = court.compare_orders(spark, on_done)
    court.judge_findings()
    court.judge_views()
    court.note_fenced()
    court.judge_digests(spark)
    found = [w for v in court.verdicts.values() for violation in v.violations for w in violation.evidence]
    look_up(found, sources, ethertype)
    return Judgement(court.verdicts, court.tables.stations(), rows, court.notes)
