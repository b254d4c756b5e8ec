"""The figures that keys, links and frame sizes have to reach, side by side in one call, each with its bound.

Six parts. *key*: throughput, and one message at a time, without a key, authenticated and encrypted. *both*: the
same over two links, corosync with its crypto beside it. *rate*: two links whose ports are limited against one, without losses
and with losses on one. *cut*: one of two links fails under load. *rotate*: the key changes ten times, flat out, while frames are
lost. *mtu*: 9000 bytes become 1500, flat out, at a station or in the switch. What is compared takes turns in labs of their own
that stand side by side; a ratio is the median of those within one turn.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from ...daemon.client import ClientError, connect_sync
from ...daemon.key import LONG_KEY_BYTES, new_text, read
from ...daemon.keyring import add_to
from ...daemon.trusting import SUITES
from ...proto.envelope import KEYS_MAX
from ..lab import Lab, LabError
from .cell import BenchError, Cell, Json, problems, run_phases, run_window, summary
from .links import CUTS as CUTS
from .links import LOSS, PHASE_S, changes_of
from .plan import machine
from .systems import Corosync, Keyed, System, Zenjun
from .table import markdown, number, size_name

KIND: Final = "trust"
PARTS: Final = ("key", "both", "rate", "cut", "rotate", "mtu")
WARM_S: Final = 1.0
DRAIN_S: Final = 20.0
CHANGES: Final = 10
"""Of the key."""
CHANGE_S: Final = 30.0
"""Longest time for one change to be seen at all stations."""
ROTATE_LOSS: Final = 0.05
LARGE_MTU: Final = 9000
SMALL_MTU: Final = 1500
RATES: Final = ((1, 0.0), (2, 0.0), (2, LOSS))
"""Links, and losses on the second."""
RATE_SIZES: Final = (1300, 65536)
CUT_LOADS: Final = (("auto", 1000.0), ("auto", 0.0), ("passive", 1000.0))
"""links.mode, and messages per second of all; 0: as many as go."""
KEY_CELLS: Final = (("throughput", 64), ("throughput", 1300), ("closed", 64))

RATE_LEAST: Final = {"zenjun-authenticate": 0.93, "zenjun-encrypt": 0.88}
ROUND_TRIP_MOST: Final = {"zenjun-authenticate": 1.05}
TWO_LINKS_LEAST: Final = {0.0: 1.8, LOSS: 1.6}
CUT_MOST_MS: Final = {("auto", 1000.0): 5.0, ("auto", 0.0): 50.0, ("passive", 1000.0): 100.0}
ROTATE_MOST_MS: Final = 20.0
MTU_MOST_MS: Final = 100.0

Report = Callable[[Json], None]
Starting = Callable[[str], None]


@dataclass(frozen=True)
class TrustPlan:
    """Options of one call. mbit: the limit of each link in the part *rate*. seconds: of a window. peers: corosync beside ours.
    realtime: of cuts our daemons and the programs wait for no program without real-time priority."""

    stations: int = 3
    parts: tuple[str, ...] = PARTS
    cuts: tuple[str, ...] = tuple(CUTS)
    mbit: int = 200
    seconds: float = 2.0
    repeat: int = 3
    peers: tuple[str, ...] = ()
    realtime: bool = False
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def runs(self) -> int:
        """How many lines the call will give."""
        peer = len(self.peers)
        lines = {
            "key": len(KEY_CELLS) * (1 + len(SUITES) + 2 * peer),
            "both": len(KEY_CELLS) * (1 + len(SUITES) + 2 * peer),
            "rate": len(RATES) * len(RATE_SIZES) * (1 + peer),
            "cut": len(self.cuts) * (len(CUT_LOADS) + 2 * peer),
            "rotate": 1,
            "mtu": 2,
        }
        return self.repeat * sum(lines[part] for part in self.parts)

    def cell(self, mode: str, size: int, **more: Any) -> Cell:
        """A window of ours."""
        made = Cell(self.stations, self.stations, size, "preack", mode, 0.0, SMALL_MTU, self.seconds, WARM_S, DRAIN_S)
        return replace(made, **more)

    def watched(self, size: int, rate: float = 0.0, seconds: float = 60.0) -> Cell:
        """One of phases. rate: messages per second of all, 0: as many as go."""
        return self.cell("rate" if rate else "throughput", size, rate=rate or 1.0, seconds=seconds, watch=True)


@dataclass(frozen=True)
class Turn:
    """One system in its turn: its lab, the runs that it makes (what a line says beside the figures, and how they are got)."""

    lab: Lab
    system: System
    runs: Sequence[tuple[Json, Callable[[], Json]]]


class Labs:
    """Those of one part, and what is started in them."""

    def __init__(self, plan: TrustPlan, folder: Path, stack: contextlib.ExitStack) -> None:
        self.plan = plan
        self.folder = folder
        self.stack = stack
        self.client = Corosync.build_client(folder) if "corosync" in plan.peers else None
        self._made = 0

    def lab(self, options: Mapping[str, Mapping[str, Any]] | None = None, **about: Any) -> Lab:
        """Raises LabError."""
        return self.stack.enter_context(Lab(self.plan.stations, options=_merged(self.plan.options, options or {}), **about))

    def own_folder(self) -> Path:
        self._made += 1
        path = self.folder / str(self._made)
        path.mkdir()
        return path

    def corosyncs(self, lab: Lab, *, crypto: Sequence[bool], link_mode: str = "passive") -> list[System]:
        """One for each, or none if it was not asked for. Without real-time scheduling: on few processors it is faster so."""
        if self.client is None:
            return []
        made = partial(Corosync, lab, real_time=False, client=self.client, link_mode=link_mode)
        return [made(folder=self.own_folder(), crypto=each) for each in crypto]


def run(plan: TrustPlan, report: Report, starting: Starting = lambda system: None) -> None:
    """Run everything; ``report`` gets one JSON object a run. Every lab and process is gone when it returns or raises. Raises
    LabError when a lab cannot be made, BenchError when a peer cannot be prepared."""
    makers: dict[str, Callable[[Labs], Iterator[Turn]]]
    makers = {"key": _key, "both": partial(_key, links=2), "rate": _rate, "cut": _cut, "rotate": _rotate, "mtu": _mtu}
    with tempfile.TemporaryDirectory(prefix="zenjun-bench.") as folder:
        for part in plan.parts:
            with contextlib.ExitStack() as stack:
                own = Path(folder) / part
                own.mkdir()
                turns = list(makers[part](Labs(plan, own, stack)))
                for repeat in range(1, plan.repeat + 1):
                    first = repeat % len(turns)
                    for turn in turns[first:] + turns[:first]:
                        _take(plan, part, repeat, turn, report, starting)


def _take(plan: TrustPlan, part: str, repeat: int, turn: Turn, report: Report, starting: Starting) -> None:
    running = False
    try:
        for about, figures in turn.runs:
            starting(turn.system.name)
            head = {
                "bench": KIND, "system": turn.system.name, "version": turn.system.version(), "stations": plan.stations,
                "what": part, **about, "repeat": repeat, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "machine": machine(), "load": round(os.getloadavg()[0], 1),
            }  # fmt: skip
            try:
                if not running:
                    turn.system.start()
                    running = True
                found = figures()
            except (BenchError, LabError, ClientError) as error:
                found = {"ok": False, "problems": [str(error)]}
            report({**head, **found})
            if not found["ok"]:  # a backlog would go on into the next run
                turn.system.stop()
                running = False
    finally:
        turn.system.stop()


# ---- parts ----


def _key(labs: Labs, links: int = 1) -> Iterator[Turn]:
    lab = labs.lab(links=links)
    systems: list[System] = [Zenjun(lab), *(Keyed(lab, security, labs.own_folder()) for security in SUITES)]
    for system in systems + labs.corosyncs(lab, crypto=(False, True)):
        cells = [labs.plan.cell(mode, size) for mode, size in KEY_CELLS]
        yield Turn(lab, system, [({"mode": c.mode, "size": c.size}, partial(_window, system, c)) for c in cells])


def _rate(labs: Labs) -> Iterator[Turn]:
    for links, loss in RATES:
        lab = labs.lab(links=links, rate_bit=labs.plan.mbit * 1_000_000)
        if loss:
            lab.impair(link=2, loss=loss)
        for system in [Zenjun(lab), *labs.corosyncs(lab, crypto=(False,), link_mode="rr" if links > 1 else "passive")]:
            cells = [labs.plan.cell("throughput", size) for size in RATE_SIZES]
            about = {"links": links, "loss": loss, "mbit": labs.plan.mbit}
            yield Turn(lab, system, [({**about, "size": c.size}, partial(_window, system, c)) for c in cells])


def _cut(labs: Labs) -> Iterator[Turn]:
    for mode in dict.fromkeys(mode for mode, _ in CUT_LOADS):
        first = {"station": {"realtime_priority": 1}} if labs.plan.realtime else {}
        lab = labs.lab({"links": {"mode": mode}, **first}, links=2)
        system = Keyed(lab, "authenticate", labs.own_folder())
        loads = [rate for each, rate in CUT_LOADS if each == mode]
        yield Turn(lab, system, list(_cuts(labs.plan, lab, system, mode, loads)))
        for peer in labs.corosyncs(lab, crypto=(True,)) if mode == "passive" else ():
            yield Turn(lab, peer, list(_cuts(labs.plan, lab, peer, mode, (1000.0, 0.0))))


def _cuts(
    plan: TrustPlan, lab: Lab, system: System, mode: str, loads: Sequence[float]
) -> Iterator[tuple[Json, Callable[[], Json]]]:
    def healed() -> None:
        lab.heal()
        lab.station(1).cable_in(1)

    for rate in loads:
        for cut in plan.cuts:
            figures = partial(
                _phases, lab, system, plan.watched(64, rate), partial(CUTS[cut], lab), healed, realtime=plan.realtime
            )
            yield {"mode": mode, "rate": rate, "cut": cut, "size": 64}, figures


def _rotate(labs: Labs) -> Iterator[Turn]:
    lab = labs.lab()
    system = Keyed(lab, "authenticate", labs.own_folder())

    def figures() -> Json:
        keys = _keys(lab, system)
        lab.set_loss(ROTATE_LOSS)
        try:
            return _phases(lab, system, labs.plan.watched(64, seconds=CHANGES * CHANGE_S), partial(_change, lab, keys))
        finally:
            lab.set_loss(0.0)

    yield Turn(lab, system, [({"changes_of_key": CHANGES, "loss": ROTATE_LOSS, "size": 64}, figures)])


def _keys(lab: Lab, system: Keyed) -> list[str]:
    """Marks of the keys that all stations can read, the one in use first; adds those that are missing. Raises ClientError,
    BenchError."""
    while len(read(system.key_file)) < KEYS_MAX:
        text = new_text(LONG_KEY_BYTES)
        add_to(system.key_file, text)
        for station in lab.stations.values():
            with connect_sync(str(station.socket_path), timeout=CHANGE_S) as connection:
                connection.key("add", text.strip())
    said = lab.station(1).status(CHANGE_S)["sessions"]
    keys = [said["key"], *(key for key in said["keys"] if key != said["key"])]
    _wait(lab, lambda about: set(about["keys"]) >= set(keys), "not all stations read the new keys")
    return keys


def _change(lab: Lab, keys: Sequence[str]) -> None:
    for i in range(1, CHANGES + 1):
        key = keys[i % len(keys)]
        with connect_sync(str(lab.station(i % lab.size + 1).socket_path), timeout=CHANGE_S) as connection:
            connection.key("rotate", key)
        _wait(lab, lambda about, key=key: about["key"] == key, f"not all stations seal with key {key}")  # type: ignore[misc]


def _wait(lab: Lab, holds: Callable[[Json], bool], otherwise: str) -> None:
    """Until it holds of all stations, as each of them knows it. Raises BenchError."""
    end = time.monotonic() + CHANGE_S
    while True:
        said = [station.status(CHANGE_S)["sessions"] for station in lab.stations.values()]
        if all(holds(about) for each in said for about in (each, *each["stations"].values())):
            return
        if time.monotonic() > end:
            about = "; ".join(f"station {n}: key {each['key']}" for n, each in zip(lab.stations, said, strict=True))
            raise BenchError(f"{otherwise} after {CHANGE_S:g} s ({about})")
        time.sleep(0.02)


def _mtu(labs: Labs) -> Iterator[Turn]:
    for where in ("station", "switch"):
        lab = labs.lab(mtu=LARGE_MTU)
        system = Zenjun(lab)
        last = lab.station(lab.size)
        act = partial(last.set_mtu, SMALL_MTU) if where == "station" else partial(last.set_mtu, LARGE_MTU, port_mtu=SMALL_MTU)

        def figures(
            lab: Lab = lab, system: System = system, act: Callable[[], None] = act, back: Callable[[int], None] = last.set_mtu
        ) -> Json:
            try:
                return _phases(lab, system, labs.plan.watched(8000), act)
            finally:
                system.stop()
                back(LARGE_MTU)
                system.start()

        yield Turn(lab, system, [({"where": where, "size": 8000}, figures)])


# ---- runs ----


def _window(system: System, cell: Cell) -> Json:
    """As ``summary``, and per_cpu_s: messages for each second of a processor that daemons and clients have used. On a machine
    that others use as well this says more than the messages of a second."""
    found = summary(cell, run_window(system, cell))
    cores = found["cpu"]["daemons_cores"] + found["cpu"]["clients_cores"]
    return {**found, "per_cpu_s": round(found["messages_per_s"] / cores, 1) if cores else None}


def _phases(lab: Lab, system: System, cell: Cell, *acts: Callable[[], None], realtime: bool = False) -> Json:
    """Gaps of the first two phases, ms, and by how much a program ran later than it had asked for. Raises BenchError, LabError,
    ClientError."""
    ours = isinstance(system, Zenjun)
    before = changes_of(lab) if ours else 0
    try:
        results, gaps = run_phases(system, cell, acts, PHASE_S, realtime=realtime)
    finally:
        for act in acts[1:]:
            act()
    changes = max(sum(int(r["fewer"]) for r in results), changes_of(lab) - before if ours else 0)
    found = problems(cell, results)
    if changes:
        found.append(f"{changes} changes of members were seen")
    return {
        "gap_ms": gaps[1],
        "gap_before_ms": gaps[0],
        "late_ms": max(r["late_max_ms_by_phase"][1] for r in results),
        "changes": changes,
        "delivered": results[0]["delivered"],
        "ok": not found,
        "problems": found,
    }


def _merged(*options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for each in options:
        for table, values in each.items():
            found.setdefault(table, {}).update(values)
    return found


# ---- the table ----


def render(rows: Sequence[Json]) -> str:
    """One table (markdown): each figure beside what it is measured against, with ratio, bound and verdict."""
    if not rows:
        return "No runs.\n"
    lines = [*_key_lines(rows), *_both_lines(rows), *_rate_lines(rows), *_gap_lines(rows)]
    about = ", ".join(dict.fromkeys(str(r["version"]) for r in rows if r["version"]))
    loads = [float(r["load"]) for r in rows]
    head = (
        f"Machine: {', '.join(dict.fromkeys(str(r['machine']) for r in rows))}, load {min(loads):g} to {max(loads):g}. "
        f"Versions: {about}. {rows[0]['stations']} stations, {max(r['repeat'] for r in rows)} turns; medians, "
        "for gaps the longest.\n"
    )
    columns = ["", "system", "measured", "against", "ratio (range)", "bound", "reached", "failed runs"]
    return f"{head}\n{markdown(columns, lines)}"


def _verdict(reached: bool | None) -> str:
    return "–" if reached is None else "yes" if reached else "**no**"


def _by_turn(rows: Sequence[Json], base: Sequence[Json], path: str) -> list[float]:
    """Ratios of a figure within the same turn."""

    def of(some: Sequence[Json]) -> dict[int, float]:
        return {r["repeat"]: float(r[path]) for r in some if r["ok"] and r.get(path)}

    ours, other = of(rows), of(base)
    return [ours[turn] / other[turn] for turn in sorted(ours.keys() & other.keys())]


def _line(
    what: str, rows: Sequence[Json], base: Sequence[Json], path: str, unit: str, bound: float | None, more: bool
) -> list[str]:
    """One row of the table: a figure against the same one of ``base``."""
    ratios = _by_turn(rows, base, path)
    words = "–" if bound is None else f"{'≥' if more else '≤'} {bound:g}"
    failed = str(sum(not r["ok"] for r in rows))
    system = str(rows[0]["system"])
    if not ratios:
        return [what, system, "–", "–", "–", words, _verdict(None if bound is None else False), failed]
    ratio = statistics.median(ratios)
    one, other = (statistics.median(float(r[path]) for r in some if r["ok"] and r.get(path)) for some in (rows, base))
    shown = f"{ratio:.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
    reached = None if bound is None else ratio >= bound if more else ratio <= bound
    return [what, system, f"{number(one)} {unit}", f"{number(other)} {unit}", shown, words, _verdict(reached), failed]


def _key_lines(rows: Sequence[Json]) -> Iterator[list[str]]:
    keyed = [r for r in rows if r["what"] == "key"]
    for mode, size in KEY_CELLS:
        some = [r for r in keyed if (r["mode"], r["size"]) == (mode, size)]
        throughput = mode == "throughput"
        path, unit = ("messages_per_s", "msg/s") if throughput else ("round_trip_p50_us", "µs")
        what = f"throughput, {size_name(size)}, key against none" if throughput else f"one at a time, p50, {size_name(size)}"
        for system in dict.fromkeys(str(r["system"]) for r in sorted(some, key=lambda r: str(r["system"]))):
            plain = "zenjun" if system.startswith("zenjun") else "corosync-no-rr"
            if system == plain:
                continue
            bound = (RATE_LEAST if throughput else ROUND_TRIP_MOST).get(system)
            ours, base = ([r for r in some if r["system"] == name] for name in (system, plain))
            yield _line(what, ours, base, path, unit, bound, throughput)
            if throughput:
                yield _line(f"the same for each CPU-second, {size_name(size)}", ours, base, "per_cpu_s", "msg", None, True)


def _both_lines(rows: Sequence[Json]) -> Iterator[list[str]]:
    """Two links and a key: ours against corosync's with two links and crypto; alone against two links without a key."""
    both = [r for r in rows if r["what"] == "both"]
    names = sorted({str(r["system"]) for r in both})
    against = next((name for name in names if name.endswith("-crypto")), "zenjun")
    for mode, size in KEY_CELLS:
        some = [r for r in both if (r["mode"], r["size"]) == (mode, size)]
        path, unit = ("messages_per_s", "msg/s") if mode == "throughput" else ("round_trip_p50_us", "µs")
        what = (
            f"two links, {'throughput' if mode == 'throughput' else 'one at a time, p50'}, {size_name(size)}, against {against}"
        )
        base = [r for r in some if r["system"] == against]
        for name in names:
            ours = [r for r in some if r["system"] == name]
            if ours and name != against:
                yield _line(what, ours, base, path, unit, None, True)


