"""The tables of docs/performance.md, made from the JSON lines of `zenjun bench`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .cell import Json

OURS: Final = "zenjun"
RAW: Final = "raw"
FLOOR: Final = "floor"
BUS: Final = "zenjun-bus"
KEYED: Final = ("zenjun-authenticate", "zenjun-encrypt")
"""Our daemon with medium bus; the one with medium switched, measured beside it, keeps its name."""
RATE_AIMS: Final = {64: 6.0, 1300: 5.0, 65536: 3.0}
"""Aim: this multiple of the best peer's throughput, by message size."""
CPU_AIM: Final = 1 / 3
LIGHT_CPU_AIM: Final = 1 / 5
ROUND_TRIP_AIM: Final = 1 / 2
LOSS_THROUGHPUT_AIM: Final = 0.7
LOSS_P99_AIM_US: Final = 20_000.0
RAW_AIM: Final = 0.5


def figure(row: Json, path: str) -> float | None:
    """A number inside a line's nested objects; None where there is none."""
    value: Any = row
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


class Results:
    """Lines of one or more calls, medians over the repeats."""

    def __init__(self, rows: Iterable[Json]) -> None:
        self.rows = list(rows)

    def values(self, keys: dict[str, Any], path: str) -> list[float]:
        """The figure in all lines whose members equal ``keys``."""
        found = (figure(r, path) for r in self.rows if all(r.get(k) == v for k, v in keys.items()))
        return [v for v in found if v is not None]

    def median(self, keys: dict[str, Any], path: str) -> float | None:
        values = self.values(keys, path)
        return statistics.median(values) if values else None

    def distinct(self, name: str, **keys: Any) -> list[Any]:
        """The values a member takes, in ascending order."""
        return sorted({r[name] for r in self.rows if all(r.get(k) == v for k, v in keys.items())})

    @property
    def peers(self) -> list[str]:
        return [s for s in self.distinct("system") if s not in (OURS, RAW, FLOOR, BUS, *KEYED)]

    def best(self, keys: dict[str, Any], path: str, choose: Callable[[Iterable[float]], float]) -> tuple[float, str] | None:
        """The best peer's median and its name. Each figure has its own best."""
        found = {p: v for p in self.peers if (v := self.median({**keys, "system": p}, path)) is not None}
        if not found:
            return None
        value = choose(found.values())
        return value, next(p for p, v in found.items() if v == value)


@dataclass(frozen=True)
class Aim:
    """One line of the table of aims."""

    what: str
    ours: str
    other: str
    reached: str
    aim: str
    met: bool | None
    """None: there is no aim for it."""

    def cells(self) -> list[str]:
        verdict = {True: "met", False: "**missed**", None: "–"}[self.met]
        return [self.what, self.ours, self.other, self.reached, self.aim, verdict]


def number(value: float | None, digits: int = 0) -> str:
    """With thousands separators; small numbers with three significant digits unless ``digits`` is larger."""
    if value is None:
        return "–"
    if digits == 0 and 0 < abs(value) < 100:
        return f"{value:.3g}"
    return f"{value:,.{digits}f}"


def size_name(size: int) -> str:
    return f"{size // 1024} KiB" if size >= 1024 and size % 1024 == 0 else f"{size} B"


def aims(results: Results, stations: int) -> list[Aim]:
    """The aims of this project that the lines concern, for one number of stations."""
    lines: list[Aim] = []
    base: dict[str, Any] = {"stations": stations, "loss": 0.0}

    def against(
        what: str, keys: dict[str, Any], path: str, unit: str, aim: float | None, *, more: bool, scale: float = 1
    ) -> None:
        ours = results.median({**keys, "system": OURS}, path)
        best = results.best(keys, path, max if more else min)
        if ours is None or best is None or not best[0]:
            return
        ratio = ours / best[0]
        word = "≥" if more else "<"
        met = None if aim is None else ratio >= aim if more else ratio < aim
        text = "–" if aim is None else f"{word} {number(aim, 0 if more else 2)} ×"
        other = f"{number(best[0] * scale)} {unit} ({best[1]})"
        lines.append(Aim(what, f"{number(ours * scale)} {unit}", other, f"{number(ratio, 2)} ×", text, met))

    for size in results.distinct("size", mode="throughput", system=OURS, stations=stations):
        keys = {**base, "mode": "throughput", "size": size}
        large = size >= 8192
        path, unit = ("megabytes_per_s", "MB/s") if large else ("messages_per_s", "msg/s")
        against(f"throughput, {size_name(size)}", keys, path, unit, RATE_AIMS.get(size), more=True)
    for size in results.distinct("size", mode="throughput", system=OURS, stations=stations):
        keys = {**base, "mode": "throughput", "size": size}
        what = f"daemons' CPU per million messages, {size_name(size)}"
        against(what, keys, "cpu.daemons_s_per_million", "s", CPU_AIM, more=False)
    for size in results.distinct("size", mode="closed", system=OURS, stations=stations):
        keys = {**base, "mode": "closed", "size": size}
        against(f"one at a time, p50, {size_name(size)}", keys, "round_trip_p50_us", "µs", ROUND_TRIP_AIM, more=False)
    for mode, what in (("idle", "daemons' CPU when idle"), ("rate", "daemons' CPU at 1,000 msg/s")):
        for size in results.distinct("size", mode=mode, system=OURS, stations=stations):
            keys = {**base, "mode": mode, "size": size}
            of = "" if mode == "idle" else f", {size_name(size)}"
            against(what + of, keys, "cpu.daemons_cores", "% of a core", LIGHT_CPU_AIM, more=False, scale=100)
    lines += loss_aims(results, stations)
    lines += raw_aims(results, stations)
    return lines


