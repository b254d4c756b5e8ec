"""Clocks of the capturing machines, aligned from the PDUs themselves.

A PDU that leaves station a when a's clock shows T, and is first seen at station b when b's clock shows R, proves that b's clock
is not more than R − T ahead of a's: it cannot have arrived before it was sent. PDUs the other way bound it from the other side.
The only assumption about delays is that none is negative: they may be asymmetric, and change. Of the clocks it is assumed that
two of them drift apart by at most ``rate_ppm``; a bound found at one time then holds, that much wider, at all others. Bounds
between two stations add up along paths over third ones; the least sum of all paths counts, so that the intervals of all stations
fit together.

The results are intervals that contain the true offset, and their middle with half their width: offset ± uncertainty. If the
bounds contradict each other, a faster drift is allowed; if that does not help, a clock was set, and what is before and after that
moment is aligned apart.

    alignment = estimate(captures)               from capture files, in bounded memory
    alignment = align(pairs)                     from what was observed otherwise
    alignment.offset_ns(station, times)          of its clock from the reference's, at times of its own clock
    alignment.latency_ns(a, sent, b, seen)       across machines, with its uncertainty

Needs numpy.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ....proto import wire
from ..frames.lookup import Capture, Correction, Notes, Selection, frames, no_capture
from ..frames.text import span
from ..native import Reader, ffi, lib

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

RATE_PPM: Final = 200.0
"""Two quartz clocks, steered a little."""
RATE_MAX_PPM: Final = 2000.0
"""Two clocks that are being slewed as fast as time daemons do. What contradicts this is a step."""
GRID_NS: Final = 20_000_000
GRID_CELLS_MAX: Final = 30_000_000
"""Points in time × pairs of stations: memory, and time."""
MARKS_MAX: Final = 4_000_000
"""Sends and receipts kept of one station, 24 bytes each; of larger captures a sample, the same PDUs at all stations."""
_FRAME_BYTES: Final = 120
_UNBOUND: Final = np.inf
_UNITS_NS: Final = tuple(10**k for k in range(1, 10))
_BACK_NS: Final = 1_000_000
"""Frames of several queues of a card come out of order by less."""


class ClockError(Exception):
    """The clocks cannot be determined; one human-readable line."""


class Contradiction(ClockError):
    """No clocks would explain what the captures show."""


@dataclass(frozen=True)
class Pair:
    """PDUs from one station to another: when sent, by the sender's clock, and the receiver's clock at the first receipt, minus
    that. In ns; arrays of the same length."""

    sent_ns: Ints
    delta_ns: Ints


@dataclass
class Marks:
    """First sends of a station's own PDUs and first receipts of others', by the station's clock."""

    keys: npt.NDArray[np.uint64]
    times_ns: Ints
    sources: npt.NDArray[np.uint8]
    sent: npt.NDArray[np.bool_]
    frames: int = 0
    untimed: int = 0
    unproven: int = 0
    tick_ns: int = 1
    """Unit of the coarsest time stamp: an event was less than this later than its stamp (or earlier, if it was rounded)."""
    backs: int = 0
    back_ns: int = 0
    """Frames stamped earlier than one before them in their file, and by how much at most."""

    def firsts(self, chosen: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.uint64], Ints]:
        """Keys, sorted, with their first times."""
        keys, times = self.keys[chosen], self.times_ns[chosen]
        order = np.lexsort((times, keys))
        keys, times = keys[order], times[order]
        first = np.ones(len(keys), dtype=bool)
        first[1:] = keys[1:] != keys[:-1]
        return keys[first], times[first]


@dataclass
class _Segment:
    """Bounds at grid points: upper[a, b, k]: b's clock minus a's at grid[k] is at most so much. inf: not bound."""

    grid: Floats
    upper: Floats


@dataclass
class Drift:
    """How much a clock gains on the reference's, in parts per million; the interval holds the mean over the capture."""

    ppm: float
    low: float
    high: float