def _rate_lines(rows: Sequence[Json]) -> Iterator[list[str]]:
    rates = [r for r in rows if r["what"] == "rate"]
    for system in sorted({str(r["system"]) for r in rates}, key=lambda name: (not name.startswith("zenjun"), name)):
        for size in RATE_SIZES:
            some = [r for r in rates if r["system"] == system and r["size"] == size]
            base = [r for r in some if r["links"] == 1]
            for loss, least in TWO_LINKS_LEAST.items():
                two = [r for r in some if r["links"] == 2 and r["loss"] == loss]
                if two:
                    lossy = f", {loss:.0%} loss on one" if loss else ""
                    what = f"two links of {two[0]['mbit']} Mbit/s against one, {size_name(size)}{lossy}"
                    bound = least if system == "zenjun" else None
                    yield _line(what, two, base, "megabytes_per_s", "MB/s", bound, True)


def _gap_lines(rows: Sequence[Json]) -> Iterator[list[str]]:
    cases: dict[tuple[str, str, float | None], list[Json]] = {}
    for r in rows:
        load = f"{r['rate']:g} msg/s" if r.get("rate") else "flat out"
        ours = str(r["system"]).startswith("zenjun")
        if r["what"] == "cut":
            what = f"link cut ({r['cut']}), {r['mode']}, {load}"
            case = (what, CUT_MOST_MS.get((r["mode"], r["rate"])) if ours else None)
        elif r["what"] == "rotate":
            case = (f"{r['changes_of_key']} changes of the key, flat out, {r['loss']:.0%} loss", ROTATE_MOST_MS)
        elif r["what"] == "mtu":
            case = (f"MTU {LARGE_MTU} → {SMALL_MTU}, {r['where']}, flat out", MTU_MOST_MS)
        else:
            continue
        cases.setdefault((case[0], str(r["system"]), case[1]), []).append(r)
    for (what, system, bound), some in cases.items():
        good = [r for r in some if "gap_ms" in r]
        failed = str(sum(not r["ok"] for r in some))
        words = "–" if bound is None else f"≤ {bound:g} ms, no change of members"
        if not good:
            yield [what, system, "–", "–", "–", words, _verdict(None if bound is None else False), failed]
            continue
        gap, before = (max(float(r[name]) for r in good) for name in ("gap_ms", "gap_before_ms"))
        changes = sum(int(r["changes"]) for r in some if "changes" in r)
        reached = None if bound is None else gap <= bound and failed == "0"
        measured = f"gap {number(gap)} ms, {changes} changes"
        if late := max(float(r.get("late_ms", 0)) for r in good):
            measured += f" (a program was late by up to {number(late)} ms)"
        ratio = f"{gap / before:.2f}" if before else "–"
        yield [what, system, measured, f"{number(before)} ms before", ratio, words, _verdict(reached), failed]
