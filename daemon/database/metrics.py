"""The process's metric families for Prometheus (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from ...proto.service.database.rows import Verdict
from ..metrics import labelled

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

GAUGES: Final = (
    ("version", "Version of the copy at this station", "", "version"),
    ("durable_version", "Version that is on enough disks", "", "durable"),
    ("epoch", "Epoch of the copy's last version", "", "epoch"),
    ("file_bytes", "Size of the file", "bytes", "file_bytes"),
    ("log_bytes", "Size of SQLite's write-ahead log", "bytes", "wal_bytes"),
    ("locks", "Programs that have the database exclusively, or wait for it", "", "locks"),
    ("sync_seconds", "Time that the last sync took", "seconds", "sync_s"),
    ("log_held_seconds", "For how long snapshots have kept SQLite's log from beginning again", "seconds", "held_s"),
    ("open", "Whether the copy here serves reads", "", "open"),
    ("transfer_bytes", "Bytes of the copy that has begun to arrive", "bytes", "transfer_bytes"),
    ("serving", "Stations that a copy is sent to now", "", "serving"),
)  # fmt: skip
"""Name after ``zenjun_db_``, help, unit, member of ``Site.facts``; each with the label ``database``."""
COUNTERS: Final = (
    ("failures", "Times that the copy here was given up", "failed"),
    ("sent_again", "Times that a program's transaction was sent again, since its order was lost", "sent_again"),
    ("scrubs", "Comparisons of all rows with the other stations'", "scrubs"),
    ("damaged", "Times that the copy here was found to be damaged", "damaged"),
    ("transfers_log", "Copies received as entries of the log", "transfers_log"),
    ("transfers_pages", "Copies received as pages", "transfers_pages"),
)
VERDICT: Final = "verdict_"


def families(status: Mapping[str, Any]) -> Iterator[Metric]:
    """The families of a status of the process (``serving``)."""
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
    )  # fmt: skip

    databases = {facts["name"]: facts for facts in status["databases"] if not facts.get("elsewhere")}
    yield InfoMetricFamily("zenjun_db", "Which process this is", {k: str(status[k]) for k in ("version", "cluster", "station")})
    yield GaugeMetricFamily("zenjun_db_quorum", "Whether this station is in the order", value=float(status["quorum"]))
    yield GaugeMetricFamily("zenjun_db_programs", "Programs connected here", value=float(status["programs"]))
    for name, text, member in (
        ("sessions_here", "Sessions of programs of other stations here", "sessions_here"),
        ("sessions_elsewhere", "Sessions of programs here at other stations", "sessions_elsewhere"),
    ):
        yield GaugeMetricFamily(f"zenjun_db_{name}", text, value=float(status["distance"][member]))
    for name, text, unit, member in GAUGES:
        gauge = GaugeMetricFamily(f"zenjun_db_{name}", text, labels=["database"], unit=unit)
        yield labelled(gauge, (((database,), float(facts[member])) for database, facts in databases.items()))
    for name, text, member in (
        ("active", "Whether a station's copy is active", "active_sites"),
        ("up", "Whether a station has a database process in the cluster", "members"),
    ):
        gauge = GaugeMetricFamily(f"zenjun_db_{name}", text, labels=["database", "station"])
        yield labelled(gauge, (((d, s), s in facts[member]) for d, facts in databases.items() for s in facts["sites"]))
    lag = GaugeMetricFamily(
        "zenjun_db_lag_versions", "Versions that a station's disk does not have yet", labels=["database", "station"]
    )
    behind = (((d, s), max(0, facts["version"] - v)) for d, facts in databases.items() for s, v in facts["synced"].items())
    yield labelled(lag, behind)
    for name, text, member in COUNTERS:
        counter = CounterMetricFamily(f"zenjun_db_{name}", text, labels=["database"])
        yield labelled(counter, (((d,), facts["counters"].get(member, 0)) for d, facts in databases.items()))
    verdicts = CounterMetricFamily(
        "zenjun_db_transactions", "Transactions of programs here, by verdict", labels=["database", "verdict"]
    )
    words = [verdict.value for verdict in Verdict if verdict is not Verdict.UNDECIDED]
    yield labelled(verdicts, (((d, w), f["counters"].get(VERDICT + w, 0)) for d, f in databases.items() for w in words))
    applied = HistogramMetricFamily(
        "zenjun_db_apply_seconds", "Time to decide and apply what came together", labels=["database"], unit="seconds"
    )
    for database, facts in databases.items():
        if (timing := facts["applied"]) is not None:
            applied.add_metric([database], [(bound, n) for bound, n in timing["buckets"]], sum_value=timing["sum_s"])
    yield applied
