"""Cost against the number of stations: the table and plot that are made of lines."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from zenjun.tools.bench import width
from zenjun.tools.bench.cell import BenchError
from zenjun.tools.lab import LabError


def line(confirm: str, stations: int, mode: str, cores: float, *, ok: bool = True) -> dict[str, Any]:
    return {"confirm": confirm, "stations": stations, "mode": mode, "ok": ok, "cpu": {"daemons_cores": cores},
            "frames": {"per_message": float(stations)}, "round_trip_p50_us": 40.0 * stations}  # fmt: skip


ROWS = [line(c, n, mode, 0.05 * (n - 1)) for c in width.SETTINGS for n in (2, 5) for mode in width.MODES]


def test_medians_of_what_succeeded_are_written_between_the_marks(tmp_path: Path) -> None:
    rows = [*ROWS, line("merged", 5, "rate", 9.0, ok=False)]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{width.BEGIN}\nold\n{width.END}\nafter\n")
    width.write(rows, page)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    row = next(r for r in text.splitlines() if r.startswith("| 5 |")).strip("| ").split(" | ")
    assert row == ["5", "20", "20", "5", "5", "200", "200", "5", "20"]
    assert (tmp_path / "page" / "width-lab.svg").read_text().count("<svg") == 1


def test_wrong_numbers_and_settings_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["-n", "1,x"], "'1,x' is not a list"),
        (["-n", "17"], "between 2 and 16"),
        (["--confirm", "no"], "no:"),
    ):
        with pytest.raises(SystemExit):
            width.main(arguments)
        assert said in capsys.readouterr().err


def test_lines_of_an_earlier_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert width.main(["--from", str(file)]) == 0
    assert "| 5 | 20 |" in capsys.readouterr().err


@pytest.mark.parametrize(("ended_by", "code", "said"), [
    (KeyboardInterrupt(), 130, "interrupted"),
    (BenchError("station 1 does not answer"), 1, "station 1 does not answer"),
    (LabError("no rights"), 1, "no rights"),
])  # fmt: skip
def test_what_ends_a_sweep_is_one_line_and_what_was_measured_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ended_by: BaseException, code: int, said: str
) -> None:
    def measured(*_: object) -> Generator[dict[str, Any], None, None]:
        yield from ROWS
        raise ended_by

    monkeypatch.setattr(width, "measure", measured)
    assert width.main(["-n", "5"]) == code
    shown = capsys.readouterr()
    assert said in shown.err and "Traceback" not in shown.err and "| 5 | 20 |" in shown.err
    assert len(shown.out.splitlines()) == len(ROWS)
