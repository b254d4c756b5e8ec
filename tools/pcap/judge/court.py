"""Whether the cluster kept its promises, as far as the captures show it.

What stations have in common is compared by blocks (blocks.py); only blocks that differ are read, and each difference is put down
to one promise. What one station's capture shows by itself comes from its replay (``findings``). A capture with holes accuses
nobody: what stands in a hole is left out, and counted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Final

from ....proto import wire
from ..tables import schema
from ..tables.schema import Finding
from . import blocks
from .blocks import Place, Span, Stream
from .evidence import Source, Where, look_up

SHOWN_MAX: Final = 5
"""Violations of one promise that are told in full; the rest are counted."""
LOOK_MAX: Final = 200
"""Cells in which something is found to be broken; more are not read."""
FINDINGS_MAX: Final = 1_000
HOLES_MAX: Final = 1 << 18
"""Of one station's capture; what has more is not judged for what it lacks."""
_STREAMS_KEPT: Final = 64
_SEQ: Final = (1 << 32) - 1
_BLOCK: Final = 1 << blocks.BLOCK_BITS
_CONFIRM: Final = int(wire.Kind.CONFIRM)
_ROW: Final = (
    *("view", "clock", "src", "incarnation", "seq", "kind", "payload_crc", "head_crc", "seen_ns", "preack_ns", "file", "frame"),
)

ORDER, SENDER, CAUSE, LOSS, DUPLICATE, INVENTION, VIEWS, DIGESTS = (
    "order",
    "sender_order",
    "causality",
    "loss",
    "duplicates",
    "invention",
    "views",
    "digests",
)
TITLES: Final = {
    ORDER: ("the same total order at all stations", "PDUs in common"),
    SENDER: ("each sender's order", "PDUs"),
    CAUSE: ("no cause behind its effect", "PDUs"),
    LOSS: ("nothing lost", "PDUs in common"),
    DUPLICATE: ("nothing twice, one content for each number", "PDUs"),
    INVENTION: ("nothing that was never sent", "PDUs of captured sources"),
    VIEWS: ("view events at one place, with the same members", "view events in common"),
    DIGESTS: ("digests equal: said, and derived", "digests"),
}
"""Verdict → (what is promised, what is counted)."""

Row = dict[str, Any]
Evidence = Callable[[], Iterable[Where]]
"""What is looked for only if it will be shown."""
_HOLE: Final = ("src", "incarnation", "seq", "count")
PduKey = tuple[int, int, int]
"""Source, incarnation, number of 32 bits."""


@dataclass
class Violation:
    """One promise broken: what happened, in a sentence, and the frames around it."""

    text: str
    evidence: list[Where] = field(default_factory=list)


@dataclass
class Verdict:
    """On one promise. ``kept``: None if there was nothing to compare."""

    name: str
    compared: int = 0
    violations: list[Violation] = field(default_factory=list)
    more: int = 0
    """Violations beyond those that are told."""
    unseen: bool = False
    """Not all that differs has been looked into."""

    @property
    def kept(self) -> bool | None:
        return False if self.violations else True if self.compared and not self.unseen else None

    def add(self, text: str, evidence: Evidence) -> None:
        """Another violation; not told if there are many."""
        if any(v.text == text for v in self.violations):
            return
        if len(self.violations) < SHOWN_MAX:
            self.violations.append(Violation(text, list(evidence())))
        else:
            self.more += 1


