"""``zenjun bench links``: its plan and tables. The runs themselves need a lab and minutes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from zenjun.tools.bench.links import CUTS, PHASES, LinksPlan, render
from zenjun.tools.cli.bench import bench

CUT: dict[str, Any] = {
    "bench": "links", "system": "zenjun", "what": "cut", "mode": "auto", "rate": 1000.0, "cut": "switch", "changes": 0,
    "ok": True,
    "gap_ms": {"before": 2.0, "cut": 4.5, "healed": 3.0}, "problems": [],
}  # fmt: skip
RATE: dict[str, Any] = {
    "bench": "links",
    "system": "zenjun",
    "what": "rate",
    "links": 1,
    "mbit": 200,
    "loss": 0.0,
    "megabytes_per_s": 20.0,
}


def test_a_plan_counts_its_lines() -> None:
    assert LinksPlan().runs() == len(CUTS) * 2 * 2 + 3
    assert LinksPlan(modes=(), cuts=(), repeat=2).runs() == 6 and LinksPlan(mbit=0, cuts=("switch",)).runs() == 4


def test_the_tables_name_the_longest_gaps_and_what_two_links_bring() -> None:
    failed = {**CUT, "mode": "passive", "rate": 0.0}
    del failed["gap_ms"]
    text = render(
        [CUT, {**CUT, "gap_ms": dict.fromkeys(PHASES, 9.0)}, failed, RATE, {**RATE, "links": 2, "megabytes_per_s": 37.0}]
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    assert ["auto", "1000 msg/s", "switch", "9", "9", "9", "0"] in [[cell.removesuffix(".0") for cell in row] for row in rows]
    assert ["passive", "flat out", "switch", "failed", "failed", "failed", "0"] in rows
    assert rows[-1][0] == "2 of 200 Mbit/s" and rows[-1][-1] == "1.85"


def test_saved_lines_give_the_same_tables(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text("\n".join(map(json.dumps, (CUT, RATE))))
    result = CliRunner().invoke(bench, ["table", str(file)])
    assert result.exit_code == 0 and result.output.strip() == render([CUT, RATE]).strip()