def loss_aims(results: Results, stations: int) -> list[Aim]:
    """What random frame loss costs, ours against ours without."""
    lines = []
    for loss in (x for x in results.distinct("loss", system=OURS, stations=stations) if x):
        for size in results.distinct("size", mode="throughput", system=OURS, stations=stations):
            keys = {"stations": stations, "mode": "throughput", "size": size}
            with_loss = results.median({**keys, "system": OURS, "loss": loss}, "messages_per_s")
            without = results.median({**keys, "system": OURS, "loss": 0.0}, "messages_per_s")
            if with_loss is None or not without:
                continue
            kept = with_loss / without
            peers = []
            for peer in results.peers:
                a = results.median({**keys, "system": peer, "loss": loss}, "messages_per_s")
                b = results.median({**keys, "system": peer, "loss": 0.0}, "messages_per_s")
                if a is not None and b:
                    peers.append(f"{a / b:.1%} ({peer})")
            what = f"throughput kept at {loss:.2%} loss, {size_name(size)}"
            aim, met = f"≥ {LOSS_THROUGHPUT_AIM:.0%}", kept >= LOSS_THROUGHPUT_AIM
            lines.append(Aim(what, f"{number(with_loss)} msg/s", ", ".join(peers) or "–", f"{kept:.1%}", aim, met))
        for size in results.distinct("size", mode="rate", system=OURS, stations=stations):
            keys = {"stations": stations, "mode": "rate", "size": size, "loss": loss}
            p99 = results.median({**keys, "system": OURS}, "latency.p99_us")
            if p99 is None:
                continue
            best = results.best(keys, "latency.p99_us", min)
            other = f"{number(best[0] / 1000)} ms ({best[1]})" if best else "–"
            what = f"p99 latency at 1,000 msg/s and {loss:.2%} loss, {size_name(size)}"
            reached = f"{number(p99 / 1000)} ms"
            lines.append(Aim(what, reached, other, reached, f"< {LOSS_P99_AIM_US / 1000:.0f} ms", p99 < LOSS_P99_AIM_US))
    return lines


def raw_aims(results: Results, stations: int) -> list[Aim]:
    """Frames per second against the bare program. Confirmations and retransmissions are not counted as ours."""
    lines = []
    raw = results.median({"system": RAW, "stations": stations}, "frames_per_s")
    for size in results.distinct("size", mode="throughput", system=OURS, stations=stations):
        keys = {"system": OURS, "stations": stations, "mode": "throughput", "size": size, "loss": 0.0}
        ours = results.median(keys, "frames.data_per_s")
        if raw and ours is not None:
            what = f"data frames/s against bare AF_PACKET, {size_name(size)}"
            share = ours / raw
            lines.append(Aim(what, number(ours), f"{number(raw)} (raw)", f"{share:.0%}", f"≥ {RAW_AIM:.0%}", share >= RAW_AIM))
    return lines


FIGURES: Final = (
    ("msg/s", "messages_per_s", 1.0),
    ("MB/s", "megabytes_per_s", 1.0),
    ("latency p50 / p99 / p99.9 µs", "latency", 1.0),
    ("own p50 µs", "latency_own.p50_us", 1.0),
    ("daemons' CPU s per million", "cpu.daemons_s_per_million", 1.0),
    ("daemons % of a core", "cpu.daemons_cores", 100.0),
    ("clients % of a core", "cpu.clients_cores", 100.0),
    ("frames/s", "frames.per_s", 1.0),
    ("frames per message", "frames.per_message", 1.0),
    ("sent again", "retransmissions", 1.0),
    ("others, % of a core", "cpu.foreign_cores", 100.0),
)


