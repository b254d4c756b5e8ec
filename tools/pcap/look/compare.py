"""Two captures side by side: what only one of them has, in which order, how much later: ``zenjun pcap compare``.

PDUs are compared by their bytes, as often as they are there: a PDU that was sent twice and received once is missing once. Memory
is bounded: rows of 40 bytes are put into parts by a number that represents the PDU, on disk if there are many, and one part after
the other is compared; the same with the order, by the place in A.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ....proto import wire
from ..frames.lookup import Capture, Correction, Frame, Notes, Selection, frames, no_capture
from ..native import Reader, ffi, lib
from ..work import scratch

ROWS_IN_MEMORY: Final = 4_000_000
"""Of both captures together; more go through files."""
DIFFERENCES_KEPT: Final = 5
AROUND: Final = 2
"""Frames shown before and after a difference."""
_AROUND_FRAMES: Final = 60
"""How far from it they may be, with other people's traffic between."""
SAMPLE: Final = 1_000_000
"""Times between that quantiles are made from."""
_NO_TIME: Final = -(1 << 63)
_ROW: Final = np.dtype(
    [
        ("key", "<u8"),
        ("time", "<i8"),
        ("index", "<u8"),
        ("mac", "<u8"),
        ("kind", "u1"),
        ("src", "u1"),
        ("direction", "u1"),
        ("pad", "V5"),
    ]
)
_PAIR: Final = np.dtype([("a", "<u8"), ("b", "<u8"), ("src", "u1"), ("pad", "V7")])
Rows = npt.NDArray[Any]


@dataclass
class Side:
    """One of the two: the files of one station, in order of time."""

    name: str
    files: list[Capture]
    pdus: int = 0
    damaged: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    mac: int | None = None
    """What it sends from."""
    only: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(kind, source) → PDUs that the other has not, as often."""
    first_only: list[int] = field(default_factory=list)
    """Places of the first of them."""
    starts: list[int] = field(default_factory=list)
    """Place of each file's first frame: a place is the number of a frame over all files."""
    frames: int = 0
    """In all files, other people's as well."""
    returned: int = 0
    """Own frames that came back from the medium (a bus): left out where two stations are compared."""
    sent: int = 0
    """Frames that it sent while the other was capturing."""
    lost: int = 0
    """Of them, those that the other did not receive."""

    @property
    def station(self) -> int:
        return self.files[0].station

    def place(self, index: int) -> tuple[Capture, int]:
        """File, and number of the frame in it."""
        file = bisect.bisect_right(self.starts, index) - 1
        return self.files[file], index - self.starts[file]


@dataclass
class Order:
    """Of the PDUs that both have (first copies): how many come earlier in B than one that A has before them."""

    common: int = 0
    late: int = 0
    """Whatever their sources."""
    late_of_source: int = 0
    """Behind one of the same source: this is no matter of where the capture was made."""
    first: tuple[int, int] | None = None
    """Places in A and B of the first such PDU of one source, or, if there is none, of all."""
    first_same_source: bool = False


@dataclass
class Comparison:
    """What ``compare`` found."""

    a: Side
    b: Side
    order: Order = field(default_factory=Order)
    both: int = 0
    """PDUs that both have, as often as both have them."""
    delays_ns: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """B's time minus A's of first copies; a sample of many."""
    least_ns: int | None = None
    greatest_ns: int | None = None
    notes: Notes = field(default_factory=Notes)

    @property
    def same(self) -> bool:
        """The same PDUs, each as often, and those of each source in the same order."""
        return not self.a.only and not self.b.only and not self.order.late_of_source and self.a.damaged == self.b.damaged


class _Parts:
    """Rows by parts of a number, in memory or in one file for each part."""

    def __init__(self, kind: np.dtype[Any], count: int, folder: Path | None, name: str) -> None:
        self.count, self._kind = count, kind
        self._memory: list[list[Rows]] = [[] for _ in range(count)]
        self._paths = [folder / f"{name}-{k}" for k in range(count)] if folder else None

    def add(self, rows: Rows, part: npt.NDArray[Any]) -> None:
        """part: of each row, 0..count - 1."""
        if self.count == 1:
            self._put(0, rows)
            return
        order = np.argsort(part, kind="stable")
        ends = np.searchsorted(part[order], np.arange(self.count + 1))
        sorted_rows = rows[order]
        for k in range(self.count):
            if ends[k + 1] > ends[k]:
                self._put(k, sorted_rows[ends[k] : ends[k + 1]])

    def _put(self, k: int, rows: Rows) -> None:
        if self._paths is None:
            self._memory[k].append(rows.copy())
        else:
            with self._paths[k].open("ab") as file:
                rows.tofile(file)

    def take(self, k: int) -> Rows:
        """The rows of a part, which are forgotten."""
        if self._paths is not None:
            path = self._paths[k]
            rows = np.fromfile(path, dtype=self._kind) if path.exists() else np.empty(0, self._kind)
            path.unlink(missing_ok=True)
            return rows
        rows = np.concatenate(self._memory[k]) if self._memory[k] else np.empty(0, self._kind)
        self._memory[k] = []
        return rows


