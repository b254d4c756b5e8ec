"""The process's metric families for Prometheus (docs/metrics.md, rule A4)."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..metrics import labelled, one_of
from ..timing import Timing
from .copy import DATABASE_ERRORS, Copy

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

STATES: Final = ("active", "behind", "waiting", "stopped")
"""``zenjun_directory_state`` is 1 for one of them: this copy is the group's; it catches up; it is not in the group; a message is
of a later format than this program."""
GAUGES: Final = (
    ("leases_here", "Leases of programs connected here", "", "leases_here"),
    ("programs", "Programs connected here", "", "programs"),
    ("watches", "Watches of programs connected here", "", "watches"),
    ("kept_answers", "Answers that programs here keep until they are told of a change", "", "kept"),
    ("out_of_use", "Addresses and stations taken out of use", "", "outs"),
    ("updates_under_way", "Updates of programs here that are not done yet", "", "updates_under_way"),
    ("place_clock", "Logical clock of the last message that is applied here; stations at the same one have the same names", "",
     "place_clock"),
    ("lag_messages", "Messages that have come and are not applied yet", "messages", "lag_messages"),
    ("lag_seconds", "Time since the oldest of them came", "seconds", "lag_s"),
    ("stale_seconds", "Time for which this copy may be behind without knowing it; 0: it is not", "seconds", "stale_s"),
    ("time_seconds", "Directory time: what most clocks have reached, seconds since 1970; 0: not known", "seconds", "time"),
    ("next_due_seconds", "When the next switch or end is due, seconds since 1970; 0: none", "seconds", "next_due"),
    ("transfer_bytes", "Bytes of the state that have come in the transfer to this station", "bytes", "transfer_bytes"),
    ("transfer_total_bytes", "Bytes of the state in that transfer; absent: not known", "bytes", "transfer_total_bytes"),
    ("serving", "Stations that read the state from this one now", "", "serving"),
)  # fmt: skip
"""Name behind ``zenjun_directory_``, help, unit, member of the status."""
COUNTERS: Final = {
    "disk_errors": "Transactions that the disk or SQLite refused",
    "unequal_sums": "Comparisons of all copies that found different ones",
    "gaps": "Times that a watch left out states because its program read too slowly",
}
"""Plain counters: name, and what is counted."""
UPDATE: Final = "updates_"
TRANSFER: Final = "transfer_"
"""How counters begin that are one family with a label."""


def families(copies: Sequence[Copy], s: Mapping[str, Any]) -> Iterator[Metric]:
    """The families of a ``report.measured``, or of a ``zonedreport.measured``. copies: of this station."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    who = {k: str(s[k]) for k in ("version", "cluster", "station")}
    yield InfoMetricFamily("zenjun_directory", "Which process this is", who)
    yield one_of("zenjun_directory_state", "How this station's copy stands", STATES, s["state"])
    for name, text, unit, member in GAUGES:
        if s.get(member) is not None:
            yield GaugeMetricFamily(f"zenjun_directory_{name}", text, value=float(s[member]), unit=unit)
    yield from _by_zone(copies, s)
    yield from _by_station(s)
    counters = s["counters"]
    for name, text in COUNTERS.items():
        yield CounterMetricFamily(f"zenjun_directory_{name}", text, value=float(counters.get(name, 0)))
    for family, text, label, values in (
        ("updates", "Updates of the whole cluster applied here, by outcome", "outcome",
         {"done": 0, **{k.removeprefix(UPDATE): n for k, n in counters.items() if k.startswith(UPDATE)}}),
        ("transfers", "Steps of state transfers to and from this station", "step",
         {k.removeprefix(TRANSFER): n for k, n in counters.items() if k.startswith(TRANSFER)}),
        ("lookups", "Look-ups of programs here, by answer", "answer", {"ok": 0, **s["lookups"]}),
        ("dns_answers", "DNS questions answered, by code", "code", (s["dns"] or {}).get("answers", {})),
        ("dns_dropped", "DNS questions not answered, by reason", "reason", (s["dns"] or {}).get("dropped", {})),
    ):  # fmt: skip
        counted = CounterMetricFamily(f"zenjun_directory_{family}", text, labels=[label])
        yield labelled(counted, (((word,), number) for word, number in values.items()))
    yield from _files([copy.file.path for copy in copies])
    yield from _timings(s["timings"])


