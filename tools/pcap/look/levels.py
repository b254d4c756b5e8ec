"""When one message reached each level at a station, and its neighbours in the order: by the observer (``replay``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

from ..tables.replay import replay

__all__ = ["in_order", "replay"]

_COLUMNS: Final = ("src", "incarnation", "seq", "clock", "position", "view", "kind")


def in_order(path: Path, pdu: dict[str, Any], levels: Sequence[str], neighbours: int) -> dict[str, Any] | None:
    """The PDU's row of the table ``order``: when it reached each of *levels*, by the station's clock, ``position``, ``view``,
    ``clock``, and this number of PDUs ``before`` and ``after`` it; None: it is not in this station's order. One row group at a
    time is in memory. Raises OSError."""
    columns = [*_COLUMNS, *(f"{level}_ns" for level in levels)]
    file = pq.ParquetFile(path)
    before: list[dict[str, Any]] = []
    found: dict[str, Any] | None = None
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=columns)
        at = -1
        if found is None:
            match = (
                (np.asarray(table["src"]) == pdu["src"])
                & (np.asarray(table["incarnation"]) == pdu["incarnation"])
                & (np.asarray(table["seq"]) & 0xFFFFFFFF == pdu["seq"])
                & (np.asarray(table["clock"]) >> 32 >= 0)
            )
            hits = np.flatnonzero(match)
            if len(hits):
                at = int(hits[0])
                found = table.slice(at, 1).to_pylist()[0]
                near = before + table.slice(max(0, at - neighbours), min(at, neighbours)).to_pylist()
                found["before"] = [_beside(r) for r in near[-neighbours:]]
                found["after"] = []
        if found is not None:
            rest = table.slice(at + 1, neighbours - len(found["after"])).to_pylist()
            found["after"] += [_beside(r) for r in rest]
            if len(found["after"]) >= neighbours:
                break
        else:
            before = (before + table.slice(max(0, table.num_rows - neighbours)).to_pylist())[-neighbours:]
    if found is None:
        return None
    times = {level: found[f"{level}_ns"] for level in levels}
    return times | {key: found[key] for key in ("position", "view", "clock", "before", "after")}


def _beside(row: dict[str, Any]) -> str:
    return f"{row['src']}.{row['incarnation']}:{row['seq'] & 0xFFFFFFFF}"
