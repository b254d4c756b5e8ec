"""``zenjun bench programs``: its plan, table and checks. One run of each kind needs a lab, and is there."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from zenjun.daemon.client import Message
from zenjun.tools.bench.programs import KIND, ProgramsPlan, render, run
from zenjun.tools.bench.pyload import CYCLE, INTERFACES, NUMBER, WHAT, Count, Wrong, bodies, check
from zenjun.tools.cli import cli


def line(what: str, interface: str, rate: float, **more: Any) -> dict[str, Any]:
    head = {"bench": KIND, "system": "zenjun", "size": 64, "ok": True, "problems": []}
    return {**head, "what": what, "interface": interface, "messages_per_s": rate, "cpu_us": 1e6 / rate, "p50_us": None, **more}


ROWS = [line("own", "blocking", rate) for rate in (100_000.0, 200_000.0, 400_000.0)]
ROWS += [line("closed", "asyncio", 4_000.0, p50_us=240.0), line("own", "asyncio", 1.0, ok=False)]


def test_the_table_has_medians_of_what_succeeded() -> None:
    text = render(ROWS)
    assert "| blocking | asyncio |" in text and "uvloop" not in text
    assert "| 200,000 · 5 | – |" in text and "4,000 · 250, p50 240 µs" in text


def test_saved_lines_make_the_table(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    shown = CliRunner().invoke(cli, ["bench", "table", str(file)])
    assert shown.exit_code == 0 and "200,000 · 5" in shown.output


def test_the_command_refuses_what_it_does_not_know() -> None:
    for words, error in (
        (["--what", "own,x"], "must be one of"),
        (["--interfaces", "trio"], "must be one of"),
        (["--size", "7"], "range"),
    ):
        shown = CliRunner().invoke(cli, ["bench", "programs", *words])
        assert shown.exit_code == 2 and error in shown.output


def test_a_message_out_of_place_fails_the_run() -> None:
    def message(body: bytes) -> Message:
        return Message(body, "programs", 1, 1, (1, 1, 0), False)

    made = bodies(64)
    assert {len(body) for body in made} == {64}
    check(message(made[5]), CYCLE + 5)
    with pytest.raises(Wrong, match="message 6 of the group has the body of 5"):
        check(message(NUMBER.pack(5)), 6)


def test_only_the_window_counts() -> None:
    now = time.monotonic_ns()
    count = Count(0.001, now)
    assert not count.is_over() or count.total == 0
    count.total = 1000
    while not count.is_over():
        pass
    assert count.result()["messages_per_s"] > 0
    empty = Count(0.0, now)
    assert empty.is_over() and empty.is_over()
    with pytest.raises(Wrong):
        empty.result()


@pytest.mark.lab
def test_every_way_to_write_a_program_runs() -> None:
    rows: list[dict[str, Any]] = []
    plan = ProgramsPlan(seconds=0.3, repeat=1, interfaces=("blocking", "uvloop"))
    run(plan, rows.append)
    assert [row["problems"] for row in rows if not row["ok"]] == []
    assert {(row["what"], row["interface"]) for row in rows} == {(w, i) for w in WHAT for i in INTERFACES if i != "asyncio"}
    assert all(row["messages_per_s"] > 0 and row["cpu_us"] > 0 for row in rows)