@dataclass
class Alignment:
    """What is known of the clocks. Times are int64 ns since 1970; offsets and uncertainties float64 ns."""

    stations: tuple[int, ...]
    reference: int
    rate_ppm: float
    """Drift between two clocks that was allowed for."""
    breaks_ns: tuple[int, ...]
    """When a clock was set (reference's time)."""
    pairs: dict[tuple[int, int], int]
    """Sender, receiver → PDUs that bounded them."""
    base_ns: int
    """What the grids count from (reference's time)."""
    rough: dict[int, float]
    """Coarse offsets, to find places in the grids."""
    segments: list[_Segment]

    # -- what people ask --

    def interval_ns(self, a: int, b: int, reference_ns: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Least and greatest that b's clock minus a's can be at times of the reference's clock; infinite: not bound."""
        at = np.atleast_1d(np.asarray(reference_ns, dtype=np.int64) - self.base_ns).astype(np.float64)
        i, j = self.stations.index(a), self.stations.index(b)
        if i == j:
            return np.zeros(len(at)), np.zeros(len(at))
        return -self._upper(j, i, at), self._upper(i, j, at)

    def offset_ns(self, station: int, times_ns: npt.ArrayLike) -> Floats:
        """The station's clock minus the reference's, at times of the station's clock; nan: not known (see ``bounds``)."""
        low, high = self._at_own(station, times_ns)
        return _middle(low, high)

    def uncertainty_ns(self, station: int, times_ns: npt.ArrayLike) -> Floats:
        """The true offset is not further than this from ``offset_ns``; infinite: not known."""
        low, high = self._at_own(station, times_ns)
        return (high - low) / 2

    def reference_time_ns(self, station: int, times_ns: npt.ArrayLike) -> Ints:
        """Times of the station's clock by the reference's. A station that is not aligned is taken as it is."""
        times = np.atleast_1d(np.asarray(times_ns, dtype=np.int64))
        offsets = self.offset_ns(station, times)
        return times - np.rint(np.nan_to_num(offsets)).astype(np.int64)

    def latency_ns(self, a: int, sent_ns: npt.ArrayLike, b: int, seen_ns: npt.ArrayLike) -> tuple[Floats, Floats]:
        """From a moment by a's clock to one by b's: value and uncertainty (nan and inf where nothing is known)."""
        sent = np.atleast_1d(np.asarray(sent_ns, dtype=np.int64))
        seen = np.atleast_1d(np.asarray(seen_ns, dtype=np.int64))
        low, high = self.interval_ns(a, b, self.reference_time_ns(a, sent))
        return (seen - sent) - _middle(low, high), (high - low) / 2

    def aligned(self, station: int) -> bool:
        """Whether its offset is bound on both sides throughout."""
        i, r = self.stations.index(station), self.stations.index(self.reference)
        return all(bool(np.isfinite(s.upper[i, r]).all() and np.isfinite(s.upper[r, i]).all()) for s in self.segments)

    def span_ns(self) -> tuple[int, int]:
        """First and last time that something was observed (reference's time)."""
        return self.base_ns + int(self.segments[0].grid[0]), self.base_ns + int(self.segments[-1].grid[-1])

    def drift(self, station: int) -> Drift | None:
        """None if it is unknown: not aligned, a step, or too short a time."""
        start, end = self.span_ns()
        if len(self.segments) != 1 or not self.aligned(station) or end - start < 1_000_000:
            return None
        grid = self.segments[0].grid
        times = (self.base_ns + grid).astype(np.int64)
        low, high = self.interval_ns(self.reference, station, times)
        middle, width = (low + high) / 2, high - low
        quarter = max(1, len(grid) // 4)
        first = int(np.argmin(width[:quarter]))
        last = len(grid) - 1 - int(np.argmin(width[::-1][:quarter]))
        passed = grid[last] - grid[first]
        if passed <= 0:
            return None
        fitted = float(np.polyfit(grid - grid[0], middle - middle[0], 1)[0]) * 1e6 if len(grid) > 2 else 0.0
        least = float((low[last] - high[first]) / passed) * 1e6
        most = float((high[last] - low[first]) / passed) * 1e6
        return Drift(min(max(fitted, least), most), least, most)

    # -- inside --

    def _at_own(self, station: int, times_ns: npt.ArrayLike) -> tuple[Floats, Floats]:
        times = np.atleast_1d(np.asarray(times_ns, dtype=np.int64))
        guess: Floats = np.full(len(times), self.rough[station])
        low = high = guess
        for _ in range(2):
            low, high = self.interval_ns(self.reference, station, times - np.rint(guess).astype(np.int64))
            middle = _middle(low, high)
            guess = np.where(np.isfinite(middle), middle, guess)
        return low, high

    def _upper(self, i: int, j: int, at: Floats) -> Floats:
        """A bound at any time: that of the nearest grid points, wider by what clocks can drift until then."""
        rate = self.rate_ppm * 1e-6
        out = np.full(len(at), _UNBOUND)
        edges = np.array([s.grid[0] for s in self.segments[1:]])
        where = np.searchsorted(edges, at, side="right")
        for number, segment in enumerate(self.segments):
            mine = where == number
            if not mine.any():
                continue
            t, grid, upper = at[mine], segment.grid, segment.upper[i, j]
            after = np.clip(np.searchsorted(grid, t), 0, len(grid) - 1)
            before = np.clip(after - 1, 0, len(grid) - 1)
            out[mine] = np.minimum(upper[before] + rate * np.abs(t - grid[before]), upper[after] + rate * np.abs(t - grid[after]))
        return out


def _middle(low: Floats, high: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        middle = (low + high) / 2
    return np.where(np.isfinite(low) & np.isfinite(high), middle, np.nan)


# ---- alignment ----


def align(
    pairs: Mapping[tuple[int, int], Pair], *, rate_ppm: float = RATE_PPM, reference: int | None = None, grid_ns: int = GRID_NS
) -> Alignment:
    """Align clocks by what was observed between stations: (sender, receiver) → Pair.

    rate_ppm: how fast two clocks can drift apart. reference: whose clock is the common one; by default that from which the others
    are known best. grid_ns: bounds are kept at such distances, wider ones if memory asks for it. Raises ClockError without
    observations.
    """
    used = {key: pair for key, pair in pairs.items() if len(pair.sent_ns) and key[0] != key[1]}
    if not used:
        raise ClockError("no PDU was seen both where it was sent and where it was received")
    stations = tuple(sorted({station for key in used for station in key}))
    if reference is not None and reference not in stations:
        raise ClockError(f"station {reference} has no PDU in common with another one")
    start = reference if reference is not None else stations[0]
    rough = _rough(used, stations, start)
    for rate in (rate_ppm, *(r for r in (RATE_MAX_PPM,) if r > rate_ppm)):
        made = _solve(used, stations, start, rough, rate, grid_ns, ())
        if made is not None:
            break
    else:
        rate = max(rate_ppm, RATE_MAX_PPM)
        breaks = _breaks(used, start, rough, rate)
        made = _solve(used, stations, start, rough, rate, grid_ns, breaks)
        if made is None:
            raise Contradiction("the captures contradict each other: a capture lacks frames, or two stations are one")
    # Once more with the offsets found: places in time are then exact to the uncertainty, and not to the drift.
    finer = _solve(used, stations, start, made, rate, grid_ns, made.breaks_ns)
    made = finer or made
    return made if reference is not None else _best_reference(made)


def _rough(pairs: Mapping[tuple[int, int], Pair], stations: Sequence[int], start: int) -> dict[int, float]:
    """Offsets from the start's clock, without regard to drift, along the pairs that bound best."""
    least = {key: float(pair.delta_ns.min()) for key, pair in pairs.items()}
    rough = {start: 0.0}
    while True:
        best: tuple[float, int, float] | None = None
        for (a, b), upper in least.items():
            for near, far, bound, other in ((a, b, upper, (b, a)), (b, a, -upper, (b, a))):
                if near not in rough or far in rough:
                    continue
                back = least.get(other)
                # Known from one side only: the bound itself, after all others.
                middle = bound if back is None else ((upper - back) / 2 if near == a else (back - upper) / 2)
                width = 1e30 if back is None else abs(upper + back)
                if best is None or width < best[0]:
                    best = (width, far, rough[near] + middle)
        if best is None:
            break
        rough[best[1]] = best[2]
    return rough | {station: 0.0 for station in stations if station not in rough}


def _common(pair_key: tuple[int, int], pair: Pair, known: dict[int, float] | Alignment) -> tuple[Ints, float]:
    """When the PDUs were sent, by the reference's clock, and how wrong that may be."""
    if isinstance(known, Alignment):
        # Where only one side is bound there is no offset, but the coarse one is near; the time as it is may be hours off.
        offsets = known.offset_ns(pair_key[0], pair.sent_ns)
        offsets = np.where(np.isfinite(offsets), offsets, known.rough[pair_key[0]])
        times = pair.sent_ns - np.rint(offsets).astype(np.int64)
        doubt = known.uncertainty_ns(pair_key[0], pair.sent_ns[:: max(1, len(pair.sent_ns) // 1000)])
        return times, float(np.max(np.where(np.isfinite(doubt), doubt, 0.0)))
    return pair.sent_ns - round(known[pair_key[0]]), 0.0


def _solve(
    pairs: Mapping[tuple[int, int], Pair],
    stations: tuple[int, ...],
    reference: int,
    known: dict[int, float] | Alignment,
    rate_ppm: float,
    grid_ns: int,
    breaks_ns: tuple[int, ...],
) -> Alignment | None:
    """Bounds at all grid points; None if they contradict each other."""
    rate = rate_ppm * 1e-6
    placed = {key: _common(key, pair, known) for key, pair in pairs.items()}
    base = min(int(times.min()) for times, _ in placed.values())
    end = max(int(times.max()) for times, _ in placed.values())
    rough = known.rough if isinstance(known, Alignment) else known
    cuts = [base, *sorted(t for t in breaks_ns if base < t <= end), end + 1]
    n = len(stations)
    segments = []
    for low, high in itertools.pairwise(cuts):
        share = max(2, int(GRID_CELLS_MAX / (n * n) * (high - low) / (end + 1 - base)))
        points = int(min(share, max(2, (high - low) // grid_ns + 2)))
        grid = np.linspace(low - base, high - 1 - base, points) if high - low > 1 else np.array([low - base, low - base + 1.0])
        upper = np.full((n, n, len(grid)), _UNBOUND)
        for (a, b), (times, doubt) in placed.items():
            chosen = (times >= low) & (times < high) if len(cuts) > 2 else slice(None)
            at = (times[chosen] - base).astype(np.float64)
            deltas = pairs[a, b].delta_ns[chosen].astype(np.float64)
            if len(at):
                rounding = 4 * float(np.spacing(np.abs(deltas).max() + rate * at[-1]))  # of clocks that are decades apart
                bound = _envelope(at, deltas, grid, rate) + rate * doubt + rounding
                upper[stations.index(a), stations.index(b)] = bound
        if not _shortest_paths(upper):
            return None
        segments.append(_Segment(grid, upper))
    counts = {key: len(pair.sent_ns) for key, pair in pairs.items()}
    return Alignment(stations, reference, rate_ppm, tuple(breaks_ns), counts, base, dict(rough), segments)


def _envelope(at: Floats, deltas: Floats, grid: Floats, rate: float) -> Floats:
    """The least of delta + rate × distance over all observations, at each grid point."""
    order = np.argsort(at, kind="stable")
    at, deltas = at[order], deltas[order]
    forward = np.minimum.accumulate(deltas - rate * at)
    backward = np.minimum.accumulate((deltas + rate * at)[::-1])[::-1]
    until = np.searchsorted(at, grid, side="right")
    out = np.full(len(grid), _UNBOUND)
    some = until > 0
    out[some] = forward[until[some] - 1] + rate * grid[some]
    some = until < len(at)
    out[some] = np.minimum(out[some], backward[until[some]] - rate * grid[some])
    return out


def _shortest_paths(upper: Floats) -> bool:
    """Tighten bounds along all paths, in place. False if a cycle is negative: the bounds contradict each other."""
    n = len(upper)
    for via in range(n):
        for a in range(n):
            if a != via:
                np.minimum(upper[a], upper[a, via] + upper[via], out=upper[a])
    cycles = np.stack([upper[i, i] for i in range(n)])
    for i in range(n):
        upper[i, i] = 0.0
    return not bool((cycles < 0).any())


def _breaks(pairs: Mapping[tuple[int, int], Pair], reference: int, rough: dict[int, float], rate_ppm: float) -> tuple[int, ...]:
    """Moments at which a clock must have been set: what was known until then contradicts what follows."""
    found: list[int] = []
    for (a, b), pair in pairs.items():
        if a > b or (b, a) not in pairs:
            continue
        back = pairs[b, a]
        times = np.concatenate([_common((a, b), pair, rough)[0], _common((b, a), back, rough)[0]])
        values = np.concatenate([pair.delta_ns, -back.delta_ns])
        above = np.concatenate([np.ones(len(pair.sent_ns), bool), np.zeros(len(back.sent_ns), bool)])
        order = np.argsort(times, kind="stable")
        found += _steps(times[order], values[order], above[order], rate_ppm * 1e-6)
    # One step is seen by several pairs, by each when it next hears: within that time it is one.
    merged: list[int] = []
    for moment in sorted(found):
        if not merged or moment - merged[-1] > 1_000_000_000:
            merged.append(moment)
    return tuple(merged)


def _steps(times: Ints, values: Ints, above: npt.NDArray[np.bool_], rate: float) -> list[int]:
    low, high, last = -np.inf, np.inf, int(times[0])
    out = []
    for time, value, is_above in zip(times.tolist(), values.tolist(), above.tolist(), strict=True):
        wider = rate * (time - last)
        low, high, last = low - wider, high + wider, time
        if is_above:
            high = min(high, value)
        else:
            low = max(low, value)
        if low > high:
            out.append(time)
            low, high = (-np.inf, value) if is_above else (value, np.inf)
    return out


def _best_reference(made: Alignment) -> Alignment:
    """The same with the clock from which the others are known best as the common one. A rough idea of it will do."""
    n = len(made.stations)
    width = sum(np.nan_to_num((s.upper + s.upper.transpose(1, 0, 2)).mean(axis=2), posinf=1e18) for s in made.segments)
    worst = np.asarray(width).max(axis=1)
    chosen = made.stations[min(range(n), key=lambda i: (round(float(worst[i]), -3), i))]
    if chosen == made.reference:
        return made
    shift = made.rough[chosen]
    offset = np.nan_to_num(made.offset_ns(chosen, made.base_ns + round(shift)))[0]
    rough = {station: value - shift for station, value in made.rough.items()}
    base = made.base_ns + round(float(offset))
    breaks = tuple(t + round(float(offset)) for t in made.breaks_ns)
    return Alignment(made.stations, chosen, made.rate_ppm, breaks, made.pairs, base, rough, made.segments)


# ---- from captures ----


@dataclass
class Estimate:
    """An alignment and what it was made from."""

    alignment: Alignment
    marks: dict[int, Marks]
    problems: list[str] = field(default_factory=list)


def collect(captures: Sequence[Capture], ethertype: int, problems: list[str], *, marks_max: int = MARKS_MAX) -> dict[int, Marks]:
    """First sends and receipts of each station. Memory: marks_max × 24 bytes per station. Damage goes to ``problems``."""
    out: dict[int, Marks] = {}
    by_station: dict[int, list[Capture]] = {}
    for capture in captures:
        if capture.station:
            by_station.setdefault(capture.station, []).append(capture)
        else:
            problems.append(_unknown(capture, ethertype))
    mask = _sample(by_station, marks_max)
    for station, files in sorted(by_station.items()):
        out[station] = _collect_station(station, files, ethertype, mask, problems)
    return out


def _unknown(capture: Capture, ethertype: int) -> str:
    """Why a file is of no use."""
    notes = Notes()
    if next(frames(capture, Selection(ethertype), notes), None) is None:
        return notes.lines[0] if notes.lines else f"{capture.name}: no PDU of EtherType {ethertype:#06x}"
    return f"{capture.name}: whose capture it is cannot be told; say --station N={capture.path}"


def _sample(by_station: Mapping[int, Sequence[Capture]], marks_max: int) -> int:
    """Bits that must be zero in a key, so that no station gets much more marks than it may have."""
    largest = 0
    for files in by_station.values():
        size = sum(os.stat(c.path).st_size * (6 if c.path.endswith(("gz", "zst", "zstd")) else 1) for c in files)  # noqa: PTH116
        largest = max(largest, size // _FRAME_BYTES)
    bits = 0
    while largest >> bits > marks_max:
        bits += 1
    return (1 << bits) - 1


def _collect_station(station: int, files: Sequence[Capture], ethertype: int, mask: int, problems: list[str]) -> Marks:
    state = ffi.new("struct zk_state *", {"station": station, "ethertype": ethertype, "mask": mask})
    kind = np.dtype([("key", "<u8"), ("time", "<i8"), ("src", "u1"), ("what", "u1"), ("pad", "V2"), ("tick", "<u4")])
    room = 1 << 16
    buffer = np.empty(room, dtype=kind)
    address = ffi.cast("struct zk_mark *", buffer.ctypes.data)
    rows = ffi.new("uint64_t *")
    parts: list[Any] = []

    def take() -> None:
        parts.append(buffer[: rows[0]][["key", "time", "src", "what", "tick"]].copy())
        rows[0] = 0

    for capture in files:
        state.last_known = 0
        with Reader(capture.path, own_mac=capture.own_mac) as reader:
            while True:
                result = lib.zk_collect(reader.walk, state, address, room, rows)
                if result == lib.ZP_FULL:
                    take()
                elif result < 0:
                    problems.append(str(reader.fail(result)))
                    break
                elif not reader.fill():
                    if (nothing := no_capture(reader, capture)) is not None:
                        problems.append(str(nothing))
                    break
    take()
    every = np.concatenate(parts)
    if len(every) and not every["time"].any():  # some tools write zeros where they know no time
        state.untimed, every = state.frames, every[:0]
    return Marks(
        every["key"].copy(),
        every["time"].copy(),
        every["src"].copy(),
        every["what"] == lib.ZK_SENT,
        int(state.frames),
        int(state.untimed),
        int(state.unproven),
        _tick_ns(every),
        int(state.backs),
        int(state.back_ns),
    )


def _tick_ns(every: Any) -> int:
    """The unit of the stamps: the file's, or a coarser one that all of them are multiples of (converted files have ns)."""
    if not len(every):
        return 1
    said = int(every["tick"].max())
    common = int(np.gcd.reduce(every["time"]))
    units: list[int] = [unit for unit in _UNITS_NS if common % unit == 0]
    return max(said, *units, 1)


def observed(marks: Mapping[int, Marks]) -> dict[tuple[int, int], Pair]:
    """(Sender, receiver) → PDUs that both captures have; the difference is widened by the units of both stamps."""
    out = {}
    for a, sender in marks.items():
        keys, times = sender.firsts(sender.sent)
        if not len(keys):
            continue
        for b, receiver in marks.items():
            if a == b:
                continue
            seen, when = receiver.firsts(~receiver.sent & (receiver.sources == a))
            _, mine, theirs = np.intersect1d(keys, seen, assume_unique=True, return_indices=True)
            if len(mine):
                out[a, b] = Pair(times[mine], when[theirs] - times[mine] + sender.tick_ns + receiver.tick_ns)
    return out


def estimate(
    captures: Sequence[Capture],
    ethertype: int = wire.ETHERTYPE,
    *,
    rate_ppm: float = RATE_PPM,
    reference: int | None = None,
    marks_max: int = MARKS_MAX,
) -> Estimate:
    """Align the clocks of the stations whose captures these are. Raises ClockError, OSError."""
    problems: list[str] = []
    marks = collect(captures, ethertype, problems, marks_max=marks_max)
    if len(marks) < 2:
        raise ClockError(
            "clocks are compared between captures of two stations or more, not of one" if marks else _nobody(problems)
        )
    pairs = observed(marks)
    if not pairs:
        raise ClockError(_why_none(marks))
    try:
        made = align(pairs, rate_ppm=rate_ppm, reference=reference)
    except Contradiction as error:
        raise Contradiction("; ".join(_backwards(marks)) or str(error)) from None
    problems += _backwards(marks)
    return Estimate(made, marks, problems)


def _backwards(marks: Mapping[int, Marks]) -> list[str]:
    """The message about captures whose times go back: their clock was set while they were written, perhaps many times."""
    return [
        f"station {station}: the times in its capture go back, {m.backs} {'time' if m.backs == 1 else 'times'}, by up to"
        f" {span(m.back_ns)}: what is said of its clock holds only in between"
        for station, m in marks.items()
        if m.back_ns > _BACK_NS
    ]


def _nobody(problems: Sequence[str]) -> str:
    return problems[0] if problems else "no captures"


def _why_none(marks: Mapping[int, Marks]) -> str:
    """Why no PDU could be used."""
    for station, m in marks.items():
        if m.frames and m.untimed == m.frames:
            return f"the capture of station {station} has no times, or does not tell sent from received frames"
    if any(m.unproven for m in marks.values()):
        return "only PDUs that may be repetitions of earlier ones (an idle cluster): send something while capturing"
    return "no PDU was seen both where it was sent and where it was received"


def correction(captures: Sequence[Capture], ethertype: int) -> tuple[Correction | None, str]:
    """Puts times of all stations on one clock; None if they seem to be on one already. Also a human-readable message about that.
    Raises ClockError, OSError."""
    made = estimate(captures, ethertype).alignment
    start, end = made.span_ns()
    over = np.linspace(0, end - start, 1000).astype(np.int64) + start
    bounds = {s: made.interval_ns(made.reference, s, over) for s in made.stations}
    unknown = [s for s in made.stations if not made.aligned(s)]
    unknown += [c.station for c in captures if c.station not in made.stations and c.station not in unknown]
    known = {s: b for s, b in bounds.items() if s not in unknown}
    worst = max(float((high - low).max()) / 2 for low, high in known.values())
    if not unknown and all(bool((low <= 0).all() and (high >= 0).all()) for low, high in known.values()):
        return None, f"all clocks agree, as far as can be told (± {worst / 1000:.1f} µs): times are left as they are"
    text = f"times are those of station {made.reference}'s clock, ± {worst / 1000:.1f} µs"
    if unknown:
        text += f"; not aligned, by their own clocks: {', '.join(str(s) for s in sorted(set(unknown)))}"

    def correct(station: int, time_ns: int) -> int:
        return int(made.reference_time_ns(station, time_ns)[0]) if station in known else time_ns

    return correct, text