def side(name: str, files: Sequence[Capture]) -> Side:
    """The captures that one argument names. ValueError if they are not of one station."""
    stations = sorted({c.station for c in files})
    if len(stations) > 1:
        raise ValueError(f"{name}: captures of stations {', '.join(map(str, stations))}; name one of them")
    timed = [(next((f.time_ns for f in frames(c, Selection(), Notes()) if f.time_ns is not None), _NO_TIME), c) for c in files]
    return Side(name, [c for _, c in sorted(timed, key=lambda entry: (entry[0], entry[1].path))])


def compare(
    a: Side, b: Side, *, ethertype: int = wire.ETHERTYPE, correct: Correction | None = None, rows_in_memory: int = ROWS_IN_MEMORY
) -> Comparison:
    """Compare all PDUs. Raises OSError."""
    out = Comparison(a, b)
    size = sum(
        Path(c.path).stat().st_size * (6 if c.path.endswith(("gz", "zst", "zstd")) else 1) for s in (a, b) for c in s.files
    )
    parts = 1 << max(0, (size // 120 // rows_in_memory).bit_length())
    with scratch.folder("compare") as made:
        folder = made if parts > 1 else None
        split = [_Parts(_ROW, parts, folder, name) for name in "ab"]
        for this, store in zip((a, b), split, strict=True):
            for rows in _rows(this, ethertype, out.notes):
                if correct is not None:
                    _correct(rows, this.station, correct)
                rows = _note(this, rows, a.station != b.station)
                store.add(rows, (rows["key"] >> np.uint64(40)) % np.uint64(parts) if parts > 1 else rows["src"])
        pairs = _Parts(_PAIR, parts, folder, "order")
        for k in range(parts):
            _part(out, split[0].take(k), split[1].take(k), pairs)
        _order(out.order, pairs)
    for this in (a, b):
        this.first_only = sorted(this.first_only)[:DIFFERENCES_KEPT]
    return out


def _rows(this: Side, ethertype: int, notes: Notes) -> Iterator[Rows]:
    room = 1 << 16
    buffer = np.empty(room, dtype=_ROW)
    address = ffi.cast("struct zk_copy *", buffer.ctypes.data)
    rows, damaged = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    for capture in this.files:
        this.starts.append(this.frames)
        with Reader(capture.path, own_mac=capture.own_mac) as reader:
            while True:
                result = lib.zk_copies(reader.walk, ethertype, this.frames, address, room, rows, damaged)
                if rows[0] and result != lib.ZP_MORE:
                    yield buffer[: rows[0]]
                    rows[0] = 0
                if result < 0:
                    notes.damage(reader.fail(result))
                    break
                if result == lib.ZP_MORE and not reader.fill():
                    break
            this.frames += int(reader.walk.state.frame)
            if result >= 0 and (nothing := no_capture(reader, capture)) is not None:
                notes.damage(nothing)
            elif result >= 0 and (reader.cut or reader.tail_bytes):
                notes.lines.append(f"{capture.name}: offset {reader.offset}: {reader.cut or 'the last record is cut'}")
    if rows[0]:
        yield buffer[: rows[0]]
    this.damaged = int(damaged[0])


def _correct(rows: Rows, station: int, correct: Correction) -> None:
    """Times on the common clock: the correction changes so slowly that of a batch its ends will do."""
    timed = rows["time"] != _NO_TIME
    if not timed.any():
        return
    times = rows["time"][timed]
    ends = [int(times.min()), int(times.max())]
    moved = [correct(station, t) - t for t in ends]
    share = np.interp(times - ends[0], [0, max(1, ends[1] - ends[0])], moved)
    rows["time"][timed] = times + np.rint(share).astype(np.int64)


def _note(this: Side, rows: Rows, two: bool) -> Rows:
    """Totals of a batch; gives it back without what is left out."""
    times = rows["time"][rows["time"] != _NO_TIME]
    if len(times):
        first, last = int(times.min()), int(times.max())
        this.first_ns = first if this.first_ns is None else min(first, this.first_ns)
        this.last_ns = last if this.last_ns is None else max(last, this.last_ns)
    if this.mac is None:
        own = rows["mac"][(rows["direction"] == 2) & (rows["src"] == this.station)]
        if len(own):
            this.mac = int(own[0])
    if two and this.mac is not None:
        back = (rows["direction"] == 1) & (rows["mac"] == this.mac)
        this.returned += int(back.sum())
        rows = rows[~back]
    this.pdus += len(rows)
    return rows


def _sorted(rows: Rows) -> Rows:
    return rows[np.lexsort((rows["index"], rows["key"]))]


def _occurrence(keys: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Of each row of sorted keys, how many equal ones stand before it."""
    if not len(keys):
        return np.empty(0, np.int64)
    begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    lengths = np.diff(np.concatenate([begins, [len(keys)]]))
    return np.arange(len(keys)) - np.repeat(begins, lengths)


def _part(out: Comparison, a: Rows, b: Rows, pairs: _Parts) -> None:
    parts = pairs.count
    a, b = _sorted(a), _sorted(b)
    nth = [_occurrence(rows["key"]) for rows in (a, b)]
    for this, mine, other, own in ((out.a, a, b, nth[0]), (out.b, b, a, nth[1])):
        there = np.searchsorted(other["key"], mine["key"], "right") - np.searchsorted(other["key"], mine["key"], "left")
        missing = mine[own >= there]
        if this is out.a:
            out.both += len(mine) - len(missing)
        kinds, counts = np.unique(missing["kind"].astype(np.uint16) << 8 | missing["src"], return_counts=True)
        for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True):
            this.only[kind >> 8, kind & 0xFF] += count
        least = missing[np.argsort(missing["index"])[:DIFFERENCES_KEPT]]
        this.first_only += least["index"].tolist()
    _losses(out.a, out.b, a, b)
    _losses(out.b, out.a, b, a)
    first_a, first_b = a[nth[0] == 0], b[nth[1] == 0]
    _, at_a, at_b = np.intersect1d(first_a["key"], first_b["key"], assume_unique=True, return_indices=True)
    common = np.empty(len(at_a), dtype=_PAIR)
    common["a"], common["b"], common["src"] = first_a["index"][at_a], first_b["index"][at_b], first_a["src"][at_a]
    pairs.add(common, common["a"] * np.uint64(parts) // np.uint64(max(1, out.a.frames)))
    timed = (first_a["time"][at_a] != _NO_TIME) & (first_b["time"][at_b] != _NO_TIME)
    delays = (first_b["time"][at_b] - first_a["time"][at_a])[timed]
    if len(delays):
        low_ns, high_ns = int(delays.min()), int(delays.max())
        out.least_ns = low_ns if out.least_ns is None else min(low_ns, out.least_ns)
        out.greatest_ns = high_ns if out.greatest_ns is None else max(high_ns, out.greatest_ns)
        step = max(1, len(delays) * parts // SAMPLE)
        out.delays_ns = np.concatenate([out.delays_ns, delays[::step]])


def _losses(sender: Side, receiver: Side, sent: Rows, seen: Rows) -> None:
    """Frames that one sent and the other did not receive, while both captured."""
    if sender.mac is None or receiver.first_ns is None or receiver.last_ns is None or sender.station == receiver.station:
        return
    inside = (sent["direction"] == 2) & (sent["time"] >= receiver.first_ns) & (sent["time"] <= receiver.last_ns)
    mine = sent["key"][inside]
    there = seen["key"][(seen["direction"] == 1) & (seen["mac"] == sender.mac)]
    own = _occurrence(mine)
    got = np.searchsorted(there, mine, "right") - np.searchsorted(there, mine, "left")
    sender.sent += len(mine)
    sender.lost += int((own >= got).sum())


def _order(order: Order, pairs: _Parts) -> None:
    """Run over the common PDUs in A's order. For each source, and for all, B's places should only grow."""
    highest: dict[int, int] = {}
    first_any: tuple[int, int] | None = None
    for part in range(pairs.count):
        rows = pairs.take(part)
        rows = rows[np.argsort(rows["a"], kind="stable")]
        order.common += len(rows)
        for src in [0, *np.unique(rows["src"]).tolist()]:  # 0: all of them
            mine = rows[rows["src"] == src] if src else rows
            places = mine["b"].astype(np.int64)
            if not len(places):
                continue
            before = np.maximum.accumulate(np.concatenate([[highest.get(src, -1)], places]))
            late = places < before[:-1]
            highest[src] = int(before[-1])
            first = int(np.argmax(late))
            found = (int(mine["a"][first]), int(mine["b"][first])) if late.any() else None
            if not src:
                order.late += int(late.sum())
                first_any = first_any or found
                continue
            order.late_of_source += int(late.sum())
            if found and (order.first is None or found < order.first):
                order.first, order.first_same_source = found, True
    if order.first is None:
        order.first = first_any


def around(this: Side, index: int, ethertype: int) -> list[tuple[bool, Frame]]:
    """The frame at a place with those of ours beside it: (whether it is the one, frame)."""
    capture, number = this.place(index)
    selection = Selection(ethertype, numbers=(number - _AROUND_FRAMES, number + _AROUND_FRAMES))
    near = [(frame.index == number, frame) for frame in frames(capture, selection, Notes())]
    at = next((k for k, (one, _) in enumerate(near) if one), None)
    return [] if at is None else near[max(0, at - AROUND) : at + AROUND + 1]
