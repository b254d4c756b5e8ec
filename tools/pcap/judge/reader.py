"""The tables of a folder, read through Arrow: the small ones whole, of the large ones bounded windows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ....proto import wire
from ..tables import schema
from ..tables.schema import Finding
from . import blocks
from .blocks import Place, Span, Stream

FINDINGS_MAX: Final = 1_000
HOLES_MAX: Final = 1 << 18
"""Of one station's capture; what has more is not judged for what it lacks."""
SEQ_MASK: Final = (1 << 32) - 1
_STREAMS_KEPT: Final = 64
_BLOCK: Final = 1 << blocks.BLOCK_BITS
_CONFIRM: Final = int(wire.Kind.CONFIRM)
_ROW: Final = (
    *("view", "clock", "src", "incarnation", "seq", "kind", "payload_crc", "head_crc", "seen_ns", "preack_ns", "file", "frame"),
)
_HOLE: Final = ("src", "incarnation", "seq", "count")

Row = dict[str, Any]
PduKey = tuple[int, int, int]
"""Source, incarnation, number of 32 bits."""


class TableReader:
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
        """Rows that a filter lets through, with ``station``, in the order of the table; at most this number."""
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
        kinds = [ds.field("what") == int(what) for what in Finding]
        return [r for s in self.stations() for kind in kinds for r in self.rows("findings", s, kind, most=FINDINGS_MAX)]

    @cached_property
    def holes(self) -> dict[tuple[int, int, int], list[tuple[int, int]]]:
        """Station, source, incarnation → what the station's capture is known to lack: (number of 32 bits, how many), sorted."""
        out: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        for station in self.stations():
            rows = self.rows("findings", station, ds.field("what") == int(Finding.GAP), _HOLE, HOLES_MAX)
            if len(rows) == HOLES_MAX:
                self.riddled.add(station)
            for row in rows:
                out.setdefault((station, row["src"], row["incarnation"]), []).append((row["seq"] & SEQ_MASK, row["count"]))
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
        return any((key[2] - seq) & SEQ_MASK < count for seq, count in found[max(0, at - 1) : at] or found[-1:])

    def order(self, station: int, place: Place) -> list[Row]:
        """The rows of a cell."""
        f = ds.field
        where = (f("view") == place.view) & (f("clock") > place.low) & (f("clock") <= place.high)
        return self.rows("order", station, where, _ROW, 1 << 16)

    def of_stream(self, station: int, stream: Stream) -> list[Row]:
        """The rows of a cell of a stream."""
        return self._streams(station, stream)

    def _stream(self, station: int, stream: Stream) -> list[Row]:
        f, low = ds.field, stream.block << blocks.BLOCK_BITS
        where = (f("src") == stream.src) & (f("incarnation") == stream.incarnation)
        return self.rows("order", station, where & (f("seq") >= low) & (f("seq") < low + _BLOCK), _ROW, 1 << 16)

    def find(self, station: int, key: PduKey, near: int = 0) -> Row | None:
        """The row of one PDU, at any place. near: its number in another capture, which may be unwrapped otherwise."""
        for number in dict.fromkeys((near or key[2], key[2])):
            rows = self.of_stream(station, Stream(key[0], key[1], number >> blocks.BLOCK_BITS))
            if (row := next((r for r in rows if r["seq"] & SEQ_MASK == key[2]), None)) is not None:
                return row
        return None

    def _sent(self, stream: Stream, reach: tuple[int, int] | None) -> dict[int, set[int]]:
        """Number of 32 bits → checks of what the source itself sent, by its own capture; reach: of that stream."""
        f, low = ds.field, stream.block << blocks.BLOCK_BITS
        where = (f("src") == stream.src) & (f("incarnation") == stream.incarnation) & (f("sent") > 0) & (f("kind") != _CONFIRM)
        number = f("seq")
        if low > SEQ_MASK or reach is None or reach[1] > SEQ_MASK:  # captures may differ in how often they have seen them wrap
            number, low = pc.bit_wise_and(number, pa.scalar(SEQ_MASK, pa.int64())), low & SEQ_MASK
        out: dict[int, set[int]] = {}
        for row in self.rows("transmissions", stream.src, where & (number >= low) & (number < low + _BLOCK), ("seq", "check")):
            out.setdefault(row["seq"] & SEQ_MASK, set()).add(row["check"])
        return out

    def _reach(self, src: int, incarnation: int) -> tuple[int, int] | None:
        """(first number sent, next number reported) of a source's own frames; None: its capture has none."""
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


def key_of(row: Row) -> PduKey:
    """What a PDU is called."""
    return row["src"], row["incarnation"], row["seq"] & SEQ_MASK


def content(row: Row) -> tuple[int, int]:
    """Its checksums."""
    return row["payload_crc"], row["head_crc"]
