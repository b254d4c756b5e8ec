"""What ``zenjun pcap check`` takes files for, and when it starts a JVM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from zenjun.tools.cli.pcap import options
from zenjun.tools.cli.pcap.check import check
from zenjun.tools.pcap.frames import synthetic
from zenjun.tools.pcap.spark import session


class _Started(Exception):
    """A Spark was asked for."""


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object, **__: object) -> None:
        raise _Started

    monkeypatch.setattr(session, "Session", started)


def test_little_is_judged_without_a_jvm(tmp_path: Path, no_spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic.captures(tmp_path / "frames", pdus=5000)
    run = CliRunner().invoke
    small = run(check, [str(tmp_path / "frames")])
    assert small.exception is None and "the same total order" in small.stdout, small.output
    assert isinstance(run(check, ["--master", "local[*]", str(tmp_path / "frames")]).exception, _Started)
    size = sum(p.stat().st_size for p in (tmp_path / "frames").iterdir())
    monkeypatch.setattr(options, "SPARK_FROM_BYTES", size)
    assert isinstance(run(check, [str(tmp_path / "frames")]).exception, _Started)
    monkeypatch.setattr(options, "SPARK_FROM_BYTES", size + 1)
    assert run(check, [str(tmp_path / "frames")]).exception is None


def test_which_file_was_taken_for_which_station(tmp_path: Path, no_spark: None) -> None:
    folder = tmp_path / "s3"
    made = synthetic.captures(folder, pdus=50)
    for path, name in zip(made.files, ("host-a.pcapng", "host-b.pcapng", "host-c.pcapng"), strict=True):
        path.rename(folder / name)
    result = CliRunner().invoke(check, [str(folder)])
    lines = result.stdout.splitlines()
    assert [f"station {k}: {folder / name}" for k, name in ((1, "host-a.pcapng"), (2, "host-b.pcapng"))] == lines[:2]
    assert sum("the path seems to say station 3" in line for line in lines) == 2, result.output
    told = json.loads(CliRunner().invoke(check, [str(folder), "--json"]).stdout)
    assert [(c["station"], Path(c["path"]).name, c["told"]) for c in told["captures"]] == [
        (1, "host-a.pcapng", "frames"), (2, "host-b.pcapng", "frames"), (3, "host-c.pcapng", "frames"),
    ]  # fmt: skip
    twice = CliRunner().invoke(
        check, [str(folder), "--station", f"1={folder / 'host-a.pcapng'}", "--station", f"1={folder / 'host-b.pcapng'}"]
    )
    assert "station 1: 2 files, taken for one capture:" in twice.output and "they overlap in time" in twice.output
