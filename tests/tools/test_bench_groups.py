"""``zenjun bench groups``: its plan and tables. The runs themselves need a lab and minutes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from zenjun.tools.bench import groups as bench_groups
from zenjun.tools.bench.cell import BenchError
from zenjun.tools.bench.groups import KIND, ORDERS, WHAT, GroupsPlan, cheaper, render
from zenjun.tools.cli import cli

HEAD = {"bench": KIND, "system": "zenjun", "stations": 4, "ok": True, "problems": []}


def lone(order: str, size: int, frames: float, done_us: float = 1.0) -> dict[str, Any]:
    return {
        **HEAD,
        "what": "lone",
        "order": order,
        "group": size,
        "level": "preack",
        "frames": frames,
        "done_us": done_us,
        "cpu_us": 10.0 * size,
    }


ROWS = [lone("total", n, 12.0) for n in (1, 2, 3, 4)] + [lone("token", n, 6.0 * (n - 1)) for n in (1, 2, 3, 4)]


def test_a_plan_has_all_cells() -> None:
    plan = GroupsPlan(stations=4)
    cells = plan.cells()
    assert {cell[0] for cell in cells} == set(WHAT)
    assert sum(cell[0] == "lone" for cell in cells) == 2 * 4 * len(ORDERS)
    assert ("steady", "idle", 3, "preack", 1) in cells and ("kill", "idle", 3, "preack", 1) not in cells
    assert [c.hosts for c in cells if c[0] == "latency" and c.order == "token" and c.level == "ordered"] == [1, 2, 3]
    assert GroupsPlan(stations=4, what=("pairs",), orders=("token",), repeat=3).runs() == 3


def test_tables_say_from_which_size_on_total_is_cheaper() -> None:
    text = render(ROWS)
    assert "| N | total, frames | token, frames |" in text and "| 4 | 12 | 18 |" in text
    assert "token, frames received: from N = 3 on" in text and "token, time until done: from N = 1 on" in text
    assert "never" in cheaper([*ROWS[:7], lone("token", 4, 1.0)])


def test_what_failed_is_left_out() -> None:
    failed = {**HEAD, "what": "pairs", "order": "token", "group": 2, "level": "preack", "ok": False, "problems": ["x"]}
    steady = {**HEAD, "what": "steady", "group": 3, "level": "preack"}
    some = [
        {**steady, "order": "idle", "rx_per_s": {"inside": 5, "outside": 4}, "cores": {"inside": 0.01, "outside": 0.02}},
        {**steady, "order": "token", "rx_per_s": {"inside": 300, "outside": 4}, "cores": {"inside": 0.1, "outside": 0.02}},
    ]
    latency = {**HEAD, "what": "latency", "order": "token", "group": 3, "level": "ordered", "own_us": 1.0, "messages_per_s": 2.0}
    some += [{**latency, "hosts": hosts, "latency_us": 10.0 * hosts} for hosts in (1, 2)]
    text = render([failed, *some])
    assert "| token | 10 | 1 | 2 |" in text and "| token, 2 hosts | 20 | 1 | 2 |" in text
    assert "pairs" not in text and "| token | 300 | 4 |" in text and "| idle | 5 | 4 | 0.01 | 0.02 | – |" in text


def test_saved_lines_make_the_tables(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    shown = CliRunner().invoke(cli, ["bench", "table", str(file)])
    assert shown.exit_code == 0 and "Lone messages at preack" in shown.output


def test_the_command_refuses_what_it_does_not_know() -> None:
    for words, error in (
        (["--what", "lone,rest"], "must be one of"),
        (["--orders", "op"], "must be one of"),
        (["-n", "3"], "not in the range"),
    ):
        shown = CliRunner().invoke(cli, ["bench", "groups", *words])
        assert shown.exit_code == 2 and error in shown.output


def test_a_station_that_was_killed_runs_again_whatever_becomes_of_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that gives no result fails its cell; the next one wants all stations."""

    class Silent:
        station = 1

        def __init__(self, station: int, process: object) -> None:
            self.process = SimpleNamespace(pid=0)

        def line(self, word: str, deadline: float) -> str:
            if word == "RESULT":
                raise BenchError("no result")
            return ""

        def say(self, text: str) -> None: ...

        def end(self, grace_s: float) -> None: ...

    done: list[str] = []
    system = SimpleNamespace(
        daemon_pids=list, interface="", kill=lambda station: done.append("kill"), restart=lambda station: done.append("restart")
    )
    lab = SimpleNamespace(stations={}, wait_open=lambda seconds: done.append("open"))
    monkeypatch.setattr(bench_groups, "Client", Silent)
    monkeypatch.setattr(bench_groups._Loaded, "_spawn", lambda *_: None)
    monkeypatch.setattr(bench_groups._Loaded, "_words", lambda *_: [])
    monkeypatch.setattr(bench_groups, "WARM_S", 0.0)
    plan = GroupsPlan(stations=4, seconds=0.0)
    line = bench_groups.Line("kill", "token", 3, "preack")
    with pytest.raises(BenchError):
        bench_groups._Loaded(plan, cast("Any", lab), cast("Any", system), line).measure()
    assert done == ["kill", "restart", "open"]