@dataclass
class Judgement:
    """All verdicts. notes: what keeps them from being complete, one line each."""

    verdicts: dict[str, Verdict]
    stations: list[int]
    rows: int = 0
    """PDUs in the orders of all stations."""
    notes: list[str] = field(default_factory=list)
    captures: list[dict[str, Any]] = field(default_factory=list)
    """What was judged: ``station`` and ``path`` of each file, in the order of their times, and what has told the station
    (``told``: given, frames or path; empty if it is not known any more)."""

    @property
    def kept(self) -> bool | None:
        """False: something is broken; None: there was nothing to judge."""
        states = [v.kept for v in self.verdicts.values()]
        return False if False in states else True if True in states else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kept": self.kept,
            "stations": self.stations,
            "pdus": self.rows,
            "verdicts": {
                name: {
                    "promise": TITLES[name][0],
                    "kept": v.kept,
                    "compared": v.compared,
                    "unit": TITLES[name][1],
                    "violations": len(v.violations) + v.more,
                    "told": [{"text": x.text, "frames": [w.as_dict() for w in x.evidence]} for x in v.violations],
                }
                for name, v in self.verdicts.items()
            },
            "notes": self.notes,
            "captures": self.captures,
        }


class Tables:
    """The small tables, and windows of the large ones, by Arrow. Everything read is bounded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[Path, Any] = {}
        self._streams = lru_cache(maxsize=_STREAMS_KEPT)(self._stream)
        self.sent = lru_cache(maxsize=_STREAMS_KEPT)(self._sent)
        self.reach = cache(self._reach)

    def stations(self) -> list[int]:
        """That have an order or views."""
        found = {p.parent.name for t in ("order", "views", "announced") for p in (self.folder / t).glob("station=*/*.parquet")}
        return sorted(int(name.partition("=")[2]) for name in found)

    def files(self, table: str, station: int | None = None) -> list[Path]:
        """Parquet files of a table."""
        return sorted((self.folder / table).glob(f"station={'*' if station is None else station}/*.parquet"))

    def rows(
        self, table: str, station: int | None, where: Any = None, columns: Sequence[str] = (), most: int = 1 << 20
    ) -> list[Row]:
        """Rows that a filter lets through, with ``station``, in the order of the table; at most so many."""
        out: list[Row] = []
        for path in self.files(table, station):
            number = int(path.parent.name.partition("=")[2])
            data = self._dataset(table, path)
            found = data.head(most - len(out), columns=list(columns) or None, filter=where, use_threads=False)
            out += [row | {"station": number} for row in found.to_pylist()]
            if len(out) >= most:
                break
        return out

    def _dataset(self, table: str, path: Path) -> Any:
        import pyarrow.dataset as ds

        if path not in self._open:
            self._open[path] = ds.dataset(path, schema=schema.arrow(table), format="parquet")
        return self._open[path]

    @cached_property
    def views(self) -> list[Row]:
        """All of them."""
        return self.rows("views", None)

    @cached_property
    def findings(self) -> list[Row]:
        """The first of each kind and station."""
        import pyarrow.dataset as ds

        kinds = [ds.field("what") == int(what) for what in Finding]
        return [r for s in self.stations() for kind in kinds for r in self.rows("findings", s, kind, most=FINDINGS_MAX)]

    @cached_property
    def holes(self) -> dict[tuple[int, int, int], list[tuple[int, int]]]:
        """Station, source, incarnation → what the station's capture is known to lack: (number of 32 bits, how many), sorted."""
        import pyarrow.dataset as ds

        out: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        for station in self.stations():
            rows = self.rows("findings", station, ds.field("what") == int(Finding.GAP), _HOLE, HOLES_MAX)
            if len(rows) == HOLES_MAX:
                self.riddled.add(station)
            for row in rows:
                out.setdefault((station, row["src"], row["incarnation"]), []).append((row["seq"] & _SEQ, row["count"]))
        for found in out.values():
            found.sort()
        return out

    @cached_property
    def riddled(self) -> set[int]:
        """Stations whose captures have more holes than are kept in mind."""
        return set()

    def in_hole(self, station: int, key: PduKey) -> bool:
        """Whether the station's capture is known to lack this PDU."""
        found = self.holes.get((station, key[0], key[1]), [])
        if station in self.riddled:
            return True
        at = bisect_right(found, (key[2], 1 << 64))
        return any((key[2] - seq) & _SEQ < count for seq, count in found[max(0, at - 1) : at] or found[-1:])

    def order(self, station: int, place: Place) -> list[Row]:
        """The rows of a cell."""
        import pyarrow.dataset as ds

        f = ds.field
        where = (f("view") == place.view) & (f("clock") > place.low) & (f("clock") <= place.high)
        return self.rows("order", station, where, _ROW, 1 << 16)

    def of_stream(self, station: int, stream: Stream) -> list[Row]:
        """The rows of a cell of a stream."""
        return self._streams(station, stream)

    def _stream(self, station: int, stream: Stream) -> list[Row]:
        import pyarrow.dataset as ds

        f, low = ds.field, stream.block << blocks.BLOCK_BITS
        where = (f("src") == stream.src) & (f("incarnation") == stream.incarnation)
        return self.rows("order", station, where & (f("seq") >= low) & (f("seq") < low + _BLOCK), _ROW, 1 << 16)

    def find(self, station: int, key: PduKey, near: int = 0) -> Row | None:
        """The row of one PDU, wherever it stands. near: its number in another capture, which may be unwrapped otherwise."""
        for number in dict.fromkeys((near or key[2], key[2])):
            rows = self.of_stream(station, Stream(key[0], key[1], number >> blocks.BLOCK_BITS))
            if (row := next((r for r in rows if r["seq"] & _SEQ == key[2]), None)) is not None:
                return row
        return None

    def _sent(self, stream: Stream, reach: tuple[int, int] | None) -> dict[int, set[int]]:
        """Number of 32 bits → checks of what the source itself sent, by its own capture; reach: of that stream."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        f, low = ds.field, stream.block << blocks.BLOCK_BITS
        where = (f("src") == stream.src) & (f("incarnation") == stream.incarnation) & (f("sent") > 0) & (f("kind") != _CONFIRM)
        number = f("seq")
        if low > _SEQ or reach is None or reach[1] > _SEQ:  # captures may differ in how often they have seen them wrap
            number, low = pc.bit_wise_and(number, pa.scalar(_SEQ, pa.int64())), low & _SEQ
        out: dict[int, set[int]] = {}
        for row in self.rows("transmissions", stream.src, where & (number >= low) & (number < low + _BLOCK), ("seq", "check")):
            out.setdefault(row["seq"] & _SEQ, set()).add(row["check"])
        return out

    def _reach(self, src: int, incarnation: int) -> tuple[int, int] | None:
        """(first number sent, next number said) of a source's own frames; None: its capture has none."""
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        f = ds.field
        where = (f("src") == src) & (f("incarnation") == incarnation) & (f("sent") > 0)
        low, high = None, None
        for path in self.files("transmissions", src):
            data = self._dataset("transmissions", path)
            for batch in data.to_batches(columns=["seq", "kind"], filter=where):
                if not batch.num_rows:
                    continue
                numbered = pc.cast(pc.not_equal(batch["kind"], _CONFIRM), "int64")
                least = pc.min(batch["seq"]).as_py()
                most = pc.max(pc.add(batch["seq"], numbered)).as_py()
                low, high = least if low is None else min(low, least), most if high is None else max(high, most)
        return None if low is None or high is None else (low, high)


