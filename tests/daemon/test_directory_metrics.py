"""/metrics of zenjun-directory: names after the conventions, values of the status, and that it is off unless asked for."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from zenjun.daemon.directory import metrics
from zenjun.daemon.directory.copy import Copy, Heard, Seen
from zenjun.daemon.directory.store import File
from zenjun.daemon.directory.timing import CLOCK_OFF_S, Clocks
from zenjun.daemon.metrics import openmetrics
from zenjun.daemon.names import NoName, connect_directory_sync
from zenjun.daemon.timing import Timing
from zenjun.proto.service.directory.entries import Target
from zenjun.proto.service.directory.messages import Id, Update, encode
from zenjun.proto.service.directory.operations import Operation, Register, Set, SetZone

WHO = (1, 7)
ROOT = Path(__file__).resolve().parents[2]
ROLES = ("operator", "user:root")


def filled(folder: Path) -> Copy:
    """A zone with a bound, three names in it, one of them held by a lease, and an exclusive one with a queue in no zone."""
    copy = Copy(File(folder, "c", 1))
    operations: list[tuple[Operation, ...]] = [
        (SetZone("plant", ("group:ops",), ("*",), (), 50),),
        tuple(Set(f"plant.{k}", (Target("tcp://10.0.0.7:5432"),), zone="plant") for k in range(2)),
        (Register("plant.2", "tcp://10.0.0.7:80", 1, zone="plant"),),
        (Register("leader", "station:1/job", 2, exclusive=True),),
        (Register("leader", "station:1/job", 3, exclusive=True),),
    ]
    updates = [Update(Id("0123456789abcdef", k), ROLES, each) for k, each in enumerate(operations)]
    heard = [Heard((k + 2, 1, 0), WHO, encode(update)) for k, update in enumerate(updates)]
    applied = copy.apply([Seen((1, 1, 0), (WHO,), (WHO,)), *heard])
    assert [r.outcome.code for r in applied.results[1:] if r.outcome is not None] == [""] * 5
    return copy


def status(copy: Copy, **others: Any) -> dict[str, Any]:
    return {
        "version": "1", "cluster": "c", "station": 1, "of": 3, "state": "active", "stations": [1, 2], "holders": [1],
        "clocks": {"2": -40}, "counters": {}, "lookups": {},
        "dns": {"answers": {"NOERROR": 3}, "dropped": {"limited": 2}}, "file": str(copy.file.path),
        "names_by_zone": {"default": 1},
        "names_max_by_zone": {}, "timings": {"commit": copy.commits, "update": {}}, **others,
    }  # fmt: skip


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Value by name and label values, through the strict parser."""
    out: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):  # type: ignore[no-untyped-call]
        assert re.fullmatch(r"(zenjun_directory|process)(_[a-z][a-z0-9]*)*", family.name), family.name
        assert family.documentation, family.name
        for sample in family.samples:
            out[(sample.name, *(v for _, v in sorted(sample.labels.items())))] = sample.value
    return out


def made(copy: Copy, **others: Any) -> dict[tuple[str, ...], float]:
    return samples(openmetrics(status(copy, **others), partial(metrics.families, (copy,))).decode())


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Copy]:
    found = filled(tmp_path)
    yield found
    found.rows.close()


def test_leases_are_counted_by_the_zone_of_their_name(copy: Copy) -> None:
    seen = made(copy)
    assert seen["zenjun_directory_leases", "plant"] == 1
    assert seen["zenjun_directory_leases", "default"] == 2, "who waits for an exclusive name has a lease, too"


def test_stations_clocks_and_files(copy: Copy) -> None:
    seen = made(copy)
    assert [seen["zenjun_directory_up", k] for k in "123"] == [1, 1, 0]
    assert [seen["zenjun_directory_holder", k] for k in "123"] == [1, 0, 0]
    assert seen["zenjun_directory_clock_offset_seconds", "2"] == -40
    assert seen["zenjun_directory_file_bytes", "log"] > 0
    assert ("zenjun_directory_file_bytes", "building") not in seen
    assert seen["zenjun_directory_state", "active"] == 1 and seen["zenjun_directory_state", "behind"] == 0