def _by_zone(copies: Sequence[Copy], s: Mapping[str, Any]) -> Iterator[Metric]:
    from prometheus_client.metrics_core import GaugeMetricFamily

    leases: Counter[str] = Counter()
    for copy in copies:
        # The file may be replaced by another one while it is read.
        with contextlib.suppress(*DATABASE_ERRORS):
            leases.update(copy.file.leases_by_zone())
    for family, text, numbers in (
        ("names", "Names, by zone", s["names_by_zone"]),
        ("names_max", "Names that a zone may have; absent: no bound", s["names_max_by_zone"]),
        ("leases", "Leases in the whole cluster, by zone of their name", leases),
    ):
        gauge = GaugeMetricFamily(f"zenjun_directory_{family}", text, labels=["zone"])
        yield labelled(gauge, (((zone,), number) for zone, number in numbers.items()))
    if "holders_by_zone" in s:
        for family, text, numbers in (
            ("zone_kept", "Whether this station keeps a zone with holders of its own", s["kept_by_zone"]),
            ("zone_holders", "Active holders of a zone with holders of its own; 0: it is down", s["holders_by_zone"]),
        ):
            gauge = GaugeMetricFamily(f"zenjun_directory_{family}", text, labels=["zone"])
            yield labelled(gauge, (((zone,), number) for zone, number in numbers.items()))


def _by_station(s: Mapping[str, Any]) -> Iterator[Metric]:
    from prometheus_client.metrics_core import GaugeMetricFamily

    for family, text, member in (
        ("up", "Whether a station has a directory process in the cluster", "stations"),
        ("holder", "Whether a station's copy is the group's", "holders"),
    ):
        gauge = GaugeMetricFamily(f"zenjun_directory_{family}", text, labels=["station"])
        yield labelled(gauge, (((station,), station in s[member]) for station in range(1, s["of"] + 1)))
    clocks = GaugeMetricFamily(
        "zenjun_directory_clock_offset_seconds", "Clock of a station minus this one's, when it last said its time",
        labels=["station"], unit="seconds",
    )  # fmt: skip
    yield labelled(clocks, (((station,), offset) for station, offset in sorted(s["clocks"].items())))


def _files(paths: Iterable[Path]) -> Iterator[Metric]:
    from prometheus_client.metrics_core import GaugeMetricFamily

    sizes: Counter[str] = Counter()
    for path in paths:
        for word, name in (("rows", path.name), ("log", path.name + "-wal"), ("building", path.with_suffix(".new").name)):
            with contextlib.suppress(OSError):
                sizes[word] += path.with_name(name).stat().st_size
    gauge = GaugeMetricFamily("zenjun_directory_file_bytes", "Size on disk", labels=["file"], unit="bytes")
    yield labelled(gauge, (((word,), size) for word, size in sizes.items()))


def _timings(timings: Mapping[str, Mapping[str, Timing]]) -> Iterator[Metric]:
    from prometheus_client.metrics_core import HistogramMetricFamily

    for name, text, label in (
        ("commit", "Time of a transaction's end, without or with the wait for the disk", "disk"),
        ("update", "Time from a program's request for an update to its answer, by what it waits for", "wait"),
    ):
        family = HistogramMetricFamily(f"zenjun_directory_{name}_seconds", text, labels=[label], unit="seconds")
        for word, timing in timings[name].items():
            family.add_metric([word], timing.buckets(), sum_value=timing.sum_s)
        yield family
