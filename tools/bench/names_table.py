"""The tables of ``zenjun bench directory``: medians over the repeats, and its aims."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .cell import Json
from .table import markdown, number

OURS: Final = "zenjun"
PLAIN: Final = "zenjun, no directory"
SEVEN: Final = "zenjun, seven"
JOINER: Final = "joiner"
GONE: Final = "station gone"


@dataclass(frozen=True)
class Aim:
    """One line of the table of aims. high: the figure has to reach ``aim``; else it must not be above it."""

    what: str
    value: float | None
    aim: float
    unit: str
    high: bool = False

    def cells(self) -> list[str]:
        if self.value is None:
            return [self.what, "–", f"{'≥' if self.high else '≤'} {number(self.aim)} {self.unit}", "–"]
        met = self.value >= self.aim if self.high else self.value <= self.aim
        limit = f"{'≥' if self.high else '≤'} {number(self.aim)} {self.unit}"
        return [self.what, f"{number(self.value)} {self.unit}", limit, "met" if met else "**missed**"]


def median(rows: Sequence[Json], system: str, what: str, name: str) -> float | None:
    """Of the repeats; None if nothing was measured."""
    found = [float(r[name]) for r in rows if r["system"] == system and r["what"] == what and name in r]
    return statistics.median(found) if found else None


def aims(rows: Sequence[Json]) -> list[Aim]:
    """The aims on three stations and a machine with two cores."""

    def ours(what: str, name: str) -> float | None:
        return median(rows, OURS, what, name)

    def beyond(what: str, base: float | None) -> float | None:
        value = ours(what, "p50_us")
        return None if value is None or base is None else value - base

    plain = median(rows, PLAIN, "message, preack", "p50_us")
    watch50, watch99 = ours("watch", "p50_us"), ours("watch", "p99_us")
    found = [
        Aim("look-ups that the library keeps", ours("look-up, kept", "per_s"), 500_000, "/s", high=True),
        Aim("look-ups in a mirror", ours("look-up, mirror", "per_s"), 500_000, "/s", high=True),
        Aim("look-ups from the process, 64 under way", ours("look-up, rate", "per_s"), 20_000, "/s", high=True),
        Aim("a look-up from the process, p50", ours("look-up", "p50_us"), 80, "µs"),
        Aim("an update, `memory`, p50, beyond a message's", beyond("update, memory", plain), 300, "µs"),
        Aim("updates, `memory`, all stations", ours("update, memory, rate", "per_s"), 5_000, "/s", high=True),
        Aim("an update, `disk`, p50, beyond `memory`", beyond("update, disk", ours("update, memory", "p50_us")),
            median(rows, OURS, "update, disk", "fsync_us") or 0.0, "µs"),
        Aim("updates, `disk`, all stations", ours("update, disk, rate", "per_s"), 1_000, "/s", high=True),
        Aim("from an update to another station's watch, p50", watch50, 1_000, "µs"),
        Aim("from an update to another station's watch, p99", watch99, 5_000, "µs"),
        Aim("a program that closes is gone, p50", ours("program gone", "p50_us"), 5_000, "µs"),
        Aim("a station that dies is gone, beyond fail_timeout", beyond(GONE, ours(GONE, "fail_timeout_us")), 50_000, "µs"),
    ]  # fmt: skip
    for row in rows:
        if row["what"] == JOINER and row["ok"]:
            names = f"{row['names']:,} names"
            ratio = row["updates_meanwhile"]["p99_ms"] / max(0.001, row["updates_before"]["p99_ms"])
            found += [
                Aim(f"a joiner has {names}", row["joined_s"], 20, "s"),
                Aim("it comes back after 1,000 changes, when it has checked its file", row["again_s"], 1, "s"),
                Aim("p99 of the others' updates meanwhile, against before", ratio, 3, "×"),
                Aim(f"resident memory with {names}", max(row["resident_mb"].values()), 200, "MB"),
            ]
    return found


COLUMNS: Final = (("p50", "p50_us"), ("p99", "p99_us"), ("per second", "per_s"), ("CPU of the daemons", "cpu_us"))


def render_names(rows: Sequence[Json]) -> str:
    """Both tables, in markdown."""
    if not rows:
        return "No lines.\n"
    systems = [s for s in (OURS, SEVEN, PLAIN, "etcd") if any(r["system"] == s for r in rows)]
    lines = []
    for what in dict.fromkeys(str(r["what"]) for r in rows if r["what"] not in (JOINER, "all")):
        for system in systems:
            values = [median(rows, system, what, name) for _, name in COLUMNS]
            if any(value is not None for value in values):
                lines.append([what, system, *(number(value) for value in values)])
    head = ["times in µs, medians", "system", *(name for name, _ in COLUMNS)]
    about = "; ".join(dict.fromkeys(str(r["version"]) for r in rows))
    machines = ", ".join(dict.fromkeys(str(r["machine"]) for r in rows))
    loads = [float(r["load"]) for r in rows if "load" in r]
    loaded = f" Load average {min(loads):.1f} to {max(loads):.1f}." if loads else ""
    fsync = statistics.median(float(r["fsync_us"]) for r in rows)
    text = (
        f"Machine: {machines}. Versions: {about}. A write and its fsync: {number(fsync)} µs.{loaded}\n\n{markdown(head, lines)}"
    )
    return text + "\n" + markdown(["aim", "measured", "wanted", ""], [aim.cells() for aim in aims(rows)])
