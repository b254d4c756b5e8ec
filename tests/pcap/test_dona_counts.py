"""Messages of the directory's groups, counted by Spark in tables with known answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from zenjun.proto.wire import Kind, MessageType, group_id
from zenjun.tools.evaluate import dona_counts
from zenjun.tools.evaluate.dona import Setting, Update
from zenjun.tools.evaluate.dona_counts import ASK, Asked
from zenjun.tools.evaluate.experiments import Phase, Run
from zenjun.tools.pcap.tables import schema

START = 1_800_000_000 * 10**9
MS = 1_000_000
_ZERO: dict[str, object] = {"bool": False}
Sent = tuple[int, int, str, MessageType, int]
"""(sending station, number of its PDU, group, type, ms)"""


def _write(folder: Path, sent: list[Sent]) -> None:
    """Tables of two stations that have both delivered everything."""
    for table in ("order", "messages"):
        made = schema.arrow(table)
        for station in (1, 2):
            rows = []
            for src, seq, group, kind, at in sent:
                row: dict[str, Any] = {f.name: None if f.nullable else _ZERO.get(str(f.type), 0) for f in made}
                row.update(src=src, incarnation=1, seq=seq)
                if table == "order":
                    row.update(kind=int(Kind.DATA), sent_ns=START + at * MS if src == station else None)
                else:
                    row.update(group=group_id(group), type=int(kind))
                rows.append({name: row[name] for name in made.names})
            path = folder / table / f"station={station}"
            path.mkdir(parents=True)
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=made), path / "part-0.parquet")


def test_messages_of_a_phase(spark: Any, tmp_path: Path) -> None:
    """A message counts once, at its source, in the phase in which it was sent; other groups do not, nor what the daemon sends."""
    sent = [
        (1, 1, ASK, MessageType.USER, 10),
        (2, 1, ASK, MessageType.USER, 20),
        (1, 2, "zenjun.dir", MessageType.USER, 30),
        (2, 2, "other", MessageType.USER, 40),
        (2, 3, ASK, MessageType.GROUP, 50),
        (2, 4, ASK, MessageType.USER, 150),
        (2, 5, ASK, MessageType.USER, 500),
    ]
    _write(tmp_path, sent)
    run = Run("built", tmp_path, 2, 16, (Phase(START, START + 100 * MS), Phase(START + 101 * MS, START + 300 * MS)))
    counted = dona_counts.sent(spark, [(run, tmp_path), (run, tmp_path)])
    first, second = {(ASK, 1): 1, (ASK, 2): 1, ("zenjun.dir", 1): 1}, {(ASK, 2): 1}
    assert counted == {(0, 0): first, (0, 1): second, (1, 0): first, (1, 1): second}
    asked = Asked(Setting(2, 2), Update.ORDERED, frozenset({1, 2}), 2)
    (point,) = dona_counts.points(spark, [(run, tmp_path)], {(0, 0): asked})
    assert point.network == pytest.approx(3.0)
    assert point.manager == pytest.approx(3.0)
