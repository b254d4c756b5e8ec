"""/metrics of running daemons: equal to their status, off unless asked for, and no burden on the data path."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from zenjun.daemon.metrics import counter_name
from zenjun.tools.lab import Lab

from ..timing import in_time
from .cluster import PATIENT
from .daemon_common import log, program, refused, status, wait_for

pytestmark = pytest.mark.lab


def where(station: Any) -> Path:
    return Path(station.socket_path).with_name("metrics.sock")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(3, options={"cluster": {**PATIENT["cluster"], "give_up_timeout_ms": 20_000}}) as lab:
        for station in lab.stations.values():
            station.start_daemon({"metrics": {"listen": str(where(station))}})
        lab.wait_open()
        yield lab


def scrape(station: Any) -> dict[tuple[str, ...], float]:
    """One answer, by name and label values."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        sock.connect(str(where(station)))
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        data = b""
        while chunk := sock.recv(65536):
            data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    out = {}
    for family in text_string_to_metric_families(body.decode()):  # type: ignore[no-untyped-call]
        for sample in family.samples:
            out[(sample.name, *(v for _, v in sorted(sample.labels.items())))] = sample.value
    return out


def test_every_counter_of_the_status_under_traffic(lab: Lab) -> None:
    station = lab.station(2)
    with program(lab.station(1), "sender") as client:
        group = client.join("g")
        group.send_many([b"x" * 100] * 500)
        # All stations have them; the other one may still be delivering.
        wait_for(lambda: status(station)["counters"]["core"]["messages_delivered"] >= 500, "it has delivered them", lab=lab)
        before, seen, after = status(station), scrape(station), status(station)
    checked = 0
    for part, counters in before["counters"].items():
        for name, low in counters.items():
            value = seen[f"{counter_name(part, name)}_total",]
            assert low <= value <= after["counters"][part][name], (part, name)
            checked += 1
    assert checked > 40
    for reason, low in before["drops"].items():
        assert low <= seen["zenjun_dropped_frames_total", reason] <= after["drops"][reason]
    assert seen["zenjun_core_messages_delivered_total",] >= 500
    assert seen["zenjun_state", "open"] == 1 and seen["zenjun_instance",] == before["instance"]
    assert seen["zenjun_group_members", "g"] == 1
    assert {k[2] for k in seen if k[0] == "zenjun_peer_state"} == {"1", "2", "3"}


def test_a_station_that_is_removed_and_the_want_of_a_quorum_are_seen(lab: Lab) -> None:
    def seen(*names: str) -> tuple[float, ...]:
        """Gauges of station 1."""
        found = scrape(lab.station(1))
        return tuple(found[name,] for name in names)

    changes = seen("zenjun_membership_changes_total")[0]
    lab.station(3).signal(signal.SIGSTOP)
    try:
        wait_for(lambda: seen("zenjun_members", "zenjun_quorum") == (2, 1), "it is removed", lab=lab)
        now = scrape(lab.station(1))
        assert now["zenjun_state", "open"] == 1 and now["zenjun_membership_changes_total",] > changes
        assert [k[3] for k, v in now.items() if k[0] == "zenjun_peer_state" and k[2] == "3" and v] == ["out"]
        lab.station(2).signal(signal.SIGSTOP)
        wait_for(
            lambda: scrape(lab.station(1)).get(("zenjun_blocked_seconds", "silent", "2"), -1) >= 0, "2 is waited for", lab=lab
        )
        now = scrape(lab.station(1))
        assert now["zenjun_quorum",] == 0 and now["zenjun_state", "open"] == 0
    finally:
        for station in (2, 3):
            lab.station(station).signal(signal.SIGCONT)
    wait_for(lambda: seen("zenjun_members", "zenjun_quorum") == (3, 1), "all are in again", 30, lab=lab)


def test_scrapes_leave_the_data_path_alone(lab: Lab) -> None:
    """Fifty scrapes in a row while messages go: each message still arrives in a fraction of the silence timeout. A few may have
    met with a machine that does something else."""
    took: list[float] = []
    with program(lab.station(1), "ping") as client:
        group = client.join("ping")
        for _ in range(50):
            scrape(lab.station(1))
            started = time.monotonic()
            group.send(b"x")
            took.append(time.monotonic() - started)
    in_time(sorted(took)[44] < 0.5, f"all but a few messages: {took}")
    assert "blocked" not in log(lab.station(1)).split("unblocked")[-1]


def test_what_cannot_be_listened_at_ends_the_start(lab: Lab) -> None:
    station = lab.station(3)
    station.stop_daemon()
    station.write_config({"metrics": {"listen": str(where(lab.station(1)))}})
    code, line = refused(station)
    assert code == 6 and f"the socket for metrics {where(lab.station(1))} is in use" in line
    station.write_config()
    station.start_daemon()
    wait_for(lambda: status(station).get("state") == "open", "open again", lab=lab)
    assert not where(station).exists(), "off by default, and the old socket was removed"
