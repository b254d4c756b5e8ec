"""``zenjun bench directory``: what etcd is spoken to in, the load's figures, the tables, and a call in a lab."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import Any

import pytest
from zenjun.tools.bench import etcdwire, nameload, names
from zenjun.tools.bench.etcdwire import EtcdError, Http2, field, fields, inner
from zenjun.tools.bench.names import NamesPlan, run
from zenjun.tools.bench.names_systems import ETCD, GROUP, OURS, SEVEN, EtcdNames
from zenjun.tools.bench.names_table import aims, render_names

Json = dict[str, Any]


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def message(body: bytes) -> bytes:
    return b"\x00" + len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, (1 << 63) + 5])
def test_numbers_of_protocol_buffers(value: int) -> None:
    assert fields(field(3, value) + field(4, b"x" * 200)) == [(3, value), (4, b"x" * 200)]


def test_what_is_no_message_is_refused() -> None:
    for data in (b"\x80", b"\x08", b"\x0d1234"):
        with pytest.raises(EtcdError):
            fields(data)


def test_requests_as_etcds_rpc_proto_has_them() -> None:
    assert etcdwire.put_request(b"k", b"v") == b"\x0a\x01k\x12\x01v"
    assert etcdwire.range_request(b"k", serializable=False) == b"\x0a\x01k"
    assert etcdwire.range_request(b"k", serializable=True) == b"\x0a\x01k\x38\x01"
    assert etcdwire.watch_request(b"a.") == b"\x0a\x08\x0a\x02a.\x12\x02a/"
    event = field(1, 0) + field(2, field(1, b"a.b") + field(5, b"value"))
    assert etcdwire.watched(field(1, b"") + field(11, event) + field(11, event)) == [b"value"] * 2
    assert inner(field(2, field(1, b"k") + field(5, b"v")), 2, 5) == b"v"


def test_answers_come_to_their_calls_however_the_bytes_are_cut() -> None:
    for cut in (1, 7, 1000):
        http = Http2("10.90.0.1:2379")
        seen: dict[str, list[bytes | None]] = {"one": [], "two": []}
        http.call(etcdwire.PUT, b"1", seen["one"].append)
        http.call(etcdwire.WATCH, b"2", seen["two"].append, last=False)
        assert http.take().startswith(etcdwire.PREFACE)
        data = (
            frame(4, 0, 0)
            + frame(1, 4, 3, b"\x88")
            + frame(0, 0, 3, message(b"first") + message(b"second")[:4])
            + frame(0, 0, 1, message(b"done"))
            + frame(1, 5, 1, b"trailers")
            + frame(0, 0, 3, message(b"second")[4:])
            + frame(6, 0, 0, b"12345678")
        )
        for at in range(0, len(data), cut):
            http.receive(data[at : at + cut])
        assert seen == {"one": [b"done", None], "two": [b"first", b"second"]}
        assert http.take() == frame(4, 1, 0) + frame(6, 1, 0, b"12345678")
        with pytest.raises(EtcdError, match="too many pings"):
            http.receive(frame(7, 0, 0, bytes(8) + b"too many pings"))


def test_a_call_that_is_refused_ends_without_a_message() -> None:
    http, seen = Http2("h:1"), list[bytes | None]()
    http.call(etcdwire.PUT, b"", seen.append)
    http.receive(frame(1, 5, 1, b"grpc-status 14"))
    assert seen == [None]


def test_the_windows_are_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcdwire, "AGAIN", 100)
    http = Http2("h:1")
    http.take()
    http.receive(frame(0, 0, 9, bytes(99)))
    assert http.take() == b""
    http.receive(frame(0, 0, 9, bytes(1)))
    assert http.take() == frame(8, 0, 0, (100).to_bytes(4, "big"))


def test_figures() -> None:
    found = nameload.figures([k * 1000 for k in range(100, 0, -1)], 2.0)
    assert found == {"count": 100, "per_s": 50.0, "p50_us": 51.0, "p99_us": 100.0, "max_us": 100.0}
    assert nameload.figures([], 1.0) == {"count": 0, "per_s": 0.0}


def test_a_closed_loop_keeps_so_many_under_way() -> None:
    async def story() -> None:
        now = most = 0
        asked = set()

        async def step(number: int) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            asked.add(number)
            await asyncio.sleep(0.001)
            now -= 1

        found = await nameload.closed_loop(step, 0, 0.0, 5)
        assert found["count"] == found["calls"] == 0
        found = await nameload.closed_loop(step, time.monotonic_ns(), 0.3, 5)
        assert most == 5 and found["count"] >= 5 and found["p50_us"] >= 1000
        assert asked <= set(range(nameload.NAMES)) and len(asked) >= 5

    asyncio.run(story())


def line(system: str, what: str, **figures: Any) -> Json:
    head = {"bench": names.KIND, "system": system, "what": what, "version": "v", "machine": "m", "fsync_us": 400.0, "load": 0.5}
    return {**head, "ok": True, "problems": [], **figures}


def test_aims_are_met_or_missed_by_what_was_measured() -> None:
    rows = [
        line("zenjun", "look-up", p50_us=75.0, per_s=9000.0),
        line("zenjun", "look-up, rate", p50_us=900.0, per_s=19_000.0),
        line("zenjun, no directory", "message, preack", p50_us=200.0, per_s=4000.0),
        *(line("zenjun", "update, memory", p50_us=value, per_s=2000.0) for value in (450.0, 490.0, 9000.0)),
        line("zenjun", "update, disk", p50_us=900.0, per_s=1000.0),
        line("etcd", "update, disk", p50_us=2000.0, per_s=500.0),
    ]
    found = {aim.what: aim.cells()[1:] for aim in aims(rows)}
    assert found["a look-up from the process, p50"] == ["75 µs", "≤ 80 µs", "met"]
    assert found["look-ups from the process, 64 under way"] == ["19,000 /s", "≥ 20,000 /s", "**missed**"]
    assert found["an update, `memory`, p50, beyond a message's"] == ["290 µs", "≤ 300 µs", "met"], "medians of the repeats"
    assert found["an update, `disk`, p50, beyond `memory`"] == ["410 µs", "≤ 400 µs", "**missed**"]
    assert found["updates, `disk`, all stations"] == ["–", "≥ 1,000 /s", "–"], "not measured is not met"
    text = render_names(rows)
    assert "| update, disk | zenjun | 900 | – | 1,000 | – |" in text and "| update, disk | etcd | 2,000 | – | 500 | – |" in text
    assert "A write and its fsync: 400 µs. Load average 0.5 to 0.5." in text
    assert render_names([]) == "No lines.\n"


def test_a_joiner_is_in_the_table_of_aims() -> None:
    figures = {
        "names": 1000, "joined_s": 3.0, "again_s": 1.5, "resident_mb": {"1": 80.0, "3": 210.0},
        "updates_before": {"p99_ms": 2.0}, "updates_meanwhile": {"p99_ms": 5.0},
    }  # fmt: skip
    found = [aim.cells()[-1] for aim in aims([line("zenjun", "joiner", **figures)])][-4:]
    assert found == ["met", "**missed**", "met", "**missed**"]


def test_wrong_options_are_refused() -> None:
    argv = [sys.executable, "-c", "from zenjun.tools.cli import main; main()", "bench", "directory"]
    for words, text in ((["--peers", "consul"], "each must be one of etcd"), (["--names", "2000000"], "2000000")):
        done = subprocess.run([*argv, *words], capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 2 and text in done.stderr and "Traceback" not in done.stderr


@pytest.mark.lab
@pytest.mark.slow
def test_a_call_in_a_lab() -> None:
    """Every measurement gives figures; a joiner gets what the others have, and what has changed since."""
    rows: list[Json] = []
    plan = NamesPlan(seconds=1.0, repeat=1, names=2000)
    run(plan, rows.append)
    assert [problem for row in rows for problem in row["problems"]] == []
    ordered, seven = [m.what for m in (*OURS, *GROUP)] + ["station gone"], [m.what for m in SEVEN] + ["station gone"]
    assert [row["what"] for row in rows] == [*seven, *ordered, "joiner"], "in turns"
    assert len(rows) == plan.lines()
    gone = [row for row in rows if row["what"] == "station gone"]
    assert all(row["p50_us"] > 0.5 * row["fail_timeout_us"] > 0 for row in gone)
    assert all(row["per_s"] > 0 for row in rows[:-1])
    assert rows[-1]["joined_s"] > 0 and rows[-1]["resident_mb"]["3"] > 10
    assert json.loads(json.dumps(rows)) == rows


@pytest.mark.lab
@pytest.mark.slow
def test_etcd_beside_it() -> None:
    if missing := EtcdNames.missing():
        pytest.skip(f"etcd: {missing}")
    rows: list[Json] = []
    run(NamesPlan(seconds=1.0, repeat=1, peers=("etcd",), modes=("ordered",)), rows.append)
    found = [row for row in rows if row["system"] == "etcd"]
    assert [problem for row in found for problem in row["problems"]] == []
    assert [row["what"] for row in found] == [m.what for m in ETCD] and all(row["count"] > 0 for row in found)