def spans(views: Iterable[Row]) -> list[Span]:
    """Which places the stations' orders have."""
    return [
        Span(v["station"], v["view"], v["from_clock"], v["to_clock"])
        for v in views
        if v["to_clock"] is not None and v["from_clock"] is not None and v["to_clock"] > v["from_clock"]
    ]


def name(key: PduKey) -> str:
    """A PDU for people, as ``zenjun pcap follow`` takes it."""
    return f"{key[0]}.{key[1]}:{key[2]}"


def place(row: Row) -> str:
    """A place for people: instance:clock.source."""
    return f"{row['clock'] >> 32}:{row['clock'] & _SEQ}.{row['src']}"


def at(row: Row, note: str = "") -> Where:
    """The frame of a row."""
    time_ns = row["seen_ns"] if "seen_ns" in row else row.get("time_ns")
    return Where(row["station"], row["file"], row["frame"], time_ns, note)


def _at(*rows: Row) -> list[Where]:
    return [at(row) for row in rows]


def _near(row: Row, station: int, there: Collection[Row]) -> list[Where]:
    """What stands before and after a row's place at a station that lacks it."""
    before = [r for r in there if r["clock"] <= row["clock"]]
    after = [r for r in there if r["clock"] > row["clock"]]
    out = [at(max(before, key=_by_place), f"the one before it at station {station}")] if before else []
    return out + ([at(min(after, key=_by_place), f"the one after it at station {station}")] if after else [])


