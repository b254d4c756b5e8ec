"""The process without an order: its command line, what it refuses, what it shows."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from zenjun.daemon.database.driver import connect
from zenjun.daemon.database.driver.service import socket_path
from zenjun.daemon.database.errors import NotReachable, SerializationError, error_of
from zenjun.daemon.database.files import claim
from zenjun.daemon.database.metrics import families
from zenjun.daemon.database.process import Elsewhere, Process
from zenjun.daemon.database.wire import SOCKET, beside
from zenjun.daemon.metrics import openmetrics

CONFIG = """
[cluster]
name = "c"
stations = 3
[station]
id = 1
interface = "lo"
socket = "{0}/zenjund.sock"
state_dir = "{0}/state"
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "zenjun.daemon.database", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)


def test_the_command_line(tmp_path: Path) -> None:
    assert "zenjun-db" in run("--help").stdout and run("--version").stdout.startswith("zenjun-db ")
    assert run("--nonsense").returncode == 2
    missing = run("--config", str(tmp_path / "nothing.toml"))
    assert missing.returncode == 3 and "nothing.toml" in missing.stderr


def test_a_folder_of_another_station_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "zenjund.toml"
    config.write_text(CONFIG.format(tmp_path))
    (tmp_path / "state").mkdir()
    claim(tmp_path / "state" / "db", "c", 2)
    refused = run("--config", str(config))
    assert refused.returncode == 5 and "belongs to station 2 of cluster 'c'" in refused.stderr + refused.stdout


def test_where_the_socket_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ZENJUN_DB", raising=False)
    monkeypatch.delenv("ZENJUN_SOCKET", raising=False)
    assert socket_path(None) == SOCKET and socket_path("/x") == "/x"
    monkeypatch.setenv("ZENJUN_SOCKET", "/run/zenjun/two.sock")
    assert socket_path(None) == "/run/zenjun/two.db.sock" and beside("/a/zenjund.sock") == "/a/db.sock"
    monkeypatch.setenv("ZENJUN_DB", str(tmp_path / "db.sock"))
    with pytest.raises(NotReachable, match="is zenjun-db running"):
        connect("shop")


def place(others: list[int], *, is_blank: bool = False, speaks_later: bool = False, seconds: float = 20.0) -> object:
    """Where a program is sent to whose station has a copy that has failed, while those stations have active ones."""

    async def never(*_: object) -> bool:
        return False

    async def run() -> object:
        known = [] if speaks_later else others
        site = SimpleNamespace(
            active=False, is_blank=is_blank, step="damaged", uuid=SimpleNamespace(hex=lambda: "u"), until=never,
            sites=SimpleNamespace(stations={1, 2, 3}),
        )  # fmt: skip
        machine = SimpleNamespace(nearest=lambda uuid, stations: next(iter(known), None))
        process = SimpleNamespace(sites={"shop": site}, distant=SimpleNamespace(machine=machine, admitted=not speaks_later))

        async def speak() -> None:
            await asyncio.sleep(0.2)
            known.extend(others)
            process.distant.admitted = True

        speaking = asyncio.create_task(speak()) if speaks_later else None
        found = await Process.place_of(process, "shop", seconds)  # type: ignore[arg-type]
        if speaking is not None:
            await speaking
        return found and "here"

    return asyncio.run(run())


@pytest.mark.rule("Z3")
def test_a_copy_that_has_failed_is_not_used_before_the_others_have_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zenjun.daemon.database.process.HERE_S", 60.0)  # more than a starved test loses
    assert place([2]) is None, "at a distance"
    assert place([2], speaks_later=True) is None, "this process has begun a moment ago"
    assert place([]) == "here", "nobody has a better one"
    assert place([], speaks_later=True) == "here"
    assert place([2], is_blank=True, speaks_later=True) is None
    assert place([], is_blank=True, seconds=0.2) == "here", "not for ever"


def test_errors_of_the_process() -> None:
    error = error_of("conflict", "text")
    assert isinstance(error, SerializationError) and (error.code, error.sqlstate, error.retryable) == ("conflict", "40001", True)
    assert error_of("something-new", "text").code == "something-new"


def facts(**others: Any) -> dict[str, Any]:
    return {
        "name": "shop", "version": 9, "durable": 8, "epoch": 1 << 32, "file_bytes": 4096, "wal_bytes": 100, "locks": 0,
        "sync_s": 0.001, "held_s": 0.0,
        "applied": {"buckets": [["0.1", 3.0], ["+Inf", 4.0]], "sum_s": 2.5}, "transfer_bytes": 0,
        "serving": 1, "open": True, "active_sites": [1, 2], "members": [1, 2, 3],
        "sites": [1, 2, 3],
        "synced": {"1": 9, "2": 7}, "counters": {"verdict_done": 5, "verdict_conflict": 2, "failed": 1}, **others,
    }  # fmt: skip


def test_metrics() -> None:
    elsewhere = Elsewhere("other", bytes(16), "replicated", (1, 3)).facts([1])
    databases = [facts(), elsewhere]
    status: dict[str, Any] = {"version": "1", "cluster": "c", "station": 1, "quorum": True, "programs": 2, "databases": databases}
    status["distance"] = {"sessions_here": 3, "sessions_elsewhere": 0}
    text = openmetrics(status, families).decode()
    parsed = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    found = {(s.name, *(v for _, v in sorted(s.labels.items()))): s.value for family in parsed for s in family.samples}
    assert found["zenjun_db_version", "shop"] == 9 and found["zenjun_db_durable_version", "shop"] == 8
    assert [found["zenjun_db_active", "shop", k] for k in "123"] == [1, 1, 0]
    assert found["zenjun_db_lag_versions", "shop", "2"] == 2
    assert found["zenjun_db_transactions_total", "shop", "conflict"] == 2
    assert found["zenjun_db_sessions_here",] == 3
    assert found["zenjun_db_apply_seconds_count", "shop"] == 4 and found["zenjun_db_apply_seconds_sum", "shop"] == 2.5
    assert found["zenjun_db_apply_seconds_bucket", "shop", "0.1"] == 3 and found["zenjun_db_log_held_seconds", "shop"] == 0
    assert found["zenjun_db_sent_again_total", "shop"] == 0
    assert found["zenjun_db_transactions_total", "shop", "read"] == 0
    assert found["zenjun_db_failures_total", "shop"] == 1 and found["zenjun_db_quorum",] == 1