def details(results: Results, stations: int) -> list[list[str]]:
    """Every cell of every system: medians over the repeats."""
    rows = []
    cells = {(r["mode"], r["loss"], r["size"], r["senders"]) for r in results.rows if r["stations"] == stations}
    order = ("throughput", "rate", "closed", "idle")
    for mode, loss, size, senders in sorted(cells, key=lambda c: (order.index(c[0]), c[1], c[2], c[3])):
        for system in sorted(results.distinct("system"), key=lambda s: (s != OURS, s)):
            keys = {"stations": stations, "mode": mode, "loss": loss, "size": size, "senders": senders, "system": system}
            found = [r for r in results.rows if all(r.get(k) == v for k, v in keys.items())]
            if not found:
                continue
            line = [mode, f"{loss:.2%}" if loss else "–", size_name(size), str(senders), system]
            for _, path, scale in FIGURES:
                if path == "latency":
                    parts = [results.median(keys, f"latency.{p}") for p in ("p50_us", "p99_us", "p999_us")]
                    line.append(" / ".join(number(p) for p in parts) if parts[0] is not None else "–")
                else:
                    value = results.median(keys, path)
                    line.append(number(None if value is None else value * scale))
            failed = sum(1 for r in found if not r["ok"])
            line.append(f"{len(found)}" if not failed else f"{len(found)}, {failed} failed")
            rows.append(line)
    return rows


def recoveries(results: Results, stations: int) -> list[list[str]]:
    """Medium bus beside switched, flat out: medians over the repeats."""
    rows = []
    cells = {(r["size"], r["loss"]) for r in results.rows if r["mode"] == "throughput" and r["stations"] == stations}
    for size, loss in sorted(cells):
        keys = {"stations": stations, "mode": "throughput", "size": size, "loss": loss}

        def pair(path: str, keys: dict[str, Any] = keys) -> tuple[float | None, float | None]:
            return results.median({**keys, "system": OURS}, path), results.median({**keys, "system": BUS}, path)

        rate, frames, late = pair("messages_per_s"), pair("frames.per_message"), pair("latency.p99_us")
        share = f"{rate[1] / rate[0]:.1%}" if rate[0] and rate[1] is not None else "–"
        rows.append(
            [size_name(size), f"{loss:.2%}" if loss else "0", number(rate[0]), number(rate[1]), share,
             number(frames[0]), number(frames[1]), number(late[0]), number(late[1])]
        )  # fmt: skip
    return rows


def keyed(results: Results, stations: int) -> list[list[str]]:
    """What a key of 32 bytes costs: medians over the repeats."""
    rows = []
    for mode, path in (("throughput", "messages_per_s"), ("closed", "latency.p50_us")):
        for size in results.distinct("size", mode=mode, stations=stations, loss=0.0):
            keys = {"stations": stations, "mode": mode, "size": size, "loss": 0.0}
            plain, *with_key = (results.median({**keys, "system": system}, path) for system in (OURS, *KEYED))
            line = [f"{mode}, {path.rsplit('.', 1)[-1]}", size_name(size), number(plain)]
            for value in with_key:
                line += [number(value), f"{value / plain:.2f}" if value is not None and plain else "–"]
            rows.append(line)
    return rows


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def render(rows: Iterable[Json], command: str | None = None) -> str:
    """All tables as markdown. command: the call that made the lines, for the record."""
    results = Results(rows)
    if not results.rows:
        return "No cells.\n"
    machines = ", ".join(results.distinct("machine"))
    versions = ", ".join(v for v in results.distinct("version") if v)
    windows = ", ".join(f"{w:g} s" for w in results.distinct("window_s"))
    parts = [
        f"Machine: {machines}. Versions: {versions}. Windows of {windows}, {max(results.distinct('repeat'))} repeats, medians.\n"
    ]
    if command:
        parts.insert(0, f"```\n{command}\n```\n")
    for stations in results.distinct("stations", system=BUS):
        parts.append(f"### What the paper's recovery costs, {stations} stations\n")
        head = ["size", "loss", "switched: msg/s", "bus: msg/s", "bus / switched", "switched: frames/msg", "bus: frames/msg",
                "switched: p99 µs", "bus: p99 µs"]  # fmt: skip
        parts.append(markdown(head, recoveries(results, stations)))
    for stations in results.distinct("stations", system=KEYED[0]):
        parts.append(f"### What a key of 32 bytes costs, {stations} stations\n")
        head = ["", "size", "no key", "authenticate", "ratio", "encrypt", "ratio"]
        parts.append(markdown(head, keyed(results, stations)))
    for stations in results.distinct("stations"):
        mtu = "/".join(str(m) for m in results.distinct("mtu", stations=stations))
        parts.append(f"### {stations} stations, MTU {mtu}\n")
        lines = [a.cells() for a in aims(results, stations)]
        if lines:
            parts.append(markdown(["", "zenjun", "best peer, or bare frames", "reached", "aim", ""], lines))
        head = ["mode", "loss", "size", "senders", "system", *(name for name, _, _ in FIGURES), "n"]
        parts.append(markdown(head, details(results, stations)))
    return "\n".join(parts)