def test_updates_and_look_ups_by_what_came_of_them(copy: Copy) -> None:
    seen = made(copy, counters={"updates_exists": 4, "transfer_restored": 2, "disk_errors": 3}, lookups={"no-name": 9})
    assert seen["zenjun_directory_updates_total", "exists"] == 4 and seen["zenjun_directory_updates_total", "done"] == 0
    assert seen["zenjun_directory_lookups_total", "no-name"] == 9 and seen["zenjun_directory_lookups_total", "ok"] == 0
    assert seen["zenjun_directory_transfers_total", "restored"] == 2
    assert seen["zenjun_directory_disk_errors_total",] == 3 and seen["zenjun_directory_gaps_total",] == 0


def test_transactions_are_timed(copy: Copy) -> None:
    seen = made(copy)
    assert seen["zenjun_directory_commit_seconds_count", "no"] == 1
    assert seen["zenjun_directory_commit_seconds_count", "yes"] == 0
    assert seen["zenjun_directory_commit_seconds_sum", "no"] > 0


def test_a_time_is_in_the_class_up_to_its_bound() -> None:
    timing = Timing()
    for seconds in (0.0001, 0.0002, 11.0):
        timing.add(seconds)
    found = dict(timing.buckets())
    assert (found["0.0001"], found["0.00025"], found["10.0"], found["+Inf"]) == (1, 2, 2, 3)
    assert timing.sum_s == pytest.approx(11.0003)


def test_a_wrong_clock_is_told_once_until_it_was_right() -> None:
    clocks = Clocks()
    told = [clocks.on_due(2, 1000 + late, 1000.9) for late in (0, CLOCK_OFF_S - 1, CLOCK_OFF_S, CLOCK_OFF_S, 0, -CLOCK_OFF_S)]
    assert told == [0, 0, CLOCK_OFF_S, 0, 0, -CLOCK_OFF_S]
    assert clocks.wrong() == [2] and clocks.offsets == {2: -CLOCK_OFF_S}


def test_dns_questions_by_what_came_of_them(copy: Copy) -> None:
    seen = made(copy)
    assert seen["zenjun_directory_dns_answers_total", "NOERROR"] == 3
    assert seen["zenjun_directory_dns_dropped_total", "limited"] == 2
    assert not [key for key in made(copy, dns=None) if "_dns_" in key[0]]


def test_every_family_is_in_the_documentation(copy: Copy) -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    for name, *_ in made(copy):
        base = re.sub(r"_(total|bucket|count|sum|created|info)$", "", name)
        if base.startswith("zenjun_directory_"):
            assert base in text or f"`…_{base.removeprefix('zenjun_directory_')}" in text, base


def test_the_process_answers_where_it_is_told_to(tmp_path: Path) -> None:
    filled(tmp_path / "state").rows.close()
    config = tmp_path / "zenjund.toml"
    config.write_text(
        f'[cluster]\nname = "c"\nstations = 3\n[station]\nid = 1\ninterface = "eth0"\nsocket = "{tmp_path}/zenjund.sock"\n'
        f'state_dir = "{tmp_path}/state"\n[directory]\nmetrics = "{tmp_path}/metrics.sock"\n'
    )
    argv = [sys.executable, "-m", "zenjun.daemon.directory", "--config", str(config)]
    with subprocess.Popen(argv) as process:
        try:
            with connect_directory_sync(str(tmp_path / "directory.sock"), wait=120, timeout=60) as d:
                assert d.lookup("leader").addresses == ("station:1/job",)
                with pytest.raises(NoName):
                    d.lookup("nothing")
                seen = scrape(tmp_path / "metrics.sock")
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
    assert not (tmp_path / "metrics.sock").exists()
    assert seen["zenjun_directory_state", "waiting"] == 1 and seen["zenjun_directory_stale_seconds",] > 0
    assert seen["zenjun_directory_names", "plant"] == 3 and seen["zenjun_directory_names", "default"] == 1
    assert seen["zenjun_directory_names_max", "plant"] == 50
    assert seen["zenjun_directory_lookups_total", "ok"] == 1 and seen["zenjun_directory_lookups_total", "no-name"] == 1
    assert seen["zenjun_directory_place_clock",] == 6 and seen["zenjun_directory_programs",] == 1
    assert seen["process_resident_memory_bytes",] > 0


def scrape(path: Path) -> dict[tuple[str, ...], float]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        sock.connect(str(path))
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        data = b""
        while chunk := sock.recv(65536):
            data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK"), data[:500]
    return samples(body.decode())