def key_of(row: Row) -> PduKey:
    """What a PDU is called."""
    return row["src"], row["incarnation"], row["seq"] & _SEQ


def content(row: Row) -> tuple[int, int]:
    """Its checksums."""
    return row["payload_crc"], row["head_crc"]


class Court:
    """Brings everything together; ``judge`` is the way in."""

    def __init__(self, folder: Path, sources: dict[int, Source]) -> None:
        self.tables = Tables(folder)
        self.sources = sources
        self.verdicts = {n: Verdict(n) for n in TITLES}
        self.notes: list[str] = []
        self._told: set[tuple[str, int, int]] = set()

    # ---- what single captures show

    def findings(self) -> None:
        """From the replays."""
        for row in self.tables.findings:
            what = Finding(row["what"])
            who = f"station {row['station']}"
            key = key_of(row)
            if what is Finding.GAP:
                self._hole(row)
            elif what is Finding.CONFLICT:
                text = f"{who} received two PDUs called {name(key)}, with different contents"
                self.verdicts[DUPLICATE].add(text, partial(self._around, row, key))
            elif what in (Finding.SENDER_ORDER, Finding.PROMISE):
                before = "the one before it" if what is Finding.SENDER_ORDER else "its source had promised"
                text = f"at {who}, PDU {name(key)} stands at {place(row)}, which is not beyond what {before} says"
                self.verdicts[SENDER].add(text, partial(self._around, row, key))
            elif what is Finding.CAUSALITY:
                cause = f"{row['other_src']}:{row['other_value']}"
                text = f"at {who}, PDU {name(key)} stands at {place(row)}, before {cause}, which its source had accepted"
                self.verdicts[CAUSE].add(text, partial(self._around, row, key))
            elif what is Finding.DIGEST:
                text = (
                    f"{who} announced digest {row['other_value'] & (1 << 64) - 1:016x} for position {row['seq']}; its own frames"
                    f" give {row['value'] & (1 << 64) - 1:016x}"
                )
                self._once(DIGESTS, row["station"], row["view"] or 0, text, partial(_at, row))
            elif what is Finding.NEVER_SENT and not self._lost_nothing(row["station"]):
                self.notes.append(f"{who}: its capture lacks its last PDUs, from {name(key)} on")
            elif what is Finding.NEVER_SENT:
                text = f"others acknowledge PDU {name(key)} of {who}, which it has not sent"
                self.verdicts[INVENTION].add(text, partial(_at, row))
            elif what is Finding.VIEW_UNKNOWN:
                self.notes.append(f"{who} is in instance {row['value']}: how it came there, its capture does not show")
            elif what is Finding.RESUMED:
                self.notes.append(f"{who}: the capture begins within instance {row['value']}; earlier places are not judged")
        lacking: dict[int, int] = {}
        for (station, _, _), found in self.tables.holes.items():
            lacking[station] = lacking.get(station, 0) + sum(count for _, count in found)
        for station, total in sorted(lacking.items()):
            more = "more than " if station in self.tables.riddled else ""
            self.notes.append(f"station {station}: its capture lacks {more}{total} PDUs that it had; places there are not judged")

    def _once(self, verdict: str, station: int, group: int, text: str, evidence: Evidence) -> None:
        """The first of a kind is told, its consequences are counted."""
        if (verdict, station, group) in self._told:
            self.verdicts[verdict].more += 1
            return
        self._told.add((verdict, station, group))
        self.verdicts[verdict].add(text, evidence)

    def _hole(self, row: Row) -> None:
        """A capture that says it lost nothing has no holes: then the station acknowledged what never arrived."""
        if row["src"] == row["station"] or not self._lost_nothing(row["station"]):
            return
        text = (
            f"station {row['station']} acknowledged PDU {name(key_of(row))}, which never arrived there: its capture lost no frame"
        )
        self.verdicts[LOSS].add(text, partial(_at, row))

    def _lost_nothing(self, station: int) -> bool:
        """Whether a station's capture is whole and says that nothing was dropped. Between two files nobody may have captured."""
        mine = [s for s in self.sources.values() if s.station == station]
        return len(mine) == 1 and mine[0].dropped == 0 and mine[0].whole

    def _around(self, finding: Row, key: PduKey) -> list[Where]:
        """The frame at which it was noticed, and how others have the PDU."""
        out = [at(finding, "noticed here")]
        for station in self.tables.stations():
            row = self.tables.find(station, key)
            if row is not None:
                out.append(at(row, f"PDU {name(key)} as station {station} has it"))
        return out

    # ---- views

    def views(self) -> None:
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
                    text = (
                        f"instance {number} has another {what} at station {odd['station']} than at station {among[0]['station']}:"
                        f" {_view_text(odd, what)} and {_view_text(among[0], what)}"
                    )
                    verdict.add(text, partial(self._begun, among[0], odd))
                    break

    def _begun(self, *rows: Row) -> list[Where]:
        return [where for row in rows for where in self._entered(row)]

    def fenced(self) -> None:
        """Stations that have seen an order that is not theirs, and deliver nothing any more."""
        import pyarrow.dataset as ds

        rows = self.tables.rows("instances", None, ds.field("flags") >= int(wire.Flag.FENCED), ("src", "instance"), 1 << 10)
        for src, instance in sorted({(row["src"], row["instance"]) for row in rows}):
            self.notes.append(f"station {src} has fenced itself in instance {instance}: a digest was not its own")

    def _entered(self, view: Row) -> list[Where]:
        import pyarrow.dataset as ds

        where = (ds.field("src") == view["station"]) & (ds.field("instance") == view["view"])
        rows = self.tables.rows("instances", view["station"], where, ("time_ns", "file", "frame"), 1)
        return [at(row, f"station {view['station']} says that it is in instance {view['view']}") for row in rows]

    # ---- digests

    def digests(self, spark: Any) -> None:
        """Announced between stations, and against what the captures give."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

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
                        self._said(station, others.num_rows)
        for counted, position, low, high in self._contradictions(spark):
            text = f"position {position} behind the view event of instance {counted} was announced with two digests"
            self._once(DIGESTS, 0, counted, text, partial(self._speakers, counted, position, {low, high}))

    def _said(self, station: int, count: int) -> None:
        import pyarrow.dataset as ds

        f = ds.field
        where = f("derived").is_valid() & (f("digest") != f("derived")) & (f("src") != station)
        rows = self.tables.rows("announced", station, where, most=1)
        if not rows:
            return
        row = rows[0]
        text = (
            f"station {row['src']} announced digest {row['digest'] & (1 << 64) - 1:016x} for position {row['position']} behind"
            f" the view event of instance {row['counted']}; the frames of station {station} give"
            f" {row['derived'] & (1 << 64) - 1:016x}"
        )
        self._once(DIGESTS, station, -row["src"], text, partial(_at, row))
        self.verdicts[DIGESTS].more += count - 1

    def _contradictions(self, spark: Any) -> list[tuple[int, int, int, int]]:
        """(counted, position, digest, another digest), at most a few."""
        if spark is not None:
            from pyspark.sql import functions as F

            said = schema.read(spark, self.tables.folder, "announced").where("position > 0")
            both = said.groupBy("counted", "position").agg(F.min("digest").alias("low"), F.max("digest").alias("high"))
            return [tuple(row) for row in both.where("low <> high").orderBy("counted", "position").limit(SHOWN_MAX).collect()]
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

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
        import pyarrow.dataset as ds

        f = ds.field
        rows = self.tables.rows("announced", None, (f("counted") == counted) & (f("position") == position), most=64)
        out = []
        for digest in sorted(digests):
            first = next((row for row in rows if row["digest"] == digest), None)
            if first is not None:
                out.append(at(first, f"station {first['src']} says {digest & (1 << 64) - 1:016x}"))
        return out

    # ---- blocks

    def compare(self, spark: Any, on_done: Callable[[int, int], None] | None) -> int:
        """Orders and streams; gives the rows there are."""
        covered = spans(self.tables.views)
        found = blocks.compare(blocks.tasks(self.tables.folder), covered, spark, on_done, blocks.Holes.of(self.tables.holes))
        self.verdicts[ORDER].compared = self.verdicts[LOSS].compared = found.pairs
        self.verdicts[SENDER].compared = self.verdicts[DUPLICATE].compared = found.rows
        if self.tables.files("transmissions"):  # else nobody has replayed what these tables come from
            self.verdicts[CAUSE].compared = found.rows
        self.verdicts[INVENTION].compared = found.streams
        for station, (count, (view, clock, src)) in sorted(found.mixed.items()):
            cell = Place(view, clock - 1, clock)
            rows = [r for r in self.tables.order(station, cell) if r["src"] == src]
            where = f"{clock >> 32}:{clock & _SEQ}.{src}"
            self._once(SENDER, station, view, f"at station {station}, {where} stands behind a later place", partial(_at, *rows))
            self.verdicts[SENDER].more += count - 1
        judge = blocks.Judge(covered)
        left, wrong = found.unseen, 0
        for key, stations in found.bad:
            if wrong == LOOK_MAX:
                left += 1
                continue
            before = self._broken()
            if isinstance(key, Place):
                self._place(key, judge.covering(key))
            else:
                self._stream(key, stations)
            wrong += self._broken() != before
        if left:
            self.notes.append(f"{left} more blocks differ and were not looked into")
            for name in (ORDER, LOSS, DUPLICATE, INVENTION):
                self.verdicts[name].unseen = True
        return found.rows

    def _broken(self) -> int:
        return sum(len(v.violations) + v.more for v in self.verdicts.values())

    def _place(self, cell: Place, stations: Sequence[int]) -> None:
        """Put each difference in a block down to a promise."""
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
                    text = f"PDU {name(key)} is another one at station {s} than at station {have[0]}"
                    self._once(DUPLICATE, s, cell.view, text, partial(_at, a, b))
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
        text = f"PDU {name(key)} stands at {place(a)} at station {a['station']} and at {place(b)} at station {b['station']}"
        self._once(ORDER, b["station"], a["view"], text, lambda: self._neighbours(a, rows) + self._neighbours(b, rows))

    def _missing(self, key: PduKey, station: int, row: Row, rows: dict[int, dict[PduKey, Row]]) -> None:
        there = self.tables.find(station, key, row["seq"])
        if there is not None:
            if there["clock"] != row["clock"] or there["view"] != row["view"]:
                self._another_place(key, row, there, rows)
            return
        if self._sent(key, row) is False:
            self._invented(key, row)
            return
        text = (
            f"PDU {name(key)} stands at {place(row)} at station {row['station']}; station {station}, whose order goes beyond that"
            f" place, does not have it"
        )
        self._once(
            LOSS,
            station,
            row["view"],
            text,
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

    def _sent(self, key: PduKey, row: Row) -> bool | None:
        """Did its source send this very PDU? None: its capture cannot tell."""
        reach = self.tables.reach(key[0], key[1])
        sent = self.tables.sent(Stream(key[0], key[1], row["seq"] >> blocks.BLOCK_BITS), reach)
        return self._sent_among(key, row, sent, reach)

    def _sent_among(self, key: PduKey, row: Row, sent: dict[int, set[int]], reach: tuple[int, int] | None) -> bool | None:
        if reach is None or self.tables.in_hole(key[0], key) or self._before_its_capture(key):
            return None
        check = row["head_crc"] << 32 | row["payload_crc"]
        if key[2] in sent:
            return any(c & (1 << 64) - 1 == check for c in sent[key[2]])
        if key[2] < reach[0] & _SEQ:
            return None
        if key[2] >= reach[1] & _SEQ:  # whether its capture went on, only itself can tell, by who acknowledges the PDU there
            return False if any(self._covers(f, key) for f in self._never_sent) else None
        return False

    def _before_its_capture(self, key: PduKey) -> bool:
        """Whether the source's own capture follows its stream only from a later number on: what it lacks before is no hole."""
        first = self._resumed.get((key[0], key[1]))
        return first is not None and 0 < (first - key[2]) & _SEQ < 1 << 31

    @cached_property
    def _resumed(self) -> dict[tuple[int, int], int]:
        """Source, incarnation → the last number from which its own capture follows it."""
        found = (f for f in self.tables.findings if f["what"] == Finding.RESUMED and f["station"] == f["src"])
        return {(f["src"], f["incarnation"]): f["seq"] & _SEQ for f in found}

    @cached_property
    def _never_sent(self) -> list[Row]:
        return [f for f in self.tables.findings if f["what"] == Finding.NEVER_SENT and self._lost_nothing(f["station"])]

    @staticmethod
    def _covers(finding: Row, key: PduKey) -> bool:
        number = (key[2] - finding["seq"]) & _SEQ
        return key[:2] == (finding["src"], finding["incarnation"]) and bool(number < finding["count"])

    def _invented(self, key: PduKey, row: Row) -> None:
        text = f"station {row['station']} delivered PDU {name(key)} at {place(row)}, which its source never sent"
        self._once(INVENTION, row["station"], row["view"], text, partial(_at, row))

    def _stream(self, stream: Stream, stations: Collection[int]) -> None:
        """Look for what stands there twice, or was never sent."""
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
                if self._sent_among(key_of(row), row, sent, reach) is False:
                    self._invented(key_of(row), row)

    def _twice(self, rows: list[Row]) -> None:
        seen: dict[PduKey, Row] = {}
        for row in rows:
            key = key_of(row)
            if key in seen:
                text = f"station {row['station']} delivered PDU {name(key)} at {place(seen[key])} and at {place(row)}"
                self._once(DUPLICATE, row["station"], row["view"], text, partial(_at, seen[key], row))
            seen[key] = row


def _by_place(row: Row) -> tuple[int, int]:
    return row["clock"], row["src"]


def _view_text(row: Row, what: str) -> str:
    if what == "place":
        return f"{row['place_clock'] >> 32}:{row['place_clock'] & _SEQ}.{row['place_src']}"
    if what == "members":
        lives = row["incarnations"] or ()
        return ",".join(f"{k + 1}.{life}" for k, life in enumerate(lives) if row["members"] >> k & 1) or "nobody"
    return f"{row['view_hash']:08x}"


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
    rows = court.compare(spark, on_done)
    court.findings()
    court.views()
    court.fenced()
    court.digests(spark)
    found = [w for v in court.verdicts.values() for violation in v.violations for w in violation.evidence]
    look_up(found, sources, ethertype)
    return Judgement(court.verdicts, court.tables.stations(), rows, court.notes)
