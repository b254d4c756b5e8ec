"""Points for the DONA paper's figures, from captures: messages of the directory's groups, counted by Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from ...proto.wire import MessageType
from ..pcap.tables import schema
from .dona import Point, Setting, Update
from .experiments import Run

ASK: Final = "zenjun.dir.ask"
"""Between a terminal and its manager, or two managers: each request and its answer has one sender and one receiver."""
COMMON: Final[Mapping[Update, str]] = {
    Update.UNICAST: "zenjun.dir.seven", Update.BROADCAST: "zenjun.dir.seven", Update.ORDERED: "zenjun.dir",
}  # fmt: skip
"""The group in which managers change the common directory."""
_GROUPS: Final = frozenset({ASK, *COMMON.values()})


@dataclass(frozen=True, slots=True)
class Asked:
    """What one recorded phase was asked to do. Its calls are dealt by quota, without conflicts: every node makes the same number,
    and the shares d and p are met exactly.

    managers: their stations. calls: of all nodes together.
    """

    setting: Setting
    update: Update
    managers: frozenset[int]
    calls: int


def sent(spark: Any, runs: Sequence[tuple[Run, Path]]) -> dict[tuple[int, int], dict[tuple[str, int], int]]:
    """Count programs' messages in the directory's groups: (run, phase) -> (group, sending station) -> messages.

    runs: each with the folder of its tables, made from one capture of each station. A message counts once, by the time of its
    first transmission at its source. Repetitions, CONFIRMs and heartbeats are not messages.
    """
    out: dict[tuple[int, int], dict[tuple[str, int], int]] = {
        (i, k): {} for i, (run, _) in enumerate(runs) for k in range(len(run.phases))
    }
    names = {crc32(name.encode("ascii")): name for name in _GROUPS}
    for r in _counted(spark, runs, "group, src"):
        out[r.run, r.phase][names[r.group], r.src] = int(r.n)
    return out


def sizes(spark: Any, runs: Sequence[tuple[Run, Path]]) -> dict[tuple[int, int], dict[int, int]]:
    """Count the same messages by their size: (run, phase) -> bytes -> messages."""
    out: dict[tuple[int, int], dict[int, int]] = {(i, k): {} for i, (run, _) in enumerate(runs) for k in range(len(run.phases))}
    for r in _counted(spark, runs, "size"):
        out[r.run, r.phase][int(r.size)] = int(r.n)
    return out


def _counted(spark: Any, runs: Sequence[tuple[Run, Path]], by: str) -> list[Any]:
    """Rows of run, phase, what is counted by, and n."""
    session = spark.newSession()
    for name in ("order", "messages"):
        parts = [schema.read(session, folder, name).selectExpr(f"{i} AS run", "*") for i, (_, folder) in enumerate(runs)]
        reduce(lambda a, b: a.unionByName(b), parts).createOrReplaceTempView(name)
    phases = [(i, k, phase) for i, (run, _) in enumerate(runs) for k, phase in enumerate(run.phases)]
    values = ", ".join(f"({i}, {k}, {phase.begin_ns}L, {phase.end_ns}L)" for i, k, phase in phases)
    session.sql(f"SELECT * FROM VALUES {values} AS t(run, phase, a, b)").createOrReplaceTempView("phases")
    groups = ", ".join(str(crc32(name.encode("ascii"))) for name in sorted(_GROUPS))
    found: list[Any] = session.sql(f"""
        SELECT run, phase, {by}, count(*) AS n
        FROM messages JOIN `order` USING (run, station, src, incarnation, seq) JOIN phases USING (run)
        WHERE station = src AND type = {int(MessageType.USER)} AND group IN ({groups}) AND sent_ns BETWEEN a AND b
        GROUP BY run, phase, {by}
    """).collect()
    return found


def point(asked: Asked, counted: Mapping[tuple[str, int], int]) -> Point:
    """Place the counts of one phase in the model's units.

    A manager sends an answer for each request it receives, and receives one for each that it sends, so it handles twice what it
    sends in ``ASK``. ValueError if the counts are not of such a phase.
    """
    s, m = asked.setting, asked.setting.m
    if len(asked.managers) != m or asked.calls <= 0:
        raise ValueError(f"{len(asked.managers)} managers and {asked.calls} calls, for {s}")
    group = COMMON[asked.update]
    common = sum(n for (name, _), n in counted.items() if name == group)
    asks = sum(n for (name, _), n in counted.items() if name == ASK)
    by_managers = sum(n for (name, station), n in counted.items() if name == ASK and station in asked.managers)
    if common and any(name == group and station not in asked.managers for name, station in counted):
        raise ValueError("a terminal has changed the common directory")
    units = float(asked.calls / (s.k * s.n))
    one = asked.update.messages(m)
    handled = common * asked.update.handled(m) / (m * one) if common else 0.0
    return Point(s, asked.update, (common + asks) / units, (handled + 2 * by_managers / m) / units)


def points(spark: Any, runs: Sequence[tuple[Run, Path]], asked: Mapping[tuple[int, int], Asked]) -> list[Point]:
    """The points of all phases that ``asked`` describes, by (run, phase). Raises ValueError."""
    counted = sent(spark, runs)
    return [point(what, counted[key]) for key, what in sorted(asked.items())]
