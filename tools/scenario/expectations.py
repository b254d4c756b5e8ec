"""Whether a run went as its scenario expects: one verdict for each check of the histories and each thing expected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..histories import multicasts
from ..histories.checker import CHECKS, SAID_SAFE, Context, Report, about, judge
from ..histories.history import SAFE, History
from .model import Joining, Range, Scenario, Switching, Window, listing


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one check, or of one thing expected."""

    name: str
    held: bool
    text: str
    """What it is for, or what was found."""
    violations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of a whole run."""

    report: Report
    verdicts: tuple[Verdict, ...]
    multicast: Report | None = None
    """Of programs in groups that overlap."""

    @property
    def held(self) -> bool:
        return all(verdict.held for verdict in self.verdicts)


def judge_run(
    scenario: Scenario,
    history: History,
    counters: Mapping[str, int],
    began_ns: int,
    beside: Mapping[str, Mapping[str, Any]] | None = None,
) -> Judgement:
    """Judge the histories of a run.

    counters: ``lost`` and ``cut`` frames of all stations together, ``orders`` that were refused. began_ns: when the time line
    began, monotonic. beside: what ``joining``, ``switching`` and ``multicasting`` have found, by section of the file; ``said``:
    by text, the stations whose daemons have said it.
    """
    beside = beside or {}
    report = judge(history)
    verdicts = [_of_check(name, report) for name in CHECKS]
    verdicts += _expected(scenario, history, report, counters, began_ns)
    verdicts += [_said(text, beside.get("said", {}).get(text, ())) for text in scenario.expect.said]
    if scenario.joining is not None:
        verdicts += _of_state(scenario.joining, beside.get("state", {}))
    if scenario.switching is not None:
        verdicts += _of_names(scenario.switching, beside.get("names", {}))
    if scenario.multicasting is not None:
        verdicts += _of_multicast(beside.get("multicast", {}))
    return Judgement(report, tuple(verdicts), beside.get("multicast", {}).get("report"))


def _of_state(joining: Joining, found: Mapping[str, Any]) -> Iterator[Verdict]:
    if "gap_ms" not in found:
        yield Verdict("state.equal", False, f"the joiner has the state; found: {found.get('error', 'nothing')}")
        return
    text = f"after {found['messages']} messages; it took the joiner {found['joined_ms']} ms"
    yield Verdict("state.equal", bool(found["equal"]), f"all have equal states {text}")
    gap = int(found["gap_ms"])
    yield Verdict(
        "state.gap", gap <= joining.gap_ms, f"{gap} ms without a delivery at a donor; expected: {joining.gap_ms} at most"
    )


def _of_names(switching: Switching, found: Mapping[str, Any]) -> Iterator[Verdict]:
    if "late_ms" not in found:
        yield Verdict("names.switched", False, f"all stations switch; found: {found.get('error', 'nothing')}")
        return
    late, early, back = int(found["late_ms"]), int(found["early_ms"]), int(found["back"])
    text = f"the last station switched {late} ms after the instant; expected: {switching.within_ms} at most"
    yield Verdict("names.switched", late <= switching.within_ms, text)
    yield Verdict("names.early", not early, f"the first station switched {early} ms before the instant; expected: none")
    yield Verdict("names.once", not back, f"the old address came back {back} times; expected: never")


def _of_multicast(found: Mapping[str, Any]) -> Iterator[Verdict]:
    if "report" not in found:
        yield Verdict("multicast.judged", False, f"the programs have recorded all; found: {found.get('error', 'nothing')}")
        return
    report: Report = found["report"]
    for name in multicasts.CHECKS:
        lines = tuple(report.violations.get(name, ()))
        yield Verdict(f"multicast.{name}", not lines, multicasts.about(name), lines)
    links = found["links"]
    frames, spread, records = (links.get(key, 0) for key in ("frames", "to_group_address", "records"))
    text = f"records go between stations that they concern: {records} in {frames} frames, {spread} of them at the group address"
    yield Verdict("multicast.genuine", not found["genuine"], text, tuple(found["genuine"]))
    done = report.figures.get("sent_done", 0)
    text = f"{done} messages known to be done, {report.figures['at_several_stations']} delivered at several stations"
    yield Verdict("multicast.sent", done > 0, text)


def _of_check(name: str, report: Report) -> Verdict:
    found = tuple(report.violations.get(name, ()))
    return Verdict(name, not found, about(name), found)


def _expected(
    scenario: Scenario, history: History, report: Report, counters: Mapping[str, int], began_ns: int
) -> Iterator[Verdict]:
    expect = scenario.expect
    context = Context(history)
    figures = report.figures
    yield _count("sent", figures.get("sent_done", 0), expect.sent, "messages known to be delivered")
    counts = (
        ("refused", figures.get("sent_refused", 0), expect.refused, "messages refused"),
        ("orders_refused", counters["orders"], expect.orders_refused, "orders of an operator refused"),
        ("changes", changes(context), expect.changes, "instances after the first"),
        ("lost", counters["lost"], expect.lost, "frames lost by impairments"),
        ("cut", counters["cut"], expect.cut, "frames dropped by cuts"),
    )
    for name, count, wanted, what in counts:
        if wanted is not None:
            yield _count(name, count, wanted, what)
    if expect.removed is not None:
        found = removed(context)
        held = found == set(expect.removed)
        yield Verdict("expect.removed", held, f"{listing(sorted(found))}; expected: {listing(expect.removed)}")
    if expect.silence_max is not None:
        silence = figures["longest_silence_ms"] / scenario.fail_timeout_ms
        yield Verdict(
            "expect.silence_max",
            silence <= expect.silence_max,
            f"{silence:.1f} fail timeouts without a delivery ({figures['longest_silence_ms']} ms); "
            f"expected: {expect.silence_max:g} at most",
        )
    for window in expect.silent:
        yield _silent(context, window, began_ns)
    for window in expect.serves:
        yield _serves(context, window, began_ns)


def _said(text: str, stations: Iterable[int]) -> Verdict:
    return Verdict("expect.said", bool(found := sorted(stations)), f'"{text}" is in the log of: {listing(found)}')


def _count(name: str, count: int, wanted: Range, what: str) -> Verdict:
    return Verdict(f"expect.{name}", count in wanted, f"{count} {what}; expected: {wanted}")


def changes(context: Context) -> int:
    """Number of changes of the instance that programs got."""
    instances = {tag for life in context.lives for tag in life.tags} | set(context.stations_of())
    return max(0, len(instances - {0}) - 1)


def removed(context: Context) -> set[int]:
    """Stations that were reported to some program as left or removed."""
    return {int(s) for life in context.lives for item in life.items if item.kind == "view" for s in item.raw["left"]}


def _silent(context: Context, window: Window, began_ns: int) -> Verdict:
    low, high = (began_ns + ms * 1_000_000 for ms in (window.begin_ms, window.end_ms))
    found = []
    for connection in context.history.connections:
        if connection.station not in window.stations:
            continue
        given = [item.name for item in connection.items if item.kind == "message" and low <= item.t <= high]
        if given and connection.slot in SAFE:
            found.append(f"{connection.id} was given {len(given)} messages, {given[0]} first")
        told = [s.name for s in connection.sent if s.result == "done" and s.level in SAID_SAFE and low <= s.t_result <= high]
        if told:
            found.append(f"{connection.id} was told of {len(told)} messages that they are safe, {told[0]} first")
    return Verdict("expect.silent", not found, f"nothing is safe at {window}", tuple(found))


def _serves(context: Context, window: Window, began_ns: int) -> Verdict:
    low, high = (began_ns + ms * 1_000_000 for ms in (window.begin_ms, window.end_ms))
    given = dict.fromkeys(window.stations, 0)
    for connection in context.history.connections:
        if connection.station in given and connection.slot in SAFE:
            names = [item.name for item in connection.items if item.kind == "message" and low <= item.t <= high]
            given[connection.station] += sum(low <= context.history.sent[n].t for n in names if n in context.history.sent)
    found = tuple(f"station {station} was given nothing that was sent then" for station, count in given.items() if not count)
    return Verdict("expect.serves", not found, f"messages are safe at {window}", found)
